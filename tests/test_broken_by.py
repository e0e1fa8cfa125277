"""What once broke a promise of durakit: one test for each kind of fault.

Each test holds a whole kind (every odd error, every argument, every append), not the one input
that was found first. The mail service's own ledger and the rows on disk are the referees.
"""

import asyncio
import os
import random
import shutil
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import durakit as dk
from durakit import files
from durakit.errors import DamagedFile, RunNotFound, StoreFull
from durakit.mail import Mailbox
from durakit.schema import SCHEMA_VERSION, _statements
from durakit.sweep import can_fork

TO = ("ada@example.org", "Hi", "Hello")


class State(BaseModel):
    """The state of the little machines here."""

    n: int = 0
    pad: list[str] = []


@pytest.fixture
def box(tmp_path, clock):
    """A mail service that promises nothing: a second send is a second mail."""
    mailbox = Mailbox(tmp_path / "opaque", clock=clock, profile="opaque")
    yield mailbox
    mailbox.close()


@pytest.fixture
def keyed(tmp_path, clock):
    """A mail service that knows our key."""
    mailbox = Mailbox(tmp_path / "keyed", clock=clock)
    yield mailbox
    mailbox.close()


@pytest.fixture
def rt(tmp_path, clock, box):
    """A runtime on a fresh file, whose crashes reach the mail service."""
    path = tmp_path / "run.db"
    with dk.Runtime(path, clock=clock, rng=random.Random(1), world=box) as runtime:
        yield runtime


def sender(box, effect="opaque", **options):
    """A tool that sends one mail, with a key where the contract speaks of one."""

    @dk.tool(name="send", effect=effect, **options)
    def send(call):
        key = call.key if effect == "idempotent" else None
        return box.send(*TO, key=key, timeout=call.remaining())

    return send


def one_mail(tool, name="one mail"):
    """A workflow of one call."""

    @dk.workflow(name=name)
    def workflow(ctx):
        return ctx.call(tool, key="k")

    return workflow


def unknown_mail(rt, box, id="w"):
    """A run parked with a mail that was sent and whose outcome is unknown."""
    workflow = one_mail(sender(box))
    rt.run(workflow, id=id, crash=dk.CrashAt("send", "effect_done"))
    rt.recover()
    assert rt.get(id).why == "unknown"
    return workflow


def outcomes(run) -> list[str]:
    """What the disk says of a run's operations."""
    return run.operations()["outcome"].tolist()


def owner(rt, id) -> str | None:
    """Who holds the run's lease."""
    return rt._store.find_run(rt.account, id).owner


# -- user code at its worst ----------------------------------------------------------------


class Odd(BaseException):
    """No error and no stop of ours."""


@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit, Odd])
@pytest.mark.parametrize("where", ["tool", "step", "workflow"])
def test_a_base_exception_of_user_code_stops_one_run_and_frees_its_lease(rt, kind, where):
    """``recover()`` goes on with the others; a lease that nobody needs is given back."""

    def boom(*_):
        raise kind

    tool = dk.tool(lambda call: boom(), name="boom")

    @dk.workflow(name="bad")
    def bad(ctx):
        if where == "tool":
            ctx.call(tool, key="x")
        if where == "step":
            ctx.step("boom", boom)
        boom()

    @dk.workflow(name="good")
    def good(ctx):
        return 1

    rt.start(bad, id="bad")
    rt.start(good, id="good")
    table = rt.recover()
    assert table["did"].tolist() == ["error", "driven"]
    assert rt.get("good").result == 1
    assert owner(rt, "bad") is None
    rt.recover()
    assert rt.get("bad").status == ("needs_decision" if where == "tool" else "running")
    assert outcomes(rt.get("bad")) == (["unknown"] if where == "tool" else [])


def test_sys_exit_in_a_tool_frees_the_lease_and_ends_the_process_that_was_told_to(rt):
    """A wish to leave is honoured, run by run, and the third time the run is parked."""
    tool = dk.tool(lambda call: sys.exit(3), name="leaves", effect="none")
    rt.start(one_mail(tool), id="w")
    for _ in range(3):
        with pytest.raises(SystemExit):
            rt.recover()
        assert owner(rt, "w") is None
    rt.recover()
    assert rt.get("w").why == "no progress"


def start_to_leave(rt, box, leave):
    """Start a run whose tool is ``leave``, and then two that send one mail each."""
    tools = {"leaves": dk.tool(leave, name="leaves early", effect="none")}
    for name in ("second", "third"):
        tools[name] = dk.tool(lambda call: box.send(*TO), name=f"sends {name}")
    for name, tool in tools.items():
        rt.start(one_mail(tool, name), id=name)


def test_sys_exit_in_one_run_leaves_the_others_their_turn(rt, box):
    """The process ends as it was told to, and before that the ledger has the others' mails."""
    start_to_leave(rt, box, lambda call: sys.exit(3))
    with pytest.raises(SystemExit) as left:
        rt.recover()
    assert left.value.code == 3
    assert owner(rt, "leaves") is None
    assert [rt.get(name).status for name in ("second", "third")] == ["completed", "completed"]
    assert len(box.effects()) == 2


def test_sys_exit_in_the_handler_of_a_signal_ends_the_process_at_once(rt, box):
    """Who stops a worker does not wait for all of its runs."""

    def handler(number, frame):
        del number, frame
        sys.exit(4)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        start_to_leave(rt, box, lambda call: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(SystemExit) as left:
            rt.recover()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left.value.code == 4
    assert owner(rt, "leaves") is None
    assert box.effects() == []


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("where", ["step", "call"])
def test_a_workflow_that_swallows_an_interrupt_does_not_go_on(rt, keyed, kind, where):
    """Otherwise its journal would lack what was interrupted, and no replay could follow it."""
    first = [kind()]

    def once():
        if first:
            raise first.pop()
        return 1

    @dk.tool(name="send", effect="idempotent")
    def send(call):
        return once() and keyed.send(*TO, key=call.key)

    @dk.workflow(name="swallows")
    def swallows(ctx):
        told = []
        for number in range(2):
            try:
                told.append(ctx.step("s", once) if where == "step" else ctx.call(send, key="a"))
            except BaseException:
                told.append(number)
        return [*told, ctx.call(send, key="b")]

    with pytest.raises(kind):
        rt.run(swallows, id="w")
    assert owner(rt, "w") is None
    assert keyed.effects() == []
    rt.recover()
    mails = [{"id": "email-1"}] * 2 if where == "call" else [1, 1]
    assert rt.get("w").result == [*mails, {"id": f"email-{2 if where == 'call' else 1}"}]


class Speechless(Exception):
    """An error that cannot say what it is."""

    def __str__(self):
        raise RuntimeError("no words")


class SpeechlessRefusal(dk.NotExecuted, Speechless):
    """The same, of a tool that is certain."""


class Shapeless:
    """A value that cannot be shown."""

    def __repr__(self):
        raise RuntimeError("no shape")


def raises(error: Exception) -> Callable[..., Any]:
    """A function of any arguments that raises ``error``."""

    def function(call=None, *_):
        raise error

    return function


@pytest.mark.parametrize("answer", [raises(Speechless()), lambda call: Shapeless()])
def test_a_probe_that_cannot_even_describe_itself_proves_nothing(rt, box, answer):
    """An error or a value without words leaves the operation unknown, and never a failed run."""
    tool = sender(box, "queryable", probe=answer, settles_after=1.0)
    workflow = one_mail(tool)
    rt.run(workflow, id="w", crash=dk.CrashAt("send", "effect_done"))
    run = rt.resume("w")
    assert run.status == "needs_decision"
    assert outcomes(run) == ["unknown"]


def test_errors_without_words_end_a_run_like_any_other(rt):
    """A refusal, a final error and an error at a mismatch are told by their type."""
    patient = dk.Retry(initial=50, cap=50, attempts=3)
    refused = dk.tool(
        raises(SpeechlessRefusal("x", transient=True, retry_after=99)),
        name="refused",
        retry=patient,
    )
    run = rt.run(one_mail(refused), id="refused", deadline=60)
    with pytest.raises(dk.DeadlineExceeded, match="SpeechlessRefusal"):
        _ = run.result
    assert outcomes(run) == ["not_executed"]

    @dk.workflow(name="two steps")
    def two_steps(ctx):
        ctx.step("a", int)
        ctx.step("b", int)

    rt.run(two_steps, id="w", crash=dk.CrashAt("b", "step_done"))
    dk.workflow(lambda ctx: raises(Speechless())(), name="two steps")
    assert rt.resume("w").why == "mismatch"


def test_a_ctx_that_outlived_its_drive_is_refused_in_words(rt, box):
    """Kept in a list and used by another run it sends nothing, and the other run can be ended."""
    kept = []
    send = sender(box)

    @dk.workflow(name="keeps")
    def keeps(ctx):
        kept.append(ctx)

    @dk.workflow(name="uses")
    def uses(ctx):
        return kept[0].call(send, key="k")

    rt.run(keeps, id="a")
    assert "the drive of this ctx has ended" in rt.run(uses, id="b").reason
    with pytest.raises(dk.UsageError, match="has ended"):
        kept[0].step("s", int)
    assert box.effects() == []


# -- who ends, and who does not --------------------------------------------------------------


@pytest.mark.parametrize("end", ["fail", "cancel", "done"])
def test_a_machine_planned_anew_never_ends_over_an_unknown_call(rt, box, end):
    """Failing, cancelled or done: a call that the new plan forgets keeps the run open."""
    send, first = sender(box), [True]

    @dk.machine(state=State, name="forgets")
    def forgets(ctx, state):
        if first:
            ctx.call(send, key="k")
        state.n += 1
        if end == "cancel":
            ctx.step("more", int)
        if state.n >= 2 and end == "fail":
            raise ValueError(end)
        return dk.Done(state) if state.n >= 2 else state

    rt.run(forgets, State(), id="m", crash=dk.CrashAt("send", "effect_done"))
    first.clear()
    if end == "cancel":
        rt.cancel("m")
    run = rt.resume("m")
    assert (run.status, outcomes(run)) == ("needs_decision", ["unknown"])
    rt.resolve("m", "k", "completed", by="me")
    rt.recover()
    assert run.status == {"fail": "failed", "cancel": "cancelled", "done": "completed"}[end]
    assert len(box.effects()) == 1


@pytest.mark.parametrize("point", ["checkpoint_saved", "end_saved"])
def test_no_transition_follows_the_one_that_was_done(rt, keyed, point):
    """Between the last checkpoint and the run's end lies no second last transition."""

    @dk.tool(name="send", effect="idempotent")
    def send(call):
        return keyed.send(*TO, key=call.key)

    @dk.machine(state=State, name="counts")
    def counts(ctx, state):
        state.n += 1
        ctx.call(send, key=f"letter {state.n}")
        return dk.Done(state, result=state.n) if state.n >= 2 else state

    place = "run" if point == "end_saved" else "counts"
    occurrence = 1 if point == "end_saved" else 2
    run = rt.run(counts, State(), id="m", crash=dk.CrashAt(place, point, occurrence))
    assert run.crash is not None
    rt.recover()
    assert run.result == 2
    assert [e["key"] for e in keyed.effects()] == ["letter 1", "letter 2"]


def test_a_run_that_names_another_runs_unknown_operation_is_not_failed(rt, box, tmp_path, clock):
    """B stops at its deadline while A works on the key: B asks a person, and may go on later."""
    met = []

    @dk.tool(name="send")
    def send(call):
        if not met:
            met.append("A is at work")
            with dk.Runtime(tmp_path / "run.db", clock=clock) as other:
                run = other.run(workflow, id="B", deadline=5)
                met.extend([run.status, run.reason, *outcomes(run)])
        return box.send(*TO)

    workflow = one_mail(send)
    first = rt.run(workflow, id="A")
    assert met[1:] == ["needs_decision", "unknown: in progress in run 'A'", "unknown"]
    assert rt.resume("B").result == first.result
    assert len(box.effects()) == 1


def defined_again(how):
    """Code under which the run of ``two steps`` cannot go on."""
    version = 2 if how == "version" else 1
    dk.workflow(lambda ctx: ctx.step("other", int), name="two steps", version=version)


@pytest.mark.parametrize("how", ["mismatch", "version", "missing"])
def test_a_run_whose_code_is_gone_can_still_be_cancelled(rt, box, how, monkeypatch):
    """What the advice offers works: no code is needed to stop, unless an outcome is unknown."""
    send = sender(box)

    @dk.workflow(name="two steps")
    def two_steps(ctx, sends):
        ctx.step("a", int)
        if sends:
            ctx.call(send, key="k")
        ctx.step("b", int)

    rt.run(two_steps, sends=False, id="clean", crash=dk.CrashAt("b", "before_step"))
    rt.run(two_steps, sends=True, id="unknown", crash=dk.CrashAt("send", "effect_done"))
    if how == "missing":
        monkeypatch.setattr("durakit.define._workflows", {})
    else:
        defined_again(how)
    for run_id in ("clean", "unknown"):
        rt.recover()
        rt.cancel(run_id)
    rt.recover()
    assert rt.get("clean").status == "cancelled"
    assert rt.get("unknown").why == "unknown"
    rt.resolve("unknown", "k", "completed", by="me")
    rt.recover()
    assert rt.get("unknown").status == "cancelled"
    assert len(box.effects()) == 1


def test_a_run_parked_for_killing_its_workers_listens_to_a_person(rt):
    """Cancel reaches it by ``recover()``, and until then no entry is added for nothing."""
    dies = dk.tool(lambda call: sys.exit(1), name="dies", effect="none")
    rt.start(one_mail(dies), id="w")
    for _ in range(3):
        with pytest.raises(SystemExit):
            rt.recover()
    rt.recover()
    entries = len(rt.get("w").history())
    rt.recover()
    assert len(rt.get("w").history()) == entries
    rt.cancel("w")
    rt.recover()
    assert rt.get("w").status == "cancelled"


def test_a_migration_that_fails_parks_the_run_and_leaves_its_state(rt):
    """A slip in a migration is repaired by a better one; the run is not lost to it."""

    def declare(version):
        @dk.machine(state=State, name="grows", version=version)
        def grows(ctx, state):
            state.n += 1
            return dk.Done(state, result=state.n) if state.n >= 3 else state

        return grows

    rt.run(declare(1), State(), id="m", crash=dk.CrashAt("grows", "checkpoint_saved"))
    newer = declare(2)
    newer.migrate(from_version=1)(lambda form: form["missing"])
    assert rt.resume("m").why == "mismatch"
    newer.migrate(from_version=1)(lambda form: form)
    assert rt.resume("m").result == 3


def test_a_wait_for_a_signal_ends_when_the_runs_limit_fires(rt, clock):
    """Nobody has to send a signal for a run to notice that its time is over."""

    @dk.workflow(name="waits")
    def waits(ctx):
        return ctx.wait_for("word")

    run = rt.run(waits, id="w", deadline=10)
    clock.advance(9.5)
    rt.recover()
    assert run.status == "waiting"
    clock.advance(0.5)
    rt.recover()
    with pytest.raises(dk.DeadlineExceeded, match="session"):
        _ = run.result
    late = rt.run(waits, id="jump", deadline=10)
    clock.jump_wall(-3600)
    rt.recover()
    rt.signal("jump", "word", 1)
    rt.recover()
    assert late.result == 1


# -- a person's word -------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("not_executed", "completed"), ("completed", "not_executed")])
def test_two_people_who_contradict_each_other_never_send_a_second_mail(rt, box, words):
    """Both words are kept and a third decides."""
    unknown_mail(rt, box)
    for name, word in zip("ab", words, strict=True):
        rt.resolve("w", "k", word, by=name)
    rt.recover()
    run = rt.get("w")
    assert run.why == "conflict"
    assert [p["by"] for p in run.history()["payload"] if "by" in p] == ["a"]
    if words[0] == "not_executed":
        rt.resume("w")
        assert run.why == "conflict"
        rt.resolve("w", "k", "completed", result="told", by="c")
    rt.resume("w")
    assert run.status == "completed"
    assert len(box.effects()) == 1


@pytest.mark.parametrize("decision", ["completed", "not_executed"])
def test_a_late_reply_against_a_persons_word_waits_for_a_second_word(rt, box, clock, decision):
    """Going on by itself would send what has been sent; either word of a person is accepted."""

    @dk.tool(name="send", timeout=3)
    def send(call):
        reply = box.send(*TO)
        clock.sleep(9 if len(box.effects()) == 1 else 0)
        return reply

    rt.run(one_mail(send), id="w")
    rt.resolve("w", "k", "not_executed", by="a")
    rt.recover()
    run = rt.get("w")
    assert run.why == "conflict"
    for go_on in (rt.resume, rt.cancel):
        go_on("w")
        rt.recover()
        assert run.why == "conflict"
    assert len(box.effects()) == 1
    rt.resolve("w", "k", decision, result="late" if decision == "completed" else None, by="b")
    rt.recover()
    kinds = run.history()["kind"].tolist()
    assert kinds.count("late_reply") == 1
    assert kinds.count("resolved") == 2
    assert len(box.effects()) == 1
    assert outcomes(run) == [decision]
    assert run.status == ("completed" if decision == "completed" else "cancelled")


@pytest.mark.parametrize("word", ["not_executed", "completed"])
def test_a_word_about_one_attempt_does_not_settle_the_next(rt, box, tmp_path, word):
    """It was said before the second attempt began and is read in the middle of it."""
    unknown_mail(rt, box)
    rt.resolve("w", "k", "not_executed", by="a")
    rt.resolve("w", "k", word, by="b")
    file = sqlite3.connect(tmp_path / "run.db", isolation_level=None)
    second = file.execute("SELECT * FROM command ORDER BY command DESC").fetchone()
    file.execute("DELETE FROM command WHERE command = ?", second[:1])
    file.execute("UPDATE run SET commands = commands - 1")

    def arrive(boundary):
        if boundary.point == "before_intent":
            file.execute("INSERT INTO command VALUES (?, ?, ?, ?, ?, ?)", second)
            file.execute("UPDATE run SET commands = commands + 1")

    rt._seen = arrive
    token = rt._store.find_run("default", "w").token
    crash = dk.CrashAt("send", "effect_done", attempt=2, incarnation=token + 1)
    run = rt.resume("w", crash=crash)
    rt._seen = None
    file.close()
    assert outcomes(run) == ["unknown"]
    assert len(box.effects()) == (1 if word == "completed" else 2)
    assert run.why == ("conflict" if word == "completed" else "")


def test_a_word_that_comes_during_a_backoff_ends_the_call_once(rt, keyed, clock, tmp_path):
    """The call returns it, nothing is sent again, and a replay finds the same journal."""
    words = iter(["told"])

    @dk.tool(name="send", effect="idempotent", retry=dk.Retry(attempts=4))
    def send(call):
        for word in words:
            with dk.Runtime(tmp_path / "run.db", clock=clock) as other:
                other.resolve("w", "k", "completed", result=word, by="me")
            raise TimeoutError
        return keyed.send(*TO, key=call.key)

    @dk.workflow(name="sends and sleeps")
    def workflow(ctx):
        reply = ctx.call(send, key="k")
        ctx.sleep(5)
        return reply

    run = rt.run(workflow, id="w")
    assert run.status == "waiting"
    clock.advance(10)
    rt.recover()
    assert run.result == "told"
    assert keyed.effects() == []


def test_a_word_that_another_run_overtakes_is_judged_anew(rt, box, clock, tmp_path):
    """Two runs met one operation and each is told an end: the first stands for both."""
    workflow = unknown_mail(rt, box, "A")
    assert rt.run(workflow, id="B").why == "unknown"
    rt.resolve("A", "k", "completed", result="first", by="a")
    rt.resolve("B", "k", "completed", result="second", by="b")
    look = rt._store.read_operation

    def overtaken(*which):
        row = look(*which)
        rt._store.read_operation = look
        with dk.Runtime(tmp_path / "run.db", clock=clock) as other:
            other.resume("A")
        return row

    rt._store.read_operation = overtaken
    rt.resume("B")
    assert [rt.get(run_id).result for run_id in "AB"] == ["first", "first"]
    assert len(box.effects()) == 1


@pytest.mark.parametrize("declared", ["none", "idempotent", "queryable"])
def test_a_tool_declared_anew_does_not_weaken_the_contract_of_an_unknown(rt, box, declared):
    """What was sent without any promise is not sent again because of a later one."""
    probe = (lambda call: dk.Absent) if declared == "queryable" else None
    unknown_mail(rt, box)
    settles = 0 if declared == "queryable" else None
    one_mail(sender(box, declared, probe=probe, settles_after=settles))
    run = rt.resume("w")
    assert (run.status, outcomes(run)) == ("needs_decision", ["unknown"])
    rt.resolve("w", "k", "not_executed", by="me")
    rt.recover()
    assert run.operations()["contract"].tolist() == [declared]
    assert len(box.effects()) == 2


def test_a_late_reply_of_any_declared_type_comes_back_as_that_type(tmp_path):
    """Handed in by ``recover()`` it is what a reply in time would have been."""
    gate, left = threading.Event(), threading.Event()

    @dk.tool(name="send", timeout=0.02)
    def send(call) -> date:
        gate.wait(10)
        left.set()
        return date(2020, 1, 2)

    @dk.workflow(name="typed")
    def typed(ctx) -> date:
        return ctx.call(send, key="k")

    with dk.Runtime(tmp_path / "run.db", settle=0.01) as rt:
        assert rt.run(typed, id="w").status == "needs_decision"
        gate.set()
        assert left.wait(10)
        for _ in range(200):
            rt.recover()
            if rt.get("w").status == "completed":
                break
            threading.Event().wait(0.01)
        assert rt.get("w").result == date(2020, 1, 2)


# -- files and processes ---------------------------------------------------------------------


def remove(path: Path) -> None:
    """The file is gone."""
    path.unlink()


def replace(path: Path) -> None:
    """Another file has its name."""
    shutil.copy(path, path.with_name("copy.db"))
    path.with_name("copy.db").replace(path)


def overwrite(file, content):
    """Write into the very file that is there, a second later by its own clock."""
    moment = file.stat().st_mtime_ns + 1_000_000_000
    with file.open("r+b") as written:
        written.truncate(0)
        written.write(content)
    os.utime(file, ns=(moment, moment))


OVERWRITTEN = {
    "emptied": lambda content: b"",
    "cut in half": lambda content: content[: len(content) // 2],
    "cut after a page": lambda content: content[:4096],
    "noise in front": lambda content: b"noise" * 20 + content[100:],
    "nothing but zeros": lambda content: bytes(len(content)),
    "longer than before": lambda content: b"x" * (2 * len(content)),
}


@pytest.mark.parametrize("how", OVERWRITTEN)
def test_a_file_overwritten_in_place_under_a_runtime_is_not_written_to(rt, box, how):
    """Its log and its cache would go on, and lose all at the end: the tool is not called."""
    workflow = one_mail(sender(box))
    rt.start(workflow, id="before")
    file = Path(rt._store.name)
    left = OVERWRITTEN[how](file.read_bytes())
    overwrite(file, left)
    with pytest.raises(DamagedFile, match="overwritten or cut off while it was open here"):
        rt.run(workflow, id="after")
    with pytest.raises(DamagedFile):
        rt.resume("before")
    assert box.effects() == []
    assert file.read_bytes() == left


def test_a_header_that_speaks_of_pages_that_are_still_in_the_log_is_no_damage(rt, box):
    """So a process leaves it that is killed while it moves pages there; the log has the rest."""
    rt.start(one_mail(sender(box)), id="w")
    file = Path(rt._store.name)
    content = bytearray(file.read_bytes())
    content[28:32] = (len(content) // 4096 + 7).to_bytes(4, "big")
    overwrite(file, content)
    assert rt.resume("w").status == "completed"
    assert len(box.effects()) == 1


@pytest.mark.parametrize("do", [remove, replace])
def test_a_file_removed_or_replaced_under_a_runtime_is_not_written_to(rt, box, tmp_path, do):
    """What would be lost with the last handle is refused, and nothing is sent on its strength."""
    send = sender(box)

    @dk.workflow(name="loses its file")
    def workflow(ctx):
        ctx.step("the file goes", lambda: do(tmp_path / "run.db"))
        ctx.call(send, key="k")

    with pytest.raises(dk.StoreError, match="removed or replaced"):
        rt.run(workflow, id="w")
    with pytest.raises(dk.StoreError, match="removed or replaced"):
        rt.store.put("n", "k", 1)
    assert box.effects() == []


@pytest.mark.parametrize("memory", [False, True])
def test_a_closed_runtime_says_so_and_opens_nothing(tmp_path, clock, memory):
    """Every verb after ``close()`` is refused in words; no second connection is left behind."""
    rt = dk.Runtime(":memory:" if memory else tmp_path / "run.db", clock=clock)
    workflow = one_mail(dk.tool(lambda call: 1, name="t"))
    rt.run(workflow, id="w")
    rt.close()
    for verb in (
        lambda: rt.run(workflow, id="x"), rt.runs, rt.recover, rt.compact, lambda: rt.get("w"),
        lambda: rt.cancel("w"), lambda: rt.store.put("n", "k", 1),
    ):  # fmt: skip
        with pytest.raises(dk.UsageError, match="is closed"):
            verb()
    assert rt._store._all == []
    rt.close()


def filling(send, kind):
    """A workflow or machine that writes pages before, around and after its one mail."""

    @dk.workflow(name="fills")
    def fills(ctx, state):
        ctx.step("pad", lambda: "x" * 6000)
        ctx.call(send, key="k")
        return ctx.step("pad", lambda: "x" * 6000)

    @dk.machine(state=State, name="fills too")
    def fills_too(ctx, state):
        state.n += 1
        state.pad.append("x" * 6000)
        if state.n == 2:
            ctx.call(send, key="k")
        return dk.Done(state) if state.n == 3 else state

    return fills if kind == "workflow" else fills_too


@pytest.mark.parametrize("kind", ["workflow", "machine"])
def test_a_disk_that_is_full_at_any_append_costs_no_mail_and_adds_none(tmp_path, kind):
    """Page by page; once there is room again the run ends with its one mail."""
    for room in range(60):
        clock = dk.ManualClock()
        box = Mailbox(tmp_path / f"{room}", clock=clock)
        code = filling(sender(box, "idempotent", timeout=3), kind)
        first = {} if kind == "workflow" else State()
        with dk.Runtime(tmp_path / f"{room}.db", clock=clock, durability="process") as rt:
            connection = rt._store.connection()
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages + room}")
            full = False
            try:
                rt.run(code, first, id="w")
            except StoreFull:
                full = True
            connection.execute("PRAGMA max_page_count = 1000000")
            rt.recover()
            assert rt.run(code, first, id="w").status == "completed", room
        assert len(box.effects()) == 1, room
        box.close()
        if not full:
            break
    assert 3 < room < 59


def test_a_name_used_again_is_not_taken_for_dead(tmp_path, clock):
    """A second Runtime under a crashed one's name keeps what it drives."""
    file, tries = tmp_path / "run.db", []

    @dk.tool(name="slow", effect="none")
    def slow(call):
        tries.append(call.attempt)
        if len(tries) == 1:
            with dk.Runtime(file, clock=clock) as stranger:
                assert stranger.recover()["did"].tolist() == ["owned"]

    workflow = one_mail(slow)
    with dk.Runtime(file, clock=clock, owner="me") as rt:
        assert rt.run(workflow, id="w", crash=dk.CrashAt("run", "run_claimed")).crash is not None
    with dk.Runtime(file, clock=clock, owner="me") as rt:
        assert rt.resume("w").status == "completed"
    assert len(tries) == 1


@pytest.mark.parametrize("point", ["run_saved", "run_claimed", "end_saved"])
def test_a_crash_of_a_run_in_memory_still_returns_a_run_that_can_be_shown(clock, point):
    """What is gone is said to be gone."""
    with dk.Runtime(":memory:", clock=clock) as rt:
        workflow = one_mail(dk.tool(lambda call: 1, name="t"))
        run = rt.run(workflow, id="w", crash=dk.CrashAt("run", point))
        assert run.crash.point == point
        assert point in repr(run)
        with pytest.raises(RunNotFound):
            rt.get("w")


@contextmanager
def at_line(number: int, act: Callable[[], Any]) -> Iterator[list[int]]:
    """Call ``act`` before the ``number``-th line of durakit's own code; counts the lines."""
    seen = [0]

    def line(frame, event, _):
        if event == "line":
            seen[0] += 1
            if seen[0] == number:
                act()
        return line

    def enter(frame, *_):
        name = frame.f_code.co_filename.replace(os.sep, "/")
        return line if "/durakit/" in name and "/mail/" not in name else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield seen
    finally:
        sys.settrace(before)


def interrupt() -> None:
    """The keyboard."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("effect", ["idempotent", "opaque"])
def test_an_interrupt_before_any_line_of_ours_costs_no_mail_and_adds_none(tmp_path, effect):
    """Every 17th line, from a different one for each contract; the soak tries them all."""
    number, stride = (3 if effect == "opaque" else 5), 17
    while interrupted(tmp_path / f"{number}", effect, number):
        number += stride
    assert number > 500


def interrupted(folder: Path, effect: str, number: int) -> bool:
    """Interrupt a run before one line, recover, and judge; False beyond the last line."""
    folder.mkdir()
    clock = dk.ManualClock()
    box = Mailbox(folder / "world", clock=clock, profile=effect)
    send = sender(box, effect, timeout=3)

    @dk.workflow(name="interrupted")
    def workflow(ctx):
        return [ctx.step("a", int), ctx.call(send, key="k")]

    rt = dk.Runtime(folder / "run.db", clock=clock, durability="process")
    with at_line(number, interrupt) as seen, suppress(KeyboardInterrupt):
        rt.run(workflow, id="w")
    rt.close()
    clock.advance(60)
    with dk.Runtime(folder / "run.db", clock=clock, durability="process") as rt:
        rt.recover()
        run = rt.run(workflow, id="w")
        assert run.status == "completed" or (effect, run.why) == ("opaque", "unknown"), number
        assert len(box.effects()) <= 1, number
        assert len(box.effects()) == 1 or run.status == "needs_decision", number
    box.close()
    shutil.rmtree(folder)
    return seen[0] >= number


def version_1(path: Path) -> None:
    """A file as the first schema made it."""
    file = sqlite3.connect(path, isolation_level=None)
    file.execute(f"PRAGMA application_id = {files.APPLICATION_ID}")
    for statement in _statements("schema.sql"):
        file.execute(statement)
    file.execute("INSERT INTO schema_version VALUES (1, 'manual')")
    file.execute("PRAGMA user_version = 1")
    file.execute("PRAGMA journal_mode = WAL")
    file.close()


def die() -> None:
    """The hard way."""
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.real_kill
@pytest.mark.skipif(not can_fork(), reason="this platform cannot fork a child per line")
@pytest.mark.parametrize("older", [False, True], ids=["create", "migrate"])
def test_a_kill_before_any_line_of_opening_a_file_leaves_one_that_opens(tmp_path, older):
    """Created or migrated whole or not at all: every seventh line of both."""
    dk.Runtime(tmp_path / "warm.db", clock=dk.ManualClock()).close()
    for number in range(1, 5000, 7):
        path = tmp_path / f"{number}.db"
        if older:
            version_1(path)
        child = os.fork()
        if child == 0:  # pragma: no cover - it never returns
            try:
                with at_line(number, die):
                    dk.Runtime(path, clock=dk.ManualClock())
            finally:
                os._exit(0)
        killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        with dk.Runtime(path, clock=dk.ManualClock()) as rt:
            assert rt._store.read("PRAGMA user_version") == [(SCHEMA_VERSION,)], number
            assert rt.runs().empty
        if not killed:
            break
    assert 50 < number < 4990


@pytest.mark.real_kill
@pytest.mark.skipif(not can_fork(), reason="this platform cannot fork the openers")
def test_openers_that_race_migrate_an_old_file_once(tmp_path):
    """Four processes at once, and each can read it."""
    version_1(tmp_path / "run.db")
    gate, go = os.pipe()
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:  # pragma: no cover - it never returns
            status = 1
            try:
                os.close(go)
                os.read(gate, 1)
                dk.Runtime(tmp_path / "run.db", clock=dk.ManualClock()).runs()
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    os.close(gate)
    os.close(go)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4


# -- forks and retention ---------------------------------------------------------------------


def test_what_a_pruned_parent_was_told_stays_known_to_every_fork(rt, keyed, clock):
    """Forks of forks at every entry, the parent removed, then the forks: two mails for all."""
    send = sender(keyed, "idempotent")

    @dk.workflow(name="two mails")
    def two_mails(ctx):
        return [ctx.call(send, key="k1"), ctx.call(send, key="k2")]

    parent = rt.run(two_mails, id="P")
    expected = parent.result
    for at in range(1, len(parent.history())):
        fork = parent.fork(at=at, id=f"F{at}")
        fork.fork(at=at, id=f"FF{at}")
    clock.advance(100)
    assert rt.prune(50) == 1
    rt.recover()
    ids = rt.runs()["id"].tolist()
    assert len(ids) > 8
    assert all(rt.get(run_id).result == expected for run_id in ids)
    clock.advance(100)
    assert rt.prune(50) == len(ids)
    assert rt.run(two_mails, id="P").result == expected
    assert len(keyed.effects()) == 2


@pytest.mark.parametrize("gone", ["deleted", "expired"])
def test_an_item_that_comes_back_after_pruning_counts_on(rt, clock, gone):
    """A version that somebody still holds never fits another value: compare-and-set is kept."""
    held = rt.store.put("n", "k", "old", expires_in=5 if gone == "expired" else None)
    if gone == "deleted":
        rt.store.delete("n", "k")
    clock.advance(10)
    assert rt.store.prune() == 1
    assert rt.store.prune() == 0
    back = rt.store.put("n", "k", "new", expected=0)
    assert back.version > held.version
    with pytest.raises(dk.UsageError, match="has version"):
        rt.store.put("n", "k", "lost", expected=held.version)
    assert rt.store.keys("n") == ["k"]


# -- bad input -------------------------------------------------------------------------------

ODD = [
    None, True, 0, -1, 2**70, -(2**70), 1.5, float("nan"), float("inf"), 1e308, "", "x", "\ud800",
    "a\0b", "x" * 70_000, b"x", [], {}, (1,), {1}, object(), lambda: 1, int, dk.ManualClock(), ...,
]  # fmt: skip


def through_ctx(use: Callable[..., Any]) -> Callable[..., Any]:
    """``use(ctx, …)`` as a function that raises what the workflow meets there."""

    def function(**arguments):
        met: list[Exception] = []

        @dk.workflow(name="odd")
        def odd(ctx):
            try:
                use(ctx, **arguments)
            except Exception as error:
                met.append(error)
                raise

        with dk.Runtime(":memory:", clock=dk.ManualClock()) as rt:
            rt.run(odd, id="odd")
        if met:
            raise met[0]

    return function


def verbs(rt, tmp_path, clock) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Every public function with arguments that it takes."""
    tool = dk.tool(lambda call: 1, name="t")

    @dk.workflow(name="calls")
    def calls(ctx, n):
        return ctx.call(tool, key="k")

    @dk.workflow(name="waits")
    def waits(ctx):
        return ctx.wait_for("x")

    rt.run(calls, 1, id="u", crash=dk.CrashAt("t", "intent_saved"))
    rt.recover()
    rt.run(waits, id="wait")
    run, n, k = rt.get("u"), "n", "k"
    declared = dk.machine(lambda ctx, state: state, state=State, name="m")
    return {
        "Runtime": (
            lambda **a: dk.Runtime(tmp_path / "odd.db", **a).close(),
            {"account": "a", "clock": clock, "owner": "o", "lease": 3.0, "settle": 3.0,
             "durability": "power"},
        ),
        "start": (lambda w, **a: rt.start(w, 1, **a),
                  {"w": calls, "id": "s", "deadline": 5.0}),
        "run": (lambda w, **a: rt.run(w, 1, **a),
                {"w": calls, "id": "u", "deadline": 5.0, "crash": None}),
        "resume": (rt.resume, {"id": "u", "crash": None}),
        "recover": (rt.recover, {"wait": 0}),
        "resolve": (rt.resolve, {"id": "u", "key": "k", "outcome": "completed", "result": 1,
                                 "by": "me", "tool": "t"}),
        "cancel": (rt.cancel, {"id": "wait", "by": "me"}),
        "signal": (rt.signal, {"id": "wait", "name": "x", "value": 1}),
        "get": (rt.get, {"id": "u"}),
        "prune": (rt.prune, {"older_than": 5.0, "limit": 3}),
        "at": (run.at, {"seq": 1}),
        "diff": (run.diff, {"a": 1, "b": 2}),
        "fork": (run.fork, {"at": 1, "id": "ff"}),
        "get item": (rt.store.get, {"namespace": n, "key": k, "owner": "o"}),
        "put": (rt.store.put, {"namespace": n, "key": k, "value": 1, "expected": None,
                               "expires_in": 3.0, "owner": None}),
        "delete": (rt.store.delete, {"namespace": n, "key": k, "expected": None, "owner": None}),
        "keys": (rt.store.keys, {"namespace": n, "owner": "default"}),
        "allow": (rt.store.allow, {"namespace": n, "other": "o", "may": "read"}),
        "CrashAt": (lambda place, point, **a: dk.CrashAt(place, point, **a),
                    {"place": "t", "point": "intent_saved", "occurrence": 1, "attempt": 1,
                     "incarnation": 1, "fate": "lost"}),
        "parse": (dk.CrashAt.parse, {"seed": "3"}),
        "Retry": (dk.Retry, {"initial": 1, "cap": 2, "attempts": 3, "reserve": 0}),
        "tool": (lambda function, **a: dk.tool(function, **a),
                 {"function": lambda call: 1, "effect": "none", "window": 3.0, "errors": (),
                  "settles_after": 1.0, "probe": lambda call: 1, "on_unknown": "park",
                  "timeout": 1.0, "retry": dk.Retry(), "name": "z"}),
        "workflow": (lambda function, **a: dk.workflow(function, **a),
                     {"function": lambda ctx: 1, "version": 1, "name": "z"}),
        "machine": (lambda function, **a: dk.machine(function, **a),
                    {"function": lambda ctx, state: 1, "state": State, "version": 1, "name": "z",
                     "save": lambda before, after: True}),
        "migrate": (declared.migrate, {"from_version": 1}),
        "ManualClock": (dk.ManualClock, {"start": 1.0, "monotonic": 1.0}),
        "advance": (dk.ManualClock().advance, {"seconds": 1}),
        "jump_wall": (dk.ManualClock().jump_wall, {"seconds": 1}),
        "step": (through_ctx(lambda ctx, name, function: ctx.step(name, function)),
                 {"name": "s", "function": lambda: 1}),
        "call": (through_ctx(lambda ctx, tool, key: ctx.call(tool, key=key)),
                 {"tool": tool, "key": "k"}),
        "sleep": (through_ctx(lambda ctx, seconds, name: ctx.sleep(seconds, name)),
                  {"seconds": 1, "name": "s"}),
        "wait_for": (through_ctx(lambda ctx, name, timeout: ctx.wait_for(name, timeout)),
                     {"name": "s", "timeout": 1}),
        "turn": (through_ctx(lambda ctx, name, timeout: ctx.turn(name, timeout).__enter__()),
                 {"name": "s", "timeout": 1}),
    }  # fmt: skip


def test_every_argument_of_every_verb_refuses_what_it_cannot_take_in_words(rt, tmp_path, clock):
    """Never an internal error, and never a table that can no longer be drawn."""
    wrong = []
    for name, (verb, arguments) in verbs(rt, tmp_path, clock).items():
        for argument in arguments:
            for odd in ODD:
                try:
                    verb(**{**arguments, argument: odd})
                except dk.DurakitError:
                    pass
                except Exception as error:
                    wrong.append((name, argument, repr(odd)[:30], repr(error)[:80]))
    assert wrong == []
    for path in (odd for odd in ODD if not isinstance(odd, str)):
        with pytest.raises(dk.InvalidField, match="^path: "):
            dk.Runtime(path)
    for run_id in rt.runs()["id"]:
        run = rt.get(run_id)
        assert len(run.history()) >= 1
        assert run.operations() is not None


def test_a_refused_argument_leaves_every_byte(rt, tmp_path):
    """Bad values, ids, keys and limits reach no table."""
    workflow = one_mail(dk.tool(lambda call: 1, name="t"))
    rt.run(workflow, id="w")

    def dump():
        return list(sqlite3.connect(f"file:{tmp_path / 'run.db'}?mode=ro", uri=True).iterdump())

    before = dump()
    for refused in (
        lambda: rt.start(workflow, id="\ud800"), lambda: rt.start(workflow, id="x", deadline=1e300),
        lambda: rt.start(workflow, id="x", deadline=-1), lambda: rt.signal("w", "x", 1),
        lambda: rt.resolve("w", "k", "completed", by="me"), lambda: rt.cancel("w", by=b"x"),
        lambda: rt.store.put("n", "k", {1}), lambda: rt.get("w").fork(at=99, id="f"),
        lambda: rt.prune(5, limit=-1), lambda: rt.prune(float("nan")),
    ):  # fmt: skip
        with pytest.raises(dk.DurakitError):
            refused()
    assert dump() == before

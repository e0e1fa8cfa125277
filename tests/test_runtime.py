"""Runs as people meet them: starting, replaying, parking, resolving, cancelling, limits."""

import importlib
import random
import sys
import threading
import time
import warnings

import pytest

import durakit as dk
from durakit.errors import WorkflowChanged, WorkflowNotFound
from durakit.mail import Fault, Mailbox

TO = ("ada@example.org", "Hi", "Hello")


@pytest.fixture
def rt(tmp_path, clock, mail):
    """A runtime on a fresh file and virtual time, whose crashes reach the world."""
    path, rng = tmp_path / "run.db", random.Random(1)
    with dk.Runtime(path, clock=clock, rng=rng, world=mail) as runtime:
        yield runtime


@pytest.fixture
def mail(tmp_path, clock):
    """The outside world, deduplicating by key."""
    box = Mailbox(tmp_path / "world", clock=clock)
    yield box
    box.close()


def keyed(mail, **options):
    """A mail tool over a service that knows our key."""

    @dk.tool(name="send", **{"effect": "idempotent", "window": 86400, "timeout": 3, **options})
    def send(call, to, subject, body):
        return mail.send(to, subject, body, key=call.key, timeout=call.remaining())

    return send


def sending(tool, key="k"):
    """A workflow of one mail."""

    @dk.workflow(name="sending")
    def workflow(ctx, to, subject, body):
        return ctx.call(tool, to, subject, body, key=key)

    return workflow


def kinds(run):
    """The kinds of a run's journal entries, without the claims."""
    return [kind for kind in run.history()["kind"] if kind != "claimed"]


# -- starting and replaying ----------------------------------------------------------------


def test_the_same_id_twice_is_the_same_run(rt, mail):
    """Nothing runs again, and the run says so."""
    workflow = sending(keyed(mail))
    first = rt.run(workflow, *TO, id="a")
    again = rt.run(workflow, *TO, id="a")
    assert first.result == again.result == {"id": "email-1"}
    assert (first.existed, again.existed, again.note) == (False, True, "replayed")
    assert len(mail.requests()) == 1
    assert len(rt.runs()) == 1


def test_the_same_id_with_other_arguments_is_refused_with_both_digests(rt, mail):
    """The message names the id and both digests; the run is as it was."""
    workflow = sending(keyed(mail))
    run = rt.run(workflow, *TO, id="a")
    before = run.history().to_dict()
    with pytest.raises(dk.ArgumentsDiffer) as refused:
        rt.run(workflow, "eve@example.org", "Hi", "Hello", id="a")
    assert refused.value.saved != refused.value.given
    for part in ("'a'", refused.value.saved[:12], refused.value.given[:12]):
        assert part in str(refused.value)
    assert run.history().to_dict() == before
    other = dk.workflow(lambda ctx: 1, name="other")
    with pytest.raises(dk.InvalidField, match="^id:"):
        rt.run(other, id="a")


def test_positional_keyword_and_default_arguments_are_one_run(rt):
    """The digest is of the bound arguments."""

    @dk.workflow
    def sums(ctx, a, b=2, *, c=3):
        return a + b + c

    assert rt.run(sums, 1, id="a").result == 6
    assert rt.run(sums, 1, 2, c=3, id="a").result == 6
    assert rt.run(sums, b=2, a=1, id="a").existed
    with pytest.raises(dk.ArgumentsDiffer):
        rt.run(sums, 1.0, id="a")


def test_changed_code_is_told_and_another_version_is_refused(rt):
    """A replay says that the source is another; a declared version must match."""

    @dk.workflow(version=1, name="evolving")
    def one(ctx):
        return ctx.step("a", lambda: 1)

    rt.run(one, id="a")
    rt.run(one, id="b", crash=dk.CrashAt("a", "step_saved"))

    @dk.workflow(version=1, name="evolving")
    def two(ctx):
        return ctx.step("a", lambda: 1) + 0

    assert "code has changed" in rt.run(two, id="a").note
    assert rt.resume("b").note == "the code has changed since the run was saved"

    @dk.workflow(version=2, name="evolving")
    def three(ctx):
        return ctx.step("a", lambda: 1)

    rt.start(two, id="c")
    history = rt.get("c").history().to_dict()
    with pytest.raises(WorkflowChanged, match=r"version 1 .* version 2"):
        rt.resume("c")
    assert rt.recover()["did"].tolist() == ["error"]
    assert rt.get("c").history().to_dict() == history


def test_a_step_in_another_order_parks_with_both_sides_named(rt, mail):
    """Nothing runs on a mismatch; the old code, defined again, finishes the run."""
    send = keyed(mail)

    def declare(first, second):
        @dk.workflow(name="reordered")
        def workflow(ctx):
            ctx.step(first, lambda: 1)
            ctx.step(second, lambda: 2)
            return ctx.call(send, *TO, key="k")

        return workflow

    old = declare("one", "two")
    rt.run(old, id="a", crash=dk.CrashAt("two", "step_saved"))
    declare("two", "one")
    run = rt.resume("a")
    assert run.status == "needs_decision"
    assert "step 'one'" in run.reason
    assert "step 'two'" in run.reason
    assert mail.requests() == []
    declare("one", "two")
    assert rt.resume("a").status == "completed"
    assert len(mail.effects()) == 1


def test_a_step_that_was_removed_is_a_mismatch_too(rt):
    """Saved entries that the code never asks for are not forgotten in silence."""

    @dk.workflow(name="shrinking")
    def long(ctx):
        ctx.step("one", lambda: 1)
        return ctx.step("two", lambda: 2)

    rt.run(long, id="a", crash=dk.CrashAt("two", "step_saved"))

    @dk.workflow(name="shrinking")
    def short(ctx):
        return ctx.step("one", lambda: 1)

    run = rt.resume("a")
    assert run.status == "needs_decision"
    assert "step 'two'" in run.reason
    assert "the workflow's end" in run.reason


def test_what_the_first_run_returns_is_what_a_replay_returns(rt):
    """Values and errors alike are read back from their saved form, also in the first run."""
    seen = []

    class Odd(Exception):
        """Not rebuilt from the disk."""

    def fail(kind):
        raise kind("no")

    @dk.workflow(name="same")
    def same(ctx):
        got = [ctx.step("list", lambda: [1, {"a": 2.5}])]
        for kind in (ValueError, Odd):
            try:
                ctx.step("fail", fail, kind)
            except Exception as error:
                got.append(repr(error))
        seen.append(got)
        got[0].append("changed afterwards")
        return "done"

    rt.run(same, id="a", crash=dk.CrashAt("run", "end_saved"))
    rt.run(same, id="b", crash=dk.CrashAt("fail", "step_saved", occurrence=2))
    rt.resume("b")
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert seen[0][1:] == ["ValueError('no')", "SavedError('Odd', 'no')"] or "Odd" in seen[0][2]


def test_a_value_that_cannot_be_saved_is_refused_at_its_step_with_the_path(rt):
    """The step's name is in the journal with the error; a replay raises the same."""
    raised = []

    @dk.workflow(name="unsavable")
    def workflow(ctx):
        try:
            ctx.step("bad", lambda: {"lines": [1, {"price": {1, 2}}]})
        except dk.UnsavableValue as error:
            raised.append((error.path, str(error)))
        return ctx.step("next", lambda: "went on")

    run = rt.run(workflow, id="a", crash=dk.CrashAt("next", "step_saved"))
    assert run.crash is not None
    assert rt.resume("a").result == "went on"
    assert raised[0] == raised[1]
    assert raised[0][0] == "$.lines[1].price"
    assert rt.run(dk.workflow(lambda ctx: {1}, name="s"), id="b").status == "failed"


def test_a_reply_that_cannot_be_saved_still_completes_its_operation(rt, mail):
    """Nothing is sent again; the workflow is told what was wrong, in the first run and later."""
    got = []

    @dk.tool(effect="idempotent")
    def send(call, to):
        mail.send(to, "s", "b", key=call.key)
        return {"raw": object()}

    @dk.workflow(name="odd reply")
    def workflow(ctx):
        got.append(ctx.call(send, "ada@example.org", key="k"))
        return ctx.step("next", lambda: got[-1].path)

    rt.run(workflow, id="a", crash=dk.CrashAt("next", "step_saved"))
    run = rt.resume("a")
    assert run.result == "$.raw"
    assert got[0] == got[1] == dk.UnsavableResult("$.raw", got[0].reason)
    assert run.operations()["status"].tolist() == ["SUCCEEDED"]
    assert len(mail.requests()) == 1


def test_a_result_is_asked_for_too_early_with_words_of_help(rt, mail):
    """RunNotFinished tells the status and what to do."""
    workflow = sending(keyed(mail))
    run = rt.run(workflow, *TO, id="a", crash=dk.CrashAt("send", "effect_done"))
    with pytest.raises(dk.RunNotFinished, match=r"running.*recover"):
        _ = run.result
    with pytest.raises(dk.RunNotFound, match="'nobody'"):
        rt.get("nobody")


def test_a_failed_run_raises_its_error_as_its_own_type(rt):
    """Builtin errors come back as themselves."""

    def fail():
        raise LookupError("not there")

    run = rt.run(dk.workflow(lambda ctx: ctx.step("f", fail), name="f"), id="a")
    assert run.status == "failed"
    assert run.reason == "LookupError: not there"
    with pytest.raises(LookupError, match="not there"):
        _ = run.result


# -- unknown, parked, resolved -------------------------------------------------------------


def test_an_unknown_outcome_parks_and_names_what_a_person_can_do(rt, mail):
    """An opaque tool whose reply is lost: one mail, no retry, needs_decision."""
    mail.plan = [Fault("reply_lost")]
    run = rt.run(sending(keyed(mail, effect="opaque", window=None)), *TO, id="a")
    assert run.status == "needs_decision"
    assert run.operations()["outcome"].tolist() == ["unknown"]
    assert len(mail.requests()) == len(mail.effects()) == 1
    with pytest.raises(dk.RunNotFinished, match=r"resolve.*resume.*cancel"):
        _ = run.result
    assert rt.recover()["did"].tolist() == ["parked"]
    assert rt.resume("a").status == "needs_decision"
    assert len(mail.requests()) == 1


def test_a_person_resolves_an_unknown_operation_as_completed(rt, mail):
    """The word is kept with its author, and the workflow goes on with the result."""
    mail.plan = [Fault("reply_lost")]
    run = rt.run(sending(keyed(mail, effect="opaque", window=None)), *TO, id="a")
    rt.resolve("a", "k", "completed", result={"id": "email-1"}, by="Grace")
    assert run.status == "needs_decision"
    assert rt.recover()["did"].tolist() == ["driven"]
    assert run.result == {"id": "email-1"}
    resolved = run.history().query("kind == 'resolved'")["payload"].iloc[0]
    assert (resolved["by"], resolved["outcome"]) == ("Grace", "completed")
    assert len(mail.requests()) == 1
    with pytest.raises(dk.UsageError, match="not unknown: it is completed"):
        rt.resolve("a", "k", "not_executed", by="Grace")


def test_a_person_resolves_it_as_not_executed_and_the_same_key_is_sent(rt, mail):
    """Permission for the next attempt, under the same key."""
    mail.plan = [Fault("request_lost")]
    run = rt.run(sending(keyed(mail, effect="opaque", window=None)), *TO, id="a")
    assert mail.effects() == []
    rt.resolve("a", "k", "not_executed", by="Grace")
    rt.recover()
    assert run.status == "completed"
    assert run.operations()["attempts"].tolist() == [2]
    assert [e["key"] for e in mail.effects()] == ["k"]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("a", "k", "maybe"), dk.InvalidField, "outcome"),
        (("a", "other", "completed"), dk.UsageError, "no operation with key 'other'"),
        (("b", "k", "completed"), dk.RunNotFound, "'b'"),
        (("a", "", "completed"), dk.InvalidField, "key"),
    ],
)
def test_a_resolution_that_fits_nothing_is_refused(rt, mail, arguments, error, words):
    """Nothing is left behind for a driver."""
    mail.plan = [Fault("reply_lost")]
    rt.run(sending(keyed(mail, effect="opaque", window=None)), *TO, id="a")
    with pytest.raises(error, match=words):
        rt.resolve(*arguments, by="Grace")
    assert rt.recover()["did"].tolist() == ["parked"]


def test_another_run_meets_the_operation_and_gets_its_outcome(rt, mail):
    """One operation per account, tool and key: the second run replays it, marked so."""
    workflow = sending(keyed(mail))
    rt.run(workflow, *TO, id="a")
    second = rt.run(workflow, *TO, id="b")
    assert second.result == {"id": "email-1"}
    assert kinds(second) == ["started", "replayed", "completed"]
    assert second.history().query("kind == 'replayed'")["payload"].iloc[0]["replay"]["run"] == "a"
    assert len(mail.requests()) == 1
    third = rt.run(workflow, "eve@example.org", "Hi", "Hello", id="c")
    assert third.status == "failed"
    with pytest.raises(dk.ArgumentsDiffer, match="key 'k'"):
        _ = third.result
    assert len(mail.requests()) == 1


def test_another_run_meets_an_unknown_operation_and_follows_the_contract(rt, mail):
    """Idempotent: the second run settles it under the same key, and the first one replays."""
    workflow = sending(keyed(mail))
    rt.run(workflow, *TO, id="a", crash=dk.CrashAt("send", "reply_received"))
    second = rt.run(workflow, *TO, id="b")
    assert second.status == "completed"
    assert rt.recover()["status"].tolist() == ["completed"]
    assert rt.get("a").result == second.result
    assert len(mail.effects()) == 1


def test_accounts_and_tools_do_not_share_keys(tmp_path, clock, mail):
    """The same key in another account, or of another tool, is another operation."""
    other = keyed(mail)
    rts = [dk.Runtime(tmp_path / "run.db", clock=clock, account=a) for a in ("x", "y")]
    results = [rt.run(sending(keyed(mail), "k"), *TO, id="a").status for rt in rts]
    assert results == ["completed", "completed"]
    assert [len(rt.runs()) for rt in rts] == [1, 1]
    assert other.name == "send"


# -- limits --------------------------------------------------------------------------------


def test_a_limit_that_fired_is_named_saved_and_replayed(rt, clock):
    """The turn's limit, not the session's; a replay raises at the same place."""
    raised = []

    @dk.workflow(name="limited")
    def workflow(ctx):
        try:
            with ctx.turn("think", timeout=5):
                ctx.step("long", lambda: clock.advance(6))
                ctx.step("never", lambda: raised.append("ran"))
        except dk.DeadlineExceeded as error:
            raised.append((error.level, error.name))
        return ctx.step("after", lambda: "went on")

    rt.run(workflow, id="a", deadline=60, crash=dk.CrashAt("after", "step_saved"))
    assert rt.resume("a").result == "went on"
    assert raised == [("turn", "think")] * 2


def test_a_child_cannot_outlive_its_parent(rt, clock):
    """The session has 5 s left: a turn of 10 ends with it, and the session is named."""

    @dk.workflow(name="nested")
    def workflow(ctx):
        with ctx.turn("t", timeout=10):
            left = ctx.remaining()
            ctx.step("long", lambda: clock.advance(5))
            ctx.step("never", lambda: 1)
        return left

    run = rt.run(workflow, id="a", deadline=5)
    assert run.status == "failed"
    with pytest.raises(dk.DeadlineExceeded) as error:
        _ = run.result
    assert error.value.level == "session"


def test_recovery_never_gains_time(rt, clock):
    """The remainder is the smaller of saved and wall: a clock set back adds nothing."""
    left = []

    @dk.workflow(name="aging")
    def workflow(ctx):
        ctx.step("work", lambda: clock.advance(10))
        left.append(ctx.remaining())
        with ctx.turn("t", timeout=20):
            ctx.step("more", lambda: clock.advance(5))
            left.append(ctx.remaining())
            ctx.step("last", lambda: 1)

    rt.run(workflow, id="a", deadline=60, crash=dk.CrashAt("more", "step_saved"))
    clock.jump_wall(-3600)
    rt.resume("a", crash=dk.CrashAt("last", "before_step", incarnation=2))
    assert left == [50, 45, 15]


def test_saved_results_replay_after_the_deadline_and_new_work_does_not_begin(rt, clock, mail):
    """A deadline stops new work, never the truth."""
    workflow = sending(keyed(mail))
    rt.run(workflow, *TO, id="a", deadline=10, crash=dk.CrashAt("send", "result_saved"))
    rt.start(workflow, *TO, id="b", deadline=10)
    clock.advance(3600)
    rt.recover()
    assert rt.get("a").result == {"id": "email-1"}
    assert rt.get("b").status == "failed"
    assert len(mail.requests()) == 1


def test_an_unknown_operation_is_settled_after_the_deadline(rt, clock, mail):
    """Its settle allowance is its own: sent once more under its key, then the run goes on."""
    workflow = sending(keyed(mail))
    rt.run(workflow, *TO, id="a", deadline=10, crash=dk.CrashAt("send", "effect_done"))
    clock.advance(3600)
    rt.recover()
    assert rt.get("a").status == "completed"
    assert len(mail.effects()) == 1


def test_beyond_the_keys_window_nobody_sends_again(rt, clock, mail):
    """25 hours later the service has forgotten the key: a person is asked."""
    workflow = sending(keyed(mail))
    rt.run(workflow, *TO, id="a", crash=dk.CrashAt("send", "effect_done"))
    clock.advance(25 * 3600)
    rt.recover()
    run = rt.get("a")
    assert run.status == "needs_decision"
    assert "window" in run.reason
    assert len(mail.requests()) == 1


def test_backoff_is_drawn_saved_and_survives_a_crash(tmp_path, clock, mail):
    """The wait, its window and the remainder are an entry; recovery waits the rest, draws none."""
    mail.plan = [Fault("rate_limited", request=1)]
    send = keyed(mail, retry=dk.Retry(initial=4, cap=60, attempts=3))
    workflow = sending(send)
    rt = dk.Runtime(tmp_path / "w.db", clock=clock, rng=random.Random(3))
    crash = dk.CrashAt("send", "result_saved")
    run = rt.run(workflow, *TO, id="a", deadline=60, crash=crash)
    entry = run.history().query("kind == 'attempt'")["payload"].iloc[0]
    drawn = random.Random(3).random() * 4
    assert entry["then"] == {
        "decision": "wait",
        "seconds": pytest.approx(drawn),
        "reason": "backoff",
        "bound": 4,
    }
    assert entry["judged"] == "transient"
    assert 0 < entry["left"]["session"] < 60
    failed_at = clock.now()
    clock.sleeps.clear()
    rt.recover()
    assert run.status == "completed"
    assert clock.sleeps[0] == pytest.approx(drawn - (clock.now() - clock.now()), abs=1e-3)
    assert clock.now() >= failed_at + drawn
    assert len(mail.effects()) == 1


def test_a_wait_that_would_reach_the_deadline_is_not_begun(rt, clock, mail):
    """Retry-After beyond the remainder: stop at once, name the deadline and the last error."""
    mail.plan = [Fault("rate_limited", request=1, retry_after=30)]
    run = rt.run(sending(keyed(mail)), *TO, id="a", deadline=20)
    assert clock.sleeps == [] or sum(clock.sleeps) < 1
    with pytest.raises(dk.DeadlineExceeded, match=r"session.*not executed.*429"):
        _ = run.result
    assert run.operations()["outcome"].tolist() == ["not_executed"]


# -- cancel --------------------------------------------------------------------------------


def test_cancel_stops_new_work_and_leaves_saved_work(rt, mail):
    """A request; the next drive honours it before any new step."""
    ran = []

    @dk.workflow(name="long")
    def workflow(ctx):
        ctx.step("one", lambda: ran.append(1))
        return ctx.step("two", lambda: ran.append(2))

    run = rt.run(workflow, id="a", crash=dk.CrashAt("one", "step_saved"))
    rt.cancel("a", by="Grace")
    assert run.status == "running"
    rt.recover()
    assert run.status == "cancelled"
    assert ran == [1]
    assert rt.cancel("a").note == "already cancelled"


def test_a_run_with_an_unknown_operation_is_never_cancelled(rt, mail):
    """It parks until a person has said how it ended; then it is cancelled."""
    mail.plan = [Fault("reply_lost")]
    run = rt.run(sending(keyed(mail, effect="opaque", window=None)), *TO, id="a")
    rt.cancel("a")
    rt.recover()
    assert run.status == "needs_decision"
    rt.resolve("a", "k", "not_executed", by="Grace")
    rt.recover()
    assert run.status == "cancelled"
    assert len(mail.requests()) == 1


def test_a_cancelled_run_still_finds_out_about_a_keyed_operation(rt, mail):
    """Unknown and keyed: sent once more under its key, saved, and then cancelled."""
    send = keyed(mail)

    @dk.workflow(name="two mails")
    def workflow(ctx):
        ctx.call(send, *TO, key="one")
        return ctx.call(send, *TO, key="two")

    run = rt.run(workflow, id="a", crash=dk.CrashAt("send", "effect_done"))
    rt.cancel("a")
    rt.recover()
    assert run.status == "cancelled"
    assert run.operations()["status"].tolist() == ["SUCCEEDED"]
    assert [e["key"] for e in mail.effects()] == ["one"]


# -- the runtime itself --------------------------------------------------------------------


def test_one_runtime_drives_one_run_at_a_time(rt):
    """A run inside a run is refused in words, and the outer one ends as it would have."""

    @dk.workflow(name="inner")
    def inner(ctx):
        return 1

    @dk.workflow(name="outer")
    def outer(ctx):
        return rt.run(inner, id="inner").result

    run = rt.run(outer, id="outer")
    assert run.status == "failed"
    assert "one run at a time" in run.reason.replace("drives one run at a", "one run at a")


def test_the_context_belongs_to_its_thread(rt):
    """Another thread that uses ctx is refused; the run goes on."""
    told = []

    @dk.workflow(name="threads")
    def workflow(ctx):
        def work():
            try:
                ctx.step("other", lambda: 1)
            except dk.UsageError as error:
                told.append(str(error))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return ctx.step("mine", lambda: 2)

    assert rt.run(workflow, id="a").result == 2
    assert told == ["ctx belongs to the thread that runs the workflow"]


@pytest.mark.parametrize(
    "text", ["plain", 'it\'s "quoted"', "two\nlines", "émoji 💥", "x" * 10_000, "a\x00b", "<b>&"]
)
def test_any_text_is_an_id_a_key_a_step(rt, mail, text):
    """Stored and shown as it is."""
    send = keyed(Mailbox(profile="opaque", clock=rt._clock))

    @dk.workflow(name=text)
    def workflow(ctx):
        ctx.step(text, lambda: text)
        return ctx.call(send, *TO, key=text)

    run = rt.run(workflow, id=text)
    assert run.status in ("completed", "failed")
    assert rt.runs()["id"].tolist() == [text]
    assert text in run.history()["step"].tolist()
    assert run.operations()["key"].tolist() == [text]
    assert "<b>" not in rt.runs().to_html()


@pytest.mark.parametrize("text", ["", "half \ud800", 5, None, b"bytes"])
def test_text_that_is_none_is_refused_by_field(rt, text):
    """Empty, half a character, not text: nothing is saved."""
    workflow = dk.workflow(lambda ctx: 1, name="w")
    with pytest.raises(dk.InvalidField, match="^id:"):
        rt.run(workflow, id=text)
    assert rt.runs().empty


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf"), "5", True, 10**400])
def test_limits_that_are_none_are_refused_by_field(rt, limit):
    """Session, turn and tool alike."""
    workflow = dk.workflow(lambda ctx: 1, name="w")
    with pytest.raises(dk.InvalidField, match="^deadline:"):
        rt.run(workflow, id="a", deadline=limit)
    with pytest.raises(dk.InvalidField, match="^timeout:"):
        dk.tool(lambda call: 1, timeout=limit, name="t")

    def turn(ctx):
        with ctx.turn("t", timeout=limit):
            pass

    run = rt.run(dk.workflow(turn, name="t"), id="a")
    with pytest.raises(dk.InvalidField, match="^timeout:"):
        _ = run.result


def test_unknown_workflows_are_named_and_the_others_recovered(rt):
    """A run whose code is not here is reported; the rest is driven."""
    gone = dk.workflow(lambda ctx: 1, name="gone")
    here = dk.workflow(lambda ctx: 2, name="here")
    rt.start(gone, id="a")
    rt.start(here, id="b")
    from durakit import define

    del define._workflows["gone"]
    table = rt.recover().set_index("run")
    assert table.loc["a", "did"] == "error"
    assert "'gone' is not defined" in table.loc["a", "detail"]
    assert table.loc["b", "status"] == "completed"
    with pytest.raises(WorkflowNotFound):
        rt.resume("a")


def test_a_tool_with_a_limit_runs_on_a_thread_and_is_left_at_its_limit(tmp_path):
    """Real time: past its limit the run parks at once; the late reply settles it."""
    mail = Mailbox(tmp_path / "world", latency=0)
    go = threading.Event()

    @dk.tool(effect="opaque", timeout=0.05)
    def slow(call, to):
        go.wait(5)
        return mail.send(to, "s", "b")

    rt = dk.Runtime(tmp_path / "run.db")
    run = rt.run(
        dk.workflow(lambda ctx: ctx.call(slow, "a@example.org", key="k"), name="s"), id="a"
    )
    assert run.status == "needs_decision"
    assert run.operations()["outcome"].tolist() == ["unknown"]
    assert mail.effects() == []
    go.set()
    for _ in range(500):
        if len(mail.effects()) == 1 and rt.recover()["did"].tolist() == ["driven"]:
            break
        time.sleep(0.01)
    assert run.status == "completed"
    assert run.result == {"id": "email-1"}
    assert len(mail.effects()) == 1
    assert "late_reply" in kinds(run)
    rt.close()
    mail.close()


def test_on_virtual_time_a_reply_after_the_limit_is_late_and_then_evidence(rt, clock, mail):
    """The same story inline: unknown at the limit, completed by the late reply."""

    @dk.tool(effect="opaque", timeout=2)
    def slow(call, to):
        clock.advance(5)
        return mail.send(to, "s", "b")

    workflow = dk.workflow(lambda ctx: ctx.call(slow, "a@example.org", key="k"), name="late")
    run = rt.run(workflow, id="a")
    assert run.status == "needs_decision"
    rt.recover()
    assert run.result == {"id": "email-1"}
    assert len(mail.effects()) == 1


def test_an_interrupt_gives_the_lease_back_and_is_raised_again(rt, mail):
    """Ctrl-C in a tool: the operation stays as the disk says, and anybody may go on at once."""
    calls = []

    @dk.tool(effect="idempotent")
    def send(call, to):
        calls.append(call.attempt)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return mail.send(to, "s", "b", key=call.key)

    workflow = dk.workflow(lambda ctx: ctx.call(send, "a@example.org", key="k"), name="i")
    with pytest.raises(KeyboardInterrupt):
        rt.run(workflow, id="a")
    run = rt.get("a")
    assert (run.status, rt.runs()["owner"].tolist()) == ("running", [""])
    assert run.operations()["status"].tolist() == ["DISPATCHED"]
    assert rt.recover()["status"].tolist() == ["completed"]
    assert calls == [1, 2]


def test_memory_is_not_durable_and_says_so(clock):
    """A crash drops everything; the table afterwards is empty."""
    rt = dk.Runtime(":memory:", clock=clock)
    assert not rt.durable
    workflow = dk.workflow(lambda ctx: ctx.step("a", lambda: 1), name="m")
    assert rt.run(workflow, id="kept").result == 1
    run = rt.run(workflow, id="lost", crash=dk.CrashAt("a", "step_saved"))
    assert run.crash is not None
    assert rt.runs().empty


def test_fence_and_attempt_reach_the_tool(rt, mail):
    """The service may check the token: a later incarnation carries a greater one."""
    seen = []

    @dk.tool(effect="idempotent", timeout=5)
    def send(call, to):
        seen.append((call.key, call.attempt, call.fence, call.remaining()))
        return mail.send(to, "s", "b", key=call.key)

    workflow = dk.workflow(lambda ctx: ctx.call(send, "a@example.org", key="k"), name="f")
    rt.run(workflow, id="a", crash=dk.CrashAt("send", "effect_done"))
    rt.recover()
    assert seen == [("k", 1, 1, 5), ("k", 2, 2, 5)]


def test_no_warnings_and_the_same_result_inside_a_running_event_loop(tmp_path):
    """A notebook already runs a loop: the plain call works there as in a script (L130)."""
    import asyncio

    workflow = dk.workflow(lambda ctx: ctx.step("a", lambda: 1), name="loop")

    async def cell():
        with dk.Runtime(tmp_path / "a.db") as rt:
            return rt.run(workflow, id="a").result

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert asyncio.run(cell()) == 1


def test_every_way_to_drive_a_run_checks_its_version(rt):
    """``rt.run`` with newer code refuses an older run by name, as ``resume`` does."""
    one = dk.workflow(lambda ctx: ctx.step("a", lambda: 1), name="versioned", version=1)
    rt.run(one, id="a", crash=dk.CrashAt("a", "step_done"))
    two = dk.workflow(lambda ctx: ctx.step("b", lambda: 2), name="versioned", version=2)
    with pytest.raises(WorkflowChanged, match=r"version 1 .* version 2"):
        rt.run(two, id="a")
    assert rt.get("a").status == "running"


def test_a_run_whose_memory_died_can_still_be_shown(clock):
    """At every crash point a Run comes back, and its repr says what happened."""
    workflow = dk.workflow(lambda ctx: ctx.step("a", lambda: 1), name="m")
    for number in range(1, 6):
        rt = dk.Runtime(":memory:", clock=clock)
        run = rt.run(workflow, id="a", crash=dk.CrashAt(number))
        assert "simulated crash" in repr(run)
        assert run.status == "running"


def test_a_probe_is_guarded_and_bounded(tmp_path):
    """It may not use ctx, and one that hangs has told nothing when its limit fires."""
    mail = Mailbox(tmp_path / "world", profile="queryable", latency=0)
    go, told, contexts = threading.Event(), [], []

    def probe(call):
        try:
            contexts[-1].step("inside", lambda: 1)
        except dk.UsageError as error:
            told.append(str(error))
        go.wait(5)
        return dk.Found({"id": "made up"})

    @dk.tool(effect="queryable", probe=probe, settles_after=1, timeout=0.05)
    def send(call):
        mail.send("ada@example.org", "s", "b", key=call.key)
        raise TimeoutError

    @dk.workflow(name="probing")
    def workflow(ctx):
        contexts.append(ctx)
        return ctx.call(send, key="k")

    rt = dk.Runtime(tmp_path / "run.db", settle=0.2)
    run = rt.run(workflow, id="a")
    go.set()
    assert run.status == "needs_decision"
    assert run.why == "unknown"
    assert told
    assert len(mail.effects()) == 1
    rt.close()
    mail.close()


def test_a_late_reply_keeps_its_type(tmp_path, clock):
    """By whatever way it is settled: the tool's return type reads it back."""
    from pydantic import BaseModel

    class Receipt(BaseModel):
        """What the service answers."""

        number: int

    @dk.tool(effect="opaque", timeout=1)
    def pay(call) -> Receipt:
        clock.advance(2)
        return Receipt(number=7)

    got = []

    @dk.workflow(name="paying")
    def workflow(ctx):
        got.append(ctx.call(pay, key="k"))
        return got[-1].number

    rt = dk.Runtime(tmp_path / "late.db", clock=clock)
    run = rt.run(workflow, id="a")
    assert run.status == "needs_decision"
    rt.recover()
    assert run.result == 7
    assert got == [Receipt(number=7)]
    again = rt.run(workflow, id="b")
    assert again.result == 7
    rt.close()


def test_a_history_that_was_cut_is_not_shown_as_a_shorter_one(rt, tmp_path):
    """No record is never shown as not executed: the missing end is an error."""
    import sqlite3

    from durakit.errors import DamagedFile

    workflow = dk.workflow(lambda ctx: ctx.step("a", lambda: 1), name="cut")
    run = rt.run(workflow, id="a")
    connection = sqlite3.connect(tmp_path / "run.db")
    connection.execute("DROP TRIGGER journal_is_kept")
    connection.execute("DELETE FROM journal WHERE kind = 'completed'")
    connection.commit()
    connection.close()
    with pytest.raises(DamagedFile):
        run.history()


def test_a_change_of_the_working_folder_does_not_lose_the_file(tmp_path, monkeypatch):
    """A relative path means the file that it named when the Runtime was made."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    workflow = dk.workflow(lambda ctx, n: ctx.step("a", lambda: n), name="moving")
    with dk.Runtime("here.db", clock=dk.ManualClock()) as rt:
        rt.run(workflow, 1, id="a")
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert rt.run(workflow, 2, id="b").result == 2
        assert len(rt.runs()) == 2
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_arguments_that_do_not_fit_name_whose_they_are(rt):
    """The message shows how the tool or workflow is called."""
    workflow = dk.workflow(lambda ctx, customer: customer, name="named")
    with pytest.raises(TypeError, match=r"\(ctx, customer\): missing a required argument"):
        rt.run(workflow, id="a")

    @dk.tool
    def letter(to, text):
        return to

    with pytest.raises(TypeError, match=r"letter\(to, text\).*'to' receives the call.*too many"):
        letter.parameters.dump(("ada", "hello"), {})


# -- two modules, one name -----------------------------------------------------------------

MODULE = """
import durakit as dk

tool = None


@dk.workflow(name={workflow!r}{version})
def {function}(ctx, {argument}):
    return ctx.step({step!r}, lambda: {argument})
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write and import modules of one workflow each, all under the name of this test's folder."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name, step, argument="text", version=""):
        told = {
            "workflow": tmp_path.name, "function": name, "step": step, "argument": argument,
            "version": version,
        }  # fmt: skip
        (tmp_path / f"{name}.py").write_text(MODULE.format(**told), encoding="utf-8")
        importlib.invalidate_caches()
        sys.modules.pop(name, None)
        return getattr(importlib.import_module(name), name)

    yield write
    for name in ("runtime_place_one", "runtime_place_two"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("argument", ["text", "other"])
def test_a_run_that_meets_another_modules_workflow_of_its_name_names_both_places(
    rt, module, argument
):
    """By a step, or by an argument that does not fit: it parks, and nothing is run."""
    one = module("runtime_place_one", "write")
    run = rt.run(one, "hello", id="a", crash=dk.CrashAt("write", "step_saved"))
    for _ in range(2):  # it stays the other place when its cell is run again
        module("runtime_place_two", "draw", argument)
    rt.recover()
    assert (run.status, run.why) == ("needs_decision", "mismatch")
    for place in ("runtime_place_one, line 7", "runtime_place_two, line 7"):
        assert place in run.reason, run.reason
    assert ("'other'" in run.reason or "'text'" in run.reason) == (argument == "other")
    assert f"{one.name!r} is defined twice here" in run.reason
    module("runtime_place_one", "write")
    assert rt.resume("a").result == "hello"


def test_another_modules_version_of_the_name_is_refused_and_both_places_are_named(rt, module):
    """Nothing is run then, and the table of a recovery says so."""
    one = module("runtime_place_one", "write")
    rt.run(one, "hello", id="a", crash=dk.CrashAt("write", "step_saved"))
    module("runtime_place_two", "write", version=", version=2")
    detail = rt.recover()["detail"].iloc[0]
    assert "runtime_place_one, line 7" in detail
    assert "runtime_place_two, line 7" in detail


def test_a_cell_that_is_run_again_is_no_second_place(rt, module):
    """In its own module a workflow replaces the one before, and only what differs is told."""
    one = module("runtime_place_one", "write")
    run = rt.run(one, "hello", id="a", crash=dk.CrashAt("write", "step_saved"))
    module("runtime_place_one", "draw")
    rt.recover()
    assert run.why == "mismatch"
    assert "defined twice" not in run.reason


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (lambda ctx, to, urgent: to, "saved argument for 'urgent' is missing"),
        (lambda ctx, to, subject: to, "saved argument for 'subject' is missing"),
        (lambda ctx: None, "saved argument 'to' is none that the code takes"),
    ],
)
def test_saved_arguments_that_the_code_no_longer_takes_park_the_run(rt, now, told):
    """It is not ended by a TypeError, and no argument is left out; a default may be added."""
    old = dk.workflow(name="runtime_arguments")(lambda ctx, to: ctx.step("s", lambda: to))
    run = rt.run(old, "ada", id="a", crash=dk.CrashAt("s", "before_step"))
    dk.workflow(name="runtime_arguments")(now)
    rt.recover()
    assert (run.status, run.why) == ("needs_decision", "mismatch")
    assert told in run.reason
    wider = dk.workflow(name="runtime_arguments")(
        lambda ctx, to, cc=None: ctx.step("s", lambda: to)
    )
    assert wider is not old
    assert rt.resume("a").result == "ada"

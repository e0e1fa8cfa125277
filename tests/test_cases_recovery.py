"""Public failures of checkpoints, recovery, secrets and growth, restated (rows of cases.csv).

Each test names its row. The mailbox's own ledger decides every question about duplicates; what
the runtime believes is only ever compared with it.
"""

import os
import random
import signal
import sqlite3

import pytest
from case_tools import mail_tool

import durakit as dk
from durakit.mail import Fault, Mailbox, Profile
from durakit.mail.profiles import PROFILES
from durakit.sweep import can_fork

ADA = "ada@example.org"
forks = pytest.mark.skipif(not can_fork(), reason="this platform cannot fork")


def welcome_workflow(tool, name="case welcome"):
    """A draft, the mail, and a note after it."""

    def body(ctx, customer):
        draft = ctx.step("draft", lambda: f"Hello {customer['name']}")
        sent = ctx.call(tool, customer["email"], draft, key=f"welcome:{customer['id']}")
        return ctx.step("note", lambda: {"mail": sent["id"]})

    return dk.workflow(body, name=name)


CUSTOMER = {"id": 7, "name": "Ada", "email": ADA}


def kinds(run):
    """The kinds of the run's journal entries, in order."""
    return list(run.history()["kind"])


def outcomes(run):
    """Key → outcome, as the runtime believes."""
    table = run.operations()
    return dict(zip(table["key"], table["outcome"], strict=True))


def payloads(run, kind):
    """The payloads of the run's entries of one kind."""
    return list(run.history().query("kind == @kind")["payload"])


def in_child(work):
    """Run ``work`` in a forked child that must end by SIGKILL."""
    child = os.fork()
    if child == 0:  # pragma: no cover - it never returns
        try:
            work()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


# -- checkpoint ----------------------------------------------------------------------------------


def test_L001_nothing_saved_ever_follows_a_call_whose_result_is_missing(runtime, mailbox, tmp_path):
    """After a crash at any boundary the journal is a prefix, and recovery leaves one mail."""
    workflow = welcome_workflow(mail_tool(mailbox))
    seen = []
    for number in range(1, 30):
        mailbox.fresh(tmp_path / f"world-{number}")
        rt = runtime(path=tmp_path / f"{number}.db")
        run = rt.run(workflow, CUSTOMER, id="w", crash=dk.CrashAt(number))
        if run.crash is None:
            break
        saved = run.history()
        steps = list(saved["step"][saved["kind"] == "step"])
        seen.append(("result" in list(saved["kind"]), "note" in steps))
        rt.recover()
        assert run.result == {"mail": "email-1"}
        assert len(mailbox.effects()) == 1
    assert (False, True) not in seen
    assert {(False, False), (True, False), (True, True)} == set(seen)


@pytest.mark.real_kill
@forks
def test_L001_a_killed_process_never_sends_again_what_it_finished(mailbox):
    """Each boundary is met by SIGKILL too, and the ledger has one mail every time."""
    report = dk.sweep(welcome_workflow(mail_tool(mailbox)), CUSTOMER, world=mailbox, mode="process")
    assert report.safe, report.text()
    assert {row["effects"] for row in report.rows} == {1}


@pytest.mark.parametrize("path", ["file", ":memory:"])
def test_L004_two_readings_of_one_saved_value_share_nothing(runtime, tmp_path, path):
    """Changing one reading deep inside changes neither another reading nor the file."""
    rt = runtime(path=path if path == ":memory:" else tmp_path / "run.db")

    @dk.workflow
    def nested(ctx):
        first = ctx.step("state", lambda: {"messages": [{"text": "hello"}]})
        first["messages"][0]["text"] = "changed by the workflow"
        return {"again": ctx.step("look", lambda: {"messages": [{"text": "hello"}]})}

    run = rt.run(nested, id="n")
    one, two = run.result, run.result
    one["again"]["messages"][0]["text"] = "changed by a reader"
    assert two == run.result == {"again": {"messages": [{"text": "hello"}]}}
    payloads = list(run.history()["payload"])
    payloads[2]["value"]["messages"].clear()
    assert run.history()["payload"].iloc[2]["value"] == {"messages": [{"text": "hello"}]}


def test_L004_a_tool_that_changes_its_argument_does_not_change_the_next_attempt(runtime, mailbox):
    """Every attempt gets the arguments whose digest was saved, whatever the one before did."""
    seen = []

    @dk.tool(effect="idempotent", window=86_400.0)
    def send_lines(call, lines):
        seen.append(list(lines))
        lines.append("PS")
        return mailbox.send(ADA, "Welcome", "\n".join(seen[-1]), key=call.key)

    @dk.workflow
    def letter(ctx):
        lines = ["hello"]
        ctx.call(send_lines, lines, key="letter")
        return lines

    mailbox.plan = [Fault("rate_limited", request=1)]
    run = runtime().run(letter, id="l")
    assert run.result == ["hello"]
    assert seen == [["hello"], ["hello"]]


def test_L005_what_is_saved_is_the_value_as_it_was_returned(runtime):
    """A source edited after the step or after ``start`` never reaches the file half-way."""
    source = {"items": [1]}
    asked = {"name": "Ada"}

    @dk.workflow
    def keeper(ctx, customer):
        first = ctx.step("collect", lambda: source)
        source["items"].append(2)
        return {"first": first, "customer": customer}

    rt = runtime()
    rt.start(keeper, asked, id="k")
    asked["name"] = "Eve"
    crash = dk.CrashAt("collect", "step_saved")
    run = rt.resume("k", crash=crash)
    assert run.crash is not None
    assert rt.resume("k").result == {"first": {"items": [1]}, "customer": {"name": "Ada"}}


def test_L007_a_user_stop_in_the_middle_of_a_call_leaves_every_request_with_an_outcome(
    runtime, mailbox
):
    """The reply in memory is saved, nothing new begins, and the next turn meets the outcome."""
    rt, other = runtime(), runtime()
    tool = mail_tool(mailbox, after=lambda: other.cancel("w", by="user"))
    run = rt.run(welcome_workflow(tool), CUSTOMER, id="w")
    assert run.status == "cancelled"
    assert outcomes(run) == {"welcome:7": "completed"}
    assert kinds(run)[-3:] == ["result", "cancel_requested", "cancelled"]
    again = rt.run(welcome_workflow(mail_tool(mailbox), "next turn"), CUSTOMER, id="w2")
    assert again.result == {"mail": "email-1"}
    assert "replayed" in kinds(again)
    assert len(mailbox.effects()) == 1


@pytest.mark.parametrize("effect", ["idempotent", "queryable", "opaque"])
def test_L007_an_interrupted_cell_leaves_an_unknown_that_the_next_one_settles(
    runtime, mailbox, effect
):
    """An interrupt after the effect is raised again, gives the lease back, and sends no more."""

    def interrupt():
        raise KeyboardInterrupt

    rt = runtime()
    workflow = welcome_workflow(mail_tool(mailbox, effect, after=interrupt))
    with pytest.raises(KeyboardInterrupt):
        rt.run(workflow, CUSTOMER, id="w")
    run = rt.get("w")
    assert run.status == "running"
    assert outcomes(run) == {"welcome:7": "unknown"}
    welcome_workflow(mail_tool(mailbox, effect))
    table = rt.recover()
    assert list(table["did"]) == ["driven"]
    assert run.status == ("needs_decision" if effect == "opaque" else "completed")
    assert len(mailbox.effects()) == 1


def test_L008_a_run_without_a_store_is_refused_and_one_in_memory_says_so(runtime):
    """There is no uncached way in: no store, no declared workflow, no run."""

    def plain(ctx):
        return ctx.step("s", lambda: 1)

    with pytest.raises(TypeError):
        dk.Runtime()
    rt = runtime(path=":memory:")
    with pytest.raises(dk.UsageError, match=r"declare it with @dk\.workflow"):
        rt.run(plain, id="p")
    assert not rt.durable
    assert "not durable" in repr(rt)
    assert rt.runs().empty


def test_L019_a_run_of_another_version_is_refused_by_name_and_goes_on_under_its_own(
    runtime, mailbox
):
    """Newer code never touches an older run; the old code finishes it without a second mail."""

    def declare(version):
        tool = mail_tool(mailbox)

        @dk.workflow(version=version, name="onboarding")
        def onboarding(ctx, email):
            ctx.call(tool, email, "hello", key="welcome:1")
            return ctx.step("old name" if version == 1 else "new name", lambda: version)

        return onboarding

    rt = runtime()
    run = rt.run(declare(1), ADA, id="o", crash=dk.CrashAt("send_email", "result_saved"))
    before = run.history()
    declare(2)
    with pytest.raises(dk.UsageError, match=r"version 1 of 'onboarding', and version 2"):
        rt.resume("o")
    (line,) = rt.recover().itertuples()
    assert line.did == "error"
    assert "WorkflowChanged" in line.detail
    assert run.history().equals(before)
    declare(1)
    rt.recover()
    assert run.result == 1
    assert len(mailbox.effects()) == 1


# -- recovery ------------------------------------------------------------------------------------


def test_L028_a_blocking_tool_with_a_limit_keeps_its_lease(runtime, mailbox, clock):
    """The intent extends the lease past the attempt's limit: nobody else may drive."""
    rt, other = runtime(lease=10.0), runtime(lease=10.0)
    seen = []

    def block():
        clock.advance(20.0)
        seen.extend(other.recover()["did"])

    tool = mail_tool(mailbox, "opaque", before=block, timeout=30.0)
    run = rt.run(welcome_workflow(tool), CUSTOMER, id="w")
    assert seen == ["owned"]
    assert run.status == "completed"
    assert len(mailbox.effects()) == 1


def test_L028_a_takeover_from_a_starved_driver_is_fenced(runtime, mailbox, clock):
    """Without a limit the lease ends; the stalled driver's late reply is then refused."""
    rt, other = runtime(lease=10.0), runtime(lease=10.0)
    taken = []

    def block():
        if not taken:
            taken.append(True)
            clock.advance(20.0)
            taken.extend(other.recover()["did"])

    run = rt.run(welcome_workflow(mail_tool(mailbox, before=block)), CUSTOMER, id="w")
    assert taken == [True, "driven"]
    assert run.note.startswith("owned elsewhere")
    assert run.status == "completed"
    assert kinds(run).count("result") == 1
    assert len(mailbox.effects()) == 1


def test_L029_a_job_of_three_lease_periods_and_its_waits_stay_with_their_worker(
    runtime, mailbox, clock
):
    """Neither long work nor a long saved wait makes a second worker pick the job up."""
    rt, other = runtime(lease=10.0), runtime(lease=10.0)
    seen = []

    class Watching(dk.ManualClock):
        """While somebody waits, another worker polls."""

        def sleep(self, seconds):
            for _ in range(3):
                super().sleep(seconds / 3)
                if seconds > 1:
                    seen.extend(other.recover()["did"])

    clock.__class__ = Watching
    mailbox.plan = [Fault("rate_limited", request=1, retry_after=30.0)]
    tool = mail_tool(mailbox, "opaque", before=lambda: clock.sleep(27.0), timeout=40.0,
                     retry=dk.Retry(attempts=2))  # fmt: skip
    run = rt.run(welcome_workflow(tool), CUSTOMER, id="w")
    assert set(seen) == {"owned"}
    assert len(seen) == 9
    assert run.status == "completed"
    assert len(mailbox.effects()) == 1


@pytest.mark.parametrize("point", ["result_saved", "end_saved"])
def test_L029_redelivery_of_a_finished_job_returns_the_stored_result(runtime, mailbox, point):
    """The acknowledgement is lost, the job comes again, and its stored result is the answer."""
    rt = runtime()
    workflow = welcome_workflow(mail_tool(mailbox))
    place = "run" if point == "end_saved" else "send_email"
    assert rt.run(workflow, CUSTOMER, id="w", crash=dk.CrashAt(place, point)).crash is not None
    for _ in range(3):
        assert rt.run(workflow, CUSTOMER, id="w").result == {"mail": "email-1"}
    assert len(mailbox.effects()) == 1
    assert len(mailbox.requests()) == 1


def test_L029_a_reply_that_finds_its_operation_concluded_by_another_run_is_a_replay(
    runtime, mailbox, clock
):
    """A stalled driver whose operation another run has meanwhile resent learns the same answer."""
    rt, other = runtime(lease=10.0), runtime(lease=10.0)
    stalled = []

    def stall():
        if not stalled:
            stalled.append(True)
            clock.advance(20.0)
            stalled.append(other.run(workflow, CUSTOMER, id="second").result)

    workflow = welcome_workflow(mail_tool(mailbox, before=stall))
    run = rt.run(workflow, CUSTOMER, id="first")
    assert stalled == [True, {"mail": "email-1"}]
    assert run.result == {"mail": "email-1"}
    assert len(mailbox.effects()) == 1


@pytest.mark.real_kill
@forks
@pytest.mark.parametrize(
    "before",
    [
        0,
        1,
    ],
)
def test_L031_a_step_that_kills_its_worker_is_executed_three_times_and_then_parked(
    tmp_path, before
):
    """Ten recoveries by ten processes: the count is on disk before each execution begins."""
    path, log = tmp_path / "run.db", tmp_path / "log"

    def deadly():
        db = sqlite3.connect(path)
        with log.open("a") as file:
            file.write(f"{db.execute('SELECT claims FROM run').fetchone()[0]}\n")
        os.kill(os.getpid(), signal.SIGKILL)

    @dk.workflow
    def killer(ctx):
        for number in range(before):
            ctx.step("harmless", lambda n=number: n)
        ctx.step("deadly", deadly)

    def open_one(number):
        later = dk.ManualClock(dk.ManualClock.START + 1000.0 * number)
        return dk.Runtime(path, clock=later, owner=f"worker-{number}", durability="process")

    with open_one(0) as rt:
        rt.start(killer, id="k")
    killed = 0
    for number in range(1, 11):
        child = os.fork()
        if child == 0:  # pragma: no cover - it never returns
            open_one(number).recover_rows()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
    with open_one(11) as rt:
        run = rt.get("k")
        assert run.status == "needs_decision"
        assert "3 claims in a row saved no progress" in run.reason
        assert kinds(run)[-1] == "parked"
    assert log.read_text().split() == ["1", "2", "3"]
    assert killed == 3


def test_L032_one_run_in_trouble_does_not_stop_the_recovery_of_the_others(runtime, mailbox):
    """The sick run is reported by its name, those before and after it finish."""
    rt = runtime()
    tool = mail_tool(mailbox)
    for number in (1, 2, 3):
        rt.start(
            welcome_workflow(tool, f"job {number}"), {**CUSTOMER, "id": number}, id=f"r{number}"
        )
    dk.workflow(lambda ctx: None, name="job 2", version=2)
    table = rt.recover().set_index("run")
    assert list(table["did"]) == ["driven", "error", "driven"]
    assert "version 1 of 'job 2'" in table.loc["r2", "detail"]
    assert sorted(row["key"] for row in mailbox.effects()) == ["welcome:1", "welcome:3"]


@pytest.mark.parametrize("trouble", [ValueError("odd"), dk.NotExecuted("no"), RecursionError()])
def test_L032_an_error_of_the_workflow_itself_does_not_stop_the_sweep_either(runtime, trouble):
    """A workflow that raises fails its own run only."""
    rt = runtime()

    def sick(ctx):
        raise trouble

    for number, body in enumerate([lambda ctx: 1, sick, lambda ctx: 3], 1):
        rt.start(dk.workflow(body, name=f"part {number}"), id=f"p{number}")
    assert list(rt.recover()["status"]) == ["completed", "failed", "completed"]


def test_L032_a_damaged_run_is_reported_and_the_others_are_driven(runtime, tmp_path):
    """A journal that was altered by hand refuses its own run, and no other."""
    rt = runtime()
    for number in (1, 2, 3):
        rt.start(dk.workflow(lambda ctx: 1, name="one"), id=f"d{number}")
    with sqlite3.connect(tmp_path / "run.db") as db:
        db.execute("DROP TRIGGER journal_is_append_only")
        db.execute("UPDATE journal SET payload = '{}' WHERE run = 2")
    db.close()
    table = rt.recover()
    assert list(table["did"]) == ["driven", "error", "driven"]
    assert "DamagedFile" in table["detail"][1]


@pytest.mark.parametrize("effect", ["idempotent", "queryable", "opaque"])
@pytest.mark.parametrize(
    "mode", ["simulated", pytest.param("process", marks=[pytest.mark.real_kill, forks])]
)
def test_L034_every_kill_point_of_every_tool_class_leaves_at_most_one_mail(mailbox, effect, mode):
    """Before the intent it may be sent; after it the contract decides, and nothing else."""
    mailbox.profile = PROFILES[effect]
    workflow = welcome_workflow(mail_tool(mailbox, effect))
    report = dk.sweep(workflow, CUSTOMER, world=mailbox, mode=mode)
    assert report.safe, report.text()
    assert report.reference == 1
    verdicts = {}
    for row in report.rows:
        assert row["effects"] <= 1
        if row["place"] == "send_email":
            verdicts[row["point"] + row["fate"]] = (row["verdict"], row["effects"])
    open_points = (
        "intent_saved", "request_sentlost", "request_sentlate", "effect_done", "reply_received",
    )  # fmt: skip
    assert set(verdicts) == {"before_intent", *open_points, "result_saved"}
    assert verdicts.pop("before_intent") == ("safe", 1)
    assert verdicts.pop("result_saved") == ("safe", 1)
    if effect == "opaque":
        assert {verdict for verdict, _ in verdicts.values()} == {"safe: handed over as unknown"}
        assert [verdicts[point][1] for point in open_points] == [0, 0, 1, 1, 1]
    else:
        assert set(verdicts.values()) == {("safe", 1)}


def test_L034_the_four_worlds_after_the_intent_leave_one_identical_record(
    runtime, mailbox, tmp_path
):
    """Not sent, lost, acted, replied: nobody can tell them apart by looking at the disk."""
    workflow = welcome_workflow(mail_tool(mailbox, "opaque", name="send_email"))
    mailbox.latency = 0.0
    records = []
    for point in ("intent_saved", "request_sent", "effect_done", "reply_received"):
        mailbox.fresh(tmp_path / f"world-{point}")
        path = tmp_path / f"{point}.db"
        rt = runtime(path=path, clock=dk.ManualClock(), owner="driver")
        mailbox.clock = rt._clock
        assert rt.run(workflow, CUSTOMER, id="w", crash=dk.CrashAt("send_email", point)).crash
        rt.close()
        db = sqlite3.connect(path)
        records.append([
            db.execute(f"SELECT * FROM {table}").fetchall()
            for table in ("run", "journal", "operation", "command")
        ])  # fmt: skip
        db.close()
    assert records[0] == records[1] == records[2] == records[3]


def test_L034_a_workflow_that_fails_before_it_reaches_an_unknown_call_is_not_failed(
    runtime, mailbox
):
    """Changed code that raises early cannot bury an operation whose outcome is open."""
    rt = runtime()
    tool = mail_tool(mailbox, "opaque")
    workflow = welcome_workflow(tool)
    rt.run(workflow, CUSTOMER, id="w", crash=dk.CrashAt("send_email", "effect_done"))

    def broken(ctx, customer):
        raise LookupError(customer["id"])

    dk.workflow(broken, name="case welcome")
    rt.recover()
    run = rt.get("w")
    assert run.status == "needs_decision"
    assert "LookupError" in run.reason
    assert outcomes(run) == {"welcome:7": "unknown"}
    welcome_workflow(tool)
    rt.resume("w")
    rt.resolve("w", "welcome:7", "completed", result={"id": "email-1"}, by="Bea")
    rt.recover()
    assert run.result == {"mail": "email-1"}
    assert len(mailbox.effects()) == 1


def test_L035_an_unknown_is_presented_as_a_question_and_a_plain_retry_is_refused(runtime, mailbox):
    """The text offers to check, to resolve or to hand over; only a named person's word resends."""
    rt = runtime()
    workflow = welcome_workflow(mail_tool(mailbox, "opaque"))
    rt.run(workflow, CUSTOMER, id="w", crash=dk.CrashAt("send_email", "effect_done"))
    rt.recover()
    run = rt.get("w")
    assert run.status == "needs_decision"
    with pytest.raises(dk.RunNotFinished) as told:
        _ = run.result
    text = str(told.value)
    for offer in ("unknown", "check with the service", "rt.resolve", "rt.cancel"):
        assert offer in text
    assert "send again" not in text
    assert "try again" not in text
    for plain_retry in (
        lambda: rt.run(workflow, CUSTOMER, id="w"),
        lambda: rt.resume("w"),
        lambda: rt.run(workflow, CUSTOMER, id="another run"),
        lambda: rt.cancel("w"),
        rt.recover,
    ):
        plain_retry()
        assert run.status == "needs_decision"
        assert len(mailbox.requests()) == 1
    with pytest.raises(TypeError, match="by"):
        rt.resolve("w", "welcome:7", "not_executed")
    assert len(mailbox.effects()) == 1


def test_L035_only_a_named_decision_permits_the_next_attempt(runtime, mailbox):
    """``not_executed`` by a person is saved with the name, and then the mail may go."""
    rt = runtime()
    workflow = welcome_workflow(mail_tool(mailbox, "opaque"))
    rt.run(workflow, CUSTOMER, id="w", crash=dk.CrashAt("send_email", "intent_saved"))
    rt.recover()
    rt.resolve("w", "welcome:7", "not_executed", by="Bea")
    rt.recover()
    run = rt.get("w")
    assert run.result == {"mail": "email-1"}
    (resolved,) = run.history().query("kind == 'resolved'")["payload"]
    assert (resolved["by"], resolved["outcome"]) == ("Bea", "not_executed")
    assert len(mailbox.effects()) == 1


def test_L037_an_absence_before_the_settling_time_proves_nothing(runtime, mailbox, clock):
    """Asked at 5 s the mail does not show yet; asked at 60 s it does; nothing is sent again."""
    mailbox.profile = Profile(name="slow search", askable=True, visible_after=30.0)
    rt = runtime(settle=1.0)
    workflow = welcome_workflow(mail_tool(mailbox, "queryable", settles_after=45.0))
    rt.run(workflow, CUSTOMER, id="w", crash=dk.CrashAt("send_email", "effect_done"))
    clock.advance(5.0)
    rt.recover()
    run = rt.get("w")
    assert run.status == "needs_decision"
    assert outcomes(run) == {"welcome:7": "unknown"}
    clock.advance(55.0)
    assert rt.resume("w").result == {"mail": "email-1"}
    assert len(mailbox.requests()) == len(mailbox.effects()) == 1


@pytest.mark.parametrize("settles_after", [20.0, None])
def test_L037_contradicting_sources_and_failing_probes_stay_unknown(
    runtime, mailbox, clock, settles_after
):
    """Two sources that disagree are no answer, and neither is a probe that breaks."""
    answers = iter([dk.StillUnknown, OSError("search is down"), "yes", None, dk.StillUnknown])

    def probe(call):
        found = mailbox.find(call.key)
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        assert found is not None
        return answer

    tool = mail_tool(mailbox, "queryable", probe=probe, settles_after=settles_after)
    rt = runtime()
    rt.run(welcome_workflow(tool), CUSTOMER, id="w",
           crash=dk.CrashAt("send_email", "effect_done"))  # fmt: skip
    clock.advance(3600.0)
    rt.recover()
    run = rt.get("w")
    assert run.status == "needs_decision"
    assert outcomes(run) == {"welcome:7": "unknown"}
    assert next(answers, "all asked") == "all asked"
    assert len(mailbox.requests()) == len(mailbox.effects()) == 1


def test_L037_an_absence_without_a_settling_promise_never_sends_again(runtime, mailbox, clock):
    """A service that promises no time is asked, and then a person is."""
    mailbox.profile = Profile(name="slow search", askable=True, visible_after=30.0)
    tool = mail_tool(mailbox, "queryable", settles_after=None)
    rt = runtime()
    rt.run(welcome_workflow(tool), CUSTOMER, id="w",
           crash=dk.CrashAt("send_email", "effect_done"))  # fmt: skip
    clock.advance(5.0)
    rt.recover()
    assert rt.get("w").status == "needs_decision"
    assert len(mailbox.requests()) == len(mailbox.effects()) == 1


def test_L041_two_workers_that_poll_one_outbox_send_once(runtime, mailbox, clock):
    """While the first is sending slowly, a polling second one finds every row claimed."""
    rt, other = runtime(), runtime()
    seen = []

    def slowly():
        for _ in range(5):
            clock.advance(1.0)
            seen.extend(other.recover()["did"])

    workflow = welcome_workflow(mail_tool(mailbox, "opaque", before=slowly))
    rt.start(workflow, CUSTOMER, id="w")
    rt.recover()
    assert set(seen) == {"owned"}
    assert rt.get("w").status == "completed"
    assert len(mailbox.effects()) == 1


@pytest.mark.real_kill
@forks
def test_L041_a_killed_worker_leaves_its_row_unknown_and_not_queued(runtime, tmp_path, clock):
    """After a SIGKILL in the middle of sending nobody takes the mail for unsent."""
    box_folder = tmp_path / "world"
    box = Mailbox(box_folder, clock=clock)
    workflow = welcome_workflow(mail_tool(box, "opaque"))

    def work():
        with dk.Runtime(tmp_path / "run.db", clock=clock, world=box) as rt:
            rt._kill = True
            rt.run(workflow, CUSTOMER, id="w", crash=dk.CrashAt("send_email", "effect_done"))

    in_child(work)
    rt = runtime(world=box)
    assert list(rt.recover()["did"]) == ["owned"]
    clock.advance(31.0)
    rt.recover()
    assert rt.get("w").status == "needs_decision"
    assert outcomes(rt.get("w")) == {"welcome:7": "unknown"}
    assert len(box.effects()) == len(box.requests()) == 1
    box.close()


def test_L044_stored_ids_are_found_by_name_whatever_else_the_new_code_draws(runtime, mailbox):
    """One more random draw in new code moves no stored id, key or result."""
    tool = mail_tool(mailbox)

    def declare(extra_draws):
        dice = random.Random(5)

        @dk.workflow(name="numbers")
        def numbers(ctx):
            for _ in range(extra_draws):
                dice.random()
            first = ctx.step("id", lambda: dice.randrange(10**9))
            second = ctx.step("id", lambda: dice.randrange(10**9))
            sent = ctx.call(tool, ADA, "hello", key=f"mail:{first}:{second}")
            return [first, second, sent["id"]]

        return numbers

    rt = runtime()
    run = rt.run(declare(0), id="n", crash=dk.CrashAt("send_email", "effect_done"))
    saved = [p["value"] for p in run.history().query("kind == 'step'")["payload"]]
    declare(1)
    rt.recover()
    assert run.result == [*saved, "email-1"]
    assert [row["key"] for row in mailbox.effects()] == [f"mail:{saved[0]}:{saved[1]}"]


def test_L044_a_true_mismatch_is_named_and_nothing_is_sent(runtime, mailbox):
    """Where the new code asks for something else, the run parks with both sides named."""
    tool = mail_tool(mailbox)
    rt = runtime()
    workflow = welcome_workflow(tool)
    run = rt.run(workflow, CUSTOMER, id="w", crash=dk.CrashAt("draft", "step_saved"))

    @dk.workflow(name="case welcome")
    def changed(ctx, customer):
        ctx.call(tool, customer["email"], "hello", key="another")

    rt.recover()
    assert run.status == "needs_decision"
    assert "step 'draft'" in run.reason
    assert "call 'send_email' with key 'another'" in run.reason
    assert mailbox.requests() == []
    welcome_workflow(tool)
    assert rt.resume("w").result == {"mail": "email-1"}


# -- serialisation -------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["argument", "step", "call"])
def test_L106_a_run_whose_saved_value_no_longer_fits_its_type_parks(runtime, mailbox, place):
    """The workflow never goes on with such a value, nothing runs, and the old types finish it."""
    ran = []

    def declare(kind):
        types = {"argument": dict, "step": dict, "call": dict, place: kind}

        def measure() -> types["step"]:  # noqa: F821 - a type, not a name
            ran.append("measure")
            return {"size": 1}

        @dk.tool(effect="idempotent", window=86_400.0, name="send_typed")
        def send_typed(call, size) -> types["call"]:  # noqa: F821 - as above
            return {"id": mailbox.send(ADA, "Welcome", str(size), key=call.key)["id"]}

        @dk.workflow(name="case typed")
        def typed(ctx, given: types["argument"]):  # noqa: F821 - as above
            try:
                size = ctx.step("measure", measure)["size"]
                sent = ctx.call(send_typed, size, key="typed")
                return [*given, sent["id"]]
            except Exception:
                return "swallowed"

        return typed

    rt = runtime()
    run = rt.run(declare(dict[str, int | str]), {"a": 1}, id="t",
                 crash=dk.CrashAt("send_typed", "result_saved"))  # fmt: skip
    declare(dict[str, list[int]])
    for _ in range(2):
        rt.recover()
        assert run.status == "needs_decision"
        assert f"saved {'argument' if place == 'argument' else 'value'} does not fit" in run.reason
    assert payloads(run, "step")[0]["value"] == {"size": 1}
    declare(dict[str, int | str])
    assert rt.resume("t").result == ["a", "email-1"]
    assert ran == ["measure"]
    assert len(mailbox.effects()) == len(mailbox.requests()) == 1


# -- security and scale --------------------------------------------------------------------------


def test_L119_secrets_of_settings_and_of_call_arguments_are_stored_nowhere(
    runtime, mailbox, tmp_path, capfd, caplog
):
    """Saved as it is: what a run is given, and what steps and tools return or raise. Not more.

    What tools know (settings) is never saved, and of what a call sends only the digest is.
    """
    api_key, password, reply = "canary-setting", "canary-argument", "canary-reply"
    seen = []

    @dk.tool(effect="idempotent", window=86_400.0)
    def send_secretly(call, to, secret):
        seen.append((api_key, secret))
        sent = mailbox.send(to, "Welcome", "hello", key=call.key)
        return {"id": sent["id"], "said": reply}

    def declare(secret):
        @dk.workflow(name="secretive")
        def secretive(ctx):
            sent = ctx.call(send_secretly, ADA, secret, key="welcome:1")
            return sent["id"]

        return secretive

    rt = runtime()
    run = rt.run(declare(password), id="s", crash=dk.CrashAt("send_secretly", "effect_done"))
    rt.recover()
    assert run.result == "email-1"
    with pytest.raises(dk.ArgumentsDiffer) as refused:
        _ = rt.run(declare("canary-other"), id="t").result
    looked = [str(refused.value), repr(run), repr(send_secretly), run.reason]
    looked += [str(table) for table in (run.history(), run.operations(), rt.runs())]
    rt.close()
    everything = b"".join(path.read_bytes() for path in tmp_path.glob("run.db*"))
    everything += "\n".join([*looked, caplog.text, *capfd.readouterr()]).encode()
    for secret in (api_key, password, "canary-other", ADA):
        assert secret.encode() not in everything
    assert reply.encode() in everything
    assert seen == [(api_key, password)] * 2
    assert len(mailbox.effects()) == 1


def test_L119_an_error_that_quotes_no_value_saves_none(runtime, tmp_path):
    """A value that cannot be saved is refused by its path and type, never by its content."""

    @dk.workflow
    def unsavable(ctx):
        return ctx.step("login", lambda: {"token": {"canary-member", 1}})

    rt = runtime()
    run = rt.run(unsavable, id="u")
    with pytest.raises(dk.UnsavableValue, match=r"\$\.token"):
        _ = run.result
    rt.close()
    for path in tmp_path.glob("run.db*"):
        assert b"canary-member" not in path.read_bytes()


def test_L121_five_hundred_steps_cost_twice_what_half_of_them_cost(runtime, tmp_path):
    """Stored bytes grow with the steps, not with their square."""
    sizes = {}

    def measured(number):
        if number in (250, 500):
            db = sqlite3.connect(tmp_path / "run.db")
            (pages,), (size,) = (
                db.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")
            )
            db.close()
            sizes[number] = pages * size
        return "x" * 1000

    @dk.workflow
    def long_talk(ctx):
        return len([ctx.step("turn", measured, number) for number in range(1, 501)])

    assert runtime().run(long_talk, id="l").result == 500
    assert 250_000 < sizes[250] < 500_000
    assert 1.8 < sizes[500] / sizes[250] < 2.2


def test_L121_a_resume_reads_a_long_journal_without_running_its_steps(runtime):
    """Five hundred saved steps come back from disk, and none runs again."""
    ran = []

    @dk.workflow
    def long_run(ctx):
        return sum(ctx.step("turn", lambda n=n: ran.append(n) or n) for n in range(500))

    rt = runtime()
    crash = dk.CrashAt("turn", "step_saved", occurrence=500)
    assert rt.run(long_run, id="l", crash=crash).crash is not None
    assert rt.resume("l").result == sum(range(500))
    assert ran == list(range(500))

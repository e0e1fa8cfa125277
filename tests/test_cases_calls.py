"""Public failures of idempotency, retries and limits, restated (rows of cases.csv).

Each test names its row. The mailbox's own ledger decides every question about duplicates. Where a
real thread is needed, events order it, and nothing is said about how long it took.
"""

import os
import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from case_tools import DAY, mail_tool

import durakit as dk
from durakit.mail import Fault, Mailbox, MailError
from durakit.mail.profiles import PROFILES
from durakit.sweep import can_fork

ADA = "ada@example.org"
HERE = Path(__file__).resolve().parent
forks = pytest.mark.skipif(not can_fork(), reason="this platform cannot fork")


class Dice(random.Random):
    """Draws that are written down before: always ``share`` of the window."""

    def __init__(self, share):
        super().__init__()
        self.share = share

    def random(self):
        """The same share every time."""
        return self.share


def one_call(tool, key="welcome:7", body="hello", name="case one call", **more):
    """A workflow of one call."""

    def calling(ctx):
        return ctx.call(tool, ADA, body, key=key, **more)

    return dk.workflow(calling, name=name)


def outcomes(run):
    """Key → outcome, as the runtime believes."""
    table = run.operations()
    return dict(zip(table["key"], table["outcome"], strict=True))


def payloads(run, kind):
    """The payloads of the run's entries of one kind."""
    return list(run.history().query("kind == @kind")["payload"])


# -- idempotency ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effect", "requests", "status"),
    [
        ("idempotent", 2, "completed"),
        ("queryable", 1, "completed"),
        ("opaque", 1, "needs_decision"),
    ],
)
def test_L046_a_lost_reply_follows_the_contract_and_is_never_taken_for_a_failure(
    runtime, mailbox, effect, requests, status
):
    """Resent under its key, asked, or handed over; one mail in all three."""
    mailbox.profile = PROFILES[effect]
    mailbox.plan = [Fault("reply_lost", request=1)]
    run = runtime().run(one_call(mail_tool(mailbox, effect, timeout=3.0)), id="w", deadline=60)
    assert run.status == status
    assert len(mailbox.requests()) == requests
    assert len(mailbox.effects()) == 1
    assert outcomes(run) == {"welcome:7": "unknown" if effect == "opaque" else "completed"}


def test_L047_every_attempt_of_one_mail_carries_one_key_and_another_mail_another(runtime, mailbox):
    """Three attempts are one mail on the wire; the same text under a second key is a second."""
    mailbox.plan = [Fault("reply_lost", request=1), Fault("rate_limited", request=2)]
    seen = []

    @dk.tool(effect="idempotent", window=DAY, timeout=3.0)
    def send_numbered(call, body):
        seen.append((call.key, call.attempt))
        return mailbox.send(ADA, "Welcome", body, key=call.key, timeout=call.remaining())

    @dk.workflow(name="case two mails")
    def two_mails(ctx):
        first = ctx.call(send_numbered, "hello", key="a")
        return [first["id"], ctx.call(send_numbered, "hello", key="b")["id"]]

    run = runtime().run(two_mails, id="w")
    assert run.result == ["email-1", "email-2"]
    assert seen == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]
    assert [row["key"] for row in mailbox.requests()] == ["a", "a", "a", "b"]
    assert [row["key"] for row in mailbox.effects()] == ["a", "b"]


def test_L050_a_planner_that_asks_again_in_other_words_sends_nothing(runtime, mailbox):
    """The slot is the key: same words give the first result, other words a refusal."""
    tool = mail_tool(mailbox)
    rt = runtime()
    first = rt.run(one_call(tool, body="Hello Ada"), id="turn-1:call_abc")
    again = rt.run(one_call(tool, body="Hello Ada"), id="turn-2:call_def")
    reworded = rt.run(one_call(tool, body="Dear Ada, hello"), id="turn-3:call_ghi")
    assert first.result == again.result == {"id": "email-1"}
    with pytest.raises(dk.ArgumentsDiffer):
        _ = reworded.result
    assert len(mailbox.effects()) == len(mailbox.requests()) == 1


def test_L052_a_key_used_again_with_another_body_is_refused_by_an_error_of_its_own(
    runtime, mailbox
):
    """The error names key and both digests, nothing is sent, the first record stays."""
    tool = mail_tool(mailbox)
    rt = runtime()
    first = rt.run(one_call(tool), id="a")
    before = rt._store.read_operation("default", "send_email", "welcome:7")
    run = rt.run(one_call(tool, body="changed"), id="b")
    with pytest.raises(dk.ArgumentsDiffer) as refused:
        _ = run.result
    error = refused.value
    assert "welcome:7" in error.what
    assert error.saved == before.arguments
    assert len(error.given) == len(error.saved) == 64
    assert error.given != error.saved
    assert rt._store.read_operation("default", "send_email", "welcome:7") == before
    assert first.result == {"id": "email-1"}
    assert len(mailbox.effects()) == len(mailbox.requests()) == 1


@pytest.mark.parametrize("effect", ["idempotent", "queryable", "opaque"])
def test_L052_an_unknown_call_that_is_asked_for_with_other_arguments_parks(
    runtime, mailbox, effect
):
    """Nothing may fail a run whose own operation is unknown; the old arguments settle it."""
    rt = runtime()
    tool = mail_tool(mailbox, effect)
    crash = dk.CrashAt("send_email", "effect_done")
    run = rt.run(one_call(tool), id="w", crash=crash)
    one_call(tool, body="reworded by the model")
    rt.recover()
    assert run.status == "needs_decision"
    assert "other arguments" in run.reason
    assert outcomes(run) == {"welcome:7": "unknown"}
    one_call(tool)
    rt.resume("w")
    assert run.status == ("needs_decision" if effect == "opaque" else "completed")
    assert len(mailbox.effects()) == 1


def test_L053_a_second_call_within_its_deadline_says_in_progress_and_never_not_executed(
    runtime, mailbox
):
    """While the first is running, the second answers 'in progress' and names the other run."""
    rt, other = runtime(), runtime()
    told = []

    def meanwhile():
        if not told:
            told.append("busy")
            second = other.run(workflow, id="second", deadline=5)
            told.append(second.reason)
            told.extend(outcomes(second).values())

    workflow = one_call(mail_tool(mailbox, "opaque", before=meanwhile))
    run = rt.run(workflow, id="first")
    assert run.status == "completed"
    assert "in progress in run 'first'" in told[1]
    assert told[2:] == ["unknown"]
    assert len(mailbox.effects()) == 1


def test_L053_a_second_call_waits_and_returns_the_first_result(tmp_path, real_mailbox):
    """Two real threads: the second arrives while the first is sending, and gets its answer."""
    began, go = threading.Event(), threading.Event()

    class Watched(dk.SystemClock):
        """The first is let go as soon as the second waits."""

        def sleep(self, seconds):
            go.set()
            super().sleep(min(seconds, 0.01))

    def slowly():
        began.set()
        assert go.wait(10)

    workflow = one_call(mail_tool(real_mailbox, "opaque", before=slowly))
    results = {}

    def drive(name, clock):
        with dk.Runtime(tmp_path / "run.db", clock=clock, durability="process") as rt:
            results[name] = rt.run(workflow, id=name, deadline=30).result

    first = threading.Thread(target=drive, args=("first", dk.SystemClock()))
    first.start()
    assert began.wait(10)
    drive("second", Watched())
    first.join()
    assert results == {"first": {"id": "email-1"}, "second": {"id": "email-1"}}
    assert len(real_mailbox.effects()) == len(real_mailbox.requests()) == 1


def test_L053_a_user_stop_ends_the_waiting_for_another_runs_operation(runtime, mailbox, clock):
    """Who waits for a call in progress elsewhere can be stopped, and is not told of a time-out."""
    rt, other, third = runtime(), runtime(), runtime()
    told = []

    class Stopping(dk.ManualClock):
        """The user presses stop as soon as the second run waits."""

        def sleep(self, seconds):
            super().sleep(seconds)
            if not told:
                told.append(third.cancel("second", by="user").status)

    def meanwhile():
        clock.__class__ = Stopping
        second = other.run(workflow, id="second", deadline=20)
        told.append(second.status)

    workflow = one_call(mail_tool(mailbox, "opaque", before=meanwhile))
    run = rt.run(workflow, id="first")
    assert told == ["running", "cancelled"]
    assert run.status == "completed"
    assert len(mailbox.effects()) == 1


def test_L053_a_run_whose_own_call_is_unknown_never_fails_because_another_run_works_on_it(
    runtime, mailbox, clock
):
    """Its deadline is over while the other run is sending again: it parks, and later completes."""
    rt, other = runtime(), runtime()
    told = []

    def meanwhile():
        if len(mailbox.requests()) == 1 and not told:
            clock.advance(6.0)
            other.recover()
            told.append(other.get("mine").status)

    workflow = one_call(mail_tool(mailbox, before=meanwhile))
    mine = rt.run(workflow, id="mine", deadline=5,
                  crash=dk.CrashAt("send_email", "effect_done"))  # fmt: skip
    assert rt.run(workflow, id="other").result == {"id": "email-1"}
    assert told == ["needs_decision"]
    assert rt.resume("mine").result == {"id": "email-1"}
    assert mine.status == "completed"
    assert len(mailbox.effects()) == 1


@pytest.mark.real_kill
@forks
@pytest.mark.parametrize("point", ["intent_saved", "effect_done"])
@pytest.mark.parametrize("effect", ["idempotent", "queryable", "opaque"])
def test_L055_a_dead_owner_blocks_a_key_until_its_lease_ends_and_then_it_is_unknown(
    runtime, tmp_path, clock, effect, point
):
    """Neither blocked for ever nor free: after the lease the tool's contract decides."""
    box = Mailbox(tmp_path / "dead-world", clock=clock, profile=effect)
    workflow = one_call(mail_tool(box, effect))
    child = os.fork()
    if child == 0:  # pragma: no cover - it never returns
        with dk.Runtime(tmp_path / "run.db", clock=clock, world=box, lease=30.0) as rt:
            rt._kill = True
            rt.run(workflow, id="dead", crash=dk.CrashAt("send_email", point))
        os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    rt = runtime(world=box)
    hurried = rt.run(workflow, id="hurried", deadline=5)
    assert "in progress in run 'dead'" in hurried.reason
    requests = len(box.requests())
    run = rt.run(workflow, id="patient", deadline=3600)
    assert outcomes(run) == {"welcome:7": "unknown" if effect == "opaque" else "completed"}
    assert run.status == ("needs_decision" if effect == "opaque" else "completed")
    if effect == "opaque":
        assert len(box.requests()) == requests
    expected = 0 if effect == "opaque" and point == "intent_saved" else 1
    assert len(box.effects()) == expected
    rt.recover()
    assert rt.get("dead").status == run.status
    assert len(box.effects()) == expected
    box.close()


def test_L055_a_dead_driver_does_not_hold_its_run_for_a_whole_session(
    runtime, mailbox, clock, monkeypatch
):
    """A tool without a limit holds the lease only, however long the run's deadline is."""
    rt, other = runtime(owner="first"), runtime()
    monkeypatch.setattr("durakit.runtime._dead", set())
    workflow = one_call(mail_tool(mailbox))
    crash = dk.CrashAt("send_email", "intent_saved")
    assert rt.run(workflow, id="w", deadline=DAY, crash=crash).crash is not None
    monkeypatch.setattr("durakit.runtime._dead", set())  # nobody knows that it is dead
    assert list(other.recover()["did"]) == ["owned"]
    clock.advance(31.0)
    other.recover()
    assert rt.get("w").result == {"id": "email-1"}
    assert len(mailbox.effects()) == 1


def test_L055_a_refusal_of_an_overtaken_attempt_settles_nothing(runtime, mailbox, clock):
    """The stalled first attempt is refused for good; the resend that overtook it stays unknown."""
    rt, other = runtime(lease=10.0), runtime(lease=10.0)
    tries = []

    @dk.tool(effect="idempotent", window=DAY, name="send_email")
    def send_email(call, to, body):
        tries.append(call.attempt)
        if call.attempt == 1:
            clock.advance(20.0)
            crash = dk.CrashAt("send_email", "effect_done", attempt=2)
            assert other.run(workflow, id="second", crash=crash).crash is not None
            raise dk.NotExecuted("the first request was malformed")
        return mailbox.send(to, "Welcome", body, key=call.key)

    workflow = one_call(send_email)
    run = rt.run(workflow, id="first")
    assert tries == [1, 2, 3]
    assert run.result == {"id": "email-1"}
    other.recover()
    assert other.get("second").result == {"id": "email-1"}
    assert len(mailbox.effects()) == 1


def race(folder, name, ready, go):
    """One rival of L056: open the file, wait for the signal, and call."""
    box = Mailbox(Path(folder) / "race-world", profile="opaque", latency=0.01)
    try:
        with dk.Runtime(Path(folder) / "race.db", durability="process") as rt:
            tool = mail_tool(box, "opaque")
            ready()
            go()
            return rt.run(one_call(tool, name="case race"), id=name, deadline=60).result
    finally:
        box.close()


def test_L056_twenty_threads_and_two_processes_with_one_key_send_one_mail(tmp_path):
    """Released together: one execution, and everybody gets its result, nobody a storage error."""
    dk.Runtime(tmp_path / "race.db").close()
    Mailbox(tmp_path / "race-world", profile="opaque").close()
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_cases_calls as cases\n"
        "say = lambda: print('ready', flush=True)\n"
        "print(cases.race(sys.argv[2], sys.argv[3], say, sys.stdin.readline))"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(HERE), str(tmp_path), f"process-{number}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(2)
    ]  # fmt: skip
    barrier = threading.Barrier(21)
    results = {}

    def compete(name):
        results[name] = race(tmp_path, name, lambda: None, barrier.wait)

    threads = [threading.Thread(target=compete, args=(f"thread-{n}",)) for n in range(20)]
    for thread in threads:
        thread.start()
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    barrier.wait()
    for thread in threads:
        thread.join()
    said = [child.communicate()[0] for child in children]
    assert results == {f"thread-{n}": {"id": "email-1"} for n in range(20)}
    assert said == ["{'id': 'email-1'}\n"] * 2
    box = Mailbox(tmp_path / "race-world", profile="opaque")
    assert len(box.effects()) == len(box.requests()) == 1
    box.close()
    with dk.Runtime(tmp_path / "race.db") as rt:
        operation = rt._store.read_operation("default", "send_email", "welcome:7")
        assert (operation.status, operation.attempts) == ("SUCCEEDED", 1)
        assert set(rt.runs()["status"]) == {"completed"}


@pytest.mark.parametrize("limit", [None, 30.0])
def test_L058_a_reply_that_comes_with_the_deadline_is_saved(runtime, mailbox, clock, limit):
    """Saving the result does not inherit the caller's cancellation; a later call replays it."""
    tool = mail_tool(mailbox, after=lambda: clock.advance(12.0), timeout=limit)

    @dk.workflow(name="case late turn")
    def late_turn(ctx):
        with ctx.turn("send", timeout=10):
            sent = ctx.call(tool, ADA, "hello", key="welcome:7")
        return sent["id"]

    rt = runtime()
    run = rt.run(late_turn, id="w", deadline=3600)
    assert outcomes(run) == {"welcome:7": "completed"}
    assert run.result == "email-1"
    later = rt.run(one_call(mail_tool(mailbox)), id="later")
    assert later.result == {"id": "email-1"}
    assert len(mailbox.effects()) == len(mailbox.requests()) == 1


def test_L059_a_stored_final_failure_comes_back_marked_as_a_replay(runtime, mailbox, clock):
    """The replay names the run and time of the first attempt, and the attempts do not grow."""
    tool = mail_tool(mailbox, errors=(MailError,))

    def failing(ctx):
        return ctx.call(tool, "", "hello", key="welcome:7")

    workflow = dk.workflow(failing, name="case refused for good")
    rt = runtime()
    began = clock.now()
    assert rt.run(workflow, id="first").status == "failed"
    clock.advance(3600.0)
    again = rt.run(workflow, id="again")
    with pytest.raises(dk.SavedError, match="422"):
        _ = again.result
    (told,) = payloads(again, "replayed")
    assert told["replay"] == {"run": "first", "first_sent": began}
    assert list(again.operations()["attempts"]) == [1]
    assert len(mailbox.requests()) == 1
    assert mailbox.effects() == []


def test_L062_arguments_without_a_digest_are_refused_by_path_and_match_nothing(runtime, mailbox):
    """Two calls that cannot be fingerprinted are two refusals, also where a result is stored."""
    tool = mail_tool(mailbox)
    rt = runtime()
    assert rt.run(one_call(tool), id="stored").status == "completed"
    for number, body in enumerate([object(), {"when": {1, 2}}]):
        run = rt.run(one_call(tool, body=body), id=f"odd-{number}")
        with pytest.raises(dk.UnsavableValue) as refused:
            _ = run.result
        assert refused.value.path == ["$.body", "$.body.when"][number]
        assert run.operations().empty
    assert len(mailbox.requests()) == 1


def test_L064_one_key_in_two_accounts_and_two_tools_is_four_operations(runtime, mailbox):
    """No result crosses accounts or tools."""
    mailbox.profile = PROFILES["opaque"]
    first = mail_tool(mailbox, effect="opaque", name="send_first")
    second = mail_tool(mailbox, effect="opaque", name="send_second")

    def both(ctx, who):
        one = ctx.call(first, ADA, f"first for {who}", key="1")
        return [one["id"], ctx.call(second, ADA, f"second for {who}", key="1")["id"]]

    workflow = dk.workflow(both, name="case both")
    north, south = runtime(account="north"), runtime(account="south")
    assert north.run(workflow, "north", id="1").result == ["email-1", "email-2"]
    assert south.run(workflow, "south", id="1").result == ["email-3", "email-4"]
    assert list(north.runs()["id"]) == list(south.runs()["id"]) == ["1"]
    assert len(mailbox.effects()) == 4


@pytest.mark.parametrize("askable", [True, False])
def test_L065_after_the_key_window_an_unknown_is_asked_about_or_handed_over(
    runtime, mailbox, clock, askable
):
    """The service has forgotten the key after 24 h: at 25 h the same key is not sent again."""
    probe = mail_tool(mailbox, "queryable").probe if askable else None
    rt = runtime()
    rt.run(one_call(mail_tool(mailbox, probe=probe)), id="w",
           crash=dk.CrashAt("send_email", "effect_done"))  # fmt: skip
    clock.advance(25 * 3600.0)
    assert mailbox.keys()[0]["expired"]
    rt.recover()
    run = rt.get("w")
    assert run.status == ("completed" if askable else "needs_decision")
    assert outcomes(run) == {"welcome:7": "completed" if askable else "unknown"}
    assert len(mailbox.requests()) == len(mailbox.effects()) == 1


@pytest.mark.parametrize(
    ("policy", "status", "mails"),
    [("at most once", "needs_decision", 0), ("at least once with key", "completed", 1)],
)
def test_L068_after_a_kill_right_behind_the_claim_the_chosen_policy_shows_and_holds(
    runtime, mailbox, policy, status, mails
):
    """'At most once' hands over and never resends; 'at least once' resends under the same key."""
    tool = mail_tool(mailbox, on_unknown="park" if policy == "at most once" else None)
    rt = runtime()
    rt.run(one_call(tool), id="w", crash=dk.CrashAt("send_email", "intent_saved"))
    rt.recover()
    run = rt.get("w")
    assert run.status == status
    assert len(mailbox.effects()) == mails
    bases = [intent["basis"] for intent in payloads(run, "intent")]
    assert bases == ["first attempt", "same key"][: 1 + mails]
    assert list(run.operations()["contract"]) == ["idempotent"]
    assert len({row["key"] for row in mailbox.requests()} - {"welcome:7"}) == 0


def test_L071_a_deliberate_new_try_needs_a_new_key_and_the_old_one_stays_answered(runtime, mailbox):
    """A final failure is told again under its key; another generation of the key may send."""
    rt = runtime()
    tool = mail_tool(mailbox)

    def first(ctx):
        return ctx.call(tool, "", "hello", key="welcome:7")

    failed = dk.workflow(first, name="case first generation")
    assert rt.run(failed, id="a").status == "failed"
    again = rt.run(failed, id="b")
    assert again.status == "failed"
    assert payloads(again, "replayed")
    assert rt.run(one_call(tool, key="welcome:7/2"), id="c").status == "completed"
    assert [row["key"] for row in mailbox.effects()] == ["welcome:7/2"]


# -- retry ---------------------------------------------------------------------------------------


def test_L073_retries_do_not_multiply_because_calls_do_not_nest(runtime, mailbox):
    """A call inside a step, or inside another tool, is refused; one layer counts to three."""
    calls = []

    @dk.tool(effect="none", retry=dk.Retry(attempts=3))
    def helper(call):
        calls.append(call.attempt)
        raise dk.NotExecuted("always", transient=True)

    @dk.workflow(name="case plain layers")
    def plain(ctx):
        return ctx.call(helper, key="h")

    @dk.workflow(name="case nested layers")
    def nested(ctx):
        return ctx.step("outer", lambda: ctx.call(helper, key="h2"))

    outer = dk.tool(lambda call, inner: inner(), effect="none", name="outer")
    smuggled = []

    @dk.workflow(name="case tool in tool")
    def tool_in_tool(ctx):
        smuggled.append(lambda: ctx.call(helper, key="h3"))
        return ctx.call(through, key="o")

    through = dk.tool(lambda call: outer(call, smuggled[0]), effect="none", name="through")
    rt = runtime()
    assert rt.run(plain, id="p", deadline=60).status == "failed"
    assert calls == [1, 2, 3]
    for workflow in (nested, tool_in_tool):
        run = rt.run(workflow, id=workflow.name, deadline=60)
        assert "ctx is used inside" in run.reason
    assert calls == [1, 2, 3]
    assert mailbox.requests() == []


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_L076_an_interrupt_is_no_failure_to_be_retried(runtime, mailbox, interrupt):
    """It passes through untouched after one attempt, however eager the policy is."""
    tries = []

    @dk.tool(effect="none", retry=dk.Retry(attempts=9))
    def interrupted(call):
        tries.append(call.attempt)
        raise interrupt

    @dk.workflow(name="case interrupted")
    def interrupted_run(ctx):
        try:
            return ctx.call(interrupted, key="i")
        except Exception:
            return "swallowed"

    rt = runtime()
    with pytest.raises(interrupt):
        rt.run(interrupted_run, id="i")
    assert tries == [1]
    assert rt.get("i").status == "running"
    assert mailbox.requests() == []


def test_L076_a_deadline_ends_a_retried_call_after_one_attempt(runtime, mailbox, clock):
    """A limit that fires during the first attempt plans no second one."""
    tries = []

    @dk.tool(effect="none", timeout=5.0, retry=dk.Retry(attempts=9))
    def slow(call):
        tries.append(call.attempt)
        clock.advance(0.3)

    @dk.workflow(name="case slow read")
    def slow_read(ctx):
        with ctx.turn("read", timeout=0.1):
            return ctx.call(slow, key="s")

    run = runtime().run(slow_read, id="s")
    assert tries == [1]
    assert clock.sleeps == []
    assert mailbox.requests() == []
    with pytest.raises(dk.DeadlineExceeded, match="turn 'read'"):
        _ = run.result


def test_L077_no_wait_is_begun_that_would_reach_the_deadline(runtime, mailbox, clock):
    """Sampled, then stopped: the error says 'deadline' and carries the last real cause."""
    mailbox.latency = 0.0
    mailbox.plan = [Fault("rate_limited", key="welcome:7")]
    tool = mail_tool(mailbox, retry=dk.Retry(initial=1.0, cap=60.0, attempts=10))
    began = clock.now()
    causes = []

    @dk.workflow(name="case doubling")
    def doubling(ctx):
        try:
            ctx.call(tool, ADA, "hello", key="welcome:7")
        except dk.DeadlineExceeded as error:
            causes.append(error.__cause__)
            raise

    run = runtime(rng=Dice(1.0)).run(doubling, id="w", deadline=5.0)
    assert clock.sleeps == [1.0, 2.0]
    assert clock.now() - began == 3.0
    with pytest.raises(dk.DeadlineExceeded, match=r"deadline .*429 rate_limit_exceeded") as ended:
        _ = run.result
    assert ended.value.level == "session"
    assert isinstance(causes[0], MailError)
    assert mailbox.effects() == []


def test_L083_workers_that_fail_together_do_not_draw_the_same_wait(tmp_path):
    """Fifty workers at one fake instant spread; a given seed repeats its sequence exactly."""

    def first_wait(number, **more):
        clock = dk.ManualClock()
        box = Mailbox(tmp_path / f"world-{number}", clock=clock, latency=0.0,
                      plan=[Fault("rate_limited")])  # fmt: skip
        with dk.Runtime(":memory:", clock=clock, **more) as rt:
            rt.run(one_call(mail_tool(box), name="case herd"), id="w")
        box.close()
        return clock.sleeps[0]

    waits = [first_wait(number) for number in range(50)]
    assert all(0.0 <= wait < 0.5 for wait in waits)
    assert len(set(waits)) > 40
    seeded = [first_wait(f"seed-{n}", rng=random.Random(7)) for n in range(3)]
    assert len(set(seeded)) == 1


@forks
def test_L083_forked_children_do_not_share_their_parents_dice():
    """Four children of one parent draw four different numbers."""
    with dk.Runtime(":memory:") as rt:
        drawn = []
        for _ in range(4):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:  # pragma: no cover - it never returns
                os.write(write, repr(rt._rng.random()).encode())
                os._exit(0)
            os.close(write)
            os.waitpid(child, 0)
            drawn.append(os.read(read, 100))
            os.close(read)
    assert len(set(drawn)) == 4


@pytest.mark.parametrize("effect", ["opaque", "queryable", "idempotent"])
def test_L086_an_ambiguous_failure_is_not_tried_again_by_another_route(runtime, mailbox, effect):
    """A fallback in the workflow never sees the unknown: one call reached the service."""
    mailbox.plan = [Fault("error_after", request=1)]
    mailbox.profile = PROFILES[effect]
    slow = mail_tool(mailbox, effect, name="slow_route")
    quick = mail_tool(mailbox, effect, name="quick_route", on_unknown="park")

    @dk.workflow(name="case routes")
    def routes(ctx):
        try:
            return ctx.call(quick, ADA, "hello", key="welcome:7")
        except Exception:
            return ctx.call(slow, ADA, "hello", key="welcome:7")

    run = runtime().run(routes, id="w")
    assert run.status == "needs_decision"
    assert outcomes(run) == {"welcome:7": "unknown"}
    assert len(mailbox.requests()) == len(mailbox.effects()) == 1


def test_L086_a_true_no_such_tool_may_fall_back(runtime, mailbox):
    """What is certainly not executed may take the other route."""

    @dk.tool
    def missing(call):
        raise dk.NotExecuted("no such tool")

    @dk.workflow(name="case honest fallback")
    def fallback(ctx):
        try:
            return ctx.call(missing, key="welcome:7")
        except dk.NotExecuted:
            return ctx.call(mail_tool(mailbox), ADA, "hello", key="welcome:7")

    run = runtime().run(fallback, id="w")
    assert run.result == {"id": "email-1"}
    assert len(mailbox.effects()) == len(mailbox.requests()) == 1


def test_L089_ten_thousand_seconds_of_waits_pass_at_once_and_are_listed(runtime, mailbox, clock):
    """The exact list of waits is known, and no real second passes."""
    mailbox.latency = 0.0
    mailbox.plan = [Fault("rate_limited", key="welcome:7")]
    tool = mail_tool(mailbox, retry=dk.Retry(initial=1.0, cap=1000.0, attempts=20))
    run = runtime(rng=Dice(1.0)).run(one_call(tool), id="w")
    assert run.status == "failed"
    assert clock.sleeps == [2.0**n for n in range(10)] + [1000.0] * 9
    assert sum(clock.sleeps) > 10_000 - 50
    assert mailbox.effects() == []


def test_L089_a_stop_during_a_fake_sleep_is_delivered(runtime, mailbox, clock):
    """Nothing is sent after a wait in which the user has asked to stop."""
    rt, other = runtime(rng=Dice(1.0)), runtime()

    class Stopping(dk.ManualClock):
        """The user presses stop while the retry waits."""

        def sleep(self, seconds):
            super().sleep(seconds)
            other.cancel("w")

    clock.__class__ = Stopping
    mailbox.latency = 0.0
    mailbox.plan = [Fault("rate_limited", request=1)]
    run = rt.run(one_call(mail_tool(mailbox)), id="w")
    assert run.status == "cancelled"
    assert outcomes(run) == {"welcome:7": "not_executed"}
    assert len(mailbox.requests()) == 1
    assert mailbox.effects() == []


# -- limits --------------------------------------------------------------------------------------


def test_L091_every_phase_of_a_turn_draws_on_one_end_point(runtime, mailbox, clock):
    """Attempt, wait, attempt, probe, save, a crash and a resume: the ten seconds are counted on."""
    mailbox.latency = 0.0
    mailbox.plan = [Fault("rate_limited", request=1, retry_after=2.0)]
    left = []

    def work():
        clock.advance(2.0)

    tool = mail_tool(mailbox, "queryable", before=work, settles_after=20.0)

    @dk.workflow(name="case one turn")
    def one_turn(ctx):
        with ctx.turn("answer", timeout=10):
            left.append(ctx.remaining())
            ctx.call(tool, ADA, "hello", key="welcome:7")
            left.append(ctx.remaining())
            ctx.step("think", lambda: clock.advance(1.0))
            left.append(ctx.remaining())
            ctx.step("think more", lambda: clock.advance(5.0))
            left.append(ctx.remaining())
            ctx.call(tool, ADA, "again", key="welcome:8")

    rt = runtime(rng=Dice(0.0))
    run = rt.run(one_turn, id="w", crash=dk.CrashAt("send_email", "effect_done", attempt=2))
    assert run.crash is not None
    assert left == [10.0]
    clock.advance(1.0)
    rt.recover()
    assert left == [10.0, 3.0, 3.0, 2.0, 0.0]
    with pytest.raises(dk.DeadlineExceeded) as ended:
        _ = run.result
    assert (ended.value.level, ended.value.name) == ("turn", "answer")
    assert [row["key"] for row in mailbox.effects()] == ["welcome:7"]


def test_L091_a_resume_grants_no_new_turn(runtime, clock):
    """A turn entered again after a crash has what was left, not its full length."""
    left = []

    @dk.workflow(name="case resumed turn")
    def resumed_turn(ctx):
        with ctx.turn("think", timeout=10):
            ctx.step("first", lambda: clock.advance(4.0))
            left.append(ctx.remaining())
            ctx.step("second", lambda: None)

    rt = runtime()
    for _ in range(2):
        run = rt.run(resumed_turn, id="t", crash=dk.CrashAt("second", "before_step"))
        clock.advance(3.0)
    assert run.status == "completed"
    assert left == [6.0, 3.0]


def test_L094_a_stop_that_waits_already_is_not_turned_into_a_time_out(runtime, mailbox, clock):
    """No time left and a stop pending: stopped by the user, no tool, no retry."""
    rt, other = runtime(), runtime()

    @dk.workflow(name="case stop and limit")
    def stop_and_limit(ctx):
        with ctx.turn("send", timeout=10):
            other.cancel("w", by="user")
            clock.advance(20.0)
            return ctx.call(mail_tool(mailbox), ADA, "hello", key="welcome:7")

    run = rt.run(stop_and_limit, id="w")
    assert run.status == "cancelled"
    assert "limit" not in list(run.history()["kind"])
    assert mailbox.requests() == []
    assert clock.sleeps == []


def test_L094_a_stop_that_comes_with_the_intent_stops_before_the_sending(runtime, mailbox):
    """The commit of the intent brings the stop: the tool is not called, and the record says so."""
    rt, other = runtime(), runtime()

    @dk.workflow(name="case stop before")
    def stop_before(ctx):
        other.cancel("w", by="user")
        return ctx.call(mail_tool(mailbox, "opaque"), ADA, "hello", key="welcome:7")

    run = rt.run(stop_before, id="w")
    assert run.status == "cancelled"
    assert outcomes(run) == {"welcome:7": "not_executed"}
    assert mailbox.requests() == []


@pytest.mark.parametrize("effect", ["idempotent", "opaque"])
def test_L095_a_result_that_meets_its_limit_is_completed_or_unknown(mailbox, clock, effect):
    """A thousand times around the very instant of the limit: nothing is ever lost."""
    dice = random.Random(3)
    mailbox.latency = 0.0
    mailbox.profile = PROFILES[effect]
    tool = mail_tool(
        mailbox, effect, timeout=1.0,
        after=lambda: clock.advance(dice.choice([0.999999, 1.0, 1.000001])),
    )  # fmt: skip

    @dk.workflow(name="case instant")
    def instant(ctx, first):
        for number in range(first, first + 10):
            ctx.call(tool, ADA, "hello", key=f"{number}")

    kinds = Counter()
    with dk.Runtime(":memory:", clock=clock, rng=Dice(0.5)) as rt:
        for first in range(0, 1000, 10):
            run = rt.run(instant, first, id=f"{first}")
            for _ in range(10):
                assert set(outcomes(run).values()) <= {"completed", "unknown"}
                if run.status == "completed":
                    break
                rt.recover()
            assert run.status == "completed"
            assert set(outcomes(run).values()) == {"completed"}
            kinds.update(run.history()["kind"])
    assert kinds["result"] + kinds["late_reply"] == 1000
    assert min(kinds["result"], kinds["late_reply"]) > 200
    assert Counter(row["key"] for row in mailbox.effects()) == {str(n): 1 for n in range(1000)}


def test_L095_real_threads_that_race_their_limit_lose_neither_result_nor_stop(real_mailbox):
    """Completed with the result, or unknown; a user stop of the same instant is never lost."""
    numbers = range(120)
    stopped = []
    with dk.Runtime(":memory:", lease=60.0) as rt:
        for number in numbers:
            at_limit = threading.Event()
            tool = mail_tool(
                real_mailbox, "opaque", timeout=0.002, before=lambda e=at_limit: e.wait(0.0015),
                after=lambda n=number: rt.cancel(str(n)),
            )  # fmt: skip

            @dk.workflow(name="case real race")
            def racing(ctx, number):
                ctx.call(tool, ADA, "hello", key=f"{number}")  # noqa: B023 - run at once
                ctx.step("after", lambda: stopped.append(number))

            rt.run(racing, number, id=str(number))
        for _ in numbers:
            rt.recover()
            if set(rt.runs()["status"]) == {"cancelled"}:
                break
            threading.Event().wait(0.02)
        for number in numbers:
            run = rt.get(str(number))
            assert run.status == "cancelled"
            assert outcomes(run) == {str(number): "completed"}
    assert stopped == []
    assert Counter(row["key"] for row in real_mailbox.effects()) == {str(n): 1 for n in numbers}


@pytest.mark.parametrize("effect", ["opaque", "idempotent"])
def test_L097_a_thread_that_goes_on_after_its_limit_is_the_only_attempt(
    tmp_path, real_mailbox, effect
):
    """Unknown at once; when the abandoned thread succeeds, completed; no second one overlaps."""
    go, sent, alive = threading.Event(), threading.Event(), []
    overlaps = []

    def hold():
        alive.append(True)
        overlaps.append(len(alive))
        assert go.wait(10)

    def done():
        alive.pop()
        sent.set()

    class Letting(dk.SystemClock):
        """Waits are cut short, and the tool is let go when the driver waits."""

        def sleep(self, seconds):
            super().sleep(min(seconds, 0.01))

    tool = mail_tool(real_mailbox, effect, before=hold, after=done, timeout=0.03,
                     retry=dk.Retry(initial=0.01, attempts=3))  # fmt: skip
    with dk.Runtime(tmp_path / "run.db", clock=Letting(), settle=0.05) as rt:
        run = rt.run(one_call(tool), id="w", deadline=None)
        assert run.status == "needs_decision"
        assert outcomes(run) == {"welcome:7": "unknown"}
        assert real_mailbox.effects() == []
        go.set()
        assert sent.wait(10)
        for _ in range(100):
            rt.recover()
            if run.status == "completed":
                break
            threading.Event().wait(0.01)
        assert run.result == {"id": "email-1"}
        assert outcomes(run) == {"welcome:7": "completed"}
    assert overlaps == [1]
    assert len(real_mailbox.effects()) == len(real_mailbox.requests()) == 1


def test_L097_a_full_disk_does_not_lose_the_late_reply(runtime, mailbox, clock, monkeypatch):
    """The evidence is let go only when it is on disk."""
    tool = mail_tool(mailbox, "opaque", after=lambda: clock.advance(10.0), timeout=3.0)
    rt = runtime()
    run = rt.run(one_call(tool), id="w")
    with monkeypatch.context() as patched:

        def full(*_):
            raise dk.StoreError("no room is left")

        patched.setattr(rt._store, "add_command", full)
        with pytest.raises(dk.StoreError, match="no room"):
            rt.recover()
    rt.recover()
    assert run.result == {"id": "email-1"}
    assert len(mailbox.effects()) == len(mailbox.requests()) == 1


def test_L097_a_late_reply_that_contradicts_a_persons_word_is_shown_and_nothing_sent(
    runtime, mailbox, clock
):
    """'Not executed', says a person; the reply arrives; both are kept, and no second mail goes."""
    tool = mail_tool(mailbox, "opaque", after=lambda: clock.advance(10.0), timeout=3.0)
    rt = runtime()
    run = rt.run(one_call(tool), id="w")
    assert run.status == "needs_decision"
    rt.resolve("w", "welcome:7", "not_executed", by="Bea")
    for _ in range(3):
        rt.recover()
        assert run.status == "needs_decision"
        assert "two answers about send_email 'welcome:7'" in run.reason
    (late,) = payloads(run, "late_reply")
    assert late["conflict"]["value"] == {"id": "email-1"}
    assert len(mailbox.effects()) == len(mailbox.requests()) == 1


def test_L097_a_reply_that_comes_while_the_next_attempt_waits_for_it_stops_that_attempt(
    tmp_path, real_mailbox
):
    """The abandoned thread is still alive when a person says 'not executed'; then it succeeds."""
    go = threading.Event()
    tool = mail_tool(real_mailbox, "opaque", before=lambda: go.wait(10), timeout=0.03)
    with dk.Runtime(tmp_path / "run.db", settle=10.0) as rt:
        run = rt.run(one_call(tool), id="w")
        assert run.status == "needs_decision"
        rt.resolve("w", "welcome:7", "not_executed", by="Bea")
        timer = threading.Timer(0.03, go.set)
        timer.start()
        rt.recover()
        timer.join()
        assert run.status == "needs_decision"
        assert "two answers" in run.reason
    assert len(real_mailbox.effects()) == len(real_mailbox.requests()) == 1


def test_L097_on_a_virtual_clock_a_reply_after_the_limit_is_late_evidence(runtime, mailbox, clock):
    """The same without a thread: the attempt is judged unknown first, then settled by its reply."""
    tool = mail_tool(mailbox, "opaque", after=lambda: clock.advance(10.0), timeout=3.0)
    rt = runtime()
    run = rt.run(one_call(tool), id="w")
    (attempt,) = payloads(run, "attempt")
    assert attempt["judged"] == "unknown"
    rt.recover()
    (late,) = payloads(run, "late_reply")
    assert late["value"] == run.result == {"id": "email-1"}
    assert outcomes(run) == {"welcome:7": "completed"}
    assert len(mailbox.effects()) == len(mailbox.requests()) == 1


def test_L098_a_tool_that_blocks_past_its_limit_is_reported_with_its_real_duration(
    runtime, mailbox, clock
):
    """Three seconds under a limit of one: over time, says the record, and the result is kept."""
    mailbox.latency = 0.0
    tool = mail_tool(mailbox, after=lambda: clock.advance(3.0), timeout=1.0)
    run = runtime().run(one_call(tool), id="w")
    (attempt,) = payloads(run, "attempt")
    assert "within 3 s" in attempt["error"]["message"]
    (late,) = payloads(run, "late_reply")
    assert late["value"] == run.result == {"id": "email-1"}
    assert len(mailbox.effects()) == 1


@pytest.mark.parametrize("effect", ["idempotent", "opaque"])
def test_L101_a_cancelled_run_is_not_cancelled_before_its_tool_is_known_about(
    runtime, mailbox, clock, effect
):
    """'Requested, still running', then unknown or completed; never cancelled on a mere wish."""
    rt, other = runtime(), runtime()
    seen = []

    def stop_in_the_middle():
        asked = other.cancel("w", by="user")
        seen.extend([asked.status, asked.note, *outcomes(asked).values()])

    mailbox.profile = PROFILES[effect]
    mailbox.plan = [Fault("reply_lost", request=1)]
    tool = mail_tool(mailbox, effect, before=stop_in_the_middle, timeout=5.0)
    run = rt.run(one_call(tool), id="w")
    assert seen[:3] == ["running", "cancel requested; the next drive honours it", "unknown"]
    if effect == "opaque":
        assert run.status == "needs_decision"
        assert outcomes(run) == {"welcome:7": "unknown"}
        rt.resolve("w", "welcome:7", "completed", result={"id": "email-1"}, by="Bea")
        rt.recover()
    assert run.status in ("cancelled", "completed")
    assert outcomes(run) == {"welcome:7": "completed"}
    assert len(mailbox.effects()) == 1


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_L103_a_wall_clock_that_jumps_moves_no_wait_and_no_limit(runtime, mailbox, clock, jump):
    """During a call and during a waiting retry: the same waits, the same end, nothing negative."""

    def drive(number, by):
        mailbox.fresh(mailbox.folder.parent / f"jump-{number}")
        mailbox.plan = [Fault("rate_limited", request=1, retry_after=2.0)]

        class Jumping(dk.ManualClock):
            """The wall clock is corrected in the middle of each wait."""

            def sleep(self, seconds):
                super().sleep(seconds)
                self.jump_wall(by)

        hands = Jumping()
        mailbox.clock = hands
        tool = mail_tool(mailbox, before=lambda: hands.jump_wall(by), timeout=5.0)
        rt = runtime(path=mailbox.folder / "run.db", clock=hands)
        run = rt.run(one_call(tool), id="w", deadline=30.0)
        left = [p["left"]["session"] for p in run.history()["payload"] if "left" in p]
        return run.status, hands.sleeps, left, hands.monotonic(), len(mailbox.effects())

    calm, jumped = drive("calm", 0.0), drive("jumped", jump)
    assert jumped == calm
    assert calm[0] == "completed"
    assert calm[4] == 1
    assert min(calm[2]) >= 0.0


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_L103_a_wall_clock_that_jumps_makes_no_absence_final(runtime, mailbox, clock, jump):
    """A settling time in the life of one driver is counted by the hand that cannot jump."""
    mailbox.profile = PROFILES["queryable"]
    mailbox.plan = [Fault("request_late", request=1, seconds=15.0)]
    asked = []

    def probe(call):
        if not asked:
            clock.jump_wall(jump)
            mailbox.clock = still
        asked.append(clock.monotonic())
        found = mailbox.find(call.key)
        return dk.Absent if found is None else dk.Found(found)

    class Still:
        """The service's own clock, which nobody has corrected."""

        def __init__(self):
            self.gap = clock.now() - clock.monotonic()

        def now(self):
            """UTC seconds by a clock of its own."""
            return self.gap + clock.monotonic()

        def sleep(self, seconds):
            """Time passes for everybody."""
            clock.sleep(seconds)

    still = Still()
    tool = mail_tool(mailbox, "queryable", probe=probe, settles_after=20.0, timeout=3.0)
    run = runtime().run(one_call(tool), id="w", deadline=600.0)
    assert run.status == "completed"
    assert len(mailbox.effects()) == len(mailbox.requests()) == 1


@pytest.mark.parametrize("settles_after", [0.1, 0.3, 2.7, 10.1])
def test_L103_a_settling_time_between_two_ticks_of_a_clock_still_ends(
    runtime, mailbox, clock, settles_after
):
    """A wait smaller than a clock's tick is not asked for without end."""
    mailbox.profile = PROFILES["queryable"]
    probes = Counter()

    def probe(call):
        probes[call.key] += 1
        assert probes[call.key] < 10, "asked without end"
        return dk.Absent

    tool = mail_tool(mailbox, "queryable", probe=probe, settles_after=settles_after)
    mailbox.latency = 0.0
    crash = dk.CrashAt("send_email", "intent_saved")
    rt = runtime()
    for number in range(40):
        clock.advance(0.0517)
        workflow = one_call(tool, key=str(number), name="case ticks")
        assert rt.run(workflow, id=str(number), crash=crash).crash is not None
        clock.advance(0.0137)
        assert rt.resume(str(number)).status == "completed"
    assert len(mailbox.effects()) == 40


def test_L103_a_recovery_that_waits_for_others_ends_between_two_ticks_too(runtime, mailbox, clock):
    """``recover(wait=…)`` comes back at its end, wherever the clock stood at its beginning."""
    rt, other = runtime(lease=9000.0), runtime()
    sleeps = Counter()

    class Counting(dk.ManualClock):
        """Notices a wait that moves nothing."""

        def sleep(self, seconds):
            before = self.monotonic()
            super().sleep(seconds)
            sleeps[self.monotonic() == before] += 1
            assert not sleeps[True], "asked without end"

    clock.__class__ = Counting

    def poll():
        for _ in range(40):
            clock.advance(0.0517)
            for wait in (0.1, 0.3, 0.7, 1.1):
                assert other.recover_rows(wait)[0][1] == "owned"

    run = rt.run(one_call(mail_tool(mailbox, before=poll)), id="w")
    assert run.status == "completed"
    assert len(mailbox.effects()) == 1


# -- L100: a service that can be asked to give up ------------------------------------------


def cancellable(name, mail, **declared):
    """A slow mail tool whose service can be asked to give up, and what it was asked."""
    asked = []

    @dk.tool(name=f"l100_{name}", timeout=2.0, cancel=lambda call: asked.append(call.key),
             **declared)  # fmt: skip
    def send(call, to):
        return mail.send(to, "Hi", "Hello", key=call.key, timeout=10)

    @dk.workflow(name=f"l100_{name}")
    def one_mail(ctx, to):
        return ctx.call(send, to, key="hi")

    return asked, one_mail


def test_L100_a_call_that_is_left_at_its_limit_is_cancelled_at_its_service_once(tmp_path):
    """The record says so, and the outcome stays unknown until an answer comes."""
    clock = dk.ManualClock()
    mail = Mailbox(tmp_path / "mail", clock=clock, plan=[Fault("request_late", seconds=5)])
    asked, workflow = cancellable("limit", mail)
    rt = dk.Runtime(tmp_path / "runs.db", clock=clock, world=mail)
    run = rt.run(workflow, "ada@example.org", id="l")
    assert asked == ["hi"]
    table = run.history()
    told = table[table["kind"] == "attempt"]["payload"].iloc[0]
    assert told["cancel"] == "requested"
    assert run.status == "needs_decision"
    assert run.operations()["outcome"].tolist() == ["unknown"]
    clock.advance(60)
    assert len(mail.effects()) == 1  # cancelled, and done all the same
    rt.resolve("l", "hi", "completed", result={"id": "email-1"}, by="Grace")
    assert rt.resume("l").status == "completed"


def test_L100_a_caller_who_is_interrupted_cancels_at_the_service_once(tmp_path):
    """The interrupt passes through, and the operation is unknown."""
    clock = dk.ManualClock()
    mail = Mailbox(tmp_path / "mail", clock=clock)

    def interrupted(point, key):
        if point == "received":
            raise KeyboardInterrupt

    asked, workflow = cancellable("interrupt", mail)
    rt = dk.Runtime(tmp_path / "runs.db", clock=clock)
    mail.listen(interrupted)
    with pytest.raises(KeyboardInterrupt):
        rt.run(workflow, "ada@example.org", id="i")
    assert asked == ["hi"]
    assert rt.get("i").operations()["outcome"].tolist() == ["unknown"]


def test_L100_a_cancel_request_reaches_the_service_of_an_unknown_call_once(tmp_path):
    """However often the run is looked at again; its answer is no proof."""
    clock = dk.ManualClock()
    mail = Mailbox(tmp_path / "mail", clock=clock)
    asked, workflow = cancellable("request", mail)
    rt = dk.Runtime(tmp_path / "runs.db", clock=clock, world=mail, owner="one")
    rt.run(workflow, "ada@example.org", id="r", crash=dk.CrashAt("l100_request", "effect_done"))
    rt = dk.Runtime(tmp_path / "runs.db", clock=clock, world=mail, owner="two")
    clock.advance(100)
    rt.cancel("r")
    for _ in range(3):
        assert rt.resume("r").status == "needs_decision"
    assert asked == ["hi"]
    assert len(mail.effects()) == 1


def test_L100_a_service_that_cannot_cancel_changes_nothing(tmp_path):
    """An error of the asking is kept, and is no error of the call."""
    clock = dk.ManualClock()
    mail = Mailbox(tmp_path / "mail", clock=clock, plan=[Fault("request_late", seconds=5)])

    def no(call):
        raise RuntimeError("not offered")

    @dk.tool(name="l100_no", timeout=2.0, cancel=no)
    def send(call, to):
        return mail.send(to, "Hi", "Hello", key=call.key, timeout=10)

    @dk.workflow(name="l100_no")
    def one_mail(ctx, to):
        return ctx.call(send, to, key="hi")

    run = dk.Runtime(tmp_path / "runs.db", clock=clock, world=mail).run(one_mail, "a@b.c", id="n")
    table = run.history()
    told = table[table["kind"] == "attempt"]["payload"].iloc[0]
    assert told["cancel"] == "requested; RuntimeError: not offered"
    assert (run.status, run.why) == ("needs_decision", "unknown")

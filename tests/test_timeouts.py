"""The law of the three levels: session, turn, call.

What ``tests/test_deadline.py`` says of pure numbers is said here of real runs: every limit
inherits, the level that is named is the one that ran out, cancelling asks, abandoning waits, and no
clock, crash or sleeping computer ever adds a second. The ledger of the mailbox judges every effect.
"""

import random
import threading
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

import durakit as dk
from durakit.mail import Mailbox

ADA = "ada@example.org"
HOUR = 3600.0

# A busy machine may be slow; that is no failure.
laws = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture
def mailbox(tmp_path, clock):
    """The outside world, on the same clock, answering at once."""
    box = Mailbox(tmp_path / "world", clock=clock, latency=0.0)
    yield box
    box.close()


def payloads(run, kind):
    """The payloads of the run's entries of one kind."""
    return list(run.history().query("kind == @kind")["payload"])


def outcomes(run):
    """Key → outcome, as the runtime believes."""
    table = run.operations()
    return dict(zip(table["key"], table["outcome"], strict=True))


def fired(run):
    """Level and name of the limit that ended a failed run."""
    with pytest.raises(dk.DeadlineExceeded) as ended:
        _ = run.result
    return ended.value.level, ended.value.name


# -- limits of any depth, against a model on paper -------------------------------------------------

#: A level that is entered: its limit, and the seconds of work in it before what comes next.
levels = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 8)), max_size=4)


def on_paper(session, turns, call):
    """What must happen, in whole seconds.

    Returns (level, name) of the tightest limit, what the call has (None: no limit), and whether the
    limit fires before the call. Of two limits that end together the outer one is named.
    """
    now, ends = 0, [] if session is None else [(session, "session", "session")]
    for number, (limit, work) in enumerate(turns):
        ends.append((now + limit, "turn", f"turn {number}"))
        if work and min(end for end, *_ in ends) <= now:
            break
        now += work
    if ends and min(end for end, *_ in ends) <= now:
        first = min(ends, key=lambda one: one[0])
        return first[1:], 0, True
    if call is not None:
        ends.append((now + call, "call", "call"))
    if not ends:
        return None, None, False
    first = min(ends, key=lambda one: one[0])
    return first[1:], first[0] - now, False


#: Operations belong to the account, so each run has a key of its own.
numbers = count(1)


class Nest:
    """A workflow of nested turns around one call that takes ``takes`` seconds."""

    def __init__(self, clock, turns, call, takes):
        self.clock, self.turns, self.takes, self.seen = clock, turns, takes, []
        self.name = f"nest-{next(numbers)}"
        retry = dk.Retry(attempts=1)
        self.tool = dk.tool(self.work, effect="opaque", timeout=call, name="call", retry=retry)

    def work(self, call):
        """Take time, whatever the limit; note what was left at the beginning and at the end."""
        self.seen.append(call.remaining())
        self.clock.advance(self.takes)
        self.seen.append(call.remaining())
        return "done"

    def run(self, ctx, level=0):
        """Enter one turn after the other, work in each, and call inside the last."""
        if level == len(self.turns):
            ctx.call(self.tool, key=self.name)
            return
        limit, work = self.turns[level]
        with ctx.turn(f"turn {level}", timeout=limit):
            if work:
                ctx.step(f"work {level}", self.clock.advance, work)
            self.run(ctx, level + 1)


@pytest.fixture(scope="module")
def memory():
    """One runtime for many small runs."""
    clock = dk.ManualClock()
    with dk.Runtime(":memory:", clock=clock, rng=random.Random(0)) as rt:
        yield rt, clock


@laws
@given(
    session=st.none() | st.integers(1, 40),
    turns=levels,
    call=st.none() | st.integers(1, 20),
    takes=st.integers(0, 25),
)
def test_a_call_has_the_least_of_all_enclosing_remainders_and_that_level_is_named(
    memory, session, turns, call, takes
):
    """However limits nest: exact seconds, never below zero, the right name, or not begun at all."""
    rt, clock = memory
    who, has, too_late = on_paper(session, turns, call)
    nest = Nest(clock, turns, call, takes)
    nested = dk.workflow(lambda ctx: nest.run(ctx), name="timeouts nested")
    run = rt.run(nested, id=nest.name, deadline=session)
    if too_late:
        assert nest.seen == []
        assert (run.status, fired(run)) == ("failed", who)
        return
    assert nest.seen == [has, None if has is None else max(0, has - takes)]
    (intent,) = payloads(run, "intent")
    enclosed = call is not None and has < call
    told = {"asked": call, "to": has, "level": who[0], "name": who[1]} if enclosed else None
    assert intent.get("shortened") == told
    if call is None or takes <= has:
        assert run.status == "completed"
        return
    # Only a tool with a limit of its own can be left.
    assert outcomes(run) == {nest.name: "unknown"}
    (attempt,) = payloads(run, "attempt")
    named = str(dk.DeadlineExceeded(*who, f"call gave no reply within {takes} s"))
    assert attempt["error"]["message"] == named
    rt.recover()
    assert (run.status, outcomes(run)) == ("completed", {nest.name: "completed"})


@laws
@given(turns=levels, session=st.integers(1, 40))
def test_no_remainder_that_is_saved_is_negative_or_longer_than_its_parents(memory, turns, session):
    """In every entry, from the outside to the inside, what is left only gets smaller."""
    rt, clock = memory
    nest = Nest(clock, turns, 5, 30)
    nested = dk.workflow(lambda ctx: nest.run(ctx), name="timeouts nested")
    run = rt.run(nested, id=nest.name, deadline=session)
    saved = [list(body["left"].values()) for body in run.history()["payload"] if "left" in body]
    assert saved
    for left in saved:
        assert left == sorted(left, reverse=True)
        assert min(left) >= 0


@pytest.mark.parametrize("asked", [5.000001, 30.0, 86_400.0])
def test_a_call_limit_above_its_parents_is_accepted_shortened_and_told(runtime, clock, asked):
    """It is no mistake to ask for more: the intent says how much there was, and whose it was."""
    tool = dk.tool(lambda call: call.remaining(), effect="opaque", timeout=asked, name="asks")

    @dk.workflow(name="timeouts shortened")
    def shortened(ctx):
        with ctx.turn("answer", timeout=9.5):
            ctx.step("think", clock.advance, 4.5)
            return ctx.call(tool, key="k")

    run = runtime().run(shortened, id="s", deadline=60)
    assert run.result == 5.0
    (intent,) = payloads(run, "intent")
    assert intent["shortened"] == {"asked": asked, "to": 5.0, "level": "turn", "name": "answer"}


# -- cancelling asks -------------------------------------------------------------------------------


def test_a_cancelled_call_ends_by_itself_and_its_result_is_saved(runtime, mailbox, clock):
    """The tool keeps its remainder, its reply is saved, and only what comes next is not begun."""
    rt, other = runtime(), runtime()
    seen = []

    def send(call):
        other.cancel("c", by="user")
        clock.advance(4.0)
        seen.append(call.remaining())
        return mailbox.send(ADA, "news", "hello", key=call.key)

    tool = dk.tool(send, effect="opaque", timeout=10.0, name="timeouts send")

    @dk.workflow(name="timeouts cancelled")
    def cancelled(ctx):
        ctx.call(tool, key="first")
        ctx.call(tool, key="second")

    run = rt.run(cancelled, id="c")
    assert (run.status, seen) == ("cancelled", [6.0])
    assert outcomes(run) == {"first": "completed"}
    assert [row["key"] for row in mailbox.effects()] == ["first"]


def test_a_cancel_from_another_thread_takes_nothing_from_a_tool_at_work(tmp_path, real_mailbox):
    """Real threads: asked to stop in the middle, the call ends well and the mail stays one."""
    working, asked = threading.Event(), threading.Event()

    def send(call):
        working.set()
        assert asked.wait(10)
        assert call.remaining() > 0
        return real_mailbox.send(ADA, "news", "hello", key=call.key)

    tool = dk.tool(send, effect="opaque", timeout=30.0, name="timeouts real send")

    @dk.workflow(name="timeouts really cancelled")
    def cancelled(ctx):
        ctx.call(tool, key="first")
        ctx.call(tool, key="second")

    def stop():
        assert working.wait(10)
        with dk.Runtime(tmp_path / "run.db") as other:
            other.cancel("c", by="user")
        asked.set()

    user = threading.Thread(target=stop)
    with dk.Runtime(tmp_path / "run.db") as rt:
        user.start()
        run = rt.run(cancelled, id="c")
        user.join()
        assert run.status == "cancelled"
        assert outcomes(run) == {"first": "completed"}
    assert [row["key"] for row in real_mailbox.effects()] == ["first"]


# -- a tool that does not listen -------------------------------------------------------------------


class Stubborn:
    """A tool on a real thread that acts only when it is let go, whatever its limit says."""

    def __init__(self, mailbox, fails=False, **more):
        self.mailbox, self.fails = mailbox, fails
        self.go, self.ended = threading.Event(), threading.Semaphore(0)
        self.tool = dk.tool(self.send, effect="opaque", name="timeouts stubborn", **more)

    def send(self, call):
        """Hang, then send; or send and raise."""
        try:
            assert self.go.wait(10)
            sent = self.mailbox.send(ADA, "news", "hello", key=call.key)
            if self.fails:
                raise RuntimeError("after the effect")
            return sent
        finally:
            self.ended.release()

    def let_go(self, times=1):
        """Let every hanging attempt end, and wait until each has."""
        self.go.set()
        for _ in range(times):
            assert self.ended.acquire(timeout=10)


def recovered_until(rt, status, *runs):
    """Recover until the runs have that status: a late reply comes in when its thread is done."""
    for _ in range(200):
        rt.recover()
        if all(run.status == status for run in runs):
            return True
        threading.Event().wait(0.01)
    return False


def test_a_tool_left_at_its_turns_limit_is_unknown_under_the_turns_name(tmp_path, real_mailbox):
    """The call had more time than the turn; the thread goes on, and its late mail completes it."""
    stubborn = Stubborn(real_mailbox, timeout=30.0)

    @dk.workflow(name="timeouts left in a turn")
    def left(ctx):
        with ctx.turn("answer", timeout=0.05):
            return ctx.call(stubborn.tool, key="k")

    with dk.Runtime(tmp_path / "run.db", settle=0.05) as rt:
        run = rt.run(left, id="l", deadline=30)
        assert (run.status, outcomes(run)) == ("needs_decision", {"k": "unknown"})
        (attempt,) = payloads(run, "attempt")
        assert attempt["error"]["message"].startswith("deadline of the turn 'answer' reached")
        assert real_mailbox.requests() == []
        stubborn.let_go()
        assert recovered_until(rt, "completed", run)
        assert outcomes(run) == {"k": "completed"}
        assert run.result == {"id": "email-1"}
    assert len(real_mailbox.requests()) == len(real_mailbox.effects()) == 1


def test_an_error_that_comes_late_proves_nothing(tmp_path, real_mailbox):
    """The abandoned tool acts and then raises: still unknown, one mail, a person decides."""
    stubborn = Stubborn(real_mailbox, fails=True, timeout=0.03)
    calling = dk.workflow(lambda ctx: ctx.call(stubborn.tool, key="k"), name="timeouts late error")
    with dk.Runtime(tmp_path / "run.db", settle=0.05) as rt:
        run = rt.run(calling, id="e")
        stubborn.let_go()
        for _ in range(5):
            rt.recover()
            threading.Event().wait(0.01)
        assert (run.status, outcomes(run)) == ("needs_decision", {"k": "unknown"})
        rt.resolve("e", "k", "completed", result={"id": "email-1"}, by="Bea")
        rt.recover()
        assert run.status == "completed"
    assert len(real_mailbox.requests()) == len(real_mailbox.effects()) == 1


def test_several_tools_left_at_once_each_settle_their_own_operation(tmp_path, real_mailbox):
    """Three runs, three threads that hang, three late replies: one mail for each key."""
    stubborn = Stubborn(real_mailbox, timeout=0.03)
    calling = dk.workflow(
        lambda ctx, key: ctx.call(stubborn.tool, key=key), name="timeouts several"
    )
    with dk.Runtime(tmp_path / "run.db", settle=0.05) as rt:
        runs = [rt.run(calling, key, id=key) for key in ("a", "b", "c")]
        assert {run.status for run in runs} == {"needs_decision"}
        stubborn.let_go(3)
        assert recovered_until(rt, "completed", *runs)
        results = {run.result["id"] for run in runs}
    assert len(results) == 3
    assert sorted(row["key"] for row in real_mailbox.effects()) == ["a", "b", "c"]
    assert len(real_mailbox.requests()) == 3


def test_a_tool_without_a_limit_of_its_own_is_never_left(runtime, mailbox, clock):
    """It runs in the caller's thread past the turn; its reply is saved, and nothing new begins."""

    def send(call):
        sent = mailbox.send(ADA, "news", "hello", key=call.key)
        clock.advance(20.0)
        return sent

    tool = dk.tool(send, effect="opaque", name="timeouts no limit")

    @dk.workflow(name="timeouts past the turn")
    def past(ctx):
        with ctx.turn("answer", timeout=10):
            ctx.call(tool, key="first")
            ctx.call(tool, key="second")

    run = runtime().run(past, id="p")
    assert (run.status, fired(run)) == ("failed", ("turn", "answer"))
    assert outcomes(run) == {"first": "completed"}
    assert [row["key"] for row in mailbox.effects()] == ["first"]


# -- two hands that move apart ---------------------------------------------------------------------


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_corrected_wall_clock_moves_no_limit_of_a_living_process(runtime, clock, jump):
    """In a turn, in a step, in a call, between them: seconds are counted by the other hand."""
    seen = []

    def jump_and_work():
        clock.jump_wall(jump)
        clock.advance(2.0)

    tool = dk.tool(
        lambda call: [clock.jump_wall(jump), clock.advance(1.0), call.remaining()][-1],
        effect="opaque", timeout=5.0, name="timeouts jumping call",
    )  # fmt: skip

    @dk.workflow(name="timeouts jumping turn")
    def jumping(ctx):
        with ctx.turn("answer", timeout=10):
            clock.jump_wall(jump)
            seen.append(ctx.remaining())
            ctx.step("work", jump_and_work)
            seen.append(ctx.remaining())
            seen.append(ctx.call(tool, key="k"))
            seen.append(ctx.remaining())

    run = runtime().run(jumping, id="j", deadline=60)
    assert run.status == "completed"
    assert seen == [10.0, 8.0, 4.0, 7.0]


@pytest.mark.parametrize(
    ("jump", "left"),
    [
        pytest.param(0.0, (6.0, 26.0), id="restarted at once"),
        pytest.param(4.0, (2.0, 22.0), id="four seconds later"),
        pytest.param(-HOUR, (6.0, 26.0), id="the wall clock was set back"),
        pytest.param(5.5, (0.5, 20.5), id="half a second before the turn's end"),
        pytest.param(HOUR, (0.0, 0.0), id="the wall clock was set forward, or it is long over"),
    ],
)
def test_after_a_restart_each_level_has_the_least_of_what_was_saved_and_what_is_left(
    runtime, clock, jump, left
):
    """Session and turn each by themselves: min(saved remainder, saved end - now), not negative."""
    seen = []

    @dk.workflow(name="timeouts restarted")
    def restarted(ctx):
        with ctx.turn("answer", timeout=10):
            ctx.step("first", clock.advance, 4.0)
            seen.append(ctx.remaining())
            with pytest.raises(dk.DeadlineExceeded) if left[0] == 0 else threading.Lock():
                ctx.step("second", lambda: None)
        seen.append(ctx.remaining())

    rt = runtime()
    run = rt.run(restarted, id="r", deadline=30, crash=dk.CrashAt("second", "before_step"))
    assert (run.crash is not None, seen) == (True, [6.0])
    clock.jump_wall(jump)  # the process is dead, so only the wall clock means anything
    rt.recover()
    assert run.status == "completed"
    assert seen[1:] == list(left)


@pytest.mark.parametrize("jump", [2.5, -HOUR, HOUR])
def test_a_waiting_run_wakes_with_no_more_than_it_had(runtime, clock, jump):
    """A timer is wall time, a budget only shrinks: whatever the clock did while nobody drove."""
    seen = []

    @dk.workflow(name="timeouts waiting")
    def waiting(ctx):
        seen.append(ctx.remaining())
        ctx.sleep(20.0)
        seen.append(ctx.remaining())

    rt = runtime()
    run = rt.run(waiting, id="w", deadline=100)
    assert run.status == "waiting"
    clock.jump_wall(jump)
    clock.advance(20.0)
    rt.recover()
    if jump < 0:  # an hour is missing: the timer waits for its moment
        assert run.status == "waiting"
        clock.advance(HOUR)
        rt.recover()
    assert run.status == "completed"
    assert 0.0 <= seen[-1] <= 80.0


# -- the computer sleeps ---------------------------------------------------------------------------


def test_a_computer_that_slept_fires_nothing_early_and_stays_expired_after_a_restart(
    runtime, clock
):
    """The monotonic hand stood still. In process the turn goes on; after a crash it is over."""
    seen = []

    @dk.workflow(name="timeouts slept")
    def slept(ctx):
        with ctx.turn("answer", timeout=10):
            ctx.step("close the lid", clock.jump_wall, 9 * HOUR)
            seen.append(ctx.remaining())
            ctx.step("go on", clock.advance, 2.0)
            seen.append(ctx.remaining())
            ctx.step("last", lambda: None)

    rt = runtime(lease=30 * HOUR)
    run = rt.run(slept, id="s", deadline=60, crash=dk.CrashAt("last", "before_step"))
    assert (run.crash is not None, seen) == (True, [10.0, 8.0])
    rt.recover()
    assert (run.status, fired(run)) == ("failed", ("session", "session"))
    clock.jump_wall(-9 * HOUR)
    rt.recover()
    assert (run.status, fired(run)) == ("failed", ("session", "session"))


def test_a_limit_that_fired_is_an_entry_and_fires_again_at_the_same_place(runtime, clock):
    """A replay after the clock was put right raises where the first life raised, and goes on."""
    lives, caught = count(1), []

    @dk.workflow(name="timeouts fired")
    def firing(ctx):
        try:
            with ctx.turn("answer", timeout=10):
                ctx.step("long", clock.advance, 11.0)
                ctx.step("too late", lambda: caught.append("ran"))
        except dk.DeadlineExceeded as error:
            caught.append((next(lives), error.level, error.name))
        ctx.step("apologise", lambda: None)

    rt = runtime()
    run = rt.run(firing, id="f", crash=dk.CrashAt("apologise", "before_step"))
    clock.jump_wall(-HOUR)
    rt.recover()
    assert run.status == "completed"
    assert caught == [(1, "turn", "answer"), (2, "turn", "answer")]
    assert list(run.history()["kind"]).count("limit") == 1


def test_a_lease_lost_in_sleep_is_fenced_and_the_mail_stays_one(runtime, mailbox, clock):
    """Another driver took over and settled the call; the sleeper's late append is refused."""
    sleeper, other = runtime(owner="sleeper"), runtime(owner="other")
    tries = []

    def send(call):
        tries.append(call.fence)
        sent = mailbox.send(ADA, "news", "hello", key=call.key, fence=call.fence)
        if len(tries) == 1:
            clock.jump_wall(9 * HOUR)  # asleep after the effect, before the reply is saved
            other.recover()
        return sent

    tool = dk.tool(send, effect="idempotent", window=86_400.0, timeout=10.0, name="timeouts lid")
    calling = dk.workflow(lambda ctx: ctx.call(tool, key="k"), name="timeouts asleep")
    run = sleeper.run(calling, id="z", deadline=24 * HOUR)
    assert run.note.startswith("owned elsewhere")
    assert (run.status, run.result) == ("completed", {"id": "email-1"})
    assert list(run.history()["kind"]).count("result") == 1
    assert tries == [1, 2]
    assert [row["outcome"] for row in mailbox.requests()] == ["delivered", "replayed"]
    assert len(mailbox.effects()) == 1


# -- machines --------------------------------------------------------------------------------------


class Rounds(BaseModel):
    """How many rounds a machine has done."""

    done: int = 0


def machine_of(clock, seen, rounds=2):
    """A machine of rounds, each with a turn of 10 s: a step of 3 s, then a call of 2 s."""
    tool = dk.tool(lambda call: clock.advance(2.0), effect="none", name="timeouts think")

    @dk.machine(state=Rounds, name="timeouts machine")
    def rounds_machine(ctx, state):
        if state.done == rounds:
            return dk.Done(state, result=state.done)
        with ctx.turn("round", timeout=10):
            seen.append((state.done, ctx.remaining()))
            ctx.step("read", clock.advance, 3.0)
            seen.append((state.done, ctx.remaining()))
            ctx.call(tool, key=f"round {state.done}")
        return Rounds(done=state.done + 1)

    return rounds_machine


#: The second transition dies in its turn, which has 7 s left and 22 s of its session.
IN_ROUND_TWO = [(0, 10.0), (0, 7.0), (1, 10.0), (1, 7.0)]


def test_a_machines_turn_is_the_transitions_own_and_its_session_goes_on(runtime, clock):
    """Every transition has a turn of its own, within what the session has left."""
    seen = []
    run = runtime().run(machine_of(clock, seen), Rounds(), id="m", deadline=14)
    assert seen == [(0, 10.0), (0, 7.0), (1, 9.0), (1, 6.0)]
    assert run.result == 2


@pytest.mark.parametrize(("gap", "left"), [(0.0, 7.0), (2.0, 5.0), (-HOUR, 7.0)])
def test_a_machine_that_crashed_in_a_turn_goes_on_with_that_turns_end(runtime, clock, gap, left):
    """The transition is entered anew, the turn is not: the end saved with its intent stands."""
    seen = []
    rt = runtime()
    crash = dk.CrashAt("timeouts think", "intent_saved", occurrence=2)
    run = rt.run(machine_of(clock, seen), Rounds(), id="m", deadline=30, crash=crash)
    assert (run.crash is not None, seen) == (True, IN_ROUND_TWO)
    clock.jump_wall(gap)
    rt.recover()
    assert seen[4:] == [(1, left), (1, left - 3.0)]
    assert run.result == 2
    ends = [name for body in run.history()["payload"] for name in body.get("until", {})]
    assert ends == ["turn round of transition 1", "turn round of transition 2"]


def test_a_turn_that_left_no_entry_is_new_and_only_the_session_bounds_it(runtime, clock):
    """A machine's steps wait for their checkpoint: nothing of that turn was saved, nor its end."""
    seen = []
    rt = runtime()
    crash = dk.CrashAt("timeouts think", "before_intent", occurrence=2)
    run = rt.run(machine_of(clock, seen), Rounds(), id="m", deadline=30, crash=crash)
    assert (run.crash is not None, seen) == (True, IN_ROUND_TWO)
    clock.jump_wall(13.0)
    rt.recover()
    assert seen[4:] == [(1, 9.0), (1, 6.0)]
    assert run.result == 2


def test_a_machine_whose_session_ended_while_nobody_drove_it_fails_by_that_name(runtime, clock):
    """Nothing new is begun after the restart, and the last checkpoint stands."""
    seen = []
    rt = runtime()
    crash = dk.CrashAt("timeouts think", "before_intent", occurrence=2)
    run = rt.run(machine_of(clock, seen), Rounds(), id="m", deadline=30, crash=crash)
    assert run.crash is not None
    clock.jump_wall(HOUR)
    rt.recover()
    assert (run.status, fired(run)) == ("failed", ("session", "session"))
    assert seen[4:] == [(1, 0.0)]
    assert run.at(len(run.history())).done == 1

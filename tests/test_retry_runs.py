"""Retry inside a run: what the journal keeps of it, and what a crash does not start anew."""

import random
from pathlib import Path

import pytest

import durakit as dk
from durakit.mail import Fault, Mailbox

ADA = "ada@example.org"


class Lab:
    """A mail service and a runtime on one virtual clock."""

    def __init__(self, folder: Path, **plan: object) -> None:
        self.clock = dk.ManualClock()
        self.mail = Mailbox(folder / "mail", latency=0, clock=self.clock, **plan)
        self.path = folder / "runs.db"
        self.lives = 0
        self.runtime = self.open()

    def open(self) -> dk.Runtime:
        """Open the file as a new process would."""
        self.lives += 1
        self.runtime = dk.Runtime(
            self.path, clock=self.clock, world=self.mail, owner=f"life {self.lives}",
            rng=random.Random(11), lease=0.5,
        )  # fmt: skip
        return self.runtime


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """Nothing has been sent yet."""
    return Lab(tmp_path)


def busy(times: int, retry_after: float | None = None) -> list[Fault]:
    """The first requests are refused with 429."""
    return [Fault("rate_limited", request=n, retry_after=retry_after) for n in range(1, times + 1)]


def sender(lab: Lab, name: str, **declared: object) -> tuple[dk.Tool, dk.Workflow]:
    """A tool that sends one mail, and the workflow around it."""
    declared.setdefault("effect", "idempotent")

    @dk.tool(name=f"retry_runs_{name}", **declared)
    def send(call: dk.Call, to: str) -> dict:
        return lab.mail.send(to, "Hi", "Hello", key=call.key)

    @dk.workflow(name=f"retry_runs_{name}")
    def one_mail(ctx: dk.Context, to: str) -> dict:
        return ctx.call(send, to, key=f"hi:{to}")

    return send, one_mail


def attempts_of(run: dk.Run) -> list[dict]:
    """The payloads of the failed attempts."""
    table = run.history()
    return list(table[table["kind"] == "attempt"]["payload"])


def crash_in_the_wait(lab: Lab, seconds_in: float) -> None:
    """From now on, the next sleep stops half way as if the process were killed."""
    sleep = lab.clock.sleep

    def killed(seconds: float) -> None:
        lab.clock.sleep = sleep
        lab.clock.advance(min(seconds, seconds_in))
        raise KeyboardInterrupt

    lab.clock.sleep = killed


def test_drawn_waits_their_bounds_and_what_remains_are_journal_entries(lab):
    """Everything that decided is there: the draw can be repeated from the seed alone."""
    lab.mail.plan = busy(3, retry_after=0.25)
    policy = dk.Retry(1.0, 8.0, 5)
    run = lab.runtime.run(sender(lab, "told", retry=policy)[1], ADA, id="told", deadline=60)
    rng = random.Random(11)
    drawn = [policy.wait(n, rng.random(), retry_after=0.25) for n in (1, 2, 3)]
    told = attempts_of(run)
    assert [entry["then"]["seconds"] for entry in told] == pytest.approx(drawn)
    assert [entry["then"]["bound"] for entry in told] == [1.0, 2.0, 4.0]
    assert [entry["retry_after"] for entry in told] == [0.25] * 3
    assert [entry["left"]["session"] for entry in told] == pytest.approx(
        [60.0, 60.0 - drawn[0], 60.0 - drawn[0] - drawn[1]]
    )
    assert len(lab.mail.effects()) == 1


def test_a_wait_that_was_drawn_and_did_not_fit_is_an_entry_too(lab):
    """What the deadline stopped: the wait, its bound, and what remained."""
    lab.mail.plan = busy(9)
    policy = dk.Retry(20.0, 20.0, 5, jitter="none")
    run = lab.runtime.run(sender(lab, "unfit", retry=policy)[1], ADA, id="u", deadline=10)
    told = run.history()["payload"].iloc[-2]
    assert told["then"] == {
        "decision": "refuse", "reason": "deadline", "drawn": 20.0, "bound": 20.0,
    }  # fmt: skip
    assert told["left"]["session"] == 10.0
    assert lab.clock.sleeps == []


def test_a_crash_in_the_middle_of_a_wait_goes_on_with_that_wait_and_that_count(lab):
    """Neither the attempts nor the wait begin anew: what is left of both is what was left."""
    lab.mail.plan = busy(9)
    policy = dk.Retry(10.0, 10.0, 3, jitter="none")
    _, workflow = sender(lab, "half", retry=policy)
    crash_in_the_wait(lab, 4.0)
    with pytest.raises(KeyboardInterrupt):
        lab.runtime.run(workflow, ADA, id="half")
    lab.clock.sleeps.clear()
    lab.open()
    lab.clock.advance(1.0)
    run = lab.runtime.resume("half")
    assert lab.clock.sleeps == pytest.approx([5.0, 10.0])
    assert len(lab.mail.requests()) == 3
    assert run.status == "failed"


def test_a_crash_does_not_forget_the_wait_that_the_next_one_is_drawn_from(lab):
    """Decorrelated jitter looks at the wait before, which is in the journal."""
    lab.mail.plan = busy(3)
    policy = dk.Retry(1.0, 1000.0, 9, jitter="decorrelated")
    _, workflow = sender(lab, "decorrelated", retry=policy)
    crash_in_the_wait(lab, 0.1)
    with pytest.raises(KeyboardInterrupt):
        lab.runtime.run(workflow, ADA, id="d")
    run = lab.open().resume("d")
    waited = [entry["then"]["seconds"] for entry in attempts_of(run)]
    second = policy.wait(2, random.Random(11).random(), waited[0])
    assert waited[1] == pytest.approx(second)
    assert second != pytest.approx(policy.wait(2, random.Random(11).random(), None))
    assert len(lab.mail.effects()) == 1


def test_the_last_chance_is_taken_once_though_a_crash_comes_in_its_wait(lab):
    """The journal knows that it is used."""
    lab.mail.plan = busy(99)
    policy = dk.Retry(6.0, 6.0, 99, jitter="none", last_chance=True)
    _, workflow = sender(lab, "chance", retry=policy)
    sleeps: list[float] = []

    def killed_in_the_second(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == 2:
            raise KeyboardInterrupt
        lab.clock.advance(seconds)

    lab.clock.sleep = killed_in_the_second
    with pytest.raises(KeyboardInterrupt):
        lab.runtime.run(workflow, ADA, id="c", deadline=10)
    run = lab.open().resume("c")
    told = [entry["then"].get("reason") for entry in attempts_of(run)]
    assert told == ["backoff", "last chance"]
    assert sleeps[2] == pytest.approx(sleeps[1])
    assert len(lab.mail.requests()) == 3
    with pytest.raises(dk.DeadlineExceeded):
        _ = run.result
    assert lab.mail.effects() == []


def test_a_refused_last_chance_after_a_crash_resolves_no_unknown(lab):
    """Killed behind its intent, it may have been executed: a later 429 does not say otherwise."""
    lab.mail.plan = busy(99)
    policy = dk.Retry(6.0, 6.0, 99, jitter="none", last_chance=True)
    _, workflow = sender(lab, "refused_chance", retry=policy)
    lab.runtime.run(
        workflow, ADA, id="c", deadline=10,
        crash=dk.CrashAt("retry_runs_refused_chance", "intent_saved", attempt=3),
    )  # fmt: skip
    run = lab.open().resume("c")
    assert run.status == "needs_decision"
    assert run.reason == "unknown, and no time is left to send again"


def test_L073_a_tool_that_retries_inside_and_a_policy_around_it_do_not_multiply(lab):
    """Three attempts allowed: the service is asked three times, not nine."""
    lab.mail.plan = busy(99)

    @dk.tool(effect="idempotent", retry=dk.Retry(attempts=3), name="retry_runs_inner")
    def send(call: dk.Call, to: str) -> dict:
        return dk.retry_call(
            lab.mail.send, to, "Hi", "Hello", key=call.key, retry=dk.Retry(attempts=3),
            effect="idempotent",
        )  # fmt: skip

    @dk.workflow(name="retry_runs_inner")
    def one_mail(ctx: dk.Context, to: str) -> dict:
        return ctx.call(send, to, key="hi")

    run = lab.runtime.run(one_mail, ADA, id="inner", deadline=600)
    assert len(lab.mail.requests()) == 3
    assert run.status == "failed"


def test_L073_inner_retries_of_an_earlier_life_still_count(lab):
    """Two of four are used inside the first attempt; a crash gives none of them back."""
    lab.mail.plan = busy(99)

    @dk.tool(effect="idempotent", retry=dk.Retry(attempts=4), name="retry_runs_lives")
    def send(call: dk.Call, to: str) -> dict:
        return dk.retry_call(
            lab.mail.send, to, "Hi", "Hello", key=call.key, retry=dk.Retry(attempts=2),
            effect="idempotent",
        )  # fmt: skip

    @dk.workflow(name="retry_runs_lives")
    def one_mail(ctx: dk.Context, to: str) -> dict:
        return ctx.call(send, to, key="hi")

    sleeps = []

    def killed_outside(seconds: float) -> None:
        sleeps.append(seconds)
        lab.clock.advance(seconds)
        if len(sleeps) == 2:  # the first is the tool's own
            raise KeyboardInterrupt

    lab.clock.sleep = killed_outside
    with pytest.raises(KeyboardInterrupt):
        lab.runtime.run(one_mail, ADA, id="lives")
    assert len(lab.mail.requests()) == 2
    run = lab.open().resume("lives")
    assert run.status == "failed"
    assert len(lab.mail.requests()) == 4


def test_L085_runs_that_share_a_budget_make_no_more_retries_than_it_has(lab):
    """A hundred runs against a dead service: ten retries, then each stops with the reason."""
    lab.mail.plan = busy(999)
    budget = dk.RetryBudget(10, refill=1.0)
    _, workflow = sender(lab, "budget", retry=dk.Retry(0.1, 0.1, 3, budget=budget))
    runs = [lab.runtime.run(workflow, f"{n}@example.org", id=f"b{n}") for n in range(100)]
    assert len(lab.mail.requests()) == 110
    reasons = [list(run.history()["payload"])[-2].get("why") for run in runs]
    assert reasons.count("retry budget used up") == 95
    assert reasons.count("attempts used up") == 5
    lab.mail.plan = []
    lab.runtime.run(workflow, ADA, id="good")
    assert budget.tokens == 1


def test_a_crash_fills_no_bucket(lab):
    """A new process starts with what the journal last saw, as it does with a deadline."""
    lab.mail.plan = busy(99)

    def declared():
        budget = dk.RetryBudget(3, refill=0)
        return budget, sender(lab, "refill", retry=dk.Retry(5.0, 5.0, 9, budget=budget))[1]

    _, workflow = declared()
    crash_in_the_wait(lab, 1.0)
    with pytest.raises(KeyboardInterrupt):
        lab.runtime.run(workflow, ADA, id="f")
    budget, workflow = declared()  # as a new process declares it: full
    run = lab.open().resume("f")
    assert budget.tokens == 0
    assert len(lab.mail.requests()) == 4
    assert [entry["tokens"] for entry in attempts_of(run)] == [2, 1, 0]


@pytest.mark.parametrize(("point", "call"), [("result_saved", 2), ("before_intent", 3)])
def test_a_crash_between_two_calls_fills_no_bucket_either(lab, point, call):
    """Wherever it comes: two tokens make two retries in all, with and without a crash."""
    lab.mail.plan = busy(99)

    def declared():
        policy = dk.Retry(0.1, 0.1, 9, budget=dk.RetryBudget(2, refill=0))
        send = sender(lab, "between", retry=policy)[0]

        @dk.workflow(name="retry_runs_between_all")
        def five(ctx: dk.Context) -> int:
            refused = 0
            for n in range(5):
                try:
                    ctx.call(send, ADA, key=f"mail:{n}")
                except Exception:
                    refused += 1
            return refused

        return five

    crash = dk.CrashAt("retry_runs_between", point, occurrence=call)
    assert lab.runtime.run(declared(), id="c", crash=crash).crash is not None
    declared()  # as a new process declares it: full
    run = lab.open().resume("c")
    assert (run.status, run.result) == ("completed", 5)
    assert len(lab.mail.requests()) == 5 + 2


def test_what_successes_have_put_back_survives_a_crash_too(lab):
    """The journal's latest word counts, and it is that of the last call that ended."""
    lab.mail.plan = busy(2)

    def declared():
        budget = dk.RetryBudget(2, refill=1.0)
        send = sender(lab, "back", retry=dk.Retry(0.1, 0.1, 9, budget=budget))[0]

        @dk.workflow(name="retry_runs_back_all")
        def four(ctx: dk.Context) -> None:
            for n in range(4):
                ctx.call(send, ADA, key=f"mail:{n}")

        return budget, four

    budget, workflow = declared()
    crash = dk.CrashAt("retry_runs_back", "before_intent", occurrence=3)
    lab.runtime.run(workflow, id="b", crash=crash)
    assert budget.tokens == 2
    budget, _ = declared()
    assert lab.open().resume("b").status == "completed"
    assert budget.tokens == 2


# -- infeasible ---------------------------------------------------------------------------


def infeasible_until(lab: Lab, name: str, ready: list[bool]) -> dk.Workflow:
    """A mail that needs a verified sender."""

    @dk.tool(effect="idempotent", name=f"retry_runs_{name}")
    def send(call: dk.Call, to: str) -> dict:
        if not ready:
            raise dk.Infeasible("a verified sender address")
        return lab.mail.send(to, "Hi", "Hello", key=call.key)

    @dk.workflow(name=f"retry_runs_{name}")
    def one_mail(ctx: dk.Context, to: str) -> dict:
        return ctx.call(send, to, key="hi")

    return one_mail


def test_what_cannot_be_done_is_handed_over_with_the_missing_condition(lab):
    """It is tried once, it is certainly not executed, and a person learns what is missing."""
    run = lab.runtime.run(infeasible_until(lab, "infeasible", []), ADA, id="i")
    assert run.status == "needs_decision"
    assert run.why == "infeasible"
    assert run.reason == "infeasible: a verified sender address"
    operation = run.operations().iloc[0]
    assert (operation["outcome"], operation["attempts"]) == ("not_executed", 1)
    assert lab.mail.effects() == []


def test_once_the_condition_is_met_the_run_goes_on_under_the_same_key(lab):
    """In the same process or a later one; recovery alone does not try again for ever."""
    ready: list[bool] = []
    workflow = infeasible_until(lab, "feasible", ready)
    lab.runtime.run(workflow, ADA, id="i")
    lab.open().recover()
    assert lab.runtime.get("i").status == "needs_decision"
    ready.append(True)
    run = lab.runtime.resume("i")
    assert run.status == "completed"
    assert [row["key"] for row in lab.mail.effects()] == ["hi"]


def test_a_run_that_waits_for_a_condition_can_be_cancelled(lab):
    """Nothing is unknown about it."""
    lab.runtime.run(infeasible_until(lab, "cancelled", []), ADA, id="i")
    lab.runtime.cancel("i")
    assert lab.runtime.resume("i").status == "cancelled"


# -- limits that meet ---------------------------------------------------------------------


def test_a_call_limit_that_its_turn_cannot_grant_is_shortened_and_the_intent_says_so(lab):
    """Thirty seconds asked for, in a turn that has ten."""
    send, _ = sender(lab, "short", timeout=30)

    @dk.workflow(name="retry_runs_in_a_turn")
    def in_a_turn(ctx: dk.Context, to: str) -> dict:
        with ctx.turn("mail", 10):
            return ctx.call(send, to, key="hi")

    table = lab.runtime.run(in_a_turn, ADA, id="s", deadline=60).history()
    intent = table[table["kind"] == "intent"]["payload"].iloc[0]
    assert intent["shortened"] == {"asked": 30.0, "to": 10.0, "level": "turn", "name": "mail"}


def test_a_call_limit_that_fits_says_nothing(lab):
    """What is not so is not told."""
    _, workflow = sender(lab, "fits", timeout=30)
    table = lab.runtime.run(workflow, ADA, id="f", deadline=60).history()
    assert "shortened" not in table[table["kind"] == "intent"]["payload"].iloc[0]


@pytest.mark.parametrize("asked_for", [3, 30])
def test_an_attempt_that_ends_at_its_limit_names_the_level_that_fired(lab, asked_for):
    """Also where the tool watches the time itself and raises its own error."""
    lab.mail.plan = [Fault("reply_lost")]

    @dk.tool(name=f"retry_runs_fired_{asked_for}", timeout=asked_for)
    def send(call: dk.Call, to: str) -> dict:
        return lab.mail.send(to, "Hi", "Hello", timeout=call.remaining())

    @dk.workflow(name=f"retry_runs_fired_{asked_for}")
    def in_a_turn(ctx: dk.Context, to: str) -> dict:
        with ctx.turn("mail", 10):
            return ctx.call(send, to, key="hi")

    told = attempts_of(lab.runtime.run(in_a_turn, ADA, id="f"))[0]
    level = "call" if asked_for == 3 else "turn"
    assert told["fired"]["level"] == level


def test_a_limit_that_meets_its_parents_exactly_is_not_shortened(lab):
    """Ten seconds asked for, and ten there."""
    send, _ = sender(lab, "tie", timeout=10)

    @dk.workflow(name="retry_runs_tie")
    def in_a_turn(ctx: dk.Context, to: str) -> dict:
        with ctx.turn("mail", 10):
            return ctx.call(send, to, key="hi")

    table = lab.runtime.run(in_a_turn, ADA, id="t").history()
    assert "shortened" not in table[table["kind"] == "intent"]["payload"].iloc[0]

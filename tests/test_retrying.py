"""Retrying outside a run: what is called again, how often, after what wait, and what is raised."""

import asyncio
import random
import threading
from contextlib import suppress
from contextvars import ContextVar

import pytest

import durakit as dk
from durakit.mail import Fault, Mailbox
from durakit.retrying import Retried


class Failing:
    """A function that fails with one error after the other, then returns 'done'."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Fail with the next error, or succeed."""
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return ("done", args, kwargs) if args or kwargs else "done"


def refused(times: int) -> Failing:
    """A service that refuses the connection that many times."""
    return Failing(*[ConnectionRefusedError() for _ in range(times)])


def test_a_success_is_returned_and_the_arguments_arrive():
    """Positional and named ones."""
    work = Failing()
    assert dk.retry_call(work, 1, b=2) == ("done", (1,), {"b": 2})
    assert work.calls == 1


def test_L079_three_attempts_make_three_calls_and_two_waits(clock):
    """After the last attempt nobody waits, and the last error is the one that is raised."""
    work = refused(9)
    with pytest.raises(ConnectionRefusedError) as caught:
        dk.retry_call(work, retry=dk.Retry(attempts=3), clock=clock)
    assert work.calls == 3
    assert len(clock.sleeps) == 2
    assert caught.value.__notes__ == ["not retried: 3 attempts are used up"]


def test_a_defect_of_the_code_is_not_repeated_in_a_read(clock):
    """Nothing outside is left to find out, and the same code will fail again: permanent."""
    work = Failing(TypeError("'NoneType' object is not subscriptable"))
    with pytest.raises(TypeError) as caught:
        dk.retry_call(work, retry=dk.Retry(attempts=3), effect="none", clock=clock)
    assert (work.calls, clock.sleeps) == (1, [])
    told = "TypeError: no outside effect, and it will be raised again"
    assert caught.value.__notes__ == [f"not retried: permanent ({told})"]


@pytest.mark.parametrize(
    ("effect", "calls", "mails"), [("idempotent", 3, 1), ("queryable", 1, 1), ("opaque", 1, 1)]
)
def test_the_same_defect_after_the_service_has_acted_is_unknown(
    mailbox, clock, effect, calls, mails
):
    """The mail is out when its answer is misread: under its key it is sent again, else never."""

    def send() -> str:
        answer = mailbox.send("ada@example.org", "s", "b", key="k" if calls > 1 else None)
        return answer["id"] + 1  # the defect

    with pytest.raises(TypeError) as caught:
        dk.retry_call(send, retry=dk.Retry(attempts=3), effect=effect, clock=clock)
    assert len(mailbox.requests()) == calls
    assert len(mailbox.effects()) == mails
    why = "3 attempts are used up" if calls > 1 else "it is unknown whether it was executed"
    assert any(why in note for note in caught.value.__notes__)


def test_the_waits_are_those_that_the_policy_draws(clock):
    """The same policy, the same seed: the same waits, told before each is waited for."""
    policy, told = dk.Retry(1.0, 4.0, 5), []
    dk.retry_call(refused(4), retry=policy, clock=clock, rng=random.Random(5), on_retry=told.append)
    rng = random.Random(5)
    expected = [policy.wait(n, rng.random()) for n in (1, 2, 3, 4)]
    assert clock.sleeps == expected
    assert [(event.attempt, event.pause.seconds) for event in told] == list(
        enumerate(expected, start=1)
    )
    assert all(isinstance(event, Retried) for event in told)


def test_decorrelated_waits_follow_one_another(clock):
    """Each is drawn from the one before."""
    policy = dk.Retry(1.0, 100.0, 5, jitter="decorrelated")
    dk.retry_call(refused(4), retry=policy, clock=clock, rng=random.Random(5))
    rng, previous = random.Random(5), None
    assert len(clock.sleeps) == 4
    for wait in clock.sleeps:
        previous = policy.wait(1, rng.random(), previous)
        assert wait == previous


@pytest.mark.parametrize("effect", ["none", "idempotent", "queryable", "opaque"])
def test_a_proof_that_nothing_happened_permits_the_next_attempt_for_every_effect(effect, clock):
    """Refused connections, 429 and whatever the function itself is certain of."""
    work = Failing(ConnectionRefusedError(), dk.NotExecuted("busy", transient=True))
    assert dk.retry_call(work, effect=effect, clock=clock) == "done"


@pytest.mark.parametrize(
    ("effect", "calls"), [("none", 2), ("idempotent", 2), ("queryable", 1), ("opaque", 1)]
)
def test_a_failure_that_proves_nothing_is_repeated_only_where_that_is_safe(effect, calls, clock):
    """A time-out is never 'not executed'."""
    error = TimeoutError("no reply")
    work = Failing(error)
    with suppress(TimeoutError):
        dk.retry_call(work, effect=effect, clock=clock)
    assert work.calls == calls
    notes = getattr(error, "__notes__", [])
    assert any("unknown whether it was executed" in note for note in notes) == (calls == 1)


def test_by_default_a_lost_reply_sends_no_second_mail():
    """The ledger is the judge: who declares nothing is not tried again blindly."""
    mail = Mailbox(latency=0, plan=[Fault("reply_lost")], clock=dk.ManualClock())
    with pytest.raises(TimeoutError):
        dk.retry_call(mail.send, "ada@example.org", "Hi", "Hello", timeout=1)
    assert len(mail.effects()) == 1


def test_under_one_key_a_lost_reply_is_sent_again_and_is_one_mail():
    """What idempotent means; the key is the caller's, and stands outside the retrying."""
    clock = dk.ManualClock()
    mail = Mailbox(latency=0, plan=[Fault("reply_lost")], clock=clock)
    reply = dk.retry_call(
        mail.send, "ada@example.org", "Hi", "Hello", key="hi:1", timeout=1.0,
        effect="idempotent", clock=clock,
    )  # fmt: skip
    assert reply == {"id": "email-1"}
    assert len(mail.effects()) == 1
    assert len(mail.requests()) == 2


def test_a_later_refusal_does_not_make_an_unknown_attempt_undone(clock):
    """First a time-out, then 'too many requests': the first may have been executed."""
    refusal = dk.NotExecuted("too many requests", transient=True)
    work = Failing(TimeoutError("no reply"), refusal, refusal)
    with pytest.raises(TimeoutError) as caught:
        dk.retry_call(work, effect="idempotent", clock=clock)
    assert work.calls == 3
    assert any("says nothing about this one" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("error", [ValueError("bad"), dk.Infeasible("an address"), KeyError("x")])
def test_what_will_fail_again_is_not_tried_again(error, clock):
    """Bad arguments, a missing condition, an error in the function itself."""
    work = Failing(error)
    with pytest.raises(type(error)):
        dk.retry_call(work, effect="none", clock=clock)
    assert work.calls == 1


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_L076_interrupts_pass_through_untouched(stop, clock):
    """They are no failures of the call."""
    work = Failing(stop())
    with pytest.raises(stop):
        dk.retry_call(work, effect="none", clock=clock)
    assert work.calls == 1
    assert clock.sleeps == []


def test_L077_no_wait_is_begun_that_would_reach_the_deadline(clock):
    """Doubling waits within five seconds; the error names the deadline and the last cause."""
    began = clock.monotonic()
    policy = dk.Retry(1.0, 100.0, 99, jitter="none")
    with pytest.raises(dk.DeadlineExceeded) as caught:
        dk.retry_call(refused(99), retry=policy, deadline=5.0, clock=clock)
    assert clock.sleeps == [1.0, 2.0]
    assert clock.monotonic() - began <= 5.0
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)
    assert caught.value.level == "call"


def test_a_clock_that_oversleeps_begins_no_attempt_after_the_deadline(clock):
    """A loaded machine wakes late; the limit holds all the same."""

    class Late(dk.ManualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds + 10)

    work = refused(99)
    with pytest.raises(dk.DeadlineExceeded):
        dk.retry_call(work, retry=dk.Retry(1.0, 1.0, 9), deadline=5.0, clock=Late())
    assert work.calls == 1


def test_the_last_chance_is_one_more_attempt_before_the_deadline(clock):
    """It is asked for, it is one, and it is not at the very end."""
    policy = dk.Retry(3.0, 100.0, 99, jitter="none", last_chance=True, reserve=0.1)
    work = refused(99)
    with pytest.raises(dk.DeadlineExceeded):
        dk.retry_call(work, retry=policy, effect="none", deadline=5.0, clock=clock)
    assert work.calls == 3
    assert clock.sleeps[0] == 3.0
    assert 0 <= clock.sleeps[1] < 1.9


# -- layers -------------------------------------------------------------------------------


def nested(outer: int, inner: int, clock: dk.ManualClock, **limits: object) -> Failing:
    """Call a helper that always fails, retried, from a function that is retried."""
    helper = refused(1000)

    def task() -> object:
        return dk.retry_call(helper, retry=dk.Retry(attempts=inner))

    with pytest.raises((ConnectionRefusedError, dk.DeadlineExceeded)):
        dk.retry_call(task, retry=dk.Retry(attempts=outer), clock=clock, **limits)
    return helper


@pytest.mark.parametrize(
    ("outer", "inner", "calls"), [(3, 3, 3), (1, 3, 1), (3, 1, 3), (2, 5, 2), (5, 2, 5)]
)
def test_L073_retries_of_two_layers_do_not_multiply(outer, inner, calls, clock):
    """3 x 3 call three times, not nine: no more than the outermost allows, whoever retries."""
    assert nested(outer, inner, clock).calls == calls
    assert len(clock.sleeps) == calls - 1


def test_L073_one_deadline_covers_both_layers(clock):
    """The inner layer inherits it, and the clock with it."""
    began = clock.monotonic()
    helper = refused(99)

    def task() -> object:
        return dk.retry_call(helper, retry=dk.Retry(2.0, 2.0, 99, jitter="none"), deadline=100.0)

    with pytest.raises(dk.DeadlineExceeded):
        dk.retry_call(task, retry=dk.Retry(attempts=50), deadline=5.0, clock=clock)
    assert helper.calls == 3
    assert clock.monotonic() - began == 4.0


def test_three_layers_call_as_often_as_the_outermost_allows(clock):
    """4 x 4 x 4 would be 64."""
    helper = refused(1000)

    def layer(work):
        return lambda: dk.retry_call(work, retry=dk.Retry(attempts=4))

    with pytest.raises(ConnectionRefusedError):
        dk.retry_call(layer(layer(helper)), retry=dk.Retry(attempts=4), clock=clock)
    assert helper.calls == 4


def test_a_layer_that_ended_leaves_nothing_behind(clock):
    """The next call has all its attempts, also after an error and in another thread."""
    nested(3, 3, clock)
    assert nested(3, 3, clock).calls == 3
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(nested(3, 3, dk.ManualClock()).calls))
    thread.start()
    thread.join()
    assert found == [3]


def test_L085_a_hundred_calls_against_a_dead_service_share_ten_retries(clock):
    """The rest stop at once, and say why."""
    policy = dk.Retry(attempts=3, budget=dk.RetryBudget(10, refill=0.5))
    works = [refused(9) for _ in range(100)]
    notes = []
    for work in works:
        with pytest.raises(ConnectionRefusedError) as caught:
            dk.retry_call(work, retry=policy, clock=clock)
        notes += caught.value.__notes__
    assert sum(work.calls for work in works) == 110
    assert notes.count("not retried: the retry budget is used up") == 95
    for _ in range(2):
        dk.retry_call(Failing(), retry=policy)
    assert dk.retry_call(refused(1), retry=policy, clock=clock) == "done"


@pytest.mark.parametrize(
    ("field", "limits"),
    [
        ("deadline", {"deadline": 0}), ("deadline", {"deadline": -1.0}),
        ("deadline", {"deadline": float("nan")}), ("deadline", {"deadline": 1e300}),
        ("deadline", {"deadline": "5"}), ("retry", {"retry": 3}), ("retry", {"retry": None}),
        ("effect", {"effect": "keyed"}), ("effect", {"effect": None}),
    ],
)  # fmt: skip
def test_a_limit_that_is_none_is_refused_before_anything_is_called(field, limits):
    """In words that name the argument."""
    work = Failing()
    with pytest.raises(dk.InvalidField) as caught:
        dk.retry_call(work, **limits)
    assert caught.value.field == field
    assert work.calls == 0


def test_what_a_function_sets_in_its_context_stays_inside():
    """So nothing has to be put back, and an interrupt at any line leaves no layer behind."""
    mark: ContextVar[int] = ContextVar("mark", default=0)
    dk.retry_call(lambda: mark.set(1))
    assert mark.get() == 0


def test_a_token_for_a_retry_that_is_not_made_goes_back(clock):
    """Where the wait does not fit, and where the sleep itself has reached the deadline."""
    budget = dk.RetryBudget(5, refill=0)
    policy = dk.Retry(20.0, 20.0, 3, jitter="none", budget=budget)
    with pytest.raises(dk.DeadlineExceeded):
        dk.retry_call(refused(9), retry=policy, clock=clock, deadline=10)
    assert budget.tokens == 5
    sleep = clock.sleep
    clock.sleep = lambda seconds: sleep(seconds + 100)
    work = refused(9)
    policy = dk.Retry(1.0, 1.0, 3, jitter="none", budget=budget)
    with pytest.raises(dk.DeadlineExceeded):
        dk.retry_call(work, retry=policy, clock=clock, deadline=10)
    assert (work.calls, budget.tokens) == (1, 5)


@pytest.mark.parametrize("effect", ["once", None, [], {}, 1])
def test_an_effect_that_is_none_is_refused_by_its_name(effect):
    """Nothing is called."""
    work = refused(1)
    with pytest.raises(dk.InvalidField, match="^effect: "):
        dk.retry_call(work, effect=effect)
    assert work.calls == 0

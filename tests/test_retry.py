"""A failure is judged by its type and status, and the wait after it is drawn, never clamped."""

import math
import random
import threading
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import durakit as dk
from durakit import protocol
from durakit.failures import FailureKind, classify
from durakit.protocol import Contract, Record, Request, Status, Wait, decide
from durakit.retry import Retry, pause

# A busy machine may be slow; that is no failure.
laws = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

NOW = 1_767_258_000.0
HOUR = 3600.0
TRANSIENT, PERMANENT = FailureKind.TRANSIENT, FailureKind.PERMANENT
UNKNOWN, INFEASIBLE = FailureKind.UNKNOWN, FailureKind.INFEASIBLE


# -- the wait -----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [Retry(0.1, 8.0), Retry(1.0, 1e9), Retry(3, 7), Retry(5, 1)])
def test_the_bound_is_exact_for_every_attempt_to_ten_thousand(policy):
    """min(cap, initial * 2^(n-1)) in exact fractions, where floats would overflow."""
    for attempt in range(1, 10_001):
        exact = min(Fraction(policy.cap), Fraction(policy.initial) * 2 ** (attempt - 1))
        assert Fraction(policy.bound(attempt)) == exact


@laws
@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6), st.integers(1, 10**30), st.floats(0, 1))
def test_a_wait_lies_between_nothing_and_its_bound(initial, cap, attempt, draw):
    """For any policy and any attempt number; the draw decides and nothing else."""
    policy = Retry(initial, cap)
    wait = policy.wait(attempt, draw)
    assert 0.0 <= wait <= policy.bound(attempt) <= cap
    assert wait == draw * policy.bound(attempt)
    assert policy.bound(attempt + 1) >= policy.bound(attempt)


def test_L080_waits_at_the_cap_are_spread_over_the_whole_window():
    """A thousand draws of attempt 12: within 0 and 10, average near 5, no two alike."""
    rng = random.Random(80)
    policy = Retry(initial=1, cap=10)
    waits = [policy.wait(12, rng.random()) for _ in range(1000)]
    assert all(0 <= wait < 10 for wait in waits)
    assert len(set(waits)) > 990
    assert sum(waits) / 1000 == pytest.approx(5, abs=0.4)
    assert sum(wait < 1 for wait in waits) == pytest.approx(100, abs=40)


def test_L082_a_servers_waiting_time_is_a_floor_and_full_jitter_has_no_other():
    """Without it some waits are near nothing; with a floor of 4 none is shorter."""
    rng = random.Random(82)
    draws = [rng.random() for _ in range(1000)]
    policy = Retry(initial=1, cap=10)
    assert min(policy.wait(9, draw) for draw in draws) < 0.1
    floored = [policy.wait(9, draw, retry_after=4.0) for draw in draws]
    assert min(floored) == 4.0
    assert max(floored) > 9.0
    assert policy.wait(1, 0.5, retry_after=60.0) == 60.0


def test_L079_three_attempts_make_two_waits():
    """After the last failure nothing is waited for."""
    policy = Retry(attempts=3)
    waits = []
    failure = classify(dk.NotExecuted("full", transient=True), effect=True, now=NOW)
    for attempt in (1, 2, 3):
        record = Record(Status.REFUSED, "a", attempt, NOW, NOW)
        decision = decide(record, Request("a", failure=failure), Contract(), policy, NOW, 0.5)
        if isinstance(decision, Wait):
            waits.append(decision.seconds)
    assert len(waits) == 2
    assert decision == protocol.Refuse(protocol.ATTEMPTS_USED)


@pytest.mark.parametrize("field", ["initial", "cap", "reserve"])
@pytest.mark.parametrize(
    "value",
    [-1, -0.5, math.nan, math.inf, -math.inf, 10**400, True, "1", None, [1]],
    ids=lambda value: repr(value)[:8],
)
def test_a_time_that_is_no_positive_finite_number_is_refused_by_the_fields_name(field, value):
    """No policy is built that could not wait."""
    with pytest.raises(dk.InvalidField) as caught:
        Retry(**{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize("field", ["initial", "cap"])
def test_a_window_of_nothing_is_refused(field):
    """Zero would retry at once, for ever."""
    with pytest.raises(dk.InvalidField, match=f"^{field}: "):
        Retry(**{field: 0})
    assert Retry(reserve=0).reserve == 0


@pytest.mark.parametrize("value", [0, -1, 1.5, 3.0, math.nan, math.inf, True, "3", None])
def test_attempts_that_are_no_whole_number_from_one_are_refused(value):
    """The first attempt counts too, so that zero would mean never."""
    with pytest.raises(dk.InvalidField, match=r"^attempts: "):
        Retry(attempts=value)
    with pytest.raises(dk.InvalidField, match=r"^attempts: .* at most 1000000"):
        Retry(attempts=10**400)


# -- other ways to draw a wait ------------------------------------------------------------


def waits(policy: Retry, attempt: int, draws: int = 1000, previous: float | None = None):
    """Draw many waits after one attempt, with a seeded generator."""
    rng = random.Random(7)
    return [policy.wait(attempt, rng.random(), previous) for _ in range(draws)]


@pytest.mark.parametrize(
    ("jitter", "low", "high"),
    [("full", 0.0, 4.0), ("equal", 2.0, 4.0), ("none", 4.0, 4.0), ("additive", 4.0, 5.0)],
)
def test_each_jitter_draws_from_its_own_part_of_the_window(jitter, low, high):
    """After the third attempt the window of initial 1 is 4 seconds wide."""
    policy = Retry(1.0, 100.0, 9, jitter=jitter)
    drawn = waits(policy, 3)
    assert policy.window(3) == (low, high)
    assert all(low <= wait <= high for wait in drawn)
    assert max(drawn) - min(drawn) >= 0.99 * (high - low)


def test_decorrelated_waits_grow_from_the_wait_before_and_pile_up_at_the_cap():
    """min(cap, Uniform(initial, 3 * previous)): cut off after drawing, as AWS's own code does."""
    policy = Retry(1.0, 10.0, 99, jitter="decorrelated")
    assert policy.window(1) == (1.0, 3.0)
    assert policy.window(7, previous=2.0) == (1.0, 6.0)
    drawn = waits(policy, 7, previous=10.0)
    assert min(drawn) >= 1.0
    assert max(drawn) == 10.0
    share = sum(wait == 10.0 for wait in drawn) / len(drawn)
    assert abs(share - 20 / 29) < 0.05  # of the 29 seconds drawn from, 20 lie above the cap


def test_the_first_window_is_initial_unless_it_is_said_otherwise():
    """AWS's simulator begins at twice its base; the chapter begins at the base."""
    assert [Retry(5, 2000).bound(n) for n in (1, 2, 3)] == [5, 10, 20]
    assert [Retry(5, 2000, first_window=10).bound(n) for n in (1, 2, 3)] == [10, 20, 40]


def test_L082_with_a_floor_no_wait_is_shorter():
    """Full jitter starts at zero by definition; a floor is another policy, and says so."""
    without, floored = Retry(4.0, 10.0, 9), Retry(4.0, 10.0, 9, floor=4.0)
    assert min(waits(without, 9)) < 4.0
    assert min(waits(floored, 9)) >= 4.0
    assert max(waits(floored, 9)) <= 10.0
    for policy in (without, floored):
        assert policy.wait(9, 0.1, retry_after=60.0) == 60.0


@laws
@given(
    st.sampled_from(["full", "equal", "none", "additive", "decorrelated"]),
    st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(1, 2000),
    st.floats(0, 1, exclude_max=True), st.floats(0, 1e3), st.floats(0, 1e3),
)  # fmt: skip
def test_every_wait_lies_in_the_window_that_is_told(
    jitter, initial, cap, attempt, draw, previous, floor
):
    """What is drawn and what is shown as the band cannot differ."""
    policy = Retry(initial, cap, 9, jitter=jitter, floor=floor)
    low, high = policy.window(attempt, previous)
    slack = 1e-9 * (1 + high)
    assert low - slack <= policy.wait(attempt, draw, previous) <= high + slack
    assert policy.wait(attempt, draw, previous, retry_after=5e3) >= 5e3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("jitter", "some"), ("jitter", None), ("first_window", 0), ("first_window", math.nan),
        ("first_window", -1), ("floor", -1), ("floor", math.inf), ("floor", "1"),
        ("initial", 1e300), ("cap", 1e12), ("reserve", 1e300), ("last_chance", 1),
        ("budget", 10), ("floor", False), ("jitter", []), ("jitter", {}), ("floor", None),
        ("reserve", np.array([1.0, 2.0])), ("floor", np.zeros(2)), ("cap", []), ("initial", 1j),
    ],
)  # fmt: skip
def test_a_field_that_makes_no_policy_is_refused_by_its_name(field, value):
    """Negative, zero, not a number, huge, or of another type: nothing is built from it."""
    with pytest.raises(dk.InvalidField) as caught:
        Retry(**{field: value})
    assert caught.value.field == field


# -- the wait against the deadline --------------------------------------------------------


@laws
@given(
    st.floats(0, 1, exclude_max=True), st.integers(1, 20), st.floats(0, 30), st.floats(0, 2),
    st.booleans(),
)  # fmt: skip
def test_no_pause_reaches_the_deadline_and_none_is_cut_to_fit(
    draw, attempt, remaining, reserve, chance
):
    """Sample, then stop; a last chance is a moment of its own before the deadline."""
    policy = Retry(0.5, 8.0, 99, reserve=reserve, last_chance=chance)
    drawn = pause(policy, attempt, draw, remaining=remaining)
    wait = policy.wait(attempt, draw)
    if wait + reserve < remaining:
        assert drawn is not None
        assert (drawn.seconds, drawn.last_chance) == (wait, False)
    elif drawn is not None:
        assert chance
        assert drawn.last_chance
        assert 0 <= drawn.seconds < remaining - reserve
    else:
        assert not chance or remaining <= reserve


def test_the_last_chance_comes_once_and_is_spread_over_what_is_left():
    """Clients that all get one do not fire together, and nobody gets two."""
    policy = Retry(8.0, 8.0, 99, last_chance=True, reserve=0.2)
    rng = random.Random(3)
    drawn = [pause(policy, 1, rng.uniform(0.3, 1), remaining=2.2) for _ in range(2000)]
    moments = [found.seconds for found in drawn if found and found.last_chance]
    assert len(moments) == 2000
    assert abs(sum(moments) / 2000 - 1.0) < 0.05
    in_tenths = [sum(int(m / 0.2) == tenth for m in moments) for tenth in range(10)]
    assert min(in_tenths) > 120
    assert pause(policy, 2, 0.0, remaining=2.2, last_chance_taken=True) is None


def test_a_last_chance_never_comes_before_the_service_wants_it():
    """Retry-After stays the floor; past the deadline there is no chance at all."""
    policy = Retry(8.0, 8.0, 99, last_chance=True)
    drawn = pause(policy, 1, 0.9, remaining=2.0, retry_after=1.5)
    assert drawn is not None
    assert 1.5 <= drawn.seconds < 2.0
    assert pause(policy, 1, 0.9, remaining=2.0, retry_after=2.0) is None


@pytest.mark.parametrize("draw", [0.0, 0.123456, 0.9, 1 - 2**-53])
def test_no_wait_is_shorter_than_the_floor_not_even_the_last_chance(draw):
    """Where the floor itself does not fit, there is no chance at all."""
    policy = Retry(8.0, 8.0, 99, jitter="none", floor=3.0, reserve=0.5, last_chance=True)
    drawn = pause(policy, 1, draw, remaining=4.0)
    assert drawn is not None
    assert drawn.last_chance
    assert 3.0 <= drawn.seconds < 3.5
    assert pause(policy, 1, draw, remaining=3.5) is None


@pytest.mark.parametrize("effect", ["queryable", "opaque"])
def test_a_last_chance_is_for_reads_and_keyed_writes_only(effect):
    """A blind second sending at the last moment is what nobody wants."""
    asks = print if effect == "queryable" else None
    with pytest.raises(dk.InvalidField, match="^last_chance: "):
        dk.tool(effect=effect, probe=asks, retry=Retry(last_chance=True), name="x")(
            lambda call: None
        )
    with pytest.raises(dk.InvalidField, match="^last_chance: "):
        dk.retry_call(lambda: None, effect=effect, retry=Retry(last_chance=True))


@pytest.mark.parametrize(
    ("field", "policy"),
    [
        ("initial", {"initial": 10.0}),
        ("first_window", {"first_window": 9.0}),
        ("floor", {"floor": 8.5}),
        ("last_chance", {"last_chance": True, "attempts": 1}),
    ],
)
def test_a_policy_that_contradicts_itself_can_be_drawn_but_not_waited_by(field, policy):
    """A slider passes the other one; a tool with such a policy was meant to have another."""
    odd = Retry(**policy)
    assert odd.window(1)[1] == max(odd.cap, odd.floor) or field == "last_chance"
    with pytest.raises(dk.InvalidField, match=f"^{field}: "):
        dk.tool(effect="idempotent", retry=odd, name="x")(lambda call: None)
    called = []
    with pytest.raises(dk.InvalidField, match=f"^{field}: "):
        dk.retry_call(called.append, 1, effect="none", retry=odd)
    assert called == []
    at_the_edge = Retry(initial=8.0, first_window=8.0, floor=8.0)
    assert dk.retry_call(lambda: "done", retry=at_the_edge) == "done"


# -- the budget that many share -----------------------------------------------------------


def test_L085_ten_tokens_make_ten_retries_and_successes_refill_them():
    """From a full bucket; a tenth of a token comes back with each success, never above ten."""
    budget = dk.RetryBudget(tokens=10, refill=0.1)
    assert [budget.take() for _ in range(12)] == [True] * 10 + [False] * 2
    for _ in range(9):
        budget.succeeded()
    assert budget.tokens == 0
    budget.succeeded()
    assert budget.tokens == 1
    for _ in range(1000):
        budget.succeeded()
    assert budget.tokens == 10


def test_threads_share_a_budget_without_losing_or_making_tokens():
    """Eight threads want a thousand each of five hundred."""
    budget = dk.RetryBudget(tokens=500, refill=0)
    taken: list[int] = []

    def many():
        taken.append(sum(budget.take() for _ in range(1000)))

    threads = [threading.Thread(target=many) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) == 500
    assert budget.tokens == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tokens", 0), ("tokens", -1), ("tokens", 1.5), ("tokens", True), ("tokens", 10**9),
        ("refill", -0.1), ("refill", 1.1), ("refill", math.nan), ("refill", "1"),
        ("refill", True),
    ],
)  # fmt: skip
def test_a_number_that_makes_no_bucket_is_refused_by_its_name(field, value):
    """As for every limit."""
    with pytest.raises(dk.InvalidField) as caught:
        dk.RetryBudget(**{field: value})
    assert caught.value.field == field

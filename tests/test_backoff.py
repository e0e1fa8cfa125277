"""One client's backoff: what is drawn is what a real run waits, and the chances are exact."""

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import durakit as dk
from durakit.lab.backoff.client import Backoff, in_percent
from durakit.lab.backoff.explorers import JITTERS
from durakit.retry import Jitter

# -- against a real run ----------------------------------------------------------------------------


def real_run(tmp_path, policy: dk.Retry, deadline: float, seed: int):
    """Run a call that is always refused, in no time, on a manual clock; return run and clock."""

    @dk.tool(name="backoff_refused", effect="idempotent", window=86_400, retry=policy)
    def refused(call):
        raise dk.NotExecuted("busy", transient=True)

    @dk.workflow(name="backoff_run")
    def workflow(ctx):
        return ctx.call(refused, key="once")

    clock = dk.ManualClock()
    runtime = dk.Runtime(tmp_path / "runs.db", clock=clock, rng=random.Random(seed))
    run = runtime.run(workflow, id="one", deadline=deadline)
    return run, clock, runtime


@pytest.mark.parametrize("jitter", JITTERS)
@pytest.mark.parametrize(
    ("attempts", "deadline", "seed"), [(7, 10.0, 1), (7, 30.0, 2), (3, 5.0, 3)]
)
def test_the_drawn_waits_are_those_of_a_real_run(
    tmp_path, jitter, attempts, deadline, seed
) -> None:
    """Every sleep of the clock and every journal entry, to the last bit; then both stop."""
    policy = dk.Retry(0.5, 8.0, attempts, jitter=jitter)
    shown = Backoff.of(policy, deadline, seed)
    run, clock, runtime = real_run(tmp_path, policy, deadline, seed)
    begun = [wait.seconds for wait in shown.waits if wait.begun]
    assert clock.sleeps == begun
    told = [row["then"] for row in run.history()["payload"] if "then" in row]
    waited = [then for then in told if "seconds" in then]
    assert [then["seconds"] for then in waited] == begun
    assert [then["bound"] for then in waited] == [wait.high for wait in shown.waits if wait.begun]
    # The one that did not fit is there too, and is the one that is shown.
    unfit = [(then["drawn"], then["bound"]) for then in told if "drawn" in then]
    assert unfit == [(wait.seconds, wait.high) for wait in [shown.refused] if wait]
    assert (run.history()["kind"] == "intent").sum() == shown.last
    assert sum(clock.sleeps) == pytest.approx(shown.ends, abs=1e-5)
    ended = "DeadlineExceeded" if shown.refused else "NotExecuted"
    assert run.reason.startswith(ended)
    runtime.close()


def test_every_jitter_of_the_runtime_can_be_looked_at() -> None:
    """A new one must be explained here too."""
    assert set(JITTERS) == {jitter.value for jitter in Jitter}


@given(
    st.sampled_from(list(JITTERS)),
    st.floats(0.05, 10),
    st.floats(0.1, 60),
    st.integers(1, 9),
    st.floats(0.5, 120),
    st.integers(0, 99),
)
@examples(max_examples=60, deadline=None)
def test_no_wait_is_begun_that_reaches_the_deadline(
    jitter, initial, cap, attempts, deadline, seed
) -> None:
    """Each draw lies in its window; the first that would reach the deadline ends it; nothing after.

    ``deadline=None``: a noisy machine's time is no claim.
    """
    policy = dk.Retry(round(initial, 2), round(cap, 2), attempts, jitter=jitter)
    shown = Backoff.of(policy, round(deadline, 2), seed)
    assert len(shown.waits) == attempts - 1
    now = 0.0
    for wait in shown.waits:
        assert wait.low <= wait.seconds <= wait.high or math.isclose(wait.low, wait.high)
        assert 0 <= wait.chance <= 1
        if now is None:
            assert (wait.begins, wait.begun) == (None, False)
            continue
        assert wait.begins == pytest.approx(now, abs=1e-4)
        fits = now + wait.seconds < shown.deadline
        assert wait.begun is fits or math.isclose(now + wait.seconds, shown.deadline, abs_tol=1e-4)
        now = now + wait.seconds if wait.begun else None
    chances = [wait.chance for wait in shown.waits]
    assert chances == sorted(chances)


# -- the chances -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempts", "deadline", "chance"),
    [
        (2, 1, Fraction(0)),
        (3, 1, Fraction(3, 4)),
        (3, 2, Fraction(1, 4)),
        (4, 2, Fraction(41, 48)),
        (4, 3.5, Fraction(1, 2)),
        (5, 4, Fraction(43, 48)),
        (6, 8, Fraction(117, 128)),
    ],
)
def test_the_chance_is_the_exact_one_of_the_reference(attempts, deadline, chance) -> None:
    """Windows 1, 2, 4, …: the fractions of the Thue-Morse sum, worked out on paper."""
    shown = Backoff.of(dk.Retry(1.0, 1000.0, attempts), deadline, seed=0)
    assert shown.chance == chance
    if 0 < chance < 1:
        assert f"exactly {chance} = {in_percent(chance)}" in shown.chance_words()


def test_the_chance_is_how_often_runs_are_stopped() -> None:
    """Of 4,000 seeds as many are stopped before each attempt as computed, within 4 deviations."""
    policy, deadline, runs = dk.Retry(0.5, 8.0, 7), 10.0, 4000
    shown = [Backoff.of(policy, deadline, seed) for seed in range(runs)]
    for number, wait in enumerate(shown[0].waits, 1):
        stopped = sum(one.last <= number for one in shown if one.refused) / runs
        chance = float(wait.chance)
        assert abs(stopped - chance) <= 4 * math.sqrt(chance * (1 - chance) / runs) + 1e-12


def test_without_jitter_the_chance_is_none_or_certain() -> None:
    """1 + 2 + 4 ends exactly at 7: not begun, and so certain; a hair later it fits."""
    at = Backoff.of(dk.Retry(1.0, 8.0, 4, jitter="none"), 7.0, seed=0)
    assert [wait.chance for wait in at.waits] == [0, 0, 1]
    assert at.refused is at.waits[2]
    after = Backoff.of(dk.Retry(1.0, 8.0, 4, jitter="none"), 7.01, seed=0)
    assert [wait.chance for wait in after.waits] == [0, 0, 0]
    assert after.refused is None


def test_where_no_formula_is_known_an_estimate_says_so() -> None:
    """Decorrelated jitter: a float, near the share of real draws, and marked 'about'."""
    policy = dk.Retry(0.5, 8.0, 6, jitter="decorrelated")
    shown = Backoff.of(policy, 10.0, seed=4)
    assert isinstance(shown.chance, float)
    stopped = np.mean([bool(Backoff.of(policy, 10.0, seed).refused) for seed in range(500)])
    assert abs(stopped - shown.chance) < 4 * math.sqrt(0.25 / 500)
    assert "about" in shown.chance_words()
    assert "no exact formula" in shown.chance_words()


def test_a_long_fraction_is_told_by_its_percentage_alone() -> None:
    """Forty digits help nobody."""
    shown = Backoff.of(dk.Retry(0.35, 6.3, 12), 10.0, seed=0)
    assert len(str(shown.chance)) > 40
    assert shown.chance_words().endswith("%, computed exactly.")
    assert "/" not in shown.chance_words()


@pytest.mark.parametrize(
    ("chance", "words"),
    [
        (Fraction(0), "0 %"),
        (Fraction(1), "100 %"),
        (Fraction(1, 10**6), "< 0.01 %"),
        (1 - Fraction(1, 10**6), "> 99.99 %"),
        (Fraction(7, 48), "14.58 %"),
        (0.5, "50.00 %"),
    ],
)
def test_a_chance_is_never_rounded_to_never_or_always(chance, words) -> None:
    """0 % and 100 % are said only where they are true."""
    assert in_percent(chance) == words

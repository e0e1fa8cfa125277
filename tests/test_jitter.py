"""The exact law of the waits agrees with printed tables, brute force and the runtime's own draws.

Oracles: tables of `data/reference` that another program made, the sum over all 2^n subsets in
exact fractions, and `Retry.wait` and `pause` fed by `random.Random`.
"""

import csv
import math
import random
from collections import Counter
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import durakit as dk
from durakit.lab.backoff import jitter
from durakit.lab.backoff.draws import Waits, draw_waits, sample_waits
from durakit.lab.backoff.jitter import (
    attempts_that_fit,
    exceeds,
    exceeds_one,
    expected_attempts,
    moments,
    total_at_most,
    wait_until_success,
)
from durakit.lab.backoff.rules import deadline_policies
from durakit.retry import Jitter, pause

REFERENCE = Path(__file__).resolve().parent.parent / "data" / "reference"

# A busy machine may be slow; that is no failure.
laws = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

#: One second, doubled so often that no test reaches the cap.
UNCAPPED = dk.Retry(1.0, 2.0**31, 60)

EXACT_KINDS = ["full", "equal", "none", "additive"]
EVERY_KIND = [str(kind) for kind in Jitter]

#: Whole thousandths of a second: their decimal text is short, and so are the fractions.
thousandths = st.integers(1, 4000).map(lambda number: number / 1000)


@st.composite
def policies(draw, kinds=EXACT_KINDS):
    """Any small policy: capped or not, with or without a floor and a first window."""
    return dk.Retry(
        draw(thousandths),
        draw(thousandths),
        draw(st.integers(1, 7)),
        jitter=draw(st.sampled_from(kinds)),
        first_window=draw(st.none() | thousandths),
        floor=draw(st.just(0.0) | thousandths),
    )


def table(name: str) -> list[dict[str, str]]:
    """Return the rows of a reference table."""
    with (REFERENCE / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    return rows


def printed(value: Fraction | float, like: str) -> str:
    """Return a number as a table prints it: with as many decimals as ``like``."""
    return f"{float(value):.{len(like.partition('.')[2])}f}"


def by_all_subsets(widths: list[Fraction], x: Fraction) -> Fraction:
    """Return P(sum of uniforms <= x) by inclusion and exclusion over all 2^n subsets."""
    total = Fraction(0)
    for size in range(len(widths) + 1):
        for taken in combinations(widths, size):
            total += (-1) ** size * max(Fraction(0), x - sum(taken)) ** len(widths)
    return total / (math.factorial(len(widths)) * math.prod(widths))


# --- tables of others ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "row", table("full-jitter-moments"), ids=lambda row: f"{row['t0']}-{row['n']}"
)
def test_moments_are_those_of_the_table(row):
    """Exact columns to each printed digit, sampled ones within four standard errors."""
    policy, waits = dk.Retry(float(row["t0"]), float(row["tmax"])), int(row["n"])
    total, before = moments(policy, waits), moments(policy, waits - 1)
    assert printed(total.mean, row["mean_total_n"]) == row["mean_total_n"]
    assert printed(total.maximum, row["max_total_n"]) == row["max_total_n"]
    deviation = math.sqrt(total.variance)
    assert f"{deviation:.6f}" == row["sd_total_n"]
    assert total.maximum - before.maximum == Fraction(row["cap_n"])
    assert total.mean - before.mean == Fraction(row["mean_wait_n"])
    assert printed(total.variance - before.variance, row["var_wait_n"]) == row["var_wait_n"]
    # The table does not say how often it drew; by its rows' scatter, 1 to 3 million times.
    error = deviation / math.sqrt(1_000_000)
    assert abs(float(row["mc_mean_total"]) - total.mean) <= 4 * error + 0.00005
    assert abs(float(row["mc_sd_total"]) - deviation) <= 4 * error + 0.00005


@pytest.mark.parametrize("t0", ["0.5", "0.1", "1.0"])
def test_the_chance_to_exceed_a_deadline_is_that_of_the_table(t0):
    """168 cells: exact to each printed digit, sampled ones within four standard errors."""
    rows = [row for row in table("full-jitter-exceed") if row["t0"] == t0]
    assert len(rows) == 56
    for row in rows:
        policy = dk.Retry(float(t0), float(row["tmax"]))
        chance = exceeds(policy, int(row["n_waits"]), float(row["deadline"]))
        exact = row["p_total_exceeds_exact"]
        assert printed(chance, exact) == exact, row
        sampled = float(row["p_total_exceeds_mc"])
        assert abs(sampled - chance) <= 4 * float(row["mc_se"]) + 5e-7, row


def test_the_number_of_attempts_that_fit_is_that_of_the_table():
    """Six configurations, each attempt count: at least k, and exactly k."""
    rows, seen = table("attempts-stop-exact"), set()
    for row in rows:
        policy = dk.Retry(float(row["t0"]), float(row["tmax"]), 15)
        deadline, attempt = float(row["deadline"]), float(row["attempt_duration_and_reserve"])
        seen.add((policy, deadline, attempt))
        fits = (*attempts_that_fit(policy, deadline, attempt), Fraction(0))
        k = int(row["k"])
        assert printed(fits[k - 1], row["p_attempts_at_least_k"]) == row["p_attempts_at_least_k"]
        # The table cuts k at 15, and smaller where nothing is left to print.
        exactly = fits[k - 1] - fits[k]
        assert printed(exactly, row["p_attempts_exactly_k"]) == row["p_attempts_exactly_k"]
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("policy", "deadline", "attempt", "mean"),
    [
        (dk.Retry(0.5, 8.0, 40), 10, 0, "6.208"),
        (dk.Retry(0.5, 8.0, 40), 10.0, 0.2, "5.877"),
        (dk.Retry(0.1, 5.0, 40), 10.0, 0.1, "9.026"),
        (dk.Retry(1.0, 60.0, 40), 120.0, 0.0, "9.613"),
        (UNCAPPED, 1.0, 0.0, "2.271493"),
    ],
)
def test_the_mean_number_of_attempts_is_the_published_one(policy, deadline, attempt, mean):
    """The last is the sum of 1 / (n! 2^(n(n-1)/2)): uncapped, with a deadline of one window."""
    assert printed(expected_attempts(policy, deadline, attempt), mean) == mean


# --- the law itself -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waits", "seconds", "chance"),
    [
        (2, 2, Fraction(3, 4)),
        (3, 2, Fraction(7, 48)),
        (3, 3.5, Fraction(1, 2)),
        (4, 4, Fraction(5, 48)),
        (5, 8, Fraction(11, 128)),
        (0, 0, 1),
        (0, -0.1, 0),
        (1, 0, 0),
        (3, 7, 1),
        (3, 6.999999, 1 - Fraction(1, 10**18 * 6 * 8)),
        *((n, 1, Fraction(1, math.factorial(n) * 2 ** (n * (n - 1) // 2))) for n in range(1, 14)),
    ],
)
def test_doubling_windows_have_these_exact_fractions(waits, seconds, chance):
    """One second, no cap: the values of the Thue-Morse sum, worked out by hand."""
    assert total_at_most(UNCAPPED, waits, seconds) == chance
    assert exceeds(UNCAPPED, waits, seconds) == 1 - chance


def test_the_signs_of_doubling_windows_are_the_thue_morse_sequence():
    """The sum over whole numbers k with the parity of k's binary digits gives the same."""
    for waits in range(1, 9):
        for x in (Fraction(1, 3), Fraction(7, 2), Fraction(2**waits, 3), Fraction(2**waits - 2)):
            signed = sum(
                (-1) ** k.bit_count() * max(Fraction(0), x - k) ** waits for k in range(2**waits)
            )
            scale = math.factorial(waits) * 2 ** (waits * (waits - 1) // 2)
            assert total_at_most(UNCAPPED, waits, x) == min(1, signed / scale)


def test_a_quarter_of_the_way_tends_to_fabius_value():
    """5/72, and sixty windows, whose sum would have 2^60 terms, are no harder than six."""
    quarters = [total_at_most(UNCAPPED, n, 2 ** (n - 2)) for n in (4, 6, 8, 10, 12)]
    assert [printed(one, "0.0000") for one in quarters] == [
        "0.1042", "0.0775", "0.0714", "0.0699", "0.0696",
    ]  # fmt: skip
    far = dk.Retry(2.0**-30, 2.0**30, 60)
    chance = total_at_most(far, 60, 2.0**28)
    assert 0 < chance - Fraction(5, 72) < Fraction(1, 10**9)
    assert total_at_most(far, 60, moments(far, 60).mean) == Fraction(1, 2)


def test_at_thirteen_windows_floating_point_gives_no_probability_and_fractions_do():
    """The alternating sum in float64 is 37.8; exactly it is what all 2^13 subsets say."""
    n, x = 13, 0.9 * 2**13
    alternating = sum((-1) ** k.bit_count() * max(0.0, x - k) ** n for k in range(2**n))
    floating = alternating / (math.factorial(n) * 2.0 ** (n * (n - 1) / 2))
    assert floating > 30
    exact = total_at_most(UNCAPPED, n, x)
    assert exact == by_all_subsets([Fraction(2**k) for k in range(n)], Fraction(repr(x)))
    assert printed(exact, "0.0000") == "0.9989"


@laws
@given(policies(), st.integers(0, 7), st.fractions(0, 1, max_denominator=50))
def test_the_law_is_inclusion_and_exclusion_over_all_subsets(policy, waits, share):
    """For every jitter, floor, cap and first window; only the work is less."""
    windows = [jitter._window(policy, attempt) for attempt in range(1, waits + 1)]
    low, high = (sum(ends) for ends in zip(*windows, strict=True)) if windows else (0, 0)
    x = low + share * (high - low)
    widths = [high - low for low, high in windows if high > low]
    expected = by_all_subsets(widths, x - low) if widths else Fraction(x >= low)
    assert total_at_most(policy, waits, x) == expected


@laws
@given(st.lists(st.integers(1, 4), min_size=1, max_size=7), st.fractions(0, 1, max_denominator=50))
def test_the_law_holds_for_windows_in_any_ratio_and_number(widths, share):
    """Also where several of the narrower ones are equal, which no policy of today has."""
    exact = [Fraction(width, 3) for width in widths]
    groups = tuple(sorted(Counter(exact).items()))
    x = share * sum(exact)
    assert jitter._at_most(groups, x) == by_all_subsets(exact, x)


@laws
@given(policies(EXACT_KINDS), st.integers(1, 12), st.fractions(0, 1, max_denominator=20))
def test_the_total_is_symmetric_about_its_mean(policy, waits, share):
    """As far below the mean as above it; without a floor its mean is half of its extremes."""
    total = moments(policy, waits)
    least = sum(jitter._window(policy, attempt)[0] for attempt in range(1, waits + 1))
    assert 2 * total.mean == least + total.maximum
    if total.variance == 0:
        return
    distance = share * (total.maximum - total.mean)
    below = total_at_most(policy, waits, total.mean - distance)
    assert below == exceeds(policy, waits, total.mean + distance)
    assert total_at_most(policy, waits, total.mean) == Fraction(1, 2)


@laws
@given(thousandths, thousandths, st.integers(1, 20))
def test_with_full_jitter_median_and_mean_are_half_the_maximum(initial, cap, waits):
    """The closed forms of mean and variance agree too."""
    policy = dk.Retry(initial, cap)
    total, t0, top = moments(policy, waits), Fraction(repr(initial)), Fraction(repr(cap))
    windows = [min(top, t0 * 2**k) for k in range(waits)]
    assert total.maximum == 2 * total.mean == sum(windows)
    assert total.variance == sum(width**2 for width in windows) / 12
    assert total_at_most(policy, waits, total.maximum / 2) == Fraction(1, 2)


@laws
@given(policies(), st.integers(0, 9), thousandths, thousandths)
def test_a_chance_is_between_0_and_1_grows_with_time_and_falls_with_waits(
    policy, waits, one, other
):
    """A distribution function in its argument; another wait never makes the total shorter."""
    early, late = sorted((one, other))
    chance = total_at_most(policy, waits, early)
    assert 0 <= total_at_most(policy, waits + 1, early) <= chance
    assert chance <= total_at_most(policy, waits, late) <= 1
    assert total_at_most(policy, waits, moments(policy, waits).maximum) == 1
    assert total_at_most(policy, waits, Fraction(-1, 10**9)) == 0


@laws
@given(policies(["full", "equal", "none"]), st.integers(0, 9), thousandths)
def test_only_ratios_of_times_matter(policy, waits, seconds):
    """Everything ten times as long: the same chances."""
    tenfold = dk.Retry(
        round(policy.initial * 10, 2),
        round(policy.cap * 10, 2),
        jitter=policy.jitter,
        first_window=policy.first_window and round(policy.first_window * 10, 2),
        floor=round(policy.floor * 10, 2),
    )
    later = total_at_most(tenfold, waits, round(seconds * 10, 2))
    assert later == total_at_most(policy, waits, seconds)


@laws
@given(policies(), st.integers(1, 9), thousandths)
def test_one_wait_exceeds_as_the_total_of_one_does(policy, attempt, remaining):
    """The chance for a single window, by a law of the total on the policy that begins there."""
    low, high = jitter._window(policy, attempt)
    chance = exceeds_one(policy, attempt, remaining)
    left = Fraction(repr(remaining))
    if low == high:
        assert chance == (low > left)
    else:
        assert chance == min(1, max(0, (high - left) / (high - low)))
    if attempt == 1:
        assert chance == exceeds(policy, 1, remaining)


def test_a_tenth_is_a_tenth():
    """0.1 is not the binary number next to it: three of them are 0.3."""
    policy = dk.Retry(0.1, 0.1, jitter="none")
    assert moments(policy, 3).mean == Fraction(3, 10)
    assert total_at_most(policy, 3, 0.3) == 1
    assert total_at_most(dk.Retry(0.1, 5.0), 2, 0.2) == Fraction(3, 4)
    assert total_at_most(dk.Retry(1e-05, 5.0), 2, 2e-05) == Fraction(3, 4)


@laws
@given(policies(EVERY_KIND), st.integers(1, 40))
def test_exact_windows_are_the_runtimes_own(policy, attempt):
    """The fractions are the ends of `Retry.window`, which are floats."""
    if policy.jitter == "decorrelated":
        with pytest.raises(dk.InvalidField, match="jitter"):
            jitter._window(policy, attempt)
        return
    exact = [float(end) for end in jitter._window(policy, attempt)]
    assert exact == pytest.approx(policy.window(attempt), rel=1e-15)


def test_far_attempts_and_extreme_windows_have_no_overflow():
    """A thousand waits, and a window that doubles two thousand times before the cap."""
    policy = dk.Retry(0.5, 8.0)
    assert moments(policy, 1_000_000).maximum == Fraction(15, 2) + 999_996 * 8
    assert exceeds_one(policy, 10**9, 4) == Fraction(1, 2)
    tiny = dk.Retry(5e-324, 1.0)
    assert moments(tiny, 2000).maximum > 1
    assert wait_until_success(tiny, 0.5) > 0


# --- attempts and success -----------------------------------------------------------------


def test_a_wait_that_just_reaches_the_deadline_is_not_begun():
    """Without chance the rule's equality shows: 1 + 2 seconds do not fit into 3."""
    policy = dk.Retry(1.0, 8.0, 4, jitter="none")
    assert attempts_that_fit(policy, 3) == (1, 1, 0, 0)
    assert attempts_that_fit(policy, 3.000001) == (1, 1, 1, 0)
    assert exceeds(policy, 2, 3) == 0
    assert attempts_that_fit(dk.Retry(1.0, 8.0, 3, jitter="none", reserve=2.0), 3) == (1, 0, 0)
    assert attempts_that_fit(policy, 4, 0.5) == (1, 1, 0, 0)
    assert attempts_that_fit(policy, 4.6, 0.5) == (1, 1, 1, 0)


@pytest.mark.parametrize("kind", ["full", "equal", "additive"])
@pytest.mark.parametrize("last_chance", [False, True])
@pytest.mark.parametrize("floor", [0.0, 1.0])
def test_as_many_attempts_fit_as_the_runtimes_own_rule_begins(kind, last_chance, floor):
    """`durakit.retry.pause` decides for 4,000 clients; each P(N >= k) within four errors."""
    policy = dk.Retry(0.5, 8.0, 9, jitter=kind, floor=floor, reserve=0.3, last_chance=last_chance)
    deadline, attempt_seconds, clients = 12.0, 0.2, 4000
    made = np.zeros(policy.attempts, dtype=int)
    rng = random.Random(5)
    for _ in range(clients):
        now, previous, last = 0.0, None, False
        for attempt in range(1, policy.attempts + 1):
            made[attempt - 1] += 1
            now += attempt_seconds
            begun = pause(
                policy,
                attempt,
                rng.random(),
                remaining=deadline - now,
                previous=previous,
                last_chance_taken=last,
            )
            if begun is None:
                break
            now, previous, last = now + begun.seconds, begun.seconds, begun.last_chance
    for count, chance in zip(
        made, attempts_that_fit(policy, deadline, attempt_seconds), strict=True
    ):
        error = math.sqrt(chance * (1 - chance) / clients)
        assert abs(count / clients - chance) <= 4 * error


@pytest.mark.parametrize(
    ("failing", "mean"), [(0, 0), (0.5, Fraction(3, 4)), (0.8, "8.405"), (0.95, "65.08")]
)
def test_the_wait_until_success_is_the_published_one(failing, mean):
    """Half a second, capped at eight."""
    found = wait_until_success(dk.Retry(0.5, 8.0), failing)
    assert (printed(found, mean) if isinstance(mean, str) else found) == mean


def test_without_success_or_without_a_cap_the_wait_has_no_end():
    """Infinite where all fails; a far cap hardly matters below one half, and does from there on."""
    assert wait_until_success(dk.Retry(0.5, 8.0), 1) == math.inf
    third = Fraction(1, 3)
    uncapped = Fraction(1, 4) * third / (1 - 2 * third)
    assert abs(wait_until_success(dk.Retry(0.5, 2.0**31), third) - uncapped) < Fraction(1, 1000)
    near, far = (wait_until_success(dk.Retry(1.0, cap), 0.5) for cap in (2.0**10, 2.0**30))
    assert far - near == Fraction(20, 4)


@laws
@given(policies(), st.fractions(0, Fraction(3, 4), max_denominator=8))
def test_the_wait_until_success_is_the_sum_of_its_waits(policy, failing):
    """Wait n is made with probability q^n: sixty terms leave less than a rounding error."""
    terms = sum(
        failing**n * (moments(policy, n).mean - moments(policy, n - 1).mean) for n in range(1, 61)
    )
    rest = failing**61 / (1 - failing) * 6
    assert terms <= wait_until_success(policy, failing) <= terms + rest


# --- draws --------------------------------------------------------------------------------


@laws
@given(policies(EVERY_KIND), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=12))
def test_many_clients_waits_are_the_runtimes_own_to_the_last_bit(policy, draws):
    """The vectorised arithmetic is that of `Retry.wait`, for each jitter."""
    many, previous, one = Waits(policy), None, None
    for attempt, draw in enumerate(draws, start=1):
        previous = many.after(attempt, np.array([draw, 0.5]), previous)
        one = policy.wait(attempt, draw, one)
        assert previous[0] == one


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_drawn_waits_are_what_the_runtime_would_wait(kind):
    """The same generator, the same waits, each in its window; and so for sampled ones."""
    policy = dk.Retry(0.5, 8.0, jitter=kind)
    waits, rng = draw_waits(policy, 8, random.Random(4)), random.Random(4)
    previous = None
    for attempt, wait in enumerate(waits, start=1):
        low, high = policy.window(attempt, previous)
        assert low <= wait <= high
        assert wait == policy.wait(attempt, rng.random(), previous)
        previous = wait
    sampled = sample_waits(policy, 8, 3, seed=4)
    assert sampled.shape == (3, 8)
    assert np.array_equal(sampled, sample_waits(policy, 8, 3, seed=4))
    assert not np.array_equal(sampled, sample_waits(policy, 8, 3, seed=5)) or kind == "none"
    assert draw_waits(policy, 0, rng) == []
    assert sample_waits(policy, 0, 3, seed=1).shape == (3, 0)


@pytest.mark.parametrize("kind", ["full", "equal", "additive"])
@pytest.mark.parametrize("floor", [0.0, 0.7])
def test_formula_and_product_agree(kind, floor):
    """10,000 totals by the runtime's own `Retry.wait`: mean and chances within four errors."""
    policy, waits, clients = dk.Retry(0.5, 8.0, jitter=kind, floor=floor), 6, 10_000
    rng = random.Random(11)
    totals = np.array([sum(draw_waits(policy, waits, rng)) for _ in range(clients)])
    total = moments(policy, waits)
    assert abs(totals.mean() - total.mean) <= 4 * math.sqrt(total.variance / clients)
    for share in (-1, Fraction(-1, 2), 0, Fraction(1, 2), 1):
        x = total.mean + share * Fraction(math.sqrt(total.variance))
        chance = total_at_most(policy, waits, x)
        error = math.sqrt(chance * (1 - chance) / clients)
        assert abs((totals <= float(x)).mean() - chance) <= 4 * error


def test_decorrelated_waits_grow_by_half_and_pile_up_at_the_cap():
    """Uncapped mean 2 * 1.5^n - 1; with 0.5 and 8 s in the long run 43 % of waits are the cap."""
    growing = sample_waits(dk.Retry(1.0, 1e9, jitter="decorrelated"), 5, 200_000, seed=3)
    for n in range(1, 6):
        column = growing[:, n - 1]
        error = column.std() / math.sqrt(len(column))
        assert abs(column.mean() - (2 * 1.5**n - 1)) <= 4 * error
    capped = sample_waits(dk.Retry(0.5, 8.0, jitter="decorrelated"), 60, 20_000, seed=3)[:, -1]
    assert (capped == 8.0).mean() == pytest.approx(0.43, abs=0.015)
    assert capped.mean() / 8.0 == pytest.approx(0.682, abs=0.01)


# --- a wait that does not fit -------------------------------------------------------------


@pytest.fixture(scope="module")
def rules():
    """The simulation of the reference table: as many clients, other draws."""
    return {row.rule: row for row in deadline_policies(seed=1)}


@pytest.mark.parametrize("row", table("deadline-policies"), ids=lambda row: row["policy"])
def test_what_libraries_do_at_the_deadline_agrees_with_the_table(rules, row):
    """Each column within four standard errors of the difference of two such simulations."""
    own, clients = rules[row["policy"]], int(row["clients"])
    scale = 4 * math.sqrt(2 / clients)

    def near(value: float, column: str, deviation: float, rounding: float) -> None:
        assert abs(value - float(row[column])) <= scale * deviation + rounding, column

    near(own.attempts, "mean_attempts_permanent_outage", own.attempts_deviation, 0.0005)
    near(own.give_up, "mean_giveup_time", own.give_up_deviation, 0.0005)
    near(own.past_deadline, "p_past_deadline", 0.0, 0.00005)
    success, busiest = own.success, own.busiest
    near(success, "p_success_outage_ends_U(0_D)", math.sqrt(success * (1 - success)), 0.00005)
    if row["policy"] != "clamp_reserve":
        peak = math.sqrt(busiest * (1 - busiest))
        near(busiest, "peak_share_in_50ms_bin_after_2s", peak, 0.00005)


def test_the_share_that_a_clamp_puts_together_is_exact():
    """All whose last free attempt leaves time: the table's 94 % lost some at a bin's edge.

    Two starts are an attempt's time apart, so at most one free start lies in the last stretch
    from which nothing more fits; its chance is the difference of two mean numbers of attempts.
    """
    policy, clients = dk.Retry(0.5, 8.0, 64), 200_000
    freely = expected_attempts(policy, 10, 0.2) - expected_attempts(policy, Fraction(98, 10), 0.2)
    share = 1 - freely
    assert printed(share, "0.00000") == "0.95483"
    (own,) = deadline_policies(rules=["clamp_reserve"], seed=2)
    error = math.sqrt(share * (1 - share) / clients)
    assert abs(own.busiest - share) <= 4 * error
    together = expected_attempts(policy, 10, 0.2) + share
    assert abs(own.attempts - together) <= 4 * own.attempts_deviation / math.sqrt(clients)


def test_stop_and_last_chance_agree_with_the_exact_law(rules):
    """5.8766 attempts; one more for those who have time left for it."""
    for rule, last_chance in (("stop", False), ("last_chance", True)):
        exact = expected_attempts(dk.Retry(0.5, 8.0, 64, last_chance=last_chance), 10, 0.2)
        own = rules[rule]
        assert abs(own.attempts - exact) <= 4 * own.attempts_deviation / math.sqrt(200_000)


def test_the_simulation_obeys_the_policys_attempts_and_its_seed():
    """Three attempts are three under each rule; one attempt is no retry at all."""
    few = deadline_policies(dk.Retry(0.1, 0.2, 3), clients=50)
    assert {row.attempts for row in few} == {3.0}
    one = deadline_policies(dk.Retry(attempts=1), attempt_seconds=0.25, clients=3)
    assert {(row.attempts, row.give_up, row.busiest) for row in one} == {(1.0, 0.25, 0.0)}
    for kind in EVERY_KIND:
        policy = dk.Retry(0.5, 8.0, 20, jitter=kind)
        again = [deadline_policies(policy, clients=99, seed=7) for _ in range(2)]
        assert again[0] == again[1]


# --- refusals -----------------------------------------------------------------------------

DECORRELATED = dk.Retry(jitter="decorrelated")


@pytest.mark.parametrize(
    ("field", "ask"),
    [
        ("jitter", lambda: moments(DECORRELATED, 3)),
        ("jitter", lambda: total_at_most(DECORRELATED, 3, 1)),
        ("jitter", lambda: exceeds(DECORRELATED, 3, 1)),
        ("jitter", lambda: exceeds_one(DECORRELATED, 1, 1)),
        ("jitter", lambda: attempts_that_fit(DECORRELATED, 1)),
        ("jitter", lambda: wait_until_success(DECORRELATED, 0.5)),
        ("jitter", lambda: wait_until_success(DECORRELATED, 1)),
        ("waits", lambda: moments(dk.Retry(), -1)),
        ("waits", lambda: total_at_most(dk.Retry(), 1.0, 1)),
        ("waits", lambda: draw_waits(dk.Retry(), 2.5, random.Random(0))),
        ("waits", lambda: sample_waits(dk.Retry(), -1, 1, 0)),
        ("samples", lambda: sample_waits(dk.Retry(), 1, -1, 0)),
        ("attempt", lambda: exceeds_one(dk.Retry(), 0, 1)),
        ("seconds", lambda: total_at_most(dk.Retry(), 1, math.nan)),
        ("seconds", lambda: total_at_most(dk.Retry(), 1, "1")),
        ("deadline", lambda: exceeds(dk.Retry(), 1, math.inf)),
        ("deadline", lambda: attempts_that_fit(dk.Retry(), [1])),
        ("attempt_seconds", lambda: attempts_that_fit(dk.Retry(), 1, math.nan)),
        ("attempt_seconds", lambda: expected_attempts(dk.Retry(), 1, -0.1)),
        ("remaining", lambda: exceeds_one(dk.Retry(), 1, None)),
        ("failing", lambda: wait_until_success(dk.Retry(), 1.1)),
        ("failing", lambda: wait_until_success(dk.Retry(), -0.1)),
        ("clients", lambda: deadline_policies(clients=0)),
        ("rules", lambda: deadline_policies(rules=["stop", "clip"])),
        ("deadline", lambda: deadline_policies(deadline=0.0)),
        ("attempt_seconds", lambda: deadline_policies(attempt_seconds=-1.0)),
        ("waits", lambda: total_at_most(dk.Retry(), 10**6, 10)),
        ("waits", lambda: exceeds(dk.Retry(1e-300, 3e9), 1100, 1e9)),
        ("attempts", lambda: attempts_that_fit(dk.Retry(attempts=10**6), 10)),
        ("attempts", lambda: expected_attempts(dk.Retry(attempts=10**6), 10)),
        ("deadline", lambda: deadline_policies(deadline=3e9, clients=1)),
        ("deadline", lambda: deadline_policies(dk.Retry(0.5, 3e9), clients=1)),
    ],
)
def test_what_has_no_answer_is_refused_with_its_field(field, ask):
    """Decorrelated jitter has no closed form; counts, times and chances must be ones."""
    with pytest.raises(dk.InvalidField) as refused:
        ask()
    assert refused.value.field == field

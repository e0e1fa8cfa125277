"""Jitter in exact numbers: the total of the waits, the deadline, the attempts that fit.

Waits are independent and uniform on windows of different widths (``Retry.window``). Shifted by
their low ends, the total S of n of them, with widths c_1 … c_n, has the distribution ::

    P(S <= x) = 1 / (n! * c_1 * … * c_n) * sum over subsets I of (-1)^|I| * max(0, x - sum c_I)^n

(the volume of a box below a slanted plane, by inclusion and exclusion). For windows that double,
the subset sums are every whole number once and the signs are the Thue-Morse sequence; for ever
more of them the law, scaled, tends to Fabius' function; equal windows give Irwin and Hall's law.

The terms are huge and cancel: in float64 the sum is wrong in the fourth decimal at n = 11 and
gives 37.8, as a *probability*, at n = 13. So numbers here are exact: a float is taken as its
decimal text says, 0.1 as 1/10, and the answers are fractions. The sum has 2^n terms, but whole
blocks of them have a closed form (``_signed_sum``), so that about n^3 operations are enough.

Decorrelated jitter has no such law, since each wait depends on the one before: it is refused
here with InvalidField and can be sampled (``draws.sample_waits``).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

from durakit.errors import InvalidField
from durakit.lab.backoff.draws import whole
from durakit.retry import Jitter, Retry

__all__ = [
    "Moments",
    "attempts_that_fit",
    "exceeds",
    "exceeds_one",
    "expected_attempts",
    "moments",
    "total_at_most",
    "wait_until_success",
]


#: The exact law of more waits takes minutes, and Python's whole stack.
MOST_WAITS: Final = 300

#: Every float64 doubled this often is above every other.
_ALL_DOUBLINGS: Final = 2100


@dataclass(frozen=True)
class Moments:
    """Of a total of waits: mean and maximum in seconds, variance in seconds squared."""

    mean: Fraction
    variance: Fraction
    maximum: Fraction


# -- exact windows ---------------------------------------------------------------------------------


def _exact(field: str, value: object) -> Fraction:
    """The number that ``value`` is written as: 0.1 is 1/10."""
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise InvalidField(field, f"needs a number, got {value!r}")
    if not isinstance(value, float):
        return Fraction(value)
    if not math.isfinite(value):
        raise InvalidField(field, f"needs a finite number, got {value!r}")
    return Fraction(repr(float(value)))


def _at_most_waits(field: str, waits: int) -> None:
    if waits > MOST_WAITS:
        raise InvalidField(
            field, f"the exact law is computed of {MOST_WAITS} waits at most, not of {waits}"
        )


def _first(policy: Retry) -> Fraction:
    """The bound of the first wait in seconds, where the cap is not below it."""
    first = policy.initial if policy.first_window is None else policy.first_window
    return _exact("initial", first)


def _window(policy: Retry, attempt: int) -> tuple[Fraction, Fraction]:
    """``policy.window(attempt)`` as fractions of seconds."""
    doubled = _first(policy) * 2 ** min(attempt - 1, _ALL_DOUBLINGS)
    top = min(_exact("cap", policy.cap), doubled)
    match policy.jitter:
        case Jitter.FULL:
            low, high = Fraction(0), top
        case Jitter.EQUAL:
            low, high = top / 2, top
        case Jitter.NONE:
            low, high = top, top
        case Jitter.ADDITIVE:
            low, high = top, top + 1
        case _:
            raise InvalidField(
                "jitter",
                "decorrelated waits depend on each other and have no closed form: sample them",
            )
    floor = _exact("floor", policy.floor)
    return max(low, floor), max(high, floor)


def _windows(policy: Retry, waits: int) -> Counter[tuple[Fraction, Fraction]]:
    """The windows of the first ``waits`` waits, each with how often it occurs."""
    whole("waits", waits, 0)
    cap, top = _exact("cap", policy.cap), _first(policy)
    found = Counter[tuple[Fraction, Fraction]]()
    for attempt in range(1, waits + 1):
        if top >= cap:
            # From here on all windows are the same.
            found[_window(policy, attempt)] += waits - attempt + 1
            break
        found[_window(policy, attempt)] += 1
        top *= 2
    return found


def moments(policy: Retry, waits: int) -> Moments:
    """Mean, variance and maximum of the total of the first ``waits`` waits.

    A wait uniform on (low, high) has mean (low + high) / 2 and variance (high - low)^2 / 12; the
    sum of full-jitter waits is symmetric, so that its median too is half its maximum.
    Raises InvalidField for a negative count and for decorrelated jitter.
    """
    mean = variance = maximum = Fraction(0)
    for (low, high), times in _windows(policy, waits).items():
        mean += times * (low + high) / 2
        variance += times * (high - low) ** 2 / 12
        maximum += times * high
    return Moments(mean, variance, maximum)


# -- the law of the total --------------------------------------------------------------------------


#: (width, how many windows have it), by width, smallest first; widths are whole numbers.
_Groups = tuple[tuple[int, int], ...]


@lru_cache(maxsize=4096)
def _signed_powers(groups: _Groups, orders: int) -> tuple[int, ...]:
    """For r = 0 … ``orders``: the sum over all subsets I of (-1)^|I| * (sum of I)^r.

    One more width c takes from each subset's power that of the subset with c in it.
    """
    if not groups:
        return (1, *[0] * orders)
    *others, (width, times) = groups
    rest = (*others, (width, times - 1)) if times > 1 else tuple(others)
    known, powers = _signed_powers(rest, orders), [width**r for r in range(orders + 1)]
    return tuple(
        -sum(math.comb(r, s) * powers[r - s] * known[s] for s in range(r) if known[s])
        for r in range(orders + 1)
    )


def _signed_sum(groups: _Groups, n: int, over: int, under: int) -> int:
    """under^n * the sum over all subsets I of (-1)^|I| * max(0, x - sum of I)^n, x = over / under.

    The subsets are taken apart at the largest width: with j of its equal windows in them, or
    without. Where x is above all that is left, the maximum is idle and the sum a polynomial in x
    with known coefficients; where x is below zero there is nothing. With windows that double, at
    most one branch is neither, so that the 2^n terms are never written out.
    """
    if over <= 0:
        return 0
    if over >= under * sum(width * times for width, times in groups):
        # Orders in sixteens: then other numbers of waits ask for the same ones.
        known = _signed_powers(groups, -(-n // 16) * 16)
        return sum(
            math.comb(n, r) * over ** (n - r) * (-under) ** r * known[r]
            for r in range(n + 1)
            if known[r]
        )
    *others, (width, times) = groups
    return sum(
        (-1) ** taken
        * math.comb(times, taken)
        * _signed_sum(tuple(others), n, over - taken * width * under, under)
        for taken in range(times + 1)
    )


@lru_cache(maxsize=4096)
def _at_most(widths: tuple[tuple[Fraction, int], ...], x: Fraction) -> Fraction:
    """P(sum of uniforms on (0, width) <= x), by the formula at the top of this module."""
    # The law does not change with the unit of time: in this one the widths are whole.
    unit = math.lcm(*(width.denominator for width, _ in widths))
    groups = tuple((int(width * unit), times) for width, times in widths)
    over, under = (x * unit).as_integer_ratio()
    n = sum(times for _, times in groups)
    if over >= under * sum(width * times for width, times in groups):
        return Fraction(1)
    volume = math.factorial(n) * math.prod(width**times for width, times in groups)
    return Fraction(_signed_sum(groups, n, over, under), under**n * volume)


def _total(policy: Retry, waits: int, x: Fraction, *, below: bool = False) -> Fraction:
    """P(S <= x), or with ``below`` P(S < x), which differs only where no wait is random."""
    _at_most_waits("waits", waits)
    widths = Counter[Fraction]()
    for (low, high), times in _windows(policy, waits).items():
        x -= times * low
        if high > low:
            widths[high - low] += times
    if not widths:
        return Fraction(x > 0 if below else x >= 0)
    return _at_most(tuple(sorted(widths.items())), x)


def total_at_most(policy: Retry, waits: int, seconds: float | Fraction) -> Fraction:
    """P(the first ``waits`` waits together take at most ``seconds``), exact.

    Raises InvalidField for a negative count and for decorrelated jitter.
    """
    return _total(policy, waits, _exact("seconds", seconds))


def exceeds(policy: Retry, waits: int, deadline: float | Fraction) -> Fraction:
    """P(the first ``waits`` waits together take more than ``deadline`` seconds), exact."""
    return 1 - _total(policy, waits, _exact("deadline", deadline))


def exceeds_one(policy: Retry, attempt: int, remaining: float | Fraction) -> Fraction:
    """P(the wait after failed attempt ``attempt`` is longer than ``remaining`` seconds), exact.

    For full jitter with a window of c seconds that is max(0, 1 - remaining / c).
    """
    low, high = _window(policy, whole("attempt", attempt, 1))
    left = _exact("remaining", remaining)
    if left < low:
        return Fraction(1)
    return Fraction(0) if left >= high else (high - left) / (high - low)


# -- how many attempts, how long -------------------------------------------------------------------


def attempts_that_fit(
    policy: Retry, deadline: float | Fraction, attempt_seconds: float | Fraction = 0.0
) -> tuple[Fraction, ...]:
    """P(N >= k) for k = 1 … ``policy.attempts``, where every attempt fails: exact.

    An attempt takes a = ``attempt_seconds``; a wait is begun only if it leaves more than the
    reserve before the deadline. The reserve is the policy's own, and one attempt at least. Then
    P(N >= k + 1) = P(S_k < deadline - k * a - reserve). The first attempt is always made.
    With ``last_chance``, attempt k + 1 is made if attempt k was and left more than the reserve
    and the floor.
    """
    end, attempt = _exact("deadline", deadline), _exact("attempt_seconds", attempt_seconds)
    _at_most_waits("attempts", policy.attempts - 1)
    if attempt < 0:
        raise InvalidField("attempt_seconds", f"needs a time, got {attempt_seconds!r}")
    reserve = max(attempt, _exact("reserve", policy.reserve))
    own = 0
    if policy.last_chance:
        own, reserve = 1, reserve + _exact("floor", policy.floor)
    return tuple(
        Fraction(1) if k == 0 else _total(policy, k - own, end - k * attempt - reserve, below=True)
        for k in range(policy.attempts)
    )


def expected_attempts(
    policy: Retry, deadline: float | Fraction, attempt_seconds: float | Fraction = 0.0
) -> Fraction:
    """The mean number of attempts under ``attempts_that_fit``: the sum of its P(N >= k)."""
    return sum(attempts_that_fit(policy, deadline, attempt_seconds), Fraction(0))


def wait_until_success(policy: Retry, failing: float | Fraction) -> Fraction | float:
    """The mean total wait until an attempt succeeds, in seconds, attempts and time unlimited.

    ``failing``: the probability that an attempt fails, each by itself. Wait n is made with
    probability failing^n, so the mean is a geometric sum up to the cap and one in closed form
    from there on; infinite only where every attempt fails. (Without a cap it would be infinite
    from one half on, since the waits double.)
    Raises InvalidField for a share outside [0, 1] and for decorrelated jitter.
    """
    share = _exact("failing", failing)
    if not 0 <= share <= 1:
        raise InvalidField("failing", f"needs a probability, got {failing!r}")
    at_the_cap = sum(_window(policy, _ALL_DOUBLINGS + 1)) / 2
    if share == 1:
        return math.inf
    cap, top = _exact("cap", policy.cap), _first(policy)
    attempt, reached, mean = 1, share, Fraction(0)
    while top < cap:
        mean += reached * sum(_window(policy, attempt)) / 2
        attempt, reached, top = attempt + 1, reached * share, top * 2
    return mean + at_the_cap * reached / (1 - share)

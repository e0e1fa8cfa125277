"""One client's waits against its deadline: what one draw comes to, and what all draws do.

The waits are drawn by the runtime's own ``Retry`` from ``random.Random(seed)``, so a run with that
generator waits exactly those. The chances are exact fractions from ``durakit.lab.backoff.jitter``.

Here an attempt takes no time; everything on the axis is waiting. A wait is begun only where it ends
before the deadline, so 'the waits up to here reach the deadline' and 'the run is stopped by the
deadline before its next attempt' are one event, and have one chance.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from durakit.lab.backoff.draws import sample_waits
from durakit.lab.backoff.jitter import attempts_that_fit
from durakit.lab.html import Row
from durakit.retry import Retry, pause

__all__ = ["Backoff", "Wait", "in_percent"]


#: Where no closed form is known, so many runs are drawn instead.
_SAMPLES: Final = 20_000

#: A fraction with more characters than this is told by its percentage alone.
_LONGEST_FRACTION: Final = 36


@dataclass(frozen=True)
class Wait:
    """The wait after one failed attempt. Times in seconds since the first attempt."""

    attempt: int
    """the attempt that failed, from 1"""
    begins: float | None
    """when it failed; None where this draw never came so far"""
    low: float
    high: float
    """the window that the wait is drawn from; with decorrelated jitter it hangs on the draws"""
    seconds: float
    """what was drawn"""
    begun: bool
    """it ends before the deadline, so it is waited"""
    chance: Fraction | float
    """that the waits up to this one reach the deadline; a float is an estimate"""

    @property
    def ends(self) -> float | None:
        """When the next attempt is due."""
        return None if self.begins is None else round(self.begins + self.seconds, 6)


@dataclass(frozen=True)
class Backoff:
    """One draw of a whole policy against a deadline in seconds, and the chances of all draws."""

    policy: Retry
    deadline: float
    seed: int
    waits: tuple[Wait, ...]

    @classmethod
    def of(cls, policy: Retry, deadline: float, seed: int) -> Backoff:
        """Draw the waits as a run with ``random.Random(seed)`` does, and compute the chances."""
        rng = random.Random(seed)  # noqa: S311 - no secret
        waits: list[Wait] = []
        begins: float | None = 0.0
        for attempt, chance in enumerate(_chances(policy, policy.attempts - 1, deadline), 1):
            previous = waits[-1].seconds if waits else None
            draw = rng.random()
            low, high = policy.window(attempt, previous)
            seconds = policy.wait(attempt, draw, previous)
            begun = begins is not None and bool(
                pause(policy, attempt, draw, remaining=round(deadline - begins, 6),
                      previous=previous)
            )  # fmt: skip
            waits.append(Wait(attempt, begins, low, high, seconds, begun, chance))
            begins = waits[-1].ends if begun else None
        return cls(policy, deadline, seed, tuple(waits))

    @property
    def last(self) -> int:
        """The number of the last attempt of this draw."""
        return 1 + sum(wait.begun for wait in self.waits)

    @property
    def ends(self) -> float:
        """When this draw ends, in seconds: with its last attempt."""
        return next((w.begins for w in self.waits if w.begins is not None and not w.begun),
                    self.waits[-1].ends or 0.0 if self.waits else 0.0)  # fmt: skip

    @property
    def refused(self) -> Wait | None:
        """The wait that was drawn and not begun, if there is one."""
        return next((w for w in self.waits if w.begins is not None and not w.begun), None)

    @property
    def chance(self) -> Fraction | float:
        """That all waits together reach the deadline."""
        return self.waits[-1].chance if self.waits else Fraction(0)

    def words(self) -> str:
        """Return how this draw ends, in one or two sentences."""
        policy, wait = self.policy, self.refused
        who = f"{policy.jitter} jitter" if policy.jitter != "none" else "no jitter"
        if wait is None:
            left = self.deadline - self.ends
            return (
                f"With {who} and seed {self.seed}: all {policy.attempts} attempts are made, the "
                f"last one at {_seconds(self.ends)}, {_seconds(left)} before the deadline."
            )
        return (
            f"With {who} and seed {self.seed}: attempt {self.last} of {policy.attempts}, at "
            f"{_seconds(self.ends)}, is the last. The next wait, {_seconds(wait.seconds)}, would "
            f"reach the deadline of {self.deadline:g} s, so it is not begun."
        )

    def chance_words(self) -> str:
        """Return the chance that the deadline ends it: as a fraction where short, and percent."""
        waits = len(self.waits)
        chance = self.chance
        told = f"The chance that {waits} wait{'' if waits == 1 else 's'} reach{_es(waits)} "
        told += f"{self.deadline:g} s: "
        if not isinstance(chance, Fraction):
            return f"{told}about {in_percent(chance)}, from {_SAMPLES:,} draws (no exact formula)."
        exact = str(chance)
        if chance.denominator == 1 or len(exact) > _LONGEST_FRACTION:
            return f"{told}{in_percent(chance)}, computed exactly."
        return f"{told}exactly {exact} = {in_percent(chance)}."

    def rows(self) -> tuple[Row, ...]:
        """Return one row per wait."""
        return tuple(
            {
                "after attempt": wait.attempt,
                "at": "-" if wait.begins is None else _seconds(wait.begins),
                "window": "-" if wait.begins is None else _window(wait),
                "drawn": "-" if wait.begins is None else _seconds(wait.seconds),
                "so": _so(wait),
                "chance to reach the deadline": in_percent(wait.chance),
            }
            for wait in self.waits
        )


def _es(many: int) -> str:
    return "es" if many == 1 else ""


def _window(wait: Wait) -> str:
    if wait.low == wait.high:
        return f"{wait.low:.3f} s"
    return f"{wait.low:.3f} to {wait.high:.3f} s"


def _so(wait: Wait) -> str:
    if wait.begins is None:
        return "- not reached"
    if not wait.begun:
        return "✗ not begun"
    return f"◆ next at {wait.ends:.3f} s"


def _seconds(value: float) -> str:
    return f"{value:.3f} s"


def in_percent(chance: Fraction | float) -> str:
    """Return a chance in percent with two decimals; never '0' or '100' where it is not."""
    if chance in (0, 1):
        return f"{int(chance) * 100} %"
    if chance < Fraction(5, 100_000):
        return "< 0.01 %"
    if chance > 1 - Fraction(5, 100_000):
        return "> 99.99 %"
    return f"{float(100 * chance):.2f} %"


def _chances(policy: Retry, waits: int, deadline: float) -> list[Fraction | float]:
    """Return for n = 1, 2, … the chance that n waits reach the deadline."""
    if policy.jitter == "decorrelated":
        totals = np.cumsum(sample_waits(policy, waits, _SAMPLES, seed=0), axis=1)
        return [float(share) for share in (totals >= deadline).mean(axis=0)]
    # P(N >= k + 1), that attempt k + 1 is made, is P(k waits end before the deadline).
    return [1 - made for made in attempts_that_fit(policy, deadline)[1:]]

"""Limits: absolute inside, relative only where a person types them.

A child's limit is the smaller of its own and what is left of its parent's, and it keeps the
name of whichever that is: when it fires, the error names the level that really ran out.
All functions are pure; ``now`` is monotonic seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from durakit.errors import InvalidField

#: A hundred years, in seconds.
LONGEST = 3_155_760_000.0


@dataclass(frozen=True)
class Limit:
    """One level's end. ``ends`` is monotonic; ``level`` is session, turn, call or settle."""

    level: str
    name: str
    ends: float

    def remaining(self, now: float) -> float:
        """Seconds left at ``now``, never below zero."""
        return max(0.0, self.ends - now)


def narrow(parent: Limit | None, level: str, name: str, seconds: float, now: float) -> Limit:
    """The limit of a child that asks for ``seconds``: min(own, what the parent has left)."""
    own = Limit(level, name, now + seconds)
    return own if parent is None or own.ends < parent.ends else parent


def recovered(saved: float | None, deadline: float, wall: float) -> float:
    """Seconds left after a restart: min(remainder at the last append, deadline - now).

    A clock set back can so never add budget, and one set forward ends early, never late.
    """
    left = max(0.0, deadline - wall)
    return left if saved is None else min(max(0.0, saved), left)


def ahead(field: str, value: object) -> float:
    """``seconds`` that lead to a moment which a calendar has: a hundred years at most."""
    number = seconds(field, value)
    if number > LONGEST:
        raise InvalidField(field, f"is longer than a hundred years ({number:.3g} s)")
    return number


def seconds(field: str, value: object) -> float:
    """``value`` as a positive, finite number of seconds; else InvalidField naming the field."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidField(field, f"needs a number of seconds, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number <= 0:
        raise InvalidField(field, f"needs a positive, finite number of seconds, got {value!r}")
    return number

"""Time, passed in. Nothing else in durakit reads a clock.

``now()`` is wall time in seconds since the epoch (UTC): it may jump, and is what is saved.
``monotonic()`` only moves forward and means nothing outside its process: durations use it.
"""

from __future__ import annotations

import math
import time
from typing import Protocol

from durakit.errors import InvalidField

#: The system refuses a single sleep of centuries, which a service may well ask for.
_LONGEST_SLEEP = 1_000_000.0


class Clock(Protocol):
    """What the runtime asks of a clock. ``kind`` is remembered by the file it drives."""

    kind: str

    def now(self) -> float:
        """Wall time, seconds since 1970-01-01 UTC."""

    def monotonic(self) -> float:
        """Seconds from an origin of its own; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Wait; an interrupt passes through."""


class SystemClock:
    """The machine's own clock."""

    kind = "system"

    def now(self) -> float:
        """Wall time, seconds since 1970-01-01 UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds from an origin of its own; never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for real."""
        while seconds > 0:
            part = min(seconds, _LONGEST_SLEEP)
            time.sleep(part)
            seconds -= part


class ManualClock:
    """A clock that moves only when told to, or when somebody sleeps on it.

    Thirty virtual days pass at once. The two hands move apart where a test wants it:
    ``jump_wall`` moves wall time alone, as a clock correction does. ``sleeps`` lists every
    wait in seconds.
    """

    kind = "manual"

    #: 2026-01-01 09:00:00 UTC, so that lessons print the same times for everyone.
    START = 1_767_258_000.0

    def __init__(self, start: float = START, monotonic: float = 1000.0) -> None:
        self._wall = _finite("start", start)
        self._monotonic = _finite("monotonic", monotonic)
        self.sleeps: list[float] = []

    def now(self) -> float:
        """Wall time, seconds since 1970-01-01 UTC."""
        return self._wall

    def monotonic(self) -> float:
        """Seconds from an origin of its own; never goes back."""
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        """Advance at once and note the wait."""
        if seconds > 0:
            self.sleeps.append(seconds)
            self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass: both hands move. Raises InvalidField for a negative duration."""
        if not _finite("seconds", seconds) >= 0:
            raise InvalidField("seconds", f"time does not run backwards ({seconds!r})")
        # Rounded to a microsecond: sums of binary fractions would otherwise print as
        # 0.30000000000000004 in every lesson.
        self._wall = round(self._wall + seconds, 6)
        self._monotonic = round(self._monotonic + seconds, 6)

    def jump_wall(self, seconds: float) -> None:
        """Correct wall time by ``seconds`` (either sign); the monotonic hand stays."""
        self._wall = round(self._wall + _finite("seconds", seconds), 6)


def _finite(field: str, value: object) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise InvalidField(field, f"needs a finite number of seconds, got {value!r}")

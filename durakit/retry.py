"""After what wait may a failed attempt be repeated, and may it at all? Pure: draws are arguments.

Full jitter (Brooker, 'Exponential Backoff And Jitter', AWS Architecture Blog, 2015), with the
exponent the chapter uses::

    wait before attempt n+1  ~  Uniform(0, min(cap, initial * 2 ** (n - 1)))      n = 1, 2, …

A wait that would reach the deadline is not begun: sample, then stop. Clamping it to the
deadline would make most clients fire together at the last moment.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from itertools import count

from durakit.deadline import ahead
from durakit.errors import InvalidField

#: More attempts than that are a loop without an end, and no limit.
MOST_ATTEMPTS = 1_000_000


class Jitter(StrEnum):
    """How a wait is drawn, with v = min(cap, first window * 2 ** (n - 1))."""

    FULL = "full"
    """Uniform(0, v)"""
    EQUAL = "equal"
    """v/2 + Uniform(0, v/2)"""
    DECORRELATED = "decorrelated"
    """min(cap, Uniform(initial, 3 * the wait before)): grows 1.5-fold, and piles up at the cap"""
    NONE = "none"
    """v itself, for every client"""
    ADDITIVE = "additive"
    """v + Uniform(0, 1 s), as LangGraph 1.2 does it: it goes past the cap"""


def _check_count(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidField(field, f"needs a whole number, got {value!r}")
    if not 1 <= value <= MOST_ATTEMPTS:
        raise InvalidField(field, f"needs at least 1 and at most {MOST_ATTEMPTS}")


def _check_share(refill: object) -> None:
    known = isinstance(refill, int | float) and not isinstance(refill, bool)
    if not known or not 0 <= refill <= 1:  # type: ignore[operator]  # a number, as just checked
        raise InvalidField("refill", f"needs a number from 0 to 1, got {refill!r}")


class RetryBudget:
    """A token bucket that many operations share: how many retries they may make between them.

    It starts with ``tokens``. Each retry takes one, each success puts ``refill`` of one back,
    never above ``tokens``. Without a token there is no retry, whatever the policies say: so an
    outage multiplies the load by little, and not by the number of attempts. Threads may share
    it. It lives in this process; what a run's journal last saw of it survives a crash.

    Raises InvalidField for a number that makes no bucket.
    """

    def __init__(self, tokens: int = 10, refill: float = 0.1) -> None:
        _check_count("tokens", tokens)
        _check_share(refill)
        self._size = tokens
        self._refill = refill
        # A deque takes and gives one element at a time whatever the threads do.
        self._left = deque([None] * tokens, maxlen=tokens)
        self._successes = count(1)

    @property
    def tokens(self) -> int:
        """How many retries are left now."""
        return len(self._left)

    def take(self) -> bool:
        """Take a token for a retry; False where none is left."""
        try:
            self._left.pop()
        except IndexError:
            return False
        return True

    def put_back(self) -> None:
        """Return a token that was taken for a retry which then was not made."""
        self._left.append(None)

    def succeeded(self) -> None:
        """A call succeeded: ``refill`` of a token comes back."""
        nth = next(self._successes)
        if math.floor(nth * self._refill) > math.floor((nth - 1) * self._refill):
            self._left.append(None)

    def at_most(self, tokens: int) -> None:
        """Go on with what a journal last saw: a crash fills no bucket."""
        while len(self._left) > tokens and self.take():
            pass

    def __repr__(self) -> str:
        return f"RetryBudget(tokens={self._size}, refill={self._refill!r})"


@dataclass(frozen=True)
class Retry:
    """How often and after what waits an attempt may be repeated. All times in seconds.

    ``attempts`` counts the first one too. ``jitter``: see ``Jitter``. ``first_window``: the top
    of the first window where it is not ``initial``; AWS's own simulator begins one doubling
    later, at 2 * initial. ``floor``: no wait is shorter (a floor above the window makes every
    wait the floor, and clients then go in step). ``reserve``: the least time an attempt is worth
    starting with; a wait that would leave less before the deadline is not begun.
    ``last_chance``: where the drawn wait does not fit, make one final attempt somewhere before
    the deadline; for reads and keyed writes only. ``budget``: a token bucket shared with others.

    An ``initial``, ``first_window`` or ``floor`` above ``cap`` makes a policy that can be computed
    and drawn (two sliders move by themselves), and that ``dk.tool`` and ``dk.retry_call`` refuse:
    whoever waits has meant another one. ``first_window`` means nothing with decorrelated jitter,
    and ``attempts=1`` leaves no wait at all; both stay allowed, so that policies which differ in
    one field can be compared.

    Raises InvalidField for a limit that is negative, zero, NaN, huge or not a number.
    """

    initial: float = 0.5
    cap: float = 8.0
    attempts: int = 3
    _: KW_ONLY
    jitter: str = Jitter.FULL.value
    first_window: float | None = None
    floor: float = 0.0
    reserve: float = 0.0
    last_chance: bool = False
    budget: RetryBudget | None = None
    contradiction: tuple[str, str] | None = field(init=False, repr=False, compare=False)
    """(field, problem) of a policy that can be drawn and that nobody can have meant to wait by"""

    def __post_init__(self) -> None:
        """Check every field."""
        ahead("initial", self.initial)
        ahead("cap", self.cap)
        _check_count("attempts", self.attempts)
        if self.jitter not in tuple(Jitter):  # not a set: it may be no key of one
            known = ", ".join(Jitter)
            raise InvalidField("jitter", f"one of {known}; got {self.jitter!r}")
        if self.first_window is not None:
            ahead("first_window", self.first_window)
        for name in ("floor", "reserve"):
            value = getattr(self, name)
            if type(value) not in (int, float) or value != 0:
                ahead(name, value)
        if not isinstance(self.last_chance, bool):
            raise InvalidField("last_chance", f"needs True or False, got {self.last_chance!r}")
        if self.budget is not None and not isinstance(self.budget, RetryBudget):
            raise InvalidField("budget", f"needs a dk.RetryBudget, got {self.budget!r}")
        # Found once: whether a policy may be used is asked at every call.
        object.__setattr__(self, "contradiction", self._contradiction())

    def _contradiction(self) -> tuple[str, str] | None:
        for name in ("initial", "first_window", "floor"):
            seconds = getattr(self, name)
            if seconds is not None and seconds > self.cap:
                return name, f"{seconds:g} s is above the cap of {self.cap:g} s"
        if self.last_chance and self.attempts == 1:
            return "last_chance", "is another attempt, and attempts=1 allows none"
        return None

    def bound(self, attempt: int) -> float:
        """The top of the exponential window after failed attempt ``attempt`` (from 1), seconds."""
        try:
            return min(self.cap, math.ldexp(self.first_window or self.initial, attempt - 1))
        except OverflowError:
            return self.cap

    def window(self, attempt: int, previous: float | None = None) -> tuple[float, float]:
        """The ends (low, high) between which the wait after failed attempt ``attempt`` lies.

        ``previous``: the wait drawn before, which only decorrelated jitter looks at.
        """
        top = self.bound(attempt)
        match self.jitter:
            case Jitter.FULL:
                low, high = 0.0, top
            case Jitter.EQUAL:
                low, high = top / 2, top
            case Jitter.NONE:
                low, high = top, top
            case Jitter.ADDITIVE:
                low, high = top, top + 1.0
            case _:
                widest = 3 * (self.initial if previous is None else previous)
                low, high = min(self.cap, self.initial), min(self.cap, max(self.initial, widest))
        return max(low, self.floor), max(high, self.floor)

    def wait(
        self,
        attempt: int,
        draw: float,
        previous: float | None = None,
        retry_after: float | None = None,
    ) -> float:
        """The wait after failed attempt ``attempt``, seconds: ``draw`` is uniform in [0, 1).

        What the service asked for (``retry_after``) is a floor.
        """
        if self.jitter == Jitter.DECORRELATED:
            # Cut off after drawing, as AWS does: the window's own top is not the cap.
            widest = max(self.initial, 3 * (self.initial if previous is None else previous))
            drawn = min(self.cap, self.initial + draw * (widest - self.initial))
            drawn = max(drawn, self.floor)
        else:
            low, high = self.window(attempt)
            drawn = low + draw * (high - low)
        return drawn if retry_after is None else max(drawn, retry_after)


@dataclass(frozen=True)
class Pause:
    """A wait that may be begun. ``bound``: the top of the window it was drawn from, seconds."""

    seconds: float
    bound: float
    last_chance: bool = False


#: The low digits of a draw are a second draw, independent of what its high digits decided.
_SECOND_DRAW = 2**20


def pause(
    policy: Retry,
    attempt: int,
    draw: float,
    *,
    remaining: float | None,
    previous: float | None = None,
    retry_after: float | None = None,
    last_chance_taken: bool = False,
) -> Pause | None:
    """The wait before the next attempt, or None where it would reach the deadline.

    Sample, then stop: no wait is shortened to fit. A policy with a last chance has one more
    attempt then, at a moment of its own between the floor (the service's too) and the deadline.
    """
    if last_chance_taken:
        return None
    wait = policy.wait(attempt, draw, previous, retry_after)
    high = policy.window(attempt, previous)[1]
    if remaining is None or wait + policy.reserve < remaining:
        return Pause(wait, high)
    earliest, room = max(policy.floor, retry_after or 0.0), remaining - policy.reserve
    if not policy.last_chance or earliest >= room:
        return None
    again = math.modf(draw * _SECOND_DRAW)[0]
    return Pause(earliest + again * (room - earliest), room, last_chance=True)

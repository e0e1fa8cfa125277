"""Retry outside a run: one function called again and again, within limits, and nothing saved.

A retried function may call another one that is retried. The limits are inherited then, as a
deadline is: whoever retries takes one from its own attempts and one from each layer around it.
So 3 attempts around 3 attempts call three times and not nine, and no layer outlasts the one
around it. A tool inside a run is such a layer too. A thread that the function starts by itself is
inside of no layer.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from durakit.clock import Clock, SystemClock
from durakit.deadline import ahead
from durakit.define import check_retry
from durakit.errors import DeadlineExceeded, InvalidField
from durakit.failures import Failure, FailureKind, classify
from durakit.protocol import Effect
from durakit.retry import Pause, Retry, pause

T = TypeVar("T")


@dataclass(frozen=True)
class Retried:
    """One retry that is about to be waited for. ``attempt`` (from 1) is the one that failed."""

    attempt: int
    error: Exception
    failure: Failure
    pause: Pause
    remaining: float | None
    """seconds until the deadline; None without one"""


class Layer:
    """What one layer of retrying has left, and the layer around it."""

    __slots__ = ("clock", "ends", "left", "outer", "over", "rng", "used")

    def __init__(
        self,
        retries: int,
        clock: Clock | None = None,
        ends: float | None = None,
        rng: random.Random | None = None,
        outer: Layer | None = None,
    ) -> None:
        self.left = retries
        self.used = 0
        #: a layer inside has given up because of the deadline that it has from this one
        self.over = False
        self.clock = clock
        self.ends = ends
        self.rng = rng
        self.outer = outer

    def take(self) -> bool:
        """Take one retry from this layer and from each around it; False where one has none."""
        layer: Layer | None = self
        while layer is not None:
            if layer.left <= 0:
                return False
            layer = layer.outer
        layer = self
        while layer is not None:
            layer.left -= 1
            layer.used += 1
            layer = layer.outer
        return True

    def run(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call ``function`` as the work inside this layer.

        In a copy of the context, and not by setting and resetting: an interrupt between the two
        would leave this layer around all that comes later, which then had no attempts left.
        """
        inside = copy_context()
        inside.run(_around.set, self)
        return inside.run(function, *args, **kwargs)


#: The layer that the code now running is inside of.
_around: ContextVar[Layer | None] = ContextVar("durakit retry layer", default=None)

_CLOCK = SystemClock()
#: Without a state of its own, so that forked processes do not draw the same waits.
_RNG = random.SystemRandom()
_RETRY = Retry()
_EFFECTS = tuple(effect.value for effect in Effect)


def retry_call(
    function: Callable[..., T],
    /,
    *args: Any,
    retry: Retry = _RETRY,
    effect: str = "opaque",
    deadline: float | None = None,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    on_retry: Callable[[Retried], object] | None = None,
    **kwargs: Any,
) -> T:
    """Call ``function(*args, **kwargs)`` until it succeeds or may not be tried again.

    ``effect``: what the function does outside, as for ``dk.tool``. A failure that proves that
    nothing happened is retried for every effect; one that proves nothing is retried for
    ``none``, and for ``idempotent`` (the function sends one and the same key each time); for
    ``queryable`` and ``opaque`` it is raised at once. With ``none`` the type alone says whether
    another try is worth it: a TypeError, a KeyError or an answer that does not parse comes from
    code that will do the same again, so it is permanent, and nothing outside has to be found
    out. With ``idempotent`` the very same error is *unknown*: it may have come after the service
    has acted, and the resend is how one learns that. ``deadline``: seconds for everything, waits
    included. ``clock``, ``rng``: of the layer around, else the system's. ``on_retry`` is called
    before each wait. What the function sets in context variables stays inside, as in a thread.

    Raises the last error, with a note that says why it was not retried. Where an earlier attempt
    may have been executed, raises that attempt's error: a later refusal tells nothing about it.
    Raises DeadlineExceeded, from that error, for a wait that would reach the deadline, and
    InvalidField for a limit that is none. Whatever is no Exception passes through untouched.
    """
    if effect not in _EFFECTS:
        raise InvalidField("effect", f"one of {', '.join(Effect)}; got {effect!r}")
    if not isinstance(retry, Retry):
        raise InvalidField("retry", f"needs a dk.Retry, got {retry!r}")
    if retry.contradiction is not None or retry.last_chance:
        check_retry(retry, Effect(effect))
    outer = _around.get()
    if outer is not None:
        clock, rng = clock or outer.clock, rng or outer.rng
    layer = Layer(retry.attempts - 1, clock, None, rng, outer)
    if deadline is not None:
        layer.ends = (clock or _CLOCK).monotonic() + ahead("deadline", deadline)
    if outer is not None and outer.ends is not None:
        layer.ends = outer.ends if layer.ends is None else min(layer.ends, outer.ends)

    def attempts() -> T:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever it raises is judged
            again = _Again(function, args, kwargs, retry, Effect(effect), layer, on_retry)
            value: T = again.after(error)
            return value

    value = layer.run(attempts)
    if retry.budget is not None:
        retry.budget.succeeded()
    return value


class _Again:
    """The way after a first failure: most calls never come here."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        retry: Retry,
        effect: Effect,
        layer: Layer,
        on_retry: Callable[[Retried], object] | None,
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.retry = retry
        self.effect = effect
        self.layer = layer
        self.clock = layer.clock or _CLOCK
        self.rng = layer.rng or _RNG
        self.on_retry = on_retry
        #: of the first attempt that may have been executed
        self.unknown: Exception | None = None

    def after(self, error: Exception) -> Any:
        """Retry after ``error`` until there is a value; else raise what is known."""
        attempt, waited, last_chance_taken = 1, None, False
        while True:
            failure = classify(error, effect=self.effect is not Effect.NONE, now=self.clock.now())
            if failure.kind is FailureKind.UNKNOWN:
                self.unknown = self.unknown or error
            if self.layer.over:
                raise self._known(error)
            why = self._why_not(failure)
            if why is not None:
                self._give_up(error, why)
            remaining = self._remaining()
            drawn = pause(
                self.retry, attempt, self.rng.random(), remaining=remaining, previous=waited,
                retry_after=failure.retry_after, last_chance_taken=last_chance_taken,
            )  # fmt: skip
            if drawn is None:
                self._too_late(error)
            waited, last_chance_taken = drawn.seconds, drawn.last_chance
            if self.on_retry is not None:
                self.on_retry(Retried(attempt, error, failure, drawn, remaining))
            if drawn.seconds > 0:
                self.clock.sleep(drawn.seconds)
                if self._remaining() == 0.0:
                    self._too_late(error)
            attempt += 1
            try:
                return self.function(*self.args, **self.kwargs)
            except Exception as raised:  # noqa: BLE001 - whatever it raises is judged
                error = raised

    def _why_not(self, failure: Failure) -> str | None:
        """The rule that forbids another attempt; None where it may be made (and is counted)."""
        kind, retry = failure.kind, self.retry
        if kind in (FailureKind.PERMANENT, FailureKind.INFEASIBLE):
            return f"{kind.value} ({failure.reason})"
        if kind is FailureKind.UNKNOWN and self.effect is not Effect.IDEMPOTENT:
            return f"it is unknown whether it was executed ({failure.reason})"
        if self.layer.left <= 0:
            return f"{retry.attempts} attempts are used up"
        if retry.budget is not None and not retry.budget.take():
            return "the retry budget is used up"
        if not self.layer.take():
            if retry.budget is not None:
                retry.budget.put_back()
            return "the attempts of the layer around it are used up"
        return None

    def _remaining(self) -> float | None:
        ends = self.layer.ends
        return None if ends is None else max(0.0, ends - self.clock.monotonic())

    def _give_up(self, error: Exception, why: str) -> NoReturn:
        known = self._known(error)
        known.add_note(f"not retried: {why}")
        raise known

    def _too_late(self, error: Exception) -> NoReturn:
        if self.retry.budget is not None:
            self.retry.budget.put_back()  # taken for a retry that is not made
        name = getattr(self.function, "__name__", type(self.function).__name__)
        last = f"last error: {type(error).__name__}"
        outer = self.layer.outer
        while outer is not None and outer.ends == self.layer.ends:
            outer.over, outer = True, outer.outer
        raise DeadlineExceeded("call", name, last) from self._known(error)

    def _known(self, error: Exception) -> Exception:
        """What the whole came to: a refusal of a later attempt settles no earlier one."""
        if self.unknown is None or self.unknown is error:
            return error
        self.unknown.add_note(
            f"a later attempt ended with {type(error).__name__}, which says nothing about this one"
        )
        return self.unknown

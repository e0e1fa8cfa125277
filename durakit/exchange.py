"""One exchange with the service: the tool's function, its probe, its cancel, each within a limit.

Nothing is saved here and nothing is decided: what comes back says how the exchange ended. An
attempt that is left at its limit goes on elsewhere (see ``workers``), and may still be heard of.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from durakit.clock import Clock
from durakit.deadline import Limit
from durakit.define import Found, Tool
from durakit.drive import Drive
from durakit.errors import DeadlineExceeded, Stop
from durakit.failures import Failure, FailureKind, classify
from durakit.protocol import Probed
from durakit.retrying import Layer
from durakit.slots import in_one_line, reply_text
from durakit.workers import Abandoned

#: How long (seconds) a service is listened to that is asked to give an attempt up.
LONGEST_ASKING = 5.0


@dataclass(eq=False, repr=False)
class Attempted:
    """How one attempt ended."""

    value: Any = None
    error: Exception | None = None
    failure: Failure | None = None
    cancel: str | None = None
    """what came of asking the service to give it up"""
    fired: Limit | None = None
    """the limit that had passed when it ended"""
    inner_retries: int = 0
    """retries that the tool made inside it"""


class CallHandle:
    """What the tool sees of its own call; see ``durakit.define.Call``."""

    __slots__ = ("_clock", "_ends", "attempt", "fence", "key")

    def __init__(
        self, key: str, attempt: int, fence: int, clock: Clock, ends: float | None
    ) -> None:
        self.key = key
        self.attempt = attempt
        self.fence = fence
        self._clock = clock
        self._ends = ends

    def remaining(self) -> float | None:
        """Seconds left for this attempt, never below zero; None without a limit."""
        if self._ends is None:
            return None
        return max(0.0, round(self._ends - self._clock.monotonic(), 6))


class Exchange:
    """What one operation says to its service and hears from it."""

    def __init__(
        self,
        drive: Drive,
        tool: Tool,
        key: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        occurrence: int,
    ) -> None:
        self.drive = drive
        self.tool = tool
        self.key = key
        self.args = args
        self.kwargs = kwargs
        self.occurrence = occurrence

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """(file, account, tool, key): what an attempt that was left behind is known by."""
        return (self.drive.store.name, self.drive.row.account, self.tool.name, self.key)

    def _handle(self, attempt: int, ends: float | None) -> CallHandle:
        return CallHandle(self.key, attempt, self.drive.lease.token, self.drive.clock, ends)

    def send(
        self, attempt: int, limit: Limit | None, *, has_effect: bool, retries: int
    ) -> Attempted:
        """Run the tool's function, at most until ``limit`` where the tool has a timeout.

        ``retries``: how many more the policy allows; what the tool retries by itself inside
        counts as such, so that layers do not multiply.
        """
        tool, clock = self.tool, self.drive.clock
        ends = None if limit is None else limit.ends
        handle = self._handle(attempt, ends)
        if self.drive.watched:
            self.drive.incarnation.busy = (tool.name, self.occurrence, attempt)

        # A copy for each attempt: what a tool does to its arguments reaches neither the next
        # attempt (same key, same content) nor the workflow (a replay would not see it).
        args, kwargs = copied(self.args), self.kwargs and copy.deepcopy(self.kwargs)
        layer = Layer(max(0, retries), clock, ends, self.drive.around.rng)

        def work() -> Any:
            return layer.run(tool.function, handle, *args, **kwargs)

        began = clock.monotonic()
        abandoned: Abandoned | None = None
        value: Any = None
        error: Exception | None = None
        try:
            abandoned, value = self._bounded(f"tool {tool.name}", work, ends, attempt=True)
        except Exception as raised:  # noqa: BLE001 - whatever a tool raises is judged
            error = raised
        except BaseException as interrupt:
            if not isinstance(interrupt, Stop):
                self.ask_to_cancel(attempt)  # whoever interrupts us does not want it any more
            raise
        self._die_if_dead()
        over = tool.timeout is not None and ends is not None and clock.monotonic() > ends
        if abandoned is None and over and error is None:
            # Without a thread of its own the tool could not be left at its limit; its reply
            # is treated as what it is: one that came too late, and evidence.
            abandoned = Abandoned.finished(value, partial(reply_text, tool))
        if abandoned is not None:
            self.drive.around.workers.abandon(self.identity, abandoned)
            assert limit is not None
            ended = self._left(limit, clock.monotonic() - began, attempt, has_effect)
        elif error is None:
            return Attempted(value)
        else:
            judged = classify(error, effect=has_effect, now=clock.now())
            # It has seen its limit fire itself, and told nothing of what the service did.
            left = over and judged.kind is FailureKind.UNKNOWN
            asked = self.ask_to_cancel(attempt) if left else None
            fired = limit if limit is not None and clock.monotonic() >= limit.ends else None
            ended = Attempted(None, error, judged, asked, fired)
        ended.inner_retries = layer.used
        return ended

    def _left(self, limit: Limit, took: float, attempt: int, has_effect: bool) -> Attempted:
        """An attempt that was left at its limit."""
        cancel = self.ask_to_cancel(attempt)
        what = f"{self.tool.name} gave no reply within {took:.3g} s"
        error = DeadlineExceeded(limit.level, limit.name, what)
        kind = FailureKind.UNKNOWN if has_effect else FailureKind.TRANSIENT
        judged = Failure(kind, f"no reply before the {limit.level} limit")
        return Attempted(None, error, judged, cancel, limit)

    def probe(self, attempt: int, limit: Limit | None) -> tuple[Found | Probed, str | None]:
        """Ask about the key: the answer, and what was wrong with it where something was."""
        probe = self.tool.probe
        assert probe is not None
        ends = None if limit is None else limit.ends
        handle = self._handle(attempt, ends)
        problem = None
        answer: Any = Probed.STILL_UNKNOWN
        try:
            what = f"probe of {self.tool.name}"
            left, answer = self._bounded(what, lambda: probe(handle), ends, attempt=False)
            if left is not None:
                answer, problem = Probed.STILL_UNKNOWN, "no answer before the limit"
        except Exception as error:  # noqa: BLE001 - a probe that fails has told nothing
            answer, problem = Probed.STILL_UNKNOWN, in_one_line(error)
        self._die_if_dead()
        if isinstance(answer, Found | Probed):
            return answer, problem
        kind = type(answer).__name__
        problem = f"a probe answers Found(…), Absent or StillUnknown, and this one a {kind}"
        return Probed.STILL_UNKNOWN, problem

    def ask_to_cancel(self, attempt: int) -> str | None:
        """Ask the service to give an attempt up, where the tool can; what came of the asking.

        A wish and no proof: the outcome stays what it was.
        """
        cancel, clock = self.tool.cancel, self.drive.clock
        if cancel is None:
            return None
        ends = clock.monotonic() + min(LONGEST_ASKING, self.tool.timeout or LONGEST_ASKING)
        handle = self._handle(attempt, ends)
        try:
            what = f"cancel of {self.tool.name}"
            left, _ = self._bounded(what, lambda: cancel(handle), ends, attempt=False)
        except Exception as error:  # noqa: BLE001 - it changes nothing
            return f"requested; {in_one_line(error)}"
        return "requested" if left is None else "requested; no answer"

    def _bounded(
        self, inside: str, work: Callable[[], Any], ends: float | None, *, attempt: bool
    ) -> tuple[Abandoned | None, Any]:
        """Run one exchange: (None, value), or (the job, None) once ``ends`` has passed.

        A tool with a limit runs on a thread of its own, where it can be left; any other, and
        every tool on a virtual clock, in this one. Raises what ``work`` raised.
        """
        self.drive.inside = inside
        try:
            if self.tool.timeout is None or self.drive.clock.kind != "system":
                return None, work()
            assert ends is not None
            left = max(0.0, ends - self.drive.clock.monotonic())
            job = Abandoned(work, self.drive.incarnation, dump=partial(reply_text, self.tool))
            return self.drive.around.workers.run(job, left, self.identity if attempt else None)
        finally:
            self.drive.inside = None

    def _die_if_dead(self) -> None:
        """A crash inside the service has reached this incarnation."""
        if self.drive.incarnation.dead is not None:
            self.drive.stop(self.drive.incarnation.dead)


_UNCHANGING = frozenset({str, int, float, bool, type(None)})


def copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """``args``, and nothing in it shared; most arguments are values that cannot change."""
    if all(type(value) in _UNCHANGING for value in args):
        return args
    return copy.deepcopy(args)

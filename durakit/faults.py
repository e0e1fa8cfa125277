"""Crash points: where a run can be stopped, and what stopping means.

A crash freezes first. From the crash point on, this incarnation's store and world refuse every
touch by raising the crash again, and only then does the stack unwind: a dead process runs no
``finally``. With ``kill`` the same point ends the process with SIGKILL instead; both leave the
same rows on disk.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from durakit.errors import InvalidField, SimulatedCrash

#: Every crash point, in the order of the protocol, by what it belongs to.
POINTS: dict[str, tuple[str, ...]] = {
    "run": ("run_saved", "run_claimed", "end_saved"),
    "step": ("before_step", "step_done", "step_saved"),
    "call": (
        "before_intent",
        "intent_saved",
        "request_sent",
        "effect_done",
        "reply_received",
        "result_saved",
    ),
    "claim": ("key_claimed",),
    "recovery": ("probe_answered",),
    "wait": ("wait_saved",),
    "machine": ("checkpoint_saved",),
}

_ALL = frozenset(point for points in POINTS.values() for point in points)

#: The world's words for what it has just done → our crash point.
WORLD_POINTS = {
    "received": "request_sent",
    "claimed": "key_claimed",
    "held": "request_sent",
    "acted": "effect_done",
}

Fate = Literal["lost", "late"]


@dataclass(frozen=True)
class Boundary:
    """One boundary that a run has passed. ``number`` counts from 1 within the incarnation."""

    number: int
    place: str
    point: str
    occurrence: int
    attempt: int
    incarnation: int


@dataclass(frozen=True, init=False)
class CrashAt:
    """Where to crash: ``CrashAt("send_email", "effect_done")``, or ``CrashAt(5)``.

    By name: the step or tool (``"run"`` for the run's own points), the point, and which
    occurrence, attempt and incarnation of it. By number: the n-th boundary this run passes,
    from 1, as the sweep's table numbers them. ``incarnation`` counts the run's claims.
    ``fate`` says what becomes of a request that was sent when the process died: ``lost``, or
    ``late`` (the service acts on it after the crash).

    Raises InvalidField, also for what would say nothing: an occurrence or attempt beside a number,
    ``late`` at a point where no request is on its way.
    """

    place: str | None
    point: str | None
    occurrence: int
    attempt: int
    incarnation: int
    number: int | None
    fate: Fate

    def __init__(
        self,
        step_or_tool: str | int,
        point: str | None = None,
        occurrence: int = 1,
        attempt: int = 1,
        incarnation: int = 1,
        *,
        fate: Fate = "lost",
    ) -> None:
        number: int | None = None
        if isinstance(step_or_tool, int) and not isinstance(step_or_tool, bool):
            number = _count("number", step_or_tool)
            if point is not None:
                raise InvalidField("point", "a crash is given by number or by name, not by both")
        elif not isinstance(step_or_tool, str):
            raise InvalidField("step_or_tool", f"needs a name or a number, got {step_or_tool!r}")
        elif not isinstance(point, str) or point not in _ALL:
            raise InvalidField(
                "point", f"{point!r} is not a crash point; there are {', '.join(sorted(_ALL))}"
            )
        if fate not in ("lost", "late"):
            raise InvalidField("fate", f"'lost' or 'late', got {fate!r}")
        if fate == "late" and point not in (None, "request_sent", "key_claimed"):
            raise InvalidField("fate", f"at {point!r} no request is on its way that could be late")
        values = {
            "place": None if number else step_or_tool,
            "point": point,
            "occurrence": _count("occurrence", occurrence),
            "attempt": _count("attempt", attempt),
            "incarnation": _count("incarnation", incarnation),
            "number": number,
            "fate": fate,
        }
        for name in ("occurrence", "attempt") if number else ():
            if values[name] != 1:
                raise InvalidField(name, "a crash by number is at that one boundary of its life")
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def matches(self, boundary: Boundary) -> bool:
        """Whether ``boundary`` is the one."""
        if boundary.incarnation != self.incarnation:
            return False
        if self.number is not None:
            return boundary.number == self.number
        return (
            boundary.place == self.place
            and boundary.point == self.point
            and boundary.occurrence == self.occurrence
            and boundary.attempt == self.attempt
        )

    @property
    def seed(self) -> str:
        """This crash as one word, for ``parse`` on any machine: ``effect_done@send_email``.

        A + in the place is written twice, so that one between two seeds joins them.
        """
        named = f"{self.point}@{(self.place or '').replace('+', '++')}"
        parts = [named if self.number is None else str(self.number)]
        for letter, value in (("o", self.occurrence), ("a", self.attempt), ("i", self.incarnation)):
            if value != 1:
                parts.insert(0, f"{letter}{value}")
        if self.fate == "late":
            parts.insert(0, "late")
        return ":".join(parts)

    @classmethod
    def parse(cls, seed: str) -> CrashAt:
        """The crash that ``seed`` names. Raises InvalidField for text that is none."""
        _check_text("seed", seed)
        if "+" in seed.replace("++", ""):
            raise InvalidField("seed", f"{seed!r} names two crashes: dk.sweep(…, only=seed)")
        head, at, place = seed.replace("++", "+").partition("@")
        *marks, last = head.split(":")
        values: dict[str, Any] = {}
        names = {"o": "occurrence", "a": "attempt", "i": "incarnation"}
        for mark in marks:
            if mark == "late":
                values["fate"] = "late"
            elif mark[:1] in names and mark[1:].isdecimal():
                values[names[mark[0]]] = int(mark[1:])
            else:
                raise InvalidField("seed", f"{mark!r} in {seed!r} is not part of a crash")
        if at:
            return cls(place, last, **values)
        if not last.isdecimal():
            raise InvalidField(
                "seed", f"{seed!r} names no crash; one looks like effect_done@send_email, or 5"
            )
        return cls(int(last), **values)

    def __str__(self) -> str:
        late = "" if self.fate == "lost" else " (the request acts late)"
        if self.number is not None:
            return f"boundary {self.number}{late}"
        which = "".join(
            f", {name} {value}"
            for name, value in (
                ("occurrence", self.occurrence),
                ("attempt", self.attempt),
                ("incarnation", self.incarnation),
            )
            if value != 1
        )
        return f"{self.point} of {self.place}{which}{late}"


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidField(name, f"needs text, got {type(value).__name__}")


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidField(name, f"counts from 1, got {value!r}")
    return value


class Incarnation:
    """One life of a driver: it notes the boundaries it passes, and may die at one of them.

    ``freeze`` is called once, before the crash is raised. ``seen`` receives every boundary.
    """

    def __init__(
        self,
        number: int,
        crash: CrashAt | None,
        *,
        kill: bool = False,
        freeze: Callable[[SimulatedCrash], None],
        seen: Callable[[Boundary], None] | None = None,
    ) -> None:
        self.number = number
        self.dead: SimulatedCrash | None = None
        self._crash = crash
        self._kill = kill
        self._freeze = freeze
        self._seen = seen
        self._passed = 0
        self._claimed = False
        #: (step or tool, occurrence, attempt) that is under way; the world's points belong to it
        self.busy: tuple[str, int, int] = ("run", 1, 1)

    @property
    def armed(self) -> bool:
        """Whether it was to die somewhere, and lives."""
        return self._crash is not None and self.dead is None

    @property
    def watched(self) -> bool:
        """Whether anybody cares about boundaries; if not, passing one costs nothing."""
        return self._crash is not None or self._seen is not None

    def reach(self, place: str, point: str, occurrence: int = 1, attempt: int = 1) -> None:
        """Pass a boundary, or die there."""
        self._pass(place, point, occurrence, attempt)

    def world(self, point: str, _key: str | None) -> str | None:
        """The world tells what it has just done for us; a dead incarnation is refused.

        Returns the fate of the request where the plan is that it acts late: a world that can
        hold a request keeps it, says ``held``, and the crash happens there. So does a crash while
        the key is claimed, which is one of ours and not of the world.
        """
        if self.dead is not None:
            raise self.dead
        ours = WORLD_POINTS.get(point)
        if ours is None or not self.watched:
            return None
        if point == "received" and self._is_next("late", ours):
            return "late"
        if point == "claimed" and self._is_here(ours):
            self._claimed = True  # the service does not die with us: it has the key, and goes on
            return "late"
        if point == "held" and self._claimed:
            ours = WORLD_POINTS["claimed"]
        self._pass(self.busy[0], ours, self.busy[1], self.busy[2])
        return None

    def _is_next(self, fate: Fate, point: str) -> bool:
        return self._crash is not None and self._crash.fate == fate and self._is_here(point)

    def _is_here(self, point: str) -> bool:
        boundary = self._boundary(*self.busy[:1], point, *self.busy[1:])
        return self._crash is not None and self._crash.matches(boundary)

    def _boundary(self, place: str, point: str, occurrence: int, attempt: int) -> Boundary:
        return Boundary(self._passed + 1, place, point, occurrence, attempt, self.number)

    def _pass(self, place: str, point: str, occurrence: int, attempt: int) -> None:
        if self.dead is not None:
            raise self.dead
        if not self.watched:
            return
        boundary = self._boundary(place, point, occurrence, attempt)
        self._passed += 1
        if self._seen is not None:
            self._seen(boundary)
        if self._crash is not None and self._crash.matches(boundary):
            self._die(boundary)

    def _die(self, boundary: Boundary) -> NoReturn:
        if self._kill:
            kill_this_process()
        self.dead = SimulatedCrash(boundary.place, boundary.point)
        self._freeze(self.dead)
        raise self.dead


def kill_this_process() -> NoReturn:
    """End this process the hard way: no ``finally``, no exit handler, no flush."""
    hard = getattr(signal, "SIGKILL", None)
    if hard is not None:
        os.kill(os.getpid(), hard)
    else:  # pragma: no cover - Windows: TerminateProcess is its SIGKILL
        os.kill(os.getpid(), signal.SIGTERM)
    while True:  # pragma: no cover - the signal is on its way
        signal.pause() if hasattr(signal, "pause") else None


class _Current(threading.local):
    incarnation: Incarnation | None = None


#: Which incarnation the running thread works for. A world calls ``world_hook`` from whatever
#: thread used it; a person's own look at the world belongs to no incarnation and is never
#: refused.
current = _Current()


def world_hook(point: str, key: str | None = None) -> str | None:
    """What worlds call, see ``Incarnation.world``."""
    incarnation = current.incarnation
    return None if incarnation is None else incarnation.world(point, key)


def attach(world: Any) -> bool:
    """Let crash points reach ``world``; False where it has no hook."""
    listen = getattr(world, "listen", None)
    if not callable(listen):
        return False
    listen(world_hook)
    return True

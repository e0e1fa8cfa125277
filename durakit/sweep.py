"""The sweep: crash a workflow at every boundary, recover it, and count the effects.

One uncrashed run in a fresh world numbers the boundaries and is the reference. Then each
boundary gets a fresh folder, a fresh world and a new run that dies there: by a simulated crash,
or in a child process killed with SIGKILL. A second driver recovers it, and the verdict compares
what the *world's own ledger* says with the reference. The runtime's belief is only ever judged,
never asked.

With two crashes per schedule the recovery dies too, at each boundary that it passes where it is
left alone, and a third driver recovers. The second crash begins with a copy of what the first has
left, so the first is not lived again for each; from there every schedule has files of its own.

A world may say that it has claimed a key and not acted yet (``key_claimed``). It does not die with
the run: the request is at work, and acts some time after the crash. Until then whoever comes with
the same key is told that it is in progress, which is no failure and no answer.

A schedule is one word, its *seed*: the seeds of its crashes (``CrashAt.seed``) joined by ``+``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from durakit import values
from durakit.define import Workflow, name_text, standing
from durakit.errors import InvalidField
from durakit.faults import Boundary, CrashAt
from durakit.kill import Children, Mode, can_fork, children
from durakit.lives import Ending, Seen, Task

if TYPE_CHECKING:
    import pandas as pd

#: Called twice for each schedule whose crashes were reached, with ``"crashed"`` (the last of them)
#: and then ``"recovered"``, its seed and the folder whose files (``run.db``, ``world/``) are then
#: as that moment left them. It may read, and must leave no file open.
Watch = Callable[[Literal["crashed", "recovered"], str, Path], None]

#: Called with how many schedules are done, and how many there are as far as is known.
Progress = Callable[[int, int], object]

SAFE = "safe"
HANDED_OVER = "safe: handed over as unknown"
COMPENSATED = "safe: compensated"
DUPLICATE = "duplicate"
LOST = "lost"
WRONG_RESULT = "wrong result"
STUCK = "stuck"
BLIND_GUESS = "blind guess"
NOT_REACHABLE = "not reachable"

#: Points that only a world with a hook can report.
_WORLD_POINTS = ("request_sent", "effect_done")

#: Free bytes without which a disk in memory is not used.
_ROOM = 1 << 30


@dataclass(frozen=True)
class Schedule:
    """One row of the sweep: where the run died, what recovery made of it, and the verdict.

    The columns from ``number`` to ``fate`` are those of the first crash.
    """

    number: int
    place: str
    point: str
    occurrence: int
    attempt: int
    fate: str
    seed: str
    """the whole schedule as one word, for ``sweep(…, only=seed)``; of a single crash also for
    ``CrashAt.parse``"""
    effects: int | None
    """rows in the world's ledger at the end"""
    status: str
    verdict: str
    detail: str
    incarnation: int = 1
    then: str = ""
    """where the recovery died too: the second crash as a seed, empty for a single one"""

    @property
    def good(self) -> bool:
        """Whether the world is as it should be, or a person has been asked."""
        return self.verdict.startswith(SAFE)


@dataclass(frozen=True)
class Report:
    """What a sweep found. ``reference`` is the number of effects without any crash."""

    workflow: str
    mode: Mode
    reference: int
    schedules: tuple[Schedule, ...]
    ending: str = ""
    """how the run ends without a crash, where that is not as ``completed``: status and why"""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The schedules as dictionaries."""
        return [asdict(schedule) for schedule in self.schedules]

    @property
    def safe(self) -> bool:
        """Every boundary was reached and none of them broke anything."""
        return all(schedule.good for schedule in self.schedules)

    @property
    def counterexample(self) -> str | None:
        """The seed of the smallest schedule that breaks it, for ``only=``; None if none does.

        One crash is smaller than two, an earlier one than a later one. A guess that went well
        counts only where nothing worse was found.
        """
        return smallest(s for s in self.schedules if not s.good and s.verdict != NOT_REACHABLE)

    def table(self) -> pd.DataFrame:
        """One row per schedule.

        Columns: number, place, point, attempt, fate, effects, status, verdict, detail; and where
        they say something, incarnation and then (see ``Schedule``).
        """
        from durakit import tables  # noqa: PLC0415 - pandas is loaded with the first table

        table = tables.sweep(self.rows)
        for name, place in (("then", 5), ("incarnation", 0)):
            if name in _columns(self.schedules):
                table.insert(place, name, [getattr(s, name) for s in self.schedules])
        return table

    def text(self) -> str:
        """The table as plain text, and the summary under it."""
        return f"{as_text(self.schedules)}\n\n{self.summary()}"

    def summary(self) -> str:
        """One line: how many schedules, how many of each verdict, the counterexample."""
        counts = Counter(schedule.verdict for schedule in self.schedules)
        found = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        pairs = sum(1 for schedule in self.schedules if schedule.then)
        told = f"{len(self.schedules) - pairs} crashes" + (f" and {pairs} pairs" if pairs else "")
        crash = self.counterexample
        tail = f"; smallest counterexample: {crash}" if crash else ""
        ending = f" ({self.ending})" if self.ending else ""
        return (
            f"{self.workflow}: {told} ({self.mode}), "
            f"{self.reference} effect(s) without a crash{ending}: {found}{tail}"
        )

    def __repr__(self) -> str:
        return f"<sweep of {self.summary()}>"


def smallest(bad: Iterable[Schedule]) -> str | None:
    """The seed of the smallest of ``bad`` schedules, which stand in the sweep's order."""
    ordered = sorted(bad, key=lambda s: (s.verdict == BLIND_GUESS, bool(s.then)))
    return ordered[0].seed if ordered else None


def as_text(schedules: Sequence[Schedule]) -> str:
    """A table of some schedules, one line for each under a line of headings."""
    columns = _columns(schedules)
    lines = [columns, *([str(getattr(s, c)) for c in columns] for s in schedules)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _columns(schedules: Sequence[Schedule]) -> list[str]:
    later = any(s.incarnation > 1 for s in schedules)
    pairs = any(s.then for s in schedules)
    return [
        *(["incarnation"] if later else []), "number", "place", "point", "fate",
        *(["then"] if pairs else []), "effects", "status", "verdict",
    ]  # fmt: skip


def parse_seed(seed: str) -> tuple[CrashAt, ...]:
    """The crashes, one or two, of the schedule that ``seed`` names. Raises InvalidField."""
    # A + that belongs to a place stands twice, and no seed begins with one: so of an odd number
    # in a row the last one joins.
    parts = re.findall(r"(?:[^+]|\+\+)+", seed, re.DOTALL)
    if "+".join(parts) != seed or len(parts) > 2:
        raise InvalidField("seed", f"one crash, or two joined by +; got {seed!r}")
    return tuple(CrashAt.parse(part) for part in parts or [seed])


def join_seeds(crashes: Iterable[CrashAt]) -> str:
    """The seed of a schedule: ``parse_seed`` gives the crashes back."""
    return "+".join(crash.seed for crash in crashes)


def sweep(
    workflow: Workflow,
    /,
    *args: Any,
    world: Any,
    crashes: Literal[1, 2] = 1,
    mode: Mode = "simulated",
    deadline: float | None = None,
    signals: Mapping[str, Any] | None = None,
    keep: str | os.PathLike[str] | None = None,
    seed: int = 0,
    only: str | None = None,
    progress: bool | Progress | None = None,
    watch: Watch | None = None,
    **kwargs: Any,
) -> Report:
    """Crash ``workflow(*args)`` at every boundary, recover, and judge by the world's ledger.

    ``workflow``: a workflow or a machine. ``world``: has ``fresh(folder)`` (from now on it lives in
    that folder, which may be a copy; an empty folder is an empty world) and ``effects()`` (rows
    with tool, key, digest), and where it can ``listen(hook)``; a ``clock`` attribute is set to
    the sweep's virtual clock. It is put back into its own ``folder`` at the end, where it tells
    one.

    ``crashes``: 2 also crashes each recovery at every boundary of its own, and recovers that.
    ``mode``: ``"simulated"``, or ``"process"`` for a child killed by SIGKILL at each point.
    ``signals``: what ``ctx.wait_for`` is told, by name, each time that the run waits for it; timers
    end by themselves, in virtual time. ``keep``: a folder in which each schedule's files stay.
    ``seed``: of the waits that are drawn. ``only``: the one schedule to try, as its seed, whatever
    ``crashes`` says. ``progress``: True for a line on the terminal, or a function of how many are
    done and how many there are. ``watch``: see ``Watch``.

    A new interpreter has the world as its module defines it: what this process has changed in
    it since (a profile, a plan of faults) is not known there.

    Raises UsageError where the workflow cannot be run at all or waits for ever, or a child cannot
    be made here; InvalidField.
    """
    if not isinstance(workflow, Workflow):
        raise InvalidField("workflow", f"declare it with @dk.workflow; got {workflow!r}")
    if mode not in ("simulated", "process"):
        raise InvalidField("mode", f"'simulated' or 'process', got {mode!r}")
    if isinstance(crashes, bool) or crashes not in (1, 2):
        raise InvalidField("crashes", f"1 or 2 in a schedule, got {crashes!r}")
    for verb in ("fresh", "effects"):
        if not callable(getattr(world, verb, None)):
            raise InvalidField("world", f"needs {verb}(); {type(world).__name__} has none")
    for name, value in (signals or {}).items():
        name_text("signals", name)
        values.plain_json(value)
    wanted = None if only is None else parse_seed(only)
    form = workflow.parameters.dump(args, kwargs)
    with (
        _home(keep) as home,
        _borrowed(world),
        standing(workflow),  # what recovers is found by its name, and must be this one
        _telling(progress, workflow.name) as tell,
    ):
        task = Task(workflow, form, world, deadline, seed, dict(signals or {}))
        task = task.with_blank(home / "blank")
        boundaries, reference = task.reference(home / "reference")
        with children(task, mode) as kids:
            bench = _Bench(task, home, reference, kids, watch, tell, kept=keep is not None)
            if wanted is None:
                schedules = bench.every(boundaries, pairs=crashes == 2)
            else:
                schedules = [bench.single(boundaries, wanted)]
        for extra in ("blank", "nowhere"):
            shutil.rmtree(home / extra, ignore_errors=True)
    how = f"{reference.status}: {reference.reason}" if reference.status != "completed" else ""
    return Report(workflow.name, mode, len(reference.effects), tuple(schedules), how)


@contextlib.contextmanager
def _home(keep: str | os.PathLike[str] | None) -> Iterator[Path]:
    if keep is not None:
        home = Path(keep)
        home.mkdir(parents=True, exist_ok=True)
        if any(home.iterdir()):
            raise InvalidField("keep", f"{home} is not empty")
        yield home
        return
    folder = tempfile.mkdtemp(prefix="durakit-sweep-", dir=_memory_disk())
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _memory_disk() -> str | None:
    """A disk in memory, where there is one with room: no file of a sweep outlives it.

    What a killed process has written is there as on any other disk; only the power takes it.
    """
    disk = "/dev/shm"  # noqa: S108 - mkdtemp makes a folder of our own there
    if "TMPDIR" in os.environ or not os.path.isdir(disk):  # noqa: PTH112 - beside os.access
        return None
    usable = os.access(disk, os.W_OK | os.X_OK) and shutil.disk_usage(disk).free > _ROOM
    return disk if usable else None


@contextlib.contextmanager
def _borrowed(world: Any) -> Iterator[None]:
    """Give the world back as it was: its folder and its clock, where it tells them."""
    folder, clock = getattr(world, "folder", None), getattr(world, "clock", None)
    try:
        yield
    finally:
        if clock is not None:
            world.clock = clock
        if folder is not None:
            world.fresh(folder)


# -- the schedules -------------------------------------------------------------------------


class _Point(NamedTuple):
    """One crash to try, and the boundary where it happens."""

    crash: CrashAt
    boundary: Boundary


class _Lived(NamedTuple):
    """A schedule of one crash that was tried, and what a second one begins with."""

    point: _Point
    schedule: Schedule
    left: Path
    """a copy of what the crash has left; not there where nothing was asked for"""
    recovery: list[Boundary]
    """what the recovery came by"""


def _points(boundaries: Iterable[Boundary], hooked: bool) -> Iterator[_Point]:
    """Every crash to try: each boundary once, and a request also with its other fate."""
    names: set[tuple[Any, ...]] = set()
    for boundary in boundaries:
        name = (boundary.place, boundary.point, boundary.occurrence, boundary.attempt)
        where: tuple[Any, ...] = (*name, boundary.incarnation)
        if where in names:  # a probe that is put again, a tool that sends twice: by its number
            where = (boundary.number, None, 1, 1, boundary.incarnation)
        names.add(where)
        yield _Point(CrashAt(*where), boundary)
        if boundary.point == "request_sent":
            yield _Point(CrashAt(*where, fate="late"), boundary)
        if not hooked and boundary.point == "intent_saved":
            for point in _WORLD_POINTS:
                crash = CrashAt(boundary.place, point, *name[2:], boundary.incarnation)
                yield _Point(crash, replace(boundary, point=point))


class _Bench:
    """Tries schedules, each in a folder of its own, and judges how they end."""

    def __init__(
        self,
        task: Task,
        home: Path,
        reference: Ending,
        kids: Children | None,
        watch: Watch | None,
        tell: Progress,
        *,
        kept: bool,
    ) -> None:
        self._task = task
        self._home = home
        self._reference = reference
        self._kids = kids
        self._watch = watch
        self._tell = tell
        self._kept = kept
        self._hooked = callable(getattr(task.world, "listen", None))
        self._last: Path | None = None

    def every(self, boundaries: list[Boundary], *, pairs: bool) -> list[Schedule]:
        """All schedules of one crash, and then with ``pairs`` all of two."""
        points = list(_points(boundaries, self._hooked))
        lived = []
        for number, point in enumerate(points, 1):
            lived.append(self._first(number, point, pairs=pairs))
            self._tell(number, len(points))
        schedules = [first.schedule for first in lived]
        follow = [list(_points(first.recovery, self._hooked)) for first in lived]
        total = len(points) + sum(map(len, follow))
        for number, (first, seconds) in enumerate(zip(lived, follow, strict=True), 1):
            for nth, second in enumerate(seconds, 1):
                schedules.append(self._second(f"{number:03}-{nth:03}", first, second))
                self._tell(len(schedules), total)
            shutil.rmtree(first.left, ignore_errors=True)
        return schedules

    def single(self, boundaries: list[Boundary], crashes: tuple[CrashAt, ...]) -> Schedule:
        """The one schedule that ``crashes`` is."""
        first, second = crashes[0], crashes[1] if len(crashes) > 1 else None
        point = self._find(boundaries, first)
        if point is None:
            return _unreachable(crashes, "the run never comes by there")
        watch, self._watch = self._watch, None if second else self._watch
        lived = self._first(1, point, pairs=second is not None)
        self._watch = watch
        if second is None:
            return lived.schedule
        if lived.schedule.verdict == NOT_REACHABLE:
            return _unreachable(crashes, lived.schedule.detail)
        point = self._find(lived.recovery, second)
        if point is None:
            return _unreachable(crashes, "the recovery never comes by there")
        schedule = self._second("001-001", lived, point)
        shutil.rmtree(lived.left, ignore_errors=True)
        return schedule

    def _find(self, boundaries: list[Boundary], crash: CrashAt) -> _Point | None:
        for point in _points(boundaries, self._hooked):
            if crash.matches(point.boundary) and crash.fate == point.crash.fate:
                return _Point(crash, point.boundary)
        return None

    def _first(self, number: int, point: _Point, *, pairs: bool) -> _Lived:
        """One crash and its recovery; with ``pairs`` what a second crash needs is kept."""
        folder = self._home / f"{number:03}-{point.boundary.point}-{point.crash.fate}"
        left = self._home / f"{number:03}-left"
        why_not = self._die(folder, point, 1)
        if why_not:
            return _Lived(point, _unreachable([point.crash], why_not, [point]), left, [])
        if pairs:
            self._task.leave(folder)
            _copied(folder, left)
        recovery: list[Boundary] = []
        seen = recovery.append if pairs else None
        return _Lived(point, self._end(folder, [point], seen), left, recovery)

    def _second(self, name: str, first: _Lived, point: _Point) -> Schedule:
        """The recovery after the first crash dies too, and a third driver recovers."""
        points = [first.point, point]
        folder = self._home / f"{name}-{first.point.boundary.point}+{point.boundary.point}"
        _copied(first.left, folder)
        why_not = self._die(folder, point, 2)
        if why_not:
            return _unreachable([p.crash for p in points], why_not, points)
        return self._end(folder, points, None)

    def _die(self, folder: Path, point: _Point, life: int) -> str:
        """Live up to the crash; why it cannot be reached, empty where it was."""
        crash, boundary = point
        if not self._hooked and boundary.point in _WORLD_POINTS:
            return "the world has no hook"
        dies = self._task.crash if self._kids is None else self._kids.kill
        if dies(folder, crash, life):
            return ""
        if crash.fate == "late" or boundary.point == "key_claimed":
            return "the world cannot hold a request"
        return "the run took another way"

    def _end(self, folder: Path, points: list[_Point], seen: Seen | None) -> Schedule:
        """Recover what the last crash has left, and judge."""
        seed = join_seeds(point.crash for point in points)
        if self._watch is not None:
            self._watch("crashed", seed, folder)
        ending = self._task.recover(folder, len(points) + 1, seen=seen)
        if self._watch is not None:
            self._watch("recovered", seed, folder)
        if not self._kept:
            # The world is still in this folder, and has left the one before.
            if self._last is not None:
                shutil.rmtree(self._last, ignore_errors=True)
            self._last = folder
        verdict, detail = _verdict(ending, self._reference)
        return _row(points, len(ending.effects), ending.status, verdict, detail)


def _copied(folder: Path, to: Path) -> None:
    shutil.copytree(folder, to, copy_function=shutil.copy)


def _unreachable(
    crashes: Sequence[CrashAt], why: str, points: Sequence[_Point] | None = None
) -> Schedule:
    """The row of a schedule that could not be tried; ``points`` None: of one that is nowhere."""
    if points is None:
        points = [
            _Point(
                c, Boundary(c.number or 0, c.place or "", c.point or "", c.occurrence, c.attempt,
                            c.incarnation),
            )
            for c in crashes
        ]  # fmt: skip
    return _row(points, None, "", NOT_REACHABLE, why)


def _row(
    points: Sequence[_Point], effects: int | None, status: str, verdict: str, detail: str
) -> Schedule:
    crash, boundary = points[0]
    return Schedule(
        boundary.number, boundary.place, boundary.point, boundary.occurrence, boundary.attempt,
        crash.fate if boundary.point == "request_sent" else "",
        join_seeds(point.crash for point in points), effects, status, verdict, detail,
        boundary.incarnation, points[1].crash.seed if len(points) > 1 else "",
    )  # fmt: skip


# -- the judge -----------------------------------------------------------------------------


def _verdict(ending: Ending, reference: Ending) -> tuple[str, str]:
    """Effects first, then the state of the run, then what the runtime believed."""
    expected, found = Counter(reference.effects), Counter(ending.effects)
    extra, missing = found - expected, expected - found
    keys = Counter(reference.keys)
    for (tool, key), count in Counter(ending.keys).items():
        if count > max(1, keys[tool, key]):
            return DUPLICATE, f"{count} effects under the key {key!r}"
    if len(ending.effects) > len(reference.effects) or any(effect in expected for effect in extra):
        return DUPLICATE, f"{extra.total()} effect(s) more than without a crash"
    if extra:
        return WRONG_RESULT, "an effect with other content than without a crash"
    if ending.status in ("running", "waiting"):
        return STUCK, ending.reason or f"still {ending.status} after recovery"
    happened, should = {key for _, key in ending.keys}, {key for _, key in reference.keys}
    believed = [
        f"{tool} {key!r} is {outcome}, and the ledger says otherwise"
        for tool, key, outcome in ending.operations
        if (outcome == "completed" and key in should - happened)
        or (outcome == "not_executed" and key in happened)
    ]
    if believed:
        return BLIND_GUESS, believed[0]
    if ending.blind:
        return BLIND_GUESS, "an unknown operation was sent again without proof; it went well"
    if ending.status == "needs_decision":
        asked = ending.why == "unknown" or reference.status == "needs_decision"
        return (HANDED_OVER if asked else STUCK), ending.reason
    if ending.compensated and not reference.compensated:
        return COMPENSATED, "it stayed unknown, and what it may have done is undone"
    if missing and ending.status == "completed":
        return LOST, f"{missing.total()} effect(s) less than without a crash"
    if (ending.status, ending.result) != (reference.status, reference.result):
        return WRONG_RESULT, f"{ending.status}: {ending.result or ending.reason}"[:200]
    return SAFE, ""


# -- progress ------------------------------------------------------------------------------


@contextlib.contextmanager
def _telling(progress: bool | Progress | None, name: str) -> Iterator[Progress]:
    """What the sweep tells its progress to."""
    if progress is True:
        line = _Line(name)
        try:
            yield line
        finally:
            line.close()
    elif progress is None or progress is False:
        yield lambda done, total: None  # noqa: ARG005
    elif callable(progress):
        yield progress
    else:
        raise InvalidField("progress", f"True, or a function of (done, total); got {progress!r}")


class _Line:
    """One line that is written over, where somebody sees it: on a terminal or in a notebook."""

    def __init__(self, name: str) -> None:
        self._name = "".join(c if c.isprintable() else "?" for c in name[:40])
        self._stream = sys.stderr if _is_seen(sys.stderr) else None
        self._shown = ""

    def __call__(self, done: int, total: int) -> None:
        """Show it, a hundred times at most for each total."""
        share = 100 * done // total
        text = f"{self._name}: [{'#' * (share // 4):<25}] {share:3} % of {total}"
        if self._stream is not None and text != self._shown:
            self._stream.write(f"\r{text}")
            self._stream.flush()
            self._shown = text

    def close(self) -> None:
        """End the line, where one was begun."""
        if self._stream is not None and self._shown:
            self._stream.write("\n")


def _is_seen(stream: Any) -> bool:
    if stream is None:  # a process without a console
        return False
    return bool(stream.isatty()) or type(stream).__module__.startswith("ipykernel")


__all__ = [
    "Progress", "Report", "Schedule", "as_text", "can_fork", "join_seeds", "parse_seed",
    "smallest", "sweep",
]  # fmt: skip

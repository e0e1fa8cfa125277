"""Scenarios: one workflow, crashed everywhere beforehand, so that looking at a crash is instant.

A ``Scenario`` says what is run; its ``trace`` is what came out, for every crash of the sweep: the
``Moment`` at that crash, and the same after a recovery. All of it comes from really running, in a
temporary folder; what a widget shows later is only looked up. ``kill_for_real`` does one of the
crashes in a child process, and compares what it leaves.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from durakit.clock import ManualClock
from durakit.define import Workflow
from durakit.errors import InvalidField
from durakit.lab.crash.moments import Moment
from durakit.lab.html import Row, Shown, Table, h, one_line
from durakit.runtime import Runtime
from durakit.sweep import NOT_REACHABLE, Report, Schedule, sweep

__all__ = ["POINT_WORDS", "Frame", "RealKill", "Scenario", "Trace", "kill_for_real"]


#: What a crash point means, in words that a learner can check against the disk.
POINT_WORDS: Final = {
    "run_saved": "run saved, driven by nobody yet",
    "run_claimed": "run claimed, nothing done yet",
    "end_saved": "end of the run saved",
    "before_step": "about to begin, nothing done",
    "step_done": "work done, result not saved",
    "step_saved": "result saved",
    "before_intent": "nothing about this call saved",
    "intent_saved": "intent saved, nothing sent",
    "request_sent": "request sent, and then lost",
    "key_claimed": "key claimed, the service is at work",
    "effect_done": "effect done, result not saved",
    "reply_received": "reply received, result not saved",
    "result_saved": "result saved",
    "checkpoint_saved": "checkpoint saved, the state has moved on",
    "wait_saved": "the wait saved, nobody waits in memory",
    "probe_answered": "probe answered, nothing saved",
}

_LATE: Final = "request sent, and it will act late"

#: A sweep moves the world from folder to folder, so two at once would meet in it.
_one_sweep = threading.RLock()


# -- every crash of one workflow -------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """One crash: the sweep's row about it, and what was to see then and after the recovery.

    Both moments are None for a crash that could not be reached.
    """

    schedule: Schedule
    crashed: Moment | None
    recovered: Moment | None
    disk: Prints = field(repr=False)
    """the rows of every file, at the crash and after the recovery"""

    @property
    def words(self) -> str:
        """Where it is: ``send_email: effect done, result not saved``."""
        row = self.schedule
        which = f", occurrence {row.occurrence}" if row.occurrence > 1 else ""
        which += f", attempt {row.attempt}" if row.attempt > 1 else ""
        point = _LATE if row.fate == "late" else POINT_WORDS.get(row.point, one_line(row.point, 60))
        return f"{one_line(row.place, 60)}{which}: {point}"


@dataclass(frozen=True)
class Trace:
    """Every crash of one workflow, and the sweep's report that judged them."""

    report: Report
    frames: tuple[Frame, ...]

    def find(self, frame: Frame, near: int) -> int:
        """Return the position of the crash that is like ``frame``, of another trace.

        Tools may have other names there, so the boundary and its fate count; else it is the
        nearest to ``near``.
        """
        wanted = _kind_of_crash(frame)
        like = [at for at, mine in enumerate(self.frames) if _kind_of_crash(mine) == wanted]
        if like:
            return min(like, key=lambda at: abs(at - near))
        return min(near, len(self.frames) - 1)


def _kind_of_crash(frame: Frame) -> tuple[object, ...]:
    row = frame.schedule
    return row.point, row.occurrence, row.attempt, row.fate


@dataclass(frozen=True)
class Scenario:
    """What is run: ``workflow(*args)`` over ``world``, within ``deadline`` virtual seconds.

    ``seed``: of the waits that are drawn. ``name``: what the views call it, the workflow's name
    unless given. The first look at ``trace`` runs everything, some tenths of a second for a dozen
    crashes; the world is given back as it was. While that goes on nobody else should use it.
    """

    workflow: Workflow
    args: tuple[Any, ...]
    world: Any
    deadline: float | None = None
    seed: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        given: object = self.args
        if not isinstance(given, tuple):
            kind = type(given).__name__
            raise InvalidField("args", f"needs a tuple such as (customer,), got {kind}")

    @property
    def title(self) -> str:
        """What the views call it."""
        return one_line(self.name or getattr(self.workflow, "name", ""), 60)

    @cached_property
    def trace(self) -> Trace:
        """Run it without a crash and with every crash, recover each, and keep what was seen."""
        seen = _Seen(self.world)
        with _one_sweep:
            report = sweep(
                self.workflow, *self.args, world=self.world, deadline=self.deadline,
                seed=self.seed, watch=seen.note,
            )  # fmt: skip
        return Trace(report, tuple(seen.frame(schedule) for schedule in report.schedules))


#: File and table → (rows, digest of all of them); of the moments "crashed" and "recovered".
Prints = dict[str, dict[tuple[str, str], tuple[int, str]]]


@dataclass
class _Seen:
    """Notes what the sweep comes by. ``world`` None: only the files, and nothing is asked."""

    world: Any
    moments: dict[tuple[str, str], Moment] = field(default_factory=dict)
    prints: dict[str, Prints] = field(default_factory=dict)

    def note(self, stage: Literal["crashed", "recovered"], seed: str, folder: Path) -> None:
        self.prints.setdefault(seed, {})[stage] = _fingerprints(folder)
        if self.world is not None:
            with Runtime(folder / "run.db", clock=ManualClock(), durability="process") as reader:
                self.moments[seed, stage] = Moment.of(reader.get("sweep"), self.world)

    def frame(self, schedule: Schedule) -> Frame:
        crashed = self.moments.get((schedule.seed, "crashed"))
        recovered = self.moments.get((schedule.seed, "recovered"))
        return Frame(schedule, crashed, recovered, self.prints.get(schedule.seed, {}))


def _fingerprints(folder: Path) -> dict[tuple[str, str], tuple[int, str]]:
    """Return every table of every SQLite file below ``folder``, and every other file as a whole."""
    prints: dict[tuple[str, str], tuple[int, str]] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or name.endswith(("-wal", "-shm", "-journal")):
            continue
        with path.open("rb") as file:
            is_database = file.read(16) == b"SQLite format 3\0"
        if not is_database:
            content = path.read_bytes()
            prints[name, "(file)"] = (1, hashlib.sha256(content).hexdigest())
            continue
        with closing(sqlite3.connect(path)) as db:
            query = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
            for (table,) in db.execute(query).fetchall():
                quoted = '"' + table.replace('"', '""') + '"'
                # Sorted as text: tables of others need not have an order of their own.
                rows = sorted(map(repr, db.execute(f"SELECT * FROM {quoted}").fetchall()))
                digest = hashlib.sha256("\n".join(rows).encode("utf-8", "replace")).hexdigest()
                prints[name, table] = (len(rows), digest)
    return prints


# -- the same crash for real -----------------------------------------------------------------------


@dataclass(frozen=True)
class RealKill(Shown):
    """A child process killed at a crash point, beside the simulated crash at the same point.

    ``rows``: for each table, at the crash and after the recovery, how many rows each has and
    whether they are the same.
    """

    words: str
    rows: tuple[Row, ...]

    @property
    def same(self) -> bool:
        """Whether the two left the same rows, at the crash and after the recovery."""
        return bool(self.rows) and all(row["same"] == "✓ same" for row in self.rows)

    @property
    def verdict(self) -> str:
        """In one sentence."""
        if self.same:
            return f"✓ The rows are identical: {len(self.rows)} tables compared, every column."
        return "✗ The rows differ. See the table."

    def _table(self) -> Table:
        return Table("ROWS: a simulated crash beside a killed process", self.rows)

    def text(self) -> str:
        """Return what was killed, the verdict and the comparison."""
        return f"{self.words}\n{self.verdict}\n{self._table().text()}"

    def html(self) -> str:
        """Return the same as HTML."""
        said = f"<div>{h(self.words)}</div><div><b>{h(self.verdict)}</b></div>"
        return said + self._table().html()


def kill_for_real(scenario: Scenario, frame: Frame) -> RealKill:
    """Run to the same crash in a child process, kill it with SIGKILL, recover, and compare.

    Raises UsageError where no child can be made here, or for a crash that cannot be reached.
    """
    seed = frame.schedule.seed
    seen = _Seen(None)
    with _one_sweep:
        report = sweep(
            scenario.workflow, *scenario.args, world=scenario.world, deadline=scenario.deadline,
            seed=scenario.seed, mode="process", only=seed, watch=seen.note,
        )  # fmt: skip
    words = f"A child process was killed at this point ({frame.words})."
    killed = seen.prints.get(seed, {})
    if not killed or report.schedules[0].verdict == NOT_REACHABLE:
        return RealKill("The child process came by this point without being killed.", ())
    rows = []
    for stage, when in (("crashed", "at the crash"), ("recovered", "after recovery")):
        simulated, real = frame.disk.get(stage, {}), killed.get(stage, {})
        for file, table in sorted(simulated.keys() | real.keys()):
            here, there = simulated.get((file, table)), real.get((file, table))
            rows.append(
                {
                    "when": when,
                    "file": file,
                    "table": table,
                    "simulated": "-" if here is None else here[0],
                    "killed": "-" if there is None else there[0],
                    "same": "✓ same" if here == there else "✗ DIFFERENT",
                }
            )
    return RealKill(words, tuple(rows))

"""A run's lives, for the sweep: each is one driver, which ends the run or dies at a crash point.

The first life begins the run in an empty folder and an empty world; each later one finds what
the one before has left there, and recovers. All that outlives a driver is in the folder:
``run.db``, ``world/``, and the virtual time that they tell.

A run may wait, for a timer or for a signal. Then nobody drives it, and its surroundings act: time
passes up to the timer, or the signal is given. The driver that lives then recovers the run.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from durakit import runtime
from durakit.clock import ManualClock
from durakit.compensation import undo_key, undone
from durakit.define import Workflow
from durakit.errors import InvalidField, UsageError
from durakit.faults import Boundary, CrashAt
from durakit.protocol import Outcome
from durakit.run import Run, outcome_of
from durakit.runtime import Runtime
from durakit.slots import compensations
from durakit.store import RunRow, Store, known

#: Virtual seconds between the last thing that a dead driver left and the next one.
RESTART = 1.0
#: Virtual seconds after which whatever was still on its way has arrived.
SETTLED = 86_400.0
#: Further than this (seconds) from the virtual clock a time is not of that clock.
_FAR_AWAY = 200 * 86_400.0
#: After how many waits a run is taken for one that never ends.
WAITS = 1000

#: The driver of each life.
OWNERS = ("driver", "recovery", "second recovery")

Seen = Callable[[Boundary], None]

_RUN = "sweep"


class Life(NamedTuple):
    """One driver's life: its Runtime, whether it died at its crash point, what else went wrong."""

    rt: Runtime
    died: bool
    trouble: str


class Ending(NamedTuple):
    """What is left when a run has lived its last life, for the judge."""

    status: str
    reason: str
    why: str
    """of a parked run: unknown, mismatch, conflict or no progress"""
    result: str
    effects: tuple[tuple[str, str], ...]
    """(tool, digest) of every row of the world's ledger"""
    keys: tuple[tuple[str, str], ...]
    """(tool, key) of every row that has a key"""
    operations: tuple[tuple[str, str, str], ...]
    """(tool, key, outcome), as the runtime believes"""
    blind: bool
    """something unknown was sent again without any promise"""
    compensated: bool = False
    """an unknown call was compensated; the compensations are not among the effects"""


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """What is swept; the same object runs in this process and in a child."""

    workflow: Workflow
    form: str
    """the arguments as canonical JSON"""
    world: Any
    deadline: float | None
    seed: int
    signals: Mapping[str, Any] = field(default_factory=dict)
    """what ``ctx.wait_for`` is told, each time that the run waits for that name"""
    blank: Path | None = None
    """a folder with an empty file and an empty world, to be copied for each first life"""

    # -- what can happen to a run ----------------------------------------------------------

    def reference(self, folder: Path) -> tuple[list[Boundary], Ending]:
        """The uncrashed run: its boundaries, and how it ends.

        Raises UsageError for a run that waits for something that nobody gives.
        """
        boundaries: list[Boundary] = []
        life = self.live(folder, 1, None, seen=boundaries.append)
        row = life.rt._store.find_run(life.rt.account, _RUN)  # noqa: SLF001
        if row.status == "waiting":
            name, reason = _awaited_signal(life.rt._store, row), life.rt.get(_RUN).reason  # noqa: SLF001
            life.rt.close()
            missing = name is not None and name not in self.signals
            hint = f": say signals={{{name!r}: …}}" if missing else f", after {WAITS} waits"
            raise UsageError(f"without a crash the run does not end; it {reason}{hint}")
        ending = self._ending(life)
        self._check_world(folder)
        return boundaries, ending

    def _check_world(self, folder: Path) -> None:
        """A world that no sweep can judge is refused in words, before anything is judged."""
        before = len(list(self.world.effects()))
        self.world.fresh(folder / "world")
        effects = list(self.world.effects())
        if len(effects) != before:
            raise InvalidField(
                "world",
                "fresh() was called a second time on the same folder, as each recovery does, and "
                f"effects() went from {before} to {len(effects)}: keep what lies in the folder",
            )
        for effect in effects:
            missing = [name for name in ("tool", "key", "digest", "time") if name not in effect]
            if missing:
                raise InvalidField("world", f"an effect has no {missing[0]!r}: {effect!r}"[:200])
            if abs(float(effect["time"]) - ManualClock.START) > _FAR_AWAY:
                raise InvalidField(
                    "world",
                    "an effect's time is years away from the sweep's virtual clock: give the world "
                    "an attribute `clock`, which the sweep sets, and take times from clock.now()",
                )

    def crash(self, folder: Path, crash: CrashAt, life: int = 1) -> bool:
        """Die at ``crash``, simulated; whether that life came by there."""
        lived = self.live(folder, life, crash)
        lived.rt.close()
        return lived.died

    def recover(self, folder: Path, life: int = 2, *, seen: Seen | None = None) -> Ending:
        """The next driver finds what is left, and goes on to the end."""
        return self._ending(self.live(folder, life, None, seen=seen))

    def with_blank(self, folder: Path) -> Task:
        """This task, with an empty file and an empty world made in ``folder`` to begin from."""
        folder.mkdir()
        self._open(folder, OWNERS[0], ManualClock(), 0).close()
        self.leave(folder)
        return replace(self, blank=folder)

    def leave(self, folder: Path) -> None:
        """Let go of the world in ``folder``, so that it can be copied."""
        self.world.fresh(folder.parent / "nowhere")

    # -- one life --------------------------------------------------------------------------

    def live(
        self,
        folder: Path,
        number: int,
        crash: CrashAt | None,
        *,
        kill: bool = False,
        seen: Seen | None = None,
    ) -> Life:
        """Live the life of that number, from 1; ``kill``: its crash ends this process."""
        if number == 1:
            rt, run = self.first_drive(folder, crash, kill=kill, seen=seen)
            life = Life(rt, run.crash is not None, "")
        else:
            rt = self._reopened(folder, number)
            rt._kill, rt._seen = kill, seen  # noqa: SLF001 - the sweep is the runtime's own tool
            life = _recovered(rt, crash)
        for _ in range(WAITS):
            if life.died or not self._awoken(rt):
                break
            life = _recovered(rt, crash)
        return life

    def first_drive(
        self,
        folder: Path,
        crash: CrashAt | None,
        *,
        kill: bool = False,
        seen: Seen | None = None,
    ) -> tuple[Runtime, Run]:
        """Begin the run in a fresh folder, and drive it until it ends, waits or dies."""
        if self.blank is None:
            folder.mkdir(parents=True, exist_ok=True)
        else:
            shutil.copytree(self.blank, folder, copy_function=shutil.copy, dirs_exist_ok=True)
        rt = self._open(folder, OWNERS[0], ManualClock(), 0)
        rt._kill, rt._seen = kill, seen  # noqa: SLF001
        args, kwargs = self.workflow.parameters.load(json.loads(self.form))
        run = rt.run(self.workflow, *args, id=_RUN, deadline=self.deadline, crash=crash, **kwargs)
        return rt, run

    def _awoken(self, rt: Runtime) -> bool:
        """Let the time pass, or give the signal, that the run waits for; whether it can be."""
        row = rt._store.find_run(rt.account, _RUN)  # noqa: SLF001
        if row.status != "waiting":
            return False
        name = _awaited_signal(rt._store, row)  # noqa: SLF001
        if name is not None and name in self.signals:
            rt.signal(_RUN, name, self.signals[name])
        elif row.wake is not None:
            rt._clock.sleep(row.wake - rt._clock.now())  # noqa: SLF001
        else:
            return False
        return True

    # -- files and time --------------------------------------------------------------------

    def _open(self, folder: Path, owner: str, clock: ManualClock, salt: int) -> Runtime:
        rt = self._runtime(folder, owner, clock, salt)
        self._enter_world(folder, clock)
        return rt

    def _reopened(self, folder: Path, number: int) -> Runtime:
        """The files as the lives before have left them, and some time later."""
        for owner in OWNERS[: number - 1]:
            runtime.declare_dead(str((folder / "run.db").absolute()), f"{owner}/1")
        clock = ManualClock()
        rt = self._runtime(folder, OWNERS[number - 1], clock, number - 1)
        clock.advance(max(0.0, _last_moment(rt._store) + RESTART - clock.now()))  # noqa: SLF001
        self._enter_world(folder, clock)
        # A slow tool may have acted long after its intent was saved.
        times = (row.get("time") for row in self.world.effects())
        acted = [float(time) for time in times if isinstance(time, int | float)]
        clock.advance(max(0.0, max(acted, default=0.0) - clock.now()))
        return rt

    def _runtime(self, folder: Path, owner: str, clock: ManualClock, salt: int) -> Runtime:
        rng = random.Random(self.seed + salt)  # noqa: S311 - waits, no secrets
        path = folder / "run.db"
        with known(path) if path.exists() else nullcontext():
            rt = Runtime(
                path, clock=clock, rng=rng, world=self.world, owner=owner, durability="process"
            )
        # Processes die here, and the power does not: nothing waits for the disk.
        rt._store.connection().execute("PRAGMA synchronous = OFF")  # noqa: SLF001
        return rt

    def _enter_world(self, folder: Path, clock: ManualClock) -> None:
        if hasattr(self.world, "clock"):
            self.world.clock = clock
        self.world.fresh(folder / "world")

    def _ending(self, life: Life) -> Ending:
        rt, store = life.rt, life.rt._store  # noqa: SLF001
        rt._clock.sleep(SETTLED)  # noqa: SLF001
        row = store.find_run(rt.account, _RUN)
        journal = store.read_journal(row.run)
        last = {} if row.explained is None else json.loads(journal[row.explained - 1].payload)
        error = last.get("error")
        effects = list(self.world.effects())
        operations = store.operations_of(row)
        # What the workflow itself undoes is work like any other, with and without a crash.
        nested = {key for _, key in compensations(journal)}
        unknown = {o.key for o in operations if outcome_of(o) == Outcome.UNKNOWN}
        nested_keys = {
            undo_key(key)
            for (_, key), how in undone(operations, journal).items()
            if undo_key(key) in nested and (how == "undone" or undo_key(key) in unknown)
        }
        ending = Ending(
            status=row.status,
            reason=f"{error['type']}: {error['message']}" if error else last.get("reason", ""),
            why=last.get("why", ""),
            result=json.dumps(last["value"], sort_keys=True) if "value" in last else "",
            effects=tuple(
                (str(e.get("tool")), str(e.get("digest")))
                for e in effects
                if e.get("key") not in nested_keys
            ),
            keys=tuple(
                (str(e.get("tool")), str(e["key"])) for e in effects if e.get("key") is not None
            ),
            operations=tuple((o.tool, o.key, outcome_of(o)) for o in operations),
            blind=any("a blind guess" in e.payload for e in journal if e.kind == "intent"),
            compensated=any(e.kind == "compensated" for e in journal),
        )
        rt.close()
        return ending._replace(reason=ending.reason or life.trouble)


def _recovered(rt: Runtime, crash: CrashAt | None) -> Life:
    """``rt.recover()``, which may die."""
    rows = rt.recover_rows(crash=crash)
    _, did, _, detail = rows[-1] if rows else ("", "", "", "")
    return Life(rt, did == "crashed", detail if did in ("error", "owned") else "")


def _awaited_signal(store: Store, row: RunRow) -> str | None:
    """The name of the signal that a waiting run waits for; None for a timer."""
    entries = store.read_journal(row.run)
    name = entries[(row.explained or len(entries)) - 1].step
    begun = [e.kind for e in entries if e.step == name and e.kind in ("timer", "waiting_for")]
    return name if begun[-1:] == ["waiting_for"] else None


def _last_moment(store: Store) -> float:
    """The latest time in the journal: nothing else of a dead driver's clock is known."""
    ((moment,),) = store.read("SELECT max(time) FROM journal")
    return ManualClock.START if moment is None else float(moment)


__all__ = ["Ending", "Life", "Task"]

"""The sweep: crash a workflow at every boundary, recover it, and count the effects.

One uncrashed run in a fresh world numbers the boundaries and is the reference. Then each
boundary gets a fresh folder, a fresh world and a new run that dies there: by a simulated crash,
or in a child process killed with SIGKILL. A second driver recovers it, and the verdict compares
what the *world's own ledger* says with the reference. The runtime's belief is only ever judged,
never asked.

A child process is forked, by a new interpreter that has imported the workflow's module (or by
this process for a workflow that is defined in a notebook cell, where the platform can fork). It
opens its files itself; this process opens them after it has reaped the child.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from durakit import faults, runtime
from durakit.clock import ManualClock
from durakit.define import Workflow, find_workflow, register
from durakit.errors import InvalidField, UsageError
from durakit.faults import Boundary, CrashAt
from durakit.runtime import Runtime
from durakit.store import Store

if TYPE_CHECKING:
    import pandas as pd

Mode = Literal["simulated", "process"]

#: Called twice for each crash that was reached, with ``"crashed"`` and then ``"recovered"``, its
#: seed and the folder whose files (``run.db``, ``world/``) are then as that moment left them. It
#: may read, and must leave no file open.
Watch = Callable[[Literal["crashed", "recovered"], str, Path], None]

#: Virtual seconds between the last thing that a dead run left and its recovery.
RESTART = 1.0
#: Virtual seconds after which whatever was still on its way has arrived.
SETTLED = 86_400.0

SAFE = "safe"
HANDED_OVER = "safe: handed over as unknown"
DUPLICATE = "duplicate"
LOST = "lost"
WRONG_RESULT = "wrong result"
STUCK = "stuck"
BLIND_GUESS = "blind guess"
NOT_REACHABLE = "not reachable"

#: Points that only a world with a hook can report, and what a world calls to report the second
#: fate of a request.
_WORLD_POINTS = ("request_sent", "effect_done")


@dataclass(frozen=True)
class Schedule:
    """One row of the sweep: where the run died, what recovery made of it, and the verdict."""

    number: int
    place: str
    point: str
    occurrence: int
    attempt: int
    fate: str
    seed: str
    """this crash as one word, see ``CrashAt.parse``"""
    effects: int | None
    """rows in the world's ledger at the end"""
    status: str
    verdict: str
    detail: str

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
        """The first crash that breaks it, as a seed for ``CrashAt.parse``; None if none does.

        A guess that went well counts only where nothing worse was found.
        """
        bad = [s for s in self.schedules if not s.good and s.verdict != NOT_REACHABLE]
        worst = [s for s in bad if s.verdict != BLIND_GUESS] or bad
        return worst[0].seed if worst else None

    def table(self) -> pd.DataFrame:
        """One row per schedule.

        Columns: number, place, point, attempt, fate, effects, status, verdict, detail.
        """
        from durakit import tables  # noqa: PLC0415 - pandas is loaded with the first table

        return tables.sweep(self.rows)

    def text(self) -> str:
        """The table as plain text, and the summary under it."""
        columns = ("number", "place", "point", "fate", "effects", "status", "verdict")
        lines = [columns, *([str(row[c]) for c in columns] for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
        body = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        return "\n".join([*body, "", self.summary()])

    def summary(self) -> str:
        """One line: how many schedules, how many of each verdict, the counterexample."""
        counts = Counter(schedule.verdict for schedule in self.schedules)
        found = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        crash = self.counterexample
        tail = f"; smallest counterexample: {crash}" if crash else ""
        return (
            f"{self.workflow}: {len(self.schedules)} crashes ({self.mode}), "
            f"{self.reference} effect(s) without a crash: {found}{tail}"
        )

    def __repr__(self) -> str:
        return f"<sweep of {self.summary()}>"


@dataclass(frozen=True)
class _Ending:
    """What is left after one schedule, for the judge."""

    status: str
    reason: str
    result: str
    effects: tuple[tuple[str, str], ...]
    keys: frozenset[str]
    operations: tuple[tuple[str, str, str], ...]
    blind: bool


def sweep(
    workflow: Workflow,
    /,
    *args: Any,
    world: Any,
    mode: Mode = "simulated",
    deadline: float | None = None,
    keep: str | os.PathLike[str] | None = None,
    seed: int = 0,
    only: str | None = None,
    watch: Watch | None = None,
    **kwargs: Any,
) -> Report:
    """Crash ``workflow(*args)`` at every boundary, recover, and judge by the world's ledger.

    ``world``: has ``fresh(folder)`` (from now on it lives in that folder; an empty folder is an
    empty world) and ``effects()`` (rows with tool, key, digest), and where it can
    ``listen(hook)``; a ``clock`` attribute is set to the sweep's virtual clock. It is put back
    into its own ``folder`` at the end, where it tells one. ``mode``: ``"simulated"``, or
    ``"process"`` for a child killed by SIGKILL at each point. ``keep``: a folder in which each
    schedule's files stay. ``seed``: of the waits that are drawn. ``only``: the one crash to try, as
    its seed. ``watch``: see ``Watch``.

    A new interpreter has the world as its module defines it: what this process has changed in
    it since (a profile, a plan of faults) is not known there.

    Raises UsageError where the workflow cannot be run at all, or a child cannot be made here.
    """
    if not isinstance(workflow, Workflow):
        raise InvalidField("workflow", f"declare it with @dk.workflow; got {workflow!r}")
    if mode not in ("simulated", "process"):
        raise InvalidField("mode", f"'simulated' or 'process', got {mode!r}")
    for verb in ("fresh", "effects"):
        if not callable(getattr(world, verb, None)):
            raise InvalidField("world", f"needs {verb}(); {type(world).__name__} has none")
    form = workflow.parameters.dump(args, kwargs)
    register(workflow)  # recovery finds it by name, and another of that name may be around
    with _home(keep) as home, _borrowed(world):
        task = _Task(workflow, form, world, deadline, seed)
        hooked = callable(getattr(world, "listen", None))
        boundaries, reference = task.reference(home / "reference")
        schedules = []
        with _children(task, mode) as children:
            for crash, boundary in _crashes(boundaries, hooked):
                if only not in (None, crash.seed):
                    continue
                folder = home / f"{boundary.number:03}-{boundary.point}-{crash.fate}"
                if not hooked and boundary.point in _WORLD_POINTS:
                    schedules.append(_unreachable(boundary, crash, "the world has no hook"))
                    continue
                reached = (
                    task.crash(folder, crash) if children is None else children.kill(folder, crash)
                )
                if not reached:
                    why = "the world cannot hold a request" if crash.fate == "late" else "the run "
                    why += "" if crash.fate == "late" else "took another way"
                    schedules.append(_unreachable(boundary, crash, why))
                    continue
                if watch is not None:
                    watch("crashed", crash.seed, folder)
                ending = task.recover(folder)
                if watch is not None:
                    watch("recovered", crash.seed, folder)
                schedules.append(_judged(boundary, crash, ending, reference))
    return Report(workflow.name, mode, len(reference.effects), tuple(schedules))


@contextlib.contextmanager
def _home(keep: str | os.PathLike[str] | None) -> Iterator[Path]:
    if keep is not None:
        home = Path(keep)
        home.mkdir(parents=True, exist_ok=True)
        if any(home.iterdir()):
            raise InvalidField("keep", f"{home} is not empty")
        yield home
        return
    folder = tempfile.mkdtemp(prefix="durakit-sweep-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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


def _crashes(boundaries: list[Boundary], hooked: bool) -> Iterator[tuple[CrashAt, Boundary]]:
    """Every crash to try: each boundary once, and a request also with its other fate."""
    for boundary in boundaries:
        place = (boundary.place, boundary.point, boundary.occurrence, boundary.attempt)
        yield CrashAt(*place), boundary
        if boundary.point == "request_sent":
            yield CrashAt(*place, fate="late"), boundary
        if not hooked and boundary.point == "intent_saved":
            for point in _WORLD_POINTS:
                named = replace(boundary, point=point)
                yield CrashAt(boundary.place, point, *place[2:]), named


def _unreachable(boundary: Boundary, crash: CrashAt, why: str) -> Schedule:
    return _row(boundary, crash, None, "", NOT_REACHABLE, why)


def _row(
    boundary: Boundary,
    crash: CrashAt,
    effects: int | None,
    status: str,
    verdict: str,
    detail: str,
) -> Schedule:
    return Schedule(
        boundary.number, boundary.place, boundary.point, boundary.occurrence, boundary.attempt,
        crash.fate if boundary.point == "request_sent" else "", crash.seed, effects, status,
        verdict, detail,
    )  # fmt: skip


# -- the judge -----------------------------------------------------------------------------


def _judged(boundary: Boundary, crash: CrashAt, ending: _Ending, reference: _Ending) -> Schedule:
    verdict, detail = _verdict(ending, reference)
    return _row(boundary, crash, len(ending.effects), ending.status, verdict, detail)


def _verdict(ending: _Ending, reference: _Ending) -> tuple[str, str]:
    """Effects first, then the state of the run, then what the runtime believed."""
    extra = Counter(ending.effects) - Counter(reference.effects)
    missing = Counter(reference.effects) - Counter(ending.effects)
    if extra and len(ending.effects) > len(reference.effects):
        return DUPLICATE, f"{extra.total()} effect(s) more than without a crash"
    if extra:
        return WRONG_RESULT, "an effect with other content than without a crash"
    if ending.status in ("running", "waiting"):
        return STUCK, ending.reason or f"still {ending.status} after recovery"
    believed = [
        f"{tool} {key!r} is {outcome}, and the ledger says otherwise"
        for tool, key, outcome in ending.operations
        if (outcome == "completed" and key in reference.keys - ending.keys)
        or (outcome == "not_executed" and key in ending.keys)
    ]
    if believed:
        return BLIND_GUESS, believed[0]
    if ending.blind:
        return BLIND_GUESS, "an unknown operation was sent again without proof; it went well"
    if ending.status == "needs_decision":
        if reference.status != "needs_decision" and "unknown" not in ending.reason:
            return STUCK, ending.reason
        return HANDED_OVER, ending.reason
    if missing and ending.status == "completed":
        return LOST, f"{missing.total()} effect(s) less than without a crash"
    if (ending.status, ending.result) != (reference.status, reference.result):
        return WRONG_RESULT, f"{ending.status}: {ending.result or ending.reason}"[:200]
    return SAFE, ""


# -- one schedule --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    """What is swept; the same object runs in this process and in a child."""

    workflow: Workflow
    form: str
    world: Any
    deadline: float | None
    seed: int

    def _open(self, folder: Path, owner: str, clock: ManualClock, salt: int) -> Runtime:
        if hasattr(self.world, "clock"):
            self.world.clock = clock
        self.world.fresh(folder / "world")
        return Runtime(
            folder / "run.db", clock=clock, rng=random.Random(self.seed + salt),  # noqa: S311
            world=self.world, owner=owner, durability="process",
        )  # fmt: skip

    def first_drive(
        self, folder: Path, crash: CrashAt | None, *, kill: bool = False, seen: Any = None
    ) -> tuple[Runtime, runtime.Run]:
        """The run's first incarnation, in a fresh folder."""
        folder.mkdir(parents=True, exist_ok=True)
        rt = self._open(folder, "driver", ManualClock(), 0)
        rt._kill, rt._seen = kill, seen  # noqa: SLF001 - the sweep is the runtime's own tool
        args, kwargs = self.workflow.parameters.load(json.loads(self.form))
        run = rt.run(
            self.workflow, *args, id="sweep", deadline=self.deadline, crash=crash, **kwargs
        )
        return rt, run

    def reference(self, folder: Path) -> tuple[list[Boundary], _Ending]:
        """The uncrashed run: its boundaries, and how it ends."""
        boundaries: list[Boundary] = []
        rt, _ = self.first_drive(folder, None, seen=boundaries.append)
        return boundaries, self._ending(rt)

    def crash(self, folder: Path, crash: CrashAt) -> bool:
        """Die at ``crash``, simulated; whether the run came by there."""
        rt, run = self.first_drive(folder, crash)
        rt.close()
        return run.crash is not None

    def recover(self, folder: Path) -> _Ending:
        """A second driver finds what the first has left, and goes on."""
        rt = self._open(folder, "recovery", ManualClock(_last_moment(folder) + RESTART), 1)
        rt._recover()  # noqa: SLF001 - without pandas
        return self._ending(rt)

    def _ending(self, rt: Runtime) -> _Ending:
        clock = rt._clock  # noqa: SLF001
        assert isinstance(clock, ManualClock)
        clock.advance(SETTLED)
        run = rt.get("sweep")
        effects = list(self.world.effects())
        status = run.status
        result = ""
        if status in ("completed", "failed"):
            try:
                result = repr(run.result)
            except Exception as error:  # noqa: BLE001 - the saved error is the result
                result = f"{type(error).__name__}: {error}"
        journal = rt._store.read_journal(run._number)  # noqa: SLF001
        ending = _Ending(
            status=status,
            reason=run.reason,
            result=result,
            effects=tuple((str(e.get("tool")), str(e.get("digest"))) for e in effects),
            keys=frozenset(str(e["key"]) for e in effects if e.get("key") is not None),
            operations=tuple(
                (o.tool, o.key, runtime.outcome_of(o))
                for o in rt._store.operations_of(run._row())  # noqa: SLF001
            ),
            blind=any("a blind guess" in e.payload for e in journal if e.kind == "intent"),
        )
        rt.close()
        return ending


def _last_moment(folder: Path) -> float:
    """The latest time on disk, journal and world alike: nothing else of a dead run is known."""
    store = Store(folder / "run.db", clock_kind="manual", create=False)
    moments = [entry.time for row in store.list_runs(None) for entry in store.read_journal(row.run)]
    store.close()
    return max(moments, default=ManualClock.START)


# -- children that are killed for real -----------------------------------------------------


def can_fork() -> bool:
    """Whether this platform makes a child that shares this process's code."""
    return hasattr(os, "fork") and sys.platform != "win32"


@contextlib.contextmanager
def _children(task: _Task, mode: Mode) -> Iterator[_Children | None]:
    if mode == "simulated":
        yield None
        return
    children = _Children(task)
    try:
        yield children
    finally:
        children.close()


class _Children:
    """Makes one child per schedule and lets it die.

    ``where`` names the module and the world's name in it; None for a workflow that only this
    process knows (a cell), which is forked from here.
    """

    def __init__(self, task: _Task) -> None:
        self._task = task
        self._where = _importable(task)
        self._server: subprocess.Popen[str] | None = None
        if self._where is None and not can_fork():
            raise UsageError(
                f"workflow {task.workflow.name!r} is defined in a notebook cell or a script, and "
                "this platform cannot fork: move it, its tools and its world into a module for "
                "the real kill"
            )

    def kill(self, folder: Path, crash: CrashAt) -> bool:
        """Run to ``crash`` in a child that dies there; whether it did."""
        folder.mkdir(parents=True, exist_ok=True)
        if self._where is None:
            died = _fork_and_wait(self._task, folder, crash)
        else:
            died = self._ask_server(folder, crash)
        if died:
            runtime.declare_dead(str((folder / "run.db").absolute()), "driver/1")
        return died

    def _ask_server(self, folder: Path, crash: CrashAt) -> bool:
        if self._server is None:
            self._server = self._start_server()
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps([str(folder.absolute()), crash.seed]) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline().strip()
        if not can_fork():
            # Without fork the new interpreter is itself the child, and dies for one schedule.
            self.close()
            return answer == ""
        if answer not in ("killed", "ended"):
            raise UsageError(f"the child process failed: {answer or 'see its message above'}")
        return answer == "killed"

    def _start_server(self) -> subprocess.Popen[str]:
        assert self._where is not None
        task = self._task
        spec = {
            "module": self._where[0], "world": self._where[1], "workflow": task.workflow.name,
            "form": task.form, "deadline": task.deadline, "seed": task.seed,
        }  # fmt: skip
        code = "import sys; from durakit.sweep import serve; serve(sys.argv[1])"
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109
        return subprocess.Popen(  # noqa: S603 - our own interpreter and code
            [sys.executable, "-c", code, json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def close(self) -> None:
        """End the helper interpreter."""
        if self._server is not None:
            for stream in (self._server.stdin, self._server.stdout):
                if stream is not None:
                    stream.close()
            self._server.wait()
            self._server = None


def _importable(task: _Task) -> tuple[str, str] | None:
    """(module, name of the world in it) where a new interpreter can find both."""
    name = task.workflow.function.__module__
    module = sys.modules.get(name)
    if name == "__main__" or module is None or getattr(module, "__file__", None) is None:
        return None
    for attribute, value in vars(module).items():
        if value is task.world:
            return name, attribute
    return None


def serve(text: str) -> None:
    """In a new interpreter: fork one child per line of standard input, and tell how it ended."""
    spec = json.loads(text)
    # The answers have a stream of their own: what the user's module prints goes to stderr. An
    # interrupt is the parent's to handle.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module = importlib.import_module(spec["module"])
    world = getattr(module, spec["world"])
    task = _Task(
        find_workflow(spec["workflow"]), spec["form"], world, spec["deadline"], spec["seed"]
    )
    for line in sys.stdin:
        folder, seed = json.loads(line)
        if can_fork():
            died = _fork_and_wait(task, Path(folder), CrashAt.parse(seed))
            print("killed" if died else "ended", file=answers, flush=True)
        else:  # pragma: no cover - Windows
            task.first_drive(Path(folder), CrashAt.parse(seed), kill=True)
            print("ended", file=answers, flush=True)
            return


def _fork_and_wait(task: _Task, folder: Path, crash: CrashAt) -> bool:
    child = os.fork()
    if child == 0:  # pragma: no cover - it never returns
        _live_and_die(task, folder, crash)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        return False
    told = folder / "child.txt"
    raise UsageError(
        f"the child process failed: {told.read_text() if told.exists() else f'status {status}'}"
    )


def _live_and_die(task: _Task, folder: Path, crash: CrashAt) -> None:
    """In the child: fresh files only, nothing written to the parent's streams, no clean-up."""
    code = 1
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        faults.current.incarnation = None
        task.first_drive(folder, crash, kill=True)
        code = 0
    except BaseException as error:  # noqa: BLE001 - told to the parent
        with contextlib.suppress(OSError):
            (folder / "child.txt").write_text(f"{type(error).__name__}: {error}")
    finally:
        os._exit(code)


__all__ = ["Report", "Schedule", "can_fork", "sweep"]

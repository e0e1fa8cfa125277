"""The runtime as people use it: one file, many runs.

``Runtime`` starts, drives and recovers runs; ``Run`` looks at one. Tables are pandas
DataFrames (pandas is loaded when the first one is asked for).
"""

from __future__ import annotations

import json
import os
import random
import signal
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from durakit import faults, protocol, values
from durakit.clock import Clock, SystemClock
from durakit.compensation import undo_key
from durakit.deadline import ahead, seconds
from durakit.define import Workflow, find_tool, find_workflow, name_text
from durakit.drive import Surroundings
from durakit.driver import Driver
from durakit.errors import (
    ArgumentsDiffer,
    InvalidField,
    LeaseLost,
    SimulatedCrash,
    Stop,
    Suspended,
    UsageError,
    WorkflowChanged,
    WorkflowNotFound,
)
from durakit.faults import Boundary, CrashAt, Incarnation
from durakit.items import Items
from durakit.machine import Machine, MachineDriver, check_version
from durakit.operation import LEAST_WAIT, POLL
from durakit.run import Run, outcome_of, tables
from durakit.store import FINAL_STATUSES, OPEN_STATUSES, Claimed, OperationRow, RunRow, Store
from durakit.workers import Workers

if TYPE_CHECKING:
    import pandas as pd

#: (file, owner) of incarnations that are proven dead: frozen in this process, or a child
#: process that this process has reaped. Nobody else is ever taken for dead.
_dead: set[tuple[str, str]] = set()


def declare_dead(file: str, owner: str) -> None:
    """``owner`` of ``file`` will never write again (its process has been reaped)."""
    _dead.add((file, owner))


class RecoveryRow(NamedTuple):
    """What recovery did with one run; ``Runtime.recover`` says what the words mean."""

    run: str
    did: str
    status: str
    detail: str


class Runtime:
    """A durable runtime over one file.

    ``path``: an SQLite file (created where missing, readable by its owner only), or
    ``":memory:"``, which is not durable. ``account``: the scope of run ids and operation keys.
    ``clock``, ``rng`` and ``owner`` (name of the lease's holder) are passed in by tests and
    lessons. ``world``: an object whose ``listen(hook)`` lets crash points reach the outside
    world. ``lease``: seconds that a silent driver keeps a run. ``settle``: seconds allowed to
    find out about an unknown operation. ``durability``: ``"power"`` or ``"process"`` (NORMAL:
    a power failure may take the last commits).

    Raises a StoreError for a file that cannot be used; the file is left as it was.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        account: str = "default",
        clock: Clock | None = None,
        rng: random.Random | None = None,
        world: Any = None,
        owner: str | None = None,
        lease: float = 30.0,
        settle: float = 30.0,
        durability: str = "power",
    ) -> None:
        self.account = name_text("account", account)
        self._clock: Clock = SystemClock() if clock is None else clock
        if not isinstance(getattr(self._clock, "kind", None), str):
            raise InvalidField("clock", f"needs a clock such as dk.ManualClock(), got {clock!r}")
        # The system's generator has no state: forked children do not draw the same waits.
        self._rng = rng or random.SystemRandom()
        self._owner = name_text("owner", owner or f"driver-{os.urandom(6).hex()}")
        self._lease = ahead("lease", lease)
        self._settle = seconds("settle", settle)
        self._store = Store(path, clock_kind=self._clock.kind, durability=durability)
        self._workers = Workers()
        self._incarnations = 1
        self._driving: str | None = None
        self._kill = False
        self._seen: Callable[[Boundary], None] | None = None
        self.store = Items(self._store, self.account, self._clock)
        """values that outlive runs; see ``durakit.items``"""
        self.world = world
        if world is not None:
            faults.attach(world)

    @property
    def durable(self) -> bool:
        """Whether a run survives the death of this process."""
        return not self._store.memory

    def check_clock(self) -> None:
        """Raises ClockMismatch where another kind of clock drives this file."""
        self._store.check_clock()

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        kind = "" if self.durable else ", not durable"
        return f"<Runtime {self._store.name} account {self.account!r}{kind}>"

    # -- starting and driving --------------------------------------------------------------

    def start(
        self,
        workflow: Workflow,
        /,
        *args: Any,
        id: str,
        deadline: float | None = None,
        **kwargs: Any,
    ) -> Run:
        """Save a new run, driven by nobody yet. The same id again gives the same run.

        ``deadline``: seconds from now for the whole run; the first one stands. Raises
        ArgumentsDiffer for an id that has other arguments or another workflow, UnsavableValue
        with the path of an argument that cannot be saved, InvalidField. Nothing is saved then.
        """
        row, existed = self._start(workflow, args, kwargs, id, deadline)
        run = Run(self._store, self._clock, row, existed=existed)
        if existed and row.source != workflow.source:
            run.note = "replayed; the code has changed since the run was saved"
        elif existed:
            run.note = "replayed"
        return run

    def _start(
        self,
        workflow: Workflow,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        id: str,
        deadline: float | None,
    ) -> tuple[RunRow, bool]:
        if not isinstance(workflow, Workflow):
            raise InvalidField(
                "workflow", f"declare it with @dk.workflow; got {type(workflow).__name__}"
            )
        name_text("id", id)
        limit = None if deadline is None else ahead("deadline", deadline)
        form = workflow.parameters.dump(args, kwargs)
        given = values.digest(form)
        self._store.check_clock()
        now = self._clock.now()
        row = RunRow(
            run=0, account=self.account, id=id, workflow=workflow.name, version=workflow.version,
            source=workflow.source, arguments=given, created=now,
            deadline=None if limit is None else now + limit, status="running", seq=0, digest=b"",
            explained=None, token=0, owner=None, leased=None, claims=0, commands=0,
        )  # fmt: skip
        payload = f'{{"arguments":{form}}}'
        saved, new = self._store.create_run(row, payload)
        if saved.workflow != workflow.name:
            raise InvalidField(
                "id", f"run {id!r} belongs to workflow {saved.workflow!r}, not {workflow.name!r}"
            )
        if saved.arguments != given:
            raise ArgumentsDiffer(f"run id {id!r}", saved.arguments, given)
        return saved, not new

    def run(
        self,
        workflow: Workflow,
        /,
        *args: Any,
        id: str,
        deadline: float | None = None,
        crash: CrashAt | None = None,
        **kwargs: Any,
    ) -> Run:
        """``start``, then drive: returns a Run always, after a crash, a parking or a failure too.

        ``crash`` is where this incarnation shall die. A store that cannot be used is raised.
        """
        _check_crash(crash)
        incarnation = self._incarnation(crash, 1)
        run = self.start(workflow, *args, id=id, deadline=deadline, **kwargs)
        try:
            if not run.existed:
                incarnation.reach("run", "run_saved")
        except SimulatedCrash as died:
            self._bury(None)
            run.crash = died
            return run
        if run.status in FINAL_STATUSES:
            return run
        return self._drive(run, workflow, incarnation, by_hand=False)

    def resume(self, id: str, *, crash: CrashAt | None = None) -> Run:
        """Go on with a run, a parked one too.

        It is a person's wish, so the count of fruitless claims begins anew. Returns the Run, with
        a note where another driver owns it.

        Raises RunNotFound, WorkflowNotFound, WorkflowChanged.
        """
        _check_crash(crash)
        row = self._store.find_run(self.account, name_text("id", id))
        run = Run(self._store, self._clock, row, existed=True)
        if row.status in FINAL_STATUSES:
            run.note = f"already {row.status}"
            return run
        workflow = self._matching_workflow(row)
        return self._drive(run, workflow, self._incarnation(crash, row.token + 1), by_hand=True)

    def _matching_workflow(self, row: RunRow) -> Workflow:
        try:
            workflow = find_workflow(row.workflow)
            self._check_version(row, workflow)
        except (WorkflowNotFound, WorkflowChanged) as error:
            if not self._is_cancelled(row):
                raise
            return _without_code(row, error)
        return workflow

    def _is_cancelled(self, row: RunRow) -> bool:
        """Whether somebody has asked for the run's end, which needs none of its code."""
        wishes = [command.kind for command in self._store.waiting_commands(row.run)]
        kinds = [entry.kind for entry in self._store.read_journal(row.run)]
        return "cancel" in wishes or "cancel_requested" in kinds

    def _check_version(self, row: RunRow, workflow: Workflow) -> None:
        """Raises WorkflowChanged where ``workflow`` is not the one that the run was begun with."""
        if isinstance(workflow, Machine):
            check_version(workflow, self._state_version(row), row.id)
        elif workflow.version != row.version:
            raise WorkflowChanged(
                f"run {row.id!r} was begun under version {row.version} of {row.workflow!r}, and "
                f"version {workflow.version} is defined here: define the old code to finish it, "
                f"or cancel the run. Nothing was run{workflow.clash()}"
            )

    def _state_version(self, row: RunRow) -> int:
        """Under which version a machine's last state was saved."""
        mark = self._store.last_checkpoint(row.run)
        if mark is None:
            return row.version
        return int(json.loads(self._store.read_entry(row.run, mark.seq).payload)["version"])

    def _incarnation(self, crash: CrashAt | None, number: int) -> Incarnation:
        return Incarnation(
            number, crash, kill=self._kill, freeze=self._store.freeze, seen=self._seen
        )

    def _drive(
        self, run: Run, workflow: Workflow, incarnation: Incarnation, *, by_hand: bool
    ) -> Run:
        """Claim the run and drive it; what stopped it is told by ``run``."""
        if self._driving is not None:
            raise UsageError(
                f"this Runtime is driving run {self._driving!r}; a Runtime drives one run at a "
                "time, so open another one on the same file"
            )
        self._check_version(self._store.find_run(run.account, run.id), workflow)
        self._driving = run.id
        owner = f"{self._owner}/{self._incarnations}"
        try:
            self._hand_in_late_replies()
            self._store.check_clock()
            now = self._clock.now()
            claimed = self._store.claim(
                run.account, run.id, owner=owner, now=now, leased=now + self._lease,
                dead=self._is_dead, by_hand=by_hand,
            )  # fmt: skip
            if not isinstance(claimed, Claimed):
                run.note = self._why_not(claimed)
                return run
            # A name that was used by an earlier Runtime of this process lives again.
            _dead.discard((self._store.name, owner))
            if claimed.parked:
                return run
            if claimed.row.source != workflow.source and "code has changed" not in run.note:
                run.note = "the code has changed since the run was saved"
            self._drive_claimed(run, workflow, claimed, incarnation)
        except BaseException:
            # An interrupt or a store that failed ended this incarnation; a lease that it could
            # not give back is free to its successor in this process.
            declare_dead(self._store.name, owner)
            self._incarnations += 1
            raise
        finally:
            self._driving = None
        return run

    def _drive_claimed(
        self, run: Run, workflow: Workflow, claimed: Claimed, incarnation: Incarnation
    ) -> None:
        """Drive a run that is ours, up to its end, a wait or a crash."""
        owner = claimed.lease.owner
        incarnation.number = claimed.lease.token
        around = Surroundings(
            self._store, self._clock, self._rng, self._workers, self._lease, self._settle,
            self._is_dead,
        )  # fmt: skip
        drives = MachineDriver if isinstance(workflow, Machine) else Driver
        driver = drives(around, workflow, claimed.row, claimed.lease, claimed.entries, incarnation)
        try:
            driver.drive()
            if incarnation.armed:
                told = "the crash point was not reached"
                run.note = f"{run.note}; {told}" if run.note else told
        except SimulatedCrash as died:
            self._bury(owner)
            run.crash = died
        except LeaseLost as lost:
            run.note = f"owned elsewhere: {lost}"
            # It will never write again, so whatever it still seems to hold is free.
            declare_dead(self._store.name, owner)
            self._incarnations += 1

    def _why_not(self, row: RunRow) -> str:
        if row.status in FINAL_STATUSES:
            return f"owned elsewhere, and already {row.status}"
        return f"owned elsewhere until {_utc(row.leased or 0.0)} (by {row.owner})"

    def _is_dead(self, owner: str) -> bool:
        return (self._store.name, owner) in _dead

    def _bury(self, owner: str | None) -> None:
        """The incarnation is dead and its stack has unwound; a new one may begin."""
        if owner is not None:
            declare_dead(self._store.name, owner)
        self._workers.forget()
        self._incarnations += 1
        self._store.thaw()

    # -- recovery --------------------------------------------------------------------------

    def recover(self, wait: float = 0) -> pd.DataFrame:
        """Claim and drive every run that may be driven: unowned, abandoned, or with commands.

        ``wait``: seconds to keep trying runs that are owned by others. Returns a table (run,
        did, status, detail); ``did`` is ``driven`` (``status`` says to where), or why not:
        ``parked``, ``waiting``, ``owned`` (until when, and by whom) or ``error``; one run's
        trouble never stops the others. A sys.exit() in a run's code is raised when they have had
        their turn; one in a signal's handler at once.
        """
        rows, leaving = self._recover_all(wait, None)
        if leaving is not None:
            raise leaving
        table: pd.DataFrame = tables().recovery(rows)
        return table

    def recover_rows(self, wait: float = 0, *, crash: CrashAt | None = None) -> list[RecoveryRow]:
        """``recover`` without pandas, for the command line and the sweep.

        ``crash``: where the drive of a run shall die; ``did`` is ``crashed`` then. A sys.exit() in
        a run's code is an ``error``.
        """
        return self._recover_all(wait, crash)[0]

    def _recover_all(
        self, wait: float, crash: CrashAt | None
    ) -> tuple[list[RecoveryRow], SystemExit | None]:
        """The table's rows, and the last wish to leave that a run's own code had."""
        _check_at_least_zero("wait", wait, int | float)
        ends = self._clock.monotonic() + wait
        done: dict[str, RecoveryRow] = {}
        leaving: SystemExit | None = None
        while True:
            self._hand_in_late_replies()
            owned = False
            for row in self._store.list_runs(self.account, OPEN_STATUSES):
                if row.id in done and done[row.id].did != "owned":
                    continue
                try:
                    line = self._recover_one(row, crash)
                except SystemExit as leave:
                    if _is_of_a_signal(leave):
                        raise
                    leaving = leave
                    told = f"the code that was to run has called sys.exit({leave.code!r})"
                    line = RecoveryRow(row.id, "error", row.status, told)
                owned = owned or line.did == "owned"
                done[row.id] = line
            left = ends - self._clock.monotonic()
            if not owned or left <= 0:
                return list(done.values()), leaving
            self._clock.sleep(max(LEAST_WAIT, min(POLL, left)))

    def _recover_one(self, row: RunRow, crash: CrashAt | None = None) -> RecoveryRow:
        asleep = row.wake is None or row.wake > self._clock.now()
        if row.status == "waiting" and not row.commands and asleep:
            reason = Run(self._store, self._clock, row).reason
            return RecoveryRow(row.id, "waiting", row.status, reason)
        if row.status == "needs_decision" and not row.commands:
            reason = Run(self._store, self._clock, row).reason
            return RecoveryRow(row.id, "parked", row.status, reason)
        try:
            workflow = self._matching_workflow(row)
            run = self._drive(
                Run(self._store, self._clock, row), workflow,
                self._incarnation(crash, row.token + 1),
                by_hand=row.status == "needs_decision",  # a person has said something about it
            )  # fmt: skip
            status = run.status
            if run.crash is not None:
                return RecoveryRow(row.id, "crashed", status, str(run.crash))
            if run.note.startswith("owned"):
                return RecoveryRow(row.id, "owned", status, run.note)
            return RecoveryRow(row.id, "driven", status, run.note or run.reason)
        except (KeyboardInterrupt, SystemExit, Stop):
            raise
        except BaseException as error:  # noqa: BLE001 - asyncio's CancelledError, say, of a tool
            problem = f"{type(error).__name__}: {error}"
            return RecoveryRow(row.id, "error", row.status, problem)

    def _hand_in_late_replies(self) -> None:
        """What abandoned tools have meanwhile answered becomes a command to the driver."""
        for tool, key in self._workers.replies(self._store.name, self.account):
            identity = (self._store.name, self.account, tool, key)
            operation = self._store.read_operation(self.account, tool, key)
            if operation is None or operation.run_id is None:
                continue
            row = self._store.find_run(self.account, operation.run_id)
            if row.status in FINAL_STATUSES:
                continue
            late = self._workers.late(identity, keep=True)
            if late is None:
                continue
            body: dict[str, Any] = {"tool": tool, "key": key, "by": "late reply"}
            body.update(json.loads(late.saved()))
            self._store.add_command(row, "late_reply", json.dumps(body), self._clock.now())
            self._workers.late(identity)  # only now: a full disk does not lose the evidence

    # -- what others than the driver want --------------------------------------------------

    def resolve(
        self,
        id: str,
        key: str,
        outcome: str,
        *,
        result: Any = None,
        by: str,
        tool: str | None = None,
    ) -> Run:
        """A person says how an unknown operation ended.

        ``outcome``: ``completed`` (``result`` is what the call returns), ``not_executed``
        (which permits the next attempt under the same key) or ``compensate`` (nobody knows: the
        tool's compensation is carried out, under a key of its own; refused where neither the tool
        as declared here nor its intent names one).

        ``by`` names who says so; it is kept. The word is left as a command: the next
        ``rt.recover()`` or ``rt.resume(id)`` consumes it and goes on. Raises UsageError where
        the operation is not unknown, InvalidField.
        """
        if outcome not in ("completed", "not_executed", "compensate"):
            known = "'completed', 'not_executed' or 'compensate'"
            raise InvalidField("outcome", f"{known}; got {outcome!r}")
        if outcome != "completed" and result is not None:
            raise InvalidField("result", f"what is told {outcome!r} has no result")
        name_text("by", by)
        row = self._store.find_run(self.account, name_text("id", id))
        operation = self._find_operation(row, name_text("key", key), tool)
        self._check_resolvable(row, operation, outcome)
        body: dict[str, Any] = {
            "tool": operation.tool, "key": key, "outcome": outcome, "by": by,
            "attempts": operation.attempts,
        }  # fmt: skip
        if outcome == "completed":
            dump = getattr(result, "model_dump", None)
            plain = dump(mode="json") if callable(dump) else result
            body["value"] = json.loads(values.plain_json(plain))
        self._store.add_command(row, "resolve", json.dumps(body), self._clock.now())
        run = Run(self._store, self._clock, row, existed=True)
        run.note = "noted; rt.recover() or rt.resume(id) goes on"
        return run

    def _check_resolvable(self, row: RunRow, operation: OperationRow, outcome: str) -> None:
        """Raises UsageError or InvalidField where a person's word can settle nothing."""
        if operation.status == protocol.Status.COMPENSATING:
            raise UsageError(
                f"operation {operation.key!r} is being compensated: say how its compensation "
                f"{undo_key(operation.key)!r} ended, or let rt.recover() go on. Nothing was changed"
            )
        if operation.status == protocol.Status.COMPENSATED:
            raise UsageError(
                f"operation {operation.key!r} is compensated, and its key is closed: its outcome "
                "stays unknown. Nothing was changed"
            )
        if operation.status not in protocol.UNRESOLVED and not self._is_disputed(row, operation):
            known = outcome_of(operation)
            raise UsageError(
                f"operation {operation.key!r} is not unknown: it is {known}. Nothing was changed"
            )
        if outcome == "compensate" and not self._can_be_compensated(operation):
            raise InvalidField(
                "outcome",
                f"'compensate' needs a tool that undoes it, and {operation.tool} declares no "
                "compensate=…: declare it with one (or import its module here) first. Nothing was "
                "changed",
            )

    def _can_be_compensated(self, operation: OperationRow) -> bool:
        """Whether the tool, as it is declared here or as its latest intent says, can be undone."""
        declared = find_tool(operation.tool)
        if declared is not None and declared.compensate is not None:
            return True
        told = [
            entry.payload
            for entry in self._store.read_journal(operation.run)
            if (entry.kind, entry.step, entry.key) == ("intent", operation.tool, operation.key)
        ]
        return bool(told) and "correction" in json.loads(told[-1])

    def _is_disputed(self, row: RunRow, operation: OperationRow) -> bool:
        """Whether the run is parked because something contradicts that it was not executed."""
        if row.status != "needs_decision" or row.explained is None:
            return False
        entry = self._store.read_entry(row.run, row.explained)
        return (
            operation.status == "REFUSED"
            and (entry.step, entry.key) == (operation.tool, operation.key)
            and json.loads(entry.payload).get("why") == "conflict"
        )

    def _find_operation(self, row: RunRow, key: str, tool: str | None) -> OperationRow:
        found = [
            operation
            for operation in self._store.operations_of(row)
            if operation.key == key and tool in (None, operation.tool)
        ]
        if not found:
            raise UsageError(f"run {row.id!r} has no operation with key {key!r}")
        if len(found) > 1:
            names = ", ".join(operation.tool for operation in found)
            raise UsageError(f"key {key!r} belongs to several tools ({names}): say tool=…")
        return found[0]

    def cancel(self, id: str, *, by: str = "") -> Run:
        """Ask a run to stop: no new work begins, unknown operations are still found out about.

        A request, consumed by the next drive (``rt.recover()`` drives it where nobody does). A
        run with an unknown operation is never cancelled: it parks until that is resolved.
        """
        row = self._store.find_run(self.account, name_text("id", id))
        run = Run(self._store, self._clock, row, existed=True)
        if by != "":
            name_text("by", by)
        if row.status in FINAL_STATUSES:
            run.note = f"already {row.status}"
            return run
        self._store.add_command(row, "cancel", json.dumps({"by": by}), self._clock.now())
        run.note = "cancel requested; the next drive honours it"
        return run

    def signal(self, id: str, name: str, value: Any = None) -> Run:
        """Tell a run something: ``ctx.wait_for(name)`` returns ``value``.

        It is kept until the run waits for it; ``rt.recover()`` goes on with the run. Raises
        UsageError for a run that has ended, UnsavableValue.
        """
        row = self._store.find_run(self.account, name_text("id", id))
        name_text("name", name)
        if row.status in FINAL_STATUSES:
            raise UsageError(f"run {id!r} is {row.status}: nobody would read the signal")
        body = json.dumps({"name": name, "value": json.loads(values.plain_json(value))})
        self._store.add_command(row, "signal", body, self._clock.now())
        run = Run(self._store, self._clock, row, existed=True)
        run.note = "noted; rt.recover() or rt.resume(id) goes on"
        return run

    # -- looking back ----------------------------------------------------------------------

    def get(self, id: str) -> Run:
        """The run of that id. Raises RunNotFound."""
        return Run(
            self._store,
            self._clock,
            self._store.find_run(self.account, name_text("id", id)),
            existed=True,
        )

    def runs(self) -> pd.DataFrame:
        """All runs of this account, oldest first; no state is read or decoded.

        Columns: id, workflow, version, status, entries, incarnations, owner, created and deadline
        (UTC).
        """
        rows = self._store.list_runs(self.account)
        table: pd.DataFrame = tables().runs(rows, self._store.count_entries(rows))
        return table

    def prune(self, older_than: float, *, limit: int = 1_000_000) -> int:
        """Remove finished runs created more than ``older_than`` seconds ago, at most ``limit``.

        Returns how many. Operations and their replies stay: a key that was used stays used. A run
        with an unresolved operation is never removed. ``compact()`` shrinks the file.
        """
        _check_at_least_zero("limit", limit, int)
        before = self._clock.now() - seconds("older_than", older_than)
        return self._store.prune(self.account, before, limit)

    def compact(self) -> None:
        """Give the space of removed runs back to the disk."""
        self._store.compact()


def _is_of_a_signal(leave: SystemExit) -> bool:
    """Whether a signal's handler ends the process, and not the code that ran when it came."""
    handlers = {getattr(signal.getsignal(n), "__code__", None) for n in signal.valid_signals()}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(leave.__traceback__))


def _without_code(row: RunRow, error: Exception) -> Workflow:
    """Stands for a workflow that is not defined here, where a run has only to be cancelled."""

    def gone(ctx: Any) -> None:
        del ctx
        raise Suspended("needs_decision", str(error), why="mismatch")

    return Workflow(gone, version=row.version, name=row.workflow)


def _check_at_least_zero(field: str, value: Any, kind: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, kind) or not value >= 0:
        raise InvalidField(field, f"needs a number from zero up, got {value!r}")


def _check_crash(crash: object) -> None:
    if crash is not None and not isinstance(crash, CrashAt):
        hint = f": write dk.CrashAt({crash!r})" if isinstance(crash, int) else ""
        raise InvalidField("crash", f"needs a dk.CrashAt, got {crash!r}{hint}")


def _utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

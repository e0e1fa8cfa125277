"""Looking at one run: what the disk says, as people read it. Pure reads, but for the fork.

Tables are pandas DataFrames (pandas is loaded when the first one is asked for).
"""

from __future__ import annotations

import json
from types import ModuleType
from typing import TYPE_CHECKING, Any

from durakit import changes, protocol, values
from durakit.clock import Clock
from durakit.compensation import undo_key, undone
from durakit.define import find_workflow, name_text
from durakit.errors import (
    DamagedFile,
    InvalidField,
    RunNotFinished,
    RunNotFound,
    SimulatedCrash,
    WorkflowNotFound,
)
from durakit.machine import Machine, state_at
from durakit.store import Entry, OperationRow, RunRow, Store

if TYPE_CHECKING:
    import pandas as pd


class Run:
    """One run, as the disk has it. Reading it never touches the world or the run."""

    def __init__(self, store: Store, clock: Clock, row: RunRow, *, existed: bool = False) -> None:
        self._store = store
        self._clock = clock
        self._number = row.run
        self._last = row
        self.id = row.id
        self.account = row.account
        self.workflow = row.workflow
        self.existed = existed
        """the id was there already: what is shown was saved before"""
        self.crash: SimulatedCrash | None = None
        """the simulated crash that ended the latest drive, if one did"""
        self.note: str = ""
        """what the latest drive has to say: owned elsewhere, code changed, …"""

    def _row(self) -> RunRow:
        store = self._store
        try:
            self._last = store.find_run(self.account, self.id)
        except RunNotFound:
            # A memory that died with its process: the run is what we last saw, and gone.
            if not store.memory or self.crash is None:
                raise
            return self._last._replace(explained=None)
        return self._last

    @property
    def status(self) -> str:
        """What the disk says now.

        ``running``, ``waiting``, ``needs_decision``, ``completed``, ``failed`` or ``cancelled``.
        """
        return self._row().status

    @property
    def reason(self) -> str:
        """Why the run stands where it stands, in words; empty while nothing needs saying."""
        row = self._row()
        if row.explained is None:
            return ""
        body = json.loads(self._store.read_entry(row.run, row.explained).payload)
        if "error" in body:
            return f"{body['error']['type']}: {body['error']['message']}"
        return str(body.get("reason", ""))

    @property
    def why(self) -> str:
        """One word for why the run is parked or waits.

        ``unknown``, ``undo incomplete``, ``infeasible``, ``mismatch``, ``conflict``, ``no end``,
        ``no progress`` or ``waiting``; empty otherwise.
        """
        row = self._row()
        if row.explained is None or row.status not in ("needs_decision", "waiting"):
            return ""
        body = json.loads(self._store.read_entry(row.run, row.explained).payload)
        return str(body.get("why", ""))

    @property
    def result(self) -> Any:
        """What the workflow returned.

        Raises the saved error of a failed run, and RunNotFinished (with the status and what to
        do) where there is no result yet.
        """
        row = self._row()
        if row.status not in ("completed", "failed") or row.explained is None:
            raise RunNotFinished(f"run {self.id!r} is {row.status}: {self._advice(row)}")
        entry = self._store.read_entry(row.run, row.explained)
        if entry.kind != row.status:
            raise DamagedFile(f"run {self.id!r} is {row.status}, and its journal says {entry.kind}")
        body = json.loads(entry.payload)
        if "error" in body:
            raise values.load_error(body["error"])
        try:
            codec = find_workflow(self.workflow).returns
        except WorkflowNotFound:
            codec = values.PLAIN
        text = json.dumps(body["value"])
        return codec.load(text)

    def _advice(self, row: RunRow) -> str:
        waiting = f" ({row.commands} command(s) wait for it)" if row.commands else ""
        if row.status == "needs_decision":
            return (
                f"{self.reason}. Look: run.operations(), run.history(). Then check with the "
                "service and rt.resolve(…), rt.resume(id) to ask again, or rt.cancel(id)" + waiting
            )
        if row.status == "cancelled":
            return "it was cancelled and has no result"
        if row.owner is not None:
            return "it is owned; rt.recover() goes on once its driver is gone" + waiting
        return "rt.resume(id) or rt.recover() goes on with it" + waiting

    def history(self) -> pd.DataFrame:
        """The journal: one row per entry, in order, indexed by seq.

        Columns: incarnation (0 before the first claim), kind, step, key, attempt, time (UTC),
        payload (a dict).
        """
        table: pd.DataFrame = tables().history(self._store.read_journal(self._number))
        return table

    def operations(self) -> pd.DataFrame:
        """The run's operations, in the order of their first entry.

        Columns: tool, key, status (what the disk says), outcome (what that means), attempts,
        contract, first_sent, sent (UTC), run (that drove it last), undo: ``undone`` or ``undo
        incomplete`` where a compensation of it was begun, else empty.
        """
        rows = self._store.operations_of(self._row())
        # Only a run with compensations has to be read for them.
        compensated = any(row.key.startswith(undo_key("")) for row in rows)
        entries = self._store.read_journal(self._number) if compensated else []
        table: pd.DataFrame = tables().operations(rows, undone(rows, entries))
        return table

    # -- going back in time: pure reads, but for the fork ----------------------------------

    def checkpoints(self) -> pd.DataFrame:
        """The defined boundaries of this run, oldest first: where ``at``, ``diff``, ``fork`` fit.

        Columns: seq, what (of a machine's checkpoint: snapshot or changes), transition, bytes,
        time (UTC). A workflow's boundaries are its saved steps and concluded calls.
        """
        store = self._store
        entries = store.read_journal(self._number)
        marks = {mark.seq: mark for mark in store.checkpoints(self._number)}
        machine = self._is_machine(self._row())
        table: pd.DataFrame = tables().checkpoints(entries, marks if machine else None)
        return table

    def at(self, seq: int) -> Any:
        """The state as it was after journal entry ``seq``; a pure read.

        Of a machine: its last checkpoint up to there, as its model (as a dict where the machine
        is not defined here). Of a workflow: ``{"steps": [{name, value or error}, …],
        "operations": {key: …}}``. Raises InvalidField for a number that is no entry.
        """
        store = self._store
        row = self._check_seq("seq", seq)
        first = store.read_entry(row.run, 1)
        if "state" not in json.loads(first.payload)["arguments"] or not self._is_machine(row):
            return _progress(store.read_journal(row.run, 0, seq))
        mark = store.last_checkpoint(row.run, seq)
        form = state_at(store, row.run, mark)
        try:
            machine = find_workflow(row.workflow)
        except WorkflowNotFound:
            return form
        return machine.codec.load(json.dumps(form)) if isinstance(machine, Machine) else form

    def diff(self, a: int, b: int) -> pd.DataFrame:
        """What changed between the states at ``a`` and ``b``: path, what happened, value."""
        states = [self._plain_at(seq) for seq in (a, b)]
        table: pd.DataFrame = tables().diff(changes.in_words(changes.diff(*states)))
        return table

    def _plain_at(self, seq: int) -> Any:
        state = self.at(seq)
        dump = getattr(state, "model_dump", None)
        return dump(mode="json") if callable(dump) else state

    def fork(self, at: int, id: str) -> Run:
        """A new run that has this one's journal up to entry ``at``; resume it to go on.

        Operations belong to the account: where the fork comes by a key that was used, it gets
        the stored outcome and touches nothing. Only new keys touch the world.
        """
        row = self._check_seq("at", at)
        self._store.check_clock()
        new = self._store.copy_run(row, at, name_text("id", id), self._clock.now())
        return Run(self._store, self._clock, new)

    def _check_seq(self, field: str, seq: int) -> RunRow:
        row = self._row()
        count = self._store.count_entries([row])[0]
        if not (type(seq) is int and 1 <= seq <= count):
            raise InvalidField(field, f"run {self.id!r} has entries 1 to {count}, got {seq!r}")
        return row

    def _is_machine(self, row: RunRow) -> bool:
        try:
            return isinstance(find_workflow(row.workflow), Machine)
        except WorkflowNotFound:
            return self._store.last_checkpoint(row.run) is not None

    def __repr__(self) -> str:
        crash = f", {self.crash}" if self.crash else ""
        reason = self.reason
        note = "".join(f"; {part}" for part in (reason, self.note) if part)
        return f"<run {self.id!r}: {self.status}{crash}{note}>"


def outcome_of(operation: OperationRow) -> str:
    """What the disk's word about an operation means: completed, not_executed or unknown."""
    return protocol.outcome(operation.status, operation.contract).value


def tables() -> ModuleType:
    """The module that makes DataFrames."""
    from durakit import tables  # noqa: PLC0415 - pandas is loaded with the first table only

    return tables


def _progress(entries: list[Entry]) -> dict[str, Any]:
    """What a workflow's journal says up to some entry."""
    steps: list[dict[str, Any]] = []
    operations: dict[str, dict[str, Any]] = {}
    for entry in entries:
        body = json.loads(entry.payload)
        told = {name: body[name] for name in ("value", "error", "unsavable") if name in body}
        if entry.kind == "step":
            steps.append({"name": entry.step, **told})
        elif entry.key is not None and entry.kind != "parked":
            known = operations.setdefault(entry.key, {"tool": entry.step})
            known.update({"entry": entry.kind, **told})
    return {"steps": steps, "operations": operations}

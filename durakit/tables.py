"""Rows as pandas DataFrames. Imported with the first table only: pandas takes its time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from durakit.protocol import outcome
from durakit.store import CheckpointRow, Entry, OperationRow, RunRow


def _moments(values: Iterable[float | None]) -> pd.Series[Any]:
    """Wall seconds as UTC times, to the millisecond."""
    times = pd.Series([None if v is None else round(v * 1000) for v in values], dtype="Int64")
    return pd.to_datetime(times, unit="ms", utc=True)


def history(entries: Sequence[Entry]) -> pd.DataFrame:
    """One row per journal entry; see ``Run.history``."""
    table = pd.DataFrame(
        {
            "seq": [e.seq for e in entries],
            "incarnation": [e.token for e in entries],
            "kind": [e.kind for e in entries],
            "step": [e.step or "" for e in entries],
            "key": [e.key or "" for e in entries],
            "attempt": pd.Series([e.attempt for e in entries], dtype="Int64"),
            "time": _moments(e.time for e in entries),
            "payload": [json.loads(e.payload) for e in entries],
        }
    )
    return table.set_index("seq")


def checkpoints(entries: Sequence[Entry], marks: dict[int, CheckpointRow] | None) -> pd.DataFrame:
    """One row per defined boundary (``marks``: of a machine); see ``Run.checkpoints``."""
    machine, marks = marks is not None, marks or {}
    kept = [e for e in entries if e.seq in marks or (not machine and e.kind in _BOUNDARIES)]
    return pd.DataFrame(
        {
            "seq": [e.seq for e in kept],
            "what": [_what(e, marks.get(e.seq)) for e in kept],
            "transition": pd.Series(
                [marks[e.seq].transition if e.seq in marks else None for e in kept], dtype="Int64"
            ),
            "bytes": [len(e.payload) for e in kept],
            "time": _moments(e.time for e in kept),
        }
    )


_BOUNDARIES = frozenset({"started", "step", "result", "replayed", "completed", "failed"})


def _what(entry: Entry, mark: CheckpointRow | None) -> str:
    if mark is None:
        return f"{entry.kind} {entry.step or ''}".strip()
    return "snapshot" if mark.whole == mark.seq else "changes"


def diff(rows: Sequence[tuple[str, str, Any]]) -> pd.DataFrame:
    """One row per change between two states; see ``Run.diff``."""
    return pd.DataFrame(
        [(path, verb, json.dumps(value, ensure_ascii=False)) for path, verb, value in rows],
        columns=["path", "what", "value"],
    )


def operations(rows: Sequence[OperationRow], undo: dict[tuple[str, str], str]) -> pd.DataFrame:
    """One row per operation; see ``Run.operations``."""
    return pd.DataFrame(
        {
            "tool": [o.tool for o in rows],
            "key": [o.key for o in rows],
            "status": [o.status for o in rows],
            "outcome": [outcome(o.status, o.contract).value for o in rows],
            "attempts": [o.attempts for o in rows],
            "contract": [o.contract for o in rows],
            "first_sent": _moments(o.first_sent for o in rows),
            "sent": _moments(o.sent for o in rows),
            "run": [o.run_id for o in rows],
            "undo": [undo.get((o.tool, o.key), "") for o in rows],
        }
    )


def runs(rows: Sequence[RunRow], entries: Sequence[int]) -> pd.DataFrame:
    """One row per run; see ``Runtime.runs``."""
    return pd.DataFrame(
        {
            "id": [r.id for r in rows],
            "workflow": [r.workflow for r in rows],
            "version": [r.version for r in rows],
            "status": [r.status for r in rows],
            "entries": list(entries),
            "incarnations": [r.token for r in rows],
            "owner": [r.owner or "" for r in rows],
            "created": _moments(r.created for r in rows),
            "deadline": _moments(r.deadline for r in rows),
        }
    )


def recovery(rows: Sequence[tuple[str, str, str, str]]) -> pd.DataFrame:
    """One row per run that recovery looked at; see ``Runtime.recover``."""
    return pd.DataFrame(list(rows), columns=["run", "did", "status", "detail"])


def sweep(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """One row per schedule; see ``durakit.sweep``."""
    columns = ["number", "place", "point", "attempt", "fate", "effects", "status", "verdict",
               "detail"]  # fmt: skip
    table = pd.DataFrame(rows, columns=columns)
    table["effects"] = table["effects"].astype("Int64")
    return table

"""Undoing: a compensation is an operation of its own, with a key and a protocol of its own.

Two occasions. A completed call is undone where the workflow says so (``ctx.compensate``); it still
counts as completed. A call that stays unknown is compensated where a person, or its tool's
declaration, says so; nobody learns whether it was executed, and its key is closed.

A compensation can itself fail, or stay unknown. Then the undo is *incomplete*, which is neither
'undone' nor 'not undone': the run stops, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from durakit import values
from durakit.errors import ArgumentsDiffer, Cancelled, Suspended
from durakit.operation import Operation
from durakit.protocol import ARGUMENTS_DIFFER, Status
from durakit.slots import undoes_of
from durakit.store import Entry, OperationRow

#: Statuses of a compensation of which nothing more is to be expected: its call is open again.
_NOTHING_CAME = frozenset({Status.REFUSED, Status.FAILED, Status.COMPENSATED})


def undo_key(key: str) -> str:
    """The operation key of the compensation of the operation with ``key``."""
    return f"undo:{key}"


def undone(rows: Iterable[OperationRow], entries: Iterable[Entry]) -> dict[tuple[str, str], str]:
    """(tool, key) of each operation that has a compensation → 'undone' or 'undo incomplete'."""
    status = {(row.tool, row.key): row.status for row in rows}
    found: dict[tuple[str, str], str] = {}
    for entry in entries:
        told = undoes_of(entry)
        if told is not None:
            done = status.get((entry.step or "", entry.key or "")) == Status.SUCCEEDED
            # Something else was done under that key: it undoes nothing.
            done = done and json.loads(entry.payload).get("why") != ARGUMENTS_DIFFER
            found[told["tool"], told["key"]] = "undone" if done else "undo incomplete"
    return found


def compensate(original: Operation) -> Any:
    """Carry out the compensation of an unknown operation, inside its call.

    Returns the compensation's reply. Raises what it raised where it was certainly not executed;
    one that is unknown itself suspends the run.
    """
    drive, tool = original.drive, original.tool.compensate
    assert tool is not None
    args, kwargs = original.tool.parameters.filled(original.args, original.kwargs)
    arguments = values.digest(tool.parameters.dump(args, kwargs))
    compensation = Operation(
        drive, tool, undo_key(original.key), args, kwargs, arguments, original.occurrence,
        undoes=original,
    )  # fmt: skip
    compensation.look_again()
    if (tool.name, compensation.key) in drive.begun:
        compensation.ours = True
        compensation.check()
        compensation.remember()
    try:
        return compensation.run()
    except (Exception, Suspended, Cancelled) as error:
        if isinstance(error, Exception):
            compensation.look_again()  # what concluded it is on disk only
        left = compensation.row
        if left is None or left.status in _NOTHING_CAME or isinstance(error, ArgumentsDiffer):
            original.reopen()
        raise

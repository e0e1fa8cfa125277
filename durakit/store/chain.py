"""How a run's entries are numbered and linked: each digest covers the row and all before it."""

from __future__ import annotations

import hashlib
from typing import Any

from durakit.store.rows import RunRow

#: The highest number that an entry of a run can have.
LAST_SEQ = 2**32 - 1


def place(run: int, seq: int) -> int:
    """The journal's row id of entry ``seq``: a run's entries lie together, in order."""
    return (run << 32) + seq


def journal_row(entry: tuple[Any, ...], digest: bytes) -> tuple[Any, ...]:
    """The row of ``journal`` for an entry (run, seq, kind, …, payload)."""
    return ((entry[0] << 32) + entry[1], *entry[2:], digest)


def seed(row: RunRow) -> bytes:
    """Where a run's chain begins: the half of its row that never changes."""
    text = (
        f"{row.account!r} {row.id!r} {row.workflow!r} {row.version} {row.source} {row.arguments} "
        f"{row.created!r} {row.deadline!r}"
    )
    return hashlib.sha256(text.encode()).digest()


def link(before: bytes, entry: tuple[Any, ...]) -> bytes:
    """SHA-256 over the digest before and the row: numbers, quoted names, then the payload."""
    run, seq, kind, step, key, attempt, token, time, payload = entry
    row = f"{run} {seq} {kind} {step!r} {key!r} {attempt} {token} {time!r} {payload}"
    return hashlib.sha256(before + row.encode()).digest()

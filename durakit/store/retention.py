"""Removing a finished run, so that no key becomes new and no unresolved operation is forgotten."""

from __future__ import annotations

import hashlib
import sqlite3

from durakit.store.chain import place
from durakit.store.rows import SELECT_RUN, RunRow


def remove(c: sqlite3.Connection, row: RunRow) -> bool:
    """Remove the run, inside a transaction; whether it could be. Operations keep their replies."""
    # Another process may have removed it since, and its number may have a new run by now.
    if c.execute(SELECT_RUN + " WHERE run = ?", (row.run,)).fetchone() != row:
        return False
    span = (place(row.run, 0), place(row.run + 1, 0))
    keys = c.execute(
        "SELECT DISTINCT step, key FROM journal WHERE place > ? AND place < ? AND key IS NOT NULL",
        span,
    ).fetchall()
    for tool, key in keys:
        unresolved = c.execute(
            "SELECT 1 FROM operation WHERE account = ? AND tool = ? AND key = ? "
            "AND status IN ('DISPATCHED', 'RESENT', 'COMPENSATING')",
            (row.account, tool, key),
        ).fetchone()
        if unresolved:
            return False
    for tool, key in keys:
        which = (row.account, tool, key, row.run)
        reply = c.execute(
            "SELECT payload FROM operation AS o JOIN journal ON place = (o.run << 32) + o.reply "
            "WHERE o.account = ? AND o.tool = ? AND o.key = ? AND o.run = ?",
            which,
        ).fetchone()
        kept = None if reply is None else hashlib.sha256(reply[0].encode()).hexdigest() + reply[0]
        # Run 0 is nobody: the number of a removed run may be given to a new one.
        c.execute(
            "UPDATE operation SET run = 0, reply = NULL, kept = coalesce(?, kept) "
            "WHERE account = ? AND tool = ? AND key = ? AND run = ?",
            (kept, *which),
        )
    c.execute("UPDATE run SET explained = -1 WHERE run = ?", (row.run,))
    c.execute("DELETE FROM journal WHERE place > ? AND place < ?", span)
    c.execute("DELETE FROM command WHERE run = ?", (row.run,))
    c.execute("DELETE FROM checkpoint WHERE run = ?", (row.run,))
    c.execute("DELETE FROM run WHERE run = ?", (row.run,))
    return True

"""The journal of each run: one fenced append, and reads that check every link of its chain.

An append costs four statements and one commit: begin, check the fencing token, insert the entry,
commit. The run's own row is written only when it has something new to say (half of the lease is
used up, the first progress after a claim, a new status): each further page costs every commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from durakit.errors import DamagedFile, LeaseLost
from durakit.store.chain import LAST_SEQ, journal_row, link, place, seed
from durakit.store.database import Database
from durakit.store.rows import (
    SELECT_RUN,
    Change,
    CheckpointRow,
    Entry,
    Lease,
    OperationMoved,
    RunRow,
    Saved,
)

_FENCE = "SELECT commands FROM run WHERE run = ? AND token = ? AND owner IS NOT NULL"
_RENEW = "UPDATE run SET seq = ?, digest = ?, leased = ?, claims = ? WHERE run = ?"
_END = (
    "UPDATE run SET seq = ?, digest = ?, status = ?, explained = ?, claims = ?, "
    "owner = NULL, leased = NULL, wake = ? WHERE run = ?"
)
_CHECKPOINT = "INSERT INTO checkpoint (run, seq, transition, whole) VALUES (?, ?, ?, ?)"
_MARKS = "SELECT seq, transition, whole FROM checkpoint WHERE run = ?"
#: Of a row as ``chain.journal_row`` makes it.
INSERT_ENTRY = (
    "INSERT INTO journal (place, kind, step, key, attempt, token, time, payload, digest) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_OPERATION_INSERT = (
    "INSERT INTO operation (account, tool, key, arguments, contract, status, attempts, "
    "first_sent, sent, run, token) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT DO NOTHING"
)
_OPERATION_UPDATE = (
    "UPDATE operation SET contract = ?, "
    "status = ?, attempts = ?, sent = ?, not_before = ?, run = ?, token = ?, "
    "reply = coalesce(?, reply) "
    "WHERE account = ? AND tool = ? AND key = ? AND status = ? AND attempts = ?"
)


class Journal(Database):
    """A Database whose runs have journals; an append is all that a driver ever writes."""

    def append(
        self,
        lease: Lease,
        kind: str,
        *,
        payload: str,
        now: float,
        leased: float,
        step: str | None = None,
        key: str | None = None,
        attempt: int | None = None,
        progress: bool = False,
        change: Change | None = None,
        ends: str | None = None,
        consumes: int | None = None,
        wait: float | None = None,
        before: Sequence[Saved] = (),
        checkpoint: tuple[int, int] | None = None,
        wake: float | None = None,
    ) -> int:
        """Append one entry under ``lease``; returns how many commands wait for the driver.

        ``leased``: the lease shall last at least until then (wall seconds). ``progress`` makes
        this claim the first again. ``change`` moves the operation's row, in the same transaction.
        ``ends`` gives the run this status and the lease back. ``consumes`` is the number of the
        command that this entry answers. ``before``: entries to write just before it, in the same
        transaction. ``checkpoint``: (transition, entry of the snapshot, 0 for this one) where
        this entry is a machine's checkpoint. ``wake``: when a waiting run may go on.

        Raises LeaseLost where the token is stale, OperationMoved where the operation is not as
        the driver has seen it, StoreFull, StoreBusy or another StoreError; in each case nothing
        is written.
        """
        run, token, seq, digest = lease.run, lease.token, lease.seq + 1, lease.digest
        rows = []
        for saved in before:
            first = (run, seq, saved.kind, saved.step, None, None, token, saved.time, saved.payload)
            digest = link(digest, first)
            rows.append(journal_row(first, digest))
            seq += 1
        entry = (run, seq, kind, step, key, attempt, token, now, payload)
        digest = link(digest, entry)
        claims = 1 if progress else lease.claims
        if ends == "waiting":
            claims = 0  # a driver that gives a run back has not been killed by it
        until = max(now + lease.length, leased)
        renewed = (
            claims != lease.claims or leased > lease.leased or lease.leased - now < lease.length / 2
        )

        def work(c: sqlite3.Connection) -> int:
            found = c.execute(_FENCE, (run, token)).fetchone()
            if found is None:
                raise LeaseLost(f"run {run}: somebody with a newer fencing token drives it now")
            if rows:
                c.executemany(INSERT_ENTRY, rows)
            c.execute(INSERT_ENTRY, journal_row(entry, digest))
            if change is not None:
                _apply(c, change, run, token, seq, now)
            if checkpoint is not None:
                transition, whole = checkpoint
                c.execute(_CHECKPOINT, (run, seq, transition, whole or seq))
            if consumes is not None:
                c.execute("UPDATE command SET entry = ? WHERE command = ?", (seq, consumes))
                c.execute("UPDATE run SET commands = commands - 1 WHERE run = ?", (run,))
            if ends is not None:
                explained = None if ends == "running" else seq
                c.execute(_END, (seq, digest, ends, explained, claims, wake, run))
            elif renewed:
                c.execute(_RENEW, (seq, digest, until, claims, run))
            return int(found[0])

        waiting = self.write(work, wait)
        lease.seq, lease.digest = seq, digest
        lease.claims = claims
        if renewed:
            lease.leased = until
        return waiting

    def read_journal(self, run: int, after: int = 0, until: int | None = None) -> list[Entry]:
        """The run's entries above number ``after``, up to ``until``. Raises DamagedFile."""
        end = place(run + 1, 0) if until is None else place(run, until + 1)
        # The run's row first: what it knows of must be in the journal that is read after it.
        saved = self.read(SELECT_RUN + " WHERE run = ?", (run,))
        if not saved:
            return []  # it has been pruned
        row = RunRow(*saved[0])
        rows = self.read(
            "SELECT seq, kind, step, key, attempt, token, time, payload, digest "
            "FROM journal WHERE place >= ? AND place < ? ORDER BY place",
            (place(run, after), end),
        )
        before = seed(row)
        if after:
            before = rows.pop(0)[-1] if rows else b""
        self._linked(before, after + 1, run, rows)
        if until is None and not after:
            self._check_reach(row, rows)
        return [Entry(*row[:-1]) for row in rows]

    def read_entry(self, run: int, seq: int) -> Entry:
        """One entry, checked against the one before it. Raises DamagedFile."""
        found = self.read_journal(run, seq - 1, seq)
        if not found:
            raise DamagedFile(f"{self.name}: journal entry {seq} of run number {run} is missing")
        return found[0]

    def checkpoints(self, run: int) -> list[CheckpointRow]:
        """Where the run's checkpoints are, oldest first."""
        return [CheckpointRow(*row) for row in self.read(_MARKS + " ORDER BY seq", (run,))]

    def last_checkpoint(self, run: int, until: int | None = None) -> CheckpointRow | None:
        """The latest checkpoint, or the latest whose entry is not after ``until``."""
        end = LAST_SEQ if until is None else until
        rows = self.read(_MARKS + " AND seq <= ? ORDER BY seq DESC LIMIT 1", (run, end))
        return CheckpointRow(*rows[0]) if rows else None

    def count_entries(self, rows: Iterable[RunRow]) -> list[int]:
        """How many journal entries each run has; no payload is read."""
        counts = dict(
            self.read(
                "SELECT run, (SELECT coalesce(max(place), 0) & 4294967295 FROM journal "
                "WHERE place > r.run << 32 AND place < (r.run + 1) << 32) FROM run AS r"
            )
        )
        return [counts.get(row.run, 0) for row in rows]

    def verified(self, c: sqlite3.Connection, row: RunRow) -> tuple[list[Entry], bytes]:
        """The run's entries and the digest of the last; every link of the chain is checked."""
        rows = c.execute(
            "SELECT seq, kind, step, key, attempt, token, time, payload, digest "
            "FROM journal WHERE place > ? AND place < ? ORDER BY place",
            (place(row.run, 0), place(row.run + 1, 0)),
        ).fetchall()
        digest = self._linked(seed(row), 1, row.run, rows)
        self._check_reach(row, rows)
        return [Entry(*found[:-1]) for found in rows], digest

    def _check_reach(self, row: RunRow, rows: list[Any]) -> None:
        """Check that the whole journal ``rows`` has the entry that the run's row knows of."""
        if not 0 < row.seq <= len(rows) or rows[row.seq - 1][-1] != row.digest:
            raise DamagedFile(
                f"{self.name}: run {row.id!r}: its journal does not reach entry {row.seq}, which "
                "the run knows of. Nothing was changed"
            )

    def _linked(self, digest: bytes, first: int, run: int, rows: list[Any]) -> bytes:
        """Check that ``rows``, from entry ``first``, continue ``digest``; returns the last one."""
        for position, found in enumerate(rows, first):
            digest = link(digest, (run, *found[:-1]))
            if digest != found[-1] or found[0] != position:
                raise DamagedFile(
                    f"{self.name}: run number {run}: journal entry {position} is not what was "
                    "written. Nothing was changed"
                )
        return digest


def _apply(
    c: sqlite3.Connection, change: Change, run: int, token: int, seq: int, now: float
) -> None:
    """Move the operation's row, or insert it; OperationMoved where it is another by now."""
    if change.was is None:
        done = c.execute(
            _OPERATION_INSERT,
            (
                change.account, change.tool, change.key, change.arguments, change.contract,
                change.status, change.attempts, now, now, run, token,
            ),
        )  # fmt: skip
    else:
        done = c.execute(
            _OPERATION_UPDATE,
            (
                change.contract,
                change.status, change.attempts, change.sent, change.not_before, run, token,
                seq if change.concludes else None,
                change.account, change.tool, change.key, *change.was,
            ),
        )  # fmt: skip
    if done.rowcount != 1:
        raise OperationMoved(change.key)

"""What is asked of a durakit file: runs and their leases, operations, commands, retention."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Collection

from durakit.errors import DamagedFile, InvalidField, RunNotFound
from durakit.store.chain import journal_row, link, place, seed
from durakit.store.journal import INSERT_ENTRY, Journal
from durakit.store.retention import remove
from durakit.store.rows import (
    FINAL_STATUSES,
    SELECT_OPERATION,
    SELECT_RUN,
    Claimed,
    Command,
    Entry,
    Lease,
    OperationRow,
    RunRow,
)
from durakit.values import compact

_BY_ID = SELECT_RUN + " WHERE account = ? AND id = ?"

#: Claims without saved progress after which a run is parked instead of driven.
CLAIM_LIMIT = 3


class Store(Journal):
    """One durakit file; its methods are verbs. See ``Database`` for how it is opened."""

    # -- runs and leases -------------------------------------------------------------------

    def create_run(self, row: RunRow, payload: str) -> tuple[RunRow, bool]:
        """Save a new run, or return the one that has its id: (row as saved, whether new)."""

        def work(c: sqlite3.Connection) -> tuple[RunRow, bool]:
            found = c.execute(_BY_ID, (row.account, row.id))
            saved = found.fetchone()
            if saved is not None:
                return RunRow(*saved), False
            number = _next_number(c)
            first = (number, 1, "started", None, None, None, 0, row.created, payload)
            digest = link(seed(row), first)
            new = row._replace(run=number, seq=1, digest=digest)
            _insert_run(c, new)
            c.execute(INSERT_ENTRY, journal_row(first, digest))
            return new, True

        return self.write(work)

    def find_run(self, account: str, id: str) -> RunRow:
        """The run's row. Raises RunNotFound."""
        rows = self.read(_BY_ID, (account, id))
        if not rows:
            gone = "; what is in memory only does not survive a crash" if self.memory else ""
            raise RunNotFound(f"no run {id!r} in {self.name} (account {account!r}){gone}")
        return RunRow(*rows[0])

    def list_runs(self, account: str | None, statuses: Collection[str] = ()) -> list[RunRow]:
        """Rows of all runs, oldest first; no journal entry is read."""
        where, values = ["1"], []
        if account is not None:
            where.append("account = ?")
            values.append(account)
        if statuses:
            where.append(f"status IN ({', '.join('?' * len(statuses))})")
            values.extend(statuses)
        rows = self.read(f"{SELECT_RUN} WHERE {' AND '.join(where)} ORDER BY run", values)
        return [RunRow(*row) for row in rows]

    def claim(
        self,
        account: str,
        id: str,
        *,
        owner: str,
        now: float,
        leased: float,
        dead: Callable[[str], bool],
        by_hand: bool,
    ) -> Claimed | RunRow:
        """Become the driver of a run, or return its row where that is not possible.

        Possible when nobody holds a lease, it has ended, or ``dead`` says that its owner is. At
        the limit of claims without progress the run is parked instead (``Claimed.parked``);
        ``by_hand`` (a person asked) starts the count anew. The whole journal is read and its
        digests are checked before anything is written. Raises DamagedFile, RunNotFound.
        """

        def work(c: sqlite3.Connection) -> Claimed | RunRow:
            found = c.execute(_BY_ID, (account, id)).fetchone()
            if found is None:
                raise RunNotFound(f"no run {id!r} in {self.name} (account {account!r})")
            row = RunRow(*found)
            if row.status in FINAL_STATUSES:
                return row
            held = row.owner is not None and (row.leased or 0.0) > now
            if held and not dead(row.owner or ""):
                return row
            entries, last_digest = self.verified(c, row)
            if entries[-1].token != row.token:
                raise DamagedFile(
                    f"{self.name}: run {row.id!r}: its fencing token is not that of its last "
                    "entry. Nothing was changed"
                )
            claims = 0 if by_hand else row.claims
            lease = Lease(
                row.run, row.token + 1, owner, row.seq, last_digest, leased, leased - now, claims
            )
            return _claimed(c, row, entries, lease, now)

        return self.write(work)

    def release(self, lease: Lease, now: float, why: str) -> None:
        """Give the lease back without an end: the run stays as the disk says."""
        # An interrupt may have come between a commit and our note of it.
        ((lease.seq, lease.digest),) = self.read(
            "SELECT seq, digest FROM journal WHERE place < ? ORDER BY place DESC LIMIT 1",
            (place(lease.run + 1, 0),),
        )
        self.append(
            lease, "released", now=now, leased=now, payload=compact({"why": why}), ends="running"
        )

    def copy_run(self, row: RunRow, at: int, id: str, now: float) -> RunRow:
        """A new run with the entries 1 to ``at`` of another, in one transaction."""

        def work(c: sqlite3.Connection) -> RunRow:
            if c.execute(
                "SELECT 1 FROM run WHERE account = ? AND id = ?", (row.account, id)
            ).fetchone():
                raise InvalidField("id", f"there is a run {id!r} already")
            number = _next_number(c)
            new = row._replace(
                run=number, id=id, created=now, status="running", explained=None, owner=None,
                leased=None, claims=0, commands=0, wake=None,
            )  # fmt: skip
            digest, token, last = seed(new), 0, 0
            entries = self.verified(c, row)[0][:at]
            if entries[-1].kind in FINAL_STATUSES:
                raise InvalidField("at", f"entry {at} is the run's end: nothing comes after it")
            for entry in entries:
                told = (number, *entry)
                digest, token, last = link(digest, told), entry.token, entry.seq
                c.execute(INSERT_ENTRY, journal_row(told, digest))
            new = new._replace(seq=last, digest=digest, token=token)
            _insert_run(c, new)
            c.execute(
                "INSERT INTO checkpoint SELECT ?, seq, transition, whole FROM checkpoint "
                "WHERE run = ? AND seq <= ?",
                (number, row.run, last),
            )
            return new

        return self.write(work)

    # -- operations ------------------------------------------------------------------------

    def read_operation(self, account: str, tool: str, key: str) -> OperationRow | None:
        """The operation's row, or None: nothing was saved under this key.

        None says nothing about what others did.
        """
        rows = self.read(
            SELECT_OPERATION + " WHERE o.account = ? AND o.tool = ? AND o.key = ?",
            (account, tool, key),
        )
        return OperationRow(*rows[0]) if rows else None

    def operations_of(self, run: RunRow) -> list[OperationRow]:
        """The operations that the run's journal mentions, in the order of their first entry."""
        rows = self.read(
            SELECT_OPERATION + " JOIN (SELECT step, key, min(seq) AS first FROM journal "
            "WHERE place > ? AND place < ? AND key IS NOT NULL GROUP BY step, key) AS j "
            "ON o.account = ? AND o.tool = j.step AND o.key = j.key ORDER BY j.first",
            (place(run.run, 0), place(run.run + 1, 0), run.account),
        )
        return [OperationRow(*row) for row in rows]

    def reply_of(self, operation: OperationRow) -> str | None:
        """The payload that concluded the operation, or None where nothing has."""
        what = f"{self.name}: the reply of {operation.tool!r} under {operation.key!r}"
        if operation.kept is not None:
            told, payload = operation.kept[:64], operation.kept[64:]
            if told != hashlib.sha256(payload.encode()).hexdigest():
                raise DamagedFile(f"{what} is not what was kept of a removed run")
            return payload
        if operation.reply is None:
            return None
        entry = self.read_entry(operation.run, operation.reply)
        if (entry.step, entry.key) != (operation.tool, operation.key):
            raise DamagedFile(f"{what} is not where the operation says")
        return entry.payload

    # -- commands --------------------------------------------------------------------------

    def add_command(self, row: RunRow, kind: str, payload: str, now: float) -> None:
        """Leave a wish for the run's driver."""

        def work(c: sqlite3.Connection) -> None:
            c.execute(
                "INSERT INTO command (run, kind, payload, time) VALUES (?, ?, ?, ?)",
                (row.run, kind, payload, now),
            )
            c.execute("UPDATE run SET commands = commands + 1 WHERE run = ?", (row.run,))

        self.write(work)

    def waiting_commands(self, run: int) -> list[Command]:
        """Commands that the driver has not consumed, oldest first."""
        rows = self.read(
            "SELECT command, kind, payload, time FROM command "
            "WHERE run = ? AND entry IS NULL ORDER BY command",
            (run,),
        )
        return [Command(*row) for row in rows]

    # -- retention -------------------------------------------------------------------------

    def prune(self, account: str, before: float, limit: int) -> int:
        """Remove up to ``limit`` finished runs created before ``before``; returns how many.

        Each run is one transaction. Operations stay, with their replies: a key that was used
        stays used. A run whose journal names an unresolved operation is never removed.
        """
        removed = 0
        for row in self.list_runs(account, FINAL_STATUSES):
            if removed >= limit:
                break
            if row.created < before and self.write(lambda c, row=row: remove(c, row)):  # type: ignore[misc]
                removed += 1
        return removed


def _next_number(c: sqlite3.Connection) -> int:
    """The number of the next new run."""
    (number,) = c.execute("SELECT coalesce(max(run), 0) + 1 FROM run").fetchone()
    return int(number)


def _insert_run(c: sqlite3.Connection, row: RunRow) -> None:
    marks = ", ".join("?" * len(row))
    c.execute(f"INSERT INTO run ({', '.join(row._fields)}) VALUES ({marks})", row)


def _no_progress(entries: list[Entry], claims: int) -> dict[str, str]:
    """Why a run is parked that was claimed too often: the last entry that says something."""
    last = entries[-1] if entries[-1].kind != "claimed" else entries[-2]
    while last.kind in ("claimed", "released") and last.seq > 1:
        last = entries[last.seq - 2]
    where = f"{last.kind} {last.step or ''}".strip()
    return {
        "reason": f"{claims} claims in a row saved no progress after entry "
        f"{last.seq} ({where}): what follows it kills its worker",
        "why": "no progress",
    }


def _claimed(
    c: sqlite3.Connection, row: RunRow, entries: list[Entry], lease: Lease, now: float
) -> Claimed:
    """Save that the run is driven under ``lease`` now, or parked where it was claimed too often.

    ``lease`` comes with the digest of the last entry and the claims before this one.
    """
    parked = lease.claims >= CLAIM_LIMIT
    kind, payload = "claimed", {"owner": lease.owner}
    if parked:
        kind, payload = "parked", _no_progress(entries, lease.claims)
    seq = entries[-1].seq + 1
    entry = (row.run, seq, kind, None, None, None, lease.token, now, compact(payload))
    lease.seq, lease.digest = seq, link(lease.digest, entry)
    c.execute(INSERT_ENTRY, journal_row(entry, lease.digest))
    c.execute(
        "UPDATE run SET seq = ?, digest = ?, token = ?, owner = ?, leased = ?, "
        "claims = ?, status = ?, explained = ?, wake = NULL WHERE run = ?",
        (
            seq, lease.digest, lease.token, None if parked else lease.owner,
            None if parked else lease.leased, lease.claims if parked else lease.claims + 1,
            "needs_decision" if parked else "running",
            seq if parked else None, row.run,
        ),
    )  # fmt: skip
    lease.claims += 1
    return Claimed(row, lease, [*entries, Entry(*entry[1:])], parked)

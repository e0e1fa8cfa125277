"""The SQLite store. Its tables are explained in ``schema.sql``; its methods are verbs.

Every write goes through one transaction helper, which rolls back on any exception. An append
costs four statements and one commit: begin, check the fencing token, insert the entry, commit.
The run's own row is written only when it has something new to say (half of the lease is used
up, the first progress after a claim, a new status): each further page costs every commit.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from durakit import files, schema
from durakit.errors import (
    ClockMismatch,
    DamagedFile,
    InvalidField,
    LeaseLost,
    MisplacedFile,
    RunNotFound,
    SimulatedCrash,
    StoreBusy,
    StoreError,
    StoreFull,
    UsageError,
)

#: Claims without saved progress after which a run is parked instead of driven.
CLAIM_LIMIT = 3

#: The highest number that an entry of a run can have.
_LAST_SEQ = 2**32 - 1

OPEN_STATUSES = ("running", "waiting", "needs_decision")
FINAL_STATUSES = ("completed", "failed", "cancelled")

T = TypeVar("T")

_row_text = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


class Entry(NamedTuple):
    """One journal entry, as saved."""

    seq: int
    kind: str
    step: str | None
    key: str | None
    attempt: int | None
    token: int
    time: float
    payload: str


class RunRow(NamedTuple):
    """One row of ``run``; see schema.sql for every column."""

    run: int
    account: str
    id: str
    workflow: str
    version: int
    source: str
    arguments: str
    created: float
    deadline: float | None
    status: str
    seq: int
    digest: bytes
    explained: int | None
    token: int
    owner: str | None
    leased: float | None
    claims: int
    commands: int
    wake: float | None = None


_RUN = "SELECT " + ", ".join(RunRow._fields) + " FROM run"


class OperationRow(NamedTuple):
    """One row of ``operation``, with the lease of the run that drove it last."""

    account: str
    tool: str
    key: str
    arguments: str
    contract: str
    status: str
    attempts: int
    first_sent: float
    sent: float
    not_before: float | None
    run: int
    token: int
    reply: int | None
    kept: str | None
    run_id: str | None
    owner: str | None
    leased: float | None
    run_token: int | None


_OPERATION = """
SELECT o.account, o.tool, o.key, o.arguments, o.contract, o.status, o.attempts, o.first_sent,
       o.sent, o.not_before, o.run, o.token, o.reply, o.kept, r.id, r.owner, r.leased, r.token
  FROM operation AS o LEFT JOIN run AS r ON r.run = o.run
"""


class Command(NamedTuple):
    """A wish that waits for the driver; ``payload`` is JSON."""

    command: int
    kind: str
    payload: str
    time: float


@dataclass(eq=False, repr=False)
class Lease:
    """The right to append to one run: held by one incarnation, checked by its ``token``.

    ``leased`` is the end of the lease as the disk has it (wall seconds), ``length`` what a
    renewal adds; ``claims``: claims since progress was last saved, this one counted.
    """

    run: int
    token: int
    owner: str
    seq: int
    digest: bytes
    leased: float
    length: float
    claims: int = 1


class Change(NamedTuple):
    """What an entry does to its operation, in the same transaction.

    ``was`` is the (status, attempts) that the driver has seen; None inserts a new row. If the
    row is another by now, nothing is written and OperationMoved is raised.
    """

    account: str
    tool: str
    key: str
    arguments: str
    contract: str
    status: str
    attempts: int
    sent: float
    not_before: float | None
    was: tuple[str, int] | None
    concludes: bool = False


class Saved(NamedTuple):
    """An entry that is written together with another one, just before it."""

    kind: str
    step: str | None
    payload: str
    time: float


class CheckpointRow(NamedTuple):
    """Where one of a machine's checkpoints is; see migrations/0002."""

    seq: int
    transition: int
    whole: int


class Claimed(NamedTuple):
    """A run that is now ours, with everything saved about it."""

    row: RunRow
    lease: Lease
    entries: list[Entry]
    parked: bool


class OperationMoved(Exception):
    """The operation's row is not the one the driver has seen; look again and decide anew."""


_BEGIN = "BEGIN IMMEDIATE"
_FENCE = "SELECT commands FROM run WHERE run = ? AND token = ? AND owner IS NOT NULL"
_RENEW = "UPDATE run SET seq = ?, digest = ?, leased = ?, claims = ? WHERE run = ?"
_END = (
    "UPDATE run SET seq = ?, digest = ?, status = ?, explained = ?, claims = ?, "
    "owner = NULL, leased = NULL, wake = ? WHERE run = ?"
)
_CHECKPOINT = "INSERT INTO checkpoint (run, seq, transition, whole) VALUES (?, ?, ?, ?)"
_MARKS = "SELECT seq, transition, whole FROM checkpoint WHERE run = ?"
_INSERT = (
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


class Store:
    """One durakit file. ``path`` ``":memory:"`` keeps everything in this process only.

    ``durability``: ``"power"`` (each commit survives a power failure) or ``"process"`` (it
    survives the death of the process; the last commits may be lost with the power). ``wait``:
    seconds to wait for other writers. Raises a StoreError for a file that cannot be used, which
    is left as it was.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock_kind: str,
        durability: str = "power",
        wait: float = 10.0,
        create: bool = True,
    ) -> None:
        if durability not in ("power", "process"):
            raise InvalidField("durability", f"'power' or 'process', got {durability!r}")
        _check_path(path)
        self.memory = str(path) == ":memory:"
        # Absolute: a change of the working folder must not make it another file.
        self.path = Path(path).absolute() if not self.memory else None
        self.name = str(path) if self.memory else str(Path(path).absolute())
        self.durability = durability
        self._clock_kind = clock_kind
        self._wait = wait
        self._frozen: SimulatedCrash | None = None
        self._closed = False
        self._process = os.getpid()
        self._local = threading.local()
        self._all: list[sqlite3.Connection] = []
        self._lock = threading.RLock() if self.memory else None
        self._shared: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        if self.path is None:
            self._shared = self._memory_connection()
            return
        # Never look into a file that this process has open already: closing the second look would
        # drop the locks of the first, and another process could then remove the log under it.
        known = _identity(self.path) in _open_here
        if not known and not files.inspect(self.path, schema.shapes()):
            if not create:
                raise MisplacedFile(f"{self.path}: there is no such file")
            files.create(self.path, schema.fresh(clock_kind))
        self._identity = _identity(self.path)
        _open_here[self._identity] += 1
        disk = files.network_disk(self.path)
        if disk is not None:
            warnings.warn(
                f"{self.path} lies on a network disk ({disk}); SQLite's WAL needs a local one",
                stacklevel=3,
            )
        try:
            with self._translating():
                schema.migrate(self._connection())
        except BaseException:
            self.close()  # what was not opened is not counted as open here
            raise

    # -- connections and the one transaction helper ----------------------------------------

    def _memory_connection(self) -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        connection.deserialize(schema.fresh(self._clock_kind))
        return connection

    def _connection(self) -> sqlite3.Connection:
        """This thread's connection; a forked child must open the file itself."""
        if self._frozen is not None:
            raise self._frozen
        if self._closed:
            raise UsageError(f"{self.name}: this Runtime is closed; open the file again")
        if self._shared is not None:
            return self._shared
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None and self._process == os.getpid():
            return connection
        if self._process != os.getpid():
            raise UsageError(
                "this Runtime was opened before a fork; open the file again in the child"
            )
        assert self.path is not None
        connection = None
        try:
            connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=rw",
                uri=True,
                timeout=self._wait,
                isolation_level=None,
                check_same_thread=False,
            )
            level = "FULL" if self.durability == "power" else "NORMAL"
            connection.execute(f"PRAGMA synchronous = {level}")
            if sys.platform == "darwin" and self.durability == "power":
                connection.execute("PRAGMA fullfsync = ON")
            connection.execute("PRAGMA foreign_keys = ON")
            # With FULL each commit waits for the disk, and a short log that is written over and
            # over is quicker there than a long one that keeps growing (measured).
            pages = 500 if self.durability == "power" else 1000
            connection.execute(f"PRAGMA wal_autocheckpoint = {pages}")
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            raise _translated(error, self.name) from error
        self._local.connection = connection
        self._local.wait = self._wait
        self._all.append(connection)
        return connection

    def write(self, work: Callable[[sqlite3.Connection], T], wait: float | None = None) -> T:
        """Run ``work`` in one transaction; any exception, an interrupt too, rolls it back.

        ``wait`` bounds the wait for other writers, in seconds. Raises a StoreError.
        """
        connection = self._connection()
        self._check_place()
        if self._lock is not None:
            self._lock.acquire()
        try:
            self._bound_wait(connection, wait)
            connection.execute(_BEGIN)
            result = work(connection)
            connection.execute("COMMIT")
            return result
        except BaseException as error:
            # SQLite has already rolled back where it could not go on (a full disk).
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise _translated(error, self.name) from error
            raise
        finally:
            if self._lock is not None:
                self._lock.release()

    def _check_place(self) -> None:
        """What is written to a file that was removed or replaced is lost with our last handle."""
        if self.path is not None and _identity(self.name) != self._identity:
            raise MisplacedFile(
                f"{self.name}: was removed or replaced while it was open here; nothing was "
                "written. Put it back, or open the new one"
            )

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _translated(error, self.name) from error

    def _bound_wait(self, connection: sqlite3.Connection, wait: float | None) -> None:
        if self._shared is not None:
            return
        wanted = self._wait if wait is None else max(0.0, min(self._wait, wait))
        if wanted != self._local.wait:
            connection.execute(f"PRAGMA busy_timeout = {int(wanted * 1000)}")
            self._local.wait = wanted

    def _read(self, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        connection = self._connection()
        if self._lock is not None:
            self._lock.acquire()
        try:
            return connection.execute(sql, tuple(values)).fetchall()
        except sqlite3.Error as error:
            raise _translated(error, self.name) from error
        finally:
            if self._lock is not None:
                self._lock.release()

    def freeze(self, crash: SimulatedCrash) -> None:
        """From now on every touch raises ``crash``: the process that used us is dead."""
        self._frozen = crash

    def thaw(self) -> None:
        """A new incarnation begins; what was only in memory is gone."""
        if self._frozen is not None and self.memory:
            assert self._shared is not None
            self._shared.close()
            self._shared = self._memory_connection()
        self._frozen = None

    def close(self) -> None:
        """Close every connection."""
        if self._process != os.getpid():
            return  # a forked child must not close what its parent has open
        self._closed = True
        for connection in [*self._all, *([self._shared] if self._shared else [])]:
            connection.close()
        self._all.clear()
        self._local = threading.local()
        if self._identity is not None:
            _open_here[self._identity] -= 1
            if not _open_here[self._identity]:
                del _open_here[self._identity]
            self._identity = None

    # -- runs ------------------------------------------------------------------------------

    def check_clock(self) -> None:
        """Raises ClockMismatch where another kind of clock drives this file."""
        ((kind,),) = self._read("SELECT clock FROM schema_version ORDER BY version LIMIT 1")
        if kind != self._clock_kind:
            raise ClockMismatch(
                f"{self.name} is driven by a {kind} clock and this Runtime has a "
                f"{self._clock_kind} clock: it can read the file, and not drive its runs"
            )

    def create_run(self, row: RunRow, payload: str) -> tuple[RunRow, bool]:
        """Save a new run, or return the one that has its id: (row as saved, whether new)."""

        def work(c: sqlite3.Connection) -> tuple[RunRow, bool]:
            found = c.execute(_RUN + " WHERE account = ? AND id = ?", (row.account, row.id))
            saved = found.fetchone()
            if saved is not None:
                return RunRow(*saved), False
            (number,) = c.execute("SELECT coalesce(max(run), 0) + 1 FROM run").fetchone()
            first = (number, 1, "started", None, None, None, 0, row.created, payload)
            digest = _chain(_seed(row), first)
            new = row._replace(run=number, seq=1, digest=digest)
            marks = ", ".join("?" * len(new))
            c.execute(f"INSERT INTO run ({', '.join(new._fields)}) VALUES ({marks})", new)
            c.execute(_INSERT, _journal_row(first, digest))
            return new, True

        return self.write(work)

    def find_run(self, account: str, id: str) -> RunRow:
        """The run's row. Raises RunNotFound."""
        rows = self._read(_RUN + " WHERE account = ? AND id = ?", (account, id))
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
        rows = self._read(f"{_RUN} WHERE {' AND '.join(where)} ORDER BY run", values)
        return [RunRow(*row) for row in rows]

    def count_entries(self, rows: Iterable[RunRow]) -> list[int]:
        """How many journal entries each run has; no payload is read."""
        counts = dict(
            self._read(
                "SELECT run, (SELECT coalesce(max(place), 0) & 4294967295 FROM journal "
                "WHERE place > r.run << 32 AND place < (r.run + 1) << 32) FROM run AS r"
            )
        )
        return [counts.get(row.run, 0) for row in rows]

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
            found = c.execute(_RUN + " WHERE account = ? AND id = ?", (account, id)).fetchone()
            if found is None:
                raise RunNotFound(f"no run {id!r} in {self.name} (account {account!r})")
            row = RunRow(*found)
            if row.status in FINAL_STATUSES:
                return row
            held = row.owner is not None and (row.leased or 0.0) > now
            if held and not dead(row.owner or ""):
                return row
            entries, last_digest = self._verified(c, row)
            if entries[-1].token != row.token:
                raise DamagedFile(
                    f"{self.name}: run {row.id!r}: its fencing token is not that of its last "
                    "entry. Nothing was changed"
                )
            claims = 0 if by_hand else row.claims
            token = row.token + 1
            parked = claims >= CLAIM_LIMIT
            if parked:
                last = entries[-1] if entries[-1].kind != "claimed" else entries[-2]
                while last.kind in ("claimed", "released") and last.seq > 1:
                    last = entries[last.seq - 2]
                place = f"{last.kind} {last.step or ''}".strip()
                kind, payload = "parked", {
                    "reason": f"{claims} claims in a row saved no progress after entry "
                    f"{last.seq} ({place}): what follows it kills its worker",
                    "why": "no progress",
                }  # fmt: skip
            else:
                kind, payload = "claimed", {"owner": owner}
            text = _row_text(payload)
            seq = entries[-1].seq + 1
            entry = (row.run, seq, kind, None, None, None, token, now, text)
            digest = _chain(last_digest, entry)
            c.execute(_INSERT, _journal_row(entry, digest))
            c.execute(
                "UPDATE run SET seq = ?, digest = ?, token = ?, owner = ?, leased = ?, "
                "claims = ?, status = ?, explained = ?, wake = NULL WHERE run = ?",
                (
                    seq, digest, token, None if parked else owner,
                    None if parked else leased, claims if parked else claims + 1,
                    "needs_decision" if parked else "running",
                    seq if parked else None, row.run,
                ),
            )  # fmt: skip
            entries.append(Entry(*entry[1:]))
            lease = Lease(row.run, token, owner, seq, digest, leased, leased - now, claims + 1)
            return Claimed(row, lease, entries, parked)

        return self.write(work)

    def _verified(self, c: sqlite3.Connection, row: RunRow) -> tuple[list[Entry], bytes]:
        """The run's entries and the digest of the last; every link of the chain is checked."""
        rows = c.execute(
            "SELECT seq, kind, step, key, attempt, token, time, payload, digest "
            "FROM journal WHERE place > ? AND place < ? ORDER BY place",
            (_place(row.run, 0), _place(row.run + 1, 0)),
        ).fetchall()
        digest = self._linked(_seed(row), 1, row.run, rows)
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
            digest = _chain(digest, (run, *found[:-1]))
            if digest != found[-1] or found[0] != position:
                raise DamagedFile(
                    f"{self.name}: run number {run}: journal entry {position} is not what was "
                    "written. Nothing was changed"
                )
        return digest

    def release(self, lease: Lease, now: float, why: str) -> None:
        """Give the lease back without an end: the run stays as the disk says."""
        # An interrupt may have come between a commit and our note of it.
        ((lease.seq, lease.digest),) = self._read(
            "SELECT seq, digest FROM journal WHERE place < ? ORDER BY place DESC LIMIT 1",
            (_place(lease.run + 1, 0),),
        )
        self.append(
            lease, "released", now=now, leased=now, payload=_row_text({"why": why}), ends="running"
        )

    # -- the journal -----------------------------------------------------------------------

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
        this entry is a machine's checkpoint. ``wake``: when a waiting run may go on. Raises
        LeaseLost where the token is stale,
        OperationMoved where the operation is not as the driver has seen it, StoreFull, StoreBusy
        or another StoreError; in each case nothing is written.
        """
        run, token, seq, digest = lease.run, lease.token, lease.seq + 1, lease.digest
        rows = []
        for saved in before:
            first = (run, seq, saved.kind, saved.step, None, None, token, saved.time, saved.payload)
            digest = _chain(digest, first)
            rows.append(_journal_row(first, digest))
            seq += 1
        entry = (run, seq, kind, step, key, attempt, token, now, payload)
        digest = _chain(digest, entry)
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
                c.executemany(_INSERT, rows)
            c.execute(_INSERT, _journal_row(entry, digest))
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
        end = _place(run + 1, 0) if until is None else _place(run, until + 1)
        # The run's row first: what it knows of must be in the journal that is read after it.
        saved = self._read(_RUN + " WHERE run = ?", (run,))
        if not saved:
            return []  # it has been pruned
        row = RunRow(*saved[0])
        rows = self._read(
            "SELECT seq, kind, step, key, attempt, token, time, payload, digest "
            "FROM journal WHERE place >= ? AND place < ? ORDER BY place",
            (_place(run, after), end),
        )
        before = _seed(row)
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
        return [CheckpointRow(*row) for row in self._read(_MARKS + " ORDER BY seq", (run,))]

    def last_checkpoint(self, run: int, until: int | None = None) -> CheckpointRow | None:
        """The latest checkpoint, or the latest whose entry is not after ``until``."""
        end = _LAST_SEQ if until is None else until
        rows = self._read(_MARKS + " AND seq <= ? ORDER BY seq DESC LIMIT 1", (run, end))
        return CheckpointRow(*rows[0]) if rows else None

    def copy_run(self, row: RunRow, at: int, id: str, now: float) -> RunRow:
        """A new run with the entries 1 to ``at`` of another, in one transaction."""

        def work(c: sqlite3.Connection) -> RunRow:
            if c.execute(
                "SELECT 1 FROM run WHERE account = ? AND id = ?", (row.account, id)
            ).fetchone():
                raise InvalidField("id", f"there is a run {id!r} already")
            (number,) = c.execute("SELECT coalesce(max(run), 0) + 1 FROM run").fetchone()
            new = row._replace(
                run=number, id=id, created=now, status="running", explained=None, owner=None,
                leased=None, claims=0, commands=0, wake=None,
            )  # fmt: skip
            digest, token, last = _seed(new), 0, 0
            entries = self._verified(c, row)[0][:at]
            if entries[-1].kind in FINAL_STATUSES:
                raise InvalidField("at", f"entry {at} is the run's end: nothing comes after it")
            for entry in entries:
                told = (number, *entry)
                digest, token, last = _chain(digest, told), entry.token, entry.seq
                c.execute(_INSERT, _journal_row(told, digest))
            new = new._replace(seq=last, digest=digest, token=token)
            marks = ", ".join("?" * len(new))
            c.execute(f"INSERT INTO run ({', '.join(new._fields)}) VALUES ({marks})", new)
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
        rows = self._read(
            _OPERATION + " WHERE o.account = ? AND o.tool = ? AND o.key = ?", (account, tool, key)
        )
        return OperationRow(*rows[0]) if rows else None

    def operations_of(self, run: RunRow) -> list[OperationRow]:
        """The operations that the run's journal mentions, in the order of their first entry."""
        rows = self._read(
            _OPERATION + " JOIN (SELECT step, key, min(seq) AS first FROM journal "
            "WHERE place > ? AND place < ? AND key IS NOT NULL GROUP BY step, key) AS j "
            "ON o.account = ? AND o.tool = j.step AND o.key = j.key ORDER BY j.first",
            (_place(run.run, 0), _place(run.run + 1, 0), run.account),
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
        rows = self._read(
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
            if row.created < before and self.write(lambda c, row=row: _remove(c, row)):  # type: ignore[misc]
                removed += 1
        return removed

    def compact(self) -> None:
        """Give freed space back to the disk."""
        connection = self._connection()
        try:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise _translated(error, self.name) from error


def _apply(
    c: sqlite3.Connection, change: Change, run: int, token: int, seq: int, now: float
) -> None:
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


def _remove(c: sqlite3.Connection, row: RunRow) -> bool:
    # Another process may have removed it since, and its number may have a new run by now.
    if c.execute(_RUN + " WHERE run = ?", (row.run,)).fetchone() != row:
        return False
    span = (_place(row.run, 0), _place(row.run + 1, 0))
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


def _check_path(path: Any) -> None:
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise InvalidField("path", f"needs a file's path or ':memory:', got {path!r}")


def _place(run: int, seq: int) -> int:
    return (run << 32) + seq


def _journal_row(entry: tuple[Any, ...], digest: bytes) -> tuple[Any, ...]:
    return ((entry[0] << 32) + entry[1], *entry[2:], digest)


def _seed(row: RunRow) -> bytes:
    """Where a run's chain begins: the half of its row that never changes."""
    text = (
        f"{row.account!r} {row.id!r} {row.workflow!r} {row.version} {row.source} {row.arguments} "
        f"{row.created!r} {row.deadline!r}"
    )
    return hashlib.sha256(text.encode()).digest()


def _chain(before: bytes, entry: tuple[Any, ...]) -> bytes:
    """SHA-256 over the digest before and the row: numbers, quoted names, then the payload."""
    run, seq, kind, step, key, attempt, token, time, payload = entry
    row = f"{run} {seq} {kind} {step!r} {key!r} {attempt} {token} {time!r} {payload}"
    return hashlib.sha256(before + row.encode()).digest()


#: How many Stores of this process have a file (device, inode) open.
_open_here: Counter[tuple[int, int] | None] = Counter()


def _identity(path: str | Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - on the way of each write, and three times as quick
    except (OSError, ValueError):  # not there, or no name for a file: the inspection says which
        return None
    return found.st_dev, found.st_ino


@contextmanager
def known(path: Path) -> Iterator[None]:
    """Within this, ``path`` is not read through when it is opened: this process has just made it.

    For the sweep, which opens thousands of files that it wrote a moment ago.
    """
    identity = _identity(path)
    _open_here[identity] += 1
    try:
        yield
    finally:
        _open_here[identity] -= 1
        if not _open_here[identity]:
            del _open_here[identity]


_FULL = (sqlite3.SQLITE_FULL,)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_MISPLACED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)


def _translated(error: sqlite3.Error, name: str) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _FULL:
        return StoreFull(f"{name}: no room is left for the next entry; nothing was written")
    if code in _BUSY:
        return StoreBusy(f"{name}: other writers held it for too long; nothing was written")
    if code in _DAMAGED:
        return DamagedFile(f"{name}: is damaged ({error}); nothing was written")
    if code in _MISPLACED:
        return MisplacedFile(f"{name}: cannot be written here ({error})")
    return StoreError(f"{name}: {error}")

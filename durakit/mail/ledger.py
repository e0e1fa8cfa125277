"""The ledger's file: opening, migrating, one transaction at a time, and surviving a fork.

Inelegant, and on purpose: a connection that lives through a fork makes SQLite believe in locks the
child does not have, and closing either copy can delete the other's WAL. So every connection of this
process is closed just before a fork, and each side opens its own at its next touch.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final

BUSY_WAIT: Final = 30.0  # real seconds one process waits for another's transaction
APPLICATION_ID: Final = 1684761964  # 'dkml', as in schema.sql
SCHEMA_VERSION: Final = 3
OLDER: Final = {1: "migration_2.sql", 2: "migration_3.sql"}  # how to leave a version


class Ledger:
    """One ledger file, open or closed. Threads may share it, processes its file."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self._tool = ""
        self._file: tuple[int, int] | None = None
        self._stamp: tuple[int, int] | None = None
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        with _forking:  # not while another thread walks the set
            _ledgers.add(self)

    def open(self, path: Path, tool: str) -> None:
        """Close what was open and open this file: made if it is missing, brought up to date if old.

        ``tool``: whose a ledger of version 1 is. Raises RuntimeError, and leaves the file as it is,
        if it is something else or newer. A file that is removed, replaced or overwritten later is
        no longer touched: every touch then raises RuntimeError.
        """
        with self._lock:
            self.close()
            self.path, self._tool = path, tool
            try:
                self._connect()
            except BaseException:
                self.path = None
                raise

    def close(self) -> None:
        """Close the file. Every touch but ``open`` then raises RuntimeError."""
        with self._lock:
            self._disconnect()
            self.path = self._file = self._stamp = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one write transaction; roll back on any exception."""
        with self._lock:
            db = self._connect()
            try:
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def _connect(self) -> sqlite3.Connection:
        if self.path is None:
            raise RuntimeError("this mailbox is closed; fresh(folder) opens it again")
        file, stamp = _look(self.path)
        # What is written then nobody will ever read: mails would be out that no ledger knows.
        if self._file is not None and file != self._file:
            raise RuntimeError(
                f"{self.path} is not the file that was opened: it was removed or replaced; "
                "fresh(folder) opens what is there now"
            )
        if self._stamp is not None and stamp != self._stamp:
            _check_content(self.path, self._stamp[0])
            self._stamp = stamp
        if self._connection is None:
            self._connection = _open(self.path, self._tool)
            self._file, self._stamp = _look(self.path)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __del__(self) -> None:
        if getattr(self, "_connection", None) is not None:
            self._disconnect()


def _open(path: Path, tool: str) -> sqlite3.Connection:
    # Created by hand for the mode; SQLite gives its -wal and -shm files the mode of the main file.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    db = sqlite3.connect(path, timeout=BUSY_WAIT, isolation_level=None, check_same_thread=False)
    try:
        db.row_factory = sqlite3.Row
        _prepare(db, path, tool)
    except BaseException:
        db.close()
        raise
    return db


def _look(path: Path) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Return which file stands there (None: none), and what changes when its content does."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None, None
    return (found.st_dev, found.st_ino), (found.st_size, found.st_mtime_ns)


def _check_content(path: Path, size: int) -> None:
    """Raise RuntimeError where the file that was opened, ``size`` bytes then, is no ledger now.

    An open connection goes on with its log and its cache, and would not notice. So the header is
    read past them; by SQLite, since to close a file by other means drops this process's locks. A
    file that is too short for its header proves nothing if it has not shrunk: whoever is killed
    while moving pages there from the log leaves one.
    """
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        if path.stat().st_size >= size:
            db.execute("PRAGMA writable_schema = ON")  # then it may be too short for its header
        if _pragma(db, "application_id") == APPLICATION_ID:
            return
    except sqlite3.OperationalError:  # locked or unreadable says nothing
        raise
    except sqlite3.DatabaseError:
        pass
    finally:
        db.close()
    raise RuntimeError(
        f"{path} was overwritten or cut off while it was open here; fresh(folder) opens what is "
        "there now"
    )


def _prepare(db: sqlite3.Connection, path: Path, tool: str) -> None:
    try:
        db.execute("BEGIN")  # one look: between two, another process might make the ledger
        stamp = (_pragma(db, "application_id"), _pragma(db, "user_version"))
        is_empty = stamp == (0, 0) and _pragma(db, "schema_version") == 0
        db.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):  # locked or unreadable says nothing
            raise
        raise RuntimeError(f"{path} is not a mail ledger, and is left as it is") from error
    if is_empty:
        # In the ordinary journal mode, where a second process waits politely for the first.
        # Unsynced: a kill loses nothing by it, and lessons make a ledger for every crash point.
        db.execute("PRAGMA synchronous = OFF")
        db.executescript(_text("schema.sql"))
    elif stamp[0] != APPLICATION_ID or stamp[1] not in (*OLDER, SCHEMA_VERSION):
        raise RuntimeError(
            f"{path} is not a mail ledger of version {SCHEMA_VERSION}, and is left as it is"
        )
    else:
        _migrate(db, tool)
    give_up = time.monotonic() + BUSY_WAIT
    while True:  # the change to WAL does not honour the busy wait when two processes start at once
        try:
            db.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.005)
    db.execute("PRAGMA synchronous = NORMAL")


def _migrate(db: sqlite3.Connection, tool: str) -> None:
    """Bring an older ledger up to date, every step and its number in one transaction."""
    while _pragma(db, "user_version") in OLDER:
        db.execute("BEGIN IMMEDIATE")
        try:
            version = _pragma(db, "user_version")  # another process may have been quicker
            if version in OLDER:
                for statement in _statements(_text(OLDER[version])):
                    db.execute(statement, {"tool": tool} if ":tool" in statement else {})
                db.execute(f"PRAGMA user_version = {version + 1}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


def _statements(text: str) -> Iterator[str]:
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


# ── forks ────────────────────────────────────────────────────────────────────────────────────────

_ledgers: weakref.WeakSet[Ledger] = weakref.WeakSet()
_paused: list[Ledger] = []
_forking = threading.Lock()


def _before_fork() -> None:
    _forking.acquire()
    for ledger in sorted(_ledgers, key=id):
        ledger._lock.acquire()  # noqa: SLF001 (this module's own; waits for other threads)
        ledger._disconnect()  # noqa: SLF001 (as above)
        _paused.append(ledger)


def _after_fork() -> None:
    while _paused:
        _paused.pop()._lock.release()  # noqa: SLF001 (as above)
    _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )

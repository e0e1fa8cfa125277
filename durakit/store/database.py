"""One SQLite file: its connections, its one transaction helper, and what its errors mean.

A file that this process has open already is never looked into a second time: closing the second
look would drop the locks of the first.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from durakit import files, schema
from durakit.errors import (
    ClockMismatch,
    DamagedFile,
    InvalidField,
    MisplacedFile,
    SimulatedCrash,
    StoreBusy,
    StoreError,
    StoreFull,
    UsageError,
)

T = TypeVar("T")

_BEGIN = "BEGIN IMMEDIATE"


class Database:
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
        self._stamp: tuple[int, int] | None = None
        if self.path is None:
            self._shared = self._memory_connection()
            return
        self._find_file(self.path, create=create)
        disk = files.network_disk(self.path)
        if disk is not None:
            warnings.warn(
                f"{self.path} lies on a network disk ({disk}); SQLite's WAL needs a local one",
                stacklevel=3,
            )
        try:
            with self._translating():
                schema.migrate(self.connection())
        except BaseException:
            self.close()  # what was not opened is not counted as open here
            raise

    def _find_file(self, path: Path, *, create: bool) -> None:
        """Note which file it is, after a look into it; where there is none, ``create`` one."""
        # Never look into a file that this process has open already: closing the second look would
        # drop the locks of the first, and another process could then remove the log under it.
        known = _identity(path) in _open_here
        if not known and not files.inspect(path, schema.shapes()):
            if not create:
                raise MisplacedFile(f"{path}: there is no such file")
            files.create(path, schema.fresh(self._clock_kind))
        self._identity, self._stamp = _look(path)
        _open_here[self._identity] += 1

    def _memory_connection(self) -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        connection.deserialize(schema.fresh(self._clock_kind))
        return connection

    def connection(self) -> sqlite3.Connection:
        """This thread's connection; a forked child must open the file itself."""
        if self._frozen is not None:
            raise self._frozen
        if self._closed:
            raise UsageError(f"{self.name}: this Runtime is closed; open the file again")
        if self._shared is not None:
            return self._shared
        if self._process != os.getpid():
            raise UsageError(
                "this Runtime was opened before a fork; open the file again in the child"
            )
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            return connection
        connection = self._opened()
        self._local.connection = connection
        self._local.wait = self._wait
        self._all.append(connection)
        return connection

    def _opened(self) -> sqlite3.Connection:
        """A new connection to the file, with all that this Database asks of it."""
        assert self.path is not None
        connection: sqlite3.Connection | None = None
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
        return connection

    def write(self, work: Callable[[sqlite3.Connection], T], wait: float | None = None) -> T:
        """Run ``work`` in one transaction; any exception, an interrupt too, rolls it back.

        ``wait`` bounds the wait for other writers, in seconds. Raises a StoreError.
        """
        connection = self.connection()
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
        """What is written to a file that was removed or replaced is lost with our last handle.

        In one that was overwritten in place it is lost when the log is moved there.
        """
        if self.path is None:
            return
        identity, stamp = _look(self.name)
        if identity != self._identity:
            raise MisplacedFile(
                f"{self.name}: was removed or replaced while it was open here; nothing was "
                "written. Put it back, or open the new one"
            )
        if stamp != self._stamp:
            files.check_still_ours(self.path, self._stamp[0] if self._stamp else 0)
            self._stamp = stamp

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

    def read(self, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        """The rows that a query finds. Raises a StoreError."""
        connection = self.connection()
        if self._lock is not None:
            self._lock.acquire()
        try:
            return connection.execute(sql, tuple(values)).fetchall()
        except sqlite3.Error as error:
            raise _translated(error, self.name) from error
        finally:
            if self._lock is not None:
                self._lock.release()

    def compact(self) -> None:
        """Give freed space back to the disk."""
        connection = self.connection()
        with self._translating():
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

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
            _let_go(self._identity)
            self._identity = None

    def check_clock(self) -> None:
        """Raises ClockMismatch where another kind of clock drives this file."""
        ((kind,),) = self.read("SELECT clock FROM schema_version ORDER BY version LIMIT 1")
        if kind != self._clock_kind:
            raise ClockMismatch(
                f"{self.name} is driven by a {kind} clock and this Runtime has a "
                f"{self._clock_kind} clock: it can read the file, and not drive its runs"
            )


def _check_path(path: Any) -> None:
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise InvalidField("path", f"needs a file's path or ':memory:', got {path!r}")


#: How many Stores of this process have a file (device, inode) open.
_open_here: Counter[tuple[int, int] | None] = Counter()


def _look(path: str | Path) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Which file a path leads to now (device and inode), and what changes with its content.

    None and None where there is none.
    """
    try:
        found = os.stat(path)  # noqa: PTH116 - on the way of each write, and three times as quick
    except (OSError, ValueError):  # not there, or no name for a file: the inspection says which
        return None, None
    return (found.st_dev, found.st_ino), (found.st_size, found.st_mtime_ns)


def _identity(path: str | Path) -> tuple[int, int] | None:
    return _look(path)[0]


def _let_go(identity: tuple[int, int] | None) -> None:
    _open_here[identity] -= 1
    if not _open_here[identity]:
        del _open_here[identity]


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
        _let_go(identity)


_FULL = (sqlite3.SQLITE_FULL,)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_MISPLACED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)


def _translated(error: sqlite3.Error, name: str) -> StoreError:
    """The error of ours that says the same, and names the file."""
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

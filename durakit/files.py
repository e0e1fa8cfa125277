"""The file before SQLite opens it: is it ours, whole, and in a place where it can live?

SQLite changes a file merely by opening and closing it (it replays and removes the write-ahead
log). So the header is read first as plain bytes, and deeper checks work on a private copy or on
an immutable view: a file that is refused is left byte for byte as it was.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
import struct
import tempfile
from pathlib import Path

from durakit.errors import (
    DamagedFile,
    ForeignFile,
    MisplacedFile,
    NewerFile,
    StoreError,
    StoreFull,
)

#: 'dkit' in the header's application id, so that a file says whose it is.
APPLICATION_ID = 0x646B6974

_MAGIC = b"SQLite format 3\x00"
_HEADER = 100

#: Files above this size (bytes) are not read through at every opening; the header, the size and
#: the digests of each run that is driven still are checked.
DEEP_CHECK_LIMIT = 64 * 1024 * 1024

#: Disks on which SQLite's shared-memory file, and so its WAL, does not work.
_NETWORK_DISKS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs"})


Shapes = dict[int, dict[str, str]]
"""Schema version → what a file of that version is made of, as ``shape_of`` tells it."""


def inspect(path: Path, shapes: Shapes) -> bool:
    """Whether ``path`` is a file to open (True) or to create (False); else a StoreError.

    ``shapes`` has every schema version that this code knows.
    """
    try:
        path.lstat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:  # a name too long, no permission, a file as a folder
        raise MisplacedFile(f"{path}: cannot be a file here ({error})") from error
    if path.is_dir():
        raise MisplacedFile(f"{path}: is a folder, and a database is a file")
    if not path.parent.is_dir():
        raise MisplacedFile(f"{path}: the folder {path.parent} does not exist")
    path = path.resolve()  # SQLite puts the log beside the file itself, not beside a link to it
    log = path.with_name(path.name + "-wal")
    if path.exists() and not path.is_file():
        raise MisplacedFile(f"{path}: is not a regular file")
    if not path.exists():
        if log.exists() and log.stat().st_size:
            raise DamagedFile(
                f"{path}: only its write-ahead log {log.name} is there; the database itself is "
                "missing, so put it back or move the log away"
            )
        return False
    _check_header(path, max(shapes), log)
    if path.stat().st_size + _size(log) <= DEEP_CHECK_LIMIT:
        _check_deeply(path, log, shapes)
    return True


def shape_of(connection: sqlite3.Connection) -> dict[str, str]:
    """Name → statement of every table, index and trigger, without comments and line breaks."""
    rows = connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
    return {name: " ".join(re.sub(r"--[^\n]*", "", str(sql)).split()) for name, sql in rows}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _check_header(path: Path, version: int, log: Path) -> None:
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER)
    except PermissionError as error:
        raise MisplacedFile(f"{path}: not readable by this user") from error
    if not header:
        raise DamagedFile(f"{path}: is empty; no durakit file ever is. Left as it was")
    if not header.startswith(_MAGIC):
        if _MAGIC.startswith(header):
            raise DamagedFile(f"{path}: is cut off after {len(header)} bytes. Left as it was")
        raise ForeignFile(f"{path}: is not a database of durakit's. Left as it was")
    if len(header) < _HEADER:
        raise DamagedFile(f"{path}: is cut off after {len(header)} bytes. Left as it was")
    (application,) = struct.unpack(">I", header[68:72])
    if application != APPLICATION_ID:
        raise ForeignFile(f"{path}: is a database of another program. Left as it was")
    (found,) = struct.unpack(">I", header[60:64])
    if found > version:
        raise NewerFile(
            f"{path}: has schema {found}, and this durakit knows up to {version}; "
            "use a newer durakit. Left as it was"
        )
    if found < 1:
        raise DamagedFile(f"{path}: its header is damaged (schema {found}). Left as it was")
    (page,) = struct.unpack(">H", header[16:18])
    page = 65536 if page == 1 else page
    if page < 512 or page & (page - 1):
        raise DamagedFile(f"{path}: its header is damaged (page size {page}). Left as it was")
    changes, pages, valid_for = (struct.unpack(">I", header[i : i + 4])[0] for i in (24, 28, 92))
    size = path.stat().st_size
    # With a write-ahead log the last pages may still be in the log, so the size proves nothing.
    if changes == valid_for and size < pages * page and not _size(log):
        raise DamagedFile(
            f"{path}: is cut off: {size} bytes are left of {pages * page}. Left as it was"
        )


def _check_deeply(path: Path, log: Path, shapes: Shapes) -> None:
    """Read every page. Only damage that shows in an unchanging file counts as proven."""
    for _ in range(5):
        before = _stamp(path, log)
        problem = _read_through(path, log, shapes)
        if problem is None:
            return
        if _stamp(path, log) == before:
            raise DamagedFile(f"{path}: {problem}. Left as it was")
    # Somebody is writing it at this moment, which an unreadable file does not allow.


def _stamp(path: Path, log: Path) -> tuple[object, ...]:
    def of(file: Path) -> tuple[int, int] | None:
        try:
            found = file.stat()
        except FileNotFoundError:
            return None
        return found.st_size, found.st_mtime_ns

    return of(path), of(log)


def _read_through(path: Path, log: Path, shapes: Shapes) -> str | None:
    if not _size(log):
        return _problem(f"{path.absolute().as_uri()}?immutable=1", shapes)
    with tempfile.TemporaryDirectory(prefix="durakit-check-") as folder:
        copy = Path(folder) / "copy.db"
        try:
            shutil.copyfile(path, copy)
            shutil.copyfile(log, copy.with_name("copy.db-wal"))
        except FileNotFoundError:
            return "changed while it was read"
        return _problem(copy.as_uri(), shapes)


def _problem(uri: str, shapes: Shapes) -> str | None:
    try:
        connection = sqlite3.connect(uri, uri=True, isolation_level=None)
        try:
            (answer,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if answer != "ok":
                return f"is damaged ({str(answer).splitlines()[-1]})"
            # The version as the log has it: a migration may not be in the header yet.
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            shape, found = shapes.get(version, {}), shape_of(connection)
        finally:
            connection.close()
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        return f"is damaged ({error})"
    wrong = sorted(name for name in shape if shape[name] != found.get(name))
    return f"is damaged ({', '.join(wrong)}: missing or not as they were made)" if wrong else None


def check_still_ours(path: Path, size: int) -> None:
    """Raise DamagedFile where a file that is open here, ``size`` bytes before, was overwritten.

    A connection goes on with its log and its cache, and would not notice. So the header is read
    past them; by SQLite, since to close a file by other means drops this process's locks. A file
    that is too short for its header proves nothing if it has not shrunk: whoever is killed while
    moving pages there from the log leaves one.
    """
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            if path.stat().st_size >= size:
                connection.execute("PRAGMA writable_schema = ON")  # then it may be too short
            (application,) = connection.execute("PRAGMA application_id").fetchone()
        finally:
            connection.close()
    except sqlite3.OperationalError:  # locked or unreadable says nothing
        return
    except sqlite3.DatabaseError:
        application = None
    if application != APPLICATION_ID:
        raise DamagedFile(
            f"{path}: was overwritten or cut off while it was open here; nothing was written"
        )


def create(path: Path, content: bytes) -> None:
    """Put a new database in place, whole or not at all, readable by its owner only.

    Where another process has just created it, theirs stands.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=".durakit-", dir=path.parent)  # mode 0600
    except OSError as error:
        raise _uncreated(path, error) from error
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        connection = sqlite3.connect(draft, isolation_level=None)
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        finally:
            connection.close()
        if mode != "wal":
            raise MisplacedFile(f"{path}: this disk does not allow SQLite's WAL; use a local disk")
        try:
            os.link(draft, path)
        except FileExistsError:
            return
        except OSError:  # a disk without hard links
            if not path.exists():
                draft.rename(path)
    except (OSError, sqlite3.Error) as error:
        raise _uncreated(path, error) from error
    finally:
        for leftover in (draft, Path(name + "-wal"), Path(name + "-shm")):
            leftover.unlink(missing_ok=True)


def _uncreated(path: Path, error: OSError | sqlite3.Error) -> StoreError:
    full = getattr(error, "errno", None) == errno.ENOSPC
    if full or getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return StoreFull(f"{path}: no room is left to create it; nothing was created")
    if isinstance(error, PermissionError):
        return MisplacedFile(f"{path}: cannot be written by this user")
    return MisplacedFile(f"{path}: cannot be created here ({error})")


#: Device number → the kind of network disk it is: to look it up costs more than a claim.
_kinds: dict[int, str | None] = {}


def network_disk(path: Path) -> str | None:
    """The kind of network disk that ``path`` lies on, where the system tells; else None."""
    device = path.absolute().parent.stat().st_dev
    if device not in _kinds:
        _kinds[device] = _look_up_disk(path)
    return _kinds[device]


def _look_up_disk(path: Path) -> str | None:
    mounts = Path("/proc/self/mountinfo")
    if not mounts.exists():
        return None
    best, kind = "", None
    place = str(path.absolute().parent)
    for line in mounts.read_text(errors="replace").splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].replace("\\040", " ")
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) > len(best):
            best, kind = point, right.split()[0]
    return kind if kind in _NETWORK_DISKS else None

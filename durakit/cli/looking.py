"""Looking at a Runtime's file without changing it, also while a driver is at work.

To open an SQLite file and close it again already changes it, because a write-ahead log that a
killed process has left is then moved into the database. So the file is copied, and the copy read.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from durakit import files, schema
from durakit.clock import SystemClock
from durakit.errors import MisplacedFile, StoreBusy
from durakit.store import Store

#: The account that runs belong to where nobody says otherwise.
ACCOUNT: Final = "default"

#: How often a file is copied again because its log was begun anew meanwhile.
_COPY_TRIES: Final = 50


def require_file(path: Path) -> None:
    """Raises a StoreError for a file that is missing, or that no Runtime could open."""
    if not files.inspect(path, schema.shapes()):
        raise MisplacedFile(f"{path}: there is no such file")


@contextlib.contextmanager
def looking(path: Path) -> Iterator[Store]:
    """A Store on a private copy of the file: nothing that it does can reach the original."""
    require_file(path)
    with tempfile.TemporaryDirectory(prefix="durakit-look-") as folder:
        store = Store(copied(path, Path(folder)), clock_kind=SystemClock.kind)
        store.name = str(path)  # messages speak of the file that was asked for
        with contextlib.closing(store):
            yield store


def copied(path: Path, folder: Path) -> Path:
    """Copy database and write-ahead log as they were at one moment, also under a live driver.

    SQLite changes the database only by moving pages from the log into it, and only appends to
    the log until it begins the log anew, with a new header. So if the log's header is the same
    before and after, a log that was copied *after* the database holds every page that was on
    the move meanwhile. Without a log, the database's own stamp must be the same. Raises StoreBusy
    where that never comes about.
    """
    log = path.with_name(path.name + "-wal")
    copy = folder / "copy.db"
    copied_log = folder / "copy.db-wal"
    for _ in range(_COPY_TRIES):
        before = _generation(path, log)
        shutil.copyfile(path, copy)
        copied_log.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(log, copied_log)
        if _generation(path, log) == before:
            return copy
    raise StoreBusy(f"{path}: is written too fast to be copied; try again")


def _generation(path: Path, log: Path) -> tuple[object, ...]:
    with contextlib.suppress(FileNotFoundError), log.open("rb") as file:
        header = file.read(32)
        if header:
            return (header,)
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino

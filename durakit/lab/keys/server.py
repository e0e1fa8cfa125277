"""A mail server in two tables, which the learner writes: attacked by many at once, and killed.

It runs with real threads on a real SQLite file, in a folder of its own.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from durakit.lab.laboratory import scratch

__all__ = ["Server", "attack", "die_between"]

#: A server as a function of its database, the request's key, and a place to be disturbed at.
Server = Callable[[sqlite3.Connection, str, Callable[[str], None]], object]

_TABLES: Final = "CREATE TABLE mail (key TEXT); CREATE TABLE seen (key TEXT PRIMARY KEY);"


def attack(server: Server, threads: int) -> int:
    """Let so many threads ask the server for one mail, all of them at ``pause("together")``.

    Returns how many mails there are. Raises whatever the server raises.
    """
    together = threading.Barrier(threads)
    errors: list[Exception] = []

    def pause(place: str) -> None:
        if place == "together":
            together.wait(10.0)

    with _database() as path:

        def ask() -> None:
            try:
                _serve(server, path, pause)
            except Exception as error:  # noqa: BLE001 - raised again, on the caller's thread
                errors.append(error)

        crowd = [threading.Thread(target=ask) for _ in range(threads)]
        for one in crowd:
            one.start()
        for one in crowd:
            one.join()
        if errors:
            raise errors[0]
        return _mails(path)


class _Died(Exception):
    """The server's process dies."""


def die_between(server: Server) -> int:
    """Let the server die at ``pause("between")``, and its client ask again; returns the mails."""
    alive = False

    def pause(place: str) -> None:
        if place == "between" and not alive:
            raise _Died

    with _database() as path:
        with contextlib.suppress(_Died):
            _serve(server, path, pause)
        alive = True
        _serve(server, path, pause)
        return _mails(path)


@contextlib.contextmanager
def _database() -> Iterator[Path]:
    with scratch("server") as folder:
        path = folder / "server.db"
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.executescript(f"PRAGMA journal_mode = WAL; {_TABLES}")
        yield path


def _serve(server: Server, path: Path, pause: Callable[[str], None]) -> None:
    # A connection that is closed takes back what it has not committed, as a dead process does.
    with contextlib.closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = OFF")
        server(db, "welcome:42", pause)


def _mails(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return int(db.execute("SELECT count(*) FROM mail").fetchone()[0])

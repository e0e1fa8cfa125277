"""The schema and its migrations: what a file of ours is made of.

``schema.sql`` is the first version; each file in ``migrations/`` leads to the next. A new file is
built by running all of them once, in memory, and then written in one piece.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from durakit import files

SCHEMA_VERSION = 4

#: Schema version → the file that leads to it from the one before.
_MIGRATIONS = {
    2: "migrations/0002_machines.sql",
    3: "migrations/0003_compensation.sql",
    4: "migrations/0004_compensating.sql",
}

_templates: dict[str, bytes] = {}
_shapes: files.Shapes = {}


def shapes() -> files.Shapes:
    """What files of ours are made of, by schema version."""
    if not _shapes:
        fresh("system")
    return _shapes


def fresh(clock_kind: str) -> bytes:
    """The bytes of an empty database: built once, so that a new file is one write."""
    if clock_kind not in _templates:
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.execute(f"PRAGMA application_id = {files.APPLICATION_ID}")
        for statement in _statements("schema.sql"):
            connection.execute(statement)
        connection.execute("INSERT INTO schema_version VALUES (1, ?)", (clock_kind,))
        connection.execute("PRAGMA user_version = 1")
        _shapes[1] = files.shape_of(connection)
        migrate(connection, lambda version: _shapes.update({version: files.shape_of(connection)}))
        _templates[clock_kind] = connection.serialize()
        connection.close()
    return _templates[clock_kind]


def _statements(name: str) -> Iterator[str]:
    """The statements of one of our SQL files, one by one."""
    text = (Path(__file__).parent / name).read_text("utf-8")
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def migrate(connection: sqlite3.Connection, done: Callable[[int], object] | None = None) -> None:
    """Bring an older file up to this schema, each step and its record in one transaction."""
    while connection.execute("PRAGMA user_version").fetchone()[0] < SCHEMA_VERSION:
        connection.execute("BEGIN IMMEDIATE")
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version >= SCHEMA_VERSION:
                connection.execute("COMMIT")
                return
            for statement in _statements(_MIGRATIONS[version + 1]):
                connection.execute(statement)
            connection.execute(
                "INSERT INTO schema_version SELECT ?, clock FROM schema_version LIMIT 1",
                (version + 1,),
            )
            connection.execute(f"PRAGMA user_version = {version + 1}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        if done is not None:
            done(version + 1)

"""The second level of persistence: values that outlive runs.

A run's checkpoints belong to one thread of work. An *item* belongs to a namespace, is shared by
all runs, has a version, may expire, and follows a rule of its own about who may read or write it.
Both levels share one file and nothing else: pruning runs leaves items alone, and the other way
round. An item is no part of a run's journal: reading one in a workflow is reading the world, so
read it inside a step.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Any

from durakit import values
from durakit.clock import Clock
from durakit.deadline import seconds
from durakit.define import name_text
from durakit.errors import InvalidField, NotAllowed, VersionConflict
from durakit.store import Database


@dataclass(frozen=True)
class Item:
    """One value as saved. Times are wall seconds; ``expires`` None means never."""

    namespace: str
    key: str
    value: Any
    version: int
    written: float
    expires: float | None


_SELECT = "SELECT version, value, written, expires FROM store_item WHERE account = ?"


class Items:
    """The namespaced key-value store of a Runtime: ``rt.store``.

    ``owner=`` names another account's namespace, where its rule admits this account.
    """

    def __init__(self, store: Database, account: str, clock: Clock) -> None:
        self._store = store
        self._account = account
        self._clock = clock

    def get(self, namespace: str, key: str, *, owner: str | None = None) -> Item | None:
        """The item, or None where there is none (or none any more). Raises NotAllowed."""
        account = self._admitted(namespace, owner, "read")
        rows = self._store.read(
            _SELECT + " AND namespace = ? AND key = ?", (account, namespace, name_text("key", key))
        )
        if not rows or not self._alive(rows[0]):
            return None
        version, value, written, expires = rows[0]
        return Item(namespace, key, json.loads(value), version, written, expires)

    def put(
        self,
        namespace: str,
        key: str,
        value: Any,
        *,
        expected: int | None = None,
        expires_in: float | None = None,
        owner: str | None = None,
    ) -> Item:
        """Write an item; returns it with its new version.

        ``expected``: compare-and-set: the version that was read, 0 for 'there is none'; another
        version raises VersionConflict. ``expires_in``: seconds from now. Raises UnsavableValue
        with the path of a bad part, NotAllowed; nothing is written then.
        """
        account = self._admitted(namespace, owner, "write")
        text = values.plain_json(value)
        return self._write(account, namespace, key, text, expected, expires_in)

    def delete(
        self, namespace: str, key: str, *, expected: int | None = None, owner: str | None = None
    ) -> None:
        """Remove an item (its version goes on counting). Raises VersionConflict, NotAllowed."""
        account = self._admitted(namespace, owner, "write")
        self._write(account, namespace, key, None, expected, None)

    def keys(self, namespace: str, *, owner: str | None = None) -> list[str]:
        """The keys of a namespace, in order. Raises NotAllowed."""
        account = self._admitted(namespace, owner, "read")
        rows = self._store.read(
            "SELECT key FROM store_item WHERE account = ? AND namespace = ? AND value IS NOT NULL "
            "AND (expires IS NULL OR expires > ?) ORDER BY key",
            (account, namespace, self._clock.now()),
        )
        return [key for (key,) in rows]

    def allow(self, namespace: str, other: str, may: str) -> None:
        """Let another account ``read`` or ``write`` (and read) one of our namespaces.

        ``may="nothing"`` takes it back. Raises InvalidField.
        """
        if may not in ("read", "write", "nothing"):
            raise InvalidField("may", f"'read', 'write' or 'nothing', got {may!r}")
        rule = (self._account, name_text("namespace", namespace), name_text("other", other))

        def work(c: sqlite3.Connection) -> None:
            c.execute(
                "DELETE FROM store_rule WHERE account = ? AND namespace = ? AND other = ?", rule
            )
            if may != "nothing":
                c.execute("INSERT INTO store_rule VALUES (?, ?, ?, ?)", (*rule, may))

        self._store.write(work)

    def prune(self) -> int:
        """Remove what has expired or was deleted; returns how many rows. Runs are untouched."""
        gone = "account = ? AND key <> '' AND (value IS NULL OR expires <= ?)"

        def work(c: sqlite3.Connection) -> int:
            now = self._clock.now()
            # A key that comes back must not count from 1: somebody may still hold a version of
            # it. The empty key, which nobody can use, remembers the highest of its namespace.
            c.execute(
                "INSERT INTO store_item SELECT account, namespace, '', max(version), NULL, ?, NULL "
                f"FROM store_item WHERE {gone} GROUP BY namespace "
                "ON CONFLICT (account, namespace, key) "
                "DO UPDATE SET version = max(version, excluded.version)",
                (now, self._account, now),
            )
            return c.execute(f"DELETE FROM store_item WHERE {gone}", (self._account, now)).rowcount

        return self._store.write(work)

    def _alive(self, row: tuple[Any, ...]) -> bool:
        _, value, _, expires = row
        return value is not None and (expires is None or expires > self._clock.now())

    def _admitted(self, namespace: str, owner: str | None, wish: str) -> str:
        name_text("namespace", namespace)
        if owner is None or owner == self._account:
            return self._account
        rows = self._store.read(
            "SELECT may FROM store_rule WHERE account = ? AND namespace = ? AND other = ?",
            (name_text("owner", owner), namespace, self._account),
        )
        if not rows or (wish == "write" and rows[0][0] != "write"):
            raise NotAllowed(
                f"account {self._account!r} may not {wish} namespace {namespace!r} of {owner!r}"
            )
        return owner

    def _write(
        self,
        account: str,
        namespace: str,
        key: str,
        text: str | None,
        expected: int | None,
        expires_in: float | None,
    ) -> Item:
        name_text("key", key)
        if expected is not None and (isinstance(expected, bool) or not isinstance(expected, int)):
            raise InvalidField("expected", f"needs a version number, got {expected!r}")
        now = self._clock.now()
        expires = None if expires_in is None else now + seconds("expires_in", expires_in)

        def work(c: sqlite3.Connection) -> int:
            row = c.execute(
                _SELECT + " AND namespace = ? AND key = ?", (account, namespace, key)
            ).fetchone()
            floor = c.execute(_SELECT + " AND namespace = ? AND key = ''", (account, namespace))
            last = (floor.fetchone() or (0,))[0] if row is None else row[0]
            visible = last if row is not None and self._alive(row) else 0
            if expected is not None and expected != visible:
                raise VersionConflict(namespace, key, expected, visible)
            c.execute(
                "INSERT INTO store_item VALUES (?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (account, namespace, key) DO UPDATE SET version = excluded.version, "
                "value = excluded.value, written = excluded.written, expires = excluded.expires",
                (account, namespace, key, last + 1, text, now, expires),
            )
            return int(last) + 1

        version = self._store.write(work)
        return Item(
            namespace, key, None if text is None else json.loads(text), version, now, expires
        )

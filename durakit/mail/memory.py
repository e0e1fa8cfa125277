"""What the service remembers of keys: one row per account, tool and key, in table ``dedup``.

             claim                    finish
  (nothing) ───────▶ 'in progress' ────────────▶ 'finished'   answered from memory until it expires
      ▲                │        │
      │        release │        │ leave_unfinished
      └────────────────┘        ▼
                          'unfinished'   the next claim goes on where this one stopped

Each function works inside the caller's transaction. A claim is one INSERT … ON CONFLICT, never a
look followed by a write, and it names its ``holder``, the number of the request that made it. A
claim may be taken over (its holder took too long and counts as dead, or the key expired); then
``finish``, ``leave_unfinished`` and ``release`` by the old holder change nothing. A holder that
claims again what it still holds gets the same answer as the first time.
"""

from __future__ import annotations

import json
import math
import sqlite3
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from durakit.mail.messages import Digests
from durakit.mail.profiles import Profile

IN_PROGRESS: Final = "in progress"

CLAIM: Final = """
    INSERT INTO dedup
        (account, tool, key, digest, content, state, holder, since, mails, expires)
    VALUES (:account, :tool, :key, :digest, :content, 'in progress', :holder, :now, '[]', :expires)
    ON CONFLICT (account, tool, key) DO UPDATE
    SET digest = excluded.digest, content = excluded.content,
        state = excluded.state, holder = excluded.holder, since = excluded.since,
        expires = excluded.expires, answer = NULL, first = NULL,
        mails = CASE WHEN dedup.state <> 'finished'
                          AND (dedup.expires > :now OR dedup.holder = :holder)
                     THEN dedup.mails ELSE '[]' END
    WHERE dedup.expires <= :now
       OR (:forgotten AND dedup.state = 'finished')
       OR (dedup.state = 'in progress' AND dedup.holder = :holder)
       OR ((NOT :compares OR dedup.digest = iif(dedup.content IS NULL, :content, :digest))
           AND (dedup.state = 'unfinished'
                OR (dedup.state = 'in progress' AND dedup.since + :takeover_after <= :now)))
    RETURNING mails
"""
OF_SCOPE: Final = "account = :account AND tool = :tool AND key = :key"
MINE: Final = f"{OF_SCOPE} AND holder = :holder AND state = 'in progress'"


class Scope(NamedTuple):
    """What makes a key one operation's: whose, of which tool, and the key itself."""

    account: str
    tool: str
    key: str


@dataclass(frozen=True)
class Known:
    """A remembered key. ``mails``: numbers. ``answer`` and ``first`` (UTC s): once finished.

    ``content``: the digest without senders; None where ``digest`` itself is without.
    """

    digest: str
    content: str | None
    state: str
    mails: tuple[int, ...]
    answer: dict[str, Any] | None
    first: float | None

    def is_of(self, digests: Digests) -> bool:
        """Whether the request with these digests is the one that it stands for."""
        return self.digest == digests[1 if self.content is None else 0]


def claim(
    db: sqlite3.Connection, scope: Scope, profile: Profile, digests: Digests, holder: int,
    now: float, *, forgotten: bool = False,
) -> tuple[int, ...] | Known:  # fmt: skip
    """Claim a key for request ``holder``: the mails that are out already, or what stands there.

    ``forgotten``: as if the window of a finished key were over.
    """
    # A profile that knows no "in progress" fences a slow holder off at once rather than wait.
    patience = -math.inf if profile.takeover_after is None else profile.takeover_after
    taken = db.execute(
        CLAIM,
        {
            **scope._asdict(),
            "digest": digests[0],
            "content": digests[1],
            "holder": holder,
            "now": now,
            "expires": now + profile.window,
            "forgotten": forgotten,
            "compares": profile.compares_bodies,
            "takeover_after": patience,
        },
    ).fetchone()
    if taken is not None:
        return tuple(json.loads(taken["mails"]))
    known = _read(db, scope)
    assert known is not None  # it was in the way of our claim
    return known


def standing(db: sqlite3.Connection, scope: Scope, now: float) -> Known | None:
    """Look at what is remembered of a key, without claiming it."""
    return _read(db, scope, "AND (expires > :now OR state = 'in progress')", now)


def finish(
    db: sqlite3.Connection, scope: Scope, holder: int, answer: dict[str, Any],
    mails: tuple[int, ...], now: float, window: float,
) -> None:  # fmt: skip
    """Remember the answer from now on, for ``window`` seconds."""
    db.execute(
        "UPDATE dedup SET state = 'finished', answer = :answer, mails = :mails, first = :now, "
        f"expires = :expires WHERE {MINE}",
        {
            **scope._asdict(),
            "holder": holder,
            "answer": json.dumps(answer),
            "mails": json.dumps(mails),
            "now": now,
            "expires": now + window,
        },
    )


def leave_unfinished(
    db: sqlite3.Connection, scope: Scope, holder: int, mails: tuple[int, ...]
) -> None:
    """Remember what is out already; the next request with the key does the rest."""
    db.execute(
        f"UPDATE dedup SET state = 'unfinished', mails = :mails WHERE {MINE}",
        {**scope._asdict(), "holder": holder, "mails": json.dumps(mails)},
    )


def release(db: sqlite3.Connection, scope: Scope, holder: int) -> None:
    """Forget the claim: the key is as if it had never been used."""
    db.execute(f"DELETE FROM dedup WHERE {MINE}", {**scope._asdict(), "holder": holder})


def forget_expired(db: sqlite3.Connection, now: float) -> int:
    """Drop finished keys past their window, and return how many. What is unresolved stays."""
    return db.execute(
        "DELETE FROM dedup WHERE state = 'finished' AND expires <= ?", (now,)
    ).rowcount


def _read(
    db: sqlite3.Connection, scope: Scope, condition: str = "", now: float = 0.0
) -> Known | None:
    row = db.execute(
        f"SELECT * FROM dedup WHERE {OF_SCOPE} {condition}", {**scope._asdict(), "now": now}
    ).fetchone()
    if row is None:
        return None
    answer = None if row["answer"] is None else json.loads(row["answer"])
    return Known(
        row["digest"], row["content"], row["state"], tuple(json.loads(row["mails"])),
        answer, row["first"],
    )  # fmt: skip

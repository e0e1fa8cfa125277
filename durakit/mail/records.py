"""What the ledger tells: to an account that asks, and to the referee, who sees everything.

Each function reads inside the caller's transaction. ``account``: whose rows; None is everybody's.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from durakit.mail.memory import Scope
from durakit.mail.messages import Answer, accepted, refused
from durakit.mail.profiles import Profile, Refusal

NOT_FOUND: Final = Refusal(404, "not_found")

MAILS: Final = """
    SELECT number, sender, recipient, subject, body, time FROM mail
    WHERE (?1 IS NULL OR recipient = ?1) AND (?2 IS NULL OR account = ?2) ORDER BY number
"""
EFFECTS: Final = """
    SELECT tool, key, digest, time FROM mail WHERE ?1 IS NULL OR account = ?1 ORDER BY number
"""
REMEMBERED_KEYS: Final = """
    SELECT key, digest, json_extract(mails, '$[0]') AS mail, account, tool, state,
           coalesce(first, since) AS first, expires, json_extract(answer, '$.status') AS status
    FROM dedup WHERE ?1 IS NULL OR account = ?1 ORDER BY coalesce(first, since), holder
"""
KEYS_OF_MAILS: Final = """
    SELECT key, digest, number AS mail, time AS first, NULL AS expires, 'finished' AS state,
           200 AS status, account, tool
    FROM mail WHERE key IS NOT NULL AND (?1 IS NULL OR account = ?1) ORDER BY number
"""
REQUESTS: Final = "SELECT * FROM request WHERE ?1 IS NULL OR account = ?1 ORDER BY number"


def one_mail(db: sqlite3.Connection, profile: Profile, account: str, id: str) -> Answer:
    """Answer with a mail of this account; another's does not exist for it."""
    row = db.execute(
        "SELECT * FROM mail WHERE 'email-' || number = ? AND account = ?", (id, account)
    ).fetchone()
    if row is None:
        return refused(profile, NOT_FOUND, "there is no such mail")
    return Answer(status=200, body=shown(row), ids=(id,))


def mails_of(db: sqlite3.Connection, profile: Profile, scope: Scope, now: float) -> Answer:
    """Answer with the visible mails of a key."""
    rows = db.execute(
        "SELECT number FROM mail WHERE account = ? AND tool = ? AND key = ? "
        "AND time + ? <= ? ORDER BY number",
        (*scope, profile.visible_after, now),
    ).fetchall()
    if not rows:
        return refused(profile, NOT_FOUND, "no mail with this key is to be seen")
    return accepted(mail_ids(tuple(row["number"] for row in rows)), batch=True)


def shown(row: sqlite3.Row) -> dict[str, Any]:
    """Return a mail as customers see it."""
    return {
        "id": mail_id(row["number"]),
        "from": row["sender"],
        "to": row["recipient"],
        "subject": row["subject"],
        "body": row["body"],
        "time": row["time"],
    }


def mails(db: sqlite3.Connection, to: str | None, account: str | None) -> list[dict[str, Any]]:
    """Every mail, or those to one customer."""
    return [shown(row) for row in db.execute(MAILS, (to, account))]


def effects(db: sqlite3.Connection, account: str | None) -> list[dict[str, Any]]:
    """Every mail as an effect."""
    return [dict(row) for row in db.execute(EFFECTS, (account,))]


def keys(
    db: sqlite3.Connection, profile: Profile, account: str | None, now: float
) -> list[dict[str, Any]]:
    """What a service of this profile knows of keys."""
    if not (profile.dedups or profile.askable):
        return []
    query = REMEMBERED_KEYS if profile.dedups else KEYS_OF_MAILS
    return [
        {
            "key": row["key"],
            "digest": row["digest"],
            "id": mail_id(row["mail"]),
            "first": row["first"],
            "expires": row["expires"],
            "expired": row["expires"] is not None and row["expires"] <= now,
            "state": row["state"],
            "status": row["status"],
            "account": row["account"],
            "tool": row["tool"],
        }
        for row in db.execute(query, (account,))
    ]


def requests(db: sqlite3.Connection, account: str | None) -> list[dict[str, Any]]:
    """Every request that was received."""
    return [
        {
            "number": row["number"],
            "key": row["key"],
            "fault": row["fault"],
            "outcome": row["outcome"],
            "id": mail_id(row["mail"]),
            "time": row["time"],
        }
        for row in db.execute(REQUESTS, (account,))
    ]


def mail_id(number: int | None) -> str | None:
    """Return the name that customers know a mail by."""
    return None if number is None else f"email-{number}"


def mail_ids(numbers: tuple[int, ...]) -> tuple[str, ...]:
    """Return the names of some mails."""
    return tuple(f"email-{number}" for number in numbers)

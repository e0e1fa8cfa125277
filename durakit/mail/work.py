"""The service's work, inside one transaction: pass the key's layer, deliver, remember.

``number`` is the request's own number in the ledger, and the holder of the claims it makes.
``now``: UTC seconds. ``kind``: the planned fault's, or None.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import astuple, dataclass, replace
from typing import Final

from durakit.mail import memory
from durakit.mail.faults import ERRORS
from durakit.mail.intake import Order
from durakit.mail.messages import Answer, Letter, Request, accepted, refused
from durakit.mail.profiles import Profile, Refusal
from durakit.mail.records import mail_ids

STALE_FENCE: Final = Refusal(412, "stale_fence")
WENT_WRONG: Final = "something went wrong here"
NEXT_MAIL: Final = "SELECT coalesce(max(number), 0) + 1 FROM mail"


@dataclass(frozen=True)
class Done:
    """What became of a request: its answer, the mails it stands for, its outcome in the log."""

    answer: Answer
    mails: tuple[int, ...] = ()
    outcome: str = ""


def enter(
    db: sqlite3.Connection, profile: Profile, number: int, order: Order, now: float,
    kind: str | None = None,
) -> tuple[int, ...] | Done:  # fmt: skip
    """Pass the fence and the key's layer: the mails that are out already, or the answer."""
    stale = _check_fence(db, profile, order)
    if stale is not None:
        if order.scope is not None:
            memory.release(db, order.scope, number)
        return refuse(stale)
    if order.scope is None:
        return ()
    found = memory.claim(
        db, order.scope, profile, order.digests, number, now, forgotten=kind == "key_forgotten"
    )
    if not isinstance(found, memory.Known):
        return found
    done = from_memory(profile, order, found)
    assert done is not None  # else it could have been claimed
    if kind in ERRORS and not done.answer.refuses:
        return replace(done, answer=refused(profile, profile.failed, WENT_WRONG))
    return done


def perform(
    db: sqlite3.Connection, profile: Profile, number: int, order: Order, now: float,
    kind: str | None = None,
) -> Done:  # fmt: skip
    """Deliver, replay or refuse, and log it."""
    entered = enter(db, profile, number, order, now, kind)
    done = entered
    if not isinstance(done, Done):
        done = _act(db, profile, number, order, done, now, kind)
    log(db, number, done.outcome, done.mails)
    return done


def perform_due(db: sqlite3.Connection, profile: Profile, now: float) -> None:
    """Perform the held requests that are due, in order of due time and as of that time."""
    due = db.execute("SELECT * FROM held WHERE due <= ? ORDER BY due, request", (now,))
    for row in due.fetchall():
        db.execute("DELETE FROM held WHERE request = ?", (row["request"],))
        letters = tuple(Letter(*letter) for letter in json.loads(row["letters"]))
        request = Request(letters, fence=row["fence"], batch=bool(row["batch"]))
        account, tool, key = row["account"], row["tool"], row["key"]
        scope = memory.Scope(account, tool, key) if profile.dedups and key is not None else None
        order = Order(request, account, tool, key, scope, request.digests())
        perform(db, profile, row["request"], order, row["due"])


def hold(db: sqlite3.Connection, number: int, order: Order, due: float) -> None:
    """Store a request until it is due."""
    letters = [astuple(letter) for letter in order.request.letters]
    db.execute(
        "INSERT INTO held (request, due, account, tool, key, fence, batch, letters) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            number, due, order.account, order.tool, order.key, order.request.fence,
            order.request.batch, json.dumps(letters),
        ),
    )  # fmt: skip


def log(db: sqlite3.Connection, number: int, outcome: str, mails: tuple[int, ...] = ()) -> None:
    """Note what has become of a request, and the first of its mails."""
    db.execute(
        "UPDATE request SET outcome = ?, mail = ? WHERE number = ?",
        (outcome, mails[0] if mails else None, number),
    )


def refuse(answer: Answer) -> Done:
    """What becomes of a request with this refusal: nothing."""
    return Done(answer, outcome=_outcome(answer))


def from_memory(profile: Profile, order: Order, known: memory.Known) -> Done | None:
    """What a remembered key answers to this request; None: nothing, it may go on."""
    if profile.compares_bodies and not known.is_of(order.digests):
        what = "from" if known.content == order.digests[1] else "to, subject or body"
        message = f"key {order.key!r} was used before with another {what}"
        return refuse(refused(profile, profile.other_body, message))
    if known.state == memory.IN_PROGRESS and profile.in_progress is not None:
        message = f"a request with key {order.key!r} is still running"
        return refuse(refused(profile, profile.in_progress, message))
    if known.answer is None:
        return None
    answer = Answer(**known.answer, ids=mail_ids(known.mails), replayed=True, first=known.first)
    if answer.refuses:
        answer = replace(answer, ids=())
    if profile.replay_marker is not None:
        answer = replace(answer, headers={**answer.headers, profile.replay_marker: "true"})
    return Done(answer, known.mails, "replayed")


def next_number(db: sqlite3.Connection, query: str) -> int:
    """Return the next free number: in a write transaction nobody else takes it."""
    return int(db.execute(query).fetchone()[0])


def _act(
    db: sqlite3.Connection, profile: Profile, number: int, order: Order,
    before: tuple[int, ...], now: float, kind: str | None,
) -> Done:  # fmt: skip
    """Deliver what is not out yet, and remember what the key now stands for."""
    rest = order.request.letters[len(before) :]
    if kind == "error_before":
        rest = ()
    elif kind == "error_midway":
        keeps_parts = order.scope is not None and profile.remembers == "work"
        rest = rest[: len(rest) // 2] if keeps_parts else ()
    mails = (*before, *(_deliver(db, order, letter, now) for letter in rest))
    if kind in ERRORS:
        answer = refused(profile, profile.failed, WENT_WRONG)
    else:
        answer = accepted(mail_ids(mails), batch=order.request.batch)
    _remember(db, profile, number, order, answer, mails, now)
    outcome = "delivered" if rest else _outcome(answer) if answer.refuses else "completed"
    return Done(answer, mails, outcome)


def _remember(
    db: sqlite3.Connection, profile: Profile, number: int, order: Order, answer: Answer,
    mails: tuple[int, ...], now: float,
) -> None:  # fmt: skip
    """Let the key stand for what the profile says it stands for."""
    if order.scope is None:
        return
    if profile.remembers == "effect" and mails:  # whatever the caller is told
        answer = accepted(mail_ids(mails), batch=order.request.batch)
    if answer.refuses and profile.remembers == "work":
        memory.leave_unfinished(db, order.scope, number, mails)
    elif answer.refuses and profile.remembers != "answers":
        memory.release(db, order.scope, number)
    else:
        kept = {
            name: getattr(answer, name)
            for name in ("status", "body", "headers", "name", "type", "message")
        }
        memory.finish(db, order.scope, number, kept, mails, now, profile.window)


def _deliver(db: sqlite3.Connection, order: Order, letter: Letter, now: float) -> int:
    number = next_number(db, NEXT_MAIL)
    db.execute(
        "INSERT INTO mail "
        "(number, tool, recipient, subject, body, key, digest, time, account, sender) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            number, order.tool, letter.to, letter.subject, letter.body, order.key,
            letter.digest(), now, order.account, letter.sender,
        ),
    )  # fmt: skip
    return number


def _check_fence(db: sqlite3.Connection, profile: Profile, order: Order) -> Answer | None:
    fence = order.request.fence
    if not profile.checks_fence or order.key is None or fence is None:
        return None
    raised = db.execute(
        "INSERT INTO fence (account, tool, key, highest) VALUES (?, ?, ?, ?) "
        "ON CONFLICT DO UPDATE SET highest = excluded.highest WHERE excluded.highest >= highest",
        (order.account, order.tool, order.key, fence),
    )
    if raised.rowcount == 1:
        return None
    message = f"fence {fence} of key {order.key!r} has been overtaken"
    return refused(profile, STALE_FENCE, message)


def _outcome(answer: Answer) -> str:
    return f"{'failed' if answer.status >= 500 else 'refused'} {answer.status}"

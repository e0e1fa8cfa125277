"""Mail services under their keys: what they promise, and what they really do.

Promises are read from the profiles' own data; what is *tried* is counted in each service's ledger.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from durakit.clock import ManualClock
from durakit.define import Call, Found
from durakit.lab.html import Row, Table
from durakit.lab.laboratory import scratch
from durakit.mail import PROFILES, Fault, Mailbox, MailError, Profile
from durakit.protocol import Probed

__all__ = ["ADA", "HOUR", "asked", "in_hours", "promises", "tried", "two_at_once"]

HOUR: Final = 3600.0
ADA: Final = "ada@example.org"


_KEEPS: Final = {
    "effect": "what it did",
    "answers": "every answer, a 500 too",
    "successes": "successes only",
    "work": "how far it came",
}


def promises(*names: str) -> Table:
    """Return what some profiles promise about keys, read from the profiles' own data."""
    return Table("PROMISED", [_promise(PROFILES[name]) for name in names])


def _promise(profile: Profile) -> Row:
    if not profile.dedups:
        asked_too = "can be asked" if profile.askable else "-"
        return {
            "service": profile.name, "key in": "nothing: it knows no key", "kept for": "-",
            "remembers": asked_too, "other body": "-", "still running": "-",
        }  # fmt: skip
    other = f"{profile.other_body.status} {profile.other_body.name}"
    running = profile.in_progress
    return {
        "service": profile.name,
        "key in": profile.carrier,
        "kept for": in_hours(profile.window),
        "remembers": _KEEPS[profile.remembers],
        "other body": other if profile.compares_bodies else "not compared",
        "still running": "it waits" if running is None else f"{running.status} {running.name}",
    }


def in_hours(seconds: float) -> str:
    """Seconds as they are said: in hours, and from 100 hours on in days."""
    hours = seconds / HOUR
    return f"{hours:g} h" if hours < 100 else f"{hours / 24:g} days"


#: What is tried with each service: in words → (faults, body of the second request, hours between).
_TRIALS: Final[dict[str, tuple[tuple[Fault, ...], str, float]]] = {
    "the same again": ((), "Hello Ada", 0),
    "other body": ((), "Dear Ada", 0),
    "25 h later": ((), "Hello Ada", 25),
    "500, but sent": ((Fault("error_after"),), "Hello Ada", 0),
}


def tried(*names: str) -> Table:
    """Send to each service twice under one key; what the second was told, and the mails in all.

    The key has no colon, since not every service takes one.
    """
    rows: list[Row] = []
    for name in names:
        row: dict[str, object] = {"service": name}
        for words, (plan, body, hours) in _TRIALS.items():
            with scratch("services") as folder:
                mailbox = Mailbox(folder, profile=name, clock=ManualClock(), plan=plan)
                _answer(mailbox, "welcome-42", "Hello Ada")
                mailbox.clock.sleep(hours * HOUR)
                told = _answer(mailbox, "welcome-42", body)
                row[words] = f"{len(mailbox.effects())} · {told}"
                mailbox.close()
        rows.append(row)
    return Table("TRIED: mails in the ledger · what the second request is told", rows)


def two_at_once(mailbox: Mailbox, key: str) -> Table:
    """Send one letter from two threads: the second comes while the first is still running.

    A moment later the second asks once more.
    """
    running, told = threading.Event(), threading.Event()
    stops_at = "received" if mailbox.profile.in_progress is None else "claimed"

    def hook(point: str, _key: str | None) -> None:
        if point == stops_at and not running.is_set():
            running.set()
            told.wait(5.0)

    answers: dict[str, str] = {}

    def send(name: str) -> None:
        answers[name] = _answer(mailbox, key, "Hello Ada")

    mailbox.listen(hook)
    first = threading.Thread(target=send, args=("the first",))
    first.start()
    try:
        running.wait(5.0)
        send("the second, meanwhile")
    finally:
        told.set()
        first.join()
        mailbox.listen(None)
    send("the second, once more")
    names = ("the second, meanwhile", "the first", "the second, once more")
    rows: list[Row] = [{"request": name, "is told": answers[name]} for name in names]
    return Table(f"TWO AT ONCE at {mailbox.profile.name!r}, in order of the answers", rows)


def _answer(mailbox: Mailbox, key: str | None, body: str) -> str:
    try:
        return str(mailbox.send(ADA, "Welcome", body, key=key, timeout=3)["id"])
    except MailError as refusal:
        return f"{refusal.status} {refusal.name}"


def asked(mailbox: Mailbox) -> Callable[[Call], Any]:
    """Return a probe that asks this mail service about a key."""

    def ask(call: Call) -> Found | Probed:
        known = mailbox.find(call.key)
        return Probed.ABSENT if known is None else Found(known)

    return ask

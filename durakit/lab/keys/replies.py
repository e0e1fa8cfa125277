"""Lost replies, one card each: what may be done about them, and what really comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from durakit.clock import ManualClock
from durakit.define import Call, Tool, tool, workflow
from durakit.driver import Context
from durakit.faults import CrashAt
from durakit.lab.html import Row, Table
from durakit.lab.keys.services import ADA, HOUR, asked, in_hours
from durakit.lab.laboratory import scratch
from durakit.mail import PROFILES, Mailbox
from durakit.runtime import Runtime

__all__ = ["CARDS", "MOVES", "Card", "Played", "cards", "play_card"]

Move = Literal["resend", "query", "hand over"]

#: What can be done about a lost reply → in words.
MOVES: Final = {
    "resend": "send again under the same key",
    "query": "ask the service about the key",
    "hand over": "leave it unknown, and call a person",
}


@dataclass(frozen=True)
class Card:
    """A reply that was lost at some service, and found to be missing after so many hours."""

    name: str
    profile: str
    hours: float
    move: Move
    why: str


#: Found out: the mail is out in all of them, but nobody here knows.
CARDS: Final = (
    Card("resend, 2 h", "resend", 2, "resend", "it keeps keys for 24 h"),
    Card("resend, 30 h", "resend", 30, "hand over", "its key is forgotten, and it has no look-up"),
    Card("nylas, 2 h", "nylas", 2, "hand over", "it keeps keys for 1 h"),
    Card("stripe_v2, 10 days", "stripe_v2", 240, "resend", "it keeps keys for 30 days"),
    Card("queryable, 2 h", "queryable", 2, "query", "it knows no duplicates, but can be asked"),
    Card("idempotent, 30 h", "idempotent", 30, "query", "its key is forgotten; it can be asked"),
    Card("postmark, 2 h", "postmark", 2, "hand over", "it has no keys and no look-up by key"),
    Card("smtp, 2 h", "smtp", 2, "hand over", "it has no keys and no look-up by key"),
)


def cards() -> Table:
    """Return the cards: the service's promises, and how long ago the reply was lost."""
    rows: list[Row] = []
    for card in CARDS:
        profile = PROFILES[card.profile]
        rows.append(
            {
                "card": card.name,
                "keeps keys for": in_hours(profile.window) if profile.dedups else "(knows no keys)",
                "can be asked": "yes" if profile.askable else "no",
                "reply lost": in_hours(card.hours * HOUR) + " ago",
            }
        )
    return Table("A REPLY WAS LOST: what now?", rows)


@dataclass(frozen=True)
class Played:
    """What came of a move: the mails in the ledger, and the run's status."""

    card: Card
    move: str
    mails: int
    status: str

    @property
    def verdict(self) -> str:
        """In a few words."""
        if self.mails > 1:
            return "✗ duplicate"
        if self.status == "needs_decision":
            needed = self.card.move == "hand over"
            if needed and self.move == "hand over":
                return "✓ one mail, a person decides"
            return "✗ asked in vain" if self.move == "query" else "✗ a person for nothing"
        return "✓ one mail"


def play_card(card: Card, move: str) -> Played:
    """Lose the reply at the card's service, let its hours pass, make the move, and count."""
    with scratch("replies") as folder:
        clock = ManualClock()
        mailbox = Mailbox(folder / "world", profile=card.profile, clock=clock)
        with Runtime(folder / "runs.db", clock=clock, world=mailbox, owner="cards",
                     durability="process") as runtime:  # fmt: skip
            send = _sender(mailbox, move)

            def lost_reply(ctx: Context) -> object:
                return ctx.call(send, key="welcome-42")

            run = runtime.run(
                workflow(lost_reply, name="lab: lost reply"), id="card",
                crash=CrashAt("send_email", "effect_done"),
            )  # fmt: skip
            clock.advance(card.hours * HOUR)
            runtime.recover()
            played = Played(card, move, len(mailbox.effects()), run.status)
        mailbox.close()
        return played


def _sender(mailbox: Mailbox, move: str) -> Tool:
    """A tool that does what the move says, whatever the service has promised."""

    def send_email(call: Call) -> dict[str, Any]:
        return mailbox.send(ADA, "Welcome", "Hello Ada", key=call.key, timeout=3)

    declared: Tool
    if move == "resend":
        declared = tool(send_email, effect="idempotent")
    elif move == "query":
        declared = tool(send_email, effect="queryable", settles_after=60.0, probe=asked(mailbox))
    else:
        declared = tool(send_email, effect="opaque")
    return declared

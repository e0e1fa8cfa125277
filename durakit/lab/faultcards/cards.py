"""Fault cards: eight failures as a caller meets them, each raised by a real thing.

A card of ``data/fault_cards.json`` says what happened, what the caller saw of it, and what is
really in the service's ledger. A ``Stage`` is the card come true: a mail service on virtual time,
and in front of it whatever the card names: a socket at which nobody listens, an HTTP server on
loopback that refuses, a fault in the service, a missing row in a SQLite table. Nothing is mocked:
``act(card)`` raises what a tool would really meet.

What is done about a card is played in other rooms, by one decision (``faultplay``) or by a whole
policy (``faultpolicies``). Both count in the mailbox, after an hour in which late requests have
acted.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import sqlite3
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Final, Literal, cast

import httpx
import requests  # JupyterLab brings it along; here for the truth value of its responses
from pydantic import BaseModel, ConfigDict, TypeAdapter

from durakit.clock import ManualClock
from durakit.errors import Infeasible, InvalidField
from durakit.failures import FailureKind, classify
from durakit.lab.agent import Transcript
from durakit.lab.html import Row, Table
from durakit.lab.laboratory import scratch
from durakit.lab.lessons import find_data
from durakit.mail import Fault, Mailbox
from durakit.retry import Retry

__all__ = [
    "HOUR",
    "KEY",
    "PATIENCE",
    "Card",
    "EffectName",
    "Move",
    "Stage",
    "act",
    "card",
    "cards",
    "guard",
    "judgements",
    "stage",
]


CARDS: Final = Path("data") / "fault_cards.json"

ADA: Final = "ada@example.org"

KEY: Final = "welcome:42"

#: Virtual seconds: how long a caller waits for a reply; and after how long all has come to rest.
LIMIT: Final = 3.0

HOUR: Final = 3600.0

#: Everybody who retries is as patient as this, so that only the judgement differs.
PATIENCE: Final = Retry(initial=1.0, cap=8.0, attempts=5)

Move = Literal["retry", "repair", "ask", "hand over", "check"]

EffectName = Literal["none", "idempotent", "queryable", "opaque"]


# -- the cards -------------------------------------------------------------------------------------


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Cause(_Part):
    """How a card is raised for real.

    ``lasts``: seconds from the first request on; 0 is the first request alone; None is for ever,
    or until the request is repaired. The other fields belong to some things only.
    """

    thing: Literal["mailbox", "socket", "httpx", "requests", "sqlite3", "model"]
    fault: str | None = None
    to: str | None = None
    status: int | None = None
    retry_after: float | None = None
    seconds: float = 5.0
    lasts: float | None = None


class Card(_Part):
    """One failure: what happened, what the caller saw, what the ledger says.

    ``ledger``: mails that are really out after the first request; ``later``: none yet, but one is
    on its way. ``kind``: of the failure where the tool has an effect; None where the card is no
    failure at all. ``next``: what to do, for each effect contract. ``extra``: beside the eight.
    """

    id: str
    title: str
    story: str
    wire: str
    ledger: Literal["0", "1", "later"]
    kind: FailureKind | None
    next: dict[EffectName, Move]
    because: str
    cause: Cause
    extra: bool = False


def cards(*, extra: bool = False) -> tuple[Card, ...]:
    """Return the eight fault cards; with ``extra`` those beside them too.

    Raises FileNotFoundError, saying where to go, where there is no such file.
    """
    read = TypeAdapter(tuple[Card, ...]).validate_json(find_data(CARDS).read_bytes())
    return tuple(one for one in read if extra or not one.extra)


def card(id: str) -> Card:
    """Return the card of that id. Raises InvalidField, naming those there are."""
    known = {one.id: one for one in cards(extra=True)}
    if id not in known:
        raise InvalidField("card", f"no card {id!r}; there are: {', '.join(known)}")
    return known[id]


# -- a card come true ------------------------------------------------------------------------------


class Stage:
    """One card's world. ``send`` is one request; ``repair`` puts right what was wrong with it."""

    def __init__(self, shown: Card, mailbox: Mailbox) -> None:
        self.card = shown
        self.mailbox = mailbox
        self.clock = cast("ManualClock", mailbox.clock)
        self.tries = 0
        self._repaired = False
        self._began = self.clock.now()

    def send(self, key: str | None = None) -> str:
        """Send the letter once; the mail's id, or the real error of whatever stands in the way."""
        self.tries += 1
        cause, self.mailbox.plan = self.card.cause, []
        to = ADA
        if self._in_trouble():
            if cause.thing == "mailbox":
                to = cause.to or ADA
                self.mailbox.plan = self._fault()
            else:
                _IN_THE_WAY[cause.thing](cause)
        return str(self.mailbox.send(to, "Welcome", "Hello Ada", key=key, timeout=LIMIT)["id"])

    def repair(self) -> None:
        """Put right what the program itself can put right in the request: address and token."""
        self._repaired = self.card.kind is FailureKind.PERMANENT

    def mails(self) -> int:
        """The ledger's word: how many mails are out."""
        return len(self.mailbox.effects())

    def _in_trouble(self) -> bool:
        lasts = self.card.cause.lasts
        if lasts is None:
            return not self._repaired
        return self.tries == 1 if lasts == 0 else self.clock.now() < self._began + lasts

    def _fault(self) -> list[Fault]:
        cause = self.card.cause
        if cause.fault is None:
            return []
        opens = None
        if cause.retry_after is not None:
            opens = round(self._began + cause.retry_after - self.clock.now(), 6)
        number = len(self.mailbox.requests()) + 1
        return [Fault(cause.fault, request=number, seconds=cause.seconds, retry_after=opens)]


@contextlib.contextmanager
def stage(shown: Card, profile: str = "opaque") -> Iterator[Stage]:
    """Set up a card's world in a folder of its own, for a while; the service keeps ``profile``."""
    with scratch("card") as folder:
        mailbox = Mailbox(folder, profile=profile, clock=ManualClock())
        try:
            yield Stage(shown, mailbox)
        finally:
            mailbox.close()


def act(shown: Card | str) -> str:
    """Send one request into the card, and raise what a caller really gets.

    A model's "I cannot" raises nothing: the sentence is returned.
    """
    shown = card(shown) if isinstance(shown, str) else shown
    if shown.cause.thing == "model":
        return Transcript.load("cannot_wrong").turns[-1].says
    with stage(shown) as world:
        return world.send()


def _nobody_listens(_: Cause) -> None:
    with socket.socket() as nobody:
        # Bound and never listening, so that nobody else can take the port meanwhile.
        nobody.bind(("127.0.0.1", 0))
        socket.create_connection(nobody.getsockname(), timeout=5).close()


def _httpx_refuses(cause: Cause) -> None:
    # An empty set of authorities: there is nothing to verify on plain loopback, and to load the
    # usual ones takes longer than the request.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with (
        guard(cause.status or 500, cause.retry_after) as url,
        httpx.Client(trust_env=False, verify=context) as client,
    ):
        client.post(url, timeout=5).raise_for_status()


def _requests_refuses(cause: Cause) -> None:
    with guard(cause.status or 500, cause.retry_after) as url, requests.Session() as session:
        session.trust_env = False
        session.post(url, timeout=5).raise_for_status()


def _no_verified_sender(_: Cause) -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as records:
        records.execute("CREATE TABLE sender (address TEXT, verified INTEGER)")
        records.execute("INSERT INTO sender VALUES ('shop@example.org', 0)")
        if records.execute("SELECT address FROM sender WHERE verified").fetchone() is None:
            raise Infeasible("a verified sender address")


_IN_THE_WAY: Final[dict[str, Callable[[Cause], None]]] = {
    "socket": _nobody_listens,
    "httpx": _httpx_refuses,
    "requests": _requests_refuses,
    "sqlite3": _no_verified_sender,
}


@contextlib.contextmanager
def guard(status: int, retry_after: float | None = None) -> Iterator[str]:
    """Run a real HTTP server on loopback that refuses one request; its address."""

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(status)
            if retry_after is not None:
                self.send_header("Retry-After", f"{retry_after:g}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Keep the lesson's output clean."""

    # Not http.server's own class: it asks for this machine's full name, which may take seconds.
    with socketserver.TCPServer(("127.0.0.1", 0), Refusing) as server:
        server.timeout = 5
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        thread.join()


# -- what each card raises -------------------------------------------------------------------------


def judgements(shown: Sequence[Card] | None = None) -> Table:
    """Return what each card raises, and how that error is judged without an effect and with one."""
    rows: list[Row] = []
    for one in cards() if shown is None else shown:
        try:
            act(one)
        except Exception as error:  # noqa: BLE001 - any failure is what the cards are about
            now = ManualClock.START
            kinds = {said: classify(error, effect=effect, now=now).kind.value
                     for said, effect in (("a reading tool", False), ("a mail", True))}  # fmt: skip
            kind = type(error)
            rows.append({"card": one.id, "raises": f"{kind.__module__.partition('.')[0]}."
                         f"{kind.__qualname__}", **kinds})  # fmt: skip
    return Table("THE SAME ERRORS, judged for two kinds of tool", rows)

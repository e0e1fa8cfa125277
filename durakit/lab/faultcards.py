"""Fault cards: eight failures as a caller meets them, raised by real things, judged by the ledger.

How it works. A card of ``data/fault_cards.json`` says what happened, what the caller saw of it,
and what is really in the service's ledger. A ``Stage`` is the card come true: a mail service on
virtual time, and in front of it whatever the card names: a socket at which nobody listens, an
HTTP server on loopback that refuses, a fault in the service, a missing row in a SQLite table.
Nothing is mocked: ``act(card)`` raises what a tool would really meet. Three questions are asked:

    act(card)             what does the caller get?
    play(card, move)      what is in the ledger after this one decision?
    judge(card, policy)   what is in the ledger after a whole run under this policy?

The answer is always counted in the mailbox, after an hour in which late requests have acted.
"""

from __future__ import annotations

import contextlib
import random
import socket
import socketserver
import sqlite3
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import httpx
import ipywidgets as widgets
import requests  # JupyterLab brings it along; here for the truth value of its responses
import traitlets
from pydantic import BaseModel, ConfigDict, TypeAdapter

from durakit.clock import ManualClock
from durakit.define import Call, Found, tool, workflow
from durakit.errors import Infeasible, InvalidField
from durakit.failures import FailureKind, classify
from durakit.lab.agent import Transcript
from durakit.lab.html import Row, Shown, SideBySide, Table, h
from durakit.lab.lessons import find_data
from durakit.lab.plots import BLUE, INK, RED, TROUBLE, Plot
from durakit.lab.view import LINE, ModelView, button, control_names, in_a_row
from durakit.mail import Fault, Mailbox
from durakit.protocol import Probed
from durakit.retry import Retry
from durakit.runtime import Runtime

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "MOVES",
    "POLICIES",
    "Card",
    "Cell",
    "DeckModel",
    "FaultCards",
    "Matrix",
    "Played",
    "Policy",
    "act",
    "card",
    "cards",
    "guard",
    "judge",
    "judge_all",
    "judgements",
    "play",
    "plot_fault_matrix",
    "retries_by_type",
]

CARDS: Final = Path("data") / "fault_cards.json"

ADA: Final = "ada@example.org"
KEY: Final = "welcome:42"

#: Virtual seconds: how long a caller waits for a reply; and after how long all has come to rest.
LIMIT: Final = 3.0
HOUR: Final = 3600.0

#: Virtual seconds after which a service that can be asked promises: what is absent never comes.
SETTLES: Final = 10.0

#: Everybody who retries is as patient as this, so that only the judgement differs.
PATIENCE: Final = Retry(initial=1.0, cap=8.0, attempts=5)

#: What can be done after a failure → in words.
MOVES: Final = {
    "retry": "retry as it is",
    "repair": "repair first",
    "ask": "ask, or resend under its key",
    "hand over": "hand over",
}

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
    with tempfile.TemporaryDirectory(prefix="durakit-card-", ignore_cleanup_errors=True) as folder:
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


# -- one decision ----------------------------------------------------------------------------------


_LUCK: Final = "△ one mail, by luck"


@dataclass(frozen=True)
class Played:
    """A card, the decision about it, and what came of it."""

    card: Card
    move: str
    steps: tuple[str, ...]
    """what was done, in words, with virtual seconds since the first request"""
    mails: int
    """in the ledger, an hour later"""
    tries: int
    told: bool
    """whether the program ended with a mail's id in its hand"""

    @property
    def verdict(self) -> str:
        """A mark and a few words."""
        fits = self.card.next["idempotent"] == self.move
        if self.mails > 1:
            return "✗ duplicate"
        if self.told:
            if fits:
                return "✓ one mail"
            return "△ one mail; there was nothing to ask" if self.move == "ask" else _LUCK
        if self.move == "hand over":
            return "✓ handed over" if fits else "△ a person was not needed"
        return f"✗ in vain, {self.tries} attempts"


def play(shown: Card | str, move: str) -> Played:
    """Meet the card, make one of the ``MOVES``, wait an hour, and count in the ledger.

    The service knows keys and can be asked. Raises InvalidField for a move that there is not,
    and for a card on which nothing was sent.
    """
    shown = card(shown) if isinstance(shown, str) else shown
    if move not in MOVES:
        raise InvalidField("move", f"{move!r} is none of {', '.join(MOVES)}")
    if shown.cause.thing == "model":
        raise InvalidField("card", f"{shown.id!r} is a sentence: no request was made")
    with stage(shown, "idempotent") as world:
        game = _Game(world, key=KEY if move == "ask" else None)
        if not game.request():
            game.go_on(move)
        world.clock.sleep(HOUR)
        return Played(shown, move, tuple(game.steps), world.mails(), world.tries, game.told)


class _Game:
    """The requests of one program, and its diary."""

    def __init__(self, world: Stage, key: str | None) -> None:
        self.world, self.key = world, key
        self.steps: list[str] = []
        self.told = False
        self._began = world.clock.now()
        self._floor = 0.0
        self._dice = random.Random(4)  # noqa: S311 - waits, seeded; no secrets

    def request(self) -> bool:
        """Make one request; whether it ended well."""
        under = f" under the key {self.key}" if self.key else ""
        try:
            mail = self.world.send(self.key)
        except Exception as error:  # noqa: BLE001 - any failure is what the game is about
            failure = classify(error, effect=True, now=self.world.clock.now())
            self._floor = failure.retry_after or 0.0
            self.note(f"sent{under}: {type(error).__name__}")
            return False
        self.told = True
        self.note(f"sent{under}: {mail}")
        return True

    def go_on(self, move: str) -> None:
        """Do what the move says."""
        if move == "hand over":
            self.note("a person was told, and nothing more was sent")
            return
        if move == "repair":
            self.world.repair()
            kind = self.world.card.kind
            self.note("repaired" if kind is FailureKind.PERMANENT else "found nothing to repair")
            self.request()
            return
        while self.world.tries < PATIENCE.attempts:
            wait = self._dice.random() * PATIENCE.bound(self.world.tries)
            self.world.clock.sleep(round(max(wait, self._floor), 3))
            if (move == "ask" and self._found()) or self.request():
                return

    def _found(self) -> bool:
        found = self.world.mailbox.find(KEY)
        self.note(f"asked about the key {KEY}: {found['id'] if found else 'not there'}")
        self.told = found is not None
        return self.told

    def note(self, words: str) -> None:
        """Write a line into the diary."""
        self.steps.append(f"{self.world.clock.now() - self._began:5.1f} s  {words}")


# -- a whole policy --------------------------------------------------------------------------------

#: Builtins that LangGraph takes for a mistake in the program. OSError is one of them, and every
#: builtin TimeoutError is an OSError.
_TAKEN_FOR_MISTAKES: Final = (
    ArithmeticError, ImportError, LookupError, NameError, OSError, ReferenceError, RuntimeError,
    StopAsyncIteration, StopIteration, SyntaxError, TypeError, ValueError,
)  # fmt: skip


def retries_by_type(error: Exception) -> bool:
    """Whether LangGraph 1.2.11 retries ``error`` by default, restated in our own words.

    A response of ``requests`` is false for every error status, so the last question but one is
    never asked of a real one, and all of them are retried. (The repository has repaired this
    since; it compares with None now.)
    """
    if isinstance(error, ConnectionError):
        return True
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.is_server_error
    if isinstance(error, requests.HTTPError):
        return error.response.status_code >= 500 if error.response else True
    return not isinstance(error, _TAKEN_FOR_MISTAKES)


@dataclass(frozen=True)
class Policy:
    """How a program goes on after a failure.

    ``effect``: durakit's own protocol, with a service of that contract. Without it, a plain loop
    in a step: ``may_retry`` is asked after each failure, at most ``attempts`` requests are made,
    and ``wait(attempt, draw)`` gives the seconds between them.
    """

    name: str
    effect: str | None = None
    may_retry: Callable[[Exception], bool] = lambda _: False
    attempts: int = PATIENCE.attempts
    wait: Callable[[int, float], float] = lambda attempt, draw: draw * PATIENCE.bound(attempt)


def _additive(attempt: int, draw: float) -> float:
    """Seconds that LangGraph waits: half a second, doubled each time, and up to one more."""
    return 0.5 * 2.0 ** (attempt - 1) + draw


POLICIES: Final = (
    Policy("retry nothing"),
    Policy("retry everything", may_retry=lambda _: True),
    Policy("by type (LangGraph 1.2.11)", None, retries_by_type, 3, _additive),
    Policy("durakit, opaque", "opaque"),
    Policy("durakit, queryable", "queryable"),
    Policy("durakit, idempotent", "idempotent"),
)


@dataclass(frozen=True)
class Cell:
    """One card under one policy, an hour later."""

    card: Card
    policy: str
    status: str
    """of the run"""
    mails: int
    tries: int

    @property
    def word(self) -> str:
        """What came of it, by the ledger and by what the run says of itself."""
        if self.mails > 1:
            return "duplicate"
        if self.status == "needs_decision":
            return "handed over"
        if self.status == "completed":
            return "one mail" if self.mails else "lost"
        if self.mails:
            return "wrongly given up"
        if self.card.kind in (FailureKind.PERMANENT, FailureKind.INFEASIBLE):
            again = self.tries - 1
            times = {1: "once", 2: "twice"}.get(again, f"{again} times")
            return f"retried in vain {times}" if again else "stopped at once"
        return "lost"

    @property
    def good(self) -> bool:
        """Nothing was done twice, nothing was lost, nothing was tried in vain."""
        return self.word in {"one mail", "handed over", "stopped at once"}

    @property
    def mark(self) -> str:
        """Its shape."""
        return "✓" if self.good else "✗"


def judge(shown: Card | str, policy: Policy) -> Cell:
    """Run the card under the policy on virtual time, wait an hour, and count in the ledger."""
    shown = card(shown) if isinstance(shown, str) else shown
    with stage(shown, policy.effect or "opaque") as world:
        dice = random.Random(4)  # noqa: S311 - waits, seeded; no secrets
        assert world.mailbox.folder is not None
        with Runtime(
            world.mailbox.folder / "runs.db", clock=world.clock, rng=dice, world=world.mailbox,
            owner="lesson", durability="process",
        ) as runtime:  # fmt: skip
            run = runtime.run(_work(world, policy, dice), id=KEY)
            world.clock.sleep(HOUR)
            return Cell(shown, policy.name, run.status, world.mails(), world.tries)


def _work(world: Stage, policy: Policy, dice: random.Random) -> Any:
    """Return the workflow that sends one letter under the policy."""

    def by_hand() -> str:
        while True:
            try:
                return world.send()
            except Exception as error:
                if world.tries >= policy.attempts or not policy.may_retry(error):
                    raise
                world.clock.sleep(policy.wait(world.tries, dice.random()))

    def probe(call: Call) -> Found | Probed:
        found = world.mailbox.find(call.key)
        return Probed.ABSENT if found is None else Found(found["id"])

    def send(call: Call) -> str:
        return world.send(call.key)

    if policy.effect is None:

        def plain(ctx: Any) -> Any:
            return ctx.step("send", by_hand)

        return workflow(plain, name="fault card: plain")
    asks = policy.effect == "queryable"
    declared = tool(
        send, effect=policy.effect, retry=PATIENCE, name="send_email",
        probe=probe if asks else None, settles_after=SETTLES if asks else None,
    )  # fmt: skip

    def durable(ctx: Any) -> Any:
        return ctx.call(declared, key=KEY)

    return workflow(durable, name=f"fault card: {policy.effect}")


@dataclass(frozen=True)
class Matrix(Shown):
    """Every card under every policy: rows are cards, columns are policies."""

    cells: tuple[Cell, ...]

    @property
    def cards(self) -> tuple[Card, ...]:
        """The cards, in order."""
        return tuple({cell.card.id: cell.card for cell in self.cells}.values())

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies' names, in order."""
        return tuple(dict.fromkeys(cell.policy for cell in self.cells))

    def cell(self, id: str, policy: str) -> Cell:
        """Return one cell. Raises KeyError where there is none."""
        return {(cell.card.id, cell.policy): cell for cell in self.cells}[id, policy]

    def count(self, policy: str, word: str) -> int:
        """How many cards come to ``word`` under the policy; it may be the word's beginning."""
        return sum(cell.policy == policy and cell.word.startswith(word) for cell in self.cells)

    def table(self) -> Table:
        """Return one row for each card."""
        rows: list[Row] = []
        for shown in self.cards:
            found = {name: self.cell(shown.id, name) for name in self.policies}
            said = {name: f"{cell.mark} {cell.word}" for name, cell in found.items()}
            rows.append({"card": shown.title, **said})
        return Table("What the ledger says an hour later", rows)

    def text(self) -> str:
        """Return the table as text."""
        return self.table().text()

    def html(self) -> str:
        """Return the table as HTML."""
        return self.table().html()


def judge_all(shown: Sequence[Card] | None = None, policies: Sequence[Policy] = POLICIES) -> Matrix:
    """Run every card under every policy; the eight if none are given."""
    deck = cards() if shown is None else shown
    return Matrix(tuple(judge(one, policy) for one in deck for policy in policies))


def plot_fault_matrix(matrix: Matrix) -> Plot:
    """Draw the matrix: a white box with ✓ is good, a red and hatched one with ✗ is not."""
    rows = tuple(
        {
            "card": cell.card.title,
            "policy": cell.policy,
            "mark": cell.mark,
            "what came of it": cell.word,
            "mails": cell.mails,
            "attempts": cell.tries,
        }
        for cell in matrix.cells
    )
    across, down = matrix.policies, matrix.cards
    bad = {name: sum(not c.good for c in matrix.cells if c.policy == name) for name in across}
    told = ", ".join(f"{name} {number}" for name, number in bad.items())
    alt = f"{len(down)} fault cards under {len(across)} policies; cells that went wrong: {told}."

    def draw(axes: Axes) -> None:
        for y, shown in enumerate(down):
            for x, name in enumerate(across):
                _draw_cell(axes, x, y, matrix.cell(shown.id, name))
        names = [name.replace(", ", ",\n").replace(" (", "\n(") for name in across]
        axes.set_xticks(range(len(across)), names, fontsize=9, color=INK)
        axes.set_yticks(range(len(down)), [one.title for one in down], fontsize=9, color=INK)
        axes.set_xlim(-0.5, len(across) - 0.5)
        axes.set_ylim(len(down) - 0.5, -0.5)
        axes.tick_params(length=0, labeltop=True, labelbottom=False)
        axes.spines[:].set_visible(False)

    return Plot(alt, rows, draw, (11.0, 1.1 + 0.6 * len(down)))


def _draw_cell(axes: Axes, x: int, y: int, cell: Cell) -> None:
    from matplotlib.patches import Rectangle  # noqa: PLC0415 - loaded with the first picture

    look = {"facecolor": "white", "edgecolor": BLUE} if cell.good else TROUBLE
    axes.add_patch(Rectangle((x - 0.46, y - 0.42), 0.92, 0.84, linewidth=1.2, **look))
    mails = f"{cell.mails} mail{'' if cell.mails == 1 else 's'}"
    word = cell.word.replace("in vain ", "in vain\n")
    axes.text(
        x, y, f"{cell.mark} {word}\n{mails}", ha="center", va="center", fontsize=8,
        color=INK if cell.good else RED, weight="normal" if cell.good else "bold",
        bbox=None if cell.good else {"facecolor": "#ffffff", "edgecolor": "none", "pad": 1.5},
    )  # fmt: skip


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


# -- the deck as a widget --------------------------------------------------------------------------


@cache
def _played(id: str, move: str) -> Played:
    """Return a game of this process: seeded and on virtual time, each comes out as the first."""
    return play(id, move)


class DeckModel(traitlets.HasTraits):
    """Which card lies on top, and what was decided about it; every game was played beforehand.

    ``position``: from 0. ``move``: one of ``MOVES``, or empty while nothing is decided.
    """

    position = traitlets.Int(0)
    move = traitlets.Unicode("")

    def __init__(self) -> None:
        self.deck = tuple(one for one in cards(extra=True) if one.kind is not None)
        self.games = {(one.id, move): _played(one.id, move) for one in self.deck for move in MOVES}
        super().__init__()

    @traitlets.validate("position")
    def _inside(self, proposal: dict[str, Any]) -> int:
        return max(0, min(int(proposal["value"]), len(self.deck) - 1))

    @traitlets.validate("move")
    def _known(self, proposal: dict[str, Any]) -> str:
        if proposal["value"] and proposal["value"] not in MOVES:
            raise InvalidField("move", f"{proposal['value']!r} is none of {', '.join(MOVES)}")
        return str(proposal["value"])

    @traitlets.observe("position")
    def _face_up(self, _change: object) -> None:
        """A card that was not looked at yet has not been decided about."""
        self.move = ""

    @property
    def card(self) -> Card:
        """The card on top."""
        return self.deck[self.position]

    @property
    def played(self) -> Played | None:
        """What came of the decision; None while there is none."""
        return self.games[self.card.id, self.move] if self.move else None

    def status(self) -> str:
        """Return which card it is and what came of the decision, in one line."""
        where = f"Card {self.position + 1} of {len(self.deck)} — {self.card.title}."
        if self.played is None:
            return f"{where} What do you do?"
        mails = f"{self.played.mails} mail{'' if self.played.mails == 1 else 's'} in the ledger"
        return f"{where} You {MOVES[self.move]}: {mails}. {self.played.verdict}."

    def face(self) -> Table:
        """Return what the caller knows."""
        return Table("WHAT THE CALLER SEES", [{"on the wire": self.card.wire}])

    def back(self) -> SideBySide | None:
        """Return what was done, and what the card says about each contract."""
        if self.played is None:
            return None
        diary: list[Row] = [{"what was done": step} for step in self.played.steps]
        advice: list[Row] = [
            {"the service": effect, "what to do": MOVES.get(move, move)}
            for effect, move in self.card.next.items()
        ]
        kind = self.card.kind.value if self.card.kind else "none"
        out = {"0": "no mail", "1": "one mail", "later": "no mail yet"}[self.card.ledger]
        truth = [{"after the first request": out, "the failure is": kind}]
        return SideBySide(
            (
                Table("WHAT YOU DID", diary),
                Table("THE LEDGER", truth),
                Table("BY WHAT THE SERVICE PROMISES", advice),
            )
        )

    def overview(self) -> Table:
        """Return the face of every card."""
        rows: list[Row] = [
            {"card": number, "failure": one.title, "on the wire": one.wire}
            for number, one in enumerate(self.deck, 1)
        ]
        return Table("EVERY CARD, as the caller sees it", rows)

    def body(self) -> str:
        """Return the card as HTML: its story, its face, and its back once there is a decision."""
        back = self.back()
        turned = "" if back is None else f"{back.html()}<p>{h(self.card.because)}</p>"
        return (
            f'<div style="border: {LINE}; border-radius: 6px; '
            f'padding: 4px 12px; overflow-x: auto"><h4 style="margin: 6px 0">{h(self.card.title)}'
            f"</h4><p>{h(self.card.story)}</p>{self.face().html()}{turned}</div>"
        )

    def text(self) -> str:
        """Return the card, and every card's face."""
        parts = [self.status(), self.card.story, self.face().text()]
        back = self.back()
        if back is not None:
            parts += [back.text(), self.card.because]
        return "\n\n".join([*parts, self.overview().text()])

    def html(self) -> str:
        """Return the same as HTML, without controls."""
        status = f"<div><b>{h(self.status())}</b></div>"
        overview = f"<details><summary>Every card</summary>{self.overview().html()}</details>"
        return f"<div>{status}{self.body()}{overview}</div>"


class FaultCards(ModelView):
    """Go through the cards, decide about each, and see what is in the ledger then."""

    def __init__(self) -> None:
        self.model = DeckModel()
        super().__init__()
        self.previous = button(
            "Previous", "Go to the card before", self.guarded(lambda: self._go(-1))
        )
        self.next = button("Next", "Go to the card after", self.guarded(lambda: self._go(1)))
        self.moves = {
            move: button(words, f"Decide: {words}", self.guarded(partial(self._decide, move)))
            for move, words in MOVES.items()
        }
        self._body = widgets.HTML(layout={"width": "auto"})
        self.model.observe(self.guarded(self._show), ["position", "move"])
        self.children = (
            in_a_row([self.previous, self.next]),
            self._body,
            in_a_row(list(self.moves.values())),
            self.status,
            self._trouble,
            control_names(),
        )
        self._show()

    def _go(self, by: int) -> None:
        self.model.position += by

    def _decide(self, move: str) -> None:
        self.model.move = move

    def _show(self) -> None:
        """Bring every control and text to what the model says."""
        for move, choice in self.moves.items():
            # A shape in the words, and not the colour alone, tells which one was chosen.
            choice.description = f"{'●' if move == self.model.move else '○'} {MOVES[move]}"
        self.say(self.model.status())
        self._body.value = self.model.body()

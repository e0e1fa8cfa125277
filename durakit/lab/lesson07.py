"""Lesson 07, one operation, one key: its experiments, and the checkers of its exercises."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from durakit.clock import ManualClock
from durakit.define import Call, Found, Tool, tool, workflow
from durakit.driver import Context
from durakit.faults import CrashAt
from durakit.lab.answers import has_dots, read_moves
from durakit.lab.exercises import (
    Exercise,
    Finding,
    LearnerError,
    Row,
    Table,
    one_line,
    right,
    theirs,
    todo,
    wrong,
)
from durakit.lab.frame import COUNT, Choice, Frame
from durakit.lab.html import kind_of
from durakit.lab.keys.identities import TracedDesk, model_schema, operation_map, operation_summary
from durakit.lab.keys.strategies import STRATEGIES, Facts, KeyFunction, Operation, Strategy, again
from durakit.lab.keys.trials import (
    DISTURBANCES,
    ONE_MAIL,
    REFUSED,
    Disturbance,
    Judged,
    Order,
    judge,
    judge_all,
    judge_crashes,
    plot_key_strategies,
    strategy_table,
)
from durakit.lab.worlds import beside, customers, new_mailbox, new_world
from durakit.mail import PROFILES, Fault, Mailbox, MailError, Profile
from durakit.protocol import Probed
from durakit.run import Run
from durakit.runtime import Runtime

__all__ = [
    "MOVES",
    "STRATEGIES",
    "TracedDesk",
    "after_lost_reply",
    "again",
    "asked",
    "attack",
    "beside",
    "cards",
    "customers",
    "derive_key",
    "die_between",
    "end",
    "frame",
    "judge_all",
    "model_schema",
    "new_mailbox",
    "new_world",
    "operation_map",
    "operation_summary",
    "plot_key_strategies",
    "predict",
    "promises",
    "recall",
    "settled",
    "start",
    "strategy_table",
    "trial",
    "tried",
    "two_at_once",
]

HOUR: Final = 3600.0
ADA: Final = "ada@example.org"


# -- what the cells use ----------------------------------------------------------------------------


def trial(disturbance: str, *functions: KeyFunction) -> Table:
    """Run the program under each key function while something goes wrong; the ledger judges."""
    rows = []
    for function in functions:
        found = judge(Strategy(function.__name__, function, ""), disturbance)
        rows.append(
            {
                "key": found.strategy,
                "what the service was told": ", ".join(found.keys),
                "mails": found.mails,
                "verdict": f"{found.mark} {found.verdict}",
            }
        )
    return Table(f"THE LEDGER, after: {disturbance}", rows)


def asked(mailbox: Mailbox) -> Callable[[Call], Any]:
    """Return a probe that asks this mail service about a key."""

    def ask(call: Call) -> Found | Probed:
        known = mailbox.find(call.key)
        return Probed.ABSENT if known is None else Found(known)

    return ask


def settled(way: str, run: Run, mailbox: Mailbox) -> Row:
    """Return how an unknown mail was settled: what was sent for it, and what is known of it now."""
    outcomes = dict(zip(run.operations()["key"], run.operations()["outcome"], strict=True))
    return {
        "way": way,
        "requests": len(mailbox.requests()),
        "mails": len(mailbox.effects()),
        "outcome of welcome:42": outcomes["welcome:42"],
        "run": run.status,
    }


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


# -- the promises of the services, and what they do ------------------------------------------------

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
        "kept for": _hours(profile.window),
        "remembers": _KEEPS[profile.remembers],
        "other body": other if profile.compares_bodies else "not compared",
        "still running": "it waits" if running is None else f"{running.status} {running.name}",
    }


def _hours(seconds: float) -> str:
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
            with _scratch() as folder:
                mailbox = Mailbox(folder, profile=name, clock=ManualClock(), plan=plan)
                _answer(mailbox, "welcome-42", "Hello Ada")
                mailbox.clock.sleep(hours * HOUR)
                told = _answer(mailbox, "welcome-42", body)
                row[words] = f"{len(mailbox.effects())} · {told}"
                mailbox.close()
        rows.append(row)
    return Table("TRIED: mails in the ledger · what the second request is told", rows)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(
        prefix="durakit-lesson07-", ignore_cleanup_errors=True
    ) as name:
        yield Path(name)


# -- the server's side -----------------------------------------------------------------------------

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
    with _scratch() as folder:
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


# -- exercise 1: derive a key ----------------------------------------------------------------------

_ONE: Final = Facts(
    Operation("welcome", "A-1", 42), 1, "call_1_1", 7,
    {"to": ADA, "subject": "Welcome", "body": "Hello Ada"},
)  # fmt: skip

#: Both are wanted: (what is the matter if their keys are equal, the two operations).
_DIFFERENT: Final = (
    (
        (
            "Two vouchers for one customer, orders A-7 and A-8, get one key. Both are wanted, and "
            "the service takes the second for a repetition."
        ),
        (Operation("voucher", "A-7", 42), Operation("voucher", "A-8", 42)),
    ),
    (
        "A welcome and an invoice of the same order get one key: two events, two operations.",
        (Operation("welcome", "A-1", 42), Operation("invoice", "A-1", 42)),
    ),
    (
        (
            "The parts of your key run together: event 'reminder' of order '21' and event "
            "'reminder2' of order '1' become one key. Put something between the parts."
        ),
        (Operation("reminder", "21", 42), Operation("reminder2", "1", 42)),
    ),
)

_REPEATED: Final[tuple[tuple[str, Mapping[str, Any]], ...]] = (
    (
        (
            "Your key changes from attempt to attempt, so no service can tell that they belong "
            "together."
        ),
        {"attempt": 2},
    ),
    (
        "Your key changes with the tool-call id. The model gives a new one each time it plans.",
        {"tool_call_id": "call_2_1"},
    ),
    (
        "Your key changes with the JSON-RPC id. Each request has a new one, also a repetition.",
        {"jsonrpc_id": 8},
    ),
    (
        "Your key changes with the words. A model that plans again words its mail differently.",
        {"arguments": {"to": ADA, "subject": "Welcome", "body": "Dear customer: Hello Ada"}},
    ),
)

_TWO_EVENTS: Final = Disturbance(
    "two events of one order",
    "a welcome and an invoice, both wanted",
    (
        Order(Operation("welcome", "A-1", 42), ADA, "Welcome", "Hello Ada"),
        Order(Operation("invoice", "A-1", 42), ADA, "Your invoice", "19 euros, please"),
    ),
    lambda stage: stage.run(),
)


def check_derive_key(my_key: object) -> Finding:
    """Check a key function: what it depends on, and by really running the program with it."""
    if isinstance(my_key, str):
        return wrong("You handed over one key. Hand over the function that makes them.")
    if not callable(my_key):
        return wrong(
            f"Hand over your function by its name, without brackets. This is {kind_of(my_key)}."
        )
    if has_dots(my_key):
        return todo("Put a key in the place of the three dots.")
    return _is_no_key(my_key) or _judged_key(my_key)


def _is_no_key(my_key: Callable[..., Any]) -> Finding | None:
    """What no service would take, or no second process make again."""
    key = theirs(my_key, _ONE)
    if key is None:
        return wrong("Your function returns nothing: is there a return?")
    if not isinstance(key, str):
        return wrong(f"A key is text. Yours is {kind_of(key)}.")
    refused = PROFILES["resend"].what_is_wrong(key)
    if refused is not None:
        return wrong(
            f"The service refuses {one_line(repr(key), 40)} as a key: it {refused.split(' /')[0]}."
        )
    if key != theirs(my_key, _ONE):
        return wrong(
            "Asked twice about the same request, your function makes two keys. What is drawn, or "
            "read from a clock, is gone after a restart."
        )
    if "hash" in getattr(getattr(my_key, "__code__", None), "co_names", ()):
        return wrong(
            "Python's hash() of a text is another one in each process: after a restart, another "
            "key. hashlib would be the same everywhere."
        )
    if "@" in key:
        return wrong(
            f"Your key holds an address: {one_line(key, 60)}. Keys stand in logs of services that "
            "are not yours; put nothing personal in them."
        )
    return None


def _judged_key(my_key: Callable[..., Any]) -> Finding:
    message = _what_it_depends_on(my_key)
    judged = _every_judgement(my_key)
    table = Table(
        "What the ledger says",
        [
            {"what happens": one.disturbance, "wanted": one.wanted, "mails": one.mails,
             "verdict": f"{one.mark} {one.verdict}"}
            for one in judged
        ],
    )  # fmt: skip
    if message is not None:
        return wrong(message, table=table)
    bad = [one for one in judged if not _good(one)]
    if bad:
        what = f"{bad[0].mark} {bad[0].verdict} ({bad[0].mails} of {bad[0].wanted})"
        return wrong(f"Look at {bad[0].disturbance!r}: {what}.", table=table)
    return right(
        f"{len(judged)} times something went wrong, and each order has its one mail. Where the "
        "model changed its words, the service refused the second, and said so.",
        table=table,
    )


def _every_judgement(my_key: Callable[..., Any]) -> list[Judged]:
    raised: list[LearnerError] = []

    def key(facts: Facts) -> str:
        try:
            return str(theirs(my_key, facts))
        except LearnerError as error:
            raised.append(error)
            raise

    strategy = Strategy("yours", key, "")
    # No key outlives the service's window; that row says nothing about this one.
    played = [one for one in (*DISTURBANCES, _TWO_EVENTS) if one.play is not None]
    played = [one for one in played if one.name != "key window over"]
    try:
        return [*judge_crashes(strategy), *(judge(strategy, one) for one in played)]
    finally:
        # The runtime has kept the error for itself, as it does with a tool's.
        if raised:
            raise raised[0]


def _good(one: Judged) -> bool:
    rewords = one.disturbance == "planned again, other words"
    return one.verdict == (REFUSED if rewords else ONE_MAIL)


def _what_it_depends_on(my_key: Callable[..., Any]) -> str | None:
    """Say what is in the key and should not be, or is not and should."""
    key = theirs(my_key, _ONE)
    for message, changed in _REPEATED:
        if theirs(my_key, replace(_ONE, **changed)) != key:
            return message
    for message, (one, other) in _DIFFERENT:
        keys = {theirs(my_key, replace(_ONE, operation=operation)) for operation in (one, other)}
        if len(keys) == 1:
            return message
    return None


KEY_HINTS: Final = (
    "Ask of each part: would it be the same if the program were started again from nothing?",
    "facts.operation is what the business knows; everything else in facts is about this one try.",
    "What makes two mails to one customer different, if both are wanted? It must be in the key.",
    'The event and its order, with something between them: f"{…}:{…}".',
)

derive_key = Exercise("07.8", "a key for the shop", check_derive_key, KEY_HINTS)


# -- exercise 2: after a lost reply ----------------------------------------------------------------

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
                "keeps keys for": _hours(profile.window) if profile.dedups else "(knows no keys)",
                "can be asked": "yes" if profile.askable else "no",
                "reply lost": _hours(card.hours * HOUR) + " ago",
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
    with _scratch() as folder:
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


def check_after_lost_reply(moves: object) -> Finding:
    """Check a table of moves by making every one of them, with the ledger as the judge."""
    known = {card.name: card for card in CARDS}
    chosen = read_moves(moves, list(known), MOVES, done="have a move")
    if isinstance(chosen, Finding):
        return chosen
    return _told([play_card(known[name], move) for name, move in chosen.items()])


def _told(played: Sequence[Played]) -> Finding:
    table = Table(
        "Each move, really made",
        [
            {"card": one.card.name, "move": one.move, "mails": one.mails, "run": one.status,
             "verdict": one.verdict}
            for one in played
        ],
    )  # fmt: skip
    bad = [one for one in played if not one.verdict.startswith("✓")]
    if not bad:
        return right(
            "Eight lost replies, eight mails. Four were settled by the program, and four lie with "
            "a person, because nothing else could settle them.",
            table=table,
        )
    worst = max(bad, key=lambda one: one.mails)
    return wrong(
        f"{len(bad)} of {len(played)} cards do not end well. {_why_not(worst)}", table=table
    )


def _why_not(one: Played) -> str:
    card, profile = one.card, PROFILES[one.card.profile]
    if one.mails > 1 and not profile.dedups:
        return f"{card.name!r}: sent again, and it is a second mail. This service knows no keys."
    if one.mails > 1:
        return (
            f"{card.name!r}: sent again after {_hours(card.hours * HOUR)}, and it is a second "
            f"mail. The service keeps a key for {_hours(profile.window)}."
        )
    if one.move == "query":
        return f"{card.name!r}: it cannot be asked about a key, and the run ended with a person."
    return f"{card.name!r}: a person was called, and {card.why}."


CARD_HINTS: Final = (
    "Three questions, in this order: is the key still remembered? Can it be asked? Who else?",
    "Compare the last column with the second: is the reply's age below the window?",
    "Where a key is forgotten, the same key is a new request. Asking is then better, if it can be.",
    "Two cards resend, two query, four are handed over.",
)

after_lost_reply = Exercise("07.9", "after a lost reply", check_after_lost_reply, CARD_HINTS)

frame = Frame(
    "07",
    asks=(COUNT, COUNT, COUNT, COUNT, Choice(200, 409, 500), COUNT, COUNT),
    exercises=(derive_key, after_lost_reply),
)
start, predict, recall, end = frame.start, frame.predict, frame.recall, frame.end

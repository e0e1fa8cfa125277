"""Lesson 07, one operation, one key: its experiments, and the checkers of its exercises."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

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
from durakit.lab.keys.replies import CARDS, MOVES, Played, cards, play_card
from durakit.lab.keys.server import attack, die_between
from durakit.lab.keys.services import ADA, HOUR, asked, in_hours, promises, tried, two_at_once
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
from durakit.mail import PROFILES, Mailbox
from durakit.run import Run

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
            f"{card.name!r}: sent again after {in_hours(card.hours * HOUR)}, and it is a second "
            f"mail. The service keeps a key for {in_hours(profile.window)}."
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

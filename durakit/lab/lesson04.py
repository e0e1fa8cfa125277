"""Lesson 04, may I retry?: what would clutter its cells, and the checkers of its exercises."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import httpx
from pydantic import BaseModel

from durakit.define import Tool
from durakit.failures import FailureKind
from durakit.lab.answers import misread_rule, read_moves
from durakit.lab.exercises import (
    Exercise,
    Finding,
    Row,
    Table,
    one_line,
    right,
    theirs,
    wrong,
)
from durakit.lab.faultcards.cards import act, cards, guard, judgements
from durakit.lab.faultcards.deck import FaultCards
from durakit.lab.faultcards.play import MOVES, Played, play
from durakit.lab.faultcards.policies import judge_all, plot_fault_matrix
from durakit.lab.frame import COUNT, Choice, Frame, Number
from durakit.lab.lesson03 import new_desk
from durakit.lab.worlds import beside, customers, new_world

__all__ = [
    "MOVES",
    "FaultCards",
    "act",
    "beside",
    "cannot",
    "cards",
    "customers",
    "deck",
    "end",
    "frame",
    "games",
    "judge_all",
    "judgements",
    "may_retry",
    "new_world",
    "play",
    "plot_fault_matrix",
    "policies",
    "predict",
    "recall",
    "sorting",
    "start",
]


# -- what the cells use ----------------------------------------------------------------------------


def deck(*, truth: bool = False) -> Table:
    """Return the eight cards as the caller sees them; with ``truth``, what is behind them."""
    if not truth:
        seen: list[Row] = [{"card": c.id, "failure": c.title, "on the wire": c.wire}
                           for c in cards()]  # fmt: skip
        return Table("EIGHT FAILURES, as the caller sees them", seen)
    behind: list[Row] = [
        {
            "card": c.id,
            "mails out": c.ledger,
            "kind": "none" if c.kind is None else c.kind.value,
        }
        for c in cards()
    ]
    return Table("THE SAME EIGHT, as the ledger knows them", behind)


def games(*played: Played) -> Table:
    """Return what came of some decisions, one row each."""
    rows: list[Row] = [
        {
            "card": game.card.id,
            "you": MOVES[game.move],
            "attempts": game.tries,
            "mails an hour later": game.mails,
            "verdict": game.verdict,
        }
        for game in played
    ]
    return Table("WHAT THE LEDGER SAYS", rows)


def policies(*tools: Tool) -> Table:
    """Return the retry policy that is really in force for each tool, defaults included."""
    rows: list[Row] = [
        {
            "tool": declared.name,
            "effect": declared.contract.effect.value,
            "attempts": declared.policy.attempts,
            "first wait": f"up to {declared.policy.bound(1):g} s",
            "longest wait": f"up to {declared.policy.cap:g} s",
        }
        for declared in tools
    ]
    return Table("THE POLICY IN FORCE, also where nothing was declared", rows)


def cannot(folder: Path, *transcripts: str) -> Table:
    """Let a model say "I cannot", and return what our own records say about that."""
    rows: list[Row] = []
    for name in transcripts:
        mailbox, runtime, desk = new_desk(folder / name, name)
        result = runtime.run(desk.machine, desk.start, id=name).result
        last = desk.model.transcript.turns[-1]
        rows.append(
            {
                "the model says": last.says.partition(": ")[2],
                "our records": "agree" if result["confirmed"] else "do not agree",
                "what is missing": result["missing"].partition(":")[0],
                "mails asked for": len(mailbox.requests()),
            }
        )
    return Table('"I CANNOT", checked', rows)


# -- the first exercise: sort the cards ------------------------------------------------------------


def check_sorting(moves: object) -> Finding:
    """Play each card as the learner has sorted it, and count in the ledger."""
    chosen = read_moves(moves, [one.id for one in cards()], MOVES, done="are sorted")
    if isinstance(chosen, Finding):
        return chosen
    played = [play(name, move) for name, move in chosen.items()]
    table = games(*played)
    bad = [game for game in played if not game.verdict.startswith("✓")]
    if not bad:
        return right(
            "Eight cards, and each of them ended well: seven times one mail, and one card is with "
            "a person who can do something about it. The ledger says so.",
            table=table,
        )
    worst = max(bad, key=lambda game: (game.mails > 1, game.verdict.startswith("✗")))
    return wrong(f"{len(bad)} of 8 cards do not end well. Look at {worst.card.id!r}.",
                 _why_not(worst), table=table)  # fmt: skip


def _why_not(game: Played) -> str:
    """Say what came of a move that does not fit."""
    kind, move = game.card.kind, game.move
    if game.mails > 1:
        return (
            f"You {MOVES[move]}, and Ada has {game.mails} mails. The first one was out before you "
            "did anything; nothing on the wire said so."
        )
    if move == "hand over":
        return "A person was called to something that the program could have done by itself."
    if kind is FailureKind.TRANSIENT and move == "repair":
        return "There was nothing to repair in the request, and it was sent again too soon."
    if kind is FailureKind.TRANSIENT:
        return "It ends with one mail. But nothing can be out, so there was nothing to ask about."
    if kind is FailureKind.INFEASIBLE and move == "repair":
        return "The request is fine as it is. What is missing is not in the request."
    if kind is FailureKind.INFEASIBLE:
        return "The condition is missing today, and it is missing a second later too."
    if move == "ask":
        return "It was refused by a rule, and a key does not change the rule."
    return f"The same request was refused {game.tries} times, for the same reason each time."


SORTING_HINTS: Final = (
    "For each card ask two things: can a mail be out already? Would the same request go through?",
    "Refused in front of the work: nothing is out. No answer, or a 500: a mail may be out.",
    "Wrong request: repair. World not ready: hand over. Perhaps done: ask. Only early: retry.",
    "Three cards may be retried as they are, two must be repaired, and about two you must ask.",
)

sorting = Exercise("04.7", "sort the eight cards", check_sorting, SORTING_HINTS)


# -- the second exercise: a classifier -------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """One real error, and whether the same request may be sent again as it is.

    ``group``: what a wrong answer about it has in common with others.
    """

    name: str
    error: Exception
    with_effect: bool
    reading: bool
    group: str


class _Receipt(BaseModel):
    id: int


def samples() -> Iterator[Sample]:
    """Make every error anew, by really failing."""
    for name, fail, with_effect, reading, group in _FAILING:
        try:
            fail()
        except Exception as error:  # noqa: BLE001 - any failure is what this is about
            yield Sample(name, error, with_effect, reading, group)


def _answer(status: int) -> None:
    """Be answered so by a real HTTP server, and raise httpx's error."""
    with guard(status) as url, _client() as client:
        client.post(url).raise_for_status()


def _client(read: float = 5.0) -> httpx.Client:
    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # plain loopback: there is nothing to verify
    return httpx.Client(trust_env=False, verify=verify, timeout=httpx.Timeout(5, read=read))


def _url(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


def _no_listener() -> None:
    """Post to an address at which nobody listens."""
    with socket.socket() as nobody, _client() as client:
        nobody.bind(("127.0.0.1", 0))
        client.post(_url(nobody))


def _no_answer() -> None:
    """Post to somebody who takes the connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent, _client(read=0.01) as client:
        client.post(_url(silent))


def _torn() -> None:
    """Read from a connection that the other side tears down."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname(), timeout=5) as mine,
    ):
        other, _ = listening.accept()
        # With a linger of nothing, closing sends a reset instead of a farewell.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.close()
        mine.recv(1)


def _wrong_text() -> None:
    """Fail in our own code, with a number in the message that means something else."""
    raise ValueError("order 503 has no address")


#: (name, how to fail, with an effect, without one, group). Both columns are written down by hand.
_FAILING: Final[tuple[tuple[str, Callable[[], object], bool, bool, str], ...]] = (
    ("429 of the mail service", partial(act, "rate_limited"), True, True, "limited"),
    ("503 of httpx", partial(act, "overloaded"), True, True, "limited"),
    ("connection refused", partial(act, "refused"), True, True, "refused"),
    ("connection refused, by httpx", _no_listener, True, True, "refused"),
    ("422 of the mail service", partial(act, "bad_argument"), False, False, "client"),
    ("400 of httpx", partial(_answer, 400), False, False, "client"),
    ("404 of httpx", partial(_answer, 404), False, False, "client"),
    ("401 of requests", partial(act, "not_allowed"), False, False, "falsy"),
    ("500 of the mail service", partial(act, "error_after"), False, True, "broken"),
    ("500 of httpx", partial(_answer, 500), False, True, "broken"),
    ("TimeoutError", partial(act, "timeout"), False, True, "silence"),
    ("read timeout of httpx", _no_answer, False, True, "silence"),
    ("connection reset", _torn, False, True, "reset"),
    ("no verified sender", partial(act, "infeasible"), False, False, "infeasible"),
    ("ValueError: order 503 …", _wrong_text, False, False, "text"),
    ("a reply of the wrong shape", partial(_Receipt.model_validate, {}), False, False, "mistake"),
)

#: Group → what to say where the answer is yes and should be no, the greatest harm first.
_TOO_EAGER: Final = {
    "silence": "No answer in time, the tool sends mail, and you send again: the mail may be out.",
    "broken": "A 500 came back, the tool sends mail, and you send again. It may have come after "
    "the work.",
    "reset": "The connection was torn down after the request was on it. That is another thing "
    "than a connection that was refused, though both are a ConnectionError.",
    "falsy": "You retry the 401 of requests and not the 4xx of httpx. Look at bool(response): "
    "the response of a refusal is false, and yet it is there.",
    "client": "A 4xx says that the request is wrong. You send the same wrong request again.",
    "infeasible": "A condition is missing in the world, and you would ask again and again.",
    "text": "You judge by the text of a message: the 503 in it is the number of an order.",
    "mistake": "A mistake in the program will be made again the next time.",
}

#: Group → the group that explains it, where that one is answered wrongly too.
_WIDER: Final = {"falsy": "client", "text": "mistake"}

#: Group → what to say where the answer is no and should be yes.
_TOO_SHY: Final = {
    "limited": "429 and 503 are refusals in front of the work: nothing is out, and it may pass.",
    "refused": "Nobody took the connection, so nothing was sent. A library may have a type of its "
    "own for it: httpx.ConnectError.",
    "silence": "A tool that only reads may ask again where no answer came. A TimeoutError is an "
    "OSError, and httpx has a family of its own: httpx.TransportError.",
    "broken": "A tool that only reads may ask again after a 500.",
    "reset": "A tool that only reads may ask again where the connection was torn down.",
}


def check_may_retry(rule: object) -> Finding:
    """Ask the learner's rule about real errors, each for a mail and for a tool that only reads."""
    misread = _misread(rule)
    if misread is not None:
        return misread
    asked: list[tuple[Sample, bool, bool]] = []
    for sample in samples():
        for effect in (True, False):
            answer = theirs(rule, sample.error, effect)  # type: ignore[arg-type]  # see _misread
            if type(answer) is not bool:
                said = "nothing: is there a return?" if answer is None else one_line(repr(answer))
                return wrong(f"A rule says True or False. Asked about {sample.name}, yours says "
                             f"{said}")  # fmt: skip
            asked.append((sample, effect, answer))
    rows: list[Row] = [
        {
            "failure": sample.name,
            "the tool": "sends mail" if effect else "only reads",
            "your answer": _YES[answer],
            "right": _YES[_wanted(sample, effect)],
        }
        for sample, effect, answer in asked
        if answer != _wanted(sample, effect)
    ]
    if not rows:
        return right(
            f"{len(asked)} answers about {len(asked) // 2} real errors, and all of them hold: no "
            "mail twice, nothing given up that would have passed, nothing asked in vain.",
        )
    table = Table(f"{len(rows)} of {len(asked)} answers do not hold", rows)
    return wrong(_worst(asked), table=table)


_YES: Final = {True: "retry", False: "no"}


def _wanted(sample: Sample, effect: bool) -> bool:
    return sample.with_effect if effect else sample.reading


def _worst(asked: list[tuple[Sample, bool, bool]]) -> str:
    """Return what to say about all the wrong answers: one cause of them, the worst first."""
    answers = {answer for _, _, answer in asked}
    if answers == {True}:
        return "Your rule retries everything. Two kinds of harm: a second mail, and asking in vain."
    if answers == {False}:
        return "Your rule retries nothing, not even where nothing was sent and it passes by itself."
    given = {(sample.name, effect): answer for sample, effect, answer in asked}
    eager = {s.group for s, effect, answer in asked if answer and not _wanted(s, effect)}
    shy = {s.group for s, effect, answer in asked if not answer and _wanted(s, effect)}
    both = all(given[s.name, True] == given[s.name, False] for s, _, _ in asked)
    if both and eager & {"silence", "broken", "reset"}:
        return (
            "Your rule gives the same answers for both tools, so it never looks at effect. What "
            "a reading tool may ask again, a tool that sends mail may not."
        )
    for group, says in _TOO_EAGER.items():
        # Where every 4xx is retried, requests is not the cause; nor is the text of a message
        # where every mistake is.
        if group in eager and _WIDER.get(group) not in eager:
            return says
    return next(says for group, says in _TOO_SHY.items() if group in shy)


def _misread(rule: object) -> Finding | None:
    """What to say where something else than a rule was handed over."""
    if isinstance(rule, bool):
        return wrong("You handed over an answer. Hand over the function itself, without brackets.")
    return misread_rule(
        rule,
        "an error and effect",
        "Put a condition in the place of each three dots, then check again.",
    )


HINTS: Final = (
    "Three questions, in this order: was there an answer? Was the request sent? Has it an effect?",
    "There may be a response that is false. Compare it with None instead of asking for its truth.",
    "With an answer: 429 and 503 always, 500 and more only for reading, everything else never.",
    "Without: ConnectionRefusedError, httpx.ConnectError; for reading OSError, TransportError too.",
)

may_retry = Exercise("04.8", "a classifier of your own", check_may_retry, HINTS)

frame = Frame(
    "04",
    asks=(
        Number(most=8),
        Number(most=3),
        Choice("transient", "permanent", "unknown", "infeasible"),
        COUNT,
        Choice(True, False),  # noqa: FBT003 - the two answers themselves
        Number(most=8),
    ),
    exercises=(sorting, may_retry),
)
start, predict, recall, end = frame.start, frame.predict, frame.recall, frame.end

"""Lesson 04 as a learner meets it: its parts, its numbers against the ledger, its two exercises."""

from pathlib import Path

import httpx
import lesson_checks as checks
import pytest
import requests
from lesson_checks import cell_of, read, tagged, texts
from lesson_play import Names, Seen, ask, hold, is_a_slip, mails_after_each_cell

import durakit as dk
from durakit.failures import FailureKind, classify
from durakit.lab import lesson04
from durakit.lab.exercises import State
from durakit.lab.faultcards.cards import cards
from durakit.lab.faultcards.policies import retries_by_type
from durakit.lab.lesson04 import samples
from durakit.mail import Mailbox

HERE = checks.LESSONS["04"]
ADA = "ada@example.org"


# -- its numbers -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played() -> Seen:
    """After each cell: the ledger's word, and how the run stands."""

    def look(name: str, names: Names, _mailbox: Mailbox) -> dict[str, object]:
        run = names["run"]
        return {
            # A later cell's mailbox may stand beside an earlier cell's run.
            "status": run.status if name not in ("routes7", "routes7b") else None,
            "matrix": names.get("matrix"),
        }

    return mails_after_each_cell(HERE, look)


@pytest.mark.parametrize(
    ("text", "says", "cell", "facts"),
    [
        ("e4", "Once.", "run4", {"requests": ["delivered"], "status": "needs_decision"}),
        ("e4", "a person decides", "run4", {"mails": 1}),
        ("s7", "is a retry too", "routes7", {"requests": ["delivered", "delivered"], "mails": 2}),
        ("e7b", "was never asked", "routes7c", {"requests": ["delivered"], "mails": 1}),
        ("s8", "Retrying is useless", "infeasible8", {"requests": [], "mails": 0}),
        ("e8", "handed over", "infeasible8", {"status": "needs_decision"}),
        ("e8", "the run goes on", "resume8", {"status": "completed", "mails": 1}),
    ],
)
def test_a_number_in_the_text_is_the_ledgers(text, says, cell, facts, played) -> None:
    """What the lesson claims in words is what the mail service's own record says there."""
    hold(HERE, played, text, says, cell, facts)


def test_the_picture_is_as_the_text_counts_it(played) -> None:
    """Two, three in vain, one lost; three lost, two given up; and no duplicate from durakit."""
    text, matrix = cell_of(HERE.read(), "e6").source, played["end"]["matrix"]
    words = {
        policy: [cell.word for cell in matrix.cells if cell.policy == policy]
        for policy in matrix.policies
    }
    everything, nothing = words["retry everything"], words["retry nothing"]
    assert "sends two mails twice and asks three times in vain" in text
    assert everything.count("duplicate") == 2
    assert sum(word.startswith("retried in vain") for word in everything) == 3
    assert "loses the mail of the `429`" in text
    assert everything[0] == "lost"
    assert "loses three mails" in text
    assert nothing.count("lost") == 3
    assert 'says "failed" of two' in text
    assert nothing.count("wrongly given up") == 2
    assert "both unknown cards end with a person" in text
    assert words["durakit, opaque"].count("handed over") == 2 + 1
    for service in ("queryable", "idempotent"):
        assert words[f"durakit, {service}"].count("handed over") == 1
        assert words[f"durakit, {service}"].count("one mail") == 5
    assert all("duplicate" not in words[name] for name in words if name.startswith("durakit"))


def test_the_lesson_covers_every_claim_of_its_section() -> None:
    """21.4's two bullets and its paragraph on defaults, in our own words."""
    source = " ".join(
        " ".join(cell.source.split()) for cell in HERE.read().cells if cell.cell_type == "markdown"
    )
    for claim in (
        "chapter 21.4",
        "obey `Retry-After`, back off between attempts, stop after a few attempts",
        "and stop at the deadline",
        "A network timeout says that the caller stopped waiting.",
        "send again under the key that was saved before the first attempt",
        "is refused again | repair the request first",
        "ask, or send again under a saved key; else hand over",
        "say what is missing, hand over",
        "That sentence is **no classification** at all.",
        "the permissions, the information, the tools",
        "In Temporal an *Activity*, which is where effects belong, is retried by default",
        "A *Workflow Execution* is not retried by default.",
        "A *Workflow Task*, which replays the workflow's code, is retried too",
        "that is another layer",
        '"not configured" never means "not retried"',
        "how many attempts, which errors are final, and how long in all",
    ):
        assert claim in source, claim


def test_what_is_stored_names_no_port_and_no_folder() -> None:
    """The servers and folders of a run are another one's next time."""
    for path in (HERE.path, HERE.solution_path):
        shown = " ".join(
            text for cell in read(path).cells if cell.cell_type == "code" for text in texts(cell)
        )
        assert "127.0.0.1" not in shown
        assert "durakit-" not in shown


# -- the first exercise ----------------------------------------------------------------------------


RIGHT = {one.id: one.next["idempotent"] for one in cards()}


def all_of(move: object) -> dict[str, object]:
    """Return one move for every card."""
    return dict.fromkeys(RIGHT, move)


def without(name: str) -> dict[str, str]:
    """Return the right answer without one card."""
    return {card: move for card, move in RIGHT.items() if card != name}


WRONG_MOVES = {
    "retry all": (all_of("retry"), "The first one was out before you did anything"),
    "a 500 retried": (RIGHT | {"error_after": "retry"}, "Look at 'error_after'"),
    "a hand-over of all": (all_of("hand over"), "A person was called"),
    "a repair of a limit": (RIGHT | {"rate_limited": "repair"}, "sent again too soon"),
    "a question about nothing": (RIGHT | {"refused": "ask"}, "there was nothing to ask about"),
    "a repaired world": (RIGHT | {"infeasible": "repair"}, "What is missing is not in the request"),
    "a world asked again": (RIGHT | {"infeasible": "retry"}, "missing a second later too"),
    "a key against a rule": (RIGHT | {"not_allowed": "ask"}, "a key does not change the rule"),
    "a wrong address again": (RIGHT | {"bad_argument": "retry"}, "refused 5 times"),
    "a card forgotten": (without("timeout"), "Not every card has a move: 'timeout'"),
    "a list": (list(RIGHT.values()), "This is a list"),
}
SLIPS = [
    ({"teapot": "retry"}, "There is no card 'teapot'"),
    ({"refused": "repiar"}, "'repiar' is no move. There are: retry, repair, ask, hand over"),
    ({"refused": 1}, "1 is no move"),
    ({"refused": {"retry"}}, "{'retry'} is no move"),
]


def test_the_right_moves_pass_and_are_counted_in_the_ledger(tmp_path: Path) -> None:
    """Seven mails, and one card with a person."""
    note = ask(lesson04.sorting, tmp_path, RIGHT)
    assert note.mark == State.PASS
    assert [row["mails an hour later"] for row in note.table.rows] == [1] * 7 + [0]


@pytest.mark.parametrize("name", WRONG_MOVES)
def test_known_wrong_moves_are_told_what_comes_of_them(name: str, tmp_path: Path) -> None:
    """Each gets its own message and the first hint."""
    moves, message = WRONG_MOVES[name]
    note = ask(lesson04.sorting, tmp_path, moves)
    assert note.mark == State.TRY_AGAIN
    assert message in " ".join(note.lines)
    assert note.lines[-1].startswith("Hint 1 of 4")
    others = {other for _, other in WRONG_MOVES.values() if other != message}
    if name != "a 500 retried":  # the same words as for all of them, about another card
        assert not [other for other in others if other in " ".join(note.lines)]


@pytest.mark.parametrize(("slip", "message"), SLIPS)
def test_a_misspelt_card_or_move_takes_no_hint(slip, message: str, tmp_path: Path) -> None:
    """It says nothing about the task, so the ladder stays where it is."""
    is_a_slip(ask(lesson04.sorting, tmp_path, RIGHT | slip), message)


def test_moves_that_are_not_made_yet_are_counted(tmp_path: Path) -> None:
    """Three dots are no answer."""
    assert ask(lesson04.sorting, tmp_path, all_of(...)).lines[0].startswith("0 of 8 cards")
    note = ask(lesson04.sorting, tmp_path, RIGHT | {"refused": ...})
    assert (note.mark, note.lines[0]) == (State.TODO, "7 of 8 cards are sorted so far.")


# -- the second exercise ---------------------------------------------------------------------------


def answer(
    *,
    falsy: bool = False,
    always: tuple[int, ...] = (429, 503),
    reading: tuple[int, ...] = (500, 502, 504),
    refused: tuple[type, ...] = (ConnectionRefusedError, httpx.ConnectError),
    passing: tuple[type, ...] = (OSError, httpx.TransportError),
    looks: bool = True,
):
    """Return an answer to the exercise: the worked one, or one with these faults."""

    def rule(error, effect):
        reads = not effect or not looks
        response = getattr(error, "response", None)
        there = bool(response) if falsy else response is not None
        status = response.status_code if there else getattr(error, "status", None)
        if status is not None:
            return status in always or (reads and status in reading)
        if isinstance(error, refused):
            return True
        return isinstance(error, passing) and reads

    return rule


def by_text(error, effect):
    """Judge by the message."""
    return any(number in str(error) for number in ("429", "503")) or answer()(error, effect)


def by_durakit(error, effect):
    """Ask the kit's own classifier."""
    return classify(error, effect=effect, now=0.0).kind is FailureKind.TRANSIENT


def nothing_said(error, effect):
    """Forget to return."""


def careless(error, effect):
    """Take every error for an answer."""
    return error.response.status_code in (429, 503)


def yes_and_no(error, effect):
    """Answer with a number."""
    return int(answer()(error, effect))


ALL = (Exception,)

WRONG_RULES = {
    "retry everything": (lambda error, effect: True, "Your rule retries everything"),
    "retry nothing": (lambda error, effect: False, "Your rule retries nothing"),
    "the truth of a response": (answer(falsy=True), "Look at bool(response)"),
    "by type": (lambda error, effect: retries_by_type(error), "it never looks at effect"),
    "no look at effect": (answer(looks=False), "it never looks at effect"),
    "every timeout": (
        answer(refused=(ConnectionRefusedError, httpx.TransportError)),
        "No answer in time, the tool sends mail, and you send again",
    ),
    "every connection error": (
        answer(refused=(ConnectionError, httpx.ConnectError)), "torn down after the request",
    ),
    "every 500": (answer(always=(429, 503, 500)), "It may have come after the work"),
    "every answer": (
        answer(always=(429, 503, 400, 404, 422)), "You send the same wrong request again",
    ),
    "by the text": (by_text, "is the number of an order"),
    "every error when reading": (answer(passing=ALL), "A condition is missing in the world"),
    "a wrong shape when reading": (
        answer(passing=(OSError, httpx.TransportError, ValueError)), "A mistake in the program",
    ),
    "no limits": (answer(always=()), "429 and 503 are refusals in front of the work"),
    "not the client's refusal": (
        answer(refused=(ConnectionRefusedError,)), "httpx.ConnectError",
    ),
    "no OSError": (answer(passing=(httpx.TransportError,)), "A TimeoutError is an OSError"),
    "no 500 when reading": (answer(reading=()), "only reads may ask again after a 500"),
    "no reset when reading": (
        answer(passing=(TimeoutError, httpx.TransportError)), "where the connection was torn down",
    ),
    "no return": (nothing_said, "yours says nothing: is there a return?"),
    "a number": (yes_and_no, "yours says 1"),
    "an error of its own": (careless, "Your code raised AttributeError"),
    "an answer": (True, "You handed over an answer"),
    "a text": ("may_retry", "Its type is str"),
    "one parameter": (lambda error: True, "called with an error and effect"),
}  # fmt: skip


@pytest.mark.parametrize("rule", [answer(), by_durakit], ids=["the worked answer", "durakit's own"])
def test_a_right_rule_passes(rule, tmp_path: Path) -> None:
    """Thirty-two answers about sixteen real errors; and the kit's classifier is one of them."""
    note = ask(lesson04.may_retry, tmp_path, rule)
    assert note.mark == State.PASS, note.text()
    assert "32 answers about 16 real errors" in note.text()


@pytest.mark.parametrize("name", WRONG_RULES)
def test_a_known_wrong_rule_is_told_what_is_wrong_with_it(name: str, tmp_path: Path) -> None:
    """Each kind of mistake gets its own message, and the first hint."""
    rule, message = WRONG_RULES[name]
    note = ask(lesson04.may_retry, tmp_path, rule)
    assert note.mark == State.TRY_AGAIN
    said = " ".join(note.lines[:-1])
    assert message in said
    assert note.lines[-1].startswith("Hint 1 of 4")
    others = {other for _, other in WRONG_RULES.values() if other != message}
    assert not [other for other in others if other in said]


def test_a_wrong_rule_is_shown_where_it_is_wrong(tmp_path: Path) -> None:
    """The trap shows in one line: the 401 of requests, for the tool that reads."""
    note = ask(lesson04.may_retry, tmp_path, answer(falsy=True))
    assert [tuple(row.values()) for row in note.table.rows] == [
        ("401 of requests", "only reads", "retry", "no")
    ]


def test_the_stub_is_a_question_and_its_trap_is_real(tmp_path: Path) -> None:
    """Three dots are no answer; and filled without a look at the lines above, it does not pass."""
    source = cell_of(HERE.read(), "answer").source.rpartition("\n\n\n")[0]
    names: dict[str, object] = {}
    exec(source, names)  # noqa: S102 - our own cell
    assert ask(lesson04.may_retry, tmp_path, names["may_retry"]).mark == State.TODO
    fills = (
        "status in (429, 503) or (status >= 500 and not effect)",
        "(ConnectionRefusedError, httpx.ConnectError)",
        "isinstance(error, NETWORK) and not effect",
    )
    for fill in fills:
        source = source.replace("...", fill, 1)
    exec(source, names)  # noqa: S102 - as above
    assert "bool(response)" in ask(lesson04.may_retry, tmp_path, names["may_retry"]).text()


def test_the_samples_are_real_errors_of_six_libraries_or_more() -> None:
    """Raised by the thing itself; and written down by hand, as the classifier judges them too."""
    found = list(samples())
    assert len(found) == 16
    assert {type(sample.error).__module__.partition(".")[0] for sample in found} >= {
        "builtins", "durakit", "httpx", "requests", "pydantic_core",
    }  # fmt: skip
    falsy = next(sample.error for sample in found if sample.group == "falsy")
    assert isinstance(falsy, requests.HTTPError)
    assert not falsy.response
    assert isinstance(falsy, OSError)
    for sample in found:
        judged = [by_durakit(sample.error, effect=effect) for effect in (True, False)]
        assert judged == [sample.with_effect, sample.reading]


def test_the_policy_in_force_is_shown_with_its_defaults() -> None:
    """Nothing declared: one attempt for the tool with an effect, three for the one that reads."""

    @dk.tool(name="lesson04 post")
    def post(call):
        return None

    @dk.tool(name="lesson04 look", effect="none")
    def look(call):
        return None

    rows = lesson04.policies(post, look).rows
    assert [(row["effect"], row["attempts"]) for row in rows] == [("opaque", 1), ("none", 3)]


def test_the_title_names_its_section() -> None:
    """21.4, with one mistake of 21.8."""
    (title,) = tagged(HERE.read(), "title")
    assert "chapter 21.4" in title.source

"""Fault cards: each is raised by a real thing, and each claim on it is counted in the ledger."""

import errno
import re
import shutil
import threading
from html.parser import HTMLParser
from pathlib import Path

import httpx
import ipywidgets
import pytest
import requests
from pydantic import ValidationError

import durakit as dk
from durakit.failures import FailureKind, classify
from durakit.lab import lessons
from durakit.lab.faultcards import (
    MOVES,
    POLICIES,
    Card,
    Cell,
    FaultCards,
    act,
    card,
    cards,
    guard,
    judge,
    judge_all,
    judgements,
    play,
    plot_fault_matrix,
    retries_by_type,
    stage,
)
from durakit.mail import MailError

ROOT = Path(__file__).resolve().parent.parent
NOW = dk.ManualClock.START

EIGHT = [
    "rate_limited", "refused", "bad_argument", "not_allowed", "timeout", "error_after",
    "overloaded", "infeasible",
]  # fmt: skip
BESIDE = ["timeout_lost", "timeout_late", "model_says_no"]
FAILURES = [*EIGHT, "timeout_lost", "timeout_late"]


def raised(id: str) -> Exception:
    """Return what the card really raises."""
    try:
        act(id)
    except Exception as error:
        return error
    return pytest.fail(f"{id} raised nothing")


# -- the cards -------------------------------------------------------------------------------------


def test_there_are_eight_cards_and_three_beside_them():
    """In the order in which the lesson tells them."""
    assert [one.id for one in cards()] == EIGHT
    assert [one.id for one in cards(extra=True)] == EIGHT + BESIDE


@pytest.mark.parametrize("id", EIGHT + BESIDE)
def test_a_card_tells_its_story_in_two_sentences_and_advises_for_each_contract(id):
    """And every piece of advice is a move that can be made."""
    shown = card(id)
    assert len(re.findall(r"[.!?](?= |$)", shown.story)) == 2
    assert set(shown.next) == {"none", "idempotent", "queryable", "opaque"}
    assert set(shown.next.values()) <= {*MOVES, "check"}
    assert shown.title
    assert shown.because.endswith(".")


def test_the_deck_is_found_beside_a_learners_copy(tmp_path, monkeypatch):
    """As the customers are: in the checkout, here, or one folder up; else it says where to go."""
    monkeypatch.setattr(lessons, "__file__", str(tmp_path / "a" / "b" / "c" / "lessons.py"))
    (tmp_path / "course" / "my-lessons").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "course" / "my-lessons")
    with pytest.raises(FileNotFoundError, match="open the lesson in your durakit checkout"):
        cards()
    shutil.copytree(ROOT / "data", tmp_path / "course" / "data")
    assert [one.id for one in cards()] == EIGHT
    monkeypatch.chdir(tmp_path / "course")
    assert len(cards(extra=True)) == 11


def test_an_unknown_card_or_move_is_refused_by_its_name():
    """The message lists those there are."""
    with pytest.raises(dk.InvalidField, match=r"card: no card 'teapot'; there are: rate_limited"):
        card("teapot")
    with pytest.raises(dk.InvalidField, match=r"move: 'pray' is none of retry, repair"):
        play("refused", "pray")
    with pytest.raises(dk.InvalidField, match=r"is a sentence: no request was made"):
        play("model_says_no", "retry")


@pytest.mark.parametrize(
    "change", [{"ledger": "2"}, {"kind": "odd"}, {"mood": 1}, {"next": {"x": "y"}}]
)
def test_a_card_with_a_field_that_means_nothing_is_refused(change):
    """The file is read strictly."""
    with pytest.raises(ValidationError):
        Card.model_validate(card("refused").model_dump() | change)


# -- what is raised --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "kind", "facts"),
    [
        ("rate_limited", MailError, {"status": 429, "retry_after": 20}),
        ("refused", ConnectionRefusedError, {"errno": errno.ECONNREFUSED}),
        ("bad_argument", MailError, {"status": 422, "name": "validation_error"}),
        ("not_allowed", requests.HTTPError, {}),
        ("timeout", TimeoutError, {}),
        ("error_after", MailError, {"status": 500}),
        ("overloaded", httpx.HTTPStatusError, {}),
        ("infeasible", dk.Infeasible, {"missing": "a verified sender address"}),
        ("timeout_lost", TimeoutError, {}),
        ("timeout_late", TimeoutError, {}),
    ],
)
def test_a_card_raises_the_real_error_of_the_real_thing(id, kind, facts):
    """By its exact type, with what a caller can read from it."""
    error = raised(id)
    assert type(error) is kind
    assert {name: getattr(error, name) for name in facts} == facts


def test_the_answers_come_from_a_real_server():
    """With a response, a status and a header; and the one of requests is false."""
    error = raised("overloaded")
    assert (error.response.status_code, error.response.headers["Retry-After"]) == (503, "1")
    assert classify(error, effect=True, now=NOW).retry_after == 1.0
    error = raised("not_allowed")
    assert error.response.status_code == 401
    assert not error.response


@pytest.mark.parametrize("id", FAILURES)
def test_the_classifier_agrees_with_the_card(id):
    """With an effect, as the card says; without one, what is unknown may be read again."""
    error, kind = raised(id), card(id).kind
    assert classify(error, effect=True, now=NOW).kind is kind
    reading = FailureKind.TRANSIENT if kind is FailureKind.UNKNOWN else kind
    assert classify(error, effect=False, now=NOW).kind is reading
    row = next(row for row in judgements([card(id)]).rows)
    assert (row["a mail"], row["a reading tool"]) == (kind.value, reading.value)


@pytest.mark.parametrize("id", FAILURES)
def test_the_wire_shows_what_was_raised(id):
    """The words on the card are those of the error: its status and name, or its type."""
    error, wire = raised(id), card(id).wire
    response = getattr(error, "response", None)
    status = getattr(error, "status", None) if response is None else response.status_code
    assert str(status) in wire if status else type(error).__name__ in wire
    if isinstance(error, MailError):
        assert error.name in wire


def test_three_timeouts_look_the_same_to_the_caller_and_differ_in_the_ledger():
    """Same type, same words, and none, one and a later mail."""
    three = ["timeout", "timeout_lost", "timeout_late"]
    errors = [raised(name) for name in three]
    assert len({(type(error), str(error)) for error in errors}) == 1
    assert len({card(name).wire for name in three}) == 1
    assert {card(name).ledger for name in three} == {"0", "1", "later"}


@pytest.mark.parametrize("profile", ["opaque", "queryable", "idempotent"])
@pytest.mark.parametrize("id", FAILURES)
def test_the_ledger_holds_what_the_card_says(id, profile):
    """After the first request, and an hour later."""
    with stage(card(id), profile) as world:
        with pytest.raises((MailError, OSError, httpx.HTTPError, dk.Infeasible)):
            world.send("k" if profile != "opaque" else None)
        now = world.mails()
        world.clock.sleep(3600)
        later = world.mails()
    assert (now, later) == {"0": (0, 0), "1": (1, 1), "later": (0, 1)}[card(id).ledger]


def test_a_models_no_raises_nothing():
    """It is a sentence, and has no kind."""
    assert act("model_says_no") in card("model_says_no").wire
    assert card("model_says_no").kind is None


def test_nothing_is_left_running():
    """No thread and no folder outlives an act; it works on any thread."""
    before = threading.active_count()
    errors: list[Exception] = []
    thread = threading.Thread(target=lambda: errors.extend(map(raised, FAILURES)))
    thread.start()
    thread.join()
    assert len(errors) == len(FAILURES)
    assert threading.active_count() == before
    with stage(card("timeout")) as world:
        folder = world.mailbox.folder
    assert folder is not None
    assert not folder.exists()


# -- one decision ----------------------------------------------------------------------------------

#: (retry, repair, ask, hand over) → mails an hour later, and the verdict's mark.
GAMES = {
    "rate_limited": ("1✓", "0✗", "1△", "0△"),
    "refused": ("1✓", "0✗", "1△", "0△"),
    "bad_argument": ("0✗", "1✓", "0✗", "0△"),
    "not_allowed": ("0✗", "1✓", "0✗", "0△"),
    "timeout": ("2✗", "2✗", "1✓", "1△"),
    "error_after": ("2✗", "2✗", "1✓", "1△"),
    "overloaded": ("1✓", "0✗", "1△", "0△"),
    "infeasible": ("0✗", "0✗", "0✗", "0✓"),
    "timeout_lost": ("1△", "1△", "1✓", "0△"),
    "timeout_late": ("2✗", "2✗", "1✓", "1△"),
}


@pytest.mark.parametrize("id", GAMES)
def test_each_decision_comes_to_what_the_ledger_says(id):
    """Four decisions on each card; only the one that the card advises is right."""
    played = [play(id, move) for move in MOVES]
    assert tuple(f"{game.mails}{game.verdict[0]}" for game in played) == GAMES[id]
    right = [game.move for game in played if game.verdict.startswith("✓")]
    assert right == [card(id).next["idempotent"]]


def test_a_retry_keeps_the_services_waiting_time():
    """The second request of the limited card goes out after its twenty seconds, and gets in."""
    first, second = play("rate_limited", "retry").steps
    assert first.endswith("sent: MailError")
    assert float(second.split()[0]) >= 20.0
    assert second.endswith("email-1")


def test_a_late_mail_is_not_there_when_it_is_asked_for_and_the_key_saves_it():
    """Asked, not there, sent again under its key; and one mail in the end."""
    game = play("timeout_late", "ask")
    assert [step.split("  ")[-1] for step in game.steps] == [
        "sent under the key welcome:42: TimeoutError",
        "asked about the key welcome:42: not there",
        "sent under the key welcome:42: email-1",
    ]
    assert game.mails == 1


def test_the_same_game_is_always_the_same():
    """The waits are drawn with a seed, on virtual time."""
    assert play("refused", "retry") == play("refused", "retry")


# -- a whole policy --------------------------------------------------------------------------------

VAIN4, VAIN2 = "retried in vain 4 times", "retried in vain twice"
ONE, LOST, STOP, OVER = "one mail", "lost", "stopped at once", "handed over"
TWICE, GIVEN = "duplicate", "wrongly given up"

#: Card → what comes of it under each policy, in the order of POLICIES.
WORDS = {
    "rate_limited": (LOST, LOST, LOST, ONE, ONE, ONE),
    "refused": (LOST, ONE, ONE, ONE, ONE, ONE),
    "bad_argument": (STOP, VAIN4, VAIN2, STOP, STOP, STOP),
    "not_allowed": (STOP, VAIN4, VAIN2, STOP, STOP, STOP),
    "timeout": (GIVEN, TWICE, GIVEN, OVER, ONE, ONE),
    "error_after": (GIVEN, TWICE, TWICE, OVER, ONE, ONE),
    "overloaded": (LOST, ONE, ONE, ONE, ONE, ONE),
    "infeasible": (STOP, VAIN4, VAIN2, OVER, OVER, OVER),
    "timeout_lost": (LOST, ONE, LOST, OVER, ONE, ONE),
    "timeout_late": (GIVEN, TWICE, GIVEN, OVER, ONE, ONE),
}


@pytest.fixture(scope="module")
def matrix():
    """Every failure under every policy, really run."""
    return judge_all([card(name) for name in WORDS])


@pytest.mark.parametrize("id", WORDS)
def test_each_cell_comes_to_what_the_ledger_says(id, matrix):
    """The whole matrix, word by word."""
    assert tuple(matrix.cell(id, policy.name).word for policy in POLICIES) == WORDS[id]


def test_durakit_has_no_bad_cell_under_any_contract(matrix):
    """No mail twice, none lost, nothing in vain: at worst a person decides."""
    durable = [cell for cell in matrix.cells if cell.policy.startswith("durakit")]
    assert len(durable) == 3 * len(WORDS)
    assert all(cell.good and cell.mails <= 1 for cell in durable)
    assert all(cell.mails == 1 for cell in durable if cell.word == "one mail")


def test_the_eight_are_judged_where_none_are_named():
    """And the counts are those that the lesson tells."""
    eight = judge_all()
    assert [one.id for one in eight.cards] == EIGHT
    assert eight.count("retry everything", "one mail") == 2
    assert eight.count("retry everything", "duplicate") == 2
    assert eight.count("retry everything", "retried in vain") == 3
    assert eight.count("retry nothing", "lost") == 3
    assert eight.count("retry nothing", "wrongly given up") == 2


@pytest.mark.parametrize(
    ("status", "mails", "tries", "id", "word"),
    [
        ("completed", 2, 2, "timeout", "duplicate"),
        ("needs_decision", 2, 2, "timeout", "duplicate"),
        ("needs_decision", 1, 1, "timeout", "handed over"),
        ("needs_decision", 0, 1, "infeasible", "handed over"),
        ("completed", 1, 3, "refused", "one mail"),
        ("completed", 0, 1, "refused", "lost"),
        ("failed", 1, 1, "timeout", "wrongly given up"),
        ("failed", 0, 1, "bad_argument", "stopped at once"),
        ("failed", 0, 2, "bad_argument", "retried in vain once"),
        ("failed", 0, 3, "not_allowed", "retried in vain twice"),
        ("failed", 0, 9, "infeasible", "retried in vain 8 times"),
        ("failed", 0, 5, "rate_limited", "lost"),
        ("failed", 0, 1, "timeout_lost", "lost"),
    ],
)
def test_a_word_rests_on_the_ledger_first_and_on_the_run_second(status, mails, tries, id, word):
    """More than one mail is a duplicate, whatever the run says of itself."""
    cell = Cell(card(id), "any", status, mails, tries)
    assert cell.word == word
    assert cell.mark == ("✓" if word in ("one mail", "handed over", "stopped at once") else "✗")


def test_the_same_cell_is_always_the_same():
    """Chance is seeded and time is virtual."""
    for policy in POLICIES:
        assert judge("rate_limited", policy) == judge("rate_limited", policy)


# -- by type ---------------------------------------------------------------------------------------


def answered(status: int, client: str) -> Exception:
    """Return what a client raises that is answered so."""
    with guard(status) as url:
        try:
            if client == "requests":
                requests.post(url, timeout=5).raise_for_status()
            else:
                httpx.post(url, timeout=5, trust_env=False).raise_for_status()
        except Exception as error:
            return error
    return pytest.fail("it raised nothing")


@pytest.mark.parametrize(
    ("client", "status", "again"),
    [
        ("httpx", 400, False), ("httpx", 409, False), ("httpx", 429, False), ("httpx", 500, True),
        ("httpx", 503, True), ("requests", 400, True), ("requests", 401, True),
        ("requests", 404, True), ("requests", 422, True), ("requests", 500, True),
    ],
)  # fmt: skip
def test_the_rule_by_type_takes_every_refusal_of_requests_for_no_response(client, status, again):
    """As measured of LangGraph 1.2.11: real responses, judged by their truth value."""
    assert retries_by_type(answered(status, client)) is again


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (TimeoutError(), False),
        (ConnectionRefusedError(), True),
        (ConnectionResetError(), True),
        (requests.ConnectionError(), False),
        (requests.ReadTimeout(), False),
        (httpx.ReadTimeout("x"), True),
        (httpx.ConnectError("x"), True),
        (ValueError(), False),
        (KeyError(), False),
        (RuntimeError(), False),
        (MailError(422, "validation_error", "no"), True),
        (dk.Infeasible("a sender"), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_rule_by_type_excludes_oserrors_and_retries_what_it_does_not_know(error, again):
    """So the time limits of Python and of requests are not retried, and those of httpx are."""
    assert retries_by_type(error) is again


# -- the picture -----------------------------------------------------------------------------------


def test_the_picture_says_each_cell_in_a_word_a_shape_and_a_hatch(matrix):
    """Nothing is told by colour alone, and the table holds exactly what is drawn."""
    plot = plot_fault_matrix(matrix)
    (axes,) = plot.figure().axes
    drawn = [text.get_text() for text in axes.texts]
    assert len(drawn) == len(axes.patches) == len(matrix.cells) == len(plot.rows)
    for text, box, cell in zip(drawn, axes.patches, matrix.cells, strict=True):
        assert text.replace("\n", " ").startswith(f"{cell.mark} {cell.word}")
        assert bool(box.get_hatch()) is not cell.good
    assert [row["what came of it"] for row in plot.rows] == [cell.word for cell in matrix.cells]
    assert list(plot.table().columns) == [
        "card", "policy", "mark", "what came of it", "mails", "attempts",
    ]  # fmt: skip


def test_the_picture_has_an_alternative_text_with_its_numbers():
    """Which policy went wrong how often."""
    plot = plot_fault_matrix(judge_all())
    assert plot.alt.startswith("8 fault cards under 6 policies")
    for told in ("retry nothing 5", "retry everything 6", "durakit, idempotent 0"):
        assert told in plot.alt
    assert plot.png().startswith(b"\x89PNG")


def test_the_matrix_is_a_table_too(matrix):
    """One row for each card, one column for each policy."""
    lines = matrix.text().splitlines()
    assert len(lines) == 2 + len(WORDS)
    assert all(policy.name in lines[1] for policy in POLICIES)
    assert matrix.html().count("<tr>") == 1 + len(WORDS)


# -- the widget ------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The words and the tags of some HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words, self.tags = "", []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: object) -> None:
        """Collect the tag."""
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        """Collect the words."""
        self.words += data


@pytest.fixture
def deck() -> FaultCards:
    """The widget."""
    return FaultCards()


def shown(deck: FaultCards) -> str:
    """Return the words of the card on the live page, and of the status line."""
    return Page(deck._body.value).words + Page(deck.status.value).words


def test_the_deck_is_gone_through_with_two_buttons(deck):
    """It stops at both ends, and a new card is face up."""
    deck.previous.click()
    assert deck.model.position == 0
    deck.moves["retry"].click()
    deck.next.click()
    assert (deck.model.position, deck.model.move) == (1, "")
    for _ in range(20):
        deck.next.click()
    assert deck.model.card.id == "timeout_late"
    assert "Card 10 of 10" in shown(deck)
    deck.raise_trouble()


def test_a_decision_turns_the_card_and_shows_the_ledger(deck):
    """Before it, the page says nothing about what is out."""
    while deck.model.card.id != "timeout":
        deck.next.click()
    assert "THE LEDGER" not in shown(deck)
    assert "What do you do?" in shown(deck)
    deck.moves["retry"].click()
    for words in ("2 mails in the ledger", "✗ duplicate", "one mail", "unknown", "email-2"):
        assert words in shown(deck)
    deck.moves["ask"].click()
    assert "1 mail in the ledger. ✓ one mail." in shown(deck)
    assert card("timeout").because in shown(deck)
    deck.raise_trouble()


def test_the_chosen_move_is_told_by_a_shape(deck):
    """Not by the button's colour."""
    assert {button.description[0] for button in deck.moves.values()} == {"○"}
    deck.moves["repair"].click()
    marks = {move: button.description[0] for move, button in deck.moves.items()}
    assert marks == {"retry": "○", "repair": "●", "ask": "○", "hand over": "○"}


def test_every_control_is_a_button_with_a_name_in_words(deck):
    """So the keyboard reaches each one, and a screen reader says what it does."""
    buttons = [deck.previous, deck.next, *deck.moves.values()]
    assert all(isinstance(button, ipywidgets.Button) for button in buttons)
    assert all(button.tooltip and not button.icon and not button.disabled for button in buttons)
    assert 'role="status"' in deck.status.value


def test_what_is_stored_of_the_deck_is_the_same_each_time(deck):
    """No port, no address, no folder, no control; nbval compares it."""
    deck.next.click()
    deck.moves["retry"].click()
    other = FaultCards()
    other.model.position, other.model.move = 1, "retry"
    one, two = deck._repr_mimebundle_(), other._repr_mimebundle_()
    for kind in ("text/plain", "text/html"):
        assert one[kind] == two[kind]
        assert not re.search(r"127\.0\.0\.1|0x[0-9a-f]{6}|durakit-card|<button", one[kind])
    for fact in ("Connection refused", "EVERY CARD", "✓ one mail", "ConnectionRefusedError"):
        assert fact in one["text/plain"]
        assert fact in Page(one["text/html"]).words


def test_a_hostile_card_stays_text(deck):
    """What somebody wrote into the file is shown and never run."""
    nasty = "<img src=x onerror=alert(1)>"
    wild = card("refused").model_copy(
        update={"title": nasty, "story": nasty, "wire": nasty, "because": nasty}
    )
    deck.model.deck = (wild, *deck.model.deck[1:])
    deck.model.move = "retry"
    assert "img" not in Page(deck.model.html()).tags
    assert "img" not in Page(deck._body.value).tags
    assert nasty in Page(deck._body.value).words


def test_the_deck_can_be_used_from_another_thread(deck):
    """Callbacks may run on any; everything was played beforehand."""

    def use() -> None:
        deck.next.click()
        deck.moves["ask"].click()

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    deck.raise_trouble()
    assert "1 mail in the ledger" in shown(deck)


def test_a_decision_that_there_is_not_is_refused(deck):
    """The model is checked as a field is."""
    with pytest.raises(dk.InvalidField, match="move"):
        deck.model.move = "pray"

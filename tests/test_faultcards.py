"""Fault cards: each is raised by a real thing, and each claim on it is counted in the ledger."""

import errno
import re
import shutil
import threading
from pathlib import Path

import httpx
import pytest
import requests
from pydantic import ValidationError

import durakit as dk
from durakit.failures import FailureKind, classify
from durakit.lab import lessons
from durakit.lab.faultcards.cards import Card, act, card, cards, judgements, stage
from durakit.lab.faultcards.play import MOVES, play
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

"""The deck of fault cards: two buttons, four decisions, and what is in the ledger then."""

import re
import threading

import ipywidgets
import pytest
from pages import Page

import durakit as dk
from durakit.lab.faultcards.cards import card
from durakit.lab.faultcards.deck import FaultCards


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


def test_each_promise_is_said_in_words(deck):
    """A learner who has never met the word "none" reads what it promises."""
    deck.moves["retry"].click()
    rows = deck.model.back().tables[-1].rows
    assert [row["the service"].partition(": ")[0] for row in rows] == list(deck.model.card.next)
    assert rows[0]["the service"] == "none: the call changes nothing outside"
    for row in rows:
        assert len(row["the service"].partition(": ")[2].split()) >= 3
        assert row["the service"] in shown(deck)


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

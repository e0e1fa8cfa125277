"""Text for people: values in words, whatever their type is called."""

import pytest

from durakit.lab.html import LONGEST_CELL, kind_of


@pytest.mark.parametrize(
    ("value", "words"),
    [(7, "an int"), ("x", "a str"), (OSError(), "an OSError"), ([], "a list"), (None, "None")],
)
def test_a_type_has_its_article(value, words):
    """An error about an answer reads like a sentence: This is an int."""
    assert kind_of(value) == words


def test_a_hostile_name_of_a_type_stays_one_short_line():
    """A learner may call a class as they like."""
    words = kind_of(type("Odd\n" * 99, (), {})())
    assert "\n" not in words
    assert len(words) <= LONGEST_CELL + len("an ")

"""Text for people: what somebody else wrote stays text, and reads like a sentence."""

import pytest

from durakit.lab.html import LONGEST_CELL, kind_of, sentence


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


def test_words_between_backticks_are_code_and_all_else_is_only_text():
    """A hint names a command as Markdown does; what somebody else wrote stays text in it."""
    assert sentence("`uv run` makes <one>.") == "<code>uv run</code> makes &lt;one&gt;."
    assert sentence("`<img src=x onerror=alert(1)>`") == (
        "<code>&lt;img src=x onerror=alert(1)&gt;</code>"
    )
    assert sentence("a lone ` stays") == "a lone ` stays"
    assert sentence('`" onload="x`') == "<code>&quot; onload=&quot;x</code>"

"""What the tests of single lessons share: a lesson played, its words held to what is so, a check.

``Seen`` is what was so after each cell, by the cell's id, as the lesson's own test looks at it.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lesson_checks as checks

from durakit.lab.exercises import Exercise, Note, Progress, State
from durakit.mail import Mailbox

Names = dict[str, Any]
Seen = dict[str, dict[str, Any]]


def seen_after_each_cell(
    lesson: checks.Lesson, look: Callable[[str, Names], dict[str, Any] | None]
) -> Seen:
    """Play a lesson and keep what ``look(cell, its names)`` returns, where it returns something."""
    seen: Seen = {}

    def keep(cell: str, names: Names) -> None:
        found = look(cell, names)
        if found is not None:
            seen[cell] = found

    checks.play(lesson, keep)
    return seen


def mails_after_each_cell(
    lesson: checks.Lesson, look: Callable[[str, Names, Mailbox], dict[str, Any]]
) -> Seen:
    """The same from the first cell on that has a ``mailbox``, beside what its ledger says."""

    def with_the_ledger(cell: str, names: Names) -> dict[str, Any] | None:
        if "mailbox" not in names:
            return None
        return ledger(names["mailbox"]) | look(cell, names, names["mailbox"])

    return seen_after_each_cell(lesson, with_the_ledger)


def ledger(mailbox: Mailbox) -> dict[str, Any]:
    """Return the world's own word: how many mails, under which keys, after which requests."""
    effects = mailbox.effects()
    return {
        "mails": len(effects),
        "keys": [effect["key"] for effect in effects],
        "requests": [request["outcome"] for request in mailbox.requests()],
    }


def hold(
    lesson: checks.Lesson, seen: Seen, text: str, says: str, cell: str, facts: dict[str, Any]
) -> None:
    """Assert that the cell ``text`` says it in these words, and that it was so after ``cell``."""
    assert says in checks.cell_of(lesson.read(), text).source
    assert {name: seen[cell][name] for name in facts} == facts


def run_twice(lesson: checks.Lesson, *kept: str) -> None:
    """Assert that a second run in one kernel prints the same, and leaves the same in ``kept``."""
    names, first = checks.play(lesson)
    before = [str(names[name]) for name in kept]
    names, second = checks.play(lesson, names=names)
    assert (second, [str(names[name]) for name in kept]) == (first, before)


def is_a_slip(note: Note, message: str) -> None:
    """Assert that an answer is told ``message``, as a slip of the hand that uses up no hint."""
    assert note.mark == State.TRY_AGAIN
    assert message in note.lines[0]
    assert note.lines[-1] == "That is a slip and not a wrong answer: it uses up no hint."


def ask(task: Exercise, folder: Path, *answer: object) -> Note:
    """Check an answer with a progress of its own."""
    return replace(task, progress=Progress(folder)).check(*answer)

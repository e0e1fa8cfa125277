"""Lesson 03 as a learner meets it: its parts, its numbers against the ledger, its exercise."""

import re
from pathlib import Path

import lesson_checks as checks
import pytest
from lesson_checks import cell_of, tagged
from lesson_play import Names, Seen, ask, hold, mails_after_each_cell, run_twice

import durakit as dk
from durakit.lab import lesson03
from durakit.lab.agent import SAVE_PLACES
from durakit.lab.exercises import State
from durakit.mail import Mailbox

HERE = checks.LESSONS["03"]
ADA, BELA = "ada@example.org", "bela@example.org"


# -- its numbers -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played() -> Seen:
    """After each cell: the ledger's word, the model's bill, the run's status."""

    def look(_name: str, names: Names, mailbox: Mailbox) -> dict[str, object]:
        rt, run = names["rt"], names.get("run")
        return {
            "Ada": len(mailbox.inbox(to=ADA)),
            "Bela": len(mailbox.inbox(to=BELA)),
            "bill": len(names["desk"].model.bill),
            "cents": sum(row["cents"] for row in names["desk"].model.bill),
            "runs": len(rt.runs()),
            "items": rt.store.keys("wishes"),
            "status": run.status if run is not None and rt.durable and len(rt.runs()) else None,
            "rows": list(names.get("rows", ())),
        }

    return mails_after_each_cell(HERE, look)


@pytest.mark.parametrize(
    ("text", "says", "cell", "facts"),
    [
        ("q1", "Five decisions, four tool calls, one end: ten checkpoints", "agent", {"bill": 5}),
        ("e2", "The state goes back; the inbox does not rewind", "travel2", {"Ada": 1}),
        ("e3", "nothing went out", "fork3", {"Ada": 1, "requests": ["delivered"]}),
        ("e3", "The model was asked again", "fork3", {"bill": 7}),
        ("e3b", "One new key, one new mail: Bela's", "fork3b", {"Ada": 1, "Bela": 1}),
        (
            "e3b",
            "`case-7:welcome:42`",
            "fork3b",
            {"keys": ["case-7:welcome:42", "case-7:welcome:43"]},
        ),
        ("q4", "Without a crash the task takes five model calls", "agent", {"bill": 5}),
        ("e4", "one mail, whatever the save place", "places4", {"Ada": 1, "bill": 9}),
        ("e4", "it forgets what was spent", "spent4", {"cents": 35}),
        ("e4c", "Ada has two mails", "mistake4", {"Ada": 2, "status": "needs_decision"}),
        ("e4c", "two operations", "mistake4", {"keys": ["call_4_1", "call_5_1"]}),
        ("e5", "all are gone with the process. The mail is not", "memory5", {"runs": 0, "Ada": 1}),
        ("e6b", "pruned with all its checkpoints", "levels6", {"runs": 0, "items": ["42"]}),
    ],
)
def test_a_number_in_the_text_is_the_ledgers(text, says, cell, facts, played) -> None:
    """What the lesson claims in words is what the world's own record says at that place."""
    hold(HERE, played, text, says, cell, facts)


def test_the_table_of_save_places_goes_from_little_to_much(played) -> None:
    """Fewer checkpoints, more of the model's work, and one mail in each row."""
    rows = played["places4"]["rows"]
    assert [row["save place"] for row in rows] == list(SAVE_PLACES)
    assert [row["checkpoints"] for row in rows] == [10, 6, 5, 3, 1]
    assert [row["model calls"] for row in rows] == [5, 5, 6, 7, 9]
    assert {row["mails"] for row in rows} == {1}
    table = cell_of(HERE.read(), "q4").source
    assert re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE) == list(SAVE_PLACES)


def test_running_the_whole_lesson_twice_in_one_kernel_shows_the_same() -> None:
    """No cell depends on what an earlier run of the notebook has left."""
    run_twice(HERE, "rows")


# -- its exercise ----------------------------------------------------------------------------------


def by_round(before, after):
    """Save where the last tool of a round is done: the worked answer."""
    return before.stage == "act" and after.stage == "think"


@pytest.mark.parametrize(
    "rule",
    [by_round, lambda before, after: after.stage == "think" and not after.pending],
    ids=["the worked answer", "another way to say it"],
)
def test_a_right_rule_passes(rule, tmp_path: Path) -> None:
    """Any rule that fulfils both wishes, however it is written."""
    note = ask(lesson03.save_place, tmp_path, rule)
    assert note.mark == State.PASS
    assert "the key's" in note.text()


def forgets_to_return(before, after):
    """No return."""
    by_round(before, after)


def changes_the_state(before, after):
    """Resets the budget on the way."""
    after.budget.used.turns = 0
    return True


class EverySecond:
    """Counts, so that it has a memory of its own."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, before, after):
        """Say True every second time."""
        self.asked += 1
        return self.asked % 2 == 0


WRONG = {
    "every": (SAVE_PLACES["every"], "With one mail your rule writes 10 checkpoints"),
    "after each decision": (
        SAVE_PLACES["after_model"],
        "With one mail your rule writes 6 checkpoints",
    ),
    "after each tool": (SAVE_PLACES["after_tool"], "With one mail it holds"),
    "milestones": (SAVE_PLACES["milestones"], "Some of your checkpoints are too far apart"),
    "only at the end": (SAVE_PLACES["only_at_end"], "Your rule never says True"),
    "no return": (forgets_to_return, "says nothing: is there a return?"),
    "no bool": (lambda before, after: after.stage, "True or False. Yours says '"),
    "changes the state": (changes_the_state, "changes the state it is shown"),
    "has a memory": (EverySecond(), "has a memory of its own"),
    "one parameter": (lambda state: True, "called with two states, before and after"),
    "raises": (lambda before, after: after.mood == "good", "Your code raised AttributeError"),
    "a name": ("after_tool", "is the name of a place"),
    "an answer": (True, "You handed over an answer"),
    "a machine": (dk.machine(by_round, state=lesson03.AgentState, name="m"), "over a machine"),
    "a number": (3, "Its type is int"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_known_wrong_rule_is_told_what_is_wrong_with_it(name: str, tmp_path: Path) -> None:
    """Each gets its own message and the first hint, and no assertion of ours."""
    answer, message = WRONG[name]
    note = ask(lesson03.save_place, tmp_path, answer)
    assert note.mark == State.TRY_AGAIN
    assert message in note.text()
    assert note.lines[-1].startswith("Hint 1 of 4")
    assert not any(other in note.text() for n, (_, other) in WRONG.items() if other != message), (
        "a message of another mistake"
    )


def test_three_dots_are_no_answer(tmp_path: Path) -> None:
    """The stub asks for a condition."""
    assert ask(lesson03.save_place, tmp_path, lambda before, after: ...).mark == State.TODO


def test_the_lesson_covers_both_sections() -> None:
    """21.2 and 21.3: its title says so."""
    (title,) = tagged(HERE.read(), "title")
    assert "chapter 21.2 and 21.3" in title.source


# -- what its cells lean on ------------------------------------------------------------------------


def test_a_hostile_text_in_a_state_stays_text(tmp_path: Path) -> None:
    """What the model says goes through the one escaping helper."""
    mailbox, runtime, desk = lesson03.new_desk(tmp_path / "hostile")
    state = desk.start
    state.messages[0].text = "<script>alert('x')</script>"
    shown = lesson03.inbox_beside(state, mailbox).html()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    mailbox.close()
    runtime.close()

"""The frame of a lesson: it counts by itself, and asks for an answer of one kind or another."""

import importlib
import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import lesson_checks as checks
import numpy as np
import pytest
from lesson_checks import tagged

from durakit.lab import exercises, lesson09
from durakit.lab.clinic import ward as clinic
from durakit.lab.exercises import Exercise, Progress, State
from durakit.lab.frame import COUNT, ENDS, SECONDS, Choice, Frame, Number, OtherKind

FRAMES: dict[str, Frame] = {
    number: importlib.import_module(f"durakit.lab.lesson{number}").frame
    for number in checks.LESSONS
}
QUESTIONS = [
    pytest.param(number, n, id=f"{number}.{n}")
    for number, frame in FRAMES.items()
    for n in range(1, len(frame.asks) + 1)
]


def task(number: str) -> Exercise:
    """Return an exercise that any answer passes."""
    return Exercise(number, "a task", lambda _: exercises.right("yes"), ())


@pytest.fixture
def frame(tmp_path: Path) -> Frame:
    """A lesson with three predictions and an exercise."""
    asks = (Number(1, 12), Choice("before", "after"), SECONDS)
    return Frame("09", asks, (task("09.4"),), progress=Progress(tmp_path))


def noted(frame: Frame) -> dict[str, list[object]]:
    """Return what the learner's file holds of guesses."""
    path = frame.progress.path
    return json.loads(path.read_text())["predictions"] if path.exists() else {}


# -- the nine lessons ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", FRAMES)
def test_a_lesson_counts_what_its_notebook_has(number: str) -> None:
    """As many kinds as cells that ask for a guess, and as many exercises as cells for an answer."""
    notebook, frame = checks.LESSONS[number].read(), FRAMES[number]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    guesses = [cell for cell in code if cell.source.startswith("predict(")]
    answers = [cell for cell in tagged(notebook, "exercise") if cell.cell_type == "code"]
    checked = [cell for cell in answers if ".check(" in cell.source]
    told = replace(frame, progress=Progress(Path("nowhere"))).end().title
    assert told == (
        f"Lesson {number}: 0 of {len(checked)} exercises passed, "
        f"0 of {len(guesses)} predictions noted."
    )


@pytest.mark.parametrize("number", FRAMES)
def test_a_lesson_begins_in_a_fresh_folder_and_ends_with_its_mark(number: str) -> None:
    """Its first cell gets an empty folder of its own, each time; its last one closes it."""
    module = importlib.import_module(f"durakit.lab.lesson{number}")
    one, other = module.start(), module.start()
    assert one != other
    assert list(one.iterdir()) == list(other.iterdir()) == []
    assert module.end().mark == "■ END"


def test_the_clinic_begins_with_an_empty_scorecard() -> None:
    """What a lesson needs beyond a folder is done first."""
    clinic.admit(2)
    before = lesson09.scorecard().text()
    lesson09.start()
    assert lesson09.scorecard().text() != before
    assert lesson09.scorecard().text().count("○ not examined yet") == 6


@pytest.mark.parametrize(("number", "n"), QUESTIONS)
def test_what_came_out_is_an_answer_of_the_kind_asked_for(number: str, n: int) -> None:
    """Whoever guesses right is never told to guess something else."""
    fact = checks.LESSONS[number].facts[n - 1]
    kind = FRAMES[number].asks[n - 1]
    answer = fact if fact.isidentifier() and fact != "False" else json.loads(fact.lower())
    assert kind.read(answer) == answer


@pytest.mark.parametrize(("number", "n"), QUESTIONS)
def test_a_question_names_the_answers_that_it_admits(number: str, n: int) -> None:
    """The options of a choice stand in its question, and a range that it names is the kind's."""
    words = "\n\n".join(
        cell.source for cell in checks.LESSONS[number].read().cells if cell.cell_type == "markdown"
    )
    (question,) = re.findall(rf"\*\*Predict {number}\.{n}\*\*\s*(.+?)(?=\n\n|\Z)", words, re.DOTALL)
    kind = FRAMES[number].asks[n - 1]
    if isinstance(kind, Choice):
        named = re.findall(r'"(\w+)"|`(\w+)`|\b(\d+)\b', question.rpartition(":")[2])
        assert ["".join(one) for one in named] == [str(option) for option in kind.options]
        return
    assert isinstance(kind, Number)
    assert re.search(
        r"[Hh]ow (many|much|often|long)|[Ww]hich (number|share)|which boundary", question
    )
    stated = re.search(r"from (\d+) to (\d+)", question)
    if stated:
        assert (kind.least, kind.most) == (int(stated[1]), int(stated[2]))


# -- counting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [["09.3"], ["09.5"], ["08.4"], ["09.4", "09.4"]])
def test_an_exercise_that_is_not_numbered_on_is_refused(numbers: list[str]) -> None:
    """A slip of the author is found when the lesson is loaded."""
    with pytest.raises(ValueError, match="exercises: after 3 predictions"):
        Frame("09", (COUNT, COUNT, COUNT), tuple(task(number) for number in numbers))


def test_the_end_counts_what_was_noted_and_passed(frame: Frame) -> None:
    """Of this lesson only, and of both."""
    Exercise("09.4", "a task", lambda _: exercises.right("yes"), (), frame.progress).check(1)
    frame.predict("09.2", "before")
    exercises.predict("08.1", 1, frame.progress)
    assert frame.end().title == "Lesson 09: 1 of 1 exercises passed, 1 of 3 predictions noted."


# -- kinds -----------------------------------------------------------------------------------------

FITTING = [
    (COUNT, 0, 0),
    (COUNT, 2.0, 2),
    (COUNT, np.int64(3), 3),
    (SECONDS, 4, 4),
    (SECONDS, 0.5, 0.5),
    (SECONDS, Fraction(1, 2), 0.5),
    (ENDS, "failed", "failed"),
    (ENDS, " Needs_Decision ", "needs_decision"),
    (Choice(True, False), False, False),  # noqa: FBT003 - two answers
    (Choice(200, 409), 409, 409),
]
OTHER = [
    (COUNT, "two", "a whole number from 0 to 1000, without quotation marks"),
    (COUNT, "2", "a whole number from 0 to 1000, without quotation marks"),
    (COUNT, 2.5, "a whole number from 0 to 1000"),
    (COUNT, -1, "a whole number from 0 to 1000"),
    pytest.param(COUNT, 10**5000, "a whole number from 0 to 1000", id="a long number"),
    (COUNT, True, "a whole number from 0 to 1000"),
    (COUNT, [2], "a whole number from 0 to 1000"),
    (COUNT, 2j, "a whole number from 0 to 1000"),
    (Number(1, 4), 5, "a whole number from 1 to 4"),
    (SECONDS, float("nan"), "a number from 0 to 3600"),
    (SECONDS, float("inf"), "a number from 0 to 3600"),
    (SECONDS, None, "a number from 0 to 3600"),
    (ENDS, "done", '"completed", "failed" or "needs_decision"'),
    (ENDS, 2, '"completed", "failed" or "needs_decision"'),
    (Choice(True, False), 1, "True or False"),  # noqa: FBT003 - two answers
    (Choice(True, False), "False", "True or False"),  # noqa: FBT003 - two answers
    (Choice(200, 409), 500, "200 or 409"),
    (Choice(1, 2), True, "1 or 2"),
]


@pytest.mark.parametrize(("kind", "answer", "kept"), FITTING)
def test_an_answer_of_its_kind_is_kept_in_one_form(kind, answer, kept) -> None:
    """2 and 2.0 are one guess, and so are a word in small and in capital letters."""
    found = kind.read(answer)
    assert found == kept
    assert json.loads(json.dumps(found)) == kept


@pytest.mark.parametrize(("kind", "answer", "asked"), OTHER)
def test_an_answer_of_another_kind_is_told_what_is_asked(kind, answer, asked: str) -> None:
    """In words that name no right answer."""
    with pytest.raises(OtherKind) as told:
        kind.read(answer)
    assert str(told.value) == asked


# -- predictions -----------------------------------------------------------------------------------


def test_a_guess_of_another_kind_is_told_kindly_and_not_noted(frame: Frame) -> None:
    """It is no prediction yet; the next one of the right kind is the first."""
    note = frame.predict("09.1", "seven")
    assert note.text() == (
        "○ TODO  Prediction 09.1: this question asks for a whole number from 1 to 12, without "
        "quotation marks.\nNothing is noted yet: put one in, and run the cell again."
    )
    frame.predict("09.1", 13)
    assert noted(frame) == {}
    assert frame.predict("09.1", 7).mark == "● NOTED"
    assert noted(frame) == {"09.1": [7]}
    assert "you said 7; it came out as 8" in frame.recall("09.1", 8).text()


def test_a_guess_of_the_kind_is_never_graded(frame: Frame) -> None:
    """Every one gets the same words, whatever comes out."""
    marks = {frame.predict("09.1", guess).mark for guess in range(1, 13)}
    assert marks == {"● NOTED"}
    assert noted(frame) == {"09.1": list(range(1, 13))}


def test_three_dots_are_no_prediction_of_any_kind(frame: Frame) -> None:
    """The cell as it ships asks, as before."""
    note = frame.predict("09.2", ...)
    assert (note.mark, noted(frame)) == (State.TODO, {})
    assert "three dots" in note.text()


def test_a_number_that_the_lesson_does_not_have_is_told(frame: Frame) -> None:
    """A digit that was changed by mistake is no other lesson's prediction."""
    for number in ("09.4", 9.1, [1], None):
        said = frame.predict(number, 1).text()
        assert said.endswith("this lesson asks for 09.1, 09.2, 09.3.")
    assert noted(frame) == {}

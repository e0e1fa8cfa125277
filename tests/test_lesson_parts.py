"""What every lesson must be: its parts in one rhythm, and what is stored is what one gets."""

import itertools
from pathlib import Path

import lesson_checks as checks
import pytest
from lesson_checks import cell_of, tagged
from nbformat import NotebookNode

from durakit.sweep import can_fork

LESSONS = [pytest.param(lesson, id=number) for number, lesson in checks.LESSONS.items()]
each_lesson = pytest.mark.parametrize("lesson", LESSONS)


def fresh(lesson: checks.Lesson) -> NotebookNode:
    """The lesson, run from top to bottom in a fresh kernel."""
    if lesson.forks and not can_fork():
        pytest.skip("this platform cannot fork")
    return checks.run_fresh(lesson)


def test_every_notebook_is_a_lesson_of_this_list() -> None:
    """A new lesson is checked like the others."""
    stored = sorted(path.name for path in (checks.ROOT / "notebooks").glob("*.ipynb"))
    assert stored == [lesson.name for lesson in checks.LESSONS.values()]
    solutions = checks.ROOT / "solutions"
    assert stored == sorted(path.name for path in solutions.glob("*.ipynb"))
    assert stored == sorted(path.with_suffix(".ipynb").name for path in solutions.glob("*.md"))


@each_lesson
def test_a_lesson_has_every_part_in_its_order(lesson: checks.Lesson) -> None:
    """Title, goals, first cell, predictions, exercises, takeaway, terms, closing mark."""
    checks.check_parts(lesson)
    checks.check_title_and_takeaway(lesson)
    checks.check_predictions(lesson)


@each_lesson
def test_a_title_names_the_sections_it_covers(lesson: checks.Lesson) -> None:
    """A reader of the chapter finds the lesson, and the other way round."""
    (title,) = tagged(lesson.read(), "title")
    assert "chapter 21." in title.source


@each_lesson
def test_cells_are_short_and_words_are_used(lesson: checks.Lesson) -> None:
    """A cell fits on the screen; every word explained at the end was used before."""
    checks.check_cells(lesson)
    checks.check_words(lesson)


@each_lesson
def test_without_durakit_the_first_cell_says_what_to_do(
    lesson: checks.Lesson, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The wrong kernel is the commonest trouble."""
    checks.check_first_cell(lesson, monkeypatch, capsys)


@each_lesson
def test_a_fresh_run_shows_what_is_stored(lesson: checks.Lesson) -> None:
    """A reader on a web page sees what a learner gets; the stubs only ask."""
    shown = fresh(lesson)
    checks.check_stored_outputs(lesson.read(), shown)
    checks.check_stub(shown, lesson.answers)


@each_lesson
def test_each_comparison_shows_the_fact_that_the_text_explains(lesson: checks.Lesson) -> None:
    """Beside the guess stands what came out."""
    assert checks.facts(lesson, fresh(lesson)) == list(lesson.facts)


@each_lesson
def test_a_solution_is_the_lesson_with_its_answers_worked(lesson: checks.Lesson) -> None:
    """Each exercise has its answer, which the stub does not give away; nothing else is changed."""
    asked, worked = lesson.read(), lesson.build_solution()
    changed = [cell.id for cell in asked.cells if cell.source != cell_of(worked, cell.id).source]
    assert changed == ["title", *lesson.answers]
    assert all("..." in cell_of(asked, name).source for name in lesson.answers)
    assert not any("..." in cell_of(worked, name).source for name in lesson.answers)


@each_lesson
def test_each_worked_answer_is_explained(lesson: checks.Lesson) -> None:
    """Before an answer stands its exercise's number, and why it is so."""
    numbers = itertools.count(lesson.predictions + 1)
    worked = lesson.build_solution()
    for name, number in zip(lesson.answers, numbers, strict=False):
        why = cell_of(worked, f"{name}-before1").source
        heading, _, reasons = why.partition("\n")
        assert heading == f"## Exercise {lesson.number}.{number}, worked"
        assert len(reasons.split()) >= 30


@each_lesson
def test_a_solution_passes(lesson: checks.Lesson) -> None:
    """Built from the lesson it runs in a fresh kernel, is told so, and is stored like that."""
    if lesson.forks and not can_fork():
        pytest.skip("this platform cannot fork")
    checks.check_solution(lesson)


@each_lesson
def test_a_learner_who_does_it_all_finds_it_in_their_copy(
    lesson: checks.Lesson, tmp_path: Path
) -> None:
    """Guesses and passes lie beside their notebooks, and nothing else does."""
    if lesson.forks and not can_fork():
        pytest.skip("this platform cannot fork")
    checks.check_learner(lesson, tmp_path)

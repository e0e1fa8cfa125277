"""The plan of the course: what each lesson asks for, read from the notebooks that ship.

Each notebook holds its questions (``**Predict 01.1** …``), its exercises (the code cells tagged
``exercise``) and, in its stored outputs, what came of the questions and how the exercises are
called.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durakit.lab.html import one_line
from durakit.lab.lessons import Lesson, LessonError, list_lessons

__all__ = ["Plan", "Question", "Task", "read_plans"]


@dataclass(frozen=True)
class Task:
    """One exercise: its number, as in "01.5", and its title (empty: not stored)."""

    number: str
    title: str


@dataclass(frozen=True)
class Question:
    """One prediction: its number, the question, and what came out (None: not stored)."""

    number: str
    text: str
    fact: str | None


@dataclass(frozen=True)
class Plan:
    """What one lesson asks for."""

    number: str
    title: str
    tasks: tuple[Task, ...]
    questions: tuple[Question, ...]


_TITLE = re.compile(r"^# \d\d · (.+)$", re.MULTILINE)

_QUESTION = re.compile(r"\*\*Predict (\d\d\.\d+)\*\*\s*(.+?)(?=\n\s*\n|\Z)", re.DOTALL)

_TASK = re.compile(r"^\S+ [A-Z ]+  Exercise (\d\d\.\d+): ([^\n]+)")

_FACT = re.compile(r"Prediction (\d\d\.\d+): [^\n]*?; it came out as (.*)\.\s*$")


def read_plans(source: Path) -> list[Plan]:
    """Return what each lesson in a folder asks for, in order.

    Raises LessonsNotFound where there is none, and LessonError for one that is no notebook.
    """
    return [_plan(lesson) for lesson in list_lessons(source)]


def _plan(lesson: Lesson) -> Plan:
    try:
        cells = json.loads(lesson.path.read_text(encoding="utf-8"))["cells"]
        words = "\n\n".join(map(_source, (c for c in cells if c["cell_type"] == "markdown")))
        shown = [text for cell in cells for text in _shown(cell)]
        many = sum(_is_task(cell) for cell in cells)
    except OSError as error:
        raise LessonError(f"{lesson.path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise LessonError(f"{lesson.path} is no notebook") from error
    facts = {found[1]: found[2] for text in shown if (found := _FACT.search(text))}
    titles = {found[1]: found[2] for text in shown if (found := _TASK.search(text))}
    heading = _TITLE.search(words)
    questions = tuple(
        Question(number, one_line(text), facts.get(number))
        for number, text in _QUESTION.findall(words)
    )
    # An exercise's number follows those of the lesson's predictions.
    first = len(questions) + 1
    numbers = [f"{lesson.number}.{n}" for n in range(first, first + many)]
    tasks = tuple(Task(number, one_line(titles.get(number, ""))) for number in numbers)
    return Plan(lesson.number, heading[1] if heading else lesson.name, tasks, questions)


def _source(cell: Mapping[str, Any]) -> str:
    return "".join(cell["source"])


def _is_task(cell: Mapping[str, Any]) -> bool:
    return cell["cell_type"] == "code" and "exercise" in cell["metadata"].get("tags", ())


def _shown(cell: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a cell's stored outputs show, as plain text."""
    for output in cell.get("outputs", ()):
        yield "".join(output.get("data", {}).get("text/plain", ""))

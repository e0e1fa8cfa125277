"""How far one learner is: a progress file, laid beside the plan of the course.

A file is read and never touched, whatever is in it. It may have been written by somebody else: its
size is limited, and an error tells nothing of what it holds.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from durakit.lab.classroom.plans import Plan, read_plans
from durakit.lab.exercises import PROGRESS_NAME, Saved, Tried, progress_folder
from durakit.lab.html import Table, one_line
from durakit.lab.lessons import LessonError, LessonsNotFound, copy_beside, find_source

__all__ = [
    "OwnProgress",
    "Standing",
    "UnreadableProgress",
    "own_progress",
    "percent",
    "read_saved",
    "standings",
]


#: No progress file is larger (bytes); the lessons write a few thousand.
LARGEST_FILE: Final = 4_000_000

_ANOTHER_FILE: Final = "is JSON, and no progress file of this course"


class UnreadableProgress(LessonError):
    """A progress file that cannot be used. It stays as it is."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}; the file stays as it is")
        self.why = why


# -- reading a progress file -----------------------------------------------------------------------


def read_saved(path: Path) -> Saved:
    """Return what a progress file holds, without ever touching it.

    Raises UnreadableProgress, whose ``why`` tells the reason and nothing of what is in the file.
    """
    try:
        content = _read_bytes(path)
    except OSError as error:
        raise UnreadableProgress(path, f"cannot be read ({error.strerror})") from error
    if content is None:
        raise UnreadableProgress(path, "is no plain file")
    if len(content) > LARGEST_FILE:
        raise UnreadableProgress(path, f"is larger than {LARGEST_FILE // 1_000_000} MB")
    try:
        saved = Saved.model_validate_json(content)
    except ValidationError as error:
        raise UnreadableProgress(path, _what_is_wrong(error)) from error
    if "version" not in saved.model_fields_set:
        # Each of our files says its version; without one, any `{}` would be a learner.
        raise UnreadableProgress(path, _ANOTHER_FILE)
    return saved


def _read_bytes(path: Path) -> bytes | None:
    """Return the first bytes of a plain file; None for a folder, a pipe or a device."""
    # Without O_NONBLOCK, opening a named pipe would wait for a writer for ever.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags), "rb") as file:  # noqa: PTH123 - of a descriptor
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return None
        return file.read(LARGEST_FILE + 1)


def _what_is_wrong(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        place = re.search(r"at line \d+ column \d+$", first["msg"])
        return f"is damaged: no whole JSON {place[0] if place else ''}".rstrip()
    if first["loc"][:1] == ("version",):
        return "is of another version of durakit"
    return _ANOTHER_FILE


# -- one learner -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """How far a learner is in one lesson."""

    lesson: str
    title: str
    passed: int
    exercises: int
    tries: int
    """answers that did not hold, over the lesson's exercises"""
    predicted: int
    predictions: int


def standings(
    plans: Sequence[Plan], exercises: Mapping[str, Tried], predictions: Mapping[str, Any]
) -> list[Standing]:
    """Return how far a learner is in each lesson of the plan.

    ``exercises``, ``predictions``: what is noted of each, by its number.
    """
    return [_standing(plan, exercises, predictions) for plan in plans]


def _standing(
    plan: Plan, exercises: Mapping[str, Tried], predictions: Mapping[str, Any]
) -> Standing:
    found = [exercises[task.number] for task in plan.tasks if task.number in exercises]
    return Standing(
        plan.number,
        plan.title,
        sum(tried.state == "PASS" for tried in found),
        len(plan.tasks),
        sum(tried.tries for tried in found),
        sum(bool(predictions.get(question.number)) for question in plan.questions),
        len(plan.questions),
    )


@dataclass(frozen=True)
class OwnProgress:
    """A learner's own progress: the file (there or not yet), and each lesson's standing."""

    path: Path
    there: bool
    lessons: tuple[Standing, ...]

    def _sums(self) -> tuple[int, int, int, int]:
        rows = self.lessons
        return (
            sum(row.passed for row in rows),
            sum(row.exercises for row in rows),
            sum(row.predicted for row in rows),
            sum(row.predictions for row in rows),
        )

    def score(self) -> str:
        """Return the score in one sentence. Predictions are told, and never count."""
        passed, exercises, predicted, predictions = self._sums()
        return (
            f"Score: {passed} of {exercises} exercises passed ({percent(passed, exercises)}); "
            f"{predicted} of {predictions} predictions made, which are never graded."
        )

    def text(self) -> str:
        """Return a table of the lessons, the score, and where it is kept."""
        rows = [
            {
                "lesson": f"{row.lesson} {row.title}",
                "exercises": f"{row.passed} of {row.exercises}",
                "tries": row.tries,
                "predictions": f"{row.predicted} of {row.predictions}",
            }
            for row in self.lessons
        ]
        where = "Kept in" if self.there else "Nothing is noted yet; it will be kept in"
        table = Table("YOUR PROGRESS", rows).text()
        return f"{table}\n\n{self.score()}\n{where} {one_line(self.path, 1000)}"

    def form(self) -> dict[str, Any]:
        """Return the same as JSON values."""
        passed, exercises, predicted, predictions = self._sums()
        return {
            "file": str(self.path),
            "there": self.there,
            "passed": passed,
            "exercises": exercises,
            "predicted": predicted,
            "predictions": predictions,
            "lessons": [vars(row) for row in self.lessons],
        }


def own_progress(current: Path | None = None) -> OwnProgress:
    """Return the learner's own progress, from any folder.

    That is the file in the copy that ``current`` (the process's own folder if not given) lies in,
    else in the copy beside the lessons that ship.

    Raises LessonsNotFound where there are no lessons, and UnreadableProgress.
    """
    current = Path.cwd() if current is None else current
    mine = progress_folder(current)
    try:
        source = find_source(current=current)
    except LessonsNotFound:
        if mine is None:
            raise
        source = mine
    path = (mine or copy_beside(source)) / PROGRESS_NAME
    there = os.path.lexists(path)
    saved = read_saved(path) if there else Saved()
    noted = standings(read_plans(source), saved.exercises, saved.predictions)
    return OwnProgress(path, there, tuple(noted))


def percent(part: int, whole: int) -> str:
    """Return a share in whole percent; a dash where there is nothing to have a share of."""
    return f"{100 * part / whole:.0f} %" if whole else "-"

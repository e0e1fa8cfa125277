"""The classroom: how far one learner is, and what a class has done, tried and guessed.

How it works. The lessons that ship are the plan: each notebook holds its questions (``**Predict
01.1** …``), its exercises (the code cells tagged ``exercise``) and, in its stored outputs, what
came of the questions and how the exercises are called. A learner's progress file (see
``exercises``) is laid beside the plan. A class report does so for every progress file in a folder.

Everything here only reads, and only from this machine. The files of a class were written by
others: their size and depth are limited, no link is followed, what they hold is never executed and
never reaches a terminal, a page or a table as it is. A file that cannot be used is listed with the
reason; it never ends a report. Of a learner no more is read than the name of the file or folder,
and what the progress file itself holds.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
import os
import re
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from durakit.lab.exercises import PROGRESS_NAME, Saved, Tried, progress_folder
from durakit.lab.html import Row, Table, h, one_line
from durakit.lab.lessons import (
    COPY_NAME,
    Lesson,
    LessonError,
    LessonsNotFound,
    copy_beside,
    find_source,
    list_lessons,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from durakit.lab.plots import Plot

__all__ = [
    "ClassReport",
    "Histogram",
    "Learner",
    "NotRead",
    "OwnProgress",
    "Plan",
    "Question",
    "Standing",
    "Task",
    "UnreadableProgress",
    "check_target",
    "own_progress",
    "read_class",
    "read_plans",
    "read_saved",
    "standings",
    "write_new",
]

#: No progress file is larger (bytes); the lessons write a few thousand.
LARGEST_FILE: Final = 4_000_000
#: Folders below the class's folder that are looked into.
DEEPEST: Final = 8
#: Bars of one histogram; further answers share one more bar.
MOST_BARS: Final = 12
#: Characters of a guess, and of a learner's name, that are kept.
LONGEST_GUESS: Final = 60


class UnreadableProgress(LessonError):
    """A progress file that cannot be used. It stays as it is."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}; the file stays as it is")
        self.why = why


# -- the plan: what the lessons that ship ask for --------------------------------------------------


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
        return Saved.model_validate_json(content)
    except ValidationError as error:
        raise UnreadableProgress(path, _what_is_wrong(error)) from error


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
    return "is JSON, and no progress file of this course"


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


def standings(saved: Saved, plans: Sequence[Plan]) -> list[Standing]:
    """Return how far a learner is in each lesson of the plan."""
    return [_standing(plan, saved.exercises, saved.predictions) for plan in plans]


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
            f"Score: {passed} of {exercises} exercises passed ({_percent(passed, exercises)}); "
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
    return OwnProgress(path, there, tuple(standings(saved, read_plans(source))))


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


# -- a class ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Learner:
    """One learner: the name of the file or folder, what was tried, and each first guess."""

    name: str
    exercises: Mapping[str, Tried]
    guesses: Mapping[str, str]


@dataclass(frozen=True)
class NotRead:
    """A file that is not in the report, by its path in the class's folder, and why."""

    file: str
    why: str


@dataclass(frozen=True)
class Histogram:
    """The first guesses about one question.

    ``bars``: each answer and its number of learners; what came out is always among them.
    """

    question: Question
    bars: tuple[tuple[str, int], ...]

    @property
    def guessed(self) -> int:
        """How many learners made a guess."""
        return sum(count for _, count in self.bars)

    @property
    def alt(self) -> str:
        """What a picture of it shows, in one sentence."""
        if not self.guessed:
            return f"Prediction {self.question.number}: nobody has made a guess."
        said = "; ".join(f"{answer}: {count}" for answer, count in self.bars)
        fact = "" if self.question.fact is None else f" It came out as {self.question.fact}."
        return (
            f"Bar chart of {self.guessed} guesses about prediction {self.question.number}. "
            f"{said}.{fact}"
        )

    def is_fact(self, answer: str) -> bool:
        """Whether this answer is what came out."""
        return self.question.fact is not None and answer == _canonical(self.question.fact)

    def rows(self) -> list[Row]:
        """Return the numbers: answer, learners, and a word for what came out."""
        return [
            {
                "answer": answer,
                "learners": count,
                "": "came out so" if self.is_fact(answer) else "",
            }
            for answer, count in self.bars
        ]

    def text(self) -> str:
        """Return the question, and a bar of # for each answer."""
        head = f"{self.question.number}  {self.question.text}"
        if not self.bars:
            return f"{head}\n  (no guess yet)"
        most = max(count for _, count in self.bars)
        wide = max(len(answer) for answer, _ in self.bars)
        lines = [
            f"  {answer.ljust(wide)}  {'#' * _length(count, most, 40)} {count}"
            + ("  <- came out so" if self.is_fact(answer) else "")
            for answer, count in self.bars
        ]
        return "\n".join([head, *lines])

    def html(self) -> str:
        """Return a drawn chart with its alternative text, and the numbers below it."""
        numbers = Table("Numbers", self.rows()).html()
        heading = f"<h3>{h(self.question.number)} {h(self.question.text)}</h3>"
        if not self.bars:
            return f"<section>{heading}<p>{h(self.alt)}</p></section>"
        return (
            f"<section>{heading}<figure>{self._drawing()}<figcaption><details>"
            f"<summary>The numbers in this picture</summary>{numbers}</details></figcaption>"
            "</figure></section>"
        )

    def _drawing(self) -> str:
        """Return an SVG in the colours of the page's own text, so that it fits light and dark."""
        most = max(count for _, count in self.bars)
        parts = []
        for at, (answer, count) in enumerate(self.bars):
            y = 26 * at
            fact = self.is_fact(answer)
            words = f"{count}, came out so" if fact else str(count)
            long = _length(count, most, 240)
            parts.append(
                f'<text x="212" y="{y + 18}" text-anchor="end">{h(one_line(answer, 28))}</text>'
                f'<rect x="220" y="{y + 4}" width="{long}" height="18" class="bar"/>'
                f'<text x="{228 + long}" y="{y + 18}">{h(words)}</text>'
            )
        return (
            f'<svg role="img" aria-label="{h(self.alt)}" viewBox="0 0 640 {26 * len(self.bars)}" '
            f'width="640" height="{26 * len(self.bars)}">{"".join(parts)}</svg>'
        )

    def plot(self) -> Plot:
        """Return the same as a picture for a notebook."""
        from durakit.lab.plots import BLUE, INK, Plot  # noqa: PLC0415 - only a notebook draws it

        def draw(axes: Axes) -> None:
            for at, (answer, count) in enumerate(self.bars):
                axes.barh(at, count, color=BLUE, height=0.7)
                note = f" {count}" + ("  came out so" if self.is_fact(answer) else "")
                axes.text(count, at, note, va="center", fontsize=9, color=INK)
            # A dollar sign would begin a formula.
            names = [answer.replace("$", r"\$") for answer, _ in self.bars]
            axes.set_yticks(range(len(names)), names, fontsize=9, color=INK)
            axes.set_ylim(len(self.bars) - 0.4, -0.6)
            axes.set_xlim(0, 1.5 * max([1, *(count for _, count in self.bars)]))
            axes.locator_params("x", integer=True)
            axes.set_xlabel("learners", color=INK)
            axes.set_title(f"Prediction {self.question.number}", loc="left", color=INK)
            axes.spines[["top", "right"]].set_visible(False)

        return Plot(self.alt, tuple(self.rows()), draw, (7.0, 1.2 + 0.36 * len(self.bars)))


def _length(count: int, most: int, room: int) -> int:
    """Return a bar's length; one guess is always seen, and none has no bar."""
    return max(1, round(room * count / most)) if count else 0


@dataclass(frozen=True)
class ClassReport:
    """A class: the plan, its learners in order of their names, and the files that were not read."""

    plans: tuple[Plan, ...]
    learners: tuple[Learner, ...]
    not_read: tuple[NotRead, ...]

    @property
    def tasks(self) -> list[Task]:
        """Every exercise of the course."""
        return [task for plan in self.plans for task in plan.tasks]

    @property
    def questions(self) -> list[Question]:
        """Every prediction of the course."""
        return [question for plan in self.plans for question in plan.questions]

    def learners_table(self) -> Table:
        """Return one row per learner: the score, tries, predictions, and passes per lesson."""
        return Table("LEARNERS", [self._row(learner) for learner in self.learners])

    def _row(self, learner: Learner) -> Row:
        rows = [_standing(plan, learner.exercises, learner.guesses) for plan in self.plans]
        return {
            "learner": learner.name,
            "passed": f"{sum(row.passed for row in rows)} of {len(self.tasks)}",
            "tries": sum(row.tries for row in rows),
            "predictions": f"{sum(row.predicted for row in rows)} of {len(self.questions)}",
            **{row.lesson: f"{row.passed}/{row.exercises}" for row in rows},
        }

    def exercises_table(self) -> Table:
        """Return one row per exercise: who passed, and how many hints they had seen by then."""
        rows = [
            {
                "exercise": f"{form['exercise']} {form['title']}",
                "passed": f"{form['passed']} of {len(self.learners)} "
                f"({_percent(form['passed'], len(self.learners))})",
                "trying": form["trying"],
                "not tried": form["not_tried"],
                "no hint": form["hints"][0],
                **{f"{n} hint{'s' * (n > 1)}": form["hints"][n] for n in (1, 2, 3)},
                "4 or more": form["hints"][4],
            }
            for form in self._exercise_forms()
        ]
        caption = "EXERCISES; the last columns: those who passed, by the hints they had seen"
        return Table(caption, rows)

    def _exercise_forms(self) -> list[dict[str, Any]]:
        forms = []
        for task in self.tasks:
            found = [each.exercises.get(task.number, Tried()) for each in self.learners]
            passed = [tried for tried in found if tried.state == "PASS"]
            # Each answer that did not hold has shown the next hint.
            hints = Counter(min(tried.tries, 4) for tried in passed)
            trying = sum(tried.state != "PASS" and tried.tries > 0 for tried in found)
            forms.append(
                {
                    "exercise": task.number,
                    "title": task.title,
                    "passed": len(passed),
                    "trying": trying,
                    "not_tried": len(found) - len(passed) - trying,
                    "hints": [hints[n] for n in range(5)],
                }
            )
        return forms

    def histogram(self, number: str) -> Histogram:
        """Return the guesses about one question, as in "01.1". Raises KeyError for another."""
        return self._histograms[number]

    @functools.cached_property
    def _histograms(self) -> dict[str, Histogram]:
        charts = {}
        for question in self.questions:
            said = (each.guesses.get(question.number) for each in self.learners)
            counts = Counter(guess for guess in said if guess is not None)
            charts[question.number] = Histogram(question, _bars(counts, question))
        return charts

    def not_read_table(self) -> Table:
        """Return the files that are not in the report, and why."""
        rows = [{"file": each.file, "why": each.why} for each in self.not_read]
        return Table("NOT READ", rows, "(every progress file was read)")

    def text(self) -> str:
        """Return all of it for a terminal."""
        parts = [
            self.learners_table().text(),
            self.exercises_table().text(),
            "PREDICTIONS: the first guess of each learner",
            *(chart.text() for chart in self._guessed()),
            self._without_guess(),
            self.not_read_table().text(),
        ]
        return "\n\n".join(filter(None, parts))

    def _guessed(self) -> list[Histogram]:
        return [chart for chart in self._histograms.values() if chart.guessed]

    def _without_guess(self) -> str:
        silent = [number for number, chart in self._histograms.items() if not chart.guessed]
        return f"No guess yet: {', '.join(silent)}" if silent else ""

    def html(self) -> str:
        """Return all of it as one page: no script, nothing from elsewhere, light or dark."""
        tables = "".join(
            f'<div class="wide" role="region" tabindex="0" aria-label="{h(name)}">'
            f"{table.html()}</div>"
            for name, table in (
                ("Learners", self.learners_table()),
                ("Exercises", self.exercises_table()),
                ("Not read", self.not_read_table()),
            )
        )
        charts = "".join(chart.html() for chart in self._guessed())
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            f"<title>Class report: {len(self.learners)} learners</title><style>{_STYLE}</style>"
            f"</head><body><main><h1>Class report: {len(self.learners)} learners</h1>"
            f"<p>Made on this machine from the learners' progress files. Predictions are never "
            f"graded.</p>{tables}<h2>Predictions: the first guess of each learner</h2>{charts}"
            f"<p>{h(self._without_guess())}</p></main></body></html>\n"
        )

    def csv(self) -> str:
        """Return one row per learner: state and tries of each exercise, and each first guess."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        heads = [f"{task.number} {what}" for task in self.tasks for what in ("state", "tries")]
        writer.writerow(["learner", *heads, *(f"{q.number} guess" for q in self.questions)])
        for each in self.learners:
            found = [each.exercises.get(task.number, Tried()) for task in self.tasks]
            cells = [value for tried in found for value in (tried.state, str(tried.tries))]
            guesses = [each.guesses.get(question.number, "") for question in self.questions]
            writer.writerow([_harmless(value) for value in (each.name, *cells, *guesses)])
        return file.getvalue()

    def form(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "learners": [
                {
                    "learner": each.name,
                    "exercises": {
                        task.number: each.exercises[task.number].model_dump()
                        for task in self.tasks
                        if task.number in each.exercises
                    },
                    "predictions": dict(each.guesses),
                }
                for each in self.learners
            ],
            "exercises": self._exercise_forms(),
            "predictions": [
                {
                    "prediction": histogram.question.number,
                    "question": histogram.question.text,
                    "fact": histogram.question.fact,
                    "answers": dict(histogram.bars),
                }
                for histogram in self._histograms.values()
            ],
            "not_read": [vars(each) for each in self.not_read],
        }


_STYLE: Final = """
:root { color-scheme: light dark; }
body { background: Canvas; color: CanvasText; font: 16px/1.5 system-ui, sans-serif; margin: 0; }
main { max-width: 70rem; margin: 0 auto; padding: 1rem; }
table { border-collapse: collapse; }
th, td { border-bottom: 1px solid GrayText; padding: 2px 12px 2px 0; vertical-align: top; }
.wide { overflow-x: auto; margin: 1rem 0; }
figure { margin: 0; }
svg { max-width: 100%; height: auto; }
svg text { fill: CanvasText; font: 14px system-ui, sans-serif; }
svg .bar { fill: CanvasText; }
"""


#: What begins a formula in a spreadsheet; the last four are the wide forms of the others.
_FORMULA: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def _harmless(value: str) -> str:
    """Return a cell that no spreadsheet takes for a formula."""
    if value.startswith(_FORMULA) and not re.fullmatch(r"[+-]?\d+(\.\d+)?", value):
        return f"'{value}"
    return value


def _bars(counts: Counter[str], question: Question) -> tuple[tuple[str, int], ...]:
    """Return the answers with their counts: numbers in their order, then words by frequency."""
    fact = None if question.fact is None else _canonical(question.fact)
    often = dict(counts.most_common(MOST_BARS))
    if counts and fact is not None:
        often[fact] = counts[fact]
    bars = sorted(often.items(), key=_order)
    others = sum(counts.values()) - sum(often.values())
    if others:
        bars.append((f"({len(counts.keys() - often.keys())} other answers)", others))
    return tuple(bars)


def _order(bar: tuple[str, int]) -> tuple[int, float, str]:
    answer, count = bar
    value = _number(answer)
    return (1, -count, answer) if value is None else (0, value, answer)


def _number(text: str) -> float | None:
    if not re.fullmatch(r"[+-]?\d{1,15}(\.\d{1,15})?", text):
        return None
    return float(text)


def _canonical(text: str) -> str:
    """Return an answer's one form: 4, 4.0 and "4" are the same guess."""
    value = _number(text.strip())
    if value is None:
        return one_line(text, LONGEST_GUESS)
    return f"{value:.0f}" if value.is_integer() else repr(value)


def _in_words(guess: Any) -> str:
    """Return a guess, whatever JSON it is, as one short line."""
    if isinstance(guess, str):
        return _canonical(guess[:1000]) or '""'
    try:
        text = json.dumps(guess) if isinstance(guess, (list, dict)) else str(guess)
    except (ValueError, RecursionError):  # a number too long to be written, or too deep a list
        return f"(a {type(guess).__name__})"
    return _canonical(text[:1000])


# -- reading a class -------------------------------------------------------------------------------


def read_class(folder: Path, plans: Sequence[Plan] | None = None) -> ClassReport:
    """Read every progress file below a folder, in any layout, and write nothing there.

    A learner's name is that of the folder that ``progress.json`` lies in, or of the file where it
    has another name. ``plans``: those of the lessons that ship if not given.

    Raises LessonError where the folder is none or holds no JSON file, and LessonsNotFound.
    """
    plans = read_plans(find_source()) if plans is None else plans
    if not folder.is_dir():
        raise LessonError(f"{folder}: there is no such folder")
    files: list[Path] = []
    not_read: list[NotRead] = []
    for path, why in _found(folder):
        if why is None:
            files.append(path)
        else:
            not_read.append(NotRead(_named(path, folder), why))
    if not files and not not_read:
        raise LessonError(f"{folder}: holds no progress file (a JSON file) at all")
    learners: list[Learner] = []
    for path, name in _names(files, folder).items():
        try:
            learners.append(_learner(name, read_saved(path)))
        except UnreadableProgress as error:
            not_read.append(NotRead(_named(path, folder), error.why))
    learners.sort(key=lambda each: (each.name.casefold(), each.name))
    return ClassReport(tuple(plans), tuple(learners), tuple(not_read))


def _learner(name: str, saved: Saved) -> Learner:
    """Keep of a file what a report needs, so that a thousand large ones fit into memory."""
    exercises = {key[:10]: tried for key, tried in saved.exercises.items()}
    guesses = {key[:10]: _in_words(said[0]) for key, said in saved.predictions.items() if said}
    return Learner(one_line(name, LONGEST_GUESS), exercises, guesses)


def _found(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield each JSON file below a folder, or what is not looked into and why, in order of names.

    Hidden files and folders are passed over. It is a loop with a list and not a recursion, since
    the depth of the folders is somebody else's choice.
    """
    waiting = [(folder, 0)]
    while waiting:
        at, depth = waiting.pop()
        try:
            with os.scandir(at) as listed:
                entries = sorted(listed, key=lambda entry: entry.name, reverse=True)
        except OSError as error:
            yield at, f"cannot be looked into ({error.strerror})"
            continue
        for entry in reversed(entries):
            if entry.name.startswith("."):
                continue
            path = Path(entry.path)
            is_json = path.suffix.lower() == ".json"
            if entry.is_symlink():
                yield path, "is a link, and no link is followed"
            elif not entry.is_dir(follow_symlinks=False):
                if is_json:
                    yield path, None
            elif depth == DEEPEST:
                yield path, f"lies more than {DEEPEST} folders deep"
        folders = (e for e in entries if e.is_dir(follow_symlinks=False) and e.name[0] != ".")
        if depth < DEEPEST:
            waiting += [(Path(entry.path), depth + 1) for entry in folders]


def _named(path: Path, folder: Path) -> str:
    return one_line(path.relative_to(folder).as_posix(), 200)


def _names(files: Sequence[Path], folder: Path) -> dict[Path, str]:
    """Return each file's learner; where two would share a name, both are called by their path."""
    names = {}
    for path in files:
        inside = path.relative_to(folder)
        if path.name == PROGRESS_NAME:
            parts = [part for part in inside.parts[:-1] if part != COPY_NAME]
            names[path] = "/".join(parts) or inside.stem
        else:
            names[path] = inside.with_suffix("").as_posix()
    often = Counter(names.values())
    return {
        path: name if often[name] == 1 else path.relative_to(folder).as_posix()
        for path, name in names.items()
    }


# -- writing a report ------------------------------------------------------------------------------


def check_target(target: Path, folder: Path, *, force: bool) -> None:
    """Refuse to write to a file that is there (unless ``force``), or anywhere into the class.

    Raises LessonError.
    """
    if target.resolve().is_relative_to(folder.resolve()):
        raise LessonError(f"{target}: lies in {folder}, where nothing is written")
    if not target.parent.is_dir():
        raise LessonError(f"{target}: there is no such folder")
    if os.path.lexists(target) and (target.is_dir() or not force):
        hint = "" if target.is_dir() else " (--force replaces it)"
        raise LessonError(f"{target}: is there already{hint}")


def write_new(target: Path, text: str, *, force: bool) -> None:
    """Write a file as a whole, readable by its owner only; never over another without ``force``.

    Raises LessonError.
    """
    part = None
    try:
        number, name = tempfile.mkstemp(prefix=".durakit-", dir=target.parent)
        part = Path(name)
        with open(number, "w", encoding="utf-8", newline="") as file:  # noqa: PTH123 - as above
            file.write(text)
        if not force:
            # Takes the name, and fails where somebody has just taken it.
            target.open("x").close()
        part.replace(target)
    except OSError as error:
        if part is not None:
            with contextlib.suppress(OSError):
                part.unlink()
        raise LessonError(f"{target}: cannot be written ({error.strerror})") from error

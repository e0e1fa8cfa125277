"""What a class has done, tried and guessed: as tables, a page, a CSV and JSON.

What learners wrote never reaches a terminal, a page or a spreadsheet as it is.
"""

from __future__ import annotations

import csv
import functools
import io
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from durakit.lab.classroom.guesses import Histogram, bars_of
from durakit.lab.classroom.plans import Plan, Question, Task
from durakit.lab.classroom.progress import percent, standings
from durakit.lab.exercises import Tried
from durakit.lab.html import Row, Table, h

__all__ = ["ClassReport", "Learner", "NotRead"]


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
        rows = standings(self.plans, learner.exercises, learner.guesses)
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
                f"({percent(form['passed'], len(self.learners))})",
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
            charts[question.number] = Histogram(question, bars_of(counts, question))
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

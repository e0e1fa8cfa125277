"""Exercises that check themselves, predictions that are only kept, and the learner's progress.

A check answers in words, and in one of three states:

    ○ TODO          nothing was answered yet
    △ TRY AGAIN     what is wrong, and the next hint of the ladder; a slip uses up none
    ✓ PASS          what was checked

How it works. A *checker* is a function from the learner's answer to a ``Finding``. ``Exercise``
runs it, keeps what came of it in the progress file, and returns a ``Note``, which a notebook shows.
A check never raises: an error of the learner's code, met inside ``theirs(…)``, is a finding; any
other error is the checker's own, and the note says so without blaming the learner.

The progress file lies beside the learner's notebooks. Outside the learner's copy (in the checkout,
under nbval) it lies in a temporary folder, so that running a lesson leaves the checkout clean.
"""

from __future__ import annotations

import atexit
import inspect
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from durakit.lab.html import Row, Shown, SideBySide, Table, h, kind_of, one_line, sentence
from durakit.lab.lessons import COPY_NAME

__all__ = [
    "Exercise",
    "Finding",
    "LearnerError",
    "Note",
    "Progress",
    "Row",
    "Shown",
    "SideBySide",
    "State",
    "Table",
    "closing",
    "fresh_folder",
    "h",
    "one_line",
    "predict",
    "progress_folder",
    "recall",
    "right",
    "shared_progress",
    "theirs",
    "todo",
    "wrong",
]

PROGRESS_NAME: Final = "progress.json"

#: Errors of a hand that slipped: a name that is not defined says nothing about the task.
SLIPS: Final = (NameError, UnboundLocalError)


# -- showing ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Note(Shown):
    """What an exercise or a prediction answers: a mark, a title, some lines, maybe a table."""

    mark: str
    title: str
    lines: tuple[str, ...] = ()
    table: Table | None = None

    @property
    def passed(self) -> bool:
        """Whether an exercise was passed; so a grader's cell may say ``assert note.passed``."""
        return self.mark == State.PASS

    def text(self) -> str:
        """Return the mark and the title, then the lines, then the table."""
        parts = [f"{self.mark}  {self.title}", *self.lines]
        return "\n".join(parts + ([self.table.text()] if self.table else []))

    def html(self) -> str:
        """Return the same with a bar at its left. The mark is a word and a shape, not a colour."""
        lines = "".join(
            f'<div style="margin-top: 4px">{sentence(line)}</div>' for line in self.lines
        )
        table = f'<div style="margin-top: 8px">{self.table.html()}</div>' if self.table else ""
        return (
            '<div role="status" style="border-left: 4px solid currentColor; padding: 2px 12px; '
            f'margin: 4px 0"><div><b>{h(self.mark)}</b>&ensp;{sentence(self.title)}</div>'
            f"{lines}{table}</div>"
        )


# -- what a checker finds --------------------------------------------------------------------------


class State(StrEnum):
    """How an exercise stands."""

    TODO = "○ TODO"
    TRY_AGAIN = "△ TRY AGAIN"
    PASS = "✓ PASS"  # noqa: S105 - a mark, not a password


@dataclass(frozen=True)
class Finding:
    """What a checker found out: the state, one or more sentences, and what they rest on.

    ``slip``: it is about the typing and not about the task, so it counts as no try.
    """

    state: State
    says: tuple[str, ...]
    table: Table | None = None
    slip: bool = False


def todo(*says: str) -> Finding:
    """There is no answer yet; ``says`` tells what to do."""
    return Finding(State.TODO, says)


def wrong(*says: str, table: Table | None = None, slip: bool = False) -> Finding:
    """The answer does not hold; ``says`` tells where."""
    return Finding(State.TRY_AGAIN, says, table, slip)


def right(*says: str, table: Table | None = None) -> Finding:
    """The answer holds; ``says`` tells what was checked."""
    return Finding(State.PASS, says, table)


class LearnerError(Exception):
    """The learner's own code raised ``error`` while a checker ran it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def theirs(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call the learner's code from a checker, so that its errors are told as the learner's.

    Raises LearnerError for whatever the code raises, except an interrupt from the keyboard.
    """
    try:
        return function(*args, **kwargs)
    except (Exception, SystemExit) as error:
        raise LearnerError(error) from error


@dataclass(frozen=True)
class Exercise:
    """A task with its checker and its ladder of hints.

    ``number``: "01.5", unique in the course. ``checker``: from the answer to a Finding.
    ``hints``: from a nudge to nearly the answer; each TRY AGAIN shows the next one.
    ``progress``: where it is kept; the learner's own file if not given.
    """

    number: str
    title: str
    checker: Callable[..., Finding]
    hints: tuple[str, ...]
    progress: Progress | None = None

    def check(self, *answer: Any, **named: Any) -> Note:
        """Check an answer. Never raises, except for an interrupt from the keyboard."""
        title = f"Exercise {self.number}: {self.title}"
        try:
            finding = self._misuse(answer, named) or self.checker(*answer, **named)
        except LearnerError as raised:
            error = raised.error
            finding = wrong(
                f"Your code raised {_in_words(error)}{_their_line(error)}",
                slip=isinstance(error, SLIPS),
            )
        except SystemExit:
            finding = wrong("Your code asked Python to exit. Leave that out.")
        except Exception as failure:  # noqa: BLE001 - the learner never meets a checker's traceback
            return Note("! CHECKER FAILED", title, _own_failure(failure))
        progress = self.progress or shared_progress()
        tries, trouble = progress.note_exercise(
            self.number, finding.state, counted=not finding.slip
        )
        lines = list(finding.says)
        if finding.slip:
            lines.append("That is a slip and not a wrong answer: it uses up no hint.")
        if finding.state is State.TRY_AGAIN and self.hints and (tries or not finding.slip):
            # After a pass no try is counted, and the ladder stays where it was.
            step = min(max(tries, 1), len(self.hints))
            lines.append(f"Hint {step} of {len(self.hints)}: {self.hints[step - 1]}")
        return Note(finding.state.value, title, (*lines, *trouble), finding.table)

    def _misuse(self, answer: tuple[Any, ...], named: dict[str, Any]) -> Finding | None:
        """What to say where too little or too much was handed over."""
        expected = inspect.signature(self.checker)
        try:
            expected.bind(*answer, **named)
        except TypeError as error:
            names = ", ".join(expected.parameters)
            return wrong(f"Call it as check({names}): {one_line(error)}.", slip=True)
        return None


def _in_words(error: BaseException) -> str:
    """Return an error's type and message, also where its own ``str`` is broken."""
    try:
        message = one_line(error)
    except Exception:  # noqa: BLE001 - a broken message is no message
        message = ""
    return f"{type(error).__name__}: {message or 'no message'}"


def _their_line(error: BaseException) -> str:
    """Return where in the learner's code it happened: the first frame that is not ours."""
    ours = str(Path(__file__).resolve().parent.parent)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if not frame.filename.startswith(ours)]
    return f" (line {lines[0]} of its cell)" if lines else ""


def _own_failure(error: Exception) -> tuple[str, ...]:
    from durakit import __version__  # noqa: PLC0415 - only a failure needs it

    last = traceback.extract_tb(error.__traceback__)[-1]
    python = ".".join(map(str, sys.version_info[:3]))
    place = f"{last.name} ({Path(last.filename).name}, line {last.lineno})"
    report = (
        "Please report it: show this box and the cell with your answer to your teacher, or copy "
        f"both into an issue of the durakit repository (durakit {__version__}, Python {python})."
    )
    return (
        "This is an error of the checker, not of your answer. Nothing was graded.",
        f"It stopped with {_in_words(error)}, in {place}.",
        report,
    )


# -- predictions -----------------------------------------------------------------------------------


def predict(number: str, answer: object, progress: Progress | None = None) -> Note:
    """Keep a prediction. It is never graded: ``recall`` only shows it again beside the facts."""
    title = f"Prediction {number}"
    if answer is ...:
        return Note(State.TODO.value, f"{title}: put your guess in the place of the three dots.")
    kept = _plain(answer)
    trouble = (progress or shared_progress()).note_prediction(number, kept)
    return Note("● NOTED", f"{title}: {one_line(kept)}. It is not graded.", trouble)


def recall(number: str, fact: object, progress: Progress | None = None) -> Note:
    """Show the first prediction of that number beside what really came out."""
    said = (progress or shared_progress()).read().predictions.get(number)
    mine = f"you said {one_line(said[0])}" if said else "you made none"
    return Note("↔ COMPARE", f"Prediction {number}: {mine}; it came out as {one_line(fact)}.")


def _plain(answer: object) -> Any:
    """Return the answer where JSON in UTF-8 can hold it, else its text."""
    try:
        return json.loads(json.dumps(answer, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return one_line(answer)
    except Exception:  # noqa: BLE001 - a broken text, or a number too long to be written
        return f"{kind_of(answer)} that cannot be written"


def closing(
    lesson: str, *, exercises: int, predictions: int, progress: Progress | None = None
) -> Note:
    """Close a lesson: how far the learner came. Its mark tells that the notebook ran to its end."""
    progress = progress or shared_progress()
    saved = progress.read()
    passed = sum(
        found.state == "PASS" for number, found in saved.exercises.items() if _is_of(number, lesson)
    )
    noted = sum(_is_of(number, lesson) for number in saved.predictions)
    where = (
        f"Kept in {PROGRESS_NAME} beside your lessons."
        if progress.lasts
        else "Not kept, because this is not your own copy: `uv run durakit lab` makes one."
    )
    return Note(
        "■ END",
        f"Lesson {lesson}: {passed} of {exercises} exercises passed, "
        f"{noted} of {predictions} predictions noted.",
        (where,),
    )


def _is_of(number: str, lesson: str) -> bool:
    return number.partition(".")[0] == lesson


# -- progress --------------------------------------------------------------------------------------


class Tried(BaseModel):
    """One exercise in the progress file. A pass is never taken back."""

    model_config = ConfigDict(extra="forbid")
    state: Literal["TODO", "TRY_AGAIN", "PASS"] = "TODO"
    tries: int = Field(default=0, ge=0)
    """answers that did not hold before the first pass: also the rung of the hint ladder"""


class Saved(BaseModel):
    """The progress file. ``predictions`` keeps every answer of a number, the first one first."""

    model_config = ConfigDict(extra="forbid")
    version: Literal[1] = 1
    exercises: dict[str, Tried] = {}
    predictions: dict[str, list[Any]] = {}


@dataclass
class Progress:
    """The learner's progress in one JSON file in ``folder``.

    It never stands in the way of a lesson: a file that cannot be read or written is told in the
    note, and a damaged one is kept aside under a name of its own and never lost.
    """

    folder: Path
    lasts: bool = True
    """whether the folder is the learner's own, so that the file outlives this session"""
    _trouble: list[str] = field(default_factory=list)
    _unsaved: Saved | None = None
    _hands_off: bool = False

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / PROGRESS_NAME

    def read(self) -> Saved:
        """Return what is saved; what cannot be read is put aside, and the next note tells it."""
        if self._unsaved is not None:
            return self._unsaved
        try:
            return Saved.model_validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return Saved()
        except ValidationError:
            return self._put_aside()
        except OSError as error:
            return self._leave_alone(f"cannot be read ({error.strerror})")

    def note_exercise(
        self, number: str, state: State, *, counted: bool = True
    ) -> tuple[int, tuple[str, ...]]:
        """Keep how an exercise stands. Returns its failed tries so far, and troubles in words.

        ``counted``: whether a TRY AGAIN is a try.
        """
        saved = self.read()
        tried = saved.exercises.setdefault(number, Tried())
        if state is State.TRY_AGAIN and counted and tried.state != "PASS":
            tried.tries += 1
        if tried.state != "PASS":
            tried.state = state.name  # type: ignore[assignment]  # the names are the literals
        return tried.tries, self._write(saved)

    def note_prediction(self, number: str, answer: Any) -> tuple[str, ...]:
        """Keep a prediction; the same answer again adds nothing. Returns troubles in words."""
        saved = self.read()
        answers = saved.predictions.setdefault(number, [])
        if answers[-1:] != [answer]:
            answers.append(answer)
        return self._write(saved)

    def _write(self, saved: Saved) -> tuple[str, ...]:
        """Replace the file as a whole, so that a crash leaves the old one or the new one."""
        self._unsaved = saved
        if not self._hands_off:
            part = self.path.with_name(f".{PROGRESS_NAME}.{os.getpid()}.part")
            try:
                part.write_text(saved.model_dump_json(indent=2) + "\n", encoding="utf-8")
                part.replace(self.path)
                self._unsaved = None
            except OSError as error:
                self._trouble.append(f"Your progress could not be saved ({error.strerror}).")
        told = tuple(self._trouble)
        self._trouble.clear()
        return told

    def _put_aside(self) -> Saved:
        names = (self.path.with_name(f"progress.damaged-{n}.json") for n in count(1))
        aside = next(name for name in names if not name.exists())
        try:
            self.path.rename(aside)
        except OSError as error:
            return self._leave_alone(f"is damaged and cannot be put aside ({error.strerror})")
        self._trouble.append(f"Your progress file was damaged; it is kept as {aside.name}.")
        return Saved()

    def _leave_alone(self, why: str) -> Saved:
        """Never write over a file that holds something we could not read."""
        self._trouble.append(f"Your progress file {why}. It stays as it is; nothing is added.")
        self._hands_off = True
        self._unsaved = Saved()
        return self._unsaved


def progress_folder(current: Path) -> Path | None:
    """Return the learner's copy that ``current`` lies in, or None outside of one."""
    for folder in (current, *current.parents):
        made_by_us = folder / ".jupyterlab" / "overrides.json"
        if folder.name == COPY_NAME or made_by_us.is_file():
            return folder
    return None


_shared: list[Progress] = []


def shared_progress() -> Progress:
    """Return this process's progress: the learner's own file, else one that ends with it."""
    if not _shared:
        own = progress_folder(Path.cwd())
        _shared.append(Progress(own) if own else Progress(fresh_folder("progress"), lasts=False))
    return _shared[0]


def fresh_folder(name: str) -> Path:
    """Return a new private folder that is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix=f"durakit-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder

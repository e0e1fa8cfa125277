"""The frame of a lesson: its folder, what its predictions ask for, and its last word.

A lesson states once what kind of answer each of its predictions asks for, and which exercises it
has. From that its frame counts: exercises are numbered on after the predictions, so that 03.6 is
the first exercise of a lesson with five predictions.

A kind says what an answer must look like, and never whether one is right: a guess is noted as soon
as it is of the kind, and only then.
"""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from durakit.lab.exercises import Exercise, Note, Progress, State, closing, fresh_folder
from durakit.lab.exercises import predict as keep_prediction
from durakit.lab.exercises import recall as compare_prediction
from durakit.lab.html import LONGEST_CELL, one_line

__all__ = ["COUNT", "ENDS", "SECONDS", "Choice", "Frame", "Kind", "Number", "OtherKind"]


class OtherKind(Exception):
    """An answer is not of the kind that is asked for; its text says what is asked for."""


class Kind(Protocol):
    """What an answer must look like."""

    def read(self, answer: object) -> Any:
        """Return the answer as it is to be noted. Raises OtherKind."""


@dataclass(frozen=True)
class Number:
    """A number from ``least`` to ``most``. The bounds are wide: they are to betray nothing."""

    least: int = 0
    most: int = 1000
    whole: bool = True

    def read(self, answer: object) -> float:
        """Return the number. Raises OtherKind for any other thing, True and not-a-number too."""
        number = math.nan
        if not isinstance(answer, bool) and isinstance(answer, numbers.Real):
            with contextlib.suppress(OverflowError):
                number = float(answer)
        if self.least <= number <= self.most and (number.is_integer() or not self.whole):
            return int(number) if self.whole else number
        asked = f"{'a whole number' if self.whole else 'a number'} from {self.least} to {self.most}"
        raise OtherKind(f"{asked}, without quotation marks" if isinstance(answer, str) else asked)


@dataclass(frozen=True, init=False)
class Choice:
    """One of some values that the question names: words, numbers, or True and False."""

    options: tuple[str | int, ...]

    def __init__(self, *options: str | int) -> None:
        object.__setattr__(self, "options", options)

    def read(self, answer: object) -> str | int:
        """Return the option; small and capital letters are the same. Raises OtherKind."""
        said = answer.strip().lower() if isinstance(answer, str) else answer
        for option in self.options:
            # 1 equals True, and is another answer.
            if type(said) is type(option) and said == option:
                return option
        *most, last = (f'"{o}"' if isinstance(o, str) else str(o) for o in self.options)
        raise OtherKind(f"{', '.join(most)} or {last}")


COUNT: Final = Number()
SECONDS: Final = Number(most=3600, whole=False)
#: How a run may stand when nothing drives it any more.
ENDS: Final = Choice("completed", "failed", "needs_decision")


@dataclass(frozen=True)
class Frame:
    """What stands around the cells of a lesson.

    ``asks``: the kind of answer to each prediction, in order. ``prepare``: what has to be done
    before the lesson begins. ``progress``: the learner's own file if not given.

    Raises ValueError where the exercises are not numbered on after the predictions.
    """

    lesson: str
    asks: tuple[Kind, ...]
    exercises: tuple[Exercise, ...]
    prepare: Callable[[], object] | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        first = len(self.asks) + 1
        expected = [f"{self.lesson}.{first + n}" for n in range(len(self.exercises))]
        found = [exercise.number for exercise in self.exercises]
        if found != expected:
            message = f"exercises: after {len(self.asks)} predictions, {expected} and not {found}"
            raise ValueError(message)

    def start(self) -> Path:
        """Return a fresh folder for everything that this lesson writes; it goes with the kernel."""
        if self.prepare is not None:
            self.prepare()
        return fresh_folder(f"lesson{self.lesson}")

    def predict(self, number: object, answer: object) -> Note:
        """Note a guess if it is of the kind asked for; else say kindly what is asked for."""
        kinds = {f"{self.lesson}.{n}": kind for n, kind in enumerate(self.asks, 1)}
        title = f"Prediction {one_line(number, LONGEST_CELL)}"
        if not isinstance(number, str) or number not in kinds:
            return Note(State.TODO.value, f"{title}: this lesson asks for {', '.join(kinds)}.")
        try:
            guess = answer if answer is ... else kinds[number].read(answer)
        except OtherKind as asked:
            again = "Nothing is noted yet: put one in, and run the cell again."
            return Note(State.TODO.value, f"{title}: this question asks for {asked}.", (again,))
        return keep_prediction(number, guess, self.progress)

    def recall(self, number: str, fact: object) -> Note:
        """Show the first guess of that number beside what really came out."""
        return compare_prediction(number, fact, self.progress)

    def end(self) -> Note:
        """Close the lesson: how far the learner came."""
        exercises, predictions = len(self.exercises), len(self.asks)
        return closing(
            self.lesson, exercises=exercises, predictions=predictions, progress=self.progress
        )

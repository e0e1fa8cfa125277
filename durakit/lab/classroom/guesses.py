"""What a class has guessed about one question: a histogram as text, page and picture.

A guess is any JSON that somebody else wrote; each is made one short line, and numbers that are the
same guess (4, 4.0 and "4") one answer.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from durakit.lab.classroom.plans import Question
from durakit.lab.html import Row, Table, h, kind_of, one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from durakit.lab.plots import Plot

__all__ = ["LONGEST_GUESS", "Histogram", "bars_of", "guess_in_words"]


#: Bars of one histogram; further answers share one more bar.
MOST_BARS: Final = 12

#: Characters of a guess, and of a learner's name, that are kept.
LONGEST_GUESS: Final = 60


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
        from durakit.lab.plots import BLUE, INK, Plot, plain  # noqa: PLC0415 - only a notebook draws it

        def draw(axes: Axes) -> None:
            for at, (answer, count) in enumerate(self.bars):
                axes.barh(at, count, color=BLUE, height=0.7)
                note = f" {count}" + ("  came out so" if self.is_fact(answer) else "")
                axes.text(count, at, note, va="center", fontsize=9, color=INK)
            names = [plain(answer) for answer, _ in self.bars]
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


def bars_of(counts: Counter[str], question: Question) -> tuple[tuple[str, int], ...]:
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


def guess_in_words(guess: Any) -> str:
    """Return a guess, whatever JSON it is, as one short line."""
    if isinstance(guess, str):
        return _canonical(guess[:1000]) or '""'
    try:
        text = json.dumps(guess) if isinstance(guess, (list, dict)) else str(guess)
    except (ValueError, RecursionError):  # a number too long to be written, or too deep a list
        return f"({kind_of(guess)})"
    return _canonical(text[:1000])

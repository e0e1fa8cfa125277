"""Text for people: one escaping helper, and small tables that are plain text and HTML alike.

Every view of the laboratory shows names, subjects and errors that somebody else wrote. ``h`` is the
one way into HTML, and ``one_line`` makes anything a short line without control characters.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = [
    "LONGEST_CELL",
    "LONGEST_SHOWN",
    "Lines",
    "Row",
    "Shown",
    "SideBySide",
    "Table",
    "h",
    "kind_of",
    "one_line",
    "sentence",
]

#: What is shown of an error or a guess, and of a name or key in a table: so many characters.
LONGEST_SHOWN: Final = 300
LONGEST_CELL: Final = 60

Row = Mapping[str, object]


def h(value: object) -> str:
    """Return ``value`` as text that is safe anywhere in HTML. Every piece of ours goes through."""
    return html.escape(str(value), quote=True)


def sentence(words: str) -> str:
    """Return words as safe HTML, with what stands between `backticks` set as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", h(words))


def one_line(value: object, longest: int = LONGEST_SHOWN) -> str:
    """Return ``value`` as one line of text without control characters, cut where it is long."""
    text = " ".join(str(value).split())
    text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def kind_of(value: object) -> str:
    """Return what a value is, with its article: ``a str``, ``an int``; ``None`` is itself."""
    if value is None:
        return "None"
    name = one_line(type(value).__name__, LONGEST_CELL)
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


class Shown:
    """Something a notebook shows: a pure ``text()`` and a pure ``html()``, never anything else."""

    def text(self) -> str:
        """Return what it says, as plain text."""
        raise NotImplementedError

    def html(self) -> str:
        """Return what it says, as HTML."""
        raise NotImplementedError

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> dict[str, str]:  # the arguments are IPython's, and it does its own choosing
        del include, exclude
        return {"text/plain": self.text(), "text/html": self.html()}

    def __str__(self) -> str:
        return self.text()


@dataclass(frozen=True)
class Table(Shown):
    """Rows of the same columns under a caption; ``empty`` is what stands there without rows."""

    caption: str
    rows: Sequence[Row]
    empty: str = "(nothing)"

    def text(self) -> str:
        """Return the caption, the heads and the rows, in columns of even width."""
        if not self.rows:
            return f"{self.caption}\n  {self.empty}"
        heads = list(self.rows[0])
        cells = [
            heads,
            *([one_line(row[head], LONGEST_CELL) for head in heads] for row in self.rows),
        ]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = (
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in cells
        )
        return "\n".join([self.caption, *(f"  {line}" for line in lines)])

    def html(self) -> str:
        """Return a table with a caption and column heads, as a screen reader wants it."""
        caption = (
            '<caption style="text-align: left; caption-side: top; font-weight: bold; '
            f'white-space: nowrap; padding: 4px 0">{h(self.caption)}</caption>'
        )
        if not self.rows:
            return f"<table>{caption}<tbody><tr><td>{h(self.empty)}</td></tr></tbody></table>"
        left = ' style="text-align: left"'
        heads = "".join(f'<th scope="col"{left}>{h(head)}</th>' for head in self.rows[0])
        lines = (
            "".join(f"<td{left}>{h(one_line(cell, LONGEST_CELL))}</td>" for cell in row.values())
            for row in self.rows
        )
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


@dataclass(frozen=True)
class SideBySide(Shown):
    """Tables next to each other, below each other where there is no room."""

    tables: tuple[Table, ...]

    def text(self) -> str:
        """Return the tables one after the other."""
        return "\n\n".join(table.text() for table in self.tables)

    def html(self) -> str:
        """Return the tables in a row that may wrap."""
        parts = "".join(f"<div>{table.html()}</div>" for table in self.tables)
        style = "display: flex; flex-wrap: wrap; gap: 8px 40px; align-items: flex-start"
        return f'<div style="{style}">{parts}</div>'


class Lines(Shown):
    """What a worker has to say, collected in order and shown by the cell that asks for it.

    A ``print`` on another thread lands in whichever cell is running then, or is lost; ``add`` may
    be called on any thread.
    """

    def __init__(self, caption: str, empty: str = "(no line yet)") -> None:
        self.caption, self.empty = caption, empty
        self._lines: list[str] = []

    def add(self, line: object) -> None:
        """Keep one line."""
        self._lines.append(one_line(line))  # one append is one step for every other thread

    def text(self) -> str:
        """Return the caption and the lines so far."""
        return "\n".join(
            [self.caption, *(f"  {line}" for line in list(self._lines) or [self.empty])]
        )

    def html(self) -> str:
        """Return the same as a list."""
        lines = "".join(f"<li>{h(line)}</li>" for line in list(self._lines) or [self.empty])
        return f"<div><b>{h(self.caption)}</b><ul>{lines}</ul></div>"

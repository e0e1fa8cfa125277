"""What lint says: the names of its rules, rows, and the report that they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from durakit.source import short

if TYPE_CHECKING:
    import pandas as pd

NEW_KEY: Final = "a new key for each attempt"
NO_KEY: Final = "the key does not reach the service"
AT_THE_END: Final = "a checkpoint only at the end"
BLIND: Final = "an unknown outcome is sent again"
EVERYTHING: Final = "everything is retried"
NOTHING: Final = "nothing is retried"
ONE_LIMIT: Final = "one layer of timeout"
HIDDEN: Final = "an effect outside of a call"
WHICH_TOOL: Final = "which tool is called"

#: The rules, in the order of a report, within each kind of row.
RULES: Final = (
    AT_THE_END, BLIND, NO_KEY, EVERYTHING, NOTHING, ONE_LIMIT, NEW_KEY, HIDDEN, WHICH_TOOL,
)  # fmt: skip

FOUND: Final = "found"
CLEAR: Final = "clear"
CANNOT_SEE: Final = "cannot see"

T = TypeVar("T")
R = TypeVar("R")

Kind = Literal["found", "clear", "cannot see"]

#: In the order of a report: what is found must not be looked for among what is clear.
_MARKS: Final = {FOUND: "✗", CANNOT_SEE: "?", CLEAR: "✓"}


@dataclass(frozen=True)
class Row:
    """What one rule says about one place."""

    rule: str
    place: str
    """the workflow, machine, tool or function, by its name"""
    line: int | None
    """in the file or cell where it is written; None where no line is meant"""
    kind: Kind
    finding: str
    """in words; empty where the kind is ``clear``"""
    looked_at: str
    """what the answer rests on"""


def rank(row: Row) -> tuple[int, int]:
    """Where a row stands in a report: by its kind, and then by its rule."""
    return list(_MARKS).index(row.kind), RULES.index(row.rule)


@dataclass(frozen=True)
class Report:
    """What lint has to say about ``subject``.

    What is found stands first, then what cannot be seen, then what is clear; within each of the
    three, rows stand in the order of ``RULES``.
    """

    subject: str
    rows: tuple[Row, ...]

    @property
    def found(self) -> tuple[Row, ...]:
        """The rows of mistakes that are written there."""
        return tuple(row for row in self.rows if row.kind == FOUND)

    @property
    def unseen(self) -> tuple[Row, ...]:
        """The rows that say what could not be seen."""
        return tuple(row for row in self.rows if row.kind == CANNOT_SEE)

    def table(self) -> pd.DataFrame:
        """One row for each rule and place: rule, place, line, kind, finding, looked_at."""
        import pandas as pd  # noqa: PLC0415 - pandas is loaded with the first table

        table = pd.DataFrame([asdict(row) for row in self.rows], columns=list(_COLUMNS))
        return table.astype({"line": "Int64"})

    def text(self) -> str:
        """The summary, and one line for each row: mark, rule, place, line, and what was seen."""
        lines = [
            (
                f"{_MARKS[row.kind]} {row.kind}", row.rule, row.place,
                "" if row.line is None else f"line {row.line}",
                f"{row.finding} " * bool(row.finding) + f"(looked at: {row.looked_at})",
            )
            for row in self.rows
        ]  # fmt: skip
        widths = [max((len(line[i]) for line in lines), default=0) for i in range(4)]
        shown = ("  ".join([*map(str.ljust, line[:4], widths), line[4]]).rstrip() for line in lines)
        return "\n".join([self.summary(), *(f"  {line}" for line in shown)])

    def summary(self) -> str:
        """One line: how many rows of each kind."""
        counts = {kind: sum(row.kind == kind for row in self.rows) for kind in _MARKS}
        told = f"{counts[FOUND]} found, {counts[CLEAR]} clear, {counts[CANNOT_SEE]} cannot be seen"
        return f"lint of {self.subject}: {told}"

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<{self.summary()}>"


_COLUMNS: Final = tuple(Row.__dataclass_fields__)


class Findings:
    """The rows so far."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def found(self, rule: str, place: str, line: int | None, says: str, looked_at: str) -> None:
        """A mistake."""
        self.rows.append(Row(rule, place, line, "found", says, short(looked_at)))

    def clear(self, rule: str, place: str, line: int | None, looked_at: str) -> None:
        """Looked at, and nothing to say."""
        self.rows.append(Row(rule, place, line, "clear", "", short(looked_at)))

    def unseen(self, rule: str, place: str, line: int | None, says: str, looked_at: str) -> None:
        """The answer is somewhere else."""
        self.rows.append(Row(rule, place, line, "cannot see", says, short(looked_at)))

    def guarded(self, place: str, look: Callable[[Findings, T], R], at: T) -> R | None:
        """``look(self, at)``; an error of lint's own is one more thing that it could not see."""
        try:
            return look(self, at)
        except Exception as error:  # noqa: BLE001 - code may be written in any way at all
            says = f"lint met an error of its own ({type(error).__name__}), and looked no further"
            self.unseen(WHICH_TOOL, place, None, says, "its source")
            return None

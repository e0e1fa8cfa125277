"""The clinic: its patients, what each is ill with, and the scorecard of a session."""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from durakit.define import Tool, Workflow
from durakit.lab.clinic import patients
from durakit.lab.clinic.examinations import (
    ORDER,
    Examination,
    examine_bookkeeper,
    examine_newsletter,
    examine_orders,
    examine_refund,
    examine_reminder,
    examine_trip,
)
from durakit.lab.clinic.patients import post
from durakit.lab.html import Shown, Table, h
from durakit.linting import (
    AT_THE_END,
    BLIND,
    EVERYTHING,
    NEW_KEY,
    NO_KEY,
    NOTHING,
    ONE_LIMIT,
    RULES,
    lint,
)
from durakit.sweep import sweep

__all__ = ["CASES", "Case", "Source", "admit", "before", "forget", "keep", "scorecard", "seen_by"]


# -- the cases -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A patient: its name, what it is ill with, and how it is examined."""

    number: int
    workflow: Workflow
    parts: tuple[Tool, ...]
    """its tools, which are shown with it"""
    ill_with: str
    rules: tuple[str, ...]
    """the rules of lint that are about this illness"""
    examine: Callable[[Workflow], Examination]
    helpers: tuple[Callable[..., Any], ...] = ()
    """plain functions that are shown with it"""

    @property
    def name(self) -> str:
        """As the patient is called."""
        return self.workflow.name


def _case(
    number: int, workflow: Workflow, parts: tuple[Tool, ...], ill_with: str, *rules: str,
    examine: Callable[..., Examination], args: tuple[Any, ...] = (),
    helpers: tuple[Callable[..., Any], ...] = (),
) -> Case:  # fmt: skip
    def look(at: Workflow) -> Examination:
        return examine(at, *args)

    return Case(number, workflow, parts, ill_with, rules, look, helpers)


_P: Final = patients

CASES: Final[dict[int, Case]] = {
    case.number: case
    for case in (
        _case(
            1, _P.travel_agent, (_P.send_trip,), "a checkpoint only at the end",
            AT_THE_END, examine=examine_trip,
        ),
        _case(
            2, _P.shopper, (_P.send_order,), "trusts in its checkpoints",
            BLIND, NO_KEY, examine=examine_orders, args=(_P.Order(),),
        ),
        _case(
            3, _P.bookkeeper, (_P.send_receipt, _P.send_copy), "retries everything, and nothing",
            EVERYTHING, NOTHING, examine=examine_bookkeeper,
        ),
        _case(
            4, _P.newsletter, (_P.send_news,), "one layer of timeout",
            ONE_LIMIT, examine=examine_newsletter,
        ),
        _case(
            5, _P.cashier, (_P.send_invoice,), "a new key for each attempt",
            NEW_KEY, examine=examine_orders, args=(ORDER,),
        ),
        _case(
            6, _P.refund, (_P.pay_back, _P.write_to), "not known yet",
            *RULES, examine=examine_refund, helpers=(_P.ask_bank, _P.draft),
        ),
        _case(
            7, _P.reminder, (_P.send_reminder,), "believes in a key for ever",
            *RULES, examine=examine_reminder,
        ),
    )
}  # fmt: skip


@functools.cache
def before(number: int) -> Examination:
    """How the patient of that number was when it came in."""
    case = CASES[number]
    return case.examine(case.workflow)


def seen_by(number: int) -> str:
    """Who sees what the patient is ill with: ``lint``, ``sweep``, ``both`` or ``neither``.

    Both are really asked. Lint sees it where one of the rules of this illness has found something;
    the sweep of single crashes, where one of them is not safe.
    """
    case = CASES[number]
    by_lint = any(row.rule in case.rules for row in lint(case.workflow).found)
    report = before(number).sweep or sweep(case.workflow, ORDER, world=post)
    if by_lint:
        return "lint" if report.safe else "both"
    return "neither" if report.safe else "sweep"


# -- the scorecard ---------------------------------------------------------------------------------


_after: dict[int, Examination] = {}

_examined: set[int] = set()


def admit(number: int) -> Examination:
    """Examine the patient of that number as it came in, and put that on the scorecard."""
    _examined.add(CASES[number].number)
    return before(number)


def keep(number: int, examination: Examination) -> None:
    """Put what came of examining a learner's repair on the scorecard. A cure is never taken back.

    Raises KeyError for a number that no patient has.
    """
    held = _after.get(CASES[number].number)
    if held is None or not held.good:
        _after[number] = examination


def forget() -> None:
    """Take everything off the scorecard."""
    _after.clear()
    _examined.clear()


def scorecard() -> Table:
    """Every patient but the last: what found it, how it was, and how its repair is.

    Only what was examined in this session stands on it.
    """
    rows = []
    for number in range(1, 7):
        now = _after.get(number)
        came = before(number) if now is not None or number in _examined else None
        rows.append(
            {
                "patient": f"{number} {CASES[number].name}",
                "found by": "" if came is None else came.found_by,
                "before": "○ not examined yet" if came is None else _in_short(came),
                "after": "○ not repaired yet" if now is None else _in_short(now),
            }
        )
    cured = sum(examination.good for examination in _after.values())
    return Table(f"THE SCORECARD: {cured} of {len(rows)} are well", rows)


def _in_short(found: Examination) -> str:
    """The verdict, and what the ledger says: one cell, since six columns are too narrow to read."""
    return f"{found.verdict}: {found.counted}"


# -- code to look at -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source(Shown):
    """The source of a patient: its tools, and then itself."""

    case: Case

    @property
    def pieces(self) -> list[str]:
        """The source of each part."""
        tools = (part.function for part in self.case.parts)
        functions = [*self.case.helpers, *tools, self.case.workflow.function]
        return [textwrap.dedent(inspect.getsource(function)).rstrip() for function in functions]

    def text(self) -> str:
        """Return the code."""
        return "\n\n\n".join(self.pieces)

    def html(self) -> str:
        """Return the code as it stands in an editor."""
        return f'<pre style="margin: 4px 0; line-height: 1.35">{h(self.text())}</pre>'

"""Lesson 09, the clinic: what its cells show, its exercises, and the checker of its question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from durakit.define import Tool, Workflow
from durakit.faults import CrashAt
from durakit.lab.clinic import examinations
from durakit.lab.clinic import ward as clinic
from durakit.lab.clinic.examinations import ORDER, READERS, YES, four_ways
from durakit.lab.clinic.patients import draw_number, post
from durakit.lab.clinic.repairs import (
    check_bookkeeping,
    check_cash,
    check_refunding,
    check_save_often,
    check_shopping,
    check_subscribing,
)
from durakit.lab.clinic.ward import CASES, Source, scorecard
from durakit.lab.exercises import (
    Exercise,
    Finding,
    Note,
    Table,
    one_line,
    right,
    todo,
    wrong,
)
from durakit.lab.frame import COUNT, ENDS, Frame, Number
from durakit.lab.html import kind_of
from durakit.linting import lint

__all__ = [
    "ORDER",
    "READERS",
    "YES",
    "bookkeeping",
    "cash",
    "draw_number",
    "end",
    "examine",
    "finders",
    "four_ways",
    "frame",
    "keys_after",
    "lint_of",
    "predict",
    "recall",
    "refunding",
    "save_often",
    "scorecard",
    "shopping",
    "show",
    "start",
    "subscribing",
]


# -- what the cells use ----------------------------------------------------------------------------


def show(number: int) -> Source:
    """Return the source of a patient."""
    return Source(CASES[number])


def examine(number: int, most: int = 8) -> Table:
    """Return how a patient came in: every trial, or of many the first ``most`` that are bad.

    From now on it stands on the scorecard.
    """
    found = clinic.admit(number)
    if len(found.trials) <= most:
        return found.table()
    shown = found.bad[:most]
    return Table(
        f"{found.title}: {len(found.bad)} of {len(found.trials)} rows are not well",
        [trial.row for trial in shown],
    )


def keys_after(agent: Workflow, seed: str) -> tuple[int, list[str]]:
    """Crash an agent of the order 42 at ``seed``, and recover it: (mails, keys the post knows)."""
    with examinations.trial(agent) as runtime:
        run = runtime.run(agent, ORDER, id="order-42", crash=CrashAt.parse(seed))
        runtime.resume(run.id)
        remembered = post.keys()  # a table, and no dictionary
        return len(post.inbox()), [row["key"] for row in remembered]


def lint_of(subject: Workflow | Tool) -> Note:
    """Return what lint finds and cannot see, one line for each; what is clear is only counted.

    Without line numbers: those of a patient are of a file that the learner does not see.
    """
    report = lint(subject)
    lines = [
        f"{'✗' if row.kind == 'found' else '?'} {row.place}: {row.rule}: {row.finding}"
        for row in (*report.found, *report.unseen)
    ]
    clear = sum(row.kind == "clear" for row in report.rows)
    told = f"{report.subject}: {len(report.found)} found, {len(report.unseen)} cannot be seen, "
    return Note("⌕ LINT", f"{told}{clear} clear", tuple(lines))


# -- who sees what ---------------------------------------------------------------------------------

ANSWERS: Final = ("lint", "sweep", "both", "neither")


def check_finders(table: object) -> Finding:
    """Check who sees which illness. Lint and the sweep are really asked."""
    if not isinstance(table, Mapping):
        return wrong(f"Hand over the whole table of answers. This is {kind_of(table)}.")
    names = {case.name: number for number, case in CASES.items()}
    missing = [name for name in names if name not in table]
    if missing:
        return wrong(f"The patient {missing[0]!r} is missing in your table.")
    if any(table[name] is ... for name in names):
        left = sum(table[name] is ... for name in names)
        return todo(f"{left} patients are left. Say for each: lint, sweep, both or neither.")
    for name, answer in table.items():
        if name not in names:
            return wrong(f"There is no patient {one_line(name, 40)!r}.", slip=True)
        if answer not in ANSWERS:
            known = ", ".join(ANSWERS)
            return wrong(f"{one_line(answer, 40)!r} is no answer; there are {known}.", slip=True)
    truth = {name: clinic.seen_by(number) for name, number in names.items()}
    off = [name for name in names if table[name] != truth[name]]
    if not off:
        rows = [
            {"patient": name, "ill with": CASES[number].ill_with, "seen by": truth[name]}
            for name, number in names.items()
        ]
        return right(
            "Seven patients, each asked both ways. Read it by columns: code shows what is written, "
            "crashes show what happens, and a promise that is not kept shows in neither.",
            table=Table("Who sees it", rows),
        )
    return wrong(
        f"{len(off)} of {len(names)} do not hold. Look at {off[0]!r}: "
        f"{_why_not(truth[off[0]], str(table[off[0]]))}"
    )


def _why_not(truth: str, said: str) -> str:
    """What was overlooked, in words."""
    by_lint, by_sweep = truth in ("lint", "both"), truth in ("sweep", "both")
    if by_lint and said in ("sweep", "neither"):
        return "it is written in the code, so lint has found it."
    if by_sweep and said in ("lint", "neither"):
        return "there is a crash after which the ledger is wrong, so the sweep has found it."
    if not by_lint and said in ("lint", "both"):
        return "lint has found nothing there: look at what it says it cannot see."
    return "every single crash of the sweep is safe there: it takes faults, or time, to see it."


# -- the exercises ---------------------------------------------------------------------------------

save_often = Exercise(
    "09.6", "the travel agent", check_save_often,
    (
        ("What costs money is an answer of the model. When must the state be saved, so that "
        "none is lost but the last?"),
        "The rule gets the state before and after a transition. What differs, when an answer came?",
        "It may simply say True each time: after every transition. Lesson 03 has finer rules.",
    ),
)  # fmt: skip

shopping = Exercise(
    "09.7", "the shopper", check_shopping,
    (
        "More checkpoints cannot help: the gap lies between the post's act and our note of it.",
        "The post knows keys. Two places must say so: what the tool declares, and what it sends.",
        'effect="idempotent", window=86_400 instead of on_unknown; and key=call.key.',
    ),
)  # fmt: skip

bookkeeping = Exercise(
    "09.8", "the bookkeeper", check_bookkeeping,
    (
        "Three failures, three answers: come again later; ask under the same key; tell somebody.",
        "The runtime tells them apart by itself, if the tool lets the errors out and has attempts.",
        ("The receipt needs more than one attempt. The copy needs the receipt's declaration and "
        "key, and neither a loop nor an except."),
        "Both: effect='idempotent', window=86_400, timeout=5.0, and one line: return post.send(…).",
    ),
)  # fmt: skip

subscribing = Exercise(
    "09.9", "the newsletter", check_subscribing,
    (
        ("The run has 60 seconds. Whose limit says how long one attempt may take, and whose how "
        "long one reader?"),
        "A call's limit stands at the tool: timeout=3.0. A reader's limit is a ctx.turn around it.",
        ("A turn of 10 s ends with dk.DeadlineExceeded. Catch that alone, around the turn, note "
        "the reader's name, go on with the next, and return the names."),
    ),
)  # fmt: skip

cash = Exercise(
    "09.10", "the cashier", check_cash,
    (
        "Ask of each part of the key: would it be the same in a second attempt? In a second run?",
        "The runtime hands the tool one key for all attempts. It is to be sent as it is.",
        "The order has a name of its own that was there before the run: order['id'].",
    ),
)  # fmt: skip

refunding = Exercise(
    "09.11", "the refund", check_refunding,
    (
        "report.table(), of the sweep above, shows where: that agent was not repaired yet.",
        "One fault is an effect in a place that nobody protects; lint has a question about it.",
        "The other needs a request that acts late. What does the bank promise, and when?",
        "Ask the boss with ctx.call and a key of its own; the bank's absence is final after 20 s.",
    ),
)  # fmt: skip

finders = Exercise(
    "09.12", "who sees it?", check_finders,
    (
        ("Lint reads; nothing runs. The sweep runs and kills; nothing fails by itself, and no day "
        "passes."),
        "Ask for each illness: is it written somewhere in the code? Does one crash show it?",
        "lesson.lint_of(agent) and dk.sweep(agent, …, world=post).summary() are there to be asked.",
    ),
)  # fmt: skip

frame = Frame(
    "09",
    asks=(COUNT, COUNT, ENDS, Number(most=3), COUNT),
    exercises=(save_often, shopping, bookkeeping, subscribing, cash, refunding, finders),
    prepare=clinic.forget,
)
start, predict, recall, end = frame.start, frame.predict, frame.recall, frame.end

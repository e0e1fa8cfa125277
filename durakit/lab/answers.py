"""What a learner has handed over to a checker: is it of the right kind, and is it filled in?"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager

from durakit.define import Tool, Workflow
from durakit.faults import CrashAt
from durakit.lab.exercises import SLIPS, Finding, LearnerError, one_line, todo, wrong
from durakit.lab.html import kind_of
from durakit.mail import Mailbox
from durakit.protocol import Effect
from durakit.run import Run
from durakit.runtime import Runtime

__all__ = [
    "handed_over",
    "handed_over_for",
    "has_dots",
    "misdeclared",
    "misfit",
    "misread_rule",
    "read_moves",
    "refuse_slips",
]


def has_dots(function: object) -> bool:
    """Whether the three dots of an exercise still stand in a function."""
    code = getattr(function, "__code__", None)
    return code is not None and ... in code.co_consts


def handed_over(workflow: object, mailbox: object) -> tuple[Workflow, Mailbox] | Finding:
    """The learner's workflow and its mailbox, or what is to be said where they are not that."""
    if isinstance(workflow, Tool):
        return wrong("You handed over the tool. Hand over the workflow that calls it.")
    if not isinstance(workflow, Workflow):
        return wrong(
            "The first thing to hand over is your workflow: the function below @dk.workflow, "
            f"by its name and without brackets. This is {kind_of(workflow)}."
        )
    if not isinstance(mailbox, Mailbox):
        return wrong("The second thing to hand over is the mailbox that your tool sends to.")
    if has_dots(workflow.function):
        return todo("Put an operation key in the place of the three dots, then check again.")
    return workflow, mailbox


def misfit(workflow: Workflow, args: tuple[object, ...], called: str) -> Finding | None:
    """What to say where a workflow does not take ``args`` after ``ctx``; ``called``: in words."""
    try:
        workflow.parameters.dump(args, {})
    except TypeError as error:
        return wrong(f"Your workflow is called with ctx and {called}: {one_line(error)}.")
    return None


def handed_over_for(
    workflow: object, mailbox: object, args: tuple[object, ...], called: str
) -> tuple[Workflow, Mailbox] | Finding:
    """``handed_over``, of a workflow that takes ``args`` after ``ctx``; ``called``: in words."""
    answer = handed_over(workflow, mailbox)
    if isinstance(answer, Finding):
        return answer
    return misfit(answer[0], args, called) or answer


def refuse_slips(run: Run) -> None:
    """Raise the first slip in the typing that a run of the learner's code has met, if it met one.

    A tool's error may leave its call unknown, and then the run's reason no longer says what the
    error was; the journal does. Raises LearnerError.
    """
    if run.status == "completed":
        return
    slips = {slip.__name__: slip for slip in SLIPS}
    for payload in run.history()["payload"]:
        error = payload.get("error")
        if error and error["type"] in slips:
            raise LearnerError(slips[error["type"]](error["message"]))


def misdeclared(
    world: Callable[[], AbstractContextManager[Runtime]],
    workflow: Workflow,
    *args: object,
    signals: Mapping[str, object] | None = None,
) -> Finding | None:
    """What to say where a tool declares that it touches nothing outside, and the service acts.

    No crash shows it where the service knows the key. ``world``: opens an empty one each time;
    ``signals``: what the run waits for, by name. That the run can be stopped where the service acts
    is the service's own word.
    """

    def stopped(crash: CrashAt | None) -> Run:
        runtime.start(workflow, *args, id="declared")
        for name, value in (signals or {}).items():
            runtime.signal("declared", name, value)
        return runtime.run(workflow, *args, id="declared", crash=crash)

    with world() as runtime:
        called = stopped(None).operations()
    for name in called["tool"][called["contract"] == Effect.NONE.value].unique():
        with world() as runtime:
            acted = stopped(CrashAt(name, "effect_done")).crash is not None
        if acted:
            return wrong(
                f'Your tool {one_line(name, 40)!r} declares effect="none": it touches nothing '
                "outside. But the service acted while it ran, and the ledger has it.",
                "No crash went wrong this time. But the runtime believes what you declare, and so "
                "does the next reader: what does this service promise?",
            )
    return None


def misread_rule(rule: object, called: str, to_do: str) -> Finding | None:
    """What to say where ``rule`` is no function of two arguments, or is not filled in yet.

    ``called``: its two arguments, in words. ``to_do``: what to put in the place of its dots.
    """
    if isinstance(rule, Tool | Workflow) or not callable(rule):
        return wrong(f"Hand over your function by its name. Its type is {type(rule).__name__}.")
    try:
        inspect.signature(rule).bind(None, None)
    except TypeError as error:
        return wrong(f"Your rule is called with {called}: {one_line(error)}.")
    return todo(to_do) if has_dots(rule) else None


def read_moves(
    moves: object, cards: Sequence[str], known: Collection[str], done: str
) -> dict[str, str] | Finding:
    """One of the ``known`` moves for each card, in the cards' order, or what is to be said.

    ``done``: in words, what cards are that have a move already.
    """
    if not isinstance(moves, Mapping):
        return wrong(f"Hand over the dictionary of your moves. This is {kind_of(moves)}.")
    strange = [name for name in moves if name not in cards]
    if strange:
        return wrong(f"There is no card {one_line(repr(strange[0]), 40)}.", slip=True)
    lacking = [repr(name) for name in cards if name not in moves]
    if lacking:
        return wrong(f"Not every card has a move: {'; '.join(lacking)}.")
    open_yet = [name for name in cards if moves[name] is ...]
    if open_yet:
        return todo(f"{len(cards) - len(open_yet)} of {len(cards)} cards {done} so far.")
    for name in cards:
        if not isinstance(moves[name], str) or moves[name] not in known:
            said = one_line(repr(moves[name]), 40)
            there_are = ", ".join(known)
            return wrong(f"Card {name!r}: {said} is no move. There are: {there_are}.", slip=True)
    return {name: moves[name] for name in cards}

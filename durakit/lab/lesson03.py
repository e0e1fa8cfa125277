"""Lesson 03, inside a checkpoint: what would clutter its cells, and the checker of its exercise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from durakit.clock import ManualClock
from durakit.define import Workflow
from durakit.errors import SimulatedCrash
from durakit.faults import CrashAt
from durakit.lab.agent import (
    SAVE_PLACES,
    AgentState,
    Desk,
    PendingCall,
    Transcript,
    operation_key,
)
from durakit.lab.answers import misread_rule
from durakit.lab.exercises import (
    Exercise,
    Finding,
    Row,
    SideBySide,
    Table,
    one_line,
    right,
    theirs,
    wrong,
)
from durakit.lab.frame import COUNT, Frame, Number
from durakit.lab.laboratory import scratch
from durakit.lab.worlds import beside, new_world
from durakit.machine import SavePlace
from durakit.mail import Mailbox
from durakit.run import Run
from durakit.runtime import Runtime

__all__ = [
    "beside",
    "difference",
    "end",
    "frame",
    "inbox_beside",
    "new_desk",
    "open_as",
    "predict",
    "recall",
    "save_place",
    "script",
    "spending",
    "start",
    "state_table",
]


# -- what the cells use ----------------------------------------------------------------------------


def new_desk(
    folder: Path,
    transcript: str = "plain",
    *,
    save: str | SavePlace = "every",
    key: Callable[[AgentState, PendingCall], str] = operation_key,
    memory: bool = False,
) -> tuple[Mailbox, Runtime, Desk]:
    """Return an empty mail service, a runtime, and an agent that works with both.

    ``memory``: the runtime keeps its runs in memory only.
    """
    mailbox, runtime = new_world(folder, profile="idempotent")
    assert mailbox.folder is not None
    if memory:
        clock = cast("ManualClock", mailbox.clock)
        runtime.close()
        runtime = Runtime(":memory:", clock=clock, world=mailbox, owner="lesson")
    return mailbox, runtime, Desk(mailbox, mailbox.folder, transcript, save=save, key=key)


def open_as(runtime: Runtime, account: str) -> Runtime:
    """Return a runtime of another account on the same file."""
    mailbox = cast("Mailbox", runtime.world)
    assert mailbox.folder is not None
    clock = cast("ManualClock", mailbox.clock)
    return Runtime(mailbox.folder / "runs.db", clock=clock, account=account, owner=account)


def script(name: str) -> list[Row]:
    """Return what a transcript makes the model say, turn by turn."""
    return [
        {
            "turn": number,
            "the model says": turn.says,
            "and asks for": ", ".join(call.tool for call in turn.calls) or "(nothing)",
        }
        for number, turn in enumerate(Transcript.load(name).turns, 1)
    ]


def state_table(state: AgentState, caption: str = "A CHECKPOINT: what it holds") -> Table:
    """Return the parts of a state, one per row, in words."""
    budget = state.budget
    last = state.messages[-1]
    calls = [_call(call) for call in state.pending]
    made = [f"{a.name} version {a.version}, digest {a.digest}" for a in state.artifacts]
    rows: list[Row] = [
        {"part": "case", "holds": state.case},
        {"part": "stage", "holds": state.stage},
        {"part": "messages", "holds": f"{len(state.messages)}; the last: {last.text}"},
        {"part": "pending", "holds": "; ".join(calls) or "(none)"},
        {
            "part": "budget",
            "holds": f"used: turns {budget.used.turns}, tokens {budget.used.tokens}, "
            f"cents {budget.used.cents}",
        },
        {"part": "artifacts", "holds": "; ".join(made) or "(none)"},
        {"part": "mails", "holds": ", ".join(state.mails) or "(none)"},
        {
            "part": "versions",
            "holds": ", ".join(f"{name} {value}" for name, value in state.versions.items()),
        },
    ]
    return Table(caption, rows)


def _call(call: PendingCall) -> str:
    given = ", ".join(f"{name}={value}" for name, value in call.arguments.items())
    return f"{call.tool}({given})"


def difference(run: Run, before: int, after: int) -> Table:
    """Return ``run.diff(before, after)`` as a table."""
    rows = run.diff(before, after).to_dict("records")
    caption = f"WHAT CHANGED between the entries {before} and {after}"
    return Table(caption, [{str(name): value for name, value in row.items()} for row in rows])


def inbox_beside(state: AgentState, mailbox: Mailbox) -> SideBySide:
    """Return a state of long ago beside what the customers have in their inboxes now."""
    mails: list[Row] = [
        {"mail": mail["id"], "to": mail["to"], "subject": mail["subject"]}
        for mail in mailbox.inbox()
    ]
    return SideBySide(
        (
            state_table(state, "BELIEF: the state, gone back"),
            Table("TRUTH: the inboxes, now", mails, "(no mail)"),
        )
    )


def spending(run: Run, desk: Desk) -> SideBySide:
    """Return what the agent believes to have spent, beside the bill of the model's maker."""
    used = run.at(len(run.history())).budget.used
    bill = desk.model.bill
    believed = {"turns": used.turns, "tokens": used.tokens, "cents": used.cents}
    billed = {
        "turns": len(bill),
        "tokens": sum(row["tokens"] for row in bill),
        "cents": sum(row["cents"] for row in bill),
    }
    return SideBySide(
        (
            Table("BELIEF: the budget in the state", [believed]),
            Table("TRUTH: the bill of the model's maker", [billed]),
        )
    )


# -- the exercise ----------------------------------------------------------------------------------

#: The tasks that a save place is tried on, and what is said of them.
TASKS: Final = {"plain": "one mail", "two_at_once": "two mails at once"}

#: At most so many model calls may be paid a second time after a crash.
PAID_AGAIN: Final = 1


@dataclass(frozen=True)
class _Measured:
    """What a save place costs in one task."""

    task: str
    calls: int
    checkpoints: int
    again: int
    """model calls paid a second time, after the worst of all crashes"""
    worst: str
    mails: bool
    """the ledger has one mail for each customer, whatever happened"""

    @property
    def verdict(self) -> str:
        """In a few words."""
        if not self.mails:
            return "✗ not one mail each"
        if self.checkpoints > self.calls:
            return "✗ too many checkpoints"
        if self.again > PAID_AGAIN:
            return "✗ too much paid again"
        return "✓ holds"


def check_save_place(rule: object) -> Finding:
    """Check a save place: what it costs on disk, and what it costs after every crash there is."""
    finding = _misread(rule)
    if finding is not None:
        return finding
    assert callable(rule)
    with scratch("exercise") as folder:
        finding = _no_rule(rule, folder)
        if finding is not None:
            return finding
        measured = [_measure(rule, name, folder) for name in TASKS]
    rows: list[Row] = [
        {
            "task": TASKS[m.task],
            "model calls": m.calls,
            "checkpoints": m.checkpoints,
            "paid again at worst": m.again,
            "verdict": m.verdict,
        }
        for m in measured
    ]
    table = Table("What your save place costs", rows)
    bad = [m for m in measured if not m.verdict.startswith("✓")]
    if bad:
        return wrong(*_told(bad, measured), table=table)
    crashes = "After every crash at most one model call was paid twice, and nothing on top of it."
    return right(
        "Both tasks: no more checkpoints than model calls.",
        crashes,
        "The ledger holds one mail for each customer: that was never your rule's work, but the "
        "key's.",
        table=table,
    )


def _misread(rule: object) -> Finding | None:
    """What to say where something else than a rule was handed over."""
    if isinstance(rule, str):
        known = f"{rule!r} is the name of a place." if rule in SAVE_PLACES else "This is a text."
        return wrong(f"{known} Write the rule yourself, as a function, and hand that over.")
    if isinstance(rule, Workflow):
        return wrong("You handed over a machine. Hand over the rule: a function of two states.")
    if isinstance(rule, bool):
        return wrong("You handed over an answer. Hand over the function itself, without brackets.")
    return misread_rule(
        rule,
        "two states, before and after",
        "Put a condition in the place of the three dots, then check again.",
    )


def _no_rule(rule: Callable[..., Any], folder: Path) -> Finding | None:
    """Ask the rule about every transition twice, in both directions: a rule has no memory."""
    pairs: list[tuple[str, AgentState, AgentState]] = []

    def watch(before: AgentState, after: AgentState) -> bool:
        pairs.append((task, before.model_copy(deep=True), after.model_copy(deep=True)))
        return True

    for task in TASKS:
        _Trial(watch, task, folder / f"watch-{task}").run_once()
    answers: list[dict[int, bool]] = [{}, {}]
    for turn, order in enumerate((range(len(pairs)), reversed(range(len(pairs))))):
        for number in order:
            _, before, after = pairs[number]
            given = before.model_copy(deep=True), after.model_copy(deep=True)
            answer = theirs(rule, *given)
            if type(answer) is not bool:
                told = "nothing: is there a return?" if answer is None else one_line(repr(answer))
                return wrong(f"A rule says True or False. Yours says {told}")
            if given != (before, after):
                return wrong(
                    "Your rule changes the state it is shown. A save place only looks: what it "
                    "changes would be saved, or lost."
                )
            answers[turn][number] = answer
    if answers[0] != answers[1]:
        return wrong(
            "Asked about the same two states again, your rule says something else. So it has a "
            "memory of its own, and that is not in the state: a crash takes it away."
        )
    return None


@dataclass
class _Trial:
    """One agent in a world of its own, from its start to its end, with or without a crash."""

    rule: SavePlace
    task: str
    folder: Path

    def run_once(self, crash: CrashAt | None = None) -> tuple[int, int, SimulatedCrash | None, int]:
        """Return (model calls, checkpoints, the crash, mails)."""
        clock = ManualClock()
        mailbox = Mailbox(self.folder / "world", profile="idempotent", clock=clock)
        desk = Desk(mailbox, self.folder, self.task, save=self.rule, name="exercise agent")
        with Runtime(
            self.folder / "runs.db", clock=clock, world=mailbox, owner="checker",
            durability="process",
        ) as runtime:  # fmt: skip
            run = runtime.run(desk.machine, desk.start, id="exercise", crash=crash)
            crashed = run.crash
            runtime.recover()
            found = len(desk.model.bill), len(run.checkpoints()), crashed, len(mailbox.inbox())
        mailbox.close()
        return found


def _measure(rule: SavePlace, task: str, folder: Path) -> _Measured:
    """Run the task without a crash, and then with one at boundary 1, 2, … until there is none."""
    calls, checkpoints, _, mails = _Trial(rule, task, folder / f"{task}-0").run_once()
    again, worst, one_each = 0, "", True
    for number in range(1, 200):
        trial = _Trial(rule, task, folder / f"{task}-{number}")
        paid, _, crashed, sent = trial.run_once(CrashAt(number))
        if crashed is None:
            break
        one_each = one_each and sent == mails
        if paid - calls > again:
            again, worst = paid - calls, f"{crashed.point} of {crashed.place}"
    return _Measured(task, calls, checkpoints, again, worst, one_each)


def _told(bad: list[_Measured], measured: list[_Measured]) -> list[str]:
    """Say what is broken and where; the hints say what to do."""
    many = [m for m in bad if m.checkpoints > m.calls]
    if many:
        worst = many[0]
        wrote = f"{worst.checkpoints} checkpoints for {worst.calls} model calls"
        if [m.task for m in bad] == ["two_at_once"]:
            return [
                "With one mail it holds.",
                f"Where the model asks for two mails at once, your rule writes {wrote}.",
            ]
        told = f"With {TASKS[worst.task]} your rule writes {wrote}."
        return [told, "The end of a run is always saved, and is one of them."]
    if not all(m.mails for m in measured):
        return ["The ledger does not hold one mail for each customer after every crash."]
    worst = max(bad, key=lambda m: m.again)
    place = f"With {TASKS[worst.task]}, a crash at {worst.worst}"
    says = [f"{place} makes you pay {worst.again} model calls again."]
    if all(m.checkpoints == 1 for m in measured):
        says.append("Your rule never says True: the only checkpoint is the end.")
    else:
        says.append("Some of your checkpoints are too far apart.")
    return says


HINTS: Final = (
    "What costs money is a model call. Between two checkpoints there may be one of them, not two.",
    "One decision of the model, then all the tools it asked for: that is one round. Save it once.",
    "Look at the stage: it is 'think' before a decision, and 'act' while calls are still pending.",
    "A round has ended where the stage was 'act' before the transition and is 'think' after it.",
)

save_place = Exercise("03.6", "a save place of your own", check_save_place, HINTS)

frame = Frame(
    "03",
    asks=(Number(most=5), COUNT, COUNT, COUNT, COUNT),
    exercises=(save_place,),
)
start, predict, recall, end = frame.start, frame.predict, frame.recall, frame.end

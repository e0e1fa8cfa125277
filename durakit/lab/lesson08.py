"""Lesson 08, resume runs code again: the line counter, and the checker of its exercise."""

from __future__ import annotations

import contextlib
import inspect
import re
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Final

from durakit.define import Workflow
from durakit.errors import SimulatedCrash
from durakit.faults import CrashAt
from durakit.lab.answers import handed_over_for, refuse_slips
from durakit.lab.exercises import (
    Exercise,
    Finding,
    Row,
    Shown,
    Table,
    h,
    one_line,
    right,
    wrong,
)
from durakit.lab.frame import COUNT, ENDS, Frame
from durakit.lab.laboratory import Laboratory, borrowed
from durakit.lab.worlds import beside, customers, new_mailbox, new_world
from durakit.mail import Mailbox

__all__ = [
    "BOSS",
    "LineCount",
    "beside",
    "customers",
    "draw_code",
    "end",
    "frame",
    "new_mailbox",
    "new_world",
    "predict",
    "recall",
    "safe_to_replay",
    "start",
]

BOSS: Final = "boss@example.org"


# -- counting lines --------------------------------------------------------------------------------


class LineCount(Shown):
    """How often each line of some functions has begun, life by life, beside the mails sent.

    ``functions``: workflows, machines, tools and plain functions. Python itself counts: it calls a
    trace function for each line. Statements that fill several lines may count more than once.
    """

    def __init__(self, mailbox: Mailbox, *functions: Callable[..., Any]) -> None:
        self._mailbox = mailbox
        self._lives: list[str] = []
        self._counts: Counter[tuple[CodeType, int, str]] = Counter()
        self._mails: dict[str, int] = {}
        self._lines: list[tuple[CodeType, int, str, bool]] = []
        for function in functions:
            plain = getattr(function, "function", function)
            code: CodeType = plain.__code__
            lines, first = inspect.getsourcelines(plain)
            runs = {line for _, _, line in code.co_lines() if line is not None}
            opening = next(n for n, line in enumerate(lines) if line.lstrip().startswith("def "))
            for number, line in enumerate(lines[opening:], first + opening):
                counted = number in runs and number > first + opening
                self._lines.append((code, number, line.rstrip("\n"), counted))

    @contextlib.contextmanager
    def life(self, name: str) -> Iterator[None]:
        """Count what runs in here as one life of the program."""
        codes = {code for code, *_ in self._lines}
        mails, before = len(self._mailbox.effects()), sys.gettrace()

        def line(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
            if event == "line":
                self._counts[frame.f_code, frame.f_lineno, name] += 1
            return line

        def call(frame: FrameType, _event: str, _: object) -> Callable[..., Any] | None:
            return line if frame.f_code in codes else None

        if name not in self._lives:
            self._lives.append(name)
        sys.settrace(call)
        try:
            yield
        finally:
            sys.settrace(before)
            sent = len(self._mailbox.effects()) - mails
            self._mails[name] = self._mails.get(name, 0) + sent

    def times(self, text: str) -> int:
        """How often the line that holds ``text`` has begun, in all lives together.

        Raises ValueError where no line or more than one holds it.
        """
        found = [line for line in self._lines if line[3] and text in line[2]]
        if len(found) != 1:
            raise ValueError(f"{len(found)} lines hold {text!r}; say it so that one does")
        ((code, number, _, _),) = found
        return sum(self._counts[code, number, life] for life in self._lives)

    def _rows(self) -> list[tuple[str, list[str]]]:
        rows = [
            (line, [str(self._counts[code, number, life]) if counted else "" for life in
                    self._lives])
            for code, number, line, counted in self._lines
        ]  # fmt: skip
        return [*rows, (_LEDGER, [str(self._mails[life]) for life in self._lives])]

    def text(self) -> str:
        """Return each line of code with its counts behind it, and the ledger's last."""
        rows = self._rows()
        width = max(len(line) for line, _ in rows)
        heads = "  ".join(self._lives)
        lines = [f"{_CAPTION.ljust(width)}  {heads}"]
        for line, counts in rows:
            cells = (c.rjust(len(life)) for c, life in zip(counts, self._lives, strict=True))
            lines.append(f"{line.ljust(width)}  {'  '.join(cells)}".rstrip())
        return "\n".join(lines)

    def html(self) -> str:
        """Return the same as a table; code keeps its blanks."""
        heads = "".join(f'<th scope="col">{h(life)}</th>' for life in self._lives)
        left = "text-align: left; padding: 1px 12px 1px 0"
        body = []
        for line, counts in self._rows():
            last = line == _LEDGER
            code = "" if last else "font-family: monospace; white-space: pre; "
            code += "" if any(counts) else "line-height: 2; "
            cells = "".join(f'<td style="text-align: right">{h(count)}</td>' for count in counts)
            name = f"<b>{h(line)}</b>" if last else (h(line) or "&nbsp;")
            body.append(f'<tr><td style="{code}{left}">{name}</td>{cells}</tr>')
        return (
            f'<table><thead><tr><th scope="col" style="{left}">{h(_CAPTION)}</th>{heads}</tr>'
            f"</thead><tbody>{''.join(body)}</tbody></table>"
        )


_CAPTION: Final = "how often did this line begin?"
_LEDGER: Final = "the ledger: mails sent"


# -- the exercise ----------------------------------------------------------------------------------


def draw_code() -> str:
    """Draw the code of a voucher: another one each time."""
    return f"V-{secrets.token_hex(4)}"


@dataclass(frozen=True)
class _Tried:
    """One crash (or none), the boss's answer, and what the ledger holds in the end."""

    crash: str
    asked: int
    """mails that the boss had when the run began to wait"""
    boss: tuple[str, ...]
    ada: tuple[str, ...]
    status: str
    reason: str
    waited: bool
    in_a_step: bool
    """a mail went out although the runtime knows of no call for it"""

    @property
    def verdict(self) -> str:
        """In a few words."""
        if len(self.boss) > 1 or len(self.ada) > 1:
            return "✗ sent twice"
        if self.status != "completed":
            return f"✗ {self.status}"
        if not self.boss or not self.ada:
            return "✗ never sent"
        if not set(_codes(self.ada)) & set(_codes(self.boss)):
            return "✗ another code"
        return "✓ one mail each"


def _codes(bodies: tuple[str, ...]) -> list[str]:
    return re.findall(r"V-[0-9a-f]{8}", " ".join(bodies))


def check_safe_to_replay(workflow: object, mailbox: object) -> Finding:
    """Check a workflow that asks, waits and sends, at every crash before and after the wait."""
    ada, bela = customers(2)
    answer = handed_over_for(workflow, mailbox, (ada,), "one customer")
    if isinstance(answer, Finding):
        return answer
    workflow, mailbox = answer
    with borrowed(mailbox, Laboratory) as laboratory:
        return (
            _without_a_crash(laboratory, workflow, ada)
            or _for_two_customers(laboratory, workflow, ada, bela)
            or _at_every_crash(laboratory, workflow, ada)
        )


def _try_once(
    laboratory: Laboratory,
    workflow: Workflow,
    customer: dict[str, Any],
    *,
    first: CrashAt | None = None,
    second: CrashAt | None = None,
    answer: str = "yes",
) -> tuple[_Tried, SimulatedCrash | None]:
    """Run to the wait (``first``: a crash on the way), answer, go on (``second``), and count."""
    box = laboratory.mailbox
    with laboratory.world() as runtime:
        run = runtime.run(workflow, customer, id="exercise", crash=first)
        crashed = run.crash
        runtime.recover()
        waited = run.status == "waiting"
        asked = len(box.inbox(to=BOSS)) if waited else 0
        if waited:
            runtime.signal("exercise", "approval", answer)
            run = runtime.resume("exercise", crash=second)
            crashed = crashed or run.crash
        refuse_slips(run)
        runtime.recover()
        box.clock.sleep(3600)
        runtime.recover()
        when = "" if crashed is None else ("before" if second is None else "after")
        place = "no crash" if crashed is None else f"{crashed.point} of {crashed.place}"
        place += f", {when} the answer" if when else ""
        boss, theirs = (
            tuple(mail["body"] for mail in box.inbox(to=to)) for to in (BOSS, customer["email"])
        )
        hidden = len(box.requests()) > 0 and len(run.operations()) < bool(boss) + bool(theirs)
        tried = _Tried(place, asked, boss, theirs, run.status, run.reason, waited, hidden)
        return tried, crashed


def _without_a_crash(
    laboratory: Laboratory, workflow: Workflow, ada: dict[str, Any]
) -> Finding | None:
    tried, _ = _try_once(laboratory, workflow, ada)
    # What the boss has at the wait tells whether he was asked; afterwards, whether only once.
    if tried.status == "failed":
        return wrong(f"Nothing crashed, and yet your workflow failed: {one_line(tried.reason)}")
    if not tried.waited and tried.status == "completed":
        return wrong("Your workflow ends without waiting: nobody has answered, and it goes on.")
    if tried.status != "completed":
        return wrong(
            f"Nothing crashed, and yet your run is {tried.status}: {one_line(tried.reason)}",
            *_drawn_again(tried),
        )
    if tried.asked == 0:
        return wrong("Your run waits for the boss, and the boss has no mail: nobody has asked.")
    if len(tried.boss) > 1:
        return wrong(
            f"Nothing crashed, and the boss has {len(tried.boss)} mails. The workflow was entered "
            "twice: once to ask, and once to go on after the answer."
        )
    if not tried.ada:
        return wrong("The boss said yes, and Ada has no mail.")
    if len(tried.ada) > 1:
        return wrong(f"Nothing crashed, and yet Ada has {len(tried.ada)} mails.")
    if not set(_codes(tried.ada)) & set(_codes(tried.boss)):
        return wrong(
            f"The boss agreed to {_first(tried.boss)}, and Ada got {_first(tried.ada)}. "
            "The code was drawn a second time."
        )
    refused, _ = _try_once(laboratory, workflow, ada, answer="no")
    if refused.ada:
        return wrong("The boss said no, and Ada has a voucher.")
    return None


def _first(bodies: tuple[str, ...]) -> str:
    codes = _codes(bodies)
    return codes[0] if codes else "no code"


def _drawn_again(tried: _Tried) -> list[str]:
    if "with other arguments" in tried.reason:
        return ["On the way back it asks for the same call with other content: what has changed?"]
    if "does not match the journal" in tried.reason:
        return ["On the way back it asks for something else than it had saved: what has changed?"]
    return []


def _for_two_customers(
    laboratory: Laboratory, workflow: Workflow, ada: dict[str, Any], bela: dict[str, Any]
) -> Finding | None:
    box = laboratory.mailbox
    with laboratory.world() as runtime:
        for customer in (ada, bela):
            run = runtime.run(workflow, customer, id=customer["name"])
            if run.status == "waiting":
                runtime.signal(run.id, "approval", "yes")
                runtime.recover()
        mails = len(box.inbox(to=bela["email"]))
        asked = len(box.inbox(to=BOSS))
        if mails == 1 and asked == 2 and run.status == "completed":
            return None
        because = f" ({one_line(run.reason, 120)})" if run.reason else ""
        return wrong(
            f"After Ada it is Bela's turn: {asked} question(s) for the boss in all, and {mails} "
            f"mail(s) for her{because}.",
            "Two customers are two pieces of business: their keys must differ.",
        )


def _at_every_crash(laboratory: Laboratory, workflow: Workflow, ada: dict[str, Any]) -> Finding:
    """Stop at boundary 1, 2, … before the wait, and then at each one after the answer."""
    trials: list[_Tried] = []
    for side in ("first", "second"):
        for number in range(1, 200):
            crash = CrashAt(number, incarnation=1 if side == "first" else 2)
            tried, crashed = _try_once(
                laboratory,
                workflow,
                ada,
                first=crash if side == "first" else None,
                second=crash if side == "second" else None,
            )
            if crashed is None:
                break
            trials.append(tried)
        else:
            return wrong("Your workflow passes more than 200 boundaries. This needs far fewer.")
    rows: list[Row] = [
        {"stopped at": t.crash, "boss": len(t.boss), "Ada": len(t.ada), "verdict": t.verdict}
        for t in trials
    ]
    table = Table("What the ledger says after each crash and its recovery", rows)
    bad = [tried for tried in trials if not tried.verdict.startswith("✓")]
    if not bad:
        said = f"{len(trials)} crashes, {len(trials)} times one question and one voucher."
        return right(f"{said} The ledger says so, and the code was the same.", table=table)
    worst = max(bad, key=lambda t: ("twice" in t.verdict, "another" in t.verdict))
    says = [f"{len(bad)} of {len(trials)} crashes go wrong. Look at this one: {worst.crash}."]
    if worst.in_a_step:
        says.append(
            f"Mails: {len(worst.boss)} for the boss and {len(worst.ada)} for Ada, and the runtime "
            "has no call for one of them. A step, or a bare line, may run again."
        )
    elif len(worst.boss) > 1 or len(worst.ada) > 1:
        says.append(
            f"Mails: {len(worst.boss)} for the boss and {len(worst.ada)} for Ada. One request went "
            "out again, and the service took it for a new one."
        )
    else:
        says.append(f"The run is {worst.status}: {one_line(worst.reason)}")
        says += _drawn_again(worst)
    return wrong(*says, table=table)


HINTS: Final = (
    "Go through it line by line and ask: what if this line runs a second time? There are three.",
    "What is drawn must be saved before it is used. What is sent must have a name of its own.",
    'A step keeps what it returns: ctx.step("code", lesson.draw_code). A bare line keeps nothing.',
    "The question to the boss is an operation, too: ctx.call(send_mail, …) with a key of its own.",
    "The keys: 'ask' and 'voucher', each with the customer's id, and nothing else.",
)

safe_to_replay = Exercise("08.6", "asked once, sent once", check_safe_to_replay, HINTS)

frame = Frame(
    "08",
    asks=(COUNT, COUNT, COUNT, COUNT, ENDS),
    exercises=(safe_to_replay,),
)
start, predict, recall, end = frame.start, frame.predict, frame.recall, frame.end

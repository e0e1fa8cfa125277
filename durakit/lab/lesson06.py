"""Lesson 06, nested budgets: what would clutter its cells, and the checkers of its exercises."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from durakit.clock import ManualClock
from durakit.define import Tool, Workflow, tool, workflow
from durakit.driver import Context
from durakit.lab import worlds
from durakit.lab.answers import (
    handed_over,
    has_dots,
    misdeclared,
    misfit,
    misread_rule,
    refuse_slips,
)
from durakit.lab.budgets.nested import SlowMail
from durakit.lab.exercises import (
    Exercise,
    Finding,
    Row,
    State,
    Table,
    one_line,
    right,
    theirs,
    todo,
    wrong,
)
from durakit.lab.frame import COUNT, SECONDS, Frame, Number
from durakit.lab.laboratory import Laboratory, borrowed, scratch
from durakit.lab.worlds import beside, customers, names_for
from durakit.mail import PROFILES, Mailbox
from durakit.protocol import Effect
from durakit.run import Run
from durakit.runtime import Runtime

__all__ = [
    "beside",
    "child_limit",
    "customers",
    "end",
    "frame",
    "in_time",
    "look_up",
    "new_world",
    "predict",
    "real_world",
    "recall",
    "recover_until_known",
    "start",
    "story",
]


# -- what the cells use ----------------------------------------------------------------------------


def new_world(
    folder: Path, seconds: float, profile: str = "opaque"
) -> tuple[SlowMail, Runtime, ManualClock]:
    """Return a mail service that takes ``seconds`` for each mail, a runtime, and their clock."""
    mailbox, runtime = worlds.new_world(folder, profile)
    return SlowMail(mailbox, seconds), runtime, cast("ManualClock", mailbox.clock)


def real_world(folder: Path) -> tuple[Mailbox, Runtime]:
    """Return a mail service and a runtime in real time, which gives up on an unknown very soon."""
    home = names_for(folder)[-1]
    mailbox = Mailbox(home, latency=0.0)
    return mailbox, Runtime(home / "runs.db", world=mailbox, owner="lesson", settle=0.05)


def recover_until_known(runtime: Runtime, run: Run) -> str:
    """Recover until the run has ended, a few hundredths of a second; return its status."""
    for _ in range(200):
        runtime.recover()
        if run.status == "completed":
            break
        time.sleep(0.01)
    return run.status


def look_up(clock: ManualClock, needs: float, timeout: float | None) -> str:
    """Ask a directory that ``needs`` so many seconds; it has no effect outside.

    Raises TimeoutError after ``timeout`` seconds where that is less.
    """
    clock.sleep(needs if timeout is None else min(needs, timeout))
    if timeout is not None and timeout < needs:
        raise TimeoutError(f"no answer within {timeout:g} s")
    return "known"


def story(run: Run) -> Table:
    """Return what the journal says about the run's calls, with the second of each entry."""
    history = run.history()
    begins = history["time"].iloc[0]
    rows: list[Row] = [
        {
            "second": f"{(entry['time'] - begins).total_seconds():g}",
            "entry": entry["kind"],
            "says": _gist(entry["payload"]),
        }
        for _, entry in history.iterrows()
        if entry["kind"] not in ("started", "claimed", "step")
    ]
    return Table(f"THE JOURNAL (the run is {run.status})", rows)


def _gist(payload: dict[str, Any]) -> str:
    """The part of an entry that this lesson is about."""
    if "shortened" in payload:
        short = payload["shortened"]
        level = " ".join(dict.fromkeys((short["level"], short["name"])))
        return f"asked for {short['asked']:g} s, gets {short['to']:g} s of the {level}"
    # That it is unknown, the entry before has said.
    parts = [
        str(payload[name]).removeprefix("unknown: ")
        for name in ("judged", "answer", "basis", "reason")
        if name in payload
    ]
    then = payload.get("then")
    if then:
        waits = f" {then['seconds']:g} s" if "seconds" in then else ""
        parts.append(f"then {then['decision']}{waits}")
    return "; ".join(parts)


# -- the first exercise: what a child may have -----------------------------------------------------

#: (own limit, what the parent has left) → what the child may have. Seconds; None is no limit.
CASES: Final[tuple[tuple[float | None, float | None, float | None], ...]] = (
    (10.0, 30.0, 10.0),
    (10.0, 5.0, 5.0),
    (10.0, 10.0, 10.0),
    (0.25, 0.125, 0.125),
    (10.0, 0.0, 0.0),
    (10.0, -3.0, 0.0),
    (None, 20.0, 20.0),
    (10.0, None, 10.0),
    (None, 0.0, 0.0),
    (None, -3.0, 0.0),
    (None, None, None),
)

#: What a child with limits of 60, 30 and 10 s is tried with: seconds that one mail takes.
SERVICES: Final = (6.0, 7.5, 10.0, 29.0)


def check_child_limit(rule: object) -> Finding:
    """Check a rule on every boundary there is, and then in real runs of 60 > 30 > 10 seconds."""
    finding = _misread(rule)
    if finding is not None:
        return finding
    assert callable(rule)
    answers = [(own, left, wanted, theirs(rule, own, left)) for own, left, wanted in CASES]
    again = [(own, left, wanted, theirs(rule, own, left)) for own, left, wanted in reversed(CASES)]
    rows: list[Row] = [
        {"own limit": own, "parent has left": left, "yours": one_line(repr(got)), "":
            "✓" if _same(got, wanted) else "✗"}
        for own, left, wanted, got in answers
    ]  # fmt: skip
    table = Table("Your rule at the boundaries", rows)
    told = _told_of_a_rule(answers)
    if told:
        return wrong(told, table=table)
    if [got for *_, got in answers] != [got for *_, got in reversed(again)]:
        return wrong(
            "Asked the same things again, your rule says something else. It may depend on its two "
            "arguments and on nothing else."
        )
    runs = [_nested_run(rule, service) for service in SERVICES]
    table = Table("Your rule in real runs: session 60 s, turn 30 s, call 10 s", runs)
    if not all(str(run["kept"]).startswith("✓") for run in runs):
        return wrong("It holds in the table, and not in a real run.", table=table)
    return right(
        f"{len(CASES)} boundaries and {len(runs)} real runs: no wait went past its parent's end.",
        table=table,
    )


def _misread(rule: object) -> Finding | None:
    """What to say where something else than a rule was handed over."""
    if isinstance(rule, bool | int | float):
        return wrong("You handed over a number. Hand over the function itself, without brackets.")
    if isinstance(rule, Tool | Workflow):
        return wrong("You handed over a tool or a workflow. Hand over a function of two numbers.")
    return misread_rule(
        rule,
        "two values, own and left",
        "Put the rule in the place of the three dots, then check again.",
    )


def _same(got: object, wanted: float | None) -> bool:
    if wanted is None or got is None:
        return got is wanted
    return isinstance(got, int | float) and not isinstance(got, bool) and got == wanted


def _told_of_a_rule(answers: list[tuple[float | None, float | None, float | None, Any]]) -> str:
    """What is wrong with the answers, the mistake that explains most of them first."""
    bad = [(own, left, wanted, got) for own, left, wanted, got in answers if not _same(got, wanted)]
    if not bad:
        return ""
    if all(got is None for *_, got in answers):
        return "Your rule gives nothing back: is there a return?"
    strange = [got for *_, got in bad if got is not None and not isinstance(got, int | float)]
    if strange or any(isinstance(got, bool) for *_, got in bad):
        shown = one_line(repr((strange or [got for *_, got in bad])[0]))
        return f"A limit is a number of seconds, or None for no limit. Yours was {shown}."
    given = {(own, left): got for own, left, _, got in answers}
    if given[10.0, 5.0] == 10.0:
        if given[10.0, 30.0] == 30.0:
            return "Of 10 and 30 your rule takes 30: a child would outlive its own limit."
        return (
            "The parent has 5 s left, and your rule still gives 10 s: these are static limits, as "
            "in the first picture."
        )
    if given[10.0, 30.0] == 30.0:
        return "The parent has 30 s left, and your rule gives all of it: the child's limit is 10 s."
    own, left, wanted, got = bad[0]
    asked = f"own limit {_said(own)}, parent's remainder {_said(left)}: your rule says {_said(got)}"
    if left == 0.0 and wanted == 0.0:
        return f"{asked}. A parent that has 0 s left is not one without a limit."
    if left is not None and left < 0:
        return f"{asked}. A parent that is overdrawn leaves nothing, and nobody has negative time."
    if own is None or left is None:
        return f"{asked}. Where one of the two sets no limit, the other one stands."
    return f"{asked}, and not {_said(wanted)}."


def _said(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds:g} s"


def _nested_run(rule: Callable[[float | None, float | None], float | None], service: float) -> Row:
    """Run two turns of three mails, each layer's limit by ``rule``; when did which wait end?"""
    waits: list[tuple[float, float]] = []
    with scratch("rule") as folder:
        clock = ManualClock()
        mail = SlowMail(Mailbox(folder, profile="opaque", clock=clock), service)
        begins = clock.monotonic()

        def send_by_rule(call: Any, has: float, turn_ends: float) -> None:
            try:
                mail.send("ada@example.org", "news", "hello", key=call.key, timeout=has)
            finally:
                waits.append((clock.monotonic(), turn_ends))

        send = tool(send_by_rule, effect="opaque")

        def by_rule(ctx: Context) -> None:
            for turn in (1, 2):
                now = clock.monotonic()
                turn_ends = now + (rule(30.0, begins + 60.0 - now) or 0.0)
                ctx.step(f"think {turn}", clock.advance, 5)
                for number in (1, 2, 3):
                    has = rule(10.0, turn_ends - clock.monotonic())
                    if not has:
                        return
                    ctx.call(send, has, turn_ends, key=f"mail {turn}.{number}")

        try:
            with Runtime(":memory:", clock=clock, world=mail.mailbox, owner="checker") as runtime:
                run = runtime.run(workflow(by_rule, name="exercise by rule"), id="rule")
                ended = clock.monotonic() - begins
                kept = ended <= 60.0 and all(at <= until for at, until in waits)
                kept = kept and run.status in ("completed", "needs_decision")
        finally:
            mail.mailbox.close()
    return {
        "one mail takes": f"{service:g} s",
        "calls begun": len(waits),
        "over after": f"{ended:g} s",
        "kept": "✓ inside its parent" if kept else "✗ past its parent",
    }


CHILD_HINTS: Final = (
    "A child has its own limit and what its parent has left. Which of the two ends first?",
    "min() takes the smaller one. Then look at the rows with None, and at those below zero.",
    "Collect the limits that there are: [x for x in (own, left) if x is not None].",
    "No limit at all: None. Else max(0, min(…)) of those that there are.",
)

child_limit = Exercise("06.7", "what a child may have", check_child_limit, CHILD_HINTS)


# -- the second exercise: never past the session, and nothing unknown ------------------------------

#: What the shop wants: no call waits longer (seconds).
CALL_LIMIT: Final = 10.0

#: One late mail takes so long: longer than a call may wait, shorter than the service's promise.
LATE: Final = 15.0


@dataclass
class _Tried:
    """One trial, judged by the ledger and by the journal."""

    title: str
    session: float
    mails: dict[str, int]
    wanted: dict[str, int]
    run: Run
    waits: list[tuple[str, float, float]]
    """of each attempt: key, the second it was begun and the second we no longer waited"""
    unknown: list[str]
    reason: str = field(init=False)

    def __post_init__(self) -> None:
        self.status, self.reason = self.run.status, self.run.reason

    @property
    def past(self) -> list[tuple[str, float, float]]:
        """Waits that went past the session's end."""
        return [wait for wait in self.waits if wait[2] > self.session]

    @property
    def long(self) -> list[tuple[str, float, float]]:
        """Waits that were longer than a call may take."""
        return [wait for wait in self.waits if wait[2] - wait[1] > CALL_LIMIT]

    @property
    def verdict(self) -> str:
        """In a few words."""
        if any(self.mails[name] > 1 for name in self.mails):
            return "✗ sent twice"
        if self.past:
            return "✗ past the session"
        if self.long:
            return "✗ one call too long"
        if self.unknown:
            return "✗ still unknown"
        if self.mails != self.wanted:
            return "✗ other mails"
        return "✓ holds"


def check_in_time(newsletter: object, mail: object) -> Finding:
    """Check a newsletter against a slow service: how long it waited, and what the ledger says."""
    if isinstance(mail, Mailbox):
        return wrong("The second thing to hand over is `mail`, the slow service itself.")
    box = mail.mailbox if isinstance(mail, SlowMail) else mail
    answer = handed_over(newsletter, box)
    if isinstance(answer, Finding):
        return answer
    assert isinstance(mail, SlowMail)
    letter, box = answer
    tools = _tools_of(letter)
    if any(has_dots(one.function) for one in tools):
        return todo("Put how long the tool may wait in the place of the three dots, then check.")
    finding = misfit(letter, (customers(3),), "a list of people")
    if finding is not None:
        return finding
    slow, seconds = mail.slow, mail.seconds
    try:
        with borrowed(box, _Laboratory) as laboratory:
            box.profile = PROFILES["queryable"]
            tried = [laboratory.try_once(letter, mail, *trial) for trial in _TRIALS]
            judged = _judged(tried, tools)
            if judged.state is not State.PASS:
                return judged
            mail.seconds, mail.slow = _TRIALS[0][2], {}
            return misdeclared(laboratory.world, letter, customers(3)) or judged
    finally:
        mail.slow, mail.seconds = slow, seconds


#: title, the session's deadline, seconds of one mail, how long Bela's takes, mails that shall be
_TRIALS: Final = (
    ("everybody's mail takes 4 s", 60.0, 4.0, 4.0, (1, 1, 1)),
    ("Bela's mail takes 15 s", 60.0, 4.0, LATE, (1, 1, 1)),
    ("the same, and the session has 12 s", 12.0, 4.0, LATE, (1, 1, 0)),
)


def _tools_of(letter: Workflow) -> list[Tool]:
    """The tools that a workflow's function names."""
    code, names = letter.function.__code__, letter.function.__globals__
    cells = inspect.getclosurevars(letter.function).nonlocals
    found = [cells.get(name, names.get(name)) for name in (*code.co_names, *code.co_freevars)]
    return [one for one in found if isinstance(one, Tool)]


class _Laboratory(Laboratory):
    """One trial: run, let an hour pass so that late mails land, recover, count."""

    def try_once(
        self,
        letter: Workflow,
        mail: SlowMail,
        title: str,
        session: float,
        seconds: float,
        bela: float,
        wanted: tuple[int, ...],
    ) -> _Tried:
        """Send three people one mail each within ``session`` seconds."""
        people = customers(3)
        mail.seconds, mail.slow = seconds, {people[1]["email"]: bela}
        with self.world() as runtime:
            run = runtime.run(letter, people, id="exercise", deadline=session)
            refuse_slips(run)
            waits = list(_waits(run))
            self.mailbox.clock.sleep(3600)
            runtime.recover()
            mails = {one["name"]: len(self.mailbox.inbox(to=one["email"])) for one in people}
            expected = dict(zip(mails, wanted, strict=True))
            table = run.operations()
            unknown = [str(key) for key in table["key"][table["outcome"] == "unknown"]]
            return _Tried(title, session, mails, expected, run, waits, unknown)


def _waits(run: Run) -> Iterator[tuple[str, float, float]]:
    """Of each attempt: its key, when it was begun, and when the next entry about it was made."""
    history = run.history()
    begins = history["time"].iloc[0]
    times = [(moment - begins).total_seconds() for moment in history["time"]]
    entries = list(zip(times, history["kind"], history["key"], strict=True))
    for at, (begun, kind, key) in enumerate(entries):
        if kind == "intent":
            for later, _, other in entries[at + 1 :]:
                if other == key:
                    yield str(key), begun, later
                    break


def _judged(tried: list[_Tried], tools: list[Tool]) -> Finding:
    rows: list[Row] = [
        {
            "trial": t.title,
            "mails": ", ".join(f"{name} {count}" for name, count in t.mails.items()),
            "longest wait": f"{max([w[2] - w[1] for w in t.waits], default=0):g} s",
            "last wait ended": f"{max([w[2] for w in t.waits], default=0):g} s",
            "verdict": t.verdict,
        }
        for t in tried
    ]
    table = Table("What the ledger and the journal say", rows)
    calm, late, short = tried
    for says in (_calm_trouble(calm), _duplicates(tried, tools), _too_long(late, tools),
                 _past(short), _still_unknown(late, short), _other(tried)):  # fmt: skip
        if says:
            return wrong(*says, table=table)
    return right(
        "No call waited longer than 10 s, none past the session's end. The late mail was found.",
        "In the third trial Chidi has no mail, and that is right: the session was over, its error "
        "says so, and nothing is left unknown.",
        table=table,
    )


def _calm_trouble(calm: _Tried) -> list[str]:
    if calm.verdict.startswith("✓") and calm.status == "completed":
        return []
    if calm.status == "failed":
        return [f"Nobody was slow, and yet your workflow failed: {one_line(calm.reason)}"]
    missing = [name for name, count in calm.mails.items() if not count]
    if missing:
        return [f"Nobody was slow, and yet there is no mail for {' and '.join(missing)}."]
    if calm.verdict.startswith("✗ sent"):
        return ["Nobody was slow, and yet somebody has two mails: send in one place."]
    return [f"Nobody was slow, and yet the run is {calm.status}: {one_line(calm.reason)}"]


def _duplicates(tried: list[_Tried], tools: list[Tool]) -> list[str]:
    twice = [t for t in tried if t.verdict == "✗ sent twice"]
    if not twice:
        return []
    says = [f"Bela has {twice[0].mails['Bela']} mails. Her first request was only late."]
    contracts = [one.contract for one in tools]
    if any(one.on_unknown for one in contracts):
        return [*says, "on_unknown= made the runtime guess, and the guess was wrong."]
    if any(one.effect is Effect.IDEMPOTENT for one in contracts):
        return [
            *says,
            "You promise that this service remembers keys. It does not: it can be asked.",
        ]
    if any(one.effect is Effect.NONE for one in contracts):
        return [
            *says,
            "You declare that a mail has no effect outside, so it was simply sent again.",
        ]
    return [*says, "'Absent' was taken for final too early: what does the service's handbook say?"]


def _too_long(late: _Tried, tools: list[Tool]) -> list[str]:
    if not late.long:
        return []
    key, begun, ended = late.long[0]
    says = f"The call {one_line(key)!r} kept everybody waiting for {ended - begun:g} s."
    limits = [one.timeout for one in tools]
    if None in limits:
        return [says, "Only the session has a limit: one slow call may use it up for all."]
    if any(limit is not None and limit > CALL_LIMIT for limit in limits):
        return [
            says,
            f"The limit that you declare is longer than the {CALL_LIMIT:g} s of the shop.",
        ]
    return [
        says,
        "The limit is declared, and the tool does not look at it: it waits for the reply.",
    ]


def _past(short: _Tried) -> list[str]:
    if not short.past:
        return []
    _, begun, ended = short.past[0]
    over = f"The session ended at second {short.session:g}"
    return [
        f"{over}, and a call begun at {begun:g} waited until {ended:g}.",
        "A number in your code knows nothing of what the parent has left.",
    ]


def _still_unknown(late: _Tried, short: _Tried) -> list[str]:
    for tried in (late, short):
        if tried.unknown:
            landed = f"Bela has {tried.mails['Bela']} mail, and your run still says 'unknown'"
            return [f"{landed}: {one_line(tried.reason)}."]
    return []


def _other(tried: list[_Tried]) -> list[str]:
    bad = [t for t in tried if not t.verdict.startswith("✓")]
    if not bad:
        return []
    got = ", ".join(f"{name} {count}" for name, count in bad[0].mails.items())
    want = ", ".join(f"{name} {count}" for name, count in bad[0].wanted.items())
    return [f"In the trial '{bad[0].title}' the ledger has {got}, and should have {want}."]


IN_TIME_HINTS: Final = (
    "Three questions: how long may one call wait, who tells the tool so, and who asks afterwards?",
    "Inside the tool, call.remaining() is what is left of all limits together. Hand that on.",
    "An opaque service can never be asked. This one can: declare queryable, and give the probe.",
    'The tool: effect="queryable", probe=ask, settles_after=20, timeout=10.',
    "The same, and in the tool timeout=call.remaining().",
)

in_time = Exercise("06.8", "in time, and nothing unknown", check_in_time, IN_TIME_HINTS)

frame = Frame(
    "06",
    asks=(SECONDS, SECONDS, COUNT, COUNT, SECONDS, Number(most=3)),
    exercises=(child_limit, in_time),
)
start, predict, recall, end = frame.start, frame.predict, frame.recall, frame.end

"""Lesson 02, crash anywhere: what would clutter its cells, and the checker of its exercise."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from durakit.clock import ManualClock
from durakit.define import Workflow
from durakit.errors import UsageError
from durakit.faults import CrashAt, kill_this_process
from durakit.kill import can_fork
from durakit.lab.answers import handed_over_for, misdeclared, refuse_slips
from durakit.lab.crash.scenarios import Scenario, kill_for_real
from durakit.lab.exercises import (
    Exercise,
    Finding,
    Note,
    Row,
    State,
    Table,
    one_line,
    right,
    theirs,
    wrong,
)
from durakit.lab.frame import COUNT, Frame, Number
from durakit.lab.laboratory import Laboratory, borrowed, scratch
from durakit.lab.worlds import beside, customers, new_world
from durakit.mail import Mailbox
from durakit.run import Run
from durakit.sweep import (
    DUPLICATE,
    HANDED_OVER,
    LOST,
    NOT_REACHABLE,
    STUCK,
    Report,
    Schedule,
    sweep,
)

__all__ = [
    "beside",
    "crash_proof",
    "customers",
    "end",
    "file_away",
    "for_real",
    "frame",
    "new_mailbox",
    "new_world",
    "predict",
    "recall",
    "red",
    "six_crashes",
    "start",
    "worst",
    "write_letter",
]


# -- what the cells use ----------------------------------------------------------------------------


class _Closed(Mailbox):
    """A mail service that cannot be watched at work: it has a ledger, and no hook."""

    listen = None  # type: ignore[assignment]  # the sweep asks whether it can be called


def new_mailbox(*, hook: bool = True) -> Mailbox:
    """Return a mail service that knows keys, on a manual clock, with an empty ledger.

    ``hook``: it tells what it is doing while it works on a request.
    """
    kind = Mailbox if hook else _Closed
    return kind(profile="idempotent", clock=ManualClock())


def write_letter(customer: dict[str, Any]) -> str:
    """Write a letter. Nobody outside sees it."""
    return f"Hello {customer['name']}"


def file_away(customer: dict[str, Any], mail: dict[str, Any]) -> str:
    """Make a line for our own files. Nobody outside sees it."""
    return f"{customer['name']} has {mail['id']}"


def red(report: Report) -> list[int]:
    """Return the numbers of the red bars: crashes of a sweep that were tried and are not safe."""
    rows = enumerate(report.schedules, 1)
    return [number for number, row in rows if not row.good and row.verdict != NOT_REACHABLE]


def for_real(workflow: Workflow, *args: Any, world: Mailbox, seed: str) -> Note:
    """Crash at ``seed`` in a simulation and in a child that is killed, and compare what is left.

    Says so in words where no child can be made here. Raises UsageError for a seed of no crash of
    this workflow.
    """
    scenario = Scenario(workflow, args, world)
    found = [frame for frame in scenario.trace.frames if frame.schedule.seed == seed]
    if not found:
        raise UsageError(f"{workflow.name!r} has no crash {seed!r}: see report.table()")
    try:
        real = kill_for_real(scenario, found[0])
    except UsageError as error:
        return Note("○ NOT HERE", "No process was killed.", (one_line(error),))
    # Tables without a row, and those of the file itself, would only make the picture longer.
    rows = [
        row for row in real.rows
        if row["same"] != "✓ same" or (row["simulated"] != 0 and row["table"] != "schema_version")
    ]  # fmt: skip
    told = Table("ROWS: after the simulated crash, and after the kill", rows)
    if real.same:
        says = "Every table was compared, every row and column; shown are those with rows."
        return Note("✓ IDENTICAL", real.words, (says,), told)
    return Note("✗ DIFFERENT", real.words, (real.verdict,), told)


# -- a loop of one's own, stopped in three ways ----------------------------------------------------

EXCEPTION: Final = "an exception"
FROZEN: Final = "frozen, then raised"
KILLED: Final = "killed for real"

#: What a loop is called with: the mail service, its notes, and a function to call at each place
#: where the program may die.
Loop = Callable[[Mailbox, "Notes", Callable[[], None]], object]


class _Stopped(BaseException):
    """The loop was stopped. No ``except Exception`` can swallow it."""


class Notes:
    """A list in a file, as a program keeps it that has no runtime. A dead program writes nothing.

    ``read`` returns it, ``write`` replaces it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.dead: _Stopped | None = None

    def read(self) -> list[Any]:
        """Return what was written last; an empty list before that."""
        return json.loads(self._path.read_text()) if self._path.exists() else []

    def write(self, listed: list[Any]) -> None:
        """Keep a list instead of the one before."""
        if self.dead is not None:
            raise self.dead
        self._path.write_text(json.dumps(listed))


def six_crashes(loop: Loop) -> Table:
    """Stop ``loop`` at each of its places, in three ways, start it again, and count the mails.

    One row per place. A way that does not exist on this platform says so in its column.
    """
    with scratch("loop") as home:
        places = _live(loop, home / "whole", None, EXCEPTION)
        rows: list[Row] = []
        for place in range(1, places + 1):
            row: dict[str, object] = {"stopped at place": place}
            for way in (EXCEPTION, FROZEN, KILLED):
                if way == KILLED and not can_fork():
                    row[way] = "not possible here"
                    continue
                folder = home / f"{way}-{place}"
                (_live_in_a_child if way == KILLED else _live)(loop, folder, place, way)
                _live(loop, folder, None, way)
                row[way] = _count_mails(folder)
            rows.append(row)
    return Table("MAILS in the ledger after stopping once and starting again", rows)


def worst(stops: Table, way: str) -> object:
    """Return the most mails of a way to stop; its words where it does not exist here."""
    found = [row[way] for row in stops.rows]
    return max((mails for mails in found if isinstance(mails, int)), default=found[0])


def _live(loop: Loop, folder: Path, place: int | None, way: str) -> int:
    """Run the loop in ``folder`` up to ``place``, or to its end; return the places it came by."""
    notes = Notes(folder / "notes.json")
    mailbox = Mailbox(folder, profile="opaque", clock=ManualClock())
    passed = 0

    def may_die() -> None:
        nonlocal passed
        passed += 1
        if passed != place:
            return
        if way == KILLED:
            kill_this_process()
        stopped = _Stopped(f"stopped at place {place}")
        if way == FROZEN:
            # First nothing can be touched any more, and only then does the stack unwind.
            notes.dead = stopped
            mailbox.close()
        raise stopped

    with contextlib.suppress(_Stopped), contextlib.redirect_stdout(io.StringIO()):
        loop(mailbox, notes, may_die)
    mailbox.close()
    return passed


def _live_in_a_child(loop: Loop, folder: Path, place: int, way: str) -> None:
    """Do the same in a forked process, which opens its files itself and is killed at the place."""
    child = os.fork()
    if child == 0:  # pragma: no cover - it never returns
        try:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nowhere, stream)
            _live(loop, folder, place, way)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise RuntimeError("the child process was to be killed, and ended by itself")


def _count_mails(folder: Path) -> int:
    mailbox = Mailbox(folder, profile="opaque", clock=ManualClock())
    mails = len(mailbox.effects())
    mailbox.close()
    return mails


# -- the exercise ----------------------------------------------------------------------------------


def check_crash_proof(workflow: object, mailbox: object) -> Finding:
    """Check a workflow that writes to several readers. The sweep decides; the ledger counts."""
    if isinstance(workflow, Report):
        return wrong(
            "You handed over a report. Hand over the workflow: the check sweeps it itself."
        )
    readers = customers(3)
    answer = handed_over_for(workflow, mailbox, (readers,), "a list of readers")
    if isinstance(answer, Finding):
        return answer
    workflow, mailbox = answer
    with borrowed(mailbox, _Laboratory) as laboratory:
        finding = _without_a_crash(laboratory, workflow, readers)
        if finding is not None:
            return finding
        report: Report = theirs(sweep, workflow, readers, world=mailbox)
        judged = _judged(laboratory, workflow, readers, report)
        if judged.state is not State.PASS:
            return judged
        return (
            _started_again(laboratory, workflow, readers)
            or _for_a_namesake(laboratory, workflow, readers)
            or misdeclared(laboratory.world, workflow, readers)
            or judged
        )


@dataclass(frozen=True)
class _Tried:
    """One run, maybe with a crash and a recovery, and what the world says about it."""

    status: str
    reason: str
    mails: dict[str, int]
    """mails per address"""
    keys: tuple[str | None, ...]
    """what the service was told, request by request"""
    calls: int
    """operations that the runtime has a record of"""


class _Laboratory(Laboratory):
    """What there is to see of a trial."""

    def seen(self, run: Run) -> _Tried:
        """Return what there is to see of a run now."""
        mails: dict[str, int] = {}
        for mail in self.mailbox.inbox():
            mails[mail["to"]] = mails.get(mail["to"], 0) + 1
        keys = tuple(request["key"] for request in self.mailbox.requests())
        return _Tried(run.status, run.reason, mails, keys, len(run.operations()))


def _without_a_crash(
    laboratory: _Laboratory, workflow: Workflow, readers: list[dict[str, Any]]
) -> Finding | None:
    with laboratory.world() as runtime:
        run = runtime.run(workflow, readers, id="exercise")
        refuse_slips(run)
        tried = laboratory.seen(run)
    if "ArgumentsDiffer" in tried.reason or "mismatch" in tried.reason.lower():
        return wrong(
            f"Nothing crashed, and yet your run is {tried.status}: {one_line(tried.reason)}",
            "Two readers are two operations: their keys must differ.",
        )
    if tried.status != "completed":
        because = f": {one_line(tried.reason)}" if tried.reason else "."
        return wrong(f"Nothing crashed, and yet your run is {tried.status}{because}")
    for reader in readers:
        mails = tried.mails.get(reader["email"], 0)
        if mails != 1:
            counted = "no mail" if mails == 0 else f"{mails} mails"
            return wrong(f"Nothing crashed, and yet {reader['name']} has {counted}.")
    return None


def _started_again(
    laboratory: _Laboratory, workflow: Workflow, readers: list[dict[str, Any]]
) -> Finding | None:
    """Somebody starts the job again under a new id, and the first reader has left the list."""
    with laboratory.world() as runtime:
        runtime.run(workflow, readers, id="in the morning")
        run = runtime.run(workflow, readers[1:], id="in the afternoon")
        tried = laboratory.seen(run)
    many = [reader["name"] for reader in readers if tried.mails.get(reader["email"], 0) > 1]
    if tried.calls and (many or tried.status != "completed"):
        return wrong(
            "Somebody starts your job a second time, under another run id, and Ada has left the "
            f"list. Now {' and '.join(many)} have two mails." if many else
            "Somebody starts your job a second time, under another run id, and Ada has left the "
            f"list. Now the run is {tried.status}: {one_line(tried.reason)}",
            "Your key says something else than: this letter, for this reader. A place in the list, "
            "the time and a random number do not.",
        )  # fmt: skip
    return None


def _for_a_namesake(
    laboratory: _Laboratory, workflow: Workflow, readers: list[dict[str, Any]]
) -> Finding | None:
    """Another reader has the first one's name: all that is made of the name is the same, too."""
    other = readers[0] | {"id": 1000, "email": "ada.lovelace@example.org"}
    with laboratory.world() as runtime:
        tried = laboratory.seen(runtime.run(workflow, [*readers, other], id="two of a name"))
    mails = tried.mails.get(other["email"], 0)
    if mails == 1 and tried.status == "completed":
        return None
    because = f" ({one_line(tried.reason)})" if tried.reason else ""
    return wrong(
        f"A fourth reader is called {other['name']}, too. She has another id and another address, "
        f"and she gets {mails} letters{because}.",
        "A name, and a text that is made of it, may belong to two readers. What belongs to one?",
    )


def _judged(
    laboratory: _Laboratory, workflow: Workflow, readers: list[dict[str, Any]], report: Report
) -> Finding:
    """Say what the sweep found: the worst crash, and what can be seen there."""
    rows: list[Row] = [
        {
            "place": row.place,
            "point": _point(row),
            "mails": "-" if row.effects is None else row.effects,
            "verdict": f"{'✓' if _passes(row) else '✗'} {row.verdict}",
        }
        for row in report.schedules
    ]
    table = Table("The sweep of your workflow", rows)
    if report.reference != len(readers):
        return wrong(
            f"In a new world your workflow sends {report.reference} mails, not {len(readers)}. It "
            "remembers something outside of its journal: a crash takes that away."
        )
    bad = [row for row in report.schedules if not _passes(row)]
    if not bad:
        return right(
            f"{len(rows)} crashes, {len(rows)} times one mail for each reader. The ledger says so.",
            "A second start under another id, with a shorter list, sent nothing twice either.",
            table=table,
        )
    shown = _shown(bad)
    says = [f"{len(bad)} of {len(rows)} crashes do not end well. Look at this one: {shown.seed}"]
    with laboratory.world() as runtime:
        run = runtime.run(workflow, readers, id="exercise", crash=CrashAt.parse(shown.seed))
        runtime.recover()
        laboratory.mailbox.clock.sleep(3600)
        runtime.recover()
        says += _told(shown, laboratory.seen(run))
    return wrong(*says, table=table)


def _point(row: Schedule) -> str:
    """Name a boundary: ``request_sent no. 2 (late)``."""
    which = f" no. {row.occurrence}" if row.occurrence > 1 else ""
    return f"{row.point}{which}{f' ({row.fate})' if row.fate else ''}"


def _passes(row: Schedule) -> bool:
    """Safe, and nobody had to be asked."""
    return row.good and row.verdict != HANDED_OVER


def _shown(bad: list[Schedule]) -> Schedule:
    """The worst of them; among equals one that is easy to picture, else the first."""
    order = (DUPLICATE, LOST, STUCK)
    easy = ("effect_done", "step_done")
    return min(
        bad,
        key=lambda row: (
            order.index(row.verdict) if row.verdict in order else len(order),
            row.point not in easy,
        ),
    )


def _told(row: Schedule, tried: _Tried) -> list[str]:
    """Say what can be seen at a crash; the hints say what to do."""
    if row.verdict == HANDED_OVER:
        asked = f"Nothing is sent twice there, but a person has to decide: {one_line(tried.reason)}"
        return [asked, "This service knows keys. Does your tool declare it?"]
    if "does not match the journal" in tried.reason:
        return ["On the way back your workflow asks for another key than the one it has saved."]
    if row.verdict != DUPLICATE:
        return [f"There it comes out as {row.verdict}: {one_line(row.detail or row.status)}"]
    says = [f"After the recovery the ledger holds {row.effects} mails."]
    if tried.calls == 0 and row.place != "run":
        says.append("The mail goes out from inside a step, and a step may run again.")
    elif tried.calls == 0:
        says.append("The mail goes out from a bare line, and every recovery comes by it again.")
    elif None in tried.keys:
        says.append("The service was given no key, so the second request was a new mail to it.")
    elif len(set(tried.keys)) > len(tried.mails):
        keys = " and ".join(repr(one_line(key, 60)) for key in dict.fromkeys(tried.keys))
        says.append(f"The service was given more keys than there are letters: {keys}.")
    return says


HINTS: Final = (
    "Replay it: run the workflow with crash=dk.CrashAt.parse('…'), recover, look at the inboxes.",
    "Which line does the recovery come by again, and who could know that the mail is out already?",
    "A step may run again; what touches the world needs ctx.call(send_letter, …, key=…).",
    "The key says which letter and for which reader: 'news-7' and the reader's id, and no more.",
)

crash_proof = Exercise("02.5", "three letters, wherever it crashes", check_crash_proof, HINTS)

frame = Frame(
    "02",
    asks=(Number(1, 12), COUNT, COUNT, COUNT),
    exercises=(crash_proof,),
)
start, predict, recall, end = frame.start, frame.predict, frame.recall, frame.end

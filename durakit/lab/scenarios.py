"""Scenarios: one workflow, crashed everywhere beforehand, so that looking at a crash is instant.

A ``Scenario`` says what is run; its ``trace`` is what came out, for every crash of the sweep: what
was on disk and in the outside world at that moment, and the same after a recovery. All of it comes
from really running, in a temporary folder; what a widget shows later is only looked up.

``Moment`` is what there is to see at one time: *belief* (run, operations, journal; read from the
runtime's file) and *truth* (``Truth``; asked of the world itself). ``events`` puts both on one
line. Times are seconds since the run's first entry, rounded to the millisecond as ``run.history()``
gives them.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from durakit.clock import ManualClock
from durakit.define import Workflow
from durakit.errors import InvalidField
from durakit.lab.html import Row, Shown, SideBySide, Table, h, one_line
from durakit.run import Run
from durakit.runtime import Runtime
from durakit.sweep import NOT_REACHABLE, Report, Schedule, sweep

__all__ = [
    "POINT_WORDS",
    "Event",
    "Frame",
    "Moment",
    "RealKill",
    "Scenario",
    "Trace",
    "Truth",
    "events",
    "kill_for_real",
]

#: What a crash point means, in words that a learner can check against the disk.
POINT_WORDS: Final = {
    "run_saved": "run saved, driven by nobody yet",
    "run_claimed": "run claimed, nothing done yet",
    "end_saved": "end of the run saved",
    "before_step": "about to begin, nothing done",
    "step_done": "work done, result not saved",
    "step_saved": "result saved",
    "before_intent": "nothing about this call saved",
    "intent_saved": "intent saved, nothing sent",
    "request_sent": "request sent, and then lost",
    "effect_done": "effect done, result not saved",
    "reply_received": "reply received, result not saved",
    "result_saved": "result saved",
    "checkpoint_saved": "checkpoint saved, the state has moved on",
    "wait_saved": "the wait saved, nobody waits in memory",
    "probe_answered": "probe answered, nothing saved",
}
_LATE: Final = "request sent, and it will act late"

#: A sweep moves the world from folder to folder, so two at once would meet in it.
_one_sweep = threading.RLock()


# -- what the outside world says -------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """The outside world at one moment. What a world cannot tell is None."""

    effects: tuple[Row, ...]
    inbox: tuple[Row, ...] | None = None
    keys: tuple[Row, ...] | None = None
    requests: tuple[Row, ...] | None = None

    @classmethod
    def of(cls, world: Any) -> Truth:
        """Ask ``world``: ``effects()``, and where it has them ``inbox``, ``keys``, ``requests``."""

        def ask(verb: str) -> tuple[Row, ...] | None:
            answer = getattr(world, verb, None)
            return tuple(dict(row) for row in answer()) if callable(answer) else None

        return cls(ask("effects") or (), ask("inbox"), ask("keys"), ask("requests"))

    def inbox_table(self) -> Table:
        """What the customers see."""
        rows = [
            {"mail": mail.get("id"), "to": mail.get("to"), "subject": mail.get("subject")}
            for mail in self.inbox or ()
        ]
        empty = "(no mail)" if self.inbox is not None else "(this world has no inbox)"
        return Table("INBOX: what the customers see", rows, empty)

    def keys_table(self, *, now: bool = False) -> Table:
        """What the service remembers of keys; ``now``: also whether it has forgotten one by now."""
        rows = [
            {"key": row["key"], "answer": row.get("id"), "kept for": _duration(row, now)}
            for row in self.keys or ()
        ]
        return Table("KEYS: what the service remembers", rows, "(no key)")

    def ledger_table(self) -> Table:
        """What really happened."""
        rows = [
            {
                "effect": number,
                "tool": effect.get("tool"),
                "key": _or_none(effect.get("key")),
                "content": str(effect.get("digest", ""))[:8],
            }
            for number, effect in enumerate(self.effects, 1)
        ]
        return Table("LEDGER: what really happened", rows, "(no effect)")

    def requests_table(self) -> Table:
        """What reached the service, and how it was answered."""
        rows = [
            {
                "request": row.get("number"),
                "key": _or_none(row.get("key")),
                "outcome": row.get("outcome"),
                "mail": row.get("id") or "",
            }
            for row in self.requests or ()
        ]
        empty = "(none)" if self.requests is not None else "(this world keeps no list)"
        return Table("REQUESTS: what reached the service", rows, empty)


def _or_none(key: object) -> object:
    return "(none)" if key is None else key


def _duration(key: Row, now: bool) -> str:
    first, expires = key.get("first"), key.get("expires")
    if not isinstance(first, int | float) or not isinstance(expires, int | float):
        return "ever"
    kept = f"{(expires - first) / 3600:.4g} h"
    return f"{kept}, now forgotten" if now and key.get("expired") else kept


# -- belief and truth at one moment ----------------------------------------------------------------


@dataclass(frozen=True)
class Moment(Shown):
    """What is on disk and what has happened outside, at one moment."""

    status: str
    reason: str
    operations: tuple[Row, ...]
    journal: tuple[Row, ...]
    truth: Truth
    start: float = 0.0
    """wall seconds of the run's first entry, which is second 0 here"""

    @classmethod
    def of(cls, run: Run, world: Any) -> Moment:
        """Look at a run as the disk has it now, and at the world; neither is changed."""
        history = run.history()
        start = history["time"].iloc[0] if len(history) else None
        journal = tuple(
            {
                "seq": seq,
                "incarnation": int(entry["incarnation"]),
                "kind": str(entry["kind"]),
                "step": str(entry["step"]),
                "key": str(entry["key"]),
                "attempt": None if entry["attempt"] is None else int(entry["attempt"]),
                "seconds": round((entry["time"] - start).total_seconds(), 3),
                "says": _gist(entry["payload"]),
            }
            for seq, entry in history.astype({"attempt": object})
            .where(history.notna(), None)
            .iterrows()
        )
        columns = ["tool", "key", "status", "outcome", "attempts"]
        operations = tuple(
            {str(name): value for name, value in row.items()}
            for row in run.operations()[columns].to_dict("records")
        )
        began = 0.0 if start is None else round(start.timestamp(), 3)
        return cls(run.status, run.reason, operations, journal, Truth.of(world), began)

    @property
    def unknown(self) -> int:
        """How many operations have an outcome that nobody knows."""
        return sum(row["outcome"] == "unknown" for row in self.operations)

    def operations_table(self) -> Table:
        """What the runtime believes about the outside world."""
        return Table("OPERATIONS: what the disk says", self.operations, "(no record)")

    def journal_table(self, last: int | None = None) -> Table:
        """The journal's last entries."""
        shown = self.journal if last is None else self.journal[-last:]
        rows = [
            {
                "#": row["seq"],
                "life": row["incarnation"],
                "kind": row["kind"],
                "of": row["step"],
                "try": "" if row["attempt"] is None else row["attempt"],
                "says": row["says"],
            }
            for row in shown
        ]
        left = len(self.journal) - len(shown)
        more = f" ({left} earlier not shown)" if left else ""
        return Table(f"JOURNAL: the last entries{more}", rows, "(empty)")

    def disk(self, last: int = 6) -> SideBySide:
        """The runtime's own file."""
        return SideBySide((self.operations_table(), self.journal_table(last)))

    def outside(self) -> SideBySide:
        """The world's own file."""
        truth = self.truth
        shown = [truth.inbox_table(), truth.ledger_table()]
        if truth.keys is not None:
            shown.insert(1, truth.keys_table())
        return SideBySide(tuple(shown))

    def text(self) -> str:
        """Belief, then truth."""
        return f"the run is {self.status}\n\n{self.disk().text()}\n\n{self.outside().text()}"

    def html(self) -> str:
        """Belief, then truth."""
        return self.disk().html() + self.outside().html()


def _gist(payload: Any) -> str:
    """Return what an entry says, without what every entry repeats."""
    if not isinstance(payload, dict):
        return one_line(payload, 80)
    if "basis" in payload:
        return one_line(payload["basis"], 80)
    body = {name: payload[name] for name in payload if name not in ("left", "until")}
    only = next(iter(body.values())) if len(body) == 1 else body
    text = only if isinstance(only, str) else json.dumps(only, ensure_ascii=False)
    return one_line(text, 80)


# -- one line of time ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """One thing on the time line. ``lane``: belief, truth, or crash, which is on both."""

    lane: Literal["belief", "truth", "crash"]
    kind: str
    words: str
    seconds: float | None


def events(moment: Moment, before: Moment | None = None) -> tuple[Event, ...]:
    """Return what was written down and what really happened, in the order in which it did.

    ``before``: the same run at its crash; a crash then stands where the run was cut.
    """
    journal = [_believed(row) for row in moment.journal]
    truth = _happened(moment)
    if before is None:
        return tuple(_merged(journal, truth))
    # Journal and ledger only ever grow, so what was there at the crash is the first part of each.
    earlier = [_believed(row) for row in before.journal]
    at_crash = _happened(before)
    known = {(event.kind, event.number) for event in at_crash}
    later = [event for event in truth if (event.kind, event.number) not in known]
    return (
        *_merged(earlier, at_crash),
        Event("crash", "crash", "crash", None),
        *_merged(journal[len(earlier) :], later),
    )


@dataclass(frozen=True)
class _Happening:
    """Something that the world tells. ``number`` counts within its kind."""

    kind: str
    number: int
    words: str
    seconds: float
    key: object


def _believed(row: Row) -> tuple[Row, Event]:
    kind, step, attempt = str(row["kind"]), str(row["step"]), row["attempt"]
    words = {
        "claimed": f"claimed, life {row['incarnation']}",
        "intent": f"intent of {step}, attempt {attempt}",
    }.get(kind, f"{kind} of {step}" if step else kind)
    seconds = row["seconds"]
    assert isinstance(seconds, float)
    return row, Event("belief", kind, one_line(words, 60), seconds)


def _happened(moment: Moment) -> list[_Happening]:
    """Return the world's requests and effects since the run began, or under one of its keys."""
    ours = {row["key"] for row in moment.operations}
    found = []
    told = (("request", moment.truth.requests or ()), ("effect", moment.truth.effects))
    for kind, rows in told:
        for number, row in enumerate(rows, 1):
            time, key = row.get("time"), row.get("key")
            seconds = round(float(time) - moment.start, 3) if isinstance(time, int | float) else 0.0
            if seconds < 0 and key not in ours:
                continue
            words = "EFFECT" if kind == "effect" else _answered(row)
            found.append(_Happening(kind, number, words, seconds, key))
    # A request comes before the effect that it has, also where the clock stood still between.
    return sorted(found, key=lambda event: event.seconds)


def _answered(row: Row) -> str:
    outcome = str(row.get("outcome", ""))
    if outcome in ("delivered", "received", ""):
        return "request"
    known = {"replayed": "request, key recognised", "held": "request, held back"}
    if outcome in known:
        return known[outcome]
    return f"request, {one_line(outcome, 40)}"


def _merged(journal: Sequence[tuple[Row, Event]], truth: Sequence[_Happening]) -> list[Event]:
    """Merge by time; at equal times a call's effect stands between its intent and its result."""
    merged: list[Event] = []
    left = list(truth)
    since_intent: set[str] = set()

    def happened(event: _Happening) -> None:
        left.remove(event)
        since_intent.add(event.kind)
        merged.append(Event("truth", event.kind, event.words, event.seconds))

    asked: object = None
    calling = False
    for row, event in journal:
        assert event.seconds is not None
        for happening in [other for other in left if other.seconds < event.seconds]:
            happened(happening)
        if calling:
            # One intent has one request and at most one effect; a later one is another's.
            now = [o for o in left if o.seconds == event.seconds and o.key in (asked, None)]
            for kind in ("request", "effect"):
                also = [o for o in now if o.kind == kind and kind not in since_intent]
                for happening in also[:1]:
                    happened(happening)
        merged.append(event)
        calling, asked = event.kind == "intent", row["key"]
        if calling:
            since_intent.clear()
    for happening in list(left):
        happened(happening)
    return merged


# -- every crash of one workflow -------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """One crash: the sweep's row about it, and what was to see then and after the recovery.

    Both moments are None for a crash that could not be reached.
    """

    schedule: Schedule
    crashed: Moment | None
    recovered: Moment | None
    disk: Prints = field(repr=False)
    """the rows of every file, at the crash and after the recovery"""

    @property
    def words(self) -> str:
        """Where it is: ``send_email: effect done, result not saved``."""
        row = self.schedule
        which = f", occurrence {row.occurrence}" if row.occurrence > 1 else ""
        which += f", attempt {row.attempt}" if row.attempt > 1 else ""
        point = _LATE if row.fate == "late" else POINT_WORDS.get(row.point, one_line(row.point, 60))
        return f"{one_line(row.place, 60)}{which}: {point}"


@dataclass(frozen=True)
class Trace:
    """Every crash of one workflow, and the sweep's report that judged them."""

    report: Report
    frames: tuple[Frame, ...]

    def find(self, frame: Frame, near: int) -> int:
        """Return the position of the crash that is like ``frame``, of another trace.

        Tools may have other names there, so the boundary and its fate count; else it is the
        nearest to ``near``.
        """
        wanted = _kind_of_crash(frame)
        like = [at for at, mine in enumerate(self.frames) if _kind_of_crash(mine) == wanted]
        if like:
            return min(like, key=lambda at: abs(at - near))
        return min(near, len(self.frames) - 1)


def _kind_of_crash(frame: Frame) -> tuple[object, ...]:
    row = frame.schedule
    return row.point, row.occurrence, row.attempt, row.fate


@dataclass(frozen=True)
class Scenario:
    """What is run: ``workflow(*args)`` over ``world``, within ``deadline`` virtual seconds.

    ``seed``: of the waits that are drawn. ``name``: what the views call it, the workflow's name
    unless given. The first look at ``trace`` runs everything, some tenths of a second for a dozen
    crashes; the world is given back as it was. While that goes on nobody else should use it.
    """

    workflow: Workflow
    args: tuple[Any, ...]
    world: Any
    deadline: float | None = None
    seed: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        given: object = self.args
        if not isinstance(given, tuple):
            kind = type(given).__name__
            raise InvalidField("args", f"needs a tuple such as (customer,), got {kind}")

    @property
    def title(self) -> str:
        """What the views call it."""
        return one_line(self.name or getattr(self.workflow, "name", ""), 60)

    @cached_property
    def trace(self) -> Trace:
        """Run it without a crash and with every crash, recover each, and keep what was seen."""
        seen = _Seen(self.world)
        with _one_sweep:
            report = sweep(
                self.workflow, *self.args, world=self.world, deadline=self.deadline,
                seed=self.seed, watch=seen.note,
            )  # fmt: skip
        return Trace(report, tuple(seen.frame(schedule) for schedule in report.schedules))


#: File and table → (rows, digest of all of them); of the moments "crashed" and "recovered".
Prints = dict[str, dict[tuple[str, str], tuple[int, str]]]


@dataclass
class _Seen:
    """Notes what the sweep comes by. ``world`` None: only the files, and nothing is asked."""

    world: Any
    moments: dict[tuple[str, str], Moment] = field(default_factory=dict)
    prints: dict[str, Prints] = field(default_factory=dict)

    def note(self, stage: Literal["crashed", "recovered"], seed: str, folder: Path) -> None:
        self.prints.setdefault(seed, {})[stage] = _fingerprints(folder)
        if self.world is not None:
            with Runtime(folder / "run.db", clock=ManualClock(), durability="process") as reader:
                self.moments[seed, stage] = Moment.of(reader.get("sweep"), self.world)

    def frame(self, schedule: Schedule) -> Frame:
        crashed = self.moments.get((schedule.seed, "crashed"))
        recovered = self.moments.get((schedule.seed, "recovered"))
        return Frame(schedule, crashed, recovered, self.prints.get(schedule.seed, {}))


def _fingerprints(folder: Path) -> dict[tuple[str, str], tuple[int, str]]:
    """Return every table of every SQLite file below ``folder``, and every other file as a whole."""
    prints: dict[tuple[str, str], tuple[int, str]] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or name.endswith(("-wal", "-shm", "-journal")):
            continue
        with path.open("rb") as file:
            is_database = file.read(16) == b"SQLite format 3\0"
        if not is_database:
            content = path.read_bytes()
            prints[name, "(file)"] = (1, hashlib.sha256(content).hexdigest())
            continue
        with closing(sqlite3.connect(path)) as db:
            query = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
            for (table,) in db.execute(query).fetchall():
                quoted = '"' + table.replace('"', '""') + '"'
                # Sorted as text: tables of others need not have an order of their own.
                rows = sorted(map(repr, db.execute(f"SELECT * FROM {quoted}").fetchall()))
                digest = hashlib.sha256("\n".join(rows).encode("utf-8", "replace")).hexdigest()
                prints[name, table] = (len(rows), digest)
    return prints


# -- the same crash for real -----------------------------------------------------------------------


@dataclass(frozen=True)
class RealKill(Shown):
    """A child process killed at a crash point, beside the simulated crash at the same point.

    ``rows``: for each table, at the crash and after the recovery, how many rows each has and
    whether they are the same.
    """

    words: str
    rows: tuple[Row, ...]

    @property
    def same(self) -> bool:
        """Whether the two left the same rows, at the crash and after the recovery."""
        return bool(self.rows) and all(row["same"] == "✓ same" for row in self.rows)

    @property
    def verdict(self) -> str:
        """In one sentence."""
        if self.same:
            return f"✓ The rows are identical: {len(self.rows)} tables compared, every column."
        return "✗ The rows differ. See the table."

    def _table(self) -> Table:
        return Table("ROWS: a simulated crash beside a killed process", self.rows)

    def text(self) -> str:
        """Return what was killed, the verdict and the comparison."""
        return f"{self.words}\n{self.verdict}\n{self._table().text()}"

    def html(self) -> str:
        """Return the same as HTML."""
        said = f"<div>{h(self.words)}</div><div><b>{h(self.verdict)}</b></div>"
        return said + self._table().html()


def kill_for_real(scenario: Scenario, frame: Frame) -> RealKill:
    """Run to the same crash in a child process, kill it with SIGKILL, recover, and compare.

    Raises UsageError where no child can be made here, or for a crash that cannot be reached.
    """
    seed = frame.schedule.seed
    seen = _Seen(None)
    with _one_sweep:
        report = sweep(
            scenario.workflow, *scenario.args, world=scenario.world, deadline=scenario.deadline,
            seed=scenario.seed, mode="process", only=seed, watch=seen.note,
        )  # fmt: skip
    words = f"A child process was killed at this point ({frame.words})."
    killed = seen.prints.get(seed, {})
    if not killed or report.schedules[0].verdict == NOT_REACHABLE:
        return RealKill("The child process came by this point without being killed.", ())
    rows = []
    for stage, when in (("crashed", "at the crash"), ("recovered", "after recovery")):
        simulated, real = frame.disk.get(stage, {}), killed.get(stage, {})
        for file, table in sorted(simulated.keys() | real.keys()):
            here, there = simulated.get((file, table)), real.get((file, table))
            rows.append(
                {
                    "when": when,
                    "file": file,
                    "table": table,
                    "simulated": "-" if here is None else here[0],
                    "killed": "-" if there is None else there[0],
                    "same": "✓ same" if here == there else "✗ DIFFERENT",
                }
            )
    return RealKill(words, tuple(rows))

"""One moment of a run: belief, read from the runtime's file, beside truth, asked of the world.

``Moment`` is what there is to see at one time: *belief* (run, operations, journal) and *truth*
(``Truth``). ``events`` puts both on one line. Times are seconds since the run's first entry,
rounded to the millisecond as ``run.history()`` gives them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from durakit.lab.html import Row, Shown, SideBySide, Table, one_line
from durakit.run import Run

__all__ = ["Event", "Moment", "Truth", "events"]


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

"""What a journal says about a workflow's places: pure reading of entries.

A *slot* is one saved place: a step, a call, a wait, or a limit that fired there. The driver goes
through the slots in the order of the workflow; a machine takes them by identity.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from durakit import protocol, values
from durakit.define import Tool
from durakit.errors import DamagedFile, Suspended, UnsavableValue
from durakit.store import Entry
from durakit.values import UnsavableResult, compact


@dataclass(eq=False, repr=False)
class Slot:
    """One saved place in the workflow: a step, a call, or a limit that fired there."""

    kind: str
    name: str | None
    key: str | None
    seq: int
    payload: str | None = None
    """what concluded it; None while the call is open"""
    final: str | None = None
    """kind of the concluding entry"""
    intent: str | None = None
    """payload of a call's first intent, which tells the digest of its arguments"""

    @property
    def label(self) -> str:
        """The identity, in words."""
        key = "" if self.key is None else f" with key {short(self.key)}"
        kind = "call" if self.key is not None else self.kind.replace("limit", "step")
        return f"{kind} {short(self.name or '')}{key}"


@dataclass(frozen=True)
class Past:
    """What the saved attempts of one operation leave to those that follow."""

    waited: float | None = None
    """the wait that was drawn last, seconds"""
    last_chance_taken: bool = False
    inner_retries: int = 0
    """retries that the tool made inside its attempts"""
    compensate: bool = False
    """a person has decided so"""
    cancel_asked: bool = False
    """the service was asked to give it up"""


def past_of(entries: list[Entry], tool: str, key: str) -> Past:
    """What this journal's attempts of an operation come to."""
    waited, taken, inner = None, False, 0
    compensate = cancel_asked = False
    for entry in entries:
        if (entry.step, entry.key) != (tool, key):
            continue
        cancel_asked = cancel_asked or entry.kind == "cancel_asked"
        if entry.kind == "resolved":
            # The latest word counts: who then says 'not executed' has learned more.
            compensate = json.loads(entry.payload).get("outcome") == "compensate"
        if entry.kind != "attempt":
            continue
        body = json.loads(entry.payload)
        cancel_asked = cancel_asked or "cancel" in body
        inner = body.get("inner_retries", inner)
        then = body.get("then", {})
        if then.get("decision") == "wait" and "bound" in then:
            waited = then["seconds"]
            taken = taken or then["reason"] == protocol.LAST_CHANCE
    return Past(waited, taken, inner, compensate, cancel_asked)


def tokens_left(entries: list[Entry], tool: str) -> int | None:
    """What a tool's retry budget had left when this journal last saw it; None: it never did."""
    for entry in reversed(entries):
        saved = entry.kind in ("attempt", "result") and entry.step == tool
        if saved and '"tokens"' in entry.payload:
            tokens = json.loads(entry.payload).get("tokens")
            if isinstance(tokens, int):
                return tokens
    return None


def slots_of(entries: list[Entry]) -> list[Slot]:
    """The places that the journal has saved, in the order of the workflow."""
    slots: list[Slot] = []
    #: a compensation's place → the place of the call that it is part of, until that one goes on
    nested: dict[tuple[str | None, str | None], tuple[str, str]] = {}
    for entry in entries:
        kind, place = entry.kind, (entry.step, entry.key)
        outer = _compensated_inside(entry)
        if outer is not None:
            nested[place] = outer
        if place in nested:
            continue
        if nested and kind in ("compensated", "reopened"):
            nested = {inner: outer for inner, outer in nested.items() if outer != place}
        if kind in ("step", "limit"):
            slots.append(Slot(kind, entry.step, entry.key, entry.seq, entry.payload, kind))
            continue
        if kind in ("timer", "waiting_for"):
            waiting = "timer" if kind == "timer" else "wait"
            slots.append(Slot(waiting, entry.step, None, entry.seq, entry.payload))
            continue
        if kind in ("timer_fired", "received"):
            slots[-1].payload, slots[-1].final = entry.payload, kind
            continue
        if kind not in ("intent", "attempt", "probe", "result", "replayed", "refused",
                        "resolved", "late_reply", "compensated"):  # fmt: skip
            continue
        last = slots[-1] if slots else None
        if last is None or last.final or (last.name, last.key) != (entry.step, entry.key):
            if kind in ("resolved", "late_reply"):
                continue  # about an operation that this run only met, or one long concluded
            last = Slot("call", entry.step, entry.key, entry.seq)
            slots.append(last)
        if kind == "intent" and last.intent is None:
            last.intent = entry.payload
        settles = kind in ("resolved", "late_reply") and concludes(entry.payload)
        if settles or kind in ("result", "replayed", "refused", "compensated"):
            last.payload, last.final = entry.payload, kind
    return slots


def _compensated_inside(entry: Entry) -> tuple[str, str] | None:
    """(tool, key) of the unknown call inside of which this entry begins or ends a compensation."""
    if entry.kind not in ("intent", "replayed", "refused") or '"nested":true' not in entry.payload:
        return None
    told = undoes_of(entry)  # a reply may say 'nested' of itself
    return (told["tool"], told["key"]) if told and told.get("nested") else None


def undoes_of(entry: Entry) -> dict[str, Any] | None:
    """What an entry says of the operation that its own one undoes; None: it undoes none.

    Raises DamagedFile where that is not as we write it.
    """
    if '"undoes"' not in entry.payload:
        return None
    told = _body(entry).get("undoes")
    if told is None:
        return None
    if not isinstance(told, dict) or not all(isinstance(told.get(n), str) for n in ("tool", "key")):
        raise _misread(entry, "undoes")
    return told


def _body(entry: Entry) -> dict[str, Any]:
    try:
        body = json.loads(entry.payload)
    except ValueError as error:
        raise _misread(entry, "payload") from error
    if not isinstance(body, dict):
        raise _misread(entry, "payload")
    return body


def _misread(entry: Entry, field: str) -> DamagedFile:
    """The digests agree, so somebody has computed them anew over a payload of their own."""
    return DamagedFile(
        f"journal entry {entry.seq}, {entry.kind} of {entry.step} {short(entry.key or '')}: its "
        f"{field} is not as durakit writes it. Nothing was changed"
    )


def compensations(entries: list[Entry]) -> set[tuple[str | None, str | None]]:
    """(tool, key) of the compensations that ran inside the unknown call that they undo."""
    return {(entry.step, entry.key) for entry in entries if _compensated_inside(entry) is not None}


def begun_compensation(entries: list[Entry], tool: str, key: str) -> str | None:
    """The tool whose compensation of an operation this journal has begun, or None.

    Raises DamagedFile where the entry does not say.
    """
    for entry in reversed(entries):
        if entry.kind == "compensating" and (entry.step, entry.key) == (tool, key):
            by = _body(entry).get("by")
            if not isinstance(by, str):
                raise _misread(entry, "by")
            return by
    return None


def concludes(payload: str) -> bool:
    """Whether a word or a late reply has settled its operation as completed."""
    body = json.loads(payload)
    return "value" in body or "unsavable" in body


def given_back(payload: str, codec: values.Codec, errors: tuple[type[Exception], ...] = ()) -> Any:
    """What a saved payload means to the workflow: the value, or the error raised."""
    body = json.loads(payload)
    if "error" in body:
        raise values.load_error(body["error"], errors)
    if "unsavable" in body:
        return UnsavableResult(**body["unsavable"])
    value = body.get("value")
    return value if codec is values.PLAIN else codec.load(compact(value))


def reply_payload(tool: Tool, value: Any, more: dict[str, Any] | None = None) -> tuple[str, Any]:
    """A reply's saved form, and the value that the workflow gets: read back from it."""
    tail = "" if not more else "," + compact(more)[1:-1]
    try:
        text = tool.returns.dump(value)
    except UnsavableValue as error:
        bad = {"path": error.path, "reason": error.reason}
        return f'{{"unsavable":{compact(bad)}{tail}}}', UnsavableResult(**bad)
    return f'{{"value":{text}{tail}}}', tool.returns.load(text)


def reply_text(tool: Tool, value: Any) -> str:
    """A reply's saved form."""
    return reply_payload(tool, value)[0]


def saved_limits(entries: list[Entry]) -> tuple[dict[str, float], dict[str, float]]:
    """The least remainder and the absolute end (wall) saved for each level."""
    left: dict[str, float] = {}
    until: dict[str, float] = {}
    for entry in entries:
        if not entry.payload.startswith('{"left"'):
            continue
        body = json.loads(entry.payload)
        for label, value in body["left"].items():
            left[label] = min(value, left.get(label, value))
        for label, value in body.get("until", {}).items():
            until.setdefault(label, value)
    return left, until


def contradiction(tool: str, key: str, saved: str) -> Suspended:
    """The parking of a run about whose operation two answers differ."""
    return Suspended(
        "needs_decision",
        f"two answers about {tool} {short(key)}: saved as {saved}, and a reply that says otherwise",
        step=tool,
        key=key,
        why="conflict",
    )


def contradicts(told: dict[str, Any]) -> bool:
    """Whether an entry keeps an answer that differs from the outcome saved before it."""
    if "conflict" not in told or told.get("saved") in (None, *protocol.UNDOING):
        return False  # what is compensated was unknown, and stays so
    if told["conflict"].get("outcome") == "compensate":
        return False
    says_completed = told["conflict"].get("outcome", "completed") == "completed"
    return bool(says_completed != (told["saved"] == "SUCCEEDED"))


def disputes(entries: list[Entry]) -> set[tuple[str, str]]:
    """(tool, key) of the operations about which two answers differ and no person has decided."""
    open_: set[tuple[str, str]] = set()
    for entry in entries:
        if entry.kind in ("resolved", "late_reply") and entry.step and entry.key:
            told = json.loads(entry.payload)
            if contradicts(told):
                open_.add((entry.step, entry.key))
            elif "conflict" not in told:
                open_.discard((entry.step, entry.key))
    return open_


def in_one_line(error: Exception) -> str:
    """An error in one line; one that cannot describe itself is named by its type."""
    return f"{type(error).__name__}: {values.dump_error(error)['message']}"


def short(text: str) -> str:
    """A name or key as messages show it: quoted, escaped, at most 80 characters."""
    return repr(text if len(text) <= 80 else text[:77] + "…")

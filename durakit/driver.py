"""Driving one run: the workflow's code meets its journal.

The driver replays what is saved and does what is not. Each `ctx.step` or `ctx.call` first looks
for the next saved *slot*. A slot of the same identity is given back without running anything;
a slot of another identity is a mismatch, and nothing runs. Past the last slot, work is new.

``call`` is the protocol of one call, with ``protocol.decide`` as its only judge. Read it from
``_operate`` downwards: intent, send, reply, result, in that order.
"""

from __future__ import annotations

import copy
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, NoReturn, TypeVar

from durakit import faults, protocol, values
from durakit.clock import Clock
from durakit.deadline import Limit, ahead, narrow, recovered
from durakit.define import Found, Tool, Workflow, name_text
from durakit.errors import (
    ArgumentsDiffer,
    Cancelled,
    DamagedFile,
    DeadlineExceeded,
    InvalidField,
    LeaseLost,
    NotExecuted,
    Stop,
    StoreError,
    StoreStopped,
    Suspended,
    UnloadableValue,
    UnsavableValue,
    UsageError,
)
from durakit.faults import Incarnation
from durakit.protocol import (
    Effect,
    Event,
    Execute,
    Park,
    Probe,
    Probed,
    Record,
    Refuse,
    Replay,
    Request,
    Status,
    Wait,
)
from durakit.retry import Failure, FailureKind, classify
from durakit.store import Change, Entry, Lease, OperationMoved, OperationRow, RunRow, Store
from durakit.values import UnsavableResult
from durakit.workers import Abandoned, Workers

T = TypeVar("T")

_text = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode

#: How often (seconds) an operation that another run is driving is looked at again.
POLL = 0.05

#: A wait that is asked for again must move every clock, one that counts microseconds too.
LEAST_WAIT = 0.001

#: How often a reply is offered to a store that refuses it, and the pause between (seconds).
SAVE_TRIES = 3
SAVE_PAUSE = 0.05


@dataclass(eq=False, repr=False)
class Surroundings:
    """What a driver is given: nothing here is looked up elsewhere."""

    store: Store
    clock: Clock
    rng: random.Random
    workers: Workers
    lease: float
    settle: float
    is_dead: Callable[[str], bool]


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
        key = "" if self.key is None else f" with key {_short(self.key)}"
        kind = "call" if self.key is not None else self.kind.replace("limit", "step")
        return f"{kind} {_short(self.name or '')}{key}"


def slots_of(entries: list[Entry]) -> list[Slot]:
    """The places that the journal has saved, in the order of the workflow."""
    slots: list[Slot] = []
    for entry in entries:
        kind = entry.kind
        if kind in ("step", "limit"):
            place = Slot(kind, entry.step, entry.key, entry.seq, entry.payload, kind)
            slots.append(place)
            continue
        if kind in ("timer", "waiting_for"):
            waiting = "timer" if kind == "timer" else "wait"
            slots.append(Slot(waiting, entry.step, None, entry.seq, entry.payload))
            continue
        if kind in ("timer_fired", "received"):
            slots[-1].payload, slots[-1].final = entry.payload, kind
            continue
        if kind not in ("intent", "attempt", "probe", "result", "replayed", "refused",
                        "resolved", "late_reply"):  # fmt: skip
            continue
        last = slots[-1] if slots else None
        if last is None or last.final or (last.name, last.key) != (entry.step, entry.key):
            if kind in ("resolved", "late_reply"):
                continue  # about an operation that this run only met, or one long concluded
            last = Slot("call", entry.step, entry.key, entry.seq)
            slots.append(last)
        if kind == "intent" and last.intent is None:
            last.intent = entry.payload
        settles = kind in ("resolved", "late_reply") and _concludes(entry.payload)
        if settles or kind in ("result", "replayed", "refused"):
            last.payload, last.final = entry.payload, kind
    return slots


def _concludes(payload: str) -> bool:
    body = json.loads(payload)
    return "value" in body or "unsavable" in body


@dataclass(eq=False, repr=False)
class Attempted:
    """How one attempt ended."""

    value: Any = None
    error: Exception | None = None
    failure: Failure | None = None


@dataclass(eq=False, repr=False)
class Operating:
    """One logical operation while the driver works on it."""

    tool: Tool
    key: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arguments: str
    occurrence: int
    row: OperationRow | None = None
    ours: bool = False
    """this run's journal holds an intent of it"""
    inherited: bool = False
    resent: bool = False
    probes: int = 0
    settle_ends: float | None = None
    sent_at: float | None = None
    """monotonic time of this incarnation's latest intent"""
    last_error: Exception | None = None


class CallHandle:
    """What the tool sees of its own call; see ``durakit.define.Call``."""

    __slots__ = ("_clock", "_ends", "attempt", "fence", "key")

    def __init__(
        self, key: str, attempt: int, fence: int, clock: Clock, ends: float | None
    ) -> None:
        self.key = key
        self.attempt = attempt
        self.fence = fence
        self._clock = clock
        self._ends = ends

    def remaining(self) -> float | None:
        """Seconds left for this attempt, never below zero; None without a limit."""
        if self._ends is None:
            return None
        return max(0.0, round(self._ends - self._clock.monotonic(), 6))


class Driver:
    """One incarnation's work on one run that it has claimed."""

    def __init__(
        self,
        around: Surroundings,
        workflow: Workflow,
        row: RunRow,
        lease: Lease,
        entries: list[Entry],
        incarnation: Incarnation,
    ) -> None:
        self._around = around
        self._store = around.store
        self._clock = around.clock
        self._workflow = workflow
        self._row = row
        self._lease = lease
        self._entries = entries
        self._incarnation = incarnation
        self._watched = incarnation.watched
        self._thread = threading.get_ident()
        self._stopped: BaseException | None = None
        self._inside: str | None = None
        self._cancel = any(entry.kind == "cancel_requested" for entry in entries)
        self._commands_waiting = row.commands > 0
        self._begun = {(e.step, e.key) for e in entries if e.kind == "intent"}
        self._met = {(e.step, e.key) for e in entries if e.kind == "parked" and e.key is not None}
        #: what others have just said about an operation, by (tool, key)
        self._words: dict[tuple[str, str], str] = {}
        self._disputed = _disputes(entries)
        self._slots: list[Slot] = []
        self._next = 0
        self._counts: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()
        self._where = ""
        self._received = Counter(
            entry.step or ""
            for entry in entries
            if entry.kind == "received" and '"value":' in entry.payload
        )
        self._levels: list[tuple[str, Limit]] = []
        self._saved_left, self._saved_until = _saved_limits(entries)

    # -- the drive as a whole --------------------------------------------------------------

    def drive(self) -> None:
        """Run the workflow until it ends, parks, waits or dies.

        Raises SimulatedCrash, LeaseLost, a StoreError, or the interrupt that ended it.
        """
        before = faults.current.incarnation
        faults.current.incarnation = self._incarnation
        try:
            self._drive()
        except StoreStopped as stop:
            raise stop.error from stop.error.__cause__
        except Stop:
            raise
        except BaseException as interrupt:
            # From the keyboard, or from user code: asyncio's CancelledError, sys.exit().
            self._stopped = interrupt
            with suppress(LeaseLost, StoreError):  # what we cannot give back will end by itself
                self._store.release(self._lease, self._clock.now(), type(interrupt).__name__)
            raise
        finally:
            faults.current.incarnation = before
            # A workflow may have kept its ctx; nothing of this drive is valid any more.
            self._stopped = self._stopped or UsageError("the drive of this ctx has ended")

    def _drive(self) -> None:
        self._reach("run", "run_claimed")
        try:
            self._consume_commands()
        except Suspended as stop:
            self._end_suspended(stop)
            self._reach("run", "end_saved")
            return
        self._slots = slots_of(self._entries)
        if self._row.deadline is not None:
            left = recovered(self._saved_left.get("session"), self._row.deadline, self._clock.now())
            ends = self._clock.monotonic() + left
            self._levels.append(("session", Limit("session", "session", ends)))
        arguments = json.loads(self._entries[0].payload)["arguments"]
        try:
            try:
                args, kwargs = self._load_arguments(arguments)
            except UnloadableValue as error:
                self._unloadable("argument", error)
            self._execute(args, kwargs)
        except Suspended as stop:
            self._end_suspended(stop)
        except Cancelled:
            self._end_cancelled()
        except Stop:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a workflow raises ends its run
            if self._stopped is not None:
                # The workflow turned our stop into an error of its own; the stop stands.
                self._stopped_instead(error)
            else:
                self._end_failed(error)
        self._reach("run", "end_saved")

    def _load_arguments(self, form: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        return self._workflow.parameters.load(form)

    def _execute(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Replay and run the workflow's code to its end."""
        result = self._workflow.function(Context(self), *args, **kwargs)
        if self._stopped is not None:
            raise self._stopped
        self._check_all_slots_used()
        self._end_completed(result, self._workflow.returns)

    def _stopped_instead(self, error: Exception) -> None:
        stop = self._stopped
        if isinstance(stop, Suspended):
            self._end_suspended(stop)
        elif isinstance(stop, Cancelled):
            self._end_cancelled()
        else:
            assert stop is not None
            raise stop from error

    def _end_completed(self, result: Any, codec: values.Codec, **parts: Any) -> None:
        try:
            text = codec.dump(result)
        except UnsavableValue as error:
            self._end_failed(error)
            return
        unknown = self._left_unknown()
        if unknown is not None:
            self._end_suspended(unknown)
            return
        payload = f'{{"value":{text}}}'
        self._append("completed", payload=payload, ends="completed", progress=True, **parts)

    def _end_failed(self, error: Exception) -> None:
        left = self._left_over()
        if left is not None:
            # Saved work is left over, an unknown call perhaps: the code is not the one it was.
            self._end_suspended(self._mismatched(left, f"the workflow's end ({_told(error)})"))
            return
        unknown = self._left_unknown()
        if unknown is not None:
            self._end_suspended(unknown)
            return
        saved = values.dump_error(error)
        self._append("failed", payload=_text({"error": saved}), ends="failed", progress=True)

    def _left_over(self) -> Slot | None:
        """The first saved place that the code has not come by."""
        return self._slots[self._next] if self._next < len(self._slots) else None

    def _end_cancelled(self) -> None:
        unknown = self._left_unknown()
        if unknown is None:
            self._append("cancelled", payload="{}", ends="cancelled")
        else:
            self._end_suspended(unknown)

    def _left_unknown(self) -> Suspended | None:
        """Why the run may not end yet: an operation of its own has no outcome."""
        if not self._begun:
            return None
        for row in self._read(self._store.operations_of, self._row):
            unknown = protocol.outcome(row.status, row.contract) is protocol.Outcome.UNKNOWN
            if unknown and (row.tool, row.key) in self._begun:
                return Suspended(
                    "needs_decision",
                    f"unknown: {row.tool} {_short(row.key)} was begun, and the run would end "
                    "without asking for it again",
                    step=row.tool,
                    key=row.key,
                )
        return None

    def _end_suspended(self, stop: Suspended) -> None:
        if self._cancel and stop.place.get("why") == "mismatch":
            self._end_cancelled()  # the code that does not fit is not needed for that
            return
        self._append(
            "parked" if stop.status == "needs_decision" else "waiting",
            step=stop.place.get("step"),
            key=stop.place.get("key"),
            payload=_text({"reason": stop.reason, "why": stop.place.get("why", "unknown")}),
            ends=stop.status,
            wake=stop.place.get("wake"),
        )

    def _check_all_slots_used(self) -> None:
        left = self._left_over()
        if left is not None:
            self._mismatch(left, "the workflow's end")

    # -- small shared moves ----------------------------------------------------------------

    def _reach(self, place: str, point: str, occurrence: int = 1, attempt: int = 1) -> None:
        if self._watched:
            try:
                self._incarnation.reach(place, point, occurrence, attempt)
            except Stop as stop:
                self._stopped = stop
                raise

    def _stop(self, stop: BaseException) -> NoReturn:
        """End the drive here; every later touch of the context ends it again."""
        self._stopped = stop
        raise stop

    def stopped_by(self, stop: BaseException) -> None:
        """What is no error ends the drive, also where the workflow swallows it."""
        if self._stopped is None and not isinstance(stop, Exception):
            self._stopped = stop

    def _ready(self) -> None:
        if self._stopped is not None:
            raise self._stopped
        if self._incarnation.dead is not None:
            self._stop(self._incarnation.dead)
        if threading.get_ident() != self._thread:
            raise UsageError("ctx belongs to the thread that runs the workflow")
        if self._inside is not None:
            raise UsageError(
                f"ctx is used inside {self._inside}: steps and calls stand side by side in the "
                "workflow, so that each is saved, and retried, by itself"
            )

    def _read(self, read: Callable[..., T], *args: Any) -> T:
        """Read from the store; its trouble ends the drive, and is no news to the workflow."""
        try:
            return read(*args)
        except StoreError as error:
            self._stop(StoreStopped(error))

    def _append(
        self,
        kind: str,
        *,
        payload: str,
        limit: float | None = None,
        wait: float | None = None,
        **parts: Any,
    ) -> None:
        """Append under our lease, which it extends past ``limit`` seconds of work or waiting."""
        now = self._clock.now()
        if self._levels:
            payload = self._with_limits(payload)
        try:
            waiting = self._store.append(
                self._lease,
                kind,
                payload=payload,
                now=now,
                leased=0.0 if limit is None else now + limit + self._lease.length,
                wait=wait,
                **parts,
            )
        except LeaseLost as lost:
            self._stop(lost)
        except StoreError as error:
            self._stop(StoreStopped(error))
        self._commands_waiting = bool(waiting) and "ends" not in parts

    def _with_limits(self, payload: str) -> str:
        """The remainder of every level, and the end of a turn the first time it is saved."""
        now, wall = self._clock.monotonic(), self._clock.now()
        left, until = {}, {}
        for label, limit in self._levels:
            remaining = round(limit.remaining(now), 6)
            left[label] = remaining
            if label != "session" and label not in self._saved_until:
                until[label] = self._saved_until[label] = round(wall + remaining, 6)
        head = f'"left":{_text(left)}' + (f',"until":{_text(until)}' if until else "")
        return "{" + head + ("," + payload[1:] if payload != "{}" else "}")

    def _tightest(self) -> Limit | None:
        return self._levels[-1][1] if self._levels else None

    def _remaining(self) -> float | None:
        return self._levels[-1][1].remaining(self._clock.monotonic()) if self._levels else None

    def _stopping(self) -> str | None:
        if self._cancel:
            return protocol.CANCEL
        return protocol.DEADLINE if self._remaining() == 0.0 else None

    def _saved_slot(self, kind: str, name: str, key: str | None) -> Slot | None:
        """The next saved slot if it is this place; None past the last; else a mismatch."""
        if self._next >= len(self._slots):
            return None
        slot = self._slots[self._next]
        same = slot.name == name and slot.key == key
        if not same or slot.kind not in (kind, "limit"):
            self._mismatch(slot, Slot(kind, name, key, 0).label)
        self._next += 1
        if slot.kind == "limit":
            raise values.load_error(json.loads(slot.payload or "{}")["error"])
        return slot

    def _mismatch(self, slot: Slot, asked: str) -> NoReturn:
        self._stop(self._mismatched(slot, asked))

    def _other_arguments(self, slot: Slot, op: Operating) -> NoReturn:
        """A stored outcome belongs to the request it was made for, and to no other."""
        del op
        self._mismatch(slot, "it with other arguments")

    def _mismatched(self, slot: Slot, asked: str) -> Suspended:
        return Suspended(
            "needs_decision",
            f"the code does not match the journal: entry {slot.seq} is {slot.label}, "
            f"and the code asks for {asked}. Define the old code again and resume, or "
            "cancel the run",
            why="mismatch",
        )

    def _give_back(
        self, payload: str, codec: values.Codec, errors: tuple[type[Exception], ...] = ()
    ) -> Any:
        """A saved outcome. Workflow code never goes on with a value that its types do not fit."""
        try:
            return _given_back(payload, codec, errors)
        except UnloadableValue as error:
            if "error" in json.loads(payload):
                raise  # it is the outcome itself
            self._unloadable("value", error)

    def _unloadable(self, what: str, error: UnloadableValue) -> NoReturn:
        problem = str(error).removeprefix("saved value ")
        reason = (
            f"the code does not match the journal: a saved {what} {problem}. Define the old types "
            "again and resume, or cancel the run"
        )
        self._stop(Suspended("needs_decision", reason, why="mismatch"))

    def _begin_new_work(self, name: str, key: str | None) -> None:
        """A cancel request or a limit that has fired stops new work here."""
        self._consume_commands()
        if self._cancel:
            self._stop(Cancelled())
        limit = self._tightest()
        if limit is not None and limit.remaining(self._clock.monotonic()) <= 0.0:
            # A user's stop that waits already is not turned into a time-out.
            self._commands_waiting = True
            self._consume_commands()
            if self._cancel:
                self._stop(Cancelled())
            error = DeadlineExceeded(limit.level, limit.name, f"{name!r} was not begun")
            self._append(
                "limit", step=name, key=key, payload=_text({"error": values.dump_error(error)})
            )
            raise error

    # -- steps and turns -------------------------------------------------------------------

    def step(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """See ``Context.step``."""
        self._ready()
        name = name_text("step name", name)
        if not callable(function):
            raise InvalidField(name, f"a step needs a function, got {type(function).__name__}")
        self._counts[name] += 1
        occurrence = self._counts[name]
        try:
            codec = values.returns(function)
        except TypeError:  # a callable that cannot be hashed
            codec = values.PLAIN
        slot = self._saved_slot("step", name, None)
        if slot is not None:
            return self._give_back(slot.payload or "", codec)
        self._begin_new_work(name, None)
        if self._watched:
            self._incarnation.busy = (name, occurrence, 1)
        self._reach(name, "before_step", occurrence)
        error: Exception | None = None
        text = payload = ""
        self._inside = f"step {_short(name)}"
        try:
            text = codec.dump(function(*args, **kwargs))
            payload = f'{{"value":{text}}}'
        except Exception as raised:  # noqa: BLE001 - whatever a step raises is its outcome
            if self._incarnation.dead is not None:
                self._stop(self._incarnation.dead)
            error = raised
            payload = _text({"error": values.dump_error(raised)})
        finally:
            self._inside = None
        self._reach(name, "step_done", occurrence)
        self._save_step(name, occurrence, payload)
        if error is not None:
            raise values.load_error(json.loads(payload)["error"]) from error
        return codec.load(text)

    def _save_step(self, name: str, occurrence: int, payload: str) -> None:
        self._append("step", step=name, payload=payload, progress=True)
        self._reach(name, "step_saved", occurrence)

    # -- waiting without working -----------------------------------------------------------

    def sleep(self, duration: float, name: str) -> None:
        """See ``Context.sleep``."""
        self._ready()
        name_text("timer name", name)
        wait = ahead("seconds", duration)
        slot = self._saved_slot("timer", name, None)
        if slot is not None and slot.final:
            return
        if slot is None:
            self._begin_wait(name, wait)
            until = round(self._clock.now() + wait, 6)
            self._save_wait("timer", name, {"wake": until, "seconds": wait})
        else:
            until = json.loads(slot.payload or "{}")["wake"]
        if self._clock.now() < until:
            self._wait_outside(f"sleeps until {_moment(until)}", name, until)
        self._append("timer_fired", step=name, payload="{}", progress=True)

    def wait_for(self, name: str, timeout: float | None) -> Any:
        """See ``Context.wait_for``."""
        self._ready()
        name_text("signal name", name)
        limit = None if timeout is None else ahead("timeout", timeout)
        slot = self._saved_slot("wait", name, None)
        if slot is not None and slot.final:
            return self._give_back(slot.payload or "", values.PLAIN)
        if slot is None:
            self._begin_wait(name, None)
            until = None if limit is None else round(self._clock.now() + limit, 6)
            self._save_wait("waiting_for", name, {"wake": until})
        else:
            until = json.loads(slot.payload or "{}")["wake"]
        arrived = [e for e in self._entries if e.kind == "signal" and e.step == name]
        taken = self._received[name]
        if len(arrived) > taken:
            payload = _text({"value": json.loads(arrived[taken].payload)["value"]})
        elif until is not None and self._clock.now() >= until:
            error = DeadlineExceeded("wait", name, "no signal came")
            payload = _text({"error": values.dump_error(error)})
        elif self._stopping() == protocol.DEADLINE:
            limit_ = self._tightest()
            assert limit_ is not None
            error = DeadlineExceeded(limit_.level, limit_.name, f"no signal {_short(name)} came")
            payload = _text({"error": values.dump_error(error)})
        else:
            self._wait_outside(
                f"waits for the signal {_short(name)}", name, self._wake_by_limit(until)
            )
        self._received[name] += "value" in json.loads(payload)
        self._append("received", step=name, payload=payload, progress=True)
        return self._give_back(payload, values.PLAIN)

    def _begin_wait(self, name: str, wait: float | None) -> None:
        """New work, and one that has no use where it would reach the limit."""
        self._begin_new_work(name, None)
        limit, remaining = self._tightest(), self._remaining()
        if limit is not None and wait is not None and wait >= (remaining or 0.0):
            error = DeadlineExceeded(limit.level, limit.name, f"{name!r} would outlast it")
            self._append("limit", step=name, payload=_text({"error": values.dump_error(error)}))
            raise error

    def _save_wait(self, kind: str, name: str, told: dict[str, Any]) -> None:
        self._append(kind, step=name, payload=_text(told), progress=True)
        self._reach(name, "wait_saved")

    def _wake_by_limit(self, until: float | None) -> float | None:
        """A waiting run is looked at when its limit fires, so that it ends then and not never."""
        remaining = self._remaining()
        if remaining is None:
            return until
        ends = round(self._clock.now() + remaining + 5e-7, 6)
        return ends if until is None else min(until, ends)

    def _wait_outside(self, reason: str, name: str, wake: float | None) -> NoReturn:
        """Give the run back until the time or the signal comes: a waiting run holds no lease."""
        if self._cancel:
            self._stop(Cancelled())
        self._stop(Suspended("waiting", reason, step=name, why="waiting", wake=wake))

    @contextmanager
    def turn(self, name: str, timeout: float) -> Iterator[None]:
        """See ``Context.turn``."""
        self._ready()
        name_text("turn name", name)
        own = ahead("timeout", timeout)
        self._turns[name] += 1
        nth = self._turns[name]
        label = f"turn {name}{self._where}" + (f" #{nth}" if nth > 1 else "")
        if label in self._saved_until:
            own = min(
                own,
                recovered(self._saved_left.get(label), self._saved_until[label], self._clock.now()),
            )
        limit = narrow(self._tightest(), "turn", name, own, self._clock.monotonic())
        self._levels.append((label, limit))
        try:
            yield
        finally:
            self._levels.pop()

    # -- the protocol of one call ----------------------------------------------------------

    def call(self, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any], key: str) -> Any:
        """See ``Context.call``."""
        self._ready()
        if not isinstance(tool, Tool):
            raise InvalidField("tool", f"declare it with @dk.tool; got {type(tool).__name__}")
        name_text("key", key)
        arguments = values.digest(tool.parameters.dump(args, kwargs))
        self._counts[tool.name] += 1
        op = Operating(tool, key, args, kwargs, arguments, self._counts[tool.name])
        slot = self._saved_slot("call", tool.name, key)
        if slot is None and (tool.name, key) in self._met:
            # Another run was at work on it when this one stopped here; that may be settled now.
            self._look_again(op)
        elif slot is None:
            self._begin_new_work(tool.name, key)
        elif slot.payload is not None:
            if slot.intent is not None and arguments not in slot.intent:
                self._other_arguments(slot, op)
            return self._give_back(slot.payload, tool.returns, tool.errors)
        else:
            op.ours = True
            self._look_again(op)
            self._check_row(op)
        try:
            return self._operate(op)
        except Stop as stop:
            self._stop(stop)

    def _operate(self, op: Operating) -> Any:
        """Ask ``decide``, do what it says, until the operation has an outcome."""
        while True:
            try:
                self._consume_commands()
                told = self._words.pop((op.tool.name, op.key), None)
                if told is not None:
                    self._look_again(op)
                    if op.ours and _concludes(told):
                        return self._give_back(told, op.tool.returns, op.tool.errors)
                self._check_undisputed(op)
                late = self._take_late_reply(op)
                if late is not None and self._unresolved(op):
                    return self._save_late_reply(op, late)
                if late is not None:
                    self._conflict(op, _reply_payload(op.tool, late.value)[0])
                decision = self._decide(op)
                match decision:
                    case Execute():
                        if self._still_running(op):
                            continue
                        attempted = self._attempt(op, decision)
                        if attempted.failure is None:
                            return self._save_reply(op, attempted.value)
                        self._save_failure(op, attempted)
                    case Wait():
                        self._wait(op, decision)
                    case Probe():
                        found = self._ask(op)
                        if found is not None:
                            return found.result
                    case Replay():
                        return self._replay(op)
                    case Refuse(reason):
                        self._refuse(op, reason)
                    case Park(reason):
                        self._park(op, reason)
            except OperationMoved:
                self._look_again(op)

    def _check_undisputed(self, op: Operating) -> None:
        """Where two answers differ, nothing is sent before a person has decided."""
        row = op.row
        if row is not None and row.status == "REFUSED" and (row.tool, row.key) in self._disputed:
            self._stop(_contradiction(row.tool, row.key, row.status))

    def _contract(self, op: Operating) -> protocol.Contract:
        """The contract that decides: of an unknown operation the stricter of saved and declared."""
        if op.row is None or not self._unresolved(op):
            return op.tool.contract
        return protocol.stricter(op.tool.contract, op.row.contract)

    def _decide(
        self,
        op: Operating,
        failure: Failure | None = None,
        probed: Probed | None = None,
        row: OperationRow | None = None,
    ) -> protocol.Decision:
        row = row or op.row
        now, mono = self._moment(op), self._clock.monotonic()
        record = None if row is None else self._record(row, now)
        if record is not None and op.settle_ends is None:
            op.settle_ends = mono + self._around.settle
        request = Request(
            arguments=op.arguments,
            remaining=self._remaining(),
            settle=max(0.0, (op.settle_ends or mono + self._around.settle) - mono),
            stopping=self._stopping(),
            inherited=op.inherited,
            resent=op.resent,
            failure=failure,
            probed=probed,
            probes=op.probes,
        )
        draw = 0.0 if failure is None else self._around.rng.random()
        return protocol.decide(record, request, self._contract(op), op.tool.policy, now, draw)

    def _record(self, row: OperationRow, now: float) -> Record:
        elsewhere = row.run != self._row.run and row.run_token == row.token
        held = elsewhere and row.owner is not None and not self._around.is_dead(row.owner)
        return Record(
            status=Status(row.status),
            arguments=row.arguments,
            attempts=row.attempts,
            first_sent=row.first_sent,
            sent=row.sent,
            not_before=row.not_before,
            held_until=row.leased if held and (row.leased or 0.0) > now else None,
        )

    def _moment(self, op: Operating) -> float:
        """Wall time, counted by the monotonic hand since our own intent.

        A correction of the wall clock meanwhile makes no settling time end early or late.
        """
        if op.sent_at is None or op.row is None:
            return self._clock.now()
        return round(op.row.sent + self._clock.monotonic() - op.sent_at, 6)

    def _look_again(self, op: Operating) -> None:
        op.row = self._read(self._store.read_operation, self._row.account, op.tool.name, op.key)
        op.inherited, op.sent_at = True, None

    def _check_row(self, op: Operating) -> None:
        """Our journal holds this call's intent: a row that does not agree is damage, not news."""
        row = op.row
        intents = [
            entry
            for entry in self._entries
            if (entry.kind, entry.step, entry.key) == ("intent", op.tool.name, op.key)
        ]
        agrees = (
            row is not None
            and row.status in set(Status)
            and all(
                json.loads(entry.payload)["arguments"] == row.arguments
                and (entry.attempt or 0) <= row.attempts
                and (entry.attempt != 1 or entry.time == row.first_sent)
                for entry in intents
            )
        )
        if not agrees:
            what = f"operation {op.tool.name} {_short(op.key)} is not what the journal of run"
            error = DamagedFile(f"{self._store.name}: {what} {self._row.id!r} says it was")
            self._stop(StoreStopped(error))

    def _change(
        self,
        op: Operating,
        event: Event,
        *,
        attempts: int | None = None,
        sent: float | None = None,
        not_before: float | None = None,
        concludes: bool = False,
    ) -> Change:
        """The row's move for ``event``, as ``protocol.TRANSITIONS`` has it."""
        row = op.row
        status = Status.NEW if row is None else Status(row.status)
        if row is None:
            return Change(
                self._row.account, op.tool.name, op.key, op.arguments, op.tool.contract.effect,
                protocol.after(status, event), 1, sent or 0.0, None, None,
            )  # fmt: skip
        # A new attempt is made under the contract of today; what follows belongs to that attempt.
        contract = op.tool.contract.effect if event is Event.INTENT else row.contract
        return Change(
            row.account, row.tool, row.key, row.arguments, contract,
            protocol.after(status, event), attempts or row.attempts,
            row.sent if sent is None else sent, not_before, (row.status, row.attempts), concludes,
        )  # fmt: skip

    def _moved(self, op: Operating, change: Change, now: float) -> None:
        """Remember the row as we have just written it."""
        first = now if op.row is None else op.row.first_sent
        op.row = OperationRow(
            change.account, change.tool, change.key, change.arguments, change.contract,
            change.status, change.attempts, first, change.sent, change.not_before,
            self._row.run, self._lease.token, None, None,
            self._row.id, self._lease.owner, self._lease.leased, self._lease.token,
        )  # fmt: skip

    def _note(self, op: Operating, kind: str, payload: str, change: Change, **parts: Any) -> None:
        """Append an entry about ``op`` together with its row's move."""
        now = self._clock.now()
        self._append(
            kind, step=change.tool, key=change.key, attempt=change.attempts, payload=payload,
            change=change, **parts,
        )  # fmt: skip
        if not change.concludes:
            self._moved(op, change, now)

    def _attempt(self, op: Operating, decision: Execute) -> Attempted:
        """Save the intent, then send."""
        tool, attempt = op.tool, decision.attempt
        self._reach(tool.name, "before_intent", op.occurrence, attempt)
        now = self._clock.now()
        limit = self._attempt_limit(op)
        change = self._change(op, decision.event, attempts=attempt, sent=now)
        intent = f'{{"arguments":"{op.arguments}","basis":"{decision.basis}"}}'
        op.sent_at = self._clock.monotonic()
        seconds_left = None if limit is None else limit.remaining(op.sent_at)
        # A tool without a limit of its own does not hold the lease for a whole session.
        held = None if tool.timeout is None else seconds_left
        self._note(op, "intent", intent, change, limit=held, wait=seconds_left)
        self._begun.add((tool.name, op.key))
        self._consume_commands()
        if (tool.name, op.key) in self._words:
            op.ours = True
            raise OperationMoved(op.key)  # somebody knows how it ended: nothing is sent
        if self._cancel and decision.event is Event.INTENT:
            # The commit that saved the intent brought the request to stop: nothing was sent.
            told = _text({"because": "cancelled before it was sent"})
            self._note(op, "attempt", told, self._change(op, Event.REFUSAL))
            self._stop(Cancelled())
        op.ours, op.inherited = True, False
        op.resent = op.resent or decision.event is Event.RESEND
        self._reach(tool.name, "intent_saved", op.occurrence, attempt)
        attempted = self._send(op, attempt, limit)
        if attempted.failure is None or attempted.failure.kind is not FailureKind.UNKNOWN:
            self._reach(tool.name, "reply_received", op.occurrence, attempt)
        return attempted

    def _attempt_limit(self, op: Operating) -> Limit | None:
        """min(the tool's own limit, what its parents have left).

        Where the parents have nothing left, the settle allowance stands in for them.
        """
        now = self._clock.monotonic()
        parent = self._tightest()
        if self._stopping():
            parent = Limit("settle", op.tool.name, op.settle_ends or now + self._around.settle)
        if op.tool.timeout is None:
            return parent
        return narrow(parent, "call", op.tool.name, op.tool.timeout, now)

    def _send(self, op: Operating, attempt: int, limit: Limit | None) -> Attempted:
        """Run the tool's function, at most until ``limit`` where the tool has a timeout."""
        tool, clock = op.tool, self._clock
        ends = None if limit is None else limit.ends
        handle = CallHandle(op.key, attempt, self._lease.token, clock, ends)
        if self._watched:
            self._incarnation.busy = (tool.name, op.occurrence, attempt)

        # A copy for each attempt: what a tool does to its arguments reaches neither the next
        # attempt (same key, same content) nor the workflow (a replay would not see it).
        args, kwargs = _copied(op.args), op.kwargs and copy.deepcopy(op.kwargs)

        def work() -> Any:
            return tool.function(handle, *args, **kwargs)

        began = clock.monotonic()
        abandoned: Abandoned | None = None
        value: Any = None
        error: Exception | None = None
        try:
            what = f"tool {tool.name}"
            abandoned, value = self._bounded(op, what, work, ends, attempt=True)
        except Exception as raised:  # noqa: BLE001 - whatever a tool raises is judged
            error = raised
        if self._incarnation.dead is not None:
            self._stop(self._incarnation.dead)
        over = tool.timeout is not None and ends is not None and clock.monotonic() > ends
        if abandoned is None and over and error is None:
            # Without a thread of its own the tool could not be left at its limit; its reply
            # is treated as what it is: one that came too late, and evidence.
            abandoned = Abandoned.finished(value, partial(_reply_text, tool))
        if abandoned is not None:
            self._around.workers.abandon(self._identity(op), abandoned)
            return self._timed_out(op, limit, clock.monotonic() - began)
        if error is None:
            return Attempted(value)
        op.last_error = error
        judged = classify(
            error, effect=self._contract(op).effect is not Effect.NONE, now=self._clock.now()
        )
        return Attempted(None, error, judged)

    def _bounded(
        self,
        op: Operating,
        inside: str,
        work: Callable[[], Any],
        ends: float | None,
        *,
        attempt: bool,
    ) -> tuple[Abandoned | None, Any]:
        """Run the tool or its probe: (None, value), or (the job, None) once ``ends`` has passed.

        A tool with a limit runs on a thread of its own, where it can be left; any other, and
        every tool on a virtual clock, in this one. Raises what ``work`` raised.
        """
        self._inside = inside
        try:
            if op.tool.timeout is None or self._clock.kind != "system":
                return None, work()
            assert ends is not None
            left = max(0.0, ends - self._clock.monotonic())
            job = Abandoned(work, self._incarnation, dump=partial(_reply_text, op.tool))
            return self._around.workers.run(job, left, self._identity(op) if attempt else None)
        finally:
            self._inside = None

    def _timed_out(self, op: Operating, limit: Limit | None, took: float) -> Attempted:
        assert limit is not None
        error = DeadlineExceeded(
            limit.level, limit.name, f"{op.tool.name} gave no reply within {took:.3g} s"
        )
        op.last_error = error
        kind = FailureKind.UNKNOWN
        if self._contract(op).effect is Effect.NONE:
            kind = FailureKind.TRANSIENT
        return Attempted(None, error, Failure(kind, f"no reply before the {limit.level} limit"))

    def _save_reply(self, op: Operating, value: Any) -> Any:
        """A reply in memory is saved, deadline or not: the truth is never stopped."""
        payload, value = _reply_payload(op.tool, value)
        self._conclude(op, "result", payload, Event.REPLY)
        self._reach(op.tool.name, "result_saved", op.occurrence, op.row.attempts if op.row else 1)
        return value

    def _conclude(self, op: Operating, kind: str, payload: str, event: Event) -> None:
        """Save what settles the operation; a store that hiccups is asked again."""
        for attempt in range(1, SAVE_TRIES + 1):
            try:
                change = self._change(op, event, concludes=True)
                self._note(op, kind, payload, change, progress=True)
                return
            except OperationMoved:
                if event is Event.FINAL_REFUSAL:
                    raise  # a refusal of our attempt says nothing about the other one
                # Another run, or a person, moved it while we held the reply.
                self._look_again(op)
                if op.row is None or Status(op.row.status) not in (
                    Status.DISPATCHED,
                    Status.RESENT,
                ):
                    self._conflict(op, payload)
                event = Event.LATE_REPLY
            except StoreStopped:
                if attempt == SAVE_TRIES:
                    raise
                self._stopped = None
                self._clock.sleep(SAVE_PAUSE * attempt)
        raise AssertionError("unreachable")  # pragma: no cover

    def _conflict(self, op: Operating, payload: str) -> None:
        """Our evidence meets an outcome that is saved already: keep both."""
        row = op.row
        saved = None if row is None else self._read(self._store.reply_of, row)
        body = json.loads(payload)
        agrees = row is not None and row.status == "SUCCEEDED"
        if agrees and saved is not None and json.loads(saved).get("value") == body.get("value"):
            raise OperationMoved(op.key)
        told = {"conflict": body, "saved": row.status if row else None}
        self._append("late_reply", step=op.tool.name, key=op.key, payload=_text(told))
        self._stop(_contradiction(op.tool.name, op.key, row.status if row else "nothing"))

    def _save_failure(self, op: Operating, attempted: Attempted) -> None:
        """Save a failed attempt together with what follows from it; return to go on."""
        assert attempted.failure is not None
        assert attempted.error is not None
        assert op.row is not None
        failure, tool = attempted.failure, op.tool
        event = protocol.FAILURE_EVENTS[failure.kind]
        status = protocol.after(Status(op.row.status), event)
        error = values.dump_error(attempted.error, tool.errors)
        attempt = op.row.attempts
        if status is Status.FAILED:
            self._conclude(op, "result", _text({"error": error}), event)
            self._reach(tool.name, "result_saved", op.occurrence, attempt)
            self._raise_saved(op, error)
        moved = op.row._replace(status=status.value, not_before=None)
        decision = self._decide(op, failure=failure, row=moved)
        told = {"error": error, "judged": failure.kind.value, "because": failure.reason}
        if isinstance(decision, Refuse):
            final = self._final_error(op, decision.reason, attempted.error)
            saved = values.dump_error(final, tool.errors)
            body = {**told, "error": saved, "why": decision.reason}
            self._note(op, "result", _text(body), self._change(op, event), progress=True)
            self._reach(tool.name, "result_saved", op.occurrence, attempt)
            self._raise_saved(op, saved, attempted.error)
        told["then"] = protocol.describe(decision)
        not_before, limit = None, None
        if isinstance(decision, Wait):
            not_before, limit = self._clock.now() + decision.seconds, decision.seconds
        change = self._change(op, event, not_before=not_before)
        self._note(op, "attempt", _text(told), change, limit=limit)
        if failure.kind is not FailureKind.UNKNOWN:
            self._reach(tool.name, "result_saved", op.occurrence, attempt)
        if isinstance(decision, Park):
            self._park(op, decision.reason)
        elif isinstance(decision, Wait):
            self._wait(op, decision)

    def _final_error(self, op: Operating, reason: str, error: Exception | None) -> Exception:
        """What a call that ends without an outcome of its own raises."""
        if reason == protocol.DEADLINE:
            limit = self._tightest()
            level, name = (limit.level, limit.name) if limit else ("session", "session")
            last = f"; last error: {_told(error)}" if error is not None else ""
            known = "not executed" if op.row is not None else "not begun"
            return DeadlineExceeded(level, name, f"{op.tool.name} is {known}{last}")
        if error is not None:
            return error
        tries = op.row.attempts if op.row else 0
        return NotExecuted(f"{op.tool.name} was not executed after {tries} attempts")

    def _raise_saved(
        self, op: Operating, saved: dict[str, Any], cause: Exception | None = None
    ) -> NoReturn:
        raise values.load_error(saved, op.tool.errors) from cause or op.last_error

    def _wait(self, op: Operating, decision: Wait) -> None:
        if decision.reason == protocol.IN_PROGRESS:
            self._clock.sleep(max(LEAST_WAIT, min(POLL, decision.seconds)))
            self._commands_waiting = True  # nothing is appended here that would tell us
            self._consume_commands()
            self._look_again(op)
            return
        self._clock.sleep(decision.seconds)
        # A wait that was drawn is over by the clock that drew it; a wall clock set back
        # meanwhile must not make it begin again.
        if op.row is not None:
            op.row = op.row._replace(not_before=None)

    def _ask(self, op: Operating) -> Found | None:
        """Probe; returns the answer only where it settles the operation as completed."""
        assert op.tool.probe is not None
        assert op.row is not None
        asked = self._moment(op)
        limit = self._attempt_limit(op)
        ends = None if limit is None else limit.ends
        handle = CallHandle(op.key, op.row.attempts, self._lease.token, self._clock, ends)
        op.probes += 1
        problem = None
        probe = op.tool.probe
        try:
            what = f"probe of {op.tool.name}"
            left, answer = self._bounded(op, what, lambda: probe(handle), ends, attempt=False)
            if left is not None:
                answer, problem = Probed.STILL_UNKNOWN, "no answer before the limit"
        except Exception as error:  # noqa: BLE001 - a probe that fails has told nothing
            answer, problem = Probed.STILL_UNKNOWN, _told(error)
        if self._incarnation.dead is not None:
            self._stop(self._incarnation.dead)
        if not isinstance(answer, Found | Probed):
            kind = type(answer).__name__
            problem = f"a probe answers Found(…), Absent or StillUnknown, and this one a {kind}"
            answer = Probed.STILL_UNKNOWN
        self._reach(op.tool.name, "probe_answered", op.occurrence, op.row.attempts)
        record = self._record(op.row, self._clock.now())
        probed = answer if isinstance(answer, Probed) else None
        event = protocol.probe_event(
            record, self._contract(op), isinstance(answer, Found), probed, asked
        )
        if isinstance(answer, Found):
            payload, value = _reply_payload(op.tool, answer.result, {"basis": "probe: found"})
            self._conclude(op, "result", payload, Event.FOUND)
            return Found(value)
        told: dict[str, Any] = {"answer": answer.value}
        if problem:
            told["problem"] = problem
        if event is Event.ABSENT:
            change = self._change(op, event)
            told["basis"] = "asked after the settling time: final"
            self._note(op, "probe", _text(told), change)
            return None
        decision = self._decide(op, probed=probed)
        told["then"] = protocol.describe(decision)
        self._append(
            "probe", step=op.tool.name, key=op.key, attempt=op.row.attempts, payload=_text(told)
        )
        if isinstance(decision, Wait):
            self._clock.sleep(max(LEAST_WAIT, decision.seconds))
        elif isinstance(decision, Park):
            self._park(op, decision.reason)
        return None

    def _replay(self, op: Operating) -> Any:
        """Another run, or an earlier call here, has concluded it: give that, marked so."""
        assert op.row is not None
        payload = self._read(self._store.reply_of, op.row)
        if payload is None:
            self._park(op, "concluded, but its reply is not in this file")
        assert payload is not None
        body = json.loads(payload)
        told = {name: body[name] for name in ("value", "unsavable", "error") if name in body}
        told["replay"] = {"run": op.row.run_id, "first_sent": op.row.first_sent}
        text = _text(told)
        self._append("replayed", step=op.tool.name, key=op.key, payload=text, progress=True)
        return self._give_back(text, op.tool.returns, op.tool.errors)

    def _refuse(self, op: Operating, reason: str) -> NoReturn:
        """The call ends here without (another) attempt."""
        # A run that names an unknown operation does not end, though another run began it.
        named = op.ours or (reason != protocol.ARGUMENTS_DIFFER and self._names(op, reason))
        if named and self._unresolved(op) and self._contract(op).effect is not Effect.NONE:
            why = {
                protocol.ARGUMENTS_DIFFER: "the code now asks for other arguments than were sent",
                protocol.IN_PROGRESS: f"in progress in run {op.row.run_id if op.row else ''!r}",
            }
            self._park(op, f"unknown: {why.get(reason, reason)}")
        if reason == protocol.CANCEL or (reason == protocol.IN_PROGRESS and self._cancel):
            self._stop(Cancelled())
        error: Exception
        if reason == protocol.ARGUMENTS_DIFFER:
            assert op.row is not None
            what = f"key {_short(op.key)} of tool {op.tool.name}"
            error = ArgumentsDiffer(what, op.row.arguments, op.arguments)
        elif reason == protocol.IN_PROGRESS:
            assert op.row is not None
            limit = self._tightest()
            level, name = (limit.level, limit.name) if limit else ("session", "session")
            detail = f"{op.tool.name} {_short(op.key)} is in progress in run {op.row.run_id!r}"
            error = DeadlineExceeded(level, name, detail)
        else:
            error = self._final_error(op, reason, op.last_error)
        saved = values.dump_error(error, op.tool.errors)
        payload = _text({"error": saved, "why": reason})
        self._append("refused", step=op.tool.name, key=op.key, payload=payload, progress=True)
        raise values.load_error(saved, op.tool.errors)

    def _names(self, op: Operating, reason: str) -> bool:
        waited = reason == protocol.IN_PROGRESS and not self._cancel
        return waited or (op.tool.name, op.key) in self._met

    def _park(self, op: Operating, reason: str) -> NoReturn:
        self._stop(
            Suspended("needs_decision", reason, step=op.tool.name, key=op.key, why="unknown")
        )

    # -- late replies ----------------------------------------------------------------------

    def _identity(self, op: Operating) -> tuple[str, str, str, str]:
        return (self._store.name, self._row.account, op.tool.name, op.key)

    def _unresolved(self, op: Operating) -> bool:
        return op.row is not None and op.row.status in ("DISPATCHED", "RESENT")

    def _take_late_reply(self, op: Operating) -> Abandoned | None:
        """An abandoned attempt that has meanwhile succeeded is evidence."""
        return self._around.workers.late(self._identity(op))

    def _save_late_reply(self, op: Operating, late: Abandoned) -> Any:
        payload, value = _reply_payload(op.tool, late.value, {"basis": "late reply"})
        self._conclude(op, "late_reply", payload, Event.LATE_REPLY)
        return value

    def _still_running(self, op: Operating) -> bool:
        """While an abandoned attempt is alive no further attempt starts: wait for it."""
        running = self._around.workers.running(self._identity(op))
        if running is None:
            return False
        mono = self._clock.monotonic()
        allowance = (op.settle_ends or mono) - mono
        remaining = self._remaining()
        if remaining is not None and not self._stopping():
            allowance = min(allowance, remaining)
        if not running.join(max(0.0, allowance)):
            self._park(op, "unknown: an attempt left at its limit is still running")
        return True

    # -- commands --------------------------------------------------------------------------

    def _consume_commands(self) -> None:
        """Do what others asked for, by appending it.

        Called where the driver decides what comes next, and nowhere else: before new work, at
        each decision about an operation, and between an intent and its sending.
        """
        if not self._commands_waiting:
            return
        self._commands_waiting = False
        conflict: Suspended | None = None
        for command in self._read(self._store.waiting_commands, self._row.run):
            body = json.loads(command.payload)
            if command.kind == "signal":
                self._append_entry(
                    "signal", _text({"value": body["value"]}), step=body["name"],
                    consumes=command.command,
                )  # fmt: skip
            elif command.kind == "cancel":
                self._append_entry("cancel_requested", command.payload, consumes=command.command)
                self._cancel = True
            elif command.kind in ("resolve", "late_reply"):
                conflict = self._settle(command.kind, body, command.command) or conflict
        if conflict is not None:
            self._stop(conflict)

    def _settle(self, kind: str, body: dict[str, Any], command: int) -> Suspended | None:
        """A person's word, or a late reply, about one of the run's operations.

        Returns what a late reply leads to that contradicts what is saved.
        """
        tool, key = body["tool"], body["key"]
        row = self._read(self._store.read_operation, self._row.account, tool, key)
        entry = "resolved" if kind == "resolve" else "late_reply"
        change = None
        disputed = (tool, key) in self._disputed and row is not None and row.status == "REFUSED"
        # A word is about the attempts that its person saw, and about no later one.
        timely = row is not None and body.get("attempts", row.attempts) == row.attempts
        told: dict[str, Any]
        kept = {name: body[name] for name in _WORDS if name in body}
        if disputed and timely and body.get("outcome") == "not_executed":
            told = kept
            self._disputed.discard((tool, key))
        elif (
            row is not None
            and timely
            and (
                row.status in ("DISPATCHED", "RESENT")
                or (disputed and body.get("outcome") == "completed")
            )
        ):
            event = {
                None: Event.LATE_REPLY,
                "completed": Event.RESOLVED_COMPLETED,
                "not_executed": Event.RESOLVED_NOT_EXECUTED,
            }[body.get("outcome")]
            status = protocol.after(Status(row.status), event)
            change = Change(
                row.account, tool, key, row.arguments, row.contract, status.value, row.attempts,
                row.sent, None, (row.status, row.attempts), concludes=status is Status.SUCCEEDED,
            )  # fmt: skip
            told = kept
        else:
            told = {"conflict": body, "saved": None if row is None else row.status}
        try:
            self._append_entry(
                entry, _text(told), step=tool, key=key, change=change, consumes=command,
                progress=change is not None,
            )  # fmt: skip
        except OperationMoved:  # another run was quicker: judge the word anew
            return self._settle(kind, body, command)
        if change is not None:
            self._words[tool, key] = _text(told)
            self._disputed.discard((tool, key))
        if row is None or not _contradicts(told):
            return None
        self._disputed.add((tool, key))
        return _contradiction(tool, key, row.status)

    def _append_entry(self, kind: str, payload: str, **parts: Any) -> None:
        """Append, and keep the entry where the slots are built from."""
        now = self._clock.now()
        self._append(kind, payload=payload, **parts)
        self._entries.append(
            Entry(
                self._lease.seq, kind, parts.get("step"), parts.get("key"), None,
                self._lease.token, now, payload,
            )
        )  # fmt: skip


class Context:
    """What a workflow gets as ``ctx``. It belongs to the thread that runs the workflow."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run named work without outside effect, once saved never again.

        Returns the value as read back from its saved form. A crash before it is saved makes it
        run again. Raises what ``function`` raised; UnsavableValue with the path of the bad part
        for a value that has no lossless form; DeadlineExceeded where a limit has fired.
        """
        try:
            return self._driver.step(name, function, args, kwargs)
        except BaseException as stop:
            self._driver.stopped_by(stop)
            raise

    def call(self, tool: Tool, /, *args: Any, key: str, **kwargs: Any) -> Any:
        """Carry out one operation on the outside world, under its operation key.

        ``key`` names the logical operation: the same in every attempt and every rerun. Returns
        the reply (or the stored one: same key, same arguments). Raises the tool's error where
        the operation was not executed, ArgumentsDiffer for a key that was used with other
        arguments, DeadlineExceeded naming the level. An unknown outcome suspends the run.
        """
        try:
            return self._driver.call(tool, args, kwargs, key)
        except BaseException as stop:
            self._driver.stopped_by(stop)
            raise

    def sleep(self, seconds: float, name: str = "sleep") -> None:
        """A durable timer: the run waits, without a lease and without a process.

        ``rt.recover()`` goes on with it once the time has come. Raises InvalidField, and
        DeadlineExceeded at once where the wait would reach a limit.
        """
        try:
            self._driver.sleep(seconds, name)
        except BaseException as stop:
            self._driver.stopped_by(stop)
            raise

    def wait_for(self, name: str, timeout: float | None = None) -> Any:
        """Wait for ``rt.signal(run.id, name, value)`` and return the value: a person in the loop.

        The n-th ``wait_for`` of a name gets the n-th signal of that name, also one that came
        before. Raises DeadlineExceeded (level ``wait``) where none came within ``timeout``
        seconds.
        """
        try:
            return self._driver.wait_for(name, timeout)
        except BaseException as stop:
            self._driver.stopped_by(stop)
            raise

    def turn(self, name: str, timeout: float) -> Any:
        """A limit of ``timeout`` seconds for the work inside: ``with ctx.turn("send", 10):``."""
        return self._driver.turn(name, timeout)

    def remaining(self) -> float | None:
        """Seconds until the tightest limit; None without one."""
        return self._driver._remaining()  # noqa: SLF001 - the context is the driver's face


def _given_back(payload: str, codec: values.Codec, errors: tuple[type[Exception], ...] = ()) -> Any:
    """What a saved payload means to the workflow: the value, or the error raised."""
    body = json.loads(payload)
    if "error" in body:
        raise values.load_error(body["error"], errors)
    if "unsavable" in body:
        return UnsavableResult(**body["unsavable"])
    value = body.get("value")
    return value if codec is values.PLAIN else codec.load(_text(value))


def _reply_payload(tool: Tool, value: Any, more: dict[str, Any] | None = None) -> tuple[str, Any]:
    """A reply's saved form, and the value that the workflow gets: read back from it."""
    tail = "" if not more else "," + _text(more)[1:-1]
    try:
        text = tool.returns.dump(value)
    except UnsavableValue as error:
        bad = {"path": error.path, "reason": error.reason}
        return f'{{"unsavable":{_text(bad)}{tail}}}', UnsavableResult(**bad)
    return f'{{"value":{text}{tail}}}', tool.returns.load(text)


def _reply_text(tool: Tool, value: Any) -> str:
    return _reply_payload(tool, value)[0]


def _saved_limits(entries: list[Entry]) -> tuple[dict[str, float], dict[str, float]]:
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


_UNCHANGING = frozenset({str, int, float, bool, type(None)})


def _copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """``args``, and nothing in it shared; most arguments are values that cannot change."""
    if all(type(value) in _UNCHANGING for value in args):
        return args
    return copy.deepcopy(args)


def _moment(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _contradiction(tool: str, key: str, saved: str) -> Suspended:
    return Suspended(
        "needs_decision",
        f"two answers about {tool} {_short(key)}: saved as {saved}, and a reply that says "
        "otherwise",
        step=tool,
        key=key,
        why="conflict",
    )


#: What is kept of a person's word or a late reply.
_WORDS = ("value", "unsavable", "outcome", "by")


def _contradicts(told: dict[str, Any]) -> bool:
    """Whether an entry keeps an answer that differs from the outcome saved before it."""
    if "conflict" not in told or told.get("saved") is None:
        return False
    says_completed = told["conflict"].get("outcome", "completed") == "completed"
    return bool(says_completed != (told["saved"] == "SUCCEEDED"))


def _disputes(entries: list[Entry]) -> set[tuple[str, str]]:
    """(tool, key) of the operations about which two answers differ and no person has decided."""
    open_: set[tuple[str, str]] = set()
    for entry in entries:
        if entry.kind in ("resolved", "late_reply") and entry.step and entry.key:
            told = json.loads(entry.payload)
            if _contradicts(told):
                open_.add((entry.step, entry.key))
            elif "conflict" not in told:
                open_.discard((entry.step, entry.key))
    return open_


def _told(error: Exception) -> str:
    """An error in one line; one that cannot describe itself is named by its type."""
    return f"{type(error).__name__}: {values.dump_error(error)['message']}"


def _short(text: str) -> str:
    """A name or key as messages show it: quoted, escaped, at most 80 characters."""
    return repr(text if len(text) <= 80 else text[:77] + "…")

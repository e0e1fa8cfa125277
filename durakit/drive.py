"""One incarnation's right to append to one run, and what stands around it.

Everything that a workflow does goes through here: reaching a boundary, appending an entry under
the lease, the limits that are in force, what others want of the run. The stack of limits is
absolute inside (monotonic seconds), and each append saves what is left of every level.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from durakit import protocol, values
from durakit.clock import Clock
from durakit.deadline import Limit, ahead, narrow, recovered
from durakit.define import name_text
from durakit.errors import (
    Cancelled,
    DeadlineExceeded,
    LeaseLost,
    Stop,
    StoreError,
    StoreStopped,
    Suspended,
    UnloadableValue,
    UsageError,
)
from durakit.faults import Incarnation
from durakit.protocol import Event, Status
from durakit.slots import contradiction, contradicts, disputes, given_back, saved_limits
from durakit.store import Change, Entry, Lease, OperationMoved, OperationRow, RunRow, Store
from durakit.values import compact
from durakit.workers import Workers

T = TypeVar("T")

#: What is kept of a person's word or a late reply.
_WORDS = ("value", "unsavable", "outcome", "by")


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


class Drive:
    """One incarnation's work on a run that it has claimed: what steps, waits and calls share."""

    def __init__(
        self,
        around: Surroundings,
        row: RunRow,
        lease: Lease,
        entries: list[Entry],
        incarnation: Incarnation,
    ) -> None:
        self.around = around
        self.store = around.store
        self.clock = around.clock
        self.row = row
        self.lease = lease
        self.entries = entries
        self.incarnation = incarnation
        self.watched = incarnation.watched
        self._thread = threading.get_ident()
        self.stopped: BaseException | None = None
        self.inside: str | None = None
        self.cancel = any(entry.kind == "cancel_requested" for entry in entries)
        self.commands_waiting = row.commands > 0
        self.begun = {(e.step, e.key) for e in entries if e.kind == "intent"}
        self.met = {(e.step, e.key) for e in entries if e.kind == "parked" and e.key is not None}
        #: what others have just said about an operation, by (tool, key)
        self.words: dict[tuple[str, str], str] = {}
        self.disputed = disputes(entries)
        #: tools whose retry budget has been told what the journal last saw of it
        self.recalled: set[str] = set()
        self._turns: Counter[str] = Counter()
        self._where = ""
        self._levels: list[tuple[str, Limit]] = []
        self._saved_left, self._saved_until = saved_limits(entries)

    def reach(self, place: str, point: str, occurrence: int = 1, attempt: int = 1) -> None:
        """Pass a boundary, or die there."""
        if self.watched:
            try:
                self.incarnation.reach(place, point, occurrence, attempt)
            except Stop as stop:
                self.stopped = stop
                raise

    def stop(self, stop: BaseException) -> NoReturn:
        """End the drive here; every later touch of the context ends it again."""
        self.stopped = stop
        raise stop

    def ready(self) -> None:
        """Refuse a touch of ctx that cannot be right: after the end, elsewhere, or from inside."""
        if self.stopped is not None:
            raise self.stopped
        if self.incarnation.dead is not None:
            self.stop(self.incarnation.dead)
        if threading.get_ident() != self._thread:
            raise UsageError("ctx belongs to the thread that runs the workflow")
        if self.inside is not None:
            raise UsageError(
                f"ctx is used inside {self.inside}: steps and calls stand side by side in the "
                "workflow, so that each is saved, and retried, by itself"
            )

    def read(self, read: Callable[..., T], *args: Any) -> T:
        """Read from the store; its trouble ends the drive, and is no news to the workflow."""
        try:
            return read(*args)
        except StoreError as error:
            self.stop(StoreStopped(error))

    def append(
        self,
        kind: str,
        *,
        payload: str,
        limit: float | None = None,
        wait: float | None = None,
        **parts: Any,
    ) -> None:
        """Append under our lease, which it extends past ``limit`` seconds of work or waiting."""
        now = self.clock.now()
        if self._levels:
            payload = self._with_limits(payload)
        try:
            waiting = self.store.append(
                self.lease,
                kind,
                payload=payload,
                now=now,
                leased=0.0 if limit is None else now + limit + self.lease.length,
                wait=wait,
                **parts,
            )
        except LeaseLost as lost:
            self.stop(lost)
        except StoreError as error:
            self.stop(StoreStopped(error))
        self.commands_waiting = bool(waiting) and "ends" not in parts

    def _with_limits(self, payload: str) -> str:
        """The remainder of every level, and the end of a turn the first time it is saved."""
        now, wall = self.clock.monotonic(), self.clock.now()
        left, until = {}, {}
        for label, limit in self._levels:
            remaining = round(limit.remaining(now), 6)
            left[label] = remaining
            if label != "session" and label not in self._saved_until:
                until[label] = self._saved_until[label] = round(wall + remaining, 6)
        head = f'"left":{compact(left)}' + (f',"until":{compact(until)}' if until else "")
        return "{" + head + ("," + payload[1:] if payload != "{}" else "}")

    def tightest(self) -> Limit | None:
        """The limit that ends first; None without one."""
        return self._levels[-1][1] if self._levels else None

    def remaining(self) -> float | None:
        """Seconds until the tightest limit; None without one."""
        return self._levels[-1][1].remaining(self.clock.monotonic()) if self._levels else None

    def stopping(self) -> str | None:
        """Why no new work may begin: a cancel request or a deadline; None otherwise."""
        if self.cancel:
            return protocol.CANCEL
        return protocol.DEADLINE if self.remaining() == 0.0 else None

    @contextmanager
    def turn(self, name: str, timeout: float) -> Iterator[None]:
        """See ``Context.turn``."""
        self.ready()
        name_text("turn name", name)
        own = ahead("timeout", timeout)
        self._turns[name] += 1
        nth = self._turns[name]
        label = f"turn {name}{self._where}" + (f" #{nth}" if nth > 1 else "")
        if label in self._saved_until:
            own = min(
                own,
                recovered(self._saved_left.get(label), self._saved_until[label], self.clock.now()),
            )
        limit = narrow(self.tightest(), "turn", name, own, self.clock.monotonic())
        self._levels.append((label, limit))
        try:
            yield
        finally:
            self._levels.pop()

    def begin_new_work(self, name: str, key: str | None) -> None:
        """A cancel request or a limit that has fired stops new work here."""
        self.consume_commands()
        if self.cancel:
            self.stop(Cancelled())
        limit = self.tightest()
        if limit is not None and limit.remaining(self.clock.monotonic()) <= 0.0:
            # A user's stop that waits already is not turned into a time-out.
            self.commands_waiting = True
            self.consume_commands()
            if self.cancel:
                self.stop(Cancelled())
            error = DeadlineExceeded(limit.level, limit.name, f"{name!r} was not begun")
            self.append(
                "limit", step=name, key=key, payload=compact({"error": values.dump_error(error)})
            )
            raise error

    def consume_commands(self) -> None:
        """Do what others asked for, by appending it.

        Called where the driver decides what comes next, and nowhere else: before new work, at
        each decision about an operation, and between an intent and its sending.
        """
        if not self.commands_waiting:
            return
        self.commands_waiting = False
        conflict: Suspended | None = None
        for command in self.read(self.store.waiting_commands, self.row.run):
            body = json.loads(command.payload)
            if command.kind == "signal":
                self.append_entry(
                    "signal", compact({"value": body["value"]}), step=body["name"],
                    consumes=command.command,
                )  # fmt: skip
            elif command.kind == "cancel":
                self.append_entry("cancel_requested", command.payload, consumes=command.command)
                self.cancel = True
            elif command.kind in ("resolve", "late_reply"):
                conflict = self._settle(command.kind, body, command.command) or conflict
        if conflict is not None:
            self.stop(conflict)

    def compensate(self, operation: Any) -> None:
        """Carry out the compensation of an unknown operation."""
        raise NotImplementedError

    def _settle(self, kind: str, body: dict[str, Any], command: int) -> Suspended | None:
        """A person's word, or a late reply, about one of the run's operations.

        Returns what a late reply leads to that contradicts what is saved.
        """
        tool, key = body["tool"], body["key"]
        row = self.read(self.store.read_operation, self.row.account, tool, key)
        entry = "resolved" if kind == "resolve" else "late_reply"
        change = None
        compensate = body.get("outcome") == "compensate"
        disputed = (tool, key) in self.disputed and row is not None and row.status == "REFUSED"
        # A word is about the attempts that its person saw, and about no later one.
        timely = row is not None and body.get("attempts", row.attempts) == row.attempts
        told: dict[str, Any]
        kept = {name: body[name] for name in _WORDS if name in body}
        if compensate and timely and row is not None and row.status in protocol.UNRESOLVED:
            # Nothing is known about the outcome by that: the record stays as it is.
            self.append_entry(entry, compact(kept), step=tool, key=key, consumes=command)
            self.words[tool, key] = compact(kept)
            return None
        if disputed and timely and body.get("outcome") == "not_executed":
            told = kept
            self.disputed.discard((tool, key))
        elif (
            row is not None
            and timely
            and (
                row.status in protocol.UNRESOLVED
                or (disputed and body.get("outcome") == "completed")
            )
        ):
            change, told = _change_by(row, body.get("outcome")), kept
        else:
            told = {"conflict": body, "saved": None if row is None else row.status}
        try:
            self.append_entry(
                entry, compact(told), step=tool, key=key, change=change, consumes=command,
                progress=change is not None,
            )  # fmt: skip
        except OperationMoved:  # another run was quicker: judge the word anew
            return self._settle(kind, body, command)
        if change is not None:
            self.words[tool, key] = compact(told)
            self.disputed.discard((tool, key))
        if row is None or not contradicts(told):
            return None
        self.disputed.add((tool, key))
        return contradiction(tool, key, row.status)

    def append_entry(self, kind: str, payload: str, **parts: Any) -> None:
        """Append, and keep the entry where the slots are built from."""
        now = self.clock.now()
        self.append(kind, payload=payload, **parts)
        self.entries.append(
            Entry(
                self.lease.seq, kind, parts.get("step"), parts.get("key"), None,
                self.lease.token, now, payload,
            )
        )  # fmt: skip

    def give_back(
        self, payload: str, codec: values.Codec, errors: tuple[type[Exception], ...] = ()
    ) -> Any:
        """A saved outcome. Workflow code never goes on with a value that its types do not fit."""
        try:
            return given_back(payload, codec, errors)
        except UnloadableValue as error:
            if "error" in json.loads(payload):
                raise  # it is the outcome itself
            self.unloadable("value", error)

    def unloadable(self, what: str, error: UnloadableValue) -> NoReturn:
        """Park: a saved value does not fit the types of the code that asks for it."""
        problem = str(error).removeprefix("saved value ")
        reason = (
            f"the code does not match the journal: a saved {what} {problem}. Define the old types "
            "again and resume, or cancel the run"
        )
        self.stop(Suspended("needs_decision", reason, why="mismatch"))


def _change_by(row: OperationRow, outcome: str | None) -> Change:
    """The row's move where a person says its ``outcome``; None: a late reply has come."""
    event = {
        None: Event.LATE_REPLY,
        "completed": Event.RESOLVED_COMPLETED,
        "not_executed": Event.RESOLVED_NOT_EXECUTED,
    }[outcome]
    status = protocol.after(Status(row.status), event)
    return Change(
        row.account, row.tool, row.key, row.arguments, row.contract, status.value, row.attempts,
        row.sent, None, (row.status, row.attempts), concludes=status is Status.SUCCEEDED,
    )  # fmt: skip

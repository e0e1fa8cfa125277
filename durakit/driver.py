"""Driving one run: the workflow's code meets its journal.

The driver replays what is saved and does what is not. Each `ctx.step` or `ctx.call` first looks
for the next saved *slot*. A slot of the same identity is given back without running anything;
a slot of another identity is a mismatch, and nothing runs. Past the last slot, work is new.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NoReturn

from durakit import faults, protocol, values
from durakit.compensation import compensate, undo_key
from durakit.deadline import Limit, ahead, recovered
from durakit.define import Tool, Workflow, name_text
from durakit.drive import Drive, Surroundings
from durakit.errors import (
    ArgumentsDiffer,
    Cancelled,
    DeadlineExceeded,
    InvalidField,
    LeaseLost,
    Stop,
    StoreError,
    StoreStopped,
    Suspended,
    UnloadableValue,
    UnsavableValue,
    UsageError,
)
from durakit.faults import Incarnation
from durakit.operation import Operation
from durakit.slots import Slot, in_one_line, short, slots_of
from durakit.store import Entry, Lease, RunRow
from durakit.values import compact


class Driver(Drive):
    """Runs a workflow's code against its journal."""

    def __init__(
        self,
        around: Surroundings,
        workflow: Workflow,
        row: RunRow,
        lease: Lease,
        entries: list[Entry],
        incarnation: Incarnation,
    ) -> None:
        super().__init__(around, row, lease, entries, incarnation)
        self._workflow = workflow
        self._slots: list[Slot] = []
        self._next = 0
        self._counts: Counter[str] = Counter()
        self._received = Counter(
            entry.step or ""
            for entry in entries
            if entry.kind == "received" and "value" in json.loads(entry.payload)
        )

    def drive(self) -> None:
        """Run the workflow until it ends, parks, waits or dies.

        Raises SimulatedCrash, LeaseLost, a StoreError, or the interrupt that ended it.
        """
        before = faults.current.incarnation
        faults.current.incarnation = self.incarnation
        try:
            self._drive()
        except StoreStopped as stop:
            raise stop.error from stop.error.__cause__
        except Stop:
            raise
        except BaseException as interrupt:
            # From the keyboard, or from user code: asyncio's CancelledError, sys.exit().
            self.stopped = interrupt
            with suppress(LeaseLost, StoreError):  # what we cannot give back will end by itself
                self.store.release(self.lease, self.clock.now(), type(interrupt).__name__)
            raise
        finally:
            faults.current.incarnation = before
            # A workflow may have kept its ctx; nothing of this drive is valid any more.
            self.stopped = self.stopped or UsageError("the drive of this ctx has ended")

    def _drive(self) -> None:
        self.reach("run", "run_claimed")
        try:
            self.consume_commands()
        except Suspended as stop:
            self._end_suspended(stop)
            self.reach("run", "end_saved")
            return
        self._slots = slots_of(self.entries)
        if self.row.deadline is not None:
            left = recovered(self._saved_left.get("session"), self.row.deadline, self.clock.now())
            ends = self.clock.monotonic() + left
            self._levels.append(("session", Limit("session", "session", ends)))
        arguments = json.loads(self.entries[0].payload)["arguments"]
        try:
            try:
                args, kwargs = self._load_arguments(arguments)
            except UnloadableValue as error:
                self.unloadable("argument", error)
            self._execute(args, kwargs)
        except Suspended as stop:
            self._end_suspended(stop)
        except Cancelled:
            self._end_cancelled()
        except Stop:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a workflow raises ends its run
            if self.stopped is not None:
                # The workflow turned our stop into an error of its own; the stop stands.
                self._stopped_instead(error)
            else:
                self._end_failed(error)
        self.reach("run", "end_saved")

    def _load_arguments(self, form: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        return self._workflow.parameters.load(form)

    def _execute(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Replay and run the workflow's code to its end."""
        result = self._workflow.function(Context(self), *args, **kwargs)
        if self.stopped is not None:
            raise self.stopped
        self._check_all_slots_used()
        self._end_completed(result, self._workflow.returns)

    def _stopped_instead(self, error: Exception) -> None:
        stop = self.stopped
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
        self.append("completed", payload=payload, ends="completed", progress=True, **parts)

    def _end_failed(self, error: Exception) -> None:
        left = self._left_over()
        if left is not None:
            # Saved work is left over, an unknown call perhaps: the code is not the one it was.
            self._end_suspended(
                self._mismatched(left, f"the workflow's end ({in_one_line(error)})")
            )
            return
        unknown = self._left_unknown()
        if unknown is not None:
            self._end_suspended(unknown)
            return
        saved = values.dump_error(error)
        self.append("failed", payload=compact({"error": saved}), ends="failed", progress=True)

    def _left_over(self) -> Slot | None:
        """The first saved place that the code has not come by."""
        return self._slots[self._next] if self._next < len(self._slots) else None

    def _end_cancelled(self) -> None:
        unknown = self._left_unknown()
        if unknown is None:
            self.append("cancelled", payload="{}", ends="cancelled")
        else:
            self._end_suspended(unknown)

    def _left_unknown(self) -> Suspended | None:
        """Why the run may not end yet: an operation of its own has no outcome."""
        if not self.begun:
            return None
        for row in self.read(self.store.operations_of, self.row):
            open_ = protocol.is_open(row.status, row.contract)
            if open_ and (row.tool, row.key) in self.begun:
                return Suspended(
                    "needs_decision",
                    f"unknown: {row.tool} {short(row.key)} was begun, and the run would end "
                    "without asking for it again",
                    step=row.tool,
                    key=row.key,
                )
        return None

    def _end_suspended(self, stop: Suspended) -> None:
        misfit = stop.place.get("why") == "mismatch"
        if self.cancel and misfit:
            self._end_cancelled()  # the code that does not fit is not needed for that
            return
        reason = stop.reason + (self._workflow.clash() if misfit else "")
        self.append(
            "parked" if stop.status == "needs_decision" else "waiting",
            step=stop.place.get("step"),
            key=stop.place.get("key"),
            payload=compact({"reason": reason, "why": stop.place.get("why", "unknown")}),
            ends=stop.status,
            wake=stop.place.get("wake"),
        )

    def _check_all_slots_used(self) -> None:
        left = self._left_over()
        if left is not None:
            self._mismatch(left, "the workflow's end")

    def stopped_by(self, stop: BaseException) -> None:
        """What is no error ends the drive, also where the workflow swallows it."""
        if self.stopped is None and not isinstance(stop, Exception):
            self.stopped = stop

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
        self.stop(self._mismatched(slot, asked))

    def _other_arguments(self, slot: Slot, op: Operation) -> NoReturn:
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

    def step(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """See ``Context.step``."""
        self.ready()
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
            return self.give_back(slot.payload or "", codec)
        self.begin_new_work(name, None)
        if self.watched:
            self.incarnation.busy = (name, occurrence, 1)
        self.reach(name, "before_step", occurrence)
        error: Exception | None = None
        text = payload = ""
        self.inside = f"step {short(name)}"
        try:
            text = codec.dump(function(*args, **kwargs))
            payload = f'{{"value":{text}}}'
        except Exception as raised:  # noqa: BLE001 - whatever a step raises is its outcome
            if self.incarnation.dead is not None:
                self.stop(self.incarnation.dead)
            error = raised
            payload = compact({"error": values.dump_error(raised)})
        finally:
            self.inside = None
        self.reach(name, "step_done", occurrence)
        self._save_step(name, occurrence, payload)
        if error is not None:
            raise values.load_error(json.loads(payload)["error"]) from error
        return codec.load(text)

    def _save_step(self, name: str, occurrence: int, payload: str) -> None:
        self.append("step", step=name, payload=payload, progress=True)
        self.reach(name, "step_saved", occurrence)

    def sleep(self, duration: float, name: str) -> None:
        """See ``Context.sleep``."""
        self.ready()
        name_text("timer name", name)
        wait = ahead("seconds", duration)
        slot = self._saved_slot("timer", name, None)
        if slot is not None and slot.final:
            return
        if slot is None:
            self._begin_wait(name, wait)
            until = round(self.clock.now() + wait, 6)
            self._save_wait("timer", name, {"wake": until, "seconds": wait})
        else:
            until = json.loads(slot.payload or "{}")["wake"]
        if self.clock.now() < until:
            self._wait_outside(f"sleeps until {_moment(until)}", name, until)
        self.append("timer_fired", step=name, payload="{}", progress=True)

    def wait_for(self, name: str, timeout: float | None) -> Any:
        """See ``Context.wait_for``."""
        self.ready()
        name_text("signal name", name)
        limit = None if timeout is None else ahead("timeout", timeout)
        slot = self._saved_slot("wait", name, None)
        if slot is not None and slot.final:
            return self.give_back(slot.payload or "", values.PLAIN)
        if slot is None:
            self._begin_wait(name, None)
            until = None if limit is None else round(self.clock.now() + limit, 6)
            self._save_wait("waiting_for", name, {"wake": until})
        else:
            until = json.loads(slot.payload or "{}")["wake"]
        arrived = [e for e in self.entries if e.kind == "signal" and e.step == name]
        taken = self._received[name]
        if len(arrived) > taken:
            payload = compact({"value": json.loads(arrived[taken].payload)["value"]})
        elif until is not None and self.clock.now() >= until:
            error = DeadlineExceeded("wait", name, "no signal came")
            payload = compact({"error": values.dump_error(error)})
        elif self.stopping() == protocol.DEADLINE:
            limit_ = self.tightest()
            assert limit_ is not None
            error = DeadlineExceeded(limit_.level, limit_.name, f"no signal {short(name)} came")
            payload = compact({"error": values.dump_error(error)})
        else:
            self._wait_outside(
                f"waits for the signal {short(name)}", name, self._wake_by_limit(until)
            )
        self._received[name] += "value" in json.loads(payload)
        self.append("received", step=name, payload=payload, progress=True)
        return self.give_back(payload, values.PLAIN)

    def _begin_wait(self, name: str, wait: float | None) -> None:
        """New work, and one that has no use where it would reach the limit."""
        self.begin_new_work(name, None)
        limit, remaining = self.tightest(), self.remaining()
        if limit is not None and wait is not None and wait >= (remaining or 0.0):
            error = DeadlineExceeded(limit.level, limit.name, f"{name!r} would outlast it")
            self.append("limit", step=name, payload=compact({"error": values.dump_error(error)}))
            raise error

    def _save_wait(self, kind: str, name: str, told: dict[str, Any]) -> None:
        self.append(kind, step=name, payload=compact(told), progress=True)
        self.reach(name, "wait_saved")

    def _wake_by_limit(self, until: float | None) -> float | None:
        """A waiting run is looked at when its limit fires, so that it ends then and not never."""
        remaining = self.remaining()
        if remaining is None:
            return until
        ends = round(self.clock.now() + remaining + 5e-7, 6)
        return ends if until is None else min(until, ends)

    def _wait_outside(self, reason: str, name: str, wake: float | None) -> NoReturn:
        """Give the run back until the time or the signal comes: a waiting run holds no lease."""
        if self.cancel:
            self.stop(Cancelled())
        self.stop(Suspended("waiting", reason, step=name, why="waiting", wake=wake))

    def call(
        self,
        tool: Tool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: str,
        undoes: tuple[str, str] | None = None,
    ) -> Any:
        """See ``Context.call``."""
        self.ready()
        if not isinstance(tool, Tool):
            raise InvalidField("tool", f"declare it with @dk.tool; got {type(tool).__name__}")
        name_text("key", key)
        arguments = values.digest(tool.parameters.dump(args, kwargs))
        self._counts[tool.name] += 1
        op = Operation(
            self, tool, key, args, kwargs, arguments, self._counts[tool.name], undoes=undoes
        )
        slot = self._saved_slot("call", tool.name, key)
        if slot is None and (tool.name, key) in self.met:
            # Another run was at work on it when this one stopped here; that may be settled now.
            op.look_again()
        elif slot is None:
            self.begin_new_work(tool.name, key)
        elif slot.payload is not None:
            if slot.intent is not None and arguments not in slot.intent:
                self._other_arguments(slot, op)
            return self.give_back(slot.payload, tool.returns, tool.errors)
        else:
            op.ours = True
            op.look_again()
            op.check()
            op.remember()
        try:
            return op.run()
        except Stop as stop:
            self.stop(stop)

    def compensate(self, operation: Operation) -> None:
        """Carry out the compensation of an unknown operation, inside its call."""
        compensate(operation)

    def undo(self, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any], key: str) -> Any:
        """See ``Context.compensate``."""
        self.ready()
        if not isinstance(tool, Tool):
            raise InvalidField("tool", f"declare it with @dk.tool; got {type(tool).__name__}")
        if tool.compensate is None:
            raise InvalidField("tool", f"{tool.name} declares no compensation")
        name_text("key", key)
        if self._nothing_to_undo(key):
            return None
        row = self.read(self.store.read_operation, self.row.account, tool.name, key)
        if row is not None and protocol.is_open(row.status, row.contract):
            if self.cancel:
                self.stop(Cancelled())
            reason = f"unknown: {tool.name} {short(key)} of another run has no outcome to undo yet"
            self.stop(Suspended("needs_decision", reason, step=tool.name, key=key))
        if row is None or row.status != protocol.Status.SUCCEEDED:
            if self._left_over() is None:  # saved: another run may execute it before a replay
                self._save_step(undo_key(key), 1, '{"value":null}')
            return None
        arguments = tool.digest(*args, **kwargs)
        if arguments != row.arguments:
            what = f"key {short(key)} of tool {tool.name}"
            raise ArgumentsDiffer(what, row.arguments, arguments)
        args, kwargs = tool.parameters.filled(args, kwargs)
        return self.call(tool.compensate, args, kwargs, undo_key(key), undoes=(tool.name, key))

    def _nothing_to_undo(self, key: str) -> bool:
        """Whether the journal says that there was nothing to undo here."""
        slot = self._left_over()
        found = slot is not None and (slot.kind, slot.name) == ("step", undo_key(key))
        if found:
            self._next += 1
        return found


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

    def compensate(self, tool: Tool, /, *args: Any, key: str, **kwargs: Any) -> Any:
        """Undo a completed call: run the tool's ``compensate`` under the key ``undo:<key>``.

        ``args``, ``kwargs``, ``key``: those of the call. Returns the compensation's reply; None
        where the call was not executed and nothing is to be undone. The call still counts as
        completed. One of another run that is unknown suspends this run. Raises as ``call`` does;
        the undo is then incomplete, as ``run.operations()`` says.
        """
        try:
            return self._driver.undo(tool, args, kwargs, key)
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
        return self._driver.remaining()


def _moment(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

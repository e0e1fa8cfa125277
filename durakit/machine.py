"""Machines: a state, and a function that makes the next one.

A machine is a function ``(ctx, state) → state`` over a pydantic model. After every transition the
runtime saves a *checkpoint*: the explicit state at a defined boundary. Recovery enters the last
saved state again; it never tries to find a line of code.

Within a transition, ``ctx.step`` results are kept in memory and written together with the
checkpoint that ends it, in one commit: a crash before that makes them run again. Intents and
results of calls are always written at once. With a later save place (``save=``) several
transitions share one checkpoint, so more of the model's work is repeated after a crash, and only
the operation keys protect the outside world.

A checkpoint holds what changed since the one before; a snapshot (the whole state) comes when the
changes since the last snapshot weigh more than that snapshot. So the snapshots of a growing state
double in size, a file grows in a straight line, and loading a state reads one snapshot and the
changes after it.

A turn (``ctx.turn``) keeps its end from the first entry made in it. One that made only steps has
no entry before the checkpoint that ends its transition, so after a crash it is granted anew,
together with the work that is done anew. Its start cannot come earlier at no cost: a step's
result is saved with that very checkpoint, and the commit before it (the last checkpoint) cannot
know that the turn was going to begin, nor when. What bounds it instead: the session's own end,
which every entry saves, and the claims without progress, at three of which the run parks.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import pydantic

from durakit import changes, values
from durakit.define import Workflow, register
from durakit.driver import Context, Driver
from durakit.errors import (
    ArgumentsDiffer,
    Cancelled,
    InvalidField,
    Suspended,
    UnloadableValue,
    UnsavableValue,
    WorkflowChanged,
)
from durakit.operation import Operation
from durakit.slots import Slot
from durakit.store import CheckpointRow, Entry, Saved, Store
from durakit.values import compact

#: Changes lighter than this (bytes) never make a snapshot.
SNAPSHOT_LEAST = 4096

#: Transitions that one drive of a machine makes before it parks, unless it is declared otherwise:
#: five times the longest agent that we measure, and seconds of work for one that runs in circles.
TRANSITIONS = 10_000

SavePlace = Callable[[Any, Any], bool]


@dataclass(frozen=True)
class Done:
    """A machine returns this instead of a state to end: the last state, and the run's result.

    ``result`` is any saveable value; without one the run's result is the state as JSON.
    """

    state: Any
    result: Any = None


class _StateParameter:
    """A machine takes one argument: its initial state."""

    def __init__(self, codec: values.Codec, model: type[pydantic.BaseModel]) -> None:
        self._codec = codec
        self._model = model

    def dump(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The initial state as canonical JSON."""
        given = [*args, *kwargs.values()]
        if len(given) != 1 or not isinstance(given[0], self._model):
            raise TypeError(f"a machine is started with one {self._model.__name__}")
        return values.canonical({"state": json.loads(self._codec.dump(given[0]))})

    def load(self, form: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The initial state, read back."""
        return [self._codec.load(compact(form["state"]))], {}


class Machine(Workflow):
    """A machine as declared; see ``machine``."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        state: type[pydantic.BaseModel],
        version: int,
        name: str | None,
        save: SavePlace,
        transitions: int | None,
    ) -> None:
        super().__init__(function, version=version, name=name)
        self.model = state
        self.codec = values.Codec(state)
        self.save = save
        self.transitions = transitions
        self.parameters = _StateParameter(self.codec, state)  # type: ignore[assignment]
        self.returns = values.PLAIN
        self._migrations: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}

    def migrate(self, from_version: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a function that turns a saved state of ``from_version`` into one of the next.

        It gets and returns the state as a dict. The original checkpoint is kept. Raises
        InvalidField for a version that is not an earlier one.
        """
        if type(from_version) is not int or from_version >= self.version:
            earlier = f"an earlier version than {self.version}"
            raise InvalidField("from_version", f"needs {earlier}, got {from_version!r}")

        def register_migration(function: Callable[..., Any]) -> Callable[..., Any]:
            self._migrations[from_version] = function
            return function

        return register_migration

    def can_migrate(self, version: int) -> bool:
        """Whether a state saved under ``version`` can be brought to this one."""
        return all(number in self._migrations for number in range(version, self.version))

    def migrated(self, form: dict[str, Any], version: int) -> dict[str, Any]:
        """A saved state of ``version`` as this version has it."""
        for number in range(version, self.version):
            form = self._migrations[number](form)
        return form

    def __repr__(self) -> str:
        return f"<machine {self.name} version {self.version} over {self.model.__name__}>"


def every(before: Any, after: Any) -> bool:
    """Save place: after every transition."""
    del before, after
    return True


def only_at_the_end(before: Any, after: Any) -> bool:
    """Save place: never before the end. An anti-pattern, here so that it can be shown."""
    del before, after
    return False


def machine(
    function: Callable[..., Any] | None = None,
    *,
    state: Any,
    version: int = 1,
    name: str | None = None,
    save: SavePlace = every,
    transitions: int | None = TRANSITIONS,
) -> Any:
    """Declare a machine: a function ``(ctx, state) → state`` or ``Done(state, result)``.

    ``state``: the pydantic model of its state. ``save``: the save place, a function of the state
    before and after a transition that says whether a checkpoint is written here.
    ``transitions``: how many one drive makes at most before it saves and parks (None: no limit);
    ``rt.resume(id)`` goes on for as many again. Raises InvalidField for a declaration that cannot
    work.
    """
    if function is None:
        return functools.partial(
            machine, state=state, version=version, name=name, save=save, transitions=transitions
        )
    if not (isinstance(state, type) and issubclass(state, pydantic.BaseModel)):
        raise InvalidField("state", f"needs a pydantic model, got {state!r}")
    if not callable(save):
        raise InvalidField("save", f"needs a function of two states, got {save!r}")
    if transitions is not None and (type(transitions) is not int or transitions < 1):
        what = "needs a whole number from one up, or None for no limit"
        raise InvalidField("transitions", f"{what}; got {transitions!r}")
    declared = Machine(
        function, state=state, version=version, name=name, save=save, transitions=transitions
    )
    register(declared)
    return declared


@dataclass(eq=False, repr=False)
class _Saved:
    """The last saved state, and what is needed to save the next one as changes."""

    form: Any
    transition: int
    whole: int
    """entry of the snapshot"""
    weight: int
    """bytes of changes since the snapshot"""
    size: int
    """bytes of the snapshot"""
    done: Any = None
    """the Done that the last transition returned, as ``[result]``; only the run's end is missing"""


class MachineDriver(Driver):
    """Drives a machine: enters the last saved state, and saves a checkpoint per save place."""

    _workflow: Machine

    def _execute(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        del kwargs
        self._unsaved: list[Saved] = []
        #: our last entry when we last looked for what others want
        self._looked_at = 0
        saved = self._enter(args[0])
        state = self._loaded(saved.form)
        if saved.done is not None:  # no transition follows the last one
            self._finish(saved)
            return
        transition = saved.transition
        most = self._workflow.transitions
        last = None if most is None else transition + most
        text = compact(saved.form)
        ctx = Context(self)
        while True:
            self._heed_cancel()
            before = text
            transition += 1
            # A turn belongs to its transition: after a restart it keeps its end, and the next
            # transition's turn of the same name gets its own.
            self._where = f" of transition {transition}"
            self._turns.clear()
            after = self._workflow.function(ctx, state)
            if self.stopped is not None:
                raise self.stopped
            ended = isinstance(after, Done)
            text = self._dumped(after.state if isinstance(after, Done) else after)
            state = self._workflow.codec.load(text)
            if isinstance(after, Done):
                saved.done = [json.loads(values.plain_json(after.result))]
            full = transition == last
            if ended or full or self._must_save(before, state):
                self._append_checkpoint(saved, json.loads(text), transition)
                self.reach(self._workflow.name, "checkpoint_saved", transition)
            if ended:
                self._finish(saved)
                return
            if full:
                self._park_without_end(transition)

    def _heed_cancel(self) -> None:
        """Between two transitions a wish to stop is heard, also where none touches ctx."""
        if self._has_open_call():
            return  # first it is found out how that ended
        if self.lease.seq == self._looked_at:
            self.commands_waiting = True  # nothing was appended that would tell us
        self.consume_commands()
        self._looked_at = self.lease.seq
        if self.cancel:
            self.stop(Cancelled())

    def _has_open_call(self) -> bool:
        """Whether the transition that is entered again had begun a call, and has no outcome."""
        return any(slot.kind == "call" and not slot.final for slot in self._slots)

    def _park_without_end(self, transition: int) -> NoReturn:
        """It may be long, or run in circles: a person can tell, and the state is saved."""
        reason = (
            f"{self._workflow.transitions} transitions in one drive and no end, {transition} in "
            "all. Look: run.checkpoints(), run.diff(…). rt.resume(id) makes as many again; "
            "transitions=… of the machine changes the limit; or cancel the run"
        )
        self.stop(Suspended("needs_decision", reason, step=self._workflow.name, why="no end"))

    def _must_save(self, before: str, state: Any) -> bool:
        save = self._workflow.save
        return save is every or bool(save(self._workflow.codec.load(before), state))

    def _dumped(self, state: Any) -> str:
        if not isinstance(state, self._workflow.model):
            raise TypeError(
                f"machine {self._workflow.name!r} returned {type(state).__name__}; it returns the "
                f"next {self._workflow.model.__name__}, or dk.Done(state)"
            )
        try:
            return self._workflow.codec.dump(state)
        except UnsavableValue as error:
            raise UnsavableValue(error.path, f"state: {error.reason}") from error

    def _load_arguments(self, form: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The initial state as saved: an older version's may not fit the model of today."""
        if "state" not in form:
            raise UnloadableValue("saved value is no state of a machine")
        return [form["state"]], {}

    def _loaded(self, form: Any) -> Any:
        try:
            return self._workflow.codec.load(compact(form))
        except UnloadableValue as error:
            self.unloadable("state", error)

    def _enter(self, form: Any) -> _Saved:
        """The last saved state; the initial one is in the run's first entry."""
        saved = _Saved(form, 0, 1, 0, len(compact(form)))
        marks = [entry for entry in self.entries if entry.kind == "checkpoint"]
        version = self.row.version
        if marks:
            _rebuild(saved, marks)
            body = json.loads(marks[-1].payload)
            saved.transition, version = body["transition"], body["version"]
            saved.done = body.get("done")
            after = marks[-1].seq
            self._slots = [slot for slot in self._slots if slot.seq > after]
        if version != self._workflow.version:
            try:
                saved.form = self._workflow.migrated(saved.form, version)
            except Exception as error:  # noqa: BLE001 - the run is as it was; only code is wrong
                why = f"of version {version} could not be migrated ({type(error).__name__})"
                self.unloadable("state", UnloadableValue(why))
            self._loaded(saved.form)
            self._append_checkpoint(saved, saved.form, saved.transition, whole=True)
        return saved

    def _saved_slot(self, kind: str, name: str, key: str | None) -> Slot | None:
        """The first unused slot of that identity since the checkpoint; order does not matter."""
        for index, slot in enumerate(self._slots):
            if (slot.name, slot.key) == (name, key) and slot.kind in (kind, "limit"):
                del self._slots[index]
                if slot.kind == "limit":
                    raise values.load_error(json.loads(slot.payload or "{}")["error"])
                return slot
        return None

    def _other_arguments(self, slot: Slot, op: Operation) -> NoReturn:
        """A plan made anew may word it otherwise; it is refused as in the first life."""
        saved = json.loads(slot.intent or "{}").get("arguments", "")
        raise ArgumentsDiffer(f"key {op.key!r} of tool {op.tool.name}", saved, op.arguments)

    def begin_new_work(self, name: str, key: str | None) -> None:
        """While a call of the re-entered transition is open, what leads to it is recovery."""
        if key is not None or not self._has_open_call():
            super().begin_new_work(name, key)

    def _left_over(self) -> None:
        """A plan made anew need not come by what the one before it saved."""

    def _save_step(self, name: str, occurrence: int, payload: str) -> None:
        """Steps wait for the checkpoint that ends their transition."""
        del occurrence
        self._unsaved.append(Saved("step", name, payload, self.clock.now()))

    def _append_checkpoint(
        self, saved: _Saved, form: Any, transition: int, *, whole: bool = False
    ) -> None:
        changed = changes.diff(saved.form, form)
        parts: dict[str, Any] = {"transition": transition, "version": self._workflow.version}
        if saved.done is not None:
            parts["done"] = saved.done
        text = compact(changed)
        saved.weight += len(text)
        whole = whole or saved.weight > max(saved.size, SNAPSHOT_LEAST)
        parts["state" if whole else "changes"] = form if whole else changed
        self.append(
            "checkpoint",
            payload=compact(parts),
            progress=True,
            before=tuple(self._unsaved),
            checkpoint=(transition, 0 if whole else saved.whole),
        )
        self._unsaved.clear()
        self._slots.clear()
        saved.form, saved.transition = form, transition
        if whole:
            saved.whole, saved.weight, saved.size = self.lease.seq, 0, len(compact(form))

    def _finish(self, saved: _Saved) -> None:
        """End, unless an operation is left without an outcome."""
        unknown = self._left_unknown()
        if unknown is not None:
            raise unknown
        (given,) = saved.done
        result = saved.form if given is None else given
        self._end_completed(result, values.PLAIN)


def _rebuild(saved: _Saved, marks: list[Entry]) -> None:
    """Bring ``saved``, the initial state, to the last of ``marks``."""
    first = 0
    for index in range(len(marks) - 1, -1, -1):
        body = json.loads(marks[index].payload)
        if "state" in body:
            first, saved.whole, saved.form = index + 1, marks[index].seq, body["state"]
            saved.size = len(compact(saved.form))
            break
    for mark in marks[first:]:
        body = json.loads(mark.payload)
        saved.form = changes.apply(saved.form, body["changes"])
        saved.weight += len(compact(body["changes"]))


def state_at(store: Store, run: int, mark: CheckpointRow | None) -> Any:
    """The state (JSON form) of a checkpoint: one snapshot is read, and the changes after it.

    ``mark`` None is the initial state, from the run's first entry.
    """
    if mark is None or mark.whole == 1:
        state = json.loads(store.read_entry(run, 1).payload)["arguments"]["state"]
    else:
        state = json.loads(store.read_entry(run, mark.whole).payload)["state"]
    if mark is not None and mark.seq > mark.whole:
        for entry in store.read_journal(run, mark.whole, mark.seq):
            if entry.kind == "checkpoint":
                state = changes.apply(state, json.loads(entry.payload)["changes"])
    return state


def check_version(machine: Machine, version: int, id: str) -> None:
    """Raises WorkflowChanged where the run's state cannot be brought to this version."""
    if version != machine.version and not machine.can_migrate(version):
        raise WorkflowChanged(
            f"run {id!r} was begun under version {version} of {machine.name!r}, and version "
            f"{machine.version} is defined here without a migration from it: register one with "
            "@machine.migrate(from_version=…), or define the old code. Nothing was run"
            f"{machine.clash()}"
        )

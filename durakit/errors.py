"""Every exception that durakit raises to its users, in one tree.

Two families. The first is not made of errors: these end a *drive* (one incarnation's work on
a run), not the run, so they derive from ``BaseException`` and ``except Exception`` in a
workflow cannot swallow them. The second are ordinary errors: 'you erred', 'the file is not
usable', 'the operation ended badly'.

::

    BaseException
     └─ Stop                     a drive ends here; never raised by user code
         ├─ SimulatedCrash       the incarnation died at a crash point
         ├─ LeaseLost            somebody else drives this run now
         ├─ Suspended            the run parks or waits; a person or a signal goes on
         ├─ Cancelled            a cancel request was honoured
         └─ StoreStopped         the store failed; carries the StoreError for the caller
    Exception
     └─ DurakitError
         ├─ UsageError           you erred
         │   ├─ InvalidField     (ValueError) an argument, named, is out of range
         │   ├─ UnsavableValue   a value has no lossless saved form; names its path
         │   ├─ UnloadableValue  a saved value no longer fits the type that asks for it
         │   ├─ ArgumentsDiffer  same run id or operation key, other arguments
         │   ├─ RunNotFound, RunNotFinished
         │   ├─ WorkflowNotFound, WorkflowChanged
         │   └─ NotAllowed, VersionConflict      of the cross-run store
         ├─ StoreError           the file is not usable now; it was left as it was
         │   ├─ DamagedFile, ForeignFile, NewerFile, MisplacedFile
         │   ├─ ClockMismatch    the file was driven by another kind of clock
         │   ├─ StoreBusy        others held the write lock for too long
         │   └─ StoreFull        the disk is full; nothing was written
         └─ OperationError       how an operation or a run ended
             ├─ DeadlineExceeded names the level that fired
             ├─ NotExecuted      a tool raises it: certainly no effect; ``transient`` says whether
             │                   the same request may succeed later
             ├─ Infeasible       a tool raises it: names the condition that is missing
             ├─ Compensated      it stayed unknown, and what it may have done is undone
             └─ SavedError       an error of a type that is not rebuilt from the disk
"""

from __future__ import annotations

from typing import Any


class Stop(BaseException):
    """A drive ends here. Not an error, and not for user code to raise or to catch."""


class SimulatedCrash(Stop):
    """The incarnation died at ``point``; its store and world refuse every later touch."""

    def __init__(self, place: str, point: str) -> None:
        self.place = place
        self.point = point
        super().__init__(f"simulated crash at {point} of {place}")


class LeaseLost(Stop):
    """An append carried a fencing token that is no longer the run's; nothing was written."""


class Suspended(Stop):
    """The run stops here for now: ``status`` is ``needs_decision`` or ``waiting``."""

    def __init__(self, status: str, reason: str, **place: Any) -> None:
        self.status = status
        self.reason = reason
        self.place = place
        super().__init__(reason)


class Cancelled(Stop):
    """A cancel request was honoured at a boundary: no new work is begun."""


class StoreStopped(Stop):
    """The store failed under a running workflow; ``error`` is what the caller gets."""

    def __init__(self, error: StoreError) -> None:
        self.error = error
        super().__init__(str(error))


class DurakitError(Exception):
    """Base of every ordinary error of durakit."""


class UsageError(DurakitError):
    """You erred: the message says what to change."""


class InvalidField(UsageError, ValueError):
    """An argument is out of range; ``field`` names it."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(f"{field}: {problem}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.field, self.problem)


class UnsavableValue(UsageError):
    """A value has no saved form without loss; ``path`` (from ``$``) is the bad part."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"cannot save {path}: {reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.reason)


class UnloadableValue(UsageError):
    """A saved value does not fit the type that the code now asks for; no step has run."""


class ArgumentsDiffer(UsageError):
    """The same run id or operation key came with other arguments; nothing was sent."""

    def __init__(self, what: str, saved: str, given: str) -> None:
        self.what = what
        self.saved = saved
        self.given = given
        super().__init__(
            f"{what} was first used with other arguments: "
            f"saved digest {saved[:12]}, given digest {given[:12]}. "
            "A new piece of business needs a new one."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.saved, self.given)


class RunNotFound(UsageError):
    """No run has this id in this file and account."""


class RunNotFinished(UsageError):
    """``run.result`` was read before there is one; the message says what to do."""


class WorkflowNotFound(UsageError):
    """The run's workflow is not defined in this process."""


class WorkflowChanged(UsageError):
    """The run was begun under another declared version of its workflow."""


class NotAllowed(UsageError):
    """The namespace belongs to another account, and its rule does not admit this one."""


class VersionConflict(UsageError):
    """Somebody has written the item since it was read; ``found`` is its version now."""

    def __init__(self, namespace: str, key: str, expected: int, found: int) -> None:
        self.namespace = namespace
        self.key = key
        self.expected = expected
        self.found = found
        super().__init__(
            f"item {key!r} of {namespace!r} has version {found}, not {expected}: read it again. "
            "Nothing was written"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.namespace, self.key, self.expected, self.found)


class StoreError(DurakitError):
    """The file cannot be used now. It was left as it was."""


class DamagedFile(StoreError):
    """Bytes of the file are not what was written; nothing was changed in it."""


class ForeignFile(StoreError):
    """The file exists and is not durakit's; nothing was changed in it."""


class NewerFile(StoreError):
    """The file was written by a newer durakit; nothing was changed in it."""


class MisplacedFile(StoreError):
    """The file cannot live at this path (a folder, no permission, or a missing folder)."""


class ClockMismatch(StoreError):
    """The file was driven under another kind of clock: it may be read, not driven."""


class StoreBusy(StoreError):
    """Other writers held the file for longer than the caller could wait."""


class StoreFull(StoreError):
    """There is no room for the next entry; nothing was written.

    Before an intent that means: nothing was sent.
    """


class OperationError(DurakitError):
    """How an operation or a run ended, where it did not complete."""


class DeadlineExceeded(OperationError):
    """A limit fired; ``level`` is ``session``, ``turn`` or ``call``, ``name`` says which."""

    def __init__(self, level: str, name: str, detail: str = "") -> None:
        self.level = level
        self.name = name
        self.detail = detail
        label = level if not name or name == level else f"{level} {name!r}"
        super().__init__(f"deadline of the {label} reached" + (f": {detail}" if detail else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.level, self.name, self.detail)


class NotExecuted(OperationError):
    """Raised by a tool that is certain: nothing happened outside.

    ``transient=True`` says that the same request may succeed later.
    """

    def __init__(
        self, message: str, transient: bool = False, retry_after: float | None = None
    ) -> None:
        self.transient = transient
        self.retry_after = retry_after
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.transient, self.retry_after)


class Infeasible(OperationError):
    """Raised by a tool: the task cannot be done until ``missing`` is there."""

    def __init__(self, missing: str) -> None:
        self.missing = missing
        super().__init__(f"cannot be done: {missing}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.missing,)


class Compensated(OperationError):
    """A call whose outcome stayed unknown: what it may have done has been undone."""

    def __init__(self, tool: str, key: str) -> None:
        self.tool = tool
        self.key = key
        super().__init__(f"{tool} {key!r} stayed unknown, and its compensation is completed")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.tool, self.key)


class SavedError(OperationError):
    """An error whose type is not rebuilt from the disk: its type's name and its message."""

    def __init__(self, type_name: str, message: str) -> None:
        self.type_name = type_name
        self.message = message
        super().__init__(f"{type_name}: {message}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.type_name, self.message)

"""durakit: a kit about one question: after a crash, what may run again?"""

from typing import TYPE_CHECKING, Any

from durakit import starting, testing  # noqa: F401 - what takes long to load comes after it
from durakit.clock import Clock, ManualClock, SystemClock
from durakit.define import Call, Found, Tool, Workflow, tool, workflow
from durakit.driver import Context
from durakit.errors import (
    ArgumentsDiffer,
    Compensated,
    DeadlineExceeded,
    DurakitError,
    Infeasible,
    InvalidField,
    NotAllowed,
    NotExecuted,
    OperationError,
    RunNotFinished,
    RunNotFound,
    SavedError,
    SimulatedCrash,
    StoreError,
    UnloadableValue,
    UnsavableValue,
    UsageError,
    VersionConflict,
    WorkflowChanged,
    WorkflowNotFound,
)
from durakit.faults import CrashAt
from durakit.machine import Done, Machine, machine, only_at_the_end
from durakit.protocol import Probed
from durakit.retry import Retry, RetryBudget
from durakit.retrying import retry_call
from durakit.run import Run
from durakit.runtime import Runtime
from durakit.sweep import sweep
from durakit.values import UnsavableResult

Absent = Probed.ABSENT
StillUnknown = Probed.STILL_UNKNOWN

__version__ = "0.1.0"

__all__ = [
    "Absent",
    "ArgumentsDiffer",
    "Call",
    "Clock",
    "Compensated",
    "Context",
    "CrashAt",
    "DeadlineExceeded",
    "Done",
    "DurakitError",
    "Found",
    "Infeasible",
    "InvalidField",
    "Machine",
    "ManualClock",
    "NotAllowed",
    "NotExecuted",
    "OperationError",
    "Retry",
    "RetryBudget",
    "Run",
    "RunNotFinished",
    "RunNotFound",
    "Runtime",
    "SavedError",
    "SimulatedCrash",
    "StillUnknown",
    "StoreError",
    "SystemClock",
    "Tool",
    "UnloadableValue",
    "UnsavableResult",
    "UnsavableValue",
    "UsageError",
    "VersionConflict",
    "Workflow",
    "WorkflowChanged",
    "WorkflowNotFound",
    "lint",
    "machine",
    "only_at_the_end",
    "retry_call",
    "sweep",
    "testing",
    "tool",
    "workflow",
]


if TYPE_CHECKING:
    from durakit.linting import lint


def __getattr__(name: str) -> Any:
    """Load what most programs never ask for, so that they start sooner."""
    if name == "lint":
        from durakit.linting import lint  # noqa: PLC0415 - that is what this is for

        return lint
    raise AttributeError(f"module 'durakit' has no attribute {name!r}")

"""The commands on a workflow's code: ``sweep`` runs it crash by crash, ``lint`` reads it."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from durakit.cli.exit_codes import NEEDS_A_PERSON, OK
from durakit.cli.given import arguments_of, named, signals_of
from durakit.cli.printing import apart, say, say_json
from durakit.define import Workflow
from durakit.errors import UsageError

if TYPE_CHECKING:
    from durakit.sweep import Report


def sweep(options: argparse.Namespace) -> int:
    """Crash a workflow everywhere, and print what came of it."""
    from durakit.sweep import sweep as crash_everywhere  # noqa: PLC0415 - only this command needs it

    module, workflow = named(options.workflow, "MODULE:WORKFLOW")
    if not isinstance(workflow, Workflow):
        raise UsageError(f"{options.workflow} is no workflow: declare it with @dk.workflow")
    world = _world(module, options.world)
    args, kwargs = arguments_of(workflow, options.args)
    mode: Literal["simulated", "process"] = "process" if options.real else "simulated"
    signals = signals_of(options.signal)
    with apart():
        report = crash_everywhere(
            workflow, *args, world=world, crashes=2 if options.pairs else 1, mode=mode,
            signals=signals, only=options.only, progress=options.progress, **kwargs,
        )  # fmt: skip
    if options.json:
        say_json(
            {
                "workflow": workflow.name,
                "mode": mode,
                "ending": report.ending,
                "safe": report.safe,
                "counterexample": report.counterexample,
                "rows": report.rows,
            }
        )
    else:
        _say_sweep(report)
    if report.ending:  # to survive the crashes of a run that fails anyway says nothing
        return NEEDS_A_PERSON
    return OK if report.safe else NEEDS_A_PERSON


def _world(module: Any, option: str | None) -> Any:
    """The object to count effects in: what --world names, else the module's own ``world``."""
    if option is not None:
        _, world = named(option, "--world")
    elif hasattr(module, "world"):
        world = module.world
    else:
        raise UsageError(
            f"module {module.__name__!r} has no object named `world` to count effects in: make "
            "one there, or say --world module:name"
        )
    if isinstance(world, type):
        raise UsageError("the world must be the object that the tools use, and this is a class")
    return world


def _say_sweep(report: Report) -> None:
    """The table, and under it the detail of each row that is not safe."""
    say(report.text())
    for row in report.rows:
        if row["detail"] and not row["verdict"].startswith("safe"):
            where = f"{row['number']} {row['point']} of {row['place']}"
            where += f", then {row['then']}" if row["then"] else ""
            say(f"{where}: {row['verdict']}: {row['detail']}")


def lint(options: argparse.Namespace) -> int:
    """Look for the usual mistakes in a workflow, machine or tool, and print what was seen."""
    from durakit.linting import lint as read_through  # noqa: PLC0415 - only this command needs it

    _, subject = named(options.subject, "MODULE:NAME")
    report = read_through(subject)
    if options.json:
        rows = [dataclasses.asdict(row) for row in report.rows]
        say_json({"subject": report.subject, "rows": rows})
    else:
        say(report.text())
    return NEEDS_A_PERSON if report.found else OK

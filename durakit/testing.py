"""For the test suite of whoever uses durakit: one assertion that a workflow survives crashes."""

from __future__ import annotations

from typing import Any, Literal

from durakit.define import Workflow
from durakit.kill import Mode
from durakit.sweep import HANDED_OVER, NOT_REACHABLE, Report, as_text, smallest, sweep

#: Rows that a failure shows.
_SHOWN = 30


def assert_crash_safe(
    workflow: Workflow,
    /,
    *args: Any,
    world: Any,
    crashes: Literal[1, 2] = 1,
    mode: Mode = "simulated",
    allow_handover: bool = True,
    allow_unreachable: bool = False,
    **options: Any,
) -> Report:
    """Assert that no crash of ``workflow(*args)`` doubles, loses or changes an effect.

    Sweeps it (see ``durakit.sweep`` for ``world``, ``crashes``, ``mode`` and ``options``) and
    returns the report. ``allow_handover``: whether an unknown operation may be left to a person.
    ``allow_unreachable``: whether there may be crashes that the world cannot show, having no
    hook or no way to hold a request.

    Raises AssertionError with the bad schedules, the smallest of them, and how to run it again;
    also where the run fails, or is parked, without any crash: surviving one would say nothing.
    """
    __tracebackhide__ = True
    report = sweep(workflow, *args, world=world, crashes=crashes, mode=mode, **options)
    if report.ending and not (allow_handover and report.ending.startswith("needs_decision")):
        raise AssertionError(
            f"{report.workflow} does not end well without a crash: {report.ending}"
        )
    bad = [
        schedule
        for schedule in report.schedules
        if not (schedule.good or (allow_unreachable and schedule.verdict == NOT_REACHABLE))
        or (schedule.verdict == HANDED_OVER and not allow_handover)
    ]
    if bad:
        raise AssertionError(_complaint(report, bad))
    return report


def _complaint(report: Report, bad: list[Any]) -> str:
    broken = [schedule for schedule in bad if schedule.verdict != NOT_REACHABLE]
    seed = smallest(broken or bad)
    first = next(schedule for schedule in bad if schedule.seed == seed)
    lines = [
        (
            f"{report.workflow} is not crash-safe: {len(bad)} of {len(report.schedules)} "
            f"schedules ({report.reference} effect(s) without a crash)"
        ),
        "",
        as_text(bad[:_SHOWN]),
        *([f"… and {len(bad) - _SHOWN} more"] if len(bad) > _SHOWN else []),
        "",
        f"smallest counterexample: {seed}",
        f"    {first.verdict}: {first.detail}",
        "once more, with the same arguments and world, and its files kept:",
        f"    dk.sweep({report.workflow}, …, world=…, only={seed!r}, keep='look-here')",
    ]
    if not first.then:
        lines += [
            "or only the crash, to recover from by hand:",
            f"    rt.run({report.workflow}, …, id='again', crash=dk.CrashAt.parse({seed!r}))",
        ]
    return "\n".join(lines)


__all__ = ["assert_crash_safe"]

"""What can be seen of a workflow without running it: the usual mistakes, where they can be seen.

How it works. A rule looks at two things: what was *declared* (a tool's contract, its retries and
its limit; a machine's save place) and what is *written* (the source, as a tree). Nothing is run.
A name is looked up where Python would find it (closure, module, builtins), and no property or
``__getattr__`` is asked. Functions that are handed ``ctx`` or ``call`` are looked at too.

Every place that a rule has looked at gives a row, and a row is one of three things:

* ``found``: this is written there, and it is the mistake;
* ``clear``: it was looked at, and this rule has nothing to say;
* ``cannot see``: the answer is not in what was looked at, and the row says where it would be.

What it is not. It proves nothing. It does not follow values through data, and it knows nothing of
the service. What holds at every crash is the sweep's to say (``durakit.sweep``); what the sweep
cannot see, such as retries and limits in a world where nothing fails, may be seen here.

Read in this order: ``findings`` (rows and report), the rules in ``keys``, ``retries`` and
``effects``, and ``tool`` and ``workflow``, which go through them. How source is read stands in
``durakit.source``.
"""

from __future__ import annotations

from durakit.define import Tool, Workflow
from durakit.errors import InvalidField
from durakit.linting.findings import (
    AT_THE_END,
    BLIND,
    CANNOT_SEE,
    CLEAR,
    EVERYTHING,
    FOUND,
    HIDDEN,
    NEW_KEY,
    NO_KEY,
    NOTHING,
    ONE_LIMIT,
    RULES,
    WHICH_TOOL,
    Findings,
    Kind,
    Report,
    Row,
    rank,
)
from durakit.linting.tool import lint_tool
from durakit.linting.workflow import lint_workflow
from durakit.machine import Machine

__all__ = [
    "AT_THE_END", "BLIND", "CANNOT_SEE", "CLEAR", "EVERYTHING", "FOUND", "HIDDEN", "NEW_KEY",
    "NOTHING", "NO_KEY", "ONE_LIMIT", "RULES", "WHICH_TOOL", "Kind", "Report", "Row", "lint",
    "tools_of",
]  # fmt: skip


def lint(subject: Workflow | Tool) -> Report:
    """Look for the usual mistakes in a workflow, a machine or a tool, without running it.

    Of a workflow or machine also the tools that it calls, as far as they can be told from its
    source. Raises InvalidField for anything else; whatever the code looks like, nothing else.
    """
    if not isinstance(subject, Workflow | Tool):
        raise InvalidField(
            "subject",
            "lint looks at what @dk.workflow, @dk.machine or @dk.tool declares, not at a "
            f"{type(subject).__name__}",
        )
    found = Findings()
    if isinstance(subject, Tool):
        kind, tools = "tool", [subject]
    else:
        kind = "machine" if isinstance(subject, Machine) else "workflow"
        tools = found.guarded(subject.name, lint_workflow, subject) or []
    for tool in tools:
        found.guarded(tool.name, lint_tool, tool)
    rows = sorted(dict.fromkeys(found.rows), key=rank)
    return Report(f"{kind} {subject.name}", tuple(rows))


def tools_of(workflow: Workflow) -> list[Tool]:
    """The tools that a workflow or machine calls, with their compensations, as far as can be told.

    In the order of the source; a tool that is chosen at run time is not among them.
    """
    return Findings().guarded(workflow.name, lint_workflow, workflow) or []

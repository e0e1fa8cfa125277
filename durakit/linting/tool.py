"""The rules on a tool: what it declares, and its code where it has an outside effect."""

from __future__ import annotations

import ast

from durakit.define import Tool
from durakit.linting.findings import (
    BLIND,
    EVERYTHING,
    NEW_KEY,
    NO_KEY,
    NOTHING,
    ONE_LIMIT,
    Findings,
)
from durakit.linting.keys import lint_key_use
from durakit.linting.retries import BLIND_IN_A_TOOL, lint_loops, lint_wrapping
from durakit.protocol import Effect
from durakit.source import Code, is_said, reached, read_code


def lint_tool(found: Findings, tool: Tool) -> None:
    """Look at a tool's declaration, and at its code where it has an outside effect."""
    _lint_declaration(found, tool)
    if tool.contract.effect is Effect.NONE:
        return
    keyed = tool.contract.effect in (Effect.IDEMPOTENT, Effect.QUERYABLE)
    code = read_code(tool.function, handle_at=0)
    if code is None:
        for rule in (NO_KEY, EVERYTHING, NEW_KEY) if keyed else (EVERYTHING,):
            found.unseen(rule, tool.name, None, "its source is not available", "its declaration")
        return
    lint_wrapping(found, tool.function, code, tool.name)
    codes, lost = reached(code)
    if keyed:
        lint_key_use(found, tool, codes, lost)
    for at in codes:
        targets = [call for call in at.calls() if _may_reach_out(at, call)]
        lint_loops(found, at, tool.name, targets, BLIND_IN_A_TOOL)


def _lint_declaration(found: Findings, tool: Tool) -> None:
    contract, attempts, name = tool.contract, tool.policy.attempts, tool.name
    declared = f"effect={contract.effect.value}, on_unknown={contract.on_unknown}"
    if contract.on_unknown == "resend" and contract.effect in (Effect.OPAQUE, Effect.QUERYABLE):
        says = "nothing is promised about a second request, and an unknown outcome makes one"
        found.found(BLIND, name, None, says, declared)
    else:
        found.clear(BLIND, name, None, declared)
    tries = f"effect={contract.effect.value}, attempts={attempts}"
    if contract.effect is Effect.OPAQUE and attempts > 1:
        if contract.on_unknown == "resend":
            says = f"up to {attempts} attempts, also of what may have been done"
            found.found(EVERYTHING, name, None, says, f"{tries}, on_unknown=resend")
        else:
            says = "whether each refusal of this service proves that nothing was done"
            found.unseen(EVERYTHING, name, None, says, tries)
    if contract.effect in (Effect.NONE, Effect.IDEMPOTENT) and attempts == 1:
        says = "one attempt: a busy service (429) ends the call, and asking again would be safe"
        found.found(NOTHING, name, None, says, tries)
    else:
        found.clear(NOTHING, name, None, tries)
    if tool.timeout is None:
        says = "no limit of its own: one attempt may take all that is left of the turn or session"
        found.found(ONE_LIMIT, name, None, says, "timeout=None")
    else:
        found.clear(ONE_LIMIT, name, None, f"timeout={tool.timeout:g}")


def _may_reach_out(code: Code, call: ast.Call) -> bool:
    """Whether a call in a tool may be the one that touches the world: none of Python's own."""
    if is_said(code, call) or code.verb(call):
        return False
    name = code.dotted(call.func)
    return not name.startswith(("builtins.", "time.", "random.", "json.", "math."))

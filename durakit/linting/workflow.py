"""The rules on a workflow or machine: where it saves, which tools it calls, and its own code."""

from __future__ import annotations

import ast
from typing import Any

from durakit.define import Tool, Workflow, source_digest
from durakit.linting.effects import clients_of, lint_hidden
from durakit.linting.findings import (
    AT_THE_END,
    EVERYTHING,
    HIDDEN,
    NEW_KEY,
    ONE_LIMIT,
    WHICH_TOOL,
    Findings,
)
from durakit.linting.keys import lint_keys
from durakit.linting.retries import BROAD, lint_loops, lint_wrapping
from durakit.machine import Machine, every, only_at_the_end
from durakit.source import UNKNOWN, Code, reached, read_code, turned


def lint_workflow(found: Findings, workflow: Workflow) -> list[Tool]:
    """Look at a workflow's or machine's own code; returns the tools that it calls."""
    _lint_save(found, workflow)
    code = read_code(workflow.function, handle_at=0)
    says = "" if code else "its source is not available"
    if code and source_digest(workflow.function) != workflow.source:
        says = "its source has been changed since it was defined: import it again"
    if code is None or says:
        for rule in (EVERYTHING, ONE_LIMIT, NEW_KEY, HIDDEN, WHICH_TOOL):
            found.unseen(rule, workflow.name, None, says, "its name")
        return []
    lint_wrapping(found, workflow.function, code, workflow.name)
    codes, lost = reached(code)
    for at, node, how in lost:
        for rule in (EVERYTHING, ONE_LIMIT, NEW_KEY, HIDDEN, WHICH_TOOL):
            says = f"{how}: what is done with it there was not looked at"
            found.unseen(rule, at.name, at.line(node), says, f"the source of {at.name}")
    tools = _tools(found, codes)
    clients = {client for tool in tools for client in clients_of(tool)}
    for at in codes:
        lint_keys(found, at)
        lint_loops(found, at, at.name, at.operations(), BROAD)
        lint_hidden(found, at, tools, clients)
    _lint_turns(found, codes)
    return tools


def _tools(found: Findings, codes: list[Code]) -> list[Tool]:
    """The tools that are called, each once, and then their compensations."""
    tools: list[Tool] = []
    for code in codes:
        for call in code.operations():
            tool = code.resolve(call.args[0]) if call.args else UNKNOWN
            if isinstance(tool, Tool):
                tools.append(tool)
            else:
                what = ast.unparse(call.args[0]) if call.args else "its arguments"
                says = "the tool is chosen when it runs; its declaration was not looked at"
                found.unseen(WHICH_TOOL, code.name, code.line(call), says, what)
    tools += [tool.compensate for tool in tools if tool.compensate is not None]
    return list(dict.fromkeys(tools))


def _lint_save(found: Findings, workflow: Workflow) -> None:
    """Rule 'a checkpoint only at the end': where a machine's checkpoints are written."""
    place = workflow.name
    if not isinstance(workflow, Machine):
        found.clear(AT_THE_END, place, None, "a workflow: each step and call is saved by itself")
        return
    save: Any = workflow.save
    if save is every:
        found.clear(AT_THE_END, place, None, "the save place: after every transition")
        return
    says = "no checkpoint is written before the end: a crash repeats all of the work"
    if save is only_at_the_end:
        found.found(AT_THE_END, place, None, says, "save=only_at_the_end")
        return
    code = read_code(save)
    if code is None:
        found.unseen(AT_THE_END, place, None, "its source is not available", "the save place")
        return
    line, looked_at = code.line(code.tree), f"the save place {code.name}"
    answers = _answers(code)
    if answers == {True}:
        found.clear(AT_THE_END, place, line, looked_at)
    elif answers <= {False, None}:
        found.found(AT_THE_END, place, line, says, looked_at)
    else:
        says = "it decides by the two states; how much work lies between was not looked at"
        found.unseen(AT_THE_END, place, line, says, looked_at)


def _answers(code: Code) -> set[Any]:
    """What a save place may answer: True, False, None where it ends without a word, or ``…``.

    ``…`` stands for all that is not written there: an expression, or that it may raise.
    """
    body = code.tree.body
    if not isinstance(body, list):
        return {_answer(body)}
    asks = [node for node in code.walk() if isinstance(node, ast.Yield | ast.YieldFrom | ast.Raise)]
    if asks or isinstance(code.tree, ast.AsyncFunctionDef):
        return {...}  # what a generator or a coroutine hands back is no answer
    inner = {
        part
        for node in code.walk()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for part in ast.walk(node)
    }
    returns = [node for node in code.walk() if isinstance(node, ast.Return) and node not in inner]
    ends = {None} if not isinstance(body[-1], ast.Return) else set[Any]()
    return ends | {None if node.value is None else _answer(node.value) for node in returns}


def _answer(node: ast.expr) -> Any:
    known = isinstance(node, ast.Constant) and (node.value is None or node.value in (True, False))
    return node.value if known and isinstance(node, ast.Constant) else ...


def _lint_turns(found: Findings, codes: list[Code]) -> None:
    """Rule 'one layer of timeout', for the two layers that are no tool's: turn and session."""
    name, line = codes[0].name, codes[0].line(codes[0].tree)
    calls = [(code, call) for code in codes for call in code.operations()]
    bare = [(at, call) for at, call in calls if not at.in_turn and call not in turned(at)]
    loose = [
        (at, call)
        for at in codes
        for call in at.calls()
        if at.verb(call) == "turn" and not at.opens(call)
    ]
    if bare and loose:
        at, call = loose[0]
        says = (
            "the turn is not opened by a `with` of its own; which calls it holds was not looked at"
        )
        found.unseen(ONE_LIMIT, at.name, at.line(call), says, ast.unparse(call))
    elif bare:
        at, call = bare[0]
        says = (
            f"{len(bare)} of {len(calls)} call(s) in no ctx.turn: between the limit of one "
            "attempt and that of the whole run there is none"
        )
        found.found(ONE_LIMIT, at.name, at.line(call), says, "each ctx.call of the source")
    elif calls:
        found.clear(ONE_LIMIT, name, line, f"{len(calls)} call(s), each in a ctx.turn")
    says = "the limit of the whole run is given where it is started: rt.run(…, deadline=…)"
    found.unseen(ONE_LIMIT, name, line, says, f"the source of {name}")

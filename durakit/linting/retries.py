"""Rule 'everything is retried', as far as it is written in code: loops and second tries."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from durakit.linting.findings import EVERYTHING, Findings
from durakit.linting.keys import names_a_key
from durakit.source import VERBS, Code, is_name, plain_function, short

#: Handlers that catch whatever it was.
BROAD: Final = frozenset({"", "builtins.Exception", "builtins.BaseException"})
#: In a tool these say: no answer came, and nobody knows what was done.
BLIND_IN_A_TOOL: Final = BROAD | {"builtins.OSError", "builtins.TimeoutError"}


@dataclass(frozen=True)
class _Caught:
    """A place where errors are caught: what is tried, what is caught, and what is done then."""

    node: ast.Try | ast.TryStar | ast.With
    tried: list[ast.stmt]
    kinds: list[ast.expr | None]
    """None: any error"""
    then: list[ast.stmt]
    line: int

    @property
    def written(self) -> str:
        """What is caught, in words."""
        if None in self.kinds:
            return "any error"
        return ", ".join(ast.unparse(kind) for kind in self.kinds if kind is not None)

    @property
    def leaves(self) -> bool:
        """Whether the last word is to leave a loop around it."""
        return bool(self.then) and isinstance(self.then[-1], ast.Raise | ast.Return | ast.Break)


def _caught_in(code: Code, root: ast.AST) -> Iterator[_Caught]:
    """Every handler inside of ``root``: of ``try``, and of ``with contextlib.suppress(…)``."""
    for node in ast.walk(root):
        if isinstance(node, ast.Try | ast.TryStar):
            for handler in node.handlers:
                kinds: list[ast.expr | None] = [handler.type]
                if isinstance(handler.type, ast.Tuple):
                    kinds = [*handler.type.elts]
                yield _Caught(node, node.body, kinds, handler.body, code.line(handler))
        elif isinstance(node, ast.With):
            for item in node.items:
                call = item.context_expr
                if isinstance(call, ast.Call) and code.dotted(call.func) == "contextlib.suppress":
                    yield _Caught(node, node.body, [*call.args], [], code.line(node))


def lint_loops(
    found: Findings, code: Code, place: str, targets: list[ast.Call], broad: frozenset[str]
) -> None:
    """Rule 'everything is retried': a hand-made loop or a second try, whatever the error was."""
    before = len(found.rows)
    handlers = [caught for root in code.roots() for caught in _caught_in(code, root)]
    inside = {caught.node: _inside(caught.tried, targets) for caught in handlers}
    careless = [caught for caught in handlers if _catches(code, caught, broad)]
    # Of several handlers of one `try` the first one decides.
    first = {caught.node: caught for caught in reversed(careless)}
    for loop in (node for node in code.walk() if isinstance(node, ast.For | ast.While)):
        parts = set(ast.walk(loop))
        for caught in first.values():
            called = inside[caught.node]
            if caught.node not in parts or caught.leaves:
                continue
            if called and not all(_is_other_work(call, _given(loop)) for call in called):
                says = f"the loop tries again after {caught.written}, whatever it means"
                found.found(EVERYTHING, place, code.line(loop), says, ast.unparse(called[0]))
    for caught in careless:
        again = _inside(caught.then, targets)
        if any(_same_work(one, two) for one in inside[caught.node] for two in again):
            says = f"after {caught.written} the same is asked for again, whatever it means"
            found.found(EVERYTHING, place, caught.line, says, ast.unparse(again[0]))
    _lint_handed(found, code, place, targets)
    if len(found.rows) == before and targets:
        guarded = {call for called in inside.values() for call in called}
        told = f"{len(targets)} call(s), {len(guarded)} of them where an error is caught"
        found.clear(EVERYTHING, place, code.line(code.tree), told)


def _lint_handed(found: Findings, code: Code, place: str, targets: list[ast.Call]) -> None:
    """Ask about a call in a function that is handed to somebody, who may call it again."""
    for node in code.walk():
        if not isinstance(node, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        body: Sequence[ast.AST] = node.body if isinstance(node.body, list) else [node.body]
        called = _inside(body, targets)
        to = _handed_to(code, node) if called else ""
        if to:
            says = f"the call stands in a function that {to}, which may call it again"
            found.unseen(EVERYTHING, place, code.line(called[0]), says, ast.unparse(called[0]))


def _handed_to(code: Code, function: ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """In words, who gets a function that is written inside another; empty for nobody."""
    if not isinstance(function, ast.Lambda) and function.decorator_list:
        return f"is decorated by {ast.unparse(function.decorator_list[0])}"
    name = None if isinstance(function, ast.Lambda) else function.name
    for call in code.calls():
        if code.verb(call):
            continue  # a step's function: what it may run is another rule's
        given = [*call.args, *(word.value for word in call.keywords)]
        if any(part is function or (name and is_name(part, name)) for part in given):
            return f"is handed to {short(ast.unparse(call.func), 40)}"
    return ""


def _inside(statements: Sequence[ast.AST], targets: list[ast.Call]) -> list[ast.Call]:
    parts = {part for statement in statements for part in ast.walk(statement)}
    return [call for call in targets if call in parts]


def _catches(code: Code, caught: _Caught, broad: frozenset[str]) -> bool:
    return any((code.dotted(kind) if kind is not None else "") in broad for kind in caught.kinds)


def _given(loop: ast.For | ast.While) -> set[str]:
    """The names that each turn of the loop gives a value of its own."""
    stored = [n for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return {name.id for name in stored}


def _is_other_work(call: ast.Call, given: set[str]) -> bool:
    """Whether each turn of a loop does something else: its arguments come from the loop.

    In a workflow the key decides, and in a tool any argument but the key.
    """
    keys = [word.value for word in call.keywords if word.arg == "key"]
    words = [word.value for word in call.keywords if not names_a_key(word.arg or "")]
    named_by_ctx = isinstance(call.func, ast.Attribute) and call.func.attr in VERBS and keys
    looked_at = keys if named_by_ctx else [*call.args, *words]
    used = {n.id for part in looked_at for n in ast.walk(part) if isinstance(n, ast.Name)}
    return bool(used & (given - {"attempt"}))


def _same_work(one: ast.Call, two: ast.Call) -> bool:
    first = [ast.unparse(part) for part in [one.func, *one.args[:1]]]
    return first == [ast.unparse(part) for part in [two.func, *two.args[:1]]]


def lint_wrapping(found: Findings, function: Any, code: Code, place: str) -> None:
    """Ask about a decorator around a function: what it does was not looked at."""
    if plain_function(function)[0] is not code.function:
        says = "a decorator is wrapped around it, which may retry and was not looked at"
        found.unseen(EVERYTHING, place, code.line(code.tree), says, "the function inside")

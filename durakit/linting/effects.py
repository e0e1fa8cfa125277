"""Rule 'an effect outside of a call': in a step, or in a bare line of a workflow."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from durakit.define import Tool
from durakit.linting.findings import HIDDEN, Findings
from durakit.linting.keys import PLAIN_METHODS
from durakit.protocol import Effect
from durakit.source import (
    UNKNOWN,
    Code,
    is_name,
    is_said,
    last_name,
    plain_function,
    reached,
    read_code,
    short,
)

_SENDING: Final = frozenset(
    f"{library}.{verb}"
    for library in ("requests", "requests.api", "httpx", "httpx._api")
    for verb in ("post", "put", "patch", "delete")
)

#: Of the standard library what reaches out of the process, or may.
_TOUCHING: Final = (
    "subprocess.", "smtplib.", "socket.", "_socket.", "ssl.", "http.client.", "urllib.request.",
    "ftplib.", "imaplib.", "poplib.", "xmlrpc.", "sqlite3.", "shutil.", "multiprocessing.",
    "builtins.open", "io.open", "_io.open", "os.system", "os.popen", "os.remove", "os.unlink",
    "os.rename", "os.replace", "os.kill", "posix.system", "posix.remove", "posix.unlink",
    "posix.rename", "posix.replace", "posix.kill", "pathlib.Path.write", "pathlib.Path.unlink",
    "pathlib.Path.rename", "pathlib.Path.replace", "pathlib.Path.open",
)  # fmt: skip

#: How many functions of a step are looked into.
_FUNCTIONS: Final = 32

_Client = tuple[int, str]

#: Modules of the standard library whose objects compute, or write to a log.
_HARMLESS: Final = frozenset(
    {"collections", "datetime", "decimal", "fractions", "logging", "re", "string", "types"}
)


def _is_pythons_own(name: str) -> bool:
    """Whether a dotted name is of the standard library; what of it reaches out is in _TOUCHING."""
    return name.partition(".")[0] in sys.stdlib_module_names | {"builtins"}


def clients_of(tool: Tool) -> Iterator[_Client]:
    """(object, method) of what a tool with an effect asks, where that can be told."""
    if tool.contract.effect is Effect.NONE:
        return
    code = read_code(tool.function, handle_at=0)
    for at in [] if code is None else reached(code)[0]:
        for call in at.calls():
            client = _client(at, call.func)
            if client is not None:
                yield client


def _client(code: Code, node: ast.AST) -> _Client | None:
    """The method of an object that may be a client of something, and is not the code's own."""
    if not isinstance(node, ast.Attribute):
        return None
    base = code.resolve(node.value)
    plain = (types.ModuleType, type, str, bytes, int, float, tuple, list, dict, set, Tool)
    if base is UNKNOWN or base is None or isinstance(base, plain):
        return None
    if base is code.owner or type(base).__module__.partition(".")[0] in _HARMLESS:
        return None
    return id(base), node.attr


def lint_hidden(found: Findings, code: Code, tools: list[Tool], clients: set[_Client]) -> None:
    """Rule 'an effect outside of a call': in a step, or in a bare line."""

    def look(line: int, who: str, looked_at: str) -> _Look:
        return _Look(found, tools, clients, code.name, line, who, looked_at)

    steps = [call for call in code.calls() if code.verb(call) == "step"]
    for step in steps:
        before = len(found.rows)
        line = code.line(step)
        if len(step.args) < 2:
            found.unseen(HIDDEN, code.name, line, "which function the step runs", ast.unparse(step))
            continue
        looked_at = f"{ast.unparse(step.func)}({ast.unparse(step.args[0])}, …)"
        look(line, f"step {ast.unparse(step.args[0])}", looked_at).at(code, step.args[1])
        if len(found.rows) == before:
            found.clear(HIDDEN, code.name, line, f"what {looked_at} runs")
    in_steps = {part for step in steps for part in ast.walk(step)}
    for call in code.calls():
        if call not in in_steps and not code.verb(call):
            look(code.line(call), "a bare line", ast.unparse(call)).call(code, call)


@dataclass
class _Look:
    """Looks for an effect in what a step or a bare line runs."""

    report: Findings
    tools: list[Tool]
    clients: set[_Client]
    place: str
    line: int
    who: str
    looked_at: str
    seen: set[int] = field(default_factory=set)
    """functions that were looked into, by id"""

    def at(self, code: Code, node: ast.AST) -> None:
        """Look at a function that is handed over: by name, or as a lambda."""
        if isinstance(node, ast.Lambda):
            self._calls_in(code, node.body)
            return
        function = code.resolve(node)
        if not self._is_effect(code, node, function):
            self._into(code, node, function)

    def call(self, code: Code, call: ast.Call) -> None:
        """Look at a call that is made right there."""
        function = code.resolve(call.func)
        if self._is_effect(code, call.func, function) or is_said(code, call):
            return
        # What is handed ctx is looked at as the workflow itself is.
        if not any(is_name(argument, code.handle) for argument in call.args):
            self._into(code, call.func, function)

    def _calls_in(self, code: Code, root: ast.AST) -> None:
        for part in ast.walk(root):
            if isinstance(part, ast.Call):
                self.call(code, part)

    def _into(self, code: Code, node: ast.AST, function: Any) -> None:
        """Look into what is run, as far as it can be read."""
        if function is UNKNOWN:
            self._into_what_is_local(code, node)
            return
        plain, _ = plain_function(function)
        if isinstance(plain, types.FunctionType):
            self._into_body(node, function, plain)
        elif not isinstance(plain, type | types.BuiltinFunctionType):
            self._ask(f"runs {_written(node)}, which was not looked into")

    def _into_what_is_local(self, code: Code, node: ast.AST) -> None:
        """Look into a function that is written inside; ask about what is chosen when it runs."""
        name = last_name(node)
        inside = [
            part for part in code.walk()
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and part.name == name
        ]  # fmt: skip
        is_plain_method = isinstance(node, ast.Attribute) and name in PLAIN_METHODS
        if isinstance(node, ast.Name) and inside:
            if id(inside[0]) not in self.seen:
                self.seen.add(id(inside[0]))
                self._calls_in(code, inside[0])
        elif not (_is_pythons_own(code.dotted(node)) or is_plain_method):
            self._ask(f"runs {_written(node)}, which is chosen when it runs")

    def _into_body(self, node: ast.AST, function: Any, plain: types.FunctionType) -> None:
        if _is_pythons_own(plain.__module__) or id(plain) in self.seen:
            return
        inner = read_code(function) if len(self.seen) < _FUNCTIONS else None
        if inner is None:
            self._ask(f"runs {_written(node)}, which was not looked into")
            return
        self.seen |= {id(plain), id(inner.function)}
        for call in inner.calls():
            self.call(inner, call)

    def _is_effect(self, code: Code, node: ast.AST, function: Any) -> bool:
        """Whether that is one, or may be one; a row says so."""
        if isinstance(node, ast.Attribute) and node.attr == "function":
            owner = code.resolve(node.value)
            function = owner if isinstance(owner, Tool) else function
        plain = isinstance(function, types.FunctionType | types.MethodType)
        touched = [
            tool for tool in self.tools if tool is function or (plain and tool.function == function)
        ]
        name, client = code.dotted(node), _client(code, node)
        if touched or isinstance(function, Tool):
            tool = touched[0] if touched else function
            self._accuse(f"runs the tool {tool.name} bare: nothing is saved about it")
        elif name in _SENDING:
            self._accuse(f"calls {_written(node)}: nothing is saved about it")
        elif name.startswith(_TOUCHING):
            self._ask(f"calls {_written(node)}: does that touch the world?")
        elif client is not None:
            as_a_tool = ", as a tool does" * (client in self.clients)
            self._ask(f"calls {_written(node)}{as_a_tool}: does that touch the world?")
        else:
            return False
        return True

    def _accuse(self, what: str) -> None:
        self.report.found(HIDDEN, self.place, self.line, f"{self.who} {what}", self.looked_at)

    def _ask(self, what: str) -> None:
        self.report.unseen(HIDDEN, self.place, self.line, f"{self.who} {what}", self.looked_at)


def _written(node: ast.AST) -> str:
    return short(ast.unparse(node), 40)

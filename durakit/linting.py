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
"""

from __future__ import annotations

import ast
import re
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from durakit.define import Tool, Workflow
from durakit.errors import InvalidField
from durakit.machine import Machine, every, only_at_the_end
from durakit.protocol import Effect
from durakit.source import UNKNOWN, VERBS, Code, reached, read_code, short, turned

if TYPE_CHECKING:
    import pandas as pd

NEW_KEY: Final = "a new key for each attempt"
NO_KEY: Final = "the key does not reach the service"
AT_THE_END: Final = "a checkpoint only at the end"
BLIND: Final = "an unknown outcome is sent again"
EVERYTHING: Final = "everything is retried"
NOTHING: Final = "nothing is retried"
ONE_LIMIT: Final = "one layer of timeout"
HIDDEN: Final = "an effect outside of a call"
WHICH_TOOL: Final = "which tool is called"

#: The rules, in the order of a report.
RULES: Final = (
    AT_THE_END, BLIND, NO_KEY, EVERYTHING, NOTHING, ONE_LIMIT, NEW_KEY, HIDDEN, WHICH_TOOL,
)  # fmt: skip

FOUND: Final = "found"
CLEAR: Final = "clear"
CANNOT_SEE: Final = "cannot see"

T = TypeVar("T")
R = TypeVar("R")

Kind = Literal["found", "clear", "cannot see"]

_MARKS: Final = {FOUND: "✗", CLEAR: "✓", CANNOT_SEE: "?"}


@dataclass(frozen=True)
class Row:
    """What one rule says about one place."""

    rule: str
    place: str
    """the workflow, machine, tool or function, by its name"""
    line: int | None
    """in the file or cell where it is written; None where no line is meant"""
    kind: Kind
    finding: str
    """in words; empty where the kind is ``clear``"""
    looked_at: str
    """what the answer rests on"""


@dataclass(frozen=True)
class Report:
    """What lint has to say about ``subject``. Rows stand in the order of ``RULES``."""

    subject: str
    rows: tuple[Row, ...]

    @property
    def found(self) -> tuple[Row, ...]:
        """The rows of mistakes that are written there."""
        return tuple(row for row in self.rows if row.kind == FOUND)

    @property
    def unseen(self) -> tuple[Row, ...]:
        """The rows that say what could not be seen."""
        return tuple(row for row in self.rows if row.kind == CANNOT_SEE)

    def table(self) -> pd.DataFrame:
        """One row for each rule and place: rule, place, line, kind, finding, looked_at."""
        import pandas as pd  # noqa: PLC0415 - pandas is loaded with the first table

        table = pd.DataFrame([asdict(row) for row in self.rows], columns=list(_COLUMNS))
        return table.astype({"line": "Int64"})

    def text(self) -> str:
        """The summary, and one line for each row: mark, rule, place, line, and what was seen."""
        lines = [
            (
                f"{_MARKS[row.kind]} {row.kind}", row.rule, row.place,
                "" if row.line is None else f"line {row.line}",
                f"{row.finding} " * bool(row.finding) + f"(looked at: {row.looked_at})",
            )
            for row in self.rows
        ]  # fmt: skip
        widths = [max((len(line[i]) for line in lines), default=0) for i in range(4)]
        shown = ("  ".join([*map(str.ljust, line[:4], widths), line[4]]).rstrip() for line in lines)
        return "\n".join([self.summary(), *(f"  {line}" for line in shown)])

    def summary(self) -> str:
        """One line: how many rows of each kind."""
        counts = {kind: sum(row.kind == kind for row in self.rows) for kind in _MARKS}
        told = f"{counts[FOUND]} found, {counts[CLEAR]} clear, {counts[CANNOT_SEE]} cannot be seen"
        return f"lint of {self.subject}: {told}"

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<{self.summary()}>"


_COLUMNS: Final = tuple(Row.__dataclass_fields__)


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
    found = _Findings()
    if isinstance(subject, Tool):
        kind, tools = "tool", [subject]
    else:
        kind = "machine" if isinstance(subject, Machine) else "workflow"
        tools = found.guarded(subject.name, _lint_workflow, subject) or []
    for tool in tools:
        found.guarded(tool.name, _lint_tool, tool)
    rows = sorted(dict.fromkeys(found.rows), key=lambda row: RULES.index(row.rule))
    return Report(f"{kind} {subject.name}", tuple(rows))


def tools_of(workflow: Workflow) -> list[Tool]:
    """The tools that a workflow or machine calls, with their corrections, as far as can be told.

    In the order of the source; a tool that is chosen at run time is not among them.
    """
    return _Findings().guarded(workflow.name, _lint_workflow, workflow) or []


class _Findings:
    """The rows so far."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def found(self, rule: str, place: str, line: int | None, says: str, looked_at: str) -> None:
        """A mistake."""
        self.rows.append(Row(rule, place, line, "found", says, short(looked_at)))

    def clear(self, rule: str, place: str, line: int | None, looked_at: str) -> None:
        """Looked at, and nothing to say."""
        self.rows.append(Row(rule, place, line, "clear", "", short(looked_at)))

    def unseen(self, rule: str, place: str, line: int | None, says: str, looked_at: str) -> None:
        """The answer is somewhere else."""
        self.rows.append(Row(rule, place, line, "cannot see", says, short(looked_at)))

    def guarded(self, place: str, look: Callable[[_Findings, T], R], at: T) -> R | None:
        """``look(self, at)``; an error of lint's own is one more thing that it could not see."""
        try:
            return look(self, at)
        except Exception as error:  # noqa: BLE001 - code may be written in any way at all
            says = f"lint met an error of its own ({type(error).__name__}), and looked no further"
            self.unseen(WHICH_TOOL, place, None, says, "its source")
            return None


# -- a workflow or machine -------------------------------------------------------------------------


def _lint_workflow(found: _Findings, workflow: Workflow) -> list[Tool]:
    """Look at a workflow's or machine's own code; returns the tools that it calls."""
    _lint_save(found, workflow)
    code = read_code(workflow.function, handle_at=0)
    if code is None:
        for rule in (EVERYTHING, ONE_LIMIT, NEW_KEY, HIDDEN, WHICH_TOOL):
            found.unseen(rule, workflow.name, None, "its source is not available", "its name")
        return []
    _lint_wrapping(found, workflow.function, code, workflow.name)
    codes, lost = reached(code)
    for at, node, how in lost:
        for rule in (EVERYTHING, ONE_LIMIT, NEW_KEY, HIDDEN, WHICH_TOOL):
            says = f"{how}: what is done with it there was not looked at"
            found.unseen(rule, at.name, at.line(node), says, f"the source of {at.name}")
    tools = _tools(found, codes)
    clients = {client for tool in tools for client in _clients(tool)}
    for at in codes:
        _lint_keys(found, at)
        _lint_loops(found, at, at.name, _ctx_calls(at), _BROAD)
        _lint_hidden(found, at, tools, clients)
    _lint_turns(found, codes)
    return tools


def _ctx_calls(code: Code) -> list[ast.Call]:
    return [call for call in code.calls() if code.verb(call) in ("call", "compensate")]


def _tools(found: _Findings, codes: list[Code]) -> list[Tool]:
    """The tools that are called, each once, and then their corrections."""
    tools: list[Tool] = []
    for code in codes:
        for call in _ctx_calls(code):
            tool = code.resolve(call.args[0]) if call.args else UNKNOWN
            if isinstance(tool, Tool):
                tools.append(tool)
            else:
                what = ast.unparse(call.args[0]) if call.args else "its arguments"
                says = "the tool is chosen when it runs; its declaration was not looked at"
                found.unseen(WHICH_TOOL, code.name, code.line(call), says, what)
    tools += [tool.compensate for tool in tools if tool.compensate is not None]
    return list(dict.fromkeys(tools))


def _lint_save(found: _Findings, workflow: Workflow) -> None:
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
    body = code.tree.body
    answers = (
        [node.value for node in code.walk() if isinstance(node, ast.Return)]
        if isinstance(body, list)
        else [body]
    )
    fixed = [a.value if isinstance(a, ast.Constant) else a for a in answers]
    line, looked_at = code.line(code.tree), f"the save place {code.name}"
    if all(answer is None or answer is False for answer in fixed):
        found.found(AT_THE_END, place, line, says, looked_at)
    elif all(answer is True for answer in fixed):
        found.clear(AT_THE_END, place, line, looked_at)
    else:
        says = "it decides by the two states; how much work lies between was not looked at"
        found.unseen(AT_THE_END, place, line, says, looked_at)


def _lint_turns(found: _Findings, codes: list[Code]) -> None:
    """Rule 'one layer of timeout', for the two layers that are no tool's: turn and session."""
    name, line = codes[0].name, codes[0].line(codes[0].tree)
    calls = [(code, call) for code in codes for call in _ctx_calls(code)]
    bare = [(at, call) for at, call in calls if not at.in_turn and call not in turned(at)]
    if bare:
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


# -- keys ------------------------------------------------------------------------------------------

#: Other at each call, or in each process.
_CHANGING: Final = frozenset(
    {
        "uuid.uuid1", "uuid.uuid4", "time.time", "time.time_ns", "time.monotonic",
        "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns", "time.ctime",
        "time.process_time", "datetime.datetime.now", "datetime.datetime.utcnow",
        "datetime.datetime.today", "datetime.date.today", "os.getpid", "os.urandom",
        "posix.getpid", "posix.urandom", "nt.getpid", "nt.urandom", "threading.get_ident",
        "_thread.get_ident", "builtins.id", "builtins.hash", "builtins.object",
    }
)  # fmt: skip
_CHANGING_MODULES: Final = ("random.", "secrets.", "numpy.random.")

#: Ids of a message, which may or may not be the same after a restart.
_MESSAGE_IDS: Final = frozenset({"tool_call_id", "call_id", "request_id", "jsonrpc_id"})

#: Methods of texts, numbers and collections, which give the same for the same.
_PLAIN_METHODS: Final = frozenset(
    name for kind in (str, bytes, int, float, dict, list, tuple, set) for name in dir(kind)
) | {"hexdigest", "digest", "isoformat", "strftime", "model_dump", "model_dump_json", "as_posix"}

_KEY_NAME: Final = re.compile(r"(^|[_-])(idempotency[_-]?)?key$|idempotency", re.IGNORECASE)

#: What takes a ``key=`` that is no operation's.
_SORTERS: Final = frozenset({"sorted", "min", "max", "sort", "groupby", "nlargest", "nsmallest"})

_DEPTH: Final = 4


class _Trace:
    """Goes through all that a key is made of, and notes what changes, and what it cannot follow."""

    def __init__(self, code: Code, node: ast.AST) -> None:
        self.changes: list[tuple[int, str]] = []
        self.lost: list[tuple[int, str]] = []
        self._seen: set[int] = set()
        self._home = code
        self._look(code, node, node, 0)

    def _look(self, code: Code, node: ast.AST, at: ast.AST, depth: int) -> None:
        """``at``: the part of the first function that led here."""
        if id(node) in self._seen:
            return
        self._seen.add(id(node))
        line = self._home.line(at)
        if isinstance(node, ast.Call):
            self._call(code, node, at, depth)
            return
        if isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if name == "attempt" or code.uses(node, "fence"):
                self.changes.append((line, f"{ast.unparse(node)} is another one each time"))
                return
            if name in _MESSAGE_IDS:
                says = f"whether {ast.unparse(node)} is the same in every recovery"
                self.lost.append((line, says))
                return
        if isinstance(node, ast.Name):
            for value in code.bound.get(node.id, ()):
                inner = value if code is self._home else at
                self._look(code, value, inner, depth)
            return
        for child in ast.iter_child_nodes(node):
            self._look(code, child, child if code is self._home else at, depth)

    def _call(self, code: Code, call: ast.Call, at: ast.AST, depth: int) -> None:
        if code.verb(call) in VERBS:
            return  # what ctx gives back is saved, and the same in each life
        line, written = self._home.line(at), short(ast.unparse(call.func), 40)
        name, function = code.dotted(call.func), code.resolve(call.func)
        seeded = name == "random.Random" and call.args
        if name in _CHANGING or (name.startswith(_CHANGING_MODULES) and not seeded):
            self.changes.append((line, f"{written}() gives another value each time"))
            return
        for child in [*call.args, *call.keywords]:
            self._look(code, child, child if code is self._home else at, depth)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _PLAIN_METHODS:
            self._look(code, call.func.value, at, depth)
        elif _is_known(name):
            return
        elif isinstance(function, types.FunctionType | types.MethodType):
            places = [i for i, a in enumerate(call.args) if _is_name(a, code.handle)]
            handle_at = places[0] if places else None
            inner = read_code(function, handle_at=handle_at) if depth < _DEPTH else None
            if inner is None:
                self.lost.append((line, f"how {written} makes it"))
            else:
                for returned in inner.walk():
                    if isinstance(returned, ast.Return | ast.Yield) or inner.tree.body is returned:
                        self._look(inner, returned, at, depth + 1)
        elif function is UNKNOWN:
            self.lost.append((line, f"how {written} makes it"))


def _is_known(name: str) -> bool:
    """Whether a dotted name is of the standard library's that make the same of the same."""
    return name.partition(".")[0] in {"hashlib", "json", "uuid", "operator", "base64", "binascii"}


def _lint_keys(found: _Findings, code: Code) -> None:
    """Rule 'a new key for each attempt', for what a workflow names its operations."""
    for call in _ctx_calls(code):
        key = next((word.value for word in call.keywords if word.arg == "key"), None)
        if key is None:
            says = "its key is not written at the call"
            found.unseen(NEW_KEY, code.name, code.line(call), says, ast.unparse(call))
            continue
        looked_at = f"key={ast.unparse(key)}"
        trace = _Trace(code, key)
        for line, what in trace.changes:
            found.found(NEW_KEY, code.name, line, what, looked_at)
        for line, what in trace.lost:
            found.unseen(NEW_KEY, code.name, line, what, looked_at)
        if not trace.changes and not trace.lost:
            found.clear(NEW_KEY, code.name, code.line(key), looked_at)


def _key_sites(code: Code) -> Iterator[tuple[ast.AST, str]]:
    """What a tool gives to somebody as a key: the expression, and how it is written."""
    for call in code.calls():
        if _is_said(code, call) or _last_name(call.func) in _SORTERS:
            continue
        for word in call.keywords:
            if word.arg and _KEY_NAME.search(word.arg):
                yield word.value, f"{word.arg}={ast.unparse(word.value)}"
        for argument in call.args:
            if any(code.uses(part, "key") for part in ast.walk(argument)):
                yield argument, ast.unparse(call)
    for node in code.walk():
        if isinstance(node, ast.Dict):
            for name, value in zip(node.keys, node.values, strict=True):
                if isinstance(name, ast.Constant) and _KEY_NAME.search(str(name.value)):
                    yield value, f"{ast.unparse(name)}: {ast.unparse(value)}"
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if _KEY_NAME.search(_target_name(target)):
                    yield node.value, ast.unparse(node)


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _target_name(target: ast.AST) -> str:
    """What is assigned to: a name, or the text in ``headers["Idempotency-Key"]``."""
    if isinstance(target, ast.Name):
        return target.id
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return str(target.slice.value)
    return ""


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_said(code: Code, call: ast.Call) -> bool:
    """Whether a call only tells somebody something: print, or a logger's method."""
    if code.dotted(call.func) in ("builtins.print", "warnings.warn"):
        return True
    return _last_name(call.func) in {
        "debug", "info", "warning", "error", "exception", "critical", "log",
    }  # fmt: skip


# -- retries ---------------------------------------------------------------------------------------

_BROAD: Final = frozenset({"", "builtins.Exception", "builtins.BaseException"})
#: In a tool these say: no answer came, and nobody knows what was done.
_BLIND_IN_A_TOOL: Final = _BROAD | {"builtins.OSError", "builtins.TimeoutError"}


def _lint_loops(
    found: _Findings, code: Code, place: str, targets: list[ast.Call], broad: frozenset[str]
) -> None:
    """Rule 'everything is retried': a hand-made loop or a second try, whatever the error was."""
    looked_at, before = 0, len(found.rows)
    for loop in (node for node in code.walk() if isinstance(node, ast.For | ast.While)):
        for attempt in (node for node in ast.walk(loop) if isinstance(node, ast.Try)):
            called = _inside(attempt.body, targets)
            caught = next((h for h in attempt.handlers if _catches(code, h, broad)), None)
            looked_at += bool(called)
            if called and caught is not None and not _leaves(caught):
                if all(_is_other_work(call, _given(loop)) for call in called):
                    continue
                says = f"the loop tries again after {_caught(caught)}, whatever it means"
                found.found(EVERYTHING, place, code.line(loop), says, ast.unparse(called[0]))
    for attempt in (node for node in code.walk() if isinstance(node, ast.Try)):
        called = _inside(attempt.body, targets)
        for handler in (h for h in attempt.handlers if _catches(code, h, broad)):
            again = _inside(handler.body, targets)
            looked_at += bool(called)
            if called and any(_same_work(one, two) for one in called for two in again):
                says = f"after {_caught(handler)} the same is asked for again, whatever it means"
                found.found(EVERYTHING, place, code.line(handler), says, ast.unparse(again[0]))
    if len(found.rows) == before and targets:
        told = f"{len(targets)} call(s), {looked_at} of them where an error is caught"
        found.clear(EVERYTHING, place, code.line(code.tree), told)


def _inside(statements: list[ast.stmt], targets: list[ast.Call]) -> list[ast.Call]:
    parts = {part for statement in statements for part in ast.walk(statement)}
    return [call for call in targets if call in parts]


def _catches(code: Code, handler: ast.ExceptHandler, broad: frozenset[str]) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any((code.dotted(kind) if kind is not None else "") in broad for kind in kinds)


def _caught(handler: ast.ExceptHandler) -> str:
    return "any error" if handler.type is None else ast.unparse(handler.type)


def _leaves(handler: ast.ExceptHandler) -> bool:
    """Whether the handler's last word is to leave the loop."""
    return isinstance(handler.body[-1], ast.Raise | ast.Return | ast.Break)


def _given(loop: ast.For | ast.While) -> set[str]:
    """The names that each turn of the loop gives a value of its own."""
    stored = [n for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return {name.id for name in stored}


def _is_other_work(call: ast.Call, given: set[str]) -> bool:
    """Whether each turn of a loop does something else: its arguments come from the loop.

    In a workflow the key decides, and in a tool any argument but the key.
    """
    keys = [word.value for word in call.keywords if word.arg == "key"]
    words = [word.value for word in call.keywords if not _KEY_NAME.search(word.arg or "")]
    named_by_ctx = isinstance(call.func, ast.Attribute) and call.func.attr in VERBS and keys
    looked_at = keys if named_by_ctx else [*call.args, *words]
    used = {n.id for part in looked_at for n in ast.walk(part) if isinstance(n, ast.Name)}
    return bool(used & (given - {"attempt"}))


def _same_work(one: ast.Call, two: ast.Call) -> bool:
    first = [ast.unparse(part) for part in [one.func, *one.args[:1]]]
    return first == [ast.unparse(part) for part in [two.func, *two.args[:1]]]


def _lint_wrapping(found: _Findings, function: Any, code: Code, place: str) -> None:
    plain = function.__func__ if isinstance(function, types.MethodType) else function
    if plain is not code.function:
        says = "a decorator is wrapped around it, which may retry and was not looked at"
        found.unseen(EVERYTHING, place, code.line(code.tree), says, "the function inside")


# -- a tool ----------------------------------------------------------------------------------------


def _lint_tool(found: _Findings, tool: Tool) -> None:
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
    _lint_wrapping(found, tool.function, code, tool.name)
    codes, lost = reached(code)
    if keyed:
        _lint_key_use(found, tool, codes, lost)
    for at in codes:
        targets = [call for call in at.calls() if _may_reach_out(at, call)]
        _lint_loops(found, at, tool.name, targets, _BLIND_IN_A_TOOL)


def _lint_declaration(found: _Findings, tool: Tool) -> None:
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


def _lint_key_use(
    found: _Findings, tool: Tool, codes: list[Code], lost: list[tuple[Code, ast.AST, str]]
) -> None:
    """Rules 'the key does not reach the service' and 'a new key for each attempt', in a tool."""
    first = codes[0]
    line, source = first.line(first.tree), f"the source of {tool.name}"
    used = any(code.uses(node, "key") for code in codes for node in code.walk())
    if used:
        found.clear(NO_KEY, tool.name, line, f"call.key in {source}")
    elif lost:
        at, node, how = lost[0]
        found.unseen(NO_KEY, tool.name, at.line(node), f"{how}, which was not looked at", source)
    else:
        says = f"declared {tool.contract.effect.value}, and call.key is never used"
        found.found(NO_KEY, tool.name, line, says, source)
    changes: dict[tuple[int, str], str] = {}
    unseen: dict[tuple[int, str], str] = {}
    for code in codes:
        for node, written in _key_sites(code):
            trace = _Trace(code, node)
            for reason in trace.changes:
                changes.setdefault(reason, written)
            for reason in trace.lost:
                unseen.setdefault(reason, written)
    for (at_line, what), written in changes.items():
        found.found(NEW_KEY, tool.name, at_line, what, written)
    for (at_line, what), written in unseen.items():
        found.unseen(NEW_KEY, tool.name, at_line, what, written)
    if not changes and not unseen:
        found.clear(NEW_KEY, tool.name, line, f"what is given as a key in {source}")


def _may_reach_out(code: Code, call: ast.Call) -> bool:
    """Whether a call in a tool may be the one that touches the world: none of Python's own."""
    if _is_said(code, call) or code.verb(call):
        return False
    name = code.dotted(call.func)
    return not name.startswith(("builtins.", "time.", "random.", "json.", "math."))


# -- effects where nobody looks for them -----------------------------------------------------------

_SENDING: Final = frozenset(
    f"{library}.{verb}"
    for library in ("requests", "requests.api", "httpx", "httpx._api")
    for verb in ("post", "put", "patch", "delete")
)

#: How many functions of a step are looked into.
_FUNCTIONS: Final = 32

_Client = tuple[int, str]

#: Modules of the standard library whose objects compute, or write to a log.
_HARMLESS: Final = frozenset(
    {"collections", "datetime", "decimal", "fractions", "logging", "re", "string", "types"}
)


def _clients(tool: Tool) -> Iterator[_Client]:
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


def _lint_hidden(found: _Findings, code: Code, tools: list[Tool], clients: set[_Client]) -> None:
    """Rule 'an effect outside of a call': in a step, or in a bare line."""
    steps = [call for call in code.calls() if code.verb(call) == "step"]
    for step in steps:
        before = len(found.rows)
        line = code.line(step)
        if len(step.args) < 2:
            found.unseen(HIDDEN, code.name, line, "which function the step runs", ast.unparse(step))
            continue
        looked_at = f"{ast.unparse(step.func)}({ast.unparse(step.args[0])}, …)"
        look = _Look(found, code.name, line, f"step {ast.unparse(step.args[0])}", looked_at)
        look.at(code, step.args[1], tools, clients)
        if len(found.rows) == before:
            found.clear(HIDDEN, code.name, line, f"what {looked_at} runs")
    in_steps = {part for step in steps for part in ast.walk(step)}
    for call in code.calls():
        if call not in in_steps and not code.verb(call):
            look = _Look(found, code.name, code.line(call), "a bare line", ast.unparse(call))
            look.call(code, call, tools, clients)


@dataclass
class _Look:
    """Looks for an effect in what a step or a bare line runs."""

    found: _Findings
    place: str
    line: int
    who: str
    looked_at: str
    seen: set[int] = field(default_factory=set)

    def at(self, code: Code, node: ast.AST, tools: list[Tool], clients: set[_Client]) -> None:
        """Look at a function that is handed over: by name, or as a lambda."""
        if isinstance(node, ast.Lambda):
            for part in ast.walk(node.body):
                if isinstance(part, ast.Call):
                    self.call(code, part, tools, clients)
            return
        function = code.resolve(node)
        if self._is_effect(code, node, function, tools, clients):
            return
        inside = [
            part for part in code.walk()
            if isinstance(part, ast.FunctionDef) and part.name == _last_name(node)
        ]  # fmt: skip
        if function is UNKNOWN and isinstance(node, ast.Name) and inside:
            for part in ast.walk(inside[0]):
                if isinstance(part, ast.Call):
                    self.call(code, part, tools, clients)
        elif function is UNKNOWN:
            self._say(FOUND if code.dotted(node) in _SENDING else CANNOT_SEE, node)
        elif isinstance(function, types.FunctionType | types.MethodType):
            self._body(function, tools, clients)

    def call(self, code: Code, call: ast.Call, tools: list[Tool], clients: set[_Client]) -> None:
        """Look at a call that is made right there."""
        function = code.resolve(call.func)
        if not self._is_effect(code, call.func, function, tools, clients):
            plain = isinstance(function, types.FunctionType | types.MethodType)
            handed = any(_is_name(argument, code.handle) for argument in call.args)
            if plain and not handed:  # what is handed ctx is looked at as the workflow itself is
                self._body(function, tools, clients)

    def _body(self, function: Callable[..., Any], tools: list[Tool], clients: set[_Client]) -> None:
        inner = read_code(function) if len(self.seen) < _FUNCTIONS else None
        if inner is None or id(inner.function) in self.seen:
            return
        if inner.function.__module__.partition(".")[0] in sys.stdlib_module_names:
            return
        self.seen.add(id(inner.function))
        for call in inner.calls():
            self.call(inner, call, tools, clients)

    def _is_effect(
        self, code: Code, node: ast.AST, function: Any, tools: list[Tool], clients: set[_Client]
    ) -> bool:
        if isinstance(node, ast.Attribute) and node.attr == "function":
            owner = code.resolve(node.value)
            function = owner if isinstance(owner, Tool) else function
        plain = isinstance(function, types.FunctionType | types.MethodType)
        touched = [
            tool for tool in tools if tool is function or (plain and tool.function == function)
        ]
        if touched or isinstance(function, Tool):
            name = touched[0].name if touched else function.name
            says = f"{self.who} runs the tool {name} bare: nothing is saved about it"
            self.found.found(HIDDEN, self.place, self.line, says, self.looked_at)
            return True
        if code.dotted(node) in _SENDING:
            self._say(FOUND, node)
            return True
        client = _client(code, node)
        if client is None:
            return False
        as_a_tool = ", as a tool does" * (client in clients)
        says = f"{self.who} calls {ast.unparse(node)}{as_a_tool}: does that touch the world?"
        self.found.unseen(HIDDEN, self.place, self.line, says, self.looked_at)
        return True

    def _say(self, kind: Kind, node: ast.AST) -> None:
        written = short(ast.unparse(node), 40)
        says = (
            f"{self.who} calls {written}: nothing is saved about it"
            if kind == FOUND
            else f"{self.who} runs {written}, which is chosen when it runs"
        )
        row = Row(HIDDEN, self.place, self.line, kind, says, short(self.looked_at))
        self.found.rows.append(row)

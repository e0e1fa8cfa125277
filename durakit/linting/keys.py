"""Rules 'a new key for each attempt' and 'the key does not reach the service'."""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Iterator
from typing import Final

from durakit.define import Tool
from durakit.linting.findings import NEW_KEY, NO_KEY, Findings
from durakit.source import VERBS, Code, is_name, is_said, last_name, read_code, short

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
PLAIN_METHODS: Final = frozenset(
    name for kind in (str, bytes, int, float, dict, list, tuple, set) for name in dir(kind)
) | {
    "hexdigest",
    "digest",
    "isoformat",
    "strftime",
    "model_dump",
    "model_dump_json",
    "model_copy",
    "as_posix",
}

_KEY_NAME: Final = re.compile(r"(^|[_-])(idempotency[_-]?)?key$|idempotency", re.IGNORECASE)

#: What takes a ``key=`` that is no operation's.
_SORTERS: Final = frozenset({"sorted", "min", "max", "sort", "groupby", "nlargest", "nsmallest"})

#: Modules that make the same of the same, but for what stands in ``_CHANGING``.
_SAME_OF_THE_SAME: Final = frozenset(
    {
        "hashlib", "_hashlib", "_sha2", "_md5", "_blake2", "json", "uuid", "operator", "_operator",
        "base64", "binascii", "zlib", "datetime", "decimal", "fractions", "math", "re", "enum",
        "string", "textwrap", "unicodedata", "random",
    }
)  # fmt: skip

#: Builtins that may give anything.
_ANYTHING: Final = frozenset(
    {"next", "iter", "input", "open", "eval", "exec", "getattr", "vars", "globals", "locals",
     "super", "compile", "__import__"}
)  # fmt: skip

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
        if isinstance(call.func, ast.Attribute) and call.func.attr in PLAIN_METHODS:
            self._look(code, call.func.value, at, depth)
        elif _is_known(name):
            return
        elif isinstance(function, types.FunctionType | types.MethodType):
            places = [i for i, a in enumerate(call.args) if is_name(a, code.handle)]
            handle_at = places[0] if places else None
            inner = read_code(function, handle_at=handle_at) if depth < _DEPTH else None
            if inner is None:
                self.lost.append((line, f"how {written} makes it"))
            else:
                for returned in inner.walk():
                    if isinstance(returned, ast.Return | ast.Yield) or inner.tree.body is returned:
                        self._look(inner, returned, at, depth + 1)
        else:
            self.lost.append((line, f"how {written} makes it"))


def _is_known(name: str) -> bool:
    """Whether a dotted name is of Python's own that make the same of the same."""
    home, _, rest = name.partition(".")
    return home in _SAME_OF_THE_SAME or (home == "builtins" and rest not in _ANYTHING)


def lint_keys(found: Findings, code: Code) -> None:
    """Rule 'a new key for each attempt', for what a workflow names its operations."""
    for call in code.operations():
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


def names_a_key(name: str) -> bool:
    """Whether a parameter, header or variable of that name holds a key."""
    return bool(_KEY_NAME.search(name))


def _key_sites(code: Code) -> Iterator[tuple[ast.AST, str]]:
    """What a tool gives to somebody as a key: the expression, and how it is written."""
    for call in code.calls():
        if is_said(code, call) or last_name(call.func) in _SORTERS:
            continue
        for word in call.keywords:
            if word.arg and names_a_key(word.arg):
                yield word.value, f"{word.arg}={ast.unparse(word.value)}"
        for argument in call.args:
            if any(code.uses(part, "key") for part in ast.walk(argument)):
                yield argument, ast.unparse(call)
    for node in code.walk():
        if isinstance(node, ast.Dict):
            for name, value in zip(node.keys, node.values, strict=True):
                if isinstance(name, ast.Constant) and names_a_key(str(name.value)):
                    yield value, f"{ast.unparse(name)}: {ast.unparse(value)}"
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if names_a_key(_target_name(target)):
                    yield node.value, ast.unparse(node)


def _target_name(target: ast.AST) -> str:
    """What is assigned to: a name, or the text in ``headers["Idempotency-Key"]``."""
    if isinstance(target, ast.Name):
        return target.id
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return str(target.slice.value)
    return ""


def lint_key_use(
    found: Findings, tool: Tool, codes: list[Code], lost: list[tuple[Code, ast.AST, str]]
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

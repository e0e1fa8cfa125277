"""What a function's source says, as a tree, and what its names stand for. Nothing is run.

A name is looked up where Python would find it: in the function's own parameters and assignments
(then nothing is known of its value), in its closure, its module, the builtins. An attribute is
taken as it lies there; no property, descriptor or ``__getattr__`` is asked. What is not known for
sure is ``UNKNOWN``. For whoever reads code: see ``durakit.linting``.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from durakit.define import Tool, Workflow


def short(text: str, longest: int = 90) -> str:
    """``text`` in one line, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


class _Unknown:
    """What a name stands for is not known."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN: Final = _Unknown()

#: What a ctx can do. Called by another name it would not be seen.
VERBS: Final = frozenset({"call", "compensate", "sleep", "step", "turn", "wait_for"})

_Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(eq=False)
class Code:
    """A function's source as a tree, and where its names are looked up."""

    function: types.FunctionType
    name: str
    tree: _Defined
    first: int
    """the line of its file or cell on which the tree's line 1 stands"""
    owner: Any = UNKNOWN
    """what its first parameter is, of a method"""
    handle: str = ""
    """the parameter that holds ``ctx`` or ``call``"""
    in_turn: bool = False
    """it is only reached from inside a ``ctx.turn``"""
    imports: dict[str, str] = field(default_factory=dict)
    """names that it imports itself → the dotted path"""
    bound: dict[str, list[ast.AST]] = field(default_factory=dict)
    """its own names → the expressions that they are given; empty of a parameter"""

    def line(self, node: ast.AST) -> int:
        """Where a part of it stands."""
        return self.first + int(getattr(node, "lineno", 1)) - 1

    @property
    def parameters(self) -> list[str]:
        """Its parameters that may be given by position."""
        return [a.arg for a in [*self.tree.args.posonlyargs, *self.tree.args.args]]

    def roots(self) -> Sequence[ast.AST]:
        """The statements of its body; of a lambda its expression."""
        body = self.tree.body
        return body if isinstance(body, list) else [body]

    def walk(self) -> Iterator[ast.AST]:
        """Every part of its body; functions that are defined inside are parts of it."""
        for root in self.roots():
            yield from ast.walk(root)

    def calls(self) -> Iterator[ast.Call]:
        """Every call in it, in the order of the source."""
        found = (node for node in self.walk() if isinstance(node, ast.Call))
        yield from sorted(found, key=lambda node: (node.lineno, node.col_offset))

    def operations(self) -> list[ast.Call]:
        """Every call of its ``ctx`` that names an operation, in the order of the source."""
        return [call for call in self.calls() if self.verb(call) in ("call", "compensate")]

    def opens(self, call: ast.Call) -> bool:
        """Whether a call stands behind a ``with``."""
        return any(
            item.context_expr is call
            for node in self.walk()
            if isinstance(node, ast.With | ast.AsyncWith)
            for item in node.items
        )

    def resolve(self, node: ast.AST) -> Any:
        """What an expression of names and dots stands for; ``UNKNOWN`` where that is not known."""
        if isinstance(node, ast.Name):
            return _tame(self._named(node.id))
        if isinstance(node, ast.Attribute):
            return _tame(_attribute(self.resolve(node.value), node.attr))
        return UNKNOWN

    def _named(self, name: str) -> Any:
        if self.parameters[:1] == [name] and self.owner is not UNKNOWN:
            return self.owner
        if name in self.bound or name in self.imports:
            return UNKNOWN
        code = self.function.__code__
        if name in code.co_freevars:
            cells = self.function.__closure__ or ()
            try:
                return cells[code.co_freevars.index(name)].cell_contents
            except (IndexError, ValueError):  # a name that is given its value later
                return UNKNOWN
        for names in (self.function.__globals__, vars(builtins)):
            if name in names:
                return names[name]
        return UNKNOWN

    def dotted(self, node: ast.AST) -> str:
        """The full dotted name of what is called, as ``uuid.uuid4``; empty where it has none."""
        if isinstance(node, ast.Attribute):
            whole = self.resolve(node)
            if isinstance(whole, types.FunctionType | types.BuiltinFunctionType | type):
                return _name_of(whole)
            base = self.dotted(node.value)
            return f"{base}.{node.attr}" if base else ""
        if isinstance(node, ast.Name):
            if node.id in self.imports:
                return self.imports[node.id]
            found = self.resolve(node)
            return "" if found is UNKNOWN else _name_of(found)
        return ""

    def uses(self, node: ast.AST, attribute: str) -> bool:
        """Whether ``node`` is that attribute of the handle, as ``call.key``."""
        return (
            isinstance(node, ast.Attribute)
            and node.attr == attribute
            and isinstance(node.value, ast.Name)
            and node.value.id == self.handle
        )

    def verb(self, node: ast.AST) -> str:
        """Of a call of the handle's method its name, as ``step``; else empty."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            return name if self.uses(node.func, name) else ""
        return ""


def _tame(thing: Any) -> Any:
    """``thing``, or ``UNKNOWN`` for an object that cannot even be asked what it is."""
    try:
        isinstance(thing, Tool)
    except Exception:  # noqa: BLE001 - an object may fail in any way
        return UNKNOWN
    return thing


def _attribute(base: Any, name: str) -> Any:
    """``base.name`` without running anything."""
    if base is UNKNOWN:
        return UNKNOWN
    if isinstance(base, types.ModuleType):
        return vars(base).get(name, UNKNOWN)
    try:
        found = inspect.getattr_static(base, name)
    except Exception:  # noqa: BLE001 - an object may fail in any way
        return UNKNOWN
    if isinstance(found, staticmethod):
        return found.__func__
    if isinstance(found, classmethod):
        return types.MethodType(found.__func__, base)
    if isinstance(found, types.FunctionType):
        plain = isinstance(base, type) or _own(base, name)
        return found if plain else types.MethodType(found, base)
    # A property or another descriptor is code, and no code is run here.
    return UNKNOWN if hasattr(type(found), "__get__") else found


def _own(base: Any, name: str) -> bool:
    """Whether ``name`` lies in the object itself, and not in its class."""
    try:
        return name in object.__getattribute__(base, "__dict__")
    except Exception:  # noqa: BLE001 - an object may fail in any way
        return False


def _name_of(thing: Any) -> str:
    """The dotted name of a module, class or function, of any other object that of its class."""
    if isinstance(thing, types.ModuleType):
        return str(thing.__name__)
    if isinstance(thing, types.MethodType):
        thing = thing.__func__
    if isinstance(thing, types.BuiltinMethodType) and not thing.__module__:
        return f"{_name_of(type(thing.__self__))}.{thing.__name__}"
    if not isinstance(thing, type | types.FunctionType | types.BuiltinFunctionType):
        thing = type(thing)
    return f"{thing.__module__}.{thing.__qualname__}"


def read_code(function: Any, *, handle_at: int | str | None = None) -> Code | None:
    """The source of a function, method or lambda; None where there is none.

    ``handle_at``: which parameter holds ``ctx`` or ``call``: its place after the method's own
    first one, or its name.
    """
    function, owner = plain_function(function)
    if not isinstance(function, types.FunctionType):
        return None
    try:
        plain = inspect.unwrap(function)
        tree, first = _written(plain)
    except Exception:  # noqa: BLE001 - typed at a prompt, compiled, or half a statement
        return None
    if tree is None or not isinstance(plain, types.FunctionType):
        return None
    code = Code(plain, plain.__name__, tree, first, owner)
    if code.parameters != list(plain.__code__.co_varnames[: plain.__code__.co_argcount]):
        return None  # the file is another one than when it was imported
    if isinstance(handle_at, str):
        code.handle = handle_at
    elif handle_at is not None:
        names = code.parameters[owner is not UNKNOWN :]
        code.handle = names[handle_at] if handle_at < len(names) else ""
    _bind(code)
    return code


def plain_function(function: Any) -> tuple[Any, Any]:
    """The function under a declaration, a method or an object that is called, and its owner.

    The owner is ``UNKNOWN`` of a plain function. What is none of these comes back as it is.
    """
    while isinstance(function, Tool | Workflow):  # declared twice
        function = function.function
    if isinstance(function, types.MethodType):
        return function.__func__, function.__self__
    if isinstance(function, type | types.FunctionType):
        return function, UNKNOWN
    called = inspect.getattr_static(type(function), "__call__", None)
    return (called, function) if isinstance(called, types.FunctionType) else (function, UNKNOWN)


def _written(function: types.FunctionType) -> tuple[_Defined | None, int]:
    """The definition of ``function``, and the line of its file or cell at which the tree begins."""
    code = function.__code__
    if code.co_name == "<lambda>":
        lines, _ = inspect.findsource(function)
        return _lambda(code, ast.parse("".join(lines))), 1
    lines, first = inspect.getsourcelines(function)
    for node in ast.walk(ast.parse(textwrap.dedent("".join(lines)))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            return node, max(1, first)
    return None, 1


def _lambda(code: types.CodeType, tree: ast.Module) -> ast.Lambda | None:
    """The innermost lambda that holds every place of the file that ``code`` was made of."""
    # The first instructions, which begin a frame, have no place or an empty one.
    places = {(p[0], p[2]) for p in code.co_positions() if p[0] and p[3] and (p[2] or 0) < p[3]}
    found = [
        node for node in ast.walk(tree)
        if isinstance(node, ast.Lambda) and places and all(_holds(node.body, *p) for p in places)
    ]  # fmt: skip
    return found[-1] if found else None  # walked from the outside to the inside


def _holds(node: ast.expr, line: int | None, column: int | None) -> bool:
    here, ends = (line or 0, column or 0), (node.end_lineno or 0, node.end_col_offset or 0)
    return (node.lineno, node.col_offset) <= here < ends


def _bind(code: Code) -> None:
    """Note which names are the function's own, and what they are given."""
    arguments = code.tree.args
    extra = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    for name in [*code.parameters, *(a.arg for a in [*arguments.kwonlyargs, *extra])]:
        code.bound.setdefault(name, [])
    for node in code.walk():
        for name in _names_of(node):
            code.bound.setdefault(name, [])
        for target, value in _bindings(node):
            for part in ast.walk(target):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    code.bound.setdefault(part.id, []).append(value)
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                code.imports[alias.asname or whole] = whole
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                code.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"


def _names_of(node: ast.AST) -> list[str]:
    """Names that a part makes its own, with values that nothing written here tells.

    Functions and classes that are defined inside, their parameters, caught errors, and what a
    pattern matches. Names inside count for the whole function: less is known, and nothing wrong.
    """
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        return [node.name]
    if isinstance(node, ast.MatchMapping) and node.rest:
        return [node.rest]
    return []


def _bindings(node: ast.AST) -> list[tuple[ast.AST, ast.AST]]:
    """(target, value) of what a statement or expression gives a value to."""
    if isinstance(node, ast.Assign):
        return [(target, node.value) for target in node.targets]
    if isinstance(node, ast.AugAssign | ast.NamedExpr):
        return [(node.target, node.value)]
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return [(node.target, node.value)]
    if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        return [(node.target, node.iter)]
    if isinstance(node, ast.withitem) and node.optional_vars is not None:
        return [(node.optional_vars, node.context_expr)]
    return []


#: Builtins that run, or hand over, what is not written where they stand.
_OUT_OF_SIGHT: Final = frozenset(
    {"builtins.exec", "builtins.eval", "builtins.locals", "builtins.vars"}
)


def reached(code: Code) -> tuple[list[Code], list[tuple[Code, ast.AST, str]]]:
    """The function and every function that it hands its handle to; and where that was lost."""
    found, lost = [code], list[tuple[Code, ast.AST, str]]()
    seen = {(id(code.function), code.handle)}
    for at in found:
        parents = {child: node for node in at.walk() for child in ast.iter_child_nodes(node)}
        for node in at.walk():
            if isinstance(node, ast.Call) and at.dotted(node.func) in _OUT_OF_SIGHT:
                what = short(ast.unparse(node.func), 40)
                lost.append((at, node, f"{what} can reach {at.handle} under no name of its own"))
            if not (isinstance(node, ast.Name) and node.id == at.handle):
                continue
            parent = parents.get(node)
            if isinstance(parent, ast.Attribute):
                called = parents.get(parent)
                is_called = isinstance(called, ast.Call) and called.func is parent
                if parent.attr in VERBS and not is_called:
                    lost.append((at, node, f"{ast.unparse(parent)} is used as a value"))
                continue
            if isinstance(parent, ast.keyword):
                place: int | str | None = parent.arg
                parent = parents.get(parent)
            else:
                place = None
            if not isinstance(parent, ast.Call) or parent.func is node:
                lost.append((at, node, f"{at.handle} is used as a value"))
                continue
            if place is None:
                place = parent.args.index(node) if node in parent.args else None
            to = None if place is None else read_code(at.resolve(parent.func), handle_at=place)
            if to is None:
                what = short(ast.unparse(parent.func), 40)
                lost.append((at, node, f"{at.handle} is handed to {what}"))
            elif (id(to.function), to.handle) not in seen:
                seen.add((id(to.function), to.handle))
                to.in_turn = at.in_turn or parent in turned(at)
                found.append(to)
    return found, lost


def turned(code: Code) -> set[ast.AST]:
    """Every part of the function that stands inside a ``with ctx.turn(…)``."""
    return {
        part
        for node in code.walk()
        if isinstance(node, ast.With)
        and any(code.verb(item.context_expr) == "turn" for item in node.items)
        for statement in node.body
        for part in ast.walk(statement)
    }


def is_name(node: ast.AST, name: str) -> bool:
    """Whether an expression is that name."""
    return isinstance(node, ast.Name) and node.id == name


def last_name(node: ast.AST) -> str:
    """Of ``a.b.c`` or ``c`` the name ``c``; else empty."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def is_said(code: Code, call: ast.Call) -> bool:
    """Whether a call only tells somebody something: print, or a logger's method."""
    if code.dotted(call.func) in ("builtins.print", "warnings.warn"):
        return True
    return last_name(call.func) in {
        "debug", "info", "warning", "error", "exception", "critical", "log",
    }  # fmt: skip

"""Tools and workflows, as people declare them.

A workflow is found by its name, in this process: defining it again (a notebook cell run twice)
replaces it. A file never names code to import.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import math
import textwrap
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from durakit import values
from durakit.deadline import ahead
from durakit.errors import InvalidField, UnloadableValue, UnsavableValue, WorkflowNotFound
from durakit.protocol import Contract, Effect
from durakit.retry import Retry

#: The longest name, id or key that is stored, in bytes of UTF-8.
LONGEST_NAME = 65_536


def name_text(field: str, value: object) -> str:
    """``value`` as a name, run id or key: any text that UTF-8 can hold, not empty.

    Raises InvalidField naming ``field``.
    """
    if type(value) is str and 0 < len(value) <= LONGEST_NAME and value.isascii():
        return value
    if not isinstance(value, str):
        raise InvalidField(field, f"needs text, got {type(value).__name__}")
    if not value:
        raise InvalidField(field, "is empty")
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InvalidField(field, f"holds half a character at position {error.start}") from None
    if size > LONGEST_NAME:
        raise InvalidField(field, f"is {size} bytes long; at most {LONGEST_NAME} are stored")
    # Not str(): a text-enum's own __str__ may say something else than the text it is.
    return "".join(value)


class Call(Protocol):
    """What a tool gets as its first argument."""

    key: str
    """the operation key: the same for every attempt"""
    attempt: int
    """1, 2, …"""
    fence: int
    """the run's fencing token: a service that keeps the highest can refuse a stale driver"""

    def remaining(self) -> float | None:
        """Seconds left for this attempt; None without a limit."""


@dataclass(frozen=True)
class Found:
    """A probe's answer: the service has executed it; ``result`` is what the call returns."""

    result: Any


class Tool:
    """A function that touches the outside world, with its effect contract. See ``tool``."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        contract: Contract,
        policy: Retry,
        timeout: float | None,
        probe: Callable[[Call], Any] | None,
        errors: tuple[type[Exception], ...],
        name: str | None,
        compensate: Tool | None = None,
        cancel: Callable[[Call], Any] | None = None,
    ) -> None:
        declared = _declared_name(function, name)
        functools.update_wrapper(self, function)
        self.function = function
        self.name = declared
        self.compensate = compensate
        self.cancel = cancel
        self.contract = contract
        self.policy = policy
        self.timeout = timeout
        self.probe = probe
        self.errors = errors
        self.returns = values.returns(function)
        self.parameters = Parameters(function, "call")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the bare function with a call of your own: no journal, no protection.

        Raises TypeError where the arguments do not fit; in a workflow that is mostly a forgotten
        ``ctx.call``, so it says how a tool is called there.
        """
        try:
            inspect.signature(self.function).bind(*args, **kwargs)
        except TypeError as error:
            how = f"a tool's first argument is its call; in a workflow: {self._in_a_workflow()}"
            raise TypeError(f"{self.name}: {error} ({how})") from None
        if hasattr(args[0] if args else None, "wait_for"):
            raise TypeError(
                f"{self.name} was given the workflow's context: {self._in_a_workflow()}"
            )
        return self.function(*args, **kwargs)

    def _in_a_workflow(self) -> str:
        return f"ctx.call({getattr(self.function, '__name__', self.name)}, …, key=…)"

    def digest(self, *args: Any, **kwargs: Any) -> str:
        """The digest of a call's arguments, as its intent saves it: 64 hexadecimal digits.

        An approval that names it holds for this content, and for no other. Raises TypeError
        where the arguments do not fit, UnsavableValue where one has no lossless form.
        """
        return values.digest(self.parameters.dump(args, kwargs))

    def __repr__(self) -> str:
        contract = self.contract
        return (
            f"<tool {self.name}: effect={contract.effect.value}, window={contract.window}, "
            f"settles_after={contract.settles_after}, on_unknown={contract.on_unknown}, "
            f"timeout={self.timeout}, {self.policy}>"
        )


_TAKE_ONE_BY_POSITION = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


#: The kinds of `*args` and `**kwargs`.
_MANY = inspect.Parameter.VAR_POSITIONAL
_ANY = inspect.Parameter.VAR_KEYWORD


class Parameters:
    """What a tool or workflow takes after its first parameter (``call`` or ``ctx``)."""

    def __init__(self, function: Callable[..., Any], first: str) -> None:
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except ValueError as error:  # some builtins tell nothing of what they take
            raise InvalidField("function", str(error)) from None
        if not parameters or parameters[0].kind not in _TAKE_ONE_BY_POSITION:
            name = getattr(function, "__name__", "function")
            raise InvalidField(name, f"takes `{first}` as its first argument")
        self._signature = inspect.Signature(parameters[1:])
        #: how a call of it is written, for messages: `send_email(call, to, subject)`
        called = ", ".join([parameters[0].name, *(str(p) for p in parameters[1:])])
        self._told = f"{getattr(function, '__name__', 'function')}({called})"
        if parameters[0].name != first:
            self._told += f", whose first argument {parameters[0].name!r} receives the {first}"
        codecs = values.parameters(function)
        self._codecs = {name: c for name, c in codecs.items() if c is not values.PLAIN}
        self._names = [parameter.name for parameter in parameters[1:]]
        # Most calls give every argument by position: no need to bind those one by one.
        self._simple = not self._codecs and all(
            p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in parameters[1:]
        )

    def dump(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """A call's arguments as canonical JSON, by parameter name, defaults filled in.

        Raises TypeError where they do not fit, UnsavableValue where one has no lossless form.
        """
        if self._simple and not kwargs and len(args) == len(self._names):
            return values.canonical(dict(zip(self._names, args, strict=True)))
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._told}: {error}") from None
        bound.apply_defaults()
        form: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                form[name] = [self._form(name, part, index) for index, part in enumerate(value)]
            elif kind is inspect.Parameter.VAR_KEYWORD:
                form[name] = {key: self._form(name, part, key) for key, part in value.items()}
            else:
                form[name] = self._form(name, value)
        return values.canonical(form)

    def filled(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call's arguments with every default filled in, as (args, kwargs).

        A compensation gets them so: what it undoes is what was sent, whatever its own defaults are.
        Raises TypeError where they do not fit.
        """
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def misfit(self, sent: Parameters) -> str | None:
        """Why this cannot take all that ``sent`` takes, as ``filled`` gives it; None: it can."""
        ours = list(self._signature.parameters.values())
        places = [p for p in ours if p.kind in _TAKE_ONE_BY_POSITION]
        kinds = {p.kind for p in ours}
        theirs = sent._signature.parameters.values()
        in_order = [p.name for p in theirs if p.kind in (*_TAKE_ONE_BY_POSITION, _MANY)]
        for index, name in enumerate(in_order):
            if index >= len(places) and _MANY not in kinds:
                return f"takes no {name!r}"
            if index < len(places) and places[index].name != name:
                return f"takes {places[index].name!r} where it is given {name!r}"
        free = {p.name for p in places[len(in_order) :]}
        free |= {p.name for p in ours if p.kind is inspect.Parameter.KEYWORD_ONLY}
        by_name = {p.name for p in theirs if p.kind in (inspect.Parameter.KEYWORD_ONLY, _ANY)}
        for name in sorted(by_name - free):
            if _ANY not in kinds:
                return f"takes no {name!r}"
        needed = {p.name for p in ours if p.default is p.empty} & free
        for name in sorted(needed - by_name):
            return f"needs {name!r}, which it is not given"
        return None

    def _form(self, name: str, value: Any, *inside: Any) -> Any:
        """One argument as JSON; a refusal's path begins with the parameter's name."""
        if name not in self._codecs:
            return value
        try:
            return json.loads(self._codecs[name].dump(value))
        except UnsavableValue as error:
            path = values.path_text((name, *inside)) + error.path.removeprefix("$")
            raise UnsavableValue(path, error.reason) from error

    def load(self, form: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """(args, kwargs) read back from what ``dump`` saved.

        Raises UnloadableValue where the code takes others by now: none is left out or made up.
        """
        self._check_saved(form)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, parameter in self._signature.parameters.items():
            if name not in form:
                continue
            value = form[name]
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                args.extend(self._value(name, part) for part in value)
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                kwargs.update({key: self._value(name, part) for key, part in value.items()})
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                kwargs[name] = self._value(name, value)
            else:
                args.append(self._value(name, value))
        return args, kwargs

    def _check_saved(self, form: dict[str, Any]) -> None:
        parameters = self._signature.parameters
        for name in form:
            if name not in parameters:
                raise UnloadableValue(f"saved value {name!r} is none that the code takes")
        for name, parameter in parameters.items():
            optional = parameter.kind in (_MANY, _ANY) or parameter.default is not parameter.empty
            if name not in form and not optional:
                raise UnloadableValue(f"saved value for {name!r} is missing")

    def _value(self, name: str, form: Any) -> Any:
        return self._codecs[name].load(json.dumps(form)) if name in self._codecs else form


def _declared_name(function: object, name: str | None) -> str:
    """The name a function is declared under; refuses what could not be run by that name."""
    if not callable(function):
        raise InvalidField("function", f"needs a function, got {function!r}")
    if any(
        check(function)
        for check in (
            inspect.iscoroutinefunction,
            inspect.isgeneratorfunction,
            inspect.isasyncgenfunction,
        )
    ):
        # Calling it would run nothing, and what it hands back would pass for a reply.
        raise InvalidField("function", "is async or a generator; durakit calls plain functions")
    return name_text("name", getattr(function, "__name__", "") if name is None else name)


def tool(
    function: Callable[..., Any] | None = None,
    *,
    effect: str = "opaque",
    window: float | None = None,
    settles_after: float | None = None,
    probe: Callable[[Call], Any] | None = None,
    on_unknown: str | None = None,
    timeout: float | None = None,
    retry: Retry | None = None,
    errors: tuple[type[Exception], ...] = (),
    compensate: Tool | None = None,
    cancel: Callable[[Call], Any] | None = None,
    name: str | None = None,
) -> Any:
    """Declare a tool: a function ``(call, …)`` that touches the outside world.

    ``effect``: what the service promises: ``none`` (no outside effect), ``idempotent`` (it
    dedups by ``call.key``, for ``window`` seconds from the first intent, None = for ever),
    ``queryable`` (``probe(call)`` answers ``Found(result)``, ``Absent`` or ``StillUnknown``; an
    absence is final ``settles_after`` seconds after sending) or ``opaque`` (neither; the default).
    ``timeout``: seconds for one attempt. ``retry``: by default three attempts, and one for an
    opaque tool. ``errors``: exception types that come back as themselves. ``on_unknown``:
    overrides what the contract says of an unknown outcome (``resend``, ``probe``, ``park`` or
    ``compensate``), so that a lesson can show the wrong choice. ``compensate``: another tool with
    the same parameters, which undoes what this one did (or may have done); it is given all of
    the call's arguments, defaults too. ``cancel(call)``: asks the service to give up an attempt
    that was left at its limit (or that is interrupted, or whose run is to stop, so that it means
    something without ``timeout`` too); a wish, never a proof.

    Raises InvalidField for a declaration that cannot work, and for one that contradicts itself:
    what can mean nothing under the effect that is declared was meant for another one. Allowed,
    since it says something true of the service and hurts nobody: a ``probe`` of an idempotent
    tool without a ``window`` (it is asked once there is one), and a ``window`` shorter than
    ``timeout`` (an unknown call then parks, or is probed).
    """
    if function is None:
        return functools.partial(
            tool, effect=effect, window=window, settles_after=settles_after, probe=probe,
            on_unknown=on_unknown, timeout=timeout, retry=retry, errors=errors,
            compensate=compensate, cancel=cancel, name=name,
        )  # fmt: skip
    try:
        promised = Effect(effect)
    except ValueError:
        known = ", ".join(e.value for e in Effect)
        raise InvalidField("effect", f"one of {known}; got {effect!r}") from None
    if window is not None and window != math.inf:
        ahead("window", window)
    if settles_after is not None and settles_after != 0:
        ahead("settles_after", settles_after)
    if timeout is not None:
        ahead("timeout", timeout)
    if on_unknown not in (None, "resend", "probe", "park", "compensate"):
        known = "'resend', 'probe', 'park' or 'compensate'"
        raise InvalidField("on_unknown", f"{known}; got {on_unknown!r}")
    _check_fits_effect(promised, window, settles_after, probe, on_unknown)
    _check_compensate(compensate, promised, needed=on_unknown == "compensate")
    if cancel is not None and not callable(cancel):
        raise InvalidField("cancel", f"needs a function that asks, got {cancel!r}")
    _check_probe(probe, needed=promised is Effect.QUERYABLE or on_unknown == "probe")
    check_retry(retry, promised)
    _check_errors(errors)
    declared = Tool(
        function,
        contract=Contract(
            promised, window, settles_after, probe is not None, on_unknown, compensate is not None
        ),
        policy=retry or Retry(attempts=1 if promised is Effect.OPAQUE else 3),
        timeout=None if timeout is None else float(timeout),
        probe=probe,
        errors=tuple(errors),
        name=name,
        compensate=compensate,
        cancel=cancel,
    )
    misfit = None if compensate is None else compensate.parameters.misfit(declared.parameters)
    if compensate is not None and misfit is not None:
        raise InvalidField("compensate", f"{compensate.name} {misfit} by {declared.name}")
    _tools[declared.name] = declared
    return declared


#: The latest tool of each name that is alive here. A call is given its tool and not a name, so
#: this decides nothing that is sent; it tells a person early what the next drive would find.
_tools: weakref.WeakValueDictionary[str, Tool] = weakref.WeakValueDictionary()


def find_tool(name: str) -> Tool | None:
    """The tool of that name as last declared in this process; None where there is none."""
    return _tools.get(name)


def _check_fits_effect(
    promised: Effect,
    window: float | None,
    settles_after: float | None,
    probe: object,
    on_unknown: str | None,
) -> None:
    """Refuse what can mean nothing under this effect."""
    if window is not None and promised is not Effect.IDEMPOTENT:
        raise InvalidField(
            "window", f"is how long a service knows a key; with effect={promised} it knows none"
        )
    if promised is Effect.NONE:
        told = {"probe": probe, "on_unknown": on_unknown}
        for field in (name for name, value in told.items() if value is not None):
            raise InvalidField(field, "a tool without outside effect leaves nothing unknown")
    if promised is Effect.OPAQUE and probe is not None and on_unknown != "probe":
        raise InvalidField("probe", "a service that can be asked is effect='queryable'")
    if settles_after is not None and probe is None:
        raise InvalidField("settles_after", "is about a probe's 'absent', and there is no probe")


def _check_probe(probe: object, *, needed: bool) -> None:
    if probe is None and needed:
        raise InvalidField("probe", "a queryable tool needs a function that asks")
    if probe is not None and not callable(probe):
        raise InvalidField("probe", f"needs a function that asks, got {probe!r}")


def _check_compensate(compensate: object, promised: Effect, *, needed: bool) -> None:
    if compensate is None:
        if needed:
            raise InvalidField(
                "compensate", "on_unknown='compensate' needs a tool that undoes this one"
            )
        return
    if promised is Effect.NONE:
        raise InvalidField("compensate", "a tool without outside effect has nothing to undo")
    if not isinstance(compensate, Tool):
        raise InvalidField("compensate", f"declare it with @dk.tool; got {compensate!r}")
    if compensate.contract.on_unknown == "compensate":
        raise InvalidField("compensate", "a compensation is not undone by another one")
    if compensate.contract.effect is Effect.NONE:
        raise InvalidField("compensate", f"{compensate.name} has no outside effect to undo it with")


def check_retry(retry: object, promised: Effect) -> None:
    """Raises InvalidField for a policy that cannot be followed with this effect.

    ``Retry`` itself takes any window, so that a policy can be computed and drawn at the ends of
    its scale; who is to wait by one has meant something else.
    """
    if retry is None:
        return
    if not isinstance(retry, Retry):
        raise InvalidField("retry", f"needs a dk.Retry, got {retry!r}")
    if retry.contradiction is not None:
        raise InvalidField(*retry.contradiction)
    if retry.last_chance and promised in (Effect.QUERYABLE, Effect.OPAQUE):
        raise InvalidField("last_chance", f"is for reads and keyed writes, not effect={promised}")


def _check_errors(kinds: object) -> None:
    if not isinstance(kinds, tuple | list):
        raise InvalidField("errors", f"needs a tuple of exception types, got {kinds!r}")
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise InvalidField("errors", f"needs exception types, got {kind!r}")


class Workflow:
    """A function ``(ctx, …)`` that a run executes. See ``workflow``."""

    def __init__(self, function: Callable[..., Any], *, version: int, name: str | None) -> None:
        declared = _declared_name(function, name)
        functools.update_wrapper(self, function)
        if isinstance(version, bool) or not isinstance(version, int):
            raise InvalidField("version", f"needs a whole number, got {version!r}")
        if abs(version) >= 2**63:
            raise InvalidField("version", "does not fit 64 bits")
        self.function = function
        self.name = declared
        self.module = str(getattr(function, "__module__", None) or "")
        self.place = _place(function)
        #: where another module has defined a workflow of this name in this process
        self.elsewhere: str | None = None
        self.version = version
        self.source = source_digest(function)
        self.returns = values.returns(function)
        self.parameters = Parameters(function, "ctx")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the bare function: nothing is saved."""
        return self.function(*args, **kwargs)

    def clash(self) -> str:
        """What a reader must know where two modules define this name; else empty."""
        if self.elsewhere is None:
            return ""
        return (
            f". {self.name!r} is defined twice here, in {self.place} and in {self.elsewhere}: the "
            "one defined last is run, so give one of them another name"
        )

    def __repr__(self) -> str:
        return f"<workflow {self.name} version {self.version}>"


_workflows: dict[str, Workflow] = {}


def workflow(
    function: Callable[..., Any] | None = None, *, version: int = 1, name: str | None = None
) -> Any:
    """Declare a workflow: a function ``(ctx, …)`` of named steps and calls.

    ``version``: raise it when steps change, so that unfinished runs of the old code are refused
    by name instead of being replayed by the new.
    """
    if function is None:
        return functools.partial(workflow, version=version, name=name)
    return register(Workflow(function, version=version, name=name))


def register(declared: Workflow) -> Workflow:
    """Make ``declared`` the workflow of its name in this process.

    In its own module it replaces the one before (a cell that is run again). Where another module
    has defined that name, both places are kept: a run that does not fit will name them.
    """
    before = _workflows.get(declared.name)
    if before is not None:
        same = before.module == declared.module
        declared.elsewhere = before.elsewhere if same else before.place
    _workflows[declared.name] = declared
    return declared


@contextlib.contextmanager
def standing(declared: Workflow) -> Iterator[None]:
    """For a while ``declared`` is the workflow of its name, whatever was defined after it."""
    before = _workflows.get(declared.name)
    _workflows[declared.name] = declared
    try:
        yield
    finally:
        if before is None:
            del _workflows[declared.name]
        else:
            _workflows[declared.name] = before


def find_workflow(name: str) -> Workflow:
    """The workflow of that name as last defined here. Raises WorkflowNotFound."""
    if name not in _workflows:
        raise WorkflowNotFound(
            f"workflow {name!r} is not defined in this process: import its module, or run the "
            "cell that defines it"
        )
    return _workflows[name]


def _place(function: Callable[..., Any]) -> str:
    """Where a function is defined, for people: module and line (no path: it may be private)."""
    module = getattr(function, "__module__", None) or "a module without a name"
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{module}, line {code.co_firstlineno}" if code else str(module)


def source_digest(function: Callable[..., Any]) -> str:
    """SHA-256 of the function's source text (of its byte code where there is no source)."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        text = repr((code.co_code, code.co_names)) if code else repr(type(function))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()

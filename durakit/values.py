"""Values and their saved form: JSON without loss, or a refusal that names the bad part.

The saved form is strict JSON in ASCII (no NaN, text keys only). Without a type annotation only
the JSON types themselves are accepted: a tuple, a text-enum or a default dictionary would come
back as something else, so they are refused. With a return annotation, pydantic writes and
rebuilds the value, and the result must equal the original, type by type. Nothing here imports
or calls what a payload names.

Nesting is refused beyond a fixed depth: how deep Python can go depends on how deep the caller
already stands, so a value that could be saved here might not be readable there.

The argument digest is SHA-256 over *canonical* JSON: keys sorted, no spaces. 1, 1.0 and true
differ; the order of keys does not matter.
"""

from __future__ import annotations

import builtins
import dataclasses
import hashlib
import json
import math
import re
import typing
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pydantic

from durakit import errors
from durakit.errors import SavedError, UnloadableValue, UnsavableValue

#: Annotations that the JSON types cover without pydantic.
_PLAIN = (
    Any, object, str, int, float, bool, type(None), None, dict, list,
    dict[str, Any], list[Any], dict[str, str], dict[str, int], list[str], list[int],
    list[dict[str, Any]],
)  # fmt: skip

#: JSON as it is saved: strict, ASCII, no spaces.
compact = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode
_encode_sorted = json.JSONEncoder(
    ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=True
).encode


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_decode = json.JSONDecoder(parse_constant=_no_constant).decode

#: The longest whole number that Python turns into text without a special setting.
_MAX_INT_BITS = 14_000

#: How deep lists and dicts may stand in each other.
_DEEPEST = 200

#: Two halves of one character, as two: JSON's escapes cannot tell them from the character.
_SPLIT_CHARACTER = re.compile("[\ud800-\udbff][\udc00-\udfff]")


@dataclass(frozen=True)
class UnsavableResult:
    """Stands for a reply that could not be saved: the operation itself *is* completed."""

    path: str
    reason: str


class Codec:
    """Writes and reads values of one annotated type (``None`` where nothing is annotated)."""

    def __init__(self, annotation: Any = Any) -> None:
        self._adapter = None if annotation in _PLAIN else _adapter(annotation)
        self._name = getattr(annotation, "__name__", None) or str(annotation)

    def dump(self, value: Any) -> str:
        """``value`` as strict ASCII JSON. Raises UnsavableValue with the path of the bad part."""
        if self._adapter is None:
            return plain_json(value)
        # Serializers, validators and comparisons are the user's code and may raise anything;
        # whatever it is, it says that this value has no saved form. Pydantic's warnings about
        # a value of another type say less than the comparison below.
        try:
            form = self._adapter.dump_python(value, mode="json", warnings="none")
        except Exception as error:
            place = path_text(_culprit(value, _write))
            raise UnsavableValue(place, f"{type(value).__name__}: {_first_line(error)}") from error
        text = plain_json(form)
        try:
            back = self._adapter.validate_json(text)
            where = _difference(value, back, ())
        except pydantic.ValidationError as error:
            path, reason = _misfit(error, form)
            if error.errors()[0]["type"] == "json_invalid":  # half a character, nested too deeply
                path = path_text(_culprit(form, _write_and_read))
            raise UnsavableValue(path, reason) from error
        except Exception as error:
            raise UnsavableValue("$", f"{type(value).__name__}: {_first_line(error)}") from error
        if where is not None:
            raise UnsavableValue(path_text(where), "it would come back as another value or type")
        return text

    def load(self, text: str) -> Any:
        """The value saved as ``text``. Raises UnloadableValue where the type does not fit it."""
        try:
            return _decode(text) if self._adapter is None else self._adapter.validate_json(text)
        except pydantic.ValidationError as error:
            path, reason = _misfit(error, _lenient(text))
            problem = f"saved value does not fit its type {self._name}: at {path}: {reason}"
            raise UnloadableValue(problem) from error
        except Exception as error:  # a validator is the user's code and may raise anything
            problem = f"saved value does not fit its type {self._name}: {_first_line(error)}"
            raise UnloadableValue(problem) from error


PLAIN = Codec()


@lru_cache(maxsize=512)
def returns(function: Callable[..., Any]) -> Codec:
    """The codec of ``function``'s return annotation."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        # Not resolvable (a name that exists only for the type checker, a callable without
        # annotations of its own): then only JSON types are accepted, which is the safe side.
        return PLAIN
    return _codec(hints.get("return", Any))


def parameters(function: Callable[..., Any]) -> dict[str, Codec]:
    """The codecs of ``function``'s annotated parameters, by name."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}
    return {name: _codec(hint) for name, hint in hints.items() if name != "return"}


def _codec(annotation: Any) -> Codec:
    try:
        codec = Codec(annotation)
    except (pydantic.errors.PydanticUserError, pydantic.PydanticSchemaGenerationError):
        return PLAIN
    return PLAIN if codec._adapter is None else codec  # noqa: SLF001 - its own module


def _adapter(annotation: Any) -> pydantic.TypeAdapter[Any]:
    config = pydantic.ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    try:
        return pydantic.TypeAdapter(annotation, config=config)
    except pydantic.errors.PydanticUserError:
        return pydantic.TypeAdapter(annotation)  # a model has a configuration of its own


def plain_json(value: Any) -> str:
    """``value``, made of JSON types only, as strict ASCII JSON; else UnsavableValue."""
    return _written(value, compact)


def canonical(value: Any) -> str:
    """``value`` as canonical JSON: the text that digests are taken of."""
    return _written(value, _encode_sorted)


def _written(value: Any, encode: Callable[[Any], str]) -> str:
    try:
        bad = _unsavable(value, _DEEPEST)
        if bad is None:
            return encode(value)
    except RecursionError:  # the caller itself stands almost too deep
        raise UnsavableValue("$", "nested too deeply, or it contains itself") from None
    parts, reason = bad
    raise UnsavableValue(path_text(tuple(reversed(parts))), reason)


def digest(text: str) -> str:
    """SHA-256 of ``text``, 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def _unsavable(value: Any, room: int) -> tuple[list[Any], str] | None:
    """None, or the first bad part: its path (innermost first) and why."""
    kind = type(value)
    if kind is str and value.isascii():
        return None
    parts: Iterable[tuple[Any, Any]]
    if kind is dict:
        for key in value:
            if type(key) is not str or not key.isascii():
                reason = _bad_key(key)
                if reason is not None:
                    return [key], reason
        parts = value.items()
    elif kind is list:
        parts = enumerate(value)
    else:
        reason = _bad_leaf(kind, value)
        return None if reason is None else ([], reason)
    if not room:
        return [], f"nested more than {_DEEPEST} deep, or it contains itself"
    for step, part in parts:
        bad = _unsavable(part, room - 1)
        if bad is not None:
            bad[0].append(step)
            return bad
    return None


def _bad_key(key: Any) -> str | None:
    if type(key) is not str:
        return f"the key is {_a(type(key))}, and JSON keys are text"
    if _SPLIT_CHARACTER.search(key):
        return "the key holds a character in two halves, which become one"
    return None


def _bad_leaf(kind: type, value: Any) -> str | None:
    if kind is bool or value is None:
        return None
    if kind is str:
        split = None if value.isascii() else _SPLIT_CHARACTER.search(value)
        return "the text holds a character in two halves, which become one" if split else None
    if kind is int:
        big = value.bit_length() > _MAX_INT_BITS
        return "a whole number of more than 4,000 digits" if big else None
    if kind is float:
        return None if math.isfinite(value) else f"{value!r} is not a JSON number"
    return f"{_a(kind)} is not a JSON type (annotate the return type, or convert it)"


def _parts(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """What a value consists of, as (step, part); None for a value without parts."""
    if isinstance(value, pydantic.BaseModel):
        # Not __dict__: it may hold cached properties too.
        own = [(name, getattr(value, name)) for name in type(value).model_fields]
        extra = {**(value.__pydantic_extra__ or {}), **(value.__pydantic_private__ or {})}
        return [*own, *extra.items()]
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, list | tuple | deque):
        return enumerate(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def _difference(value: Any, back: Any, path: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The path of the first part in which two values differ in type or content, or None."""
    if type(value) is not type(back):
        return path
    parts, others = _parts(value), _parts(back)
    if parts is None or others is None:
        return None if _same(value, back) else path
    pairs, twins = list(parts), list(others)
    if len(pairs) != len(twins) or not _same_container(value, back):
        return path
    for (step, part), (other_step, other) in zip(pairs, twins, strict=True):
        if type(step) is not type(other_step) or step != other_step:
            return path
        where = _difference(part, other, (*path, step))
        if where is not None:
            return where
    return None


def _same_container(value: Any, back: Any) -> bool:
    """Whether what a container knows beside its parts has come back."""
    return all(
        getattr(value, name, None) == getattr(back, name, None)
        for name in ("maxlen", "default_factory")
    )


def _same(value: Any, back: Any) -> bool:
    if isinstance(value, Decimal):
        return bool(value.as_tuple() == back.as_tuple())
    if isinstance(value, set | frozenset):
        twins = {part: part for part in back}
        return bool(value == back) and all(
            _difference(part, twins[part], ()) is None for part in value
        )
    if hasattr(value, "utcoffset"):
        # Zone objects of equal meaning have different classes, so the times are compared. A
        # zone whose offset changes with the date would come back as a fixed one.
        zone = value.tzinfo
        return (
            bool(value == back)
            and value.utcoffset() == back.utcoffset()
            and (zone is None) == (back.tzinfo is None)
            and (zone is None or zone.utcoffset(None) is not None)
            and value.fold == back.fold
        )
    return bool(value == back)


@lru_cache(maxsize=1)
def _anything() -> pydantic.TypeAdapter[Any]:
    # Not at import: the first adapter loads the larger half of pydantic.
    return pydantic.TypeAdapter[Any](Any)


def _write(value: Any) -> Any:
    return _anything().dump_python(value, mode="json", warnings="none")


def _write_and_read(form: Any) -> Any:
    return _anything().validate_json(plain_json(form))


def _culprit(
    value: Any, attempt: Callable[[Any], Any], above: frozenset[int] = frozenset()
) -> tuple[Any, ...]:
    """The path of the innermost part for which ``attempt`` raises."""
    above |= {id(value)}
    for step, part in _parts(value) or ():
        if id(part) in above or len(above) > _DEEPEST:
            return (step,)
        try:
            attempt(part)
        except Exception:  # noqa: BLE001 - whatever a serializer raises
            return (step, *_culprit(part, attempt, above))
    return ()


def _misfit(error: pydantic.ValidationError, form: Any) -> tuple[str, str]:
    """Where a JSON form does not fit its type, and why."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path: list[Any] = []
    for part in first["loc"]:
        # Between the steps stand names of union members and validators: no place in the form.
        known = form if isinstance(form, dict) else range(len(form) if type(form) is list else 0)
        if part in known:
            path.append(part)
            form = form[part]
    return path_text(tuple(path)), first["msg"]


def _lenient(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def path_text(parts: tuple[Any, ...]) -> str:
    """A path as people read it: ``$.lines[2].price``."""
    text = "$"
    for part in parts:
        if isinstance(part, str) and part.isidentifier():
            text += f".{part}"
        else:
            text += f"[{_shown(part)}]"
    return text


def _shown(part: Any) -> str:
    try:
        text = repr(part)
    except Exception:  # noqa: BLE001 - a key that cannot show itself is named by its type
        text = f"<{type(part).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _a(kind: type) -> str:
    return f"{'an' if kind.__name__[:1].lower() in 'aeiou' else 'a'} {kind.__name__}"


def _first_line(error: Exception) -> str:
    return (_message(error).strip() or type(error).__name__).splitlines()[0]


def dump_error(error: Exception, listed: tuple[type[Exception], ...] = ()) -> dict[str, Any]:
    """The saved form of an exception: ``{type, message, args}`` (args where they are JSON).

    Its own type comes back only if it is a builtin, durakit's or in ``listed``; any other
    becomes SavedError.
    """
    kind = type(error)
    if isinstance(error, SavedError):
        return {"type": error.type_name, "message": error.message}
    saved: dict[str, Any] = {"type": kind.__qualname__, "message": _message(error)}
    if _error_type(kind.__qualname__, listed) is kind:
        arguments = _arguments(error, saved["message"])
        if arguments is not None:
            saved["args"] = arguments
    return saved


def _arguments(error: Exception, message: str) -> list[Any] | None:
    """JSON arguments from which the error's type builds it again, or None."""
    kind = type(error)
    try:
        reduced = error.__reduce__()
        form = list(reduced[1]) if isinstance(reduced, tuple) and len(reduced) > 1 else []
        plain_json(form)
        # Some exceptions choose another class from their arguments; those that do not come
        # back as they went in are saved by name and message.
        if _is_alike(kind(*form), kind, message):
            return form
    except Exception:  # noqa: BLE001, S110 - whatever a constructor raises, the message is kept
        pass
    if kind.__module__ != "builtins":
        return None
    # A builtin keeps its type where it can, so that `except KeyError` works for a key of any
    # type; what it was made of is told by its message.
    try:
        return [message] if type(kind(message)) is kind and message in str(kind(message)) else None
    except Exception:  # noqa: BLE001 - UnicodeDecodeError, ExceptionGroup: the message is kept
        return None


def _is_alike(built: Exception, kind: type[Exception], message: str) -> bool:
    return type(built) is kind and str(built) == message


def load_error(saved: dict[str, Any], listed: tuple[type[Exception], ...] = ()) -> Exception:
    """The exception that ``dump_error`` saved; a fixed set of types is all that can be built."""
    name, message = str(saved.get("type", "Exception")), str(saved.get("message", ""))
    kind = _error_type(name, listed)
    if kind is not None and isinstance(saved.get("args"), list):
        try:
            return kind(*saved["args"])
        except Exception:  # noqa: BLE001 - a listed type changed since; its message is kept
            return SavedError(name, message)
    return SavedError(name, message)


def _error_type(name: str, listed: tuple[type[Exception], ...]) -> type[Exception] | None:
    for kind in listed:
        if kind.__qualname__ == name:
            return kind
    for module in (errors, builtins):
        found = getattr(module, name, None)
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    return None


def _message(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an error that cannot describe itself is still saved
        return "(no message)"

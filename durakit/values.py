"""Values and their saved form: JSON without loss, or a refusal that names the bad part.

The saved form is strict JSON in ASCII (no NaN, text keys only). Without a type annotation only
the JSON types themselves are accepted: a tuple, a text-enum or a default dictionary would come
back as something else, so they are refused. With a return annotation, pydantic writes and
rebuilds the value, and the result must equal the original, type by type. Nothing here imports
or calls what a payload names.

The argument digest is SHA-256 over *canonical* JSON: keys sorted, no spaces. 1, 1.0 and true
differ; the order of keys does not matter.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import math
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pydantic

from durakit import errors
from durakit.errors import SavedError, UnloadableValue, UnsavableValue

#: Annotations that the JSON types cover without pydantic.
_PLAIN = (
    Any, object, str, int, float, bool, type(None), None, dict, list,
    dict[str, Any], list[Any], dict[str, str], dict[str, int], list[str], list[int], list[dict],
)  # fmt: skip

_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode
_encode_sorted = json.JSONEncoder(
    ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=True
).encode
_decode = json.JSONDecoder().decode

#: The longest whole number that Python turns into text without a special setting.
_MAX_INT_BITS = 14_000


@dataclass(frozen=True)
class UnsavableResult:
    """Stands for a reply that could not be saved: the operation itself *is* completed."""

    path: str
    reason: str


class Codec:
    """Writes and reads values of one annotated type (``None`` where nothing is annotated)."""

    def __init__(self, annotation: Any = Any) -> None:
        self._adapter = None if annotation in _PLAIN else _adapter(annotation)

    def dump(self, value: Any) -> str:
        """``value`` as strict ASCII JSON. Raises UnsavableValue with the path of the bad part."""
        if self._adapter is None:
            return plain_json(value)
        try:
            form = self._adapter.dump_python(value, mode="json", warnings="error")
            text = plain_json(form)
            back = self._adapter.validate_json(text)
        except UnsavableValue:
            raise
        except (ValueError, TypeError, RecursionError, pydantic.errors.PydanticUserError) as error:
            raise UnsavableValue("$", f"{type(value).__name__}: {_first_line(error)}") from error
        where = _difference(value, back, ())
        if where is not None:
            raise UnsavableValue(path_text(where), "it would come back as another value or type")
        return text

    def load(self, text: str) -> Any:
        """The value saved as ``text``. Raises UnloadableValue where the type does not fit it."""
        if self._adapter is None:
            return _decode(text)
        try:
            return self._adapter.validate_json(text)
        except ValueError as error:
            raise UnloadableValue(f"saved value does not fit its type: {error}") from error


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
    return _written(value, _encode)


def canonical(value: Any) -> str:
    """``value`` as canonical JSON: the text that digests are taken of."""
    return _written(value, _encode_sorted)


def _written(value: Any, encode: Callable[[Any], str]) -> str:
    try:
        bad = _unsavable(value)
        if bad is None:
            return encode(value)
    except RecursionError:
        raise UnsavableValue("$", "nested too deeply, or it contains itself") from None
    parts, reason = bad
    raise UnsavableValue(path_text(tuple(reversed(parts))), reason)


def digest(text: str) -> str:
    """SHA-256 of ``text``, 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def _unsavable(value: Any) -> tuple[list[Any], str] | None:
    """None, or the first bad part: its path (innermost first) and why."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return None
    if kind is int:
        if value.bit_length() > _MAX_INT_BITS:
            return [], "a whole number of more than 4,000 digits"
        return None
    if kind is float:
        return None if math.isfinite(value) else ([], f"{value!r} is not a JSON number")
    if kind is dict:
        for key, part in value.items():
            if type(key) is not str:
                return [key], f"the key is {_a(type(key))}, and JSON keys are text"
            bad = _unsavable(part)
            if bad is not None:
                bad[0].append(key)
                return bad
        return None
    if kind is list:
        for index, part in enumerate(value):
            bad = _unsavable(part)
            if bad is not None:
                bad[0].append(index)
                return bad
        return None
    return [], f"{_a(kind)} is not a JSON type (annotate the return type, or convert it)"


def _difference(value: Any, back: Any, path: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The path of the first part in which two values differ in type or content, or None."""
    if type(value) is not type(back):
        # Zone objects of equal meaning have different classes; the comparison below of the
        # times themselves covers them, so only the carriers' types are compared.
        return path
    if isinstance(value, pydantic.BaseModel):
        return _difference(value.__dict__, back.__dict__, path)
    if isinstance(value, dict):
        if list(value) != list(back) or any(
            type(a) is not type(b) for a, b in zip(value, back, strict=True)
        ):
            return path
        pairs = [(key, value[key], back[key]) for key in value]
    elif isinstance(value, list | tuple):
        if len(value) != len(back):
            return path
        pairs = [(index, a, b) for index, (a, b) in enumerate(zip(value, back, strict=True))]
    elif hasattr(value, "__dataclass_fields__"):
        pairs = [(n, getattr(value, n), getattr(back, n)) for n in value.__dataclass_fields__]
    else:
        return None if _same(value, back) else path
    for step, a, b in pairs:
        where = _difference(a, b, (*path, step))
        if where is not None:
            return where
    return None


def _same(value: Any, back: Any) -> bool:
    if hasattr(value, "utcoffset"):
        return bool(value == back) and value.utcoffset() == back.utcoffset()
    return bool(value == back)


def path_text(parts: tuple[Any, ...]) -> str:
    """A path as people read it: ``$.lines[2].price``."""
    text = "$"
    for part in parts:
        if isinstance(part, str) and part.isidentifier():
            text += f".{part}"
        else:
            text += f"[{part!r}]"
    return text


def _a(kind: type) -> str:
    return f"{'an' if kind.__name__[:1].lower() in 'aeiou' else 'a'} {kind.__name__}"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


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
        reduced = error.__reduce__()
        arguments = reduced[1] if isinstance(reduced, tuple) and len(reduced) > 1 else ()
        try:
            form = list(arguments)
            plain_json(form)
            # Some exceptions choose another class from their arguments; those that do not come
            # back as they went in are saved by name and message.
            if type(kind(*form)) is kind and str(kind(*form)) == str(error):
                saved["args"] = form
        except Exception:  # noqa: BLE001, S110 - whatever a constructor raises, the message is kept
            pass
    return saved


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

"""What was given is checked here: numbers, texts, and JSON that somebody wrote by hand.

Whatever is wrong is a ValueError that begins with the name of the field.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, Final

LARGEST: Final = sys.float_info.max  # a whole number may be larger, and adds to no time


def check_seconds(field: str, value: object) -> float:
    """Return ``value`` if it is a finite number from 0; else raise ValueError naming the field."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST:
        return value
    raise ValueError(f"{field}: want seconds, a finite number from 0, got {value!r}")


def check_text(field: str, value: object) -> None:
    """Raise ValueError unless ``value`` is a text with something in it."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{field}: want a non-empty text, got {value!r}")


def check_object(field: str, value: object) -> Mapping[str, Any]:
    """Return ``value`` if it is a JSON object; else raise ValueError naming the field."""
    match value:
        case Mapping():
            return value
    raise ValueError(f"{field}: want an object, got {value!r}")


def read_json(field: str, text: str) -> Any:
    """Read JSON. Raises ValueError for what is none, and for an object with a name in it twice.

    ``json`` itself keeps the last of two equal names, and the other is lost without a word.
    """
    try:
        return json.loads(text, object_pairs_hook=_without_doubles)
    except json.JSONDecodeError as error:
        raise ValueError(f"{field}: is not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{field}: is nested too deeply") from error


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key}: stands there twice")
        found[key] = value
    return found

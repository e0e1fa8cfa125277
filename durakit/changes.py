"""What changed between two JSON states, and how to put it back. Pure.

A checkpoint stores what changed, not the whole state again: for a list that grows by one
message, one ``add``. A change is ``[verb, path, value]``; the path is a list of keys and indexes:

``["set", path, value]``   a key or index has this value now (or has come)
``["cut", path, length]``  a list ends after so many parts
``["add", path, parts]``   a list has these parts more at its end
``["del", path, null]``    a key is gone

1, 1.0 and true are different values. ``apply(old, diff(old, new)) == new``, types included.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from durakit.values import path_text

Change = list[Any]


def diff(old: Any, new: Any) -> list[Change]:
    """The changes that turn ``old`` into ``new``, both made of JSON types."""
    return list(_diff(old, new, []))


def _diff(old: Any, new: Any, path: list[Any]) -> Iterator[Change]:
    if old is new:
        return
    if type(old) is not type(new):
        yield ["set", path, new]
    elif type(old) is dict:
        for key in old:
            if key not in new:
                yield ["del", [*path, key], None]
        for key, part in new.items():
            if key in old:
                yield from _diff(old[key], part, [*path, key])
            else:
                yield ["set", [*path, key], part]
    elif type(old) is list:
        for index in range(min(len(old), len(new))):
            yield from _diff(old[index], new[index], [*path, index])
        if len(new) < len(old):
            yield ["cut", path, len(new)]
        elif len(new) > len(old):
            yield ["add", path, new[len(old) :]]
    elif old != new:
        yield ["set", path, new]


def apply(old: Any, changes: list[Change]) -> Any:
    """``old`` with ``changes`` made; ``old`` itself stays as it is."""
    root = [copy.deepcopy(old)]
    for verb, path, value in changes:
        holder: Any = root
        where: Any = 0
        for step in path:
            holder, where = holder[where], step
        if verb == "set":
            holder[where] = copy.deepcopy(value)
        elif verb == "add":
            holder[where].extend(copy.deepcopy(value))
        elif verb == "cut":
            del holder[where][value:]
        else:
            del holder[where]
    return root[0]


def in_words(changes: list[Change]) -> list[tuple[str, str, Any]]:
    """(path as people read it, what happened, value) for each change."""
    verbs = {"set": "is now", "add": "has more at its end", "cut": "ends after", "del": "is gone"}
    return [(path_text(tuple(path)), verbs[verb], value) for verb, path, value in changes]

"""Key strategies: what an operation key may be made of.

A *strategy* is a pure function from what is known when a request leaves to the key it carries:

    Facts(operation, attempt, tool_call_id, jsonrpc_id, arguments)  →  key

What goes wrong with each is tried in ``keytrials``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["STRATEGIES", "Facts", "KeyFunction", "Operation", "Strategy", "again", "generation"]


@dataclass(frozen=True)
class Operation:
    """One piece of business, as the shop knows it: what for, of which order, for whom."""

    event: str
    order: str
    customer: int


@dataclass(frozen=True)
class Facts:
    """All that is known when a request leaves.

    ``attempt``: 1, 2, … of this call. ``tool_call_id``: the model's, new with each plan.
    ``jsonrpc_id``: of this very request. ``arguments``: what the tool is called with.
    """

    operation: Operation
    attempt: int
    tool_call_id: str
    jsonrpc_id: int
    arguments: Mapping[str, str]


KeyFunction = Callable[[Facts], str]


@dataclass(frozen=True)
class Strategy:
    """A way to make keys. ``wrong``: in one sentence, what goes wrong with it."""

    name: str
    key: KeyFunction
    wrong: str


def per_attempt(facts: Facts) -> str:
    """Return a new key for each try."""
    return f"{facts.tool_call_id}/{facts.attempt}"


def per_tool_call(facts: Facts) -> str:
    """Return the id that the model has given to its tool call."""
    return facts.tool_call_id


def per_jsonrpc(facts: Facts) -> str:
    """Return the id of the JSON-RPC request."""
    return f"rpc-{facts.jsonrpc_id}"


def content_hash(facts: Facts) -> str:
    """Return a digest of the arguments: their canonical JSON, SHA-256, 16 hex digits."""
    text = json.dumps(dict(facts.arguments), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def per_operation(facts: Facts) -> str:
    """Return what the business calls it: the event and its order."""
    return f"{facts.operation.event}:{facts.operation.order}"


STRATEGIES: Final = (
    Strategy("per attempt", per_attempt, "No try is known to repeat the one before."),
    Strategy(
        "per tool-call id", per_tool_call, "A new plan has new ids; a provider may use one twice."
    ),
    Strategy("per JSON-RPC id", per_jsonrpc, "It pairs one answer with one request, no more."),
    Strategy("content hash", content_hash, "Other words are a new key; two equal orders are one."),
    Strategy("per operation", per_operation, "Nothing, as long as the service remembers the key."),
)


def again(key: str) -> str:
    """Return the key of a deliberate new try: the next generation, linked to ``key`` by its name.

    ``welcome:7`` → ``welcome:7/2`` → ``welcome:7/3``. Only a person may want one: it is a new
    operation, and what the old one has done stays done.
    """
    base, number = generation(key)
    return f"{base}/{number + 1}"


def generation(key: str) -> tuple[str, int]:
    """Return the first key of a line, and which generation of it this one is, from 1."""
    found = _GENERATION.fullmatch(key)
    return (key, 1) if found is None else (found[1], int(found[2]))


#: 2 and more, written as ``again`` writes it, and not longer than anybody counts.
_GENERATION: Final = re.compile(r"(?s:(.+))/([2-9]|[1-9][0-9]{1,8})")

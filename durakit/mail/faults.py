"""Faults by plan: what goes wrong with which request.

A plan is a list of faults; the first that hits a request counts. As data it is a JSON list of
objects, each with a ``kind`` and what else ``Fault`` takes:

    [{"kind": "reply_lost", "request": 1},
     {"kind": "rate_limited", "key": "welcome:42", "retry_after": 2}]
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path

from durakit.mail.checks import check_object, check_seconds, check_text, read_json

FAULTS = {
    "request_lost": "never arrives at the part that acts; the caller times out",
    "request_late": "acts `seconds` later; the caller times out meanwhile",
    "rate_limited": "refused with 429 and `retry_after`; nothing done",
    "error_before": "500; nothing done",
    "error_midway": "500 after half of a batch's letters; who keeps all or nothing keeps none",
    "error_after": "500; but the mail is delivered. What its key stands for now is the profile's",
    "reply_lost": "the mail is delivered; the caller times out",
    "reply_late": "the mail is delivered; the reply arrives `seconds` after the request was sent",
    "concurrent_duplicate": "a copy of the request is one step ahead and still running",
    "key_forgotten": "the service takes the key for one whose window is over",
}
"""Every kind of fault, with what it does."""

ERRORS = ("error_before", "error_midway", "error_after")
"""The kinds in which the service itself fails."""


@dataclass(frozen=True)
class Fault:
    """One planned fault: of the n-th request this ledger receives, or of every one with a key.

    ``request`` counts from 1 and is kept in the ledger, so it goes on after a killed process.
    ``seconds`` belongs to the two late kinds, ``retry_after`` (seconds; None sends no such
    header) to rate_limited. Raises ValueError naming the bad field.
    """

    kind: str
    request: int = 1
    key: str | None = None
    seconds: float = 5.0
    retry_after: float | None = None

    def __post_init__(self) -> None:
        check_text("kind", self.kind)
        if self.kind not in FAULTS:
            raise ValueError(f"kind: {self.kind!r} is none of {', '.join(FAULTS)}")
        if type(self.request) is not int or self.request < 1:
            raise ValueError(f"request: want a whole number from 1, got {self.request!r}")
        if self.key is not None:
            check_text("key", self.key)
            if self.request != 1:
                raise ValueError("request: give either request or key, not both")
        check_seconds("seconds", self.seconds)
        if self.retry_after is not None:
            check_seconds("retry_after", self.retry_after)

    def hits(self, number: int, key: str | None) -> bool:
        """Whether request ``number`` (from 1) with ``key`` meets this fault."""
        return number == self.request if self.key is None else key == self.key


def read_plan(path: str | os.PathLike[str]) -> tuple[Fault, ...]:
    """Read a plan from a JSON file in UTF-8 (with or without a byte order mark).

    Raises OSError where the file cannot be read, and ValueError as ``FILE: fault 2, kind: …`` (the
    first is 1) where its content is no plan.
    """
    source = Path(path)
    try:
        return load_plan(source.read_text("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def load_plan(text: str) -> tuple[Fault, ...]:
    """Read a plan from JSON. Raises ValueError as ``fault 2, kind: …`` (the first is 1)."""
    plan = read_json("plan", text)
    if not isinstance(plan, list):
        raise ValueError(f"plan: want a list of faults, got {plan!r:.80}")  # noqa: TRY004 - a bad value, of JSON
    return tuple(_load_fault(f"fault {place}", entry) for place, entry in enumerate(plan, 1))


def _load_fault(place: str, entry: object) -> Fault:
    values = check_object(place, entry)
    known = {part.name for part in fields(Fault)}
    for name in values:
        if name not in known:
            raise ValueError(f"{place}, {name}: is no field of a fault")
    if "kind" not in values:
        raise ValueError(f"{place}, kind: is missing; one of {', '.join(FAULTS)}")
    try:
        return Fault(**values)
    except ValueError as error:
        raise ValueError(f"{place}, {error}") from error

"""Faults by plan: what goes wrong with which request."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
        if self.kind not in FAULTS:
            raise ValueError(f"kind: {self.kind!r} is none of {', '.join(FAULTS)}")
        if type(self.request) is not int or self.request < 1:
            raise ValueError(f"request: want a whole number from 1, got {self.request!r}")
        if self.key is not None and not _is_name(self.key):
            raise ValueError(f"key: want a non-empty text, got {self.key!r}")
        if self.key is not None and self.request != 1:
            raise ValueError("request: give either request or key, not both")
        check_seconds("seconds", self.seconds)
        if self.retry_after is not None:
            check_seconds("retry_after", self.retry_after)

    def hits(self, number: int, key: str | None) -> bool:
        """Whether request ``number`` (from 1) with ``key`` meets this fault."""
        return number == self.request if self.key is None else key == self.key


def check_seconds(field: str, value: object) -> float:
    """Return ``value`` if it is a finite number from 0; else raise ValueError naming the field."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return value
    raise ValueError(f"{field}: want seconds, a finite number from 0, got {value!r}")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""

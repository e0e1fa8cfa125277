"""What a door hands to the service, and what it gets back: the same for every door.

A ``Request`` holds what was received, unchecked: the service judges it, so that every door refuses
the same things in the same words. An ``Answer`` is everything a door needs to reply.
"""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from durakit.mail.profiles import Profile, Refusal

LARGEST_BATCH: Final = 100
"""Letters in one request, as at Resend."""

Digests = tuple[str, str]
"""Of a request, and of the same request without its senders."""


@dataclass(frozen=True)
class Letter:
    """One mail as it was handed in. Good ones are texts, all but ``body`` of one line.

    ``sender``: None where none was given.
    """

    to: Any
    subject: Any
    body: Any
    sender: Any = None

    def digest(self) -> str:
        """Return the sha256 hex of the canonical JSON of to, subject, body and from, where given.

        A letter without a sender has the digest that it had when no sender was kept.
        """
        return _digest(self._fields())

    def what_is_wrong(self) -> str | None:
        """Name the first bad field and what is wrong with it, or return None."""
        for name, value in self._fields().items():
            wrong = what_is_wrong(value, one_line=name != "body")
            if wrong is None and name in ("to", "from") and not str(value).strip():
                wrong = "is empty"
            if wrong is not None:
                return f"{name} {wrong}"
        return None

    def _fields(self) -> dict[str, Any]:
        sender = {} if self.sender is None else {"from": self.sender}
        return {"to": self.to, "subject": self.subject, "body": self.body, **sender}


@dataclass(frozen=True)
class Request:
    """One request to send, as it was received.

    ``letters``: one; or in a ``batch`` 1 to ``LARGEST_BATCH``, all of them sent or none. ``key``:
    as it was carried (``Profile.carry`` writes it, with quotes where the profile wants them); None
    where there was none, a list where there were several. ``token``: whose request it is. ``tool``:
    None is the mailbox's own name; the same key for two tools means two operations. ``fence``: a
    whole number, for profiles that check it. ``unreadable``: why a door could make no letters of
    what came to it; refused as a malformed mail is.
    """

    letters: Sequence[Letter]
    key: Any = None
    token: str | None = None
    tool: str | None = None
    fence: Any = None
    batch: bool = False
    unreadable: str | None = None

    def digests(self) -> Digests:
        """Return what a key stands for, and what it stood for before senders were kept.

        Each is the digest of the letter, or of the batch's letters. Only of a request in which
        nothing is wrong.
        """
        bare = [replace(letter, sender=None) for letter in self.letters]
        return self._digest_of(self.letters), self._digest_of(bare)

    def _digest_of(self, letters: Sequence[Letter]) -> str:
        if self.batch:
            return _digest([letter.digest() for letter in letters])
        return letters[0].digest()

    def what_is_wrong(self) -> str | None:
        """Name the first bad field and what is wrong with it, or return None."""
        if self.unreadable is not None:
            return self.unreadable
        most = LARGEST_BATCH if self.batch else 1
        if not 1 <= len(self.letters) <= most:
            return f"letters: {len(self.letters)} of them, not 1{f' to {most}' * self.batch}"
        for place, letter in enumerate(self.letters):
            wrong = letter.what_is_wrong()
            if wrong is not None:
                return f"letter {place}: {wrong}" if self.batch else wrong
        if self.fence is not None and not (
            type(self.fence) is int and -(2**63) <= self.fence < 2**63
        ):
            return "fence is not a whole number of 64 bits"
        return None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the service says, and when.

    ``status``: 200, or a refusal's; 0 where no answer will ever come. ``body``: the JSON that a
    door may send as it is: ``{"id": …}``, for a batch ``{"data": [{"id": …}, …]}``, or a refusal
    in the profile's shape. ``headers``: those that belong to it (replay marker, Retry-After, a
    content type other than JSON). ``ids``: the mails, in the letters' order. ``name``, ``type``,
    ``message``: of a refusal. ``retry_after``: seconds. ``replayed``: from memory, and ``first``
    is when the remembered request was executed (UTC seconds).

    ``arrives``: seconds from the sending of the request to the arrival of this answer;
    ``delay``: what is left of them when the service hands it to the door. inf: it never arrives.
    """

    status: int
    body: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    ids: tuple[str, ...] = ()
    name: str | None = None
    type: str | None = None
    message: str | None = None
    retry_after: float | None = None
    replayed: bool = False
    first: float | None = None
    arrives: float = 0.0
    delay: float = 0.0

    @property
    def refuses(self) -> bool:
        """Whether it says no."""
        return self.status >= 400

    @property
    def comes(self) -> bool:
        """Whether it ever arrives."""
        return self.delay < math.inf


NO_ANSWER: Final = Answer(status=0, arrives=math.inf, delay=math.inf)
"""The caller hears nothing, and cannot know why."""


def accepted(ids: tuple[str, ...], *, batch: bool) -> Answer:
    """Say that these mails are out."""
    listed = [{"id": one} for one in ids]
    return Answer(status=200, ids=ids, body={"data": listed} if batch else listed[0])


def refused(
    profile: Profile, refusal: Refusal, message: str, retry_after: float | None = None
) -> Answer:
    """Say no in the words and the shape of the profile."""
    headers = {}
    if profile.error_body == "problem":
        headers["Content-Type"] = "application/problem+json"
    if retry_after is not None:
        headers["Retry-After"] = str(math.ceil(retry_after))  # whole seconds, RFC 9110 10.2.3
    return Answer(
        status=refusal.status,
        body=_error_body(profile, refusal, message),
        headers=headers,
        name=refusal.name,
        type=refusal.type,
        message=message,
        retry_after=retry_after,
    )


def what_is_wrong(value: object, *, one_line: bool) -> str | None:
    """Say why a value is no text that can be stored (and sent in one line), or return None."""
    if not isinstance(value, str):
        return f"is not text but {type(value).__name__}"
    if any("\ud800" <= char <= "\udfff" for char in value):
        return "holds half a character (a lone surrogate)"
    if one_line and any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in value):
        return "holds a line break or another control character"
    return None


def _error_body(profile: Profile, refusal: Refusal, message: str) -> dict[str, Any]:
    if profile.error_body == "problem":
        return {
            "type": refusal.type or "about:blank",
            "title": refusal.name,
            "status": refusal.status,
            "detail": message,
        }
    if profile.error_body == "nested":
        code = {} if refusal.name == refusal.type else {"code": refusal.name}
        return {"error": {"type": refusal.type, **code, "message": message}}
    return {"statusCode": refusal.status, "name": refusal.name, "message": message}


def _digest(value: object) -> str:
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()

"""What a mail service promises about keys, as data: ``profiles.json``, read once.

>>> from dataclasses import replace
>>> replace(PROFILES["idempotent"], window=3600.0, compares_bodies=False).window
3600.0
>>> PROFILES["stripe_v1"].other_body.status, PROFILES["resend"].other_body.status
(400, 409)

A service that knows keys answers one request in four layers, in the profile's ``order``. What a
layer in front of the key answers says nothing of an earlier request with the same key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from durakit.mail.checks import check_object, check_text, read_json

AUTHENTICATION: Final = "authentication"
RATE_LIMIT: Final = "rate limit"
VALIDATION: Final = "validation"
KEY: Final = "key"
LAYERS: Final = (AUTHENTICATION, RATE_LIMIT, VALIDATION, KEY)
"""Every layer in front of the work, in the order most services have them."""

REMEMBERS: Final = {
    "effect": "the mail: whoever delivered is answered with the success, whatever was said then; "
    "a failure before the mail releases the key",
    "answers": "the answer of the first execution, whatever it was, a 500 included",
    "successes": "answers that say yes; a failure releases the key, also one after the mail",
    "work": "what was done: the next request with the key does the rest and gets a new answer",
}
"""What a key can stand for once its request was executed, for a profile that dedups."""

KEY_FORMS: Final = {
    "plain": "the key as it is",
    "structured string": 'in quotes, as a String of RFC 9651: "a\\"b" is the key a"b',
}
"""How a key is written where it is carried."""

ERROR_BODIES: Final = {
    "flat": '{"statusCode": …, "name": …, "message": …}',
    "nested": '{"error": {"type": …, "code": …, "message": …}}',
    "problem": '{"type": …, "title": …, "status": …, "detail": …} (RFC 9457)',
}
"""The shapes in which services say no."""

EVIDENCE: Final = {
    "P": "the service's own text was read",
    "S": "known through a quotation that was cross-checked",
    "K": "common knowledge, not read again",
    "ours": "made for teaching; no such service exists",
}
"""How well a profile is known."""

STRUCTURED_STRING: Final = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')  # RFC 9651, 3.3.3
HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"{name}: want seconds, zero or more, got {value!r}")


@dataclass(frozen=True)
class Refusal:
    """How a service says one kind of no.

    ``status``: HTTP-like number, 400 to 599. ``name``: the stable error name that a client should
    branch on. ``type``: the class of errors it belongs to, where the service prints one; a name
    equal to the type means that there is no finer name.
    """

    status: int
    name: str
    type: str | None = None

    def __post_init__(self) -> None:
        if type(self.status) is not int or not 400 <= self.status <= 599:
            raise ValueError(f"status: want a number from 400 to 599, got {self.status!r}")
        check_text("name", self.name)
        if self.type is not None:
            check_text("type", self.type)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One service's promises. Raises ValueError that names the field which is wrong."""

    name: str
    dedups: bool = False
    """A second request with a remembered key is answered from memory and does nothing."""
    carrier: str | None = "Idempotency-Key"
    """The HTTP header in which the key comes; None: the service has no place for one."""
    smtp_carrier: str | None = None
    """The mail header in which the key comes at the SMTP door; None: there is no place for one."""
    key_form: str = "plain"
    """How the key is written there, one of ``KEY_FORMS``."""
    key_pattern: str = r"(?s:.*)"
    """A regular expression that the whole key must match."""
    max_key_length: int | None = 256
    """Characters; None: as long as the sender likes. A key has at least one."""
    window: float = 86_400.0
    """Seconds a key is remembered, counted from the first request that acted. A replay does not
    extend it. Afterwards the key is forgotten, and the same key is a new request. May be inf."""
    remembers: str = "effect"
    """What a key stands for once its request was executed, one of ``REMEMBERS``."""
    compares_bodies: bool = True
    """A remembered key with another from, to, subject or body is refused instead of replayed."""
    order: tuple[str, ...] = LAYERS
    """The four ``LAYERS``, the first to answer first. Only an answer from the key's layer has
    looked at what is remembered."""
    other_body: Refusal = Refusal(409, "invalid_idempotent_request")
    """The answer to a remembered key with another body, where bodies are compared."""
    in_progress: Refusal | None = None
    """The answer to a duplicate that comes while the first request runs. None: it waits."""
    takeover_after: float | None = None
    """Seconds after which a request in progress counts as dead and its key may be taken over by
    the next one. Needed with ``in_progress``, and only there. At most the window."""
    missing_key: Refusal | None = None
    """The answer to a request without a key. None: the key is optional."""
    bad_key: Refusal = Refusal(400, "invalid_idempotency_key")
    """The answer to a key of the wrong form, pattern or length."""
    unauthenticated: Refusal = Refusal(401, "missing_api_key")
    """The answer to a missing or unknown token."""
    rate_limited: Refusal = Refusal(429, "rate_limit_exceeded")
    """The answer of the rate limiter."""
    invalid: Refusal = Refusal(422, "validation_error")
    """The answer to a malformed mail."""
    failed: Refusal = Refusal(500, "internal_server_error")
    """The answer when the service itself fails, before its work or after."""
    replay_marker: str | None = None
    """The header, with the value ``true``, that tells a replayed answer. None: nothing tells."""
    error_body: str = "flat"
    """The shape of a refusal, one of ``ERROR_BODIES``."""
    askable: bool = False
    """``find(key)`` is offered. It searches the delivered mails, so no window limits it."""
    visible_after: float = 0.0
    """Seconds until a delivered mail shows in ``find``: until then "absent" means nothing."""
    checks_fence: bool = False
    """The highest fence of each key is remembered; a smaller one is refused (412)."""
    evidence: str = "ours"
    """How well this is known, one of ``EVIDENCE``."""
    sources: tuple[str, ...] = ()
    """Where it was read: addresses."""
    assumed: Mapping[str, str] = field(default_factory=dict)
    """Fields that the sources leave open, each with why it is what it is here."""

    def __post_init__(self) -> None:
        check_text("name", self.name)
        for name in ("dedups", "compares_bodies", "askable", "checks_fence"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name}: want true or false, got {getattr(self, name)!r}")
        for name in ("window", "visible_after"):
            _check_number(name, getattr(self, name))
        self._check_choices()
        self._check_key()
        self._check_order()
        self._check_refusals()
        self._check_takeover()
        self._check_sources()

    @property
    def uses_keys(self) -> bool:
        """Whether a key means anything here, so that a malformed one is refused."""
        return self.dedups or self.askable or self.checks_fence

    @property
    def not_remembered(self) -> tuple[str, ...]:
        """The kinds of answer after which the same key runs as if it had never been used."""
        conflicts = ("other body", "in progress") if self.dedups else ()
        failures = ("failure",) if self.dedups and self.remembers == "successes" else ()
        return (AUTHENTICATION, RATE_LIMIT, VALIDATION, *conflicts, *failures)

    def carry(self, key: str) -> str:
        """Return the key as a client writes it where it is carried."""
        if self.key_form == "plain":
            return key
        return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def read(self, carried: str) -> str | None:
        """Return the key that was carried, or None if it is not of this profile's form."""
        if self.key_form == "plain":
            return carried
        found = STRUCTURED_STRING.fullmatch(carried.strip(" "))
        return None if found is None else re.sub(r"\\(.)", r"\1", found[1])

    def what_is_wrong(self, key: str) -> str | None:
        """Say why the service refuses this key, or None if it takes it."""
        longest = math.inf if self.max_key_length is None else self.max_key_length
        if not 1 <= len(key) <= longest:
            most = "" if self.max_key_length is None else f" to {self.max_key_length}"
            return f"has {len(key)} characters, not 1{most}"
        if re.fullmatch(self.key_pattern, key) is None:
            return f"does not match {self.key_pattern}"
        return None

    def _check_choices(self) -> None:
        for name, choices in (
            ("key_form", KEY_FORMS),
            ("remembers", REMEMBERS),
            ("error_body", ERROR_BODIES),
            ("evidence", EVIDENCE),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}: {getattr(self, name)!r} is none of {', '.join(choices)}")

    def _check_key(self) -> None:
        for name in ("carrier", "smtp_carrier", "replay_marker"):
            value = getattr(self, name)
            if value is not None and not (
                isinstance(value, str) and HEADER_NAME.fullmatch(value) is not None
            ):
                raise ValueError(f"{name}: want the name of a header, got {value!r}")
        longest = self.max_key_length
        if longest is not None and (type(longest) is not int or longest < 1):
            raise ValueError(f"max_key_length: want a whole number from 1, got {longest!r}")
        check_text("key_pattern", self.key_pattern)
        try:
            re.compile(self.key_pattern)
        except re.error as error:
            raise ValueError(f"key_pattern: {error}") from error

    def _check_order(self) -> None:
        layers: object = self.order
        if not isinstance(layers, tuple) or sorted(map(str, layers)) != sorted(LAYERS):
            raise ValueError(f"order: want {', '.join(LAYERS)}, each once, got {layers!r}")
        if layers.index(AUTHENTICATION) > layers.index(KEY):
            raise ValueError("order: a key belongs to an account, so authentication comes first")

    def _check_refusals(self) -> None:
        for name in (*REFUSALS, *OPTIONAL_REFUSALS):
            value = getattr(self, name)
            if not isinstance(value, Refusal) and not (value is None and name in OPTIONAL_REFUSALS):
                raise ValueError(f"{name}: want a refusal, got {value!r}")
        if self.missing_key is not None and not self.dedups:
            raise ValueError("missing_key: only a service that dedups can insist on a key")

    def _check_takeover(self) -> None:
        if (self.takeover_after is None) != (self.in_progress is None):
            raise ValueError("takeover_after: give it with in_progress, and only there")
        if self.takeover_after is not None:
            _check_number("takeover_after", self.takeover_after)
            if self.takeover_after > self.window:
                raise ValueError("takeover_after: want at most the window")
        if self.in_progress is not None and not self.dedups:
            raise ValueError("in_progress: only a service that dedups knows of a request running")
        if self.remembers == "work" and not self.compares_bodies:
            raise ValueError("compares_bodies: work can be gone on with only for the same body")

    def _check_sources(self) -> None:
        sources: object = self.sources
        if not isinstance(sources, tuple) or not all(
            isinstance(address, str) and address.startswith("https://") for address in sources
        ):
            raise ValueError(f"sources: want addresses (https://…), got {sources!r}")
        if self.evidence != "ours" and not sources:
            raise ValueError("sources: a service that exists was read about somewhere")
        known = {entry.name for entry in fields(self)}
        for name, why in check_object("assumed", self.assumed).items():
            if name not in known or not isinstance(why, str) or not why:
                raise ValueError(f"assumed: {name!r} is no field of a profile with its reason")


OPTIONAL_REFUSALS: Final = ("in_progress", "missing_key")
REFUSALS: Final = (
    "other_body", "bad_key", "unauthenticated", "rate_limited", "invalid", "failed",
)  # fmt: skip


def load_profiles(text: str) -> dict[str, Profile]:
    """Read profiles from JSON: an object of name → fields, as ``Profile`` documents them.

    A refusal is an object of status, name and type. Raises ValueError as ``profile.field: …``.
    """
    data = check_object("profiles", read_json("profiles", text))
    return {name: _load(name, check_object(name, entry)) for name, entry in data.items()}


def _load(name: str, entry: Mapping[str, Any]) -> Profile:
    known = {part.name for part in fields(Profile)} - {"name"}
    values: dict[str, Any] = {}
    for key, value in entry.items():
        if key not in known:
            raise ValueError(f"{name}.{key}: is no field of a profile")
        values[key] = _read_field(f"{name}.{key}", key, value)
    try:
        return Profile(name=name, **values)
    except ValueError as error:
        raise ValueError(f"{name}.{error}") from error


def _read_field(place: str, key: str, value: object) -> object:
    if isinstance(value, list):
        return tuple(value)
    if key in (*REFUSALS, *OPTIONAL_REFUSALS) and isinstance(value, dict):
        try:
            return Refusal(**value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{place}: {error}") from error
    return value


PROFILES: Final = load_profiles(Path(__file__).with_name("profiles.json").read_text("utf-8"))
"""Every ready profile by name: three for teaching, then services that exist."""

"""What a mail service promises about keys: three ready profiles; make others with ``replace``.

>>> from dataclasses import replace
>>> replace(PROFILES["idempotent"], window=3600.0, compares_bodies=False).window
3600.0
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One service's promises.

    Raises ValueError, naming the field, when a number of seconds is negative or not a number.
    """

    name: str
    dedups: bool = False
    """A second request with a remembered key is answered from memory and does nothing."""
    window: float = 86_400.0
    """Seconds a key is remembered, counted from the first request that acted. A replay does not
    extend it. Afterwards the key is forgotten, and the same key is a new request. May be inf."""
    compares_bodies: bool = True
    """A remembered key with another to, subject or body is refused (409) instead of replayed."""
    askable: bool = False
    """``find(key)`` is offered. It searches the delivered mails, so no window limits it."""
    visible_after: float = 0.0
    """Seconds until a delivered mail shows in ``find``: until then "absent" means nothing."""
    checks_fence: bool = False
    """The highest fence of each key is remembered; a smaller one is refused (412)."""

    def __post_init__(self) -> None:
        for field in ("window", "visible_after"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"{field}: want seconds, zero or more, got {value!r}")

    @property
    def uses_keys(self) -> bool:
        """Whether a key means anything here, so that a malformed one is refused."""
        return self.dedups or self.askable or self.checks_fence


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(name="idempotent", dedups=True, askable=True),
        Profile(name="queryable", askable=True),
        Profile(name="opaque"),
    )
}
"""The ready profiles by name."""

"""Waits that are drawn: of one client by the runtime's own policy, and of many at once."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from durakit.errors import InvalidField
from durakit.retry import Jitter, Retry

__all__ = ["Floats", "Waits", "Whole", "draw_waits", "sample_waits", "whole"]


Floats = NDArray[np.float64]

Whole = NDArray[np.int64]


class Generator(Protocol):
    """What ``draw_waits`` needs of a random.Random."""

    def random(self) -> float:
        """Return a number uniform in [0, 1)."""
        ...


def whole(field: str, value: object, least: int) -> int:
    """``value`` as a whole number from ``least``; else InvalidField naming the field."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidField(field, f"needs a whole number from {least}, got {value!r}")
    return value


def draw_waits(policy: Retry, waits: int, rng: Generator) -> list[float]:
    """The first ``waits`` waits of one client in seconds, drawn by the runtime's ``Retry.wait``."""
    drawn: list[float] = []
    for attempt in range(1, whole("waits", waits, 0) + 1):
        drawn.append(policy.wait(attempt, rng.random(), drawn[-1] if drawn else None))
    return drawn


class Waits:
    """``Retry.wait`` for many clients at once."""

    def __init__(self, policy: Retry) -> None:
        self._policy = policy
        ends = [policy.window(attempt) for attempt in range(1, self._last_window() + 1)]
        self._low, self._high = np.array(ends).T

    def _last_window(self) -> int:
        """The first attempt whose window is at the cap: all later ones have the same."""
        attempt = 1
        while self._policy.bound(attempt) < self._policy.cap:
            attempt += 1
        return attempt

    def after(self, attempts: Whole | int, draws: Floats, previous: Floats | None) -> Floats:
        """The waits after failed attempts ``attempts`` (from 1), in seconds.

        Shapes: all alike, one element for each client; ``previous`` are the waits before, which
        only decorrelated jitter needs, and None at first. The same arithmetic in the same order
        as ``Retry.wait``, so that one draw gives one wait, to the last bit.
        """
        policy = self._policy
        if policy.jitter == Jitter.DECORRELATED:
            before = policy.initial if previous is None else previous
            widest = np.maximum(policy.initial, 3 * before)
            drawn = np.minimum(policy.cap, policy.initial + draws * (widest - policy.initial))
            return np.maximum(drawn, policy.floor)
        row = np.minimum(attempts, len(self._low)) - 1
        low = self._low[row]
        waits: Floats = low + draws * (self._high[row] - low)
        return waits


def sample_waits(policy: Retry, waits: int, samples: int, seed: int) -> Floats:
    """Waits in seconds of many clients: shape (samples, waits), any jitter, by ``seed``."""
    shape = (whole("samples", samples, 0), whole("waits", waits, 0))
    draws = np.random.default_rng(seed).random(shape)
    many = Waits(policy)
    previous: Floats | None = None
    for column in range(waits):
        previous = draws[:, column] = many.after(column + 1, draws[:, column], previous)
    return draws

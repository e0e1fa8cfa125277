"""What retrying costs: `dk.retry_call` beside a hand-written loop and tenacity, in one process.

Two cases: a call that succeeds at once, and one that fails once and is called again after a wait
of zero. Rounds of the three take turns on the same machine, and the medians are compared.
Prints one JSON line: microseconds a call for each, and how durakit stands to tenacity: for the
first case by what is added to the bare call (at most a fifth is asked for), for the second by
the whole time (at most a tenth).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable

import tenacity

import durakit as dk


class AlwaysZero(random.Random):
    """A draw of nothing, so that full jitter waits for nothing."""

    def random(self) -> float:
        """Zero."""
        return 0.0


def succeeds() -> int:
    """The work itself."""
    return 1


class FailsOnce:
    """Fails at the first of every two calls, before anything was sent."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> int:
        """Fail, or not."""
        self.calls += 1
        if self.calls % 2:
            raise ConnectionRefusedError
        return 1


POLICY = dk.Retry(0.5, 8.0, 3)
ZERO = AlwaysZero()
TENACITY = tenacity.Retrying(
    stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_none(), reraise=True
)


def by_hand(work: Callable[[], int]) -> int:
    """What one writes without a library."""
    attempt = 1
    while True:
        try:
            return work()
        except ConnectionRefusedError:
            if attempt == 3:
                raise
            attempt += 1


def by_durakit(work: Callable[[], int]) -> int:
    """The kit's own."""
    return dk.retry_call(work, retry=POLICY, rng=ZERO)


def by_tenacity(work: Callable[[], int]) -> int:
    """The library that most people know, with its waits at zero."""
    return int(TENACITY(work))


def bare(work: Callable[[], int]) -> int:
    """No retrying at all; a failure is called again, so that both cases do the same work."""
    try:
        return work()
    except ConnectionRefusedError:
        return work()


WAYS = {"bare": bare, "hand": by_hand, "durakit": by_durakit, "tenacity": by_tenacity}


def microseconds(way: Callable[[Callable[[], int]], int], work: Callable[[], int], n: int) -> float:
    """Time of one call, the mean of ``n``."""
    began = time.perf_counter()
    for _ in range(n):
        way(work)
    return (time.perf_counter() - began) / n * 1e6


def measure(make: Callable[[], Callable[[], int]], rounds: int, n: int) -> dict[str, float]:
    """The median over ``rounds`` of each way, taken in turn."""
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, way in WAYS.items():
            times[name].append(microseconds(way, make(), n))
    return {name: round(statistics.median(found), 3) for name, found in times.items()}


def main() -> None:
    """Measure both cases and print the line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--calls", type=int, default=2000, help="calls of each way in a round")
    asked = parser.parse_args()
    at_once = measure(lambda: succeeds, asked.rounds, asked.calls)
    fails_once = measure(FailsOnce, asked.rounds, asked.calls)
    added = {name: at_once[name] - at_once["bare"] for name in ("durakit", "tenacity")}
    line = {
        "succeeds at once, us": at_once,
        "fails once, us": fails_once,
        "added to a success, of tenacity's": round(added["durakit"] / added["tenacity"], 3),
        "one failure, of tenacity's time": round(fails_once["durakit"] / fails_once["tenacity"], 3),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()

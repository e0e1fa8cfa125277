"""What libraries do with a wait that does not fit before the deadline, simulated on a crowd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from durakit.deadline import ahead
from durakit.errors import InvalidField
from durakit.lab.backoff.draws import Floats, Waits, Whole, whole
from durakit.retry import Retry

__all__ = ["DEADLINE_RULES", "DeadlineRule", "deadline_policies"]


Bools = NDArray[np.bool_]

#: Bins of 50 ms that are counted at most: a month.
_MOST_BINS: Final = 60_000_000

#: Each rule, and what it does with a drawn wait that does not fit before the deadline.
DEADLINE_RULES: Final = {
    "stop": "stop at once if wait + one attempt would reach the deadline",
    "stop_noreserve": "stop at once if the wait alone would reach the deadline",
    "last_chance": "one final attempt, at a random moment that still leaves time for it",
    "clamp_reserve": "wait as long as still leaves one attempt's time",
    "clamp": "wait exactly until the deadline",
    "truncate": "draw every wait from what is left of the window before the deadline",
    "overshoot": "look at the deadline only before a wait is begun",
}


@dataclass(frozen=True)
class DeadlineRule:
    """What one rule does to a crowd; all but ``success`` in an outage without an end.

    ``attempts``: mean of each client. ``give_up``: mean moment of the end, seconds.
    ``past_deadline``: share of clients whose last attempt ends after the deadline.
    ``busiest``: the largest share of clients that start in one 50 ms bin later than 2 s.
    ``success``: share that succeeds if the outage ends at a moment uniform in (0, deadline) and
    an attempt counts if it starts after that and ends by the deadline (overshoot: whenever).
    ``attempts_deviation`` and ``give_up_deviation``: standard deviations over clients.
    """

    rule: str
    attempts: float
    give_up: float
    past_deadline: float
    busiest: float
    success: float
    attempts_deviation: float
    give_up_deviation: float


def deadline_policies(
    policy: Retry = Retry(0.5, 8.0, 64),  # noqa: B008 - frozen
    deadline: float = 10.0,
    attempt_seconds: float = 0.2,
    *,
    clients: int = 200_000,
    seed: int = 0,
    rules: Sequence[str] = tuple(DEADLINE_RULES),
) -> tuple[DeadlineRule, ...]:
    """Simulate what libraries do with a wait that does not fit, one row for each rule.

    Every client starts at 0, attempts take ``attempt_seconds`` and fail; an attempt still under
    way at the deadline is cut off there, except with 'overshoot'. ``policy.attempts`` holds (64
    is no limit here). Rules and numbers: the module's reference table, data/README.md.
    Raises InvalidField for an unknown rule and for numbers out of range.
    """
    whole("clients", clients, 1)
    ahead("deadline", deadline)
    ahead("attempt_seconds", attempt_seconds)
    for rule in rules:
        if rule not in DEADLINE_RULES:
            raise InvalidField("rules", f"one of {', '.join(DEADLINE_RULES)}; got {rule!r}")
    return tuple(
        _Outage(policy, deadline, attempt_seconds, rule, clients).play(np.random.default_rng(seed))
        for rule in rules
    )


class _Outage:
    """One rule's clients against a service that never answers."""

    #: Width of a bin, and the moment from which bins are looked at, in seconds.
    BIN: Final = 0.05
    FROM: Final = 2.0

    def __init__(
        self, policy: Retry, deadline: float, attempt_seconds: float, rule: str, clients: int
    ) -> None:
        self._policy, self._rule = policy, rule
        self._deadline, self._attempt = deadline, attempt_seconds
        self._reserve = max(policy.reserve, attempt_seconds)
        self._made = np.ones(clients)
        self._ended = self._end(np.zeros(clients))
        # The last start so far at which an attempt could still succeed.
        self._useful = np.zeros(clients)
        longest = deadline + max(policy.cap + 1.0, policy.floor)
        if longest / self.BIN > _MOST_BINS:
            raise InvalidField("deadline", f"with the longest wait it is too far away: {longest} s")
        self._bins = np.zeros(int(longest / self.BIN) + 2, dtype=np.int64)

    def play(self, rng: np.random.Generator) -> DeadlineRule:
        """Let every client retry until its rule or its policy ends it."""
        waits, going = Waits(self._policy), np.arange(len(self._made))
        previous: Floats | None = None
        for attempt in range(1, self._policy.attempts):
            wanted = waits.after(attempt, rng.random(len(going)), previous)
            starts, goes, last = self._starts(attempt, going, wanted, rng.random(len(going)))
            self._start(going[goes], starts[goes])
            again = goes & ~last
            going, previous = going[again], wanted[again]
            if not len(going):
                break
        return self._row()

    def _starts(
        self, attempt: int, going: Whole, wanted: Floats, draws: Floats
    ) -> tuple[Floats, Bools, Bools]:
        """When the next attempts start, which of them are made, and which of those are the last."""
        now = self._ended[going]
        left = self._deadline - now
        room = left - self._reserve
        starts, never = now + wanted, np.zeros(len(going), dtype=np.bool_)
        match self._rule:
            case "stop":
                return starts, wanted < room, never
            case "stop_noreserve":
                return starts, wanted < left, never
            case "last_chance":
                fits = wanted < room
                floor = self._policy.floor
                chance = now + floor + draws * (room - floor)
                return np.where(fits, starts, chance), room > floor, ~fits
            case "clamp_reserve":
                latest = self._deadline - self._reserve
                return np.where(wanted < room, starts, latest), room > 0, never
            case "clamp":
                return np.where(wanted < left, starts, self._deadline), left > 0, never
            case "truncate":
                window = np.minimum(self._policy.bound(attempt), room)
                return now + draws * window, room > 0, never
            case _:
                return starts, left > 0, never

    def _start(self, clients: Whole, starts: Floats) -> None:
        self._made[clients] += 1
        self._ended[clients] = self._end(starts)
        in_time = starts <= self._deadline - self._attempt
        if self._rule == "overshoot":
            in_time[:] = True
        self._useful[clients[in_time]] = np.minimum(starts[in_time], self._deadline)
        late = starts[starts > self.FROM]
        self._bins += np.bincount((late / self.BIN).astype(np.int64), minlength=len(self._bins))

    def _end(self, starts: Floats) -> Floats:
        """When attempts end that begin at ``starts``; all but one rule cut them off."""
        ends: Floats = starts + self._attempt
        return ends if self._rule == "overshoot" else np.minimum(ends, self._deadline)

    def _row(self) -> DeadlineRule:
        made, ended = self._made, self._ended
        return DeadlineRule(
            rule=self._rule,
            attempts=float(made.mean()),
            give_up=float(ended.mean()),
            past_deadline=float((ended > self._deadline).mean()),
            busiest=float(self._bins.max() / len(made)),
            # The outage ends before the last useful start: of (0, deadline) that is this share.
            success=float(self._useful.mean() / self._deadline),
            attempts_deviation=float(made.std()),
            give_up_deviation=float(ended.std()),
        )

"""Lesson 05, backoff against the deadline: what would clutter its cells, and its two checkers."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from durakit.clock import ManualClock
from durakit.lab.answers import has_dots
from durakit.lab.backoff.client import in_percent
from durakit.lab.backoff.explorers import BackoffExplorer
from durakit.lab.backoff.herd import NO_BACKOFF, Crowd, contend, rush
from durakit.lab.backoff.jitter import exceeds, exceeds_one, expected_attempts, moments
from durakit.lab.backoff.plots import plot_crowd, plot_policies
from durakit.lab.backoff.rules import DeadlineRule, deadline_policies
from durakit.lab.exercises import (
    Exercise,
    Finding,
    LearnerError,
    Row,
    Table,
    one_line,
    right,
    theirs,
    todo,
    wrong,
)
from durakit.lab.frame import COUNT, SECONDS, Choice, Frame, Number
from durakit.lab.html import kind_of
from durakit.lab.worlds import customers, new_mailbox
from durakit.mail import Fault, Mailbox
from durakit.retry import Retry
from durakit.retrying import retry_call
from durakit.run import Run
from durakit.runtime import Runtime

__all__ = [
    "BackoffExplorer",
    "Busy",
    "busy_service",
    "choose_policy",
    "comes_back",
    "contest",
    "customers",
    "drawn",
    "end",
    "frame",
    "games_of",
    "hundred_calls",
    "plot_crowd",
    "plot_policies",
    "predict",
    "recall",
    "rules",
    "start",
    "stop_rule",
    "waits",
]


# -- what the cells use ----------------------------------------------------------------------------


def busy_service(
    folder: Path, refusals: int = 3, *, retry_after: float | None = None, seed: int = 5
) -> tuple[Mailbox, Runtime]:
    """Return a mail service that answers its first requests with 429, and a runtime on its clock.

    ``refusals``: how many. ``retry_after``: seconds that it asks for with each; None says nothing.
    ``seed``: of the generator that the runtime draws its waits from.
    """
    plan = tuple(
        Fault("rate_limited", request=number, retry_after=retry_after)
        for number in range(1, refusals + 1)
    )
    mailbox = new_mailbox(folder, "idempotent", plan)
    assert mailbox.folder is not None
    runtime = Runtime(
        mailbox.folder.with_name(f"{mailbox.folder.name}.db"),
        clock=cast("ManualClock", mailbox.clock), world=mailbox, owner="lesson",
        rng=random.Random(seed),  # noqa: S311 - no secret
    )  # fmt: skip
    return mailbox, runtime


class Busy(Exception):
    """A service's own error: 429, with a Retry-After header as the service wrote it."""

    status = 429

    def __init__(self, header: str) -> None:
        super().__init__("429 too many requests")
        self.headers = {"Retry-After": header}


def waits(run: Run) -> Table:
    """Return the failed attempts of a run and the wait after each, out of its journal."""
    history = run.history()
    began = history["time"].iloc[0]
    rows: list[Row] = []
    for at, (_, entry) in enumerate(history.iterrows(), 1):
        payload: dict[str, Any] = entry["payload"]
        if "judged" not in payload:
            continue
        later = history.iloc[at:]
        sent = later.loc[later["kind"] == "intent", "time"]
        then = payload.get("then", {})
        rows.append(
            {
                "life": entry["incarnation"],
                "attempt": entry["attempt"],
                "failed at": f"{(entry['time'] - began).total_seconds():.3f} s",
                "because": payload["because"],
                "bound": f"{then['bound']:.3f} s" if "bound" in then else "-",
                "wait": _waited(payload, then),
                "next at": "-" if sent.empty else f"{(sent.iloc[0] - began).total_seconds():.3f} s",
            }
        )
    return Table("FAILED ATTEMPTS, and the wait that was drawn after each", rows)


def _waited(payload: dict[str, Any], then: dict[str, Any]) -> str:
    """Say how long was waited, or why not; a wait that was drawn and did not fit is told."""
    if "seconds" in then:
        return f"{then['seconds']:.3f} s"
    unfit = f" (would be {then['drawn']:.3f} s)" if "drawn" in then else ""
    return f"none: {payload['why']}{unfit}"


def drawn(run: Run) -> list[float]:
    """Return the drawn waits of a run in seconds, rounded to a millisecond."""
    told = [str(row["wait"]) for row in waits(run).rows]
    return [float(wait.split()[0]) for wait in told if not wait.startswith("none")]


#: Clients in the simulation of deadline rules, and in the rush.
_CLIENTS: Final = 20_000
_CROWD: Final = 1000


def rules() -> tuple[DeadlineRule, ...]:
    """Return what 20,000 clients do under each rule for a wait that does not fit."""
    named = ("stop", "last_chance", "clamp_reserve", "clamp", "truncate", "overshoot")
    return deadline_policies(clients=_CLIENTS, rules=named)


def comes_back(jitter: str) -> Crowd:
    """Return how 1,000 clients come back after an outage of 2 s, each with a deadline of 10 s."""
    policy = Retry(0.5, 8.0, 12, jitter=jitter)
    return rush(_CROWD, policy, capacity=200, seconds_down=2.0, deadline=10.0, seed=1)


def contest(clients: int = 100, games: int = 20) -> Table:
    """Return what it costs until ``clients`` writers of one row have all written, by backoff.

    Means of so many games. The model is that of AWS's own simulator: a writer reads, then writes;
    the write fails if somebody else was quicker. First window 10 ms, cap 2 s.
    """
    policies = [("no backoff at all", NO_BACKOFF)]
    policies += [
        (f"{'no' if jitter == 'none' else jitter} jitter", _aws(jitter))
        for jitter in ("none", "equal", "full", "decorrelated")
    ]
    rows: list[Row] = []
    for name, policy in policies:
        calls, seconds = games_of(clients, policy, games)
        rows.append(
            {"backoff": name, "calls": f"{calls:.0f}", "all done after": f"{seconds:.1f} s"}
        )
    return Table(f"{clients} WRITERS OF ONE ROW, means of {games} games", rows)


def _aws(jitter: str) -> Retry:
    return Retry(0.005, 2.0, jitter=jitter, first_window=0.010)


def games_of(clients: int, policy: Retry, games: int = 20) -> tuple[float, float]:
    """Return mean calls and mean seconds of so many games."""
    played = [contend(clients, policy, seed=seed) for seed in range(games)]
    return (
        float(np.mean([crowd.calls for crowd in played])),
        float(np.mean([crowd.seconds for crowd in played])),
    )


def hundred_calls(policy: Retry) -> int:
    """Make 100 calls to a service that is down; return how many requests reach it."""
    requests = 0

    def ask() -> None:
        nonlocal requests
        requests += 1
        raise ConnectionRefusedError

    for _ in range(100):
        with contextlib.suppress(ConnectionRefusedError):
            retry_call(ask, retry=policy, effect="none", clock=ManualClock())
    return requests


# -- exercise 1: the stop rule ---------------------------------------------------------------------

#: What is asked for: initial, cap, attempt, draw, remaining, retry_after → seconds, or None.
NextWait = Callable[..., Any]

_FAR: Final = 1e9


def check_stop_rule(next_wait: object) -> Finding:
    """Check a function that says how long to wait, at its boundaries and against the exact law."""
    if not callable(next_wait):
        return wrong(
            f"Hand over your function by its name, without brackets. This is {kind_of(next_wait)}."
        )
    if has_dots(next_wait):
        return todo("Put the window's bound and the wait in the place of the three dots.")
    return (
        _first_window(next_wait)
        or _later_windows(next_wait)
        or _deadline(next_wait)
        or _floor(next_wait)
        or _long_series(next_wait)
        or _against_the_law(next_wait)
    )


def _ask(
    next_wait: NextWait,
    attempt: int,
    draw: float,
    remaining: float = _FAR,
    retry_after: float | None = None,
    *,
    initial: float = 1.0,
    cap: float = 8.0,
) -> Any:
    return theirs(next_wait, initial, cap, attempt, draw, remaining, retry_after)


def _is(value: object, expected: float) -> bool:
    number = isinstance(value, int | float | np.floating) and not isinstance(value, bool)
    return number and math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-12)  # type: ignore[arg-type]


def _all_are(values: Sequence[object], expected: Sequence[float]) -> bool:
    return all(_is(value, number) for value, number in zip(values, expected, strict=True))


_DRAWS: Final = (0.0, 0.25, 0.5, 0.75)


def _first_window(next_wait: NextWait) -> Finding | None:
    """The wait after the first attempt, far from any deadline: Uniform(0, initial)."""
    got = [_ask(next_wait, 1, draw) for draw in _DRAWS]
    if _all_are(got, _DRAWS):
        return None
    if got != [_ask(next_wait, 1, draw) for draw in _DRAWS]:
        return wrong(
            "Asked twice for the same, it answers two things: it draws by itself. Use `draw`, "
            "which was drawn for you; a function that only computes can be tested."
        )
    if None in got:
        return wrong("A year is left, the window is 1 s, and your function stops (None).")
    if _all_are(got, [1.0] * 4):
        return wrong(
            "Every draw gives 1 s: that is the bound itself. All clients would come back together."
        )
    if _all_are(got, [2 * draw for draw in _DRAWS]):
        return wrong(
            "After attempt 1 the window is already 2 s wide. The first window is `initial` itself: "
            "the exponent is attempt - 1. (AWS's own simulator starts where yours does.)"
        )
    if _all_are(got, [0.5 + draw / 2 for draw in _DRAWS]):
        return wrong("That is equal jitter, Uniform(v/2, v). Asked for is full jitter: from 0.")
    shown = ", ".join(one_line(value, 20) for value in got)
    return wrong(
        f"After attempt 1, with initial = 1 and draws 0, 0.25, 0.5 and 0.75, the waits are 0, "
        f"0.25, 0.5 and 0.75 s. Yours are {shown}."
    )


def _later_windows(next_wait: NextWait) -> Finding | None:
    """Doubling, and the cap on the window and not on the wait."""
    third = _ask(next_wait, 3, 0.5)
    if not _is(third, 2.0):
        return wrong(
            "After attempt 3 the window is 1 · 2² = 4 s wide, so a draw of 0.5 waits 2 s. Yours "
            f"waits {one_line(third, 30)}: does the window double each time?"
        )
    sixth = _ask(next_wait, 6, 0.5)
    if _is(sixth, 16.0):
        return wrong("After attempt 6 the window would be 32 s wide. The cap of 8 s is missing.")
    if _is(sixth, 8.0):
        return wrong(
            "The cap cuts your drawn wait, and not the window: three of four draws after attempt 6 "
            "would wait exactly 8 s, together. First min, then draw."
        )
    if not _is(sixth, 4.0):
        return wrong(
            "After attempt 6 the window is capped at 8 s, so a draw of 0.5 waits 4 s. Yours waits "
            f"{one_line(sixth, 30)}."
        )
    return None


def _deadline(next_wait: NextWait) -> Finding | None:
    """No wait is begun that would reach the deadline: sample, then stop."""
    over = _ask(next_wait, 3, 0.75, 2.0)
    if _is(over, 2.0):
        return wrong(
            "2 s are left and 3 s were drawn: yours waits the 2 s that are left. That is clamping, "
            "and it brings everybody back at the deadline. Return None."
        )
    if _is(over, 3.0):
        return wrong("2 s are left, and yours waits 3 s: past the deadline. Return None.")
    if _is(over, 0.0):
        return wrong("2 s are left and 3 s were drawn. 0 means 'at once'; stop means None.")
    if over is not None:
        return wrong(f"2 s are left and 3 s were drawn. Yours says {one_line(over, 30)}, not None.")
    if _ask(next_wait, 3, 0.125, 2.0) is None:
        return wrong(
            "2 s are left and only 0.5 s were drawn: there is time. Yours stops because the window "
            "(4 s) does not fit. Look at the wait that was drawn."
        )
    if _ask(next_wait, 3, 0.5, 2.0) is not None:
        return wrong(
            "A wait of 2 s with 2 s left ends exactly at the deadline, and no time is left for the "
            "attempt. Stop where the wait *reaches* the deadline too: `>=`."
        )
    return None


def _floor(next_wait: NextWait) -> Finding | None:
    """What the service asks for is a floor, and it comes before the deadline."""
    low = _ask(next_wait, 1, 0.5, _FAR, 5.0)
    if _is(low, 0.5):
        return wrong("The service said Retry-After: 5, and yours comes back after 0.5 s.")
    if _is(low, 5.5):
        return wrong("Retry-After: 5 is a floor, max(wait, 5). Yours adds the two.")
    if not _is(low, 5.0):
        return wrong(f"Drawn 0.5 s, Retry-After: 5. Yours says {one_line(low, 30)}, not 5.")
    high = _ask(next_wait, 3, 0.75, _FAR, 1.0)
    if _is(high, 1.0):
        return wrong(
            "Drawn 3 s, Retry-After: 1, and yours waits 1 s: all who were refused at that moment "
            "come back together. It is a floor under the drawn wait, and does not replace it."
        )
    if not _is(high, 3.0):
        return wrong(f"Drawn 3 s, Retry-After: 1. Yours says {one_line(high, 30)}, not 3.")
    if _ask(next_wait, 1, 0.5, 2.0, 5.0) is not None:
        return wrong(
            "2 s are left and the service asks for 5: yours goes on. Put the floor under the wait "
            "first, and look at the deadline then."
        )
    return None


def _long_series(next_wait: NextWait) -> Finding | None:
    """A number of attempts at which 2 ** n is no float any more."""
    try:
        late = _ask(next_wait, 5000, 0.5)
    except LearnerError as raised:
        if not isinstance(raised.error, OverflowError):
            raise
        return wrong(
            "After attempt 5000 it raises OverflowError: 2 ** 4999 fits into no float. A client "
            "that retries for days would die of its own backoff. Cut the exponent."
        )
    if not _is(late, 4.0):
        return wrong(f"After attempt 5000 a draw of 0.5 waits 4 s; yours {one_line(late, 30)}.")
    return None


#: Remaining seconds and attempt at which the share that stops is compared with the exact law.
_LAW: Final = ((1, 0.25), (3, 1.0), (4, 6.0), (9, 2.0))
_EVEN: Final = 1000


def _against_the_law(next_wait: NextWait) -> Finding:
    """Of a thousand even draws just as many stop as the exact probability says."""
    policy = Retry(1.0, 8.0)
    rows: list[Row] = []
    for attempt, remaining in _LAW:
        answers = [_ask(next_wait, attempt, n / _EVEN, remaining) for n in range(_EVEN)]
        stopped = sum(answer is None for answer in answers)
        exact = exceeds_one(policy, attempt, remaining)
        rows.append(
            {
                "attempt": attempt, "time left": f"{remaining:g} s",
                "stopped": f"{stopped} of {_EVEN}", "exact": str(exact),
            }
        )  # fmt: skip
        if Fraction(stopped, _EVEN) != exact:
            return wrong(
                f"After attempt {attempt} with {remaining:g} s left, {stopped} of {_EVEN} even "
                f"draws stop. The law says {exact}.",
                table=Table("Your function against the exact law", rows),
            )
    return right(
        "Windows, cap, deadline, floor and 5000 attempts: all as they must be.",
        f"And of {_EVEN} even draws just as many stop as the exact law says.",
        table=Table("Your function against the exact law", rows),
    )


STOP_HINTS: Final = (
    "The order is: window, draw, floor, deadline. Write one line for each.",
    "bound = min(cap, initial * 2 ** (attempt - 1)), and the wait is draw * bound.",
    "If retry_after is not None: wait = max(wait, retry_after). Only then look at the deadline.",
    "At the end: return None if wait >= remaining else wait. The exponent: min(attempt - 1, 60).",
)

stop_rule = Exercise("05.7", "wait, or stop", check_stop_rule, STOP_HINTS)


# -- exercise 2: a policy for a deadline -----------------------------------------------------------

_DEADLINE: Final = 10.0
_MOST_STOPPED: Final = Fraction(5, 100)
_LEAST_ATTEMPTS: Final = Fraction(6)
_LEAST_PATIENCE: Final = Fraction(6)


def check_policy(policy: object) -> Finding:
    """Check a policy against three numbers that are computed exactly, as fractions."""
    if policy is ...:
        return todo("Put a dk.Retry(…) in the place of the three dots.")
    if not isinstance(policy, Retry):
        return wrong(f"Hand over a policy, dk.Retry(…). This is {kind_of(policy)}.")
    if policy.jitter == "none":
        return wrong(
            "Without jitter every client waits the same, and they all come back together. Choose a "
            "jitter."
        )
    if policy.jitter == "decorrelated":
        return wrong(
            "For decorrelated jitter nobody has a formula, so nothing can be promised exactly. "
            "Choose full or equal."
        )
    if policy.attempts > _MOST_ATTEMPTS:
        return wrong(
            f"{policy.attempts} attempts for one mail: a thousand clients would send "
            f"{1000 * policy.attempts:,} requests. Stay within {_MOST_ATTEMPTS}."
        )
    return _weighed(policy)


_MOST_ATTEMPTS: Final = 10


def _weighed(policy: Retry) -> Finding:
    many = policy.attempts - 1
    stopped = exceeds(policy, many, _DEADLINE)
    attempts = expected_attempts(policy, _DEADLINE)
    patience = moments(policy, many).mean
    checks = [
        ("stopped by the deadline", in_percent(stopped), "at most 5 %", stopped <= _MOST_STOPPED),
        ("mean attempts", f"{float(attempts):.2f}", "at least 6", attempts >= _LEAST_ATTEMPTS),
        ("mean of all waits", f"{float(patience):.2f} s", "at least 6 s",
         patience >= _LEAST_PATIENCE),
    ]  # fmt: skip
    rows: list[Row] = [
        {"what": what, "yours": yours, "asked": asked, "": "✓" if good else "✗"}
        for what, yours, asked, good in checks
    ]
    table = Table("Your policy, computed exactly", rows)
    if stopped > _MOST_STOPPED:
        return wrong(
            f"{in_percent(stopped)} of all runs would be stopped by the deadline before their last "
            "attempt. The waits are too long for 10 s.",
            table=table,
        )
    if attempts < _LEAST_ATTEMPTS:
        return wrong(
            f"On average only {float(attempts):.2f} attempts are made: too few chances.",
            table=table,
        )
    if patience < _LEAST_PATIENCE:
        return wrong(
            f"It gives up after {float(patience):.2f} s of waiting on average, and the service is "
            "usually back after 6. Attempts in quick succession are a hammer, and no patience.",
            table=table,
        )
    return right(
        f"{policy.attempts} attempts, {float(patience):.2f} s of patience, and the deadline stops "
        f"{in_percent(stopped)} of the runs.",
        table=table,
    )


POLICY_HINTS: Final = (
    "With full jitter the mean of all waits is half of the sum of their bounds.",
    "So the bounds must add up to 12 s or more, and the deadline is 10. More waits spread less.",
    "A low cap keeps the late waits short. Try the explorer with a cap of about 3.",
    "Seven attempts have six waits: bounds 0.5, 1, 2, 3, 3 and 3 add up to 12.5 s.",
)

choose_policy = Exercise("05.8", "ten seconds, one policy", check_policy, POLICY_HINTS)

frame = Frame(
    "05",
    asks=(
        SECONDS,
        SECONDS,
        Choice("before", "at", "after"),
        Number(most=100, whole=False),
        COUNT,
        COUNT,
    ),
    exercises=(stop_rule, choose_policy),
)
start, predict, recall, end = frame.start, frame.predict, frame.recall, frame.end

"""Many clients that retry against one service: what backoff and jitter do to a crowd.

``contend``: optimistic writers of one row, the model of AWS's own backoff simulator.
``rush``: one overloaded service that serves so many requests per second and refuses the rest.

How it is computed. As long as a client is refused, its next request depends on its own draws and
on nobody else: so its requests are drawn ahead, for all clients at once, *as if each were
refused*. Only whether a request is served depends on the others; that is decided one request
after the other, in the order of their arrival. What was drawn for a client beyond the request
that was served is dropped: it never happened. Both together go forward in blocks of virtual
time, so that memory holds one block and the arrivals, never all that is to come.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from durakit.deadline import ahead
from durakit.errors import InvalidField
from durakit.lab.backoff.draws import Waits, whole
from durakit.retry import Retry

__all__ = ["MOST_CALLS", "NO_BACKOFF", "Crowd", "contend", "rush"]

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

#: No backoff at all: a wait of a nanosecond, the same for every client.
NO_BACKOFF: Final = Retry(1e-9, 1e-9, jitter="none")

#: A crowd that makes more requests than that is given up: its arrivals alone are 80 MB.
MOST_CALLS: Final = 10_000_000

#: Up to so many clients, a block holds at least one request of each.
_WHOLE_CROWD: Final = 4096


@dataclass(frozen=True)
class Crowd:
    """What happened to a crowd of clients. Times are virtual seconds from the start.

    ``calls``: requests that the service had to decide on; ``failures``: how many it refused;
    ``served`` and ``gave_up``: clients, by how they ended; ``seconds``: when the last of them
    ended; ``waits``: how many waits were begun; ``arrivals``: when each call reached the
    service, sorted, shape (calls,), read-only.
    """

    clients: int
    policy: Retry
    calls: int
    failures: int
    served: int
    gave_up: int
    waits: int
    seconds: float
    arrivals: Floats = field(repr=False, compare=False)

    def peak(self, width: float) -> int:
        """The largest number of calls in one bin of ``width`` seconds, bins starting at 0."""
        bins = (self.arrivals / ahead("width", width)).astype(np.int64)
        return int(np.unique(bins, return_counts=True)[1].max(initial=0))


class _Clients(Protocol):
    """A crowd whose requests can be drawn ahead."""

    #: When each client's next request arrives; inf for one that makes no more.
    arrives: Floats
    #: The moment from which the client knows the service's state, where the judge asks for it.
    knew: Floats

    def refuse(self, clients: Whole) -> None:
        """Draw the next request of ``clients``, as if their present one were refused."""
        ...


#: From requests in order of arrival (moment, what the client knew, client) to the served ones.
_Judge = Callable[[Iterable[tuple[float, float, int]]], list[tuple[int, float]]]


def _play(crowd: _Clients, judge: _Judge) -> tuple[Floats, Floats]:
    """Let the crowd run until no client has a request left.

    Returns the arrivals of all requests that happened, sorted, and for each client the moment
    at which its request was served, inf where it never was.
    """
    served = np.full(len(crowd.arrives), np.inf)
    blocks: list[Floats] = []
    calls = 0
    while len(alive := np.flatnonzero(crowd.arrives < np.inf)):
        moments, knew, clients = _block(crowd, alive)
        for client, moment in judge(
            zip(moments.tolist(), knew.tolist(), clients.tolist(), strict=True)
        ):
            served[client] = moment
            crowd.arrives[client] = np.inf
        happened = moments[moments <= served[clients]]
        blocks.append(happened)
        calls += len(happened)
        _at_most_calls(calls, len(served))
    return np.concatenate([np.empty(0), *blocks]), served


def _block(crowd: _Clients, alive: Whole) -> tuple[Floats, Floats, Whole]:
    """All requests up to some moment, in order of arrival, drawn as if each were refused.

    A quarter of the clients that are left have a request before that moment: few enough that
    little is drawn in vain for clients that are served meanwhile.
    """
    arrives = crowd.arrives[alive]
    share = len(alive) - 1 if len(alive) <= _WHOLE_CROWD else len(alive) // 4
    end = np.partition(arrives, share)[share]
    moments, knew, who = [], [], []
    going, drawn = alive[arrives <= end], 0
    while len(going):
        drawn += len(going)
        _at_most_calls(drawn, len(crowd.arrives))
        moments.append(crowd.arrives[going])
        knew.append(crowd.knew[going])
        who.append(going)
        crowd.refuse(going)
        going = going[crowd.arrives[going] <= end]
    order = np.argsort(np.concatenate(moments), kind="stable")
    return (
        np.concatenate(moments)[order],
        np.concatenate(knew)[order],
        np.concatenate(who)[order],
    )


def _crowd(clients: int) -> int:
    _at_most_calls(whole("clients", clients, 1), clients)
    return clients


def _at_most_calls(calls: int, clients: int) -> None:
    if calls > MOST_CALLS:
        raise InvalidField(
            "clients",
            f"{clients} clients under this policy make more than {MOST_CALLS} calls; "
            "let the policy's cap grow with the crowd",
        )


def _not_negative(name: str, value: float) -> float:
    return 0.0 if value == 0 and not isinstance(value, bool) else ahead(name, value)


# --- one row, optimistic versions -----------------------------------------------------------


class _Writers:
    """Clients that read a row's version, and write with the version they read.

    ``arrives``: when the write arrives; ``knew``: when the read before it was at the service.
    """

    def __init__(
        self, clients: int, policy: Retry, leg: float, spread: float, rng: np.random.Generator
    ) -> None:
        self._leg, self._spread, self._rng = leg, spread, rng
        self._waits = Waits(policy)
        self._failed = np.zeros(clients, dtype=np.int64)
        self._previous = np.full(clients, policy.initial)
        self.knew = self.legs(clients)
        self.arrives = self.knew + self.legs(clients) + self.legs(clients)

    def legs(self, number: int) -> Floats:
        """Ways between a client and the service, in seconds: |Normal(leg, spread)|."""
        ways: Floats = np.abs(self._rng.normal(self._leg, self._spread, number))
        return ways

    def refuse(self, clients: Whole) -> None:
        """Answer, wait, read and answer again, write."""
        number = len(clients)
        self._failed[clients] += 1
        waits = self._waits.after(
            self._failed[clients], self._rng.random(number), self._previous[clients]
        )
        self._previous[clients] = waits
        self.knew[clients] = self.arrives[clients] + self.legs(number) + waits + self.legs(number)
        self.arrives[clients] = self.knew[clients] + self.legs(number) + self.legs(number)


class _Row:
    """One row with a version: a write is accepted if nobody's was since its reader's read."""

    def __init__(self) -> None:
        self._written = -math.inf

    def judge(self, writes: Iterable[tuple[float, float, int]]) -> list[tuple[int, float]]:
        """The accepted writes, as (client, moment). Of one instant, a read comes before a write."""
        written, done = self._written, set[int]()
        accepted = []
        for moment, read, client in writes:
            if read > written and client not in done:
                written = moment
                done.add(client)
                accepted.append((client, moment))
        self._written = written
        return accepted


def contend(
    clients: int, policy: Retry, *, leg: float = 0.010, spread: float = 0.002, seed: int = 0
) -> Crowd:
    """Let ``clients`` update one row once each, with optimistic versions, all starting at 0.

    The model of https://github.com/aws-samples/aws-arch-backoff-simulator (Brooker, 2015): read
    (``leg`` there, ``leg`` back), write with the version that was read (there and back); if
    another write came between, wait as ``policy`` says and read again. A leg is
    |Normal(leg, spread)| seconds. Clients go on until they succeed: ``policy.attempts``,
    ``reserve`` and ``budget`` are not looked at. ``calls`` and ``arrivals`` are the writes, as
    upstream counts them. Upstream's base of 5 ms and cap of 2 s, its attempt counter being 1 at
    the first backoff, are ``Retry(0.005, 2.0, first_window=0.010)``; without backoff: NO_BACKOFF.

    The row accepts at most about one write for each gap between a read and its write, 2 legs,
    however large the crowd is. So under a fixed cap the time grows with N, and with it the number
    of calls that each of the others makes: N^2 in all. Measured with a cap of 2 s and full
    jitter: 796 calls for 100 clients, 17,000 for 1,000, 850,000 for 10,000 and 66 million, more
    than MOST_CALLS, for 100,000. A cap that grows with the crowd, N * 2 legs = 2,000 s, leaves
    1.9 million: 19 for each client, hardly more than the doublings it takes to reach such a cap.

    Raises InvalidField for numbers out of range, and for more than MOST_CALLS calls.
    """
    rng = np.random.default_rng(seed)
    writers = _Writers(
        _crowd(clients),
        policy,
        ahead("leg", leg),
        _not_negative("spread", spread),
        rng,
    )
    arrivals, accepted = _play(writers, _Row().judge)
    arrivals.flags.writeable = False
    return Crowd(
        clients=clients,
        policy=policy,
        calls=len(arrivals),
        failures=len(arrivals) - clients,
        served=clients,
        gave_up=0,
        waits=len(arrivals) - clients,
        seconds=float((accepted + writers.legs(clients)).max()),
        arrivals=arrivals,
    )


# --- one overloaded service -----------------------------------------------------------------


class _Callers:
    """Clients whose first attempt failed at 0, and that retry until they may no more.

    ``arrives``: when the request arrives. ``knew`` is not asked for.
    """

    def __init__(
        self, clients: int, policy: Retry, deadline: float, latency: float, rng: np.random.Generator
    ) -> None:
        self._policy, self._deadline, self._latency, self._rng = policy, deadline, latency, rng
        self._waits = Waits(policy)
        self._failed = np.zeros(clients, dtype=np.int64)
        self._previous = np.full(clients, policy.initial)
        # As if an attempt had been refused whose answer came at 0.
        self.arrives = np.full(clients, -latency)
        self.knew = np.zeros(clients)
        self.ended = np.zeros(clients)
        self.refuse(np.arange(clients))

    def refuse(self, clients: Whole) -> None:
        """Get the answer; wait and call again, or give up."""
        answered = self.arrives[clients] + self._latency
        self.ended[clients] = answered
        self._failed[clients] += 1
        failed = self._failed[clients]
        waits = self._waits.after(failed, self._rng.random(len(clients)), self._previous[clients])
        self._previous[clients] = waits
        left = self._deadline - answered
        goes = (failed < self._policy.attempts) & (waits + self._policy.reserve < left)
        self.arrives[clients] = np.where(goes, answered + waits + self._latency, np.inf)


class _Service:
    """Room for ``capacity`` requests a second, in slots of ``slot`` seconds; the rest is refused.

    Slot k has room for floor((k + 1) * r) - floor(k * r) requests, r = capacity * slot: so every
    second has its capacity, also where r is no whole number. First come, first served, and what
    a slot does not use is lost.
    """

    def __init__(self, capacity: float, seconds_down: float, slot: float) -> None:
        self._in_a_slot, self._down, self._width = capacity * slot, seconds_down, slot
        self._slot, self._room = -1, 0

    def _room_of(self, slot: int) -> int:
        # A millionth more: ten slots of 0.1 s are a second, also in binary fractions.
        before, after = (math.floor(k * self._in_a_slot + 1e-6) for k in (slot, slot + 1))
        return after - before

    def judge(self, requests: Iterable[tuple[float, float, int]]) -> list[tuple[int, float]]:
        """The requests that are served, as (client, moment)."""
        slot, room, done = self._slot, self._room, set[int]()
        served = []
        for moment, _, client in requests:
            if moment < self._down or client in done:
                continue
            if (now := int(moment / self._width)) != slot:
                slot, room = now, self._room_of(now)
            if room > 0:
                room -= 1
                done.add(client)
                served.append((client, moment))
        self._slot, self._room = slot, room
        return served


def rush(
    clients: int,
    policy: Retry,
    *,
    capacity: float,
    seconds_down: float = 0.0,
    deadline: float | None = None,
    latency: float = 0.010,
    slot: float = 0.1,
    seed: int = 0,
) -> Crowd:
    """Let ``clients``, whose first attempts have all failed at 0, come back to one service.

    The service serves at most ``capacity`` requests per second, in slots of ``slot`` seconds, and
    refuses the others at once; before ``seconds_down`` it refuses all. A request takes
    ``latency`` seconds to arrive, and so does its answer. A client retries as ``policy`` says,
    ``attempts`` in all, and stops at once where a wait and the policy's reserve would reach
    ``deadline`` (None: there is none). ``policy.last_chance`` and ``budget`` are not looked at.
    ``calls`` and ``arrivals`` are the retries: the first attempts, all at 0, are not among them.

    Raises InvalidField for numbers out of range, and for more than MOST_CALLS calls.
    """
    service = _Service(
        ahead("capacity", capacity),
        _not_negative("seconds_down", seconds_down),
        ahead("slot", slot),
    )
    callers = _Callers(
        _crowd(clients),
        policy,
        math.inf if deadline is None else ahead("deadline", deadline),
        _not_negative("latency", latency),
        np.random.default_rng(seed),
    )
    arrivals, answered = _play(callers, service.judge)
    arrivals.flags.writeable = False
    served = answered < np.inf
    return Crowd(
        clients=clients,
        policy=policy,
        calls=len(arrivals),
        failures=len(arrivals) - int(served.sum()),
        served=int(served.sum()),
        gave_up=clients - int(served.sum()),
        waits=len(arrivals),
        seconds=float(np.where(served, answered + latency, callers.ended).max()),
        arrivals=arrivals,
    )

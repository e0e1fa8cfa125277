"""A crowd contends as AWS's own simulator says, and no shortcut changes who is served.

Oracles: a table that the upstream classes made, a plain event loop with a heap, and a count of
what a service may serve.
"""

import csv
import dataclasses
import heapq
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import durakit as dk
from durakit.lab.backoff import herd
from durakit.lab.backoff.herd import NO_BACKOFF, Crowd, contend, rush
from durakit.lab.backoff.jitter import attempts_that_fit, moments

REFERENCE = Path(__file__).resolve().parent.parent / "data" / "reference" / "backoff-sim.csv"

# A busy machine may be slow; that is no failure.
laws = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def upstream(jitter: str) -> dk.Retry:
    """Return a policy of the upstream simulator: base 5 ms, cap 2 s, first window 2 * base."""
    return dk.Retry(0.005, 2.0, jitter=jitter, first_window=0.010)


ALGORITHMS = {
    "Exponential": upstream("none"),
    "Decorr": upstream("decorrelated"),
    "EqualJitter": upstream("equal"),
    "FullJitter": upstream("full"),
    "None": NO_BACKOFF,
}


def table() -> list[dict[str, str]]:
    """Return the rows of the upstream simulator's results."""
    with REFERENCE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def runs(clients: int, policy: dk.Retry, number: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Return calls and completion in ms of ``number`` runs with seeds of their own."""
    crowds = [contend(clients, policy, seed=seed + run) for run in range(number)]
    for crowd in crowds:
        assert crowd.calls - crowd.failures == clients == crowd.served
    calls = np.array([crowd.calls for crowd in crowds])
    return calls, np.array([crowd.seconds * 1000 for crowd in crowds])


# --- one row: the upstream simulator --------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_crowd_contends_as_the_upstream_simulator_says(algorithm):
    """Every client count of the table: mean calls and completion within 4 sd / sqrt(R).

    R counts both: 40 runs here and the table's 400. Half a printed digit is added.
    """
    rows = [row for row in table() if row["algorithm"] == algorithm]
    assert [int(row["clients"]) for row in rows] == [1, 2, 5, *range(10, 200, 10)]
    number = 40
    for row in rows:
        clients = int(row["clients"])
        calls, milliseconds = runs(clients, ALGORITHMS[algorithm], number, seed=clients * 1000)
        scale = 4 * math.sqrt(1 / number + 1 / int(row["runs"]))
        off_calls = abs(calls.mean() - float(row["mean_calls"]))
        assert off_calls <= scale * float(row["sd_calls"]) + 0.05, row
        off_time = abs(milliseconds.mean() - float(row["mean_completion_ms"]))
        assert off_time <= scale * float(row["sd_completion_ms"]) + 0.05, row


def test_the_spread_of_a_run_is_upstreams_too():
    """A hundred clients with full jitter: 7.4 calls and 534 ms from run to run."""
    calls, milliseconds = runs(100, upstream("full"), 300)
    # A standard deviation of 300 runs is itself off by about 4 %, the table's by 3.5 %.
    assert calls.std() == pytest.approx(7.4, rel=0.22)
    assert milliseconds.std() == pytest.approx(533.9, rel=0.22)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_client_needs_one_call_and_two_need_three(algorithm):
    """One: four legs, 40 ms. Two: the slower read is stale, so exactly one write is refused."""
    calls, milliseconds = runs(1, ALGORITHMS[algorithm], 400)
    assert set(calls) == {1}
    assert abs(milliseconds.mean() - 40) <= 4 * math.sqrt(4) * 2 / math.sqrt(400)
    calls, _ = runs(2, ALGORITHMS[algorithm], 100)
    assert set(calls) == {3}


@pytest.mark.parametrize(
    ("clients", "calls", "milliseconds"),
    [(10, 42.7, 452), (50, 366.8, 2854), (100, 876.3, 4924), (190, 1935.5, 7490)],
)
def test_with_the_chapters_window_there_are_a_tenth_more_calls(clients, calls, milliseconds):
    """One doubling less: neither a bug nor agreement. Published means of 200 runs."""
    own_calls, own_times = runs(clients, dk.Retry(0.005, 2.0), 100)
    scale = 4 * math.sqrt(1 / 100 + 1 / 200)
    assert abs(own_calls.mean() - calls) <= scale * own_calls.std() + 0.05
    assert abs(own_times.mean() - milliseconds) <= scale * own_times.std() + 0.5
    upstreams, _ = runs(clients, upstream("full"), 40)
    assert 1.05 < own_calls.mean() / upstreams.mean() < 1.15


def test_jitter_more_than_halves_the_calls_and_no_backoff_is_quickest_at_three_times_the_calls():
    """The headline of 2015 with its footnote, a hundred clients."""
    means = {
        algorithm: tuple(part.mean() for part in runs(100, policy, 30))
        for algorithm, policy in ALGORITHMS.items()
    }
    full, exponential, none = means["FullJitter"], means["Exponential"], means["None"]
    assert full[0] / exponential[0] == pytest.approx(0.428, abs=0.02)
    assert full[1] / exponential[1] == pytest.approx(0.077, abs=0.01)
    assert min(means.values(), key=lambda mean: mean[1]) == none
    assert none[0] / full[0] == pytest.approx(3.04, abs=0.15)


def test_without_spread_all_writes_meet_and_each_round_serves_one():
    """Legs of exactly 10 ms and no wait: of N writes at one instant, one finds its version."""
    crowd = contend(6, NO_BACKOFF, spread=0.0)
    assert crowd.calls == 6 + 5 + 4 + 3 + 2 + 1
    assert crowd.seconds == pytest.approx(6 * 0.040, abs=1e-6)
    rounds = np.arange(6).repeat([6, 5, 4, 3, 2, 1])
    assert crowd.arrivals == pytest.approx(0.030 + 0.040 * rounds, abs=1e-6)


def test_of_one_instant_a_read_comes_before_a_write():
    """Who reads at the moment of another's accepted write has the old version, and is refused."""
    writes = [(1.0, 0.5, 0), (2.0, 1.0, 1), (3.0, 1.0001, 2)]
    assert herd._Row().judge(writes) == [(0, 1.0), (2, 3.0)]


def test_no_way_takes_less_than_no_time():
    """A wide spread is folded at zero: the mean of |Normal(1, 10)| ms, four times."""
    times = [contend(1, NO_BACKOFF, leg=0.001, spread=0.010, seed=n).seconds for n in range(400)]
    folded = 10 * math.sqrt(2 / math.pi) * math.exp(-0.005) + math.erf(0.1 / math.sqrt(2))
    error = math.sqrt(4 * (101 - folded**2) / 400)
    assert abs(np.mean(times) * 1000 - 4 * folded) <= 4 * error


def test_calls_grow_with_the_square_under_a_fixed_cap_and_hardly_faster_than_the_crowd_else():
    """A tenfold crowd: fifty times the calls under 2 s; twelve times if the cap grows along."""
    small, large = contend(300, upstream("full")), contend(3000, upstream("full"))
    assert 25 < large.calls / small.calls < 100
    caps = {
        clients: dk.Retry(0.005, clients * 0.020, first_window=0.010) for clients in (300, 3000)
    }
    small, large = (contend(clients, policy) for clients, policy in caps.items())
    assert 10 < large.calls / small.calls < 15


# --- the shortcut and the plain event loop --------------------------------------------------


class Scripted:
    """Clients whose every request is written down beforehand, as (knew, arrives)."""

    def __init__(self, scripts: list[list[tuple[float, float]]]) -> None:
        self.scripts, self.turn = scripts, [0] * len(scripts)
        self.knew, self.arrives = np.zeros(len(scripts)), np.zeros(len(scripts))
        self._set(range(len(scripts)))

    def _set(self, clients) -> None:
        for client in clients:
            script, turn = self.scripts[client], self.turn[client]
            last = (math.inf, math.inf)
            self.knew[client], self.arrives[client] = script[turn] if turn < len(script) else last

    def refuse(self, clients: np.ndarray) -> None:
        """Go on to the next line of the script."""
        for client in clients:
            self.turn[client] += 1
        self._set(clients)


@st.composite
def scripts(draw):
    """Up to nine clients with up to eight requests each; no two requests at one instant."""
    gaps = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=0, max_size=8)
    crowd = []
    for client in range(draw(st.integers(1, 9))):
        moment, script = 0, []
        for pause, way in draw(gaps):
            script.append((moment + pause + client / 100, moment + pause + way + client / 100))
            moment += pause + way
        crowd.append(script)
    return crowd


def event_loop(crowd: list[list[tuple[float, float]]], accepts) -> tuple[list[float], list[float]]:
    """Play scripts one event at a time, as the upstream simulator does; arrivals and served."""
    queue = [(script[0][1], client, 0) for client, script in enumerate(crowd) if script]
    heapq.heapify(queue)
    arrivals, served = [], [math.inf] * len(crowd)
    while queue:
        moment, client, turn = heapq.heappop(queue)
        arrivals.append(moment)
        if accepts(moment, crowd[client][turn][0]):
            served[client] = moment
        elif turn + 1 < len(crowd[client]):
            heapq.heappush(queue, (crowd[client][turn + 1][1], client, turn + 1))
    return arrivals, served


@laws
@given(scripts(), st.sampled_from([0, 4096]))
def test_drawing_ahead_serves_whom_an_event_loop_serves(crowd, whole_crowd):
    """One row: the same writes happen, the same are accepted, in blocks of any size."""
    written = -math.inf

    def accepts(moment: float, read: float) -> bool:
        nonlocal written
        fresh = read > written
        written = moment if fresh else written
        return fresh

    arrivals, served = event_loop(crowd, accepts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(herd, "_WHOLE_CROWD", whole_crowd)
        own_arrivals, own_served = herd._play(Scripted(crowd), herd._Row().judge)
    assert own_arrivals.tolist() == arrivals
    assert own_served.tolist() == served


@laws
@given(
    scripts(), st.sampled_from([0, 4096]), st.floats(0.05, 2.0), st.integers(0, 60),
    st.sampled_from([1.0, 7.5, 10.0]),
)  # fmt: skip
def test_a_service_serves_whom_an_event_loop_serves(crowd, whole_crowd, capacity, down, slot):
    """One service: first come first served in each slot, nobody before it is up again."""
    room: dict[int, int] = {}

    def accepts(moment: float, _: float) -> bool:
        now = int(moment / slot)
        floors = [math.floor(k * capacity * slot + 1e-6) for k in (now, now + 1)]
        room.setdefault(now, floors[1] - floors[0])
        served = moment >= down and room[now] > 0
        room[now] -= served
        return served

    arrivals, served = event_loop(crowd, accepts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(herd, "_WHOLE_CROWD", whole_crowd)
        service = herd._Service(capacity, down, slot)
        own_arrivals, own_served = herd._play(Scripted(crowd), service.judge)
    assert own_arrivals.tolist() == arrivals
    assert own_served.tolist() == served


# --- one overloaded service -----------------------------------------------------------------

EVERY_KIND = ["full", "equal", "decorrelated", "none", "additive"]


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_service_never_serves_more_than_its_capacity_nor_while_it_is_down(kind):
    """Counted from outside: served clients in every whole second, and before the end of it."""
    policy = dk.Retry(0.5, 8.0, 12, jitter=kind)
    crowd = rush(400, policy, capacity=20, seconds_down=3.0, deadline=60, latency=0.01)
    assert crowd.served + crowd.gave_up == 400
    assert crowd.served == crowd.calls - crowd.failures
    assert crowd.served <= 20 * (math.ceil(crowd.seconds) - 3)
    assert np.array_equal(crowd.arrivals, np.sort(crowd.arrivals))
    assert crowd.arrivals.shape == (crowd.calls,)
    assert crowd.arrivals.max() < crowd.seconds <= 60


@pytest.mark.parametrize(("capacity", "slot"), [(7, 0.1), (29, 0.01), (10, 0.1), (3, 1.0)])
def test_capacity_holds_in_every_second_also_where_a_slot_has_no_whole_share(capacity, slot):
    """Seven a second in tenths, 29 in hundredths: each second that is full serves its capacity."""
    service = herd._Service(capacity, 0.0, slot)
    requests = [(moment / 1000 + 0.0005, 0.0, moment) for moment in range(20_000)]
    seconds = [int(moment) for _, moment in service.judge(requests)]
    assert [seconds.count(second) for second in range(20)] == [capacity] * 20


def test_without_jitter_the_crowd_comes_back_as_one():
    """Every client at the same instants, at the bounds of the windows; with jitter it is spread."""
    policy = dk.Retry(0.5, 8.0, 8, jitter="none")
    together = rush(1000, policy, capacity=10, deadline=60, latency=0.0)
    instants = sorted(set(together.arrivals.tolist()))
    assert instants == [0.5, 1.5, 3.5, 7.5, 15.5, 23.5, 31.5]
    assert together.peak(0.05) == 1000
    assert (together.served, together.gave_up) == (7, 993)
    spread = rush(
        1000, dataclasses.replace(policy, jitter="full"), capacity=10, deadline=60, latency=0.0
    )
    # A bin holds a tenth of the first half second's 1,000, and some of the second waits.
    assert spread.peak(0.05) < 250
    assert spread.served > 20 * together.served


@pytest.mark.parametrize("kind", ["full", "equal", "none", "additive"])
def test_clients_that_are_never_served_make_the_exact_number_of_attempts(kind):
    """A service that stays down: mean retries are those of the exact law, within four errors."""
    policy, clients = dk.Retry(0.5, 8.0, 10, jitter=kind, reserve=0.4), 4000
    crowd = rush(clients, policy, capacity=9, seconds_down=99, deadline=12, latency=0.1)
    assert (crowd.served, crowd.gave_up) == (0, clients)
    # An attempt takes two ways; the first one's answer came at 0, so it takes none.
    law = attempts_that_fit(policy, 12.2, 0.2)
    mean = float(sum(law)) - 1
    second = float(sum((2 * k + 1) * chance for k, chance in enumerate(law))) - 2 * (mean + 1) + 1
    error = math.sqrt(max(second - mean**2, 0.0) / clients)
    assert abs(crowd.calls / clients - mean) <= 4 * error + 1e-9
    assert crowd.arrivals.max() < 12 - 0.4 + 0.1


def test_attempts_end_a_client_also_without_a_deadline():
    """Three attempts are two retries; one attempt is none, and the crowd has given up at 0."""
    crowd = rush(50, dk.Retry(0.5, 8.0, 3), capacity=1, seconds_down=1000)
    assert (crowd.calls, crowd.gave_up) == (100, 50)
    none = rush(50, dk.Retry(0.5, 8.0, 1), capacity=1)
    assert (none.calls, none.gave_up, none.seconds, none.peak(1.0)) == (0, 50, 0.0, 0)


def test_the_first_wait_and_two_ways_are_what_a_lone_client_takes():
    """One client, room for it: it is done one wait and two ways later."""
    policy = dk.Retry(0.5, 8.0, 3, jitter="none")
    crowd = rush(1, policy, capacity=10, latency=0.02)
    assert (crowd.calls, crowd.failures, crowd.served) == (1, 0, 1)
    assert crowd.arrivals[0] == pytest.approx(0.52)
    assert crowd.seconds == pytest.approx(0.54)
    many = [rush(1, dk.Retry(0.5, 8.0, 3), capacity=10, latency=0.0, seed=n) for n in range(400)]
    mean, law = np.mean([crowd.seconds for crowd in many]), moments(dk.Retry(0.5, 8.0), 1)
    assert abs(mean - law.mean) <= 4 * math.sqrt(law.variance / 400)


# --- both -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_the_same_seed_is_the_same_crowd(kind):
    """Every field and every arrival; another seed is another crowd."""

    def crowds(seed: int) -> list[Crowd]:
        policy = dk.Retry(0.02, 0.5, 20, jitter=kind)
        return [contend(30, policy, seed=seed), rush(30, policy, capacity=20, seed=seed)]

    for one, again, other in zip(crowds(3), crowds(3), crowds(4), strict=True):
        assert one == again
        assert np.array_equal(one.arrivals, again.arrivals)
        same = one.arrivals.shape == other.arrivals.shape and (one.arrivals == other.arrivals).all()
        assert not same or (kind == "none" and one.waits == one.calls)
        with pytest.raises(ValueError, match="read-only"):
            one.arrivals[0] = 0.0


def test_a_crowd_that_would_fill_the_memory_is_refused(monkeypatch):
    """Both while it is drawn and while it is counted; the message says what helps."""
    monkeypatch.setattr(herd, "MOST_CALLS", 1000)
    with pytest.raises(dk.InvalidField, match="let the policy's cap grow"):
        contend(200, upstream("full"))
    with pytest.raises(dk.InvalidField, match="more than 1000 calls"):
        rush(2, dk.Retry(1e-9, 1e-9, 100_000, jitter="none"), capacity=1, latency=0.0, slot=9.0,
             seconds_down=9.0)  # fmt: skip


def test_a_hundred_thousand_clients_are_served():
    """Every client once: with a cap that grows with the crowd, and with capacity enough."""
    clients = 100_000
    writers = contend(clients, dk.Retry(0.005, clients * 0.020, first_window=0.010))
    assert (writers.served, writers.calls - writers.failures) == (clients, clients)
    assert 15 < writers.calls / clients < 25
    callers = rush(clients, dk.Retry(0.5, 8.0, 20), capacity=10_000, deadline=120)
    assert (callers.served, callers.gave_up) == (clients, 0)
    assert callers.seconds == callers.arrivals[-1] + 0.010


@pytest.mark.parametrize(
    ("field", "ask"),
    [
        ("clients", lambda: contend(0, NO_BACKOFF)),
        ("clients", lambda: contend(1.5, NO_BACKOFF)),
        ("leg", lambda: contend(1, NO_BACKOFF, leg=0.0)),
        ("spread", lambda: contend(1, NO_BACKOFF, spread=-1.0)),
        ("clients", lambda: rush(-1, NO_BACKOFF, capacity=1)),
        ("clients", lambda: rush(10**12, NO_BACKOFF, capacity=1)),
        ("clients", lambda: contend(10**12, NO_BACKOFF)),
        ("capacity", lambda: rush(1, NO_BACKOFF, capacity=0)),
        ("capacity", lambda: rush(1, NO_BACKOFF, capacity=math.inf)),
        ("seconds_down", lambda: rush(1, NO_BACKOFF, capacity=1, seconds_down=-1)),
        ("deadline", lambda: rush(1, NO_BACKOFF, capacity=1, deadline=0)),
        ("latency", lambda: rush(1, NO_BACKOFF, capacity=1, latency=-0.1)),
        ("slot", lambda: rush(1, NO_BACKOFF, capacity=1, slot=0)),
        ("width", lambda: rush(1, NO_BACKOFF, capacity=1).peak(0)),
    ],
)
def test_a_number_out_of_range_is_refused_with_its_field(field, ask):
    """Clients are counted from one, and times are positive."""
    with pytest.raises(dk.InvalidField) as refused:
        ask()
    assert refused.value.field == field

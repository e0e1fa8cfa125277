"""Time is passed in: a manual clock moves when told to, and its two hands move apart."""

import math
import signal
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import durakit as dk

# A busy machine may be slow; that is no failure.
laws = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

DAY = 86_400.0


def test_thirty_virtual_days_pass_at_once():
    """Sleeping on a manual clock moves both hands and is written down."""
    clock = dk.ManualClock()
    wall, mono = clock.now(), clock.monotonic()
    for _ in range(30):
        clock.sleep(DAY)
    assert (clock.now() - wall, clock.monotonic() - mono) == (30 * DAY, 30 * DAY)
    assert clock.sleeps == [DAY] * 30


@laws
@given(st.floats(-1e9, 1e9))
def test_correcting_the_wall_clock_leaves_the_monotonic_hand_alone(jump):
    """A clock set forward or back changes no duration."""
    clock = dk.ManualClock()
    mono = clock.monotonic()
    clock.jump_wall(jump)
    assert clock.monotonic() == mono
    assert clock.now() == pytest.approx(dk.ManualClock.START + jump, abs=1e-6)


@laws
@given(st.lists(st.floats(0, 1e6), max_size=20))
def test_the_monotonic_hand_never_goes_back(steps):
    """Whatever is slept and advanced."""
    clock = dk.ManualClock()
    for step in steps:
        before = clock.monotonic()
        clock.sleep(step)
        clock.advance(step)
        assert clock.monotonic() >= before


def test_ten_tenths_make_one_second_as_a_lesson_prints_it():
    """The hands are kept to a microsecond, so that no 0.30000000000000004 is shown."""
    clock = dk.ManualClock(start=0.0, monotonic=0.0)
    shown = []
    for _ in range(10):
        clock.advance(0.1)
        shown.append(str(clock.now()))
    assert shown == ["0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1.0"]


@pytest.mark.parametrize("seconds", [0, 0.0, -1, -math.inf, math.nan])
def test_a_wait_of_nothing_or_less_is_no_wait(seconds):
    """It is neither noted nor does it move a hand."""
    clock = dk.ManualClock()
    clock.sleep(seconds)
    assert (clock.sleeps, clock.now()) == ([], dk.ManualClock.START)
    dk.SystemClock().sleep(seconds)


BAD = [math.nan, math.inf, -math.inf, True, "1", None, 10**400]
NAMES = [repr(value)[:8] for value in BAD]


@pytest.mark.parametrize("value", BAD, ids=NAMES)
def test_a_hand_can_only_be_set_to_a_finite_number(value):
    """Each refusal names the field."""
    with pytest.raises(dk.InvalidField, match=r"^start: "):
        dk.ManualClock(start=value)
    with pytest.raises(dk.InvalidField, match=r"^monotonic: "):
        dk.ManualClock(monotonic=value)
    with pytest.raises(dk.InvalidField, match=r"^seconds: "):
        dk.ManualClock().advance(value)
    with pytest.raises(dk.InvalidField, match=r"^seconds: "):
        dk.ManualClock().jump_wall(value)


def test_time_does_not_run_backwards():
    """Only the wall clock can be set back, and by its own verb."""
    with pytest.raises(dk.InvalidField, match="backwards"):
        dk.ManualClock().advance(-0.001)


def test_a_file_can_tell_the_two_kinds_of_clock_apart():
    """The kind is what a file remembers."""
    assert (dk.SystemClock().kind, dk.ManualClock().kind) == ("system", "manual")


def test_the_system_clock_is_the_machines():
    """Its wall time is the machine's, and its durations come from the monotonic hand."""
    clock = dk.SystemClock()
    before, mono = time.time(), time.monotonic()
    now, reading = clock.now(), clock.monotonic()
    assert before <= now <= time.time()
    assert mono <= reading <= time.monotonic()


class WokenError(Exception):
    """What the alarm raises."""


@pytest.mark.skipif(sys.platform == "win32", reason="no interval timer on Windows")
@pytest.mark.parametrize("seconds", [1e10, sys.float_info.max])
def test_a_wait_of_centuries_is_a_wait_and_lets_an_interrupt_through(seconds):
    """A service may ask for it; the system refuses to sleep so long at once."""

    def wake(*_: object) -> None:
        raise WokenError

    before = signal.signal(signal.SIGALRM, wake)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        with pytest.raises(WokenError):
            dk.SystemClock().sleep(seconds)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

"""A limit is absolute, a child's is never longer than its parent's, and no restart adds time."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import durakit as dk
from durakit.deadline import Limit, narrow, recovered, seconds

# A busy machine may be slow; that is no failure.
laws = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

moments = st.floats(-1e9, 1e9)
durations = st.floats(1e-6, 1e9)


@laws
@given(moments, durations, durations)
def test_a_childs_limit_is_the_smaller_of_its_own_and_its_parents(now, outer, inner):
    """Exactly one of the two, with the name of the one that ends first."""
    parent = narrow(None, "session", "session", outer, now)
    child = narrow(parent, "turn", "send", inner, now)
    assert child.ends == min(now + inner, now + outer)
    assert child.level == ("turn" if now + inner < now + outer else "session")


@laws
@given(moments, st.lists(durations, min_size=1, max_size=6), st.floats(0, 1e9))
def test_levels_of_any_depth_end_with_the_tightest_and_never_later(now, limits, later):
    """However often limits are nested, the remainder is inherited."""
    limit = None
    for number, own in enumerate(limits):
        limit = narrow(limit, "turn", str(number), own, now)
    assert limit is not None
    tightest = min(range(len(limits)), key=lambda number: now + limits[number])
    assert limit == Limit("turn", str(tightest), now + limits[tightest])
    assert 0 <= limit.remaining(now + later) <= (now + max(limits)) - now


@pytest.mark.parametrize(
    ("outer", "inner", "fires"),
    [(2.0, 3.0, "session"), (3.0, 2.0, "turn"), (2.0, 2.0, "session")],
)
def test_L092_the_limit_that_surfaces_is_the_one_that_really_ran_out(outer, inner, fires):
    """After a long blocking stretch both have expired; the error names the smaller's layer."""
    session = narrow(None, "session", "session", outer, 0.0)
    turn = narrow(session, "turn", "send", inner, 0.0)
    assert turn.remaining(20.0) == 0.0
    assert turn.level == fires
    assert fires in str(dk.DeadlineExceeded(turn.level, turn.name))


def test_a_child_of_an_expired_parent_has_no_time_and_its_parents_name():
    """A new limit cannot buy time that is spent."""
    parent = narrow(None, "session", "session", 1.0, 0.0)
    child = narrow(parent, "call", "send_email", 60.0, 5.0)
    assert (child.remaining(5.0), child.level) == (0.0, "session")


@laws
@given(moments, durations, st.floats(0, 1e9), st.floats(0, 1e9))
def test_what_remains_only_shrinks_and_is_never_negative(now, own, first, second):
    """Time passes in one direction."""
    limit = narrow(None, "turn", "t", own, now)
    early, late = sorted((now + first, now + second))
    assert 0.0 <= limit.remaining(late) <= limit.remaining(early)


@laws
@given(st.floats(-1e12, 1e12), moments, moments)
def test_L104_a_restart_never_adds_to_the_budget(saved, deadline, wall):
    """Whatever the wall clock says, what remains is at most what was saved, and not negative."""
    left = recovered(saved, deadline, wall)
    assert 0.0 <= left <= max(0.0, saved)
    assert left <= max(0.0, deadline - wall)
    assert recovered(0.0, deadline, wall) == 0.0


@pytest.mark.parametrize(
    ("wall", "left"),
    [
        pytest.param(1000.0, 40.0, id="no time has passed"),
        pytest.param(1030.0, 30.0, id="half a minute has passed"),
        pytest.param(-9000.0, 40.0, id="the wall clock was set back"),
        pytest.param(1060.0, 0.0, id="the deadline is now"),
        pytest.param(99999.0, 0.0, id="it is long over"),
    ],
)
def test_L104_what_remains_after_a_restart(wall, left):
    """40 s were left at the last append, and the deadline is at 1060."""
    assert recovered(40.0, 1060.0, wall) == left


def test_without_a_saved_remainder_the_deadline_itself_decides():
    """A run that has saved nothing yet still has its deadline."""
    assert recovered(None, 1060.0, 1000.0) == 60.0
    assert recovered(None, 1060.0, 2000.0) == 0.0


@pytest.mark.parametrize(
    "value",
    [0, -1, -0.0, 0.0, math.nan, math.inf, -math.inf, 10**400, True, False, "3", None, [1], 1j],
    ids=lambda value: "10**400" if value == 10**400 else repr(value),
)
def test_a_limit_that_is_not_a_positive_finite_number_is_refused_by_name(value):
    """The field is named, so that a person knows what to change."""
    with pytest.raises(dk.InvalidField) as caught:
        seconds("timeout", value)
    assert caught.value.field == "timeout"
    assert isinstance(caught.value, ValueError)


@laws
@given(st.floats(min_value=5e-324, allow_nan=False, allow_infinity=False) | st.integers(1, 10**300))
def test_any_positive_finite_number_is_a_limit(value):
    """Whole or not, as a float."""
    assert seconds("timeout", value) == float(value)

"""A checkpoint's changes: put back, they give the new state, to the type."""

import copy
import json

from hypothesis import given
from hypothesis import strategies as st

from durakit.changes import apply, diff, in_words

scalars = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text("ab", max_size=2)
)
states = st.recursive(
    scalars,
    lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text("abc", max_size=1), part),
    max_leaves=12,
)


@given(states, states)
def test_changes_put_back_give_the_new_state_with_its_types(old, new):
    """Also through their saved form, and the old state is left as it was."""
    kept = copy.deepcopy(old)
    changes = json.loads(json.dumps(diff(old, new)))
    assert json.dumps(apply(old, changes), sort_keys=True) == json.dumps(new, sort_keys=True)
    assert json.dumps(old) == json.dumps(kept)


@given(states)
def test_an_equal_state_has_no_changes(state):
    """Whether it is the same object or a copy."""
    assert diff(state, copy.deepcopy(state)) == []


def test_one_and_true_and_one_point_zero_differ():
    """JSON knows three values where Python's == knows one."""
    assert diff({"a": 1}, {"a": True}) == [["set", ["a"], True]]
    assert diff([1], [1.0]) == [["set", [0], 1.0]]


def test_a_growing_list_costs_its_new_parts_only():
    """A thousand old messages are not written again."""
    old = {"messages": [{"text": "x" * 1000}] * 1000}
    new = {"messages": [*old["messages"], {"text": "new"}]}
    changes = diff(old, new)
    assert changes == [["add", ["messages"], [{"text": "new"}]]]
    assert in_words(changes) == [("$.messages", "has more at its end", [{"text": "new"}])]

"""The second level of persistence: items outlive runs, with rules and retention of their own."""

import threading

import pytest

import durakit as dk
from durakit.errors import NotAllowed, VersionConflict


@pytest.fixture
def rt(tmp_path):
    """A runtime on virtual time."""
    with dk.Runtime(tmp_path / "a.db", clock=dk.ManualClock()) as runtime:
        yield runtime


def test_an_item_outlives_runs_and_their_pruning(rt):
    """One file, two levels: removing runs leaves items alone, and the other way round."""
    workflow = dk.workflow(lambda ctx: ctx.step("a", lambda: 1), name="w")
    rt.run(workflow, id="a")
    rt.store.put("profile", "ada", {"tone": "formal"})
    rt._clock.advance(100)
    assert rt.prune(older_than=50) == 1
    assert rt.store.get("profile", "ada").value == {"tone": "formal"}
    rt.run(workflow, id="b")
    rt.store.delete("profile", "ada")
    assert rt.store.prune() == 1
    assert rt.runs()["id"].tolist() == ["b"]


def test_versions_count_and_compare_and_set_refuses_a_stale_write(rt):
    """The second writer who read version 1 is told the version now; nothing is written."""
    assert rt.store.put("n", "k", "one", expected=0).version == 1
    assert rt.store.put("n", "k", "two", expected=1).version == 2
    with pytest.raises(VersionConflict, match="version 2, not 1"):
        rt.store.put("n", "k", "lost", expected=1)
    with pytest.raises(VersionConflict, match="version 2, not 0"):
        rt.store.put("n", "k", "lost", expected=0)
    assert rt.store.get("n", "k").value == "two"
    rt.store.delete("n", "k", expected=2)
    assert rt.store.get("n", "k") is None
    assert rt.store.put("n", "k", "again", expected=0).version == 4


def test_an_item_expires_by_the_clock(rt):
    """It is gone at its time, and leaves the list of keys."""
    rt.store.put("n", "short", 1, expires_in=10)
    rt.store.put("n", "long", 2)
    rt._clock.advance(10)
    assert rt.store.get("n", "short") is None
    assert rt.store.keys("n") == ["long"]


def test_a_namespace_is_its_owners_unless_a_rule_admits_others(tmp_path):
    """Read and write are told apart, and may be taken back."""
    clock = dk.ManualClock()
    ada, bob = (dk.Runtime(tmp_path / "a.db", clock=clock, account=a) for a in ("ada", "bob"))
    ada.store.put("notes", "k", "hers")
    assert bob.store.get("notes", "k") is None
    with pytest.raises(NotAllowed, match="'bob' may not read namespace 'notes' of 'ada'"):
        bob.store.get("notes", "k", owner="ada")
    ada.store.allow("notes", "bob", "read")
    assert bob.store.get("notes", "k", owner="ada").value == "hers"
    with pytest.raises(NotAllowed, match="may not write"):
        bob.store.put("notes", "k", "his", owner="ada")
    ada.store.allow("notes", "bob", "write")
    bob.store.put("notes", "k", "theirs", owner="ada")
    assert ada.store.get("notes", "k").value == "theirs"
    ada.store.allow("notes", "bob", "nothing")
    with pytest.raises(NotAllowed):
        bob.store.keys("notes", owner="ada")
    ada.close()
    bob.close()


def test_twenty_threads_that_compare_and_set_lose_no_increment(tmp_path):
    """Each retries on a conflict: the sum is right."""
    with dk.Runtime(tmp_path / "a.db", durability="process") as rt:
        rt.store.put("n", "count", 0)

        def add():
            for _ in range(5):
                while True:
                    item = rt.store.get("n", "count")
                    try:
                        rt.store.put("n", "count", item.value + 1, expected=item.version)
                        break
                    except VersionConflict:
                        continue

        threads = [threading.Thread(target=add) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert rt.store.get("n", "count").value == 100


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda s: s.put("n", "k", {1, 2}), dk.UnsavableValue, "set"),
        (lambda s: s.put("", "k", 1), dk.InvalidField, "namespace"),
        (lambda s: s.put("n", "", 1), dk.InvalidField, "key"),
        (lambda s: s.put("n", "k", 1, expires_in=-1), dk.InvalidField, "expires_in"),
        (lambda s: s.put("n", "k", 1, expected="1"), dk.InvalidField, "expected"),
        (lambda s: s.allow("n", "bob", "rule"), dk.InvalidField, "may"),
    ],
)
def test_bad_input_is_refused_by_field_and_nothing_is_written(rt, call, error, words):
    """The message names the field."""
    with pytest.raises(error, match=words):
        call(rt.store)
    assert rt.store.keys("n") == []


def test_hostile_names_are_data(rt):
    """Quotes and comment marks in names match only themselves."""
    rt.store.put("n'; DROP TABLE run; --", 'k"%_', 1)
    assert rt.store.keys("n'; DROP TABLE run; --") == ['k"%_']
    assert rt.store.keys("n%") == []
    assert rt.runs().empty


def test_a_crashed_incarnation_cannot_touch_items(rt):
    """Frozen is frozen: the second level refuses, too."""
    told = []

    @dk.workflow(name="tidy")
    def tidy(ctx):
        try:
            ctx.step("a", lambda: 1)
        finally:
            try:
                rt.store.put("n", "k", "from a dead process")
            except BaseException as error:
                told.append(type(error).__name__)

    rt.run(tidy, id="a", crash=dk.CrashAt("a", "step_done"))
    assert told == ["SimulatedCrash"]
    assert rt.store.get("n", "k") is None

"""The checkpoint inspector shows what the journal holds, and forks a run where it says."""

import re
import threading

import ipywidgets
import pydantic
import pytest
from hostile import HOSTILE, SCRIPT, HostileWorld
from pages import Page, pages, parts, shown, status

import durakit as dk
from durakit.lab.crash.inspector import InspectorModel
from durakit.lab.crash.widgets import (
    CheckpointInspector,
)
from durakit.mail import Mailbox


class Count(pydantic.BaseModel):
    """The state of a machine that sends one mail on its way to three."""

    number: int = 0
    words: str = ""
    mails: list[str] = []


@pytest.fixture
def world(tmp_path):
    """A mail service of its own."""
    mailbox = Mailbox(tmp_path / "world", clock=dk.ManualClock())
    yield mailbox
    mailbox.close()


@pytest.fixture
def runtime(tmp_path, world):
    """A runtime on the same clock."""
    with dk.Runtime(tmp_path / "run.db", clock=world.clock, world=world, owner="test") as rt:
        yield rt


def counted(world, rt, words="", crash=None):
    """Run the machine."""

    @dk.tool(effect="idempotent")
    def send(call, to):
        return world.send(to, "s", "b", key=call.key)["id"]

    @dk.machine(state=Count)
    def count(ctx, state):
        if state.number == 3:
            return dk.Done(state, "three")
        after = state.model_copy(deep=True)
        after.number += 1
        if after.number == 2:
            after.mails.append(ctx.call(send, "a@example.org", key="mail:2"))
        return after

    return rt.run(count, Count(words=words), id="count", crash=crash)


def mailed(world, rt, crash=None):
    """Run a workflow of a step and a call."""

    @dk.tool(effect="idempotent")
    def send(call, to, text):
        return world.send(to, "s", text, key=call.key)

    @dk.workflow
    def small(ctx, to):
        text = ctx.step("draft", lambda: "Hello")
        return ctx.call(send, to, text, key="mail:1")

    return rt.run(small, "a@example.org", id="small", crash=crash)


def test_the_inspector_shows_the_state_of_a_machine_at_every_entry(world, runtime):
    """What stands there is what ``run.at`` says, entry by entry."""
    run = counted(world, runtime)
    inspector = CheckpointInspector(run, world)
    assert inspector.model.last == len(run.history())
    for seq in range(1, inspector.model.last + 1):
        inspector.slider.value = seq
        found = re.search(r'"number": (\d)', Page(inspector._body.value).words).group(1)
        assert int(found) == run.at(seq).number
        mark = "▣ Checkpoint" if seq in set(run.checkpoints()["seq"]) else "No checkpoint."
        assert f"entry {seq} of {inspector.model.last}" in status(inspector)
        assert mark in status(inspector)
    assert inspector.troubles == []


def test_the_inspector_shows_what_a_workflow_has_done_so_far(world, runtime):
    """Steps and operations as of an entry; at the crash the operation is an intent."""
    run = mailed(world, runtime, crash=dk.CrashAt("send", "effect_done"))
    inspector = CheckpointInspector(run, world)
    assert status(inspector).startswith("Run small, running: entry 3 of 4 — step of draft.")
    assert '"value": "Hello"' in shown(inspector)
    inspector.next.click()
    assert inspector.model.state(4) == run.at(4)
    assert '"entry": "intent"' in shown(inspector)
    runtime.recover()
    inspector.refresh.click()
    assert "Looked again." in status(inspector)
    assert inspector.slider.max == len(run.history())
    assert "completed" in inspector.text()


def test_the_timeline_marks_the_checkpoints_and_the_chosen_entry(world, runtime):
    """One box per entry, a mark at each row of ``run.checkpoints()``, the effect where it was."""
    run = counted(world, runtime)
    model = InspectorModel(run, world)
    page = Page(model.timeline())
    checkpoints = list(run.checkpoints()["seq"])
    assert re.findall(r"▣ (\d+)", page.words) == [str(seq) for seq in checkpoints]
    assert page.roles.count("listitem") == model.last + 1
    assert model.timeline().count('aria-current="true"') == 1
    text = model.text()
    assert text.index("intent of send") < text.index("★ EFFECT") < text.index("result of send")
    assert "EFFECT" not in InspectorModel(run).text(), (
        "nothing is said of a world that is not given"
    )


def test_the_diff_is_the_runs_own(world, runtime):
    """At first against the checkpoint before; then against whatever entry is chosen."""
    run = counted(world, runtime)
    inspector = CheckpointInspector(run)
    seqs = list(run.checkpoints()["seq"])
    inspector.slider.value = seqs[1]
    assert inspector.model.compared == seqs[0]
    assert [row["path"] for row in inspector.model.changes().rows] == ["$.number", "$.mails"]
    inspector.compare.value = 1
    expected = run.diff(1, seqs[1]).to_dict("records")
    assert list(inspector.model.changes().rows) == expected
    assert f"DIFF: from entry 1 to entry {seqs[1]}" in shown(inspector)
    inspector.compare.value = 0
    inspector.slider.value = 1
    assert "(nothing stands before it)" in shown(inspector)


def test_checkpoint_buttons_go_from_checkpoint_to_checkpoint(world, runtime):
    """Entries between are skipped, and at the ends nothing happens."""
    run = counted(world, runtime)
    inspector = CheckpointInspector(run)
    seqs = list(run.checkpoints()["seq"])
    assert inspector.slider.value == seqs[-1]
    for seq in [*seqs[-2::-1], seqs[0]]:
        inspector.earlier.click()
        assert inspector.slider.value == seq
    for seq in [*seqs[1:], seqs[-1]]:
        inspector.later.click()
        assert inspector.slider.value == seq
    inspector.slider.value = 1
    inspector.previous.click()
    assert (inspector.model.seq, inspector.slider.value) == (1, 1)


def test_a_fork_has_a_new_id_and_touches_no_world(world, runtime):
    """The id is shown; a second fork gets the next one; the world's ledger stays as it was."""
    run = counted(world, runtime)
    inspector = CheckpointInspector(run, world)
    inspector.slider.value = next(iter(run.checkpoints()["seq"]))
    runtime.start(dk.define.find_workflow("count"), Count(words="other"), id="count:fork-1")
    before = world.effects(), len(world.requests())
    inspector.fork.click()
    assert "the new run is count:fork-2" in status(inspector)
    inspector.fork.click()
    assert "count:fork-3 has entries 1 to" in shown(inspector)
    assert "count:fork-3 has entries 1 to" in inspector.text()
    assert (world.effects(), len(world.requests())) == before
    fork = runtime.get("count:fork-2")
    assert len(fork.history()) == inspector.model.seq
    runtime.resume(fork.id)
    assert (fork.status, len(world.effects())) == ("completed", 1)


def test_a_fork_after_the_end_is_refused_in_words(world, runtime):
    """Nothing could follow; the view says so and stays of use."""
    inspector = CheckpointInspector(counted(world, runtime))
    inspector.slider.value = inspector.model.last
    inspector.fork.click()
    assert "Not possible here" in shown(inspector)
    assert "the run's end" in shown(inspector)
    assert len(runtime.runs()) == 1
    inspector.previous.click()
    assert f"entry {inspector.model.last - 1} of" in status(inspector)


def test_going_back_shows_that_the_world_does_not(world, runtime):
    """Belief is as of the entry, the truth is as of now, and the status line counts what came."""
    run = counted(world, runtime)
    inspector = CheckpointInspector(run, world)
    assert "Since then" not in status(inspector)
    inspector.slider.value = next(iter(run.checkpoints()["seq"]))
    assert "Since then 1 effect has happened outside." in status(inspector)
    assert "(no record of any)" in shown(inspector)
    assert "email-1" in Page(inspector._body.value).words


def test_a_state_that_cannot_be_read_is_told_and_the_rest_stays(world, runtime):
    """The state's class has changed: words in its place and among the troubles, no traceback."""
    run = counted(world, runtime)

    class Other(pydantic.BaseModel):
        colour: str

    @dk.machine(state=Other, name="count")
    def count(ctx, state):
        return state

    inspector = CheckpointInspector(run, world)
    assert "This state cannot be read here" in inspector.text()
    assert "This state cannot be read here" in inspector.html()
    assert len(inspector.troubles) == 1
    assert "Something went wrong" in shown(inspector)
    assert "▣" in shown(inspector)
    inspector.previous.click()
    assert "entry" in status(inspector)


def test_hostile_words_are_shown_and_never_run_in_the_inspector(runtime):
    """State, keys, ids, subjects: all of them come from somebody else."""
    world = HostileWorld()

    @dk.workflow
    def hostile(ctx):
        ctx.step(SCRIPT, lambda: HOSTILE.replace("\x00", ""))
        return ctx.step("second", lambda: {SCRIPT: [SCRIPT]})

    run = runtime.run(hostile, id=SCRIPT)
    inspector = CheckpointInspector(run, world)
    inspector.slider.value = inspector.model.last - 1
    inspector.fork.click()
    for page in [*pages(inspector), inspector.html()]:
        seen = Page(page)
        assert seen.tags["script"] == seen.tags["img"] == 0
        assert not {name for name in seen.attributes if name.startswith("on")}
    words = Page(inspector.html()).words
    assert SCRIPT in words
    assert all(char.isprintable() or char == "\n" for char in inspector.text() + words)
    assert len(inspector.text()) < 10_000


def test_callbacks_of_the_inspector_work_on_another_thread(world, runtime):
    """Each opens its own connection, for looking and for forking."""
    inspector = CheckpointInspector(counted(world, runtime), world)

    def use():
        inspector.slider.value = 3
        inspector.compare.value = 1
        inspector.fork.click()
        inspector.refresh.click()

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert inspector.troubles == []
    assert "count:fork-1" in shown(inspector)


def test_the_inspectors_fallback_is_the_same_each_time_and_says_all(world, runtime):
    """No id of ours, no folder, no control; every control has a name."""
    run = counted(world, runtime)
    inspector, twin = CheckpointInspector(run, world), CheckpointInspector(run, world)
    bundle, again = inspector._repr_mimebundle_(), twin._repr_mimebundle_()
    for kind in ("text/plain", "text/html"):
        assert bundle[kind] == again[kind]
        assert not re.search(r"0x[0-9a-f]{6}|IPY_MODEL|VBox|children=|<button", bundle[kind])
    assert status(inspector) in Page(inspector.html()).words
    for fact in ("STATE after", "DIFF", "BELIEF", "LEDGER", "mail:2"):
        assert fact in inspector.text()
        assert fact in Page(inspector.html()).words
    kinds = (ipywidgets.Button, ipywidgets.IntSlider, ipywidgets.Dropdown)
    controls = [part for part in parts(inspector) if isinstance(part, kinds)]
    assert len(controls) == 8
    assert all(control.tooltip for control in controls)
    assert not any(control.disabled for control in controls)


def test_of_a_long_run_the_entries_near_the_chosen_one_are_shown(runtime):
    """Two hundred entries would bury the state; how many are left out is said."""

    @dk.workflow
    def long(ctx):
        for number in range(200):
            ctx.step("step", lambda number=number: number)

    model = InspectorModel(runtime.run(long, id="long"))
    model.seq = 100
    page = Page(model.timeline())
    assert page.roles.count("listitem") == 81
    assert f"({model.last - 81} entries further away are not shown)" in page.words

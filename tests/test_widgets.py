"""Widgets without a browser: traits are set and buttons clicked, and what is shown is read."""

import json
import re
import threading
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import ipywidgets
import pydantic
import pytest
import shop

import durakit as dk
from durakit.lab import widgets
from durakit.lab.plots import WIDGET_VIEW
from durakit.lab.scenarios import Frame, Moment, Scenario, Trace, Truth
from durakit.lab.view import CONTROL_NAMES
from durakit.lab.widgets import (
    CheckpointInspector,
    CrashScrubber,
    Inbox,
    InspectorModel,
    JournalTimeline,
    LedgerView,
    ScrubberModel,
)
from durakit.mail import Mailbox
from durakit.sweep import Report, Schedule, can_fork

SCRIPT = "<script>alert(1)</script>"
HOSTILE = SCRIPT + "<img src=x onerror=alert(1)> \"q\" 'q' & \x00\x1b[31m\u202e " + "y" * 10_000

WITH_KEY = Scenario(shop.welcome, (shop.ADA,), shop.deduping)
WITHOUT_KEY = Scenario(shop.guess, (shop.ADA,), shop.silent)


@pytest.fixture
def scrubber():
    """Both scenarios side by side; their traces are made once for all tests."""
    return CrashScrubber(WITH_KEY, WITHOUT_KEY)


class Page(HTMLParser):
    """What a browser would make of HTML: tags, attributes and the words between them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words, self.roles = Counter(), set(), "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        """Note one."""
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}
        self.roles += [value for name, value in attrs if name == "role"]

    def handle_data(self, data):
        """Collect."""
        self.words += data


def parts(widget):
    """A widget and all that is in it."""
    yield widget
    for child in getattr(widget, "children", ()):
        yield from parts(child)


def pages(widget):
    """Every piece of HTML that a view shows, but for our own constant."""
    return [
        part.value
        for part in parts(widget)
        if isinstance(part, ipywidgets.HTML) and part.value != CONTROL_NAMES
    ]


def shown(widget):
    """The words of a whole view."""
    return "\n".join(Page(page).words for page in pages(widget))


def status(widget):
    """The words of the status line."""
    return Page(widget.status.value).words


# -- moving ----------------------------------------------------------------------------------------


def test_the_status_line_says_where_and_what_is_known(scrubber):
    """It begins at the telling crash: done outside, unknown here."""
    assert status(scrubber) == (
        "With a key. Crash 10 of 13 — send_idempotent: effect done, result not saved. "
        "On disk: run running, operations: 1 unknown. In the world: 1 effect."
    )
    assert Page(scrubber.status.value).roles == ["status"]


def test_dragging_shows_each_crash_of_the_sweep(scrubber):
    """Every position has its own picture, and says the ledger's number."""
    scrubber.recover.value = True
    scrubber.key.value = False
    seen = []
    for position, schedule in enumerate(WITHOUT_KEY.trace.report.schedules, 1):
        scrubber.slider.value = position
        assert f"Crash {position} of 13" in status(scrubber)
        assert f"{schedule.effects} effect" in status(scrubber)
        assert status(scrubber).endswith(f"{'✓' if schedule.good else '✗'} {schedule.verdict}.")
        seen.append(scrubber._body.value)
    assert len(set(seen)) == len(seen) == 13
    assert scrubber.troubles == []


def test_previous_and_next_move_by_one_and_stop_at_the_ends(scrubber):
    """The buttons, the slider and the model always say the same."""
    scrubber.previous.click()
    assert (scrubber.slider.value, scrubber.model.position) == (9, 8)
    scrubber.next.click()
    scrubber.next.click()
    assert (scrubber.slider.value, scrubber.model.position) == (11, 10)
    scrubber.slider.value = 1
    scrubber.previous.click()
    assert (scrubber.slider.value, scrubber.model.position) == (1, 0)
    scrubber.slider.value = 13
    scrubber.next.click()
    assert (scrubber.slider.value, scrubber.model.position) == (13, 12)
    # A page takes the focus away from a disabled button, and the keyboard is lost.
    assert not scrubber.previous.disabled
    assert not scrubber.next.disabled


def test_recovery_shows_the_second_mail_only_without_a_key(scrubber):
    """The whole lesson in two toggles."""
    assert shown(scrubber).count("email-") == 2  # in the inbox, and as the key's answer
    scrubber.recover.value = True
    assert "completed, 1 effect. ✓ safe." in status(scrubber)
    scrubber.key.value = False
    assert "completed, 2 effects. ✗ duplicate." in status(scrubber)
    assert "email-2" in shown(scrubber)
    scrubber.recover.value = False
    assert "email-2" not in shown(scrubber)


def test_the_verdict_is_not_told_before_the_recovery(scrubber):
    """Who predicts must not see the answer: no mark in the row of crashes."""
    scrubber.key.value = False
    assert "✗" not in scrubber.model.strip()
    assert "duplicate" not in shown(scrubber)
    scrubber.recover.value = True
    assert scrubber.model.strip().count("✗") == 5


def test_the_key_toggle_stays_at_the_same_boundary(scrubber):
    """Both runs are compared at the crash one looks at."""
    for position in range(1, 14):
        scrubber.key.value = True
        scrubber.slider.value = position
        there = scrubber.model.frame.schedule
        scrubber.key.value = False
        here = scrubber.model.frame.schedule
        assert (here.point, here.fate) == (there.point, there.fate)


def test_toggles_say_in_a_shape_whether_they_are_on(scrubber):
    """Pressed is a colour only, so the label has a box."""
    assert (scrubber.recover.description, scrubber.key.description) == (
        "☐ After recovery",
        "☑ With key",
    )
    scrubber.recover.value = True
    assert scrubber.recover.description == "☑ After recovery"


def test_two_workflows_of_one_name_are_each_recovered_by_their_own_code(tmp_path):
    """A cell that was run again replaces the name; what is compared are the two as they were."""
    world = Mailbox(tmp_path, clock=dk.ManualClock())

    def defined(subject):
        @dk.workflow(name="one of a name")
        def send(ctx):
            return ctx.step("send", lambda: world.send("a@example.org", subject, "b")["id"])

        return Scenario(send, (), world)

    first, second = defined("first"), defined("second")
    for scenario, subject in ((first, "first"), (second, "second")):
        found = [frame.recovered.truth.inbox for frame in scenario.trace.frames]
        assert {mail["subject"] for inbox in found for mail in inbox} == {subject}
    assert dk.define.find_workflow("one of a name") is second.workflow
    world.close()


def test_one_scenario_alone_has_no_key_toggle():
    """There is nothing to compare, so there is no control and no word about it."""
    scrubber = CrashScrubber(WITHOUT_KEY)
    assert scrubber.key not in list(parts(scrubber))
    assert status(scrubber).startswith("Crash 10 of 13")


def test_belief_stands_above_truth(scrubber):
    """The time line's rows are in this order, with the crash as a column."""
    page = scrubber._body.value
    assert page.index("BELIEF") < page.index("TRUTH")
    assert "✗ crash" in page
    text = scrubber.text()
    assert text.index("★ EFFECT") < text.index("✗ crash")


def test_the_model_needs_no_view():
    """Traits in, text out; a position beyond the ends is the end."""
    model = ScrubberModel(WITH_KEY.trace)
    model.position = 99
    assert model.position == 12
    model.position = -5
    assert model.position == 0
    assert model.figure().axes
    assert "EVERY CRASH" in model.text()


def test_a_crash_that_could_not_be_reached_says_so():
    """It has a status in words, an empty body, and no error."""
    schedule = replace(WITH_KEY.trace.frames[0].schedule, verdict="not reachable", detail="no hook")
    frame = Frame(schedule, None, None, {})
    model = ScrubberModel(Trace(Report("w", "simulated", 1, (schedule,)), (frame,)))
    assert model.status().endswith("Not reachable: no hook.")
    assert "TRUTH" not in model.html()
    with pytest.raises(dk.UsageError, match="could not be reached"):
        model.figure()


# -- now for real ----------------------------------------------------------------------------------


@pytest.mark.real_kill
@pytest.mark.skipif(not can_fork(), reason="this platform cannot fork")
@pytest.mark.parametrize("with_key", [True, False])
def test_now_for_real_shows_that_the_rows_are_identical(scrubber, with_key):
    """A child process is killed at the crash that is shown; moving on takes the result away."""
    scrubber.key.value = with_key
    scrubber.kill.click()
    assert scrubber.real.same
    assert scrubber.troubles == []
    assert "✓ The rows are identical" in shown(scrubber)
    assert not scrubber.kill.disabled
    assert "Crash 10 of 13" in status(scrubber)
    scrubber.next.click()
    assert "rows are identical" not in shown(scrubber)


def test_where_no_process_can_be_made_the_view_says_so(scrubber, monkeypatch):
    """Words instead of a traceback nobody sees, and the controls stay usable."""

    def refuse(*_):
        raise dk.UsageError("move it into a module for the real kill")

    monkeypatch.setattr(widgets, "kill_for_real", refuse)
    scrubber.kill.click()
    assert "Not possible here: move it into a module" in shown(scrubber)
    assert not scrubber.kill.disabled


# -- errors, threads, hostile text -----------------------------------------------------------------


def test_an_error_in_a_callback_is_told_in_words_and_kept(scrubber, monkeypatch):
    """A notebook would swallow it; here it stands in the view, escaped, after later moves too."""

    def fail(_self):
        raise ValueError(HOSTILE)

    with monkeypatch.context() as broken:
        broken.setattr(ScrubberModel, "body", fail)
        scrubber.next.click()
    scrubber.next.click()
    assert "ValueError: <script>" in shown(scrubber)
    assert len(scrubber.troubles) == 1
    page = Page(scrubber._trouble.value)
    assert page.roles == ["alert"]
    assert page.tags["script"] == page.tags["img"] == 0


@pytest.mark.real_kill
@pytest.mark.skipif(not can_fork(), reason="this platform cannot fork")
def test_callbacks_work_on_another_thread(scrubber, tmp_path):
    """Each opens what it needs itself, as a kernel may run it anywhere."""
    world = Mailbox(tmp_path)
    inbox = Inbox(world)

    def use():
        scrubber.slider.value = 3
        scrubber.recover.value = True
        scrubber.kill.click()
        world.send("a@example.org", "from a thread", "b")
        inbox.refresh.click()

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert scrubber.troubles == inbox.troubles == []
    assert scrubber.real.same
    assert "Crash 3 of 13" in status(scrubber)
    assert "from a thread" in shown(inbox)


def hostile_trace():
    """A trace in which every word was written by somebody hostile."""
    operation = dict.fromkeys(("tool", "key", "status", "outcome"), HOSTILE) | {"attempts": 1}
    entry = {"seq": 1, "incarnation": 1, "kind": HOSTILE, "step": HOSTILE, "key": HOSTILE}
    entry |= {"attempt": 1, "seconds": 0.0, "says": HOSTILE}
    world = HostileWorld()
    moment = Moment(HOSTILE, HOSTILE, (operation,), (entry,), Truth.of(world))
    schedule = Schedule(1, HOSTILE, HOSTILE, 1, 1, HOSTILE, HOSTILE, 1, HOSTILE, HOSTILE, HOSTILE)
    report = Report(HOSTILE, "simulated", 1, (schedule,))
    return Trace(report, (Frame(schedule, moment, moment, {}),))


class HostileWorld:
    """A world that answers with hostile words in every field."""

    def effects(self):
        """One effect."""
        return [{"tool": HOSTILE, "key": HOSTILE, "digest": HOSTILE, "time": 1.0}]

    def inbox(self):
        """One mail."""
        return [{"id": HOSTILE, "to": HOSTILE, "subject": HOSTILE, "body": HOSTILE, "time": 1.0}]

    def keys(self):
        """One key."""
        return [{"key": HOSTILE, "id": HOSTILE, "first": 1.0, "expires": 2.0, "expired": True}]

    def requests(self):
        """One request."""
        return [{"number": 1, "key": HOSTILE, "outcome": HOSTILE, "id": HOSTILE, "time": 1.0}]


def assert_harmless(page, text):
    """Fail where hostile words became markup, or control characters or ten kilobytes got out."""
    seen = Page(page)
    assert seen.tags["script"] == seen.tags["img"] == 0
    assert not {name for name in seen.attributes if name.startswith("on")}
    assert SCRIPT in seen.words
    assert all(char.isprintable() or char == "\n" for char in text + seen.words)
    assert SCRIPT in text
    assert len(text) < 8_000
    assert len(page) < 30_000


@pytest.mark.parametrize("recovered", [False, True])
def test_hostile_words_are_shown_and_never_run_in_the_scrubber(recovered):
    """Names, keys, subjects, errors: all of them come from somebody else."""
    model = ScrubberModel(hostile_trace())
    model.recovered = recovered
    assert_harmless(model.html(), model.text())
    assert "<script" not in model.body()


@pytest.mark.parametrize("view", [Inbox, LedgerView])
def test_hostile_words_are_shown_and_never_run_in_an_inbox(view):
    """The live view and the fallback alike."""
    inbox = view(HostileWorld())
    assert_harmless(inbox.html(), inbox.text())
    for page in pages(inbox):
        assert Page(page).tags["script"] == 0


def test_a_hostile_subject_goes_from_the_tool_to_every_view(tmp_path):
    """The whole way: sent by a workflow, kept in both files, shown by each widget."""
    clock = dk.ManualClock()
    world = Mailbox(tmp_path / "world", clock=clock)
    subject = SCRIPT + " \"q\" 'q' & " + "y" * 10_000

    @dk.tool(effect="idempotent")
    def send(call, to, subject):
        return world.send(to, subject, "\x00\x1b[31m", key=call.key)

    @dk.workflow
    def hostile(ctx, to):
        title = ctx.step("draft", lambda: subject)
        return ctx.call(send, to, title, key=SCRIPT)

    scrubber = CrashScrubber(Scenario(hostile, ("a@example.org",), world))
    with dk.Runtime(tmp_path / "run.db", clock=clock, world=world) as rt:
        run = rt.run(hostile, "a@example.org", id="1")
        views = [scrubber, Inbox(world), LedgerView(world), JournalTimeline(run, world)]
        for view in views:
            for page in [*pages(view), view.html()]:
                assert Page(page).tags["script"] == 0
    assert SCRIPT in shown(views[1])


def test_our_one_line_of_script_is_a_constant(scrubber):
    """What runs in the page is the same in every view, and asks nothing outside."""
    for view in (scrubber, Inbox(HostileWorld())):
        values = [part.value for part in parts(view) if isinstance(part, ipywidgets.HTML)]
        running = [v for v in values if any(a.startswith("on") for a in Page(v).attributes)]
        assert running == [CONTROL_NAMES]
    assert "http" not in CONTROL_NAMES
    assert "aria-label" in CONTROL_NAMES
    assert "[title]" in CONTROL_NAMES, "the name of a slider is its tooltip"


# -- what a notebook keeps -------------------------------------------------------------------------


def all_views(scrubber, tmp_path):
    """One of each widget."""
    clock = dk.ManualClock()
    world = Mailbox(tmp_path / "world", clock=clock)

    @dk.tool(effect="idempotent")
    def send(call, to):
        return world.send(to, "s", "b", key=call.key)

    @dk.workflow
    def small(ctx, to):
        return ctx.call(send, to, key="k")

    rt = dk.Runtime(tmp_path / "run.db", clock=clock, world=world)
    run = rt.run(small, "a@example.org", id="1", crash=dk.CrashAt("send", "effect_done"))
    return rt, run, [scrubber, Inbox(world), LedgerView(world), JournalTimeline(run, world)]


def test_what_is_stored_is_the_same_each_time_and_on_each_machine(scrubber, tmp_path):
    """No id, no address, no folder, no widget's name: nbval compares these two texts."""
    rt, _, views = all_views(scrubber, tmp_path)
    again = CrashScrubber(WITH_KEY, WITHOUT_KEY)
    for view, other in zip(views, [again, *views[1:]], strict=True):
        bundle, twin = view._repr_mimebundle_(), other._repr_mimebundle_()
        assert set(bundle) == {"text/plain", "text/html", WIDGET_VIEW}
        for kind in ("text/plain", "text/html"):
            assert bundle[kind] == twin[kind]
            assert not re.search(r"0x[0-9a-f]{6}|IPY_MODEL|VBox|children=", bundle[kind])
            assert str(tmp_path) not in bundle[kind]
        assert "<button" not in bundle["text/html"]
        assert json.dumps(bundle)
    rt.close()


def test_the_fallback_says_all_that_the_live_view_says(scrubber):
    """Who only sees the stored page misses the controls, and no fact."""
    words = Page(scrubber.html()).words
    assert status(scrubber) in words
    for fact in ("DISPATCHED", "welcome:7", "email-1", "EFFECT", "EVERY CRASH"):
        assert fact in words
        assert fact in scrubber.text()


def test_every_control_has_a_name_and_no_null_tooltip(scrubber, tmp_path):
    """Buttons say what they do in words; a slider without a tooltip would show 'null'."""
    rt, _, views = all_views(scrubber, tmp_path)
    controls = (ipywidgets.Button, ipywidgets.ToggleButton, ipywidgets.IntSlider)
    found = [part for view in views for part in parts(view) if isinstance(part, controls)]
    assert len(found) == 6 + 3
    for control in found:
        assert control.tooltip
        if not isinstance(control, ipywidgets.IntSlider):
            assert re.search(r"[A-Z][a-z]+", control.description)
            assert not getattr(control, "icon", "")
    assert scrubber.slider.layout.flex.startswith("1 1 ")
    rt.close()


def test_nothing_is_shown_through_an_output_widget(scrubber, tmp_path):
    """Nbval does not redirect those, so they would test nothing."""
    rt, _, views = all_views(scrubber, tmp_path)
    assert not [p for view in views for p in parts(view) if isinstance(p, ipywidgets.Output)]
    rt.close()


# -- views of the world and of a run ---------------------------------------------------------------


def test_an_inbox_shows_new_mail_after_a_refresh(tmp_path):
    """Customers, keys and ledger are read together, at the moment of the look."""
    world = Mailbox(tmp_path, clock=dk.ManualClock())
    inbox = Inbox(world)
    assert "(no mail)" in shown(inbox)
    world.send("a@example.org", "Welcome", "b", key="k:1")
    assert "Welcome" not in shown(inbox)
    inbox.refresh.click()
    assert all(word in shown(inbox) for word in ("Welcome", "k:1", "email-1", "Looked again."))
    world.clock.advance(86_401)
    inbox.refresh.click()
    assert "now forgotten" in shown(inbox)


def test_the_ledger_view_shows_the_request_that_was_only_recognised(tmp_path):
    """Two requests, one effect."""
    world = Mailbox(tmp_path, clock=dk.ManualClock())
    for _ in range(2):
        world.send("a@example.org", "Welcome", "b", key="k:1")
    text = LedgerView(world).text()
    assert (text.count("delivered"), text.count("replayed")) == (1, 1)
    assert len(world.effects()) == 1


def test_a_world_that_cannot_be_asked_any_more_is_told_in_words(tmp_path):
    """The last look stays, and the trouble stands below it."""
    world = Mailbox(tmp_path, clock=dk.ManualClock())
    world.send("a@example.org", "Welcome", "b")
    inbox = Inbox(world)
    world.close()
    inbox.refresh.click()
    assert "Welcome" in shown(inbox)
    assert "RuntimeError: this mailbox is closed" in shown(inbox)


def test_a_run_is_looked_at_again_after_its_recovery(scrubber, tmp_path):
    """At the crash the journal ends with the intent; after it, with the end."""
    rt, run, views = all_views(scrubber, tmp_path)
    timeline = views[-1]
    assert "completed" not in shown(timeline)
    assert "1 effect(s) in the ledger" in shown(timeline)
    rt.recover()
    timeline.refresh.click()
    assert "key recognised" in shown(timeline)
    assert f"Run {run.id}: completed on disk, 1 effect(s) in the ledger." in shown(timeline)
    assert timeline.figure().axes
    rt.close()


# -- the checkpoint inspector ----------------------------------------------------------------------


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

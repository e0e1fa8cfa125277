"""Widgets without a browser: traits are set and buttons clicked, and what is shown is read."""

import json
import re
import threading
from dataclasses import replace

import ipywidgets
import pytest
import shop
from hostile import HOSTILE, SCRIPT, HostileWorld
from pages import Page, pages, parts, shown, status

import durakit as dk
from durakit.lab.crash import widgets
from durakit.lab.crash.moments import Moment, Truth
from durakit.lab.crash.scenarios import Frame, Scenario, Trace
from durakit.lab.crash.scrubber import ScrubberModel
from durakit.lab.crash.widgets import (
    CrashScrubber,
    Inbox,
    JournalTimeline,
    LedgerView,
)
from durakit.lab.plots import WIDGET_VIEW
from durakit.lab.view import CONTROL_NAMES
from durakit.mail import Mailbox
from durakit.sweep import Report, Schedule, can_fork

WITH_KEY = Scenario(shop.welcome, (shop.ADA,), shop.deduping)
WITHOUT_KEY = Scenario(shop.guess, (shop.ADA,), shop.silent)


@pytest.fixture
def scrubber():
    """Both scenarios side by side; their traces are made once for all tests."""
    return CrashScrubber(WITH_KEY, WITHOUT_KEY)


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

    rt = dk.Runtime(tmp_path / "run.db", clock=clock, world=world)
    run = rt.run(
        shop.one_mail(world), "a@example.org", id="1", crash=dk.CrashAt("send", "effect_done")
    )
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

"""What a scenario shows of a crash is what really was there: the ledger and the sweep judge."""

import os
import threading
from dataclasses import replace

import pytest
import shop

import durakit as dk
from durakit.faults import POINTS
from durakit.lab.crash.moments import Moment, Truth, events
from durakit.lab.crash.scenarios import POINT_WORDS, Scenario, kill_for_real
from durakit.mail import Mailbox
from durakit.sweep import can_fork


def keyed(**changes):
    """The workflow that survives, as a scenario."""
    return Scenario(shop.welcome, (shop.ADA,), shop.deduping, **changes)


def keyless(**changes):
    """The workflow that guesses, as a scenario."""
    return Scenario(shop.guess, (shop.ADA,), shop.silent, **changes)


@pytest.fixture(scope="module")
def safe():
    """The trace of the workflow that survives, made once."""
    return keyed(deadline=60.0).trace


@pytest.fixture(scope="module")
def unsafe():
    """The trace of the workflow that guesses, made once."""
    return keyless().trace


def at(trace, point, fate=""):
    """The frame of a crash point of the call."""
    return next(f for f in trace.frames if (f.schedule.point, f.schedule.fate) == (point, fate))


def effects(moment):
    """How many effects the ledger held at a moment."""
    return len(moment.truth.effects)


@pytest.mark.parametrize("make", [keyed, keyless])
def test_a_scenario_judges_as_the_sweep_does(make):
    """Looking at every moment changes no verdict, no number and no order."""
    scenario = make()
    plain = dk.sweep(scenario.workflow, *scenario.args, world=scenario.world)
    assert scenario.trace.report == plain
    assert [frame.schedule for frame in scenario.trace.frames] == list(plain.schedules)


def test_after_the_recovery_the_ledger_holds_what_the_sweep_counted(safe, unsafe):
    """The effects that a frame shows are the effects that were judged."""
    for trace in (safe, unsafe):
        for frame in trace.frames:
            assert effects(frame.recovered) == frame.schedule.effects
            assert frame.recovered.status == frame.schedule.status


def test_four_worlds_show_one_disk(safe):
    """From the intent to the reply, disk views are equal and ledgers are not."""
    points = ("intent_saved", "request_sent", "effect_done", "reply_received")
    fates = ("", "lost", "", "")
    seen = [at(safe, *which).crashed for which in zip(points, fates, strict=True)]
    assert [effects(moment) for moment in seen] == [0, 0, 1, 1]
    assert [len(moment.truth.inbox) for moment in seen] == [0, 0, 1, 1]
    assert len({moment.disk().text() for moment in seen}) == 1
    assert {moment.operations[0]["outcome"] for moment in seen} == {"unknown"}


def test_the_crash_after_the_effect_doubles_the_mail_without_a_key_only(safe, unsafe):
    """The same crash, with and without a key: one mail against two."""
    assert effects(at(safe, "effect_done").recovered) == 1
    assert effects(at(unsafe, "effect_done").recovered) == 2
    assert at(unsafe, "effect_done").schedule.verdict == "duplicate"


def test_a_scenario_is_the_same_each_time(unsafe):
    """What a notebook stores of it does not depend on the day or the folder."""
    again = keyless().trace
    for before, after in zip(unsafe.frames, again.frames, strict=True):
        assert before.crashed.text() == after.crashed.text()
        assert before.recovered.html() == after.recovered.html()


def test_the_world_is_given_back_as_it_was(tmp_path):
    """The learner's own mail is still there after a scenario, and nothing was added to it."""
    world = Mailbox(tmp_path / "mine")
    world.send("a@example.org", "before", "b")

    assert len(Scenario(shop.one_mail(world), ("a@example.org",), world).trace.frames) == 10
    assert [mail["subject"] for mail in world.inbox()] == ["before"]


def test_every_crash_point_has_words():
    """A new crash point cannot be shown without saying what it means."""
    assert set(POINT_WORDS) == {point for points in POINTS.values() for point in points}


def test_two_fates_of_one_request_are_told_apart(safe):
    """A lost request and a late one are two crashes with words of their own."""
    late, lost = at(safe, "request_sent", "late"), at(safe, "request_sent", "lost")
    assert late.words != lost.words
    assert late.crashed.truth.requests[0]["outcome"] == "held"
    assert lost.crashed.truth.requests[0]["outcome"] == "received"


def test_arguments_must_be_a_tuple():
    """A bare customer would be taken apart; the message says what to write."""
    with pytest.raises(dk.InvalidField, match=r"^args: needs a tuple such as \(customer,\)"):
        Scenario(shop.welcome, shop.ADA, shop.deduping)


def test_a_world_without_a_hook_has_crashes_that_cannot_be_seen():
    """What was not reached has no moment, and is not taken for safe."""
    inner = Mailbox()

    trace = Scenario(shop.one_mail(inner), ("a@example.org",), shop.Deaf(inner)).trace
    unseen = {f.schedule.point for f in trace.frames if f.crashed is None and f.recovered is None}
    assert unseen == {"request_sent", "effect_done"}
    assert at(trace, "reply_received").crashed.truth.inbox is None
    assert "this world has no inbox" in at(trace, "reply_received").crashed.text()


# -- the line of time ------------------------------------------------------------------------------


def told(line):
    """A line of events as lane and kind."""
    return [(event.lane, event.kind) for event in line]


def test_the_effect_stands_between_intent_and_crash(unsafe):
    """Belief and truth are in the order in which they came about, and the crash cuts them."""
    frame = at(unsafe, "effect_done")
    line = told(events(frame.recovered, frame.crashed))
    assert line == [
        ("belief", "started"),
        ("belief", "claimed"),
        ("belief", "step"),
        ("belief", "intent"),
        ("truth", "request"),
        ("truth", "effect"),
        ("crash", "crash"),
        ("belief", "claimed"),
        ("belief", "intent"),
        ("truth", "request"),
        ("truth", "effect"),
        ("belief", "result"),
        ("belief", "completed"),
    ]


def test_a_late_request_acts_after_the_crash(unsafe):
    """Its effect is not there at the crash, and is on the other side of it later."""
    frame = at(unsafe, "request_sent", "late")
    assert ("truth", "effect") not in told(events(frame.crashed))
    line = told(events(frame.recovered, frame.crashed))
    assert line.index(("crash", "crash")) < line.index(("truth", "effect"))
    assert line.count(("truth", "effect")) == 2


def test_every_entry_and_every_effect_is_on_the_line_once(safe, unsafe):
    """Nothing is lost or doubled by the merging, whichever crash it was."""
    for frame in (*safe.frames, *unsafe.frames):
        for line in (events(frame.recovered), events(frame.recovered, frame.crashed)):
            kinds = told(line)
            assert sum(lane == "belief" for lane, _ in kinds) == len(frame.recovered.journal)
            assert kinds.count(("truth", "effect")) == effects(frame.recovered)
            assert kinds.count(("truth", "request")) == len(frame.recovered.truth.requests)


@pytest.mark.parametrize("latency", [0.0, 0.05])
def test_a_clock_that_stands_still_does_not_mix_up_two_calls(latency, tmp_path):
    """Each call's request and effect stand behind its own intent and before its result."""
    clock = dk.ManualClock()
    world = Mailbox(tmp_path / "world", clock=clock, latency=latency)

    @dk.tool(effect="idempotent")
    def send(call, to):
        return world.send(to, "s", call.key, key=call.key)

    @dk.workflow
    def twice(ctx, to):
        ctx.call(send, to, key="one")
        return ctx.call(send, to, key="two")

    with dk.Runtime(tmp_path / "run.db", clock=clock, world=world) as rt:
        run = rt.run(twice, "a@example.org", id="1")
        line = [kind for _, kind in told(events(Moment.of(run, world)))]
    call = ["intent", "request", "effect", "result"]
    assert line == ["started", "claimed", *call, *call, "completed"]


def test_the_line_leaves_out_what_the_world_did_before_the_run(tmp_path):
    """A mailbox that others have used shows their mail in the ledger, and not on this line."""
    clock = dk.ManualClock()
    world = Mailbox(tmp_path / "world", clock=clock)
    world.send("a@example.org", "before", "b")
    clock.advance(10)

    @dk.workflow
    def nothing(ctx):
        return ctx.step("look", lambda: 1)

    with dk.Runtime(tmp_path / "run.db", clock=clock, world=world) as rt:
        moment = Moment.of(rt.run(nothing, id="1"), world)
    assert effects(moment) == 1
    assert {lane for lane, _ in told(events(moment))} == {"belief"}


def test_a_run_can_be_looked_at_from_another_thread(tmp_path):
    """A callback of a widget may run anywhere; it opens its own connection."""
    clock = dk.ManualClock()
    world = Mailbox(tmp_path / "world", clock=clock)

    @dk.workflow
    def small(ctx):
        return ctx.step("look", lambda: 1)

    found = []
    with dk.Runtime(tmp_path / "run.db", clock=clock, world=world) as rt:
        run = rt.run(small, id="1")
        thread = threading.Thread(target=lambda: found.append(Moment.of(run, world)))
        thread.start()
        thread.join()
        assert found == [Moment.of(run, world)]


def test_a_crash_finds_its_like_in_another_trace(safe, unsafe):
    """Comparing two workflows stays at the same boundary, though their tools have other names."""
    for position, frame in enumerate(safe.frames):
        other = unsafe.frames[unsafe.find(frame, position)]
        assert other.schedule.point == frame.schedule.point
        assert other.schedule.fate == frame.schedule.fate
    strange = replace(safe.frames[0], schedule=replace(safe.frames[0].schedule, point="new"))
    assert unsafe.find(strange, 99) == len(unsafe.frames) - 1


def test_truth_says_what_a_world_does_not_tell():
    """A world that only counts has no inbox, and that is said rather than shown as empty."""

    class Counting:
        """A world with a ledger only."""

        def effects(self):
            """Count."""
            return [{"tool": "t", "key": None, "digest": "d", "time": 1.0}]

    truth = Truth.of(Counting())
    assert (truth.inbox, truth.keys, truth.requests) == (None, None, None)
    assert truth.ledger_table().rows[0]["key"] == "(none)"


# -- the same crash for real -----------------------------------------------------------------------


@pytest.mark.real_kill
@pytest.mark.parametrize("make", [keyed, keyless])
@pytest.mark.skipif(not can_fork(), reason="this platform cannot fork")
def test_a_killed_process_leaves_the_same_rows(make):
    """At the crash and after the recovery, in the runtime's file and in the world's."""
    scenario = make()
    killed = kill_for_real(scenario, at(scenario.trace, "effect_done"))
    assert killed.same, killed.text()
    files = {(row["when"], row["file"]) for row in killed.rows}
    assert files == {
        (when, file)
        for when in ("at the crash", "after recovery")
        for file in ("run.db", "world/mail.db")
    }


@pytest.mark.real_kill
@pytest.mark.skipif(not can_fork(), reason="this platform cannot fork")
def test_a_workflow_of_a_cell_is_killed_too():
    """Where it lives in no module, this process is forked."""
    world = Mailbox()

    @dk.tool(effect="idempotent")
    def send(call, to):
        return world.send(to, "s", "b", key=call.key)

    @dk.workflow
    def cell(ctx, to):
        return ctx.call(send, to, key="k")

    scenario = Scenario(cell, ("a@example.org",), world)
    late = at(scenario.trace, "request_sent", "late")
    assert kill_for_real(scenario, late).same


@pytest.mark.real_kill
@pytest.mark.skipif(not can_fork(), reason="this platform cannot fork")
def test_rows_that_differ_are_found():
    """The comparison is no formality: another crash's rows are not taken for the same."""
    scenario = keyed()
    here = at(scenario.trace, "effect_done")
    elsewhere = at(scenario.trace, "result_saved")
    killed = kill_for_real(scenario, replace(here, disk=elsewhere.disk))
    assert not killed.same
    assert "✗ The rows differ" in killed.text()
    different = {row["table"] for row in killed.rows if row["same"] != "✓ same"}
    assert {"journal", "operation"} <= different
    at_the_crash = {row["table"] for row in killed.rows if row["when"] == "at the crash"}
    same = {row["table"] for row in killed.rows if row["same"] == "✓ same"}
    # Between these two crashes nothing happened outside.
    assert "mail" in at_the_crash & same


def test_where_no_child_can_be_made_it_is_said_in_words(monkeypatch):
    """Without fork, a workflow in a cell must move into a module."""
    world = Mailbox()

    @dk.workflow
    def cell(ctx):
        return ctx.step("a", lambda: 1)

    scenario = Scenario(cell, (), world)
    frame = scenario.trace.frames[0]
    monkeypatch.delattr(os, "fork", raising=False)
    with pytest.raises(dk.UsageError, match="into a module"):
        kill_for_real(scenario, frame)


# -- the sweep's two small hooks -------------------------------------------------------------------


def test_a_sweep_of_one_crash_tries_only_that_one():
    """``only`` names it by its seed."""
    report = dk.sweep(
        shop.guess, shop.ADA, world=shop.silent, only="late:request_sent@send_blindly"
    )
    assert [(s.point, s.fate, s.verdict) for s in report.schedules] == [
        ("request_sent", "late", "duplicate")
    ]


def test_a_sweep_can_be_watched_between_crash_and_recovery():
    """``watch`` is called twice for each crash, in order, with the files of that moment."""
    told_of = []

    def watch(stage, seed, folder):
        assert (folder / "run.db").exists()
        told_of.append((stage, seed))

    report = dk.sweep(shop.welcome, shop.ADA, world=shop.deduping, watch=watch)
    seeds = [schedule.seed for schedule in report.schedules]
    assert told_of == [(stage, seed) for seed in seeds for stage in ("crashed", "recovered")]

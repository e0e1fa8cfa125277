"""The laws of a crash, over a corpus of workflows and every crash point of each.

A law is judged by the mail service's own ledger and by the rows on disk, never by what the
runtime says of itself.
"""

import json
import sqlite3
from pathlib import Path

import pytest
import shop

import durakit as dk
from durakit.define import register
from durakit.faults import POINTS
from durakit.kill import can_fork, children
from durakit.lives import Task
from durakit.mail import Fault
from durakit.sweep import _points

MAIL_KEYS = {"welcome": "welcome:7", "ask": "ask:7", "shrug": "shrug:7"}


def rows(file: Path) -> dict[str, list[tuple]]:
    """Every row and every column of every table of a file, as SQLite gives them."""
    connection = sqlite3.connect(file)
    try:
        names = [
            name
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
            )
        ]
        return {
            name: connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall()
            for name in names
        }
    finally:
        connection.close()


def task_of(workflow: dk.Workflow) -> Task:
    """The sweep's own task for a workflow of the corpus, over its world."""
    register(workflow)  # other tests define workflows of the same names
    form = workflow.parameters.dump((shop.ADA,), {})
    return Task(workflow, form, shop.CORPUS[workflow], 60.0, 0)


@pytest.fixture(params=list(shop.CORPUS), ids=lambda w: w.name)
def workflow(request):
    """Each workflow of the corpus."""
    return request.param


@pytest.mark.real_kill
@pytest.mark.skipif(not can_fork(), reason="this platform cannot fork a child per crash point")
def test_a_simulated_crash_equals_sigkill_row_for_row(workflow, tmp_path):
    """At every crash point both leave the same rows, and recovery the same rows and ledger."""
    task = task_of(workflow)
    boundaries, _ = task.reference(tmp_path / "reference")
    tried = 0
    with children(task, "process") as kids:
        for number, (crash, _) in enumerate(_points(boundaries, hooked=True)):
            here, there = tmp_path / f"{number}-simulated", tmp_path / f"{number}-killed"
            assert task.crash(here, crash), crash
            assert kids.kill(there, crash), crash
            for folder in ("run.db", "world/mail.db"):
                assert rows(here / folder) == rows(there / folder), crash
            endings = [task.recover(folder) for folder in (here, there)]
            assert endings[0] == endings[1], crash
            for folder in ("run.db", "world/mail.db"):
                assert rows(here / folder) == rows(there / folder), crash
            tried += 1
    assert tried >= len(boundaries) > 10


def test_no_crash_point_gives_a_second_effect_or_loses_one(workflow):
    """Over every crash point the ledger ends with the reference's effects, or a person is asked."""
    report = dk.sweep(workflow, shop.ADA, world=shop.CORPUS[workflow], deadline=60)
    assert report.safe, report.text()
    assert report.counterexample is None
    handed_over = {s.point for s in report.schedules if "handed over" in s.verdict}
    if workflow is shop.shrug:
        assert handed_over == {"intent_saved", "request_sent", "effect_done", "reply_received"}
    else:
        assert not handed_over


@pytest.mark.parametrize("name", ["welcome", "ask", "shrug"])
def test_four_different_worlds_leave_one_identical_record(name, tmp_path):
    """From the intent to the reply in memory, nothing on disk tells the worlds apart."""
    workflow = next(w for w in shop.CORPUS if w.name == name)
    task = task_of(workflow)
    boundaries, _ = task.reference(tmp_path / "reference")
    tool = next(b.place for b in boundaries if b.point == "request_sent")
    records, effects = [], []
    for point in ("intent_saved", "request_sent", "effect_done", "reply_received"):
        folder = tmp_path / point
        assert task.crash(folder, dk.CrashAt(tool, point))
        records.append(rows(folder / "run.db"))
        task.world.fresh(folder / "world")
        effects.append(len(task.world.effects()))
    assert effects == [0, 0, 1, 1]
    assert records[0] == records[1] == records[2] == records[3]
    status = {row[2]: row[5] for row in records[0]["operation"]}
    assert status[MAIL_KEYS[name]] == "DISPATCHED"


def test_the_table_of_the_protocol_is_what_the_disk_says(tmp_path):
    """Each crash point of a call leaves the record and the outcome that the protocol states."""
    task = task_of(shop.welcome)
    said = {}
    for point in POINTS["call"]:
        folder = tmp_path / point
        assert task.crash(folder, dk.CrashAt("send_idempotent", point))
        rt = dk.Runtime(folder / "run.db", clock=dk.ManualClock())
        table = rt.get("sweep").operations()
        said[point] = [tuple(r) for r in table[["status", "outcome"]].itertuples(index=False)]
        rt.close()
    unknown = [("DISPATCHED", "unknown")]
    assert said == {
        "before_intent": [],
        "intent_saved": unknown,
        "request_sent": unknown,
        "effect_done": unknown,
        "reply_received": unknown,
        "result_saved": [("SUCCEEDED", "completed")],
    }


def test_a_crash_by_number_is_the_crash_that_the_table_numbers(tmp_path):
    """``CrashAt(n)`` dies at the n-th boundary of the sweep's table, by name the same."""
    task = task_of(shop.welcome)
    boundaries, _ = task.reference(tmp_path / "reference")
    assert [b.number for b in boundaries] == list(range(1, len(boundaries) + 1))
    for boundary in boundaries:
        folder = tmp_path / str(boundary.number)
        _, run = task.first_drive(folder, dk.CrashAt(boundary.number))
        assert (run.crash.place, run.crash.point) == (boundary.place, boundary.point)
    assert not task.crash(tmp_path / "beyond", dk.CrashAt(len(boundaries) + 1))


def test_occurrence_attempt_and_incarnation_tell_crash_points_apart(tmp_path):
    """The third mail, the second attempt, the second incarnation: each can be hit alone."""
    task = task_of(shop.three_mails)
    assert task.crash(tmp_path / "a", dk.CrashAt("send_idempotent", "effect_done", occurrence=3))
    assert len(task.world.effects()) == 3
    assert task.crash(tmp_path / "b", dk.CrashAt("draft", "before_step", occurrence=2))
    assert len(task.world.effects()) == 1
    folder = tmp_path / "c"
    crash = dk.CrashAt("send_idempotent", "effect_done")
    rt, run = task.first_drive(folder, crash)
    again = dk.CrashAt("send_idempotent", "intent_saved", attempt=2, incarnation=2)
    assert rt.resume("sweep", crash=again).crash.point == "intent_saved"
    assert run.operations()["attempts"].tolist() == [2]
    assert rt.resume("sweep").status == "completed"
    assert len(task.world.effects()) == 3


def test_a_dead_incarnation_touches_neither_store_nor_world(tmp_path):
    """Code in ``finally`` runs in a simulation, and leaves no trace: a dead process has none."""
    world, clock = shop.silent, dk.ManualClock()
    world.clock = clock
    world.fresh(tmp_path / "world")
    tried = []

    @dk.workflow(name="tidy")
    def tidy(ctx):
        try:
            ctx.step("work", lambda: 1)
        finally:
            for touch in (
                lambda: ctx.step("clean up", lambda: world.send("a@example.org", "s", "b")),
                lambda: world.send("a@example.org", "s", "b"),
                lambda: rt.runs(),
                lambda: ctx.call(shop.send_opaque, "a@example.org", "s", "b", key="k"),
            ):
                try:
                    touch()
                except BaseException as error:
                    tried.append(type(error).__name__)

    rt = dk.Runtime(tmp_path / "run.db", clock=clock, world=world)
    run = rt.run(tidy, id="t", crash=dk.CrashAt("work", "step_done"))
    assert run.crash is not None
    assert tried == ["SimulatedCrash"] * 4
    assert world.effects() == []
    assert world.requests() == []
    assert run.history()["kind"].tolist() == ["started", "claimed"]


def test_except_exception_cannot_swallow_a_crash_or_a_suspension(tmp_path):
    """Even a bare ``except`` that goes on with other work does not change what happened."""
    world, clock = shop.silent, dk.ManualClock()
    world.clock = clock
    world.fresh(tmp_path / "world")
    world.plan = [Fault("reply_lost")]

    @dk.workflow(name="swallow")
    def swallow(ctx):
        try:
            ctx.call(shop.send_opaque, "a@example.org", "s", "b", key="one")
        except:  # noqa: E722 - the worst that user code does
            pass
        try:
            ctx.call(shop.send_opaque, "a@example.org", "s", "b", key="two")
        except BaseException as error:
            raise RuntimeError("something else") from error
        return "done"

    rt = dk.Runtime(tmp_path / "run.db", clock=clock, world=world)
    run = rt.run(swallow, id="t")
    world.plan = []
    assert run.status == "needs_decision"
    assert len(world.effects()) == 1
    assert run.operations()["key"].tolist() == ["one"]


def test_a_request_that_acts_late_is_found_or_deduplicated(tmp_path):
    """The second fate of a request: it acts after the crash, and never becomes a second mail."""
    for workflow in (shop.welcome, shop.ask):
        task = task_of(workflow)
        tool = "send_idempotent" if workflow is shop.welcome else "send_queryable"
        folder = tmp_path / workflow.name
        assert task.crash(folder, dk.CrashAt(tool, "request_sent", fate="late"))
        assert task.world.effects() == []
        ending = task.recover(folder)
        assert ending.status == "completed", ending.reason
        assert len(ending.effects) == 1


def test_seeds_name_crashes_on_any_machine():
    """A crash survives the way through its seed; other text is refused by name."""
    for crash in (
        dk.CrashAt(5),
        dk.CrashAt("send_email", "effect_done"),
        dk.CrashAt("a:b@c", "request_sent", 2, 3, 4, fate="late"),
    ):
        assert dk.CrashAt.parse(crash.seed) == crash
    for text in ("", "x", "nowhere@send", "o0:5", "z9:5", "late"):
        with pytest.raises(dk.InvalidField):
            dk.CrashAt.parse(text)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((0,), "number"),
        ((True,), "step_or_tool"),
        ((1.5,), "step_or_tool"),
        (("send", "nowhere"), "point"),
        (("send",), "point"),
        ((3, "effect_done"), "point"),
        (("send", "effect_done", 0), "occurrence"),
        (("send", "effect_done", 1, -1), "attempt"),
        (("send", "effect_done", 1, 1, "2"), "incarnation"),
        ((3, None, 2), "occurrence"),
        ((3, None, 1, 2), "attempt"),
    ],
)
def test_a_crash_that_cannot_be_is_refused_by_field(arguments, field):
    """The message names the field."""
    with pytest.raises(dk.InvalidField, match=f"^{field}:"):
        dk.CrashAt(*arguments)


def test_only_a_request_on_its_way_can_be_late():
    """At any other point the fate would say nothing; at a boundary by number it may."""
    for point in sorted({point for points in POINTS.values() for point in points}):
        if point in ("request_sent", "key_claimed"):
            assert dk.CrashAt("send", point, fate="late").fate == "late"
        else:
            with pytest.raises(dk.InvalidField, match="^fate:"):
                dk.CrashAt("send", point, fate="late")
    assert dk.CrashAt(5, fate="late").fate == "late"


def test_every_boundary_of_the_design_is_passed(tmp_path):
    """Every crash point of runs, steps, calls and recovery is one that some run passes."""
    seen = set()
    for workflow in (shop.welcome, shop.ask):
        task = task_of(workflow)
        boundaries, _ = task.reference(tmp_path / workflow.name)
        seen |= {b.point for b in boundaries}
    task = task_of(shop.ask)
    folder = tmp_path / "recovery"
    assert task.crash(folder, dk.CrashAt("send_queryable", "effect_done"))
    rt = task._open(folder, "again", dk.ManualClock(dk.ManualClock.START + 60), 1)
    met = []
    rt._seen = met.append
    rt.recover_rows()
    seen |= {b.point for b in met}
    # Those are passed in test_waits, test_machine and test_sweep.
    elsewhere = {point for kind in ("wait", "machine", "claim") for point in POINTS[kind]}
    assert seen == {point for points in POINTS.values() for point in points} - elsewhere


def test_journal_payloads_are_strict_ascii_json(tmp_path):
    """Whatever was crashed and recovered, every payload loads as JSON and is ASCII."""
    task = task_of(shop.welcome)
    folder = tmp_path / "a"
    assert task.crash(folder, dk.CrashAt("send_idempotent", "effect_done"))
    task.recover(folder)
    for row in rows(folder / "run.db")["journal"]:
        payload = next(v for v in row if isinstance(v, str) and v.startswith("{"))
        assert payload.isascii()
        json.loads(payload, parse_constant=lambda name: pytest.fail(name))


def test_a_crash_point_that_was_not_reached_is_told(tmp_path):
    """A crash given for another incarnation, or a point passed by nobody, is no silent success."""
    workflow = dk.workflow(lambda ctx: ctx.step("a", lambda: 1), name="passed by")
    with dk.Runtime(tmp_path / "run.db", clock=dk.ManualClock()) as rt:
        rt.run(workflow, id="a", crash=dk.CrashAt("a", "step_done"))
        again = rt.resume("a", crash=dk.CrashAt("a", "step_done"))
        assert (again.status, again.note) == ("completed", "the crash point was not reached")
        assert rt.run(workflow, id="b").note == ""

"""Waiting without working: durable timers, and a person in the loop."""

import random

import pytest

import durakit as dk
from durakit.faults import POINTS


def approval(world):
    """Draft, wait a day, ask a person, send."""

    @dk.tool(effect="idempotent")
    def send(call, text):
        return world.send("ada@example.org", "Hi", text, key=call.key)

    @dk.workflow(name="approval")
    def workflow(ctx):
        draft = ctx.step("draft", lambda: "hello")
        ctx.sleep(86_400, name="cool down")
        answer = ctx.wait_for("approval")
        return ctx.call(send, f"{draft} ({answer})", key="k") if answer == "yes" else None

    return workflow


def test_a_timer_waits_without_a_lease_and_ends_on_time(rt, world):
    """Recovery before the time leaves it waiting; at the time it goes on (L029)."""
    run = rt.run(approval(world), id="a")
    assert run.status == "waiting"
    assert "2026-01-02" in run.reason
    assert rt.runs()["owner"].tolist() == [""]
    assert rt.recover()["did"].tolist() == ["waiting"]
    world.clock.advance(86_399)
    assert rt.recover()["did"].tolist() == ["waiting"]
    world.clock.advance(1)
    assert rt.recover()["did"].tolist() == ["driven"]
    assert "approval" in run.reason
    assert world.effects() == []


def test_a_signal_ends_a_wait_whether_it_comes_before_or_after(rt, world):
    """It is kept until the run asks for it."""
    workflow = approval(world)
    early, late = rt.run(workflow, id="early"), rt.run(workflow, id="late")
    rt.signal("early", "approval", "no")
    world.clock.advance(86_400)
    rt.recover()
    assert (early.status, late.status) == ("completed", "waiting")
    rt.signal("late", "approval", "yes")
    rt.recover()
    assert late.result == {"id": "email-1"}
    assert len(world.effects()) == 1
    with pytest.raises(dk.UsageError, match="completed"):
        rt.signal("late", "approval", "yes")


def test_L038_code_before_a_pause_is_not_carried_out_again(rt, world):
    """A mail, then three pauses in a loop: one mail, and each answer goes to its own pause."""

    @dk.tool(effect="idempotent")
    def send(call):
        return world.send("ada@example.org", "Hi", "b", key=call.key)

    @dk.workflow(name="loop")
    def workflow(ctx):
        ctx.call(send, key="k")
        return [ctx.wait_for("answer") for _ in range(3)]

    run = rt.run(workflow, id="a")
    for number in range(3):
        assert run.status == "waiting"
        rt.signal("a", "answer", number)
        rt.recover()
    assert run.result == [0, 1, 2]
    assert len(world.requests()) == 1


@pytest.mark.parametrize("seed", range(10))
def test_L040_answers_in_any_order_reach_their_own_pause(rt, seed):
    """Two pauses of one run are told apart by their names."""

    @dk.workflow(name="two")
    def workflow(ctx):
        return [ctx.wait_for("first"), ctx.wait_for("second")]

    run = rt.run(workflow, id="a")
    names = ["first", "second"]
    random.Random(seed).shuffle(names)
    for name in names:
        rt.signal("a", name, f"to {name}")
        rt.recover()
    assert run.result == ["to first", "to second"]


def test_a_wait_for_a_signal_has_its_own_limit(rt, world):
    """After it, the workflow gets an error that names the wait, also in a replay."""
    got = []

    @dk.workflow(name="impatient")
    def workflow(ctx):
        try:
            ctx.wait_for("answer", timeout=10)
        except dk.DeadlineExceeded as error:
            got.append((error.level, error.name))
        return ctx.step("next", lambda: "went on")

    run = rt.run(workflow, id="a")
    assert rt.recover()["did"].tolist() == ["waiting"]
    world.clock.advance(10)
    rt.resume("a", crash=dk.CrashAt("next", "step_saved", incarnation=2))
    rt.recover()
    assert run.result == "went on"
    assert got == [("wait", "answer")] * 2


def test_a_timer_that_would_outlast_the_deadline_is_not_begun(rt):
    """The limit is named at once; nothing waits in vain."""
    workflow = dk.workflow(lambda ctx: ctx.sleep(100), name="too long")
    run = rt.run(workflow, id="a", deadline=60)
    assert run.status == "failed"
    with pytest.raises(dk.DeadlineExceeded, match="session"):
        _ = run.result


def test_a_waiting_run_can_be_cancelled(rt, world):
    """The wish wakes it, and nothing else runs."""
    run = rt.run(approval(world), id="a")
    rt.cancel("a")
    rt.recover()
    assert run.status == "cancelled"
    assert world.requests() == []


def test_every_crash_point_of_a_waiting_workflow_is_safe(world, tmp_path):
    """Timer and signal survive a crash at any boundary; the referee is the ledger."""
    workflow = approval(world)
    clock = world.clock

    def finish(rt):
        for _ in range(6):
            rt.recover()
            clock.advance(86_400)
        if rt.get("a").status == "waiting":
            rt.signal("a", "approval", "yes")
        rt.recover()
        rt.recover()

    met = []
    number = 0
    while True:
        number += 1
        for incarnation in (1, 2, 3):
            folder = tmp_path / f"{number}-{incarnation}"
            folder.mkdir()
            world.fresh(folder / "world")
            rt = dk.Runtime(folder / "run.db", clock=clock, world=world)
            rt._seen = met.append
            run = rt.run(workflow, id="a", crash=dk.CrashAt(number) if incarnation == 1 else None)
            if incarnation > 1:
                clock.advance(86_400)
                if incarnation == 3:
                    rt.recover()
                    rt.signal("a", "approval", "yes")
                run = rt.resume("a", crash=dk.CrashAt(number, incarnation=incarnation))
            crashed = run.crash is not None
            finish(rt)
            assert rt.get("a").result == {"id": "email-1"}
            assert len(world.effects()) == 1
            rt.close()
            if incarnation == 3 and not crashed and number > 8:
                assert {b.point for b in met} >= set(POINTS["wait"])
                return

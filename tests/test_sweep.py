"""The sweep must find what is wrong, and only that: its verdicts are tested on broken workflows."""

import sys
import textwrap

import pytest
import shop

import durakit as dk
from durakit.kill import can_fork
from durakit.mail import Mailbox


def points(report, verdict):
    """The crash points with a verdict."""
    return {s.point for s in report.schedules if s.verdict == verdict}


def test_a_blind_resend_is_found_as_a_duplicate():
    """After the effect, sending again doubles it; before it, the same guess just went well."""
    report = dk.sweep(shop.guess, shop.ADA, world=shop.silent)
    assert points(report, "duplicate") == {"request_sent", "effect_done", "reply_received"}
    assert points(report, "blind guess") == {"intent_saved", "request_sent"}
    assert not report.safe
    assert report.counterexample == "late:request_sent@send_blindly"
    assert "counterexample: late:request_sent@send_blindly" in report.text()


def test_an_effect_hidden_in_a_step_is_found_as_a_duplicate():
    """A step may run again, so its mail may be sent again."""
    report = dk.sweep(shop.sends_in_a_step, shop.ADA, world=shop.silent)
    assert points(report, "duplicate") == {"effect_done", "request_sent", "step_done"}


def test_a_lost_effect_is_found(tmp_path):
    """A tool that claims to have no effect, and skips a repeated attempt, loses the mail."""
    world = Mailbox(profile="opaque")

    @dk.tool(effect="none")
    def forgetful(call, to):
        return {} if call.attempt > 1 else world.send(to, "s", "b") and {}

    @dk.workflow
    def loses(ctx, to):
        return ctx.call(forgetful, to, key="k")

    report = dk.sweep(loses, "a@example.org", world=world)
    assert points(report, "lost") == {"intent_saved", "request_sent"}


def test_another_result_than_without_a_crash_is_found():
    """A result that depends on the attempt is wrong after a crash, though the mail is right."""
    world = Mailbox()

    @dk.tool(effect="idempotent")
    def counts(call, to):
        world.send(to, "s", "b", key=call.key)
        return call.attempt

    @dk.workflow
    def wrong(ctx, to):
        return ctx.call(counts, to, key="k")

    report = dk.sweep(wrong, "a@example.org", world=world)
    assert "effect_done" in points(report, "wrong result")
    assert "result_saved" not in points(report, "wrong result")


def test_a_run_that_recovery_cannot_finish_is_found_as_stuck():
    """A workflow whose steps depend on the run's age does not match its journal."""
    world = Mailbox()
    lives = []

    @dk.workflow
    def moody(ctx):
        lives.append(1)
        ctx.step(f"life {len(lives) % 2}", lambda: 1)
        return ctx.step("end", lambda: 2)

    report = dk.sweep(moody, world=world)
    assert "step_saved" in points(report, "stuck")


def test_a_world_without_a_hook_is_reported_as_not_reachable():
    """What the sweep cannot try is never passed as safe."""
    inner = Mailbox()

    class Deaf:
        """A world that can be counted, and not listened to."""

        def __init__(self):
            self.clock = None

        def fresh(self, folder):
            inner.clock = self.clock
            inner.fresh(folder)

        def effects(self):
            return inner.effects()

    @dk.tool(effect="idempotent")
    def send(call, to):
        return inner.send(to, "s", "b", key=call.key)

    @dk.workflow
    def plain(ctx, to):
        return ctx.call(send, to, key="k")

    report = dk.sweep(plain, "a@example.org", world=Deaf())
    assert points(report, "not reachable") == {"request_sent", "effect_done"}
    assert not report.safe
    assert report.counterexample is None
    reasons = {s.detail for s in report.schedules if s.verdict == "not reachable"}
    assert reasons == {"the world has no hook"}


def test_the_world_is_given_back_as_it_was(tmp_path):
    """The learner's own inbox is still there after a sweep."""
    world = Mailbox(tmp_path / "mine")
    clock = world.clock
    world.send("a@example.org", "before", "b")

    @dk.tool(effect="idempotent")
    def send(call, to):
        return world.send(to, "s", "b", key=call.key)

    @dk.workflow
    def plain(ctx, to):
        return ctx.call(send, to, key="k")

    assert dk.sweep(plain, "a@example.org", world=world).safe
    assert [mail["subject"] for mail in world.inbox()] == ["before"]
    assert world.clock is clock


@pytest.mark.real_kill
@pytest.mark.skipif(not can_fork(), reason="this platform cannot fork")
def test_real_kills_and_simulated_crashes_give_equal_verdicts():
    """In a module (a new interpreter) and in a cell (a fork of this process) alike."""
    for workflow, world in shop.BROKEN.items():
        simulated = dk.sweep(workflow, shop.ADA, world=world)
        killed = dk.sweep(workflow, shop.ADA, world=world, mode="process")
        assert killed.schedules == simulated.schedules
    local = Mailbox(profile="idempotent")

    @dk.tool(effect="idempotent")
    def send(call, to):
        return local.send(to, "s", "b", key=call.key)

    @dk.workflow(name="in a cell")
    def cell(ctx, to):
        return ctx.call(send, to, key="k")

    simulated = dk.sweep(cell, "a@example.org", world=local)
    assert dk.sweep(cell, "a@example.org", world=local, mode="process").rows == simulated.rows


def test_where_no_child_can_be_made_the_message_says_what_to_do(monkeypatch):
    """Without fork, a workflow in a cell must move into a module."""
    monkeypatch.setattr("durakit.kill.can_fork", lambda: False)
    world = Mailbox()

    @dk.workflow(name="cell only")
    def cell(ctx):
        return ctx.step("a", lambda: 1)

    with pytest.raises(dk.UsageError, match="into a module"):
        dk.sweep(cell, world=world, mode="process")


@pytest.mark.real_kill
def test_a_user_module_is_swept_in_a_new_interpreter(tmp_path, monkeypatch):
    """A module that is not ours, found on the path, with a world of its own."""
    (tmp_path / "my_shop_module.py").write_text(
        textwrap.dedent(
            """
            import durakit as dk
            from durakit.mail import Mailbox

            world = Mailbox()

            @dk.tool(effect="idempotent")
            def send(call, to):
                return world.send(to, "s", "b", key=call.key)

            @dk.workflow
            def mine(ctx, to):
                return ctx.call(send, to, key="k")
            """
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    import my_shop_module as module

    report = dk.sweep(module.mine, "a@example.org", world=module.world, mode="process")
    assert report.safe, report.text()
    assert len(report.schedules) == 10
    del sys.modules["my_shop_module"]


def test_files_of_each_schedule_can_be_kept(tmp_path):
    """``keep`` names a fresh folder; one that holds something is refused, untouched."""
    dk.sweep(shop.welcome, shop.ADA, world=shop.deduping, keep=tmp_path / "kept")
    assert (tmp_path / "kept" / "reference" / "run.db").exists()
    with pytest.raises(dk.InvalidField, match="^keep:"):
        dk.sweep(shop.welcome, shop.ADA, world=shop.deduping, keep=tmp_path / "kept")


def test_what_cannot_be_swept_is_refused_by_name():
    """A bare function, a world without verbs, an unknown mode."""
    with pytest.raises(dk.InvalidField, match="^workflow:"):
        dk.sweep(len, world=shop.silent)
    with pytest.raises(dk.InvalidField, match=r"^world: needs fresh\(\)"):
        dk.sweep(shop.welcome, shop.ADA, world=object())
    with pytest.raises(dk.InvalidField, match="^mode:"):
        dk.sweep(shop.welcome, shop.ADA, world=shop.silent, mode="imagined")


def test_the_table_has_one_row_per_schedule():
    """The DataFrame shows what the rows say."""
    report = dk.sweep(shop.welcome, shop.ADA, world=shop.deduping)
    table = report.table()
    assert len(table) == len(report.schedules)
    assert table["verdict"].tolist() == [s.verdict for s in report.schedules]
    assert table["effects"].tolist() == [1] * len(table)

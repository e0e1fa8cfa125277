"""Machines: a checkpoint after every transition, and recovery that enters the last saved state."""

import json

import pytest
from pydantic import BaseModel

import durakit as dk
from durakit.errors import WorkflowChanged
from durakit.machine import only_at_the_end
from durakit.mail import Fault


class Letters(BaseModel):
    """The state of the little machine of these tests."""

    to_write: list[str]
    written: list[str] = []
    sent: list[str] = []
    stage: str = "write"


def writer(world, ran=None, *, effect="idempotent", **options):
    """A machine that writes a letter in one transition and sends it in the next."""
    ran = [] if ran is None else ran

    @dk.tool(name="post", effect=effect, timeout=5)
    def post(call, to):
        return world.send(to, "Hi", f"Dear {to}", key=call.key, timeout=call.remaining())["id"]

    @dk.machine(state=Letters, name="writer", **options)
    def step_by_step(ctx, state):
        if state.stage == "write":
            if not state.to_write:
                return dk.Done(state, result=state.sent)
            to = state.to_write.pop(0)
            state.written.append(ctx.step("write", lambda: ran.append(to) or f"Dear {to}"))
            state.stage = to
            return state
        state.sent.append(ctx.call(post, state.stage, key=f"letter:{state.stage}"))
        state.stage = "write"
        return state

    return step_by_step


START = Letters(to_write=["ada@example.org", "bob@example.org"])


def test_a_machine_runs_to_its_end_and_saves_a_state_per_transition(rt, world):
    """Two letters: five transitions, five checkpoints, two mails."""
    run = rt.run(writer(world), START, id="a")
    assert run.result == ["email-1", "email-2"]
    table = run.checkpoints()
    assert table["transition"].tolist() == [1, 2, 3, 4, 5]
    assert len(world.effects()) == 2
    last = run.at(int(table["seq"].iloc[-1]))
    assert isinstance(last, Letters)
    assert last.sent == ["email-1", "email-2"]


def test_every_crash_point_of_a_machine_is_safe(world):
    """L001: the sweep over a machine, simulated and killed: the ledger holds each letter once."""
    report = dk.sweep(writer(world), START, world=world, deadline=600)
    assert report.safe, report.text()
    assert "checkpoint_saved" in {s.point for s in report.schedules}
    assert {s.effects for s in report.schedules} == {2}


def test_recovery_enters_the_last_saved_state_and_not_a_line(rt, world):
    """A crash after the work of a transition repeats that transition only."""
    ran = []
    machine = writer(world, ran)
    rt.run(machine, START, id="a", crash=dk.CrashAt("write", "step_done", occurrence=2))
    assert ran == ["ada@example.org", "bob@example.org"]
    rt.recover()
    assert ran == ["ada@example.org", "bob@example.org", "bob@example.org"]
    assert rt.get("a").status == "completed"


def test_saving_only_at_the_end_repeats_the_models_work_and_keys_protect_the_mailbox(rt, world):
    """The anti-pattern: all work again, and still one mail per letter."""
    ran = []
    machine = writer(world, ran, save=only_at_the_end)
    run = rt.run(machine, START, id="a", crash=dk.CrashAt("post", "result_saved", occurrence=2))
    assert len(run.checkpoints()) == 0
    assert run.at(3) == START
    rt.recover()
    assert ran == ["ada@example.org", "bob@example.org"] * 2
    assert run.result == ["email-1", "email-2"]
    assert len(world.effects()) == 2
    assert len(run.checkpoints()) == 1


def test_a_save_place_is_a_rule_over_two_states(rt, world):
    """Here: after each letter that was sent, not after each one written."""
    machine = writer(world, save=lambda before, after: len(after.sent) > len(before.sent))
    run = rt.run(machine, START, id="a")
    assert run.checkpoints()["transition"].tolist() == [2, 4, 5]
    steps = run.history().query("kind == 'step'")
    assert len(steps) == 2


def test_an_unknown_call_parks_a_machine_too(rt, world):
    """L007: the state is at a defined boundary, and a person's word goes on from there."""
    world.plan = [Fault("reply_lost")]
    run = rt.run(writer(world, effect="opaque"), START, id="a")
    assert run.status == "needs_decision"
    assert len(world.effects()) == 1
    rt.resolve("a", "letter:ada@example.org", "completed", result="email-1", by="Grace")
    rt.recover()
    assert run.result == ["email-1", "email-2"]
    assert len(world.effects()) == 2


def test_a_machine_that_forgets_an_unknown_call_is_not_completed(rt, world):
    """A re-planned machine that never asks for the key again parks at its end."""
    world.plan = [Fault("reply_lost")]
    lives = []

    @dk.tool(effect="opaque", timeout=5)
    def post(call, to):
        return world.send(to, "s", "b", timeout=call.remaining())["id"]

    @dk.machine(state=Letters, name="forgetful")
    def forgetful(ctx, state):
        lives.append(1)
        if len(lives) == 1:
            ctx.call(post, "ada@example.org", key="k")
        return dk.Done(state)

    run = rt.run(forgetful, START, id="a")
    assert run.status == "needs_decision"
    assert rt.resume("a").status == "needs_decision"
    assert "'k'" in run.reason
    assert len(world.requests()) == 1


def test_a_finished_run_returns_its_state_where_no_result_is_given(rt):
    """As JSON; ``at`` gives the model."""

    @dk.machine(state=Letters, name="plain")
    def plain(ctx, state):
        return dk.Done(state)

    assert rt.run(plain, START, id="a").result == START.model_dump()


def test_what_a_machine_returns_wrongly_is_told(rt):
    """A dict is no state; a bare workflow value is no state."""

    @dk.machine(state=Letters, name="wrong")
    def wrong(ctx, state):
        return state.model_dump()

    run = rt.run(wrong, START, id="a")
    assert run.status == "failed"
    assert "returned dict; it returns the next Letters" in run.reason
    with pytest.raises(TypeError, match="one Letters"):
        rt.run(wrong, {"to_write": []}, id="b")
    with pytest.raises(dk.InvalidField, match="^state:"):
        dk.machine(state=dict)(lambda ctx, state: state)


def test_L019_a_state_of_an_older_version_is_refused_or_migrated(rt, world):
    """Without a migration nothing runs; with one the original checkpoint is kept."""

    class Renamed(BaseModel):
        """Version 2 of the state: another field name."""

        todo: list[str]
        sent: list[str] = []

    machine = writer(world)
    run = rt.run(machine, START, id="a", crash=dk.CrashAt("writer", "checkpoint_saved", 2))
    before = run.history()["payload"].tolist()

    @dk.tool(name="post", effect="idempotent", timeout=5)
    def post(call, to):
        return world.send(to, "Hi", f"Dear {to}", key=call.key)["id"]

    @dk.machine(state=Renamed, version=2, name="writer")
    def newer(ctx, state):
        if not state.todo:
            return dk.Done(state, result=state.sent)
        to = state.todo.pop(0)
        state.sent.append(ctx.call(post, to, key=f"letter:{to}"))
        return state

    with pytest.raises(WorkflowChanged, match=r"version 1 .* version 2 .*migrat"):
        rt.resume("a")
    assert run.history()["payload"].tolist() == before

    @newer.migrate(from_version=1)
    def rename(state):
        return {"todo": state["to_write"], "sent": state["sent"]}

    rt.recover()
    assert run.result == ["email-1", "email-2"]
    assert run.history()["payload"].tolist()[: len(before)] == before
    assert len(world.effects()) == 2
    assert "version" in json.dumps(before)


def test_states_read_back_are_copies(rt, world):
    """L004: changing one reading changes neither another nor the file."""
    run = rt.run(writer(world), START, id="a")
    seq = int(run.checkpoints()["seq"].iloc[-1])
    one, two = run.at(seq), run.at(seq)
    one.sent.append("changed")
    assert two.sent == run.at(seq).sent == ["email-1", "email-2"]


def test_the_difference_of_two_checkpoints_is_told_in_paths(rt, world):
    """What one transition did, and nothing else."""
    run = rt.run(writer(world), START, id="a")
    seqs = run.checkpoints()["seq"].tolist()
    table = run.diff(seqs[0], seqs[1])
    assert set(table["path"]) == {"$.sent", "$.stage"}
    assert run.diff(seqs[0], seqs[0]).empty
    for bad in (0, 99, "1", True):
        with pytest.raises(dk.InvalidField, match="^seq:"):
            run.at(bad)


def test_L020_a_fork_shows_stored_outcomes_and_touches_the_world_with_new_keys_only(rt, world):
    """Going back to before the first letter does not send it again."""
    run = rt.run(writer(world), START, id="a")
    first = int(run.checkpoints()["seq"].iloc[0])
    fork = run.fork(at=first, id="b")
    assert fork.status == "running"
    rt.resume("b")
    assert fork.result == run.result
    assert len(world.requests()) == 2
    assert "replayed" in fork.history()["kind"].tolist()
    with pytest.raises(dk.InvalidField, match="there is a run 'b'"):
        run.fork(at=first, id="b")


def test_a_fork_of_an_unknown_operation_follows_the_contract(rt, world):
    """Cut between intent and result: the fork meets the parent's operation, not a new one."""
    world.plan = [Fault("reply_lost")]
    run = rt.run(writer(world, effect="opaque"), START, id="a")
    intent = int(run.history().reset_index().query("kind == 'intent'")["seq"].iloc[0])
    fork = run.fork(at=intent, id="b")
    assert rt.resume("b").status == "needs_decision"
    assert len(world.requests()) == 1
    rt.resolve("a", "letter:ada@example.org", "completed", result="email-1", by="Grace")
    rt.recover()
    assert rt.resume("b").status == "completed"
    assert fork.result == run.result == ["email-1", "email-2"]
    assert len(world.effects()) == 2


def test_looking_back_changes_no_byte(rt, world, tmp_path):
    """checkpoints, at, diff, history, operations: pure reads."""
    run = rt.run(writer(world), START, id="a")
    rt._store.connection().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = (tmp_path / "run.db").read_bytes()
    seqs = run.checkpoints()["seq"].tolist()
    for seq in range(1, seqs[-1] + 1):
        run.at(seq)
    run.diff(seqs[0], seqs[-1])
    run.history()
    run.operations()
    rt._store.connection().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert (tmp_path / "run.db").read_bytes() == before
    assert len(world.requests()) == 2


class Chat(BaseModel):
    """A state that grows by one message a turn."""

    messages: list[str] = []
    turns: int = 0


def chat(turns):
    """A machine of so many turns with a message of 1 kB each."""

    @dk.machine(state=Chat, name="chat")
    def talk(ctx, state):
        state.messages.append(ctx.step("say", lambda: f"{state.turns:04}" + "x" * 996))
        state.turns += 1
        return dk.Done(state, result=state.turns) if state.turns == turns else state

    return talk


def test_L121_a_growing_state_costs_a_straight_line(tmp_path):
    """Twice the turns, at most 2.2 times the bytes; every state reads back right."""
    sizes = []
    for turns in (100, 200):
        path = tmp_path / f"{turns}.db"
        with dk.Runtime(path, clock=dk.ManualClock(), durability="process") as rt:
            run = rt.run(chat(turns), Chat(), id="a")
            assert run.result == turns
            table = run.checkpoints()
            for row in (0, turns // 2, turns - 1):
                state = run.at(int(table["seq"].iloc[row]))
                assert (len(state.messages), state.turns) == (row + 1, row + 1)
                assert state.messages[row].startswith(f"{row:04}")
            rt._store.connection().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        sizes.append(path.stat().st_size)
    assert sizes[1] <= 2.2 * sizes[0]


def test_loading_a_state_reads_one_snapshot_and_the_changes_since(tmp_path):
    """The first entry that is read is the snapshot, and it is the only one with a whole state."""
    with dk.Runtime(tmp_path / "a.db", clock=dk.ManualClock(), durability="process") as rt:
        run = rt.run(chat(60), Chat(), id="a")
        store, read = rt._store, []
        plain = store.read_journal

        def counting(number, after=0, until=None):
            entries = plain(number, after, until)
            read.extend(entries)
            return entries

        store.read_journal = counting
        table = run.checkpoints()
        read.clear()
        run.at(int(table["seq"].iloc[-1]))
        states = [e for e in read if e.kind == "checkpoint" and '"state":' in e.payload]
        changes = [e for e in read if e.kind == "checkpoint" and '"changes":' in e.payload]
        assert len(states) == 1
        assert 0 < len(changes) < 32


def test_a_machine_waits_for_a_person_and_a_timer(rt, world):
    """ctx.sleep and ctx.wait_for work in a transition, and survive a crash there."""

    @dk.machine(state=Chat, name="patient")
    def patient(ctx, state):
        ctx.sleep(60)
        state.messages.append(ctx.wait_for("word"))
        return dk.Done(state) if len(state.messages) == 2 else state

    run = rt.run(patient, Chat(), id="a", crash=dk.CrashAt("sleep", "wait_saved"))
    for word in ("one", "two"):
        rt.recover()
        assert run.status == "waiting"
        world.clock.advance(60)
        rt.recover()
        rt.signal("a", "word", word)
        rt.recover()
    assert run.result["messages"] == ["one", "two"]


def test_a_turn_in_a_machine_keeps_its_end_after_a_restart(rt, world):
    """Each transition's turn is its own; re-entering one uses the saved end."""
    left = []

    @dk.machine(state=Chat, name="limited")
    def limited(ctx, state):
        with ctx.turn("think", timeout=10):
            left.append(ctx.remaining())
            ctx.sleep(0.001, name="tick")
            ctx.step("think", lambda: world.clock.advance(4))
        state.turns += 1
        return dk.Done(state) if state.turns == 2 else state

    run = rt.run(limited, Chat(), id="a")
    while run.status == "waiting":
        world.clock.advance(1)
        rt.recover()
    assert run.status == "completed"
    assert left[0] == 10
    assert left[1] == pytest.approx(9, abs=0.01)
    assert left[2] == 10


def test_a_cancelled_machine_finds_out_about_the_call_it_had_begun(rt, world):
    """Steps that lead back to an open call are recovery; the end waits for its outcome.

    Found out as done, nothing was left to cancel: the machine is completed.
    """

    def declare(effect):
        @dk.tool(name="post", effect=effect, timeout=5)
        def post(call):
            return world.send("ada@example.org", "s", "b", key=call.key)["id"]

        @dk.machine(state=Letters, name=f"thinks {effect}")
        def thinks(ctx, state):
            ctx.step("think", lambda: 1)
            state.sent.append(ctx.call(post, key=effect))
            return dk.Done(state)

        return thinks

    for effect, status in (("idempotent", "completed"), ("opaque", "needs_decision")):
        run = rt.run(declare(effect), START, id=effect, crash=dk.CrashAt("post", "effect_done"))
        rt.cancel(effect)
        rt.recover()
        assert run.status == status
    assert [e["key"] for e in world.effects()] == ["idempotent", "opaque"]


class Round(BaseModel):
    """The state of a machine that runs in circles."""

    number: int = 0


def circling(world, **declared):
    """A machine that sends one keyed letter a transition and never ends."""

    @dk.tool(name="machine_circle_post", effect="idempotent")
    def post(call, number):
        return world.send("ada@example.org", "Hi", f"number {number}", key=call.key)["id"]

    @dk.machine(state=Round, name="machine_circle", **declared)
    def circle(ctx, state):
        ctx.call(post, state.number, key=f"circle:{state.number}")
        state.number += 1
        return state

    return circle


@pytest.mark.parametrize("save", [None, only_at_the_end, lambda _, after: after.number % 2 == 0])
def test_a_machine_that_never_ends_parks_at_its_limit_and_loses_nothing(rt, world, save):
    """Its state is saved there, wherever its save place is; a person may let it go on."""
    machine = circling(world, transitions=5, **({} if save is None else {"save": save}))
    run = rt.run(machine, Round(), id="a")
    assert (run.status, run.why) == ("needs_decision", "no end")
    assert run.reason.startswith("5 transitions in one drive and no end")
    assert len(world.effects()) == 5
    last = int(run.checkpoints()["seq"].iloc[-1])
    assert run.at(last) == Round(number=5)
    rt.recover()
    assert len(world.effects()) == 5  # nobody has decided
    rt.resume("a")
    assert (run.status, run.why) == ("needs_decision", "no end")
    assert "10 in all" in run.reason
    assert len(world.requests()) == len(world.effects()) == 10
    rt.cancel("a")
    rt.recover()
    assert run.status == "cancelled"
    assert len(world.effects()) == 10


@pytest.mark.parametrize("save", [None, only_at_the_end])
@pytest.mark.parametrize("asked", ["while it runs", "while it is parked"])
def test_a_machine_that_touches_no_ctx_is_cancelled_before_its_next_transition(rt, save, asked):
    """Whether its transitions are saved or not; its own count says how many there were."""
    made = []

    @dk.machine(
        state=Round, name="machine_alone", transitions=5, **({"save": save} if save else {})
    )
    def alone(ctx, state):
        del ctx
        made.append(state.number)
        if asked == "while it runs" and state.number == 2:
            rt.cancel("a")
        state.number += 1
        return state

    run = rt.run(alone, Round(), id="a")
    if asked == "while it is parked":
        assert (run.why, made) == ("no end", [0, 1, 2, 3, 4])
        rt.cancel("a")
        rt.recover()
    assert run.status == "cancelled"
    assert made == ([0, 1, 2] if asked == "while it runs" else [0, 1, 2, 3, 4])


def test_a_machine_that_ends_at_its_limit_is_completed(rt):
    """The limit is how many it may make, and not how many are too many."""

    @dk.machine(state=Round, name="machine_just", transitions=3)
    def just(ctx, state):
        state.number += 1
        return dk.Done(state) if state.number == 3 else state

    assert rt.run(just, Round(), id="a").status == "completed"


def test_the_limit_can_be_changed_or_left_out_and_leaves_long_agents_alone(rt):
    """Ten thousand unless it is said otherwise."""

    def declare(**declared):
        @dk.machine(state=Round, name="machine_long", save=only_at_the_end, **declared)
        def long(ctx, state):
            state.number += 1
            return dk.Done(state) if state.number == 10_001 else state

        return long

    assert rt.run(declare(), Round(), id="a").why == "no end"
    assert rt.get("a").checkpoints()["transition"].tolist() == [10_000]
    assert rt.resume("a").status == "completed"
    assert rt.run(declare(transitions=None), Round(), id="b").status == "completed"
    for odd in (0, -1, 1.5, "5", True):
        with pytest.raises(dk.InvalidField, match="^transitions: "):
            declare(transitions=odd)


def test_a_turn_of_steps_only_is_granted_anew_after_a_crash_and_three_lives_at_most(rt, world):
    """Nothing of it is on disk before its checkpoint; the claims without progress bound it."""
    left = []

    @dk.machine(state=Round, name="machine_steps_only")
    def thinks(ctx, state):
        with ctx.turn("think", timeout=10):
            left.append(ctx.remaining())
            ctx.step("think", lambda: world.clock.advance(4))
        return dk.Done(state)

    rt.run(thinks, Round(), id="a", crash=dk.CrashAt("think", "step_done"))
    for life in (2, 3, 4):
        rt.recover_rows(crash=dk.CrashAt("think", "step_done", incarnation=life))
    run = rt.get("a")
    assert left == [10, 10, 10]
    assert (run.status, run.why) == ("needs_decision", "no progress")


def test_a_migration_from_no_earlier_version_is_refused():
    """There would be nothing that it could bring nearer."""
    declared = dk.machine(state=Round, name="machine_migrated", version=2)(lambda ctx, state: state)
    for odd in (2, 3, "1", True, None):
        with pytest.raises(dk.InvalidField, match="^from_version: "):
            declared.migrate(odd)
    declared.migrate(from_version=1)(lambda state: state)
    assert declared.can_migrate(1)


def test_a_fork_behind_the_end_is_refused(rt, world):
    """A finished journal has nothing to go on from."""
    run = rt.run(writer(world), START, id="a")
    last = len(run.history())
    with pytest.raises(dk.InvalidField, match="^at: entry .* is the run's end"):
        run.fork(at=last, id="b")
    assert rt.runs()["id"].tolist() == ["a"]

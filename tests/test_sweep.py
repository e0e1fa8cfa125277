"""The sweep must find what is wrong, and only that: its verdicts are tested on broken workflows.

The laws at the end are judged by the files that each schedule leaves, read by SQLite alone.
"""

import io
import random
import sqlite3
import sys
import textwrap
from contextlib import closing

import pytest
import shop
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import durakit as dk
from durakit.faults import POINTS
from durakit.kill import can_fork
from durakit.lives import Ending, Task
from durakit.machine import only_at_the_end
from durakit.mail import PROFILES, Mailbox, MailError
from durakit.sweep import _points, _verdict, join_seeds, parse_seed, smallest


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

    report = dk.sweep(shop.one_mail(inner), "a@example.org", world=shop.Deaf(inner))
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

    assert dk.sweep(shop.one_mail(world), "a@example.org", world=world).safe
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
            from durakit.mail import PROFILES, Mailbox, MailError

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


# -- two crashes ---------------------------------------------------------------------------


@dk.tool(effect="idempotent", retry=dk.Retry(attempts=5))
def tires(call, to):
    """Forget the key at the third attempt, which one crash alone never leads to."""
    key = call.key if call.attempt < 3 else None
    return shop.deduping.send(to, "Hi", "s", key=key)


@dk.workflow
def tiring(ctx, to):
    """Safe after one crash, and not after two."""
    return ctx.call(tires, to, key="k")


@dk.workflow
def fragile(ctx):
    """One mail that is sent again after any crash: few schedules, some of them bad."""
    return ctx.step("send", shop.silent.send, "a@example.org", "Hi", "s")


def test_the_second_crash_hits_every_boundary_of_the_recovery():
    """The boundaries are those of the recovery's own life: its probes and what it sends again."""
    report = dk.sweep(shop.ask, shop.ADA, world=shop.askable, crashes=2)
    after = {}
    for row in report.schedules:
        after.setdefault((row.point, row.place, row.fate), set()).add(row.then)
    lost = after["request_sent", "send_queryable", "lost"]
    assert {
        "", "i2:run_claimed@run", "i2:probe_answered@send_queryable",
        "i2:a2:intent_saved@send_queryable", "i2:a2:effect_done@send_queryable",
        "late:i2:a2:request_sent@send_queryable", "i2:end_saved@run",
    } <= lost  # fmt: skip
    # A probe that is put again passes a boundary of the same name, which its number tells apart.
    assert any(then.removeprefix("i2:").isdecimal() for then in lost)
    done = after["effect_done", "send_queryable", ""]
    assert "i2:probe_answered@send_queryable" in done
    assert not any("intent_saved" in then for then in done)
    assert report.safe, report.text()


def test_what_only_two_crashes_break_is_found_and_run_again_by_its_seed():
    """One crash is safe; the pair that is not is one word, and that word alone shows it again."""
    assert dk.sweep(tiring, "a@example.org", world=shop.deduping).safe
    report = dk.sweep(tiring, "a@example.org", world=shop.deduping, crashes=2)
    seed = report.counterexample
    first, second = parse_seed(seed)
    assert (first.incarnation, second.incarnation) == (1, 2)
    found = next(s for s in report.schedules if s.seed == seed)
    assert (found.verdict, found.effects) == ("duplicate", 2)
    again = dk.sweep(tiring, "a@example.org", world=shop.deduping, only=seed)
    assert again.schedules == (found,)
    assert again.counterexample == seed
    assert "then" in report.table().columns
    assert f"counterexample: {seed}" in report.text()


@pytest.mark.real_kill
@pytest.mark.skipif(not can_fork(), reason="this platform cannot fork")
def test_two_real_kills_end_as_two_simulated_crashes_do(tmp_path):
    """A sample of pairs, with the second driver killed by SIGKILL too: the same verdicts."""
    report = dk.sweep(tiring, "a@example.org", world=shop.deduping, crashes=2)
    pairs = [s for s in report.schedules if s.then]
    bad = [s for s in pairs if not s.good]
    for row in [*pairs[::20], *bad[:2]]:
        killed = dk.sweep(
            tiring, "a@example.org", world=shop.deduping, only=row.seed, mode="process"
        )
        assert killed.schedules == (row,)


def test_each_schedule_ends_in_files_of_its_own(tmp_path):
    """Kept, there is one folder for each, and it holds a run and a ledger that tell its end."""
    kept = tmp_path / "kept"
    report = dk.sweep(fragile, world=shop.silent, crashes=2, keep=kept)
    folders = sorted(folder for folder in kept.iterdir() if folder.name != "reference")
    assert len(folders) == len(report.schedules)
    counts = []
    for folder in folders:
        with closing(sqlite3.connect(folder / "world" / "mail.db")) as ledger:
            counts += ledger.execute("SELECT count(*) FROM mail").fetchone()
    assert sorted(counts) == sorted(s.effects for s in report.schedules)


# -- seeds ---------------------------------------------------------------------------------

any_place = st.text(st.characters(codec="utf-8"), min_size=1) | st.text("+@:oai1", min_size=1)
any_point = st.sampled_from([point for points in POINTS.values() for point in points])
which = [st.integers(1, 12)] * 3
#: The points at which the service has the request and has not acted on it.
ON_ITS_WAY = ("request_sent", "key_claimed")
crashes = st.one_of(
    st.builds(dk.CrashAt, any_place, any_point, *which),
    st.builds(dk.CrashAt, any_place, st.sampled_from(ON_ITS_WAY), *which, fate=st.just("late")),
    st.builds(dk.CrashAt, st.integers(1, 99), incarnation=st.integers(1, 3)),
)


@given(st.lists(crashes, min_size=1, max_size=2))
def test_a_seed_gives_its_crashes_back_whatever_the_places_are_called(schedule):
    """One or two crashes, joined to one word and read again, are the same; one is CrashAt's."""
    seed = join_seeds(schedule)
    assert parse_seed(seed) == tuple(schedule)
    if len(schedule) == 1:
        assert dk.CrashAt.parse(seed) == schedule[0]
    else:
        with pytest.raises(dk.InvalidField):
            dk.CrashAt.parse(seed)


@pytest.mark.parametrize("seed", ["", "+", "1+", "+1", "1+2+3", "1+x", "effect_done@a+b"])
def test_text_that_is_no_schedule_is_refused(seed):
    """The message names the field, and no run is begun."""
    with pytest.raises(dk.InvalidField, match="^seed:"):
        dk.sweep(shop.welcome, shop.ADA, world=shop.deduping, only=seed)


def test_a_seed_that_leads_nowhere_is_not_passed_as_safe():
    """A place that is not there, a boundary beyond the end, a second crash after the end."""
    for seed, why in {
        "effect_done@nobody": "the run never comes by there",
        "99": "the run never comes by there",
        "effect_done@send_idempotent+i2:before_step@draft": "the recovery never comes by there",
    }.items():
        report = dk.sweep(shop.welcome, shop.ADA, world=shop.deduping, only=seed)
        (row,) = report.schedules
        assert (row.seed, row.verdict, row.detail) == (seed, "not reachable", why)
        assert not report.safe


def test_a_place_with_a_plus_in_its_name_is_crashed_by_its_seed():
    """The seed of the table is the seed for ``only`` and for ``rt.run``."""

    @dk.workflow
    def sums(ctx):
        return ctx.step("1+1", lambda: 2)

    report = dk.sweep(sums, world=shop.silent)
    seed = next(s.seed for s in report.schedules if s.point == "step_done")
    assert seed == "step_done@1++1"
    assert dk.sweep(sums, world=shop.silent, only=seed).schedules[0].place == "1+1"
    rt = dk.Runtime(":memory:", clock=dk.ManualClock())
    assert rt.run(sums, id="a", crash=dk.CrashAt.parse(seed)).crash.place == "1+1"


def test_the_smallest_counterexample_is_one_crash_early_and_real():
    """One before two, earlier before later, and a guess that went well after all others."""
    row = dk.sweep(shop.shrug, shop.ADA, world=shop.silent, only="1").schedules[0]

    def made(seed, verdict, then=""):
        return row.__class__(**{**vars(row), "seed": seed, "verdict": verdict, "then": then})

    guess, late = made("a", "blind guess"), made("b", "lost")
    later, pair = made("c", "duplicate"), made("d+e", "duplicate", "e")
    assert smallest([guess, late, later, pair]) == "b"
    assert smallest([guess, pair]) == "d+e"
    assert smallest([guess]) == "a"
    assert smallest([]) is None


# -- verdicts ------------------------------------------------------------------------------

WELL = Ending(
    status="completed",
    reason="",
    why="",
    result="1",
    effects=(("m", "A"), ("m", "B")),
    keys=(("m", "a"), ("m", "b")),
    operations=(),
    blind=False,
)


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, "safe"),
        ({"effects": (("m", "A"), ("m", "A")), "keys": (("m", "a"),)}, "duplicate"),
        ({"effects": (("m", "A"), ("m", "C")), "keys": (("m", "a"), ("m", "a"))}, "duplicate"),
        ({"effects": (("m", "A"), ("m", "C"))}, "wrong result"),
        ({"effects": (("m", "A"),), "keys": (("m", "a"),)}, "lost"),
        ({"result": "2"}, "wrong result"),
        ({"status": "failed", "result": ""}, "wrong result"),
        ({"status": "running", "result": ""}, "stuck"),
        ({"status": "waiting", "result": ""}, "stuck"),
        ({"status": "needs_decision", "why": "unknown"}, "safe: handed over as unknown"),
        ({"status": "needs_decision", "why": "no progress"}, "stuck"),
        ({"status": "needs_decision", "why": "mismatch", "reason": "unknown code"}, "stuck"),
        ({"blind": True}, "blind guess"),
        ({"operations": (("send", "a", "not_executed"),)}, "blind guess"),
        (
            {
                "status": "needs_decision",
                "why": "unknown",
                "effects": (("m", "A"), ("m", "B"), ("m", "B")),
            },
            "duplicate",
        ),
    ],
)
def test_a_verdict_speaks_of_effects_first_and_of_beliefs_last(changed, verdict):
    """A loss never hides a second effect, and a parked run is handed over only as unknown."""
    assert _verdict(WELL._replace(**changed), WELL)[0] == verdict


def test_a_run_that_fails_without_a_crash_is_told_so():
    """'Safe' then only means that crashes change nothing."""

    @dk.workflow
    def fails(ctx):
        raise ValueError("no")

    report = dk.sweep(fails, world=shop.silent)
    assert report.safe
    assert report.ending == "failed: ValueError: no"
    assert "without a crash (failed: ValueError: no)" in report.summary()


def test_recovery_begins_after_what_the_dead_driver_has_done():
    """A slow tool acts long after its intent; no recovery happens before that in virtual time."""
    world = Mailbox(latency=500)

    @dk.tool(effect="idempotent")
    def slow(call, to):
        return world.send(to, "s", "b", key=call.key, timeout=1000)

    @dk.workflow
    def slowly(ctx, to):
        return ctx.call(slow, to, key="k")

    times = []

    def look(stage, seed, folder):
        if stage == "recovered" and "effect_done" in seed:
            with closing(sqlite3.connect(folder / "world" / "mail.db")) as ledger:
                times.extend(ledger.execute("SELECT time FROM mail").fetchone())
            with closing(sqlite3.connect(folder / "run.db")) as db:
                query = "SELECT time FROM journal WHERE kind = 'claimed' AND token = 2"
                times.extend(db.execute(query).fetchone())

    assert dk.sweep(slowly, "a@example.org", world=world, watch=look).safe
    acted, claimed = times
    assert claimed >= acted


# -- a key that is claimed -----------------------------------------------------------------

#: A service that tells of a key in progress, as Resend does.
claiming = Mailbox(profile="resend", latency=0.01)


@dk.tool(effect="idempotent", window=86400, retry=dk.Retry(initial=0.5, cap=5.0, attempts=8))
def send_claimed(call, to):
    """Send, and ask again while the key is in progress."""
    return claiming.send(to, "Hi", "Hello", key=call.key, timeout=3)


@dk.tool(effect="idempotent", window=86400, retry=dk.Retry(initial=0.5, cap=5.0, attempts=8))
def send_and_shrug(call, to):
    """Take 409, whichever, for 'it was sent before'."""
    try:
        return claiming.send(to, "Hi", "Hello", key=call.key, timeout=3)
    except MailError:
        return {"id": "unknown"}


@dk.workflow
def waits_for_its_key(ctx, to):
    """Greet once."""
    return ctx.call(send_claimed, to, key=f"greet:{to}")


@dk.workflow
def shrugs_at_its_key(ctx, to):
    """Greet once, carelessly."""
    return ctx.call(send_and_shrug, to, key=f"greet:{to}")


def claimed_rows(report):
    """What a sweep says of the crash while the key was claimed."""
    return [(s.verdict, s.effects) for s in report.schedules if s.point == "key_claimed"]


def test_a_crash_while_the_key_is_claimed_is_tried_where_the_service_claims():
    """The request is at work and its retry hears 'in progress': one mail, with one crash or two."""
    report = dk.sweep(waits_for_its_key, "ada@example.org", world=claiming, crashes=2)
    assert claimed_rows(report)[0] == ("safe", 1)
    assert report.safe
    seeds = [s.seed for s in report.schedules if "key_claimed" in s.seed]
    assert "key_claimed@send_claimed" in seeds
    assert len(seeds) > 10
    claiming.profile, before = PROFILES["idempotent"], claiming.profile
    try:
        report = dk.sweep(waits_for_its_key, "ada@example.org", world=claiming)
    finally:
        claiming.profile = before
    assert claimed_rows(report) == []


@pytest.mark.real_kill
@pytest.mark.skipif(not can_fork(), reason="this platform cannot fork")
def test_a_real_kill_while_the_key_is_claimed_ends_as_the_simulated_one_does():
    """The service goes on in both: what it has stored is in its own file."""
    for workflow in (waits_for_its_key, shrugs_at_its_key):
        reports = [
            dk.sweep(workflow, "ada@example.org", world=claiming, mode=mode)
            for mode in ("simulated", "process")
        ]
        assert reports[0].rows == reports[1].rows


def test_who_takes_in_progress_for_an_answer_is_found_by_that_crash_alone():
    """The mail is out in every schedule; in this one the run ends without its id."""
    report = dk.sweep(shrugs_at_its_key, "ada@example.org", world=claiming)
    assert points(report, "wrong result") == {"key_claimed"}
    assert claimed_rows(report) == [("wrong result", 1)]
    assert report.counterexample == "key_claimed@send_and_shrug"
    again = dk.sweep(
        shrugs_at_its_key, "ada@example.org", world=claiming, only=report.counterexample
    )
    assert claimed_rows(again) == [("wrong result", 1)]


def test_a_retry_of_a_claimed_key_is_told_so_until_the_service_has_acted(tmp_path):
    """By the service's own log: the first request acts after the second was refused with 409."""
    report = dk.sweep(
        waits_for_its_key, "ada@example.org", world=claiming, keep=tmp_path / "kept",
        only="key_claimed@send_claimed",
    )  # fmt: skip
    assert report.safe
    (ledger,) = tmp_path.glob("kept/*key_claimed*/world/mail.db")
    with closing(sqlite3.connect(ledger)) as db:
        outcomes = [outcome for (outcome,) in db.execute("SELECT outcome FROM request")]
        assert outcomes[:2] == ["delivered", "refused 409"]
        assert outcomes[-1] == "replayed"
        acted = db.execute("SELECT time FROM mail").fetchall()
        refused = db.execute("SELECT time FROM request WHERE outcome = 'refused 409'").fetchone()
    assert len(acted) == 1
    assert refused < acted[0]


@pytest.mark.parametrize("crash", ["key_claimed@send_claimed", "late:key_claimed@send_claimed"])
def test_a_crash_while_the_key_is_claimed_never_stops_the_service(crash, tmp_path):
    """Whatever fate is asked for: the run is dead, the request is kept, and acts later."""
    home, clock = claiming.folder, claiming.clock
    claiming.clock = dk.ManualClock()
    claiming.fresh(tmp_path / "world")
    try:
        with dk.Runtime(tmp_path / "run.db", clock=claiming.clock, world=claiming) as rt:
            run = rt.run(
                waits_for_its_key, "ada@example.org", id="w", crash=dk.CrashAt.parse(crash)
            )
            assert run.crash is not None
        assert [row["outcome"] for row in claiming.requests()] == ["held"]
        assert [row["state"] for row in list(claiming.keys())] == ["in progress"]
        claiming.clock.advance(claiming.late_after)
        assert len(claiming.effects()) == 1
    finally:
        claiming.fresh(home)
        claiming.listen(None)
        claiming.clock = clock


def test_a_claim_in_a_world_that_cannot_hold_it_is_not_reachable():
    """Else the crash would stop the service too, which is another story."""

    class Hasty:
        """A service that tells of its claims and goes on, whatever it is told."""

        clock = None

        def fresh(self, folder):
            claiming.clock = self.clock
            claiming.fresh(folder)

        def effects(self):
            return claiming.effects()

        def listen(self, hook):
            claiming.listen(lambda point, key: hook(point, key) and None)

    home, clock = claiming.folder, claiming.clock
    try:
        report = dk.sweep(waits_for_its_key, "ada@example.org", world=Hasty())
    finally:
        claiming.fresh(home)
        claiming.listen(None)
        claiming.clock = clock
    assert claimed_rows(report) == [("not reachable", None)]
    details = {s.point: s.detail for s in report.schedules if s.verdict == "not reachable"}
    assert details["key_claimed"] == "the world cannot hold a request"


# -- runs that wait ------------------------------------------------------------------------


@dk.tool(effect="idempotent")
def post(call, text):
    """Send over the service that knows our keys."""
    return shop.deduping.send("ada@example.org", "Hi", text, key=call.key)


@dk.workflow
def approval(ctx):
    """Draft, wait a day, ask a person, send."""
    draft = ctx.step("draft", lambda: "hello")
    ctx.sleep(86_400, name="cool down")
    answer = ctx.wait_for("approval")
    return ctx.call(post, f"{draft} ({answer})", key="k") if answer == "yes" else None


def test_a_run_that_waits_is_swept_through_its_timers_and_signals():
    """Time passes and the signal comes when the run waits for it, whoever drives it then."""
    report = dk.sweep(approval, world=shop.deduping, signals={"approval": "yes"})
    assert report.safe, report.text()
    assert {s.incarnation for s in report.schedules} == {1, 2, 3}
    waits = {(s.incarnation, s.place) for s in report.schedules if s.point == "wait_saved"}
    assert waits == {(1, "cool down"), (2, "approval")}
    assert {s.effects for s in report.schedules} == {1}
    refused = dk.sweep(approval, world=shop.deduping, signals={"approval": "no"})
    assert {s.effects for s in refused.schedules} == {0}
    assert "incarnation" in report.table().columns


def test_a_run_that_waits_for_what_nobody_gives_is_refused_by_name():
    """The message says which signal to give."""
    with pytest.raises(dk.UsageError, match="say signals={'approval': …}"):
        dk.sweep(approval, world=shop.deduping)


def test_a_run_that_loses_its_signal_after_a_crash_is_stuck():
    """The third life asks for a signal of another name, which nobody gives."""
    lives = []

    @dk.workflow
    def forgetful(ctx):
        lives.append(1)
        ctx.step("a", lambda: 1)
        return ctx.wait_for("approval" if len(lives) < 3 else "another")

    report = dk.sweep(forgetful, world=shop.silent, signals={"approval": 1})
    assert "stuck" in {s.verdict for s in report.schedules}
    assert any("waits for the signal 'another'" in s.detail for s in report.schedules)


# -- progress ------------------------------------------------------------------------------


def test_progress_is_told_from_the_first_schedule_to_the_last():
    """A function gets how many are done and how many there are, pairs as soon as known."""
    told = []
    report = dk.sweep(
        tiring, "a@example.org", world=shop.deduping, crashes=2,
        progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert [done for done, _ in told] == list(range(1, len(report.schedules) + 1))
    assert told[-1] == (len(report.schedules),) * 2
    with pytest.raises(dk.InvalidField, match="^progress:"):
        dk.sweep(tiring, "a@example.org", world=shop.deduping, progress="yes")


def test_the_line_is_shown_on_a_terminal_and_nowhere_else(monkeypatch):
    """A log file gets no line; a terminal gets one that is written over, and its end."""

    class Terminal(io.StringIO):
        """A stream that says that somebody looks at it."""

        def isatty(self):
            return True

    shown = {}
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        dk.sweep(tiring, "a@example.org", world=shop.deduping, progress=True)
        shown[type(stream)] = stream.getvalue()
    assert shown[io.StringIO] == ""
    assert "100 % of 10\n" in shown[Terminal]
    assert shown[Terminal].count("\n") == 1
    assert shown[Terminal].startswith("\rtiring: [")


# -- laws ----------------------------------------------------------------------------------


class Letters(BaseModel):
    """The state of the machine of these laws."""

    to_write: list[str]
    sent: list[dict] = []
    stage: str = "write"


def machine(name, **options):
    """A machine that writes a letter in one transition and sends it in the next."""

    @dk.machine(state=Letters, name=name, **options)
    def writes_and_sends(ctx, state):
        if state.stage == "write":
            if not state.to_write:
                return dk.Done(state, result=state.sent)
            state.stage = ctx.step("write", lambda: f"Dear {state.to_write[0]}")
            return state
        state.sent.append(ctx.call(post, state.stage, key=f"letter:{state.to_write.pop(0)}"))
        state.stage = "write"
        return state

    return writes_and_sends


ONE, TWO = Letters(to_write=["ada"]), Letters(to_write=["ada", "bob"])
YES = {"approval": "yes"}

#: Of every law: what is swept, its arguments, its world, its signals.
SUBJECTS = [
    *((workflow, (shop.ADA,), world, None) for workflow, world in shop.CORPUS.items()),
    (machine("letters"), (ONE,), shop.deduping, None),
    (machine("letters saved late", save=only_at_the_end), (ONE,), shop.deduping, None),
    (approval, (), shop.deduping, YES),
]
#: The two whose pairs the quick suite tries: probes, and waits.
QUICK = [subject for subject in SUBJECTS if subject[0] in (shop.ask, approval)]


def check_laws(subject, tmp_path, *, crashes, mode="simulated", seed=0):
    """Sweep, and judge the files of each schedule with SQLite alone."""
    workflow, args, world, signals = subject
    ends = []

    def look(stage, seed, folder):
        if stage == "recovered":
            with closing(sqlite3.connect(folder / "world" / "mail.db")) as ledger:
                keys = ledger.execute(
                    "SELECT count(*) FROM mail WHERE key IS NOT NULL GROUP BY key"
                ).fetchall()
                mails = ledger.execute("SELECT count(*) FROM mail GROUP BY digest").fetchall()
            with closing(sqlite3.connect(folder / "run.db")) as db:
                (run,) = db.execute("SELECT status, owner FROM run").fetchall()
                unknown = db.execute(
                    "SELECT count(*) FROM operation WHERE status IN ('DISPATCHED', 'RESENT')"
                ).fetchone()[0]
            ends.append((seed, keys, mails, run, unknown))

    report = dk.sweep(
        workflow, *args, world=world, signals=signals, crashes=crashes, mode=mode, seed=seed,
        watch=look,
    )  # fmt: skip
    assert report.safe, report.text()
    assert len(ends) == len(report.schedules)
    for at, keys, mails, (status, owner), unknown in ends:
        assert set(keys) <= {(1,)}, at
        assert set(mails) <= {(1,)}, at
        assert owner is None, at
        assert (status, unknown) == ("completed", 0) or (
            status == "needs_decision" and unknown == 1
        ), at
    return report


def named(subject):
    """The subject's name, for pytest."""
    return subject[0].name


@pytest.mark.parametrize("subject", SUBJECTS, ids=named)
def test_no_crash_doubles_an_effect_or_leaves_a_run_without_an_owner_and_an_end(subject, tmp_path):
    """One effect for each key, and every run ends, or a person is asked about one operation."""
    check_laws(subject, tmp_path, crashes=1)


@pytest.mark.parametrize("subject", QUICK, ids=named)
def test_no_two_crashes_do_either(subject, tmp_path):
    """The recovery dies too, wherever it comes by."""
    check_laws(subject, tmp_path, crashes=2)


@pytest.mark.parametrize("subject", [*QUICK, SUBJECTS[4]], ids=named)
def test_a_recovery_that_is_raced_at_every_boundary_drives_alone(subject, tmp_path):
    """At each boundary that a recovery passes another one tries too: it may not drive."""
    workflow, args, world, signals = subject
    task = Task(workflow, workflow.parameters.dump(args, {}), world, None, 0, signals or {})
    boundaries, reference = task.reference(tmp_path / "reference")
    told = []

    def rival(folder):
        def races(boundary):
            at = dk.ManualClock(world.clock.now())
            with dk.Runtime(folder / "run.db", clock=at, owner="rival") as rt:
                told.extend((boundary.point, did) for _, did, _, _ in rt.recover_rows())

        return races

    for number, (crash, _) in enumerate(_points(boundaries, hooked=True)):
        folder = tmp_path / str(number)
        assert task.crash(folder, crash)
        ending = task.recover(folder, seen=rival(folder))
        assert _verdict(ending, reference)[0].startswith("safe"), crash
    assert {did for point, did in told if point != "end_saved"} == {"owned"}
    assert {did for point, did in told if point == "end_saved"} <= {"waiting", "parked"}


# -- soak ----------------------------------------------------------------------------------

#: Everything that the soak draws comes from here; change it to soak in other water.
SOAK_SEED = 20_260_101


@pytest.mark.soak
@pytest.mark.parametrize("subject", SUBJECTS, ids=named)
def test_no_two_crashes_of_any_subject_do_either(subject, tmp_path):
    """All pairs of all workflows, and of the machines with one letter more."""
    if isinstance(subject[0], dk.Machine):
        subject = (subject[0], (TWO,), *subject[2:])
    check_laws(subject, tmp_path, crashes=2, seed=SOAK_SEED)


@pytest.mark.soak
@pytest.mark.real_kill
@pytest.mark.skipif(not can_fork(), reason="this platform cannot fork")
@pytest.mark.parametrize("subject", SUBJECTS, ids=named)
def test_real_pairs_and_simulated_pairs_give_equal_reports(subject, tmp_path):
    """Every pair of two SIGKILLs ends as the pair of two simulated crashes."""
    simulated = check_laws(subject, tmp_path, crashes=2)
    killed = check_laws(subject, tmp_path, crashes=2, mode="process")
    assert killed.schedules == simulated.schedules


@pytest.mark.soak
@pytest.mark.parametrize("number", range(12))
def test_no_two_crashes_of_workflows_that_are_drawn_do_either(number, tmp_path):
    """Steps, calls, timers and waits in an order that nobody chose."""
    draw = random.Random(SOAK_SEED + number)
    plan = [draw.choice(("step", "post", "look", "sleep", "wait")) for _ in range(5)]

    @dk.workflow(name=f"drawn {number}")
    def drawn(ctx):
        found = []
        for at, what in enumerate(plan):
            if what == "step":
                found.append(ctx.step("draft", lambda at=at: at))
            elif what == "post":
                found.append(ctx.call(post, f"letter {at}", key=f"k:{at}"))
            elif what == "look":
                found.append(ctx.call(shop.look_up, at, key=f"look:{at}"))
            elif what == "sleep":
                ctx.sleep(3600)
            else:
                found.append(ctx.wait_for("approval"))
        return found

    subject = (drawn, (), shop.deduping, YES)
    check_laws(subject, tmp_path, crashes=2, seed=SOAK_SEED + number)


class Careless:
    """A world as somebody might write it at first; ``flaw`` says what is wrong with it."""

    def __init__(self, flaw):
        self.flaw, self.rows, self.clock = flaw, [], None

    def fresh(self, folder):
        """Live in this folder."""
        if self.flaw == "forgets" or not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            self.rows = []

    def effects(self):
        """Tell what happened."""
        return self.rows

    def act(self, key):
        """Do it, once for each key."""
        row = {"tool": "t", "key": key, "digest": "d", "time": self.clock.now()}
        if self.flaw == "real time":
            row["time"] -= 3 * 365 * 86400
        if self.flaw == "no digest":
            del row["digest"]
        if row not in self.rows:
            self.rows.append(row)


@pytest.mark.parametrize(
    ("flaw", "words"),
    [
        ("forgets", "keep what lies in the folder"),
        ("real time", "attribute `clock`"),
        ("no digest", "no 'digest'"),
    ],
)
def test_a_world_that_cannot_be_judged_is_refused_in_words(flaw, words):
    """The workflow is not blamed for what its world does wrong."""
    world = Careless(flaw)

    @dk.tool(effect="idempotent")
    def act(call):
        world.act(call.key)

    workflow = dk.workflow(lambda ctx: ctx.call(act, key="k"), name="careless")
    with pytest.raises(dk.InvalidField, match=f"^world: .*{words}"):
        dk.sweep(workflow, world=world)

"""The clinic: each patient is ill as its card says, and an examination says it by the ledger."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import durakit as dk
from durakit.kill import can_fork
from durakit.lab.clinic import examinations, patients
from durakit.lab.clinic import ward as clinic
from durakit.lab.clinic.examinations import ORDER, READERS, YES
from durakit.lab.clinic.patients import bank, model, post, town
from durakit.lab.clinic.ward import CASES, Source
from durakit.linting import AT_THE_END, BLIND, EVERYTHING, NEW_KEY, NOTHING, ONE_LIMIT
from durakit.mail import Fault

needs_fork = pytest.mark.skipif(not can_fork(), reason="no fork here")

ARGUMENTS = {
    1: (patients.Trip(),),
    2: (patients.Order(),),
    3: (ORDER,),
    4: (list(READERS),),
    5: (ORDER,),
    6: (ORDER,),
    7: (ORDER,),
}


@pytest.fixture(autouse=True)
def _an_empty_card():
    """Every test begins with a scorecard on which nothing stands."""
    clinic.forget()
    yield
    clinic.forget()


def sweep(number: int, **options) -> dk.sweep:
    """Sweep a patient in its world."""
    world = town if number == 6 else post
    agent = CASES[number].workflow
    return dk.sweep(agent, *ARGUMENTS[number], world=world, signals=YES, **options)


# -- the patients ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "found_by", "verdict", "counted"),
    [
        (1, "o2:step_done@model", "✗ 2 answers again", "1 mail(s), up to 3 of 3 answers again"),
        (2, "late:request_sent@send_order", "✗ duplicate", "2 effects instead of 1"),
        (3, "receipt: 429, ask again in 20 s", "✗ given up", "1 receipt(s), 2 copies"),
        (4, "the first reply takes 100 s", "✗ no news for Bela and Chidi",
         "0 of 2 others have their news"),
        (5, "late:request_sent@send_invoice", "✗ duplicate", "2 effects instead of 1"),
        (6, "late:request_sent@ask", "✗ duplicate", "4 effects instead of 3"),
        (7, "recovered 25 hours after effect_done", "✗ sent twice", "2 mails"),
    ],
)  # fmt: skip
def test_each_patient_is_found_ill_by_the_smallest_experiment(
    number, found_by, verdict, counted
) -> None:
    """A crash as a seed where a crash shows it, else a fault of the post or of the calendar."""
    examination = clinic.before(number)
    assert (examination.found_by, examination.verdict) == (found_by, verdict)
    assert examination.counted == counted


@pytest.mark.parametrize(
    ("number", "rules"),
    [
        (1, {AT_THE_END}),
        (2, {BLIND}),
        (3, {EVERYTHING, NOTHING}),
        (4, {ONE_LIMIT}),
        (5, {NEW_KEY}),
        (6, set()),
        (7, set()),
    ],
)
def test_each_patient_has_its_illness_and_no_other(number, rules) -> None:
    """As far as lint can tell: so that a lesson speaks of one thing at a time."""
    assert {row.rule for row in dk.lint(CASES[number].workflow).found} == rules


@pytest.mark.parametrize("number", [2, 5, 6])
def test_a_seed_breaks_it_again_in_a_new_world(number) -> None:
    """What the scorecard shows can be sent to a colleague; the ledger has one effect more."""
    seed = clinic.before(number).found_by
    again = sweep(number, only=seed)
    assert again.schedules[0].verdict == "duplicate"
    assert again.schedules[0].effects == again.reference + 1


@needs_fork
@pytest.mark.real_kill
@pytest.mark.parametrize("number", [2, 5])
def test_a_real_kill_finds_the_same_duplicates(number) -> None:
    """The simulation is honest about these agents: SIGKILL leaves the same counts."""
    real, simulated = sweep(number, mode="process"), sweep(number)
    assert [(s.seed, s.effects, s.verdict) for s in real.schedules] == [
        (s.seed, s.effects, s.verdict) for s in simulated.schedules
    ]


@pytest.mark.parametrize("number", [1, 3, 4, 7])
def test_no_crash_shows_what_the_others_are_ill_with(number) -> None:
    """That is why they are examined by a bill, by faults and by a day's wait."""
    assert sweep(number).safe


def test_the_refund_has_two_faults_and_each_alone_is_enough() -> None:
    """One in the question, one in the payment: the seeds lie at two places."""
    bad = [trial.what for trial in clinic.before(6).bad]
    assert {seed.rpartition("@")[2] for seed in bad} == {"ask", "pay_back"}
    assert [seed for seed in bad if "pay_back" in seed] == ["late:i2:request_sent@pay_back"]


def test_the_bill_of_the_travel_agent_is_that_of_the_model() -> None:
    """Counted by hand at one crash: three answers before it, and the same three after it."""
    with examinations.trial(patients.travel_agent) as runtime:
        before = len(model.bill)
        crash = dk.CrashAt("send_trip", "effect_done")
        runtime.run(patients.travel_agent, patients.Trip(), id="by hand", crash=crash)
        runtime.recover()
        assert model.bill[before:] == [1, 2, 3, 1, 2, 3]
        assert len(post.effects()) == 1
    (row,) = [t.row for t in clinic.before(1).trials if t.what == "effect_done@send_trip"]
    assert row["answers"] == 6


def test_the_bookkeepers_table_is_what_the_post_has_written_down() -> None:
    """Row by row: the run, its mails, its requests."""
    rows = [tuple(trial.row.values())[1:] for trial in clinic.before(3).trials]
    assert rows == [
        ("completed", 1, 1, 2, "✓ as it should be"),
        ("failed", 0, 0, 1, "✗ given up"),
        ("needs_decision", 1, 0, 1, "✗ a person is asked"),
        ("completed", 1, 1, 3, "✗ asked again too early"),
        ("completed", 1, 2, 3, "✗ sent twice"),
        ("completed", 1, 0, 6, "✗ asked 5 times in vain"),
        ("", "", "", "", "✗ a person is asked"),
    ]


def test_the_loop_of_the_bookkeeper_asks_at_once_and_in_vain() -> None:
    """By the post's own log: five refusals, and the second request 20 s too early."""
    no_address = ORDER | {"books": ""}
    with examinations.trial(patients.bookkeeper) as runtime:
        runtime.run(patients.bookkeeper, no_address, id="422")
        outcomes = [request["outcome"] for request in post.requests()]
    assert outcomes == ["delivered"] + ["refused 422"] * 5
    busy = Fault("rate_limited", request=2, retry_after=20)
    with examinations.trial(patients.bookkeeper, busy) as runtime:
        runtime.run(patients.bookkeeper, ORDER, id="429")
        times = [request["time"] for request in post.requests()]
    assert times[2] - times[1] < 1


def test_one_slow_reply_eats_the_time_of_the_others() -> None:
    """By the inboxes: the session has ended, and two of three readers have nothing."""
    slow = Fault("reply_late", seconds=100)
    with examinations.trial(patients.newsletter, slow, latency=1.0) as runtime:
        run = runtime.run(patients.newsletter, list(READERS), id="slow", deadline=60)
        assert run.status == "failed"
        assert [mail["to"] for mail in post.inbox()] == [READERS[0]["email"]]


def test_a_second_start_of_the_cashier_needs_no_crash() -> None:
    """The number is drawn again for another run, so the key is another one."""
    (again,) = [t for t in clinic.before(5).trials if t.what == examinations.STARTED_AGAIN]
    assert not again.good
    assert again.cells["effects"] == 2
    (again,) = [t for t in clinic.before(2).trials if t.what == examinations.STARTED_AGAIN]
    assert again.good


def test_checkpoints_save_work_and_keys_save_the_world() -> None:
    """Four ways, each swept: one column follows the save place, the other one the key."""
    rows = [tuple(row.values()) for row in examinations.four_ways().rows]
    assert rows == [
        ("only at the end", "none", 3, 2),
        ("only at the end", "sent", 3, 1),
        ("after each transition", "none", 1, 2),
        ("after each transition", "sent", 1, 1),
    ]


def test_who_sees_what() -> None:
    """Lint and the sweep are both really asked about each patient."""
    seen = {CASES[number].name: clinic.seen_by(number) for number in CASES}
    assert seen == {
        "travel_agent": "lint",
        "shopper": "both",
        "bookkeeper": "lint",
        "newsletter": "lint",
        "cashier": "both",
        "refund": "sweep",
        "reminder": "neither",
    }


# -- the examination -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", CASES)
def test_an_examination_can_be_made_again_and_leaves_the_world_as_it_was(number) -> None:
    """The same rows, and the post and the bank are where they were, without a plan."""
    homes = town.folder, post.folder, bank.folder
    case = CASES[number]
    assert case.examine(case.workflow).table().text() == clinic.before(number).table().text()
    assert (town.folder, post.folder, bank.folder) == homes
    assert (post.plan, post.latency) == ([], 0.05)


def test_a_trial_gives_the_post_back_after_an_error_too() -> None:
    """A learner's agent may raise in any place."""
    home = post.folder
    with (
        pytest.raises(ZeroDivisionError),
        examinations.trial(patients.cashier, Fault("reply_lost")),
    ):
        raise ZeroDivisionError
    assert (post.folder, post.plan, post.latency) == (home, [], 0.05)


def test_a_sweep_of_the_town_sends_both_services_home() -> None:
    """Also the first one of a process: no service is left in a folder that is gone."""
    code = (
        "import durakit as dk\n"
        "from durakit.lab.clinic import patients\n"
        "from durakit.lab.clinic.examinations import ORDER, YES\n"
        "town, homes = patients.town, (patients.post.folder, patients.bank.folder)\n"
        "dk.sweep(patients.refund, ORDER, world=town, signals=YES, only='1')\n"
        "assert (patients.post.folder, patients.bank.folder) == homes\n"
        "assert all(home.is_dir() for home in homes)\n"
        "print(*homes)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert not any(Path(home).exists() for home in done.stdout.split())


def test_the_town_is_a_world(tmp_path: Path) -> None:
    """Entering its folder again keeps both ledgers; a hook hears both services; one clock."""
    home = town.folder
    heard: list[tuple[str, str | None]] = []
    try:
        town.fresh(tmp_path / "town")
        town.listen(lambda point, key: heard.append((point, key)))
        town.clock = clock = dk.ManualClock()
        post.send("ada@example.org", "a", "b", key="p")
        bank.send("DE42", "c", "d", key="q")
        assert {key for _, key in heard} == {"p", "q"}
        assert post.clock is bank.clock is town.clock is clock
        before = town.effects()
        town.fresh(tmp_path / "elsewhere")
        assert town.effects() == []
        town.fresh(tmp_path / "town")
        assert town.effects() == before
        assert [row["tool"] for row in before] == ["send_email", "pay"]
    finally:
        town.listen(None)
        town.fresh(home)


# -- the scorecard ---------------------------------------------------------------------------------


def card() -> dict[str, tuple[str, str]]:
    """Return before and after of each patient."""
    return {
        row["patient"].partition(" ")[2]: (row["before"], row["after"])
        for row in clinic.scorecard().rows
    }


def test_an_empty_scorecard_gives_nothing_away() -> None:
    """Predictions come first."""
    assert set(card().values()) == {("○ not examined yet", "○ not repaired yet")}
    clinic.admit(4)
    counted = "✗ no news for Bela and Chidi: 0 of 2 others have their news"
    assert card()["newsletter"] == (counted, "○ not repaired yet")
    assert card()["cashier"][0] == "○ not examined yet"


def test_a_repair_stands_beside_how_it_was_and_a_cure_is_not_taken_back() -> None:
    """A repair that is none shows its verdict; a cure stays, whatever is tried afterwards."""

    @dk.machine(state=patients.Trip, name="clinic cured")
    def cured(ctx, state):
        return patients.travel_agent.function(ctx, state)

    still_ill = clinic.before(1)
    clinic.keep(1, still_ill)
    ill = "✗ 2 answers again: 1 mail(s), up to 3 of 3 answers again"
    assert card()["travel_agent"] == (ill, ill)
    clinic.keep(1, examinations.examine_trip(cured))
    assert card()["travel_agent"][0] == ill
    assert card()["travel_agent"][1].startswith("✓ well: ")
    assert clinic.scorecard().caption == "THE SCORECARD: 1 of 6 are well"
    clinic.keep(1, still_ill)
    assert card()["travel_agent"][1].startswith("✓ well: ")
    with pytest.raises(KeyError):
        clinic.keep(8, still_ill)
    clinic.forget()
    assert set(card().values()) == {("○ not examined yet", "○ not repaired yet")}


def test_every_cell_of_the_scorecard_is_whole() -> None:
    """Before and after are one cell each: what a patient came in with is never cut."""
    for number in range(1, 7):
        clinic.admit(number)
    rows = clinic.scorecard().rows
    assert {len(row) for row in rows} == {4}
    for row in rows:
        assert all(str(cell) in clinic.scorecard().text() for cell in row.values())
    assert "…" not in clinic.scorecard().text()


# -- what is shown ---------------------------------------------------------------------------------


def test_what_is_shown_is_the_code_that_is_swept() -> None:
    """Word for word, each part once, and no marks for a linter in it."""
    for case in CASES.values():
        shown = Source(case).text()
        assert shown.endswith(inspect.getsource(case.workflow.function).rstrip())
        for part in case.parts:
            assert inspect.getsource(part.function).rstrip() in shown
        assert "noqa" not in shown
        assert max(map(len, shown.splitlines())) <= 95


def test_code_stays_text() -> None:
    """What is shown as HTML went through the one escaping helper."""

    @dk.workflow(name="clinic hostile")
    def hostile(ctx):
        return "<script>alert('x')</script>"

    shown = Source(clinic.Case(9, hostile, (), "", (), examinations.examine_orders)).html()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_the_results_of_an_examination_can_be_written_down() -> None:
    """Cells are numbers and words: nothing in a table changes from run to run."""
    for number in CASES:
        rows = [trial.row for trial in clinic.before(number).trials]
        assert json.loads(json.dumps(rows)) == rows

"""Lesson 02 as a learner meets it: its parts, its numbers against the ledger, its exercise."""

import dataclasses
import json
import os
import random
import re
import time
from pathlib import Path

import lesson_checks as checks
import nbformat
import pytest
from lesson_checks import cell_of, read, texts, tool
from lesson_play import Names, Seen, ask, run_twice, seen_after_each_cell
from nbformat import NotebookNode

import durakit as dk
from durakit.lab import lesson02
from durakit.lab.crash import scenarios
from durakit.lab.exercises import State
from durakit.lab.plots import WIDGET_VIEW
from durakit.mail import Mailbox
from durakit.sweep import can_fork

HERE = checks.LESSONS["02"]
ADA = "ada@example.org"

needs_fork = pytest.mark.skipif(not can_fork(), reason="this platform cannot fork")


# -- its parts -------------------------------------------------------------------------------------


# -- its numbers -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played() -> Seen:
    """After each cell: the reports, the ledger's word, the run's status, the widget."""

    def look(_name: str, names: Names) -> dict[str, object]:
        kept = ("report", "without_key", "with_key", "seed", "stops", "scrubber")
        told = {word: names[word] for word in kept if word in names}
        if "mailbox" in names:
            told["Ada"] = len(names["mailbox"].inbox(to=ADA))
        if "run" in names:
            told["status"] = names["run"].status
        return told

    return seen_after_each_cell(HERE, look)


def says(cell: str, *words: str) -> None:
    """Fail unless the lesson's text says these words at that place."""
    for word in words:
        assert word in cell_of(HERE.read(), cell).source


def test_the_table_of_boundaries_is_the_sweeps(played) -> None:
    """Twelve boundaries, three for each step and three for the run, numbered as in the text."""
    says("q1", "| 1, 2 |", "| 6, 7, 8 |", "| 12 | `end_saved`", "from 1 to 12")
    rows = played["sweep1"]["report"].schedules
    steps = [(step, p) for step in ("write", "send", "file") for p in dk.faults.POINTS["step"]]
    run = [("run", point) for point in ("run_saved", "run_claimed", "end_saved")]
    assert [(row.place, row.point) for row in rows] == [*run[:2], *steps, run[2]]
    assert [row.number for row in rows] == list(range(1, 13))


def test_one_bar_is_red_without_a_key_and_none_with_it(played) -> None:
    """The picture to remember: the ledger has two mails after one of twelve crashes."""
    says("e1", "One bar is red. At 7", "it says `completed` in every row")
    plain = played["sweep1"]["report"]
    assert [row.effects for row in plain.schedules] == [1] * 6 + [2] + [1] * 5
    assert {row.status for row in plain.schedules} == {"completed"}
    assert lesson02.red(plain) == [7]
    says("e4", "No red bar. But two are empty", "`report.safe` is `False`")
    keyed = played["sweep2"]["report"]
    assert lesson02.red(keyed) == []
    unseen = [row.point for row in keyed.schedules if row.verdict == "not reachable"]
    assert unseen == ["request_sent", "effect_done"]
    assert not keyed.safe


def test_the_seed_replays_exactly_the_crash_of_the_sweep(played) -> None:
    """One word, another world, and Ada has two mails again."""
    assert played["seed"]["seed"] == "step_done@send"
    assert (played["replay"]["Ada"], played["replay"]["status"]) == (2, "completed")
    says("e3", "did **not** go on at the line where the first one died")


def test_with_a_hook_the_same_gap_has_three_red_bars_and_none_with_the_key(played) -> None:
    """Late, acted, answered: the service is the only one who can tell them apart."""
    plain, keyed = played["sweep4"]["without_key"], played["sweep4"]["with_key"]
    bad = [row for row in plain.schedules if not row.good]
    assert [(row.place, row.point, row.fate) for row in bad] == [
        ("send", "request_sent", "late"),
        ("send", "effect_done", ""),
        ("send", "step_done", ""),
    ]
    says("e5", "(`effect_done`)", "(`step_done`)", "**late**")
    assert keyed.safe
    assert {row.effects for row in keyed.schedules} == {1}


def test_the_scrubber_compares_both_workflows(played) -> None:
    """It begins with the key, at the crash where the effect is done and nobody here knows."""
    scrubber = played["scrubber"]["scrubber"]
    assert scrubber.model.has_both
    assert scrubber.model.frame.schedule.point == "effect_done"
    scrubber.recover.value = True
    marks = {}
    for with_key in (True, False):
        scrubber.key.value = with_key
        marks[with_key] = scrubber.model.strip().count("✗")
    assert marks == {True: 0, False: 3}
    assert scrubber.troubles == []


def test_no_label_above_the_time_line_is_broken_over_two_lines(played) -> None:
    """A number and its unit, the mark and its word: "1.05 s" and "✗ crash" stay together."""
    model = played["scrubber"]["scrubber"].model
    recovered, model.recovered = model.recovered, True
    page = model.body()
    model.recovered = recovered
    line = page.partition('aria-label="Timeline"')[2].partition("</table>")[0]
    labels = re.findall(r'<th scope="col" style="([^"]*)">([^<]*)</th>', line)
    assert {"✗ crash", "0 s"} <= {words for _, words in labels}
    assert all("white-space: nowrap" in style for style, _ in labels)
    boxes = re.findall(r'<span style="flex: [^"]*"', page)
    assert len(boxes) == len(model.trace.frames)
    assert all("white-space: nowrap" in box for box in boxes)


@needs_fork
@pytest.mark.real_kill
def test_a_raised_exception_hides_what_a_kill_shows(played) -> None:
    """Six threes against 3, 4, 4, 5, 5, 6; freezing first gives the numbers of the kill."""
    rows = played["stops"]["stops"].rows
    assert [row["an exception"] for row in rows] == [3, 3, 3, 3, 3, 3]
    assert [row["killed for real"] for row in rows] == [3, 4, 4, 5, 5, 6]
    assert [row["frozen, then raised"] for row in rows] == [3, 4, 4, 5, 5, 6]
    says("e7", "six times three mails", "every reader gets the letter twice")


@needs_fork
def test_the_real_kill_leaves_the_rows_of_the_simulation(fresh: NotebookNode) -> None:
    """The cell says so in words, for a workflow that only this kernel knows."""
    (shown,) = texts(cell_of(fresh, "real"))
    assert shown.startswith("✓ IDENTICAL  A child process was killed at this point")
    assert re.findall(r"(\S+) +(\d) +(\d) +✓ same", shown) == [
        ("journal", "3", "3"),
        ("run", "1", "1"),
        ("mail", "1", "1"),
        ("request", "1", "1"),
        ("journal", "7", "7"),
        ("run", "1", "1"),
        ("mail", "2", "2"),
        ("request", "2", "2"),
    ]


def test_running_the_whole_lesson_twice_in_one_kernel_shows_the_same() -> None:
    """No cell depends on what an earlier run of the notebook has left."""
    run_twice(HERE, "stops")


# -- where no process can be made ------------------------------------------------------------------


def test_where_no_process_can_be_made_both_cells_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words in the place of the numbers, and no error; the other columns stay."""
    mailbox = lesson02.new_mailbox()

    @dk.workflow
    def small(ctx):
        return ctx.step("send", mailbox.send, ADA, "Welcome", "Hello")

    def refuse(*_: object) -> None:
        raise dk.UsageError("this platform cannot fork: move it into a module")

    monkeypatch.setattr(lesson02, "kill_for_real", refuse)
    monkeypatch.setattr(lesson02, "can_fork", lambda: False)
    note = lesson02.for_real(small, world=mailbox, seed="step_done@send")
    assert note.text().startswith("○ NOT HERE")
    assert "move it into a module" in note.text()

    def loop(mailbox, notes, may_die):
        may_die()
        mailbox.send(ADA, "News", "Hello")

    stops = lesson02.six_crashes(loop)
    assert lesson02.worst(stops, "an exception") == 1
    assert lesson02.worst(stops, "killed for real") == "not possible here"


@needs_fork
@pytest.mark.real_kill
def test_the_killed_loop_is_another_process() -> None:
    """What it does to this process's memory is not seen here, and its ``finally`` never ran."""
    lives = []

    def loop(mailbox, notes, may_die):
        try:
            lives.append(os.getpid())
            may_die()
        finally:
            notes.write([*notes.read(), "finally"])

    with pytest.MonkeyPatch.context() as patched:
        written = []
        patched.setattr(lesson02, "_count_mails", lambda f: written.append(notes_of(f)) or 0)
        lesson02.six_crashes(loop)
    # Each way: one life that is stopped, one that ends. Only the killed one is not in this list.
    assert len(lives) == 1 + 2 + 2 + 1
    assert written == [["finally", "finally"], ["finally"], ["finally"]]


def notes_of(folder: Path) -> list[str]:
    """Return what a loop's notes hold."""
    return json.loads((folder / "notes.json").read_text())


# -- its exercise ----------------------------------------------------------------------------------

shop = Mailbox(clock=dk.ManualClock())


@dk.tool(effect="idempotent", window=86_400)
def send_letter(call, reader, text):
    """The tool of the exercise."""
    return shop.send(reader["email"], "News 7", text, key=call.key)


def hello(reader: dict) -> str:
    """The text of the exercise."""
    return f"Hello {reader['name']}"


@dk.workflow
def worked(ctx, listed):
    """The worked answer."""
    for reader in listed:
        ctx.call(send_letter, reader, hello(reader), key=f"news-7:{reader['id']}")


@dk.workflow
def still_a_step(ctx, listed):
    """The key is the name of a step, and the service is not told."""
    for reader in listed:
        ctx.step(f"news-7:{reader['id']}", shop.send, reader["email"], "News 7", hello(reader))


@dk.workflow
def a_bare_line(ctx, listed):
    """Nothing is saved about the mail."""
    for reader in listed:
        shop.send(reader["email"], "News 7", hello(reader))


@dk.workflow
def one_key(ctx, listed):
    """One key for three letters."""
    for reader in listed:
        ctx.call(send_letter, reader, hello(reader), key="news-7")


@dk.workflow
def by_place(ctx, listed):
    """The key is the place in the list."""
    for number, reader in enumerate(listed):
        ctx.call(send_letter, reader, hello(reader), key=f"news-7:{number}")


@dk.workflow
def by_time(ctx, listed):
    """The key is new in every life."""
    for reader in listed:
        ctx.call(send_letter, reader, hello(reader), key=f"{reader['id']}:{time.monotonic_ns()}")


@dk.workflow
def by_chance(ctx, listed):
    """The key is drawn in a step, so it is the same in every life, but not in another run."""
    for reader in listed:
        key = ctx.step("key", random.random)
        ctx.call(send_letter, reader, hello(reader), key=str(key))


@dk.tool(effect="idempotent", window=86_400)
def send_per_attempt(call, reader, text):
    """Give the service another key for each attempt."""
    return shop.send(reader["email"], "News 7", text, key=f"{call.key}:{call.attempt}")


@dk.workflow
def per_attempt(ctx, listed):
    """The key is right, and the tool changes it."""
    for reader in listed:
        ctx.call(send_per_attempt, reader, hello(reader), key=f"news-7:{reader['id']}")


@dk.tool(effect="idempotent", window=86_400)
def send_without_key(call, reader, text):
    """Keep the key from the service."""
    return shop.send(reader["email"], "News 7", text)


@dk.workflow
def no_key_passed(ctx, listed):
    """The key is right, and the tool drops it."""
    for reader in listed:
        ctx.call(send_without_key, reader, hello(reader), key=f"news-7:{reader['id']}")


@dk.tool(effect="none")
def send_as_if_nothing(call, reader, text):
    """Pass the key on, and declare that a letter touches nothing outside."""
    return shop.send(reader["email"], "News 7", text, key=call.key)


@dk.workflow
def hides_the_effect(ctx, listed):
    """No crash hurts it; the declaration is false all the same."""
    for reader in listed:
        ctx.call(send_as_if_nothing, reader, hello(reader), key=f"news-7:{reader['id']}")


@dk.workflow
def by_text(ctx, listed):
    """The key is the text, which is made of the name."""
    for reader in listed:
        ctx.call(send_letter, reader, hello(reader), key=hello(reader))


@dk.tool
def send_opaque(call, reader, text):
    """Declare nothing."""
    return shop.send(reader["email"], "News 7", text, key=call.key)


@dk.workflow
def declares_nothing(ctx, listed):
    """The key is right, and the runtime may not use it."""
    for reader in listed:
        ctx.call(send_opaque, reader, hello(reader), key=f"news-7:{reader['id']}")


@dk.workflow
def only_the_first(ctx, listed):
    """The loop is gone."""
    reader = listed[0]
    ctx.call(send_letter, reader, hello(reader), key=f"news-7:{reader['id']}")


@dk.workflow
def returns_too_soon(ctx, listed):
    """A slip of the indent would return after the first; this one raises."""
    for reader in listed:
        ctx.call(send_letter, reader, reader["nickname"], key=f"news-7:{reader['id']}")


@dk.workflow
def no_list(ctx):
    """Takes no readers."""


_sent: set[int] = set()


@dk.workflow
def remembers_in_memory(ctx, listed):
    """A set in this process's memory stands for the journal."""
    for reader in listed:
        if reader["id"] not in _sent:
            shop.send(reader["email"], "News 7", hello(reader))
            _sent.add(reader["id"])


@dk.workflow
def dots(ctx, listed):
    """The stub."""
    return ...


def test_the_worked_answer_passes(tmp_path: Path) -> None:
    """Every crash, and a second start with a shorter list."""
    note = ask(lesson02.crash_proof, tmp_path, worked, shop)
    assert note.mark == State.PASS.value
    assert note.lines[0] == "24 crashes, 24 times one mail for each reader. The ledger says so."


WRONG = [
    (still_a_step, "The mail goes out from inside a step"),
    (a_bare_line, "The mail goes out from a bare line"),
    (one_key, "Two readers are two operations"),
    (by_place, "Ada has left the list"),
    (by_time, "asks for another key than the one it has saved"),
    (by_chance, "have two mails"),
    (per_attempt, "more keys than there are letters"),
    (no_key_passed, "The service was given no key"),
    (declares_nothing, "a person has to decide"),
    (hides_the_effect, "But the service acted while it ran"),
    (by_text, "A fourth reader is called Ada, too"),
    (only_the_first, "yet Bela has no mail"),
    (returns_too_soon, "Nothing crashed, and yet your run is failed: KeyError"),
    (no_list, "called with ctx and a list of readers"),
    (remembers_in_memory, "remembers something outside of its journal"),
    (send_letter, "You handed over the tool"),
    (hello, "by its name and without brackets"),
    (None, "This is None"),
]


@pytest.mark.parametrize(("answer", "words"), WRONG, ids=lambda given: getattr(given, "name", None))
def test_a_known_wrong_answer_is_told_what_is_wrong_with_it(answer, words, tmp_path) -> None:
    """Each has a message of its own, and the first hint."""
    _sent.clear()
    note = ask(lesson02.crash_proof, tmp_path, answer, shop)
    assert note.mark == State.TRY_AGAIN.value
    assert words in note.text()
    assert f"Hint 1 of 4: {lesson02.HINTS[0]}" in note.lines


def test_no_two_wrong_answers_are_told_the_same(tmp_path: Path) -> None:
    """What is said tells the mistakes apart."""
    told = set()
    for answer, _ in WRONG:
        _sent.clear()
        told.add(ask(lesson02.crash_proof, tmp_path, answer, shop).lines[:-1])
    assert len(told) == len(WRONG)


def test_what_is_named_as_a_counterexample_is_one(tmp_path: Path) -> None:
    """The seed in the message, replayed by hand, sends a letter twice."""
    note = ask(lesson02.crash_proof, tmp_path / "progress", still_a_step, shop)
    seed = note.lines[0].rpartition(" ")[2]
    report = dk.sweep(still_a_step, lesson02.customers(), world=shop, only=seed)
    assert [row.verdict for row in report.schedules] == ["duplicate"]
    mailbox = Mailbox(tmp_path / "by hand", clock=dk.ManualClock())

    @dk.workflow
    def by_hand(ctx, listed):
        for reader in listed:
            ctx.step(
                f"news-7:{reader['id']}", mailbox.send, reader["email"], "News 7", hello(reader)
            )

    with dk.Runtime(tmp_path / "runs.db", clock=mailbox.clock, world=mailbox) as rt:
        rt.run(by_hand, lesson02.customers(), id="1", crash=dk.CrashAt.parse(seed))
        rt.recover()
    assert len(mailbox.effects()) == 4
    mailbox.close()


def test_three_dots_are_a_task_and_no_mistake(tmp_path: Path) -> None:
    """The stub asks; a mailbox that is none, or a report, is told."""
    assert ask(lesson02.crash_proof, tmp_path, dots, shop).mark == State.TODO.value
    assert (
        "the mailbox that your tool sends to"
        in ask(lesson02.crash_proof, tmp_path, worked, worked).text()
    )
    report = dk.sweep(worked, lesson02.customers(1), world=shop)
    assert "You handed over a report" in ask(lesson02.crash_proof, tmp_path, report, shop).text()


def test_the_learners_mailbox_comes_back_as_it_was(tmp_path: Path) -> None:
    """Its ledger, its clock and its profile, also where the check ends early."""
    shop.send(ADA, "Mine", "before the check")
    before = shop.effects(), shop.clock, shop.profile, shop.folder
    for answer in (worked, one_key, still_a_step):
        ask(lesson02.crash_proof, tmp_path, answer, shop)
        assert (shop.effects(), shop.clock, shop.profile, shop.folder) == before


def test_the_hints_go_up_to_nearly_the_answer(tmp_path: Path) -> None:
    """Four tries, four hints, and then the last one again."""
    told = [ask(lesson02.crash_proof, tmp_path, still_a_step, shop).lines[-1] for _ in range(5)]
    assert [line[:6] for line in told] == ["Hint 1", "Hint 2", "Hint 3", "Hint 4", "Hint 4"]


# -- how a lesson is stored ------------------------------------------------------------------------


def test_a_stored_lesson_has_no_widget_views_and_keeps_their_fallback() -> None:
    """After a restart JupyterLab would show 'model not found' in the place of a view's HTML."""
    for path in (HERE.path, HERE.solution_path):
        for output in [o for c in read(path).cells if c.cell_type == "code" for o in c.outputs]:
            assert WIDGET_VIEW not in output.get("data", {})
    kept = cell_of(HERE.read(), "scrubber").outputs[0]["data"]
    assert set(kept) == {"text/plain", "text/html"}
    assert "EVERY CRASH" in kept["text/html"]


def test_storing_takes_the_view_away_and_leaves_a_pictures_words() -> None:
    """The normal form of an output as a kernel gives it."""
    notebook = HERE.read()
    widget = cell_of(notebook, "scrubber").outputs[0]
    picture = cell_of(notebook, "sweep1").outputs[0]
    before = nbformat.writes(notebook)
    for output in (widget, picture):
        output["data"][WIDGET_VIEW] = {"model_id": "1", "version_major": 2, "version_minor": 0}
        output["metadata"]["needs_background"] = "light"
    tool.normalise(notebook)
    assert nbformat.writes(notebook) == before
    assert picture["metadata"]["image/png"]["alt"].startswith("Bar chart of welcome: effects after")


@needs_fork
@pytest.mark.real_kill
def test_a_difference_between_simulation_and_kill_would_be_told(monkeypatch) -> None:
    """A simulation that lies is marked in words, with the table that differs."""
    honest = scenarios.kill_for_real

    def lying(scenario: scenarios.Scenario, frame: scenarios.Frame) -> scenarios.RealKill:
        prints = {stage: dict(tables) for stage, tables in frame.disk.items()}
        prints["crashed"]["world/mail.db", "mail"] = (0, "")
        return honest(scenario, dataclasses.replace(frame, disk=prints))

    monkeypatch.setattr(lesson02, "kill_for_real", lying)
    readers = lesson02.customers(1)
    text = lesson02.for_real(still_a_step, readers, world=shop, seed="step_done@news-7:42").text()
    assert text.startswith("✗ DIFFERENT")
    assert re.search(r"mail +0 +1 +✗ DIFFERENT", text)
    with pytest.raises(dk.UsageError, match="has no crash"):
        lesson02.for_real(worked, readers, world=shop, seed="step_done@elsewhere")

"""Lesson 01 as a learner meets it: its parts, its numbers against the ledger, its solution."""

from pathlib import Path

import lesson_checks as checks
import nbformat
import pytest
from lesson_checks import ROOT, cell_of, tool
from lesson_play import Names, Seen, hold, mails_after_each_cell
from nbformat.v4 import new_code_cell, new_notebook

import durakit as dk
from durakit.lab import lesson01, worlds
from durakit.mail import Mailbox

HERE = checks.LESSONS["01"]
LESSON = HERE.path
SOLUTION = HERE.solution_path
read = HERE.read


# -- its parts -------------------------------------------------------------------------------------


# -- its numbers -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played() -> Seen:
    """The lesson's cells as a plain script; after each one, the ledger's word and the run's."""

    def look(_name: str, names: Names, mailbox: Mailbox) -> dict[str, object]:
        run = names.get("run")
        return {
            "mails": len(mailbox.inbox(to="ada@example.org")),
            "status": run.status if run else None,
            "outcome": run.operations().loc[0, "outcome"] if run else None,
            "rows": list(names.get("rows", ())),
            "records": len(names.get("records", ())),
        }

    return mails_after_each_cell(HERE, look)


@pytest.mark.parametrize(
    ("text", "says", "cell", "facts"),
    [
        ("title", "one rerun, two mails", "rerun", {"mails": 2}),
        ("e1", "The first mail to Ada was out", "loop", {"mails": 1}),
        ("e2", "unknown is an answer of its own", "look2", {"mails": 1, "outcome": "unknown"}),
        ("e2", "`needs_decision`", "recover2", {"status": "needs_decision", "mails": 1}),
        ("s3", "Four worlds, one record", "worlds", {"records": 1}),
        ("s4", "the program died at `effect_done`", "open4", {"mails": 1, "outcome": "unknown"}),
        ("q4", "The ledger says that the mail is out", "open4", {"status": "needs_decision"}),
        ("e4", "One mail, and a run that ended well", "resolve4", {"status": "completed"}),
        ("e4", "One mail", "resolve4", {"mails": 1, "requests": ["delivered"]}),
        ("l5", "Two attempts, one mail", "run5", {"mails": 1}),
        ("l5", "Two attempts", "run5", {"requests": ["delivered", "replayed"]}),
        ("e6", "two keys, two mails", "mistake", {"mails": 2, "status": "completed"}),
        (
            "e6",
            "two keys",
            "mistake",
            {"keys": ["welcome:42:attempt-1", "welcome:42:attempt-2"]},
        ),
    ],
)
def test_a_number_in_the_text_is_the_ledgers(text, says, cell, facts, played) -> None:
    """What the lesson claims in words is what the mail service's own record says at that place."""
    hold(HERE, played, text, says, cell, facts)


def test_the_four_worlds_differ_in_the_ledger_alone(played) -> None:
    """Guess 'done' and two get nothing; guess 'not done' and two get two: as the text says."""
    rows = played["worlds"]["rows"]
    assert [(row["died at"], row["mails"]) for row in rows] == [
        ("intent_saved", 0),
        ("request_sent", 0),
        ("effect_done", 1),
        ("reply_received", 1),
    ]
    assert len({(row["status"], row["outcome"], row["attempts"]) for row in rows}) == 1
    assert {row["then"] for row in rows} == {"needs_decision"}
    text = cell_of(read(), "e3").source
    assert "in two worlds Ada gets nothing" in text
    assert "in two worlds she gets two" in text


@pytest.mark.parametrize("point", ["intent_saved", "request_sent"])
def test_in_the_first_two_worlds_the_other_word_sends_one_mail(point: str, tmp_path: Path) -> None:
    """What section 4 says without showing: "not_executed" lets the runtime send it, once."""
    assert 'she would have said `"not_executed"`' in cell_of(read(), "e4").source
    mailbox, runtime = lesson01.new_world(tmp_path / point)

    @dk.tool
    def send_email(call, to):
        return mailbox.send(to, "Welcome", "Hello", timeout=3)

    @dk.workflow
    def welcome(ctx, to):
        return ctx.call(send_email, to, key="welcome:42")

    crash = dk.CrashAt("send_email", point)
    run = runtime.run(welcome, "ada@example.org", id="welcome:42", crash=crash)
    runtime.recover()
    assert (run.status, len(mailbox.inbox())) == ("needs_decision", 0)
    runtime.resolve(run.id, "welcome:42", "not_executed", by="Grace")
    runtime.recover()
    assert (run.status, len(mailbox.inbox())) == ("completed", 1)
    mailbox.close()
    runtime.close()


# -- its exercise ----------------------------------------------------------------------------------


# -- the check that holds all this -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "line", "problem"),
    [
        ("loop", "raise RuntimeError('broken on purpose')", "a cell raised RuntimeError"),
        ("loop", "%no_such_magic\nraise RuntimeError('hidden')", "a cell raised"),
        ("loop", "import sys; print('careful', file=sys.stderr)", "a cell wrote to stderr"),
        ("end", "lesson.end", "its last cell does not show"),
    ],
)
def test_a_copy_with_a_broken_line_is_red(cell: str, line: str, problem: str) -> None:
    """The notebook check fails where nbval alone would let a cell pass (L134)."""
    notebook = read()
    # The first cell, the broken one and the last: a short copy says as much as a long one.
    notebook.cells = [cell_of(notebook, name) for name in ("first", "loop", "end")]
    cell_of(notebook, cell).source += f"\n{line}" if cell != "end" else ""
    if cell == "end":
        cell_of(notebook, cell).source = line
    (found,) = tool.run(notebook, LESSON.parent)
    assert problem in found


def test_a_cell_that_was_not_run_is_red() -> None:
    """Stored execution counts must be 1 to n, whatever the outputs look like (L134)."""
    notebook = read()
    assert tool.problems(notebook) == []
    cell_of(notebook, "worlds").execution_count = None
    assert tool.problems(notebook) == ["not every cell was run, from top to bottom"]


def test_a_notebook_that_never_ends_is_red() -> None:
    """The limit is for the whole notebook, and the kernel does not outlive it."""
    notebook = new_notebook(cells=[new_code_cell("while True: pass")])
    assert tool.run(notebook, ROOT, limit=3.0) == ["it takes more than 3 seconds"]


def test_a_lesson_is_stored_in_one_normal_form() -> None:
    """No widget state, no times, one kernel name: what an editor adds is taken away."""
    stored = read()
    again = read()
    again.metadata["widgets"] = {"state": {}}
    again.metadata["language_info"]["version"] = "3.99"
    again.metadata["kernelspec"]["name"] = "ada"
    again.cells[2].metadata["execution"] = {"iopub.execute_input": "2026-01-01T09:00:00Z"}
    tool.normalise(again)
    assert nbformat.writes(again) == nbformat.writes(stored)


# -- what its cells lean on ------------------------------------------------------------------------


def test_customers_come_from_the_data_folder_wherever_the_kernel_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lesson opened elsewhere still finds them, and a missing file says where to go."""
    monkeypatch.chdir(tmp_path)
    found = lesson01.customers(2)
    assert [customer["name"] for customer in found] == ["Ada", "Bela"]
    monkeypatch.setattr(worlds, "CUSTOMERS", Path("data") / "nobody.json")
    with pytest.raises(FileNotFoundError, match="open the lesson in your durakit checkout"):
        lesson01.customers()


def test_the_customers_are_made_up_and_distinct() -> None:
    """Nobody's real address is in the data, and no two customers share an id or an address."""
    listed = lesson01.customers(100)
    assert len(listed) == 8
    assert all(customer["email"].endswith("@example.org") for customer in listed)
    for name in ("id", "email"):
        assert len({customer[name] for customer in listed}) == len(listed)
    assert "`customers.json`" in (ROOT / "data" / "README.md").read_text()


def test_a_world_is_new_each_time_and_can_be_opened_again_as_it_was_left(tmp_path: Path) -> None:
    """A cell that is run again shows the same; the next morning everything is still there."""
    for _ in range(3):
        mailbox, runtime = lesson01.new_world(tmp_path / "a world")
        assert mailbox.inbox() == []
        assert len(runtime.runs()) == 0
        mailbox.send("ada@example.org", "Welcome", "Hello")
        runtime.run(nothing, id="welcome:42")
        mailbox.close()
        runtime.close()
    mailbox, runtime = lesson01.reopen_world(tmp_path / "a world")
    assert len(mailbox.inbox()) == 1
    assert runtime.get("welcome:42").status == "completed"
    mailbox.close()
    runtime.close()


@dk.workflow
def nothing(ctx):
    """A workflow that ends at once."""
    del ctx


def test_running_the_whole_lesson_twice_in_one_kernel_shows_the_same() -> None:
    """No cell depends on what an earlier run of the notebook has left."""
    names: dict[str, object] = {}
    shown = []
    for _ in range(2):
        _, said = checks.play(HERE, names=names)
        shown.append((said, str(names["rows"]), len(names["mailbox"].inbox())))
    assert shown[0] == shown[1]


def test_where_a_kernel_cuts_its_printing_is_not_stored():
    """Pieces of one stream become one output; other outputs stay where they are."""
    stream = nbformat.v4.new_output
    cell = new_code_cell(
        "",
        outputs=[
            stream("stream", text="a\n"),
            stream("stream", text="b\n"),
            stream("display_data", data={"text/plain": "x"}),
            stream("stream", text="c\n"),
        ],
    )
    notebook = new_notebook(cells=[cell, nbformat.v4.new_markdown_cell("words")])
    tool.join_streams(notebook)
    assert [o.get("text", "-") for o in notebook.cells[0].outputs] == ["a\nb\n", "-", "c\n"]

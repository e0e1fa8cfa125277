"""The commands on a file: `runs` and `show` change nothing, `resume` finishes what was left."""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import command_line
import pytest
from command_line import (
    DIE,
    all_refused,
    answer,
    complaints,
    die,
    durakit,
    each,
    make_runs,
    refusal,
    sent,
    start,
    state,
)

import durakit as dk
from durakit import runtime
from durakit.cli import looking, printing, runs

compiled_once, shop = command_line.compiled_once, command_line.shop

#: An id, and a customer, that would colour, ring, clear and turn round a terminal.
HOSTILE = "run\x1b[2J\x07\x7f\x9b31m\u202e\r\nlast"
SHOWN = r"run\u001b[2J\u0007\u007f\u009b31m\u202e\u000d\u000alast"


# -- runs and show -----------------------------------------------------------------------


def test_runs_lists_every_run_oldest_first(tmp_path: Path) -> None:
    """One line per run, and its entries are counted as the journal has them."""
    make_runs(tmp_path, "b", "a")
    lines = answer(tmp_path, "runs", "orders.db").splitlines()
    assert lines[0].split() == ["id", "workflow", "status", "entries", "incarnations", "created",
                                "owner", "reason"]  # fmt: skip
    assert [line.split()[:5] for line in lines[1:]] == [
        [name, "noted", "completed", "4", "1"] for name in ("b", "a")
    ]
    found = json.loads(answer(tmp_path, "runs", "orders.db", "--json"))
    assert [(run["id"], run["entries"]) for run in found] == [("b", 4), ("a", 4)]


def test_accounts_are_told_apart(tmp_path: Path) -> None:
    """`--account` keeps the others out; a run that only another account has is hinted at."""
    make_runs(tmp_path, "mine")
    make_runs(tmp_path, "theirs", account="b")
    every, only, none, wrong, right = each(
        tmp_path,
        ["runs", "orders.db"],
        ["runs", "orders.db", "--account", "b", "--json"],
        ["runs", "orders.db", "--account", "c"],
        ["show", "orders.db", "theirs"],
        ["show", "orders.db", "theirs", "--account", "b"],
    )
    assert [line.split()[0] for line in every[1].splitlines()] == ["account", "default", "b"]
    assert [run["id"] for run in json.loads(only[1])] == ["theirs"]
    assert none == (0, "no runs of account 'c'\n", "")
    assert (wrong[0], "account 'b' has one" in wrong[2]) == (2, True)
    assert (right[0], "theirs" in right[1]) == (0, True)


def test_show_tells_status_operations_and_journal(shop: Path) -> None:
    """A killed run's open operation is shown as unknown, with the entries that led to it."""
    die(shop, "welcome", "w", "effect_done")
    text = answer(shop, "show", "orders.db", "w")
    assert re.search(r"^status +running$", text, re.MULTILINE)
    assert re.search(r"^send_email +welcome:ada +DISPATCHED +unknown +1 ", text, re.MULTILINE)
    whole = json.loads(answer(shop, "show", "orders.db", "w", "--json"))
    assert [entry["kind"] for entry in whole["journal"]] == ["started", "claimed", "step", "intent"]
    assert [(o["key"], o["outcome"]) for o in whole["operations"]] == [("welcome:ada", "unknown")]


def test_text_of_others_reaches_the_terminal_as_escapes_only(tmp_path: Path) -> None:
    """No id, argument, result or message can clear the screen or turn the line round."""
    make_runs(tmp_path, HOSTILE)
    *shown, refused = each(
        tmp_path,
        ["runs", "orders.db"],
        ["show", "orders.db", HOSTILE],
        ["runs", "orders.db", "--json"],
        ["show", "orders.db", HOSTILE, "--json"],
        ["show", "orders.db", f"no {HOSTILE}"],
    )
    assert [code for code, _, _ in shown] == [0] * 4
    for text in (*(text for _, text, _ in shown), refused[2]):
        assert [c for c in text.replace("\n", "") if not c.isprintable()] == []
    assert [SHOWN in text for _, text, _ in shown[:2]] == [True, True]
    assert len(refused[2].splitlines()) == 1
    assert json.loads(shown[3][1])["result"] == HOSTILE


def test_a_journal_that_was_altered_is_not_shown(tmp_path: Path) -> None:
    """`show` checks every digest first: what it prints is what was written."""
    make_runs(tmp_path, "told")
    path = tmp_path / "orders.db"
    altered = path.read_bytes().replace(b'{"value":"told"}', b'{"value":"sold"}')
    assert altered != path.read_bytes()
    path.write_bytes(altered)
    assert "is not what was written" in refusal(tmp_path, "show", "orders.db", "told")


def test_a_journal_whose_end_is_missing_is_not_shown(tmp_path: Path) -> None:
    """Entries that are whole, and fewer than the run knows of, are damage too."""
    make_runs(tmp_path, "told")
    with sqlite3.connect(tmp_path / "orders.db") as file:
        (guard,) = file.execute(
            "SELECT sql FROM sqlite_schema WHERE name = 'journal_is_kept'"
        ).fetchone()
        file.execute("DROP TRIGGER journal_is_kept")
        file.execute("DELETE FROM journal WHERE kind = 'completed'")
        file.execute(guard)
    file.close()
    assert "does not reach entry 4" in refusal(tmp_path, "show", "orders.db", "told")


@pytest.mark.real_kill
def test_looking_at_what_a_kill_left_changes_no_byte(shop: Path) -> None:
    """The write-ahead log of a dead process stays where it is, also after many looks."""
    die(shop, "welcome", "w", "reply_received")
    before = state(shop)
    assert before["orders.db-wal"][0], "the kill left a log"
    for words in (("runs", "orders.db"), ("show", "orders.db", "w"), ("runs", "orders.db")):
        assert "running" in answer(shop, *words)
        assert state(shop) == before


def test_looking_at_a_file_in_use_sees_all_that_is_committed(tmp_path: Path) -> None:
    """A live driver's entries are read from its log, and its files are as they were."""
    make_runs(tmp_path, "first")
    with dk.Runtime(tmp_path / "orders.db") as rt:
        workflow = dk.workflow(lambda ctx: ctx.step("one", lambda: 1), name="live")
        rt.run(workflow, id="second")
        before = state(tmp_path)
        assert before["orders.db-wal"][0], "the entries are still in the log"
        found = json.loads(answer(tmp_path, "runs", "orders.db", "--json"))
        assert [run["id"] for run in found] == ["first", "second"]
        assert state(tmp_path) == before


def test_a_copy_that_a_new_log_crossed_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the log begins anew between the two copies, the torn pair is thrown away."""
    database, log = tmp_path / "x.db", tmp_path / "x.db-wal"
    database.write_bytes(b"old pages")
    log.write_bytes(b"1" * 32 + b"frames")
    copied: list[str] = []
    plain = shutil.copyfile

    def copy(source: Path, target: Path) -> None:
        plain(source, target)
        copied.append(source.name)
        if len(copied) == 1:  # a checkpoint empties the log, and a commit begins the next
            database.write_bytes(b"new pages")
            log.write_bytes(b"2" * 32)

    monkeypatch.setattr(shutil, "copyfile", copy)
    folder = tmp_path / "copy"
    folder.mkdir()
    assert looking.copied(database, folder).read_bytes() == b"new pages"
    assert (folder / "copy.db-wal").read_bytes() == b"2" * 32
    assert copied == ["x.db", "x.db-wal"] * 2


def test_a_file_of_a_manual_clock_is_read_and_not_driven(tmp_path: Path) -> None:
    """The lessons' files can be looked at; driving them on real time is refused in one line."""
    make_runs(tmp_path, "lesson", clock=dk.ManualClock())
    before = state(tmp_path)
    runs, show, resume = each(
        tmp_path,
        ["runs", "orders.db"],
        ["show", "orders.db", "lesson"],
        ["resume", "orders.db", "--module", "json"],
    )
    assert "2026-01-01T09:00:00.000Z" in runs[1]
    assert (show[0], "lesson" in show[1]) == (0, True)
    assert resume[:2] == (2, "")
    assert "manual clock" in resume[2]
    assert state(tmp_path) == before


@pytest.mark.parametrize(
    ("text", "room", "cut"),
    [("short", 5, "short"), ("longer", 5, "long…"), ("世界世界", 5, "世界…"), ("世界", 4, "世界")],
)
def test_a_line_is_cut_by_what_a_terminal_shows(text: str, room: int, cut: str) -> None:
    """A wide character takes two columns, and the sign that something is missing takes one."""
    assert printing.cut(text, room) == cut


# -- resume ------------------------------------------------------------------------------


@pytest.mark.real_kill
def test_a_killed_run_is_shown_and_then_finished_with_one_effect(shop: Path) -> None:
    """Dead after the send, before the reply: recovery sends again under the key, once outside."""
    die(shop, "welcome", "w", "effect_done")
    assert sent(shop) == 1
    assert "running" in answer(shop, "runs", "orders.db")
    table = answer(shop, "resume", "orders.db", "--module", "shop", "--wait", "30")
    assert [line.split() for line in table.splitlines()] == [
        ["run", "did", "status", "detail"],
        ["w", "driven", "completed"],
    ]
    assert sent(shop) == 1
    (run,) = json.loads(answer(shop, "runs", "orders.db", "--json"))
    assert (run["status"], run["incarnations"], run["owner"]) == ("completed", 2, None)
    assert answer(shop, "resume", "orders.db", "--module", "shop") == "nothing is unfinished\n"


@pytest.mark.real_kill
def test_what_nobody_can_know_is_parked_and_asks_for_a_person(shop: Path) -> None:
    """An opaque tool's unknown effect ends with exit code 1, here and in every later look."""
    die(shop, "careful", "c", "effect_done")
    words = ("resume", "orders.db", "c", "--module", "shop", "--wait", "30")
    assert "needs_decision" in answer(shop, *words, code=1)
    resume, runs, show = each(
        shop,
        ["resume", "orders.db", "--module", "shop"],
        ["runs", "orders.db"],
        ["show", "orders.db", "c"],
    )
    assert [resume[0], runs[0], show[0]] == [1, 1, 1]
    assert re.search(r"^c +parked +needs_decision +unknown:", resume[1], re.MULTILINE)
    assert "unknown:" in runs[1]
    assert re.search(r"^reason +unknown:", show[1], re.MULTILINE)
    assert sent(shop) == 1


def test_a_run_that_fails_asks_for_a_person(shop: Path) -> None:
    """Its error is in the table, escaped, and the exit code is 1."""
    start(shop, "broken")
    table = answer(shop, "resume", "orders.db", "broken", "--module", "shop", code=1)
    assert r"ValueError: no stock\u001b[2J" in table
    again = answer(shop, "resume", "orders.db", "broken", "--module", "shop", code=1)
    assert again.splitlines()[1].split()[:3] == ["broken", "nothing", "failed"]


def test_a_run_that_another_driver_owns_is_left_to_it(shop: Path) -> None:
    """The table says until when; nothing is done, and a script can see that it was not."""
    program = DIE.replace("lease=0.2", "lease=600")
    words = [sys.executable, "-c", program, "welcome", "w", "before_intent", "ada"]
    subprocess.run(words, cwd=shop, check=False, capture_output=True, timeout=60)
    for more in ((), ("w",)):
        words = ("resume", "orders.db", *more, "--module", "shop", "--wait", "0.1")
        table = answer(shop, *words, code=1)
        assert "add --wait 30" in table
        assert re.search(r"^w +owned +running +owned elsewhere until 2", table, re.MULTILINE)
    assert sent(shop) == 0


def test_waiting_for_a_lease_ends_as_soon_as_the_lease_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed driver's run is owned for 30 virtual seconds, and then it is driven."""
    clock = dk.ManualClock()
    workflow = dk.workflow(lambda ctx: ctx.step("one", lambda: 1), name="awaited")
    dead = dk.CrashAt("one", "before_step")
    path = tmp_path / "orders.db"
    with dk.Runtime(path, clock=clock, lease=30) as rt:
        rt.run(workflow, id="a", crash=dead)
        # What another process would know of it: nothing.
        monkeypatch.setattr(runtime, "_dead", set())
        assert runs.resumed(rt, "a", clock, 0)[1:3] == ("owned", "running")
        assert runs.resumed(rt, "a", clock, 29)[1:3] == ("owned", "running")
        assert runs.resumed(rt, "a", clock, 60)[1:3] == ("driven", "completed")
    assert 30 <= clock.monotonic() - dk.ManualClock().monotonic() < 31


def test_what_a_workflow_prints_stays_out_of_the_answer(shop: Path) -> None:
    """Standard output is the table alone; the module's and the workflow's words go elsewhere."""
    start(shop, "welcome", "ada")
    (shop / "loud.py").write_text("import shop\nprint('the shop is open')\n")
    done = durakit(shop, "resume", "orders.db", "welcome", "--module", "loud")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr.splitlines() == ["the shop is open", "welcome is at work"]


@pytest.mark.skipif(os.name == "nt", reason="there is no echo")
def test_what_a_workflows_child_processes_print_stays_out_of_the_answer(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table can be piped, whatever a tool runs and however it writes."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "")  # what is written waits in a buffer
    (shop / "chatty.py").write_text(
        "import subprocess, sys\nimport durakit as dk\nfrom shop import world\n\n\n@dk.workflow\n"
        "def chats(ctx):\n    subprocess.run(['echo', 'from a child'], check=True)\n"
        "    sys.__stdout__.write('from below\\n')\n"
    )
    start(shop, "chats", module="chatty")
    done = durakit(shop, "resume", "orders.db", "--module", "chatty")
    assert (done.returncode, complaints(done)) == (0, [])
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["run", "chats"]
    assert sorted(done.stderr.splitlines()) == ["from a child", "from below"]
    for more in ((), ("--real",)):
        swept = durakit(shop, "sweep", "chatty:chats", *more)
        assert swept.returncode == 0
        assert swept.stdout.startswith("number")
        assert "from" not in swept.stdout


ENDINGS = {
    "leaves": ("sys.exit('bye')", "the code that was to run has called sys.exit('bye')"),
    "ends well": ("sys.exit()", "the code that was to run has called sys.exit(None)"),
    "cancels": ("raise asyncio.CancelledError('c')", "CancelledError: c"),
    "its own": ("raise type('Own', (BaseException,), {})('o')", "Own: o"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_workflow_that_ends_its_process_asks_for_a_person(shop: Path, ending: str) -> None:
    """One line and exit code 1, whatever code it asked for; nothing is called done."""
    line, says = ENDINGS[ending]
    (shop / "ending.py").write_text(
        "import asyncio, sys\nimport durakit as dk\nfrom shop import world\n\n\n@dk.workflow\n"
        f"def ends(ctx):\n    {line}\n"
    )
    start(shop, "ends", module="ending")
    for words in (
        ["resume", "orders.db", "ends", "--module", "ending"],
        ["sweep", "ending:ends"],
    ):
        assert refusal(shop, *words, code=1).startswith(says)
    done = durakit(shop, "resume", "orders.db", "--module", "ending")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert says.rpartition(": ")[2] in done.stdout + done.stderr
    (run,) = json.loads(answer(shop, "runs", "orders.db", "--json"))
    assert (run["status"], run["owner"]) == ("running", None)


def test_a_module_that_does_not_help_is_told_in_one_line(shop: Path) -> None:
    """Missing, broken, or not the one that defines the workflow: nothing is driven."""
    (shop / "faulty.py").write_text("1 / 0\n")
    (shop / "needy.py").write_text("import nowhere\n")
    start(shop, "welcome", "ada")
    (shop / "leaving.py").write_text("raise SystemExit(0)\n")
    (shop / "odd.py").write_text("raise type('Odd', (BaseException,), {})('two\\nlines')\n")
    expected = {
        "nowhere": "there is no module 'nowhere'",
        "leaving": "module 'leaving' cannot be imported: SystemExit: 0",
        "odd": r"module 'odd' cannot be imported: Odd: two\u000alines",
        "": "'' is no module",
        ".shop": "'.shop' is no module",
        "shop:welcome": "'shop:welcome' is no module",
        "shop.py": "'shop.py' is a file",
        "faulty": "module 'faulty' cannot be imported: ZeroDivisionError",
        "needy": "module 'needy' cannot be imported: No module named 'nowhere'",
        "json": "'welcome' is not defined in this process",
    }
    cases = [["resume", "orders.db", "welcome", "--module", module] for module in expected]
    lines = all_refused(shop, *cases)
    assert [
        says for says, line in zip(expected.values(), lines, strict=True) if says not in line
    ] == []
    (run,) = json.loads(answer(shop, "runs", "orders.db", "--json"))
    assert run["incarnations"] == 0


def test_without_its_module_a_run_is_an_error_and_the_others_go_on(shop: Path) -> None:
    """One run's trouble is a line of the table and exit code 1; the rest is driven."""
    start(shop, "welcome", "ada")
    with dk.Runtime(shop / "orders.db") as rt:
        rt.start(dk.workflow(lambda _: None, name="unheard of"), id="stranger")
    table = answer(shop, "resume", "orders.db", "--module", "shop", code=1)
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [
        ["welcome", "driven"],
        ["stranger", "error"],
    ]


@pytest.mark.skipif(os.name == "nt", reason="an interrupt is sent in another way")
def test_an_interrupt_ends_with_130_and_gives_the_run_back(shop: Path) -> None:
    """Ctrl-C prints no traceback, and the run can be driven at once by somebody else."""
    start(shop, "endless")
    with subprocess.Popen(
        [sys.executable, "-m", "durakit", "resume", "orders.db", "--module", "shop"],
        cwd=shop,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        while process.stderr.readline() not in ("waiting\n", ""):
            pass
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "durakit: interrupted\n")
    (run,) = json.loads(answer(shop, "runs", "orders.db", "--json"))
    assert (run["status"], run["owner"]) == ("running", None)

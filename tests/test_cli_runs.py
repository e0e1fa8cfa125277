"""The commands on a file: `runs` and `show` change nothing, `resume` finishes what was left."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import command_line
import pydantic
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


def test_a_run_that_ends_its_process_is_a_line_of_the_table_and_the_others_go_on(
    shop: Path,
) -> None:
    """The next run's letter is in the ledger, though the first one's code has called sys.exit."""
    (shop / "ending.py").write_text(
        "import sys\nimport durakit as dk\nfrom shop import world\n\n\n@dk.workflow\n"
        "def ends(ctx):\n    sys.exit('bye')\n"
    )
    start(shop, "ends", module="ending")
    start(shop, "welcome", "ada")
    words = ["resume", "orders.db", "--module", "ending", "--module", "shop"]
    table = answer(shop, *words, code=1).splitlines()[1:]
    assert [line.split()[:2] for line in table] == [["ends", "error"], ["welcome", "driven"]]
    assert table[0].endswith("the code that was to run has called sys.exit('bye')")
    assert sent(shop) == 1


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


# -- resolve -----------------------------------------------------------------------------


def told_next(text: str, module: str = "shop") -> list[str]:
    """The words of the command that `resolve` says is next, for a module."""
    (line,) = [line for line in text.splitlines() if line.startswith("next: durakit ")]
    return [module if word == "MODULE" else word for word in shlex.split(line)[2:]]


@pytest.mark.real_kill
@pytest.mark.parametrize("parked", [True, False])
@pytest.mark.parametrize(
    ("point", "said"),
    [("effect_done", ["completed", "--result", '{"id": "email-1"}']),
     ("intent_saved", ["not_executed"])],
)  # fmt: skip
def test_a_killed_run_is_looked_at_resolved_and_finished_with_one_mail(
    shop: Path, point: str, said: list[str], parked: bool
) -> None:
    """`runs`, `show`, `resolve`, `resume`: the word fits the ledger, and so does what follows."""
    die(shop, "careful", "c", point)
    before = sent(shop)
    if parked:
        words = ("resume", "orders.db", "c", "--module", "shop", "--wait", "30")
        assert "`durakit resolve orders.db c OUTCOME " in answer(shop, *words, code=1)
    assert "c " in answer(shop, "runs", "orders.db", code=int(parked))
    shown = answer(shop, "show", "orders.db", "c", code=int(parked))
    assert re.search(r"^shout +shout:ada +DISPATCHED +unknown", shown, re.MULTILINE)
    text = answer(shop, "resolve", "orders.db", "c", *said, "--by", "Grace")
    assert text.startswith(f"noted: {said[0]} for 'shout:ada' of run 'c', says Grace\n")
    assert sent(shop) == before, "it drives nothing"
    assert "completed" in answer(shop, *told_next(text), "--wait", "30")
    assert sent(shop) == 1
    whole = json.loads(answer(shop, "show", "orders.db", "c", "--json"))
    assert whole["result"]["id"] == "email-1"
    (word,) = [e["payload"] for e in whole["journal"] if e["kind"] == "resolved"]
    assert (word["outcome"], word["by"]) == (said[0], "Grace")


def test_a_word_that_does_not_fit_is_one_line_and_notes_nothing(shop: Path) -> None:
    """It names the option, the run or the key, and exit code 2 says that nothing was done."""
    die(shop, "careful", "c", "effect_done")
    make_runs(shop, "done")
    start(shop, "welcome", "ada")
    with dk.Runtime(shop / "orders.db", account="b") as rt:
        rt.start(dk.workflow(lambda _: None, name="of b"), id="theirs")
    cases = {
        "OUTCOME: 'completed', 'not_executed' or 'compensate'; got 'done'": "c done",
        "--result: what is told 'not_executed' has no result": "c not_executed --result null",
        "--result: what is told 'compensate' has no result": "c compensate --result 1",
        "--result: no JSON: ": "c completed --result {",
        "--result: cannot save $: ": "c completed --result 1e999",
        "--by: is empty": "c completed --by=",
        "--by: holds half a character": "c completed --by=\udcff",
        "--key: is empty": "c completed --key=",
        "run 'c' has no operation with key 'other'": "c completed --key other",
        "run 'c' (running) has no unknown operation of tool 'other'": "c completed --tool other",
        "run 'welcome' (running) has no unknown operation": "welcome completed",
        "run 'done' (completed) has no unknown operation": "done completed",
        "no run 'x' in orders.db": "x completed",
        "account 'b' has one: --account": "theirs completed",
        "shout declares no compensate=": "c compensate",
        "(--module imports it)": "c compensate",
        "there is no module 'nowhere'": "c compensate --module nowhere",
    }
    by = ["--by", "Grace"]
    words = [["resolve", "orders.db", *by, *case.split()] for case in cases.values()]
    lines = all_refused(shop, *words)
    assert [says for says, line in zip(cases, lines, strict=True) if says not in line] == []
    assert "required: --by" in refusal(shop, "resolve", "orders.db", "c", "completed")
    assert "no such file" in refusal(shop, "resolve", "nowhere.db", "c", "completed", *by)
    assert not (shop / "nowhere.db").exists()
    (run,) = [r for r in json.loads(answer(shop, "runs", "orders.db", "--json")) if r["id"] == "c"]
    assert (run["commands"], run["entries"]) == (0, 3)


def test_an_operation_that_is_settled_is_not_settled_again(shop: Path) -> None:
    """Named by its key it is refused as the Runtime refuses it, and the saved reply stands."""
    die(shop, "welcome", "w", "result_saved")
    words = ["resolve", "orders.db", "w", "not_executed", "--by", "Grace"]
    named = refusal(shop, *words, "--key", "welcome:ada")
    assert named == "operation 'welcome:ada' is not unknown: it is completed. Nothing was changed"
    assert "has no unknown operation" in refusal(shop, *words)


def test_help_names_exactly_the_outcomes_that_the_runtime_takes(tmp_path: Path) -> None:
    """One list of words in two places: what one of them learns, the other must learn too."""
    with (
        dk.Runtime(tmp_path / "orders.db") as rt,
        pytest.raises(dk.errors.InvalidField) as refused,
    ):
        rt.resolve("c", "k", "?", by="Grace")
    known = re.findall(r"'(\w+)'", refused.value.problem)
    assert runs.OUTCOMES.replace(",", "").replace(" or ", " ").split() == known
    text = answer(tmp_path, "resolve", "--help")
    assert [word for word in known if f"{word} (" not in text] == []


UNDOING = """
from shop import dk, world


@dk.tool(effect="idempotent", window=86400)
def sorry(call, to):
    return world.send(to, "Sorry", "Please ignore our mail", key=call.key)


@dk.tool(name="shout", compensate=sorry)
def shout_or_undo(call, to):
    return world.send(to, "Hey", "Hello")


@dk.workflow
def careful(ctx, to):
    try:
        ctx.call(shout_or_undo, to, key=f"shout:{to}")
    except dk.Compensated:
        return "undone"
"""


def test_a_tool_that_can_now_be_undone_is_declared_by_a_module(shop: Path) -> None:
    """`compensate` is refused without it; with it the correction is the second and last mail."""
    (shop / "undoing.py").write_text(UNDOING)
    die(shop, "careful", "c", "effect_done")
    words = ["resolve", "orders.db", "c", "compensate", "--by", "Grace"]
    assert "(--module imports it)" in refusal(shop, *words)
    text = answer(shop, *words, "--module", "undoing")
    assert sent(shop) == 1
    assert "completed" in answer(shop, *told_next(text), "--wait", "30")
    assert sent(shop) == 2
    whole = json.loads(answer(shop, "show", "orders.db", "c", "--json"))
    assert whole["result"] == "undone"


def test_of_several_unknown_operations_one_must_be_named(tmp_path: Path) -> None:
    """The refusal lists them, and each can be settled by what it lists."""

    class Letters(pydantic.BaseModel):
        left: int = 1

    @dk.tool(name="cli_several_send")
    def send(call: dk.Call) -> str:
        raise TimeoutError(call.key)

    keys = iter("ab")

    @dk.machine(name="cli_several", state=Letters, version=1)
    def letters(ctx: dk.Context, state: Letters) -> object:
        ctx.call(send, key=next(keys))
        return dk.Done(state)

    with dk.Runtime(tmp_path / "orders.db", lease=600) as rt:
        for life in (1, 2):
            crash = dk.CrashAt("cli_several_send", "intent_saved", incarnation=life)
            rt.run(letters, Letters(), id="m", crash=crash)
    words = ["resolve", "orders.db", "m", "not_executed", "--by", "Grace"]
    line = refusal(tmp_path, *words)
    assert "run 'm' has several unknown operations" in line
    for key in "ab":
        assert f"--key '{key}' --tool 'cli_several_send'" in line
        text = answer(tmp_path, *words, "--key", key, "--tool", "cli_several_send")
        assert re.search(r"^next: .* --wait \d+$", text, re.MULTILINE), "its lease is told of"


# -- a parked run says what can be done --------------------------------------------------


class Rounds(pydantic.BaseModel):
    """The state of a machine that finds no end."""

    done: int = 0


def park(rt: dk.Runtime, why: str, run_id: str) -> None:
    """Park a run for the reason `why`, as the Runtime names it."""
    effect = "idempotent" if why == "unknown, asks" else "opaque"
    failure: Exception = TimeoutError("no reply")
    if why == "infeasible":
        failure = dk.Infeasible("a stamp")

    @dk.tool(name="cli_park_undo")
    def undo(call: dk.Call) -> None:
        raise dk.NotExecuted("the counter is closed")

    @dk.tool(
        name="cli_park_send", effect=effect, compensate=undo,
        on_unknown="compensate" if why == "undo incomplete" else None,
        retry=dk.Retry(attempts=1),
    )  # fmt: skip
    def send(call: dk.Call) -> None:
        raise failure

    @dk.workflow(name="cli_park")
    def parks(ctx: dk.Context) -> None:
        ctx.call(send, key=f"{run_id}:{{0}}")

    @dk.workflow(name="cli_park_steps")
    def steps(ctx: dk.Context) -> None:
        ctx.step("old" if old else "new", lambda: 1)
        ctx.step("last", lambda: 1)

    @dk.machine(name="cli_park_machine", state=Rounds, version=1, transitions=2)
    def circles(ctx: dk.Context, state: Rounds) -> Rounds:
        del ctx
        return state

    old = True
    if why == "no end":
        rt.run(circles, Rounds(), id=run_id)
    elif why == "mismatch":
        rt.run(steps, id=run_id, crash=dk.CrashAt("last", "before_step"))
        old = False
        rt.resume(run_id)
    elif why == "no progress":
        rt.start(steps, id=run_id)
        for life in (1, 2, 3, 4):
            rt.recover_rows(crash=dk.CrashAt("old", "before_step", incarnation=life))
    else:
        rt.run(parks, id=run_id)
    words = {"conflict": ["not_executed", "completed"], "conflict, saved": ["completed",
             "not_executed"], "told": ["completed"]}.get(why, [])  # fmt: skip
    for word in words:
        rt.resolve(run_id, f"{run_id}:{{0}}", word, by="Grace")
    if len(words) > 1:
        rt.recover_rows()
    assert rt.get(run_id).status == "needs_decision"


RESOLVE = "`durakit resolve orders.db r OUTCOME --by NAME`"
RESUME = "`durakit resume orders.db r --module MODULE`"
ADVICE = {
    "unknown": ("nobody knows whether cli_park_send 'r:{0}' was executed. Find out", RESOLVE),
    "unknown, asks": ("let the run itself ask again: ", RESOLVE, RESUME),
    "undo incomplete": ("what the call may have done is not undone. Set right", RESOLVE, RESUME),
    "infeasible": ("a stamp", "Bring what is missing: ", RESUME),
    "mismatch": ("the code is not the one that wrote the journal. Define the old code", RESUME),
    "conflict": ("two answers about cli_park_send 'r:{0}' differ. Find out", RESOLVE),
    "conflict, saved": ("the one that was saved stands. To go on with it: ", RESUME),
    "no end": ("its machine found no end", RESUME),
    "no progress": ("kills its worker. Mend", RESUME),
    "told": ("what it was told since is noted. Go on: ", RESUME),
}


@pytest.mark.parametrize("why", ADVICE)
def test_a_parked_run_ends_with_what_can_be_done_about_its_reason(tmp_path: Path, why: str) -> None:
    """`runs` and `show` say it in their last line, and offer no command that would be refused."""
    with dk.Runtime(tmp_path / "orders.db", clock=dk.ManualClock()) as rt:
        park(rt, why, "r")
        kind = rt.get("r").why
        allowed = set()
        for word in () if why == "told" else ("completed", "not_executed"):
            with contextlib.suppress(dk.errors.UsageError):
                rt.resolve("r", "r:{0}", word, by="Grace")
                allowed.add(word)
        rt._store.write(lambda c: c.execute("DELETE FROM command") if allowed else None)
        rt._store.write(lambda c: c.execute("UPDATE run SET commands = 0") if allowed else None)
    listed, shown = each(tmp_path, ["runs", "orders.db"], ["show", "orders.db", "r"])
    assert [listed[0], shown[0]] == [1, 1]
    line = listed[1].splitlines()[-1]
    assert shown[1].splitlines()[-1] == line
    assert line.startswith(f"run 'r' is parked ({kind})")
    assert [part for part in ADVICE[why] if part not in line] == [], line
    assert ("durakit resolve" in line) == bool(allowed)
    assert ("durakit resume" in line) == (RESUME in ADVICE[why])


def test_many_parked_runs_do_not_bury_the_list(tmp_path: Path) -> None:
    """The first five are advised about, the others are counted."""
    with dk.Runtime(tmp_path / "orders.db") as rt:
        for number in range(7):
            park(rt, "unknown", f"r{number}")
    lines = answer(tmp_path, "runs", "orders.db", code=1).splitlines()
    assert len(lines) == 1 + 7 + 5 + 1
    assert lines[-1].startswith("2 more run(s) are parked")


def test_the_command_that_is_told_works_for_any_name(shop: Path) -> None:
    """Spaces, a quote, a leading dash, another account: it can be pasted as it stands."""
    for run_id, account in (("a b'c", "default"), ("-x", "-y")):
        program = (
            "import sys, durakit as dk, shop; id, account = sys.argv[1:]; "
            "rt = dk.Runtime('-o.db', lease=0.2, account=account, world=shop.world); "
            "rt.run(shop.careful, id, id=id, crash=dk.CrashAt('shout', 'effect_done')); "
            "rt.resume(id)"
        )
        words = [sys.executable, "-c", program, run_id, account]
        subprocess.run(words, cwd=shop, check=True, capture_output=True, timeout=60)
        asked = durakit(shop, "runs", f"--account={account}", "--", "-o.db").stdout
        (told,) = re.findall("`(durakit resolve .*?)` \\(", asked)
        named = {"NAME": "Grace", "OUTCOME": "completed"}
        resolve = [named.get(word, word) for word in shlex.split(told)[1:]]
        assert "completed" in answer(shop, *told_next(answer(shop, *resolve)))
    assert sent(shop) == 2

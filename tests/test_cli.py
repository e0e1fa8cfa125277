"""The command line: each command as a real process on real files."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

import durakit as dk
from durakit import cli, faults, runtime
from durakit.mail import Mailbox

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = (
    "lab",
    "reset",
    "progress",
    "class-report",
    "runs",
    "show",
    "resume",
    "sweep",
    "lint",
    "mail",
)

#: An id, and a customer, that would colour, ring, clear and turn round a terminal.
HOSTILE = "run\x1b[2J\x07\x7f\x9b31m\u202e\r\nlast"
SHOWN = r"run\u001b[2J\u0007\u007f\u009b31m\u202e\u000d\u000alast"

SHOP = '''
"""A shop whose mail goes to a world of its own, beside this file."""

import signal
import time
from pathlib import Path

import durakit as dk
from durakit.mail import Mailbox

world = Mailbox(Path(__file__).parent / "mail", latency=0)


@dk.tool(effect="idempotent", window=86400)
def send_email(call, to):
    return world.send(to, "Welcome", "Hello", key=call.key)


@dk.tool
def shout(call, to):
    return world.send(to, "Hey", "Hello")


@dk.tool(effect="opaque", on_unknown="resend")
def shout_again(call, to):
    return world.send(to, "Hey", "Hello")


@dk.workflow
def welcome(ctx, to):
    print("welcome is at work")
    text = ctx.step("draft", lambda: f"Hello {to}")
    ctx.call(send_email, to, key=f"welcome:{to}")
    return text


@dk.workflow
def careful(ctx, to):
    return ctx.call(shout, to, key=f"shout:{to}")


@dk.workflow
def careless(ctx, to):
    return ctx.call(shout_again, to, key=f"shout:{to}")


@dk.workflow
def broken(ctx):
    raise ValueError("no stock\\x1b[2J")


@dk.workflow
def endless(ctx):
    # A test that was started in the background would have interrupts switched off.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print("waiting", flush=True)
    time.sleep(60)
'''

#: Starts a run in orders.db and dies by SIGKILL at a crash point. The lease is short, so that a
#: test need not wait long for it.
DIE = """
import sys
import durakit as dk
import shop

rt = dk.Runtime("orders.db", lease=0.2, world=shop.world)
rt._kill = True
name, id, point, to = sys.argv[1:]
tool = {"welcome": "send_email", "careful": "shout"}[name]
rt.run(getattr(shop, name), to, id=id, crash=dk.CrashAt(tool, point))
"""


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let the many processes of this file share compiled modules, in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("compiled")))
        yield


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with the module `shop` in it, to stand in."""
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    return tmp_path


def durakit(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run one command in `folder` and wait for it."""
    return subprocess.run(
        [sys.executable, "-m", "durakit", *words],
        cwd=folder,
        check=False,
        capture_output=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


def answer(folder: Path, *words: str, code: int = 0) -> str:
    """Run one command that must end with `code` and complain of nothing; its output."""
    done = durakit(folder, *words)
    assert (done.returncode, complaints(done)) == (code, [])
    return done.stdout


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what a command said on standard error itself, and any traceback."""
    lines = done.stderr.splitlines()
    return [line for line in lines if line.startswith(("durakit:", "Traceback"))]


def refusal(folder: Path, *words: str, code: int = 2) -> str:
    """Run one command that must end with `code` and one clear line; the line's text."""
    done = durakit(folder, *words)
    assert (done.returncode, done.stdout) == (code, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("durakit: ")
    return line.removeprefix("durakit: ")


def each(folder: Path, *cases: Sequence[str]) -> list[tuple[int, str, str]]:
    """Run several commands in one process: exit code, output and complaint of each."""
    program = """
import contextlib, io, json, sys
from durakit.cli import main
ended = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    ended.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(ended))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(cases)],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return [tuple(ending) for ending in json.loads(done.stdout)]


def all_refused(folder: Path, *cases: Sequence[str]) -> list[str]:
    """Run several commands that must each end with code 2 and one clear line; the lines."""
    endings = each(folder, *cases)
    assert [ending[:2] for ending in endings] == [(2, "")] * len(cases)
    lines = [error for _, _, error in endings]
    assert [line for line in lines if not re.fullmatch(r"durakit: [^\n]+\n", line)] == []
    return lines


def die(folder: Path, workflow: str, run_id: str, point: str, to: str = "ada") -> None:
    """Start a run in a child process that kills itself at `point`."""
    words = [sys.executable, "-c", DIE, workflow, run_id, point, to]
    done = subprocess.run(words, cwd=folder, check=False, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr


def sent(folder: Path) -> int:
    """How many mails the shop's world says it has delivered."""
    mailbox = Mailbox(folder / "mail", latency=0)
    count = len(mailbox.effects())
    mailbox.close()
    return count


def state(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every database file in `folder`: its bytes, and when it was last written."""
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.glob("*.db*"))
    }


def make_runs(folder: Path, *ids: str, **options: Any) -> None:
    """Finish some runs of a workflow without effects in orders.db, and close it."""

    @dk.workflow
    def noted(ctx: dk.Context, text: str) -> str:
        return ctx.step("note", lambda: text)

    with dk.Runtime(folder / "orders.db", **options) as rt:
        for name in ids:
            assert rt.run(noted, name, id=name).status == "completed"


# -- the command itself --------------------------------------------------------------------


def test_help_tells_the_exit_codes_and_gives_one_example(tmp_path: Path) -> None:
    """Whoever asks a command for help can start from a line that works."""
    for command, ending in zip(
        COMMANDS, each(tmp_path, *([c, "--help"] for c in COMMANDS)), strict=True
    ):
        code, text, error = ending
        assert (code, error) == (0, "")
        assert f"example:\n  durakit {command}" in text
        assert text.count("example:") == 1
        assert "exit codes:" in text
        assert "needs a person" in text


def test_help_names_every_command_and_loads_nothing_heavy(tmp_path: Path) -> None:
    """`durakit --help` answers before pandas or JupyterLab could have been imported."""
    program = (
        "import sys; from durakit.cli import main; code = main(['--help']); "
        "heavy = {'pandas', 'numpy', 'matplotlib', 'jupyterlab', 'ipywidgets', 'tornado'}; "
        "print('heavy:', *sorted(heavy & set(sys.modules))); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.splitlines()[-1] == "heavy:"
    for command in COMMANDS:
        assert re.search(rf"^    {command}\s", done.stdout, re.MULTILINE)


def test_the_version_is_the_packages(tmp_path: Path) -> None:
    """`--version` says what `durakit.__version__` says."""
    assert answer(tmp_path, "--version") == f"durakit {dk.__version__}\n"


def test_wrong_usage_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    """What is wrong and where help is, without a page of usage or a traceback."""
    assert "--help" in refusal(tmp_path)
    lines = all_refused(
        tmp_path,
        ["nonsense"],
        ["runs"],
        ["runs", "orders.db", "--jso"],
        ["resume", "orders.db"],
        ["resume", "orders.db", "--module", "shop", "--wait", "nan"],
        ["sweep"],
        ["mail"],
        ["mail", "serve", "8080"],
        ["mail", "serve", "--prof", "resend"],
    )
    assert all("--help" in line for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_an_error_and_is_not_created(tmp_path: Path) -> None:
    """A wrong path must not leave an empty database behind."""
    lines = all_refused(
        tmp_path,
        ["runs", "no.db"],
        ["show", "no.db", "r"],
        ["resume", "no.db", "--module", "json"],
        ["runs", ":memory:"],
    )
    assert lines[:3] == ["durakit: no.db: there is no such file\n"] * 3
    assert list(tmp_path.iterdir()) == []


def test_an_unusable_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    """Looking at an empty, cut, foreign or other program's file says so and does not touch it."""
    (tmp_path / "empty.db").write_bytes(b"")
    (tmp_path / "cut.db").write_bytes(b"SQLite format 3\x00")
    (tmp_path / "text.db").write_bytes(b"not a database at all\n" * 9)
    with sqlite3.connect(tmp_path / "foreign.db") as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = state(tmp_path)
    cases = [words for name in before for words in (["runs", name], ["show", name, "r"])]
    assert len(cases) == 8
    assert all("Left as it was" in line for line in all_refused(tmp_path, *cases))
    assert state(tmp_path) == before


# -- runs and show -------------------------------------------------------------------------


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
    assert cli._copied(database, folder).read_bytes() == b"new pages"
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


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    """`durakit runs … | head` ends without a word."""
    make_runs(tmp_path, *"abc")
    with subprocess.Popen(
        [sys.executable, "-m", "durakit", "runs", "orders.db"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == cli.NO_READER


def test_a_terminal_without_utf_8_gets_escapes(tmp_path: Path) -> None:
    """A name in another script never ends the command with an encoding error."""
    make_runs(tmp_path, "世界")
    done = subprocess.run(
        [sys.executable, "-m", "durakit", "runs", "orders.db"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"},
    )
    assert rb"\u4e16\u754c" in done.stdout


@pytest.mark.parametrize(
    ("text", "room", "cut"),
    [("short", 5, "short"), ("longer", 5, "long…"), ("世界世界", 5, "世界…"), ("世界", 4, "世界")],
)
def test_a_line_is_cut_by_what_a_terminal_shows(text: str, room: int, cut: str) -> None:
    """A wide character takes two columns, and the sign that something is missing takes one."""
    assert cli._cut(text, room) == cut


# -- resume --------------------------------------------------------------------------------


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
        assert cli._resumed(rt, "a", clock, 0)[1:3] == ("owned", "running")
        assert cli._resumed(rt, "a", clock, 29)[1:3] == ("owned", "running")
        assert cli._resumed(rt, "a", clock, 60)[1:3] == ("driven", "completed")
    assert 30 <= clock.monotonic() - dk.ManualClock().monotonic() < 31


def test_what_a_workflow_prints_stays_out_of_the_answer(shop: Path) -> None:
    """Standard output is the table alone; the module's and the workflow's words go elsewhere."""
    start(shop, "welcome", "ada")
    (shop / "loud.py").write_text("import shop\nprint('the shop is open')\n")
    done = durakit(shop, "resume", "orders.db", "welcome", "--module", "loud")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr.splitlines() == ["the shop is open", "welcome is at work"]


def test_a_module_that_does_not_help_is_told_in_one_line(shop: Path) -> None:
    """Missing, broken, or not the one that defines the workflow: nothing is driven."""
    (shop / "faulty.py").write_text("1 / 0\n")
    (shop / "needy.py").write_text("import nowhere\n")
    start(shop, "welcome", "ada")
    expected = {
        "nowhere": "there is no module 'nowhere'",
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


def start(folder: Path, workflow: str, *args: str) -> None:
    """Save a run of the shop's workflow that nobody drives yet; its id is the name."""
    program = (
        "import sys, durakit as dk, shop; name, *args = sys.argv[1:]; "
        "dk.Runtime('orders.db').start(getattr(shop, name), *args, id=name)"
    )
    words = [sys.executable, "-c", program, workflow, *args]
    subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=60)


# -- sweep ---------------------------------------------------------------------------------


def test_a_safe_workflow_is_swept_with_exit_code_0(shop: Path) -> None:
    """The world named `world` is found, arguments come by order or name, the mailbox stays."""
    text = answer(shop, "sweep", "shop:welcome", "--args", '["ada"]')
    assert re.search(r"^\d+ +send_email +effect_done +1 +completed +safe$", text, re.MULTILINE)
    assert answer(shop, "sweep", "shop:welcome", "--args", '{"to": "ada"}') == text
    assert sent(shop) == 0


def test_a_sweep_that_finds_a_duplicate_ends_with_1_and_the_crash_that_shows_it(
    shop: Path,
) -> None:
    """The counterexample that is printed does send twice, says the world's own ledger."""
    words = ("sweep", "shop:careless", "--args", '["ada"]', "--world", "shop:world")
    assert "duplicate: 1 effect(s) more" in answer(shop, *words, code=1)
    report = json.loads(answer(shop, *words, "--json", code=1))
    assert report["safe"] is False
    assert {"duplicate", "safe"} <= {row["verdict"] for row in report["rows"]}
    program = (
        "import sys, durakit as dk, shop; rt = dk.Runtime('again.db', world=shop.world); "
        "shop.world.late_after = 0; crash = dk.CrashAt.parse(sys.argv[1]); "
        "assert rt.run(shop.careless, 'ada', id='c', crash=crash).crash; rt.recover()"
    )
    again = [sys.executable, "-c", program, report["counterexample"]]
    subprocess.run(again, cwd=shop, check=True, capture_output=True, timeout=60)
    assert sent(shop) == 2


@pytest.mark.real_kill
def test_a_sweep_with_real_kills_gives_the_same_table(shop: Path) -> None:
    """The crash that is simulated and the process that is killed leave the same rows."""
    words = ("sweep", "shop:careless", "--args", '["ada"]', "--json")
    simulated = json.loads(answer(shop, *words, code=1))
    killed = json.loads(answer(shop, *words, "--real", code=1))
    assert killed["mode"] == "process"
    assert killed["rows"] == simulated["rows"]


def test_a_sweep_of_pairs_and_the_one_schedule_that_a_seed_names(shop: Path) -> None:
    """With --pairs each recovery is crashed too; --only runs what a row of the table says."""
    words = ("sweep", "shop:careless", "--args", '["ada"]', "--json")
    rows = json.loads(answer(shop, *words, "--pairs", "--progress", code=1))["rows"]
    pairs = [row for row in rows if row["then"]]
    assert len(pairs) > len(rows) - len(pairs) > 5
    worst = max(pairs, key=lambda row: row["effects"])
    assert worst["effects"] == 3
    only = json.loads(answer(shop, *words, "--only", worst["seed"], code=1))
    assert only["rows"] == [worst]
    text = answer(shop, *words[:-1], "--only", worst["seed"], code=1)
    assert f"{worst['point']} of shout_again, then {worst['then']}: duplicate" in text


def test_a_sweep_gives_the_signals_that_the_command_says(shop: Path) -> None:
    """A run that waits is told what --signal says, as JSON."""
    (shop / "waiting.py").write_text(
        "import durakit as dk\nfrom shop import send_email, world\n\n\n@dk.workflow\n"
        "def asks(ctx):\n    to = ctx.wait_for('whom')['to']\n"
        "    return ctx.call(send_email, to, key=to)\n"
    )
    words = ("sweep", "waiting:asks")
    assert "say signals={'whom': …}" in refusal(shop, *words)
    report = json.loads(answer(shop, *words, "--signal", 'whom={"to": "ada"}', "--json"))
    assert {row["effects"] for row in report["rows"]} == {1}
    assert "--signal: say NAME=JSON" in refusal(shop, *words, "--signal", "whom")
    assert "--signal whom: no JSON" in refusal(shop, *words, "--signal", "whom=ada")


def test_a_sweep_that_cannot_begin_says_why(shop: Path) -> None:
    """A name, an argument or a world that does not fit is one line and exit code 2."""
    (shop / "bare.py").write_text("import durakit as dk\nalone = dk.workflow(lambda ctx: 1)\n")
    expected = {
        ("shop",): "say module:name",
        ("shop:nothing",): "module 'shop' has no 'nothing'",
        ("shop:send_email",): "is no workflow",
        ("shop:welcome",): "does not fit welcome(to)",
        ("shop:welcome", "--args", '{"from": 1}'): "does not fit welcome(to)",
        ("shop:welcome", "--args", "ada"): "--args is no JSON",
        ("shop:welcome", "--args", '"ada"'): "a list in the order of the arguments",
        ("shop:welcome", "--args", "[1]", "--world", "durakit.mail:Mailbox"): "is a class",
        ("shop:welcome", "--args", "[1]", "--world", "shop:send_email"): "world: needs fresh()",
        ("bare:alone",): "has no object named `world`",
        ("shop:welcome", "--args", "[1]", "--only", "nowhere"): "names no crash",
    }
    lines = all_refused(shop, *(["sweep", *words] for words in expected))
    assert [
        says for says, line in zip(expected.values(), lines, strict=True) if says not in line
    ] == []


# -- lessons -------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of its own, so that no test meets a learner's copy; its JupyterLab is a stub."""
    shutil.copytree(
        ROOT / "durakit", tmp_path / "durakit", ignore=shutil.ignore_patterns("__pycache__")
    )
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "01_twice.ipynb").write_text("as it ships")
    (tmp_path / "notebooks" / "02_anywhere.ipynb").write_text("as it ships")
    stub = "import sys\nprint(*sys.argv[1:], sep='\\n')\nsys.exit(7)\n"
    (tmp_path / "jupyterlab.py").write_text(stub)
    return tmp_path


def test_lab_makes_the_learners_copy_and_opens_the_first_lesson(checkout: Path) -> None:
    """JupyterLab is started on lesson 01 of the copy, and its exit code is handed on."""
    text = answer(checkout, "lab", code=7)
    assert "2 new lesson(s) in" in text
    assert "--LabApp.default_url=/lab/tree/01_twice.ipynb" in text
    assert "--no-browser" not in text
    assert (checkout / "my-lessons" / "02_anywhere.ipynb").read_text() == "as it ships"


def test_lab_opens_another_lesson_without_a_browser_and_keeps_what_was_written(
    checkout: Path,
) -> None:
    """A copy that is there is only completed."""
    mine = checkout / "my-lessons" / "02_anywhere.ipynb"
    mine.parent.mkdir()
    mine.write_text("mine")
    text = answer(checkout, "lab", "--no-browser", "2", code=7)
    assert "--LabApp.default_url=/lab/tree/02_anywhere.ipynb" in text
    assert text.splitlines()[-1] == "--no-browser"
    assert mine.read_text() == "mine"


def test_reset_restores_a_lesson_and_names_the_backup(checkout: Path) -> None:
    """The learner reads where the old notebook went."""
    mine = checkout / "my-lessons" / "01_twice.ipynb"
    mine.parent.mkdir()
    mine.write_text("mine")
    assert "yours is kept as 01_twice.backup-1.ipynb" in answer(checkout, "reset", "01")
    assert mine.read_text() == "as it ships"
    assert mine.with_name("01_twice.backup-1.ipynb").read_text() == "mine"
    assert "kept" not in answer(checkout, "reset", "1")


def test_an_unknown_lesson_is_one_line_that_lists_them(checkout: Path) -> None:
    """Exit code 2, and the numbers that there are."""
    says = "durakit: there is no lesson '09'; there are: 01 twice, 02 anywhere\n"
    (checkout / "my-lessons").mkdir()
    for name in ("01_twice.ipynb", "02_anywhere.ipynb"):
        (checkout / "my-lessons" / name).write_text("mine")
    assert all_refused(checkout, ["lab", "09"], ["reset", "09"]) == [says, says]


# -- progress, and a class's report --------------------------------------------------------


@pytest.fixture
def learner(checkout: Path) -> Path:
    """A checkout with one real lesson, and a learner's copy with some progress."""
    for path in (checkout / "notebooks").iterdir():
        path.unlink()
    shipped = ROOT / "notebooks" / "01_twice_in_the_inbox.ipynb"
    shutil.copy(shipped, checkout / "notebooks")
    mine = checkout / "my-lessons"
    mine.mkdir()
    (mine / "progress.json").write_text(
        '{"version": 1, "exercises": {"01.5": {"state": "PASS", "tries": 3}},'
        ' "predictions": {"01.1": [2], "01.2": ["failed"]}}'
    )
    return checkout


def test_progress_tells_the_same_from_any_folder_and_changes_nothing(learner: Path) -> None:
    """In the checkout, in the copy and elsewhere: the copy's own file, which stays as it is."""
    file = learner / "my-lessons" / "progress.json"
    before = file.read_bytes()
    program = f"import sys; sys.path.insert(0, {str(learner)!r}); from durakit.cli import main; "
    elsewhere = learner / "elsewhere"
    elsewhere.mkdir()
    told = {
        subprocess.run(
            [sys.executable, "-c", f"{program} sys.exit(main(['progress']))"],
            cwd=folder, check=True, capture_output=True, text=True, timeout=60,
        ).stdout
        for folder in (learner, learner / "my-lessons", elsewhere)
    }  # fmt: skip
    (text,) = told
    assert re.search(r"01 Twice in the inbox +1 of 1 +3 +2 of 4", text)
    assert "Score: 1 of 1 exercises passed (100 %); 2 of 4 predictions made" in text
    assert file.read_bytes() == before
    form = json.loads(answer(learner, "progress", "--json"))
    assert (form["passed"], form["exercises"], form["predicted"]) == (1, 1, 2)
    assert form["lessons"][0]["tries"] == 3


def test_progress_without_a_file_and_with_a_damaged_one(learner: Path) -> None:
    """Nothing yet is an answer; a damaged file is named, and left byte for byte."""
    file = learner / "my-lessons" / "progress.json"
    file.write_text('{"version": 1')
    (line,) = all_refused(learner, ["progress"])
    assert f"{file}: is damaged" in line
    assert file.read_text() == '{"version": 1'
    file.unlink()
    assert "Nothing is noted yet" in answer(learner, "progress")
    assert not file.exists()


def test_a_class_report_tells_writes_and_lists_what_it_could_not_read(learner: Path) -> None:
    """A table, histograms, a CSV and a page; exit code 1 where a file needs a person."""
    folder = learner / "handed-in"
    (folder / "ada").mkdir(parents=True)
    shutil.copy(learner / "my-lessons" / "progress.json", folder / "ada")
    words = ["class-report", "handed-in", "--csv", "c.csv", "--html", "c.html"]
    text = answer(learner, *words)
    assert re.search(r"ada +1 of 1 +3 +2 of 4 +1/1", text)
    assert re.search(r"01\.1 .*\n  2  #{40} 1  <- came out so", text)
    assert (learner / "c.csv").read_text().startswith("learner,01.5 state,01.5 tries,01.1 guess")
    assert (learner / "c.html").read_text().startswith("<!doctype html>")
    (line,) = all_refused(learner, words)
    assert "c.csv: is there already (--force replaces it)" in line
    (folder / "bela\x1b[31m.json").write_text("{")
    text = answer(learner, *words, "--force", code=1)
    assert re.search(r"bela\\x1b\[31m\.json +is damaged", text)
    form = json.loads(answer(learner, "class-report", "handed-in", "--json", code=1))
    assert form["learners"][0]["predictions"] == {"01.1": "2", "01.2": "failed"}
    assert [path.name for path in sorted(folder.rglob("*.*"))] == [
        "progress.json",
        "bela\x1b[31m.json",
    ]


def test_a_class_report_refuses_before_it_writes_anything(learner: Path) -> None:
    """No folder, nothing in it, a file inside the class, one file for two."""
    (learner / "empty").mkdir()
    shutil.copytree(learner / "my-lessons", learner / "handed-in")
    expected = {
        ("nowhere",): "there is no such folder",
        ("empty",): "holds no progress file",
        ("handed-in", "--csv", "a.csv", "--html", "handed-in/a.html"): "where nothing is written",
        ("handed-in", "--csv", "a", "--html", "./a"): "say two different files",
        ("empty", "--csv", "b.csv"): "holds no progress file",
    }
    lines = all_refused(learner, *(["class-report", *words] for words in expected))
    assert [
        says for says, line in zip(expected.values(), lines, strict=True) if says not in line
    ] == []
    assert list(learner.glob("*.csv")) == []
    assert [path.name for path in (learner / "handed-in").iterdir()] == ["progress.json"]


# -- mail serve ----------------------------------------------------------------------------


@contextlib.contextmanager
def serving(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `durakit mail serve` in `folder`; yield the process and the address it has printed."""
    with subprocess.Popen(
        [sys.executable, "-m", "durakit", "mail", "serve", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def post(url: str, key: str, bearer: str = "none") -> httpx.Response:
    """Send a mail through the door."""
    return httpx.post(
        f"{url}/emails",
        json={"to": "ada@example.org", "subject": "Hi", "text": "Hello"},
        headers={"Idempotency-Key": key, "Authorization": f"Bearer {bearer}"},
        timeout=30,
    )


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_mail_serve_runs_until_it_is_told_to_end_and_leaves_its_ledger_whole(
    tmp_path: Path, ending: signal.Signals
) -> None:
    """Ctrl-C or SIGTERM: exit code 0, no log left beside the ledger, and what was sent is in it."""
    with serving(tmp_path, "--profile", "resend", "--folder", "box") as (process, url):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
        assert [post(url, "k").json()["id"] for _ in range(2)] == ["email-1"] * 2
        process.send_signal(ending)
        assert process.wait(30) == 0
        assert process.stderr.read() == "profile resend; Ctrl-C stops it\n"
    # SQLite removes its log when the last connection is closed, and only then.
    assert [path.name for path in (tmp_path / "box").iterdir()] == ["mail.db"]
    with contextlib.closing(Mailbox(tmp_path / "box", profile="resend")) as mailbox:
        assert [row["key"] for row in mailbox.effects()] == ["k"]


@pytest.mark.real_kill
def test_mail_serve_comes_back_at_its_port_with_its_ledger_after_a_kill(tmp_path: Path) -> None:
    """A killed service is started again by the same line, and its keys are still known."""
    words = ["--folder", "box", "--token", "ada=tk_1", "--token", "bob=tk_2", "--port"]
    with serving(tmp_path, *words, "0") as (process, url):
        assert post(url, "k", "tk_1").json() == {"id": "email-1"}
        assert post(url, "k").status_code == 401
        process.kill()
        process.wait(30)
    port = url.rpartition(":")[2]
    with serving(tmp_path, *words, port) as (_, again):
        assert again == url
        assert post(url, "k", "tk_1").json() == {"id": "email-1"}
        assert post(url, "k", "tk_2").json() == {"id": "email-2"}


def test_mail_serve_refuses_what_it_cannot_use_and_names_the_option(tmp_path: Path) -> None:
    """A wrong profile, port, token, folder; a port that is taken; a ledger of somebody else."""
    (tmp_path / "text").write_text("a file")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "mail.db").write_bytes(b"not a database at all\n" * 9)
    before = state(tmp_path / "theirs")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cases = {
            "--profile": ["nope"],
            "--port": ["x", "-1", "65536", str(taken.getsockname()[1])],
            "--token": ["ada", "=tk_1", "ada=", "ada=re 1"],
            "--folder": ["text", "theirs"],
        }
        pairs = [(option, value) for option, values in cases.items() for value in values]
        lines = all_refused(
            tmp_path,
            *(["mail", "serve", *pair] for pair in pairs),
            ["mail", "serve", "--token", "ada=tk_1", "--token", "bob=tk_1"],
        )
    options = [option for option, _ in pairs] + ["--token"]
    assert [line for option, line in zip(options, lines, strict=True) if option not in line] == []
    assert "stripe_v1" in lines[0]
    assert state(tmp_path / "theirs") == before
    assert not any("tk_1" in line for line in lines)


def test_mail_serve_tells_all_its_options(tmp_path: Path) -> None:
    """Each option, the exit codes, one example; and without a folder nothing is left behind."""
    text = answer(tmp_path, "mail", "serve", "--help")
    assert all(option in text for option in ("--profile", "--folder", "--port", "--token"))
    assert text.count("example:") == 1
    assert "exit codes:" in text
    with serving(tmp_path) as (process, url):
        assert post(url, "k").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert list(tmp_path.iterdir()) == []


# -- the README ----------------------------------------------------------------------------


def test_the_readmes_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    """Its Python block runs as it stands, in an empty folder, with the output printed below it."""
    # The second example goes on where the first one stopped.
    program = "\n".join(re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL))
    printed = "".join(re.findall(r"^```text\n(.*?)^```$", README, re.MULTILINE | re.DOTALL))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == (printed, "")


def test_the_readme_names_every_command_and_every_crash_point() -> None:
    """A command or a boundary that is added must be told about."""
    points = [point for points in faults.POINTS.values() for point in points]
    assert [word for word in points if f"`{word}`" not in README] == []
    assert [word for word in COMMANDS if f"durakit {word} " not in README] == []


def test_the_readme_points_at_files_that_are_there() -> None:
    """No link and no path in a command leads nowhere."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    scripts = re.findall(r"python ([\w./]+\.py)", README)
    assert links
    assert scripts
    assert [path for path in (*links, *scripts) if not (ROOT / path).exists()] == []


def test_lint_says_what_it_found_and_what_it_looked_at(tmp_path: Path) -> None:
    """A new key for each attempt: exit code 1; nothing found: 0; no workflow: 2."""
    (tmp_path / "linted.py").write_text(
        "import durakit as dk\nfrom durakit.mail import Mailbox\n\nmail = Mailbox()\n\n\n"
        '@dk.tool(effect="idempotent", window=60, timeout=3)\n'
        'def good(call):\n    return mail.send("a@b.c", "Hi", "x", key=call.key)\n\n\n'
        '@dk.tool(effect="idempotent", window=60, timeout=3)\n'
        'def bad(call):\n    key = f"{call.key}:{call.attempt}"\n'
        '    return mail.send("a@b.c", "Hi", "x", key=key)\n'
    )
    good, bad, neither, json_ = each(
        tmp_path, ["lint", "linted:good"], ["lint", "linted:bad"], ["lint", "linted:dk"],
        ["lint", "linted:bad", "--json"],
    )  # fmt: skip
    assert good[0] == 0, good
    assert "looked at" in good[1]
    assert bad[0] == 1
    assert "a new key for each attempt" in bad[1]
    assert neither[0] == 2
    assert "lint looks at" in neither[2]
    assert json.loads(json_[1])["subject"] == "tool bad"


def test_a_machine_is_swept_whatever_its_parameter_is_called(tmp_path: Path) -> None:
    """And what fails without any crash is not called safe."""
    (tmp_path / "machines.py").write_text(
        "import durakit as dk\nimport pydantic\nfrom durakit.mail import Mailbox\n\n"
        "world = Mailbox()\n\n\n"
        "class State(pydantic.BaseModel):\n    to: str\n\n\n"
        "@dk.machine(state=State)\n"
        "def letters(ctx, mine):\n    return dk.Done(mine)\n\n\n"
        "@dk.machine(state=State)\n"
        'def fails(ctx, mine):\n    raise ValueError("no")\n'
    )
    args = ["--args", '[{"to": "a@b.c"}]']
    good, bad = each(
        tmp_path, ["sweep", "machines:letters", *args], ["sweep", "machines:fails", *args]
    )
    assert good[0] == 0, good
    assert bad[0] == 1, bad
    assert "failed: ValueError: no" in bad[1]

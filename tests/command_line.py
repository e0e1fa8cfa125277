"""Running the command line as a user would: processes in a folder, and what they leave there.

Fixtures are used by their names: ``compiled_once = command_line.compiled_once``.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import durakit as dk
from durakit.mail import Mailbox

ROOT = Path(__file__).resolve().parent.parent
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


def start(folder: Path, workflow: str, *args: str, module: str = "shop") -> None:
    """Save a run of a module's workflow that nobody drives yet; its id is the workflow's name."""
    program = (
        f"import sys, durakit as dk, {module}; name, *args = sys.argv[1:]; "
        f"dk.Runtime('orders.db').start({module}.{workflow}, *args, id=name)"
    )
    words = [sys.executable, "-c", program, workflow, *args]
    subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=60)

"""`durakit mail serve`: a service that runs until it is told to end."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import command_line
import httpx
import pytest
from command_line import all_refused, answer, state

from durakit.mail import Mailbox

compiled_once = command_line.compiled_once


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
    assert all(
        option in text for option in ("--profile", "--folder", "--port", "--token", "--faults")
    )
    assert text.count("example:") == 1
    assert "exit codes:" in text
    with serving(tmp_path) as (process, url):
        assert post(url, "k").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert list(tmp_path.iterdir()) == []


def test_mail_serve_does_what_a_plan_of_faults_says(tmp_path: Path) -> None:
    """The first request is refused, the second is delivered though its answer is an error."""
    (tmp_path / "plan.json").write_text(
        '[{"kind": "rate_limited", "retry_after": 2}, {"kind": "error_after", "request": 2}]'
    )
    with serving(tmp_path, "--faults", "plan.json", "--folder", "box") as (_, url):
        first = post(url, "a")
        assert (first.status_code, first.headers["Retry-After"]) == (429, "2")
        assert post(url, "b").status_code == 500
        assert post(url, "c").status_code == 200
    with contextlib.closing(Mailbox(tmp_path / "box", profile="resend")) as mailbox:
        assert [row["key"] for row in mailbox.effects()] == ["b", "c"]


def test_a_plan_of_faults_that_cannot_be_used_is_named_and_nothing_is_served(
    tmp_path: Path,
) -> None:
    """No file, no JSON, no list, a wrong kind: the option, the file, the entry, the field."""
    for name, text in {"cut": "[{", "one": "{}", "kind": '[{"kind": "nope"}]'}.items():
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "bytes.json").write_bytes(b"\xff")
    expected = {
        "nowhere": "--faults: nowhere.json: No such file or directory",
        "cut": "--faults: cut.json: plan: ",
        "one": "--faults: one.json: plan: want a list of faults",
        "kind": "--faults: kind.json: fault 1, kind: 'nope' is none of",
        "bytes": "--faults: bytes.json: ",
    }
    words = ["mail", "serve", "--folder", "box", "--faults"]
    lines = all_refused(tmp_path, *([*words, f"{name}.json"] for name in expected))
    assert [
        says for says, line in zip(expected.values(), lines, strict=True) if says not in line
    ] == []
    assert not (tmp_path / "box").exists()

"""The command line itself: help, usage, exit codes, streams; and what the README says of it."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import command_line
import pytest
from command_line import ROOT, all_refused, answer, each, make_runs, refusal, state

import durakit as dk
from durakit import faults
from durakit.cli import exit_codes

compiled_once = command_line.compiled_once

README = (ROOT / "README.md").read_text(encoding="utf-8")

COMMANDS = (
    "lab",
    "reset",
    "progress",
    "class-report",
    "runs",
    "show",
    "resume",
    "resolve",
    "sweep",
    "lint",
    "mail",
)


# -- the command itself ------------------------------------------------------------------


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


# -- streams, and what goes wrong ---------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="an interrupt is sent in another way")
@pytest.mark.parametrize("how", ["module", "script", "library"])
def test_an_interrupt_while_the_command_is_being_loaded_prints_no_traceback(
    tmp_path: Path, how: str
) -> None:
    """The signal comes with the first package that takes long; a library leaves it to its user."""
    (tmp_path / "pydantic.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "durakit"
    script.write_text("import sys\nfrom durakit.cli import main\nsys.exit(main())\n")
    words = {
        "module": ["-m", "durakit", "runs", "orders.db"],
        "script": [str(script), "runs", "orders.db"],
        "library": ["-c", "import durakit"],
    }[how]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "")
    if how == "library":
        assert done.stderr.startswith("Traceback")
    else:
        assert done.stderr == "durakit: interrupted\n"


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
    assert process.returncode == exit_codes.NO_READER


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


#: A shell that starts a command with its streams led elsewhere: the first word says where.
SHELL = ("sh", "-c", 'led=$1; shift; eval "exec \\"\\$@\\" $led"', "sh")


def led(folder: Path, where: str, *words: str) -> tuple[int, str, str]:
    """Run one command with streams closed or full, both buffered and not."""
    endings = set()
    for unbuffered in ("", "1"):
        done = subprocess.run(
            [*SHELL, where, sys.executable, "-m", "durakit", *words],
            cwd=folder,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
        endings.add((done.returncode, done.stdout, done.stderr))
    (ending,) = endings
    return ending


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["runs", "orders.db"],
        ["show", "orders.db", "a", "--json"],
        ["mail", "serve", "-h"],
    ],
)
def test_an_output_that_cannot_be_written_is_told(tmp_path: Path, words: list[str]) -> None:
    """A full disk behind `>`: exit code 2 and one line, never a table that ends in the middle."""
    make_runs(tmp_path, *"abc")
    line = "durakit: standard output: No space left on device\n"
    assert led(tmp_path, ">/dev/full", *words) == (2, "", line)


@pytest.mark.skipif(os.name == "nt", reason="there is no sh")
def test_a_stream_that_is_closed_is_no_error_and_no_answer_goes_to_the_other(
    tmp_path: Path,
) -> None:
    """`>&-` and `2>&-`: what was to be said there is left unsaid, and the exit code says it."""
    make_runs(tmp_path, *"abc")
    assert led(tmp_path, ">&-", "runs", "orders.db") == (0, "", "")
    assert led(tmp_path, ">&-", "--help") == (0, "", "")
    for where in ("2>&-", ">&- 2>&-", "2>/dev/full"):
        if "/dev/full" not in where or Path("/dev/full").exists():
            assert led(tmp_path, where, "runs", "nowhere.db") == (2, "", "")


@pytest.mark.skipif(os.name == "nt", reason="a folder in use cannot be removed")
def test_a_folder_that_is_gone_is_told_in_words(tmp_path: Path) -> None:
    """Standing in a folder that somebody has removed: help is there, and the rest says why not."""
    gone = tmp_path / "gone"
    gone.mkdir()
    program = (
        "import os, sys; from durakit.cli import main; os.rmdir(os.getcwd()); "
        "sys.exit(main(['--version']) or main(['runs', 'orders.db']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=gone, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, f"durakit {dk.__version__}\n")
    assert re.fullmatch(r"durakit: the current folder cannot be used: .+\n", done.stderr)


def test_an_empty_or_broken_word_is_refused_by_its_name(tmp_path: Path) -> None:
    """An empty shell variable is no current folder, and half a character no account."""
    cases = {
        "DB": ["runs", ""],
        "FOLDER": ["class-report", ""],
        "--csv": ["class-report", ".", "--csv", ""],
        "--folder": ["mail", "serve", "--folder", ""],
        "--faults": ["mail", "serve", "--faults", ""],
        "--account": ["runs", "orders.db", "--account", ""],
    }
    lines = all_refused(
        tmp_path, *cases.values(), ["show", "orders.db", "a", "--account", "\udcff"]
    )
    for name, line in zip(cases, lines, strict=False):
        assert f"argument {name}: is empty" in line
    assert "argument --account: holds half a character" in lines[-1]
    assert list(tmp_path.iterdir()) == []


# -- the README --------------------------------------------------------------------------


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

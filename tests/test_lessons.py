"""The learner's copy of the lessons: made, never overwritten, and opened by JupyterLab."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from durakit.lab import lessons

try:
    import resource
except ImportError:  # Windows
    resource = None

FIRST = "01_twice_in_the_inbox.ipynb"
SECOND = "02_crash_anywhere.ipynb"


def write_notebook(path: Path, source: str) -> None:
    """Write a notebook of one cell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=[new_code_cell(source)]), path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two lessons as they ship, beside things that are no lesson."""
    folder = tmp_path / "checkout" / "notebooks"
    write_notebook(folder / FIRST, "'first'")
    write_notebook(folder / SECOND, "'second'")
    write_notebook(folder / "solutions" / FIRST, "'solved'")
    write_notebook(folder / "scratch.ipynb", "'no lesson'")
    (folder / "README.md").write_text("no lesson")
    return folder


@pytest.fixture
def target(source: Path) -> Path:
    """Where the copy of these lessons belongs; it is not made yet."""
    return lessons.copy_beside(source)


def test_the_checkout_beside_the_package_comes_before_the_current_folder(
    source: Path, tmp_path: Path
) -> None:
    """In a checkout its own lessons are found, wherever the learner stands."""
    checkout = source.parent
    (checkout / "pyproject.toml").touch()
    write_notebook(tmp_path / "elsewhere" / "notebooks" / FIRST, "'other'")
    assert lessons.find_source(checkout / "durakit", tmp_path / "elsewhere") == source


def test_an_installed_package_finds_the_lessons_of_the_current_folder(
    source: Path, tmp_path: Path
) -> None:
    """A folder `notebooks` among installed packages is a stranger's, and is not taken."""
    write_notebook(tmp_path / "site-packages" / "notebooks" / FIRST, "'a stranger'")
    package = tmp_path / "site-packages" / "durakit"
    assert lessons.find_source(package, source.parent) == source


def test_without_lessons_the_error_says_where_to_go(tmp_path: Path) -> None:
    """An empty place is a LessonsNotFound of one line, not a list of nothing."""
    (tmp_path / "notebooks").mkdir()
    with pytest.raises(lessons.LessonsNotFound, match=r"^no lessons here: go to .*$"):
        lessons.find_source(tmp_path / "durakit", tmp_path)


def test_lessons_are_listed_in_order_and_nothing_else_is(source: Path) -> None:
    """Solutions, backups and other files are not lessons."""
    (source / "01_twice_in_the_inbox.backup-1.ipynb").touch()
    assert lessons.list_lessons(source) == [
        lessons.Lesson("01", "twice in the inbox", source / FIRST),
        lessons.Lesson("02", "crash anywhere", source / SECOND),
    ]


def test_the_copy_belongs_beside_the_notebooks_under_an_ignored_name(source: Path) -> None:
    """Git ignores exactly the folder that the copy is made in."""
    assert lessons.copy_beside(source) == source.parent / "my-lessons"
    ignored = (Path(__file__).parent.parent / ".gitignore").read_text().splitlines()
    assert f"/{lessons.COPY_NAME}/" in ignored


def test_a_copy_is_complete_and_holds_only_lessons(source: Path, target: Path) -> None:
    """Each lesson is copied whole, and no half-written file stays behind."""
    assert lessons.make_copy(source, target) == [target / FIRST, target / SECOND]
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        name: (source / name).read_bytes() for name in (FIRST, SECOND)
    }


def test_a_copy_gives_no_guess_away(target: Path) -> None:
    """Each cell of each lesson that ships is there as it is, and what came out of it is not."""
    shipped = Path(__file__).parent.parent / "notebooks"
    for mine in lessons.make_copy(shipped, target):
        copied, original = (
            nbformat.read(path, as_version=4) for path in (mine, shipped / mine.name)
        )
        code = [cell for cell in copied.cells if cell.cell_type == "code"]
        assert [(cell.outputs, cell.execution_count) for cell in code] == [([], None)] * len(code)
        for notebook in (copied, original):
            for cell in notebook.cells:
                cell.pop("outputs", None), cell.pop("execution_count", None)
        assert copied == original


def test_a_copy_is_written_as_jupyter_writes_it(target: Path) -> None:
    """Opened and saved with nothing done, a lesson is as it was, and a reset keeps no backup."""
    shipped = Path(__file__).parent.parent / "notebooks"
    lessons.make_copy(shipped, target)
    mine = target / FIRST
    before = mine.read_bytes()
    nbformat.write(nbformat.read(mine, as_version=4), mine)
    assert mine.read_bytes() == before
    assert lessons.reset_lesson("01", shipped, target).backup is None


def test_what_is_no_notebook_is_not_copied(source: Path, target: Path) -> None:
    """A damaged checkout is told by the file's name, and leaves no half copy of it."""
    (source / SECOND).write_text("[1]")
    with pytest.raises(lessons.LessonError, match=f"{SECOND} is no notebook"):
        lessons.make_copy(source, target)
    assert [path.name for path in target.iterdir()] == [FIRST]


def test_copying_again_adds_what_is_new_and_keeps_what_the_learner_wrote(
    source: Path, target: Path
) -> None:
    """An update brings new lessons and never meets the learner's own."""
    target.mkdir()
    (target / FIRST).write_text("the learner's")
    assert lessons.make_copy(source, target) == [target / SECOND]
    assert (target / FIRST).read_text() == "the learner's"
    assert lessons.make_copy(source, target) == []


def test_a_copy_that_cannot_be_written_is_one_clear_line(source: Path, target: Path) -> None:
    """A file in the copy's place is reported as a LessonError, and stays."""
    target.write_text("a file")
    with pytest.raises(lessons.LessonError, match="cannot copy the lessons to"):
        lessons.make_copy(source, target)
    assert target.read_text() == "a file"


@pytest.mark.parametrize("number", ["01", "1"])
def test_a_reset_restores_one_lesson_and_keeps_the_learners(
    number: str, source: Path, target: Path
) -> None:
    """Only the named lesson changes, and what was written in it is in the backup."""
    lessons.make_copy(source, target)
    for name in (FIRST, SECOND):
        (target / name).write_text("mine")
    backup = target / "01_twice_in_the_inbox.backup-1.ipynb"
    assert lessons.reset_lesson(number, source, target) == lessons.Reset(target / FIRST, backup)
    assert (target / FIRST).read_bytes() == (source / FIRST).read_bytes()
    assert backup.read_text() == "mine"
    assert (target / SECOND).read_text() == "mine"


def test_a_reset_never_overwrites_an_earlier_backup(source: Path, target: Path) -> None:
    """Each reset takes the next free number, also where a backup was removed."""
    lessons.make_copy(source, target)
    for text in ("one", "two", "three"):
        (target / FIRST).write_text(text)
        lessons.reset_lesson("01", source, target)
    (target / "01_twice_in_the_inbox.backup-2.ipynb").unlink()
    (target / FIRST).write_text("four")
    lessons.reset_lesson("01", source, target)
    kept = {path.name: path.read_text() for path in target.glob("*.backup-*.ipynb")}
    assert kept == {
        "01_twice_in_the_inbox.backup-1.ipynb": "one",
        "01_twice_in_the_inbox.backup-2.ipynb": "four",
        "01_twice_in_the_inbox.backup-3.ipynb": "three",
    }


def test_a_lesson_as_it_ships_is_reset_without_a_backup(source: Path, target: Path) -> None:
    """Where there is nothing of the learner's there is nothing to keep; nor where it is missing."""
    lessons.make_copy(source, target)
    assert lessons.reset_lesson("01", source, target).backup is None
    (target / FIRST).unlink()
    assert lessons.reset_lesson("01", source, target) == lessons.Reset(target / FIRST, None)
    assert (target / FIRST).read_bytes() == (source / FIRST).read_bytes()


@pytest.mark.parametrize("number", ["03", "", "inbox", "../01"])
def test_an_unknown_number_lists_the_lessons_there_are(
    number: str, source: Path, target: Path
) -> None:
    """The error names what was asked for and every lesson, in one line."""
    with pytest.raises(lessons.UnknownLesson) as caught:
        lessons.reset_lesson(number, source, target)
    assert str(caught.value) == (
        f"there is no lesson {number!r}; there are: 01 twice in the inbox, 02 crash anywhere"
    )
    assert not target.exists()


def test_a_number_is_known_if_it_ships_or_is_the_learners_own(source: Path, target: Path) -> None:
    """Each lesson is listed once, though the copy has it too."""
    lessons.make_copy(source, target)
    write_notebook(target / "10_my_own.ipynb", "'mine'")
    for number in ("1", "02", "10"):
        lessons.check_number(number, source, target)
    with pytest.raises(lessons.UnknownLesson) as caught:
        lessons.check_number("03", source, target)
    assert str(caught.value) == (
        "there is no lesson '03'; there are: 01 twice in the inbox, 02 crash anywhere, 10 my own"
    )


@pytest.mark.skipif(resource is None, reason="no limit on the size of files")
@pytest.mark.parametrize("room", [0, 10, 2000])
def test_where_there_is_no_room_a_reset_leaves_the_folder_as_it_was(
    source: Path, target: Path, room: int
) -> None:
    """No half backup, no half lesson, and the learner's own notebook byte for byte.

    ``room``: bytes that a file may have: none, too few for either, or enough for the backup only.
    """
    write_notebook(source / FIRST, "'x'" * 1000)
    lessons.make_copy(source, target)
    (target / FIRST).write_bytes(b"mine" * 250)
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(lessons.LessonError, match="cannot restore lesson 01"):
            lessons.reset_lesson("01", source, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    after = {path.name: path.read_bytes() for path in target.iterdir()}
    if room == 2000:
        assert after.pop("01_twice_in_the_inbox.backup-1.ipynb") == b"mine" * 250
    assert after == before


def test_the_module_loads_none_of_the_heavy_packages() -> None:
    """`durakit lab` answers at once: plots, tables and widgets are not imported for it."""
    program = (
        "import sys, durakit.lab.lessons; "
        "print(*sorted({'pandas', 'matplotlib', 'ipywidgets', 'nbformat'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == ""


def test_the_lab_opens_the_lesson_asked_for(source: Path, target: Path) -> None:
    """The command names the lesson, this interpreter, and passes further options on as they are."""
    lessons.make_copy(source, target)
    command = lessons.lab_command(target, "2", ["--no-browser"])
    assert command.argv[:3] == [sys.executable, "-m", "jupyterlab"]
    assert f"--LabApp.default_url=/lab/tree/{SECOND}" in command.argv
    assert command.argv[-1] == "--no-browser"
    with pytest.raises(lessons.UnknownLesson):
        lessons.lab_command(target, "07")


def test_the_lab_returns_jupyters_exit_code(source: Path, target: Path) -> None:
    """What JupyterLab says at its end is what `open_lab` returns."""
    lessons.make_copy(source, target)
    assert lessons.open_lab(target, "01", ["--version"]) == 0


def test_a_real_lab_serves_the_lesson_without_the_news(source: Path, target: Path) -> None:
    """A started JupyterLab serves the copy's lesson, asks about no news, and changes no lesson."""
    lessons.make_copy(source, target)
    before = (target / FIRST).read_bytes()
    runtime = target.parent / "runtime"
    command = lessons.lab_command(
        target, "01", ["--no-browser", "--ServerApp.port=0", "--IdentityProvider.token=secret"]
    )
    # Folders of the test's own, so that the user's settings neither help nor suffer.
    own = {
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTER_CONFIG_DIR": str(target.parent / "config"),
        "JUPYTER_DATA_DIR": str(target.parent / "data"),
    }
    log = target.parent / "lab.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command.argv,
            env=os.environ | command.env | own,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        ) as lab,
    ):
        try:
            port = wait_for_port(runtime, lab, log)
            with httpx.Client(
                base_url=f"http://127.0.0.1:{port}",
                headers={"Authorization": "token secret"},
                timeout=10,
                trust_env=False,
            ) as client:
                assert "started" in client.get("/api/status").raise_for_status().json()
                served = client.get(f"/api/contents/{FIRST}").raise_for_status().json()
                assert served["content"]["cells"][0]["source"] == "'first'"
                page = client.get(f"/lab/tree/{FIRST}").raise_for_status()
                assert page.headers["content-type"].startswith("text/html")
                settings = client.get(
                    "/lab/api/settings/@jupyterlab/apputils-extension:notification"
                )
                asked = settings.raise_for_status().json()["schema"]["properties"]
                assert asked["fetchNews"]["default"] == "false"
                assert asked["checkForUpdates"]["default"] is False
                names = [entry["name"] for entry in client.get("/api/contents").json()["content"]]
                assert sorted(names) == [FIRST, SECOND]
        finally:
            lab.terminate()
            lab.wait(timeout=10)
    assert f":{port}/lab/tree/{FIRST}" in log.read_text(), "the address to open is the lesson's"
    assert (target / FIRST).read_bytes() == before


def wait_for_port(runtime: Path, lab: subprocess.Popen[bytes], log: Path) -> int:
    """Return the port that a starting server has written to its runtime folder."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if lab.poll() is not None:
            break
        for file in runtime.glob("jpserver-*.json"):
            try:
                port = json.loads(file.read_text())["port"]
            except ValueError:  # half written
                continue
            if port:
                return int(port)
        time.sleep(0.05)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text()}")

"""Where the lessons live, and the learner's own copy of them.

The lessons that ship stay as they are; a learner works in `my-lessons/`, a copy that git ignores,
so running everything leaves the checkout clean and an update never meets the learner's changes.

Nothing in here overwrites what a learner wrote: a copy only adds what is missing, and a reset
first keeps the old notebook as a numbered backup.

    LessonError
    ├── LessonsNotFound     there is no folder of lessons
    └── UnknownLesson       the folder holds no lesson of that number
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

__all__ = [
    "COPY_NAME",
    "LabCommand",
    "Lesson",
    "LessonError",
    "LessonsNotFound",
    "Reset",
    "UnknownLesson",
    "check_number",
    "copy_beside",
    "find_data",
    "find_source",
    "lab_command",
    "list_lessons",
    "make_copy",
    "open_lab",
    "reset_lesson",
]

COPY_NAME: Final = "my-lessons"

_LESSON_FILE = re.compile(r"(?P<number>\d\d)_(?P<words>[a-z0-9_]+)\.ipynb")

# JupyterLab asks at its first start whether it may fetch news, and looks for updates by itself.
# A class works offline, so both are answered beforehand.
_OVERRIDES = {
    "@jupyterlab/apputils-extension:notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
    },
}


class LessonError(Exception):
    """What went wrong with the lessons, in one line to show to a learner."""


class LessonsNotFound(LessonError):
    """There is no folder of lessons where one was expected."""


class UnknownLesson(LessonError):
    """No lesson has the number asked for."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """One notebook: `01_twice_in_the_inbox.ipynb` is number "01", "twice in the inbox"."""

    number: str
    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class Reset:
    """A lesson as it was first copied, and the learner's (None: there was none to keep)."""

    lesson: Path
    backup: Path | None


@dataclass(frozen=True, slots=True)
class LabCommand:
    """How to start JupyterLab: its arguments, and what to add to the environment."""

    argv: list[str]
    env: dict[str, str]


def find_source(package: Path | None = None, current: Path | None = None) -> Path:
    """Return the folder of the notebooks that ship with this installation.

    That is `notebooks/` beside the package in a checkout, else `notebooks/` in the current folder.

    Args:
        package: The folder of the durakit package; this one if not given.
        current: The current folder; the process's own if not given.

    Raises:
        LessonsNotFound: Neither place has a lesson.
    """
    package = Path(__file__).resolve().parent.parent if package is None else package
    current = Path.cwd() if current is None else current
    checkout = package.parent
    # An installed package lies among strangers, and a folder `notebooks` there is not ours.
    places = [checkout] if (checkout / "pyproject.toml").is_file() else []
    places.append(current)
    for place in places:
        source = place / "notebooks"
        if _lessons_in(source):
            return source
    message = "no lessons here: go to your durakit checkout (it has a folder notebooks/), try again"
    raise LessonsNotFound(message)


def find_data(name: Path) -> Path:
    """Find a file or folder of the checkout's ``data/``: ``Path("data") / "customers.json"``.

    Raises FileNotFoundError, saying where to go, where there is no such thing.
    """
    checkout = Path(__file__).resolve().parent.parent.parent
    here = Path.cwd()
    for place in (checkout, here, here.parent):
        if (place / name).exists():
            return place / name
    raise FileNotFoundError(f"no {name} here: open the lesson in your durakit checkout")


def copy_beside(source: Path) -> Path:
    """Return where the learner's copy of the lessons in `source` belongs."""
    return source.parent / COPY_NAME


def list_lessons(source: Path) -> list[Lesson]:
    """Return the lessons in a folder, in their order.

    Raises:
        LessonsNotFound: The folder is not there or holds no lesson.
    """
    lessons = _lessons_in(source)
    if not lessons:
        raise LessonsNotFound(f"no lessons in {source}: they are named like 01_some_words.ipynb")
    return lessons


def check_number(number: str, source: Path, target: Path) -> None:
    """Refuse a number that neither the lessons that ship nor the learner's copy have.

    Raises:
        LessonsNotFound: There is no lesson in `source`.
        UnknownLesson: No lesson has this number; the message lists those there are.
    """
    shipped = list_lessons(source)
    names = {lesson.path.name for lesson in shipped}
    own = [lesson for lesson in _lessons_in(target) if lesson.path.name not in names]
    _find_lesson(number, [*shipped, *own])


def make_copy(source: Path, target: Path) -> list[Path]:
    """Copy each lesson that `target` does not have yet, and return the new files.

    What came out of a lesson's cells is not copied: it would give each guess away. A lesson that
    is there already is the learner's and stays untouched.

    Raises:
        LessonsNotFound: There is no lesson in `source`.
        LessonError: The copy cannot be written.
    """
    lessons = list_lessons(source)
    try:
        target.mkdir(parents=True, exist_ok=True)
        new = []
        for lesson in lessons:
            mine = target / lesson.path.name
            if not mine.exists():
                _write_whole(mine, _unanswered(lesson.path))
                new.append(mine)
    except OSError as error:
        raise LessonError(f"cannot copy the lessons to {target}: {error}") from error
    return new


def _unanswered(path: Path) -> bytes:
    """Return a lesson without what came out of its cells. Raises OSError, and LessonError."""
    try:
        notebook = json.loads(path.read_bytes())
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"], cell["execution_count"] = [], None
    except (ValueError, TypeError, KeyError) as error:
        raise LessonError(f"{path} is no notebook: {error!r}") from error
    # As Jupyter writes it: a notebook that is only opened and saved is not taken for changed.
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()


def reset_lesson(number: str, source: Path, target: Path) -> Reset:
    """Restore one lesson as it was copied, and keep the learner's as a backup with its own number.

    A lesson in which nothing was done needs no backup and gets none.

    Args:
        number: The lesson's number, "01" or "1".
        source: The folder of the lessons that ship.
        target: The learner's copy.

    Raises:
        LessonsNotFound: There is no lesson in `source`.
        UnknownLesson: No lesson has this number; the message lists those there are.
        LessonError: A file cannot be read or written; nothing of the learner's is lost.
    """
    lesson = _find_lesson(number, list_lessons(source))
    mine = target / lesson.path.name
    try:
        shipped = _unanswered(lesson.path)
        backup = None
        if mine.exists() and (written := mine.read_bytes()) != shipped:
            backup = _keep(mine, written)
        target.mkdir(parents=True, exist_ok=True)
        _write_whole(mine, shipped)
    except OSError as error:
        raise LessonError(f"cannot restore lesson {lesson.number}: {error}") from error
    return Reset(mine, backup)


def lab_command(target: Path, lesson: str = "01", extra: Sequence[str] = ()) -> LabCommand:
    """Return how to start JupyterLab on one lesson of the learner's copy.

    Writes JupyterLab's settings to a hidden folder in the copy: no news, no look for updates, and
    the tabs of this course kept apart from the learner's other work.

    Args:
        target: The learner's copy.
        lesson: The number of the lesson to open, "01" or "1".
        extra: More arguments for JupyterLab, such as `--no-browser`.

    Raises:
        LessonsNotFound: The copy holds no lesson.
        UnknownLesson: The copy holds no lesson of this number.
        LessonError: The settings cannot be written.
    """
    target = target.resolve()
    opened = _find_lesson(lesson, list_lessons(target))
    settings = target / ".jupyterlab"
    try:
        settings.mkdir(exist_ok=True)
        _write_whole(settings / "overrides.json", json.dumps(_OVERRIDES, indent=2).encode("ascii"))
    except OSError as error:
        raise LessonError(f"cannot write JupyterLab's settings: {error}") from error
    argv = [
        # This interpreter's JupyterLab, which is the one that can import durakit.
        *(sys.executable, "-m", "jupyterlab"),
        f"--ServerApp.root_dir={target}",
        # Not the file as an argument: without a browser, JupyterLab would print an address that
        # does not open it.
        f"--LabApp.default_url=/lab/tree/{opened.path.name}",
        f"--LabApp.app_settings_dir={settings}",
        f"--LabApp.workspaces_dir={settings / 'workspaces'}",
        # Two more things that would ask the network.
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        # In a container the learner is root, and Jupyter would not start.
        argv.append("--allow-root")
    # UTF-8 on every platform, as the lessons were written.
    return LabCommand([*argv, *extra], {"PYTHONUTF8": "1"})


def open_lab(target: Path, lesson: str = "01", extra: Sequence[str] = ()) -> int:
    """Run JupyterLab on one lesson of the copy until the learner stops it; return its exit code.

    Args and errors are those of `lab_command`.
    """
    command = lab_command(target, lesson, extra)
    with subprocess.Popen(command.argv, env=os.environ | command.env) as lab:  # noqa: S603 - our own
        while True:
            try:
                return lab.wait()
            except KeyboardInterrupt:
                # Ctrl-C reaches JupyterLab too, which asks whether to stop; the answer is its own.
                continue


def _lessons_in(folder: Path) -> list[Lesson]:
    if not folder.is_dir():
        return []
    matches = [(path, _LESSON_FILE.fullmatch(path.name)) for path in sorted(folder.iterdir())]
    return [
        Lesson(match["number"], match["words"].replace("_", " "), path)
        for path, match in matches
        if match is not None
    ]


def _find_lesson(number: str, lessons: Sequence[Lesson]) -> Lesson:
    for lesson in lessons:
        if lesson.number == number.zfill(2):
            return lesson
    known = ", ".join(f"{lesson.number} {lesson.name}" for lesson in lessons)
    raise UnknownLesson(f"there is no lesson {number!r}; there are: {known}")


def _keep(mine: Path, written: bytes) -> Path:
    """Write the learner's bytes to the first backup name that is free."""
    for number in count(1):
        backup = mine.with_name(f"{mine.stem}.backup-{number}.ipynb")
        try:
            # "x" refuses a file that is there, so an earlier backup cannot be lost.
            file = backup.open("xb")
        except FileExistsError:
            continue
        try:
            with file:
                file.write(written)
        except BaseException:
            backup.unlink(missing_ok=True)  # on a full disk half of it would pass for a backup
            raise
        return backup
    raise AssertionError("count() has no end")


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never half of it."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise

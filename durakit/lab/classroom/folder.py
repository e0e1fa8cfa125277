"""The folder of a class: every progress file in it is read, and a report is written beside it.

Everything here only reads, and only from this machine. The files of a class were written by
others: their size and depth are limited, no link is followed, and what they hold is never executed.
A file that cannot be used is listed with the reason; it never ends a report. Of a learner no more
is read than the name of the file or folder, and what the progress file itself holds.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from durakit.lab.classroom.guesses import LONGEST_GUESS, guess_in_words
from durakit.lab.classroom.plans import Plan, read_plans
from durakit.lab.classroom.progress import UnreadableProgress, read_saved
from durakit.lab.classroom.report import ClassReport, Learner, NotRead
from durakit.lab.exercises import PROGRESS_NAME, Saved
from durakit.lab.html import one_line
from durakit.lab.lessons import COPY_NAME, LessonError, find_source

__all__ = ["check_target", "read_class", "write_new"]


#: Folders below the class's folder that are looked into.
DEEPEST: Final = 8


# -- reading a class -------------------------------------------------------------------------------


def read_class(folder: Path, plans: Sequence[Plan] | None = None) -> ClassReport:
    """Read every progress file below a folder, in any layout, and write nothing there.

    A learner's name is that of the folder that ``progress.json`` lies in, or of the file where it
    has another name. ``plans``: those of the lessons that ship if not given.

    Raises LessonError where the folder is none or holds no JSON file, and LessonsNotFound.
    """
    plans = read_plans(find_source()) if plans is None else plans
    if not folder.is_dir():
        raise LessonError(f"{folder}: there is no such folder")
    files: list[Path] = []
    not_read: list[NotRead] = []
    for path, why in _found(folder):
        if why is None:
            files.append(path)
        else:
            not_read.append(NotRead(_named(path, folder), why))
    if not files and not not_read:
        raise LessonError(f"{folder}: holds no progress file (a JSON file) at all")
    learners: list[Learner] = []
    for path, name in _names(files, folder).items():
        try:
            learners.append(_learner(name, read_saved(path)))
        except UnreadableProgress as error:
            not_read.append(NotRead(_named(path, folder), error.why))
    learners.sort(key=lambda each: (each.name.casefold(), each.name))
    return ClassReport(tuple(plans), tuple(learners), tuple(not_read))


def _learner(name: str, saved: Saved) -> Learner:
    """Keep of a file what a report needs, so that a thousand large ones fit into memory."""
    exercises = {key[:10]: tried for key, tried in saved.exercises.items()}
    guesses = {key[:10]: guess_in_words(said[0]) for key, said in saved.predictions.items() if said}
    return Learner(one_line(name, LONGEST_GUESS), exercises, guesses)


def _found(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield each JSON file below a folder, or what is not looked into and why, in order of names.

    Hidden files and folders are passed over. It is a loop with a list and not a recursion, since
    the depth of the folders is somebody else's choice.
    """
    waiting = [(folder, 0)]
    while waiting:
        at, depth = waiting.pop()
        try:
            with os.scandir(at) as listed:
                entries = sorted(listed, key=lambda entry: entry.name, reverse=True)
        except OSError as error:
            yield at, f"cannot be looked into ({error.strerror})"
            continue
        for entry in reversed(entries):
            if entry.name.startswith("."):
                continue
            path = Path(entry.path)
            is_json = path.suffix.lower() == ".json"
            if entry.is_symlink():
                yield path, "is a link, and no link is followed"
            elif not entry.is_dir(follow_symlinks=False):
                if is_json:
                    yield path, None
            elif depth == DEEPEST:
                yield path, f"lies more than {DEEPEST} folders deep"
        folders = (e for e in entries if e.is_dir(follow_symlinks=False) and e.name[0] != ".")
        if depth < DEEPEST:
            waiting += [(Path(entry.path), depth + 1) for entry in folders]


def _named(path: Path, folder: Path) -> str:
    return one_line(path.relative_to(folder).as_posix(), 200)


def _names(files: Sequence[Path], folder: Path) -> dict[Path, str]:
    """Return each file's learner; where two would share a name, both are called by their path."""
    names = {}
    for path in files:
        inside = path.relative_to(folder)
        if path.name == PROGRESS_NAME:
            parts = [part for part in inside.parts[:-1] if part != COPY_NAME]
            names[path] = "/".join(parts) or inside.stem
        else:
            names[path] = inside.with_suffix("").as_posix()
    often = Counter(names.values())
    return {
        path: name if often[name] == 1 else path.relative_to(folder).as_posix()
        for path, name in names.items()
    }


# -- writing a report ------------------------------------------------------------------------------


def check_target(target: Path, folder: Path, *, force: bool) -> None:
    """Refuse to write to a file that is there (unless ``force``), or anywhere into the class.

    Raises LessonError.
    """
    if target.resolve().is_relative_to(folder.resolve()):
        raise LessonError(f"{target}: lies in {folder}, where nothing is written")
    if not target.parent.is_dir():
        raise LessonError(f"{target}: there is no such folder")
    if os.path.lexists(target) and (target.is_dir() or not force):
        hint = "" if target.is_dir() else " (--force replaces it)"
        raise LessonError(f"{target}: is there already{hint}")


def write_new(target: Path, text: str, *, force: bool) -> None:
    """Write a file as a whole, readable by its owner only; never over another without ``force``.

    Raises LessonError.
    """
    part = None
    try:
        number, name = tempfile.mkstemp(prefix=".durakit-", dir=target.parent)
        part = Path(name)
        with open(number, "w", encoding="utf-8", newline="") as file:  # noqa: PTH123 - as above
            file.write(text)
        if not force:
            # Takes the name, and fails where somebody has just taken it.
            target.open("x").close()
        part.replace(target)
    except OSError as error:
        if part is not None:
            with contextlib.suppress(OSError):
                part.unlink()
        raise LessonError(f"{target}: cannot be written ({error.strerror})") from error

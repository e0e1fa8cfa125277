"""The commands around the lessons: ``lab``, ``reset``, ``progress``, ``class-report``."""

from __future__ import annotations

import argparse

from durakit.cli.exit_codes import NEEDS_A_PERSON, OK
from durakit.cli.printing import say, say_json
from durakit.errors import UsageError
from durakit.lab.lessons import (
    check_number,
    copy_beside,
    find_source,
    make_copy,
    open_lab,
    reset_lesson,
)


def lab(options: argparse.Namespace) -> int:
    """Complete the learner's copy and open it in JupyterLab, whose exit code is handed on."""
    source = find_source()
    mine = copy_beside(source)
    check_number(options.lesson, source, mine)
    new = make_copy(source, mine)
    if new:
        say(f"{len(new)} new lesson(s) in {mine}")
    return open_lab(mine, options.lesson, ["--no-browser"] if options.no_browser else [])


def reset(options: argparse.Namespace) -> int:
    """Restore one lesson, and say where the learner's went."""
    source = find_source()
    done = reset_lesson(options.lesson, source, copy_beside(source))
    say(f"{done.lesson} is as you first got it")
    if done.backup is not None:
        say(f"yours is kept as {done.backup.name}")
    return OK


def progress(options: argparse.Namespace) -> int:
    """Tell how far the learner is."""
    from durakit.lab.classroom.progress import own_progress  # noqa: PLC0415 - only this command needs it

    own = own_progress()
    if options.json:
        say_json(own.form())
    else:
        say(own.text())
    return OK


def class_report(options: argparse.Namespace) -> int:
    """Sum up a class; what cannot be used is refused before anything is written."""
    from durakit.lab.classroom import folder as classroom  # noqa: PLC0415 - as for progress

    files = [file for file in (options.csv, options.html) if file is not None]
    for file in files:
        classroom.check_target(file, options.folder, force=options.force)
    if len({file.resolve() for file in files}) < len(files):
        raise UsageError("--csv and --html: say two different files")
    report = classroom.read_class(options.folder)
    if options.csv is not None:
        classroom.write_new(options.csv, report.csv(), force=options.force)
    if options.html is not None:
        classroom.write_new(options.html, report.html(), force=options.force)
    if options.json:
        say_json(report.form())
    else:
        say(report.text())
    return NEEDS_A_PERSON if report.not_read else OK

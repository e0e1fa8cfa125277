"""The command line: ``durakit``, or ``python -m durakit``.

Two kinds of command. Those that *look* (``runs``, ``show``) read a private copy of the file: to
open an SQLite file and close it again already changes it, because a write-ahead log that a
killed process has left is then moved into the database. (``progress`` and ``class-report`` look,
too, at the learners' JSON files.) Those that *act* (``resume``, ``sweep``,
``lab``, ``reset``) say in a table what they did. ``mail serve`` runs until it is stopped.

What a workflow prints goes to standard error, so that standard output is the answer alone. Text
that somebody else chose (ids, keys, messages, payloads) is never sent to the terminal as it is.
pandas and JupyterLab are not imported here.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import inspect
import io
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NoReturn

from durakit import __version__, files, schema
from durakit.clock import Clock, SystemClock
from durakit.define import Workflow
from durakit.errors import (
    DurakitError,
    MisplacedFile,
    RunNotFound,
    StoreBusy,
    UsageError,
)
from durakit.lab.lessons import (
    LessonError,
    copy_beside,
    find_source,
    make_copy,
    open_lab,
    reset_lesson,
)
from durakit.machine import Machine
from durakit.run import Run, outcome_of
from durakit.runtime import Runtime
from durakit.store import Entry, OperationRow, RunRow

OK = 0
NEEDS_A_PERSON = 1
UNUSABLE = 2
INTERRUPTED = 130
NO_READER = 141

EXIT_CODES = """\
exit codes:
  0    all is well
  1    something needs a person: a run is parked (needs_decision) or failed, or could not be
       driven; a sweep found a bad verdict
  2    wrong usage, or a file that cannot be used (it was left as it was)
  130  interrupted from the keyboard (141: whoever read the output has gone)
"""

#: Statuses that a person should look at.
_FOR_A_PERSON = ("needs_decision", "failed")

#: How often a file is copied again because its log was begun anew meanwhile.
_COPY_TRIES = 50

#: Pause (seconds) between two looks at a run that another driver owns.
_POLL = 0.05

#: The account that runs belong to where nobody says otherwise.
_ACCOUNT = "default"


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command; returns the exit code. ``argv``: the process's own if None."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without UTF-8 shows an escape instead of ending the command.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _carried_out(argv)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # `| head` has seen enough. Python's own flush at the exit must find no pipe.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        return NO_READER
    return code


def _carried_out(argv: Sequence[str] | None) -> int:
    try:
        options = _parser().parse_args(argv)
        code: int = options.command(options)
    except SystemExit as done:  # --help and --version
        return done.code if isinstance(done.code, int) else OK
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        raise
    except (DurakitError, LessonError) as error:
        return _complain(str(error), UNUSABLE)
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        hint = "`python -X dev -m durakit …` shows where"
        return _complain(f"{type(error).__name__}: {error} ({hint})", UNUSABLE)
    return code


def _complain(message: str, code: int) -> int:
    print(f"durakit: {visible(message)}", file=sys.stderr)
    return code


# -- the words of the command line ---------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Complains in one line, as every other error does."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="durakit",
        description="After a crash, what may run again? Lessons, and tools for durakit's files.",
        epilog=f"example:\n  durakit lab\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"durakit {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")

    def command(name: str, does: Any, what: str, example: str, more: str = "") -> _Parser:
        made: _Parser = commands.add_parser(
            name,
            help=what,
            description=f"{what[0].upper()}{what[1:]}.{more}",
            epilog=f"example:\n  {example}\n\n{EXIT_CODES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        made.set_defaults(command=does)
        return made

    lab = command(
        "lab", _lab, "open the lessons in JupyterLab", "durakit lab --no-browser 02",
        "\nYou work in a copy of your own, my-lessons/, which git ignores; lessons that are\n"
        "missing in it are added, and what you wrote is never overwritten.",
    )  # fmt: skip
    lab.add_argument("lesson", metavar="LESSON", nargs="?", default="01", help="01 if not given")
    lab.add_argument("--no-browser", action="store_true", help="only print the address")

    reset = command(
        "reset", _reset, "restore one lesson as it ships", "durakit reset 01",
        "\nWhat you wrote in it is kept beside it as a backup with a number.",
    )  # fmt: skip
    reset.add_argument("lesson", metavar="NN", help="the lesson's number")

    progress = command(
        "progress", _progress, "tell how far you are in the lessons", "durakit progress",
        "\nOnly looks, from any folder: exercises passed, tries, predictions made.",
    )  # fmt: skip

    class_report = command(
        "class-report", _class_report, "sum up the progress files of a class",
        "durakit class-report handed-in --html class.html",
        "\nFOLDER holds each learner's progress.json, in any layout: a folder for each learner,\n"
        "or files with the learners' names. Nothing is written there, and nothing leaves this\n"
        "machine. Files that cannot be read are listed, and the exit code is then 1.",
    )  # fmt: skip
    class_report.add_argument("folder", metavar="FOLDER", type=Path, help="what was handed in")
    class_report.add_argument("--csv", metavar="FILE", type=Path, help="write a row per learner")
    class_report.add_argument("--html", metavar="FILE", type=Path, help="write a page to look at")
    class_report.add_argument("--force", action="store_true", help="replace FILE if it is there")

    runs = command(
        "runs", _runs, "list the runs of a file", "durakit runs orders.db",
        "\nOnly looks: no file is changed or created, also while a driver is at work.",
    )  # fmt: skip
    _add_file(runs)
    runs.add_argument("--account", metavar="A", help="only this account; every one if not given")

    show = command(
        "show", _show, "show one run: status, reason, operations, journal",
        "durakit show orders.db welcome:42",
        "\nOnly looks: no file is changed or created. Control characters are shown as escapes;\n"
        "on a terminal long payloads are cut, and --json has them whole.",
    )  # fmt: skip
    _add_file(show)
    show.add_argument("id", metavar="RUN", help="the run's id")

    resume = command(
        "resume", _resume, "drive what a crash has left unfinished",
        "durakit resume orders.db --module shop.workflows",
        "\nWithout RUN: every run that may be driven. With RUN: that one, a parked one too.\n"
        "The table says of each run what was done: driven, parked, waiting, owned (another\n"
        "driver has it) or error.",
    )  # fmt: skip
    _add_file(resume)
    resume.add_argument("id", metavar="RUN", nargs="?", help="the run's id")
    resume.add_argument(
        "--module", metavar="MODULE", action="append", required=True,
        help="import it: it defines the workflows (the current directory is searched too; may "
        "be given several times)",
    )  # fmt: skip
    resume.add_argument(
        "--wait", metavar="SECONDS", type=_seconds, default=0.0,
        help="keep trying runs that are owned: a killed driver's lease ends by itself (30 s "
        "unless the driver chose otherwise)",
    )  # fmt: skip
    for looked in (show, resume):
        looked.add_argument(
            "--account", metavar="A", default=_ACCOUNT, help=f"{_ACCOUNT} if not given"
        )

    sweep = command(
        "sweep", _sweep, "crash a workflow at every boundary and count what happened outside",
        "durakit sweep shop.workflows:welcome --args '[{\"id\": 42}]'",
        "\nThe world is the object named `world` in the workflow's module, or --world. It is\n"
        "given empty folders to live in, so nothing that it holds now is touched.",
    )  # fmt: skip
    sweep.add_argument(
        "workflow", metavar="MODULE:WORKFLOW", help="module and name of the workflow"
    )
    sweep.add_argument("--world", metavar="MODULE:NAME", help="the outside world to count in")
    sweep.add_argument(
        "--args", metavar="JSON", default="[]",
        help="the workflow's arguments: a list in their order, or an object by name",
    )  # fmt: skip
    sweep.add_argument("--real", action="store_true", help="kill a real process at each point")
    sweep.add_argument(
        "--pairs", action="store_true", help="crash each recovery too, at every boundary of its own"
    )
    sweep.add_argument(
        "--only", metavar="SEED",
        help="try one schedule: its seed, as in effect_done@send_email, two joined by +",
    )  # fmt: skip
    sweep.add_argument(
        "--signal", metavar="NAME=JSON", action="append", default=[],
        help="what the run is told each time that it waits for NAME (may be given several times)",
    )  # fmt: skip
    sweep.add_argument("--progress", action="store_true", help="show on a terminal how far it is")
    lint = command(
        "lint", _lint, "look for the usual mistakes in a workflow, without running it",
        "durakit lint shop.workflows:welcome",
        "\nIt proves nothing, and says what it looked at. What holds at every crash is the\n"
        "sweep's to say. The exit code is 1 where a mistake was found.",
    )  # fmt: skip
    lint.add_argument(
        "subject", metavar="MODULE:NAME", help="module and name of a workflow, machine or tool"
    )

    mail = command(
        "mail", None, "run the mail service of the lessons: `durakit mail serve`",
        "durakit mail serve --profile resend",
    )  # fmt: skip
    _add_mail_serve(mail.add_subparsers(metavar="COMMAND", required=True, title="commands"))
    for printed in (progress, class_report, runs, show, sweep, lint):
        printed.add_argument("--json", action="store_true", help="print JSON, in ASCII")
    return parser


def _add_mail_serve(commands: Any) -> None:
    serve: _Parser = commands.add_parser(
        "serve",
        help="open the HTTP door of a mailbox on this machine",
        description="Open the HTTP door of a mailbox on this machine, and print its address.\n"
        "Ctrl-C or SIGTERM ends it (exit code 0), with its ledger closed and whole. The address\n"
        "takes what the public SDKs send: POST /emails, POST /emails/batch, GET /emails/ID,\n"
        "GET /emails?key=KEY. It can be reached from this machine only.",
        epilog=f"example:\n  durakit mail serve --profile resend --folder mail\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    serve.set_defaults(command=_mail_serve)
    serve.add_argument(
        "--profile", metavar="NAME", default="resend",
        help="the service that it is like: resend (if not given), stripe_v1, ietf_draft, …; a "
        "wrong name lists all",
    )  # fmt: skip
    serve.add_argument(
        "--folder", metavar="F", type=Path,
        help="keep the ledger there, as mail.db; if not given, all is forgotten at the end",
    )  # fmt: skip
    serve.add_argument(
        "--port", metavar="N", type=_port, default=0, help="any free one if not given"
    )
    serve.add_argument(
        "--token", metavar="ACCOUNT=TOKEN", action="append", default=[],
        help="ask for a bearer token, and take this one for that account (may be given several "
        "times); if not given, anybody may come in",
    )  # fmt: skip


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) < 2**16):
        raise argparse.ArgumentTypeError(f"needs a number from 0 to 65535, got {text!r}")
    return int(text)


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("db", metavar="DB", type=Path, help="the file that a Runtime has made")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"needs seconds, got {text!r}")
    return value


# -- lessons -------------------------------------------------------------------------------


def _lab(options: argparse.Namespace) -> int:
    source = find_source()
    mine = copy_beside(source)
    new = make_copy(source, mine)
    if new:
        print(f"{len(new)} new lesson(s) in {visible(str(mine))}", flush=True)
    return open_lab(mine, options.lesson, ["--no-browser"] if options.no_browser else [])


def _reset(options: argparse.Namespace) -> int:
    source = find_source()
    done = reset_lesson(options.lesson, source, copy_beside(source))
    print(f"{visible(str(done.lesson))} is as it ships")
    if done.backup is not None:
        print(f"yours is kept as {visible(done.backup.name)}")
    return OK


def _progress(options: argparse.Namespace) -> int:
    from durakit.lab import classroom  # noqa: PLC0415 - only these two commands need it

    own = classroom.own_progress()
    if options.json:
        _print_json(own.form())
    else:
        print(own.text())
    return OK


def _class_report(options: argparse.Namespace) -> int:
    from durakit.lab import classroom  # noqa: PLC0415 - as above

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
        _print_json(report.form())
    else:
        print(report.text())
    return NEEDS_A_PERSON if report.not_read else OK


# -- looking -------------------------------------------------------------------------------


def _require_file(path: Path) -> None:
    """Raises a StoreError for a file that is missing, or that no Runtime could open."""
    if not files.inspect(path, schema.shapes()):
        raise MisplacedFile(f"{path}: there is no such file")


@contextlib.contextmanager
def _looking(path: Path, account: str = _ACCOUNT) -> Iterator[Runtime]:
    """A Runtime on a private copy of the file: nothing that it does can reach the original."""
    _require_file(path)
    with (
        tempfile.TemporaryDirectory(prefix="durakit-look-") as folder,
        Runtime(_copied(path, Path(folder)), account=account) as rt,
    ):
        # Messages speak of the file that was asked for.
        rt._store.name = str(path)  # noqa: SLF001
        yield rt


def _copied(path: Path, folder: Path) -> Path:
    """Copy database and write-ahead log as they were at one moment, also under a live driver.

    SQLite changes the database only by moving pages from the log into it, and only appends to
    the log until it begins the log anew, with a new header. So if the log's header is the same
    before and after, a log that was copied *after* the database holds every page that was on
    the move meanwhile. Without a log, the database's own stamp must be the same.
    """
    log = path.with_name(path.name + "-wal")
    copy = folder / "copy.db"
    copied_log = folder / "copy.db-wal"
    for _ in range(_COPY_TRIES):
        before = _generation(path, log)
        shutil.copyfile(path, copy)
        copied_log.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(log, copied_log)
        if _generation(path, log) == before:
            return copy
    raise StoreBusy(f"{path}: is written too fast to be copied; try again")


def _generation(path: Path, log: Path) -> tuple[object, ...]:
    with contextlib.suppress(FileNotFoundError), log.open("rb") as file:
        header = file.read(32)
        if header:
            return (header,)
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


def _runs(options: argparse.Namespace) -> int:
    with _looking(options.db) as rt:
        kept, clock = rt._store, rt._clock  # noqa: SLF001
        rows = kept.list_runs(options.account)
        counts = kept.count_entries(rows)
        found = [
            _run_form(row, Run(kept, clock, row).reason, entries)
            for row, entries in zip(rows, counts, strict=True)
        ]
    if options.json:
        _print_json(found)
    elif not found:
        whose = "" if options.account is None else f" of account {options.account!r}"
        print(f"no runs{visible(whose)}")
    else:
        names = [
            "id",
            "workflow",
            "status",
            "entries",
            "incarnations",
            "created",
            "owner",
            "reason",
        ]
        if any(form["account"] != _ACCOUNT for form in found):
            names.insert(0, "account")
        _print_table(names, [[form[name] for name in names] for form in found])
    return _code_for(row.status for row in rows)


def _show(options: argparse.Namespace) -> int:
    with _looking(options.db, options.account) as rt:
        kept = rt._store  # noqa: SLF001
        try:
            run = rt.get(options.id)
        except RunNotFound as error:
            others = {row.account for row in kept.list_runs(None) if row.id == options.id}
            hint = "".join(f"; account {name!r} has one: --account" for name in sorted(others))
            raise RunNotFound(f"{error}{hint}") from None
        row = kept.find_run(run.account, run.id)
        # A journal is shown only where it is what was written: each digest is checked.
        entries, _ = kept._verified(kept._connection(), row)  # noqa: SLF001
        operations = kept.operations_of(row)
        form = _run_form(row, run.reason, len(entries))
    if row.status == "completed":
        form["result"] = json.loads(entries[(row.explained or len(entries)) - 1].payload)["value"]
    journal = [_entry_form(entry) for entry in entries]
    deeds = [_operation_form(operation) for operation in operations]
    if options.json:
        _print_json({**form, "operations": deeds, "journal": journal})
    else:
        _print_run(form)
        _print_section("operations", deeds)
        _print_section("journal", journal)
    return _code_for([row.status])


def _run_form(row: RunRow, reason: str, entries: int) -> dict[str, Any]:
    return {
        "id": row.id,
        "account": row.account,
        "workflow": row.workflow,
        "version": row.version,
        "status": row.status,
        "reason": reason,
        "entries": entries,
        "incarnations": row.token,
        "owner": row.owner,
        "owned_until": _moment(row.leased),
        "commands": row.commands,
        "created": _moment(row.created),
        "deadline": _moment(row.deadline),
    }


def _operation_form(row: OperationRow) -> dict[str, Any]:
    return {
        "tool": row.tool,
        "key": row.key,
        "status": row.status,
        "outcome": outcome_of(row),
        "attempts": row.attempts,
        "contract": row.contract,
        "first_sent": _moment(row.first_sent),
        "sent": _moment(row.sent),
        "run": row.run_id,
    }


def _entry_form(entry: Entry) -> dict[str, Any]:
    return {
        "seq": entry.seq,
        "incarnation": entry.token,
        "kind": entry.kind,
        "step": entry.step,
        "key": entry.key,
        "attempt": entry.attempt,
        "time": _moment(entry.time),
        "payload": json.loads(entry.payload),
    }


def _code_for(statuses: Any) -> int:
    return NEEDS_A_PERSON if any(status in _FOR_A_PERSON for status in statuses) else OK


# -- driving -------------------------------------------------------------------------------


def _resume(options: argparse.Namespace) -> int:
    _require_file(options.db)
    for name in options.module:
        _imported(name)
    clock = SystemClock()
    # Absolute, so that no file name can be taken for ":memory:".
    with Runtime(options.db.absolute(), account=options.account, clock=clock) as rt:
        rt._store.check_clock()  # noqa: SLF001 - one clear line instead of one per run
        with contextlib.redirect_stdout(sys.stderr):
            if options.id is None:
                rows = rt._recover(options.wait)  # noqa: SLF001 - the table without pandas
            else:
                rows = [_resumed(rt, options.id, clock, options.wait)]
    if rows:
        _print_table(["run", "did", "status", "detail"], rows)
        if any(did == "owned" for _, did, _, _ in rows):
            print("owned runs: add --wait 30, or try again after that time")
    else:
        print("nothing is unfinished")
    if any(did in ("error", "owned") for _, did, _, _ in rows):
        return NEEDS_A_PERSON
    return _code_for(status for _, _, status, _ in rows)


def _resumed(rt: Runtime, run_id: str, clock: Clock, wait: float) -> tuple[str, str, str, str]:
    """Drive one run: its line of the table."""
    ends = clock.monotonic() + wait
    run = rt.resume(run_id)
    while run.note.startswith("owned") and (left := ends - clock.monotonic()) > 0:
        clock.sleep(min(_POLL, left))
        run = rt.resume(run_id)
    did = "driven"
    if run.note.startswith("owned"):
        did = "owned"
    elif run.note.startswith("already"):
        did = "nothing"
    detail = "; ".join(part for part in (run.note, run.reason) if part)
    return run.id, did, run.status, detail


def _imported(name: str) -> Any:
    """Import a module, from the current directory too. Raises UsageError where that fails."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if "/" in name or name.endswith(".py"):
        raise UsageError(f"{name!r} is a file; a module is named as for import: package.module")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            where = f"in {Path.cwd()} or among the installed"
            raise UsageError(f"there is no module {name!r} {where}") from error
        raise UsageError(f"module {name!r} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:
        problem = f"{type(error).__name__}: {error}"
        raise UsageError(f"module {name!r} cannot be imported: {problem}") from error


def _named(text: str, option: str) -> tuple[Any, Any]:
    """The module and the object that ``module:name`` says."""
    module_name, colon, name = text.partition(":")
    if not (module_name and colon and name):
        raise UsageError(f"{option}: say module:name, as in shop.workflows:welcome; got {text!r}")
    module = _imported(module_name)
    try:
        return module, getattr(module, name)
    except AttributeError:
        raise UsageError(f"{option}: module {module_name!r} has no {name!r}") from None


def _sweep(options: argparse.Namespace) -> int:
    from durakit.sweep import sweep  # noqa: PLC0415 - only this command needs it

    module, workflow = _named(options.workflow, "MODULE:WORKFLOW")
    if not isinstance(workflow, Workflow):
        raise UsageError(f"{options.workflow} is no workflow: declare it with @dk.workflow")
    if options.world is not None:
        _, world = _named(options.world, "--world")
    elif hasattr(module, "world"):
        world = module.world
    else:
        raise UsageError(
            f"module {module.__name__!r} has no object named `world` to count effects in: make "
            "one there, or say --world module:name"
        )
    if isinstance(world, type):
        raise UsageError("the world must be the object that the tools use, and this is a class")
    args, kwargs = _arguments(workflow, options.args)
    mode: Literal["simulated", "process"] = "process" if options.real else "simulated"
    signals = dict(_signal(text) for text in options.signal)
    with contextlib.redirect_stdout(sys.stderr):
        report = sweep(
            workflow, *args, world=world, crashes=2 if options.pairs else 1, mode=mode,
            signals=signals, only=options.only, progress=options.progress, **kwargs,
        )  # fmt: skip
    if options.json:
        _print_json(
            {
                "workflow": workflow.name,
                "mode": mode,
                "ending": report.ending,
                "safe": report.safe,
                "counterexample": report.counterexample,
                "rows": report.rows,
            }
        )
    else:
        print("\n".join(visible(line) for line in report.text().splitlines()))
        for row in report.rows:
            if row["detail"] and not row["verdict"].startswith("safe"):
                where = f"{row['number']} {row['point']} of {row['place']}"
                where += f", then {row['then']}" if row["then"] else ""
                print(visible(f"{where}: {row['verdict']}: {row['detail']}"))
    if report.ending:  # to survive the crashes of a run that fails anyway says nothing
        return NEEDS_A_PERSON
    return OK if report.safe else NEEDS_A_PERSON


def _lint(options: argparse.Namespace) -> int:
    from durakit.linting import lint  # noqa: PLC0415 - only this command needs it

    _, subject = _named(options.subject, "MODULE:NAME")
    report = lint(subject)
    if options.json:
        rows = [dataclasses.asdict(row) for row in report.rows]
        _print_json({"subject": report.subject, "rows": rows})
    else:
        print("\n".join(visible(line) for line in report.text().splitlines()))
    return NEEDS_A_PERSON if report.found else OK


def _signal(text: str) -> tuple[str, Any]:
    """The signal that NAME=JSON says."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--signal: say NAME=JSON, as in approval=true; got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError as error:
        raise UsageError(f"--signal {name}: no JSON: {error}") from error


def _arguments(workflow: Workflow, text: str) -> tuple[list[Any], dict[str, Any]]:
    """A workflow's arguments from JSON, in the types that it declares."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--args is no JSON: {error}") from error
    parameters = list(inspect.signature(workflow.function).parameters.values())
    signature = inspect.Signature(parameters[1:])
    try:
        if isinstance(given, dict):
            bound = signature.bind(**given)
        elif isinstance(given, list):
            bound = signature.bind(*given)
        else:
            raise UsageError("--args: a list in the order of the arguments, or an object by name")
    except TypeError as error:
        raise UsageError(f"--args does not fit {workflow.name}{signature}: {error}") from error
    form = dict(bound.arguments)
    if isinstance(workflow, Machine):  # whatever its author calls the parameter
        form = {"state": next(iter(form.values()))}
    return workflow.parameters.load(form)


# -- the mail service ----------------------------------------------------------------------


def _mail_serve(options: argparse.Namespace) -> int:
    # Only this command needs a server, and the mail service is somebody else's system.
    from durakit.mail import PROFILES, Mailbox  # noqa: PLC0415
    from durakit.mail.http import HttpDoor  # noqa: PLC0415

    if options.profile not in PROFILES:
        raise UsageError(f"--profile: {options.profile!r} is none of {', '.join(PROFILES)}")
    tokens = dict(_token(text) for text in options.token)
    if len(tokens) < len(options.token):
        raise UsageError("--token: the same token is given twice")
    with _interrupted_by_any_end():
        try:
            mailbox = Mailbox(
                options.folder, profile=options.profile, latency=0, tokens=tokens or None
            )
        except (OSError, RuntimeError) as error:
            raise UsageError(f"--folder: {error}") from error
        with contextlib.closing(mailbox):
            door = HttpDoor(mailbox, options.port)
            try:
                door.start()
            except OSError as error:
                raise UsageError(f"--port {options.port}: {error}") from error
            with contextlib.ExitStack() as closing:
                closing.callback(door.stop)
                print(door.url, flush=True)
                print(f"profile {options.profile}; Ctrl-C stops it", file=sys.stderr, flush=True)
                _wait_for_the_end()
    return OK


def _token(text: str) -> tuple[str, str]:
    """The token and its account that ACCOUNT=TOKEN says."""
    account, _, token = text.partition("=")
    if not account or not re.fullmatch("[!-~]+", token):
        raise UsageError("--token: say ACCOUNT=TOKEN, as in ada=re_123 (the token without spaces)")
    return token, account


#: What ends a service. A process in the background may have been started with the first ignored.
_ENDS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def _interrupted_by_any_end() -> Iterator[None]:
    before = {number: signal.signal(number, signal.default_int_handler) for number in _ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_for_the_end() -> None:
    """Return when the process is told to end; told again, it goes on closing in peace."""
    never = threading.Event()
    try:
        while not never.wait(1):  # not for ever: not every platform interrupts a wait without end
            pass
    except KeyboardInterrupt:
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)


# -- printing ------------------------------------------------------------------------------


def visible(text: str) -> str:
    r"""``text`` on one line with everything that is not printable as an escape like ``\u001b``.

    That covers control characters and the invisible ones that turn text around or join it. A
    backslash stays as it is: JSON output tells the two apart.
    """
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else json.dumps(character)[1:-1]


def _moment(value: float | None) -> str | None:
    """Wall seconds as UTC; a number that no calendar has stays a number."""
    if value is None:
        return None
    try:
        moment = datetime.fromtimestamp(value, UTC)
    except (OverflowError, ValueError, OSError):
        return repr(value)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return visible(value)
    return visible(json.dumps(value, ensure_ascii=False))


def _width(text: str) -> int:
    """Columns that ``text`` takes on a terminal: East Asian wide characters take two."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    lines = [list(headings), *([_cell(value) for value in row] for row in rows)]
    widths = [max(_width(line[i]) for line in lines) for i in range(len(headings))]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in lines:
        text = "  ".join(
            cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        print(text if room is None else _cut(text, room))


def _cut(text: str, room: int) -> str:
    """``text`` in at most ``room`` columns, the end replaced by … where it is longer."""
    if _width(text) <= room:
        return text
    kept = ""
    for character in text:
        if _width(kept + character) >= room:
            break
        kept += character
    return kept + "…"


def _print_run(form: dict[str, Any]) -> None:
    for name, value in form.items():
        if name == "result" or value not in (None, "", 0):
            print(f"{name:<12}  {_cell(value)}")


def _print_section(name: str, forms: Sequence[dict[str, Any]]) -> None:
    print(f"\n{name}" if forms else f"\nno {name}")
    if forms:
        _print_table(list(forms[0]), [list(form.values()) for form in forms])


def _print_json(value: Any) -> None:
    # json leaves DEL as it is; it can only stand inside a text.
    print(json.dumps(value, indent=2).replace("\x7f", "\\u007f"))

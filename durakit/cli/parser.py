"""The words of the command line: every command, what it takes, and the help that it gives."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from durakit import __version__
from durakit.cli import given, lessons, mail, runs, workflows
from durakit.cli.exit_codes import EXIT_CODES
from durakit.cli.looking import ACCOUNT
from durakit.cli.printing import say
from durakit.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Complains in one line, as every other error does."""

    def error(self, message: str) -> NoReturn:
        """Refuse the words."""
        raise UsageError(f"{message} (see `{self.prog} --help`)")

    def _print_message(self, message: str, file: object = None) -> None:
        """--help and --version are printed as all the rest is."""
        del file
        say(message.removesuffix("\n"))


def make_parser() -> Parser:
    """The whole command line; ``command`` of what it returns is the function to call."""
    parser = Parser(
        prog="durakit",
        description="After a crash, what may run again? Lessons, and tools for durakit's files.",
        epilog=f"example:\n  durakit lab\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"durakit {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    _add_lessons(commands)
    _add_runs(commands)
    _add_workflows(commands)
    _add_mail(commands)
    return parser


def _add(commands: Any, name: str, does: Any, what: str, example: str, more: str = "") -> Parser:
    """Add one command: ``what`` it does in a line, an example, and ``more`` for its own help."""
    made: Parser = commands.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.{more}",
        epilog=f"example:\n  {example}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.set_defaults(command=does)
    return made


def _add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, in ASCII")


def _add_lessons(commands: Any) -> None:
    lab = _add(
        commands, "lab", lessons.lab, "open the lessons in JupyterLab",
        "durakit lab --no-browser 02",
        "\nYou work in a copy of your own, my-lessons/, which git ignores; lessons that are\n"
        "missing in it are added, and what you wrote is never overwritten.",
    )  # fmt: skip
    lab.add_argument("lesson", metavar="LESSON", nargs="?", default="01", help="01 if not given")
    lab.add_argument("--no-browser", action="store_true", help="only print the address")

    reset = _add(
        commands, "reset", lessons.reset, "restore one lesson as it was first", "durakit reset 01",
        "\nWhat you wrote in it is kept beside it as a backup with a number.",
    )  # fmt: skip
    reset.add_argument("lesson", metavar="NN", help="the lesson's number")

    progress = _add(
        commands, "progress", lessons.progress, "tell how far you are in the lessons",
        "durakit progress",
        "\nOnly looks, from any folder: exercises passed, tries, predictions made.",
    )  # fmt: skip
    _add_json(progress)

    report = _add(
        commands, "class-report", lessons.class_report, "sum up the progress files of a class",
        "durakit class-report handed-in --html class.html",
        "\nFOLDER holds each learner's progress.json, in any layout: a folder for each learner,\n"
        "or files with the learners' names. Nothing is written there, and nothing leaves this\n"
        "machine. Files that cannot be read are listed, and the exit code is then 1.",
    )  # fmt: skip
    report.add_argument("folder", metavar="FOLDER", type=given.path, help="what was handed in")
    report.add_argument("--csv", metavar="FILE", type=given.path, help="write a row per learner")
    report.add_argument("--html", metavar="FILE", type=given.path, help="write a page to look at")
    report.add_argument("--force", action="store_true", help="replace FILE if it is there")
    _add_json(report)


def _add_runs(commands: Any) -> None:
    listed = _add(
        commands, "runs", runs.runs, "list the runs of a file", "durakit runs orders.db",
        "\nOnly looks: no file is changed or created, also while a driver is at work.",
    )  # fmt: skip
    _add_file(listed)
    listed.add_argument(
        "--account",
        metavar="A",
        type=given.account,
        help="only this account; every one if not given",
    )
    _add_json(listed)

    show = _add(
        commands, "show", runs.show, "show one run: status, reason, operations, journal",
        "durakit show orders.db welcome:42",
        "\nOnly looks: no file is changed or created. Control characters are shown as escapes;\n"
        "on a terminal long payloads are cut, and --json has them whole.",
    )  # fmt: skip
    _add_file(show)
    show.add_argument("id", metavar="RUN", help="the run's id")
    _add_account(show)
    _add_json(show)

    resume = _add(
        commands, "resume", runs.resume, "drive what a crash has left unfinished",
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
        "--wait", metavar="SECONDS", type=given.seconds, default=0.0,
        help="keep trying runs that are owned: a killed driver's lease ends by itself (30 s "
        "unless the driver chose otherwise)",
    )  # fmt: skip
    _add_account(resume)

    resolve = _add(
        commands, "resolve", runs.resolve, "say how an operation that is unknown ended",
        "durakit resolve orders.db welcome:42 completed --result '{\"id\": 7}' --by Grace",
        "\nOnly notes the decision, and prints the command that goes on with the run. OUTCOME is\n"
        "one of: completed (the call returns --result), not_executed (the next attempt may use\n"
        "the same key), compensate (nobody knows: the tool's compensation is carried out).",
    )  # fmt: skip
    _add_file(resolve)
    resolve.add_argument("id", metavar="RUN", help="the run's id")
    resolve.add_argument("outcome", metavar="OUTCOME", help=runs.OUTCOMES)
    resolve.add_argument(
        "--by", metavar="NAME", required=True, help="who says so; kept in the journal"
    )
    resolve.add_argument(
        "--key", metavar="KEY", help="the operation's key, where several are unknown"
    )
    resolve.add_argument("--tool", metavar="TOOL", help="its tool, where several have that key")
    resolve.add_argument(
        "--result", metavar="JSON", help="what a completed call returns; null if not given"
    )
    resolve.add_argument(
        "--module", metavar="MODULE", action="append", default=[],
        help="import it: it declares the tool, which compensate may need (may be given several "
        "times)",
    )  # fmt: skip
    _add_account(resolve)


def _add_file(parser: Parser) -> None:
    parser.add_argument(
        "db", metavar="DB", type=given.path, help="the file that a Runtime has made"
    )


def _add_account(parser: Parser) -> None:
    parser.add_argument(
        "--account", metavar="A", type=given.account, default=ACCOUNT,
        help=f"{ACCOUNT} if not given",
    )  # fmt: skip


def _add_workflows(commands: Any) -> None:
    sweep = _add(
        commands, "sweep", workflows.sweep,
        "crash a workflow at every boundary and count what happened outside",
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
    _add_json(sweep)

    lint = _add(
        commands, "lint", workflows.lint,
        "look for the usual mistakes in a workflow, without running it",
        "durakit lint shop.workflows:welcome",
        "\nIt proves nothing, and says what it looked at. What holds at every crash is the\n"
        "sweep's to say. The exit code is 1 where a mistake was found.",
    )  # fmt: skip
    lint.add_argument(
        "subject", metavar="MODULE:NAME", help="module and name of a workflow, machine or tool"
    )
    _add_json(lint)


def _add_mail(commands: Any) -> None:
    group = _add(
        commands, "mail", None, "run the mail service of the lessons: `durakit mail serve`",
        "durakit mail serve --profile resend",
    )  # fmt: skip
    serve = _add(
        group.add_subparsers(metavar="COMMAND", required=True, title="commands"),
        "serve", mail.serve, "open the HTTP door of a mailbox on this machine",
        "durakit mail serve --profile resend --folder mail",
        "\nIts address is printed. Ctrl-C or SIGTERM ends it (exit code 0), with its ledger\n"
        "closed and whole. The address takes what the public SDKs send: POST /emails,\n"
        "POST /emails/batch, GET /emails/ID, GET /emails?key=KEY. It can be reached from this\n"
        "machine only.",
    )  # fmt: skip
    serve.add_argument(
        "--profile", metavar="NAME", default="resend",
        help="the service that it is like: resend (if not given), stripe_v1, ietf_draft, …; a "
        "wrong name lists all",
    )  # fmt: skip
    serve.add_argument(
        "--folder", metavar="F", type=given.path,
        help="keep the ledger there, as mail.db; if not given, all is forgotten at the end",
    )  # fmt: skip
    serve.add_argument(
        "--port", metavar="N", type=given.port, default=0, help="any free one if not given"
    )
    serve.add_argument(
        "--faults", metavar="FILE", type=given.path,
        help="what goes wrong with which request: a JSON list, as in "
        '[{"kind": "reply_lost", "request": 2}]; a wrong kind lists all',
    )  # fmt: skip
    serve.add_argument(
        "--token", metavar="ACCOUNT=TOKEN", action="append", default=[],
        help="ask for a bearer token, and take this one for that account (may be given several "
        "times); if not given, anybody may come in",
    )  # fmt: skip

"""The command line: ``durakit``, or ``python -m durakit``.

Two kinds of command. Those that *look* (``runs``, ``show``, ``progress``, ``class-report``,
``lint``) change no file of the user's, not even by opening one. Those that *act* (``resume``,
``resolve``, ``sweep``, ``lab``, ``reset``) say what they did. ``mail serve`` runs until it is
stopped.

What a workflow prints goes to standard error, so that standard output is the answer alone. What
goes wrong is one line, there too. pandas and JupyterLab are not imported here.

Read in this order: ``exit_codes``, ``printing``, ``looking``, ``given`` (what a word stands for),
the commands in ``lessons``, ``runs``, ``workflows`` and ``mail``, and ``parser``.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from durakit.cli.exit_codes import INTERRUPTED, NEEDS_A_PERSON, NO_READER, OK, UNUSABLE
from durakit.cli.parser import make_parser
from durakit.cli.printing import NoReader, say, visible
from durakit.errors import DurakitError, UsageError
from durakit.lab.lessons import LessonError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command; returns the exit code. ``argv``: the process's own if None."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without UTF-8 shows an escape instead of ending the command.
            stream.reconfigure(errors="backslashreplace")
    try:
        return _carried_out(argv)
    except NoReader:  # `| head` has seen enough
        return NO_READER
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except (DurakitError, LessonError) as error:
        return _complain(str(error), UNUSABLE)
    except BaseException as error:
        if sys.flags.dev_mode:
            raise
        # Not an Exception: a workflow's own way to end its process, as by sys.exit.
        code = UNUSABLE if isinstance(error, Exception) else NEEDS_A_PERSON
        return _complain(_told(error), code)


def _carried_out(argv: Sequence[str] | None) -> int:
    try:
        options = make_parser().parse_args(argv)
    except SystemExit:  # --help and --version
        return OK
    try:
        os.getcwd()  # noqa: PTH109 - only whether there is one
    except OSError as error:
        raise UsageError(f"the current folder cannot be used: {error.strerror}") from error
    code: int = options.command(options)
    return code


def _told(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, SystemExit):
        return f"the code that was to run has called sys.exit({error.code!r})"
    return f"{type(error).__name__}: {error} (`python -X dev -m durakit …` shows where)"


def _complain(message: str, code: int) -> int:
    say(f"durakit: {visible(message)}", aside=True)
    return code

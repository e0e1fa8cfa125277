r"""How things are printed: lines, tables and JSON, with nothing in them that moves a terminal.

Text that somebody else chose (ids, keys, messages, payloads) is never sent to the terminal as it
is. What is not printable is shown as an escape like ``\u001b``: control characters, and the
invisible ones that turn text around or join it. A backslash stays as it is: JSON output tells the
two apart.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

from durakit.errors import UsageError


class NoReader(Exception):
    """Whoever read the output has gone."""


def visible(text: str) -> str:
    """``text`` on one line, with everything that is not printable as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else json.dumps(character)[1:-1]


def say(text: str, *, aside: bool = False) -> None:
    """Print the lines of ``text``; ``aside``: to standard error, for nobody's pipe.

    Where somebody closed the stream beforehand, nothing is printed. Raises NoReader where the
    reader has gone, and UsageError where the output cannot be written; what cannot be said aside
    is left unsaid, since the exit code says it too.
    """
    stream = sys.stderr if aside else sys.stdout
    if stream is None:
        return
    shown = "\n".join(visible(line) for line in text.split("\n"))
    try:
        # At once: whoever waits for the line need not wait for the end of the command.
        print(shown, file=stream, flush=True)
    except OSError as error:
        _give_up(stream)
        if aside:
            return
        if isinstance(error, BrokenPipeError):
            raise NoReader from None
        raise UsageError(f"standard output: {error.strerror}") from error


def _give_up(stream: TextIO) -> None:
    """Let what is still to be written go nowhere: Python's own flush at the exit would fail too."""
    with contextlib.suppress(OSError):
        _lead(stream.fileno(), None)


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """While somebody else's code runs: standard output is standard error.

    For the processes that it starts too, so the descriptor itself is led there.
    """
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr), contextlib.ExitStack() as after:
        with contextlib.suppress(AttributeError, OSError):  # closed, or no stream of the system's
            number = out.fileno()
            kept = os.dup(number)
            after.callback(os.close, kept)
            after.callback(os.dup2, kept, number)
            after.callback(_flush, out)  # what was written to it meanwhile goes aside too
            _lead(number, sys.stderr)
        yield


def _flush(stream: TextIO) -> None:
    with contextlib.suppress(OSError):
        stream.flush()


def _lead(number: int, stream: TextIO | None) -> None:
    """Let a descriptor write where ``stream`` does, or nowhere where that is closed."""
    if stream is None:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - no path of ours
            os.dup2(nowhere.fileno(), number)
    else:
        os.dup2(stream.fileno(), number)


def say_json(value: Any) -> None:
    """Print ``value`` as JSON in ASCII."""
    # json leaves DEL as it is; it can only stand inside a text.
    say(json.dumps(value, indent=2).replace("\x7f", "\\u007f"))


def say_table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print ``rows`` under ``headings``, in columns; on a terminal lines that are long are cut."""
    lines = [list(headings), *([cell(value) for value in row] for row in rows)]
    widths = [max(_width(line[i]) for line in lines) for i in range(len(headings))]
    on_a_terminal = sys.stdout is not None and sys.stdout.isatty()
    room = shutil.get_terminal_size().columns if on_a_terminal else None
    for line in lines:
        text = "  ".join(
            part + " " * (width - _width(part)) for part, width in zip(line, widths, strict=True)
        ).rstrip()
        say(text if room is None else cut(text, room))


def say_section(name: str, forms: Sequence[dict[str, Any]]) -> None:
    """Print ``forms``, which have the same fields, as a table with a title."""
    say(f"\n{name}" if forms else f"\nno {name}")
    if forms:
        say_table(list(forms[0]), [list(form.values()) for form in forms])


def cell(value: Any) -> str:
    """A value of a table, on one line."""
    if value is None:
        return ""
    if isinstance(value, str):
        return visible(value)
    return visible(json.dumps(value, ensure_ascii=False))


def cut(text: str, room: int) -> str:
    """``text`` in at most ``room`` columns, the end replaced by … where it is longer."""
    if _width(text) <= room:
        return text
    kept = ""
    for character in text:
        if _width(kept + character) >= room:
            break
        kept += character
    return kept + "…"


def _width(text: str) -> int:
    """Columns that ``text`` takes on a terminal: East Asian wide characters take two."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def moment(value: float | None) -> str | None:
    """Wall seconds as UTC; a number that no calendar has stays a number."""
    if value is None:
        return None
    try:
        at = datetime.fromtimestamp(value, UTC)
    except (OverflowError, ValueError, OSError):
        return repr(value)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")

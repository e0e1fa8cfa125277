"""The first moments of the command ``durakit``, while it is being loaded.

Loading takes longer than pressing a key, and Python answers Ctrl-C there with a traceback. So the
package imports this first. Where durakit is no command but a library, nothing is done.
"""

from __future__ import annotations

import sys
from pathlib import PurePath
from types import TracebackType


def is_command() -> bool:
    """Whether this process is ``durakit …`` or ``python -m durakit …``."""
    called = (*sys.argv, "")[0]
    if called == "-m":  # while a module is looked for, only the words given to Python name it
        return ("-m", "durakit") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    return PurePath(called).stem == "durakit"


def _told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("durakit: interrupted\n")
    else:
        sys.__excepthook__(kind, error, trace)


if is_command():
    sys.excepthook = _told

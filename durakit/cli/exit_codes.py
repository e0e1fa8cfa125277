"""What the exit code of a command says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

OK: Final = 0
NEEDS_A_PERSON: Final = 1
UNUSABLE: Final = 2
INTERRUPTED: Final = 130
NO_READER: Final = 141

#: The end of every `--help`.
EXIT_CODES: Final = """\
exit codes:
  0    all is well
  1    something needs a person: a run is parked (needs_decision) or failed, or could not be
       driven; a sweep found a bad verdict, or lint a mistake
  2    wrong usage, or a file that cannot be used (it was left as it was)
  130  interrupted from the keyboard (141: whoever read the output has gone)
"""

#: Statuses that a person should look at.
_FOR_A_PERSON: Final = ("needs_decision", "failed")


def code_for(statuses: Iterable[str]) -> int:
    """The exit code that runs of these statuses ask for."""
    return NEEDS_A_PERSON if any(status in _FOR_A_PERSON for status in statuses) else OK

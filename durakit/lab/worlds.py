"""What most lessons begin with: customers, a mail service, a runtime, and belief beside truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, cast

from durakit.clock import ManualClock
from durakit.lab.html import SideBySide, Table
from durakit.lab.lessons import find_data
from durakit.mail import Fault, Mailbox
from durakit.run import Run
from durakit.runtime import Runtime

__all__ = ["beside", "customers", "names_for", "new_mailbox", "new_world", "reopen_world"]

CUSTOMERS: Final = Path("data") / "customers.json"


def customers(number: int = 3) -> list[dict[str, Any]]:
    """Return the first customers of ``data/customers.json``: id, name and email.

    Raises FileNotFoundError, saying where to go, where there is no such file.
    """
    listed: list[dict[str, Any]] = json.loads(find_data(CUSTOMERS).read_bytes())
    return listed[:number]


def new_mailbox(folder: Path, profile: str = "opaque", plan: tuple[Fault, ...] = ()) -> Mailbox:
    """Return a mail service with an empty ledger, on a manual clock.

    A folder that was used before is left as it is and the next free name is taken, so that a cell
    can be run again and shows the same.
    """
    return Mailbox(names_for(folder)[-1], profile=profile, clock=ManualClock(), plan=plan)


def new_world(
    folder: Path, profile: str = "opaque", plan: tuple[Fault, ...] = ()
) -> tuple[Mailbox, Runtime]:
    """Return a new mail service and a runtime on its clock, each with a file of its own."""
    return _with_runtime(new_mailbox(folder, profile, plan), names_for(folder)[-2])


def reopen_world(folder: Path, profile: str = "opaque") -> tuple[Mailbox, Runtime]:
    """Open the two files of a world again, as they were left: the latest of that name."""
    home = names_for(folder)[-2]
    return _with_runtime(Mailbox(home, profile=profile, clock=ManualClock()), home)


def _with_runtime(mailbox: Mailbox, home: Path) -> tuple[Mailbox, Runtime]:
    # The clock is a ManualClock; a mailbox knows only that it is some clock.
    clock = cast("ManualClock", mailbox.clock)
    return mailbox, Runtime(home / "runs.db", clock=clock, world=mailbox, owner="lesson")


def names_for(folder: Path) -> list[Path]:
    """Return the used names of a folder, in order, and the first free one."""
    names = [folder]
    while names[-1].exists():
        names.append(folder.with_name(f"{folder.name}-{len(names) + 1}"))
    return names


def beside(run: Run, mailbox: Mailbox) -> SideBySide:
    """Return what the runtime believes about ``run``, beside what the mail service has done."""
    believed = run.operations()[["key", "status", "outcome", "attempts"]].to_dict("records")
    sent = [
        {"mail": mail["id"], "to": mail["to"], "key": effect["key"] or "(none)"}
        for mail, effect in zip(mailbox.inbox(), mailbox.effects(), strict=True)
    ]
    return SideBySide(
        (
            Table(
                f"BELIEF: the runtime's file (the run is {run.status})",
                [{str(name): value for name, value in row.items()} for row in believed],
                "(no record)",
            ),
            Table("TRUTH: the mail service's ledger", sent, "(no mail)"),
        )
    )

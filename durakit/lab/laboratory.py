"""Where a checker works: folders of its own, and the learner's mailbox, borrowed and given back."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from durakit.clock import ManualClock
from durakit.mail import PROFILES, Fault, Mailbox
from durakit.runtime import Runtime


@contextlib.contextmanager
def scratch(what: str) -> Iterator[Path]:
    """A folder that is removed at the end; ``what`` stands in its name.

    A platform that keeps files which are still open may leave some of it behind.
    """
    with tempfile.TemporaryDirectory(prefix=f"durakit-{what}-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@dataclass
class Laboratory:
    """The learner's mailbox, moved to a fresh folder for each trial."""

    mailbox: Mailbox
    folder: Path
    trials: int = 0

    @contextlib.contextmanager
    def world(self, plan: tuple[Fault, ...] = ()) -> Iterator[Runtime]:
        """Open an empty world and a runtime on it."""
        self.trials += 1
        folder = self.folder / str(self.trials)
        self.mailbox.clock = clock = ManualClock()
        self.mailbox.plan = list(plan)
        self.mailbox.fresh(folder)
        with Runtime(
            folder / "runs.db", clock=clock, world=self.mailbox, owner="checker",
            durability="process",
        ) as runtime:  # fmt: skip
            yield runtime


L = TypeVar("L", bound=Laboratory)


@contextlib.contextmanager
def borrowed(mailbox: Mailbox, kind: type[L]) -> Iterator[L]:
    """Use the learner's mailbox in folders of our own, and give it back as it was."""
    home, before = mailbox.folder, (mailbox.clock, mailbox.plan, mailbox.profile)
    mailbox.profile = PROFILES["idempotent"]
    with scratch("exercise") as folder:
        try:
            # What the learner's code prints is of no use a dozen times over.
            with contextlib.redirect_stdout(io.StringIO()):
                yield kind(mailbox, folder)
        finally:
            mailbox.clock, mailbox.plan, mailbox.profile = before
            if home is None:
                mailbox.close()
            else:
                mailbox.fresh(home)

"""The learner's own mailbox, borrowed by a checker for its trials and then given back."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from durakit.clock import ManualClock
from durakit.define import Tool, Workflow
from durakit.lab.exercises import Finding, todo, wrong
from durakit.mail import PROFILES, Fault, Mailbox
from durakit.runtime import Runtime


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
    with tempfile.TemporaryDirectory(
        prefix="durakit-exercise-", ignore_cleanup_errors=True
    ) as folder:
        try:
            # What the learner's code prints is of no use a dozen times over.
            with contextlib.redirect_stdout(io.StringIO()):
                yield kind(mailbox, Path(folder))
        finally:
            mailbox.clock, mailbox.plan, mailbox.profile = before
            if home is None:
                mailbox.close()
            else:
                mailbox.fresh(home)


def handed_over(workflow: object, mailbox: object) -> tuple[Workflow, Mailbox] | Finding:
    """The learner's workflow and its mailbox, or what is to be said where they are not that."""
    if isinstance(workflow, Tool):
        return wrong("You handed over the tool. Hand over the workflow that calls it.")
    if not isinstance(workflow, Workflow):
        return wrong(
            "The first thing to hand over is your workflow: the function below @dk.workflow, "
            f"by its name and without brackets. This is a {type(workflow).__name__}."
        )
    if not isinstance(mailbox, Mailbox):
        return wrong("The second thing to hand over is the mailbox that your tool sends to.")
    code = getattr(workflow.function, "__code__", None)
    if code is not None and ... in code.co_consts:
        return todo("Put an operation key in the place of the three dots, then check again.")
    return workflow, mailbox

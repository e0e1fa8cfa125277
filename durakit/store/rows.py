"""The rows of the tables, as values; ``schema.sql`` explains every column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

OPEN_STATUSES = ("running", "waiting", "needs_decision")
FINAL_STATUSES = ("completed", "failed", "cancelled")


class Entry(NamedTuple):
    """One journal entry, as saved."""

    seq: int
    kind: str
    step: str | None
    key: str | None
    attempt: int | None
    token: int
    time: float
    payload: str


class RunRow(NamedTuple):
    """One row of ``run``; see schema.sql for every column."""

    run: int
    account: str
    id: str
    workflow: str
    version: int
    source: str
    arguments: str
    created: float
    deadline: float | None
    status: str
    seq: int
    digest: bytes
    explained: int | None
    token: int
    owner: str | None
    leased: float | None
    claims: int
    commands: int
    wake: float | None = None


SELECT_RUN = "SELECT " + ", ".join(RunRow._fields) + " FROM run"


class OperationRow(NamedTuple):
    """One row of ``operation``, with the lease of the run that drove it last."""

    account: str
    tool: str
    key: str
    arguments: str
    contract: str
    status: str
    attempts: int
    first_sent: float
    sent: float
    not_before: float | None
    run: int
    token: int
    reply: int | None
    kept: str | None
    run_id: str | None
    owner: str | None
    leased: float | None
    run_token: int | None


SELECT_OPERATION = """
SELECT o.account, o.tool, o.key, o.arguments, o.contract, o.status, o.attempts, o.first_sent,
       o.sent, o.not_before, o.run, o.token, o.reply, o.kept, r.id, r.owner, r.leased, r.token
  FROM operation AS o LEFT JOIN run AS r ON r.run = o.run
"""


class Command(NamedTuple):
    """A wish that waits for the driver; ``payload`` is JSON."""

    command: int
    kind: str
    payload: str
    time: float


@dataclass(eq=False, repr=False)
class Lease:
    """The right to append to one run: held by one incarnation, checked by its ``token``.

    ``leased`` is the end of the lease as the disk has it (wall seconds), ``length`` what a
    renewal adds; ``claims``: claims since progress was last saved, this one counted.
    """

    run: int
    token: int
    owner: str
    seq: int
    digest: bytes
    leased: float
    length: float
    claims: int = 1


class Change(NamedTuple):
    """What an entry does to its operation, in the same transaction.

    ``was`` is the (status, attempts) that the driver has seen; None inserts a new row. If the
    row is another by now, nothing is written and OperationMoved is raised.
    """

    account: str
    tool: str
    key: str
    arguments: str
    contract: str
    status: str
    attempts: int
    sent: float
    not_before: float | None
    was: tuple[str, int] | None
    concludes: bool = False


class Saved(NamedTuple):
    """An entry that is written together with another one, just before it."""

    kind: str
    step: str | None
    payload: str
    time: float


class CheckpointRow(NamedTuple):
    """Where one of a machine's checkpoints is; see migrations/0002."""

    seq: int
    transition: int
    whole: int


class Claimed(NamedTuple):
    """A run that is now ours, with everything saved about it."""

    row: RunRow
    lease: Lease
    entries: list[Entry]
    parked: bool


class OperationMoved(Exception):
    """The operation's row is not the one the driver has seen; look again and decide anew."""

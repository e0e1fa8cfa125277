"""The SQLite store. Its tables are explained in ``schema.sql``; its methods are verbs.

Every write goes through one transaction helper, which rolls back on any exception.

Read in this order: ``rows`` (what the tables hold), ``chain`` (how entries are linked),
``database`` (the file and its transactions), ``journal`` (append and read), ``retention``, and
``store``, which has the verbs.
"""

from durakit.store.database import Database, known
from durakit.store.rows import (
    FINAL_STATUSES,
    OPEN_STATUSES,
    Change,
    CheckpointRow,
    Claimed,
    Command,
    Entry,
    Lease,
    OperationMoved,
    OperationRow,
    RunRow,
    Saved,
)
from durakit.store.store import CLAIM_LIMIT, Store

__all__ = [
    "CLAIM_LIMIT", "FINAL_STATUSES", "OPEN_STATUSES", "Change", "CheckpointRow", "Claimed",
    "Command", "Database", "Entry", "Lease", "OperationMoved", "OperationRow", "RunRow", "Saved",
    "Store", "known",
]  # fmt: skip

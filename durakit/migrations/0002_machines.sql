-- What machines, timers and the cross-run store need.

-- Until when a waiting run sleeps (wall seconds); NULL: only a signal or a command ends the wait.
ALTER TABLE run ADD COLUMN wake REAL;

-- Where a machine's checkpoints are in its journal. The state itself is in the entries: `whole`
-- names the entry that holds a complete state (a snapshot), this entry's own number or an earlier
-- one; the entries of kind checkpoint after it, up to this one, hold what changed since. Snapshots
-- come when the changes since the last one weigh as much as the state itself, so that the file
-- grows in a straight line and loading reads one snapshot and the changes after it.
CREATE TABLE checkpoint (
    run        INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    transition INTEGER NOT NULL,        -- how many transitions the state has behind it
    whole      INTEGER NOT NULL,
    PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;

-- Values that outlive runs: the second level of persistence, with rules and retention of its own.
-- It shares this file, and nothing else, with the runs.
-- The row of the empty key, which nobody can use, holds the highest version that was pruned.
CREATE TABLE store_item (
    account   TEXT NOT NULL,            -- who owns the namespace
    namespace TEXT NOT NULL,
    key       TEXT NOT NULL,
    version   INTEGER NOT NULL,         -- 1, 2, …; goes on after a delete
    value     TEXT,                     -- ASCII JSON; NULL = deleted
    written   REAL NOT NULL,
    expires   REAL,                     -- NULL = never
    PRIMARY KEY (account, namespace, key)
) STRICT;

-- Which other accounts may read or write a namespace; without a row nobody but its owner may.
CREATE TABLE store_rule (
    account   TEXT NOT NULL,
    namespace TEXT NOT NULL,
    other     TEXT NOT NULL,
    may       TEXT NOT NULL CHECK (may IN ('read', 'write')),
    PRIMARY KEY (account, namespace, other)
) STRICT, WITHOUT ROWID;

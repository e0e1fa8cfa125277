-- durakit's file: what a run has done so far, so that another process can go on with it.
--
-- Read top to bottom, this is the whole durable state. Two rules hold everywhere:
--   * only the driver of a run appends to its journal, and each append carries its fencing
--     token: `SELECT … FROM run WHERE run = ? AND token = ?` must find a row in the same
--     transaction, or the lease is lost and nothing is written;
--   * the journal is append-only: triggers refuse UPDATE, and DELETE outside of pruning.
-- Times are wall seconds since 1970-01-01 UTC. Texts are UTF-8, payloads ASCII JSON.

-- One row per migration that built this file; `clock` is the kind of clock that drives it
-- (system or manual): times of the two cannot be compared, so the other kind may only read.
CREATE TABLE schema_version (
    version INTEGER PRIMARY KEY,
    clock   TEXT NOT NULL
) STRICT;

-- One execution of a workflow. The upper half never changes; the lower half is the only part
-- of the file that is overwritten: who drives the run, and where it stands.
CREATE TABLE run (
    run       INTEGER PRIMARY KEY,      -- our own number; the journal refers to it
    account   TEXT NOT NULL,
    id        TEXT NOT NULL,            -- chosen by the caller; unique in its account
    workflow  TEXT NOT NULL,            -- name of the workflow
    version   INTEGER NOT NULL,         -- its declared version
    source    TEXT NOT NULL,            -- digest of its source when the run was saved
    arguments TEXT NOT NULL,            -- digest of the arguments (they are in entry 1)
    created   REAL NOT NULL,
    deadline  REAL,                     -- end of the session; NULL = none

    status    TEXT NOT NULL CHECK (status IN
              ('running', 'waiting', 'needs_decision', 'completed', 'failed', 'cancelled')),
    seq       INTEGER NOT NULL,         -- the last journal entry when this row was written
    digest    BLOB NOT NULL,            -- its digest: so far at least the chain must reach
    explained INTEGER,                  -- the entry that explains a status other than running;
                                        -- -1 in the transaction that prunes the run
    token     INTEGER NOT NULL DEFAULT 0,   -- fencing token: grows by one with every claim
    owner     TEXT,                     -- holder of the lease; NULL = nobody
    leased    REAL,                     -- the lease ends here
    claims    INTEGER NOT NULL DEFAULT 0,   -- claims since an append last saved progress
    commands  INTEGER NOT NULL DEFAULT 0,   -- commands that wait for the driver
    UNIQUE (account, id)
) STRICT;

-- Runs that somebody may have to look at; small, because finished runs are not in it.
CREATE INDEX run_open ON run (account, status)
    WHERE status IN ('running', 'waiting', 'needs_decision');

-- The run's append-only record. Everything durable is an entry. kind is one of
--   run      started · claimed · released · parked · waiting · completed · failed · cancelled
--   work     step · checkpoint · limit (a deadline that fired there)
--   call     intent · attempt (it failed, and what follows) · probe · result · late_reply ·
--            resolved · replayed · refused · compensating (its compensation has begun) ·
--            reopened (that was not executed) · compensated · cancel_asked (of the tool's service)
--   wait     timer · timer_fired · waiting_for · received
--   others   cancel_requested · signal (a command, consumed)
-- `digest` is SHA-256 over the digest of the entry before (for the first entry: over the upper
-- half of its run's row) and this row: a chain, so that an altered, missing or added row shows.
-- (It detects damage and clumsy edits; somebody who can write the file can also compute digests.)
--
-- `place` is run * 2^32 + seq: one number that is both the order and the address, so that a run's
-- entries lie side by side and no second index has to be written with every append.
CREATE TABLE journal (
    place   INTEGER PRIMARY KEY,
    run     INTEGER GENERATED ALWAYS AS (place >> 32) VIRTUAL,
    seq     INTEGER GENERATED ALWAYS AS (place & 4294967295) VIRTUAL,   -- 1, 2, … in the run
    kind    TEXT NOT NULL,
    step    TEXT,                       -- step or tool
    key     TEXT,                       -- operation key
    attempt INTEGER,
    token   INTEGER NOT NULL,           -- the incarnation that wrote it; 0 = before any claim
    time    REAL NOT NULL,
    payload TEXT NOT NULL,
    digest  BLOB NOT NULL
) STRICT;

CREATE TRIGGER journal_is_append_only BEFORE UPDATE ON journal
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;

-- Pruning first marks the run (explained = -1) in the same transaction.
CREATE TRIGGER journal_is_kept BEFORE DELETE ON journal
WHEN (SELECT explained FROM run WHERE run.run = OLD.run) IS NOT -1
BEGIN SELECT RAISE(ABORT, 'journal entries are removed by prune() only'); END;

-- One row per logical operation, for the whole file and not per run: a second run, or a fork,
-- that comes with the same key meets it here. Where the reply is saved is in (run, reply);
-- when that run is pruned, the reply moves into `kept` (its SHA-256, then itself) and run is 0.
CREATE TABLE operation (
    account    TEXT NOT NULL,
    tool       TEXT NOT NULL,
    key        TEXT NOT NULL,
    arguments  TEXT NOT NULL,           -- digest of the first attempt's arguments
    contract   TEXT NOT NULL,           -- none · idempotent · queryable · opaque
    status     TEXT NOT NULL CHECK (status IN
               ('DISPATCHED', 'RESENT', 'REFUSED', 'SUCCEEDED', 'FAILED')),
    attempts   INTEGER NOT NULL,
    first_sent REAL NOT NULL,           -- first intent; the key's window counts from here
    sent       REAL NOT NULL,           -- latest intent
    not_before REAL,                    -- a drawn wait ends here
    run        INTEGER NOT NULL,        -- the run that drove it last
    token      INTEGER NOT NULL,        -- and its incarnation
    reply      INTEGER,                 -- journal entry with the reply or final error
    kept       TEXT,
    PRIMARY KEY (account, tool, key)
) STRICT, WITHOUT ROWID;

-- What others than the driver want of a run: resolve, cancel, signal, late_reply. The driver consumes
-- a command by appending an entry of the same meaning; the row then names that entry.
CREATE TABLE command (
    command INTEGER PRIMARY KEY,
    run     INTEGER NOT NULL REFERENCES run,
    kind    TEXT NOT NULL,
    payload TEXT NOT NULL,
    time    REAL NOT NULL,
    entry   INTEGER                     -- journal seq that consumed it; NULL = waiting
) STRICT;

CREATE INDEX command_waiting ON command (run) WHERE entry IS NULL;

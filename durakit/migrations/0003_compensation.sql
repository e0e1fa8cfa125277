-- An unknown operation may be compensated: nobody learned whether it was executed, and what it may
-- have done is undone. That is a status of its own. SQLite changes a CHECK only by writing the
-- table anew.
CREATE TABLE operation_3 (
    account    TEXT NOT NULL,
    tool       TEXT NOT NULL,
    key        TEXT NOT NULL,
    arguments  TEXT NOT NULL,           -- digest of the first attempt's arguments
    contract   TEXT NOT NULL,           -- none · idempotent · queryable · opaque
    status     TEXT NOT NULL CHECK (status IN
               ('DISPATCHED', 'RESENT', 'REFUSED', 'SUCCEEDED', 'FAILED', 'COMPENSATED')),
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

INSERT INTO operation_3 SELECT * FROM operation;

DROP TABLE operation;

ALTER TABLE operation_3 RENAME TO operation;

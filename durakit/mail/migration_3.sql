-- From version 2 to 3: senders. Run in one transaction.
-- Version 2 threw the sender away. So the mails that are out have none here, and what a key stands
-- for was compared without it: `content` is NULL, and any sender equals it, since a retry of the
-- same request must not be told that it is another one. A request on its way acts as one without.

ALTER TABLE mail ADD COLUMN sender TEXT;

ALTER TABLE dedup RENAME TO old_dedup;

CREATE TABLE dedup (
    account  TEXT NOT NULL,
    tool     TEXT NOT NULL,
    key      TEXT NOT NULL,
    digest   TEXT NOT NULL,
    content  TEXT,
    state    TEXT NOT NULL CHECK (state IN ('in progress', 'unfinished', 'finished')),
    holder   INTEGER NOT NULL,
    since    REAL NOT NULL,
    mails    TEXT NOT NULL,
    answer   TEXT,
    first    REAL,
    expires  REAL NOT NULL,
    PRIMARY KEY (account, tool, key),
    CHECK ((state = 'finished') = (answer IS NOT NULL))
) STRICT;

INSERT INTO dedup (account, tool, key, digest, state, holder, since, mails, answer, first, expires)
SELECT account, tool, key, digest, state, holder, since, mails, answer, first, expires
FROM old_dedup;

DROP TABLE old_dedup;

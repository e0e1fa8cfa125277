-- From version 1 to 2: accounts and tools, keys in progress, batches. Run in one transaction.
-- What a ledger of version 1 holds belongs to the account 'default'. The tool of a key is that of
-- the key's mail; that of a fence or of a request on its way was not noted, and is :tool, the name
-- of the mailbox that opens the ledger.

ALTER TABLE request ADD COLUMN account TEXT;
UPDATE request SET account = 'default';

ALTER TABLE mail ADD COLUMN account TEXT NOT NULL DEFAULT 'default';
DROP INDEX mail_by_key;
CREATE INDEX mail_of_a_key ON mail (account, tool, key);

ALTER TABLE dedup RENAME TO old_dedup;
ALTER TABLE fence RENAME TO old_fence;
ALTER TABLE held RENAME TO old_held;

CREATE TABLE dedup (
    account  TEXT NOT NULL,
    tool     TEXT NOT NULL,
    key      TEXT NOT NULL,
    digest   TEXT NOT NULL,
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

CREATE TABLE fence (
    account  TEXT NOT NULL,
    tool     TEXT NOT NULL,
    key      TEXT NOT NULL,
    highest  INTEGER NOT NULL,
    PRIMARY KEY (account, tool, key)
) STRICT;

CREATE TABLE held (
    request  INTEGER PRIMARY KEY REFERENCES request (number),
    due      REAL NOT NULL,
    account  TEXT NOT NULL,
    tool     TEXT NOT NULL,
    key      TEXT,
    fence    INTEGER,
    batch    INTEGER NOT NULL,
    letters  TEXT NOT NULL
) STRICT;

INSERT INTO dedup (account, tool, key, digest, state, holder, since, mails, answer, first, expires)
SELECT 'default', mail.tool, old.key, old.digest, 'finished',
       coalesce((SELECT number FROM request WHERE mail = old.mail AND outcome = 'delivered'), 0),
       old.first, json_array(old.mail),
       json_object('status', 200, 'body', json_object('id', 'email-' || old.mail)),
       old.first, old.expires
FROM old_dedup AS old JOIN mail ON mail.number = old.mail;

INSERT INTO fence (account, tool, key, highest)
SELECT 'default', :tool, key, highest FROM old_fence;

INSERT INTO held (request, due, account, tool, key, fence, batch, letters)
SELECT request, due, 'default', :tool, key, fence, 0,
       json_array(json_array(recipient, subject, body))
FROM old_held;

DROP TABLE old_dedup;
DROP TABLE old_fence;
DROP TABLE old_held;

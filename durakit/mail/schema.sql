-- The ledger of the mail service: somebody else's database, and the referee of every experiment.
-- All times are UTC seconds on the service's clock. Journal mode WAL with synchronous NORMAL: what
-- is committed survives a killed process (that is what the lessons kill), not a power cut.
-- `account`: whose it is. `tool`: which tool of that account. The same key in another account or
-- of another tool is another operation.
--
-- request  Every request that reached the service, in order of arrival. `number` is taken, and
--          committed, before anything else happens. `outcome` stays 'received' when the request
--          was lost there (its caller or the service died); else it becomes 'claimed', 'held',
--          'lost', 'delivered', 'completed', 'replayed', 'refused <status>' or 'failed <status>'.
--          `fault`: what was planned for it. `mail`: the first mail it was answered with.
--          `account` is NULL where nobody knew the token.
-- mail     One row per mail delivered: the customers' inbox and the ledger of effects in one.
--          Append-only: two triggers refuse update and delete. Its id is 'email-<number>'.
--          `sender` is NULL where none was given. `digest`: sha256 hex of the canonical JSON of
--          to, subject and body, and of from where there is one.
-- dedup    The keys that the service remembers. The primary key is what stops duplicates.
--          `state` 'in progress': the request `holder` has claimed the key, at `since`, and has
--          not acted. 'unfinished': it failed, and the next request is to go on with `mails`.
--          'finished': `answer` (JSON) is what a replay is told; written in the transaction that
--          writes the mails. `digest`: of the whole request; `content`: of the same without its
--          senders, or NULL where `digest` is that (before version 3). `mails`: JSON list of
--          numbers. `first`: when it was executed. A row past `expires` is forgotten: it stays
--          readable until the key is used again or the expired ones are dropped.
-- fence    The highest fencing token seen with each key, for profiles that check it.
-- held     Requests accepted but delayed on the way. At `due` they act like any other request; the
--          row goes in the same transaction. `letters`: JSON list of [to, subject, body, from],
--          before version 3 without the last.

BEGIN IMMEDIATE;

CREATE TABLE IF NOT EXISTS request (
    number   INTEGER PRIMARY KEY,
    key      TEXT,
    fault    TEXT,
    outcome  TEXT NOT NULL DEFAULT 'received',
    mail     INTEGER REFERENCES mail (number),
    time     REAL NOT NULL,
    account  TEXT
) STRICT;

CREATE TABLE IF NOT EXISTS mail (
    number     INTEGER PRIMARY KEY,
    tool       TEXT NOT NULL,
    recipient  TEXT NOT NULL,
    subject    TEXT NOT NULL,
    body       TEXT NOT NULL,
    key        TEXT,
    digest     TEXT NOT NULL,
    time       REAL NOT NULL,
    account    TEXT NOT NULL DEFAULT 'default',
    sender     TEXT
) STRICT;

CREATE INDEX IF NOT EXISTS mail_of_a_key ON mail (account, tool, key);

CREATE TRIGGER IF NOT EXISTS mail_is_never_changed BEFORE UPDATE ON mail
BEGIN SELECT RAISE (ABORT, 'a delivered mail cannot be changed'); END;

CREATE TRIGGER IF NOT EXISTS mail_is_never_taken_back BEFORE DELETE ON mail
BEGIN SELECT RAISE (ABORT, 'a delivered mail cannot be taken back'); END;

CREATE TABLE IF NOT EXISTS dedup (
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

CREATE TABLE IF NOT EXISTS fence (
    account  TEXT NOT NULL,
    tool     TEXT NOT NULL,
    key      TEXT NOT NULL,
    highest  INTEGER NOT NULL,
    PRIMARY KEY (account, tool, key)
) STRICT;

CREATE TABLE IF NOT EXISTS held (
    request  INTEGER PRIMARY KEY REFERENCES request (number),
    due      REAL NOT NULL,
    account  TEXT NOT NULL,
    tool     TEXT NOT NULL,
    key      TEXT,
    fence    INTEGER,
    batch    INTEGER NOT NULL,
    letters  TEXT NOT NULL
) STRICT;

PRAGMA application_id = 1684761964;  -- 'dkml'
PRAGMA user_version = 3;

COMMIT;

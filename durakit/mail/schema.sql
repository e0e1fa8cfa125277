-- The ledger of the mail service: somebody else's database, and the referee of every experiment.
-- All times are UTC seconds on the service's clock. Journal mode WAL with synchronous NORMAL: what
-- is committed survives a killed process (that is what the lessons kill), not a power cut.
--
-- request  Every request that reached the service, in order of arrival. `number` is taken, and
--          committed, before anything else happens. `outcome` stays 'received' when the request
--          was lost there (its caller or the service died); else it becomes 'held', 'lost',
--          'delivered', 'replayed', 'refused <status>' or 'failed <status>'. `fault`: what was
--          planned for it. `mail`: the mail it was answered with.
-- mail     One row per mail delivered: the customers' inbox and the ledger of effects in one.
--          Append-only: two triggers refuse update and delete. Its id is 'email-<number>'.
--          `digest`: sha256 hex of the canonical JSON of to, subject and body.
-- dedup    The keys an idempotent profile remembers. Written in the transaction that writes the
--          mail; the primary key is what stops concurrent duplicates. A row past `expires` is
--          forgotten: it stays readable until the key is used again, and then it is overwritten.
-- fence    The highest fencing token seen with each key, for profiles that check it.
-- held     Requests accepted but delayed on the way. At `due` they act like any other request; the
--          row goes in the same transaction.

BEGIN IMMEDIATE;

CREATE TABLE IF NOT EXISTS request (
    number   INTEGER PRIMARY KEY,
    key      TEXT,
    fault    TEXT,
    outcome  TEXT NOT NULL DEFAULT 'received',
    mail     INTEGER REFERENCES mail (number),
    time     REAL NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS mail (
    number     INTEGER PRIMARY KEY,
    tool       TEXT NOT NULL,
    recipient  TEXT NOT NULL,
    subject    TEXT NOT NULL,
    body       TEXT NOT NULL,
    key        TEXT,
    digest     TEXT NOT NULL,
    time       REAL NOT NULL
) STRICT;

CREATE INDEX IF NOT EXISTS mail_by_key ON mail (key);

CREATE TRIGGER IF NOT EXISTS mail_is_never_changed BEFORE UPDATE ON mail
BEGIN SELECT RAISE (ABORT, 'a delivered mail cannot be changed'); END;

CREATE TRIGGER IF NOT EXISTS mail_is_never_taken_back BEFORE DELETE ON mail
BEGIN SELECT RAISE (ABORT, 'a delivered mail cannot be taken back'); END;

CREATE TABLE IF NOT EXISTS dedup (
    key      TEXT PRIMARY KEY,
    digest   TEXT NOT NULL,
    mail     INTEGER NOT NULL REFERENCES mail (number),
    first    REAL NOT NULL,
    expires  REAL NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS fence (
    key      TEXT PRIMARY KEY,
    highest  INTEGER NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS held (
    request    INTEGER PRIMARY KEY REFERENCES request (number),
    due        REAL NOT NULL,
    recipient  TEXT NOT NULL,
    subject    TEXT NOT NULL,
    body       TEXT NOT NULL,
    key        TEXT,
    fence      INTEGER
) STRICT;

PRAGMA application_id = 1684761964;  -- 'dkml'
PRAGMA user_version = 1;

COMMIT;

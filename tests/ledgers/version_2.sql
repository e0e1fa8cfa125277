-- A ledger of version 2, as the code of that version has left it: keys that are finished, half
-- done, claimed and on their way, a fence, and a mail without a key. All were sent over HTTP with
-- the sender shop@example.org, which that version did not keep.
BEGIN TRANSACTION;
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
INSERT INTO "dedup" VALUES('default','send_email','done','add624b5c854818bc792eb0452fb7dcbe6c6c09a1e5c11bcfee1d67deb1cd980','finished',1,1700000000.0,'[1]','{"status": 200, "body": {"id": "email-1"}, "headers": {}, "name": null, "type": null, "message": null}',1700000000.0,1702592000.0);
INSERT INTO "dedup" VALUES('default','send_email','half','8136ffc976de184f9ece7f5e1cba63c864c6d195084405e145a23fa02cca3751','unfinished',3,1700000000.0,'[2]',NULL,NULL,1702592000.0);
INSERT INTO "dedup" VALUES('default','send_email','claimed','a0e1d17ece9df4a3f93cbc51e77f5f34f8301c132314a277a1960552ac03a62a','in progress',5,1700000000.0,'[]',NULL,NULL,1702592000.0);
INSERT INTO "dedup" VALUES('default','send_email','fenced','a0e1d17ece9df4a3f93cbc51e77f5f34f8301c132314a277a1960552ac03a62a','finished',6,1700000000.0,'[3]','{"status": 200, "body": {"id": "email-3"}, "headers": {}, "name": null, "type": null, "message": null}',1700000000.0,1700086400.0);
CREATE TABLE fence (
    account  TEXT NOT NULL,
    tool     TEXT NOT NULL,
    key      TEXT NOT NULL,
    highest  INTEGER NOT NULL,
    PRIMARY KEY (account, tool, key)
) STRICT;
INSERT INTO "fence" VALUES('default','send_email','fenced',7);
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
INSERT INTO "held" VALUES(4,1700000060.0,'default','send_email','late',7,0,'[["eve@example.org", "Welcome", "Hello Eve"]]');
CREATE TABLE mail (
    number     INTEGER PRIMARY KEY,
    tool       TEXT NOT NULL,
    recipient  TEXT NOT NULL,
    subject    TEXT NOT NULL,
    body       TEXT NOT NULL,
    key        TEXT,
    digest     TEXT NOT NULL,
    time       REAL NOT NULL,
    account    TEXT NOT NULL DEFAULT 'default'
) STRICT;
INSERT INTO "mail" VALUES(1,'send_email','ada@example.org','Welcome','Hello Ada','done','add624b5c854818bc792eb0452fb7dcbe6c6c09a1e5c11bcfee1d67deb1cd980',1700000000.0,'default');
INSERT INTO "mail" VALUES(2,'send_email','ada@example.org','Welcome','Hello Ada','half','add624b5c854818bc792eb0452fb7dcbe6c6c09a1e5c11bcfee1d67deb1cd980',1700000000.0,'default');
INSERT INTO "mail" VALUES(3,'send_email','eve@example.org','Welcome','Hello Eve','fenced','a0e1d17ece9df4a3f93cbc51e77f5f34f8301c132314a277a1960552ac03a62a',1700000000.0,'default');
INSERT INTO "mail" VALUES(4,'send_email','eve@example.org','Welcome','Hello Eve',NULL,'a0e1d17ece9df4a3f93cbc51e77f5f34f8301c132314a277a1960552ac03a62a',1700000000.0,'default');
CREATE TABLE request (
    number   INTEGER PRIMARY KEY,
    key      TEXT,
    fault    TEXT,
    outcome  TEXT NOT NULL DEFAULT 'received',
    mail     INTEGER REFERENCES mail (number),
    time     REAL NOT NULL,
    account  TEXT
) STRICT;
INSERT INTO "request" VALUES(1,'done',NULL,'delivered',1,1700000000.0,'default');
INSERT INTO "request" VALUES(2,'done',NULL,'replayed',1,1700000000.0,'default');
INSERT INTO "request" VALUES(3,'half','error_midway','delivered',2,1700000000.0,'default');
INSERT INTO "request" VALUES(4,'late','request_late','held',NULL,1700000000.0,'default');
INSERT INTO "request" VALUES(5,'claimed',NULL,'claimed',NULL,1700000000.0,'default');
INSERT INTO "request" VALUES(6,'fenced',NULL,'delivered',3,1700000000.0,'default');
INSERT INTO "request" VALUES(7,NULL,NULL,'delivered',4,1700000000.0,'default');
CREATE INDEX mail_of_a_key ON mail (account, tool, key);
CREATE TRIGGER mail_is_never_changed BEFORE UPDATE ON mail
BEGIN SELECT RAISE (ABORT, 'a delivered mail cannot be changed'); END;
CREATE TRIGGER mail_is_never_taken_back BEFORE DELETE ON mail
BEGIN SELECT RAISE (ABORT, 'a delivered mail cannot be taken back'); END;
COMMIT;
PRAGMA application_id = 1684761964;
PRAGMA user_version = 2;
PRAGMA journal_mode = WAL;

-- A ledger of version 1: two mails of one key each, a fence, and a request on its way.
BEGIN TRANSACTION;
CREATE TABLE dedup (
    key TEXT PRIMARY KEY, digest TEXT NOT NULL, mail INTEGER NOT NULL REFERENCES mail (number),
    first REAL NOT NULL, expires REAL NOT NULL
) STRICT;
INSERT INTO "dedup" VALUES('k1','cd0c01ed790f61c40d0598a1bfdb89962d3fd1830e669d4b11784b8ab2961b65',1,1700000000.0,1700086400.0);
INSERT INTO "dedup" VALUES('k2','a0e1d17ece9df4a3f93cbc51e77f5f34f8301c132314a277a1960552ac03a62a',2,1700000000.0,1700086400.0);
CREATE TABLE fence (key TEXT PRIMARY KEY, highest INTEGER NOT NULL) STRICT;
INSERT INTO "fence" VALUES('k9',7);
CREATE TABLE held (
    request INTEGER PRIMARY KEY REFERENCES request (number), due REAL NOT NULL,
    recipient TEXT NOT NULL, subject TEXT NOT NULL, body TEXT NOT NULL, key TEXT, fence INTEGER
) STRICT;
INSERT INTO "held" VALUES(4,1700000060.0,'ada@example.org','Welcome','Hello Ada
and welcome','k3',NULL);
CREATE TABLE mail (
    number INTEGER PRIMARY KEY, tool TEXT NOT NULL, recipient TEXT NOT NULL, subject TEXT NOT NULL,
    body TEXT NOT NULL, key TEXT, digest TEXT NOT NULL, time REAL NOT NULL
) STRICT;
INSERT INTO "mail" VALUES(1,'send_email','ada@example.org','Welcome','Hello Ada
and welcome','k1','cd0c01ed790f61c40d0598a1bfdb89962d3fd1830e669d4b11784b8ab2961b65',1700000000.0);
INSERT INTO "mail" VALUES(2,'send_email','eve@example.org','Welcome','Hello Eve','k2','a0e1d17ece9df4a3f93cbc51e77f5f34f8301c132314a277a1960552ac03a62a',1700000000.0);
CREATE TABLE request (
    number INTEGER PRIMARY KEY, key TEXT, fault TEXT, outcome TEXT NOT NULL DEFAULT 'received',
    mail INTEGER REFERENCES mail (number), time REAL NOT NULL
) STRICT;
INSERT INTO "request" VALUES(1,'k1',NULL,'delivered',1,1700000000.0);
INSERT INTO "request" VALUES(2,'k1',NULL,'replayed',1,1700000000.0);
INSERT INTO "request" VALUES(3,'k2','reply_lost','delivered',2,1700000000.0);
INSERT INTO "request" VALUES(4,'k3','request_late','held',NULL,1700000000.0);
CREATE INDEX mail_by_key ON mail (key);
CREATE TRIGGER mail_is_never_changed BEFORE UPDATE ON mail
BEGIN SELECT RAISE (ABORT, 'a delivered mail cannot be changed'); END;
CREATE TRIGGER mail_is_never_taken_back BEFORE DELETE ON mail
BEGIN SELECT RAISE (ABORT, 'a delivered mail cannot be taken back'); END;
COMMIT;
PRAGMA application_id = 1684761964;
PRAGMA user_version = 1;
PRAGMA journal_mode = WAL;

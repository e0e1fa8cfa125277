"""The ledger's file: what it refuses, what one transaction holds, and files of older versions."""

import contextlib
import itertools
import json
import os
import shutil
import sqlite3
import stat
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from mailroom import (
    ADA,
    EVE,
    KEYED,
    KEYLESS,
    MAIL,
    START,
    ManualClock,
    Stop,
    asked,
    mailboxes,
    run_child,
    says,
    sent,
)

from durakit.mail import PROFILES, Fault, Letter, Mailbox
from durakit.mail import ledger as ledger_module
from durakit.mail.ledger import SCHEMA_VERSION


@pytest.fixture
def clock():
    """A clock at START."""
    return ManualClock()


@pytest.fixture
def new(tmp_path, clock):
    """Make mailboxes in this test's folder and on its clock."""
    with mailboxes(tmp_path, clock=clock, latency=0) as make:
        yield make


# ── the file ──────────────────────────────────────────────────────────────────────────────────────


def test_a_ledger_is_opened_and_an_empty_folder_is_an_empty_world(new, tmp_path):
    """Going back to a folder finds its mails; ids start anew in a new one."""
    mailbox = new()
    mailbox.send(*MAIL, key="k")
    mailbox.fresh(tmp_path / "new" / "world")
    assert mailbox.effects() == []
    assert sent(mailbox, *MAIL, key="k") == {"id": "email-1", "replayed": False}
    mailbox.fresh(tmp_path)
    assert sent(mailbox, *MAIL, key="k")["replayed"]


def test_the_ledger_is_readable_by_its_owner_only(new, tmp_path):
    """Also the files beside it."""
    mailbox = new()
    mailbox.send(*MAIL)
    files = sorted(tmp_path.glob("mail.db*"))
    assert files[0].name == "mail.db"
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_no_mail_is_taken_back(new, tmp_path):
    """Update and delete of a delivered mail are refused by the file itself."""
    new().send(*MAIL)
    db = sqlite3.connect(tmp_path / "mail.db")
    for statement in ("DELETE FROM mail", "UPDATE mail SET body = ''"):
        with pytest.raises(sqlite3.IntegrityError, match="cannot be"):
            db.execute(statement)
    db.close()


@pytest.mark.parametrize("content", ["text", "other database", "newer ledger"])
def test_a_foreign_file_is_refused_and_left_alone(tmp_path, content):
    """Byte for byte, whatever stands where the ledger should be."""
    path = tmp_path / "mail.db"
    if content == "text":
        path.write_text("Dear diary, " * 500)
    else:
        if content == "newer ledger":
            Mailbox(tmp_path).close()
        db = sqlite3.connect(path)
        db.execute(
            "CREATE TABLE mine (x)"
            if content != "newer ledger"
            else f"PRAGMA user_version={SCHEMA_VERSION + 1}"
        )
        db.close()
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match=r"mail\.db"):
        Mailbox(tmp_path)
    assert path.read_bytes() == before


def test_a_ledger_that_another_process_is_making_is_not_taken_for_a_strangers(
    tmp_path, monkeypatch
):
    """The first look at a file is one look, whatever happens between its parts."""
    real, looks = ledger_module._pragma, []

    def look(db, name):
        found = real(db, name)
        looks.append(name)
        if len(looks) == 1:
            other = sqlite3.connect(tmp_path / "mail.db", timeout=0, isolation_level=None)
            with contextlib.suppress(sqlite3.OperationalError):  # it has to wait for us
                other.executescript(ledger_module._text("schema.sql"))
            other.close()
        return found

    monkeypatch.setattr(ledger_module, "_pragma", look)
    mailbox = Mailbox(tmp_path)
    assert mailbox.effects() == []
    mailbox.close()


@pytest.mark.parametrize("how", ["removed", "replaced", "folder removed"])
def test_a_ledger_that_is_taken_away_is_not_written_to_any_more(how, new, tmp_path):
    """A mail that no ledger will ever know of would be sent again after a restart."""
    mailbox = new("resend")
    mailbox.fresh(tmp_path / "home")
    asked(mailbox, key="before")
    ledger = tmp_path / "home" / "mail.db"
    if how == "replaced":
        Mailbox(tmp_path / "other").close()
        (tmp_path / "other" / "mail.db").replace(ledger)
    elif how == "removed":
        ledger.unlink()
    else:
        shutil.rmtree(ledger.parent)
    for touch in (lambda: asked(mailbox, key="after"), mailbox.effects, mailbox.keys):
        with pytest.raises(RuntimeError, match=r"mail\.db is not the file that was opened"):
            touch()
    assert ledger.exists() == (how == "replaced")
    mailbox.fresh(tmp_path / "home" if how != "replaced" else tmp_path / "new")
    assert asked(mailbox, key="after").status == 200
    assert len(mailbox.effects()) == 1


#: What a clumsy hand leaves in a file's place, its number on the disk being the same.
OVERWRITTEN = {
    "emptied": lambda content: b"",
    "cut in half": lambda content: content[: len(content) // 2],
    "cut after a page": lambda content: content[:4096],
    "noise in front": lambda content: b"noise" * 20 + content[100:],
    "nothing but zeros": lambda content: bytes(len(content)),
    "longer than before": lambda content: b"x" * (2 * len(content)),
}


@pytest.mark.parametrize("forked", [False, True], ids=["open", "after a fork"])
@pytest.mark.parametrize("how", OVERWRITTEN)
def test_a_ledger_that_is_overwritten_in_place_is_not_written_to_any_more(
    how, forked, new, tmp_path
):
    """An open file's log and cache would go on answering, as if nothing had happened."""
    mailbox = new("resend")
    mailbox.fresh(tmp_path / "home")
    asked(mailbox, key="before")
    ledger = tmp_path / "home" / "mail.db"
    if forked:  # then no connection is left, and each side opens its own
        ledger_module._before_fork()
        ledger_module._after_fork()
    left = OVERWRITTEN[how](ledger.read_bytes())
    moment = ledger.stat().st_mtime_ns + 1_000_000_000
    with ledger.open("r+b") as file:
        file.truncate(0)
        file.write(left)
    os.utime(ledger, ns=(moment, moment))
    for touch in (lambda: asked(mailbox, key="after"), mailbox.effects, mailbox.keys):
        with pytest.raises(RuntimeError, match=r"mail\.db was overwritten or cut off"):
            touch()
    assert ledger.read_bytes() == left
    mailbox.fresh(tmp_path / "new")
    assert asked(mailbox, key="after").status == 200
    assert len(mailbox.effects()) == 1


def test_a_header_that_speaks_of_pages_that_are_still_in_the_log_is_no_damage(new, tmp_path):
    """So a process leaves it that is killed while it moves pages there; the log has the rest."""
    mailbox = new("resend")
    asked(mailbox, key="before")
    ledger = mailbox.folder / "mail.db"
    moment = ledger.stat().st_mtime_ns + 1_000_000_000
    with ledger.open("r+b") as file:
        file.seek(28)
        file.write((ledger.stat().st_size // 4096 + 7).to_bytes(4, "big"))
    os.utime(ledger, ns=(moment, moment))
    assert asked(mailbox, key="after").status == 200
    assert len(mailbox.effects()) == 2


#: Sends until the disk is full (a file may not grow any more), and then on a disk with room.
FULL_DISK = """
    import resource
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    mailbox = Mailbox(sys.argv[1], profile=sys.argv[2], latency=0)
    def send(key):
        letter = Letter(ADA.to, ADA.subject, "x" * 20_000)
        try:
            return mailbox.handle(Request((letter,), key=mailbox.profile.carry(key))).status
        except sqlite3.Error as error:
            return type(error).__name__
    import sqlite3
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, most))
    told = {f"k{n}": send(f"k{n}") for n in range(20)}
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    print(json.dumps([told, [row["key"] for row in mailbox.effects()]]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="this platform limits no file")
@pytest.mark.parametrize("name", ["idempotent", "resend", "stripe_v1", "emailit"])
def test_a_full_disk_loses_nothing_that_was_told_and_sends_nothing_that_was_not(name, tmp_path):
    """No answer where nothing could be written, and a retry on a disk with room makes one mail."""
    child = run_child(FULL_DISK, tmp_path, name)
    told, kept = json.loads(child.communicate(timeout=30)[0])
    assert Counter(told.values())[200] == len(kept) < 20
    assert {key for key, answer in told.items() if answer == 200} == set(kept)
    clock = ManualClock(time.time() + 100)  # whatever was claimed may be taken over
    with contextlib.closing(Mailbox(tmp_path, profile=name, clock=clock, latency=0)) as mailbox:
        letter = replace(ADA, body="x" * 20_000)
        for key in told:
            answer = asked(mailbox, letter, key=key)
            assert (answer.status, answer.replayed) == (200, key in kept)
        assert Counter(row["key"] for row in mailbox.effects()) == dict.fromkeys(told, 1)


# ── one transaction ───────────────────────────────────────────────────────────────────────────────


FULL = {
    "the mail": "BEFORE INSERT ON mail",
    "the last mail": "BEFORE INSERT ON mail WHEN new.number = 2",
    "what the key stands for": "BEFORE UPDATE ON dedup WHEN new.state = 'finished'",
}


@pytest.mark.parametrize("when", FULL.values(), ids=FULL)
@pytest.mark.parametrize("name", KEYED)
def test_all_mails_and_what_their_key_stands_for_are_one_commit(name, when, new, tmp_path):
    """When one of them cannot be written none is; the key is not remembered, and a retry works."""
    mailbox = new(name)
    db = sqlite3.connect(tmp_path / "mail.db", isolation_level=None)
    db.execute(f"CREATE TRIGGER full {when} BEGIN SELECT RAISE (ABORT, 'disk full'); END")
    with pytest.raises(sqlite3.IntegrityError, match="disk full"):
        asked(mailbox, ADA, EVE, batch=True)
    assert mailbox.effects() == []
    remembered = mailbox.keys()
    assert [row["state"] for row in remembered] in ([], ["in progress"])
    db.execute("DROP TRIGGER full")
    db.close()
    mailbox.clock.advance(mailbox.profile.takeover_after or 0)
    assert not asked(mailbox, ADA, EVE, batch=True).replayed
    assert len(mailbox.effects()) == 2


def test_an_answer_is_stored_as_it_was_given(new):
    """What is replayed after a restart is the first answer, to the letter."""
    for name in KEYED:
        mailbox = new(name, plan=[Fault("error_after", request=1)])
        mailbox.fresh(mailbox.folder / name)
        first = asked(mailbox)
        retry = asked(mailbox)
        mailbox.fresh(mailbox.folder)
        again = asked(mailbox)
        assert (again.status, again.body) == (retry.status, retry.body)
        if mailbox.profile.remembers == "answers":
            assert (again.body, again.name, again.message) == (
                first.body,
                first.name,
                first.message,
            )


@pytest.mark.parametrize("name", KEYLESS)
def test_a_service_without_keys_remembers_none(name, new):
    """Neither in progress nor finished."""
    mailbox = new(name)
    asked(mailbox)
    mailbox.profile = PROFILES["idempotent"]
    assert mailbox.keys() == []


# ── ledgers of older versions ─────────────────────────────────────────────────────────────────────


LEDGERS = Path(__file__).with_name("ledgers")
OLD = sorted(ledger_module.OLDER)


def old_ledger(folder, version):
    """Write a ledger as the code of that version has left it."""
    folder.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(folder / "mail.db", isolation_level=None)
    db.executescript((LEDGERS / f"version_{version}.sql").read_text("utf-8"))
    db.close()


def dump(folder, *tables):
    """Return every row of a ledger, without touching it as the service does."""
    db = sqlite3.connect(folder / "mail.db")
    rows = {table: db.execute(f"SELECT * FROM {table}").fetchall() for table in tables}
    rows["version"] = db.execute("PRAGMA user_version").fetchone()
    db.close()
    return rows


def test_a_ledger_of_version_1_opens_and_keeps_everything(tmp_path, new, clock):
    """Mails, log, keys, fences and what was on its way; and its keys still answer."""
    old_ledger(tmp_path, 1)
    mailbox = new("idempotent")
    assert [(row["id"], row["to"]) for row in mailbox.inbox()] == [
        ("email-1", ADA.to), ("email-2", EVE.to),
    ]  # fmt: skip
    assert [(row["key"], row["outcome"], row["id"]) for row in mailbox.requests()] == [
        ("k1", "delivered", "email-1"), ("k1", "replayed", "email-1"),
        ("k2", "delivered", "email-2"), ("k3", "held", None),
    ]  # fmt: skip
    for key, letter in (("k1", ADA), ("k2", EVE)):
        answer = asked(mailbox, letter, key=key)
        assert (answer.status, answer.replayed, answer.first) == (200, True, START)
        assert answer.body == {"id": f"email-{key[1]}"}
        assert says(
            asked(mailbox, replace(letter, body="other"), key=key),
            PROFILES["idempotent"].other_body,
        )
    clock.advance(60)
    assert [row["key"] for row in mailbox.effects()] == ["k1", "k2", "k3"]
    assert mailbox.requests()[3]["outcome"] == "delivered"
    assert len(mailbox.effects(account="default")) == 3
    assert mailbox.requests(account="default") == mailbox.requests()
    mailbox.profile = replace(PROFILES["opaque"], checks_fence=True)
    assert asked(mailbox, key="k9", fence=6).name == "stale_fence"
    assert asked(mailbox, key="k9", fence=7).status == 200


SHOP = "shop@example.org"
ADAS_OLD, EVES_OLD = (
    Letter(f"{who.lower()}@example.org", "Welcome", f"Hello {who}", SHOP) for who in ("Ada", "Eve")
)


def test_the_keys_of_a_ledger_of_version_2_know_their_requests_with_and_without_a_sender(
    tmp_path, new
):
    """What was sent with a sender that was not kept is no other request when it comes again."""
    for sender in (SHOP, "bank@example.org", None):
        folder = tmp_path / str(sender)
        old_ledger(folder, 2)
        mailbox = new("stripe_v2")
        mailbox.fresh(folder)
        letter = replace(ADAS_OLD, sender=sender)
        answer = asked(mailbox, letter, key="done")
        assert (answer.status, answer.replayed, answer.ids) == (200, True, ("email-1",))
        for other in (replace(letter, body="other"), replace(letter, to="bob@example.org")):
            assert says(asked(mailbox, other, key="done"), mailbox.profile.other_body)
        assert len(mailbox.effects()) == 4


def test_unfinished_work_of_version_2_is_gone_on_with(tmp_path, new, clock):
    """A batch half done, a dead claim and a request on its way: each ends as one mail a letter."""
    old_ledger(tmp_path, 2)
    mailbox = new("stripe_v2")
    assert asked(mailbox, ADAS_OLD, EVES_OLD, key="half", batch=True).ids == ("email-2", "email-5")
    assert says(asked(mailbox, EVES_OLD, key="claimed"), mailbox.profile.in_progress)
    clock.advance(60)
    assert asked(mailbox, EVES_OLD, key="claimed").status == 200
    by_key = Counter(row["key"] for row in mailbox.effects())
    assert by_key == {"done": 1, "half": 2, "claimed": 1, "fenced": 1, "late": 1, None: 1}
    assert [row["from"] for row in mailbox.inbox()] == [None] * 4 + [SHOP, None, SHOP]
    fenced = replace(PROFILES["idempotent"], checks_fence=True)
    mailbox.profile = fenced
    assert asked(mailbox, EVES_OLD, key="fenced", fence=6).name == "stale_fence"


def test_a_key_that_is_used_anew_after_the_migration_is_bound_to_its_sender(tmp_path, new, clock):
    """Whether its window was over or its claim was taken over."""
    old_ledger(tmp_path, 2)
    mailbox = new("stripe_v2")
    clock.advance(60)
    assert asked(mailbox, EVES_OLD, key="claimed").status == 200
    clock.advance(mailbox.profile.window)
    assert not asked(mailbox, ADAS_OLD, key="done").replayed
    assert not asked(mailbox, EVES_OLD, key="claimed").replayed
    for letter, key in ((ADAS_OLD, "done"), (EVES_OLD, "claimed")):
        other = replace(letter, sender="bank@example.org")
        assert says(asked(mailbox, other, key=key), mailbox.profile.other_body)
        assert asked(mailbox, letter, key=key).replayed


@pytest.mark.parametrize("version", OLD)
def test_a_migrated_ledger_is_built_like_a_new_one(version, tmp_path):
    """The same tables with the same columns, the same indexes and triggers."""
    old_ledger(tmp_path / "old", version)
    shapes = []
    for folder in (tmp_path / "old", tmp_path / "new"):
        Mailbox(folder).close()
        db = sqlite3.connect(folder / "mail.db")
        names = db.execute("SELECT type, name, tbl_name FROM sqlite_master ORDER BY 1, 2")
        columns = db.execute(
            'SELECT m.name, c.name, c.type, c."notnull", c.dflt_value, c.pk FROM sqlite_master m, '
            "pragma_table_info(m.name) c WHERE m.type = 'table' ORDER BY m.name, c.cid"
        )
        made = db.execute(
            "SELECT sql FROM sqlite_master WHERE name IN ('dedup', 'fence', 'held') ORDER BY name"
        )
        stamps = [db.execute(f"PRAGMA {p}").fetchone() for p in ("application_id", "user_version")]
        shapes.append((*(list(rows) for rows in (names, columns, made)), stamps))
        db.close()
    assert shapes[0] == shapes[1]


def steps(version):
    """The statements that lead from a version to the present one."""
    scripts = [ledger_module.OLDER[number] for number in OLD if number >= version]
    return [s for name in scripts for s in ledger_module._statements(ledger_module._text(name))]


@pytest.mark.parametrize("version", OLD)
def test_a_migration_that_stops_anywhere_leaves_a_whole_ledger(version, tmp_path, monkeypatch):
    """What leads to the next version and its number are one transaction; the next opening goes on.

    In the first of them, not a byte of the old ledger is another.
    """
    real, script = ledger_module._statements, steps(version)
    first = len(list(real(ledger_module._text(ledger_module.OLDER[version]))))
    tables = ("request", "mail", "dedup", "fence", "held")
    for stop_at in range(len(script)):
        folder = tmp_path / str(stop_at)
        old_ledger(folder, version)
        before = dump(folder, *tables)
        number = itertools.count()

        def cut(text, stop_at=stop_at, number=number):
            for statement in real(text):
                if next(number) == stop_at:
                    raise Stop
                yield statement

        monkeypatch.setattr(ledger_module, "_statements", cut)
        with pytest.raises(Stop):
            Mailbox(folder)
        left = dump(folder, *tables)
        assert left == before if stop_at < first else left["version"] == (version + 1,)
        monkeypatch.setattr(ledger_module, "_statements", real)
        mailbox = Mailbox(folder, profile="stripe_v2", clock=ManualClock())
        assert len(mailbox.keys()) == len(before["dedup"])
        assert len(mailbox.effects()) == len(before["mail"])
        mailbox.close()


@pytest.mark.parametrize("version", OLD)
def test_openers_that_race_migrate_an_old_ledger_once(version, tmp_path):
    """Ten threads open it at once, each with a connection of its own."""
    old_ledger(tmp_path, version)
    before = dump(tmp_path, "dedup", "mail")
    together = threading.Barrier(10)

    def open_it(_number):
        together.wait()
        mailbox = Mailbox(tmp_path, clock=ManualClock())
        found = (len(mailbox.keys()), len(mailbox.effects()))
        mailbox.close()
        return found

    with ThreadPoolExecutor(10) as pool:
        counts = set(pool.map(open_it, range(10)))
    assert counts == {(len(before["dedup"]), len(before["mail"]))}

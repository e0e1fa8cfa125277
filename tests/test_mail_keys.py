"""The server side of keys: claims, takeovers, accounts, kills, races, and ledgers of old versions.

Effects are counted in the ledger; kills are real ones, of a real process.
"""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import durakit as dk
from durakit.mail import (
    FAULTS,
    POINTS,
    PROFILES,
    Answer,
    Fault,
    Letter,
    Mailbox,
    MailError,
    NotSupported,
    Request,
)
from durakit.mail import ledger as ledger_module

ROOT = Path(__file__).resolve().parent.parent
ADA = Letter("ada@example.org", "Welcome", "Hello Ada")
EVE = Letter("eve@example.org", "Welcome", "Hello Eve")
ADAS, EVES = "re_ada", "re_eve"
TOKENS = {ADAS: "ada", EVES: "eve"}
START = 1_700_000_000.0

KEYED = [name for name, profile in PROFILES.items() if profile.dedups]
KEYLESS = [name for name, profile in PROFILES.items() if not profile.dedups]
CLAIMING = [name for name, profile in PROFILES.items() if profile.in_progress is not None]


class Stop(BaseException):
    """A simulated crash inside a hook."""


@pytest.fixture
def clock():
    """Virtual time."""
    return dk.ManualClock(START)


@pytest.fixture
def new(tmp_path, clock):
    """Make mailboxes of a profile in this test's folder and on its clock."""
    with contextlib.ExitStack() as stack:

        def make(profile, **options):
            options = {"clock": clock, "latency": 0, **options}
            mailbox = Mailbox(tmp_path, profile=profile, **options)
            stack.callback(mailbox.close)
            return mailbox

        yield make


def asked(mailbox, *letters, key="k", **options) -> Answer:
    """Hand in a request as a client of this profile writes it."""
    carried = mailbox.profile.carry(key) if isinstance(key, str) else key
    return mailbox.handle(Request(letters or (ADA,), key=carried, **options))


def asked_and_told(mailbox):
    """Do all that a door does."""
    asked(mailbox)
    mailbox.replied(Request((ADA,), key=mailbox.profile.carry("k")))


def says(answer, refusal):
    """Whether an answer is this refusal, to the letter."""
    return (answer.status, answer.name, answer.type) == (refusal.status, refusal.name, refusal.type)


def at(point, act):
    """Make a hook that does something once, at the first time a request comes by a point."""
    waiting = [act]

    def hook(here, _key):
        if here == point and waiting:
            return waiting.pop()()
        return None

    return hook


def stop():
    """Crash."""
    raise Stop


# ── in progress ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", CLAIMING)
def test_a_duplicate_of_a_running_request_is_told_so_at_once(name, new):
    """In the service's own words; it never says failed, and the first one is not disturbed."""
    mailbox = new(name)
    told = []
    mailbox.listen(at("claimed", lambda: told.append(asked(mailbox))))
    first = asked(mailbox)
    assert says(told[0], mailbox.profile.in_progress)
    assert first.status == 200
    assert asked(mailbox).ids == first.ids
    assert [row["outcome"] for row in mailbox.requests()] == [
        "delivered", f"refused {mailbox.profile.in_progress.status}", "replayed",
    ]  # fmt: skip
    assert len(mailbox.effects()) == 1


@pytest.mark.parametrize("name", CLAIMING)
def test_another_body_under_a_running_key_is_refused_as_another_body(name, new):
    """Where bodies are compared; else it is one more duplicate."""
    mailbox = new(name)
    told = []
    mailbox.listen(at("claimed", lambda: told.append(asked(mailbox, EVE))))
    asked(mailbox)
    profile = mailbox.profile
    assert says(told[0], profile.other_body if profile.compares_bodies else profile.in_progress)
    assert [row["to"] for row in mailbox.inbox()] == [ADA.to]


@pytest.mark.parametrize("name", PROFILES)
def test_a_claim_is_made_only_where_it_can_be_told(name, new):
    """Between claim and mail there is a point of its own; the others have it in one commit."""
    mailbox = new(name)
    heard = []
    mailbox.listen(lambda point, _key: heard.append((point, len(mailbox.effects()))))
    asked(mailbox)
    claimed = [("claimed", 0)] if mailbox.profile.in_progress is not None else []
    assert heard == [("arriving", 0), ("received", 0), *claimed, ("acted", 1)]


@pytest.mark.parametrize("name", CLAIMING)
def test_a_dead_claim_is_taken_over_after_its_time_and_delivers_once(name, new, clock):
    """Until then the key is in progress, also for its owner; the dead one had no effect."""
    mailbox = new(name)
    profile = mailbox.profile
    mailbox.listen(at("claimed", stop))
    with pytest.raises(Stop):
        asked(mailbox)
    (row,) = mailbox.keys()
    assert (row["state"], row["id"], row["first"]) == ("in progress", None, START)
    assert mailbox.requests()[0]["outcome"] == "claimed"
    clock.advance(profile.takeover_after - 1)
    assert says(asked(mailbox), profile.in_progress)
    clock.advance(1)
    answer = asked(mailbox)
    assert (answer.status, answer.replayed) == (200, False)
    assert asked(mailbox).replayed
    assert len(mailbox.effects()) == 1


@pytest.mark.parametrize("name", CLAIMING)
def test_a_slow_worker_whose_claim_was_taken_over_delivers_nothing(name, new, clock):
    """It was not dead, only slow: when it comes to act, it answers with the other's result."""
    mailbox = new(name)

    def overtake():
        clock.advance(mailbox.profile.takeover_after)
        return quick.append(asked(mailbox))

    quick = []
    mailbox.listen(at("claimed", overtake))
    slow = asked(mailbox)
    assert quick[0].status == 200
    assert (slow.ids, slow.replayed) == (quick[0].ids, True)
    assert len(mailbox.effects()) == 1


@pytest.mark.parametrize("name", CLAIMING)
def test_the_window_begins_when_the_mail_is_out(name, new, clock):
    """Not at the claim, which may be much older."""
    mailbox = new(name)
    mailbox.listen(at("claimed", lambda: clock.advance(50)))
    asked(mailbox)
    (row,) = mailbox.keys()
    assert (row["first"], row["expires"]) == (START + 50, START + 50 + mailbox.profile.window)


@pytest.mark.parametrize("name", CLAIMING)
def test_a_slow_worker_is_told_that_its_successor_is_still_at_work(name, new, clock):
    """Taken over and not finished: the first one has lost the key and answers in progress."""
    mailbox = new(name)

    def overtake():
        clock.advance(mailbox.profile.takeover_after)
        mailbox.listen(at("claimed", stop))
        with pytest.raises(Stop):
            asked(mailbox)

    mailbox.listen(at("claimed", overtake))
    assert says(asked(mailbox), mailbox.profile.in_progress)
    assert mailbox.effects() == []
    clock.advance(mailbox.profile.takeover_after)
    assert asked(mailbox).status == 200
    assert len(mailbox.effects()) == 1


@pytest.mark.parametrize("name", CLAIMING)
def test_a_request_that_comes_due_under_a_running_one_does_nothing(name, new, clock):
    """A late duplicate meets the claim like any other."""
    mailbox = new(name, plan=[Fault("request_late", request=1, seconds=5)])
    assert not asked(mailbox).comes
    mailbox.listen(at("claimed", lambda: clock.advance(5)))
    assert asked(mailbox).status == 200
    refused = f"refused {mailbox.profile.in_progress.status}"
    assert [row["outcome"] for row in mailbox.requests()] == [refused, "delivered"]
    assert len(mailbox.effects()) == 1


def test_a_profile_without_in_progress_takes_a_dead_claim_at_once(new, clock):
    """Another profile on the same ledger fences the old claim off instead of waiting."""
    mailbox = new("resend")
    mailbox.listen(at("claimed", stop))
    with pytest.raises(Stop):
        asked(mailbox)
    clock.jump_wall(-3600)
    mailbox.profile = PROFILES["idempotent"]
    assert asked(mailbox).status == 200
    assert len(mailbox.effects()) == 1


@pytest.mark.parametrize("name", CLAIMING)
def test_a_stale_fence_after_the_claim_gives_the_key_back(name, new):
    """The overtaken one is refused, and the key is not left in progress."""
    mailbox = new(replace(PROFILES[name], checks_fence=True))
    newer = []

    def overtake():
        newer.append(asked(mailbox, key="k", fence=2))

    mailbox.listen(at("claimed", overtake))
    old = asked(mailbox, fence=1)
    assert says(newer[0], mailbox.profile.in_progress)
    assert (old.status, old.name) == (412, "stale_fence")
    assert asked(mailbox, fence=2).status == 200
    assert len(mailbox.effects()) == 1


@pytest.mark.parametrize("name", CLAIMING)
def test_a_stale_worker_gives_back_only_its_own_claim(name, new, clock):
    """Its successor, alive and with the newer fence, keeps the key."""
    mailbox = new(replace(PROFILES[name], checks_fence=True))

    def overtake():
        clock.advance(mailbox.profile.takeover_after)
        mailbox.listen(at("claimed", stop))
        with pytest.raises(Stop):
            asked(mailbox, fence=2)

    mailbox.listen(at("claimed", overtake))
    assert asked(mailbox, fence=1).name == "stale_fence"
    assert [row["state"] for row in mailbox.keys(account="default")] == ["in progress"]
    assert says(asked(mailbox, fence=3), mailbox.profile.in_progress)


@pytest.mark.parametrize("name", [name for name in CLAIMING if PROFILES[name].compares_bodies])
def test_a_dead_claim_still_binds_its_key_to_its_body(name, new, clock):
    """It may be taken over, but not by another request, until its window is over."""
    mailbox = new(name)
    mailbox.listen(at("claimed", stop))
    with pytest.raises(Stop):
        asked(mailbox)
    clock.advance(mailbox.profile.takeover_after)
    assert says(asked(mailbox, EVE), mailbox.profile.other_body)
    clock.advance(mailbox.profile.window)
    assert asked(mailbox, EVE).status == 200
    assert [row["to"] for row in mailbox.inbox()] == [EVE.to]


def test_unfinished_work_binds_its_key_to_its_body(new):
    """Nobody else's letters are sent in the place of those that are missing."""
    mailbox = new("stripe_v2", plan=[Fault("error_midway", request=1)])
    asked(mailbox, ADA, EVE, batch=True)
    assert says(asked(mailbox, ADA, ADA, batch=True), mailbox.profile.other_body)
    assert asked(mailbox, ADA, EVE, batch=True).status == 200
    assert [row["to"] for row in mailbox.inbox()] == [ADA.to, EVE.to]


def test_a_forgotten_key_in_front_of_the_limiter_is_limited(new, clock):
    """What is past its window answers nothing any more, also where the key is looked at first."""
    order = ("authentication", "key", "rate limit", "validation")
    mailbox = new(replace(PROFILES["resend"], order=order))
    asked(mailbox)
    mailbox.plan = [Fault("rate_limited", key="k")]
    clock.advance(mailbox.profile.window - 1)
    assert asked(mailbox).replayed
    clock.advance(1)
    assert says(asked(mailbox), mailbox.profile.rate_limited)


# ── retention ────────────────────────────────────────────────────────────────────────────────────


def test_sweeping_drops_what_is_over_and_never_what_is_unresolved(new, clock):
    """A claim nobody finished and work half done stay, however old; the ledger of mails stays."""
    mailbox = new("stripe_v2")
    asked(mailbox, key="done")
    mailbox.listen(at("claimed", stop))
    with pytest.raises(Stop):
        asked(mailbox, key="claimed")
    mailbox.listen(None)
    mailbox.plan = [Fault("error_after", key="half done")]
    asked(mailbox, key="half done")
    assert mailbox.forget_expired() == 0
    clock.advance(mailbox.profile.window)
    asked(mailbox, key="young")
    assert mailbox.forget_expired() == 1
    remembered = mailbox.keys()
    assert {row["key"]: row["state"] for row in remembered} == {
        "claimed": "in progress", "half done": "unfinished", "young": "finished",
    }  # fmt: skip
    assert mailbox.forget_expired() == 0
    assert len(mailbox.effects()) == 3


@pytest.mark.parametrize("name", KEYED)
def test_sweeping_changes_no_answer(name, new, clock):
    """An expired key was forgotten already."""
    mailbox = new(name)
    asked(mailbox)
    clock.advance(mailbox.profile.window)
    assert mailbox.forget_expired() == 1
    assert mailbox.keys() == []
    assert not asked(mailbox).replayed
    assert asked(mailbox).replayed


# ── accounts and tools ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", PROFILES)
def test_the_same_key_in_two_accounts_is_two_operations(name, new):
    """Neither blocks nor answers the other, whatever the bodies."""
    mailbox = new(name, tokens=TOKENS)
    ada, eve = asked(mailbox, token=ADAS), asked(mailbox, EVE, token=EVES)
    assert (ada.status, eve.status) == (200, 200)
    assert (ada.replayed, eve.replayed) == (False, False)
    assert [row["to"] for row in mailbox.inbox(account="ada")] == [ADA.to]
    assert len(mailbox.effects(account="eve")) == 1
    assert len(mailbox.effects()) == 2
    if mailbox.profile.dedups:
        assert asked(mailbox, token=ADAS).ids == ada.ids
        assert asked(mailbox, EVE, token=EVES).ids == eve.ids
        remembered = mailbox.keys()
        assert [row["account"] for row in remembered] == ["ada", "eve"]
        assert len(mailbox.keys(account="ada")) == 1
    assert {row["id"] for row in mailbox.requests(account="eve")} == set(eve.ids)


@pytest.mark.parametrize("name", KEYED)
def test_the_same_key_of_two_tools_is_two_operations(name, new):
    """Also where two mailboxes of different names share a ledger."""
    mailbox = new(name)
    bills = new(name, name="send_bill")
    asked(mailbox)
    assert not asked(mailbox, EVE, tool="send_letter").replayed
    assert not asked(bills, EVE).replayed
    assert [row["tool"] for row in mailbox.effects()] == ["send_email", "send_letter", "send_bill"]
    assert asked(mailbox, tool="send_bill", key="k").status != 500
    assert asked(bills, EVE).replayed
    assert len(mailbox.effects()) == 3


def test_nobody_sees_another_accounts_mail_or_key(new):
    """To another account a mail does not exist, which is also all that it is told."""
    mailbox = new("queryable", tokens=TOKENS)
    (mail,) = asked(mailbox, token=ADAS).ids
    assert mailbox.get_mail(mail, token=ADAS).body == mailbox.inbox()[0]
    assert mailbox.look_up("k", token=ADAS).body == {"data": [{"id": mail}]}
    assert mailbox.find("k", token=ADAS) == {"id": mail}
    for answer in (mailbox.get_mail(mail, token=EVES), mailbox.look_up("k", token=EVES)):
        assert (answer.status, answer.name) == (404, "not_found")
        assert ADA.to not in json.dumps(answer.body)
    assert mailbox.find("k", token=EVES) is None
    assert mailbox.get_mail("email-1", token=ADAS).body == mailbox.get_mail(mail, token=ADAS).body
    for nonsense in ("email-01", "email-2", "1", "", "email-1 ", "\ud83d"):
        assert mailbox.get_mail(nonsense, token=ADAS).status == 404


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("token", [None, "", "re_nobody", "ada"])
def test_without_a_known_token_nothing_is_told(name, token, new):
    """Neither to a request nor to a question; the referee's log shows that somebody was there."""
    mailbox = new(name, tokens=TOKENS)
    asked(mailbox, token=ADAS)
    for answer in (
        asked(mailbox, token=token),
        mailbox.get_mail("email-1", token=token),
        mailbox.look_up("k", token=token),
    ):
        assert says(answer, mailbox.profile.unauthenticated)
    assert len(mailbox.effects()) == 1
    assert [row["outcome"] for row in mailbox.requests()] == [
        "delivered", f"refused {mailbox.profile.unauthenticated.status}",
    ]  # fmt: skip
    assert len(mailbox.requests(account="ada")) == 1


def test_tokens_are_not_written_down(new, tmp_path):
    """The ledger holds accounts, never what opens them."""
    mailbox = new("resend", tokens=TOKENS)
    asked(mailbox, token=ADAS)
    asked(mailbox, token="re_guess")  # noqa: S106 (a guess is no password)
    mailbox.close()
    assert b"re_" not in b"".join(path.read_bytes() for path in tmp_path.glob("mail.db*"))


def test_the_in_process_door_needs_a_token_too(new):
    """And refuses with the profile's number and name."""
    mailbox = new("resend", tokens=TOKENS)
    letter = (ADA.to, ADA.subject, ADA.body)
    with pytest.raises(MailError) as refusal:
        mailbox.send(*letter, key="k")
    assert (refusal.value.status, refusal.value.name) == (401, "missing_api_key")
    assert mailbox.send(*letter, key="k", token=ADAS) == {"id": "email-1"}


@pytest.mark.parametrize("name", PROFILES)
def test_only_a_service_that_can_be_asked_answers_a_question_by_key(name, new):
    """With every mail of the key; else with 501."""
    mailbox = new(name)
    assert mailbox.look_up("k").status == (404 if mailbox.profile.askable else 501)
    asked(mailbox, ADA, EVE, batch=True)
    answer = mailbox.look_up("k")
    if mailbox.profile.askable:
        assert answer.ids == ("email-1", "email-2")
    else:
        assert answer.status == 501
        with pytest.raises(NotSupported):
            mailbox.find("k")


# ── races ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", KEYED)
def test_fifty_threads_with_one_key_cause_one_effect(name, tmp_path):
    """Each gets the one result or 'in progress', over two mailboxes; no storage error comes out."""
    boxes = [Mailbox(tmp_path, profile=name, latency=0) for _ in range(2)]
    together = threading.Barrier(50)

    def send(number):
        together.wait()
        return asked(boxes[number % 2])

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(send, range(50)))
    profile = PROFILES[name]
    done = [answer for answer in answers if answer.status == 200]
    assert {answer.ids for answer in done} == {("email-1",)}
    waiting = [answer for answer in answers if answer.status != 200]
    assert all(says(answer, profile.in_progress) for answer in waiting)
    assert len(done) == 50 or profile.in_progress is not None
    assert sum(not answer.replayed for answer in done) == 1
    assert len(boxes[0].effects()) == 1
    for box in boxes:
        box.close()


def run(code, *arguments):
    """Start a new interpreter on a piece of code that has the mail service at hand."""
    head = f"""
import json, os, signal, sys
from durakit.mail import *
from durakit.mail import Request, Letter
ADA = Letter({ADA.to!r}, {ADA.subject!r}, {ADA.body!r})
def asked(mailbox, key="k"):
    return mailbox.handle(Request((ADA,), key=mailbox.profile.carry(key)))
class Clock:
    def now(self): return {START!r}
    def sleep(self, seconds): pass
"""
    return subprocess.Popen(
        [sys.executable, "-c", head + textwrap.dedent(code), *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("name", ["idempotent", "stripe_v1", "emailit"])
def test_two_processes_with_one_key_after_another_cause_one_effect_each(name, tmp_path):
    """They start in an empty folder at once; each answer is the result or 'in progress'."""
    children = [
        run(
            """
            print("ready", flush=True)
            sys.stdin.readline()
            mailbox = Mailbox(sys.argv[1], profile=sys.argv[2], latency=0)
            answers = [asked(mailbox, f"k{n}") for n in range(40)]
            print(json.dumps([(answer.status, answer.ids) for answer in answers]))
            """,
            tmp_path,
            name,
        )
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [json.loads(child.communicate(timeout=20)[0]) for child in children]
    busy = PROFILES[name].in_progress
    for one, other in zip(*answers, strict=True):
        assert 200 in (one[0], other[0])
        for status, ids in (one, other):
            assert (status == 200 and len(ids) == 1) or (busy and status == busy.status)
        assert one[1] == other[1] or not (one[1] and other[1])
    mailbox = Mailbox(tmp_path)
    assert sorted(row["key"] for row in mailbox.effects()) == sorted(f"k{n}" for n in range(40))
    mailbox.close()


# ── the service is killed ────────────────────────────────────────────────────────────────────────

#: Dies once at every point, each time in a child of its own and in a folder of its own.
KILLED_EVERYWHERE = """
    for point in POINTS:
        if os.fork():
            print(point, os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
            continue
        def hook(here, _key, point=point):
            if here == point:
                os.kill(os.getpid(), signal.SIGKILL)
            return "late" if point == "held" else None
        mailbox = Mailbox(sys.argv[1] + "/" + point, profile=sys.argv[2], clock=Clock())
        mailbox.listen(hook)
        asked(mailbox)
        mailbox.replied(Request((ADA,), key=mailbox.profile.carry("k")))
        os._exit(0)
"""


@pytest.mark.real_kill
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
@pytest.mark.parametrize("name", PROFILES)
def test_a_service_killed_anywhere_answers_rightly_after_its_restart(name, tmp_path):
    """One effect where keys are known, wherever it died; without keys two, where it had acted."""
    profile = PROFILES[name]
    child = run(KILLED_EVERYWHERE, tmp_path, name)
    told = dict(line.split() for line in child.communicate(timeout=30)[0].splitlines())
    claims = profile.in_progress is not None
    for point in POINTS:
        assert told[point] == str(-signal.SIGKILL if point != "claimed" or claims else 0), point
        clock = dk.ManualClock(START)
        mailbox = Mailbox(tmp_path / point, profile=profile, clock=clock, latency=0)
        had_acted = len(mailbox.effects())
        assert had_acted == (point in ("acted", "replied") or told[point] == "0"), point
        retry = asked(mailbox)
        if point == "claimed" and claims:
            assert says(retry, profile.in_progress)
            clock.advance(profile.takeover_after)
            retry = asked(mailbox)
        assert retry.status == 200
        assert retry.replayed == bool(had_acted and profile.dedups), point
        clock.advance(10)  # what was held is due
        sent_before = point in ("held", "acted", "replied") or told[point] == "0"
        assert len(mailbox.effects()) == (1 if profile.dedups else 1 + sent_before), point
        mailbox.close()


@pytest.mark.real_kill
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
@pytest.mark.parametrize("name", ["resend", "stripe_v2"])
def test_a_killed_service_leaves_the_same_rows_as_a_raised_crash(name, tmp_path):
    """SIGKILL in the hook and an exception in the hook cannot be told apart on disk."""
    run(KILLED_EVERYWHERE, tmp_path / "killed", name).communicate(timeout=30)
    for point in POINTS:
        raised = Mailbox(
            tmp_path / "raised" / point, profile=name, clock=dk.ManualClock(START), latency=0
        )
        raised.listen(
            lambda here, _key, point=point: stop() if here == point else "late" * (point == "held")
        )
        with pytest.raises(Stop):
            asked_and_told(raised)
        raised.close()
        left = [
            list(sqlite3.connect(tmp_path / how / point / "mail.db").iterdump())
            for how in ("killed", "raised")
        ]
        assert left[0] == left[1], point


# ── ledgers of version 1 ─────────────────────────────────────────────────────────────────────────

VERSION_1 = """
CREATE TABLE request (
    number INTEGER PRIMARY KEY, key TEXT, fault TEXT, outcome TEXT NOT NULL DEFAULT 'received',
    mail INTEGER REFERENCES mail (number), time REAL NOT NULL
) STRICT;
CREATE TABLE mail (
    number INTEGER PRIMARY KEY, tool TEXT NOT NULL, recipient TEXT NOT NULL, subject TEXT NOT NULL,
    body TEXT NOT NULL, key TEXT, digest TEXT NOT NULL, time REAL NOT NULL
) STRICT;
CREATE INDEX mail_by_key ON mail (key);
CREATE TRIGGER mail_is_never_changed BEFORE UPDATE ON mail
BEGIN SELECT RAISE (ABORT, 'a delivered mail cannot be changed'); END;
CREATE TRIGGER mail_is_never_taken_back BEFORE DELETE ON mail
BEGIN SELECT RAISE (ABORT, 'a delivered mail cannot be taken back'); END;
CREATE TABLE dedup (
    key TEXT PRIMARY KEY, digest TEXT NOT NULL, mail INTEGER NOT NULL REFERENCES mail (number),
    first REAL NOT NULL, expires REAL NOT NULL
) STRICT;
CREATE TABLE fence (key TEXT PRIMARY KEY, highest INTEGER NOT NULL) STRICT;
CREATE TABLE held (
    request INTEGER PRIMARY KEY REFERENCES request (number), due REAL NOT NULL,
    recipient TEXT NOT NULL, subject TEXT NOT NULL, body TEXT NOT NULL, key TEXT, fence INTEGER
) STRICT;
PRAGMA application_id = 1684761964;
PRAGMA user_version = 1;
PRAGMA journal_mode = WAL;
"""


def old_ledger(folder):
    """Write a ledger of version 1: two mails of one key each, a fence, a request on its way."""
    folder.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(folder / "mail.db", isolation_level=None)
    db.executescript(VERSION_1)
    for number, letter in ((1, ADA), (2, EVE)):
        row = (letter.to, letter.subject, letter.body, f"k{number}", letter.digest())
        db.execute(
            "INSERT INTO mail VALUES (?, 'send_email', ?, ?, ?, ?, ?, ?)", (number, *row, START)
        )
        db.execute(
            "INSERT INTO dedup VALUES (?, ?, ?, ?, ?)",
            (f"k{number}", letter.digest(), number, START, START + 86_400),
        )
    db.executemany(
        "INSERT INTO request VALUES (?, ?, ?, ?, ?, ?)",
        [
            (1, "k1", None, "delivered", 1, START), (2, "k1", None, "replayed", 1, START),
            (3, "k2", "reply_lost", "delivered", 2, START),
            (4, "k3", "request_late", "held", None, START),
        ],
    )  # fmt: skip
    db.execute("INSERT INTO fence VALUES ('k9', 7)")
    db.execute(
        "INSERT INTO held VALUES (4, ?, ?, ?, ?, 'k3', NULL)", (START + 60, *vars(ADA).values())
    )
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
    old_ledger(tmp_path)
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


def test_a_migrated_ledger_is_built_like_a_new_one(tmp_path):
    """The same tables with the same columns, the same indexes and triggers."""
    old_ledger(tmp_path / "old")
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


def test_a_migration_that_stops_anywhere_leaves_the_old_ledger(tmp_path, monkeypatch):
    """Every step of it and its number are one transaction; the next opening does it all."""
    script = list(ledger_module._statements(ledger_module._text("migration_2.sql")))
    assert len(script) > 10
    real = ledger_module._statements
    tables = ("request", "mail", "dedup", "fence", "held")
    for stop_at in range(len(script)):
        folder = tmp_path / str(stop_at)
        old_ledger(folder)
        before = dump(folder, *tables)

        def cut(text, stop_at=stop_at):
            for number, statement in enumerate(real(text)):
                if number == stop_at:
                    raise Stop
                yield statement

        monkeypatch.setattr(ledger_module, "_statements", cut)
        with pytest.raises(Stop):
            Mailbox(folder)
        assert dump(folder, *tables) == before
    monkeypatch.setattr(ledger_module, "_statements", real)
    mailbox = Mailbox(folder, clock=dk.ManualClock(START))
    assert len(mailbox.keys()) == 2
    mailbox.close()


def test_openers_that_race_migrate_an_old_ledger_once(tmp_path):
    """Ten threads open it at once, each with a connection of its own."""
    old_ledger(tmp_path)
    together = threading.Barrier(10)

    def open_it(_number):
        together.wait()
        mailbox = Mailbox(tmp_path, clock=dk.ManualClock(START))
        found = (len(mailbox.keys()), len(mailbox.effects()))
        mailbox.close()
        return found

    with ThreadPoolExecutor(10) as pool:
        assert set(pool.map(open_it, range(10))) == {(2, 2)}


# ── the law of keys ──────────────────────────────────────────────────────────────────────────────

ACTS = st.one_of(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from([None, *sorted(set(FAULTS) - {"key_forgotten"}), *POINTS]),
        st.sampled_from([0.0, 1.0, 59.0, 61.0]),
    ),
    st.sampled_from([1.0, 30.0, 60.0]),
)


@pytest.mark.parametrize("name", KEYED)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(acts=st.lists(ACTS, min_size=1, max_size=8))
def test_whatever_happens_a_key_is_one_mail_and_is_never_stuck(name, acts, tmp_path):
    """Lost, late, refused, failed, overtaken, killed at any point: then a retry is answered.

    The two promises that a profile does not make are taken into account: a failure after the mail
    that releases the key is not planned, and a failure that is remembered may be the answer.
    """
    profile = PROFILES[name]
    clock = dk.ManualClock(START)
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        mailbox = Mailbox(folder, profile=profile, clock=clock, latency=0)
        used = set()
        for act in acts:
            if isinstance(act, float):
                clock.advance(act)
                continue
            key, trouble, seconds = act
            if profile.remembers == "successes" and trouble == "error_after":
                trouble = None
            mailbox.plan = [Fault(trouble, key=key, seconds=seconds)] if trouble in FAULTS else []
            mailbox.listen(at(trouble, stop) if trouble in POINTS else None)
            used.add(key)
            with contextlib.suppress(Stop):
                asked(mailbox, key=key)
        mailbox.plan = []
        mailbox.listen(None)
        clock.advance((profile.takeover_after or 0) + 62)
        for key in used:
            answer = asked(mailbox, key=key)
            assert answer.status == 200 or (profile.remembers == "answers" and answer.replayed)
            mails = [row for row in mailbox.effects() if row["key"] == key]
            assert len(mails) == 1 or (answer.status == 500 and not mails)
        mailbox.close()


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


# ── one transaction ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", KEYED)
def test_the_mail_and_what_its_key_stands_for_are_one_commit(name, new, tmp_path):
    """When the answer cannot be stored the mail is not sent either, and a later retry sends it."""
    mailbox = new(name)
    db = sqlite3.connect(tmp_path / "mail.db", isolation_level=None)
    db.execute(
        "CREATE TRIGGER full BEFORE UPDATE ON dedup WHEN new.state = 'finished' "
        "BEGIN SELECT RAISE (ABORT, 'disk full'); END"
    )
    with pytest.raises(sqlite3.IntegrityError, match="disk full"):
        asked(mailbox)
    assert mailbox.effects() == []
    db.execute("DROP TRIGGER full")
    db.close()
    mailbox.clock.advance(mailbox.profile.takeover_after or 0)
    assert asked(mailbox).status == 200
    assert len(mailbox.effects()) == 1


@pytest.mark.parametrize("name", KEYED)
def test_a_batch_whose_last_mail_cannot_be_written_sends_none(name, new, tmp_path):
    """All of a request's mails are in one transaction too."""
    mailbox = new(name)
    db = sqlite3.connect(tmp_path / "mail.db", isolation_level=None)
    db.execute(
        "CREATE TRIGGER full BEFORE INSERT ON mail WHEN new.number = 2 "
        "BEGIN SELECT RAISE (ABORT, 'disk full'); END"
    )
    with pytest.raises(sqlite3.IntegrityError, match="disk full"):
        asked(mailbox, ADA, EVE, batch=True)
    assert mailbox.effects() == []
    db.close()


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

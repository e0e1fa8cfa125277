"""The mail service: what it promises, what it forgets, and what a crash cannot take back."""

import ast
import contextlib
import doctest
import itertools
import json
import os
import pickle
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import durakit.mail
from durakit.mail import FAULTS, PROFILES, Fault, Mailbox, MailError, NotSupported, Profile
from durakit.mail.ledger import SCHEMA_VERSION

ROOT = Path(__file__).resolve().parent.parent
ADA = ("ada@example.org", "Welcome", "Hello Ada\nand welcome")
START = 1_700_000_000.0


class ManualClock:
    """Time that passes only when somebody sleeps."""

    def __init__(self, start=START):
        self.time = start

    def now(self):
        """UTC seconds."""
        return self.time

    def sleep(self, seconds):
        """Let seconds pass at once."""
        self.time += seconds

    advance = sleep


class Stop(BaseException):
    """A simulated crash inside a hook."""


@pytest.fixture
def clock():
    """A clock at START."""
    return ManualClock()


@pytest.fixture
def new(tmp_path, clock):
    """Make mailboxes in this test's folder and on its clock."""
    made = []

    def make(**options):
        made.append(Mailbox(tmp_path, **{"clock": clock, **options}))
        return made[-1]

    yield make
    for mailbox in made:
        mailbox.close()


def stop_at(point):
    """Make a hook that crashes at one point."""

    def hook(at, _key):
        if at == point:
            raise Stop(at)

    return hook


def sent(mailbox, *letter, **options):
    """Send, and say with the reply whether the service knew the key."""
    reply = mailbox.send(*letter, **options)
    return {**reply, "replayed": mailbox.requests()[-1]["outcome"] == "replayed"}


def outcomes(mailbox):
    """List what became of each request."""
    return [row["outcome"] for row in mailbox.requests()]


# ── the plain exchange ───────────────────────────────────────────────────────────────────────────


def test_the_guides_example_runs_as_it_stands():
    """A reader who types it in, and imports no more than it does, sees what it says."""
    failed, tried = doctest.testmod(durakit.mail, globs={})
    assert tried
    assert not failed


def test_a_mail_is_delivered_once_and_shown_to_its_customer(new, clock):
    """One send gives one mail, one effect and a reply after one latency."""
    mailbox = new()
    assert sent(mailbox, *ADA, key="k") == {"id": "email-1", "replayed": False}
    assert clock.now() == pytest.approx(START + 0.05)
    (mail,) = mailbox.inbox()
    assert (mail["id"], mail["to"], mail["subject"], mail["body"]) == ("email-1", *ADA)
    assert mail["time"] == pytest.approx(START + 0.025)
    assert mailbox.inbox("ada@example.org") == [mail]
    assert mailbox.inbox("eve@example.org") == []


def test_the_digest_is_that_of_canonical_json(new):
    """Anybody can compute a ledger row's digest from the mail alone."""
    mailbox = new(name="mail_it")
    mailbox.send("é@example.org", "s", "b", key="k")
    text = '{"body":"b","subject":"s","to":"\\u00e9@example.org"}'
    (row,) = mailbox.effects()
    assert set(row) == {"tool", "key", "digest", "time"}
    assert (row["tool"], row["key"]) == ("mail_it", "k")
    assert row["digest"] == sha256(text.encode()).hexdigest()


def test_ids_count_deliveries_in_this_ledger(new):
    """Refused and replayed requests take no mail id."""
    mailbox = new(plan=[Fault("rate_limited", request=1)])
    with pytest.raises(MailError):
        mailbox.send(*ADA, key="a")
    ids = [mailbox.send(*ADA, key=key)["id"] for key in ("a", "a", "b", None, None)]
    assert ids == ["email-1", "email-1", "email-2", "email-3", "email-4"]


def test_the_same_calls_give_the_same_rows(tmp_path):
    """Two worlds with equal clocks and calls have equal ledgers, row for row."""
    worlds = []
    for name in ("one", "two"):
        mailbox = Mailbox(tmp_path / name, clock=ManualClock(), plan=[Fault("error_after")])
        for key in ("a", "a", "b"):
            try:
                mailbox.send(*ADA, key=key)
            except MailError:
                mailbox.clock.advance(1)
        worlds.append((mailbox.effects(), mailbox.keys(), mailbox.requests(), mailbox.inbox()))
        mailbox.close()
    assert worlds[0] == worlds[1]


def test_real_time_is_the_default_clock():
    """Without a clock the mail's time is the machine's, and the private folder is made."""
    mailbox = Mailbox(latency=0)
    mailbox.send(*ADA)
    assert mailbox.inbox()[0]["time"] > START


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_remembered_key_replays_the_reply(new):
    """The second request with a key gets the first one's id and adds no effect."""
    mailbox = new()
    first = mailbox.send(*ADA, key="k")
    assert sent(mailbox, *ADA, key="k") == {**first, "replayed": True}
    assert len(mailbox.effects()) == 1
    assert outcomes(mailbox) == ["delivered", "replayed"]


def test_no_key_means_no_deduplication(new):
    """Without a key even an idempotent service delivers twice."""
    mailbox = new()
    mailbox.send(*ADA)
    mailbox.send(*ADA)
    assert len(mailbox.effects()) == 2
    assert mailbox.keys() == []


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_a_key_with_another_mail_is_refused(new, changed):
    """To, subject and body all belong to what a key stands for."""
    mailbox = new()
    mailbox.send(*ADA, key="k")
    other = [*ADA]
    other[changed] = "other"
    with pytest.raises(MailError) as refusal:
        mailbox.send(*other, key="k")
    assert (refusal.value.status, refusal.value.name) == (409, "invalid_idempotent_request")
    assert outcomes(mailbox) == ["delivered", "refused 409"]
    assert len(mailbox.effects()) == 1


def test_a_service_that_does_not_compare_bodies_replays_the_first_mail(new):
    """With compares_bodies off, changed text is silently answered with the old mail."""
    mailbox = new(profile=replace(PROFILES["idempotent"], compares_bodies=False))
    mailbox.send(*ADA, key="k")
    assert sent(mailbox, "eve@example.org", "s", "b", key="k")["replayed"]
    assert [mail["to"] for mail in mailbox.inbox()] == [ADA[0]]


def test_a_key_is_forgotten_a_window_after_its_first_sight(new, clock):
    """A replay does not extend the window; afterwards the same key is a new request."""
    mailbox = new(latency=0)
    mailbox.send(*ADA, key="k")
    clock.advance(86_399)
    assert sent(mailbox, *ADA, key="k")["replayed"]
    assert not mailbox.keys()[0]["expired"]
    clock.advance(1)
    (row,) = mailbox.keys()
    assert row["expired"]
    assert (row["first"], row["expires"], row["id"]) == (START, START + 86_400, "email-1")
    assert mailbox.send("eve@example.org", "s", "b", key="k")["id"] == "email-2"
    assert not mailbox.keys()[0]["expired"]


def test_a_queryable_service_can_be_asked_and_never_deduplicates(new):
    """It delivers twice under one key, and find names the latest."""
    mailbox = new(profile="queryable")
    assert mailbox.find("k") is None
    mailbox.send(*ADA, key="k")
    assert mailbox.find("k") == {"id": "email-1"}
    assert not sent(mailbox, *ADA, key="k")["replayed"]
    assert mailbox.find("k") == {"id": "email-2"}
    remembered = mailbox.keys()
    assert [row["id"] for row in remembered] == ["email-1", "email-2"]


def test_a_delivered_mail_may_not_be_visible_yet(new, clock):
    """For visible_after seconds, absent does not mean not delivered."""
    mailbox = new(profile=replace(PROFILES["queryable"], visible_after=10.0), latency=0)
    mailbox.send(*ADA, key="k")
    clock.advance(9.9)
    assert mailbox.find("k") is None
    assert len(mailbox.inbox()) == 1
    clock.advance(0.1)
    assert mailbox.find("k") == {"id": "email-1"}


def test_an_opaque_service_ignores_keys_and_cannot_be_asked(new):
    """It remembers nothing about keys, though the referee's ledger shows them."""
    mailbox = new(profile="opaque")
    mailbox.send(*ADA, key="k")
    mailbox.send(*ADA, key="k")
    mailbox.send(*ADA, key="")
    assert [row["key"] for row in mailbox.effects()] == ["k", "k", ""]
    assert mailbox.keys() == []
    with pytest.raises(NotSupported) as refusal:
        mailbox.find("k")
    assert isinstance(refusal.value, MailError)


def test_find_outlives_the_window_of_an_idempotent_service(new, clock):
    """The key record is forgotten; the mail that carries the key is not."""
    mailbox = new()
    mailbox.send(*ADA, key="k")
    clock.advance(1e6)
    assert mailbox.find("k") == {"id": "email-1"}


def test_a_stale_fence_is_refused(new):
    """A smaller fence than the highest seen with the key is refused, an equal one is not."""
    mailbox = new(profile=replace(PROFILES["opaque"], checks_fence=True))
    mailbox.send(*ADA, key="k", fence=2)
    mailbox.send(*ADA, key="k", fence=2)
    mailbox.send(*ADA, key="other", fence=1)
    with pytest.raises(MailError) as refusal:
        mailbox.send(*ADA, key="k", fence=1)
    assert (refusal.value.status, refusal.value.name) == (412, "stale_fence")
    assert outcomes(mailbox)[-1] == "refused 412"
    assert len(mailbox.effects()) == 3


def test_a_late_request_of_a_zombie_meets_the_fence(new, clock):
    """The fence is checked when a request acts, not when it was sent."""
    profile = replace(PROFILES["queryable"], checks_fence=True)
    mailbox = new(profile=profile, plan=[Fault("request_late", seconds=60)])
    with pytest.raises(TimeoutError):
        mailbox.send(*ADA, key="k", fence=1, timeout=1)
    mailbox.send(*ADA, key="k", fence=2)
    clock.advance(60)
    assert outcomes(mailbox) == ["refused 412", "delivered"]


# ── bad input ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("to", None),
        ("to", ""),
        ("to", "a@b\nBcc: eve@example.org"),
        ("subject", 7),
        ("subject", "a\r\nb"),
        ("subject", "a\u2028b"),
        ("subject", "bell\a"),
        ("body", b"bytes"),
        ("body", "half \ud83d"),
        ("fence", "1"),
        ("fence", True),
        ("fence", 2**63),
    ],
)
def test_malformed_mail_is_refused_by_field_and_not_remembered(new, field, value):
    """Status 422 names the field, and the same key then works with good input."""
    mailbox = new()
    good = dict(zip(("to", "subject", "body"), ADA, strict=True))
    with pytest.raises(MailError, match=field) as refusal:
        mailbox.send(**{**good, field: value}, key="k")
    assert (refusal.value.status, refusal.value.name) == (422, "validation_error")
    assert mailbox.keys() == []
    assert not sent(mailbox, **good, key="k")["replayed"]
    assert outcomes(mailbox) == ["refused 422", "delivered"]


@pytest.mark.parametrize("key", ["", "x" * 257, 7, "half \ud83d"])
def test_malformed_keys_are_refused_where_keys_mean_something(new, key):
    """Status 400 for send and for find; 256 characters are allowed."""
    mailbox = new()
    for touch in (lambda: mailbox.send(*ADA, key=key), lambda: mailbox.find(key)):
        with pytest.raises(MailError) as refusal:
            touch()
        assert (refusal.value.status, refusal.value.name) == (400, "invalid_idempotency_key")
    assert mailbox.effects() == []
    assert mailbox.send(*ADA, key="x" * 256)["id"] == "email-1"


@pytest.mark.parametrize("timeout", [-1, float("nan"), "3", True])
def test_a_bad_timeout_is_the_callers_mistake(new, timeout):
    """It is a ValueError, and no request was sent."""
    mailbox = new()
    with pytest.raises(ValueError, match="timeout"):
        mailbox.send(*ADA, timeout=timeout)
    assert mailbox.requests() == []


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("kind", lambda: Fault("meteor")),
        ("request", lambda: Fault("reply_lost", request=0)),
        ("request", lambda: Fault("reply_lost", request=True)),
        ("request", lambda: Fault("reply_lost", request=1.0)),
        ("request", lambda: Fault("reply_lost", request=2, key="k")),
        ("key", lambda: Fault("reply_lost", key="")),
        ("seconds", lambda: Fault("reply_late", seconds=-1)),
        ("seconds", lambda: Fault("reply_late", seconds=float("inf"))),
        ("retry_after", lambda: Fault("rate_limited", retry_after=float("nan"))),
        ("window", lambda: Profile(name="p", window=float("nan"))),
        ("visible_after", lambda: Profile(name="p", visible_after=-1)),
        ("profile", lambda: Mailbox(profile="careful")),
        ("latency", lambda: Mailbox(latency=-1)),
    ],
)
def test_a_bad_setting_is_named(field, make):
    """Every refused setting is a ValueError that names its field."""
    with pytest.raises(ValueError, match=f"^{field}"):
        make()


# ── faults ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("fault", "effects_now", "outcome"),
    [
        (Fault("request_lost"), 0, "lost"),
        (Fault("request_late", seconds=100), 0, "held"),
        (Fault("reply_lost"), 1, "delivered"),
        (Fault("reply_late", seconds=8), 1, "delivered"),
    ],
)
@pytest.mark.parametrize("timeout", [None, 7, 0.01])
def test_without_a_reply_the_caller_waits_its_whole_timeout(
    new, clock, fault, effects_now, outcome, timeout
):
    """Four different worlds give one TimeoutError, after the same time."""
    if timeout is None and fault.kind == "reply_late":
        fault = replace(fault, seconds=31)
    mailbox = new(plan=[fault])
    with pytest.raises(TimeoutError, match="no reply within"):
        mailbox.send(*ADA, key="k", timeout=timeout)
    limit = 30 if timeout is None else timeout
    assert START + limit <= clock.now() < START + limit + 0.03
    assert (len(mailbox.effects()), outcomes(mailbox)) == (effects_now, [outcome])
    assert mailbox.requests()[0]["fault"] == fault.kind


def test_the_timeout_is_waited_out_to_the_last_bit(new, clock):
    """At this start the float sum of the waits falls short of 7 s by one bit."""
    clock.time = 0.088
    mailbox = new(plan=[Fault("reply_lost")])
    with pytest.raises(TimeoutError):
        mailbox.send(*ADA, timeout=7.0)
    assert clock.now() >= 0.088 + 7.0


def test_a_late_reply_within_the_timeout_is_a_reply(new, clock):
    """The caller gets it when it arrives."""
    mailbox = new(plan=[Fault("reply_late", seconds=3)])
    assert mailbox.send(*ADA, timeout=3)["id"] == "email-1"
    assert clock.now() == pytest.approx(START + 3)


def test_a_rate_limit_does_nothing_and_says_when(new):
    """Status 429 with its retry_after; the key is not remembered."""
    mailbox = new(plan=[Fault("rate_limited", retry_after=2.5)])
    with pytest.raises(MailError) as refusal:
        mailbox.send(*ADA, key="k")
    assert (refusal.value.status, refusal.value.retry_after) == (429, 2.5)
    assert not sent(mailbox, *ADA, key="k")["replayed"]
    assert outcomes(mailbox) == ["refused 429", "delivered"]


def test_two_equal_500s_hide_two_different_worlds(new):
    """Before the effect nothing is done; after it the mail is out, and its key knows."""
    mailbox = new(plan=[Fault("error_before", request=1), Fault("error_after", request=2)])
    answers = []
    for key in ("before", "after"):
        with pytest.raises(MailError) as answer:
            mailbox.send(*ADA, key=key)
        answers.append(answer.value.args)
    assert answers[0] == answers[1]
    assert [row["key"] for row in mailbox.effects()] == ["after"]
    assert sent(mailbox, *ADA, key="after") == {"id": "email-1", "replayed": True}
    assert not sent(mailbox, *ADA, key="before")["replayed"]
    assert outcomes(mailbox) == ["failed 500", "delivered", "replayed", "delivered"]


def test_a_fault_by_key_meets_every_request_with_that_key(new):
    """Other keys pass."""
    mailbox = new(plan=[Fault("error_before", key="k")])
    for _ in range(2):
        with pytest.raises(MailError):
            mailbox.send(*ADA, key="k")
    mailbox.send(*ADA, key="other")
    mailbox.plan = []
    mailbox.send(*ADA, key="k")
    assert len(mailbox.effects()) == 2


def test_requests_are_counted_by_the_ledger_not_by_the_object(new):
    """A fault of request 3 waits through a reopening."""
    plan = [Fault("error_before", request=3)]
    mailbox = new(plan=plan)
    mailbox.send(*ADA)
    mailbox.send(*ADA)
    again = new(plan=plan)
    with pytest.raises(MailError):
        again.send(*ADA)


# ── late requests ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("touch", ["send", "find", "inbox", "effects", "keys", "requests"])
def test_a_held_request_acts_at_the_first_touch_from_its_due_time(new, clock, touch):
    """Whatever the touch, the mail carries its due time and no hook hears of it."""
    mailbox = new(latency=0)
    mailbox.listen(lambda point, _key: "late" if point == "received" else None)
    with pytest.raises(TimeoutError):
        mailbox.send(*ADA, key="k", timeout=1)
    assert mailbox.effects() == []
    clock.time = START + 7
    heard = []
    mailbox.listen(lambda point, key: heard.append((point, key)))
    {
        "send": lambda: mailbox.send(*ADA, key="other"),
        "find": lambda: mailbox.find("k"),
        "inbox": mailbox.inbox,
        "effects": mailbox.effects,
        "keys": mailbox.keys,
        "requests": mailbox.requests,
    }[touch]()
    assert "k" not in [key for _point, key in heard]
    first = mailbox.effects()[0]
    assert (first["key"], first["time"]) == ("k", START + 5)
    assert mailbox.requests()[0]["fault"] == "request_late"


def test_held_requests_act_in_order_of_their_due_time(new, clock):
    """A request sent later and due earlier acts first."""
    mailbox = new(plan=[Fault("request_late", key=k, seconds=s) for k, s in [("a", 60), ("b", 9)]])
    for key in ("a", "b"):
        with pytest.raises(TimeoutError):
            mailbox.send(*ADA, key=key, timeout=1)
    clock.advance(100)
    assert [row["key"] for row in mailbox.effects()] == ["b", "a"]


def test_a_late_request_after_its_retry_is_deduplicated(new, clock):
    """The retry delivered; the late original is only a replay."""
    mailbox = new(plan=[Fault("request_late", request=1, seconds=10)])
    with pytest.raises(TimeoutError):
        mailbox.send(*ADA, key="k", timeout=1)
    assert not sent(mailbox, *ADA, key="k")["replayed"]
    clock.advance(10)
    assert len(mailbox.effects()) == 1
    assert outcomes(mailbox) == ["replayed", "delivered"]


def test_absent_was_only_late(new, clock):
    """At a queryable service, resending on absent delivers twice."""
    mailbox = new(profile="queryable", plan=[Fault("request_late", request=1, seconds=10)])
    with pytest.raises(TimeoutError):
        mailbox.send(*ADA, key="k", timeout=1)
    assert mailbox.find("k") is None
    mailbox.send(*ADA, key="k")
    clock.advance(10)
    assert len(mailbox.effects()) == 2


def test_a_late_malformed_request_does_nothing_for_ever(new, clock):
    """Its caller learns no more than that no reply came."""
    mailbox = new(plan=[Fault("request_late")])
    with pytest.raises(TimeoutError):
        mailbox.send("a\nb", "s", "b")
    clock.advance(100)
    assert mailbox.effects() == []
    assert outcomes(mailbox) == ["refused 422"]


# ── the hook ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("plan", "second", "points"),
    [
        ([], False, ["arriving", "received", "acted", "replied"]),
        ([], True, ["arriving", "received", "acted", "replied"]),
        ([Fault("request_lost")], False, ["arriving", "received"]),
        ([Fault("request_late")], False, ["arriving", "received", "held"]),
        ([Fault("rate_limited")], False, ["arriving", "received", "replied"]),
        ([Fault("error_before")], False, ["arriving", "received", "replied"]),
        ([Fault("error_after")], False, ["arriving", "received", "acted", "replied"]),
        ([Fault("reply_lost")], False, ["arriving", "received", "acted"]),
        ([Fault("reply_late", seconds=99)], False, ["arriving", "received", "acted"]),
    ],
)
def test_the_hook_hears_the_steps_in_order(new, plan, second, points):
    """Also of a replay, and of an answer that is a refusal."""
    mailbox = new()
    if second:
        mailbox.send(*ADA, key="k")
    mailbox.plan = plan
    heard = []
    mailbox.listen(lambda point, key: heard.append((point, key)))
    with contextlib.suppress(TimeoutError, MailError):
        mailbox.send(*ADA, key="k")
    assert heard == [(point, "k") for point in points]
    mailbox.listen(None)
    mailbox.plan = []
    mailbox.send(*ADA, key="k")
    assert len(heard) == len(points)


@pytest.mark.parametrize(
    ("point", "effects", "outcome"),
    [("received", 0, "received"), ("acted", 1, "delivered"), ("replied", 1, "delivered")],
)
def test_a_raising_hook_leaves_what_was_committed(new, point, effects, outcome):
    """A BaseException passes through, and the mailbox works on afterwards."""
    mailbox = new()
    mailbox.listen(stop_at(point))
    with pytest.raises(Stop):
        mailbox.send(*ADA, key="k")
    assert (len(mailbox.effects()), outcomes(mailbox)) == (effects, [outcome])
    mailbox.listen(None)
    assert sent(mailbox, *ADA, key="k")["replayed"] == bool(effects)


def test_the_hook_may_use_the_mailbox(new):
    """It is called with no lock held and no transaction open."""
    mailbox = new()
    seen = []
    mailbox.listen(lambda _point, _key: seen.append(len(mailbox.effects())))
    mailbox.send(*ADA)
    assert seen == [0, 0, 1, 1]


# ── the ledger ───────────────────────────────────────────────────────────────────────────────────


def test_a_ledger_is_opened_and_an_empty_folder_is_an_empty_world(new, tmp_path):
    """Going back to a folder finds its mails; ids start anew in a new one."""
    mailbox = new()
    mailbox.send(*ADA, key="k")
    mailbox.fresh(tmp_path / "new" / "world")
    assert mailbox.effects() == []
    assert sent(mailbox, *ADA, key="k") == {"id": "email-1", "replayed": False}
    mailbox.fresh(tmp_path)
    assert sent(mailbox, *ADA, key="k")["replayed"]


def test_the_ledger_is_readable_by_its_owner_only(new, tmp_path):
    """Also the files beside it."""
    mailbox = new()
    mailbox.send(*ADA)
    files = sorted(tmp_path.glob("mail.db*"))
    assert files[0].name == "mail.db"
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_no_mail_is_taken_back(new, tmp_path):
    """Update and delete of a delivered mail are refused by the file itself."""
    new().send(*ADA)
    db = sqlite3.connect(tmp_path / "mail.db")
    for statement in ("DELETE FROM mail", "UPDATE mail SET body = ''"):
        with pytest.raises(sqlite3.IntegrityError, match="cannot be"):
            db.execute(statement)
    db.close()


def test_effect_and_key_are_written_together_or_not_at_all(new, tmp_path):
    """When the mail cannot be written, its key is not remembered either."""
    mailbox = new()
    db = sqlite3.connect(tmp_path / "mail.db", isolation_level=None)
    db.execute(
        "CREATE TRIGGER full BEFORE INSERT ON mail BEGIN SELECT RAISE (ABORT, 'disk full'); END"
    )
    with pytest.raises(sqlite3.IntegrityError, match="disk full"):
        mailbox.send(*ADA, key="k")
    assert (mailbox.effects(), mailbox.keys()) == ([], [])
    db.execute("DROP TRIGGER full")
    db.close()
    assert not sent(mailbox, *ADA, key="k")["replayed"]


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


def test_a_closed_mailbox_says_so_and_fresh_opens_it(new, tmp_path):
    """Closing twice is no mistake; touching a closed one is."""
    mailbox = new()
    mailbox.close()
    mailbox.close()
    with pytest.raises(RuntimeError, match="fresh"):
        mailbox.effects()
    mailbox.fresh(tmp_path)
    assert mailbox.effects() == []


def test_a_private_folder_goes_with_its_mailbox():
    """Nothing is left in the temporary directory."""
    mailbox = Mailbox()
    folder = mailbox.folder
    assert folder.is_dir()
    del mailbox
    assert not folder.exists()


# ── at the same time ─────────────────────────────────────────────────────────────────────────────


def test_twenty_threads_with_one_key_cause_one_effect(tmp_path):
    """Everyone gets the same id, over one mailbox and over two on the same folder."""
    boxes = [Mailbox(tmp_path, clock=ManualClock()) for _ in range(2)]
    together = threading.Barrier(20)

    def send(number):
        together.wait()
        return boxes[number % 2].send(*ADA, key="k")

    with ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(send, range(20)))
    assert {reply["id"] for reply in replies} == {"email-1"}
    assert outcomes(boxes[0]).count("delivered") == 1
    assert len(boxes[0].effects()) == 1
    assert [row["number"] for row in boxes[0].requests()] == list(range(1, 21))
    for box in boxes:
        box.close()


def run_child(code, *arguments):
    """Start a new interpreter on a piece of code that has ADA and Mailbox at hand."""
    head = f"import os, signal, sys\nfrom durakit.mail import Fault, Mailbox\nADA = {ADA!r}\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + textwrap.dedent(code), *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_with_the_same_keys_cause_one_effect_each(tmp_path):
    """They start in an empty folder at once and agree on every id."""
    children = [
        run_child(
            """
            print("ready", flush=True)
            sys.stdin.readline()
            mailbox = Mailbox(sys.argv[1], latency=0)
            import json
            print(json.dumps([mailbox.send(*ADA, key=f"k{n}") for n in range(30)]))
            """,
            tmp_path,
        )
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    replies = [json.loads(child.communicate(timeout=20)[0]) for child in children]
    assert [r["id"] for r in replies[0]] == [r["id"] for r in replies[1]]
    mailbox = Mailbox(tmp_path)
    assert len(mailbox.effects()) == 30
    assert sorted(outcomes(mailbox)) == ["delivered"] * 30 + ["replayed"] * 30
    mailbox.close()


@pytest.mark.real_kill
@pytest.mark.parametrize("point", ["received", "held", "acted", "replied"])
def test_a_killed_child_leaves_the_same_rows_as_a_raised_crash(tmp_path, point):
    """SIGKILL inside the hook and an exception inside the hook cannot be told apart on disk."""
    child = run_child(
        """
        class Clock:
            def now(self): return float(sys.argv[3])
            def sleep(self, seconds): pass
        def hook(point, key):
            if point == sys.argv[2]:
                os.kill(os.getpid(), signal.SIGKILL)
            return "late" if sys.argv[2] == "held" else None
        mailbox = Mailbox(sys.argv[1], clock=Clock())
        mailbox.listen(hook)
        mailbox.send(*ADA, key="k")
        """,
        tmp_path / "killed",
        point,
        START,
    )
    child.communicate(timeout=20)
    assert child.returncode == -signal.SIGKILL

    clock = ManualClock()
    clock.sleep = lambda _seconds: None
    raised = Mailbox(tmp_path / "raised", clock=clock)

    def hook(at, _key):
        if at == point:
            raise Stop
        return "late" if point == "held" else None

    raised.listen(hook)
    with pytest.raises(Stop):
        raised.send(*ADA, key="k")
    raised.listen(None)
    killed = Mailbox(tmp_path / "killed", clock=clock)
    for later in (0, 5):
        clock.advance(later)
        assert killed.requests() == raised.requests()
        assert killed.effects() == raised.effects()
        assert killed.keys() == raised.keys()
    assert len(killed.effects()) == (0 if point == "received" else 1)
    assert sent(killed, *ADA, key="k") == {"id": "email-1", "replayed": point != "received"}
    raised.close()
    killed.close()


@pytest.mark.real_kill
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
@pytest.mark.parametrize("place", ["same folder", "new folder"])
def test_a_forked_and_killed_child_shares_the_world_safely(tmp_path, place):
    """Parent and child open their own connections; nothing committed is lost on either side."""
    mailbox = Mailbox(tmp_path / "a", clock=ManualClock())
    mailbox.send(*ADA, key="parent")
    folder = tmp_path / ("a" if place == "same folder" else "b")
    pid = os.fork()
    if pid == 0:
        try:
            if mailbox._ledger._connection is not None:
                os._exit(2)  # a connection came along through the fork
            mailbox.fresh(folder)
            mailbox.send(*ADA, key="child")
            mailbox.listen(lambda point, _key: point == "acted" and os.kill(os.getpid(), 9))
            mailbox.send(*ADA, key="last")
        finally:
            os._exit(1)
    mailbox.send(*ADA, key="meanwhile")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    mailbox.fresh(tmp_path / "a")
    mailbox.fresh(folder)
    keys = {row["key"] for row in mailbox.effects()}
    both = {"parent", "meanwhile"} if place == "same folder" else set()
    assert keys == {"child", "last"} | both
    assert sent(mailbox, *ADA, key="last")["replayed"]
    mailbox.close()


# ── the law of keys ──────────────────────────────────────────────────────────────────────────────

WINDOW = 10.0
KEPT_PROMISES = sorted(set(FAULTS) - {"key_forgotten"})  # that one breaks the law on purpose
ACTS = st.one_of(
    st.tuples(
        st.just("send"),
        st.sampled_from("ab"),
        st.sampled_from(
            [None, *KEPT_PROMISES, "late hook", *(f"stop {p}" for p in ("received", "acted"))]
        ),
        st.sampled_from([0.0, 0.01, 1.0, 4.0, 25.0]),
    ),
    st.tuples(st.just("advance"), st.sampled_from([0.5, 3.0, 5.0, 10.0, 40.0])),
    st.tuples(st.just("look")),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTS, max_size=12))
def test_at_most_one_effect_per_key_and_window(acts):
    """Whatever is sent, lost, late, refused, crashed or awaited, a window holds one mail a key."""
    with tempfile.TemporaryDirectory() as folder:
        clock = ManualClock(0.0)
        mailbox = Mailbox(
            folder, profile=replace(PROFILES["idempotent"], window=WINDOW), clock=clock
        )
        for act in acts:
            if act[0] == "advance":
                clock.advance(act[1])
            elif act[0] == "look":
                mailbox.effects()
            else:
                _send, key, trouble, seconds = act
                mailbox.plan = [
                    Fault(kind, key=key, seconds=seconds) for kind in FAULTS if kind == trouble
                ]
                mailbox.listen(
                    stop_at(trouble.removeprefix("stop "))
                    if str(trouble).startswith("stop")
                    else lambda _at, _key, late=trouble == "late hook": "late" if late else None
                )
                with contextlib.suppress(MailError, TimeoutError, Stop):
                    mailbox.send(*ADA, key=key, timeout=2.0)
                assert not mailbox._ledger._connection.in_transaction
        clock.advance(100)
        effects = mailbox.effects()
        times = [row["time"] for row in effects]
        assert times == sorted(times)
        for key in "ab":
            mine = [row["time"] for row in effects if row["key"] == key]
            assert all(b - a >= WINDOW - 1e-9 for a, b in itertools.pairwise(mine))
        delivered = [row["id"] for row in mailbox.requests() if row["outcome"] == "delivered"]
        assert sorted(delivered) == sorted(mail["id"] for mail in mailbox.inbox())
        mailbox.close()


# ── architecture ─────────────────────────────────────────────────────────────────────────────────


#: What the doors that speak a protocol may use beside the standard library.
DOORS = {"http.py": {"tornado"}, "smtp.py": {"aiosmtpd"}}


def test_the_mail_service_knows_nothing_of_the_runtime():
    """It imports the standard library and itself, and nothing heavy except in a door's own file."""
    for file in sorted((ROOT / "durakit" / "mail").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0
                names = [node.module]
            for name in names:
                own = f"{name}.".startswith("durakit.mail.")
                known = sys.stdlib_module_names | DOORS.get(file.name, set())
                assert own or name.partition(".")[0] in known, (file, name)


def test_the_mail_service_loads_without_its_doors():
    """Whoever sends in process needs neither a web server nor a mail server."""
    code = "import sys, durakit.mail; print(sorted({'tornado', 'aiosmtpd'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout == "[]\n"


def test_errors_survive_a_journey_between_processes():
    """A pickled refusal keeps its status, name, message and retry_after."""
    error = pickle.loads(pickle.dumps(NotSupported(501, "n", "m", 2.0)))  # noqa: S301
    assert (type(error), error.args) == (NotSupported, (501, "n", "m", 2.0))
    assert str(error) == "501 n: m"

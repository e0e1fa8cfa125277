"""Faults by plan, requests that are late, and plans as data; the ledger is the judge."""

import json
import re
from dataclasses import replace

import pytest
from mailroom import (
    CLAIMING,
    MAIL,
    START,
    ManualClock,
    Stop,
    asked,
    at,
    mailboxes,
    outcomes,
    says,
    sent,
    stop,
)

from durakit.mail import FAULTS, Fault, MailError, load_plan, read_plan


@pytest.fixture
def clock():
    """A clock at START."""
    return ManualClock()


@pytest.fixture
def new(tmp_path, clock):
    """Make mailboxes in this test's folder and on its clock."""
    with mailboxes(tmp_path, clock=clock) as make:
        yield make


# ── what goes wrong ───────────────────────────────────────────────────────────────────────────────


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
        mailbox.send(*MAIL, key="k", timeout=timeout)
    limit = 30 if timeout is None else timeout
    assert START + limit <= clock.now() < START + limit + 0.03
    assert (len(mailbox.effects()), outcomes(mailbox)) == (effects_now, [outcome])
    assert mailbox.requests()[0]["fault"] == fault.kind


def test_the_timeout_is_waited_out_to_the_last_bit(new, clock):
    """At this start the float sum of the waits falls short of 7 s by one bit."""
    clock.time = 0.088
    mailbox = new(plan=[Fault("reply_lost")])
    with pytest.raises(TimeoutError):
        mailbox.send(*MAIL, timeout=7.0)
    assert clock.now() >= 0.088 + 7.0


def test_a_late_reply_within_the_timeout_is_a_reply(new, clock):
    """The caller gets it when it arrives."""
    mailbox = new(plan=[Fault("reply_late", seconds=3)])
    assert mailbox.send(*MAIL, timeout=3)["id"] == "email-1"
    assert clock.now() == pytest.approx(START + 3)


def test_a_rate_limit_does_nothing_and_says_when(new):
    """Status 429 with its retry_after; the key is not remembered."""
    mailbox = new(plan=[Fault("rate_limited", retry_after=2.5)])
    with pytest.raises(MailError) as refusal:
        mailbox.send(*MAIL, key="k")
    assert (refusal.value.status, refusal.value.retry_after) == (429, 2.5)
    assert not sent(mailbox, *MAIL, key="k")["replayed"]
    assert outcomes(mailbox) == ["refused 429", "delivered"]


def test_two_equal_500s_hide_two_different_worlds(new):
    """Before the effect nothing is done; after it the mail is out, and its key knows."""
    mailbox = new(plan=[Fault("error_before", request=1), Fault("error_after", request=2)])
    answers = []
    for key in ("before", "after"):
        with pytest.raises(MailError) as answer:
            mailbox.send(*MAIL, key=key)
        answers.append(answer.value.args)
    assert answers[0] == answers[1]
    assert [row["key"] for row in mailbox.effects()] == ["after"]
    assert sent(mailbox, *MAIL, key="after") == {"id": "email-1", "replayed": True}
    assert not sent(mailbox, *MAIL, key="before")["replayed"]
    assert outcomes(mailbox) == ["failed 500", "delivered", "replayed", "delivered"]


def test_a_fault_by_key_meets_every_request_with_that_key(new):
    """Other keys pass."""
    mailbox = new(plan=[Fault("error_before", key="k")])
    for _ in range(2):
        with pytest.raises(MailError):
            mailbox.send(*MAIL, key="k")
    mailbox.send(*MAIL, key="other")
    mailbox.plan = []
    mailbox.send(*MAIL, key="k")
    assert len(mailbox.effects()) == 2


def test_requests_are_counted_by_the_ledger_not_by_the_object(new):
    """A fault of request 3 waits through a reopening."""
    plan = [Fault("error_before", request=3)]
    mailbox = new(plan=plan)
    mailbox.send(*MAIL)
    mailbox.send(*MAIL)
    again = new(plan=plan)
    with pytest.raises(MailError):
        again.send(*MAIL)


# ── late requests ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("touch", ["send", "find", "inbox", "effects", "keys", "requests"])
def test_a_held_request_acts_at_the_first_touch_from_its_due_time(new, clock, touch):
    """Whatever the touch, the mail carries its due time and no hook hears of it."""
    mailbox = new(latency=0)
    mailbox.listen(lambda point, _key: "late" if point == "received" else None)
    with pytest.raises(TimeoutError):
        mailbox.send(*MAIL, key="k", timeout=1)
    assert mailbox.effects() == []
    clock.time = START + 7
    heard = []
    mailbox.listen(lambda point, key: heard.append((point, key)))
    {
        "send": lambda: mailbox.send(*MAIL, key="other"),
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
            mailbox.send(*MAIL, key=key, timeout=1)
    clock.advance(100)
    assert [row["key"] for row in mailbox.effects()] == ["b", "a"]


def test_a_late_request_after_its_retry_is_deduplicated(new, clock):
    """The retry delivered; the late original is only a replay."""
    mailbox = new(plan=[Fault("request_late", request=1, seconds=10)])
    with pytest.raises(TimeoutError):
        mailbox.send(*MAIL, key="k", timeout=1)
    assert not sent(mailbox, *MAIL, key="k")["replayed"]
    clock.advance(10)
    assert len(mailbox.effects()) == 1
    assert outcomes(mailbox) == ["replayed", "delivered"]


def test_absent_was_only_late(new, clock):
    """At a queryable service, resending on absent delivers twice."""
    mailbox = new(profile="queryable", plan=[Fault("request_late", request=1, seconds=10)])
    with pytest.raises(TimeoutError):
        mailbox.send(*MAIL, key="k", timeout=1)
    assert mailbox.find("k") is None
    mailbox.send(*MAIL, key="k")
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


@pytest.mark.parametrize("name", CLAIMING)
def test_a_request_that_becomes_late_at_its_claim_keeps_its_key_until_it_acts(name, new, clock):
    """Its caller hears nothing, a retry hears 'in progress', and then it is one mail."""
    mailbox = new(name, latency=0)
    mailbox.listen(at("claimed", lambda: "late"))
    assert not asked(mailbox).comes
    assert mailbox.effects() == []
    retry = asked(mailbox)
    assert says(retry, mailbox.profile.in_progress)
    clock.advance(mailbox.late_after)
    assert asked(mailbox).replayed
    assert [row["time"] for row in mailbox.effects()] == [START + mailbox.late_after]
    busy = f"refused {mailbox.profile.in_progress.status}"
    assert outcomes(mailbox) == ["delivered", busy, "replayed"]


@pytest.mark.parametrize("name", CLAIMING)
def test_a_request_that_is_late_for_too_long_loses_its_key_and_does_nothing(name, new, clock):
    """Its claim counts as dead after a while, and the next request takes the key over."""
    mailbox = new(name, latency=0)
    mailbox.late_after = mailbox.profile.takeover_after + 1
    mailbox.listen(at("claimed", lambda: "late"))
    assert not asked(mailbox).comes
    clock.advance(mailbox.profile.takeover_after)
    assert asked(mailbox).status == 200
    clock.advance(1)
    assert len(mailbox.effects()) == 1
    assert outcomes(mailbox) == ["replayed", "delivered"]


def test_a_crash_where_a_claimed_request_is_held_leaves_it_at_work(new, clock):
    """The hook that hears of it dies; the request is stored, and acts at its time."""
    mailbox = new("resend", latency=0)
    mailbox.listen(lambda point, _key: stop() if point == "held" else "late" * (point == "claimed"))
    with pytest.raises(Stop):
        asked(mailbox)
    mailbox.listen(None)
    assert outcomes(mailbox) == ["held"]
    clock.advance(mailbox.late_after)
    assert asked(mailbox).replayed
    assert len(mailbox.effects()) == 1


# ── plans as data ──────────────────────────────────────────────────────────────────────────────


def test_a_plan_that_is_read_is_the_plan_that_was_written(tmp_path):
    """Every kind, by number and by key; also after a byte order mark."""
    entries = [{"kind": kind, "request": n} for n, kind in enumerate(FAULTS, 1)]
    entries += [{"kind": "rate_limited", "key": "k", "retry_after": 2.5, "seconds": 0}]
    path = tmp_path / "plan.json"
    expected = tuple(Fault(**entry) for entry in entries)
    for encoding in ("utf-8", "utf-8-sig"):
        path.write_text(json.dumps(entries), encoding)
        assert read_plan(path) == read_plan(str(path)) == expected
    assert load_plan("[]") == ()


def test_a_plan_that_is_read_goes_wrong_as_planned(new, tmp_path):
    """The first request is limited, the second one fails after its mail."""
    path = tmp_path / "plan.json"
    path.write_text('[{"kind": "rate_limited"}, {"kind": "error_after", "request": 2}]', "utf-8")
    mailbox = new(plan=read_plan(path))
    for status in (429, 500):
        with pytest.raises(MailError) as refusal:
            mailbox.send(*MAIL, key="k")
        assert refusal.value.status == status
    assert len(mailbox.effects()) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "plan: is not JSON"),
        ("[" * 100_000, "plan: is nested too deeply"),
        ('{"kind": "reply_lost"}', "plan: want a list of faults"),
        ("[7]", "fault 1: want an object, got 7"),
        ('[{"kind": "reply_lost"}, {}]', "fault 2, kind: is missing; one of request_lost"),
        ('[{"kind": "meteor"}]', "fault 1, kind: 'meteor' is none of"),
        ('[{"kind": ["reply_lost"]}]', "fault 1, kind: want a non-empty text"),
        ('[{"kind": "reply_lost", "reqest": 2}]', "fault 1, reqest: is no field of a fault"),
        ('[{"kind": "reply_lost", "request": 0}]', "fault 1, request: want a whole number from 1"),
        ('[{"kind": "reply_lost", "request": 2, "key": "k"}]', "fault 1, request: give either"),
        ('[{"kind": "reply_lost", "key": ""}]', "fault 1, key: want a non-empty text"),
        ('[{"kind": "reply_late", "seconds": -1}]', "fault 1, seconds: want seconds"),
        ('[{"kind": "reply_late", "seconds": 1e999}]', "fault 1, seconds: want seconds"),
        ('[{"kind": "reply_late", "seconds": 1%s}]' % ("0" * 400), "fault 1, seconds: want"),
        ('[{"kind": "rate_limited", "retry_after": "2"}]', "fault 1, retry_after: want seconds"),
        ('[{"kind": "reply_lost", "kind": "reply_late"}]', "kind: stands there twice"),
    ],
)
def test_a_plan_with_a_mistake_is_refused_by_the_fault_and_its_field(text, said, tmp_path):
    """Whoever wrote it finds the place: the file, which fault, which field."""
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        load_plan(text)
    path = tmp_path / "plan.json"
    path.write_text(text, "utf-8")
    with pytest.raises(ValueError, match=re.escape(f"{path}: {said}")):
        read_plan(path)


def test_a_plan_that_cannot_be_read_is_an_error_of_its_file(tmp_path):
    """Missing: OSError; not UTF-8: a ValueError with its name."""
    path = tmp_path / "plan.json"
    with pytest.raises(FileNotFoundError, match="plan.json"):
        read_plan(path)
    path.write_bytes(b'[{"kind": "\xff"}]')
    with pytest.raises(ValueError, match="plan.json"):
        read_plan(path)

"""The server side of keys: claims, takeovers, retention, and whose a key is."""

import json
from dataclasses import replace
from hashlib import sha256

import pytest
from mailroom import (
    ADA,
    ADAS,
    CLAIMING,
    COMPARING,
    EVE,
    EVES,
    KEYED,
    MAIL,
    START,
    TOKENS,
    ManualClock,
    Stop,
    asked,
    at,
    mailboxes,
    says,
    stop,
)

from durakit.mail import PROFILES, Fault, MailError, NotSupported


@pytest.fixture
def clock():
    """A clock at START."""
    return ManualClock()


@pytest.fixture
def new(tmp_path, clock):
    """Make mailboxes in this test's folder and on its clock."""
    with mailboxes(tmp_path, clock=clock, latency=0) as make:
        yield make


# ── in progress ───────────────────────────────────────────────────────────────────────────────────


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
    clock.advance(-3600)
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


# ── senders ───────────────────────────────────────────────────────────────────────────────────────

FROM_SHOP, FROM_BANK = (replace(ADA, sender=f"{who}@example.org") for who in ("shop", "bank"))


@pytest.mark.parametrize("name", KEYED)
@pytest.mark.parametrize(
    ("first", "again"), [(FROM_SHOP, FROM_BANK), (FROM_SHOP, ADA), (ADA, FROM_SHOP)]
)
def test_another_sender_under_a_key_is_another_request(name, first, again, new):
    """Changed, left out or added: refused where the whole request is compared, else a replay."""
    mailbox = new(name)
    assert asked(mailbox, first).status == 200
    answer, profile = asked(mailbox, again), mailbox.profile
    if profile.compares_bodies:
        assert says(answer, profile.other_body)
        assert answer.message == "key 'k' was used before with another from"
    else:
        assert answer.replayed
    assert asked(mailbox, first).replayed
    assert [row["from"] for row in mailbox.inbox()] == [first.sender]


@pytest.mark.parametrize("name", COMPARING)
def test_one_other_sender_in_a_batch_makes_it_another_request(name, new):
    """Each letter's sender counts."""
    mailbox = new(name)
    assert asked(mailbox, FROM_SHOP, FROM_SHOP, batch=True).status == 200
    assert says(asked(mailbox, FROM_SHOP, FROM_BANK, batch=True), mailbox.profile.other_body)
    assert asked(mailbox, FROM_SHOP, FROM_SHOP, batch=True).replayed
    assert len(mailbox.effects()) == 2


@pytest.mark.parametrize("name", [name for name in CLAIMING if name in COMPARING])
def test_a_claimed_key_is_bound_to_its_sender_too(name, new, clock):
    """In progress, and also when the claim is dead and may be taken over."""
    mailbox = new(name)
    mailbox.listen(at("claimed", stop))
    with pytest.raises(Stop):
        asked(mailbox, FROM_SHOP)
    for wait in (0, mailbox.profile.takeover_after):
        clock.advance(wait)
        assert says(asked(mailbox, FROM_BANK), mailbox.profile.other_body)
    assert asked(mailbox, FROM_SHOP).status == 200
    assert [row["from"] for row in mailbox.inbox()] == [FROM_SHOP.sender]


def test_a_mail_shows_its_sender_wherever_it_is_shown(new, clock):
    """In the inbox and to who asks, also after a delay; and it is part of the effect's digest."""
    mailbox = new("idempotent", plan=[Fault("request_late", request=2, seconds=5)])
    mailbox.send(*MAIL, sender="shop@example.org")
    with pytest.raises(TimeoutError):
        mailbox.send(*MAIL, sender="bank@example.org", timeout=1)
    mailbox.send(*MAIL)
    clock.advance(5)
    assert [row["from"] for row in mailbox.inbox()] == [
        "shop@example.org", None, "bank@example.org",
    ]  # fmt: skip
    assert mailbox.get_mail("email-3").body["from"] == "bank@example.org"
    digests = [row["digest"] for row in mailbox.effects()]
    assert len(set(digests)) == 3
    said = {"body": ADA.body, "from": "shop@example.org", "subject": ADA.subject, "to": ADA.to}
    assert digests[0] == sha256(json.dumps(said, separators=(",", ":")).encode()).hexdigest()


@pytest.mark.parametrize("sender", [7, "", " ", "a\nBcc: eve@example.org", ["a@example.org"]])
def test_a_sender_that_is_none_is_refused_by_its_field(sender, new):
    """It need not be given; but what is given is one line of text."""
    mailbox = new("resend")
    answer = asked(mailbox, replace(ADA, sender=sender))
    assert says(answer, mailbox.profile.invalid)
    assert answer.message.startswith("from ")
    assert mailbox.effects() == []


# ── retention ─────────────────────────────────────────────────────────────────────────────────────


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


# ── accounts and tools ────────────────────────────────────────────────────────────────────────────


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

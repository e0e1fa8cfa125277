"""The mail service: what it promises, what it forgets, and what it refuses."""

import ast
import contextlib
import doctest
import pickle
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256

import pytest
from mailroom import (
    ADA,
    MAIL,
    ROOT,
    START,
    ManualClock,
    Stop,
    at,
    mailboxes,
    outcomes,
    sent,
    stop,
)

import durakit.mail
from durakit.mail import PROFILES, Fault, Mailbox, MailError, NotSupported, Profile


@pytest.fixture
def clock():
    """A clock at START."""
    return ManualClock()


@pytest.fixture
def new(tmp_path, clock):
    """Make mailboxes in this test's folder and on its clock."""
    with mailboxes(tmp_path, clock=clock) as make:
        yield make


# ── the plain exchange ────────────────────────────────────────────────────────────────────────────


def test_the_guides_example_runs_as_it_stands():
    """A reader who types it in, and imports no more than it does, sees what it says."""
    failed, tried = doctest.testmod(durakit.mail, globs={})
    assert tried
    assert not failed


def test_a_mail_is_delivered_once_and_shown_to_its_customer(new, clock):
    """One send gives one mail, one effect and a reply after one latency."""
    mailbox = new()
    assert sent(mailbox, *MAIL, key="k") == {"id": "email-1", "replayed": False}
    assert clock.now() == pytest.approx(START + 0.05)
    (mail,) = mailbox.inbox()
    assert (mail["id"], mail["to"], mail["subject"], mail["body"]) == ("email-1", *MAIL)
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
        mailbox.send(*MAIL, key="a")
    ids = [mailbox.send(*MAIL, key=key)["id"] for key in ("a", "a", "b", None, None)]
    assert ids == ["email-1", "email-1", "email-2", "email-3", "email-4"]


def test_the_same_calls_give_the_same_rows(tmp_path):
    """Two worlds with equal clocks and calls have equal ledgers, row for row."""
    worlds = []
    for name in ("one", "two"):
        mailbox = Mailbox(tmp_path / name, clock=ManualClock(), plan=[Fault("error_after")])
        for key in ("a", "a", "b"):
            try:
                mailbox.send(*MAIL, key=key)
            except MailError:
                mailbox.clock.advance(1)
        worlds.append((mailbox.effects(), mailbox.keys(), mailbox.requests(), mailbox.inbox()))
        mailbox.close()
    assert worlds[0] == worlds[1]


def test_real_time_is_the_default_clock():
    """Without a clock the mail's time is the machine's, and the private folder is made."""
    mailbox = Mailbox(latency=0)
    mailbox.send(*MAIL)
    assert mailbox.inbox()[0]["time"] > START


# ── what a profile promises ───────────────────────────────────────────────────────────────────────


def test_a_remembered_key_replays_the_reply(new):
    """The second request with a key gets the first one's id and adds no effect."""
    mailbox = new()
    first = mailbox.send(*MAIL, key="k")
    assert sent(mailbox, *MAIL, key="k") == {**first, "replayed": True}
    assert len(mailbox.effects()) == 1
    assert outcomes(mailbox) == ["delivered", "replayed"]


def test_no_key_means_no_deduplication(new):
    """Without a key even an idempotent service delivers twice."""
    mailbox = new()
    mailbox.send(*MAIL)
    mailbox.send(*MAIL)
    assert len(mailbox.effects()) == 2
    assert mailbox.keys() == []


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_a_key_with_another_mail_is_refused(new, changed):
    """To, subject and body all belong to what a key stands for."""
    mailbox = new()
    mailbox.send(*MAIL, key="k")
    other = [*MAIL]
    other[changed] = "other"
    with pytest.raises(MailError) as refusal:
        mailbox.send(*other, key="k")
    assert (refusal.value.status, refusal.value.name) == (409, "invalid_idempotent_request")
    assert outcomes(mailbox) == ["delivered", "refused 409"]
    assert len(mailbox.effects()) == 1


def test_a_service_that_does_not_compare_bodies_replays_the_first_mail(new):
    """With compares_bodies off, changed text is silently answered with the old mail."""
    mailbox = new(profile=replace(PROFILES["idempotent"], compares_bodies=False))
    mailbox.send(*MAIL, key="k")
    assert sent(mailbox, "eve@example.org", "s", "b", key="k")["replayed"]
    assert [mail["to"] for mail in mailbox.inbox()] == [ADA.to]


def test_a_key_is_forgotten_a_window_after_its_first_sight(new, clock):
    """A replay does not extend the window; afterwards the same key is a new request."""
    mailbox = new(latency=0)
    mailbox.send(*MAIL, key="k")
    clock.advance(86_399)
    assert sent(mailbox, *MAIL, key="k")["replayed"]
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
    mailbox.send(*MAIL, key="k")
    assert mailbox.find("k") == {"id": "email-1"}
    assert not sent(mailbox, *MAIL, key="k")["replayed"]
    assert mailbox.find("k") == {"id": "email-2"}
    remembered = mailbox.keys()
    assert [row["id"] for row in remembered] == ["email-1", "email-2"]


def test_a_delivered_mail_may_not_be_visible_yet(new, clock):
    """For visible_after seconds, absent does not mean not delivered."""
    mailbox = new(profile=replace(PROFILES["queryable"], visible_after=10.0), latency=0)
    mailbox.send(*MAIL, key="k")
    clock.advance(9.9)
    assert mailbox.find("k") is None
    assert len(mailbox.inbox()) == 1
    clock.advance(0.1)
    assert mailbox.find("k") == {"id": "email-1"}


def test_an_opaque_service_ignores_keys_and_cannot_be_asked(new):
    """It remembers nothing about keys, though the referee's ledger shows them."""
    mailbox = new(profile="opaque")
    mailbox.send(*MAIL, key="k")
    mailbox.send(*MAIL, key="k")
    mailbox.send(*MAIL, key="")
    assert [row["key"] for row in mailbox.effects()] == ["k", "k", ""]
    assert mailbox.keys() == []
    with pytest.raises(NotSupported) as refusal:
        mailbox.find("k")
    assert isinstance(refusal.value, MailError)


def test_find_outlives_the_window_of_an_idempotent_service(new, clock):
    """The key record is forgotten; the mail that carries the key is not."""
    mailbox = new()
    mailbox.send(*MAIL, key="k")
    clock.advance(1e6)
    assert mailbox.find("k") == {"id": "email-1"}


def test_a_stale_fence_is_refused(new):
    """A smaller fence than the highest seen with the key is refused, an equal one is not."""
    mailbox = new(profile=replace(PROFILES["opaque"], checks_fence=True))
    mailbox.send(*MAIL, key="k", fence=2)
    mailbox.send(*MAIL, key="k", fence=2)
    mailbox.send(*MAIL, key="other", fence=1)
    with pytest.raises(MailError) as refusal:
        mailbox.send(*MAIL, key="k", fence=1)
    assert (refusal.value.status, refusal.value.name) == (412, "stale_fence")
    assert outcomes(mailbox)[-1] == "refused 412"
    assert len(mailbox.effects()) == 3


def test_a_late_request_of_a_zombie_meets_the_fence(new, clock):
    """The fence is checked when a request acts, not when it was sent."""
    profile = replace(PROFILES["queryable"], checks_fence=True)
    mailbox = new(profile=profile, plan=[Fault("request_late", seconds=60)])
    with pytest.raises(TimeoutError):
        mailbox.send(*MAIL, key="k", fence=1, timeout=1)
    mailbox.send(*MAIL, key="k", fence=2)
    clock.advance(60)
    assert outcomes(mailbox) == ["refused 412", "delivered"]


# ── what is refused ───────────────────────────────────────────────────────────────────────────────


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
    good = dict(zip(("to", "subject", "body"), MAIL, strict=True))
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
    for touch in (lambda: mailbox.send(*MAIL, key=key), lambda: mailbox.find(key)):
        with pytest.raises(MailError) as refusal:
            touch()
        assert (refusal.value.status, refusal.value.name) == (400, "invalid_idempotency_key")
    assert mailbox.effects() == []
    assert mailbox.send(*MAIL, key="x" * 256)["id"] == "email-1"


@pytest.mark.parametrize("timeout", [-1, float("nan"), "3", True])
def test_a_bad_timeout_is_the_callers_mistake(new, timeout):
    """It is a ValueError, and no request was sent."""
    mailbox = new()
    with pytest.raises(ValueError, match="timeout"):
        mailbox.send(*MAIL, timeout=timeout)
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


# ── the hook ──────────────────────────────────────────────────────────────────────────────────────


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
        mailbox.send(*MAIL, key="k")
    mailbox.plan = plan
    heard = []
    mailbox.listen(lambda point, key: heard.append((point, key)))
    with contextlib.suppress(TimeoutError, MailError):
        mailbox.send(*MAIL, key="k")
    assert heard == [(point, "k") for point in points]
    mailbox.listen(None)
    mailbox.plan = []
    mailbox.send(*MAIL, key="k")
    assert len(heard) == len(points)


@pytest.mark.parametrize(
    ("point", "effects", "outcome"),
    [("received", 0, "received"), ("acted", 1, "delivered"), ("replied", 1, "delivered")],
)
def test_a_raising_hook_leaves_what_was_committed(new, point, effects, outcome):
    """A BaseException passes through, and the mailbox works on afterwards."""
    mailbox = new()
    mailbox.listen(at(point, stop))
    with pytest.raises(Stop):
        mailbox.send(*MAIL, key="k")
    assert (len(mailbox.effects()), outcomes(mailbox)) == (effects, [outcome])
    mailbox.listen(None)
    assert sent(mailbox, *MAIL, key="k")["replayed"] == bool(effects)


def test_the_hook_may_use_the_mailbox(new):
    """It is called with no lock held and no transaction open."""
    mailbox = new()
    seen = []
    mailbox.listen(lambda _point, _key: seen.append(len(mailbox.effects())))
    mailbox.send(*MAIL)
    assert seen == [0, 0, 1, 1]


# ── the end ───────────────────────────────────────────────────────────────────────────────────────


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


# ── architecture ──────────────────────────────────────────────────────────────────────────────────


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
    servers = "{'tornado', 'aiosmtpd', 'asyncio'}"
    code = f"import sys, durakit.mail; print(sorted({servers} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout == "[]\n"


def test_errors_survive_a_journey_between_processes():
    """A pickled refusal keeps its status, name, message and retry_after."""
    error = pickle.loads(pickle.dumps(NotSupported(501, "n", "m", 2.0)))  # noqa: S301
    assert (type(error), error.args) == (NotSupported, (501, "n", "m", 2.0))
    assert str(error) == "501 n: m"

"""The laws of every profile in the data: a new profile in profiles.json is tested by being there.

What is expected is written here as tables over the profile's own words (what a key stands for, the
order of the layers), never asked of the service; effects are counted in the ledger.
"""

import ast
import inspect
import itertools
import json
import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mailroom import (
    ADA,
    ADAS,
    COMPARING,
    EVE,
    KEYED,
    KEYLESS,
    TOKENS,
    asked,
    mailboxes,
    says,
)

import durakit as dk
from durakit.failures import FailureKind, classify
from durakit.mail import (
    FAULTS,
    LARGEST_BATCH,
    LAYERS,
    PROFILES,
    REMEMBERS,
    Fault,
    Letter,
    Mailbox,
    MailError,
    Profile,
    Refusal,
    Request,
    load_profiles,
)

MANY = (ADA, EVE, Letter("bob@example.org", "Welcome", "Hello Bob"))
REAL = [name for name, profile in PROFILES.items() if profile.evidence != "ours"]

#: Mails in the ledger after a fault and one retry with the same key, by what a key stands for.
#: None: nobody dedups. The retry of a late request comes before it is due; then it comes due.
AFTER_RETRY = {
    "request_lost": {"effect": 1, "answers": 1, "successes": 1, "work": 1, None: 1},
    "request_late": {"effect": 1, "answers": 1, "successes": 1, "work": 1, None: 2},
    "rate_limited": {"effect": 1, "answers": 1, "successes": 1, "work": 1, None: 1},
    "error_before": {"effect": 1, "answers": 0, "successes": 1, "work": 1, None: 1},
    "error_midway": {"effect": 1, "answers": 0, "successes": 1, "work": 1, None: 1},
    "error_after": {"effect": 1, "answers": 1, "successes": 2, "work": 1, None: 2},
    "reply_lost": {"effect": 1, "answers": 1, "successes": 1, "work": 1, None: 2},
    "reply_late": {"effect": 1, "answers": 1, "successes": 1, "work": 1, None: 2},
    "concurrent_duplicate": {"effect": 1, "answers": 1, "successes": 1, "work": 1, None: 3},
    "key_forgotten": {"effect": 1, "answers": 1, "successes": 1, "work": 1, None: 2},
}
#: (status of the first answer, 0 for none; status of the retry's; whether that is a replay).
ANSWERS = {
    "request_lost": {"effect": (0, 200, False)},
    "request_late": {"effect": (0, 200, False)},
    "rate_limited": {"effect": (429, 200, False)},
    "error_before": {"effect": (500, 200, False), "answers": (500, 500, True)},
    "error_midway": {"effect": (500, 200, False), "answers": (500, 500, True)},
    "error_after": {
        "effect": (500, 200, True), "answers": (500, 500, True),
        "successes": (500, 200, False), "work": (500, 200, False),
    },
    "reply_lost": {"effect": (0, 200, True)},
    "reply_late": {"effect": (0, 200, True)},
    "concurrent_duplicate": {"effect": (409, 200, True)},
    "key_forgotten": {"effect": (200, 200, True)},
}  # fmt: skip


@pytest.fixture
def new(tmp_path, clock):
    """Make mailboxes in this test's folder and on its clock."""
    with mailboxes(tmp_path, clock=clock, latency=0) as make:
        yield make


def expected(table, profile):
    """Look up what a table says of a profile."""
    row = table[profile.remembers if profile.dedups else None] if None in table else table
    return row if not isinstance(row, dict) else row.get(profile.remembers, row["effect"])


# ── the data ─────────────────────────────────────────────────────────────────────────────────────


def test_the_profiles_that_the_lessons_need_are_there():
    """Three for teaching, and nine services that exist."""
    assert list(PROFILES) == [
        "idempotent", "queryable", "opaque", "stripe_v1", "stripe_v2", "resend", "ietf_draft",
        "nylas", "emailit", "checkout", "postmark", "smtp",
    ]  # fmt: skip


#: From the table of facts: header, longest key, window in hours, status of a key in progress,
#: status of another body (None: not compared), replay marker.
FACTS = {
    "stripe_v1": ("Idempotency-Key", 255, 24, 409, 400, "Idempotent-Replayed"),
    "stripe_v2": ("Idempotency-Key", None, 30 * 24, 409, 400, None),
    "resend": ("Idempotency-Key", 256, 24, 409, 409, None),
    "ietf_draft": ("Idempotency-Key", None, 24, 409, 422, None),
    "nylas": ("Idempotency-Key", 256, 1, 409, 409, "Idempotent-Response"),
    "emailit": ("Idempotency-Key", 256, 24, 409, None, None),
    "checkout": ("Cko-Idempotency-Key", None, 24, 409, 409, None),
}


@pytest.mark.parametrize("name", FACTS)
def test_a_real_service_is_what_the_facts_say(name):
    """Each number was read in the service's own documents."""
    profile = PROFILES[name]
    assert (
        profile.carrier,
        profile.max_key_length,
        profile.window / 3600,
        profile.in_progress.status,
        profile.other_body.status if profile.compares_bodies else None,
        profile.replay_marker,
    ) == FACTS[name]


@pytest.mark.parametrize("name", REAL)
def test_a_real_service_names_its_sources_and_what_was_assumed(name):
    """What no source says is marked as ours, with the reason, as is every takeover time."""
    profile = PROFILES[name]
    assert profile.evidence in ("P", "S", "K")
    assert profile.sources
    if profile.takeover_after is not None:
        assert "takeover_after" in profile.assumed


def test_every_field_of_a_profile_is_documented():
    """A reader of the data finds each word explained where the class defines it."""
    body = ast.parse(inspect.getsource(Profile)).body[0].body
    for entry, after in itertools.pairwise(body):
        if isinstance(entry, ast.AnnAssign) and entry.target.id != "name":
            assert isinstance(after, ast.Expr), entry.target.id
            assert isinstance(after.value.value, str), entry.target.id


NO = '{"status": 409, "name": "n"}'
BAD_DATA = {
    "is no JSON": ("{", "Expecting"),
    "is no object": ("[]", "profiles: want an object"),
    "a profile is no object": ('{"p": 3}', "p: want an object"),
    "twice": ('{"p": {}, "p": {}}', "p: stands there twice"),
    "a field twice": ('{"p": {"window": 1, "window": 2}}', "window: stands there twice"),
    "an unknown field": ('{"p": {"windwo": 1}}', "p.windwo: is no field"),
    "a name inside": ('{"p": {"name": "q"}}', "p.name: is no field"),
    "a window as text": ('{"p": {"window": "24 h"}}', "p.window: want seconds"),
    "a negative window": ('{"p": {"window": -1}}', "p.window: want seconds"),
    "a truth as a number": ('{"p": {"dedups": 1}}', "p.dedups: want true or false"),
    "an unknown memory": ('{"p": {"remembers": "all"}}', "p.remembers: 'all' is none of"),
    "an unknown form": ('{"p": {"key_form": "quoted"}}', "p.key_form: 'quoted' is none of"),
    "an unknown shape": ('{"p": {"error_body": "xml"}}', "p.error_body: 'xml' is none of"),
    "an unknown evidence": ('{"p": {"evidence": "?"}}', "p.evidence: "),
    "no header": ('{"p": {"carrier": "Idempotency Key"}}', "p.carrier: want the name of a header"),
    "no header marker": ('{"p": {"replay_marker": ""}}', "p.replay_marker: want the name"),
    "no length": ('{"p": {"max_key_length": 0}}', "p.max_key_length: want a whole number"),
    "no pattern": ('{"p": {"key_pattern": "("}}', "p.key_pattern: "),
    "a layer missing": ('{"p": {"order": ["key", "validation"]}}', "p.order: want"),
    "a layer twice": (
        '{"p": {"order": ["authentication", "rate limit", "key", "key"]}}', "p.order: want",
    ),
    "a key of nobody": (
        '{"p": {"order": ["key", "authentication", "rate limit", "validation"]}}', "p.order: a key",
    ),
    "a refusal as a number": ('{"p": {"bad_key": 400}}', "p.bad_key: want a refusal"),
    "no refusal where one is due": ('{"p": {"failed": null}}', "p.failed: want a refusal"),
    "a refusal that agrees": (
        '{"p": {"bad_key": {"status": 200, "name": "n"}}}', "p.bad_key: status: want a number",
    ),
    "a nameless refusal": ('{"p": {"bad_key": {"status": 400}}}', "p.bad_key: "),
    "a refusal with more": (
        '{"p": {"bad_key": {"status": 400, "name": "n", "code": 1}}}', "p.bad_key: ",
    ),
    "in progress for ever": (
        '{"p": {"dedups": true, "in_progress": {"status": 409, "name": "n"}}}', "p.takeover_after:",
    ),
    "a takeover of nothing": ('{"p": {"dedups": true, "takeover_after": 1}}', "p.takeover_after:"),
    "a takeover after the window": (
        '{"p": {"dedups": true, "window": 1, "takeover_after": 2, "in_progress": ' + NO + "}}",
        "p.takeover_after: want at most",
    ),
    "in progress without keys": (
        '{"p": {"takeover_after": 1, "in_progress": {"status": 409, "name": "n"}}}',
        "p.in_progress: only",
    ),
    "a key missing without keys": (
        '{"p": {"missing_key": {"status": 400, "name": "n"}}}', "p.missing_key: only",
    ),
    "work on another body": (
        '{"p": {"dedups": true, "remembers": "work", "compares_bodies": false}}',
        "p.compares_bodies: ",
    ),
    "no address": ('{"p": {"sources": ["a book"]}}', "p.sources: want addresses"),
    "hearsay": ('{"p": {"evidence": "P"}}', "p.sources: a service that exists"),
    "an assumption of nothing": ('{"p": {"assumed": {"windwo": "?"}}}', "p.assumed: 'windwo'"),
    "an assumption without reason": ('{"p": {"assumed": {"window": ""}}}', "p.assumed: 'window'"),
    "assumptions as a list": ('{"p": {"assumed": []}}', "p.assumed: want an object"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_data_is_refused_with_the_profile_and_the_field(case):
    """Who writes a profile is told which word of which profile is wrong."""
    text, words = BAD_DATA[case]
    with pytest.raises(ValueError) as refusal:
        load_profiles(text)
    assert words in str(refusal.value)


def test_a_profile_of_ones_own_needs_only_what_differs():
    """The rest is as in the teaching profiles."""
    (mine,) = load_profiles('{"mine": {"dedups": true, "window": 60}}').values()
    assert mine == replace(PROFILES["idempotent"], name="mine", window=60, askable=False)
    assert Profile(name="mine", dedups=True, window=60) == mine


def test_what_is_not_remembered_is_told():
    """A profile says after which answers a key runs as new."""
    before = ("authentication", "rate limit", "validation")
    assert PROFILES["opaque"].not_remembered == before
    assert PROFILES["stripe_v1"].not_remembered == (*before, "other body", "in progress")
    assert PROFILES["emailit"].not_remembered == (*before, "other body", "in progress", "failure")


@pytest.mark.parametrize("name", KEYED)
def test_the_runtime_tells_a_key_in_progress_from_a_key_misused(name):
    """Both may be a 409: the first may be asked again, the second never. The names decide."""
    profile = PROFILES[name]

    def kind(no):
        error = MailError(no.status, no.name, "…")
        return classify(error, effect=True, now=0.0).kind

    if profile.in_progress is not None:
        assert kind(profile.in_progress) is FailureKind.TRANSIENT
    assert kind(profile.other_body) is FailureKind.PERMANENT
    assert kind(profile.failed) is FailureKind.UNKNOWN


# ── faults, and the retry with the same key ──────────────────────────────────────────────────────


def test_the_tables_of_this_file_know_every_fault_and_every_memory():
    """A new kind of either has to say here what it comes to."""
    assert set(AFTER_RETRY) == set(ANSWERS) == set(FAULTS)
    for row in AFTER_RETRY.values():
        assert set(row) == {*REMEMBERS, None}


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("name", PROFILES)
def test_a_fault_and_a_retry_cost_as_many_mails_as_the_profile_promises(name, kind, new, clock):
    """One for a service with keys; two where a failure released the key, or where none is known."""
    mailbox = new(name, plan=[Fault(kind, request=1, seconds=40.0)])
    for _ in range(2):
        asked(mailbox)
    clock.advance(41)
    assert len(mailbox.effects()) == expected(AFTER_RETRY[kind], mailbox.profile)


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("name", KEYED)
def test_the_retry_is_answered_as_the_profile_promises(name, kind, new, clock):
    """With the stored answer, marked where the service marks it, or by doing the work."""
    mailbox = new(name, plan=[Fault(kind, request=1, seconds=40.0)])
    profile = mailbox.profile
    first, second, replayed = expected(ANSWERS[kind], profile)
    if kind == "concurrent_duplicate":
        first = 200 if profile.in_progress is None else profile.in_progress.status
    began = clock.now()
    answer = asked(mailbox)
    comes = kind != "reply_late" and answer.comes
    assert (answer.status if comes else 0) == first
    clock.advance(1)
    retry = asked(mailbox)
    assert (retry.status, retry.replayed) == (second, replayed)
    assert retry.first == (began if replayed else None)
    marked = profile.replay_marker is not None and replayed
    assert (retry.headers.get(profile.replay_marker or "-") == "true") == marked
    if second == 500:
        assert (retry.body, retry.ids) == (answer.body, ())
        assert says(retry, profile.failed)
    else:
        (mail,) = retry.ids
        assert retry.body == {"id": mail}
        assert mail in {row["id"] for row in mailbox.inbox()}


def test_a_500_after_the_mail_is_replayed_released_or_made_good(new, tmp_path):
    """The same fault, four services, four different second answers: the lesson in one table."""
    found = {}
    for name in ("idempotent", "stripe_v1", "stripe_v2", "emailit"):
        mailbox = new(name, plan=[Fault("error_after", request=1)])
        mailbox.fresh(tmp_path / name)
        asked(mailbox)
        retry = asked(mailbox)
        found[name] = (retry.status, len(mailbox.effects()), mailbox.requests()[-1]["outcome"])
    assert found == {
        "idempotent": (200, 1, "replayed"),
        "stripe_v1": (500, 1, "replayed"),
        "stripe_v2": (200, 1, "completed"),
        "emailit": (200, 2, "delivered"),
    }


@pytest.mark.parametrize("name", KEYED)
@pytest.mark.parametrize("kind", ["rate_limited", "error_before", "error_after", "error_midway"])
def test_a_no_to_a_replay_leaves_what_is_remembered(name, kind, new):
    """After it the same key is answered as before: such a no says nothing of the first request."""
    mailbox = new(name, plan=[Fault(kind, request=2, retry_after=2.5)])
    first = asked(mailbox)
    before = mailbox.keys()
    no = asked(mailbox)
    assert no.refuses
    assert not no.replayed
    assert mailbox.keys() == before
    again = asked(mailbox)
    assert (again.body, again.replayed) == (first.body, True)
    assert len(mailbox.effects()) == 1


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize(("retry_after", "header"), [(2.5, "3"), (0, "0"), (None, None)])
def test_a_rate_limit_says_when_in_whole_seconds(name, retry_after, header, new):
    """A door sends the header as it is; in process the exact number comes along."""
    mailbox = new(name, plan=[Fault("rate_limited", retry_after=retry_after)])
    answer = asked(mailbox)
    assert says(answer, mailbox.profile.rate_limited)
    assert (answer.headers.get("Retry-After"), answer.retry_after) == (header, retry_after)


@pytest.mark.parametrize("name", PROFILES)
def test_when_an_answer_arrives_is_told_to_the_door(name, tmp_path, clock):
    """Half the latency is over when the service has acted; what never comes is infinitely late."""
    plan = [Fault("reply_late", request=2, seconds=9), Fault("reply_lost", request=3)]
    mailbox = Mailbox(tmp_path, profile=name, clock=clock, latency=4, plan=plan)
    began = clock.now()
    answers = [asked(mailbox, key=key) for key in "abc"]
    assert clock.now() == began + 3 * 2
    assert [answer.arrives for answer in answers] == [4, 9, math.inf]
    assert [answer.delay for answer in answers] == [2, 7, math.inf]
    assert [answer.comes for answer in answers] == [True, True, False]
    assert len(mailbox.effects()) == 3
    mailbox.close()


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("kind", FAULTS)
def test_the_in_process_door_says_the_same_as_the_seam(name, kind, tmp_path, clock):
    """Send raises what handle answers, in the profile's words, and leaves the same ledger."""
    ledgers, said = [], []
    for door in ("send", "handle"):
        box = Mailbox(
            tmp_path / door, profile=name, clock=dk.ManualClock(), latency=0,
            plan=[Fault(kind, request=1)],
        )  # fmt: skip
        for _ in range(2):
            if door == "handle":
                answer = asked(box)
                silent = answer.arrives > 3
                box.clock.advance(3 if silent else 0)
                said.append(None if silent else (answer.status, answer.name, answer.ids))
                continue
            try:
                reply = box.send(ADA.to, ADA.subject, ADA.body, key="k", timeout=3)
                said.append((200, None, (reply["id"],)))
            except TimeoutError:
                said.append(None)
            except MailError as error:
                said.append((error.status, error.name, ()))
        ledgers.append((box.effects(), box.keys(), box.requests()))
        box.close()
    assert said[:2] == said[2:]
    assert ledgers[0] == ledgers[1]


def keyed_send(world):
    """Return a workflow that sends one mail through this world under one key."""

    @dk.tool(effect="idempotent", window=3600)
    def send_by_profile(call, to):
        return world.send(to, "Welcome", "Hello", key=call.key.replace(":", "-"))

    @dk.workflow
    def welcome_by_profile(ctx, to):
        return ctx.call(send_by_profile, to, key="welcome:42")

    return welcome_by_profile


@pytest.mark.parametrize("name", KEYED)
def test_the_runtime_gets_its_mail_out_once_past_a_request_in_progress(name, tmp_path, clock):
    """A duplicate that is told to wait is asked again, and never counts as a failure."""
    plan = [Fault("concurrent_duplicate", request=1)]
    world = Mailbox(tmp_path / "world", profile=name, clock=clock, plan=plan)
    with dk.Runtime(tmp_path / "run.db", clock=clock, world=world) as rt:
        run = rt.run(keyed_send(world), "ada@example.org", id="w", deadline=60)
        assert (run.status, run.result) == ("completed", {"id": "email-1"})
    assert len(world.effects()) == 1
    waited = [row["outcome"] for row in world.requests()].count("refused 409")
    assert waited == (world.profile.in_progress is not None)
    world.close()


@pytest.mark.parametrize("name", ["stripe_v1", "ietf_draft", "emailit"])
def test_a_keyed_workflow_is_safe_at_every_crash_against_a_real_service(name):
    """The sweep finds no second mail and no lost one."""
    world = Mailbox(profile=name)
    report = dk.sweep(keyed_send(world), "ada@example.org", world=world)
    assert report.safe, report.text()
    world.close()


# ── another body ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", COMPARING)
@pytest.mark.parametrize("place", ["to", "subject", "body"])
def test_a_key_with_another_body_is_refused_in_the_services_own_words(name, place, new):
    """Nothing is sent, and what is remembered stays as it is."""
    mailbox = new(name)
    asked(mailbox)
    before = mailbox.keys()
    answer = asked(mailbox, replace(ADA, **{place: "other"}))
    assert says(answer, mailbox.profile.other_body)
    assert mailbox.keys() == before
    assert len(mailbox.effects()) == 1
    assert asked(mailbox).replayed


@pytest.mark.parametrize("name", [name for name in KEYED if not PROFILES[name].compares_bodies])
def test_where_bodies_are_not_compared_the_old_answer_comes_back(name, new):
    """The second mail is never sent, and its sender is told that it was."""
    mailbox = new(name)
    first = asked(mailbox)
    second = asked(mailbox, EVE)
    assert (second.status, second.ids, second.replayed) == (200, first.ids, True)
    assert [row["to"] for row in mailbox.inbox()] == [ADA.to]


@pytest.mark.parametrize("name", KEYLESS)
def test_without_keys_every_request_is_a_mail(name, new):
    """The key is seen by the referee and means nothing to the service."""
    mailbox = new(name)
    for letter in (ADA, ADA, EVE):
        assert asked(mailbox, letter).status == 200
    assert [row["key"] for row in mailbox.effects()] == ["k"] * 3
    assert not any(row["outcome"] == "replayed" for row in mailbox.requests())


# ── the window ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", KEYED)
def test_a_key_is_remembered_for_its_window_and_then_a_new_request(name, new, clock):
    """One second before its end the mail is replayed, and at its end it is sent again."""
    mailbox = new(name)
    asked(mailbox)
    clock.advance(mailbox.profile.window - 1)
    assert asked(mailbox).replayed
    clock.advance(1)
    assert mailbox.keys()[0]["expired"]
    late = asked(mailbox, EVE)
    assert (late.status, late.replayed) == (200, False)
    assert [row["to"] for row in mailbox.inbox()] == [ADA.to, EVE.to]


@pytest.mark.parametrize("name", KEYED)
def test_a_key_past_its_window_is_a_fault_that_can_be_planned(name, new):
    """Request 2 is a second mail although no time has passed."""
    mailbox = new(name, plan=[Fault("key_forgotten", request=2)])
    answers = [asked(mailbox) for _ in range(3)]
    assert [answer.replayed for answer in answers] == [False, False, True]
    assert answers[2].ids == answers[1].ids != answers[0].ids
    assert len(mailbox.effects()) == 2


# ── layers ───────────────────────────────────────────────────────────────────────────────────────

ORDERS = [
    order
    for order in itertools.permutations(LAYERS)
    if order.index("authentication") < order.index("key")
]


@pytest.mark.parametrize("order", ORDERS, ids=" < ".join)
@pytest.mark.parametrize("trouble", list(itertools.combinations(LAYERS, 2)), ids=" and ".join)
def test_the_first_layer_in_a_profiles_order_answers(order, trouble, new):
    """A request that two layers would refuse is refused by the one in front."""
    profile = replace(PROFILES["resend"], order=order)
    mailbox = new(profile, tokens=TOKENS)
    assert asked(mailbox, token=ADAS).status == 200
    if "rate limit" in trouble:
        mailbox.plan = [Fault("rate_limited", request=2)]
    letter = replace(EVE, to="") if "validation" in trouble else EVE
    key = "k" if "key" in trouble else "new"
    answer = asked(mailbox, letter, key=key, token=None if "authentication" in trouble else ADAS)
    words = {
        "authentication": profile.unauthenticated, "rate limit": profile.rate_limited,
        "validation": profile.invalid, "key": profile.other_body,
    }  # fmt: skip
    assert says(answer, words[min(trouble, key=order.index)])
    assert len(mailbox.effects()) == 1


@pytest.mark.parametrize("name", KEYED)
@pytest.mark.parametrize("layer", ["authentication", "rate limit", "validation"])
def test_an_answer_before_execution_is_never_remembered(name, layer, new):
    """The same key then works as if it had never been used, and delivers once."""
    mailbox = new(name, tokens=TOKENS)
    if layer == "rate limit":
        mailbox.plan = [Fault("rate_limited", request=1)]
    letter = replace(ADA, subject="two\nlines") if layer == "validation" else ADA
    no = asked(mailbox, letter, token="re_nobody" if layer == "authentication" else ADAS)
    profile = mailbox.profile
    assert says(
        no,
        {
            "authentication": profile.unauthenticated,
            "rate limit": profile.rate_limited,
            "validation": profile.invalid,
        }[layer],
    )
    assert (mailbox.keys(), mailbox.effects()) == ([], [])
    answer = asked(mailbox, token=ADAS)
    assert (answer.status, answer.replayed) == (200, False)


@pytest.mark.parametrize("order", ORDERS, ids=" < ".join)
def test_a_key_in_front_of_the_limiter_still_replays(order, new):
    """And behind it the limiter's word comes first, though the mail is out."""
    mailbox = new(replace(PROFILES["resend"], order=order))
    first = asked(mailbox)
    mailbox.plan = [Fault("rate_limited", request=2)]
    second = asked(mailbox)
    if order.index("key") < order.index("rate limit"):
        assert (second.body, second.replayed) == (first.body, True)
    else:
        assert says(second, PROFILES["resend"].rate_limited)


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────


def refused_keys(profile):
    """List carried keys that a profile does not take."""
    bad = ["", 7, "half \ud83d", b"bytes"]
    if profile.max_key_length is not None:
        bad.append(profile.carry("x" * (profile.max_key_length + 1)))
    if profile.key_form == "structured string":
        bad += ["bare", '"open', '""', '"a"b"', '"\\n"', '"é"', '"a\nb"', '"a";p=1']
    if profile.key_pattern.startswith("[!-~]"):
        bad += ["é", "a\nb", " a", "a ", "tab\tbed"]
    if profile.name == "emailit":  # its document: letters, digits, - and _; others are refused
        bad += ["welcome:42", "welcome/42", "a b"]
    return bad


@pytest.mark.parametrize("name", [name for name in PROFILES if PROFILES[name].uses_keys])
def test_a_malformed_key_is_refused_in_the_services_own_words(name, new):
    """Nothing is sent or remembered; the longest key that is allowed works."""
    mailbox = new(name)
    profile = mailbox.profile
    for key in refused_keys(profile):
        answer = mailbox.handle(Request((ADA,), key=key))
        assert says(answer, profile.bad_key), repr(key)
    assert (mailbox.effects(), mailbox.keys()) == ([], [])
    assert asked(mailbox, key="x" * (profile.max_key_length or 10_000)).status == 200


@pytest.mark.parametrize("key", ["k", 'with "quotes" and \\', "~ !", "x" * 300])
def test_a_structured_string_is_the_key_inside_its_quotes(key, new):
    """What the client carried and what the ledger shows are one key."""
    mailbox = new("ietf_draft")
    carried = mailbox.profile.carry(key)
    assert carried.startswith('"')
    assert mailbox.handle(Request((ADA,), key=f"  {carried} ")).status == 200
    assert mailbox.keys()[0]["key"] == mailbox.effects()[0]["key"] == key
    assert mailbox.handle(Request((ADA,), key=carried)).replayed


@pytest.mark.parametrize("name", KEYED)
def test_a_missing_key_is_refused_only_where_one_is_required(name, new):
    """Elsewhere it means that nothing is deduplicated."""
    mailbox = new(name)
    answers = [asked(mailbox, key=None) for _ in range(2)]
    missing = mailbox.profile.missing_key
    if missing is None:
        assert len(mailbox.effects()) == 2
    else:
        assert all(says(answer, missing) for answer in answers)
        assert mailbox.effects() == []


# ── shapes ───────────────────────────────────────────────────────────────────────────────────────


def test_each_service_says_no_in_its_own_shape(new):
    """A door may send the body as it is."""
    found = {}
    for name in ("stripe_v1", "resend", "ietf_draft"):
        mailbox = new(name)
        asked(mailbox, key=name)
        answer = asked(mailbox, EVE, key=name)
        found[name] = {**answer.body, "headers": answer.headers}
        text = answer.message
        assert text in json.dumps(answer.body)
    text = "key {!r} was used before with another to, subject or body".format
    assert found == {
        "stripe_v1": {
            "error": {"type": "idempotency_error", "message": text("stripe_v1")}, "headers": {},
        },
        "resend": {
            "statusCode": 409, "name": "invalid_idempotent_request", "message": text("resend"),
            "headers": {},
        },
        "ietf_draft": {
            "type": "https://developer.example.com/idempotency", "status": 422,
            "title": "Idempotency-Key is already used", "detail": text("ietf_draft"),
            "headers": {"Content-Type": "application/problem+json"},
        },
    }  # fmt: skip


# ── batches ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", PROFILES)
def test_a_batch_is_one_key_and_many_mails(name, new):
    """The answer lists them in the letters' order, and a replay lists the same."""
    mailbox = new(name)
    first = asked(mailbox, *MANY, batch=True)
    assert first.body == {"data": [{"id": one} for one in first.ids]}
    assert [mailbox.get_mail(one).body["to"] for one in first.ids] == [one.to for one in MANY]
    second = asked(mailbox, *MANY, batch=True)
    if mailbox.profile.dedups:
        assert (second.body, second.ids, second.replayed) == (first.body, first.ids, True)
        assert len(mailbox.effects()) == 3
    else:
        assert len(mailbox.effects()) == 6


@pytest.mark.parametrize("name", COMPARING)
def test_a_batch_in_another_order_or_alone_is_another_body(name, new):
    """Also a batch of one is not the same request as a single letter."""
    mailbox = new(name)
    asked(mailbox, *MANY, batch=True)
    asked(mailbox, ADA, key="one")
    for answer in (
        asked(mailbox, *reversed(MANY), batch=True),
        asked(mailbox, *MANY[:2], batch=True),
        asked(mailbox, ADA),
        asked(mailbox, ADA, key="one", batch=True),
    ):
        assert says(answer, mailbox.profile.other_body)
    assert len(mailbox.effects()) == 4


@pytest.mark.parametrize("name", PROFILES)
def test_a_batch_with_one_bad_letter_sends_none(name, new):
    """The refusal names the letter."""
    mailbox = new(name)
    answer = asked(mailbox, ADA, replace(EVE, to=""), batch=True)
    assert says(answer, mailbox.profile.invalid)
    assert answer.message == "letter 1: to is empty"
    assert mailbox.effects() == []


@pytest.mark.parametrize("count", [0, 2])
def test_a_request_that_is_no_batch_has_one_letter(count, new):
    """And a batch has one to a hundred."""
    mailbox = new("resend")
    assert mailbox.handle(Request((ADA,) * count, key="k")).name == "validation_error"
    for batch in (0, LARGEST_BATCH + 1):
        answer = mailbox.handle(Request((ADA,) * batch, key="k", batch=True))
        assert answer.name == "validation_error"
    assert mailbox.effects() == []
    assert mailbox.handle(Request((ADA,) * LARGEST_BATCH, batch=True)).status == 200


@pytest.mark.parametrize("name", KEYED)
def test_a_batch_that_failed_midway_reaches_everybody_once_after_a_retry(name, new):
    """All or nothing keeps none of it; driven to completion, the retry does only the rest."""
    mailbox = new(name, plan=[Fault("error_midway", request=1)])
    assert asked(mailbox, *MANY, batch=True).status == 500
    halfway = len(mailbox.effects())
    assert halfway == (1 if mailbox.profile.remembers == "work" else 0)
    retry = asked(mailbox, *MANY, batch=True)
    if mailbox.profile.remembers == "answers":
        assert (retry.status, len(mailbox.effects())) == (500, 0)
    else:
        assert (retry.status, len(retry.ids)) == (200, 3)
        assert Counter(row["to"] for row in mailbox.inbox()) == Counter(one.to for one in MANY)


def test_work_that_failed_twice_is_still_done_once(new):
    """Each retry goes on where the one before it stopped."""
    plan = [Fault("error_midway", request=number) for number in (1, 2)]
    mailbox = new("stripe_v2", plan=[*plan, Fault("error_after", request=3)])
    letters = tuple(Letter(f"{n}@example.org", "s", "b") for n in range(7))
    counts = []
    for _ in range(5):
        answer = asked(mailbox, *letters, batch=True)
        counts.append((answer.status, len(mailbox.effects()), answer.replayed))
    assert counts == [
        (500, 3, False), (500, 5, False), (500, 7, False), (200, 7, False), (200, 7, True),
    ]  # fmt: skip
    assert [row["to"] for row in mailbox.inbox()] == [letter.to for letter in letters]


# ── anything at all ──────────────────────────────────────────────────────────────────────────────

TEXTS = st.one_of(
    st.sampled_from(
        ["", " ", "ada@example.org", "x" * 10_000, "a\nb", "a\0b", "\ud83d", "世界", "é"]
    ),
    st.text(st.characters(codec=None, exclude_categories=()), max_size=20),
)
ANYTHING = st.one_of(TEXTS, st.none(), st.integers(), st.binary(max_size=3), st.floats())


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from(list(PROFILES)),
    key=ANYTHING,
    carried=st.booleans(),
    letters=st.lists(st.tuples(ANYTHING, ANYTHING, ANYTHING) | st.tuples(TEXTS, TEXTS, TEXTS)),
    batch=st.booleans(),
    fence=st.none() | st.integers() | TEXTS,
)
def test_whatever_comes_is_answered_as_documented(
    name, key, carried, letters, batch, fence, tmp_path
):
    """Never an exception; a refusal is one of the profile's and leaves the ledger untouched."""
    profile = PROFILES[name]
    mailbox = Mailbox(tmp_path / name, profile=profile, clock=dk.ManualClock(), latency=0)
    try:
        mails, known = mailbox.effects(), mailbox.keys()
        sent = profile.carry(key) if carried and isinstance(key, str) else key
        request = Request([Letter(*one) for one in letters], key=sent, batch=batch, fence=fence)
        answer = mailbox.handle(request)
        mailbox.replied(request)
        if answer.status == 200:
            assert len(mailbox.effects()) in (len(mails), len(mails) + len(letters))
        else:
            documented = (
                profile.invalid, profile.bad_key, profile.missing_key, profile.other_body,
            )  # fmt: skip
            assert any(says(answer, no) for no in documented if no is not None)
            assert (mailbox.effects(), mailbox.keys()) == (mails, known)
        json.dumps(answer.body).encode("ascii")
        for look in (mailbox.look_up(key), mailbox.get_mail(key)):
            assert look.status in (200, 404, 501) or says(look, profile.bad_key)
    finally:
        mailbox.close()


def test_a_refusal_is_one_kind_of_no():
    """Its status is one of an error, and it has a name."""
    with pytest.raises(ValueError, match="^status"):
        Refusal(302, "moved")
    with pytest.raises(ValueError, match="^name"):
        Refusal(400, "")

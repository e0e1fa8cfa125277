"""Clients that nobody here wrote, unchanged, against the HTTP door: ``resend`` and ``stripe``.

What the SDKs do is theirs; what it comes to, the mailbox's ledger says.
"""

import contextlib

import pytest
import resend
import stripe

from durakit.mail import Fault, Mailbox
from durakit.mail.http import HttpDoor

LETTER = {
    "from": "Shop <shop@example.org>",
    "to": ["ada@example.org"],
    "subject": "Welcome",
    "html": "<p>Hello Ada</p>",
}


@contextlib.contextmanager
def served(profile, **options):
    """Yield the address of an open door, and its mailbox."""
    mailbox = Mailbox(profile=profile, latency=0, **options)
    with contextlib.closing(mailbox), HttpDoor(mailbox) as door:
        yield door.url, mailbox


# ── resend ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def resend_at(monkeypatch):
    """Point the SDK at an address, as its own documents say: two module settings."""

    def point(url):
        monkeypatch.setattr(resend, "api_url", url)
        monkeypatch.setattr(resend, "api_key", "re_ada")

    return point


def refused(letter, key=None, send=resend.Emails.send):
    """Send what must be refused; return the SDK's error."""
    with pytest.raises(resend.exceptions.ResendError) as caught:
        send(letter, {} if key is None else {"idempotency_key": key})
    return caught.value


def said(error):
    """Return what a caller of the SDK branches on."""
    return error.code, error.error_type


def test_the_resend_sdk_sends_repeats_and_gets(resend_at):
    """Same key, same id; the mail is there under it; without a key it is sent again."""
    with served("resend") as (url, mailbox):
        resend_at(url)
        first = resend.Emails.send(LETTER, {"idempotency_key": "welcome/42"})
        again = resend.Emails.send(LETTER, {"idempotency_key": "welcome/42"})
        assert first["id"] == again["id"]
        assert len(mailbox.effects()) == 1
        email = resend.Emails.get(first["id"])
        assert (email["subject"], email["to"]) == ("Welcome", ["ada@example.org"])
        assert resend.Emails.send(LETTER)["id"] != first["id"]
        assert len(mailbox.effects()) == 2


def test_the_resend_sdk_sends_a_batch_once(resend_at):
    """One key for all letters."""
    with served("resend") as (url, mailbox):
        resend_at(url)
        letters = [LETTER, LETTER | {"to": "bob@example.org"}]
        answers = [resend.Batch.send(letters, {"idempotency_key": "team/1"}) for _ in range(2)]
        assert [[one["id"] for one in answer["data"]] for answer in answers] == [
            ["email-1", "email-2"]
        ] * 2
        assert len(mailbox.effects()) == 2


def test_the_resend_sdk_gets_each_documented_conflict(resend_at):
    """Two of them share 409, so a client must branch on the name."""
    with served("resend", plan=[Fault("concurrent_duplicate", 1)]) as (url, mailbox):
        resend_at(url)
        busy = refused(LETTER, "welcome/42")
        changed = refused(LETTER | {"subject": "Bye"}, "welcome/42")
        malformed = refused(LETTER, "k" * 257)
        assert said(busy) == (409, "concurrent_idempotent_requests")
        assert said(changed) == (409, "invalid_idempotent_request")
        assert said(malformed) == (400, "invalid_idempotency_key")
        assert "still running" in busy.message
        assert resend.Emails.send(LETTER, {"idempotency_key": "welcome/42"})["id"] == "email-1"
        assert len(mailbox.effects()) == 1


def test_the_resend_sdk_gets_the_other_refusals_as_its_own_types(resend_at):
    """Rate limit with its header, validation, a key to come in with, and what is not there."""
    plan = [Fault("rate_limited", 1, retry_after=3)]
    with served("resend", plan=plan, tokens={"re_ada": "ada"}) as (url, mailbox):
        resend_at(url)
        limit = refused(LETTER)
        assert isinstance(limit, resend.exceptions.RateLimitError)
        assert limit.headers["Retry-After"] == "3"
        invalid = refused(LETTER | {"to": []})
        assert isinstance(invalid, resend.exceptions.ValidationError)
        with pytest.raises(resend.exceptions.ResendError) as missing:
            resend.Emails.get("email-1")
        assert said(missing.value) == (404, "not_found")
        resend.api_key = "re_eve"
        assert isinstance(refused(LETTER), resend.exceptions.MissingApiKeyError)
        assert mailbox.effects() == []


@pytest.mark.parametrize(("fault", "name"), [
    ("error_after", "internal_server_error"), ("reply_lost", "HttpClientError"),
])  # fmt: skip
def test_to_the_resend_sdk_a_lost_reply_looks_like_a_failure(resend_at, fault, name):
    """It says 500 for both, and both times the mail is out: only the key makes a retry safe."""
    with served("resend", plan=[Fault(fault)]) as (url, mailbox):
        resend_at(url)
        assert said(refused(LETTER, "welcome/42")) == (500, name)
        assert len(mailbox.effects()) == 1
        assert resend.Emails.send(LETTER, {"idempotency_key": "welcome/42"})["id"] == "email-1"
        assert len(mailbox.effects()) == 1


# ── stripe ───────────────────────────────────────────────────────────────────────────────────────

FORM = {"to": "ada@example.org", "subject": "Welcome", "text": "Hello Ada"}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    """Let the SDK's first wait, always half a second, be next to nothing."""
    monkeypatch.setattr(stripe.HTTPClient, "INITIAL_DELAY", 0.001)
    monkeypatch.setattr(stripe.HTTPClient, "MAX_DELAY", 0.001)


@contextlib.contextmanager
def stripe_client(url, retries=2):
    """Yield a client of the SDK; a new one is what a restarted process has."""
    http = stripe.RequestsClient()
    client = stripe.StripeClient(
        "sk_test_1", base_addresses={"api": url}, max_network_retries=retries, http_client=http
    )
    try:
        yield client
    finally:
        http.close()


def send(client, key=None, form=FORM):
    """Send a letter through the SDK's own request."""
    options = {} if key is None else {"idempotency_key": key}
    return client.raw_request("post", "/v1/emails", **form, **options)


def keys(mailbox):
    """Return the key of each request that reached the service."""
    return [row["key"] for row in mailbox.requests()]


def test_the_automatic_key_of_the_stripe_sdk_protects_its_own_retries():
    """The reply is lost twice, the SDK sends three times under one key: one mail."""
    plan = [Fault("reply_lost", 1), Fault("reply_lost", 2)]
    with served("stripe_v1", plan=plan) as (url, mailbox), stripe_client(url) as client:
        answer = send(client)
        assert answer.data == {"id": "email-1"}
        assert answer.headers["Idempotent-Replayed"] == "true"
        assert len(keys(mailbox)) == 3
        assert len(set(keys(mailbox))) == 1
        assert len(mailbox.effects()) == 1


def test_the_automatic_key_of_the_stripe_sdk_does_not_survive_a_restart():
    """The process dies without an answer; the next one sends under a new key: two mails."""
    with served("stripe_v1", plan=[Fault("reply_lost", 1)]) as (url, mailbox):
        with stripe_client(url, retries=0) as client, pytest.raises(stripe.APIConnectionError):
            send(client)
        with stripe_client(url, retries=0) as client:
            send(client)
        assert len(set(keys(mailbox))) == 2
        assert len(mailbox.effects()) == 2


def test_a_key_of_ones_own_survives_the_restart():
    """The same two processes with the operation's key: one mail."""
    with served("stripe_v1", plan=[Fault("reply_lost", 1)]) as (url, mailbox):
        with stripe_client(url, retries=0) as client, pytest.raises(stripe.APIConnectionError):
            send(client, "welcome:42")
        with stripe_client(url, retries=0) as client:
            assert send(client, "welcome:42").data == {"id": "email-1"}
        assert set(keys(mailbox)) == {"welcome:42"}
        assert len(mailbox.effects()) == 1


def test_the_stripe_sdk_retries_a_failure_that_stripe_only_replays():
    """A 500 after the mail is what the key stands for now: each retry is told the same."""
    with served("stripe_v1", plan=[Fault("error_after", 1)]) as (url, mailbox):
        with stripe_client(url) as client, pytest.raises(stripe.APIError) as caught:
            send(client)
        assert caught.value.http_status == 500
        assert caught.value.headers["Idempotent-Replayed"] == "true"
        assert [row["outcome"] for row in mailbox.requests()][1:] == ["replayed", "replayed"]
        assert len(mailbox.effects()) == 1


def test_the_stripe_sdk_tells_a_conflict_from_a_request_in_progress():
    """Another body is an IdempotencyError (400); in progress is 409, which it retries by itself."""
    plan = [Fault("concurrent_duplicate", 2)]
    with served("stripe_v1", plan=plan) as (url, mailbox), stripe_client(url) as client:
        send(client, "a")
        assert send(client, "b").data == {"id": "email-2"}
        assert [row["outcome"] for row in mailbox.requests()].count("refused 409") == 1
        with pytest.raises(stripe.IdempotencyError) as caught:
            send(client, "b", FORM | {"subject": "Bye"})
        assert caught.value.http_status == 400
        assert len(mailbox.effects()) == 2


def test_the_stripe_sdk_does_not_retry_a_rate_limit():
    """429 comes from in front of the key, and is handed to the caller at once."""
    with served("stripe_v1", plan=[Fault("rate_limited", 1)]) as (url, mailbox):
        with stripe_client(url) as client, pytest.raises(stripe.RateLimitError):
            send(client)
        assert len(mailbox.requests()) == 1
        assert mailbox.effects() == []


def test_the_stripe_sdk_is_told_of_its_other_mistakes():
    """A malformed letter and an unknown token, as its own types."""
    with (
        served("stripe_v1", tokens={"sk_other": "ada"}) as (url, mailbox),
        stripe_client(url) as client,
    ):
        with pytest.raises(stripe.AuthenticationError):
            send(client)
        mailbox.tokens = None
        with pytest.raises(stripe.InvalidRequestError, match="subject is missing"):
            send(client, form={"to": "ada@example.org", "text": "Hello"})
        assert mailbox.effects() == []


def test_the_second_version_of_stripe_tries_again_what_the_first_only_repeats():
    """A failure before the mail: version 1 answers its 500 for ever, version 2 does the work."""
    outcomes = {}
    for version in ("v1", "v2"):
        with (
            served(f"stripe_{version}", plan=[Fault("error_before", 1)]) as (url, mailbox),
            stripe_client(url) as client,
        ):
            try:
                outcome = client.raw_request("post", f"/{version}/emails", **FORM).data["id"]
            except stripe.APIError as error:
                outcome = error.http_status
            outcomes[version] = (outcome, len(mailbox.requests()), len(mailbox.effects()))
    assert outcomes == {"v1": (500, 3, 0), "v2": ("email-1", 2, 1)}

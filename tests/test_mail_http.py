"""The HTTP door: real sockets, real clients, and the ledger as the judge."""

import asyncio
import contextlib
import logging
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import quote, urlencode

import httpx
import pytest
from mail_client import LETTER, OTHER, TLS, name_of, no_answer, post, post_to, served
from mailroom import KEYED, TOKENS

import durakit as dk
from durakit.mail import PROFILES, Answer, Fault, Mailbox
from durakit.mail.http import HttpDoor

# ── what it takes ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("profile", PROFILES)
def test_a_letter_becomes_one_mail_and_its_key_is_kept_as_the_profile_says(profile):
    """The second request is a replay, marked where the profile marks it; or a second mail."""
    known = PROFILES[profile]
    with served(profile) as (client, mailbox):
        key = None if known.carrier is None else "welcome-42"
        first, second = (post(client, key, profile=profile) for _ in range(2))
        assert (first.status_code, first.json()) == (200, {"id": "email-1"})
        expected = "email-1" if known.dedups else "email-2"
        assert (second.status_code, second.json()) == (200, {"id": expected})
        assert len(mailbox.effects()) == (1 if known.dedups else 2)
        if known.replay_marker is not None:
            assert known.replay_marker not in first.headers
            assert second.headers[known.replay_marker] == "true"


@pytest.mark.parametrize("profile", KEYED)
def test_each_refusal_has_the_shape_and_the_name_of_the_profile(profile):
    """Another body, a malformed key and a malformed letter: status, name, content type."""
    known = PROFILES[profile]
    with served(profile) as (client, mailbox):
        post(client, "k", profile=profile)
        cases = [
            (post(client, "", profile=profile), known.bad_key),
            (post(client, "k2", LETTER | {"to": 7}, profile=profile), known.invalid),
        ]
        if known.compares_bodies:
            cases.append((post(client, "k", OTHER, profile=profile), known.other_body))
        if known.missing_key is not None:
            cases.append((post(client), known.missing_key))
        for answer, refusal in cases:
            assert (answer.status_code, name_of(answer)) == (refusal.status, refusal.name)
            kind = "application/problem+json" if known.error_body == "problem" else None
            assert answer.headers["content-type"] == (kind or "application/json")
        assert len(mailbox.effects()) == 1


@pytest.mark.parametrize(
    ("said", "to", "body"),
    [
        ({"text": "a"}, "ada@example.org", "a"),
        ({"html": "<b>"}, "ada@example.org", "<b>"),
        ({"text": "a", "html": "<b>"}, "ada@example.org", "a\n<b>"),
        ({"text": "a", "html": None}, "ada@example.org", "a"),
        ({"text": "a", "to": ["x@y", "z@y"]}, "x@y, z@y", "a"),
        ({"text": "ünïcödé ✉"}, "ada@example.org", "ünïcödé ✉"),
    ],
)
def test_a_letter_is_read_as_at_resend(said, to, body):
    """Text, html or both; one recipient or a list of them."""
    letter = {"to": "ada@example.org", "subject": "Hi"} | said
    with served() as (client, mailbox):
        assert post(client, letter=letter).status_code == 200
        (mail,) = mailbox.inbox()
    assert (mail["to"], mail["subject"], mail["body"]) == (to, "Hi", body)


def test_a_form_is_a_letter_too():
    """It is how Stripe's clients write, and under paths with a version."""
    form = urlencode({"to": "ada@example.org", "subject": "a b", "text": "ü"})
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    with served("stripe_v1") as (client, mailbox):
        assert client.post("/v1/emails", content=form, headers=kind).status_code == 200
        assert [(mail["subject"], mail["body"]) for mail in mailbox.inbox()] == [("a b", "ü")]


def test_a_batch_is_sent_as_a_whole_or_not_at_all():
    """One key for the batch; one bad letter refuses all; a part of it is not on offer."""
    with served() as (client, mailbox):
        first, again = (post(client, "b", [LETTER, OTHER], "/emails/batch") for _ in range(2))
        assert first.json() == again.json() == {"data": [{"id": "email-1"}, {"id": "email-2"}]}
        bad = [
            post(client, "c", [LETTER, LETTER | {"to": ""}], "/emails/batch"),
            post(client, "c", [], "/emails/batch"),
            post(client, "c", [LETTER] * 101, "/emails/batch"),
            post(client, "c", LETTER, "/emails/batch"),
            client.post("/emails/batch", content=b"null"),
            post(client, "c", [LETTER], "/emails/batch", **{"x-batch-validation": "permissive"}),
        ]
        assert [name_of(answer) for answer in bad] == ["validation_error"] * len(bad)
        assert len(mailbox.effects()) == 2


def test_a_fence_comes_in_a_header_of_its_own():
    """A stale one is refused, one that is no number is malformed."""
    profile = replace(PROFILES["idempotent"], checks_fence=True)
    with served(profile) as (client, mailbox):
        statuses = [
            post(client, key, **{"Fencing-Token": fence}).status_code
            for key, fence in (("k", "2"), ("k", "1"), ("j", "one"), ("j", "9" * 5000))
        ]
        assert statuses == [200, 412, 422, 422]
        assert len(mailbox.effects()) == 1


def test_the_sender_is_kept_shown_and_compared():
    """As at Resend, where the whole request under a key is compared."""
    with served() as (client, mailbox):
        assert post(client, "k").status_code == 200
        assert mailbox.inbox()[0]["from"] == "shop@example.org"
        assert client.get("/emails/email-1").json()["from"] == "shop@example.org"
        for other in (LETTER | {"from": "bank@example.org"}, LETTER | {"from": None}):
            answer = post(client, "k", other)
            assert (answer.status_code, name_of(answer)) == (409, "invalid_idempotent_request")
        assert post(client, "k").json() == {"id": "email-1"}
        assert len(mailbox.effects()) == 1


# ── asking ────────────────────────────────────────────────────────────────────────────────────────


def test_a_mail_is_shown_to_its_account_and_to_nobody_else():
    """By id and by key: 200 for the sender; another account finds nothing, a stranger 401."""
    with served("idempotent", tokens=TOKENS) as (client, _):
        ada, eve = ({"Authorization": f"Bearer re_{name}"} for name in ("ada", "eve"))
        assert post(client, "k", **ada).json() == {"id": "email-1"}
        shown = client.get("/emails/email-1", headers=ada).json()
        assert (shown["id"], shown["to"], shown["text"]) == (
            "email-1",
            ["ada@example.org"],
            "Hello",
        )
        assert client.get("/emails?key=k", headers=ada).json() == {"data": [{"id": "email-1"}]}
        for path in ("/emails/email-1", "/emails?key=k"):
            assert client.get(path, headers=eve).status_code == 404
            for stranger in ({}, {"Authorization": "Bearer re_zoe"}, {"Authorization": "re_ada"}):
                answer = client.get(path, headers=stranger)
                assert answer.status_code == 401
                assert "Hello" not in answer.text


def test_the_same_key_of_two_accounts_is_two_operations():
    """The token decides whose key it is."""
    with served(tokens=TOKENS) as (client, mailbox):
        for name in ("ada", "eve", "ada"):
            post(client, "k", Authorization=f"bearer re_{name}")
        assert [len(mailbox.effects(account=name)) for name in ("ada", "eve")] == [1, 1]
        assert post(client, "k").status_code == 401


@pytest.mark.parametrize("key", ["a b&c=d", "ü/✉?", "%41", "+", '"q\\"'])
def test_any_key_can_be_looked_up(key):
    """What is escaped in an address is the key as it was sent (as far as a header can)."""
    mailbox = Mailbox(profile="queryable", latency=0)
    mailbox.send("ada@example.org", "Hi", "Hello", key=key)
    with contextlib.closing(mailbox), HttpDoor(mailbox) as door:
        answer = httpx.get(f"{door.url}/emails?key={quote(key, safe='')}", verify=TLS)
        assert answer.json() == {"data": [{"id": "email-1"}]}
        assert httpx.get(f"{door.url}/emails?key=%FF%FE", verify=TLS).status_code == 400
        assert httpx.get(f"{door.url}/emails?key=none", verify=TLS).status_code == 404


@pytest.mark.parametrize("key", ["ü/✉", "ключ", "k\xe9", "a\tb"])
def test_a_look_up_finds_what_was_delivered_under_the_same_key(key):
    """Header and address carry it in UTF-8: 'absent' about a delivered key would send it twice."""
    with served("queryable") as (client, mailbox):
        headers = {"Idempotency-Key": key.encode()}
        assert client.post("/emails", json=LETTER, headers=headers).status_code == 200
        assert [row["key"] for row in mailbox.effects()] == [key]
        answer = client.get("/emails", params={"key": key})
        assert answer.json() == {"data": [{"id": "email-1"}]}


def test_a_service_that_cannot_be_asked_says_so():
    """501, which is no absence; and where it can be asked, a question without a key is no good."""
    with served("idempotent") as (client, _):
        answer = client.get("/emails")
        assert (answer.status_code, name_of(answer)) == (400, "invalid_idempotency_key")
    with served("resend") as (client, _):
        assert client.get("/emails?key=k").status_code == 501
        assert client.get("/emails/email-1").status_code == 404
        assert client.get("/emails/%ff%00").status_code == 404


@pytest.mark.parametrize("path", ["/", "/email", "/emails/", "/emails/a/b", "/v3/emails"])
def test_elsewhere_is_nothing(path):
    """404 in the profile's shape; another method than get and post is 405."""
    with served("stripe_v1") as (client, _):
        assert name_of(client.get(path)) == "not_found"
        assert name_of(client.post(path, json=LETTER)) == "not_found"
        assert name_of(client.delete("/emails")) == "method_not_allowed"
        assert client.head("/emails").status_code == 405


# ── faults ────────────────────────────────────────────────────────────────────────────────────────


def test_a_lost_reply_is_a_connection_that_closes_and_the_mail_is_out():
    """The client knows nothing; the same key then gets the answer of the first."""
    with served(plan=[Fault("reply_lost")]) as (client, mailbox):
        error = no_answer(lambda: post(client, "k"))
        assert isinstance(error, httpx.RemoteProtocolError)
        assert len(mailbox.effects()) == 1
        assert post(client, "k").json() == {"id": "email-1"}
        assert len(mailbox.effects()) == 1


def test_with_patience_the_client_gives_up_first():
    """A read timeout, as when a reply is on its way for too long; the door then still works."""
    with served(plan=[Fault("reply_lost")], door={"patience": 30}, timeout=0.05) as (client, box):
        assert isinstance(no_answer(lambda: post(client, "k")), httpx.ReadTimeout)
        client.timeout = 10
        assert post(client, "k").json() == {"id": "email-1"}
        assert len(box.effects()) == 1


def test_a_late_reply_comes_to_who_waits_and_is_missed_by_who_does_not():
    """One delay, two clients: a read timeout and an answer; both mails are out."""
    plan = [Fault("reply_late", number, seconds=0.1) for number in (1, 2)]
    with served(plan=plan, timeout=0.02) as (client, mailbox):
        assert isinstance(no_answer(lambda: post(client, "a")), httpx.ReadTimeout)
        client.timeout = 10
        began = time.monotonic()
        assert post(client, "b").status_code == 200
        assert time.monotonic() - began >= 0.1
        assert len(mailbox.effects()) == 2


def test_a_lost_request_does_nothing_and_a_late_one_does_it_later():
    """Both look alike to the client."""
    plan = [Fault("request_lost", 1), Fault("request_late", 2, seconds=0.1)]
    with served(plan=plan) as (client, mailbox):
        errors = {type(no_answer(lambda: post(client))) for _ in range(2)}
        assert errors == {httpx.RemoteProtocolError}
        assert mailbox.effects() == []
        time.sleep(0.1)
        assert len(mailbox.effects()) == 1


def test_a_rate_limit_says_when_to_come_back_if_it_knows():
    """429 with Retry-After in whole seconds, rounded up; or without."""
    plan = [Fault("rate_limited", 1, retry_after=1.2), Fault("rate_limited", 2)]
    with served(plan=plan) as (client, mailbox):
        first, second = post(client, "k"), post(client, "k")
        assert (first.status_code, first.headers["retry-after"]) == (429, "2")
        assert (second.status_code, "retry-after" in second.headers) == (429, False)
        assert mailbox.effects() == []


@pytest.mark.parametrize(
    ("profile", "status", "mails"), [("stripe_v1", 500, 1), ("resend", 200, 1), ("emailit", 200, 2)]
)
def test_a_failure_after_the_mail_is_remembered_as_the_profile_says(profile, status, mails):
    """The retry is told the same 500, or of the mail that is out, or sends a second one."""
    with served(profile, plan=[Fault("error_after")]) as (client, mailbox):
        answers = [post(client, "k", profile=profile).status_code for _ in range(2)]
        assert answers == [500, status]
        assert len(mailbox.effects()) == mails


def test_a_duplicate_of_a_request_in_progress_is_told_so():
    """409 under a name of its own, and nothing is sent twice."""
    with served(plan=[Fault("concurrent_duplicate")]) as (client, mailbox):
        answer = post(client, "k")
        assert (answer.status_code, name_of(answer)) == (409, "concurrent_idempotent_requests")
        assert post(client, "k").json() == {"id": "email-1"}
        assert len(mailbox.effects()) == 1


def test_a_key_past_its_window_is_a_new_request():
    """The old promise does not hold for ever."""
    with served(plan=[Fault("key_forgotten", 2)]) as (client, mailbox):
        assert [post(client, "k").json()["id"] for _ in range(2)] == ["email-1", "email-2"]
        assert len(mailbox.effects()) == 2


class Crash(BaseException):
    """A crash that a hook plays."""


@pytest.mark.parametrize("point", ["arriving", "received", "claimed", "acted", "replied"])
def test_a_crash_in_the_mailbox_is_a_connection_that_closes(point):
    """Not a 500, not a word; and the door stays open for the next."""

    def crash(at, key):
        if at == point and key == "k":
            raise Crash

    with served() as (client, mailbox):
        mailbox.listen(crash)
        assert isinstance(no_answer(lambda: post(client, "k")), httpx.RemoteProtocolError)
        assert len(mailbox.effects()) == (point in ("acted", "replied"))
        assert post(client, "another").status_code == 200


def test_a_mailbox_that_fails_is_told_to_the_log_and_not_to_the_client(caplog):
    """No traceback leaves the house."""
    with served() as (client, mailbox):
        mailbox.close()
        with caplog.at_level(logging.ERROR):
            no_answer(lambda: post(client, "k"))
            no_answer(lambda: client.get("/emails/email-1"))
    assert len(caplog.records) == 2
    assert "this mailbox is closed" in caplog.text


def test_a_fault_of_the_door_itself_is_told_to_the_log_and_not_to_the_client(caplog, monkeypatch):
    """An answer that is no JSON: silence, not a 500 that no plan has asked for."""
    with served() as (client, mailbox):
        answer = Answer(status=200, body={"broken": object()})
        monkeypatch.setattr(mailbox, "handle", lambda _: answer)
        with caplog.at_level(logging.ERROR):
            error = no_answer(lambda: post(client))
        assert isinstance(error, httpx.RemoteProtocolError)
        assert "not JSON serializable" in caplog.text
        assert len(caplog.records) == 1


def test_a_request_that_takes_its_time_holds_up_no_other():
    """What blocks, blocks a worker; the door goes on reading and writing."""
    held, go_on = threading.Event(), threading.Event()

    def wait(point, key):
        if point == "acted" and key == "slow":
            held.set()
            assert go_on.wait(10)

    with served() as (client, mailbox), ThreadPoolExecutor(1) as pool:
        mailbox.listen(wait)
        slow = pool.submit(post_to, str(client.base_url), "slow")
        assert held.wait(10)
        try:
            assert post(client, "quick").json() == {"id": "email-2"}
            assert not slow.done()
        finally:
            go_on.set()
        assert slow.result(10).json() == {"id": "email-1"}


def test_hanging_up_cancels_nothing():
    """A client that leaves while the mailbox is at work has sent its mail all the same."""
    left, done = threading.Event(), threading.Event()

    def wait(point, key):
        if point == "received":
            assert left.wait(10)
        if point == "acted":
            done.set()

    with served(timeout=0.05) as (client, mailbox):
        mailbox.listen(wait)
        assert isinstance(no_answer(lambda: post(client, "k")), httpx.ReadTimeout)
        left.set()
        assert done.wait(10)
        assert len(mailbox.effects()) == 1


# ── opening and closing ───────────────────────────────────────────────────────────────────────────


def test_it_opens_on_loopback_only():
    """The same port on another address of this machine is still free."""
    with served() as (client, _):
        assert client.base_url.host == "127.0.0.1"
        if sys.platform == "linux":  # where all of 127/8 is this machine
            with socket.socket() as other:
                other.bind(("127.0.0.2", client.base_url.port))


def test_it_works_inside_a_running_event_loop():
    """As in a notebook: opened, used and closed in a coroutine."""

    async def cell():
        mailbox = Mailbox(profile="resend", latency=0)
        with contextlib.closing(mailbox), HttpDoor(mailbox) as door:
            async with httpx.AsyncClient(verify=TLS) as client:
                answers = [await client.post(f"{door.url}/emails", json=LETTER) for _ in range(3)]
            return [answer.status_code for answer in answers], len(mailbox.effects())

    assert asyncio.run(cell()) == ([200] * 3, 3)


def test_it_closes_cleanly_and_opens_again_at_the_same_address():
    """No thread is left, the port is free, and a client finds the service where it was."""
    with contextlib.closing(Mailbox(profile="resend", latency=0)) as mailbox:
        before = threading.active_count()
        door = HttpDoor(mailbox)
        for _ in range(2):
            door.start()
            url = door.url
            assert httpx.post(f"{url}/emails", json=LETTER, verify=TLS).status_code == 200
            with pytest.raises(RuntimeError, match="open already"):
                door.start()
            door.stop()
            door.stop()
            with pytest.raises(RuntimeError, match="not open"):
                door.url  # noqa: B018 - asking is the claim
            assert threading.active_count() == before
            with pytest.raises(httpx.ConnectError):
                httpx.get(url, verify=TLS)
        assert url.endswith(f":{door.port}")
        assert len(mailbox.effects()) == 2


def test_stopping_finishes_what_is_being_worked_on_and_cuts_off_who_waits():
    """The one at work gets its answer; the one with a reply ten seconds late gets none."""
    working, go_on = threading.Event(), threading.Event()

    def wait(point, key):
        if point == "received" and key == "slow":
            working.set()
            assert go_on.wait(10)

    ended = {}

    def send(url, key):
        with contextlib.suppress(httpx.TransportError):
            headers = {"Idempotency-Key": key}
            ended[key] = httpx.post(f"{url}/emails", json=LETTER, headers=headers).status_code

    plan = [Fault("reply_late", key="late", seconds=10)]
    with contextlib.closing(Mailbox(profile="resend", latency=0, plan=plan)) as mailbox:
        mailbox.listen(wait)
        door = HttpDoor(mailbox).start()
        clients = [threading.Thread(target=send, args=(door.url, key)) for key in ("late", "slow")]
        for client in clients:
            client.start()
        assert working.wait(10)
        while not mailbox.effects():
            time.sleep(0.005)
        stopping = threading.Thread(target=door.stop)
        stopping.start()
        go_on.set()
        for thread in (*clients, stopping):
            thread.join(5)
            assert not thread.is_alive()
        assert ended == {"slow": 200}
        assert len(mailbox.effects()) == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [("port", -1), ("port", 70000), ("port", "80"), ("workers", 0), ("patience", -1)],
)
def test_a_bad_argument_is_refused_by_its_name(field, value):
    """Before any socket is opened."""
    with (
        contextlib.closing(Mailbox()) as mailbox,
        pytest.raises(ValueError, match=field),
    ):
        HttpDoor(mailbox, **{field: value})


def test_a_port_that_is_taken_is_an_error_and_leaves_nothing():
    """An OSError, and no thread."""
    with served() as (client, mailbox):
        before = threading.active_count()
        other = HttpDoor(mailbox, client.base_url.port)
        with pytest.raises(OSError, match="in use"):
            other.start()
        other.stop()
        assert threading.active_count() == before


# ── the service is killed ─────────────────────────────────────────────────────────────────────────


#: A service that kills itself at a point of its own transaction, the first time it gets there.
SERVICE = """
import os, signal, sys
from dataclasses import replace
from durakit.mail import PROFILES, Fault, Mailbox
from durakit.mail.http import HttpDoor

folder, name, point, port = sys.argv[1:]

def die(at, key):
    if at == point:
        os.kill(os.getpid(), signal.SIGKILL)

profile = PROFILES[name]
if profile.in_progress is not None:
    profile = replace(profile, takeover_after=0.05)
plan = [Fault("request_late", seconds=0.05)] if point == "held" else []
if point == "reply lost":
    plan = [Fault("reply_lost", 1), Fault("rate_limited", 2, retry_after=7)]
mailbox = Mailbox(folder, profile=profile, plan=plan, latency=0)
mailbox.listen(die)
print(HttpDoor(mailbox, int(port)).start().url, flush=True)
signal.pause()
"""


@contextlib.contextmanager
def service(folder, profile, point, port=0):
    """Start a mail service as a process of its own; yield the process and its address."""
    words = [sys.executable, "-c", SERVICE, str(folder), profile, point, str(port)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()
            process.wait(10)


MOMENTS = [("resend", point) for point in ("arriving", "received", "held", "acted", "replied")]


@pytest.mark.real_kill
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the platform cannot kill")
@pytest.mark.parametrize(("profile", "point"), MOMENTS)
def test_after_a_killed_service_the_same_key_makes_one_mail(tmp_path, profile, point):
    """The service dies by SIGKILL at each point; a new one on the same ledger knows what to do."""
    with service(tmp_path, profile, point) as (process, url):
        no_answer(lambda: post_to(url, "k"))
        assert process.wait(10) == -signal.SIGKILL
    known = PROFILES[profile]
    if known.in_progress is not None:
        known = replace(known, takeover_after=0.05)
    with contextlib.closing(Mailbox(tmp_path, profile=known, latency=0)) as mailbox:
        if point != "held":
            assert len(mailbox.effects()) == (point in ("acted", "replied"))
        with HttpDoor(mailbox) as door:
            for _ in range(50):
                answer = post_to(door.url, "k")
                if answer.status_code == 200:
                    break
                assert (answer.status_code, name_of(answer)) == (409, known.in_progress.name)
                time.sleep(0.01)
            assert answer.json() == {"id": "email-1"}
            time.sleep(0.06 if point == "held" else 0)
            assert post_to(door.url, "k").json() == {"id": "email-1"}
            assert name_of(post_to(door.url, "k", OTHER)) == (
                known.other_body.name if known.compares_bodies else None
            )
        assert [row["key"] for row in mailbox.effects()] == ["k"]


# ── durakit as the client ─────────────────────────────────────────────────────────────────────────


WHERE = {"url": ""}


@dk.tool(effect="idempotent", window=86400, retry=dk.Retry(initial=0.5, cap=2.0, attempts=4))
def send_over_http(call, to, subject, body):
    """Send a mail through the door, as any client of a real service does."""
    answer = httpx.post(
        f"{WHERE['url']}/emails",
        json={"to": to, "subject": subject, "text": body},
        headers={"Idempotency-Key": call.key},
        timeout=10,
    )
    return answer.raise_for_status().json()


@dk.workflow
def welcome_over_http(ctx, customer):
    """Greet a customer once."""
    return ctx.call(send_over_http, customer, "Welcome", "Hello", key=f"welcome:{customer}")


@pytest.mark.real_kill
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the platform cannot kill")
def test_a_run_over_http_sends_once_though_reply_service_and_driver_are_lost(tmp_path):
    """Reply lost, driver crashed, service killed and restarted, 429 on the replay: one mail."""
    clock = dk.ManualClock()
    with (
        dk.Runtime(tmp_path / "runs.db", clock=clock, rng=random.Random(1)) as rt,
        service(tmp_path / "mail", "resend", "reply lost") as (first, WHERE["url"]),
    ):
        # The first attempt got no answer; the driver dies before it can make a second.
        crash = dk.CrashAt("send_over_http", "before_intent", attempt=2)
        run = rt.run(welcome_over_http, "ada@example.org", id="welcome:ada", crash=crash)
        assert run.crash is not None
        first.kill()
        assert first.wait(10) == -signal.SIGKILL
        port = httpx.URL(WHERE["url"]).port
        with service(tmp_path / "mail", "resend", "reply lost", port) as (_, again):
            assert again == WHERE["url"]
            before = clock.now()
            rt.recover()
            run = rt.get("welcome:ada")
            assert (run.status, run.result) == ("completed", {"id": "email-1"})
            # The service asked for seven seconds; full jitter alone would wait two at most.
            assert clock.now() - before >= 7
    with contextlib.closing(Mailbox(tmp_path / "mail", profile="resend", latency=0)) as mailbox:
        assert [row["key"] for row in mailbox.effects()] == ["welcome:ada@example.org"]
        outcomes = [row["outcome"] for row in mailbox.requests()]
        assert outcomes == ["delivered", "refused 429", "replayed"]

"""The HTTP door and clients of every kind: nonsense, too much, too many, half a request."""

import contextlib
import http.client
import json
import random
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from mail_client import LETTER, name_of, post, post_to, raw, served
from mailroom import TOKENS

from durakit.mail import PROFILES, Mailbox
from durakit.mail.http import LARGEST_BODY, HttpDoor

# ── what is no letter ─────────────────────────────────────────────────────────────────────────────


UNREADABLE = {
    "not JSON": b"{",
    "nothing": b"",
    "not UTF-8": b'{"to": "\xff"}',
    "nested": b"[" * 100_000,
    "a number of many digits": b"9" * 10_000,
    "a list": json.dumps([LETTER]).encode(),
    "a text": b'"hello"',
    "null": b"null",
    "an empty object": b"{}",
    "no subject": json.dumps({"to": "a", "text": "b"}).encode(),
    "no text": json.dumps({"to": "a", "subject": "b"}).encode(),
    "something not kept": json.dumps(LETTER | {"cc": "x@y"}).encode(),
    "a strange name": json.dumps(LETTER | {"\ud800\n" * 99: 1}).encode(),
    "half a character": json.dumps(LETTER | {"subject": "\ud800"}).encode(),
    "two lines": json.dumps(LETTER | {"subject": "a\nb"}).encode(),
    "numbers": json.dumps(LETTER | {"to": [1], "text": float("nan")}).encode(),
    "no recipients": json.dumps(LETTER | {"to": []}).encode(),
    "one name twice": b'{"to": "eve@example.org", "to": "a@b", "subject": "s", "text": "t"}',
    "a sender that is a number": json.dumps(LETTER | {"from": 7}).encode(),
    "a sender of two lines": json.dumps(LETTER | {"from": "a\nBcc: eve@example.org"}).encode(),
    "an object": json.dumps(LETTER | {"text": {"a": 1}}).encode(),
}


# A destructor that happens to run at the bottom of the deep body complains to pytest, not to us.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE)
def test_what_is_no_letter_is_refused_in_words_and_changes_nothing(body):
    """The profile's validation error, with a sentence; and the key is still free."""
    with served() as (client, mailbox):
        key = {"Idempotency-Key": "k"}
        answer = client.post("/emails", content=body, headers=key)
        assert (answer.status_code, name_of(answer)) == (400, "validation_error")
        assert 5 < len(answer.json()["message"]) < 90
        assert mailbox.effects() == mailbox.keys() == []
        assert post(client, "k").status_code == 200


# ── half a request, and more than one ─────────────────────────────────────────────────────────────


CLOSE = "Connection: close\r\n"


def request(body=None, *, key, chunks=0, more=""):
    """Write one request as bytes; its body in that many chunks, 0 with its length."""
    body = json.dumps(LETTER).encode() if body is None else body
    head = f"POST /emails HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: {key}\r\n{more}"
    if not chunks:
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    size = -(-len(body) // chunks)
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + framed + b"0\r\n\r\n"


@pytest.mark.parametrize("chunks", [0, 3])
def test_who_hangs_up_anywhere_in_a_request_has_sent_nothing(chunks):
    """Half a letter is no letter, and the key is still free; the whole one is one mail."""
    whole = request(key="k", chunks=chunks)
    with served() as (client, mailbox):
        for cut in range(1, len(whole), 7):
            said = raw(client.base_url.port, whole[:cut], ends=True)
            assert not said or said.startswith(b"HTTP/1.1 400 ")
        assert mailbox.requests() == []
        assert post(client, "k").json() == {"id": "email-1"}
        assert len(mailbox.effects()) == 1


@pytest.mark.parametrize("chunks", [1, 7, 1000])
def test_a_letter_in_chunks_is_the_same_letter(chunks):
    """However it is cut, under the same key it is a replay of the one with a length."""
    with served() as (client, mailbox):
        assert post(client, "k").json() == {"id": "email-1"}
        said = raw(
            client.base_url.port, request(key="k", chunks=chunks, more="Connection: close\r\n")
        )
        assert said.startswith(b"HTTP/1.1 200 ")
        assert said.endswith(b'{"id": "email-1"}')
        assert len(mailbox.effects()) == 1


def test_requests_one_behind_the_other_are_answered_in_their_order():
    """Pipelined: the same key twice, a refusal between, another key; one mail for each key."""
    line = b"".join(request(body, key=key) for key, body in [("a", None), ("a", None), ("b", b"{")])
    line += request(key="b", more=CLOSE)
    with served() as (client, mailbox):
        said = raw(client.base_url.port, line)
        told = [int(part[:3]) for part in said.split(b"HTTP/1.1 ")[1:]]
        assert told == [200, 200, 400, 200]
        assert [row["key"] for row in mailbox.effects()] == ["a", "b"]


@pytest.mark.parametrize(
    "more",
    ["Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n", "Transfer-Encoding: gzip\r\n"],
)
def test_a_request_of_two_lengths_is_none(more):
    """Where it ends is a question of taste then, and the rest would be somebody's next request."""
    with served() as (client, mailbox):
        said = raw(client.base_url.port, request(key="k", more=more), ends=True)
        assert said.split()[1] in (b"400", b"501")
        assert mailbox.requests() == []


@pytest.mark.parametrize("profile", ["resend", "stripe_v1", "ietf_draft"])
def test_a_request_with_two_keys_is_refused(profile):
    """Neither is taken, nor both as one: the next attempt might carry them in another order."""
    known = PROFILES[profile]
    with served(profile) as (client, mailbox):
        more = f"{known.carrier}: {known.carry('b')}\r\n{CLOSE}"
        said = raw(client.base_url.port, request(key=known.carry("a"), more=more))
        status, body = int(said.split()[1]), said.partition(b"\r\n\r\n")[2]
        assert status == known.bad_key.status
        assert name_of(httpx.Response(status, content=body)) == known.bad_key.name
        assert mailbox.effects() == mailbox.keys() == []


def test_clients_that_never_finish_their_request_hold_up_nobody():
    """A hundred beginnings of a request; the next client is served, and the door still closes."""
    with served() as (client, mailbox), contextlib.ExitStack() as lines:
        for _ in range(100):
            line = lines.enter_context(
                socket.create_connection(("127.0.0.1", client.base_url.port))
            )
            line.sendall(request(key="k")[:-5])
        assert post(client, "k").json() == {"id": "email-1"}
        assert len(mailbox.requests()) == 1


# ── size ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_body_over_one_mebibyte_is_refused_and_the_largest_is_taken():
    """At the limit 200, one byte more 413: with a length, in chunks, and far too large."""
    start = json.dumps(LETTER | {"text": ""}).encode()[:-2]
    largest = start + b"x" * (LARGEST_BODY - len(start) - 2) + b'"}'
    with served() as (client, mailbox):
        assert len(largest) == LARGEST_BODY
        assert client.post("/emails", content=largest).status_code == 200
        for body in (largest + b" ", iter([largest, b" "]), b"x" * (5 * LARGEST_BODY)):
            answer = client.post("/emails", content=body)
            assert (answer.status_code, name_of(answer)) == (413, "payload_too_large")
        assert client.post("/nowhere", content=largest + b" ").status_code == 413
        assert post(client).status_code == 200
        assert len(mailbox.effects()) == 2


@pytest.mark.parametrize("asks", [b"Expect: 100-continue\r\n", b""])
def test_who_announces_far_too_much_is_told_before_sending_it(asks):
    """The refusal comes before a single byte of the body, and then the connection is closed."""
    size = LARGEST_BODY + 1 if asks else 10**12
    with served() as (client, _):
        head = b"POST /emails HTTP/1.1\r\nHost: localhost\r\n%b" % asks
        head += b"Content-Length: %d\r\n\r\n" % size
        said = raw(client.base_url.port, head)
    assert said.startswith(b"HTTP/1.1 413 ")
    assert b"payload_too_large" in said


def test_a_body_without_end_is_cut_off():
    """In chunks that never stop: the door does not read them for ever."""
    chunk = b"10000\r\n%b\r\n" % (b"x" * 0x10000)
    most, sent = 1024, 0
    with served() as (client, _):
        with socket.create_connection(("127.0.0.1", client.base_url.port), timeout=10) as line:
            head = b"POST /emails HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            line.sendall(head)
            with contextlib.suppress(ConnectionError):
                while sent < most:
                    line.sendall(chunk)
                    sent += 1
        assert sent < most
        assert post(client).status_code == 200


# ── other ways to ask ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "x"])
def test_a_request_under_another_sites_name_is_refused_before_anything_is_told(host):
    """DNS rebinding: a browser on this machine must not read the mail to a foreign page."""
    with served() as (client, mailbox):
        assert post(client).status_code == 200
        for answer in (
            client.get("/emails/email-1", headers={"Host": host}),
            client.post("/emails", json=LETTER, headers={"Host": host}),
        ):
            assert (answer.status_code, name_of(answer)) == (421, "misdirected_request")
            assert LETTER["text"] not in answer.text
        assert len(mailbox.effects()) == 1
        good = {"Host": f"LOCALHOST:{client.base_url.port}"}
        assert client.get("/emails/email-1", headers=good).status_code == 200


# ── many at once ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("profile", ["resend", "idempotent"])
def test_two_hundred_clients_with_duplicates_make_one_mail_for_each_key(profile):
    """Each is answered, with the one id of its key or with what the profile says meanwhile."""
    clients, keys, rounds = 200, 40, 2
    draw = random.Random(7)
    plan = [[draw.randrange(keys) for _ in range(rounds)] for _ in range(clients)]

    def one(port, wanted):
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.closing(line):
            for key in wanted:
                letter = json.dumps(LETTER | {"subject": f"Number {key}"})
                line.request("POST", "/emails", letter, {"Idempotency-Key": f"k{key}"})
                answer = line.getresponse()
                answers.append((key, httpx.Response(answer.status, content=answer.read())))

    answers = []
    with contextlib.closing(Mailbox(profile=profile, latency=0)) as mailbox:
        with HttpDoor(mailbox) as door, ThreadPoolExecutor(clients) as pool:
            list(pool.map(lambda wanted: one(door.port, wanted), plan))
        effects = Counter(row["key"] for row in mailbox.effects())
    assert len(answers) == clients * rounds
    assert effects == {f"k{key}": 1 for wanted in plan for key in wanted}
    refused = {(got.status_code, name_of(got)) for _, got in answers if got.status_code != 200}
    busy = PROFILES[profile].in_progress
    assert refused <= ({(busy.status, busy.name)} if busy else set())
    ids = {(key, got.json()["id"]) for key, got in answers if got.status_code == 200}
    assert len(ids) == len(effects)


@pytest.mark.parametrize("profile", ["resend", "idempotent", "stripe_v1"])
def test_two_hundred_clients_with_one_key_at_two_doors_of_one_ledger_make_one_mail(
    profile, tmp_path
):
    """Two services on one file: each client gets the one id, or hears that it is in progress."""
    with contextlib.ExitStack() as opened:
        boxes = [
            opened.enter_context(contextlib.closing(Mailbox(tmp_path, profile=profile, latency=0)))
            for _ in range(2)
        ]
        urls = [opened.enter_context(HttpDoor(box)).url for box in boxes]
        with ThreadPoolExecutor(200) as pool:
            answers = list(pool.map(lambda n: post_to(urls[n % 2], "k"), range(200)))
        done = [answer.json() for answer in answers if answer.status_code == 200]
        busy = PROFILES[profile].in_progress
        assert done
        assert all(answer == {"id": "email-1"} for answer in done)
        refused = {name_of(answer) for answer in answers if answer.status_code != 200}
        assert refused <= ({busy.name} if busy else set())
        assert len(boxes[0].effects()) == 1


# ── anything at all ───────────────────────────────────────────────────────────────────────────────


SECRET = "ada-alone-may-read-this"  # noqa: S105 - what must not leak, and what nobody sends
#: The key of Ada's mail. Eve may guess it, and an answer may then name what she has sent.
GUESSED = "welcome-ada"


FUZZED = ("resend", "stripe_v1", "ietf_draft", "queryable")


@pytest.fixture(scope="module")
def fuzzed_doors() -> Iterator[dict[str, HttpDoor]]:
    """A door for each profile, with a secret mail of Ada's behind it."""
    with contextlib.ExitStack() as stack:
        doors = {}
        for name in FUZZED:
            mailbox = Mailbox(profile=name, latency=0, tokens=TOKENS)
            stack.enter_context(contextlib.closing(mailbox))
            key = None if PROFILES[name].carrier is None else GUESSED
            mailbox.send("ada@example.org", SECRET, SECRET, key=key, token=next(iter(TOKENS)))
            doors[name] = stack.enter_context(HttpDoor(mailbox))
        yield doors


#: Bytes of a header's value: anything but the two that end a line.
values = st.one_of(
    st.just(b""),
    st.just(b"k" * 10_000),
    st.just(GUESSED.encode()),
    st.just(b'"' + GUESSED.encode() + b'"'),
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=40),
).map(lambda value: value.replace(b"\r", b"").replace(b"\n", b""))


letters = st.fixed_dictionaries(
    {},
    optional={
        name: st.one_of(st.text(max_size=20), st.none(), st.integers(), st.lists(st.text()))
        for name in ("from", "to", "subject", "text", "html", "cc")
    },
)


bodies = st.one_of(
    letters.map(lambda letter: json.dumps(letter).encode()),
    st.lists(letters, max_size=3).map(lambda batch: json.dumps(batch).encode()),
    st.just(json.dumps(LETTER).encode()),
    st.binary(max_size=200),
)


addresses = st.one_of(
    st.sampled_from(
        [b"/emails", b"/emails/batch", b"/emails/email-1", b"/v1/emails", b"*", b"/emails?key=%ff"]
    ),
    st.just(f"/emails?key={GUESSED}".encode()),
    st.binary(max_size=20).map(lambda part: b"/emails/" + quote(part).encode()),
    st.binary(max_size=20).map(lambda part: b"/emails?" + quote(part, safe="=&;%").encode()),
)


methods = st.sampled_from([b"POST"] * 4 + [b"GET"] * 2 + [b"PUT", b"HEAD", b"NONSENSE"])


@given(
    profile=st.sampled_from(FUZZED),
    method=methods,
    address=addresses,
    key=st.none() | values,
    token=st.one_of(st.just(b"Bearer re_eve"), st.just(b"Bearer "), values),
    kind=st.sampled_from([b"application/json", b"application/x-www-form-urlencoded", b"\xff;"]),
    extra=st.none() | values,
    body=bodies,
)
@example(
    "resend", b"POST", b"/emails", b"a\x00b", b"Bearer re_eve", b"application/json", None, b"{}"
)
@example(
    "resend", b"GET", b"/emails/email-1", None, b"Bearer re_eve", b"application/json", None, b""
)
@settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_whatever_comes_is_answered_in_the_words_of_the_profile(
    fuzzed_doors, profile, method, address, key, token, kind, extra, body
):
    """Never a 500, a traceback or another account's data; and Ada's mail stays the only one."""
    door, known = fuzzed_doors[profile], PROFILES[profile]
    headers = [b"Host: localhost", b"Connection: close", b"Authorization: " + token]
    headers += [b"Content-Type: " + kind, b"Content-Length: %d" % len(body)]
    if key is not None:
        headers.append(b"Idempotency-Key: " + key)
    if extra is not None:
        headers.append(b"Fencing-Token: " + extra)
    start = method + b" " + address + b" HTTP/1.1"
    said = raw(door.port, b"\r\n".join([start, *headers, b"", body]))
    head, _, told = said.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    refusals = [getattr(known, name) for name in ("bad_key", "invalid", "unauthenticated")]
    refusals += [one for one in (known.missing_key, known.other_body) if one is not None]
    assert status in {200, 400, 404, 405, 501} | {one.status for one in refusals}
    if status == 400 and not told:  # no HTTP: refused by the server below the door
        return
    if method != b"HEAD" and status != 200:
        names = {one.name for one in refusals} | {"not_found", "method_not_allowed"}
        assert name_of(httpx.Response(status, content=told)) in names | {"not_supported"}
    assert SECRET.encode() not in said
    assert b"Traceback" not in said
    assert b'File "' not in said
    assert len(door.mailbox.effects(account="ada")) == 1


@pytest.mark.parametrize(
    "request_",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /emails HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /emails HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\xb2\r\n\r\n",
        b"POST /emails HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 9999 + b"\r\n\r\n",
        b"POST /emails HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /emails HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{}",
        b"POST /emails HTTP/1.1\r\nHost: localhost\r\nKey: " + b"k" * 70_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ],
)
def test_what_is_no_http_ends_its_own_connection_and_nothing_else(request_):
    """400, 413 or silence; no traceback; the next client is served."""
    with served() as (client, mailbox):
        said = raw(client.base_url.port, request_, ends=True)
        assert not said or said.split()[1] in (b"400", b"413")
        assert b"Traceback" not in said
        assert mailbox.effects() == []
        assert post(client).status_code == 200

"""Failures as real libraries raise them, each judged twice: for a tool with an effect and without.

The table below is the specification. Every error is made by the real thing: a server on loopback,
a socket, SQLite, pydantic, an interpreter's own limit. A row that the classifier does not reach yet
is marked with the reason; the mark is strict, so it has to go when the rule comes.
"""

import asyncio
import builtins
import concurrent.futures
import contextlib
import email.utils
import http.client
import json
import smtplib
import socket
import sqlite3
import ssl
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pydantic
import pytest
import requests
import resend
import stripe
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import durakit as dk
from durakit.failures import Failure, FailureKind, classify

# A busy machine may be slow; that is no failure.
laws = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

NOW = 1_767_258_000.0
TRANSIENT, PERMANENT = FailureKind.TRANSIENT, FailureKind.PERMANENT
UNKNOWN, INFEASIBLE = FailureKind.UNKNOWN, FailureKind.INFEASIBLE


def raised(function: Callable[..., object], *args: object, **options: object) -> Exception:
    """Return what a real call raises."""
    try:
        function(*args, **options)
    except Exception as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        return error
    return pytest.fail("it did not raise")


# -- answers of a real HTTP server -----------------------------------------------------------------


class Answering(BaseHTTPRequestHandler):
    """Answers with the status that the path names, and with the Retry-After behind it."""

    def do_POST(self) -> None:
        """Answer."""
        _, status, *floor = self.path.split("/")
        self.send_response(int(status))
        if floor:
            self.send_header("Retry-After", urllib.request.unquote(floor[0]))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A real HTTP server on loopback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as answering:
        thread = threading.Thread(target=answering.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{answering.server_address[1]}"
        answering.shutdown()
        thread.join()


def by_httpx(url: str) -> None:
    """Send a request with httpx."""
    with httpx.Client(trust_env=False, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)) as client:
        client.post(url, timeout=2).raise_for_status()


def by_urllib(url: str) -> None:
    """Send a request with the standard library."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(urllib.request.Request(url, data=b""), timeout=2).close()  # noqa: S310 - loopback


def by_requests(url: str) -> None:
    """Send a request with requests, whose answers are false where they are refusals."""
    with requests.Session() as session:
        session.trust_env = False
        session.post(url, timeout=2).raise_for_status()


CLIENTS = {"httpx": by_httpx, "urllib": by_urllib, "requests": by_requests}

STATUSES = {
    400: (PERMANENT, PERMANENT),
    401: (PERMANENT, PERMANENT),
    403: (PERMANENT, PERMANENT),
    404: (PERMANENT, PERMANENT),
    408: (UNKNOWN, TRANSIENT),
    409: (PERMANENT, PERMANENT),
    422: (PERMANENT, PERMANENT),
    425: (TRANSIENT, TRANSIENT),
    429: (TRANSIENT, TRANSIENT),
    500: (UNKNOWN, TRANSIENT),
    502: (UNKNOWN, TRANSIENT),
    503: (TRANSIENT, TRANSIENT),
    504: (UNKNOWN, TRANSIENT),
}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("status", STATUSES)
def test_an_answers_status_decides_whoever_carries_it(server, status, client):
    """Three clients with three error types, and one table."""
    error = raised(CLIENTS[client], f"{server}/{status}")
    judged = tuple(classify(error, effect=effect, now=NOW).kind for effect in (True, False))
    assert judged == STATUSES[status]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("floor", "seconds"),
    [
        ("17", 17.0),
        ("0", 0.0),
        (email.utils.formatdate(NOW + 90, usegmt=True), 90.0),
        (email.utils.formatdate(NOW - 90, usegmt=True), None),
        ("soon", None),
        ("-5", None),
        ("1.5e3", None),
        (None, None),
    ],
)
def test_a_floor_is_read_from_each_clients_answer(server, client, status, floor, seconds):
    """Seconds and dates count; what is malformed, negative or past is no floor."""
    path = f"/{status}" if floor is None else f"/{status}/{urllib.request.quote(floor)}"
    judged = classify(raised(CLIENTS[client], server + path), effect=True, now=NOW)
    assert (judged.kind, judged.retry_after) == (TRANSIENT, seconds)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 501, 505])
def test_an_answer_to_another_question_is_unknown_where_an_effect_was_possible(server, status):
    """A redirect may follow the work, and a 501 may come from a part that stands behind it."""
    error = raised(by_httpx, f"{server}/{status}")
    assert classify(error, effect=True, now=NOW).kind in (UNKNOWN, PERMANENT)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 501, 505])
def test_an_answer_that_will_be_the_same_again_is_permanent_for_a_reading_tool(server, status):
    """A redirect, and a method or version that the server does not have, do not pass by waiting."""
    error = raised(by_httpx, f"{server}/{status}")
    assert classify(error, effect=False, now=NOW).kind is PERMANENT


# -- failures without an answer --------------------------------------------------------------------


@contextlib.contextmanager
def peer(behave: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """A real peer on loopback that takes one connection, reads a request, and then misbehaves."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            # The client may already be gone, and a peer is not shut down in order.
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    connection.settimeout(2)
                    connection.recv(65_536)
                    behave(connection)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield listening.getsockname()
        thread.join(2)


def reset(connection: socket.socket) -> None:
    """Begin an answer, then tear the connection down."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def half(connection: socket.socket) -> None:
    """Begin an answer, then close in good order."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")


def silence(connection: socket.socket) -> None:
    """Take the request and say nothing until the caller has gone."""
    connection.recv(1)


def hang_up(_: socket.socket) -> None:
    """Take the request and close."""


def nonsense(connection: socket.socket) -> None:
    """Answer in no language that the client speaks."""
    connection.sendall(b"220 mail ready\r\n\r\n")


def meet(behave: Callable[[socket.socket], None], client: str, wait: float = 1.0) -> Exception:
    """Return what a client raises that sends a request to such a peer."""
    with peer(behave) as (host, port):
        url = f"http://{host}:{port}/"
        if client == "httpx":
            with httpx.Client(trust_env=False, timeout=wait) as sending:
                return raised(lambda: sending.post(url).read())
        if client == "requests":
            with requests.Session() as session:
                session.trust_env = False
                return raised(session.post, url, timeout=wait)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def whole() -> None:
            with opener.open(urllib.request.Request(url, data=b""), timeout=wait) as reply:
                reply.read()

        return raised(whole)


def nobody_listens(client: str) -> Exception:
    """Return what a client raises at an address at which nobody listens."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # never listening, and nobody else can take the port
        host, port = nobody.getsockname()
        if client == "socket":
            return raised(socket.create_connection, (host, port), timeout=2)
        return raised(CLIENTS[client], f"http://{host}:{port}/")


def socket_timeout() -> Exception:
    """Return what a bare socket raises whose peer says nothing."""
    with peer(silence) as address, socket.create_connection(address, timeout=2) as sock:
        sock.sendall(b"hello")
        sock.settimeout(0.02)
        return raised(sock.recv, 1)


def socket_reset() -> Exception:
    """Return what a bare socket raises whose peer tears the connection down."""

    def tear(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with peer(tear) as address, socket.create_connection(address, timeout=2) as sock:
        sock.sendall(b"hello")
        return raised(sock.recv, 1)


def broken_pipe() -> Exception:
    """Return what a socket raises whose peer is gone."""
    one, other = socket.socketpair()
    with one:
        other.close()
        return raised(one.sendall, b"hello")


def not_resolved() -> Exception:
    """Return what the resolver says of an address that has no such family; nothing is asked."""
    return raised(socket.getaddrinfo, "127.0.0.1", 80, family=socket.AF_INET6)


def not_tls() -> Exception:
    """Return what a TLS client raises at a peer that speaks plain text."""
    context = ssl.create_default_context()

    def shake() -> None:
        with (
            peer(nonsense) as address,
            socket.create_connection(address, timeout=2) as sock,
            context.wrap_socket(sock, server_hostname="localhost"),
        ):
            pass

    return raised(shake)


def locked() -> Exception:
    """Return what SQLite raises where somebody else holds the write lock."""
    name = "file:locked?mode=memory&cache=shared"
    with (
        contextlib.closing(sqlite3.connect(name, uri=True, isolation_level=None)) as one,
        contextlib.closing(sqlite3.connect(name, uri=True, isolation_level=None, timeout=0)) as two,
    ):
        one.execute("BEGIN IMMEDIATE")
        return raised(two.execute, "BEGIN IMMEDIATE")


def twice() -> Exception:
    """Return what SQLite raises for a row that is there already."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE sent (key TEXT PRIMARY KEY)")
        db.execute("INSERT INTO sent VALUES ('a')")
        return raised(db.execute, "INSERT INTO sent VALUES ('a')")


def full() -> Exception:
    """Return what SQLite raises where there is no room for another page."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE sent (body BLOB)")
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages}").fetchone()
        return raised(db.execute, "INSERT INTO sent VALUES (zeroblob(100000))")


class Mail(pydantic.BaseModel):
    """What an answer should look like."""

    id: int


async def too_long() -> None:
    """Reach a limit of asyncio's own."""
    async with asyncio.timeout(0):
        await asyncio.sleep(1)


async def waited_for() -> None:
    """Reach the limit of a wait."""
    await asyncio.wait_for(asyncio.sleep(1), 0)


def future_timeout() -> Exception:
    """Return what a future raises that has no result in time."""
    return raised(concurrent.futures.Future().result, 0)


def process_timeout() -> Exception:
    """Return what a child process raises that takes too long."""
    sleeps = [sys.executable, "-c", "import time; time.sleep(5)"]
    return raised(subprocess.run, sleeps, timeout=0.02, check=True)


def process_failed() -> Exception:
    """Return what a child process raises that ends with a number."""
    return raised(subprocess.run, [sys.executable, "-c", "raise SystemExit(1)"], check=True)


def recursion() -> Exception:
    """Return what a function raises that calls itself for ever."""

    def down() -> None:
        down()

    return raised(down)


def no_memory() -> Exception:
    """Return what an absurd allocation raises."""
    return raised(bytearray, sys.maxsize)


def group() -> Exception:
    """Return what a group of tasks raises of which two failed."""

    async def fail(error: Exception) -> None:
        raise error

    async def both() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail(TimeoutError()))
            tasks.create_task(fail(ValueError()))

    return raised(asyncio.run, both())


def smtp(code: int, *, at: str) -> Exception:
    """Return what smtplib raises where a real server answers ``code`` at that command."""
    answers = {"MAIL": "250 ok", "RCPT": "250 ok", "DATA": "354 go on", ".": "250 queued"}
    answers[at] = f"{code} no"

    def talk(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listening.accept()
            with connection, connection.makefile("rw", newline="\r\n") as lines:
                connection.settimeout(2)

                def say(words: str) -> None:
                    lines.write(f"{words}\r\n")
                    lines.flush()

                say("220 here")
                inside = False
                for line in lines:
                    verb = line.strip()[:4].strip().upper()
                    if inside and line.strip() != ".":
                        continue
                    answer = answers.get(verb, "250 ok")
                    inside = verb == "DATA" and answer.startswith("354")
                    say("221 bye" if verb == "QUIT" else answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=talk, args=(listening,), daemon=True)
        thread.start()
        with smtplib.SMTP(*listening.getsockname(), local_hostname="here", timeout=2) as client:
            error = raised(client.sendmail, "shop@example.org", ["ada@example.org"], "Hello")
        thread.join(2)
    return error


def by_resend(status: int, name: str) -> Exception:
    """Return what the public Resend client makes of such an answer."""
    return raised(
        resend.exceptions.raise_for_code_and_type, code=status, error_type=name, message="no"
    )


@dataclass(frozen=True)
class Row:
    """How one real failure is to be judged, with an outside effect and without."""

    make: Callable[[], Exception]
    effect: FailureKind
    reading: FailureKind


ROWS = {
    # not sent: there was no connection
    "refused, socket": Row(lambda: nobody_listens("socket"), TRANSIENT, TRANSIENT),
    "refused, httpx": Row(lambda: nobody_listens("httpx"), TRANSIENT, TRANSIENT),
    "refused, urllib": Row(
        lambda: nobody_listens("urllib"), TRANSIENT, TRANSIENT
    ),
    "refused, requests": Row(
        lambda: nobody_listens("requests"), TRANSIENT, TRANSIENT
    ),
    "name not resolved": Row(not_resolved, TRANSIENT, TRANSIENT),
    "name not resolved, urllib": Row(
        lambda: urllib.error.URLError(not_resolved()), TRANSIENT, TRANSIENT
    ),
    # sent, perhaps, and no answer
    "silence, httpx": Row(lambda: meet(silence, "httpx", 0.03), UNKNOWN, TRANSIENT),
    "silence, urllib": Row(lambda: meet(silence, "urllib", 0.03), UNKNOWN, TRANSIENT),
    "silence, requests": Row(lambda: meet(silence, "requests", 0.03), UNKNOWN, TRANSIENT),
    "silence, socket": Row(socket_timeout, UNKNOWN, TRANSIENT),
    "hung up, httpx": Row(lambda: meet(hang_up, "httpx"), UNKNOWN, TRANSIENT),
    "hung up, urllib": Row(lambda: meet(hang_up, "urllib"), UNKNOWN, TRANSIENT),
    "hung up, requests": Row(lambda: meet(hang_up, "requests"), UNKNOWN, TRANSIENT),
    "reset mid-reply, httpx": Row(lambda: meet(reset, "httpx"), UNKNOWN, TRANSIENT),
    "reset mid-reply, urllib": Row(lambda: meet(reset, "urllib"), UNKNOWN, TRANSIENT),
    "reset mid-reply, requests": Row(lambda: meet(reset, "requests"), UNKNOWN, TRANSIENT),
    "reset, socket": Row(socket_reset, UNKNOWN, TRANSIENT),
    "half a reply, httpx": Row(lambda: meet(half, "httpx"), UNKNOWN, TRANSIENT),
    "half a reply, urllib": Row(
        lambda: meet(half, "urllib"), UNKNOWN, TRANSIENT
    ),
    "nonsense, httpx": Row(lambda: meet(nonsense, "httpx"), UNKNOWN, TRANSIENT),
    "nonsense, urllib": Row(
        lambda: meet(nonsense, "urllib"), UNKNOWN, TRANSIENT
    ),
    "broken pipe": Row(broken_pipe, UNKNOWN, TRANSIENT),
    "plain text for TLS": Row(not_tls, UNKNOWN, TRANSIENT),
    # time limits of the standard library
    "TimeoutError": Row(TimeoutError, UNKNOWN, TRANSIENT),
    "asyncio.timeout": Row(lambda: raised(asyncio.run, too_long()), UNKNOWN, TRANSIENT),
    "asyncio.wait_for": Row(lambda: raised(asyncio.run, waited_for()), UNKNOWN, TRANSIENT),
    "concurrent.futures": Row(future_timeout, UNKNOWN, TRANSIENT),
    "subprocess, too long": Row(process_timeout, UNKNOWN, TRANSIENT),
    "subprocess, failed": Row(process_failed, UNKNOWN, PERMANENT),
    # SQLite: what else the tool has done before, nobody knows
    "sqlite, locked": Row(locked, UNKNOWN, TRANSIENT),
    "sqlite, constraint": Row(twice, UNKNOWN, PERMANENT),
    "sqlite, disk full": Row(full, UNKNOWN, PERMANENT),
    # mistakes: the same again next time; with an effect, perhaps after it
    "pydantic": Row(lambda: raised(Mail.model_validate, {"id": "x"}), UNKNOWN, PERMANENT),
    "json": Row(lambda: raised(json.loads, "{"), UNKNOWN, PERMANENT),
    "KeyError": Row(lambda: raised({}.__getitem__, "id"), UNKNOWN, PERMANENT),
    "memory": Row(no_memory, UNKNOWN, PERMANENT),
    "recursion": Row(recursion, UNKNOWN, PERMANENT),
    "group of tasks": Row(group, UNKNOWN, PERMANENT),
    "file not there": Row(
        lambda: raised(Path("no such file").read_bytes), UNKNOWN, PERMANENT
    ),
    "a folder": Row(lambda: raised(Path().read_bytes), UNKNOWN, PERMANENT),
    "certificate": Row(
        lambda: ssl.SSLCertVerificationError(1, "self-signed"), PERMANENT, PERMANENT,
    ),
    "no scheme, requests": Row(
        lambda: raised(by_requests, "127.0.0.1/x"), UNKNOWN, PERMANENT
    ),
    "no scheme, httpx": Row(lambda: raised(by_httpx, "127.0.0.1/x"), PERMANENT, PERMANENT),
    # SMTP: a 4xx or 5xx reply means that the server has not taken the mail (RFC 5321 §6.1)
    "smtp, try later": Row(
        lambda: smtp(451, at="."), TRANSIENT, TRANSIENT
    ),
    "smtp, no such user": Row(
        lambda: smtp(550, at="."), PERMANENT, PERMANENT
    ),
    "smtp, sender refused": Row(
        lambda: smtp(550, at="MAIL"), PERMANENT, PERMANENT
    ),
    "smtp, recipient refused": Row(
        lambda: smtp(550, at="RCPT"), PERMANENT, PERMANENT
    ),
    # what the public clients of services make of an answer
    "resend, limited": Row(lambda: by_resend(429, "rate_limit_exceeded"), TRANSIENT, TRANSIENT),
    "resend, other words": Row(
        lambda: by_resend(409, "invalid_idempotent_request"), PERMANENT, PERMANENT
    ),
    "resend, in progress": Row(
        lambda: by_resend(409, "concurrent_idempotent_requests"), TRANSIENT, TRANSIENT,
    ),
    "stripe, in progress": Row(
        lambda: stripe.InvalidRequestError(
            "in use", None, code="idempotency_key_in_use", http_status=409
        ),
        TRANSIENT, TRANSIENT,
    ),
    "stripe, limited": Row(
        lambda: stripe.RateLimitError("slow down", http_status=429), TRANSIENT, TRANSIENT
    ),
    # what a tool says itself
    "Infeasible": Row(lambda: dk.Infeasible("a sender"), INFEASIBLE, INFEASIBLE),
    "NotExecuted": Row(lambda: dk.NotExecuted("full"), PERMANENT, PERMANENT),
    "NotExecuted, may pass": Row(
        lambda: dk.NotExecuted("full", transient=True), TRANSIENT, TRANSIENT
    ),
}  # fmt: skip


@pytest.mark.parametrize("column", ["effect", "reading"])
@pytest.mark.parametrize("name", ROWS)
def test_a_real_failure_is_judged_by_what_it_proves(name, column):
    """With an effect, only a proof lets it be sent again; without one, only hope is needed."""
    row = ROWS[name]
    error = row.make()
    judged = classify(error, effect=column == "effect", now=NOW)
    assert judged.kind is getattr(row, column), f"{type(error).__mro__}: {judged.reason}"


@pytest.mark.parametrize("name", ROWS)
def test_a_rule_errs_to_the_safe_side(name):
    """Where an effect was possible, nothing passes for 'not executed' that is not proven so."""
    row = ROWS[name]
    if row.effect is UNKNOWN:
        assert classify(row.make(), effect=True, now=NOW).kind is UNKNOWN


# -- totality --------------------------------------------------------------------------------------

BUILTINS = sorted(
    (
        kind
        for kind in vars(builtins).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ),
    key=lambda kind: kind.__name__,
)

#: Those that cannot be made of nothing, made of what they need.
NEED: dict[type, tuple[object, ...]] = {
    UnicodeDecodeError: ("utf-8", b"\xff", 0, 1, "invalid"),
    UnicodeEncodeError: ("utf-8", "\ud800", 0, 1, "invalid"),
    UnicodeTranslateError: ("x", 0, 1, "invalid"),
    ExceptionGroup: ("two", [TimeoutError(), ValueError()]),
}


def test_there_are_builtins_to_judge():
    """The list is not empty by mistake, and holds every corner of it."""
    assert len(BUILTINS) > 60
    assert {TimeoutError, ConnectionRefusedError, MemoryError, ExceptionGroup} <= set(BUILTINS)


@pytest.mark.parametrize("kind", BUILTINS)
def test_every_builtin_gets_a_kind_and_only_a_refused_connection_is_a_proof(kind):
    """All others are unknown where an effect was possible."""
    error = kind(*NEED.get(kind, ()))
    expected = TRANSIENT if kind is ConnectionRefusedError else UNKNOWN
    assert classify(error, effect=True, now=NOW).kind is expected
    assert classify(error, effect=False, now=NOW).kind in (TRANSIENT, PERMANENT)


anything = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
    | st.lists(st.integers()) | st.sampled_from([..., object(), Exception("429"), {"status": 1}])
)  # fmt: skip


@laws
@given(
    st.sampled_from(BUILTINS),
    st.lists(anything, max_size=4),
    st.dictionaries(
        st.sampled_from(
            ["status", "status_code", "http_status", "code", "response", "headers", "retry_after",
             "name", "reason", "errno", "smtp_code"]
        ),
        anything,
    ),
    st.booleans(),
)  # fmt: skip
def test_whatever_hangs_on_an_exception_it_gets_a_kind(kind, args, attributes, effect):
    """Attributes of any type are read, and none of them makes the judging fail."""
    try:
        error = type("Odd", (kind,), {})(*args)
    except (TypeError, ValueError):
        error = kind(*NEED.get(kind, ()))
    for name, value in attributes.items():
        with contextlib.suppress(AttributeError, TypeError):
            setattr(error, name, value)
    judged = classify(error, effect=effect, now=NOW)
    assert isinstance(judged, Failure)
    assert judged.kind in FailureKind
    assert judged.reason
    assert judged.retry_after is None or judged.retry_after >= 0


class Prickly(Exception):
    """Whoever touches it is stung."""

    def _sting(self, *_: object) -> None:
        raise RuntimeError("do not touch")

    status = status_code = http_status = code = response = headers = property(_sting)
    retry_after = name = reason = property(_sting)
    __str__ = __repr__ = __bool__ = __eq__ = __len__ = _sting
    __hash__ = None


class Veiled(Exception):
    """Not even its class can be asked for."""

    def __getattribute__(self, name: str) -> object:
        """Refuse every question."""
        raise RuntimeError(name)


class Thorny:
    """A response that stings."""

    def __getattr__(self, name: str) -> object:
        """Refuse every question."""
        raise RuntimeError(name)

    def __bool__(self) -> bool:
        """Refuse to be true or false."""
        raise RuntimeError("neither")


def thorny() -> Exception:
    """Return an error with such a response."""
    error = Exception()
    error.response = Thorny()
    return error


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(Prickly, id="its properties"),
        pytest.param(thorny, id="its response"),
        pytest.param(Veiled, id="its class"),
    ],
)
@pytest.mark.parametrize("effect", [True, False])
def test_an_exception_whose_attributes_raise_gets_a_kind(make, effect):
    """It tells nothing, so nothing is known."""
    judged = classify(make(), effect=effect, now=NOW)
    assert judged.kind is (UNKNOWN if effect else PERMANENT)


def chained(length: int) -> Exception:
    """Return a deadline's error with so many deadlines' errors below it, and a cause at the end."""
    error: Exception = TimeoutError()
    for _ in range(length):
        outer = dk.DeadlineExceeded("call", "send")
        outer.__cause__ = error
        error = outer
    return error


def ring() -> Exception:
    """Return a deadline's error that is its own cause."""
    error = dk.DeadlineExceeded("call", "send")
    error.__cause__ = error
    return error


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: chained(1), id="one"),
        pytest.param(lambda: chained(20), id="twenty"),
        pytest.param(lambda: chained(5000), id="thousands"),
        pytest.param(ring, id="a ring"),
    ],
)
def test_causes_are_followed_to_an_end(make):
    """However long the chain is, and where it has none."""
    assert classify(make(), effect=True, now=NOW).kind is UNKNOWN


def test_the_timeouts_of_the_standard_library_are_one_type_and_an_oserror():
    """Why a rule about OSError is a rule about time limits too."""
    assert asyncio.TimeoutError is socket.timeout is concurrent.futures.TimeoutError is TimeoutError
    assert issubclass(TimeoutError, OSError)
    assert not issubclass(subprocess.TimeoutExpired, OSError)
    assert not issubclass(httpx.TimeoutException, OSError)
    assert issubclass(requests.Timeout, OSError)


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_a_refusing_response_of_requests_is_false_and_judged_all_the_same(server, status):
    """`if error.response` would take every refusal for no answer at all."""
    error = raised(by_requests, f"{server}/{status}")
    assert not error.response
    assert classify(error, effect=True, now=NOW).kind is STATUSES[status][0]


def test_the_http_library_of_python_has_errors_of_its_own():
    """IncompleteRead and its like are no OSErrors."""
    assert isinstance(meet(half, "urllib"), http.client.IncompleteRead)
    assert not issubclass(http.client.HTTPException, OSError)

"""A failure is judged by its type and status, and the wait after it is drawn, never clamped."""

import asyncio
import concurrent.futures
import email.utils
import json
import math
import queue
import smtplib
import socket
import sqlite3
import subprocess
import sys
import threading
import urllib.error
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import durakit as dk
from durakit import protocol
from durakit.deadline import LONGEST
from durakit.failures import STATUS_KINDS, FailureKind, classify, parse_retry_after
from durakit.mail import MailError
from durakit.protocol import Contract, Effect, Record, Request, Status, decide
from durakit.retry import Retry

# A busy machine may be slow; that is no failure.
laws = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

NOW = 1_767_258_000.0
HOUR = 3600.0
TRANSIENT, PERMANENT = FailureKind.TRANSIENT, FailureKind.PERMANENT
UNKNOWN, INFEASIBLE = FailureKind.UNKNOWN, FailureKind.INFEASIBLE


# -- Retry-After --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("120", 120.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        (3, 3.0),
        (2.5, 2.5),
        (email.utils.formatdate(NOW + 90, usegmt=True), 90.0),
        (email.utils.formatdate(NOW + 90, localtime=False), 90.0),
        ("Thu, 01 Jan 2026 10:00:00 +0100", 0.0),
        ("Thursday, 01-Jan-26 09:01:00 GMT", 60.0),
        ("Thu Jan  1 09:01:00 2026", 60.0),
    ],
    ids=repr,
)
def test_seconds_and_http_dates_are_understood(value, wait):
    """All three date forms of RFC 9110, and zones."""
    assert parse_retry_after(value, NOW) == wait


@pytest.mark.parametrize(
    "value",
    [
        "-1", -1, -0.5, math.nan, math.inf, "nan", "inf", "1e3", "", "  ", "soon", "12 5", "+5",
        "\u0663", "1_000", True, None, b"5", [5], {}, email.utils.formatdate(NOW - 60, usegmt=True),
        "Mon, 99 Foo 2026 99:99:99 GMT", "Fri, 31 Dec 99999 23:59:59 GMT",
    ],
    ids=repr,
)  # fmt: skip
def test_a_malformed_negative_or_past_value_falls_back_to_normal_backoff(value):
    """It is no floor, and no error either."""
    assert parse_retry_after(value, NOW) is None


@pytest.mark.parametrize("value", ["9" * 400, 10**400, "9" * 5000], ids=["text", "int", "long"])
def test_an_absurdly_long_wait_is_a_floor_that_no_deadline_survives(value):
    """Decades, as a number that can still be added to a time and shown as a date."""
    wait = parse_retry_after(value, NOW)
    assert wait is not None
    assert 50 * 365 * 24 * HOUR < wait < 1000 * 365 * 24 * HOUR


@laws
@given(
    st.text(max_size=40)
    | st.from_regex(r"[A-Za-z]{3}, ?\d{1,3}[- ][A-Z][a-z]{2}[- ]\d{1,6} [\d:]{1,9} ?[-+A-Z\d]{0,9}")
    | st.floats()
    | st.integers()
)
def test_any_retry_after_is_a_wait_of_zero_or_more_or_nothing(value):
    """A header comes from outside: whatever it says, it raises nothing."""
    wait = parse_retry_after(value, NOW)
    assert wait is None or (0.0 <= wait < math.inf)


# -- judging real errors ------------------------------------------------------------------


class Answering(BaseHTTPRequestHandler):
    """Answers with the status that the path names; `/silent` with nothing at all."""

    def do_GET(self) -> None:
        """Answer, or hang up."""
        if self.path == "/silent":
            self.close_connection = True
            return
        self.send_response(int(self.path[1:]))
        self.send_header("Retry-After", "17")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A real HTTP server on loopback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()
        thread.join()


def closed_port() -> int:
    """Return a loopback port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fetch(url: str, **options: object) -> None:
    """Make a real request, and raise for its status."""
    with httpx.Client(trust_env=False, **{"timeout": 2.0, **options}) as client:
        client.get(url).raise_for_status()


def raised(function: Callable[..., object], *args: object, **options: object) -> Exception:
    """Return what a real call raises."""
    try:
        function(*args, **options)
    except Exception as error:
        return error
    return pytest.fail("it did not raise")


def read_timeout() -> Exception:
    """Return what a client sees whose server accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        return raised(fetch, url, timeout=httpx.Timeout(1.0, read=0.02))


def pool_timeout() -> Exception:
    """Return what a client sees for which no connection was free."""
    limits = httpx.Limits(max_connections=0)
    return raised(fetch, "http://127.0.0.1:9", limits=limits, timeout=httpx.Timeout(1, pool=0.01))


def plain_timeout() -> Exception:
    """Return what a socket without httpx raises."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        socket.create_connection(silent.getsockname()) as sock,
    ):
        sock.settimeout(0.02)
        return raised(sock.recv, 1)


async def too_long() -> None:
    """Reach a limit of asyncio's own."""
    async with asyncio.timeout(0):
        await asyncio.sleep(1)


def broken_pipe() -> Exception:
    """Return what a socket raises whose peer is gone."""
    one, other = socket.socketpair()
    with one:
        other.close()
        return raised(one.sendall, b"x" * 10)


def no_such_table() -> Exception:
    """Return SQLite's own error for a table that is not there."""
    database = sqlite3.connect(":memory:")
    try:
        return raised(database.execute, "SELECT * FROM missing")
    finally:
        database.close()


class Shape(pydantic.BaseModel):
    """What an answer should look like."""

    id: int


def real_errors() -> dict[str, Exception]:
    """Real error objects of the libraries a tool may use, made by real failures."""
    return {
        "connection refused": raised(socket.create_connection, ("127.0.0.1", closed_port())),
        "httpx refused": raised(fetch, f"http://127.0.0.1:{closed_port()}"),
        "httpx read timeout": read_timeout(),
        "httpx pool timeout": pool_timeout(),
        "httpx bad scheme": raised(fetch, "gopher://127.0.0.1"),
        "httpx invalid url": raised(fetch, "http://[::1"),
        "socket timeout": plain_timeout(),
        "broken pipe": broken_pipe(),
        "name not resolved": raised(socket.getaddrinfo, None, None),
        "sqlite": no_such_table(),
        "sqlite integrity": sqlite3.IntegrityError("UNIQUE"),
        "pydantic": raised(Shape.model_validate, {"id": "x"}),
        "asyncio timeout": raised(asyncio.run, too_long()),
        "futures timeout": raised(concurrent.futures.Future().result, 0),
        "queue empty": raised(queue.Queue().get_nowait),
        "subprocess timeout": subprocess.TimeoutExpired("x", 1.0),
        "subprocess failed": subprocess.CalledProcessError(2, "x"),
        "bad json": raised(json.loads, "{"),
        "url error": urllib.error.URLError("x"),
        "recursion": RecursionError(),
        "group": ExceptionGroup("g", [ValueError(), TimeoutError()]),
        "stop": StopIteration(),
        "durakit": dk.RunNotFound("x"),
        "saved": dk.SavedError("X", "y"),
        "deadline": dk.DeadlineExceeded("turn", "t"),
    }


CORPUS = real_errors()


@pytest.fixture
def errors() -> dict[str, Exception]:
    """The corpus, made once."""
    return CORPUS


@pytest.mark.parametrize(
    ("status", "with_effect", "reading"),
    [
        (400, PERMANENT, PERMANENT),
        (401, PERMANENT, PERMANENT),
        (404, PERMANENT, PERMANENT),
        (408, UNKNOWN, TRANSIENT),
        (409, PERMANENT, PERMANENT),
        (422, PERMANENT, PERMANENT),
        (425, TRANSIENT, TRANSIENT),
        (429, TRANSIENT, TRANSIENT),
        (500, UNKNOWN, TRANSIENT),
        (502, UNKNOWN, TRANSIENT),
        (503, TRANSIENT, TRANSIENT),
        (504, UNKNOWN, TRANSIENT),
    ],
)
def test_L074_real_http_answers_are_judged_as_the_table_says(server, status, with_effect, reading):
    """By httpx's own error object, whose response is no truth value; its Retry-After is read."""
    error = raised(fetch, f"{server}/{status}")
    assert type(error) is httpx.HTTPStatusError
    judged = classify(error, effect=True, now=NOW)
    assert (judged.kind, judged.retry_after) == (with_effect, 17.0)
    assert classify(error, effect=False, now=NOW).kind is reading
    mail = MailError(status, "some_name", "for people", retry_after=17)
    assert classify(mail, effect=True, now=NOW).kind is with_effect


@pytest.mark.parametrize(
    ("name", "with_effect", "reading"),
    [
        ("connection refused", TRANSIENT, TRANSIENT),
        ("httpx refused", TRANSIENT, TRANSIENT),
        ("httpx pool timeout", TRANSIENT, TRANSIENT),
        ("httpx bad scheme", PERMANENT, PERMANENT),
        ("httpx read timeout", UNKNOWN, TRANSIENT),
        ("socket timeout", UNKNOWN, TRANSIENT),
        ("asyncio timeout", UNKNOWN, TRANSIENT),
        ("futures timeout", UNKNOWN, TRANSIENT),
        ("subprocess timeout", UNKNOWN, TRANSIENT),
        ("broken pipe", UNKNOWN, TRANSIENT),
        ("name not resolved", TRANSIENT, TRANSIENT),
        ("pydantic", UNKNOWN, PERMANENT),
        ("sqlite", UNKNOWN, PERMANENT),
        ("bad json", UNKNOWN, PERMANENT),
        ("recursion", UNKNOWN, PERMANENT),
    ],
)
def test_L074_real_failures_without_an_answer_are_judged_by_what_they_prove(
    errors, name, with_effect, reading
):
    """Refused is 'not sent'; a time limit's own error is never 'not executed'."""
    assert classify(errors[name], effect=True, now=NOW).kind is with_effect
    assert classify(errors[name], effect=False, now=NOW).kind is reading


def test_L074_an_answer_cut_off_is_unknown(server):
    """The server took the request and hung up."""
    error = raised(fetch, f"{server}/silent")
    assert isinstance(error, httpx.RemoteProtocolError)
    assert classify(error, effect=True, now=NOW).kind is UNKNOWN


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (dk.NotExecuted("full", transient=True), TRANSIENT),
        (dk.NotExecuted("no such address"), PERMANENT),
        (dk.Infeasible("an address"), INFEASIBLE),
    ],
)
def test_what_a_tool_says_itself_is_believed_with_and_without_an_effect(error, kind):
    """A tool that is certain raises NotExecuted or Infeasible."""
    assert classify(error, effect=True, now=NOW).kind is kind
    assert classify(error, effect=False, now=NOW).kind is kind


@pytest.mark.parametrize("wait", [math.nan, math.inf, -3.0, "soon", True, 10**400])
def test_a_floor_that_a_tool_gives_is_checked_like_a_header(wait):
    """A wait that is not a number of seconds must not reach the clock."""
    error = dk.NotExecuted("full", transient=True, retry_after=wait)
    floor = classify(error, effect=True, now=NOW).retry_after
    assert floor is None or 0 <= floor < 1e11
    assert classify(dk.NotExecuted("x", retry_after=2.5), effect=True, now=NOW).retry_after == 2.5


@pytest.mark.parametrize("effect", [True, False])
def test_a_conflict_that_means_in_progress_may_pass_and_any_other_is_final(effect):
    """409 alone is ambiguous: the name tells, and only a name that is known."""
    names = ["concurrent_idempotent_requests", "idempotency_key_in_use", "in_progress"]
    for name in names:
        assert classify(MailError(409, name, ""), effect=effect, now=NOW).kind is TRANSIENT
    other = MailError(409, "invalid_idempotent_request", "in progress, says only the text")
    assert classify(other, effect=effect, now=NOW).kind is PERMANENT


def test_L061_what_an_answer_means_for_a_retry_under_the_same_key(errors):
    """Refused and 429 stay open, 422 is final, 504 and a lost reply are unknown."""
    answers = {
        "refused": errors["connection refused"],
        "429": MailError(429, "rate_limit_exceeded", ""),
        "422": MailError(422, "validation_error", ""),
        "504": MailError(504, "gateway_timeout", ""),
        "lost": errors["httpx read timeout"],
    }
    statuses = {
        name: protocol.after(
            Status.DISPATCHED,
            protocol.FAILURE_EVENTS[classify(error, effect=True, now=NOW).kind],
        )
        for name, error in answers.items()
    }
    assert statuses == {
        "refused": Status.REFUSED,
        "429": Status.REFUSED,
        "422": Status.FAILED,
        "504": Status.DISPATCHED,
        "lost": Status.DISPATCHED,
    }
    # Unknown is run again only where the service dedups by key.
    record = Record(Status.DISPATCHED, "a", 1, NOW, NOW)
    again = {
        effect: decide(record, Request("a"), Contract(effect, can_probe=True), Retry(), NOW, 0.5)
        for effect in (Effect.IDEMPOTENT, Effect.QUERYABLE, Effect.OPAQUE)
    }
    assert [type(decision).__name__ for decision in again.values()] == ["Execute", "Probe", "Park"]


@laws
@given(st.sampled_from(sorted(CORPUS)), st.booleans(), st.floats(0, 1e11))
def test_every_real_error_gets_a_kind_and_an_effect_is_never_guessed_away(name, effect, now):
    """Total over the corpus; a reading tool knows no 'unknown'."""
    judged = classify(CORPUS[name], effect=effect, now=now)
    assert isinstance(judged.kind, FailureKind)
    assert judged.reason
    assert effect or judged.kind is not UNKNOWN


@laws
@given(st.integers(100, 599), st.booleans())
def test_every_status_gets_a_kind_that_no_other_way_of_carrying_it_changes(status, effect):
    """As `status`, `status_code`, `code` or in a response: the number decides."""
    kinds = set()
    for attribute in ("status", "status_code", "http_status", "code"):
        error = Exception()
        setattr(error, attribute, status)
        kinds.add(classify(error, effect=effect, now=NOW).kind)
    carrier = Exception()
    carrier.response = httpx.Response(status)
    kinds.add(classify(carrier, effect=effect, now=NOW).kind)
    assert len(kinds) == 1
    if status not in STATUS_KINDS and not 400 <= status < 500:
        lasting = status < 500 or status in (501, 505)
        assert kinds == {UNKNOWN if effect else PERMANENT if lasting else TRANSIENT}


class Hostile(Exception):
    """Its truth value, text, comparison and every attribute raise."""

    def __bool__(self) -> bool:
        raise RuntimeError("no truth value")

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = Exception.__hash__

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"no {name}")


class HalfInfeasible(dk.Infeasible):
    """Its constructor forgets to call the one above."""

    def __init__(self) -> None:
        pass


class HalfNotExecuted(dk.NotExecuted):
    """Its constructor forgets to call the one above."""

    def __init__(self) -> None:
        pass


class Masked:
    """It does not even tell its class."""

    @property
    def __class__(self) -> type:
        raise RuntimeError("no class")


def with_attributes(**attributes: object) -> Exception:
    """An error with these attributes."""
    error = RuntimeError("some")
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize("effect", [True, False])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (HalfInfeasible(), INFEASIBLE),
        (HalfNotExecuted(), PERMANENT),
        (smtplib.SMTPRecipientsRefused({"a@x": 5}), UNKNOWN),
        (smtplib.SMTPRecipientsRefused({"a@x": ()}), UNKNOWN),
        (smtplib.SMTPRecipientsRefused(None), UNKNOWN),
        (with_attributes(status=Masked()), UNKNOWN),
        (with_attributes(status=429, retry_after=Masked()), TRANSIENT),
    ],
)
def test_an_error_that_is_only_half_made_still_gets_a_kind(error, kind, effect):
    """Total over what libraries and people really build; nothing becomes 'not executed' by it."""
    judged = classify(error, effect=effect, now=NOW)
    assert judged.kind is kind or (kind is UNKNOWN and not effect)
    assert judged.retry_after is None


@pytest.mark.parametrize("value", [1e300, 10**30, "9" * 40, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_retry_after_of_centuries_is_a_hundred_years(value):
    """Every form of it: a longer wait is a moment that no calendar has."""
    assert parse_retry_after(value, NOW) == LONGEST


class False429(Exception):
    """A response object that counts as false, as some libraries' do for every error."""

    class Response:
        """False, with a status and headers."""

        status_code = 429
        headers = {"Retry-After": "4"}  # noqa: RUF012 - a stand-in of two lines

        def __bool__(self) -> bool:
            return False

    response = Response()


def test_L074_an_error_is_judged_neither_by_its_truth_value_nor_by_its_text():
    """Even one that refuses both gets a kind, and a false response still has its status."""
    assert classify(Hostile(), effect=True, now=NOW).kind is UNKNOWN
    assert classify(Hostile(), effect=False, now=NOW).kind is PERMANENT
    judged = classify(False429(), effect=True, now=NOW)
    assert (judged.kind, judged.retry_after) == (TRANSIENT, 4.0)
    for text in ("429 Too Many Requests", "connection refused", "not executed", "status 400"):
        assert classify(RuntimeError(text), effect=True, now=NOW).kind is UNKNOWN


@pytest.mark.parametrize("value", [True, "429", 429.0, None, 99, 600, -1, [429], object()])
def test_what_is_no_status_number_is_no_status(value):
    """A `code` of another kind proves nothing."""
    error = Exception()
    error.code = value
    assert classify(error, effect=True, now=NOW).kind is UNKNOWN


def test_headers_that_cannot_be_read_are_no_floor():
    """A service's library may hand over anything as headers."""
    for headers in (None, 5, [], {"Retry-After": object()}, Hostile()):
        error = MailError(429, "rate_limit_exceeded", "")
        error.headers = headers
        judged = classify(error, effect=True, now=NOW)
        assert (judged.kind, judged.retry_after) == (TRANSIENT, None)


def test_judging_loads_neither_httpx_nor_socket():
    """A tool that raises httpx errors has imported httpx itself; the core does not."""
    code = (
        "import sys; from durakit.failures import classify; "
        "classify(ValueError(), effect=True, now=0.0); print('httpx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    "body",
    [
        {"statusCode": 409, "name": "concurrent_idempotent_requests", "message": "…"},
        {"error": {"code": "idempotency_key_in_use", "type": "invalid_request_error"}},
        {"title": "A request is outstanding for this Idempotency-Key"},
    ],
)
def test_a_conflict_over_plain_http_is_judged_by_the_name_in_its_body(body):
    """Resend's, Stripe's and the draft's way to say 'in progress'; any other 409 is final."""
    request = httpx.Request("POST", "http://127.0.0.1/emails")

    def judged(content: object) -> FailureKind:
        response = httpx.Response(409, json=content, request=request)
        error = httpx.HTTPStatusError("conflict", request=request, response=response)
        return classify(error, effect=True, now=NOW).kind

    assert judged(body) is TRANSIENT
    assert judged({"name": "invalid_idempotent_request"}) is PERMANENT
    assert judged(["concurrent_idempotent_requests"]) is PERMANENT

"""What a failed attempt says about the outside world. Pure: judges types, statuses and times.

Total: every exception gets one of four kinds. Nothing is judged by its text or its truth value,
and nothing passes for 'not executed' without a proof.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from datetime import UTC
from enum import StrEnum
from typing import Any, TypeGuard, TypeVar

from durakit.deadline import LONGEST
from durakit.errors import DeadlineExceeded, Infeasible, NotExecuted

E = TypeVar("E", bound=BaseException)


class FailureKind(StrEnum):
    """What a failed attempt says about the outside world."""

    TRANSIENT = "transient"
    """certainly not executed; the same request may succeed later"""
    PERMANENT = "permanent"
    """certainly not executed; the same request will fail again"""
    UNKNOWN = "unknown"
    """it may have been executed, or may yet be"""
    INFEASIBLE = "infeasible"
    """certainly not executed; a named condition is missing"""


@dataclass(frozen=True)
class Failure:
    """One judged failure. ``retry_after`` is the service's own floor, in seconds."""

    kind: FailureKind
    reason: str
    retry_after: float | None = None


#: An HTTP status → what it says about a request that may have had an effect. 429 and 503 are
#: refusals in front of the work, and 425 is one that came too early. 408 gave up on us in the
#: middle. 409 is a conflict, and it passes only under a name that says so (see below).
#: Statuses that are not listed: 4xx permanent, everything else unknown.
STATUS_KINDS: dict[int, FailureKind] = {
    408: FailureKind.UNKNOWN,
    409: FailureKind.PERMANENT,
    425: FailureKind.TRANSIENT,
    429: FailureKind.TRANSIENT,
    503: FailureKind.TRANSIENT,
}

#: Names of 409 answers that mean 'the first request is still running': try again later.
IN_PROGRESS_NAMES = frozenset(
    {
        "A request is outstanding for this Idempotency-Key",
        "api.concurrent_idempotent_request",
        "concurrent_idempotent_requests",
        "idempotency_key_in_use",
        "in_progress",
    }
)

#: What is said of an error that proves nothing, and of the same where there is no effect to prove.
_NO_PROOF = ": no proof that nothing happened"
_NO_EFFECT = {
    FailureKind.TRANSIENT: ": no outside effect, and it may pass",
    FailureKind.PERMANENT: ": no outside effect, and it will be raised again",
}

#: httpx errors raised before any byte of the request can have been acted on.
_HTTPX_NOT_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})


def classify(error: Exception, *, effect: bool, now: float) -> Failure:
    """Judge ``error`` by its type and status, never by its text or its truth value.

    ``effect`` says whether the tool can change the outside world: if so, everything that does
    not prove the contrary is *unknown*. If not, nothing outside can be unknown, and the question
    that is left is whether the same request may succeed later: transient where the type is one
    of a network, a lock or a limit, and permanent otherwise (a TypeError is a defect of the code,
    and will be raised again). ``now`` is wall time, for a Retry-After date. Total: every
    exception gets a kind.
    """
    error = _real_cause(error)
    kind, reason, retry_after = _judge(error, now)
    if kind is FailureKind.UNKNOWN and not effect:
        kind = FailureKind.TRANSIENT if _looks_passing(error) else FailureKind.PERMANENT
        if reason.endswith(_NO_PROOF):
            reason = reason.removesuffix(_NO_PROOF) + _NO_EFFECT[kind]
    return Failure(kind, reason, retry_after)


def _is(error: object, kind: type[E]) -> TypeGuard[E]:
    """``isinstance`` without asking the object: its ``__class__`` may be anybody's property."""
    return issubclass(type(error), kind)


def _real_cause(error: Exception) -> Exception:
    """The error, or what is below errors that only wrap another one."""
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        urllib = sys.modules.get("urllib.error")
        inner: object = None
        if _is(error, DeadlineExceeded):
            # Of retries inside the tool: the last real cause says what may have happened.
            inner = error.__cause__
        elif urllib is not None and type(error) is urllib.URLError:
            # urllib wraps what went wrong while it connected and sent; not what came later.
            inner = _attribute(error, "reason")
        if not _is(inner, Exception):
            break
        error = inner
    return error


def _judge(error: Exception, now: float) -> tuple[FailureKind, str, float | None]:
    if _is(error, Infeasible):
        return FailureKind.INFEASIBLE, f"infeasible: {_attribute(error, 'missing')}", None
    if _is(error, NotExecuted):
        passes = _attribute(error, "transient") is True
        kind = FailureKind.TRANSIENT if passes else FailureKind.PERMANENT
        retry_after = _retry_after(error, now)
        return kind, "not executed, says the tool", retry_after
    status = _status(error)
    if status is not None:
        return *_judge_status(error, status), _retry_after(error, now)
    smtp = _smtp_code(error)
    if smtp is not None:
        # RFC 5321 §4.2.1: after a 4xx or 5xx reply the server has not taken the mail.
        kind = FailureKind.TRANSIENT if smtp < 500 else FailureKind.PERMANENT
        return kind, f"SMTP reply {smtp}", None
    if _is(error, ConnectionRefusedError):
        return FailureKind.TRANSIENT, "connection refused", None
    # Looked up, not imported: a tool that raises httpx errors has imported httpx itself.
    httpx = sys.modules.get("httpx")
    if httpx is not None and _is(error, httpx.TransportError):
        return *_judge_httpx(error), None
    if _not_sent_by_requests(error):
        return FailureKind.TRANSIENT, "requests: no connection, not sent", None
    ssl = sys.modules.get("ssl")
    if ssl is not None and _is(error, ssl.SSLCertVerificationError):
        return FailureKind.PERMANENT, "the certificate does not verify: not sent", None
    socket = sys.modules.get("socket")
    if socket is not None and _is(error, socket.gaierror):
        return FailureKind.TRANSIENT, "name not resolved: not sent", None
    if _is(error, TimeoutError):
        return FailureKind.UNKNOWN, "no answer in time", None
    return FailureKind.UNKNOWN, type(error).__name__ + _NO_PROOF, None


def _judge_status(error: Exception, status: int) -> tuple[FailureKind, str]:
    if status == 409 and _named(error) & IN_PROGRESS_NAMES:
        return FailureKind.TRANSIENT, "status 409, in progress"
    default = FailureKind.PERMANENT if 400 <= status < 500 else FailureKind.UNKNOWN
    return STATUS_KINDS.get(status, default), f"status {status}"


def _judge_httpx(error: Exception) -> tuple[FailureKind, str]:
    """Of a TransportError: was it raised before anything was sent?"""
    name = type(error).__name__
    names = {base.__name__ for base in type(error).__mro__}
    if "UnsupportedProtocol" in names:
        return FailureKind.PERMANENT, "httpx UnsupportedProtocol: not sent"
    if names & _HTTPX_NOT_SENT:
        return FailureKind.TRANSIENT, f"httpx {name}: not sent"
    return FailureKind.UNKNOWN, f"httpx {name}: no answer"


#: OSErrors that will be the same the next time.
_LASTING = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
#: Statuses from 500 on that will be the same the next time.
_LASTING_STATUSES = frozenset({501, 505})


def _looks_passing(error: Exception) -> bool:
    """Without an outside effect: may the same request succeed later?"""
    status = _status(error)
    if status is not None:
        return status == 408 or (status >= 500 and status not in _LASTING_STATUSES)
    modules = sys.modules
    if "httpx" in modules and _is(error, modules["httpx"].TransportError):
        return True
    if "subprocess" in modules and _is(error, modules["subprocess"].TimeoutExpired):
        return True
    if "http.client" in modules and _is(error, modules["http.client"].HTTPException):
        return True
    if "sqlite3" in modules and _is(error, modules["sqlite3"].Error):
        code = _attribute(error, "sqlite_errorcode")
        return type(code) is int and code & 0xFF in (5, 6)  # SQLITE_BUSY, SQLITE_LOCKED
    # What requests raises for a URL that it cannot use is a ValueError and an OSError.
    return _is(error, OSError) and not issubclass(type(error), (*_LASTING, ValueError))


def _named(error: Exception) -> frozenset[str]:
    """The names that clients give an answer (ours, Resend's, Stripe's), or its JSON body does."""
    found = [_attribute(error, name) for name in ("name", "error_type", "code")]
    read = _attribute(_attribute(error, "response"), "json")
    if callable(read):
        try:
            body = read()
        except Exception:  # noqa: BLE001 - a body that cannot be read names nothing
            body = None
        for part in (body, body.get("error") if isinstance(body, dict) else None):
            if isinstance(part, dict):
                found += [part.get(name) for name in ("name", "code", "type", "title")]
    return frozenset(str(name) for name in found if isinstance(name, str))


def _smtp_code(error: Exception) -> int | None:
    smtplib = sys.modules.get("smtplib")
    if smtplib is None:
        return None
    codes: list[Any] = []
    if _is(error, smtplib.SMTPResponseException):
        codes = [_attribute(error, "smtp_code")]
    elif _is(error, smtplib.SMTPRecipientsRefused):  # all of them, else it is not raised
        answers = _attribute(error, "recipients")
        if type(answers) is not dict or not all(
            type(answer) is tuple and answer for answer in answers.values()
        ):
            return None
        codes = [answer[0] for answer in answers.values()]
    good = [code for code in codes if type(code) is int and 400 <= code < 600]
    return min(good) if good and len(good) == len(codes) else None


def _not_sent_by_requests(error: Exception) -> bool:
    requests, urllib3 = sys.modules.get("requests"), sys.modules.get("urllib3")
    if requests is None or urllib3 is None:
        return False
    if _is(error, requests.exceptions.ConnectTimeout):
        return True
    if not _is(error, requests.exceptions.ConnectionError):
        return False
    inner = error.args[0] if error.args else None
    return _is(_attribute(inner, "reason"), urllib3.exceptions.NewConnectionError)


def _attribute(holder: object, name: str) -> Any:
    """An attribute of an error that may be anybody's; None where reading it fails."""
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - a property that raises tells nothing
        return None


def _status(error: Exception) -> int | None:
    response = _attribute(error, "response")
    for holder, attribute in (
        (error, "status"),
        (error, "status_code"),
        (error, "http_status"),
        (error, "code"),
        (response, "status_code"),
        (response, "status"),
    ):
        value = _attribute(holder, attribute)
        whole = issubclass(type(value), int) and type(value) is not bool
        if whole and 100 <= value < 600:
            return int(value)
    return None


def _retry_after(error: Exception, now: float) -> float | None:
    value = _attribute(error, "retry_after")
    if value is None:
        headers = _attribute(_attribute(error, "response"), "headers")
        if headers is None:
            headers = _attribute(error, "headers")
        try:
            value = headers.get("Retry-After")
        except Exception:  # noqa: BLE001 - no headers, or none that can be read
            return None
    try:
        return parse_retry_after(value, now)
    except Exception:  # noqa: BLE001 - it may be anybody's, and so may what it says of itself
        return None


def parse_retry_after(value: object, now: float) -> float | None:
    """Seconds from a Retry-After value: a number, digits or an HTTP date (RFC 9110 §10.2.3).

    ``now`` is wall time. A malformed or negative value is None: normal backoff applies.
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        # Beyond any sane wait it is still a floor, and one that no deadline survives.
        return float(min(value, int(LONGEST))) if value >= 0 else None
    if isinstance(value, float):
        return float(min(value, LONGEST)) if math.isfinite(value) and value >= 0 else None
    if not isinstance(value, str):
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST)
    # Not at the top: the e-mail package costs an import of durakit a twentieth of its time.
    from email.utils import parsedate_to_datetime  # noqa: PLC0415

    try:
        moment = parsedate_to_datetime(text)
    except Exception:  # noqa: BLE001 - the parser's own slips on malformed dates included
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    wait = moment.timestamp() - now
    return min(wait, LONGEST) if wait >= 0 else None

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
from typing import Any

from durakit.deadline import LONGEST
from durakit.errors import DeadlineExceeded, Infeasible, NotExecuted


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
#: refusals in front of the work; 409 and 425 are answers about another request in progress.
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
    {"concurrent_idempotent_requests", "idempotency_key_in_use", "in_progress"}
)

#: httpx errors raised before any byte of the request can have been acted on.
_HTTPX_NOT_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})


def classify(error: Exception, *, effect: bool, now: float) -> Failure:
    """Judge ``error`` by its type and status, never by its text or its truth value.

    ``effect`` says whether the tool can change the outside world: if so, everything that does
    not prove the contrary is *unknown*; if not, what is unknown is simply transient. ``now``
    is wall time, for a Retry-After date. Total: every exception gets a kind.
    """
    kind, reason, retry_after = _judge(error, now)
    if kind is FailureKind.UNKNOWN and not effect:
        kind = FailureKind.TRANSIENT if _looks_passing(error) else FailureKind.PERMANENT
    return Failure(kind, reason, retry_after)


def _judge(error: Exception, now: float) -> tuple[FailureKind, str, float | None]:
    if isinstance(error, Infeasible):
        return FailureKind.INFEASIBLE, f"infeasible: {error.missing}", None
    if isinstance(error, DeadlineExceeded) and isinstance(error.__cause__, Exception):
        # Of retries inside the tool: the last real cause says what may have happened.
        return _judge(error.__cause__, now)
    if isinstance(error, NotExecuted):
        kind = FailureKind.TRANSIENT if error.transient else FailureKind.PERMANENT
        retry_after = parse_retry_after(error.retry_after, now)
        return kind, "not executed, says the tool", retry_after
    status = _status(error)
    if status is not None:
        retry_after = _retry_after(error, now)
        name = _attribute(error, "name")
        if status == 409 and isinstance(name, str) and name in IN_PROGRESS_NAMES:
            return FailureKind.TRANSIENT, "status 409, in progress", retry_after
        default = FailureKind.PERMANENT if 400 <= status < 500 else FailureKind.UNKNOWN
        return STATUS_KINDS.get(status, default), f"status {status}", retry_after
    if isinstance(error, ConnectionRefusedError):
        return FailureKind.TRANSIENT, "connection refused", None
    # Looked up, not imported: a tool that raises httpx errors has imported httpx itself.
    httpx = sys.modules.get("httpx")
    if httpx is not None and isinstance(error, httpx.TransportError):
        names = {base.__name__ for base in type(error).__mro__}
        if "UnsupportedProtocol" in names:
            return FailureKind.PERMANENT, "httpx UnsupportedProtocol: not sent", None
        if names & _HTTPX_NOT_SENT:
            return FailureKind.TRANSIENT, f"httpx {type(error).__name__}: not sent", None
        return FailureKind.UNKNOWN, f"httpx {type(error).__name__}: no answer", None
    socket = sys.modules.get("socket")
    if socket is not None and isinstance(error, socket.gaierror):
        return FailureKind.TRANSIENT, "name not resolved: not sent", None
    if isinstance(error, TimeoutError):
        return FailureKind.UNKNOWN, "no answer in time", None
    return FailureKind.UNKNOWN, f"{type(error).__name__}: no proof that nothing happened", None


def _looks_passing(error: Exception) -> bool:
    """Without an outside effect: may the same request succeed later?"""
    httpx, subprocess = sys.modules.get("httpx"), sys.modules.get("subprocess")
    if httpx is not None and isinstance(error, httpx.TransportError):
        return True
    if subprocess is not None and isinstance(error, subprocess.TimeoutExpired):
        return True
    return isinstance(error, OSError) or _status(error) is not None


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
        if isinstance(value, int) and not isinstance(value, bool) and 100 <= value < 600:
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
    return parse_retry_after(value, now)


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
        return float(value) if math.isfinite(value) and value >= 0 else None
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
    return wait if wait >= 0 else None

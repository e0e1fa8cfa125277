"""The protocol of one call, as a pure core: no I/O, no clock, no randomness of its own.

::

    decide → save intent → send → effect → reply → save result → go on

How it works. The disk holds one *record* per operation (account, tool, key). Before every move
the driver asks ``decide`` and does exactly what the answer says. The answer depends on the
record, the request, the tool's effect contract, its retry policy, the time and one random
draw, and on nothing else. What happens next is an *event*, and ``TRANSITIONS`` says what each
event does to the record's status. The notebook draws its state diagram from that dict.

The rules:

1. No record and no saved intent: nothing was sent by us under this key. Send.
2. An intent without a result is **unknown**, whatever caused it. Crash before sending, request
   lost, reply lost, crash before saving: one identical record. Nobody can tell them apart by
   looking at our own disk, so the effect contract decides, and nothing else.
3. Only an answer about *this* operation resolves an unknown: its reply, a probe that found it,
   a probe that found nothing after the service's own settling time, a late reply, a person.
   A refusal that was given without looking (429, 401, 409 in use) resolves nothing. That is why
   a resend is a state of its own, RESENT: a refusal takes it back to DISPATCHED, not to REFUSED.
4. A deadline or a cancel request stops new work, never the truth: an unknown operation may
   still be probed, or sent again once under its key, within its settle allowance.
5. A compensation that has begun is brought to its end. The call that it undoes is COMPENSATING
   meanwhile, and COMPENSATED then: whatever is heard of it late is kept beside that.

What is inelegant: contract ``none`` (a tool without outside effect) uses the same records
although nothing can be unknown outside; its rerun is an event of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from durakit.failures import Failure, FailureKind
from durakit.retry import Retry, pause


class Effect(StrEnum):
    """What the tool's service promises (the effect contract)."""

    NONE = "none"
    IDEMPOTENT = "idempotent"
    QUERYABLE = "queryable"
    OPAQUE = "opaque"


class Outcome(StrEnum):
    """What is known about an operation's effect."""

    COMPLETED = "completed"
    NOT_EXECUTED = "not_executed"
    UNKNOWN = "unknown"


class Status(StrEnum):
    """What the disk says about an operation."""

    NEW = "NEW"
    """no row: nothing was saved about it"""
    DISPATCHED = "DISPATCHED"
    """an attempt's intent is saved and nothing after it"""
    RESENT = "RESENT"
    """sent again under the same key while an earlier attempt is unresolved"""
    REFUSED = "REFUSED"
    """certainly not executed; the key is open for another attempt"""
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    """certainly not executed, and the service's word is final"""
    COMPENSATING = "COMPENSATING"
    """its compensation has begun: what is heard of it from now on is kept, and settles nothing"""
    COMPENSATED = "COMPENSATED"
    """nobody learned whether it was executed; what it may have done is undone"""


class Event(StrEnum):
    """What can happen to an operation."""

    INTENT = "intent saved"
    RESEND = "intent of a resend saved"
    RERUN = "intent of a rerun saved (no outside effect)"
    REPLY = "reply"
    REFUSAL = "refusal, may pass"
    FINAL_REFUSAL = "refusal, final"
    NO_ANSWER = "no answer"
    FOUND = "probe: found"
    ABSENT = "probe: absent and settled"
    LATE_REPLY = "late reply"
    RESOLVED_COMPLETED = "a person: completed"
    RESOLVED_NOT_EXECUTED = "a person: not executed"
    COMPENSATION_BEGUN = "compensation begun"
    COMPENSATION_REFUSED = "compensation not executed"
    COMPENSATION = "compensation completed"


_S, _E = Status, Event

#: (status, event) → status. An event that is missing here cannot happen in that status.
TRANSITIONS: dict[tuple[Status, Event], Status] = {
    (_S.NEW, _E.INTENT): _S.DISPATCHED,
    (_S.REFUSED, _E.INTENT): _S.DISPATCHED,
    (_S.DISPATCHED, _E.RESEND): _S.RESENT,
    (_S.RESENT, _E.RESEND): _S.RESENT,
    (_S.DISPATCHED, _E.RERUN): _S.DISPATCHED,
    (_S.DISPATCHED, _E.REPLY): _S.SUCCEEDED,
    (_S.RESENT, _E.REPLY): _S.SUCCEEDED,
    (_S.DISPATCHED, _E.REFUSAL): _S.REFUSED,
    (_S.RESENT, _E.REFUSAL): _S.DISPATCHED,
    (_S.DISPATCHED, _E.FINAL_REFUSAL): _S.FAILED,
    (_S.RESENT, _E.FINAL_REFUSAL): _S.DISPATCHED,
    (_S.DISPATCHED, _E.NO_ANSWER): _S.DISPATCHED,
    (_S.RESENT, _E.NO_ANSWER): _S.DISPATCHED,
    (_S.DISPATCHED, _E.FOUND): _S.SUCCEEDED,
    (_S.RESENT, _E.FOUND): _S.SUCCEEDED,
    (_S.DISPATCHED, _E.ABSENT): _S.REFUSED,
    (_S.RESENT, _E.ABSENT): _S.REFUSED,
    (_S.DISPATCHED, _E.LATE_REPLY): _S.SUCCEEDED,
    (_S.RESENT, _E.LATE_REPLY): _S.SUCCEEDED,
    (_S.DISPATCHED, _E.RESOLVED_COMPLETED): _S.SUCCEEDED,
    (_S.RESENT, _E.RESOLVED_COMPLETED): _S.SUCCEEDED,
    (_S.DISPATCHED, _E.RESOLVED_NOT_EXECUTED): _S.REFUSED,
    (_S.RESENT, _E.RESOLVED_NOT_EXECUTED): _S.REFUSED,
    # Saved before the compensation's own intent. A late reply in between would complete a call that
    # is being undone: so none leads out of here, but the end of the compensation itself.
    (_S.DISPATCHED, _E.COMPENSATION_BEGUN): _S.COMPENSATING,
    (_S.RESENT, _E.COMPENSATION_BEGUN): _S.COMPENSATING,
    (_S.COMPENSATING, _E.COMPENSATION_REFUSED): _S.DISPATCHED,
    (_S.COMPENSATING, _E.COMPENSATION): _S.COMPENSATED,
    # Only where a late reply or another person has contradicted 'not executed'.
    (_S.REFUSED, _E.RESOLVED_COMPLETED): _S.SUCCEEDED,
}

#: What a status says about the outside world. NEW is missing on purpose: a row that is not
#: there says what *we* did not begin, and nothing about the world.
OUTCOMES: dict[Status, Outcome] = {
    _S.DISPATCHED: Outcome.UNKNOWN,
    _S.RESENT: Outcome.UNKNOWN,
    _S.REFUSED: Outcome.NOT_EXECUTED,
    _S.FAILED: Outcome.NOT_EXECUTED,
    _S.SUCCEEDED: Outcome.COMPLETED,
    _S.COMPENSATING: Outcome.UNKNOWN,
    _S.COMPENSATED: Outcome.UNKNOWN,
}

#: How a judged failure of one attempt reads as an event.
FAILURE_EVENTS: dict[FailureKind, Event] = {
    FailureKind.TRANSIENT: Event.REFUSAL,
    FailureKind.PERMANENT: Event.FINAL_REFUSAL,
    # Certainly not executed, and open: once the condition is there, the same key may be used.
    FailureKind.INFEASIBLE: Event.REFUSAL,
    FailureKind.UNKNOWN: Event.NO_ANSWER,
}


#: Statuses in which the outcome is unknown, and what is learned about it settles it.
UNRESOLVED = frozenset({Status.DISPATCHED, Status.RESENT})

#: Statuses in which the outcome is unknown, and something must still be done about it.
OPEN = UNRESOLVED | {Status.COMPENSATING}

#: Statuses in which a person, or the tool's declaration, has decided: the unknown is undone.
UNDOING = frozenset({Status.COMPENSATING, Status.COMPENSATED})

#: Statuses in which nothing more is done: the stored outcome is given back.
CONCLUDED = frozenset({Status.SUCCEEDED, Status.FAILED, Status.COMPENSATED})


def outcome(status: str, contract: str) -> Outcome:
    """What the disk's word about an operation means for the outside world.

    A tool without outside effect (contract ``none``) leaves nothing to be unknown: without a
    saved result it counts as not executed, and runs again.
    """
    said = OUTCOMES[Status(status)]
    if said is Outcome.UNKNOWN and contract == Effect.NONE:
        return Outcome.NOT_EXECUTED
    return said


def is_open(status: str, contract: str) -> bool:
    """Whether the operation is unknown and nothing has been done about that: no run may end so."""
    return status in OPEN and contract != Effect.NONE


def after(status: Status, event: Event) -> Status:
    """The status after ``event``. Raises KeyError for an event that cannot happen there."""
    return TRANSITIONS[status, event]


@dataclass(frozen=True)
class Contract:
    """A tool's effect contract. Times in seconds."""

    effect: Effect = Effect.OPAQUE
    window: float | None = None
    """how long the service remembers a key, counted from the first intent; None = for ever"""
    settles_after: float | None = None
    """after this long, a request that a probe does not find can no longer act unseen; None = the
    service promises no such time"""
    can_probe: bool = False
    on_unknown: str | None = None
    """an override: 'resend', 'probe', 'park' or 'compensate'"""
    can_compensate: bool = False


_EFFECTS = {effect.value: effect for effect in Effect}

#: Effects, from the one that permits most to the one that permits least.
_STRICTNESS = (Effect.NONE, Effect.IDEMPOTENT, Effect.QUERYABLE, Effect.OPAQUE)


def stricter(declared: Contract, saved: str) -> Contract:
    """The contract of an unknown operation: what was promised when it was sent stands.

    A tool declared anew with a weaker ``effect`` than the one ``saved`` with the intent does not
    make a guess out of an unknown.
    """
    effect = _EFFECTS.get(saved, Effect.OPAQUE)
    if _STRICTNESS.index(effect) <= _STRICTNESS.index(declared.effect):
        return declared
    # A tool 'without effect' declares no window: nobody knows how long the key is remembered.
    window = 0.0 if declared.effect is Effect.NONE else declared.window
    return replace(declared, effect=effect, window=window)


@dataclass(frozen=True)
class Record:
    """What the disk says about one operation. Times are wall seconds."""

    status: Status
    arguments: str
    """digest of the arguments, 64 hexadecimal digits"""
    attempts: int
    first_sent: float
    """when the first intent was saved"""
    sent: float
    """when the latest intent was saved"""
    not_before: float | None = None
    """a wait that was drawn and saved ends here"""
    held_until: float | None = None
    """another live run is driving it; its lease ends here"""
    waited: float | None = None
    """the wait that was drawn last, seconds; decorrelated jitter draws the next one from it"""
    last_chance_taken: bool = False
    """the policy's one attempt past its drawn waits is used"""


class Probed(StrEnum):
    """A probe's answer, where it did not find the operation."""

    ABSENT = "absent"
    STILL_UNKNOWN = "still unknown"


@dataclass(frozen=True)
class Request:
    """What the workflow asks for now, and under what constraints."""

    arguments: str
    remaining: float | None = None
    """seconds until the tightest limit; None without a limit"""
    settle: float = 30.0
    """seconds left of the settle allowance of an unknown operation"""
    stopping: str | None = None
    """why no new work may begin: 'deadline' or 'cancel'; None otherwise"""
    inherited: bool = False
    """the record was left by an earlier incarnation or run, not by this one's own attempt"""
    resent: bool = False
    """this incarnation has already sent it again while stopping"""
    failure: Failure | None = None
    """how this incarnation's latest attempt just failed"""
    probed: Probed | None = None
    """what a probe has just answered"""
    probes: int = 0
    """how many probes this incarnation has made"""
    inner_retries: int = 0
    """retries that the tool made inside its attempts; they count, so that layers do not multiply"""
    compensate: bool = False
    """a person has decided that the unknown operation is to be compensated"""
    has_token: bool = True
    """the retry budget shared with others has a token for one more retry"""


@dataclass(frozen=True)
class Replay:
    """Give the stored outcome; touch nothing."""


@dataclass(frozen=True)
class Execute:
    """Save the intent of ``attempt`` as ``event``, then send. ``basis`` says why it is allowed."""

    attempt: int
    event: Event
    basis: str


@dataclass(frozen=True)
class Wait:
    """Do nothing for ``seconds``. ``bound`` is the top of the window it was drawn from."""

    seconds: float
    reason: str
    bound: float | None = None


@dataclass(frozen=True)
class Probe:
    """Ask the service about the key."""


@dataclass(frozen=True)
class Compensate:
    """Undo what the unknown operation may have done, by an operation with its own key."""


@dataclass(frozen=True)
class Park:
    """Nobody may guess: the run becomes ``needs_decision``. ``why``: unknown or infeasible.

    ``drawn`` and ``bound``: of a wait that was drawn and does not fit, seconds.
    """

    reason: str
    why: str = "unknown"
    drawn: float | None = None
    bound: float | None = None


@dataclass(frozen=True)
class Refuse:
    """The call ends without (another) attempt; ``reason`` names the rule.

    ``drawn`` and ``bound``: of a wait that was drawn and does not fit, seconds.
    """

    reason: str
    drawn: float | None = None
    bound: float | None = None


Decision = Replay | Execute | Wait | Probe | Compensate | Park | Refuse

#: Reasons of Refuse, for the driver to turn into the right exception.
ARGUMENTS_DIFFER = "same key, other arguments"
ATTEMPTS_USED = "attempts used up"
BUDGET = "retry budget used up"
DEADLINE = "deadline"
CANCEL = "cancel"
IN_PROGRESS = "in progress elsewhere"

#: Reasons of a drawn Wait.
BACKOFF = "backoff"
LAST_CHANCE = "last chance"

#: A probe that cannot tell is repeated at this pace (seconds), this often, before parking.
PROBE_PAUSE = 1.0
PROBE_LIMIT = 5


def decide(
    record: Record | None,
    request: Request,
    contract: Contract,
    policy: Retry,
    now: float,
    draw: float,
) -> Decision:
    """What to do about one operation now.

    ``now`` is wall seconds, ``draw`` is uniform in [0, 1) and used only to draw a wait.
    """
    if record is None:
        if request.stopping:
            return Refuse(request.stopping)
        return Execute(1, Event.INTENT, "first attempt")
    if record.arguments != request.arguments:
        return Refuse(ARGUMENTS_DIFFER)
    if record.status in CONCLUDED:
        return Replay()
    if record.held_until is not None and record.held_until > now:
        if request.stopping or request.remaining == 0.0:
            return Refuse(IN_PROGRESS)
        return Wait(record.held_until - now, IN_PROGRESS)
    if record.status is Status.REFUSED:
        return _not_executed(record, request, policy, now, draw)
    if record.status is Status.COMPENSATING:
        if contract.can_compensate:
            return Compensate()
        return Park("unknown: its compensation has begun, and the tool declares none any more")
    return _unknown(record, request, contract, policy, now, draw)


def _not_executed(
    record: Record, request: Request, policy: Retry, now: float, draw: float
) -> Decision:
    """The latest attempt certainly had no effect, and the key is open."""
    if request.failure is not None:
        if request.failure.kind is FailureKind.INFEASIBLE and request.stopping != CANCEL:
            return Park(request.failure.reason, why="infeasible")
        if record.attempts + request.inner_retries >= policy.attempts:
            return Refuse(ATTEMPTS_USED)
        if request.stopping:
            return Refuse(request.stopping)
        if not request.has_token:
            return Refuse(BUDGET)
        wait = _draw_wait(record, request.failure, policy, draw, request.remaining)
        return wait or Refuse(DEADLINE, *_too_long(record, request.failure, policy, draw))
    if request.stopping:
        return Refuse(request.stopping)
    if record.attempts >= policy.attempts and not request.inherited:
        return Refuse(ATTEMPTS_USED)
    if record.not_before is not None and record.not_before > now:
        left = record.not_before - now
        if request.remaining is not None and left + policy.reserve >= request.remaining:
            return Refuse(DEADLINE)
        return Wait(left, "saved backoff")
    return Execute(record.attempts + 1, Event.INTENT, "not executed")


def _unknown(
    record: Record,
    request: Request,
    contract: Contract,
    policy: Retry,
    now: float,
    draw: float,
) -> Decision:
    """An intent without a result: follow the contract."""
    way = (
        contract.on_unknown
        or {
            Effect.NONE: "rerun",
            Effect.IDEMPOTENT: "resend",
            Effect.QUERYABLE: "probe",
            Effect.OPAQUE: "park",
        }[contract.effect]
    )
    asked = request.compensate or way == "compensate"
    if asked and contract.effect is not Effect.NONE:
        if contract.can_compensate:
            return Compensate()
        return Park("unknown, and the tool declares no compensation")
    blind = contract.on_unknown == "resend" and contract.effect is not Effect.IDEMPOTENT
    allowance = request.settle if request.stopping else request.remaining
    if way == "rerun":
        if record.status is Status.RESENT:
            return Park("unknown: it was sent again under a contract that has since been changed")
        if request.stopping:
            return Refuse(request.stopping)
        return Execute(record.attempts + 1, Event.RERUN, "no outside effect")
    if way == "resend":
        if not blind and contract.window is not None and now >= record.first_sent + contract.window:
            if contract.can_probe and contract.effect is Effect.IDEMPOTENT:
                return _probe(record, request, contract, now, "the key's window is over")
            return Park("unknown, and the key's window is over: sending again could act twice")
        basis = "on_unknown='resend': a blind guess" if blind else "same key"
        return _resend(record, request, policy, now, draw, allowance, basis)
    if way == "probe" and contract.can_probe:
        return _probe(record, request, contract, now, "unknown")
    return Park("unknown: the service can neither be asked nor does it know our key")


def _resend(
    record: Record,
    request: Request,
    policy: Retry,
    now: float,
    draw: float,
    allowance: float | None,
    basis: str,
) -> Decision:
    """Send again under the same key and arguments."""
    if request.failure is not None:
        if request.failure.kind in (FailureKind.PERMANENT, FailureKind.INFEASIBLE):
            return Park(f"unknown: the resend was refused ({request.failure.reason})")
        used = record.attempts + request.inner_retries >= policy.attempts
        if used or (request.stopping and request.resent):
            return Park(f"unknown after {record.attempts} attempts ({request.failure.reason})")
        if not request.has_token:
            return Park(f"unknown, and the {BUDGET}")
        drawn, bound = _too_long(record, request.failure, policy, draw)
        return _draw_wait(record, request.failure, policy, draw, allowance) or Park(
            "unknown, and no time is left to send again", drawn=drawn, bound=bound
        )
    if request.stopping and (request.resent or request.settle <= 0):
        return Park("unknown, and its settle allowance is used up")
    if record.not_before is not None and record.not_before > now:
        wait = record.not_before - now
        if allowance is not None and wait + policy.reserve >= allowance:
            return Park("unknown, and no time is left to send again")
        return Wait(wait, "saved backoff")
    return Execute(record.attempts + 1, Event.RESEND, basis)


def probe_event(
    record: Record, contract: Contract, found: bool, probed: Probed | None, asked: float
) -> Event | None:
    """What a probe's answer proves; ``asked`` is the wall time at which it was put.

    'Absent' proves something only when it was asked after sent + settles_after. A probe that
    failed or could not tell proves nothing: None.
    """
    if found:
        return Event.FOUND
    if (
        probed is Probed.ABSENT
        and contract.settles_after is not None
        and asked >= record.sent + contract.settles_after
    ):
        return Event.ABSENT
    return None


def _probe(record: Record, request: Request, contract: Contract, now: float, why: str) -> Decision:
    """Ask; 'absent' counts only after the service's own settling time."""
    if request.probed is None:
        return Probe()
    if request.probed is Probed.ABSENT:
        if contract.settles_after is None:
            return Park(
                f"{why}: the service does not know the key, "
                "but promises no time after which that is final"
            )
        wait = max(0.0, record.sent + contract.settles_after - now)
        if wait > request.settle:
            return Park(f"{why}: absent so far; ask again in {wait:.3g} s, when that is final")
        return Wait(wait, "absent is not final yet")
    if request.probes >= PROBE_LIMIT or request.settle <= PROBE_PAUSE:
        return Park(f"{why}: the service could not tell")
    return Wait(PROBE_PAUSE, "the service could not tell")


def _draw_wait(
    record: Record, failure: Failure, policy: Retry, draw: float, allowance: float | None
) -> Wait | None:
    """A drawn wait, or None where it would reach the limit: sample, then stop."""
    drawn = pause(
        policy,
        record.attempts,
        draw,
        remaining=allowance,
        previous=record.waited,
        retry_after=failure.retry_after,
        last_chance_taken=record.last_chance_taken,
    )
    if drawn is None:
        return None
    return Wait(drawn.seconds, LAST_CHANCE if drawn.last_chance else BACKOFF, drawn.bound)


def _too_long(record: Record, failure: Failure, policy: Retry, draw: float) -> tuple[float, float]:
    """The wait that was drawn, and the top of its window, for the journal: it did not fit."""
    wait = policy.wait(record.attempts, draw, record.waited, failure.retry_after)
    return wait, policy.window(record.attempts, record.waited)[1]


def describe(decision: Decision) -> dict[str, Any]:
    """The decision as a journal entry shows it."""
    names = decision.__dataclass_fields__
    parts = {name: getattr(decision, name) for name in names if getattr(decision, name) is not None}
    return {"decision": type(decision).__name__.lower(), **parts}

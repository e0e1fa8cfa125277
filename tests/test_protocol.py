"""The protocol of one call: its transitions are closed, and its decisions follow the contract."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from durakit import protocol
from durakit.failures import Failure, FailureKind
from durakit.protocol import (
    FAILURE_EVENTS,
    OUTCOMES,
    TRANSITIONS,
    Contract,
    Effect,
    Event,
    Execute,
    Outcome,
    Park,
    Probe,
    Probed,
    Record,
    Refuse,
    Replay,
    Request,
    Status,
    Wait,
    decide,
    describe,
    probe_event,
)
from durakit.retry import Retry

NOW = 1_767_258_000.0
SAME, OTHER = "a" * 64, "b" * 64
UNKNOWN = (Status.DISPATCHED, Status.RESENT)
FINAL = (Status.SUCCEEDED, Status.FAILED, Status.COMPENSATED)

#: What alone may say how an unknown operation ended; a refusal is the first attempt's own reply.
RESOLVING = {
    Event.REPLY,
    Event.FOUND,
    Event.ABSENT,
    Event.LATE_REPLY,
    Event.RESOLVED_COMPLETED,
    Event.RESOLVED_NOT_EXECUTED,
}

# -- generated inputs ---------------------------------------------------------------------

few_seconds = st.sampled_from([0.0, 0.5, 1.0, 5.0, 30.0, 100.0]) | st.floats(0, 1e6)
moments = few_seconds.map(lambda seconds: NOW - seconds) | few_seconds.map(lambda s: NOW + s)

contracts = st.builds(
    Contract,
    effect=st.sampled_from(Effect),
    window=st.none() | few_seconds.filter(bool),
    settles_after=st.none() | few_seconds,
    can_probe=st.booleans(),
    on_unknown=st.sampled_from([None, None, "resend", "probe", "park", "compensate"]),
    can_compensate=st.booleans(),
)
policies = st.builds(
    Retry,
    initial=st.floats(0.01, 10),
    cap=st.floats(10, 100),
    attempts=st.integers(1, 5),
    jitter=st.sampled_from(["full", "full", "equal", "none", "additive", "decorrelated"]),
    last_chance=st.booleans(),
    reserve=st.sampled_from([0.0, 0.1, 2.0]),
)
records = st.builds(
    Record,
    status=st.sampled_from([status for status in Status if status is not Status.NEW]),
    arguments=st.sampled_from([SAME, SAME, SAME, OTHER]),
    attempts=st.integers(1, 6),
    first_sent=moments,
    sent=moments,
    not_before=st.none() | moments,
    held_until=st.none() | moments,
    waited=st.none() | st.floats(0.01, 100),
    last_chance_taken=st.booleans(),
)
unknowns = records.map(
    lambda kept: replace(
        kept, arguments=SAME, held_until=None, status=UNKNOWN[kept.attempts % len(UNKNOWN)]
    )
)
failures = st.builds(
    Failure,
    kind=st.sampled_from(FailureKind),
    reason=st.just("because"),
    retry_after=st.none() | few_seconds,
)
requests = st.builds(
    Request,
    arguments=st.just(SAME),
    remaining=st.none() | few_seconds,
    settle=few_seconds,
    stopping=st.sampled_from([None, None, "deadline", "cancel"]),
    inherited=st.booleans(),
    resent=st.booleans(),
    failure=st.none() | failures,
    probed=st.none() | st.sampled_from(Probed),
    probes=st.integers(0, 6),
    inner_retries=st.sampled_from([0, 0, 0, 1, 9]),
    compensate=st.sampled_from([False, False, True]),
    has_token=st.sampled_from([True, True, False]),
)
draws = st.floats(0, 1, exclude_max=True)
cases = st.tuples(st.none() | records, requests, contracts, policies, st.just(NOW) | moments, draws)
known_cases = st.tuples(
    records | unknowns, requests, contracts, policies, st.just(NOW) | moments, draws
)
# A busy machine may be slow; that is no failure.
laws = settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def record(status: Status = Status.DISPATCHED, **fields: object) -> Record:
    """Return the record of one attempt that was sent just now."""
    return replace(Record(status, SAME, 1, NOW, NOW), **fields)


def now_decide(
    kept: Record | None, contract: Contract, policy: Retry | None = None, **request: object
) -> protocol.Decision:
    """Decide at NOW with a draw of one half."""
    return decide(kept, Request(SAME, **request), contract, policy or Retry(), NOW, 0.5)


# -- transitions --------------------------------------------------------------------------


def test_transitions_name_only_known_statuses_and_events():
    """The table is closed: it leads to no status without an outcome."""
    for (status, event), then in TRANSITIONS.items():
        assert isinstance(status, Status)
        assert isinstance(event, Event)
        assert then in OUTCOMES
        assert protocol.after(status, event) is then


def test_nothing_leads_back_to_new():
    """What was once saved is never unsaved."""
    assert Status.NEW not in TRANSITIONS.values()
    assert Status.NEW not in OUTCOMES


def test_every_status_is_reached_from_new():
    """No status stands in the table that cannot happen."""
    reached, todo = {Status.NEW}, [Status.NEW]
    while todo:
        here = todo.pop()
        for (status, _), then in TRANSITIONS.items():
            if status is here and then not in reached:
                reached.add(then)
                todo.append(then)
    assert reached == set(Status)


def test_a_conclusion_has_no_way_out_and_every_other_status_has_one():
    """SUCCEEDED, FAILED and COMPENSATED stand for good; an unknown can always still be resolved."""
    ways_out = {status for status, _ in TRANSITIONS}
    assert ways_out == set(Status) - set(FINAL)
    for status in UNKNOWN:
        assert {event for at, event in TRANSITIONS if at is status} >= RESOLVING


def test_each_event_is_used_and_each_kind_of_failure_is_an_event_an_attempt_can_have():
    """Nothing a tool may raise is without a transition in either unknown status."""
    assert {event for _, event in TRANSITIONS} == set(Event)
    assert set(FAILURE_EVENTS) == set(FailureKind)
    for status, event in itertools.product(UNKNOWN, FAILURE_EVENTS.values()):
        assert (status, event) in TRANSITIONS


def test_an_unknown_ends_only_by_an_answer_about_itself():
    """A refusal concludes only the attempt whose own reply it is, never an earlier one."""
    own_refusals = {Event.REFUSAL, Event.FINAL_REFUSAL}
    for (status, event), then in TRANSITIONS.items():
        if status in UNKNOWN and then not in UNKNOWN:
            own = own_refusals if status is Status.DISPATCHED else set()
            assert event in RESOLVING | {Event.COMPENSATION_BEGUN} | own


def test_a_compensation_closes_an_unknown_and_makes_nothing_known():
    """Nobody learned whether it was executed."""
    for status in UNKNOWN:
        assert protocol.after(status, Event.COMPENSATION_BEGUN) is Status.COMPENSATING
    assert protocol.after(Status.COMPENSATING, Event.COMPENSATION) is Status.COMPENSATED
    assert {OUTCOMES[status] for status in protocol.UNDOING} == {Outcome.UNKNOWN}
    assert protocol.is_open("DISPATCHED", "opaque")
    assert protocol.is_open("COMPENSATING", "opaque")
    assert not protocol.is_open("COMPENSATED", "opaque")
    assert not protocol.is_open("DISPATCHED", "none")


def test_a_call_that_is_being_compensated_is_completed_by_nothing_that_is_heard_of_it():
    """Only the compensation's own end leads on: it is made, or it certainly was not."""
    ways_out = {event: then for (at, event), then in TRANSITIONS.items()
                if at is Status.COMPENSATING}  # fmt: skip
    assert ways_out == {
        Event.COMPENSATION: Status.COMPENSATED,
        Event.COMPENSATION_REFUSED: Status.DISPATCHED,
    }
    assert Status.COMPENSATING not in protocol.UNRESOLVED


@pytest.mark.parametrize("event", [Event.REFUSAL, Event.FINAL_REFUSAL, Event.NO_ANSWER])
def test_a_resend_that_is_refused_or_unanswered_resolves_nothing(event):
    """429, 401 or 409 was said without looking at the first request."""
    assert protocol.after(Status.RESENT, event) is Status.DISPATCHED
    assert OUTCOMES[Status.DISPATCHED] is Outcome.UNKNOWN


def test_found_means_completed_and_absent_means_open_again():
    """The two answers of a probe that prove something."""
    for status in UNKNOWN:
        assert OUTCOMES[protocol.after(status, Event.FOUND)] is Outcome.COMPLETED
        assert protocol.after(status, Event.ABSENT) is Status.REFUSED
        assert protocol.after(status, Event.RESOLVED_NOT_EXECUTED) is Status.REFUSED


@pytest.mark.parametrize("status", FINAL)
@pytest.mark.parametrize("event", Event)
def test_an_event_that_cannot_happen_is_an_error(status, event):
    """Nothing is silently ignored after a conclusion."""
    with pytest.raises(KeyError):
        protocol.after(status, event)


# -- the contract table, row by row -------------------------------------------------------


def test_without_a_record_the_first_attempt_is_made():
    """Nothing was sent by us under this key."""
    for effect in Effect:
        first = now_decide(None, Contract(effect))
        assert first == Execute(1, Event.INTENT, "first attempt")


def test_none_is_run_again():
    """A tool without outside effect may always run again."""
    decision = now_decide(record(), Contract(Effect.NONE))
    assert decision == Execute(2, Event.RERUN, "no outside effect")


def test_idempotent_is_sent_again_inside_its_window():
    """Under the same key; the window is counted from the first intent, not from the latest."""
    contract = Contract(Effect.IDEMPOTENT, window=100.0)
    inside = record(first_sent=NOW - 99.9, attempts=2)
    assert now_decide(inside, contract) == Execute(3, Event.RESEND, "same key")
    outside = record(first_sent=NOW - 100.0, sent=NOW)
    assert isinstance(now_decide(outside, contract), Park)


def test_idempotent_outside_its_window_probes_if_it_can():
    """Asking is harmless when sending is not."""
    outside = record(first_sent=NOW - 100.0)
    contract = Contract(Effect.IDEMPOTENT, window=100.0, can_probe=True, settles_after=1.0)
    assert now_decide(outside, contract) == Probe()
    still = now_decide(outside, contract, probed=Probed.STILL_UNKNOWN, probes=5)
    assert isinstance(still, Park)


def test_queryable_probes_first():
    """It is never sent again on a mere unknown."""
    contract = Contract(Effect.QUERYABLE, can_probe=True, settles_after=5.0)
    assert now_decide(record(), contract) == Probe()


def test_queryable_absent_too_early_is_asked_again_when_it_is_final():
    """A request may still act unseen until sent + settles_after."""
    contract = Contract(Effect.QUERYABLE, can_probe=True, settles_after=5.0)
    early = now_decide(record(sent=NOW - 2.0), contract, probed=Probed.ABSENT)
    assert isinstance(early, Wait)
    assert early.seconds == 3.0
    too_long = now_decide(record(sent=NOW - 2.0), contract, probed=Probed.ABSENT, settle=2.9)
    assert isinstance(too_long, Park)


def test_queryable_absent_and_settled_is_sent_again_under_the_same_key():
    """The probe's event opens the key, and only then an attempt follows."""
    contract = Contract(Effect.QUERYABLE, can_probe=True, settles_after=5.0)
    settled = record(sent=NOW - 5.0)
    event = probe_event(settled, contract, found=False, probed=Probed.ABSENT, asked=NOW)
    assert event is Event.ABSENT
    opened = replace(settled, status=protocol.after(settled.status, event))
    assert now_decide(opened, contract) == Execute(2, Event.INTENT, "not executed")


def test_queryable_without_a_settling_time_parks_on_absent():
    """Absent may only mean late, for ever."""
    contract = Contract(Effect.QUERYABLE, can_probe=True)
    assert isinstance(now_decide(record(sent=0.0), contract, probed=Probed.ABSENT), Park)


def test_a_probe_that_cannot_tell_is_repeated_a_few_times_and_then_parks():
    """Five times, a second apart, and never as Absent."""
    contract = Contract(Effect.QUERYABLE, can_probe=True, settles_after=5.0)
    for probes in range(1, protocol.PROBE_LIMIT):
        again = now_decide(record(), contract, probed=Probed.STILL_UNKNOWN, probes=probes)
        assert isinstance(again, Wait)
        assert again.seconds == protocol.PROBE_PAUSE
    last = now_decide(record(), contract, probed=Probed.STILL_UNKNOWN, probes=5)
    assert isinstance(last, Park)


@pytest.mark.parametrize("status", UNKNOWN)
def test_opaque_parks(status):
    """Neither asked nor sent again: a person decides."""
    assert isinstance(now_decide(record(status), Contract()), Park)
    assert Contract().effect is Effect.OPAQUE


@pytest.mark.parametrize("effect", [Effect.NONE, Effect.QUERYABLE, Effect.OPAQUE])
def test_the_wrong_choice_has_to_be_asked_for_and_says_so(effect):
    """`on_unknown='resend'` shows a lesson what a blind guess does."""
    decision = now_decide(record(), Contract(effect, on_unknown="resend"))
    assert decision == Execute(2, Event.RESEND, "on_unknown='resend': a blind guess")


def test_a_person_may_be_preferred_to_any_contract():
    """`on_unknown='park'` is honoured even for an idempotent tool."""
    assert isinstance(now_decide(record(), Contract(Effect.IDEMPOTENT, on_unknown="park")), Park)


def test_a_stored_outcome_is_replayed_even_after_the_deadline_and_past_the_window():
    """Replay touches nothing, so that no limit stops it."""
    for status in FINAL:
        kept = record(status, first_sent=0.0, held_until=NOW + 9)
        contract = Contract(Effect.IDEMPOTENT, window=1.0)
        assert now_decide(kept, contract, stopping="deadline", remaining=0.0) == Replay()


def test_a_run_that_is_alive_elsewhere_is_waited_for_and_a_dead_one_is_not():
    """Within the deadline; when it fires the answer is 'in progress', never 'failed'."""
    held = record(held_until=NOW + 4.0)
    contract = Contract(Effect.IDEMPOTENT)
    assert now_decide(held, contract) == Wait(4.0, protocol.IN_PROGRESS)
    for limit in ({"stopping": "cancel"}, {"remaining": 0.0}):
        assert now_decide(held, contract, **limit) == Refuse(protocol.IN_PROGRESS)
    assert isinstance(now_decide(record(held_until=NOW), contract), Execute)


def test_after_a_refusal_that_may_pass_a_drawn_wait_is_begun_if_it_fits():
    """Sample, and stop at once if wait + reserve reaches what remains; never clamp."""
    failure = Failure(FailureKind.TRANSIENT, "429")
    policy = Retry(initial=4.0, cap=8.0, reserve=0.5)
    refused = record(Status.REFUSED)
    ask = {"policy": policy, "failure": failure}
    contract = Contract(Effect.IDEMPOTENT)
    assert now_decide(refused, contract, remaining=2.6, **ask) == Wait(2.0, "backoff", 4.0)
    assert now_decide(refused, contract, remaining=2.5, **ask) == Refuse(
        protocol.DEADLINE, 2.0, 4.0
    )
    floor = replace(failure, retry_after=60.0)
    ask["failure"] = floor
    assert now_decide(refused, contract, remaining=60.0, **ask) == Refuse(
        protocol.DEADLINE, 60.0, 4.0
    )
    assert now_decide(refused, contract, **ask) == Wait(60.0, "backoff", 4.0)


def test_a_wait_that_was_saved_is_finished_after_a_restart():
    """It was drawn once; recovery does not draw again, and does not send early."""
    refused = record(Status.REFUSED, not_before=NOW + 3.0)
    assert now_decide(refused, Contract(), inherited=True) == Wait(3.0, "saved backoff")
    over = replace(refused, not_before=NOW)
    assert isinstance(now_decide(over, Contract(), inherited=True), Execute)


def test_an_unknown_may_be_sent_again_once_while_stopping():
    """A deadline stops new work, never the truth."""
    contract = Contract(Effect.IDEMPOTENT)
    late = {"stopping": "deadline", "remaining": 0.0}
    assert isinstance(now_decide(record(), contract, **late), Execute)
    assert isinstance(now_decide(record(), contract, **late, resent=True), Park)
    assert isinstance(now_decide(record(), contract, **late, settle=0.0), Park)
    queryable = Contract(Effect.QUERYABLE, can_probe=True, settles_after=1.0)
    assert now_decide(record(), queryable, **late) == Probe()


@pytest.mark.parametrize("kind", [FailureKind.PERMANENT, FailureKind.INFEASIBLE])
def test_a_resend_that_is_refused_for_good_parks(kind):
    """The refusal was about the resend; what the first request did stays unknown."""
    failure = Failure(kind, "status 401")
    decision = now_decide(record(attempts=2), Contract(Effect.IDEMPOTENT), failure=failure)
    assert isinstance(decision, Park)
    assert "status 401" in decision.reason


# -- laws over everything -----------------------------------------------------------------


@laws
@given(cases)
def test_every_input_has_a_decision_and_always_the_same_one(case):
    """Total and deterministic; the answer can be written into the journal."""
    decision = decide(*case)
    assert isinstance(decision, protocol.Decision)
    assert decide(*case) == decision
    told = describe(decision)
    assert told["decision"] == type(decision).__name__.lower()
    assert all(part is not None for part in told.values())


@laws
@given(known_cases)
def test_other_arguments_are_always_refused(case):
    """Whatever else is true of it, a key stands for one request."""
    kept, request, *rest = case
    asked = replace(request, arguments="c" * 64)
    assert decide(kept, asked, *rest) == Refuse(protocol.ARGUMENTS_DIFFER)


@laws
@given(known_cases)
def test_only_an_idempotent_contract_is_resent_unless_a_lesson_asks_for_the_guess(case):
    """Queryable and opaque operations are never sent again on an unknown."""
    kept, _, contract, *_ = case
    decision = decide(*case)
    if isinstance(decision, Execute) and decision.event is Event.RESEND:
        assert contract.effect is Effect.IDEMPOTENT or contract.on_unknown == "resend"
        assert kept.status in UNKNOWN
    if isinstance(decision, Execute) and decision.event is Event.RERUN:
        assert contract.effect is Effect.NONE


@laws
@given(unknowns, requests, contracts, policies, draws, few_seconds)
def test_an_unknown_is_never_executed_beyond_the_keys_window(
    kept, request, contract, policy, draw, since
):
    """Counted from the first intent: outside it the service takes a resend for new work."""
    contract = replace(contract, effect=Effect.IDEMPOTENT, window=contract.window or 5.0)
    kept = replace(kept, first_sent=NOW - since)
    if isinstance(decide(kept, request, contract, policy, NOW, draw), Execute):
        assert kept.first_sent + contract.window > NOW


@laws
@given(known_cases)
def test_stopping_begins_no_new_attempt_of_what_is_not_unknown(case):
    """A deadline or a cancel request stops new work."""
    kept, request, *_ = case
    decision = decide(*case)
    if request.stopping and isinstance(decision, Execute):
        assert kept.status in UNKNOWN
        assert decision.event is Event.RESEND
        assert not request.resent
        assert request.settle > 0
    if request.stopping:
        assert decide(None, *case[1:]) == Refuse(request.stopping)
        assert not isinstance(decide(replace(kept, status=Status.REFUSED), *case[1:]), Execute)


@laws
@given(known_cases)
def test_no_wait_reaches_the_end_of_the_time_it_may_take(case):
    """Backoff fits what remains with its reserve; settling fits the settle allowance."""
    kept, request, _, policy, now, _ = case
    decision = decide(*case)
    if not isinstance(decision, Wait):
        return
    assert decision.seconds >= 0
    if decision.reason in {"backoff", "saved backoff", "last chance"}:
        unknown = kept.status in UNKNOWN
        allowance = request.settle if unknown and request.stopping else request.remaining
        assert allowance is None or decision.seconds + policy.reserve < allowance
    elif decision.reason == protocol.IN_PROGRESS:
        assert decision.seconds == kept.held_until - now
        assert not request.stopping
        assert request.remaining != 0.0
    else:
        assert decision.seconds <= request.settle


@laws
@given(known_cases)
def test_a_drawn_wait_is_at_least_what_the_service_asked_for(case):
    """Retry-After is a floor, and the bound that is told is the policy's own."""
    kept, request, _, policy, _, draw = case
    decision = decide(*case)
    if isinstance(decision, Wait) and decision.reason == "backoff":
        floor = request.failure.retry_after or 0.0
        assert decision.seconds == policy.wait(kept.attempts, draw, kept.waited, floor)
        assert decision.seconds >= floor
        assert decision.bound == policy.window(kept.attempts, kept.waited)[1]
        assert kept.attempts + request.inner_retries < policy.attempts
        assert request.has_token


@laws
@given(known_cases, st.booleans())
def test_only_what_is_unknown_and_can_be_corrected_is_compensated(case, wanted):
    """Because a person says so, or because the tool was declared so."""
    kept, request, contract, *rest = case
    decision = decide(kept, replace(request, compensate=wanted), contract, *rest)
    begun = kept.status is Status.COMPENSATING
    if isinstance(decision, protocol.Compensate):
        assert begun or kept.status in UNKNOWN
        assert contract.can_compensate
        assert begun or wanted or contract.on_unknown == "compensate"
        assert begun or contract.effect is not Effect.NONE


@laws
@given(known_cases)
def test_a_compensation_that_has_begun_goes_on_whatever_else_is_the_case(case):
    """No deadline, failure or probe leads elsewhere; without a compensation a person decides."""
    kept, request, contract, *rest = case
    kept = replace(kept, status=Status.COMPENSATING, arguments=SAME, held_until=None)
    decision = decide(kept, request, contract, *rest)
    goes_on = protocol.Compensate if contract.can_compensate else Park
    assert isinstance(decision, goes_on)


@laws
@given(known_cases)
def test_an_attempt_is_counted_up_and_its_event_can_happen(case):
    """The driver can always do what the decision says."""
    kept, *_ = case
    decision = decide(*case)
    if isinstance(decision, Execute):
        assert decision.attempt == kept.attempts + 1
        assert (kept.status, decision.event) in TRANSITIONS


@laws
@given(known_cases, failures)
def test_a_failed_attempt_is_never_followed_by_another_at_once(case, failure):
    """First comes a wait, a probe, a person or the end; after a wait the decision is made anew."""
    kept, request, contract, *rest = case
    failed = replace(request, failure=failure)
    if contract.effect is not Effect.NONE or kept.status is Status.REFUSED:
        assert not isinstance(decide(kept, failed, contract, *rest), Execute)


def test_a_tool_declared_anew_without_effect_does_not_make_a_resend_harmless():
    """It was sent twice under a contract that had an effect: a person decides."""
    assert isinstance(now_decide(record(Status.RESENT), Contract(Effect.NONE)), Park)


@laws
@given(known_cases)
def test_a_conclusion_is_only_ever_replayed_and_an_unknown_never(case):
    """A stored outcome is given as it is; what has none is not made up."""
    kept, *_ = case
    assert (decide(*case) == Replay()) == (kept.arguments == SAME and kept.status in FINAL)


@laws
@given(known_cases)
def test_an_unknown_with_an_effect_never_ends_as_a_plain_failure(case):
    """It parks, waits, asks or is sent again: the only refusals are about others' work."""
    kept, _, contract, *_ = case
    decision = decide(*case)
    if kept.status in UNKNOWN and contract.effect is not Effect.NONE:
        refusals = {protocol.ARGUMENTS_DIFFER, protocol.IN_PROGRESS}
        assert not isinstance(decision, Refuse) or decision.reason in refusals


@laws
@given(known_cases)
def test_only_what_can_be_asked_is_probed(case):
    """And only what is unknown."""
    kept, _, contract, *_ = case
    if decide(*case) == Probe():
        assert contract.can_probe
        assert kept.status in UNKNOWN


@laws
@given(records, contracts, st.booleans(), st.none() | st.sampled_from(Probed), moments)
def test_absent_proves_nothing_before_the_settling_time(kept, contract, found, probed, asked):
    """And nothing ever where the service promises no such time."""
    event = probe_event(kept, contract, found, probed, asked)
    if found:
        assert event is Event.FOUND
    elif event is not None:
        assert event is Event.ABSENT
        assert probed is Probed.ABSENT
        assert contract.settles_after is not None
        assert asked >= kept.sent + contract.settles_after
    settled = contract.settles_after is not None and asked >= kept.sent + contract.settles_after
    assert found or (event is Event.ABSENT) == (probed is Probed.ABSENT and settled)


@laws
@given(known_cases, st.floats(0, 1, exclude_max=True))
def test_the_draw_decides_the_length_of_a_wait_and_otherwise_nothing(case, other):
    """Chance may not decide whether something is sent."""
    one, two = decide(*case), decide(*case[:-1], other)
    if isinstance(one, Execute | Probe | Replay) or isinstance(two, Execute | Probe | Replay):
        assert one == two

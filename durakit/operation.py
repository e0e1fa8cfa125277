"""The protocol of one call, carried out.

::

    decide → save intent → send → effect → reply → save result → go on

``protocol.decide`` is the only judge. Read ``run`` first, then downwards: what is decided, the
attempt (intent, send, reply), saving the reply or the failure, asking, waiting, and the three
ways to end without an attempt (replay, refuse, park). The rules that the code below keeps:

1. Every move of the record goes through ``record.OperationRecord``. When it is not what we have
   seen (OperationMoved: another run, or a person, was quicker), we look again and decide anew.
2. ``ours``: this run's journal holds an intent of the operation, so the run may not end while it
   is unknown.
3. A reply in memory is saved, whatever limit has fired meanwhile. An attempt that was left at its
   limit goes on; its late reply is evidence, and while it is alive no further attempt starts.
4. The settle allowance of an unknown operation begins with the first decision about it.
5. What others want (commands) is looked at before each decision, and between an intent and its
   sending: nowhere else does it change what happens.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NoReturn

from durakit import protocol, values
from durakit.deadline import Limit, narrow
from durakit.define import Found, Tool
from durakit.drive import Drive
from durakit.errors import (
    ArgumentsDiffer,
    Cancelled,
    Compensated,
    DeadlineExceeded,
    NotExecuted,
    Suspended,
)
from durakit.exchange import Attempted, Exchange
from durakit.failures import Failure, FailureKind
from durakit.protocol import (
    Compensate,
    Effect,
    Event,
    Execute,
    Park,
    Probe,
    Probed,
    Refuse,
    Replay,
    Request,
    Status,
    Wait,
)
from durakit.record import OperationRecord
from durakit.slots import (
    begun_compensation,
    concludes,
    contradiction,
    in_one_line,
    reply_payload,
    short,
    tokens_left,
)
from durakit.store import OperationMoved, OperationRow
from durakit.values import compact
from durakit.workers import Abandoned

#: How often (seconds) an operation that another run is driving is looked at again.
POLL = 0.05

#: A wait that is asked for again must move every clock, one that counts microseconds too.
LEAST_WAIT = 0.001


class Operation(OperationRecord):
    """One logical operation, from the workflow's call to its outcome."""

    def __init__(
        self,
        drive: Drive,
        tool: Tool,
        key: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        arguments: str,
        occurrence: int,
        undoes: Operation | tuple[str, str] | None = None,
    ) -> None:
        super().__init__(drive, tool, key, arguments)
        self.args = args
        self.kwargs = kwargs
        self.occurrence = occurrence
        self.exchange = Exchange(drive, tool, key, args, kwargs, occurrence)
        #: this run's journal holds an intent of it
        self.ours = False
        #: this incarnation has sent it again
        self.resent = False
        self.probes = 0
        self.settle_ends: float | None = None
        self.last_error: Exception | None = None
        #: the unknown call inside of which this is the compensation
        self.inside = undoes if isinstance(undoes, Operation) else None
        #: (tool, key) of the operation that this one undoes
        self.undoes = (undoes.tool.name, undoes.key) if isinstance(undoes, Operation) else undoes

    def run(self) -> Any:
        """Ask ``decide``, do what it says, until the operation has an outcome."""
        self._recall_budget()
        decision: protocol.Decision | None = None
        while True:
            try:
                if decision is None:
                    evidence = self._evidence()
                    if evidence is not None:
                        return evidence.result
                    self._cancel_outside()
                    decision = self._decide()
                match decision:
                    case Execute():
                        if self._still_running():
                            decision = None
                            continue
                        attempted = self._attempt(decision)
                        if attempted.failure is None:
                            return self._save_reply(attempted.value)
                        decision = self._save_failure(attempted)  # what follows is saved with it
                    case Probe():
                        answer = self._ask()
                        if isinstance(answer, Found):
                            return answer.result
                        decision = answer
                    case Wait():
                        self._wait(decision)
                        decision = None
                    case Replay():
                        return self._replay()
                    case Refuse(reason):
                        self._refuse(reason)
                    case Compensate():
                        # What is still running could act after its compensation.
                        if not self._still_running():
                            self._compensate()
                        decision = None
                    case Park(reason, why):
                        self._park(reason, why)
            except OperationMoved:
                self.look_again()
                decision = None

    def _evidence(self) -> Found | None:
        """What others know about the operation by now: a person's word, or a late reply."""
        self.drive.consume_commands()
        if self.drive.words:
            word = self.drive.words.pop((self.tool.name, self.key), None)
            if word is not None:
                self.look_again()
                if json.loads(word).get("outcome") == "compensate":
                    self.past = replace(self.past, compensate=True)
                elif self.ours and concludes(word):
                    return Found(self.drive.give_back(word, self.tool.returns, self.tool.errors))
        if self.drive.disputed:
            self._check_undisputed()
        late = self._take_late_reply()
        if late is None:
            return None
        if self.unresolved():
            return Found(self._save_late_reply(late))
        self._conflict(reply_payload(self.tool, late.value)[0])
        return None

    def _check_undisputed(self) -> None:
        """Where two answers differ, nothing is sent before a person has decided."""
        row = self.row
        if (
            row is not None
            and row.status == "REFUSED"
            and (row.tool, row.key) in self.drive.disputed
        ):
            self.drive.stop(contradiction(row.tool, row.key, row.status))

    def _decide(
        self,
        failure: Failure | None = None,
        probed: Probed | None = None,
        row: OperationRow | None = None,
        has_token: bool = True,
    ) -> protocol.Decision:
        row = row or self.row
        now, mono = self.now(), self.drive.clock.monotonic()
        record = None if row is None else self.seen(row, now)
        if record is not None and self.settle_ends is None:
            self.settle_ends = mono + self.drive.around.settle
        request = Request(
            arguments=self.arguments,
            remaining=self._remaining(),
            settle=max(0.0, (self.settle_ends or mono + self.drive.around.settle) - mono),
            stopping=self._stopping(),
            inherited=self.inherited,
            resent=self.resent,
            failure=failure,
            probed=probed,
            probes=self.probes,
            inner_retries=self.past.inner_retries,
            has_token=has_token,
            compensate=self.past.compensate,
        )
        draw = 0.0 if failure is None else self.drive.around.rng.random()
        return protocol.decide(record, request, self.contract(), self.tool.policy, now, draw)

    def _stopping(self) -> str | None:
        """Why no new work may begin. A compensation is no new work, it ends what was begun."""
        return None if self.inside is not None else self.drive.stopping()

    def _remaining(self) -> float | None:
        """Seconds left; where the limits have fired, a compensation has a settle allowance."""
        if self.inside is None or self.drive.stopping() is None:
            return self.drive.remaining()
        ends = self.settle_ends or self.drive.clock.monotonic() + self.drive.around.settle
        return max(0.0, ends - self.drive.clock.monotonic())

    def _recall_budget(self) -> None:
        """At a tool's first call of a life: a crash, wherever it came, restarts no budget."""
        budget = self.tool.policy.budget
        if budget is None or self.tool.name in self.drive.recalled:
            return
        self.drive.recalled.add(self.tool.name)
        left = tokens_left(self.drive.entries, self.tool.name)
        if left is not None:
            budget.at_most(left)

    def _attempt(self, decision: Execute) -> Attempted:
        """Save the intent, then send."""
        tool, attempt = self.tool, decision.attempt
        self.drive.reach(tool.name, "before_intent", self.occurrence, attempt)
        now = self.drive.clock.now()
        limit = self._attempt_limit()
        change = self.change(decision.event, attempts=attempt, sent=now)
        self.sent_at = self.drive.clock.monotonic()
        seconds_left = None if limit is None else limit.remaining(self.sent_at)
        shortened = self._shortened(limit, seconds_left)
        more = shortened + self._told_undoes()
        if tool.compensate is not None:
            more += f',"correction":{compact(tool.compensate.name)}'
        intent = f'{{"arguments":"{self.arguments}","basis":"{decision.basis}"{more}}}'
        # A tool without a limit of its own does not hold the lease for a whole session.
        held = None if tool.timeout is None else seconds_left
        self.note("intent", intent, change, limit=held, wait=seconds_left)
        self.drive.begun.add((tool.name, self.key))
        self.drive.consume_commands()
        if (tool.name, self.key) in self.drive.words:
            self.ours = True
            raise OperationMoved(self.key)  # somebody knows how it ended: nothing is sent
        if self.drive.cancel and decision.event is Event.INTENT and self.inside is None:
            # The commit that saved the intent brought the request to stop: nothing was sent.
            told = compact({"because": "cancelled before it was sent"})
            self.note("attempt", told, self.change(Event.REFUSAL))
            self.drive.stop(Cancelled())
        self.ours, self.inherited = True, False
        self.resent = self.resent or decision.event is Event.RESEND
        self.drive.reach(tool.name, "intent_saved", self.occurrence, attempt)
        inner = self.past.inner_retries
        attempted = self.exchange.send(
            attempt, limit,
            has_effect=self.contract().effect is not Effect.NONE,
            retries=tool.policy.attempts - attempt - inner,
        )  # fmt: skip
        if attempted.inner_retries:
            self.past = replace(self.past, inner_retries=inner + attempted.inner_retries)
        self.last_error = attempted.error or self.last_error
        if attempted.failure is None or attempted.failure.kind is not FailureKind.UNKNOWN:
            self.drive.reach(tool.name, "reply_received", self.occurrence, attempt)
        return attempted

    def _shortened(self, limit: Limit | None, seconds_left: float | None) -> str:
        """What an intent says where a parent had less left than the tool's own limit asks for."""
        if self.tool.timeout is None or limit is None or limit.level == "call":
            return ""
        given = round(seconds_left or 0.0, 6)
        if given >= self.tool.timeout:
            return ""
        told = {
            "asked": self.tool.timeout, "to": given,
            "level": limit.level, "name": limit.name,
        }  # fmt: skip
        return f',"shortened":{compact(told)}'

    def _told_undoes(self) -> str:
        """What an entry says of the operation that this one undoes."""
        if self.undoes is None:
            return ""
        told: dict[str, Any] = {"tool": self.undoes[0], "key": self.undoes[1]}
        if self.inside is not None:
            told["nested"] = True
        return f',"undoes":{compact(told)}'

    def _attempt_limit(self) -> Limit | None:
        """min(the tool's own limit, what its parents have left).

        Where the parents have nothing left, the settle allowance stands in for them.
        """
        now = self.drive.clock.monotonic()
        parent = self.drive.tightest()
        if self.drive.stopping():
            parent = Limit(
                "settle", self.tool.name, self.settle_ends or now + self.drive.around.settle
            )
        if self.tool.timeout is None:
            return parent
        return narrow(parent, "call", self.tool.name, self.tool.timeout, now)

    def _cancel_outside(self) -> None:
        """The run is to stop: its service is asked, once, to give an unknown operation up."""
        if (
            not self.drive.cancel or self.tool.cancel is None or self.past.cancel_asked
            or self.row is None or not self.ours or not self.unresolved()
        ):  # fmt: skip
            return
        answer = self.exchange.ask_to_cancel(self.row.attempts)
        self.past = replace(self.past, cancel_asked=True)
        self.drive.append(
            "cancel_asked", step=self.tool.name, key=self.key, attempt=self.row.attempts,
            payload=compact({"cancel": answer}),
        )  # fmt: skip

    def _save_reply(self, value: Any) -> Any:
        """A reply in memory is saved, deadline or not: the truth is never stopped."""
        budget, more = self.tool.policy.budget, None
        if budget is not None:
            budget.succeeded()
            more = {"tokens": budget.tokens}
        payload, value = reply_payload(self.tool, value, more)
        self.conclude("result", payload, Event.REPLY)
        self.drive.reach(
            self.tool.name, "result_saved", self.occurrence, self.row.attempts if self.row else 1
        )
        return value

    def _save_failure(self, attempted: Attempted) -> protocol.Decision:
        """Save a failed attempt together with what follows from it; returns that."""
        assert attempted.failure is not None
        assert attempted.error is not None
        assert self.row is not None
        failure, tool = attempted.failure, self.tool
        event = protocol.FAILURE_EVENTS[failure.kind]
        status = protocol.after(Status(self.row.status), event)
        error = values.dump_error(attempted.error, tool.errors)
        attempt = self.row.attempts
        if status is Status.FAILED:
            self.conclude("result", compact({"error": error}), event)
            self.drive.reach(tool.name, "result_saved", self.occurrence, attempt)
            self._raise_saved(error)
        moved = self.row._replace(status=status.value, not_before=None)
        decision, told = self._judged(failure, moved)
        told = {"error": error, **told}
        if attempted.fired is not None:
            told["fired"] = {"level": attempted.fired.level, "name": attempted.fired.name}
        if attempted.cancel is not None:
            told["cancel"] = attempted.cancel
            self.past = replace(self.past, cancel_asked=True)
        if isinstance(decision, Refuse):
            final = self._final_error(decision.reason, attempted.error)
            saved = values.dump_error(final, tool.errors)
            body = {**told, "error": saved, "why": decision.reason}
            if decision.drawn is not None:
                body["then"] = protocol.describe(decision)
            self.note("result", compact(body), self.change(event), progress=True)
            self.drive.reach(tool.name, "result_saved", self.occurrence, attempt)
            self._raise_saved(saved, attempted.error)
        told["then"] = protocol.describe(decision)
        not_before, limit = None, None
        if isinstance(decision, Wait):
            not_before, limit = self.drive.clock.now() + decision.seconds, decision.seconds
        change = self.change(event, not_before=not_before)
        self.note("attempt", compact(told), change, limit=limit)
        if failure.kind is not FailureKind.UNKNOWN:
            self.drive.reach(tool.name, "result_saved", self.occurrence, attempt)
        return decision

    def _judged(
        self, failure: Failure, row: OperationRow
    ) -> tuple[protocol.Decision, dict[str, Any]]:
        """What follows from a failure, and what the journal tells of it."""
        budget = self.tool.policy.budget
        has_token = budget is None or budget.take()
        decision = self._decide(failure=failure, row=row, has_token=has_token)
        retries = isinstance(decision, Wait) and decision.bound is not None
        told: dict[str, Any] = {"judged": failure.kind.value, "because": failure.reason}
        if failure.retry_after is not None:
            told["retry_after"] = failure.retry_after
        if self.past.inner_retries:
            told["inner_retries"] = self.past.inner_retries
        if budget is not None:
            if has_token and not retries:
                budget.put_back()
            told["tokens"] = budget.tokens
        if isinstance(decision, Wait) and retries:
            taken = self.past.last_chance_taken or decision.reason == protocol.LAST_CHANCE
            self.past = replace(self.past, waited=decision.seconds, last_chance_taken=taken)
        return decision, told

    def _final_error(self, reason: str, error: Exception | None) -> Exception:
        """What a call that ends without an outcome of its own raises."""
        if reason == protocol.DEADLINE:
            limit = self.drive.tightest()
            level, name = (limit.level, limit.name) if limit else ("session", "session")
            last = f"; last error: {in_one_line(error)}" if error is not None else ""
            known = "not executed" if self.row is not None else "not begun"
            return DeadlineExceeded(level, name, f"{self.tool.name} is {known}{last}")
        if error is not None:
            return error
        tries = self.row.attempts if self.row else 0
        return NotExecuted(f"{self.tool.name} was not executed after {tries} attempts")

    def _raise_saved(self, saved: dict[str, Any], cause: Exception | None = None) -> NoReturn:
        raise values.load_error(saved, self.tool.errors) from cause or self.last_error

    def _ask(self) -> Found | protocol.Decision | None:
        """Probe, and save the answer: found; or what follows; or None to decide anew."""
        assert self.row is not None
        asked = self.now()
        limit = self._attempt_limit()
        self.probes += 1
        answer, problem = self.exchange.probe(self.row.attempts, limit)
        self.drive.reach(self.tool.name, "probe_answered", self.occurrence, self.row.attempts)
        record = self.seen(self.row, self.drive.clock.now())
        probed = answer if isinstance(answer, Probed) else None
        event = protocol.probe_event(
            record, self.contract(), isinstance(answer, Found), probed, asked
        )
        if isinstance(answer, Found):
            payload, value = reply_payload(self.tool, answer.result, {"basis": "probe: found"})
            self.conclude("result", payload, Event.FOUND)
            return Found(value)
        told: dict[str, Any] = {"answer": answer.value}
        if problem:
            told["problem"] = problem
        if event is Event.ABSENT:
            change = self.change(event)
            told["basis"] = "asked after the settling time: final"
            self.note("probe", compact(told), change)
            return None
        decision = self._decide(probed=probed)
        told["then"] = protocol.describe(decision)
        self.drive.append(
            "probe",
            step=self.tool.name,
            key=self.key,
            attempt=self.row.attempts,
            payload=compact(told),
        )
        return decision

    def _wait(self, decision: Wait) -> None:
        if decision.reason == protocol.IN_PROGRESS:
            self.drive.clock.sleep(max(LEAST_WAIT, min(POLL, decision.seconds)))
            self.drive.commands_waiting = True  # nothing is appended here that would tell us
            self.drive.consume_commands()
            self.look_again()
            return
        drawn = decision.bound is not None
        self.drive.clock.sleep(decision.seconds if drawn else max(LEAST_WAIT, decision.seconds))
        # A wait that was drawn is over by the clock that drew it; a wall clock set back
        # meanwhile must not make it begin again.
        if self.row is not None:
            self.row = self.row._replace(not_before=None)

    def _replay(self) -> Any:
        """Another run, or an earlier call here, has concluded it: give that, marked so."""
        assert self.row is not None
        payload = self.drive.read(self.drive.store.reply_of, self.row)
        if payload is None:
            self._park("concluded, but its reply is not in this file")
        assert payload is not None
        body = json.loads(payload)
        told = {name: body[name] for name in ("value", "unsavable", "error") if name in body}
        told["replay"] = {"run": self.row.run_id, "first_sent": self.row.first_sent}
        text = compact(told)[:-1] + self._told_undoes() + "}"
        self.drive.append(
            "replayed", step=self.tool.name, key=self.key, payload=text, progress=True
        )
        return self.drive.give_back(text, self.tool.returns, self.tool.errors)

    def _refuse(self, reason: str) -> NoReturn:
        """The call ends here without (another) attempt."""
        # A run that names an unknown operation does not end, though another run began it.
        named = self.ours or (reason != protocol.ARGUMENTS_DIFFER and self._has_met(reason))
        if named and self.is_open() and self.contract().effect is not Effect.NONE:
            why = {
                protocol.ARGUMENTS_DIFFER: "the code now asks for other arguments than were sent",
                protocol.IN_PROGRESS: f"in progress in run {self.row.run_id if self.row else ''!r}",
            }
            self._park(f"unknown: {why.get(reason, reason)}")
        if reason == protocol.CANCEL or (reason == protocol.IN_PROGRESS and self.drive.cancel):
            self.drive.stop(Cancelled())
        error: Exception
        if reason == protocol.ARGUMENTS_DIFFER:
            assert self.row is not None
            what = f"key {short(self.key)} of tool {self.tool.name}"
            error = ArgumentsDiffer(what, self.row.arguments, self.arguments)
        elif reason == protocol.IN_PROGRESS:
            assert self.row is not None
            limit = self.drive.tightest()
            level, name = (limit.level, limit.name) if limit else ("session", "session")
            detail = f"{self.tool.name} {short(self.key)} is in progress in run {self.row.run_id!r}"
            error = DeadlineExceeded(level, name, detail)
        else:
            error = self._final_error(reason, self.last_error)
        saved = values.dump_error(error, self.tool.errors)
        payload = compact({"error": saved, "why": reason})[:-1] + self._told_undoes() + "}"
        self.drive.append(
            "refused", step=self.tool.name, key=self.key, payload=payload, progress=True
        )
        raise values.load_error(saved, self.tool.errors)

    def _has_met(self, reason: str) -> bool:
        """Whether it has waited here, now or earlier, for another run that was at work on it."""
        waited = reason == protocol.IN_PROGRESS and not self.drive.cancel
        return waited or (self.tool.name, self.key) in self.drive.met

    def _park(self, reason: str, why: str = "unknown") -> NoReturn:
        self.drive.stop(
            Suspended("needs_decision", reason, step=self.tool.name, key=self.key, why=why)
        )

    def _compensate(self) -> NoReturn:
        """Undo what it may have done; what it was stays unknown, and is closed."""
        self._begin_compensation()
        try:
            self.drive.compensate(self)
        except Exception as error:  # noqa: BLE001 - a compensation fails like any other call
            self._park(f"undo incomplete: {in_one_line(error)}", why="undo incomplete")
        compensated = Compensated(self.tool.name, self.key)
        saved = values.dump_error(compensated)
        self.conclude("compensated", compact({"error": saved}), Event.COMPENSATION)
        if self.drive.cancel:
            self.drive.stop(Cancelled())
        raise compensated

    def _begin_compensation(self) -> None:
        """Save that it is being compensated, and by which tool: no other one goes on with it."""
        assert self.row is not None
        assert self.tool.compensate is not None
        by = self.tool.compensate.name
        if self.row.status != Status.COMPENSATING:
            change = self.change(Event.COMPENSATION_BEGUN)
            self.note("compensating", compact({"by": by}), change)
            return
        begun = self.drive.read(begun_compensation, self.drive.entries, self.tool.name, self.key)
        if begun not in (None, by):
            self._park(
                f"unknown: tool {begun} has begun to compensate it, and {by} is declared now. "
                "Declare the old one again and resume",
                why="mismatch",
            )

    def reopen(self) -> None:
        """Its compensation was certainly not executed: what is learned about it counts again."""
        why = compact({"because": "its compensation was not executed"})
        self.note("reopened", why, self.change(Event.COMPENSATION_REFUSED))

    def _still_running(self) -> bool:
        """While an abandoned attempt is alive no further attempt starts: wait for it."""
        if not self.drive.around.workers.left_behind:
            return False
        running = self.drive.around.workers.running(self.exchange.identity)
        if running is None:
            return False
        mono = self.drive.clock.monotonic()
        allowance = (self.settle_ends or mono) - mono
        remaining = self.drive.remaining()
        if remaining is not None and not self.drive.stopping():
            allowance = min(allowance, remaining)
        if not running.join(max(0.0, allowance)):
            self._park("unknown: an attempt left at its limit is still running")
        return True

    def _take_late_reply(self) -> Abandoned | None:
        """An abandoned attempt that has meanwhile succeeded is evidence."""
        if not self.drive.around.workers.left_behind:
            return None
        return self.drive.around.workers.late(self.exchange.identity)

    def _save_late_reply(self, late: Abandoned) -> Any:
        payload, value = reply_payload(self.tool, late.value, {"basis": "late reply"})
        self.conclude("late_reply", payload, Event.LATE_REPLY)
        return value

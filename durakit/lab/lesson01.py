"""Lesson 01, twice in the inbox: what would clutter its cells, and the checker of its exercise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from durakit.define import Workflow
from durakit.errors import SimulatedCrash
from durakit.faults import CrashAt
from durakit.lab.answers import handed_over_for, misdeclared, refuse_slips
from durakit.lab.exercises import (
    Exercise,
    Finding,
    Row,
    Table,
    one_line,
    right,
    wrong,
)
from durakit.lab.frame import COUNT, ENDS, Frame, Number
from durakit.lab.laboratory import Laboratory, borrowed
from durakit.lab.worlds import beside, customers, new_mailbox, new_world, reopen_world
from durakit.mail import Fault

__all__ = [
    "beside",
    "customers",
    "end",
    "exactly_once",
    "frame",
    "new_mailbox",
    "new_world",
    "predict",
    "recall",
    "reopen_world",
    "start",
]

# -- the exercise ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tried:
    """One crash (or none), the recovery after it, and what the ledger holds in the end."""

    crash: str
    mails: int
    status: str
    reason: str
    keys: tuple[str | None, ...]
    """what the service was told, request by request"""
    calls: int
    """operations that the runtime has a record of"""

    @property
    def verdict(self) -> str:
        """In one or two words."""
        if self.mails > 1:
            return "✗ sent twice"
        if self.mails == 0 and self.status == "completed":
            return "✗ never sent"
        if self.status != "completed":
            return f"✗ {self.status}"
        return "✓ one mail"


def check_exactly_once(workflow: object, mailbox: object) -> Finding:
    """Check a welcome workflow against the real mailbox, at every crash point it has.

    The ledger is the only judge; what the runtime believes is only told.
    """
    ada, bela = customers(2)
    answer = handed_over_for(workflow, mailbox, (ada,), "one customer")
    if isinstance(answer, Finding):
        return answer
    workflow, mailbox = answer
    with borrowed(mailbox, _Laboratory) as laboratory:
        return (
            _without_a_crash(laboratory, workflow, ada)
            or _for_two_customers(laboratory, workflow, ada, bela)
            or _for_a_namesake(laboratory, workflow, ada)
            or _at_every_crash(laboratory, workflow, ada)
        )


class _Laboratory(Laboratory):
    """One trial: run, crash, recover, count."""

    def try_once(
        self,
        workflow: Workflow,
        customer: dict[str, Any],
        crash: CrashAt | None = None,
        plan: tuple[Fault, ...] = (),
    ) -> tuple[Tried, SimulatedCrash | None]:
        """Run, crash, recover, let an hour pass so that late requests act, and count."""
        with self.world(plan) as runtime:
            run = runtime.run(workflow, customer, id="exercise", crash=crash)
            refuse_slips(run)
            crashed = run.crash
            runtime.recover()
            self.mailbox.clock.sleep(3600)
            runtime.recover()
            place = "no crash" if crashed is None else f"{crashed.point} of {crashed.place}"
            place += ", acts late" if crash is not None and crash.fate == "late" else ""
            place = "no crash, the reply is lost" if plan else place
            keys = tuple(request["key"] for request in self.mailbox.requests())
            mails = len(self.mailbox.inbox(to=customer["email"]))
            calls = len(run.operations())
            return Tried(place, mails, run.status, run.reason, keys, calls), crashed


def _without_a_crash(
    laboratory: _Laboratory, workflow: Workflow, ada: dict[str, Any]
) -> Finding | None:
    tried, _ = laboratory.try_once(workflow, ada)
    if tried.status == "failed":
        return wrong(f"Nothing crashed, and yet your workflow failed: {tried.reason}")
    if tried.status != "completed":
        return wrong(f"Nothing crashed, and yet your run is {tried.status}: {tried.reason}")
    if tried.mails == 0:
        others = len(laboratory.mailbox.inbox())
        return wrong(
            "Your workflow ends well, but no mail for Ada came out of this mailbox"
            + (f" ({others} went to another address)." if others else ".")
        )
    if tried.mails > 1:
        return wrong(f"Nothing crashed, and yet Ada has {tried.mails} mails: send it in one place.")
    return None


def _for_two_customers(
    laboratory: _Laboratory, workflow: Workflow, ada: dict[str, Any], bela: dict[str, Any]
) -> Finding | None:
    with laboratory.world() as runtime:
        runtime.run(workflow, ada, id="for Ada")
        run = runtime.run(workflow, bela, id="for Bela")
        mails = len(laboratory.mailbox.inbox(to=bela["email"]))
        if mails == 1 and run.status == "completed":
            return None
        because = f" ({run.reason})" if run.reason else ""
        return wrong(
            f"After Ada it is Bela's turn, and she gets {mails} mails{because}.",
            "Two customers are two operations: their keys must differ.",
        )


def _for_a_namesake(
    laboratory: _Laboratory, workflow: Workflow, ada: dict[str, Any]
) -> Finding | None:
    """Another customer has the same name: all that is made of the name alone is the same, too."""
    other = ada | {"id": 1000, "email": "ada.lovelace@example.org"}
    with laboratory.world() as runtime:
        runtime.run(workflow, ada, id="for Ada")
        run = runtime.run(workflow, other, id="for the other Ada")
        mails = len(laboratory.mailbox.inbox(to=other["email"]))
        if mails == 1 and run.status == "completed":
            return None
        because = f" ({one_line(run.reason)})" if run.reason else ""
    return wrong(
        f"A second customer is called Ada, too. She has another id and another address, and she "
        f"gets {mails} mails{because}.",
        "A name, and a text that is made of it, may belong to two customers. What belongs to one?",
    )


def _at_every_crash(laboratory: _Laboratory, workflow: Workflow, ada: dict[str, Any]) -> Finding:
    """Stop at boundary 1, 2, … until there is none left, and once lose the reply."""
    trials: list[Tried] = []
    for number in range(1, 200):
        tried, crashed = laboratory.try_once(workflow, ada, CrashAt(number))
        if crashed is None:
            break
        trials.append(tried)
        if crashed.point == "request_sent":
            late = CrashAt(number, fate="late")
            trials.append(laboratory.try_once(workflow, ada, late)[0])
    else:
        return wrong("Your workflow passes more than 200 boundaries. One mail needs far fewer.")
    trials.append(laboratory.try_once(workflow, ada, plan=(Fault("reply_lost"),))[0])
    rows: list[Row] = [
        {"stopped at": t.crash, "Ada's mails": t.mails, "verdict": t.verdict} for t in trials
    ]
    table = Table("What the ledger says after each crash and its recovery", rows)
    bad = [tried for tried in trials if not tried.verdict.startswith("✓")]
    if bad:
        # The worst first; among equals the place that is easiest to picture.
        worst = max(
            bad, key=lambda t: (t.mails > 1, "never" in t.verdict, "effect_done" in t.crash)
        )
        return wrong(*_told(worst, len(bad), len(trials)), table=table)
    finding = misdeclared(laboratory.world, workflow, ada)
    if finding is not None:
        return finding
    says = [f"{len(trials)} trials, {len(trials)} times exactly one mail. The ledger says so."]
    if any(ada["email"] in (key or "") for tried in trials for key in tried.keys):
        says.append(
            "One remark: your key holds a mail address, and keys end up in logs. Prefer an id."
        )
    return right(*says, table=table)


def _told(tried: Tried, bad: int, number: int) -> list[str]:
    """Say where it goes wrong and what can be seen there; the hints say what to do."""
    says = [f"{bad} of {number} trials go wrong. Look at this one: {tried.crash}."]
    if tried.mails > 1:
        says.append(f"After the recovery Ada has {tried.mails} mails.")
        if tried.calls == 0:
            says.append("It goes out without ctx.call. A step, or a bare line, may run again.")
        elif None in tried.keys:
            says.append("The service was given no key, so the second request was a new mail to it.")
        elif len(set(tried.keys)) > 1:
            keys = " and ".join(dict.fromkeys(repr(one_line(key)) for key in tried.keys))
            says.append(f"The service was given different keys for one mail: {keys}.")
    elif tried.status == "completed":
        says.append("The run says completed, and Ada has no mail.")
    elif "does not match the journal" in tried.reason:
        says.append("On the way back your workflow asks for another key than the one it saved.")
    elif tried.status == "needs_decision":
        mails = "one mail" if tried.mails == 1 else "no mail"
        says.append(f"The run waits for a person, and Ada has {mails}: {one_line(tried.reason)}.")
    else:
        says.append(f"The run is {tried.status}: {one_line(tried.reason)}")
    return says


HINTS: Final = (
    # One line each: the ladder from a nudge to nearly the answer.
    "The runtime and the service must both know that it is the same mail. Who does not know yet?",
    "Three places to change: what the tool declares, what it tells the service, the key in call.",
    'Declare effect="idempotent", and give key=call.key to send: it is the same in every attempt.',
    "Make the key from 'welcome' and the customer's id: no time, no attempt, no random number.",
)

exactly_once = Exercise("01.5", "one mail, wherever it crashes", check_exactly_once, HINTS)

frame = Frame(
    "01",
    asks=(COUNT, ENDS, Number(1, 4), COUNT),
    exercises=(exactly_once,),
)
start, predict, recall, end = frame.start, frame.predict, frame.recall, frame.end

"""Examinations: an agent is really run, and what came of it is counted in the ledger.

Where a crash shows what is broken, the sweep finds it, and names the smallest such crash as a seed.
Where no crash shows it, a plan of faults on a virtual clock does. The ledger of the mail service
judges and the bill of the model counts; the agents themselves are not asked. The same examination
is made before and after a repair.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from durakit.clock import ManualClock
from durakit.define import Call, Tool, Workflow, standing, tool
from durakit.driver import Context
from durakit.faults import CrashAt
from durakit.lab.clinic import patients
from durakit.lab.clinic.patients import ADA, model, post, town
from durakit.lab.html import Row, Table
from durakit.lab.laboratory import Laboratory, borrowed, scratch
from durakit.machine import Done, SavePlace, every, machine, only_at_the_end
from durakit.mail import Fault
from durakit.run import Run
from durakit.runtime import Runtime
from durakit.sweep import HANDED_OVER, NOT_REACHABLE, SAFE, Report, Schedule, join_seeds, sweep

__all__ = [
    "NO_OWN_LIMIT",
    "ORDER",
    "READERS",
    "STARTED_AGAIN",
    "YES",
    "Examination",
    "Trial",
    "examine_bookkeeper",
    "examine_newsletter",
    "examine_orders",
    "examine_refund",
    "examine_reminder",
    "examine_trip",
    "four_ways",
    "telling_pairs",
    "trial",
    "why",
]


#: What the agents of the clinic work on.
ORDER: Final[dict[str, Any]] = {
    "id": 42,
    "email": ADA,
    "books": "books@example.org",
    "text": "19 euros",
    "account": "DE42",
    "euros": 19,
    "budget": 3,
}

READERS: Final[tuple[dict[str, Any], ...]] = (
    {"id": 42, "name": "Ada", "email": ADA},
    {"id": 43, "name": "Bela", "email": "bela@example.org"},
    {"id": 44, "name": "Chidi", "email": "chidi@example.org"},
)

YES: Final = {"approval": "yes"}

#: Seconds that the whole newsletter may take, and how long one exchange with the post takes then.
SESSION: Final = 60.0

LATENCY: Final = 1.0

RETRY_AFTER: Final = 20.0

LONG_BUSY: Final = 58.0

VERY_LATE: Final = 100.0

#: The verdict where the limit of a reader or of the run has ended an attempt, not its own one.
NO_OWN_LIMIT: Final = "an attempt without a limit of its own"

STARTED_AGAIN: Final = "started again under another id"


@dataclass(frozen=True)
class Trial:
    """One row of an examination: what was done to the agent, and what came of it."""

    what: str
    good: bool
    verdict: str
    cells: Row = field(default_factory=dict)
    reason: str = ""
    """of a run that did not end well, in the runtime's words"""

    @property
    def row(self) -> Row:
        """As it is shown, with its mark."""
        verdict = f"{'✓' if self.good else '✗'} {self.verdict}"
        return {"what happens": self.what, **self.cells, "verdict": verdict}


@dataclass(frozen=True)
class Examination:
    """What an agent was put through, and what came of it. The first bad trial is the diagnosis."""

    title: str
    trials: tuple[Trial, ...]
    counted: str
    """what the ledger says, of the worst trial"""
    sweep: Report | None = None

    @property
    def bad(self) -> tuple[Trial, ...]:
        """The trials that did not go well."""
        return tuple(trial for trial in self.trials if not trial.good)

    @property
    def good(self) -> bool:
        """Whether all of them went well."""
        return not self.bad

    @property
    def found_by(self) -> str:
        """The smallest thing that shows what is broken: a crash as a seed, or a fault."""
        return self.bad[0].what if self.bad else ""

    @property
    def verdict(self) -> str:
        """In a few words, with a mark."""
        return f"✗ {self.bad[0].verdict}" if self.bad else "✓ well"

    def table(self) -> Table:
        """Every trial."""
        return Table(self.title, [trial.row for trial in self.trials])


# -- by the sweep ----------------------------------------------------------------------------------


def _swept(report: Report, more: Mapping[str, Row] | None = None) -> tuple[Trial, ...]:
    """The schedules as trials, the smallest counterexample first; ``more``: cells by seed."""
    trials = [
        Trial(
            schedule.seed,
            _is_good(schedule),
            "a person is asked" if schedule.verdict == HANDED_OVER else schedule.verdict,
            {
                "effects": "-" if schedule.effects is None else schedule.effects,
                "run": schedule.status,
                **(more or {}).get(schedule.seed, {}),
            },
            schedule.detail,
        )
        for schedule in report.schedules
    ]
    smallest = report.counterexample
    return tuple(sorted(trials, key=lambda trial: trial.what != smallest))


def _is_good(schedule: Schedule) -> bool:
    """Safe, and nobody had to be asked: each of these services can be asked, or knows keys."""
    return schedule.good and schedule.verdict not in (HANDED_OVER, NOT_REACHABLE)


def _most(report: Report) -> str:
    most = max((s.effects or 0 for s in report.schedules), default=0)
    return (
        f"{most} effects instead of {report.reference}"
        if most > report.reference
        else (f"{report.reference} effect(s), as it should be")
    )


def examine_orders(workflow: Workflow, *args: Any) -> Examination:
    """Crash an agent that writes one mail at every boundary, and count in the ledger.

    Then somebody starts the same order a second time, under another run id.
    """
    report = sweep(workflow, *args, world=post)
    with trial(workflow) as runtime:
        runtime.run(workflow, *args, id="in the morning")
        run = runtime.run(workflow, *args, id="in the afternoon")
        mails = len(post.effects())
        good = mails == report.reference and run.status == "completed"
        verdict = SAFE if good else "sent twice" if mails > report.reference else run.status
        cells = {"effects": mails, "run": run.status}
        again = Trial(STARTED_AGAIN, good, verdict, cells, why(run))
    trials = (*_swept(report), again)
    return Examination(f"The sweep of {workflow.name}", trials, _most(report), report)


def examine_trip(machine: Workflow) -> Examination:
    """Crash the travel agent at every boundary; count mails, and answers that are paid again.

    A trial is good where at most one answer of the model is paid a second time.
    """
    start = patients.Trip()
    with trial(machine) as runtime:
        asked = len(model.bill)
        runtime.run(machine, start, id="reference")
        reference = len(model.bill) - asked
    paid: dict[str, int] = {}
    asked = len(model.bill) + reference  # the sweep, too, begins with a run that nothing disturbs

    def watch(stage: str, seed: str, _folder: Path) -> None:
        nonlocal asked
        if stage == "recovered":
            paid[seed] = len(model.bill) - asked
            asked = len(model.bill)

    report = sweep(machine, start, world=post, watch=watch)
    more = {
        seed: {"answers": answers, "paid again": answers - reference}
        for seed, answers in paid.items()
    }
    trials = tuple(
        _dear(each, more[each.what]["paid again"]) if each.what in more else each
        for each in _swept(report, more)
    )
    worst = max((row["paid again"] for row in more.values()), default=0)
    mails = max((schedule.effects or 0 for schedule in report.schedules), default=0)
    counted = f"{mails} mail(s), up to {worst} of {reference} answers again"
    return Examination(f"The sweep of {machine.name}", trials, counted, report)


def _dear(each: Trial, again: int) -> Trial:
    if not each.good or again <= 1:
        return each
    return replace(each, good=False, verdict=f"{again} answers again")


def four_ways() -> Table:
    """The travel agent with two save places, each with and without a key: the worst of each."""
    rows: list[Row] = []
    for saves, save in (("only at the end", only_at_the_end), ("after each transition", every)):
        for key in ("none", "sent"):
            found = examine_trip(_traveller(save, with_key=key == "sent")).trials
            again, mails = (
                max(int(str(each.cells[name])) for each in found)
                for name in ("paid again", "effects")
            )
            row = {"checkpoints": saves, "key": key}
            rows.append({**row, "answers paid again": again, "mails": mails})
    return Table("THE WORST of every crash, four ways", rows)


def _traveller(save: SavePlace, *, with_key: bool) -> Workflow:
    """The travel agent with another save place, and perhaps without a key."""

    def send(call: Call, to: str, text: str) -> Any:
        key = call.key if with_key else None
        return post.send(to, "Your trip", text, key=key, timeout=call.remaining())

    sending: Tool = tool(send, on_unknown="resend", timeout=3.0, name="send_trip")

    def travel(ctx: Context, state: patients.Trip) -> patients.Trip | Done:
        if len(state.days) < 3:
            day = ctx.step("model", model.write, len(state.days) + 1)
            return patients.Trip(days=[*state.days, day])
        ctx.call(sending, ADA, " ".join(state.days), key="trip:42")
        return Done(state)

    declared: Workflow = machine(travel, state=patients.Trip, save=save, name="a travel agent")
    return declared


def examine_refund(workflow: Workflow, *, pairs: bool = False) -> Examination:
    """Crash the refund at every boundary; the boss says yes.

    ``pairs``: also in pairs, where these can tell most: see ``telling_pairs``.
    """
    report = sweep(workflow, ORDER, world=town, signals=YES)
    trials = _swept(report)
    for seed in telling_pairs(report) if pairs else ():
        one = sweep(workflow, ORDER, world=town, signals=YES, only=seed)
        if one.schedules[0].verdict != NOT_REACHABLE:
            trials += _swept(one)
    return Examination(f"The sweep of {workflow.name}", trials, _most(report), report)


def telling_pairs(report: Report) -> list[str]:
    """Pairs of crashes as seeds: dead while a request is outside, and dead again while it is asked.

    All pairs of a sweep are some hundreds, most of which die where nothing is open. Of these a few
    may not be reachable.
    """
    pairs = []
    for schedule in report.schedules:
        first = CrashAt.parse(schedule.seed)
        if schedule.point not in ("request_sent", "effect_done") or first.place is None:
            continue
        life = first.incarnation + 1
        seconds = [
            CrashAt(first.place, point, first.occurrence, attempt=2, incarnation=life)
            for point in ("request_sent", "effect_done", "reply_received")
        ]
        late = CrashAt(first.place, "request_sent", first.occurrence, 2, life, fate="late")
        asked = CrashAt(first.place, "probe_answered", first.occurrence, 1, life)
        pairs += [join_seeds((first, second)) for second in (*seconds, late, asked)]
    return pairs


# -- by faults, on a virtual clock -----------------------------------------------------------------


@contextlib.contextmanager
def trial(
    workflow: Workflow, *plan: Fault, latency: float = 0.05, world: Any = post
) -> Iterator[Runtime]:
    """An empty world with a plan of faults, and a runtime on its virtual clock."""
    latency, post.latency = post.latency, latency
    with _at_home(), scratch("clinic") as folder, borrowed(post, Laboratory), standing(workflow):
        post.plan = list(plan)
        world.clock = clock = ManualClock()
        world.fresh(folder)
        try:
            with Runtime(
                folder / "runs.db", clock=clock, world=world, owner="clinic",
                durability="process", rng=random.Random(0),  # noqa: S311 - waits, no secrets
            ) as runtime:  # fmt: skip
                yield runtime
        finally:
            post.latency = latency


@contextlib.contextmanager
def _at_home() -> Iterator[None]:
    """Send both services back to where they lived before."""
    home = town.folder
    try:
        yield
    finally:
        town.fresh(home)


def _anywhere(report: Report, like: Trial) -> Trial:
    """A whole sweep as one trial, with the columns of another one."""
    cells = dict[str, object].fromkeys(like.cells, "")
    bad = [each for each in _swept(report) if not each.good]
    if bad:
        return replace(bad[0], what=f"crash: {bad[0].what}", cells=cells)
    return Trial("a crash, anywhere", True, f"{len(report.schedules)} crashes: safe", cells)  # noqa: FBT003


def examine_bookkeeper(workflow: Workflow) -> Examination:
    """Let the post be busy, lose a reply and refuse an address, and see what is done about it."""
    busy = f"429, ask again in {RETRY_AFTER:g} s"
    no_address = ORDER | {"books": ""}
    plans: tuple[tuple[str, tuple[Fault, ...], dict[str, Any]], ...] = (
        ("nothing", (), ORDER),
        (f"receipt: {busy}", (Fault("rate_limited", retry_after=RETRY_AFTER),), ORDER),
        ("receipt: the reply is lost", (Fault("reply_lost"),), ORDER),
        (f"copy: {busy}", (Fault("rate_limited", request=2, retry_after=RETRY_AFTER),), ORDER),
        ("copy: the reply is lost", (Fault("reply_lost", request=2),), ORDER),
        ("copy: no address is given (422)", (), no_address),
    )
    trials = [_bookkeeping(workflow, what, plan, order) for what, plan, order in plans]
    report = sweep(workflow, ORDER, world=post)
    trials.append(_anywhere(report, trials[0]))
    worst = max(trials[:-1], key=lambda each: (not each.good, each.cells["copies"]))
    counted = f"{worst.cells['receipts']} receipt(s), {worst.cells['copies']} copies"
    return Examination("The bookkeeper, and what may happen", tuple(trials), counted, report)


def _bookkeeping(
    workflow: Workflow, what: str, plan: tuple[Fault, ...], order: dict[str, Any]
) -> Trial:
    with trial(workflow, *plan) as runtime:
        run = runtime.run(workflow, order, id="order-42")
        asked = post.requests()
        mails = dict.fromkeys(("Receipt", "Copy"), 0)
        for mail in post.inbox():
            mails[mail["subject"]] = mails.get(mail["subject"], 0) + 1
        cells: dict[str, object] = {
            "run": run.status,
            "receipts": mails["Receipt"],
            "copies": mails["Copy"],
            "requests": len(asked),
        }
        refused = "422" in what
        verdict = _judged(run, cells, asked, refused=refused)
        good = verdict in ("as it should be", "refused, and the run says so")
        return Trial(what, good, verdict, cells, why(run))


def _judged(
    run: Run, cells: Mapping[str, Any], asked: list[dict[str, Any]], *, refused: bool
) -> str:
    """In a few words what came of one order: ledger first, then the run."""
    if cells["receipts"] > 1 or cells["copies"] > 1:
        return "sent twice"
    early = [
        (one, two)
        for one, two in itertools.pairwise(asked)
        if one["outcome"] == "refused 429" and two["time"] < one["time"] + RETRY_AFTER
    ]
    if early:
        return "asked again too early"
    if refused:
        in_vain = [row for row in asked if row["outcome"] == "refused 422"]
        if len(in_vain) > 1:
            return f"asked {len(in_vain)} times in vain"
        if run.status == "completed":
            return "no copy, and nobody is told"
        return "refused, and the run says so" if len(in_vain) == 1 else "never asked"
    if run.status == "needs_decision":
        return "a person is asked"
    if run.status != "completed":
        return "given up"
    return "as it should be" if cells["receipts"] == cells["copies"] == 1 else "lost"


def why(run: Run) -> str:
    """The words of a run that did not complete: its reason, or its error."""
    if run.status == "completed":
        return ""
    if run.status != "failed":
        return run.reason
    try:
        return str(run.result)
    except Exception as error:  # noqa: BLE001 - the saved error of a failed run
        return f"{type(error).__name__}: {error}"


def examine_newsletter(workflow: Workflow) -> Examination:
    """Let the post be slow with the first reader's letter, and see what the others get.

    The whole run has 60 seconds, and one exchange takes one.
    """
    plans: tuple[tuple[str, tuple[Fault, ...]], ...] = (
        ("nothing", ()),
        (f"the first reply takes {VERY_LATE:g} s", (Fault("reply_late", seconds=VERY_LATE),)),
        (f"429, ask again in {LONG_BUSY:g} s", (Fault("rate_limited", retry_after=LONG_BUSY),)),
    )
    trials = [_newsletter(workflow, what, plan) for what, plan in plans]
    report = sweep(workflow, list(READERS), world=post)
    trials.append(_anywhere(report, trials[0]))
    reached = min(
        sum(bool(each.cells[reader["name"]]) for reader in READERS[1:]) for each in trials[:-1]
    )
    counted = f"{reached} of 2 others have their news"
    return Examination("The newsletter, and what may happen", tuple(trials), counted, report)


def _newsletter(workflow: Workflow, what: str, plan: tuple[Fault, ...]) -> Trial:
    with trial(workflow, *plan, latency=LATENCY) as runtime:
        began = post.clock.now()
        run = runtime.run(workflow, list(READERS), id="news-7", deadline=SESSION)
        took = round(post.clock.now() - began, 1)
        mails = {reader["name"]: len(post.inbox(to=reader["email"])) for reader in READERS}
        cells = {"run": run.status, **mails, "seconds": f"{took:g}"}
        verdict = _newsletter_verdict(run, mails, took)
        return Trial(what, verdict == "as it should be", verdict, cells, why(run))


def _newsletter_verdict(run: Run, mails: dict[str, int], took: float) -> str:
    first, *others = mails
    if max(mails.values()) > 1:
        return "sent twice"
    starved = [name for name in others if not mails[name]]
    if starved:
        return f"no news for {' and '.join(starved)}"
    if run.status != "completed":
        return f"the run is {run.status}"
    if took > SESSION:
        return "longer than the session"
    if not mails[first] and first not in json.dumps(run.result):
        return f"no news for {first}, and nobody is told"
    fired = [entry["fired"]["level"] for entry in run.history()["payload"] if "fired" in entry]
    return NO_OWN_LIMIT if fired and fired[0] != "call" else "as it should be"


def examine_reminder(workflow: Workflow) -> Examination:
    """Crash after the effect, and recover 25 hours later, when the post has forgotten the key."""
    with trial(workflow) as runtime:
        crash = CrashAt("send_reminder", "effect_done")
        run = runtime.run(workflow, ORDER, id="order-42", crash=crash)
        post.clock.sleep(25 * 3600)
        runtime.resume(run.id)
        mails = len(post.inbox())
        verdict = "sent twice" if mails > 1 else "as it should be"
        what = "recovered 25 hours after effect_done"
        cells = {"run": run.status, "effects": mails}
        one = Trial(what, mails == 1, verdict, cells, why(run))
    return Examination("The reminder, a day later", (one,), f"{mails} mails")

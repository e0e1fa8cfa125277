"""What is asked of a learner's repair of a patient, and what is said of it.

Each repair must be an agent of the same kind, do its work where nothing goes wrong, and then pass
the examination that the patient did not. What it fails is said in words, with what the ledger has
counted; how it is to be repaired is not.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from pydantic import BaseModel

from durakit.define import Tool, Workflow, source_digest, workflow
from durakit.driver import Context
from durakit.faults import CrashAt
from durakit.lab.answers import has_dots, misdeclared, refuse_slips
from durakit.lab.clinic import examinations
from durakit.lab.clinic import ward as clinic
from durakit.lab.clinic.examinations import ORDER, READERS, YES, Examination
from durakit.lab.clinic.patients import ADA, BOSS, Order, Trip, bank, model, post, town
from durakit.lab.clinic.ward import CASES
from durakit.lab.exercises import (
    Finding,
    State,
    Table,
    one_line,
    right,
    theirs,
    todo,
    wrong,
)
from durakit.lab.html import kind_of
from durakit.linting import tools_of
from durakit.machine import Machine
from durakit.mail import Fault
from durakit.protocol import Effect
from durakit.sweep import BLIND_GUESS, DUPLICATE, Report

__all__ = [
    "check_bookkeeping",
    "check_cash",
    "check_refunding",
    "check_save_often",
    "check_shopping",
    "check_subscribing",
]


# -- what every checker asks first -----------------------------------------------------------------


def _examined(
    number: int,
    given: object,
    *args: Any,
    examine: Callable[[Any], Examination],
    mails: Mapping[str, int],
    state: type[BaseModel] | None = None,
    also: Callable[[Workflow], Finding | None] = lambda _: None,
) -> tuple[Workflow, Examination] | Finding:
    """Take in the learner's repair of patient ``number`` and examine it, as the patient was.

    First it must be an agent (a machine over ``state``, if there is one), do its work where nothing
    goes wrong (``args``, ``mails``: see ``_undisturbed``), and pass what is ``also`` asked of it.
    Returns the agent and its examination, or what is to be said before there is one.
    """
    agent = _agent(given, state)
    if isinstance(agent, Finding):
        return agent
    finding = _undisturbed(agent, *args, mails=mails) or also(agent)
    if finding is not None:
        return finding
    found = _put_on_the_card(number, examine, agent, *args)
    return found if isinstance(found, Finding) else (agent, found)


def _agent(given: object, state: type[BaseModel] | None = None) -> Workflow | Finding:
    """The agent, or what to say where something else was handed over, or nothing yet."""
    kind = "machine" if state else "workflow"
    if isinstance(given, Report):
        return wrong("You handed over a report. Hand over the agent: the check sweeps it itself.")
    if isinstance(given, Tool):
        return wrong("You handed over the tool. Hand over the agent that calls it.")
    if not isinstance(given, Workflow):
        return wrong(
            f"Hand over your agent: the function below @dk.{kind}, by its name and without "
            f"brackets. This is {kind_of(given)}."
        )
    if kind == "machine" and not isinstance(given, Machine):
        return wrong("This agent was a machine, and it is to stay one: @dk.machine(state=…).")
    if _has_dots(given):
        return todo("Replace the three dots, and what the numbers point at; then check again.")
    if state and isinstance(given, Machine) and given.model is not state:
        return wrong(f"The state of this agent is of the class {state.__name__}; leave it so.")
    return given


def _has_dots(agent: Workflow) -> bool:
    """Whether three dots are left in it, its save place or its tools."""
    functions: list[Any] = [agent.function, *(tool.function for tool in tools_of(agent))]
    if isinstance(agent, Machine):
        functions.append(agent.save)
    return any(has_dots(function) for function in functions)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """What the learner's code prints is of no use a hundred times over."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def _put_on_the_card(
    number: int,
    examine: Callable[..., Examination],
    agent: Workflow,
    *args: Any,
    world: Any = post,
    signals: Mapping[str, str] | None = None,
) -> Examination | Finding:
    """Examine a repair, and put what came of it on the scorecard.

    One that goes well only with a tool that hides its effect is no cure: what is to be said then.
    """
    with _quietly():
        examination: Examination = theirs(examine, agent)
        if examination.good:
            opened = partial(examinations.trial, agent, world=world)
            hidden = misdeclared(opened, agent, *args, signals=signals)
            if hidden is not None:
                return hidden
    clinic.keep(number, examination)
    return examination


def _undisturbed(agent: Workflow, *args: Any, mails: Mapping[str, int]) -> Finding | None:
    """Run it where nothing goes wrong; ``mails``: how many each address is to get."""
    with _quietly(), examinations.trial(agent) as runtime:
        try:
            agent.parameters.dump(args, {})
        except TypeError as error:
            return wrong(f"Your agent is called otherwise: {one_line(error)}.")
        run = runtime.run(agent, *args, id="check")
        refuse_slips(run)
        if run.status != "completed":
            because = examinations.why(run)
            return wrong(
                f"Nothing goes wrong, and yet your run is {run.status}: {one_line(because)}"
            )
        for to, number in mails.items():
            sent = len(post.inbox(to=to))
            if sent != number:
                return wrong(
                    f"Nothing goes wrong, and yet {to} has {sent} mails from this post instead "
                    f"of {number}."
                )
    return None


def _crash_told(agent: Workflow, *args: Any, seed: str) -> list[str]:
    """What can be seen where a crash breaks it: what the post was told, request by request."""
    with _quietly(), examinations.trial(agent) as runtime:
        run = runtime.run(agent, *args, id="check", crash=CrashAt.parse(seed))
        runtime.recover()
        post.clock.sleep(3600)
        runtime.recover()
        keys = [request["key"] for request in post.requests()]
        calls = len(run.operations())
    if not calls:
        return ["The mail goes out without ctx.call, and nothing is saved about it."]
    if None in keys:
        return ["The post was given no key, so the second request was a new mail to it."]
    if len(set(keys)) > 1:
        told = " and ".join(repr(one_line(key, 40)) for key in dict.fromkeys(keys))
        return [f"The post was told two keys for one mail: {told}."]
    return []


def _broken(agent: Workflow, *args: Any, found: Examination) -> Finding:
    """Say where the sweep breaks an agent that writes one mail."""
    worst, many = found.bad[0], len(found.bad)
    says = [f"{many} of {len(found.trials)} rows are not well. The smallest: {worst.what}."]
    if worst.what == examinations.STARTED_AGAIN:
        says = [
            (
                "No crash hurts it any more. But somebody starts the same order a second time, "
                f"under another run id, and now there are {worst.cells['effects']} mails."
            ),
            "So the key says something else than which order this is.",
        ]
    elif worst.verdict == DUPLICATE:
        says += [f"The ledger then holds {worst.cells['effects']} mails."]
        says += _crash_told(agent, *args, seed=worst.what.removeprefix("crash: "))
    elif worst.verdict == BLIND_GUESS:
        says += [
            (
                "There is one mail, and it went well by luck: the tool promises nothing about a "
                "second request, and sends it all the same. Which promise does this post give?"
            )
        ]
    elif worst.verdict == "a person is asked":
        says += [
            (
                "Nothing is sent twice there, but a person has to decide: "
                f"{one_line(worst.reason)}. This post knows keys; does the tool say so?"
            )
        ]
    else:
        says += [f"There it comes out as {worst.verdict}: {one_line(worst.reason)}"]
    return wrong(*says, table=found.table())


# -- 1: save more often ----------------------------------------------------------------------------


def check_save_often(agent: object) -> Finding:
    """Check the travel agent: at most one answer of the model is paid a second time."""
    taken = _examined(
        1, agent, Trip(),
        examine=examinations.examine_trip, mails={ADA: 1}, state=Trip, also=_three_days,
    )  # fmt: skip
    if isinstance(taken, Finding):
        return taken
    traveller, found = taken
    if found.good:
        return right(
            f"{len(found.trials)} crashes: one mail each, and at most one answer paid again.",
            table=found.table(),
        )
    worst = found.bad[0]
    if "answers again" not in worst.verdict:
        return _broken(traveller, Trip(), found=found)
    most = max(int(str(trial.cells["paid again"])) for trial in found.bad)
    says = [
        (
            f"{len(found.bad)} of {len(found.trials)} crashes make you pay too much again. The "
            f"smallest: {worst.what}. The worst of them pays for {most} answers a second time."
        )
    ]
    assert found.sweep is not None
    places = [s for s in found.sweep.schedules if s.point == "checkpoint_saved"]
    if len(places) == 1:
        says.append("The only checkpoint is the one at the end: your rule never says True.")
    else:
        says.append(f"There are {len(places)} checkpoints, and too much lies before one of them.")
    return wrong(*says, table=found.table())


def _three_days(agent: Workflow) -> Finding | None:
    """Three days are three answers, where nothing goes wrong."""
    asked = len(model.bill)
    with _quietly(), examinations.trial(agent) as runtime:
        runtime.run(agent, Trip(), id="check")
    asked = len(model.bill) - asked
    if asked == 3:
        return None
    return wrong(f"A trip has three days, and the model was asked {asked} times without any crash.")


# -- 2: a promise, and a key -----------------------------------------------------------------------


def check_shopping(agent: object) -> Finding:
    """Check the shopper: one order wherever it dies, and nobody is asked."""
    taken = _examined(
        2, agent, Order(),
        examine=lambda agent: examinations.examine_orders(agent, Order()),
        mails={"shop@example.org": 1}, state=Order,
    )  # fmt: skip
    if isinstance(taken, Finding):
        return taken
    shopper, found = taken
    if not found.good:
        return _broken(shopper, Order(), found=found)
    says = [f"{len(found.trials) - 1} crashes and a second start: one order each time."]
    contracts = [tool.contract for tool in tools_of(shopper)]
    if any(one.effect is Effect.IDEMPOTENT and one.window is None for one in contracts):
        says.append(
            "One remark: your tool promises that the key is known for ever. This post forgets it "
            "after 24 hours: window=86_400 says so. The last patient of this ward shows why."
        )
    return right(*says, table=found.table())


# -- 3: which failure is it? -----------------------------------------------------------------------


def check_bookkeeping(send_receipt: object, send_copy: object) -> Finding:
    """Check the bookkeeper's two tools, with a busy post, a lost reply and a missing address."""
    for tool in (send_receipt, send_copy):
        if not isinstance(tool, Tool):
            return wrong(
                "Hand over your two tools, by their names: check(send_receipt, send_copy). This "
                f"is {kind_of(tool)}."
            )
        if has_dots(tool.function):
            return todo("Replace the three dots, and look at both tools; then check again.")
    assert isinstance(send_receipt, Tool)
    assert isinstance(send_copy, Tool)
    agent = _bookkeeper_with(send_receipt, send_copy)
    try:
        for tool in (send_receipt, send_copy):
            tool.parameters.dump(("to", "text"), {})
    except TypeError as error:
        return wrong(f"A tool of yours is called otherwise: {one_line(error)}.")
    found = _put_on_the_card(3, examinations.examine_bookkeeper, agent, ORDER)
    if isinstance(found, Finding):
        return found
    if found.good:
        return right(
            f"{len(found.trials)} trials: waits where that helps, one mail each, and the run says "
            "so where nothing can help.",
            table=found.table(),
        )
    worst = found.bad[0]
    says = [f"{len(found.bad)} of {len(found.trials)} trials are not well. Look at: {worst.what}."]
    told = next(
        (words for verdict, words in _BOOKS.items() if worst.verdict.startswith(verdict)), ""
    )
    says.append(told or f"It comes out as {worst.verdict}: {one_line(worst.reason)}")
    if worst.verdict == "a person is asked":
        says.append(f"The run says: {one_line(worst.reason)}.")
    return wrong(*says, table=found.table())


_BOOKS: Final = {
    "given up": "The post was busy, and said when to come again. Nobody came: how many attempts?",
    "sent twice": "A reply was lost. It was sent again, and the post took it for another one.",
    "asked again too early": "The post said when to come again, and was asked at once.",
    "a person is asked": "One mail is out and its reply is lost. With a key it may be sent again.",
    "no copy, and nobody is told": "There is no address, no copy, and the run says completed.",
    "asked ": "Without an address it can never be sent, and yet it was tried again and again.",
    "lost": "The run says completed, and a mail is missing.",
}  # fmt: skip


def _bookkeeper_with(send_receipt: Tool, send_copy: Tool) -> Workflow:
    """The bookkeeper with other tools."""

    def bookkeeper(ctx: Context, order: dict[str, Any]) -> None:
        with ctx.turn("receipt", timeout=60):
            ctx.call(send_receipt, order["email"], order["text"], key=f"receipt:{order['id']}")
        with ctx.turn("copy", timeout=60):
            ctx.call(send_copy, order["books"], order["text"], key=f"copy:{order['id']}")

    declared: Workflow = workflow(bookkeeper, name="bookkeeper")
    return declared


# -- 4: three limits -------------------------------------------------------------------------------


def check_subscribing(agent: object) -> Finding:
    """Check the newsletter: one slow letter may not take the time of the others."""
    taken = _examined(
        4, agent, list(READERS),
        examine=examinations.examine_newsletter,
        mails={str(reader["email"]): 1 for reader in READERS}, also=_tells_them_apart,
    )  # fmt: skip
    if isinstance(taken, Finding):
        return taken
    newsletter, found = taken
    if found.good:
        return right(
            f"{len(found.trials)} trials: the others have their news in time, and who has none is "
            "named.",
            table=found.table(),
        )
    worst = found.bad[0]
    says = [f"{len(found.bad)} of {len(found.trials)} trials are not well. Look at: {worst.what}."]
    late = worst.what.startswith("the first reply")
    if worst.what == "nothing":
        says.append(
            f"Nothing goes wrong there, and it is {worst.verdict}. One exchange takes 1 second: "
            "a limit below that lets nobody through."
        )
    elif worst.what.startswith("crash"):
        return _broken(newsletter, list(READERS), found=found)
    elif worst.verdict == examinations.NO_OWN_LIMIT:
        says += _never_fires(newsletter)
    elif worst.verdict.startswith("no news") and worst.cells["run"] == "needs_decision":
        says.append(
            f"Ada's first attempt has used up nearly all of her time: {one_line(worst.reason, 90)}."
            " So the run waits for a person. A reader's limit must leave room for another attempt."
        )
    elif worst.verdict == "no news for Ada, and nobody is told":
        says.append("Ada was given up, and that is allowed. But the result does not name her.")
    elif worst.reason.startswith("DeadlineExceeded: deadline of the turn"):
        says.append(
            f"The limit of one reader ends the whole run ({one_line(worst.reason, 90)}). Catch "
            "dk.DeadlineExceeded for this reader, note the name, and go on."
        )
    elif worst.verdict.startswith("no news") and late:
        says.append(
            f"{worst.cells['seconds']} of 60 seconds are gone, and others have nothing. One call "
            "waited as long as the whole run may take: which limit is its own?"
        )
    elif worst.verdict.startswith("no news"):
        says.append(
            f"{worst.cells['seconds']} of 60 seconds are gone, and others have nothing. The post "
            "asked for a wait of 58 s, and the call had all the time of the run to wait: what "
            "stands between the call and the run?"
        )
    else:
        says.append(f"It comes out as {worst.verdict}: {one_line(worst.reason)}")
    return wrong(*says, table=found.table())


def _never_fires(agent: Workflow) -> list[str]:
    """What to say where the limit of a reader has ended an attempt, and no limit of its own."""
    limits = [tool.timeout for tool in tools_of(agent) if tool.timeout is not None]
    own = f"its own limit of {limits[0]:g} s" if limits else "a limit of its own: it has none"
    return [
        f"The first reply did not come. The reader's limit has ended that attempt, and not {own}.",
        (
            "A limit that is never the first to fire is no limit: one attempt may take all the "
            "time of its reader."
        ),
    ]


def _tells_them_apart(agent: Workflow) -> Finding | None:
    """A reader whose time is over, and one whose letter is refused, are not the same to it."""
    busy = Fault("rate_limited", retry_after=examinations.LONG_BUSY)
    no_address = READERS[0] | {"email": ""}
    results = []
    for first, plan in ((READERS[0], [busy]), (no_address, [])):
        with _quietly(), examinations.trial(agent, *plan, latency=examinations.LATENCY) as runtime:
            readers = [first, *READERS[1:]]
            run = runtime.run(agent, readers, id="check", deadline=examinations.SESSION)
            if run.status != "completed":
                return None
            results.append(run.result)
    if results[0] != results[1]:
        return None
    return wrong(
        "Ada has no address, and the post refuses her letter (422): asking again can never help. "
        f"Your run says completed and returns {one_line(results[1], 40)}, the same as when the "
        "post is only busy, so nobody hears of it. Your except catches too much: let it catch "
        "dk.DeadlineExceeded alone."
    )


# -- 5: one key ------------------------------------------------------------------------------------


def check_cash(agent: object) -> Finding:
    """Check the cashier: one invoice per order, whatever dies and whoever starts it again."""
    taken = _examined(
        5, agent, ORDER,
        examine=lambda agent: examinations.examine_orders(agent, ORDER),
        mails={ADA: 1}, also=_two_orders,
    )  # fmt: skip
    if isinstance(taken, Finding):
        return taken
    cashier, found = taken
    if not found.good:
        return _broken(cashier, ORDER, found=found)
    return right(
        f"{len(found.trials) - 1} crashes and a second start: one invoice each time. Two orders "
        "that are alike: two invoices.",
        table=found.table(),
    )


def _two_orders(agent: Workflow) -> Finding | None:
    """The same customer orders the same again: both invoices are wanted."""
    with _quietly(), examinations.trial(agent) as runtime:
        runtime.run(agent, ORDER, id="first")
        run = runtime.run(agent, ORDER | {"id": 43}, id="second")
        mails = len(post.inbox(to=ADA))
        if mails == 2 and run.status == "completed":
            return None
        because = f" ({one_line(examinations.why(run), 120)})" if run.status != "completed" else ""
    return wrong(
        f"Ada orders the same again, as order 43. There are {mails} invoices, not 2{because}.",
        "Two orders are two pieces of business: their keys must differ.",
    )


# -- 6: the one with two faults --------------------------------------------------------------------


def check_refunding(agent: object, place: object, other_place: object) -> Finding:
    """Check the refund: yes and no, its budget, every crash and every pair of crashes.

    ``place``, ``other_place``: where the sweep of the patient is not safe.
    """
    refund = _agent(agent)
    if isinstance(refund, Finding):
        return refund
    unnamed = place is ... or other_place is ...
    finding = None if unnamed else _wrong_places(place, other_place)
    if finding is not None:
        return finding
    if _unchanged(refund):
        if unnamed:
            return todo(
                "Which two places does the sweep name? Write them for the dots, and repair both."
            )
        return todo("Both places are right. The refund is as it came in: repair both faults.")
    found = _refunded(refund)
    if unnamed and found.state is State.PASS:
        return todo(
            f"Your repair holds: {found.says[0]}",
            "One thing is left: for the three dots, write the two places that the sweep named.",
        )
    return found


def _refunded(agent: Workflow) -> Finding:
    """What the trials say about a repaired refund."""
    finding = _refund_once(agent, "yes") or _refund_once(agent, "no")
    if finding is not None:
        return finding
    found = _put_on_the_card(6, _single_and_in_pairs, agent, ORDER, world=town, signals=YES)
    if isinstance(found, Finding):
        return found
    if not found.good:
        return _refund_broken(agent, found)
    assert found.sweep is not None
    pairs = len(found.trials) - len(found.sweep.schedules)
    return right(
        f"{len(found.trials) - pairs} crashes and {pairs} pairs of crashes: one question, one "
        "payment and one letter each time, and none without a yes."
    )


def _single_and_in_pairs(agent: Workflow) -> Examination:
    """Crash the refund at every boundary, and where that is safe also in pairs."""
    found = examinations.examine_refund(agent)
    return examinations.examine_refund(agent, pairs=True) if found.good else found


def _wrong_places(*given: object) -> Finding | None:
    """What to say where the two places are not those that the sweep names."""
    said = {one_line(place, 40) for place in given}
    report = clinic.before(6).sweep
    assert report is not None
    places = {schedule.place for schedule in report.schedules if not schedule.good}
    if said == places:
        return None
    off = sorted(said - places)
    if off:
        known = {schedule.place for schedule in report.schedules}
        says = "every crash is safe there" if off[0] in known else "the sweep knows no such place"
        return wrong(f"At {off[0]!r} it is not broken: {says}.")
    return wrong("You name one place. There is another one: look past the smallest seed.")


def _unchanged(agent: Workflow) -> bool:
    """Whether it and its tools are written as they came in."""
    case = CASES[6]
    before, now = ({tool.name: _written(tool) for tool in tools} for tools in (
        case.parts, tools_of(agent),
    ))  # fmt: skip
    return agent.source == case.workflow.source and before == now


def _written(tool: Tool) -> tuple[str, str]:
    """A tool as it is declared, and as it is coded."""
    return repr(tool), source_digest(tool.function)


def _refund_once(agent: Workflow, answer: str) -> Finding | None:
    """Nothing dies; the boss says yes or no."""
    with _quietly(), examinations.trial(agent, world=town) as runtime:
        try:
            agent.parameters.dump((ORDER,), {})
        except TypeError as error:
            return wrong(f"The refund is called with ctx and one order: {one_line(error)}.")
        asked = len(model.bill)
        run = runtime.run(agent, ORDER, id="refund-42")
        told = len(post.inbox(to=BOSS))
        if run.status == "waiting":
            runtime.signal(run.id, "approval", answer)
            runtime.resume(run.id)
        elif run.status == "completed":
            return wrong("It ends without waiting for the boss: ctx.wait_for is gone.")
        if run.status != "completed":
            because = one_line(examinations.why(run))
            return wrong(f"Nothing dies, and yet the refund is {run.status}: {because}")
        asked = len(model.bill) - asked
        question, letters, paid = (
            len(post.inbox(to=BOSS)), len(post.inbox(to=ADA)), len(bank.effects()),
        )  # fmt: skip
    if not told:
        return wrong("It waits for the boss, and nobody has asked him.")
    if asked > ORDER["budget"]:
        return wrong(
            f"The budget allows {ORDER['budget']} answers; the model was asked {asked} times."
        )
    if answer == "no" and (paid or letters):
        return wrong("The boss says no, and there is money or a letter on its way.")
    wanted = (1, 1, 1) if answer == "yes" else (1, 0, 0)
    if (question, paid, letters) != wanted:
        return wrong(
            f"Nothing dies, the boss says {answer}, and there are {question} question(s), {paid} "
            f"payment(s) and {letters} letter(s)."
        )
    return None


def _refund_broken(agent: Workflow, found: Examination) -> Finding:
    worst = found.bad[0]
    promised = {tool.contract.effect for tool in tools_of(agent) if tool.name == "pay_back"}
    says = [
        f"{len(found.bad)} of {len(found.trials)} schedules are not well. Look at: {worst.what}."
    ]
    place = worst.what.rpartition("@")[2]
    of_the_bank = place == "pay_back" or "pay" in worst.reason
    asked = promised == {Effect.QUERYABLE}
    if worst.verdict == DUPLICATE and of_the_bank and asked and "late:" in worst.what:
        says.append(
            "The bank was asked, and knew nothing yet. Then it was paid again, and the first "
            "request arrived after all: two payments. After what time is its answer final?"
        )
    elif worst.verdict == DUPLICATE and of_the_bank:
        says.append("There are two payments. The bank knows no keys; it can only be asked.")
    elif worst.verdict == DUPLICATE:
        says.append(f"There are {worst.cells['effects']} effects instead of 3, near {place!r}.")
    elif worst.verdict == "a person is asked":
        says.append(
            f"Nothing is done twice, but a person has to decide: {one_line(worst.reason)}. Both "
            "services promise enough to go without."
        )
    else:
        says.append(f"There it comes out as {worst.verdict}: {one_line(worst.reason)}")
    shown = [trial.row for trial in found.bad[:8]]
    return wrong(*says, table=Table("The first schedules that are not well", shown))

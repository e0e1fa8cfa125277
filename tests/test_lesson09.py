"""Lesson 09 as a learner meets it: its parts, its numbers, and its six repairs and its question."""

import contextlib
import io
import random
import re
import uuid
from pathlib import Path

import lesson_checks as checks
import pytest
from lesson_checks import cell_of, read, tagged
from lesson_play import ask, is_a_slip, run_twice
from nbformat import NotebookNode

import durakit as dk
from durakit.lab import lesson09
from durakit.lab.clinic import examinations, patients
from durakit.lab.clinic import ward as clinic
from durakit.lab.clinic.patients import ADA, BOSS, Order, Trip, ask_bank, bank, draft, model, post
from durakit.lab.exercises import Note, State
from durakit.mail import Mailbox

HERE = checks.LESSONS["09"]
NAMES = ("save_often", "shopping", "bookkeeping", "subscribing", "cash", "refunding", "finders")


@pytest.fixture(autouse=True)
def _an_empty_card():
    """Every test begins with a scorecard on which nothing stands."""
    clinic.forget()
    yield
    clinic.forget()


def test_no_prediction_is_answered_before_it_is_asked(fresh: NotebookNode) -> None:
    """The first scorecard is empty, and the last one knows the five that were examined."""
    (first,) = checks.texts(cell_of(fresh, "first"))
    assert first.count("○ not examined yet") == 6
    (last,) = checks.texts(cell_of(fresh, "card8"))
    assert last.count("○ not examined yet") == 1
    assert last.count("○ not repaired yet") == 6


@pytest.mark.parametrize(
    ("text", "says", "number", "what", "cells"),
    [
        ("e1", "Six: three before the crash", 1, "effect_done@send_trip", {"answers": 6}),
        ("e2", "Two. The checkpoint says", 2, "effect_done@send_order", {"effects": 2}),
        ("e3", "five requests in vain", 3, "copy: no address is given (422)", {"requests": 6}),
        ("e3", "a busy post (429) ends the whole run", 3, "receipt: 429, ask again in 20 s",
         {"run": "failed"}),
        ("e3", "a lost reply calls a person", 3, "receipt: the reply is lost",
         {"run": "needs_decision"}),
        ("e3", "which makes two copies", 3, "copy: the reply is lost", {"copies": 2}),
        ("e4", "One: the very reader", 4, "the first reply takes 100 s",
         {"Ada": 1, "Bela": 0, "Chidi": 0}),
        ("e4", "a wait of 58 seconds", 4, "429, ask again in 58 s", {"Bela": 0, "Chidi": 0}),
        ("e4", "24 crashes, all safe", 4, "a crash, anywhere", {}),
        ("e5", "Two keys, two invoices", 5, "effect_done@send_invoice", {"effects": 2}),
        ("e5", "a second invoice", 5, "started again under another id", {"effects": 2}),
    ],
)  # fmt: skip
def test_a_number_in_the_text_is_the_ledgers(text, says, number, what, cells) -> None:
    """What the lesson says in words is what the examination counted there."""
    assert says in cell_of(HERE.read(), text).source
    (trial,) = [trial for trial in clinic.before(number).trials if trial.what == what]
    assert {name: trial.cells[name] for name in cells} == cells
    if what == "a crash, anywhere":
        assert trial.verdict == "24 crashes: safe"


def test_the_blind_guesses_of_the_text_are_two() -> None:
    """They went well, by luck."""
    assert "Two rows say **blind guess**" in cell_of(HERE.read(), "e2").source
    verdicts = [trial.verdict for trial in clinic.before(2).trials]
    assert verdicts.count("blind guess") == 2


def test_the_last_patient_is_ill_as_its_text_says(fresh: NotebookNode) -> None:
    """Two mails, and a run that says completed."""
    (shown,) = checks.texts(cell_of(fresh, "exam7"))
    assert re.search(r"25 hours after effect_done +completed +2 +✗ sent twice", shown)


def test_the_unknown_patient_comes_in_as_it_stands_in_the_ward() -> None:
    """The cell of the exercise is, word for word, the code that was shown and swept."""
    cell = cell_of(HERE.read(), "answer6").source
    case = clinic.CASES[6]
    shown = clinic.Source(case).pieces
    assert shown[-1] in cell
    assert shown[2] in cell


def test_running_the_whole_lesson_twice_in_one_kernel_shows_the_same() -> None:
    """No cell depends on what an earlier run of the notebook has left."""
    run_twice(HERE)


def test_what_is_shown_is_escaped() -> None:
    """Names of tools and errors of learners go through the one escaping helper."""

    @dk.tool(name="<b>bold</b>")
    def bold(call, to):
        return to

    assert "<b>bold</b>" not in lesson09.lint_of(bold).html()
    assert "✗ <b>bold</b>" in lesson09.lint_of(bold).text()


def test_the_sections_of_the_chapter_are_covered() -> None:
    """21.8's five mistakes, each with a repair; 21.9's three sentences."""
    notebook = HERE.read()
    (title,) = tagged(notebook, "title")
    assert "chapter 21.8 and 21.9" in title.source
    text = "\n".join(cell.source for cell in notebook.cells).lower()
    for words in (
        "a checkpoint only at the end", "we have a checkpointer", "everything is retried",
        "one layer of timeout", "a new key for each attempt", "stable key", "**unknown**",
        "with the deadline", "same database", "only if you can prove",
    ):  # fmt: skip
        assert words in text, words


# -- the repairs -----------------------------------------------------------------------------------


def check(tmp_path: Path, name: str, *given: object) -> Note:
    """Check an answer with a progress of its own."""
    return ask(getattr(lesson09, name), tmp_path, *given)


def rejected(tmp_path: Path, name: str, message: str, *given: object) -> None:
    """Assert that an answer is told ``message``, and shown the first hint."""
    note = check(tmp_path, name, *given)
    assert note.mark == State.TRY_AGAIN, note.text()
    assert message in " ".join(note.lines), note.text()
    assert note.lines[-1].startswith("Hint 1 of ")


def sender(subject: str, key=lambda call: call.key, **declared) -> dk.Tool:
    """Declare a tool that writes a mail; ``key``: what it tells the post."""

    @dk.tool(**{"effect": "idempotent", "window": 86_400, "timeout": 3.0, **declared})
    def send(call, to, text):
        return post.send(to, subject, text, key=key(call), timeout=call.remaining())

    return send


def no_key(call) -> None:
    """Tell the post nothing."""


BLIND = {"effect": "opaque", "window": None, "on_unknown": "resend"}
ASKS = {"effect": "opaque", "window": None}
HIDES = {"effect": "none", "window": None}
HIDDEN = "'send' declares effect=\"none\": it touches nothing outside. But the service acted"


# 1


def traveller(save=lambda before, after: True, *, tool=None, days=3, sends=True, asks=True):
    """Return a travel agent with these faults."""
    sending = tool or sender("Your trip")

    @dk.machine(state=Trip, save=save, name="travel_agent")
    def travels(ctx, state):
        if len(state.days) < 3:
            more = list(state.days)
            for _ in range(days):
                text = f"Part {len(more) + 1}."
                more.append(ctx.step("model", model.write, len(more) + 1) if asks else text)
            return Trip(days=more)
        if sends:
            ctx.call(sending, ADA, " ".join(state.days), key="trip:42")
        return dk.Done(state)

    return travels


def test_saving_after_each_answer_passes(tmp_path) -> None:
    """Every transition, or only those with an answer in them."""
    for save in (lambda b, a: True, lambda b, a: len(a.days) != len(b.days)):
        note = check(tmp_path, "save_often", traveller(save, days=1))
        assert note.mark == State.PASS, note.text()
    assert "up to 1 of 3 answers again" in clinic.scorecard().text()


WRONG_TRAVELLERS = {
    "never": (traveller(lambda b, a: False, days=1), "your rule never says True"),
    "at three": (traveller(lambda b, a: len(a.days) == 3, days=1), "pays for 3 answers a second"),
    "at even": (traveller(lambda b, a: len(a.days) % 2 == 0, days=1), "pays for 2 answers"),
    "all at once": (traveller(days=3), "too much lies before one of them"),
    "no key": (traveller(days=1, tool=sender("T", no_key, **BLIND)), "was given no key"),
    "a broken promise": (traveller(days=1, tool=sender("T", no_key)), "was given no key"),
    "a hidden effect": (traveller(days=1, tool=sender("T", **HIDES)), HIDDEN),
    "no mail": (traveller(days=1, sends=False), f"{ADA} has 0 mails"),
    "no model": (traveller(days=1, asks=False), "the model was asked 0 times"),
    "a rule that fails": (traveller(lambda b, a: a.day, days=1), "'Trip' object has no attribute"),
    "a report": (None, "You handed over a report"),
    "a tool": (sender("T"), "You handed over the tool"),
    "a workflow": (patients.cashier, "it is to stay one"),
    "another state": (patients.shopper, "of the class Trip"),
    "a word": ("travel_agent", "This is a str"),
}


@pytest.mark.parametrize("name", WRONG_TRAVELLERS)
def test_a_known_wrong_travel_agent_is_told_what_is_wrong(name, tmp_path) -> None:
    """Each with a message of its own."""
    given, message = WRONG_TRAVELLERS[name]
    if given is None:
        given = dk.sweep(patients.travel_agent, Trip(), world=post)
    rejected(tmp_path, "save_often", message, given)


# 2


def buyer(tool=None, *, key="order:42", to="shop@example.org", bare=False):
    """Return a shopper with these faults."""
    sending = tool or sender("Order")

    @dk.machine(state=Order, name="shopper")
    def buys(ctx, state):
        if not state.text:
            return Order(text=ctx.step("model", model.write, 1))
        if bare:
            post.send(to, "Order", state.text)
        else:
            ctx.call(sending, to, state.text, key=key() if callable(key) else key)
        return dk.Done(state)

    return buys


def test_a_promise_and_a_key_pass(tmp_path) -> None:
    """With a window; and without one, with a remark about it."""
    note = check(tmp_path, "shopping", buyer())
    assert note.mark == State.PASS, note.text()
    assert "remark" not in note.text()
    note = check(tmp_path, "shopping", buyer(sender("Order", window=None)))
    assert note.mark == State.PASS
    assert "window=86_400 says so" in note.text()


def test_the_remark_about_a_window_is_for_a_tool_that_promises_keys(tmp_path) -> None:
    """A tool that only looks beside it has no window, and promises none for ever."""
    looks = dk.tool(lambda call: "19 euros", effect="none", name="lesson09_looks")
    sends = sender("Order")

    @dk.machine(state=Order, name="shopper")
    def buys(ctx, state):
        if not state.text:
            return Order(text=ctx.call(looks, key="price:42"))
        ctx.call(sends, "shop@example.org", state.text, key="order:42")
        return dk.Done(state)

    note = check(tmp_path, "shopping", buys)
    assert note.mark == State.PASS, note.text()
    assert "remark" not in note.text()


def test_a_repair_that_hides_an_effect_is_no_cure_on_the_card(tmp_path) -> None:
    """What is not passed is not put down as well."""
    rejected(tmp_path, "cash", HIDDEN, billing(sender("Invoice", **HIDES)))
    assert clinic.scorecard().caption == "THE SCORECARD: 0 of 6 are well"


WRONG_BUYERS = {
    "no key": (buyer(sender("Order", no_key)), "The post was given no key"),
    "still blind": (buyer(sender("Order", **BLIND)), "it went well by luck"),
    "a person": (buyer(sender("Order", **ASKS)), "This post knows keys; does the tool say so?"),
    "per attempt": (
        buyer(sender("Order", lambda call: f"{call.key}/{call.attempt}")),
        "The post was told two keys for one mail",
    ),
    "no effect": (buyer(sender("Order", no_key, effect="none", window=None)), "was given no key"),
    "a hidden effect": (buyer(sender("Order", **HIDES)), HIDDEN),
    "a random key": (buyer(key=lambda: uuid.uuid4().hex), "two keys for one mail"),
    "a bare line": (buyer(bare=True), "goes out without ctx.call"),
    "another address": (buyer(to="elsewhere@example.org"), "shop@example.org has 0 mails"),
    "a report": (None, "You handed over a report"),
    "another state": (patients.travel_agent, "of the class Order"),
}


@pytest.mark.parametrize("name", WRONG_BUYERS)
def test_a_known_wrong_shopper_is_told_what_is_wrong(name, tmp_path) -> None:
    """Each with a message of its own, from the sweep and from the post's own log."""
    given, message = WRONG_BUYERS[name]
    if given is None:
        given = dk.sweep(patients.shopper, Order(), world=post)
    rejected(tmp_path, "shopping", message, given)


# 3


def looping(*, key=lambda call: call.key, caught=Exception, **declared) -> dk.Tool:
    """Return a copy's tool that tries by hand."""

    @dk.tool(**{"timeout": 60.0, **declared})
    def loops(call, to, text):
        for _ in range(5):
            with contextlib.suppress(caught):
                return post.send(to, "Copy", text, key=key(call), timeout=5)
        return None

    return loops


def swallowing(**declared) -> dk.Tool:
    """Return a copy's tool that says nothing of any error."""

    @dk.tool(**{"effect": "idempotent", "window": 86_400, "timeout": 5.0, **declared})
    def swallows(call, to, text):
        try:
            return post.send(to, "Copy", text, key=call.key, timeout=call.remaining())
        except TimeoutError:
            raise
        except Exception as error:
            if getattr(error, "status", None) == 429:
                raise
            return None

    return swallows


RECEIPT, COPY = sender("Receipt"), sender("Copy")


def test_tools_that_let_the_errors_out_pass(tmp_path) -> None:
    """The runtime waits, asks again or gives up, as the failure wants it."""
    note = check(tmp_path, "bookkeeping", RECEIPT, COPY)
    assert note.mark == State.PASS, note.text()
    assert "1 receipt(s), 1 copies" in clinic.scorecard().text()
    more = dk.Retry(attempts=6, cap=2.0)
    note = check(tmp_path, "bookkeeping", sender("Receipt", retry=more), COPY)
    assert note.mark == State.PASS


ONE = dk.Retry(attempts=1)
IDEMPOTENT = {"effect": "idempotent", "window": 86_400}
WRONG_TOOLS = {
    "one attempt": ((sender("Receipt", retry=ONE), COPY), "Nobody came: how many attempts?"),
    "one for the copy": ((RECEIPT, sender("Copy", retry=ONE)), "Look at: copy: 429"),
    "as it came in": ((RECEIPT, looping(key=no_key)), "was asked at once"),
    "a loop with a key": ((RECEIPT, looping(**IDEMPOTENT)), "was asked at once"),
    "a loop around timeouts": (
        (RECEIPT, looping(caught=TimeoutError, key=no_key)), "Look at: copy: 429",
    ),
    "no key": ((RECEIPT, sender("Copy", no_key)), "took it for another one"),
    "swallowed": ((RECEIPT, swallowing()), "the run says completed"),
    "opaque": ((RECEIPT, sender("Copy", **ASKS, retry=dk.Retry())), "may be sent again"),
    "an opaque receipt": (
        (sender("Receipt", no_key, **ASKS, retry=dk.Retry()), COPY), "Look at: receipt: the reply",
    ),
    "a hidden effect": ((RECEIPT, sender("Copy", **HIDES)), HIDDEN),
    "a hidden receipt": ((sender("Receipt", **HIDES), COPY), HIDDEN),
    "blind": (
        (RECEIPT, sender("Copy", no_key, **BLIND, retry=dk.Retry())), "took it for another one",
    ),
    "in vain": (
        (RECEIPT, dk.tool(lambda call, to, text: [
            contextlib.suppress(Exception).__enter__(), None][1], name="silent", timeout=3.0)),
        "a mail is missing",
    ),
    "other parameters": (
        (RECEIPT, dk.tool(lambda call, to: None, name="short")), "A tool of yours is called",
    ),
    "the agent": ((patients.bookkeeper, COPY), "Hand over your two tools"),
    "a word": ((RECEIPT, "send_copy"), "This is a str"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_TOOLS)
def test_a_known_wrong_pair_of_tools_is_told_what_is_wrong(name, tmp_path) -> None:
    """Each with a message of its own; the plans of faults find them, not a crash."""
    given, message = WRONG_TOOLS[name]
    rejected(tmp_path, "bookkeeping", message, *given)


# 4


def subscriber(
    tool=None, turn: float | None = 10, catch=dk.DeadlineExceeded, *, names=True,
    fails=False, around=False, key=lambda reader: f"news-7:{reader['id']}",
):  # fmt: skip
    """Return a newsletter with these faults."""
    sending = tool or sender("News", timeout=3.0)

    def one(ctx, reader):
        limit = contextlib.nullcontext() if turn is None else ctx.turn(reader["name"], turn)
        with limit:
            ctx.call(sending, reader["email"], "News 7", key=key(reader))

    @dk.workflow(name="newsletter")
    def newsletter(ctx, readers):
        late = []
        for reader in readers:
            try:
                one(ctx, reader)
            except catch:
                if fails:
                    raise
                late.append(reader["name"])
        return late if names else None

    return newsletter


def test_three_limits_pass(tmp_path) -> None:
    """One for an attempt, one for a reader, one for the run; and who was given up is named."""
    note = check(tmp_path, "subscribing", subscriber())
    assert note.mark == State.PASS, note.text()
    assert "2 of 2 others have their news" in clinic.scorecard().text()
    assert (
        check(tmp_path, "subscribing", subscriber(sender("News", timeout=8.0), turn=20)).mark
        == State.PASS
    )


UNLIMITED = sender("News", timeout=None)
WRONG_SUBSCRIBERS = {
    "one layer": (subscriber(UNLIMITED, turn=None), "which limit is its own?"),
    "only the call": (subscriber(turn=None), "what stands between the call and the run?"),
    "a call of an hour": (subscriber(sender("News", timeout=3600.0), turn=None), "its own?"),
    "turns of an hour": (subscriber(turn=3600), "what stands between the call and the run?"),
    "only the turn": (subscriber(UNLIMITED, turn=70), "which limit is its own?"),
    "a call too short": (subscriber(sender("News", timeout=0.5)), "lets nobody through"),
    "a limit that never fires": (
        subscriber(sender("News", timeout=30.0)),
        "not its own limit of 30 s. A limit that is",
    ),
    "a limit that fires too late": (
        subscriber(sender("News", timeout=10.0)),
        "not its own limit of 10 s. A limit that is",
    ),
    "no limit for an attempt": (subscriber(UNLIMITED), "not a limit of its own: it has none."),
    "no room for another": (subscriber(turn=3.5), "must leave room for another attempt"),
    "a hidden effect": (subscriber(sender("News", **HIDES)), HIDDEN),
    "all caught": (subscriber(catch=Exception), "Your except catches too much"),
    "even a crash caught": (subscriber(catch=BaseException), "Your except catches too much"),
    "not caught": (subscriber(fails=True), "The limit of one reader ends the whole run"),
    "not named": (subscriber(names=False), "the result does not name her"),
    "no key": (subscriber(sender("News", no_key)), "Look at: the first reply takes 100 s"),
    "one key": (subscriber(key=lambda reader: "news-7"), "ArgumentsDiffer"),
    "a tool": (UNLIMITED, "You handed over the tool"),
    "a list": ([1], "This is a list"),
}


@pytest.mark.parametrize("name", WRONG_SUBSCRIBERS)
def test_a_known_wrong_newsletter_is_told_what_is_wrong(name, tmp_path) -> None:
    """Each with a message of its own; the slow post finds them, not a crash."""
    given, message = WRONG_SUBSCRIBERS[name]
    rejected(tmp_path, "subscribing", message, given)


# 5


def billing(tool=None, key=lambda ctx, order: f"invoice:{order['id']}", *, hidden=False):
    """Return a cashier with these faults."""
    sending = tool or sender("Invoice")

    @dk.workflow(name="cashier")
    def cashier(ctx, order):
        if hidden:
            ctx.step("send", post.send, order["email"], "Invoice", order["text"])
        else:
            ctx.call(sending, order["email"], order["text"], key=key(ctx, order))

    return cashier


def test_one_key_for_each_order_passes(tmp_path) -> None:
    """Any name of the order will do."""
    note = check(tmp_path, "cash", billing())
    assert note.mark == State.PASS, note.text()
    other = billing(key=lambda ctx, order: f"{order['id']}/invoice")
    assert check(tmp_path, "cash", other).mark == State.PASS


def drawn(ctx, order) -> str:
    """Name the invoice by a saved draw."""
    del order
    return f"invoice:{ctx.step('number', patients.draw_number)}"


WRONG_CASHIERS = {
    "as it came in": (patients.cashier, "two keys for one mail"),
    "only the tool": (billing(key=drawn), "under another run id, and now there are 2 mails"),
    "only the workflow": (
        billing(sender("Invoice", lambda c: f"{c.key}:{c.attempt}")), "'invoice:42:1' and",
    ),
    "a random key": (billing(key=lambda ctx, o: uuid.uuid4().hex), "does not match the journal"),
    "one for all": (billing(key=lambda ctx, o: "invoice"), "There are 1 invoices, not 2"),
    "by content": (billing(key=lambda ctx, o: o["email"] + o["text"]), "There are 1 invoices"),
    "not told": (billing(sender("Invoice", no_key)), "The post was given no key"),
    "a key of the tool's": (
        billing(sender("Invoice", lambda c: f"{random.random()}")), "told two keys",
    ),
    "in a step": (billing(hidden=True), "goes out without ctx.call"),
    "a hidden effect": (billing(sender("Invoice", **HIDES)), HIDDEN),
    "opaque": (billing(sender("Invoice", **ASKS)), "This post knows keys; does the tool say so?"),
    "a number": (42, "This is an int"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_CASHIERS)
def test_a_known_wrong_cashier_is_told_what_is_wrong(name, tmp_path) -> None:
    """Each with a message of its own."""
    given, message = WRONG_CASHIERS[name]
    rejected(tmp_path, "cash", message, given)


# 6


def paying(*, settles: float | None = 20, effect="queryable", key=True) -> dk.Tool:
    """Return a tool that pays, with these faults."""
    probe = {"probe": ask_bank, "settles_after": settles} if effect == "queryable" else {}

    @dk.tool(effect=effect, timeout=3.0, **probe)
    def pay_back(call, account, euros):
        own = call.key if key else None
        return bank.send(account, "Refund", str(euros), key=own, timeout=call.remaining())

    return pay_back


def refunder(
    pay=None, ask="call", *, write=patients.write_to, ask_key="ask", listens=True, tells=True,
    pays=True, waits=True, drafts=1,
):  # fmt: skip
    """Return a refund: the repaired one, or one with these faults."""
    paid = pay or paying()

    @dk.workflow(name="refund")
    def refund(ctx, order):
        for _ in range(drafts):
            text = draft(ctx, order)
        if ask == "call":
            ctx.call(write, BOSS, "May I?", text, key=f"{ask_key}:{order['id']}")
        elif ask == "step":
            ctx.step("ask", post.send, BOSS, "May I?", text)
        elif ask == "random":
            ctx.call(write, BOSS, "May I?", text, key=uuid.uuid4().hex)
        said = ctx.wait_for("approval") if waits else "yes"
        if said != "yes" and listens:
            return "refused"
        if pays:
            ctx.call(paid, order["account"], order["euros"], key=f"pay:{order['id']}")
        if tells:
            ctx.call(write, order["email"], "Refund", text, key=f"tell:{order['id']}")
        return "paid"

    return refund


def test_the_repaired_refund_survives_every_pair_of_crashes(tmp_path) -> None:
    """Question, payment and letter, once each, by both ledgers; the check tries some pairs."""
    note = check(tmp_path, "refunding", refunder(), "ask", "pay_back")
    assert note.mark == State.PASS, note.text()
    crashes, pairs = map(int, re.findall(r"(\d+) crashes and (\d+) pairs", note.text())[0])
    assert (crashes, pairs) == (33, 31)
    options = {"world": patients.town, "signals": examinations.YES}
    every = dk.sweep(refunder(), examinations.ORDER, crashes=2, **options)
    assert every.safe
    assert every.reference == 3
    assert len(every.schedules) > 600
    tried = {trial.what for trial in examinations.examine_refund(refunder(), pairs=True).trials}
    assert tried <= {schedule.seed for schedule in every.schedules}
    assert "3 effect(s), as it should be" in clinic.scorecard().text()


def test_a_refund_that_only_the_second_crash_breaks_does_not_pass(tmp_path) -> None:
    """Why pairs are tried: a key that changes with the third attempt passes each single crash."""

    @dk.tool(effect="idempotent", window=86_400, timeout=3.0, retry=dk.Retry(attempts=5))
    def tiring(call, to, subject, text):
        key = call.key if call.attempt < 3 else "another"
        return post.send(to, subject, text, key=key, timeout=call.remaining())

    assert examinations.examine_refund(refunder(write=tiring)).good
    rejected(
        tmp_path, "refunding", "schedules are not well", refunder(write=tiring), "pay_back", "ask"
    )


@dk.tool(effect="none", timeout=3.0)
def hiding(call, to, subject, text):
    """Write to somebody, and declare that this touches nothing."""
    return post.send(to, subject, text, key=call.key, timeout=call.remaining())


WRONG_REFUNDS = {
    "only the question": (refunder(paying(settles=0)), "After what time is its answer final?"),
    "only the payment": (refunder(ask="step"), "4 effects instead of 3, near 'ask'"),
    "no promise": (refunder(paying(settles=None)), "Both services promise enough"),
    "too early": (refunder(paying(settles=3)), "After what time is its answer final?"),
    "keys at the bank": (refunder(paying(effect="idempotent")), "The bank knows no keys"),
    "an opaque bank": (refunder(paying(effect="opaque")), "a person has to decide"),
    "a hidden letter": (refunder(write=hiding), "'hiding' declares effect=\"none\""),
    "a deaf ear": (refunder(listens=False), "The boss says no"),
    "no question": (refunder(ask="never"), "nobody has asked him"),
    "no wait": (refunder(waits=False), "ctx.wait_for is gone"),
    "no payment": (refunder(pays=False), "0 payment(s)"),
    "no letter": (refunder(tells=False), "0 letter(s)"),
    "one key for two": (refunder(ask_key="tell"), "ArgumentsDiffer"),
    "a random question": (refunder(ask="random"), "does not match the journal"),
    "over the budget": (refunder(drafts=2), "the model was asked 4 times"),
    "the tool": (paying(), "You handed over the tool"),
    "too few": (dk.workflow(lambda ctx: None, name="refund"), "called with ctx and one order"),
}


@pytest.mark.parametrize("name", WRONG_REFUNDS)
def test_a_known_wrong_refund_is_told_what_is_wrong(name, tmp_path) -> None:
    """Each with a message of its own."""
    given, message = WRONG_REFUNDS[name]
    rejected(tmp_path, "refunding", message, given, "ask", "pay_back")


def test_the_refund_as_it_came_in_is_no_answer(tmp_path) -> None:
    """Neither without the places of its faults, nor with them, though these are told as right."""
    for places in [(..., ...), ("ask", ...), ("ask", "pay_back")]:
        note = check(tmp_path, "refunding", patients.refund, *places)
        assert note.mark == State.TODO
        assert ("Both places are right" in note.text()) is (... not in places)


def test_a_repair_without_the_places_is_told_what_is_right_already(tmp_path) -> None:
    """Who repairs first hears that it holds, or where it does not; only a whole answer passes."""
    for places in [(..., ...), ("ask", ...)]:
        note = check(tmp_path, "refunding", refunder(), *places)
        assert note.mark == State.TODO
        assert note.lines[0].startswith("Your repair holds: 33 crashes and 31 pairs")
        assert "the two places" in note.lines[1]
    rejected(tmp_path, "refunding", "4 effects instead of 3", refunder(ask="step"), ..., ...)


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (("ask", "ask"), "You name one place. There is another one"),
        (("ask", "write_to"), "At 'write_to' it is not broken: every crash is safe there"),
        (("pay_back", "bank"), "the sweep knows no such place"),
        ((1, 2), "At '1' it is not broken"),
    ],
)
def test_a_wrong_place_of_a_fault_is_told(places, message, tmp_path) -> None:
    """Repaired by luck is not understood."""
    rejected(tmp_path, "refunding", message, refunder(), *places)


# 7

TRUTH = {
    "travel_agent": "lint",
    "shopper": "both",
    "bookkeeper": "lint",
    "newsletter": "lint",
    "cashier": "both",
    "refund": "sweep",
    "reminder": "neither",
}
WRONG_FINDERS = {
    "all lint": (dict.fromkeys(TRUTH, "lint"), "4 of 7 do not hold. Look at 'shopper'"),
    "all sweep": (dict.fromkeys(TRUTH, "sweep"), "6 of 7 do not hold"),
    "all both": (dict.fromkeys(TRUTH, "both"), "5 of 7 do not hold"),
    "all neither": (dict.fromkeys(TRUTH, "neither"), "so lint has found it"),
    "a strong lint": (TRUTH | {"refund": "both"}, "lint has found nothing there"),
    "a weak lint": (TRUTH | {"cashier": "sweep"}, "it is written in the code"),
    "a strong sweep": (TRUTH | {"reminder": "sweep"}, "it takes faults, or time, to see it"),
    "a weak sweep": (TRUTH | {"shopper": "lint"}, "there is a crash after which the ledger"),
    "one missing": ({n: a for n, a in TRUTH.items() if n != "refund"}, "'refund' is missing"),
    "a list": (list(TRUTH.values()), "This is a list"),
}


@pytest.mark.parametrize("name", WRONG_FINDERS)
def test_a_known_wrong_table_is_told_what_is_wrong(name, tmp_path) -> None:
    """Each with a message of its own."""
    given, message = WRONG_FINDERS[name]
    rejected(tmp_path, "finders", message, given)


@pytest.mark.parametrize(
    ("slip", "message"),
    [({"refund": "swepe"}, "'swepe' is no answer"), ({"doctor": "lint"}, "no patient 'doctor'")],
)
def test_a_misspelt_word_of_the_table_takes_no_hint(slip, message, tmp_path) -> None:
    """It is about the typing, and the ladder stays where it was."""
    is_a_slip(check(tmp_path, "finders", TRUTH | slip), message)


def test_the_right_table_passes_and_shows_who_sees_what(tmp_path) -> None:
    """Three by lint alone, two by both, one by the sweep alone, one by neither."""
    note = check(tmp_path, "finders", TRUTH)
    assert note.mark == State.PASS
    assert [row["seen by"] for row in note.table.rows] == list(TRUTH.values())


# -- all of them -----------------------------------------------------------------------------------

EVERY = {
    "save_often": WRONG_TRAVELLERS,
    "shopping": WRONG_BUYERS,
    "bookkeeping": WRONG_TOOLS,
    "subscribing": WRONG_SUBSCRIBERS,
    "cash": WRONG_CASHIERS,
    "refunding": WRONG_REFUNDS,
    "finders": WRONG_FINDERS,
}


def test_each_exercise_has_six_wrong_answers_with_words_of_their_own() -> None:
    """Fewer would leave a learner alone with a common mistake."""
    assert set(EVERY) == set(NAMES)
    for name, wrong in EVERY.items():
        assert len({message for _, message in wrong.values()}) >= 6, name


def test_three_dots_are_no_answer(tmp_path) -> None:
    """The stubs ask, and nothing of them is run; a part of a table is none either."""

    @dk.tool(timeout=3.0)
    def dotted(call, to, text):
        return post.send(to, "Copy", text, key=...)

    @dk.workflow(name="dotted")
    def waits(ctx, readers):
        with ctx.turn("a", timeout=...):
            return readers

    before = len(model.bill)
    asked = [
        ("save_often", traveller(lambda b, a: ...)),
        ("shopping", buyer(dotted)),
        ("bookkeeping", RECEIPT, dotted),
        ("subscribing", waits),
        ("cash", billing(dotted)),
        ("finders", TRUTH | {"refund": ...}),
    ]
    for name, *given in asked:
        assert check(tmp_path, name, *given).mark == State.TODO, name
    assert len(model.bill) == before


def test_a_mailbox_of_ones_own_is_noticed(tmp_path) -> None:
    """The mails must come out of the ward's post, where they are counted."""
    own = Mailbox(profile="idempotent", clock=dk.ManualClock())

    @dk.tool(effect="idempotent", timeout=3.0)
    def elsewhere(call, to, text):
        return own.send(to, "Order", text, key=call.key)

    rejected(tmp_path, "shopping", "has 0 mails from this post", buyer(elsewhere))
    own.close()


def test_what_the_learners_code_prints_and_raises_is_handled(tmp_path, capsys) -> None:
    """A hundred lines of prints are not shown; an error is told with its type."""

    @dk.workflow(name="cashier")
    def loud(ctx, order):
        print("hello")
        raise KeyError("price")

    rejected(tmp_path, "cash", "KeyError: 'price'", loud)
    assert capsys.readouterr().out == ""


def test_the_hints_are_a_ladder() -> None:
    """From a nudge to nearly the answer, each in words of its own."""
    for name in NAMES:
        hints = getattr(lesson09, name).hints
        assert 3 <= len(hints) == len(set(hints))


def test_the_worked_answers_fill_the_scorecard() -> None:
    """As it is stored; that a fresh run gives the same is checked of every lesson."""
    (card,) = checks.texts(cell_of(read(HERE.solution_path), "card8"))
    assert card.startswith("THE SCORECARD: 6 of 6 are well")


def test_the_worked_answers_are_found_healthy_by_lint() -> None:
    """Nobody learns a second mistake from a solution."""
    names: dict[str, object] = {}
    for cell in read(HERE.solution_path).cells:
        if cell.cell_type == "code" and re.match(r"first|show|answer[1-5]", cell.id):
            checks.run_cell(cell, names, io.StringIO())
    for agent in ("travel_agent", "shopper", "newsletter", "cashier"):
        assert dk.lint(names[agent]).found == ()
    for tool in ("send_receipt", "send_copy"):
        assert dk.lint(names[tool]).found == ()

"""Public failures of keys, approvals and batches, restated (rows of cases.csv).

Each test names its row. The mailbox's own ledger decides every question about duplicates.
"""

import random

import pytest
from pydantic import BaseModel

import durakit as dk
from durakit.lab.keys.strategies import again, generation
from durakit.mail import Fault, Letter, Mailbox, Request
from durakit.mail.profiles import PROFILES
from durakit.sweep import can_fork

ADA = "ada@example.org"
DAY = 86_400.0
MAIL_A = (ADA, "Welcome", "Hello Ada")
forks = pytest.mark.skipif(not can_fork(), reason="this platform cannot fork")


@pytest.fixture
def rt(tmp_path, clock, mailbox):
    """A runtime on the world's clock."""
    path = tmp_path / "run.db"
    with dk.Runtime(
        path, clock=clock, world=mailbox, rng=random.Random(0), durability="process"
    ) as runtime:
        yield runtime


def tool_for(mailbox, name="send_email", **more):
    """A mail tool of that name."""

    def send(call, to, subject, body):
        return mailbox.send(to, subject, body, key=call.key, timeout=call.remaining())

    return dk.tool(send, effect="idempotent", window=DAY, name=name, **more)


def sent(mailbox):
    """What customers see: recipient, subject and body of each mail."""
    return [(mail["to"], mail["subject"], mail["body"]) for mail in mailbox.inbox()]


def payloads(run, kind):
    """The payloads of the run's entries of one kind."""
    return list(run.history().query("kind == @kind")["payload"])


# -- L067: an approval is tied to the content ------------------------------------------------------


class Planner:
    """A model outside: what it proposes is whatever the test has put here."""

    def __init__(self, tool, *arguments):
        self.tool, self.arguments = tool, arguments
        self.asked = 0

    def propose(self):
        """A proposal with a new call id each time."""
        self.asked += 1
        return {"id": f"call_{self.asked}", "tool": self.tool, "arguments": list(self.arguments)}


class Case(BaseModel):
    """What the agent of this file remembers: nothing, so that it plans again in each life."""


def approving(planner, tools, name):
    """An agent that plans, and sends only what an approval names by tool and digest.

    It saves nothing but its end, so a resumed run plans again. An approval for other content is
    not used, and the run waits for the next one.
    """

    def agent(ctx, state):
        plan = ctx.step("plan", planner.propose)
        tool = tools[plan["tool"]]
        wanted = [tool.name, tool.digest(*plan["arguments"])]
        while ctx.wait_for("approval") != wanted:
            continue
        # The key is the case's: one mail for it, whatever the model proposes.
        return dk.Done(state, result=ctx.call(tool, *plan["arguments"], key="case-7:welcome"))

    return dk.machine(agent, state=Case, save=dk.only_at_the_end, name=name)


@pytest.mark.parametrize(
    ("tool", "arguments", "holds"),
    [
        ("send_email", (ADA, "Welcome", "Hello Ada, you owe us money"), False),
        ("send_email", ("eve@example.org", "Welcome", "Hello Ada"), False),
        ("send_letter", MAIL_A, False),
        ("send_email", MAIL_A, True),
    ],
    ids=["changed text", "another recipient", "another tool", "only a new call id"],
)
def test_L067_an_approval_holds_for_the_content_it_was_given_for(
    rt, mailbox, tool, arguments, holds
):
    """A resumed planner that proposes anything else waits for a new approval; nothing was sent."""
    tools = {name: tool_for(mailbox, name) for name in ("send_email", "send_letter")}
    approval = ["send_email", tools["send_email"].digest(*MAIL_A)]
    planner = Planner("send_email", *MAIL_A)
    workflow = approving(planner, tools, "case approval")
    run = rt.run(workflow, Case(), id="a")
    assert (run.status, planner.asked, sent(mailbox)) == ("waiting", 1, [])
    rt.signal(run.id, "approval", approval)
    planner.tool, planner.arguments = tool, arguments
    rt.recover()
    assert planner.asked == 2
    if holds:
        assert run.status == "completed"
        assert sent(mailbox) == [MAIL_A]
        return
    assert run.status == "waiting"
    assert mailbox.requests() == []
    rt.signal(run.id, "approval", [tool, tools[tool].digest(*arguments)])
    rt.recover()
    assert run.status == "completed"
    assert sent(mailbox) == [arguments]


def test_L067_the_digest_of_an_approval_is_that_of_the_saved_intent(rt, mailbox):
    """So whoever reads the journal can check which approval covered which call."""
    tool = tool_for(mailbox)

    @dk.workflow(name="case approved intent")
    def approved(ctx):
        return ctx.call(tool, *MAIL_A, key="welcome:7")

    rt.run(approved, id="a")
    saved = rt._store.read_operation("default", "send_email", "welcome:7")
    assert saved.arguments == tool.digest(*MAIL_A)
    assert saved.arguments != tool.digest(ADA, "Welcome", "Hello Ada!")


# -- L070: a batch of recipients -------------------------------------------------------------------

FIVE = [f"customer-{number}@example.org" for number in range(1, 6)]


def batch_of(tool, name):
    """A workflow that mails each recipient under a key of its own, and reports on each."""

    def batch(ctx, people):
        report = {}
        for to in people:
            try:
                reply = ctx.call(tool, to, "News", "Hello", key=f"news:2026-01:{to}")
                report[to] = reply["id"]
            except dk.OperationError as error:
                report[to] = f"not sent: {type(error).__name__}"
        return report

    return dk.workflow(batch, name=name)


def per_recipient(mailbox):
    """Recipient → number of mails."""
    found = dict.fromkeys(FIVE, 0)
    for to, _, _ in sent(mailbox):
        found[to] += 1
    return found


def test_L070_a_batch_that_partly_failed_is_tried_again_without_a_second_mail(rt, mailbox):
    """Two of five are refused; the report says which, and the retry mails these two alone."""
    busy = [Fault("rate_limited", key=f"news:2026-01:{to}") for to in (FIVE[1], FIVE[3])]
    mailbox.plan = list(busy)
    workflow = batch_of(tool_for(mailbox, retry=dk.Retry(attempts=2)), "case batch")
    first = rt.run(workflow, FIVE, id="batch", deadline=600)
    assert {to for to, told in first.result.items() if told.startswith("not sent")} == {
        FIVE[1], FIVE[3],
    }  # fmt: skip
    outcomes = dict(zip(first.operations()["key"], first.operations()["outcome"], strict=True))
    assert [outcomes[f"news:2026-01:{to}"] for to in FIVE] == [
        "completed", "not_executed", "completed", "not_executed", "completed",
    ]  # fmt: skip
    mailbox.plan = []
    requests = len(mailbox.requests())
    second = rt.run(workflow, FIVE, id="batch, again", deadline=600)
    assert list(second.result) == FIVE
    assert all(told.startswith("email-") for told in second.result.values())
    assert per_recipient(mailbox) == dict.fromkeys(FIVE, 1)
    assert len(mailbox.requests()) == requests + 2
    assert {to: first.result[to] for to in FIVE[::2]} == {to: second.result[to] for to in FIVE[::2]}


@pytest.mark.parametrize("point", ["intent_saved", "effect_done", "reply_received", "result_saved"])
@pytest.mark.parametrize("mode", ["simulated", pytest.param("process", marks=forks)])
def test_L070_a_batch_that_was_killed_at_its_third_mail_ends_with_one_each(mailbox, point, mode):
    """Also by SIGKILL: the recovery mails nobody twice and leaves nobody out."""
    workflow = batch_of(tool_for(mailbox), "case batch killed")
    seed = dk.CrashAt("send_email", point, occurrence=3).seed
    counted = {}

    def watch(stage, _seed, folder):
        ledger = Mailbox(folder / "world")
        counted[stage] = per_recipient(ledger)
        ledger.close()

    report = dk.sweep(workflow, FIVE, world=mailbox, only=seed, mode=mode, watch=watch)
    (schedule,) = report.schedules
    assert (schedule.verdict, schedule.status, schedule.effects) == ("safe", "completed", 5)
    out = 2 if point == "intent_saved" else 3
    assert list(counted["crashed"].values()) == [1] * out + [0] * (5 - out)
    assert counted["recovered"] == dict.fromkeys(FIVE, 1)


def test_L070_one_key_for_a_whole_batch_is_one_operation_of_the_service(mailbox):
    """Where a service takes many letters under one key: all or none, and a repetition adds none."""
    mailbox.profile = PROFILES["resend"]
    letters = [Letter(to, "News", "Hello") for to in FIVE]
    mailbox.plan = [Fault("error_midway", request=1)]
    request = Request(letters, key="news:2026-01", batch=True)
    assert mailbox.handle(request).status == 500
    assert per_recipient(mailbox) == dict.fromkeys(FIVE, 0)
    assert len(mailbox.handle(request).ids) == 5
    repeated = mailbox.handle(request)
    assert (repeated.replayed, len(repeated.ids)) == (True, 5)
    assert per_recipient(mailbox) == dict.fromkeys(FIVE, 1)


# -- L071: a deliberate new try --------------------------------------------------------------------


def one_mail(tool, name):
    """A workflow of one mail; the key is an argument, for it is a person who chooses it."""

    def mail(ctx, to, key):
        return ctx.call(tool, to, "Welcome", "Hello", key=key)["id"]

    return dk.workflow(mail, name=name)


def test_L071_a_new_generation_may_send_and_is_linked_to_the_old_one(rt, mailbox):
    """The old key keeps its final answer, marked as a replay; the new one names its ancestor."""
    workflow = one_mail(tool_for(mailbox), "case generations")
    failed = rt.run(workflow, "", "welcome:7", id="a")
    assert failed.status == "failed"
    told = rt.run(workflow, "", "welcome:7", id="b")
    assert (told.status, len(payloads(told, "replayed"))) == ("failed", 1)
    assert told.operations()["attempts"].tolist() == [1]
    second = again("welcome:7")
    assert rt.run(workflow, ADA, second, id="c").result == "email-1"
    assert [generation(row["key"]) for row in mailbox.effects()] == [("welcome:7", 2)]
    # Asked for again, the new generation is done once as well, and the old one is as it was.
    assert rt.run(workflow, ADA, second, id="d").result == "email-1"
    assert rt.run(workflow, "", "welcome:7", id="e").status == "failed"
    assert len(mailbox.effects()) == 1
    assert again(second) == "welcome:7/3"


def test_L071_the_old_key_does_not_take_the_new_tries_arguments(rt, mailbox):
    """Under the old key another address is refused: a new try needs a new key."""
    workflow = one_mail(tool_for(mailbox), "case old key")
    assert rt.run(workflow, "", "welcome:7", id="a").status == "failed"
    refused = rt.run(workflow, ADA, "welcome:7", id="b")
    with pytest.raises(dk.ArgumentsDiffer, match="needs a new one"):
        _ = refused.result
    assert mailbox.effects() == []

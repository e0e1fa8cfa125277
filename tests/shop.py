"""Workflows that the tests crash: tools with every contract over one mail service.

A module of its own, so that a new interpreter can import it for the real kill.
"""

from typing import Any

import durakit as dk
from durakit.mail import Mailbox

#: One mail service per effect contract, each a world of its own.
deduping = Mailbox(profile="idempotent")
askable = Mailbox(profile="queryable")
silent = Mailbox(profile="opaque")

ADA = {"id": 7, "name": "Ada", "email": "ada@example.org"}


def write_draft(customer: dict) -> dict:
    """Write a mail: no outside effect."""
    return {"subject": "Welcome", "body": f"Dear {customer['name']}"}


retry = dk.Retry(initial=0.2, cap=5.0, attempts=4)


@dk.tool(effect="idempotent", window=86400, timeout=3.0, retry=retry)
def send_idempotent(call: dk.Call, to: str, subject: str, body: str) -> dict:
    """Send a mail over a service that knows our key."""
    return deduping.send(to, subject, body, key=call.key, timeout=call.remaining())


def _probe(call: dk.Call) -> Any:
    found = askable.find(call.key)
    return dk.Absent if found is None else dk.Found(found)


@dk.tool(effect="queryable", probe=_probe, settles_after=10.0, timeout=3.0, retry=retry)
def send_queryable(call: dk.Call, to: str, subject: str, body: str) -> dict:
    """Send a mail over a service that can be asked and does not deduplicate."""
    return askable.send(to, subject, body, key=call.key, timeout=call.remaining())


@dk.tool(timeout=3.0)
def send_opaque(call: dk.Call, to: str, subject: str, body: str) -> dict:
    """Send a mail over a service that promises nothing."""
    return silent.send(to, subject, body, timeout=call.remaining())


@dk.tool(timeout=3.0, on_unknown="resend")
def send_blindly(call: dk.Call, to: str, subject: str, body: str) -> dict:
    """Send a mail over a service that promises nothing, and again if in doubt."""
    return silent.send(to, subject, body, timeout=call.remaining())


@dk.tool(effect="none")
def look_up(call: dk.Call, customer_id: int) -> dict:
    """Read something: no outside effect, may run again."""
    return {"id": customer_id, "vip": customer_id == 7}


@dk.workflow(version=1)
def welcome(ctx: dk.Context, customer: dict) -> dict:
    """One step and one keyed mail, within a turn."""
    draft = ctx.step("draft", write_draft, customer)
    with ctx.turn("send", timeout=20):
        return ctx.call(
            send_idempotent,
            customer["email"],
            draft["subject"],
            draft["body"],
            key=f"welcome:{customer['id']}",
        )


@dk.workflow(version=1)
def ask(ctx: dk.Context, customer: dict) -> dict:
    """A read, and a mail over a service that can be asked."""
    found = ctx.call(look_up, customer["id"], key=f"look:{customer['id']}")
    draft = ctx.step("draft", write_draft, customer)
    subject = "VIP " + draft["subject"] if found["vip"] else draft["subject"]
    return ctx.call(
        send_queryable, customer["email"], subject, draft["body"], key=f"ask:{customer['id']}"
    )


@dk.workflow(version=1)
def shrug(ctx: dk.Context, customer: dict) -> dict:
    """A mail over a service that promises nothing."""
    draft = ctx.step("draft", write_draft, customer)
    return ctx.call(
        send_opaque,
        customer["email"],
        draft["subject"],
        draft["body"],
        key=f"shrug:{customer['id']}",
    )


@dk.workflow(version=1)
def guess(ctx: dk.Context, customer: dict) -> dict:
    """The wrong choice, on purpose: an unknown outcome is sent again without any promise."""
    draft = ctx.step("draft", write_draft, customer)
    return ctx.call(
        send_blindly,
        customer["email"],
        draft["subject"],
        draft["body"],
        key=f"guess:{customer['id']}",
    )


@dk.workflow(version=1)
def three_mails(ctx: dk.Context, customer: dict) -> list:
    """The same step and the same tool three times: occurrences count."""
    sent = []
    for number in range(3):
        draft = ctx.step("draft", write_draft, customer)
        sent.append(
            ctx.call(
                send_idempotent,
                customer["email"],
                draft["subject"],
                f"{draft['body']}, part {number}",
                key=f"part:{customer['id']}:{number}",
            )
        )
    return sent


@dk.workflow(version=1)
def sends_in_a_step(ctx: dk.Context, customer: dict) -> dict:
    """An anti-pattern: an outside effect hidden in a step, where nobody looks for it."""
    return ctx.step("draft and send", silent.send, customer["email"], "Hi", "hidden in a step")


class Deaf:
    """A world that can be counted, and neither listened to nor looked into."""

    def __init__(self, inner: Mailbox) -> None:
        self.inner = inner
        self.clock: Any = None

    def fresh(self, folder: Any) -> None:
        """Move."""
        self.inner.clock = self.clock
        self.inner.fresh(folder)

    def effects(self) -> list:
        """Count."""
        return self.inner.effects()


#: Workflows that must survive every crash point, and the world that each one changes.
CORPUS = {welcome: deduping, ask: askable, shrug: silent, three_mails: deduping}

#: Workflows that are wrong on purpose, likewise.
BROKEN = {guess: silent, sends_in_a_step: silent}


def one_mail(service) -> dk.Workflow:
    """The smallest workflow that can send twice: one mail over ``service``, under one key."""

    @dk.tool(effect="idempotent")
    def send(call, to):
        return service.send(to, "s", "b", key=call.key)

    @dk.workflow
    def plain(ctx, to):
        return ctx.call(send, to, key="k")

    return plain

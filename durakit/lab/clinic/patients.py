# ruff: noqa: ANN001, ANN201, ARG001, BLE001, D103, S112
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
"""The patients of the clinic: broken agents, written as they stand in a cell of lesson 09.

One for each anti-pattern of chapter 21.8, one with two faults that the learner has not seen, and
one that neither the sweep nor lint can diagnose. Each has that illness and no other. They are
wrong on purpose; do not copy them. Here they can be swept and killed, and shown by their source,
so they carry no annotations and no docstrings.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import BaseModel

import durakit as dk
from durakit.lab.exercises import fresh_folder
from durakit.mail import Mailbox

# -- the world -------------------------------------------------------------------------------------


class Model:
    """A language model that always says the same, and writes a bill. No crash resets it."""

    def __init__(self) -> None:
        self.bill: list[int] = []

    def write(self, number: int) -> str:
        """Write a part of a text."""
        self.bill.append(number)
        return f"Part {number}."

    def answer(self, number: int) -> str:
        """Answer a complaint; the first draft is not polite enough."""
        self.bill.append(number)
        return "No." if number == 1 else "We are sorry, and pay it back."


class Town:
    """A world of two services: the post, which knows keys, and the bank, which can be asked."""

    def __init__(self, post: Mailbox, bank: Mailbox) -> None:
        self._both = {"post": post, "bank": bank}
        # A home from the start: a sweep takes a world there when it has done with it.
        self.fresh(fresh_folder("town"))

    def fresh(self, folder: str | os.PathLike[str]) -> None:
        """Live in ``folder`` from now on."""
        self.folder = Path(folder)
        for name, service in self._both.items():
            service.fresh(self.folder / name)

    def effects(self) -> list[dict[str, Any]]:
        """Both ledgers, one after the other."""
        return [row for service in self._both.values() for row in service.effects()]

    def listen(self, hook: Callable[[str, str | None], object] | None) -> None:
        """Call ``hook`` at what either of them does."""
        for service in self._both.values():
            service.listen(hook)

    @property
    def clock(self) -> Any:
        """The one clock of the town."""
        return self._both["post"].clock

    @clock.setter
    def clock(self, clock: Any) -> None:
        for service in self._both.values():
            service.clock = clock


#: It remembers a key for 24 hours.
post = Mailbox(clock=dk.ManualClock())
#: It knows no keys and can be asked: 20 s after a request it has acted, or never will.
bank = Mailbox(profile="queryable", clock=dk.ManualClock(), name="pay")
town = Town(post, bank)
model = Model()

ADA = "ada@example.org"
BOSS = "boss@example.org"


# -- 1: a checkpoint only at the end ---------------------------------------------------------------


class Trip(BaseModel):
    """What the travel agent knows."""

    days: list[str] = []


@dk.tool(effect="idempotent", window=86_400, timeout=3.0)
def send_trip(call, to, text):
    return post.send(to, "Your trip", text, key=call.key, timeout=call.remaining())


@dk.machine(state=Trip, save=dk.only_at_the_end)
def travel_agent(ctx, state):
    if len(state.days) < 3:
        day = ctx.step("model", model.write, len(state.days) + 1)
        return Trip(days=[*state.days, day])
    with ctx.turn("send", timeout=10):
        ctx.call(send_trip, ADA, " ".join(state.days), key="trip:42")
    return dk.Done(state)


# -- 2: "there is a checkpointer, so nothing happens twice" ----------------------------------------


class Order(BaseModel):
    """What the shopper knows."""

    text: str = ""


@dk.tool(on_unknown="resend", timeout=3.0)
def send_order(call, to, text):
    return post.send(to, "Order", text, timeout=call.remaining())


@dk.machine(state=Order)  # a checkpoint after every transition
def shopper(ctx, state):
    if not state.text:
        return Order(text=ctx.step("model", model.write, 1))
    with ctx.turn("send", timeout=10):
        ctx.call(send_order, "shop@example.org", state.text, key="order:42")
    return dk.Done(state)


# -- 3: everything is retried, and nothing ---------------------------------------------------------


@dk.tool(effect="idempotent", window=86_400, timeout=5.0, retry=dk.Retry(attempts=1))
def send_receipt(call, to, text):
    return post.send(to, "Receipt", text, key=call.key, timeout=call.remaining())


@dk.tool(timeout=60.0)
def send_copy(call, to, text):
    for _ in range(5):
        try:
            return post.send(to, "Copy", text, timeout=5)
        except Exception:
            continue
    return None


@dk.workflow
def bookkeeper(ctx, order):
    with ctx.turn("receipt", timeout=60):
        ctx.call(send_receipt, order["email"], order["text"], key=f"receipt:{order['id']}")
    with ctx.turn("copy", timeout=60):
        ctx.call(send_copy, order["books"], order["text"], key=f"copy:{order['id']}")


# -- 4: one layer of timeout -----------------------------------------------------------------------


@dk.tool(effect="idempotent", window=86_400)
def send_news(call, to, text):
    return post.send(to, "News", text, key=call.key, timeout=call.remaining())


@dk.workflow
def newsletter(ctx, readers):
    for reader in readers:
        ctx.call(send_news, reader["email"], "News 7", key=f"news-7:{reader['id']}")


# -- 5: a new key for each attempt -----------------------------------------------------------------


def draw_number() -> str:
    """Draw a number that nobody has drawn before."""
    return uuid4().hex


@dk.tool(effect="idempotent", window=86_400, timeout=3.0)
def send_invoice(call, to, text):
    key = f"{call.key}:{call.attempt}"
    return post.send(to, "Invoice", text, key=key, timeout=call.remaining())


@dk.workflow
def cashier(ctx, order):
    number = ctx.step("number", draw_number)
    with ctx.turn("send", timeout=10):
        ctx.call(send_invoice, order["email"], order["text"], key=f"invoice:{number}")


# -- 6: the one that the learner has not seen ------------------------------------------------------


def ask_bank(call):
    found = bank.find(call.key)
    return dk.Absent if found is None else dk.Found(found)


@dk.tool(effect="queryable", probe=ask_bank, settles_after=0, timeout=3.0)
def pay_back(call, account, euros):
    return bank.send(account, "Refund", str(euros), key=call.key, timeout=call.remaining())


@dk.tool(effect="idempotent", window=86_400, timeout=3.0)
def write_to(call, to, subject, text):
    return post.send(to, subject, text, key=call.key, timeout=call.remaining())


def draft(ctx, order):
    text, asked = "", 0
    while "sorry" not in text and asked < order["budget"]:
        asked += 1
        text = ctx.step("model", model.answer, asked)
    return text


@dk.workflow
def refund(ctx, order):
    text = draft(ctx, order)
    ctx.step("ask", post.send, BOSS, "May I?", text)
    if ctx.wait_for("approval") != "yes":
        return "refused"
    with ctx.turn("pay and tell", timeout=90):
        ctx.call(pay_back, order["account"], order["euros"], key=f"pay:{order['id']}")
        ctx.call(write_to, order["email"], "Refund", text, key=f"tell:{order['id']}")
    return "paid"


# -- 7: what neither the sweep nor lint can see ----------------------------------------------------


@dk.tool(effect="idempotent", timeout=3.0)  # no window: the key is remembered for ever
def send_reminder(call, to, text):
    return post.send(to, "Reminder", text, key=call.key, timeout=call.remaining())


@dk.workflow
def reminder(ctx, order):
    with ctx.turn("send", timeout=10):
        ctx.call(send_reminder, order["email"], order["text"], key=f"reminder:{order['id']}")

"""What the tests of lint ask of a report, and a tool and workflows to lint."""

from collections.abc import Callable

import shop

import durakit as dk

post = shop.deduping


def kinds(subject, rule: str) -> list[str]:
    """Return the kinds of the rows of a rule."""
    return [row.kind for row in dk.lint(subject).rows if row.rule == rule]


def found(subject, rule: str) -> list[str]:
    """Return what a rule has found, in words."""
    return [row.finding for row in dk.lint(subject).found if row.rule == rule]


def unseen(subject, rule: str) -> list[str]:
    """Return what a rule cannot see, in words."""
    return [row.finding for row in dk.lint(subject).unseen if row.rule == rule]


@dk.tool(effect="idempotent", window=86_400, timeout=3.0)
def good(call, to, text):
    """Send a mail as it should be sent."""
    return post.send(to, "Hi", text, key=call.key, timeout=call.remaining())


def calling(key_of: Callable, name: str = "lint calls") -> dk.Workflow:
    """Return a workflow whose only key is what ``key_of(ctx, order)`` makes."""

    @dk.workflow(name=name)
    def calls(ctx, order):
        with ctx.turn("send", timeout=10):
            ctx.call(good, order["email"], "text", key=key_of(ctx, order))

    return calls


def sending(body: Callable, **declared) -> dk.Tool:
    """Declare a tool of a function."""
    return dk.tool(body, **{"effect": "idempotent", "timeout": 3.0, **declared})


def keyless(call, to):
    """Send without a key."""
    return post.send(to, "a", "b")


def deliver(of, to):
    """Send with the key."""
    return post.send(to, "a", "b", key=of.key)

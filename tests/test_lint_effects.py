"""Lint: effects outside of a call, in a step or in a bare line."""

import shop
from lint_checks import found, good, kinds, post, unseen

import durakit as dk
from durakit.linting import HIDDEN


def sends(to):
    """Call a tool bare."""
    return good(None, to, "x")


def writes(to):
    """Nothing outside."""
    return f"Dear {to}".strip()


def test_a_tool_that_runs_bare_is_found() -> None:
    """In a step, by name or in a lambda or a helper or its function; and in a bare line."""

    @dk.workflow(name="lint bare")
    def bare(ctx, to):
        ctx.step("by name", good, None, to, "x")
        ctx.step("its function", good.function, None, to, "x")
        ctx.step("a lambda", lambda: good(None, to, "x"))
        ctx.step("a helper", sends, to)
        good(None, to, "x")

    words = found(bare, HIDDEN)
    assert len(words) == 5
    assert all("runs the tool good bare" in each for each in words)


def test_a_step_that_computes_is_clear() -> None:
    """Near misses: a plain function, a builtin, a function that only takes a tool's result."""

    @dk.workflow(name="lint computes")
    def computes(ctx, to):
        text = ctx.step("write", writes, to)
        ctx.step("count", len, text)
        with ctx.turn("send", timeout=10):
            sent = ctx.call(good, to, text, key="a")
        return ctx.step("note", lambda: writes(sent["id"]))

    assert kinds(computes, HIDDEN) == ["clear"] * 3


def test_a_client_in_a_step_is_asked_about() -> None:
    """Whether an object's method touches the world is not written in the workflow."""

    @dk.workflow(name="lint asks")
    def asks(ctx, to, which):
        ctx.step("same client", post.send, to, "a", "b")
        ctx.step("chosen later", which, to)
        shop.silent.send(to, "a", "b")
        with ctx.turn("send", timeout=10):
            ctx.call(good, to, "x", key="a")

    words = unseen(asks, HIDDEN)
    assert "step 'same client' calls post.send, as a tool does" in words[0]
    assert "which is chosen when it runs" in words[1]
    assert words[2].startswith("a bare line calls shop.silent.send: does that")
    assert found(asks, HIDDEN) == []


def test_a_request_by_a_library_is_found() -> None:
    """A step that posts by httpx is no step."""
    import httpx

    @dk.workflow(name="lint posts")
    def posts(ctx, url):
        ctx.step("post", httpx.post, url)
        ctx.step("read", lambda: httpx.get(url))

    assert len(found(posts, HIDDEN)) == 1


class Sender:
    """An object that is called, and sends."""

    def __call__(self, to):
        """Send by the service that the tools use."""
        return post.send(to, "a", "b")


class Silent:
    """An object that is called, and computes."""

    def __call__(self, to):
        """Answer the same."""
        return to


sender, silent = Sender(), Silent()
compiled = eval("lambda to: to")  # noqa: S307 - a function without source


def deep(to):
    """Send at the end of a chain, by a function without source."""
    return compiled(to)


def test_what_reaches_out_by_pythons_own_modules_is_asked_about() -> None:
    """A process, a file, a mail: lint does not know what they do, and does not call them clear."""
    import os
    import pathlib
    import smtplib
    import subprocess

    @dk.workflow(name="lint reaches out")
    def reaches(ctx, to):
        ctx.step("process", subprocess.run, ["mail", to])
        ctx.step("shell", lambda: os.system(to))  # noqa: S605 - never run
        ctx.step("file", lambda: open(to, "w"))  # noqa: SIM115, PTH123 - never run
        ctx.step("path", lambda: pathlib.Path(to).write_text("x"))
        ctx.step("smtp", lambda: smtplib.SMTP(to))

    words = unseen(reaches, HIDDEN)
    assert len(words) == 5
    assert kinds(reaches, HIDDEN) == ["cannot see"] * 5


def test_what_a_step_runs_out_of_sight_is_not_called_clear() -> None:
    """An object that was just made, one that is called, a function without source, an import."""

    @dk.workflow(name="lint out of sight")
    def hides(ctx, to):
        from shop import write_draft

        ctx.step("just made", lambda: shop.Mailbox().send(to, "a", "b"))
        ctx.step("called", sender, to)
        ctx.step("compiled", compiled, to)
        ctx.step("deep", deep, to)
        ctx.step("imported", write_draft, to)

    assert kinds(hides, HIDDEN) == ["cannot see"] * 5


def test_an_object_that_is_called_is_looked_into() -> None:
    """A near miss: what it does is written, and it computes."""

    @dk.workflow(name="lint called object")
    def calls(ctx, to):
        ctx.step("called", silent, to)
        ctx.step("text", lambda: str(to).strip().upper())

    assert kinds(calls, HIDDEN) == ["clear"] * 2

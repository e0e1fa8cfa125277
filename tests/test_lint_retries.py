"""Lint: what is retried, what is unknown, what has a limit, and where a machine is saved."""

import contextlib
import functools
import time

import pytest
from lint_checks import deliver, found, good, keyless, kinds, post, sending, unseen
from pydantic import BaseModel

import durakit as dk
from durakit.linting import AT_THE_END, BLIND, EVERYTHING, NOTHING, ONE_LIMIT, tools_of

# -- a checkpoint only at the end ------------------------------------------------------------------


def never(before, after):
    """Never before the end."""
    return False


def always(before, after):
    """After every transition."""
    return True


def sometimes(before, after):
    """Where something was said."""
    return len(after.text) > len(before.text)


class State(BaseModel):
    """A machine's state."""

    text: str = ""


@pytest.mark.parametrize(
    ("save", "kind"),
    [
        (dk.only_at_the_end, "found"),
        (never, "found"),
        (lambda before, after: False, "found"),
        (None, "clear"),
        (always, "clear"),
        (sometimes, "cannot see"),
        (eval("lambda before, after: False"), "cannot see"),  # noqa: S307
        (functools.partial(sometimes), "cannot see"),
    ],
    ids=["only_at_the_end", "never", "a lambda", "every", "always", "sometimes", "eval", "partial"],
)
def test_where_a_machine_is_saved(save, kind) -> None:
    """Never is found, always is clear, and a rule over two states is not judged."""
    given = {} if save is None else {"save": save}

    @dk.machine(state=State, name="lint saves", **given)
    def saves(ctx, state):
        return dk.Done(state)

    assert kinds(saves, AT_THE_END) == [kind]


# -- what is unknown, and what is retried ----------------------------------------------------------


def probe(call):
    """Ask about the key."""
    return dk.Absent


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ({"on_unknown": "resend"}, "found"),
        ({"effect": "queryable", "probe": probe, "on_unknown": "resend"}, "found"),
        ({"effect": "idempotent", "on_unknown": "resend"}, "clear"),
        ({}, "clear"),
        ({"on_unknown": "park"}, "clear"),
        ({"effect": "none"}, "clear"),
    ],
)
def test_an_unknown_outcome_that_is_sent_again(declared, kind) -> None:
    """Without a promise it is found; where the service knows keys it is what the contract says."""
    assert kinds(dk.tool(deliver, name="send", **declared), BLIND) == [kind]


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ({"effect": "none", "retry": dk.Retry(attempts=1)}, "found"),
        ({"effect": "idempotent", "retry": dk.Retry(attempts=1)}, "found"),
        ({"effect": "idempotent"}, "clear"),
        ({"effect": "opaque", "retry": dk.Retry(attempts=1)}, "clear"),
        ({}, "clear"),
    ],
)
def test_nothing_is_retried_only_where_asking_again_would_be_safe(declared, kind) -> None:
    """An opaque tool has one attempt, and rightly."""
    assert kinds(dk.tool(deliver, name="send", **declared), NOTHING) == [kind]


def test_attempts_of_an_opaque_tool_are_asked_about_and_with_resend_found() -> None:
    """Durakit tries it again only after a refusal; whether that is proof, the service knows."""
    retry = dk.Retry(attempts=5)
    assert kinds(dk.tool(deliver, name="send", retry=retry), EVERYTHING)[0] == "cannot see"
    blind = dk.tool(deliver, name="send", retry=retry, on_unknown="resend")
    assert kinds(blind, EVERYTHING)[0] == "found"


def loops(call, to):
    """Five times, whatever comes."""
    for _ in range(5):
        try:
            return post.send(to, "a", "b", key=call.key)
        except Exception:  # noqa: S112
            continue
    return None


def loops_until(call, to):
    """Until it works, with a last word that may be an error."""
    tries = 0
    while True:
        try:
            return post.send(to, "a", "b", key=call.key)
        except:  # noqa: E722
            tries += 1
            if tries == 5:
                raise
            time.sleep(1)


def after_a_timeout(call, to):
    """No answer came, so once more."""
    for attempt in range(3):
        try:
            return post.send(to, "a", "b", key=f"{call.key}:{attempt}")
        except (TimeoutError, ValueError):
            print("once more")
    return None


def second_try(call, to):
    """A second request in the handler."""
    try:
        return post.send(to, "a", "b", key=call.key)
    except Exception:
        return post.send(to, "a", "b", key=call.key)


@pytest.mark.parametrize("body", [loops, loops_until, after_a_timeout, second_try])
def test_a_hand_made_retry_in_a_tool_is_found(body) -> None:
    """For, while, a bare except, a second try in the handler."""
    assert len(found(sending(body, name=body.__name__), EVERYTHING)) == 1
    assert found(sending(body, name=body.__name__, effect="none"), EVERYTHING) == []


def each_recipient(call, recipients):
    """Other work in each turn of the loop."""
    failed = []
    for to in recipients:
        try:
            post.send(to, "a", "b", key=f"{call.key}:{to}")
        except Exception:
            failed.append(to)
    return failed


def lets_it_out(call, to):
    """Any error leaves the loop."""
    for _ in range(3):
        try:
            return post.send(to, "a", "b", key=call.key)
        except Exception as error:
            raise dk.NotExecuted("no") from error
    return None


def one_kind(call, to):
    """Only what was certainly not executed."""
    for _ in range(3):
        try:
            return post.send(to, "a", "b", key=call.key)
        except dk.NotExecuted:
            continue
    return None


def parses(call, to):
    """Nothing in the loop reaches out."""
    for form in range(3):
        try:
            number = int(to[form])
        except Exception:  # noqa: S112
            continue
    return post.send(str(number), "a", "b", key=call.key)


def governed(call, to):
    """The kit's own retry, which classifies and counts."""
    return dk.retry_call(post.send, to, "a", "b", key=call.key, effect="idempotent")


@pytest.mark.parametrize("body", [each_recipient, lets_it_out, one_kind, parses, governed])
def test_a_loop_that_is_no_retry_is_not_accused(body) -> None:
    """Near misses: other work each time, an error that leaves, a narrow except, no request."""
    assert found(sending(body, name=body.__name__), EVERYTHING) == []


def test_a_workflow_that_tries_again_whatever_it_is_told_is_found() -> None:
    """The same key in each turn of the loop; and a second call in the handler."""

    @dk.workflow(name="lint retries")
    def retries(ctx, order):
        for _ in range(3):
            try:
                ctx.call(good, order, "x", key="one")
                break
            except Exception:
                print("again")
        try:
            ctx.call(good, order, "x", key="two")
        except Exception:
            ctx.call(good, order, "x", key="two again")

    assert len(found(retries, EVERYTHING)) == 2


def test_a_workflow_that_skips_what_failed_is_not_accused() -> None:
    """Each turn is another operation; and the other routes of lesson 04 are narrow."""
    other = dk.tool(good.function, effect="idempotent", timeout=3.0, name="other")

    @dk.workflow(name="lint skips")
    def skips(ctx, orders):
        for order in orders:
            try:
                ctx.call(good, order, "x", key=f"a:{order}")
            except Exception:  # noqa: S112
                continue
        for route in (good, other):
            try:
                return ctx.call(route, "to", "x", key="b")
            except dk.NotExecuted:
                continue
        return None

    assert found(skips, EVERYTHING) == []


def test_a_decorator_that_may_retry_is_asked_about() -> None:
    """What is wrapped around a tool was not looked at, and the report says so."""

    @functools.wraps(keyless)
    def wrapped(call, to):
        return keyless(call, to)

    assert any("wrapped" in words for words in unseen(sending(wrapped), EVERYTHING))
    assert not any("wrapped" in words for words in unseen(sending(keyless), EVERYTHING))


# -- limits ----------------------------------------------------------------------------------------


def test_a_tool_without_a_limit_and_a_call_without_a_turn_are_found() -> None:
    """Two of three layers; of the third one nothing is written in the code."""
    bare = dk.tool(good.function, effect="idempotent", name="bare")

    @dk.workflow(name="lint no limits")
    def none(ctx, orders):
        with ctx.turn("first", timeout=10):
            ctx.call(bare, "to", "x", key="a")
        ctx.call(bare, "to", "x", key="b")

    report = dk.lint(none)
    assert [row.place for row in report.found] == ["none", "bare"]
    assert "1 of 2 call(s) in no ctx.turn" in report.found[0].finding
    assert [row.rule for row in report.unseen] == [ONE_LIMIT]


def test_a_call_in_a_helper_stands_in_the_turn_of_its_caller() -> None:
    """A near miss: the turn is written one function above."""

    def inside(own, order):
        return own.call(good, order, "x", key="a")

    @dk.workflow(name="lint turns")
    def turns(ctx, order):
        with ctx.turn("send", timeout=10):
            return inside(ctx, order)

    assert found(turns, ONE_LIMIT) == []
    assert tools_of(turns) == [good]


def test_a_turn_that_no_with_opens_is_asked_about_and_no_call_is_accused() -> None:
    """An exit stack may hold the turn around each call; lint cannot tell which."""

    @dk.workflow(name="lint stacked turn")
    def stacked(ctx, to):
        with contextlib.ExitStack() as stack:
            stack.enter_context(ctx.turn("send", timeout=10))
            ctx.call(good, to, "x", key="a")

    assert found(stacked, ONE_LIMIT) == []
    assert "not opened by a `with`" in unseen(stacked, ONE_LIMIT)[0]


def starred(call, to):
    """Catch a group."""
    for _ in range(3):
        try:
            return post.send(to, "a", "b", key=call.key)
        except* Exception:
            print("once more")
    return None


def suppressed(call, to):
    """Without a word of `try`."""
    sent = None
    while sent is None:
        with contextlib.suppress(Exception):
            sent = post.send(to, "a", "b", key=call.key)
    return sent


def suppressed_once(call, to):
    """Near miss: no loop around it."""
    with contextlib.suppress(Exception):
        return post.send(to, "a", "b", key=call.key)


@pytest.mark.parametrize(("body", "count"), [(starred, 1), (suppressed, 1), (suppressed_once, 0)])
def test_each_way_to_swallow_an_error_in_a_loop_is_seen(body, count) -> None:
    """`except*` and `contextlib.suppress` are handlers too."""
    assert len(found(sending(body, name=body.__name__), EVERYTHING)) == count


def again(function):
    """Call it until it works."""
    while True:
        try:
            return function()
        except Exception:
            print("again")


def in_a_lambda(call, to):
    """The request is handed to a helper that retries."""
    return again(lambda: post.send(to, "a", "b", key=call.key))


def in_a_function(call, to):
    """By name."""

    def request():
        return post.send(to, "a", "b", key=call.key)

    return again(request)


def decorated(call, to):
    """By a decorator."""

    @again
    def sent():
        return post.send(to, "a", "b", key=call.key)

    return sent


def in_a_function_of_its_own(call, to):
    """Near miss: called where it is written."""

    def request():
        return post.send(to, "a", "b", key=call.key)

    return request()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (in_a_lambda, ["handed to again"]),
        (in_a_function, ["handed to again"]),
        (decorated, ["decorated by again"]),
        (in_a_function_of_its_own, []),
    ],
)
def test_a_request_that_is_handed_to_somebody_may_be_made_again(body, words) -> None:
    """Who gets the function may call it twice; lint says so and does not call it clear."""
    told = unseen(sending(body, name=body.__name__), EVERYTHING)
    assert len(told) == len(words)
    assert all(word in line for word, line in zip(words, told, strict=True))


def by_the_way(before, after):  # noqa: RET503 - that is the point
    """Say True, or nothing at all, which is no."""
    if after.text:
        return True


def fails_first(before, after):
    """Raise, or say nothing."""
    raise ValueError(before)


def generates(before, after):
    """Hand back a generator, which is true, whatever it holds."""
    yield False


async def waits(before, after):
    """Hand back a coroutine."""
    return False


def with_one_inside(before, after):
    """Never; a function inside says something else."""

    def inner():
        return True

    return inner is None and False


def never_with_one_inside(before, after):
    """Never: what the function inside returns is another matter."""

    def inner():
        return True

    before.append(inner)
    return False


@pytest.mark.parametrize(
    ("save", "kind"),
    [
        (by_the_way, "cannot see"),
        (fails_first, "cannot see"),
        (generates, "cannot see"),
        (waits, "cannot see"),
        (with_one_inside, "cannot see"),
        (never_with_one_inside, "found"),
    ],
)
def test_a_save_place_is_judged_by_all_that_it_may_answer(save, kind) -> None:
    """A way out without a word is a no; a generator or coroutine is no answer at all."""

    @dk.machine(state=State, name="lint answers", save=save)
    def saves(ctx, state):
        return dk.Done(state)

    assert kinds(saves, AT_THE_END) == [kind]

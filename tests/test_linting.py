"""Lint: each rule finds its mistake, stays silent beside it, and says where it cannot see."""

import functools
import hashlib
import random
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import shop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

import durakit as dk
from durakit.linting import (
    AT_THE_END,
    BLIND,
    EVERYTHING,
    HIDDEN,
    NEW_KEY,
    NO_KEY,
    NOTHING,
    ONE_LIMIT,
    RULES,
    WHICH_TOOL,
    Report,
    tools_of,
)
from durakit.mail import Mailbox

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


# -- what a report is ------------------------------------------------------------------------------


def test_a_good_workflow_has_no_finding_and_one_question() -> None:
    """What is not written in the code, the limit of the run, is asked for and not guessed."""
    report = dk.lint(shop.welcome)
    assert report.found == ()
    assert [row.rule for row in report.unseen] == [ONE_LIMIT]
    assert "deadline=" in report.unseen[0].finding
    assert {row.rule for row in report.rows} == set(RULES) - {WHICH_TOOL}


def test_every_row_says_what_was_looked_at() -> None:
    """Also a clear one: else nobody knows what it is worth."""
    for workflow in (*shop.CORPUS, *shop.BROKEN):
        for row in dk.lint(workflow).rows:
            assert row.looked_at
            assert bool(row.finding) == (row.kind != "clear")
            assert row.rule in RULES


def test_the_text_has_mark_rule_place_line_and_finding() -> None:
    """And the table the same columns; a row without a line has none there."""
    report = dk.lint(shop.guess)
    (line,) = [
        part for part in report.text().splitlines() if "send_blindly" in part and "✗" in part
    ]
    assert "an unknown outcome is sent again" in line
    assert "on_unknown=resend" in line
    assert report.text().startswith("lint of workflow guess: 2 found")
    table = report.table()
    assert list(table.columns) == ["rule", "place", "line", "kind", "finding", "looked_at"]
    assert len(table) == len(report.rows)
    assert table["line"].isna().any()
    assert repr(report) == f"<{report.summary()}>"


def test_the_line_is_the_one_in_the_file() -> None:
    """An editor can go there."""
    (row,) = [row for row in dk.lint(shop.guess).found if row.rule == ONE_LIMIT]
    lines = Path(shop.__file__).read_text(encoding="utf-8").splitlines()
    assert "ctx.call" in lines[row.line - 1]


def test_an_empty_report_can_be_shown() -> None:
    """A report without rows is a report."""
    empty = Report("workflow nothing", ())
    assert empty.text() == "lint of workflow nothing: 0 found, 0 clear, 0 cannot be seen"
    assert len(empty.table()) == 0


@pytest.mark.parametrize("thing", [None, 7, "welcome", shop.write_draft, dict, object(), [good]])
def test_what_is_neither_workflow_nor_machine_nor_tool_is_refused(thing) -> None:
    """The message names the field and the three decorators."""
    with pytest.raises(dk.InvalidField, match=r"subject.*@dk.workflow.*@dk.machine.*@dk.tool"):
        dk.lint(thing)


# -- a new key for each attempt --------------------------------------------------------------------


def stamp(order):
    """Make a key that no retry can make again."""
    return f"{order['id']}:{time.time()}"


def stable(order):
    """Make the same key of the same order."""
    return hashlib.sha256(f"order:{order['id']}".encode()).hexdigest()


CHANGING = {
    "uuid4": calling(lambda ctx, order: f"a:{uuid.uuid4()}"),
    "a clock": calling(lambda ctx, order: stamp(order)),
    "random": calling(lambda ctx, order: str(random.random())),
    "id()": calling(lambda ctx, order: str(id(order))),
    "hash()": calling(lambda ctx, order: f"a:{hash(order['email'])}"),
    "a helper": calling(lambda ctx, order: "-".join(["a", stamp(order)])),
}
STABLE = {
    "a business name": calling(lambda ctx, order: f"welcome:{order['id']}"),
    "a saved draw": calling(lambda ctx, order: f"a:{ctx.step('draw', uuid.uuid4)}"),
    "a content hash": calling(lambda ctx, order: stable(order)),
    "uuid5": calling(lambda ctx, order: str(uuid.uuid5(uuid.NAMESPACE_URL, order["id"]))),
    "a constant": calling(lambda ctx, order: "the only one"),
    "a method of a text": calling(lambda ctx, order: order["email"].strip().lower()),
}


@pytest.mark.parametrize("name", CHANGING)
def test_a_key_that_changes_is_found_through_a_helper(name) -> None:
    """The key is made in a function that the workflow calls; lint reads that, too."""
    assert found(CHANGING[name], NEW_KEY)


@pytest.mark.parametrize("name", STABLE)
def test_a_key_that_stays_is_not_accused(name) -> None:
    """Near misses: saved draws, hashes of content and version-5 uuids are the same each time."""
    assert found(STABLE[name], NEW_KEY) == []
    assert unseen(STABLE[name], NEW_KEY) == []


def test_a_key_is_followed_through_names_and_loops() -> None:
    """Assigned before, drawn from a loop, imported inside the function."""

    @dk.workflow(name="lint follows")
    def follows(ctx, orders):
        from time import time_ns as now

        mark = now()
        for order in orders:
            key = f"{order}:{mark}"
            ctx.call(good, order, "x", key=key)

    assert found(follows, NEW_KEY) == ["now() gives another value each time"]


def test_the_attempt_in_a_workflows_key_is_found() -> None:
    """A loop's own counter, named as what it is."""

    @dk.workflow(name="lint counts attempts")
    def counts(ctx, order):
        for attempt in range(3):
            ctx.call(good, order, "x", key=f"a:{attempt}")

    assert found(counts, NEW_KEY) == ["attempt is another one each time"]


def test_a_key_made_elsewhere_cannot_be_seen() -> None:
    """A function without source, a value's own method, a star: asked, not accused."""
    made = eval("lambda order: 'a'")  # noqa: S307 - a function without source

    @dk.workflow(name="lint elsewhere")
    def elsewhere(ctx, order, options):
        ctx.call(good, "to", "x", key=made(order))
        ctx.call(good, "to", "x", key=order.own_key())
        ctx.call(good, "to", "x", key=f"{order['tool_call_id']}:{order.tool_call_id}")
        ctx.call(good, "to", "x", **options)

    assert found(elsewhere, NEW_KEY) == []
    assert unseen(elsewhere, NEW_KEY) == [
        "how made makes it",
        "how order.own_key makes it",
        "whether order.tool_call_id is the same in every recovery",
        "its key is not written at the call",
    ]


def sending(body: Callable, **declared) -> dk.Tool:
    """Declare a tool of a function."""
    return dk.tool(body, **{"effect": "idempotent", "timeout": 3.0, **declared})


def joined(call, to):
    """The attempt within the key, by name."""
    key = f"{call.key}:{call.attempt}"
    return post.send(to, "a", "b", key=key)


def in_a_header(call, to):
    """The attempt within a header."""
    headers = {"Idempotency-Key": call.key + str(call.attempt)}
    return post.send(to, "a", "b", headers=headers)


def by_position(call, to):
    """The key by position, joined with something new."""
    return post.send(to, "a", "b", f"{call.key}/{uuid.uuid4()}")


def of_its_own(call, to):
    """A key of the tool's own, which is another one each time."""
    return post.send(to, call.key, "b", idempotency_key=uuid.uuid4().hex)


def fenced(call, to):
    """The fencing token changes with each life."""
    return post.send(to, "a", "b", key=f"{call.key}:{call.fence}")


def made_by_a_helper(call, to):
    """The key is made by a function that gets call."""
    return post.send(to, "a", "b", key=new_key(call))


def new_key(of):
    """A key with the attempt in it."""
    return f"{of.key}:{of.attempt}"


@pytest.mark.parametrize(
    "body", [joined, in_a_header, by_position, of_its_own, fenced, made_by_a_helper]
)
def test_a_tool_that_sends_another_key_each_time_is_found(body) -> None:
    """By name, by position, in a header, in a helper; once, at its line."""
    assert len(found(sending(body, name=body.__name__), NEW_KEY)) == 1


def only_logs(call, to):
    """The attempt in a log, and in a pause; the key is sent as it is."""
    print(f"{call.key}, attempt {call.attempt} at {time.time()}")
    if call.attempt > 1:
        print("once more")
    return post.send(to, "a", "b", key=call.key)


def sorts(call, to):
    """A key= that is no operation's."""
    mixed = sorted(to, key=lambda name: random.random())
    return post.send(mixed[-1], str(time.time()), "b", key=call.key)


@pytest.mark.parametrize("body", [only_logs, sorts])
def test_the_attempt_beside_the_key_is_not_accused(body) -> None:
    """Near misses: in a log, in a condition, in another argument, in the key= of a sort."""
    tool = sending(body, name=body.__name__)
    assert found(tool, NEW_KEY) == []
    assert unseen(tool, NEW_KEY) == []


# -- the key does not reach the service ------------------------------------------------------------


def keyless(call, to):
    """Send without a key."""
    return post.send(to, "a", "b")


def passes_it_on(call, to):
    """A helper gets call, and sends the key."""
    return deliver(call, to)


def deliver(of, to):
    """Send with the key."""
    return post.send(to, "a", "b", key=of.key)


def test_an_idempotent_tool_that_never_uses_its_key_is_found() -> None:
    """It declares a promise that the service cannot keep."""
    assert found(sending(keyless), NO_KEY) == ["declared idempotent, and call.key is never used"]
    assert found(sending(passes_it_on), NO_KEY) == []
    assert kinds(dk.tool(keyless, timeout=3.0), NO_KEY) == []


def test_a_call_that_is_handed_to_what_has_no_source_cannot_be_seen() -> None:
    """A client from elsewhere may send the key, or not."""
    client = eval("lambda call, to: to")  # noqa: S307 - a function without source

    def hands_over(call, to):
        return client(call, to)

    tool = sending(hands_over)
    assert found(tool, NO_KEY) == []
    assert "call is handed to client" in unseen(tool, NO_KEY)[0]


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


# -- effects outside of a call ---------------------------------------------------------------------


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


# -- what it cannot follow -------------------------------------------------------------------------


def test_a_tool_that_is_chosen_at_run_time_is_asked_about() -> None:
    """Its declaration was not looked at."""

    @dk.workflow(name="lint chooses")
    def chooses(ctx, name):
        ctx.call({"good": good}[name], "to", "x", key="a")
        ctx.call(*name, key="b")

    assert len(unseen(chooses, WHICH_TOOL)) == 2
    assert tools_of(chooses) == []


def test_a_ctx_that_goes_elsewhere_is_asked_about() -> None:
    """Kept under another name, put into a list, handed to what has no source."""
    nowhere = eval("lambda ctx: None")  # noqa: S307 - a function without source

    @dk.workflow(name="lint loses")
    def loses(ctx, order):
        call = ctx.call
        kept = [ctx]
        nowhere(ctx)
        return call, kept

    for rule in (EVERYTHING, ONE_LIMIT, NEW_KEY, HIDDEN, WHICH_TOOL):
        assert len([words for words in unseen(loses, rule) if "not looked at" in words]) == 3


def test_a_correction_is_looked_at_as_any_other_tool() -> None:
    """It is a tool of the workflow, though no line of it calls it."""
    undo = dk.tool(keyless, effect="idempotent", timeout=3.0, name="undo")
    tool = dk.tool(keyless, effect="opaque", timeout=3.0, name="do", compensate=undo)

    @dk.workflow(name="lint undoes")
    def undoes(ctx, to):
        with ctx.turn("do", timeout=10):
            ctx.call(tool, to, key="a")

    assert tools_of(undoes) == [tool, undo]
    assert found(undoes, NO_KEY) == ["declared idempotent, and call.key is never used"]


def test_without_a_source_every_rule_says_that_it_cannot_see() -> None:
    """A workflow made by exec: what is declared is still looked at, and nothing else."""
    names = {"dk": dk, "good": good}
    exec("def hidden(ctx, to):\n    ctx.call(good, to, 'x', key='a')", names)  # noqa: S102
    report = dk.lint(dk.workflow(names["hidden"], name="lint hidden"))
    assert report.found == ()
    assert {row.rule for row in report.unseen} == {
        EVERYTHING, ONE_LIMIT, NEW_KEY, HIDDEN, WHICH_TOOL,
    }  # fmt: skip
    exec("def tooled(call, to):\n    return to", names)  # noqa: S102
    rules = {row.rule for row in dk.lint(sending(names["tooled"])).unseen}
    assert rules == {NO_KEY, EVERYTHING, NEW_KEY}


class Evil:
    """An object that fails at every touch."""

    def __getattribute__(self, name):
        raise RuntimeError("do not touch")

    def __eq__(self, other):
        raise RuntimeError("do not compare")

    __hash__ = None


evil = Evil()


class Callable_:  # noqa: N801 - not the typing one
    """A workflow's function that is an object."""

    __name__ = "callable"

    def __call__(self, ctx, to):
        """Return what was given."""
        return to


def test_no_object_in_the_code_makes_it_fail() -> None:
    """Objects that raise at every touch, and functions that are none."""

    @dk.workflow(name="lint evil")
    def touches(ctx, to):
        ctx.step("a", evil.send, to)
        ctx.step("b", evil, to)
        evil.send(to)
        ctx.call(evil.tool, to, key=evil.key)
        ctx.call(evil, to, key=evil)

    assert isinstance(dk.lint(touches), Report)
    odd = [
        dk.workflow(Callable_(), name="lint object"),
        dk.workflow(functools.partial(writes), name="lint partial"),
        dk.workflow(lambda ctx: None, name="lint lambda"),
        dk.tool(str.upper, name="builtin"),
        dk.tool(Mailbox(profile="opaque").send, name="bound"),
    ]
    for subject in odd:
        assert isinstance(dk.lint(subject), Report)


NAMES = ["ctx", "order", "good", "post", "evil", "uuid", "self", "len"]
PIECES = [
    "ctx.call({0}, {1}, key={2})", "ctx.call(*{0}, **{1})", "ctx.step({0}, {1})", "ctx.step({0})",
    "{0}.{1}({2})", "{0} = {1}", "lambda: {0}({1})", "[{0} for {1} in {2}]", "{0}[{1}]",
    "f'{{{0}}}:{{{1}}}'", "{0}({1}, key={2})", "ctx.turn({0}, {1})", "ctx.wait_for({0})",
]  # fmt: skip
STATEMENTS = [
    "{0}", "for {1} in order:\n        {0}", "while {0}:\n        break",
    "try:\n        {0}\n    except Exception:\n        {2}", "with ctx.turn('a', 1):\n        {0}",
    "def {1}_():\n        return {0}", "import uuid as {1}", "if {0}:\n        {2}",
]  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_lint_answers_whatever_the_code_looks_like(data) -> None:
    """Random workflows of odd pieces, in a module of their own: a report, and no exception."""
    import linecache

    name = st.sampled_from(NAMES)

    def piece():
        return data.draw(st.sampled_from(PIECES)).format(*(data.draw(name) for _ in range(3)))

    lines = [
        data.draw(st.sampled_from(STATEMENTS)).format(piece(), data.draw(name), piece())
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    source = "def odd(ctx, order):\n    " + "\n    ".join(lines) + "\n    return 1\n"
    try:
        compiled = compile(source, "<odd>", "exec")
    except SyntaxError:
        return
    linecache.cache["<odd>"] = (len(source), None, source.splitlines(keepends=True), "<odd>")
    names = {"good": good, "post": post, "evil": evil, "uuid": uuid}
    exec(compiled, names)  # noqa: S102 - our own pieces
    report = dk.lint(dk.workflow(names["odd"], name="lint odd"))
    assert report.rows
    assert not [row for row in report.rows if "error of its own" in row.finding], source

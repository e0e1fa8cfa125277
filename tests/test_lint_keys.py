"""Lint: a key that changes with each attempt, and one that never reaches the service."""

import functools
import hashlib
import random
import time
import uuid

import pytest
from lint_checks import calling, deliver, found, good, keyless, kinds, post, sending, unseen

import durakit as dk
from durakit.linting import NEW_KEY, NO_KEY, WHICH_TOOL, tools_of

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


def passes_it_on(call, to):
    """A helper gets call, and sends the key."""
    return deliver(call, to)


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


@functools.lru_cache
def cached(order):
    """Make a key once in each process."""
    return str(uuid.uuid4())


class Maker:
    """An object that is called."""

    def __call__(self, order):
        """Make another key each time."""
        return str(uuid.uuid4())


maker, made_in_part, numbers = Maker(), functools.partial(uuid.uuid4), iter(range(9))

HIDDEN_MAKERS = {
    "a cached function": calling(lambda ctx, order: cached(order)),
    "an object": calling(lambda ctx, order: maker(order)),
    "a partial": calling(lambda ctx, order: str(made_in_part())),
    "an iterator": calling(lambda ctx, order: str(next(numbers))),
}


@pytest.mark.parametrize("name", HIDDEN_MAKERS)
def test_a_key_that_is_made_out_of_sight_is_not_called_clear(name) -> None:
    """What is no function with a source may give anything; silence would be a promise."""
    assert kinds(HIDDEN_MAKERS[name], NEW_KEY)[0] == "cannot see"


def test_a_name_that_a_pattern_or_an_inner_function_binds_is_no_global() -> None:
    """`good` and `uuid` are what the code makes them here, not what the module calls so."""

    def mapping(ctx, order):
        match order:
            case {**good}:
                ctx.call(good, "to", "x", key="a")

    def star(ctx, order):
        match order:
            case [*good]:
                ctx.call(good, "to", "x", key="a")

    def name(ctx, order):
        match order:
            case {"id": uuid, "tool": good}:
                ctx.call(good, "to", "x", key=uuid.uuid4())

    def parameter(ctx, order):
        def inner(good):
            return ctx.call(good, "to", "x", key="a")

        return inner

    def caught(ctx, order):
        try:
            return ctx.step("a", len, order)
        except dk.SavedError as good:
            return ctx.call(good, "to", "x", key="a")

    for function in (mapping, star, name, parameter, caught):
        binds = dk.workflow(function, name=f"lint binds by {function.__name__}")
        assert found(binds, NEW_KEY) == []
        assert len(unseen(binds, WHICH_TOOL)) == 1, function
        assert tools_of(binds) == []

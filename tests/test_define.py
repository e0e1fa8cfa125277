"""Tools and workflows are declared with every mistake refused by the field's name."""

import datetime as dt
import enum
import functools
import json
import math
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import durakit as dk
from durakit import define
from durakit.define import LONGEST_NAME, Parameters, find_workflow, name_text, source_digest
from durakit.errors import WorkflowNotFound
from durakit.protocol import Effect

# A busy machine may be slow; that is no failure.
laws = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def send(call, to, subject="hello", *, copies=1):
    """Stand for a tool."""
    return [call.key, to, subject, copies]


def ask(call):
    """Stand for a probe."""
    return dk.StillUnknown if call else dk.Absent


async def send_async(call):
    """A tool of the wrong kind."""


def send_lazily(call):
    """Another tool of the wrong kind."""
    yield call


# -- tools --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("effect", {"effect": "exactly once"}),
        ("effect", {"effect": None}),
        ("effect", {"effect": ["none"]}),
        ("window", {"window": 0}),
        ("window", {"window": -1}),
        ("window", {"window": math.nan}),
        ("window", {"window": "1 day"}),
        ("settles_after", {"settles_after": -1}),
        ("settles_after", {"settles_after": math.inf}),
        ("timeout", {"timeout": 0}),
        ("timeout", {"timeout": True}),
        ("timeout", {"timeout": math.inf}),
        ("timeout", {"timeout": 10**400}),
        ("on_unknown", {"on_unknown": "retry"}),
        ("on_unknown", {"on_unknown": []}),
        ("probe", {"effect": "queryable"}),
        ("probe", {"on_unknown": "probe"}),
        ("probe", {"effect": "queryable", "probe": 5}),
        ("retry", {"retry": 3}),
        ("retry", {"retry": dk.Retry}),
        ("window", {"window": 60}),
        ("window", {"effect": "none", "window": 60}),
        ("window", {"effect": "queryable", "probe": ask, "window": 60}),
        ("probe", {"probe": ask}),
        ("probe", {"effect": "none", "probe": ask}),
        ("on_unknown", {"effect": "none", "on_unknown": "park"}),
        ("settles_after", {"settles_after": 5}),
        ("settles_after", {"effect": "idempotent", "settles_after": 5}),
        ("errors", {"errors": (BaseException,)}),
        ("errors", {"errors": (ValueError("x"),)}),
        ("errors", {"errors": ValueError}),
        ("errors", {"errors": "ValueError"}),
        ("name", {"name": ""}),
        ("name", {"name": 5}),
        ("name", {"name": "\ud800"}),
    ],
)
def test_a_tool_that_cannot_work_is_refused_by_the_fields_name(field, options):
    """At its declaration, not at its first call."""
    with pytest.raises(dk.InvalidField) as caught:
        dk.tool(**options)(send)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "options",
    [
        {"effect": "idempotent", "probe": ask, "settles_after": 5},
        {"effect": "idempotent", "window": 1, "timeout": 60},
        {"effect": "idempotent", "window": math.inf, "on_unknown": "park"},
        {"effect": "opaque", "on_unknown": "probe", "probe": ask, "settles_after": 5},
        {"effect": "opaque", "on_unknown": "resend", "retry": dk.Retry(attempts=9)},
        {"effect": "none", "cancel": ask, "timeout": 5},
        {"effect": "opaque", "cancel": ask},
    ],
)
def test_what_says_something_true_of_the_service_is_allowed(options):
    """Beside what contradicts itself: these are odd, and each means something."""
    assert isinstance(dk.tool(**options)(send), define.Tool)


# -- the parameters of a compensation -------------------------------------------------------


def of(call, to, subject="hello", *, copies=1):
    """Stand for what is corrected in most cases here."""


def many(call, to, *rest, **more):
    """Stand for a tool that takes whatever it is given."""


def other_defaults(call, to, subject="sorry", *, copies=2):
    """Take the same, and have its own defaults."""


def more_optional(call, to, subject, note="-", *, copies, extra=1):
    """Take the same, and more that has defaults."""


def two(call, to, subject):
    """Take too little."""


def swapped(call, subject, to, *, copies=1):
    """Take the same in another order."""


def renamed(call, recipient, subject, *, copies=1):
    """Take the same under another name."""


def needy(call, to, subject, reason, *, copies=1):
    """Ask for more than was sent."""


def by_name(call, *, to, subject, copies):
    """Take by keyword only what is given by position."""


def collects(call, *everything, **by_name):
    """Take anything at all."""


def takes_rest(call, to, *rest):
    """Take many, but nothing by name."""


@pytest.mark.parametrize(
    ("corrected", "correction", "named"),
    [
        (of, two, "'copies'"), (of, swapped, "'to'"), (of, renamed, "'to'"),
        (of, needy, "'reason'"), (of, by_name, "'to'"), (of, takes_rest, "'copies'"),
        (many, takes_rest, "'more'"), (many, of, "'rest'"),
        (of, of, None), (of, other_defaults, None), (of, more_optional, None), (of, collects, None),
        (many, many, None), (many, collects, None), (two, more_optional, "'copies'"),
    ],
)  # fmt: skip
def test_a_compensation_that_cannot_take_what_was_sent_is_refused_when_the_tool_is_declared(
    corrected, correction, named
):
    """The parameter is named; what is accepted can take every call that the tool itself takes."""
    undo = dk.tool(correction, name="define_undo")
    if named is not None:
        with pytest.raises(dk.InvalidField, match=rf"^compensate: .*{named}"):
            dk.tool(corrected, compensate=undo, name="define_do")
        return
    do = dk.tool(corrected, compensate=undo, name="define_do")
    for args, kwargs in (("a", "b"), {}), (("a", "b"), {"copies": 3}), (("a",), {"subject": "b"}):
        try:
            sent = do.parameters.dump(args, kwargs)
        except TypeError:
            continue  # the tool itself takes no such call
        corrected_by = json.loads(undo.parameters.dump(*do.parameters.filled(args, kwargs)))
        for name in set(corrected_by) & set(json.loads(sent)):
            assert corrected_by[name] == json.loads(sent)[name]


def test_a_compensation_without_outside_effect_is_refused():
    """It could correct nothing."""
    undo = dk.tool(send, effect="none", name="define_undo_none")
    with pytest.raises(dk.InvalidField, match="^compensate: define_undo_none"):
        dk.tool(send, compensate=undo, name="define_do_none")


@pytest.mark.parametrize("declare", [dk.tool, dk.workflow])
@pytest.mark.parametrize("function", [send_async, send_lazily], ids=["async", "generator"])
def test_a_function_whose_call_runs_nothing_is_refused(declare, function):
    """What it hands back would pass for a reply, and the operation for completed."""
    with pytest.raises(dk.InvalidField, match=r"^function: "):
        declare(function)


@pytest.mark.parametrize("declare", [dk.tool, dk.workflow])
@pytest.mark.parametrize(
    "function",
    [lambda: None, lambda *, call: call, lambda **call: call, lambda *calls: calls],
    ids=["none", "keyword-only", "keywords", "positions"],
)
def test_a_function_without_a_first_argument_is_refused(declare, function):
    """It has no place for `call` or `ctx`."""
    with pytest.raises(dk.InvalidField, match="first argument"):
        declare(function, name="named")


@pytest.mark.parametrize("declare", [dk.tool, dk.workflow])
@pytest.mark.parametrize("value", [5, "send", [send]])
def test_what_is_no_function_is_refused(declare, value):
    """With the field's name, not with an AttributeError."""
    with pytest.raises(dk.InvalidField, match=r"^function: "):
        declare(value)


@pytest.mark.parametrize("declare", [dk.tool, dk.workflow])
def test_a_function_without_a_name_needs_one(declare):
    """A partial has none of its own."""
    partial = functools.partial(send, to="a")
    with pytest.raises(dk.InvalidField, match=r"^name: "):
        declare(partial)
    assert declare(partial, name="send to a").name == "send to a"


def test_L088_a_tool_that_declares_nothing_is_opaque_and_tried_once():
    """A policy that nobody configured must not send twice."""
    plain = dk.tool(send)
    assert plain.contract.effect is Effect.OPAQUE
    assert plain.policy.attempts == 1
    assert plain.timeout is None
    assert plain.contract.window is None
    assert plain.contract.settles_after is None
    assert plain.contract.on_unknown is None


@pytest.mark.parametrize("effect", ["none", "idempotent", "queryable"])
def test_L088_every_other_tool_is_tried_three_times_by_default(effect):
    """Reading, or protected by its key, or asked first."""
    asks = None if effect == "none" else ask
    assert dk.tool(effect=effect, probe=asks)(send).policy == dk.Retry(attempts=3)


def test_L088_the_effective_policy_can_be_printed_with_its_defaults():
    """All that decides what happens after a failure, whether it was given or not."""
    assert repr(dk.tool(send)) == (
        "<tool send: effect=opaque, window=None, settles_after=None, on_unknown=None, "
        "timeout=None, Retry(initial=0.5, cap=8.0, attempts=1, jitter='full', "
        "first_window=None, floor=0.0, reserve=0.0, last_chance=False, budget=None)>"
    )
    shown = repr(
        dk.tool(effect="idempotent", window=86400, timeout=3, on_unknown="park", name="mail")(send)
    )
    for part in ("tool mail", "idempotent", "86400", "3.0", "on_unknown=park", "attempts=3"):
        assert part in shown


def test_a_tool_can_be_called_bare_and_keeps_its_name_and_docstring():
    """Without journal and protection it is the function that was written."""
    declared = dk.tool(effect="none")(send)

    class Call:
        """As much of a call as `send` reads."""

        key = "k"

    assert declared(Call, "a", copies=2) == ["k", "a", "hello", 2]
    assert (declared.name, declared.__doc__) == ("send", send.__doc__)


def test_a_tool_keeps_the_name_it_is_given_whatever_its_function_carries():
    """A function may have attributes of the same names."""

    def carrying(call):
        """Do nothing."""

    carrying.name = "other"
    carrying.contract = "other"
    declared = dk.tool(carrying)
    assert (declared.name, declared.contract.effect) == ("carrying", Effect.OPAQUE)


# -- names and keys -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["welcome:42", "it's \"quoted\" `so`", "two\nlines\tand a tab", "\U0001f4e7 \u00fc", " ",
     "x" * 10_240, "'; DROP TABLE run; --", "\u202egnp.exe", "a" * LONGEST_NAME],
    ids=lambda text: repr(text[:20]),
)  # fmt: skip
def test_any_text_that_utf8_can_hold_is_a_name_or_key(text):
    """Quotes, newlines, emoji and ten kilobytes are nobody's mistake."""
    assert name_text("key", text) == text


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "is empty"),
        ("a\ud800b", "half a character at position 1"),
        (b"bytes", "needs text, got bytes"),
        (5, "needs text, got int"),
        (None, "needs text, got NoneType"),
        (["a"], "needs text, got list"),
        ("a" * (LONGEST_NAME + 1), "bytes long"),
        ("\U0001f4e7" * (LONGEST_NAME // 4 + 1), "bytes long"),
    ],
    ids=lambda part: repr(part)[:20],
)
def test_what_is_no_storable_text_is_refused_by_the_fields_name(value, problem):
    """With what is wrong about it."""
    with pytest.raises(dk.InvalidField, match=rf"^key: .*{problem}"):
        name_text("key", value)


class Kind(str, enum.Enum):  # noqa: UP042 - this kind prints as something else
    """A text-enum whose `str()` is not its text."""

    WELCOME = "welcome"


def test_a_text_enum_is_taken_as_the_text_it_is():
    """The same key must not depend on how an enum prints itself."""
    assert str(Kind.WELCOME) != "welcome"
    name = name_text("key", Kind.WELCOME)
    assert (name, type(name)) == ("welcome", str)


@laws
@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=200))
def test_every_name_is_kept_as_it_is(text):
    """Neither normalised nor trimmed: two different keys stay two."""
    assert name_text("key", text) == text


# -- arguments ----------------------------------------------------------------------------


values = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just([1, {"a": 2.5}])


@laws
@given(values, values, values, st.sampled_from([0, 1, 2]), st.booleans())
def test_by_position_by_keyword_or_by_default_are_the_same_arguments(
    to, subject, copies, by_position, shuffled
):
    """One canonical text, or a retry would look like another request."""
    parameters = Parameters(send, "call")
    named = {"to": to, "subject": subject, "copies": copies}
    expected = parameters.dump((), named)
    positions = [to, subject][:by_position]
    keywords = dict(list(named.items())[by_position:])
    if shuffled:
        keywords = dict(reversed(keywords.items()))
    assert parameters.dump(tuple(positions), keywords) == expected
    assert parameters.dump((to,), {}) == parameters.dump((to, "hello"), {"copies": 1})


@laws
@given(values, values)
def test_all_by_position_is_the_same_as_by_keyword_without_keyword_only_parameters(one, two):
    """The short way writes what the long way writes."""
    parameters = Parameters(lambda call, a, b: (call, a, b), "call")
    assert parameters.dump((one, two), {}) == parameters.dump((), {"b": two, "a": one})


def every_kind(call, first, /, second: dt.date, *rest: Decimal, third=None, **more: Decimal):
    """Take arguments in every way there is."""
    return call, first, second, rest, third, more


@laws
@given(st.lists(st.decimals(allow_nan=False, allow_infinity=False), max_size=3), values)
def test_arguments_of_every_kind_come_back_as_they_were(numbers, third):
    """Position-only, annotated, the rest by position, keyword-only, the rest by keyword."""
    parameters = Parameters(every_kind, "call")
    more = {f"extra{index}": number for index, number in enumerate(numbers)}
    text = parameters.dump(("a", dt.date(2026, 1, 1), *numbers), {"third": third, **more})
    args, kwargs = parameters.load(define.json.loads(text))
    _, *back = every_kind(None, *args, **kwargs)
    assert back == ["a", dt.date(2026, 1, 1), tuple(numbers), third, more]
    assert [str(number) for number in back[2]] == [str(number) for number in numbers]


def test_arguments_that_do_not_fit_are_an_ordinary_type_error():
    """As Python itself says it."""
    parameters = Parameters(send, "call")
    for args, kwargs in [((), {}), (("a", "b", "c"), {}), (("a",), {"to": "b"}), ((), {"x": 1})]:
        with pytest.raises(TypeError):
            parameters.dump(args, kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "path"),
    [
        (("a", "not a date"), {}, "$.second"),
        (("a", dt.date(2026, 1, 1), Decimal(1), "x"), {}, "$.rest[1]"),
        (("a", dt.date(2026, 1, 1)), {"third": [{1}]}, "$.third[0]"),
        (({"b": (1,)}, dt.date(2026, 1, 1)), {}, "$.first.b"),
        (("a", dt.date(2026, 1, 1)), {"odd": "x"}, "$.more.odd"),
    ],
)
def test_an_argument_that_cannot_be_saved_is_refused_by_its_parameters_path(args, kwargs, path):
    """The path begins with the parameter's name, whatever its annotation."""
    with pytest.raises(dk.UnsavableValue) as caught:
        Parameters(every_kind, "call").dump(args, kwargs)
    assert caught.value.path == path


# -- workflows ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", [True, 1.0, "1", None])
def test_a_version_that_is_no_whole_number_is_refused(version):
    """Versions are compared, so that their kind matters."""
    with pytest.raises(dk.InvalidField, match=r"^version: "):
        dk.workflow(version=version)(lambda ctx: ctx)


def test_a_workflow_is_found_by_name_and_defining_it_again_replaces_it():
    """A notebook cell may be run twice."""

    @dk.workflow(name="test define: twice")
    def first(ctx):
        """Be the first."""

    assert find_workflow("test define: twice") is first

    @dk.workflow(name="test define: twice", version=2)
    def second(ctx):
        """Be the second."""

    assert find_workflow("test define: twice") is second
    assert second.version == 2


def test_a_workflow_that_is_not_defined_here_is_named_and_the_way_out_told():
    """A file never names code to import."""
    with pytest.raises(WorkflowNotFound, match=r"'os\.system' is not defined.*import its module"):
        find_workflow("os.system")


def test_a_refused_redefinition_leaves_the_old_workflow_in_place():
    """A mistake in a cell does not lose what was defined."""
    kept = dk.workflow(name="test define: kept")(lambda ctx: ctx)
    with pytest.raises(dk.InvalidField):
        dk.workflow(name="test define: kept", version="two")(lambda ctx: ctx)
    assert find_workflow("test define: kept") is kept


def test_the_source_digest_tells_a_changed_function_from_an_unchanged_one():
    """So that starting an id again can say that the code has changed since."""

    def one(ctx):
        """Do one thing."""
        return ctx.step("a", len, "x")

    def other(ctx):
        """Do another."""
        return ctx.step("b", len, "x")

    assert source_digest(one) == source_digest(one)
    assert source_digest(one) != source_digest(other)
    assert len(source_digest(len)) == 64


def test_a_digest_of_arguments_that_do_not_fit_is_refused():
    """An approval can only name a call that could be made."""
    declared = dk.tool(lambda call, to: None, name="test define: digest")
    assert declared.digest("ada@example.org") != declared.digest("bela@example.org")
    assert declared.digest("ada@example.org") == declared.digest(to="ada@example.org")
    with pytest.raises(TypeError):
        declared.digest()


@pytest.mark.parametrize("forgotten", ["the call", "ctx.call"])
def test_a_tool_called_like_a_function_in_a_workflow_says_how_it_is_called(runtime, forgotten):
    """The commonest slip of a beginner fails with the line to write, and nothing is sent."""
    sent = []

    @dk.tool(name="bare letter")
    def send_letter(call, to):
        sent.append(to)

    @dk.workflow(name=f"forgot {forgotten}")
    def careless(ctx):
        return send_letter("ada") if forgotten == "the call" else send_letter(ctx, "ada")

    run = runtime().run(careless, id="careless")
    assert run.status == "failed"
    assert "ctx.call(send_letter, …, key=…)" in run.reason
    assert sent == []


def test_a_workflow_can_be_run_bare():
    """Nothing is saved, and nothing is needed."""
    declared = dk.workflow(name="test define: bare")(lambda ctx, a, b=2: [ctx, a, b])
    assert declared("ctx", 1) == ["ctx", 1, 2]
    assert repr(declared) == "<workflow test define: bare version 1>"

"""A value has one saved form, from which it comes back whole, or it is refused by its path."""

import builtins
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import json
import math
import re
import sys
import zoneinfo
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import pydantic
import pytest
import typing_extensions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import durakit as dk
from durakit import values
from durakit.errors import (
    ArgumentsDiffer,
    DamagedFile,
    DurakitError,
    SavedError,
    UnloadableValue,
    UnsavableValue,
)
from durakit.values import PLAIN, Codec, canonical, digest, dump_error, load_error, plain_json

# A busy machine may be slow; that is no failure.
laws = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Two halves of one character, as two characters; JSON's escapes cannot tell them from one.
SPLIT = "\ud83d\ude00"
WHOLE = "\U0001f600"

texts = st.text(st.characters(codec="utf-8"), max_size=20)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


class Colour(enum.StrEnum):
    """A text-enum."""

    RED = "red"


class Size(enum.IntEnum):
    """A number-enum."""

    BIG = 3


class Mood(enum.Enum):
    """An enum that is neither text nor number."""

    GOOD = "good"


class Permission(enum.IntFlag):
    """Flags that combine."""

    READ = 1
    WRITE = 2


class Point(NamedTuple):
    """A named tuple."""

    x: int
    y: str


@dataclasses.dataclass
class Price:
    """A dataclass with what is no field of it, too."""

    amount: decimal.Decimal
    lines: tuple[int, ...] = ()


class Address(typing_extensions.TypedDict):
    """A typed dictionary; on Python 3.11 pydantic takes only this kind."""

    street: str
    since: dt.date


class Plain(TypedDict):
    """The builtin kind, of JSON types only."""

    street: str


class Order(pydantic.BaseModel):
    """A model that holds other kinds."""

    id: int
    colour: Colour = Colour.RED
    price: Price | None = None
    placed: dt.datetime | None = None
    raw: bytes = b""
    extra: Any = None
    label: str = ""

    @functools.cached_property
    def shown(self) -> str:
        """Kept beside the fields once it has been read."""
        return f"order {self.id}"


class Open(pydantic.BaseModel, extra="allow"):
    """A model that keeps what it does not know, and something private."""

    id: int = 1
    _seen: int = pydantic.PrivateAttr(0)


class Touchy(pydantic.BaseModel):
    """A model whose validator fails with an error that pydantic does not wrap."""

    id: int

    @pydantic.field_validator("id")
    @classmethod
    def check(cls, value: int) -> int:
        """Refuse 7 in an unusual way."""
        if value == 7:
            raise RuntimeError("seven")
        return value


class Unequal:
    """A value of a type of its own, which refuses to be compared or shown."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    def __hash__(self) -> int:
        return 1

    def __repr__(self) -> str:
        raise RuntimeError("not shown")


def len_of(number: int) -> str:
    """Name a case by the length of its number."""
    return f"{number.bit_length()}-bits"


def refused(codec: Codec, value: object) -> str:
    """Return the path with which a value is refused."""
    with pytest.raises(UnsavableValue) as caught:
        codec.dump(value)
    return caught.value.path


def exactly(value: object) -> str:
    """Tell two values apart that `==` does not: 1, 1.0, True, 0.0 and -0.0."""
    if isinstance(value, dict):
        return repr([(exactly(key), exactly(part)) for key, part in value.items()])
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}{[exactly(part) for part in value]}"
    return f"{type(value).__name__} {value!r}"


# -- values without an annotation ---------------------------------------------------------


@laws
@given(json_values)
def test_any_json_value_comes_back_exactly(value):
    """Type, sign of zero, order of keys and every digit survive."""
    assert exactly(PLAIN.load(PLAIN.dump(value))) == exactly(value)


@laws
@given(json_values)
def test_the_saved_form_is_strict_ascii_json(value):
    """Another strict reader, which knows no NaN, reads the same."""
    text = PLAIN.dump(value)
    assert text.isascii()
    assert json.loads(text, parse_constant=pytest.fail) == value


def steady(value):
    """A test's name must not hold an address: each worker gives it another one."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {"b": {1, 2}}]}, "$.a[1].b"),
        ([0, [1, (2,)]], "$[1][1]"),
        ({"when": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}, "$.when"),
        ({"not a name": b"x"}, "$['not a name']"),
        ({"a": {"b": [object()]}}, "$.a.b[0]"),
        (decimal.Decimal("1.1"), "$"),
    ],
)
def test_a_value_that_is_not_json_is_refused_with_the_path_of_the_bad_part(value, path):
    """The path begins at `$` and reads like the expression that reaches the part."""
    assert refused(PLAIN, value) == path


@pytest.mark.parametrize(
    "value",
    [
        Colour.RED,
        Size.BIG,
        collections.defaultdict(int, a=1),
        collections.Counter("aab"),
        collections.OrderedDict(a=1),
        Point(1, "a"),
        {1},
        frozenset({"a"}),
        True and type("Text", (str,), {})("x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_L107_what_only_looks_like_a_json_type_is_refused_without_an_annotation(value):
    """A subclass would come back as its base: no silent change of type."""
    assert refused(PLAIN, {"deep": [value]}) == "$.deep[0]"


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Colour, Colour.RED),
        (Size, Size.BIG),
        (Mood, Mood.GOOD),
        (Permission, Permission.READ | Permission.WRITE),
        (collections.defaultdict[str, int], collections.defaultdict(int, a=1)),
        (collections.Counter[str], collections.Counter("aab")),
        (collections.OrderedDict[str, int], collections.OrderedDict(b=1, a=2)),
        (collections.deque[int], collections.deque([1, 2])),
        (Point, Point(1, "a")),
        (set[int], {3, 1, 2}),
        (frozenset[str], frozenset({"a", "b"})),
        (tuple[int, str], (1, "a")),
        (tuple[int, ...], (1, 2, 3)),
        (int | None, None),
        (int | str, "1"),
        (dict[int, str], {1: "one"}),
        (Address, {"street": "x", "since": dt.date(2026, 1, 2)}),
        (Price, Price(decimal.Decimal("1.10"), (1, 2))),
        (Order, Order(id=1, price=Price(decimal.Decimal("1.1")), placed=dt.datetime(2026, 1, 1))),  # noqa: DTZ001 - without a zone
        (dict[str, list[Order]], {"all": [Order(id=1), Order(id=2, extra=[{"a": 1.5}])]}),
        (dt.timedelta, dt.timedelta(days=-1, microseconds=1)),
        (dt.time, dt.time(3, 4, tzinfo=dt.UTC)),
    ],
    ids=steady,
)
def test_L107_an_annotated_value_comes_back_with_its_type_and_value(annotation, value):
    """The annotation decides the type, at every depth."""
    codec = Codec(annotation)
    text = codec.dump(value)
    back = codec.load(text)
    assert text.isascii()
    assert type(back) is type(value)
    assert back == value
    assert list(back) == list(value) if isinstance(value, dict | list | tuple) else True


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (set[float], {1}, "$"),
        (list[float], [1.5, 2], "$[1]"),
        (int | None, True, "$"),
        (collections.deque[int], collections.deque([1], maxlen=3), "$"),
        (collections.defaultdict[str, int], collections.defaultdict(lambda: 5, a=1), "$"),
        (dict[str | int, str], {1: "a", "1": "b"}, "$"),
        (Order, Order(id=1, extra=dt.date(2026, 1, 1)), "$.extra"),
        (Order, Order(id=1, extra=[{1: 2}]), "$.extra[0]"),
        (Order, Order.model_construct(id="one"), "$.id"),
        (dict[str, Order], {"a": Order.model_construct(id=1, placed="soon")}, "$.a.placed"),
        (Price, Price(decimal.Decimal(1), [1]), "$.lines"),
        (Open, Open(id=2, day=dt.date(2026, 1, 1)), "$.day"),
        (pydantic.SecretStr, pydantic.SecretStr("x"), "$"),
        (list[dict[str, set[int]]], [{"a": {"b"}}], "$[0].a[0]"),
        (list[int] | dict[str, int], ["x"], "$[0]"),
        (dict[str, int | list[int]], {"a": [1, "x"]}, "$.a"),
    ],
    ids=steady,
)
def test_an_annotated_value_that_would_come_back_changed_is_refused_with_the_path(
    annotation, value, path
):
    """What pydantic would quietly convert is a loss like any other."""
    assert refused(Codec(annotation), value) == path


def test_a_private_attribute_that_would_be_lost_is_refused():
    """What a model keeps privately is part of it."""
    model = Open()
    assert Codec(Open).load(Codec(Open).dump(model)) == model
    model._seen = 9
    assert refused(Codec(Open), model) == "$._seen"


def test_a_cached_property_is_no_part_of_the_value():
    """A model may be read before it is saved."""
    order = Order(id=1)
    assert order.shown == "order 1"
    assert Codec(Order).load(Codec(Order).dump(order)) == order


def test_whatever_a_types_own_code_raises_is_a_refusal():
    """A reply whose validator or comparison fails must not look like a failed call."""
    assert refused(Codec(Touchy), Touchy.model_construct(id=7)) == "$"
    with pytest.raises(UnloadableValue, match=r"Touchy: seven"):
        Codec(Touchy).load('{"id":7}')
    assert refused(PLAIN, {Unequal(): 1}) == "$[<Unequal>]"
    assert refused(PLAIN, [Unequal()]) == "$[0]"


# -- times --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        dt.datetime(2026, 1, 1, 12, 30, 0, 1),  # noqa: DTZ001 - without a zone
        dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30))),
        dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-11))),
    ],
    ids=steady,
)
def test_L109_a_time_keeps_its_kind_and_value(value):
    """Without a zone, in UTC and with a fixed offset: none becomes another."""
    back = Codec(dt.datetime).load(Codec(dt.datetime).dump(value))
    assert back == value
    assert back.utcoffset() == value.utcoffset()
    assert back.isoformat() == value.isoformat()


@laws
@given(st.datetimes(timezones=st.none() | st.just(dt.UTC)))
def test_L109_any_time_without_a_zone_or_in_utc_survives(value):
    """To the microsecond, from year 1 to 9999; a `fold` that the form cannot tell is refused."""
    codec = Codec(dt.datetime)
    if value.fold:
        assert refused(codec, value) == "$"
    else:
        back = codec.load(codec.dump(value))
        assert (back, back.utcoffset()) == (value, value.utcoffset())


@pytest.mark.parametrize(
    "value",
    [
        dt.datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
        dt.time(3, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
        dt.datetime(2026, 10, 25, 2, 30, fold=1),  # noqa: DTZ001 - the second 02:30 of that day
    ],
    ids=steady,
)
def test_L109_a_time_whose_zone_or_fold_would_be_lost_is_refused(value):
    """A zone whose offset changes with the date would come back as a fixed one."""
    assert refused(Codec(type(value)), value) == "$"


# -- numbers, keys, texts, bytes ----------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({1: "a", "1": "b"}, "$[1]"),
        ({True: "a"}, "$[True]"),
        ({"a": {None: 1}}, "$.a[None]"),
        ([math.nan], "$[0]"),
        ({"x": math.inf}, "$.x"),
        ({"x": [-math.inf]}, "$.x[0]"),
        ({"ok": {(1, 2): 3}}, "$.ok[(1, 2)]"),
    ],
    ids=steady,
)
def test_L110_keys_that_are_not_text_and_numbers_that_are_not_json_are_refused(value, path):
    """No entry disappears by becoming another's key, and no NaN is written."""
    assert refused(PLAIN, value) == path


@pytest.mark.parametrize("number", [2**53 + 1, -(2**63) - 1, 10**4000, -(10**4000)], ids=len_of)
def test_L110_a_whole_number_beyond_2_to_53_keeps_every_digit(number):
    """Python's own whole numbers have no width."""
    assert PLAIN.load(PLAIN.dump([number])) == [number]


@pytest.mark.parametrize(
    "number", [10**5000, -(10**5000), 1 << 100_000], ids=["10^5000", "-10^5000", "2^100000"]
)
def test_L110_a_whole_number_too_long_for_text_is_refused_with_the_path(number):
    """Python itself refuses to print it without a special setting."""
    assert refused(PLAIN, {"n": [number]}) == "$.n[0]"


def test_L110_nan_in_an_annotated_value_is_refused_with_the_path():
    """Pydantic would write it as null."""
    assert refused(Codec(Order), Order(id=1, extra=math.nan)) == "$.extra"
    assert refused(Codec(dict[str, float | None]), {"x": math.inf}) == "$.x"


def test_L112_decimals_keep_their_digits_and_bytes_are_identical():
    """1.10 is not 1.1, and bytes with zeros and high bytes survive."""
    decimals = Codec(list[decimal.Decimal])
    given_decimals = [decimal.Decimal(text) for text in ("1.10", "1.1", "-0", "1E+3", "0.000")]
    back = decimals.load(decimals.dump(given_decimals))
    assert [str(part) for part in back] == ["1.10", "1.1", "-0", "1E+3", "0.000"]
    assert Codec(bytes).load(Codec(bytes).dump(b"\x00\xff\x80\x00")) == b"\x00\xff\x80\x00"


def test_L112_a_decimal_whose_digits_a_serializer_loses_is_refused():
    """1.10 and 1.1 are equal, and yet not the same price tag."""
    codec = Codec(Annotated[decimal.Decimal, pydantic.PlainSerializer(lambda part: float(part))])
    assert codec.load(codec.dump(decimal.Decimal("1.5"))) == decimal.Decimal("1.5")
    assert refused(codec, decimal.Decimal("1.10")) == "$"


@laws
@given(st.lists(st.binary()))
def test_L112_any_bytes_survive(value):
    """Base64 inside, bytes outside."""
    codec = Codec(list[bytes])
    assert codec.load(codec.dump(value)) == value


def test_L112_bytes_that_a_model_would_write_as_text_are_refused_with_the_path():
    """A model has a configuration of its own, and UTF-8 is pydantic's default."""
    codec = Codec(dict[str, Order])
    assert refused(codec, {"a": Order(id=1, raw=b"\x00\xff")}) == "$.a.raw"
    fine = {"a": Order(id=1, raw=b"\x00abc")}
    assert codec.load(codec.dump(fine)) == fine


@pytest.mark.parametrize("value", [fractions.Fraction(1, 3), 1 + 2j, object(), print], ids=steady)
def test_L112_a_type_that_is_not_supported_is_refused_where_it_stands(value):
    """A refusal at the step that made it, not a crash in the middle of a later save."""
    assert refused(PLAIN, [0, value]) == "$[1]"


def test_L112_a_type_that_pydantic_cannot_describe_falls_back_to_json_only():
    """Its annotation is no promise: the value itself is refused."""

    def make() -> Unequal: ...

    assert values.returns(make) is PLAIN
    assert refused(values.returns(make), Unequal()) == "$"


def test_a_typed_dictionary_of_json_types_is_saved_whatever_pydantic_makes_of_it():
    """Where pydantic refuses the annotation, the value still has to be JSON."""

    def make() -> Plain: ...

    codec = values.returns(make)
    assert codec.load(codec.dump(Plain(street="x"))) == {"street": "x"}
    with pytest.raises(UnsavableValue, match=r"^cannot save \$\.street: "):
        codec.dump({"street": {1}})


def test_L113_half_a_character_is_stored_escaped_and_comes_back():
    """A stray surrogate in a reply breaks neither the save nor the text."""
    value = {"body": "before \ud800 after", "\udfff": ["\udc00\ud800"]}
    text = PLAIN.dump(value)
    assert text.isascii()
    assert PLAIN.load(text) == value


def test_L113_half_a_character_in_a_model_is_refused_with_the_path():
    """Pydantic's reader takes no half characters, so the save says so at once."""
    assert refused(Codec(Order), Order(id=1, label="\ud800")) == "$.label"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([SPLIT], "$[0]"),
        ({"a": f"x{SPLIT}y"}, "$.a"),
        ({SPLIT: 1, WHOLE: 2}, f"$[{SPLIT!r}]"),
    ],
)
def test_L113_a_character_in_two_halves_is_refused_for_it_would_come_back_as_one(value, path):
    """Their escapes are the same text: one of two keys would disappear."""
    assert refused(PLAIN, value) == path
    assert PLAIN.load(PLAIN.dump({WHOLE: [WHOLE]})) == {WHOLE: [WHOLE]}


# -- depth --------------------------------------------------------------------------------


def nested(depth: int) -> list:
    """Return lists in lists."""
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


def load_from_deep_down(text: str, depth: int) -> object:
    """Load where many frames already stand on the stack."""
    return PLAIN.load(text) if depth == 0 else load_from_deep_down(text, depth - 1)


def test_what_could_be_saved_can_be_read_from_deep_inside_other_calls():
    """The limit is a fixed depth, not what was left of this stack by chance."""
    text = PLAIN.dump(nested(190))
    assert load_from_deep_down(text, 400) == nested(190)


@pytest.mark.parametrize("depth", [300, 980, 5_000])
def test_nesting_beyond_the_limit_is_refused(depth):
    """A refusal by name, not a RecursionError."""
    with pytest.raises(UnsavableValue, match="nested"):
        PLAIN.dump(nested(depth))
    with pytest.raises(UnsavableValue):
        Codec(dict[str, Order]).dump({"a": Order.model_construct(id=1, extra=nested(depth))})


def test_a_value_that_contains_itself_is_refused():
    """A list in itself, a dictionary in itself, and both inside a model."""
    loop: list = []
    loop.append(loop)
    ring: dict = {"list": loop}
    ring["ring"] = ring
    for value in (loop, ring):
        with pytest.raises(UnsavableValue):
            PLAIN.dump(value)
        with pytest.raises(UnsavableValue):
            Codec(Order).dump(Order.model_construct(id=1, extra=value))


# -- canonical form and digest ------------------------------------------------------------


def test_one_one_point_nought_and_true_are_three_arguments():
    """Equal in Python, different as arguments."""
    assert len({canonical(part) for part in (1, 1.0, True, "1", [1])}) == 5


def test_the_digest_is_pinned():
    """A later version that digests otherwise would take every saved key for another's."""
    text = canonical({"b": [1, 1.0, True, None, "\u00e9" + WHOLE], "a": {"z": "", "y": -0.5}})
    assert text == r'{"a":{"y":-0.5,"z":""},"b":[1,1.0,true,null,"\u00e9\ud83d\ude00"]}'
    # What the tool `sha256sum` says of these bytes.
    assert digest(text) == "355d7882fd0a06cb37a6e3def18c1c72bbaf79e937313f76a186df653239c181"


@laws
@given(st.dictionaries(texts, json_values, max_size=6), st.randoms())
def test_the_order_of_keys_does_not_matter(value, random):
    """Two dictionaries that differ in order have one canonical form."""
    items = list(value.items())
    random.shuffle(items)
    assert canonical(dict(items)) == canonical(value)


@laws
@given(json_values, json_values)
def test_different_values_have_different_canonical_forms(one, other):
    """The canonical form is as exact as the value itself."""

    def shape(value: object) -> object:
        if isinstance(value, dict):
            return {key: shape(value[key]) for key in sorted(value)}
        return [shape(part) for part in value] if isinstance(value, list) else value

    assert (canonical(one) == canonical(other)) == (exactly(shape(one)) == exactly(shape(other)))


def test_L062_arguments_that_cannot_be_digested_are_refused_and_match_nothing():
    """There is no digest 'none' that would equal another 'none'."""
    for value in ({"a": object()}, {"a": math.nan}):
        with pytest.raises(UnsavableValue) as caught:
            canonical(value)
        assert caught.value.path == "$.a"


# -- loading ------------------------------------------------------------------------------


def test_L106_a_saved_value_that_no_longer_fits_is_a_named_error_with_path_and_type():
    """Never nothing, never a bare dictionary."""
    codec = Codec(dict[str, Order])
    with pytest.raises(UnloadableValue, match=r"dict.*at \$\.a\.price\.amount: ") as caught:
        codec.load('{"a":{"id":1,"price":{"amount":"much"}}}')
    assert isinstance(caught.value, DurakitError)
    with pytest.raises(UnloadableValue, match=r"Order: at \$: Field required|Order: at \$"):
        Codec(Order).load("{}")


@pytest.mark.parametrize("text", ["", "{", "NaN", "[Infinity]", "\x80\x04K\x01.", "!!python/none"])
@pytest.mark.parametrize("codec", [PLAIN, Codec(Order)], ids=["plain", "model"])
def test_L115_a_text_that_is_not_json_is_refused_and_no_other_reader_is_tried(codec, text):
    """One reader, and the strict one."""
    with pytest.raises(UnloadableValue):
        codec.load(text)


@pytest.mark.parametrize(
    "payload",
    [
        {"py/object": "os.system", "args": ["true"]},
        {"__reduce__": ["builtins.exec", ["x"]], "type": "exec"},
        {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {}},
        {"$type": "colorsys.rgb_to_hsv", "module": "colorsys"},
    ],
    ids=lambda payload: next(iter(payload)),
)
def test_L115_nothing_that_a_payload_names_is_imported_or_called(payload):
    """What asks for an object to be built is a dictionary, and stays one."""
    before = set(sys.modules)
    assert PLAIN.load(json.dumps(payload)) == payload
    error = load_error({"type": "colorsys.Nothing", "message": "m", "args": [payload]})
    assert type(error) is SavedError
    assert set(sys.modules) == before


# -- errors -------------------------------------------------------------------------------


class Declined(Exception):
    """A type that a tool lists."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code


class Odd(Exception):
    """Its constructor takes something else than it passes on."""

    def __init__(self, when: dt.date) -> None:
        super().__init__(f"declined on {when}")


class Unreadable(Exception):
    """It can neither be described nor copied."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __reduce__(self) -> tuple[Any, ...]:
        raise RuntimeError("no copy")


def through_the_disk(error: Exception, listed: tuple[type[Exception], ...] = ()) -> Exception:
    """Save an error as text and rebuild it."""
    return load_error(json.loads(json.dumps(dump_error(error, listed))), listed)


def raised(function, *args) -> Exception:
    """Return the exception that a real call raises."""
    try:
        function(*args)
    except Exception as error:
        return error
    return pytest.fail("it did not raise")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        ValueError(),
        ValueError("a", 1, None),
        KeyError("name"),
        raised({}.__getitem__, 1),
        raised(open, Path("no such folder") / "file"),
        raised(int, "x"),
        raised([].pop),
        raised(lambda: 1 / 0),
        TimeoutError("late"),
        ConnectionRefusedError(111, "refused"),
        OSError(2, "becomes another class"),
        PermissionError(13, "no", "file"),
        StopIteration(3),
        dk.NotExecuted("full", transient=True, retry_after=2.5),
        dk.Infeasible("a template"),
        dk.DeadlineExceeded("turn", "send", "x"),
        dk.InvalidField("cap", "negative"),
        dk.UnsavableValue("$.a", "a set"),
        ArgumentsDiffer("key 'k'", "a" * 64, "b" * 64),
        DamagedFile("bytes"),
        dk.RunNotFound("x"),
    ],
    ids=steady,
)
def test_a_builtin_or_durakit_error_comes_back_as_its_own_type(error):
    """Its type, its message and what its constructor was given."""
    back = through_the_disk(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == error.args
    assert vars(back) == vars(error)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (raised({}.__getitem__, (1, 2)), "(1, 2)"),
        (ValueError({1}), "{1}"),
        (TypeError(Unreadable, b"x"), "Unreadable"),
    ],
    ids=["KeyError", "ValueError", "TypeError"],
)
def test_a_builtin_with_arguments_that_are_not_json_keeps_its_type_and_message(error, message):
    """`except KeyError` works for a key of any type, in the first run and in a replay."""
    back = through_the_disk(error)
    assert type(back) is type(error)
    assert message in str(back)


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (raised(b"\xff".decode), "UnicodeDecodeError"),
        (ExceptionGroup("both", [ValueError(1), OSError(2, "x")]), "ExceptionGroup"),
        (Declined(1, "no"), "Declined"),
        (raised(Order.model_validate, {}), "ValidationError"),
        (dk.SavedError("Foreign", "x"), "Foreign"),
        (raised(json.loads, "{"), "JSONDecodeError"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_an_error_that_cannot_be_rebuilt_is_a_saved_error_with_name_and_message(error, name):
    """What is not rebuilt is told, not guessed."""
    back = through_the_disk(error)
    assert type(back) is SavedError
    assert back.type_name == name
    assert back.message == (error.message if isinstance(error, SavedError) else str(error))


def test_a_listed_type_comes_back_as_itself_with_its_attributes():
    """Listing is what makes it a type that may be built."""
    back = through_the_disk(Declined(51, "funds"), (Declined,))
    assert type(back) is Declined
    assert back.code == 51
    assert type(load_error(dump_error(Declined(1, "x"), (Declined,)))) is SavedError


def test_a_listed_type_whose_constructor_does_not_fit_its_arguments_is_a_saved_error():
    """A half-right copy would be worse than a name and a message."""
    back = through_the_disk(Odd(dt.date(2026, 1, 1)), (Odd,))
    assert (type(back), back.message) == (SavedError, "declined on 2026-01-01")


def test_an_error_that_cannot_describe_itself_is_still_saved():
    """Whatever its own code raises, the save goes on."""
    back = through_the_disk(Unreadable(), (Unreadable,))
    assert (type(back), back.type_name) == (SavedError, "Unreadable")


def test_a_strangers_error_of_a_known_name_is_not_taken_for_the_builtin():
    """The type itself is compared, not its name."""
    stranger = type("ValueError", (Exception,), {"__module__": "elsewhere"})
    assert type(through_the_disk(stranger("x"))) is SavedError


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "exec",
        "open",
        "KeyboardInterrupt",
        "SystemExit",
        "SimulatedCrash",
        "Stop",
        "type",
        "Any",
        "annotations",
        "__import__",
        "durakit.store.Store",
        "Store",
        "",
    ],
)
def test_L116_a_type_outside_the_fixed_set_is_never_built(name):
    """Neither a function, nor what ends a drive, nor a class of the kit that is no error."""
    error = load_error({"type": name, "message": "m", "args": ["x"]})
    assert type(error) is SavedError


@laws
@given(
    st.sampled_from([n for n in dir(builtins) if not n.startswith("_")]) | st.text(max_size=9),
    json_values,
)
def test_L116_whatever_a_row_says_an_error_comes_out_and_no_module_comes_in(name, arguments):
    """A row changed by hand builds an error of the fixed set, or a SavedError."""
    before = set(sys.modules)
    error = load_error({"type": name, "args": arguments})
    assert isinstance(error, Exception)
    assert type(error).__module__ in {"builtins", "durakit.errors"}
    assert set(sys.modules) == before


@laws
@given(json_values)
def test_what_plain_json_accepts_is_what_the_codec_saves(value):
    """One writer for values, entries and errors."""
    assert plain_json(value) == PLAIN.dump(value)

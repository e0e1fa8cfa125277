"""Reading source: a function's tree, and what its names stand for, without running anything."""

import ast
import datetime  # noqa: ICN001 - its full name is what is tested
import functools
import inspect
import random
import uuid
from datetime import datetime as moment
from uuid import uuid4 as fresh

import pytest

from durakit.source import UNKNOWN, reached, read_code, short, turned


class Desk:
    """An object with all kinds of attributes."""

    kind = "desk"

    def __init__(self):
        self.top = [1]
        self.act = len

    @property
    def drawer(self):
        """Run code, which reading must not."""
        raise AssertionError("a property was run")

    def __getattr__(self, name):
        raise AssertionError(f"{name} was asked for")

    def write(self, ctx, text):
        """Use what it is handed."""
        return ctx.step(self.kind, self.act, text)

    @staticmethod
    def add(one, two):
        """Add."""
        return one + two

    @classmethod
    def make(cls):
        """Make another one."""
        return cls()


desk = Desk()

#: Imported under these names, which stand in texts below.
NAMED = (moment, fresh, random, datetime)


def resolved(expression: str, function=None):
    """Return what an expression stands for in a function of this module."""
    return read_code(function or body, handle_at=0).resolve(ast.parse(expression, mode="eval").body)


def body(ctx, mine):
    """Have names of its own."""
    import uuid as local

    given = mine
    return local, given


def test_names_are_found_where_python_finds_them() -> None:
    """Module, builtins, closure; of its own names nothing is known."""
    inside = Desk()

    def closed(ctx):
        return inside

    assert resolved("desk") is desk
    assert resolved("len") is len
    assert resolved("inside", closed) is inside
    for own in ("ctx", "mine", "given", "local", "nowhere"):
        assert resolved(own) is UNKNOWN


def test_an_attribute_is_taken_as_it_lies_there() -> None:
    """No property is run and no __getattr__ is asked."""
    assert resolved("desk.kind") == "desk"
    assert resolved("desk.top") is desk.top
    assert resolved("desk.write").__self__ is desk
    assert resolved("desk.add") is Desk.add
    assert resolved("desk.make").__func__ is Desk.make.__func__
    assert resolved("Desk.write") is Desk.write
    assert resolved("uuid.uuid4") is uuid.uuid4
    for unknown in ("desk.drawer", "desk.legs", "desk.legs.more", "uuid.nothing", "mine.name"):
        assert resolved(unknown) is UNKNOWN


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("uuid.uuid4", "uuid.uuid4"),
        ("fresh", "uuid.uuid4"),
        ("local.uuid4", "uuid.uuid4"),
        ("moment.now", "datetime.datetime.now"),
        ("datetime.datetime.now", "datetime.datetime.now"),
        ("random.random", "random.Random.random"),
        ("hash", "builtins.hash"),
        ("mine.name", ""),
        ("nowhere", ""),
    ],
)
def test_what_is_called_has_one_full_name(written: str, name: str) -> None:
    """However it was imported, also inside of the function."""
    code = read_code(body)
    assert code.dotted(ast.parse(written, mode="eval").body) == name


def test_a_handle_is_followed_into_functions_and_methods() -> None:
    """Each function once; what is handed to something without source is lost."""

    def outer(ctx, text):
        with ctx.turn("a", 1):
            inner(ctx, text)
        desk.write(ctx, text)
        [print][0](ctx)  # no name that could be read

    def inner(own, text):
        own.step(text)
        inner(own, text)

    codes, lost = reached(read_code(outer, handle_at=0))
    assert [(code.name, code.handle, code.in_turn) for code in codes] == [
        ("outer", "ctx", False),
        ("inner", "own", True),
        ("write", "ctx", False),
    ]
    assert [how for _, _, how in lost] == ["ctx is handed to [print][0]"]
    assert codes[2].resolve(ast.parse("self.kind", mode="eval").body) == "desk"
    assert turned(codes[0])
    assert not turned(codes[2])


def test_what_has_no_source_is_none() -> None:
    """Builtins, objects, partials, what was made by eval."""
    for thing in (len, desk, functools.partial(body), eval("lambda: 1"), None):  # noqa: S307
        assert read_code(thing) is None


def test_a_lambda_is_found_among_others_on_its_lines() -> None:
    """By the places that its instructions were made of, beside texts and other lambdas."""
    both = [lambda: "é lambda", lambda: 2]
    nested = lambda ctx: lambda: ctx.step  # noqa: E731
    pair = {"one": lambda ctx: ctx.step, "two": both}
    assert [ast.unparse(read_code(one).tree) for one in both] == [
        "lambda: 'é lambda'",
        "lambda: 2",
    ]
    assert ast.unparse(read_code(nested).tree) == "lambda ctx: lambda: ctx.step"
    assert ast.unparse(read_code(nested(None)).tree) == "lambda: ctx.step"
    code = read_code(pair["one"], handle_at=0)
    assert code.handle == "ctx"
    assert code.line(code.tree) == inspect.getsourcelines(pair["one"])[1]


def test_a_long_text_is_one_short_line() -> None:
    """For a table's cell."""
    assert short("a\n  b") == "a b"
    assert len(short("x" * 200)) == 90

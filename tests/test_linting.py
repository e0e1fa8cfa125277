"""Lint: what a report is, and what it says where it cannot follow."""

import functools
import uuid
from pathlib import Path

import pytest
import shop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from IPython.core.compilerop import CachingCompiler
from lint_checks import found, good, keyless, kinds, post, sending, unseen

import durakit as dk
from durakit.linting import (
    EVERYTHING,
    HIDDEN,
    NEW_KEY,
    NO_KEY,
    ONE_LIMIT,
    RULES,
    WHICH_TOOL,
    Report,
    tools_of,
)
from durakit.mail import Mailbox

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


def test_what_is_found_stands_first_and_what_is_clear_last() -> None:
    """One mistake in the middle of many clear rows is overlooked; so in the text and the table."""
    for workflow in (*shop.CORPUS, *shop.BROKEN):
        report = dk.lint(workflow)
        order = [("found", "cannot see", "clear").index(row.kind) for row in report.rows]
        assert order == sorted(order)
        for kind in set(report.table()["kind"]):
            rules = [RULES.index(row.rule) for row in report.rows if row.kind == kind]
            assert rules == sorted(rules)
    first = dk.lint(shop.guess).text().splitlines()[1]
    assert first.startswith("  ✗ found")


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


def test_a_compensation_is_looked_at_as_any_other_tool() -> None:
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
        dk.workflow(functools.partial(keyless), name="lint partial"),
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


def test_what_is_declared_twice_or_called_as_an_object_is_looked_into() -> None:
    """The function under both declarations; the method that makes an object callable."""

    class Calls:
        __name__ = "calls"

        def __call__(self, ctx, to):
            return ctx.call(good, to, "x", key=uuid.uuid4())

    @dk.workflow(name="lint twice, outside")
    @dk.workflow(name="lint twice, inside")
    def twice(ctx, to):
        return ctx.call(good, to, "x", key=uuid.uuid4())

    for subject in (twice, dk.workflow(Calls(), name="lint calls of an object")):
        assert len(found(subject, NEW_KEY)) == 1
        assert not [row for row in dk.lint(subject).unseen if row.rule != ONE_LIMIT]


def test_async_functions_and_generators_that_get_ctx_are_looked_into() -> None:
    """A workflow is a plain function; what it hands ctx to need not be."""

    async def later(ctx, to):
        return ctx.call(good, to, "x", key=uuid.uuid4())

    def each(ctx, recipients):
        for to in recipients:
            yield ctx.call(good, to, "x", key=uuid.uuid4())

    @dk.workflow(name="lint async and generator")
    def both(ctx, recipients):
        return later(ctx, "to"), list(each(ctx, recipients))

    assert len(found(both, NEW_KEY)) == 2
    assert tools_of(both) == [good]


def test_code_that_is_run_from_a_text_is_asked_about() -> None:
    """What exec and eval do with ctx is not written where they stand."""

    @dk.workflow(name="lint texts")
    def texts(ctx, text):
        exec(text)  # noqa: S102 - never run
        return eval(text), locals()  # noqa: S307 - never run

    assert len([words for words in unseen(texts, WHICH_TOOL) if "can reach ctx" in words]) == 3


def test_a_source_that_was_changed_meanwhile_is_not_judged(tmp_path, monkeypatch) -> None:
    """An editor's new text is not the code that this process runs."""
    file = tmp_path / "lint_changed.py"
    text = "import durakit as dk\n\n\n@dk.workflow(name='lint changed')\ndef changed(ctx, to):\n"
    file.write_text(f"{text}    return ctx.step('a', len, to)\n")
    monkeypatch.syspath_prepend(tmp_path)
    changed = __import__("lint_changed").changed
    assert kinds(changed, HIDDEN) == ["clear"]
    file.write_text(f"{text}    return ctx.step('another one', print, to)\n")
    assert kinds(changed, HIDDEN) == ["cannot see"]
    assert "changed since" in unseen(changed, HIDDEN)[0]


def test_a_workflow_of_a_notebook_cell_is_read_as_any_other() -> None:
    """Lambdas too, two on a line; and a cell that is run again gives what it says now."""
    compiler, names = CachingCompiler(), {}

    def run(cell):
        exec(compiler(cell, compiler.cache(cell), "exec"), names)  # noqa: S102 - as a kernel does

    cell = """
import uuid, durakit as dk
from lint_checks import good
two = [dk.tool(lambda call, to: to, name="é"), dk.tool(lambda call: call.key, name="lambda")]
two = [dk.tool(tool.function, effect="idempotent", timeout=3.0, name=tool.name) for tool in two]
w = dk.workflow(lambda ctx, to: ctx.call(good, to, "x", key=KEY), name="a lambda in a cell")
"""
    run(cell.replace("KEY", "str(uuid.uuid4())"))
    first = names["w"]
    run(cell.replace("KEY", "'a'"))
    assert [len(found(one, NEW_KEY)) for one in (first, names["w"])] == [1, 0]
    assert [len(found(tool, NO_KEY)) for tool in names["two"]] == [1, 0]

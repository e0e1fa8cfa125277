"""Public failures of notebooks, restated (rows of cases.csv).

Each test names its row. A notebook is run by nbclient in a kernel of its own, through the check
that the lessons go through (``tools/notebooks.py``). A lesson is run once here, and once more by
nbval. The mailbox's own ledger decides every question about duplicates.
"""

import asyncio
import os
import re
import subprocess
import sys
import textwrap
import warnings
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree as ET

import pytest
from lesson_checks import ROOT, cell_of, read, texts, tool
from nbformat.v4 import new_code_cell, new_notebook

from durakit.lab.crash.plots import plot_states, plot_sweep, plot_timeline
from durakit.lab.crash.scenarios import Scenario
from durakit.lab.crash.widgets import Inbox
from durakit.lab.html import Lines
from durakit.mail import Mailbox

LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CLOSING = 'from durakit.lab.exercises import Note\nNote("■ END", "closed")'
OBJECT = re.compile(r"<[\w.]+(?: object)? at 0x|<Figure|<Axes|0x[0-9a-f]{6,}|\(children=|Output\(")


def notebook_of(*cells):
    """Return a notebook of these cells, with the closing mark that our check asks for."""
    sources = [textwrap.dedent(cell).strip() for cell in cells]
    return new_notebook(cells=[new_code_cell(source) for source in (*sources, CLOSING)])


def outputs(notebook):
    """Return what each cell but the closing one shows, as plain text."""
    return [texts(cell) for cell in notebook.cells[:-1]]


def under_nbval(folder):
    """Return how nbval judges stored notebooks in its own process: name → a verdict a cell."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "conftest"]
    command += ["--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTEST_CURRENT_TEST", None)
    subprocess.run(
        [*command, f"--junitxml={report}", str(folder)],
        check=False, capture_output=True, env=environment, cwd=folder, timeout=300,
    )  # fmt: skip
    verdicts = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written by our own pytest
        name = case.get("classname").rpartition(".")[0].rpartition(".")[2]
        verdicts.setdefault(name, []).append(len(case) == 0)
    return verdicts


def run_and_compare(paths, folder):
    """Have lessons run by nbclient and stored as lessons are, then compared by nbval."""
    folder.mkdir()
    copies = [folder / path.name for path in paths]
    for path, copy in zip(paths, copies, strict=True):
        copy.write_bytes(path.read_bytes())
    # In a process of its own: nbclient leaves the event loop of a thread open.
    command = [sys.executable, str(ROOT / "tools" / "notebooks.py"), *map(str, copies)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    verdicts = under_nbval(folder)
    return {
        path: {"said": done.stdout.splitlines(), "stored": read(copy), "nbval": verdicts}
        for path, copy in zip(paths, copies, strict=True)
    }


@pytest.fixture(scope="module")
def lessons(tmp_path_factory):
    """Every lesson, run by nbclient and then by nbval; two at a time."""
    folder = tmp_path_factory.mktemp("lessons")
    halves = [half for half in (LESSONS[::2], LESSONS[1::2]) if half]
    with ThreadPoolExecutor(2) as two:
        first = two.map(run_and_compare, halves, [folder / str(at) for at in range(len(halves))])
        return {path: judged for half in first for path, judged in half.items()}


each_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem[:2])


# -- what is shown, and by whom --------------------------------------------------------------------


@each_lesson
def test_a_lesson_stored_by_one_runner_holds_under_the_other(path, lessons):
    """What nbclient stores, nbval finds again: nothing hangs on who captures it (L125)."""
    judged = lessons[path]
    assert [said for said in judged["said"] if path.name in said] == [f"{path.name}: good"]
    code = [cell for cell in judged["stored"].cells if cell.cell_type == "code"]
    assert judged["nbval"][path.stem] == [True] * len(code)


@each_lesson
def test_a_widget_in_a_lesson_has_words_of_its_own(path, lessons):
    """No output is only a widget's view, and none is the text of one without a kernel (L125)."""
    for cell in lessons[path]["stored"].cells:
        for output in cell.get("outputs", []):
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            assert text.strip(), cell.id
            assert OBJECT.search(text) is None, cell.id


# -- a button whose handler raises -----------------------------------------------------------------


def test_an_error_behind_a_button_is_seen_by_a_plain_test_and_by_the_learner(tmp_path, caplog):
    """The words stand beside the button; a test that asks gets the error itself (L127)."""
    mailbox = Mailbox(tmp_path)
    inbox = Inbox(mailbox)
    inbox.raise_trouble()
    mailbox.close()
    inbox.refresh.click()
    with pytest.raises(RuntimeError, match="this mailbox is closed"):
        inbox.raise_trouble()
    assert inbox._trouble in inbox.children
    assert "RuntimeError: this mailbox is closed" in inbox._trouble.value
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.exc_info[0] is RuntimeError
    stored = inbox._repr_mimebundle_()
    for kind in ("text/plain", "text/html"):
        assert "RuntimeError: this mailbox is closed" in stored[kind]


def test_an_error_behind_a_button_makes_a_headless_run_fail(tmp_path):
    """Nobody asks and nobody looks, and the check of our notebooks is red all the same (L127)."""
    notebook = notebook_of(
        """
        from durakit.lab.crash.widgets import Inbox
        from durakit.mail import Mailbox
        mailbox = Mailbox()
        inbox = Inbox(mailbox)
        mailbox.close()
        inbox.refresh.click()
        """,
        "inbox",
    )
    (problem,) = tool.run(notebook, tmp_path)
    assert problem.startswith("a cell wrote to stderr: an error in a control: RuntimeError")
    (shown,) = texts(notebook.cells[1])
    assert shown.startswith("✗ Something went wrong\n  RuntimeError: this mailbox is closed")


# -- lines of a worker -----------------------------------------------------------------------------

WORKER = (
    """
    import threading
    import durakit as dk
    from durakit.lab.html import Lines
    from durakit.mail import Mailbox

    lines, go = Lines("WORKER"), [threading.Event() for _ in range(3)]
    done, mailbox = threading.Event(), Mailbox(latency=0)

    @dk.tool(timeout=0.03)
    def send(call):
        for number, event in enumerate(go):
            lines.add(f"part {number} of {call.key}")
            event.wait(20)
        sent = mailbox.send("ada@example.org", "Welcome", "Hello", key=call.key)
        lines.add(f"sent {sent['id']}")
        done.set()
        return sent

    @dk.workflow
    def welcome(ctx):
        return ctx.call(send, key="welcome:42")

    rt = dk.Runtime("runs.db")
    run = rt.run(welcome, id="welcome:42")
    print(run.status)
    """,
    "go[0].set()\nprint('a cell of its own')",
    "go[1].set()\nprint('another')",
    "go[2].set()\nprint(done.wait(20), len(mailbox.effects()))",
    "lines",
)


def test_lines_of_a_worker_are_the_same_in_five_runs(tmp_path):
    """They are collected, and shown by the cell that asks for them (L128)."""
    shown = []
    for number in range(5):
        folder = tmp_path / str(number)
        folder.mkdir()
        notebook = notebook_of(*WORKER)
        assert tool.run(notebook, folder) == []
        shown.append(outputs(notebook))
    lines = "WORKER\n  " + "\n  ".join(
        [*(f"part {n} of welcome:42" for n in range(3)), "sent email-1"]
    )
    expected = [["needs_decision\n"], ["a cell of its own\n"], ["another\n"], ["True 1\n"], [lines]]
    assert shown == [expected] * 5


def test_a_line_of_a_worker_is_shown_and_never_run():
    """Before the first line it says so; a hostile one is one line of words (L128)."""
    lines = Lines("WORKER")
    assert lines.text() == "WORKER\n  (no line yet)"
    lines.add("<script>\nalert(1)")
    assert lines.text() == "WORKER\n  <script> alert(1)"
    assert "<li>&lt;script&gt; alert(1)</li>" in lines.html()


# -- the same call everywhere ----------------------------------------------------------------------

SIMPLE = """
import asyncio, tempfile, warnings
warnings.simplefilter("error")
import durakit as dk
before = asyncio.run, asyncio.new_event_loop, asyncio.BaseEventLoop.run_until_complete
workflow = dk.workflow(lambda ctx: ctx.step("a", lambda: 41) + 1, name="simple")
with tempfile.TemporaryDirectory() as folder, dk.Runtime(folder + "/runs.db") as rt:
    result = rt.run(workflow, id="a").result
same = before == (asyncio.run, asyncio.new_event_loop, asyncio.BaseEventLoop.run_until_complete)
print(result, same)
"""


def test_the_simple_call_is_the_same_in_a_script_a_cell_and_an_asynchronous_test(tmp_path):
    """One text, three places, one result: no loop is patched and nothing warns (L130)."""
    script = [sys.executable, "-W", "error", "-c", SIMPLE]
    done = subprocess.run(script, check=True, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("42 True\n", "")

    notebook = notebook_of("import asyncio\nprint(asyncio.get_running_loop().is_running())", SIMPLE)
    assert tool.run(notebook, tmp_path) == []
    assert outputs(notebook) == [["True\n"], ["42 True\n"]]

    async def inside():
        names = {}
        exec(SIMPLE, names)  # noqa: S102 - our own text
        await asyncio.sleep(0)
        return names["result"], names["same"]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert asyncio.run(inside()) == (42, True)


# -- charts ----------------------------------------------------------------------------------------


@each_lesson
def test_a_chart_in_a_lesson_is_its_numbers_as_text(path, lessons):
    """Two runs give the same text, byte for byte, and no name of an object in it (L131)."""
    ours, theirs = lessons[path]["stored"], read(path)
    told = [
        [output for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
        for notebook in (ours, theirs)
        for cell in notebook.cells
    ]
    charts = [output for cell in told for output in cell]
    half = len(charts) // 2
    for mine, shipped in zip(charts[:half], charts[half:], strict=True):
        text = mine.data["text/plain"]
        assert text.encode() == shipped.data["text/plain"].encode()
        alt, heads, *rows = text.splitlines()
        assert mine.metadata["image/png"]["alt"] == alt
        assert len(heads.split()) > 1
        assert rows
        assert OBJECT.search(text) is None
        assert "text/html" not in mine.data


def test_a_chart_drawn_twice_is_the_same_and_another_number_is_another_text():
    """What is compared is what is drawn: a bar that grew is a line that differs (L131)."""
    import shop

    trace = Scenario(shop.guess, (shop.ADA,), shop.silent).trace
    frame = trace.frames[9]
    for draw in (
        lambda: plot_sweep(trace),
        lambda: plot_timeline(frame.recovered, before=frame.crashed),
        plot_states,
    ):
        first, second = draw(), draw()
        assert first.text().encode() == second.text().encode()
        assert first.png() == second.png()
        assert OBJECT.search(first.text()) is None
    plot = plot_sweep(trace)
    widths = [bar.get_width() for bar in plot.figure().axes[0].patches]
    column = [re.split(r" {2,}", line.strip())[3] for line in plot.text().splitlines()[2:]]
    assert [float(number) for number in column] == widths
    assert 2.0 in widths


# -- a cell that hangs, a cell that is broken ------------------------------------------------------


def test_a_cell_that_hangs_is_ended_by_the_kits_own_deadline(tmp_path):
    """The call is unknown, as the ledger says rightly, and the next cell works (L133)."""
    notebook = notebook_of(
        """
        import threading
        import durakit as dk
        from durakit.mail import Mailbox
        mailbox = Mailbox(latency=0)

        @dk.tool(timeout=0.04)
        def send(call):
            mailbox.send("ada@example.org", "Welcome", "Hello")
            threading.Event().wait()

        @dk.workflow
        def hangs(ctx):
            return ctx.call(send, key="welcome:42")

        @dk.workflow
        def works(ctx):
            return ctx.step("a", lambda: "done")

        rt = dk.Runtime("runs.db")
        run = rt.run(hangs, id="welcome:42")
        print(run.status, run.operations().loc[0, "outcome"], len(mailbox.effects()))
        """,
        "print(rt.run(works, id='next').result)",
    )
    assert tool.run(notebook, tmp_path) == []
    assert outputs(notebook) == [["needs_decision unknown 1\n"], ["done\n"]]


def test_a_copy_of_a_lesson_with_an_unknown_magic_is_red(tmp_path):
    """The magic alone, in a cell of its own, is enough; so is a line after it (L134)."""
    notebook = read(LESSONS[0])
    notebook.cells = [
        cell_of(notebook, "first"),
        new_code_cell("%no_such_magic"),
        notebook.cells[-1],
    ]
    (problem,) = tool.run(notebook, tmp_path)
    assert "no_such_magic" in problem


# -- a kernel that dies ----------------------------------------------------------------------------

SEND = (
    """
    import durakit as dk
    from durakit.mail import Mailbox
    clock = dk.ManualClock()
    mailbox = Mailbox("world", profile="queryable", clock=clock)

    def ask(call):
        found = mailbox.find(call.key)
        return dk.Absent if found is None else dk.Found(found)

    @dk.tool(effect="queryable", probe=ask, settles_after=0)
    def send(call):
        return mailbox.send("ada@example.org", "Welcome", "Hello", key=call.key)

    @dk.workflow
    def welcome(ctx):
        return ctx.call(send, key="welcome:42")

    rt = dk.Runtime("runs.db", world=mailbox, clock=clock)
    """,
    """
    run = rt.run(welcome, id="welcome:42")
    print(run.status, run.operations().loc[0, "outcome"])
    """,
    """
    print("before:", run.operations().loc[0, "outcome"], len(mailbox.effects()))
    rt.recover(wait=60)
    print("after:", run.operations().loc[0, "outcome"], len(mailbox.effects()))
    history = run.history()
    print(*history["kind"], "-", history["payload"].iloc[-2]["basis"])
    """,
)


@pytest.mark.real_kill
def test_a_kernel_killed_after_the_delivery_sends_no_second_mail(tmp_path):
    """All cells again from the top: unknown first, then settled by asking, and one mail (L136)."""
    arm = """
    import os, signal
    mailbox.listen(lambda point, key: point == "acted" and os.kill(os.getpid(), signal.SIGKILL))
    """
    assert tool.run(notebook_of(SEND[0], arm, *SEND[1:]), tmp_path) == ["its kernel died"]
    mailbox = Mailbox(tmp_path / "world", latency=0)
    assert len(mailbox.effects()) == 1

    again = notebook_of(*SEND)
    assert tool.run(again, tmp_path) == []
    _, [sent], [settled] = outputs(again)
    assert sent == "running unknown\n"
    before, after, by = settled.splitlines()
    assert (before, after) == ("before: unknown 1", "after: completed 1")
    assert by == "started claimed intent claimed result completed - probe: found"
    assert [effect["key"] for effect in mailbox.effects()] == ["welcome:42"]
    mailbox.close()


# -- a reload --------------------------------------------------------------------------------------

RELOAD = """
import importlib, sys
import durakit as dk
from durakit.protocol import Outcome
from pydantic import BaseModel

class Letter(BaseModel):
    stage: str = "write"

def define():
    @dk.machine(state=Letter)
    def write(ctx, state):
        return Letter(stage="sent") if state.stage == "write" else dk.Done(state, result=1)
    return write

@dk.tool(effect="none")
def look(call):
    return 1

@dk.workflow
def asks(ctx):
    return ctx.call(look, key="a")

rt = dk.Runtime("runs.db")
held = rt.run(define(), Letter(), id="letter").status
outcome = rt.run(asks, id="asks").operations().loc[0, "outcome"]
member, names = Outcome.COMPLETED, [name for name in sys.modules if name.startswith("durakit")]
rt.close()
old = sys.modules["durakit.protocol"].Outcome
for name in names:
    importlib.reload(sys.modules[name])
new = sys.modules["durakit.protocol"].Outcome
assert new is not old
define()
with dk.Runtime("runs.db") as rt:
    run = rt.get("letter")
    print(run.status == held == "completed", outcome == member == new.COMPLETED,
          rt.get("asks").operations().loc[0, "outcome"] == member, {member: 1}[new.COMPLETED])
    print([run.at(seq).stage for seq in run.checkpoints().seq], run.result)
"""


def test_a_status_held_over_a_reload_is_still_completed(tmp_path):
    """Words compare by what they say; a checkpoint saved before loads again (L137)."""
    notebook = notebook_of(RELOAD)
    assert tool.run(notebook, tmp_path) == []
    (shown,) = texts(notebook.cells[0])
    assert shown.splitlines() == ["True True True 1", "['sent', 'sent'] 1"]

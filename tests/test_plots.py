"""A plot must draw the numbers it tells, and be readable without seeing colours or the picture."""

import base64
import io
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import matplotlib.image
import pytest
import shop
from nbval.plugin import IPyNbFile
from pages import Page

import durakit as dk
from durakit.lab.crash.moments import Moment, Truth
from durakit.lab.crash.plots import plot_states, plot_sweep, plot_timeline
from durakit.lab.crash.scenarios import Scenario
from durakit.lab.plots import WIDGET_VIEW, Plot
from durakit.protocol import OUTCOMES, TRANSITIONS, Status
from durakit.sweep import Report

HOSTILE = "<script>alert(1)</script> \"q\" 'q' & $\\frac{$ $x$ \x00\x1b[31m\u202e " + "y" * 10_000


@pytest.fixture(scope="module")
def trace():
    """The trace of the workflow that guesses."""
    return Scenario(shop.guess, (shop.ADA,), shop.silent).trace


@pytest.fixture(scope="module")
def plots(trace):
    """One plot of each kind."""
    frame = trace.frames[9]
    return [
        plot_sweep(trace),
        plot_timeline(frame.recovered, before=frame.crashed, title="crash 10"),
        plot_states(),
    ]


def words(plot: Plot) -> list[str]:
    """Every piece of text in a figure, as it is drawn."""
    figure = plot.figure()
    figure.canvas.draw()
    axes = figure.axes[0]
    labels = [*axes.get_yticklabels(), *axes.get_xticklabels()]
    drawn = [*axes.texts, *labels, axes.title, axes.xaxis.label, axes.get_title(loc="left")]
    return [one if isinstance(one, str) else one.get_text() for one in drawn]


def bars(plot: Plot) -> list:
    """The bars of a figure, from the first."""
    return list(plot.figure().axes[0].patches)


def test_each_bar_is_as_long_as_its_ledger_says(trace):
    """The table, the bars and the sweep have the same numbers in the same order."""
    plot = plot_sweep(trace)
    counted = [schedule.effects for schedule in trace.report.schedules]
    assert plot.table()["effects"].tolist() == counted
    assert [bar.get_width() for bar in bars(plot)] == counted
    assert plot.table()["verdict"].tolist() == [s.verdict for s in trace.report.schedules]


def test_what_is_not_safe_is_hatched_and_says_so(trace):
    """Take the colours away, and the bars can still be told apart."""
    plot = plot_sweep(trace)
    for bar, schedule in zip(bars(plot), trace.report.schedules, strict=True):
        assert bool(bar.get_hatch()) is not schedule.good
    drawn = Counter(words(plot))
    assert (drawn["2  ✗ duplicate"], drawn["1  ✗ blind guess"], drawn["1  ✓ safe"]) == (3, 2, 8)
    assert "not safe: 7, 8, 9, 10, 11" in plot.alt


def test_a_report_is_drawn_like_its_trace(trace):
    """A learner who only has a report gets the same picture."""
    assert plot_sweep(trace.report).text() == plot_sweep(trace).text()


def test_a_crash_that_was_not_reached_is_no_bar_of_zero(trace):
    """It has a dash for a number and a dashed outline, and never a mark of safety."""
    first, *others = trace.report.schedules
    unseen = replace(first, effects=None, verdict="not reachable")
    plot = plot_sweep(replace(trace.report, schedules=(unseen, *others)))
    assert plot.rows[0]["effects"] == "-"
    assert any("? not reachable" in word for word in words(plot))
    assert bars(plot)[0].get_linestyle() == "--"


def test_a_sweep_of_nothing_can_be_drawn():
    """An empty report is an empty picture and no error."""
    plot = plot_sweep(Report("nothing", "simulated", 0, ()))
    assert plot.png()
    assert "0 crashes" in plot.alt


def test_every_transition_is_in_the_diagram():
    """The diagram has one truth: protocol.TRANSITIONS."""
    plot = plot_states()
    told = {(row["from"], row["event"], row["to"]) for row in plot.rows}
    assert told == {(b.value, e.value, a.value) for (b, e), a in TRANSITIONS.items()}
    drawn = Counter(line for word in words(plot) for line in word.split("\n"))
    edges = {(before, after) for (before, _), after in TRANSITIONS.items()}
    for before, after in edges:
        led_by = [e.value for (b, e), a in TRANSITIONS.items() if (b, a) == (before, after)]
        label = "\n".join(event.replace(" (", "\n(") for event in led_by)
        assert label in words(plot)
    for status in Status:
        outcome = OUTCOMES[status].value.replace("_", " ") if status in OUTCOMES else "no record"
        assert f"{status.value}\n{outcome}" in words(plot)
    assert drawn["probe: found"] == 2


def test_a_new_transition_is_drawn_without_being_placed_by_hand(monkeypatch):
    """The protocol may grow before the picture is made pretty."""
    event = next(iter(TRANSITIONS))[1]
    monkeypatch.setitem(TRANSITIONS, (Status.SUCCEEDED, event), Status.FAILED)
    monkeypatch.setitem(TRANSITIONS, (Status.FAILED, event), Status.FAILED)
    plot = plot_states()
    assert {"SUCCEEDED", "FAILED"} <= {row["from"] for row in plot.rows}
    assert plot.png()


def test_the_time_line_has_a_mark_for_each_row(trace):
    """Each entry and each effect is one marker; a crash is one line across both lanes."""
    frame = trace.frames[9]
    plot = plot_timeline(frame.recovered, before=frame.crashed)
    lanes = Counter(plot.table()["lane"])
    assert lanes == {"belief": 8, "truth": 4, "crash": 1}
    heights = Counter(
        line.get_ydata()[0]
        for line in plot.figure().axes[0].lines
        if line.get_marker() not in ("None", None, "")
    )
    assert heights == {1: 8, 0: 4}
    assert "✗ crash" in words(plot)
    assert "2 effect(s) in the ledger below, with a crash between" in plot.alt


def test_a_run_can_be_drawn_beside_its_world(tmp_path):
    """Without a scenario: a run and the world that it touched."""
    clock = dk.ManualClock()
    shop.deduping.clock = clock
    shop.deduping.fresh(tmp_path / "world")
    with dk.Runtime(tmp_path / "run.db", clock=clock, world=shop.deduping) as rt:
        run = rt.run(shop.welcome, shop.ADA, id="1")
        plot = plot_timeline(run, shop.deduping, title="one run")
    assert plot.table()["what"].tolist()[-1] == "completed"
    assert "1 effect(s)" in plot.alt


def test_a_notebook_gets_what_can_be_compared_apart_from_what_cannot(plots):
    """What is compared is text; the picture's bytes are only where it never looks."""
    skipped = {WIDGET_VIEW, "image/png"}
    source = IPyNbFile.__init__.__code__
    assert skipped <= {
        name for names in source.co_consts if isinstance(names, tuple) for name in names
    }
    for plot in plots:
        bundle, metadata = plot._repr_mimebundle_()
        assert set(bundle) == {"text/plain", *skipped}
        assert bundle["text/plain"] == plot.text() == plot._repr_mimebundle_()[0]["text/plain"]
        assert "base64" not in bundle["text/plain"]
        picture = base64.b64decode(bundle["image/png"])
        assert matplotlib.image.imread(io.BytesIO(picture), format="png").shape[1] > 500
        assert metadata["image/png"]["alt"] == plot.alt
        assert json.dumps(bundle)


def test_text_holds_the_words_and_every_number(plots):
    """Who sees no picture gets the same: the alternative text, and a line for each row."""
    for plot in plots:
        lines = plot.text().splitlines()
        assert lines[0] == plot.alt
        assert len(lines) == len(plot.table()) + 2


def test_the_live_picture_has_an_alternative_text_and_a_table(plots):
    """A screen reader finds the words in ``alt`` and the numbers in a real table."""
    for plot in plots:
        seen = Page(plot.html())
        assert seen.alts == [plot.alt]
        assert seen.tags["table"] == 1
        assert seen.tags["td"] == len(plot.rows) * len(plot.rows[0])


def test_the_background_is_white_in_every_theme(plots):
    """Black words on a transparent picture would vanish in the dark."""
    for plot in plots:
        picture = matplotlib.image.imread(io.BytesIO(plot.png()), format="png")
        assert picture[0, 0].tolist() == [1.0, 1.0, 1.0, 1.0]


def hostile_moment():
    """A moment in which every word was written by somebody hostile."""
    operation = dict.fromkeys(("tool", "key", "status", "outcome"), HOSTILE) | {"attempts": 1}
    entry = {"seq": 1, "incarnation": 1, "kind": HOSTILE, "step": HOSTILE, "key": HOSTILE}
    entry |= {"attempt": 1, "seconds": 0.0, "says": HOSTILE}
    effect = {"tool": HOSTILE, "key": HOSTILE, "digest": HOSTILE, "time": 1.0}
    request = {"number": 1, "key": HOSTILE, "outcome": HOSTILE, "id": HOSTILE, "time": 1.0}
    mail = {"id": HOSTILE, "to": HOSTILE, "subject": HOSTILE, "body": HOSTILE, "time": 1.0}
    key = {"key": HOSTILE, "digest": HOSTILE, "id": HOSTILE, "first": 1.0, "expires": None}
    truth = Truth((effect,), (mail,), (key,), (request,))
    return Moment(HOSTILE, HOSTILE, (operation,), (entry,), truth, 0.0)


def test_hostile_names_are_drawn_and_never_run(trace):
    """Markup, formulas and control characters of others are words; ten kilobytes are cut."""
    first = replace(trace.report.schedules[0], place=HOSTILE, point=HOSTILE)
    report = replace(trace.report, workflow=HOSTILE, schedules=(first,))
    for plot in (plot_sweep(report), plot_timeline(hostile_moment(), title=HOSTILE)):
        assert plot.png()
        seen = Page(plot.html())
        assert seen.tags["script"] == 0
        assert not {name for name in seen.attributes if name.startswith("on")}
        assert len(plot.text()) < 5_000
        assert all(char.isprintable() or char == "\n" for char in plot.text())
        assert any("<script>" in word for word in words(plot))


def test_pictures_do_not_pile_up_in_memory_and_the_runtime_needs_none():
    """Drawing loads no pyplot, and ``import durakit`` loads neither matplotlib nor widgets."""
    code = (
        "import sys, durakit, durakit.sweep\n"
        "heavy = {'matplotlib', 'ipywidgets', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "from durakit.lab.crash.plots import plot_states\n"
        "plot_states().png()\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

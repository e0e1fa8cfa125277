"""Pictures of backoff hold the numbers that they tell: of one client, a crowd, and each rule."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import durakit as dk
from durakit.lab.backoff.client import Backoff, in_percent
from durakit.lab.backoff.explorers import JITTERS, BackoffModel, HerdModel
from durakit.lab.backoff.herd import Crowd
from durakit.lab.backoff.plots import plot_backoff, plot_crowd, plot_policies
from durakit.lab.backoff.rules import DEADLINE_RULES, DeadlineRule, deadline_policies
from durakit.lab.plots import Plot

# -- the words and the picture ---------------------------------------------------------------------


def test_the_words_say_how_the_draw_ends() -> None:
    """Stopped by the deadline, or all attempts made, with the seconds."""
    model = BackoffModel(seed=1)
    assert model.status() == (
        "With full jitter and seed 1: attempt 6 of 7, at 7.426 s, is the last. The next wait, "
        "3.596 s, would reach the deadline of 10 s, so it is not begun."
    )
    model.attempts = 4
    assert model.status() == (
        "With full jitter and seed 1: all 4 attempts are made, the last one at 2.442 s, 7.558 s "
        "before the deadline."
    )
    model.jitter = "none"
    assert model.status().startswith("With no jitter and seed 1: all 4 attempts are made")


def words(plot: Plot) -> list[str]:
    """Every piece of text in a figure."""
    figure = plot.figure()
    figure.canvas.draw()
    found = []
    for axes in figure.axes:
        found += [*axes.texts, *axes.get_yticklabels(), axes.xaxis.label, axes.yaxis.label]
        found.append(axes._left_title)
    return [one.get_text() for one in found]


@pytest.mark.parametrize("jitter", JITTERS)
def test_each_box_is_its_window_and_each_mark_its_wait(jitter) -> None:
    """The picture has the numbers of the table, at their places on the axis."""
    shown = Backoff.of(dk.Retry(0.5, 8.0, 7, jitter=jitter), 10.0, seed=1)
    (axes,) = plot_backoff(shown).figure().axes
    reached = [wait for wait in shown.waits if wait.begins is not None]
    boxes = [bar for bar in axes.patches if bar.get_height() == pytest.approx(0.56)]
    assert [(box.get_x(), box.get_width()) for box in boxes] == [
        (pytest.approx(wait.begins + wait.low), pytest.approx(wait.high - wait.low))
        for wait in reached
    ]
    marks = [line for line in axes.lines if line.get_marker() in ("D", "x")]
    assert [line.get_xdata()[0] for line in marks] == [wait.ends for wait in reached]
    assert [line.get_marker() for line in marks] == ["D" if wait.begun else "x" for wait in reached]
    assert 10.0 in [line.get_xdata()[0] for line in axes.lines if line.get_linewidth() == 2]
    drawn = words(plot_backoff(shown))
    assert "deadline 10 s " in drawn
    assert drawn.count("not reached") == len(shown.waits) - len(reached)
    for wait in shown.waits:
        assert in_percent(wait.chance) in drawn


@pytest.mark.parametrize("jitter", JITTERS)
@pytest.mark.parametrize("deadline", [0.5, 5.0, 10.0, 120.0])
@pytest.mark.parametrize("initial", [0.05, 8.0])
def test_no_words_stand_outside_the_picture(jitter, deadline, initial) -> None:
    """Whatever the windows are, every label is wholly inside the figure."""
    shown = Backoff.of(dk.Retry(initial, 60.0, 6, jitter=jitter), deadline, seed=3)
    figure = plot_backoff(shown).figure()
    FigureCanvasAgg(figure).draw()
    box = figure.bbox
    for text in figure.axes[0].texts:
        extent = text.get_window_extent()
        assert extent.x0 >= box.x0 - 1, text.get_text()
        assert extent.x1 <= box.x1 + 1, text.get_text()


def test_a_wait_that_was_never_reached_has_no_numbers() -> None:
    """What would have been drawn there is nobody's business."""
    shown = Backoff.of(dk.Retry(8.0, 8.0, 4), 5.0, seed=1)
    last = shown.rows()[-1]
    assert (last["at"], last["window"], last["drawn"]) == ("-", "-", "-")
    assert last["so"] == "- not reached"


def test_the_model_refuses_what_no_policy_could_be() -> None:
    """No negative window, no deadline of nothing, no unknown jitter."""
    for name, value in [("initial", -1.0), ("deadline", 0.0), ("attempts", 1), ("jitter", "some")]:
        with pytest.raises(Exception, match=name):
            BackoffModel(**{name: value})


# -- the crowd -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowds() -> tuple[Crowd, Crowd]:
    """1,000 clients without jitter, and with it."""
    return HerdModel().crowds


def panels(plot: Plot):
    """The axes of a figure, drawn."""
    figure = plot.figure()
    figure.canvas.draw()
    return figure.axes


def test_each_bar_counts_the_arrivals_of_its_time(crowds) -> None:
    """The bars, the table and the arrivals have the same numbers; none is left out."""
    plot = plot_crowd(*crowds, width=0.25)
    for axes, crowd, head in zip(
        panels(plot), crowds, ("without jitter", "with jitter"), strict=True
    ):
        heights = [int(bar.get_height()) for bar in axes.patches]
        assert sum(heights) == crowd.calls == len(crowd.arrivals)
        counted = [int(np.sum((crowd.arrivals >= n / 4) & (crowd.arrivals < (n + 1) / 4)))
                   for n in range(len(heights))]  # fmt: skip
        assert heights == counted
        assert plot.table()[head].sum() == crowd.calls


def test_both_panels_have_the_same_scales(crowds) -> None:
    """Else the eye compares nothing."""
    upper, lower = panels(plot_crowd(*crowds))
    assert upper.get_ylim() == lower.get_ylim()
    assert upper.get_xlim() == lower.get_xlim()
    assert upper.get_ylim()[1] > 1000


def test_the_peaks_are_told_in_words(crowds) -> None:
    """The largest bar, its number and its moment, beside the shape and in the alternative text."""
    plot = plot_crowd(*crowds, width=0.25, capacity=200)
    assert "No jitter: up to 1,000 requests in 0.25 s (from 0.5 s)" in plot.alt
    assert "Full jitter: up to 675 requests in 0.25 s (from 0.25 s)" in plot.alt
    drawn = words(plot)
    assert "1,000" in drawn
    assert "the service can serve 50 " in drawn
    assert all(part in " ".join(drawn) for part in ("No jitter: up to", "Full jitter: up to"))
    upper, lower = panels(plot)
    assert all(bar.get_hatch() for bar in upper.patches)
    assert not any(bar.get_hatch() for bar in lower.patches)


def test_the_bars_are_few_enough_to_be_read(crowds) -> None:
    """At most forty, whatever the crowd did."""
    long = replace(crowds[0], arrivals=np.array([0.0, 9e4]), calls=2)
    for pair in (crowds, (long, crowds[1])):
        assert len(panels(plot_crowd(*pair))[0].patches) <= 41


def test_a_crowd_that_never_comes_back_can_be_drawn(crowds) -> None:
    """Nobody is an answer too."""
    nobody = replace(crowds[0], arrivals=np.array([]), calls=0)
    plot = plot_crowd(nobody, nobody)
    assert plot.png()
    assert "nobody comes back" in plot.alt


def test_the_herd_model_says_what_comes_of_both() -> None:
    """Served, given up, and requests; the served are as many as the crowd says."""
    model = HerdModel(clients=300)
    one, two = model.crowds
    assert f"No jitter: {one.served} of 300 clients are served" in model.status()
    assert f"Full jitter: {two.served} of 300" in model.status()
    assert two.served > one.served


# -- the deadline rules ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rules() -> tuple[DeadlineRule, ...]:
    """All rules, few clients."""
    return deadline_policies(clients=2000)


def test_each_rule_has_its_two_bars(rules) -> None:
    """Success on the left, the herd on the right; the numbers of the simulation."""
    left, right = panels(plot_policies(rules))
    assert [bar.get_width() for bar in left.patches] == [row.success for row in rules]
    assert [bar.get_width() for bar in right.patches] == [row.busiest for row in rules]
    names = [label.get_text() for label in left.get_yticklabels()]
    assert names == [rule.replace("_", " ") for rule in DEADLINE_RULES]


def test_what_is_wrong_with_a_rule_is_hatched_and_said(rules) -> None:
    """Take the colours away, and herds and late answers can still be told."""
    left, right = panels(plot_policies(rules))
    herds = [row.rule for row, bar in zip(rules, right.patches, strict=True) if bar.get_hatch()]
    late = [row.rule for row, bar in zip(rules, left.patches, strict=True) if bar.get_hatch()]
    assert (herds, late) == (["clamp_reserve", "clamp", "truncate"], ["overshoot"])
    drawn = words(plot_policies(rules))
    assert sum("✗ a herd" in word for word in drawn) == 3
    assert sum("✗ but late" in word for word in drawn) == 1

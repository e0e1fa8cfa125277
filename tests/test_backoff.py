"""Backoff to look at: what is drawn is what a real run waits, and the chances are exact."""

import json
import math
import random
import re
import threading
from dataclasses import replace
from fractions import Fraction
from html.parser import HTMLParser

import ipywidgets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg

import durakit as dk
from durakit.lab import backoff
from durakit.lab.backoff import (
    JITTERS,
    Backoff,
    BackoffExplorer,
    BackoffModel,
    HerdExplorer,
    HerdModel,
    in_percent,
    plot_backoff,
    plot_crowd,
    plot_policies,
)
from durakit.lab.herd import Crowd
from durakit.lab.jitter import DEADLINE_RULES, DeadlineRule, deadline_policies, exceeds
from durakit.lab.plots import WIDGET_VIEW, Plot
from durakit.lab.view import CONTROL_NAMES
from durakit.retry import Jitter

# -- against a real run ----------------------------------------------------------------------------


def real_run(tmp_path, policy: dk.Retry, deadline: float, seed: int):
    """Run a call that is always refused, in no time, on a manual clock; return run and clock."""

    @dk.tool(name="backoff_refused", effect="idempotent", window=86_400, retry=policy)
    def refused(call):
        raise dk.NotExecuted("busy", transient=True)

    @dk.workflow(name="backoff_run")
    def workflow(ctx):
        return ctx.call(refused, key="once")

    clock = dk.ManualClock()
    runtime = dk.Runtime(tmp_path / "runs.db", clock=clock, rng=random.Random(seed))
    run = runtime.run(workflow, id="one", deadline=deadline)
    return run, clock, runtime


@pytest.mark.parametrize("jitter", JITTERS)
@pytest.mark.parametrize(
    ("attempts", "deadline", "seed"), [(7, 10.0, 1), (7, 30.0, 2), (3, 5.0, 3)]
)
def test_the_drawn_waits_are_those_of_a_real_run(
    tmp_path, jitter, attempts, deadline, seed
) -> None:
    """Every sleep of the clock and every journal entry, to the last bit; then both stop."""
    policy = dk.Retry(0.5, 8.0, attempts, jitter=jitter)
    shown = Backoff.of(policy, deadline, seed)
    run, clock, runtime = real_run(tmp_path, policy, deadline, seed)
    begun = [wait.seconds for wait in shown.waits if wait.begun]
    assert clock.sleeps == begun
    told = [row["then"] for row in run.history()["payload"] if "then" in row]
    waited = [then for then in told if "seconds" in then]
    assert [then["seconds"] for then in waited] == begun
    assert [then["bound"] for then in waited] == [wait.high for wait in shown.waits if wait.begun]
    # The one that did not fit is there too, and is the one that is shown.
    unfit = [(then["drawn"], then["bound"]) for then in told if "drawn" in then]
    assert unfit == [(wait.seconds, wait.high) for wait in [shown.refused] if wait]
    assert (run.history()["kind"] == "intent").sum() == shown.last
    assert sum(clock.sleeps) == pytest.approx(shown.ends, abs=1e-5)
    ended = "DeadlineExceeded" if shown.refused else "NotExecuted"
    assert run.reason.startswith(ended)
    runtime.close()


def test_every_jitter_of_the_runtime_can_be_looked_at() -> None:
    """A new one must be explained here too."""
    assert set(JITTERS) == {jitter.value for jitter in Jitter}


@given(
    st.sampled_from(list(JITTERS)),
    st.floats(0.05, 10),
    st.floats(0.1, 60),
    st.integers(1, 9),
    st.floats(0.5, 120),
    st.integers(0, 99),
)
@examples(max_examples=60, deadline=None)
def test_no_wait_is_begun_that_reaches_the_deadline(
    jitter, initial, cap, attempts, deadline, seed
) -> None:
    """Each draw lies in its window; the first that would reach the deadline ends it; nothing after.

    ``deadline=None``: a noisy machine's time is no claim.
    """
    policy = dk.Retry(round(initial, 2), round(cap, 2), attempts, jitter=jitter)
    shown = Backoff.of(policy, round(deadline, 2), seed)
    assert len(shown.waits) == attempts - 1
    now = 0.0
    for wait in shown.waits:
        assert wait.low <= wait.seconds <= wait.high or math.isclose(wait.low, wait.high)
        assert 0 <= wait.chance <= 1
        if now is None:
            assert (wait.begins, wait.begun) == (None, False)
            continue
        assert wait.begins == pytest.approx(now, abs=1e-4)
        fits = now + wait.seconds < shown.deadline
        assert wait.begun is fits or math.isclose(now + wait.seconds, shown.deadline, abs_tol=1e-4)
        now = now + wait.seconds if wait.begun else None
    chances = [wait.chance for wait in shown.waits]
    assert chances == sorted(chances)


# -- the chances -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempts", "deadline", "chance"),
    [
        (2, 1, Fraction(0)),
        (3, 1, Fraction(3, 4)),
        (3, 2, Fraction(1, 4)),
        (4, 2, Fraction(41, 48)),
        (4, 3.5, Fraction(1, 2)),
        (5, 4, Fraction(43, 48)),
        (6, 8, Fraction(117, 128)),
    ],
)
def test_the_chance_is_the_exact_one_of_the_reference(attempts, deadline, chance) -> None:
    """Windows 1, 2, 4, …: the fractions of the Thue-Morse sum, worked out on paper."""
    shown = Backoff.of(dk.Retry(1.0, 1000.0, attempts), deadline, seed=0)
    assert shown.chance == chance
    if 0 < chance < 1:
        assert f"exactly {chance} = {in_percent(chance)}" in shown.chance_words()


def test_the_chance_is_how_often_runs_are_stopped() -> None:
    """Of 4,000 seeds as many are stopped before each attempt as computed, within 4 deviations."""
    policy, deadline, runs = dk.Retry(0.5, 8.0, 7), 10.0, 4000
    shown = [Backoff.of(policy, deadline, seed) for seed in range(runs)]
    for number, wait in enumerate(shown[0].waits, 1):
        stopped = sum(one.last <= number for one in shown if one.refused) / runs
        chance = float(wait.chance)
        assert abs(stopped - chance) <= 4 * math.sqrt(chance * (1 - chance) / runs) + 1e-12


def test_without_jitter_the_chance_is_none_or_certain() -> None:
    """1 + 2 + 4 ends exactly at 7: not begun, and so certain; a hair later it fits."""
    at = Backoff.of(dk.Retry(1.0, 8.0, 4, jitter="none"), 7.0, seed=0)
    assert [wait.chance for wait in at.waits] == [0, 0, 1]
    assert at.refused is at.waits[2]
    after = Backoff.of(dk.Retry(1.0, 8.0, 4, jitter="none"), 7.01, seed=0)
    assert [wait.chance for wait in after.waits] == [0, 0, 0]
    assert after.refused is None


def test_where_no_formula_is_known_an_estimate_says_so() -> None:
    """Decorrelated jitter: a float, near the share of real draws, and marked 'about'."""
    policy = dk.Retry(0.5, 8.0, 6, jitter="decorrelated")
    shown = Backoff.of(policy, 10.0, seed=4)
    assert isinstance(shown.chance, float)
    stopped = np.mean([bool(Backoff.of(policy, 10.0, seed).refused) for seed in range(500)])
    assert abs(stopped - shown.chance) < 4 * math.sqrt(0.25 / 500)
    assert "about" in shown.chance_words()
    assert "no exact formula" in shown.chance_words()


def test_a_long_fraction_is_told_by_its_percentage_alone() -> None:
    """Forty digits help nobody."""
    shown = Backoff.of(dk.Retry(0.35, 6.3, 12), 10.0, seed=0)
    assert len(str(shown.chance)) > 40
    assert shown.chance_words().endswith("%, computed exactly.")
    assert "/" not in shown.chance_words()


@pytest.mark.parametrize(
    ("chance", "words"),
    [
        (Fraction(0), "0 %"),
        (Fraction(1), "100 %"),
        (Fraction(1, 10**6), "< 0.01 %"),
        (1 - Fraction(1, 10**6), "> 99.99 %"),
        (Fraction(7, 48), "14.58 %"),
        (0.5, "50.00 %"),
    ],
)
def test_a_chance_is_never_rounded_to_never_or_always(chance, words) -> None:
    """0 % and 100 % are said only where they are true."""
    assert in_percent(chance) == words


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


# -- the views -------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a browser would make of HTML: its tags, its pictures' words, and its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.alts, self.words = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        """Note one."""
        self.tags.append(tag)
        self.alts += [value for name, value in attrs if name == "alt"]

    def handle_data(self, data):
        """Collect."""
        self.words += data


def status(view) -> str:
    """The words of the status line."""
    return Page(view.status.value).words


@pytest.fixture
def explorer() -> BackoffExplorer:
    """The explorer as a lesson begins with it."""
    return BackoffExplorer(initial=1.0, cap=8.0, attempts=6, deadline=10.0, seed=5)


@pytest.mark.parametrize(
    ("name", "value"),
    [("initial", 2.0), ("cap", 3.0), ("attempts", 4), ("deadline", 20.0), ("seed", 7),
     ("jitter", "equal")],
)  # fmt: skip
def test_each_control_moves_the_model_and_the_picture(explorer, name, value) -> None:
    """A control, the model, the status and the picture always say the same."""
    before = explorer._body.value
    explorer.controls[name].value = value
    assert getattr(explorer.model, name) == value
    assert explorer._body.value != before
    assert status(explorer).startswith(explorer.model.status())
    assert Page(explorer._body.value).alts == [explorer.model.plot().alt]
    assert explorer.troubles == []


def test_the_model_moves_the_controls(explorer) -> None:
    """A cell may set a trait, and the sliders follow."""
    explorer.model.seed = 42
    explorer.model.jitter = "none"
    assert (explorer.controls["seed"].value, explorer.controls["jitter"].value) == (42, "none")


def test_draw_again_takes_the_next_seed_and_begins_anew_at_the_end(explorer) -> None:
    """One click, one other draw."""
    explorer.again.click()
    assert explorer.model.seed == 6
    explorer.model.seed = 99
    explorer.again.click()
    assert explorer.model.seed == 0
    assert explorer.troubles == []


def parts(widget):
    """A widget and all that is in it."""
    yield widget
    for child in getattr(widget, "children", ()):
        yield from parts(child)


@pytest.mark.parametrize("view", [BackoffExplorer, HerdExplorer])
def test_every_control_has_a_name_a_label_and_a_keyboard(view) -> None:
    """A tooltip becomes the slider's accessible name; nothing is disabled; numbers can be typed."""
    shown = view()
    sliders = [
        part
        for part in parts(shown)
        if isinstance(part, ipywidgets.widgets.widget_float._Float | ipywidgets.IntSlider)
    ]
    assert len(sliders) == len(view._controls)
    for control in shown.controls.values():
        assert control.description
        assert control.tooltip
        assert not control.disabled
    assert all(slider.readout for slider in sliders)
    assert any(getattr(part, "value", "") == CONTROL_NAMES for part in parts(shown))
    assert re.search('role="status"', shown.status.value)


@pytest.mark.parametrize("view", [BackoffExplorer, HerdExplorer])
def test_what_a_notebook_keeps_is_words_and_numbers(view) -> None:
    """The same text and HTML each time, no picture in them, no widget state."""
    one, two = view()._repr_mimebundle_(), view()._repr_mimebundle_()
    assert set(one) == {"text/plain", "text/html", WIDGET_VIEW}
    assert (one["text/plain"], one["text/html"]) == (two["text/plain"], two["text/html"])
    assert "img" not in Page(one["text/html"]).tags
    json.dumps(one)


def test_the_fallback_says_what_the_live_view_says(explorer) -> None:
    """Status, chance and table in text and HTML alike."""
    bundle = explorer._repr_mimebundle_()
    page = Page(bundle["text/html"]).words
    model = explorer.model
    for told in (model.status(), model.backoff.chance_words(), "not begun", "65.73 %"):
        assert told in bundle["text/plain"]
        assert told in page


@pytest.mark.parametrize("view", [BackoffExplorer, HerdExplorer])
def test_the_figure_is_what_the_view_shows(view) -> None:
    """For those who want to save it."""
    assert view().figure().axes


def test_an_error_in_a_control_is_shown_in_words(explorer, monkeypatch) -> None:
    """Nothing is lost, and the controls go on working."""
    monkeypatch.setattr(backoff, "plot_backoff", lambda _: 1 / 0)
    explorer.controls["seed"].value = 9
    assert explorer.troubles == ["ZeroDivisionError: division by zero"]
    monkeypatch.undo()
    explorer.controls["seed"].value = 10
    assert status(explorer).startswith(explorer.model.status())
    with pytest.raises(ZeroDivisionError):
        explorer.raise_trouble()


def test_controls_work_on_another_thread(explorer) -> None:
    """Some kernels run a callback there."""
    worker = threading.Thread(target=lambda: setattr(explorer.controls["seed"], "value", 11))
    worker.start()
    worker.join()
    assert explorer.model.seed == 11
    assert explorer.troubles == []


def test_the_herd_explorer_shows_what_its_model_says() -> None:
    """Fewer clients, another outage, another jitter."""
    view = HerdExplorer(clients=200)
    for name, value in (("seconds_down", 4.0), ("capacity", 50), ("jitter", "equal")):
        view.controls[name].value = value
        assert status(view) == view.model.status()
    assert "Equal jitter" in status(view)
    assert Page(view._body.value).alts == [view.model.plot().alt]
    assert view.troubles == []


def test_the_largest_settings_are_still_exact() -> None:
    """Twelve attempts on the longest sliders: a fraction, and the reference's own function."""
    model = BackoffModel(initial=0.05, cap=60.0, attempts=12, deadline=37.5)
    assert model.backoff.chance == exceeds(model.policy, 11, 37.5)

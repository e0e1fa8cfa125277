"""The explorers of backoff: a control, its model, the status line and the picture say the same."""

import json
import re
import threading

import ipywidgets
import pytest
from pages import Page, parts, status

from durakit.lab.backoff import explorers
from durakit.lab.backoff.explorers import BackoffExplorer, BackoffModel, HerdExplorer
from durakit.lab.backoff.jitter import exceeds
from durakit.lab.plots import WIDGET_VIEW
from durakit.lab.view import CONTROL_NAMES


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
    monkeypatch.setattr(explorers, "plot_backoff", lambda _: 1 / 0)
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

"""Explorers of backoff: sliders over a policy or a crowd, and the picture of what it comes to."""

from __future__ import annotations

from typing import Any, Final

import ipywidgets as widgets
import traitlets

from durakit.lab.backoff.client import Backoff
from durakit.lab.backoff.herd import Crowd, rush
from durakit.lab.backoff.plots import crowd_words, plot_backoff, plot_crowd
from durakit.lab.html import Table, h
from durakit.lab.plots import Plot
from durakit.lab.view import ModelView, button, control_names, in_a_row
from durakit.retry import Retry

__all__ = [
    "JITTERS",
    "BackoffExplorer",
    "BackoffModel",
    "HerdExplorer",
    "HerdModel",
]


#: What each jitter does, in words.
JITTERS: Final = {
    "full": "anywhere from 0 to the bound",
    "equal": "the upper half of the window",
    "decorrelated": "up to 3 times the last",
    "additive": "the bound, and up to 1 s more",
    "none": "exactly the bound",
}


# -- the models ------------------------------------------------------------------------------------


class BackoffModel(traitlets.HasTraits):
    """One policy, one deadline and one seed. Times in seconds; ``attempts`` counts the first."""

    initial = traitlets.Float(0.5, min=0.05, max=10.0)
    cap = traitlets.Float(8.0, min=0.1, max=60.0)
    attempts = traitlets.Int(7, min=2, max=12)
    deadline = traitlets.Float(10.0, min=0.5, max=120.0)
    seed = traitlets.Int(1, min=0, max=99)
    jitter = traitlets.Enum(tuple(JITTERS), "full")

    @property
    def policy(self) -> Retry:
        """The runtime's own policy of these settings."""
        return Retry(self.initial, self.cap, self.attempts, jitter=self.jitter)

    @property
    def backoff(self) -> Backoff:
        """What is drawn, and the chances."""
        return Backoff.of(self.policy, self.deadline, self.seed)

    def status(self) -> str:
        """Return how this draw ends, in words."""
        return self.backoff.words()

    def plot(self) -> Plot:
        """Return the picture and its numbers."""
        return plot_backoff(self.backoff)

    def figure(self) -> Any:
        """Return the picture as a matplotlib figure."""
        return self.plot().figure()

    def _table(self, backoff: Backoff) -> Table:
        jitter = "no jitter" if self.jitter == "none" else f"{self.jitter} jitter"
        return Table(
            f"WAITS: {jitter} ({JITTERS[self.jitter]}); first bound {self.initial:g} s, cap "
            f"{self.cap:g} s, deadline {self.deadline:g} s",
            backoff.rows(),
        )

    def text(self) -> str:
        """Return what is to see, as plain text."""
        backoff = self.backoff
        return "\n\n".join([backoff.words(), backoff.chance_words(), self._table(backoff).text()])

    def html(self) -> str:
        """Return the same as HTML, without the picture: it has to be the same bytes everywhere."""
        backoff = self.backoff
        return (
            f"<div><div><b>{h(backoff.words())}</b></div><div>{h(backoff.chance_words())}</div>"
            f"{self._table(backoff).html()}</div>"
        )


_HERD_ATTEMPTS: Final = 12

_HERD_DEADLINE: Final = 10.0


class HerdModel(traitlets.HasTraits):
    """A crowd whose service is down for a while, without jitter and with one. Times in seconds."""

    clients = traitlets.Int(1000, min=10, max=5000)
    seconds_down = traitlets.Float(2.0, min=0.0, max=9.0)
    capacity = traitlets.Int(200, min=10, max=5000)
    jitter = traitlets.Enum(tuple(name for name in JITTERS if name != "none"), "full")
    seed = traitlets.Int(1, min=0, max=99)

    def crowd(self, jitter: str) -> Crowd:
        """Return how it goes with a jitter."""
        policy = Retry(0.5, 8.0, _HERD_ATTEMPTS, jitter=jitter)
        return rush(
            self.clients, policy, capacity=self.capacity, seconds_down=self.seconds_down,
            deadline=_HERD_DEADLINE, seed=self.seed,
        )  # fmt: skip

    @property
    def crowds(self) -> tuple[Crowd, Crowd]:
        """Without jitter, and with it."""
        return self.crowd("none"), self.crowd(self.jitter)

    def plot(self) -> Plot:
        """Return the two histograms and their numbers."""
        return plot_crowd(*self.crowds, capacity=self.capacity)

    def figure(self) -> Any:
        """Return the picture as a matplotlib figure."""
        return self.plot().figure()

    def status(self) -> str:
        """Return what comes of both, in words."""
        return crowd_words(*self.crowds)

    def text(self) -> str:
        """Return what is to see, as plain text."""
        crowds = self.crowds
        plot = plot_crowd(*crowds, capacity=self.capacity)
        return f"{crowd_words(*crowds)}\n\n{plot.text()}"

    def html(self) -> str:
        """Return the same as HTML, without the picture."""
        crowds = self.crowds
        plot = plot_crowd(*crowds, capacity=self.capacity)
        table = Table("RETRIES that arrive", plot.rows).html()
        return (
            f"<div><div><b>{h(crowd_words(*crowds))}</b></div><div>{h(plot.alt)}</div>"
            f"<details><summary>The numbers</summary>{table}</details></div>"
        )


# -- the views -------------------------------------------------------------------------------------


#: A slider or a choice of an explorer: the model's trait, its label, its step, and what it means.
_Control = tuple[str, str, float, str]


class _Explorer(ModelView):
    """Sliders over a model, a status line, and the model's picture."""

    _controls: tuple[_Control, ...] = ()
    _choices: tuple[tuple[str, str], ...] = ()

    def __init__(self, model: Any) -> None:
        self.model = model
        super().__init__()
        self.status.layout.min_height = "3em"
        self.controls = {
            name: self._slider(name, label, step, tip) for name, label, step, tip in self._controls
        }
        self.controls["jitter"] = widgets.Dropdown(
            options=list(self._choices), value=model.jitter, description="Jitter",
            tooltip="How a wait is drawn from its window", layout={"width": "390px"},
            style={"description_width": "110px"},
        )  # fmt: skip
        self.again = button("Draw again", "Take the next seed", self.guarded(self._next_seed))
        self._body = widgets.HTML(layout={"width": "auto"})
        for control in self.controls.values():
            control.observe(self.guarded(self._from_controls), "value")
        model.observe(self.guarded(self._show), list(self.controls))
        self.children = (
            in_a_row([*self.controls.values(), self.again]),
            self.status,
            self._trouble,
            self._body,
            control_names(),
        )
        self.guarded(self._show)(None)

    def _slider(self, name: str, label: str, step: float, tip: str) -> Any:
        trait = self.model.traits()[name]
        whole = isinstance(trait, traitlets.Int)
        kind = widgets.IntSlider if whole else widgets.FloatSlider
        return kind(
            value=getattr(self.model, name), min=trait.min, max=trait.max,
            step=int(step) if whole else step, description=label, tooltip=tip,
            readout_format="d" if whole else ".2f", layout={"width": "340px"},
            style={"description_width": "110px"},
        )  # fmt: skip

    def figure(self) -> Any:
        """Return the picture that is shown now as a matplotlib figure."""
        return self.model.figure()

    def _next_seed(self) -> None:
        most = self.model.traits()["seed"].max
        self.model.seed = (self.model.seed + 1) % (most + 1)

    def _from_controls(self) -> None:
        for name, control in self.controls.items():
            setattr(self.model, name, control.value)

    def _show(self) -> None:
        """Bring every control and text to what the model says."""
        for name, control in self.controls.items():
            control.value = getattr(self.model, name)
        self._draw()

    def _draw(self) -> None:
        raise NotImplementedError


class BackoffExplorer(_Explorer):
    """Move a policy's numbers and the deadline, and see what one draw and all draws come to.

    ``settings``: initial, cap, attempts, deadline, seed, jitter, as in ``BackoffModel``.
    """

    model: BackoffModel
    _controls = (
        ("initial", "Initial t₀, s", 0.05, "Top of the first window in seconds"),
        ("cap", "Cap, s", 0.1, "No window is longer, in seconds"),
        ("attempts", "Attempts", 1, "Attempts, the first one counted too"),
        ("deadline", "Deadline, s", 0.5, "Deadline in seconds"),
        ("seed", "Seed", 1, "Seed of the random generator"),
    )
    _choices = tuple((f"{name}: {words}", name) for name, words in JITTERS.items())

    def __init__(self, **settings: Any) -> None:
        super().__init__(BackoffModel(**settings))

    def _draw(self) -> None:
        backoff = self.model.backoff
        self.say(f"{backoff.words()} {backoff.chance_words()}")
        self._body.value = plot_backoff(backoff).html()


class HerdExplorer(_Explorer):
    """A crowd that comes back without jitter and with one, on the same scales.

    ``settings``: clients, seconds_down, capacity, jitter, seed, as in ``HerdModel``.
    """

    model: HerdModel
    _controls = (
        ("clients", "Clients", 10, "Clients that fail at the same instant"),
        ("seconds_down", "Outage, s", 0.5, "The service refuses everything for so many seconds"),
        ("capacity", "Capacity, 1/s", 10, "Requests that the service can serve in one second"),
        ("seed", "Seed", 1, "Seed of the random generator"),
    )
    _choices = tuple(
        (f"{name}: {words}", name) for name, words in JITTERS.items() if name != "none"
    )

    def __init__(self, **settings: Any) -> None:
        super().__init__(HerdModel(**settings))

    def _draw(self) -> None:
        crowds = self.model.crowds
        self.say(crowd_words(*crowds))
        self._body.value = plot_crowd(*crowds, capacity=self.model.capacity).html()

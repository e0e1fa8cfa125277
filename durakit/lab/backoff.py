"""Backoff to look at: one client's waits against its deadline, and a crowd that comes back.

The waits are drawn by the runtime's own ``Retry`` from ``random.Random(seed)``, so a run with that
generator waits exactly those. The chances are exact fractions from ``durakit.lab.jitter``.

Here an attempt takes no time; everything on the axis is waiting. A wait is begun only where it ends
before the deadline, so 'the waits up to here reach the deadline' and 'the run is stopped by the
deadline before its next attempt' are one event, and have one chance.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import ipywidgets as widgets
import numpy as np
import traitlets

from durakit.lab.herd import Crowd, rush
from durakit.lab.html import Row, Table, h
from durakit.lab.jitter import DeadlineRule, attempts_that_fit, sample_waits
from durakit.lab.plots import BLUE, GREY, INK, RED, TROUBLE, Plot
from durakit.lab.view import ModelView, button, control_names, in_a_row
from durakit.retry import Retry, pause

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "JITTERS",
    "Backoff",
    "BackoffExplorer",
    "BackoffModel",
    "HerdExplorer",
    "HerdModel",
    "Wait",
    "crowd_words",
    "in_percent",
    "plot_backoff",
    "plot_crowd",
    "plot_policies",
]

#: What each jitter does, in words.
JITTERS: Final = {
    "full": "anywhere from 0 to the bound",
    "equal": "the upper half of the window",
    "decorrelated": "up to 3 times the last",
    "additive": "the bound, and up to 1 s more",
    "none": "exactly the bound",
}

#: How a bar looks that does not stand for trouble.
_GOOD: Final[dict[str, Any]] = {"facecolor": BLUE, "edgecolor": BLUE}

#: Where no closed form is known, so many runs are drawn instead.
_SAMPLES: Final = 20_000

#: A fraction with more characters than this is told by its percentage alone.
_LONGEST_FRACTION: Final = 36


# -- one client ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wait:
    """The wait after one failed attempt. Times in seconds since the first attempt."""

    attempt: int
    """the attempt that failed, from 1"""
    begins: float | None
    """when it failed; None where this draw never came so far"""
    low: float
    high: float
    """the window that the wait is drawn from; with decorrelated jitter it hangs on the draws"""
    seconds: float
    """what was drawn"""
    begun: bool
    """it ends before the deadline, so it is waited"""
    chance: Fraction | float
    """that the waits up to this one reach the deadline; a float is an estimate"""

    @property
    def ends(self) -> float | None:
        """When the next attempt is due."""
        return None if self.begins is None else round(self.begins + self.seconds, 6)


@dataclass(frozen=True)
class Backoff:
    """One draw of a whole policy against a deadline in seconds, and the chances of all draws."""

    policy: Retry
    deadline: float
    seed: int
    waits: tuple[Wait, ...]

    @classmethod
    def of(cls, policy: Retry, deadline: float, seed: int) -> Backoff:
        """Draw the waits as a run with ``random.Random(seed)`` does, and compute the chances."""
        rng = random.Random(seed)  # noqa: S311 - no secret
        waits: list[Wait] = []
        begins: float | None = 0.0
        for attempt, chance in enumerate(_chances(policy, policy.attempts - 1, deadline), 1):
            previous = waits[-1].seconds if waits else None
            draw = rng.random()
            low, high = policy.window(attempt, previous)
            seconds = policy.wait(attempt, draw, previous)
            begun = begins is not None and bool(
                pause(policy, attempt, draw, remaining=round(deadline - begins, 6),
                      previous=previous)
            )  # fmt: skip
            waits.append(Wait(attempt, begins, low, high, seconds, begun, chance))
            begins = waits[-1].ends if begun else None
        return cls(policy, deadline, seed, tuple(waits))

    @property
    def last(self) -> int:
        """The number of the last attempt of this draw."""
        return 1 + sum(wait.begun for wait in self.waits)

    @property
    def ends(self) -> float:
        """When this draw ends, in seconds: with its last attempt."""
        return next((w.begins for w in self.waits if w.begins is not None and not w.begun),
                    self.waits[-1].ends or 0.0 if self.waits else 0.0)  # fmt: skip

    @property
    def refused(self) -> Wait | None:
        """The wait that was drawn and not begun, if there is one."""
        return next((w for w in self.waits if w.begins is not None and not w.begun), None)

    @property
    def chance(self) -> Fraction | float:
        """That all waits together reach the deadline."""
        return self.waits[-1].chance if self.waits else Fraction(0)

    def words(self) -> str:
        """Return how this draw ends, in one or two sentences."""
        policy, wait = self.policy, self.refused
        who = f"{policy.jitter} jitter" if policy.jitter != "none" else "no jitter"
        if wait is None:
            left = self.deadline - self.ends
            return (
                f"With {who} and seed {self.seed}: all {policy.attempts} attempts are made, the "
                f"last one at {_seconds(self.ends)}, {_seconds(left)} before the deadline."
            )
        return (
            f"With {who} and seed {self.seed}: attempt {self.last} of {policy.attempts}, at "
            f"{_seconds(self.ends)}, is the last. The next wait, {_seconds(wait.seconds)}, would "
            f"reach the deadline of {self.deadline:g} s, so it is not begun."
        )

    def chance_words(self) -> str:
        """Return the chance that the deadline ends it: as a fraction where short, and percent."""
        waits = len(self.waits)
        chance = self.chance
        told = f"The chance that {waits} wait{'' if waits == 1 else 's'} reach{_es(waits)} "
        told += f"{self.deadline:g} s: "
        if not isinstance(chance, Fraction):
            return f"{told}about {in_percent(chance)}, from {_SAMPLES:,} draws (no exact formula)."
        exact = str(chance)
        if chance.denominator == 1 or len(exact) > _LONGEST_FRACTION:
            return f"{told}{in_percent(chance)}, computed exactly."
        return f"{told}exactly {exact} = {in_percent(chance)}."

    def rows(self) -> tuple[Row, ...]:
        """Return one row per wait."""
        return tuple(
            {
                "after attempt": wait.attempt,
                "at": "-" if wait.begins is None else _seconds(wait.begins),
                "window": "-" if wait.begins is None else _window(wait),
                "drawn": "-" if wait.begins is None else _seconds(wait.seconds),
                "so": _so(wait),
                "chance to reach the deadline": in_percent(wait.chance),
            }
            for wait in self.waits
        )


def _es(many: int) -> str:
    return "es" if many == 1 else ""


def _window(wait: Wait) -> str:
    if wait.low == wait.high:
        return f"{wait.low:.3f} s"
    return f"{wait.low:.3f} to {wait.high:.3f} s"


def _so(wait: Wait) -> str:
    if wait.begins is None:
        return "- not reached"
    if not wait.begun:
        return "✗ not begun"
    return f"◆ next at {wait.ends:.3f} s"


def _seconds(value: float) -> str:
    return f"{value:.3f} s"


def in_percent(chance: Fraction | float) -> str:
    """Return a chance in percent with two decimals; never '0' or '100' where it is not."""
    if chance in (0, 1):
        return f"{int(chance) * 100} %"
    if chance < Fraction(5, 100_000):
        return "< 0.01 %"
    if chance > 1 - Fraction(5, 100_000):
        return "> 99.99 %"
    return f"{float(100 * chance):.2f} %"


def _chances(policy: Retry, waits: int, deadline: float) -> list[Fraction | float]:
    """Return for n = 1, 2, … the chance that n waits reach the deadline."""
    if policy.jitter == "decorrelated":
        totals = np.cumsum(sample_waits(policy, waits, _SAMPLES, seed=0), axis=1)
        return [float(share) for share in (totals >= deadline).mean(axis=0)]
    # P(N >= k + 1), that attempt k + 1 is made, is P(k waits end before the deadline).
    return [1 - made for made in attempts_that_fit(policy, deadline)[1:]]


def plot_backoff(backoff: Backoff) -> Plot:
    """Draw each window, the wait drawn from it, the deadline, and the chance to reach it."""
    alt = (
        f"Waits of one client on a time axis. {backoff.words()} {backoff.chance_words()} "
        "Each window begins where the wait before it has ended."
    )

    def draw(axes: Axes) -> None:
        _draw_backoff(axes, backoff)

    return Plot(alt, backoff.rows(), draw, (9.0, 1.7 + 0.36 * len(backoff.waits)))


def _draw_backoff(axes: Axes, backoff: Backoff) -> None:
    shown = [wait for wait in backoff.waits if wait.begins is not None]
    end = max([backoff.deadline, *((w.begins or 0.0) + max(w.high, w.seconds) for w in shown)])
    end *= 1.03
    axes.axvspan(backoff.deadline, end, facecolor="white", edgecolor="#c8c8c8", hatch="..", lw=0)
    for row, wait in enumerate(backoff.waits):
        if wait.begins is None:
            axes.text(0.01 * end, row, "not reached", va="center", fontsize=8, color=GREY)
        else:
            _draw_wait(axes, row, wait, end)
        axes.text(1.015, row, in_percent(wait.chance), va="center", fontsize=9, color=INK,
                  transform=axes.get_yaxis_transform())  # fmt: skip
    axes.axvline(backoff.deadline, color=RED, linewidth=2, linestyle=(0, (4, 2)))
    axes.text(backoff.deadline, -0.72, f"deadline {backoff.deadline:g} s ", va="center", ha="right",
              fontsize=9, weight="bold", color=RED)  # fmt: skip
    axes.text(1.015, -0.75, "chance to reach\nthe deadline", va="center", fontsize=8, color=INK,
              transform=axes.get_yaxis_transform())  # fmt: skip
    labels = [f"after attempt {wait.attempt}" for wait in backoff.waits]
    axes.set_yticks(range(len(labels)), labels, fontsize=9, color=INK)
    axes.set_ylim(len(labels) - 0.4, -1.2)
    axes.set_xlim(0, end)
    marks = "(box: window,  ◆: wait drawn,  ✗: not begun)"
    axes.set_xlabel(f"seconds since the first attempt   {marks}", color=INK)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_wait(axes: Axes, row: int, wait: Wait, end: float) -> None:
    assert wait.begins is not None
    assert wait.ends is not None
    axes.barh(row, wait.high - wait.low, left=wait.begins + wait.low, height=0.56,
              facecolor="#d6e6f2", edgecolor=BLUE, linewidth=1.2)  # fmt: skip
    colour = BLUE if wait.begun else RED
    style = "-" if wait.begun else (0, (2, 2))
    axes.plot([wait.begins, wait.ends], [row, row], color=colour, linestyle=style, linewidth=2)
    axes.plot(wait.ends, row, "D" if wait.begun else "x", color=colour, markersize=7,
              markeredgecolor=INK if wait.begun else RED, markeredgewidth=0.8 if wait.begun else 3,
              clip_on=False, zorder=3)  # fmt: skip
    words = f"{wait.seconds:.2f} s" if wait.begun else f"✗ {wait.seconds:.2f} s: not begun"
    place, side = _beside(wait, end)
    axes.text(place, row, words, va="center", ha=side, fontsize=9, color=colour,
              weight="normal" if wait.begun else "bold",
              bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8})  # fmt: skip


def _beside(wait: Wait, end: float) -> tuple[float, str]:
    """Return where the words of a wait stand: right of its box, else left, else inside."""
    assert wait.begins is not None
    assert wait.ends is not None
    right, gap = max(wait.begins + wait.high, wait.ends), 0.017 * end
    room = (0.09 if wait.begun else 0.27) * end
    if right + gap + room < end:
        return right + gap, "left"
    if wait.begins - gap > room:
        return wait.begins - gap, "right"
    if wait.begun:
        return wait.ends + gap, "left"
    return (wait.begins + wait.ends) / 2, "center"


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


# -- a crowd ---------------------------------------------------------------------------------------

#: A histogram has at most so many bars, each one of these widths in seconds.
_MOST_BARS: Final = 40
_WIDTHS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


def plot_crowd(
    synchronised: Crowd,
    jittered: Crowd,
    *,
    width: float | None = None,
    capacity: float | None = None,
) -> Plot:
    """Draw when the retries of two crowds arrive: two histograms of the same scales.

    ``width``: seconds of one bar; chosen so that there are at most 40 if not given. ``capacity``:
    requests that the service can serve in one second, drawn as a line where given. Both crowds
    have failed once, all at 0: that instant is the same in both, and not drawn.
    """
    crowds = (synchronised, jittered)
    last = max((float(crowd.arrivals[-1]) for crowd in crowds if crowd.arrivals.size), default=0.0)
    bar = width or next((w for w in _WIDTHS if last / w < _MOST_BARS), last / _MOST_BARS)
    edges = np.arange(int(last / bar) + 2) * bar
    counts = [np.histogram(crowd.arrivals, edges)[0] for crowd in crowds]
    rows = tuple(
        {"from s": f"{start:g}", "without jitter": int(one), "with jitter": int(two)}
        for start, one, two in zip(edges[:-1].round(6), *counts, strict=True)
        if one or two
    )
    heads = [
        f"{_named(crowd)}: {_peak(count, bar)}" for crowd, count in zip(crowds, counts, strict=True)
    ]
    alt = (
        f"Two histograms of the retries of {synchronised.clients:,} clients, per {bar:g} s. "
        f"{heads[0]}. {heads[1]}."
    )
    if capacity is not None:
        alt += f" A line shows what the service can serve: {capacity * bar:g} in {bar:g} s."

    def draw(axes: Axes) -> None:
        figure = axes.figure
        axes.remove()
        panels = figure.subplots(2, 1, sharex=True, sharey=True)
        for panel, count, head, red in zip(panels, counts, heads, (True, False), strict=True):
            _draw_arrivals(panel, count, bar, head, red=red)
            if capacity is not None:
                _draw_capacity(panel, capacity * bar)
        panels[1].set_xlabel(
            "seconds since all of them failed together for the first time", color=INK
        )

    return Plot(alt, rows, draw, (9.0, 4.6))


def _named(crowd: Crowd) -> str:
    jitter = crowd.policy.jitter
    return "No jitter" if jitter == "none" else f"{jitter.capitalize()} jitter"


def _peak(counts: np.ndarray[Any, Any], bar: float) -> str:
    """Return the largest number of requests in one bar, in words."""
    if not counts.max(initial=0):
        return "nobody comes back"
    at = int(counts.argmax())
    return f"up to {counts.max():,} requests in {bar:g} s (from {at * bar:g} s)"


def _draw_arrivals(
    axes: Axes, counts: np.ndarray[Any, Any], bar: float, head: str, *, red: bool
) -> None:
    starts = np.arange(counts.size) * bar
    axes.bar(starts, counts, width=bar, align="edge", linewidth=1.0, **(TROUBLE if red else _GOOD))
    axes.set_facecolor("white")
    axes.set_title(head, loc="left", fontsize=10, color=INK)
    axes.set_ylabel(f"requests in {bar:g} s", fontsize=9, color=INK)
    axes.set_xlim(0, counts.size * bar)
    axes.spines[["top", "right"]].set_visible(False)
    if counts.max(initial=0):
        at = int(counts.argmax())
        axes.annotate(
            f"{counts.max():,}", ((at + 0.5) * bar, counts.max()), xytext=(0, 2),
            textcoords="offset points", ha="center", va="bottom", fontsize=9, weight="bold",
            color=RED if red else BLUE,
        )  # fmt: skip
    axes.margins(y=0.16)


def _draw_capacity(axes: Axes, requests: float) -> None:
    axes.axhline(requests, color=INK, linestyle=(0, (4, 3)), linewidth=1.2, gapcolor="white")
    axes.text(0.995, requests, f"the service can serve {requests:g} ", va="bottom", ha="right",
              fontsize=8, color=INK, transform=axes.get_yaxis_transform())  # fmt: skip


def crowd_words(*crowds: Crowd) -> str:
    """Return what came of each crowd, one sentence each."""
    return " ".join(
        f"{_named(crowd)}: {crowd.served:,} of {crowd.clients:,} clients are served and "
        f"{crowd.gave_up:,} give up, after {crowd.calls:,} requests."
        for crowd in crowds
    )


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


_HERD_ATTEMPTS: Final = 12
_HERD_DEADLINE: Final = 10.0


# -- what to do with a wait that does not fit ------------------------------------------------------


def plot_policies(rows: Sequence[DeadlineRule]) -> Plot:
    """Draw what each way to treat a wait that does not fit comes to.

    ``rows``: of ``jitter.deadline_policies``. Left, the share of clients that succeed; right, the
    largest share that starts within the same 50 ms.
    """
    told = tuple(
        {
            "rule": row.rule.replace("_", " "),
            "succeed": _whole(row.success),
            "largest share in 50 ms": _whole(row.busiest),
            "past the deadline": _whole(row.past_deadline),
            "attempts": f"{row.attempts:.2f}",
            "ends at": f"{row.give_up:.1f} s",
        }
        for row in rows
    )
    worst = max(rows, key=lambda row: row.busiest)
    alt = (
        f"Bar chart of {len(told)} rules for a wait that does not fit before the deadline: the "
        "share of clients that succeed, and the largest share that starts within 50 ms. The "
        f"largest herd: '{worst.rule.replace('_', ' ')}' with {_whole(worst.busiest)}."
    )

    def draw(axes: Axes) -> None:
        figure = axes.figure
        axes.remove()
        left, right = figure.subplots(1, 2, sharey=True)
        late = [row.past_deadline > 0 for row in rows]
        _draw_shares(left, [row.success for row in rows], "clients that succeed",
                     ["✗ but late" if bad else "" for bad in late])  # fmt: skip
        herds = ["✗ a herd" if row.busiest > _HERD_SHARE else "" for row in rows]
        _draw_shares(right, [row.busiest for row in rows], "largest share that starts in one 50 ms",
                     herds)  # fmt: skip
        left.set_yticks(range(len(told)), [str(row["rule"]) for row in told], fontsize=9, color=INK)
        left.set_ylim(len(told) - 0.4, -0.6)

    return Plot(alt, told, draw, (9.0, 1.2 + 0.4 * len(told)))


#: More than so much of a crowd at one moment is a herd.
_HERD_SHARE: Final = 0.25


def _whole(share: float) -> str:
    return f"{100 * float(share):.0f} %"


def _draw_shares(axes: Axes, shares: Sequence[float], head: str, troubles: Sequence[str]) -> None:
    """Draw bars, each with its number; what has a trouble is hatched and says it."""
    for n, (share, trouble) in enumerate(zip(shares, troubles, strict=True)):
        axes.barh(n, share, height=0.66, linewidth=1.2, **(TROUBLE if trouble else _GOOD))
        axes.text(
            share + 0.02, n, f"{_whole(share)}  {trouble}", va="center", fontsize=9,
            color=RED if trouble else INK, weight="bold" if trouble else "normal",
        )  # fmt: skip
    axes.set_facecolor("white")
    axes.set_title(head, loc="left", fontsize=10, color=INK)
    axes.set_xlim(0, 1.6)
    axes.set_xticks([0, 0.5, 1.0], ["0", "50 %", "100 %"], color=INK)
    axes.spines[["top", "right"]].set_visible(False)


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

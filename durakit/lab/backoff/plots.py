"""Pictures of backoff: one client's waits, a crowd that comes back, and rules for a deadline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from durakit.lab.backoff.client import Backoff, Wait, in_percent
from durakit.lab.backoff.herd import Crowd
from durakit.lab.backoff.rules import DeadlineRule
from durakit.lab.plots import BLUE, GREY, INK, RED, TROUBLE, Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["crowd_words", "plot_backoff", "plot_crowd", "plot_policies"]


#: How a bar looks that does not stand for trouble.
_GOOD: Final[dict[str, Any]] = {"facecolor": BLUE, "edgecolor": BLUE}


# -- one client ------------------------------------------------------------------------------------


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


# -- what to do with a wait that does not fit ------------------------------------------------------


def plot_policies(rows: Sequence[DeadlineRule]) -> Plot:
    """Draw what each way to treat a wait that does not fit comes to.

    ``rows``: of ``deadlinerules.deadline_policies``. Left, the share of clients that succeed;
    right, the largest share that starts within the same 50 ms.
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

"""The picture of nested budgets: each piece of work as a bar under the one that it is part of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from durakit.errors import InvalidField
from durakit.lab.budgets.nested import Bar, BudgetTrace
from durakit.lab.plots import BLUE, INK, LIGHT_RED, RED, Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_icicle"]


#: Height of one bar on an axis where rows are 1 apart.
_THICK: Final = 0.56


def plot_icicle(*traces: BudgetTrace) -> Plot:
    """Draw runs below each other on one axis of virtual seconds.

    Each bar has its own limit as an outline, what it really had as a light fill and what it used as
    a dark one. The limit that fired is a cross with a word, a mail that landed is a star. Raises
    InvalidField without a trace.
    """
    if not traces:
        raise InvalidField("traces", "needs at least one run to draw")
    rows = tuple(row for trace in traces for row in trace.rows())
    alt = "Bars of nested limits on a time axis. " + " ".join(trace.words() for trace in traces)
    lines = sum(len(trace.bars) + 2 for trace in traces)

    def draw(axes: Axes) -> None:
        top, column = 0, 1.035 * _last_moment(traces)
        for trace in traces:
            top = _draw_trace(axes, trace, top, column)
        _finish(axes, traces, top)

    return Plot(alt, rows, draw, (9.5, 1.2 + 0.3 * lines))


def _last_moment(traces: Sequence[BudgetTrace]) -> float:
    """The second at which the last bar ends, or the last mail lands."""
    ends = [bar.begins + max(bar.limit, bar.used) for trace in traces for bar in trace.bars]
    lands = [bar.lands or 0.0 for trace in traces for bar in trace.calls]
    return max(*ends, *lands)


def _draw_trace(axes: Axes, trace: BudgetTrace, top: int, column: float) -> int:
    """Draw one run from row ``top`` downwards; returns the first free row.

    ``column``: where the words of every row begin, right of all bars and lines.
    """
    end = trace.budgets.session
    bottom = top + len(trace.bars) + 1
    axes.plot([end, end], [top + 0.4, bottom + 0.4], color=INK, linewidth=1.3,
              linestyle=(0, (4, 3)), zorder=0)  # fmt: skip
    axes.text(end, top, "session's limit", fontsize=8, color=INK, va="center")
    for y, bar in enumerate(trace.bars, top + 1):
        _draw_bar(axes, trace, bar, y)
        ending = trace.ending(bar)
        words = f"{bar.used:g} of {bar.available:g} s"
        words += "" if ending[0] == "✓" else f"  {ending}"
        _write(axes, column, y, words, bad=ending[0] == "✗")
    _draw_ledger(axes, trace, bottom)
    _write(axes, column, bottom, _late_words(trace), bad=True)
    return bottom + 1


def _draw_bar(axes: Axes, trace: BudgetTrace, bar: Bar, y: int) -> None:
    low = y - _THICK / 2
    axes.barh(y, bar.available, _THICK, bar.begins, color="#d5e6f3")
    axes.barh(y, min(bar.used, bar.available), _THICK * 0.5, bar.begins, color=BLUE)
    if bar.over:
        axes.barh(y, bar.over, _THICK * 0.5, bar.begins + bar.available, color=LIGHT_RED,
                  edgecolor=RED, hatch="//////", linewidth=1)  # fmt: skip
    # The outline comes last, so that nothing hides what was asked for.
    axes.barh(y, bar.limit, _THICK, bar.begins, fill=False, edgecolor=INK, linewidth=1)
    if trace.is_where_it_fired(bar):
        at = bar.begins + bar.available
        axes.plot([at, at], [low - 0.1, y + _THICK / 2 + 0.1], color=RED, linewidth=2.5)


def _write(axes: Axes, column: float, y: int, words: str, *, bad: bool) -> None:
    axes.text(
        column, y, words, va="center", fontsize=8.5,
        color=RED if bad else INK, weight="bold" if bad else "normal",
    )  # fmt: skip


def _draw_ledger(axes: Axes, trace: BudgetTrace, y: int) -> None:
    """Mark the mails where they landed; those that landed late are larger."""
    for bar in trace.calls:
        if bar.lands is None:
            continue
        late = bar in trace.late
        axes.plot(bar.lands, y, "*", markersize=13 if late else 9, color=RED if late else INK,
                  markeredgecolor=INK, markeredgewidth=0.8, clip_on=False)  # fmt: skip


def _late_words(trace: BudgetTrace) -> str:
    """Which mail landed late and when; of many, how many there are."""
    late = trace.late
    if len(late) > 1:
        return f"{len(late)} mails land late, from {late[0].lands:g} s on"
    return "".join(f"{bar.name} lands late, at {bar.lands:g} s" for bar in late)


def _finish(axes: Axes, traces: Sequence[BudgetTrace], bottom: int) -> None:
    labels: list[str] = []
    inset = {"session": "", "turn": "  ", "call": "    "}
    for trace in traces:
        head = f"{trace.budgets.kind.capitalize()} limits"
        labels += [head, *(inset[bar.level] + bar.name for bar in trace.bars), "LEDGER ★"]
    axes.set_yticks(range(bottom), labels, fontsize=9, color=INK)
    for label in axes.get_yticklabels():
        if label.get_text().endswith(" limits"):
            label.set(fontsize=10, weight="bold")
    axes.tick_params("y", length=0)
    axes.set_ylim(bottom - 0.3, -0.7)
    # The rest is room for the words.
    axes.set_xlim(0, 1.5 * _last_moment(traces))
    axes.set_xlabel(
        "virtual seconds   (outline: own limit · light: what it had · dark: what it used · "
        "★ a mail lands)", color=INK,
    )  # fmt: skip
    axes.spines[["top", "right", "left"]].set_visible(False)

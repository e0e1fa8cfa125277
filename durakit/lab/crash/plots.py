"""Pictures of crashes: a sweep as bars, a run as two lines of time, the states of one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from durakit.lab.crash.moments import Event, Moment, events
from durakit.lab.crash.scenarios import Trace
from durakit.lab.html import Row, one_line
from durakit.lab.plots import BLUE, GREY, INK, RED, TROUBLE, Plot, plain
from durakit.protocol import OUTCOMES, TRANSITIONS, Status
from durakit.protocol import Event as ProtocolEvent
from durakit.run import Run
from durakit.sweep import NOT_REACHABLE, Report, Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_states", "plot_sweep", "plot_timeline"]


def plot_sweep(report: Report | Trace) -> Plot:
    """Draw the effects after each crash and its recovery; the dashed line is 'without a crash'."""
    report = report.report if isinstance(report, Trace) else report
    rows = tuple(
        {
            "crash": number,
            "place": one_line(schedule.place, 40),
            "point": one_line(schedule.point, 40)
            + (f" no. {schedule.occurrence}" if schedule.occurrence > 1 else "")
            + (f" ({schedule.fate})" if schedule.fate else ""),
            "effects": "-" if schedule.effects is None else schedule.effects,
            "verdict": schedule.verdict,
        }
        for number, schedule in enumerate(report.schedules, 1)
    )
    found = _found(rows)
    alt = (
        f"Bar chart of {one_line(report.workflow, 60)}: effects after each of {len(rows)} crashes "
        f"and its recovery; {report.reference} without a crash; {found}."
    )

    def draw(axes: Axes) -> None:
        _draw_sweep(axes, report, rows)

    return Plot(alt, rows, draw, (9.0, 1.3 + 0.36 * len(rows)))


def _found(rows: Sequence[Row]) -> str:
    """Return which crashes are not safe, and which were not tried: these are neither."""
    untried = [row["crash"] for row in rows if row["verdict"] == NOT_REACHABLE]
    safe = [row["crash"] for row in rows if str(row["verdict"]).startswith("safe")]
    unsafe = [row["crash"] for row in rows if row["crash"] not in untried + safe]
    found = [f"not safe: {', '.join(map(str, unsafe))}"] if unsafe else []
    found += [f"not reachable: {', '.join(map(str, untried))}"] if untried else []
    return "; ".join(found) or "all of them safe"


def _draw_sweep(axes: Axes, report: Report, rows: Sequence[Row]) -> None:
    most = max([report.reference, 1, *(s.effects or 0 for s in report.schedules)])
    for at, (row, schedule) in enumerate(zip(rows, report.schedules, strict=True)):
        look, word = _bar(schedule)
        # A bar of no height would be invisible, and 'no effect' is worth seeing.
        axes.barh(at, max(schedule.effects or 0, 0.02 * most), height=0.72, linewidth=1.2, **look)
        axes.text(
            (schedule.effects or 0) + 0.03 * most, at, f"{row['effects']}  {word}",
            va="center", ha="left", fontsize=9, color=RED if word.startswith("✗") else INK,
            weight="bold" if word.startswith("✗") else "normal",
        )  # fmt: skip
    axes.axvline(report.reference, color=INK, linestyle=(0, (4, 3)), linewidth=1.2, zorder=0)
    labels = [plain(f"{row['place']} · {row['point']}   {row['crash']}") for row in rows]
    axes.set_yticks(range(len(rows)), labels, fontsize=9, color=INK)
    axes.set_ylim(len(rows) - 0.5, -0.6)
    axes.set_xlim(0, most * 1.75)
    axes.locator_params("x", integer=True)
    axes.set_xlabel("effects in the world's ledger (dashed: without a crash)", color=INK)
    title = plain(f"{one_line(report.workflow, 60)}: crash, recover, count")
    axes.set_title(title, loc="left", color=INK)
    axes.spines[["top", "right"]].set_visible(False)


def _bar(schedule: Schedule) -> tuple[dict[str, Any], str]:
    """Return how a bar looks, and the mark and word at its end."""
    if schedule.verdict == NOT_REACHABLE:
        return {"color": "white", "edgecolor": GREY, "linestyle": "--"}, "? not reachable"
    if not schedule.good:
        return TROUBLE, f"✗ {schedule.verdict}"
    return {"color": BLUE, "edgecolor": BLUE}, f"✓ {schedule.verdict}"


# -- belief above, truth below ---------------------------------------------------------------------


def plot_timeline(
    moment: Moment | Run, world: Any = None, before: Moment | None = None, title: str = ""
) -> Plot:
    """Draw two lanes: what the journal says above, what really happened below.

    ``moment``: a moment of a scenario, or a run, which is looked at now beside its ``world``.
    ``before``: the same run at its crash, which then stands as a line across both lanes.
    """
    if isinstance(moment, Run):
        moment = Moment.of(moment, world)
    line = events(moment, before)
    rows = tuple(
        {
            "#": number,
            "time": "" if event.seconds is None else f"{event.seconds:+.3f} s",
            "lane": event.lane,
            "what": event.words,
        }
        for number, event in enumerate(line, 1)
    )
    effects = sum(event.kind == "effect" for event in line)
    believed = sum(event.lane == "belief" for event in line)
    crash = ", with a crash between" if before is not None else ""
    alt = (
        f"Timeline{': ' + one_line(title, 60) if title else ''}: {believed} journal entries above, "
        f"{effects} effect(s) in the ledger below{crash}; the run is {one_line(moment.status, 40)}."
    )

    def draw(axes: Axes) -> None:
        _draw_timeline(axes, line, title)

    return Plot(alt, rows, draw, (max(6.0, 1.2 + 0.78 * len(line)), 4.2))


#: Kind of event → marker. What is not listed is a square.
_MARKERS: Final = {"claimed": ">", "intent": "D", "result": "o", "request": "v", "effect": "*"}


def _draw_timeline(axes: Axes, line: Sequence[Event], title: str) -> None:
    for y, name in ((1, "BELIEF\njournal"), (0, "TRUTH\nledger")):
        axes.axhline(y, color=GREY, linewidth=1, zorder=0)
        axes.text(-0.9, y, name, ha="right", va="center", fontsize=9, weight="bold", color=INK)
    for x, event in enumerate(line):
        if event.lane == "crash":
            axes.axvline(x, color=RED, linewidth=2, linestyle=(0, (3, 2)))
            axes.text(x, 0.5, "✗ crash", ha="center", va="center", fontsize=10, weight="bold",
                      color=RED, bbox={"facecolor": "white", "edgecolor": RED})  # fmt: skip
            continue
        truth = event.lane == "truth"
        effect = event.kind == "effect"
        axes.plot(
            x, 0 if truth else 1, _MARKERS.get(event.kind, "s"), color=INK if effect else BLUE,
            markersize=17 if effect else 8, markeredgecolor=INK, markeredgewidth=0.8,
        )  # fmt: skip
        words = plain(event.words.replace(" of ", "\nof ").replace(", ", ",\n"))
        axes.text(
            x, -0.16 if truth else 1.13, words,
            ha="right" if truth else "left", va="top" if truth else "bottom",
            rotation=38, rotation_mode="anchor", fontsize=8, color=INK,
            weight="bold" if effect else "normal",
        )  # fmt: skip
    ticks = [x for x, event in enumerate(line) if event.seconds is not None]
    axes.set_xticks(ticks, [f"{line[x].seconds:g}" for x in ticks], fontsize=8, color=INK)
    axes.set_xlabel("seconds since the run began (in order, not to scale)", color=INK)
    axes.set_xlim(-1.9, len(line) + 1.2)
    axes.set_ylim(-0.75, 1.95)
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)
    if title:
        axes.set_title(plain(one_line(title, 100)), loc="left", color=INK)


# -- the protocol's states -------------------------------------------------------------------------

#: Where each status stands, chosen by hand so that the edges do not cross.
_PLACES: Final = {
    Status.NEW: (0.6, 5.0),
    Status.DISPATCHED: (5.0, 5.0),
    Status.RESENT: (5.0, 9.0),
    Status.SUCCEEDED: (11.0, 7.0),
    Status.FAILED: (11.0, 3.4),
    Status.REFUSED: (5.0, 1.0),
    Status.COMPENSATING: (0.6, 9.0),
    Status.COMPENSATED: (0.6, 6.7),
}
#: (from, to) → how far the edge bends, where its words stand, and their alignment.
_EDGES: Final = {
    (Status.NEW, Status.DISPATCHED): (0.0, (3.1, 5.25), "center"),
    (Status.REFUSED, Status.DISPATCHED): (-0.25, (4.3, 2.9), "right"),
    (Status.DISPATCHED, Status.REFUSED): (-0.25, (5.65, 2.9), "left"),
    (Status.DISPATCHED, Status.RESENT): (-0.25, (4.45, 7.5), "right"),
    (Status.RESENT, Status.DISPATCHED): (-0.25, (5.65, 7.1), "left"),
    (Status.DISPATCHED, Status.SUCCEEDED): (0.12, (8.5, 5.15), "left"),
    (Status.RESENT, Status.SUCCEEDED): (-0.2, (9.2, 9.1), "left"),
    (Status.REFUSED, Status.SUCCEEDED): (0.32, (10.2, 1.9), "center"),
    (Status.RESENT, Status.COMPENSATING): (0.0, (2.9, 9.25), "center"),
    (Status.DISPATCHED, Status.COMPENSATING): (0.12, (2.3, 8.4), "left"),
    (Status.COMPENSATING, Status.DISPATCHED): (0.1, (1.75, 6.45), "left"),
    (Status.COMPENSATING, Status.COMPENSATED): (0.0, (0.6, 8.2), "center"),
    (Status.DISPATCHED, Status.FAILED): (-0.1, (7.6, 4.1), "center"),
    (Status.RESENT, Status.REFUSED): (1.0, (0.2, 2.6), "left"),
    (Status.DISPATCHED, Status.DISPATCHED): (2.6, (3.9, 4.1), "right"),
    (Status.RESENT, Status.RESENT): (-1.3, (5.0, 10.35), "center"),
}
#: Where a loop leaves its state and comes back, from the middle of the state.
_LOOPS: Final = {
    Status.DISPATCHED: ((-0.75, -0.4), (-0.35, -0.42)),
    Status.RESENT: ((-0.45, 0.4), (0.45, 0.4)),
}
#: Outcome → its box: shape, line, colour.
_STYLES: Final = {
    "unknown": ("round,pad=0.5", (0, (3, 2)), RED),
    "completed": ("square,pad=0.5", "-", BLUE),
    "not_executed": ("sawtooth,pad=0.5", "-", GREY),
}


def plot_states() -> Plot:
    """Draw the states of one operation, from the protocol's own table of transitions."""
    rows = tuple(
        {
            "from": before.value,
            "event": event.value,
            "to": after.value,
            "outcome then": OUTCOMES[after].value if after in OUTCOMES else "-",
        }
        for (before, event), after in TRANSITIONS.items()
    )
    states = {status for (before, _), after in TRANSITIONS.items() for status in (before, after)}
    alt = (
        f"State diagram of one operation: {len(states)} states and {len(rows)} transitions, drawn "
        "from protocol.TRANSITIONS. DISPATCHED and RESENT are unknown; only an answer about this "
        "operation leads out of them."
    )
    return Plot(alt, rows, _draw_states, (10.5, 7.2))


def _draw_states(axes: Axes) -> None:
    edges: dict[tuple[Status, Status], list[ProtocolEvent]] = {}
    for (before, event), after in TRANSITIONS.items():
        edges.setdefault((before, after), []).append(event)
    places: dict[Status, tuple[float, float]] = dict(_PLACES)
    for status in Status:
        # A status that is new in the protocol is drawn too, though not prettily.
        places.setdefault(status, (2.0 * (len(places) - len(_PLACES)), -1.0))
    for edge, led_by in edges.items():
        _draw_transition(axes, places, edge, led_by)
    for status, place in places.items():
        _draw_state(axes, status, place)
    axes.set_xlim(-0.6, 12.2)
    axes.set_ylim(0.0, 10.9)
    axes.axis("off")
    axes.set_title("What the disk says about one operation, and what may happen to it", loc="left",
                   color=INK)  # fmt: skip


def _draw_transition(
    axes: Axes,
    places: dict[Status, tuple[float, float]],
    edge: tuple[Status, Status],
    led_by: list[ProtocolEvent],
) -> None:
    """An arrow from state to state, and beside it the events that lead there."""
    before, after = edge
    start, end = places[before], places[after]
    middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
    bend, where, align = _EDGES.get((before, after), (0.1, middle, "center"))
    sideways = Status.COMPENSATING in (before, after) and after is not Status.COMPENSATED
    shrink = 54 if sideways else 34  # it is the widest box
    if before is after:
        leaves, returns = _LOOPS.get(before, ((0.9, -0.25), (0.9, 0.25)))
        end = (start[0] + returns[0], start[1] + returns[1])
        start = (start[0] + leaves[0], start[1] + leaves[1])
        shrink = 1
    axes.annotate(
        "",
        end,
        start,
        arrowprops={
            "arrowstyle": "-|>",
            "color": INK,
            "linewidth": 1.2,
            "mutation_scale": 14,
            "shrinkA": shrink,
            "shrinkB": shrink,
            "connectionstyle": f"arc3,rad={bend}",
        },
    )
    words = "\n".join(event.value.replace(" (", "\n(") for event in led_by)
    axes.text(
        *where, words, ha=align, va="center",
        fontsize=7.5, color=INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )  # fmt: skip


def _draw_state(axes: Axes, status: Status, place: tuple[float, float]) -> None:
    """A box whose border, in shape, line and colour, tells the outcome."""
    x, y = place
    outcome = OUTCOMES[status].value if status in OUTCOMES else ""
    shape, linestyle, colour = _STYLES.get(outcome, ("round,pad=0.5", "-", GREY))
    words = f"{status.value}\n{outcome.replace('_', ' ') or 'no record'}"
    axes.text(
        x, y, words, ha="center", va="center",
        fontsize=9, weight="bold", color=INK,
        bbox={"boxstyle": shape, "facecolor": "white", "edgecolor": colour,
              "linestyle": linestyle, "linewidth": 2},
    )  # fmt: skip

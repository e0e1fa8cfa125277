"""What the crash scrubber shows: which crash of a trace is looked at, and what is to see there."""

from __future__ import annotations

from typing import Any

import traitlets

from durakit.errors import UsageError
from durakit.lab.crash.moments import Event, Moment, events
from durakit.lab.crash.plots import plot_timeline
from durakit.lab.crash.scenarios import Frame, Trace
from durakit.lab.crash.timeline import timeline_html, timeline_text
from durakit.lab.html import Table, h, one_line
from durakit.lab.plots import Plot
from durakit.lab.view import LINE, WITHIN, headed

__all__ = ["ScrubberModel"]


class ScrubberModel(traitlets.HasTraits):
    """Which crash is looked at, and what is to see there. Nothing is run here.

    ``position``: from 0. ``recovered``: after the recovery, or at the crash. ``with_key``: the
    first trace, or the second.
    """

    position = traitlets.Int(0)
    recovered = traitlets.Bool(default_value=False)
    with_key = traitlets.Bool(default_value=True)

    def __init__(self, with_key: Trace, without_key: Trace | None = None) -> None:
        self._traces = {True: with_key, False: without_key or with_key}
        self.has_both = without_key is not None
        super().__init__()
        self.position = self._most_telling()

    def _most_telling(self) -> int:
        """Begin where the effect is done and nobody here knows; else at the first crash."""
        points = [frame.schedule.point for frame in self.trace.frames]
        return points.index("effect_done") if "effect_done" in points else 0

    @traitlets.validate("position")
    def _inside(self, proposal: dict[str, Any]) -> int:
        return max(0, min(int(proposal["value"]), len(self.trace.frames) - 1))

    @traitlets.observe("with_key")
    def _same_place(self, change: dict[str, Any]) -> None:
        """Stay at the same boundary in the other trace."""
        if change["old"] == change["new"] or not self.has_both:
            return
        frame = self._traces[change["old"]].frames[self.position]
        self.position = self.trace.find(frame, self.position)

    @property
    def trace(self) -> Trace:
        """The trace that is looked at."""
        return self._traces[self.with_key]

    @property
    def frame(self) -> Frame:
        """The crash that is looked at."""
        return self.trace.frames[self.position]

    @property
    def moment(self) -> Moment | None:
        """What is to see; None where the crash could not be reached."""
        return self.frame.recovered if self.recovered else self.frame.crashed

    @property
    def events(self) -> tuple[Event, ...]:
        """The time line, with the crash on it."""
        frame = self.frame
        if frame.crashed is None:
            return ()
        if self.recovered and frame.recovered is not None:
            return events(frame.recovered, frame.crashed)
        return events(frame.crashed, frame.crashed)

    def status(self) -> str:
        """Return the status line: which crash, and what it comes to."""
        key = ""
        if self.has_both:
            key = "With a key. " if self.with_key else "Without a key. "
        where = f"{key}Crash {self.position + 1} of {len(self.trace.frames)} — {self.frame.words}."
        return one_line(f"{where} {self._comes_to()}")

    def _comes_to(self) -> str:
        moment, schedule = self.moment, self.frame.schedule
        if moment is None:
            return f"Not reachable: {schedule.detail}."
        effects = len(moment.truth.effects)
        world = f"{effects} effect{'' if effects == 1 else 's'}"
        if self.recovered:
            mark = "✓" if schedule.good else "✗"
            return f"After recovery: {moment.status}, {world}. {mark} {schedule.verdict}."
        return f"On disk: {_known(moment)}. In the world: {world}."

    def figure(self) -> Any:
        """Return the time line as a matplotlib figure. Raises UsageError where there is none."""
        return self.plot().figure()

    def plot(self) -> Plot:
        """Return the time line as a plot. Raises UsageError where there is none."""
        if self.moment is None:
            raise UsageError("this crash could not be reached, so there is nothing to draw")
        before = self.frame.crashed if self.recovered else None
        return plot_timeline(self.moment, before=before, title=self.status())

    def overview(self) -> Table:
        """Return every crash of this trace and how it ended."""
        rows = [
            {
                "crash": number,
                "where": frame.words,
                "effects": "-" if frame.schedule.effects is None else frame.schedule.effects,
                "verdict": f"{'✓' if frame.schedule.good else '✗'} {frame.schedule.verdict}",
            }
            for number, frame in enumerate(self.trace.frames, 1)
        ]
        return Table("EVERY CRASH, after its recovery", rows)

    def strip(self) -> str:
        """Return one box per crash, the one looked at framed; marks only after the recovery."""
        boxes, unsafe = [], []
        for at, frame in enumerate(self.trace.frames):
            mark = ""
            if self.recovered:
                mark = " ✓" if frame.schedule.good else " ✗"
                if not frame.schedule.good:
                    unsafe.append(at + 1)
            here = at == self.position
            line = "3px solid" if here else LINE
            boxes.append(
                '<span style="flex: 1 1 2.6em; white-space: nowrap; text-align: center; '
                f"border: {line}; border-radius: 4px; font-weight: {'bold' if here else 'normal'}; "
                f'padding: {"0" if here else "2px"} 0">{at + 1}{mark}</span>'
            )
        label = f"{len(boxes)} crashes, at number {self.position + 1}"
        if self.recovered:
            label += f"; not safe: {', '.join(map(str, unsafe)) or 'none'}"
        return (
            f'<div role="img" aria-label="{label}" style="display: flex; flex-wrap: wrap; '
            f'gap: 3px; margin: 4px 0">{"".join(boxes)}</div>'
        )

    def body(self) -> str:
        """Return what stands below the controls."""
        moment = self.moment
        parts = [self.strip()]
        if moment is not None:
            parts += [
                timeline_html(self.events),
                headed("What is on disk", moment.disk()),
                headed("What is outside", moment.outside()),
            ]
        return f'<div style="{WITHIN}">{"".join(parts)}</div>'

    def text(self) -> str:
        """Return what is to see now, and how every crash ended."""
        parts = [self.status()]
        if self.moment is not None:
            parts += [timeline_text(self.events), self.moment.disk().text()]
            parts.append(self.moment.outside().text())
        return "\n\n".join([*parts, self.overview().text()])

    def html(self) -> str:
        """Return the same as HTML, without controls."""
        status = f"<div><b>{h(self.status())}</b></div>"
        overview = f"<details><summary>Every crash</summary>{self.overview().html()}</details>"
        return f"<div>{status}{self.body()}{overview}</div>"


def _known(moment: Moment) -> str:
    """Return what the disk knows of operations, in words."""
    if not moment.operations:
        return f"run {moment.status}, no record of the operation"
    outcomes = [str(row["outcome"]).replace("_", " ") for row in moment.operations]
    counted = [f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes)]
    return f"run {moment.status}, operations: {', '.join(counted)}"

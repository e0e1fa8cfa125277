"""Widgets: controls over what was computed beforehand.

Each is a model and a view. The model is pure: traits or values in, ``text()`` and ``html()`` out,
and tests need no browser. The view is an ``ipywidgets`` box that links controls to the model.

What all views share, and how a notebook shows and keeps them, stands in ``view``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import ipywidgets as widgets
import traitlets

from durakit.errors import InvalidField, UsageError
from durakit.lab.html import Row, SideBySide, Table, h, one_line
from durakit.lab.plots import Plot, plot_timeline
from durakit.lab.scenarios import (
    Event,
    Frame,
    Moment,
    RealKill,
    Scenario,
    Trace,
    Truth,
    events,
    kill_for_real,
)
from durakit.lab.view import BOX, LINE, WITHIN, ModelView, View, button, control_names, in_a_row
from durakit.run import Run

__all__ = [
    "CheckpointInspector",
    "CrashScrubber",
    "Inbox",
    "InspectorModel",
    "JournalTimeline",
    "LedgerView",
    "ScrubberModel",
]

# -- a time line as HTML ---------------------------------------------------------------------------

#: Kind of event → the shape in front of its words. What is not listed is a square.
_SHAPES: Final = {"claimed": "▷", "intent": "◆", "result": "●", "request": "▽", "effect": "★"}


def timeline_html(line: tuple[Event, ...]) -> str:
    """Return belief above and truth below, as a table that scrolls sideways where it must."""
    cell = "padding: 3px; text-align: center; vertical-align: middle; font-size: 11px;"
    cut = f"{cell}border-left: 3px dashed #d0021b; border-right: 3px dashed #d0021b;"
    tops, beliefs, truths = [], [], []
    for event in line:
        if event.lane == "crash":
            tops.append(f'<th scope="col" style="{cut}">✗ crash</th>')
            beliefs.append(f'<td style="{cut}"></td>')
            truths.append(f'<td style="{cut}"></td>')
            continue
        assert event.seconds is not None
        weight = "bold" if event.kind == "effect" else "normal"
        words = (
            f'<div style="font-size: 15px; line-height: 1">{_SHAPES.get(event.kind, "■")}</div>'
            f'<span style="font-weight: {weight}">{h(event.words)}</span>'
        )
        tops.append(f'<th scope="col" style="{cell}font-weight: normal">{event.seconds:g} s</th>')
        beliefs.append(f'<td style="{cell}">{words if event.lane == "belief" else ""}</td>')
        truths.append(f'<td style="{cell}">{words if event.lane == "truth" else ""}</td>')

    def row(name: str, cells: list[str], border: str = "") -> str:
        style = "text-align: left; padding: 3px 8px 3px 0; font-size: 11px"
        return (
            f'<tr style="{border}"><th scope="row" style="{style}">{name}</th>{"".join(cells)}</tr>'
        )

    above = row("BELIEF<br>journal", beliefs, f"border-top: {LINE}")
    below = row("TRUTH<br>world", truths, f"border-top: {LINE}; border-bottom: {LINE}")
    return (
        '<div style="overflow-x: auto" tabindex="0" role="region" aria-label="Timeline">'
        '<table style="border-collapse: collapse; margin: 6px 0">'
        f"<thead>{row('time', tops)}</thead><tbody>{above}{below}</tbody></table></div>"
    )


def timeline_text(line: tuple[Event, ...]) -> str:
    """Return the same as text, one line per event, truth further to the right."""
    lines = [f"{'':>9}  {'BELIEF: the journal says':44}  TRUTH: the world did"]
    for event in line:
        if event.lane == "crash":
            lines.append(f"{'':>9}  {' ✗ crash ':-^67}")
            continue
        words = f"{_SHAPES.get(event.kind, '■')} {event.words}"
        seconds = f"{event.seconds:.3f} s"
        shown = words if event.lane == "belief" else f"{'':44}  {words}"
        lines.append(f"{seconds:>9}  {shown}")
    return "\n".join(lines)


# -- the crash scrubber ----------------------------------------------------------------------------


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
                f'<span style="flex: 1 1 2.6em; text-align: center; border: {line}; '
                f"border-radius: 4px; font-weight: {'bold' if here else 'normal'}; "
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
                _headed("What is on disk", moment.disk()),
                _headed("What is outside", moment.outside()),
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


def _headed(words: str, tables: SideBySide) -> str:
    return (
        f'<div style="border-top: {LINE}; margin-top: 8px; padding-top: 4px; overflow-x: auto">'
        f"<b>{h(words)}</b>{tables.html()}</div>"
    )


class CrashScrubber(ModelView):
    """Drag to any crash of a scenario: disk, inbox and ledger at that moment, then recover.

    ``with_key``, ``without_key``: two scenarios to compare; one alone is fine. Both are run here,
    once, so that every later move is a look-up.
    """

    def __init__(self, with_key: Scenario, without_key: Scenario | None = None) -> None:
        self._scenarios = {True: with_key, False: without_key or with_key}
        self.model = ScrubberModel(
            with_key.trace, None if without_key is None else without_key.trace
        )
        self.real: RealKill | None = None
        super().__init__()
        model = self.model
        self.status.layout.min_height = "3em"
        self.slider = widgets.IntSlider(
            value=model.position + 1,
            min=1,
            max=len(model.trace.frames),
            tooltip="Crash number",
            readout=False,
            layout={"flex": "1 1 240px", "width": "auto"},
        )
        self.previous = button(
            "Previous", "Go to the crash before", self.guarded(lambda: self._move(-1))
        )
        self.next = button("Next", "Go to the crash after", self.guarded(lambda: self._move(1)))
        wide = {"width": "auto"}
        self.recover = widgets.ToggleButton(
            tooltip="Look at the crash, or after the recovery", layout=wide
        )
        self.key = widgets.ToggleButton(
            value=True, tooltip="Compare the runs with and without a key", layout=wide
        )
        self.kill = button(
            "Now for real", "Kill a child process at the same point", self.guarded(self._kill)
        )
        self._body = widgets.HTML(layout={"width": "auto"})
        self._real = widgets.HTML(layout={"width": "auto"})

        self.slider.observe(self.guarded(self._from_slider), "value")
        self.recover.observe(self.guarded(self._from_toggles), "value")
        self.key.observe(self.guarded(self._from_toggles), "value")
        self.model.observe(self.guarded(self._show), ["position", "recovered", "with_key"])
        toggles = [self.recover, *([self.key] if model.has_both else []), self.kill]
        self.children = (
            in_a_row([self.previous, self.slider, self.next]),
            in_a_row(toggles),
            self.status,
            self._trouble,
            self._real,
            self._body,
            control_names(),
        )
        self._show()

    def figure(self) -> Any:
        """Return the time line that is shown now as a matplotlib figure."""
        return self.model.figure()

    def _move(self, by: int) -> None:
        self.model.position += by

    def _from_slider(self) -> None:
        self.model.position = self.slider.value - 1

    def _from_toggles(self) -> None:
        self.model.recovered = self.recover.value
        self.model.with_key = self.key.value

    def _show(self) -> None:
        """Bring every control and text to what the model says."""
        model = self.model
        last = len(model.trace.frames)
        if self.slider.max != last:
            self.slider.max = last
        self.slider.value = model.position + 1
        self.recover.value, self.key.value = model.recovered, model.with_key
        self.recover.description = f"{BOX[model.recovered]} After recovery"
        self.key.description = f"{BOX[model.with_key]} With key"
        if self._real.value:
            self._real.value = ""
        self.say(model.status())
        self._body.value = model.body()

    def _kill(self) -> None:
        """Do the same crash in a child process, and compare what it leaves."""
        self.say(f"Killing a child process at crash {self.model.position + 1} …")
        try:
            frame = self.model.frame
            self.real = kill_for_real(self._scenarios[self.model.with_key], frame)
            self._real.value = (
                f'<div style="border: {LINE}; border-radius: 6px; padding: 6px 12px">'
                f"<b>{h(self.real.verdict)}</b><div>{h(self.real.words)}</div>"
                f"<details><summary>Table by table</summary>{self.real.html()}</details></div>"
            )
        finally:
            self.say(self.model.status())


# -- the checkpoint inspector ----------------------------------------------------------------------

#: Of a long run so many entries are shown around the chosen one; of a state so many lines (as text,
#: and as HTML, where it scrolls), each so many characters long.
_NEAR: Final = 40
_LINES_OF_TEXT: Final = 40
_LINES_OF_HTML: Final = 400
_STATE_WIDTH: Final = 100


class InspectorModel(traitlets.HasTraits):
    """A run, entry by entry: its checkpoints, the state at each entry, and what changed since.

    ``seq``: the entry that is looked at, from 1. ``other``: the entry that it is compared with; 0
    is the checkpoint before it. ``world`` may be None. A journal only ever grows, so a state that
    was read once is kept; ``look`` reads what has come since. Nothing here touches the world, and
    only ``fork`` writes.
    """

    seq = traitlets.Int(1)
    other = traitlets.Int(0)

    def __init__(self, run: Run, world: Any = None) -> None:
        self.run, self.world = run, world
        self.forks: list[str] = []
        """what was forked here, in words"""
        self._states: dict[int, Any] = {}
        self.look()
        super().__init__()
        self.seq = max(self.marks, default=self.last)

    def look(self) -> None:
        """Read the run and the world as they are now."""
        self.moment = Moment.of(self.run, self.world)
        self.marks: dict[int, str] = {
            int(row["seq"]): str(row["what"]) for _, row in self.run.checkpoints().iterrows()
        }
        """the entries that are checkpoints, and what each is"""

    @property
    def last(self) -> int:
        """The journal's last entry."""
        return len(self.moment.journal)

    @traitlets.validate("seq", "other")
    def _inside(self, proposal: dict[str, Any]) -> int:
        least = 1 if proposal["trait"].name == "seq" else 0
        return max(least, min(int(proposal["value"]), self.last))

    def step(self, direction: int) -> None:
        """Go to the next checkpoint (1) or to the one before (-1), where there is one."""
        ahead = [at for at in self.marks if (at - self.seq) * direction > 0]
        if ahead:
            self.seq = min(ahead, key=lambda at: abs(at - self.seq))

    @property
    def compared(self) -> int:
        """The entry that this one is compared with; 0 where nothing stands before it."""
        return self.other or max((at for at in self.marks if at < self.seq), default=0)

    def state(self, seq: int) -> Any:
        """Return the state after an entry, made of JSON types. Raises what ``run.at`` raises."""
        if seq not in self._states:
            found = self.run.at(seq)
            dump = getattr(found, "model_dump", None)
            self._states[seq] = dump(mode="json") if callable(dump) else found
        return self._states[seq]

    def fork(self) -> Run:
        """Fork the run after the chosen entry, under the first free id.

        Raises InvalidField after the run's end: nothing could follow.
        """
        number = 0
        while True:
            number += 1
            try:
                fork = self.run.fork(at=self.seq, id=f"{self.run.id}:fork-{number}")
            except InvalidField as error:
                if error.field != "id" or number > 999:
                    raise
                continue
            self.forks.append(f"{fork.id} has entries 1 to {self.seq} of this run")
            return fork

    def words(self, seq: int) -> str:
        """Return what an entry is: ``5 intent of send_email``."""
        row = self.moment.journal[seq - 1]
        return one_line(f"{seq} {row['kind']}{' of ' if row['step'] else ''}{row['step']}", 40)

    def status(self) -> str:
        """Return the status line: which entry, and whether it is a checkpoint."""
        name = one_line(self.run.id, 60)
        if self.seq in self.marks:
            number = sorted(self.marks).index(self.seq) + 1
            mark = f"▣ Checkpoint {number} of {len(self.marks)} ({self.marks[self.seq]})."
        else:
            mark = "No checkpoint."
        what = self.words(self.seq).partition(" ")[2]
        where = f"Run {name}, {self.moment.status}: entry {self.seq} of {self.last} — {what}."
        return one_line(f"{where} {mark}{self._after()}")

    def _after(self) -> str:
        """How much has happened outside since the chosen entry."""
        if self.world is None:
            return ""
        later, seen = 0, 0
        for event in events(self.moment):
            seen += event.lane == "belief"
            later += event.kind == "effect" and seen >= self.seq
        if not later:
            return ""
        return f" Since then {later} effect{' has' if later == 1 else 's have'} happened outside."

    def _line(self) -> Iterator[tuple[int, str]]:
        """The entries near the chosen one, and between them the effects as entry 0, in order."""
        seen = 0
        for event in events(self.moment):
            if event.lane == "belief":
                seen += 1
                yield seen, self.words(seen).partition(" ")[2]
            elif event.kind == "effect" and self.world is not None:
                yield 0, "EFFECT"

    def timeline(self) -> str:
        """Return one box per entry: checkpoints marked, the chosen one framed, effects between."""
        boxes, seen, left = [], 0, 0
        for seq, words in self._line():
            seen = seq or seen
            if abs(seen - self.seq) > _NEAR:
                left += seq > 0
                continue
            boxes.append(self._box(seq, words))
        many = f"<span>({left} entries further away are not shown)</span>" if left else ""
        legend = "▣ a checkpoint, □ any other entry"
        legend += ", ★ an effect in the world" if self.world is not None else ""
        return (
            '<div role="list" aria-label="Timeline" style="display: flex; flex-wrap: wrap; '
            f'align-items: stretch; gap: 4px; margin: 6px 0">{"".join(boxes)}</div>'
            f'<div style="font-size: 11px; margin-bottom: 8px">{legend} {many}</div>'
        )

    def _box(self, seq: int, words: str) -> str:
        small = "font-size: 11px; text-align: center;"
        if not seq:
            return f'<div role="listitem" style="{small} padding: 5px 2px"><b>★<br>EFFECT</b></div>'
        here = seq == self.seq
        current = ' aria-current="true"' if here else ""
        # Frame and padding together are always as wide, so that nothing moves.
        line = "3px solid currentColor; padding: 2px 6px" if here else f"{LINE}; padding: 4px 8px"
        mark = f"<b>▣ {seq}</b>" if seq in self.marks else f"□ {seq}"
        return (
            f'<div role="listitem"{current} style="{small} border: {line}; border-radius: 4px">'
            f"{mark}<br>{h(words)}</div>"
        )

    def state_lines(self, seq: int, most: int) -> list[str]:
        """Return the state after an entry, in lines, or why it cannot be shown."""
        try:
            text = json.dumps(self.state(seq), indent=2, ensure_ascii=False)
        except Exception as error:  # noqa: BLE001 - the view tells it too; the rest stays of use
            return [f"✗ This state cannot be read here: {one_line(error, _STATE_WIDTH)}"]
        lines = text.splitlines()
        shown = [
            " " * (len(line) - len(line.lstrip())) + one_line(line, _STATE_WIDTH)
            for line in lines[:most]
        ]
        left = len(lines) - len(shown)
        return [*shown, f"… {left} more lines"] if left else shown

    def changes(self) -> Table:
        """Return what changed since the entry that this one is compared with."""
        before = self.compared
        caption = f"DIFF: from entry {before} to entry {self.seq}"
        if not before:
            return Table("DIFF", (), "(nothing stands before it)")
        try:
            rows = self.run.diff(before, self.seq).to_dict("records")
        except Exception as error:  # noqa: BLE001 - as for the state
            return Table(caption, (), f"✗ cannot be told: {one_line(error, _STATE_WIDTH)}")
        named = [{str(name): value for name, value in row.items()} for row in rows]
        return Table(caption, named, "(no difference)")

    def believed(self) -> Table:
        """Return what the journal knew of calls when the chosen entry was written."""
        known: dict[tuple[object, object], Row] = {}
        for row in self.moment.journal[: self.seq]:
            if row["key"] and row["kind"] != "parked":
                told = {"call": row["step"], "key": row["key"], "last entry": row["kind"]}
                known[row["step"], row["key"]] = told
        return Table(
            f"BELIEF: calls, as of entry {self.seq}", list(known.values()), "(no record of any)"
        )

    def beside(self) -> SideBySide:
        """Return belief as of the chosen entry, beside the truth as it is now."""
        truth = self.moment.truth
        shown = [self.believed(), truth.inbox_table(), truth.ledger_table()]
        return SideBySide(tuple(shown if truth.inbox is not None else [shown[0], shown[2]]))

    def body(self) -> str:
        """Return what stands below the controls."""
        lines = h("\n".join(self.state_lines(self.seq, _LINES_OF_HTML)))
        state = (
            f'<div><div style="padding: 4px 0"><b>STATE after entry {self.seq}</b></div>'
            '<pre tabindex="0" role="region" aria-label="State" style="margin: 4px 0; '
            f"padding: 6px 10px; border: {LINE}; border-radius: 4px; max-height: 24em; "
            'overflow: auto; line-height: 1.35; color: inherit; background: transparent">'
            f"{lines}</pre></div>"
        )
        # Two columns where there is room, each at least so wide that a path can be read.
        columns = "repeat(auto-fit, minmax(min(340px, 100%), 1fr))"
        both = (
            f'<div style="display: grid; grid-template-columns: {columns}; gap: 4px 32px">{state}'
            f'<div style="overflow-x: auto">{self.changes().html()}</div></div>'
        )
        parts = [self.timeline(), both]
        if self.world is not None:
            parts.append(_headed("Belief then, and the truth now", self.beside()))
        if self.forks:
            forks = "".join(f"<li>{h(one_line(fork))}</li>" for fork in self.forks)
            parts.append(f"<div><b>Forks made here</b><ul>{forks}</ul></div>")
        return f'<div style="{WITHIN}">{"".join(parts)}</div>'

    def text(self) -> str:
        """Return what is to see now, as plain text."""
        line = []
        for seq, words in self._line():
            if not seq:
                line.append("        ★ EFFECT")
            elif abs(seq - self.seq) <= _NEAR:
                here, mark = ">" if seq == self.seq else " ", "▣" if seq in self.marks else "□"
                line.append(f"  {here} {mark} {seq} {words}")
        state = [f"  {shown}" for shown in self.state_lines(self.seq, _LINES_OF_TEXT)]
        parts = [
            self.status(),
            "\n".join(["TIMELINE (▣ a checkpoint)", *line]),
            "\n".join([f"STATE after entry {self.seq}", *state]),
            self.changes().text(),
        ]
        if self.world is not None:
            parts.append(self.beside().text())
        if self.forks:
            forks = (f"  {one_line(fork)}" for fork in self.forks)
            parts.append("\n".join(["FORKS made here", *forks]))
        return "\n\n".join(parts)

    def html(self) -> str:
        """Return the same as HTML, without controls."""
        return f"<div><div><b>{h(self.status())}</b></div>{self.body()}</div>"


class CheckpointInspector(ModelView):
    """Go to any entry of a run: its state, what changed since another one, and a fork from there.

    ``run``: of a workflow or of a machine. ``world``: where given, the truth as it is now stands
    beside what was believed then.
    """

    def __init__(self, run: Run, world: Any = None) -> None:
        self.model = InspectorModel(run, world)
        super().__init__()
        model = self.model
        self.status.layout.min_height = "3em"
        wide = {"width": "auto"}
        self.slider = widgets.IntSlider(
            value=model.seq, min=1, max=model.last, tooltip="Journal entry", readout=False,
            layout={"flex": "1 1 240px", "width": "auto"},
        )  # fmt: skip
        self.previous = button("Previous", "Go to the entry before", self._guarded_move(-1))
        self.next = button("Next", "Go to the entry after", self._guarded_move(1))
        self.earlier = button(
            "Previous checkpoint", "Go to the checkpoint before", self._guarded_step(-1)
        )
        self.later = button("Next checkpoint", "Go to the checkpoint after", self._guarded_step(1))
        self.compare = widgets.Dropdown(
            options=[("the checkpoint before", 0)], description="Compare with",
            tooltip="The entry to compare with", layout=wide, style={"description_width": "auto"},
        )  # fmt: skip
        self.fork = button(
            "Fork from here", "Begin a new run with the entries up to this one",
            self.guarded(self._fork),
        )  # fmt: skip
        self.refresh = button("Refresh", "Look again", self.guarded(self._look_again))
        self._body = widgets.HTML(layout=wide)

        self.slider.observe(self.guarded(self._from_controls), "value")
        self.compare.observe(self.guarded(self._from_controls), "value")
        self.model.observe(self.guarded(self._show), ["seq", "other"])
        actions = [self.earlier, self.later, self.compare, self.fork, self.refresh]
        self.children = (
            in_a_row([self.previous, self.slider, self.next]),
            in_a_row(actions),
            self.status,
            self._trouble,
            self._body,
            control_names(),
        )
        self.guarded(self._show)(None)

    def _guarded_move(self, by: int) -> Callable[[object], None]:
        return self.guarded(lambda: setattr(self.model, "seq", self.model.seq + by))

    def _guarded_step(self, direction: int) -> Callable[[object], None]:
        return self.guarded(lambda: self.model.step(direction))

    def _from_controls(self) -> None:
        self.model.seq = self.slider.value
        self.model.other = self.compare.value

    def _show(self) -> None:
        """Bring every control and text to what the model says."""
        model = self.model
        if self.slider.max != model.last:
            self.slider.max = model.last
        entries = [(model.words(seq), seq) for seq in range(1, model.last + 1)]
        options = (("the checkpoint before", 0), *entries)
        if self.compare.options != options:
            with self.compare.hold_trait_notifications():
                self.compare.options = options
                self.compare.value = model.other
        self.slider.value, self.compare.value = model.seq, model.other
        self.say(model.status())
        self._body.value = model.body()
        # What cannot be read stands as words in its place; the reason is told where troubles are.
        for seq in (model.compared, model.seq):
            if seq:
                model.state(seq)

    def _fork(self) -> None:
        fork = self.model.fork()
        self._show()
        self.say(f"Forked: the new run is {one_line(fork.id, 80)}. rt.resume(id) goes on with it.")

    def _look_again(self) -> None:
        self.model.look()
        self._show()
        self.say("Looked again.")


# -- views of the world and of a run ---------------------------------------------------------------


class _Watching(View):
    """A view of something that changes outside of it: drawn once, and again on Refresh."""

    def __init__(self) -> None:
        super().__init__()
        self._body = widgets.HTML(layout={"width": "auto"})
        self.refresh = button("Refresh", "Look again", self.guarded(self._look_again))
        self._look()
        self.children = (self._body, self.refresh, self.status, self._trouble, control_names())

    def _look(self) -> None:
        self._model = self._read()
        self._body.value = f'<div style="{WITHIN}">{self.html()}</div>'

    def _look_again(self) -> None:
        self._look()
        self.say("Looked again.")

    def _read(self) -> Any:
        raise NotImplementedError


class Inbox(_Watching):
    """What the customers see, beside what the service remembers and what really happened.

    ``mail``: a world with ``effects()``, and ``inbox()`` and ``keys()`` where it has them.
    """

    def __init__(self, mail: Any) -> None:
        self._world = mail
        super().__init__()

    def _read(self) -> SideBySide:
        truth = Truth.of(self._world)
        return SideBySide((truth.inbox_table(), truth.keys_table(now=True), truth.ledger_table()))

    def text(self) -> str:
        """Return the tables as they were at the last look."""
        return str(self._model.text())

    def html(self) -> str:
        """Return the tables as they were at the last look."""
        return str(self._model.html())


class LedgerView(Inbox):
    """The referee's own books: every request and its answer, the keys, and every effect."""

    def _read(self) -> SideBySide:
        truth = Truth.of(self._world)
        return SideBySide(
            (truth.requests_table(), truth.keys_table(now=True), truth.ledger_table())
        )


class JournalTimeline(_Watching):
    """A run on one line of time: what its journal says above, what the world did below."""

    def __init__(self, run: Run, world: Any) -> None:
        self._run, self._world = run, world
        super().__init__()

    def _read(self) -> Moment:
        return Moment.of(self._run, self._world)

    @property
    def title(self) -> str:
        """Which run, and how it stands."""
        effects = len(self._model.truth.effects)
        name = one_line(self._run.id, 60)
        return f"Run {name}: {self._model.status} on disk, {effects} effect(s) in the ledger."

    def text(self) -> str:
        """Return the run as it was at the last look."""
        return f"{self.title}\n\n{timeline_text(events(self._model))}"

    def html(self) -> str:
        """Return the run as it was at the last look."""
        return f"<div><b>{h(self.title)}</b>{timeline_html(events(self._model))}</div>"

    def figure(self) -> Any:
        """Return the same as a matplotlib figure."""
        return plot_timeline(self._model, title=self.title).figure()

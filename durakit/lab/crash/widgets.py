"""Widgets: controls over what was computed beforehand.

A widget is a box of ``ipywidgets`` that links controls to a model. The model is pure and stands in
a room of its own (``scrubber``, ``inspector``, ``moments``): values in, ``text()`` and ``html()``
out, so that tests need no browser. What all views share, and how a notebook shows and keeps them,
stands in ``view``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets as widgets

from durakit.lab.crash.inspector import InspectorModel
from durakit.lab.crash.moments import Moment, Truth, events
from durakit.lab.crash.plots import plot_timeline
from durakit.lab.crash.scenarios import RealKill, Scenario, kill_for_real
from durakit.lab.crash.scrubber import ScrubberModel
from durakit.lab.crash.timeline import timeline_html, timeline_text
from durakit.lab.html import SideBySide, h, one_line
from durakit.lab.view import BOX, LINE, WITHIN, ModelView, View, button, control_names, in_a_row
from durakit.run import Run

__all__ = ["CheckpointInspector", "CrashScrubber", "Inbox", "JournalTimeline", "LedgerView"]


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

"""The explorer of nested budgets: sliders over the limits, and the run that they lead to."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import ipywidgets as widgets
import traitlets

from durakit.lab.budgets.icicle import plot_icicle
from durakit.lab.budgets.nested import Budgets, BudgetTrace
from durakit.lab.html import Table, h
from durakit.lab.plots import Plot
from durakit.lab.view import BOX, ModelView, control_names, in_a_row

__all__ = ["BudgetExplorer", "BudgetModel"]


class BudgetModel(traitlets.HasTraits):
    """The limits that are looked at, and the run that they lead to. Whole seconds.

    A run is made when it is first asked for, and again only when a number has changed.
    """

    session = traitlets.Int(60)
    turn = traitlets.Int(30)
    call = traitlets.Int(10)
    service = traitlets.Int(10)
    inherited = traitlets.Bool(default_value=True)

    #: The sliders: lowest and highest number of seconds.
    RANGES: Final = {"session": (5, 120), "turn": (5, 60), "call": (1, 40), "service": (1, 40)}

    def __init__(self, **given: Any) -> None:
        self._made: BudgetTrace | None = None
        super().__init__(**given)

    @traitlets.validate("session", "turn", "call", "service")
    def _inside(self, proposal: dict[str, Any]) -> int:
        low, high = self.RANGES[proposal["trait"].name]
        return max(low, min(int(proposal["value"]), high))

    @property
    def budgets(self) -> Budgets:
        """The scenario of the numbers as they are now."""
        return Budgets(self.session, self.turn, self.call, self.service, inherited=self.inherited)

    @property
    def trace(self) -> BudgetTrace:
        """What a run with these limits leads to."""
        budgets = self.budgets
        if self._made is None or self._made.budgets != budgets:
            self._made = budgets.run()
        return self._made

    def plot(self) -> Plot:
        """Return the picture of that run."""
        return plot_icicle(self.trace)

    def figure(self) -> Any:
        """Return the picture as a matplotlib figure."""
        return self.plot().figure()

    def status(self) -> str:
        """Return the status line: the limits, which one fired, and what landed late."""
        return self.trace.words()

    def table(self) -> Table:
        """Return the bars as a table."""
        return Table("EVERY BAR, seconds", self.trace.rows())

    def text(self) -> str:
        """Return what is to see now, as plain text."""
        return f"{self.status()}\n\n{self.table().text()}"

    def html(self) -> str:
        """Return the same as HTML, without controls."""
        return f"<div><div><b>{h(self.status())}</b></div>{self.table().html()}</div>"


#: What stands beside each slider, and what it is read out as.
_SLIDERS: Final = {
    "session": ("Session", "Session limit in seconds"),
    "turn": ("Turn", "Turn limit in seconds"),
    "call": ("Call", "Call limit in seconds"),
    "service": ("Mail takes", "Seconds that the mail service takes"),
}


class BudgetExplorer(ModelView):
    """Sliders for the limits of the three levels and for the service: which limit fires first?

    Each move runs the scenario anew on a manual clock. Arrow keys move a slider by one second.
    """

    def __init__(self, model: BudgetModel | None = None) -> None:
        self.model = model or BudgetModel()
        super().__init__()
        self.status.layout.min_height = "3em"
        self.sliders = {
            name: widgets.IntSlider(
                value=getattr(self.model, name), min=low, max=high,
                description=_SLIDERS[name][0], tooltip=_SLIDERS[name][1],
                layout={"flex": "1 1 300px", "width": "auto"},
            )
            for name, (low, high) in BudgetModel.RANGES.items()
        }  # fmt: skip
        self.inherited = widgets.ToggleButton(
            tooltip="A child gets what its parent has left, or three static limits",
            layout={"width": "auto"},
        )
        self._body = widgets.HTML(layout={"width": "auto"})
        for name, slider in self.sliders.items():
            slider.observe(self.guarded(partial(self._take, name, slider)), "value")
        self.inherited.observe(
            self.guarded(partial(self._take, "inherited", self.inherited)), "value"
        )
        self.model.observe(self.guarded(self._show), [*self.sliders, "inherited"])
        self.children = (
            in_a_row(list(self.sliders.values())),
            in_a_row([self.inherited]),
            self.status,
            self._trouble,
            self._body,
            control_names(),
        )
        self.inherited.value = self.model.inherited
        self._show()

    def figure(self) -> Any:
        """Return the picture that is shown now as a matplotlib figure."""
        return self.model.figure()

    def _take(self, name: str, control: Any) -> None:
        setattr(self.model, name, control.value)

    def _show(self) -> None:
        """Bring every control, the words and the picture to what the model says."""
        for name, slider in self.sliders.items():
            slider.value = getattr(self.model, name)
        self.inherited.value = self.model.inherited
        self.inherited.description = f"{BOX[self.model.inherited]} Limits are inherited"
        self.say(self.model.status())
        self._body.value = self.model.plot().html()

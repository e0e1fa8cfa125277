"""What every widget shares: a box with a status line, a place for troubles, and a stored fallback.

What a notebook keeps of a widget is its ``text/plain`` and ``text/html``, made by the model and the
same on every machine: nbval compares them, and GitHub or an exported page shows the HTML. In a
running notebook the live view stands in its place. No state is ever saved.

Callbacks may run on any thread. What goes wrong in one would show nowhere in a notebook, so the
view tells it in its own status area, in words, and keeps it there. A click never raises, so without
a page to look at it is found in three ways: what is stored of the view shows it too; its traceback
is logged, which in a notebook that is run head-less is text on stderr and fails our check; and
``raise_trouble`` raises it where a test asks.

Inelegant, and on purpose: a stock slider gives its handle no accessible name, and a stock HTML
widget cannot say that its text is read out when it changes. ``CONTROL_NAMES``, a constant of ours,
sets both from inside the page. Where a page does not run it, everything else works.

No button is ever disabled: a page takes the keyboard's focus away from one that is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import ipywidgets as widgets

from durakit.errors import UsageError
from durakit.lab.html import SideBySide, h, one_line
from durakit.lab.plots import WIDGET_VIEW

__all__ = [
    "BOX",
    "CONTROL_NAMES",
    "LINE",
    "WITHIN",
    "ModelView",
    "View",
    "button",
    "control_names",
    "headed",
    "in_a_row",
]

_log: Final = logging.getLogger(__name__)

#: Around a part of a view.
LINE: Final = "1px solid rgba(128, 128, 128, 0.6)"

#: Around everything that may be wide: it scrolls inside, and never widens the page.
WITHIN: Final = "display: grid; grid-template-columns: minmax(0, 1fr)"

#: Whether a toggle is on, as a shape beside the colour that the page gives it.
BOX: Final = {True: "☑", False: "☐"}

#: Names every slider in our box, and has the status line read out. It holds nothing from outside;
#: the picture is empty, and its failing to load is what runs the line.
CONTROL_NAMES: Final = (
    '<img alt="" width="0" height="0" src="data:," onerror="'
    "const name = () => {"
    "const box = this.closest('.durakit-view'); if (!box) return;"
    "box.querySelectorAll('[role=slider]').forEach("
    "slider => slider.setAttribute('aria-label', "
    "slider.closest('.widget-slider')?.querySelector('[title]')?.title || 'Number'));"
    "box.querySelectorAll('.durakit-status .widget-html-content').forEach("
    "line => line.setAttribute('aria-live', 'polite'));"
    "}; name(); setTimeout(name, 300); setTimeout(name, 2000);"
    '">'
    # Inside a widget a page's own styles for tables do not apply, and its lines are a button high.
    "<style>.durakit-view .widget-html-content { line-height: 1.4; min-width: 0; }"
    ".durakit-view table { border-spacing: 0; }"
    ".durakit-view td, .durakit-view th { padding: 2px 12px 2px 0; vertical-align: top; }</style>"
)


class View(widgets.VBox):  # type: ignore[misc]  # ipywidgets ships no types
    """A box with a status line and a place for troubles. ``text`` and ``html`` are the fallback."""

    def __init__(self) -> None:
        # Set before the box is: a widget's own set-up may already call for them.
        self.status = widgets.HTML(layout={"width": "auto"})
        self.status.add_class("durakit-status")
        self.troubles: list[str] = []
        self._errors: list[Exception] = []
        self._one_callback = threading.RLock()
        self._trouble = widgets.HTML(layout={"width": "auto"})
        super().__init__(layout={"width": "auto"})
        self.add_class("durakit-view")

    def text(self) -> str:
        """Return what it shows now, as plain text."""
        raise NotImplementedError

    def html(self) -> str:
        """Return what it shows now, as HTML without controls."""
        raise NotImplementedError

    def say(self, words: str) -> None:
        """Show ``words`` in the status line."""
        self.status.value = f'<div role="status">{h(words)}</div>'

    def guarded(self, work: Callable[[], None]) -> Callable[[object], None]:
        """Return a callback that does ``work`` and tells in words what went wrong in it."""

        def callback(_change: object) -> None:
            # Two callbacks may run on two threads; half of each must not be shown.
            with self._one_callback:
                try:
                    work()
                except Exception as error:  # noqa: BLE001 - a notebook would swallow it
                    self.tell_trouble(error)

        return callback

    def tell_trouble(self, error: Exception) -> None:
        """Keep and show an error; earlier ones stay."""
        try:
            message = one_line(error)
        except Exception:  # noqa: BLE001 - a broken message is no message
            message = ""
        words = f"{type(error).__name__}: {message or 'no message'}"
        if isinstance(error, UsageError):
            words = f"Not possible here: {message}"
        else:
            _log.error("an error in a control: %s", words, exc_info=error)
        self.troubles.append(words)
        self._errors.append(error)
        lines = "".join(f"<div>✗ {h(trouble)}</div>" for trouble in self.troubles)
        self._trouble.value = (
            f'<div role="alert" style="border-left: 4px solid #d0021b; padding: 2px 12px">'
            f"<b>Something went wrong</b>{lines}</div>"
        )

    def raise_trouble(self) -> None:
        """Raise the first error that a control met, if any did: for tests and head-less runs."""
        if self._errors:
            raise self._errors[0]

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        live = super()._repr_mimebundle_(**kwargs)
        bundle = {"text/plain": self.text(), "text/html": self.html()}
        if self.troubles:
            lines = ["✗ Something went wrong", *(f"  {trouble}" for trouble in self.troubles)]
            bundle["text/plain"] = "\n".join([*lines, "", bundle["text/plain"]])
            bundle["text/html"] = f"<div>{self._trouble.value}{bundle['text/html']}</div>"
        return bundle | {WIDGET_VIEW: live[WIDGET_VIEW]}


class ModelView(View):
    """A view of a ``model``, which makes the fallback: ``text()`` and ``html()``."""

    model: Any

    def text(self) -> str:
        """Return what is shown now, as plain text."""
        return str(self.model.text())

    def html(self) -> str:
        """Return what is shown now, as HTML without controls."""
        return str(self.model.html())


def control_names() -> Any:
    """Return the last part of every view: what gives its controls their accessible names."""
    return widgets.HTML(CONTROL_NAMES, layout={"height": "0", "margin": "0"})


def button(words: str, tooltip: str, work: Callable[[object], None]) -> Any:
    """Return a button as wide as its words; a click calls ``work`` with the button."""
    layout = {"width": "auto", "align_self": "flex-start"}
    made = widgets.Button(description=words, tooltip=tooltip, layout=layout)
    made.on_click(work)
    return made


def in_a_row(controls: Sequence[Any]) -> Any:
    """Return controls side by side, in more lines where a page is narrow."""
    line = {"width": "100%", "flex_flow": "row wrap", "align_items": "center"}
    return widgets.HBox(list(controls), layout=line)


def headed(words: str, tables: SideBySide) -> str:
    """Return tables below a line and a heading; they scroll sideways where they must."""
    return (
        f'<div style="border-top: {LINE}; margin-top: 8px; padding-top: 4px; overflow-x: auto">'
        f"<b>{h(words)}</b>{tables.html()}</div>"
    )

"""A plot: a picture, what it shows in words, and a table of the numbers in it.

How a notebook shows it is decided by what nbval compares:

    text/plain   compared: the alternative text and every number that is drawn
    image/png    never compared, since its bytes differ from platform to platform; it is what is
                 stored, and what GitHub and an exported page show
    live view    never compared: an ``<img alt=…>`` with the numbers below it, since JupyterLab
                 gives a bare image no alternative text

There is no ``text/html`` on purpose: it would be compared, and could not hold the picture.

Nothing is told by colour alone: what is not safe is red *and* hatched *and* labelled. Backgrounds
are white in every theme. Figures are made without pyplot, so none stays in memory.
"""

from __future__ import annotations

import base64
import functools
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from durakit.lab.html import Row, Table, h

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["BLUE", "GREY", "INK", "LIGHT_RED", "RED", "TROUBLE", "WIDGET_VIEW", "Plot", "plain"]

WIDGET_VIEW: Final = "application/vnd.jupyter.widget-view+json"

#: Told apart by people with any colour vision, and at least 4.5 to 1 against white.
INK: Final = "#1a1a1a"
BLUE: Final = "#0060a0"
RED: Final = "#b3001b"
GREY: Final = "#595959"
LIGHT_RED: Final = "#ffd9de"

#: How a part of a picture looks that stands for trouble; beside it stands a word.
TROUBLE: Final[dict[str, Any]] = {"facecolor": LIGHT_RED, "edgecolor": RED, "hatch": "////"}

_DOTS_PER_INCH: Final = 110


@dataclass(frozen=True)
class Plot:
    """One picture: what it shows in words, the numbers in it, and how it is drawn.

    ``size``: inches, width and height.
    """

    alt: str
    rows: tuple[Row, ...]
    draw: Callable[[Axes], None] = field(repr=False)
    size: tuple[float, float] = (9.0, 4.0)

    def figure(self) -> Figure:
        """Return a new matplotlib figure."""
        from matplotlib.figure import Figure  # noqa: PLC0415 - loaded with the first picture

        figure = Figure(figsize=self.size, facecolor="white", layout="constrained")
        axes = figure.add_subplot()
        axes.set_facecolor("white")
        self.draw(axes)
        return figure

    def table(self) -> pd.DataFrame:
        """Return exactly the numbers and words that are drawn, one row each."""
        import pandas as pd  # noqa: PLC0415 - loaded with the first table

        return pd.DataFrame(list(self.rows))

    def text(self) -> str:
        """Return the alternative text and the numbers."""
        return Table(self.alt, self.rows).text()

    @functools.cached_property
    def _png(self) -> bytes:
        """The picture, drawn once: a cell shows it twice, and drawing takes its time."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - as above

        file = io.BytesIO()
        figure = self.figure()
        FigureCanvasAgg(figure)
        with warnings.catch_warnings():
            # A name in a script that the font does not have is drawn as boxes, and stands in full
            # in the table; a warning in the notebook would help nobody.
            warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
            figure.savefig(file, format="png", dpi=_DOTS_PER_INCH)
        return file.getvalue()

    def png(self) -> bytes:
        """Return the picture."""
        return self._png

    def html(self) -> str:
        """Return the picture with its alternative text, and the numbers folded below it."""
        picture = base64.b64encode(self.png()).decode("ascii")
        return (
            '<figure style="margin: 4px 0">'
            f'<img alt="{h(self.alt)}" src="data:image/png;base64,{picture}" '
            'style="max-width: 100%; height: auto; border-radius: 4px">'
            f"<figcaption><details><summary>The numbers in this picture</summary>"
            # Its own caption: the whole alternative text would make the table as wide as itself.
            f"{Table('Numbers', self.rows).html()}</details></figcaption></figure>"
        )

    def __str__(self) -> str:
        return self.text()

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        import ipywidgets as widgets  # noqa: PLC0415 - plots are drawn without a notebook too

        del include, exclude
        live = widgets.HTML(self.html(), layout={"width": "auto"})._repr_mimebundle_()
        data = {
            "text/plain": self.text(),
            "image/png": base64.b64encode(self.png()).decode("ascii"),
            WIDGET_VIEW: live[WIDGET_VIEW],
        }
        # nbconvert reads the alternative text of a bare image here; JupyterLab does not.
        return data, {"image/png": {"alt": self.alt}}


def plain(words: str) -> str:
    """Return words as matplotlib draws them literally: a dollar sign begins a formula there."""
    return words.replace("$", r"\$")

"""Maps of verdicts: what comes of each row under each column, as a box with a mark and a word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from durakit.lab.plots import BLUE, INK, RED, TROUBLE, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["GOOD", "Box", "draw_map"]

#: How a box looks that stands for something good. For trouble there is ``plots.TROUBLE``.
GOOD: Final[Mapping[str, Any]] = {"facecolor": "white", "edgecolor": BLUE}


@dataclass(frozen=True)
class Box:
    """One box: its words (several lines are fine), whether it is trouble, and how it looks.

    The words say all; the look only helps.
    """

    words: str
    bad: bool
    look: Mapping[str, Any]

    @classmethod
    def of(cls, words: str, *, good: bool) -> Box:
        """Return a white box, or a red and hatched one."""
        return cls(words, not good, GOOD if good else TROUBLE)


def draw_map(
    axes: Axes,
    across: Sequence[str],
    down: Sequence[str],
    boxes: Sequence[Sequence[Box]],
    *,
    fontsize: float = 9,
) -> None:
    """Draw ``boxes``, one sequence for each row of ``down``, one box for each of ``across``."""
    for y, line in enumerate(boxes):
        for x, box in enumerate(line):
            _draw_box(axes, x, y, box, fontsize)
    axes.set_xticks(range(len(across)), [plain(name) for name in across], color=INK)
    axes.set_yticks(range(len(down)), [plain(name) for name in down], color=INK)
    axes.tick_params(length=0, labeltop=True, labelbottom=False, labelsize=9)
    axes.set_xlim(-0.5, len(across) - 0.5)
    axes.set_ylim(len(down) - 0.5, -0.5)
    axes.spines[:].set_visible(False)


def _draw_box(axes: Axes, x: int, y: int, box: Box, fontsize: float) -> None:
    from matplotlib.patches import Rectangle  # noqa: PLC0415 - loaded with the first picture

    axes.add_patch(Rectangle((x - 0.47, y - 0.42), 0.94, 0.84, linewidth=1.2, **box.look))
    hatched = "hatch" in box.look
    axes.text(
        x, y, box.words, ha="center", va="center", fontsize=fontsize,
        color=RED if box.bad else INK, weight="bold" if box.bad else "normal",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5} if hatched else None,
    )  # fmt: skip

"""A line of time for a notebook: belief above and truth below, as HTML and as text."""

from __future__ import annotations

from typing import Final

from durakit.lab.crash.moments import Event
from durakit.lab.html import h
from durakit.lab.view import LINE

__all__ = ["timeline_html", "timeline_text"]


#: Kind of event → the shape in front of its words. What is not listed is a square.
_SHAPES: Final = {"claimed": "▷", "intent": "◆", "result": "●", "request": "▽", "effect": "★"}


def timeline_html(line: tuple[Event, ...]) -> str:
    """Return belief above and truth below, as a table that scrolls sideways where it must."""
    cell = "padding: 3px; text-align: center; vertical-align: middle; font-size: 11px;"
    label = f"{cell}white-space: nowrap; "  # "1.05 s" is one label, however narrow its column
    cut = f"{label}border-left: 3px dashed #d0021b; border-right: 3px dashed #d0021b;"
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
        tops.append(f'<th scope="col" style="{label}font-weight: normal">{event.seconds:g} s</th>')
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

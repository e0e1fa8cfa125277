"""What the checkpoint inspector shows: a run entry by entry, its states, and what changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import traitlets

from durakit.errors import InvalidField
from durakit.lab.crash.moments import Moment, events
from durakit.lab.html import Row, SideBySide, Table, h, one_line
from durakit.lab.view import LINE, WITHIN, headed
from durakit.run import Run

__all__ = ["InspectorModel"]


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
            parts.append(headed("Belief then, and the truth now", self.beside()))
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

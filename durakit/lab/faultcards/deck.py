"""The deck of fault cards as a widget: look at a card, decide, and see the ledger."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, Final

import ipywidgets as widgets
import traitlets

from durakit.errors import InvalidField
from durakit.lab.faultcards.cards import Card, EffectName, cards
from durakit.lab.faultcards.play import MOVES, Played, play
from durakit.lab.html import Row, SideBySide, Table, h
from durakit.lab.view import LINE, ModelView, button, control_names, in_a_row

__all__ = ["DeckModel", "FaultCards"]

#: Effect contract → what it says, in words. A card says what to do for each.
PROMISES: Final[dict[EffectName, str]] = {
    "none": "none: the call changes nothing outside",
    "idempotent": "idempotent: it knows our key",
    "queryable": "queryable: it can be asked",
    "opaque": "opaque: it promises nothing",
}


@cache
def _played(id: str, move: str) -> Played:
    """Return a game of this process: seeded and on virtual time, each comes out as the first."""
    return play(id, move)


class DeckModel(traitlets.HasTraits):
    """Which card lies on top, and what was decided about it; every game was played beforehand.

    ``position``: from 0. ``move``: one of ``MOVES``, or empty while nothing is decided.
    """

    position = traitlets.Int(0)
    move = traitlets.Unicode("")

    def __init__(self) -> None:
        self.deck = tuple(one for one in cards(extra=True) if one.kind is not None)
        self.games = {(one.id, move): _played(one.id, move) for one in self.deck for move in MOVES}
        super().__init__()

    @traitlets.validate("position")
    def _inside(self, proposal: dict[str, Any]) -> int:
        return max(0, min(int(proposal["value"]), len(self.deck) - 1))

    @traitlets.validate("move")
    def _known(self, proposal: dict[str, Any]) -> str:
        if proposal["value"] and proposal["value"] not in MOVES:
            raise InvalidField("move", f"{proposal['value']!r} is none of {', '.join(MOVES)}")
        return str(proposal["value"])

    @traitlets.observe("position")
    def _face_up(self, _change: object) -> None:
        """A card that was not looked at yet has not been decided about."""
        self.move = ""

    @property
    def card(self) -> Card:
        """The card on top."""
        return self.deck[self.position]

    @property
    def played(self) -> Played | None:
        """What came of the decision; None while there is none."""
        return self.games[self.card.id, self.move] if self.move else None

    def status(self) -> str:
        """Return which card it is and what came of the decision, in one line."""
        where = f"Card {self.position + 1} of {len(self.deck)} — {self.card.title}."
        if self.played is None:
            return f"{where} What do you do?"
        mails = f"{self.played.mails} mail{'' if self.played.mails == 1 else 's'} in the ledger"
        return f"{where} You {MOVES[self.move]}: {mails}. {self.played.verdict}."

    def face(self) -> Table:
        """Return what the caller knows."""
        return Table("WHAT THE CALLER SEES", [{"on the wire": self.card.wire}])

    def back(self) -> SideBySide | None:
        """Return what was done, and what the card says about each contract."""
        if self.played is None:
            return None
        diary: list[Row] = [{"what was done": step} for step in self.played.steps]
        advice: list[Row] = [
            {"the service": PROMISES[effect], "what to do": MOVES.get(move, move)}
            for effect, move in self.card.next.items()
        ]
        kind = self.card.kind.value if self.card.kind else "none"
        out = {"0": "no mail", "1": "one mail", "later": "no mail yet"}[self.card.ledger]
        truth = [{"after the first request": out, "the failure is": kind}]
        return SideBySide(
            (
                Table("WHAT YOU DID", diary),
                Table("THE LEDGER", truth),
                Table("BY WHAT THE SERVICE PROMISES", advice),
            )
        )

    def overview(self) -> Table:
        """Return the face of every card."""
        rows: list[Row] = [
            {"card": number, "failure": one.title, "on the wire": one.wire}
            for number, one in enumerate(self.deck, 1)
        ]
        return Table("EVERY CARD, as the caller sees it", rows)

    def body(self) -> str:
        """Return the card as HTML: its story, its face, and its back once there is a decision."""
        back = self.back()
        turned = "" if back is None else f"{back.html()}<p>{h(self.card.because)}</p>"
        return (
            f'<div style="border: {LINE}; border-radius: 6px; '
            f'padding: 4px 12px; overflow-x: auto"><h4 style="margin: 6px 0">{h(self.card.title)}'
            f"</h4><p>{h(self.card.story)}</p>{self.face().html()}{turned}</div>"
        )

    def text(self) -> str:
        """Return the card, and every card's face."""
        parts = [self.status(), self.card.story, self.face().text()]
        back = self.back()
        if back is not None:
            parts += [back.text(), self.card.because]
        return "\n\n".join([*parts, self.overview().text()])

    def html(self) -> str:
        """Return the same as HTML, without controls."""
        status = f"<div><b>{h(self.status())}</b></div>"
        overview = f"<details><summary>Every card</summary>{self.overview().html()}</details>"
        return f"<div>{status}{self.body()}{overview}</div>"


class FaultCards(ModelView):
    """Go through the cards, decide about each, and see what is in the ledger then."""

    def __init__(self) -> None:
        self.model = DeckModel()
        super().__init__()
        self.previous = button(
            "Previous", "Go to the card before", self.guarded(lambda: self._go(-1))
        )
        self.next = button("Next", "Go to the card after", self.guarded(lambda: self._go(1)))
        self.moves = {
            move: button(words, f"Decide: {words}", self.guarded(partial(self._decide, move)))
            for move, words in MOVES.items()
        }
        self._body = widgets.HTML(layout={"width": "auto"})
        self.model.observe(self.guarded(self._show), ["position", "move"])
        self.children = (
            in_a_row([self.previous, self.next]),
            self._body,
            in_a_row(list(self.moves.values())),
            self.status,
            self._trouble,
            control_names(),
        )
        self._show()

    def _go(self, by: int) -> None:
        self.model.position += by

    def _decide(self, move: str) -> None:
        self.model.move = move

    def _show(self) -> None:
        """Bring every control and text to what the model says."""
        for move, choice in self.moves.items():
            # A shape in the words, and not the colour alone, tells which one was chosen.
            choice.description = f"{'●' if move == self.model.move else '○'} {MOVES[move]}"
        self.say(self.model.status())
        self._body.value = self.model.body()

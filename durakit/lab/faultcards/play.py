"""One decision about a fault card, really made, and what is in the ledger an hour later."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from durakit.errors import InvalidField
from durakit.failures import FailureKind, classify
from durakit.lab.faultcards.cards import HOUR, KEY, PATIENCE, Card, Stage, card, stage

__all__ = ["MOVES", "Played", "play"]


#: What can be done after a failure → in words.
MOVES: Final = {
    "retry": "retry as it is",
    "repair": "repair first",
    "ask": "ask, or resend under its key",
    "hand over": "hand over",
}

_LUCK: Final = "△ one mail, by luck"


@dataclass(frozen=True)
class Played:
    """A card, the decision about it, and what came of it."""

    card: Card
    move: str
    steps: tuple[str, ...]
    """what was done, in words, with virtual seconds since the first request"""
    mails: int
    """in the ledger, an hour later"""
    tries: int
    told: bool
    """whether the program ended with a mail's id in its hand"""

    @property
    def verdict(self) -> str:
        """A mark and a few words."""
        fits = self.card.next["idempotent"] == self.move
        if self.mails > 1:
            return "✗ duplicate"
        if self.told:
            if fits:
                return "✓ one mail"
            return "△ one mail; there was nothing to ask" if self.move == "ask" else _LUCK
        if self.move == "hand over":
            return "✓ handed over" if fits else "△ a person was not needed"
        return f"✗ in vain, {self.tries} attempts"


def play(shown: Card | str, move: str) -> Played:
    """Meet the card, make one of the ``MOVES``, wait an hour, and count in the ledger.

    The service knows keys and can be asked. Raises InvalidField for a move that there is not,
    and for a card on which nothing was sent.
    """
    shown = card(shown) if isinstance(shown, str) else shown
    if move not in MOVES:
        raise InvalidField("move", f"{move!r} is none of {', '.join(MOVES)}")
    if shown.cause.thing == "model":
        raise InvalidField("card", f"{shown.id!r} is a sentence: no request was made")
    with stage(shown, "idempotent") as world:
        game = _Game(world, key=KEY if move == "ask" else None)
        if not game.request():
            game.go_on(move)
        world.clock.sleep(HOUR)
        return Played(shown, move, tuple(game.steps), world.mails(), world.tries, game.told)


class _Game:
    """The requests of one program, and its diary."""

    def __init__(self, world: Stage, key: str | None) -> None:
        self.world, self.key = world, key
        self.steps: list[str] = []
        self.told = False
        self._began = world.clock.now()
        self._floor = 0.0
        self._dice = random.Random(4)  # noqa: S311 - waits, seeded; no secrets

    def request(self) -> bool:
        """Make one request; whether it ended well."""
        under = f" under the key {self.key}" if self.key else ""
        try:
            mail = self.world.send(self.key)
        except Exception as error:  # noqa: BLE001 - any failure is what the game is about
            failure = classify(error, effect=True, now=self.world.clock.now())
            self._floor = failure.retry_after or 0.0
            self.note(f"sent{under}: {type(error).__name__}")
            return False
        self.told = True
        self.note(f"sent{under}: {mail}")
        return True

    def go_on(self, move: str) -> None:
        """Do what the move says."""
        if move == "hand over":
            self.note("a person was told, and nothing more was sent")
            return
        if move == "repair":
            self.world.repair()
            kind = self.world.card.kind
            self.note("repaired" if kind is FailureKind.PERMANENT else "found nothing to repair")
            self.request()
            return
        while self.world.tries < PATIENCE.attempts:
            wait = self._dice.random() * PATIENCE.bound(self.world.tries)
            self.world.clock.sleep(round(max(wait, self._floor), 3))
            if (move == "ask" and self._found()) or self.request():
                return

    def _found(self) -> bool:
        found = self.world.mailbox.find(KEY)
        self.note(f"asked about the key {KEY}: {found['id'] if found else 'not there'}")
        self.told = found is not None
        return self.told

    def note(self, words: str) -> None:
        """Write a line into the diary."""
        self.steps.append(f"{self.world.clock.now() - self._began:5.1f} s  {words}")

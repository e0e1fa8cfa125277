"""Whole policies on the fault cards: each card under each of them, judged by the ledger.

``judge`` runs a card under one policy on virtual time, ``judge_all`` all of them, and
``plot_fault_matrix`` draws the map that comes of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx
import requests  # JupyterLab brings it along; here for the truth value of its responses

from durakit.define import Call, Found, tool, workflow
from durakit.failures import FailureKind
from durakit.lab.faultcards.cards import HOUR, KEY, PATIENCE, Card, Stage, card, cards, stage
from durakit.lab.html import Row, Shown, Table
from durakit.lab.maps import Box, draw_map
from durakit.lab.plots import Plot
from durakit.protocol import Probed
from durakit.runtime import Runtime

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "POLICIES",
    "Cell",
    "Matrix",
    "Policy",
    "judge",
    "judge_all",
    "plot_fault_matrix",
    "retries_by_type",
]


#: Virtual seconds after which a service that can be asked promises: what is absent never comes.
SETTLES: Final = 10.0


# -- the policies ----------------------------------------------------------------------------------


#: Builtins that LangGraph takes for a mistake in the program. OSError is one of them, and every
#: builtin TimeoutError is an OSError.
_TAKEN_FOR_MISTAKES: Final = (
    ArithmeticError, ImportError, LookupError, NameError, OSError, ReferenceError, RuntimeError,
    StopAsyncIteration, StopIteration, SyntaxError, TypeError, ValueError,
)  # fmt: skip


def retries_by_type(error: Exception) -> bool:
    """Whether LangGraph 1.2.11 retries ``error`` by default, restated in our own words.

    A response of ``requests`` is false for every error status, so the last question but one is
    never asked of a real one, and all of them are retried. (The repository has repaired this
    since; it compares with None now.)
    """
    if isinstance(error, ConnectionError):
        return True
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.is_server_error
    if isinstance(error, requests.HTTPError):
        return error.response.status_code >= 500 if error.response else True
    return not isinstance(error, _TAKEN_FOR_MISTAKES)


@dataclass(frozen=True)
class Policy:
    """How a program goes on after a failure.

    ``effect``: durakit's own protocol, with a service of that contract. Without it, a plain loop
    in a step: ``may_retry`` is asked after each failure, at most ``attempts`` requests are made,
    and ``wait(attempt, draw)`` gives the seconds between them.
    """

    name: str
    effect: str | None = None
    may_retry: Callable[[Exception], bool] = lambda _: False
    attempts: int = PATIENCE.attempts
    wait: Callable[[int, float], float] = lambda attempt, draw: draw * PATIENCE.bound(attempt)


def _additive(attempt: int, draw: float) -> float:
    """Seconds that LangGraph waits: half a second, doubled each time, and up to one more."""
    return 0.5 * 2.0 ** (attempt - 1) + draw


POLICIES: Final = (
    Policy("retry nothing"),
    Policy("retry everything", may_retry=lambda _: True),
    Policy("by type (LangGraph 1.2.11)", None, retries_by_type, 3, _additive),
    Policy("durakit, opaque", "opaque"),
    Policy("durakit, queryable", "queryable"),
    Policy("durakit, idempotent", "idempotent"),
)


# -- the judgement ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One card under one policy, an hour later."""

    card: Card
    policy: str
    status: str
    """of the run"""
    mails: int
    tries: int

    @property
    def word(self) -> str:
        """What came of it, by the ledger and by what the run says of itself."""
        if self.mails > 1:
            return "duplicate"
        if self.status == "needs_decision":
            return "handed over"
        if self.status == "completed":
            return "one mail" if self.mails else "lost"
        if self.mails:
            return "wrongly given up"
        if self.card.kind in (FailureKind.PERMANENT, FailureKind.INFEASIBLE):
            again = self.tries - 1
            times = {1: "once", 2: "twice"}.get(again, f"{again} times")
            return f"retried in vain {times}" if again else "stopped at once"
        return "lost"

    @property
    def good(self) -> bool:
        """Nothing was done twice, nothing was lost, nothing was tried in vain."""
        return self.word in {"one mail", "handed over", "stopped at once"}

    @property
    def mark(self) -> str:
        """Its shape."""
        return "✓" if self.good else "✗"


def judge(shown: Card | str, policy: Policy) -> Cell:
    """Run the card under the policy on virtual time, wait an hour, and count in the ledger."""
    shown = card(shown) if isinstance(shown, str) else shown
    with stage(shown, policy.effect or "opaque") as world:
        dice = random.Random(4)  # noqa: S311 - waits, seeded; no secrets
        assert world.mailbox.folder is not None
        with Runtime(
            world.mailbox.folder / "runs.db", clock=world.clock, rng=dice, world=world.mailbox,
            owner="lesson", durability="process",
        ) as runtime:  # fmt: skip
            run = runtime.run(_work(world, policy, dice), id=KEY)
            world.clock.sleep(HOUR)
            return Cell(shown, policy.name, run.status, world.mails(), world.tries)


def _work(world: Stage, policy: Policy, dice: random.Random) -> Any:
    """Return the workflow that sends one letter under the policy."""

    def by_hand() -> str:
        while True:
            try:
                return world.send()
            except Exception as error:
                if world.tries >= policy.attempts or not policy.may_retry(error):
                    raise
                world.clock.sleep(policy.wait(world.tries, dice.random()))

    def probe(call: Call) -> Found | Probed:
        found = world.mailbox.find(call.key)
        return Probed.ABSENT if found is None else Found(found["id"])

    def send(call: Call) -> str:
        return world.send(call.key)

    if policy.effect is None:

        def plain(ctx: Any) -> Any:
            return ctx.step("send", by_hand)

        return workflow(plain, name="fault card: plain")
    asks = policy.effect == "queryable"
    declared = tool(
        send, effect=policy.effect, retry=PATIENCE, name="send_email",
        probe=probe if asks else None, settles_after=SETTLES if asks else None,
    )  # fmt: skip

    def durable(ctx: Any) -> Any:
        return ctx.call(declared, key=KEY)

    return workflow(durable, name=f"fault card: {policy.effect}")


@dataclass(frozen=True)
class Matrix(Shown):
    """Every card under every policy: rows are cards, columns are policies."""

    cells: tuple[Cell, ...]

    @property
    def cards(self) -> tuple[Card, ...]:
        """The cards, in order."""
        return tuple({cell.card.id: cell.card for cell in self.cells}.values())

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies' names, in order."""
        return tuple(dict.fromkeys(cell.policy for cell in self.cells))

    def cell(self, id: str, policy: str) -> Cell:
        """Return one cell. Raises KeyError where there is none."""
        return {(cell.card.id, cell.policy): cell for cell in self.cells}[id, policy]

    def count(self, policy: str, word: str) -> int:
        """How many cards come to ``word`` under the policy; it may be the word's beginning."""
        return sum(cell.policy == policy and cell.word.startswith(word) for cell in self.cells)

    def table(self) -> Table:
        """Return one row for each card."""
        rows: list[Row] = []
        for shown in self.cards:
            found = {name: self.cell(shown.id, name) for name in self.policies}
            said = {name: f"{cell.mark} {cell.word}" for name, cell in found.items()}
            rows.append({"card": shown.title, **said})
        return Table("What the ledger says an hour later", rows)

    def text(self) -> str:
        """Return the table as text."""
        return self.table().text()

    def html(self) -> str:
        """Return the table as HTML."""
        return self.table().html()


def judge_all(shown: Sequence[Card] | None = None, policies: Sequence[Policy] = POLICIES) -> Matrix:
    """Run every card under every policy; the eight if none are given."""
    deck = cards() if shown is None else shown
    return Matrix(tuple(judge(one, policy) for one in deck for policy in policies))


# -- the picture -----------------------------------------------------------------------------------


def plot_fault_matrix(matrix: Matrix) -> Plot:
    """Draw the matrix: a white box with ✓ is good, a red and hatched one with ✗ is not."""
    rows = tuple(
        {
            "card": cell.card.title,
            "policy": cell.policy,
            "mark": cell.mark,
            "what came of it": cell.word,
            "mails": cell.mails,
            "attempts": cell.tries,
        }
        for cell in matrix.cells
    )
    across, down = matrix.policies, matrix.cards
    bad = {name: sum(not c.good for c in matrix.cells if c.policy == name) for name in across}
    told = ", ".join(f"{name} {number}" for name, number in bad.items())
    alt = f"{len(down)} fault cards under {len(across)} policies; cells that went wrong: {told}."

    def draw(axes: Axes) -> None:
        heads = [name.replace(", ", ",\n").replace(" (", "\n(") for name in across]
        boxes = [[_box(matrix.cell(shown.id, name)) for name in across] for shown in down]
        draw_map(axes, heads, [shown.title for shown in down], boxes, fontsize=8)

    return Plot(alt, rows, draw, (11.0, 1.1 + 0.6 * len(down)))


def _box(cell: Cell) -> Box:
    mails = f"{cell.mails} mail{'' if cell.mails == 1 else 's'}"
    word = cell.word.replace("in vain ", "in vain\n")
    return Box.of(f"{cell.mark} {word}\n{mails}", good=cell.good)

"""Key strategies on trial: a program really runs under each while something goes wrong.

``judge`` runs a program under one strategy: a model plans the mails, a tool sends them to a mail
service that knows keys, and something goes wrong (a *disturbance*: a lost reply, a death at each
crash point, a model that plans again, …). The service's own ledger is the judge.

How it is kept fair. The runtime is told nothing of the business here: it knows a call only by its
place in the program. So it protects nobody, and what the service is told decides alone. (A program
of your own says ``ctx.call(…, key=…)`` with the key of the operation; then both protect.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from durakit.clock import ManualClock
from durakit.define import Call, Workflow, tool, workflow
from durakit.driver import Context
from durakit.errors import InvalidField
from durakit.faults import CrashAt
from durakit.lab.crash.scenarios import POINT_WORDS
from durakit.lab.html import Table, one_line
from durakit.lab.keys.strategies import STRATEGIES, Facts, KeyFunction, Operation, Strategy
from durakit.lab.laboratory import scratch
from durakit.lab.maps import GOOD, Box, draw_map
from durakit.lab.plots import GREY, TROUBLE, Plot
from durakit.mail import PROFILES, Fault, Mailbox, Profile
from durakit.retry import Retry
from durakit.run import Run
from durakit.runtime import Runtime
from durakit.sweep import sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "CRASHES",
    "DISTURBANCES",
    "VERDICTS",
    "Disturbance",
    "Judged",
    "Order",
    "judge",
    "judge_all",
    "judge_crashes",
    "plot_key_strategies",
    "strategy_table",
]


ONE_MAIL: Final = "one mail"

DUPLICATE: Final = "duplicate"

LOST: Final = "lost"

REFUSED: Final = "refused"

#: Each verdict with its mark and what it means.
VERDICTS: Final = {
    ONE_MAIL: ("✓", "one mail for each order, and nobody was refused"),
    REFUSED: ("◇", "none twice, and a request was refused in so many words: somebody hears of it"),
    DUPLICATE: ("✗", "an order has two mails"),
    LOST: ("○", "an order has no mail, and everybody believes that it has"),
}

DAY: Final = 86_400.0

ADA: Final = "ada@example.org"

BELA: Final = "bela@example.org"


# -- the stage -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """A mail that the business wants: for which operation, to whom, in which words."""

    operation: Operation
    to: str
    subject: str
    body: str

    @property
    def arguments(self) -> dict[str, str]:
        """What the tool is called with."""
        return {"to": self.to, "subject": self.subject, "body": self.body}


_WELCOME: Final = Order(Operation("welcome", "A-1", 42), ADA, "Welcome", "Hello Ada")

_FOR_BELA: Final = Order(Operation("welcome", "A-2", 43), BELA, "Welcome", "Hello Bela")

_VOUCHERS: Final = tuple(
    Order(Operation("voucher", number, 42), ADA, "Your voucher", "Ten euros for you")
    for number in ("A-7", "A-8")
)


def strategy_table() -> Table:
    """Return each strategy with the key it gives to one request, and what goes wrong with it."""
    order = _WELCOME
    facts = Facts(order.operation, 1, "call_1_1", 7, order.arguments)
    rows = [
        {"strategy": one.name, "a key": one.key(facts), "what goes wrong": one.wrong}
        for one in STRATEGIES
    ]
    return Table("KEY STRATEGIES", rows)


@dataclass
class Planner:
    """A model that plans the mails. Asked again, it gives new tool-call ids.

    ``rewords``: asked again, it says the same in other words. ``one_id``: its provider gives every
    call the same id.
    """

    orders: tuple[Order, ...]
    rewords: bool = False
    one_id: bool = False
    asked: int = 0

    def plan(self) -> list[dict[str, Any]]:
        """Return one tool call per order."""
        self.asked += 1
        greeting = "Dear customer: " if self.rewords and self.asked > 1 else ""
        return [
            {
                "id": "call_0" if self.one_id else f"call_{self.asked}_{number}",
                "operation": [order.operation.event, order.operation.order,
                              order.operation.customer],
                "arguments": order.arguments | {"body": greeting + order.body},
            }
            for number, order in enumerate(self.orders, 1)
        ]  # fmt: skip


@dataclass
class Stage:
    """One trial: a strategy, a model that plans, and an empty mail service.

    ``rounds``: how often the tool server is called in one attempt; with two the server acts, then
    asks something, and is called again under a new JSON-RPC id, as a multi-round request is.
    """

    key: KeyFunction
    folder: Path
    planner: Planner
    profile: Profile = PROFILES["idempotent"]
    plan: tuple[Fault, ...] = ()
    rounds: int = 1

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.mailbox = Mailbox(
            self.folder / "world", profile=self.profile, clock=self.clock, plan=self.plan
        )

    @property
    def program(self) -> Workflow:
        """The program: plan as a step, then one call for each mail."""
        # A tool that promises more than its service keeps (no window), so that nothing but the
        # key stands between a recovery and a second mail.
        send = tool(
            self._send, effect="idempotent", timeout=3.0, name="send_email",
            retry=Retry(initial=1.0, cap=1.0, attempts=3),
        )  # fmt: skip

        def mails(ctx: Context) -> int:
            planned = ctx.step("plan", self.planner.plan)
            for place, one in enumerate(planned, 1):
                given = one["arguments"]
                ctx.call(
                    send, one["operation"], one["id"], given["to"], given["subject"],
                    given["body"], key=f"call {place}",
                )  # fmt: skip
            return len(planned)

        # A name of our own: a learner's workflow of the same name would be replaced by it.
        declared: Workflow = workflow(mails, name="lab: key strategies")
        return declared

    def _send(
        self,
        call: Call,
        operation: list[Any],
        tool_call_id: str,
        to: str,
        subject: str,
        body: str,
    ) -> dict[str, Any]:
        arguments = {"to": to, "subject": subject, "body": body}
        answer: dict[str, Any] = {}
        for _ in range(self.rounds):
            # Counted by the service, whose ledger no crash of ours resets.
            number = 1 + len(self.mailbox.requests())
            facts = Facts(Operation(*operation), call.attempt, tool_call_id, number, arguments)
            answer = self.mailbox.send(
                to, subject, body, key=self.key(facts), timeout=call.remaining()
            )
        return answer

    def run(self, *, crash: CrashAt | None = None, wait: float = 0.0) -> Run:
        """Run the program once; where it dies, recover it ``wait`` seconds later."""
        with self._runtime(":memory:" if crash is None else self.folder / "runs.db") as runtime:
            run = runtime.run(self.program, id="mails", deadline=10 * DAY, crash=crash)
            self.clock.advance(wait)
            if crash is not None:
                runtime.recover()
            return run

    def forget(self) -> None:
        """Let the program die when the first mail is out; whatever it had in memory is gone."""
        with self._runtime(":memory:") as runtime:
            runtime.run(self.program, id="mails", crash=CrashAt("send_email", "effect_done"))

    def _runtime(self, path: Path | str) -> Runtime:
        return Runtime(
            path, clock=self.clock, world=self.mailbox, owner="keys", durability="process"
        )

    def close(self) -> None:
        """Close the mail service."""
        self.mailbox.close()

    def verdict(self) -> str:
        """Say what the ledger says."""
        wanted = Counter(order.to for order in self.planner.orders)
        found = Counter(mail["to"] for mail in self.mailbox.inbox())
        if found - wanted:
            return DUPLICATE
        if any(row["outcome"].startswith("refused") for row in self.mailbox.requests()):
            return REFUSED
        return LOST if wanted - found else ONE_MAIL


# -- what goes wrong -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Disturbance:
    """Something that happens. ``play`` does it on a stage; None: a death at ``crash``.

    ``orders``: the mails that are wanted. ``planner``, ``stage``: options of the two.
    """

    name: str
    words: str
    orders: tuple[Order, ...] = (_WELCOME,)
    play: Callable[[Stage], object] | None = None
    crash: str = ""
    planner: Mapping[str, Any] = field(default_factory=dict)
    stage: Mapping[str, Any] = field(default_factory=dict)


def _once(stage: Stage) -> None:
    stage.run()


def _twice(stage: Stage) -> None:
    stage.forget()
    stage.run()


def _late(stage: Stage) -> None:
    stage.run(crash=CrashAt("send_email", "effect_done"), wait=DAY + 3600)


_POINTS: Final = (
    "before_intent", "intent_saved", "request_sent", "late:request_sent", "effect_done",
    "reply_received", "result_saved",
)  # fmt: skip


def _death(point: str) -> Disturbance:
    fate, _, name = point.rpartition(":")
    words = "request sent, and it will act late" if fate else POINT_WORDS[name]
    shown = f"killed at {name}" + (", late" if fate else "")
    return Disturbance(shown, f"{words}; then recovered", crash=f"{point}@send_email")


#: A death at each crash point of the call, and the recovery.
CRASHES: Final = tuple(_death(point) for point in _POINTS)

_NO_COMPARISON: Final = replace(PROFILES["idempotent"], name="forgiving", compares_bodies=False)

DISTURBANCES: Final = (
    Disturbance(
        "reply lost, tried again", "the same run makes a second attempt",
        play=_once, stage={"plan": (Fault("reply_lost"),)},
    ),
    *CRASHES,
    Disturbance(
        "planned again, same words", "the mail is out, the plan is gone; the model is asked again",
        play=_twice,
    ),
    Disturbance(
        "planned again, other words", "the same, and it words the mail differently",
        play=_twice, planner={"rewords": True},
    ),
    Disturbance(
        "one id for two calls", "the model's provider gives two mails the same tool-call id",
        (_WELCOME, _FOR_BELA), _once, planner={"one_id": True},
    ),
    Disturbance(
        "one id, bodies not compared", "the same, at a service that does not compare bodies",
        (_WELCOME, _FOR_BELA), _once, planner={"one_id": True},
        stage={"profile": _NO_COMPARISON},
    ),
    Disturbance(
        "two equal orders", "two vouchers in the same words for one customer, both wanted",
        _VOUCHERS, _once,
    ),
    Disturbance(
        "a second round", "the tool server acts, asks back, and is called again by the protocol",
        play=_once, stage={"rounds": 2},
    ),
    Disturbance(
        "key window over", "killed at effect_done, recovered 25 hours later", play=_late
    ),
)  # fmt: skip


# -- the judgement ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """What came of one strategy under one disturbance, by the service's ledger.

    ``mails`` are out, ``wanted`` were ordered. ``keys``: what the service was told, in order;
    empty where a sweep has judged.
    """

    strategy: str
    disturbance: str
    verdict: str
    mails: int
    wanted: int
    keys: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        """The verdict's mark."""
        return VERDICTS[self.verdict][0]


def judge(
    strategy: Strategy,
    disturbance: Disturbance | str,
    *,
    mode: Literal["simulated", "process"] = "simulated",
) -> Judged:
    """Run the program under a strategy while something goes wrong, and read the ledger.

    ``disturbance``: one of ``DISTURBANCES``, or its name. ``mode``: how a death is died, as in
    ``dk.sweep``. Raises InvalidField for a disturbance that there is not, and whatever the
    strategy's function raises.
    """
    if isinstance(disturbance, str):
        disturbance = _named(disturbance)
    if disturbance.play is None:
        return judge_crashes(strategy, mode=mode, only=disturbance)[0]
    with scratch("keys") as folder:
        stage = _stage(strategy, disturbance, folder)
        with closing(stage):
            disturbance.play(stage)
            keys = tuple(str(row["key"]) for row in stage.mailbox.requests())
            return Judged(
                strategy.name, disturbance.name, stage.verdict(), len(stage.mailbox.effects()),
                len(disturbance.orders), keys,
            )  # fmt: skip


def judge_crashes(
    strategy: Strategy,
    *,
    mode: Literal["simulated", "process"] = "simulated",
    only: Disturbance | None = None,
) -> list[Judged]:
    """Kill the program at every crash point of its call, recover it, and read the ledger.

    One sweep does it. ``mode`` "process" is a child killed by SIGKILL at each point.
    """
    with scratch("keys") as folder:
        stage = _stage(strategy, CRASHES[0], folder)
        with closing(stage):
            report = sweep(
                stage.program, world=stage.mailbox, deadline=DAY, mode=mode,
                only=None if only is None else only.crash,
            )  # fmt: skip
    found = {schedule.seed: schedule for schedule in report.schedules}
    judged = []
    for death in CRASHES if only is None else (only,):
        mails = found[death.crash].effects or 0
        verdict = DUPLICATE if mails > 1 else ONE_MAIL if mails else LOST
        judged.append(Judged(strategy.name, death.name, verdict, mails, 1))
    return judged


def judge_all(strategies: Sequence[Strategy] = STRATEGIES) -> tuple[Judged, ...]:
    """Judge each strategy under every disturbance: strategy by strategy, in the order of both."""
    return tuple(
        judged
        for strategy in strategies
        for judged in sorted(
            [
                *judge_crashes(strategy),
                *(judge(strategy, one) for one in DISTURBANCES if one.play is not None),
            ],
            key=lambda judged: _ORDER[judged.disturbance],
        )
    )


_ORDER: Final = {one.name: number for number, one in enumerate(DISTURBANCES)}


def _named(name: str) -> Disturbance:
    for one in DISTURBANCES:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in DISTURBANCES)
    raise InvalidField("disturbance", f"there are {known}; got {name!r}")


def _stage(strategy: Strategy, disturbance: Disturbance, folder: Path) -> Stage:
    planner = Planner(disturbance.orders, **disturbance.planner)
    return Stage(strategy.key, folder, planner, **disturbance.stage)


# -- the picture -----------------------------------------------------------------------------------


def plot_key_strategies(judged: Sequence[Judged] | None = None) -> Plot:
    """Draw the map: a strategy in each column, a disturbance in each row, a verdict in each cell.

    ``judged``: what ``judge_all`` returns, which is called where nothing is given (about 3 s).
    """
    cells = tuple(judge_all() if judged is None else judged)
    across = list(dict.fromkeys(one.strategy for one in cells))
    down = list(dict.fromkeys(one.disturbance for one in cells))
    found = {(one.disturbance, one.strategy): one for one in cells}
    rows = tuple(
        {"what happens": name}
        | {column: f"{found[name, column].mark} {found[name, column].verdict}" for column in across}
        for name in down
    )
    bad = [f"{one} {_bad(cells, one)}" for one in across]
    alt = (
        f"Map of {len(across)} key strategies and {len(down)} disturbances, the mail service's "
        f"ledger judging; duplicate or lost: {', '.join(bad)}."
    )

    def draw(axes: Axes) -> None:
        heads, names = ([one_line(name, 40) for name in side] for side in (across, down))
        boxes = [[_box(found[name, column]) for column in across] for name in down]
        draw_map(axes, heads, names, boxes)

    return Plot(alt, rows, draw, (10.0, 0.9 + 0.42 * len(down)))


def _bad(cells: Sequence[Judged], strategy: str) -> int:
    return sum(one.strategy == strategy and one.verdict in (DUPLICATE, LOST) for one in cells)


#: Told apart by word, mark and hatch; the colour only helps.
_LOOKS: Final[dict[str, Mapping[str, Any]]] = {
    ONE_MAIL: GOOD,
    REFUSED: {"facecolor": "#eeeeee", "edgecolor": GREY, "hatch": "..."},
    DUPLICATE: TROUBLE,
    LOST: TROUBLE | {"hatch": "xxx"},
}


def _box(cell: Judged) -> Box:
    bad = cell.verdict in (DUPLICATE, LOST)
    return Box(f"{cell.mark} {cell.verdict}", bad, _LOOKS[cell.verdict])

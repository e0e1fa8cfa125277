"""Nested budgets: limits of a session, its turns and their calls, really run on a manual clock.

How it works. ``Budgets`` holds the limits and how long everything takes. ``Budgets.run`` starts a
real run of a real workflow against a real mailbox, lets time go on until every late mail has
landed, and reads what happened from two records only: the run's journal (what was believed) and
the mailbox's ledger (what was true). Nothing is calculated beside the runtime, so a picture of a
``BudgetTrace`` cannot be right where the runtime is wrong.

Two ways to set limits can be compared:

    inherited   the runtime's own: a child has min(its limit, what is left of its parent's)
    static      three clocks that know nothing of each other: each layer looks at its own before it
                begins the next piece of work, as three timeouts in three configuration files do

The mail service keeps no promise (contract ``opaque``), so the first limit that fires ends the
run: between two calls it fails, during a call it parks with an outcome that is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from durakit.clock import ManualClock
from durakit.define import Call, Tool, Workflow, tool, workflow
from durakit.driver import Context
from durakit.errors import DeadlineExceeded, InvalidField
from durakit.lab.html import Row, one_line
from durakit.lab.laboratory import scratch
from durakit.mail import Fault, Mailbox
from durakit.run import Run
from durakit.runtime import Runtime

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Bar", "BudgetTrace", "Budgets", "SlowMail"]


#: More bars than this are no picture any more.
MOST_PIECES: Final = 12

ADA: Final = "ada@example.org"


# -- the world: a service that takes its time ------------------------------------------------------


class SlowMail:
    """A door to ``mailbox`` where each request takes ``seconds``: then it acts and replies at once.

    A caller that waits for less has gone by then, and the request acts all the same: nobody tells
    it that the caller has left. ``slow``: address → seconds, where they differ. The mailbox needs a
    clock that is moved by waiting.
    """

    def __init__(self, mailbox: Mailbox, seconds: float) -> None:
        self.mailbox, self.seconds = mailbox, seconds
        self.slow: dict[str, float] = {}
        mailbox.latency = 0.0

    def send(
        self,
        to: str,
        subject: str,
        body: str,
        *,
        key: str | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Send a mail; ``timeout``: seconds that the caller waits for the reply (None: for ever).

        Raises TimeoutError after the whole timeout where the service needs longer; the mail then
        lands later.
        """
        box, needs = self.mailbox, self.slow.get(to, self.seconds)
        if timeout is None or timeout >= needs:
            box.plan = []
            box.clock.sleep(needs)
            return box.send(to, subject, body, key=key)
        this_one = len(box.requests()) + 1
        box.plan = [Fault("request_late", this_one, seconds=needs)]
        return box.send(to, subject, body, key=key, timeout=timeout)

    def find(self, key: str) -> dict[str, Any] | None:
        """Ask about a key, as ``Mailbox.find`` does; it takes no time."""
        return self.mailbox.find(key)


# -- the scenario ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budgets:
    """The limits of three levels, and how long the work takes. All times in seconds.

    ``session``, ``turn``, ``call``: each level's own limit. ``service``: what the mail service
    takes for one mail. ``think``: what the model takes at the beginning of a turn. ``turns`` turns
    with ``calls`` mails each. ``inherited``: a child has min(own limit, what its parent has left);
    False: three static limits.

    Raises InvalidField for a time that is not positive and finite, or for too many pieces.
    """

    session: float = 60.0
    turn: float = 30.0
    call: float = 10.0
    service: float = 10.0
    think: float = 5.0
    turns: int = 2
    calls: int = 3
    inherited: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "float" and not (_is_number(value) and 0 < value < 1e6):
                raise InvalidField(
                    field.name, f"needs seconds above 0 and below 1e6, got {value!r}"
                )
            if field.type == "bool" and type(value) is not bool:
                raise InvalidField(field.name, f"needs True or False, got {value!r}")
            if field.type == "int" and not (type(value) is int and 1 <= value <= MOST_PIECES):
                raise InvalidField(field.name, f"needs 1 to {MOST_PIECES}, got {value!r}")
        if self.turns * self.calls > MOST_PIECES:
            raise InvalidField("calls", f"more than {MOST_PIECES} calls in all are no picture")

    @property
    def kind(self) -> str:
        """How the limits hang together, in one word."""
        return "inherited" if self.inherited else "static"

    def run(self, folder: Path | None = None) -> BudgetTrace:
        """Run it in an empty ``folder`` (None: a private one, removed afterwards)."""
        if folder is None:
            with scratch("budgets") as private:
                return self.run(private)
        clock = ManualClock()
        mailbox = Mailbox(folder, profile="opaque", clock=clock)
        try:
            with Runtime(":memory:", clock=clock, world=mailbox, owner="budgets") as runtime:
                run = runtime.run(
                    self.workflow(clock, self.tool(mailbox)), id="session",
                    deadline=self.session if self.inherited else None,
                )  # fmt: skip
                clock.advance(self.service)  # whatever is still on its way lands now
                return self.trace(run, mailbox)
        finally:
            mailbox.close()

    def tool(self, mailbox: Mailbox) -> Tool:
        """Return the tool: it waits no longer than it is told to."""
        service = SlowMail(mailbox, self.service)

        def send_mail(call: Call, subject: str) -> dict[str, Any]:
            return service.send(ADA, subject, "hello", key=call.key, timeout=call.remaining())

        made: Tool = tool(send_mail, effect="opaque", timeout=self.call)
        return made

    def workflow(self, clock: ManualClock, send_mail: Tool) -> Workflow:
        """Return the workflow: in each turn the model thinks, then mails go out."""

        def one_turn(ctx: Context, turn: int) -> Iterator[None]:
            ctx.step(f"think {turn}", clock.advance, self.think)
            for number in range(1, self.calls + 1):
                yield
                ctx.call(send_mail, f"mail {turn}.{number}", key=f"mail {turn}.{number}")

        def inherited(ctx: Context) -> None:
            for turn in range(1, self.turns + 1):
                with ctx.turn(f"{turn}", timeout=self.turn):
                    for _ in one_turn(ctx, turn):
                        pass

        def static(ctx: Context) -> None:
            # Reading a clock in a workflow is what one must not do; these limits are the mistake.
            session_ends = clock.monotonic() + self.session
            for turn in range(1, self.turns + 1):
                if clock.monotonic() >= session_ends:
                    raise DeadlineExceeded("session", "session", f"turn {turn} was not begun")
                turn_ends = clock.monotonic() + self.turn
                for _ in one_turn(ctx, turn):
                    if clock.monotonic() >= turn_ends:
                        raise DeadlineExceeded("turn", f"{turn}", "the next call was not begun")

        chosen = inherited if self.inherited else static
        made: Workflow = workflow(chosen, name=f"{self.kind} budgets")
        return made

    def trace(self, run: Run, mailbox: Mailbox) -> BudgetTrace:
        """Read what happened from the finished run's journal and from the mailbox's ledger."""
        history = run.history()
        start = history["time"].iloc[0]
        seconds = [round((moment - start).total_seconds(), 3) for moment in history["time"]]
        entries = [
            _Entry(at, str(kind), str(step), str(key), payload)
            for at, kind, step, key, payload in zip(
                seconds, history["kind"], history["step"], history["key"], history["payload"],
                strict=True,
            )
        ]  # fmt: skip
        lands = {
            effect["key"]: round(effect["time"] - start.timestamp(), 3)
            for effect in mailbox.effects()
        }
        calls = [
            self._call(entries, at, lands) for at, e in enumerate(entries) if e.kind == "intent"
        ]
        turns = [self._turn(entries, at) for at, e in enumerate(entries) if _begins_turn(e)]
        ended = entries[-1].at
        session = Bar("session", "session", 0.0, self.session, self.session, ended)
        ordered = [session]
        for turn in turns:
            ordered += [turn, *(c for c in calls if c.name.startswith(f"mail {turn.name[5:]}."))]
        return BudgetTrace(self, tuple(ordered), run.status, ended, _fired(run, calls, ended))

    def _turn(self, entries: Sequence[_Entry], at: int) -> Bar:
        """The turn whose first entry stands at ``at``; it began where the one before ended.

        Between two entries nothing but this work moves the clock.
        """
        number = entries[at].step.removeprefix("think ")
        begins = entries[at - 1].at
        ends = max(e.at for e in entries if _number(e) == number)
        left = entries[at].payload.get("left", {}).get(f"turn {number}")
        available = self.turn if left is None else round(left + entries[at].at - begins, 3)
        return Bar("turn", f"turn {number}", begins, self.turn, available, ends)

    def _call(self, entries: Sequence[_Entry], at: int, lands: dict[str, float]) -> Bar:
        intent = entries[at]
        short = intent.payload.get("shortened")
        available = self.call if short is None else round(float(short["to"]), 3)
        end = next(e for e in entries[at + 1 :] if e.key == intent.key)
        by = end.payload.get("fired", short)  # of two that end together, the outer one fires
        level, name = "call", "call"
        if by is not None and by["level"] != "call":
            level, name = by["level"], by["name"]
        return Bar(
            "call", intent.key, intent.at, self.call, available, end.at,
            known=end.kind == "result", cut_by=_named(level, name),
            lands=lands.get(intent.key),
        )  # fmt: skip


@dataclass(frozen=True)
class _Entry:
    """One journal entry; ``at``: seconds since the run began."""

    at: float
    kind: str
    step: str
    key: str
    payload: dict[str, Any]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _begins_turn(entry: _Entry) -> bool:
    return entry.kind == "step" and entry.step.startswith("think ")


def _number(entry: _Entry) -> str:
    """The number of the turn that an entry belongs to."""
    if entry.key.startswith("mail "):
        return entry.key.removeprefix("mail ").partition(".")[0]
    return entry.step.removeprefix("think ")


def _named(level: str, name: str) -> str:
    """A level by its name, as the bars carry it: ``session``, ``turn 1``."""
    return level if level == name else f"{level} {name}"


def _fired(run: Run, calls: Sequence[Bar], ended: float) -> Fired | None:
    """Which limit ended the run, by the runtime's own word; None where none fired."""
    if run.status == "needs_decision":
        cut = calls[-1]
        level = cut.cut_by.partition(" ")[0]
        return Fired(level, cut.cut_by, cut.ends, f"during {cut.name}, whose outcome is unknown")
    if run.status == "failed":
        try:
            _ = run.result
        except DeadlineExceeded as error:
            name = _named(error.level, error.name)
            return Fired(error.level, name, ended, f"between two calls: {error.detail}")
    return None


# -- what came of it -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fired:
    """The limit that ended a run: its level, its name, the second, and what it met."""

    level: str
    name: str
    at: float
    met: str

    @property
    def words(self) -> str:
        """In one line."""
        return f"the {self.name} limit fired at {self.at:g} s, {self.met}"


@dataclass(frozen=True)
class Bar:
    """One piece of work on the time axis. Seconds since the run began, or seconds long.

    ``limit``: its own. ``available``: what it really had. ``ends``: when it was over for us.
    """

    level: str
    name: str
    begins: float
    limit: float
    available: float
    ends: float
    known: bool = True
    """False: we left it at its limit, and do not know how it ended"""
    cut_by: str = ""
    """level and name of the limit that bounded it"""
    lands: float | None = None
    """when its effect came into the ledger"""

    @property
    def used(self) -> float:
        """How long it took."""
        return round(self.ends - self.begins, 3)

    @property
    def over(self) -> float:
        """How far it went past what it had: 0 unless somebody does not keep the limits."""
        return round(max(0.0, self.used - self.available), 3)


@dataclass(frozen=True)
class BudgetTrace:
    """One run of a scenario: its bars, from the session inwards, and how it ended."""

    budgets: Budgets
    bars: tuple[Bar, ...]
    status: str
    ended: float
    """seconds after its beginning"""
    fired: Fired | None

    @property
    def calls(self) -> tuple[Bar, ...]:
        """The calls, in order."""
        return tuple(bar for bar in self.bars if bar.level == "call")

    @property
    def mails(self) -> int:
        """Mails in the ledger, in the end."""
        return sum(bar.lands is not None for bar in self.calls)

    @property
    def late(self) -> tuple[Bar, ...]:
        """The calls whose mail landed after we had left them, or after the session's end."""
        end = self.budgets.session
        return tuple(
            bar for bar in self.calls
            if bar.lands is not None and (bar.lands > bar.ends or bar.lands > end)
        )  # fmt: skip

    def words(self) -> str:
        """What happened, in one line."""
        b = self.budgets
        numbers = f"session {b.session:g} s, turn {b.turn:g} s, call {b.call:g} s"
        limits = f"{_first_upper(b.kind)} limits: {numbers}"
        over = round(self.ended - b.session, 3)
        if self.fired is not None:
            came = self.fired.words
        elif over > 0:
            came = f"no limit fired, and the session went {over:g} s past its own"
        else:
            came = "no limit fired"
        late = "".join(f"; {bar.name} landed late, at {bar.lands:g} s" for bar in self.late)
        return one_line(f"{limits}. {_first_upper(came)}{late}. The run is {self.status} after "
                        f"{self.ended:g} s, mails in the ledger: {self.mails}.")  # fmt: skip

    def rows(self) -> tuple[Row, ...]:
        """One row per bar; times in seconds, ``begins`` and ``ends`` since the run began."""
        return tuple(
            {
                "limits": self.budgets.kind,
                "what": bar.name,
                "begins": f"{bar.begins:g}",
                "own limit": f"{bar.limit:g}",
                "had": f"{bar.available:g}",
                "used": f"{bar.used:g}",
                "how it ended": self.ending(bar),
                "mail landed": self._landing(bar),
            }
            for bar in self.bars
        )

    def ending(self, bar: Bar) -> str:
        """How one piece of work ended, with the mark that the picture shows."""
        if self.is_where_it_fired(bar):
            assert self.fired is not None
            return f"✗ {bar.cut_by} limit fired: unknown" if bar.level == "call" else "✗ fired"
        if bar.over:
            return f"✗ {bar.over:g} s too long"
        if self.fired is not None and bar.level != "call" and bar.ends == self.fired.at:
            return f"■ stopped with {self.fired.name}"
        return "✓ in time"

    def is_where_it_fired(self, bar: Bar) -> bool:
        """Whether this bar's own limit is the one that fired, or this call was cut by it."""
        return self.fired is not None and (bar.name == self.fired.name or not bar.known)

    def _landing(self, bar: Bar) -> str:
        if bar.level != "call":
            return ""
        if bar.lands is None:
            return "never"
        return f"{bar.lands:g}{' ★ late' if bar in self.late else ''}"

    def table(self) -> pd.DataFrame:
        """Return the rows as a DataFrame."""
        import pandas as pd  # noqa: PLC0415 - loaded with the first table

        return pd.DataFrame(list(self.rows()))


def _first_upper(words: str) -> str:
    return words[:1].upper() + words[1:]

"""The agent of the lessons: a machine whose whole memory is one pydantic state.

The model decides, tools do. One transition is one decision or one tool, so every boundary between
two of them can be a checkpoint:

    think ──▶ act ──▶ … ──▶ think        the model asks for tools, and they are done in its order
      │                       │
      ├──▶ check ──▶ done     └──▶ done  "I cannot" is checked against what is really missing
      └──▶ done                          nothing left to do, or the budget is used up

Three rules hold, and they are the reason why this agent may crash anywhere.

* **The state is all there is.** Messages, pending calls, stage, budget, references of artifacts
  (name, version, digest; the text lies elsewhere) and the versions it was made with.
* **The operation key is ours.** It is made of the case and of whom the call is about. The model
  never sees it, and the id that the model gives to a tool call is only ever used to tell the model
  which answer belongs to which call.
* **The model is outside.** A ``ScriptedModel`` reads its answers from ``data/transcripts``, and
  keeps a bill of every time it was asked. The budget in the state is what the agent *believes* to
  have spent; the bill is the truth.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from durakit.define import Call, Tool, tool
from durakit.driver import Context
from durakit.errors import ArgumentsDiffer
from durakit.lab.lessons import find_data
from durakit.lab.worlds import customers
from durakit.machine import Done, Machine, SavePlace, every, machine, only_at_the_end
from durakit.mail import Mailbox

__all__ = [
    "SAVE_PLACES",
    "TOOLS",
    "AgentState",
    "Amount",
    "Artifact",
    "Artifacts",
    "Budget",
    "Cannot",
    "Desk",
    "HandOver",
    "Message",
    "PendingCall",
    "Reply",
    "ScriptedModel",
    "Transcript",
    "acted",
    "checked",
    "heard",
    "operation_key",
    "outcome",
    "transcript_names",
]

TRANSCRIPTS: Final = Path("data") / "transcripts"

#: What the model is told about its tools. There is no operation key in here, and none may come in.
TOOLS: Final[dict[str, dict[str, str]]] = {
    "look_up": {"customer": "number", "what": "name, email or consent"},
    "write_letter": {"letter": "its name", "text": "its words"},
    "send_mail": {"customer": "number", "letter": "the name of a letter"},
}

#: Whom we know, besides name and address: who has not agreed to get mail from us.
NO_CONSENT: Final = frozenset({46})


# -- the state -------------------------------------------------------------------------------------


class _Part(BaseModel):
    """A part of the state: no field that is not declared, so that an old file is never misread."""

    model_config = ConfigDict(extra="forbid")


class Message(_Part):
    """One message of the conversation. ``call`` is the model's own id of the call it answers."""

    role: Literal["user", "model", "tool"]
    text: str
    call: str | None = None


class PendingCall(_Part):
    """A tool that the model has asked for. ``id`` is the model's, and is no operation key."""

    id: str
    tool: str
    arguments: dict[str, int | str]


class Cannot(_Part):
    """The model says that it cannot: what is missing, as far as the model knows."""

    kind: Literal["permission", "information", "tool"]
    what: str
    customer: int | None = None


class Reply(_Part):
    """What the model answers, and what the answer costs."""

    says: str
    calls: list[PendingCall] = []
    cannot: Cannot | None = None
    tokens: int
    cents: int


class Amount(_Part):
    """An amount of the three things that an agent spends."""

    turns: int = 0
    tokens: int = 0
    cents: int = 0


class Budget(_Part):
    """What may be spent, and what has been, as far as the saved state knows."""

    limit: Amount = Amount(turns=10, tokens=10_000, cents=100)
    used: Amount = Amount()

    @property
    def exhausted(self) -> str:
        """What is used up, in words; empty while another turn is allowed.

        A turn's price is known afterwards, so the last one may go over the limit.
        """
        for name in ("turns", "tokens", "cents"):
            used, limit = getattr(self.used, name), getattr(self.limit, name)
            if used >= limit:
                return f"budget: {used} of {limit} {name} are used"
        return ""


class Artifact(_Part):
    """A reference to something the agent has made. The thing itself is not in the state."""

    name: str
    version: int
    digest: str


class HandOver(_Part):
    """What a person needs to go on: the condition that is missing, and who says so."""

    missing: str
    confirmed: bool
    """our own records say so too, not only the model"""
    said: str


class AgentState(_Part):
    """All that the agent knows. What is not in here is gone after a crash."""

    case: str
    """the piece of business this is about; a part of every operation key"""
    stage: Literal["think", "act", "check", "done"] = "think"
    messages: list[Message]
    pending: list[PendingCall] = []
    budget: Budget = Budget()
    artifacts: list[Artifact] = []
    mails: list[str] = []
    cannot: Cannot | None = None
    hand_over: HandOver | None = None
    versions: dict[str, str] = {}


# -- the model: outside, scripted ------------------------------------------------------------------


class _Wanted(_Part):
    tool: str
    arguments: dict[str, int | str]


class _Again(_Part):
    says: str
    calls: list[_Wanted] = []


class _Turn(_Again):
    cannot: Cannot | None = None
    tokens: int
    cents: int
    again: _Again | None = None
    """what it says instead, where it has been asked for this turn before"""


class Transcript(_Part):
    """A file of ``data/transcripts``: what the model says, turn by turn."""

    name: str
    version: int
    about: str
    task: str
    ids: Literal["fixed", "new"]
    """whether a tool-call id is the same when the model is asked again"""
    turns: list[_Turn]

    @classmethod
    def load(cls, name: str) -> Transcript:
        """Read the transcript of that name. Raises FileNotFoundError, naming those there are."""
        path = find_data(TRANSCRIPTS) / f"{name}.json"
        if name not in transcript_names():
            known = ", ".join(transcript_names())
            raise FileNotFoundError(f"no transcript {name!r}; there are: {known}")
        return cls.model_validate_json(path.read_bytes())


def transcript_names() -> list[str]:
    """Return the names of the transcripts there are."""
    return sorted(path.stem for path in find_data(TRANSCRIPTS).glob("*.json"))


class ScriptedModel:
    """A model that says what its transcript says. It is somebody else's, so no crash resets it.

    ``bill``: one row for each time that it was asked, whatever became of the answer.
    """

    def __init__(self, transcript: str | Transcript) -> None:
        script = transcript if isinstance(transcript, Transcript) else Transcript.load(transcript)
        self.transcript = script
        self.bill: list[dict[str, int]] = []
        self._asked: Counter[int] = Counter()

    def reply(self, state: AgentState) -> Reply:
        """Answer a conversation: its number of model messages says which turn it is.

        Raises LookupError where the transcript has no further turn.
        """
        number = sum(message.role == "model" for message in state.messages)
        if number >= len(self.transcript.turns):
            raise LookupError(f"transcript {self.transcript.name!r} ends after turn {number}")
        turn = self.transcript.turns[number]
        self._asked[number] += 1
        again = turn.again is not None and self._asked[number] > 1
        told: _Again = turn.again if again and turn.again is not None else turn
        self.bill.append({"turn": number + 1, "tokens": turn.tokens, "cents": turn.cents})
        # A fixed id counts turns, a new one counts answers, as the ids of real models do.
        serial = number + 1 if self.transcript.ids == "fixed" else len(self.bill)
        calls = [
            PendingCall(id=f"call_{serial}_{n}", tool=wanted.tool, arguments=wanted.arguments)
            for n, wanted in enumerate(told.calls, 1)
        ]
        return Reply(
            says=told.says, calls=calls, cannot=turn.cannot, tokens=turn.tokens, cents=turn.cents
        )


# -- what the agent makes --------------------------------------------------------------------------


class Artifacts:
    """A folder of texts, each under the digest of its content.

    Writing the same text again changes nothing, so a step may do it twice.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, text: str) -> str:
        """Keep a text; returns its digest."""
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{digest}.txt").write_text(text, encoding="utf-8")
        return digest

    def get(self, artifact: Artifact) -> str:
        """Return the text that an artifact stands for.

        Raises LookupError where it is not there (any more): a state keeps the reference only.
        """
        try:
            return (self._folder / f"{artifact.digest}.txt").read_text(encoding="utf-8")
        except FileNotFoundError:
            raise LookupError(
                f"the state refers to {artifact.name!r} version {artifact.version}, and its text "
                "is gone"
            ) from None


# -- the transitions: pure functions of the state and what came in ---------------------------------


def heard(state: AgentState, reply: Reply) -> AgentState:
    """Return the state after the model has answered."""
    after = state.model_copy(deep=True)
    after.messages.append(Message(role="model", text=reply.says))
    after.pending = reply.calls
    used = after.budget.used
    used.turns += 1
    used.tokens += reply.tokens
    used.cents += reply.cents
    after.cannot = reply.cannot
    if reply.cannot is not None:
        # An answer like any other: nothing has failed, and asking again would not change it.
        after.stage, after.pending = "check", []
    else:
        after.stage = "act" if reply.calls else "done"
    return after


def acted(state: AgentState, done: Message, **made: Any) -> AgentState:
    """Return the state after the first pending call was done; ``made``: ``artifact``, ``mail``."""
    after = state.model_copy(deep=True)
    after.messages.append(done)
    if "artifact" in made:
        after.artifacts = [a for a in after.artifacts if a.name != made["artifact"].name]
        after.artifacts.append(made["artifact"])
    if "mail" in made:
        after.mails.append(made["mail"])
    after.pending = after.pending[1:]
    if after.pending:
        return after
    after.stage = "think"
    if after.budget.exhausted:
        after.stage = "done"
        missing = after.budget.exhausted
        after.hand_over = HandOver(missing=missing, confirmed=True, said=_last_words(after))
    return after


def checked(state: AgentState, found: str) -> AgentState:
    """Return the state after "I cannot" was checked; ``found``: what is missing, or empty."""
    after = state.model_copy(deep=True)
    missing = found or "nothing that we know of: the model says so, and our records do not"
    after.hand_over = HandOver(missing=missing, confirmed=bool(found), said=_last_words(after))
    after.stage = "done"
    return after


def outcome(state: AgentState) -> dict[str, Any]:
    """Return the run's result: what was done, or what a person needs to go on with it."""
    if state.hand_over is not None:
        told = state.hand_over
        return {
            "outcome": "handed over",
            "missing": told.missing,
            "confirmed": told.confirmed,
            "mails": state.mails,
        }
    return {"outcome": "done", "mails": state.mails}


def _last_words(state: AgentState) -> str:
    return next((m.text for m in reversed(state.messages) if m.role == "model"), "")


def operation_key(state: AgentState, call: PendingCall) -> str:
    """Return the key of the operation that a call stands for: the case, and whom it is about.

    A model that plans again gives new ids, and may word things anew. Neither is in here.
    """
    about = call.arguments.get("letter", call.tool)
    return f"{state.case}:{about}:{call.arguments.get('customer', '')}"


# -- where a checkpoint is written -----------------------------------------------------------------


def _grows(role: str) -> SavePlace:
    def save(before: AgentState, after: AgentState) -> bool:
        counts = [sum(m.role == role for m in state.messages) for state in (before, after)]
        return counts[1] > counts[0]

    return save


def _at_milestones(before: AgentState, after: AgentState) -> bool:
    """Something was made or sent that the task is about."""
    return (before.artifacts, before.mails) != (after.artifacts, after.mails)


#: The save places by name. The end of the run is saved in each of them.
SAVE_PLACES: Final[dict[str, SavePlace]] = {
    "every": every,
    "after_model": _grows("model"),
    "after_tool": _grows("tool"),
    "milestones": _at_milestones,
    "only_at_end": only_at_the_end,
}


# -- the agent at its desk -------------------------------------------------------------------------


@dataclass
class Desk:
    """An agent with all that it works with: a model, a mail service, a folder for its letters.

    ``transcript``: a name, or a Transcript. ``save``: a name of SAVE_PLACES, or a rule over two
    states. ``key``: from the state and the pending call to the operation key; another one than
    ``operation_key`` shows what goes wrong. ``effect``: what the mail tool declares.
    ``machine`` is what a Runtime runs, and ``start`` the state to run it with.

    Raises ValueError for a save place that there is not.
    """

    mailbox: Mailbox
    folder: Path
    transcript: str | Transcript = "plain"
    case: str = "case-7"
    save: str | SavePlace = "every"
    key: Callable[[AgentState, PendingCall], str] = operation_key
    effect: str = "idempotent"
    limit: Amount = field(default_factory=lambda: Budget().limit)
    name: str = "agent"

    def __post_init__(self) -> None:
        if isinstance(self.save, str) and self.save not in SAVE_PLACES:
            known = ", ".join(SAVE_PLACES)
            raise ValueError(f"no save place {self.save!r}; there are: {known}")
        self.model = ScriptedModel(self.transcript)
        self.artifacts = Artifacts(self.folder / "artifacts")
        window = 86_400 if self.effect == "idempotent" else None
        self.send_mail: Tool = tool(
            self._send, effect=self.effect, window=window, timeout=3.0, name="send_mail"
        )

    @property
    def machine(self) -> Machine:
        """The agent as a machine; asking for it makes it the one of its name."""
        save = SAVE_PLACES[self.save] if isinstance(self.save, str) else self.save

        def agent(ctx: Context, state: AgentState) -> AgentState | Done:
            return self.transition(ctx, state)

        declared: Machine = machine(agent, state=AgentState, save=save, name=self.name)
        return declared

    @property
    def start(self) -> AgentState:
        """The state in which a run begins."""
        script = self.model.transcript
        return AgentState(
            case=self.case,
            messages=[Message(role="user", text=script.task)],
            budget=Budget(limit=self.limit),
            versions={"transcript": f"{script.name}/{script.version}", "tools": "1"},
        )

    def transition(self, ctx: Context, state: AgentState) -> AgentState | Done:
        """Make one transition: one decision, or one tool."""
        if state.stage == "think":
            return heard(state, ctx.step("model", self.model.reply, state))
        if state.stage == "act":
            return self.act(ctx, state)
        if state.stage == "check":
            return checked(state, ctx.step("check", self.missing, state.cannot))
        return Done(state, result=outcome(state))

    def act(self, ctx: Context, state: AgentState) -> AgentState:
        """Do the first pending call. Only mail touches the world outside; the rest are steps."""
        call = state.pending[0]
        given = call.arguments

        def say(text: str) -> Message:
            return Message(role="tool", text=text, call=call.id)

        problem = _problem(call, state)
        if problem:
            return acted(state, say(problem))
        if call.tool == "look_up":
            return acted(state, say(ctx.step("look_up", look_up, given["customer"], given["what"])))
        letter = next((a for a in state.artifacts if a.name == given["letter"]), None)
        if call.tool == "write_letter":
            digest = ctx.step("write_letter", self.artifacts.put, given["text"])
            same = letter is not None and letter.digest == digest
            version = 1 if letter is None else letter.version + (not same)
            made = Artifact(name=str(given["letter"]), version=version, digest=digest)
            return acted(state, say(f"{made.name} version {version} is kept"), artifact=made)
        assert letter is not None
        to, text = look_up(int(given["customer"]), "email"), self.artifacts.get(letter)
        try:
            mail = ctx.call(self.send_mail, to, letter.name, text, key=self.key(state, call))
        except ArgumentsDiffer:
            after = acted(state, say("refused: this mail was ordered before, with other words"))
            missing = f"a decision: {letter.name!r} to {to} was ordered before, with other words"
            said = _last_words(state)
            after.hand_over = HandOver(missing=missing, confirmed=True, said=said)
            after.stage, after.pending = "done", []
            return after
        return acted(state, say(f"sent as {mail}"), mail=mail)

    def _send(self, call: Call, to: str, subject: str, text: str) -> str:
        known = call.key if self.effect == "idempotent" else None
        sent = self.mailbox.send(to, subject, text, key=known, timeout=call.remaining())
        return str(sent["id"])

    def missing(self, cannot: Cannot) -> str:
        """Check "I cannot" against our records; returns what is really missing, or nothing."""
        if cannot.kind == "tool":
            return "" if cannot.what in TOOLS else f"a tool: {cannot.what}"
        known = look_up(cannot.customer or 0, cannot.what)
        if cannot.kind == "permission":
            return f"{cannot.what} of customer {cannot.customer}" if known == "no" else ""
        return f"{cannot.what} of customer {cannot.customer}" if known.startswith("no ") else ""


def look_up(customer: int, what: str) -> str:
    """Return what our records say about a customer: name, email or consent."""
    for row in customers(100):
        if row["id"] == customer:
            consent = {"consent": "no" if customer in NO_CONSENT else "yes"}
            return str((row | consent).get(what, f"no {what} in our records"))
    return f"no customer {customer}"


def _problem(call: PendingCall, state: AgentState) -> str:
    """Return what to tell the model about a call that cannot be made; empty where it can."""
    if call.tool not in TOOLS:
        return f"there is no tool {call.tool!r}"
    lacking = [name for name in TOOLS[call.tool] if name not in call.arguments]
    if lacking:
        return f"{call.tool} needs {', '.join(lacking)}"
    if "customer" in call.arguments and type(call.arguments["customer"]) is not int:
        return "customer is a number"
    if call.tool != "send_mail":
        return ""
    if not any(artifact.name == call.arguments["letter"] for artifact in state.artifacts):
        return f"there is no letter {call.arguments['letter']!r}"
    address = look_up(int(call.arguments["customer"]), "email")
    if "@" not in address:
        return address
    return ""


def schema() -> str:
    """Return what the model is told about its tools, as text."""
    return json.dumps(TOOLS, indent=1)

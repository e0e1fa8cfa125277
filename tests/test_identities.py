"""One operation and all its ids, as a real run gives them, and what a model sees of a tool."""

import json
import re

import pytest

import durakit as dk
from durakit.lab import agent
from durakit.lab.keys.identities import TracedDesk, model_schema, operation_map, operation_summary
from durakit.mail import Mailbox

# -- one operation, and its many names -------------------------------------------------------------


@pytest.fixture
def traced(tmp_path):
    """A run of the agent that died once and planned again; its mailbox, run and desk."""
    mailbox = Mailbox(tmp_path / "world", profile="idempotent", clock=dk.ManualClock())
    with dk.Runtime(tmp_path / "run.db", clock=mailbox.clock, world=mailbox) as rt:
        desk = TracedDesk(mailbox, tmp_path, "replans", save="only_at_end", name="traced agent")
        crash = dk.CrashAt("send_mail", "effect_done")
        run = rt.run(desk.machine, desk.start, id="a", crash=crash)
        rt.recover()
        yield mailbox, run, desk
    mailbox.close()


def test_one_operation_has_many_attempts_and_ids_and_one_mail(traced):
    """Two attempts, two tool-call ids, four JSON-RPC ids; one key, one row in the ledger."""
    mailbox, run, desk = traced
    assert run.status == "completed"
    assert [row["key"] for row in mailbox.effects()] == ["case-7:welcome:42"]
    assert {row["key"] for row in mailbox.requests()} == {"case-7:welcome:42"}
    (row,) = operation_summary(desk).rows
    assert row == {
        "operation key": "case-7:welcome:42",
        "attempts": "1, 2",
        "tool-call ids": "call_4_1, call_8_1",
        "JSON-RPC ids": "1, 2, 3, 4",
    }


def test_the_map_agrees_with_the_journal_and_the_transcript(traced):
    """Attempts are those of the journal; the ids are those that the model gave."""
    _, run, desk = traced
    rows = operation_map(desk).rows
    intents = run.history().query("kind == 'intent'")
    assert sorted({row["attempt"] for row in rows}) == intents["attempt"].tolist()
    assert sorted({row["life"] for row in rows}) == intents["incarnation"].tolist()
    state = run.at(len(run.history()))
    answered = [message.call for message in state.messages if message.role == "tool"]
    assert rows[-1]["tool-call id"] == answered[-1]
    assert [row["answer"] for row in rows] == [
        "asks back", "(died before it came)", "asks back", "sent as email-1",
    ]  # fmt: skip


# -- what a model sees -----------------------------------------------------------------------------


def words_of(schema):
    """Every word in a schema: names of properties and values alike, without underscores."""
    return set(re.findall(r"[a-z]+", json.dumps(schema).lower()))


FORBIDDEN = {"key", "keys", "idempotency", "idempotent", "attempt", "fence", "call"}


def test_no_schema_of_the_agents_tools_tells_the_model_of_a_key(traced):
    """Neither what it is told, nor the tool's own schema, nor any call of any transcript."""
    _, _, desk = traced
    assert not words_of(agent.TOOLS) & FORBIDDEN
    assert not words_of(json.loads(agent.schema())) & FORBIDDEN
    assert not words_of(model_schema(desk.send_mail)) & FORBIDDEN
    for name in agent.transcript_names():
        for turn in agent.Transcript.load(name).turns:
            for wanted in [*turn.calls, *(turn.again.calls if turn.again else ())]:
                assert set(wanted.arguments) == set(agent.TOOLS[wanted.tool]), name


def test_a_schema_holds_every_parameter_but_the_runtimes():
    """Types where they are said, defaults are not required, and nothing else is allowed."""

    @dk.tool(name="keys schema tool")
    def schema_tool(call, to: str, copies: int = 1, *, urgent: bool = False, free=None):
        return call.key, to, copies, urgent, free

    assert model_schema(schema_tool) == {
        "name": "keys schema tool",
        "parameters": {
            "type": "object",
            "properties": {
                "to": {"type": "string"},
                "copies": {"type": "integer"},
                "urgent": {"type": "boolean"},
                "free": {},
            },
            "required": ["to"],
            "additionalProperties": False,
        },
    }


def test_a_model_that_invents_a_key_does_not_get_it_into_the_call(tmp_path):
    """An argument of that name goes nowhere: the operation's key is the program's."""
    mailbox = Mailbox(tmp_path / "world", profile="idempotent", clock=dk.ManualClock())
    script = agent.Transcript.load("plain").model_copy(deep=True)
    script.turns[3].calls[0].arguments |= {"key": "mine", "idempotency_key": "mine too"}
    with dk.Runtime(tmp_path / "run.db", clock=mailbox.clock, world=mailbox) as rt:
        desk = agent.Desk(mailbox, tmp_path, script, name="inventive agent")
        assert rt.run(desk.machine, desk.start, id="a").status == "completed"
    assert [row["key"] for row in mailbox.effects()] == ["case-7:welcome:42"]
    mailbox.close()

"""One operation and all its ids: what a real run of the lab's agent calls one and the same mail.

``TracedDesk`` notes every id that a run gives to one mail, ``operation_map`` shows them, and
``model_schema`` is all that a model gets to see of a tool.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

from durakit.define import Call, Tool
from durakit.driver import Context
from durakit.lab.agent import AgentState, Desk
from durakit.lab.html import Row, Table

__all__ = ["TracedDesk", "model_schema", "operation_map", "operation_summary"]


@dataclass
class TracedDesk(Desk):
    """The agent of the lessons, which reaches its mail tool by JSON-RPC and notes every id.

    Each request gets the next JSON-RPC id. The tool server answers the first request of an attempt
    with a question (may mail leave the house?), so that the client has to call it a second time,
    under a new id: a multi-round request.

    ``requests``: one row per JSON-RPC request, in order.
    """

    requests: list[dict[str, Any]] = field(default_factory=list)

    def act(self, ctx: Context, state: AgentState) -> AgentState:
        """Note the model's id of the call, then do as the agent does."""
        self._tool_call = state.pending[0].id
        return super().act(ctx, state)

    def _send(self, call: Call, to: str, subject: str, text: str) -> str:
        self._note(call)["answer"] = "asks back"
        row = self._note(call)
        row["answer"] = "(died before it came)"
        sent = super()._send(call, to, subject, text)
        row["answer"] = f"sent as {sent}"
        return sent

    def _note(self, call: Call) -> dict[str, Any]:
        row = {
            "operation": call.key,
            "life": call.fence,
            "tool-call id": self._tool_call,
            "attempt": call.attempt,
            "JSON-RPC id": len(self.requests) + 1,
        }
        self.requests.append(row)
        return row


def operation_map(desk: TracedDesk) -> Table:
    """Return every request that was made for the agent's operations, with all the ids it had."""
    return Table("THE OPERATION MAP: one key, and everything else changes", desk.requests)


def operation_summary(desk: TracedDesk) -> Table:
    """Return one row per operation: which attempts, tool-call ids and JSON-RPC ids it had."""
    names = {"attempts": "attempt", "tool-call ids": "tool-call id", "JSON-RPC ids": "JSON-RPC id"}
    rows: list[Row] = []
    for key in dict.fromkeys(row["operation"] for row in desk.requests):
        mine = [row for row in desk.requests if row["operation"] == key]
        told = {
            many: ", ".join(dict.fromkeys(str(row[one]) for row in mine))
            for many, one in names.items()
        }
        rows.append({"operation key": key, **told})
    return Table("ONE LOGICAL OPERATION", rows)


def model_schema(declared: Tool) -> dict[str, Any]:
    """Return what a model is told about a tool: its name, its parameters and their JSON types.

    The first parameter, through which the runtime hands over the key, is not among them; and as
    the key is no argument at all, there is nothing here that a model could fill in.
    """
    parameters = list(inspect.signature(declared.function, eval_str=True).parameters.values())[1:]
    return {
        "name": declared.name,
        "parameters": {
            "type": "object",
            "properties": {one.name: _json_type(one.annotation) for one in parameters},
            "required": [one.name for one in parameters if one.default is one.empty],
            "additionalProperties": False,
        },
    }


def _json_type(annotation: object) -> dict[str, str]:
    names = {str: "string", int: "integer", float: "number", bool: "boolean"}
    known = names.get(annotation) if isinstance(annotation, type) else None
    return {} if known is None else {"type": known}

"""How a machine's file grows, and what loading its last state reads.

Runs a machine of N turns that adds one message of BYTES each turn, for N and 2 N, and prints one
JSON line: bytes on disk of both (after the WAL is truncated), their ratio, how many entries the
last state is loaded from, and how long that takes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from pydantic import BaseModel

import durakit as dk


class Chat(BaseModel):
    """A state that grows by one message a turn."""

    messages: list[str] = []


def grow(path: Path, turns: int, payload: int) -> dict[str, float]:
    """Run so many turns; bytes, seconds, and the cost of loading the last state."""

    @dk.machine(state=Chat, name="chat")
    def chat(ctx: dk.Context, state: Chat) -> Chat | dk.Done:
        state.messages.append(ctx.step("say", lambda: "x" * payload))
        return dk.Done(state, result=turns) if len(state.messages) == turns else state

    with dk.Runtime(path, durability="process") as rt:
        began = time.perf_counter()
        run = rt.run(chat, Chat(), id="r")
        took = time.perf_counter() - began
        assert run.result == turns
        mark = rt._store.last_checkpoint(run._number)
        assert mark is not None
        began = time.perf_counter()
        assert len(run.at(mark.seq).messages) == turns
        load = time.perf_counter() - began
        entries = rt._store.read_journal(run._number, mark.whole - 1, mark.seq)
        read = sum(entry.kind == "checkpoint" for entry in entries)
        rt._store.connection().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return {"bytes": path.stat().st_size, "seconds": took, "load": load, "read": read}


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--payload", type=int, default=1000, metavar="BYTES")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        once = grow(Path(folder) / "once.db", arguments.turns, arguments.payload)
        twice = grow(Path(folder) / "twice.db", 2 * arguments.turns, arguments.payload)
    print(
        json.dumps(
            {
                "system": "durakit",
                "turns": [arguments.turns, 2 * arguments.turns],
                "payload": arguments.payload,
                "db_bytes": [once["bytes"], twice["bytes"]],
                "ratio": round(twice["bytes"] / once["bytes"], 3),
                "seconds": [round(once["seconds"], 2), round(twice["seconds"], 2)],
                "checkpoints_read_to_load": [once["read"], twice["read"]],
                "load_seconds": [round(once["load"], 4), round(twice["load"], 4)],
            }
        )
    )


if __name__ == "__main__":
    main()

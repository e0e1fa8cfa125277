"""How fast and how large: durakit's steps and calls beside bare ``sqlite3``.

Prints one JSON line per run: ``{system, variant, steps, payload, seconds, steps_per_s,
db_bytes, peak_rss_mb}``; sizes are taken after the WAL is truncated. With ``--compare`` both
systems run in turn on the same disk, ``--repeat`` times, and a last line gives the ratio of the
median rates and of the sizes.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def bare(
    path: Path, steps: int, payload: int, durability: str, kind: str, runs: int
) -> tuple[float, str]:
    """The least that keeps the same promise: one row a commit, two for a call."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durability == 'power' else 'NORMAL'}")
    connection.execute("CREATE TABLE row (id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT")
    text = "x" * payload
    began = time.perf_counter()
    for _ in range(runs):
        for _ in range(steps // runs):
            if kind != "step":
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("INSERT INTO row (text) VALUES ('intent')")
                connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO row (text) VALUES (?)", (text,))
            connection.execute("COMMIT")
    took = time.perf_counter() - began
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return took, "sqlite3"


def durable(
    path: Path, steps: int, payload: int, durability: str, kind: str, runs: int
) -> tuple[float, str]:
    """The same work as steps or calls of workflows."""
    import durakit as dk

    text = "x" * payload

    def work() -> str:
        return text

    @dk.tool(effect="idempotent")
    def plain(call: Any, number: int) -> str:
        return text

    @dk.tool(effect="idempotent", timeout=30)
    def limited(call: Any, number: int) -> str:
        return text

    @dk.workflow
    def many(ctx: dk.Context, run: int, count: int) -> None:
        for number in range(count):
            if kind == "step":
                ctx.step("work", work)
            else:
                tool = plain if kind == "call" else limited
                ctx.call(tool, number, key=f"{run}:{number}")

    runtime = dk.Runtime(path, durability=durability)
    began = time.perf_counter()
    for run in range(runs):
        done = runtime.run(many, run, steps // runs, id=f"run {run}")
        assert done.status == "completed", done
    took = time.perf_counter() - began
    runtime._store.connection().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    runtime.close()
    return took, "durakit"


def measure(arguments: argparse.Namespace, system: str) -> dict[str, Any]:
    """One run in this process, as the JSON line has it."""
    path = Path(arguments.db)
    for leftover in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        leftover.unlink(missing_ok=True)
    run = bare if system == "sqlite3" else durable
    took, name = run(
        path,
        arguments.steps,
        arguments.payload,
        arguments.durability,
        arguments.kind,
        arguments.runs,
    )
    return {
        "system": name,
        "variant": f"{arguments.kind}, {arguments.durability}, {arguments.runs} run(s)",
        "steps": arguments.steps,
        "payload": arguments.payload,
        "seconds": round(took, 4),
        "steps_per_s": round(arguments.steps / took, 1),
        "db_bytes": path.stat().st_size,
        "peak_rss_mb": _peak(),
    }


def _peak() -> float | None:
    try:
        import resource
    except ImportError:  # Windows has no such figure in the standard library
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1 << 20 if sys.platform == "darwin" else 1 << 10), 1)


def compare(arguments: argparse.Namespace) -> None:
    """Both systems in turn, each in a process of its own, and the ratio of their medians."""
    lines: dict[str, list[dict[str, Any]]] = {"sqlite3": [], "durakit": []}
    for _ in range(arguments.repeat):
        for system, found in lines.items():
            command = [
                sys.executable, __file__, "--system", system, "--steps", str(arguments.steps),
                "--payload", str(arguments.payload), "--db", arguments.db,
                "--durability", arguments.durability, "--kind", arguments.kind,
                "--runs", str(arguments.runs),
            ]  # fmt: skip
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found.append(json.loads(output))
            print(output, end="", flush=True)
    ours, theirs = lines["durakit"], lines["sqlite3"]
    rates = [statistics.median(line["steps_per_s"] for line in found) for found in (ours, theirs)]
    sizes = [found[0]["db_bytes"] for found in (ours, theirs)]
    print(
        json.dumps(
            {
                "variant": ours[0]["variant"],
                "rate_ratio": round(rates[0] / rates[1], 3),
                "size_ratio": round(sizes[0] / sizes[1], 3),
            }
        )
    )


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--payload", type=int, default=1000, metavar="BYTES")
    parser.add_argument("--db", required=True, metavar="PATH", help="a file to overwrite")
    parser.add_argument("--durability", choices=["power", "process"], default="power")
    parser.add_argument("--kind", choices=["step", "call", "limited-call"], default="step")
    parser.add_argument("--runs", type=int, default=1, help="spread the steps over K runs")
    parser.add_argument("--system", choices=["durakit", "sqlite3"], default="durakit")
    parser.add_argument("--compare", action="store_true", help="run both, print the ratio")
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.compare:
        compare(arguments)
    else:
        print(json.dumps(measure(arguments, arguments.system)))


if __name__ == "__main__":
    main()

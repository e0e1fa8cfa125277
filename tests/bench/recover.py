"""How long does it take to resume a run that was killed at step N-1?

A child process runs N steps and is killed with SIGKILL before the last one is saved. Fresh
interpreters then resume it. Prints one JSON line: seconds from the Runtime's construction to the
end of the run (imports excluded), the time to import, and the time that a bare read of the same
rows takes, each the median of ``--repeat``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHILD = """
import sys, time
began = time.perf_counter()
import durakit as dk
imported = time.perf_counter() - began
text = "x" * {payload}
@dk.workflow
def many(ctx, count):
    for number in range(count):
        ctx.step("work", lambda: text)
    return count
began = time.perf_counter()
rt = dk.Runtime({path!r}, owner={owner!r})
if {kill}:
    rt._kill = True
    rt.run(many, {steps}, id="r", crash=dk.CrashAt("work", "step_done", occurrence={steps}))
else:
    from durakit.runtime import declare_dead
    declare_dead(rt._store.name, "killed/1")
    run = rt.resume("r")
    took = time.perf_counter() - began
    assert run.status == "completed" and run.result == {steps}, run
    print(imported, took)
"""


def child(path: Path, steps: int, payload: int, *, kill: bool) -> subprocess.CompletedProcess[str]:
    """Run, or resume, in a new interpreter."""
    owner = "killed" if kill else "resumer"
    code = CHILD.format(path=str(path), steps=steps, payload=payload, kill=kill, owner=owner)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=not kill
    )


def bare_read(path: Path) -> float:
    """Seconds to read the same rows with sqlite3 alone."""
    began = time.perf_counter()
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT kind, step, payload FROM journal ORDER BY place").fetchall()
    assert rows
    connection.close()
    return time.perf_counter() - began


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--payload", type=int, default=1000, metavar="BYTES")
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        killed = child(home / "run.db", arguments.steps, arguments.payload, kill=True)
        assert killed.returncode == -9, killed.stderr
        imports, resumes, reads = [], [], []
        for number in range(arguments.repeat):
            copy = home / str(number)
            copy.mkdir()
            for file in home.glob("run.db*"):
                if not file.name.endswith("-shm"):
                    shutil.copy(file, copy)
            # The dead owner is known by the file's name: the copy resumes in the same place.
            output = child(copy / "run.db", arguments.steps, arguments.payload, kill=False).stdout
            imported, took = map(float, output.split())
            imports.append(imported)
            resumes.append(took)
            reads.append(bare_read(copy / "run.db"))
    print(
        json.dumps(
            {
                "system": "durakit",
                "variant": f"resume after SIGKILL at step {arguments.steps - 1}",
                "steps": arguments.steps,
                "payload": arguments.payload,
                "resume_seconds": round(statistics.median(resumes), 4),
                "import_seconds": round(statistics.median(imports), 4),
                "bare_read_seconds": round(statistics.median(reads), 4),
            }
        )
    )


if __name__ == "__main__":
    main()

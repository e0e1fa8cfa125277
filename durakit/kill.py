"""Children that are killed for real: the sweep's crashes by SIGKILL.

A child process is forked, by a new interpreter that has imported the workflow's module (or by
this process for a workflow that is defined in a notebook cell, where the platform can fork). It
opens its files itself; this process opens them after it has reaped the child.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from durakit import faults
from durakit.define import find_workflow
from durakit.errors import UsageError
from durakit.faults import CrashAt
from durakit.lives import Task

if TYPE_CHECKING:
    import subprocess

Mode = Literal["simulated", "process"]


def can_fork() -> bool:
    """Whether this platform makes a child that shares this process's code."""
    return hasattr(os, "fork") and sys.platform != "win32"


@contextlib.contextmanager
def children(task: Task, mode: Mode) -> Iterator[Children | None]:
    """What makes children for ``task``; None where crashes are simulated.

    Raises UsageError where no child can be made here.
    """
    if mode == "simulated":
        yield None
        return
    made = Children(task)
    try:
        yield made
    finally:
        made.close()


class Children:
    """Makes one child per crash and lets it die there.

    ``_where`` names the module and the world's name in it; None for a workflow that only this
    process knows (a cell), which is forked from here.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._where = _importable(task)
        self._server: subprocess.Popen[str] | None = None
        if self._where is None and not can_fork():
            raise UsageError(
                f"workflow {task.workflow.name!r} is defined in a notebook cell or a script, and "
                "this platform cannot fork: move it, its tools and its world into a module for "
                "the real kill"
            )

    def kill(self, folder: Path, crash: CrashAt, life: int = 1) -> bool:
        """Live that life up to ``crash`` in a child that dies there; whether it did."""
        folder.mkdir(parents=True, exist_ok=True)
        if self._where is None:
            return _fork_and_wait(self._task, folder, crash, life)
        return self._ask_server(folder, crash, life)

    def _ask_server(self, folder: Path, crash: CrashAt, life: int) -> bool:
        if self._server is None:
            self._server = self._start_server()
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps([str(folder.absolute()), crash.seed, life]) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline().strip()
        if not can_fork():
            # Without fork the new interpreter is itself the child, and dies for one schedule.
            self.close()
            return answer == ""
        if answer not in ("killed", "ended"):
            raise UsageError(f"the child process failed: {answer or 'see its message above'}")
        return answer == "killed"

    def _start_server(self) -> subprocess.Popen[str]:
        import subprocess  # noqa: PLC0415 - an import of durakit stays cheap without it

        assert self._where is not None
        task = self._task
        spec = {
            "module": self._where[0], "world": self._where[1], "workflow": task.workflow.name,
            "form": task.form, "deadline": task.deadline, "seed": task.seed,
            "signals": dict(task.signals),
            "blank": None if task.blank is None else str(task.blank.absolute()),
        }  # fmt: skip
        code = "import sys; from durakit.kill import serve; serve(sys.argv[1])"
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109
        return subprocess.Popen(  # noqa: S603 - our own interpreter and code
            [sys.executable, "-c", code, json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def close(self) -> None:
        """End the helper interpreter."""
        if self._server is not None:
            for stream in (self._server.stdin, self._server.stdout):
                if stream is not None:
                    stream.close()
            self._server.wait()
            self._server = None


def _importable(task: Task) -> tuple[str, str] | None:
    """(module, name of the world in it) where a new interpreter can find both."""
    function = task.workflow.function
    module = sys.modules.get(function.__module__)
    if function.__module__ == "__main__" or getattr(module, "__file__", None) is None:
        return None
    if "<locals>" in function.__qualname__:
        return None  # made by a function, which an import does not call
    for attribute, value in vars(module).items():
        if value is task.world:
            return function.__module__, attribute
    return None


def serve(text: str) -> None:
    """In a new interpreter: fork one child per line of standard input, and tell how it ended."""
    spec = json.loads(text)
    # The answers have a stream of their own: what the user's module prints goes to stderr. An
    # interrupt is the parent's to handle.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module = importlib.import_module(spec["module"])
    task = Task(
        find_workflow(spec["workflow"]), spec["form"], getattr(module, spec["world"]),
        spec["deadline"], spec["seed"], spec["signals"],
        None if spec["blank"] is None else Path(spec["blank"]),
    )  # fmt: skip
    for line in sys.stdin:
        folder, seed, life = json.loads(line)
        if can_fork():
            died = _fork_and_wait(task, Path(folder), CrashAt.parse(seed), life)
            print("killed" if died else "ended", file=answers, flush=True)
        else:  # pragma: no cover - Windows
            task.live(Path(folder), life, CrashAt.parse(seed), kill=True)
            print("ended", file=answers, flush=True)
            return


def _fork_and_wait(task: Task, folder: Path, crash: CrashAt, life: int) -> bool:
    child = os.fork()
    if child == 0:  # pragma: no cover - it never returns
        _live_and_die(task, folder, crash, life)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        return False
    told = folder / "child.txt"
    raise UsageError(
        f"the child process failed: {told.read_text() if told.exists() else f'status {status}'}"
    )


def _live_and_die(task: Task, folder: Path, crash: CrashAt, life: int) -> None:
    """In the child: fresh files only, nothing written to the parent's streams, no clean-up."""
    code = 1
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        faults.current.incarnation = None
        task.live(folder, life, crash, kill=True)
        code = 0
    except BaseException as error:  # noqa: BLE001 - told to the parent
        with contextlib.suppress(OSError):
            (folder / "child.txt").write_text(f"{type(error).__name__}: {error}")
    finally:
        os._exit(code)


__all__ = ["Children", "Mode", "can_fork", "children"]

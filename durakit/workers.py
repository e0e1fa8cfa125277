"""Threads for tools that have a limit.

A thread cannot be stopped from outside; only the waiting for it can end. A tool that runs past
its limit is *abandoned*: its thread goes on, its late reply is evidence, and while it is alive
no further attempt of its operation may start. Threads are daemons and are used again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from durakit import faults
from durakit.faults import Incarnation

Identity = tuple[str, str, str, str]
"""(file, account, tool, key)"""


@dataclass(eq=False, repr=False)
class Abandoned:
    """One piece of work, left or not: ``done`` is set when ``value`` or ``error`` is there."""

    work: Callable[[], Any] | None = None
    incarnation: Incarnation | None = None
    done: threading.Event = field(default_factory=threading.Event)
    value: Any = None
    error: BaseException | None = None
    dump: Callable[[Any], str] | None = None
    """how the tool's reply is saved"""

    @classmethod
    def finished(cls, value: Any, dump: Callable[[Any], str]) -> Abandoned:
        """Work that is over already and whose reply came too late."""
        job = cls(value=value, dump=dump)
        job.done.set()
        return job

    def saved(self) -> str:
        """The reply's saved form, by the tool's own return type."""
        assert self.dump is not None
        return self.dump(self.value)

    def join(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for the work to end; whether it has."""
        return self.done.wait(min(seconds, threading.TIMEOUT_MAX))


class Workers:
    """The threads of one Runtime, and what they left behind."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Abandoned]] = []
        self._left: dict[Identity, Abandoned] = {}

    def run(
        self, job: Abandoned, seconds: float, identity: Identity | None
    ) -> tuple[Abandoned | None, Any]:
        """Run ``job`` on a thread for at most ``seconds``: (None, value) or (job, None).

        ``identity``: of the operation whose attempt it is; None for a probe, whose late answer
        nobody needs. Raises what the work raised, within the limit.
        """
        queue = self._idle.pop() if self._idle else self._new_thread()
        queue.put(job)
        try:
            ended = job.join(seconds)
        except BaseException:
            # An interrupt ends our waiting, and not the work.
            if identity is not None:
                self.abandon(identity, job)
            raise
        if not ended:
            return job, None
        if job.error is not None:
            raise job.error
        return None, job.value

    @property
    def left_behind(self) -> bool:
        """Whether there is any job that was left at its limit."""
        return bool(self._left)

    def abandon(self, identity: Identity, job: Abandoned) -> None:
        """Remember a job that was left at its limit."""
        self._left[identity] = job

    def late(self, identity: Identity, *, keep: bool = False) -> Abandoned | None:
        """The job's reply, where it has come; a job that ended in an error proves nothing."""
        job = self._left.get(identity)
        if job is None or not job.done.is_set():
            return None
        if job.error is not None:
            del self._left[identity]
            return None
        return job if keep else self._left.pop(identity)

    def running(self, identity: Identity) -> Abandoned | None:
        """The job, while it is still running."""
        job = self._left.get(identity)
        return None if job is None or job.done.is_set() else job

    def replies(self, file: str, account: str) -> list[tuple[str, str]]:
        """(tool, key) of the operations of ``file`` whose late reply is here."""
        found = [i for i in list(self._left) if i[:2] == (file, account)]
        return [identity[2:] for identity in found if self.late(identity, keep=True) is not None]

    def forget(self) -> None:
        """The process that waited for them is dead."""
        self._left.clear()

    def _new_thread(self) -> SimpleQueue[Abandoned]:
        queue: SimpleQueue[Abandoned] = SimpleQueue()

        def loop() -> None:
            while True:
                job = queue.get()
                faults.current.incarnation = job.incarnation
                try:
                    assert job.work is not None
                    job.value = job.work()
                except BaseException as error:  # noqa: BLE001 - handed to the driver
                    job.error = error
                faults.current.incarnation = None
                self._idle.append(queue)
                job.done.set()
                del job

        threading.Thread(target=loop, daemon=True, name="durakit-tool").start()
        return queue

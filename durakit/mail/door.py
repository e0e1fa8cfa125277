"""What the doors share: a socket on loopback, a few workers, a beginning and an end.

How an exchange goes: the thread of the door only reads and writes; all that may block (storage,
latency, hooks) is done by the workers; a planned delay holds up neither. A reply that never comes
is a connection that is closed without a word, at once or after ``patience`` seconds; so a client
sees what it sees in the wild, a read timeout or a server that hung up. The same happens when a
hook raises or the mailbox fails: who knows what it had done by then? What the mailbox does goes on
when its client hangs up, since a disconnect is no cancellation.

Delays pass in real time, whatever clock the mailbox has.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self

from durakit.mail.checks import check_seconds
from durakit.mail.messages import Answer, Request
from durakit.mail.service import Mailbox

LOOPBACK: Final = "127.0.0.1"
WAITING_CLIENTS: Final = 512
"""Connections that may wait to be accepted."""

_log = logging.getLogger(__name__)


class Door(ABC):
    """Open between ``start()`` and ``stop()``, or in a ``with`` block.

    ``port``: 0 is any free one, which the door keeps when it is started again: a service that
    comes back at the same address. ``workers``: threads that work on requests; the others queue.
    ``patience``: seconds until a connection that gets no reply is closed. A door runs in threads
    of its own, also inside a notebook, and does not close its mailbox. Raises ValueError that
    names a bad argument.
    """

    def __init__(
        self, mailbox: Mailbox, port: int = 0, *, workers: int = 8, patience: float = 0.0
    ) -> None:
        if type(port) is not int or not 0 <= port < 2**16:
            raise ValueError(f"port: want a whole number from 0 to 65535, got {port!r}")
        if type(workers) is not int or workers < 1:
            raise ValueError(f"workers: want a whole number from 1, got {workers!r}")
        self.mailbox = mailbox
        self.port = port
        self.patience = check_seconds("patience", patience)
        self._workers = workers
        self._pool: ThreadPoolExecutor | None = None

    @property
    def host(self) -> str:
        """Where the door is: this machine only. Raises RuntimeError if it is not open."""
        if self._pool is None:
            raise RuntimeError("this door is not open: start() it, or use it in a with block")
        return LOOPBACK

    def start(self) -> Self:
        """Open the door; clients may come when this returns.

        Raises OSError if the port is taken, and RuntimeError if the door is open already.
        """
        if self._pool is not None:
            raise RuntimeError(f"this door is open already, at port {self.port}")
        listener = socket.create_server((LOOPBACK, self.port), backlog=WAITING_CLIENTS)
        listener.settimeout(0)  # the loop that accepts must never wait
        self.port = listener.getsockname()[1]
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="mail-worker")
        try:
            self._open(listener)
        except BaseException:
            listener.close()
            self._pool.shutdown()
            self._pool = None
            raise
        return self

    def stop(self) -> None:
        """Close the door, if it is open, when what is being worked on is done.

        Whoever waits for a planned delay is cut off.
        """
        if self._pool is not None:
            self._close()
            self._pool.shutdown()
            self._pool = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @abstractmethod
    def _open(self, listener: socket.socket) -> None:
        """Serve in a thread of its own what comes to this listening socket, and close it."""

    @abstractmethod
    def _close(self) -> None:
        """End that thread."""

    async def ask(self, job: Callable[[], Answer]) -> Answer | None:
        """Let a worker do a job of the mailbox; None where nobody knows how far it came."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, _done, job)

    async def leaves(self, answer: Answer, request: Request) -> bool:
        """Tell the mailbox that its answer is about to leave; False where that breaks it."""

        def leave() -> Answer:
            self.mailbox.replied(request)
            return answer

        return await self.ask(leave) is answer


def _done(job: Callable[[], Answer]) -> Answer | None:
    try:
        return job()
    except Exception:  # noqa: BLE001 - of any kind: its client must not hear of it, the log must
        _log.exception("the mailbox failed; its client gets no answer")
    except BaseException:  # noqa: BLE001 - a crash that a hook plays: to a client, silence
        return None
    return None

"""The command ``mail serve``: a service of its own, which runs until it is told to end."""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading
from collections.abc import Iterator

from durakit.cli.exit_codes import OK
from durakit.cli.given import token_of
from durakit.cli.printing import say
from durakit.errors import UsageError


def serve(options: argparse.Namespace) -> int:
    """Open the HTTP door of a mailbox and print its address; the ledger is closed at the end."""
    # Only this command needs a server, and the mail service is somebody else's system.
    from durakit.mail import PROFILES, Mailbox  # noqa: PLC0415
    from durakit.mail.faults import read_plan  # noqa: PLC0415
    from durakit.mail.http import HttpDoor  # noqa: PLC0415

    if options.profile not in PROFILES:
        raise UsageError(f"--profile: {options.profile!r} is none of {', '.join(PROFILES)}")
    tokens = dict(token_of(text) for text in options.token)
    if len(tokens) < len(options.token):
        raise UsageError("--token: the same token is given twice")
    try:
        plan = () if options.faults is None else read_plan(options.faults)
    except OSError as error:
        raise UsageError(f"--faults: {options.faults}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"--faults: {error}") from error
    with _interrupted_by_any_end():
        try:
            mailbox = Mailbox(
                options.folder,
                profile=options.profile,
                plan=plan,
                latency=0,
                tokens=tokens or None,
            )
        except (OSError, RuntimeError) as error:
            raise UsageError(f"--folder: {error}") from error
        with contextlib.closing(mailbox):
            door = HttpDoor(mailbox, options.port)
            try:
                door.start()
            except OSError as error:
                raise UsageError(f"--port {options.port}: {error}") from error
            with contextlib.ExitStack() as closing:
                closing.callback(door.stop)
                say(door.url)
                say(f"profile {options.profile}; Ctrl-C stops it", aside=True)
                _wait_for_the_end()
    return OK


#: What ends a service. A process in the background may have been started with the first ignored.
_ENDS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def _interrupted_by_any_end() -> Iterator[None]:
    before = {number: signal.signal(number, signal.default_int_handler) for number in _ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_for_the_end() -> None:
    """Return when the process is told to end; told again, it goes on closing in peace."""
    never = threading.Event()
    try:
        while not never.wait(1):  # not for ever: not every platform interrupts a wait without end
            pass
    except KeyboardInterrupt:
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)

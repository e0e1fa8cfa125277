"""What every test and every lesson's kernel finds set up.

A lesson must print the same bytes on every machine, so hash seed, time zone and encoding are
fixed here and inherited by each kernel. No test and no kernel reaches beyond this machine: a
guard refuses every connection that is not to loopback, and says so.
"""

import inspect
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nbval.plugin import IPyNbFile

ROOT = Path(__file__).resolve().parent

os.environ.update(PYTHONHASHSEED="0", TZ="UTC", PYTHONUTF8="1")
if hasattr(time, "tzset"):
    time.tzset()


def refuse_outside_connections() -> None:
    """Refuse, from now on and in this process, every socket that leaves this machine.

    An audit hook sees the connection below every library, and cannot be patched away by one.
    A hook can never be removed, so this is called once per process. The source of this function
    also runs in each notebook's kernel: it imports what it needs.
    """
    import ipaddress  # noqa: PLC0415
    import sys  # noqa: PLC0415

    def is_here(host: str | bytes | None) -> bool:
        name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
        # An empty name means "this machine", as the tests' own servers use it.
        if not name or name == "localhost":
            return True
        try:
            address = ipaddress.ip_address(name.partition("%")[0])
        except ValueError:
            return False
        return address.is_loopback or address.is_unspecified

    def guard(event: str, arguments: tuple[object, ...]) -> None:
        if event in {"socket.connect", "socket.sendto", "socket.sendmsg"}:
            address = arguments[1]
            # A Unix socket's address is a path: it stays on this machine.
            host = address[0] if isinstance(address, tuple) else None
        elif event in {"socket.getaddrinfo", "socket.gethostbyname"}:
            host = arguments[0]
        else:
            return
        if not is_here(host):
            message = f"this test would leave the machine: {event} to {host!r} is refused"
            raise ConnectionRefusedError(message)

    sys.addaudithook(guard)


refuse_outside_connections()


def pytest_configure(config: pytest.Config) -> None:
    """Point nbval at the sanitize file, and give the kernels a profile that holds the guard."""
    # A relative path would break when pytest is started in a subfolder.
    config.option.nbval_sanitize_with = str(ROOT / "tests" / "nbval_sanitize.cfg")

    # Killed processes and kernels remove nothing: what they leave goes with the tests. Pytest's own
    # folders stay where they are, so that those of a failed test can be looked at.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    left = Path(tempfile.mkdtemp(prefix="durakit-tests-"))
    config.add_cleanup(lambda: shutil.rmtree(left, ignore_errors=True))
    os.environ["TMPDIR"] = tempfile.tempdir = str(left)

    # The learner's own IPython profile must not change what a lesson prints either.
    profiles = Path(tempfile.mkdtemp(prefix="durakit-ipython-"))
    startup = profiles / "profile_default" / "startup"
    startup.mkdir(parents=True)
    source = inspect.getsource(refuse_outside_connections)
    lines = [source, "refuse_outside_connections()", "del refuse_outside_connections", ""]
    (startup / "00-no-outside.py").write_text("\n".join(lines), encoding="utf-8")
    os.environ["IPYTHONDIR"] = str(profiles)


def _without_current_test(start: Callable[[Any], None]) -> Callable[[Any], None]:
    """Keep pytest's note of the running test out of the kernel that `start` starts.

    A kernel lives for a whole notebook and would keep the note of its first cell. Pytest writes
    the note in the same hook in which nbval starts the kernel, so no hook fits between them.
    """

    def started(notebook: Any) -> None:
        note = os.environ.pop("PYTEST_CURRENT_TEST", None)
        try:
            start(notebook)
        finally:
            if note is not None:
                os.environ["PYTEST_CURRENT_TEST"] = note

    return started


IPyNbFile.setup = _without_current_test(IPyNbFile.setup)

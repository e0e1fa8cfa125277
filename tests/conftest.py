"""What many tests begin with: virtual time, a mail service, and runtimes on one file.

A test file that needs another one of them defines it under the same name.
"""

import random

import pytest

import durakit as dk
from durakit.mail import Mailbox


@pytest.fixture
def clock():
    """Time that passes only when somebody works or waits."""
    return dk.ManualClock()


@pytest.fixture
def mailbox(tmp_path, clock):
    """The outside world: a mail service with a ledger of its own."""
    box = Mailbox(tmp_path / "world", clock=clock)
    yield box
    box.close()


@pytest.fixture
def real_mailbox(tmp_path):
    """The same in real time, without any latency."""
    box = Mailbox(tmp_path / "real-world", latency=0.0)
    yield box
    box.close()


@pytest.fixture
def world(mailbox):
    """The same mail service, where a test calls it so."""
    return mailbox


@pytest.fixture
def rt(tmp_path, clock, mailbox):
    """One runtime on the mail service's clock."""
    path = tmp_path / "run.db"
    with dk.Runtime(path, clock=clock, rng=random.Random(1), world=mailbox) as runtime:
        yield runtime


@pytest.fixture
def runtime(tmp_path, clock, mailbox):
    """Opens runtimes on one file: each is another driver."""
    opened = []

    def open_one(**more):
        given = {"clock": clock, "world": mailbox, "rng": random.Random(0), **more}
        given.setdefault("durability", "process")
        opened.append(dk.Runtime(given.pop("path", tmp_path / "run.db"), **given))
        return opened[-1]

    yield open_one
    for rt in opened:
        rt.close()


@pytest.fixture(scope="module")
def fresh(request):
    """The lesson of the test file, its ``HERE``, run from top to bottom in a fresh kernel."""
    from lesson_checks import run_fresh  # only the lessons' tests need notebooks

    return run_fresh(request.module.HERE)

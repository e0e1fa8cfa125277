"""What the tests of the mail service share: letters, a clock, crashes, children, ways to ask."""

import contextlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from durakit.mail import PROFILES, Answer, Letter, Mailbox, Request

ROOT = Path(__file__).resolve().parent.parent
START = 1_700_000_000.0

ADA = Letter("ada@example.org", "Welcome", "Hello Ada\nand welcome")
EVE = Letter("eve@example.org", "Welcome", "Hello Eve")
#: Ada's letter as ``Mailbox.send`` takes it.
MAIL = (ADA.to, ADA.subject, ADA.body)

ADAS, EVES = "re_ada", "re_eve"
TOKENS = {ADAS: "ada", EVES: "eve"}

KEYED = [name for name, profile in PROFILES.items() if profile.dedups]
KEYLESS = [name for name, profile in PROFILES.items() if not profile.dedups]
CLAIMING = [name for name, profile in PROFILES.items() if profile.in_progress is not None]
COMPARING = [name for name in KEYED if PROFILES[name].compares_bodies]


class ManualClock:
    """Time that passes only when somebody sleeps."""

    def __init__(self, start=START):
        self.time = start

    def now(self):
        """UTC seconds."""
        return self.time

    def sleep(self, seconds):
        """Let seconds pass at once."""
        self.time += seconds

    advance = sleep


class Stop(BaseException):
    """A simulated crash inside a hook."""


def stop():
    """Crash."""
    raise Stop


def at(point, act):
    """Make a hook that does something once, at the first time a request comes by a point."""
    waiting = [act]

    def hook(here, _key):
        if here == point and waiting:
            return waiting.pop()()
        return None

    return hook


@contextlib.contextmanager
def mailboxes(folder, **defaults):
    """Yield a maker of mailboxes in one folder; they are closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(profile="idempotent", **options):
            mailbox = Mailbox(folder, profile=profile, **{**defaults, **options})
            stack.callback(mailbox.close)
            return mailbox

        yield make


def asked(mailbox, *letters, key="k", **options) -> Answer:
    """Hand in a request as a client of this profile writes it."""
    carried = mailbox.profile.carry(key) if isinstance(key, str) else key
    return mailbox.handle(Request(letters or (ADA,), key=carried, **options))


def asked_and_told(mailbox):
    """Do all that a door does."""
    asked(mailbox)
    mailbox.replied(Request((ADA,), key=mailbox.profile.carry("k")))


def sent(mailbox, *letter, **options):
    """Send, and say with the reply whether the service knew the key."""
    reply = mailbox.send(*letter, **options)
    return {**reply, "replayed": mailbox.requests()[-1]["outcome"] == "replayed"}


def says(answer, refusal):
    """Whether an answer is this refusal, to the letter."""
    return (answer.status, answer.name, answer.type) == (refusal.status, refusal.name, refusal.type)


def outcomes(mailbox):
    """List what became of each request."""
    return [row["outcome"] for row in mailbox.requests()]


def run_child(code, *arguments):
    """Start a new interpreter on a piece of code that has the mail service at hand."""
    head = f"""
import json, os, signal, sys
from durakit.mail import *
ADA = Letter({ADA.to!r}, {ADA.subject!r}, {ADA.body!r})
def asked(mailbox, key="k"):
    return mailbox.handle(Request((ADA,), key=mailbox.profile.carry(key)))
class Clock:
    def now(self): return {START!r}
    def sleep(self, seconds): pass
"""
    return subprocess.Popen(
        [sys.executable, "-c", head + textwrap.dedent(code), *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

"""Several processes on one file: one drives, and who has stalled or died learns it.

Every process here is a real one, killed by SIGKILL, stopped by SIGSTOP or interrupted by SIGINT;
leases are a fifth of a second and end by themselves. The mailbox's ledger is the referee: what a
second driver would have sent would lie in it.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

import durakit as dk
from durakit.mail import Mailbox
from durakit.runtime import declare_dead

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "SIGSTOP"), reason="no signals to stop a process with"
)

PROGRAM = '''
"""What every process of these tests runs: the same tools and workflows."""

import json, os, signal, sys, threading
from dataclasses import replace
import durakit as dk
from durakit.mail import PROFILES, Mailbox

folder, me, profile = sys.argv[1:4]
profiles = {
    **PROFILES,
    "fenced": replace(PROFILES["idempotent"], name="fenced", dedups=False, checks_fence=True),
}
mailbox = Mailbox(folder + "/world", profile=profiles[profile], latency=0)
stall = {"step": False, "tool": False, "keyboard": False, "thread": False}
go_on = threading.Event()

def say(*words):
    print(json.dumps(words), flush=True)

def write():
    if stall["step"]:
        stall["step"] = False
        os.kill(os.getpid(), signal.SIGSTOP)
    return me

def maybe_stall():
    if stall["tool"]:
        stall["tool"] = False
        os.kill(os.getpid(), signal.SIGSTOP)
    if stall["keyboard"]:
        say("in tool")
        sys.stdin.readline()
    if stall["thread"]:
        say("in tool")
        go_on.wait(20)

@dk.tool(effect="idempotent")
def keyed(call, to):
    maybe_stall()
    return mailbox.send(to, "keyed", "hello", key=call.key, fence=call.fence)["id"]

@dk.tool(effect="idempotent", timeout=20.0)
def timed(call, to):
    maybe_stall()
    return mailbox.send(to, "timed", "hello", key=call.key)["id"]

@dk.tool(effect="opaque")
def keyless(call, to):
    maybe_stall()
    return mailbox.send(to, "keyless", "hello")["id"]

@dk.workflow
def both(ctx, to):
    ctx.call(keyed, to, key="keyed:" + to)
    return ctx.call(keyless, to, key="keyless:" + to)

@dk.workflow
def step_then_mail(ctx, to):
    writer = ctx.step("write", write)
    ctx.call(keyless, to, key="keyless:" + to)
    return writer

@dk.workflow
def one_keyed(ctx, to):
    return ctx.call(keyed, to, key="keyed:" + to)

@dk.workflow
def one_timed(ctx, to):
    return ctx.call(timed, to, key="timed:" + to)

@dk.workflow
def one_keyless(ctx, to):
    return ctx.call(keyless, to, key="keyless:" + to)

def runtime(**more):
    named = {"durability": "process", "lease": 0.2, "world": mailbox, "owner": me, **more}
    return dk.Runtime(folder + "/orders.db", **named)
'''


class Process:
    """One child process that runs ``PROGRAM`` and then ``what``; it speaks JSON lines."""

    def __init__(self, folder, name, what, profile="idempotent"):
        script = folder / f"{name}.py"
        script.write_text(PROGRAM + what)
        self.child = subprocess.Popen(
            [sys.executable, script, folder, name, profile],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip

    def hears(self, line):
        """Give it a line."""
        self.child.stdin.write(line + "\n")

    def says(self):
        """What it says next."""
        line = self.child.stdout.readline()
        assert line, "it has ended"
        return json.loads(line)

    def stops(self):
        """Wait until it has stopped itself."""
        _, status = os.waitpid(self.child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def goes_on(self):
        """Let a stopped process go on."""
        os.kill(self.child.pid, signal.SIGCONT)

    def is_over(self, code=0):
        """Wait until it has ended."""
        self.child.communicate()
        assert self.child.returncode == code


@pytest.fixture
def start(tmp_path):
    """Start child processes; whatever is left of them is killed at the end."""
    begun = []

    def begin(*args, **named):
        begun.append(Process(tmp_path, *args, **named))
        return begun[-1]

    yield begin
    for process in begun:
        process.child.kill()
        process.child.communicate()


@pytest.fixture
def here(tmp_path):
    """This process as a driver: (module of tools and workflows, Runtime maker)."""
    names = {"__name__": "processes_program"}

    def load(profile="idempotent"):
        before = sys.argv
        sys.argv = ["", str(tmp_path), "here", profile]
        try:
            exec(compile(PROGRAM, "program", "exec"), names)  # noqa: S102 - our own text
        finally:
            sys.argv = before
        return names

    yield load
    if "mailbox" in names:
        names["mailbox"].close()


def ledger(tmp_path):
    """The world's own record: (subject of each effect, in order; requests)."""
    mailbox = Mailbox(tmp_path / "world", latency=0)
    try:
        return [mail["subject"] for mail in mailbox.inbox()], mailbox.requests()
    finally:
        mailbox.close()


# ── two recoverers ───────────────────────────────────────────────────────────────────────────────

VICTIMS = """
for number in range(int(sys.stdin.readline())):
    child = os.fork()
    if child == 0:
        rt = runtime(owner=f"victim {number}")
        rt._kill = True
        rt.run(both, f"{number}@x", id=f"run {number}", crash=dk.CrashAt("keyed", "effect_done"))
        os._exit(0)
    say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

RECOVERER = """
import time
rt = runtime(lease=30.0)
listing = rt._store.list_runs("default", ("running",))
while any(row.leased > time.time() for row in listing):
    time.sleep(0.02)
say(len(listing))
for row in listing:
    sys.stdin.readline()
    say(*rt._recover_one(row))
rt.close()
"""


@pytest.mark.real_kill
def test_two_recoverers_race_fifty_times_and_one_drives_l023(tmp_path, start):
    """Both hold the same listing of runs whose drivers were killed; the other says 'owned'."""
    rounds = 50
    victims = start("victims", VICTIMS)
    victims.hears(str(rounds))
    assert [victims.says() for _ in range(rounds)] == [[-signal.SIGKILL]] * rounds
    pair = [start(name, RECOVERER) for name in ("left", "right")]
    assert [process.says() for process in pair] == [[rounds]] * 2
    winners = Counter()
    for number in range(rounds):
        for process in pair[:: 1 if number % 2 else -1]:
            process.hears("go")
        told = [process.says() for process in pair]
        assert sorted(line[1] for line in told) == ["driven", "owned"], told
        winners[[line[1] for line in told].index("driven")] += 1
        (loser,) = [line for line in told if line[1] == "owned"]
        assert loser[3].startswith("owned elsewhere")
    for process in pair:
        process.is_over()
    subjects, requests = ledger(tmp_path)
    assert Counter(subjects) == {"keyed": rounds, "keyless": rounds}
    keys = Counter(request["key"] for request in requests if request["key"])
    assert set(keys.values()) == {2}, "the killed driver's request, and one more under its key"


def test_a_recoverer_with_an_old_listing_executes_nothing_l023(tmp_path, here):
    """A claims and finishes; B's claim of the same listing fails, and B says so."""
    program = here()
    clock = dk.ManualClock()
    a = program["runtime"](clock=clock, owner="A")
    b = program["runtime"](clock=clock, owner="B")
    a.start(program["both"], "a@x", id="one")
    (row,) = b._store.list_runs("default", ("running",))
    assert [line[1:3] for line in a.recover_rows()] == [("driven", "completed")]
    before = len(a.get("one").history())
    told = b._recover_one(row)
    assert told[:3] == ("one", "owned", "completed")
    assert "owned elsewhere" in told[3]
    assert len(a.get("one").history()) == before
    a.close()
    b.close()
    assert sorted(ledger(tmp_path)[0]) == ["keyed", "keyless"]


FROZEN = """
rt = runtime(clock=dk.ManualClock(), lease=30.0)

@dk.workflow
def body(ctx):
    def once():
        say("in body")
        sys.stdin.readline()
        return 1
    return ctx.step("once", once)

rt.run(body, id="one")
say(rt.get("one").status)
rt.close()
"""

SWEEPS_AT_ONCE = """
rt = runtime(clock=dk.ManualClock(), lease=30.0)

@dk.workflow
def body(ctx):
    return ctx.step("once", lambda: say("in body too"))

say(*rt.recover_rows()[0])
rt.close()
"""


def test_a_recovery_in_the_very_instant_of_the_start_adopts_nothing_l022(start):
    """All clocks stand still at one moment: a claim decides, and no time stamp."""
    driver = start("driver", FROZEN)
    assert driver.says() == ["in body"]
    recoverer = start("recoverer", SWEEPS_AT_ONCE)
    told = recoverer.says()
    assert told[:2] == ["one", "owned"]
    recoverer.is_over()
    driver.hears("go on")
    assert driver.says() == ["completed"]
    driver.is_over()


def test_a_recovery_by_the_same_process_in_the_same_instant_adopts_nothing_l022(here):
    """The sweep runs inside of the run's own first step, on a frozen clock."""
    program = here()
    clock = dk.ManualClock()
    rt = program["runtime"](clock=clock, owner="A")
    other = program["runtime"](clock=clock, owner="A again")
    seen = []

    @dk.workflow
    def sweeping(ctx):
        def once():
            seen.append(other.recover_rows()[0][1])
            return len(seen)

        return ctx.step("once", once)

    assert rt.run(sweeping, id="one").result == 1
    assert seen == ["owned"]
    rt.close()
    other.close()


# ── a driver that stalls ─────────────────────────────────────────────────────────────────────────

STALLS_IN_STEP = """
stall["step"] = True
rt = runtime()
run = rt.run(step_then_mail, "a@x", id="one")
say(run.note, run.result)
rt.close()
"""


def take_over(program):
    """Become the driver as soon as the stalled one's lease has ended; what recovery says."""
    with program["runtime"](lease=30.0) as rt:
        return rt.recover_rows(wait=20)


def test_a_driver_stopped_in_a_step_finds_its_append_refused_l025(tmp_path, start, here):
    """Its lease has ended meanwhile, another has finished: one mail, and the other's result."""
    stalled = start("stalled", STALLS_IN_STEP)
    stalled.stops()
    told = take_over(here())
    assert [line[1:3] for line in told] == [("driven", "completed")]
    stalled.goes_on()
    note, result = stalled.says()
    assert note.startswith("owned elsewhere")
    assert result == "here"
    stalled.is_over()
    assert ledger(tmp_path)[0] == ["keyless"]


STALLS_IN_TOOL = """
stall["tool"] = True
rt = runtime()
run = rt.run(WORKFLOW, "a@x", id="one")
say(run.note, run.status)
rt.close()
"""


@pytest.mark.parametrize(
    ("profile", "outcomes"),
    [("fenced", ["delivered", "refused 412"]), ("idempotent", ["delivered", "replayed"])],
)
def test_a_driver_stopped_before_it_sends_adds_no_second_mail_l026(
    tmp_path, start, here, profile, outcomes
):
    """The service refuses its old token; without such a check the same key protects."""
    what = STALLS_IN_TOOL.replace("WORKFLOW", "one_keyed")
    stalled = start("stalled", what, profile=profile)
    stalled.stops()
    told = take_over(here(profile))
    assert [line[1:3] for line in told] == [("driven", "completed")]
    stalled.goes_on()
    note, status = stalled.says()
    assert note.startswith("owned elsewhere")
    assert status == "completed"
    stalled.is_over()
    subjects, requests = ledger(tmp_path)
    assert subjects == ["keyed"]
    assert [request["outcome"] for request in requests] == outcomes


def test_a_driver_stopped_before_it_sends_without_a_key_leaves_an_unknown_l026(
    tmp_path, start, here
):
    """Nobody guesses: one mail at most, and a person decides."""
    what = STALLS_IN_TOOL.replace("WORKFLOW", "one_keyless")
    stalled = start("stalled", what, profile="opaque")
    stalled.stops()
    program = here("opaque")
    told = take_over(program)
    assert [line[2] for line in told] == ["needs_decision"]
    stalled.goes_on()
    note, status = stalled.says()
    assert note.startswith("owned elsewhere")
    assert status == "needs_decision"
    stalled.is_over()
    assert ledger(tmp_path)[0] == ["keyless"]
    with program["runtime"]() as rt:
        assert rt.get("one").operations()["outcome"].tolist() == ["unknown"]


# ── a driver that is killed ──────────────────────────────────────────────────────────────────────

DIES = """
rt = runtime(lease=3600.0)
rt._kill = True
rt.run(one_keyed, "a@x", id="one", crash=dk.CrashAt("keyed", "effect_done"))
"""


@pytest.mark.real_kill
def test_a_reaped_childs_lease_need_not_be_waited_for(tmp_path, start, here):
    """An hour of lease is left; a driver known to be dead holds nothing, an unknown one does."""
    child = start("dies", DIES)
    child.is_over(-signal.SIGKILL)
    with here()["runtime"]() as rt:
        assert rt.recover_rows()[0][1] == "owned"
        declare_dead(rt._store.name, rt._store.find_run("default", "one").owner)
        assert rt.recover_rows()[0][1:3] == ("driven", "completed")
    subjects, requests = ledger(tmp_path)
    assert (subjects, len(requests)) == (["keyed"], 2)


# ── an interrupt from the keyboard ───────────────────────────────────────────────────────────────

INTERRUPTED = """
stall["keyboard"] = True
rt = runtime(lease=3600.0)
try:
    rt.run(one_keyed, "a@x", id="one")
except KeyboardInterrupt:
    say("raised again")
rt.close()
"""


def test_an_interrupt_in_a_tool_releases_the_lease_and_keeps_the_operation_unknown(
    tmp_path, start, here
):
    """Another process goes on at once, although an hour of lease would have been left."""
    child = start("interrupted", INTERRUPTED)
    assert child.says() == ["in tool"]
    os.kill(child.child.pid, signal.SIGINT)
    assert child.says() == ["raised again"]
    child.is_over()
    with here()["runtime"]() as rt:
        run = rt.get("one")
        assert run.status == "running"
        assert run.operations()["status"].tolist() == ["DISPATCHED"]
        assert list(run.history()["kind"]) == ["started", "claimed", "intent", "released"]
        assert rt._store.find_run("default", "one").owner is None
        assert rt.recover_rows()[0][1:3] == ("driven", "completed")
    assert ledger(tmp_path)[0] == ["keyed"]


INTERRUPTED_THREAD = """
stall["thread"] = True
rt = runtime(lease=3600.0)
try:
    rt.run(one_timed, "a@x", id="one")
except KeyboardInterrupt:
    say("raised again")
threading.Timer(0.05, go_on.set).start()
say(rt.resume("one").status)
rt.close()
"""


def test_a_tool_that_outlives_an_interrupt_is_waited_for_and_not_started_again(tmp_path, start):
    """It runs on a thread, which no interrupt ends; its reply is evidence."""
    child = start("interrupted", INTERRUPTED_THREAD)
    assert child.says() == ["in tool"]
    os.kill(child.child.pid, signal.SIGINT)
    assert child.says() == ["raised again"]
    assert child.says() == ["completed"]
    child.is_over()
    subjects, requests = ledger(tmp_path)
    assert (subjects, len(requests)) == (["timed"], 1)


def test_an_interrupt_that_finds_the_lease_lost_is_still_raised(tmp_path, here):
    """What cannot be given back ends by itself; the person's wish is never swallowed."""
    program = here()
    clock = dk.ManualClock()
    rt = program["runtime"](clock=clock, owner="A", lease=30.0)
    other = program["runtime"](clock=clock, owner="B", lease=30.0)

    @dk.workflow
    def interrupted(ctx):
        def loses():
            if not seen:
                seen.append(1)
                clock.advance(31)
                other.recover_rows()
                raise KeyboardInterrupt
            return len(seen)

        return ctx.step("loses", loses)

    seen = []
    with pytest.raises(KeyboardInterrupt):
        rt.run(interrupted, id="one")
    assert rt.get("one").result == 1
    rt.close()
    other.close()
    assert tmp_path.exists()

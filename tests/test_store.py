"""The store: every save is whole or absent, and what was saved is found again or refused.

The tables are looked at with SQLite itself, effects with the mailbox's own ledger, and other
processes are real ones.
"""

import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import durakit as dk
from durakit.errors import (
    ClockMismatch,
    DamagedFile,
    LeaseLost,
    StoreBusy,
    StoreFull,
    UsageError,
)
from durakit.mail import Mailbox
from durakit.store import Change, Claimed, OperationMoved, RunRow, Store, chain, retention

NOBODY = staticmethod(lambda _owner: False)
LOTS = 1_073_741_823


class World:
    """What the tools and workflows below use; set by the ``mailbox`` fixture and by tests."""

    mailbox: Mailbox
    meanwhile = staticmethod(lambda: None)
    reply_size = 10


@dk.tool(effect="idempotent")
def store_send(call, to):
    """Send, let the test do something, and answer at length."""
    World.mailbox.send(to, "Hello", "there", key=call.key[:40], fence=call.fence)
    World.meanwhile()
    return "r" * World.reply_size


@dk.tool(effect="opaque")
def store_post(_call, to):
    """Send to a service that dedups nothing."""
    World.mailbox.send(to, "Hello", "there")
    return "posted"


@dk.workflow
def store_mail(ctx, to, key):
    """A step and a call."""
    ctx.step("write", lambda: "draft")
    return ctx.call(store_send, to, key=key)


@dk.workflow
def store_post_once(ctx, to, key):
    """A call to the service that dedups nothing."""
    ctx.step("write", lambda: "draft")
    return ctx.call(store_post, to, key=key)


@dk.workflow
def store_steps(ctx, count):
    """Only steps."""
    return sum(ctx.step(f"step {number}", lambda n=number: n) for number in range(count))


@pytest.fixture
def mailbox(tmp_path):
    """An empty mailbox that answers at once; also in ``World``."""
    World.meanwhile = staticmethod(lambda: None)
    World.reply_size = 10
    World.mailbox = Mailbox(tmp_path / "world", clock=dk.ManualClock(), latency=0)
    yield World.mailbox
    World.mailbox.close()


@pytest.fixture
def path(tmp_path):
    """Where the store shall be."""
    return tmp_path / "orders.db"


@pytest.fixture
def rt(path, mailbox):
    """A Runtime on virtual time."""
    with dk.Runtime(path, clock=dk.ManualClock(), durability="process", world=mailbox) as runtime:
        yield runtime


def raw(path):
    """SQLite's own view of the file."""
    return sqlite3.connect(path, isolation_level=None)


def dump(path):
    """Every row of the file, as text."""
    connection = raw(path)
    try:
        return list(connection.iterdump())
    finally:
        connection.close()


def new_run(store, id_="one", account="default"):
    """Save a run by the store alone."""
    row = RunRow(
        run=0, account=account, id=id_, workflow="w", version=1, source="s", arguments="a",
        created=0.0, deadline=None, status="running", seq=0, digest=b"", explained=None, token=0,
        owner=None, leased=None, claims=0, commands=0,
    )  # fmt: skip
    return store.create_run(row, '{"arguments":{}}')[0]


def claim(store, id_="one", owner="W/1", now=0.0, lease=30.0):
    """Claim a run by the store alone."""
    return store.claim(
        "default", id_, owner=owner, now=now, leased=now + lease, dead=NOBODY, by_hand=False
    )


def append(store, lease, kind="step", now=0.0, **parts):
    """Append an entry by the store alone."""
    return store.append(lease, kind, payload='{"value":1}', now=now, leased=0.0, **parts)


NEIGHBOUR = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=0)
print("ready", flush=True)
for line in sys.stdin:
    if line == "hold\\n":
        connection.execute("BEGIN IMMEDIATE")
    elif line == "free\\n":
        connection.execute("ROLLBACK")
    else:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE run SET claims = claims WHERE run = 1")
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            print(error, flush=True)
            continue
    print("ok", flush=True)
"""


class Neighbour:
    """Another process with the same file open; it never waits for a lock."""

    def __init__(self, folder, path):
        script = folder / "neighbour.py"
        script.write_text(NEIGHBOUR)
        self.process = subprocess.Popen(
            [sys.executable, script, path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        assert self.process.stdout.readline() == "ready\n"

    def does(self, what):
        """Let it ``hold`` the write lock, ``free`` it, or ``write`` at once; what it answers."""
        self.process.stdin.write(what + "\n")
        return self.process.stdout.readline().strip()


@pytest.fixture
def neighbour(tmp_path, path, rt):
    """Another process, once the store is there."""
    rt.start(store_steps, 0, id="the neighbour's")
    other = Neighbour(tmp_path, path)
    yield other
    other.process.communicate()


class Interrupt:
    """Raise KeyboardInterrupt at the n-th line that the store runs, in whichever of its modules."""

    def __init__(self, moment):
        self.left = moment
        self._files = {str(path) for path in Path(chain.__file__).parent.glob("*.py")}

    def __enter__(self):
        sys.settrace(self._watch)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    @property
    def came(self):
        """Whether the moment was reached."""
        return self.left <= 0

    def _watch(self, frame, event, _argument):
        if frame.f_code.co_filename not in self._files:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self._watch


# ── the one transaction helper ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "error",
    [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, sqlite3.IntegrityError, LeaseLost],
)
def test_any_exception_rolls_the_save_back(rt, path, neighbour, error):
    """Nothing of it is there, and nobody finds a lock."""
    before = dump(path)

    def work(connection):
        connection.execute("INSERT INTO command (run, kind, payload, time) VALUES (1, 'x', '', 0)")
        raise error

    with pytest.raises((error, dk.StoreError)):
        rt._store.write(work)
    assert dump(path) == before
    assert neighbour.does("write") == "ok"


def test_an_interrupt_at_any_line_of_a_save_leaves_it_whole_or_absent_l017(rt, path, neighbour):
    """The next write and another process succeed at once, and the lease can be given back."""
    store = rt._store
    kinds = set()
    for moment in itertools.count(1):
        id_ = f"run {moment}"
        row = new_run(store, id_)
        lease = claim(store, id_).lease
        with Interrupt(moment) as interrupt:
            try:
                append(store, lease, step="s", progress=True)
            except KeyboardInterrupt:
                assert interrupt.came
        assert neighbour.does("write") == "ok"
        store.release(lease, 1.0, "KeyboardInterrupt")
        kinds.add(tuple(entry.kind for entry in store.read_journal(row.run)))
        assert isinstance(claim(store, id_, now=2.0), Claimed)
        if not interrupt.came:
            break
    assert moment > 20
    whole = ("started", "claimed", "step", "released")
    assert kinds == {whole, ("started", "claimed", "released")}
    assert path.exists()


def test_a_run_interrupted_at_any_line_of_the_store_goes_on_at_once_l017(rt, mailbox, neighbour):
    """The interrupt reaches the person, the next cell resumes, and each run sends one mail."""
    for number in itertools.count():
        moment, id_ = 1 + 3 * number, f"run {number}"
        with Interrupt(moment) as interrupt:
            try:
                rt.run(store_mail, "a@x", id_, id=id_)
            except KeyboardInterrupt:
                assert interrupt.came
            else:
                assert not interrupt.came, "an interrupt is raised again"
        assert neighbour.does("write") == "ok"
        run = rt.run(store_mail, "a@x", id_, id=id_)
        assert run.status == "completed", (moment, run)
        if not interrupt.came:
            break
    assert number > 40
    keys = [row["key"] for row in mailbox.effects()]
    assert keys == [f"run {n}" for n in range(number + 1)]


# ── the journal is append-only, by its driver only ───────────────────────────────────────────────


def test_nothing_in_the_journal_is_altered_or_removed(rt, path):
    """The file itself refuses UPDATE and DELETE."""
    rt.run(store_steps, 3, id="one")
    connection = raw(path)
    for statement in ("UPDATE journal SET payload = '{}'", "DELETE FROM journal"):
        with pytest.raises(sqlite3.IntegrityError, match="journal"):
            connection.execute(statement)
    connection.close()


def test_an_append_is_four_statements(rt):
    """Begin, check the token, insert, commit."""
    store = rt._store
    new_run(store)
    lease = claim(store).lease
    append(store, lease, step="first", progress=True)
    said = []
    store.connection().set_trace_callback(said.append)
    append(store, lease, step="second", progress=True)
    store.connection().set_trace_callback(None)
    assert [text.split()[0] for text in said] == ["BEGIN", "SELECT", "INSERT", "COMMIT"]


def test_a_resume_reads_saved_results_in_one_read(rt):
    """Forty steps or four: as many questions to the journal."""
    asked = []
    for count in (4, 40):
        id_ = f"{count} steps"
        crash = dk.CrashAt(f"step {count - 1}", "step_saved")
        rt.run(store_steps, count, id=id_, crash=crash)
        said = []
        rt._store.connection().set_trace_callback(said.append)
        assert rt.resume(id_).result == sum(range(count))
        rt._store.connection().set_trace_callback(None)
        asked.append(sum("FROM journal" in text for text in said))
    assert asked[0] == asked[1]


def test_a_replaced_attempt_of_the_same_worker_is_refused_everything_l025(rt, path):
    """Ownership is a token, not a name: W's first attempt cannot extend, release or report."""
    store = rt._store
    new_run(store)
    first = claim(store, owner="W").lease
    second = claim(store, owner="W", now=31.0).lease
    assert second.token == first.token + 1
    before = dump(path)
    for stale in (
        lambda: append(store, first, now=32.0),
        lambda: store.release(first, 32.0, "done"),
        lambda: append(store, first, "completed", now=32.0, ends="completed", progress=True),
    ):
        with pytest.raises(LeaseLost):
            stale()
        assert dump(path) == before
    append(store, second, "completed", now=33.0, ends="completed", progress=True)
    assert [(e.kind, e.token) for e in store.read_journal(1)][-1] == ("completed", second.token)


def test_a_released_lease_cannot_be_used_any_more(rt):
    """The token is still the newest, and nobody holds it."""
    store = rt._store
    new_run(store)
    lease = claim(store).lease
    store.release(lease, 1.0, "done")
    with pytest.raises(LeaseLost):
        append(store, lease, now=2.0)


def test_an_operation_that_moved_meanwhile_is_not_overwritten(rt, path):
    """The entry is not written either: both or none."""
    store = rt._store
    new_run(store)
    lease = claim(store).lease
    change = Change("default", "t", "k", "a", "opaque", "DISPATCHED", 1, 0.0, None, None)
    append(store, lease, "intent", change=change)
    before = dump(path)
    for was in (None, ("REFUSED", 1), ("DISPATCHED", 2)):
        with pytest.raises(OperationMoved):
            append(store, lease, "intent", change=change._replace(was=was))
        assert dump(path) == before


# ── what was altered by hand ─────────────────────────────────────────────────────────────────────


def tamper(path, *statements):
    """Change the file as somebody with an SQLite shell would, triggers taken off and put back."""
    connection = raw(path)
    guards = connection.execute(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"
    ).fetchall()
    for name, _ in guards:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        assert connection.execute(statement).rowcount != 0
    for _, sql in guards:
        connection.execute(sql)
    connection.close()


PARKED = "(SELECT max(place) FROM journal)"

TAMPERED = {
    "body altered": "UPDATE journal SET payload = replace(payload, 'draft', 'graft') "
    "WHERE kind = 'step'",
    "name altered": "UPDATE journal SET step = 'other' WHERE kind = 'step'",
    "kind altered": "UPDATE journal SET kind = 'result' WHERE kind = 'attempt' OR kind = 'parked'",
    "time altered": "UPDATE journal SET time = time + 1 WHERE kind = 'intent'",
    "digest altered": "UPDATE journal SET digest = zeroblob(32) WHERE kind = 'step'",
    "middle removed": "DELETE FROM journal WHERE kind = 'step'",
    "first removed": "DELETE FROM journal WHERE kind = 'started'",
    "tail cut": f"DELETE FROM journal WHERE place = {PARKED}",
    "all removed": "DELETE FROM journal",
    "row added at the end": "INSERT INTO journal (place, kind, token, time, payload, digest) "
    f"SELECT place + 1, kind, token, time, payload, digest FROM journal WHERE place = {PARKED}",
    "row added far away": "INSERT INTO journal (place, kind, token, time, payload, digest) "
    f"SELECT place + 9, kind, token, time, payload, digest FROM journal WHERE place = {PARKED}",
    "arguments' digest altered": "UPDATE run SET arguments = 'f' || substr(arguments, 2) || 'f'",
    "deadline altered": "UPDATE run SET deadline = 1",
    "token set back": "UPDATE run SET token = 0",
}


@pytest.mark.parametrize("statement", TAMPERED.values(), ids=TAMPERED.keys())
def test_a_journal_altered_by_hand_is_refused_at_the_claim_l116(rt, path, mailbox, statement):
    """The chain of digests shows it; nothing is driven, nothing written."""
    crash = dk.CrashAt("store_post", "effect_done")
    rt.run(store_post_once, "a@x", "key", id="one", crash=crash)
    assert rt.resume("one").status == "needs_decision"
    rt.close()
    tamper(path, statement)
    before = dump(path)
    with dk.Runtime(path, clock=dk.ManualClock(), world=mailbox) as again:
        with pytest.raises(DamagedFile):
            again.resume("one")
        assert dump(path) == before
    assert len(mailbox.effects()) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM operation",
        "UPDATE operation SET key = 'kez'",
        "UPDATE operation SET arguments = 'ab'",
        "UPDATE operation SET attempts = 0",
        "UPDATE operation SET first_sent = first_sent - 1e6",
    ],
)
def test_an_operation_that_the_journal_does_not_know_so_is_refused(rt, path, mailbox, statement):
    """'No record' beside a saved intent is damage, and never 'not executed'."""
    crash = dk.CrashAt("store_send", "effect_done")
    rt.run(store_mail, "a@x", "key", id="one", crash=crash)
    rt.close()
    tamper(path, statement)
    with (
        dk.Runtime(path, clock=dk.ManualClock(), world=mailbox) as again,
        pytest.raises(DamagedFile, match="operation"),
    ):
        again.resume("one")
    assert len(mailbox.requests()) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE journal SET payload = replace(payload, '3', '4') WHERE kind = 'completed'",
        "UPDATE run SET explained = explained - 1",
    ],
)
def test_an_altered_result_is_never_shown_l013(rt, path, statement):
    """A finished run is claimed by nobody; its result is checked where it is read."""
    rt.run(store_steps, 3, id="one")
    tamper(path, statement)
    with pytest.raises(DamagedFile):
        _ = rt.get("one").result


def test_a_swapped_type_name_builds_nothing_even_under_right_digests_l116(rt, path):
    """Who can write the file can compute digests: still only known exceptions are built."""

    @dk.workflow
    def store_fails(ctx):
        return ctx.step("fail", lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        _ = rt.run(store_fails, id="one").result
    row = rt._store.find_run("default", "one")
    connection = raw(path)
    rows = connection.execute(
        "SELECT seq, kind, step, key, attempt, token, time, payload FROM journal ORDER BY place"
    ).fetchall()
    connection.close()
    for name in (
        "subprocess.Popen",
        "antigravity",
        "durakit.store.Store",
        "Store",
        "KeyboardInterrupt",
    ):
        digest, changes = chain.seed(row), []
        for saved in rows:
            entry = (*saved[:-1], saved[-1].replace("ZeroDivisionError", name))
            digest = chain.link(digest, (row.run, *entry))
            changes.append(
                f"UPDATE journal SET payload = '{entry[-1]}', digest = x'{digest.hex()}' "
                f"WHERE seq = {entry[0]}"
            )
        tamper(path, *changes)
        with pytest.raises(dk.SavedError) as caught:
            _ = rt.get("one").result
        assert caught.value.type_name == name
    assert "antigravity" not in sys.modules


# ── text is data ─────────────────────────────────────────────────────────────────────────────────

HOSTILE = [
    "x'; DROP TABLE run; --",
    '" OR 1=1 --',
    "' OR '1'='1",
    "]) UNION SELECT * FROM journal /*",
    "%",
    "_",
    "?1",
    ":account",
    "a\0b",
    "ключ \N{SNOWMAN}\n\t",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_sql_in_names_ids_and_keys_is_data_l118(path, mailbox, text):
    """Saved and found as it is, and nothing else is found by it."""
    with dk.Runtime(path, clock=dk.ManualClock(), account=text, world=mailbox) as rt:
        tool = dk.tool(lambda _call, to: to, effect="idempotent", name=text)

        @dk.workflow(name=text)
        def hostile(ctx):
            return ctx.step(text, lambda: text) + ctx.call(tool, text, key=text)

        rt.run(store_steps, 2, id="harmless")
        tables = [line for line in dump(path) if line.startswith("CREATE")]
        run = rt.run(hostile, id=text)
        assert run.result == text + text
        assert rt.get(text).id == text
        assert list(run.operations()["key"]) == [text]
        assert len(rt.runs()) == 2
        assert [line for line in dump(path) if line.startswith("CREATE")] == tables


@pytest.mark.parametrize("text", HOSTILE)
def test_sql_in_filters_matches_nothing_l118(rt, path, text):
    """A filter is compared with, never run."""
    rt.run(store_steps, 2, id="one")
    before = dump(path)
    assert rt._store.list_runs(text) == []
    assert rt._store.list_runs("default", [text]) == []
    assert rt._store.read_operation(text, text, text) is None
    with pytest.raises(dk.RunNotFound):
        rt.get(text)
    assert dump(path) == before


# ── a full disk ──────────────────────────────────────────────────────────────────────────────────


def cap(rt, more=0):
    """The disk is full: not one page more (or ``more``)."""
    connection = rt._store.connection()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + more}")


def lift(rt):
    """Space is free again."""
    rt._store.connection().execute(f"PRAGMA max_page_count = {LOTS}")


def test_full_before_the_intent_the_tool_is_not_called_l011(rt, mailbox):
    """The intent could not be saved, so nothing is sent; what was saved still reads."""
    key = "k" * 20_000
    rt.start(store_mail, "a@x", key, id="one")
    cap(rt)
    with pytest.raises(StoreFull):
        rt.resume("one")
    assert mailbox.requests() == []
    run = rt.get("one")
    assert run.status == "running"
    assert list(run.history()["kind"]) == ["started", "claimed", "step"]
    assert run.operations().empty
    lift(rt)
    assert rt.recover()["did"].tolist() == ["driven"]
    assert run.status == "completed"
    assert len(mailbox.effects()) == 1


def test_full_after_the_mail_left_is_unknown_and_recovery_settles_it_with_one_mail_l011(
    rt, mailbox
):
    """The reply is lost to the full disk; the key makes asking again harmless."""
    World.reply_size = 20_000
    World.meanwhile = staticmethod(lambda: cap(rt))
    with pytest.raises(StoreFull):
        rt.run(store_mail, "a@x", "key", id="one")
    run = rt.get("one")
    assert run.status == "running"
    assert run.operations()["outcome"].tolist() == ["unknown"]
    World.meanwhile = staticmethod(lambda: None)
    lift(rt)
    assert rt.recover()["did"].tolist() == ["driven"]
    assert run.result == "r" * 20_000
    assert len(mailbox.effects()) == 1
    assert [request["outcome"] for request in mailbox.requests()] == ["delivered", "replayed"]


class FreeingClock(dk.ManualClock):
    """A clock on which space becomes free as soon as somebody waits."""

    rt: dk.Runtime

    def sleep(self, seconds):
        """Pass the time; the disk is no longer full."""
        lift(self.rt)
        super().sleep(seconds)


def test_a_result_that_the_store_refuses_once_is_saved_and_the_tool_not_called_again_l049(
    path, mailbox
):
    """A failure after the effect is not a failure before it."""
    clock = FreeingClock()
    with dk.Runtime(path, clock=clock, world=mailbox) as rt:
        clock.rt = rt
        World.reply_size = 20_000
        World.meanwhile = staticmethod(lambda: cap(rt))
        run = rt.run(store_mail, "a@x", "key", id="one")
        assert clock.sleeps, "the store did refuse"
        assert run.result == "r" * 20_000
        assert len(mailbox.requests()) == len(mailbox.effects()) == 1


# ── others are writing ───────────────────────────────────────────────────────────────────────────


def test_a_lock_held_for_longer_than_the_wait_is_busy_and_changes_nothing_l016(rt, path, neighbour):
    """The caller gets our error; the lock gone, the same write succeeds."""
    del rt
    store = Store(path, clock_kind="manual", wait=0.02)
    before = dump(path)
    neighbour.does("hold")
    for _ in range(2):
        with pytest.raises(StoreBusy):
            new_run(store)
    assert len(store.list_runs(None)) == 1, "reading waits for nobody"
    neighbour.does("free")
    assert dump(path) == before
    new_run(store)
    store.close()


def test_the_wait_for_an_intent_ends_with_the_callers_limit_l010(path, mailbox, tmp_path):
    """The store would wait for ten seconds, the turn has not a tenth of one."""
    said = []

    @dk.workflow
    def store_hurried(ctx):
        with ctx.turn("send", timeout=0.08):
            if not said:
                rt._store.connection().set_trace_callback(said.append)
                neighbour.does("hold")
            return ctx.call(store_send, "a@x", key="key")

    with dk.Runtime(path) as rt:
        rt.start(store_hurried, id="one")
        neighbour = Neighbour(tmp_path, path)
        with pytest.raises(StoreBusy):
            rt.resume("one")
        waits = [int(text.split()[-1]) for text in said if "busy_timeout" in text]
        assert waits
        assert max(waits) <= 80
        assert mailbox.requests() == []
        neighbour.does("free")
        assert rt.resume("one").status == "completed"
        assert len(mailbox.effects()) == 1
    neighbour.process.communicate()


SAVE_500 = """
import sys
import durakit as dk

@dk.workflow
def store_saves(ctx, count):
    return sum(ctx.step(f"save {n}", lambda n=n: n) for n in range(count))

rt = dk.Runtime(sys.argv[1], durability="process")
print("ready", flush=True)
sys.stdin.readline()
assert rt.run(store_saves, 500, id=sys.argv[2]).result == 124750
rt.close()
"""


def test_two_processes_with_500_saves_each_lose_nothing_and_see_no_lock_l010(tmp_path, path):
    """Each append reads and then writes; begun as a writer, it never has to give up."""
    Store(path, clock_kind="system").close()
    script = tmp_path / "save.py"
    script.write_text(SAVE_500)
    pair = [
        subprocess.Popen(
            [sys.executable, script, path, name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name in ("left", "right")
    ]  # fmt: skip
    for child in pair:
        assert child.stdout.readline() == "ready\n"
    for child in pair:
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in pair:
        _, errors = child.communicate()
        assert (child.returncode, errors) == (0, "")
    store = Store(path, clock_kind="system")
    for row in store.list_runs(None):
        kinds = [entry.kind for entry in store.read_journal(row.run)]
        assert kinds == ["started", "claimed", *["step"] * 500, "completed"]
    store.close()


# ── scale and retention ──────────────────────────────────────────────────────────────────────────


def test_listing_5000_runs_reads_no_journal_l124(rt, monkeypatch):
    """Two questions for the whole list, none of them about a payload, and nothing is decoded."""
    store = rt._store
    for number in range(5000):
        new_run(store, f"run {number}")
    said, decoded = [], []
    decode = json.JSONDecoder.decode
    monkeypatch.setattr(
        json.JSONDecoder,
        "decode",
        lambda *args, **named: decoded.append(1) or decode(*args, **named),
    )
    store.connection().set_trace_callback(said.append)
    table = rt.runs()
    store.connection().set_trace_callback(None)
    assert len(table) == 5000
    assert set(table["status"]) == {"running"}
    assert len(said) <= 2
    assert not any("payload" in text for text in said)
    assert decoded == []


PRUNE_AND_DIE = """
import os, signal, sys
import durakit as dk

clock = dk.ManualClock(dk.ManualClock.START + 5000)
rt = dk.Runtime(sys.argv[1], clock=clock, durability="process")
removed = 0
def watch(statement):
    global removed
    removed += statement.startswith("DELETE FROM run ")
    if removed == 100:
        os.kill(os.getpid(), signal.SIGKILL)
rt._store.connection().set_trace_callback(watch)
rt.prune(1000)
"""


@pytest.mark.real_kill
def test_pruning_killed_in_the_middle_is_completed_by_the_next_and_shrinks_the_file_l122(
    tmp_path, path, mailbox
):
    """Unfinished runs and every operation stay; so does the run that names an unknown one."""
    clock = dk.ManualClock()
    with dk.Runtime(path, clock=clock, durability="process", world=mailbox) as rt:
        for number in range(200):
            run = rt.run(store_mail, f"a{number}@x", f"key {number}", id=f"old {number}")
            assert run.status == "completed"
        for number in range(5):
            crash = dk.CrashAt("store_post", "effect_done")
            rt.run(
                store_post_once, f"b{number}@x", f"open {number}", id=f"open {number}", crash=crash
            )
        met = rt.run(store_post_once, "somebody@else", "open 0", id="met")
        assert met.status == "failed"
    size, mails = path.stat().st_size, len(mailbox.effects())
    script = tmp_path / "prune.py"
    script.write_text(PRUNE_AND_DIE)
    child = subprocess.run([sys.executable, script, path], check=False)
    assert child.returncode == -signal.SIGKILL
    clock.advance(5000)
    with dk.Runtime(path, clock=clock, durability="process", world=mailbox) as rt:
        store = rt._store
        assert len(store.list_runs(None, ["completed"])) == 101
        operations = raw_operations(path)
        assert rt.prune(1000) == 101
        rt.compact()
        assert path.stat().st_size < size / 2
        left = [row.id for row in store.list_runs(None)]
        assert left == [*(f"open {number}" for number in range(5)), "met"]
        assert raw_operations(path) == operations
        for number in range(5):
            run = rt.get(f"open {number}")
            assert list(run.history()["kind"]) == ["started", "claimed", "step", "intent"]
            assert run.operations()["outcome"].tolist() == ["unknown"]
        again = rt.run(store_mail, "a7@x", "key 7", id="later")
        assert again.result == "r" * 10
        assert len(mailbox.effects()) == mails, "a key that was used stays used"


def raw_operations(path):
    """What must not change when runs are removed: each operation and its standing."""
    connection = raw(path)
    try:
        return connection.execute(
            "SELECT account, tool, key, arguments, contract, status, attempts, first_sent, sent "
            "FROM operation ORDER BY key"
        ).fetchall()
    finally:
        connection.close()


def test_a_removed_runs_number_passes_to_a_new_run_without_its_operations(rt, mailbox):
    """The new run meets the old key as somebody else's, and gets its reply as a replay."""
    rt.run(store_mail, "a@x", "key", id="old")
    number = rt._store.find_run("default", "old").run
    rt._clock.advance(100)
    assert rt.prune(50) == 1
    new = rt.run(store_mail, "a@x", "key", id="new")
    assert rt._store.find_run("default", "new").run == number
    connection = raw(rt._store.path)
    assert connection.execute("SELECT run FROM operation").fetchall() == [(0,)]
    connection.close()
    assert "replayed" in list(new.history()["kind"])
    assert new.result == "r" * 10
    assert len(mailbox.requests()) == 1


def test_a_pruner_with_an_old_list_removes_no_new_run(rt):
    """Another pruner was faster, and the number has a living run by now."""
    rt.run(store_steps, 1, id="old")
    stale = rt._store.find_run("default", "old")
    rt._clock.advance(100)
    assert rt.prune(50) == 1
    rt.start(store_steps, 1, id="new")
    assert not rt._store.write(lambda c: retention.remove(c, stale))
    assert rt.run(store_steps, 1, id="new").result == 0


def test_a_kept_reply_that_was_altered_is_refused(rt, path):
    """The reply of a removed run carries its own digest."""
    rt.run(store_mail, "a@x", "key", id="old")
    rt._clock.advance(100)
    rt.prune(50)
    connection = raw(path)
    connection.execute("UPDATE operation SET kept = replace(kept, 'rrr', 'rsr')")
    connection.close()
    with pytest.raises(DamagedFile):
        rt.run(store_mail, "a@x", "key", id="new")


# ── clocks, memory, threads, forks, kills ────────────────────────────────────────────────────────


def test_another_kind_of_clock_may_read_and_not_drive(rt, path):
    """Virtual times and real ones cannot be compared."""
    rt.start(store_steps, 1, id="one")
    before = dump(path)
    with dk.Runtime(path) as other:
        assert other.get("one").status == "running"
        assert len(other.get("one").history()) == 1
        for drive in (
            lambda: other.resume("one"),
            lambda: other.start(store_steps, 1, id="two"),
            lambda: other.run(store_steps, 1, id="one"),
        ):
            with pytest.raises(ClockMismatch):
                drive()
        assert other.recover_rows()[0][1] == "error"
    assert dump(path) == before


def test_memory_is_not_durable_and_a_crash_drops_it(mailbox):
    """It says so, and after the crash the run has never been."""
    with dk.Runtime(":memory:", clock=dk.ManualClock(), world=mailbox) as rt:
        assert not rt.durable
        assert "not durable" in repr(rt)
        assert rt.run(store_steps, 2, id="before").result == 1
        crash = dk.CrashAt("store_send", "effect_done")
        rt.start(store_mail, "a@x", "key", id="one")
        rt.resume("one", crash=crash)
        assert rt._store.list_runs(None) == []
        assert len(mailbox.effects()) == 1
        assert rt.run(store_mail, "a@x", "key", id="one").status == "completed"


def test_other_threads_read_by_connections_of_their_own(rt):
    """Eight at once, while the opener writes."""
    rt.run(store_steps, 3, id="one")
    found, connections = [], []

    def read():
        found.extend((rt.get("one").result, bool(rt._store.list_runs(None))) for _ in range(20))
        connections.append(rt._store.connection())

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for number in range(20):
        rt.start(store_steps, 1, id=f"more {number}")
    for thread in threads:
        thread.join()
    assert found == [(3, True)] * 160
    assert len({*connections, rt._store.connection()}) == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_told_to_open_the_file_itself(rt, path):
    """The parent's connection must not be used, nor closed, by the child; its own works."""
    rt.start(store_steps, 2, id="one")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        told = []
        for use in (
            lambda: rt.get("one").status,
            lambda: rt.resume("one"),
            lambda: rt.start(store_steps, 1, id="two"),
        ):
            try:
                use()
            except UsageError as error:
                told.append("fork" in str(error))
            except BaseException as error:
                told.append(repr(error))
        rt.close()
        own = dk.Runtime(path, clock=dk.ManualClock())
        told.append(own.get("one").status == "running")
        own.close()
        os.write(writing, json.dumps(told).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert json.load(pipe) == [True] * 4
    assert os.waitpid(child, 0)[1] == 0
    assert rt.resume("one").result == 1
    rt.close()
    with dk.Runtime(path, clock=dk.ManualClock()) as again:
        assert again.get("one").result == 1


START_AND_DIE = """
import os, signal, sys
from pathlib import Path
import durakit as dk
from durakit import files, runtime, schema, store

@dk.workflow
def store_steps(ctx, count):
    return count

watched = {files.__file__, runtime.__file__, *map(str, Path(store.__file__).parent.glob("*.py"))}
schema.fresh("system")
for moment in range(1, 2000, 3):
    folder = Path(sys.argv[1]) / f"{moment:04}"
    folder.mkdir()
    child = os.fork()
    if child == 0:
        left = moment
        def watch(frame, event, argument):
            global left
            if frame.f_code.co_filename not in watched:
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return watch
        rt = dk.Runtime(folder / "orders.db")
        sys.settrace(watch)
        rt.start(store_steps, 2, id="accepted")
        (folder / "returned").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    if (folder / "returned").exists():
        break
"""


@pytest.mark.real_kill
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_once_start_has_returned_recovery_lists_the_run_after_a_kill_l002(tmp_path):
    """Killed before, during and just after: absent only where no id was handed out."""
    script = tmp_path / "start.py"
    script.write_text(START_AND_DIE)
    work = tmp_path / "moments"
    work.mkdir()
    subprocess.run([sys.executable, script, work], check=True)
    folders = sorted(work.iterdir())
    assert len(folders) > 10
    listed = []
    for folder in folders:
        with dk.Runtime(folder / "orders.db", durability="process") as rt:
            rows = rt.recover_rows()
            listed.append(bool(rows))
            assert all(row[:3] == ("accepted", "driven", "completed") for row in rows)
    assert listed == sorted(listed), "once saved, it stays"
    assert not listed[0]
    assert (folders[-1] / "returned").exists()
    assert listed[-1]

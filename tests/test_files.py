"""The file before SQLite opens it: refused whole and untouched, or opened and right.

Every bad file here is a real one, and every refusal is followed by a look at its bytes: neither
the database nor its write-ahead log may have changed, and nothing may have appeared beside them.
"""

import os
import random
import shutil
import signal
import sqlite3
import stat
import struct
import subprocess
import sys

import pytest

import durakit as dk
from durakit import files
from durakit.errors import (
    DamagedFile,
    DurakitError,
    ForeignFile,
    MisplacedFile,
    NewerFile,
    StoreBusy,
    StoreError,
)
from durakit.mail import Mailbox
from durakit.schema import SCHEMA_VERSION
from durakit.store import Store

DONE = {"text": "the result of the finished run"}
HALF = {"replayed": True, "text": "the result of the run that is recovered"}

# ── the sample: one finished run, one to be recovered, one to be decided about ────────────────────


class World:
    """Where the tools of the sample send: set by each test that drives."""

    mailbox: Mailbox


@dk.tool(effect="idempotent")
def post_with_key(call, to):
    """A service that dedups."""
    World.mailbox.send(to, "Hello", "with a key", key=call.key)
    return {"replayed": True, "text": "the result of the run that is recovered"}


@dk.tool(effect="opaque")
def post_without_key(_call, to):
    """A service that does not: whoever sends twice delivers twice."""
    return World.mailbox.send(to, "Hello", "without a key")


@dk.workflow
def files_done(ctx):
    """A run that ends."""
    return ctx.step("think", lambda: DONE)


@dk.workflow
def files_half(ctx, to):
    """A run whose reply was lost; its key makes sending again harmless."""
    ctx.step("think", lambda: "x" * 300)
    return ctx.call(post_with_key, to, key="half:42")


@dk.workflow
def files_open(ctx, to):
    """A run whose reply was lost; nobody may guess."""
    ctx.step("think", lambda: "y" * 300)
    return ctx.call(post_without_key, to, key="open:42")


def runtime(path, later=0):
    """A Runtime on virtual time, ``later`` seconds after the start."""
    clock = dk.ManualClock(dk.ManualClock.START + later)
    return dk.Runtime(path, clock=clock, durability="process", world=World.mailbox)


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """The bytes of the sample file; the mailbox of ``World`` holds its two mails."""
    World.mailbox = Mailbox(tmp_path_factory.mktemp("world"), clock=dk.ManualClock(), latency=0)
    path = tmp_path_factory.mktemp("sample") / "orders.db"
    with runtime(path) as rt:
        rt.run(files_done, id="done")
        rt.run(files_half, "a@x", id="half", crash=dk.CrashAt("post_with_key", "effect_done"))
        rt.run(files_open, "b@x", id="open", crash=dk.CrashAt("post_without_key", "effect_done"))
    assert len(World.mailbox.effects()) == 2
    assert not path.with_name("orders.db-wal").exists()
    yield path.read_bytes()
    World.mailbox.close()


def snapshot(folder):
    """Every file in ``folder`` with its bytes."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def assert_refused(path, kind):
    """Opening ``path`` raises ``kind``, and everything beside it is as it was."""
    before = snapshot(path.parent)
    with pytest.raises(kind):
        dk.Runtime(path)
    assert snapshot(path.parent) == before


# ── refused, byte for byte ───────────────────────────────────────────────────────────────────────


def test_an_empty_file_is_damage_and_never_a_new_store_l013(tmp_path):
    """Zero bytes are what a crash of somebody's makes; a fresh start would hide it."""
    path = tmp_path / "orders.db"
    path.write_bytes(b"")
    assert_refused(path, DamagedFile)


def test_a_file_cut_off_anywhere_is_refused_and_untouched_l013(tmp_path, sample):
    """Every length up to the header's end, and every half kilobyte after it, and one byte less."""
    path = tmp_path / "orders.db"
    lengths = [*range(0, 102, 3), *range(512, len(sample), 512), len(sample) - 1]
    for length in lengths:
        path.write_bytes(sample[:length])
        assert_refused(path, DamagedFile)


def test_a_flipped_byte_is_refused_or_found_or_harmless_l013(tmp_path, sample):
    """No single flipped bit changes a result, sends a mail or makes a saved run a new one."""
    chance = random.Random(20260101)
    used = [place for place, byte in enumerate(sample) if byte and place >= 100]
    places = [*range(100), *chance.sample(used, 700)]
    (tmp_path / "orders.db").write_bytes(sample)
    assert judge(tmp_path / "orders.db", sample, None) == "harmless"
    tally = dict.fromkeys(("refused", "found", "harmless"), 0)
    for number, place in enumerate(places):
        folder = tmp_path / str(number)
        folder.mkdir()
        damaged = bytearray(sample)
        damaged[place] ^= 1 << chance.randrange(8)
        path = folder / "orders.db"
        path.write_bytes(damaged)
        tally[judge(path, damaged, place)] += 1
        shutil.rmtree(folder)
    assert len(World.mailbox.effects()) == 2
    assert min(tally.values()) > 20, tally


def judge(path, content, place):
    """Open, recover, read everything: each answer is the right one or an error."""
    try:
        rt = runtime(path, later=100)  # the killed drivers' leases are over
    except StoreError:
        assert snapshot(path.parent) == {path.name: content}, f"byte {place}: not left as it was"
        return "refused"
    found = 0
    with rt:
        try:
            table = rt.recover_rows()
        except DurakitError:
            return "found"
        found += sum(line[1] == "error" for line in table)
        for workflow, arguments, id_, expected in (
            (files_done, (), "done", DONE),
            (files_half, ("a@x",), "half", HALF),
            (files_open, ("b@x",), "open", None),
        ):
            try:
                run = rt.run(workflow, *arguments, id=id_)
                assert run.existed, f"byte {place}: {id_} is taken for a new run"
                result = run.result
                assert result == expected, f"byte {place}: {id_} gives {result!r}"
                run.history()
            except DurakitError:
                found += id_ != "open"
            assert len(World.mailbox.effects()) == 2, f"byte {place}: {id_} sends again"
    return "found" if found else "harmless"


def test_a_text_file_is_foreign(tmp_path):
    """Whatever it is, it is not ours."""
    path = tmp_path / "orders.db"
    path.write_text("id,amount\n1,20\n" * 100)
    assert_refused(path, ForeignFile)


def test_another_programs_database_is_foreign(tmp_path):
    """SQLite would open it gladly; the application id says whose it is."""
    path = tmp_path / "orders.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE run (id TEXT)")
    other.commit()
    other.close()
    assert_refused(path, ForeignFile)


def test_another_programs_database_with_an_unfinished_log_is_left_with_it(tmp_path):
    """Merely opening and closing it would replay and remove the other program's log."""
    path = tmp_path / "orders.db"
    other = sqlite3.connect(tmp_path / "live.db")
    other.execute("PRAGMA journal_mode = WAL")
    other.execute("CREATE TABLE run (id TEXT)")
    other.commit()
    shutil.copyfile(tmp_path / "live.db", path)
    shutil.copyfile(tmp_path / "live.db-wal", tmp_path / "orders.db-wal")
    other.close()
    assert (tmp_path / "orders.db-wal").stat().st_size
    assert_refused(path, StoreError)


@pytest.mark.parametrize(
    ("version", "kind"), [(SCHEMA_VERSION + 1, NewerFile), (2**31, NewerFile), (0, DamagedFile)]
)
def test_another_schema_version_is_refused(tmp_path, sample, version, kind):
    """A newer durakit's file is not read with an older one's eyes; schema 0 is nobody's."""
    path = tmp_path / "orders.db"
    path.write_bytes(sample[:60] + struct.pack(">I", version) + sample[64:])
    assert_refused(path, kind)


def test_a_database_of_ours_without_its_tables_is_damaged_l013(tmp_path):
    """Valid SQLite, our id, the wrong shape: not 'nothing here yet'."""
    path = tmp_path / "orders.db"
    bare = sqlite3.connect(path)
    bare.execute(f"PRAGMA application_id = {files.APPLICATION_ID}")
    bare.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    bare.execute("CREATE TABLE journal (place INTEGER PRIMARY KEY)")
    bare.commit()
    bare.close()
    assert_refused(path, DamagedFile)


def test_a_folder_a_missing_folder_and_a_file_as_folder_are_misplaced(tmp_path):
    """The message names what is wrong with the place, and nothing is made there."""
    (tmp_path / "here").mkdir()
    (tmp_path / "file").write_text("x")
    assert_refused(tmp_path / "here", MisplacedFile)
    with pytest.raises(MisplacedFile, match="does not exist"):
        dk.Runtime(tmp_path / "nowhere" / "orders.db")
    with pytest.raises(MisplacedFile):
        dk.Runtime(tmp_path / "file" / "orders.db")
    assert sorted(snapshot(tmp_path)) == ["file"]


def test_a_name_that_no_disk_takes_is_misplaced(tmp_path):
    """Too long, or with a zero character: refused with our error, not the system's."""
    for name in ("x" * 300, "a\0b"):
        with pytest.raises(MisplacedFile):
            dk.Runtime(tmp_path / name)
    assert snapshot(tmp_path) == {}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_is_refused_at_once(tmp_path):
    """Reading its header would wait for ever."""
    os.mkfifo(tmp_path / "orders.db")
    with pytest.raises(MisplacedFile, match="regular"):
        dk.Runtime(tmp_path / "orders.db")


@pytest.mark.skipif(getattr(os, "geteuid", lambda: 0)() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_misplaced(tmp_path):
    """No file can be made there, and our error says so."""
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(MisplacedFile):
            dk.Runtime(tmp_path / "orders.db")
    finally:
        tmp_path.chmod(0o700)
    assert snapshot(tmp_path) == {}


def test_a_log_without_its_database_is_damage_l013(tmp_path):
    """A new database beside it would throw away what the log still holds."""
    (tmp_path / "orders.db-wal").write_bytes(b"\x37\x7f\x06\x82" + bytes(100))
    assert_refused(tmp_path / "orders.db", DamagedFile)


# ── logs that a killed process left ──────────────────────────────────────────────────────────────

LEAVE_A_LOG = """
import os, signal, sys
import durakit as dk

@dk.workflow
def files_done(ctx):
    return ctx.step("think", lambda: {"text": "the result of the finished run"})

rt = dk.Runtime(sys.argv[1], clock=dk.ManualClock())
rt.run(files_done, id="done")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def killed(tmp_path):
    """A database whose whole content is still in its log, because its process was killed."""
    script = tmp_path / "leave.py"
    script.write_text(LEAVE_A_LOG)
    folder = tmp_path / "killed"
    folder.mkdir()
    path = folder / "orders.db"
    child = subprocess.run([sys.executable, script, path], check=False)
    assert child.returncode == -signal.SIGKILL
    assert path.with_name("orders.db-wal").stat().st_size
    return path


@pytest.mark.real_kill
def test_a_log_left_by_a_killed_process_opens_fine(killed, sample):
    """What was committed is there, although no process ever closed the file."""
    with runtime(killed) as rt:
        assert rt.get("done").result == DONE


@pytest.mark.real_kill
@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links here")
def test_a_link_to_the_file_finds_the_log_beside_the_file(killed, sample):
    """The log lies where the file lies, not where the link does."""
    link = killed.parent.parent / "link.db"
    link.symlink_to(killed)
    with runtime(link) as rt:
        assert rt.get("done").result == DONE


@pytest.mark.real_kill
def test_a_damaged_file_with_a_log_keeps_both_untouched_l013(killed):
    """The deeper check works on a private copy: neither file changes."""
    whole = killed.read_bytes()
    damages = {
        "no header": bytes(100) + whole[100:],
        "cut off": whole[: len(whole) // 2],
        "wrong page": whole[:4096] + bytes(4096 * 2) + whole[4096 * 3 :],
        "empty": b"",
    }
    for name, content in damages.items():
        killed.write_bytes(content)
        before = snapshot(killed.parent)
        with pytest.raises(StoreError):
            dk.Runtime(killed)
        assert snapshot(killed.parent) == before, name


# ── new files: private, and whole or not at all ──────────────────────────────────────────────────


def test_a_new_file_is_its_owners_only_and_says_whose_it_is(tmp_path):
    """Mode 0600 for the file and its log; id and version in the header before the first run."""
    path = tmp_path / "orders.db"
    old = os.umask(0)
    try:
        rt = dk.Runtime(path)
        rt.start(files_done, id="first")
    finally:
        os.umask(old)
    try:
        header = path.read_bytes()[:100]
        assert struct.unpack(">I", header[68:72]) == (files.APPLICATION_ID,)
        assert struct.unpack(">I", header[60:64]) == (SCHEMA_VERSION,)
        for name in ("orders.db", "orders.db-wal"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    finally:
        rt.close()
    assert sorted(snapshot(tmp_path)) == ["orders.db"]


KILL_WHILE_CREATING = """
import os, signal, sys
from pathlib import Path
from durakit import files
from durakit import schema
from durakit.store import Store

schema.fresh("system")
for moment in range(1, 200):
    folder = Path(sys.argv[1]) / f"{moment:03}"
    folder.mkdir()
    child = os.fork()
    if child == 0:
        left = moment
        def watch(frame, event, argument):
            global left
            if frame.f_code.co_filename != files.__file__:
                return None
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return watch
        sys.settrace(watch)
        files.create(folder / "orders.db", schema.fresh("system"))
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
"""


@pytest.mark.real_kill
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_killed_while_it_is_created_a_file_is_whole_or_not_there_l014(tmp_path):
    """Killed at every line of the creation: the name is free, or it is a store that works."""
    script = tmp_path / "create.py"
    script.write_text(KILL_WHILE_CREATING)
    work = tmp_path / "moments"
    work.mkdir()
    subprocess.run([sys.executable, script, work], check=True)
    moments = sorted(work.iterdir())
    there = [(folder / "orders.db").exists() for folder in moments]
    assert len(moments) > 20
    assert there == sorted(there), "once there, it stays"
    assert 0 < sum(there) < len(there)
    for folder in moments:
        for file in folder.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        with dk.Runtime(folder / "orders.db", durability="process") as rt:
            assert rt.start(files_done, id="first").status == "running"


def test_a_swap_that_fails_raises_and_writes_nothing_in_place_l014(tmp_path):
    """The draft goes again; no half file carries the name."""
    with pytest.raises(MisplacedFile):
        files.create(tmp_path / ("x" * 300), b"content" * 1000)
    assert snapshot(tmp_path) == {}
    kept = tmp_path / "orders.db"
    kept.write_bytes(b"the old whole value")
    files.create(kept, _fresh_bytes(tmp_path))
    assert snapshot(tmp_path) == {"orders.db": b"the old whole value"}


def _fresh_bytes(folder):
    """The content of a new store."""
    path = folder / "fresh.db"
    Store(path, clock_kind="system").close()
    content = path.read_bytes()
    path.unlink()
    return content


CREATE_TOGETHER = """
import os, sys
from pathlib import Path
import durakit as dk

@dk.workflow
def files_done(ctx):
    return 1

me, folder = sys.argv[1], Path(sys.argv[2])
print("ready", flush=True)
for line in sys.stdin:
    with dk.Runtime(folder / line.strip(), durability="process") as rt:
        rt.start(files_done, id=me)
    print("done", flush=True)
"""


def test_two_processes_that_create_one_file_at_once_share_it(tmp_path):
    """Thirty times: both open what one of them has made, and both their runs are in it."""
    script = tmp_path / "together.py"
    script.write_text(CREATE_TOGETHER)
    pair = [
        subprocess.Popen(
            [sys.executable, script, name, tmp_path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )
        for name in ("left", "right")
    ]  # fmt: skip
    for child in pair:
        assert child.stdout.readline() == "ready\n"
    names = [f"{number}.db" for number in range(30)]
    for name in names:
        for child in pair:
            child.stdin.write(name + "\n")
        for child in pair:
            assert child.stdout.readline() == "done\n"
    for child in pair:
        child.communicate()
        assert child.returncode == 0
    for name in names:
        with dk.Runtime(tmp_path / name) as rt:
            assert sorted(row.id for row in rt._store.list_runs(None)) == ["left", "right"]
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".durakit-")]


# ── a hiccup is not damage ───────────────────────────────────────────────────────────────────────

HOLD_THE_LOCK = """
import sqlite3, sys
lock = sqlite3.connect(sys.argv[1], isolation_level=None)
lock.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.readline()
lock.execute("ROLLBACK")
"""


def test_a_store_that_is_busy_twice_is_whole_afterwards_l016(tmp_path, sample):
    """Busy is told as busy; the bytes and the records are as they were."""
    path = tmp_path / "orders.db"
    path.write_bytes(sample)
    script = tmp_path / "hold.py"
    script.write_text(HOLD_THE_LOCK)
    with subprocess.Popen(
        [sys.executable, script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "held\n"
        for _ in range(2):
            store = Store(path, clock_kind="manual", wait=0.02)
            with pytest.raises(StoreBusy):
                store.add_command(store.find_run("default", "open"), "cancel", "{}", 0.0)
            store.close()
        child.communicate("go on\n")
    assert path.read_bytes() == sample
    with runtime(path) as rt:
        assert rt.get("done").result == DONE
        assert [row.id for row in rt._store.list_runs(None)] == ["done", "half", "open"]


OPEN_OFTEN = """
import sys
from durakit.store import Store
store = Store(sys.argv[1], clock_kind="manual", durability="process")
store.connection().execute("PRAGMA wal_autocheckpoint = 3")
run = store.find_run("default", "open")
print("ready", flush=True)
count = 0
while not sys.stdin.closed and count < 2000:
    store.add_command(run, "cancel", '{"by":"' + "x" * 500 + '"}', 0.0)
    count += 1
print("done", flush=True)
"""


def test_a_file_that_is_being_written_is_never_taken_for_damaged_l016(tmp_path, sample):
    """Opened again and again while another process writes and moves its log into the file."""
    path = tmp_path / "orders.db"
    path.write_bytes(sample)
    script = tmp_path / "write.py"
    script.write_text(OPEN_OFTEN)
    with subprocess.Popen(
        [sys.executable, script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "ready\n"
        opened = 0
        while child.poll() is None:
            Store(path, clock_kind="manual").close()
            opened += 1
    assert opened > 5
    store = Store(path, clock_kind="manual")
    run = store.find_run("default", "open")
    assert len(store.waiting_commands(run.run)) == 2000
    store.close()

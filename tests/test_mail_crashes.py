"""Many at once, killed at every point, and anything in any order: a key is one mail."""

import contextlib
import itertools
import json
import os
import signal
import sqlite3
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mailroom import (
    KEYED,
    MAIL,
    ManualClock,
    Stop,
    asked,
    asked_and_told,
    at,
    run_child,
    says,
    sent,
    stop,
)

from durakit.mail import FAULTS, POINTS, PROFILES, Fault, Mailbox, MailError

# ── at the same time ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", KEYED)
def test_fifty_threads_with_one_key_cause_one_effect(name, tmp_path):
    """Each gets the one result or 'in progress', over two mailboxes; no storage error comes out."""
    boxes = [Mailbox(tmp_path, profile=name, latency=0) for _ in range(2)]
    together = threading.Barrier(50)

    def send(number):
        together.wait()
        return asked(boxes[number % 2])

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(send, range(50)))
    profile = PROFILES[name]
    done = [answer for answer in answers if answer.status == 200]
    assert {answer.ids for answer in done} == {("email-1",)}
    waiting = [answer for answer in answers if answer.status != 200]
    assert all(says(answer, profile.in_progress) for answer in waiting)
    assert len(done) == 50 or profile.in_progress is not None
    assert sum(not answer.replayed for answer in done) == 1
    assert len(boxes[0].effects()) == 1
    assert [row["number"] for row in boxes[0].requests()] == list(range(1, 51))
    for box in boxes:
        box.close()


@pytest.mark.parametrize("name", ["idempotent", "stripe_v1", "emailit"])
def test_two_processes_with_one_key_after_another_cause_one_effect_each(name, tmp_path):
    """They start in an empty folder at once; each answer is the result or 'in progress'."""
    children = [
        run_child(
            """
            print("ready", flush=True)
            sys.stdin.readline()
            mailbox = Mailbox(sys.argv[1], profile=sys.argv[2], latency=0)
            answers = [asked(mailbox, f"k{n}") for n in range(40)]
            print(json.dumps([(answer.status, answer.ids) for answer in answers]))
            """,
            tmp_path,
            name,
        )
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [json.loads(child.communicate(timeout=20)[0]) for child in children]
    busy = PROFILES[name].in_progress
    for one, other in zip(*answers, strict=True):
        assert 200 in (one[0], other[0])
        for status, ids in (one, other):
            assert (status == 200 and len(ids) == 1) or (busy and status == busy.status)
        assert one[1] == other[1] or not (one[1] and other[1])
    mailbox = Mailbox(tmp_path)
    assert sorted(row["key"] for row in mailbox.effects()) == sorted(f"k{n}" for n in range(40))
    mailbox.close()


# ── the service is killed ─────────────────────────────────────────────────────────────────────────


#: Dies once at every point, each time in a child of its own and in a folder of its own.
KILLED_EVERYWHERE = """
    for point in POINTS:
        if os.fork():
            print(point, os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
            continue
        def hook(here, _key, point=point):
            if here == point:
                os.kill(os.getpid(), signal.SIGKILL)
            return "late" if point == "held" else None
        mailbox = Mailbox(sys.argv[1] + "/" + point, profile=sys.argv[2], clock=Clock())
        mailbox.listen(hook)
        asked(mailbox)
        mailbox.replied(Request((ADA,), key=mailbox.profile.carry("k")))
        os._exit(0)
"""


@pytest.mark.real_kill
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
@pytest.mark.parametrize("name", PROFILES)
def test_a_service_killed_anywhere_answers_rightly_after_its_restart(name, tmp_path):
    """One effect where keys are known, wherever it died; without keys two, where it had acted."""
    profile = PROFILES[name]
    child = run_child(KILLED_EVERYWHERE, tmp_path, name)
    told = dict(line.split() for line in child.communicate(timeout=30)[0].splitlines())
    claims = profile.in_progress is not None
    for point in POINTS:
        assert told[point] == str(-signal.SIGKILL if point != "claimed" or claims else 0), point
        clock = ManualClock()
        mailbox = Mailbox(tmp_path / point, profile=profile, clock=clock, latency=0)
        had_acted = len(mailbox.effects())
        assert had_acted == (point in ("acted", "replied") or told[point] == "0"), point
        retry = asked(mailbox)
        if point == "claimed" and claims:
            assert says(retry, profile.in_progress)
            clock.advance(profile.takeover_after)
            retry = asked(mailbox)
        assert retry.status == 200
        assert retry.replayed == bool(had_acted and profile.dedups), point
        clock.advance(10)  # what was held is due
        sent_before = point in ("held", "acted", "replied") or told[point] == "0"
        assert len(mailbox.effects()) == (1 if profile.dedups else 1 + sent_before), point
        mailbox.close()


@pytest.mark.real_kill
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
@pytest.mark.parametrize("name", ["idempotent", "resend", "stripe_v2"])
def test_a_killed_service_leaves_the_same_rows_as_a_raised_crash(name, tmp_path):
    """SIGKILL in the hook and an exception in the hook cannot be told apart on disk."""
    run_child(KILLED_EVERYWHERE, tmp_path / "killed", name).communicate(timeout=30)
    for point in POINTS:
        raised = Mailbox(tmp_path / "raised" / point, profile=name, clock=ManualClock(), latency=0)
        raised.listen(
            lambda here, _key, point=point: stop() if here == point else "late" * (point == "held")
        )
        comes_by = point != "claimed" or PROFILES[name].in_progress is not None
        with pytest.raises(Stop) if comes_by else contextlib.nullcontext():
            asked_and_told(raised)
        raised.close()
        left = [
            list(sqlite3.connect(tmp_path / how / point / "mail.db").iterdump())
            for how in ("killed", "raised")
        ]
        assert left[0] == left[1], point


@pytest.mark.real_kill
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
@pytest.mark.parametrize("place", ["same folder", "new folder"])
def test_a_forked_and_killed_child_shares_the_world_safely(tmp_path, place):
    """Parent and child open their own connections; nothing committed is lost on either side."""
    mailbox = Mailbox(tmp_path / "a", clock=ManualClock())
    mailbox.send(*MAIL, key="parent")
    folder = tmp_path / ("a" if place == "same folder" else "b")
    pid = os.fork()
    if pid == 0:
        try:
            if mailbox._ledger._connection is not None:
                os._exit(2)  # a connection came along through the fork
            mailbox.fresh(folder)
            mailbox.send(*MAIL, key="child")
            mailbox.listen(lambda point, _key: point == "acted" and os.kill(os.getpid(), 9))
            mailbox.send(*MAIL, key="last")
        finally:
            os._exit(1)
    mailbox.send(*MAIL, key="meanwhile")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    mailbox.fresh(tmp_path / "a")
    mailbox.fresh(folder)
    keys = {row["key"] for row in mailbox.effects()}
    both = {"parent", "meanwhile"} if place == "same folder" else set()
    assert keys == {"child", "last"} | both
    assert sent(mailbox, *MAIL, key="last")["replayed"]
    mailbox.close()


# ── two laws of keys ──────────────────────────────────────────────────────────────────────────────


WINDOW = 10.0


KEPT_PROMISES = sorted(set(FAULTS) - {"key_forgotten"})  # that one breaks the law on purpose


ACTS = st.one_of(
    st.tuples(
        st.just("send"),
        st.sampled_from("ab"),
        st.sampled_from(
            [None, *KEPT_PROMISES, "late hook", *(f"stop {p}" for p in ("received", "acted"))]
        ),
        st.sampled_from([0.0, 0.01, 1.0, 4.0, 25.0]),
    ),
    st.tuples(st.just("advance"), st.sampled_from([0.5, 3.0, 5.0, 10.0, 40.0])),
    st.tuples(st.just("look")),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTS, max_size=12))
def test_at_most_one_effect_per_key_and_window(acts):
    """Whatever is sent, lost, late, refused, crashed or awaited, a window holds one mail a key."""
    with tempfile.TemporaryDirectory() as folder:
        clock = ManualClock(0.0)
        mailbox = Mailbox(
            folder, profile=replace(PROFILES["idempotent"], window=WINDOW), clock=clock
        )
        for act in acts:
            if act[0] == "advance":
                clock.advance(act[1])
            elif act[0] == "look":
                mailbox.effects()
            else:
                _send, key, trouble, seconds = act
                mailbox.plan = [
                    Fault(kind, key=key, seconds=seconds) for kind in FAULTS if kind == trouble
                ]
                mailbox.listen(
                    at(trouble.removeprefix("stop "), stop)
                    if str(trouble).startswith("stop")
                    else lambda _at, _key, late=trouble == "late hook": "late" if late else None
                )
                with contextlib.suppress(MailError, TimeoutError, Stop):
                    mailbox.send(*MAIL, key=key, timeout=2.0)
                assert not mailbox._ledger._connection.in_transaction
        clock.advance(100)
        effects = mailbox.effects()
        times = [row["time"] for row in effects]
        assert times == sorted(times)
        for key in "ab":
            mine = [row["time"] for row in effects if row["key"] == key]
            assert all(b - a >= WINDOW - 1e-9 for a, b in itertools.pairwise(mine))
        delivered = [row["id"] for row in mailbox.requests() if row["outcome"] == "delivered"]
        assert sorted(delivered) == sorted(mail["id"] for mail in mailbox.inbox())
        mailbox.close()


DEEDS = st.one_of(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from([None, *sorted(set(FAULTS) - {"key_forgotten"}), *POINTS]),
        st.sampled_from([0.0, 1.0, 59.0, 61.0]),
    ),
    st.sampled_from([1.0, 30.0, 60.0]),
)


@pytest.mark.parametrize("name", KEYED)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(acts=st.lists(DEEDS, min_size=1, max_size=8))
def test_whatever_happens_a_key_is_one_mail_and_is_never_stuck(name, acts, tmp_path):
    """Lost, late, refused, failed, overtaken, killed at any point: then a retry is answered.

    The two promises that a profile does not make are taken into account: a failure after the mail
    that releases the key is not planned, and a failure that is remembered may be the answer.
    """
    profile = PROFILES[name]
    clock = ManualClock()
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        mailbox = Mailbox(folder, profile=profile, clock=clock, latency=0)
        used = set()
        for act in acts:
            if isinstance(act, float):
                clock.advance(act)
                continue
            key, trouble, seconds = act
            if profile.remembers == "successes" and trouble == "error_after":
                trouble = None
            mailbox.plan = [Fault(trouble, key=key, seconds=seconds)] if trouble in FAULTS else []
            mailbox.listen(at(trouble, stop) if trouble in POINTS else None)
            used.add(key)
            with contextlib.suppress(Stop):
                asked(mailbox, key=key)
        mailbox.plan = []
        mailbox.listen(None)
        clock.advance((profile.takeover_after or 0) + 62)
        for key in used:
            answer = asked(mailbox, key=key)
            assert answer.status == 200 or (profile.remembers == "answers" and answer.replayed)
            mails = [row for row in mailbox.effects() if row["key"] == key]
            assert len(mails) == 1 or (answer.status == 500 and not mails)
        mailbox.close()

"""The assertion for other people's suites: it passes what is safe, and its failure tells all."""

import re
import subprocess
import sys
import textwrap

import pytest
import shop

import durakit as dk
from durakit.testing import assert_crash_safe


def failure(*args, **options):
    """The message with which the assertion fails."""
    with pytest.raises(AssertionError) as failed:
        dk.testing.assert_crash_safe(*args, **options)
    return str(failed.value)


def test_a_safe_workflow_passes_and_the_report_is_returned():
    """For further claims of one's own."""
    report = assert_crash_safe(shop.welcome, shop.ADA, world=shop.deduping, deadline=60)
    assert report.safe
    assert len(report.schedules) == 13


def test_a_failure_shows_the_bad_rows_the_seed_and_how_to_run_it_again():
    """Only bad rows; the seed that is shown does break it, in a sweep and by hand."""
    text = failure(shop.guess, shop.ADA, world=shop.silent)
    assert "guess is not crash-safe: 5 of 13 schedules" in text
    assert re.search(r"effect_done +2 +completed +duplicate", text)
    assert not re.search(r" safe$", text, re.MULTILINE)
    assert "smallest counterexample: late:request_sent@send_blindly" in text
    (seed,) = re.findall(r"only='([^']+)'", text)
    again = dk.sweep(shop.guess, shop.ADA, world=shop.silent, only=seed)
    assert again.schedules[0].verdict == "duplicate"
    assert f"dk.CrashAt.parse('{seed}')" in text


def test_two_crashes_are_tried_where_asked_for():
    """A pair is named by one seed, and only the sweep can run it again."""

    @dk.tool(effect="idempotent", retry=dk.Retry(attempts=5))
    def tires(call):
        key = call.key if call.attempt < 3 else None
        return shop.deduping.send("a@example.org", "Hi", "s", key=key)

    @dk.workflow
    def tiring(ctx):
        return ctx.call(tires, key="k")

    assert_crash_safe(tiring, world=shop.deduping)
    text = failure(tiring, world=shop.deduping, crashes=2)
    assert re.search(r"smallest counterexample: \S+\+\S*i2:\S+", text)
    assert "CrashAt.parse" not in text


def test_a_handover_may_be_forbidden():
    """Who wants no person asked says so, and learns where one would be."""
    assert_crash_safe(shop.shrug, shop.ADA, world=shop.silent)
    text = failure(shop.shrug, shop.ADA, world=shop.silent, allow_handover=False)
    assert "handed over as unknown" in text
    assert "smallest counterexample: intent_saved@send_opaque" in text


def test_what_the_world_cannot_show_fails_unless_it_is_allowed():
    """A world without a hook proves nothing about the points that only it can tell."""
    deaf = shop.Deaf(shop.deduping)
    text = failure(shop.welcome, shop.ADA, world=deaf)
    assert "the world has no hook" in text
    assert_crash_safe(shop.welcome, shop.ADA, world=deaf, allow_unreachable=True)


def test_a_workflow_that_fails_without_a_crash_is_no_proof():
    """To fail again after a crash is not to survive it."""

    @dk.workflow
    def fails(ctx):
        raise ValueError("no")

    assert "does not end well without a crash: failed: ValueError: no" in failure(
        fails, world=shop.silent
    )


PROJECT = """
import durakit as dk
from durakit.mail import Mailbox

world = Mailbox()


@dk.tool(effect="idempotent")
def send(call, to):
    return world.send(to, "Hi", "there", key=call.key)


@dk.tool(effect="idempotent")
def send_without_the_key(call, to):
    return world.send(to, "Hi", "there")


@dk.workflow
def careful(ctx, to):
    return ctx.call(send, to, key=f"hi:{to}")


@dk.workflow
def careless(ctx, to):
    return ctx.call(send_without_the_key, to, key=f"hi:{to}")
"""

SUITE = """
import durakit as dk
import mailing


def test_careful():
    dk.testing.assert_crash_safe(mailing.careful, "ada@example.org", world=mailing.world)


def test_careless():
    dk.testing.assert_crash_safe(mailing.careless, "ada@example.org", world=mailing.world)
"""


def test_in_a_users_own_suite_it_passes_and_fails_as_any_assertion(tmp_path):
    """A real pytest run of a small project: one green, one red that names the crash."""
    (tmp_path / "mailing.py").write_text(PROJECT)
    (tmp_path / "test_mailing.py").write_text(textwrap.dedent(SUITE))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mailing.py"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "FAILED test_mailing.py::test_careless" in done.stdout
    assert "careless is not crash-safe" in done.stdout
    assert "smallest counterexample: " in done.stdout
    assert "durakit/testing.py" not in done.stdout  # the failure is shown where the user wrote it

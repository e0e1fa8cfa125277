"""Lesson 05 as a learner meets it: its parts, its numbers against the disk, its two exercises."""

import itertools
import math
import random
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import lesson_checks as checks
import pytest
from lesson_checks import cell_of, tagged, texts
from lesson_play import Names, Seen, ask, run_twice, seen_after_each_cell
from nbformat import NotebookNode

import durakit as dk
from durakit.lab import lesson05
from durakit.lab.backoff.jitter import exceeds, expected_attempts, moments
from durakit.lab.exercises import State

HERE = checks.LESSONS["05"]


def test_the_lesson_covers_its_section() -> None:
    """21.4's formula and its last half sentence: the total wait respects the deadline."""
    (title,) = tagged(HERE.read(), "title")
    assert "chapter 21.4" in title.source
    formula = cell_of(HERE.read(), "s1").source
    assert (
        r"\mathrm{Uniform}\left(0,\ \min\left(t_{max},\ t_0 \cdot 2^{n-1}\right)\right)" in formula
    )


# -- its numbers -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played() -> Seen:
    """After each cell: the names it leaves, the ledger, and every sleep of the virtual clock."""

    def look(_name: str, names: Names) -> dict[str, object]:
        told = {key: names[key] for key in ("rows", "seconds", "together", "spread", "rules")
                if key in names}  # fmt: skip
        if "mailbox" in names:
            mailbox = names["mailbox"]
            told |= {"mails": len(mailbox.inbox()), "requests": len(mailbox.requests()),
                     "sleeps": list(mailbox.clock.sleeps)}  # fmt: skip
        if "run" in names:
            told["waits"] = lesson05.drawn(names["run"])
        return told

    return seen_after_each_cell(HERE, look)


def waited(sleeps: list[float]) -> list[float]:
    """Sleeps of a clock without the halves of the mail service's own latency."""
    return [pytest.approx(seconds, abs=1e-3) for seconds in sleeps if seconds != 0.025]


@pytest.mark.parametrize("cell", ["none1", "full1"])
def test_the_waits_in_the_table_are_those_the_clock_slept(cell, played) -> None:
    """The journal is not believed: the clock kept a list of its own."""
    assert played[cell]["waits"] == waited(played[cell]["sleeps"])
    assert (played[cell]["mails"], played[cell]["requests"]) == (1, 4)


def test_the_drawn_waits_follow_the_chapters_formula(played) -> None:
    """Bound times draw, with the bound 1, 2, 4, from the seed in plain sight."""
    draws = random.Random(5)
    expected = [pytest.approx(bound * draws.random(), abs=1e-3) for bound in (1, 2, 4)]
    assert played["full1"]["waits"] == expected
    assert played["none1"]["waits"] == [1.0, 2.0, 4.0]


def test_a_floor_is_kept_and_nonsense_is_passed_over(played) -> None:
    """Seconds and date wait seven seconds; what is too far stops."""
    told = {row["Retry-After"]: row["wait"] for row in played["headers2"]["rows"]}
    assert list(told.values()) == ["7.000 s"] * 2 + ["0.623 s"] * 3 + [
        "none: deadline (would be 60.000 s)"
    ]


def test_the_stopped_run_slept_no_second_longer_than_its_last_attempt(played) -> None:
    """5.49 of 10 seconds, four requests, no mail, and no sleep after the fourth."""
    seen = played["down3"]
    assert round(seen["seconds"], 2) == 5.49
    assert (seen["requests"], seen["mails"]) == (4, 0)
    assert sum(seen["sleeps"]) == pytest.approx(seen["seconds"], abs=1e-4)
    assert "four and a half seconds left" in cell_of(HERE.read(), "e3").source


def test_the_explorer_draws_the_run_above_it(fresh: NotebookNode, played) -> None:
    """The same seed, the same waits; and the chance in the text is the exact one."""
    (shown,) = texts(cell_of(fresh, "explore3"))
    drawn = [float(number) for number in re.findall(r"(\d\.\d{3}) s  ◆", shown)]
    assert drawn == played["down3"]["waits"]
    chance = exceeds(dk.Retry(1.0, 8.0, 6), 5, 10.0)
    assert chance == Fraction(20191, 30720)
    assert f"exactly {chance} = 65.73 %" in shown
    assert "66 % are stopped by the deadline before attempt 6" in cell_of(HERE.read(), "e3b").source


def test_what_the_text_says_of_each_rule_is_what_the_simulation_gives(played) -> None:
    """No more success from a clamp than from a stop; the herd; the last chance; the overshoot."""
    rules = {row.rule: row for row in played["rules4"]["rules"]}
    assert round(100 * rules["clamp"].busiest) == 95
    assert abs(rules["clamp"].success - rules["stop"].success) < 0.01
    assert rules["clamp_reserve"].success > 0.95
    assert rules["clamp_reserve"].busiest > 0.9
    assert rules["truncate"].attempts > rules["clamp"].attempts + 1
    assert rules["overshoot"].past_deadline == 1.0
    assert rules["last_chance"].success > rules["stop"].success + 0.1
    assert rules["last_chance"].busiest < 0.1


def test_a_second_life_waits_the_rest_of_the_saved_wait(played) -> None:
    """The clock slept the remainder, 3.181 less the second between the lives; nothing anew."""
    sleeps = played["crash5"]["sleeps"]
    rest = [seconds for seconds in sleeps if seconds != 0.025]
    assert rest[2] == pytest.approx(3.181 - 1.0, abs=1e-3)
    assert (played["crash5"]["mails"], played["crash5"]["requests"]) == (1, 5)
    assert played["crash5"]["waits"][:3] == played["full1"]["waits"]


def test_the_herd_is_served_only_where_it_is_spread(played) -> None:
    """40 against 972 of 1,000, with about as many requests."""
    together, spread = played["herd6"]["together"], played["herd6"]["spread"]
    assert (together.served, spread.served) == (40, 972)
    assert 0.9 < spread.calls / together.calls < 1.1


def test_the_contest_has_the_order_that_the_text_tells() -> None:
    """No backoff: first, and three times the calls. Full: fewest calls. No jitter: slowest."""
    rows = {row["backoff"]: row for row in lesson05.contest(100).rows}
    calls = {name: int(row["calls"]) for name, row in rows.items()}
    seconds = {name: float(row["all done after"].split()[0]) for name, row in rows.items()}
    assert min(seconds, key=seconds.get) == "no backoff at all"
    assert max(seconds, key=seconds.get) == "no jitter"
    assert min(calls, key=calls.get) == "full jitter"
    assert calls["no backoff at all"] / calls["full jitter"] == pytest.approx(3, abs=0.1)


def test_a_budget_lets_ten_retries_pass() -> None:
    """100 calls are 100 requests in any case; without a budget each makes two more."""
    assert lesson05.hundred_calls(dk.Retry(attempts=3)) == 300
    shared = dk.Retry(attempts=3, budget=dk.RetryBudget(tokens=10))
    assert lesson05.hundred_calls(shared) == 110


def test_running_the_whole_lesson_twice_in_one_kernel_shows_the_same() -> None:
    """No cell depends on what an earlier run of the notebook has left."""
    run_twice(HERE, "rows")


# -- exercise 1: wait, or stop ---------------------------------------------------------------------


def right_answer(initial, cap, attempt, draw, remaining, retry_after=None):
    """The worked answer, written another way."""
    wait = draw * min(cap, math.ldexp(initial, min(attempt - 1, 1000)))
    if retry_after is not None and retry_after > wait:
        wait = retry_after
    return wait if wait < remaining else None


def variant(
    *,
    exponent=1,
    top=None,
    draws=None,
    stop=None,
    floor=max,
    order="floor first",
    last=60,
):
    """Return an answer with one fault, or, without any, a right one."""

    def next_wait(initial, cap, attempt, draw, remaining, retry_after=None):
        bound = (top or min)(cap, initial * 2.0 ** min(attempt - exponent, last))
        wait = draws(draw, bound) if draws else draw * bound
        if order == "deadline first" and wait >= remaining:
            return None
        if retry_after is not None:
            wait = floor(wait, retry_after)
        if order == "deadline first":
            return wait
        if stop:
            return stop(wait, remaining, bound)
        return None if wait >= remaining else wait

    return next_wait


def linear(initial, cap, attempt, draw, remaining, retry_after=None):
    """Grow by addition."""
    del remaining, retry_after
    return draw * min(cap, initial * attempt)


def cut_after_drawing(initial, cap, attempt, draw, remaining, retry_after=None):
    """Put the cap on the wait instead of on the window."""
    del remaining, retry_after
    return min(cap, draw * initial * 2 ** min(attempt - 1, 60))


def tired(initial, cap, attempt, draw, remaining, retry_after=None):
    """Do without a wait where a float would overflow."""
    if attempt > 1000:
        return 0.0
    return right_answer(initial, cap, attempt, draw, remaining, retry_after)


OWN = random.Random(1)

STOP_WRONG = {
    "its own draw": (
        variant(draws=lambda draw, bound: OWN.random() * bound),
        "it draws by itself",
    ),
    "always stop": (lambda *given: None, "A year is left"),
    "no jitter": (variant(draws=lambda draw, bound: bound), "that is the bound itself"),
    "one doubling too early": (variant(exponent=0), "already 2 s wide"),
    "equal jitter": (variant(draws=lambda d, bound: bound / 2 + d * bound / 2), "equal jitter"),
    "something else": (variant(draws=lambda draw, bound: draw + bound), "Yours are 1.0, 1.25"),
    "linear": (linear, "does the window double each time"),
    "no cap": (variant(top=lambda cap, bound: bound), "The cap of 8 s is missing"),
    "cap on the wait": (cut_after_drawing, "First min, then draw"),
    "another cap": (variant(top=lambda cap, b: min(cap / 2, b)), "capped at 8 s, so a draw of 0.5"),
    "clamp": (variant(stop=lambda wait, left, _: min(wait, left)), "That is clamping"),
    "no stop": (variant(stop=lambda wait, left, _: wait), "past the deadline. Return None"),
    "zero": (variant(stop=lambda w, left, _: 0 if w >= left else w), "stop means None"),
    "a word": (variant(stop=lambda w, left, _: "stop" if w >= left else w), "Yours says stop"),
    "stop by the bound": (
        variant(stop=lambda wait, left, bound: None if bound >= left else wait),
        "because the window (4 s) does not fit",
    ),
    "at the deadline": (
        variant(stop=lambda wait, left, _: None if wait > left else wait),
        "ends exactly at the deadline",
    ),
    "deaf": (variant(floor=lambda wait, _: wait), "comes back after 0.5 s"),
    "sum": (variant(floor=lambda wait, asked: wait + asked), "Yours adds the two"),
    "obedient": (variant(floor=lambda _, asked: asked), "does not replace it"),
    "deadline before floor": (variant(order="deadline first"), "Put the floor under the wait"),
    "overflow": (variant(last=10_000), "raises OverflowError"),
    "no wait when it overflows": (tired, "After attempt 5000 a draw of 0.5 waits 4 s; yours 0.0"),
    "a cut too low": (variant(last=2), "capped at 8 s, so a draw of 0.5"),
}


@pytest.mark.parametrize("answer", [right_answer, variant()], ids=["ldexp", "power"])
def test_a_right_wait_passes_at_every_boundary_and_by_the_exact_law(answer, tmp_path) -> None:
    """A table shows the share that stopped beside the fraction."""
    note = ask(lesson05.stop_rule, tmp_path, answer)
    assert note.mark == State.PASS
    assert [row["exact"] for row in note.table.rows] == ["3/4", "3/4", "1/4", "3/4"]
    assert note.table.rows[0]["stopped"] == "750 of 1000"


@pytest.mark.parametrize("name", STOP_WRONG)
def test_a_known_wrong_wait_is_told_what_is_wrong_with_it(name: str, tmp_path: Path) -> None:
    """Each gets its own message and the first hint."""
    answer, message = STOP_WRONG[name]
    note = ask(lesson05.stop_rule, tmp_path, answer)
    assert note.mark == State.TRY_AGAIN
    assert message in note.text()
    assert note.lines[-1].startswith("Hint 1 of 4")
    others = {other for _, other in STOP_WRONG.values() if other != message}
    assert not [other for other in others if other in note.text()]


def test_what_is_no_function_or_raises_is_told(tmp_path: Path) -> None:
    """The result instead of the function, too few parameters, an error, and the three dots."""

    def stub(initial, cap, attempt, draw, remaining, retry_after=None):
        bound = ...
        return draw * bound

    def careless(*given):
        raise KeyError("bound")

    told = [(0.5, "This is a float"), (lambda draw: draw, "TypeError"), (careless, "KeyError")]
    for answer, message in told:
        assert message in ask(lesson05.stop_rule, tmp_path, answer).text()
    assert ask(lesson05.stop_rule, tmp_path, stub).mark == State.TODO


def test_a_wait_that_is_right_at_the_boundaries_only_fails_by_the_law(tmp_path: Path) -> None:
    """Draws that no boundary looks at are looked at by the thousand."""

    def sly(initial, cap, attempt, draw, remaining, retry_after=None):
        if draw == 0.999:
            return 0.0
        return right_answer(initial, cap, attempt, draw, remaining, retry_after)

    note = ask(lesson05.stop_rule, tmp_path, sly)
    assert note.mark == State.TRY_AGAIN
    assert "749 of 1000 even draws stop. The law says 3/4." in note.text()


def test_the_checkers_boundaries_are_those_of_the_runtime() -> None:
    """What passes the exercise waits and stops as ``Retry`` itself does."""
    policy = dk.Retry(1.0, 8.0)
    for attempt, draw, asked in itertools.product(range(1, 8), (0.0, 0.3, 0.999), (None, 2.5)):
        wait = policy.wait(attempt, draw, retry_after=asked)
        assert right_answer(1.0, 8.0, attempt, draw, wait, asked) is None
        assert right_answer(1.0, 8.0, attempt, draw, wait + 1e-9, asked) == pytest.approx(wait)


# -- exercise 2: a policy --------------------------------------------------------------------------

RIGHT_POLICIES = [
    dk.Retry(0.5, 3.0, 7),
    dk.Retry(0.25, 2.0, 10),
    dk.Retry(1.0, 2.0, 8),
    dk.Retry(0.5, 2.0, 7, jitter="equal"),
]


@pytest.mark.parametrize("policy", RIGHT_POLICIES, ids=repr)
def test_a_policy_that_keeps_all_three_numbers_passes(policy, tmp_path: Path) -> None:
    """By the exact law, and not only by the checker's word."""
    assert ask(lesson05.choose_policy, tmp_path, policy).mark == State.PASS
    waits = policy.attempts - 1
    assert exceeds(policy, waits, 10.0) <= Fraction(1, 20)
    assert expected_attempts(policy, 10.0) >= 6
    assert moments(policy, waits).mean >= 6


POLICY_WRONG = {
    "a number": (7, "This is an int"),
    "the default": (dk.Retry(), "too few chances"),
    "no jitter": (dk.Retry(0.5, 2.0, 7, jitter="none"), "they all come back together"),
    "decorrelated": (dk.Retry(0.5, 2.0, 7, jitter="decorrelated"), "nobody has a formula"),
    "too long": (dk.Retry(1.0, 8.0, 7), "would be stopped by the deadline before their last"),
    "a hammer": (dk.Retry(0.1, 0.5, 8), "a hammer, and no patience"),
    "too many": (dk.Retry(0.5, 2.0, 20), "would send 20,000 requests"),
}


@pytest.mark.parametrize("name", POLICY_WRONG)
def test_a_known_wrong_policy_is_told_what_is_wrong_with_it(name: str, tmp_path: Path) -> None:
    """Each gets its own message and the first hint."""
    policy, message = POLICY_WRONG[name]
    note = ask(lesson05.choose_policy, tmp_path, policy)
    assert note.mark == State.TRY_AGAIN
    assert message in note.text()
    assert note.lines[-1].startswith("Hint 1 of 4")
    others = {other for _, other in POLICY_WRONG.values() if other != message}
    assert not [other for other in others if other in note.text()]


def test_the_borders_of_the_policy_check_are_what_it_says(tmp_path: Path) -> None:
    """Exactly six seconds of patience are enough, a little less are not."""
    enough = dk.Retry(2.0, 2.0, 7)
    assert moments(enough, 6).mean == 6
    shown = ask(lesson05.choose_policy, tmp_path, enough).text()
    assert re.search(r"mean of all waits +6\.00 s +at least 6 s +✓", shown)
    less = ask(lesson05.choose_policy, tmp_path, dk.Retry(1.99, 1.99, 7)).text()
    assert re.search(r"mean of all waits +5\.97 s +at least 6 s +✗", less)


def test_no_policy_yet_is_no_wrong_answer(tmp_path: Path) -> None:
    """The three dots ask."""
    assert ask(lesson05.choose_policy, tmp_path, ...).mark == State.TODO


# -- the whole lesson ------------------------------------------------------------------------------


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple]:
    """A busy mail service and its runtime, closed afterwards."""
    mailbox, runtime = lesson05.busy_service(tmp_path / "shop", 2, retry_after=7.0)
    yield mailbox, runtime
    runtime.close()
    mailbox.close()


def test_a_busy_service_refuses_as_often_as_it_is_told_and_says_when(service) -> None:
    """Two refusals with their header, then one delivery."""
    mailbox, _ = service
    for _ in range(2):
        with pytest.raises(Exception, match="429") as caught:
            mailbox.send("ada@example.org", "s", "b", key="k")
        assert caught.value.retry_after == 7.0
    mailbox.send("ada@example.org", "s", "b", key="k")
    assert len(mailbox.effects()) == 1

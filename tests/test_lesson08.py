"""Lesson 08 as a learner meets it: its parts, its counts against the ledger, its exercise."""

import re
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import lesson_checks as checks
import pytest
from lesson_checks import cell_of, tagged
from lesson_play import Names, Seen, ask, hold, mails_after_each_cell, run_twice

import durakit as dk
from durakit.lab import lesson08
from durakit.lab.exercises import Note, State
from durakit.lab.lesson08 import BOSS, LineCount, draw_code
from durakit.mail import Mailbox

HERE = checks.LESSONS["08"]
ADA = "ada@example.org"


# -- its numbers -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played() -> Seen:
    """After each cell: the ledger's word, the run's status, the counts as text."""

    def look(name: str, names: Names, mailbox: Mailbox) -> dict[str, object]:
        run = names["run"]
        return {
            "Ada": len(mailbox.inbox(to=ADA)),
            "boss": len(mailbox.inbox(to=BOSS)),
            "bodies": [mail["body"] for mail in mailbox.inbox()],
            "status": run.status if name not in ("places2", "r2") else None,
            "count": names["count"].text(),
            "rows": list(names.get("rows", ())),
            "reason": run.reason if name == "new5" else "",
        }

    return mails_after_each_cell(HERE, look)


@pytest.mark.parametrize(
    ("text", "says", "cell", "facts"),
    [
        ("title", "the mail goes out once", "lives1", {"Ada": 1}),
        ("e1", "The ledger counts one mail", "lives1", {"requests": ["delivered", "replayed"]}),
        ("e3", "two mails went out", "wait3", {"boss": 2, "Ada": 1}),
        ("s3", "nothing crashes at all", "wait3", {"status": "completed"}),
        ("e4", "the tool ran again", "lives4", {"requests": ["delivered", "replayed"]}),
        ("e5", "it runs nothing", "new5", {"status": "needs_decision", "Ada": 0}),
        ("e5", "The way out", "again5",
         {"status": "completed", "Ada": 1, "bodies": ["Hello Ada (friendly)"]}),
    ],
)  # fmt: skip
def test_a_number_in_the_text_is_the_ledgers(text, says, cell, facts, played) -> None:
    """What the lesson claims in words is what the mail service's own record says there."""
    hold(HERE, played, text, says, cell, facts)


def counts(played: dict[str, dict[str, object]], cell: str) -> dict[str, tuple[int, ...]]:
    """Return the counts of each line in a cell's table, by the line's first words."""
    rows = re.findall(r"^\s*(\S.*?) {3,}(\d+) +(\d+)$", played[cell]["count"], flags=re.MULTILINE)
    return {line[:12]: (int(one), int(two)) for line, one, two in rows}


def test_the_second_column_is_what_the_text_walks_through(played) -> None:
    """Plain lines again, the step not, the tool again, and no further mail."""
    table = counts(played, "lives1")
    assert table == {
        "to = custome": (1, 1),
        "draft = ctx.": (1, 1),
        'key = f"welc': (1, 1),
        "reply = ctx.": (1, 1),
        "return reply": (0, 1),
        'return f"Hel': (1, 0),
        "return mailb": (1, 1),
        "the ledger: ": (1, 0),
    }


def test_a_machine_runs_nothing_of_a_finished_transition_again(played) -> None:
    """The lines of the first state have no count in the second life."""
    table = counts(played, "lives4")
    assert table["text = ctx.s"] == (1, 0)
    assert table["return Lette"] == (1, 0)
    assert table["if state.sta"] == (2, 1)
    assert table["reply = ctx."] == (1, 1)
    assert table["the ledger: "] == (1, 0)


def test_what_runs_again_depends_on_the_point(played) -> None:
    """The table of section 2, row by row; the ledger's column is one throughout."""
    rows = played["places2"]["rows"]
    assert [tuple(row.values()) for row in rows] == [
        ("step_done", 2, 2, 1, 1),
        ("step_saved", 2, 1, 1, 1),
        ("intent_saved", 2, 1, 1, 1),
        ("effect_done", 2, 1, 2, 1),
        ("result_saved", 2, 1, 1, 1),
    ]


def test_the_mismatch_names_both_sides(played) -> None:
    """What the journal has, and what the code asks for."""
    assert "is step 'tone'" in played["new5"]["reason"]
    assert "asks for step 'draft'" in played["new5"]["reason"]


def test_within_an_unfinished_transition_a_step_runs_again(tmp_path: Path) -> None:
    """What section 4 says without showing."""
    assert "everything may run again" in cell_of(HERE.read(), "e4").source
    names: dict[str, object] = {}

    def look(name: str, seen: dict[str, object]) -> None:
        names.update(seen)

    checks.play(HERE, look)
    mailbox, runtime = lesson08.new_world(tmp_path / "again", profile="idempotent")
    names["send_email"].function.__globals__["mailbox"] = mailbox
    count = LineCount(mailbox, names["by_state"], names["write_draft"])
    crash = dk.CrashAt("draft", "step_done")
    with count.life("both"):
        runtime.run(names["by_state"], names["Letter"](), id="again", crash=crash)
        runtime.recover()
    assert count.times("text = ctx.step") == 2
    assert count.times("Hello") == 2
    assert len(mailbox.inbox()) == 1
    mailbox.close()
    runtime.close()


def test_running_the_whole_lesson_twice_in_one_kernel_shows_the_same() -> None:
    """No cell depends on what an earlier run of the notebook has left."""
    run_twice(HERE, "rows", "count")


# -- the line counter ------------------------------------------------------------------------------


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterator[Mailbox]:
    """A mail service that knows keys, where lesson08's checker may borrow it."""
    box = lesson08.new_mailbox(tmp_path / "shop", profile="idempotent")
    yield box
    box.close()


def three_lines(times):
    """Count to three, some times."""
    total = 0

    for number in range(times):
        total += number
    return total


def test_lines_are_counted_by_python_itself(mailbox: Mailbox) -> None:
    """A loop's line as often as it begins; blank lines and the head have no number."""
    count = LineCount(mailbox, three_lines)
    with count.life("one"):
        three_lines(3)
    with count.life("two"):
        three_lines(1)
    assert count.times("total += number") == 4
    assert count.times("return total") == 2
    lines = count.text().splitlines()
    assert next(line for line in lines if "def three" in line).endswith("(times):")
    assert lines[-1].split()[-2:] == ["0", "0"]


def test_the_counter_gives_the_trace_back_even_after_an_error(mailbox: Mailbox) -> None:
    """A debugger or a coverage tool that was there before is there afterwards."""
    before = sys.gettrace()
    count = LineCount(mailbox, three_lines)
    with pytest.raises(TypeError), count.life("one"):
        three_lines("many")
    assert sys.gettrace() is before
    assert count.times("total = 0") == 1


def test_a_line_that_is_not_named_clearly_is_refused(mailbox: Mailbox) -> None:
    """A number that could mean two lines is worse than none."""
    count = LineCount(mailbox, three_lines)
    with pytest.raises(ValueError, match="3 lines hold 'total'"):
        count.times("total")
    with pytest.raises(ValueError, match="0 lines hold"):
        count.times("nothing")


def hostile():
    """Markup in a line of code."""
    return "<script>alert('x')</script>"


def test_hostile_code_stays_text(mailbox: Mailbox) -> None:
    """Source and the names of lives go through the one escaping helper; blanks are kept."""
    count = LineCount(mailbox, hostile)
    with count.life("<b>one</b>"):
        hostile()
    shown = count.html()
    assert "<script>" not in shown
    assert "<b>one</b>" not in shown
    assert "white-space: pre" in shown


# -- its exercise ----------------------------------------------------------------------------------


def by_id(word: str) -> Callable[[dict], str]:
    """Return the rule for a key: a word, and the customer's id."""
    return lambda customer: f"{word}:{customer['id']}"


ASK, VOUCHER = by_id("ask"), by_id("voucher")


def any_key(customer: dict) -> str:
    """Return another key each time."""
    del customer
    return uuid.uuid4().hex


def answer(
    shop: Mailbox,
    *,
    code: str = "step",
    ask: str = "call",
    knows: bool = True,
    effect: str = "idempotent",
    ask_key: Callable[[dict], str] = ASK,
    key: Callable[[dict], str] = VOUCHER,
    waits: bool = True,
    listens: bool = True,
    asks_late: bool = False,
    draws_again: bool = False,
):
    """Return an answer to the exercise: the worked one, or one with these faults."""

    @dk.tool(effect=effect)
    def send_mail(call, to, subject, body):
        return shop.send(to, subject, body, key=call.key if knows else None)

    def question(ctx, customer, drawn):
        if ask == "call":
            ctx.call(send_mail, BOSS, "May I?", drawn, key=ask_key(customer))
        elif ask == "step":
            ctx.step("ask", shop.send, BOSS, "May I?", drawn)
        elif ask == "bare":
            shop.send(BOSS, "May I?", drawn)

    @dk.workflow(name="voucher")
    def voucher(ctx, customer):
        drawn = ctx.step("code", draw_code) if code == "step" else draw_code()
        if not asks_late:
            question(ctx, customer, drawn)
        said = ctx.wait_for("approval") if waits else "yes"
        if asks_late:
            question(ctx, customer, drawn)
        if draws_again:
            drawn = ctx.step("again", draw_code)
        if said == "yes" or not listens:
            ctx.call(send_mail, customer["email"], "Your voucher", drawn, key=key(customer))

    return voucher


def check(tmp_path: Path, *given: object) -> Note:
    """Check an answer with a progress of its own."""
    return ask(lesson08.safe_to_replay, tmp_path, *given)


@pytest.mark.parametrize(
    "keys",
    [{}, {"ask_key": by_id("may I"), "key": lambda c: f"v/{c['email']}"}],
    ids=["the worked answer", "other keys"],
)
def test_a_right_answer_passes_at_every_crash(keys, tmp_path: Path, mailbox: Mailbox) -> None:
    """One question and one voucher, before the answer and after it; the mailbox comes back."""
    home = mailbox.folder
    note = check(tmp_path, answer(mailbox, **keys), mailbox)
    assert note.mark == State.PASS
    places = [row["stopped at"] for row in note.table.rows]
    assert len(places) == 21
    assert "effect_done of send_mail, before the answer" in places
    assert "effect_done of send_mail, after the answer" in places
    assert mailbox.folder == home
    assert mailbox.inbox() == []


WRONG = {
    "a bare question": ({"ask": "bare"}, "The workflow was entered twice"),
    "a question in a step": ({"ask": "step"}, "has no call for one of them"),
    "a code in a plain line": ({"code": "bare"}, "asks for the same call with other content"),
    "a code drawn again": ({"draws_again": True}, "The code was drawn a second time"),
    "no wait": ({"waits": False}, "ends without waiting"),
    "no question": ({"ask": "never"}, "nobody has asked"),
    "a deaf ear": ({"listens": False}, "The boss said no, and Ada has a voucher"),
    "a random key": ({"ask_key": any_key}, "something else than it had saved"),
    "one key for both": ({"ask_key": by_id("voucher")}, "workflow failed: ArgumentsDiffer"),
    "one key for all": ({"key": lambda c: "voucher"}, "2 question(s) for the boss in all, and 0"),
    "one question for all": ({"ask_key": lambda c: "ask"}, "1 question(s) for the boss"),
    "a key not told": ({"knows": False}, "the service took it for a new one"),
    "an opaque tool": ({"effect": "opaque"}, "the service can neither be asked"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_known_wrong_answer_is_told_what_is_wrong_with_it(
    name: str, tmp_path: Path, mailbox: Mailbox
) -> None:
    """Each gets its own message and the first hint."""
    faults, message = WRONG[name]
    note = check(tmp_path, answer(mailbox, **faults), mailbox)
    assert note.mark == State.TRY_AGAIN
    assert message in note.text()
    assert note.lines[-1].startswith("Hint 1 of 5")
    others = [other for _, other in WRONG.values() if other != message]
    assert not [other for other in others if other in note.text()]


def test_a_question_after_the_wait_is_seen(tmp_path: Path, mailbox: Mailbox) -> None:
    """It is the same to the boss as no question: the run waits, and he knows of nothing."""
    note = check(tmp_path, answer(mailbox, asks_late=True), mailbox)
    assert "the boss has no mail" in note.text()


def test_a_random_key_after_the_answer_is_found_by_a_crash_only(
    tmp_path: Path, mailbox: Mailbox
) -> None:
    """Without a crash all is well, so the crashes after the answer are really tried."""
    note = check(tmp_path, answer(mailbox, key=any_key), mailbox)
    assert note.mark == State.TRY_AGAIN
    assert "after the answer" in note.lines[0]


def test_what_is_no_workflow_is_told(tmp_path: Path, mailbox: Mailbox) -> None:
    """The tool, a text, a missing mailbox, too few parameters, three dots."""

    @dk.tool
    def post(call, to):
        return to

    @dk.workflow(name="short")
    def short(ctx):
        ctx.step("a", draw_code)

    @dk.workflow(name="stub")
    def stub(ctx, customer):
        return ...

    told = [
        (post, mailbox, "handed over the tool"),
        ("voucher", mailbox, "This is a str"),
        (answer(mailbox), "shop", "The second thing"),
        (short, mailbox, "called with ctx and one customer"),
    ]
    for workflow, box, message in told:
        assert message in check(tmp_path, workflow, box).text()
    assert check(tmp_path, stub, mailbox).mark == State.TODO


def test_the_lesson_covers_its_section() -> None:
    """21.7: its title says so."""
    (title,) = tagged(HERE.read(), "title")
    assert "chapter 21.7" in title.source

"""Lesson 06 as a learner meets it: its parts, its numbers against the ledger, its exercises."""

import contextlib
from pathlib import Path

import lesson_checks as checks
import pytest
from lesson_checks import cell_of, tagged, texts
from lesson_play import Names, Seen, ask, hold, run_twice, seen_after_each_cell
from nbformat import NotebookNode

import durakit as dk
from durakit.lab import lesson06
from durakit.lab.exercises import State

HERE = checks.LESSONS["06"]


def test_the_lesson_covers_its_sections() -> None:
    """21.5, and the mistake of 21.8: its title says so."""
    (title,) = tagged(HERE.read(), "title")
    assert "chapter 21.5 (and one mistake of 21.8)" in title.source


# -- its numbers -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played() -> Seen:
    """After each cell: the ledger's word, the run's status, what the journal says of its call."""

    def look(name: str, names: Names) -> dict[str, object] | None:
        run = names.get("run")
        if run is None:
            return None
        box = names["mailbox"] if name in ("left4", "goes_on4") else names["mail"].mailbox
        kept = {word: names[word] for word in ("static", "inherited", "table") if word in names}
        return kept | {
            "status": run.status,
            "outcomes": list(run.operations()["outcome"]),
            "mails": len(box.inbox()),
            "requests": len(box.requests()),
            "entries": list(run.history()["kind"]),
            "intents": list(run.history().query("kind == 'intent'")["payload"]),
            "rows": list(names.get("rows", ())),
        }

    return seen_after_each_cell(HERE, look)


@pytest.mark.parametrize(
    ("text", "says", "cell", "facts"),
    [
        ("e3", "nothing was sent again", "late3",
         {"status": "needs_decision", "outcomes": ["unknown"], "mails": 1, "requests": 1}),
        ("e3b", "The run is cancelled, the second mail was never begun", "cancel3",
         {"status": "cancelled", "outcomes": ["completed"], "mails": 1, "requests": 1}),
        ("e3c", "at second 45 the mail was found", "ask3",
         {"status": "completed", "outcomes": ["completed"], "mails": 1, "requests": 1}),
        ("q4b", "and *unknown*", "left4",
         {"status": "needs_decision", "outcomes": ["unknown"], "mails": 0, "requests": 0}),
        ("e4", "with one request and one mail", "goes_on4",
         {"status": "completed", "outcomes": ["completed"], "mails": 1, "requests": 1}),
    ],
)  # fmt: skip
def test_a_number_in_the_text_is_the_ledgers(text, says, cell, facts, played) -> None:
    """What the lesson claims in words is what the world's own record says at that place."""
    hold(HERE, played, text, says, cell, facts)


def test_the_numbers_of_the_first_picture_are_those_of_the_text(played) -> None:
    """Begun at 25 of 30, ended at 35; the session at 70; the last mail ten seconds late."""
    static, words = played["end"]["static"], cell_of(HERE.read(), "e1").source
    third, last = static.calls[2], static.calls[-1]
    assert "It begins at second 25" in words
    assert "the turn ends at 35" in words
    assert "the session is at 70" in words
    assert (third.begins, third.ends, static.ended) == (25, 35, 70)
    assert "Ten seconds later `mail 2.3` went out" in words
    assert (last.name, last.lands - static.budgets.session) == ("mail 2.3", 10)


def test_the_cut_call_was_shortened_by_its_turn(played) -> None:
    """The intent says 10 asked, 5 given, the turn's."""
    (intent,) = played["cut3"]["intents"]
    assert intent["shortened"] == {"asked": 10.0, "to": 5.0, "level": "turn", "name": "answer"}
    assert played["late3"]["entries"].count("intent") == 1


def test_the_abandoned_tool_was_attempted_once_and_its_late_reply_settled_it(played) -> None:
    """Three attempts were allowed; one intent is in the journal, and a late reply."""
    entries = played["goes_on4"]["entries"]
    assert (entries.count("intent"), entries.count("late_reply")) == (1, 1)


def test_the_table_of_restarts_is_the_smaller_of_two_numbers(played) -> None:
    """6 s saved; the end is 6 s ahead of the crash: later 3 s, an hour back, an hour ahead."""
    table = played["end"]["table"]
    moved = table["wall clock moved"]
    assert table["before"].tolist() == [6.0] * 3
    assert table["after"].tolist() == [max(0.0, min(6.0, 6.0 - jump)) for jump in moved]
    assert table["run"].tolist() == ["completed", "completed", "failed"]


def test_one_layer_stalls_everybody_and_two_layers_cost_fourteen_seconds(played) -> None:
    """21.8: with the session's limit alone nobody is answered within its 60 s."""
    one, two = played["layers6"]["rows"]
    assert (one["known"], one["seconds"]) == ([], 60.0)
    assert (two["known"], two["seconds"]) == (["Bela", "Chidi"], 14.0)


def test_running_the_whole_lesson_twice_in_one_kernel_shows_the_same() -> None:
    """No cell depends on what an earlier run of the notebook has left."""
    run_twice(HERE, "rows")


# -- its first exercise ----------------------------------------------------------------------------


def child_limit(own, left):
    """Return the worked answer's number."""
    limits = [seconds for seconds in (own, left) if seconds is not None]
    return max(0, min(limits)) if limits else None


def case_by_case(own, left):
    """Say the same in another way."""
    if left is not None and left < 0:
        left = 0.0
    if own is None or left is None:
        return left if own is None else own
    smaller = left < own
    return left if smaller else own


@pytest.mark.parametrize("rule", [child_limit, case_by_case])
def test_a_right_rule_passes(rule, tmp_path: Path) -> None:
    """Whichever way it is written; the real runs are shown."""
    note = ask(lesson06.child_limit, tmp_path, rule)
    assert note.mark == State.PASS
    assert "4 real runs" in note.text()
    assert len(note.table.rows) == 4


class Forgetful:
    """Right at first, and static once it has been asked often: it has a memory."""

    def __init__(self, good):
        self.good, self.asked = good, 0

    def __call__(self, own, left):
        """Count, and change the mind."""
        self.asked += 1
        return child_limit(own, left) if self.asked <= self.good else own


def falsy(own, left):
    """Take 0 for 'no limit'."""
    if not left:
        return own
    return max(0, min(own, left)) if own is not None else max(0, left)


def negative(own, left):
    """Forget that a parent may be overdrawn."""
    limits = [seconds for seconds in (own, left) if seconds is not None]
    return min(limits) if limits else None


WRONG_RULES = {
    "static": (lambda own, left: own, "these are static limits"),
    "the parent's": (lambda own, left: left, "gives all of it: the child's limit is 10 s"),
    "the larger": (lambda own, left: max(own or 0, left or 0), "would outlive its own limit"),
    "no return": (lambda own, left: None, "is there a return?"),
    "0 is no limit": (falsy, "A parent that has 0 s left is not one without a limit"),
    "negative": (negative, "nobody has negative time"),
    "without a limit nothing": (
        lambda own, left: max(0, min(own or 0, left or 0)),
        "Where one of the two sets no limit, the other one stands",
    ),
    "the sum": (lambda own, left: (own or 0) + (left or 0), "your rule says 40 s, and not 10 s"),
    "a text": (lambda own, left: f"{own} s", "A limit is a number of seconds"),
    "None not thought of": (lambda own, left: max(0, min(own, left)), "Your code raised TypeError"),
    "asked twice": (Forgetful(11), "your rule says something else"),
    "only in the table": (Forgetful(22), "It holds in the table, and not in a real run"),
    "one parameter": (lambda own: own, "called with two values, own and left"),
    "an answer": (5.0, "You handed over a number"),
    "a name": ("child_limit", "Its type is str"),
    "a tool": (dk.tool(lambda call: None, effect="none", name="t06"), "over a tool or a workflow"),
}


@pytest.mark.parametrize("name", WRONG_RULES)
def test_a_known_wrong_rule_is_told_what_is_wrong_with_it(name: str, tmp_path: Path) -> None:
    """Each gets its own message and the first hint, and no assertion of ours."""
    answer, message = WRONG_RULES[name]
    note = ask(lesson06.child_limit, tmp_path, answer)
    assert note.mark == State.TRY_AGAIN
    assert message in note.text()
    assert note.lines[-1].startswith("Hint 1 of 4")
    others = [other for _, other in WRONG_RULES.values() if other != message]
    assert not any(other in note.text() for other in others), "a message of another mistake"


def test_three_dots_are_no_rule(tmp_path: Path) -> None:
    """The stub asks for one."""
    assert ask(lesson06.child_limit, tmp_path, lambda own, left: ...).mark == State.TODO


# -- its second exercise ---------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path):
    """The learner's mail service and its mailbox, given back as they were."""
    mail, runtime, _ = lesson06.new_world(tmp_path / "mine", 4, "queryable")
    before = mail.mailbox.folder, mail.mailbox.profile, mail.mailbox.clock
    yield mail
    assert (mail.mailbox.folder, mail.mailbox.profile, mail.mailbox.clock) == before
    assert (mail.seconds, mail.slow, mail.mailbox.inbox()) == (4, {}, [])
    runtime.close()
    mail.mailbox.close()


REMAINING = "what is left"


def newsletter(mail, *, waits=REMAINING, key="news:{id}", people=None, deaf=False, **changed):
    """The worked answer, or one with something changed; None takes a promise away."""
    promises = {"effect": "queryable", "settles_after": 20, "probe": None, "timeout": 10, **changed}

    def ask_service(call):
        found = mail.find(call.key)
        return dk.Absent if found is None else dk.Found(found)

    if promises["effect"] == "queryable":
        promises["probe"] = ask_service
    given = {name: value for name, value in promises.items() if value is not None}

    def send_news(call, to):
        timeout = call.remaining() if waits is REMAINING else waits
        return mail.send(to, "news", "hello", key=call.key, timeout=timeout)

    tool = dk.tool(send_news, **given)

    @dk.workflow(name="lesson 06 newsletter")
    def letters(ctx, readers):
        for person in readers[:people]:
            with contextlib.suppress(TimeoutError if deaf else ()):
                ctx.call(tool, person["email"], key=key.format(**person))

    return letters


OPAQUE = {"effect": "opaque", "settles_after": None}
WRONG_LETTERS = {
    "opaque": (OPAQUE, "the service can neither be asked nor does it know our key"),
    "does not listen": ({"waits": None}, "the tool does not look at it"),
    "one layer": ({"timeout": None}, "Only the session has a limit"),
    "a limit too long": ({"timeout": 30}, "longer than the 10 s of the shop"),
    "a static number": ({"waits": 10}, "knows nothing of what the parent has left"),
    "a false promise": (
        {"effect": "idempotent", "settles_after": None, "window": 86_400},
        "You promise that this service remembers keys",
    ),
    "no effect": ({"effect": "none", "settles_after": None}, "a mail has no effect outside"),
    "a hidden effect": (
        {"effect": "none", "settles_after": None, "retry": dk.Retry(attempts=1), "deaf": True},
        "'send_news' declares effect=\"none\": it touches nothing outside",
    ),
    "a guess": (
        {**OPAQUE, "on_unknown": "resend", "retry": dk.Retry(attempts=3)},
        "made the runtime guess",
    ),
    "absent too early": ({"settles_after": 1}, "'Absent' was taken for final too early"),
    "absent for ever": ({"settles_after": None}, "promises no time after which that is final"),
    "one key for all": ({"key": "news"}, "Nobody was slow, and yet your workflow failed"),
    "not everybody": ({"people": 2}, "yet there is no mail for Chidi"),
}


def test_the_worked_newsletter_holds(world, tmp_path: Path) -> None:
    """Every wait inside its parents, one mail each, and nothing unknown."""
    note = ask(lesson06.in_time, tmp_path, newsletter(world), world)
    assert note.mark == State.PASS, note.text()
    assert [row["last wait ended"] for row in note.table.rows] == ["12 s", "28 s", "12 s"]


@pytest.mark.parametrize("name", WRONG_LETTERS)
def test_a_known_wrong_newsletter_is_told_what_is_wrong_with_it(
    name: str, world, tmp_path: Path
) -> None:
    """Judged by ledger and journal; each gets its own message and the first hint."""
    changed, message = WRONG_LETTERS[name]
    note = ask(lesson06.in_time, tmp_path, newsletter(world, **changed), world)
    assert note.mark == State.TRY_AGAIN
    assert message in note.text()
    assert "Hint 1 of 5" in note.text()
    others = [other for _, other in WRONG_LETTERS.values() if other != message]
    assert not any(other in note.text() for other in others), "a message of another mistake"


def test_something_else_handed_over_is_told_in_words(world, tmp_path: Path) -> None:
    """The mailbox, a tool, a number, a workflow of other arguments."""
    letters = newsletter(world)
    nobody = dk.workflow(lambda ctx: None, name="lesson 06 nobody")
    for given, message in (
        ((letters, world.mailbox), "is `mail`, the slow service itself"),
        ((letters, 3), "the mailbox that your tool sends to"),
        ((3, world), "The first thing to hand over is your workflow"),
        ((nobody, world), "called with ctx and a list of people"),
        ((letters,), "Call it as check(newsletter, mail)"),
    ):
        note = ask(lesson06.in_time, tmp_path, *given)
        assert (note.mark, message in note.text()) == (State.TRY_AGAIN, True), note.text()


def test_three_dots_in_the_tool_are_no_answer(world, tmp_path: Path) -> None:
    """The stub asks how long the tool may wait, and nothing is sent."""
    tool = dk.tool(lambda call, to: world.send(to, "news", "b", timeout=...), name="lesson 06 dots")
    letters = dk.workflow(lambda ctx, people: ctx.call(tool, "a@x.org", key="k"), name="dots 06")
    assert ask(lesson06.in_time, tmp_path, letters, world).mark == State.TODO
    assert "timeout=...)" in cell_of(HERE.read(), "answer2").source


# -- what its cells lean on ------------------------------------------------------------------------


def test_the_directory_takes_its_time_or_the_callers() -> None:
    """An answer within the limit, else a time-out exactly at it."""
    clock = dk.ManualClock()
    assert lesson06.look_up(clock, 2.0, 10.0) == "known"
    assert lesson06.look_up(clock, 2.0, None) == "known"
    with pytest.raises(TimeoutError):
        lesson06.look_up(clock, 20.0, 10.0)
    assert clock.sleeps == [2.0, 2.0, 10.0]


def test_the_story_of_a_run_is_its_journals(fresh: NotebookNode) -> None:
    """Second 25 to 45: intent, left, asked, waited, found."""
    shown = texts(cell_of(fresh, "ask3"))[-1]
    lines = [line.split()[:2] for line in shown.splitlines()[2:]]
    assert lines == [
        ["25", "intent"], ["30", "attempt"], ["30", "probe"], ["45", "result"], ["45", "completed"],
    ]  # fmt: skip

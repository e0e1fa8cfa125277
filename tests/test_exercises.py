"""Exercises: the frame around every checker, and the checker of lesson 01 against known answers."""

import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import durakit as dk
from durakit.lab import exercises, lesson01, lesson02, lesson06, lesson08, lesson09
from durakit.lab.exercises import Exercise, Note, Progress, SideBySide, State, Table
from durakit.mail import Fault, Mailbox

HOSTILE = "<script>alert('x')</script>\"&"


@pytest.fixture
def progress(tmp_path: Path) -> Progress:
    """A learner's progress with nothing in it."""
    return Progress(tmp_path)


def exercise(checker: Callable[..., exercises.Finding], progress: Progress) -> Exercise:
    """Return an exercise with three hints around `checker`."""
    return Exercise("09.1", "count", checker, ("one", "two", "three"), progress)


def is_two(answer: object) -> exercises.Finding:
    """A checker: 2 is right, three dots are no answer, anything else is wrong."""
    if answer is ...:
        return exercises.todo("Count.")
    return exercises.right("It is 2.") if answer == 2 else exercises.wrong(f"{answer} is not it.")


# -- the frame: three states in words --------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (..., "○ TODO  Exercise 09.1: count\nCount."),
        (3, "△ TRY AGAIN  Exercise 09.1: count\n3 is not it.\nHint 1 of 3: one"),
        (2, "✓ PASS  Exercise 09.1: count\nIt is 2."),
    ],
)
def test_a_check_answers_in_one_of_three_states(answer, text, progress: Progress) -> None:
    """The state is a mark and a word, and what was found stands below it."""
    assert exercise(is_two, progress).check(answer).text() == text


def test_each_failed_try_shows_the_next_hint_and_the_last_one_stays(progress: Progress) -> None:
    """The ladder has no end to fall from, and a try that is no answer takes no rung."""
    task = exercise(is_two, progress)
    shown = [task.check(answer).lines[-1] for answer in (3, ..., 4, 5, 6)]
    assert shown == [
        "Hint 1 of 3: one",
        "Count.",
        "Hint 2 of 3: two",
        "Hint 3 of 3: three",
        "Hint 3 of 3: three",
    ]


def test_an_error_of_the_learner_is_told_with_its_line(progress: Progress) -> None:
    """What the learner's code raises is a finding about it: type, message and line."""

    def broken() -> None:
        raise KeyError("mail")

    task = exercise(exercises.theirs, progress)
    note = task.check(broken)
    assert note.mark == State.TRY_AGAIN
    line = broken.__code__.co_firstlineno + 1
    assert note.lines[0] == f"Your code raised KeyError: 'mail' (line {line} of its cell)"


def test_a_slip_of_the_hand_takes_no_hint(progress: Progress) -> None:
    """A name that is not defined is told, and the ladder stays where the last answer left it."""

    def slipped() -> None:
        return nowhere_defined  # noqa: F821 - this is the slip

    def wrong() -> None:
        raise KeyError("mail")

    task = exercise(exercises.theirs, progress)
    first = task.check(slipped)
    assert first.mark == State.TRY_AGAIN
    assert "name 'nowhere_defined' is not defined (line " in first.lines[0]
    assert "Hint" not in first.text()
    assert progress.read().exercises["09.1"] == exercises.Tried(state="TRY_AGAIN", tries=0)
    shown = [task.check(answer).lines[-1] for answer in (wrong, slipped, wrong)]
    assert shown == ["Hint 1 of 3: one", "Hint 1 of 3: one", "Hint 2 of 3: two"]


@pytest.mark.parametrize("promise", [{}, {"effect": "idempotent", "window": 86_400}])
@pytest.mark.parametrize("where", ["tool", "workflow"])
def test_a_slip_inside_a_run_takes_no_hint_either(
    where: str, promise: dict, tmp_path: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime saves the error, or calls the mail unknown; the learner is told the name."""
    shop = Mailbox(tmp_path / "shop")

    @dk.tool(name="slip_send", **promise)
    def slip_send(call, to):
        return shop.send(to, "Welcome", "Hello", key=cal.key)  # noqa: F821 - this is the slip

    @dk.workflow(name="slip_welcome")
    def slip_welcome(ctx, customer):
        to = custmer["email"] if where == "workflow" else customer["email"]  # noqa: F821 - so is this
        ctx.call(slip_send, to, key=f"welcome:{customer['id']}")

    monkeypatch.setattr(exercises, "_shared", [progress])
    note = lesson01.exactly_once.check(slip_welcome, shop)
    name = "cal" if where == "tool" else "custmer"
    assert note.lines[0] == f"Your code raised NameError: name '{name}' is not defined"
    assert "Hint" not in note.text()
    assert progress.read().exercises["01.5"].tries == 0


def check_02(workflow: dk.Workflow, folder: Path) -> Note:
    """The newsletter that no crash can hurt."""
    return lesson02.crash_proof.check(workflow, Mailbox(folder))


def check_06(workflow: dk.Workflow, folder: Path) -> Note:
    """The newsletter that ends in time."""
    mail, _, _ = lesson06.new_world(folder, seconds=4, profile="queryable")
    return lesson06.in_time.check(workflow, mail)


def check_08(workflow: dk.Workflow, folder: Path) -> Note:
    """The voucher."""
    return lesson08.safe_to_replay.check(workflow, Mailbox(folder))


def check_09(workflow: dk.Workflow, folder: Path) -> Note:
    """The cashier of the clinic."""
    return lesson09.cash.check(workflow)


@pytest.mark.parametrize("check", [check_02, check_06, check_08, check_09])
def test_each_check_that_runs_a_workflow_knows_a_slip(
    check: Callable[[dk.Workflow, Path], Note],
    tmp_path: Path,
    progress: Progress,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In every lesson the name is told, and no hint is taken."""

    @dk.workflow(name="slip_of_the_hand")
    def slip_of_the_hand(ctx, given):
        ctx.step("slip", nowhere_defined)  # noqa: F821 - this is the slip

    monkeypatch.setattr(exercises, "_shared", [progress])
    note = check(slip_of_the_hand, tmp_path / "world")
    assert note.lines[0] == "Your code raised NameError: name 'nowhere_defined' is not defined"
    assert "Hint" not in note.text()


def test_a_learner_who_exits_is_told_and_python_goes_on(progress: Progress) -> None:
    """sys.exit() in an answer ends neither the check nor the kernel."""

    def leave() -> None:
        raise SystemExit(3)

    for checker in (lambda answer: answer(), exercises.theirs):
        assert exercise(checker, progress).check(leave).mark == State.TRY_AGAIN


def test_an_error_without_readable_text_is_told_too(progress: Progress) -> None:
    """An exception whose own text cannot be made does not get through the frame."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def broken() -> None:
        raise Mute

    note = exercise(exercises.theirs, progress).check(broken)
    assert "Your code raised Mute: no message" in note.lines[0]


def test_a_checker_that_fails_blames_itself_and_says_how_to_report_it(progress: Progress) -> None:
    """The learner keeps their progress, and gets something to hand on."""

    def divides(answer: int) -> exercises.Finding:
        return exercises.right(str(1 / answer))

    task = exercise(divides, progress)
    note = task.check(0)
    assert note.mark == "! CHECKER FAILED"
    assert "not of your answer" in note.lines[0]
    assert "ZeroDivisionError" in note.lines[1]
    assert "test_exercises.py" in note.lines[1]
    assert "report" in note.text()
    assert dk.__version__ in note.text()
    assert progress.read() == exercises.Saved()


@pytest.mark.parametrize("answer", [(), (1, 2)])
def test_an_answer_of_the_wrong_number_of_parts_is_told_how_to_call(
    answer: tuple[int, ...], progress: Progress
) -> None:
    """Handing over too little or too much is neither an error nor the checker's failure."""
    note = exercise(is_two, progress).check(*answer)
    assert note.mark == State.TRY_AGAIN
    assert note.lines[0].startswith("Call it as check(answer): ")
    assert progress.read().exercises["09.1"].tries == 0


def test_an_interrupt_from_the_keyboard_ends_a_check(progress: Progress) -> None:
    """The stop button works: an interrupt is the one thing that passes through."""

    def stopped() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exercise(exercises.theirs, progress).check(stopped)


# -- predictions -----------------------------------------------------------------------------------


def test_three_dots_are_no_prediction(progress: Progress) -> None:
    """A cell that was run as it ships asks for a guess and keeps nothing."""
    note = exercises.predict("09.1", ..., progress)
    assert note.text().startswith("○ TODO  Prediction 09.1")
    assert not progress.path.exists()


def test_a_prediction_is_kept_and_never_graded(progress: Progress) -> None:
    """Whatever is guessed gets the same answer, and the first guess is the one compared."""
    for guess in (1, 1, 5):
        note = exercises.predict("09.1", guess, progress)
        assert note.text() == f"● NOTED  Prediction 09.1: {guess}. It is not graded."
    assert progress.read().predictions == {"09.1": [1, 5]}
    shown = exercises.recall("09.1", 2, progress).text()
    assert shown == "↔ COMPARE  Prediction 09.1: you said 1; it came out as 2."


def test_without_a_prediction_the_fact_stands_alone(progress: Progress) -> None:
    """Nobody has to guess."""
    shown = exercises.recall("09.1", 2, progress).text()
    assert shown == "↔ COMPARE  Prediction 09.1: you made none; it came out as 2."


@pytest.mark.parametrize("guess", [float("nan"), {1, 2}, object, "x" * 5000, "two\nlines"])
def test_any_guess_can_be_kept(guess: object, progress: Progress) -> None:
    """What JSON cannot hold is kept as text, and what is shown stays on one line."""
    note = exercises.predict("09.1", guess, progress)
    assert note.mark == "● NOTED"
    assert len(note.text().splitlines()) == 1
    assert len(note.text()) < 500
    assert len(Progress(progress.folder).read().predictions["09.1"]) == 1


# -- the progress file -----------------------------------------------------------------------------


def test_progress_and_score_outlive_the_kernel(progress: Progress) -> None:
    """Another process reads the same file: state, tries and predictions."""
    task = exercise(is_two, progress)
    for answer in (3, 4, 2):
        task.check(answer)
    exercises.predict("09.2", "two", progress)
    again = Progress(progress.folder)
    assert json.loads(again.path.read_text()) == {
        "version": 1,
        "exercises": {"09.1": {"state": "PASS", "tries": 2}},
        "predictions": {"09.2": ["two"]},
    }
    shown = exercises.closing("09", exercises=2, predictions=3, progress=again).text()
    assert "1 of 2 exercises passed, 1 of 3 predictions noted" in shown
    other = exercises.closing("01", exercises=1, predictions=4, progress=again).text()
    assert "0 of 1 exercises passed, 0 of 4 predictions noted" in other


def test_a_pass_is_never_taken_back(progress: Progress) -> None:
    """A learner may go on experimenting with a solved exercise."""
    task = exercise(is_two, progress)
    for answer in (2, 3, ...):
        task.check(answer)
    assert progress.read().exercises["09.1"].state == "PASS"


def test_two_kernels_add_to_one_file(progress: Progress) -> None:
    """A lesson in another tab does not lose what this one has noted."""
    exercises.predict("01.1", 1, progress)
    exercises.predict("02.1", 2, Progress(progress.folder))
    exercises.predict("01.2", 3, progress)
    assert progress.read().predictions == {"01.1": [1], "02.1": [2], "01.2": [3]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"version": 2}',
        b'{"version": 1, "exercises": 3}',
        b'{"version": 1, "notes": "mine"}',
    ],
)
def test_a_damaged_file_is_kept_aside_and_told(content: bytes, progress: Progress) -> None:
    """Nothing of it is lost, byte for byte, and the lesson goes on with a fresh one."""
    progress.path.write_bytes(content)
    note = exercise(is_two, progress).check(2)
    assert note.mark == State.PASS
    told = "Your progress file was damaged; it is kept as progress.damaged-1.json."
    assert note.lines[-1] == told
    assert (progress.folder / "progress.damaged-1.json").read_bytes() == content
    assert Progress(progress.folder).read().exercises["09.1"].state == "PASS"
    assert told not in exercise(is_two, progress).check(2).lines


def test_a_second_damaged_file_does_not_replace_the_first(progress: Progress) -> None:
    """Each gets a name of its own."""
    for content in (b"one", b"two"):
        progress.path.write_bytes(content)
        progress.read()
    kept = {path.name: path.read_bytes() for path in progress.folder.iterdir()}
    assert kept == {"progress.damaged-1.json": b"one", "progress.damaged-2.json": b"two"}


def test_a_damaged_file_that_cannot_be_moved_is_never_written_over(
    progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lesson goes on in memory, and says so once."""

    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(13, "not allowed")

    progress.path.write_bytes(b"precious")
    monkeypatch.setattr(Path, "rename", refuse)
    note = exercises.predict("09.1", 1, progress)
    assert "damaged and cannot be put aside (not allowed)" in note.lines[0]
    assert exercises.predict("09.2", 2, progress).lines == ()
    assert progress.read().predictions == {"09.1": [1], "09.2": [2]}
    assert progress.path.read_bytes() == b"precious"


def test_what_cannot_be_read_is_left_alone(progress: Progress) -> None:
    """Something else in the place of the file stays, and the lesson goes on in memory."""
    progress.path.mkdir()
    assert "cannot be read" in exercises.predict("09.1", 1, progress).lines[0]
    assert progress.path.is_dir()
    assert progress.read().predictions == {"09.1": [1]}


def test_a_full_disk_leaves_the_old_file_whole_and_loses_nothing(
    progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is replaced as a whole; what could not be saved is saved with the next note."""
    exercises.predict("09.1", 1, progress)
    before = progress.path.read_bytes()

    def refuse(self: Path, *_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", refuse)
        note = exercises.predict("09.2", 2, progress)
    assert note.lines == ("Your progress could not be saved (No space left on device).",)
    assert progress.path.read_bytes() == before
    exercises.predict("09.3", 3, progress)
    again = Progress(progress.folder)
    assert again.read().predictions == {"09.1": [1], "09.2": [2], "09.3": [3]}
    assert [path.name for path in progress.folder.iterdir()] == ["progress.json"]


def test_progress_is_kept_only_in_the_learners_copy(tmp_path: Path) -> None:
    """In a checkout's notebooks/ nothing is written; in the copy, wherever it lies, it is."""
    copy = tmp_path / "my-lessons"
    elsewhere = tmp_path / "course"
    (elsewhere / ".jupyterlab").mkdir(parents=True)
    (elsewhere / ".jupyterlab" / "overrides.json").write_text("{}")
    assert exercises.progress_folder(copy) == copy
    assert exercises.progress_folder(copy / "deeper") == copy
    assert exercises.progress_folder(elsewhere) == elsewhere
    assert exercises.progress_folder(tmp_path / "notebooks") is None


@pytest.mark.parametrize(("name", "lasts"), [("my-lessons", True), ("notebooks", False)])
def test_the_shared_progress_lies_where_the_kernel_works(
    name: str, lasts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy's kernel writes beside its notebooks; any other leaves its folder as it was."""
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    monkeypatch.setattr(exercises, "_shared", [])
    exercises.predict("09.1", 1)
    assert (tmp_path / name / "progress.json").exists() is lasts
    text = exercises.closing("09", exercises=0, predictions=1).text()
    assert "1 of 1 predictions noted" in text
    assert ("Not kept" in text) is not lasts


# -- what a notebook shows -------------------------------------------------------------------------

SHOWN = [
    Table(HOSTILE, [{HOSTILE: HOSTILE}]),
    Table(HOSTILE, [], HOSTILE),
    SideBySide((Table(HOSTILE, [{"a": HOSTILE}]), Table("b", []))),
    Note(HOSTILE, HOSTILE, (HOSTILE,), Table("c", [{"d": HOSTILE}])),
]


@pytest.mark.parametrize("shown", SHOWN)
def test_hostile_text_is_shown_and_never_run(shown: exercises.Shown) -> None:
    """Every part of our HTML is escaped, and the text form says the same."""
    page = shown.html()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert HOSTILE in shown.text()


@pytest.mark.parametrize("shown", SHOWN)
def test_a_notebook_gets_the_same_text_and_html_each_time(shown: exercises.Shown) -> None:
    """Two pure forms, no address and no time in them, so nbval can compare them."""
    bundle = shown._repr_mimebundle_()
    assert bundle == {"text/plain": shown.text(), "text/html": shown.html()}
    assert bundle == shown._repr_mimebundle_(include=None, exclude=())
    assert str(shown) == shown.text()


def test_a_long_name_does_not_push_the_table_off_the_page() -> None:
    """A key may have thousands of characters; a cell shows the first of them."""
    table = Table("keys", [{"key": "k" * 5000}])
    assert max(map(len, table.text().splitlines())) < 70
    assert len(table.html()) < 1000


def test_columns_are_even_and_a_cell_stays_on_its_line() -> None:
    """A name with a line break or a control character does not break the table."""
    table = Table("names", [{"name": "Ada\nLovelace", "n": 1}, {"name": "B\x1b[31m", "n": 22}])
    assert table.text() == ("names\n  name          n\n  Ada Lovelace  1\n  B\\x1b[31m     22")


# -- the checker of lesson 01 ----------------------------------------------------------------------

SUBJECT, BODY = "Welcome", "Hello"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Mailbox]:
    """The mailbox that the learner's tool sends to."""
    mailbox = Mailbox(tmp_path / "shop", clock=dk.ManualClock())
    yield mailbox
    mailbox.close()


def answer(
    send: Callable[..., object] | None = None,
    key: Callable[[dict[str, object]], object] = lambda customer: f"welcome:{customer['id']}",
    **declared: object,
) -> Callable[[Mailbox], dk.Workflow]:
    """Return an answer to the exercise: the right one, but for what is given."""
    declared = declared or {"effect": "idempotent", "window": 86_400}

    def build(shop: Mailbox) -> dk.Workflow:
        @dk.tool(**declared)
        def send_welcome(call, to):
            if send is not None:
                return send(shop, call, to)
            return shop.send(to, SUBJECT, BODY, key=call.key)

        @dk.workflow
        def welcome_once(ctx, customer):
            ctx.call(send_welcome, customer["email"], key=key(customer))

        return welcome_once

    return build


def send_in_a_step(shop: Mailbox) -> dk.Workflow:
    """An answer that sends inside a step."""

    @dk.workflow
    def welcome_once(ctx, customer):
        ctx.step("send", lambda: shop.send(customer["email"], SUBJECT, BODY))

    return welcome_once


def send_beside_the_call(shop: Mailbox) -> dk.Workflow:
    """An answer that sends in a call and once more by hand."""

    @dk.tool(effect="idempotent")
    def send_welcome(call, to):
        return shop.send(to, SUBJECT, BODY, key=call.key)

    @dk.workflow
    def welcome_once(ctx, customer):
        ctx.call(send_welcome, customer["email"], key=f"welcome:{customer['id']}")
        shop.send(customer["email"], SUBJECT, BODY)

    return welcome_once


def fails_afterwards(shop: Mailbox) -> dk.Workflow:
    """An answer with a mistake of another kind, after the mail is out."""

    @dk.tool(effect="idempotent")
    def send_welcome(call, to):
        return shop.send(to, SUBJECT, BODY, key=call.key)

    @dk.workflow
    def welcome_once(ctx, customer):
        ctx.call(send_welcome, customer["email"], key=f"welcome:{customer['id']}")
        return customer["telephone"]

    return welcome_once


def of_two_customers(shop: Mailbox) -> dk.Workflow:
    """An answer whose workflow asks for more than one customer."""
    del shop

    @dk.workflow
    def welcome_once(ctx, customer, other):
        return (ctx, customer, other)

    return welcome_once


def swallowed(shop: Mailbox, call, to: str) -> object:
    """Send, and take every trouble for a success."""
    try:
        return shop.send(to, SUBJECT, BODY) if call.attempt == 1 else None
    except TimeoutError:
        return None


WRONG = {
    "the tool declares nothing": (
        answer(retry=dk.Retry(attempts=1)),
        "The run waits for a person, and Ada has one mail: unknown: the service can neither",
    ),
    "the service is not told the key": (
        answer(lambda shop, call, to: shop.send(to, SUBJECT, BODY)),
        "The service was given no key, so the second request was a new mail to it.",
    ),
    "a fresh key for each attempt": (
        answer(
            lambda shop, call, to: shop.send(to, SUBJECT, BODY, key=f"{call.key}:{call.attempt}")
        ),
        "different keys for one mail: 'welcome:42:1' and 'welcome:42:2'",
    ),
    "a key from the fencing token": (
        answer(lambda shop, call, to: shop.send(to, SUBJECT, BODY, key=f"{call.key}/{call.fence}")),
        "different keys for one mail: 'welcome:42/1' and 'welcome:42/2'",
    ),
    "one key for all customers": (
        answer(key=lambda customer: "welcome"),
        "After Ada it is Bela's turn, and she gets 0 mails (ArgumentsDiffer",
    ),
    "a key of a name and a text": (
        answer(key=lambda customer: f"welcomeHello {customer['name']}"),
        "another id and another address, and she gets 0 mails (ArgumentsDiffer",
    ),
    "a mail that touches nothing": (
        answer(effect="none"),
        "'send_welcome' declares effect=\"none\": it touches nothing outside. But the service",
    ),
    "a random key": (
        answer(key=lambda customer: str(uuid.uuid4())),
        "your workflow asks for another key than the one it saved",
    ),
    "the send is in a step": (send_in_a_step, "It goes out without ctx.call."),
    "two sends": (send_beside_the_call, "Nothing crashed, and yet Ada has 2 mails"),
    "nothing is sent": (
        answer(lambda shop, call, to: {"id": "email-1"}),
        "no mail for Ada came out of this mailbox.",
    ),
    "sent to another": (
        answer(lambda shop, call, to: shop.send("eve@example.org", SUBJECT, BODY, key=call.key)),
        "no mail for Ada came out of this mailbox (1 went to another address).",
    ),
    "a second attempt that only pretends": (
        answer(swallowed, effect="idempotent"),
        "The run says completed, and Ada has no mail.",
    ),
    "an error in the workflow": (
        fails_afterwards,
        "your workflow failed: KeyError: 'telephone'",
    ),
    "a key that is no text": (
        answer(key=lambda customer: customer["id"]),
        "your workflow failed: InvalidField: key: needs text, got int",
    ),
    "a workflow of two customers": (of_two_customers, "called with ctx and one customer"),
}


def test_a_tool_that_only_looks_may_say_so(shop: Mailbox) -> None:
    """It is the service that tells whether a tool has an effect, and not its declaration."""

    @dk.tool(effect="none", name="exercises_read_name")
    def read_name(call, customer):
        return len(shop.inbox()) * [customer["name"]]

    def build(shop: Mailbox) -> dk.Workflow:
        send = answer()(shop)

        @dk.workflow(name="exercises_looks_first")
        def looks_first(ctx, customer):
            ctx.call(read_name, customer, key=f"name:{customer['id']}")
            send.function(ctx, customer)

        return looks_first

    assert check(build, shop).state is State.PASS


def check(build: Callable[[Mailbox], object], shop: Mailbox) -> exercises.Finding:
    """Return what the checker of lesson 01 finds about an answer."""
    return lesson01.check_exactly_once(build(shop), shop)


def test_the_right_answer_passes_at_every_crash_point(shop: Mailbox) -> None:
    """Each point of the protocol was tried, request_sent with both fates, and a lost reply."""
    found = check(answer(), shop)
    assert found.state is State.PASS
    assert found.table is not None
    tried = [str(row["stopped at"]).partition(" of ")[0] for row in found.table.rows]
    assert tried == [
        "run_saved",
        "run_claimed",
        "before_intent",
        "intent_saved",
        "request_sent",
        "request_sent",
        "effect_done",
        "reply_received",
        "result_saved",
        "end_saved",
        "no crash, the reply is lost",
    ]
    assert {(row["Ada's mails"], row["verdict"]) for row in found.table.rows} == {(1, "✓ one mail")}


@pytest.mark.parametrize("name", WRONG)
def test_a_known_wrong_answer_is_rejected_with_a_message_of_its_own(
    name: str, shop: Mailbox
) -> None:
    """The message tells what went wrong with this answer, and no error escapes."""
    build, message = WRONG[name]
    found = check(build, shop)
    assert found.state is State.TRY_AGAIN, found
    assert message in " ".join(found.says)


def test_no_two_known_wrong_answers_share_their_message() -> None:
    """A message that fits several mistakes would explain none."""
    messages = [message for _, message in WRONG.values()]
    assert len(set(messages)) == len(messages) >= 6


@pytest.mark.parametrize(
    ("handed_over", "message"),
    [
        (lambda shop: "welcome", "This is a str."),
        (lambda shop: lambda ctx, customer: None, "This is a function."),
        (lambda shop: dk.tool(lambda call: None, name="t"), "You handed over the tool."),
        (lambda shop: None, "This is None."),
    ],
)
def test_something_else_than_a_workflow_is_named(handed_over, message: str, shop: Mailbox) -> None:
    """The learner hears what was handed over, and what to hand over instead."""
    found = check(handed_over, shop)
    assert found.state is State.TRY_AGAIN
    assert message in found.says[0]


def test_something_else_than_a_mailbox_is_named(shop: Mailbox) -> None:
    """The second part of the answer is looked at too."""
    found = lesson01.check_exactly_once(answer()(shop), "shop")
    assert found.says == ("The second thing to hand over is the mailbox that your tool sends to.",)


def test_three_dots_in_the_workflow_are_no_answer_yet(shop: Mailbox) -> None:
    """The cell as it ships is TODO, neither wrong nor an error."""

    @dk.tool
    def send_welcome(call, to):
        return shop.send(to, SUBJECT, BODY)

    @dk.workflow
    def welcome_once(ctx, customer):
        key = ...
        ctx.call(send_welcome, customer["email"], key=key)

    assert check(lambda _: welcome_once, shop).state is State.TODO


def test_a_key_with_a_mail_address_passes_with_a_remark(shop: Mailbox) -> None:
    """It is exactly once, and an address in a key is still worth a word."""
    found = check(answer(key=lambda customer: customer["email"]), shop)
    assert found.state is State.PASS
    assert "your key holds a mail address" in found.says[1]


def test_the_learners_mailbox_comes_back_as_it_was(shop: Mailbox) -> None:
    """Ledger, clock, plan and profile: the check leaves nothing behind in them."""
    shop.plan = [Fault("reply_lost", request=9)]
    shop.send("ada@example.org", SUBJECT, BODY)
    before = (shop.inbox(), shop.clock, list(shop.plan), shop.profile, shop.clock.now())
    for build in (answer(), WRONG["an error in the workflow"][0]):
        check(build, shop)
        now = (shop.inbox(), shop.clock, list(shop.plan), shop.profile, shop.clock.now())
        assert now == before


def test_a_closed_mailbox_can_be_checked_and_stays_closed(shop: Mailbox) -> None:
    """The check needs only the object that the tool sends to."""
    shop.close()
    assert check(answer(), shop).state is State.PASS
    with pytest.raises(RuntimeError, match="closed"):
        shop.inbox()


def test_what_the_learners_code_prints_is_not_shown_a_dozen_times(
    shop: Mailbox, capsys: pytest.CaptureFixture[str]
) -> None:
    """A print in the tool, left there from trying, does not bury the answer."""

    def loud(shop: Mailbox, call, to: str) -> object:
        print("sending")
        return shop.send(to, SUBJECT, BODY, key=call.key)

    assert check(answer(loud, effect="idempotent"), shop).state is State.PASS
    assert capsys.readouterr().out == ""


def test_the_last_hint_leads_to_the_right_answer() -> None:
    """Whoever climbs the whole ladder has seen each of the three changes."""
    ladder = " ".join(lesson01.exactly_once.hints)
    for part in ('effect="idempotent"', "key=call.key", "customer's id"):
        assert part in ladder
    assert all(re.fullmatch(r"[A-Z].*[.?]", hint) for hint in lesson01.exactly_once.hints)

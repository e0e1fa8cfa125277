"""The classroom: one learner's standing, a class's report, and files that nobody can trust."""

import csv
import importlib
import io
import json
import os
import re
import stat
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from lesson_checks import LESSONS, ROOT, Lesson, cell_of, read, run_cell
from pages import Page

from durakit.lab import exercises
from durakit.lab.classroom import folder as classroom
from durakit.lab.classroom import guesses, progress
from durakit.lab.classroom.plans import Plan, Question, Task, read_plans
from durakit.lab.classroom.progress import UnreadableProgress, own_progress, read_saved
from durakit.lab.classroom.report import ClassReport
from durakit.lab.exercises import Exercise, Progress, Saved
from durakit.lab.lessons import LessonError, LessonsNotFound, list_lessons

HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J\u202e\"'&$x$"
FIRST = LESSONS["01"].path

PLANS = [
    Plan(
        "01",
        "Twice",
        (Task("01.3", "once"),),
        (Question("01.1", "How many?", "2"), Question("01.2", "What status?", "parked")),
    ),
    Plan("02", "Anywhere", (Task("02.2", "never"),), (Question("02.1", "Where?", "4.0"),)),
]


def saved(**parts: Any) -> str:
    """Return a progress file's text."""
    return json.dumps({"version": 1, **parts})


def hand_in(folder: Path, name: str, **parts: Any) -> Path:
    """Put one learner's progress file into a folder of the learner's name."""
    path = folder / name / "progress.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(saved(**parts), encoding="utf-8")
    return path


def passed(tries: int = 0) -> dict[str, object]:
    """Return an exercise that was passed after so many failed tries."""
    return {"state": "PASS", "tries": tries}


def report(folder: Path) -> ClassReport:
    """Return the report of a class about the two made-up lessons."""
    return classroom.read_class(folder, PLANS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for what is handed in."""
    folder = tmp_path / "handed-in"
    folder.mkdir()
    return folder


# -- the plan is the lessons' own ------------------------------------------------------------------


def module_of(number: str) -> types.ModuleType:
    """Return the module of a lesson."""
    return importlib.import_module(f"durakit.lab.lesson{number}")


def exercises_of(number: str) -> list[Exercise]:
    """Return the exercises that a lesson's module defines, by their numbers."""
    found = [each for each in vars(module_of(number)).values() if isinstance(each, Exercise)]
    return sorted(found, key=lambda each: [int(part) for part in each.number.split(".")])


@pytest.mark.parametrize("plan", read_plans(ROOT / "notebooks"), ids=lambda p: p.number)
def test_the_plan_of_a_lesson_is_what_its_module_says(plan: Plan, monkeypatch) -> None:
    """Numbers and titles of the exercises, and the totals that the lesson's last cell tells."""
    monkeypatch.setattr(exercises, "_shared", [])
    assert [(task.number, task.title) for task in plan.tasks] == [
        (each.number, each.title) for each in exercises_of(plan.number)
    ]
    numbers = [f"{plan.number}.{n}" for n in range(1, len(plan.questions) + 1)]
    assert [question.number for question in plan.questions] == numbers
    totals = f"0 of {len(plan.tasks)} exercises passed, 0 of {len(numbers)} predictions noted."
    assert module_of(plan.number).end().title == f"Lesson {plan.number}: {totals}"


def test_each_fact_is_what_the_lesson_shows_and_explains() -> None:
    """What a report calls the outcome is the fact that the lesson's own tests hold."""
    plans = {plan.number: plan for plan in read_plans(ROOT / "notebooks")}
    assert {number: tuple(q.fact for q in plan.questions) for number, plan in plans.items()} == {
        number: lesson.facts for number, lesson in LESSONS.items()
    }


def test_a_notebook_without_outputs_has_no_facts_and_the_same_totals(tmp_path: Path) -> None:
    """A teacher may have cleared them."""
    notebook = read(FIRST)
    for cell in notebook.cells:
        cell.pop("outputs", None)
    (tmp_path / FIRST.name).write_text(json.dumps(notebook), encoding="utf-8")
    (plan,) = read_plans(tmp_path)
    whole = read_plans(ROOT / "notebooks")[0]
    assert [question.fact for question in plan.questions] == [None] * len(whole.questions)
    assert (plan.title, [(task.number, task.title) for task in plan.tasks]) == (
        whole.title,
        [(task.number, "") for task in whole.tasks],
    )


@pytest.mark.parametrize("content", ["as it ships", "[]", "{}", '{"cells": [3]}', "[" * 99_999])
def test_what_is_no_notebook_is_named(content: str, tmp_path: Path) -> None:
    """One line says which file it is."""
    (tmp_path / "01_twice.ipynb").write_text(content)
    with pytest.raises(LessonError, match=r"01_twice.ipynb is no notebook"):
        read_plans(tmp_path)


# -- one learner -----------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A learner's copy of lesson 01, with no checkout beside it."""
    copy = tmp_path / "my-lessons"
    (copy / "deeper").mkdir(parents=True)
    (copy / FIRST.name).write_bytes(FIRST.read_bytes())
    return copy


def test_a_learner_without_a_file_has_done_nothing_yet(copy: Path) -> None:
    """No file is an answer, and none is made."""
    own = own_progress(copy)
    assert (own.there, own.path) == (False, copy / "progress.json")
    assert {(row.passed, row.tries, row.predicted) for row in own.lessons} == {(0, 0, 0)}
    assert "Nothing is noted yet" in own.text()
    assert not own.path.exists()


def test_what_a_lesson_has_kept_is_what_progress_tells(copy: Path) -> None:
    """Written by the exercises' own code, read from a deeper folder, and not changed by a look."""
    progress = Progress(copy)
    task = Exercise("01.5", "t", lambda answer: answer, ("a", "b"), progress)
    for finding in (exercises.wrong("no"), exercises.wrong("no"), exercises.right("yes")):
        task.check(finding)
    exercises.predict("01.1", 2, progress)
    exercises.predict("01.1", 3, progress)
    before = progress.path.read_bytes()
    own = own_progress(copy / "deeper")
    assert vars(own.lessons[0]) == {
        "lesson": "01",
        "title": "Twice in the inbox",
        "passed": 1,
        "exercises": 1,
        "tries": 2,
        "predicted": 1,
        "predictions": 4,
    }
    assert re.search(r"01 Twice in the inbox +1 of 1 +2 +1 of 4", own.text())
    assert own.score().startswith(f"Score: 1 of {own.form()['exercises']} exercises passed (")
    assert f"1 of {own.form()['predictions']} predictions made" in own.score()
    assert progress.path.read_bytes() == before


def test_a_wrong_answer_after_a_pass_is_no_try(tmp_path: Path) -> None:
    """Tries tell what a learner needed for the pass, and experiments afterwards are free."""
    task = Exercise("01.5", "t", lambda answer: answer, ("one", "two"), Progress(tmp_path))
    found = [exercises.wrong("no"), exercises.right("yes"), *[exercises.wrong("no")] * 3]
    lines = [task.check(each).lines[-1] for each in found]
    assert Progress(tmp_path).read().exercises["01.5"].tries == 1
    assert lines == ["Hint 1 of 2: one", "yes", *["Hint 1 of 2: one"] * 3]


def test_a_wrong_answer_after_a_pass_at_once_shows_the_first_hint(tmp_path: Path) -> None:
    """A ladder that was never climbed begins at its first rung."""
    task = Exercise("01.5", "t", lambda answer: answer, ("one", "two"), Progress(tmp_path))
    task.check(exercises.right("yes"))
    assert task.check(exercises.wrong("no")).lines[-1] == "Hint 1 of 2: one"


def test_the_first_version_of_the_file_is_read_unchanged() -> None:
    """The format has not changed: files of learners from before are whole."""
    old = '{"version":1,"exercises":{"01.5":{"state":"PASS","tries":2}},"predictions":{"01.1":[2]}}'
    kept = Saved.model_validate_json(old)
    assert kept.model_dump_json() == old


DAMAGED = {
    "half": (b'{"version": 1, "exer', "is damaged: no whole JSON at line 1 column 20"),
    "empty": (b"", "is damaged: no whole JSON at line 1 column 0"),
    "no text": (b"\xff\xfe\x00", "is damaged"),
    "foreign": (b'{"name": "x"}', "is JSON, and no progress file of this course"),
    "nothing": (b"{}", "is JSON, and no progress file of this course"),
    "a list": (b"[]", "is JSON, and no progress file of this course"),
    "another version": (b'{"version": 2}', "is of another version of durakit"),
    "negative": (
        saved(exercises={"01.3": {"state": "PASS", "tries": -1}}).encode(),
        "is JSON, and no progress file of this course",
    ),
    "deep": (b"[" * 100_000, "is damaged: no whole JSON"),
    "a long number": (b'{"predictions": {"01.1": [1' + b"0" * 6000 + b"]}}", "is damaged"),
    "huge": (b'"' + b"x" * 4_000_000 + b'"', "is larger than 4 MB"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_of_ones_own_is_named_and_left_as_it_is(name: str, copy: Path) -> None:
    """A look never moves it aside, as a lesson would, and never quotes it."""
    content, why = DAMAGED[name]
    path = copy / "progress.json"
    path.write_bytes(content)
    with pytest.raises(UnreadableProgress) as refused:
        own_progress(copy)
    assert str(refused.value).startswith(f"{path}: {why}")
    assert str(refused.value).endswith("the file stays as it is")
    assert path.read_bytes() == content
    assert sorted(each.name for each in copy.glob("*.json")) == ["progress.json"]


def test_a_folder_a_pipe_and_a_link_to_nothing_are_no_progress_file(copy: Path) -> None:
    """None of them keeps the command waiting."""
    path = copy / "progress.json"
    path.mkdir()
    with pytest.raises(UnreadableProgress):
        own_progress(copy)
    path.rmdir()
    path.symlink_to("nowhere")
    with pytest.raises(UnreadableProgress, match="cannot be read"):
        own_progress(copy)
    path.unlink()
    if hasattr(os, "mkfifo"):
        os.mkfifo(path)
        with pytest.raises(UnreadableProgress, match="is no plain file"):
            own_progress(copy)


def test_without_lessons_anywhere_it_says_where_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package without its checkout, in an empty folder."""

    def nowhere(**_: object) -> Path:
        raise LessonsNotFound("no lessons here")

    monkeypatch.setattr(progress, "find_source", nowhere)
    with pytest.raises(LessonsNotFound, match="no lessons here"):
        own_progress(tmp_path)


@pytest.mark.parametrize(
    "guess",
    [10**5000, [10**5000], "\ud800", ["\ud800"]],
    ids=["long number", "long number in a list", "half a pair", "half a pair in a list"],
)
def test_a_guess_that_json_cannot_hold_is_kept_as_words(guess: object, tmp_path: Path) -> None:
    """A number too long to be written, and half of a surrogate pair, end no lesson."""
    assert exercises.predict("01.1", guess, Progress(tmp_path)).mark == "● NOTED"
    (kept,) = read_saved(tmp_path / "progress.json").predictions["01.1"]
    assert isinstance(kept, str)


# -- a class ---------------------------------------------------------------------------------------


def test_a_class_is_counted_as_its_files_say(folder: Path) -> None:
    """Learners, exercises with the hints that were needed, and the first guess of each."""
    hand_in(folder, "ada", exercises={"01.3": passed(2)}, predictions={"01.1": [1, 2]})
    hand_in(folder, "Bela", exercises={"01.3": passed()}, predictions={"01.1": [2]})
    hand_in(folder, "chidi", exercises={"01.3": {"state": "TRY_AGAIN", "tries": 7}})
    hand_in(folder, "dora", exercises={"01.3": passed(9), "02.2": {"state": "TODO", "tries": 1}})
    hand_in(folder, "emil")
    found = report(folder)
    assert [row["learner"] for row in found.learners_table().rows] == [
        "ada",
        "Bela",
        "chidi",
        "dora",
        "emil",
    ]
    assert found.learners_table().rows[0] == {
        "learner": "ada",
        "passed": "1 of 2",
        "tries": 2,
        "predictions": "1 of 3",
        "01": "1/1",
        "02": "0/1",
    }
    first, second = found.form()["exercises"]
    assert first == {
        "exercise": "01.3",
        "title": "once",
        "passed": 3,
        "trying": 1,
        "not_tried": 1,
        "hints": [1, 0, 1, 0, 1],
    }
    assert (second["passed"], second["trying"], second["not_tried"]) == (0, 1, 4)
    assert found.exercises_table().rows[0]["passed"] == "3 of 5 (60 %)"
    assert found.histogram("01.1").bars == (("1", 1), ("2", 1))


def test_a_guess_is_one_answer_however_it_was_typed(folder: Path) -> None:
    """4, 4.0 and "4" are one bar; numbers stand in their order, words by how often they came."""
    for n, guess in enumerate(
        [4, 4.0, "4", " 4 ", 12, 4.5, "four", "four", "five", -1, True, None]
    ):
        hand_in(folder, f"learner {n}", predictions={"02.1": [guess]})
    chart = report(folder).histogram("02.1")
    assert chart.bars == (
        ("-1", 1),
        ("4", 4),
        ("4.5", 1),
        ("12", 1),
        ("four", 2),
        ("None", 1),
        ("True", 1),
        ("five", 1),
    )
    assert [answer for answer, _ in chart.bars if chart.is_fact(answer)] == ["4"]


def test_what_came_out_has_a_bar_even_where_nobody_said_it(folder: Path) -> None:
    """An empty bar is the most telling one; a question without guesses has no chart."""
    hand_in(folder, "ada", predictions={"01.1": [1]})
    found = report(folder)
    assert found.histogram("01.1").bars == (("1", 1), ("2", 0))
    assert found.histogram("01.1").text().splitlines()[1:] == [
        f"  1  {'#' * 40} 1",
        "  2   0  <- came out so",
    ]
    assert found.histogram("01.2").bars == ()
    assert "No guess yet: 01.2, 02.1" in found.text()
    with pytest.raises(KeyError):
        found.histogram("77.7")


def test_a_thousand_different_answers_share_one_bar(folder: Path) -> None:
    """A chart fits on a page whatever was guessed, and no guess is left out of the sum."""
    for n in range(40):
        hand_in(folder, f"{n}", predictions={"01.2": [f"word {n}"]})
    chart = report(folder).histogram("01.2")
    assert len(chart.bars) == guesses.MOST_BARS + 2
    assert chart.bars[-1] == ("(28 other answers)", 28)
    assert chart.guessed == 40


def test_any_layout_is_read_and_named(folder: Path) -> None:
    """A folder per learner, a copy inside it, files with names, groups, and one loose file."""
    hand_in(folder, "ada")
    hand_in(folder, "bela/my-lessons")
    hand_in(folder, "group 1/chidi")
    for name in ("dora.json", "group 1/emil.JSON", "progress.json"):
        (folder / name).write_text(saved())
    names = [learner.name for learner in report(folder).learners]
    assert names == ["ada", "bela", "dora", "group 1/chidi", "group 1/emil", "progress"]


def test_two_files_of_one_name_are_told_apart_by_their_paths(folder: Path) -> None:
    """Nobody's work is counted under somebody else's name."""
    hand_in(folder, "ada")
    hand_in(folder, "ada/my-lessons")
    (folder / "ada.json").write_text(saved())
    names = [learner.name for learner in report(folder).learners]
    assert names == ["ada.json", "ada/my-lessons/progress.json", "ada/progress.json"]


def test_files_that_are_not_ours_are_listed_and_end_nothing(folder: Path) -> None:
    """Each with its reason; what is hidden or no JSON is passed over."""
    hand_in(folder, "ada", exercises={"01.3": passed()})
    for name, (content, _) in DAMAGED.items():
        (folder / f"{name}.json").write_bytes(content)
    (folder / "ada" / ".hidden.json").write_text("{")
    (folder / ".jupyterlab").mkdir()
    (folder / ".jupyterlab" / "overrides.json").write_text("{")
    (folder / "notes.txt").write_text("{")
    found = report(folder)
    assert [learner.name for learner in found.learners] == ["ada"]
    reasons = {each.file: each.why for each in found.not_read}
    assert set(reasons) == {f"{name}.json" for name in DAMAGED}
    assert all(reasons[f"{name}.json"].startswith(why) for name, (_, why) in DAMAGED.items())


def test_no_reason_quotes_a_file(folder: Path) -> None:
    """A foreign file may hold anything about anybody, and nothing of it reaches the report."""
    private = "what somebody wrote"
    for n, content in enumerate(
        [f'{{"{private}": 1}}', f'{{"version": "{private}"}}', f'"{private}', private]
    ):
        (folder / f"{n}.json").write_text(content)
    found = report(folder)
    assert len(found.not_read) == 4
    assert private not in found.text() + found.html() + found.csv() + json.dumps(found.form())


def test_links_pipes_and_depth_cannot_catch_the_reader(folder: Path, tmp_path: Path) -> None:
    """No link is followed, in or out or round; a pipe does not wait; folders end somewhere."""
    hand_in(folder, "ada")
    outside = tmp_path / "outside.json"
    outside.write_text(saved(predictions={"01.1": ["from outside"]}))
    (folder / "out.json").symlink_to(outside)
    (folder / "round").symlink_to(folder)
    (folder / "itself.json").symlink_to(folder / "itself.json")
    os.mkfifo(folder / "pipe.json")
    deep = folder / "d"
    for _ in range(300):
        deep /= "d"
    deep.mkdir(parents=True)
    (deep / "progress.json").write_text(saved())
    found = report(folder)
    assert [learner.name for learner in found.learners] == ["ada"]
    reasons = {each.file.rpartition("/")[2]: each.why for each in found.not_read}
    assert reasons == {
        "out.json": "is a link, and no link is followed",
        "round": "is a link, and no link is followed",
        "itself.json": "is a link, and no link is followed",
        "pipe.json": "is no plain file",
        "d": f"lies more than {classroom.DEEPEST} folders deep",
    }
    assert "from outside" not in found.text()


def test_a_folder_that_may_not_be_read_is_listed(folder: Path, monkeypatch) -> None:
    """The others are read all the same."""
    hand_in(folder, "ada")
    hand_in(folder, "locked")
    real = os.scandir

    def scandir(path: Path) -> object:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(classroom.os, "scandir", scandir)
    found = report(folder)
    assert [learner.name for learner in found.learners] == ["ada"]
    assert [each.why for each in found.not_read] == ["cannot be looked into (Permission denied)"]


def test_thousands_of_files_with_large_answers_fit_into_memory(folder: Path) -> None:
    """Of an answer of a megabyte no more is kept than a line shows."""
    large = "x" * 1_000_000
    for n in range(20):
        (folder / f"large {n}.json").write_text(saved(predictions={"01.2": [large]}))
    small = saved(exercises={"01.3": passed(1)}, predictions={"01.1": [2]})
    for n in range(2000):
        (folder / f"{n}.json").write_text(small)
    found = report(folder)
    assert len(found.learners) == 2020
    assert found.form()["exercises"][0]["passed"] == 2000
    assert found.histogram("01.1").bars == (("2", 2000),)
    assert max(len(guess) for each in found.learners for guess in each.guesses.values()) <= 60
    assert len(found.text()) < 300_000


def test_a_folder_with_nothing_to_read_is_told(folder: Path, tmp_path: Path) -> None:
    """An empty folder, and one that is not there."""
    with pytest.raises(LessonError, match="holds no progress file"):
        report(folder)
    with pytest.raises(LessonError, match="there is no such folder"):
        report(tmp_path / "nowhere")


def test_a_report_changes_nothing_in_the_folder(folder: Path) -> None:
    """Damaged files stay where they are, byte for byte."""
    hand_in(folder, "ada")
    (folder / "bad.json").write_text("{")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    report(folder).html()
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


# -- hostile names and answers ---------------------------------------------------------------------


@pytest.fixture
def hostile(folder: Path) -> ClassReport:
    """A class with names and answers that would run, colour, turn round or compute."""
    hand_in(folder, HOSTILE, predictions={"01.2": [HOSTILE], "01.1": ["=2+5", "x"]})
    hand_in(folder, '=HYPERLINK("x")', predictions={"01.1": [-5], "01.2": [["deep", [HOSTILE]]]})
    hand_in(folder, "@sum", predictions={"01.1": ["\t=1"], "02.1": ["\uff1d1"]})
    (folder / f"{HOSTILE}.json").write_text("{")
    return report(folder)


OUR_TAGS = (
    "html head meta title style body main h1 h2 h3 p div section figure figcaption details summary "
    "table caption thead tbody tr th td svg text rect"
)


def test_what_was_typed_is_shown_and_never_run(hostile: ClassReport) -> None:
    """The page holds no tag, attribute or address but ours, and the terminal no control."""
    page = Page(hostile.html())
    assert set(page.tags) <= set(OUR_TAGS.split())
    assert not {
        name for name in page.attributes if name.startswith("on") or name in ("src", "href")
    }
    assert (page.open, page.unbalanced) == ([], [])
    assert "&lt;img src=x onerror=alert(1)&gt;" in hostile.html()
    for text in (hostile.text(), hostile.csv(), hostile.html()):
        assert [char for char in text if not char.isprintable() and char != "\n"] == []


def test_no_cell_of_the_csv_is_a_formula(hostile: ClassReport) -> None:
    """A spreadsheet shows what was typed; a negative number stays one."""
    rows = list(csv.reader(io.StringIO(hostile.csv())))
    cells = [cell for row in rows[1:] for cell in row]
    assert [c for c in cells if c[:1] in ("=", "+", "@", "\uff1d")] == []
    assert "-5" in cells
    assert "'=2+5" in cells
    assert {len(row) for row in rows} == {1 + 2 * 2 + 3}


def test_the_page_asks_nobody_for_anything(hostile: ClassReport) -> None:
    """No script and no address; and a browser is told to allow none."""
    page = hostile.html()
    assert not re.search(r"https?:|//|@import|url\(|<script|javascript:", page)
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'\"" in page


def test_the_page_can_be_heard_and_read_in_the_dark(hostile: ClassReport) -> None:
    """Pictures have words, tables have captions and heads, and the colours are the system's."""
    page = Page(hostile.html())
    pictures = [attrs for tag, attrs in page.opened if tag == "svg"]
    assert len(pictures) == 3
    for attrs in pictures:
        assert attrs["role"] == "img"
        assert re.match(r"Bar chart of \d guesses about prediction", attrs["aria-label"])
        assert "It came out as" in attrs["aria-label"]
    assert page.tags["table"] == page.tags["caption"] == 6
    assert all(attrs.get("scope") == "col" for tag, attrs in page.opened if tag == "th")
    assert ("html", {"lang": "en"}) in page.opened
    style = hostile.html().partition("<style>")[2].partition("</style>")[0]
    assert "color-scheme: light dark" in style
    assert set(re.findall(r"(?:fill|color|background): (\w+)", style)) == {"Canvas", "CanvasText"}


def test_a_chart_is_drawn_for_a_notebook_with_its_words_and_numbers(hostile: ClassReport) -> None:
    """The same numbers as the page; a dollar sign is no formula."""
    plot = hostile.histogram("01.2").plot()
    assert plot.alt == hostile.histogram("01.2").alt
    assert sum(row["learners"] for row in plot.rows) == 2
    assert plot.png().startswith(b"\x89PNG")
    assert "<img src=x" not in plot.html()
    assert hostile.histogram("02.1").plot().png()


def test_a_file_name_that_is_no_text_is_shown_with_escapes(folder: Path) -> None:
    """Linux allows any bytes in a name."""
    if sys.platform != "linux":
        pytest.skip("only Linux has such names")
    path = Path(os.fsdecode(os.fsencode(folder) + b"/\xff.json"))
    path.write_text(saved())
    found = report(folder)
    assert found.learners[0].name == "\\udcff"
    (found.html() + found.csv() + found.text() + json.dumps(found.form())).encode("utf-8")


# -- writing ---------------------------------------------------------------------------------------


def test_a_report_is_written_once_and_for_its_owner_only(folder: Path, tmp_path: Path) -> None:
    """A file that is there stays, unless one says --force; nothing is left beside it."""
    target = tmp_path / "class.html"
    classroom.check_target(target, folder, force=False)
    classroom.write_new(target, "one", force=False)
    assert target.read_text() == "one"
    if os.name == "posix":
        assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with pytest.raises(LessonError, match="is there already .--force"):
        classroom.check_target(target, folder, force=False)
    with pytest.raises(LessonError, match="cannot be written .File exists"):
        classroom.write_new(target, "two", force=False)
    assert target.read_text() == "one"
    classroom.check_target(target, folder, force=True)
    classroom.write_new(target, "two", force=True)
    assert target.read_text() == "two"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["class.html", "handed-in"]


def test_nothing_is_written_into_the_class(folder: Path, tmp_path: Path) -> None:
    """Not by a path that goes round, and not by a link that leads there, whatever is forced."""
    (tmp_path / "round").symlink_to(folder)
    (tmp_path / "leads.html").symlink_to(folder / "ada.json")
    for target in (
        "handed-in/class.html",
        "round/x.html",
        "leads.html",
        "handed-in/../handed-in/x",
    ):
        with pytest.raises(LessonError, match="where nothing is written"):
            classroom.check_target(tmp_path / target, folder, force=True)
    with pytest.raises(LessonError, match="is there already"):
        classroom.check_target(tmp_path, tmp_path / "handed-in", force=True)
    with pytest.raises(LessonError, match="there is no such folder"):
        classroom.check_target(tmp_path / "no" / "x.html", folder, force=True)


def test_a_full_disk_leaves_the_old_report_whole(tmp_path: Path, monkeypatch) -> None:
    """And no half of a new one."""
    target = tmp_path / "class.html"
    target.write_text("old")

    def refuse(self: Path, other: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(LessonError, match="No space left on device"):
        classroom.write_new(target, "new", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["class.html"]
    assert target.read_text() == "old"


# -- a grader's cell -------------------------------------------------------------------------------

#: What the guide tells a teacher to write into an nbgrader test cell.
GRADER = "note = lesson.save_place.check(my_place)\nassert note.passed, note.text()"


@pytest.mark.parametrize(
    ("answer", "grade"),
    [
        ('    return before.stage == "act" and after.stage == "think"', None),
        ("    return True", "△ TRY AGAIN"),
        ("    return ...", "○ TODO"),
    ],
)
def test_a_graders_cell_fails_with_the_checkers_own_words(answer, grade, monkeypatch) -> None:
    """An assert on ``note.passed`` passes the right answer only; the feedback says why."""
    monkeypatch.setattr(exercises, "_shared", [])
    names: dict[str, object] = {}
    said = io.StringIO()
    run_cell(cell_of(LESSONS["03"].read(), "first"), names, said)
    exec(f"def my_place(before, after):\n{answer}\n", names)  # noqa: S102 - our own words
    if grade is None:
        exec(GRADER, names)  # noqa: S102 - as above
        return
    with pytest.raises(AssertionError) as failed:
        exec(GRADER, names)  # noqa: S102 - as above
    assert str(failed.value).startswith(f"{grade}  Exercise 03.6")


def test_only_a_pass_is_passed(tmp_path: Path) -> None:
    """Neither a failed checker, nor a prediction, nor the closing note."""
    progress = Progress(tmp_path)

    def fails(answer: object) -> exercises.Finding:
        raise ZeroDivisionError

    notes = [
        Exercise("01.5", "t", fails, (), progress).check(1),
        exercises.predict("01.1", 1, progress),
        exercises.closing("01", exercises=1, predictions=1, progress=progress),
    ]
    assert [note.passed for note in notes] == [False] * 3


# -- every checker has its known-wrong answers -----------------------------------------------------


def known_answers_of(number: str) -> types.ModuleType:
    """Return the test module that holds a lesson's known answers."""
    # Lesson 01 came first: its checker is tested together with the frame of all exercises.
    return importlib.import_module("test_exercises" if number == "01" else f"test_lesson{number}")


def wrong_tables(module: types.ModuleType) -> dict[str, dict | list]:
    """Return a test module's tables of known-wrong answers, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if "WRONG" in name and isinstance(value, dict | list)
    }


def is_run(table: dict | list, module: types.ModuleType) -> bool:
    """Whether a test of the module is parametrised with this very table."""
    marks = [
        mark
        for name, test in vars(module).items()
        if name.startswith("test_")
        for mark in getattr(test, "pytestmark", ())
    ]
    return any(mark.name == "parametrize" and mark.args[1] is table for mark in marks)


@pytest.mark.parametrize("lesson", LESSONS.values(), ids=lambda lesson: lesson.number)
def test_every_checker_has_six_known_wrong_answers_and_a_right_one(lesson: Lesson) -> None:
    """One table per exercise, each run by a test, each with six answers and six messages.

    The right one is the solution, which test_lesson_parts.py runs for every lesson.
    """
    module = known_answers_of(lesson.number)
    tables = wrong_tables(module)
    assert len(tables) == len(exercises_of(lesson.number)) == len(lesson.answers) > 0
    for name, table in tables.items():
        assert is_run(table, module), f"no test runs {name}"
        answers = list(table.values()) if isinstance(table, dict) else table
        assert len(answers) >= 6, name
        assert len({message for _, message in answers}) >= 6, name


def test_no_lesson_is_forgotten() -> None:
    """Whatever ships to learners is counted above, and so is every lesson's module."""
    shipped = {lesson.number for lesson in list_lessons(ROOT / "notebooks")}
    modules = {path.stem[-2:] for path in (ROOT / "durakit" / "lab").glob("lesson[0-9][0-9].py")}
    assert set(LESSONS) == shipped == modules

"""The instructor guide is held to the notebooks: cells, outcomes, quotations and sums."""

import getpass
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from lesson_checks import ROOT, cell_of, read, tagged, texts
from test_classroom import GRADER, exercises_of

from durakit.lab import lesson01
from durakit.lab.classroom import folder as classroom
from durakit.lab.classroom.plans import read_plans
from durakit.lab.exercises import Progress
from durakit.lab.lessons import list_lessons, make_copy
from durakit.lab.worlds import customers

GUIDE_FILE = ROOT / "notebooks" / "INSTRUCTOR_GUIDE.md"
GUIDE = GUIDE_FILE.read_text(encoding="utf-8")
NOTEBOOKS = {lesson.number: read(lesson.path) for lesson in list_lessons(ROOT / "notebooks")}
CELLS = {number: [cell.id for cell in notebook.cells] for number, notebook in NOTEBOOKS.items()}
#: The cells in which a lesson's exercises are answered, in their order.
ANSWERS = {
    number: [cell for cell in tagged(notebook, "exercise") if cell.cell_type == "code"]
    for number, notebook in NOTEBOOKS.items()
}
SECTIONS = [f"21.{n}" for n in range(1, 10)]


def part(heading: str) -> str:
    """Return what stands under a heading, up to the next of its level or above."""
    level = len(heading.partition(" ")[0])
    start = re.compile(rf"^{re.escape(heading)}.*\n", re.MULTILINE).search(GUIDE)
    assert start, heading
    rest = GUIDE[start.end() :]
    end = re.compile(rf"^#{{1,{level}}} ", re.MULTILINE).search(rest)
    return rest[: end.start()] if end else rest


def table(heading: str) -> list[list[str]]:
    """Return the rows of the table under a heading, without its head."""
    rows = re.findall(r"^\|(.*)\|$", part(heading), re.MULTILINE)
    return [[cell.strip() for cell in row.split(" | ")] for row in rows[2:]]


def words_of(number: str, name: str) -> str:
    """Return a cell's source and what it shows."""
    cell = cell_of(NOTEBOOKS[number], name)
    return "\n".join([cell.source, *(texts(cell) if cell.cell_type == "code" else [])])


# -- plans -----------------------------------------------------------------------------------------

PLANS = re.findall(r"^### (\d+) minutes: ", GUIDE, re.MULTILINE)


def test_there_are_plans_for_the_three_usual_lengths() -> None:
    """A lesson, a double lesson, an afternoon."""
    assert PLANS == ["45", "90", "180"]


@pytest.mark.parametrize("minutes", PLANS)
def test_a_plans_minutes_add_up(minutes: str) -> None:
    """Each row begins when the one before ends, and the last one ends with the class."""
    now = 0
    for row in table(f"### {minutes} minutes"):
        assert int(row[0]) == now, row
        now += int(row[1])
    assert now == int(minutes)


@pytest.mark.parametrize("minutes", PLANS)
def test_a_plan_names_cells_in_the_order_of_the_lessons(minutes: str) -> None:
    """Each range exists, goes forward, and begins after the one before in the same lesson."""
    seen: dict[str, int] = {}
    for row in table(f"### {minutes} minutes"):
        if "Break" in row[2]:
            assert row[3] == ""
            continue
        number, first, last = re.fullmatch(r"(\d\d) `(\w+)` to `(\w+)`", row[3]).groups()
        start, end = CELLS[number].index(first), CELLS[number].index(last)
        assert seen.get(number, -1) < start < end, row
        seen[number] = end


@pytest.mark.parametrize("minutes", PLANS)
def test_a_plan_gives_a_lesson_the_time_that_reading_it_takes(minutes: str) -> None:
    """At most one prediction in a minute, and for an exercise at least five minutes."""
    for row in table(f"### {minutes} minutes"):
        if "Break" in row[2]:
            continue
        number, first, last = re.fullmatch(r"(\d\d) `(\w+)` to `(\w+)`", row[3]).groups()
        names = CELLS[number][CELLS[number].index(first) : CELLS[number].index(last) + 1]
        guesses = sum(bool(re.fullmatch(r"p\d", name)) for name in names)
        tasks = sum(cell.id in names for cell in ANSWERS[number])
        assert int(row[1]) >= guesses + 5 * tasks, row


# -- goals, claims, misconceptions -----------------------------------------------------------------


def test_each_section_has_goals_and_its_lessons_name_it() -> None:
    """The goals go section by section; a lesson listed there has the section in its claims."""
    rows = table("## Learning goals")
    assert [row[0] for row in rows] == SECTIONS
    claimed = {(claim[0].rpartition(".")[0], claim[2]) for claim in table("## Where each claim")}
    taught = {(row[0], number) for row in rows for number in row[2].split(", ")}
    assert {number for _, number in taught} <= set(NOTEBOOKS)
    assert claimed <= taught


def test_the_claims_are_numbered_section_by_section() -> None:
    """None is missing in between, and every section has several."""
    # A claim may be taught in two lessons; then it has a row for each, one below the other.
    numbers = list(dict.fromkeys(row[0] for row in table("## Where each claim")))
    for section in SECTIONS:
        mine = [number for number in numbers if number.startswith(f"{section}.")]
        assert mine == [f"{section}.{n}" for n in range(1, len(mine) + 1)]
        assert len(mine) >= 5
    assert numbers == sorted(numbers, key=lambda text: [int(n) for n in text.split(".")])


@pytest.mark.parametrize(
    "row", table("## Where each claim"), ids=lambda row: f"{row[0]} in {row[2]}"
)
def test_a_claim_is_taught_where_the_guide_says(row: list[str]) -> None:
    """Each cell exists, and the words to look for stand in one of them."""
    _, claim, number, cells, look_for = row
    names = re.findall(r"`(\w+)`", cells)
    assert claim.endswith(".")
    assert names
    assert [name for name in names if name not in CELLS[number]] == []
    assert any(look_for in words_of(number, name) for name in names), look_for


def test_the_guide_and_the_titles_speak_of_the_same_sections() -> None:
    """What the guide calls the chapter is what the lessons together say they cover."""
    titles = " ".join(tagged(notebook, "title")[0].source for notebook in NOTEBOOKS.values())
    assert sorted(set(re.findall(r"21\.\d", titles))) == SECTIONS
    assert f"({SECTIONS[0]} to {SECTIONS[-1]})" in GUIDE.partition("\n## ")[0]


def test_the_person_who_decides_has_one_name_in_the_whole_book() -> None:
    """Grace decides, in every lesson; she is nobody's customer."""
    sources = {number: [cell.source for cell in NOTEBOOKS[number].cells] for number in NOTEBOOKS}
    names = {name for cells in sources.values() for name in re.findall(r'by="(\w+)"', str(cells))}
    assert names == {"Grace", "user"}, "a user stops a run; a person decides about an unknown"
    for number, cells in sources.items():
        told = [cell for cell in cells if "Grace" in cell]
        assert bool(told) is any('by="Grace"' in cell for cell in cells), number
        assert not told or 'by="Grace"' not in told[0], "she is introduced before she acts"
    assert "Grace" not in {customer["name"] for customer in customers()}


def test_every_lesson_teaches_some_claim() -> None:
    """A lesson without a claim would be beside the chapter."""
    assert {row[2] for row in table("## Where each claim")} == set(NOTEBOOKS)


def test_each_misconception_names_cells_that_break_it() -> None:
    """A teacher can jump there."""
    rows = table("## Misconceptions")
    assert len(rows) >= 10
    for _, cells in rows:
        places = re.findall(r"(\d\d) `(\w+)`", cells)
        assert places
        assert [place for place in places if place[1] not in CELLS[place[0]]] == []


# -- predictions -----------------------------------------------------------------------------------


def test_each_prediction_has_its_outcome_a_wrong_idea_and_a_question() -> None:
    """The outcome is what the lesson's own cell shows, and none is left out."""
    rows = table("## Expected predictions")
    asked = {
        question.number: question.fact
        for plan in read_plans(ROOT / "notebooks")
        for question in plan.questions
    }
    assert {row[0]: row[1] for row in rows} == asked
    for number, fact, often, question in rows:
        assert ":" in often, number
        assert question.endswith("?"), number
        assert not re.match(rf"{re.escape(fact)}\b", often), "the outcome is no wrong guess"


def test_each_recall_cell_shows_the_outcome() -> None:
    """Read from the notebook itself, without the code that reads it for reports."""
    for number, fact, *_ in table("## Expected predictions"):
        lesson, _, n = number.partition(".")
        (shown,) = texts(cell_of(NOTEBOOKS[lesson], f"r{n}"))
        assert shown.endswith(f"it came out as {fact}.")


def test_a_guess_can_be_collected_in_the_middle_of_a_lesson(tmp_path: Path) -> None:
    """As the guide says: the file is whole after each cell, and the report only reads."""
    assert "**In the middle of a lesson.**" in part("## Progress, score")
    copy = tmp_path / "handed-in" / "ada"
    copy.mkdir(parents=True)
    frame = replace(lesson01.frame, progress=Progress(copy))
    for number, guess in (("01.1", 1), ("01.2", "failed"), ("01.3", 4)):
        frame.predict(number, guess)
        before = (copy / "progress.json").read_bytes()
        assert classroom.read_class(copy.parent).histogram(number).guessed == 1
        assert (copy / "progress.json").read_bytes() == before


# -- nbgrader, and the rest ------------------------------------------------------------------------


def test_the_graders_lines_are_those_of_the_lessons() -> None:
    """For each exercise, the very call that its cell makes, which is the cell's last line.

    Where the cell has three dots among the arguments, a grader's line has names for them.
    """
    rows = {row[0]: row[1].strip("`") for row in table("## With nbgrader")}
    numbers = [task.number for number in NOTEBOOKS for task in exercises_of(number)]
    cells = [cell for number in NOTEBOOKS for cell in ANSWERS[number]]
    for number, cell in zip(numbers, cells, strict=True):
        call = cell.source.splitlines()[-1].partition("  #")[0]
        pattern = re.escape(call).replace(re.escape("..."), r"\w+")
        assert re.fullmatch(pattern, rows.pop(number)), number
    assert rows == {}
    assert f"```python\n{GRADER}\n```" in part("## With nbgrader")


@pytest.mark.parametrize("place", ["Binder", "VS Code"])
def test_what_was_not_tried_says_so(place: str) -> None:
    """A recipe from documentation alone is marked as one."""
    assert f"**{place} (not tried by us).**" in part("## Other places")


@pytest.mark.skipif(not hasattr(os, "chown"), reason="a hub with local accounts is Unix only")
def test_the_hubs_hook_copies_each_lesson_once_and_never_writes_over_one(tmp_path: Path) -> None:
    """The recipe for JupyterHub is run as it stands; only its two folders are ours."""
    (recipe,) = re.findall(r"```python\n(.*?)```", part("## Other places"), flags=re.DOTALL)
    homes, lessons = tmp_path / "homes", ROOT / "notebooks"
    recipe = recipe.replace("/home/", f"{homes.as_posix()}/").replace(
        "/srv/durakit/notebooks", lessons.as_posix()
    )
    me = getpass.getuser()
    (homes / me).mkdir(parents=True)
    config = SimpleNamespace(Spawner=SimpleNamespace())
    exec(recipe, {"c": config})  # noqa: S102 - our own guide
    spawner = SimpleNamespace(user=SimpleNamespace(name=me))
    config.Spawner.pre_spawn_hook(spawner)
    copy = homes / me / "my-lessons"
    names = sorted(path.name for path in lessons.glob("*.ipynb"))
    assert sorted(path.name for path in copy.iterdir()) == names
    (copy / names[0]).write_text("the learner's")
    config.Spawner.pre_spawn_hook(spawner)
    assert (copy / names[0]).read_text() == "the learner's"


def test_every_command_in_the_guide_exists() -> None:
    """No teacher types a command that is not there."""
    from durakit.cli.parser import make_parser

    known = make_parser()._subparsers._group_actions[0].choices
    named = re.findall(r"`?uv run (?:--no-sync )?durakit ([\w-]+)", GUIDE)
    assert {"lab", "reset", "progress", "class-report"} <= set(named)
    assert [name for name in named if name not in known] == []


def test_learners_do_not_get_the_guide_and_nbval_does_not_collect_it(tmp_path: Path) -> None:
    """It lies beside the notebooks, and is none."""
    copied = make_copy(GUIDE_FILE.parent, tmp_path / "my-lessons")
    assert {path.suffix for path in copied} == {".ipynb"}
    assert not (tmp_path / "my-lessons" / GUIDE_FILE.name).exists()
    with pytest.raises(nbformat.reader.NotJSONError):
        nbformat.read(GUIDE_FILE, as_version=4)


def test_the_files_that_the_guide_names_are_there() -> None:
    """A teacher who looks for one finds it."""
    for name in ("data/fault_cards.json", "solutions", "tests/test_guide.py"):
        assert name in GUIDE
        assert (ROOT / name).exists()

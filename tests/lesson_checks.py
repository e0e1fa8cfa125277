"""What every lesson's tests check alike: its parts, its words, its stored outputs, its solution."""

import ast
import builtins
import contextlib
import functools
import io
import itertools
import json
import linecache
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from nbformat import NotebookNode

import notebooks as tool

ROOT = Path(__file__).resolve().parent.parent

PARTS = ["title", "goals", "first", "predict", "exercise", "takeaway", "terms", "end"]


@dataclass(frozen=True)
class Lesson:
    """One lesson by its file's name.

    ``facts``: what is shown beside each of its predictions, which its text explains.
    ``answers``: the cells of its exercises. ``forks``: it makes a process of its own.
    """

    name: str
    title: str
    facts: tuple[str, ...]
    answers: tuple[str, ...] = ("answer",)
    forks: bool = False

    @property
    def number(self) -> str:
        """The first two digits of its name."""
        return self.name[:2]

    @property
    def path(self) -> Path:
        """The lesson as it ships."""
        return ROOT / "notebooks" / self.name

    @property
    def predictions(self) -> int:
        """How many guesses it asks for."""
        return len(self.facts)

    @property
    def solution_path(self) -> Path:
        """The lesson with its exercises worked, as it is stored."""
        return ROOT / "solutions" / self.name

    def build_solution(self) -> NotebookNode:
        """Return the same, as it follows from the lesson and the worked answers."""
        return tool.source_of(self.solution_path)

    def read(self) -> NotebookNode:
        """Return the lesson as it is stored."""
        return read(self.path)

    def guesses(self) -> list[str]:
        """Return the numbers of its predictions."""
        return [f"{self.number}.{n}" for n in range(1, self.predictions + 1)]


TWO = ("answer", "answer2")

#: Every lesson, by its number.
LESSONS = {
    lesson.number: lesson
    for lesson in (
        Lesson(
            "01_twice_in_the_inbox.ipynb", "Twice in the inbox", ("2", "needs_decision", "1", "1")
        ),
        Lesson(
            "02_crash_anywhere.ipynb", "Crash anywhere", ("7", "3", "3", "6"), forks=True
        ),
        Lesson(
            "03_inside_a_checkpoint.ipynb", "Inside a checkpoint", ("2", "1", "1", "9", "0")
        ),
        Lesson(
            "04_may_i_retry.ipynb", "May I retry?", ("3", "2", "transient", "1", "False", "2"),
            ("sort", "answer"),
        ),
        Lesson(
            "05_backoff_against_the_deadline.ipynb", "Backoff against the deadline",
            ("4.0", "7.0", "before", "95", "4", "40"), TWO,
        ),
        Lesson(
            "06_nested_budgets.ipynb", "Nested budgets", ("70", "5", "1", "1", "3", "0"), TWO
        ),
        Lesson(
            "07_one_operation_one_key.ipynb", "One operation, one key",
            ("2", "2", "4", "1", "409", "20", "2"), TWO,
        ),
        Lesson(
            "08_resume_runs_code_again.ipynb", "Resume runs code again",
            ("2", "1", "2", "1", "needs_decision"),
        ),
        Lesson(
            "09_clinic.ipynb", "The clinic", ("6", "2", "completed", "1", "2"),
            tuple(f"answer{number}" for number in range(1, 8)),
        ),
    )
}  # fmt: skip


def read(path: Path) -> NotebookNode:
    """Return a notebook as it is stored."""
    return nbformat.read(path, as_version=4)


def tagged(notebook: NotebookNode, tag: str) -> list[NotebookNode]:
    """Return the cells that carry a tag, in order."""
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", ())]


def texts(cell: NotebookNode) -> list[str]:
    """Return what a cell shows, as plain text."""
    return [output.get("text") or output["data"]["text/plain"] for output in cell.outputs]


def cell_of(notebook: NotebookNode, name: str) -> NotebookNode:
    """Return the cell of that id."""
    return next(cell for cell in notebook.cells if cell.id == name)


# -- running it ------------------------------------------------------------------------------------


#: Seconds after which a lesson is taken to hang. What it may take is measured, and no test.
HANGING = 90.0


@functools.cache
def run_fresh(lesson: Lesson) -> NotebookNode:
    """Run the lesson in a fresh kernel to its end, leaving nothing.

    Once for all tests, which only look at it.
    """
    notebook = lesson.read()
    before = sorted(path.name for path in lesson.path.parent.iterdir())
    assert tool.run(notebook, lesson.path.parent, limit=HANGING) == []
    after = sorted(path.name for path in lesson.path.parent.iterdir())
    assert after == before, "left something behind"
    return notebook


def play(
    lesson: Lesson,
    look: Callable[[str, dict[str, object]], object] | None = None,
    names: dict[str, object] | None = None,
) -> tuple[dict[str, object], str]:
    """Run the lesson's cells as a plain script; after each one, ``look(its id, its names)``.

    Returns the names, and all that was printed. ``names`` of an earlier run make it a second one.
    """
    names = {} if names is None else names
    said = io.StringIO()
    for cell in lesson.read().cells:
        if cell.cell_type != "code":
            continue
        run_cell(cell, names, said)
        if look is not None:
            look(cell.id, names)
    return names, said.getvalue()


_runs = itertools.count()


def run_cell(cell: NotebookNode, names: dict[str, object], said: io.StringIO) -> None:
    """Run one cell as a kernel does: its source can be looked up afterwards."""
    file = f"<cell {cell.id} {next(_runs)}>"
    linecache.cache[file] = (len(cell.source), None, cell.source.splitlines(keepends=True), file)
    with contextlib.redirect_stdout(said):
        exec(compile(cell.source, file, "exec"), names)  # noqa: S102 - our own cell


# -- what each lesson must be ----------------------------------------------------------------------


def check_parts(lesson: Lesson) -> None:
    """Title, goals, first cell, predictions, exercise, takeaway, terms, closing mark."""
    cells = lesson.read().cells
    order = [cell.metadata["tags"][0] for cell in cells if cell.metadata.get("tags")]
    assert list(dict.fromkeys(order)) == PARTS


def check_title_and_takeaway(lesson: Lesson) -> None:
    """One heading on top, and a takeaway of one sentence."""
    (title,) = tagged(lesson.read(), "title")
    assert title.source.startswith(f"# {lesson.number} · {lesson.title}\n")
    (takeaway,) = tagged(lesson.read(), "takeaway")
    (sentence,) = re.findall(r"\*\*(.+?)\*\*", takeaway.source, flags=re.DOTALL)
    assert re.findall(r"[.!?]", sentence) == ["."]


def check_predictions(lesson: Lesson) -> None:
    """A question stands before each three dots, and the fact is shown after them."""
    source = "\n".join(cell.source for cell in lesson.read().cells)
    number, expected = lesson.number, lesson.guesses()
    assert re.findall(rf"\*\*Predict ({number}\.\d)\*\*", source) == expected
    asked = re.findall(rf'^predict\("({number}\.\d)", \.\.\.\)$', source, flags=re.MULTILINE)
    assert asked == expected
    told = re.findall(rf'^recall\("({number}\.\d)", fact=', source, flags=re.MULTILINE)
    assert told == expected
    for guess in expected:
        verbs = ("**Predict {}**", 'predict("{}"', 'recall("{}"')
        positions = [source.index(verb.format(guess)) for verb in verbs]
        assert positions == sorted(positions)


def check_cells(lesson: Lesson) -> None:
    """No cell is empty, and each fits on the screen beside its text."""
    for cell in lesson.read().cells:
        assert cell.source.strip(), cell.id
        if cell.cell_type == "code":
            assert len(cell.source.splitlines()) <= 18, cell.id
            assert max(map(len, cell.source.splitlines())) <= 92, cell.id


def check_words(lesson: Lesson) -> None:
    """Every word it explains is a word it uses."""
    notebook = lesson.read()
    (terms,) = tagged(notebook, "terms")
    before = "\n".join(cell.source for cell in notebook.cells if cell is not terms).lower()
    rows = re.findall(r"^\| ([^|]+) \|", terms.source, flags=re.MULTILINE)[1:]
    words = [word.strip(" `") for row in rows if "--" not in row for word in row.split(",")]
    assert len(words) >= 8
    assert [word for word in words if word.lower() not in before] == []


def check_first_cell(
    lesson: Lesson, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without durakit it prints one line that says what to do, and stops there."""
    real = builtins.__import__

    def without(name: str, *rest: object) -> ModuleType:
        if name.partition(".")[0] == "durakit":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    (first,) = tagged(lesson.read(), "first")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError):
        exec(first.source, {})  # noqa: S102 - our own cell
    (line,) = capsys.readouterr().out.splitlines()
    assert "uv run durakit lab" in line


def check_stored_outputs(stored: NotebookNode, fresh: NotebookNode) -> None:
    """The outputs that a reader sees on a web page are those that a learner gets."""
    expected, shown = (
        [texts(cell) for cell in notebook.cells if cell.cell_type == "code"]
        for notebook in (stored, fresh)
    )
    assert shown == expected


def facts(lesson: Lesson, fresh: NotebookNode) -> list[str]:
    """Return the facts shown beside the predictions."""
    numbers = range(1, lesson.predictions + 1)
    return [texts(cell_of(fresh, f"r{n}"))[0].rpartition(" ")[2].rstrip(".") for n in numbers]


def check_stub(fresh: NotebookNode, answers: tuple[str, ...] = ("answer",)) -> None:
    """The lesson as it ships asks, and neither passes nor fails."""
    for name in answers:
        (shown,) = texts(cell_of(fresh, name))
        assert shown.startswith("○ TODO"), name


def check_solution(lesson: Lesson) -> None:
    """Built from the lesson it runs in a fresh kernel, is told ✓ PASS, and so it is stored."""
    stored, notebook = read(lesson.solution_path), lesson.build_solution()
    assert tool.run(notebook, lesson.solution_path.parent, limit=HANGING) == []
    for name in lesson.answers:
        (shown,) = texts(cell_of(notebook, name))
        assert shown.startswith("✓ PASS"), name
    many = len(lesson.answers)
    assert texts(cell_of(notebook, "end"))[0].startswith(
        f"■ END  Lesson {lesson.number}: {many} of {many} exercises passed"
    )
    assert [(cell.id, cell.source) for cell in stored.cells] == [
        (cell.id, cell.source) for cell in notebook.cells
    ]
    check_stored_outputs(stored, notebook)


def check_learner(lesson: Lesson, folder: Path) -> None:
    """In my-lessons/ the guesses and passes are kept, with the worked answers put in."""
    copy = folder / "my-lessons"
    copy.mkdir()
    notebook = lesson.build_solution()
    # A guess is noted if it is of the kind asked for, as what came out is.
    answers = [ast.literal_eval(fact) if fact[0].isdigit() or fact == "False" else fact
               for fact in lesson.facts]  # fmt: skip
    for number, answer in enumerate(answers, 1):
        cell = cell_of(notebook, f"p{number}")
        cell.source = cell.source.replace("...", repr(answer))
    assert tool.run(notebook, copy, limit=HANGING) == []
    kept = json.loads((copy / "progress.json").read_text())
    given = [[answer] for answer in answers]
    assert kept["predictions"] == dict(zip(lesson.guesses(), given, strict=True))
    first = lesson.predictions + 1
    numbers = range(first, first + len(lesson.answers))
    assert kept["exercises"] == {
        f"{lesson.number}.{number}": {"state": "PASS", "tries": 0} for number in numbers
    }
    assert [path.name for path in copy.iterdir()] == ["progress.json"]
    (closing,) = texts(cell_of(notebook, "end"))
    many, done = lesson.predictions, len(lesson.answers)
    told = f"{done} of {done} exercises passed, {many} of {many} predictions noted"
    assert told in closing

"""A solution is its lesson with worked answers put in: tools/worked.py."""

import nbformat
import pytest
from lesson_checks import cell_of
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from worked import WorkedError, build

TITLE = "# 99 · A lesson: the exercises, worked\n\nTry it first."

ANSWER = """## Exercise 99.1, worked

Why it is so.

- a fence in a list is text:

  ```python
  no = "cell"
  ```

```python answer
def double(n):
    # not a heading
    return 2 * n


check(double)
```
"""


@pytest.fixture
def lesson():
    """A lesson with two exercises."""
    return new_notebook(
        cells=[
            new_markdown_cell("# 99 · A lesson", id="title"),
            new_code_cell("double = ...", id="answer", metadata={"tags": ["exercise"]}),
            new_code_cell("half = ...", id="answer2"),
            new_code_cell("end()", id="end"),
        ]
    )


def told(notebook):
    """The kind, name and source of each cell."""
    return [(cell.cell_type, cell.id, cell.source) for cell in notebook.cells]


def test_an_answer_takes_its_cell_with_its_reasons_around_it(lesson):
    """Text before and after, one more cell of code, and all else as it was."""
    text = f"{TITLE}\n\n{ANSWER}\nLook.\n\n```python\nplot()\n```\n"
    built = build(lesson, text)
    assert [cell.id for cell in built.cells] == [
        "title", "answer-before1", "answer", "answer-after1", "answer-after2", "answer2", "end",
    ]  # fmt: skip
    assert cell_of(built, "title").source == TITLE
    assert cell_of(built, "answer").source.startswith("def double(n):\n    # not a heading\n")
    assert cell_of(built, "answer").metadata == {"tags": ["exercise"]}
    assert 'no = "cell"' in cell_of(built, "answer-before1").source
    assert told(built)[3:5] == [
        ("markdown", "answer-after1", "Look."),
        ("code", "answer-after2", "plot()"),
    ]
    nbformat.validate(built)


@pytest.mark.parametrize("end", ["\f", "\x1c", "\x85", "\u2028", "\r", "\r\n"], ids=ascii)
def test_only_what_ends_a_line_in_markdown_cuts_a_text(lesson, end):
    """Python knows more ends of lines; counted by those, a piece would begin too early."""
    text = f"{TITLE}\n\n## One\n\nfirst{end}second\n\n```python answer\n1\n```\n\nLook.\n"
    built = build(lesson, text)
    assert cell_of(built, "answer").source == "1"
    assert cell_of(built, "answer-after1").source == "Look."
    before = cell_of(built, "answer-before1").source
    assert before.startswith("## One\n\nfirst")
    assert before.endswith("second")


def test_the_lesson_itself_is_not_touched(lesson):
    """It is read, and a copy is built."""
    before = told(lesson)
    build(lesson, f"{TITLE}\n\n{ANSWER}")
    assert told(lesson) == before


def test_building_again_gives_the_same(lesson):
    """No cell is named by chance: what is stored can be compared."""
    text = f"{TITLE}\n\n{ANSWER}"
    assert build(lesson, text) == build(lesson, text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the title is missing"),
        ("Just so.", "line 1: a worked lesson begins with its title"),
        (f"{TITLE}\n\n```python answer\n1\n```\n", "the title is a text without code"),
        (f"{TITLE}\n\n## One\n\nno answer", "'## One' has 0 answers"),
        (f"{TITLE}\n\n{ANSWER}\n```python answer2\n1\n```\n", "worked' has 2 answers"),
        (f"{TITLE}\n\n{ANSWER.replace('answer', 'anser')}", "the lesson has no cell 'anser'"),
        (f"{TITLE}\n\n{ANSWER}\n{ANSWER}", "'answer' is answered twice"),
        (f"{TITLE}\n\n## One\n\n```answer\n1\n```\n", "line 7: a fence begins with ```python"),
    ],
)
def test_what_does_not_fit_is_named(lesson, text, says):
    """The line, the section or the cell is in the message."""
    with pytest.raises(WorkedError, match=says):
        build(lesson, text)

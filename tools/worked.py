"""Build a solution: the lesson's own notebook, with the worked answers of a Markdown file put in.

A solution is written as `solutions/<lesson>.md`: a title, then one section for each exercise.

    # 06 · Nested budgets: the exercises, worked

    Try them yourself first …

    ## Exercise 06.7, worked

    Why it is so …

    ```python answer
    def my_limit(own, left): …
    ```

    What to look at …

The fence's second word is the `id` of the lesson's cell that it takes the place of. What stands
before it in its section goes before that cell, and what stands after it, after. A fence without a
second word is one more cell. The title takes the place of the lesson's. All else is the lesson.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass

from markdown_it import MarkdownIt
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell


class WorkedError(ValueError):
    """The Markdown does not fit the lesson; the message names the line, section or cell."""


@dataclass(frozen=True)
class Block:
    """A piece of the Markdown: a text, or a cell of code that may say which cell it replaces."""

    source: str
    is_code: bool = False
    replaces: str = ""


def blocks(text: str) -> Iterator[Block]:
    """Yield the pieces of a Markdown text: it is cut at headings of two levels, and at fences."""
    # Cut as Markdown cuts; splitlines() also knows line ends that no editor shows.
    lines, done = re.split(r"\r\n?|\n", text), 0
    for token in MarkdownIt("commonmark").parse(text):
        is_fence = token.type == "fence"
        is_heading = token.type == "heading_open" and token.tag in {"h1", "h2"}
        # Only what stands at the margin; a fence inside a list is a part of its text.
        if token.level or token.map is None or not (is_fence or is_heading):
            continue
        start, end = token.map
        yield Block("\n".join(lines[done:start]).strip())
        done = start
        if is_fence:
            language, _, replaces = token.info.strip().partition(" ")
            if language != "python":
                raise WorkedError(f"line {start + 1}: a fence begins with ```python")
            yield Block(token.content.rstrip("\n"), is_code=True, replaces=replaces.strip())
            done = end
    yield Block("\n".join(lines[done:]).strip())


def sections(text: str) -> list[list[Block]]:
    """Return the pieces of each section, its heading's first."""
    found: list[list[Block]] = []
    for block in filter(lambda block: block.source, blocks(text)):
        if not block.is_code and block.source.startswith(("# ", "## ")):
            found.append([])
        if not found:
            raise WorkedError("line 1: a worked lesson begins with its title, # NN · …")
        found[-1].append(block)
    return found


def build(lesson: NotebookNode, text: str) -> NotebookNode:
    """Return a copy of a lesson with its answers worked, as a Markdown text says.

    Raises WorkedError where a section has not one answer, or names a cell that the lesson has not.
    """
    notebook = copy.deepcopy(lesson)
    found = sections(text)
    if not found:
        raise WorkedError("the title is missing: # NN · …")
    title, *exercises = found
    if len(title) != 1:
        raise WorkedError("the title is a text without code; an exercise begins with ##")
    _cell(notebook, "title").source = title[0].source
    done: set[str] = set()
    for section in exercises:
        name = _work(notebook, section)
        if name in done:
            raise WorkedError(f"{name!r} is answered twice")
        done.add(name)
    return notebook


def _work(notebook: NotebookNode, section: list[Block]) -> str:
    """Put one answer into its cell, and the rest of its section around it; return its name."""
    heading = section[0].source.partition("\n")[0]
    answers = [block for block in section if block.replaces]
    if len(answers) != 1:
        raise WorkedError(f"{heading!r} has {len(answers)} answers: one fence names one cell")
    cell = _cell(notebook, answers[0].replaces)
    cell.source = answers[0].source
    middle, at = section.index(answers[0]), notebook.cells.index(cell)
    notebook.cells[at : at + 1] = [
        *(_new(block, f"{cell.id}-before{n}") for n, block in enumerate(section[:middle], 1)),
        cell,
        *(_new(block, f"{cell.id}-after{n}") for n, block in enumerate(section[middle + 1 :], 1)),
    ]
    return answers[0].replaces


def _cell(notebook: NotebookNode, name: str) -> NotebookNode:
    for cell in notebook.cells:
        if cell.id == name:
            return cell
    raise WorkedError(f"the lesson has no cell {name!r}")


def _new(block: Block, name: str) -> NotebookNode:
    make = new_code_cell if block.is_code else new_markdown_cell
    return make(block.source, id=name)

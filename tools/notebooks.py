"""Run the lessons and their solutions from top to bottom and store what came out.

    uv run python tools/notebooks.py                  all of them, in place
    uv run python tools/notebooks.py notebooks/01*    some of them
    uv run python tools/notebooks.py --check          write nothing; say what would not hold

A solution is first built from its lesson and from the worked answers beside it (worked.py).
Every notebook gets a fresh kernel under the environment that the tests use, and is stored in one
normal form: no widget state, no times, execution counts from 1, one kernel name. A notebook is only
stored if every cell ran and the last one shows the closing mark, since a checker that only looks
for error messages takes a cell that never ran for a good one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from worked import WorkedError, build

ROOT = Path(__file__).resolve().parent.parent
LESSONS, SOLUTIONS = ROOT / "notebooks", ROOT / "solutions"

#: The same bytes on every machine; as in conftest.py.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "TZ": "UTC", "PYTHONUTF8": "1"}

#: What the last cell of every notebook shows.
CLOSING_MARK = "■ END"

#: Seconds for a whole notebook in a fresh kernel.
LIMIT = 20.0

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def source_of(path: Path) -> NotebookNode:
    """Return a notebook as it is to be run: a solution is built, and all else is as it is stored.

    Raises WorkedError where the worked answers do not fit the lesson.
    """
    if path.resolve().parent != SOLUTIONS:
        return nbformat.read(path, as_version=4)
    lesson = nbformat.read(LESSONS / path.name, as_version=4)
    return build(lesson, path.with_suffix(".md").read_text(encoding="utf-8"))


def run(notebook: NotebookNode, folder: Path, limit: float = LIMIT) -> list[str]:
    """Run a notebook in place in a fresh kernel that works in ``folder``.

    Returns what is wrong with the run, in words; nothing where all is well.
    """
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    ends = time.monotonic() + limit
    client = NotebookClient(
        notebook,
        # What is left for the notebook is the limit of its next cell.
        timeout_func=lambda _cell: max(0.1, ends - time.monotonic()),
        kernel_name="python3",
        resources={"metadata": {"path": folder}},
    )
    try:
        # What a kernel says to its own stderr is about sockets, not about the lesson.
        client.execute(env=os.environ | ENVIRONMENT, stderr=subprocess.DEVNULL)
    except CellExecutionError as error:
        return [f"a cell raised {error.ename}: {error.evalue}"]
    except CellTimeoutError:
        return [f"it takes more than {limit:g} seconds"]
    except DeadKernelError:
        return ["its kernel died"]
    join_streams(notebook)
    return problems(notebook)


def join_streams(notebook: NotebookNode) -> None:
    """Make one output of what a kernel printed in several pieces: where it cuts is chance."""
    for cell in notebook.cells:
        joined: list[NotebookNode] = []
        for output in cell.get("outputs", []):
            last = joined[-1] if joined else None
            same = last is not None and last.output_type == output.output_type == "stream"
            if last is not None and same and last.name == output.name:
                last.text += output.text
            else:
                joined.append(output)
        if cell.cell_type == "code":
            cell.outputs = joined


def problems(notebook: NotebookNode) -> list[str]:
    """Return what is wrong with a notebook that has been run, in words."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    found = []
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        found.append("not every cell was run, from top to bottom")
    shown = [output for cell in code for output in cell.outputs]
    found += [
        f"a cell raised {output.ename}: {output.evalue}"
        for output in shown
        if output.output_type == "error"
    ]
    found += [
        f"a cell wrote to stderr: {output.text.strip()}"
        for output in shown
        if output.output_type == "stream" and output.name == "stderr"
    ]
    last = code[-1].outputs if code else []
    closings = [output.get("data", {}).get("text/plain", "") for output in last]
    if not any(text.startswith(CLOSING_MARK) for text in closings):
        found.append(f"its last cell does not show {CLOSING_MARK!r}")
    return found


def normalise(notebook: NotebookNode) -> None:
    """Take away what differs from run to run or from one editor to the next."""
    notebook.metadata = NotebookNode({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    for cell in notebook.cells:
        tags = cell.metadata.get("tags")
        cell.metadata = NotebookNode({"tags": tags} if tags else {})
        for output in cell.get("outputs", []):
            # A widget without its kernel opens as 'model not found' before its own HTML.
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
            if "metadata" in output:
                # The words beside a picture stay: a page made by nbconvert reads them out.
                told = output.metadata.items()
                alts = {kind: {"alt": said["alt"]} for kind, said in told if "alt" in said}
                output.metadata = nbformat.from_dict(alts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the notebooks named, or all; return how many do not hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks; all if none is named")
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args(arguments)
    # A shell's solutions/01* is the page of worked answers, too.
    paths = [path for path in given.paths if path.suffix != ".md"] or [
        *sorted(LESSONS.glob("*.ipynb")),
        # Also one that is not built yet.
        *(text.with_suffix(".ipynb") for text in sorted(SOLUTIONS.glob("*.md"))),
    ]
    # A person's own IPython profile must not change what a lesson prints.
    with tempfile.TemporaryDirectory(prefix="durakit-ipython-") as profile:
        os.environ.update(ENVIRONMENT, IPYTHONDIR=profile)
        return sum(_store(path, check=given.check) for path in paths)


def _store(path: Path, *, check: bool) -> bool:
    """Run one notebook and store it if it holds; return whether something is wrong."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    try:
        notebook = source_of(path)
    except WorkedError as error:
        print(f"{path.name}: {error}")
        return True
    wrong = run(notebook, path.parent)
    normalise(notebook)
    nbformat.validate(notebook)
    after = nbformat.writes(notebook) + "\n"
    if not wrong and check and after != before:
        wrong = ["its stored outputs are not what it shows now"]
    for line in wrong:
        print(f"{path.name}: {line}")
    if not wrong:
        print(f"{path.name}: good")
        if not check and after != before:
            path.write_text(after, encoding="utf-8")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

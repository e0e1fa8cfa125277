"""The commands around the lessons, in a checkout of their own."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import command_line
import pytest
from command_line import ROOT, all_refused, answer

compiled_once = command_line.compiled_once


#: A lesson, written as a copy of it is.
AS_IT_SHIPS = '{\n "cells": []\n}\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of its own, so that no test meets a learner's copy; its JupyterLab is a stub."""
    shutil.copytree(
        ROOT / "durakit", tmp_path / "durakit", ignore=shutil.ignore_patterns("__pycache__")
    )
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "notebooks").mkdir()
    for name in ("01_twice.ipynb", "02_anywhere.ipynb"):
        (tmp_path / "notebooks" / name).write_text(AS_IT_SHIPS)
    stub = "import sys\nprint(*sys.argv[1:], sep='\\n')\nsys.exit(7)\n"
    (tmp_path / "jupyterlab.py").write_text(stub)
    return tmp_path


# -- lessons -----------------------------------------------------------------------------


def test_lab_makes_the_learners_copy_and_opens_the_first_lesson(checkout: Path) -> None:
    """JupyterLab is started on lesson 01 of the copy, and its exit code is handed on."""
    text = answer(checkout, "lab", code=7)
    assert "2 new lesson(s) in" in text
    assert "--LabApp.default_url=/lab/tree/01_twice.ipynb" in text
    assert "--no-browser" not in text
    assert (checkout / "my-lessons" / "02_anywhere.ipynb").read_text() == AS_IT_SHIPS


def test_lab_opens_another_lesson_without_a_browser_and_keeps_what_was_written(
    checkout: Path,
) -> None:
    """A copy that is there is only completed."""
    mine = checkout / "my-lessons" / "02_anywhere.ipynb"
    mine.parent.mkdir()
    mine.write_text("mine")
    text = answer(checkout, "lab", "--no-browser", "2", code=7)
    assert "--LabApp.default_url=/lab/tree/02_anywhere.ipynb" in text
    assert text.splitlines()[-1] == "--no-browser"
    assert mine.read_text() == "mine"


def test_reset_restores_a_lesson_and_names_the_backup(checkout: Path) -> None:
    """The learner reads where the old notebook went."""
    mine = checkout / "my-lessons" / "01_twice.ipynb"
    mine.parent.mkdir()
    mine.write_text("mine")
    assert "yours is kept as 01_twice.backup-1.ipynb" in answer(checkout, "reset", "01")
    assert mine.read_text() == AS_IT_SHIPS
    assert mine.with_name("01_twice.backup-1.ipynb").read_text() == "mine"
    assert "kept" not in answer(checkout, "reset", "1")


def test_an_unknown_lesson_is_one_line_that_lists_them(checkout: Path) -> None:
    """Exit code 2, and the numbers that there are."""
    says = "durakit: there is no lesson '09'; there are: 01 twice, 02 anywhere\n"
    assert all_refused(checkout, ["lab", "09"], ["reset", "09"]) == [says, says]
    assert not (checkout / "my-lessons").exists()  # nothing is made before the number is read
    (checkout / "my-lessons").mkdir()
    for name in ("01_twice.ipynb", "02_anywhere.ipynb"):
        (checkout / "my-lessons" / name).write_text("mine")
    assert all_refused(checkout, ["lab", "09"], ["reset", "09"]) == [says, says]


# -- progress, and a class's report ------------------------------------------------------


@pytest.fixture
def learner(checkout: Path) -> Path:
    """A checkout with one real lesson, and a learner's copy with some progress."""
    for path in (checkout / "notebooks").iterdir():
        path.unlink()
    shipped = ROOT / "notebooks" / "01_twice_in_the_inbox.ipynb"
    shutil.copy(shipped, checkout / "notebooks")
    mine = checkout / "my-lessons"
    mine.mkdir()
    (mine / "progress.json").write_text(
        '{"version": 1, "exercises": {"01.5": {"state": "PASS", "tries": 3}},'
        ' "predictions": {"01.1": [2], "01.2": ["failed"]}}'
    )
    return checkout


def test_progress_tells_the_same_from_any_folder_and_changes_nothing(learner: Path) -> None:
    """In the checkout, in the copy and elsewhere: the copy's own file, which stays as it is."""
    file = learner / "my-lessons" / "progress.json"
    before = file.read_bytes()
    program = f"import sys; sys.path.insert(0, {str(learner)!r}); from durakit.cli import main; "
    elsewhere = learner / "elsewhere"
    elsewhere.mkdir()
    told = {
        subprocess.run(
            [sys.executable, "-c", f"{program} sys.exit(main(['progress']))"],
            cwd=folder, check=True, capture_output=True, text=True, timeout=60,
        ).stdout
        for folder in (learner, learner / "my-lessons", elsewhere)
    }  # fmt: skip
    (text,) = told
    assert re.search(r"01 Twice in the inbox +1 of 1 +3 +2 of 4", text)
    assert "Score: 1 of 1 exercises passed (100 %); 2 of 4 predictions made" in text
    assert file.read_bytes() == before
    form = json.loads(answer(learner, "progress", "--json"))
    assert (form["passed"], form["exercises"], form["predicted"]) == (1, 1, 2)
    assert form["lessons"][0]["tries"] == 3


def test_progress_without_a_file_and_with_a_damaged_one(learner: Path) -> None:
    """Nothing yet is an answer; a damaged file is named, and left byte for byte."""
    file = learner / "my-lessons" / "progress.json"
    file.write_text('{"version": 1')
    (line,) = all_refused(learner, ["progress"])
    assert f"{file}: is damaged" in line
    assert file.read_text() == '{"version": 1'
    file.unlink()
    assert "Nothing is noted yet" in answer(learner, "progress")
    assert not file.exists()


def test_a_class_report_tells_writes_and_lists_what_it_could_not_read(learner: Path) -> None:
    """A table, histograms, a CSV and a page; exit code 1 where a file needs a person."""
    folder = learner / "handed-in"
    (folder / "ada").mkdir(parents=True)
    shutil.copy(learner / "my-lessons" / "progress.json", folder / "ada")
    words = ["class-report", "handed-in", "--csv", "c.csv", "--html", "c.html"]
    text = answer(learner, *words)
    assert re.search(r"ada +1 of 1 +3 +2 of 4 +1/1", text)
    assert re.search(r"01\.1 .*\n  2  #{40} 1  <- came out so", text)
    assert (learner / "c.csv").read_text().startswith("learner,01.5 state,01.5 tries,01.1 guess")
    assert (learner / "c.html").read_text().startswith("<!doctype html>")
    (line,) = all_refused(learner, words)
    assert "c.csv: is there already (--force replaces it)" in line
    (folder / "bela\x1b[31m.json").write_text("{")
    text = answer(learner, *words, "--force", code=1)
    assert re.search(r"bela\\x1b\[31m\.json +is damaged", text)
    form = json.loads(answer(learner, "class-report", "handed-in", "--json", code=1))
    assert form["learners"][0]["predictions"] == {"01.1": "2", "01.2": "failed"}
    assert [path.name for path in sorted(folder.rglob("*.*"))] == [
        "progress.json",
        "bela\x1b[31m.json",
    ]


def test_a_class_report_refuses_before_it_writes_anything(learner: Path) -> None:
    """No folder, nothing in it, a file inside the class, one file for two."""
    (learner / "empty").mkdir()
    shutil.copytree(learner / "my-lessons", learner / "handed-in")
    expected = {
        ("nowhere",): "there is no such folder",
        ("empty",): "holds no progress file",
        ("handed-in", "--csv", "a.csv", "--html", "handed-in/a.html"): "where nothing is written",
        ("handed-in", "--csv", "a", "--html", "./a"): "say two different files",
        ("empty", "--csv", "b.csv"): "holds no progress file",
    }
    lines = all_refused(learner, *(["class-report", *words] for words in expected))
    assert [
        says for says, line in zip(expected.values(), lines, strict=True) if says not in line
    ] == []
    assert list(learner.glob("*.csv")) == []
    assert [path.name for path in (learner / "handed-in").iterdir()] == ["progress.json"]

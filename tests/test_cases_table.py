"""``cases.csv``: every public failure that we know of, and the tests that hold it.

A row is held by the tests that carry its number in their name or docstring; ``why_not`` says
which later work brings what a row, or the rest of it, still needs. To write the column of tests
anew: ``python tests/test_cases_table.py``.
"""

import ast
import csv
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
TABLE = TESTS / "cases.csv"
COLUMNS = ["id", "area", "held_by", "why_not"]
CASES = TESTS.parent.parent / "shared" / "CASES.md"
AREAS = {
    "checkpoint", "recovery", "idempotency", "retry", "timeout", "serialisation", "security",
    "scale", "notebook",
}  # fmt: skip


def read_table():
    """The rows of the table as dictionaries."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@functools.cache
def collected(path):
    """Tests that pytest collects from a file: name → docstring, by its syntax tree."""
    tree = ast.parse(path.read_text("utf-8"))
    classes = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name[:4] == "Test"
    ]
    return {
        node.name: ast.get_docstring(node) or ""
        for body in (tree.body, *(found.body for found in classes))
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:4] == "test"
    }


def held():
    """Id → the tests that carry it in their name or docstring, as ``file::name``, in order."""
    found = {}
    for path in sorted(TESTS.glob("test_*.py")):
        for name, claim in collected(path).items():
            named = re.findall(r"(?:^|_)[lL](\d{3})(?=_|$)", name)
            for number in dict.fromkeys([*named, *re.findall(r"\bL(\d{3})\b", claim)]):
                found.setdefault(f"L{number}", []).append(f"{path.name}::{name}")
    return found


def test_every_test_that_a_row_names_exists():
    """``held_by`` names test functions that pytest collects."""
    for row in read_table():
        for test in row["held_by"].split():
            name, _, function = test.partition("::")
            assert function in collected(TESTS / name), f"{row['id']}: {test}"


def test_every_test_that_names_a_row_is_in_the_table():
    """A test that carries a number stands in the row of that number."""
    table = {row["id"]: row["held_by"].split() for row in read_table()}
    for number, tests in held().items():
        assert number in table, f"{tests[0]} names a row that the table does not have"
        missing = [test for test in tests if test not in table[number]]
        assert not missing, f"{number} lacks {missing}: run python tests/test_cases_table.py"


def test_no_row_stands_twice_and_each_is_held_or_says_why_not():
    """Ids are unique and in order; a row without a test says what it waits for."""
    rows = read_table()
    assert all(list(row) == COLUMNS for row in rows)
    ids = [row["id"] for row in rows]
    assert ids == sorted(set(ids))
    assert all(re.fullmatch(r"L\d{3}", number) for number in ids)
    assert {row["area"] for row in rows} == AREAS
    for row in rows:
        rest = row["why_not"].startswith("rest: ")
        assert row["why_not"] == "" or rest if row["held_by"] else row["why_not"] and not rest, row


@pytest.mark.skipif(not CASES.exists(), reason="the list of cases is not beside this checkout")
def test_the_table_has_every_row_of_the_list_of_cases():
    """Ids and areas are those of the list that the table was made from."""
    lines = [line for line in CASES.read_text("utf-8").splitlines() if line.startswith("| L")]
    listed = {}
    for line in lines:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
        listed[cells[1]] = cells[-2]
    assert {row["id"]: row["area"] for row in read_table()} == listed


def write_held_by():
    """Fill in the tests of every row from the names in the test files."""
    rows, tests = read_table(), held()
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            by = tests.get(row["id"], [])
            if by and not row["why_not"].startswith("rest: "):
                row["why_not"] = ""
            writer.writerow({**row, "held_by": " ".join(by)})


if __name__ == "__main__":
    write_held_by()

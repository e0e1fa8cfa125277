"""The order of the modules, what the pure core may not touch, and what `import durakit` loads."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import durakit as dk

PACKAGE = Path(dk.__file__).resolve().parent

#: Layers in reading order: a module imports only from layers before its own, or from its own
#: where the modules of one layer stand in a line.
LAYERS = [
    ["errors", "clock", "deadline", "failures", "retry", "values", "changes", "protocol"],
    ["files", "schema", "store", "faults"],
    [
        "define",
        "retrying",
        "workers",
        "slots",
        "drive",
        "exchange",
        "record",
        "operation",
        "compensation",
        "driver",
        "machine",
    ],
    ["items", "tables", "run", "runtime"],
    ["lives", "kill", "sweep", "testing", "source", "linting", "starting", "cli"],
    ["lab"],
]
ORDER = [module for layer in LAYERS for module in layer]
PURE = LAYERS[0]

#: Rooms with several modules: their parts, in reading order too.
ROOMS = {
    "store": ["rows", "chain", "database", "journal", "retention", "store", "__init__"],
    "linting": ["findings", "keys", "retries", "effects", "tool", "workflow", "__init__"],
    "cli": [
        "exit_codes",
        "printing",
        "looking",
        "given",
        "lessons",
        "runs",
        "workflows",
        "mail",
        "parser",
        "__init__",
    ],
    "mail": [
        *["errors", "checks", "faults", "profiles", "messages", "ledger", "memory", "intake"],
        *["records", "work", "service", "__init__", "door", "http", "smtp"],
    ],
    "lab": [
        # what all lessons stand on
        *["__init__", "html", "lessons", "exercises", "frame", "answers", "laboratory", "worlds"],
        *["agent", "plots", "maps", "view"],
        # one subject each
        *["crash", "crash.moments", "crash.scenarios", "crash.plots"],
        *["crash.timeline", "crash.scrubber", "crash.inspector", "crash.widgets"],
        *["faultcards", "faultcards.cards", "faultcards.play"],
        *["faultcards.policies", "faultcards.deck"],
        *["backoff", "backoff.draws", "backoff.jitter", "backoff.rules", "backoff.herd"],
        *["backoff.client", "backoff.plots", "backoff.explorers"],
        *["budgets", "budgets.nested", "budgets.icicle", "budgets.explorer"],
        *["keys", "keys.strategies", "keys.trials", "keys.identities"],
        *["keys.services", "keys.server", "keys.replies"],
        *["clinic", "clinic.patients", "clinic.examinations", "clinic.ward", "clinic.repairs"],
        # learners and their class
        *["classroom", "classroom.plans", "classroom.progress", "classroom.guesses"],
        *["classroom.report", "classroom.folder"],
        *[f"lesson{number:02}" for number in range(1, 10)],
    ],
}
PARTS = [(room, part) for room, parts in ROOMS.items() for part in parts]

#: Time, chance, files, processes and the network.
AMBIENT = {
    "asyncio", "datetime.now", "glob", "http", "io", "multiprocessing", "os", "pathlib", "random",
    "secrets", "select", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile",
    "threading", "time", "urllib", "uuid",
}  # fmt: skip
#: Builtins and class methods that reach outside without an import.
REACHING_OUT = {"open", "input", "print", "exec", "eval", "compile", "__import__", "breakpoint"}
ASKING_THE_CLOCK = {"now", "utcnow", "today"}


def imports(source: str, package: str = "durakit") -> set[str]:
    """Return every module that a source imports, at any depth, in full."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                base = package.split(".")[: len(package.split(".")) - node.level + 1]
                module = ".".join([*base, *filter(None, [module])])
            found.add(module)
            found |= {f"{module}.{name.name}" for name in node.names}
    return found


def own_imports(source: str, package: str = "durakit") -> set[str]:
    """Return the parts of durakit that a source imports: module names, or `mail`, `lab`."""
    names = {name for name in imports(source, package) if name.split(".")[0] == "durakit"}
    known = {path.stem for path in PACKAGE.glob("*.py")} | {"mail", "lab", *ROOMS}
    return {name.split(".")[1] for name in names if "." in name} & known


def ambient_reach(source: str) -> set[str]:
    """Return what a source reaches of time, chance, files, processes or the network."""
    found = {name.split(".")[0] for name in imports(source)} & AMBIENT
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in REACHING_OUT:
            found.add(called.id)
        if (
            isinstance(called, ast.Attribute)
            and called.attr in ASKING_THE_CLOCK
            and isinstance(called.value, ast.Name)
            and called.value.id in {"datetime", "date"}
        ):
            found.add(f"{called.value.id}.{called.attr}")
    return found


def text(module: str) -> str:
    """Return a module's source; of a room with several modules, all of theirs."""
    parts = sorted((PACKAGE / module).rglob("*.py")) or [PACKAGE / f"{module}.py"]
    return "\n".join(path.read_text(encoding="utf-8") for path in parts)


def parts_imported(source: str, room: str) -> set[str]:
    """Return the parts of a room that a source imports; what is no part stands in `__init__`."""
    inside = [name.split(".")[2:] for name in imports(source) if in_room(name, room)]
    known = [{".".join(name[:depth]) for depth in (1, 2)} & set(ROOMS[room]) for name in inside]
    return set().union(*(names or {"__init__"} for names in known))


def in_room(name: str, room: str) -> bool:
    """Whether an imported name is something of that room, and not the room as a whole."""
    return name.startswith(f"durakit.{room}.")


def source_of(room: str, part: str) -> str:
    """Return the source of a part; of one that is a folder, what stands in its `__init__`."""
    path = (PACKAGE / room).joinpath(*part.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_name(f"{path.name}.py")
    return path.read_text(encoding="utf-8")


def test_every_module_has_its_place_in_the_order():
    """A new module is put into LAYERS or ROOMS, where a reader will look for what it may use."""
    here = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert here | set(ROOMS) == {*ORDER, "mail"}  # mail stands beside the order
    for room, parts in ROOMS.items():
        folder = PACKAGE / room
        found = {path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py")}
        assert {".".join(path.parts).replace(".__init__", "") for path in found} == set(parts)


def test_the_readme_names_every_module_in_reading_order():
    """Its table *The code* is where a reader begins, so it leaves none out."""
    readme = (PACKAGE.parent / "README.md").read_text(encoding="utf-8")
    table = readme.partition("## The code\n")[2].partition("\n## ")[0]
    linked = re.findall(r"\]\(durakit/(\w+)(?:\.py|/__init__\.py)\)", table)
    assert [module for module in linked if module != "mail"] == ORDER
    folders = {part.split(".")[0] for part in ROOMS["lab"] if "." in part}
    assert set(re.findall(r"\]\(durakit/lab/(\w+)/__init__\.py\)", table)) == folders


@pytest.mark.parametrize("module", ORDER)
def test_a_module_imports_only_from_those_before_it(module):
    """Read in order, nothing is used before it was read; the laboratory is needed by nothing."""
    allowed = set(ORDER[: ORDER.index(module)])
    if module in ROOMS:
        allowed.add(module)
    if module in {"cli", "lab"}:
        allowed |= {"lab", "mail"}
    assert own_imports(text(module)) <= allowed


@pytest.mark.parametrize(("room", "part"), PARTS, ids=[f"{room}.{part}" for room, part in PARTS])
def test_a_part_of_a_room_imports_only_from_the_parts_before_it(room, part):
    """Within a room the imports go one way too."""
    before = set(ROOMS[room][: ROOMS[room].index(part)])
    assert parts_imported(source_of(room, part), room) <= before


@pytest.mark.parametrize("module", PURE)
def test_the_pure_core_reads_no_clock_randomness_file_or_socket(module):
    """Time and chance are arguments; only the clock itself may ask what time it is."""
    allowed = {"time"} if module == "clock" else set()
    assert ambient_reach(text(module)) == allowed


@pytest.mark.parametrize("module", PURE)
def test_the_pure_core_imports_nothing_of_the_rest(module):
    """Not even lazily."""
    assert own_imports(text(module)) <= set(PURE)


def private_imports(source: str) -> set[str]:
    """Return the private names that a source takes from other modules of durakit."""
    return {
        name.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        and (node.level or (node.module or "").startswith("durakit"))
        for name in node.names
        if name.name.startswith("_") and not name.name.startswith("__")
    }


def test_no_module_imports_a_private_name_of_another():
    """What two modules need has a public name, and a place that a reader can find."""
    files = sorted(PACKAGE.rglob("*.py"))
    found = {path.name: private_imports(path.read_text(encoding="utf-8")) for path in files}
    assert {name: names for name, names in found.items() if names} == {}
    assert private_imports("from durakit.lab.view import View, _log") == {"_log"}


def test_the_outside_world_imports_nothing_of_the_runtime():
    """The mail service is somebody else's system."""
    files = sorted((PACKAGE / "mail").rglob("*.py"))
    assert files
    for path in files:
        assert own_imports(path.read_text(encoding="utf-8"), "durakit.mail") <= {"mail"}, path.name


@pytest.mark.parametrize(
    ("source", "reach"),
    [
        ("import time", {"time"}),
        ("def f():\n    from os import path", {"os"}),
        ("import sqlite3 as s, json", {"sqlite3"}),
        ("from datetime import datetime\ndatetime.now()", {"datetime.now"}),
        ("with open('x') as f: pass", {"open"}),
        ("from random import random", {"random"}),
        ("import datetime, json\nclock.now()", set()),
    ],
)
def test_the_check_of_purity_sees_each_way_of_reaching_out(source, reach):
    """A check that cannot fail checks nothing."""
    assert ambient_reach(source) == reach


@pytest.mark.parametrize(
    ("source", "package", "modules"),
    [
        ("from durakit.runtime import Run", "durakit", {"runtime"}),
        ("import durakit.store", "durakit", {"store"}),
        ("from durakit import driver, values", "durakit", {"driver", "values"}),
        ("def f():\n    from . import cli", "durakit", {"cli"}),
        ("from ..store import Store", "durakit.mail", {"store"}),
        ("from .errors import MailError", "durakit.mail", {"mail"}),
        ("import json, pydantic", "durakit", set()),
    ],
)
def test_the_check_of_imports_sees_each_way_of_importing(source, package, modules):
    """Absolute, relative, from the package, and inside a function."""
    assert own_imports(source, package) == modules


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("from durakit.linting.keys import lint_keys", {"keys"}),
        ("import durakit.linting.keys", {"keys"}),
        ("from durakit.linting import effects, lint", {"effects", "__init__"}),
        ("from durakit.cli.printing import say", set()),
    ],
)
def test_the_check_of_parts_sees_each_way_of_importing(source, parts):
    """By name, in full, or from the room itself, whose own names come last."""
    assert parts_imported(source, "linting") == parts


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after a statement."""
    code = f"import sys, json; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    return set(json.loads(done.stdout))


def test_importing_durakit_loads_nothing_of_the_laboratory():
    """The runtime starts quickly, and in places where nobody plots."""
    loaded = {name.split(".")[0] for name in loaded_by("import durakit")}
    heavy = {"pandas", "numpy", "matplotlib", "ipywidgets", "IPython", "httpx", "tornado"}
    assert not loaded & heavy


def test_the_public_names_exist_and_are_sorted():
    """Readers and outside checks use them: each is there, once, in order."""
    assert dk.__all__ == sorted(set(dk.__all__))
    for name in dk.__all__:
        assert getattr(dk, name) is not None
    star: dict[str, object] = {}
    exec("from durakit import *", star)  # noqa: S102 - what a reader's star import does
    assert set(dk.__all__) <= set(star)


def test_every_public_class_and_function_says_what_it_is():
    """`help(dk.name)` is never empty."""
    for name in dk.__all__:
        part = getattr(dk, name)
        if isinstance(part, type) or callable(part):
            assert part.__doc__, name

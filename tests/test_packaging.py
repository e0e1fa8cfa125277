"""What ships: bounded dependencies, exact pins, no traces of one machine, whole notebooks."""

import re
import socket
import subprocess
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINS = PROJECT["tool"]["uv"]["constraint-dependencies"]

# An address below which packages are listed or stored, or a well-known host of them.
PACKAGE_HOST = re.compile(
    r"https?://[^\s\"']*/(?:simple|packages)/|\bpypi\.(?:org|python\.org)\b|pythonhosted\.org|"
    r"registry\.npmjs|\bdeb\.debian\.org\b",
    re.IGNORECASE,
)
HOME_PATH = re.compile(
    r"(?<![\w.])/(?:root|home|Users)/\w|(?<!\w)[A-Z]:\\+Users\\+\w|(?<![\w.])"
    + re.escape(f"{ROOT}/"),
    re.IGNORECASE,
)
# What never ships, for a tree that is not a git work tree.
LEFT_OUT = {"__pycache__", "my-lessons", "build", "dist", "venv", "uv.lock"}


def git(*words: str) -> str | None:
    """Return what git says of this tree, or None where the tree is not one of git's."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), *words],  # noqa: S607 - whatever git the person uses
        check=False,
        capture_output=True,
        text=True,
    )
    return done.stdout if done.returncode == 0 else None


def shipped_files() -> list[Path]:
    """Return the files that are tracked or about to be."""
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is not None:
        paths = [ROOT / name for name in listed.split("\0") if name]
    else:
        paths = [
            path
            for path in ROOT.rglob("*")
            if not any(
                part in LEFT_OUT or (part.startswith(".") and part != ".ci")
                for part in path.relative_to(ROOT).parts[:-1]
            )
            and path.name not in LEFT_OUT
        ]
    return sorted(path for path in set(paths) if path.is_file())


def shipped_texts() -> Iterator[tuple[Path, str]]:
    """Yield each shipped file that is text, with its text."""
    for path in shipped_files():
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


NOTEBOOKS = [path for path in shipped_files() if path.suffix == ".ipynb"]


def requirements() -> list[Requirement]:
    """Return every requirement in pyproject.toml: to run, to develop and to build."""
    groups = PROJECT["dependency-groups"].values()
    listed = [PROJECT["project"]["dependencies"], PROJECT["build-system"]["requires"], *groups]
    return [Requirement(line) for group in listed for line in group]


@pytest.mark.parametrize("requirement", requirements(), ids=lambda requirement: requirement.name)
def test_a_dependency_has_a_lower_and_an_upper_bound(requirement: Requirement) -> None:
    """A release from before we looked, or after, cannot slip in."""
    operators = {specifier.operator for specifier in requirement.specifier}
    assert operators & {">=", ">", "==", "~="}, f"{requirement} has no lower bound"
    assert operators & {"<", "<=", "==", "~="}, f"{requirement} has no upper bound"


def test_pins_are_plain_sorted_and_unique() -> None:
    """A pin is name==version: no address, no marker, nothing twice."""
    assert [pin for pin in PINS if not re.fullmatch(r"[a-z0-9-]+==[a-z0-9.+!]+", pin)] == []
    names = [pin.partition("==")[0] for pin in PINS]
    assert names == sorted(set(names))


def test_pins_name_all_that_is_installed_at_its_version() -> None:
    """The environment the tests run in is the one that the pins describe."""
    installed = {
        canonicalize_name(found.metadata["Name"]): found.version
        for found in metadata.distributions()
    }
    # The project itself, and what an environment may bring along by itself.
    for name in ("durakit", "pip", "setuptools", "wheel"):
        installed.pop(canonicalize_name(name), None)
    pins = dict(pin.split("==") for pin in PINS)
    differs = {name: version for name, version in installed.items() if pins.get(name) != version}
    assert not differs, "renew the pins: uv run python .ci/renew_pins.py"


def test_pins_lie_within_the_bounds() -> None:
    """No pin contradicts what pyproject.toml asks for."""
    pins = dict(pin.split("==") for pin in PINS)
    build = {Requirement(line).name for line in PROJECT["build-system"]["requires"]}
    outside = [
        str(requirement)
        for requirement in requirements()
        if requirement.name not in build
        and pins[canonicalize_name(requirement.name)] not in requirement.specifier
    ]
    assert outside == []


def test_no_lock_file_is_tracked() -> None:
    """A lock file records the addresses of downloads, so it stays out."""
    assert ROOT / "uv.lock" not in shipped_files()
    assert "/uv.lock" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    "pattern", [PACKAGE_HOST, HOME_PATH], ids=["package host", "path of one machine"]
)
def test_no_shipped_text_names_one_machine(pattern: re.Pattern[str]) -> None:
    """What ships names no package host and no path of the machine it was written on."""
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path, text in shipped_texts()
        if (match := pattern.search(text))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (PACKAGE_HOST, "index = 'https://mirror.example" + "/simple/'"),
        (PACKAGE_HOST, "see files.python" + "hosted.org"),
        (HOME_PATH, "File " + '"' + "/home" + '/ada/x.py"'),
        (HOME_PATH, "C:" + r"\Users\ada"),
        (HOME_PATH, f"made in {ROOT}/data"),
    ],
)
def test_the_search_for_traces_finds_them(pattern: re.Pattern[str], text: str) -> None:
    """The patterns above are not blind."""
    assert pattern.search(text)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_notebook_ships_whole(path: Path) -> None:
    """It is valid, ran from top to bottom, holds outputs, no widget state and no empty cell."""
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert "widgets" not in notebook.metadata, "widget state makes GitHub refuse the notebook"
    assert notebook.metadata["kernelspec"]["name"] == "python3"
    assert [cell for cell in notebook.cells if not cell.source.strip()] == [], "an empty cell"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert any(cell.outputs for cell in code), "without stored outputs nbval compares nothing"


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "example.com"])
def test_no_test_reaches_beyond_this_machine(host: str) -> None:
    """The guard of conftest.py refuses the connection before a packet leaves."""
    with pytest.raises(ConnectionRefusedError, match="would leave the machine"):
        socket.create_connection((host, 80), timeout=0.1)


def test_this_machine_can_still_be_reached() -> None:
    """Loopback is not guarded: the lessons' own servers and kernels live there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(("localhost", server.getsockname()[1]), timeout=5).close()

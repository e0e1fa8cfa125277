"""Renew the exact pins in pyproject.toml: `uv run python .ci/renew_pins.py`.

Resolves what pyproject.toml asks for without the old pins, for every Python and platform it
names, and writes the result into `constraint-dependencies`. The rest of the file stays as it is,
byte for byte. The resolution runs in a folder of its own and touches neither the environment nor
a lock file; the next `uv run` installs what the pins say.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
PINS = re.compile(r"^constraint-dependencies = \[\n(?P<pins>(?:    .*\n)*)\]$", re.MULTILINE)


def with_pins(project: str, pins: list[str]) -> str:
    """Return the text of pyproject.toml with these pins, and nothing else changed."""
    block = "".join(f'    "{pin}",\n' for pin in pins)
    changed, found = PINS.subn(f"constraint-dependencies = [\n{block}]", project)
    if found != 1:
        sys.exit(f"{PROJECT.name} must have one list constraint-dependencies, one pin a line")
    return changed


def pins_of(lock: str) -> list[str]:
    """Return `name==version` of all that a lock file names, less the project itself, sorted."""
    found = {
        (package["name"], package["version"])
        for package in tomllib.loads(lock)["package"]
        if "registry" in package["source"]
    }
    names = [name for name, _ in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        sys.exit(f"a plain pin cannot say two versions of one package: {', '.join(twice)}")
    return [f"{name}=={version}" for name, version in sorted(found)]


def resolve(project: str) -> str:
    """Return the lock file for a pyproject.toml."""
    with tempfile.TemporaryDirectory(prefix="durakit-pins-") as folder:
        Path(folder, PROJECT.name).write_text(project, encoding="utf-8", newline="")
        # `uv run` names its own program in UV.
        command = [os.environ.get("UV", "uv"), "lock", "--quiet", "--upgrade", "--project", folder]
        subprocess.run(command, check=True)  # noqa: S603 - our own words
        return Path(folder, "uv.lock").read_text(encoding="utf-8")


def main() -> None:
    """Renew the pins in place and tell what changed."""
    with PROJECT.open(encoding="utf-8", newline="") as file:
        project = file.read()
    old = tomllib.loads(project)["tool"]["uv"]["constraint-dependencies"]
    new = pins_of(resolve(with_pins(project, [])))
    with PROJECT.open("w", encoding="utf-8", newline="") as file:
        file.write(with_pins(project, new))
    for sign, pins in (("-", set(old) - set(new)), ("+", set(new) - set(old))):
        for pin in sorted(pins):
            print(sign, pin)
    print(f"{len(new)} pins")


if __name__ == "__main__":
    main()

"""What a word of the command line stands for: a module, an object, JSON, seconds, a port.

A word that stands for nothing is refused with UsageError, which names the option and the word.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import operator
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from durakit.cli.printing import apart
from durakit.define import Workflow, name_text
from durakit.errors import InvalidField, UnloadableValue, UsageError
from durakit.machine import Machine


def seconds(text: str) -> float:
    """Seconds from 0, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"needs seconds, got {text!r}")
    return value


def port(text: str) -> int:
    """A TCP port, for argparse."""
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) < 2**16):
        raise argparse.ArgumentTypeError(f"needs a number from 0 to 65535, got {text!r}")
    return int(text)


def path(text: str) -> Path:
    """A file or folder, for argparse."""
    if not text:
        raise argparse.ArgumentTypeError("is empty")
    return Path(text)


def account(text: str) -> str:
    """An account's name, for argparse."""
    try:
        return name_text("account", text)
    except InvalidField as error:
        raise argparse.ArgumentTypeError(error.problem) from error


def imported(name: str) -> Any:
    """Import a module, from the current directory too. Raises UsageError where that fails."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if "/" in name or name.endswith(".py"):
        raise UsageError(f"{name!r} is a file; a module is named as for import: package.module")
    if ":" in name or "" in name.split("."):
        raise UsageError(f"{name!r} is no module; one is named as for import: package.module")
    try:
        with apart():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            where = f"in {Path.cwd()} or among the installed"
            raise UsageError(f"there is no module {name!r} {where}") from error
        raise UsageError(f"module {name!r} cannot be imported: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}"
        raise UsageError(f"module {name!r} cannot be imported: {problem}") from error


def named(text: str, option: str) -> tuple[Any, Any]:
    """The module and the object that ``module:name`` says; the name may have dots."""
    module_name, colon, name = text.partition(":")
    if not (module_name and colon and name):
        raise UsageError(f"{option}: say module:name, as in shop.workflows:welcome; got {text!r}")
    module = imported(module_name)
    try:
        return module, operator.attrgetter(name)(module)
    except AttributeError:
        raise UsageError(f"{option}: module {module_name!r} has no {name!r}") from None
    except Exception as error:
        problem = f"{name!r} cannot be had ({type(error).__name__}: {error})"
        raise UsageError(f"{option}: of module {module_name!r}, {problem}") from error


def signals_of(texts: Sequence[str]) -> dict[str, Any]:
    """The signals that the NAME=JSON say."""
    signals: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UsageError(f"--signal: say NAME=JSON, as in approval=true; got {text!r}")
        if name in signals:
            raise UsageError(f"--signal {name}: is given twice")
        signals[name] = json_of(f"--signal {name}", value)
    return signals


def json_of(option: str, text: str) -> Any:
    """The value that the JSON of ``option`` says."""
    try:
        return json.loads(text, parse_constant=_no_number, object_pairs_hook=_each_name_once)
    except RecursionError:
        raise UsageError(f"{option}: no JSON that can be read: too many brackets") from None
    except ValueError as error:
        raise UsageError(f"{option}: no JSON: {error}") from error


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values under one name JSON's readers keep the last, and say nothing."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is there twice")
    return found


def arguments_of(workflow: Workflow, text: str) -> tuple[list[Any], dict[str, Any]]:
    """A workflow's arguments from JSON, in the types that it declares."""
    given = json_of("--args", text)
    parameters = list(inspect.signature(workflow.function).parameters.values())
    signature = inspect.Signature(parameters[1:])
    try:
        if isinstance(given, dict):
            bound = signature.bind(**given)
        elif isinstance(given, list):
            bound = signature.bind(*given)
        else:
            raise UsageError("--args: a list in the order of the arguments, or an object by name")
    except TypeError as error:
        raise UsageError(f"--args does not fit {workflow.name}{signature}: {error}") from error
    form = dict(bound.arguments)
    if isinstance(workflow, Machine):  # whatever its author calls the parameter
        form = {"state": next(iter(form.values()))}
    try:
        return workflow.parameters.load(form)
    except UnloadableValue as error:
        raise UsageError(f"--args does not fit {workflow.name}{signature}: {error}") from error


def token_of(text: str) -> tuple[str, str]:
    """The token and its account that ACCOUNT=TOKEN says."""
    name, _, token = text.partition("=")
    if not name or not re.fullmatch("[!-~]+", token):
        raise UsageError("--token: say ACCOUNT=TOKEN, as in ada=re_123 (the token without spaces)")
    return token, name_text("--token", name)

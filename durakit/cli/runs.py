"""The commands on a Runtime's file: ``runs`` and ``show`` look, ``resolve`` and ``resume`` act."""

from __future__ import annotations

import argparse
import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from durakit import protocol
from durakit.cli.exit_codes import NEEDS_A_PERSON, OK, code_for
from durakit.cli.given import imported, json_of
from durakit.cli.looking import ACCOUNT, looking, require_file
from durakit.cli.printing import apart, cell, moment, say, say_json, say_section, say_table
from durakit.clock import Clock, SystemClock
from durakit.define import name_text
from durakit.errors import InvalidField, RunNotFound, UnsavableValue, UsageError
from durakit.run import Run, outcome_of
from durakit.runtime import RecoveryRow, Runtime
from durakit.slots import short
from durakit.store import Entry, OperationRow, RunRow, Store

#: Pause (seconds) between two looks at a run that another driver owns.
_POLL: Final = 0.05

#: Parked runs of which a list says what can be done; of the others ``show`` says it.
_ADVISED: Final = 5

#: What a person can say of an unknown operation; ``Runtime.resolve`` knows no others.
OUTCOMES: Final = "completed, not_executed or compensate"

#: The status of a run that waits for a person.
_PARKED: Final = "needs_decision"

#: The name of a Runtime's argument as the command line has it.
_WORDS: Final = {
    "id": "RUN", "outcome": "OUTCOME", "key": "--key", "result": "--result", "by": "--by",
}  # fmt: skip

#: Why a run is parked → what that means (None: its reason says it), and how `resume` goes on.
_CAUSES: Final[dict[str, tuple[str | None, str]]] = {
    "unknown": (None, "when that has changed"),
    "undo incomplete": (
        "its compensation has failed, so what the call may have done is not undone",
        "set right what stopped the compensation",
    ),
    "infeasible": (None, "bring what is missing"),
    "mismatch": ("the code is not the one that wrote the journal", "define the old code again"),
    "conflict": ("two answers differ, and the one that was saved stands", "to go on with it"),
    "no end": ("its machine found no end", "to let it make as many transitions again"),
    "no progress": (
        "what follows its last entry kills its worker", "mend what the next step or call does",
    ),
}  # fmt: skip

_COLUMNS: Final = (
    "id", "workflow", "status", "entries", "incarnations", "created", "owner", "reason",
)  # fmt: skip


def runs(options: argparse.Namespace) -> int:
    """List the runs of a file, oldest first."""
    with looking(options.db) as store:
        rows = store.list_runs(options.account)
        counts = store.count_entries(rows)
        found = [
            _run_form(row, Run(store, SystemClock(), row).reason, entries)
            for row, entries in zip(rows, counts, strict=True)
        ]
        advice = _advice(store, rows, options.db)
    if options.json:
        say_json(found)
    elif not found:
        whose = "" if options.account is None else f" of account {options.account!r}"
        say(f"no runs{whose}")
    else:
        several = any(form["account"] != ACCOUNT for form in found)
        names = [*["account"] * several, *_COLUMNS]
        say_table(names, [[form[name] for name in names] for form in found])
        _say_each(advice)
    return code_for(row.status for row in rows)


def show(options: argparse.Namespace) -> int:
    """Show one run: its row, its operations, its journal."""
    with looking(options.db) as store:
        row = _found(store, options)
        entries = store.read_journal(row.run)
        operations = store.operations_of(row)
        form = _run_form(row, Run(store, SystemClock(), row).reason, len(entries))
        advice = _advice(store, [row], options.db)
    if row.status == "completed":
        form["result"] = json.loads(entries[(row.explained or len(entries)) - 1].payload)["value"]
    journal = [_entry_form(entry) for entry in entries]
    deeds = [_operation_form(operation) for operation in operations]
    if options.json:
        say_json({**form, "operations": deeds, "journal": journal})
    else:
        for name, value in form.items():
            if name == "result" or value not in (None, "", 0):
                say(f"{name:<12}  {cell(value)}")
        say_section("operations", deeds)
        say_section("journal", journal)
        _say_each([f"\n{line}" for line in advice])
    return code_for([row.status])


def _found(store: Store, options: argparse.Namespace) -> RunRow:
    """The run that was asked for. Raises RunNotFound, with the accounts that have one."""
    try:
        return store.find_run(options.account, name_text("id", options.id))
    except RunNotFound as error:
        others = {row.account for row in store.list_runs(None) if row.id == options.id}
        hint = "".join(f"; account {name!r} has one: --account" for name in sorted(others))
        raise RunNotFound(f"{error}{hint}") from None


def _run_form(row: RunRow, reason: str, entries: int) -> dict[str, Any]:
    return {
        "id": row.id,
        "account": row.account,
        "workflow": row.workflow,
        "version": row.version,
        "status": row.status,
        "reason": reason,
        "entries": entries,
        "incarnations": row.token,
        "owner": row.owner,
        "owned_until": moment(row.leased),
        "commands": row.commands,
        "created": moment(row.created),
        "deadline": moment(row.deadline),
    }


def _operation_form(row: OperationRow) -> dict[str, Any]:
    return {
        "tool": row.tool,
        "key": row.key,
        "status": row.status,
        "outcome": outcome_of(row),
        "attempts": row.attempts,
        "contract": row.contract,
        "first_sent": moment(row.first_sent),
        "sent": moment(row.sent),
        "run": row.run_id,
    }


def _entry_form(entry: Entry) -> dict[str, Any]:
    return {
        "seq": entry.seq,
        "incarnation": entry.token,
        "kind": entry.kind,
        "step": entry.step,
        "key": entry.key,
        "attempt": entry.attempt,
        "time": moment(entry.time),
        "payload": json.loads(entry.payload),
    }


def resume(options: argparse.Namespace) -> int:
    """Drive one run, or every run that may be driven; a table says what was done."""
    require_file(options.db)
    for name in options.module:
        imported(name)
    clock = SystemClock()
    # Absolute, so that no file name can be taken for ":memory:".
    with Runtime(options.db.absolute(), account=options.account, clock=clock) as rt:
        rt.check_clock()  # one clear line instead of one per run
        with apart():
            if options.id is None:
                rows = rt.recover_rows(options.wait)
            else:
                rows = [resumed(rt, options.id, clock, options.wait)]
        store = rt._store  # noqa: SLF001 - a Runtime gives no rows
        parked = [store.find_run(rt.account, row.run) for row in rows if row.status == _PARKED]
        advice = _advice(store, parked, options.db, options.module)
    if rows:
        say_table(RecoveryRow._fields, rows)
        if any(row.did == "owned" for row in rows):
            say("owned runs: add --wait 30 (or more, up to that time), or try again after it")
        _say_each(advice)
    else:
        say("nothing is unfinished")
    if any(row.did in ("error", "owned") for row in rows):
        return NEEDS_A_PERSON
    return code_for(row.status for row in rows)


def resumed(rt: Runtime, run_id: str, clock: Clock, wait: float) -> RecoveryRow:
    """Drive one run, for ``wait`` seconds again where another has it: its line of the table."""
    ends = clock.monotonic() + wait
    run = rt.resume(run_id)
    while run.note.startswith("owned") and (left := ends - clock.monotonic()) > 0:
        clock.sleep(min(_POLL, left))
        run = rt.resume(run_id)
    did = "driven"
    if run.note.startswith("owned"):
        did = "owned"
    elif run.note.startswith("already"):
        did = "nothing"
    detail = "; ".join(part for part in (run.note, run.reason) if part)
    return RecoveryRow(run.id, did, run.status, detail)


def resolve(options: argparse.Namespace) -> int:
    """Note what a person says about an unknown operation, and tell which command goes on."""
    with looking(options.db) as store:
        row = _found(store, options)
        tool, key = _meant(store, row, options)
    for name in options.module:
        imported(name)
    result = options.result
    if result is not None and options.outcome == "completed":
        result = json_of("--result", result)
    with Runtime(options.db.absolute(), account=options.account) as rt:
        rt.check_clock()
        try:
            rt.resolve(row.id, key, options.outcome, result=result, by=options.by, tool=tool)
        except InvalidField as error:
            unseen = options.outcome == "compensate" and not options.module
            hint = " (--module imports it)" if unseen and error.field == "outcome" else ""
            word = _WORDS.get(error.field, error.field)
            raise UsageError(f"{word}: {error.problem}{hint}") from error
        except UnsavableValue as error:
            raise UsageError(f"--result: {error}") from error
    what = f"{options.outcome} for {short(key)} of run {row.id!r}, says {options.by}"
    nothing = options.outcome == "completed" and options.result is None
    say(f"noted: {what}" + ("; without --result the call returns null" if nothing else ""))
    left = 0.0 if row.owner is None else (row.leased or 0.0) - SystemClock().now()
    wait = [("--wait", str(math.ceil(left)))] if left > 0 else []
    modules = [("--module", name) for name in options.module or ["MODULE"]]
    say(f"next: {_command('resume', options.db, row, [*modules, *wait])}")
    return OK


def _meant(store: Store, row: RunRow, options: argparse.Namespace) -> tuple[str | None, str]:
    """Tool and key of the operation that is meant; what fits none is left to the Runtime."""
    found = [
        operation
        for operation in _undecided(store, row)
        if options.key in (None, operation.key) and options.tool in (None, operation.tool)
    ]
    if len(found) == 1:
        return found[0].tool, found[0].key
    if found:
        names = ", ".join(f"--key {o.key!r} --tool {o.tool!r}" for o in found)
        raise UsageError(f"run {row.id!r} has several unknown operations: say one of {names}")
    if options.key is None:
        of_tool = "" if options.tool is None else f" of tool {options.tool!r}"
        raise UsageError(f"run {row.id!r} ({row.status}) has no unknown operation{of_tool}")
    return options.tool, options.key


def _undecided(store: Store, row: RunRow) -> list[OperationRow]:
    """The operations that a person can settle, first the one for which the run is parked."""
    entry = store.read_entry(row.run, row.explained or 1)
    asked = (entry.step, entry.key) if row.status == _PARKED else None
    disputed = asked if Run(store, SystemClock(), row).why == "conflict" else None
    found = [
        operation
        for operation in store.operations_of(row)
        if (operation.status in protocol.UNRESOLVED and outcome_of(operation) == "unknown")
        or (operation.status == "REFUSED" and (operation.tool, operation.key) == disputed)
    ]
    return sorted(found, key=lambda operation: (operation.tool, operation.key) != asked)


def _advice(
    store: Store, rows: Sequence[RunRow], db: Path, modules: Sequence[str] = ("MODULE",)
) -> list[str]:
    """A line for each parked run, the first few: why it is parked, and what can be done."""
    parked = [row for row in rows if row.status == _PARKED]
    lines = [_what_to_do(store, row, db, modules) for row in parked[:_ADVISED]]
    if len(parked) > _ADVISED:
        more = len(parked) - _ADVISED
        lines.append(f"{more} more run(s) are parked: `durakit show` says of each what can be done")
    return lines


def _say_each(lines: Sequence[str]) -> None:
    for line in lines:
        say(line)


def _what_to_do(store: Store, row: RunRow, db: Path, modules: Sequence[str]) -> str:
    resume = f"`{_command('resume', db, row, [('--module', name) for name in modules])}`"
    run = Run(store, SystemClock(), row)
    why = run.why
    head = f"run {row.id!r} is parked ({why})"
    if row.commands:
        return f"{head}, and what it was told since is noted. Go on: {resume}"
    cause, brings = _CAUSES.get(why, _CAUSES["unknown"])
    cause = run.reason if cause is None else cause
    ways = [f"{brings}: {resume}"]
    undecided = _undecided(store, row)
    if undecided:
        it = undecided[0]
        name = f"{it.tool} {short(it.key)}"
        which = [("--key", it.key), ("--tool", it.tool)] if len(undecided) > 1 else []
        told = _command("resolve", db, row, [("--by", "NAME"), *which], "OUTCOME")
        say_it = f"find out, at the service or its receiver, and say so: `{told}` "
        say_it += f"(OUTCOME is {OUTCOMES})"
        if why == "unknown":
            cause = f"nobody knows whether {name} was executed"
            asks = it.contract != protocol.Effect.OPAQUE
            ways = [say_it, *[f"let the run itself ask again: {resume}"] * asks]
        elif why == "conflict":
            cause, ways = f"two answers about {name} differ", [say_it]
        else:
            ways.append(say_it)
    does = "; or ".join(ways)
    return f"{head}: {cause}. {does[0].upper()}{does[1:]}"


def _command(
    verb: str, db: Path, row: RunRow, options: Sequence[tuple[str, str]], *places: str
) -> str:
    """A command on one run, as a shell takes it."""
    account = [] if row.account == ACCOUNT else [("--account", row.account)]
    words: list[str] = []
    for option, value in [*options, *account]:
        words += [f"{option}={value}"] if value.startswith("-") else [option, value]
    named = [str(db), row.id, *places]
    # A name that begins with a dash would be taken for an option.
    dashed = any(name.startswith("-") for name in named)
    return shlex.join(["durakit", verb, *([*words, "--", *named] if dashed else [*named, *words])])

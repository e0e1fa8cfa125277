"""The commands on a Runtime's file: ``runs`` and ``show`` look, ``resume`` acts."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from durakit.cli.exit_codes import NEEDS_A_PERSON, code_for
from durakit.cli.given import imported
from durakit.cli.looking import ACCOUNT, looking, require_file
from durakit.cli.printing import apart, cell, moment, say, say_json, say_section, say_table
from durakit.clock import Clock, SystemClock
from durakit.errors import RunNotFound
from durakit.run import Run, outcome_of
from durakit.runtime import Runtime
from durakit.store import Entry, OperationRow, RunRow

#: Pause (seconds) between two looks at a run that another driver owns.
_POLL: Final = 0.05

_COLUMNS: Final = (
    "id", "workflow", "status", "entries", "incarnations", "created", "owner", "reason",
)  # fmt: skip


def runs(options: argparse.Namespace) -> int:
    """List the runs of a file, oldest first."""
    with looking(options.db) as rt:
        kept, clock = rt._store, rt._clock  # noqa: SLF001
        rows = kept.list_runs(options.account)
        counts = kept.count_entries(rows)
        found = [
            _run_form(row, Run(kept, clock, row).reason, entries)
            for row, entries in zip(rows, counts, strict=True)
        ]
    if options.json:
        say_json(found)
    elif not found:
        whose = "" if options.account is None else f" of account {options.account!r}"
        say(f"no runs{whose}")
    else:
        several = any(form["account"] != ACCOUNT for form in found)
        names = [*["account"] * several, *_COLUMNS]
        say_table(names, [[form[name] for name in names] for form in found])
    return code_for(row.status for row in rows)


def show(options: argparse.Namespace) -> int:
    """Show one run: its row, its operations, its journal."""
    with looking(options.db, options.account) as rt:
        kept = rt._store  # noqa: SLF001
        try:
            run = rt.get(options.id)
        except RunNotFound as error:
            others = {row.account for row in kept.list_runs(None) if row.id == options.id}
            hint = "".join(f"; account {name!r} has one: --account" for name in sorted(others))
            raise RunNotFound(f"{error}{hint}") from None
        row = kept.find_run(run.account, run.id)
        # A journal is shown only where it is what was written: each digest is checked.
        entries, _ = kept._verified(kept._connection(), row)  # noqa: SLF001
        operations = kept.operations_of(row)
        form = _run_form(row, run.reason, len(entries))
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
    return code_for([row.status])


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
        rt._store.check_clock()  # noqa: SLF001 - one clear line instead of one per run
        with apart():
            if options.id is None:
                rows = rt._recover(options.wait)  # noqa: SLF001 - the table without pandas
            else:
                rows = [resumed(rt, options.id, clock, options.wait)]
    if rows:
        say_table(["run", "did", "status", "detail"], rows)
        if any(did == "owned" for _, did, _, _ in rows):
            say("owned runs: add --wait 30, or try again after that time")
    else:
        say("nothing is unfinished")
    if any(did in ("error", "owned") for _, did, _, _ in rows):
        return NEEDS_A_PERSON
    return code_for(status for _, _, status, _ in rows)


def resumed(rt: Runtime, run_id: str, clock: Clock, wait: float) -> tuple[str, str, str, str]:
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
    return run.id, did, run.status, detail

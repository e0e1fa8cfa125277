"""What the disk says about one operation, and the moves that a run makes on it.

The record is one row, shared by every run of the account, and each move of it is written together
with an entry of our journal, in one transaction. The row must then be the one that we have seen:
where another run, or a person, was quicker, nothing is written and OperationMoved is raised.
Which event moves it where is data, in ``protocol.TRANSITIONS``.
"""

from __future__ import annotations

import json
from typing import Any

from durakit import protocol
from durakit.define import Tool
from durakit.drive import Drive
from durakit.errors import DamagedFile, StoreStopped
from durakit.protocol import Event, Record, Status
from durakit.slots import Past, contradiction, past_of, short
from durakit.store import Change, OperationMoved, OperationRow
from durakit.values import compact

#: How often a reply is offered to a store that refuses it, and the pause between (seconds).
SAVE_TRIES = 3
SAVE_PAUSE = 0.05


class OperationRecord:
    """One operation's row as this incarnation has last seen or written it."""

    def __init__(self, drive: Drive, tool: Tool, key: str, arguments: str) -> None:
        self.drive = drive
        self.tool = tool
        self.key = key
        self.arguments = arguments
        #: None: nothing was saved under this key, as far as we have looked
        self.row: OperationRow | None = None
        #: its latest attempt is not of this incarnation
        self.inherited = False
        #: monotonic time of this incarnation's latest intent
        self.sent_at: float | None = None
        self.past = Past()

    def look_again(self) -> None:
        """Read the record anew: it is no longer the one of our own attempt."""
        self.row = self.drive.read(
            self.drive.store.read_operation, self.drive.row.account, self.tool.name, self.key
        )
        self.inherited, self.sent_at = True, None

    def check(self) -> None:
        """Our journal holds this call's intent: a row that does not agree is damage, not news."""
        row = self.row
        intents = [
            entry
            for entry in self.drive.entries
            if (entry.kind, entry.step, entry.key) == ("intent", self.tool.name, self.key)
        ]
        agrees = (
            row is not None
            and row.status in set(Status)
            and all(
                json.loads(entry.payload)["arguments"] == row.arguments
                and (entry.attempt or 0) <= row.attempts
                and (entry.attempt != 1 or entry.time == row.first_sent)
                for entry in intents
            )
        )
        if not agrees:
            what = f"operation {self.tool.name} {short(self.key)} is not what the journal of run"
            error = DamagedFile(
                f"{self.drive.store.name}: {what} {self.drive.row.id!r} says it was"
            )
            self.drive.stop(StoreStopped(error))

    def remember(self) -> None:
        """Go on with what the journal says of earlier attempts."""
        self.past = past_of(self.drive.entries, self.tool.name, self.key)

    def contract(self) -> protocol.Contract:
        """The contract that decides: of an unknown operation the stricter of saved and declared."""
        if self.row is None or not self.is_open():
            return self.tool.contract
        return protocol.stricter(self.tool.contract, self.row.contract)

    def unresolved(self) -> bool:
        """Whether what is learned about it settles it."""
        return self.row is not None and self.row.status in protocol.UNRESOLVED

    def is_open(self) -> bool:
        """Whether its outcome is unknown, and something must still be done about that."""
        return self.row is not None and self.row.status in protocol.OPEN

    def now(self) -> float:
        """Wall time, counted by the monotonic hand since our own intent.

        A correction of the wall clock meanwhile makes no settling time end early or late.
        """
        if self.sent_at is None or self.row is None:
            return self.drive.clock.now()
        return round(self.row.sent + self.drive.clock.monotonic() - self.sent_at, 6)

    def seen(self, row: OperationRow, now: float) -> Record:
        """A row as ``protocol.decide`` takes it: also who holds it, and what was drawn before."""
        elsewhere = row.run != self.drive.row.run and row.run_token == row.token
        held = elsewhere and row.owner is not None and not self.drive.around.is_dead(row.owner)
        return Record(
            status=Status(row.status),
            arguments=row.arguments,
            attempts=row.attempts,
            first_sent=row.first_sent,
            sent=row.sent,
            not_before=row.not_before,
            held_until=row.leased if held and (row.leased or 0.0) > now else None,
            waited=self.past.waited,
            last_chance_taken=self.past.last_chance_taken,
        )

    def change(
        self,
        event: Event,
        *,
        attempts: int | None = None,
        sent: float | None = None,
        not_before: float | None = None,
        concludes: bool = False,
    ) -> Change:
        """The row's move for ``event``, as ``protocol.TRANSITIONS`` has it."""
        row = self.row
        status = Status.NEW if row is None else Status(row.status)
        if row is None:
            return Change(
                self.drive.row.account, self.tool.name, self.key, self.arguments,
                self.tool.contract.effect, protocol.after(status, event), 1, sent or 0.0, None,
                None,
            )  # fmt: skip
        # A new attempt is made under the contract of today; what follows belongs to that attempt.
        contract = self.tool.contract.effect if event is Event.INTENT else row.contract
        return Change(
            row.account, row.tool, row.key, row.arguments, contract,
            protocol.after(status, event), attempts or row.attempts,
            row.sent if sent is None else sent, not_before, (row.status, row.attempts), concludes,
        )  # fmt: skip

    def note(self, kind: str, payload: str, change: Change, **parts: Any) -> None:
        """Append an entry about the operation together with its row's move."""
        now = self.drive.clock.now()
        self.drive.append(
            kind, step=change.tool, key=change.key, attempt=change.attempts, payload=payload,
            change=change, **parts,
        )  # fmt: skip
        if not change.concludes:
            self._moved(change, now)

    def _moved(self, change: Change, now: float) -> None:
        """Remember the row as we have just written it."""
        first = now if self.row is None else self.row.first_sent
        run, lease = self.drive.row, self.drive.lease
        self.row = OperationRow(
            change.account, change.tool, change.key, change.arguments, change.contract,
            change.status, change.attempts, first, change.sent, change.not_before,
            run.run, lease.token, None, None, run.id, lease.owner, lease.leased, lease.token,
        )  # fmt: skip

    def conclude(self, kind: str, payload: str, event: Event) -> None:
        """Save what settles the operation; a store that hiccups is asked again."""
        for attempt in range(1, SAVE_TRIES + 1):
            try:
                change = self.change(event, concludes=True)
                self.note(kind, payload, change, progress=True)
                return
            except OperationMoved:
                if event is Event.FINAL_REFUSAL or event is Event.COMPENSATION:
                    raise  # a refusal of our attempt says nothing about the other one
                # Another run, or a person, moved it while we held the reply.
                self.look_again()
                if not self.unresolved():
                    self._conflict(payload)
                event = Event.LATE_REPLY
            except StoreStopped:
                if attempt == SAVE_TRIES:
                    raise
                self.drive.stopped = None
                self.drive.clock.sleep(SAVE_PAUSE * attempt)
        raise AssertionError("unreachable")  # pragma: no cover

    def _conflict(self, payload: str) -> None:
        """Our evidence meets an outcome that is saved already: keep both."""
        row = self.row
        saved = None if row is None else self.drive.read(self.drive.store.reply_of, row)
        body = json.loads(payload)
        agrees = row is not None and row.status == "SUCCEEDED"
        if agrees and saved is not None and json.loads(saved).get("value") == body.get("value"):
            raise OperationMoved(self.key)
        told = {"conflict": body, "saved": row.status if row else None}
        self.drive.append("late_reply", step=self.tool.name, key=self.key, payload=compact(told))
        if row is not None and row.status in protocol.UNDOING:
            raise OperationMoved(self.key)  # no contradiction: it was unknown, and is being undone
        self.drive.stop(contradiction(self.tool.name, self.key, row.status if row else "nothing"))

"""Undoing: a compensation has its own key; what was done stays done, and unknown stays unknown."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import durakit as dk
from durakit import define
from durakit.errors import DamagedFile
from durakit.mail import PROFILES, Fault, Mailbox
from durakit.store import Store

ADA = "ada@example.org"


class Lab:
    """Two mail services, one for letters and one for corrections, and the tools over them."""

    def __init__(self, folder: Path, name: str, **declared: object) -> None:
        self.clock = dk.ManualClock()
        self.mail = Mailbox(folder / "letters", profile="opaque", latency=0, clock=self.clock)
        self.corrections = Mailbox(folder / "corrections", latency=0, clock=self.clock)
        self.corrections.name = "correct"
        self.path, self.lives = folder / "runs.db", 0
        self.caught: list[str] = []
        name = f"undo_{name}"

        @dk.tool(effect="idempotent", name=f"{name}_correct", timeout=3,
                 retry=dk.Retry(0.1, 0.1, 2))  # fmt: skip
        def correct(call: dk.Call, to: str, text: str) -> dict:
            return self.corrections.send(
                to, "Correction", f"Please ignore: {text}", key=call.key, timeout=call.remaining()
            )

        @dk.tool(name=f"{name}_send", timeout=3, compensate=correct, **declared)
        def send(call: dk.Call, to: str, text: str) -> dict:
            return self.mail.send(to, "Letter", text, timeout=call.remaining())

        @dk.workflow(name=name)
        def letter(ctx: dk.Context, to: str) -> str:
            try:
                return ctx.call(send, to, "Hello", key="letter:1")["id"]
            except dk.Compensated as error:
                self.caught.append(str(error))
                return "compensated"

        self.send, self.correct, self.letter = send, correct, letter
        self.runtime = self.open()

    def open(self) -> dk.Runtime:
        """Open the file as a new process would."""
        self.lives += 1
        self.runtime = dk.Runtime(
            self.path, clock=self.clock, owner=f"life {self.lives}",
            world=SimpleNamespace(listen=self.listen),
        )  # fmt: skip
        return self.runtime

    def listen(self, hook: object) -> None:
        """Both services are this run's world."""
        self.mail.listen(hook)
        self.corrections.listen(hook)

    def sent(self) -> tuple[int, int]:
        """Letters and corrections that the two ledgers count."""
        return len(self.mail.effects()), len(self.corrections.effects())


def undo_of(run: dk.Run) -> dict[str, str]:
    """The column ``undo`` of each operation, by key."""
    return dict(run.operations()[["key", "undo"]].itertuples(index=False))


@pytest.mark.parametrize("fault", ["reply_lost", "request_lost"])
def test_an_unknown_call_is_compensated_where_a_person_says_so(tmp_path, fault):
    """Whether it happened or not: one compensation, its own key, and the outcome stays unknown."""
    lab = Lab(tmp_path, f"person_{fault}")
    lab.mail.plan = [Fault(fault)]
    run = lab.runtime.run(lab.letter, ADA, id="u")
    assert (run.status, run.why) == ("needs_decision", "unknown")
    lab.runtime.resolve("u", "letter:1", "compensate", by="Grace")
    run = lab.runtime.resume("u")
    assert (run.status, run.result) == ("completed", "compensated")
    assert lab.sent() == (1 if fault == "reply_lost" else 0, 1)
    assert [row["key"] for row in lab.corrections.effects()] == ["undo:letter:1"]
    table = run.operations().set_index("key")
    assert table.loc["letter:1", ["status", "outcome", "undo"]].tolist() == [
        "COMPENSATED", "unknown", "undone",
    ]  # fmt: skip
    assert table.loc["undo:letter:1", "outcome"] == "completed"


def test_a_tool_may_be_declared_to_be_compensated_at_once(tmp_path):
    """Nobody is asked; the call raises Compensated, and a replay raises it again."""
    lab = Lab(tmp_path, "declared", on_unknown="compensate")
    lab.mail.plan = [Fault("reply_lost")]
    run = lab.runtime.run(lab.letter, ADA, id="d")
    assert run.result == "compensated"
    assert lab.sent() == (1, 1)
    again = lab.open().run(lab.letter, ADA, id="e")
    assert again.result == "compensated"  # another run that comes with the closed key
    assert lab.sent() == (1, 1)


def test_L043_a_compensation_that_fails_for_good_leaves_the_undo_incomplete(tmp_path):
    """Neither undone nor pending: a status of its own, and the mail still counts as completed."""
    lab = Lab(tmp_path, "incomplete")
    lab.corrections.plan = [Fault("rate_limited", request=n) for n in (1, 2)]
    problems: list[Exception] = []

    @dk.workflow(name="undo_incomplete_completed")
    def regret(ctx: dk.Context, to: str) -> str:
        ctx.call(lab.send, to, "Hello", key="letter:1")
        try:
            ctx.compensate(lab.send, to, "Hello", key="letter:1")
        except Exception as error:
            problems.append(error)
        return "regretted"

    run = lab.runtime.run(regret, ADA, id="r")
    assert run.status == "completed"
    assert len(problems) == 1
    table = run.operations().set_index("key")
    assert table.loc["letter:1", ["outcome", "undo"]].tolist() == ["completed", "undo incomplete"]
    assert lab.sent() == (1, 0)


def test_a_completed_call_is_undone_and_still_counts_as_completed(tmp_path):
    """The compensation's reply comes back; a second run of the same code corrects nothing twice."""
    lab = Lab(tmp_path, "completed")

    @dk.workflow(name="undo_completed_one")
    def regret(ctx: dk.Context, to: str) -> str:
        ctx.call(lab.send, to, "Hello", key="letter:1")
        return ctx.compensate(lab.send, to, "Hello", key="letter:1")["id"]

    for name in ("one", "two"):
        run = lab.runtime.run(regret, ADA, id=name)
        assert (run.status, run.result) == ("completed", "email-1")
        assert undo_of(run)["letter:1"] == "undone"
        assert run.operations().set_index("key").loc["letter:1", "outcome"] == "completed"
    assert lab.sent() == (1, 1)


def test_what_was_not_executed_needs_no_undoing(tmp_path):
    """Nothing is sent, and None comes back."""
    lab = Lab(tmp_path, "nothing")
    lab.mail.plan = [Fault("rate_limited")]

    @dk.workflow(name="undo_nothing_one")
    def regret(ctx: dk.Context, to: str) -> object:
        try:
            ctx.call(lab.send, to, "Hello", key="letter:1")
        except Exception:
            return ctx.compensate(lab.send, to, "Hello", key="letter:1")

    run = lab.runtime.run(regret, ADA, id="n")
    assert (run.status, run.result) == ("completed", None)
    assert lab.sent() == (0, 0)


def test_nothing_is_taken_for_undone_while_another_runs_call_is_unknown(tmp_path):
    """'Not executed' would be a guess: the run waits for the outcome, and then undoes it."""
    lab = Lab(tmp_path, "elsewhere")
    lab.mail.plan = [Fault("reply_lost")]
    assert lab.runtime.run(lab.letter, ADA, id="sender").status == "needs_decision"

    @dk.workflow(name="undo_elsewhere_two")
    def regret(ctx: dk.Context, to: str) -> object:
        return ctx.compensate(lab.send, to, "Hello", key="letter:1")

    for name in ("regret", "stopped"):
        run = lab.runtime.run(regret, ADA, id=name)
        assert (run.status, run.why) == ("needs_decision", "unknown")
        assert "letter:1" in run.reason
    lab.runtime.cancel("stopped")
    assert lab.runtime.resume("stopped").status == "cancelled"
    assert lab.sent() == (1, 0)
    lab.runtime.resolve("sender", "letter:1", "completed", result={"id": "email-1"}, by="Grace")
    lab.runtime.resume("sender")
    run = lab.runtime.resume("regret")
    assert (run.status, run.result) == ("completed", {"id": "email-1"})
    assert lab.sent() == (1, 1)


def test_that_there_was_nothing_to_undo_is_saved(tmp_path):
    """A replay decides as the first life did, though another run has meanwhile sent the letter."""
    lab = Lab(tmp_path, "saved", retry=dk.Retry(0.1, 0.1, 1))
    lab.mail.plan = [Fault("rate_limited")]

    @dk.workflow(name="undo_saved_one")
    def regret(ctx: dk.Context, to: str) -> object:
        try:
            ctx.call(lab.send, to, "Hello", key="letter:1")
        except Exception:
            undone = ctx.compensate(lab.send, to, "Hello", key="letter:1")
        ctx.step("note", lambda: 1)
        return [undone, ctx.step("leave", lambda: 2)]

    crash = dk.CrashAt("leave", "before_step")
    assert lab.runtime.run(regret, ADA, id="w", crash=crash).crash is not None
    assert lab.open().run(lab.letter, ADA, id="other").result == "email-1"
    run = lab.open().resume("w")
    assert (run.status, run.result) == ("completed", [None, 2])
    assert lab.sent() == (1, 0)


def test_undoing_other_content_than_was_sent_is_refused(tmp_path):
    """A compensation speaks of what happened."""
    lab = Lab(tmp_path, "other")

    @dk.workflow(name="undo_other_one")
    def regret(ctx: dk.Context, to: str) -> None:
        ctx.call(lab.send, to, "Hello", key="letter:1")
        ctx.compensate(lab.send, to, "Good-bye", key="letter:1")

    run = lab.runtime.run(regret, ADA, id="o")
    assert run.reason.startswith("ArgumentsDiffer")
    assert lab.sent() == (1, 0)


def test_what_else_was_done_under_the_compensations_key_undoes_nothing(tmp_path):
    """The compensation is refused, and the table does not take the other mail for it."""
    lab = Lab(tmp_path, "taken")

    @dk.workflow(name="undo_taken_one")
    def regret(ctx: dk.Context, to: str) -> None:
        ctx.call(lab.send, to, "Hello", key="letter:1")
        ctx.call(lab.correct, to, "something else", key="undo:letter:1")
        ctx.compensate(lab.send, to, "Hello", key="letter:1")

    run = lab.runtime.run(regret, ADA, id="t")
    assert run.reason.startswith("ArgumentsDiffer")
    assert undo_of(run)["letter:1"] == "undo incomplete"


def test_an_undo_that_fails_inside_an_unknown_call_parks_and_can_still_be_decided(tmp_path):
    """The run says what is incomplete; a person may yet learn how the call itself ended."""
    lab = Lab(tmp_path, "parks", on_unknown="compensate")
    lab.mail.plan = [Fault("reply_lost")]
    lab.corrections.plan = [Fault("rate_limited", request=n) for n in (1, 2)]
    run = lab.runtime.run(lab.letter, ADA, id="p")
    assert (run.status, run.why) == ("needs_decision", "undo incomplete")
    assert "429" in run.reason
    assert undo_of(run)["letter:1"] == "undo incomplete"
    lab.runtime.resolve("p", "letter:1", "completed", result={"id": "email-1"}, by="Grace")
    run = lab.runtime.resume("p")
    assert (run.status, run.result) == ("completed", "email-1")
    assert lab.sent() == (1, 0)


def test_a_compensation_that_is_unknown_itself_is_sent_again_under_its_own_key(tmp_path):
    """It follows its own contract: here the service knows its key."""
    lab = Lab(tmp_path, "unknown", on_unknown="compensate")
    lab.mail.plan = [Fault("reply_lost")]
    lab.corrections.plan = [Fault("reply_lost")]
    run = lab.runtime.run(lab.letter, ADA, id="u")
    assert run.result == "compensated"
    assert lab.sent() == (1, 1)
    assert len(lab.corrections.requests()) == 2


def test_a_compensation_may_be_made_after_the_deadline(tmp_path):
    """It ends what was begun, and is no new work."""
    lab = Lab(tmp_path, "late", on_unknown="compensate")
    lab.mail.plan = [Fault("reply_lost")]
    run = lab.runtime.run(lab.letter, ADA, id="l", deadline=3)
    assert lab.sent() == (1, 1)
    assert undo_of(run)["letter:1"] == "undone"


def test_a_cancelled_run_with_an_unknown_call_is_compensated_and_then_cancelled(tmp_path):
    """A cancel request stops new work; the compensation is none."""
    lab = Lab(tmp_path, "cancelled")
    lab.mail.plan = [Fault("reply_lost")]
    lab.runtime.run(lab.letter, ADA, id="c")
    lab.runtime.cancel("c")
    lab.runtime.resolve("c", "letter:1", "compensate", by="Grace")
    run = lab.runtime.resume("c")
    assert run.status == "cancelled"
    assert lab.sent() == (1, 1)


def test_a_word_to_compensate_what_is_settled_meanwhile_changes_nothing(tmp_path):
    """Two people decide; the first one's word has settled it."""
    lab = Lab(tmp_path, "two_words")
    lab.mail.plan = [Fault("reply_lost")]
    lab.runtime.run(lab.letter, ADA, id="t")
    lab.runtime.resolve("t", "letter:1", "completed", result={"id": "email-1"}, by="Grace")
    lab.runtime.resolve("t", "letter:1", "compensate", by="Alan")
    run = lab.runtime.resume("t")
    assert (run.status, run.result) == ("completed", "email-1")
    assert lab.sent() == (1, 0)


POINTS = ["before_intent", "intent_saved", "request_sent", "effect_done", "reply_received",
          "result_saved"]  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_point_of_the_compensation_leaves_one_compensation(tmp_path, point):
    """Recovery goes on with it under its own key, inside the call that it corrects."""
    lab = Lab(tmp_path, f"crash_{point}", on_unknown="compensate")
    lab.mail.plan = [Fault("reply_lost")]
    crash = dk.CrashAt(lab.correct.name, point)
    run = lab.runtime.run(lab.letter, ADA, id="x", crash=crash)
    assert run.crash is not None
    lab.clock.advance(100)
    lab.open().recover()
    run = lab.runtime.get("x")
    assert (run.status, run.result) == ("completed", "compensated")
    assert lab.sent() == (1, 1)
    assert undo_of(run) == {"letter:1": "undone", "undo:letter:1": ""}


#: A late reply, as another process hands it in: the letter was sent after all.
LATE = {"key": "letter:1", "by": "late reply", "value": {"id": "email-1"}}


def hand_in_late_reply(lab: Lab, id: str) -> None:
    """Leave what another driver's abandoned attempt has heard, as that driver's runtime does."""
    store = lab.runtime._store
    body = json.dumps({"tool": lab.send.name, **LATE})
    store.add_command(store.find_run("default", id), "late_reply", body, lab.clock.now())


def late_replies(run: dk.Run) -> list[dict]:
    """What the journal keeps of late replies."""
    history = run.history()
    return history[history["kind"] == "late_reply"]["payload"].tolist()


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("fault", ["reply_lost", "request_late"])
def test_a_late_reply_completes_no_call_whose_compensation_has_begun(tmp_path, point, fault):
    """Wherever the compensation was stopped: it is brought to its end, and the reply is kept."""
    lab = Lab(tmp_path, f"late_{fault}_{point}", on_unknown="compensate")
    lab.mail.plan = [Fault(fault)]
    crash = dk.CrashAt(lab.correct.name, point)
    assert lab.runtime.run(lab.letter, ADA, id="x", crash=crash).crash is not None
    lab.clock.advance(100)
    lab.open()
    hand_in_late_reply(lab, "x")
    lab.runtime.recover()
    run = lab.runtime.get("x")
    assert (run.status, run.result) == ("completed", "compensated"), run.reason
    assert lab.sent() == (1, 1)
    assert undo_of(run) == {"letter:1": "undone", "undo:letter:1": ""}
    assert run.operations().set_index("key").loc["letter:1", "outcome"] == "unknown"
    assert [told["conflict"]["value"] for told in late_replies(run)] == [{"id": "email-1"}]
    assert lab.open().run(lab.letter, ADA, id="y").result == "compensated"
    assert lab.sent() == (1, 1)


def test_a_late_reply_between_two_attempts_of_a_compensation_is_kept_and_changes_nothing(tmp_path):
    """Nobody crashed: the driver consumes it while it waits to send the compensation again."""
    lab = Lab(tmp_path, "between", on_unknown="compensate")
    lab.mail.plan = [Fault("reply_lost")]
    lab.corrections.plan = [Fault("rate_limited", request=1)]
    sent, listen = lab.corrections.send, []

    def send(*args: object, **options: object) -> object:
        if not listen:
            listen.append(1)
            hand_in_late_reply(lab, "b")
        return sent(*args, **options)

    lab.corrections.send = send
    run = lab.runtime.run(lab.letter, ADA, id="b")
    assert (run.status, run.result) == ("completed", "compensated"), run.reason
    assert lab.sent() == (1, 1)
    assert len(late_replies(run)) == 1


def test_a_late_reply_before_the_compensation_begins_completes_the_call(tmp_path):
    """Then there is nothing to correct: the word to compensate was about an unknown."""
    lab = Lab(tmp_path, "before", on_unknown="compensate")
    lab.mail.plan = [Fault("reply_lost")]
    crash = dk.CrashAt(lab.send.name, "effect_done")
    lab.runtime.run(lab.letter, ADA, id="x", crash=crash)
    lab.clock.advance(100)
    lab.open()
    hand_in_late_reply(lab, "x")
    lab.runtime.recover()
    run = lab.runtime.get("x")
    assert (run.status, run.result) == ("completed", "email-1")
    assert lab.sent() == (1, 0)


@pytest.mark.parametrize("outcome", ["completed", "not_executed", "compensate"])
def test_while_a_call_is_being_corrected_a_persons_word_about_it_is_refused(tmp_path, outcome):
    """It would come too late; the message names the compensation, and nothing is changed."""
    lab = Lab(tmp_path, f"word_{outcome}", on_unknown="compensate")
    lab.mail.plan = [Fault("reply_lost")]
    lab.runtime.run(lab.letter, ADA, id="w", crash=dk.CrashAt(lab.correct.name, "effect_done"))
    lab.clock.advance(100)
    before = len(lab.open().get("w").history())
    with pytest.raises(dk.UsageError, match=r"being compensated.*'undo:letter:1'"):
        lab.runtime.resolve("w", "letter:1", outcome, by="Grace")
    assert len(lab.runtime.get("w").history()) == before
    lab.runtime.recover()
    assert lab.runtime.get("w").result == "compensated"
    assert lab.sent() == (1, 1)


@pytest.mark.parametrize("outcome", ["completed", "not_executed", "compensate"])
def test_a_persons_word_about_a_call_that_is_compensated_is_refused_in_those_words(
    tmp_path, outcome
):
    """Its outcome stays unknown, so 'not unknown' would be no reason; nothing is changed."""
    lab = Lab(tmp_path, f"closed_{outcome}", on_unknown="compensate")
    lab.mail.plan = [Fault("reply_lost")]
    run = lab.runtime.run(lab.letter, ADA, id="w")
    before = len(run.history())
    with pytest.raises(dk.UsageError, match="'letter:1' is compensated, and its key is closed"):
        lab.runtime.resolve("w", "letter:1", outcome, by="Grace")
    assert (len(run.history()), run.result) == (before, "compensated")
    assert lab.sent() == (1, 1)


#: (entry, what to write in its place, the part that the error names): each digest fits.
FORGED = [
    ("compensating", "{}", "by"),
    ("compensating", '{"by":7}', "by"),
    ("compensating", '{"by":null}', "by"),
    ("compensating", "[1]", "payload"),
    ("intent", '{"arguments":"","basis":"","undoes":{"nested":true}}', "undoes"),
    ("intent", '{"arguments":"","basis":"","undoes":{"tool":1,"key":2,"nested":true}}', "undoes"),
    ("intent", '{"arguments":"","basis":"","undoes":[{"nested":true}]}', "undoes"),
    ("intent", '["undoes",{"nested":true}]', "payload"),
]


@pytest.mark.parametrize(("kind", "payload", "part"), FORGED)
def test_an_entry_about_a_compensation_that_was_written_by_hand_is_damage_and_not_news(
    tmp_path, monkeypatch, kind, payload, part
):
    """The workflow never sees an error of ours, the entry is named, and nothing more is sent."""
    lab = Lab(tmp_path, f"forged_{FORGED.index((kind, payload, part))}", on_unknown="compensate")
    lab.mail.plan = [Fault("reply_lost")]
    append, tool = Store.append, lab.send if kind == "compensating" else lab.correct

    def forging(store, lease, entry, **parts):
        if (entry, parts["step"]) == (kind, tool.name):
            parts["payload"] = payload
        return append(store, lease, entry, **parts)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "append", forging)
        lab.runtime.run(lab.letter, ADA, id="f", crash=dk.CrashAt(lab.correct.name, "effect_done"))
    lab.clock.advance(100)
    run = lab.open().get("f")
    before = len(run.history())
    named = rf"^journal entry \d+, {kind} of .*: its {part} is not as durakit writes it"
    with pytest.raises(DamagedFile, match=named):
        lab.runtime.resume("f")
    assert run.status == "running"
    assert run.history()["kind"].tolist()[before:] in (["claimed"], ["claimed", "released"])
    assert lab.caught == []
    assert lab.sent() == (1, 1)


def test_a_run_whose_compensation_is_unknown_does_not_end_and_is_not_pruned(tmp_path):
    """The compensation's service knows no key: a person says how the compensation ended."""
    lab = Lab(tmp_path, "open", on_unknown="compensate")
    lab.mail.plan = [Fault("reply_lost")]

    @dk.tool(name="undo_open_blind", timeout=3)
    def blind(call: dk.Call, to: str, text: str) -> dict:
        return lab.corrections.send(to, "Correction", text, timeout=call.remaining())

    @dk.tool(name="undo_open_letter", timeout=3, compensate=blind, on_unknown="compensate")
    def send(call: dk.Call, to: str, text: str) -> dict:
        return lab.mail.send(to, "Letter", text, timeout=call.remaining())

    @dk.workflow(name="undo_open_both")
    def letter(ctx: dk.Context, to: str) -> str:
        try:
            return ctx.call(send, to, "Hello", key="letter:1")["id"]
        except dk.Compensated:
            return "compensated"

    lab.corrections.plan = [Fault("reply_lost")]
    run = lab.runtime.run(letter, ADA, id="o")
    assert (run.status, run.why) == ("needs_decision", "unknown")
    lab.runtime.cancel("o")
    lab.runtime.recover()
    assert run.status == "needs_decision"
    lab.clock.advance(1000)
    ended = "UPDATE run SET status = ?"  # as of a run that only met the operation, and has ended
    for status in ("cancelled", "needs_decision"):
        lab.runtime._store.connection().execute(ended, (status,))
        assert lab.runtime.prune(older_than=1) == 0
    status = dict(run.operations()[["key", "status"]].itertuples(index=False))
    assert status == {"letter:1": "COMPENSATING", "undo:letter:1": "DISPATCHED"}
    lab.runtime.resolve("o", "undo:letter:1", "completed", result={"id": "email-1"}, by="Grace")
    lab.runtime.recover()
    assert run.status == "cancelled"
    assert lab.sent() == (1, 1)


def test_a_compensation_whose_key_is_taken_leaves_the_call_to_a_person(tmp_path):
    """What was done under its key is something else, so this letter is not corrected."""
    lab = Lab(tmp_path, "key_taken", on_unknown="compensate")
    lab.mail.plan = [Fault("reply_lost")]

    @dk.workflow(name="undo_key_taken_both")
    def letter(ctx: dk.Context, to: str) -> str:
        ctx.call(lab.correct, to, "something else", key="undo:letter:1")
        return ctx.call(lab.send, to, "Hello", key="letter:1")["id"]

    run = lab.runtime.run(letter, ADA, id="k")
    assert (run.status, run.why) == ("needs_decision", "undo incomplete")
    assert "ArgumentsDiffer" in run.reason
    lab.runtime.resolve("k", "letter:1", "completed", result={"id": "email-1"}, by="Grace")
    lab.runtime.recover()
    assert (run.status, run.result) == ("completed", "email-1")
    assert lab.sent() == (1, 1)


def test_a_reply_that_speaks_of_nesting_is_no_compensation(tmp_path):
    """What a tool returns is its own affair: a replay of it is a place like any other."""
    lab = Lab(tmp_path, "says_nested")
    tool = dk.tool(lambda call: {"nested": True}, effect="idempotent", name="undo_says_nested_do")

    @dk.workflow(name="undo_says_nested_twice")
    def twice(ctx: dk.Context) -> list:
        return [ctx.call(tool, key="n"), ctx.step("after", lambda: 1)]

    assert lab.runtime.run(twice, id="one").status == "completed"
    crash = dk.CrashAt("after", "step_saved")
    assert lab.runtime.run(twice, id="two", crash=crash).crash is not None
    lab.clock.advance(100)
    lab.open().recover()
    assert lab.runtime.get("two").result == [{"nested": True}, 1]


@pytest.mark.parametrize(
    ("refusal", "why"),
    [
        (dk.Infeasible("an address for corrections"), "infeasible"),
        (dk.NotExecuted("the counter is closed"), "undo incomplete"),
    ],
)
def test_a_call_whose_compensation_was_certainly_not_made_is_a_persons_at_once(
    tmp_path, refusal, why
):
    """Not after a second drive only: the refusal that is saved has opened the call again."""
    name = why.replace(" ", "_")
    lab = Lab(tmp_path, name)
    lab.mail.plan = [Fault("reply_lost")]

    @dk.tool(name=f"undo_{name}_never", effect="idempotent", timeout=3)
    def never(call: dk.Call, to: str, text: str) -> dict:
        raise refusal

    @dk.tool(name=f"undo_{name}_letter", timeout=3, compensate=never, on_unknown="compensate")
    def send(call: dk.Call, to: str, text: str) -> dict:
        return lab.mail.send(to, "Letter", text, timeout=call.remaining())

    @dk.workflow(name=f"undo_{name}_both")
    def letter(ctx: dk.Context, to: str) -> str:
        return ctx.call(send, to, "Hello", key="letter:1")["id"]

    run = lab.runtime.run(letter, ADA, id="i")
    assert (run.status, run.why) == ("needs_decision", why)
    lab.runtime.resolve("i", "letter:1", "completed", result={"id": "email-1"}, by="Grace")
    lab.runtime.recover()
    assert (run.status, run.result) == ("completed", "email-1")
    assert lab.sent() == (1, 0)


def test_in_a_machine_a_compensated_call_stays_compensated_when_it_is_entered_again(tmp_path):
    """Its slots are found by identity; the compensation's own entries are no slot."""
    import pydantic

    lab = Lab(tmp_path, "machine", on_unknown="compensate")
    lab.mail.plan = [Fault("reply_lost")]

    class State(pydantic.BaseModel):
        heard: list[str] = []

    @dk.machine(state=State, name="undo_machine_one")
    def letters(ctx: dk.Context, state: State) -> object:
        try:
            ctx.call(lab.send, ADA, "Hello", key="letter:1")
        except dk.Compensated:
            state.heard.append("compensated")
        return dk.Done(state)

    crash = dk.CrashAt("undo_machine_one", "checkpoint_saved")
    lab.runtime.run(letters, State(), id="m", crash=crash)
    lab.clock.advance(100)
    lab.open().recover()
    assert lab.runtime.get("m").result["heard"] == ["compensated"]
    assert lab.sent() == (1, 1)


def test_a_compensation_speaks_of_what_was_sent_and_not_of_its_own_defaults(tmp_path):
    """The call leaves the text to the tool's default; the compensation has another one."""
    lab = Lab(tmp_path, "defaults")
    lab.mail.plan = [Fault("reply_lost")]

    @dk.tool(effect="idempotent", name="undo_defaults_back", timeout=3)
    def back(call: dk.Call, to: str, text: str = "something else") -> dict:
        return lab.corrections.send(to, "Ignore", text, key=call.key, timeout=call.remaining())

    @dk.tool(name="undo_defaults_out", timeout=3, compensate=back, on_unknown="compensate")
    def out(call: dk.Call, to: str, text: str = "Hello") -> dict:
        return lab.mail.send(to, "Letter", text, timeout=call.remaining())

    @dk.workflow(name="undo_defaults_both")
    def both(ctx: dk.Context, to: str) -> None:
        try:
            ctx.call(out, to, key="letter:1")
        except dk.Compensated:
            ctx.call(out, to, key="letter:2")
            ctx.compensate(out, to, key="letter:2")

    assert lab.runtime.run(both, ADA, id="d").status == "completed"
    assert lab.sent() == (2, 2)
    assert {mail["body"] for mail in lab.corrections.inbox(ADA)} == {"Hello"}


def test_a_compensation_under_another_name_does_not_go_on_with_one_that_has_begun(tmp_path):
    """It would be a second compensation: the run names both tools, and the old one ends it."""
    lab = Lab(tmp_path, "renamed", on_unknown="compensate")
    lab.mail.plan = [Fault("reply_lost")]
    crash = dk.CrashAt(lab.correct.name, "effect_done")
    lab.runtime.run(lab.letter, ADA, id="n", crash=crash)
    lab.clock.advance(100)
    old, name = lab.send.compensate, "undo_renamed_other"
    lab.send.compensate = dk.tool(old.function, effect="idempotent", timeout=3, name=name)
    lab.open().recover()
    run = lab.runtime.get("n")
    assert (run.status, run.why) == ("needs_decision", "mismatch")
    assert name in run.reason
    assert old.name in run.reason
    lab.send.compensate = old
    assert lab.runtime.resume("n").result == "compensated"
    assert lab.sent() == (1, 1)


# -- a word to compensate where nothing can correct ----------------------------------------


def blind_letter(lab: Lab, name: str, **declared: object) -> dk.Workflow:
    """A workflow of one letter over a tool that is declared here, by ``name``, as it is told."""

    @dk.tool(name=f"undo_{name}_blind", timeout=3, **declared)
    def send(call: dk.Call, to: str, text: str) -> dict:
        return lab.mail.send(to, "Letter", text, timeout=call.remaining())

    @dk.workflow(name=f"undo_{name}_blind_letter")
    def letter(ctx: dk.Context, to: str) -> str:
        try:
            return ctx.call(send, to, "Hello", key="letter:1")["id"]
        except dk.Compensated:
            return "compensated"

    return letter


def contents(lab: Lab) -> list[str]:
    """Everything that the runtime's file says."""
    with closing(sqlite3.connect(f"file:{lab.path}?mode=ro", uri=True)) as file:
        return list(file.iterdump())


def test_a_word_to_compensate_is_refused_where_the_tool_declares_no_compensation(tmp_path):
    """At once, by the field's name; the run is as it was, and declaring one lets it through."""
    lab = Lab(tmp_path, "none_declared")
    lab.mail.plan = [Fault("reply_lost")]
    run = lab.runtime.run(blind_letter(lab, "none_declared"), ADA, id="n")
    assert (run.status, run.why) == ("needs_decision", "unknown")
    before = contents(lab)
    with pytest.raises(dk.InvalidField, match=r"^outcome: .*undo_none_declared_blind.*compensate="):
        lab.runtime.resolve("n", "letter:1", "compensate", by="Grace")
    assert contents(lab) == before
    assert lab.sent() == (1, 0)
    blind_letter(lab, "none_declared", compensate=lab.correct)  # the cell is mended and run again
    lab.runtime.resolve("n", "letter:1", "compensate", by="Grace")
    assert lab.runtime.resume("n").result == "compensated"
    assert lab.sent() == (1, 1)


@pytest.mark.parametrize("has_one", [True, False])
def test_where_the_tool_is_not_known_its_intent_says_whether_it_can_be_corrected(
    tmp_path, monkeypatch, has_one
):
    """A person decides in a process that has not imported the workflow's module."""
    lab = Lab(tmp_path, f"not_here_{has_one}")
    lab.mail.plan = [Fault("reply_lost")]
    declared = {"compensate": lab.correct} if has_one else {}
    lab.runtime.run(blind_letter(lab, f"not_here_{has_one}", **declared), ADA, id="n")
    before = contents(lab)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(define, "_tools", {})
        elsewhere.setattr(define, "_workflows", {})
        if not has_one:
            with pytest.raises(dk.InvalidField, match=r"^outcome: "):
                lab.runtime.resolve("n", "letter:1", "compensate", by="Grace")
            assert contents(lab) == before
            return
        lab.runtime.resolve("n", "letter:1", "compensate", by="Grace")
    assert lab.runtime.resume("n").result == "compensated"
    assert lab.sent() == (1, 1)


@pytest.mark.parametrize(
    ("declared", "field"),
    [
        ({"compensate": print}, "compensate"),
        ({"on_unknown": "compensate"}, "compensate"),
        ({"cancel": "please"}, "cancel"),
        ({"on_unknown": "undo"}, "on_unknown"),
    ],
)
def test_a_compensation_that_cannot_work_is_refused_when_the_tool_is_declared(declared, field):
    """In words that name the field."""
    with pytest.raises(dk.InvalidField) as caught:
        dk.tool(**declared)(lambda call: None)
    assert caught.value.field == field


def test_a_read_has_nothing_to_correct():
    """Without outside effect nothing is undone."""
    undo = dk.tool(lambda call: None, name="undo_of_a_read")
    with pytest.raises(dk.InvalidField, match="^compensate: "):
        dk.tool(effect="none", compensate=undo)(lambda call: None)


world = Mailbox()


@dk.tool(effect="idempotent", timeout=3, retry=dk.Retry(0.1, 0.1, 3), name="undo_swept_correct")
def swept_correct(call: dk.Call, to: str) -> dict:
    """The compensation carries its key."""
    return world.send(to, "Correction", "Ignore it", key=call.key, timeout=call.remaining())


@dk.tool(timeout=3, compensate=swept_correct, on_unknown="compensate", name="undo_swept_send")
def swept_send(call: dk.Call, to: str) -> dict:
    """The letter goes over a door that knows no keys."""
    return world.send(to, "Letter", "Hello", timeout=call.remaining())


@dk.workflow(name="undo_swept")
def swept(ctx: dk.Context, to: str) -> str:
    """One letter, corrected where it stays unknown."""
    return ctx.call(swept_send, to, key="letter")["id"]


@pytest.mark.parametrize("crashes", [1, 2])
def test_the_sweep_finds_no_crash_that_sends_a_letter_or_a_compensation_twice(crashes):
    """At every boundary, also those of the compensation; an unknown letter ends compensated."""
    report = dk.sweep(swept, ADA, world=world, crashes=crashes)
    verdicts = {schedule.verdict for schedule in report.schedules}
    assert verdicts == {"safe", "safe: compensated"}, report.table()
    at = {s.point: s.verdict for s in report.schedules if not s.then and s.place == swept_send.name}
    for point in ("intent_saved", "request_sent", "effect_done", "reply_received"):
        assert at[point] == "safe: compensated", point
    assert at["before_intent"] == at["result_saved"] == "safe"


def test_a_compensation_that_stays_unknown_is_handed_over_and_is_no_second_letter():
    """Its service is still at work on the key when the run's last attempt is refused for that."""
    claiming = Mailbox(profile="resend", latency=0)

    @dk.tool(effect="idempotent", timeout=3, retry=dk.Retry(0.1, 0.1, 2), name="undo_open_correct")
    def correct(call: dk.Call, to: str) -> dict:
        return claiming.send(to, "Correction", "Ignore it", key=call.key, timeout=call.remaining())

    @dk.tool(timeout=3, compensate=correct, on_unknown="compensate", name="undo_open_send")
    def send(call: dk.Call, to: str) -> dict:
        return claiming.send(to, "Letter", "Hello", timeout=call.remaining())

    @dk.workflow(name="undo_open")
    def letter(ctx: dk.Context, to: str) -> str:
        return ctx.call(send, to, key="letter")["id"]

    report = dk.sweep(letter, ADA, world=claiming, crashes=2)
    verdicts = {schedule.verdict for schedule in report.schedules}
    handed_over = "safe: handed over as unknown"
    assert verdicts == {"safe", "safe: compensated", handed_over}, report.table()
    then = {s.then for s in report.schedules if s.verdict == handed_over}
    assert then == {f"i2:key_claimed@{correct.name}"}


@dk.workflow(name="undo_swept_saga")
def saga(ctx: dk.Context, to: str) -> str:
    """It undoes its own letter in any case, and what it never sent."""
    try:
        ctx.call(swept_send, to, key="letter")
    except dk.Compensated:
        return "compensated"
    ctx.compensate(swept_send, to, key="never sent")
    return ctx.compensate(swept_send, to, key="letter")["id"]


@pytest.mark.parametrize("crashes", [1, 2])
def test_a_workflow_that_undoes_its_own_work_can_be_swept(crashes):
    """What it undoes itself is an effect like any other: one letter, one compensation."""
    report = dk.sweep(saga, ADA, world=world, crashes=crashes)
    assert {s.verdict for s in report.schedules} == {"safe", "safe: compensated"}, report.table()
    assert {s.effects for s in report.schedules if s.verdict == "safe"} == {2}


def test_the_sweep_sees_a_compensation_that_is_made_twice(tmp_path):
    """Its service forgets the key at once, against its contract."""
    forgetful = Mailbox(tmp_path, profile=replace(PROFILES["idempotent"], window=0.0), latency=0)

    @dk.tool(effect="idempotent", timeout=3, name="undo_twice_correct")
    def correct(call: dk.Call, to: str) -> dict:
        return forgetful.send(to, "Correction", "Ignore it", key=call.key)

    @dk.tool(timeout=3, compensate=correct, name="undo_twice_send")
    def send(call: dk.Call, to: str) -> dict:
        return forgetful.send(to, "Letter", "Hello")

    @dk.workflow(name="undo_twice")
    def twice(ctx: dk.Context, to: str) -> None:
        ctx.call(send, to, key="letter")
        ctx.compensate(send, to, key="letter")

    report = dk.sweep(twice, ADA, world=forgetful)
    assert "duplicate" in {schedule.verdict for schedule in report.schedules}

"""Lesson 07 as a learner meets it: its parts, its numbers against the ledger, its two exercises."""

import random
import re
import sqlite3
import threading

import lesson_checks as checks
import pytest
from lesson_checks import cell_of, tagged
from lesson_play import Names, Seen, ask, hold, is_a_slip, mails_after_each_cell, run_twice

import durakit as dk
from durakit.lab import lesson07
from durakit.lab.exercises import State
from durakit.lab.keys.strategies import STRATEGIES
from durakit.lab.keys.trials import DISTURBANCES
from durakit.lab.lesson07 import (
    CARDS,
    MOVES,
    attack,
    cards,
    die_between,
    play_card,
    promises,
    tried,
)
from durakit.mail import PROFILES, Mailbox

HERE = checks.LESSONS["07"]
ADA = "ada@example.org"


def test_the_lesson_covers_its_section() -> None:
    """21.6: its title says so, and each claim of the section has its word in the text."""
    notebook = HERE.read()
    (title,) = tagged(notebook, "title")
    assert "chapter 21.6" in title.source
    text = " ".join(" ".join(cell.source for cell in notebook.cells).split())
    for claim in (
        "saves the key *and a digest of the arguments*",
        "refused",
        "*a request with this key is running*",
        "**window**",
        "**one transaction**",
        "**one API's promise**",
        "MCP demands a new one",
        "one key, mapped to its many attempts",
        "a person",
        "A second mail corrects the first one",
        "None of the four ways made the effect happen *exactly once*",
    ):
        assert claim in text, claim


# -- its numbers -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played() -> Seen:
    """After each cell: the ledger's word, and the run's status."""

    def look(name: str, names: Names, mailbox: Mailbox) -> dict[str, object]:
        run = names["run"]
        told: dict[str, object] = {
            "Ada": [mail["subject"] for mail in mailbox.inbox(to=ADA)],
            "rows": list(names.get("rows", ())),
        }
        if name in ("agent3", "words4", "ways8", "incomplete8"):
            told |= {"status": run.status, "why": run.why}
        if name in ("ways8", "incomplete8"):
            told |= {"undo": [word or None for word in run.operations()["undo"]]}
        return told

    return mails_after_each_cell(HERE, look)


OP = "welcome:42"


@pytest.mark.parametrize(
    ("text", "says", "cell", "facts"),
    [
        (
            "e3",
            "One operation key, two attempts",
            "agent3",
            {
                "keys": [f"case-7:{OP}"],
                "requests": ["delivered", "replayed"],
                "status": "completed",
            },
        ),
        ("e4", "it did not even leave", "words4", {"requests": ["delivered"], "status": "failed"}),
        ("e4", "the service would still refuse it", "service4",
         {"requests": ["delivered", "refused 409"], "keys": [OP]}),
        ("e5", "A moment later the second one asked again", "once5",
         {"keys": [OP], "requests": ["delivered", "refused 409", "replayed"]}),
        ("e6", "Without one it sent again under a key that was forgotten", "window6",
         {"keys": [OP, OP], "requests": ["delivered", "delivered"]}),
        ("e6b", "asked again, and found the mail", "late6", {"keys": [OP]}),
        (
            "e8",
            "**stays unknown**. It is only closed",
            "ways8",
            {
                "Ada": ["Welcome", "Sorry"],
                "keys": [OP, f"undo:{OP}"],
                "status": "failed",
                "undo": ["undone", None],
            },
        ),
        ("e8b", "neither *undone* nor *not undone*", "incomplete8",
         {"keys": [OP], "status": "needs_decision", "why": "undo incomplete"}),
    ],
)  # fmt: skip
def test_a_number_in_the_text_is_the_ledgers(text, says, cell, facts, played) -> None:
    """What the lesson claims in words is what the mail service's own record says there."""
    hold(HERE, played, text, says, cell, facts)


def test_the_four_ways_are_told_as_the_ledger_has_them(played) -> None:
    """Requests, mails and what is known, way by way, on one and the same crash."""
    rows = played["ways8"]["rows"]
    told = [[row["requests"], row["mails"], row[f"outcome of {OP}"], row["run"]] for row in rows]
    assert told == [
        [2, 1, "completed", "completed"],
        [1, 1, "completed", "completed"],
        [1, 1, "completed", "completed"],
        [2, 2, "unknown", "failed"],
    ]


def test_the_two_tables_of_section_6_and_the_servers_table(played) -> None:
    """A window that is not declared, an absence that is believed, a look before a write."""
    assert [(row["run"], row["mails"]) for row in played["window6"]["rows"]] == [
        ("needs_decision", 1), ("completed", 2),
    ]  # fmt: skip
    assert [row["mails"] for row in played["late6"]["rows"]] == [2, 1]
    counts = [list(row.values())[1:] for row in played["attack5"]["rows"]]
    assert counts == [[1, 2, 20, 2], [1, 1, 1, 1]]


def test_the_heading_counts_the_map_rightly() -> None:
    """Five strategies, fifteen disturbances."""
    assert "Five strategies, fifteen disturbances" in cell_of(HERE.read(), "s2").source
    assert (len(STRATEGIES), len(DISTURBANCES)) == (5, 15)


def test_running_the_whole_lesson_twice_in_one_kernel_shows_the_same() -> None:
    """No cell depends on what an earlier run of the notebook has left."""
    run_twice(HERE)


# -- what its cells lean on ------------------------------------------------------------------------


def test_the_promises_are_the_profiles_own_data() -> None:
    """Each cell of the table is a field of the profile."""
    for row in promises(*PROFILES).rows:
        profile = PROFILES[row["service"]]
        if not profile.dedups:
            assert row["key in"].startswith("nothing")
            continue
        assert row["key in"] == profile.carrier
        kept = {
            "effect": "what it did",
            "answers": "every answer, a 500 too",
            "successes": "successes only",
            "work": "how far it came",
        }
        assert row["remembers"] == kept[profile.remembers]
        other, running = profile.other_body, profile.in_progress
        compared = f"{other.status} {other.name}" if profile.compares_bodies else "not compared"
        assert row["other body"] == compared
        waits = "it waits" if running is None else f"{running.status} {running.name}"
        assert row["still running"] == waits
        number, unit = row["kept for"].split()
        assert float(number) * {"h": 3600, "days": 86_400}[unit] == profile.window


def test_what_is_tried_agrees_with_what_is_promised() -> None:
    """For each profile that there is: the ledger's count follows from the profile's fields."""
    for row in tried(*PROFILES).rows:
        profile = PROFILES[row["service"]]
        mails = {name: int(cell.split(" · ")[0]) for name, cell in row.items() if name != "service"}
        repeated = 1 if profile.dedups else 2
        forgets = profile.remembers == "successes"
        assert mails == {
            "the same again": repeated,
            "other body": repeated,
            "25 h later": 1 if profile.dedups and profile.window > 25 * 3600 else 2,
            "500, but sent": 2 if forgets else repeated,
        }, profile.name


@pytest.mark.parametrize("profile", [name for name in PROFILES if PROFILES[name].dedups])
def test_two_at_once_are_one_mail_and_nobody_is_told_a_failure(profile, tmp_path) -> None:
    """Running, or the answer of the first; and a moment later the answer of the first."""
    mailbox = Mailbox(tmp_path, profile=profile, clock=dk.ManualClock())
    table = lesson07.two_at_once(mailbox, "welcome-42")
    told = [row["is told"] for row in table.rows]
    running = mailbox.profile.in_progress
    first = "email-1" if running is None else f"{running.status} {running.name}"
    assert told == [first, "email-1", "email-1"]
    assert len(mailbox.effects()) == 1
    mailbox.close()


def test_a_server_that_raises_is_told_to_who_asked() -> None:
    """An error on another thread is not lost."""

    def broken(db, key, pause):
        pause("together")
        db.execute("SELECT 1 FROM nowhere")

    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        attack(broken, threads=2)


def test_a_unique_key_alone_is_not_enough() -> None:
    """Two commits, the key first: a death between them loses the mail for ever."""

    def two_commits(db, key, pause):
        pause("together")
        if db.execute("INSERT OR IGNORE INTO seen VALUES (?)", [key]).rowcount == 1:
            pause("between")
            db.execute("INSERT INTO mail VALUES (?)", [key])

    assert attack(two_commits, threads=5) == 1
    assert die_between(two_commits) == 0


def test_every_thread_of_an_attack_asks_with_a_connection_of_its_own() -> None:
    """Otherwise it would be one client."""
    seen = set()

    def server(db, _key, pause):
        seen.add((id(db), threading.get_ident()))
        pause("together")

    assert attack(server, threads=7) == 0
    assert len({thread for _, thread in seen}) == 7


# -- the first exercise: a key ---------------------------------------------------------------------


def by_parts(facts):
    """Another way to say it: longer, and with the customer."""
    one = facts.operation
    return f"shop/{one.customer}/{one.order}/{one.event}"


@pytest.mark.parametrize(
    "key",
    [
        STRATEGIES[-1].key,
        by_parts,
        lambda facts: f"{facts.operation.order}.{facts.operation.event}",
    ],
    ids=["the worked answer", "all three parts", "the other way round"],
)
def test_a_right_key_passes(key, tmp_path) -> None:
    """Any name of the operation will do, however it is written."""
    note = ask(lesson07.derive_key, tmp_path, key)
    assert note.mark == State.PASS
    assert "each order has its one mail" in note.text()


def no_return(facts):
    """No return."""
    by_parts(facts)


def fails(facts):
    """Asks for what is not there."""
    return facts.run_id


def fails_later(facts):
    """Fails only where the model has planned again."""
    return f"{facts.operation.event}:{facts.operation.order}:{len('x' * 9 // facts.attempt)}"


KNOWN = {"A-1": "one", "A-7": "two", "A-8": "three", "21": "four", "1": "five"}


def from_a_table(facts):
    """Knows the orders of last week only."""
    return f"{facts.operation.event}:{KNOWN[facts.operation.order]}"


def two_shops(facts):
    """Takes one order for another."""
    return f"{facts.operation.event}:{facts.operation.order.replace('A-2', 'A-1')}"


WRONG_KEYS = {
    "per attempt": (STRATEGIES[0].key, "changes from attempt to attempt"),
    "per tool-call id": (STRATEGIES[1].key, "changes with the tool-call id"),
    "per JSON-RPC id": (STRATEGIES[2].key, "changes with the JSON-RPC id"),
    "content hash": (STRATEGIES[3].key, "changes with the words"),
    "the customer": (lambda facts: f"{facts.operation.event}:{facts.operation.customer}",
                     "Two vouchers for one customer"),
    "the order alone": (lambda facts: facts.operation.order, "A welcome and an invoice"),
    "run together": (lambda facts: facts.operation.event + facts.operation.order,
                     "The parts of your key run together"),
    "constant": (lambda facts: "welcome", "Two vouchers for one customer"),
    "random": (lambda facts: str(random.random()), "Asked twice about the same request"),
    "hash()": (lambda facts: str(hash(facts.operation)), "another one in each process"),
    "an address": (lambda facts: facts.arguments["to"] + facts.operation.order, "holds an address"),
    "no text": (lambda facts: facts.operation.customer, "Yours is an int"),
    "no return": (no_return, "is there a return?"),
    "empty": (lambda facts: "", "it has 0 characters, not 1"),
    "too long": (lambda facts: facts.operation.order * 100, "it has 300 characters, not 1"),
    "two lines": (lambda facts: "a\n" + facts.operation.order, "it does not match"),
    "raises": (fails, "Your code raised AttributeError"),
    "raises later": (fails_later, "Your code raised TypeError"),
    "from a table": (from_a_table, "Your code raised KeyError"),
    "mixed up": (two_shops, "Look at 'one id for two calls': ◇ refused (1 of 2)"),
    "a key": ("welcome:42", "You handed over one key"),
    "a number": (42, "This is an int"),
    "two parameters": (lambda facts, more: "a", "Your code raised TypeError"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_KEYS)
def test_a_known_wrong_key_is_told_what_is_wrong_with_it(name, tmp_path) -> None:
    """Each gets its own message and the first hint, and no assertion of ours."""
    answer, message = WRONG_KEYS[name]
    note = ask(lesson07.derive_key, tmp_path, answer)
    assert note.mark == State.TRY_AGAIN
    assert message in note.text()
    assert note.lines[-1].startswith("Hint 1 of 4")
    others = {other for _, other in WRONG_KEYS.values()} - {message}
    assert not [other for other in others if other in note.text()], "a message of another mistake"


def test_a_wrong_key_is_shown_what_the_ledger_says(tmp_path) -> None:
    """The table has the duplicate and the loss that its message is about."""
    told = ask(lesson07.derive_key, tmp_path, STRATEGIES[0].key).text()
    assert re.search(r"reply lost, tried again +1 +2 +✗ duplicate", told)
    told = ask(lesson07.derive_key, tmp_path, WRONG_KEYS["the customer"][0]).text()
    assert re.search(r"two equal orders +2 +1 +○ lost", told)


# -- the second exercise: after a lost reply -------------------------------------------------------

RIGHT = {card.name: card.move for card in CARDS}


def test_the_right_moves_pass(tmp_path) -> None:
    """Four settled by the program, four by a person; eight mails."""
    note = ask(lesson07.after_lost_reply, tmp_path, RIGHT)
    assert note.mark == State.PASS
    assert note.text().count("✓ one mail") == 8
    assert sorted(RIGHT.values()) == ["hand over"] * 4 + ["query"] * 2 + ["resend"] * 2


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_the_right_move_is_what_the_profile_allows(card) -> None:
    """Inside the window: resend. Else, where it can be asked: query. Else a person."""
    profile = PROFILES[card.profile]
    inside = profile.dedups and card.hours * 3600 < profile.window
    assert card.move == ("resend" if inside else "query" if profile.askable else "hand over")
    assert play_card(card, card.move).verdict.startswith("✓")
    for other in set(MOVES) - {card.move}:
        if other == "resend":
            assert play_card(card, other).mails == 2
        assert not play_card(card, other).verdict.startswith("✓")


def test_the_cards_show_all_that_is_needed_to_decide() -> None:
    """The window, whether it can be asked, and the age of the reply, from the profile's data."""
    shown = cards().rows
    assert [row["card"] for row in shown] == list(RIGHT)
    for row, card in zip(shown, CARDS, strict=True):
        assert row["can be asked"] == ("yes" if PROFILES[card.profile].askable else "no")
        assert (row["keeps keys for"] == "(knows no keys)") is not PROFILES[card.profile].dedups


def but(**moves):
    """The right moves, but for these; names with underscores for what is no letter."""
    names = {re.sub(r"\W+", "_", name): name for name in RIGHT}
    return RIGHT | {names[short]: move for short, move in moves.items()}


WRONG_MOVES = {
    "resend everything": (dict.fromkeys(RIGHT, "resend"), "6 of 8 cards do not end well"),
    "hand over everything": (dict.fromkeys(RIGHT, "hand over"), "4 of 8 cards do not end well"),
    "query everything": (dict.fromkeys(RIGHT, "query"), "'resend, 2 h': it cannot be asked"),
    "too late at nylas": (but(nylas_2_h="resend"), "The service keeps a key for 1 h"),
    "too late at resend": (but(resend_30_h="resend"), "'resend, 30 h': sent again after 30 h"),
    "no keys": (but(postmark_2_h="resend"), "This service knows no keys"),
    "asked in vain": (but(smtp_2_h="query"), "'smtp, 2 h': it cannot be asked about a key"),
    "a person too early": (but(queryable_2_h="hand over"), "a person was called, and it knows no "),
    "a person, ten days": (but(stripe_v2_10_days="hand over"), "it keeps keys for 30 days"),
    "asked before resending": (but(resend_2_h="query"), "'resend, 2 h': it cannot be asked about"),
    "a card is missing": (
        {n: m for n, m in RIGHT.items() if n != "smtp, 2 h"},
        "has a move: 'smtp, 2 h'",
    ),
    "a list": (list(RIGHT.values()), "This is a list"),
}


@pytest.mark.parametrize("name", WRONG_MOVES)
def test_a_known_wrong_table_is_told_what_is_wrong_with_it(name, tmp_path) -> None:
    """Each gets a message of its own and the first hint."""
    answer, message = WRONG_MOVES[name]
    note = ask(lesson07.after_lost_reply, tmp_path, answer)
    assert note.mark == State.TRY_AGAIN
    assert message in " ".join(note.lines)
    assert note.lines[-1].startswith("Hint 1 of 4")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (RIGHT | {"pigeon": "resend"}, "There is no card 'pigeon'"),
        (but(smtp_2_h="qeury"), "'qeury' is no move. There are: resend, query, hand over"),
        (but(smtp_2_h=1), "1 is no move"),
    ],
)
def test_a_misspelt_card_or_move_takes_no_hint(answer, message, tmp_path) -> None:
    """It says nothing about the task, so the ladder stays where it is."""
    is_a_slip(ask(lesson07.after_lost_reply, tmp_path, answer), message)


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        (lesson07.derive_key, lambda facts: ...),
        (lesson07.after_lost_reply, dict.fromkeys(RIGHT, ...)),
        (lesson07.after_lost_reply, RIGHT | {"smtp, 2 h": ...}),
    ],
    ids=["no key", "no move", "one move open"],
)
def test_three_dots_are_no_answer(task, answer, tmp_path) -> None:
    """The stubs ask."""
    assert ask(task, tmp_path, answer).mark == State.TODO


def test_the_hints_do_not_give_the_answer_away_before_the_last() -> None:
    """A ladder: from a nudge to nearly the answer."""
    for task in (lesson07.derive_key, lesson07.after_lost_reply):
        assert len(set(task.hints)) == len(task.hints) == 4
        assert not any("{" in hint for hint in task.hints[:3])

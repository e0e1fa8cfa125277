"""Whole policies on the fault cards: each cell of the matrix is counted in the ledger."""

import httpx
import pytest
import requests

import durakit as dk
from durakit.lab.faultcards.cards import card, cards, guard
from durakit.lab.faultcards.policies import (
    POLICIES,
    Cell,
    judge,
    judge_all,
    plot_fault_matrix,
    retries_by_type,
)
from durakit.mail import MailError

# -- a whole policy --------------------------------------------------------------------------------


VAIN4, VAIN2 = "retried in vain 4 times", "retried in vain twice"
ONE, LOST, STOP, OVER = "one mail", "lost", "stopped at once", "handed over"
TWICE, GIVEN = "duplicate", "wrongly given up"

#: Card → what comes of it under each policy, in the order of POLICIES.
WORDS = {
    "rate_limited": (LOST, LOST, LOST, ONE, ONE, ONE),
    "refused": (LOST, ONE, ONE, ONE, ONE, ONE),
    "bad_argument": (STOP, VAIN4, VAIN2, STOP, STOP, STOP),
    "not_allowed": (STOP, VAIN4, VAIN2, STOP, STOP, STOP),
    "timeout": (GIVEN, TWICE, GIVEN, OVER, ONE, ONE),
    "error_after": (GIVEN, TWICE, TWICE, OVER, ONE, ONE),
    "overloaded": (LOST, ONE, ONE, ONE, ONE, ONE),
    "infeasible": (STOP, VAIN4, VAIN2, OVER, OVER, OVER),
    "timeout_lost": (LOST, ONE, LOST, OVER, ONE, ONE),
    "timeout_late": (GIVEN, TWICE, GIVEN, OVER, ONE, ONE),
}


@pytest.fixture(scope="module")
def matrix():
    """Every failure under every policy, really run."""
    return judge_all([card(name) for name in WORDS])


@pytest.mark.parametrize("id", WORDS)
def test_each_cell_comes_to_what_the_ledger_says(id, matrix):
    """The whole matrix, word by word."""
    assert tuple(matrix.cell(id, policy.name).word for policy in POLICIES) == WORDS[id]


def test_durakit_has_no_bad_cell_under_any_contract(matrix):
    """No mail twice, none lost, nothing in vain: at worst a person decides."""
    durable = [cell for cell in matrix.cells if cell.policy.startswith("durakit")]
    assert len(durable) == 3 * len(WORDS)
    assert all(cell.good and cell.mails <= 1 for cell in durable)
    assert all(cell.mails == 1 for cell in durable if cell.word == "one mail")


def test_the_eight_are_judged_where_none_are_named():
    """And the counts are those that the lesson tells."""
    eight = judge_all()
    assert [one.id for one in eight.cards] == [one.id for one in cards()]
    assert eight.count("retry everything", "one mail") == 2
    assert eight.count("retry everything", "duplicate") == 2
    assert eight.count("retry everything", "retried in vain") == 3
    assert eight.count("retry nothing", "lost") == 3
    assert eight.count("retry nothing", "wrongly given up") == 2


@pytest.mark.parametrize(
    ("status", "mails", "tries", "id", "word"),
    [
        ("completed", 2, 2, "timeout", "duplicate"),
        ("needs_decision", 2, 2, "timeout", "duplicate"),
        ("needs_decision", 1, 1, "timeout", "handed over"),
        ("needs_decision", 0, 1, "infeasible", "handed over"),
        ("completed", 1, 3, "refused", "one mail"),
        ("completed", 0, 1, "refused", "lost"),
        ("failed", 1, 1, "timeout", "wrongly given up"),
        ("failed", 0, 1, "bad_argument", "stopped at once"),
        ("failed", 0, 2, "bad_argument", "retried in vain once"),
        ("failed", 0, 3, "not_allowed", "retried in vain twice"),
        ("failed", 0, 9, "infeasible", "retried in vain 8 times"),
        ("failed", 0, 5, "rate_limited", "lost"),
        ("failed", 0, 1, "timeout_lost", "lost"),
    ],
)
def test_a_word_rests_on_the_ledger_first_and_on_the_run_second(status, mails, tries, id, word):
    """More than one mail is a duplicate, whatever the run says of itself."""
    cell = Cell(card(id), "any", status, mails, tries)
    assert cell.word == word
    assert cell.mark == ("✓" if word in ("one mail", "handed over", "stopped at once") else "✗")


def test_the_same_cell_is_always_the_same():
    """Chance is seeded and time is virtual."""
    for policy in POLICIES:
        assert judge("rate_limited", policy) == judge("rate_limited", policy)


# -- by type ---------------------------------------------------------------------------------------


def answered(status: int, client: str) -> Exception:
    """Return what a client raises that is answered so."""
    with guard(status) as url:
        try:
            if client == "requests":
                requests.post(url, timeout=5).raise_for_status()
            else:
                httpx.post(url, timeout=5, trust_env=False).raise_for_status()
        except Exception as error:
            return error
    return pytest.fail("it raised nothing")


@pytest.mark.parametrize(
    ("client", "status", "again"),
    [
        ("httpx", 400, False), ("httpx", 409, False), ("httpx", 429, False), ("httpx", 500, True),
        ("httpx", 503, True), ("requests", 400, True), ("requests", 401, True),
        ("requests", 404, True), ("requests", 422, True), ("requests", 500, True),
    ],
)  # fmt: skip
def test_the_rule_by_type_takes_every_refusal_of_requests_for_no_response(client, status, again):
    """As measured of LangGraph 1.2.11: real responses, judged by their truth value."""
    assert retries_by_type(answered(status, client)) is again


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (TimeoutError(), False),
        (ConnectionRefusedError(), True),
        (ConnectionResetError(), True),
        (requests.ConnectionError(), False),
        (requests.ReadTimeout(), False),
        (httpx.ReadTimeout("x"), True),
        (httpx.ConnectError("x"), True),
        (ValueError(), False),
        (KeyError(), False),
        (RuntimeError(), False),
        (MailError(422, "validation_error", "no"), True),
        (dk.Infeasible("a sender"), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_rule_by_type_excludes_oserrors_and_retries_what_it_does_not_know(error, again):
    """So the time limits of Python and of requests are not retried, and those of httpx are."""
    assert retries_by_type(error) is again


# -- the picture -----------------------------------------------------------------------------------


def test_the_picture_says_each_cell_in_a_word_a_shape_and_a_hatch(matrix):
    """Nothing is told by colour alone, and the table holds exactly what is drawn."""
    plot = plot_fault_matrix(matrix)
    (axes,) = plot.figure().axes
    drawn = [text.get_text() for text in axes.texts]
    assert len(drawn) == len(axes.patches) == len(matrix.cells) == len(plot.rows)
    for text, box, cell in zip(drawn, axes.patches, matrix.cells, strict=True):
        assert text.replace("\n", " ").startswith(f"{cell.mark} {cell.word}")
        assert bool(box.get_hatch()) is not cell.good
    assert [row["what came of it"] for row in plot.rows] == [cell.word for cell in matrix.cells]
    assert list(plot.table().columns) == [
        "card", "policy", "mark", "what came of it", "mails", "attempts",
    ]  # fmt: skip


def test_the_picture_has_an_alternative_text_with_its_numbers():
    """Which policy went wrong how often."""
    plot = plot_fault_matrix(judge_all())
    assert plot.alt.startswith("8 fault cards under 6 policies")
    for told in ("retry nothing 5", "retry everything 6", "durakit, idempotent 0"):
        assert told in plot.alt
    assert plot.png().startswith(b"\x89PNG")


def test_the_matrix_is_a_table_too(matrix):
    """One row for each card, one column for each policy."""
    lines = matrix.text().splitlines()
    assert len(lines) == 2 + len(WORDS)
    assert all(policy.name in lines[1] for policy in POLICIES)
    assert matrix.html().count("<tr>") == 1 + len(WORDS)

"""Key strategies: every cell of the map by the ledger, and each strategy as a function."""

import hashlib
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import durakit as dk
from durakit.lab.keys import strategies as keys
from durakit.lab.keys import trials as keytrials
from durakit.lab.keys.strategies import STRATEGIES, Facts, Operation, Strategy, again, generation
from durakit.lab.keys.trials import (
    CRASHES,
    DISTURBANCES,
    VERDICTS,
    judge,
    judge_all,
    judge_crashes,
    plot_key_strategies,
    strategy_table,
)
from durakit.sweep import can_fork

forks = pytest.mark.skipif(not can_fork(), reason="this platform cannot fork")

FACTS = Facts(
    Operation("welcome", "A-1", 42), 1, "call_1_1", 7,
    {"to": "ada@example.org", "subject": "Welcome", "body": "Hello Ada"},
)  # fmt: skip
BY_NAME = {one.name: one for one in STRATEGIES}

GOOD = ["one mail"] * 5
ATTEMPT_AND_REQUEST = ["duplicate", "one mail", "duplicate", "one mail", "one mail"]

#: What must come out, reasoned from the strategies' definitions: in the order of STRATEGIES.
EXPECTED = {
    "reply lost, tried again": ATTEMPT_AND_REQUEST,
    "killed at before_intent": GOOD,
    "killed at intent_saved": GOOD,
    "killed at request_sent": GOOD,
    "killed at request_sent, late": ATTEMPT_AND_REQUEST,
    "killed at effect_done": ATTEMPT_AND_REQUEST,
    "killed at reply_received": ATTEMPT_AND_REQUEST,
    "killed at result_saved": GOOD,
    "planned again, same words": ["duplicate"] * 3 + ["one mail"] * 2,
    "planned again, other words": ["duplicate"] * 4 + ["refused"],
    "one id for two calls": ["refused"] * 2 + ["one mail"] * 3,
    "one id, bodies not compared": ["lost"] * 2 + ["one mail"] * 3,
    "two equal orders": ["one mail"] * 3 + ["lost", "one mail"],
    "a second round": ["one mail"] * 2 + ["duplicate"] + ["one mail"] * 2,
    "key window over": ["duplicate"] * 5,
}


@pytest.fixture(scope="module")
def judged():
    """Every strategy under every disturbance, really run."""
    return judge_all()


# -- the map ---------------------------------------------------------------------------------------


def test_every_cell_of_the_map_is_as_reasoned(judged):
    """Five strategies and fifteen disturbances: each verdict follows from the definition."""
    found = {}
    for one in judged:
        found.setdefault(one.disturbance, []).append(one.verdict)
    assert found == EXPECTED
    assert [one.name for one in DISTURBANCES] == list(EXPECTED)


def test_the_ledger_counts_what_the_verdict_says(judged):
    """More than wanted is a duplicate; fewer is lost or refused; as many is one mail each."""
    for one in judged:
        expected = {
            "one mail": one.mails == one.wanted,
            "duplicate": one.mails > one.wanted,
            "lost": one.mails < one.wanted,
            "refused": one.mails <= one.wanted,
        }
        assert expected[one.verdict], one


def test_the_key_of_the_operation_is_never_the_cause_of_a_second_mail(judged):
    """It holds everywhere but past the window of the service's memory."""
    mine = [one for one in judged if one.strategy == "per operation"]
    assert [one.disturbance for one in mine if one.verdict in ("duplicate", "lost")] == [
        "key window over"
    ]


@forks
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda one: one.name)
def test_a_killed_process_is_judged_as_a_simulated_death(strategy, judged):
    """SIGKILL at every crash point leaves the same verdict and the same number of mails."""
    killed = judge_crashes(strategy, mode="process")
    simulated = [
        one
        for one in judged
        if one.strategy == strategy.name and one.disturbance.startswith("killed")
    ]
    assert killed == simulated


def test_one_death_alone_is_judged_as_in_the_whole_sweep(judged):
    """``judge`` of one disturbance agrees with ``judge_all``; a name will do."""
    strategy = BY_NAME["per attempt"]
    for death in (CRASHES[0], CRASHES[3], CRASHES[4]):
        whole = next(
            one for one in judged if (one.strategy, one.disturbance) == (strategy.name, death.name)
        )
        assert judge(strategy, death) == judge(strategy, death.name) == whole


def test_a_judgement_tells_what_the_service_was_told():
    """The keys, request by request, as the ledger has them."""
    lost = "reply lost, tried again"
    told = {name: judge(one, lost).keys for name, one in BY_NAME.items()}
    assert told["per attempt"] == ("call_1_1/1", "call_1_1/2")
    assert told["per tool-call id"] == ("call_1_1", "call_1_1")
    assert told["per JSON-RPC id"] == ("rpc-1", "rpc-2")
    assert len(set(told["content hash"])) == 1
    assert told["per operation"] == ("welcome:A-1", "welcome:A-1")


def test_a_second_round_is_one_attempt_with_two_json_rpc_ids():
    """The protocol asks for a new id; attempt and tool-call id stay."""
    rounds = "a second round"
    assert judge(BY_NAME["per JSON-RPC id"], rounds).keys == ("rpc-1", "rpc-2")
    assert len(set(judge(BY_NAME["per attempt"], rounds).keys)) == 1


def test_a_disturbance_that_there_is_not_is_named():
    """The error lists those there are."""
    with pytest.raises(dk.InvalidField, match="disturbance: there are reply lost"):
        judge(STRATEGIES[0], "rain")


def test_a_key_function_that_raises_does_not_pass():
    """A program that cannot make its key sends nothing, and that is no mail."""

    def broken(facts):
        raise LookupError(facts.tool_call_id)

    found = judge(Strategy("broken", broken, ""), "two equal orders")
    assert (found.verdict, found.mails) == ("lost", 0)


# -- the picture -----------------------------------------------------------------------------------


def test_the_picture_says_everything_in_words_too(judged):
    """Each cell's mark and word are in the table, and the alternative text counts the bad ones."""
    plot = plot_key_strategies(judged)
    assert len(plot.rows) == len(EXPECTED)
    for row in plot.rows:
        told = [row[one.name] for one in STRATEGIES]
        assert told == [f"{VERDICTS[v][0]} {v}" for v in EXPECTED[row["what happens"]]]
    counted = dict(re.findall(r"([\w -]+) (\d+)[,.]", plot.alt.partition("lost: ")[2]))
    bad = {
        one.name: sum(words[n] in ("duplicate", "lost") for words in EXPECTED.values())
        for n, one in enumerate(STRATEGIES)
    }
    assert {name.strip(): int(number) for name, number in counted.items()} == bad


def test_no_two_verdicts_look_alike_without_their_colour(judged):
    """Marks and hatches differ from verdict to verdict, and the picture can be drawn."""
    assert len({mark for mark, _ in VERDICTS.values()}) == len(VERDICTS)
    hatches = [look.get("hatch") for look in keytrials._LOOKS.values()]
    assert len(set(hatches)) == len(VERDICTS)
    plot = plot_key_strategies(judged)
    (axes,) = plot.figure().axes
    drawn = [text.get_text() for text in axes.texts]
    assert len(drawn) == len(judged)
    assert set(drawn) == {f"{one.mark} {one.verdict}" for one in judged}


def test_a_hostile_name_of_a_strategy_stays_text(judged):
    """Whatever a learner calls it goes through the one escaping helper."""
    mine = [one for one in judged if one.strategy == "per attempt"]
    hostile = [replace(one, strategy="<b>$\\frac$</b>") for one in mine]
    plot = plot_key_strategies(hostile)
    assert "<b>" not in plot.html()
    assert plot.png().startswith(b"\x89PNG")


def test_each_strategy_says_in_one_sentence_what_goes_wrong():
    """One sentence, short enough to be read in the table as a whole."""
    table = strategy_table()
    assert [row["strategy"] for row in table.rows] == list(BY_NAME)
    for row in table.rows:
        assert len(re.findall(r"[.!?]", row["what goes wrong"])) == 1
        assert row["what goes wrong"] in table.text()


# -- the strategies as functions -------------------------------------------------------------------


VARIATIONS = {
    "attempt": {"attempt": 2},
    "tool_call_id": {"tool_call_id": "call_2_1"},
    "jsonrpc_id": {"jsonrpc_id": 8},
    "arguments": {"arguments": {**FACTS.arguments, "body": "Dear Ada"}},
    "operation": {"operation": Operation("welcome", "A-2", 42)},
}


@pytest.mark.parametrize(
    ("name", "made_of"),
    [
        ("per attempt", {"attempt", "tool_call_id"}),
        ("per tool-call id", {"tool_call_id"}),
        ("per JSON-RPC id", {"jsonrpc_id"}),
        ("content hash", {"arguments"}),
        ("per operation", {"operation"}),
    ],
)
def test_a_strategy_depends_on_what_its_name_says_and_on_nothing_else(name, made_of):
    """Change one fact at a time: the key changes with these and with no others."""
    key = BY_NAME[name].key
    changes = {
        what for what, changed in VARIATIONS.items() if key(replace(FACTS, **changed)) != key(FACTS)
    }
    assert changes == made_of


def test_the_content_hash_is_of_canonical_json():
    """The order of the arguments does not matter; the digest can be made elsewhere."""
    turned = replace(FACTS, arguments=dict(reversed(FACTS.arguments.items())))
    text = '{"body":"Hello Ada","subject":"Welcome","to":"ada@example.org"}'
    expected = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert keys.content_hash(FACTS) == keys.content_hash(turned) == expected


@given(st.text(min_size=1), st.integers(1, 5))
def test_each_generation_of_a_key_is_new_and_says_whose_it_is(key, many):
    """Going on from any key: never a repetition, counted from that key on."""
    line = [key]
    for _ in range(many):
        line.append(again(line[-1]))
    assert len(set(line)) == len(line)
    base, first = generation(key)
    assert [generation(one) for one in line] == [(base, first + n) for n in range(many + 1)]


@pytest.mark.parametrize(
    "key", ["welcome:7", "a/b", "/2", "a/1", "a/x2", "a/²", "a/02", f"a/{'9' * 5000}"]
)
def test_what_only_looks_like_a_generation_is_a_first_one(key):
    """A slash in a business key does not count, nor does a number that ``again`` never writes."""
    assert generation(key) == (key, 1)
    assert again(key) == f"{key}/2"

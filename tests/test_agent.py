"""The agent of the lessons: what its state holds, where it saves, and what a crash may repeat."""

from pathlib import Path

import pytest
from pydantic import ValidationError

import durakit as dk
from durakit.lab import agent
from durakit.lab.agent import (
    SAVE_PLACES,
    TOOLS,
    AgentState,
    Amount,
    Artifact,
    Artifacts,
    Cannot,
    Desk,
    PendingCall,
    ScriptedModel,
    Transcript,
    operation_key,
)

ROOT = Path(__file__).resolve().parent.parent
DIED = dk.CrashAt("send_mail", "effect_done")


def desk_of(world, tmp_path, transcript="plain", **options):
    """Return an agent that works with this world."""
    return Desk(world, tmp_path, transcript, **options)


def keys_of(world):
    """Return the keys of all effects in the ledger, in order."""
    return [effect["key"] for effect in world.effects()]


def last_state(run):
    """Return the state of a run's last checkpoint."""
    return run.at(len(run.history()))


# -- without a crash -------------------------------------------------------------------------------


def test_the_plain_agent_sends_one_mail_and_ends(rt, world, tmp_path):
    """Five decisions, four tools, one end: ten transitions, and one mail in the ledger."""
    desk = desk_of(world, tmp_path)
    run = rt.run(desk.machine, desk.start, id="a")
    assert run.result == {"outcome": "done", "mails": ["email-1"]}
    assert run.checkpoints()["transition"].tolist() == list(range(1, 11))
    assert keys_of(world) == ["case-7:welcome:42"]
    assert len(desk.model.bill) == 5


def test_the_state_holds_all_that_the_course_says(rt, world, tmp_path):
    """Messages, pending calls, stage, budget, artifact references and versions, at each entry."""
    desk = desk_of(world, tmp_path)
    run = rt.run(desk.machine, desk.start, id="a")
    decided = run.at(int(run.checkpoints()["seq"].iloc[6]))
    assert isinstance(decided, AgentState)
    assert decided.stage == "act"
    assert [message.role for message in decided.messages] == ["user"] + ["model", "tool"] * 3 + [
        "model"
    ]
    assert [call.tool for call in decided.pending] == ["send_mail"]
    assert decided.budget.used == Amount(turns=4, tokens=2150, cents=15)
    assert [(a.name, a.version) for a in decided.artifacts] == [("welcome", 1)]
    assert decided.versions == {"transcript": "plain/1", "tools": "1"}
    assert "first month" not in decided.model_dump_json()


def test_two_tools_at_once_are_done_one_after_the_other_in_list_order(rt, world, tmp_path):
    """Two pending calls: the ledger has them in the order of the model's list."""
    desk = desk_of(world, tmp_path, "two_at_once")
    run = rt.run(desk.machine, desk.start, id="a")
    pending = [
        [call.arguments["customer"] for call in run.at(int(seq)).pending]
        for seq in run.checkpoints()["seq"].iloc[6:9]
    ]
    assert pending == [[42, 43], [43], []]
    assert keys_of(world) == ["case-7:welcome:42", "case-7:welcome:43"]
    assert [m["to"] for m in world.inbox()] == ["ada@example.org", "bela@example.org"]


def test_the_answer_of_a_tool_carries_the_id_that_the_model_gave(rt, world, tmp_path):
    """That is all that the id is for."""
    desk = desk_of(world, tmp_path, "two_at_once")
    run = rt.run(desk.machine, desk.start, id="a")
    answered = [m.call for m in last_state(run).messages if m.role == "tool"]
    assert answered == ["call_1_1", "call_2_1", "call_3_1", "call_4_1", "call_4_2"]


# -- the operation key -----------------------------------------------------------------------------


def test_the_key_comes_from_the_case_and_the_subject_alone():
    """Neither the model's id nor its words are in it; another case or customer is another key."""
    state = AgentState(case="case-7", messages=[])
    calls = [
        PendingCall(
            id=given, tool="send_mail", arguments={"letter": "welcome", "customer": 42} | more
        )
        for given, more in [("call_1", {}), ("call_2", {"tone": "warm"})]
    ]
    assert {operation_key(state, call) for call in calls} == {"case-7:welcome:42"}
    other = calls[0].model_copy(update={"arguments": {"letter": "welcome", "customer": 43}})
    elsewhere = AgentState(case="case-8", messages=[])
    assert operation_key(state, other) == "case-7:welcome:43"
    assert operation_key(elsewhere, calls[0]) == "case-8:welcome:42"


def test_the_model_is_never_told_of_a_key():
    """Not in its tools, not in any reply that a transcript can hold."""
    told = agent.schema().lower()
    assert not any(word in told for word in ("key", "idempot", "operation", "attempt"))
    schema = agent.Reply.model_json_schema()
    parts = [schema, *schema["$defs"].values()]
    named = {name for part in parts for name in part["properties"]}
    assert {"says", "calls", "tool", "arguments", "id"} <= named
    assert not any("key" in name for name in named)
    for name in agent.transcript_names():
        for turn in Transcript.load(name).turns:
            for call in turn.calls:
                assert set(call.arguments) <= set(TOOLS.get(call.tool, ()))


# -- crashes and save places -----------------------------------------------------------------------


@pytest.mark.parametrize("place", SAVE_PLACES)
@pytest.mark.parametrize(
    ("transcript", "mails"), [("plain", 1), ("replans", 1), ("two_at_once", 2)]
)
def test_wherever_it_crashes_each_customer_has_one_mail(world, tmp_path, place, transcript, mails):
    """The sweep, by the world's ledger: the save place decides nothing about the mailbox."""
    desk = desk_of(world, tmp_path, transcript, save=place)
    report = dk.sweep(desk.machine, desk.start, world=world)
    assert report.safe, report.text()
    assert {schedule.effects for schedule in report.schedules} == {mails}
    assert len(report.schedules) > 25


@pytest.mark.parametrize(
    ("place", "checkpoints", "calls"),
    [
        ("every", 10, 5),
        ("after_model", 6, 5),
        ("after_tool", 5, 6),
        ("milestones", 3, 7),
        ("only_at_end", 1, 9),
    ],
)
def test_a_later_save_place_repeats_more_of_the_models_work(
    rt, world, tmp_path, place, checkpoints, calls
):
    """Counted on the bill of the model's maker; the ledger has one mail in each case."""
    desk = desk_of(world, tmp_path, save=place)
    run = rt.run(desk.machine, desk.start, id="a", crash=DIED)
    assert len(desk.model.bill) == 4
    rt.recover()
    assert run.result == {"outcome": "done", "mails": ["email-1"]}
    assert len(run.checkpoints()) == checkpoints
    assert len(desk.model.bill) == calls
    assert keys_of(world) == ["case-7:welcome:42"]


def test_a_plan_made_anew_with_new_ids_sends_no_second_mail(rt, world, tmp_path):
    """The model gives the same wish another id and other words; the request is a replay."""
    desk = desk_of(world, tmp_path, "replans", save="after_tool")
    run = rt.run(desk.machine, desk.start, id="a", crash=DIED)
    rt.recover()
    answers = [m.call for m in last_state(run).messages if m.role == "tool"]
    assert answers[-1] == "call_5_1", "the fifth answer, for the fourth turn: planned anew"
    assert "off it goes" in last_state(run).messages[-3].text
    assert [request["outcome"] for request in world.requests()] == ["delivered", "replayed"]
    assert keys_of(world) == ["case-7:welcome:42"]


def test_with_the_models_id_for_a_key_the_ledger_has_two_mails(rt, world, tmp_path):
    """The mistake that the lesson shows: so the key is what protects, not the checkpoint."""
    desk = desk_of(world, tmp_path, "replans", save="after_tool", key=lambda state, call: call.id)
    run = rt.run(desk.machine, desk.start, id="a", crash=DIED)
    rt.recover()
    assert keys_of(world) == ["call_4_1", "call_5_1"]
    assert run.status == "needs_decision"


def test_over_an_opaque_service_the_agent_asks_a_person(rt, world, tmp_path):
    """Without a contract nobody guesses, whatever the save place."""
    desk = desk_of(world, tmp_path, save="only_at_end", effect="opaque")
    run = rt.run(desk.machine, desk.start, id="a", crash=DIED)
    rt.recover()
    assert run.status == "needs_decision"
    assert len(world.effects()) == 1
    rt.resolve("a", "case-7:welcome:42", "completed", result="email-1", by="Grace")
    rt.recover()
    assert run.result == {"outcome": "done", "mails": ["email-1"]}
    assert len(world.requests()) == 1


def test_the_budget_in_the_state_forgets_what_no_checkpoint_has_seen(rt, world, tmp_path):
    """Belief beside truth: the bill of the model's maker is the higher one."""
    desk = desk_of(world, tmp_path, save="only_at_end")
    run = rt.run(desk.machine, desk.start, id="a", crash=DIED)
    rt.recover()
    assert last_state(run).budget.used == Amount(turns=5, tokens=2870, cents=20)
    assert sum(row["cents"] for row in desk.model.bill) == 35


# -- a plan made anew with other words (L050, L062) ------------------------------------------------


def test_other_words_under_a_key_that_was_concluded_are_handed_over(rt, world, tmp_path):
    """The stored outcome belongs to the first letter; nobody takes it for that of the second."""
    desk = desk_of(world, tmp_path, "rewords", save="only_at_end")
    died = dk.CrashAt("send_mail", "result_saved")
    run = rt.run(desk.machine, desk.start, id="a", crash=died)
    rt.recover()
    assert run.result["outcome"] == "handed over"
    assert "ordered before, with other words" in run.result["missing"]
    assert run.result["mails"] == []
    assert len(world.requests()) == 1


def test_other_words_under_a_key_that_is_unknown_park_the_run(rt, world, tmp_path):
    """The first letter may be out: only a person can say."""
    desk = desk_of(world, tmp_path, "rewords", save="only_at_end")
    run = rt.run(desk.machine, desk.start, id="a", crash=DIED)
    rt.recover()
    assert run.status == "needs_decision"
    assert "other arguments" in run.reason
    assert len(world.requests()) == 1


def test_a_workflow_gets_no_stored_outcome_for_other_arguments(rt, world):
    """A plain line that comes out differently is a mismatch, and nothing is sent."""
    lives = []

    @dk.tool(effect="idempotent")
    def post(call, to, text):
        return world.send(to, "Hi", text, key=call.key)["id"]

    @dk.workflow
    def drawn(ctx):
        lives.append(1)
        return ctx.call(post, "ada@example.org", f"code {len(lives)}", key="k")

    run = rt.run(drawn, id="a", crash=dk.CrashAt("post", "result_saved"))
    rt.recover()
    assert run.status == "needs_decision"
    assert "call 'post' with key 'k'" in run.reason
    assert "asks for it with other arguments" in run.reason
    assert [mail["body"] for mail in world.inbox()] == ["code 1"]
    lives.clear()
    assert rt.resume("a").result == "email-1"


# -- "I cannot", and the end of the budget ---------------------------------------------------------


def test_i_cannot_is_no_error_and_names_the_missing_condition(rt, world, tmp_path):
    """The model is asked once, nothing is retried, and a person reads what is missing."""
    desk = desk_of(world, tmp_path, "cannot")
    run = rt.run(desk.machine, desk.start, id="a")
    assert run.status == "completed"
    assert run.result == {
        "outcome": "handed over",
        "missing": "consent of customer 46",
        "confirmed": True,
        "mails": [],
    }
    assert [row["turn"] for row in desk.model.bill] == [1, 2, 3]
    assert world.requests() == []
    assert last_state(run).hand_over.said.startswith("I cannot do this")


def test_i_cannot_is_checked_and_not_just_believed(rt, world, tmp_path):
    """A model may be wrong about itself: the hand-over says that our records do not agree."""
    desk = desk_of(world, tmp_path, "cannot_wrong")
    run = rt.run(desk.machine, desk.start, id="a")
    assert run.result["confirmed"] is False
    assert "nothing that we know of" in run.result["missing"]


@pytest.mark.parametrize(
    ("kind", "what", "customer", "missing"),
    [
        ("permission", "consent", 46, "consent of customer 46"),
        ("permission", "consent", 42, ""),
        ("information", "birthday", 42, "birthday of customer 42"),
        ("information", "email", 42, ""),
        ("information", "email", 99, "email of customer 99"),
        ("tool", "refund", None, "a tool: refund"),
        ("tool", "send_mail", None, ""),
    ],
)
def test_what_is_missing_is_found_in_our_own_records(
    world, tmp_path, kind, what, customer, missing
):
    """Permission, information and tools are looked up; an empty answer means nothing is missing."""
    desk = desk_of(world, tmp_path)
    assert desk.missing(Cannot(kind=kind, what=what, customer=customer)) == missing


@pytest.mark.parametrize("transcript", ["cannot", "cannot_wrong"])
def test_a_hand_over_survives_every_crash(world, tmp_path, transcript):
    """The sweep finds the same result at each point, and no mail."""
    desk = desk_of(world, tmp_path, transcript)
    report = dk.sweep(desk.machine, desk.start, world=world)
    assert report.safe, report.text()
    assert report.reference == 0


@pytest.mark.parametrize(
    ("limit", "turns", "missing"),
    [
        (Amount(turns=3, tokens=9999, cents=99), 3, "budget: 3 of 3 turns are used"),
        (Amount(turns=99, tokens=900, cents=99), 3, "budget: 930 of 900 tokens are used"),
        (Amount(turns=99, tokens=9999, cents=8), 4, "budget: 8 of 8 cents are used"),
    ],
)
def test_a_budget_ends_an_endless_model(rt, world, tmp_path, limit, turns, missing):
    """Each of the three counts in the state, and the hand-over names the one that is used up."""
    desk = desk_of(world, tmp_path, "endless", limit=limit)
    run = rt.run(desk.machine, desk.start, id="a")
    assert run.result["missing"] == missing
    assert len(desk.model.bill) == turns


# -- what the model asks wrongly -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        ("refund", {}, "there is no tool 'refund'"),
        ("send_mail", {"customer": 42}, "send_mail needs letter"),
        ("send_mail", {"customer": "Ada", "letter": "welcome"}, "customer is a number"),
        ("send_mail", {"customer": 42, "letter": "bill"}, "there is no letter 'bill'"),
        ("look_up", {"customer": 99, "what": "name"}, "no customer 99"),
    ],
)
def test_a_bad_call_is_told_to_the_model_and_sends_nothing(
    rt, world, tmp_path, tool, arguments, told
):
    """It is an answer like any other, and the conversation goes on."""
    turns = [
        {"says": "…", "calls": [{"tool": tool, "arguments": arguments}], "tokens": 1, "cents": 1},
        {"says": "I see.", "tokens": 1, "cents": 1},
    ]
    script = {"name": "bad", "version": 1, "about": "", "task": "", "ids": "new", "turns": turns}
    desk = desk_of(world, tmp_path, Transcript.model_validate(script))
    run = rt.run(desk.machine, desk.start, id="a")
    assert told in [m.text for m in last_state(run).messages if m.role == "tool"]
    assert run.result["outcome"] == "done"
    assert world.requests() == []


def test_a_letter_whose_text_is_gone_is_not_sent(rt, world, tmp_path):
    """The state has the reference only; without the text the run fails before any intent."""
    desk = desk_of(world, tmp_path)
    run = rt.run(desk.machine, desk.start, id="a", crash=dk.CrashAt("send_mail", "before_intent"))
    for path in (tmp_path / "artifacts").iterdir():
        path.unlink()
    rt.recover()
    assert run.status == "failed"
    assert "its text is gone" in run.reason
    assert world.requests() == []


def test_an_artifact_gets_a_new_version_only_for_new_words(tmp_path):
    """Writing is by content: the same text twice is one file."""
    kept = Artifacts(tmp_path)
    one, same, two = kept.put("a"), kept.put("a"), kept.put("b")
    assert one == same != two
    assert len(list(tmp_path.iterdir())) == 2
    assert kept.get(Artifact(name="n", version=1, digest=two)) == "b"


# -- the model and its data ------------------------------------------------------------------------


def test_a_transcript_is_deterministic():
    """Two models with one transcript give the same answers, word for word."""
    for name in agent.transcript_names():
        one, two = ScriptedModel(name), ScriptedModel(name)
        state = AgentState(case="c", messages=[])
        answers = [[model.reply(state) for _ in range(3)] for model in (one, two)]
        assert answers[0] == answers[1]


def test_each_transcript_is_listed_with_its_source():
    """data/README.md has a line for each, and says that it is made up."""
    readme = (ROOT / "data" / "README.md").read_text()
    names = agent.transcript_names()
    assert len(names) == 7
    for name in names:
        (line,) = [
            row for row in readme.splitlines() if row.startswith(f"| `transcripts/{name}.json`")
        ]
        assert "made up" in line
        assert Transcript.load(name).name == name


def test_what_there_is_not_is_named_with_what_there_is(world, tmp_path):
    """A wrong name of a transcript or a save place lists the right ones."""
    with pytest.raises(FileNotFoundError, match="there are: .*two_at_once"):
        Transcript.load("nothing")
    with pytest.raises(ValueError, match="there are: every, after_model"):
        desk_of(world, tmp_path, save="sometimes")
    with pytest.raises(LookupError, match="ends after turn 1"):
        ScriptedModel("cannot_wrong").reply(
            AgentState(case="c", messages=[agent.Message(role="model", text="…")])
        )


def test_a_state_with_a_field_of_another_version_is_not_misread():
    """An unknown field is refused, never dropped."""
    with pytest.raises(ValidationError):
        AgentState.model_validate({"case": "c", "messages": [], "mood": "good"})

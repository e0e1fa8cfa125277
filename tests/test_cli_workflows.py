"""The commands on code: `sweep` crashes a workflow everywhere, `lint` reads it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import command_line
import pytest
from command_line import all_refused, answer, each, refusal, sent

compiled_once, shop = command_line.compiled_once, command_line.shop


# -- sweep -------------------------------------------------------------------------------


def test_a_safe_workflow_is_swept_with_exit_code_0(shop: Path) -> None:
    """The world named `world` is found, arguments come by order or name, the mailbox stays."""
    text = answer(shop, "sweep", "shop:welcome", "--args", '["ada"]')
    assert re.search(r"^\d+ +send_email +effect_done +1 +completed +safe$", text, re.MULTILINE)
    assert answer(shop, "sweep", "shop:welcome", "--args", '{"to": "ada"}') == text
    assert sent(shop) == 0


def test_a_sweep_that_finds_a_duplicate_ends_with_1_and_the_crash_that_shows_it(
    shop: Path,
) -> None:
    """The counterexample that is printed does send twice, says the world's own ledger."""
    words = ("sweep", "shop:careless", "--args", '["ada"]', "--world", "shop:world")
    assert "duplicate: 1 effect(s) more" in answer(shop, *words, code=1)
    report = json.loads(answer(shop, *words, "--json", code=1))
    assert report["safe"] is False
    assert {"duplicate", "safe"} <= {row["verdict"] for row in report["rows"]}
    program = (
        "import sys, durakit as dk, shop; rt = dk.Runtime('again.db', world=shop.world); "
        "shop.world.late_after = 0; crash = dk.CrashAt.parse(sys.argv[1]); "
        "assert rt.run(shop.careless, 'ada', id='c', crash=crash).crash; rt.recover()"
    )
    again = [sys.executable, "-c", program, report["counterexample"]]
    subprocess.run(again, cwd=shop, check=True, capture_output=True, timeout=60)
    assert sent(shop) == 2


@pytest.mark.real_kill
def test_a_sweep_with_real_kills_gives_the_same_table(shop: Path) -> None:
    """The crash that is simulated and the process that is killed leave the same rows."""
    words = ("sweep", "shop:careless", "--args", '["ada"]', "--json")
    simulated = json.loads(answer(shop, *words, code=1))
    killed = json.loads(answer(shop, *words, "--real", code=1))
    assert killed["mode"] == "process"
    assert killed["rows"] == simulated["rows"]


def test_a_sweep_of_pairs_and_the_one_schedule_that_a_seed_names(shop: Path) -> None:
    """With --pairs each recovery is crashed too; --only runs what a row of the table says."""
    words = ("sweep", "shop:careless", "--args", '["ada"]', "--json")
    rows = json.loads(answer(shop, *words, "--pairs", "--progress", code=1))["rows"]
    pairs = [row for row in rows if row["then"]]
    assert len(pairs) > len(rows) - len(pairs) > 5
    worst = max(pairs, key=lambda row: row["effects"])
    assert worst["effects"] == 3
    only = json.loads(answer(shop, *words, "--only", worst["seed"], code=1))
    assert only["rows"] == [worst]
    text = answer(shop, *words[:-1], "--only", worst["seed"], code=1)
    assert f"{worst['point']} of shout_again, then {worst['then']}: duplicate" in text


def test_a_sweep_gives_the_signals_that_the_command_says(shop: Path) -> None:
    """A run that waits is told what --signal says, as JSON."""
    (shop / "waiting.py").write_text(
        "import durakit as dk\nfrom shop import send_email, world\n\n\n@dk.workflow\n"
        "def asks(ctx):\n    to = ctx.wait_for('whom')['to']\n"
        "    return ctx.call(send_email, to, key=to)\n"
    )
    words = ("sweep", "waiting:asks")
    assert "say signals={'whom': …}" in refusal(shop, *words)
    report = json.loads(answer(shop, *words, "--signal", 'whom={"to": "ada"}', "--json"))
    assert {row["effects"] for row in report["rows"]} == {1}
    assert "--signal: say NAME=JSON" in refusal(shop, *words, "--signal", "whom")
    assert "--signal whom: no JSON" in refusal(shop, *words, "--signal", "whom=ada")
    twice = ("--signal", "whom=1", "--signal", "whom=2")
    assert "--signal whom: is given twice" in refusal(shop, *words, *twice)


def test_a_sweep_that_cannot_begin_says_why(shop: Path) -> None:
    """A name, an argument or a world that does not fit is one line and exit code 2."""
    (shop / "bare.py").write_text(
        "import datetime\nimport durakit as dk\nalone = dk.workflow(lambda ctx: 1)\nworld = 1\n\n\n"
        "@dk.workflow\ndef typed(ctx, day: datetime.date):\n    return 1\n"
    )
    (shop / "moody.py").write_text("def __getattr__(name):\n    raise RuntimeError('no')\n")
    (shop / "empty.py").write_text("from bare import alone\n")
    expected = {
        ("shop",): "say module:name",
        ("shop:nothing",): "module 'shop' has no 'nothing'",
        ("shop:send_email",): "is no workflow",
        ("shop:welcome",): "does not fit welcome(to)",
        ("shop:welcome", "--args", '{"from": 1}'): "does not fit welcome(to)",
        ("shop:welcome.function",): "is no workflow",
        ("shop:world.nothing",): "module 'shop' has no 'world.nothing'",
        ("moody:welcome",): "of module 'moody', 'welcome' cannot be had (RuntimeError: no)",
        ("shop:welcome", "--args", "[NaN]"): "--args: no JSON: NaN is not a JSON number",
        (
            "shop:welcome",
            "--args",
            '{"to": "a", "to": "b"}',
        ): "--args: no JSON: 'to' is there twice",
        ("shop:welcome", "--args", "[" * 99_999): "--args: no JSON that can be read: too many",
        (
            "bare:typed",
            "--args",
            '["no"]',
        ): "--args does not fit typed(day: datetime.date): saved value",
        ("shop:welcome", "--args", "ada"): "--args: no JSON",
        ("shop:welcome", "--args", '"ada"'): "a list in the order of the arguments",
        ("shop:welcome", "--args", "[1]", "--world", "durakit.mail:Mailbox"): "is a class",
        ("shop:welcome", "--args", "[1]", "--world", "shop:send_email"): "world: needs fresh()",
        ("empty:alone",): "has no object named `world`",
        ("shop:welcome", "--args", "[1]", "--only", "nowhere"): "names no crash",
    }
    lines = all_refused(shop, *(["sweep", *words] for words in expected))
    assert [
        says for says, line in zip(expected.values(), lines, strict=True) if says not in line
    ] == []


def test_a_machine_is_swept_whatever_its_parameter_is_called(tmp_path: Path) -> None:
    """And what fails without any crash is not called safe."""
    (tmp_path / "machines.py").write_text(
        "import durakit as dk\nimport pydantic\nfrom durakit.mail import Mailbox\n\n"
        "world = Mailbox()\n\n\n"
        "class State(pydantic.BaseModel):\n    to: str\n\n\n"
        "@dk.machine(state=State)\n"
        "def letters(ctx, mine):\n    return dk.Done(mine)\n\n\n"
        "@dk.machine(state=State)\n"
        'def fails(ctx, mine):\n    raise ValueError("no")\n'
    )
    args = ["--args", '[{"to": "a@b.c"}]']
    good, bad = each(
        tmp_path, ["sweep", "machines:letters", *args], ["sweep", "machines:fails", *args]
    )
    assert good[0] == 0, good
    assert bad[0] == 1, bad
    assert "failed: ValueError: no" in bad[1]


# -- lint --------------------------------------------------------------------------------


def test_lint_says_what_it_found_and_what_it_looked_at(tmp_path: Path) -> None:
    """A new key for each attempt: exit code 1; nothing found: 0; no workflow: 2."""
    (tmp_path / "linted.py").write_text(
        "import durakit as dk\nfrom durakit.mail import Mailbox\n\nmail = Mailbox()\n\n\n"
        '@dk.tool(effect="idempotent", window=60, timeout=3)\n'
        'def good(call):\n    return mail.send("a@b.c", "Hi", "x", key=call.key)\n\n\n'
        '@dk.tool(effect="idempotent", window=60, timeout=3)\n'
        'def bad(call):\n    key = f"{call.key}:{call.attempt}"\n'
        '    return mail.send("a@b.c", "Hi", "x", key=key)\n'
    )
    good, bad, neither, json_ = each(
        tmp_path, ["lint", "linted:good"], ["lint", "linted:bad"], ["lint", "linted:dk"],
        ["lint", "linted:bad", "--json"],
    )  # fmt: skip
    assert good[0] == 0, good
    assert "looked at" in good[1]
    assert bad[0] == 1
    assert "a new key for each attempt" in bad[1]
    assert neither[0] == 2
    assert "lint looks at" in neither[2]
    assert json.loads(json_[1])["subject"] == "tool bad"

"""The HTTP door under many clients at once: latency, and whether each key still makes one mail.

A door runs as a process of its own (``durakit mail serve``), the clients are threads of this one,
each with one connection: it sends, waits for the answer, and sends the next. About every key is
used by several clients, some of them at the same moment. Prints one JSON line for each profile and
number of clients: ``{profile, clients, requests, seconds, requests_per_s, p50_ms, p95_ms, p99_ms,
max_ms, answers, keys, mails, most_mails_of_a_key, unexpected}``. The last two are judged after the
end: by the service's own ledger, and by what the profile says that it answers.

With so many clients that the door is never idle, latency is clients / rate: it says how long the
queue is. The line for one client says what an exchange costs by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from durakit.mail import PROFILES, Mailbox

Exchange = tuple[float, int, str | None]
"""Seconds, status, and the name where it is a refusal."""


@contextlib.contextmanager
def door(profile: str, folder: Path) -> Iterator[int]:
    """Run a mail service as a process; yield its port."""
    words = ["mail", "serve", "--profile", profile, "--folder", str(folder)]
    with subprocess.Popen(
        [sys.executable, "-m", "durakit", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline().rpartition(":")[2])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def client(port: int, profile: str, keys: list[int]) -> list[Exchange]:
    """Send one letter for each key, one after the other."""
    known, exchanges = PROFILES[profile], []
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    with contextlib.closing(line):
        for key in keys:
            letter = {"to": "ada@example.org", "subject": f"Number {key}", "text": "Hello"}
            carried = {} if known.carrier is None else {known.carrier: known.carry(f"k{key}")}
            began = time.perf_counter()
            line.request("POST", "/emails", json.dumps(letter), carried)
            answer = line.getresponse()
            body = json.loads(answer.read())
            took = time.perf_counter() - began
            exchanges.append((took, answer.status, name_of(body)))
    return exchanges


def name_of(body: dict[str, Any]) -> str | None:
    """Return the stable name in a refusal of any shape."""
    if "error" in body:
        return str(body["error"].get("code", body["error"]["type"]))
    return body.get("name", body.get("title"))


def measure(profile: str, clients: int, requests: int, uses: int) -> dict[str, Any]:
    """One line: ``requests`` by each of ``clients``, each key used about ``uses`` times."""
    draw = random.Random(1)
    keys = max(1, clients * requests // uses)
    plans = [[draw.randrange(keys) for _ in range(requests)] for _ in range(clients)]
    with tempfile.TemporaryDirectory() as folder:
        with door(profile, Path(folder)) as port, ThreadPoolExecutor(clients) as pool:
            client(port, "smtp", [0] if PROFILES[profile].missing_key is None else [])  # warm
            began = time.perf_counter()
            told = list(pool.map(lambda plan: client(port, profile, plan), plans))
            seconds = time.perf_counter() - began
        with contextlib.closing(Mailbox(folder, profile=profile)) as mailbox:
            mails = Counter(row["key"] for row in mailbox.effects() if row["key"] is not None)
    exchanges = [exchange for one in told for exchange in one]
    took = sorted(1000 * exchange[0] for exchange in exchanges)
    cuts = statistics.quantiles(took, n=100)
    answers = Counter(f"{status} {name or ''}".strip() for _, status, name in exchanges)
    busy = PROFILES[profile].in_progress
    expected = {"200"} | ({f"{busy.status} {busy.name}"} if busy is not None else set())
    return {
        "profile": profile,
        "clients": clients,
        "requests": len(exchanges),
        "seconds": round(seconds, 2),
        "requests_per_s": round(len(exchanges) / seconds),
        "p50_ms": round(cuts[49], 2),
        "p95_ms": round(cuts[94], 2),
        "p99_ms": round(cuts[98], 2),
        "max_ms": round(took[-1], 2),
        "answers": dict(answers),
        "keys": len({key for plan in plans for key in plan}),
        "mails": sum(mails.values()),
        "most_mails_of_a_key": max(mails.values(), default=0),
        "unexpected": sum(count for said, count in answers.items() if said not in expected),
    }


def main() -> None:
    """Read the command line, measure, and print the lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profiles", nargs="+", default=["resend", "idempotent", "ietf_draft"])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 200])
    parser.add_argument("--requests", type=int, default=20, help="by each of many clients")
    parser.add_argument("--uses", type=int, default=4, help="of each key, about")
    asked = parser.parse_args()
    for profile in asked.profiles:
        for clients in asked.clients:
            requests = asked.requests if clients > 1 else 50 * asked.requests
            print(json.dumps(measure(profile, clients, requests, asked.uses)), flush=True)


if __name__ == "__main__":
    main()

"""The mail service behind its in-process door.

How one request goes:

    nothing yet                                    hook "arriving"
    number taken, request logged     committed     hook "received"   may return "late"
    ├─ late: stored with a due time  committed     hook "held"       then no reply
    ├─ mail + dedup record           one commit    hook "acted"      also when replayed
    └─ the answer                                  hook "replied"    also when it is a refusal

Rules:

1. A hook may raise or kill. It is called with no lock held and no transaction open, so what is on
   disk is then exactly what the line above it says, by exception and by SIGKILL alike.
2. Nothing foreign (hook, clock, plan) runs inside a transaction.
3. Every transaction first performs the held requests that are due, in order of due time and as of
   that time. So "any touch at or after the due time" is one line, and cannot be forgotten.
4. A duplicate is stopped by the primary key of `dedup` in the transaction that writes the mail,
   never by a look followed by a write.
5. The answer to a request is a value inside the transaction and raised only after the commit.

Inelegant, and on purpose: a connection that lives through a fork makes SQLite believe in locks the
child does not have, and closing either copy can delete the other's WAL. So every connection of this
process is closed just before a fork, and each side opens its own at its next touch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import sqlite3
import tempfile
import threading
import time
import unicodedata
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from durakit.mail.errors import MailError, NotSupported
from durakit.mail.faults import Fault, check_seconds
from durakit.mail.profiles import PROFILES, Profile

POINTS = ("arriving", "received", "held", "acted", "replied")
"""The points at which a hook is called, in order. At "arriving" nothing is logged yet: a hook that
raises there makes the request one that was never made."""

SERVER_ERRORS = 500  # the lowest status that blames the service
LONGEST_KEY = 256  # characters
DEFAULT_TIMEOUT = 30.0  # seconds a caller without a timeout waits for a reply
BUSY_WAIT = 30.0  # real seconds one process waits for another's transaction
APPLICATION_ID = 1684761964  # 'dkml', as in schema.sql
SCHEMA_VERSION = 1

Hook = Callable[[str, str | None], object]

NEXT_REQUEST = "SELECT coalesce(max(number), 0) + 1 FROM request"
NEXT_MAIL = "SELECT coalesce(max(number), 0) + 1 FROM mail"
CLAIM_KEY = """
    INSERT INTO dedup (key, digest, mail, first, expires)
    VALUES (:key, :digest, :mail, :now, :expires)
    ON CONFLICT (key) DO UPDATE
    SET digest = excluded.digest, mail = excluded.mail,
        first = excluded.first, expires = excluded.expires
    WHERE dedup.expires <= excluded.first
"""


class Clock(Protocol):
    """What the service needs of a clock."""

    def now(self) -> float:
        """UTC seconds."""

    def sleep(self, seconds: float, /) -> object:
        """Let that many seconds pass."""


class _RealClock:
    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True)
class _Letter:
    to: str
    subject: str
    body: str
    key: str | None
    fence: int | None

    def digest(self) -> str:
        text = json.dumps(
            {"body": self.body, "subject": self.subject, "to": self.to}, separators=(",", ":")
        )
        return hashlib.sha256(text.encode()).hexdigest()


class Mailbox:
    """A mail service with a ledger of its own, in ``mail.db`` in ``folder``.

    ``folder=None`` makes a private temporary folder, removed at exit. ``profile``: a name in
    ``PROFILES`` or a ``Profile``. ``clock=None`` is real time. ``plan``: faults; the first that
    hits a request counts. ``latency``: seconds of one exchange, half before the service acts and
    half before it replies. ``name``: the tool named in ``effects()``. ``late_after``: seconds
    until a request acts whose hook said "late". ``clock``, ``profile``, ``plan`` and
    ``late_after`` may be set at any time. Threads may share a mailbox, processes a folder.

    Raises ValueError for an unknown profile or a bad number, and RuntimeError if ``mail.db`` is
    somebody else's file (which is left as it is).
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        profile: str | Profile = "idempotent",
        clock: Clock | None = None,
        plan: Iterable[Fault] = (),
        latency: float = 0.05,
        name: str = "send_email",
        late_after: float = 5.0,
    ) -> None:
        if isinstance(profile, str):
            if profile not in PROFILES:
                raise ValueError(f"profile: {profile!r} is none of {', '.join(PROFILES)}")
            profile = PROFILES[profile]
        self.profile = profile
        self.clock: Clock = _RealClock() if clock is None else clock
        self.plan: list[Fault] = list(plan)
        self.latency = check_seconds("latency", latency)
        self.late_after = check_seconds("late_after", late_after)
        self.name = name
        self._hook: Hook | None = None
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._path: Path | None = None
        with _forking:  # not while another thread walks the set
            _mailboxes.add(self)
        self.fresh(_private_folder(self) if folder is None else folder)

    # ── where the world lives ────────────────────────────────────────────────────────────────────

    def fresh(self, folder: str | os.PathLike[str]) -> None:
        """Live in ``folder`` from now on: an empty folder is an empty world, a ledger is opened.

        Closes what was open before; clock, profile, plan and hook stay. Raises RuntimeError if
        ``mail.db`` there is not a mail ledger of this version.
        """
        home = Path(folder).absolute()
        home.mkdir(parents=True, exist_ok=True)
        with self._lock:
            self.close()
            self._path = home / "mail.db"
            try:
                self._connect()
            except BaseException:
                self._path = None
                raise

    @property
    def folder(self) -> Path | None:
        """Where the ledger lives now; None after ``close``."""
        return None if self._path is None else self._path.parent

    def close(self) -> None:
        """Close the ledger. Every touch but ``fresh`` then raises RuntimeError."""
        with self._lock:
            self._disconnect()
            self._path = None

    def listen(self, hook: Hook | None) -> None:
        """Call ``hook(point, key)`` at each of ``POINTS`` from now on; None detaches.

        The latest hook replaces the one before. It may raise anything or kill the process. If it
        returns "late" at "received", the request acts only ``late_after`` seconds later.
        """
        self._hook = hook

    # ── what callers do ──────────────────────────────────────────────────────────────────────────

    def send(
        self,
        to: str,
        subject: str,
        body: str,
        *,
        key: str | None = None,
        fence: int | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Deliver a mail: ``{"id": "email-1"}``; a replay answers the same, as real services do.

        ``requests()`` tells which it was.

        ``key``: 1 to 256 characters; None is no key, and then nothing is ever deduplicated.
        ``fence``: a whole number, used where the profile checks it. ``timeout``: seconds to wait
        for the reply; None or inf is 30.

        Raises TimeoutError after the whole timeout when no reply came: the mail may or may not be
        delivered, now or later. Raises MailError: 422 validation_error, 400
        invalid_idempotency_key, 409 invalid_idempotent_request, 412 stale_fence, 429
        rate_limit_exceeded, 500 internal_server_error (which may follow a delivery). Raises
        ValueError for a bad timeout; such a request was never sent.
        """
        waits_forever = timeout is None or timeout == math.inf
        limit = DEFAULT_TIMEOUT if waits_forever else check_seconds("timeout", timeout)
        sent = self.clock.now()
        letter = _Letter(to, subject, body, _as_text(key), fence)
        self._tell("arriving", key)
        number, fault = self._receive(letter.key, sent)
        kind = None if fault is None else fault.kind

        if self._tell("received", key) == "late" or kind == "request_late":
            late = self.late_after if fault is None or kind != "request_late" else fault.seconds
            self._hold(number, letter, self._refusal(to, subject, body, key, fence), late)
            self._tell("held", key)
            self._give_up(sent, limit)
        if kind == "request_lost":
            self._answer_without_acting(number, "lost")
            self._give_up(sent, limit)

        self._let_pass(self.latency / 2)
        refusal = _planned_refusal(fault) or self._refusal(to, subject, body, key, fence)
        answer: dict[str, Any] | MailError
        if refusal is not None:
            self._answer_without_acting(number, _outcome(refusal))
            answer = refusal
        else:
            now = self.clock.now()
            with self._transaction(now) as db:
                answer = self._perform(db, number, letter, now)
            if not isinstance(answer, MailError):
                self._tell("acted", key)
                if kind == "error_after":
                    answer = MailError(500, "internal_server_error", "something went wrong here")

        arrives = self.latency
        if fault is not None and kind == "reply_late":
            arrives = max(arrives, fault.seconds)
        if kind == "reply_lost" or arrives > limit:
            self._give_up(sent, limit)
        self._let_pass(arrives - self.latency / 2)
        self._tell("replied", key)
        if isinstance(answer, MailError):
            raise answer
        return {"id": answer["id"]}

    def find(self, key: str) -> dict[str, Any] | None:
        """Ask about a key: ``{"id": "email-1"}``, or None if no visible mail carries it.

        The latest such mail counts. None does not mean that nothing will come: a request may be on
        its way, or its mail not visible yet. Takes one latency. Raises NotSupported where the
        profile cannot be asked, and MailError 400 for a malformed key.
        """
        self._let_pass(self.latency / 2)
        refusal: MailError | None = _bad_key(key)
        if not self.profile.askable:
            refusal = NotSupported(
                501, "not_supported", f"the profile {self.profile.name!r} cannot be asked"
            )
        row = None
        if refusal is None:
            now = self.clock.now()
            with self._transaction(now) as db:
                row = db.execute(
                    "SELECT number FROM mail WHERE key = ? AND time + ? <= ? "
                    "ORDER BY number DESC LIMIT 1",
                    (key, self.profile.visible_after, now),
                ).fetchone()
        self._let_pass(self.latency / 2)
        if refusal is not None:
            raise refusal
        return None if row is None else {"id": _mail_id(row["number"])}

    # ── what the referee sees ────────────────────────────────────────────────────────────────────

    def inbox(self, to: str | None = None) -> list[dict[str, Any]]:
        """What customers see, in order of delivery: rows of id, to, subject, body, time."""
        rows = self._read(
            "SELECT number, recipient, subject, body, time FROM mail "
            "WHERE ?1 IS NULL OR recipient = ?1 ORDER BY number",
            to,
        )
        return [
            {
                "id": _mail_id(row["number"]),
                "to": row["recipient"],
                "subject": row["subject"],
                "body": row["body"],
                "time": row["time"],
            }
            for row in rows
        ]

    def effects(self) -> list[dict[str, Any]]:
        """The ledger, one row per mail delivered, in order: tool, key, digest, time.

        ``digest`` is the sha256 hex of the canonical JSON of to, subject and body. No row ever
        changes or goes.
        """
        return [
            dict(row)
            for row in self._read("SELECT tool, key, digest, time FROM mail ORDER BY number")
        ]

    def keys(self) -> list[dict[str, Any]]:
        """What the service remembers of keys: rows of key, digest, id, first, expires, expired.

        ``first`` and ``expires`` are UTC seconds. A deduplicating profile shows one row per key,
        also an expired one until its key is used again; one that can only be asked shows every
        mail with a key, and ``expires`` is None; an opaque one remembers nothing.
        """
        now = self.clock.now()
        if self.profile.dedups:
            query = "SELECT key, digest, mail, first, expires FROM dedup ORDER BY mail"
        elif self.profile.askable:
            query = (
                "SELECT key, digest, number AS mail, time AS first, NULL AS expires "
                "FROM mail WHERE key IS NOT NULL ORDER BY number"
            )
        else:
            return []
        return [
            {
                "key": row["key"],
                "digest": row["digest"],
                "id": _mail_id(row["mail"]),
                "first": row["first"],
                "expires": row["expires"],
                "expired": row["expires"] is not None and row["expires"] <= now,
            }
            for row in self._read(query)
        ]

    def requests(self) -> list[dict[str, Any]]:
        """Every send that reached the service, in order: number, key, fault, outcome, id, time.

        ``outcome``: "received" (went no further), "held", "lost", "delivered", "replayed",
        "refused 429" (or another status below 500), "failed 500". ``id``: the mail, or None.
        ``time``: of arrival, UTC seconds.
        """
        return [
            {
                "number": row["number"],
                "key": row["key"],
                "fault": row["fault"],
                "outcome": row["outcome"],
                "id": None if row["mail"] is None else _mail_id(row["mail"]),
                "time": row["time"],
            }
            for row in self._read("SELECT * FROM request ORDER BY number")
        ]

    # ── the steps of a request ───────────────────────────────────────────────────────────────────

    def _receive(self, key: str | None, now: float) -> tuple[int, Fault | None]:
        plan = list(self.plan)
        with self._transaction(now) as db:
            number = _next(db, NEXT_REQUEST)
            fault = next((fault for fault in plan if fault.hits(number, key)), None)
            db.execute(
                "INSERT INTO request (number, key, fault, time) VALUES (?, ?, ?, ?)",
                (number, key, None if fault is None else fault.kind, now),
            )
        return number, fault

    def _hold(self, number: int, letter: _Letter, refusal: MailError | None, late: float) -> None:
        """Store a request until it is due; one that would be refused leaves only its outcome."""
        now = self.clock.now()
        with self._transaction(now) as db:
            outcome = "held" if refusal is None else _outcome(refusal)
            db.execute(
                "UPDATE request SET outcome = ?, fault = 'request_late' WHERE number = ?",
                (outcome, number),
            )
            if refusal is None:
                db.execute(
                    "INSERT INTO held (request, due, recipient, subject, body, key, fence) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        number,
                        now + late,
                        letter.to,
                        letter.subject,
                        letter.body,
                        letter.key,
                        letter.fence,
                    ),
                )

    def _perform(
        self, db: sqlite3.Connection, number: int, letter: _Letter, now: float
    ) -> dict[str, Any] | MailError:
        """Deliver or replay or refuse, inside the caller's transaction; the answer is a value."""
        answer = self._check_fence(db, letter) or self._deliver(db, letter, now)
        mail = None
        if isinstance(answer, MailError):
            outcome = _outcome(answer)
        else:
            outcome = "replayed" if answer["replayed"] else "delivered"
            mail = int(answer["id"].removeprefix("email-"))
        db.execute(
            "UPDATE request SET outcome = ?, mail = ? WHERE number = ?", (outcome, mail, number)
        )
        return answer

    def _deliver(
        self, db: sqlite3.Connection, letter: _Letter, now: float
    ) -> dict[str, Any] | MailError:
        digest = letter.digest()
        mail = _next(db, NEXT_MAIL)
        row = {"key": letter.key, "digest": digest, "mail": mail, "now": now}
        if self.profile.dedups and letter.key is not None:
            claim = db.execute(CLAIM_KEY, {**row, "expires": now + self.profile.window})
            if claim.rowcount == 0:
                known = db.execute(
                    "SELECT digest, mail FROM dedup WHERE key = ?", (letter.key,)
                ).fetchone()
                if self.profile.compares_bodies and known["digest"] != digest:
                    return MailError(
                        409,
                        "invalid_idempotent_request",
                        f"key {letter.key!r} was used before with another to, subject or body",
                    )
                return {"id": _mail_id(known["mail"]), "replayed": True}
        db.execute(
            "INSERT INTO mail (number, tool, recipient, subject, body, key, digest, time) "
            "VALUES (:mail, :tool, :to, :subject, :body, :key, :digest, :now)",
            {
                **row,
                "tool": self.name,
                "to": letter.to,
                "subject": letter.subject,
                "body": letter.body,
            },
        )
        return {"id": _mail_id(mail), "replayed": False}

    def _check_fence(self, db: sqlite3.Connection, letter: _Letter) -> MailError | None:
        if not self.profile.checks_fence or letter.key is None or letter.fence is None:
            return None
        raised = db.execute(
            "INSERT INTO fence (key, highest) VALUES (?, ?) ON CONFLICT (key) DO UPDATE "
            "SET highest = excluded.highest WHERE excluded.highest >= highest",
            (letter.key, letter.fence),
        )
        if raised.rowcount == 1:
            return None
        return MailError(
            412, "stale_fence", f"fence {letter.fence} of key {letter.key!r} has been overtaken"
        )

    def _perform_due(self, db: sqlite3.Connection, now: float) -> None:
        due = db.execute("SELECT * FROM held WHERE due <= ? ORDER BY due, request", (now,))
        for row in due.fetchall():
            db.execute("DELETE FROM held WHERE request = ?", (row["request"],))
            letter = _Letter(
                row["recipient"], row["subject"], row["body"], row["key"], row["fence"]
            )
            self._perform(db, row["request"], letter, row["due"])

    def _answer_without_acting(self, number: int, outcome: str) -> None:
        with self._transaction(self.clock.now()) as db:
            db.execute("UPDATE request SET outcome = ? WHERE number = ?", (outcome, number))

    def _refusal(
        self, to: object, subject: object, body: object, key: object, fence: object
    ) -> MailError | None:
        """What the service says to malformed input, before it looks at anything it remembers."""
        for field, value in (("to", to), ("subject", subject), ("body", body)):
            wrong = _what_is_wrong(value, one_line=field != "body")
            if wrong is None and field == "to" and not str(value).strip():
                wrong = "is empty"
            if wrong is not None:
                return MailError(422, "validation_error", f"{field} {wrong}")
        if fence is not None and (type(fence) is not int or not -(2**63) <= fence < 2**63):
            return MailError(422, "validation_error", "fence is not a whole number of 64 bits")
        return _bad_key(key) if key is not None and self.profile.uses_keys else None

    def _tell(self, point: str, key: str | None) -> object:
        hook = self._hook
        return None if hook is None else hook(point, key)

    # ── time ─────────────────────────────────────────────────────────────────────────────────────

    def _let_pass(self, seconds: float) -> None:
        if seconds > 0:
            self.clock.sleep(seconds)

    def _give_up(self, sent: float, limit: float) -> NoReturn:
        """Wait out what is left of the timeout and raise TimeoutError.

        Twice, since a float sum may fall short by a hair; bounded, since wall time may jump back.
        """
        for _ in range(2):
            self._let_pass(min(limit, sent + limit - self.clock.now()))
        raise TimeoutError(f"no reply within {limit:g} s")

    # ── storage ──────────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def _transaction(self, now: float) -> Iterator[sqlite3.Connection]:
        """Run the block as one write transaction at time ``now``; roll back on any exception."""
        with self._lock:
            db = self._connect()
            try:
                db.execute("BEGIN IMMEDIATE")
                self._perform_due(db, now)
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def _read(self, query: str, *values: object) -> list[sqlite3.Row]:
        with self._transaction(self.clock.now()) as db:
            return db.execute(query, values).fetchall()

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            if self._path is None:
                raise RuntimeError("this mailbox is closed; fresh(folder) opens it again")
            self._connection = _open_ledger(self._path)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __del__(self) -> None:
        if getattr(self, "_connection", None) is not None:
            self._disconnect()


def _open_ledger(path: Path) -> sqlite3.Connection:
    # Created by hand for the mode; SQLite gives its -wal and -shm files the mode of the main file.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    db = sqlite3.connect(path, timeout=BUSY_WAIT, isolation_level=None, check_same_thread=False)
    try:
        db.row_factory = sqlite3.Row
        _prepare(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    try:
        stamp = (_pragma(db, "application_id"), _pragma(db, "user_version"))
        is_empty = stamp == (0, 0) and _pragma(db, "schema_version") == 0
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):  # locked or unreadable says nothing
            raise
        raise RuntimeError(f"{path} is not a mail ledger, and is left as it is") from error
    if is_empty:
        # In the ordinary journal mode, where a second process waits politely for the first.
        db.executescript(Path(__file__).with_name("schema.sql").read_text("utf-8"))
    elif stamp != (APPLICATION_ID, SCHEMA_VERSION):
        raise RuntimeError(
            f"{path} is not a mail ledger of version {SCHEMA_VERSION}, and is left as it is"
        )
    give_up = time.monotonic() + BUSY_WAIT
    while True:  # the change to WAL does not honour the busy wait when two processes start at once
        try:
            db.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.005)
    db.execute("PRAGMA synchronous = NORMAL")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def _next(db: sqlite3.Connection, query: str) -> int:
    # Inside BEGIN IMMEDIATE nobody else takes it, and the primary key would refuse a second one.
    return int(db.execute(query).fetchone()[0])


def _mail_id(number: int) -> str:
    return f"email-{number}"


def _outcome(error: MailError) -> str:
    return f"{'failed' if error.status >= SERVER_ERRORS else 'refused'} {error.status}"


def _as_text(key: object) -> str | None:
    """The key as the ledger can store it, also when the service is about to refuse it."""
    return None if key is None else str(key).encode("utf-8", "backslashreplace").decode()


def _bad_key(key: object) -> MailError | None:
    wrong = _what_is_wrong(key, one_line=False)
    if wrong is None and not 1 <= len(str(key)) <= LONGEST_KEY:
        wrong = f"has {len(str(key))} characters, not 1 to {LONGEST_KEY}"
    return None if wrong is None else MailError(400, "invalid_idempotency_key", f"key {wrong}")


def _what_is_wrong(value: object, *, one_line: bool) -> str | None:
    if not isinstance(value, str):
        return f"is not text but {type(value).__name__}"
    if any("\ud800" <= char <= "\udfff" for char in value):
        return "holds half a character (a lone surrogate)"
    if one_line and any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in value):
        return "holds a line break or another control character"
    return None


def _planned_refusal(fault: Fault | None) -> MailError | None:
    if fault is not None and fault.kind == "rate_limited":
        return MailError(429, "rate_limit_exceeded", "too many requests", fault.retry_after)
    if fault is not None and fault.kind == "error_before":
        return MailError(500, "internal_server_error", "something went wrong here")
    return None


# ── temporary folders and forks ──────────────────────────────────────────────────────────────────


def _private_folder(owner: Mailbox) -> str:
    folder = tempfile.mkdtemp(prefix="durakit-mail-")
    weakref.finalize(owner, _remove_own_folder, folder, os.getpid())
    return folder


def _remove_own_folder(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # a forked child that ends must not take its parent's world along
        shutil.rmtree(folder, ignore_errors=True)


_mailboxes: weakref.WeakSet[Mailbox] = weakref.WeakSet()
_paused: list[Mailbox] = []
_forking = threading.Lock()


def _before_fork() -> None:
    _forking.acquire()
    for mailbox in sorted(_mailboxes, key=id):
        mailbox._lock.acquire()  # noqa: SLF001 (this module's own; waits for other threads)
        mailbox._disconnect()  # noqa: SLF001 (as above)
        _paused.append(mailbox)


def _after_fork() -> None:
    while _paused:
        _paused.pop()._lock.release()  # noqa: SLF001 (as above)
    _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )

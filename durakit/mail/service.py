"""The mail service behind its doors.

How one request goes:

    nothing yet                                    hook "arriving"
    number taken, request logged     committed     hook "received"   may return "late"
    ├─ late: stored with a due time  committed     hook "held"       then no reply
    ├─ key claimed                   committed     hook "claimed"    may return "late"
    ├─ mails + what the key means    one commit    hook "acted"      also when replayed
    └─ the answer                                  hook "replied"    also when it is a refusal

A key is claimed on its own only where the profile has an answer for a key in progress. A request
that becomes late there is stored like the other late ones, and its key stays claimed meanwhile.

Rules:

1. A hook may raise or kill. It is called with no lock held and no transaction open, so what is on
   disk is then exactly what the line above it says, by exception and by SIGKILL alike.
2. Nothing foreign (hook, clock, plan) runs inside a transaction.
3. Every transaction first performs the held requests that are due, in order of due time and as of
   that time. So "any touch at or after the due time" is one line, and cannot be forgotten.
4. A duplicate is stopped by the primary key of `dedup`, in a transaction of its own where the
   profile has an answer for "in progress", else in the one that writes the mail; never by a look
   followed by a write. The transaction that writes the mail asks for the claim once more, so a
   claim that was taken over meanwhile delivers nothing.
5. The answer to a request is a value inside the transaction and leaves only after the commit.
"""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from durakit.mail import memory, records, work
from durakit.mail.checks import check_seconds
from durakit.mail.errors import MailError, NotSupported
from durakit.mail.faults import Fault
from durakit.mail.intake import Order, check_key, refusal, storable, understand
from durakit.mail.ledger import Ledger
from durakit.mail.messages import NO_ANSWER, Answer, Letter, Request, refused
from durakit.mail.profiles import PROFILES, Profile, Refusal
from durakit.mail.work import Done

POINTS: Final = ("arriving", "received", "held", "claimed", "acted", "replied")
"""The points at which a hook is called, in order. At "arriving" nothing is logged yet: a hook that
raises there makes the request one that was never made."""

EVERYBODY: Final = "default"  # the account of a service that asks for no token
DEFAULT_TIMEOUT: Final = 30.0  # seconds a caller without a timeout waits for a reply
NOT_ASKABLE: Final = Refusal(501, "not_supported")

Hook = Callable[[str, str | None], object]

NEXT_REQUEST = "SELECT coalesce(max(number), 0) + 1 FROM request"


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


class Mailbox:
    """A mail service with a ledger of its own, in ``mail.db`` in ``folder``.

    ``folder=None`` makes a private temporary folder, removed at exit. ``profile``: a name in
    ``PROFILES`` or a ``Profile``. ``clock=None`` is real time. ``plan``: faults; the first that
    hits a request counts. ``latency``: seconds of one exchange, half before the service acts and
    half before it replies. ``name``: the tool named in ``effects()``. ``late_after``: seconds
    until a request acts whose hook said "late". ``tokens``: bearer token → account; None asks
    nobody for one. ``clock``, ``profile``, ``plan``, ``late_after`` and ``tokens`` may be set at
    any time. Threads may share a mailbox, processes a folder.

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
        tokens: Mapping[str, str] | None = None,
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
        self.tokens = tokens
        self._hook: Hook | None = None
        self._ledger = Ledger()
        self.fresh(_private_folder(self) if folder is None else folder)

    # ── where the world lives ────────────────────────────────────────────────────────────────────

    def fresh(self, folder: str | os.PathLike[str]) -> None:
        """Live in ``folder`` from now on: an empty folder is an empty world, a ledger is opened.

        Closes what was open before; clock, profile, plan and hook stay. A ledger of an older
        version is brought up to date. Raises RuntimeError if ``mail.db`` there is not a mail
        ledger, or a newer one.
        """
        home = Path(folder).absolute()
        home.mkdir(parents=True, exist_ok=True)
        self._ledger.open(home / "mail.db", self.name)

    @property
    def folder(self) -> Path | None:
        """Where the ledger lives now; None after ``close``."""
        path = self._ledger.path
        return None if path is None else path.parent

    def close(self) -> None:
        """Close the ledger. Every touch but ``fresh`` then raises RuntimeError."""
        self._ledger.close()

    def listen(self, hook: Hook | None) -> None:
        """Call ``hook(point, key)`` at each of ``POINTS`` from now on; None detaches.

        The latest hook replaces the one before. It may raise anything or kill the process. If it
        returns "late" at "received", or at "claimed" (then the key is in progress meanwhile), the
        request acts only ``late_after`` seconds later, and its caller hears nothing.
        """
        self._hook = hook

    # ── the seam: what every door calls ──────────────────────────────────────────────────────────

    def handle(self, request: Request) -> Answer:
        """Answer a request to send; the mails are out, or not, when this returns.

        Half the latency passes first. The door waits ``answer.delay`` more, calls ``replied`` and
        replies; where the delay is inf it breaks off without a reply.
        """
        order = self._understand(request)
        self._tell("arriving", order.key)
        number, fault = self._receive(order, list(self.plan))
        kind = None if fault is None else fault.kind
        if self._tell("received", order.key) == "late" or kind == "request_late":
            late = self.late_after if fault is None or kind != "request_late" else fault.seconds
            return self._hold(number, order, late).answer
        if kind == "request_lost":
            self._lose(number)
            return NO_ANSWER
        self._let_pass(self.latency / 2)
        act = self._work_overtaken if kind == "concurrent_duplicate" else self._work
        done = act(number, order, fault)
        if not done.answer.comes:
            return done.answer
        if done.mails:
            self._tell("acted", order.key)
        arrives = self.latency
        if fault is not None and kind == "reply_late":
            arrives = max(arrives, fault.seconds)
        if kind == "reply_lost":
            arrives = math.inf
        return replace(done.answer, arrives=arrives, delay=arrives - self.latency / 2)

    def replied(self, request: Request) -> None:
        """Say that the answer to this request is about to leave: hook "replied"."""
        key, _ = check_key(self.profile, request.key)
        self._tell("replied", key)

    def get_mail(self, id: str, *, token: str | None = None) -> Answer:
        """Answer with one mail of this account: id, from, to, subject, body, time; else 404."""
        asked = storable(id)
        return self._ask(
            token, lambda db, mine, _now: records.one_mail(db, self.profile, mine, asked)
        )

    def look_up(self, key: Any, *, token: str | None = None, tool: str | None = None) -> Answer:
        """Answer with the mails that carry this key, the latest last; 404 if none is visible.

        A 404 does not mean that nothing will come: a request may be on its way, or its mail not
        visible yet. 501 where the profile cannot be asked. ``key``: without the quotes that a
        profile may want where a key is carried.
        """
        profile, of = self.profile, self.name if tool is None else tool
        name, bad = check_key(profile, profile.carry(key) if isinstance(key, str) else key)

        def answer(db: sqlite3.Connection, mine: str, now: float) -> Answer:
            if not profile.askable:
                message = f"the profile {profile.name!r} cannot be asked"
                return refused(profile, NOT_ASKABLE, message)
            if bad is not None or name is None:
                return refused(profile, *(bad or (profile.bad_key, "key is missing")))
            return records.mails_of(db, profile, memory.Scope(mine, of, name), now)

        return self._ask(token, answer)

    def forget_expired(self) -> int:
        """Drop the finished keys whose window is over, and return how many they were.

        An expired key is forgotten anyway; this only makes room. A key in progress or with
        unfinished work is never dropped: what it stands for is not settled.
        """
        now = self.clock.now()
        with self._transaction(now) as db:
            return memory.forget_expired(db, now)

    # ── the in-process door ──────────────────────────────────────────────────────────────────────

    def send(
        self,
        to: str,
        subject: str,
        body: str,
        *,
        sender: str | None = None,
        key: str | None = None,
        fence: int | None = None,
        timeout: float | None = None,
        token: str | None = None,
    ) -> dict[str, Any]:
        """Deliver a mail: ``{"id": "email-1"}``; a replay answers the same, as real services do.

        ``requests()`` tells which it was.

        ``sender``: whom it is from, where that is told. ``key``: None is no key, and then nothing
        is ever deduplicated. ``fence``: a whole number, used where the profile checks it.
        ``timeout``: seconds to wait for the reply; None or inf is 30. ``token``: whose mail it is,
        where the mailbox asks for tokens.

        Raises TimeoutError after the whole timeout when no reply came: the mail may or may not be
        delivered, now or later. Raises MailError with the profile's status and name for a
        malformed mail or key, a key with another body, a key in progress, a stale fence (412), a
        rate limit, or a failure (which may follow a delivery). Raises ValueError for a bad
        timeout; such a request was never sent.
        """
        waits_forever = timeout is None or timeout == math.inf
        limit = DEFAULT_TIMEOUT if waits_forever else check_seconds("timeout", timeout)
        sent = self.clock.now()
        carried = self.profile.carry(key) if isinstance(key, str) else key
        request = Request(
            (Letter(to, subject, body, sender),), key=carried, token=token, fence=fence
        )
        answer = self.handle(request)
        if answer.arrives > limit:
            self._give_up(sent, limit)
        self._let_pass(answer.delay)
        self.replied(request)
        if answer.refuses:
            raise _error(answer)
        return answer.body

    def find(self, key: str, *, token: str | None = None) -> dict[str, Any] | None:
        """Ask about a key: ``{"id": "email-1"}``, or None if no visible mail carries it.

        The latest such mail counts. None does not mean that nothing will come: a request may be on
        its way, or its mail not visible yet. Takes one latency. Raises NotSupported where the
        profile cannot be asked, and MailError for a malformed key or an unknown token.
        """
        answer = self.look_up(key, token=token)
        self._let_pass(answer.delay)
        if answer.status == records.NOT_FOUND.status:
            return None
        if answer.refuses:
            raise _error(answer)
        return {"id": answer.ids[-1]}

    # ── what the referee sees: every account, or the one that is named ───────────────────────────

    def inbox(self, to: str | None = None, *, account: str | None = None) -> list[dict[str, Any]]:
        """What customers see, in order of delivery: rows of id, from, to, subject, body, time.

        ``from``: None where no sender was given.
        """
        with self._transaction(self.clock.now()) as db:
            return records.mails(db, to, account)

    def effects(self, *, account: str | None = None) -> list[dict[str, Any]]:
        """The ledger, one row per mail delivered, in order: tool, key, digest, time.

        ``digest`` is the sha256 hex of the canonical JSON of to, subject and body, and of from
        where a sender was given. No row ever changes or goes.
        """
        with self._transaction(self.clock.now()) as db:
            return records.effects(db, account)

    def keys(self, *, account: str | None = None) -> list[dict[str, Any]]:
        """What the service remembers of keys.

        Rows of key, digest, id, first, expires, expired, state, status, account, tool. ``first``
        and ``expires`` are UTC seconds; ``id`` is the first mail, or None; ``status`` is that of
        the remembered answer. ``state``: "in progress", "unfinished" or "finished"; ``first`` of a
        key in progress is when it was claimed. A deduplicating profile shows one row per key, also
        an expired one until its key is used again; one that can only be asked shows every mail
        with a key, and ``expires`` is None; an opaque one remembers nothing.
        """
        now = self.clock.now()
        with self._transaction(now) as db:
            return records.keys(db, self.profile, account, now)

    def requests(self, *, account: str | None = None) -> list[dict[str, Any]]:
        """Every send that reached the service, in order: number, key, fault, outcome, id, time.

        ``outcome``: "received" (went no further), "held", "lost", "claimed" (the key, and nothing
        more), "delivered", "completed" (what an earlier request had left unfinished; nothing new),
        "replayed", "refused 429" (or another status below 500), "failed 500". ``id``: the first
        mail, or None. ``time``: of arrival, UTC seconds.
        """
        with self._transaction(self.clock.now()) as db:
            return records.requests(db, account)

    # ── the steps of a request ───────────────────────────────────────────────────────────────────

    def _understand(self, request: Request) -> Order:
        tool = self.name if request.tool is None else request.tool
        return understand(self.profile, request, self._account(request.token), tool)

    def _account(self, token: str | None) -> str | None:
        if self.tokens is None:
            return EVERYBODY
        return None if token is None else self.tokens.get(token)

    def _receive(self, order: Order, plan: list[Fault]) -> tuple[int, Fault | None]:
        now = self.clock.now()
        with self._transaction(now) as db:
            number = work.next_number(db, NEXT_REQUEST)
            fault = next((fault for fault in plan if fault.hits(number, order.key)), None)
            db.execute(
                "INSERT INTO request (number, key, fault, time, account) VALUES (?, ?, ?, ?, ?)",
                (number, order.key, None if fault is None else fault.kind, now, order.account),
            )
        return number, fault

    def _hold(self, number: int, order: Order, late: float) -> Done:
        """Store a request until it is due; one that would be refused leaves only its outcome."""
        now = self.clock.now()
        answer, _ = refusal(self.profile, order, None)
        with self._transaction(now) as db:
            db.execute("UPDATE request SET fault = 'request_late' WHERE number = ?", (number,))
            if answer is None:
                work.hold(db, number, order, now + late)
            work.log(db, number, "held" if answer is None else work.refuse(answer).outcome)
        self._tell("held", order.key)
        return Done(NO_ANSWER)

    def _lose(self, number: int) -> None:
        with self._transaction(self.clock.now()) as db:
            work.log(db, number, "lost")

    def _work(self, number: int, order: Order, fault: Fault | None) -> Done:
        """Let the layers answer, claim the key, act: whatever of it this request comes to."""
        kind = None if fault is None else fault.kind
        answer, behind_key = refusal(self.profile, order, fault)
        if answer is not None:
            return self._refuse(number, order, answer, look=behind_key)
        if self._claims(order):
            done = self._claim(number, order, kind)
            if done is not None:
                return done
            if self._tell("claimed", order.key) == "late":
                return self._hold(number, order, self.late_after)
        now = self.clock.now()
        with self._transaction(now) as db:
            return work.perform(db, self.profile, number, order, now, kind)

    def _work_overtaken(self, number: int, order: Order, fault: Fault | None) -> Done:
        """Work while a copy of the request is one step ahead, of which no hook hears.

        The copy has claimed the key; where none can be in progress it has done everything.
        """
        if refusal(self.profile, order, fault)[0] is not None:
            return self._work(number, order, fault)
        copy, _ = self._receive(order, [])
        if not self._claims(order):
            self._finish_copy(copy, order)
            return self._work(number, order, fault)
        self._claim(copy, order, None)
        done = self._work(number, order, fault)
        self._finish_copy(copy, order)
        return done

    def _finish_copy(self, copy: int, order: Order) -> None:
        now = self.clock.now()
        with self._transaction(now) as db:
            work.perform(db, self.profile, copy, order, now)

    def _claims(self, order: Order) -> bool:
        """Whether the key is claimed in a commit of its own, so that others can be told."""
        return self.profile.in_progress is not None and order.scope is not None

    def _claim(self, number: int, order: Order, kind: str | None) -> Done | None:
        """Claim the key; None: it is ours."""
        now = self.clock.now()
        with self._transaction(now) as db:
            entered = work.enter(db, self.profile, number, order, now, kind)
            if isinstance(entered, Done):
                work.log(db, number, entered.outcome, entered.mails)
                return entered
            work.log(db, number, "claimed")
        return None

    def _refuse(self, number: int, order: Order, answer: Answer, *, look: bool) -> Done:
        """Refuse; but a key's layer that stands in front looks at what it remembers first."""
        now = self.clock.now()
        done = work.refuse(answer)
        with self._transaction(now) as db:
            known = None
            if look and order.scope is not None:
                known = memory.standing(db, order.scope, now)
            if known is not None:
                done = work.from_memory(self.profile, order, known) or done
            work.log(db, number, done.outcome, done.mails)
        return done

    def _ask(
        self, token: str | None, ask: Callable[[sqlite3.Connection, str, float], Answer]
    ) -> Answer:
        """Answer a question of this token's account, half a latency from now."""
        self._let_pass(self.latency / 2)
        account, profile, now = self._account(token), self.profile, self.clock.now()
        with self._transaction(now) as db:
            if account is None:
                answer = refused(profile, profile.unauthenticated, "no account has this token")
            else:
                answer = ask(db, account, now)
        return replace(answer, arrives=self.latency, delay=self.latency / 2)

    # ── hooks, time, storage ─────────────────────────────────────────────────────────────────────

    def _tell(self, point: str, key: str | None) -> object:
        hook = self._hook
        return None if hook is None else hook(point, key)

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

    @contextmanager
    def _transaction(self, now: float) -> Iterator[sqlite3.Connection]:
        """Run the block as one write transaction at time ``now``; roll back on any exception."""
        with self._ledger.transaction() as db:
            work.perform_due(db, self.profile, now)
            yield db

    def __del__(self) -> None:
        if hasattr(self, "_ledger"):  # closed before its private folder goes
            self._ledger.close()


def _error(answer: Answer) -> MailError:
    kind = NotSupported if answer.status == NOT_ASKABLE.status else MailError
    return kind(answer.status, str(answer.name), str(answer.message), answer.retry_after)


def _private_folder(owner: Mailbox) -> str:
    folder = tempfile.mkdtemp(prefix="durakit-mail-")
    weakref.finalize(owner, _remove_own_folder, folder, os.getpid())
    return folder


def _remove_own_folder(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # a forked child that ends must not take its parent's world along
        shutil.rmtree(folder, ignore_errors=True)

"""The HTTP door of the mail service, on this machine's loopback and nowhere else.

>>> with HttpDoor(Mailbox(profile="resend")) as door:
...     answer = httpx.post(f"{door.url}/emails", json=letter, headers={"Idempotency-Key": "a:1"})

    POST /emails              one letter         {"id": "email-1"}
    POST /emails/batch        a list of letters  {"data": [{"id": "email-1"}, …]}, all or none
    GET  /emails/email-1      the mail
    GET  /emails?key=a:1      look-up by key     {"data": [{"id": "email-1"}]}, where it is offered

A letter is JSON as at Resend: ``to`` (a text, or a list of texts), ``subject``, ``text`` or
``html`` (or both, which are kept one after the other) and ``from``, which may be left out. Anything
else is refused, since it would be thrown away. A form does as well, and the paths may begin with
/v1 or /v2, since that is how Stripe's clients write. ``Authorization: Bearer …`` says who asks; the
profile says in which header the key comes; ``Fencing-Token`` is the fence. How an exchange goes
stands in ``door``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, cast
from urllib.parse import parse_qs, unquote

from tornado.http1connection import HTTP1Connection
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders
from tornado.web import Application, HTTPError, RequestHandler, stream_request_body

from durakit.mail.checks import read_json
from durakit.mail.door import LOOPBACK, Door
from durakit.mail.messages import Answer, Letter, Request, refused
from durakit.mail.profiles import Refusal

LARGEST_BODY: Final = 2**20
"""Bytes; a larger body is refused with 413."""
DRAINED: Final = 16 * LARGEST_BODY
"""Bytes of a body too large that are still read, and thrown away: most clients listen only after
they have written everything."""

REFUSALS: Final = {
    404: Refusal(404, "not_found"),
    405: Refusal(405, "method_not_allowed"),
    413: Refusal(413, "payload_too_large"),
    421: Refusal(421, "misdirected_request"),
}
"""What the door itself says, before the mailbox hears of a request."""
MESSAGES: Final = {
    404: "there is nothing at this address",
    405: "this address takes another method",
    413: f"the body is larger than {LARGEST_BODY} bytes",
    421: "this door is on the machine itself, and under no other name",
}
NAMES: Final = frozenset({LOOPBACK, "localhost"})
"""Hosts that a request may name. A browser that was led here by another site's name (DNS rebinding)
would else read the mail to that site."""

PATH: Final = re.compile(r"(?:/v[12])?/emails(?:/([^/]+))?")
FENCE: Final = re.compile(r"-?[0-9]{1,19}")
FIELDS: Final = frozenset({"from", "to", "subject", "text", "html"})

_log = logging.getLogger(__name__)


class HttpDoor(Door):
    """An HTTP server in front of a mailbox: ``url`` is where it is."""

    _thread: threading.Thread
    _loop: asyncio.AbstractEventLoop
    _closing: asyncio.Event
    _exchanges: set[asyncio.Task[Any]]

    @property
    def url(self) -> str:
        """Where the door is, without a slash at the end. Raises RuntimeError if it is not open."""
        return f"http://{self.host}:{self.port}"

    def _open(self, listener: socket.socket) -> None:
        opened = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(listener, opened)),
            name="mail-http-door",
            daemon=True,
        )
        self._thread.start()
        opened.wait()

    def _close(self) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    async def _serve(self, listener: socket.socket, opened: threading.Event) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        self._exchanges = set()
        server = HTTPServer(
            Application(
                default_handler_class=_Exchange,
                default_handler_args={"door": self},
                log_function=lambda _handler: None,
            )
        )
        server.add_socket(listener)
        opened.set()
        await self._closing.wait()
        server.stop()
        while self._exchanges:
            await asyncio.wait(self._exchanges)
        await server.close_all_connections()

    async def closes_within(self, seconds: float) -> bool:
        """Wait, and say whether the door began to close meanwhile."""
        if seconds <= 0:
            return False
        try:
            return await asyncio.wait_for(self._closing.wait(), seconds)
        except TimeoutError:
            return False

    def count(self, exchange: asyncio.Task[Any]) -> None:
        """Remember an exchange until it is over, since ``stop`` waits for it."""
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._exchanges.discard)


# ── what a request says ──────────────────────────────────────────────────────────────────────────


def read_request(headers: HTTPHeaders, body: bytes, *, batch: bool, carrier: str | None) -> Request:
    """Read a request to send; what cannot be read is noted in it, for the service to refuse.

    ``carrier``: the header of the key, None where the service has none.
    """
    letters: list[Letter] = []
    unreadable = None
    try:
        _refuse_options(headers)
        said = _read_body(headers, body)
        if batch != isinstance(said, list):
            raise ValueError(f"the body is not {'a list of letters' if batch else 'a letter'}")
        letters = [_read_letter(one) for one in (said if batch else [said])]
    except ValueError as error:
        unreadable = str(error)
    fence = headers.get("Fencing-Token")
    return Request(
        letters,
        key=None if carrier is None else _read_keys(headers.get_list(carrier)),
        token=read_token(headers),
        fence=int(fence) if fence is not None and FENCE.fullmatch(fence) else fence,
        batch=batch,
        unreadable=unreadable,
    )


def read_token(headers: Mapping[str, str]) -> str | None:
    """Return the bearer token, or None."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _read_keys(carried: list[str]) -> str | list[str] | None:
    """Return the key; None where there is none, and all of them where there are more than one."""
    if not carried:
        return None
    return _read_key(carried[0]) if len(carried) == 1 else carried


def _read_key(carried: str) -> str:
    """Return a header's text, sent in UTF-8 as in the address of a look-up; Tornado reads Latin 1.

    Else a look-up would not find what was delivered under the same key.
    """
    if carried.isascii():
        return carried
    return carried.encode("latin-1", "replace").decode("utf-8", "surrogateescape")


def _refuse_options(headers: Mapping[str, str]) -> None:
    if headers.get("x-batch-validation", "strict") != "strict":
        raise ValueError("x-batch-validation: a batch is sent as a whole or not at all")


def _read_body(headers: Mapping[str, str], body: bytes) -> Any:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise ValueError("the body is not UTF-8") from error
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind == "application/x-www-form-urlencoded":
        return {
            name: values[0] if len(values) == 1 else values
            for name, values in parse_qs(text, keep_blank_values=True, max_num_fields=100).items()
        }
    try:
        return read_json("body", text)
    except ValueError as error:  # the error itself would repeat what was sent
        raise ValueError("the body is no JSON that can be read, or says something twice") from error


def _read_letter(said: Any) -> Letter:
    if not isinstance(said, dict):
        raise ValueError("a letter is not an object")  # noqa: TRY004 - a bad value, of JSON
    unknown = sorted(set(said) - FIELDS)
    if unknown:
        raise ValueError(f"{ascii(unknown[0])[1:-1]:.40} is nothing that this service keeps")
    missing = [name for name in ("to", "subject") if name not in said]
    written = [said[name] for name in ("text", "html") if said.get(name) is not None]
    if missing or not written:
        raise ValueError(f"{missing[0] if missing else 'text or html'} is missing")
    to = said["to"]
    if isinstance(to, list) and to and all(isinstance(one, str) for one in to):
        to = ", ".join(to)
    all_text = all(isinstance(part, str) for part in written)
    return Letter(
        to, said["subject"], "\n".join(written) if all_text else written[0], said.get("from")
    )


def shown(answer: Answer) -> Answer:
    """Return an answer about one mail as Resend gives it."""
    if answer.refuses:
        return answer
    mail = answer.body
    body = {
        "object": "email",
        "id": mail["id"],
        "from": mail["from"],
        "to": mail["to"].split(", "),
        "subject": mail["subject"],
        "text": mail["body"],
        "created_at": datetime.fromtimestamp(mail["time"], UTC).isoformat(),
        "last_event": "delivered",
    }
    return replace(answer, body=body)


# ── one exchange ─────────────────────────────────────────────────────────────────────────────────


@stream_request_body
class _Exchange(RequestHandler):
    """One request and its reply, or its silence."""

    def initialize(self, door: HttpDoor) -> None:
        self.door = door
        self.mailbox = door.mailbox
        self.received = bytearray()
        self.size = 0

    def set_default_headers(self) -> None:
        self.set_header("Server", "durakit-mail")
        self.set_header("Content-Type", "application/json")

    def prepare(self) -> None:
        # The limit is ours: tornado's own would answer 400.
        cast(HTTP1Connection, self.request.connection).set_max_body_size(sys.maxsize)
        announced = self.request.headers.get("Content-Length", "0")
        if not announced.isascii() or not announced.isdigit():
            return  # tornado is about to refuse it
        asks_first = self.request.headers.get("Expect", "").lower() == "100-continue"
        if len(announced) > 15 or int(announced) > (LARGEST_BODY if asks_first else DRAINED):
            self.send_error(413)

    def data_received(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self.size <= LARGEST_BODY:
            self.received += chunk
        elif self.size > DRAINED:
            self.send_error(413)

    async def post(self) -> None:
        if self._finished:
            return
        if self.size > LARGEST_BODY:
            raise HTTPError(413)
        self._check_host()
        place = PATH.fullmatch(self.request.path)
        if place is None or place[1] not in (None, "batch"):
            raise HTTPError(404)
        request = read_request(
            self.request.headers,
            bytes(self.received),
            batch=place[1] == "batch",
            carrier=self.mailbox.profile.carrier,
        )
        await self._converse(lambda: self.mailbox.handle(request), request)

    async def get(self) -> None:
        self._check_host()
        place = PATH.fullmatch(self.request.path)
        if place is None:
            raise HTTPError(404)
        token, mailbox = read_token(self.request.headers), self.mailbox
        if place[1] is not None:
            id_ = unquote(place[1])
            await self._converse(lambda: shown(mailbox.get_mail(id_, token=token)))
            return
        asked = parse_qs(self.request.query, keep_blank_values=True, errors="surrogateescape")
        key = asked.get("key", [None])[0]  # the mailbox says that it is missing
        await self._converse(lambda: mailbox.look_up(key, token=token))

    def _check_host(self) -> None:
        """Not before the body is read: most clients listen only then."""
        if self.request.host_name not in NAMES:
            raise HTTPError(421)

    async def _converse(self, job: Callable[[], Answer], request: Request | None = None) -> None:
        """Have the job done, and reply to it when its reply is due."""
        task = asyncio.current_task()
        assert task is not None
        self.door.count(task)
        answer = await self.door.ask(job)
        if (
            answer is not None
            and await self._is_due(answer)
            and (request is None or await self.door.leaves(answer, request))
        ):
            self._say(answer)
        else:
            self._hang_up()

    async def _is_due(self, answer: Answer) -> bool:
        """Wait until the reply is due; False if it never is, or if the door closes before."""
        if not answer.comes:
            await self.door.closes_within(self.door.patience)
            return False
        return not await self.door.closes_within(answer.delay)

    def _say(self, answer: Answer) -> None:
        self.set_status(answer.status)
        for name, value in answer.headers.items():
            self.set_header(name, value)
        self.finish(json.dumps(answer.body))

    def _hang_up(self) -> None:
        self.detach().close()

    def write_error(self, status_code: int, **_why: Any) -> None:
        """Say no in the profile's shape; what went wrong inside is nobody's business outside."""
        if status_code not in REFUSALS:
            self._hang_up()
            return
        profile = self.mailbox.profile
        self._say(refused(profile, REFUSALS[status_code], MESSAGES[status_code]))

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Log what is a fault of the door; a refusal is none."""
        if not isinstance(value, HTTPError) and typ is not None and value is not None:
            _log.error("the door failed; its client gets no answer", exc_info=(typ, value, tb))

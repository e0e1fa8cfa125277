"""The SMTP door of the mail service, on this machine's loopback and nowhere else.

>>> with SmtpDoor(Mailbox(profile="smtp")) as door, smtplib.SMTP(door.host, door.port) as client:
...     client.send_message(message)

It needs aiosmtpd: install ``durakit[smtp]``.

SMTP has no place for a key, and is at-least-once by design: a client whose connection breaks after
the final dot does as if 451 had come, and sends again (RFC 5321, 3.8), whether the mail was
accepted or not. A ``Message-ID`` that stays the same in every attempt helps only a reader who
looks at it: the mail is kept as it came, headers and all, so ``message_id`` finds it. Its sender is
the envelope's. A profile with an ``smtp_carrier`` takes its key from that header of the mail.

One mail for each recipient; all of them or none. Replies after the final dot:

    250 OK email-1            accepted: it is the server's now
    451 …                     try again: rate limit, a request in progress, a failure, which may
                              have come after the mail
    530 …                     no account has this token (the password of AUTH PLAIN or LOGIN)
    554 …                     refused for good: a malformed mail or key, another mail with this key
    (connection is closed)    nobody knows

How an exchange goes stands in ``door``.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Mapping
from email import message_from_string
from email.errors import MessageError
from email.header import decode_header, make_header
from email.message import Message
from typing import Any, Final, NoReturn

from durakit.mail.door import LOOPBACK, Door
from durakit.mail.messages import Answer, Letter, Request
from durakit.mail.profiles import Profile

try:
    from aiosmtpd.controller import Controller
    from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
except ImportError as error:
    raise ImportError("the SMTP door needs aiosmtpd: install durakit[smtp]") from error

LARGEST_MAIL: Final = 2**20
"""Bytes; a larger mail is refused with 552."""

_log = logging.getLogger(__name__)


class SmtpDoor(Door):
    """An SMTP server in front of a mailbox, at ``host`` and ``port``."""

    _controller: Controller

    def _open(self, listener: socket.socket) -> None:
        self._controller = _Controller(
            _Handler(self),
            listener=listener,
            hostname=LOOPBACK,
            port=self.port,
            server_hostname="localhost",  # else the name of this machine is looked up
            ident="durakit-mail",
            data_size_limit=LARGEST_MAIL,
            authenticator=self._knows,
            auth_require_tls=False,  # nothing leaves this machine
        )
        self._controller.start()

    def _close(self) -> None:
        self._controller.stop()

    def _knows(
        self, _server: SMTP, _session: Session, _envelope: Envelope, _how: str, data: Any
    ) -> AuthResult:
        """Whether the password is a token of the mailbox."""
        tokens = self.mailbox.tokens
        good = tokens is None or _token(data) in tokens
        return AuthResult(success=good, handled=False, auth_data=data)


class _Controller(Controller):
    """Serves what comes to a socket that listens already."""

    def __init__(self, handler: _Handler, *, listener: socket.socket, **options: Any) -> None:
        super().__init__(handler, **options)
        self._listener = listener

    def factory(self) -> SMTP:
        return _Server(self.handler, **self.SMTP_kwargs)

    def _create_server(self) -> Awaitable[asyncio.AbstractServer]:
        return self.loop.create_server(self._factory_invoker, sock=self._listener)


class _Server(SMTP):
    def _create_session(self) -> Session:
        return _Session(self.loop)


class _Session(Session):
    login_data = None  # aiosmtpd sets it at each login, and warns of that


class _Handler:
    """What aiosmtpd calls when a mail has come."""

    def __init__(self, door: SmtpDoor) -> None:
        self.door = door

    async def handle_DATA(  # noqa: N802 - the name is aiosmtpd's
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        """Reply to the final dot, or hang up."""
        mailbox, profile = self.door.mailbox, self.door.mailbox.profile
        request = read_mail(envelope, _token(session.auth_data), profile.smtp_carrier)
        answer = await self.door.ask(lambda: mailbox.handle(request))
        if answer is None:
            await _hang_up(server)
        if not answer.comes:
            await asyncio.sleep(self.door.patience)
            await _hang_up(server)
        await asyncio.sleep(answer.delay)
        if not await self.door.leaves(answer, request):
            await _hang_up(server)
        return reply(answer, profile)

    async def handle_exception(self, error: Exception) -> str:
        """Log what is a fault of the door, and keep it from the client."""
        _log.error("the door failed", exc_info=error)
        return "451 something went wrong here"


async def _hang_up(server: SMTP) -> NoReturn:
    """Close the connection without a word; aiosmtpd then cancels whoever waits here."""
    if server.transport is not None:
        server.transport.close()
    while True:
        await asyncio.Event().wait()


def _token(data: object) -> str | None:
    return data.password.decode(errors="replace") if isinstance(data, LoginPassword) else None


def read_mail(envelope: Envelope, token: str | None, carrier: str | None) -> Request:
    """Read what came between DATA and the dot: the same letter for each recipient.

    ``carrier``: the header of the key, None where the service has none.
    """
    content = envelope.original_content or b""
    text = content.decode(errors="backslashreplace").replace("\r\n", "\n")
    message = message_from_string(text)
    subject = _subject(message)
    keys = [] if carrier is None else [str(key).strip() for key in message.get_all(carrier, [])]
    sender = None if envelope.mail_from in ("", "<>") else envelope.mail_from  # a bounce has none
    return Request(
        [Letter(to, subject, text, sender) for to in envelope.rcpt_tos],
        key=keys[0] if len(keys) == 1 else keys or None,
        token=token,
        batch=len(envelope.rcpt_tos) > 1,
    )


def _subject(message: Message) -> str:
    """Return the subject on one line, decoded where that is possible."""
    raw = " ".join(line.strip() for line in str(message.get("Subject", "")).splitlines())
    try:
        return str(make_header(decode_header(raw)))
    except (MessageError, LookupError, ValueError):
        return raw


def message_id(mail: Mapping[str, Any]) -> str | None:
    """Return the Message-ID of a mail in ``Mailbox.inbox()``, or None: what a reader may look at.

    Two mails with one id are one mail sent twice (RFC 5322, 3.6.4), if its sender kept to that.
    """
    found = message_from_string(mail["body"]).get("Message-ID")
    return None if found is None else str(found).strip()


def reply(answer: Answer, profile: Profile) -> str:
    """Say in SMTP what the mailbox answers."""
    if not answer.refuses:
        return f"250 OK {' '.join(answer.ids)}"[:500]
    busy = profile.in_progress
    passes = busy is not None and (answer.status, answer.name) == (busy.status, busy.name)
    if passes or answer.status == 429 or answer.status >= 500:
        code = 451
    else:
        code = 530 if answer.status == 401 else 554
    message = ascii(f"{answer.name}: {answer.message}")[1:-1]
    return f"{code} {message}"[:500]  # a reply has at most 512 bytes, RFC 5321 4.5.3.1.5

"""The SMTP door: the standard library's client on a real socket, and the ledger as the judge."""

import asyncio
import contextlib
import smtplib
import socket
import subprocess
import sys
import threading
import time
from email.message import EmailMessage

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from durakit.mail import Fault, Mailbox
from durakit.mail.smtp import LARGEST_MAIL, SmtpDoor, message_id

FIXED = "<welcome-42@shop.example.org>"
CARRIER = "Resend-Idempotency-Key"


def mail(subject="Welcome", body="Hello Ada", to="ada@example.org", **headers):
    """Return a message; a header is named with _ for -."""
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "shop@example.org", to, subject
    message["Message-ID"] = FIXED
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    message.set_content(body)
    return message


@contextlib.contextmanager
def served(profile="smtp", *, door=(), **options):
    """Yield an open door and its mailbox."""
    mailbox = Mailbox(profile=profile, latency=0, **options)
    with contextlib.closing(mailbox), SmtpDoor(mailbox, **dict(door)) as opened:
        yield opened, mailbox


def send(door, message, *, timeout=10, token=None, **options):
    """Send one message in a connection of its own, as smtplib does it."""
    # The name is given, else smtplib asks the network what this machine is called.
    with smtplib.SMTP(door.host, door.port, "localhost", timeout) as client:
        if token is not None:
            client.login("resend", token)
        return client.send_message(message, **options)


def refused(door, message, **options):
    """Send what must be refused after the dot; return the reply's code."""
    with pytest.raises(smtplib.SMTPDataError) as caught:
        send(door, message, **options)
    return caught.value.smtp_code


# ── at least once ────────────────────────────────────────────────────────────────────────────────


def test_a_retry_after_a_lost_reply_sends_a_second_mail_with_the_same_message_id():
    """The server accepted after DATA, its reply is lost, the client does as RFC 5321 says."""
    with served(plan=[Fault("reply_lost", 1)]) as (door, mailbox):
        with pytest.raises(smtplib.SMTPServerDisconnected):
            send(door, mail())
        assert len(mailbox.effects()) == 1
        send(door, mail())
        assert [message_id(row) for row in mailbox.inbox()] == [FIXED, FIXED]
        assert [row["key"] for row in mailbox.effects()] == [None, None]


def test_a_reader_that_looks_at_the_message_id_can_spot_the_second():
    """Three mails came, two are one and the same; nothing on the way did anything about it."""
    with served(plan=[Fault("reply_lost", 1)]) as (door, mailbox):
        with pytest.raises(smtplib.SMTPServerDisconnected):
            send(door, mail())
        send(door, mail())
        other = mail()
        other.replace_header("Message-ID", "<another@shop.example.org>")
        send(door, other)
        first = {message_id(row): row["id"] for row in reversed(mailbox.inbox())}
        assert first == {FIXED: "email-1", "<another@shop.example.org>": "email-3"}
        assert len(mailbox.inbox()) == 3


def test_with_patience_the_client_gives_up_first():
    """It waits for the reply to the dot until its own limit, and the mail is out."""
    with served(plan=[Fault("reply_lost", 1)], door={"patience": 30}) as (door, mailbox):
        with pytest.raises(smtplib.SMTPServerDisconnected, match="timed out"):
            send(door, mail(), timeout=0.1)
        assert len(mailbox.effects()) == 1


def test_a_late_reply_comes_to_who_waits():
    """250 after the delay."""
    with served(plan=[Fault("reply_late", 1, seconds=0.1)]) as (door, mailbox):
        began = time.monotonic()
        assert send(door, mail()) == {}
        assert time.monotonic() - began >= 0.1
        assert len(mailbox.effects()) == 1


@pytest.mark.parametrize(
    ("fault", "mails"), [("rate_limited", 0), ("error_before", 0), ("error_after", 1)]
)
def test_451_says_try_again_and_not_that_nothing_happened(fault, mails):
    """A refusal, a failure before and one after the mail are one reply to the client."""
    with served(plan=[Fault(fault, 1)]) as (door, mailbox):
        assert refused(door, mail()) == 451
        assert len(mailbox.effects()) == mails
        send(door, mail())
        assert len(mailbox.effects()) == mails + 1


def test_a_lost_request_does_nothing_and_a_late_one_does_it_later():
    """Both are a connection that closes."""
    plan = [Fault("request_lost", 1), Fault("request_late", 2, seconds=0.1)]
    with served(plan=plan) as (door, mailbox):
        for _ in range(2):
            with pytest.raises(smtplib.SMTPServerDisconnected):
                send(door, mail())
        assert mailbox.effects() == []
        time.sleep(0.1)
        assert len(mailbox.effects()) == 1


# ── a key where there is a place for one ─────────────────────────────────────────────────────────


def test_a_key_in_the_header_that_the_profile_names_makes_it_one_mail():
    """As at Resend: the same bytes under the same key are sent once."""
    with served("resend", plan=[Fault("reply_lost", 1)]) as (door, mailbox):
        message = mail(**{CARRIER: "welcome/42"})
        with pytest.raises(smtplib.SMTPServerDisconnected):
            send(door, message)
        send(door, message)
        assert [row["key"] for row in mailbox.effects()] == ["welcome/42"]


def test_a_key_that_cannot_be_taken_is_refused_for_good_and_a_busy_one_for_now():
    """554 for another mail and for a malformed key; 451 while the first is running."""
    plan = [Fault("concurrent_duplicate", 1)]
    with served("resend", plan=plan) as (door, mailbox):
        assert refused(door, mail(**{CARRIER: "a"})) == 451
        assert refused(door, mail("Bye", **{CARRIER: "a"})) == 554
        assert refused(door, mail(**{CARRIER: "k" * 257})) == 554
        send(door, mail(**{CARRIER: "a"}))
        assert len(mailbox.effects()) == 1


def test_a_mail_with_two_keys_is_refused_for_good():
    """Neither is taken: which one would a replay be known by?"""
    with served("resend") as (door, mailbox):
        head = f"{CARRIER}: a\r\n{CARRIER}: b\r\nSubject: Hi\r\n\r\nHello\r\n"
        with (
            smtplib.SMTP(door.host, door.port, "localhost", 10) as client,
            pytest.raises(smtplib.SMTPDataError) as caught,
        ):
            client.sendmail("shop@example.org", ["ada@example.org"], head)
        assert caught.value.smtp_code == 554
        assert mailbox.effects() == mailbox.keys() == []


def test_the_envelopes_sender_is_the_mails_and_another_one_is_another_request():
    """Whatever the header From says; a bounce, from nobody, has none."""
    with served("resend") as (door, mailbox):
        message = mail(**{CARRIER: "a"})
        send(door, message, from_addr="desk@example.org")
        send(door, message, from_addr="desk@example.org")
        with pytest.raises(smtplib.SMTPDataError) as caught:
            send(door, message, from_addr="bank@example.org")
        assert caught.value.smtp_code == 554
        send(door, mail(), from_addr="<>")
        assert [row["from"] for row in mailbox.inbox()] == ["desk@example.org", None]


def test_plain_smtp_knows_no_key_whatever_the_header_says():
    """Two mails."""
    with served("smtp") as (door, mailbox):
        for _ in range(2):
            send(door, mail(**{CARRIER: "a", "Idempotency-Key": "a"}))
        assert [row["key"] for row in mailbox.effects()] == [None, None]


# ── what it takes ────────────────────────────────────────────────────────────────────────────────


def test_a_mail_is_kept_as_it_came_one_for_each_recipient():
    """Subject decoded, text whole, headers there to be looked at."""
    with served() as (door, mailbox):
        message = mail("Grüße ✉", "Hällo\n.\nend", to="ada@example.org, bob@example.org")
        send(door, message)
        rows = mailbox.inbox()
    assert [row["to"] for row in rows] == ["ada@example.org", "bob@example.org"]
    assert {row["subject"] for row in rows} == {"Grüße ✉"}
    assert all(row["body"].startswith("From: shop@example.org\n") for row in rows)
    assert [message_id(row) for row in rows] == [FIXED, FIXED]


def test_a_long_subject_is_one_line_again():
    """What was folded on the way is unfolded."""
    subject = "word " * 40 + "end"
    with served() as (door, mailbox):
        send(door, mail(subject))
        assert [row["subject"] for row in mailbox.inbox()] == [subject]


def test_all_recipients_or_none():
    """More than the service takes in one request: refused, and nobody has it."""
    with served() as (door, mailbox):
        many = [f"customer{number}@example.org" for number in range(101)]
        assert refused(door, mail(), to_addrs=many) == 554
        assert mailbox.effects() == []
        assert send(door, mail(), to_addrs=many[:100]) == {}
        assert len(mailbox.effects()) == 100


def test_a_mail_over_one_mebibyte_is_refused():
    """552, and nothing is kept."""
    with served() as (door, mailbox):
        # Before the mail if the client says how large it is, after the dot if not.
        with pytest.raises((smtplib.SMTPDataError, smtplib.SMTPSenderRefused)) as caught:
            send(door, mail(body="x" * 70 + "\n" + ("x" * 70 + "\n") * (LARGEST_MAIL // 71)))
        assert caught.value.smtp_code == 552
        assert mailbox.effects() == []


def test_the_password_is_the_token_and_decides_whose_mail_it_is():
    """An unknown one is refused at once, none at all after the dot."""
    with served("resend", tokens={"re_ada": "ada", "re_bob": "bob"}) as (door, mailbox):
        message = mail(**{CARRIER: "a"})
        for token in ("re_ada", "re_bob", "re_ada"):
            send(door, message, token=token)
        with pytest.raises(smtplib.SMTPAuthenticationError):
            send(door, message, token="re_eve")  # noqa: S106 - a token that nobody has
        assert refused(door, message) == 530
        assert [len(mailbox.effects(account=name)) for name in ("ada", "bob")] == [1, 1]


def test_where_nobody_is_asked_for_a_token_any_will_do():
    """A client that is set up with one works."""
    with served() as (door, mailbox):
        send(door, mail(), token="whatever")  # noqa: S106 - no token is known here
        assert len(mailbox.effects()) == 1


class Crash(BaseException):
    """A crash that a hook plays."""


@pytest.mark.parametrize("point", ["received", "acted", "replied"])
def test_a_crash_in_the_mailbox_is_a_connection_that_closes(point):
    """Not a word to the client, and the door stays open for the next."""

    def crash(at, key):
        if at == point:
            raise Crash

    with served() as (door, mailbox):
        mailbox.listen(crash)
        with pytest.raises(smtplib.SMTPServerDisconnected):
            send(door, mail())
        mailbox.listen(None)
        assert len(mailbox.effects()) == (point != "received")
        send(door, mail())


# ── anything at all ──────────────────────────────────────────────────────────────────────────────


def dialogue(port, content):
    """Send raw bytes as the data of a mail; return the reply to the dot, b"" if none came."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        replies = line.makefile("rb")
        with contextlib.closing(replies):
            replies.readline()
            for command in (b"HELO x", b"MAIL FROM:<a@x.org>", b"RCPT TO:<b@x.org>", b"DATA"):
                line.sendall(command + b"\r\n")
                replies.readline()
            line.sendall(content + b"\r\n.\r\n")
            return replies.readline()


@given(
    key=st.text(max_size=30) | st.just("k" * 10_000),
    subject=st.text(max_size=30)
    | st.sampled_from(["=?utf-8?q?=", "=?none?b?x?=", "=?utf-8?b?a?="]),
    body=st.binary(max_size=80),
)
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_whatever_comes_is_accepted_or_refused_in_one_line(fuzzed, key, subject, body):
    """250, 554, or 500 for a line too long; and what was refused is not in the ledger.

    Never 451, which would say that the service had failed.
    """
    door, mailbox = fuzzed
    before = len(mailbox.effects())
    head = f"{CARRIER}: {key}\r\nSubject: {subject}\r\n\r\n".encode("utf-8", "replace")
    content = (head + body).replace(b"\n.\r\n", b"\n..\r\n")
    said = dialogue(door.port, content)
    assert said[:3] in (b"250", b"554", b"500")
    assert len(said) <= 512
    assert b"Traceback" not in said
    assert (len(mailbox.effects()) > before) <= (said[:3] == b"250")


@pytest.fixture(scope="module")
def fuzzed():
    """A door that many tries share."""
    with served("resend") as pair:
        yield pair


# ── opening and closing ──────────────────────────────────────────────────────────────────────────


def test_it_works_inside_a_running_event_loop():
    """As in a notebook."""

    async def cell():
        with served() as (door, mailbox):
            await asyncio.to_thread(send, door, mail())
            return len(mailbox.effects())

    assert asyncio.run(cell()) == 1


def test_it_closes_cleanly_and_opens_again_at_the_same_address():
    """No thread is left, the port is free, a client that stays connected is cut off."""
    with contextlib.closing(Mailbox(profile="smtp", latency=0)) as mailbox:
        before = threading.active_count()
        door = SmtpDoor(mailbox)
        for _ in range(2):
            door.start()
            port = door.port
            client = smtplib.SMTP(door.host, port, "localhost", 10)
            send(door, mail())
            door.stop()
            door.stop()
            with pytest.raises(smtplib.SMTPServerDisconnected):
                client.noop()
            client.close()
            assert threading.active_count() == before
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), timeout=10)
        assert len(mailbox.effects()) == 2


def test_a_port_that_is_taken_is_an_error_and_leaves_nothing():
    """An OSError, and no thread."""
    with served() as (door, mailbox):
        before = threading.active_count()
        with pytest.raises(OSError, match="in use"):
            SmtpDoor(mailbox, door.port).start()
        assert threading.active_count() == before


def test_it_opens_on_loopback_only():
    """The same port on another address of this machine is still free."""
    with served() as (door, _):
        assert door.host == "127.0.0.1"
        if sys.platform == "linux":  # where all of 127/8 is this machine
            with socket.socket() as other:
                other.bind(("127.0.0.2", door.port))


def test_without_aiosmtpd_it_says_what_to_install():
    """The extra is named; the rest of the mail service does not need it."""
    code = (
        "import sys; sys.modules['aiosmtpd'] = None; import durakit.mail, durakit.mail.http\n"
        "try: import durakit.mail.smtp\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "the SMTP door needs aiosmtpd: install durakit[smtp]\n"

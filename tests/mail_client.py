"""What the tests of the HTTP door share: an open door, and clients that are not kind to it."""

import contextlib
import socket
import ssl

import httpx
import pytest

from durakit.mail import PROFILES, Mailbox
from durakit.mail.http import HttpDoor

LETTER = {"from": "shop@example.org", "to": "ada@example.org", "subject": "Hi", "text": "Hello"}


OTHER = LETTER | {"subject": "Bye"}


#: Made once: httpx would read the machine's certificates for each client anew.
TLS = ssl.create_default_context()


@contextlib.contextmanager
def served(profile="resend", *, door=(), timeout=10.0, **options):
    """Yield a client of an open door, and its mailbox; close everything afterwards."""
    mailbox = Mailbox(profile=profile, **{"latency": 0, **options})
    with (
        contextlib.closing(mailbox),
        HttpDoor(mailbox, **dict(door)) as opened,
        httpx.Client(base_url=opened.url, timeout=timeout, verify=TLS) as client,
    ):
        yield client, mailbox


def post(client, key=None, letter=LETTER, path="/emails", profile=None, **headers):
    """Send a letter, with its key as the profile wants it written."""
    profile = PROFILES[profile or "resend"]
    if key is not None:
        headers[profile.carrier] = profile.carry(key)
    return client.post(path, json=letter, headers=headers)


def post_to(url, key, letter=LETTER):
    """Send one letter in a connection of its own."""
    headers = {"Idempotency-Key": key}
    return httpx.post(
        f"{url.rstrip('/')}/emails", json=letter, headers=headers, timeout=10, verify=TLS
    )


def name_of(answer):
    """Return the stable name in a refusal, whatever its shape."""
    body = answer.json()
    if "error" in body:
        return body["error"].get("code", body["error"]["type"])
    return body.get("name", body.get("title"))


def no_answer(send):
    """Return what a client got that was left without an answer: the httpx error."""
    with pytest.raises(httpx.TransportError) as caught:
        send()
    return caught.value


def raw(port, request, *, ends=False):
    """Write bytes to the door, and return all that it says until it closes.

    ``ends``: that nothing more will come is said too, which a request cut short needs.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        with contextlib.suppress(ConnectionError):
            line.sendall(request)
            if ends:
                line.shutdown(socket.SHUT_WR)
        said = b""
        with contextlib.suppress(ConnectionError):
            while part := line.recv(65536):
                said += part
    return said

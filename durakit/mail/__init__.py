"""Somebody else's mail service. It knows nothing of durakit, and durakit's crashes cannot touch it.

>>> from durakit.mail import Fault, Mailbox, MailError
>>> mailbox = Mailbox(plan=[Fault("error_after", request=1)], latency=0)
>>> try:
...     mailbox.send("ada@example.org", "Welcome", "Hello Ada", key="welcome:42")
... except MailError as answer:
...     print(answer.status, "but delivered:", len(mailbox.inbox()))
500 but delivered: 1
>>> mailbox.send("ada@example.org", "Welcome", "Hello Ada", key="welcome:42")
{'id': 'email-1'}

What has happened is to be read from four tables: ``inbox()`` (what customers see), ``effects()``
(the ledger), ``requests()`` (what arrived, and what became of it) and ``keys()`` (what is
remembered). ``Fault`` plans what goes wrong, and ``listen(hook)`` looks in at each of ``POINTS``.

Which service it is like, is its *profile*: ``Mailbox(profile="stripe_v1")``, any of ``PROFILES``;
"idempotent" if none is named. A profile is data (``profiles.json``; ``Profile`` tells its words);
``load_profiles`` reads yours.

Three doors lead to one mailbox: ``send`` in this process, and two on this machine's loopback:

    from durakit.mail.http import HttpDoor    # also on the command line: durakit mail serve
    from durakit.mail.smtp import SmtpDoor    # needs durakit[smtp]
    with HttpDoor(mailbox) as door: print(door.url)

For the builder of another door: every door does the same four things, as ``Mailbox.send`` does.
From any thread:

    request = Request([Letter(to, subject, body)], key=header, token=bearer)    # as received
    answer = mailbox.handle(request)          # a refusal too; blocks for half the latency
    if not answer.comes: close the connection without a word     (after the caller's patience)
    else: wait answer.delay seconds; mailbox.replied(request); send answer.status, .headers, .body

    mailbox.handle(Request(letters, key=…, token=…, batch=True))  # one key, many letters
    mailbox.get_mail("email-1", token=…)      # an Answer: 200 with the mail, or 404
    mailbox.look_up("welcome:42", token=…)    # an Answer: 200 with the ids, 404, or 501
    mailbox.profile.carrier                   # the header a key comes in; None: there is none
    mailbox.profile.smtp_carrier              # the same for the SMTP door

``Mailbox(tokens={"re_ada": "ada"})`` maps bearer tokens to accounts; without it anybody may come in
and everybody is the account "default". A simulated crash (a hook that raises) goes through
``handle`` and ``replied`` as the BaseException it is: to the caller of a door it is a connection
that breaks.

Modules, in reading order: ``errors``, ``checks`` (what was given), ``faults``, ``profiles`` (data),
``messages`` (requests and answers), ``ledger`` (the file), ``memory`` (what is kept of keys),
``intake`` (understanding a request), ``records`` (what the ledger tells), ``work`` (what one
transaction does), ``service`` (the mailbox); and in front of it ``door``, ``http``, ``smtp``, which
nothing here imports.
"""

from __future__ import annotations

from durakit.mail.errors import MailError, NotSupported
from durakit.mail.faults import FAULTS, Fault, load_plan, read_plan
from durakit.mail.messages import LARGEST_BATCH, Answer, Letter, Request
from durakit.mail.profiles import LAYERS, PROFILES, REMEMBERS, Profile, Refusal, load_profiles
from durakit.mail.service import POINTS, Clock, Mailbox

__all__ = [
    "FAULTS",
    "LARGEST_BATCH",
    "LAYERS",
    "POINTS",
    "PROFILES",
    "REMEMBERS",
    "Answer",
    "Clock",
    "Fault",
    "Letter",
    "MailError",
    "Mailbox",
    "NotSupported",
    "Profile",
    "Refusal",
    "Request",
    "load_plan",
    "load_profiles",
    "read_plan",
]

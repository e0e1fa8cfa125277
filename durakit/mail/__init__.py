"""Somebody else's mail service. It knows nothing of durakit, and durakit's crashes cannot touch it.

>>> from durakit.mail import Fault, Mailbox
>>> mailbox = Mailbox(plan=[Fault("error_after", request=1)], latency=0)
>>> try:
...     mailbox.send("ada@example.org", "Welcome", "Hello Ada", key="welcome:42")
... except MailError as answer:
...     print(answer.status, "but delivered:", len(mailbox.inbox()))
500 but delivered: 1
>>> mailbox.send("ada@example.org", "Welcome", "Hello Ada", key="welcome:42")
{'id': 'email-1'}
"""

from __future__ import annotations

from durakit.mail.errors import MailError, NotSupported
from durakit.mail.faults import FAULTS, Fault
from durakit.mail.profiles import PROFILES, Profile
from durakit.mail.service import POINTS, Clock, Mailbox

__all__ = [
    "FAULTS",
    "POINTS",
    "PROFILES",
    "Clock",
    "Fault",
    "MailError",
    "Mailbox",
    "NotSupported",
    "Profile",
]

"""What the mail service says when it does not deliver.

Exception
├── MailError          the service answered, and the answer is no
│   └── NotSupported   … because this profile cannot be asked at all
└── TimeoutError       (builtin) no answer: delivered, lost or late, the caller cannot know
"""

from __future__ import annotations


class MailError(Exception):
    """The service answered with a refusal or a failure.

    ``status``: HTTP-like number. ``name``: stable error name; branch on it, since several
    conflicts share 409. ``message``: for people. ``retry_after``: seconds, or None.
    """

    def __init__(
        self, status: int, name: str, message: str, retry_after: float | None = None
    ) -> None:
        super().__init__(status, name, message, retry_after)
        self.status = status
        self.name = name
        self.message = message
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.status} {self.name}: {self.message}"


class NotSupported(MailError):
    """The question itself is not offered by this profile (status 501)."""

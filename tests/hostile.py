"""Words that somebody hostile wrote, and a world that is full of them."""

SCRIPT = "<script>alert(1)</script>"
HOSTILE = SCRIPT + "<img src=x onerror=alert(1)> \"q\" 'q' & \x00\x1b[31m\u202e " + "y" * 10_000


class HostileWorld:
    """A world that answers with hostile words in every field."""

    def effects(self):
        """One effect."""
        return [{"tool": HOSTILE, "key": HOSTILE, "digest": HOSTILE, "time": 1.0}]

    def inbox(self):
        """One mail."""
        return [{"id": HOSTILE, "to": HOSTILE, "subject": HOSTILE, "body": HOSTILE, "time": 1.0}]

    def keys(self):
        """One key."""
        return [{"key": HOSTILE, "id": HOSTILE, "first": 1.0, "expires": 2.0, "expired": True}]

    def requests(self):
        """One request."""
        return [{"number": 1, "key": HOSTILE, "outcome": HOSTILE, "id": HOSTILE, "time": 1.0}]

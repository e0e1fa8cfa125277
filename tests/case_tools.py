"""What the tests of the public failures (cases.csv) share."""

import durakit as dk

DAY = 86_400.0


def mail_tool(mailbox, effect="idempotent", before=None, after=None, **more):
    """A tool that sends a mail; ``before`` and ``after`` are done around the sending."""

    def send_email(call, to, body):
        if before is not None:
            before()
        sent = mailbox.send(
            to, "Welcome", body, key=call.key, timeout=call.remaining(), fence=call.fence
        )
        if after is not None:
            after()
        return sent

    def probe(call):
        found = mailbox.find(call.key)
        return dk.Absent if found is None else dk.Found(found)

    promises = {
        "none": {},
        "idempotent": {"window": DAY},
        "queryable": {"settles_after": 20.0, "probe": probe},
        "opaque": {},
    }
    return dk.tool(send_email, effect=effect, **{**promises[effect], **more})

"""Understanding a request, and the layers that can answer it without looking at anything kept."""

from __future__ import annotations

from dataclasses import dataclass

from durakit.mail.faults import Fault
from durakit.mail.memory import Scope
from durakit.mail.messages import Answer, Digests, Request, refused, what_is_wrong
from durakit.mail.profiles import AUTHENTICATION, KEY, RATE_LIMIT, VALIDATION, Profile, Refusal

BadKey = tuple[Refusal, str]


@dataclass(frozen=True)
class Order:
    """A request as the service understands it.

    ``account``: None where nobody has this token. ``key``: as the ledger stores it. ``scope``: what
    the key stands for, None where it is not deduplicated. ``digests``: of the request, and of it
    without its senders; "" for a malformed one, which equals no remembered one. ``wrong``: what is
    malformed. ``bad_key``: why it is refused.
    """

    request: Request
    account: str | None
    tool: str
    key: str | None
    scope: Scope | None
    digests: Digests
    wrong: str | None = None
    bad_key: BadKey | None = None


def understand(profile: Profile, request: Request, account: str | None, tool: str) -> Order:
    """Read a request as it came through a door."""
    wrong = request.what_is_wrong()
    key, bad_key = check_key(profile, request.key)
    scope = None
    if profile.dedups and key is not None and account is not None and bad_key is None:
        scope = Scope(account, tool, key)
    digests = ("", "") if wrong is not None else request.digests()
    return Order(request, account, tool, key, scope, digests, wrong, bad_key)


def check_key(profile: Profile, carried: object) -> tuple[str | None, BadKey | None]:
    """Return the key as the ledger can store it, and why the service refuses it."""
    if carried is None:
        missing = profile.missing_key
        return None, None if missing is None else (missing, "this request needs a key")
    text = storable(carried)
    if not profile.uses_keys:
        return text, None
    key = profile.read(text)
    several = isinstance(carried, list)
    wrong = "stands there more than once" if several else what_is_wrong(carried, one_line=False)
    if wrong is None:
        wrong = "is not in quotes" if key is None else profile.what_is_wrong(key)
    bad = None if wrong is None else (profile.bad_key, f"key {wrong}")
    return text if key is None else key, bad


def storable(value: object) -> str:
    """Return a value as a text that SQLite takes, also where the service is about to refuse it."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def refusal(profile: Profile, order: Order, fault: Fault | None) -> tuple[Answer | None, bool]:
    """What a layer says before any work, and whether the key's layer stands in front of it."""
    behind_key = False
    for layer in profile.order:
        answer = None
        if layer == AUTHENTICATION and order.account is None:
            answer = refused(profile, profile.unauthenticated, "no account has this token")
        elif layer == RATE_LIMIT and fault is not None and fault.kind == "rate_limited":
            retry_after = fault.retry_after
            answer = refused(profile, profile.rate_limited, "too many requests", retry_after)
        elif layer == VALIDATION and order.wrong is not None:
            answer = refused(profile, profile.invalid, order.wrong)
        elif layer == KEY:
            behind_key = order.scope is not None
            answer = None if order.bad_key is None else refused(profile, *order.bad_key)
        if answer is not None:
            return answer, behind_key
    return None, behind_key

"""What tools get on the wire, whoever leads: answers to questions, and what became of requests. Owns the errors' spelling."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from keepstep.core.access import Principal
from keepstep.ports import JournalUnavailable
from keepstep.server.aside import answer_aside
from keepstep.server.authentication import refusal_to_forward
from keepstep.server.desk import Desk, UnknownSubject
from keepstep.server.queries import answer, arguments
from keepstep.server.requests import Forbidden
from keepstep.server.review_queries import review_aside
from keepstep.server.site import NoLeader
from keepstep.server.visibility import refusal_to_ask
from keepstep.wire.messages import Act, Query, Reply
from keepstep.wire.requests import Accepted, Request

Refused = Callable[[str, str, str], None]
"""(who, what, why): for the journal."""
Submit = Callable[[Request, Principal, str], Awaitable[Accepted]]

ANSWERS = (UnknownSubject, ValueError, JournalUnavailable)
"""What a question may end in, besides its answer."""
REVIEW = "review"
GONE = "the token or certificate of this connection was revoked or has expired: connect anew with one that is good"

_encode = msgspec.msgpack.Encoder().encode


def answered(view: Any) -> Reply:
    return Reply(ok=True, body=msgspec.Raw(_encode(view)))


async def answer_to(query: Query, desk: Callable[[], Desk], asker: Principal, refused: Refused) -> Reply:
    """One question of ``server.queries``, as ``asker`` may see it. A review looks at everything that is over."""
    if why := _why_not(query, desk(), asker):
        refused(asker.name, f"question {query.what}", why)
        return Reply(ok=False, error=why, kind=Forbidden.__name__)

    def seen() -> Desk:
        return desk().seen_by(asker)

    try:
        if query.what == REVIEW:
            return answered(await review_aside(seen, **arguments(query.what, query.args)))
        return answered(await answer_aside(seen, lambda looked: answer(looked, query.what, query.args)))
    except ANSWERS as error:
        return Reply(ok=False, error=str(error), kind=type(error).__name__)


def _why_not(query: Query, desk: Desk, asker: Principal) -> str:
    return refusal_to_ask(asker, query.what) if desk.registry.holds(asker, desk.now_s) else GONE


async def outcome_of(
    act: Act, asker: Principal, submit: Submit, refused: Refused, holds: Callable[[Principal], bool]
) -> Reply:
    """What became of a request, once it is in the journal. ``holds``: whether an identity is still good; who is spoken for is
    believed no more than who speaks."""
    by = act.by or asker
    try:
        if act.by is not None and (why := refusal_to_forward(asker)):
            raise Forbidden(why)
        if not (holds(asker) and holds(by)):
            raise Forbidden(GONE)
        return answered(await submit(act.request, by, act.key))
    except (Forbidden, UnknownSubject, ValueError, NoLeader) as error:
        if isinstance(error, Forbidden) or (by.tenants and isinstance(error, UnknownSubject)):
            # To somebody of one tenant, what is another's does not exist: the journal knows that it was asked for.
            refused(by.name, type(act.request).__name__, str(error))
        return Reply(ok=False, error=str(error), kind=type(error).__name__)

"""A certificate is renewed before it ends, while the old one still opens the door. Owns when and how; makes no keys itself."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable

import msgspec

from keepstep.adapters.server_link.sockets import Streams, read_message
from keepstep.wire import messages
from keepstep.wire.messages import Enrol, Enrolled, Message, Refused

log = logging.getLogger("keepstep.link")

ANSWER_WAIT_S = 30.0
RETRY_MIN_S = 1.0
_LIFE_LEFT = 1 / 3
"""It is renewed when so much of its life is left."""
_RETRY = 1 / 30
"""Of its life, between two attempts: ten of them before it ends."""
_SPREAD = 0.1
"""Of its life: nodes that were enrolled together do not come together."""


class NotRenewed(ConnectionError):
    """Says why."""


def renew_in_s(expires_in_s: float, life_s: float, drawn: float) -> float:
    """``drawn`` is a random number in [0, 1)."""
    return max(0.0, expires_in_s - life_s * (_LIFE_LEFT + _SPREAD * drawn))


async def keep_renewed(
    name: str, identity_dir: str, expires_in_s: float, dial: Callable[[], Awaitable[Streams]]
) -> None:
    """Until cancelled. ``expires_in_s`` is by the server's clock, which counts: how far ours is off is found from it."""
    from keepstep.adapters.pki.request import read_identity

    shown = await asyncio.to_thread(read_identity, identity_dir)
    ahead_s = expires_in_s - (shown.not_after_s - time.time())
    life_s = shown.not_after_s - shown.not_before_s
    pause_s = renew_in_s(expires_in_s, life_s, random.random())
    while True:
        await asyncio.sleep(pause_s)
        try:
            await renew(name, identity_dir, dial)
        except (OSError, EOFError, ValueError, TimeoutError, msgspec.DecodeError) as problem:
            pause_s = max(RETRY_MIN_S, life_s * _RETRY)
            log.warning("the certificate in %s is not renewed, again in %.0f s: %s", identity_dir, pause_s, problem)
            continue
        log.info("the certificate in %s is renewed", identity_dir)
        shown = await asyncio.to_thread(read_identity, identity_dir)
        life_s = shown.not_after_s - time.time() + ahead_s
        pause_s = max(RETRY_MIN_S, renew_in_s(life_s, life_s, random.random()))


async def renew(name: str, identity_dir: str, dial: Callable[[], Awaitable[Streams]]) -> None:
    """A new key, signed by the server because we show the old certificate. Raises NotRenewed, OSError, EOFError."""
    from keepstep.adapters.pki.request import new_key_and_request, store_identity

    key, request = await asyncio.to_thread(new_key_and_request, name)
    answer = await _ask(Enrol(request=request), dial)
    if isinstance(answer, Refused):
        raise NotRenewed(f"the server refuses: {answer.reason}")
    if not isinstance(answer, Enrolled):
        raise NotRenewed(f"the server answers {type(answer).__name__}")
    await asyncio.to_thread(store_identity, identity_dir, key, answer.certificate, answer.authority)


async def _ask(enrol: Enrol, dial: Callable[[], Awaitable[Streams]]) -> Message:
    reader, writer = await dial()
    try:
        writer.write(messages.encode(enrol))
        async with asyncio.timeout(ANSWER_WAIT_S):
            return await read_message(reader)
    finally:
        writer.close()
        with contextlib.suppress(OSError):  # what was said is said; the way is only closed in good order
            await writer.wait_closed()

"""Waiting for processes by pidfd. Owns the waiting only: a pidfd names one life of a process, never a later one."""

import asyncio
import os
import select
import signal
from collections.abc import Iterable


def has_ended(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def kill(pidfd: int, number: int) -> bool:
    """False where the process is gone already."""
    if has_ended(pidfd):
        return False
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    return True


async def ended(pidfd: int) -> None:
    """Returns when the process has ended; a zombie has: its memory and its files are gone."""
    if has_ended(pidfd):
        return
    # A copy, so that a second waiter does not take our place in the event loop.
    copy = os.dup(pidfd)
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    loop.add_reader(copy, _resolve, future)
    try:
        await future
    finally:
        loop.remove_reader(copy)
        os.close(copy)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def all_ended(pidfds: Iterable[int], wait_s: float) -> bool:
    """All of them have ended within ``wait_s``."""
    waits = [asyncio.ensure_future(ended(pidfd)) for pidfd in pidfds]
    if not waits:
        return True
    _, late = await asyncio.wait(waits, timeout=wait_s)
    for wait in late:
        wait.cancel()
    if late:
        await asyncio.wait(late)
    return not late

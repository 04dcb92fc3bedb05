"""Answers that take a while, sent to each client in the order of its questions: a reply carries no number."""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine

from keepstep.server.connection import Connection
from keepstep.wire.messages import Reply

log = logging.getLogger("keepstep.server")


WAITING_MAX = 256
"""Questions of one client that wait for their answers."""


class InTurn:
    """All questions of a client are worked on at once."""

    def __init__(self) -> None:
        self._waiting: dict[Connection, list[asyncio.Task[None]]] = {}

    def answer(self, connection: Connection, work: Coroutine[None, None, Reply]) -> None:
        waiting = self._waiting.setdefault(connection, [])
        if len(waiting) >= WAITING_MAX:
            work.close()
            connection.drop(f"{WAITING_MAX} of its questions wait for their answers already")
            return
        before = waiting[-1] if waiting else None
        task = asyncio.get_running_loop().create_task(_send(connection, work, before))
        waiting.append(task)
        task.add_done_callback(lambda done: self._forget(connection, done))

    def _forget(self, connection: Connection, done: asyncio.Task[None]) -> None:
        waiting = self._waiting[connection]
        waiting.remove(done)
        if not waiting:
            del self._waiting[connection]

    async def quiet(self) -> None:
        """Until everything that was asked so far is answered."""
        while tasks := [task for waiting in self._waiting.values() for task in waiting]:
            await asyncio.wait(tasks)


async def _send(connection: Connection, work: Awaitable[Reply], before: asyncio.Task[None] | None) -> None:
    try:
        reply = await work
    except Exception:
        log.exception("a question failed")
        connection.drop("the server failed on its question")
        return
    if before is not None and not before.done():
        await asyncio.wait([before])
    connection.send(reply)

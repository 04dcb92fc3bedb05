"""The launcher's side of a snapshot server, for asyncio. Owns the numbering of requests.

Must not start the process or decide anything.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from keepstep.checkpoint.errors import SnapshotRefused, StateInvalid, Unreadable
from keepstep.checkpoint.snapshot.messages import (
    Begin,
    Committed,
    Control,
    Flush,
    FrameBuffer,
    Hold,
    ListDisk,
    Notice,
    Quit,
    Ready,
    Refused,
    SaveError,
    Stock,
    TakeInventory,
    VerifyDisk,
    VerifyRam,
    Wrong,
    frame,
    to_launcher,
)
from keepstep.checkpoint.snapshot.policy import SnapshotPolicy

DEFAULT_POLICY = SnapshotPolicy()
Event = Committed | SaveError | Notice


class SnapshotControl:
    """The one control connection of a snapshot server; closing it ends the server.

    ``on_event`` gets Committed, SaveError and Notice as they happen. Every request raises ConnectionError if the server goes.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_event: Callable[[Event], None]
    ) -> None:
        self._reader, self._writer, self._on_event = reader, writer, on_event
        self._buffer = FrameBuffer(to_launcher)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._task: asyncio.Task[None] | None = None
        self.address = ""
        """host:port at which the server answers its peers."""
        self.pid = 0

    @classmethod
    async def connect(cls, socket_path: str, job: str, on_event: Callable[[Event], None]) -> "SnapshotControl":
        """Raises OSError while nobody listens there, SnapshotRefused if the server belongs to someone else."""
        control = cls(*await asyncio.open_unix_connection(socket_path), on_event)
        try:
            control._writer.write(frame(Control(job=job)))
            hello = await control._receive()
            if isinstance(hello, Refused):
                raise SnapshotRefused(hello.reason)
            if not isinstance(hello, Ready):
                raise ConnectionError(f"the snapshot server greeted with {type(hello).__name__}")
        except BaseException:
            control._writer.close()
            raise
        control.address, control.pid = hello.address, hello.pid
        control._task = asyncio.get_running_loop().create_task(control._listen())
        return control

    async def begin(
        self,
        generation: int,
        world_size: int,
        peers: Sequence[str] = (),
        restored_from: str = "",
        policy: SnapshotPolicy = DEFAULT_POLICY,
    ) -> None:
        """A generation begins: older workers and mirrors are refused from here; what was sealed stays."""
        await self._ask(
            lambda n: Begin(
                request=n, generation=generation, world_size=world_size, peers=tuple(peers),
                restored_from=restored_from, policy=policy,
            )
        )  # fmt: skip

    async def inventory(self) -> Stock:
        """Everything that this node could restore from; call it after the ranks are dead and reaped."""
        stock: Stock = await self._ask(lambda n: TakeInventory(request=n))
        return stock

    async def verify_ram(self, step: int, digests: Sequence[str]) -> None:
        """Hash these bytes again. Raises StateInvalid naming the first that is absent or damaged."""
        await self._ask(lambda n: VerifyRam(request=n, step=step, digests=tuple(digests)))

    async def list_disk(self) -> Stock:
        stock: Stock = await self._ask(lambda n: ListDisk(request=n))
        return stock

    async def verify_disk(self, key: str) -> None:
        """Read every byte of a commit. Raises StateInvalid naming the first piece that is wrong."""
        await self._ask(lambda n: VerifyDisk(request=n, key=key))

    async def hold(self, step: int, generation: int = -1) -> None:
        """Keep this step until a newer generation has two complete steps of its own."""
        await self._ask(lambda n: Hold(request=n, step=step, generation=generation))

    async def flush(self, step: int) -> None:
        """Write what is sealed of this step to disk; Committed or SaveError follows as an event."""
        await self._ask(lambda n: Flush(request=n, step=step))

    async def quit(self) -> None:
        """Finish the writes that are queued, then end the server."""
        with contextlib.suppress(ConnectionError):
            await self._ask(lambda n: Quit(request=n))
        await self.close()

    async def close(self) -> None:
        """End the server at once."""
        self._writer.close()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _ask(self, make: Callable[[int], Any]) -> Any:
        if self._task is None or self._task.done():
            raise ConnectionResetError("the snapshot server has gone")
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        self._writer.write(frame(make(self._number)))
        message = await answer
        if isinstance(message, Wrong):
            raise StateInvalid(message.reason) if message.damaged else Unreadable(message.reason)
        return message

    async def _receive(self) -> Any:
        while (message := self._buffer.take()) is None:
            data = await self._reader.read(256 * 1024)
            if not data:
                raise ConnectionResetError("the snapshot server has gone")
            self._buffer.feed(data)
        return message

    async def _listen(self) -> None:
        try:
            while True:
                message = await self._receive()
                if isinstance(message, (Committed, SaveError, Notice)):
                    self._on_event(message)
                elif (
                    answer := self._answers.pop(getattr(message, "request", 0), None)
                ) is not None and not answer.done():
                    answer.set_result(message)
        except (OSError, msgspec.DecodeError):
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(ConnectionResetError("the snapshot server has gone"))
            self._answers.clear()

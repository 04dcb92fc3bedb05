"""A worker's side of the snapshot server: snapshots of its state, and restores. Owns the copy that the trainer pays for.

The trainer copies its tensors into a slot of shared memory and sends one small message; hashing, mirroring and writing
happen elsewhere. Synchronous, for the one thread that trains. torch is used only where the state has tensors.
"""

import array
import contextlib
import mmap
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keepstep.checkpoint.errors import SaveFailed, SnapshotRefused, StateInvalid
from keepstep.checkpoint.snapshot.messages import (
    MAX_FDS,
    Attach,
    Attached,
    Durable,
    FindPart,
    FrameBuffer,
    Grant,
    NoRoom,
    NotFound,
    PartFound,
    Place,
    Reading,
    Refused,
    Reserve,
    Seal,
    Source,
    WaitDurable,
    frame,
    to_worker,
)
from keepstep.checkpoint.snapshot.reading import read_blob
from keepstep.checkpoint.state.blob import blob_bytes, tail_bytes, unpack_verified, write_tail
from keepstep.checkpoint.state.leaves import LeafViews, Spec
from keepstep.checkpoint.state.tree import Flat

DURABLE_PATIENCE_S = 1.0
"""A durable snapshot that one rank skips is lost for all of them, so it waits longer for a slot."""
KEEP_RESULTS = 64
_ALIGN = 4096


class _Plan:
    """Where the groups of one layout stand in a slot. Cached: it holds as long as the layout of the state does."""

    def __init__(self, groups: Mapping[str, Flat]) -> None:
        self.specs: dict[str, tuple[Spec, ...]] = {name: flat.specs for name, flat in groups.items()}
        self.offsets: dict[str, int] = {}
        self.room: dict[str, int] = {}
        end = 0
        for name, flat in groups.items():
            # The index holds numbers that get longer as training goes on.
            room = flat.payload_bytes + tail_bytes(flat, len(flat.index) + len(flat.index) // 4 + 1024)
            self.offsets[name], self.room[name] = end, room
            end += -(-room // _ALIGN) * _ALIGN
        self.size_bytes = max(end, _ALIGN)

    def fits(self, groups: Mapping[str, Flat]) -> bool:
        if groups.keys() != self.specs.keys():
            return False
        for name, flat in groups.items():
            specs = self.specs[name]
            if flat.specs is not specs and flat.specs != specs:
                return False
            if blob_bytes(flat) > self.room[name]:
                return False
        return True


class _MappedSlot:
    """A slot as this worker sees it. Views are made once per plan."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        self.map = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.size_bytes = size_bytes
        self._plan: _Plan | None = None
        self._views: dict[str, LeafViews] = {}

    def views(self, plan: _Plan) -> dict[str, LeafViews]:
        if self._plan is not plan:
            self._views = {name: LeafViews(specs, self.map, plan.offsets[name]) for name, specs in plan.specs.items()}
            self._plan = plan
        return self._views


class SnapshotClient:
    """One rank's connection. ``skipped`` counts snapshots for which no slot was free.

    ``patience_s`` bounds how long a snapshot waits for a free slot. Raises SnapshotRefused if the server does not accept
    this rank, ConnectionError if it has gone.
    """

    def __init__(
        self, socket_path: str, *, job: str, generation: int, rank: int, world_size: int, patience_s: float = 0.02
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self.skipped = 0
        self._patience_s = patience_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._buffer = FrameBuffer(to_worker)
        self._descriptors: deque[int] = deque()
        self._slots: dict[int, _MappedSlot] = {}
        self._granted: tuple[int, _MappedSlot] | None = None
        self._durable_only = False
        """The granted slot is a file on disk, for want of memory."""
        self.refused = ""
        """Why the server has no slot for this rank's state; empty while it has."""
        self._reserved_bytes = self._reserve = 0
        self._plan: _Plan | None = None
        self._durable: dict[int, Durable] = {}
        self.on_reading: Callable[[], None] = lambda: None
        """Called while a restore waits and bytes arrive on this node."""
        self.written_s = 0.0
        """How long the newest checkpoint took from the seal until it was durable."""
        try:
            self._socket.connect(socket_path)
            self._send(Attach(job=job, generation=generation, rank=rank, world_size=world_size))
            self._wait(lambda message: isinstance(message, Attached), None)
        except BaseException:
            self.close()
            raise

    # ---- snapshots

    def snapshot(self, step: int, groups: Mapping[str, Flat], *, durable: bool = False) -> bool:
        """Seal the state of a finished step. When this returns, the caller may change its state.

        False, counted in ``skipped``, if no slot was free; what was sealed before is then still whole. ``durable``: the
        server also writes it to disk, behind; all ranks must ask for it at the same steps.
        """
        plan = self._plan
        if plan is None or not plan.fits(groups):
            plan = self._plan = _Plan(groups)
        if durable:
            self._durable.pop(step, None)
        slot = self._take_slot(plan.size_bytes, max(self._patience_s, DURABLE_PATIENCE_S if durable else 0.0))
        if slot is None or (self._durable_only and not durable):
            self.skipped += 1
            return False
        number, mapped = slot
        views = mapped.views(plan)
        places = []
        for name, flat in groups.items():
            views[name].fill(flat.leaves)
            offset = plan.offsets[name]
            places.append(Place(name, offset, write_tail(mapped.map, offset, flat)))
        self._granted = None
        self._send(Seal(slot=number, step=step, groups=tuple(places), durable=durable))
        return True

    def _take_slot(self, size_bytes: int, patience_s: float) -> tuple[int, _MappedSlot] | None:
        self._read_waiting()
        if self._granted is not None and self._granted[1].size_bytes >= size_bytes:
            return self._granted
        if size_bytes > self._reserved_bytes:
            # The first snapshot, or the state grew: memory is allocated now, which takes as long as it takes.
            self._ask_for_slot(size_bytes)
            patience_s = max(patience_s, 10.0 + size_bytes / 2**28)
        deadline = time.monotonic() + patience_s
        while self._granted is None:
            if self.refused:
                return None
            if not self._read_until(deadline):
                # Ask again for the next time: there may have been no memory for a slot just then.
                self._ask_for_slot(size_bytes)
                return None
        return self._granted

    def _ask_for_slot(self, size_bytes: int) -> None:
        self._granted, self._reserved_bytes, self.refused = None, size_bytes, ""
        self._reserve += 1
        self._send(Reserve(number=self._reserve, size_bytes=size_bytes))

    def wait_durable(self, step: int, timeout_s: float) -> bool:
        """Wait until the durable snapshot of ``step`` is committed; False if that takes longer.

        Raises SaveFailed with the reason if it will not be.
        """
        if step not in self._durable:
            self._send(WaitDurable(step=step))
        deadline = time.monotonic() + timeout_s
        while step not in self._durable:
            if not self._read_until(deadline):
                return False
        result = self._durable[step]
        if not result.key:
            raise SaveFailed(f"step {step} was not saved: {result.reason}")
        return True

    # ---- restore

    def restore(
        self, step: int, tier: str, key: str, saved_world_size: int, peers: Sequence[str] = (), generation: int = -1
    ) -> dict[str, Any]:
        """This rank's groups as trees; of rank ``rank % saved_world_size`` where the world changed.

        ``generation``: of whoever wrote it; -1 takes the newest that has ``step`` in memory. Arrays own their memory.
        Raises StateInvalid naming what is wrong; then nothing was restored.
        """
        request = FindPart(
            step=step, generation=generation, rank=self.rank % saved_world_size, tier=tier, key=key, peers=tuple(peers)
        )
        return {source.name: unpack_verified(blob) for source, blob in self.fetch(request)}

    def fetch(self, request: FindPart) -> list[tuple[Source, Any]]:
        """The blobs of any rank's part, verified, in memory of their own. Raises StateInvalid."""
        self._send(request)
        answer = self._wait(lambda message: isinstance(message, (PartFound, NotFound)), None)
        if isinstance(answer, NotFound):
            raise StateInvalid(
                f"rank {self.rank} cannot restore step {request.step} from {request.tier}: {answer.reason}"
            )
        descriptors = [self._descriptors.popleft() for _ in answer.sources]
        try:
            return [(source, read_blob(source, fd)) for source, fd in zip(answer.sources, descriptors, strict=True)]
        finally:
            for fd in descriptors:
                os.close(fd)

    # ---- connection

    def close(self) -> None:
        """Leave. What was sealed stays with the server."""
        self._socket.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())
        self._slots.clear()
        self._granted = None

    def fileno(self) -> int:
        return self._socket.fileno()

    def _send(self, message: Any) -> None:
        self._socket.sendall(frame(message))

    def _wait(self, wanted: Callable[[Any], bool], deadline: float | None) -> Any:
        while True:
            message = self._buffer.take()
            if message is None:
                self._receive(deadline)
            elif wanted(message):
                return message
            else:
                self._handle(message)

    def _read_waiting(self) -> None:
        """Take in what has arrived, without waiting."""
        self._read_until(0.0)

    def _read_until(self, deadline: float) -> bool:
        """Handle at least one message; False if none came before the deadline."""
        handled = False
        while True:
            while (message := self._buffer.take()) is not None:
                self._handle(message)
                handled = True
            if handled:
                return True
            try:
                self._receive(deadline)
            except TimeoutError:
                return False

    def _receive(self, deadline: float | None) -> None:
        """Take in some bytes and descriptors. Raises TimeoutError, or ConnectionError at the end of the stream."""
        room = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
        while True:
            try:
                flags = socket.MSG_CMSG_CLOEXEC | (socket.MSG_DONTWAIT if deadline is not None else 0)
                data, ancillary, _, _ = self._socket.recvmsg(64 * 1024, room, flags)
                break
            except BlockingIOError:
                left_s = (deadline or 0.0) - time.monotonic()
                if left_s <= 0 or not select.select([self._socket], [], [], left_s)[0]:
                    raise TimeoutError from None
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                self._descriptors.extend(fds)
        if not data:
            raise ConnectionResetError("the snapshot server has gone, or this generation is over")
        self._buffer.feed(data)

    def _handle(self, message: Any) -> None:
        match message:
            case Grant(slot=number, size_bytes=size, new=new, reserve=reserve, durable_only=durable_only):
                if new:
                    fd = self._descriptors.popleft()
                    with contextlib.closing(os.fdopen(fd, "rb", closefd=True)):
                        self._slots[number] = _MappedSlot(fd, size)
                if reserve == self._reserve:
                    self._granted, self._durable_only, self.refused = (number, self._slots[number]), durable_only, ""
            case NoRoom(reserve=reserve, reason=reason):
                if reserve == self._reserve:
                    self.refused = reason
            case Durable(step=step):
                self._durable[step] = message
                self.written_s = message.duration_s or self.written_s
                while len(self._durable) > KEEP_RESULTS:
                    del self._durable[next(iter(self._durable))]
            case Reading():
                self.on_reading()
            case Refused(reason=reason):
                raise SnapshotRefused(reason)
            case _:
                raise ConnectionError(f"the snapshot server sent {type(message).__name__}, which nobody asked for")

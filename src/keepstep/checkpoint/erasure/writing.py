"""Shards on their way to locations, all at once. Owns that they appear whole, after all data is everywhere, or not at all.

The blocks of a stripe stay in a ring of buffers while the locations write them. A location that fails or is too late is left
out: its shard is missing, and reported. Must not decide what is in a block.
"""

import mmap
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

import numpy as np

from keepstep.checkpoint.erasure.field import Bytes
from keepstep.checkpoint.erasure.lanes import Lane
from keepstep.checkpoint.erasure.layout import Geometry
from keepstep.checkpoint.erasure.locations import Location
from keepstep.checkpoint.erasure.names import ShardName
from keepstep.checkpoint.erasure.shards import footer, header
from keepstep.checkpoint.errors import SaveFailed
from keepstep.checkpoint.stores.port import ObjectWriter

RING = 3
"""Stripes in memory: one is filled while two are written. A writer may read a block until its next call returns, so the block
of stripe s is free once that of stripe s + 1 is written."""


def aligned(size_bytes: int) -> Bytes:
    """Zeros that begin at a page, which is what direct I/O wants."""
    return np.frombuffer(mmap.mmap(-1, max(1, size_bytes)), np.uint8)[:size_bytes]


class Target(NamedTuple):
    """Where a shard is to go."""

    location: Location
    name: ShardName


class _ShardStream:
    """One shard and its lane. Every method returns at once."""

    def __init__(self, target: Target, geometry: Geometry) -> None:
        self.target, self._geometry = target, geometry
        self.lane = Lane(target.location)
        self.error: Exception | None = None
        self._writer: ObjectWriter | None = None
        self._appeared = False

    def open(self) -> Future[None]:
        first = aligned(len(head := header(self.target.name.key, self._geometry, self.target.name.shard)))
        first[:] = np.frombuffer(head, np.uint8)

        def act() -> None:
            self._writer = self.target.location.store.writer(str(self.target.name), self._geometry.shard_bytes)
            self._writer.write(first.data)

        return self.lane.submit(act)

    def write(self, block: Bytes) -> Future[None]:
        def act() -> None:
            assert self._writer is not None
            self._writer.write(block.data)

        return self.lane.submit(act)

    def finish(self) -> Future[None]:
        def act() -> None:
            assert self._writer is not None
            self._writer.finish()
            self._appeared = True

        return self.lane.submit(act)

    def discard(self) -> Future[None]:
        """Leave nothing of it behind, even if the call before this one comes back late."""

        def act() -> None:
            if self._appeared:
                self.target.location.store.delete(str(self.target.name))
            elif self._writer is not None:
                self._writer.abort()

        return self.lane.submit(act)


class ShardWriters:
    """The shards of one object that are being written. For one thread. Leaving the ``with`` block unfinished discards all."""

    def __init__(self, geometry: Geometry, targets: Sequence[Target], deadline_s: float, may_fail: int) -> None:
        self._geometry, self._deadline_s, self._may_fail = geometry, deadline_s, may_fail
        self._streams = {target.name.shard: _ShardStream(target, geometry) for target in targets}
        self._behind: list[dict[int, Future[None]]] = []
        self._finished = False

    def __enter__(self) -> "ShardWriters":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._finished:
            # Best effort: what stays behind is an object without a commit, which the collection of garbage finds.
            wait([s.discard() for s in self._streams.values() if s.error is None], self._deadline_s)
        for stream in self._streams.values():
            stream.lane.close()

    @property
    def failed(self) -> dict[int, str]:
        """Shard -> what went wrong at its location."""
        return {n: f"{s.target.location}: {_words(s.error)}" for n, s in self._streams.items() if s.error is not None}

    def open(self) -> None:
        """Begin all shards. This and all methods below raise SaveFailed once more than ``may_fail`` locations have failed."""
        self._settle({shard: stream.open() for shard, stream in self._streams.items()})

    def make_room(self) -> None:
        """Return when the buffers of the stripe ``RING`` stripes ago may be used again."""
        while len(self._behind) >= RING - 1:
            self._settle(self._behind.pop(0))

    def write(self, blocks: Mapping[int, Bytes]) -> None:
        """Shard -> its next block, not to be touched before :meth:`make_room` has been called ``RING`` times."""
        self._behind.append({n: s.write(blocks[n]) for n, s in self._streams.items() if s.error is None})

    def finish(self, tail: Mapping[int, Bytes], table: Any, root: bytes) -> None:
        """Add the tail's blocks (if there is one) and the footer; then make all shards appear."""
        while self._behind:
            self._settle(self._behind.pop(0))
        end = np.frombuffer(footer(table, root), np.uint8)
        last: dict[int, Future[None]] = {}
        for n, stream in self._streams.items():
            if stream.error is None:
                ending = aligned(self._geometry.tail_bytes + end.nbytes)
                if self._geometry.tail_bytes:
                    ending[: self._geometry.tail_bytes] = tail[n]
                ending[self._geometry.tail_bytes :] = end
                last[n] = stream.write(ending)
        self._settle(last)
        self._settle({n: stream.finish() for n, stream in self._streams.items() if stream.error is None})
        self._finished = True

    def _settle(self, futures: Mapping[int, Future[None]]) -> None:
        """Wait for calls, and leave out the shards whose calls fail. Raises SaveFailed if those are too many."""
        until = time.monotonic() + self._deadline_s
        for shard, future in futures.items():
            stream = self._streams[shard]
            if stream.error is not None:
                continue
            try:
                future.result(max(0.0, until - time.monotonic()))
            except OSError as error:  # TimeoutError is one: the location's own, or ours
                stream.error = error
                if not isinstance(error, FileExistsError):
                    stream.target.location.note_slow()
                stream.discard()
                stream.lane.close()
        taken = [str(s.target.location) for s in self._streams.values() if isinstance(s.error, FileExistsError)]
        if taken:
            raise SaveFailed(
                f"shards of this object are already at {', '.join(taken)}: delete it first, or use another key"
            )
        if len(self.failed) > self._may_fail:
            raise SaveFailed(
                f"{len(self.failed)} of {len(self._streams)} locations failed where {self._may_fail} may: "
                + "; ".join(self.failed.values())
            )


def _words(error: Exception | None) -> str:
    return str(error) or "no answer within the deadline"

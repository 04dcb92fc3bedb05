"""Where copies of a checkpoint may lie beside its own store: another store, or erasure-coded locations. Owns the adapters.

Copies are evidence, never a log: nobody commits there. What is read from them is checked against digests from elsewhere.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from keepstep.checkpoint.erasure.replicas import REPLICATED_MAX_BYTES
from keepstep.checkpoint.erasure.scrub import Condition
from keepstep.checkpoint.erasure.tier import ErasureTier
from keepstep.checkpoint.errors import SaveFailed, StateInvalid
from keepstep.checkpoint.stores.port import BLOCK_BYTES, Store

Read = Callable[[int, memoryview], None]
"""Fills a view with an object's bytes from an offset on."""
Check = Callable[[bytes], object]
"""Raises StateInvalid for bytes that are not the right ones."""
PIECE_BYTES = 2048 * BLOCK_BYTES


class Copies(Protocol):
    """See the module. Raises OSError, or StateInvalid where what is there is damaged. Absent keys: FileNotFoundError or
    StateInvalid."""

    @property
    def name(self) -> str: ...

    def put(self, key: str, read: Read, size_bytes: int) -> None:
        """Store a large object; whatever was under ``key`` is replaced."""
        ...

    def size(self, key: str) -> int | None: ...

    def read_into(self, key: str, offset: int, view: memoryview) -> None: ...

    def keep(self, key: str, data: bytes) -> None:
        """Store a small object as often as there are places; whatever was under ``key`` is replaced."""
        ...

    def kept(self, key: str, check: Check) -> bytes:
        """A copy of a small object that passes ``check``."""
        ...

    def names(self, prefix: str) -> list[str]:
        """Keys of the small objects whose keys begin with ``prefix`` (ends in ``/``), in order."""
        ...

    def delete(self, key: str) -> None:
        """Of either kind. An absent key is fine."""
        ...

    def mend(self, key: str) -> list[str]:
        """Rebuild, from what is here, what this place has lost of a large object; tells what was rebuilt."""
        ...


class StoreCopies:
    """Copies in one store: another file system, an object store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def name(self) -> str:
        return self._store.name

    def put(self, key: str, read: Read, size_bytes: int) -> None:
        write(self._store, key, pieces(read, size_bytes), size_bytes)

    def size(self, key: str) -> int | None:
        return self._store.size(key)

    def read_into(self, key: str, offset: int, view: memoryview) -> None:
        self._store.read_into(key, offset, view)

    def keep(self, key: str, data: bytes) -> None:
        if self._store.create(key, data) or self._store.read(key) == data:
            return
        self._store.delete(key)
        self._store.create(key, data)

    def kept(self, key: str, check: Check) -> bytes:
        data = self._store.read(key)
        check(data)
        return data

    def names(self, prefix: str) -> list[str]:
        return [entry.key for entry in self._store.list(prefix)]

    def delete(self, key: str) -> None:
        self._store.delete(key)

    def mend(self, key: str) -> list[str]:
        return []


class ErasureCopies:
    """Copies spread over locations, any m of which may be lost."""

    def __init__(self, tier: ErasureTier) -> None:
        self._tier = tier

    @property
    def name(self) -> str:
        return f"{self._tier.policy.data}+{self._tier.policy.parity} over {len(self._tier.locations)} locations"

    def put(self, key: str, read: Read, size_bytes: int) -> None:
        self._tier.delete(key)
        self._tier.put(key, read, size_bytes)

    def size(self, key: str) -> int | None:
        try:
            return self._tier.size(key)
        except StateInvalid:
            return None

    def read_into(self, key: str, offset: int, view: memoryview) -> None:
        self._tier.get_into(key, offset, view)

    def keep(self, key: str, data: bytes) -> None:
        if len(data) > REPLICATED_MAX_BYTES:
            self.put(key, functools.partial(_from, data), len(data))
        else:
            self._replicate(key, data)

    def _replicate(self, key: str, data: bytes) -> None:
        try:
            self._tier.replicate(key, data)
        except SaveFailed:
            # A copy that is damaged is in the way.
            for location in self._tier.locations:
                with contextlib.suppress(OSError):
                    if location.store.size(key) not in (None, len(data)) or location.store.read(key) != data:
                        location.store.delete(key)
            self._tier.replicate(key, data)

    def kept(self, key: str, check: Check) -> bytes:
        size_bytes = self.size(key)
        if size_bytes is None:
            return self._tier.read_replicated(key, check)
        data = bytearray(size_bytes)
        self.read_into(key, 0, memoryview(data))
        check(bytes(data))
        return bytes(data)

    def names(self, prefix: str) -> list[str]:
        """Raises OSError if so many locations fail that an object might not be seen."""
        found: set[str] = set()
        failed: list[str] = []
        for location in self._tier.locations:
            try:
                found |= {entry.key for entry in location.store.list(prefix)}
            except OSError as error:
                failed.append(f"{location.name}: {error}")
        if len(failed) > self._tier.policy.parity:
            raise OSError(f"the list of {prefix} in {self.name} is not complete: {'; '.join(failed)}")
        return sorted(found)

    def delete(self, key: str) -> None:
        self._tier.delete(key)
        for location in self._tier.locations:
            location.store.delete(key)

    def mend(self, key: str) -> list[str]:
        report = self._tier.verify(key)
        if report.sound:
            return []
        before = set(report.having(Condition.GOOD))
        after = self._tier.repair(key)
        return [f"shard {shard} of {key}" for shard in after.having(Condition.GOOD) if shard not in before]


def _from(data: bytes, offset: int, view: memoryview) -> None:
    view[:] = data[offset : offset + len(view)]


def pieces(read: Read, size_bytes: int) -> Iterator[memoryview]:
    """An object in pieces, in two buffers by turns: one is valid until the one after the next is asked for."""
    buffers = [memoryview(bytearray(min(PIECE_BYTES, size_bytes))) for _ in range(2)]
    for turn, offset in enumerate(range(0, size_bytes, PIECE_BYTES)):
        piece = buffers[turn % 2][: min(PIECE_BYTES, size_bytes - offset)]
        read(offset, piece)
        yield piece


def write(store: Store, key: str, source: Iterable[memoryview], size_bytes: int) -> None:
    """Write a large object in place of what is under ``key``, which goes at the last moment, when all of the new one is
    there. Raises what ``source`` raises, with nothing changed."""
    with store.writer(key, size_bytes) as writer:
        for piece in source:
            writer.write(piece)
        store.delete(key)
        writer.finish()

"""Locations in memory whose every call can be made to fail, hang or lie, and that hold callers to the contract of a store."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

from keepstep.checkpoint.erasure.locations import Location, Locations
from keepstep.checkpoint.erasure.tier import ErasureTier, Policy
from keepstep.checkpoint.stores.port import BLOCK_BYTES, Entry

DEADLINE_S = 60.0
BLOCK = 4096

Trouble = Callable[[str, str], None]
"""Given the name of a call and its key, before it is made: may raise, or block."""


def no_trouble(call: str, key: str) -> None:
    return None


class MemoryStore:
    """A store of byte strings."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.objects: dict[str, bytes] = {}
        self.trouble: Trouble = no_trouble
        self.calls: list[tuple[str, str]] = []

    def _enter(self, call: str, key: str) -> None:
        self.calls.append((call, key))
        self.trouble(call, key)

    def create(self, key: str, data: Any) -> bool:
        self._enter("create", key)
        return self.objects.setdefault(key, content := bytes(data)) is content

    def writer(self, key: str, size_bytes: int) -> "MemoryWriter":
        self._enter("writer", key)
        return MemoryWriter(self, key)

    def read(self, key: str) -> bytes:
        self._enter("read", key)
        return self._object(key)

    def read_into(self, key: str, offset: int, view: memoryview) -> None:
        self._enter("read_into", key)
        piece = self._object(key)[offset : offset + len(view)]
        if len(piece) != len(view):
            raise OSError(f"{key} ends before {offset + len(view)}")
        view[:] = piece

    def _object(self, key: str) -> bytes:
        if key not in self.objects:
            raise FileNotFoundError(key)
        return self.objects[key]

    def size(self, key: str) -> int | None:
        self._enter("size", key)
        return len(self.objects[key]) if key in self.objects else None

    def list(self, prefix: str) -> Iterator[Entry]:
        self._enter("list", prefix)
        return iter([Entry(key, len(data)) for key, data in sorted(self.objects.items()) if key.startswith(prefix)])

    def delete(self, key: str) -> None:
        self._enter("delete", key)
        self.objects.pop(key, None)

    def tidy(self, idle_s: float) -> None:
        self._enter("tidy", str(idle_s))

    def hint(self, key: str, data: bytes) -> None:
        self.objects[key] = data


class MemoryWriter:
    """Looks at a block as late as it may: when the next call begins. A caller that reuses it too early is found out."""

    def __init__(self, store: MemoryStore, key: str) -> None:
        self._store, self._key = store, key
        self._done = bytearray()
        self._last: Any = b""
        self._ragged = False

    def write(self, block: Any) -> None:
        self._store._enter("write", self._key)
        assert not self._ragged, "only the last block may be no multiple of BLOCK_BYTES"
        self._done += self._last
        self._last = block
        self._ragged = bool(len(block) % BLOCK_BYTES)

    def finish(self) -> None:
        self._store._enter("finish", self._key)
        if self._key in self._store.objects:
            raise FileExistsError(self._key)
        self._store.objects[self._key] = bytes(self._done + self._last)

    def abort(self) -> None:
        self._store._enter("abort", self._key)

    def __enter__(self) -> "MemoryWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


class Site:
    """Stores, their locations, and tiers over them."""

    def __init__(self, domains: str = "abcdef", **policy: Any) -> None:
        self.stores = [MemoryStore(f"store-{n}") for n in range(len(domains))]
        self.places = [
            Location(f"place-{n}", domain, store)
            for n, (domain, store) in enumerate(zip(domains, self.stores, strict=True))
        ]
        defaults: dict[str, Any] = {
            "block_bytes": BLOCK,
            "window_bytes": 16 * BLOCK,
            "hedge_s": DEADLINE_S,
            "deadline_s": DEADLINE_S,
        }
        self.policy = Policy(**{**defaults, **policy})
        self.tier = self.open()

    def open(self) -> ErasureTier:
        """A tier that remembers nothing."""
        return ErasureTier(Locations(self.places), self.policy)

    def shards(self, key: str) -> dict[int, tuple[MemoryStore, str]]:
        """Shard -> its store and its name there."""
        found = {}
        for store in self.stores:
            for name in store.objects:
                if name.startswith(f"{key}/shard-"):
                    found[int(name.rsplit("-", 2)[1])] = (store, name)
        return found

    def contents(self, key: str) -> dict[int, bytes]:
        return {shard: store.objects[name] for shard, (store, name) in self.shards(key).items()}

    def change(self, key: str, shard: int, change: Callable[[bytes], bytes]) -> None:
        store, name = self.shards(key)[shard]
        store.objects[name] = change(store.objects[name])

    def lose(self, key: str, shard: int) -> None:
        store, name = self.shards(key)[shard]
        del store.objects[name]


def flipped(at: int) -> Callable[[bytes], bytes]:
    """A change that flips one bit of byte ``at`` (from the end if negative)."""

    def change(data: bytes) -> bytes:
        made = bytearray(data)
        made[at] ^= 0x10
        return bytes(made)

    return change


def fetch(tier: ErasureTier, key: str, offset: int, size_bytes: int, digest: str = "") -> bytes:
    buffer = bytearray(size_bytes)
    tier.get_into(key, offset, memoryview(buffer), digest=digest)
    return bytes(buffer)


class Hang:
    """A trouble that blocks calls until it is released; ``reached`` is set when the first one is caught."""

    def __init__(self, *calls: str) -> None:
        self._calls = calls
        self._released, self.reached = threading.Event(), threading.Event()

    def __call__(self, call: str, key: str) -> None:
        if call in self._calls:
            self.reached.set()
            self._released.wait(DEADLINE_S * 5)

    def release(self) -> None:
        self._released.set()


def failing(*calls: str, error: type[OSError] = ConnectionError) -> Trouble:
    def trouble(call: str, key: str) -> None:
        if call in calls:
            raise error(f"{call} of {key} fails")

    return trouble

"""What the erasure-coded tier costs: coding, digests, and whole puts and gets, beside a memory copy in one run.

``python -m bench.checkpoint.erasure``. Rates are GB of the object (not of shards) per CPU-second; medians over the rounds, in
which all kinds of work take turns. The object is larger than the caches; what is computed goes into a few buffers in turn, as
in the tier. Locations are in memory: a put's shards are dropped,
a get's are copied, so that what is left is the tier's own work.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from keepstep.checkpoint.erasure.coder import Coder
from keepstep.checkpoint.erasure.layout import DEFAULT_BLOCK_BYTES
from keepstep.checkpoint.erasure.locations import Location, Locations
from keepstep.checkpoint.erasure.shards import block_digest
from keepstep.checkpoint.erasure.tier import ErasureTier, Policy
from keepstep.checkpoint.erasure.writing import RING
from keepstep.checkpoint.stores.port import Entry

OBJECT_BYTES = 256 * 1024 * 1024
ROUNDS = 5
CODES = ((4, 2), (8, 3))


class _Shelf:
    """A store in memory. ``keep``: or one that drops what is streamed to it."""

    def __init__(self, name: str) -> None:
        self.name, self.keep, self.objects = name, True, dict[str, bytearray]()

    def writer(self, key: str, size_bytes: int) -> "_ShelfWriter":
        return _ShelfWriter(self, key)

    def read_into(self, key: str, offset: int, view: memoryview) -> None:
        view[:] = memoryview(self.objects[key])[offset : offset + len(view)]

    def list(self, prefix: str) -> Iterator[Entry]:
        return iter([Entry(key, len(data)) for key, data in self.objects.items() if key.startswith(prefix)])


class _ShelfWriter:
    def __init__(self, shelf: _Shelf, key: str) -> None:
        self._shelf, self._key, self._data = shelf, key, bytearray()

    def write(self, block: Any) -> None:
        if self._shelf.keep:
            self._data += block

    def finish(self) -> None:
        if self._shelf.keep:
            self._shelf.objects[self._key] = self._data


def measure() -> dict[str, Any]:
    """Per code: GB per CPU-second, and for coding and digests the share of a core that 1 GB/s of objects takes."""
    content = np.random.default_rng(1).integers(0, 256, OBJECT_BYTES, np.uint8)
    result: dict[str, Any] = {"implementation": Coder(1, 1).implementation, "block_bytes": DEFAULT_BLOCK_BYTES}
    for data, parity in CODES:
        result[f"{data}+{parity}"] = _measure_code(data, parity, content)
    return result


def _measure_code(data: int, parity: int, content: "np.ndarray[Any, Any]") -> dict[str, float]:
    coder, target = Coder(data, parity), np.ones_like(content)
    stripe_bytes = data * DEFAULT_BLOCK_BYTES
    stripes = content[: content.nbytes // stripe_bytes * stripe_bytes].reshape(-1, data, DEFAULT_BLOCK_BYTES)
    coded = np.ones((len(stripes), parity, DEFAULT_BLOCK_BYTES), np.uint8)
    rebuilt = np.ones((RING, parity, DEFAULT_BLOCK_BYTES), np.uint8)
    lost = [*range(parity)]
    for n, stripe in enumerate(stripes):
        coder.encode([*stripe], [*coded[n]])

    def decode(n: int) -> None:
        present = {shard: stripes[n, shard] for shard in range(parity, data)}
        coder.reconstruct(present | {data + p: coded[n, p] for p in range(parity)}, lost, [*rebuilt[n % RING]])

    def digest(n: int) -> None:
        for block in (*stripes[n], *coded[n]):
            block_digest(block)

    every = range(len(stripes))
    shelves = [_Shelf(f"shelf-{n}") for n in range(data + parity)]
    places = Locations(Location(shelf.name, shelf.name, shelf) for shelf in shelves)  # type: ignore[arg-type]
    tier = ErasureTier(places, Policy(data=data, parity=parity))
    tier.put("kept", content, content.nbytes)
    for shelf in shelves:
        shelf.keep = False
    work: dict[str, Callable[[], Any]] = {
        "copy": lambda: np.copyto(target, content),
        "encode": lambda: [coder.encode([*stripes[n]], [*rebuilt[n % RING]]) for n in every],
        "decode": lambda: [decode(n) for n in every],
        "digest": lambda: [digest(n) for n in every],
        "put": lambda: tier.put("dropped", content, content.nbytes),
        "get": lambda: tier.get_into("kept", 0, target.data),
    }
    return _summary(work, content.nbytes)


def _summary(work: dict[str, Callable[[], Any]], size_bytes: int) -> dict[str, float]:
    rates: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(ROUNDS):
        for name, act in work.items():
            began = time.process_time()
            act()
            rates[name].append(size_bytes / (time.process_time() - began) / 1e9)
    result = {f"{name}_gb_per_cpu_s": statistics.median(taken) for name, taken in rates.items()}
    for name in ("encode", "digest"):
        result[f"{name}_percent_of_core_per_gb_s"] = 100 / result[f"{name}_gb_per_cpu_s"]
        result[f"{name}_to_copy"] = result[f"{name}_gb_per_cpu_s"] / result["copy_gb_per_cpu_s"]
    return {name: round(figure, 2) for name, figure in result.items()}


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))

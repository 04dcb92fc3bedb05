"""What sealing costs: GB per CPU-second of seal and open beside a memory copy of the same chunks, in one run.

``python -m bench.checkpoint.sealing``. Chunks of 8 MiB out of 512 MiB, so that the sources do not sit in a cache; the
targets rotate over four buffers, as a writer's do. Sealing and opening alternate with the copy; medians over the rounds.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from keepstep.checkpoint.keys.port import KEY_BYTES, Context, Secret
from keepstep.checkpoint.keys.sealing import ChunkSealer

CHUNK_BYTES = 8 * 1024 * 1024
CHUNKS = 64
ROUNDS = 7
TARGETS = 4


def measure() -> dict[str, float]:
    """Rates in GB per CPU-second, their ratios to the copy, and microseconds for the smallest chunk and for a pack's key."""
    plain = np.random.default_rng(1).integers(0, 256, (CHUNKS, CHUNK_BYTES), np.uint8)
    targets = [memoryview(bytearray(CHUNK_BYTES)) for _ in range(TARGETS)]
    stored = np.empty_like(plain)
    session = Secret(os.urandom(KEY_BYTES))
    tags = [_sealer(session, 0).seal(n, plain[n], memoryview(stored[n])) for n in range(CHUNKS)]
    opener, rates = _sealer(session, 0), dict[str, list[float]](copy=[], seal=[], open=[])
    for number in range(1, 1 + ROUNDS):
        sealer = _sealer(session, number)
        rates["copy"].append(_rate(lambda n: np.copyto(np.frombuffer(targets[n % TARGETS], np.uint8), plain[n])))
        rates["seal"].append(_rate(lambda n, sealer=sealer: sealer.seal(n, plain[n], targets[n % TARGETS])))
        rates["open"].append(_rate(lambda n: opener.open(n, stored[n], tags[n], targets[n % TARGETS])))
    result = {f"{name}_gb_per_cpu_s": statistics.median(taken) for name, taken in rates.items()}
    for name in ("seal", "open"):
        result[f"{name}_to_copy"] = result[f"{name}_gb_per_cpu_s"] / result["copy_gb_per_cpu_s"]
    small, out = _sealer(session, ROUNDS + 1), memoryview(bytearray(4096))
    result["seal_4_kib_us"] = _cpu_us(lambda n: small.seal(n, plain[0][:4096], out))
    result["new_pack_us"] = _cpu_us(lambda n: _sealer(session, n))
    return {name: round(figure, 3) for name, figure in result.items()}


def _sealer(session: Secret, number: int) -> ChunkSealer:
    return ChunkSealer(session, Context(tenant="t", job="bench", generation=1, step=number, pack=f"{number:032x}"))


def _rate(work: Callable[[int], Any]) -> float:
    """GB per CPU-second over all chunks."""
    began = time.process_time()
    for number in range(CHUNKS):
        work(number)
    return CHUNKS * CHUNK_BYTES / (time.process_time() - began) / 1e9


def _cpu_us(work: Callable[[int], Any], times: int = 5000) -> float:
    began = time.process_time()
    for number in range(times):
        work(number)
    return (time.process_time() - began) / times * 1e6


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))

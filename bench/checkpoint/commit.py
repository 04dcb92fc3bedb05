"""What a commit of a large job costs: 4,096 ranks with 50 sharded tensors each, receipts in a directory, one committer.

``python -m bench.checkpoint.commit [directory]``. Receipts and empty packs stand in a temporary directory (best on tmpfs: the
disk is not what is asked about). ``coverage_s`` is the check of all shards alone; ``last_receipt_s`` is from the moment the
last receipt is there to the manifest, by a committer that has read the others while they came in; ``commit_s`` is the
manifest and the record on top; ``cold_s`` is the manifest by a committer that starts only then. Medians over the rounds.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keepstep.checkpoint.format.records import Extent, PackEntry, Part, Receipt, Sharded, seal
from keepstep.checkpoint.repository.coverage import check_coverage
from keepstep.checkpoint.repository.log import CommitLog
from keepstep.checkpoint.repository.save import Save
from keepstep.checkpoint.repository.saving import Saver
from keepstep.checkpoint.stores.posix import PosixStore

GRID = (64, 64)
TENSORS = 50
SIDE = 4096
PACK_BYTES = 8192
ROUNDS = 3


def _receipt(save: Save, rank: int) -> Receipt:
    row, column = divmod(rank, GRID[1])
    size = (SIDE // GRID[0], SIDE // GRID[1])
    box = Extent((row * size[0], column * size[1]), size)
    digest, pack = f"xxh3-{rank:032x}", f"{rank:032x}"
    sharded = tuple(Sharded(f"layers.{n}.weight", "bfloat16", (SIDE, SIDE), box) for n in range(TENSORS))
    entry = PackEntry(
        key=f"{save.prefix()}{pack}.pack", id=pack, size_bytes=PACK_BYTES, footer=f"{rank:064x}", groups=(digest,),
        generation=save.generation, step=save.step,
    )  # fmt: skip
    return Receipt(
        job=save.job, generation=save.generation, step=save.step, attempt=save.attempt, world_size=save.world_size,
        rank=rank, part=Part(groups={"model": digest}, sharded={"model": sharded}), sizes_bytes={digest: PACK_BYTES},
        packs=(entry,),
    )  # fmt: skip


def _put(directory: Path, save: Save, receipt: Receipt) -> None:
    """As a rank would leave it, less the syncs."""
    folder = directory / save.prefix() / "receipts"
    (folder / str(receipt.rank)).write_bytes(seal(receipt))
    with open(directory / receipt.packs[0].key, "wb") as file:
        file.truncate(PACK_BYTES)


def _timed(act: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = act()
    return time.perf_counter() - began, result


def _round(directory: Path, number: int) -> dict[str, float]:
    save = Save(job="bench", generation=1, step=number, attempt="a0", world_size=GRID[0] * GRID[1])
    store = PosixStore(directory)
    (directory / save.prefix() / "receipts").mkdir(parents=True)
    receipts = [_receipt(save, rank) for rank in range(save.world_size)]
    coverage_s, _ = _timed(lambda: check_coverage([receipt.part for receipt in receipts]))
    for receipt in receipts[:-1]:
        _put(directory, save, receipt)
    committer = Saver(store, CommitLog(store), None, "")
    reading_s, absent = _timed(lambda: committer.manifest_if_complete(save))
    assert absent is None
    _put(directory, save, receipts[-1])
    last_s, manifest = _timed(lambda: committer.manifest_if_complete(save))
    assert manifest is not None
    commit_s, _ = _timed(lambda: committer.commit(save, manifest))
    cold = Saver(store, CommitLog(store), None, "")
    cold_s, again = _timed(lambda: cold.manifest_if_complete(save))
    assert again is not None
    return {
        "coverage_s": coverage_s, "reading_all_but_one_s": reading_s, "last_receipt_s": last_s, "commit_s": commit_s,
        "cold_s": cold_s,
    }  # fmt: skip


def measure(directory: str | None = None) -> dict[str, float]:
    """Medians in seconds, see the module; ``manifest_mb`` is the size of the manifest."""
    with tempfile.TemporaryDirectory(dir=directory) as place:
        rounds = [_round(Path(place), number) for number in range(ROUNDS)]
        result = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
        [manifest, *_] = Path(place).rglob("*.manifest")
        return result | {"manifest_mb": manifest.stat().st_size / 1e6}


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:2]), indent=1))

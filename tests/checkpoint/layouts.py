"""How the tests of sharded state cut tensors, and jobs of some ranks that save them."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keepstep.checkpoint import Repository, flatten
from keepstep.checkpoint.format.records import Extent
from keepstep.checkpoint.repository.pack_writer import Group
from keepstep.checkpoint.repository.repository import Commit
from keepstep.checkpoint.repository.save import Save
from keepstep.checkpoint.state.blob import digest_chunks, pack
from keepstep.checkpoint.state.shards import Shard
from keepstep.checkpoint.stores.posix import PosixStore


def grid(shape: Sequence[int], counts: Sequence[int]) -> list[Extent]:
    """Boxes of a mesh, cut as torch cuts: the last ones may be smaller, or empty."""
    axes = []
    for size, count in zip(shape, counts, strict=True):
        chunk = -(-size // count)
        axes.append([(min(n * chunk, size), min((n + 1) * chunk, size)) for n in range(count)])
    return [
        Extent(tuple(begin for begin, _ in cell), tuple(end - begin for begin, end in cell))
        for cell in itertools.product(*axes)
    ]


def at(box: Extent) -> tuple[slice, ...]:
    """The elements of a box in the whole."""
    return tuple(slice(begin, begin + size) for begin, size in zip(box.offset, box.shape, strict=True))


def part(whole: Any, box: Extent) -> Shard:
    return Shard(whole[at(box)], tuple(whole.shape), box.offset)


def save(directory: Path, step: int, ranks: Sequence[Mapping[str, Any]], keys: Any = None) -> Commit:
    """Commit one save of a job; ``ranks``: group name -> tree of each rank."""
    repository = Repository(PosixStore(directory), "job", keys=keys)
    name = Save(job="job", generation=1, step=step, attempt="a0", world_size=len(ranks))
    for rank, trees in enumerate(ranks):
        blobs = {group: pack(flatten(tree)) for group, tree in trees.items()}
        repository.write_part(name, rank, {group: Group(blob, digest_chunks(blob)) for group, blob in blobs.items()})
    commit = repository.try_commit(name)
    assert commit is not None
    return commit

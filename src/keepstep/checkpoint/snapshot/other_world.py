"""Restoring into another world through the snapshot server: the parts of all saved ranks, from memory, peers or a store, put
together anew. Owns how blobs in memory are read like packs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from keepstep.checkpoint.format.pack import Chunk
from keepstep.checkpoint.format.records import Manifest, Part
from keepstep.checkpoint.reshard.load import Policy, Resharded, Targets, reshard
from keepstep.checkpoint.snapshot.client import SnapshotClient
from keepstep.checkpoint.snapshot.messages import FindPart
from keepstep.checkpoint.state.blob import Chunks, digest_chunks, index_of
from keepstep.checkpoint.state.shards import shards_of


def restore_resharded(
    client: SnapshotClient, request: FindPart, saved_world_size: int, targets: Targets, policy: Policy
) -> Resharded:
    """The state of the client's rank out of a state that ``saved_world_size`` ranks saved. ``request``: which, of any rank.

    All parts are in this process's memory meanwhile, each group once. Raises StateInvalid.
    """
    blobs: dict[str, np.ndarray[Any, Any]] = {}
    cuts: dict[str, Chunks] = {}
    parts = []
    for rank in range(saved_world_size):
        groups = {}
        for source, blob in client.fetch(replace(request, rank=rank)):
            groups[source.name] = source.digest
            if source.digest not in blobs:
                blobs[source.digest], cuts[source.digest] = blob, digest_chunks(blob)
        sharded = {name: shards_of(index_of(blobs[digest])) for name, digest in groups.items()}
        parts.append(Part(groups=groups, sharded={name: found for name, found in sharded.items() if found}))
    manifest = Manifest(
        job="", generation=request.generation, step=request.step, attempt="", world_size=saved_world_size,
        ranks=tuple(parts), sizes_bytes={}, packs=(), parent=0, keepstep="",
    )  # fmt: skip
    return reshard(manifest, _Blobs(blobs, cuts), client.rank, client.world_size, targets, policy)


class _Blobs:
    """Blobs that were verified, as a ``Reader`` of the resharding."""

    def __init__(self, blobs: Mapping[str, "np.ndarray[Any, Any]"], cuts: Mapping[str, Chunks]) -> None:
        self._blobs, self._cuts = blobs, cuts

    def chunks(self, digest: str) -> tuple[Chunk, ...]:
        cut = self._cuts[digest]
        return tuple(
            Chunk(
                pack=digest, number=number, offset=begin, stored_bytes=end - begin, plain_bytes=end - begin,
                plain=cut.digests[number].hex(), stored="",
            )
            for number, (begin, end) in enumerate(cut.ranges())
        )  # fmt: skip

    def read_chunks(self, wanted: Sequence[tuple[Chunk, memoryview]]) -> None:
        for chunk, view in wanted:
            view[:] = self._blobs[chunk.pack].data[chunk.offset : chunk.offset + chunk.plain_bytes]

"""What a DataLoader has handed to the training loop. Owns the knowledge of torch's loader internals; changes nothing.

A loader with workers draws indices from its sampler well ahead of the loop. A position that counts what was *drawn*
would skip the prefetched samples after a restart, so what counts is what was *taken*. torch offers no public way for a
sampler to learn it; the loader's iterator keeps the number of the next batch to return, and it is on the call stack
when it asks its sampler for indices. `keepstep.resumable(loader)` needs none of this and is what the docs recommend.
"""

import sys
from typing import Any, NamedTuple, Protocol

_FRAMES = 12
"""The loader's iterator is three frames up when it pulls an index; more for wrapped batch samplers."""


class Taken(NamedTuple):
    batches: int
    batch_size: int
    drop_last: bool
    """The loader itself drops a last batch that is not full."""


class Counter(Protocol):
    """Tells how much of one iteration over the sampler the training loop has taken."""

    def taken(self) -> Taken: ...


class LoaderCounter:
    """Counts through the iterator of a DataLoader with workers."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        batches = iterator._index_sampler
        self._batch_size = int(getattr(batches, "batch_size", None) or 1)
        self._drop_last = bool(getattr(batches, "drop_last", False))
        if not getattr(iterator, "_in_order", True):
            raise ValueError("a DataLoader with in_order=False cannot be resumed exactly; leave in_order at True")

    def taken(self) -> Taken:
        return Taken(self._iterator._rcvd_idx, self._batch_size, self._drop_last)


def find_counter() -> Counter | None:
    """The counter of the prefetching loader that is iterating over the caller; None if there is none on the stack."""
    loader = sys.modules.get("torch.utils.data.dataloader")
    if loader is None:
        return None
    frame = sys._getframe(1)
    for _ in range(_FRAMES):
        owner = frame.f_locals.get("self")
        if isinstance(owner, loader._MultiProcessingDataLoaderIter):
            return LoaderCounter(owner)
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None

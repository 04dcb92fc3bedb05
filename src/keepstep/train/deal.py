"""How one epoch is dealt to the ranks: pure index arithmetic. Owns no position and no randomness of its own.

A *global batch* is the ``global_batch`` samples that all ranks consume together in one batch. Rank r takes every
``world_size``-th sample of it, starting at r. So the set of samples in global batch k does not depend on the number of
ranks, and a position counted in samples over all ranks means the same at any world size.
"""

import numpy as np
import numpy.typing as npt

Order = npt.NDArray[np.int64]


def local_batch(global_batch: int, rank: int, world_size: int) -> int:
    """Samples of a global batch that fall to ``rank``. The parts of all ranks add up to ``global_batch`` exactly."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not in a world of {world_size}")
    if global_batch < world_size:
        raise ValueError(
            f"a global batch of {global_batch} leaves some of {world_size} ranks without a sample; "
            f"use a global batch of at least {world_size}, or fewer ranks"
        )
    return (global_batch - rank + world_size - 1) // world_size


def epoch_order(length: int, *, shuffle: bool, seed: int, epoch: int) -> Order:
    """The ids of one epoch in the order in which they are consumed; a function of its arguments only."""
    if not shuffle:
        return np.arange(length, dtype=np.int64)
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch])))
    return generator.permutation(length).astype(np.int64, copy=False)


def deal(order: Order, position: int, *, rank: int, world_size: int, global_batch: int, drop_last: bool) -> Order:
    """The ids left for ``rank`` when ``position`` samples of ``order`` are consumed already.

    Every rank gets the same number of batches. Where the rest does not fill a global batch it is dropped
    (``drop_last``), or padded with ids from the start of the order: up to a multiple of ``world_size`` if the global
    batch is one, so that all ranks get equally many samples, else until every rank has one.
    """
    rest = order[position:]
    full = len(rest) // global_batch * global_batch
    mine = rest[:full].reshape(-1, global_batch)[:, rank::world_size].reshape(-1)
    tail = rest[full:]
    if drop_last or not len(tail):
        return mine
    padded = -(-len(tail) // world_size) * world_size if global_batch % world_size == 0 else max(len(tail), world_size)
    tail = np.concatenate([tail, np.resize(order, padded - len(tail))])
    return np.concatenate([mine, tail[rank::world_size]])


def advance(consumed: int, *, rank: int, world_size: int, global_batch: int) -> int:
    """Samples over all ranks that are consumed when this rank has consumed ``consumed``, all ranks being in step."""
    batches, part = divmod(consumed, local_batch(global_batch, rank, world_size))
    return batches * global_batch + min(part * world_size, global_batch)

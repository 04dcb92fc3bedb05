"""A sampler whose position survives. Owns the position in the data; must not look at the data itself.

The position is global: samples of this epoch consumed by all ranks together. It is therefore the same number on every
rank, means the same at another world size, and adds up over any number of restarts within an epoch.
"""

import os
from collections.abc import Iterator
from typing import Any, Protocol

import xxhash

from keepstep.train.deal import Order, advance, deal, epoch_order, local_batch
from keepstep.train.errors import DataStateInvalid
from keepstep.train.prefetch import Counter, find_counter

_FINGERPRINT_IDS = 4096
"""Enough ids to tell two orders apart; hashing a billion of them at every start would be felt."""


class Sized(Protocol):
    def __len__(self) -> int: ...


class ResumableSampler:
    """Deals the indices of a map-style data set to the ranks, and resumes exactly where the training loop stood.

    Use it as ``DataLoader(dataset, sampler=sampler, batch_size=sampler.batch_size)`` and register it with the session.
    Iterating again goes on from the position; a finished epoch is followed by the next one, in another order.
    """

    def __init__(  # noqa: PLR0913 - the parameters of torch's DistributedSampler, and one more
        self,
        data: int | Sized,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        global_batch: int | None = None,
    ) -> None:
        """
        data: the data set, or its length.
        seed: must be equal on all ranks; the order is a function of (seed, epoch) only.
        rank, world_size: position among the data-parallel ranks; default RANK and WORLD_SIZE of the environment.
        drop_last: drop what does not fill a last batch over all ranks, instead of padding with ids from the start.
        global_batch: samples per batch over all ranks, kept constant at any world size; see `batch_size`. Without it
            the ranks take one sample each in turn, and the batch size is the loader's.
        """
        self.length = data if isinstance(data, int) else len(data)
        self.world_size = int(os.environ.get("WORLD_SIZE", "1")) if world_size is None else world_size
        self.rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self._global_batch = global_batch or self.world_size
        self._local_batch = local_batch(self._global_batch, self.rank, self.world_size)
        if self.length < (self._global_batch if drop_last else 1):
            raise ValueError(
                f"{self.length} samples do not make one batch over all ranks; use more data, a smaller global batch, "
                "or drop_last=False"
            )
        self.epoch = 0
        self._start = 0
        self._iteration: _Iteration | None = None

    @property
    def batch_size(self) -> int:
        """This rank's share of the global batch: what to give to the DataLoader. 1 without ``global_batch``."""
        return self._local_batch

    @property
    def position(self) -> int:
        """Samples of this epoch that all ranks together have consumed; ``length`` when the epoch is complete."""
        if self._iteration is None:
            return self._start
        consumed = self._iteration.consumed()
        if consumed is None:
            return self.length
        moved = advance(consumed, rank=self.rank, world_size=self.world_size, global_batch=self._global_batch)
        return min(self._start + moved, self.length)

    @property
    def iterating(self) -> bool:
        """Something has drawn from it already, so that it is too late to restore a position."""
        return self._iteration is not None

    def __len__(self) -> int:
        """Samples of this rank in a whole epoch, padding included."""
        full, tail = divmod(self.length, self._global_batch)
        if self.drop_last or not tail:
            return full * self._local_batch
        even = self._global_batch % self.world_size == 0
        last = (
            -(-tail // self.world_size) if even else len(range(self.rank, max(tail, self.world_size), self.world_size))
        )
        return full * self._local_batch + last

    def __iter__(self) -> Iterator[int]:
        # A generator: an iteration begins with its first draw, so that an iterator made before the state was restored
        # still starts at the restored position.
        yield from self.begin(find_counter())

    def begin(self, counter: Counter | None) -> Iterator[int]:
        """Start an iteration from the position; ``counter`` tells what of it was really taken, None if all drawn is."""
        self._start = self.position
        if self._start >= self.length:
            self.epoch, self._start = self.epoch + 1, 0
        ids = deal(
            self._order(),
            self._start,
            rank=self.rank,
            world_size=self.world_size,
            global_batch=self._global_batch,
            drop_last=self.drop_last,
        )
        self._iteration = _Iteration(ids, counter)
        return self._iteration

    def state_dict(self) -> dict[str, Any]:
        """Equal on all ranks at a step boundary."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "length": self.length,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "order": self._fingerprint(self.seed, self.epoch),
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """Raises DataStateInvalid where ``state`` cannot be the position in this data set; changes nothing."""
        missing = {"epoch", "position", "length", "shuffle", "seed", "order"} - state.keys()
        if missing:
            raise DataStateInvalid(
                f"the saved data position lacks {sorted(missing)}: it is not from a ResumableSampler"
            )
        if state["length"] != self.length:
            raise DataStateInvalid(
                f"the data set has {self.length} samples, the saved position belongs to one of {state['length']}; "
                "resume with the same data, or start in a new checkpoint_dir"
            )
        if state["shuffle"] != self.shuffle:
            raise DataStateInvalid(f"saved with shuffle={state['shuffle']}; resume with the same setting")
        if state["order"] != self._fingerprint(state["seed"], state["epoch"]):
            raise DataStateInvalid(
                "the saved seed gives another shuffle order here (another numpy version?): resuming would repeat and "
                "lose samples; resume with the versions that the run began with"
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.check_state(state)
        self.epoch, self._start, self.seed = state["epoch"], state["position"], state["seed"]
        self._iteration = None

    def _order(self) -> Order:
        return epoch_order(self.length, shuffle=self.shuffle, seed=self.seed, epoch=self.epoch)

    def _fingerprint(self, seed: int, epoch: int) -> str:
        key = (seed, epoch)
        if getattr(self, "_fingerprint_of", None) != key:
            order = epoch_order(self.length, shuffle=self.shuffle, seed=seed, epoch=epoch)
            self._fingerprint_of, self._fingerprint_is = (
                key,
                xxhash.xxh3_64_hexdigest(order[:_FINGERPRINT_IDS].tobytes()),
            )
        return self._fingerprint_is


class _Iteration:
    """One pass over what is left of an epoch."""

    def __init__(self, ids: Order, counter: Counter | None) -> None:
        self._ids, self._counter, self._drawn = ids, counter, 0

    def __iter__(self) -> "_Iteration":
        return self

    def __next__(self) -> int:
        if self._drawn == len(self._ids):
            raise StopIteration
        self._drawn += 1
        return int(self._ids[self._drawn - 1])

    def consumed(self) -> int | None:
        """Samples of this rank that the training loop took in this pass; None when nothing is left to take."""
        if self._counter is None:
            return None if self._drawn == len(self._ids) else self._drawn
        taken = self._counter.taken()
        batches = len(self._ids) // taken.batch_size if taken.drop_last else -(-len(self._ids) // taken.batch_size)
        return None if taken.batches >= batches else taken.batches * taken.batch_size

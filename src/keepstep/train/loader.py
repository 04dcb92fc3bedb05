"""Makes an ordinary DataLoader resumable. Owns the counting of batches; must not change what a batch contains."""

import sys
from collections.abc import Iterator
from typing import Any, Protocol

from keepstep.train.errors import SessionError
from keepstep.train.prefetch import Taken
from keepstep.train.sampler import ResumableSampler

_KEPT = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "persistent_workers",
    "prefetch_factor",
)


class DataLoaderLike(Protocol):
    """A torch DataLoader, or anything of its shape."""

    def __iter__(self) -> Iterator[Any]: ...


class ResumableLoader:
    """A DataLoader over a ResumableSampler that counts what the training loop takes. Made by `resumable`."""

    def __init__(self, loader: Any, sampler: ResumableSampler) -> None:
        self.loader, self.sampler = loader, sampler
        self._taken = 0

    @property
    def iterating(self) -> bool:
        return self.sampler.iterating

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        # A generator: nothing is drawn before the first batch is asked for, so an iterator that was made before the
        # state was restored still starts at the restored position.
        batches = iter(self.loader)
        for batch in batches:
            self._taken += 1
            yield batch

    def taken(self) -> Taken:
        return Taken(self._taken, self.loader.batch_size or 1, self.loader.drop_last)

    def begin(self) -> Iterator[int]:
        """A new iteration over the sampler, counted by this loader."""
        ids = self.sampler.begin(self)
        self._taken = 0
        return ids

    def state_dict(self) -> dict[str, Any]:
        return self.sampler.state_dict()

    def check_state(self, state: dict[str, Any]) -> None:
        self.sampler.check_state(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state)


class _CountedSampler:
    """What the DataLoader sees: the sampler, with the wrapper as its counter."""

    def __init__(self, sampler: ResumableSampler) -> None:
        self._sampler = sampler
        self.owner: ResumableLoader | None = None

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[int]:
        assert self.owner is not None
        return self.owner.begin()


def resumable(loader: Any, *, seed: int = 0) -> Any:
    """The same loader, with a position that survives: give the result to the session and iterate over it.

    A DataLoader with its default samplers, a DistributedSampler or a ResumableSampler is rebuilt over a
    ResumableSampler: with ``shuffle=True`` in an order given by ``seed``, and dealt to the ranks (RANK, WORLD_SIZE).
    A loader that has ``state_dict`` itself (torchdata's StatefulDataLoader) is returned as it is.
    Raises SessionError where the position of a loader cannot be known.
    """
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return loader
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None or not isinstance(loader, torch_data.DataLoader):
        raise SessionError(
            f"resumable() takes a torch DataLoader, not {type(loader).__name__}; give your loader state_dict and "
            "load_state_dict and register it with the session as it is"
        )
    if isinstance(loader.dataset, torch_data.IterableDataset):
        raise SessionError(
            "an IterableDataset has no position that can be set; use torchdata's StatefulDataLoader with a data set "
            "that has state_dict, and register it with the session"
        )
    if not getattr(loader, "in_order", True):
        raise SessionError("a DataLoader with in_order=False cannot be resumed exactly; leave in_order at True")
    return _rebuild(torch_data, loader, seed)


def _rebuild(torch_data: Any, loader: Any, seed: int) -> ResumableLoader:
    sampler = _sampler_like(torch_data, loader, seed)
    counted = _CountedSampler(sampler)
    kept = {name: getattr(loader, name) for name in _KEPT}
    # Its own generator: a DataLoader draws a seed from the default one whenever it is iterated, and a resumed run, that
    # iterates once more than one that was never stopped, would go on with other random numbers.
    generator = loader.generator or sys.modules["torch"].Generator().manual_seed(seed)
    rebuilt = torch_data.DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        sampler=counted,
        drop_last=loader.drop_last,
        generator=generator,
        **kept,
    )
    owner = ResumableLoader(rebuilt, sampler)
    counted.owner = owner
    return owner


def _sampler_like(torch_data: Any, loader: Any, seed: int) -> ResumableSampler:
    """The ResumableSampler that deals as the loader's own sampler does."""
    sampler = loader.sampler
    default_batches = loader.batch_sampler is None or type(loader.batch_sampler) is torch_data.BatchSampler
    if default_batches and isinstance(sampler, ResumableSampler):
        return sampler
    if default_batches and isinstance(sampler, torch_data.DistributedSampler):
        return ResumableSampler(
            len(loader.dataset),
            shuffle=sampler.shuffle,
            seed=sampler.seed,
            rank=sampler.rank,
            world_size=sampler.num_replicas,
            drop_last=sampler.drop_last,
        )
    if default_batches and type(sampler) is torch_data.SequentialSampler:
        return ResumableSampler(len(loader.dataset), shuffle=False, seed=seed)
    if default_batches and type(sampler) is torch_data.RandomSampler and not sampler.replacement:
        return ResumableSampler(len(loader.dataset), shuffle=True, seed=seed)
    raise SessionError(
        f"the position of a {type(sampler).__name__} cannot be known; use keepstep.ResumableSampler, or give your own "
        "sampler state_dict and load_state_dict (counting what the loop has taken) and register it with the session"
    )


def endless(loader: DataLoaderLike) -> Iterator[Any]:
    """Batches without end: epoch after epoch of ``loader``, each in the order that its sampler gives it."""
    while True:
        yield from loader

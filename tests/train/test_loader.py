"""Loaders with and without prefetching workers: what the loop took counts. Owns E3 and E5 through torch's own loaders."""

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, WeightedRandomSampler

from keepstep.train.errors import SessionError
from keepstep.train.loader import ResumableLoader, endless, resumable
from keepstep.train.loop import Session
from keepstep.train.sampler import ResumableSampler

LENGTH, BATCH = 53, 4


class Ids(Dataset[int]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def raw(workers: int, drop_last: bool, persistent: bool = False) -> tuple[Any, Any]:
    sampler = ResumableSampler(LENGTH, seed=3, rank=0, world_size=1)
    loader = DataLoader(
        Ids(),
        batch_size=BATCH,
        sampler=sampler,
        num_workers=workers,
        drop_last=drop_last,
        persistent_workers=persistent,
    )
    return loader, sampler


def wrapped(workers: int, drop_last: bool, persistent: bool = False) -> tuple[Any, Any]:
    plain = DataLoader(
        Ids(), batch_size=BATCH, shuffle=True, num_workers=workers, drop_last=drop_last, persistent_workers=persistent
    )
    loader = resumable(plain, seed=3)
    return loader, loader


@pytest.mark.parametrize(
    ("workers", "make", "drop_last"), [(0, raw, False), (0, wrapped, True), (2, raw, True), (2, wrapped, False)]
)
def test_E3_E5_what_the_loop_took_counts_whatever_was_prefetched(
    workers: int, make: Callable[..., tuple[Any, Any]], drop_last: bool
) -> None:
    loader, state = make(workers, drop_last)
    batches = endless(loader)
    expected = [next(batches).tolist() for _ in range(23)]
    got: list[list[int]] = []
    saved = make(0, drop_last)[1].state_dict()
    for count in (3, 4, 16):
        loader, state = make(workers, drop_last)
        state.load_state_dict(saved)
        batches = endless(loader)
        got += [next(batches).tolist() for _ in range(count)]
        saved = state.state_dict()
    assert got == expected
    per_epoch = [index for batch in got[: LENGTH // BATCH] for index in batch]
    assert len(set(per_epoch)) == len(per_epoch) == LENGTH // BATCH * BATCH


def test_E3_persistent_workers_keep_the_count() -> None:
    for make in (raw, wrapped):
        loader, state = make(2, False, persistent=True)
        batches = endless(loader)
        for _ in range(20):
            next(batches)
        expected = [next(batches).tolist() for _ in range(3)]
        again, position = make(0, False)
        loader, state = make(2, False, persistent=True)
        batches = endless(loader)
        for _ in range(20):
            next(batches)
        position.load_state_dict(state.state_dict())
        resumed = endless(again)
        assert [next(resumed).tolist() for _ in range(3)] == expected


def test_iterating_draws_no_number_of_the_default_generator() -> None:
    loader, _ = wrapped(0, False)
    before = torch.get_rng_state()
    next(iter(loader))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_iterator_made_before_the_restore_starts_at_the_restored_position() -> None:
    for make in (raw, wrapped):
        loader, state = make(0, False)
        batches = endless(loader)
        expected = [next(batches).tolist() for _ in range(6)][5]
        loader, state = make(0, False)
        batches = endless(loader)
        for _ in range(5):
            next(batches)
        saved = state.state_dict()
        loader, state = make(0, False)
        iterator = iter(loader)
        state.load_state_dict(saved)
        assert next(iterator).tolist() == expected


def test_settings_of_the_loader_and_its_distributed_sampler_are_kept() -> None:
    sampler = DistributedSampler(Ids(), num_replicas=3, rank=1, seed=9, drop_last=True)
    loader = resumable(DataLoader(Ids(), batch_size=2, sampler=sampler, collate_fn=list))
    assert isinstance(loader, ResumableLoader)
    kept = loader.sampler
    assert (kept.rank, kept.world_size, kept.seed, kept.drop_last, kept.shuffle) == (1, 3, 9, True, True)
    assert all(isinstance(batch, list) and len(batch) <= 2 for batch in loader)
    assert len(loader) == -(-(LENGTH // 3) // 2)
    plain = resumable(DataLoader(Ids(), batch_size=BATCH))
    assert [index for batch in plain for index in batch.tolist()] == list(range(LENGTH))


def test_loaders_without_a_position_are_refused_with_advice() -> None:
    with pytest.raises(SessionError, match="StatefulDataLoader"):
        resumable(DataLoader(Stream()))
    with pytest.raises(SessionError, match="WeightedRandomSampler"):
        resumable(DataLoader(Ids(), sampler=WeightedRandomSampler([1.0] * LENGTH, LENGTH)))
    with pytest.raises(SessionError, match="in_order"):
        resumable(DataLoader(Ids(), num_workers=1, in_order=False))
    with pytest.raises(SessionError, match="not list"):
        resumable([1, 2])


@pytest.mark.skipif(importlib.util.find_spec("torchdata") is None, reason="torchdata is not installed")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning")
def test_E3_a_stateful_loader_of_torchdata_is_registered_as_it_is(
    workers: int, in_directory: Callable[..., Session]
) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make() -> Any:
        torch.manual_seed(1)
        loader = StatefulDataLoader(Ids(), batch_size=BATCH, shuffle=True, num_workers=workers)
        assert resumable(loader) is loader
        return loader

    def run(loader: Any, directory: str, die_in: int | None = None) -> list[list[int]]:
        got = []
        session = in_directory({"data": loader}, directory=directory)
        steps = session.steps(20)
        batches = endless(loader)
        for step in steps:
            if step == die_in:
                break
            got.append(next(batches).tolist())
        return got

    expected = run(make(), "whole")
    assert run(make(), "parts", die_in=5) + run(make(), "parts", die_in=11) + run(make(), "parts") == expected

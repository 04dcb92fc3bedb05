"""Data position: no id is lost or seen twice, whatever is restarted when. Owns cases E2, E3, E5, E7 and E8."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.train.deal import deal, epoch_order, local_batch
from keepstep.train.errors import DataStateInvalid
from keepstep.train.sampler import ResumableSampler


def samplers(
    length: int, world_size: int, state: dict[str, Any] | None = None, **options: Any
) -> list[ResumableSampler]:
    made = [ResumableSampler(length, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    for sampler in made:
        if state is not None:
            sampler.load_state_dict(json.loads(json.dumps(state)))
    return made


def take(streams: list[Iterator[int]], batches: int, sizes: list[int]) -> list[int]:
    """The ids that all ranks draw in up to ``batches`` batches of these sizes."""
    seen: list[int] = []
    for _ in range(batches):
        for stream, size in zip(streams, sizes, strict=True):
            seen.extend(islice(stream, size))
    return seen


@given(
    length=st.integers(1, 200),
    worlds=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 20)), min_size=1, max_size=5),
    shuffle=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_E3_E5_each_id_once_per_epoch_over_any_restarts_and_sizes(
    length: int, worlds: list[tuple[int, int]], shuffle: bool, seed: int
) -> None:
    state: dict[str, Any] | None = None
    seen: list[int] = []
    for world_size, batches in [*worlds, (worlds[-1][0], length + 1)]:
        group = samplers(length, world_size, state, shuffle=shuffle, seed=seed)
        if group[0].position >= length:
            break
        seen += take([iter(sampler) for sampler in group], batches, [1] * world_size)
        states = [sampler.state_dict() for sampler in group]
        assert all(each == states[0] for each in states)
        state = states[0]
    assert state is not None and state["epoch"] == 0 and state["position"] == length
    counts = Counter(seen)
    assert set(counts) == set(range(length))
    # Only the padding of a last uneven batch may come again.
    assert sum(counts.values()) - length < max(size for size, _ in worlds)


@given(length=st.integers(1, 300), world_size=st.integers(1, 8), position=st.integers(0, 300), drop_last=st.booleans())
def test_E8_all_ranks_get_equally_many(length: int, world_size: int, position: int, drop_last: bool) -> None:
    order = epoch_order(length, shuffle=True, seed=1, epoch=0)
    parts = [
        deal(order, min(position, length), rank=r, world_size=world_size, global_batch=world_size, drop_last=drop_last)
        for r in range(world_size)
    ]
    assert len({len(part) for part in parts}) == 1
    dealt = [int(index) for part in parts for index in part]
    left = max(length - position, 0)
    assert len(dealt) - left < world_size
    if drop_last:
        assert len(dealt) == left // world_size * world_size == len(set(dealt))


def test_E5_E8_four_to_three_to_four_ranks() -> None:
    group = samplers(100, 4, seed=3)
    seen = take([iter(sampler) for sampler in group], 5, [2] * 4)
    group = samplers(100, 3, group[0].state_dict(), seed=3)
    seen += take([iter(sampler) for sampler in group], 4, [2] * 3)
    group = samplers(100, 4, group[0].state_dict(), seed=3)
    seen += take([iter(sampler) for sampler in group], 100, [2] * 4)
    assert sorted(seen) == list(range(100))


def test_E2_the_order_after_a_resume_is_the_saved_one() -> None:
    whole = samplers(50, 2, seed=7)
    expected = [list(sampler) for sampler in whole]
    begun = samplers(50, 2, seed=7)
    take([iter(sampler) for sampler in begun], 10, [1, 1])
    # A script that resumes with another seed still gets the order that the run began with.
    resumed = samplers(50, 2, begun[0].state_dict(), seed=99)
    assert [list(sampler) for sampler in resumed] == [ids[10:] for ids in expected]
    second_epoch = [list(sampler) for sampler in resumed]
    assert second_epoch == [list(sampler) for sampler in whole]
    assert second_epoch != expected


@given(
    length=st.integers(8, 120), batches=st.integers(0, 10), before=st.integers(1, 6), after=st.integers(1, 6),
    global_batch=st.integers(6, 12),
)  # fmt: skip
def test_E7_a_declared_global_batch_stays_the_same_set_at_any_world_size(
    length: int, batches: int, before: int, after: int, global_batch: int
) -> None:
    order = [int(index) for index in epoch_order(length, shuffle=True, seed=0, epoch=0)]
    group = samplers(length, before, global_batch=global_batch)
    seen = take([iter(s) for s in group], batches, [s.batch_size for s in group])
    state = group[0].state_dict()
    if state["position"] >= length:
        assert set(seen) == set(order)
        return
    assert sorted(seen) == sorted(order[: state["position"]])
    group = samplers(length, after, state, global_batch=global_batch)
    streams = [iter(s) for s in group]
    at = batches * global_batch
    while at + global_batch <= length:
        got = take(streams, 1, [s.batch_size for s in group])
        assert sorted(got) == sorted(order[at : at + global_batch])
        at += global_batch


@given(world_size=st.integers(1, 16), extra=st.integers(0, 100))
def test_E7_local_batches_add_up(world_size: int, extra: int) -> None:
    parts = [local_batch(world_size + extra, rank, world_size) for rank in range(world_size)]
    assert sum(parts) == world_size + extra
    assert max(parts) - min(parts) <= 1


def test_E7_a_global_batch_below_the_world_size_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 4"):
        local_batch(3, 0, 4)


@given(
    length=st.integers(1, 100), world_size=st.integers(1, 5), batch=st.integers(1, 5), extra=st.integers(0, 9),
    drop_last=st.booleans(),
)  # fmt: skip
def test_E8_length_is_what_an_epoch_gives(
    length: int, world_size: int, batch: int, extra: int, drop_last: bool
) -> None:
    global_batch = world_size * batch + extra
    if drop_last and length < global_batch:
        with pytest.raises(ValueError, match="do not make one batch"):
            samplers(length, world_size, global_batch=global_batch, drop_last=True)
        return
    group = samplers(length, world_size, global_batch=global_batch, drop_last=drop_last)
    drawn = [list(sampler) for sampler in group]
    assert [len(ids) for ids in drawn] == [len(sampler) for sampler in group]
    batches = {-(-len(ids) // sampler.batch_size) for ids, sampler in zip(drawn, group, strict=True)}
    assert len(batches) == 1


def test_a_second_pass_goes_on_after_a_broken_off_one() -> None:
    sampler = ResumableSampler(10, shuffle=False, rank=0, world_size=1)
    assert list(islice(sampler, 4)) == [0, 1, 2, 3]
    assert sampler.position == 4
    assert list(sampler) == list(range(4, 10))
    assert sampler.state_dict()["position"] == 10
    assert list(sampler) == list(range(10))
    assert sampler.epoch == 1


def test_a_position_in_other_data_is_refused_and_changes_nothing() -> None:
    sampler = ResumableSampler(10, rank=0, world_size=1)
    iterator = iter(sampler)
    next(iterator)
    state = sampler.state_dict()
    other = ResumableSampler(11, rank=0, world_size=1)
    before = other.state_dict()
    with pytest.raises(DataStateInvalid, match="11 samples"):
        other.load_state_dict(state)
    with pytest.raises(DataStateInvalid, match="shuffle"):
        ResumableSampler(10, shuffle=False, rank=0, world_size=1).load_state_dict(state)
    with pytest.raises(DataStateInvalid, match="another shuffle order"):
        ResumableSampler(10, rank=0, world_size=1).load_state_dict({**state, "order": "0"})
    with pytest.raises(DataStateInvalid, match="lacks"):
        other.load_state_dict({"epoch": 0})
    assert other.state_dict() == before

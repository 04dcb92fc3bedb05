"""In what two checkpoints differ, and one checkpoint of many ranks as one state."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from keepstep.checkpoint import Repository
from keepstep.checkpoint.format.pack import Chunk
from keepstep.checkpoint.reshard.difference import Difference, Numbers, Side, differences
from keepstep.checkpoint.reshard.whole import load_whole
from keepstep.checkpoint.state.leaves import CHUNK_BYTES
from keepstep.checkpoint.state.shards import Shard
from keepstep.checkpoint.stores.posix import PosixStore

from .layouts import grid, part, save


class CountingReader:
    """A reader of packs that notes what is read of them."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.read: list[Chunk] = []

    def chunks(self, digest: str) -> tuple[Chunk, ...]:
        chunks: tuple[Chunk, ...] = self._reader.chunks(digest)
        return chunks

    def read_chunks(self, wanted: Sequence[tuple[Chunk, memoryview]]) -> None:
        self.read += [chunk for chunk, _ in wanted]
        self._reader.read_chunks(wanted)


def sides(directory: Path, first: Sequence[Any], second: Sequence[Any]) -> tuple[Side, Side]:
    """Two checkpoints; each is the groups of its ranks."""
    keys = [save(directory, step, ranks).key for step, ranks in ((1, first), (2, second))]
    repository = Repository(PosixStore(directory), "job")
    manifests = [repository.manifest(key) for key in keys]
    left, right = (Side(manifest, CountingReader(repository.reader(manifest))) for manifest in manifests)
    return left, right


def compared(directory: Path, first: Any, second: Any) -> list[Difference]:
    """Of two checkpoints of one rank with one group."""
    return list(differences(*sides(directory, [{"g": first}], [{"g": second}]), (0,)))


def test_parts_that_are_cut_otherwise_are_told_as_boxes(tmp_path: Path) -> None:
    weights = np.arange(8.0)
    cuts = ((3, 5), (4, 4))
    ranks = [
        [{"g": {"w": Shard(weights[:left], (8,), (0,))}}, {"g": {"w": Shard(weights[left:], (8,), (left,))}}]
        for left, _ in cuts
    ]
    found = list(differences(*sides(tmp_path, *ranks), (0, 1)))
    assert [(one.place, one.kind, one.rank) for one in found] == [("w", "box", 0), ("w", "box", 1)]
    assert found[1].second == "<f8 (4,) at (4,) of (8,)"


def test_equal_states_do_not_differ(tmp_path: Path) -> None:
    state = {"w": np.arange(5.0), "n": [1, (2, None)], "nan": float("nan")}
    assert compared(tmp_path, state, dict(state)) == []


@pytest.mark.parametrize(
    ("first", "second", "kind", "place"),
    [
        ({"a": 1}, {"a": 2}, "values", "a"),
        ({"a": 1}, {"a": True}, "type", "a"),
        ({"a": [1, 2]}, {"a": (1, 2)}, "type", "a"),
        ({"a": 1, "b": 2}, {"a": 1}, "only in the first", "b"),
        ({"a": 1}, {"a": 1, "b": {"c": 2}}, "only in the second", "b.c"),
        ({"a": np.zeros(3)}, {"a": np.zeros(4)}, "type", "a"),
        ({"a": np.zeros(3)}, {"a": np.zeros(3, np.float32)}, "type", "a"),
        ({"a": np.zeros(3)}, {"a": torch.zeros(3, dtype=torch.float64)}, "type", "a"),
        ({"a": np.zeros(3)}, {"a": 0.0}, "type", "a"),
        ({"a": Shard(np.zeros(2), (2,), (0,))}, {"a": np.zeros(2)}, "type", "a"),
    ],
)
def test_what_differs_is_named(tmp_path: Path, first: Any, second: Any, kind: str, place: str) -> None:
    found = compared(tmp_path, first, second)
    assert ("g", kind, place) in [(one.group, one.kind, one.place) for one in found]
    assert len(found) == 1


@pytest.mark.parametrize("dtype", ["<f8", ">f4", "<f2", "<i8", "|u1", "|b1", "<c16", "bfloat16", "float8_e4m3fn"])
def test_numbers_of_every_type_are_subtracted(tmp_path: Path, dtype: str) -> None:
    if dtype in ("bfloat16", "float8_e4m3fn"):
        first: Any = torch.zeros(100, dtype=getattr(torch, dtype))
        second: Any = first.clone()
    else:
        first = np.zeros(100, np.dtype(dtype))
        second = first.copy()
    second[3], second[7] = 1, 1
    [one] = compared(tmp_path, {"w": first}, {"w": second})
    assert one.numbers == Numbers(elements=100, differing=2, not_finite=0, max_abs=1.0)


def test_text_has_no_distance(tmp_path: Path) -> None:
    words = np.array(["abc"] * 1_000_000)
    others = words.copy()
    others[-2:] = "xyz"
    [one] = compared(tmp_path, {"w": words}, {"w": others})
    assert one.numbers == Numbers(elements=1_000_000, differing=2, not_finite=0, max_abs=None)


def test_values_that_are_not_finite_are_counted_apart(tmp_path: Path) -> None:
    first, second = np.zeros(10), np.zeros(10)
    second[:3] = np.nan, np.inf, -2.5
    first[4], second[5] = 0.0, -0.0
    [one] = compared(tmp_path, {"w": first}, {"w": second})
    assert one.numbers == Numbers(elements=10, differing=4, not_finite=2, max_abs=2.5)


def test_only_chunks_that_differ_are_read(tmp_path: Path) -> None:
    first = np.zeros(4 * CHUNK_BYTES // 8 + 5)
    second = first.copy()
    second[2 * CHUNK_BYTES // 8] = 3.0
    left, right = sides(tmp_path, [{"g": {"w": first, "same": first + 1}}], [{"g": {"w": second, "same": first + 1}}])
    [one] = differences(left, right, (0,))
    assert one.numbers == Numbers(elements=len(first), differing=1, not_finite=0, max_abs=3.0)
    for side in (left, right):
        assert isinstance(side.reader, CountingReader)
        assert [chunk.plain_bytes for chunk in side.reader.read].count(CHUNK_BYTES) == 1
        assert len(side.reader.read) == 2, "that chunk, and the index"


def test_ranks_with_the_same_two_contents_are_told_once(tmp_path: Path) -> None:
    first = [{"model": {"w": np.zeros(3)}, "own": {"rank": rank}} for rank in range(3)]
    second = [{"model": {"w": np.ones(3)}, "own": {"rank": rank + (rank == 2)}} for rank in range(3)]
    found = list(differences(*sides(tmp_path, first, second), (0, 1, 2)))
    assert [(one.group, one.rank, one.place) for one in found] == [("model", 0, "w"), ("own", 2, "rank")]


def test_a_group_that_one_of_them_lacks_is_named(tmp_path: Path) -> None:
    found = list(differences(*sides(tmp_path, [{"a": {}, "b": {"x": 1}}], [{"a": {}, "c": {}}]), (0,)))
    assert [(one.group, one.kind) for one in found] == [("b", "only in the first"), ("c", "only in the second")]


# ---- one state of many ranks


def whole(directory: Path, ranks: Sequence[Any]) -> dict[str, Any]:
    commit = save(directory, 7, ranks)
    return load_whole(Repository(PosixStore(directory), "job"), commit.key)


def test_shards_are_put_together(tmp_path: Path) -> None:
    weights = np.arange(7.0 * 5).reshape(7, 5)
    ranks = [{"model": {"layer": [{"w": part(weights, box)}], "b": np.ones(3)}} for box in grid((7, 5), (2, 2))]
    groups = whole(tmp_path, ranks)
    assert list(groups) == ["model"]
    assert groups["model"]["layer"][0]["w"].tobytes() == weights.tobytes()
    assert groups["model"]["b"].tobytes() == np.ones(3).tobytes()


def test_what_ranks_have_otherwise_is_kept_for_each(tmp_path: Path) -> None:
    ranks = [
        {"model": {"w": np.arange(9.0)}, "own": {"rng": np.arange(4) + rank, "seen": rank // 2, "step": 5, "log": []}}
        for rank in range(3)
    ]
    groups = whole(tmp_path, ranks)
    assert set(groups) == {"model", "own", "own.rank1", "own.rank2"}
    assert groups["own"]["rng"].tolist() == [0, 1, 2, 3]
    assert set(groups["own.rank1"]) == {"rng"}
    assert groups["own.rank2"]["rng"].tolist() == [2, 3, 4, 5]
    assert groups["own.rank2"]["seen"] == 1


def test_layers_that_only_some_ranks_have_are_in_it_once(tmp_path: Path) -> None:
    """Two pipeline stages, each cut in two."""
    first, second = np.arange(8.0), np.arange(8.0) + 100
    boxes = grid((8,), (2,))
    ranks = [{"model": {"stage0": {"w": part(first, box)}, "n": 1}} for box in boxes]
    ranks += [{"model": {"stage1": {"w": part(second, box), "b": [np.ones(2)]}, "n": 1}} for box in boxes]
    groups = whole(tmp_path, ranks)
    assert groups["model"]["stage0"]["w"].tolist() == first.tolist()
    assert groups["model.rank2"]["stage1.w"].tolist() == second.tolist()
    assert groups["model.rank2"]["stage1.b.0"].tolist() == [1, 1]
    assert set(groups) == {"model", "model.rank2", "model.rank3"}
    assert set(groups["model.rank3"]) == {"stage1.b.0"}

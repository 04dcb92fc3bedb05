"""Another world: parts put together bit for bit from whoever saved them, and what is refused instead of guessed."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.warm import Warm

from keepstep.checkpoint import Repository, StateInvalid
from keepstep.checkpoint.errors import KeyMissing
from keepstep.checkpoint.format.pack import Chunk
from keepstep.checkpoint.format.records import Extent, Part
from keepstep.checkpoint.reshard.assemble import assemble
from keepstep.checkpoint.reshard.load import Derived, Policy, load_resharded
from keepstep.checkpoint.reshard.saved import SLAB_BYTES
from keepstep.checkpoint.state.leaves import CHUNK_BYTES
from keepstep.checkpoint.state.shards import Shard, Shards, fit
from keepstep.checkpoint.stores.posix import PosixStore

from .keyrings import Place
from .layouts import at, grid, part, save

PROGRAMS = Path(__file__).parent / "programs"
SEED = Policy(per_rank={"rank.rng": "derive"}, positions=("rank.data",), seed=7)


def repository(directory: Path) -> Repository:
    return Repository(PosixStore(directory), "job")


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        same = left.dtype == right.dtype and left.shape == right.shape
        return same and left.contiguous().view(torch.uint8).equal(right.contiguous().view(torch.uint8))
    return bool(left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes())


def state(rank: int, **more: Any) -> dict[str, Any]:
    return {"step": 5, "rng": {"words": np.arange(4) + rank}, "data": {"consumed": 640}, **more}


def targets(wholes: dict[str, Any], layouts: dict[str, list[Extent]], rank: int) -> dict[str, dict[str, Extent]]:
    return {"model": {f"model.{name}": layouts[name][rank] for name in wholes}}


# ---- round trips

DTYPES = ["<f4", "<f8", ">i2", "|u1", "<c16", "<U3", "bfloat16", "float8_e5m2"]


def filled(shape: Sequence[int], dtype: str, seed: int) -> Any:
    data = np.random.default_rng(seed).integers(0, 256, (*shape, 64), np.uint8)
    if dtype in ("bfloat16", "float8_e5m2"):
        kind = getattr(torch, dtype)
        if 0 in shape:
            return torch.empty(tuple(shape), dtype=kind)
        return torch.from_numpy(data[..., : kind.itemsize].copy()).view(kind).reshape(tuple(shape))
    if dtype == "<U3":
        return np.array(data[..., 0].astype("<U3")).reshape(shape)
    item = np.dtype(dtype).itemsize
    return np.ascontiguousarray(data[..., :item]).view(dtype).reshape(shape)


@st.composite
def journeys(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, list[Extent]]]]:
    """Tensors, and how each of the worlds of 4, 2, 6 and 4 ranks cuts them."""
    wholes: dict[str, Any] = {}
    for number in range(draw(st.integers(1, 4))):
        shape = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
        wholes[f"w{number}"] = filled(shape, draw(st.sampled_from(DTYPES)), number)
    worlds = []
    for size in (4, 2, 6, 4):
        layouts = {}
        for name, whole in wholes.items():
            counts = [1] * whole.ndim
            first = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
            counts[draw(st.integers(0, whole.ndim - 1))] *= first
            counts[draw(st.integers(0, whole.ndim - 1))] *= size // first
            if draw(st.integers(0, 4)) == 0:
                layouts[name] = grid(whole.shape, [1] * whole.ndim) * size  # replicated
            else:
                layouts[name] = grid(whole.shape, counts)
        worlds.append(layouts)
    return wholes, worlds


@given(journeys())
@settings(max_examples=12, deadline=None)
def test_four_two_six_four_ranks_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, journey: tuple[dict[str, Any], list[dict[str, list[Extent]]]]
) -> None:
    wholes, worlds = journey
    directory = tmp_path_factory.mktemp("checkpoints")
    ranks = [
        {"model": {"model": {name: part(whole, worlds[0][name][rank]) for name, whole in wholes.items()}, "lr": 0.1}}
        for rank in range(4)
    ]
    commit = save(directory, 1, ranks)
    for step, layouts in enumerate(worlds[1:], start=2):
        size = len(next(iter(layouts.values())))
        loaded = [
            load_resharded(repository(directory), commit.key, rank, size, targets(wholes, layouts, rank))
            for rank in range(size)
        ]
        for rank, found in enumerate(loaded):
            for name, whole in wholes.items():
                shard = found.groups["model"]["model"][name]
                assert shard.extent == layouts[name][rank] and shard.shape == tuple(whole.shape)
                assert equal(shard.data, whole[at(shard.extent)])
            assert found.groups["model"]["lr"] == 0.1 and found.derived == ()
        commit = save(directory, step, [found.groups for found in loaded])


def test_one_rank_gets_everything_and_the_index_says_so(tmp_path: Path) -> None:
    whole = torch.randn(7, 5)
    commit = save(tmp_path, 1, [{"g": {"w": part(whole, box), "n": 3}} for box in grid((7, 5), (3, 1))])
    box = Extent((0, 0), (7, 5))
    [shard, number] = load_resharded(repository(tmp_path), commit.key, 0, 1, {"g": {"w": box}}).groups["g"].values()
    assert shard.data.equal(whole) and shard.extent == box and number == 3


def test_what_is_not_named_or_was_saved_whole_comes_whole(tmp_path: Path) -> None:
    """From FSDP to one process, and from DDP to FSDP: the live state cuts what it needs."""
    whole = torch.randn(7, 5)
    trees = [{"g": {"cut": part(whole, box), "plain": whole}} for box in grid((7, 5), (2, 1))]
    key = save(tmp_path, 1, trees).key
    for size in (1, 2, 3):
        found = load_resharded(repository(tmp_path), key, 0, size, {"g": {"plain": Extent((0, 0), (2, 5))}}).groups["g"]
        assert found["cut"].data.equal(whole) and found["cut"].extent == Extent((0, 0), (7, 5))
        assert found["plain"].equal(whole)
        assert fit(found, {"cut": torch.zeros(7, 5), "plain": torch.zeros(7, 5)})["cut"].equal(whole)


def test_tied_parts_stay_tied_where_their_boxes_are_equal(tmp_path: Path) -> None:
    whole = torch.arange(8.0)

    def tree(box: Extent) -> Any:
        shard = part(whole, box)
        return {"g": {"a": shard, "b": shard, "c": shard, "d": shard.data, "e": shard.data}}

    boxes = grid((8,), (2,))
    commit = save(tmp_path, 1, [tree(box) for box in boxes])
    new = {"a": Extent((1,), (5,)), "b": Extent((1,), (5,)), "c": Extent((6,), (2,))}
    # The plain leaf that is tied to the parts differs between the ranks, which is only right if it is declared.
    found = load_resharded(
        repository(tmp_path), commit.key, 1, 3, {"g": new}, Policy(per_rank={"g.d": "modulo", "g.e": "modulo"})
    ).groups["g"]
    assert found["a"].data.equal(whole[1:6]) and found["a"].data.data_ptr() == found["b"].data.data_ptr()
    assert found["c"].data.equal(whole[6:]) and found["d"].equal(whole[4:])
    assert found["d"].data_ptr() == found["e"].data_ptr()


def test_ranks_with_several_parts_each(tmp_path: Path) -> None:
    whole = torch.randn(8, 3)
    boxes = grid((8, 3), (4, 1))
    trees = [
        {"g": {"w": Shards(part(whole, box) for box in pair), "lr": 1}}
        for pair in ((boxes[0], boxes[3]), (boxes[1], boxes[2]))
    ]
    key = save(tmp_path, 1, [*trees, {"g": {"w": part(whole, boxes[0]), "lr": 1}}]).key
    same = load_resharded(repository(tmp_path), key, 1, 3, None).groups["g"]["w"]
    assert [shard.offset for shard in same.parts] == [(2, 0), (4, 0)] and same.parts[1].data.equal(whole[4:6])
    one = load_resharded(repository(tmp_path), key, 0, 1, {"g": {"w": Extent((1, 1), (6, 2))}}).groups["g"]["w"]
    assert one.data.equal(whole[1:7, 1:])
    two = (Extent((0, 0), (3, 3)), Extent((5, 0), (3, 1)))
    found = load_resharded(repository(tmp_path), key, 1, 2, {"g": {"w": two}}).groups["g"]
    assert [shard.extent for shard in found["w"].parts] == list(two) and found["lr"] == 1
    assert all(shard.data.equal(whole[at(shard.extent)]) for shard in found["w"].parts)


# ---- reading


class Counting:
    """A reader that says what was read through it."""

    def __init__(self, directory: Path, key: str) -> None:
        self.manifest = repository(directory).manifest(key)
        self._reader = repository(directory).reader(self.manifest)
        self.read: list[tuple[str, int]] = []

    def chunks(self, digest: str) -> tuple[Chunk, ...]:
        return self._reader.chunks(digest)

    def read_chunks(self, wanted: Any) -> None:
        self.read += [(chunk.pack, chunk.number) for chunk, _ in wanted]
        self._reader.read_chunks(wanted)


def test_only_chunks_that_a_box_touches_are_read_and_each_once(tmp_path: Path) -> None:
    rows = 5 * CHUNK_BYTES // 4096
    wholes = {"large": np.random.default_rng(1).integers(0, 255, (rows, 4096), np.uint8)}
    wholes |= {f"small{n}": np.arange(n, n + 1024, dtype=np.uint16).reshape(16, 64) for n in range(200)}
    boxes = grid((2, 1), (2, 1))
    trees = []
    for box in boxes:
        scaled = {
            name: Extent((box.offset[0] * len(w) // 2, 0), (len(w) // 2, w.shape[1])) for name, w in wholes.items()
        }
        trees.append({"g": {name: part(whole, scaled[name]) for name, whole in wholes.items()}})
    commit = save(tmp_path, 1, trees)
    reader = Counting(tmp_path, commit.key)
    # Two rows in the first rank's third chunk, and columns of every small tensor on both ranks.
    wanted = {"large": Extent((2 * CHUNK_BYTES // 4096 + 5, 100), (2, 50))}
    wanted |= {f"small{n}": Extent((3, 60), (10, 4)) for n in range(200)}
    found = assemble(reader.manifest, "g", wanted, reader)
    for name, box in wanted.items():
        assert equal(found[name], wholes[name][at(box)])
    assert (
        len(reader.read) == len(set(reader.read)) == 5
    )  # per rank: index, small leaves; and the one of the large leaf
    everything = Counting(tmp_path, commit.key)
    whole = {"large": Extent((0, 0), wholes["large"].shape)}
    assert equal(assemble(everything.manifest, "g", whole, everything)["large"], wholes["large"])
    assert len(everything.read) == len(set(everything.read)) == 2 * (3 + 1)


def test_a_column_out_of_a_large_tensor_in_slabs(tmp_path: Path) -> None:
    whole = np.arange(24_000_000, dtype="<i4").reshape(3000, 8000)
    assert whole.nbytes // 2 > SLAB_BYTES
    commit = save(tmp_path, 1, [{"g": {"w": part(whole, box)}} for box in grid((3000, 8000), (2, 1))])
    reader = Counting(tmp_path, commit.key)
    box = Extent((7, 498), (2900, 3))
    assert equal(assemble(reader.manifest, "g", {"w": box}, reader)["w"], whole[at(box)])
    assert len(reader.read) == len(set(reader.read))


def test_a_damaged_chunk_is_refused_only_where_it_is_needed(tmp_path: Path) -> None:
    whole = np.random.default_rng(2).standard_normal(500_000)
    commit = save(tmp_path, 1, [{"g": {"w": part(whole, box)}} for box in grid((500_000,), (2,))])
    reader = Counting(tmp_path, commit.key)
    entry = next(entry for entry in reader.manifest.packs if reader.manifest.ranks[1].groups["g"] in entry.groups)
    with open(tmp_path / entry.key, "r+b") as file:
        file.seek(9000)
        byte = file.read(1)[0]
        file.seek(9000)
        file.write(bytes([byte ^ 1]))
    found = assemble(reader.manifest, "g", {"w": Extent((0,), (250_000,))}, reader)
    assert equal(found["w"], whole[:250_000])
    with pytest.raises(StateInvalid, match="digest"):
        assemble(reader.manifest, "g", {"w": Extent((0,), (250_001,))}, Counting(tmp_path, commit.key))


def test_sealed_parts_are_opened_with_the_key_and_not_without(tmp_path: Path) -> None:
    place = Place(tmp_path)
    whole = torch.randn(1000, 900)
    trees = [{"g": {"w": part(whole, box), "n": 1}} for box in grid((1000, 900), (1, 3))]
    commit = save(place.store.path, 1, trees, place.process())
    box = Extent((10, 250), (900, 400))
    sealed = Repository(place.store, "job", keys=place.process())
    found = load_resharded(sealed, commit.key, 0, 1, {"g": {"w": box}}).groups["g"]
    assert found["w"].data.equal(whole[at(box)]) and found["n"] == 1
    with pytest.raises(KeyMissing):
        load_resharded(Repository(place.store, "job"), commit.key, 0, 1, {"g": {"w": box}})


# ---- refusals


def test_an_element_that_nobody_saved_is_never_filled_in(tmp_path: Path) -> None:
    """Reported of Megatron: optimizer state of several buckets was padded with zeros without a word."""
    whole = np.arange(12.0)
    commit = save(tmp_path, 1, [{"g": {"w": part(whole, box)}} for box in grid((12,), (3,))])
    reader = Counting(tmp_path, commit.key)
    ranks = reader.manifest.ranks
    lost = msgspec.structs.replace(reader.manifest, ranks=(ranks[0], Part(groups=ranks[1].groups), ranks[2]))
    assert equal(assemble(lost, "g", {"w": Extent((8,), (4,))}, reader)["w"], whole[8:])
    with pytest.raises(
        StateInvalid, match=r"w, a tensor of \(12,\), is not whole: element \(4,\) was saved by no rank"
    ):
        assemble(lost, "g", {"w": Extent((2,), (4,))}, reader)


def test_a_save_with_a_hole_is_not_committed(tmp_path: Path) -> None:
    whole = np.arange(12.0)
    boxes = grid((12,), (3,))
    with pytest.raises(StateInvalid, match=r"no rank saved element \(8,\)"):
        save(tmp_path, 1, [{"g": {"w": part(whole, box)}} for box in (boxes[0], boxes[1], boxes[1])])
    assert repository(tmp_path).commits() == []


def test_boxes_and_names_that_were_not_saved_are_refused(tmp_path: Path) -> None:
    commit = save(tmp_path, 1, [{"g": {"w": part(np.arange(12.0), box), "n": 1}} for box in grid((12,), (2,))])
    reader = Counting(tmp_path, commit.key)
    for wanted, match in (
        ({"w": Extent((10,), (3,))}, "reaches beyond"),
        ({"w": Extent((0, 0), (3, 1))}, "cannot be part"),
        ({"v": Extent((0,), (3,))}, "no sharded tensor v"),
    ):
        with pytest.raises(StateInvalid, match=match):
            assemble(reader.manifest, "g", wanted, reader)
    box = {"w": Extent((0,), (4,))}
    for given_targets, match in (
        (None, "say which parts rank 0 of 3 has"),
        ({"g": {**box, "n": Extent((), ())}}, "has no tensor n"),
        ({"g": box, "other": {}}, r"no group \['other'\]"),
    ):
        with pytest.raises(StateInvalid, match=match):
            load_resharded(repository(tmp_path), commit.key, 0, 3, given_targets)
    with pytest.raises(ValueError, match="world of 3"):
        load_resharded(repository(tmp_path), commit.key, 3, 3, {"g": box})


def test_a_receipt_that_lies_about_its_shards_is_refused(tmp_path: Path) -> None:
    commit = save(tmp_path, 1, [{"g": {"w": part(np.arange(12.0), box)}} for box in grid((12,), (2,))])
    reader = Counting(tmp_path, commit.key)
    first, second = reader.manifest.ranks
    lying = msgspec.structs.replace(
        reader.manifest, ranks=(Part(groups=first.groups, sharded=second.sharded), Part(groups=second.groups))
    )
    with pytest.raises(StateInvalid, match="has not the shard of w"):
        assemble(lying, "g", {"w": Extent((6,), (2,))}, reader)


# ---- what is not sharded


def job(directory: Path, size: int, **differing: Any) -> str:
    """A job with one tensor in parts, and a group of each rank; returns the commit's key."""
    whole = np.arange(24.0)
    ranks = [
        {
            "model": {"w": part(whole, box), "scale": 2.0},
            "rank": state(rank, **{k: v(rank) for k, v in differing.items()}),
        }
        for rank, box in enumerate(grid((24,), (size,)))
    ]
    return save(directory, 5, ranks).key


def load(directory: Path, key: str, rank: int, size: int, policy: Policy | None = SEED) -> Any:
    box = {"model": {"w": grid((24,), (size,))[rank]}}
    return load_resharded(repository(directory), key, rank, size, box, policy)


def test_state_that_differs_between_ranks_is_refused_unless_it_is_declared(tmp_path: Path) -> None:
    key = job(tmp_path, 4)
    with pytest.raises(StateInvalid, match=r"rank\.rng\.words \(ranks 0 and 2\).*'derive'.*'modulo'"):
        load(tmp_path, key, 0, 2, None)
    assert load(tmp_path, key, 3, 4, None).groups["rank"]["rng"]["words"][0] == 3  # the same world: each its own


def test_ranks_that_were_not_there_derive_their_random_numbers_and_say_so(tmp_path: Path) -> None:
    """Reported of Megatron: expert random numbers were wrong on 252 of 256 ranks after a resume."""
    key = job(tmp_path, 4)
    for rank in range(6):
        found = load(tmp_path, key, rank, 6)
        assert found.groups["rank"]["step"] == 5
        if rank < 4:
            assert found.derived == () and found.groups["rank"]["rng"]["words"][0] == rank
        else:
            assert found.derived == (Derived("rank.rng", 7, 5, rank),)
    words = {
        tuple(Derived("rank.rng", seed, step, rank).words(4)) for seed in (1, 2) for step in (5, 6) for rank in (4, 5)
    }
    assert len(words) == 8
    assert Derived("rank.rng", 7, 5, 4).words(2) == Derived("rank.rng", 7, 5, 4).words(2)


def test_modulo_takes_over_another_ranks_state(tmp_path: Path) -> None:
    key = job(tmp_path, 2)
    found = load(tmp_path, key, 3, 4, Policy(per_rank={"rank": "modulo"}))
    assert found.groups["rank"]["rng"]["words"][0] == 1 and found.derived == ()


def test_one_global_data_position_travels_and_one_per_rank_is_refused(tmp_path: Path) -> None:
    """Reported of torchtitan: loader state was dropped on a change from 4 to 2, or everybody got rank 0's."""
    assert load(tmp_path / "a", job(tmp_path / "a", 4), 1, 2).groups["rank"]["data"] == {"consumed": 640}
    key = job(tmp_path / "b", 4, data=lambda rank: {"consumed": 640 + rank})
    with pytest.raises(
        StateInvalid, match=r"rank\.data\.consumed is the data position of one rank.*keepstep\.resumable"
    ):
        load(tmp_path / "b", key, 0, 2)
    modulo = Policy(per_rank={"rank": "modulo"}, positions=("rank.data",))
    with pytest.raises(StateInvalid, match="data position"):
        load(tmp_path / "b", key, 0, 2, modulo)


def test_every_saved_rank_is_compared_by_somebody(tmp_path: Path) -> None:
    """One rank out of five differs: one of the two ranks that take over sees it, whichever it is."""
    for odd in range(1, 5):
        key = job(tmp_path / str(odd), 5, extra=lambda rank, odd=odd: np.full(300_000, rank == odd))
        refused = 0
        for rank in range(2):
            try:
                load(tmp_path / str(odd), key, rank, 2)
            except StateInvalid as error:
                assert f"rank.extra (ranks 0 and {odd})" in str(error)
                refused += 1
        assert refused >= 1


@pytest.mark.parametrize(
    ("value", "other"),
    [
        ({}, []),
        (1, 1.0),
        ((1,), [1]),
        (np.zeros(2), np.zeros(2, "<f4")),
        (np.zeros(2), np.ones(2)),
        ("a", b"a"),
        ({}, {"a": {}}),
    ],
)
def test_values_that_look_alike_are_not_equal(tmp_path: Path, value: Any, other: Any) -> None:
    key = job(tmp_path, 2, extra=lambda rank: other if rank else value)
    with pytest.raises(StateInvalid, match=r"rank\.extra"):
        load(tmp_path, key, 0, 1)


def test_a_shard_of_another_tensor_shape_is_no_shard_of_this_one(tmp_path: Path) -> None:
    whole = np.arange(4.0)
    trees = [{"g": {"w": Shard(whole[:2], (4,), (0,))}}, {"g": {"w": Shard(whole[2:], (5,), (2,))}}]
    with pytest.raises(StateInvalid, match=r"\(5,\) on rank 1"):
        save(tmp_path, 1, trees)


def test_fsdp_saved_by_two_processes_is_loaded_by_three_and_by_one(tmp_path: Path, warm_torch: Warm) -> None:
    programs = [[str(PROGRAMS / "fsdp_job.py"), str(tmp_path), str(rank)] for rank in range(3)]
    answers = [json.loads(line) for line in warm_torch.run_ranks(programs, tmp_path, [os.environ] * 3).splitlines()]
    assert len(answers) == 3
    for answer in answers:
        assert answer["equal"] and answer["sharded"] == 4 + 8
    found = {}
    manifest = repository(tmp_path / "checkpoints").manifest(answer["commit"])
    for name in ("model", "optimizer"):
        sharded = manifest.ranks[0].sharded[name]
        whole = {each.path: Extent((0,) * len(each.shape), each.shape) for each in sharded}
        reader = repository(tmp_path / "checkpoints").reader(manifest)
        found |= {f"{name}.{path}": value.numpy() for path, value in assemble(manifest, name, whole, reader).items()}
    with np.load(tmp_path / "expected.npz") as expected:
        assert found.keys() == {name for name in expected if not name.endswith(".step")}
        assert all(np.array_equal(found[name], expected[name]) for name in found)

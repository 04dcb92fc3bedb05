"""Sharded tensors in state trees: numpy and torch parts, DTensors by their placements, and indexes that lie about boxes."""

import json
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from torch.distributed.tensor import Shard as Split
from torch.testing._internal.distributed.fake_pg import FakeStore

from keepstep.checkpoint import StateInvalid, flatten, unflatten
from keepstep.checkpoint.format.records import Extent, Part, Sharded
from keepstep.checkpoint.repository.coverage import check_coverage
from keepstep.checkpoint.state.blob import digest_chunks, pack, unpack
from keepstep.checkpoint.state.shards import Shard, Shards, fit, shard_of, shards_of


def round_trip(tree: Any) -> Any:
    blob = np.frombuffer(pack(flatten(tree)), np.uint8)
    return unpack(blob, digest_chunks(blob).root)


@contextmanager
def world(rank: int, size: int) -> Iterator[None]:
    """This process as one rank of a world that does not exist."""
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_shards_come_back_with_their_place() -> None:
    tree = {
        "a": Shard(np.arange(6.0).reshape(2, 3), (4, 3), (2, 0)),
        "b": [Shard(torch.arange(3, dtype=torch.bfloat16), (7,), (4,)), 1],
        "c": torch.ones(2),
    }
    found = round_trip(tree)
    assert (found["a"].shape, found["a"].offset) == ((4, 3), (2, 0))
    assert found["a"].data.tobytes() == tree["a"].data.tobytes()
    assert found["b"][0].data.equal(tree["b"][0].data) and found["b"][0].data.dtype == torch.bfloat16
    assert found["b"][0].extent == Extent((4,), (3,)) and found["c"].equal(torch.ones(2))


def test_the_sharded_tensors_of_an_index_are_named_by_dotted_paths() -> None:
    part = Shard(torch.zeros(2), (4,), (2,))
    tree = {
        "layers": [{"weight": part}],
        "state": {0: {"exp_avg": Shard(torch.zeros(2, dtype=torch.float64), (4,), (2,))}},
        "ordered": OrderedDict(bias=Shard(np.zeros(1, "<f4"), (1,), (0,))),
        "tied": part,
        "empty": {},
    }
    flat = flatten(tree)
    box = Extent((2,), (2,))
    assert flat.sharded == shards_of(flat.index)
    assert flat.sharded == (
        Sharded("layers.0.weight", "float32", (4,), box),
        Sharded("state.0.exp_avg", "float64", (4,), box),
        Sharded("ordered.bias", "<f4", (1,), Extent((0,), (1,))),
        Sharded("tied", "float32", (4,), box),
    )
    assert len(flat.leaves) == 3  # tied parts are one leaf
    assert flatten({"text": '["h",0,[1],[0]]'}).sharded == ()


def test_two_paths_that_look_alike_are_refused() -> None:
    part = Shard(np.zeros(1), (1,), (0,))
    with pytest.raises(StateInvalid, match=r"called a\.b"):
        _ = flatten({"a.b": part, "a": {"b": part}}).sharded


def test_several_parts_of_one_tensor_on_one_rank() -> None:
    whole = torch.arange(12.0).reshape(6, 2)
    pair = Shards([Shard(whole[:2], (6, 2), (0, 0)), Shard(whole[4:], (6, 2), (4, 0))])
    flat = flatten({"w": pair, "n": 1})
    assert [(each.path, each.extent.offset) for each in flat.sharded] == [("w", (0, 0)), ("w", (4, 0))]
    found = round_trip({"w": pair})["w"]
    assert [part.offset for part in found.parts] == [(0, 0), (4, 0)] and found.parts[1].data.equal(whole[4:])
    middle = Part(groups={"g": "b"}, sharded={"g": flatten({"w": Shard(whole[2:4], (6, 2), (2, 0))}).sharded})
    check_coverage([Part(groups={"g": "a"}, sharded={"g": flat.sharded}), middle])
    for parts in (
        [],
        [pair.parts[0], Shard(whole[:2], (7, 2), (0, 0))],
        [pair.parts[0], Shard(whole[:2].double(), (6, 2), (0, 0))],
    ):
        with pytest.raises(ValueError, match="one shape and dtype"):
            Shards(parts)


@pytest.mark.parametrize(
    ("data", "shape", "offset"),
    [
        (np.zeros(2), (4,), (3,)),
        (np.zeros(2), (4,), (-1,)),
        (np.zeros(2), (4, 1), (0, 0)),
        (np.zeros(2), (2**80,), (0,)),
        (np.zeros((2, 2)), (2**40, 2**40), (0, 0)),
    ],
)
def test_a_box_that_is_not_inside_is_refused_at_once(data: Any, shape: Any, offset: Any) -> None:
    with pytest.raises(ValueError, match=r"box|elements"):
        Shard(data, shape, offset)


@pytest.mark.parametrize(
    "node",
    [
        ["h", 0, [4], [3]],
        ["h", 0, [4], [-1]],
        ["h", 0, [-4], [0]],
        ["h", 0, [2**64], [2**64 - 2]],
        ["h", 0, [2**61, 2**61], [0, 0]],
        ["h", 0, [4.5], [0]],
        ["h", 0, ["4"], [0]],
        ["h", 0, [True], [0]],
        ["h", 0, [4, 4], [0]],
        ["h", 0, 4, 0],
        ["h", 0],
        ["h", -1, [4], [0]],
        ["h", 7, [4], [0]],
        ["h", None, [4], [0]],
        ["p", []],
        ["p", 3],
        ["p", [["a", 0]]],
        ["p", [["h", 0, [4], [0]], ["h", 0, [5], [2]]]],
        ["p", [["h", 0, [4], [0]], ["p", []]]],
    ],
)
def test_an_index_with_an_impossible_box_is_refused(node: Any) -> None:
    index = json.dumps({"format": 1, "tree": {"w": node}, "leaves": [["n", "<f8", [2]]]}).encode()
    with pytest.raises(StateInvalid):
        shards_of(index)
    with pytest.raises(StateInvalid):
        unflatten(index, np.zeros(4096, np.uint8))


@pytest.mark.parametrize("tree", [[], ["k", [1], []], ["o", ["l", []]], ["o", []], ["m"], ["l", 3]])
def test_a_malformed_index_is_refused(tree: Any) -> None:
    with pytest.raises(StateInvalid):
        shards_of(json.dumps({"format": 1, "tree": tree, "leaves": []}).encode())


def test_a_deep_index_is_refused_without_a_crash() -> None:
    tree = b'["o",' * 50_000 + b"1" + b",0]" * 50_000
    with pytest.raises(StateInvalid):
        shards_of(b'{"format":1,"tree":' + tree + b',"leaves":[]}')


def test_what_is_no_array_is_refused_with_its_path() -> None:
    class Fake:
        shape = (1,)

    with pytest.raises(TypeError, match=r"w: a shard of .*Fake"):
        flatten({"w": Shard(Fake(), (1,), (0,))})


# ---- DTensors

MESHES = [
    ((3,), (Split(0),), (7, 4)),  # 3, 3, 1
    ((4,), (Split(0),), (5,)),  # 2, 2, 1, 0
    ((2,), (Split(-1),), (3, 6)),
    ((2,), (Replicate(),), (3,)),
    ((2, 3), (Replicate(), Split(1)), (2, 8)),
    ((2, 2), (Split(0), Split(1)), (5, 7)),
    ((2, 3), (Split(0), Split(0)), (13, 2)),  # nested on one axis
]


@pytest.mark.parametrize(("mesh_shape", "placements", "shape"), MESHES)
def test_a_dtensor_becomes_the_part_that_its_rank_has(mesh_shape: Any, placements: Any, shape: Any) -> None:
    size = int(np.prod(mesh_shape))
    whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    parts, found = [], np.full(shape, -1, np.float32)
    for rank in range(size):
        with world(rank, size):
            mesh = init_device_mesh("cpu", mesh_shape)
            dtensor = distribute_tensor(torch.from_numpy(whole), mesh, placements, src_data_rank=None)
            flat = flatten({"w": dtensor})
            [sharded] = flat.sharded
            local = dtensor.to_local().numpy()
            at = tuple(slice(b, b + n) for b, n in zip(sharded.extent.offset, sharded.extent.shape, strict=True))
            # torch puts its ranks' parts where we say they are.
            assert sharded.shape == shape and np.array_equal(whole[at], local)
            found[at] = local
            parts.append(Part(groups={"g": str(rank)}, sharded={"g": flat.sharded}))
            again = flatten({"w": dtensor}, previous=flat)
            assert again.specs is flat.specs and again.leaves[0] is flat.leaves[0]
    assert np.array_equal(found, whole)
    check_coverage(parts)


def test_a_parameter_that_is_a_dtensor_is_flattened_without_a_new_view_each_time() -> None:
    with world(1, 2):
        mesh = init_device_mesh("cpu", (2,))
        parameter = torch.nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Split(0)], src_data_rank=None))
        flat = flatten({"w": parameter})
        assert flatten({"w": parameter}, previous=flat).leaves[0] is flat.leaves[0]
        assert flat.sharded[0].extent == Extent((2,), (2,))


def test_placements_that_are_no_box_are_refused_with_advice() -> None:
    from torch.distributed.tensor.placement_types import _StridedShard

    with world(0, 4):
        mesh = init_device_mesh("cpu", (2, 2))
        partial = DTensor.from_local(torch.ones(2), mesh, [Partial(), Replicate()], run_check=False)
        with pytest.raises(TypeError, match=r"m\.w: a DTensor that is placed as .*redistribute"):
            flatten({"m": {"w": partial}})
        strided = DTensor.from_local(
            torch.ones(2), mesh, [_StridedShard(0, split_factor=4), Split(0)], run_check=False, shape=(8,), stride=(1,)
        )
        with pytest.raises(TypeError, match="shard_placement_fn"):
            flatten({"w": strided})
        wrong = DTensor.from_local(
            torch.ones(3), mesh, [Split(0), Replicate()], run_check=False, shape=(8,), stride=(1,)
        )
        with pytest.raises(TypeError, match="offset that it really has"):
            flatten({"w": wrong})


@pytest.mark.parametrize(("rows", "tensor_axis"), [(16, 0), (10, 0), (7, 0), (10, 1)])
def test_fsdp_over_tensor_parallelism_on_the_same_axis(rows: int, tensor_axis: int) -> None:
    whole = torch.arange(rows * 6.0).reshape(rows, 6)
    parts, found = [], torch.full_like(whole, -1)
    for rank in range(4):
        with world(rank, 4):
            # torch remembers meshes by their names, for a process that is always the same rank.
            dp, tp = f"dp{rank}", f"tp{rank}"
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=(dp, tp))
            piece = [*whole.chunk(2, tensor_axis), whole[:0]][mesh[tp].get_local_rank()]
            layer = torch.nn.Linear(6, rows, bias=False)
            placed = DTensor.from_local(
                piece.clone(),
                mesh[tp],
                [Split(tensor_axis)],
                run_check=False,
                shape=whole.shape,
                stride=whole.stride(),
            )
            layer.weight = torch.nn.Parameter(placed)
            fully_shard(layer, mesh=mesh[dp])
            flat = flatten(layer.state_dict())
            [sharded] = flat.sharded
            where = tuple(slice(b, b + n) for b, n in zip(sharded.extent.offset, sharded.extent.shape, strict=True))
            assert whole[where].equal(layer.weight.to_local())
            found[where] = layer.weight.to_local().detach()
            parts.append(Part(groups={"g": str(rank)}, sharded={"g": flat.sharded}))
            again = fit({"w": Shard(whole, whole.shape, (0, 0))}, {"w": layer.weight})["w"]
            assert again.placements == layer.weight.placements and again.to_local().equal(layer.weight.to_local())
    assert found.equal(whole)
    check_coverage(parts)


def test_loaded_parts_are_made_to_fit_the_live_state() -> None:
    with world(1, 2):
        mesh = init_device_mesh("cpu", (2,))
        live = {
            "w": distribute_tensor(torch.zeros(5, 2), mesh, [Split(0)], src_data_rank=None),
            "plain": torch.zeros(4),
            "step": 0,
        }
        whole = torch.arange(10.0).reshape(5, 2)
        pair = Shards([Shard(whole[:3], (5, 2), (0, 0)), Shard(whole[3:], (5, 2), (3, 0))])
        for value in (whole, Shard(whole, (5, 2), (0, 0)), Shard(whole[3:], (5, 2), (3, 0)), pair):
            found = fit({"w": value, "plain": Shard(torch.ones(4), (4,), (0,)), "step": 3}, live)
            assert found["w"].to_local().equal(whole[3:]) and found["w"].shape == (5, 2)
            assert found["w"].placements == live["w"].placements and shard_of(found["w"]).offset == (3, 0)
            assert found["plain"].equal(torch.ones(4)) and found["step"] == 3
        with pytest.raises(StateInvalid, match="reshard"):
            fit({"w": Shard(whole[:3], (5, 2), (0, 0))}, live)
        with pytest.raises(StateInvalid, match=r"\(5, 3\)"):
            fit({"w": torch.zeros(5, 3)}, live)


def test_nothing_here_loads_torch() -> None:
    program = """
import sys, numpy as np
from keepstep.checkpoint import flatten
from keepstep.checkpoint.state.shards import Shard
import keepstep.checkpoint.reshard.load
assert flatten({"w": Shard(np.zeros(2), (4,), (0,))}).sharded
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)

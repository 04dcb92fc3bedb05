"""Gates at seal: an unfit snapshot is never offered and never written, and what was sealed before it stays."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from keepstep.checkpoint import SaveFailed, flatten
from keepstep.checkpoint.snapshot.gates import SMALL_BYTES, Candidate, Gates, finite_leaves, is_finite
from keepstep.checkpoint.snapshot.messages import Begin, Notice, SaveError
from keepstep.checkpoint.snapshot.policy import Gating, SnapshotPolicy
from keepstep.checkpoint.state.blob import digest_chunks, pack
from keepstep.checkpoint.state.shards import Shard

from .states import complete

Start = Callable[..., Any]
FLOATS = [
    *[("t", str(dtype).removeprefix("torch."), dtype) for dtype in (torch.float16, torch.bfloat16)],
    *[("t", str(dtype).removeprefix("torch."), dtype) for dtype in (torch.float32, torch.float64, torch.complex64)],
]


def candidate(step: int, trees: dict[str, Any], *, durable: bool = True, generation: int = 1, world: int = 1) -> Any:
    blobs = {name: pack(flatten(tree)) for name, tree in trees.items()}
    return Candidate(
        generation=generation, step=step, rank=0, world_size=world, durable=durable, blobs=blobs,
        digests={name: digest_chunks(blob).root for name, blob in blobs.items()},
    )  # fmt: skip


# ---- finite


@pytest.mark.parametrize(("kind", "name", "dtype"), FLOATS)
@given(
    size=st.integers(1, 5000), at=st.floats(0, 0.999), bad=st.sampled_from([float("nan"), float("inf"), -float("inf")])
)
def test_one_bad_value_anywhere_is_found(kind: str, name: str, dtype: Any, size: int, at: float, bad: float) -> None:
    values = torch.randn(size).to(dtype)
    spec = (kind, name, (size,))
    assert is_finite(values.view(torch.uint8).numpy(), spec)
    values[int(at * size)] = bad
    assert not is_finite(values.view(torch.uint8).numpy(), spec)


@pytest.mark.parametrize("name", ["<f2", "<f4", ">f4", "<f8", ">f8", "<c8", "<c16"])
def test_the_largest_finite_values_are_finite(name: str) -> None:
    """Their sum overflows; in the last piece as in the first one."""
    dtype = np.dtype(name)
    size = 3_000_001
    values = np.full(size, np.finfo(dtype).max, dtype)
    assert is_finite(values.data.cast("B"), ("n", name, (size,)))
    values[-1] = np.nan
    assert not is_finite(values.data.cast("B"), ("n", name, (size,)))


def test_leaves_are_named_by_their_place_in_the_tree() -> None:
    weight = torch.ones(3)
    tree = {"layers": [{"w": weight, "tied": weight}, {"n": np.zeros(2, np.int64)}], "k": {1: np.array([np.inf])}}
    assert dict(finite_leaves(pack(flatten(tree)))) == {"layers.0.tied": True, "k.1": False}
    shard = {"s": Shard(np.array([1.0, np.nan]), (4,), (2,)), "": OrderedDict(x=np.ones(1))}
    assert dict(finite_leaves(pack(flatten(shard)))) == {"s": False, "x": True}


def test_a_tensor_that_becomes_nan_is_named_until_it_is_well_again() -> None:
    gates = Gates(Gating())
    mask = np.full(4, -np.inf)
    good, bad = np.ones(10_000), np.ones(10_000)
    bad[-1] = np.nan
    assert gates.judge(candidate(1, {"model": {"w": good, "mask": mask}})) == ("", True)
    for step in (2, 3):
        why, looked = gates.judge(candidate(step, {"model": {"w": bad, "mask": mask}}))
        assert why.startswith("model.w became NaN or infinite") and looked
    assert gates.judge(candidate(4, {"model": {"w": good, "mask": mask}}))[0] == ""


def test_tensors_may_be_exempt_and_the_gate_may_be_off() -> None:
    good, bad = {"model": {"a": {"mask": np.ones(4)}}}, {"model": {"a": {"mask": np.full(4, np.inf)}}}
    for gating in (Gating(exempt=("model.*.mask",)), Gating(finite=False)):
        gates = Gates(gating)
        gates.judge(candidate(1, good))
        assert gates.judge(candidate(2, bad))[0] == ""


def test_a_new_tensor_beside_a_bad_one_does_not_hide_it() -> None:
    gates = Gates(Gating())
    gates.judge(candidate(1, {"model": {"b": np.ones(4)}}))
    why, _ = gates.judge(candidate(2, {"model": {"a": np.ones(4), "b": np.full(4, np.nan)}}))
    assert why.startswith("model.b became")


def test_another_world_size_begins_anew() -> None:
    gates = Gates(Gating())
    gates.judge(candidate(1, {"model": {"w": np.ones(4)}}))
    assert gates.judge(candidate(2, {"model": {"w": np.full(4, np.inf)}}, world=2))[0] == ""


def test_large_states_are_looked_at_when_durable_and_every_so_often() -> None:
    gates = Gates(Gating(look_every=3))
    large = np.zeros(SMALL_BYTES // 8 + 1)
    looked = [gates.judge(candidate(step, {"model": {"w": large}}, durable=step == 5))[1] for step in range(1, 9)]
    assert looked == [False, False, True, False, True, False, False, True]
    assert gates.judge(candidate(9, {"model": {"w": large}}, durable=False), look=True)[1]


# ---- groups


def test_a_group_that_vanished_or_is_required_is_missed() -> None:
    gates = Gates(Gating(required=("model",)))
    assert gates.judge(candidate(1, {"rank": {}}))[0].startswith("the snapshot lacks model: it has rank")
    assert gates.judge(candidate(1, {"rank": {}, "model": {}, "data": {}}))[0] == ""
    assert gates.judge(candidate(2, {"rank": {}, "model": {}}))[0].startswith("the snapshot lacks data")
    assert gates.judge(candidate(2, {"rank": {}, "model": {}}, generation=2))[0] == ""


# ---- change


def test_NeMo_RL_4183_an_optimizer_that_never_changes_is_refused_at_the_second_repeat() -> None:
    gates = Gates(Gating())
    stuck, moving = {"m": np.ones(4)}, [{"m": np.full(4, n)} for n in range(9)]
    verdicts = [gates.judge(candidate(step, {"optimizer": stuck, "model": moving[step]}))[0] for step in range(4)]
    assert verdicts[:2] == ["", ""] and all("'optimizer' is the same bytes" in why for why in verdicts[2:])
    assert gates.judge(candidate(5, {"optimizer": moving[5], "model": moving[5]}))[0] == ""
    # A step that is saved again, and one that is trained again after a restore, prove nothing.
    for step in (5, 5, 5, 2, 5):
        assert gates.judge(candidate(step, {"optimizer": moving[5], "model": moving[5]}))[0] == ""


@pytest.mark.parametrize(
    ("gating", "tree", "durable"),
    [
        (Gating(unchanged=0), {"m": np.ones(4)}, True),
        (Gating(changing=("adam",)), {"m": np.ones(4)}, True),
        (Gating(), {"param_groups": [{"lr": 0.1}]}, True),
        (Gating(), {"m": np.ones(4)}, False),
    ],
    ids=["off", "another name", "no tensors", "not durable: accumulation, or a loss scaler that skips"],
)
def test_an_optimizer_that_rightly_stays_the_same(gating: Gating, tree: Any, durable: bool) -> None:
    gates = Gates(gating)
    assert {gates.judge(candidate(step, {"optim": tree}, durable=durable))[0] for step in range(9)} == {""}


# ---- with a server


def state(step: int, bad: bool = False) -> dict[str, Any]:
    weights = np.full(1000, float(step))
    weights[500] = np.nan if bad else step
    return {"model": flatten({"w": weights}), "rank": flatten({"step": step})}


def test_an_unfit_snapshot_is_not_offered_nor_written_and_the_fit_ones_stay(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 1)
    client = node.client(0, 1)
    for step in (1, 2):
        assert client.snapshot(step, state(step), durable=step == 2)
    assert client.wait_durable(2, 120)
    for step in range(3, 12):
        assert client.snapshot(step, state(step, bad=True), durable=step == 11)
    with pytest.raises(SaveFailed, match=r"rank 0 at step 11 is not fit to be kept: model.w became NaN"):
        client.wait_durable(11, 120)
    assert "model.w" in node.event(SaveError, 11).reason
    assert complete(node)[0] == 2
    assert [offer.step for offer in node.list_disk().disk] == [2]
    node.flush(11)
    notices = [event for event in node.events if isinstance(event, Notice)]
    assert [(notice.topic, notice.step) for notice in notices] == [("gate", 3)], "once, not for every step"
    assert float(client.restore(2, "ram", "", 1)["model"]["w"][500]) == 2
    assert client.snapshot(12, state(12), durable=True)
    assert client.wait_durable(12, 120)
    assert complete(node)[:2] == [12, 2]


def test_values_that_nobody_looked_at_are_looked_at_once_one_is_bad(start_node: Start) -> None:
    node = start_node()
    policy = SnapshotPolicy(gating=Gating(look_every=0))
    node.ask(Begin, generation=1, world_size=1, policy=policy)
    client = node.client(0, 1)
    size = SMALL_BYTES // 8 + 1000

    def large(step: int) -> dict[str, Any]:
        weights = np.zeros(size)
        weights[-1] = np.nan if step >= 3 else step
        return {"model": flatten({"w": weights}), "rank": flatten({"step": step})}

    assert client.snapshot(1, large(1), durable=True)
    assert client.wait_durable(1, 120)
    for step in (2, 3):
        assert client.snapshot(step, large(step))
    assert complete(node) == [3, 2, 1], "large ones that are not durable are trusted"
    assert client.snapshot(4, large(4), durable=True)
    with pytest.raises(SaveFailed):
        client.wait_durable(4, 120)
    assert complete(node)[0] == 2


def test_bytes_that_are_no_blob_are_dropped_and_the_server_goes_on(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 1)
    client = node.client(0, 1)
    client.snapshot(1, state(1))
    import keepstep.checkpoint.snapshot.client as module

    real = module.write_tail
    try:
        module.write_tail = lambda buffer, offset, flat: real(buffer, offset, flat) - 1
        client.snapshot(2, state(2))
    finally:
        module.write_tail = real
    assert complete(node) == [1]
    client.snapshot(3, state(3))
    assert complete(node) == [3, 1]

"""Round trips of state trees: every type, every bit, no pickle."""

import math
import random
import struct
import subprocess
import sys
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from keepstep.checkpoint import StateInvalid, flatten, unflatten
from keepstep.checkpoint.state.blob import digest_chunks, pack, unpack


def round_trip(tree: Any) -> Any:
    blob = np.frombuffer(pack(flatten(tree)), np.uint8)
    return unpack(blob, digest_chunks(blob).root)


def same(left: Any, right: Any) -> bool:
    """Equal in type and in every bit."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(
            type(a) is type(b) and same(left[a], right[b]) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return struct.pack(">d", left) == struct.pack(">d", right)
    if isinstance(left, complex):
        return struct.pack(">dd", left.real, left.imag) == struct.pack(">dd", right.real, right.imag)
    if isinstance(left, torch.Tensor):
        bits = left.dtype == right.dtype and left.shape == right.shape
        return bits and left.contiguous().reshape(-1).view(torch.uint8).equal(right.reshape(-1).view(torch.uint8))
    if isinstance(left, (np.ndarray, np.generic)):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    return bool(left == right)


dtypes = st.one_of(
    hnp.boolean_dtypes(), hnp.integer_dtypes(endianness="?"), hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(), hnp.datetime64_dtypes(), hnp.unicode_string_dtypes(), hnp.byte_string_dtypes(),
)  # fmt: skip
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, min_side=0, max_side=4))
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters()), st.binary(), st.complex_numbers()
)
keys = st.one_of(st.text(st.characters()), st.integers())
trees = st.recursive(
    scalars | arrays,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(keys, inner),
        st.dictionaries(keys, inner).map(OrderedDict),
    ),
    max_leaves=20,
)


@given(trees)
@settings(max_examples=60, deadline=None)
def test_any_tree_comes_back_exactly(tree: Any) -> None:
    assert same(tree, round_trip(tree))


@given(trees, trees)
@settings(max_examples=25, deadline=None)
def test_a_previous_flat_changes_nothing_but_the_speed(tree: Any, other: Any) -> None:
    alone = flatten(tree)
    assert flatten(tree, previous=flatten(other)).index == alone.index
    again = flatten(tree, previous=alone)
    assert (again.index, again.specs, again.payload_bytes) == (alone.index, alone.specs, alone.payload_bytes)


TENSORS = {
    "bf16": torch.tensor([1.5, float("nan"), -0.0], dtype=torch.bfloat16),
    "f16": torch.arange(5, dtype=torch.float16),
    "f64": torch.tensor([-0.0, math.inf, math.nan], dtype=torch.float64),
    "bool": torch.tensor([True, False, True]),
    "int64": torch.tensor([-(2**63), 2**63 - 1]),
    "uint8": torch.get_rng_state(),
    "complex": torch.tensor([1 + 2j, complex(-0.0, math.nan)]),
    "fp8": torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn),
    "scalar": torch.tensor(3.25),
    "empty": torch.empty(0, 3),
    "transposed": torch.arange(12.0).reshape(3, 4).t(),
    "strided": torch.arange(20)[::3],
    "expanded": torch.tensor([7.0]).expand(3, 4),
    "conjugated": torch.tensor([1 + 2j]).conj(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_every_kind_of_tensor(name: str) -> None:
    back = round_trip({"x": TENSORS[name]})["x"]
    assert same(TENSORS[name].resolve_conj(), back)
    assert back.is_contiguous()


def test_parameters_lose_their_grad_only() -> None:
    parameter = torch.nn.Parameter(torch.randn(3, 3))
    back = round_trip([parameter])[0]
    assert type(back) is torch.Tensor and not back.requires_grad
    assert back.equal(parameter)


def test_tied_weights_stay_tied_and_mere_equals_do_not() -> None:
    weight = torch.randn(4, 4)
    back = round_trip({"a": weight, "b": weight.detach(), "c": weight.clone(), "d": weight[:2], "e": weight.t()})
    assert back["a"] is back["b"]
    assert back["a"].data_ptr() != back["c"].data_ptr()
    assert back["d"].equal(weight[:2]) and back["e"].equal(weight.t())


def test_module_and_optimizer_state_load_again() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(16, 4)).sum().backward()
    optimizer.step()
    back = round_trip({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    assert back["model"]._metadata == model.state_dict()._metadata
    assert list(back["optimizer"]["state"]) == [0, 1, 2, 3, 4, 5]
    other = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    other.load_state_dict(back["model"])
    fresh = torch.optim.AdamW(other.parameters(), lr=1.0)
    fresh.load_state_dict(back["optimizer"])
    assert same(optimizer.state_dict()["param_groups"], fresh.state_dict()["param_groups"])
    for batch in (torch.randn(16, 4), torch.randn(16, 4)):
        for net, opt in ((model, optimizer), (other, fresh)):
            opt.zero_grad()
            net(batch).sum().backward()
            opt.step()
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))


def test_random_generators_go_on_where_they_were() -> None:
    bits = np.random.Generator(np.random.PCG64(7))
    legacy = np.random.RandomState(3)
    own = random.Random(5)
    saved = {"bits": bits.bit_generator.state, "legacy": legacy.get_state(), "random": own.getstate()}
    back = round_trip(saved)
    expected = bits.integers(0, 2**60, 5).tolist(), legacy.randint(0, 2**30, 5).tolist(), own.random()
    bits.bit_generator.state = back["bits"]
    legacy.set_state(back["legacy"])
    own.setstate(back["random"])
    assert (bits.integers(0, 2**60, 5).tolist(), legacy.randint(0, 2**30, 5).tolist(), own.random()) == expected


def test_a_changed_tensor_is_not_mistaken_for_the_one_before() -> None:
    tensor = torch.zeros(8)
    before = flatten({"x": tensor})
    tensor.data = torch.ones(2, 2, dtype=torch.float64)
    assert same(flatten({"x": tensor}, previous=before).specs, (("t", "float64", (2, 2)),))


class Point(NamedTuple):
    x: int


class Custom:
    pass


class Registered:
    def state_dict(self) -> dict[str, int]:
        return {}


REFUSED = {
    "optimizer.state[3].foo": ({"optimizer": {"state": {3: {"foo": Custom()}}}}, "Custom"),
    "a[1][0]": ({"a": [1, ({1, 2},)]}, "sorted list"),
    "p": ({"p": Point(1)}, "plain tuple"),
    "d": ({"d": np.array([Custom()])}, "dtype object"),
    "s": ({"s": torch.eye(3).to_sparse()}, "dense"),
    "m": ({"m": torch.empty(3, device="meta")}, "materialise"),
    "r": ({"r": Registered()}, "state_dict"),
    "the state itself": (Custom(), "Custom"),
}


@pytest.mark.parametrize("path", REFUSED)
def test_what_cannot_be_kept_is_refused_by_its_path(path: str) -> None:
    tree, word = REFUSED[path]
    with pytest.raises(TypeError) as caught:
        flatten(tree)
    assert str(caught.value).startswith(f"{path}: ")
    assert word in str(caught.value)


def test_a_state_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    with pytest.raises(TypeError, match="contains itself"):
        flatten(loop)


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_garbage_is_refused_as_invalid(index: bytes) -> None:
    with pytest.raises(StateInvalid):
        unflatten(index, np.zeros(0, np.uint8))


@pytest.mark.parametrize(
    "tree",
    [
        '["a",0]',
        '["a",-1]',
        '["zz",1]',
        '["l"]',
        "[]",
        '["k",["x"],[]]',
        '["f","00"]',
        '["b","*"]',
        "[" * 5000 + "]" * 5000,
    ],
)
def test_a_malformed_index_is_refused(tree: str) -> None:
    with pytest.raises(StateInvalid):
        unflatten(f'{{"format":1,"tree":{tree},"leaves":[]}}'.encode(), np.zeros(0, np.uint8))


@pytest.mark.parametrize(
    "leaf", ['["t","float99",[1]]', '["n","O",[1]]', '["n","<f8",[-1]]', '["n","<f8",[99999999999]]']
)
def test_a_leaf_that_does_not_fit_is_refused(leaf: str) -> None:
    with pytest.raises(StateInvalid):
        unflatten(f'{{"format":1,"tree":["a",0],"leaves":[{leaf}]}}'.encode(), np.zeros(64, np.uint8))


def test_numpy_only_programs_never_load_torch() -> None:
    code = (
        "import sys, numpy as np\n"
        "from keepstep.checkpoint import LocalCheckpoints, SnapshotClient, flatten\n"
        "from keepstep.checkpoint.state.blob import pack, unpack, digest_chunks\n"
        "b = np.frombuffer(pack(flatten({'a': np.arange(5)})), np.uint8)\n"
        "assert unpack(b, digest_chunks(b).root)['a'].tolist() == [0, 1, 2, 3, 4]\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

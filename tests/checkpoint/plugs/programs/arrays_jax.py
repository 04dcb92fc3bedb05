"""Saves and loads JAX arrays on a mesh of this process's devices, and prints what it finds.

arrays_jax.py DIRECTORY save               a state on a mesh of 2 x N/2
arrays_jax.py DIRECTORY load               onto one of N x 1
arrays_jax.py DIRECTORY ranks PORT RANK    like save, by two processes together
arrays_jax.py DIRECTORY odd                what is said of devices that are no neighbours
"""

import hashlib
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from keepstep.checkpoint import LocalCheckpoints, StateInvalid, flatten
from keepstep.checkpoint.plugs.jax_arrays import _around, load, state_of
from keepstep.checkpoint.state.boxes import Extent

MAKE = {
    "w": lambda: np.arange(96, dtype=np.float32).reshape(8, 12),
    "half": lambda: np.arange(16, dtype=np.float32).reshape(8, 2).astype(jnp.bfloat16),
    "all": lambda: np.linspace(0, 1, 5, dtype=np.float32),
    "uneven": lambda: np.arange(24).reshape(4, 6).astype(np.int32),
}
SPECS = {
    "w": PartitionSpec("x", "y"), "half": PartitionSpec("x"), "all": PartitionSpec(), "uneven": PartitionSpec(None, "x"),
}  # fmt: skip


def state(mesh: Any, specs: dict[str, Any], fill: bool) -> dict[str, Any]:
    """The state on a mesh; with zeros unless ``fill``."""
    arrays: dict[str, Any] = {}
    for name, make in MAKE.items():
        value = make() if fill else np.zeros_like(make())
        arrays[name] = jax.make_array_from_callback(
            value.shape, NamedSharding(mesh, specs[name]), lambda index, value=value: value[index]
        )
    key = jax.random.key(42 if fill else 0)
    return {"arrays": arrays, "step": 7 if fill else 0, "opt": [np.ones(3) * fill], "key": key}


def digest(tree: Any) -> str:
    """Of every bit, on a mesh that this process has."""
    hasher = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        hasher.update(f"{path} {np.asarray(leaf).dtype}".encode() + np.asarray(leaf).tobytes())
    return hasher.hexdigest()


def odd() -> str:
    try:
        _around([Extent((0, 0), (2, 2)), Extent((2, 2), (2, 2))], (4, 4))
    except ValueError as error:
        return str(error)
    return ""


def main(directory: str, what: str, *rest: str) -> None:
    if what == "odd":
        print(json.dumps({"refused": odd()}))
        return
    if what == "ranks":
        place = f"127.0.0.1:{rest[0]}"
        jax.distributed.initialize(place, num_processes=2, process_id=int(rest[1]), coordinator_bind_address=place)
    checkpoints = LocalCheckpoints(directory, job="jax", run="one")
    rank, world = jax.process_index(), jax.process_count()
    if what != "load":
        count = len(jax.devices())
        tree = state(jax.make_mesh((2, count // 2), ("x", "y")), SPECS, True)
        checkpoints.save(7, {"train": flatten(state_of(tree))}, rank, world)
        print(json.dumps({"devices": count, "digest": digest(tree) if world == 1 else ""}))
        return
    mesh = jax.make_mesh((len(jax.devices()), 1), ("x", "y"))
    commit = checkpoints.newest_valid()
    assert commit is not None, checkpoints.skipped
    other = SPECS | {"w": PartitionSpec(None, "x") if 12 % len(jax.devices()) == 0 else PartitionSpec("x")}
    other["uneven"] = PartitionSpec()
    like = state(mesh, other, False)
    found = load(checkpoints.repository, commit.key, like, group="train")
    for name in MAKE:
        assert found["arrays"][name].sharding == like["arrays"][name].sharding
    refused = []
    half = like["arrays"] | {"half": like["arrays"]["w"]}
    for wrong in (like | {"more": like["key"]}, like | {"arrays": half}):
        try:
            load(checkpoints.repository, commit.key, wrong, group="train")
        except StateInvalid as error:
            refused.append(str(error))
    world = len(checkpoints.repository.manifest(commit.key).ranks)
    print(json.dumps({"digest": digest(found), "step": found["step"], "refused": refused, "world": world}))


if __name__ == "__main__":
    main(*sys.argv[1:])

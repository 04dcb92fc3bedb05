"""JAX arrays as state, and state as JAX arrays of any sharding.

    checkpoints.save(step, {"train": flatten(state_of(train_state))}, jax.process_index(), jax.process_count())
    train_state = load(checkpoints.repository, commit.key, like=train_state, group="train")

A process saves the boxes of its own devices, which are put together where they make one box; a load reads the boxes that its
own devices need, whatever the sharding was when they were saved. Owns that, and dtypes that numpy cannot name. Must not run
a computation: nothing here compiles, and no process waits for another.
"""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.reshard.load import load_resharded
from keepstep.checkpoint.state.boxes import Extent, within
from keepstep.checkpoint.state.leaves import numpy_dtype_name
from keepstep.checkpoint.state.shards import Shard

_LEAVES = "leaves"
_UNNAMED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def state_of(tree: Any) -> dict[str, Any]:
    """This process's part of a pytree, for ``flatten``. Arrays are views of live buffers where the platform allows it.

    Raises ValueError that names an array of which this process's devices have no box.
    """
    leaves: dict[str, Any] = {}
    dtypes: dict[str, str] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = jax.tree_util.keystr(path)
        if not isinstance(leaf, jax.Array):
            leaves[name] = leaf
            continue
        if _is_key(leaf):
            dtypes[name] = f"key {jax.random.key_impl(leaf)}"
            leaf = jax.random.key_data(leaf)
        elif numpy_dtype_name(leaf.dtype) is None:
            dtypes[name] = leaf.dtype.name
        try:
            leaves[name] = _part(leaf)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return {_LEAVES: leaves, "dtypes": dtypes}


def load(
    repository: Repository, key: str, like: Any, *, group: str, rank: int | None = None, world_size: int | None = None
) -> Any:
    """Group ``group`` of commit ``key`` as a pytree with the structure, shapes, dtypes and shardings of ``like``.

    ``like``: arrays, or ``jax.ShapeDtypeStruct`` with a sharding. ``rank``, ``world_size``: by default this process among
    all. Raises StateInvalid that names what does not fit or was saved by nobody, a key error, or OSError.
    """
    rank = jax.process_index() if rank is None else rank
    world_size = jax.process_count() if world_size is None else world_size
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    wanted = {jax.tree_util.keystr(path): leaf for path, leaf in paths}
    parts = repository.manifest(key).ranks
    saved = {each.path: each.shape for part in parts for each in part.sharded.get(group, ())}
    targets = {
        path: _target(leaf, saved[path]) for name, leaf in wanted.items() if (path := f"{_LEAVES}.{name}") in saved
    }
    state: Any = load_resharded(repository, key, rank, world_size, {group: targets}).groups.get(group)
    try:
        leaves, dtypes = state[_LEAVES], state["dtypes"]
    except (LookupError, TypeError) as error:
        raise StateInvalid(f"group {group} of checkpoint {key} was not saved as JAX arrays") from error
    if leaves.keys() != wanted.keys():
        odd = min(leaves.keys() ^ wanted.keys())
        where = "was not saved" if odd in wanted else "was saved, and the state to be loaded does not have it"
        raise StateInvalid(f"{odd} of group {group} {where}")
    try:
        made = [_made(name, leaves[name], dtypes.get(name, ""), leaf) for name, leaf in wanted.items()]
    except (TypeError, ValueError, AttributeError) as error:
        raise StateInvalid(f"group {group} of checkpoint {key} does not hold what it says: {error}") from error
    return jax.tree_util.tree_unflatten(structure, made)


def _is_key(leaf: Any) -> bool:
    return bool(jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _part(array: Any) -> Any:
    """What this process has of an array: the whole if every device has it, else one box of it."""
    if array.is_fully_replicated:
        return _plain(array.addressable_data(0))
    boxes = {_extent(shard.index, array.shape): shard.data for shard in array.addressable_shards}
    outer = _around(boxes, array.shape)
    if len(boxes) == 1:
        return Shard(_plain(next(iter(boxes.values()))), array.shape, outer.offset)
    whole = np.empty(outer.shape, array.dtype)
    for box, data in boxes.items():
        whole[within(box, outer)] = data
    return Shard(_plain(whole), array.shape, outer.offset)


def _plain(data: Any) -> Any:
    """As a numpy array of a dtype that has a portable name: the same bits."""
    data = np.asarray(data)
    return data if numpy_dtype_name(data.dtype) is not None else data.view(_UNNAMED[data.dtype.itemsize])


def _extent(index: tuple[slice, ...], shape: tuple[int, ...]) -> Extent:
    ranges = [part.indices(size) for part, size in zip(index, shape, strict=True)]
    return Extent(tuple(begin for begin, _, _ in ranges), tuple(end - begin for begin, end, _ in ranges))


def _around(boxes: Iterable[Extent], shape: tuple[int, ...]) -> Extent:
    """The box that some disjoint boxes make. Raises ValueError if they make none."""
    boxes = list(boxes)
    begins = [min(box.offset[axis] for box in boxes) for axis in range(len(shape))]
    ends = [max(box.offset[axis] + box.shape[axis] for box in boxes) for axis in range(len(shape))]
    outer = Extent(tuple(begins), tuple(end - begin for begin, end in zip(begins, ends, strict=True)))
    if sum(int(np.prod(box.shape)) for box in boxes) != int(np.prod(outer.shape)):
        raise ValueError(
            f"the devices of this process have {len(boxes)} parts of an array of {shape} that make no box: order the mesh"
            " so that a process has neighbouring parts (jax.make_mesh does)"
        )
    return outer


def _target(leaf: Any, shape: tuple[int, ...]) -> Extent:
    """The box of a saved array that this process needs for ``leaf``."""
    sharding = getattr(leaf, "sharding", None)
    if sharding is None or _is_key(leaf) or tuple(leaf.shape) != tuple(shape):
        return Extent((0,) * len(shape), tuple(shape))
    indices = sharding.addressable_devices_indices_map(tuple(shape)).values()
    return _around({_extent(index, shape) for index in indices}, tuple(shape))


def _made(name: str, value: Any, dtype: str, leaf: Any) -> Any:
    """A loaded value as what ``leaf`` is."""
    shard = value if isinstance(value, Shard) else None
    data = value if shard is None else shard.data
    if dtype.startswith("key "):
        key = jax.random.wrap_key_data(data, impl=dtype.removeprefix("key "))
        _check(name, key.shape, key.dtype, leaf)
        return jax.device_put(key, getattr(leaf, "sharding", None))
    if dtype:
        data = data.view(jax.numpy.dtype(dtype))
    if not hasattr(leaf, "sharding"):
        return data
    data = np.asarray(data)
    shape = data.shape if shard is None else shard.shape
    _check(name, shape, data.dtype, leaf)
    outer = Extent((0,) * len(shape), shape) if shard is None else shard.extent
    sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    def cut(index: tuple[slice, ...] | None) -> Any:
        return data[within(_extent(index or (), shape), outer)]

    return jax.make_array_from_callback(shape, sharding, cut)


def _check(name: str, shape: tuple[int, ...], dtype: Any, leaf: Any) -> None:
    if tuple(shape) != tuple(leaf.shape) or dtype != leaf.dtype:
        raise StateInvalid(
            f"{name} was saved as {dtype} of {tuple(shape)}, and is to be {leaf.dtype} of {tuple(leaf.shape)}"
        )

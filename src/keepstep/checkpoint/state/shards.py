"""Sharded tensors: the part that this rank has, and where in the whole it lies. Owns what a tree says about that.

A ``Shard`` in a tree is a leaf with a box. A torch DTensor becomes one, if torch's distributed tensors are loaded at all;
nothing here loads them. Must not copy data, except where a part is cut out for a live tensor in :func:`fit`.
"""

import functools
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.state.boxes import Extent, check_box, intersect, within
from keepstep.checkpoint.state.index import Index, decode_index, refuse


class Sharded(Struct, frozen=True, array_like=True):
    """A tensor of which ranks have parts, as one rank sees it."""

    path: str
    """Its place in the group's tree, for example ``layers.0.weight``."""
    dtype: str
    """``float32`` and the like for a torch tensor, ``<f4`` and the like for a numpy array."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    extent: Extent


class Shard:
    """One rank's part of a tensor.

    ``data``: numpy array or dense torch tensor, live: it is copied when a snapshot is taken. ``shape``: of the whole tensor.
    ``offset``: where in it ``data`` begins. Ranks that give the same box have equal data. Raises ValueError for a box that
    is not inside.
    """

    __slots__ = ("data", "offset", "shape")

    def __init__(self, data: Any, shape: tuple[int, ...], offset: tuple[int, ...]) -> None:
        self.data, self.shape, self.offset = data, tuple(shape), tuple(offset)
        check_box(self.shape, self.extent)

    @property
    def extent(self) -> Extent:
        return Extent(self.offset, tuple(self.data.shape))

    def __repr__(self) -> str:
        return f"Shard({tuple(self.data.shape)} at {self.offset} of {self.shape}, {self.data.dtype})"


def dtensor_type() -> Any:
    """torch's DTensor; None while it is not loaded."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)


class Shards:
    """Several parts of one tensor that one rank has: of its devices, say. At least one; raises ValueError if they are not of
    one tensor."""

    __slots__ = ("parts",)

    def __init__(self, parts: Iterable[Shard]) -> None:
        self.parts = tuple(parts)
        kinds = {type(part) is Shard and (part.shape, type(part.data), str(part.data.dtype)) for part in self.parts}
        if len(kinds) != 1 or False in kinds:
            raise ValueError(f"parts of one tensor have one shape and dtype: {self.parts}")

    def __repr__(self) -> str:
        return f"Shards({', '.join(map(repr, self.parts))})"


Meshes = dict[int, tuple[Any, tuple[int, ...], tuple[int, ...]]]
"""id() of a torch mesh -> the mesh, its shape, and the place of this rank in it. Not for longer than one pass over a tree."""


def shard_of(tensor: Any) -> Shard:
    """A DTensor as a Shard of live data. Raises Unrepresentable for a placement that is no box."""
    local, offset = part_of(tensor, {})
    return Shard(local, tuple(tensor.shape), offset)


def part_of(tensor: Any, meshes: Meshes) -> tuple[Any, tuple[int, ...]]:
    """What a DTensor holds, and where in the whole that begins. Raises Unrepresentable."""
    mesh = tensor.device_mesh
    if id(mesh) not in meshes:
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            refuse("a DTensor on a mesh that this rank is not part of", "leave it out on this rank")
        meshes[id(mesh)] = (mesh, tuple(mesh.shape), tuple(coordinate))
    _, ranks, at = meshes[id(mesh)]
    offset, size = _box(tensor.placements, ranks, at, tuple(tensor.shape))
    # The tensor itself, not to_local(), which makes a new view of a parameter at every call: its identity tells a later
    # flatten that nothing changed.
    local = tensor._local_tensor
    if hasattr(local, "wait"):
        local = local.wait()
    if local.shape != size:
        refuse(
            f"a DTensor whose part has shape {tuple(local.shape)} where {tensor.placements} gives {size}",
            "give its part as a keepstep Shard with the offset that it really has",
        )
    return local, offset


@functools.lru_cache(maxsize=65536)
def _box(
    placements: tuple[Any, ...], ranks: tuple[int, ...], at: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Offset and size of the part of one rank: at place ``at`` in a mesh of ``ranks``. Steps differ in nothing of this."""
    offset, size = [0] * len(shape), list(shape)
    for mesh_axis, axis in _cuts(placements, ranks, len(shape)):
        chunk = -(-size[axis] // ranks[mesh_axis])
        begin = min(chunk * at[mesh_axis], size[axis])
        offset[axis] += begin
        size[axis] = min(chunk, size[axis] - begin)
    return tuple(offset), tuple(size)


def _cuts(placements: tuple[Any, ...], ranks: tuple[int, ...], axes: int) -> list[tuple[int, int]]:
    """Axis of the mesh and axis of the tensor of each cut, the coarsest first.

    torch cuts along its mesh from left to right. Where FSDP cuts what tensor parallelism has cut before, along the same axis
    but further left, it says so with a strided placement; that is a box still, cut from right to left.
    """
    from torch.distributed.tensor import Replicate, placement_types
    from torch.distributed.tensor import Shard as Split

    cut_axes = [getattr(placement, "dim", -1) for placement in placements]
    plain: list[tuple[int, int]] = []
    strided: list[tuple[int, int]] = []
    for mesh_axis, placement in enumerate(placements):
        if type(placement) is Replicate:
            continue
        axis = cut_axes[mesh_axis]
        finer = [
            count for count, cut in zip(ranks[mesh_axis + 1 :], cut_axes[mesh_axis + 1 :], strict=True) if cut == axis
        ]
        if type(placement) is Split and 0 <= axis < axes:
            plain.append((mesh_axis, axis))
        elif (
            type(placement) is placement_types._StridedShard
            and placement.split_factor == math.prod(finer)
            and axis not in [cut for _, cut in plain]
        ):
            strided.insert(0, (mesh_axis, axis))
        else:
            refuse(
                f"a DTensor that is placed as {placement} among {placements}",
                "reduce a Partial first (redistribute); have FSDP cut another axis than tensor parallelism"
                " (shard_placement_fn)",
            )
    return plain + strided


def shards_of(index: bytes) -> tuple[Sharded, ...]:
    """The sharded tensors of a group, in the order of its tree; several parts of one follow one another. Raises
    StateInvalid."""
    parsed = decode_index(index)
    return tuple(
        Sharded(path, spec[1], tuple(shape), Extent(tuple(offset), tuple(spec[2])))
        for path, _, parts in shard_nodes(parsed)
        for _, leaf, shape, offset in parts
        for spec in (parsed.leaves[leaf],)
    )


def shard_nodes(index: Index) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Path and index node of every sharded tensor, and the nodes of its parts, checked. Raises StateInvalid."""
    seen: set[str] = set()
    for path, node in _visit(index.tree):
        if type(node) is not list or not node or node[0] not in ("h", "p"):
            continue
        try:
            parts = [node] if node[0] == "h" else list(node[1])
            _check_parts(parts, index)
        except (ValueError, TypeError, LookupError) as error:
            raise StateInvalid(f"an index describes the shard {path} wrongly: {error}") from error
        if path in seen:
            raise StateInvalid(
                f"two sharded tensors of a group are called {path}: rename the keys that lead to one of them"
            )
        seen.add(path)
        yield path, node, parts


def _check_parts(parts: list[Any], index: Index) -> None:
    kinds = set()
    for tag, leaf, shape, offset in parts:
        if tag != "h" or type(leaf) is not int or leaf < 0:
            raise ValueError(f"{tag!r} of leaf {leaf!r} is no part of a tensor")
        kind, name, size = index.leaves[leaf]
        check_box(shape, Extent(tuple(offset), size))
        kinds.add((kind, name, tuple(shape)))
    if len(kinds) != 1:
        raise ValueError("its parts are not of one tensor")


def walk(tree: Any) -> Iterator[tuple[str, Any]]:
    """Dotted path and node of everything in an index's tree, in order; containers come without what is in them, and parts of
    one tensor each with its path. Raises StateInvalid."""
    for path, node in _visit(tree):
        if type(node) is list and node and node[0] == "p":
            if len(node) != 2 or type(node[1]) is not list:
                raise StateInvalid(f"the index of a state group is malformed at {path}")
            yield from ((path, part) for part in node[1])
        else:
            yield path, node


def _visit(tree: Any) -> Iterator[tuple[str, Any]]:
    pending: list[tuple[str, Any]] = [("", tree)]
    while pending:
        path, node = pending.pop()
        try:
            inner = _inner(node)
            yield path, node if inner is None else _emptied(node)
        except (LookupError, TypeError, ValueError) as error:
            raise StateInvalid(f"the index of a state group is malformed at {path}: {error}") from error
        pending += [(f"{path}.{key}" if path else str(key), value) for key, value in reversed(inner or [])]


def _emptied(node: Any) -> Any:
    """What tells a container from another one with the same things in it."""
    if type(node) is dict:
        return {}
    match node[0]:
        case "k":
            return ["k", node[1]]
        case "m":
            return ["m", _emptied(node[1]), node[2]]
        case "o":
            return ["o", _emptied(node[1])]
        case tag:
            return [tag]


def _inner(node: Any) -> list[tuple[Any, Any]] | None:
    """Keys and nodes in a container; None for anything else."""
    if type(node) is dict:
        return list(node.items())
    if type(node) is not list or node[0] not in ("l", "t", "k", "o", "m"):
        return None
    if node[0] in ("l", "t"):
        return list(enumerate(node[1]))
    if node[0] == "k":
        keys = (key if type(key) in (str, int, bool) else msgspec.json.encode(key).decode() for key in node[1])
        return list(zip(keys, node[2], strict=True))
    if type(node[1]) is not dict and node[1][0] != "k":
        raise ValueError("an ordered mapping is none")
    return _inner(node[1])


def fit(value: Any, like: Any) -> Any:
    """``value`` as it was loaded, with its shards made into what ``like``, the live state, has in their place.

    A DTensor gets a DTensor of its own placements, from a Shard or a whole tensor that has its part; a plain tensor gets the
    data of a Shard that is whole. Raises StateInvalid where the part that is needed was not loaded.
    """
    if isinstance(value, Mapping) and isinstance(like, Mapping):
        return type(value)((key, fit(each, like.get(key))) for key, each in value.items())  # type: ignore[call-arg]
    if type(value) in (list, tuple) and isinstance(like, (list, tuple)) and len(value) == len(like):
        return type(value)(map(fit, value, like))
    if (kind := dtensor_type()) is not None and isinstance(like, kind):
        local = _part(value, tuple(like.shape), shard_of(like).extent).to(like.device)
        return kind.from_local(
            local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )
    if type(value) in (Shard, Shards) and like is not None and type(like) not in (Shard, Shards):
        shape = tuple(like.shape)
        return _part(value, shape, Extent((0,) * len(shape), shape))
    return value


def _part(value: Any, shape: tuple[int, ...], wanted: Extent) -> Any:
    """A box of a tensor of ``shape``, out of what was loaded of it."""
    if type(value) is Shards:
        parts = value.parts
    else:
        parts = (value if type(value) is Shard else Shard(value, tuple(value.shape), (0,) * value.ndim),)
    if parts[0].shape != shape:
        raise StateInvalid(f"a tensor of {parts[0].shape} was saved where the live one has {shape}")
    if 0 in wanted.shape:
        return parts[0].data.reshape(-1)[:0].reshape(wanted.shape)
    for part in parts:
        has = part.extent
        if has == wanted:
            return part.data
        if intersect(has, wanted) == wanted:
            return part.data[within(wanted, has)]
    raise StateInvalid(
        f"{value} was loaded where {wanted.shape} at {wanted.offset} is needed: reshard it when it is loaded"
    )

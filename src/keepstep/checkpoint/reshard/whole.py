"""A whole checkpoint as one state, whatever ranks saved it: for exports. Owns what that state looks like.

Sharded tensors are put together. Groups are those of rank 0; what other ranks have otherwise, or alone (random numbers, the
layers of a pipeline stage), stands in groups of their own, ``<group>.rank<N>``: dotted path -> value.
"""

from collections.abc import Mapping
from typing import Any

from keepstep.checkpoint.format.records import Extent, Manifest
from keepstep.checkpoint.repository.repository import Repository, staging
from keepstep.checkpoint.reshard.assemble import assemble
from keepstep.checkpoint.reshard.compare import differing
from keepstep.checkpoint.reshard.load import load_resharded
from keepstep.checkpoint.reshard.saved import SavedGroup, SavedGroups
from keepstep.checkpoint.state.index import encode_index
from keepstep.checkpoint.state.leaves import Spec, leaf_bytes, offsets_of
from keepstep.checkpoint.state.shards import Shard, walk
from keepstep.checkpoint.state.tree import unflatten

_EMPTY: dict[Any, Any] = {"l": ["l", []], "t": ["t", []], "k": {}, "o": {}, "m": {}}
"""Containers that have nothing in them, by tag."""


def load_whole(repository: Repository, key: str) -> dict[str, Any]:
    """Name -> tree of plain arrays and tensors, every chunk checked. Takes as much memory as the state.

    Raises StateInvalid for a tensor of which nobody saved some element, a key error, or OSError.
    """
    manifest = repository.manifest(key)
    reader = repository.reader(manifest)
    saved = SavedGroups(reader)
    names = list(manifest.ranks[0].groups)
    wholes = {name: _wholes(manifest, name) for name in names}
    told = {name: {tensor.path for tensor in manifest.ranks[0].sharded.get(name, ())} for name in names}
    targets = {name: {path: wholes[name][path] for path in told[name]} for name in names}
    loaded = load_resharded(repository, key, 0, manifest.world_size, targets)
    groups = {name: _plain(tree) for name, tree in loaded.groups.items()}
    for name in names:
        for rank in range(1, manifest.world_size):
            others = differing(saved, manifest, name, (rank,))
            of_rank = saved.group(manifest.ranks[rank].groups[name])
            own = {path: whole for path, whole in wholes[name].items() if path in of_rank.shards.keys() - told[name]}
            told[name] |= own.keys()
            values = _values(saved, of_rank, others) | assemble(manifest, name, own, reader)
            if values:
                groups[f"{name}.rank{rank}"] = values
    return groups


def _wholes(manifest: Manifest, name: str) -> dict[str, Extent]:
    """The whole of every sharded tensor of a group."""
    tensors = {tensor.path: tensor.shape for part in manifest.ranks for tensor in part.sharded.get(name, ())}
    return {path: Extent((0,) * len(shape), shape) for path, shape in tensors.items()}


def _plain(tree: Any) -> Any:
    """A tree with its Shards, which are whole, as plain tensors."""
    if type(tree) is Shard:
        return tree.data
    if isinstance(tree, dict):
        for key, value in tree.items():
            tree[key] = _plain(value)
        return tree
    return type(tree)(map(_plain, tree)) if type(tree) in (list, tuple) else tree


def _values(saved: SavedGroups, group: SavedGroup, paths: Mapping[str, int]) -> dict[str, Any]:
    """What stands at these paths of a group, without its shards. Nothing else of it is read."""
    nodes: dict[str, Any] = {}
    leaves: list[int] = []
    above = {path.rpartition(".")[0] for path, _ in walk(group.index.tree) if path}
    for path, node in walk(group.index.tree):
        if path not in paths or (path in above and _is_container(node)):
            continue
        if type(node) is list and node[0] == "a":
            leaves.append(node[1])
            nodes[path] = ["a", len(leaves) - 1]
        elif _is_container(node):
            nodes[path] = _EMPTY[node[0]] if type(node) is list else {}
        elif type(node) is not list or node[0] != "h":
            nodes[path] = node
    specs: list[Spec] = [group.index.leaves[leaf] for leaf in leaves]
    offsets, size = offsets_of(specs)
    payload = staging(size)
    for leaf, spec, offset in zip(leaves, specs, offsets, strict=True):
        saved.read_leaf(group, leaf, payload[offset : offset + leaf_bytes(spec)])
    values: dict[str, Any] = unflatten(encode_index(nodes, specs), payload)
    return values


def _is_container(node: Any) -> bool:
    return type(node) is dict or (type(node) is list and node[0] in _EMPTY)

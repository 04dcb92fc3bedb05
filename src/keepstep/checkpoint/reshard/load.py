"""Loading a checkpoint into another world: other ranks, other parts. Owns what becomes of state that is not sharded.

sharded tensors       the parts that the new rank has, from whoever saved them
everything else       must have been equal on all ranks, or is declared: it is that of rank ``rank % saved ranks``
random numbers        ``derive``: a rank that was not there before starts from (seed, step, rank), and says so
data position         one global sample index travels; positions of single ranks mean nothing in another world
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.format.records import Extent, Manifest
from keepstep.checkpoint.repository.repository import Repository, staging
from keepstep.checkpoint.reshard.assemble import fill_boxes, plan_boxes
from keepstep.checkpoint.reshard.compare import differing
from keepstep.checkpoint.reshard.saved import Reader, SavedGroup, SavedGroups
from keepstep.checkpoint.state.index import decode_index, encode_index
from keepstep.checkpoint.state.leaves import Spec, leaf_bytes, offsets_of
from keepstep.checkpoint.state.shards import shard_nodes, walk
from keepstep.checkpoint.state.tree import unflatten

Targets = Mapping[str, Mapping[str, Extent | tuple[Extent, ...]]]
"""Group -> path -> the part that the new rank has, or several."""
_SHOWN = 3


class Policy(Struct, frozen=True, kw_only=True):
    """What may differ between ranks where the number of ranks changes. Places are ``group`` or ``group.path``, and stand for
    everything below them. What is not named here must have been equal on all ranks."""

    per_rank: Mapping[str, Literal["derive", "modulo"]] = {}
    """``modulo``: rank r goes on with the state of rank ``r % saved ranks``. ``derive``: likewise, but a rank that was not
    there before is told to start anew, see Derived."""
    positions: tuple[str, ...] = ()
    """Places of data positions. They travel only if they are equal on all ranks, whatever ``per_rank`` says."""
    seed: int = 0
    """For ``derive``."""


class Derived(Struct, frozen=True):
    """A place that the caller fills from these numbers, and writes into its records."""

    place: str
    seed: int
    step: int
    rank: int

    def words(self, count: int) -> list[int]:
        """``count`` numbers below 2**64, independent of those of any other step, rank or place."""
        entropy = [self.seed % 2**64, self.step, self.rank, int.from_bytes(self.place.encode(), "little")]
        return [int(word) for word in np.random.SeedSequence(entropy).generate_state(count, np.uint64)]


class Resharded(Struct, frozen=True):
    groups: dict[str, Any]
    """Name -> tree, in which sharded tensors are ``Shard``."""
    derived: tuple[Derived, ...]


class _World(Struct, frozen=True):
    """Where the state goes to."""

    rank: int
    world_size: int
    manifest: Manifest
    targets: Targets | None
    policy: Policy

    @property
    def base(self) -> int:
        return self.rank % self.manifest.world_size

    @property
    def is_other(self) -> bool:
        return self.world_size != self.manifest.world_size


def load_resharded(
    repository: Repository, key: str, rank: int, world_size: int, targets: Targets | None, policy: Policy | None = None
) -> Resharded:
    """The state of ``rank`` of ``world_size`` ranks out of commit ``key``, every chunk checked.

    ``targets``: the parts that this rank has of sharded tensors; those of a live state are ``Flat.sharded``. A tensor that it
    does not name, or that was saved whole, comes whole; ``fit`` cuts what the live state needs out of it. None: what this
    rank saved, which takes the same number of ranks. Every rank also compares its share of the saved ranks
    with the first, so a restore is sound if it succeeded on all of them. Raises StateInvalid for an element that nobody
    saved, and for state that differs between ranks against ``policy``; a key error; or OSError.
    """
    manifest = repository.manifest(key)
    return reshard(manifest, repository.reader(manifest), rank, world_size, targets, policy)


def reshard(
    manifest: Manifest,
    reader: Reader,
    rank: int,
    world_size: int,
    targets: Targets | None,
    policy: Policy | None = None,
) -> Resharded:
    """:func:`load_resharded` of a manifest whose groups ``reader`` reads."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not in a world of {world_size}")
    world = _World(rank, world_size, manifest, targets, policy or Policy())
    what = f"step {manifest.step}"
    names = list(world.manifest.ranks[world.base].groups)
    if targets is None and world.is_other:
        raise StateInvalid(
            f"{what} was saved by {world.manifest.world_size} ranks: say which parts rank {rank} of {world_size} has"
        )
    if unknown := sorted(set(targets or ()) - set(names)):
        raise StateInvalid(f"{what} has no group {unknown}: it has {names}")
    saved = SavedGroups(reader)
    try:
        if world.is_other:
            for name in names:
                _check_equal(saved, world, name)
        groups = {name: _load_group(saved, world, name) for name in names}
    except FileNotFoundError as error:
        raise StateInvalid(f"a piece of the checkpoint is missing: {error.filename or error}") from error
    return Resharded(groups, _derived(world))


def _derived(world: _World) -> tuple[Derived, ...]:
    if world.rank < world.manifest.world_size:
        return ()
    places = sorted(place for place, policy in world.policy.per_rank.items() if policy == "derive")
    return tuple(Derived(place, world.policy.seed, world.manifest.step, world.rank) for place in places)


def _check_equal(saved: SavedGroups, world: _World, name: str) -> None:
    """Compare this rank's share of the saved ranks with the first. Raises StateInvalid against the policy."""
    share = {*range(world.rank, world.manifest.world_size, world.world_size), world.base}
    wrong = []
    for path, rank in differing(saved, world.manifest, name, sorted(share)).items():
        place = f"{name}.{path}" if path else name
        if any(_is_below(place, position) for position in world.policy.positions):
            raise StateInvalid(
                f"{place} is the data position of one rank: ranks 0 and {rank} have different ones, which mean nothing to"
                f" {world.world_size} ranks where {world.manifest.world_size} saved them. Keep one position of all ranks"
                " together (keepstep.resumable does), or start as many ranks as before"
            )
        if not any(_is_below(place, declared) for declared in world.policy.per_rank):
            wrong.append((place, rank))
    if wrong:
        shown = ", ".join(f"{place} (ranks 0 and {rank})" for place, rank in wrong[:_SHOWN])
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise StateInvalid(
            f"state differs between ranks, so {world.world_size} ranks cannot take it over from"
            f" {world.manifest.world_size}: {shown}{more}. Declare each as 'derive' (random numbers) or 'modulo', give"
            " parts of a tensor as Shard, or start as many ranks as before"
        )


def _is_below(place: str, prefix: str) -> bool:
    return place == prefix or place.startswith(f"{prefix}.")


def _load_group(saved: SavedGroups, world: _World, name: str) -> Any:
    group = saved.group(world.manifest.ranks[world.base].groups[name])
    moved = _Moved(group, _boxes(group, world, name))
    offsets, size = offsets_of(moved.specs)
    payload = staging(size)
    places = [payload[offset : offset + leaf_bytes(spec)] for offset, spec in zip(offsets, moved.specs, strict=True)]
    for leaf, number in moved.kept.items():
        saved.read_leaf(group, leaf, places[number])
    plan = plan_boxes(world.manifest, name, list(moved.parts), world.rank)
    fill_boxes(saved, plan, [places[number] for number in moved.parts.values()])
    return unflatten(encode_index(moved.tree, moved.specs), payload)


def _boxes(group: SavedGroup, world: _World, name: str) -> dict[str, tuple[Extent, ...] | Extent]:
    """The box, or boxes, that the new rank has of every sharded tensor in a group's tree."""
    if world.targets is None:
        return {path: tuple(boxes) if len(boxes) > 1 else next(iter(boxes)) for path, boxes in group.shards.items()}
    targets = world.targets.get(name, {})
    plain = {path for path, node in walk(group.index.tree) if type(node) is list and node and node[0] == "a"}
    if unknown := sorted(targets.keys() - group.shards.keys() - plain):
        raise StateInvalid(f"group {name} of rank {world.base} has no tensor {unknown[0]}: targets name what was saved")
    boxes: dict[str, tuple[Extent, ...] | Extent] = {}
    for path, _, parts in shard_nodes(group.index):
        shape = tuple(parts[0][2])
        boxes[path] = targets.get(path, Extent((0,) * len(shape), shape))
    return boxes


class _Moved:
    """A group's index with other boxes. Tied tensors stay tied where their boxes are equal."""

    def __init__(self, group: SavedGroup, boxes: Mapping[str, tuple[Extent, ...] | Extent]) -> None:
        index = decode_index(group.index_bytes)
        self.tree = index.tree
        self.specs: list[Spec] = []
        self.kept: dict[int, int] = {}
        """Saved leaf -> its number now, of what is no part of a tensor."""
        self.parts: dict[tuple[str, Extent], int] = {}
        """Path and box -> leaf, each leaf once."""
        self._tied: dict[tuple[tuple[int, ...], Extent], int] = {}
        for _, node in walk(index.tree):
            if type(node) is list and node and node[0] == "a":
                node[1] = self._keep(node[1], index.leaves)
        for path, node, parts in shard_nodes(index):
            _, leaf, shape, _ = parts[0]
            tie, new, box = tuple(part[1] for part in parts), [], boxes[path]
            for each in box if isinstance(box, tuple) else (box,):
                new.append(["h", self._part(path, tie, each, index.leaves[leaf]), shape, list(each.offset)])
            node[:] = ["p", new] if isinstance(box, tuple) else new[0]

    def _keep(self, leaf: Any, specs: Sequence[Spec]) -> int:
        if type(leaf) is not int or not 0 <= leaf < len(specs):
            raise StateInvalid(f"an index names leaf {leaf!r}")
        if leaf not in self.kept:
            self.kept[leaf] = len(self.specs)
            self.specs.append(specs[leaf])
        return self.kept[leaf]

    def _part(self, path: str, tie: tuple[int, ...], box: Extent, spec: Spec) -> int:
        number = self._tied.get((tie, box), -1)
        if number < 0:
            number = self._tied[tie, box] = self.parts[path, box] = len(self.specs)
            self.specs.append((spec[0], spec[1], box.shape))
        return number

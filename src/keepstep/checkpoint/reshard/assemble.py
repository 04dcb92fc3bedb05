"""Boxes of saved tensors, put together from the shards that ranks saved. Owns which shard gives which element.

An element that no rank saved is refused, never filled in. Must not know why somebody wants which box.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.format.records import Extent, Manifest, Sharded
from keepstep.checkpoint.repository.repository import staging
from keepstep.checkpoint.reshard.saved import Reader, SavedGroups, elements
from keepstep.checkpoint.state.boxes import check_box, first_fault, intersect, within
from keepstep.checkpoint.state.leaves import Spec, is_torch_dtype, item_bytes, leaf_bytes, load_leaves, offsets_of


class Wanted(Struct, frozen=True):
    """A box of a saved tensor, and every saved shard that has some of it."""

    path: str
    spec: Spec
    """Of the box."""
    extent: Extent
    sources: tuple[tuple[str, Extent], ...]
    """Digest of a group, and the box that its rank has of the tensor."""


def assemble(manifest: Manifest, group: str, wanted: Mapping[str, Extent], reader: Reader) -> dict[str, Any]:
    """Path -> array or torch tensor: the box ``wanted`` of each sharded tensor of ``group``, every chunk checked.

    Reads only chunks that the boxes touch. Raises StateInvalid, naming the tensor and the element, if a part of a box was
    saved by no rank; a key error; or OSError.
    """
    plan = plan_boxes(manifest, group, list(wanted.items()))
    specs = [each.spec for each in plan]
    offsets, size = offsets_of(specs)
    payload = staging(size)
    places = [payload[at : at + leaf_bytes(spec)] for at, spec in zip(offsets, specs, strict=True)]
    fill_boxes(SavedGroups(reader), plan, places)
    return dict(zip((each.path for each in plan), load_leaves(specs, payload), strict=True))


def plan_boxes(manifest: Manifest, group: str, wanted: Sequence[tuple[str, Extent]], rank: int = 0) -> list[Wanted]:
    """Where each box is to be found. ``rank``: of the reader; among replicas, ranks choose different ones."""
    saved: dict[str, dict[Extent, list[str]]] = {path: {} for path, _ in wanted}
    kinds: dict[str, Sharded] = {}
    for part in manifest.ranks:
        for sharded in part.sharded.get(group, ()):
            if sharded.path in saved:
                kinds.setdefault(sharded.path, sharded)
                saved[sharded.path].setdefault(sharded.extent, []).append(part.groups[group])
    if absent := sorted(saved.keys() - kinds.keys()):
        raise StateInvalid(f"group {group} of step {manifest.step} has no sharded tensor {', '.join(absent[:5])}")
    plan = []
    for path, extent in wanted:
        boxes = {box: digests[rank % len(digests)] for box, digests in saved[path].items()}
        plan.append(_plan_box(kinds[path], extent, boxes))
    return plan


def _plan_box(whole: Sharded, extent: Extent, boxes: Mapping[Extent, str]) -> Wanted:
    try:
        check_box(whole.shape, extent)
    except ValueError as error:
        raise StateInvalid(f"{whole.path}: {error}") from None
    parts = [(box, part) for box in boxes if (part := intersect(box, extent)) is not None]
    fault = first_fault(extent.shape, [_relative(part, extent) for _, part in parts])
    if fault is not None:
        element = tuple(at + begin for at, begin in zip(fault.element, extent.offset, strict=True))
        what = "was saved in two different shards" if fault.boxes else "was saved by no rank"
        raise StateInvalid(f"{whole.path}, a tensor of {whole.shape}, is not whole: element {element} {what}")
    spec = ("t" if is_torch_dtype(whole.dtype) else "n", whole.dtype, extent.shape)
    return Wanted(whole.path, spec, extent, tuple((boxes[box], box) for box, _ in parts))


def _relative(box: Extent, origin: Extent) -> Extent:
    return Extent(tuple(at - begin for at, begin in zip(box.offset, origin.offset, strict=True)), box.shape)


def fill_boxes(saved: SavedGroups, plan: Sequence[Wanted], places: Sequence["np.ndarray[Any, Any]"]) -> None:
    """Read every box into its place (uint8, its size). Group by group, in the order of their leaves."""
    by_group: dict[str, list[tuple[Wanted, Any, Extent]]] = {}
    for wanted, place in zip(plan, places, strict=True):
        for digest, box in wanted.sources:
            by_group.setdefault(digest, []).append((wanted, place, box))
    for digest, moves in by_group.items():
        group = saved.group(digest)
        for wanted, _, box in moves:
            leaf = group.shards.get(wanted.path, {}).get(box, -1)
            if leaf < 0 or group.index.leaves[leaf][:2] != wanted.spec[:2]:
                raise StateInvalid(f"group {digest} has not the shard of {wanted.path} that its receipt says it has")
        moves.sort(key=lambda move: group.offsets[group.shards[move[0].path][move[2]]])
        for wanted, place, box in moves:
            item = item_bytes(wanted.spec)
            part = intersect(box, wanted.extent)
            if part is None or not item:
                continue
            target = elements(place, wanted.extent.shape, item)[within(part, wanted.extent)]
            saved.read_box(group, group.shards[wanted.path][box], _relative(part, box), target)

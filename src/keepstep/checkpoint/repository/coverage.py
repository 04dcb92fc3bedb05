"""Whether the shards of a save make whole tensors: every element, and none twice. Owns that verdict; pure.

Takes about n log n steps in the number of shards, whatever their layout, see boxes.
"""

from collections.abc import Sequence

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.format.records import Extent, Part
from keepstep.checkpoint.state.boxes import first_fault


class _Whole:
    """One tensor as its ranks describe it."""

    __slots__ = ("boxes", "dtype", "ranks", "shape")

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        self.dtype, self.shape = dtype, shape
        self.boxes: list[Extent] = []
        self.ranks: list[int] = []


def check_coverage(parts: Sequence[Part]) -> None:
    """Raises StateInvalid naming the tensor and an element that no rank saved, or that two saved in different shards.

    ``parts``: of all ranks, in order. Equal shards of several ranks are replicas, and empty ones are fine.
    """
    for (group, path), whole in _wholes(parts).items():
        fault = first_fault(whole.shape, whole.boxes)
        if fault is None:
            continue
        name = f"{path} of group {group}, a tensor of {whole.shape},"
        if not fault.boxes:
            raise StateInvalid(f"{name} is not whole: no rank saved element {fault.element}")
        first, second = (whole.ranks[number] for number in fault.boxes)
        raise StateInvalid(
            f"{name} is saved twice at element {fault.element}: shards of ranks {first} and {second} overlap"
        )


def _wholes(parts: Sequence[Part]) -> dict[tuple[str, str], _Whole]:
    wholes: dict[tuple[str, str], _Whole] = {}
    for rank, part in enumerate(parts):
        for group, tensors in part.sharded.items():
            if group not in part.groups:
                raise StateInvalid(f"rank {rank} describes shards of group {group}, which it has not saved")
            for sharded in tensors:
                whole = wholes.get((group, sharded.path))
                if whole is None:
                    whole = wholes[group, sharded.path] = _Whole(sharded.dtype, sharded.shape)
                elif whole.shape != sharded.shape or whole.dtype != sharded.dtype:
                    raise StateInvalid(
                        f"{sharded.path} of group {group} is {sharded.dtype} of {sharded.shape} on rank {rank}, and"
                        f" {whole.dtype} of {whole.shape} on rank {whole.ranks[0]}"
                    )
                whole.boxes.append(sharded.extent)
                whole.ranks.append(rank)
    return wholes

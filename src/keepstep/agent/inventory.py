"""The parts of this node and all of their names. Owns which resource a part is; must not guess where nobody said so.

A slot is learned once and stays: when a card is lost, the driver counts the others anew, and an index alone would then blame
the wrong one.
"""

from collections.abc import Sequence

from keepstep.agent.settings import DeclaredDevice
from keepstep.core.facts import NodePart
from keepstep.core.ids import NodeId, ResourceId, device_resource, node_resource
from keepstep.core.observation import Same, kind_of, name_of
from keepstep.core.parts import Parts

NAMES_MAX = 2048


class Inventory:
    """Grows by what sources say of names; every name is of this one node."""

    def __init__(self, node: NodeId, declared: Sequence[DeclaredDevice] = ()) -> None:
        self._node = node
        self._parts = Parts()
        self._names: dict[str, None] = {}
        self._slots: dict[str, int] = {}
        """Any name that is not an index -> slot."""
        self._declared = {one.slot: one for one in declared}
        self.version = 0
        """Grows with every news."""
        for device in declared:
            self._remember(device.names)
            self._slots |= dict.fromkeys(device.names, device.slot)

    def learn(self, same: Same) -> None:
        names = self._without_stolen_indices(same.parts)
        fresh = [name for name in names if name not in self._names]
        joined = len({self.canonical(name) for name in names}) == 1
        if not names or (joined and not fresh) or len(self._names) + len(fresh) > NAMES_MAX:
            return
        self._remember(names)
        self._learn_slot(names)

    def _without_stolen_indices(self, names: Sequence[str]) -> list[str]:
        """An index that belongs to another card already was counted anew: it says nothing any more."""
        ours = {self.canonical(name) for name in names if not _is_index(name)}
        return [
            name for name in names if not _is_index(name) or name not in self._names or self.canonical(name) in ours
        ]

    def _remember(self, names: Sequence[str]) -> None:
        self._names |= dict.fromkeys(names)
        self._parts.join(Same(parts=tuple(names)))
        self.version += 1

    def _learn_slot(self, names: Sequence[str]) -> None:
        known = next((self._slots[name] for name in names if name in self._slots), None)
        index = next((int(name_of(name)) for name in names if _is_index(name)), None)
        slot = known if known is not None else index
        if slot is None or (known is None and slot in self._slots.values()):
            return
        for name in names:
            if kind_of(name) == "gpu" and not _is_index(name):
                self._slots.setdefault(name, slot)

    def canonical(self, part: str) -> str:
        return self._parts.canonical("", part)

    def slot(self, part: str) -> int | None:
        """Of a device that is known by a name that lasts; None for anything else."""
        if part in self._slots:
            return self._slots[part]
        return next((self._slots[name] for name in self._parts.names("", part) if name in self._slots), None)

    def resource(self, part: str) -> ResourceId:
        """The device where its slot is known; else the node."""
        slot = self.slot(part) if part else None
        return node_resource(self._node) if slot is None else device_resource(self._node, slot)

    def parts(self) -> tuple[NodePart, ...]:
        """Every part once, with all of its names, in the order in which they were first seen."""
        found: dict[str, NodePart] = {}
        for name in self._names:
            canonical = self.canonical(name)
            if canonical in found:
                continue
            slot = self.slot(canonical)
            declared = self._declared.get(slot) if slot is not None else None
            found[canonical] = NodePart(
                names=self._parts.names("", canonical), slot=slot,
                serial=declared.serial if declared else "", model=declared.model if declared else "",
                firmware=declared.firmware if declared else "",
            )  # fmt: skip
        return tuple(found.values())


def _is_index(name: str) -> bool:
    return kind_of(name) == "gpu" and name_of(name).isdecimal()

"""Which names are one and the same part: an index, a PCI address, a UUID and a slot of one card. Pure; guesses nothing.

Two names are the same only where some evidence said so (``Same``), or where one spelling contains the other: a function of a
PCI device, a port of an adapter.
"""

from collections.abc import Iterable

from msgspec import Struct, field

from keepstep.core.observation import Same, kind_of


class Parts(Struct, kw_only=True):
    """Union of what was said to be the same."""

    better: dict[str, dict[str, str]] = field(default_factory=dict)
    """Node -> name -> a name of the same part that is preferred to it."""

    def join(self, same: Same) -> None:
        known = self.better.setdefault(same.node, {})
        for part in same.parts[1:]:
            first, other = self.canonical(same.node, same.parts[0]), self.canonical(same.node, part)
            if first != other:
                low, high = sorted((first, other), key=lambda name: (_rank(name), name))
                known[high] = low

    def canonical(self, node: str, part: str) -> str:
        """The name under which a part goes: a PCI address before a UUID before an index; itself where nothing is known."""
        known = self.better.get(node)
        while known and part in known:
            part = known[part]
        return part

    def names(self, node: str, part: str) -> tuple[str, ...]:
        """Every name of a part, its canonical one first."""
        root = self.canonical(node, part)
        others = sorted(name for name in self.better.get(node, ()) if self.canonical(node, name) == root)
        return (root, *others)


def joined(said: Iterable[Same]) -> Parts:
    """Everything that was said to be the same."""
    parts = Parts()
    for same in said:
        parts.join(same)
    return parts


def _rank(part: str) -> int:
    """PCI addresses first: the kernel, the driver and the BMC all know them."""
    name = part.partition("/")[2]
    if name.count(":") == 2 and kind_of(part) in ("gpu", "nic", "disk", "nvswitch", "pci"):
        return 0
    if name.startswith(("GPU-", "MIG-")):
        return 1
    return 3 if name.isdecimal() else 2

"""Which names are one and the same part: an index, a PCI address, a UUID and a slot of one card. Pure; guesses nothing.

Two names are the same only where some evidence said so (``Same``), or where one spelling contains the other: a function of a
PCI device, a port of an adapter.
"""

from collections.abc import Iterable

from keepstep.core.observation import Same, kind_of


class Parts:
    """Union of what was said to be the same."""

    def __init__(self, said: Iterable[Same] = ()) -> None:
        self._parent: dict[tuple[str, str], tuple[str, str]] = {}
        for same in said:
            self.join(same)

    def join(self, same: Same) -> None:
        names = [(same.node, part) for part in same.parts]
        for name in names[1:]:
            first, other = self._root(names[0]), self._root(name)
            if first != other:
                low, high = sorted((first, other), key=lambda x: (_rank(x[1]), x))
                self._parent[high] = low

    def canonical(self, node: str, part: str) -> str:
        """The name under which a part goes: a PCI address before a UUID before an index; itself where nothing is known."""
        return self._root((node, part))[1]

    def names(self, node: str, part: str) -> tuple[str, ...]:
        """Every name of a part, its canonical one first."""
        root = self._root((node, part))
        others = sorted(name for host, name in self._parent if host == node and self._root((host, name)) == root)
        return (root[1], *(name for name in others if name != root[1]))

    def _root(self, name: tuple[str, str]) -> tuple[str, str]:
        path = []
        while name in self._parent:
            path.append(name)
            name = self._parent[name]
        for step in path:
            self._parent[step] = name
        return name


def _rank(part: str) -> int:
    """PCI addresses first: the kernel, the driver and the BMC all know them."""
    name = part.partition("/")[2]
    if name.count(":") == 2 and kind_of(part) in ("gpu", "nic", "disk", "nvswitch", "pci"):
        return 0
    if name.startswith(("GPU-", "MIG-")):
        return 1
    return 3 if name.isdigit() else 2

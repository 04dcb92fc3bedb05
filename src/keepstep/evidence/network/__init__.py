"""Readers of what tools and the kernel say about network ports, links and switches."""

from keepstep.evidence.network import ethernet, fabric, ib_text, inventory, mlxlink, perfquery, tree
from keepstep.evidence.reading import Reader

READERS: tuple[Reader, ...] = (
    tree.READER, ib_text.READER, perfquery.READER, fabric.TOPOLOGY, fabric.SWITCH, ethernet.READER, inventory.READER,
    mlxlink.READER,
)  # fmt: skip

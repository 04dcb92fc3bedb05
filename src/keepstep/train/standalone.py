"""Gives restored generator states a storage of their own. Owns that copy only.

A restored tensor is a view into the bytes that were read. A torch generator (2.13) that is set from a view with an offset
takes the wrong bytes: it refuses them, or the process crashes. Such states may sit anywhere, for example deep inside a
loader's state; they are all of dtype uint8.
"""

import sys
from typing import Any


def standalone(tree: Any) -> Any:
    """The same tree; dicts and lists in place, byte tensors that are views copied."""
    torch = sys.modules.get("torch")
    return tree if torch is None else _standalone(tree, torch)


def _standalone(node: Any, torch: Any) -> Any:
    if isinstance(node, torch.Tensor):
        return node.clone() if node.dtype is torch.uint8 and node.storage_offset() else node
    if isinstance(node, dict):
        for key, value in node.items():
            node[key] = _standalone(value, torch)
    elif isinstance(node, list):
        node[:] = [_standalone(value, torch) for value in node]
    elif isinstance(node, tuple):
        return tuple(_standalone(value, torch) for value in node)
    return node

"""In what ranks' groups differ, apart from their shards. Owns the comparison; judges nothing.

After a change of the world a rank takes the unsharded state of one saved rank, which is right only where all had the same.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.format.records import Manifest
from keepstep.checkpoint.reshard.saved import SavedGroup, SavedGroups
from keepstep.checkpoint.state.shards import walk

Outline = dict[str, Any]
"""Path -> something that is equal only for equal values."""


def differing(saved: SavedGroups, manifest: Manifest, name: str, ranks: Iterable[int]) -> dict[str, int]:
    """Path in group ``name`` -> the first of ``ranks`` whose value there is not rank 0's. Shards are left out."""
    digests = [part.groups[name] for part in manifest.ranks]
    outline: Outline | None = None
    found: dict[str, int] = {}
    for rank in ranks:
        if digests[rank] == digests[0]:
            continue
        if outline is None:
            outline = _outline(saved, saved.group(digests[0]))
        other = _outline(saved, saved.group(digests[rank]))
        for path in outline.keys() | other.keys():
            if path not in other or path not in outline or other[path] != outline[path]:
                found.setdefault(path, rank)
    return dict(sorted(found.items()))


def _outline(saved: SavedGroups, group: SavedGroup) -> Outline:
    marks: dict[int, bytes] = {}
    outline: Outline = {}
    for path, node in walk(group.index.tree):
        # Dotted paths of two nodes may be equal: then both count. Of a sharded tensor, ranks may have several parts.
        mark, known = _mark(saved, group, node, marks), outline.setdefault(path, [])
        if mark not in known:
            known.append(mark)
    return outline


def _mark(saved: SavedGroups, group: SavedGroup, node: Any, marks: dict[int, bytes]) -> Any:
    if type(node) is not list or not node or node[0] not in ("a", "h"):
        return msgspec.json.encode(node)
    if node[0] == "h":
        return ("h", node[2])
    leaf = node[1]
    if type(leaf) is not int or not 0 <= leaf < len(group.index.leaves):
        raise StateInvalid(f"an index names leaf {leaf!r}")
    if leaf not in marks:
        marks[leaf] = saved.leaf_mark(group, leaf)
    return (group.index.leaves[leaf], marks[leaf])

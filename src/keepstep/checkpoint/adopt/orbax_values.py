"""Reads Orbax arrays through tensorstore, to see that each is whole and finite. Imported only where it is installed."""

import math
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keepstep.checkpoint.adopt.orbax import items, leaves
from keepstep.checkpoint.errors import StateInvalid

_MAX_CHUNK_BYTES = 16 * 1024 * 1024 * 1024
_CACHE_BYTES = 32 * 1024 * 1024


class Found(NamedTuple):
    problems: list[str]
    warnings: list[str]


def check(path: Path, *, finite: bool) -> Found:
    """Read every array of the checkpoint, a chunk at a time. Without tensorstore this is said, and nothing is read."""
    found = Found([], [])
    try:
        trees = [(item, leaves(path, item)) for item in items(path)]
    except StateInvalid as error:
        found.problems.append(str(error))
        return found
    if not any(tree for _, tree in trees):
        return found
    try:
        import tensorstore
    except ImportError:
        found.warnings.append(
            "the arrays of Orbax were not read: install tensorstore to check that they are whole and finite"
        )
        return found
    context = tensorstore.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})
    for item, tree in trees:
        for leaf in tree:
            if leaf.kind == "string" or leaf.kind == "None" or not leaf.keys:
                continue
            name = ".".join(((item,) if item else ()) + leaf.keys)
            try:
                array = _open(tensorstore, context, path / item, ".".join(leaf.keys))
                bad = _read(array, finite)
            except (ValueError, OSError, RuntimeError) as error:
                found.problems.append(f"array {name} cannot be read whole: {str(error)[:200]}")
                continue
            if bad:
                (found.problems if array.shape else found.warnings).append(
                    f"array {name} holds {bad} values that are NaN or infinite"
                )
    return found


def _open(tensorstore: Any, context: Any, folder: Path, param: str) -> Any:
    if (folder / "manifest.ocdbt").is_file():
        store: Any = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder}/"}, "path": f"{param}/"}
    else:
        store = {"driver": "file", "path": f"{folder / param}/"}
    error: ValueError | None = None
    for driver in ("zarr", "zarr3"):
        try:
            spec = {"driver": driver, "kvstore": store, "fill_missing_data_reads": False}
            return tensorstore.open(spec, context=context, read=True, open=True).result()
        except ValueError as found:
            error = error or found
    raise error or ValueError(param)


def _read(array: Any, finite: bool) -> int:
    """Every chunk of the array, and how many values in it are not finite. One chunk is in memory at a time."""
    chunk = array.chunk_layout.read_chunk.shape or ()
    if math.prod(chunk) * array.dtype.numpy_dtype.itemsize > _MAX_CHUNK_BYTES:
        raise ValueError(f"its chunks of {list(chunk)} are larger than what is read at once")
    bad = 0
    steps = [range(0, size, max(1, length)) for size, length in zip(array.shape, chunk, strict=True)]
    for begin in product(*steps):
        where = tuple(
            slice(at, min(at + length, size)) for at, length, size in zip(begin, chunk, array.shape, strict=True)
        )
        values = array[where].read().result()
        if finite and (values.dtype.kind in "fc" or "float" in values.dtype.name):
            bad += int(values.size - np.count_nonzero(np.isfinite(values)))
    return bad

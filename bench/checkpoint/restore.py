"""Restores through a real server, as a restarted worker does them: from memory against a memory copy, from disk against direct
I/O. In turns in one run; all checks are in the figure, and so is what is allocated.

The copy is between memory that is there, of half a gigabyte again and again: far more than the caches hold, and no more than
there is room for.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.checkpoint.figures import Row, interleave, rate, ratios, timed
from bench.checkpoint.limits import PAGE_BYTES, Room, direct_read, memmove
from bench.checkpoint.server import Server

COPY_BYTES = 512 * 1024 * 1024


def tensors_of(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [tensor for child in children for tensor in tensors_of(child)]


def _copier(size_bytes: int) -> Callable[[], float]:
    """Copies so many bytes."""
    piece = min(size_bytes, COPY_BYTES)
    source, target = Room(piece), Room(piece)
    to, at = target.bytes.ctypes.data, source.bytes.ctypes.data

    def copy() -> None:
        for done in range(0, size_bytes, piece):
            memmove(to, at, min(piece, size_bytes - done))

    def act() -> float:
        # The rooms live as long as this does.
        return timed(copy) + 0 * (source.size_bytes + target.size_bytes)

    return act


def from_memory(server: Server, step: int, repetitions: int) -> tuple[list[Row], list[float]]:
    """Of a step that the server holds. Rows, and the seconds of ours."""
    server.begin()
    server.hold(step)
    sizes: list[int] = []

    def restore() -> float:
        client, kept = server.client(), list[Any]()
        seconds = timed(lambda: kept.append(client.restore(step, "ram", "", 1)))
        sizes.append(sum(tensor.nbytes for tensor in tensors_of(kept)))
        client.close()
        return seconds

    restore()
    taken = interleave({"ours": restore, "copy": _copier(sizes[0])}, repetitions)
    row = Row(
        f"restore from memory, {sizes[0] / 1e9:.2g} GB, against one memory copy", rate(sizes[0], taken["ours"]),
        rate(sizes[0], taken["copy"]), ratios(taken["copy"], taken["ours"]), 0.8, at_most=False,
    )  # fmt: skip
    return [row], taken["ours"]


def from_disk(folder: Path, directory: Path, repetitions: int) -> tuple[list[Row], list[float]]:
    """Of the newest checkpoint in ``directory``, each time by a server that has just started. Rows, and the seconds of ours."""
    packs = sorted(directory.glob("steps/*/*.pack"), key=lambda path: path.stat().st_size)
    size = packs[-1].stat().st_size

    def restore() -> float:
        nonlocal size
        with Server(folder, directory) as server:
            server.begin()
            [offer, *_] = server.stock().disk
            client, kept = server.client(), list[Any]()
            seconds = timed(lambda: kept.append(client.restore(offer.step, "disk", offer.key, 1)))
            size = sum(tensor.nbytes for tensor in tensors_of(kept))
            client.close()
            return seconds

    restore()
    into = memoryview(Room(-(-COPY_BYTES // PAGE_BYTES) * PAGE_BYTES).map)

    def raw() -> float:
        """As many bytes, out of the packs."""
        done, seconds = 0, 0.0
        for path in reversed(packs):
            for begin in range(0, path.stat().st_size, COPY_BYTES):
                if done < size:
                    count = min(COPY_BYTES, path.stat().st_size - begin, size - done)
                    seconds += timed(lambda path=path, begin=begin, count=count: direct_read(path, into[:count], begin))  # type: ignore[misc]
                    done += count
        return seconds * size / done

    taken = interleave({"ours": restore, "raw": raw}, repetitions, warm_up=0)
    row = Row(
        f"restore from disk through the server, {size / 1e9:.2g} GB, against O_DIRECT", rate(size, taken["ours"]),
        rate(size, taken["raw"]), ratios(taken["raw"], taken["ours"]), 0.8, at_most=False,
    )  # fmt: skip
    return [row], taken["ours"]

"""What a save costs the training loop: ours, a memory copy of the same tensors, and torch's ways, all in turns in one run.

The stall of ours is the walk over the state and the snapshot; of a synchronous save, all of it; of an asynchronous one, the
time until the state may be changed (staging included). Whatever goes on behind is awaited outside of the figure.
"""

import contextlib
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import BlockingAsyncStager, DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse

from bench.checkpoint.figures import Act, Row, duration, interleave, ratios, timed
from bench.checkpoint.limits import memmove, room_for
from bench.checkpoint.server import Server
from bench.checkpoint.state import State
from keepstep.checkpoint import SnapshotClient

ASYNC = "dcp.async_save, "
OURS = "ours before "
STAGERS: dict[str, tuple[Callable[[], Any], AsyncCheckpointerType]] = {
    "its default stager": (lambda: None, AsyncCheckpointerType.THREAD),
    "BlockingAsyncStager": (BlockingAsyncStager, AsyncCheckpointerType.THREAD),
    "DefaultStager kept": (lambda: _stager(), AsyncCheckpointerType.THREAD),
    "DefaultStager kept, shared memory": (lambda: _stager(shared=True), AsyncCheckpointerType.THREAD),
    "DefaultStager kept, staging thread": (lambda: _stager(thread=True), AsyncCheckpointerType.THREAD),
    "DefaultStager kept, shared memory, process": (lambda: _stager(shared=True), AsyncCheckpointerType.PROCESS),
}
"""Memory cannot be pinned without an accelerator, so those with pinned memory are not in it."""


def _stager(*, shared: bool = False, thread: bool = False) -> DefaultStager:
    return DefaultStager(StagingOptions(False, shared, thread, False))


class Ours:
    """Snapshots of a state through a real server; changes the state between them."""

    def __init__(self, server: Server, client: SnapshotClient, state: State) -> None:
        self._server, self._client, self._state = server, client, state
        self.step = 0

    def snapshot(self, *, durable: bool = False) -> float:
        """Seconds of stall. Returns when the server has digested it, so that nothing runs beside what comes next."""
        self.step += 1
        self._state.step()
        seconds = timed(lambda: self._seal(durable))
        self._server.stock()
        return seconds

    def _seal(self, durable: bool) -> None:
        if not self._client.snapshot(self.step, self._state.flat(), durable=durable):
            raise RuntimeError("no slot was free")


def beside_copy(ours: Ours, state: State, repetitions: int) -> tuple[list[Row], list[float]]:
    """Against two kinds of memory copy; the seconds of stall as well."""
    tensors = state.tensors()
    room = room_for(tensors)
    targets = room.like(tensors)
    pairs = [(a.data_ptr(), b.data_ptr(), b.nbytes) for a, b in zip(targets, tensors, strict=True)]

    def copy() -> None:
        with torch.no_grad():
            torch._foreach_copy_(targets, tensors)

    def move() -> None:
        for target, source, size in pairs:
            memmove(target, source, size)

    acts: dict[str, Act] = {"ours": ours.snapshot, "copy": lambda: timed(copy), "move": lambda: timed(move)}
    taken = interleave(acts, repetitions, warm_up=6)
    size = f"{state.size_bytes() / 1e9:.2g} GB"
    rows = [
        Row(
            f"stall, {size}, against {name}", duration(taken["ours"]), duration(taken[key]),
            ratios(taken["ours"], taken[key]), goal,
        )
        for key, name, goal in (("copy", "one memory copy (torch)", 1.25), ("move", "one memory copy (memmove)", None))
    ]  # fmt: skip
    return rows, taken["ours"]


class Peers:
    """torch's ways to save a state below ``folder``. Use as a context manager."""

    def __init__(self, state: State, folder: Path, stagers: list[str]) -> None:
        self.state, self._folder, self._names = state, folder, stagers
        self._stagers: dict[str, Any] = {}

    def __enter__(self) -> "Peers":
        if not dist.is_initialized():
            path = tempfile.mktemp(prefix="keepstep-bench-")
            dist.init_process_group("gloo", init_method=f"file://{path}", rank=0, world_size=1)
        self._stagers = {name: STAGERS[name][0]() for name in self._names}
        return self

    def __exit__(self, *_: object) -> None:
        for stager in self._stagers.values():
            if stager is not None:
                stager.close()
        self._stagers.clear()

    def acts(self) -> dict[str, Act]:
        asynchronous = {ASYNC + name: self._asynchronous(name) for name in self._names}
        return {"torch.save + fsync": self._torch_save, "dcp.save": self._dcp_save, **asynchronous}

    @contextlib.contextmanager
    def _place(self) -> Iterator[Path]:
        place = Path(tempfile.mkdtemp(dir=self._folder))
        yield place
        shutil.rmtree(place)

    def _torch_save(self) -> float:
        def save() -> None:
            with open(place / "state.pt", "wb") as file:
                torch.save(self.state.whole(), file)
                file.flush()
                os.fsync(file.fileno())

        with self._place() as place:
            return timed(save)

    def _dcp_save(self) -> float:
        with self._place() as place:
            return timed(lambda: dcp.save(self.state.keyed(), checkpoint_id=place))

    def _asynchronous(self, name: str) -> Act:
        def act() -> float:
            with self._place() as place:
                answer: list[Future[Any]] = []
                seconds = timed(lambda: answer.append(self._stage(name, place)))
                answer[0].result()
                return seconds

        return act

    def _stage(self, name: str, place: Path) -> "Future[Any]":
        """Returns when the state may be changed; the future ends with the save."""
        answer = dcp.async_save(
            self.state.keyed(), checkpoint_id=place, async_checkpointer_type=STAGERS[name][1],
            async_stager=self._stagers[name],
        )  # fmt: skip
        if isinstance(answer, AsyncSaveResponse):
            answer.staging_completion.result()
            return answer.upload_completion
        return answer


def beside_peers(ours: Ours, peers: Peers, repetitions: int) -> tuple[list[Row], str]:
    """Rows, and the name of the asynchronous way that stalled least. A snapshot of ours comes before each of the others."""
    acts: dict[str, Act] = {}
    for name, act in peers.acts().items():
        acts |= {OURS + name: ours.snapshot, name: act}
    taken = interleave(acts, repetitions)
    theirs = [name for name in taken if not name.startswith(OURS)]
    best = min((name for name in theirs if name.startswith(ASYNC)), key=lambda name: statistics.median(taken[name]))
    rows, size = [], f"{peers.state.size_bytes() / 1e9:.2g} GB"
    for name in theirs:
        mine, seconds = taken[OURS + name], taken[name]
        goal = (1.0 if name == best else None) if name.startswith(ASYNC) else 0.2
        label = f"{name} (best)" if name == best else name
        rows.append(
            Row(f"stall, {size}, against {label}", duration(mine), duration(seconds), ratios(mine, seconds), goal)
        )
    return rows, best.removeprefix(ASYNC)

"""Durable writes and reads of one blob, against direct I/O of the same bytes on the same file system, in turns in one run.

Ours is the whole of it: pack with digests of every chunk, receipt, manifest and commit record, all synced; the raw write is
one file, reserved and synced. Both are held to one core, as a snapshot server beside a training process is. A repository that
is new every time leans on no older pack, so that every byte is written.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.checkpoint.figures import Row, interleave, rate, ratios, timed
from bench.checkpoint.limits import Room, direct_read, direct_write
from bench.checkpoint.server import JOB
from bench.checkpoint.state import State
from keepstep.checkpoint.keys.port import Keys
from keepstep.checkpoint.keys.providers import FileProvider
from keepstep.checkpoint.keys.sessions import SessionKeys
from keepstep.checkpoint.repository.pack_writer import Group
from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.repository.save import Save
from keepstep.checkpoint.state.blob import blob_bytes, digest_chunks, write_tail
from keepstep.checkpoint.state.leaves import LeafViews
from keepstep.checkpoint.stores.posix import PosixStore


class Blob:
    """The parameters and moments of a state in shared memory, as a sealed slot has them."""

    def __init__(self, state: State) -> None:
        from keepstep.checkpoint import flatten

        flat = flatten(state.tensors())
        self._room = Room(blob_bytes(flat))
        LeafViews(flat.specs, self._room.map, 0).fill(flat.leaves)
        write_tail(self._room.map, 0, flat)
        self.view = memoryview(self._room.map)
        self.chunks = digest_chunks(self.view)
        self.size_bytes = len(self.view)

    def group(self) -> Group:
        return Group(self.view, self.chunks)


@contextmanager
def one_core() -> Iterator[None]:
    """What runs inside, with the threads that it starts, has one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Disk:
    """One blob, and a folder that has nothing else in it."""

    def __init__(self, blob: Blob, folder: Path) -> None:
        self._blob, self._folder = blob, folder
        keys = folder / "keys"
        keys.mkdir(mode=0o700)
        (keys / "1.key").write_bytes(os.urandom(32))
        (keys / "1.key").chmod(0o600)
        self._provider = FileProvider(keys)

    def _store(self, *, sealed: bool) -> PosixStore:
        return PosixStore(self._folder / ("sealed" if sealed else "clear"))

    def _keys(self, store: PosixStore, *, sealed: bool) -> Keys | None:
        return SessionKeys(store, [self._provider]) if sealed else None

    def save(self, *, sealed: bool) -> float:
        """What was saved before goes first, which is not in the figure."""
        store = self._store(sealed=sealed)
        shutil.rmtree(store.path, ignore_errors=True)
        repository = Repository(store, JOB, keys=self._keys(store, sealed=sealed))
        save = Save(job=JOB, generation=1, step=1, attempt="a0", world_size=1)

        def work() -> None:
            repository.write_part(save, 0, {"state": self._blob.group()})
            if repository.try_commit(save) is None:
                raise RuntimeError("the only receipt was not enough")

        with one_core():
            return timed(work)

    def load(self, into: memoryview, *, sealed: bool) -> float:
        """Into memory that is there, every chunk checked."""
        store = self._store(sealed=sealed)
        repository = Repository(store, JOB, keys=self._keys(store, sealed=sealed))

        def work() -> None:
            [commit] = repository.commits()
            reader = repository.reader(repository.manifest(commit.key))
            reader.read_group(self._blob.chunks.root, into)

        return timed(work)

    def raw_write(self) -> float:
        path = self._folder / "raw"
        path.unlink(missing_ok=True)
        with one_core():
            return timed(lambda: direct_write(path, self._blob.view))

    def raw_read(self, into: memoryview) -> float:
        return timed(lambda: direct_read(self._folder / "raw", into))


def measure(blob: Blob, folder: Path, repetitions: int) -> tuple[list[Row], dict[str, list[float]]]:
    """Rows, and the seconds of ours for the growth."""
    disk = Disk(blob, folder)
    written = interleave(
        {"raw": disk.raw_write, "sealed": lambda: disk.save(sealed=True), "clear": lambda: disk.save(sealed=False)},
        repetitions,
    )
    into = memoryview(Room(-(-blob.size_bytes // 4096) * 4096).map)
    read = interleave(
        {
            "raw": lambda: disk.raw_read(into),
            "sealed": lambda: disk.load(into[: blob.size_bytes], sealed=True),
            "clear": lambda: disk.load(into[: blob.size_bytes], sealed=False),
        },
        repetitions,
    )
    size, rows = f"{blob.size_bytes / 1e9:.2g} GB", []
    for what, taken, goals in (
        ("durable write on one core", written, {"sealed": 0.85, "clear": 0.85}),
        ("read from disk, checked", read, {"sealed": 0.8, "clear": 0.8}),
    ):
        for kind, name in (("sealed", "digests and encryption"), ("clear", "digests")):
            rows.append(
                Row(
                    f"{what}, {size}, {name}, against O_DIRECT", rate(blob.size_bytes, taken[kind]),
                    rate(blob.size_bytes, taken["raw"]), ratios(taken["raw"], taken[kind]), goals[kind], at_most=False,
                )
            )  # fmt: skip
    return rows, {"durable write": written["sealed"], "read from disk": read["sealed"]}

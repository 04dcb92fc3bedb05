"""One store in memory that many processes see at once: each has a view of it that may fail, lie about the outcome, or die;
and a scheduler that lets processes take turns, one store call at a time, in a given order."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from keepstep.checkpoint.errors import CheckpointError
from keepstep.checkpoint.repository.history import Commit
from keepstep.checkpoint.repository.pack_writer import Group
from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.repository.save import Save, manifest_key
from keepstep.checkpoint.state.blob import digest_chunks, pack
from keepstep.checkpoint.state.tree import flatten
from keepstep.checkpoint.stores.port import Entry

JOB = "job"
Hook = Callable[[str, str, str], None]
"""Gets "before" or "after", the name of the call, and the key."""


class Killed(BaseException):
    """The process is gone. It does nothing any more."""


def nothing(when: str, call: str, key: str) -> None:
    return None


class Disk:
    """What is there. ``watch`` sees every removal before it is done."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.watch: Callable[[str], None] = lambda key: None
        self.room_bytes = 1 << 40

    def put(self, key: str, data: bytes) -> bool:
        if key in self.objects:
            return False
        if sum(map(len, self.objects.values())) + len(data) > self.room_bytes:
            raise OSError(28, "No space left on device", key)
        self.objects[key] = data
        return True

    def flip(self, key: str, bit: int) -> None:
        data = bytearray(self.objects[key])
        if data:
            data[bit // 8 % len(data)] ^= 1 << bit % 8
            self.objects[key] = bytes(data)


class View:
    """A store: the disk as one process sees it. ``hook`` may raise."""

    def __init__(self, disk: Disk, hook: Hook = nothing, name: str = "disk") -> None:
        self.disk, self.hook, self.name = disk, hook, name

    def _around(self, call: str, key: str, act: Callable[[], Any]) -> Any:
        self.hook("before", call, key)
        result = act()
        self.hook("after", call, key)
        return result

    def create(self, key: str, data: Any) -> bool:
        made: bool = self._around("create", key, lambda: self.disk.put(key, bytes(data)))
        return made

    def writer(self, key: str, size_bytes: int) -> "Writer":
        return Writer(self, key)

    def read(self, key: str) -> bytes:
        data: bytes = self._around("read", key, lambda: self._whole(key))
        return data

    def read_into(self, key: str, offset: int, view: memoryview) -> None:
        def act() -> None:
            piece = self._whole(key)[offset : offset + len(view)]
            if len(piece) != len(view):
                raise OSError(5, f"{key} ends before {offset + len(view)}")
            view[:] = piece

        self._around("read_into", key, act)

    def _whole(self, key: str) -> bytes:
        if key not in self.disk.objects:
            raise FileNotFoundError(2, "No such object", key)
        return self.disk.objects[key]

    def size(self, key: str) -> int | None:
        found: int | None = self._around(
            "size", key, lambda: len(self.disk.objects[key]) if key in self.disk.objects else None
        )
        return found

    def list(self, prefix: str) -> Iterator[Entry]:
        return iter(self._around("list", prefix, lambda: _entries(self.disk, prefix)))

    def delete(self, key: str) -> None:
        def act() -> None:
            if key in self.disk.objects:
                self.disk.watch(key)
                del self.disk.objects[key]

        self._around("delete", key, act)

    def tidy(self, idle_s: float) -> None:
        return None

    def hint(self, key: str, data: bytes) -> None:
        self._around("hint", key, lambda: self.disk.objects.__setitem__(key, data))


def _entries(disk: Disk, prefix: str) -> list[Entry]:
    return [Entry(key, len(data)) for key, data in sorted(disk.objects.items()) if key.startswith(prefix)]


class Writer:
    """Appears at ``finish``."""

    def __init__(self, view: View, key: str) -> None:
        self._view, self._key, self._done = view, key, bytearray()

    def write(self, block: Any) -> None:
        self._done += block

    def finish(self) -> None:
        def act() -> None:
            if not self._view.disk.put(self._key, bytes(self._done)):
                raise FileExistsError(17, "taken", self._key)

        self._view._around("finish", self._key, act)

    def abort(self) -> None:
        return None

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Trouble:
    """A hook: the ``at``-th state-changing call goes wrong: ``error`` (it did not happen), ``lost`` (it did, and the answer was
    lost), ``kill`` and ``killed`` (the process dies before or after it). A dead process stays dead."""

    def __init__(self, kind: str = "", at: int = 0) -> None:
        self.kind, self._left, self.dead = kind, at, False

    def __call__(self, when: str, call: str, key: str) -> None:
        if self.dead:
            raise Killed
        if call not in ("create", "finish", "delete", "hint") or when != ("after" if self.kind in _AFTER else "before"):
            return
        self._left -= 1
        if self._left != -1 or not self.kind:
            return
        if self.kind in ("kill", "killed"):
            self.dead = True
            raise Killed
        raise OSError(5, "Input/output error", key)


_AFTER = ("lost", "killed")


class Turns:
    """Runs actors so that only one moves at a time, from one store call to the next, in an order that is given."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order = list(order)
        self._back: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._go: list[threading.Semaphore] = []
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException | None] = []

    def hook(self, number: int) -> Hook:
        """For the view of actor ``number``. Calls from its helper threads are not held up: it waits for them itself."""

        def gate(when: str, call: str, key: str) -> None:
            if when == "before" and threading.current_thread() is self._threads[number]:
                self._back.put(number)
                self._go[number].acquire()

        return gate

    def run(self, actors: Sequence[Callable[[], object]]) -> None:
        self._go = [threading.Semaphore(0) for _ in actors]
        self.errors = [None] * len(actors)
        self._threads = [
            threading.Thread(target=self._act, args=(number, act), daemon=True) for number, act in enumerate(actors)
        ]
        alive = list(range(len(actors)))
        for thread in self._threads:
            thread.start()
        while alive:
            number = alive[(self._order.pop(0) if self._order else 0) % len(alive)]
            self._go[number].release()
            if self._back.get(timeout=120) == -1 - number:
                alive.remove(number)
        for thread in self._threads:
            thread.join(120)
        for error in self.errors:
            if error is not None and not isinstance(error, (OSError, CheckpointError)):
                raise error

    def _act(self, number: int, act: Callable[[], object]) -> None:
        self._go[number].acquire()
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - judged by who runs them
            self.errors[number] = error
        self._back.put(-1 - number)


# ---- small states, and what must hold


def state(token: int, rank: int = 0) -> dict[str, Any]:
    """Two groups: one that ranks share, one of a rank's own."""
    shared = {"token": token, "w": np.random.default_rng(token).standard_normal(20)}
    return {"model": shared, "rank": {"token": token, "rank": rank}}


def groups(token: int, rank: int = 0) -> dict[str, Group]:
    return packed(**state(token, rank))


def packed(**trees: Any) -> dict[str, Group]:
    blobs = {name: pack(flatten(tree)) for name, tree in trees.items()}
    return {name: Group(blob, digest_chunks(blob)) for name, blob in blobs.items()}


def commit_one(repository: Repository, step: int, token: int | None = None, **where: Any) -> Commit:
    """A save by one rank, committed and marked VERIFIED."""
    where = {"generation": 0, "attempt": "a"} | where
    save = Save(job=repository.job, step=step, world_size=1, **where)
    repository.write_part(save, 0, groups(step if token is None else token))
    commit = repository.try_commit(save)
    assert commit is not None
    repository.verify(commit.key)
    return repository.mark(commit.key, "verified")


def token_of(trees: dict[str, Any], rank: int = 0) -> int:
    """Which state this is, bit-exactly."""
    token = trees["model"]["token"]
    wanted = state(token, rank)
    assert trees["model"]["w"].tobytes() == wanted["model"]["w"].tobytes()
    assert trees["rank"] == wanted["rank"]
    return int(token)


def belongings(disk: Disk) -> dict[str, str]:
    """Key of an object -> the live commit that needs it."""
    repository = Repository(View(disk), JOB)
    needed: dict[str, str] = {}
    for commit in repository.commits():
        record = repository.log.record(commit.seq)
        needed[manifest_key(record.folder, record.manifest)] = commit.key
        needed |= {entry.key: commit.key for entry in repository.manifest(commit.key).packs}
    return needed


def forbid_removal_of_live(disk: Disk) -> None:
    """From now on, removing an object of a live commit fails the test."""

    def watch(key: str) -> None:
        if key.startswith("steps/"):
            owner = belongings(disk).get(key)
            assert owner is None, f"{key} of live commit {owner} is removed"

    disk.watch = watch

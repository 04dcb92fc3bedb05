"""Write-behind: sealed slots become parts of checkpoints in a directory. Owns the thread that touches the disk.

Where jobs share the store, a save waits until it is out of the way of others', unless somebody waits for it.

A failed save is an event, never the end of anything: slots stay, older checkpoints stay, the next save tries again.
Must not block whoever hands it work.
"""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable

from msgspec import Struct

from keepstep.checkpoint.errors import CheckpointError, StateInvalid
from keepstep.checkpoint.repository.pack_writer import Group
from keepstep.checkpoint.repository.repository import Commit
from keepstep.checkpoint.repository.save import Save
from keepstep.checkpoint.repository.settle import settle
from keepstep.checkpoint.repository.windows_in_store import SaveWindows
from keepstep.checkpoint.snapshot.age_watch import AgeWatch
from keepstep.checkpoint.snapshot.copier import Copier, DurableTiers
from keepstep.checkpoint.snapshot.memory import Memory
from keepstep.checkpoint.snapshot.messages import Committed, Notice, SaveError
from keepstep.checkpoint.snapshot.slots import Sealed, Slot
from keepstep.checkpoint.stores.selftest import selftest

NICE = 10
LOOK_S = 0.02
"""How often the log is looked at while a save waits for other nodes' parts."""
AGE_S = 5.0
"""How often the age of the newest verified checkpoint is looked at."""
_PRIORITIES = {"urgent": 2, "normal": 1, "background": 0}


class _Work(Struct):
    slot: Slot
    sealed: Sealed
    since_s: float


class _Open(Struct):
    generation: int
    restored_from: str


class Told(Struct, frozen=True, kw_only=True):
    """Who hears of it, from the thread of the Writer."""

    saved: Callable[[Committed | SaveError], None]
    notice: Callable[[Notice], None]


class Writer:
    def __init__(self, durable: DurableTiers, memory: Memory, told: Told, copier: Copier | None) -> None:
        self._repository, self._keep = durable.open_repository(), durable.keep
        self._memory, self._told, self._copier = memory, told, copier
        self._windows = SaveWindows(
            self._repository.store, self._repository.job, _PRIORITIES[durable.pace.lane], time.time
        )
        self._watch = AgeWatch()
        self._latest, self._hurried, self._newest, self._hurry = 0, -1, -1, threading.Event()
        """Saves of earlier generations, and of steps up to the second, do not wait; the third was put last."""
        self._queue: queue.SimpleQueue[_Work | _Open | None] = queue.SimpleQueue()
        self._waiting: dict[Save, float] = {}
        """Saves of which this node wrote parts and which are not committed yet, with the time they began."""
        self._generation = 0
        self._fit = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def put(self, slot: Slot, sealed: Sealed) -> None:
        """Save a hashed slot. The caller has acquired it; it is released here when its bytes are no longer needed."""
        now_s = time.monotonic()
        self._watch.begun(sealed.step, now_s)
        if sealed.step > self._newest:
            # Its slot may be needed for the next one.
            self.hurry(self._newest)
            self._newest = sealed.step
        self._queue.put(_Work(slot, sealed, now_s))

    def hurry(self, step: int) -> None:
        """Somebody waits for the save of this step. Callable from any thread."""
        self._hurried = max(self._hurried, step)
        self._hurry.set()

    def moved(self, step: int) -> None:
        """The job was seen at a step. Callable from any thread."""
        self._watch.moved(step)

    def begin(self, generation: int, restored_from: str) -> None:
        """Shut older generations out of the directory."""
        if generation > self._latest:
            # It may have gone back to an earlier step.
            self._latest, self._hurried, self._newest = generation, -1, -1
            self._watch.resumed()
            self._hurry.set()
        self._queue.put(_Open(generation, restored_from))

    def stop(self, timeout_s: float) -> None:
        """Finish what is queued, for at most ``timeout_s``."""
        self.hurry(self._newest)
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            # Of this thread alone: digesting and sealing must not take the core that a rank computes on.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while True:
            try:
                item = self._queue.get(timeout=LOOK_S if self._waiting else AGE_S)
            except queue.Empty:
                self._look()
                self._look_at_age()
                continue
            match item:
                case None:
                    return
                case _Open():
                    self._open(item)
                case _Work():
                    self._save(item)
            self._look()
            self._look_at_age()

    def _look_at_age(self) -> None:
        if (words := self._watch.look()) is not None:
            self._told.notice(Notice(topic="age", generation=self._generation, step=-1, reason=words))

    def _give_way(self, sealed: Sealed) -> None:
        """Wait until others do not write to the store, unless somebody waits for this save."""
        end_s = time.monotonic() + self._windows.delay_s(sealed.step)
        while (left_s := end_s - time.monotonic()) > 0:
            self._hurry.clear()
            if sealed.step <= self._hurried or sealed.generation < self._latest:
                return
            self._hurry.wait(min(left_s, LOOK_S if self._waiting else AGE_S))
            self._look()
            self._look_at_age()

    def _open(self, item: _Open) -> None:
        for save in [save for save in self._waiting if save.generation < item.generation]:
            self._fail(save, "its generation ended before every rank's part was written")
        self._generation = max(self._generation, item.generation)
        try:
            self._repository.log.open_generation(self._repository.job, item.generation, item.restored_from)
        except (OSError, CheckpointError):
            # Every save of this generation looks at the log again and reports what it finds.
            return

    def _save(self, work: _Work) -> None:
        sealed = work.sealed
        save = self._name(sealed, 0)
        try:
            if not self._fit:
                selftest(self._repository.store)
                self._fit = True
            self._repository.log.refresh()
            number = 0
            while (commit := self._repository.find(save)) is not None:
                if self._holds(commit, sealed):
                    self._tell(commit, time.monotonic() - work.since_s)
                    return
                number += 1
                save = self._name(sealed, number)
            self._give_way(sealed)
            groups = {place.name: Group(work.slot.view(place), sealed.chunks[place.name]) for place in sealed.places}
            self._repository.write_part(save, sealed.rank, groups)
            self._waiting.setdefault(save, work.since_s)
        except (OSError, CheckpointError) as error:
            self._fail(save, str(error))
        finally:
            self._memory.release(work.slot)

    def _name(self, sealed: Sealed, number: int) -> Save:
        """The save a part belongs to. The number grows only when the one before is committed: a rank whose part could
        not be written tries again beside the parts that the others have in place."""
        return Save(
            job=self._repository.job, generation=sealed.generation, step=sealed.step, attempt=f"a{number}",
            world_size=sealed.world_size,
        )  # fmt: skip

    def _holds(self, commit: Commit, sealed: Sealed) -> bool:
        """Whether a commit has exactly this part."""
        try:
            manifest = self._repository.manifest(commit.key)
        except StateInvalid:
            return False
        return sealed.rank < manifest.world_size and manifest.ranks[sealed.rank].groups == sealed.digests

    def _fail(self, save: Save, reason: str) -> None:
        self._waiting.pop(save, None)
        self._repository.give_up(save)
        self._watch.failed(save.step, reason)
        self._told.saved(SaveError(step=save.step, generation=save.generation, reason=reason))

    def _look(self) -> None:
        """Commit what is complete, and see what other nodes have committed."""
        for save, since_s in list(self._waiting.items()):
            try:
                commit = self._repository.try_commit(save)
                if commit is None:
                    continue
                if commit.fresh:
                    commit = settle(self._repository, commit, self._keep)
                    if commit.state != "verified":
                        self._watch.committed(commit.step)
                    if self._copier is not None:
                        self._copier.wake()
            except (OSError, CheckpointError) as error:
                self._fail(save, str(error))
                continue
            del self._waiting[save]
            self._windows.wrote(commit.step, commit.size_bytes)
            self._tell(commit, time.monotonic() - since_s)
            for older in [one for one in self._waiting if one.generation == save.generation and one.step < save.step]:
                # A rank whose part failed, or was not fit, does not save that step again.
                self._fail(older, f"step {save.step} was saved while parts of this one were still missing")

    def _tell(self, commit: Commit, duration_s: float) -> None:
        if commit.state == "verified" or (commit.state == "committed" and not commit.fresh):
            # Another node that has committed it reads it back, and tells if it is damaged.
            self._watch.verified(commit.step)
        self._told.saved(
            Committed(
                step=commit.step, generation=commit.generation, key=commit.key, duration_s=duration_s,
                size_bytes=commit.size_bytes, world_size=commit.world_size,
            )
        )  # fmt: skip

"""Write-behind: sealed slots become parts of checkpoints in a directory. Owns the thread that touches the disk.

A failed save is an event, never the end of anything: slots stay, older checkpoints stay, the next save tries again.
Must not block whoever hands it work.
"""

import queue
import threading
import time
from collections.abc import Callable

from msgspec import Struct

from keepstep.checkpoint.directory import CheckpointDirectory, Commit, Save
from keepstep.checkpoint.errors import CheckpointError, SaveFailed, StateInvalid, Superseded
from keepstep.checkpoint.memory import Memory
from keepstep.checkpoint.messages import Committed, SaveError
from keepstep.checkpoint.retention import expire
from keepstep.checkpoint.slots import Sealed, Slot

LOOK_S = 0.02
"""How often the log is looked at while a save waits for other nodes' parts."""


class _Work(Struct):
    slot: Slot
    sealed: Sealed
    since_s: float


class _Open(Struct):
    generation: int
    restored_from: str


class Writer:
    """``report`` gets Committed and SaveError events, from this thread."""

    def __init__(
        self, directory: str, job: str, memory: Memory, report: Callable[[Committed | SaveError], None], keep: int = 3
    ) -> None:
        self._directory = CheckpointDirectory(directory)
        self._job, self._memory, self._report, self._keep = job, memory, report, keep
        self._queue: queue.SimpleQueue[_Work | _Open | None] = queue.SimpleQueue()
        self._waiting: dict[Save, float] = {}
        """Saves of which this node wrote parts and which are not committed yet, with the time they began."""
        self._generation = 0
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def put(self, slot: Slot, sealed: Sealed) -> None:
        """Save a hashed slot. The caller has acquired it; it is released here when its bytes are no longer needed."""
        self._queue.put(_Work(slot, sealed, time.monotonic()))

    def begin(self, generation: int, restored_from: str) -> None:
        """Shut older generations out of the directory."""
        self._queue.put(_Open(generation, restored_from))

    def stop(self, timeout_s: float) -> None:
        """Finish what is queued, for at most ``timeout_s``."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=LOOK_S if self._waiting else None)
            except queue.Empty:
                self._look()
                continue
            match item:
                case None:
                    return
                case _Open():
                    self._open(item)
                case _Work():
                    self._save(item)
            self._look()

    def _open(self, item: _Open) -> None:
        for save in [save for save in self._waiting if save.generation < item.generation]:
            self._fail(save, "its generation ended before every rank's part was written")
        self._generation = max(self._generation, item.generation)
        try:
            self._directory.log.open_generation(self._job, item.generation, item.restored_from)
        except (OSError, CheckpointError):
            # Every save of this generation looks at the log again and reports what it finds.
            return

    def _save(self, work: _Work) -> None:
        sealed = work.sealed
        save = self._name(sealed, 0)
        try:
            self._directory.log.refresh()
            number = 0
            while (commit := self._directory.find(save)) is not None:
                if self._holds(commit, sealed):
                    self._tell(commit, time.monotonic() - work.since_s)
                    return
                number += 1
                save = self._name(sealed, number)
            blobs = {place.name: work.slot.view(place) for place in sealed.places}
            self._directory.write_part(save, sealed.rank, blobs, sealed.digests)
            self._waiting.setdefault(save, work.since_s)
        except (OSError, CheckpointError) as error:
            self._fail(save, str(error))
        finally:
            self._memory.release(work.slot)

    def _name(self, sealed: Sealed, number: int) -> Save:
        """The save a part belongs to. The number grows only when the one before is committed: a rank whose part could
        not be written tries again beside the parts that the others have in place."""
        return Save(
            job=self._job, generation=sealed.generation, step=sealed.step, attempt=f"a{number}",
            world_size=sealed.world_size,
        )  # fmt: skip

    def _holds(self, commit: Commit, sealed: Sealed) -> bool:
        """Whether a commit has exactly this part."""
        try:
            _, manifest = self._directory.manifest(commit.key)
        except StateInvalid:
            return False
        return sealed.rank < manifest.world_size and manifest.ranks[sealed.rank] == sealed.digests

    def _fail(self, save: Save, reason: str) -> None:
        self._waiting.pop(save, None)
        self._report(SaveError(step=save.step, generation=save.generation, reason=reason))

    def _look(self) -> None:
        """Commit what is complete, and see what other nodes have committed."""
        for save, since_s in list(self._waiting.items()):
            try:
                commit = self._directory.try_commit(save)
                if commit is None:
                    continue
                if commit.fresh:
                    self._directory.verify(commit.key)
                    self._directory.mark_latest(commit)
            except (OSError, CheckpointError) as error:
                self._fail(save, str(error))
                continue
            del self._waiting[save]
            self._tell(commit, time.monotonic() - since_s)

    def _tell(self, commit: Commit, duration_s: float) -> None:
        self._report(
            Committed(
                step=commit.step, generation=commit.generation, key=commit.key, duration_s=duration_s,
                size_bytes=commit.size_bytes, world_size=commit.world_size,
            )
        )  # fmt: skip
        if not commit.fresh:
            return
        try:
            expire(self._directory, commit, self._keep)
        except (OSError, SaveFailed, Superseded):
            # Nothing is lost: what should have gone is still there, and the next commit tries again.
            return

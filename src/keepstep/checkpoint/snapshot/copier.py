"""Copies of checkpoints in further tiers, made behind everything else, and what they are good for: repair, and reading where
the job's own store fails. Owns the thread that copies.

A copy that fails is a notice and is tried again with the next checkpoint. Must not hold up saving.
"""

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Sequence

from msgspec import Struct

from keepstep.checkpoint.errors import CheckpointError, StateInvalid
from keepstep.checkpoint.format.records import Manifest
from keepstep.checkpoint.opening import Place
from keepstep.checkpoint.repository.history import Commit
from keepstep.checkpoint.repository.repair import pack_reader
from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.repository.tiers import Tier, Tiers
from keepstep.checkpoint.repository.traffic import Pace
from keepstep.checkpoint.snapshot.messages import Notice

NICE = 15


class DurableTiers(Struct, frozen=True):
    """What a snapshot server has beside memory: the job's own store, and places for copies."""

    open_repository: Callable[[], Repository]
    keep: int
    """How many VERIFIED checkpoints stay."""
    places: tuple[Place, ...] = ()
    pace: Pace = Pace()
    """What restores may take of the store that jobs share."""


class Copier:
    """``report`` gets notices, from any thread."""

    def __init__(
        self, open_repository: Callable[[], Repository], places: Sequence[Place], report: Callable[[Notice], None]
    ) -> None:
        self._open, self._places, self._report = open_repository, tuple(places), report
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._newest: dict[str, float] = {}
        """Tier -> when the newest checkpoint that it has was committed, by the clock of who committed."""
        self._thread = threading.Thread(target=self._run, name="copier", daemon=True)
        if self._places:
            self._thread.start()

    def wake(self) -> None:
        """There is a new checkpoint."""
        if self._places:
            self._wakes.put(True)

    def stop(self, timeout_s: float) -> None:
        """Finish what is due, for at most ``timeout_s``."""
        if self._places:
            self._wakes.put(False)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        tiers = self._tiers()
        while self._wakes.get():
            for tier, place in zip(tiers.tiers, self._places, strict=True):
                self._copy_due(tiers, tier, place.every_s)

    def _tiers(self) -> Tiers:
        return Tiers(self._open(), [Tier(copies=place.copies) for place in self._places])

    def _copy_due(self, tiers: Tiers, tier: Tier, every_s: float) -> None:
        newest: Commit | None = None
        try:
            due = tiers.due(tier)
            newest = due[-1] if due else None
            if newest is None or newest.at_unix_s < self._newest.get(tier.name, 0.0) + every_s:
                return
            tiers.copy(newest.key, tier)
            self._newest[tier.name] = newest.at_unix_s
            tiers.prune(tier)
        except (OSError, CheckpointError) as error:
            step = newest.step if newest is not None else -1
            self._tell(newest, f"step {step} has no copy in {tier.name}: {error}")

    def _tell(self, commit: Commit | None, reason: str) -> None:
        generation, step = (commit.generation, commit.step) if commit is not None else (0, -1)
        self._report(Notice(topic="copies", generation=generation, step=step, reason=reason))

    # ---- what copies are good for; on the caller's thread

    def repair(self, key: str) -> bool:
        """Put back what the job's own store has lost of a commit; whether anything was. Raises StateInvalid or OSError."""
        if not self._places:
            return False
        tiers = self._tiers()
        done = tiers.repair(key)
        commit = tiers.repository.commit(key)
        for piece in done:
            self._tell(commit, f"repaired {piece.key} ({piece.reason}) from {piece.source}")
        return bool(done)

    def copy_group(self, manifest: Manifest, digest: str, fd: int, progress: Callable[[int], None]) -> bool:
        """Fill a file with a group from the first tier that serves it rightly; False if none does."""
        repository = self._open()
        for place in self._places:
            try:
                reader = pack_reader(place.copies, manifest, repository.keys, repository.tenant)
                reader.copy_group(digest, fd, manifest.sizes_bytes[digest], progress)
            except (OSError, StateInvalid):
                continue
            where = f"{place.copies.name}: the job's own store fails, or stands still"
            reason = f"group {digest} of step {manifest.step} was read from {where}"
            self._report(Notice(topic="copies", generation=manifest.generation, step=manifest.step, reason=reason))
            return True
        return False

"""Where the session's state goes and comes from: the launcher's snapshot server, or a directory. Owns no decision about
when; must not look into the trees.
"""

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from keepstep.checkpoint.errors import SaveFailed, StateInvalid
from keepstep.checkpoint.local import LocalCheckpoints
from keepstep.checkpoint.repository.log import key_of
from keepstep.checkpoint.repository.repository import Commit
from keepstep.checkpoint.reshard.load import Policy, Targets, load_resharded
from keepstep.checkpoint.state.tree import Flat, flatten
from keepstep.train import agreement
from keepstep.train.standalone import standalone
from keepstep.train.worker import RestoreOrder, Worker, script_name

if TYPE_CHECKING:
    from keepstep.checkpoint.snapshot.client import SnapshotClient

log = logging.getLogger("keepstep")

_RECONNECT_S = 1.0
_TICK_S = 0.2
"""How often a wait for the disk tells the launcher that it is alive."""
FINISH_LIMIT_S = 3600.0
"""A last checkpoint that is not durable after this is given up; what was saved before stands."""


class Restored(NamedTuple):
    step: int
    world_size: int
    """Ranks that saved it."""
    groups: dict[str, Any]
    """Verified; owned by the receiver."""
    origin: str
    """For people."""


class Resharding(NamedTuple):
    """What a rank of another world takes over from the ranks that saved."""

    targets: Targets
    policy: Policy


Reshard = Callable[[int], Resharding]
"""Asked for where the number of ranks that saved, which it gets, is another one. Raises RestoreFailed if that cannot be."""


class Storage(Protocol):
    outlives_worker: bool
    """What is saved here at every step survives this process, at about the cost of one memory copy."""

    @property
    def written_s(self) -> float:
        """How long the newest checkpoint took until it was durable; 0 before there was one."""
        ...

    def restore(self, reshard: Reshard, tick: Callable[[], None]) -> Restored | None:
        """The state to start from; None for none. ``tick`` is called while bytes arrive. Raises StateInvalid, a key error, or
        what ``reshard`` raises."""
        ...

    def prepare(self, groups: Mapping[str, Any]) -> None:
        """Find out before the first step what could not be saved. Raises TypeError with the path of it."""
        ...

    def save(self, step: int, groups: Mapping[str, Any], durable: bool) -> None:
        """Keep the state of this rank. A save that fails is reported, and is not the end of the run."""
        ...

    def finish(self, step: int, groups: Mapping[str, Any], tick: Callable[[], None]) -> None:
        """Make the last state durable and wait for it; ``tick`` is called while that takes time."""
        ...

    def close(self) -> None: ...


def open_storage(worker: Worker, checkpoint_dir: str | None) -> Storage:
    if worker.snapshot_socket:
        if checkpoint_dir and worker.checkpoint_dir and _place(checkpoint_dir) != worker.checkpoint_dir:
            log.warning(
                "checkpoint_dir=%r is not used under a launcher: it saves in %s (--checkpoint-dir)",
                checkpoint_dir, worker.checkpoint_dir,
            )  # fmt: skip
        return SnapshotStorage(worker)
    directory = checkpoint_dir or worker.checkpoint_dir or str(Path("checkpoints") / script_name())
    return DirectoryStorage(worker, directory)


def _place(text: str) -> str:
    return text if "://" in text else str(Path(text).resolve())


class _Flattener:
    """Flattens the groups of each save, sparing what has not changed since the last one."""

    def __init__(self) -> None:
        self._previous: dict[str, Flat] = {}

    def __call__(self, groups: Mapping[str, Any]) -> dict[str, Flat]:
        flats: dict[str, Flat] = {}
        for name, tree in groups.items():
            if isinstance(tree, Flat):
                flats[name] = tree
                continue
            try:
                flats[name] = flatten(tree, previous=self._previous.get(name))
            except TypeError as error:
                raise TypeError(f"in the state of {name}: {error}") from None
        self._previous = flats
        return flats

    def check(self, groups: Mapping[str, Any]) -> None:
        """Raises TypeError, or StateInvalid for sharded tensors of one name, where groups could not be saved."""
        for flat in self(groups).values():
            _ = flat.sharded


class SnapshotStorage:
    """Under a launcher: memory of the snapshot server, which writes behind to the disk."""

    outlives_worker = True

    @property
    def written_s(self) -> float:
        return self._client.written_s if self._client is not None else 0.0

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._client: SnapshotClient | None = self._connect()
        self._retry_s = 0.0
        self._flatten = _Flattener()
        self._restored_durable = self._asked_step = -1

    def _connect(self) -> "SnapshotClient":
        # Loaded here, because a run without a launcher needs none of it.
        from keepstep.checkpoint.snapshot.client import SnapshotClient

        worker = self._worker
        return SnapshotClient(
            worker.snapshot_socket,
            job=worker.job,
            generation=worker.generation,
            rank=worker.rank,
            world_size=worker.world_size,
        )

    def restore(self, reshard: Reshard, tick: Callable[[], None]) -> Restored | None:
        order = self._worker.restore
        if order is None:
            return None
        assert self._client is not None, "restore comes before anything that could lose the connection"
        self._client.on_reading = tick
        if order.world_size == self._worker.world_size:
            groups = self._client.restore(
                order.step, order.tier, order.key, order.world_size, order.peers, order.generation
            )
        else:
            groups = self._restore_resharded(order, *reshard(order.world_size))
        if order.tier == "disk":
            self._restored_durable = order.step
        return Restored(order.step, order.world_size, standalone(groups), f"{order.tier} ({order.key})")

    def _restore_resharded(self, order: RestoreOrder, targets: Targets, policy: Policy) -> dict[str, Any]:
        from keepstep.checkpoint.snapshot.messages import FindPart
        from keepstep.checkpoint.snapshot.other_world import restore_resharded

        assert self._client is not None
        request = FindPart(
            step=order.step, generation=order.generation, rank=0, tier=order.tier, key=order.key, peers=order.peers
        )
        return restore_resharded(self._client, request, order.world_size, targets, policy).groups

    def prepare(self, groups: Mapping[str, Any]) -> None:
        self._flatten.check(groups)

    def save(self, step: int, groups: Mapping[str, Any], durable: bool) -> None:
        try:
            if self._client is None:
                if time.monotonic() < self._retry_s:
                    return
                self._client = self._connect()
            if self._client.snapshot(step, self._flatten(groups), durable=durable) and durable:
                self._asked_step = step
        except OSError as error:
            # Losing the snapshot server costs protection, not the run. A rank that is to end is ended by its launcher.
            if self._client is not None:
                log.error("step %d is not in a snapshot, training goes on without: %s", step, error)
            self.close()
            self._retry_s = time.monotonic() + _RECONNECT_S

    def finish(self, step: int, groups: Mapping[str, Any], tick: Callable[[], None]) -> None:
        if step == self._restored_durable:
            return
        give_up_s = time.monotonic() + FINISH_LIMIT_S
        try:
            while self._asked_step != step and self._client is not None and time.monotonic() < give_up_s:
                self.save(step, groups, durable=True)
                tick()
            while self._client is not None and time.monotonic() < give_up_s:
                if self._client.wait_durable(step, _TICK_S):
                    return
                tick()
            reason = "no connection to the snapshot server" if self._client is None else "it took too long"
        except (SaveFailed, OSError) as error:
            reason = str(error)
        log.error("the last checkpoint (step %d) was not made durable: %s", step, reason)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class DirectoryStorage:
    """Without a launcher: durable checkpoints in a directory or an object store, written by the ranks themselves."""

    outlives_worker = False

    def __init__(self, worker: Worker, directory: str) -> None:
        self._worker, self._directory = worker, directory
        self.written_s = 0.0
        self._checkpoints = LocalCheckpoints(directory, job=worker.job)
        self._flatten = _Flattener()
        self._durable_step = -1

    def restore(self, reshard: Reshard, tick: Callable[[], None]) -> Restored | None:
        tick()
        commit, worker = self._choose(), self._worker
        if commit is None:
            return None
        if commit.world_size == worker.world_size:
            groups = self._checkpoints.load(commit, worker.rank)
        else:
            targets, policy = reshard(commit.world_size)
            repository = self._checkpoints.repository
            groups = load_resharded(repository, commit.key, worker.rank, worker.world_size, targets, policy).groups
        self._durable_step = commit.step
        return Restored(commit.step, commit.world_size, standalone(groups), f"{self._directory} ({commit.key})")

    def _choose(self) -> Commit | None:
        """The newest valid commit: one choice, made by rank 0 where ranks can talk."""
        worker = self._worker
        if not agreement.can_agree(worker.world_size):
            return self._newest()
        seq, run = agreement.first_rank_says(
            [0, 0] if worker.rank else [int(chosen.key) if (chosen := self._newest()) else 0, secrets.randbits(62)]
        )
        # Ranks on several nodes have no parent process in common that could name this run.
        self._checkpoints = LocalCheckpoints(self._directory, job=worker.job, run=f"{run:x}")
        if seq == 0:
            return None
        for commit in self._checkpoints.repository.commits():
            if commit.key == key_of(seq):
                return commit
        raise StateInvalid(
            f"rank 0 restores commit {key_of(seq)}, which rank {worker.rank} does not see in {self._directory}; "
            "checkpoint_dir must be one directory that all ranks share"
        )

    def _newest(self) -> Commit | None:
        commit = self._checkpoints.newest_valid()
        for rejected in self._checkpoints.skipped:
            log.warning("checkpoint %s in %s is skipped: %s", rejected.key, self._directory, rejected.reason)
        return commit

    def prepare(self, groups: Mapping[str, Any]) -> None:
        self._flatten.check(groups)

    def save(self, step: int, groups: Mapping[str, Any], durable: bool) -> None:
        worker = self._worker
        if step == self._durable_step:
            return
        begin_s = time.monotonic()
        try:
            self._checkpoints.save(step, self._flatten(groups), worker.rank, worker.world_size, worker.generation)
            self.written_s = time.monotonic() - begin_s
            self._durable_step = step
        except (SaveFailed, OSError) as error:
            log.error("the checkpoint of step %d failed, the run goes on with the older one: %s", step, error)

    def finish(self, step: int, groups: Mapping[str, Any], tick: Callable[[], None]) -> None:
        self.save(step, groups, durable=True)
        tick()

    def close(self) -> None:
        """Nothing is held between saves."""

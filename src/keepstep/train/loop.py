"""The session: what a training script talks to. Owns the order of things at a step boundary; stores nothing itself."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, SupportsFloat

from keepstep.checkpoint.errors import KeyUnusable, StateInvalid
from keepstep.checkpoint.reshard.load import Policy
from keepstep.checkpoint.state import generators
from keepstep.train import agreement
from keepstep.train.cadence import Cadence
from keepstep.train.deal import local_batch
from keepstep.train.errors import RestoreFailed, SessionError
from keepstep.train.preemption import EXIT_CODE, Preemption
from keepstep.train.progress import ProgressReporter
from keepstep.train.state import RANK_GROUP, Registered
from keepstep.train.storage import Resharding, Restored, Storage, open_storage
from keepstep.train.worker import Worker, read_worker
from keepstep.wire.progress import PHASES

log = logging.getLogger("keepstep")

_active: "Session | None" = None


def session(
    *,
    checkpoint_every_s: float | None = None,
    checkpoint_every_steps: int | None = None,
    snapshot_every_steps: int | None = None,
    checkpoint_dir: str | None = None,
    elastic: bool = False,
    per_rank: Sequence[str] = (),
    **state: Any,
) -> "Session":
    """Register the state of a training run; then loop over ``run.steps(total)``.

    state: by name, everything that has ``state_dict`` and ``load_state_dict``: model (in DDP or not), optimizer,
        scheduler, scaler, sampler or loader, objects of your own (a gradient accumulation position, a best loss). The
        random number generators of python, numpy and torch are taken along by themselves.
    checkpoint_every_s, checkpoint_every_steps: interval of durable checkpoints; with neither, it is chosen from what a
        save costs and how often failures come.
    snapshot_every_steps: interval of memory snapshots under a launcher. By default every step, or as rarely as it takes
        to cost less than 1 % of the step time where every step would cost more than 2 %.
    checkpoint_dir: outside a launcher; default ``./checkpoints/<script name>``. A launcher has its own option.
    elastic: the state may be restored on another number of ranks. What was equal on all ranks, or sharded, is taken over
        by all; anything else is refused, except for random numbers, buffers of modules, and
    per_rank: names (``extra``, or ``extra.best.loss`` for a part) of state that every rank has for itself: on another number
        of ranks, rank r goes on with that of rank r modulo the number of ranks that saved.

    One session per process. Raises SessionError where something cannot be registered.
    """
    global _active
    if _active is not None:
        raise SessionError("this process has a session already; register everything in one keepstep.session(...) call")
    worker = read_worker()
    storage = open_storage(worker, checkpoint_dir)
    cadence = Cadence(
        checkpoint_s=checkpoint_every_s,
        checkpoint_steps=checkpoint_every_steps,
        snapshot_steps=snapshot_every_steps,
        alone=worker.world_size == 1,
        nodes=worker.nodes,
        in_memory=storage.outlives_worker,
    )
    _active = Session(worker, Registered(state, per_rank), cadence, storage, elastic)
    return _active


class Session:
    """One generation of one rank of a run. Made by `session`."""

    def __init__(
        self, worker: Worker, registered: Registered, cadence: Cadence, storage: Storage, elastic: bool
    ) -> None:
        self._worker, self._registered, self._cadence, self._storage = worker, registered, cadence, storage
        self._elastic = elastic
        self._progress = ProgressReporter(worker.progress_file)
        self._preemption = Preemption()
        if not storage.outlives_worker and worker.world_size == 1:
            self._preemption.install()
        self._step = 0
        self._restored: int | None = None
        self._loss: float | None = None
        self._failed = ""
        self._looked = self._looping = self._stopping = self._asked = False
        self._in_phases_ns = 0

    # ---- what a script reads

    @property
    def step(self) -> int:
        """Steps completed; inside the loop's body, the number of the step that is being done."""
        return self._step

    @property
    def restored_step(self) -> int | None:
        """Steps that were complete in the state that was restored; None for a start from nothing."""
        return self._restored

    @property
    def generation(self) -> int:
        """How often the ranks of this job were started; 0 outside a launcher."""
        return self._worker.generation

    @property
    def rank(self) -> int:
        return self._worker.rank

    @property
    def world_size(self) -> int:
        return self._worker.world_size

    def local_batch(self, global_batch: int) -> int:
        """This rank's share of a batch that is the same at any world size; the shares add up exactly.

        Where the shares differ, scale the loss by ``local_batch * world_size / global_batch``: DDP takes the mean over
        ranks, not over samples.
        """
        return local_batch(global_batch, self.rank, self.world_size)

    # ---- what a script calls

    def restore(self) -> int | None:
        """Load the newest valid state into the registered objects, once; `steps` does it where the script did not.

        Returns the steps that are complete, or None where there is nothing to restore, which is a valid start. Raises
        RestoreFailed; everything is checked before the first object is touched.
        """
        if self._looked:
            if self._failed:
                raise RestoreFailed(f"this session could not restore, and cannot be used: {self._failed}")
            return self._restored
        self._refuse_if_iterating()
        self._looked = True
        self._progress.enter("restore")
        try:
            found = self._stage()
            if found is not None:
                self._apply(found)
        except RestoreFailed as error:
            # Objects may hold half of it: a script that goes on all the same must not train from that.
            self._failed = str(error)
            raise
        self._progress.enter("start")
        return self._restored

    def steps(self, total: int) -> Iterator[int]:
        """Restore, then yield the numbers of the steps that are left of ``total``, counted from 0.

        A step is complete when its body is. After each: progress, and a snapshot or a checkpoint where one is due; at
        the end a durable checkpoint. Leave early with `stop`: after a ``break`` the last step counts as unfinished.
        """
        if self._looping:
            raise SessionError("steps() was called before: one session has one loop; count epochs inside it")
        self._looping = True
        self.restore()
        if total < self._step:
            raise SessionError(
                f"steps({total}) asks for less than the {self._step} steps that are complete in the restored state; "
                "raise the total, or start in a new checkpoint_dir"
            )
        self._storage.prepare(self._registered.capture(self._step))
        return self._loop(total)

    def report(self, loss: SupportsFloat | None = None) -> None:
        """Tell how it goes; the loss appears with the step that is being done. A tensor is read: that waits for it."""
        if loss is not None:
            self._loss = float(loss.detach() if hasattr(loss, "detach") else loss)
        self._progress.heartbeat()

    def heartbeat(self) -> None:
        """Something moves inside a step or a phase that takes long."""
        self._progress.heartbeat()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name what happens now ("evaluate", "checkpoint", or anything else): tells a long phase from a hang."""
        before, begin_ns = self._progress.phase, time.perf_counter_ns()
        self._progress.enter(name if name in PHASES else "other")
        try:
            yield
        finally:
            self._progress.enter(before)
            self._in_phases_ns += time.perf_counter_ns() - begin_ns

    def checkpoint(self) -> None:
        """Make a durable checkpoint at the end of the step that is being done. All ranks must ask in the same step."""
        self._asked = True

    def stop(self) -> None:
        """Leave the loop at the end of this step, with a durable checkpoint. All ranks must stop in the same step."""
        self._stopping = True

    def close(self) -> None:
        """Let go of launcher and signals. Only for a program that goes on to open another session."""
        global _active
        self._storage.close()
        self._progress.close()
        self._preemption.remove()
        if _active is self:
            _active = None

    # ---- the loop

    def _loop(self, total: int) -> Iterator[int]:
        self._progress.enter("step")
        begin_ns = time.perf_counter_ns()
        while self._step < total and not self._stopping:
            self._in_phases_ns = 0
            yield self._step
            self._step += 1
            self._boundary(time.perf_counter_ns() - begin_ns - self._in_phases_ns)
            begin_ns = time.perf_counter_ns()
        self._finish()

    def _boundary(self, step_ns: int) -> None:
        durable = self._asked or self._cadence.checkpoint_due(self._step)
        if self._preemption.requested:
            self._leave()
        if durable or (self._storage.outlives_worker and self._cadence.snapshot_due(self._step)):
            self._save(durable)
        self._progress.step_done(self._step, step_ns, self._loss)
        self._cadence.step_done()
        if self._cadence.review_due():
            self._cadence.checkpoint_written(self._storage.written_s)
            self._review()

    def _save(self, durable: bool) -> None:
        begin = time.perf_counter()
        if self._storage.outlives_worker:
            self._storage.save(self._step, self._registered.capture(self._step), durable)
        else:
            with self.phase("checkpoint"):
                self._storage.save(self._step, self._registered.capture(self._step), durable)
        cost_s = time.perf_counter() - begin
        self._cadence.snapshot_cost(cost_s)
        if durable:
            self._asked = False
            self._cadence.checkpoint_taken(0.0 if self._storage.outlives_worker else cost_s)

    def _review(self) -> None:
        snapshot_every, checkpoint_every = self._cadence.proposal()
        if agreement.can_agree(self.world_size):
            snapshot_every, earlier = agreement.largest([snapshot_every, -checkpoint_every])
            checkpoint_every = -earlier
        elif self.world_size > 1:
            snapshot_every = self._cadence.snapshot_every
        self._cadence.adopt(snapshot_every, checkpoint_every)

    def _finish(self) -> None:
        """The end of the run is durable before the script goes on."""
        with self.phase("checkpoint"):
            self._storage.finish(self._step, self._registered.capture(self._step), self._progress.heartbeat)
        self._progress.enter("done")

    def _leave(self) -> None:
        log.warning("SIGTERM: saving step %d and leaving", self._step)
        self._save(durable=True)
        raise SystemExit(EXIT_CODE)

    # ---- restoring

    def _stage(self) -> Restored | None:
        """The verified state, which fits every object on every rank; no object is touched. One rank's trouble is all ranks'."""
        found, trouble = None, None
        try:
            found = self._storage.restore(self._reshard, self._progress.heartbeat)
            if found is not None:
                found = found._replace(groups=self._registered.fit(found.groups))
                self._registered.check(found.groups)
        except (StateInvalid, KeyUnusable) as error:
            trouble = RestoreFailed(f"the state to restore is invalid: {error}")
        except RestoreFailed as error:
            trouble = error
        step = -1 if found is None else found.step
        if agreement.can_agree(self.world_size):
            failed, newest, oldest = agreement.largest([trouble is not None, step, -step])
            if trouble is None and failed:
                trouble = RestoreFailed("another rank could not restore: nothing was applied on this one either")
            elif trouble is None and newest != -oldest:
                trouble = RestoreFailed(f"ranks found different steps, {-oldest} to {newest}: nothing was applied")
        if trouble is not None:
            raise trouble
        return found

    def _reshard(self, saved_world_size: int) -> Resharding:
        if not self._elastic:
            raise RestoreFailed(
                f"the saved state is of {saved_world_size} ranks and this run has {self.world_size}; start as many, or "
                "declare keepstep.session(elastic=True) if the script can go on with another number"
            )
        self._refuse_positions_of_one_rank()
        per_rank: dict[str, Literal["derive", "modulo"]] = dict.fromkeys(self._registered.per_rank(), "modulo")
        per_rank[f"{RANK_GROUP}.rng"] = "derive"
        policy = Policy(per_rank=per_rank, positions=(f"{RANK_GROUP}.data",))
        return Resharding(self._registered.parts(), policy)

    def _apply(self, found: Restored) -> None:
        changed = found.world_size != self.world_size
        self._registered.apply(found.groups)
        rank_state = found.groups[RANK_GROUP]
        self._step = self._restored = rank_state["step"]
        # A rank that fails before its next step is done has still completed these: the same error at the same step.
        self._progress.step_done(self._step, 0, None)
        log.info("restored step %d from %s", self._step, found.origin)
        if changed and self.rank >= found.world_size:
            log.warning(
                "rank %d did not exist when the state was saved by %d ranks: its random numbers start from "
                "(seed, step %d, rank)", self.rank, found.world_size, self._step,
            )  # fmt: skip
            generators.derive(rank_state["rng"], self._step, self.rank)
        else:
            generators.restore(rank_state["rng"])

    def _refuse_positions_of_one_rank(self) -> None:
        for name, source in self._registered.data_sources.items():
            if type(source).__module__.startswith("torchdata."):
                raise RestoreFailed(
                    f"{name} ({type(source).__name__}) holds the position of one rank, which means nothing on another "
                    "number of ranks; use keepstep.resumable(DataLoader(...)), or start as many ranks as before"
                )

    def _refuse_if_iterating(self) -> None:
        for name, source in self._registered.data_sources.items():
            if getattr(source, "iterating", False):
                raise SessionError(
                    f"{name} was iterated before the state was restored: its batches would come twice after a restart; "
                    "make the iterator inside the loop, or call run.restore() before it"
                )

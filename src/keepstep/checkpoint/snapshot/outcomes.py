"""What became of durable snapshots, and which workers wait to hear it. Owns the answers to WaitDurable.

Used by the loop of the snapshot server alone; must not block.
"""

from collections.abc import Iterable

from keepstep.checkpoint.snapshot.connection import Connection
from keepstep.checkpoint.snapshot.messages import Attach, Committed, Durable, SaveError
from keepstep.checkpoint.snapshot.restore import Finding
from keepstep.checkpoint.snapshot.slots import Slot

KEEP_RESULTS = 64


class Worker:
    """One attached rank."""

    def __init__(self, connection: Connection, attach: Attach) -> None:
        self.connection = connection
        self.rank, self.generation, self.world_size = attach.rank, attach.generation, attach.world_size
        self.wants_bytes = self.reserve = 0
        self.granted: Slot | None = None
        self.refused = -1
        """Number of the Reserve for which there was no room."""
        self.mapped: set[int] = set()
        self.finding: Finding | None = None
        self.waits_for: set[int] = set()
        self.durable_step = -1
        """The newest step that it sealed for the disk."""


class Outcomes:
    def __init__(self) -> None:
        self._results: dict[tuple[int, int], Durable] = {}
        self._left: list[Worker] = []
        """Ranks of this generation that have gone: what they did not seal will never be complete."""

    def begin(self, generation: int) -> None:
        self._left = [worker for worker in self._left if worker.generation == generation]

    def has_left(self, worker: Worker) -> None:
        self._left.append(worker)

    def is_back(self, worker: Worker) -> None:
        """A rank that was taken for gone saves its steps after all."""
        self._left = [
            other for other in self._left if (other.generation, other.rank) != (worker.generation, worker.rank)
        ]

    def again(self, worker: Worker, step: int) -> None:
        """Another try of the same step: what became of the one before is no answer to it."""
        self._results.pop((worker.generation, step), None)

    def decided(self, event: Committed | SaveError, workers: Iterable[Worker | None]) -> None:
        result = self._results[event.generation, event.step] = (
            Durable(step=event.step, key=event.key, duration_s=event.duration_s)
            if isinstance(event, Committed)
            else Durable(step=event.step, reason=event.reason)
        )
        for worker in workers:
            if worker is not None and worker.generation == event.generation:
                worker.waits_for.discard(event.step)
                worker.connection.send(result)
        while len(self._results) > KEEP_RESULTS:
            del self._results[next(iter(self._results))]

    def tell(self, workers: Iterable[Worker | None]) -> None:
        """Answer those whose steps are decided."""
        for worker in [worker for worker in workers if worker is not None]:
            for step in sorted(worker.waits_for):
                result = self._results.get((worker.generation, step)) or self._never(worker, step)
                if result is not None:
                    worker.waits_for.discard(step)
                    worker.connection.send(result)

    def _never(self, worker: Worker, step: int) -> Durable | None:
        """Why a step will not become a checkpoint, where a rank went away without its part; None where it may yet."""
        for other in self._left:
            if other.generation == worker.generation and other.durable_step < step:
                return Durable(step=step, reason=f"rank {other.rank} ended before it had saved this step")
        return None

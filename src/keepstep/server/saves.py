"""Saves that the journal tells, each once: every node of a job reports what was saved, and to figures that is one save.

Folded with the tallies, and kept in their snapshot. Bounded: the oldest saves are forgotten. Pure.
"""

from msgspec import Struct, field

from keepstep.core import facts as f
from keepstep.core.ids import JobId

COMMITTED_MAX = 5000
"""Of all jobs together: a trend needs no more."""
FAILED_MAX = 1000


class Save(Struct, kw_only=True, array_like=True):
    """One that was committed."""

    job: JobId
    key: str
    at_s: float
    """When the first node said so."""
    step: int
    generation: int
    size_bytes: int
    duration_s: float
    """The longest that a node told: a save is as slow as its slowest part. 0 where none told any."""


class Saves(Struct, kw_only=True):
    committed: dict[tuple[JobId, str], Save] = field(default_factory=dict)
    """By (job, key), oldest first."""
    failed: dict[tuple[JobId, int, int], None] = field(default_factory=dict)
    """(job, generation, step), oldest first."""

    def commit(self, fact: f.CheckpointCommitted, at_s: float) -> bool:
        """Whether this is the first word of that save."""
        known = self.committed.get((fact.job, fact.key))
        if known is not None:
            known.duration_s = max(known.duration_s, fact.duration_s)
            return False
        if len(self.committed) >= COMMITTED_MAX:
            del self.committed[next(iter(self.committed))]
        self.committed[fact.job, fact.key] = Save(
            job=fact.job, key=fact.key, at_s=at_s, step=fact.step, generation=fact.generation, size_bytes=fact.size_bytes,
            duration_s=fact.duration_s,
        )  # fmt: skip
        return True

    def fail(self, fact: f.CheckpointFailed) -> bool:
        """Whether this is the first word of that failure."""
        told = (fact.job, fact.generation, fact.step)
        if told in self.failed:
            return False
        if len(self.failed) >= FAILED_MAX:
            del self.failed[next(iter(self.failed))]
        self.failed[told] = None
        return True

    def of_job(self, job: JobId) -> list[Save]:
        """Committed ones, newest first."""
        return [save for save in reversed(self.committed.values()) if save.job == job]

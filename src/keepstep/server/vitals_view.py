"""What lives in the leader's memory only, on its way to followers: the newest beat of each rank. Owns that shape."""

from msgspec import Struct

from keepstep.core.ids import JobId
from keepstep.core.vitals import JobVitals, RankSample, Vitals

BEATS = "beats"
"""The question that followers ask; its answer is of every tenant."""


class JobBeats(Struct, frozen=True, kw_only=True):
    generation: int
    ranks: tuple[RankSample, ...]


class Beats(Struct, frozen=True, kw_only=True):
    jobs: dict[JobId, JobBeats]


def pack(vitals: Vitals) -> Beats:
    return Beats(
        jobs={
            job: JobBeats(generation=known.generation, ranks=tuple(known.ranks.values()))
            for job, known in vitals.jobs.items()
        }
    )


def unpack(beats: Beats) -> Vitals:
    """As far as readers need it: nothing can be judged by it."""
    jobs = {
        job: JobVitals(generation=known.generation, ranks={sample.rank: sample for sample in known.ranks})
        for job, known in beats.jobs.items()
    }
    return Vitals(jobs=jobs)

"""Whether writing checkpoints becomes slower: per job, and over all jobs beside the median of each. Pure."""

import math
from collections.abc import Sequence

from keepstep.review.cost import DAY_S, NAMES_TOLD
from keepstep.review.estimates import median, spread, trend
from keepstep.review.figures import JobSaves, Saves
from keepstep.review.records import SaveRecord


def saves_of(saves: Sequence[SaveRecord]) -> Saves:
    """Saves without a duration (of a sender that does not say) are left out."""
    timed = sorted((x for x in saves if x.duration_s > 0), key=lambda x: (x.at_s, x.job, x.step))
    of_job: dict[str, list[SaveRecord]] = {}
    days: dict[float, list[float]] = {}
    for save in timed:
        of_job.setdefault(save.job, []).append(save)
        days.setdefault(math.floor(save.at_s / DAY_S) * DAY_S, []).append(save.duration_s)
    usual = {job: median([x.duration_s for x in found]) for job, found in of_job.items()}
    told = sorted((_job(job, found) for job, found in of_job.items()), key=lambda x: (-x.duration_s.n, x.job))
    return Saves(
        n=len(timed),
        duration_s=spread([x.duration_s for x in timed]),
        trend=trend([(x.at_s / DAY_S, x.duration_s / usual[x.job]) for x in timed]),
        by_day=tuple((start, median(found), len(found)) for start, found in sorted(days.items())),
        jobs=tuple(told[:NAMES_TOLD]),
    )


def _job(job: str, saves: list[SaveRecord]) -> JobSaves:
    size, spent = sum(x.size_bytes for x in saves), math.fsum(x.duration_s for x in saves)
    return JobSaves(
        job=job,
        duration_s=spread([x.duration_s for x in saves]),
        bytes_per_s=size / spent if size and spent > 0 else None,
        trend=trend([(x.at_s / DAY_S, x.duration_s) for x in saves]),
    )

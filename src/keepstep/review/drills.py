"""How drills went: passed or not, how soon they were noticed and recovered from. Pure.

Drills are no failures, and no other figure counts them. What they cost is badput of the cause ``drill``.
"""

import math
from collections.abc import Sequence

from keepstep.review.estimates import share, spread
from keepstep.review.figures import Drills
from keepstep.review.goodput import HOUR_S
from keepstep.review.records import DrillRecord, IncidentRecord

LATEST_TOLD = 20


def drills_of(
    drills: Sequence[DrillRecord], rehearsed: Sequence[IncidentRecord], since_s: float, until_s: float
) -> Drills:  # fmt: skip
    """Of those that ended in the span. ``rehearsed``: incidents in the span that a drill led to."""
    over = [x for x in drills if x.ended_s is not None and since_s <= x.ended_s < until_s]
    hit = [x for x in over if x.state != "called_off"]
    return Drills(
        n=len(hit),
        passed=share(sum(x.state == "passed" for x in hit), len(hit)),
        called_off=len(over) - len(hit),
        detection_s=spread([x.detected_after_s for x in hit if x.detected_after_s is not None]),
        recovery_s=spread([x.downtime_s for x in rehearsed if x.state == "recovered"]),
        gpu_h=math.fsum(x.lost_gpu_s for x in rehearsed) / HOUR_S,
        latest=tuple(sorted(over, key=lambda x: (x.ended_s or 0.0, x.id), reverse=True)[:LATEST_TOLD]),
    )

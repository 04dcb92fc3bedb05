"""How recoveries went: stages, first restarts, by themselves or with a person, and the work that was done again. Pure."""

import bisect
from collections.abc import Sequence

from keepstep.review.estimates import share, spread
from keepstep.review.figures import Recoveries, Stage
from keepstep.review.records import IncidentRecord

STAGES = ("open", "isolating", "selecting", "placing", "waiting", "restarting", "verifying", "all")
EDGES_S = (1.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0)


def recoveries_of(faults: Sequence[IncidentRecord]) -> Recoveries:
    ended = [x for x in faults if x.state != "no_fault"]
    recovered = [x for x in ended if x.state == "recovered"]
    started = [x for x in ended if x.attempts > 0]
    restored: dict[str, int] = {}
    for incident in sorted(recovered, key=lambda x: x.restored_from):
        name = incident.restored_from or "nothing"
        restored[name] = restored.get(name, 0) + 1
    return Recoveries(
        n=len(ended),
        recovered=share(len(recovered), len(ended)),
        first_restart=share(sum(x.state == "recovered" and x.attempts == 1 for x in started), len(started)),
        alone=share(sum(x.approvals == 0 for x in recovered), len(recovered)),
        stages=_stages(recovered),
        restored_from=restored,
        lost_s=spread([x.redone_s for x in recovered]),
        lost_steps=spread([float(x.lost_steps) for x in recovered]),
        checkpoint_age_s=spread([x.checkpoint_age_s for x in ended if x.checkpoint_age_s is not None]),
        lost_histogram=_histogram([x.redone_s for x in recovered]),
    )


def _stages(recovered: Sequence[IncidentRecord]) -> tuple[Stage, ...]:
    alone = _samples([x for x in recovered if x.approvals == 0])
    helped = _samples([x for x in recovered if x.approvals > 0])
    every = {name: alone[name] + helped[name] for name in STAGES}
    return tuple(
        Stage(stage=name, every=spread(every[name]), alone=spread(alone[name]), helped=spread(helped[name]))
        for name in STAGES
        if every[name]
    )


def _samples(incidents: Sequence[IncidentRecord]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in STAGES}
    for incident in incidents:
        for stage, spent_s in incident.stage_s.items():
            if stage in found:
                found[stage].append(spent_s)
        found["all"].append(incident.downtime_s)
    return found


def _histogram(values: Sequence[float]) -> tuple[tuple[float, int], ...]:
    counts = [0] * (len(EDGES_S) + 1)
    for value in values:
        counts[bisect.bisect_left(EDGES_S, value)] += 1
    return tuple(zip((*EDGES_S, -1.0), counts, strict=True))

"""From records to the review. Pure; owns which records count for which figure. Takes seconds at 100,000 incidents: give it a
thread where others wait."""

import msgspec

from keepstep.review.cost import cost_of
from keepstep.review.drills import drills_of
from keepstep.review.failures import failures_of
from keepstep.review.figures import Fleet, Material, Review
from keepstep.review.goodput import time_of
from keepstep.review.offenders import lemons_of, repairs_of, trust_of
from keepstep.review.recovery import recoveries_of
from keepstep.review.saves import saves_of


def review(material: Material, tenant: str = "") -> Review:
    """Of the span ``since_s`` to ``until_s``. ``tenant``: several comma-separated; empty for all.

    A fault incident counts where it ended in the span; one without a fault costs nothing and is left out of rates. So is what
    a drill led to: drills have figures of their own. Times of jobs are cut to the span.
    """
    found = _of_tenants(_ordered(material), tenant)
    since_s, until_s = found.since_s, found.until_s
    ended = [x for x in found.incidents if x.state != "open" and since_s <= x.closed_s < until_s]
    happened = [x for x in ended if x.kind == "fault" and x.state != "no_fault"]
    faults = [x for x in happened if not x.drill]
    causes = [x for x in found.faults if x.opened_s < until_s and since_s <= x.closed_s]
    return Review(
        since_s=since_s,
        until_s=until_s,
        tenant=tenant,
        time=time_of(found.jobs, found.incidents, since_s, until_s),
        cost=cost_of(faults),
        failures=failures_of(faults, found.jobs, causes, found.fleet, since_s, until_s),
        recoveries=recoveries_of(faults),
        saves=saves_of(found.saves),
        trust=trust_of(found.precision),
        lemons=lemons_of(faults, causes, found.fleet),
        repairs=repairs_of(found.repairs, since_s, until_s),
        drills=drills_of(found.drills, [x for x in happened if x.drill], since_s, until_s),
    )


def _ordered(material: Material) -> Material:
    """The order in which records come is no part of what they say."""
    return msgspec.structs.replace(
        material,
        incidents=tuple(sorted(material.incidents, key=lambda x: (x.closed_s, x.id))),
        jobs=tuple(sorted(material.jobs, key=lambda x: (x.id, x.submitted_s))),
        faults=tuple(sorted(material.faults, key=lambda x: (x.closed_s, x.id))),
        precision=tuple(sorted(material.precision, key=lambda x: (-x.isolations - x.preemptions, x.rule))),
    )


def _of_tenants(material: Material, tenant: str) -> Material:
    """Tenants are apart: of the fleet's own figures none is told to one of them."""
    if not tenant:
        return material
    wanted = tenant.split(",")
    jobs = tuple(x for x in material.jobs if x.tenant in wanted)
    incidents = tuple(x for x in material.incidents if x.tenant in wanted)
    names, touched = {x.id for x in jobs}, {x.id for x in incidents}
    return msgspec.structs.replace(
        material,
        jobs=jobs,
        incidents=incidents,
        faults=tuple(x for x in material.faults if touched.intersection(x.incidents)),
        saves=tuple(x for x in material.saves if x.job in names),
        precision=(),
        fleet=Fleet(),
        repairs=(),
        drills=tuple(x for x in material.drills if x.tenant in wanted),
    )


def of_job(material: Material, job: str) -> Material:
    """What concerns one job. Raises LookupError where there is none of that name."""
    jobs = tuple(x for x in material.jobs if x.id == job)
    if not jobs:
        raise LookupError(job)
    incidents = tuple(x for x in material.incidents if x.job == job)
    ids = {x.id for x in incidents}
    return msgspec.structs.replace(
        material,
        jobs=jobs,
        incidents=incidents,
        faults=tuple(x for x in material.faults if ids.intersection(x.incidents)),
        saves=tuple(x for x in material.saves if x.job == job),
        drills=tuple(x for x in material.drills if x.job == job),
    )

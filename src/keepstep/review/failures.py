"""How often what fails: by device model, size of the job, rack and label; week by week; and which rack stands out. Pure."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from keepstep.review.cost import NAMES_TOLD
from keepstep.review.estimates import LEAST, SURE, binomial_tail, poisson_interval, score_trend, too_few
from keepstep.review.figures import Failures, Fleet, Rack, Rate, Week
from keepstep.review.goodput import HOUR_S
from keepstep.review.records import FaultRecord, IncidentRecord, JobRecord

WEEK_S = 7 * 86_400.0
_MONDAY_S = 4 * 86_400.0
"""The epoch was a Thursday."""
SIZES = (1, 8, 64, 512, 4096, 32_768)
_OF_DEVICES = "device"
_OF_MACHINES = ("device", "host_hardware", "host_software", "network", "power")
"""Causes that lie in the place and not in the job."""


def failures_of(
    faults: Sequence[IncidentRecord], jobs: Sequence[JobRecord], causes: Sequence[FaultRecord], fleet: Fleet,
    since_s: float, until_s: float,
) -> Failures:  # fmt: skip
    ran = [(job, _ran_s(job, since_s, until_s)) for job in jobs]
    whole = math.fsum(job.ranks * spent for job, spent in ran) / HOUR_S
    racks, by_id = _root_causes(faults, causes), {job.id: job for job in jobs}
    weeks, p = _weeks(faults, jobs, since_s, until_s)
    return Failures(
        n=len(faults),
        by_device_model=_rates(
            _exposures((_model_of(job), job.ranks * spent) for job, spent in ran),
            _counts(_device_model(x, by_id) for x in faults if x.cause == _OF_DEVICES),
        ),
        by_size=_rates(
            _exposures((size_of(job.ranks), spent) for job, spent in ran), _counts(size_of(x.ranks) for x in faults)
        ),
        by_domain=_rates(_rack_exposures(fleet, whole), {name: n for name, n in racks.items() if name}),
        by_label=_rates(
            _exposures((job.labels.get("model") or "(no label)", job.ranks * spent) for job, spent in ran),
            _counts(x.labels.get("model") or "(no label)" for x in faults),
        ),
        weeks=weeks,
        trend=_word(weeks, p),
        trend_p=p,
        racks=compare_racks(racks, fleet.nodes_by_rack),
        note=too_few(len(faults)),
    )


def size_of(ranks: int) -> str:
    """Bucket of a job's size."""
    for low, above in itertools.pairwise(SIZES):
        if ranks < above:
            return f"{low}–{above - 1}" if above - 1 > low else str(low)
    return f"{SIZES[-1]}+"


def _ran_s(job: JobRecord, since_s: float, until_s: float) -> float:
    """Seconds in the span since its first verified step."""
    if job.running_since_s is None:
        return 0.0
    end_s = min(until_s, job.finished_s if job.finished_s is not None else until_s)
    return max(0.0, end_s - max(since_s, job.running_since_s))


def _model_of(job: JobRecord) -> str:
    return " + ".join(sorted(job.device_models)) or "(unknown)"


def _device_model(incident: IncidentRecord, jobs: Mapping[str, JobRecord]) -> str:
    """Counted where its exposure is counted: in a job of several models, under their joint name."""
    job = jobs.get(incident.job)
    if job is not None and job.device_models:
        return _model_of(job)
    return " + ".join(sorted(incident.device_models)) or "(unknown)"


def _exposures(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Name -> hours."""
    found: dict[str, list[float]] = {}
    for name, spent_s in pairs:
        found.setdefault(name, []).append(spent_s)
    return {name: math.fsum(spent) / HOUR_S for name, spent in found.items()}


def _counts(names: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return found


def _rates(exposure_h: Mapping[str, float], failed: Mapping[str, int]) -> tuple[Rate, ...]:
    names = [name for name in {**exposure_h, **failed} if exposure_h.get(name, 0.0) > 0 or failed.get(name)]
    ordered = sorted(names, key=lambda x: (-failed.get(x, 0), -exposure_h.get(x, 0.0), x))
    return tuple(_rate(name, exposure_h.get(name, 0.0), failed.get(name, 0)) for name in ordered[:NAMES_TOLD])


def _rate(name: str, exposure_h: float, count: int) -> Rate:
    enough = count >= LEAST and exposure_h > 0
    fewest, most = poisson_interval(count)
    return Rate(
        name=name,
        exposure_h=exposure_h,
        failures=count,
        mttf_h=exposure_h / count if enough else None,
        low_h=exposure_h / most if exposure_h > 0 else None,
        high_h=exposure_h / fewest if exposure_h > 0 and fewest > 0 else None,
        note=too_few(count) or ("" if exposure_h > 0 else "its running time is not known"),
    )


# ---- week by week


def _weeks(
    faults: Sequence[IncidentRecord], jobs: Sequence[JobRecord], since_s: float, until_s: float
) -> tuple[tuple[Week, ...], float | None]:  # fmt: skip
    starts_s = [job.running_since_s for job in jobs if job.running_since_s is not None]
    moments_s = [x.opened_s for x in faults] + starts_s
    if not moments_s:
        return (), None
    first, last = week_of(max(since_s, min(moments_s))), week_of(until_s)
    count = min(520, round((last - first) / WEEK_S) + 1)
    begin_s = last - (count - 1) * WEEK_S
    failed, exposure = [0] * count, [0.0] * count
    for incident in faults:
        index = round((week_of(max(since_s, incident.opened_s)) - begin_s) / WEEK_S)
        if 0 <= index < count:
            failed[index] += 1
    for job in jobs:
        _spread_over(job, exposure, begin_s, since_s, until_s)
    told = tuple(
        Week(
            start_s=begin_s + i * WEEK_S,
            exposure_gpu_h=exposure[i] / HOUR_S,
            failures=failed[i],
            mtbf_gpu_h=exposure[i] / HOUR_S / failed[i] if failed[i] >= LEAST else None,
        )
        for i in range(count)
    )
    return told, score_trend(failed, exposure)


def week_of(at_s: float) -> float:
    """Start of its week, Monday, UTC."""
    return math.floor((at_s - _MONDAY_S) / WEEK_S) * WEEK_S + _MONDAY_S


def _spread_over(job: JobRecord, exposure: list[float], begin_s: float, since_s: float, until_s: float) -> None:
    if job.running_since_s is None or not job.ranks:
        return
    start_s = max(since_s, job.running_since_s)
    end_s = min(until_s, job.finished_s if job.finished_s is not None else until_s)
    index = max(0, int((start_s - begin_s) // WEEK_S))
    while index < len(exposure) and begin_s + index * WEEK_S < end_s:
        week_s = begin_s + index * WEEK_S
        exposure[index] += job.ranks * max(0.0, min(end_s, week_s + WEEK_S) - max(start_s, week_s))
        index += 1


def _word(weeks: Sequence[Week], p: float | None) -> str:
    if p is None:
        return "too few"
    if p >= SURE:
        return "steady"
    n, whole = sum(x.failures for x in weeks), math.fsum(x.exposure_gpu_h for x in weeks)
    expected = math.fsum(i * x.exposure_gpu_h / whole for i, x in enumerate(weeks))
    return "more often" if sum(i * x.failures for i, x in enumerate(weeks)) > n * expected else "less often"


# ---- racks


def _root_causes(faults: Sequence[IncidentRecord], causes: Sequence[FaultRecord]) -> dict[str, int]:
    """Rack -> root causes there. A fault counts once, however many incidents it made; an incident that goes back to no
    known fault counts for itself, where its cause lies in the place."""
    found = _counts(x.rack for x in causes if x.rack and x.cause in _OF_MACHINES)
    known = {x.id for x in causes}
    for incident in faults:
        if incident.fault not in known and incident.cause in _OF_MACHINES:
            for rack in incident.racks:
                found[rack] = found.get(rack, 0) + 1
    return found


def _rack_exposures(fleet: Fleet, gpu_h: float) -> dict[str, float]:
    nodes = sum(fleet.nodes_by_rack.values())
    return {name: gpu_h * count / nodes for name, count in fleet.nodes_by_rack.items()} if nodes else {}


def compare_racks(failed: Mapping[str, int], nodes: Mapping[str, int]) -> tuple[Rack, ...]:
    """Each rack beside what its nodes would give by chance (exact binomial, Bonferroni)."""
    told = {name: count for name, count in failed.items() if nodes.get(name)}
    n, whole = sum(told.values()), sum(nodes.values())
    racks = [
        _rack(name, failed.get(name, 0), nodes.get(name, 0), n, whole, len(nodes))
        for name in sorted({**nodes, **failed})
    ]
    return tuple(sorted(racks, key=lambda x: (x.p if x.p is not None else 2.0, -x.failures, x.rack))[:NAMES_TOLD])


def _rack(name: str, count: int, nodes: int, n: int, whole: int, looked_at: int) -> Rack:
    if not nodes or looked_at < 2:
        verdict = "the only one" if nodes else "size unknown"
        return Rack(rack=name, nodes=nodes, failures=count, expected=None, p=None, verdict=verdict)
    p = min(1.0, binomial_tail(count, n, nodes / whole) * looked_at)
    verdict = "too few" if n < LEAST else "more than chance" if p < SURE else "as chance"
    return Rack(rack=name, nodes=nodes, failures=count, expected=n * nodes / whole, p=p, verdict=verdict)

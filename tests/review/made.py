"""Records that are made up: for properties, and one month that is always the same for golden reports."""

import functools
import random

from hypothesis import strategies as st

from keepstep.core.preemptions import Precision
from keepstep.review.figures import Fleet, Material, Repair
from keepstep.review.records import FaultRecord, IncidentRecord, JobRecord, SaveRecord

T0 = 1_790_000_000.0
DAY_S = 86_400.0
CAUSES = (
    ("device", "gpu_memory"),
    ("network", "link"),
    ("application", ""),
    ("host_hardware", "power"),
    ("unknown", ""),
)


def job(id: str = "j", **fields: object) -> JobRecord:
    known = {"tenant": "default", "state": "finished", "ranks": 8, "submitted_s": 0.0, "running_since_s": 10.0}
    return JobRecord(**{"id": id, "finished_s": 1000.0, **known, **fields})  # type: ignore[arg-type]


def incident(id: str = "i", **fields: object) -> IncidentRecord:
    known = {"job": "j", "tenant": "default", "kind": "fault", "state": "recovered", "cause": "device", "ranks": 8}
    times = {"opened_s": 100.0, "closed_s": 130.0, "downtime_s": 20.0}
    return IncidentRecord(**{"id": id, **known, **times, **fields})  # type: ignore[arg-type]


def fault(id: str = "f", **fields: object) -> FaultRecord:
    known = {"resource": "n1/gpu/0", "node": "n1", "part": "gpu/0", "cause": "device", "failure_class": "gpu_memory"}
    rest = {"scope": "device", "verdict": "broken", "opened_s": 100.0, "closed_s": 200.0, "outcome": "replaced"}
    return FaultRecord(**{"id": id, **known, **rest, **fields})  # type: ignore[arg-type]


# ---- anything


_moments = st.integers(0, 2000).map(float)
_spans = st.integers(0, 400).map(float)


@st.composite
def incidents(draw: st.DrawFn) -> tuple[IncidentRecord, ...]:
    made = []
    for number in range(draw(st.integers(0, 8))):
        opened, down = draw(_moments), draw(_spans)
        cause, failure_class = draw(st.sampled_from(CAUSES))
        made.append(
            incident(
                f"i{number}", job=f"j{draw(st.integers(0, 2))}", opened_s=opened, closed_s=opened + down + draw(_spans),
                downtime_s=down, redone_s=draw(_spans), cause=cause, failure_class=failure_class,
                ranks=draw(st.integers(0, 64)), state=draw(st.sampled_from(("recovered", "escalated", "open"))),
                kind=draw(st.sampled_from(("fault", "fault", "start"))), attempts=draw(st.integers(0, 3)),
                approvals=draw(st.integers(0, 1)), stage_s={"verifying": draw(_spans), "waiting": draw(_spans)},
                nodes=(f"n{draw(st.integers(0, 3))}",), racks=(f"r{draw(st.integers(0, 1))}",),
            )
        )  # fmt: skip
    return tuple(made)


@st.composite
def materials(draw: st.DrawFn) -> Material:
    jobs = []
    for number in range(draw(st.integers(0, 3))):
        submitted = draw(_moments)
        running = draw(st.one_of(st.none(), _spans))
        finished = draw(st.one_of(st.none(), _moments))
        jobs.append(
            job(
                f"j{number}", submitted_s=submitted, ranks=draw(st.integers(0, 64)),
                running_since_s=submitted + running if running is not None else None,
                finished_s=submitted + (running or 0.0) + finished if finished is not None else None,
                labels={"model": draw(st.sampled_from(("a", "b")))},
            )
        )  # fmt: skip
    since = draw(_moments)
    return Material(
        since_s=since,
        until_s=since + draw(st.integers(1, 2500)),
        jobs=tuple(jobs),
        incidents=draw(incidents()),
        faults=tuple(fault(f"f{i}", opened_s=draw(_moments), closed_s=3000.0) for i in range(draw(st.integers(0, 3)))),
        fleet=Fleet(nodes=4, nodes_by_rack={"r0": 2, "r1": 2}),
    )


# ---- a month


@functools.cache
def month() -> Material:
    """Twelve jobs and three hundred incidents; rack r0 is bad, and writes become slower."""
    dice = random.Random(1)
    jobs = tuple(_job_of_month(dice, number) for number in range(12))
    found = [_incident_of_month(dice, number, dice.choice(jobs)) for number in range(300)]
    return Material(
        since_s=T0,
        until_s=T0 + 28 * DAY_S,
        jobs=jobs,
        incidents=tuple(x for x, _ in found),
        faults=tuple(x for _, x in found if x is not None),
        saves=tuple(_save(dice, one, number) for one in jobs for number in range(60)),
        fleet=Fleet(nodes=64, nodes_by_rack={f"r{i}": 8 for i in range(8)}),
        precision=(
            Precision(
                rule="xid.48", failure_class="gpu_memory", isolations=10, confirmed=8, unnecessary=1, pending=1, preemptions=6,
                preemptions_confirmed=5, preemptions_unnecessary=1, preemptions_pending=0,
            ),
        ),
        repairs=tuple(_repair(number) for number in range(8)),
    )  # fmt: skip


def _job_of_month(dice: random.Random, number: int) -> JobRecord:
    submitted = T0 + dice.random() * 5 * DAY_S
    ranks = dice.choice((8, 64, 512, 4096))
    return job(
        f"job{number}", tenant="red" if number % 2 else "blue", ranks=ranks, submitted_s=submitted,
        state="running" if number < 3 else "finished", running_since_s=submitted + dice.random() * 3600,
        finished_s=None if number < 3 else submitted + dice.uniform(5, 20) * DAY_S,
        labels={"model": dice.choice(("llama-70b", "moe-200b", "vit"))}, device_models=(dice.choice(("H100", "H200")),),
    )  # fmt: skip


def _incident_of_month(dice: random.Random, number: int, of: JobRecord) -> tuple[IncidentRecord, FaultRecord | None]:
    end = of.finished_s or T0 + 28 * DAY_S
    assert of.running_since_s is not None
    opened, down = dice.uniform(of.running_since_s, end - 7200), min(3600.0, dice.lognormvariate(4, 1))
    cause, failure_class = dice.choice(CAUSES)
    rack = f"r{min(7, int(dice.expovariate(0.4)))}"
    node = f"{rack}-n{dice.randrange(8)}"
    state = dice.choices(("recovered", "escalated", "no_fault"), (90, 7, 3))[0]
    root = f"fault-{number}" if failure_class else ""
    made = incident(
        f"inc-{number:04d}", job=of.id, tenant=of.tenant, state=state, cause=cause, failure_class=failure_class, fault=root,
        nodes=(node,), racks=(rack,), labels=of.labels, ranks=of.ranks, opened_s=opened, closed_s=opened + down + 5,
        downtime_s=0.0 if state == "no_fault" else down, redone_s=dice.lognormvariate(4, 1.2) if state == "recovered" else 0.0,
        stage_s={"isolating": down * 0.3, "restarting": down * 0.4, "verifying": down * 0.3}, lost_steps=20,
        restored_from="ram", restored_step=80, step_before=100, checkpoint_age_s=300.0,
        attempts=1 if dice.random() < 0.8 else 2, approvals=int(dice.random() < 0.1),
    )  # fmt: skip
    if not root:
        return made, None
    cause_of_it = fault(
        root, node=node, rack=rack, resource=f"{node}/gpu/0", cause=cause, failure_class=failure_class, serial=f"S-{node}",
        opened_s=opened, closed_s=opened + 3600, incidents=(made.id,),
    )  # fmt: skip
    return made, cause_of_it


def _save(dice: random.Random, of: JobRecord, number: int) -> SaveRecord:
    assert of.running_since_s is not None
    end = of.finished_s or T0 + 28 * DAY_S
    at = of.running_since_s + number * (end - of.running_since_s) / 60
    took = 30 * (1 + 0.01 * number) * dice.uniform(0.8, 1.3)
    return SaveRecord(job=of.id, at_s=at, step=number * 100, duration_s=took, size_bytes=10**12)


def _repair(number: int) -> Repair:
    opened = T0 + number * DAY_S
    left = opened + 2 * DAY_S if number < 6 else None
    return Repair(
        resource=f"device/n{number}/0", node=f"n{number}", serial=f"S{number}", reason="it did not pass the gate",
        opened_s=opened, closed_s=left, became="validating" if left else "", in_service_s=left if number < 5 else None,
    )  # fmt: skip

"""Figures of live jobs, and of what recoveries and checkpoints cost. Pure reading of a desk.

Only live jobs have series of their own, and not more than JOBS_MAX: the rest stand together under ``(others)``.
"""

from collections.abc import Iterable

from keepstep.core.job import Job, JobState
from keepstep.core.world import World
from keepstep.server.desk import Desk
from keepstep.server.meters import Meters
from keepstep.server.tallies import OTHERS, JobTime, Tallies
from keepstep.telemetry import Family

JOBS_MAX = 150
RULES_MAX = 150
"""The ones with most acts."""
CATEGORIES = ("queued", "starting", "running", "recovering", "ending", "redone")
EMPTY: dict[str, float] = {}


def jobs(desk: Desk) -> Iterable[Family]:
    live = [desk.world.jobs[job] for job in desk.world.live_jobs]
    own, others = (live, []) if len(live) <= JOBS_MAX else (live[: JOBS_MAX - 1], live[JOBS_MAX - 1 :])
    states = Family(name="keepstep_jobs", kind="gauge", labels=("state",), help="Jobs that are not over, by state.")
    for state in (JobState.SUBMITTED, JobState.STARTING, JobState.RUNNING, JobState.RECOVERING, JobState.ENDING):
        states.add(sum(job.state is state for job in live), state.value)
    yield states
    ended = Family(name="keepstep_jobs_ended", kind="counter", labels=("state",), help="Jobs that are over, by how.")
    for labels, count in desk.tallies.ended.items():
        ended.add(count, *labels)
    yield ended
    yield from _goodput(desk, own, others)
    yield from _progress(desk, own, others)
    yield _spares(desk.world, own)


def _goodput(desk: Desk, own: list[Job], others: list[Job]) -> Iterable[Family]:
    each = Family(
        name="keepstep_job_goodput_seconds", kind="counter", labels=("job_id", "category"),
        help="Time of a live job by what it did; redone is the part of running that repeated lost work.",
    )  # fmt: skip
    ratio = Family(
        name="keepstep_job_ettr_ratio", kind="gauge", labels=("job_id",),
        help="Effective training time of a live job: time that moved it on over all its time.",
    )  # fmt: skip
    all_s = dict(desk.tallies.ended_s)
    rest = JobTime(phase="running", since_s=desk.now_s)
    for job in (*own, *others):
        known = desk.tallies.jobs.get(job.id)
        spent = known.now(desk.now_s) if known is not None else EMPTY
        _into(all_s, spent)
        if job in others:
            _into(rest.spent_s, {k: v for k, v in spent.items() if k != "redone"})
            rest.redone_s += spent.get("redone", 0.0)
            continue
        for category, seconds in spent.items():
            each.add(seconds, job.id, category)
        if known is not None and (ettr := known.ettr(desk.now_s)) is not None:
            ratio.add(ettr, job.id)
    if others:
        for category, seconds in rest.now(desk.now_s).items():
            each.add(seconds, OTHERS, category)
        if (ettr := rest.ettr(desk.now_s)) is not None:
            ratio.add(ettr, OTHERS)
    yield each
    yield ratio
    fleet = Family(
        name="keepstep_goodput_seconds", kind="counter", labels=("category",),
        help="Time of all jobs, also of those that are over, by what they did.",
    )  # fmt: skip
    for category in CATEGORIES:
        fleet.add(all_s.get(category, 0.0), category)
    yield fleet


def _into(table: dict[str, float], more: dict[str, float]) -> None:
    for key, value in more.items():
        table[key] = table.get(key, 0.0) + value


def _progress(desk: Desk, own: list[Job], others: list[Job]) -> Iterable[Family]:
    age = Family(
        name="keepstep_checkpoint_age_seconds", kind="gauge", labels=("job_id",),
        help="Since the newest committed checkpoint of a live job; since its start where it has none.",
    )  # fmt: skip
    interval = Family(
        name="keepstep_checkpoint_interval_seconds", kind="gauge", labels=("job_id",),
        help="Between the last two committed checkpoints of a live job.",
    )  # fmt: skip
    step = Family(
        name="keepstep_job_step", kind="gauge", labels=("job_id",), help="Newest step that all ranks completed."
    )
    step_s = Family(name="keepstep_job_step_seconds", kind="gauge", labels=("job_id",), help="Time of one step.")
    ranks = Family(name="keepstep_job_ranks", kind="gauge", labels=("job_id",), help="Ranks of the present generation.")
    for job in own:
        age.add(_age_s(job, desk.now_s), job.id)
        if job.commit_every_s is not None:
            interval.add(job.commit_every_s, job.id)
        step.add(_step(desk, job), job.id)
        if (seconds := _step_s(desk, job)) is not None:
            step_s.add(seconds, job.id)
        ranks.add(job.placement.world_size if job.placement is not None else 0, job.id)
    if others:
        age.add(max(_age_s(job, desk.now_s) for job in others), OTHERS)
        ranks.add(sum(job.placement.world_size for job in others if job.placement is not None), OTHERS)
    yield from (age, interval, step, step_s, ranks)


def _age_s(job: Job, now_s: float) -> float:
    since_s = job.committed_s if job.committed_s is not None else job.running_since_s or job.submitted_s
    return max(0.0, now_s - since_s)


def _step(desk: Desk, job: Job) -> int:
    vitals = desk.vitals.jobs.get(job.id) if desk.vitals is not None else None
    known = max(job.step, vitals.reported_step if vitals is not None else -1)
    if vitals is None or vitals.generation != job.generation or not vitals.ranks:
        return known
    return max(known, min(sample.step for sample in vitals.ranks.values()))


def _step_s(desk: Desk, job: Job) -> float | None:
    """Median of what was measured lately; else what the journal says."""
    vitals = desk.vitals.jobs.get(job.id) if desk.vitals is not None else None
    recent = sorted(vitals.step_times_s) if vitals is not None else []
    return recent[len(recent) // 2] if recent else job.step_time_s


def _spares(world: World, own: list[Job]) -> Family:
    family = Family(
        name="keepstep_spares", kind="gauge", labels=("pool", "state"),
        help="Nodes that stand by for a live job (its pool): ready, unusable (held or not in service), or unreachable.",
    )  # fmt: skip
    for job in own:
        counts: dict[str, int] = {}
        seated = job.placement.nodes if job.placement is not None else {}
        for node, launcher in job.launchers.items():
            if node in seated or launcher.left or launcher.gone:
                continue
            state = "unreachable" if not launcher.reachable else "ready" if world.node_usable(node) else "unusable"
            counts[state] = counts.get(state, 0) + 1
        for state, count in counts.items():
            family.add(count, job.id, state)
    return family


# ---- recoveries, verdicts and checkpoints, out of the tallies


def recoveries(desk: Desk, meters: Meters) -> Iterable[Family]:
    tallies = desk.tallies
    yield _family(
        "keepstep_incidents", "counter", ("class", "scope", "outcome"), tallies.incidents,
        "Incidents that are over, by failure class, scope of the cause, and outcome.",
    )  # fmt: skip
    yield from _open_incidents(desk)
    yield _family(
        "keepstep_stage_seconds", "histogram", ("stage", "class", "path"), tallies.stages,
        "Time that closed incidents and starts spent in each stage; path is manual where a person had to agree.",
    )  # fmt: skip
    yield _family(
        "keepstep_recovery_seconds", "histogram", ("class", "path"), tallies.recovery,
        "From the first evidence to verified progress, of recovered incidents, by cause.",
    )  # fmt: skip
    yield _family(
        "keepstep_lost_gpu_seconds", "counter", ("class", "cause"), tallies.lost_gpu_s,
        "Ranks times (time without progress and time of steps done again), by failure class and cause.",
    )  # fmt: skip
    lost = Family(name="keepstep_lost_steps", kind="counter", help="Steps that had to be done again.")
    lost.add(tallies.lost_steps)
    yield lost
    yield from _drills(tallies)
    yield from _verdicts(desk, meters)
    yield _family(
        "keepstep_remediation", "counter", ("step", "result"), tallies.orders, "Orders that were answered, by kind."
    )
    yield _family(
        "keepstep_order_seconds", "histogram", ("step",), tallies.order_s, "From an order to its answer, by kind."
    )
    yield _family("keepstep_gate", "counter", ("result",), tallies.gates, "Validation gates that ran to their end.")
    gate = Family(name="keepstep_gate_seconds", kind="histogram", help="Time of a validation gate.")
    if (taken := tallies.order_s.get(("gate",))) is not None:
        gate.add(taken)
    yield gate


def _drills(tallies: Tallies) -> Iterable[Family]:
    yield _family(
        "keepstep_drills", "counter", ("kind", "result"), tallies.drills,
        "Drills that are over: passed, failed, or called off. Their incidents are of class drill.",
    )  # fmt: skip
    yield _family(
        "keepstep_drill_detection_seconds", "histogram", ("kind",), tallies.drill_detection_s,
        "From the order to inject a fault to the incident that it led to.",
    )  # fmt: skip
    yield _family(
        "keepstep_drill_recovery_seconds", "histogram", ("kind",), tallies.drill_recovery_s,
        "From the first evidence to verified progress, of drills that were recovered from.",
    )  # fmt: skip


def _family(name: str, kind: str, labels: tuple[str, ...], table: dict, help: str) -> Family:  # type: ignore[type-arg]
    made = Family(name=name, kind=kind, labels=labels, help=help)  # type: ignore[arg-type]
    for key, value in table.items():
        made.add(value, *key)
    return made


def _open_incidents(desk: Desk) -> Iterable[Family]:
    world = desk.world
    faults = [i for i in (world.incidents[x] for x in world.open_incidents) if i.kind == "fault"]
    states = Family(name="keepstep_incident_open", kind="gauge", labels=("state",), help="Open incidents by stage.")
    counts: dict[str, int] = {}
    for incident in faults:
        counts[incident.state.value] = counts.get(incident.state.value, 0) + 1
    for state in ("open", "isolating", "selecting", "placing", "restarting", "verifying", "waiting"):
        states.add(counts.get(state, 0), state)
    yield states
    oldest = Family(
        name="keepstep_incident_oldest_seconds", kind="gauge",
        help="How long the oldest open incident is open; 0 where there is none.",
    )  # fmt: skip
    oldest.add(max((desk.now_s - i.opened_s for i in faults), default=0.0))
    yield oldest


def _verdicts(desk: Desk, meters: Meters) -> Iterable[Family]:
    yield _family(
        "keepstep_rule_decisions", "counter", ("rule", "mode", "verdict"), desk.tallies.rules,
        "Signals that were judged, by signal and verdict; in shadow mode what a rule would have done.",
    )  # fmt: skip
    acts = Family(
        name="keepstep_rule_acts", kind="gauge", labels=("rule", "verdict"),
        help="Isolations by the rule that led to them, and whether they turned out to be right.",
    )  # fmt: skip
    total = Family(
        name="keepstep_preemptions",
        kind="counter",
        labels=("class",),
        help="Times that running work was taken off a resource.",
    )
    verdicts = Family(
        name="keepstep_preemption_verdicts", kind="gauge", labels=("class", "verdict"),
        help="Preemptions by what is known of them now: necessary, unnecessary, or pending.",
    )  # fmt: skip
    moved: dict[str, list[int]] = {}
    for told in meters.precision_of(desk.history.ledger, desk.now_s)[:RULES_MAX]:
        for verdict, count in (
            ("confirmed", told.confirmed), ("unnecessary", told.unnecessary), ("pending", told.pending),
        ):  # fmt: skip
            if count:
                acts.add(count, told.rule or told.failure_class, verdict)
        if told.preemptions:
            of = moved.setdefault(told.failure_class, [0, 0, 0])
            of[0] += told.preemptions_confirmed
            of[1] += told.preemptions_unnecessary
            of[2] += told.preemptions_pending
    for failure_class, of in moved.items():
        total.add(sum(of), failure_class)
        for verdict, count in zip(("necessary", "unnecessary", "pending"), of, strict=True):
            verdicts.add(count, failure_class, verdict)
    yield from (acts, total, verdicts)


def checkpoints(desk: Desk) -> Iterable[Family]:
    tallies = desk.tallies
    yield _family(
        "keepstep_checkpoint_seconds", "histogram", ("op",), tallies.save_s,
        "Time of saving a checkpoint, and of verifying one before a restore.",
    )  # fmt: skip
    yield _family("keepstep_checkpoints", "counter", ("result",), tallies.saves, "Saves: committed, or failed.")
    size = Family(name="keepstep_checkpoint_written_bytes", kind="counter", help="Bytes of committed checkpoints.")
    size.add(tallies.saved_bytes)
    yield size

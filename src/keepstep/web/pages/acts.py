"""What a person may do here, what will follow, and why not where not. Owns the words on buttons and in their dialog.

Nothing is done here: buttons ask the API, and the server judges again.
"""

from typing import Literal
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from keepstep.core.access import Action, Principal, refusal
from keepstep.core.drill import KINDS, DrillKind
from keepstep.core.ids import node_resource
from keepstep.core.incident import Incident, IncidentState
from keepstep.core.isolate import power_off
from keepstep.core.job import Job
from keepstep.core.rehearse import hindrance
from keepstep.core.resource import Resource
from keepstep.core.world import World
from keepstep.review.wording import count as counted
from keepstep.review.wording import duration

API = "/api/v1"
SUSPECTS_MAX = 3
"""Of one incident, that have a button; the others have theirs on their own pages."""


class Act(Struct, frozen=True, kw_only=True):
    """One button."""

    label: str
    question: str
    """Heading of the dialog."""
    follows: tuple[str, ...]
    """What will happen, sentence by sentence."""
    post: str
    """Address that it is asked at."""
    refused: str = ""
    """Why it may not be pressed; empty where it may."""
    weight: Literal["primary", "danger", "refuse", "beside"] = "primary"
    """How it looks: what destroys something is told apart."""
    asks_reason: bool = False
    body: dict[str, str] | None = None
    """What is posted; None where it is the reason, or nothing."""
    not_now: str = ""
    """Why it cannot be done at the moment, by anybody."""


def of_incident(incident: Incident, world: World, principal: Principal, wait_s: float, now_s: float) -> tuple[Act, ...]:
    """Approve and deny, while it waits for a person."""
    if incident.state is not IncidentState.WAITING:
        return ()
    job = world.job_of(incident)
    why = refusal(principal, Action.APPROVE, job.spec.tenant)
    left_s = max(0.0, wait_s - (now_s - incident.entered_s))
    base = f"{API}/incidents/{quote(incident.id, safe='')}"
    return (
        Act(
            label="Approve",
            question=f"Approve what {incident.id} asks for?",
            follows=approval_follows(incident, job, world),
            post=f"{base}/approve",
            refused=why,
            weight="danger" if incident.asks == "power_off" or _starts_from_nothing(incident) else "primary",
        ),
        Act(
            label="Deny",
            question=f"Deny what {incident.id} asks for?",
            follows=(
                f"Job {job.id} is ended with exit code 75: its {ranks_of(job)} do not start again.",
                "The incident is escalated. Nothing more is isolated or powered off for it.",
                f"What is saved stays{_saved(job)}.",
                f"The same happens by itself if nobody answers within {duration(left_s)}.",
            ),
            post=f"{base}/deny",
            refused=why,
            weight="refuse",
        ),
    )


def _starts_from_nothing(incident: Incident) -> bool:
    return incident.resume_at is IncidentState.SELECTING


def approval_follows(incident: Incident, job: Job, world: World) -> tuple[str, ...]:
    if incident.asks == "power_off":
        nodes = ", ".join(order.node for order in power_off(incident, world)) or "no node any more"
        return (
            f"Powered off through its BMC: {nodes}.",
            "Everything that runs there dies at once, whoever it belongs to.",
            f"When the BMC says Off, job {job.id} is started again on other nodes.",
        )
    if incident.asks == "breaker":
        diagnosis = incident.attempts[-1].diagnosis if incident.attempts else None
        named = ", ".join(diagnosis.resources) if diagnosis is not None and diagnosis.resources else "the suspects"
        return (
            f"Quarantined although the breaker says stop: {named}.",
            "They take no work until they have passed their validation gate.",
            f"Then job {job.id} is restarted without them.",
        )
    if _starts_from_nothing(incident):
        return (
            f"Job {job.id} is started again at step 0.",
            f"All its progress is given up for this run: {counted(max(0, incident.step_before), 'step')}.",
            "Saved states stay where they are; none of them is deleted.",
        )
    goes_on = incident.resume_at.value if incident.resume_at is not None else "where it was"
    return (f"The recovery of job {job.id} goes on: {goes_on}.",)


def of_resource(resource: Resource, principal: Principal) -> tuple[Act, ...]:
    """Hold, or lift one's own hold."""
    base = f"{API}/resources/{quote(resource.id, safe='/')}"
    why = refusal(principal, Action.HOLD)
    source = f"person:{principal.name}"
    others = ", ".join(hold for hold in resource.holds if hold != source)
    if source in resource.holds:
        stay = f"Held further by {others}." if others else "Nobody else holds it."
        follows = (f"Your hold on {resource.id} is lifted.", stay, f"Its state stays {_state(resource)}.")
        return (Act(label="Lift my hold", question=f"Lift your hold on {resource.id}?", follows=follows,
                    post=f"{base}/unhold", refused=why),)  # fmt: skip
    follows = (
        f"No new work is placed on {resource.id}.",
        "What runs there now goes on.",
        "The hold stays until you lift it: no rule and no passed gate lifts it.",
    )
    return (
        Act(label="Hold", question=f"Hold {resource.id}?", follows=follows, post=f"{base}/hold", refused=why,
            asks_reason=True),
    )  # fmt: skip


def of_suspects(incident: Incident, world: World, principal: Principal) -> tuple[Act, ...]:
    """Hold what an incident names, or lift one's own hold: beside whatever it waits for."""
    diagnosis = incident.diagnosis
    if diagnosis is None:
        return ()
    named = dict.fromkeys((*diagnosis.resources, *map(node_resource, diagnosis.lost_nodes)))
    known = [world.resources[id] for id in named if id in world.resources]
    return tuple(
        replace(act, label=f"{act.label}: {resource.id}", weight="beside")
        for resource in known[:SUSPECTS_MAX]
        for act in of_resource(resource, principal)
    )


def of_job(job: Job, principal: Principal) -> tuple[Act, ...]:
    """Stop it."""
    return (
        Act(
            label="Stop job",
            question=f"Stop job {job.id}?",
            follows=(
                f"Its {ranks_of(job)} get SIGTERM, then SIGKILL.",
                f"It does not start again by itself. What is saved stays{_saved(job)}.",
                "Progress since then is lost.",
            ),
            post=f"{API}/jobs/{quote(job.id, safe='')}/stop",
            refused=refusal(principal, Action.STOP_JOB, job.spec.tenant),
            weight="danger",
            asks_reason=True,
        ),
    )


def of_drills(job: Job, world: World, principal: Principal, step: int) -> tuple[Act, ...]:
    """Begin one, of each kind. ``step``: the newest one that all ranks are known to have completed."""
    why = refusal(principal, Action.DRILL, job.spec.tenant)
    return tuple(
        Act(
            label=f"Begin drill {kind}",
            question=f"Begin a drill ({kind}) against job {job.id}?",
            follows=drill_follows(kind, job, step),
            post=f"{API}/drills",
            refused=why,
            weight="danger",
            body={"job": job.id, "kind": kind},
            not_now=hindrance(job, kind, world),
        )
        for kind in KINDS
    )


def drill_follows(kind: DrillKind, job: Job, step: int) -> tuple[str, ...]:
    whom = "one of its nodes" if kind == "lose-node" else "one of its ranks"
    lost = counted(max(0, step - job.committed_step), "step")
    cost = f"at most about {lost} of work are done again" if job.committed_step >= 0 else "it may begin again at step 0"
    return (
        f"{KINDS[kind]}. The server picks {whom}.",
        f"It is a real fault: its {ranks_of(job)} stop, and start again from the newest state that is whole.",
        f"What is lost{_saved(job)}; {cost}.",
        "It is scored. No part and no budget is charged with it; the time that it costs is.",
        "If the job does not come back, people are told as of any fault.",
    )


def ranks_of(job: Job) -> str:
    if job.placement is None:
        return "ranks"
    return f"{counted(job.placement.world_size, 'rank')} on {counted(len(job.placement.nodes), 'node')}"


def _saved(job: Job) -> str:
    return (
        f": the newest checkpoint is step {job.committed_step}"
        if job.committed_step >= 0
        else ": nothing was saved yet"
    )


def _state(resource: Resource) -> str:
    return resource.state.value.replace("_", " ")

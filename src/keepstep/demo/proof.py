"""What was promised, held against what happened. Owns the checks; each finding says what is wrong in words."""

from collections.abc import Sequence

from keepstep.core.ids import ResourceId
from keepstep.core.incident import Incident, IncidentState
from keepstep.core.resource import ResourceState
from keepstep.demo.driver import Act
from keepstep.demo.losses import Final, Loss
from keepstep.demo.plan import WORLD_SIZE
from keepstep.demo.reference import Reference
from keepstep.demo.watch import Watch

_IN_USE = (ResourceState.IN_SERVICE, ResourceState.SUSPECT, ResourceState.PROBATION)


def problems_of_act(act: Act, watch: Watch) -> list[str]:
    """Empty where the incident tells what was done, and ended well."""
    name = act.fault.name
    if act.done is None:
        return [f"{name} was not injected"]
    if act.incident is None:
        return [f"{name}: no incident was opened"]
    incident = watch.incident(act.incident.id)
    found = []
    if incident.state is not IncidentState.RECOVERED:
        found.append(f"the incident ended {incident.state.value}, not recovered")
    causes = [a.diagnosis.cause.value for a in incident.attempts if a.diagnosis is not None]
    if not set(causes) & set(act.fault.causes):
        found.append(f"the cause was called {', '.join(causes) or 'nothing'}, not {' or '.join(act.fault.causes)}")
    found += _expectations(act, incident, watch)
    return [f"{name} ({incident.id}): {text}" for text in found]


def _expectations(act: Act, incident: Incident, watch: Watch) -> list[str]:
    done = act.done
    assert done is not None
    diagnoses = [a.diagnosis for a in incident.attempts if a.diagnosis is not None]
    found = []
    if done.rank is not None and not any(done.rank in d.culprits for d in diagnoses):
        found.append(f"rank {done.rank} was not named as the one at fault")
    if done.node is not None and not any(done.node in d.lost_nodes for d in diagnoses):
        found.append(f"node {done.node} was not named as lost")
    if done.resource is not None:
        found += _not_held(done.resource, [r for d in diagnoses for r in d.resources], watch)
    if done.rejected is not None:
        found += _not_rejected(done.rejected, incident)
    if done.server_restart and not any(
        incident.opened_s < at_s < (incident.closed_s or 0.0) for at_s in watch.server_starts
    ):
        found.append("no new server took over during the recovery")
    return found


def _not_held(resource: str, named: Sequence[str], watch: Watch) -> list[str]:
    known = watch.books.world.resources[ResourceId(resource)]
    found = [] if resource in named else [f"{resource} was not named"]
    if known.state in _IN_USE:
        found.append(f"{resource} is {known.state.value}: it may be used again although it is broken")
    return found


def _not_rejected(key: str, incident: Incident) -> list[str]:
    passed_over = [key for attempt in incident.attempts for key in attempt.rejected]
    restore = next((a.restore for a in reversed(incident.attempts) if a.restore is not None), None)
    found = [] if key in passed_over else [f"the damaged checkpoint {key} was not refused"]
    if restore is None or restore.tier != "disk" or restore.key >= key:
        found.append(f"it did not go on from an older checkpoint but from {restore.key if restore else 'nothing'}")
    return found


def problems_of_weights(reference: Sequence[Final], final: Sequence[Final], steps: int) -> list[str]:
    """Empty where every rank of both runs ended at ``steps`` with the same bits."""
    found = []
    for name, run in (("reference", reference), ("faulted", final)):
        if [one.rank for one in run] != list(range(WORLD_SIZE)):
            found.append(f"the {name} run has final weights of ranks {[one.rank for one in run]}, not of {WORLD_SIZE}")
        found += [f"rank {one.rank} of the {name} run ended at step {one.step}" for one in run if one.step != steps]
    digests = {one.digest for one in (*reference, *final)}
    if len(digests) > 1:
        found.append("the final weights differ: " + ", ".join(sorted(digest[:16] for digest in digests)))
    return found


def problems_of_losses(reference: Reference, seen: Sequence[Loss]) -> list[str]:
    """Every loss that was logged, in any generation, is the one that the reference logged at that step.

    Lines may be missing: the last words of a rank whose launcher was killed with it never reach a file.
    """
    expected = {loss.step: loss.loss for loss in reference.losses}
    wrong = [loss for loss in seen if expected.get(loss.step) != loss.loss]
    found = []
    if wrong:
        first = wrong[0]
        found.append(
            f"{len(wrong)} losses differ, the first at step {first.step} (generation {first.generation}): {first.loss}, "
            f"where the reference has {expected.get(first.step, 'none')}"
        )
    return found

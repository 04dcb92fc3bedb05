"""A recovery as a trace: stages are spans, orders their children, evidence its events. Pure reading of the books.

Ids follow from the incident alone, so that a page can link to a trace before it was exported, and a second export of it is the
same trace.
"""

import hashlib
from collections.abc import Iterator
from itertools import pairwise

from keepstep.core.fault import Fault
from keepstep.core.incident import Incident
from keepstep.core.world import World
from keepstep.server.history import History, OrderRecord
from keepstep.telemetry import Span, SpanEvent

EVENTS_MAX = 64
TEXT_MAX = 500

Attributes = dict[str, str | int | float | bool]


def trace_id(subject: str, opened_s: float) -> str:
    """Of an incident or a fault: 32 hex digits. The time tells apart what two installations call by one name."""
    return _hash(f"trace {subject} {round(opened_s * 1000)}", 16)


def root_span_id(trace: str) -> str:
    return _hash(f"root {trace}", 8)


def recovery_spans(world: World, history: History, incident: Incident) -> list[Span]:
    """Of an incident that is over: its root first, then stages and orders."""
    assert incident.closed_s is not None, "an open incident has no end"
    trace = trace_id(incident.id, incident.opened_s)
    root = root_span_id(trace)
    stages = []
    for number, (state, start_s, end_s) in enumerate(_stages(incident)):
        id = _hash(f"stage {trace} {number}", 8)
        told: Attributes = {"keepstep.stage": state}
        stages.append(Span(trace=trace, id=id, parent=root, name=state, start_s=start_s, end_s=end_s, attributes=told))
    return [_root(world, history, incident, trace), *stages, *_orders(history, incident, trace, stages)]


def fault_span(world: World, fault: Fault) -> Span:
    """Of a fault that is closed. Incidents that it caused are links."""
    caused = [world.incidents[incident] for incident in fault.incidents if incident in world.incidents]
    trace = trace_id(fault.id, fault.opened_s)
    nature = fault.nature
    return Span(
        trace=trace,
        id=root_span_id(trace),
        parent="",
        name="fault",
        start_s=fault.opened_s,
        end_s=fault.closed_s if fault.closed_s is not None else fault.last_s,
        attributes={
            "keepstep.fault": fault.id,
            "keepstep.resource": fault.resource,
            "keepstep.cause": nature.cause.value,
            "keepstep.failure_class": nature.failure_class,
            "keepstep.scope": nature.scope.value,
            "keepstep.verdict": nature.verdict.value,
            "keepstep.outcome": fault.outcome,
            "keepstep.evidence_count": fault.count,
        },
        links=tuple(_link(incident.id, incident.opened_s) for incident in caused),
    )


def _root(world: World, history: History, incident: Incident, trace: str) -> Span:
    job = world.jobs.get(incident.job)
    diagnosis = incident.diagnosis
    attributes: Attributes = {
        "keepstep.incident": incident.id,
        "keepstep.job": incident.job,
        **({"keepstep.drill": incident.drill} if incident.drill is not None else {}),
        "keepstep.tenant": job.spec.tenant if job is not None else "",
        "keepstep.kind": incident.kind,
        "keepstep.outcome": incident.state.value,
        "keepstep.attempts": len(incident.attempts),
        "keepstep.ranks": incident.ranks,
        "keepstep.lost_steps": incident.lost_steps,
        "keepstep.downtime_s": incident.downtime_s,
        "keepstep.approvals": incident.grants,
    }
    links: tuple[tuple[str, str], ...] = ()
    if diagnosis is not None:
        attributes |= {
            "keepstep.cause": diagnosis.cause.value,
            "keepstep.confidence": diagnosis.confidence,
            "keepstep.summary": diagnosis.summary[:TEXT_MAX],
            "keepstep.resources": ",".join(diagnosis.resources)[:TEXT_MAX],
        }
        fault = world.faults.get(diagnosis.fault) if diagnosis.fault is not None else None
        if fault is not None:
            attributes |= {"keepstep.fault": fault.id, "keepstep.failure_class": fault.nature.failure_class}
            links = (_link(fault.id, fault.opened_s),)
    assert incident.closed_s is not None
    return Span(
        trace=trace,
        id=root_span_id(trace),
        parent="",
        name="recovery" if incident.kind == "fault" else "start",
        start_s=incident.opened_s,
        end_s=incident.closed_s,
        attributes=attributes,
        events=tuple(_events(history, incident))[:EVENTS_MAX],
        links=links,
        error=incident.verdict if incident.state.value == "escalated" else "",
    )


def _events(history: History, incident: Incident) -> Iterator[SpanEvent]:
    """Each decision with its reason, and behind a diagnosis the evidence that it stands on."""
    diagnoses = iter([a.diagnosis for a in incident.attempts if a.diagnosis is not None])
    for step in history.of_incident(incident.id):
        yield SpanEvent(
            at_s=step.at_s,
            name=step.stage,
            attributes={"keepstep.entry": step.entry, "keepstep.reason": step.reason[:TEXT_MAX]},
        )
        diagnosis = next(diagnoses, None) if step.stage == "diagnose" else None
        for evidence in diagnosis.evidence if diagnosis is not None else ():
            yield SpanEvent(
                at_s=step.at_s,
                name="evidence",
                attributes={
                    "keepstep.entry": evidence.entry,
                    "keepstep.source": evidence.source,
                    "keepstep.text": evidence.text[:TEXT_MAX],
                    "keepstep.supports": evidence.supports,
                },
            )


def _stages(incident: Incident) -> Iterator[tuple[str, float, float]]:
    """(state, from, until) of each state that it was in, but for the last."""
    first = "open" if incident.kind == "fault" else "selecting"
    entered = [(first, incident.opened_s), *incident.timeline]
    for (state, start_s), (_, end_s) in pairwise(entered):
        yield state, start_s, end_s


def _orders(history: History, incident: Incident, trace: str, stages: list[Span]) -> Iterator[Span]:
    assert incident.closed_s is not None
    numbers = [number for step in history.of_incident(incident.id) for number in step.orders]
    for number in numbers:
        order = history.orders.get(number)
        if order is None:
            continue
        within = [s for s in stages if s.start_s <= order.decided_s]
        parent = within[-1].id if within else root_span_id(trace)
        yield _order(order, trace, parent, incident.closed_s)


def _order(order: OrderRecord, trace: str, parent: str, closed_s: float) -> Span:
    intent = order.intent
    attributes: Attributes = {"keepstep.order": order.number, "keepstep.answered": order.answered_s is not None}
    for name in ("node", "resource", "generation", "via", "proof"):
        value = getattr(intent, name, getattr(order.outcome, name, None))
        if isinstance(value, str | int):
            attributes[f"keepstep.{name}"] = value
    return Span(
        trace=trace,
        id=_hash(f"order {trace} {order.number}", 8),
        parent=parent,
        name=type(intent).__name__,
        start_s=order.decided_s,
        end_s=order.answered_s if order.answered_s is not None else max(closed_s, order.decided_s),
        attributes=attributes,
        error=order.failed,
    )


def _link(subject: str, opened_s: float) -> tuple[str, str]:
    trace = trace_id(subject, opened_s)
    return trace, root_span_id(trace)


def _hash(text: str, size_bytes: int) -> str:
    return hashlib.blake2b(text.encode(), digest_size=size_bytes).hexdigest()

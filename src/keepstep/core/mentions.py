"""What a journal entry is about: the subjects under which it is found again. Pure; every journal adapter indexes by it."""

from collections.abc import Iterator

from msgspec import Struct

from keepstep.core import decision as d
from keepstep.core.facts import Answered, NodeJoined
from keepstep.core.ids import device_resource, node_of, node_resource

_FIELDS = ("job", "incident", "fault", "resource", "serial")
"""Fields that hold the name of a subject, in facts and in changes alike."""


def subjects(record: d.Record) -> tuple[str, ...]:
    """``fact:<type>`` or ``stage:<name>``; jobs, incidents, faults, resources and serial numbers by their ids; nodes as
    ``node/<name>``; orders as ``order:<number>``. Each once."""
    return tuple(dict.fromkeys(_of_decision(record) if isinstance(record, d.Decision) else _of_fact(record)))


def _of_fact(fact: Struct) -> Iterator[str]:
    yield f"fact:{type(fact).__name__}"
    yield from _named(fact)
    if isinstance(fact, Answered):
        yield f"order:{fact.intent}"
    if isinstance(fact, NodeJoined):
        for device in fact.devices:
            yield device_resource(fact.node, device.slot)
            yield device.serial


def _of_decision(decision: d.Decision) -> Iterator[str]:
    yield f"stage:{decision.stage}"
    yield decision.subject
    for change in decision.changes:
        yield from _named(change)
    for index, intent in enumerate(decision.intents):
        yield f"order:{decision.first_order + index}"
        yield from _named(intent)


def _named(struct: Struct) -> Iterator[str]:
    for field in _FIELDS:
        value = getattr(struct, field, None)
        if isinstance(value, str) and value:
            yield value
            if field == "resource" and value.startswith("device/"):
                yield node_resource(node_of(value))  # type: ignore[arg-type]
    node = getattr(struct, "node", None)
    if isinstance(node, str) and node:
        yield node_resource(node)  # type: ignore[arg-type]

"""What a journal entry is about: the subjects under which it is found again. Pure; every journal adapter indexes by it."""

import functools
from collections.abc import Iterator

from msgspec import Struct

from keepstep.core import decision as d
from keepstep.core.facts import Answered, NodeJoined
from keepstep.core.ids import NodeId, ResourceId, device_resource, node_of, node_resource

_FIELDS = ("job", "incident", "fault", "drill", "resource", "serial", "node")
"""Fields that hold the name of a subject, in facts and in changes alike."""


@functools.cache
def _fields_of(kind: type[Struct]) -> tuple[str, ...]:
    """Those that a type has: thousands of entries a second are of a few types."""
    return tuple(name for name in _FIELDS if name in kind.__struct_fields__)


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
    for field in _fields_of(type(struct)):
        value = getattr(struct, field)
        if not isinstance(value, str) or not value:
            continue
        yield node_resource(NodeId(value)) if field == "node" else value
        if field == "resource" and value.startswith("device/"):
            yield node_resource(node_of(ResourceId(value)))

"""A signal of the journal as the rules look at it: on the one clock on which signals of the fleet are compared."""

from keepstep.core.facts import SignalSeen
from keepstep.core.ids import NodeId, node_resource, slot_of
from keepstep.core.incident import Seen
from keepstep.core.observation import Observation

JOURNAL = "journal"
"""When a signal came in, less the time for which its agent kept it. Never the clock of the machine that saw it."""


def observed(seen: Seen, node: NodeId) -> Observation:
    """A signal of the journal, as the rules look at it."""
    fact = seen.fact
    assert isinstance(fact, SignalSeen)
    return Observation(
        signal=fact.signal,
        node=node,
        part=fact.part or ("" if fact.resource == node_resource(node) else f"gpu/{slot_of(fact.resource)}"),
        at_s=seen.at_s - fact.age_s,
        clock=JOURNAL,
        detail=fact.detail,
        attributes=fact.attributes,
        count=fact.count,
        source=fact.source,
        entry=seen.entry,
    )

"""Names of things, as distinct types. Owns no behaviour."""

from typing import NewType

JobId = NewType("JobId", str)
NodeId = NewType("NodeId", str)
IncidentId = NewType("IncidentId", str)
ResourceId = NewType("ResourceId", str)
"""``node/<node>`` or ``device/<node>/<slot>``."""

NO_JOB = JobId("")
"""Of orders to a node's agent, which serves no job."""

FaultId = NewType("FaultId", str)
DrillId = NewType("DrillId", str)

Session = NewType("Session", str)
"""One life of a launcher process: a new process is a new session, a new connection is not."""


def node_resource(node: NodeId) -> ResourceId:
    return ResourceId(f"node/{node}")


def device_resource(node: NodeId, slot: int) -> ResourceId:
    return ResourceId(f"device/{node}/{slot}")


def node_of(resource: ResourceId) -> NodeId:
    """The node that a resource is, or sits in."""
    return NodeId(resource.split("/")[1])


def slot_of(resource: ResourceId) -> int | None:
    """The slot of a device; None for a node."""
    parts = resource.split("/")
    return int(parts[2]) if parts[0] == "device" else None

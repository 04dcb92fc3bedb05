"""What a decision ended, as a record and a report, for the archive. Pure reading of the books."""

from collections.abc import Iterator

import msgspec

from keepstep.core.decision import Close, CloseFault, Decision, MoveJob
from keepstep.core.job import TERMINAL
from keepstep.review.records import FaultRecord, IncidentRecord, JobRecord
from keepstep.server.desk import Desk
from keepstep.server.fault_queries import fault_report
from keepstep.server.queries import incident_report, job_view
from keepstep.server.records import fault_record, incident_record, job_record

Finished = tuple[IncidentRecord | JobRecord | FaultRecord, bytes]

_encode = msgspec.msgpack.Encoder().encode


def finished(desk: Desk, decision: Decision) -> Iterator[Finished]:
    """What is over with this decision, read after it was applied."""
    world = desk.world
    for change in decision.changes:
        match change:
            case Close():
                incident = world.incidents[change.incident]
                yield incident_record(world, incident), _encode(incident_report(desk, incident))
            case MoveJob() if (job := world.jobs[change.job]).state in TERMINAL:
                yield job_record(world, job, desk.now_s), _encode(job_view(desk, job))
            case CloseFault():
                fault = world.faults[change.fault]
                yield fault_record(world, fault), _encode(fault_report(desk, fault))
            case _:
                pass

"""Under which subjects an entry is found again."""

import pytest

from keepstep.core import decision as d
from keepstep.core import facts as f
from keepstep.core.ids import FaultId, IncidentId, JobId, NodeId, ResourceId, Session
from keepstep.core.intents import Fence
from keepstep.core.mentions import subjects

JOB, NODE, SESSION = JobId("gpt"), NodeId("n1"), Session("s")
JOINED = f.NodeJoined(
    job=JOB, node=NODE, session=SESSION, boot_id="b", devices=(f.Device(slot=3, serial="SN7"),), address="a"
)
FENCED = d.Decision(
    stage="isolate",
    subject="inc-1",
    reason="why",
    changes=(
        d.PlaceHold(resource=ResourceId("device/n1/0"), source="keepstep", reason="", incident=IncidentId("inc-1")),
        d.CloseFault(fault=FaultId("flt-1"), outcome="cured"),
    ),
    intents=(Fence(job=JOB, node=NodeId("n2"), session=SESSION, generation=1),),
    first_order=7,
)


@pytest.mark.parametrize(
    ("record", "about"),
    [
        (f.ProbeFailed(source="x", job=JOB), ["fact:ProbeFailed", "gpt"]),
        (f.ProbeFailed(source="x", job=JobId("")), ["fact:ProbeFailed"]),
        (
            f.SignalSeen(resource=ResourceId("device/n1/0"), signal="xid.79"),
            ["fact:SignalSeen", "device/n1/0", "node/n1"],
        ),
        (JOINED, ["fact:NodeJoined", "gpt", "node/n1", "device/n1/3", "SN7"]),
        (f.Answered(intent=7, outcome=f.Done()), ["fact:Answered", "order:7"]),
        (
            f.CertificateRevoked(serial="abc", by="ada"),
            ["fact:CertificateRevoked", "abc"],
        ),
        (
            FENCED,
            ["stage:isolate", "inc-1", "device/n1/0", "node/n1", "flt-1", "order:7", "gpt", "node/n2"],
        ),
    ],
)
def test_an_entry_mentions_what_it_is_about_and_each_once(record: d.Record, about: list[str]) -> None:
    found = subjects(record)
    assert sorted(found) == sorted(about)
    assert len(set(found)) == len(found)

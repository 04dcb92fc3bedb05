"""The stages of a recovery as segments of time. Owns their order, their colours and the cutting of an incident's time line."""

from itertools import pairwise
from typing import NamedTuple

from keepstep.core.incident import Incident

STAGES = ("open", "isolating", "selecting", "placing", "restarting", "verifying")
COLOURS = {
    "open": "magenta", "isolating": "red", "selecting": "yellow", "placing": "cyan", "restarting": "blue",
    "verifying": "green", "waiting": "white",
}  # fmt: skip
DIAGNOSING = "diagnosing"
"""What happens in the state that the incident's table calls open."""
NOTE = {
    "open": "evidence joined and diagnosed",
    "isolating": "old generation fenced, what is suspected held",
    "selecting": "newest valid state chosen and verified",
    "placing": "healthy nodes found",
    "restarting": "ranks forked from the warm interpreter",
    "verifying": "restored, joined, stepping again",
    "waiting": "for a node or a person",
}


class Segment(NamedTuple):
    stage: str
    begin_s: float
    """Since the incident was opened."""
    seconds: float


def segments(incident: Incident) -> list[Segment]:
    """From the first evidence to the first new step of all ranks; what follows is verification while the job trains."""
    closed_s = incident.closed_s if incident.closed_s is not None else incident.entered_s
    end_s = incident.opened_s + incident.downtime_s if incident.downtime_s > 0 else closed_s
    marks = [(STAGES[0], incident.opened_s), *incident.timeline, ("", closed_s)]
    found = []
    for (stage, begin_s), (_, next_s) in pairwise(marks):
        length_s = min(next_s, end_s) - begin_s
        if stage in COLOURS and length_s > 0:
            found.append(Segment(stage, begin_s - incident.opened_s, length_s))
    return found

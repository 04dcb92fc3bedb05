"""Writes docs/reference/state-machines.md from the state tables of the core. ``--check`` only says whether it is current.

Owns the page's form; every state, move, owner and deadline on it is read from the code.
"""

import ast
import enum
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from keepstep.core import drill, fault, incident, job, resource
from keepstep.core.drill import DrillState
from keepstep.core.fault import FaultState
from keepstep.core.incident import IncidentState
from keepstep.core.job import JobState
from keepstep.core.policy import Policy
from keepstep.core.resource import ResourceState

PAGE = Path(__file__).resolve().parent / "reference" / "state-machines.md"

HEAD = """# State machines

Generated from `src/keepstep/core/{incident,fault,job,resource,drill}.py` by `docs/make_state_machines.py`; do not edit it,
run `make docs`.

Each machine is one enumeration and one table in one file. `move_incident`, `move_fault`, `move_job` and `move_resource`
in `core/apply.py`, and `move_drill` in `core/apply_drill.py`, are the only writers of a state, and they refuse every move that
is not drawn here. Deadlines are defaults of the [policy](policy.md); a dash means that the state may last: it is a state of
rest, an end, or is ended by what its owner does.
"""

E = TypeVar("E", bound=enum.Enum)
Machine = tuple[type[E], Mapping[E, tuple[E, ...]], Mapping[E, str], tuple[E, ...]]
"""States, moves, owners, ends."""


def page() -> str:
    """The whole page."""
    policy = Policy()
    incidents = _section(
        "Incident",
        "One road from the first evidence to the review. The first start of a job takes it too, from *selecting* on.",
        (IncidentState, incident.TRANSITIONS, incident.OWNER, incident.TERMINAL),
        ("open", "selecting"),
        policy.incident_deadline_s,
    )
    faults = _section(
        "Fault",
        "One root cause on a resource or a domain, with or without a job; incidents of jobs point to it.",
        (FaultState, fault.TRANSITIONS, fault.OWNER, (FaultState.CLOSED,)),
        ("open",),
        {},
    )
    jobs = _section(
        "Job",
        "What the job as a whole is doing. At most one incident leads a job at any time.",
        (JobState, job.TRANSITIONS, job.OWNER, job.TERMINAL),
        ("submitted",),
        {"submitted": policy.capacity.start_wait_s, "ending": policy.orders.timeout_s["EndJob"]},
    )
    resources = _section(
        "Resource",
        "A node or a device. It may take work only in *in_service*, *probation* or *suspect*, and only while nobody holds it.",
        (ResourceState, resource.TRANSITIONS, resource.OWNER, (ResourceState.RETIRED,)),
        ("new",),
        policy.resource_deadline_s,
    )
    drills = _section(
        "Drill",
        "A fault that is injected on purpose. It has an incident of its own, whose recovery it scores.",
        (DrillState, drill.TRANSITIONS, drill.OWNER, drill.TERMINAL),
        ("waiting",),
        {"waiting": policy.drills.wait_s, "injected": 4 * policy.drills.detect_s},
    )
    return "\n".join((HEAD, incidents, faults, jobs, resources, drills))


def _section(
    title: str,
    intro: str,
    machine: Machine[E],
    first: tuple[str, ...],
    deadlines: dict[str, float],
) -> str:
    states, moves, owners, ends = machine
    said = _docstrings(states)
    lines = [f"## {title}", "", intro, "", "```mermaid", "stateDiagram-v2"]
    lines += [f"    [*] --> {name}" for name in first]
    for state in states:
        lines += [f"    {state.value} --> {to.value}" for to in moves[state]]
    lines += [f"    {state.value} --> [*]" for state in ends]
    lines += ["```", "", "| state | owner | deadline | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{state.value}` | {owners[state]} | {_duration(deadlines.get(state.value))} | {said.get(state.name, '')} |"
        for state in states
    ]
    return "\n".join((*lines, ""))


def _docstrings(states: type[enum.Enum]) -> dict[str, str]:
    """State -> the string that stands under it in its class."""
    [body] = ast.parse(inspect.getsource(states)).body
    assert isinstance(body, ast.ClassDef)
    said: dict[str, str] = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(before, ast.Assign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            assert isinstance(before.targets[0], ast.Name)
            said[before.targets[0].id] = " ".join(str(after.value.value).split())
    return said


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "—"
    if seconds % 3600 == 0:
        return f"{seconds / 3600:g} h"
    return f"{seconds / 60:g} min" if seconds % 60 == 0 else f"{seconds:g} s"


def main(arguments: list[str]) -> int:
    """Write the page, or with ``--check`` return 1 if it is not what would be written."""
    if arguments == ["--check"]:
        current = PAGE.exists() and PAGE.read_text() == page()
        if not current:
            print(f"{PAGE.name} is not what the tables say; run `make docs`", file=sys.stderr)
        return 0 if current else 1
    if arguments:
        print("usage: make_state_machines.py [--check]", file=sys.stderr)
        return 2
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The three state tables: complete, owned, with a way out of everything that is not an end, and nothing beside them."""

import enum
from collections.abc import Mapping

import pytest

from keepstep.core import incident, job, resource
from keepstep.core.apply import move_incident, move_job, move_resource
from keepstep.core.engine import STAGES
from keepstep.core.errors import IllegalMove
from keepstep.core.incident import Cause, IncidentState
from keepstep.core.job import JobState
from keepstep.core.policy import Policy
from keepstep.core.resource import ResourceState

from .build import Plane

Table = Mapping[enum.Enum, tuple[enum.Enum, ...]]

TABLES = {
    "incident": (incident.TRANSITIONS, IncidentState, IncidentState.OPEN, incident.TERMINAL),
    "job": (job.TRANSITIONS, JobState, JobState.SUBMITTED, job.TERMINAL),
    "resource": (resource.TRANSITIONS, ResourceState, ResourceState.NEW, (ResourceState.RETIRED,)),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_state_is_in_its_table_and_only_the_ends_have_no_way_on(name: str) -> None:
    table, states, first, terminal = TABLES[name]
    assert set(table) == set(states)
    # A job that ended may be run again from the beginning; no other end has a way out.
    again = (first,) if name == "job" else ()
    assert {state for state, ways in table.items() if set(ways) <= set(again)} == set(terminal)
    assert all(to not in ways[:i] for ways in table.values() for i, to in enumerate(ways)), "a way is listed twice"


@pytest.mark.parametrize("name", TABLES)
def test_every_state_can_be_reached_and_leads_to_an_end(name: str) -> None:
    table, states, first, terminal = TABLES[name]
    starts = [first, IncidentState.SELECTING] if name == "incident" else [first]
    assert _reach(table, starts) == set(states)
    for state in states:
        assert _reach(table, [state]) & set(terminal), f"{state} leads to no end"


def _reach(table: Table, starts: list[enum.Enum]) -> set[enum.Enum]:
    seen, todo = set(starts), list(starts)
    while todo:
        for to in table[todo.pop()]:
            if to not in seen:
                seen.add(to)
                todo.append(to)
    return seen


def test_every_state_has_an_owner_and_every_open_incident_state_a_stage_and_a_deadline() -> None:
    assert set(incident.OWNER) == set(IncidentState)
    assert set(job.OWNER) == set(JobState)
    assert set(resource.OWNER) == set(ResourceState)
    open_states = {state for state in IncidentState if state not in incident.TERMINAL}
    assert set(STAGES) == open_states
    policy = Policy()
    assert set(policy.incident_deadline_s) == {state.value for state in open_states}
    assert all(limit > 0 for limit in policy.incident_deadline_s.values())


def test_every_transient_resource_state_has_a_deadline() -> None:
    # Rest: in service, out, or waiting for a person's hands. New and burn-in end in the turn in which they begin.
    rest = ("new", "burn_in", "in_service", "repair", "retired", "lost")
    assert set(Policy().resource_deadline_s) == {state.value for state in ResourceState if state.value not in rest}


def test_every_cause_has_a_budget_and_every_intent_a_time_out() -> None:
    policy = Policy()
    assert set(policy.budget.per_cause) == {cause.value for cause in Cause}
    assert all(timeout > 0 for timeout in policy.orders.timeout_s.values())


@pytest.mark.parametrize("start", IncidentState)
def test_an_incident_makes_no_move_outside_its_table(start: IncidentState) -> None:
    plane = Plane().start()
    item = plane.incident
    for to in IncidentState:
        item.state = start
        if to in incident.TRANSITIONS[start]:
            move_incident(plane.world, item, to, plane.now_s)
            assert item.state is to
        else:
            with pytest.raises(IllegalMove, match="not in the table"):
                move_incident(plane.world, item, to, plane.now_s)
            assert item.state is start


@pytest.mark.parametrize("start", JobState)
def test_a_job_makes_no_move_outside_its_table(start: JobState) -> None:
    plane = Plane().start()
    for to in JobState:
        plane.job.state = start
        if to in job.TRANSITIONS[start]:
            move_job(plane.world, plane.job, to, plane.now_s)
            assert plane.job.state is to
        else:
            with pytest.raises(IllegalMove, match="not in the table"):
                move_job(plane.world, plane.job, to, plane.now_s)


@pytest.mark.parametrize("start", ResourceState)
def test_a_resource_makes_no_move_outside_its_table(start: ResourceState) -> None:
    plane = Plane().start()
    item = plane.resource("device/n0/0")
    for to in ResourceState:
        item.state = start
        if to in resource.TRANSITIONS[start]:
            move_resource(plane.world, item, to, plane.now_s)
            assert item.state is to
        else:
            with pytest.raises(IllegalMove, match="not in the table"):
                move_resource(plane.world, item, to, plane.now_s)


def test_no_way_leads_from_repair_or_quarantine_to_service_but_through_validation() -> None:
    """Invariant 11, read off the table: without VALIDATING and BURN_IN nothing returns."""
    gates = (ResourceState.VALIDATING, ResourceState.BURN_IN)
    closed = {s: tuple(to for to in ways if to not in gates) for s, ways in resource.TRANSITIONS.items()}
    for state in (ResourceState.QUARANTINED, ResourceState.REPAIR, ResourceState.LOST, ResourceState.FENCED):
        assert ResourceState.IN_SERVICE not in _reach(closed, [state])

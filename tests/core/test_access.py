"""Roles and actions: the table as a whole, and what follows from it."""

import itertools
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from keepstep.core.access import GRANTS, OWNER, PEOPLE, Action, Principal, Role, refusal

ROOT = Path(__file__).parent.parent.parent
TENANTS = st.lists(st.sampled_from(["red", "green", "blue"]), max_size=3, unique=True).map(tuple)
PRINCIPALS = st.builds(Principal, name=st.just("ada"), role=st.sampled_from(Role), tenants=TENANTS)
FOR_ALL = (
    Action.SET_POLICY,
    Action.MANAGE_ACCESS,
    Action.KEEP_JOURNAL,
    Action.READ_JOURNAL,
    Action.READ_METRICS,
    Action.HOLD,
)


def test_every_role_has_its_row_and_every_action_somebody_who_may():
    assert set(GRANTS) == set(Role)
    assert set().union(*GRANTS.values()) == set(Action)


def test_people_may_what_those_before_them_may():
    for lower, higher in itertools.pairwise(PEOPLE):
        assert GRANTS[lower] < GRANTS[higher]


def test_programs_may_not_speak_as_people():
    for role in (Role.AGENT, Role.LAUNCHER, Role.METRICS, Role.REPLICA):
        assert not GRANTS[role] & {
            Action.APPROVE,
            Action.SET_POLICY,
            Action.MANAGE_ACCESS,
            Action.HOLD,
            Action.STOP_JOB,
        }


def test_nobody_but_a_replica_speaks_for_others():
    assert [role for role in Role if Action.FORWARD in GRANTS[role]] == [Role.REPLICA]


def test_the_owner_may_all_that_a_person_may():
    assert all(refusal(OWNER, action) == "" for action in Action if action is not Action.FORWARD)


@given(PRINCIPALS, st.sampled_from(Action), st.none() | st.sampled_from(["red", "green", "blue", "other"]))
def test_a_refusal_follows_from_role_and_tenant_alone(principal, action, tenant):
    granted = action in GRANTS[principal.role]
    apart = not principal.tenants or tenant in principal.tenants
    concerns_all = tenant is None and bool(principal.tenants) and action in FOR_ALL
    allowed = granted and (apart if tenant is not None else not concerns_all)
    why = refusal(principal, action, tenant)
    assert (why == "") == allowed
    assert "\n" not in why


@given(PRINCIPALS, st.sampled_from(Action), st.sampled_from(["red", "other"]))
def test_more_tenants_never_take_a_right_away(principal, action, tenant):
    wider = Principal(name="ada", role=principal.role, tenants=())
    assert refusal(principal, action, tenant) or not refusal(wider, action, tenant)


def test_a_refusal_says_who_could():
    assert "approver, admin" in refusal(Principal(name="v", role=Role.VIEWER), Action.APPROVE)
    assert "a program" in refusal(OWNER, Action.FORWARD)


def test_the_page_has_the_same_table():
    """docs/reference/access.md, row by row."""
    text = (ROOT / "docs" / "reference" / "access.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]
    page = {row[0].strip("`"): tuple(cell == "yes" for cell in row[1:-1]) for row in rows if len(row) == len(Role) + 2}
    assert page == {action.value: tuple(action in GRANTS[role] for role in Role) for action in Action}
    head = next(line for line in text.splitlines() if line.startswith("| action"))
    assert [cell.strip() for cell in head.strip("|").split("|")][1:-1] == [role.value for role in Role]

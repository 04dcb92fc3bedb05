"""Who may do what: identities, roles, tenants. Pure; owns the one table of permissions, which every route asks."""

import enum

from msgspec import Struct


class Role(enum.Enum):
    VIEWER = "viewer"
    """Sees jobs, incidents and the fleet of its tenants."""
    OPERATOR = "operator"
    """Stops jobs, holds and lifts holds, begins drills."""
    APPROVER = "approver"
    """Answers what waits for a person."""
    ADMIN = "admin"
    """Policy, tokens, certificates, the journal."""
    LAUNCHER = "launcher"
    """A program: runs jobs of its tenants on its node."""
    AGENT = "agent"
    """A program: watches its node."""
    REPLICA = "replica"
    """A program: another server of the installation; it passes on what people asked it."""
    METRICS = "metrics"
    """A program: reads the metrics and nothing else."""


class Action(enum.Enum):
    READ = "read"
    """Jobs, incidents, nodes, devices, reports."""
    READ_METRICS = "read_metrics"
    READ_JOURNAL = "read_journal"
    """Entries as they are, of every tenant."""
    STOP_JOB = "stop_job"
    HOLD = "hold"
    DRILL = "drill"
    """Inject a fault into a job of one's tenants, to see it recovered from."""
    APPROVE = "approve"
    SET_POLICY = "set_policy"
    MANAGE_ACCESS = "manage_access"
    """Tokens and certificates."""
    KEEP_JOURNAL = "keep_journal"
    """Move old entries into archive files."""
    SUBMIT_JOB = "submit_job"
    REPORT_NODE = "report_node"
    """What a node's agent says."""
    FORWARD = "forward"
    """Speak for somebody else, whom a replica has identified."""


R, A = Role, Action

PEOPLE = (R.VIEWER, R.OPERATOR, R.APPROVER, R.ADMIN)
"""Each may do what those before it may."""

GRANTS: dict[Role, frozenset[Action]] = {
    R.VIEWER: frozenset({A.READ, A.READ_METRICS}),
    R.OPERATOR: frozenset({A.READ, A.READ_METRICS, A.READ_JOURNAL, A.STOP_JOB, A.HOLD, A.DRILL, A.SUBMIT_JOB}),
    R.APPROVER: frozenset(
        {A.READ, A.READ_METRICS, A.READ_JOURNAL, A.STOP_JOB, A.HOLD, A.DRILL, A.SUBMIT_JOB, A.APPROVE}
    ),
    R.ADMIN: frozenset(set(Action) - {A.FORWARD}),
    R.LAUNCHER: frozenset({A.SUBMIT_JOB, A.READ}),
    R.AGENT: frozenset({A.REPORT_NODE}),
    R.REPLICA: frozenset({A.READ, A.READ_METRICS, A.READ_JOURNAL, A.FORWARD}),
    R.METRICS: frozenset({A.READ_METRICS}),
}


OF_EVERYBODY = (A.SET_POLICY, A.MANAGE_ACCESS, A.KEEP_JOURNAL, A.READ_JOURNAL, A.READ_METRICS, A.HOLD)
"""What is not one tenant's affair."""


class Principal(Struct, frozen=True, kw_only=True):
    """Somebody whose identity was proven."""

    name: str
    role: Role
    tenants: tuple[str, ...] = ()
    """Empty: all."""
    proof: str = ""
    """``token:<id>``, ``certificate:<serial>``, ``state-dir`` (can read the server's own secret: it is the owner)."""

    def sees(self, tenant: str) -> bool:
        return not self.tenants or tenant in self.tenants


OWNER = Principal(name="owner", role=Role.ADMIN, proof="state-dir")
"""Whoever can read the token file of the state directory."""


def refusal(principal: Principal, action: Action, tenant: str | None = None) -> str:
    """Why it may not; empty where it may. ``tenant``: whose job it is about, None for what belongs to the fleet."""
    if action not in GRANTS[principal.role]:
        able = ", ".join(role.value for role in PEOPLE if action in GRANTS[role])
        return (
            f"the role {principal.role.value} may not {action.value.replace('_', ' ')}; it takes: {able or 'a program'}"
        )
    if tenant is not None and not principal.sees(tenant):
        return f"{principal.name} has nothing to do with tenant {tenant!r}"
    if tenant is None and principal.tenants and action in OF_EVERYBODY:
        return f"{action.value.replace('_', ' ')} concerns everybody, and {principal.name} is bound to some tenants"
    return ""

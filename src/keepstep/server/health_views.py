"""Answers about the health score, as structs: what `keepstep health` prints. Computes nothing."""

from msgspec import Struct


class NodeHealth(Struct, frozen=True, kw_only=True):
    node: str
    at_s: float
    """When its agent made the forecast, on the agent's clock."""
    index: float
    """0 … 100: 0 fails as often as the rest, 50 ten times as often, 75 a hundred times."""
    p_1h: float
    p_6h: float
    p_24h: float
    """Probability of a failure within so long."""
    useful_h: float
    """Hours of the next 30 days that it is expected to work for."""
    riskiest: str
    """The part that the index comes from; empty for the node itself."""
    when: str
    """When its job had better leave: ``now``, ``next_checkpoint``, ``job_end``, ``maintenance``; empty without a job."""
    costs_gpu_h: dict[str, float]
    """Expected cost of each moment."""
    reason: str
    explained: tuple[str, ...]


class Health(Struct, frozen=True, kw_only=True):
    nodes: tuple[NodeHealth, ...]
    first: tuple[str, ...]
    """Nodes that had better be left, in order of what each saved GPU-hour costs."""

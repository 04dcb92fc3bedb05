"""How often a job saves beside how often it had better: Young's and Daly's optimum, and where each input comes from. Pure."""

from collections.abc import Iterable, Sequence
from statistics import median

from msgspec import Struct

from keepstep.checkpoint.interval.estimate import DAY_S, believe, observed
from keepstep.checkpoint.interval.optimal import daly_work_s, young_work_s
from keepstep.core.incident import Cause
from keepstep.review.wording import count as counted

_NODE_CAUSES = (Cause.DEVICE.value, Cause.HOST_HARDWARE.value, Cause.NETWORK.value, Cause.POWER.value)
"""Failures that take a node with them; all others end processes."""


class Optimum(Struct, frozen=True, kw_only=True):
    """None where an input is missing; ``inputs`` says which."""

    interval_s: float | None
    """Between the last two checkpoints."""
    cost_s: float | None
    mtbf_s: float
    young_s: float | None
    daly_s: float | None
    verdict: str
    inputs: tuple[tuple[str, str], ...]
    """(input, where it comes from)."""


def optimum(
    interval_s: float | None, writes_s: Sequence[float], causes: Iterable[str], running_s: float, nodes: int
) -> Optimum:
    """``writes_s``: how long each save took, 0 where that is not known. ``causes``: of the job's faults while it ran for
    ``running_s``."""
    costs = [write_s for write_s in writes_s if write_s > 0]
    cost_s = median(costs) if costs else None
    told = list(causes)
    by_node = sum(cause in _NODE_CAUSES for cause in told)
    process = observed(believe("process", max(1, nodes)), len(told) - by_node, max(0.0, running_s))
    node = observed(believe("node", max(1, nodes)), by_node, max(0.0, running_s))
    mtbf_s = 1 / (process.rate_per_s + node.rate_per_s)
    young_s = young_work_s(cost_s, mtbf_s) if cost_s is not None else None
    daly_s = daly_work_s(cost_s, mtbf_s) if cost_s is not None else None
    return Optimum(
        interval_s=interval_s,
        cost_s=cost_s,
        mtbf_s=mtbf_s,
        young_s=young_s,
        daly_s=daly_s,
        verdict=_verdict(interval_s, young_s),
        inputs=(
            ("C, cost of a save", f"median of {counted(len(costs), 'write')}: at most that much stalls the loop" if costs else
             "no write time was reported yet"),
            ("MTBF", f"{counted(len(told), 'fault')} in {running_s / DAY_S:.2g} days, upon what is published for "
             f"{counted(nodes, 'node')}"),
            ("published: processes", process.prior.source),
            ("published: nodes", node.prior.source),
        ),
    )  # fmt: skip


def _verdict(interval_s: float | None, young_s: float | None) -> str:
    """A save costs C at most: so it can be too seldom for sure, and too often only perhaps."""
    if interval_s is None:
        return "Fewer than two checkpoints so far: there is no interval yet"
    if young_s is None:
        return "The optimum is not known before the cost of a save is"
    if interval_s > 2 * young_s:
        return "It saves less than half as often as it should: a failure costs more than it must"
    if interval_s < young_s / 2:
        return (
            "It saves more than twice as often as pays where a save stalls the loop for all of C. One that is written in the "
            "background stalls it for less, and may well pay"
        )
    return "Near the optimum: the cost is flat around it"

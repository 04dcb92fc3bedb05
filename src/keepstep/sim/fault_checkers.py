"""What must hold of faults and holds, checked against the truth of the hardware. Beside ``checkers``, which checks recoveries.

A restart that nothing justified is counted here and not a violation: in a fleet with noise some verdicts are wrong, and how
many is what is measured. A hold that nothing was seen for stays what it is: an error of the engine.
"""

from collections import Counter
from typing import TYPE_CHECKING

from keepstep.core import decision as d
from keepstep.core.fault import Fault, FaultState
from keepstep.core.ids import FaultId, ResourceId, node_of
from keepstep.core.intents import Order
from keepstep.core.policy import Policy
from keepstep.core.resource import ResourceState
from keepstep.core.world import World
from keepstep.sim.checkers import Checkers
from keepstep.sim.hardware import SimHardware
from keepstep.sim.training import Run, SimJob
from keepstep.sim.truth import Truth

if TYPE_CHECKING:
    from keepstep.sim.fleet import FleetState

ACT_AFTER_S = 60.0
"""So long after its end a root cause still justifies an act: what was validated meanwhile is well."""
AFTER_S = 3600.0
"""So long after its end a root cause still explains what is said of it: late signals, gates, repairs."""


class FaultCheckers(Checkers):
    def __init__(self, fleet: "FleetState", hardware: SimHardware) -> None:
        super().__init__(fleet)
        self._hardware = hardware
        self._counted: dict[tuple[str, int], None] = {}
        self.unjustified: list[tuple[float, str]] = []
        """(when, job): live ranks were ended and nothing had happened to them."""
        self.false_holds: list[tuple[float, ResourceId, str]] = []
        """(when, resource, why) of what was isolated and well."""
        self.opened_s: dict[FaultId, float] = {}
        """By the true clock: the server's may jump."""
        self.holds = 0
        self.member_holds = 0
        """Of nodes that shared another root cause: held before that was known."""

    # ---- restarts that nothing justified

    def killed(self, job: SimJob, run: Run, why: str) -> None:
        if why == "the end of the job" or job.stopped_by_person or why.startswith(("left", "taken away")):
            return
        if run.faulty or "starting" in run.blocks or (job.id, run.generation) in self._counted:
            return
        now_s, truths = self._fleet.now_s, self._hardware.truths
        if not any(truths.explains(node, now_s, ACT_AFTER_S) for node in run.nodes):
            self._counted[job.id, run.generation] = None
            self.unjustified.append((self._fleet.now_s, f"{job.id} generation {run.generation}: {why}"))

    # ---- holds

    def decided(self, decision: d.Decision, orders: list[Order], world: World, policy: Policy) -> None:
        super().decided(decision, orders, world, policy)
        for change in decision.changes:
            if isinstance(change, d.OpenFault):
                self.opened_s[change.fault] = self._fleet.now_s
            if isinstance(change, d.HoldForFault) and not world.faults[change.fault].entries:
                self._fail("5 no hold without evidence", f"{change.resource} is held for {change.fault}")
            if isinstance(change, d.MoveResource) and change.to is ResourceState.QUARANTINED:
                self._held(change.resource, decision.reason)

    def _held(self, resource: ResourceId, why: str) -> None:
        self.holds += 1
        now_s = self._fleet.now_s
        known = self._hardware.truths.explains(node_of(resource), now_s, ACT_AFTER_S)
        if not known:
            self.false_holds.append((now_s, resource, why))
        elif all(truth.shared or not truth.story.isolates for truth in known):
            self.member_holds += 1

    # ---- one fault per root cause

    def faults_of(self, truth: Truth, world: World) -> list[Fault]:
        """Faults that stand by themselves and that only this root cause explains."""
        found = []
        for fault in world.faults.values():
            opened_s = self.opened_s[fault.id]
            late = truth.ended_s is not None and opened_s > truth.ended_s + AFTER_S
            if fault.group is not None or late or opened_s < truth.at_s - (0.0 if truth.shared else 120.0):
                continue
            if (fault.node is None and fault.part == truth.domain) or (
                fault.node in truth.nodes and _told_by(truth, fault) and self._only(truth, fault)
            ):
                found.append(fault)
        return found

    def _only(self, truth: Truth, fault: Fault) -> bool:
        assert fault.node is not None
        known = self._hardware.truths.explains(fault.node, self.opened_s[fault.id], AFTER_S)
        return bool(known) and known[-1] is truth

    def unexplained(self, world: World) -> list[Fault]:
        """Faults of nodes with which nothing was wrong."""
        found = []
        for fault in world.faults.values():
            if fault.node is None or fault.state is FaultState.GROUPED or fault.group is not None:
                continue
            if not self._hardware.truths.explains(fault.node, self.opened_s[fault.id], AFTER_S):
                found.append(fault)
        return found


def _told_by(truth: Truth, fault: Fault) -> bool:
    """Whether its signals are of those that this root cause prints, or are made of them."""
    keys = [sign.key for sign in truth.story.signs]
    return any(key in keys or (key.startswith("nic.") and "nic.link_down" in keys) for key in fault.signals)


def counted(faults: list[Fault]) -> Counter[tuple[str, str]]:
    """(first signal, class) -> how many."""
    return Counter((fault.signals[0] if fault.signals else "", fault.nature.failure_class) for fault in faults)

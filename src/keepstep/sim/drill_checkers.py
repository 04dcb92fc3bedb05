"""What must hold of drills, by ground truth and by what was said and ordered. Beside ``checkers``, which checks recoveries.

Never asks the engine's own record of a drill: what was asked, ordered, done and answered is written down here once more.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from keepstep.core import decision as d
from keepstep.core import facts as f
from keepstep.core.drill import TERMINAL, DrillState
from keepstep.core.engine import orders_of
from keepstep.core.ids import DrillId, IncidentId, JobId, NodeId, Session
from keepstep.core.incident import Diagnosis, IncidentState
from keepstep.core.intents import Inject
from keepstep.core.job import TERMINAL as ENDED
from keepstep.core.world import World
from keepstep.sim.checkers import CheckFailed
from keepstep.sim.training import Run, SimRank

if TYPE_CHECKING:
    from keepstep.sim.fleet import FleetState

_SLACK_S = 90.0
"""What a server that is down or paused may add to a deadline."""
_STILL_S = 240.0
"""A job that stands still for so long is known to do so, whatever else goes wrong."""


@dataclass(slots=True)
class Known:
    """One drill, as it was seen from outside of the engine. Times are of the true clock."""

    job: JobId
    asked_s: float
    order: Inject | None = None
    ordered_s: float = 0.0
    done_s: float | None = None
    """When it was really done."""
    hit: list[SimRank] = field(default_factory=list)
    refused: bool = False
    """The engine has been told that it was not done."""
    incident: IncidentId | None = None
    answered: bool = False
    """A lost node may not live to do so; whether it was lost before its order came is then nobody's to know."""
    closed_s: float | None = None
    """When that incident was closed."""
    end: DrillState | None = None


class DrillCheckers:
    def __init__(self, fleet: "FleetState") -> None:
        self._fleet = fleet
        self.known: dict[DrillId, Known] = {}
        self._open: dict[DrillId, Known] = {}
        self._asked = 0
        self._started_s = 0.0
        """When the server last started: what could not be noticed before may be noticed from then on."""
        self._orders: dict[int, DrillId] = {}
        self._exits: dict[tuple[JobId, int], dict[int, None]] = {}
        """(job, generation) -> ranks of which the engine knows that they ended."""
        self._silent: dict[tuple[JobId, NodeId], Session] = {}
        self._diagnoses: dict[IncidentId, list[Diagnosis]] = {}

    def _fail(self, checker: str, text: str) -> None:
        raise CheckFailed(f"drill: {checker}", f"at {self._fleet.now_s:.2f} s: {text}")

    @property
    def _world(self) -> World:
        return self._fleet.network.server.world

    # ---- what the engine is told

    def folded(self, fact: f.Fact) -> None:
        self._in_time()
        match fact:
            case f.DrillRequested(job=job) if job in self._world.jobs:
                self._opened(job)
            case f.Answered(intent=number, outcome=outcome) if number in self._orders:
                known = self.known[self._orders[number]]
                known.answered, known.refused = True, isinstance(outcome, f.Failed)
            case f.RankExited():
                self._exits.setdefault((fact.job, fact.generation), {})[fact.rank] = None
            case f.ServerStarted():
                self._started_s = self._fleet.now_s
            case f.NodeUnreachable():
                self._silent[fact.job, fact.node] = fact.session
            case f.NodeReachable() | f.NodeJoined():
                self._silent.pop((fact.job, fact.node), None)
            case _:
                pass

    def _opened(self, job: JobId) -> DrillId:
        self._asked += 1
        name = DrillId(f"drill-{self._asked:04d}")
        self.known[name] = self._open[name] = Known(job, self._fleet.now_s)
        return name

    # ---- what it decides

    def decided(self, decision: d.Decision) -> None:
        self._in_time()
        for change in decision.changes:
            match change:
                case d.OpenDrill():
                    if self._opened(change.job) != change.drill:
                        self._fail("names", f"{change.drill} is not the next one")
                case d.LinkDrill():
                    self._linked(change)
                case d.MoveDrill(to=to) if to in TERMINAL:
                    self._ended(change)
                case d.MoveDrill(to=DrillState.INJECTED, node=None):
                    self.known[change.drill].incident = self.known[change.drill].closed_s = None
                case d.Close():
                    for known in self._open.values():
                        if known.incident == change.incident:
                            known.closed_s = self._fleet.now_s
                case d.Diagnose():
                    self._diagnosed(change, decision)
                case _:
                    pass
        for order in orders_of(decision):
            if isinstance(order.intent, Inject):
                self._orders[order.number] = order.intent.drill
                self._ordered(order.intent)

    def _ordered(self, order: Inject) -> None:
        known = self.known[order.drill]
        if known.order is not None or known.end is not None:
            self._fail("once", f"{order.drill} is ordered again")
        others = [name for name, x in self._open.items() if x.order is not None]
        if others:
            self._fail("one at a time", f"{order.drill} is ordered while {others[0]} is under way")
        known.order, known.ordered_s = order, self._fleet.now_s
        why = self._unsteady(order)
        if why:
            self._fail("steady jobs only", f"{order.drill} is ordered against {order.job}: {why}")

    def _unsteady(self, order: Inject) -> str:
        """By what is true and has been known for a while, or was told."""
        run = self._fleet.jobs[order.job].run()
        if run is None or run.generation != order.generation:
            return f"generation {order.generation} is not its newest"
        if "starting" in run.blocks:
            return "it has not started yet"
        told = self._exits.get((order.job, order.generation), {})
        dead = [x.rank for x in run.ranks.values() if not x.alive and x.rank in told]
        if dead:
            return f"rank {dead[0]} has ended, and the engine knows it"
        silent = [node for node in run.nodes if (order.job, node) in self._silent]
        if silent:
            return f"{silent[0]} is silent, and the engine knows it"
        still_s = run.still_s(self._fleet.now_s)
        return f"it has stood still for {still_s:.0f} s" if still_s > _STILL_S else ""

    def _linked(self, change: d.LinkDrill) -> None:
        known = self.known[change.drill]
        others = [name for name, x in self.known.items() if x.incident == change.incident and x is not known]
        if others:
            self._fail("one incident each", f"{change.incident} is said to be of {change.drill} and of {others[0]}")
        known.incident = change.incident

    # ---- what is charged

    def _diagnosed(self, change: d.Diagnose, decision: d.Decision) -> None:
        found = change.diagnosis
        self._diagnoses.setdefault(change.incident, []).append(found)
        job = self._fleet.jobs[self._world.incidents[change.incident].job]
        run = job.run()
        by_drill = run is not None and self._is_of_drill(run, found)
        charged = change.failure is not None or any(isinstance(x, d.Suspect) for x in decision.changes)
        if by_drill and (charged or found.resources):
            self._fail("charged to nobody", f"{decision.subject}: {found.summary}")
        if not by_drill and change.failure is None and not self._may_be_of_drill(job.id, found):
            self._fail("real faults are charged", f"{decision.subject}: {found.summary}")

    def _is_of_drill(self, run: Run, found: Diagnosis) -> bool:
        """It names first what a drill hit in this very generation, and nothing else broke there."""
        if found.lost_nodes:
            hit = [x for node in found.lost_nodes for x in run.by_node.get(node, ())]
            nodes = {x.node: None for x in hit if x.drill is not None and self._order(x).kind == "lose-node"}
            return set(nodes) == set(found.lost_nodes)
        rank = run.ranks.get(found.culprits[0]) if found.culprits else None
        return rank is not None and rank.drill is not None and self._order(rank).kind != "lose-node"

    def _order(self, rank: SimRank) -> Inject:
        assert rank.drill is not None
        order = self.known[rank.drill].order
        assert order is not None
        return order

    def _may_be_of_drill(self, job: JobId, found: Diagnosis) -> bool:
        """It names what a drill was to hit and is not known to have missed: the engine cannot know better."""
        for known in self._open.values():
            order = known.order
            if order is None or order.job != job or known.refused:
                continue
            if found.lost_nodes == (order.node,) if order.rank is None else order.rank in found.culprits:
                return self._world.jobs[job].generation == order.generation
        return False

    # ---- what is done

    def hit(self, order: Inject, run: Run, ranks: list[SimRank]) -> None:
        """A launcher does it now."""
        known = self.known[order.drill]
        if known.done_s is not None:
            self._fail("once", f"{order.drill} is done a second time")
        if known.end is not None:
            self._fail("not after its end", f"{order.drill} is done, and {known.end.value} since")
        newest = self._fleet.jobs[order.job].run()
        if newest is not run and ranks:
            self._fail("steady jobs only", f"{order.drill} hits the superseded generation {run.generation}")
        known.done_s, known.hit = self._fleet.now_s, ranks

    # ---- how it ends

    def _ended(self, change: d.MoveDrill) -> None:
        known = self._open.pop(change.drill)
        known.end = change.to
        if change.to is DrillState.CALLED_OFF:
            known.incident = None
        if change.to is DrillState.PASSED:
            why = self._unproven(change.drill, known)
            if why:
                self._fail("passed means recovered", f"{change.drill}: {why}")
        job = self._world.jobs[known.job]
        over = job.state in ENDED or bool(job.stop_requested)  # before there was anything to score
        if change.to is DrillState.CALLED_OFF and known.done_s is not None and not over:
            self._fail("called off means not done", f"{change.drill}: {change.reason}")
        if change.to is DrillState.FAILED and known.refused and known.done_s is None:
            self._fail("refused is no failure", f"{change.drill}: {change.reason}")
        self._fleet.probes.hit(f"drill {change.to.value}")

    def _unproven(self, name: DrillId, known: Known) -> str:
        """Why a drill that passed has not been recovered from; empty where it has."""
        order, job = known.order, self._fleet.jobs[known.job]
        if order is None or (known.done_s is None and (known.answered or order.rank is not None)):
            return "it was never done"
        if known.incident is None or known.closed_s is None or self._world.incidents[known.incident].drill != name:
            return f"no closed incident of its own: {known.incident}"
        older, newer = job.runs[order.generation], [x for x in job.runs.values() if x.generation > order.generation]
        if any(rank.alive for rank in older.ranks.values()):
            return f"generation {order.generation} lives"
        if not any(self._has_stepped(run) for run in newer):
            return "no step was completed since"
        found = self._diagnoses.get(known.incident, [])
        named = any(order.node in x.lost_nodes if order.rank is None else order.rank in x.culprits for x in found)
        return "" if named else f"another was named: {'; '.join(x.summary for x in found)}"

    def _has_stepped(self, run: Run) -> bool:
        """Or had none left to do."""
        base = run.restore.step if run.restore is not None else 0
        return run.step(self._fleet.now_s) > base or len(run.finished) == run.world_size

    # ---- everything ends

    def _in_time(self) -> None:
        limits = self._fleet.network.server.policy.drills
        now_s = self._fleet.now_s
        for name, known in self._open.items():
            if known.order is None and now_s - known.asked_s > limits.wait_s + _SLACK_S:
                self._late(name, "neither begun nor called off")
            unseen_s = now_s - max(known.ordered_s, self._started_s)
            if known.order is not None and known.incident is None and unseen_s > 4 * limits.detect_s + _SLACK_S:
                self._late(name, "neither noticed nor failed")
            if known.closed_s is not None and now_s - known.closed_s > _SLACK_S:
                self._late(name, "not judged although its incident is closed")

    def _late(self, name: DrillId, what: str) -> None:
        if self._fleet.network.server.up and not self._fleet.network.server.paused:
            self._fail("everything ends", f"{name} is {what}")

    def ended(self) -> None:
        """After the liveness phase."""
        if self._open:
            self._fail("everything ends", f"{next(iter(self._open))} is still open")
        for incident in self._world.incidents.values():
            known = self.known.get(incident.drill) if incident.drill is not None else None
            if known is not None and known.incident != incident.id:
                self._fail("one incident each", f"{incident.id} says {incident.drill}, which led to {known.incident}")
            if known is not None and incident.state is IncidentState.NO_FAULT:
                self._fail("one incident each", f"{incident.id} was no fault and says {incident.drill}")

"""Vitals: what beats say, in memory only. Learns how long things take in each job. Must not judge (see detect.py).

Beats move deadlines; they never enter the journal. After a restart of the server this is empty and fills within a second.
All durations come from the launchers, which count only the time in which they themselves were able to run.
"""

import math
from collections import deque

from msgspec import Struct, field

from keepstep.core.health.report import HealthReport
from keepstep.core.ids import JobId, NodeId, Session
from keepstep.core.listening import Heard, Listening

_RECENT_STEPS = 64
MAX_RANKS = 1024
"""Of a larger job step times are not kept by rank: memory stays bounded."""


class RankSample(Struct, frozen=True, kw_only=True):
    """One rank in the newest beat of its launcher. Fields as in wire.messages.RankVitals."""

    rank: int
    phase: str
    step: int
    idle_s: float
    phase_s: float
    step_time_s: float
    loss: float
    state: str
    cpu_s: float


class NodeVitals(Heard, kw_only=True, eq=False):
    job: JobId
    node: NodeId


class AgentVitals(Heard, kw_only=True, eq=False):
    node: NodeId


class JobVitals(Struct, kw_only=True):
    generation: int = 0
    ranks: dict[int, RankSample] = field(default_factory=dict)
    step_times_s: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))
    """Durations of recent steps of any rank, over generations."""
    phase_max_s: dict[str, float] = field(default_factory=dict)
    """Phase -> the longest that was seen to end, over generations."""
    excuse: float = 1.0
    """Grows with false alarms; every deadline is multiplied by it."""
    rank_steps_s: dict[int, deque[float]] = field(default_factory=dict)
    """Rank -> durations of its recent steps in this generation; of jobs of up to ``MAX_RANKS`` ranks."""
    reported_step: int = -1
    reported_slower: tuple[int, ...] | None = None
    """The slow ranks that were said; empty for the whole job."""
    compared_s: float = -1e18
    """When step times were compared last."""
    reported_stall_step: int | None = None
    looked_s: float = -1e18
    """When it was looked for a stall last."""
    apart_since_s: float | None = None
    """Since when some ranks, and not all, are in job-control stop."""
    whole_stop_s: float = -1e18
    """When all ranks were last seen in job-control stop: standing still until then is not held against them."""


class Vitals(Struct, kw_only=True):
    nodes: dict[tuple[JobId, NodeId], NodeVitals] = field(default_factory=dict)
    jobs: dict[JobId, JobVitals] = field(default_factory=dict)
    agents: dict[NodeId, AgentVitals] = field(default_factory=dict)
    health: dict[NodeId, HealthReport] = field(default_factory=dict)
    """The newest forecast of each node's agent."""
    launchers: Listening[NodeVitals] = field(default_factory=Listening)
    witnesses: Listening[AgentVitals] = field(default_factory=Listening)

    def agent_connected(self, node: NodeId, session: Session, now_s: float) -> None:
        """A node's agent said hello. What was said of its silence stays said until it is heard."""
        known = self.agents.get(node)
        silent = known is not None and known.session == session and known.reported_silent
        if known is not None:
            self.witnesses.end(known)
        self.agents[node] = AgentVitals(node=node, session=session, heard_s=now_s, reported_silent=silent)
        self.witnesses.begin(self.agents[node])

    def agent_heard(self, node: NodeId, session: Session, now_s: float) -> None:
        known = self.agents.get(node)
        if known is not None and known.session == session:
            self.witnesses.heard(known, now_s)

    def agent_disconnected(self, node: NodeId, session: Session) -> None:
        known = self.agents.get(node)
        if known is not None and known.session == session:
            known.connected = False

    def connected(self, job: JobId, node: NodeId, session: Session, now_s: float) -> None:
        """A launcher said hello."""
        self.left(job, node)
        known = self.nodes[job, node] = NodeVitals(job=job, node=node, session=session, heard_s=now_s)
        self.launchers.begin(known)

    def left(self, job: JobId, node: NodeId) -> None:
        """It said goodbye, or the job is over: what follows is not silence."""
        known = self.nodes.pop((job, node), None)
        if known is not None:
            self.launchers.end(known)

    def disconnected(self, job: JobId, node: NodeId, session: Session) -> None:
        """Its connection broke: silence begins now, and a witness is asked early."""
        known = self.nodes.get((job, node))
        if known is not None and known.session == session:
            self.launchers.broke(known)

    def stood_still(self, lost_s: float, now_s: float) -> None:
        """Whoever listens was stopped itself for so long (a suspended machine): that silence is nobody else's."""
        for known in self.nodes.values():
            known.heard_s = min(now_s, known.heard_s + lost_s)
            self.launchers.again(known)
        for agent in self.agents.values():
            agent.heard_s = min(now_s, agent.heard_s + lost_s)
            self.witnesses.again(agent)

    def beat(self, job: JobId, node: NodeId, now_s: float, generation: int, ranks: tuple[RankSample, ...]) -> None:
        """One beat of one launcher."""
        known = self.nodes.get((job, node))
        if known is None:
            return
        self.launchers.heard(known, now_s)
        vitals = self.jobs.setdefault(job, JobVitals())
        if generation > vitals.generation:
            vitals.generation, vitals.ranks = generation, {}
            vitals.rank_steps_s, vitals.reported_slower = {}, None
            vitals.reported_step, vitals.reported_stall_step = -1, None
        elif generation < vitals.generation:
            return
        for sample in ranks:
            self._learn(vitals, vitals.ranks.get(sample.rank), sample)
            vitals.ranks[sample.rank] = sample

    def _learn(self, vitals: JobVitals, before: RankSample | None, now: RankSample) -> None:
        if now.step_time_s > 0 and (before is None or now.step > before.step):
            vitals.step_times_s.append(now.step_time_s)
            if now.rank < MAX_RANKS:
                recent = vitals.rank_steps_s.setdefault(now.rank, deque(maxlen=_RECENT_STEPS))
                recent.append(now.step_time_s)
        if before is not None and (before.phase != now.phase or before.step != now.step):
            longest = vitals.phase_max_s.get(before.phase, 0.0)
            vitals.phase_max_s[before.phase] = max(longest, before.phase_s)
            vitals.reported_stall_step = None

    def forget(self, job: JobId) -> None:
        """The job is over."""
        self.jobs.pop(job, None)
        for key in [key for key in self.nodes if key[0] == job]:
            self.left(*key)


def common_step(vitals: JobVitals, world_size: int) -> int:
    """The newest step that all ranks completed; -1 if not all of them reported one."""
    if len(vitals.ranks) < world_size:
        return -1
    return min(sample.step for sample in vitals.ranks.values())


def mean_loss(vitals: JobVitals) -> float | None:
    """Mean of the losses that were reported; None if none was."""
    losses = [s.loss for s in vitals.ranks.values() if not math.isnan(s.loss)]
    return sum(losses) / len(losses) if losses else None

"""The simulated server: journal, fold, turn, orders, as server/loop.py and server/hub.py do it, with crashes at any instant.

Owns the shell around the real core. What a crash leaves is the journal; vitals, timers and orders in flight are gone.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from keepstep.core import engine
from keepstep.core import facts as f
from keepstep.core.decision import Decision, MoveIncident, Record
from keepstep.core.detect import before, detect, excuse
from keepstep.core.fold import fold
from keepstep.core.ids import JobId, NodeId, Session
from keepstep.core.incident import IncidentState
from keepstep.core.intents import Order
from keepstep.core.job import TERMINAL
from keepstep.core.policy import Policy
from keepstep.core.vitals import RankSample, Vitals
from keepstep.core.world import World
from keepstep.sim.checkers import CheckFailed, comparable, is_for_launcher
from keepstep.sim.journal import SimJournal
from keepstep.sim.training import Run, SimJob
from keepstep.sim.witness import Witness

if TYPE_CHECKING:
    from keepstep.sim.fleet import FleetState
    from keepstep.sim.launcher import SimLauncher

_TICK_FIRST_S = 0.02
_STALL_S = 30.0
"""Implicit beats: how long a stalled job of a large fleet takes to be noticed."""


class ServerCrashed(Exception):
    """The armed crash point was reached."""


class SimServer:
    def __init__(self, fleet: "FleetState", policy: Policy, tick_cap_s: float) -> None:
        self._fleet = fleet
        self.policy = policy
        self.tick_cap_s = tick_cap_s
        self.journal = SimJournal()
        self.world = World()
        self.vitals = Vitals()
        self.witness = Witness(fleet)
        self.up = False
        self.paused = False
        self.life = 0
        self.crash_point = ""
        """``facts`` or ``decisions``: crash right after these have been written, before anything follows from them."""
        self._offset_s = 0.0
        self._queue: list[tuple[f.Fact, Session | None, int]] = []
        self._scheduled = False
        self._timer = 0
        self._quiet = 0
        self._sessions: dict[tuple[JobId, NodeId], list[Session]] = {}
        self.on_decision: list[Callable[[Decision], None]] = []
        self.on_down: list[Callable[[], None]] = []
        self.on_fact: list[Callable[[f.Fact], None]] = []

    # ---- life and death

    @property
    def now_s(self) -> float:
        return self._fleet.now_s + self._offset_s

    def start(self, clock_jump_s: float = 0.0) -> None:
        """Take the journal over: replay, then orders without an answer go out again."""
        if self.up:
            return
        self._offset_s += clock_jump_s
        self.life += 1
        self.up, self.paused, self.crash_point = True, False, ""
        self.world, self.vitals, self._queue = World(), Vitals(), []
        for at_s, record in self.journal.read():
            engine.replay(self.world, record, at_s)
        self._write([f.ServerStarted(server=f"server-{self.life}", version="sim")])
        if self._fleet.options.explicit_beats:
            for job in self.world.live_jobs:
                for launcher in self.world.jobs[job].launchers.values():
                    if not (launcher.left or launcher.gone):
                        self.vitals.connected(job, launcher.node, launcher.session, self.now_s)
        else:
            self._watch_silent()
        for pending in list(self.world.orders.values()):
            order = Order(number=pending.number, intent=pending.intent)
            if not is_for_launcher(order.intent):
                self.witness.submit(order)
            elif getattr(order.intent, "session", None) in self._fleet.agents:
                self._send(order)
        self._wake()

    def _watch_silent(self) -> None:
        """Implicit beats: whoever was not heard before the crash is still waited for."""
        for job in self.world.live_jobs:
            for known in self.world.jobs[job].launchers.values():
                if not (known.left or known.gone or known.reachable):
                    self._watch(job, known.node, known.session)
                    self.vitals.nodes[job, known.node].reported_silent = True

    def crash(self) -> None:
        if not self.up:
            return
        for incident in self.world.open_incidents:
            self._fleet.probes.hit(f"server crash while {self.world.incidents[incident].state.value}")
        self.up = False
        self._queue, self._scheduled = [], False
        self._fleet.network.server_gone()
        for notice in self.on_down:
            notice()

    def pause(self, for_s: float) -> None:
        """A suspended machine or a stopped process: time goes on, and what arrives waits."""
        if not self.up or self.paused:
            return
        self.paused = True
        life = self.life

        def resume() -> None:
            if self.life == life and self.up:
                self.paused = False
                self._wake()

        self._fleet.timeline.after(for_s, resume)

    # ---- connections

    def greet(self, launcher: "SimLauncher") -> int:
        """Hello and Welcome: what the client has missed goes out. Returns the newest report that is in the journal."""
        key = (launcher.job.id, launcher.node)
        known = self._sessions.setdefault(key, [])
        if launcher.session not in known:
            known.append(launcher.session)
        if known[-1] != launcher.session:
            self._fleet.network.supersede(launcher.session, 0)
            return self.journal.received.get(launcher.session, 0)
        job = self.world.jobs.get(launcher.job.id)
        if job is None or job.state not in TERMINAL:
            self.vitals.connected(*key, launcher.session, self.now_s)
        elif job.state in TERMINAL:
            self._fleet.timeline.after(0.1, lambda: launcher.leave("the job has ended") if launcher.alive else None)
        for pending in list(self.world.orders.values()):
            if is_for_launcher(pending.intent) and getattr(pending.intent, "session", None) == launcher.session:
                self._fleet.network.send(launcher.session, Order(number=pending.number, intent=pending.intent))
        return self.journal.received.get(launcher.session, 0)

    def closed(self, job: JobId, node: NodeId, session: Session) -> None:
        """A connection broke, and the kernel said so."""
        if not self.up:
            return
        owner = self.world.jobs.get(job)
        if owner is None or owner.state in TERMINAL:
            return
        known = owner.launchers.get(node)
        if known is not None and known.session == session and known.left:
            self.vitals.left(job, node)
            return
        if not self._fleet.options.explicit_beats:
            self._watch(job, node, session)
        self.vitals.disconnected(job, node, session)
        self._wake()

    def watch(self, launcher: "SimLauncher") -> None:
        """Implicit beats: a launcher fell silent without its connection breaking."""
        if self.up and not self._fleet.options.explicit_beats:
            self._watch(launcher.job.id, launcher.node, launcher.session)
            self._wake()  # its lease is counted from here, however rarely the clock is looked at

    def _watch(self, job: JobId, node: NodeId, session: Session) -> None:
        if (job, node) not in self.vitals.nodes:
            self.vitals.connected(job, node, session, self.now_s)

    def beat(self, launcher: "SimLauncher", generation: int, samples: tuple[RankSample, ...]) -> None:
        if self.paused:
            return
        job = self.world.jobs.get(launcher.job.id)
        known = job.launchers.get(launcher.node) if job else None
        if known is not None and known.session == launcher.session and 0 < generation <= known.fenced:
            self._fleet.network.supersede(launcher.session, known.fenced)
            return
        node = self.vitals.nodes.get((launcher.job.id, launcher.node))
        if node is not None and node.session == launcher.session:
            self.vitals.beat(launcher.job.id, launcher.node, self.now_s, generation, samples)

    # ---- facts

    def received(self, launcher: "SimLauncher", number: int, fact: f.Fact) -> None:
        self._queue.append((fact, launcher.session, number))
        self._wake()

    def observe(self, *facts: f.Fact) -> None:
        """Facts of the server's own machine, or of a person's tool."""
        if self.up:
            self._queue += [(fact, None, 0) for fact in facts]
            self._wake()

    def _wake(self) -> None:
        self._quiet = 0
        if not self._scheduled and self.up:
            self._scheduled = True
            life = self.life
            self._fleet.timeline.after(0.0, lambda: self._work(life))

    def _work(self, life: int) -> None:
        if life != self.life or not self.up:
            return
        self._scheduled = False
        if self.paused:
            return
        try:
            self._take()
            self._tick()
            self._settle()
        except ServerCrashed:
            self.crash()
            return
        self._arm()

    def _arm(self) -> None:
        """The next look at the clock when nothing arrives: soon after something happened, then less and less often."""
        self._timer += 1
        timer = self._timer
        pause_s = min(self.tick_cap_s, _TICK_FIRST_S * 1.6 ** min(self._quiet, 40))
        self._quiet += 1
        if self.world.deferred:
            pause_s = min(pause_s, max(0.0, self.world.deferred[0][0] - self.now_s))
        self._fleet.timeline.after(pause_s, lambda: self._work(self.life) if timer == self._timer else None)

    def _take(self) -> None:
        queue, self._queue = self._queue, []
        for fact, session, number in queue:
            if session is not None:
                if number <= self.journal.received.get(session, 0):
                    self._fleet.network.ack(session, number)
                    continue
                ahead = before(fact, self.vitals, self.world)
                if ahead is not None:
                    self._write([ahead])
            self._write([fact], (session, number) if session is not None else None)
            if session is not None:
                self._fleet.network.ack(session, number)
            self._crash_if("facts")

    def _tick(self) -> None:
        if not self._fleet.options.explicit_beats:
            self._hear_implicitly()
        due = detect(self.vitals, self.world, self.policy, self.now_s)
        if due:
            self._write(due)

    def _hear_implicitly(self) -> None:
        for key, node in list(self.vitals.nodes.items()):
            launcher = self._fleet.launchers.get(key)
            if launcher is None or launcher.session != node.session or launcher.frozen:
                continue
            if self._fleet.network.connected(node.session):
                self.vitals.launchers.heard(node, self.now_s)
                if not node.reported_silent:
                    self.vitals.left(*key)

    def _write(self, facts: list[f.Fact], origin: tuple[Session, int] | None = None) -> None:
        """The journal first, then the World."""
        records: list[Record] = list(facts)
        self.journal.append(self.now_s, records, origin)
        for fact in facts:
            self._note(fact)
            for notice in self.on_fact:
                notice(fact)
            fold(self.world, fact, self.now_s)

    def _note(self, fact: f.Fact) -> None:
        """For the checkers and probes only."""
        checkers, probes = self._fleet.checkers, self._fleet.probes
        checkers.folded(fact, self.policy, self._fleet.now_s)
        match fact:
            case f.CheckpointCommitted():
                checkers.committed(fact)
            case f.NodeReachable():
                probes.hit("silent node came back")
            case f.Overdue():
                probes.hit("order overdue")
            case f.GateFinished(passed=None):
                probes.hit("gate tool failed")
            case f.GateFinished(passed=False):
                probes.hit("gate failed")
            case f.Answered(outcome=f.Fenced(proof="powered_off")):
                probes.hit("power-off as proof")
            case f.Answered(outcome=f.Fenced(proof="rebooted")):
                probes.hit("rebooted as proof")
            case f.Answered(outcome=f.Fenced(proof="process_gone")):
                probes.hit("process gone as proof")
            case _:
                pass

    def stale(self, fact: f.Fact) -> None:
        """Inject a fact that is certainly stale, and have it checked that it changes nothing."""
        if not self.up or self.paused:
            return
        was = comparable(self.world)
        self._write([fact])
        self._fleet.checkers.stale(was, comparable(self.world), fact)
        self._fleet.probes.hit("stale fact ignored")
        self._wake()

    # ---- decisions

    def _settle(self) -> None:
        at_s = self.now_s
        decided = engine.turn(self.world, self.policy, at_s)
        if not decided:
            return
        self._quiet = 0
        records: list[Record] = list(decided)
        self.journal.append(at_s, records)
        for decision in decided:
            self._fleet.checkers.decided(decision, engine.orders_of(decision), self.world, self.policy)
            for notice in self.on_decision:
                notice(decision)
        self._crash_if("decisions")
        for decision in decided:
            self._dispatch(decision)

    def _dispatch(self, decision: Decision) -> None:
        orders = engine.orders_of(decision)
        for change in decision.changes:
            if isinstance(change, MoveIncident) and change.to is IncidentState.NO_FAULT:
                excuse(self.vitals, self.world.incidents[change.incident].job, self.policy.hang)
        for order in orders:
            if is_for_launcher(order.intent):
                self._send(order)
            else:
                self.witness.submit(order)
        for job_id, truth in self._fleet.jobs.items():
            if not truth.ended and job_id in self.world.jobs and self.world.jobs[job_id].state in TERMINAL:
                truth.ended = True
                self.vitals.forget(job_id)
                self._tell_end(job_id)

    def _send(self, order: Order) -> None:
        session: Session = order.intent.session  # type: ignore[union-attr]
        agent = self._fleet.agents.get(session)
        if agent is not None:
            agent.take(order)
        else:
            self._fleet.network.send(session, order)

    def _tell_end(self, job: JobId) -> None:
        for (owner, _), launcher in self._fleet.launchers.items():
            if owner == job and launcher.alive and self._fleet.network.connected(launcher.session):
                self._fleet.timeline.after(
                    0.1,
                    lambda launcher=launcher: launcher.leave("the job has ended") if launcher.alive else None,  # type: ignore[misc]
                )

    def _crash_if(self, point: str) -> None:
        if self.crash_point == point:
            self._fleet.probes.hit(
                "server crash between the journal and the orders"
                if point == "decisions"
                else "server crash between facts and decisions"
            )
            raise ServerCrashed

    # ---- implicit beats: progress and stalls of large fleets

    def stepping(self, job: SimJob, run: Run, now_s: float) -> None:
        """A generation of a large fleet steps: say so at the steps that a verification waits for."""
        if self._fleet.options.explicit_beats:
            return
        for ahead in (1, self.policy.verify.steps):
            delay_s = ahead * run.step_time_s
            self._when_up(delay_s, run, lambda: self._say_progress(job, run) if run.stepping else None)

    def _when_up(self, delay_s: float, run: Run, say: Callable[[], None]) -> None:
        """Say something about a course of events that still holds then, once there is a server to hear it."""
        epoch = run.epoch

        def now() -> None:
            if run.epoch == epoch and self.up and not self.paused:
                say()
            elif run.epoch == epoch:
                self._fleet.timeline.after(1.0, now)

        self._fleet.timeline.after(delay_s, now)

    def _say_progress(self, job: SimJob, run: Run) -> None:
        step = run.step(self._fleet.now_s)
        if run is job.run():
            fact = f.StepsAdvanced(
                job=job.id,
                generation=run.generation,
                step=step,
                ranks=run.world_size,
                loss=job.loss(run, step),
                step_time_s=run.step_time_s,
            )
            self.observe(fact)

    def blocked(self, run: Run) -> None:
        """A generation of a large fleet stands still: noticed after a while, if it still does."""
        if self._fleet.options.explicit_beats or "starting" in run.blocks:
            return
        fact = f.JobStalled(
            job=run.job, generation=run.generation, phase="step", step=run.base, stalled_s=_STALL_S, deadline_s=_STALL_S
        )
        self._when_up(_STALL_S, run, lambda: self.observe(fact))

    def replayed(self) -> None:
        """The World that the journal gives is the World that we have."""
        again = World()
        for at_s, record in self.journal.read():
            engine.replay(again, record, at_s)
        if comparable(again) != comparable(self.world):
            raise CheckFailed("replay", "the journal gives another World than the live one")

"""One seed of one scenario: build the fleet, let faults happen, then let everything end, and check it. Owns that order."""

import gc
import math
from collections import Counter
from random import Random

from msgspec import Struct

from keepstep.core import decision as d
from keepstep.core import facts as f
from keepstep.core.errors import InvariantBroken
from keepstep.core.ids import IncidentId, JobId, NodeId
from keepstep.core.incident import Diagnosis, Incident, IncidentState
from keepstep.sim.checkers import CheckFailed
from keepstep.sim.clock import Timeline, stream
from keepstep.sim.drills import SimDrills
from keepstep.sim.faults import FAULTS, Faults
from keepstep.sim.fleet import FleetState
from keepstep.sim.machine import Machine
from keepstep.sim.network import Network
from keepstep.sim.scenario import Scenario, draw, draw_int, load, policy_of
from keepstep.sim.server import SimServer
from keepstep.sim.training import SimJob

_RACK = 4
_RESTART_S = (0.2, 20.0)
_CLOCK_JUMP_S = 600.0
_TRACE = 60
_FRESH_NODES = 8
"""New machines per job in the liveness phase."""


class Failure(Struct, frozen=True, kw_only=True):
    """What a run found. ``kind`` is ``checker``, ``invariant`` or ``error``."""

    kind: str
    name: str
    text: str


class Result(Struct, frozen=True, kw_only=True):
    scenario: str
    seed: int
    digest: str
    """Over every byte of the journal."""
    entries: int
    events: int
    simulated_s: float
    faults: int
    verdicts: dict[str, int]
    """Fault incidents by how they ended."""
    restarts: int
    probes: dict[str, int]
    failure: Failure | None = None
    trace: tuple[str, ...] = ()
    """The last state transitions before the end."""


class Simulation:
    """Call ``run`` once."""

    def __init__(self, name: str, seed: int, scenario: Scenario | None = None, *, trace: bool = False) -> None:
        self.name, self.seed = name, seed
        self.scenario = scenario if scenario is not None else load(name)
        self._options = stream(seed, "options")
        self._rng = stream(seed, "faults")
        self._timeline = Timeline()
        self._trace: list[str] = []
        self._keep_all = trace
        network = Network(self._timeline, stream(seed, "network"), self.scenario.network)
        self.fleet = FleetState(self._timeline, stream(seed, "fleet"), self.scenario.fleet, network)
        self.faults = Faults(self.fleet, self._rng)
        self.drills = self.fleet.drills = SimDrills(
            self.fleet, self.faults, stream(seed, "drills"), self.scenario.drills
        )
        self.policy = self.drills.limits(policy_of(self.scenario))
        self.server = SimServer(self.fleet, self.policy, self.scenario.tick_cap_s)
        network.server = self.server
        self.fleet.checkers.only_silence = self.scenario.only_silence
        self._weights = self._draw_weights()
        self.server.on_decision.append(self._watch)
        self.drills.watch(self.server)
        self.server.on_down.append(self._server_down)
        self._answered: dict[str, None] = {}

    # ---- drawing

    def _draw_weights(self) -> dict[str, float]:
        unknown = [name for name in self.scenario.faults if name not in FAULTS]
        if unknown:
            raise ValueError(f"scenario {self.name}: no fault {unknown[0]!r}; there are: {', '.join(FAULTS)}")
        drop = 1 / 3 if self.scenario.swarm else 0.0
        drawn = {name: weight for name, weight in self.scenario.faults.items() if self._options.random() >= drop}
        return drawn or dict(self.scenario.faults)

    def build(self) -> None:
        options = self.scenario.fleet
        rng, count = self._options, 0
        for index in range(draw_int(rng, options.jobs)):
            nodes, spares = draw_int(rng, options.nodes_per_job), draw_int(rng, options.spares_per_job)
            devices = draw_int(rng, options.devices)
            idle = draw_int(rng, options.idle_devices)
            job = self._job(JobId(f"job{index}"), nodes, devices, rng)
            self.fleet.jobs[job.id] = job
            self.drills.allow(job)
            for position in range(nodes + spares):
                machine = self._machine(count, devices + idle)
                count += 1
                self.fleet.join(job, machine, spare=position >= nodes)

    def _machine(self, index: int, slots: int) -> Machine:
        node = NodeId(f"n{index:05d}")
        machine = Machine.fresh(node, f"rack{index // _RACK}", slots)
        self.fleet.machines[node] = machine
        return machine

    def _job(self, job: JobId, nodes: int, devices: int, rng: Random) -> SimJob:
        options = self.scenario.fleet
        elastic = nodes > 1 and rng.random() < options.elastic_share
        least = rng.randint(1, nodes - 1) if elastic else nodes
        elasticity = f.Elasticity(min_nodes=least, max_nodes=nodes, step=1)
        spec = f.JobSpec(argv=("train.py",), nproc_per_node=devices, elasticity=elasticity, checkpoint_dir=f"/{job}")
        return SimJob(
            id=job,
            spec=spec,
            step_time_s=draw(rng, options.step_s),
            snapshot_every=draw_int(rng, options.snapshot_every),
            commit_every=draw_int(rng, options.commit_every),
            target_step=1 << 40,
            sharded=rng.random() < options.sharded_share,
        )

    # ---- running

    def run(self) -> Result:
        # Nothing here makes reference cycles in number; looking for them costs a third of a large run.
        collecting = gc.isenabled()
        gc.disable()
        try:
            return self._result(self._failure())
        finally:
            if collecting:
                gc.enable()

    def _failure(self) -> Failure | None:
        failure: Failure | None = None
        try:
            self.build()
            self.safety()
            self._liveness()
            self.fleet.checkers.ended(self.server.world)
            self.fleet.checkers.disk_kept()
            self.drills.checkers.ended()
            self.server.replayed()
            self._count_incidents()
        except CheckFailed as error:
            failure = Failure(kind="checker", name=error.checker, text=str(error))
        except InvariantBroken as error:
            failure = Failure(kind="invariant", name=str(error).split(":")[0], text=str(error))
        except Exception as error:
            failure = Failure(kind="error", name=type(error).__name__, text=repr(error))
            if self._keep_all:
                raise
        return failure

    def _result(self, failure: Failure | None) -> Result:
        world = self.server.world
        verdicts = Counter(i.state.value for i in world.incidents.values() if i.kind == "fault")
        return Result(
            scenario=self.name,
            seed=self.seed,
            digest=self.server.journal.digest,
            entries=len(self.server.journal),
            events=self._timeline.events,
            simulated_s=self._timeline.now_s,
            faults=len(self.faults.injected),
            verdicts=dict(verdicts),
            restarts=self.fleet.checkers.restarts,
            probes=dict(self.fleet.probes.hits),
            failure=failure,
            trace=tuple(self._trace if self._keep_all else self._trace[-_TRACE:]),
        )

    def safety(self) -> None:
        """Faults arrive until the time for them is over."""
        self.server.start()
        until_s = draw(self._options, self.scenario.safety_s)
        every_s = draw(self._options, self.scenario.fault_every_s)
        self._next_fault(every_s, until_s)
        self.drills.ask(until_s)
        while self._timeline.step(until_s):
            pass

    def _next_fault(self, every_s: float, until_s: float) -> None:
        def strike() -> None:
            if self._timeline.now_s >= until_s or len(self.faults.injected) >= self.scenario.max_faults:
                return
            name = self._rng.choices(list(self._weights), list(self._weights.values()))[0]
            if self.faults.inject(name):
                self._note(f"FAULT {name}")
            if self._rng.random() < 0.15:
                every = 0.5  # misfortunes come together
            else:
                every = every_s
            self._timeline.after(self._rng.expovariate(1.0 / every), strike)

        if self._weights:
            self._timeline.after(5.0 + self._rng.expovariate(1.0 / every_s), strike)

    def _liveness(self) -> None:
        """No more faults, the network whole, the server up, capacity present, people who answer: everything must end."""
        fleet, now_s = self.fleet, self._timeline.now_s
        self.fleet.network.calm = True
        fleet.launch_failure_share = fleet.verify_failure_share = 0.0
        self.server.start()
        self.server.paused = False
        self.server.crash_point = ""
        for machine in fleet.machines.values():
            machine.bmc_alive = True
            self.faults.heal(machine)
            machine.managed = True
            self.faults.open_gates(machine)
            for device in machine.devices.values():
                device.flaky_s = 0.0
            fleet.machine_on(machine)
        for job in fleet.jobs.values():
            run = job.run()
            if job.ended:
                continue  # whatever still runs of it runs for ever, and is found
            job.target_step = (run.step(now_s) if run is not None else 0) + 20
            job.disk_full = False
            if run is not None and run.stepping:
                run.base, run.since_s, run.epoch = run.step(now_s), now_s, run.epoch + 1
                fleet.plan(job, run)
        for incident_id in self.server.world.open_incidents:
            incident = self.server.world.incidents[incident_id]
            if incident.state is IncidentState.WAITING:
                self._ask_person(incident)
        self.faults.continue_stopped()
        self.faults.continue_stopped()
        self._capacity()
        self.server.tick_cap_s = max(5.0, self.scenario.tick_cap_s)
        soon_s = now_s + self.scenario.incidents_end_s
        while not self._jobs_over() and self._timeline.now_s < soon_s:
            self._timeline.step(soon_s)
        fleet.checkers.incidents_ended(self.server.world)
        until_s = now_s + self.scenario.liveness_s
        while not self._settled() and self._timeline.now_s < until_s:
            if not self._timeline.step(until_s):
                break

    def _capacity(self) -> None:
        """Launchers back where they were, and new machines beside them: parts in repair do not come back by themselves."""
        fleet = self.fleet
        for job in [job for job in fleet.jobs.values() if not job.ended]:
            for (owner, node), launcher in list(fleet.launchers.items()):
                launcher.frozen = False
                launcher.silent_to.clear()
                if owner == job.id and not launcher.alive and fleet.machines[node].on:
                    fleet.join(job, fleet.machines[node], spare=launcher.spare)
            for _ in range(min(_FRESH_NODES, job.spec.elasticity.max_nodes)):
                fleet.join(job, self._machine(len(fleet.machines), job.spec.nproc_per_node), spare=True)

    def _jobs_over(self) -> bool:
        world = self.server.world
        return self.server.up and not world.open_incidents and not world.live_jobs

    def _settled(self) -> bool:
        return (
            self._jobs_over()
            and not self.server.world.busy_resources
            and all(not job.alive() for job in self.fleet.jobs.values())
        )

    # ---- the server's fate, and people

    def _server_down(self) -> None:
        self._note("SERVER down")
        jump_s = self._rng.uniform(0.0, _CLOCK_JUMP_S) if self._rng.random() < 0.1 else 0.0

        def up() -> None:
            self.server.start(jump_s)
            self._note("SERVER up")

        self._timeline.after(self._rng.uniform(*_RESTART_S), up)

    def _watch(self, decision: d.Decision) -> None:
        for change in decision.changes:
            match change:
                case d.MoveIncident():
                    incident = self.server.world.incidents[change.incident]
                    self._note(f"{incident.id} -> {change.to.value} ({decision.reason})")
                    self._moved(incident, change.to, decision)
                case d.MoveJob():
                    self._note(f"{change.job} -> {change.to.value} ({decision.reason})")
                    self._job_moved(change, decision)
                case d.MoveResource():
                    self._note(f"{change.resource} -> {change.to.value} ({decision.reason})")
                    self._resource_moved(change)
                case d.ProveFenced():
                    self.fleet.probes.hit("self-fence deadline as proof")
                case d.Setback():
                    self.fleet.probes.hit("setback in verification")
                case d.Choose(restore=restore):
                    self._chosen(decision, restore is None)
                case d.Place(placement=placement):
                    self._placed(change.job, list(placement.nodes))
                case d.Grant():
                    self.fleet.probes.hit("waiting approved")
                case d.Diagnose(diagnosis=diagnosis):
                    self._diagnosed(diagnosis)
                case _:
                    pass

    def _note(self, text: str) -> None:
        self._trace.append(f"{self._timeline.now_s:9.2f}  {text}")
        if not self._keep_all and len(self._trace) > 4 * _TRACE:
            del self._trace[: 2 * _TRACE]

    def _moved(self, incident: Incident, to: IncidentState, decision: d.Decision) -> None:
        hit = self.fleet.probes.hit
        if to is IncidentState.NO_FAULT:
            hit("no fault after silence")
        if to is IncidentState.WAITING:
            if "breaker" in decision.reason:
                hit("breaker tripped")
            self._ask_person(incident)
        if decision.stage == "wait" and "refused" in decision.reason:
            hit("waiting denied")
        if decision.stage == "diagnose" and to is IncidentState.ESCALATED:
            if "a bug in the program" in decision.reason:
                hit("deterministic bug ended the job")
            if "the budget" in decision.reason:
                hit("budget ended the job")

    def _ask_person(self, incident: Incident) -> None:
        """Somebody reads the page: approves, refuses, or overlooks it. In the liveness phase everybody approves."""
        answer = "yes" if self.fleet.network.calm else self._rng.choice(("yes", "yes", "yes", "no", ""))
        subject = str(incident.id)

        def speak() -> None:
            known = self.server.world.incidents.get(incident.id)
            calm = self.fleet.network.calm
            if known is None or known.state is not IncidentState.WAITING or not (answer or calm):
                return
            if not self.server.up or self.server.paused:
                self._timeline.after(5.0, speak)
                return
            granted = answer == "yes" or calm
            self.server.observe(f.Approved(subject=subject, by="alice", granted=granted))

        self._timeline.after(self._rng.uniform(*self.scenario.fleet.answer_s), speak)
        if not answer:
            self._timeline.after(1000.0, speak)

    def _job_moved(self, change: d.MoveJob, decision: d.Decision) -> None:
        names = {"finished": "job finished", "stopped": "job stopped by a person"}
        if change.to.value in names:
            self.fleet.probes.hit(names[change.to.value])

    def _resource_moved(self, change: d.MoveResource) -> None:
        names = {"in_service": "probation ended in service"}
        resource = self.server.world.resources[change.resource]
        if change.to.value in names and resource.gate_passed_entry is not None:
            self.fleet.probes.hit(names[change.to.value])

    def _chosen(self, decision: d.Decision, nothing: bool) -> None:
        if nothing:
            self.fleet.probes.hit("start from nothing")
            return
        restore = next(c.restore for c in decision.changes if isinstance(c, d.Choose))
        assert restore is not None
        if restore.tier == "disk":
            self.fleet.probes.hit("disk restore")
            return
        self.fleet.probes.hit("memory restore")
        job = self.fleet.jobs[self.server.world.incidents[IncidentId(decision.subject)].job]
        run = job.runs.get(restore.generation)
        if run is not None and len({f"{node}:snap": None for node in run.nodes}) > len(restore.peers):
            self.fleet.probes.hit("memory restore with mirrored parts")

    def _placed(self, job_id: JobId, nodes: list[NodeId]) -> None:
        job = self.fleet.jobs[job_id]
        if len(nodes) < job.spec.elasticity.max_nodes:
            self.fleet.probes.hit("job shrunk")
        if any(self.fleet.launchers[job_id, node].spare for node in nodes):
            self.fleet.probes.hit("spare used")

    def _diagnosed(self, diagnosis: Diagnosis) -> None:
        hit, key, summary = self.fleet.probes.hit, diagnosis.key, diagnosis.summary
        if key.startswith("hang:device"):
            hit("stopped rank named" if "job-control stop" in summary else "stalled rank named")
        if key.startswith("launch:"):
            hit("launch failed")
        if diagnosis.resources and "DeviceFault" in summary:
            hit("device isolated after repeated failures")

    def _count_incidents(self) -> None:
        """One incident per root cause, where the scenario injects one fault at a time."""
        if not self.scenario.one_incident_per_fault:
            return
        opened = [i for i in self.server.world.incidents.values() if i.kind == "fault"]
        if len(opened) > len(self.faults.injected):
            raise CheckFailed(
                "one incident per cause", f"{len(opened)} incidents for {len(self.faults.injected)} faults"
            )


def run(name: str, seed: int, *, trace: bool = False) -> Result:
    """Run one seed of one scenario. Raises ValueError for a scenario that does not exist or names unknown faults."""
    return Simulation(name, seed, trace=trace).run()


def summary(results: list[Result]) -> dict[str, float]:
    """Over many seeds: shares and sums."""
    verdicts: Counter[str] = Counter()
    for result in results:
        verdicts.update(result.verdicts)
    total = sum(verdicts.values())
    judged = total - verdicts["no_fault"]
    return {
        "seeds": len(results),
        "faults": sum(r.faults for r in results),
        "incidents": total,
        "recovered": verdicts["recovered"],
        "escalated": verdicts["escalated"],
        "no_fault": verdicts["no_fault"],
        "recovered_share": verdicts["recovered"] / judged if judged else math.nan,
    }

"""The simulated launcher: reports, answers and the rules by which it refuses and fences itself, as the real one has them.

Owns the protocol of one session. What really happens to ranks is training.py and fleet.py; it decides nothing.
"""

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from keepstep.core.facts import (
    Answered,
    CheckpointRejected,
    CheckpointVerified,
    DiskOffer,
    Done,
    Fact,
    Failed,
    Fenced,
    GateFinished,
    Inventory,
    JobSubmitted,
    Launched,
    NodeJoined,
    NodeLeft,
    Outcome,
    RamOffer,
    RankExited,
    RankStack,
    StacksTaken,
)
from keepstep.core.ids import Session, slot_of
from keepstep.core.intents import (
    CollectStacks,
    EndJob,
    Fence,
    Inject,
    Intent,
    Launch,
    Order,
    Quarantine,
    Release,
    ResetDevice,
    RunGate,
    VerifyCheckpoint,
)
from keepstep.core.vitals import RankSample
from keepstep.sim.machine import GateRun, Machine
from keepstep.sim.training import SimJob

if TYPE_CHECKING:
    from keepstep.sim.fleet import FleetState

LEASE_S = 10.0
_LISTED = 6
"""Checkpoints that a node lists, newest first."""
_DELAY_S: dict[str, tuple[float, float]] = {
    "Launch": (0.03, 0.4),
    "Fence": (0.005, 0.1),
    "CollectStacks": (0.1, 0.4),
    "VerifyCheckpoint": (0.01, 1.0),
    "Quarantine": (0.001, 0.02),
    "Release": (0.001, 0.02),
    "ResetDevice": (1.0, 10.0),
    "RunGate": (5.0, 60.0),
    "EndJob": (0.01, 0.2),
    "Inject": (0.001, 0.1),
}


class SimLauncher:
    """One life of a launcher process."""

    def __init__(self, fleet: "FleetState", job: SimJob, machine: Machine, session: Session, spare: bool) -> None:
        self.fleet = fleet
        self.job = job
        self.machine = machine
        self.node = machine.node
        self.session = session
        self.spare = spare
        self.alive = True
        self.frozen = False
        """The process is stopped: it neither reads nor writes."""
        self.boot_id = machine.boot_id
        self.pid = fleet.next_pid()
        self.launched = self.fenced = self.self_fenced = self.running = 0
        self.heard_s = fleet.now_s
        self._spool: dict[int, Fact] = {}
        self._numbers = 0
        self.joined = False
        self._answers: dict[int, Outcome] = {}
        self._in_work: dict[int, None] = {}
        self._stores = 0
        self.store = ""
        self.last_facts: deque[Fact] = deque(maxlen=4)
        """What it said last about its ranks, for the fault that says it again."""
        self.silent_to: dict[str, None] = {}
        """Kinds of orders that it never answers (a fault)."""

    # ---- reports

    def report(self, fact: Fact) -> None:
        if not self.alive:
            return
        self._numbers += 1
        self._spool[self._numbers] = fact
        if isinstance(fact, RankExited | Answered):
            self.last_facts.append(fact)
        self.fleet.network.report(self.session, self._numbers, fact)

    def connected(self, acked: int) -> None:
        """A new connection: what was not acknowledged goes out again, then who we are and what runs here.

        Of the greetings among it the first stays: what was reported after it may count on it.
        """
        self.acknowledged(acked)
        for number in [n for n, fact in self._spool.items() if isinstance(fact, NodeJoined)][1:]:
            del self._spool[number]
        for number, fact in self._spool.items():
            self.fleet.network.report(self.session, number, fact)
        if not self.joined:
            self.joined = True
            self.report(JobSubmitted(job=self.job.id, spec=self.job.spec, by=self.node))
        running = self.running if self.fleet.alive_here(self) else 0
        self.report(
            NodeJoined(
                job=self.job.id,
                node=self.node,
                session=self.session,
                boot_id=self.boot_id,
                devices=self.machine.facts_of_devices(),
                address=self.node,
                rack=self.machine.rack,
                pid=self.pid,
                pid_start=self.pid,
                running_generation=running,
                store=self.offer_store(),
                snapshots=f"{self.node}:snap",
                inventory=self.inventory(),
                spare=self.spare,
            )
        )

    def acknowledged(self, number: int) -> None:
        self.heard_s = self.fleet.now_s
        for known in [n for n in self._spool if n <= number]:
            del self._spool[known]

    def offer_store(self) -> str:
        if not self.store or self.store in self.fleet.stores_used:
            self._stores += 1
            self.store = f"{self.session}:{self._stores}"
        return self.store

    def inventory(self) -> Inventory:
        ram = tuple(
            RamOffer(step=s.step, generation=s.generation, world_size=s.world_size, parts=s.parts, held=s.held)
            for s in self.fleet.memory_of(self)
        )
        disk = tuple(
            DiskOffer(step=c.step, generation=c.generation, world_size=c.world_size, key=c.key)
            for c in islice(reversed(self.job.disk.values()), _LISTED)
            if c.damage not in ("missing", "half")
        )
        return Inventory(ram=ram, disk=disk)

    # ---- orders

    def take(self, order: Order) -> None:
        if not self.alive or self.frozen:
            return
        self.heard_s = self.fleet.now_s
        earlier = self._answers.get(order.number)
        if earlier is not None:
            self.fleet.probes.hit("repeated answer to an old order")
            self.report(Answered(intent=order.number, outcome=earlier))
            return
        if order.number in self._in_work:
            return
        self._in_work[order.number] = None
        kind = type(order.intent).__name__
        if kind in self.silent_to:
            self.silent_to.pop(kind)
            return
        delay_s = self.fleet.rng.uniform(*_DELAY_S[kind]) * self.fleet.slowness(kind)
        self.fleet.timeline.after(delay_s, lambda: self._carry_out(order))

    def _carry_out(self, order: Order) -> None:
        self._in_work.pop(order.number, None)
        if not self.alive:
            return
        if self.frozen:
            self.fleet.timeline.after(1.0, lambda: self._carry_out(order))
            return
        outcome = self._refusal(order.intent) or self._act(order.intent, order.number)
        self._answers[order.number] = outcome
        self.report(Answered(intent=order.number, outcome=outcome))
        if isinstance(order.intent, EndJob):
            self.leave("")

    def _refusal(self, intent: Intent) -> Failed | None:
        """As launcher.orders.Generations: what has been superseded is refused."""
        if getattr(intent, "session", self.session) != self.session:
            return Failed(reason=f"the order is for another session than {self.session}")
        match intent:
            case Launch(generation=generation) if generation <= self.fenced or generation <= self.launched:
                self.fleet.probes.hit("late launch refused by the node")
                return Failed(reason=f"superseded: generation {max(self.launched, self.fenced)} is known here")
            case Fence(generation=generation) if generation < self.launched:
                return Failed(reason=f"superseded: generation {self.launched} was launched here later")
            case CollectStacks(generation=generation) | Inject(generation=generation) if generation != self.running:
                return Failed(reason=f"superseded: generation {generation} does not run here")
            case _:
                return None

    def _act(self, intent: Intent, number: int) -> Outcome:
        match intent:
            case Launch():
                return self._launch(intent, number)
            case Fence():
                return self._fence(intent)
            case CollectStacks():
                return StacksTaken(stacks=self._stacks())
            case VerifyCheckpoint():
                return self._verify(intent)
            case Quarantine():
                self.machine.held[intent.resource] = intent.reason
            case Release():
                self.machine.held.pop(intent.resource, None)
            case ResetDevice():
                if any(r.slot == slot_of(intent.resource) for r in self.fleet.alive_here(self)):
                    return Failed(reason=f"{intent.resource} is in use")
            case RunGate():
                self._gate(intent, number)
            case Inject():
                return self.fleet.drills.carry_out(self, intent)
            case EndJob():
                self.fenced = max(self.fenced, self.launched)
                self.fleet.kill(self, "the end of the job")
                self.running = 0
            case _:
                return Failed(reason=f"a launcher does not carry out {type(intent).__name__}")
        return Done()

    def _launch(self, launch: Launch, number: int) -> Outcome:
        held = self.machine.refusal(tuple(place.slot for place in launch.ranks))
        if held is not None:
            self.fleet.probes.hit("launch on a held device refused by the node")
            return Failed(reason=f"{held} is quarantined here")
        if self.fleet.alive_here(self):
            return Failed(reason=f"generation {self.running} still runs here; fence it first")
        self.launched = launch.generation
        if self.fleet.rng.random() < self.fleet.launch_failure_share:
            return Failed(reason="the zygote could not fork: out of memory")
        self.running = launch.generation
        self.fleet.start(self, launch, number)
        warm = self.fleet.rng.random() < 0.9
        return Launched(pids={place.rank: self.pid + place.rank + 1 for place in launch.ranks}, warm=warm)

    def _fence(self, fence: Fence) -> Outcome:
        self.fenced = max(self.fenced, fence.generation)
        killed = self.fleet.kill(self, f"fence {fence.generation}")
        proof = "killed" if killed else "nothing_ran"
        if not killed and 0 < fence.generation <= self.self_fenced:
            proof = "self_fenced"
        self.running = 0
        self.store = ""  # one that belonged to what was fenced is never offered again
        return Fenced(
            generation=fence.generation,
            proof="killed" if proof == "killed" else "self_fenced" if proof == "self_fenced" else "nothing_ran",
            killed=killed,
            inventory=self.inventory(),
            store=self.offer_store(),
        )

    def _stacks(self) -> tuple[RankStack, ...]:
        return tuple(
            RankStack(
                rank=r.rank,
                frames=("all_reduce",) if not (r.hung or r.stopped) else ("forward",),
                process_state="T" if r.stopped else "S",
                waiting=not (r.hung or r.stopped),
            )
            for r in self.fleet.alive_here(self)
        )

    def _verify(self, intent: VerifyCheckpoint) -> Outcome:
        restore = intent.restore
        if self.fleet.rng.random() < self.fleet.verify_failure_share:
            self.fleet.unreadable[self.job.id, restore.key] = None
            return Failed(reason="the reader timed out")
        why = self.fleet.why_unreadable(self, restore, intent.held)
        if why:
            self.fleet.probes.hit("invalid newest skipped")
            return CheckpointRejected(key=restore.key, reason=why)
        return CheckpointVerified(key=restore.key)

    def _gate(self, intent: RunGate, number: int) -> None:
        slot = slot_of(intent.resource)
        device = self.machine.devices[slot] if slot is not None else None
        truth = device.gate if device is not None else self.machine.gate
        serial = device.serial if device is not None else str(self.node)
        firmware = device.firmware if device is not None else ""
        passed = None if truth == "tool" else truth == "pass"
        if truth == "tool" and self.fleet.rng.random() < 0.5:
            # The tool works again next time.
            if device is not None:
                device.gate = "pass"
            else:
                self.machine.gate = "pass"
        self.machine.gate_runs.append(
            GateRun(intent.resource, serial, self.boot_id, firmware, passed is True, self.fleet.now_s)
        )
        self.report(
            GateFinished(
                resource=intent.resource,
                serial=serial,
                boot_id=self.boot_id,
                firmware=firmware,
                passed=passed,
                run=number,
            )
        )

    # ---- by itself

    def superseded(self, generation: int) -> None:
        if self.alive and self.running and self.running <= generation:
            self.fleet.probes.hit("superseded launcher fenced itself")
            self._fence_itself()

    def _fence_itself(self) -> None:
        self.fenced = self.self_fenced = max(self.fenced, self.running)
        self.fleet.kill(self, "its own fence")
        self.running = 0

    def beat(self) -> None:
        """Once per interval: the vitals go out; without a server and without progress the ranks are ended."""
        if self.frozen:
            return
        if self.fleet.network.connected(self.session):
            self.heard_s = self.fleet.now_s
            self.fleet.network.server.beat(self, self.running, self.samples())
        elif self.running and self.fleet.now_s - self.heard_s >= LEASE_S:
            self.consider_fencing_itself()

    def consider_fencing_itself(self) -> None:
        """The rule of design §5: nothing heard for the lease, and nothing moves for the lease."""
        run = self.job.runs.get(self.running)
        if run is None or not self.fleet.alive_here(self) or run.still_s(self.fleet.now_s) < LEASE_S:
            return
        self.fleet.checkers.self_fenced(self, run)
        self.fleet.probes.hit("a launcher fenced itself")
        self._fence_itself()

    def samples(self) -> tuple[RankSample, ...]:
        run = self.job.runs.get(self.running)
        if run is None:
            return ()
        now_s = self.fleet.now_s
        step, still_s = run.step(now_s), run.still_s(now_s)
        loss = self.job.loss(run, step)
        started = step > 0 and "starting" not in run.blocks
        return tuple(
            RankSample(
                rank=r.rank,
                phase=run.phase,
                step=step if started else -1,
                idle_s=still_s,
                phase_s=still_s,
                step_time_s=run.step_time_s if started else 0.0,
                loss=loss if started else float("nan"),
                state="T" if r.stopped else "S",
                cpu_s=0.0,
            )
            for r in self.fleet.alive_here(self)
        )

    def leave(self, reason: str) -> None:
        """Goes on purpose, after its ranks have ended; the last words still travel."""
        if reason:
            self.fleet.kill(self, reason)
            self.running = 0
            self.report(NodeLeft(job=self.job.id, node=self.node, session=self.session, reason=reason))
        self.alive = False
        self.fleet.timeline.after(5.0, lambda: self.fleet.network.detach(self.session, noticed=True))

"""Checkers: compare what is done with what is true. Owns the rules; uses ground truth and the record of orders only.

None of them asks the engine's own counters or states whether the engine was right: that would be asking the defendant.
Numbers are those of docs/explanation/invariants.md.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from keepstep.core import decision as d
from keepstep.core import facts as f
from keepstep.core.catalog import CATALOG
from keepstep.core.ids import JobId, NodeId, ResourceId, device_resource, node_of, node_resource
from keepstep.core.intents import Intent, Launch, Order, PowerOff, Restore
from keepstep.core.policy import Policy
from keepstep.core.world import World
from keepstep.sim.machine import Snapshot
from keepstep.sim.training import Run, SimJob, SimRank

if TYPE_CHECKING:
    from keepstep.sim.fleet import FleetState
    from keepstep.sim.launcher import SimLauncher


_HURT_S = 60.0


class CheckFailed(Exception):
    """A checker found a violation. ``checker`` is its name."""

    def __init__(self, checker: str, text: str) -> None:
        self.checker = checker
        super().__init__(f"{checker}: {text}")


class Condemned(msgspec.Struct):
    """A resource that must not take work: since when (server order number), and what would redeem it."""

    since_order: int
    since_s: float
    why: str
    needs_gate: bool = True


class Checkers:
    def __init__(self, fleet: "FleetState") -> None:
        self._fleet = fleet
        self._condemned: dict[ResourceId, Condemned] = {}
        self._held_by_person: dict[ResourceId, dict[str, int]] = {}
        self._device_failures: dict[ResourceId, list[float]] = {}
        self._isolations: list[float] = []
        self._launches: dict[tuple[JobId, NodeId, int], Order] = {}
        self._approved: dict[str, bool] = {}
        self._next_order = 1
        self._disk: dict[tuple[JobId, str], None] = {}
        self.only_silence = False
        self.restarts = 0

    def _fail(self, checker: str, text: str) -> None:
        raise CheckFailed(checker, f"at {self._fleet.now_s:.2f} s: {text}")

    # ---- 1: one live generation, one live copy

    def rank_starts(self, job: SimJob, run: Run, rank: SimRank, launch: Launch, number: int) -> None:
        for other in job.alive():
            if other.generation != rank.generation:
                self._fail(
                    "1 one live generation",
                    f"rank {rank.rank} of generation {rank.generation} starts on {rank.node} while rank {other.rank} "
                    f"of generation {other.generation} lives on {other.node}",
                )
            if other.rank == rank.rank:
                self._fail("1 one live copy", f"rank {rank.rank} lives on {other.node} and starts on {rank.node}")
        if run.restore != launch.restore or run.world_size != launch.world_size or run.store != launch.store:
            self._fail("1 one launch", f"generation {run.generation} was launched with different contents")
        user = self._fleet.stores_used.setdefault(launch.store, (job.id, run.generation))
        if user != (job.id, run.generation):
            self._fail("1 one store", f"store {launch.store} of generation {user[1]} is used again by {run.generation}")
        self._device_fit(rank, number)

    # ---- 2 and 11: devices

    def _device_fit(self, rank: SimRank, number: int) -> None:
        for resource in (node_resource(rank.node), device_resource(rank.node, rank.slot)):
            for source, order in self._held_by_person.get(resource, {}).items():
                if order <= number:
                    self._fail(
                        "7 a person's hold", f"{resource} is held by {source} and order {number} runs work on it"
                    )
            condemned = self._condemned.get(resource)
            if condemned is None or condemned.since_order > number:
                continue
            if not condemned.needs_gate or not self._redeemed(resource, condemned):
                self._fail("2 isolate first", f"order {number} runs work on {resource}: {condemned.why}")
            del self._condemned[resource]

    def _redeemed(self, resource: ResourceId, condemned: Condemned) -> bool:
        """A gate was really run and really passed since then."""
        runs = self._fleet.machines[node_of(resource)].gate_runs
        return any(run.passed and run.resource == resource and run.at_s >= condemned.since_s for run in runs)

    def _condemn(self, resource: ResourceId, why: str) -> None:
        self._condemned[resource] = Condemned(self._next_order, self._fleet.now_s, why)

    def folded(self, fact: f.Fact, policy: Policy, now_s: float) -> None:
        """A fact has reached the journal: from here on the engine knows."""
        match fact:
            case f.SignalSeen(resource=resource, signal=signal, source=""):
                # Of an agent the rules of combination decide: what ``fault_checkers`` looks at.
                machine = self._fleet.machines[node_of(resource)]
                row = CATALOG.row(signal)
                stale = bool(fact.boot_id) and fact.boot_id != machine.boot_id
                if row is not None and row.isolate and not stale:
                    self._condemn(resource, f"signal {signal} was seen")
            case f.HoldRequested(resource=resource, source=source):
                self._held_by_person.setdefault(resource, {})[source] = self._next_order
            case f.HoldLifted(resource=resource, source=source):
                self._held_by_person.get(resource, {}).pop(source, None)
            case f.Approved(subject=subject, granted=granted):
                self._approved[subject] = granted
            case f.RankExited(error=f.ErrorRecord(kind="DeviceFault")):
                self._count_device(fact, policy, now_s)
            case _:
                pass

    def _count_device(self, fact: f.RankExited, policy: Policy, now_s: float) -> None:
        job = self._fleet.jobs[fact.job]
        run = job.runs.get(fact.generation)
        if run is None or run is not job.run() or len([r for r in run.ranks.values() if not r.alive]) > 1:
            return  # a second death in the same generation: whether this one counts is a matter of judgement
        resource = device_resource(fact.node, fact.slot)
        failures = self._device_failures.setdefault(resource, [])
        failures.append(now_s)
        recent = [s for s in failures if now_s - s < policy.device.window_s]
        if len(recent) > policy.device.max_failures:
            self._condemn(resource, f"{len(recent)} failures of its own")

    # ---- decisions, as they leave

    def decided(self, decision: d.Decision, orders: list[Order], world: World, policy: Policy) -> None:
        for change in decision.changes:
            match change:
                case d.MoveResource(to=to) if to.value == "quarantined":
                    self._isolated(decision, world, policy)
                case d.Assess() if self._recent_isolations(policy) >= breaker_limit(world, policy):
                    # No hold without a person: the breaker is open, by our own count.
                    self._condemned.pop(ResourceId(decision.subject), None)
                case d.JoinFault(fault=fault) if world.faults[fault].node is None:
                    # A fault of what it shares with others: holding the members one by one cures nothing.
                    self._condemned.pop(ResourceId(decision.subject), None)
                case d.DropHold(source=source) if not source.startswith("keepstep:"):
                    self._fail("7 a person's hold", f"the engine lifts the hold of {source}")
                case _:
                    pass
        for order in orders:
            self._next_order = max(self._next_order, order.number + 1)
            self._order(order, decision, world, policy)

    def _isolated(self, decision: d.Decision, world: World, policy: Policy) -> None:
        """6: the breaker, recounted."""
        self._isolations.append(self._fleet.network.server.now_s)
        recent, limit = self._recent_isolations(policy), breaker_limit(world, policy)
        if recent > limit and not self._approved.get(decision.subject, False):
            self._fail("6 breaker", f"{recent} resources are isolated within {policy.breaker.window_s:g} s")

    def _recent_isolations(self, policy: Policy) -> int:
        """By the server's clock, which may have jumped."""
        now_s = self._fleet.network.server.now_s
        return sum(1 for s in self._isolations if now_s - s < policy.breaker.window_s)

    def _order(self, order: Order, decision: d.Decision, world: World, policy: Policy) -> None:
        match order.intent:
            case Launch():
                self._launch(order, order.intent, world)
            case PowerOff() if not policy.approvals.power_off and not self._approved.get(decision.subject, False):
                self._fail("6 approval", f"{order.intent.node} is powered off and nobody approved {decision.subject}")
            case _:
                pass

    def _launch(self, order: Order, launch: Launch, world: World) -> None:
        known = self._launches.setdefault((launch.job, launch.node, launch.generation), order)
        if known.number != order.number:
            self._fail("10 no second launch", f"{launch.node} is told twice to launch generation {launch.generation}")
        if launch.group_rank == 0:
            self.restarts += launch.generation > 1
            self._newest_valid(launch, world)

    # ---- 3: state

    def _newest_valid(self, launch: Launch, world: World) -> None:
        job = self._fleet.jobs[launch.job]
        heard = [
            launcher
            for (owner, node), launcher in self._fleet.launchers.items()
            if owner == job.id and self._engine_hears(launcher, world)
        ]
        if not heard:
            return
        best = max([self._best_memory(job, heard), self._best_disk(job)], key=lambda found: found[0])
        restored = launch.restore.step if launch.restore is not None else -1
        if restored < best[0]:
            self._fail(
                "3 newest valid state",
                f"generation {launch.generation} of {job.id} starts from step {restored}, and {best[1]} is sound",
            )
        if launch.restore is not None:
            self._of_this_job(job, launch.restore)
            self._complete(job, launch.restore, heard)

    def _engine_hears(self, launcher: "SimLauncher", world: World) -> bool:
        known = world.jobs[launcher.job.id].launchers.get(launcher.node)
        return launcher.alive and known is not None and known.session == launcher.session and known.reachable

    def _readable(self, job: SimJob, key: str) -> bool:
        return (job.id, key) not in self._fleet.unreadable and key != job.bad_loss_key

    def _best_memory(self, job: SimJob, heard: "list[SimLauncher]") -> tuple[int, str]:
        groups: dict[tuple[int, int, int], list[Snapshot]] = {}
        for launcher in heard:
            for s in launcher.machine.memory.get(job.id, []):
                groups.setdefault((s.step, s.generation, s.world_size), []).append(s)
        best = (-1, "nothing")
        for (step, generation, size), snapshots in groups.items():
            writer = job.runs.get(generation)
            if (writer is not None and writer.poisoned) or any(s.rotten for s in snapshots):
                continue
            if not self._readable(job, f"ram:g{generation}:s{step}"):
                continue
            held = {digest: None for s in snapshots for digest in s.held}
            parts = {rank: digests for s in snapshots for rank, digests in s.parts.items()}
            if all(rank in parts and all(x in held for x in parts[rank]) for rank in range(size)):
                best = max(best, (step, f"the memory snapshot of step {step}, generation {generation}"))
        return best

    def _best_disk(self, job: SimJob) -> tuple[int, str]:
        best = (-1, "nothing")
        for c in job.disk.values():
            writer = job.runs.get(c.generation)
            if writer is not None and writer.poisoned:
                continue
            if not c.damage and self._readable(job, c.key) and (job.id, c.key) in self._disk:
                best = max(best, (c.step, f"checkpoint {c.key}"))
        return best

    def _of_this_job(self, job: SimJob, restore: Restore) -> None:
        if restore.tier == "disk" and restore.key not in job.disk:
            self._fail("3 state of this job", f"{restore.key} is none of {job.id}'s")

    def _complete(self, job: SimJob, restore: Restore, heard: "list[SimLauncher]") -> None:
        """A state in memory has every rank's part, unless something took it from under the engine a moment ago."""
        if restore.tier != "ram" or self._fleet.now_s - self._fleet.memory_hurt_s < _HURT_S:
            return
        parts: dict[int, None] = {}
        for launcher in heard:
            for s in launcher.machine.memory.get(job.id, []):
                if (s.step, s.generation) == (restore.step, restore.generation):
                    parts.update(dict.fromkeys(s.parts))
        if len(parts) < restore.world_size:
            self._fail("3 complete state", f"{restore.key} has {len(parts)} of {restore.world_size} ranks")

    def committed(self, fact: f.CheckpointCommitted) -> None:
        """The server has been told of it."""
        self._disk[fact.job, fact.key] = None

    def disk_kept(self) -> None:
        """4: what was committed is still there, unless a fault took it."""
        for job_id, key in self._disk:
            if key not in self._fleet.jobs[job_id].disk:
                self._fail("4 checkpoints stay", f"{key} of {job_id} is gone")

    # ---- 5 and 10: healthy jobs

    def killed(self, job: SimJob, run: Run, why: str) -> None:
        """Live ranks are about to be ended by an order."""
        if why == "the end of the job" or job.stopped_by_person or why.startswith("left"):
            return
        if self.only_silence and run.generation > 0:
            self._fail(
                "5 unknown never kills", f"generation {run.generation} of {job.id} is ended ({why}); only silence was"
            )
        if not run.faulty and "starting" not in run.blocks:
            self._fail("5 unknown never kills", f"healthy generation {run.generation} of {job.id} is ended ({why})")

    def self_fenced(self, launcher: "SimLauncher", run: Run) -> None:
        if not run.faulty and run.phase == "step":
            self._fail("10 a dead server stops no step", f"{launcher.node} ends healthy ranks of {run.job}")

    # ---- 8: stale words

    def stale(self, before: Any, after: Any, fact: f.Fact) -> None:
        if before != after:
            self._fail("8 stale words", f"a stale {type(fact).__name__} changed the World")

    # ---- 9: everything ends

    def incidents_ended(self, world: World) -> None:
        """A while after the last fault."""
        for incident in world.incidents.values():
            if incident.open or incident.closed_s is None:
                self._fail("9 everything ends", f"{incident.id} is still {incident.state.value}: {incident.waits_for}")
        for job in world.jobs.values():
            if job.finished_s is None:
                self._fail("9 everything ends", f"job {job.id} is still {job.state.value}")

    def ended(self, world: World) -> None:
        """After the liveness phase."""
        resting = ("in_service", "repair", "lost", "retired")
        for resource in world.resources.values():
            if resource.state.value not in resting:
                self._fail("9 everything ends", f"{resource.id} is still {resource.state.value}")
        for job_truth in self._fleet.jobs.values():
            for rank in job_truth.alive():
                self._fail(
                    "9 everything ends", f"rank {rank.rank} of the ended job {job_truth.id} lives on {rank.node}"
                )
        for resource_id, sources in self._held_by_person.items():
            kept = world.resources[resource_id].holds
            lost = [source for source in sources if source not in kept]
            if lost:
                self._fail("7 a person's hold", f"the hold of {lost[0]} on {resource_id} is gone")
            self._fleet.probes.hit("person's hold kept")


def breaker_limit(world: World, policy: Policy) -> int:
    return max(policy.breaker.absolute, int(policy.breaker.fraction * len(world.resources)))


def comparable(world: World) -> Any:
    """A World as plain data, without the counters that count everything that was recorded."""
    plain = msgspec.to_builtins(world, str_keys=False, enc_hook=list)
    # ``order_queue`` is an index whose spent heads are dropped when the clock is read, not when the journal is.
    for name in ("seq", "stale", "order_queue"):
        plain.pop(name)
    return plain


def is_for_launcher(intent: Intent) -> bool:
    """Whether a launcher carries it out, as opposed to the server's own machine or a person's pager."""
    kind = type(intent).__name__
    return (
        kind not in ("AskWitness", "Notify", "OpenRepair", "PowerOff")
        and getattr(intent, "via", "launcher") == "launcher"
    )

"""Faults: what can be done to the fleet, by name. Owns the doing and its ground truth; scenarios choose from here.

A fault that hits a job marks its running generation as faulty: from then on a restart is justified. Faults of silence and
of probes mark nothing, so that any restart that follows them is a violation.
"""

from collections.abc import Callable

from keepstep.core import facts as f
from keepstep.core.ids import ResourceId, device_resource, node_resource
from keepstep.sim.launcher import SimLauncher
from keepstep.sim.machine import Machine
from keepstep.sim.training import Run
from keepstep.sim.words import Words


class Faults(Words):
    """``inject`` returns whether there was anything to hit."""

    def inject(self, name: str) -> bool:
        for incident in self._world.open_incidents:
            self._fleet.probes.hit(f"fault while {self._world.incidents[incident].state.value}")
        done = FAULTS[name](self)
        if done:
            self.injected.append((self._fleet.now_s, name))
        return done

    # ---- ranks

    def rank_killed(self) -> bool:
        found = self._rank()
        if found is not None:
            self._fleet.rank_ended(found[2], signal=9)
        return found is not None

    def rank_exception(self) -> bool:
        found = self._rank()
        if found is not None:
            signature = f"oops:{self._rng.randrange(1 << 30)}"
            self._fleet.rank_ended(
                found[2], error=f.ErrorRecord(kind="RuntimeError", message="oops", signature=signature)
            )
        return found is not None

    def rank_victim(self) -> bool:
        """A rank that only says that its peer went away, and the peer lives."""
        found = self._rank()
        if found is not None:
            error = f.ErrorRecord(kind="RuntimeError", message="connection reset", signature="victim", victim=True)
            self._fleet.rank_ended(found[2], error=error)
        return found is not None

    def rank_stopped(self) -> bool:
        found = self._rank()
        if found is None or not found[2].ready:
            return False
        _, run, rank = found
        if len([r for r in run.ranks.values() if r.alive and not r.stopped]) < 2:
            return False  # all of a job stopped is a suspended machine, not a fault
        rank.stopped, run.faulty = True, True
        self._fleet.block(run, f"stopped {rank.rank}")
        return True

    def rank_hung(self) -> bool:
        found = self._rank()
        if found is None or not found[2].ready:
            return False
        _, run, rank = found
        rank.hung, run.faulty = True, True
        self._fleet.block(run, f"hung {rank.rank}")
        return True

    def program_bug(self) -> bool:
        """From now on the program raises the same error at the same step."""
        found = self._rank()
        if found is None or found[0].bug_step is not None or not found[1].stepping:
            return False
        job, run, _ = found
        job.bug_step = run.step(self._fleet.now_s) + self._rng.randint(2, 30)
        run.epoch += 1
        self._fleet.plan(job, self._rebased(run))
        return True

    def _rebased(self, run: Run) -> Run:
        now_s = self._fleet.now_s
        run.base, run.since_s = run.step(now_s), now_s
        return run

    def long_phase(self) -> bool:
        """An evaluation: nobody steps for a while, and nothing is wrong."""
        found = self._rank()
        if found is None or not found[1].stepping:
            return False
        run = found[1]
        self._fleet.block(run, "phase")
        run.phase = "evaluate"
        self._later(self._rng.uniform(1.0, 9.0), lambda: self._fleet.unblock(run, "phase"))
        return True

    # ---- launchers, machines, links

    def launcher_killed(self) -> bool:
        launcher = self._launcher()
        if launcher is None:
            return False
        self._mark(launcher)
        self._fleet.launcher_killed(launcher, noticed=self._rng.random() < 0.8)
        if not launcher.machine.on:
            return True
        if self._rng.random() < 0.6:
            self._fleet.join(launcher.job, launcher.machine, spare=launcher.spare, after_s=self._rng.uniform(0.5, 60.0))
        return True

    def launcher_frozen(self) -> bool:
        """The launcher process is stopped; its ranks train on.

        Only where a witness can see it: the self-fence deadline is no proof for a launcher that is stopped, and one that is
        stopped *and* out of everybody's sight cannot be told from one that is cut off (docs/explanation/simulator.md).
        """
        launcher = self._launcher()
        if launcher is None or launcher.frozen or not launcher.machine.managed:
            return False
        launcher.frozen = True
        self._fleet.network.server.watch(launcher)

        def thaw() -> None:
            launcher.frozen = False
            self._fleet.network.break_link(launcher.session, noticed=True)

        self._later(self._rng.uniform(1.0, 60.0), thaw)
        return True

    def _mark(self, launcher: SimLauncher) -> None:
        run = launcher.job.run()
        if run is not None and launcher.node in run.nodes:
            run.faulty = True

    def node_off(self) -> bool:
        return self._power(reboot=False)

    def node_reboot(self) -> bool:
        return self._power(reboot=True)

    def _power(self, *, reboot: bool) -> bool:
        machine = self._machine()
        if not machine.on:
            return False
        for (_, node), launcher in self._fleet.launchers.items():
            if node == machine.node:
                self._mark(launcher)
        self._fleet.machine_off(machine, reboot=reboot)
        if not reboot and self._rng.random() < 0.6:
            self._later(self._return_s(), lambda: self._fleet.machine_on(machine))
        return True

    def link_broken(self) -> bool:
        """One connection breaks and comes back."""
        launcher = self._launcher()
        if launcher is not None:
            self._fleet.network.break_link(launcher.session, noticed=True)
        return launcher is not None

    def control_partition(self) -> bool:
        """The control network is cut for some nodes; training goes on."""
        return self._partition(training=False)

    def full_partition(self) -> bool:
        """Nothing reaches some nodes: neither the server nor their peers nor the host witness."""
        return self._partition(training=True)

    def _partition(self, *, training: bool) -> bool:
        machines = [m for m in self._fleet.machines.values() if m.on and m.controlled]
        if not machines:
            return False
        first = self._rng.choice(machines)
        cut = [m for m in machines if m.rack == first.rack] if self._rng.random() < 0.3 else [first]
        cut = [m for m in cut if not (training and self._has_frozen(m))]
        for_s = self._rng.uniform(1.0, 90.0) if self._rng.random() < 0.8 else self._return_s()
        for machine in cut:
            self._cut(machine, training)
            self._later(for_s, lambda machine=machine: self.heal(machine))  # type: ignore[misc]
        return bool(cut)

    def _has_frozen(self, machine: Machine) -> bool:
        return any(x.frozen and x.alive for (_, node), x in self._fleet.launchers.items() if node == machine.node)

    def _cut(self, machine: Machine, training: bool) -> None:
        machine.controlled = False
        for (_, node), launcher in self._fleet.launchers.items():
            if node == machine.node and launcher.alive:
                self._fleet.network.server.watch(launcher)
                self._fleet.watch_lease(launcher)
        if not training:
            return
        machine.managed = False
        for job in self._fleet.jobs.values():
            run = job.run()
            if run is not None and len(run.nodes) > 1 and run.alive_on(machine.node):
                run.faulty = True
                self._fleet.block(run, f"partition {machine.node}")

    def heal(self, machine: Machine) -> None:
        if machine.controlled and machine.managed:
            return
        machine.controlled = machine.managed = True
        for (_, node), launcher in self._fleet.launchers.items():
            if node == machine.node:
                self._fleet.network.break_link(launcher.session, noticed=False)
        for job in self._fleet.jobs.values():
            for run in job.runs.values():
                if f"partition {machine.node}" in run.blocks:
                    self._fleet.unblock(run, f"partition {machine.node}")

    def bmc_dead(self) -> bool:
        machine = self._machine()
        machine.bmc_alive = False
        self._later(self._return_s(), lambda: setattr(machine, "bmc_alive", True))
        return True

    def host_unseen(self) -> bool:
        """The management network is down: no witness can look."""
        machine = self._machine()
        if not machine.controlled or self._has_frozen(machine):
            return False
        machine.managed = False
        self._later(self._return_s(), lambda: setattr(machine, "managed", machine.controlled))
        return True

    # ---- devices

    def device_flaky(self) -> bool:
        """A device that fails again and again; the gate finds it, mostly."""
        found = self._rank()
        if found is None:
            return False
        job, run, rank = found
        device = self._fleet.machines[rank.node].devices[rank.slot]
        device.flaky_s, device.gate = self._rng.uniform(5.0, 40.0), self._rng.choice(("fail", "fail", "tool", "pass"))
        if run.stepping:
            run.epoch += 1
            self._fleet.plan(job, self._rebased(run))
        self._later(1200.0, lambda: setattr(device, "flaky_s", 0.0))
        return True

    def device_signal(self) -> bool:
        names = ("device.lost", "device.memory.uncorrectable", "device.firmware", "device.thermal")
        return self._signal(self._rng.choice(names), node=False)

    def harmless_signal(self) -> bool:
        return self._signal(
            self._rng.choice(("device.memory.contained", "device.engine", "no.such.signal")), node=False
        )

    def node_signal(self) -> bool:
        return self._signal(self._rng.choice(("node.hardware", "node.kernel", "nic.down")), node=True)

    def _signal(self, name: str, *, node: bool) -> bool:
        machine = self._machine()
        launcher = next((x for (_, n), x in self._fleet.launchers.items() if n == machine.node and x.alive), None)
        if launcher is None or not machine.on or not launcher.joined:
            return False
        device = self._rng.choice(list(machine.devices.values()))
        truth = self._rng.choice(("fail", "pass", "pass", "tool"))
        if node:
            machine.gate = truth  # type: ignore[assignment]
        else:
            device.gate = truth  # type: ignore[assignment]
        resource = node_resource(machine.node) if node else device_resource(machine.node, device.slot)
        for job in self._fleet.jobs.values():
            run = job.run()
            if run is not None and run.alive_on(machine.node):
                run.faulty = True
        launcher.report(f.SignalSeen(resource=resource, signal=name, boot_id=machine.boot_id))
        return True

    def signal_storm(self) -> bool:
        """A common cause: many devices at once. The breaker must stop the engine from isolating them all."""
        return sum(self.device_signal() for _ in range(6)) > 0

    def part_replaced(self) -> bool:
        """Another card in the slot: what the gate said of the old one counts no more."""
        machine = self._machine()
        device = self._rng.choice(list(machine.devices.values()))
        if not machine.on:
            return False
        device.serial += "x"
        device.gate, device.flaky_s = "pass", 0.0
        return self._power(reboot=True)

    def gate_closed(self) -> bool:
        """Somebody at the node itself closes its gate: launches are refused there, and the server is not told."""
        machine = self._machine()
        resource = device_resource(machine.node, self._rng.choice(list(machine.devices)))
        if resource in machine.held:
            return False
        machine.held[resource] = "closed by hand"
        self._later(self._return_s(), lambda: self._open_gate(machine, resource))
        return True

    def open_gates(self, machine: Machine) -> None:
        for resource in list(machine.held):
            self._open_gate(machine, resource)

    def _open_gate(self, machine: Machine, resource: ResourceId) -> None:
        if machine.held.get(resource) == "closed by hand":
            del machine.held[resource]

    # ---- state

    def memory_lost(self) -> bool:
        """Snapshots in the memory of one node are gone, or their bytes rot."""
        found = self._rank()
        if found is None:
            return False
        job, run, rank = found
        self._fleet.memory_hurt_s = self._fleet.now_s
        if self._rng.random() < 0.5:
            run.memory_from[rank.node] = run.step(self._fleet.now_s)
            self._fleet.machines[rank.node].memory.pop(job.id, None)
        else:
            for snapshot in self._fleet.machines[rank.node].memory.get(job.id, []):
                snapshot.rotten = True
        return True

    def checkpoint_damaged(self) -> bool:
        job = self._job()
        sound = [c for c in job.disk.values() if not c.damage] if job is not None else []
        if not sound:
            return False
        sound[-1].damage = self._rng.choice(("flipped bit", "truncated", "missing", "half"))
        return True

    def disk_full(self) -> bool:
        job = self._job()
        if job is None or job.disk_full:
            return False
        job.disk_full = True
        self._later(self._return_s(), lambda: setattr(job, "disk_full", False))
        return True

    def memory_wiped(self) -> bool:
        """All memory tiers of a job at once, and a rank with them: only the disk is left."""
        found = self._rank()
        if found is None:
            return False
        job, run, rank = found
        self._fleet.memory_hurt_s = self._fleet.now_s
        for node in run.nodes:
            run.memory_from[node] = run.step(self._fleet.now_s)
        for machine in self._fleet.machines.values():
            machine.memory.pop(job.id, None)
        self._fleet.rank_ended(rank, signal=9)
        return True

    def poisoned_state(self) -> bool:
        """The newest committed state is intact and wrong: the loss after it is absurd."""
        job = self._job()
        sound = [c for c in job.disk.values() if not c.damage] if job is not None else []
        if job is None or not sound or job.bad_loss_key:
            return False
        job.bad_loss_key = sound[-1].key
        return self.memory_wiped()

    def continue_stopped(self) -> None:
        """Whoever stopped ranks lets them go on."""
        for job in self._fleet.jobs.values():
            for rank in job.alive():
                if rank.stopped:
                    rank.stopped = False
                    self._fleet.unblock(job.runs[rank.generation], f"stopped {rank.rank}")

    # ---- orders

    def launch_unanswered(self) -> bool:
        launcher = self._launcher()
        if launcher is not None:
            launcher.silent_to["Launch"] = None
        return launcher is not None

    def slow_orders(self) -> bool:
        kind = self._rng.choice(
            ("Launch", "Fence", "VerifyCheckpoint", "CollectStacks", "AskWitness", "RunGate", "start")
        )
        self._fleet.slow_down(kind, self._rng.uniform(3.0, 40.0), self._rng.uniform(10.0, 120.0))
        return True

    # ---- the server

    def server_crash(self) -> bool:
        server = self._fleet.network.server
        if not server.up:
            return False
        server.crash_point = self._rng.choice(("facts", "decisions", "decisions", "now"))
        if server.crash_point == "now":
            server.crash()
        return True

    def server_paused(self) -> bool:
        self._fleet.network.server.pause(self._rng.uniform(0.5, 40.0))
        return True

    # ---- people

    def person_holds(self) -> bool:
        machine = self._machine()
        slot = self._rng.choice(list(machine.devices))
        resource = device_resource(machine.node, slot) if self._rng.random() < 0.6 else node_resource(machine.node)
        server = self._fleet.network.server
        if not server.up or resource not in server.world.resources:
            return False
        source = f"person:{self._rng.choice(('alice', 'bob'))}"
        server.observe(f.HoldRequested(resource=resource, source=source, by=source, reason="looking at it"))
        if self._rng.random() < 0.7:
            self._later(self._return_s(), lambda: self.lift(resource, source))
        return True

    def lift(self, resource: ResourceId, source: str) -> None:
        server = self._fleet.network.server
        if server.up and not server.paused:
            server.observe(f.HoldLifted(resource=resource, source=source, by=source))
        else:
            self._later(5.0, lambda: self.lift(resource, source))

    def person_stops(self) -> bool:
        job = self._job()
        server = self._fleet.network.server
        if job is None or not server.up or server.paused:
            return False
        job.stopped_by_person = True
        server.observe(f.JobStopRequested(job=job.id, by="alice"))
        return True

    def spare_joins(self) -> bool:
        job = self._job()
        if job is None:
            return False
        free = [m for m in self._fleet.machines.values() if m.on and (job.id, m.node) not in self._fleet.launchers]
        if not free:
            return False
        self._fleet.join(job, self._rng.choice(free), spare=True)
        return True

    def node_leaves(self) -> bool:
        launcher = self._launcher()
        if launcher is None or launcher.frozen:
            return False
        self._mark(launcher)
        launcher.leave("left by its owner")
        return True


_NO_FAULTS = ("inject", "heal", "lift", "continue_stopped", "open_gates")

FAULTS: dict[str, Callable[[Faults], bool]] = {
    name: method
    for owner in (Words, Faults)
    for name, method in vars(owner).items()
    if callable(method) and not name.startswith("_") and name not in _NO_FAULTS
}

"""Hardware that fails and hardware that only prints: draws both by their rates and tells them through agents and BMCs.

Owns chance, targets and times of what ``signals`` describes, and the people who replace what is broken. It asks the engine
nothing but whether a repair order has been opened.
"""

from random import Random

from keepstep.core import decision as d
from keepstep.core import facts as f
from keepstep.core.ids import JobId, NodeId, ResourceId, device_resource, node_of, node_resource, slot_of
from keepstep.core.intents import Fence
from keepstep.core.resource import ResourceState
from keepstep.sim.agent import NICS, SimAgent, gpu_names
from keepstep.sim.fleet import FleetState
from keepstep.sim.machine import Machine
from keepstep.sim.scenario import Hardware as Options
from keepstep.sim.signals import FAULTS, NOISE, Sign, Story
from keepstep.sim.truth import Truth, Truths

YEAR_S = 365.25 * 86_400.0
_FLAKY_S = 240.0
"""How soon a broken card that is given work again fails again."""
_OWN_KILLS_PRINT = 0.05
"""Share of nodes on which a kill of ours prints that channels were removed."""
_DOMAINS = {"rack": "rack", "feed": "power", "switch": "switch", "canary": "driver"}


class SimHardware:
    def __init__(self, fleet: FleetState, options: Options, rng: Random) -> None:
        self._fleet, self._options, self._rng = fleet, options, rng
        self.truths = Truths()
        self.agents: dict[NodeId, SimAgent] = {}
        self.members: dict[str, list[NodeId]] = {}
        """``rack/r3`` -> its nodes."""
        self.noise: dict[str, int] = {}
        self._gone: dict[NodeId, None] = {}
        """Machines that were taken away."""
        self._used = 0
        self.replaced = 0
        unknown = [name for name in options.faults if name not in FAULTS]
        unknown += [name for name in options.noise if name not in NOISE]
        if unknown:
            raise ValueError(f"no story {unknown[0]!r} in sim.signals")
        server = fleet.network.server
        server.on_decision.append(self._watch)
        server.on_fact.append(self._gate)
        fleet.on_power.append(self._power)

    # ---- the fleet

    def start(self) -> None:
        for index, machine in enumerate(list(self._fleet.machines.values())):
            self._equip(machine, self._domains(index))
        for name in self._options.faults:
            self._next(name, FAULTS[name], self._options.faults[name].per_node_year, real=True)
        for name in self._options.noise:
            self._next(name, NOISE[name], self._options.noise[name].per_node_year, real=False)

    def _domains(self, index: int) -> dict[str, str]:
        o = self._options
        rack = index // o.rack_nodes
        canary = index // o.canary_nodes
        return {
            "rack": f"r{rack}",
            "switch": f"s{rack // o.switch_racks}",
            "power": f"p{rack // o.feed_racks}",
            "driver": f"canary{canary}" if canary < o.canaries else "stable",
        }

    def _equip(self, machine: Machine, domains: dict[str, str]) -> None:
        machine.rack = domains["rack"]
        agent = SimAgent(self._fleet, machine, domains, self._options)
        self.agents[machine.node] = agent
        for kind, name in domains.items():
            self.members.setdefault(f"{kind}/{name}", []).append(machine.node)
        self._later(self._rng.uniform(0.5, 5.0), agent.join)

    def _later(self, delay_s: float, action: object) -> None:
        self._fleet.timeline.after(max(0.0, delay_s), action)  # type: ignore[arg-type]

    def _next(self, name: str, story: Story, per_node_year: float, *, real: bool) -> None:
        if per_node_year <= 0.0:
            return
        mean_s = YEAR_S / (per_node_year * len(self._fleet.machines))

        def strike() -> None:
            if real:
                self.strike(name)
            else:
                self.disturb(name)
            self._later(self._rng.expovariate(1.0 / mean_s), strike)

        self._later(60.0 + self._rng.expovariate(1.0 / mean_s), strike)

    # ---- true faults

    def strike(self, name: str) -> Truth | None:
        """A true fault begins; None where there is nothing left that it could hit."""
        story = FAULTS[name]
        domain, nodes = self._hit(story)
        if not nodes:
            return None
        now_s = self._fleet.now_s
        targets = {node: self._resource(story, node) for node in nodes}
        truth = self.truths.begin(name, story, now_s, targets, domain)
        truth.watched = any(self.agents[node].present for node in nodes)
        broken = not truth.shared and self._rng.random() < story.broken
        for node in nodes:
            machine = self._fleet.machines[node]
            delay_s = self._rng.uniform(0.0, story.spread_s) if truth.shared else 0.0
            self._break(machine, targets[node], story, broken)
            self._print(story, machine, targets[node], delay_s, truth)
            self._hurt(truth, machine, targets[node], delay_s)
        if truth.shared or not story.isolates:
            self._later(self._rng.uniform(*story.lasts_s), lambda: self.truths.end(truth, self._fleet.now_s))
        return truth

    def _hit(self, story: Story) -> tuple[str, list[NodeId]]:
        """The domain, if it is one's, and the nodes."""
        if story.target == "store":
            return "dependency/nfs:store", [node for node in self.agents if self._well(node)]
        kind = _DOMAINS.get(story.target)
        if kind is None:
            candidates = list(self.agents)
            for _ in range(20):
                node = self._rng.choice(candidates)
                if self._well(node):
                    return "", [node]
            return "", []
        prefix = f"{kind}/canary" if kind == "driver" else f"{kind}/"
        names = [name for name in self.members if name.startswith(prefix)]
        name = self._rng.choice(names)
        nodes = [node for node in self.members[name] if self._well(node)]
        nodes = [node for node in nodes if self._rng.random() < story.members]
        return (name, nodes) if 2 * len(nodes) > len(self.members[name]) and len(nodes) >= 3 else ("", [])

    def _well(self, node: NodeId) -> bool:
        return self._fleet.machines[node].on and node not in self._gone and not self.truths.active(node)

    def _resource(self, story: Story, node: NodeId) -> ResourceId:
        if story.target in ("gpu", "canary"):
            return device_resource(node, self._rng.choice(list(self._fleet.machines[node].devices)))
        return node_resource(node)

    def _break(self, machine: Machine, resource: ResourceId, story: Story, broken: bool) -> None:
        slot = slot_of(resource)
        if slot is None:
            machine.gate = "fail" if broken else "pass"
            return
        machine.devices[slot].gate = "fail" if broken else "pass"
        if story.kills == "rank":
            machine.devices[slot].flaky_s = _FLAKY_S

    def _hurt(self, truth: Truth, machine: Machine, resource: ResourceId, delay_s: float) -> None:
        """What it does to ranks, or to the machine."""
        story = truth.story
        if story.kills == "nothing":
            return
        after_s = delay_s + (0.0 if story.kills in ("node", "storage") else self._rng.uniform(*story.kills_after_s))
        if story.kills in ("node", "reboot"):
            self._mark(machine)
            self._later(after_s, lambda: self._off(truth, machine))
        elif story.kills == "storage":
            self._later(after_s, lambda: self._cut_off(truth, machine))
        else:
            slot = slot_of(resource)
            self._mark(machine)
            self._later(after_s, lambda: self._end_rank(machine, slot, truth.kind, hang=story.kills == "hang"))

    def _mark(self, machine: Machine) -> None:
        """From now on a restart of what runs here is justified."""
        for job in self._fleet.jobs.values():
            run = job.run() if not job.ended else None
            if run is not None and run.alive_on(machine.node):
                run.faulty = True

    def _off(self, truth: Truth, machine: Machine) -> None:
        if not machine.on:
            return
        self._mark(machine)
        reboot = truth.story.kills == "reboot"
        self._fleet.machine_off(machine, reboot=reboot)
        if not reboot:
            self._later(self._rng.uniform(*truth.story.lasts_s), lambda: self._back(machine))

    def _back(self, machine: Machine) -> None:
        if machine.node not in self._gone:
            self._fleet.machine_on(machine)

    def _cut_off(self, truth: Truth, machine: Machine) -> None:
        """Ranks of the node cannot reach the others until the switch is back."""
        self._mark(machine)
        for job in self._fleet.jobs.values():
            run = job.run() if not job.ended else None
            if run is None or not run.stepping or not run.alive_on(machine.node):
                continue
            why = f"switch {truth.number}"
            self._fleet.block(run, why)
            self._later(self._rng.uniform(*truth.story.lasts_s), lambda run=run, why=why: self._fleet.unblock(run, why))

    def _end_rank(self, machine: Machine, slot: int | None, kind: str, *, hang: bool) -> None:
        for job in self._fleet.jobs.values():
            run = job.run() if not job.ended else None
            here = run.alive_on(machine.node) if run is not None else []
            rank = next((r for r in here if slot is None or r.slot == slot), None)
            if run is None or rank is None:
                continue
            run.faulty = True
            if hang:
                rank.hung = True
                self._fleet.block(run, f"hung {rank.rank}")
            else:
                error = f.ErrorRecord(kind="RuntimeError", message=f"CUDA error ({kind})", signature=f"cuda:{kind}")
                self._fleet.rank_ended(rank, error=error)

    # ---- noise

    def disturb(self, name: str) -> None:
        """Something is printed that is nobody's hardware fault."""
        story = NOISE[name]
        node = self._rng.choice(list(self.agents))
        if not self._well(node):
            return
        machine = self._fleet.machines[node]
        self.noise[name] = self.noise.get(name, 0) + 1
        if name == "agent_restart":
            self.agents[node].join()
        elif name == "agent_silent":
            self.agents[node].fall_silent(self._rng.uniform(*story.lasts_s))
        resource = self._resource(story, node)
        self._print(story, machine, resource, 0.0)
        if story.kills == "rank":
            self._mark(machine)
            slot = slot_of(resource)
            self._later(self._rng.uniform(0.2, 3.0), lambda: self._end_rank(machine, slot, name, hang=False))

    # ---- what is printed

    def _print(
        self, story: Story, machine: Machine, resource: ResourceId, delay_s: float, truth: Truth | None = None
    ) -> None:
        slot = slot_of(resource) or 0
        port = self._rng.randrange(NICS)
        turns: dict[tuple[int, int], int] = {}
        for sign in story.signs:
            if self._rng.random() >= sign.share:
                continue
            first_s = delay_s + self._rng.uniform(*sign.after_s)
            for turn in range(turns.setdefault(sign.times, self._rng.randint(*sign.times))):
                for part in self._parts(sign, machine, slot, port):
                    self._later(first_s + turn * sign.every_s, lambda s=sign, p=part: self._still(truth, s, machine, p))

    def _still(self, truth: Truth | None, sign: Sign, machine: Machine, part: str) -> None:
        """What was cured prints no more."""
        if truth is None or truth.shared or truth.ended_s is None:
            self._say(sign, machine, part)

    def _parts(self, sign: Sign, machine: Machine, slot: int, port: int) -> list[str]:
        if sign.on == "siblings":
            return [gpu_names(machine.node, other)[0] for other in machine.devices if other != slot]
        names = {
            "gpu": gpu_names(machine.node, slot)[1 if sign.source == "nvml" else 0],
            "nic": f"nic/mlx5_{port}",
            "disk": f"disk/nvme{port % 4}",
        }
        return [names.get(sign.part, sign.part)]

    def _say(self, sign: Sign, machine: Machine, part: str) -> None:
        if machine.node not in self.agents:
            return  # it was taken away meanwhile
        if sign.path == "agent":
            unit = f"gpc{self._rng.randrange(8)}/tpc{self._rng.randrange(9)}"
            attributes = {name: unit if value == "*" else value for name, value in sign.attributes.items()}
            self.agents[machine.node].signal(sign.key, part, sign.source, attributes)
            return
        fact = f.SignalSeen(
            resource=node_resource(machine.node),
            signal=sign.key,
            part=part,
            attributes=sign.attributes,
            source=sign.source,
        )
        self._by_bmc(machine, fact)

    def _by_bmc(self, machine: Machine, fact: f.Fact) -> None:
        """The server looks at it in turn."""

        def look() -> None:
            server = self._fleet.network.server
            if not machine.managed or not machine.bmc_alive or not server.up or server.paused:
                self._later(self._rng.uniform(*self._options.bmc_delay_s), look)
            elif not isinstance(fact, f.BmcSeen) or (fact.power == "on") == machine.on:
                server.observe(fact)

        self._later(self._rng.uniform(*self._options.bmc_delay_s), look)

    # ---- power

    def _power(self, machine: Machine) -> None:
        agent = self.agents.get(machine.node)
        if agent is None or machine.node in self._gone:
            return
        power = f.BmcSeen(node=machine.node, power="on" if machine.on else "off", reachable=True)
        self._by_bmc(machine, power)
        if machine.on:
            self._later(self._rng.uniform(3.0, 20.0), agent.join)
        else:
            agent.lost()

    # ---- cures, and people

    def _gate(self, fact: f.Fact) -> None:
        """A passed gate ends what a reset or a reboot has cured."""
        if not isinstance(fact, f.GateFinished) or not fact.passed:
            return
        for truth in self.truths.active(node_of(fact.resource)):
            if not truth.shared and fact.resource == truth.nodes[node_of(fact.resource)]:
                self._cured(truth, fact.resource)

    def _cured(self, truth: Truth, resource: ResourceId) -> None:
        self.truths.end(truth, self._fleet.now_s)
        slot = slot_of(resource)
        if slot is not None:
            self._fleet.machines[node_of(resource)].devices[slot].flaky_s = 0.0

    def _watch(self, decision: d.Decision) -> None:
        for change in decision.changes:
            if isinstance(change, d.MoveResource) and change.to is ResourceState.REPAIR:
                node = node_of(change.resource)
                self._later(self._rng.uniform(*self._options.repair_s), lambda node=node: self._replace(node))
        for intent in decision.intents:
            if isinstance(intent, Fence) and self._rng.random() < _OWN_KILLS_PRINT and intent.node in self.agents:
                self._later(self._rng.uniform(0.3, 6.0), lambda node=intent.node: self._own_kill(node))

    def _own_kill(self, node: NodeId) -> None:
        machine = self._fleet.machines[node]
        for slot in machine.devices:
            if self._rng.random() < 0.6:
                self.agents[node].signal("xid.45", gpu_names(node, slot)[0], "kmsg", {})

    def _replace(self, node: NodeId) -> None:
        """Another machine takes its place in the rack; the broken one goes."""
        if node in self._gone:
            return
        machine = self._fleet.machines[node]
        launchers = [x for (_, n), x in self._fleet.launchers.items() if n == node and x.alive]
        if any(self._fleet.alive_here(launcher) for launcher in launchers):
            self._later(600.0, lambda: self._replace(node))
            return
        self._gone[node] = None
        self.replaced += 1
        for launcher in launchers:
            launcher.leave("taken away for repair")
        for truth in self.truths.active(node):
            if not truth.shared:
                self.truths.end(truth, self._fleet.now_s)
        agent = self.agents.pop(node)
        for kind, name in agent.domains.items():
            self.members[f"{kind}/{name}"].remove(node)
        self._later(10.0, lambda: self._fleet.machine_off(machine, reboot=False) if machine.on else None)
        self.arrive(agent.domains, len(machine.devices), [x.job.id for x in launchers])

    def arrive(self, domains: dict[str, str], slots: int, jobs: list[JobId]) -> None:
        self._used += 1
        machine = Machine.fresh(NodeId(f"new{self._used:05d}"), domains["rack"], slots)
        self._fleet.machines[machine.node] = machine
        self._equip(machine, domains)
        for name in jobs:
            if not self._fleet.jobs[name].ended:
                self._fleet.join(self._fleet.jobs[name], machine, spare=True)

    def here(self) -> list[Machine]:
        """Machines that stand in the racks now."""
        return [self._fleet.machines[node] for node in self.agents]

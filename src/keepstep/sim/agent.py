"""A node's agent as it really is: late, sometimes silent, now and then started anew. Owns what reaches the server, and when.

Its words carry the boot and the names of parts that the real agent uses. What is wrong with the node it does not know; that is
``hardware``. Facts of a BMC come from the server's own look and not from here.
"""

from random import Random

import msgspec

from keepstep.core import facts as f
from keepstep.core.ids import NodeId, ResourceId, Session, device_resource, node_resource
from keepstep.core.intents import Order, Quarantine, Release
from keepstep.sim.fleet import FleetState
from keepstep.sim.machine import Machine
from keepstep.sim.scenario import Hardware

_RETRY_S = (1.0, 5.0)
_LEASE_S = 5.0
NICS = 8


def gpu_names(node: NodeId, slot: int) -> tuple[str, ...]:
    return f"gpu/0000:{0x1B + 8 * slot:02x}:00", f"gpu/{slot}", f"gpu/GPU-{node}-{slot}"


class SimAgent:
    """The agent of one machine, over all its lives."""

    def __init__(self, fleet: FleetState, machine: Machine, domains: dict[str, str], options: Hardware) -> None:
        self._fleet = fleet
        self.machine = machine
        self.domains = domains
        self._options = options
        self._rng = Random(f"agent:{machine.node}")
        self._lives = 0
        self.session = Session("")
        self.silent_until_s = 0.0
        self.sent = 0
        self._arrives_s: dict[str, float] = {}
        """Source -> when its newest signal arrives."""
        self.present = self._rng.random() >= options.dead_agents

    @property
    def node(self) -> NodeId:
        return self.machine.node

    def join(self) -> None:
        """Start, or start anew."""
        if not (self.present and self.machine.on):
            return
        self._lives += 1
        self._fleet.agents.pop(self.session, None)
        self.session = Session(f"{self.node}-a{self._lives}")
        self._fleet.agents[self.session] = self
        parts = [
            f.NodePart(names=gpu_names(self.node, slot), serial=device.serial, slot=slot, firmware=device.firmware)
            for slot, device in self.machine.devices.items()
        ]
        parts += [f.NodePart(names=(f"nic/mlx5_{port}", f"nic/mlx5_{port}/1")) for port in range(NICS)]
        joined = f.AgentJoined(
            node=self.node,
            session=self.session,
            boot_id=self.machine.boot_id,
            parts=tuple(parts),
            domains=self.domains,
        )
        self._send(joined, self._rng.uniform(0.1, 2.0))

    def resource(self, part: str) -> ResourceId:
        """As the real agent: a card's own resource, else the node's."""
        for slot in self.machine.devices:
            if part in gpu_names(self.node, slot):
                return device_resource(self.node, slot)
        return node_resource(self.node)

    def signal(self, key: str, part: str, source: str, attributes: dict[str, str]) -> None:
        """Something was seen now; it arrives with the delay of its road."""
        if not (self.present and self.machine.on):
            return
        fact = f.SignalSeen(
            resource=self.resource(part), signal=key, boot_id=self.machine.boot_id, part=part, attributes=attributes,
            source=source, session=self.session,
        )  # fmt: skip
        delay_s = self._rng.uniform(*self._options.agent_delay_s)
        if self._rng.random() < self._options.late_share:
            delay_s = self._rng.uniform(*self._options.late_s)
        else:
            # One source tells in order; between sources, and where something was spooled, anything may come first.
            delay_s = max(delay_s, self._arrives_s.get(source, 0.0) - self._fleet.now_s)
            self._arrives_s[source] = self._fleet.now_s + delay_s
        self._send(fact, delay_s)

    def _send(self, fact: f.Fact, delay_s: float) -> None:
        seen_s = self._fleet.now_s
        self._fleet.timeline.after(delay_s, lambda: self._arrive(fact, seen_s))

    def _arrive(self, fact: f.Fact, seen_s: float) -> None:
        """What does not get through is spooled, and tried again."""
        server = self._fleet.network.server
        silent = self._fleet.now_s < self.silent_until_s
        if not server.up or server.paused or silent or not self.machine.controlled:
            if self.machine.on:
                pause_s = self._rng.uniform(*_RETRY_S) + max(0.0, self.silent_until_s - self._fleet.now_s)
                self._fleet.timeline.after(pause_s, lambda: self._arrive(fact, seen_s))
            return
        self.sent += 1
        if isinstance(fact, f.SignalSeen):
            fact = msgspec.structs.replace(fact, age_s=self._fleet.now_s - seen_s)
        server.observe(fact)

    # ---- silence

    def fall_silent(self, for_s: float) -> None:
        """The process hangs, or its connection does: nothing of the node is heard, and the node is well."""
        self.silent_until_s = self._fleet.now_s + for_s
        self.lost()
        self._fleet.timeline.after(for_s, self._heard)

    def lost(self) -> None:
        """Nothing is heard any more: said after the lease, by whoever counts."""
        session = self.session

        def say() -> None:
            if session == self.session and (not self.machine.on or self._fleet.now_s < self.silent_until_s):
                self._say(f.AgentSilent(node=self.node, session=session, silent_s=_LEASE_S))

        if self.present and session:
            self._fleet.timeline.after(_LEASE_S, say)

    def _heard(self) -> None:
        agent = self._fleet.network.server.world.agents.get(self.node)
        if self.machine.on and agent is not None and agent.silent_since_s is not None:
            self._say(f.AgentHeard(node=self.node, session=self.session))

    def _say(self, fact: f.Fact) -> None:
        server = self._fleet.network.server
        if server.up and not server.paused:
            server.observe(fact)

    # ---- orders

    def take(self, order: Order) -> None:
        """Holds and releases of its own gate, which launchers of the node obey as well."""
        session = self.session
        self._fleet.timeline.after(self._rng.uniform(0.01, 0.2), lambda: self._carry_out(order, session))

    def _carry_out(self, order: Order, session: Session) -> None:
        server = self._fleet.network.server
        if session != self.session or not self.machine.on:
            return
        if not server.up or server.paused or self._fleet.now_s < self.silent_until_s or not self.machine.controlled:
            self._fleet.timeline.after(self._rng.uniform(*_RETRY_S), lambda: self._carry_out(order, session))
            return
        match order.intent:
            case Quarantine(resource=resource, reason=reason):
                self.machine.held[resource] = reason
            case Release(resource=resource):
                self.machine.held.pop(resource, None)
            case _:
                pass
        server.observe(f.Answered(intent=order.number, outcome=f.Done()))

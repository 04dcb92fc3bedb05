"""Connections between launchers and the server: delayed, repeated, reordered, broken, cut. Owns what arrives when.

As over TCP, the reports of one session arrive in order or not at all, and what was in flight when a connection broke is
lost and sent again after the next one. Orders may overtake each other and arrive twice: the receivers must bear that.
"""

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from keepstep.core.facts import Fact
from keepstep.core.ids import Session
from keepstep.core.intents import Order
from keepstep.sim import scenario
from keepstep.sim.clock import Timeline

if TYPE_CHECKING:
    from keepstep.sim.launcher import SimLauncher
    from keepstep.sim.server import SimServer


@dataclass(slots=True)
class Link:
    """The connection of one launcher."""

    launcher: "SimLauncher"
    up: bool = False
    number: int = 0
    """Grows with every connection; a message of an older one is lost."""
    arrives_s: float = 0.0
    """When the newest report in flight arrives: later ones arrive later."""


class Network:
    def __init__(self, timeline: Timeline, rng: Random, options: scenario.Network) -> None:
        self._timeline = timeline
        self._rng = rng
        self.options = options
        self._links: dict[Session, Link] = {}
        self.server: SimServer
        self.calm = False
        """The liveness phase: nothing is lost any more."""

    # ---- connections

    def attach(self, launcher: "SimLauncher") -> None:
        self._links[launcher.session] = Link(launcher)
        self._timeline.after(self._delay_s(), lambda: self._connect(launcher.session))

    def detach(self, session: Session, *, noticed: bool) -> None:
        """The launcher's process is gone. ``noticed``: the kernel closed its connection."""
        link = self._links.pop(session, None)
        if link is not None and link.up and noticed:
            self._tell_closed(link)

    def _connect(self, session: Session) -> None:
        link = self._links.get(session)
        if link is None or link.up:
            return
        if not (self.server.up and link.launcher.machine.controlled):
            self._timeline.after(self._rng.uniform(0.3, 1.5), lambda: self._connect(session))
            return
        link.up, link.number = True, link.number + 1
        link.arrives_s = self._timeline.now_s
        acked = self.server.greet(link.launcher)
        link.launcher.connected(acked)

    def break_link(self, session: Session, *, noticed: bool) -> None:
        """``noticed`` by the server; the launcher notices and tries again in any case."""
        link = self._links.get(session)
        if link is None or not link.up:
            return
        link.up = False
        if noticed:
            self._tell_closed(link)
        self._timeline.after(self._rng.uniform(0.05, 1.0), lambda: self._connect(session))

    def _tell_closed(self, link: Link) -> None:
        launcher = link.launcher
        self._timeline.after(
            self._delay_s(), lambda: self.server.closed(launcher.job.id, launcher.node, launcher.session)
        )

    def server_gone(self) -> None:
        """Every connection breaks; launchers try again until it is back."""
        for session, link in list(self._links.items()):
            if link.up:
                self.break_link(session, noticed=False)

    def connected(self, session: Session) -> bool:
        link = self._links.get(session)
        return link is not None and link.up and link.launcher.machine.controlled and self.server.up

    # ---- messages

    def _delay_s(self) -> float:
        rng, options = self._rng, self.options
        delay_s = rng.uniform(*options.delay_s)
        if not self.calm and rng.random() < options.slow_share:
            delay_s += rng.uniform(0.0, options.slow_s)
        if options.quantum_s:
            due = self._timeline.now_s + delay_s
            delay_s = -(-due // options.quantum_s) * options.quantum_s - self._timeline.now_s
        return max(0.0, delay_s)

    def _lost(self) -> bool:
        return not self.calm and self._rng.random() < self.options.break_share

    def report(self, session: Session, number: int, fact: Fact) -> None:
        link = self._links.get(session)
        if link is None or not link.up:
            return
        if self._lost():
            self.break_link(session, noticed=self._rng.random() < 0.7)
            return
        connection = link.number
        at_s = max(link.arrives_s, self._timeline.now_s + self._delay_s())
        link.arrives_s = at_s
        self._timeline.after(
            max(0.0, at_s - self._timeline.now_s), lambda: self._arrive(link, connection, number, fact)
        )

    def _arrive(self, link: Link, connection: int, number: int, fact: Fact) -> None:
        if not link.up or link.number != connection or not self.server.up:
            return
        if not link.launcher.machine.controlled:
            self.break_link(link.launcher.session, noticed=False)
            return
        self.server.received(link.launcher, number, fact)

    def ack(self, session: Session, number: int) -> None:
        link = self._links.get(session)
        if link is None or not link.up:
            return
        connection = link.number

        def arrive() -> None:
            if link.up and link.number == connection:
                link.launcher.acknowledged(number)

        self._timeline.after(self._delay_s(), arrive)

    def send(self, session: Session, order: Order) -> None:
        """Deliver an order, perhaps twice; where there is no connection it waits for the next one (the server repeats it)."""
        if not self.connected(session):
            return
        if self._lost():
            self.break_link(session, noticed=True)
            return
        copies = 2 if self._rng.random() < self.options.repeat_share else 1
        for copy in range(copies):
            delay_s = self._delay_s() + (self._rng.uniform(0.0, 20.0) if copy else 0.0)
            self._timeline.after(delay_s, lambda: self._deliver(session, order))

    def _deliver(self, session: Session, order: Order) -> None:
        link = self._links.get(session)
        if link is not None and link.launcher.machine.controlled:
            link.launcher.take(order)

    def supersede(self, session: Session, generation: int) -> None:
        link = self._links.get(session)
        if link is not None and link.up:
            self._timeline.after(self._delay_s(), lambda: link.launcher.superseded(generation))

"""What is really wrong with the hardware, from when to when, and when it was taken out. Ground truth; decides nothing."""

from dataclasses import dataclass, field

from keepstep.core.ids import NodeId, ResourceId, node_of
from keepstep.sim.signals import Story


@dataclass(slots=True)
class Truth:
    """One root cause that really happened."""

    number: int
    kind: str
    story: Story
    at_s: float
    nodes: dict[NodeId, ResourceId]
    """Node that has it -> what is hit there."""
    domain: str = ""
    """``rack/r3``, ``switch/s1`` … where it is a domain's; empty for one part."""
    watched: bool = True
    """Agents are on its nodes; a BMC alone does not see a card."""
    ended_s: float | None = None
    out_s: float | None = None
    """When what is hit could not be given work any more."""

    @property
    def shared(self) -> bool:
        return bool(self.domain)

    def covers(self, node: NodeId, at_s: float, after_s: float = 0.0) -> bool:
        """Whether it explains something on a node at a moment; ``after_s``: so long after its end still."""
        if node not in self.nodes or at_s < self.at_s - 120.0:
            return False
        return self.ended_s is None or at_s <= self.ended_s + after_s


@dataclass(slots=True)
class Truths:
    """All of them, and which are going on."""

    all: list[Truth] = field(default_factory=list)
    on: dict[NodeId, list[Truth]] = field(default_factory=dict)

    def begin(self, kind: str, story: Story, at_s: float, nodes: dict[NodeId, ResourceId], domain: str = "") -> Truth:
        truth = Truth(number=len(self.all), kind=kind, story=story, at_s=at_s, nodes=nodes, domain=domain)
        self.all.append(truth)
        for node in nodes:
            self.on.setdefault(node, []).append(truth)
        return truth

    def end(self, truth: Truth, at_s: float) -> None:
        if truth.ended_s is None:
            truth.ended_s = at_s

    def active(self, node: NodeId) -> list[Truth]:
        return [truth for truth in self.on.get(node, ()) if truth.ended_s is None]

    def explains(self, node: NodeId, at_s: float, after_s: float) -> list[Truth]:
        """What was, or had just been, wrong with a node at a moment."""
        return [truth for truth in self.on.get(node, ()) if truth.covers(node, at_s, after_s)]

    def taken_out(self, resource: ResourceId, at_s: float) -> list[Truth]:
        """A resource cannot be given work any more: the truths whose part it is, or whose node."""
        node = node_of(resource)
        hit = [t for t in self.active(node) if t.nodes[node] == resource or resource == ResourceId(f"node/{node}")]
        for truth in hit:
            if truth.out_s is None:
                truth.out_s = at_s
        return hit

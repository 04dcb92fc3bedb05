"""Folds what agents and BMCs say of nodes into the World. Beside ``fold``, which folds what jobs say. Decides nothing."""

from keepstep.core import facts as f
from keepstep.core.apply import add_resource
from keepstep.core.ids import NodeId, ResourceId, Session, device_resource, node_resource
from keepstep.core.intents import AskWitness, Notify, OpenRepair, PowerOff
from keepstep.core.observation import Same
from keepstep.core.resource import Resource
from keepstep.core.world import Agent, BmcState, World

_OLDER_SESSIONS = 16

OfNode = f.AgentJoined | f.AgentSilent | f.AgentHeard | f.CoverageChanged | f.BmcSeen


def fold_node(world: World, fact: OfNode, at_s: float) -> None:
    match fact:
        case f.AgentJoined():
            _joined(world, fact, at_s)
        case f.BmcSeen():
            world.bmcs[fact.node] = BmcState(seen=fact, at_s=at_s)
            world.powered_off.pop(fact.node, None)
            if fact.power == "off" and fact.reachable:
                world.powered_off[fact.node] = None
        case f.AgentSilent() | f.AgentHeard() | f.CoverageChanged():
            agent = world.agents.get(fact.node)
            if agent is None or agent.session != fact.session:
                world.stale += 1
            else:
                _of_agent(agent, fact, at_s)


def _of_agent(agent: Agent, fact: f.AgentSilent | f.AgentHeard | f.CoverageChanged, at_s: float) -> None:
    match fact:
        case f.AgentSilent():
            agent.silent_since_s = at_s - fact.silent_s
        case f.AgentHeard():
            agent.silent_since_s = None
        case f.CoverageChanged():
            agent.coverage[fact.source] = (fact.state, fact.detail)


def _joined(world: World, fact: f.AgentJoined, at_s: float) -> None:
    known = world.agents.get(fact.node)
    if known is not None and fact.session in known.older:
        world.stale += 1
        return
    same = known is not None and known.session == fact.session
    older = known.older if known is not None else ()
    if known is not None and not same:
        forget_orders(world, known.session)
        older = (*older, known.session)[-_OLDER_SESSIONS:]
    coverage = known.coverage if known is not None and same else {}
    world.agents[fact.node] = Agent(
        node=fact.node, session=fact.session, boot_id=fact.boot_id, coverage=coverage, older=older
    )
    _resource(world, node_resource(fact.node), fact.node, fact.boot_id, at_s)
    world.resources[node_resource(fact.node)].serial = str(fact.node)
    join_domains(world, fact.node, fact.domains)
    for part in fact.parts:
        world.parts.join(Same(parts=part.names, node=fact.node))
        if part.slot is not None:
            device = device_resource(fact.node, part.slot)
            _resource(world, device, fact.node, fact.boot_id, at_s)
            _identify(world.resources[device], part)
            for name in part.names:
                world.slots[fact.node, name] = device


def _resource(world: World, resource: ResourceId, node: NodeId, boot_id: str, at_s: float) -> None:
    """A node or device that only its agent has reported so far. What launchers said of it stands."""
    if resource not in world.resources:
        add_resource(world, Resource(id=resource, node=node, boot_id=boot_id, entered_s=at_s))


def _identify(resource: Resource, part: f.NodePart) -> None:
    resource.serial = resource.serial or part.serial
    resource.firmware = resource.firmware or part.firmware
    resource.model = resource.model or part.model


def join_domains(world: World, node: NodeId, domains: dict[str, str]) -> None:
    """What a node shares with others, from now on; what is not said again stays."""
    mine = world.domains.setdefault(node, {})
    for kind, name in domains.items():
        old = mine.get(kind)
        if old == name or not name:
            continue
        if old is not None:
            world.members[kind, old].pop(node, None)
        mine[kind] = name
        world.members.setdefault((kind, name), {})[node] = None


def forget_orders(world: World, session: Session) -> None:
    """A launcher or an agent that was replaced answers no more; whoever waits for its answer asks again."""
    for number, pending in list(world.orders.items()):
        intent = pending.intent
        by_launcher = not isinstance(intent, AskWitness | PowerOff | Notify | OpenRepair)
        if by_launcher and getattr(intent, "session", None) == session and getattr(intent, "via", "") != "witness":
            del world.orders[number]

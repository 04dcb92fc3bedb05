"""A silent node as every witness in the World has it: the look-up for the table in ``liveness``. Decides nothing."""

from keepstep.core.ids import NodeId
from keepstep.core.job import Launcher
from keepstep.core.liveness import Around, Heard, Meaning, Power, View, meaning
from keepstep.core.world import World

_NEIGHBOURS = ("rack", "switch")


def of_launcher(launcher: Launcher, world: World, *, stands_still: bool) -> Meaning:
    """What is known of the node of a launcher means. ``stands_still``: its job makes no progress."""
    job_says: Heard = "heard" if launcher.reachable else "silent"
    view = View(
        launcher=job_says,
        agent=_agent(launcher.node, world),
        bmc=_bmc(launcher.node, world),
        peers="stand" if stands_still else "none",
        around=_around(launcher.node, world),
    )
    return meaning(view)


def of_node(node: NodeId, world: World) -> Meaning:
    """What the present view of a node means, whether or not a job runs there."""
    found = [world.jobs[job].launchers.get(node) for job in world.live_jobs]
    launchers = [launcher for launcher in found if launcher is not None and not launcher.left]
    heard: Heard = "none"
    if launchers:
        heard = "heard" if any(launcher.reachable for launcher in launchers) else "silent"
    view = View(launcher=heard, agent=_agent(node, world), bmc=_bmc(node, world), around=_around(node, world))
    return meaning(view)


def _agent(node: NodeId, world: World) -> Heard:
    agent = world.agents.get(node)
    if agent is None:
        return "none"
    return "heard" if agent.silent_since_s is None else "silent"


def _bmc(node: NodeId, world: World) -> Power:
    known = world.bmcs.get(node)
    if known is None:
        return "none"
    if not known.seen.reachable:
        return "dark"
    return "none" if known.seen.power == "unknown" else known.seen.power


def _around(node: NodeId, world: World) -> Around:
    """Whether most neighbours that have an agent are silent as well."""
    for kind in _NEIGHBOURS:
        name = world.domains.get(node, {}).get(kind)
        members = world.members.get((kind, name), {}) if name else {}
        said = [_agent(other, world) for other in members if other != node]
        watched = [word for word in said if word != "none"]
        if len(watched) >= 2 and 2 * watched.count("silent") >= len(watched):
            return "silent"
    return "well"

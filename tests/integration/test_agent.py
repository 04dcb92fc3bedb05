"""The whole road with real processes: a line in a node's kernel log, its agent, the server, a running job."""

import os
import signal
from pathlib import Path

from keepstep.server.fault_views import Faults, Nodes
from keepstep.server.health_views import Health
from keepstep.server.whereabouts import Whereabouts

from .driver import Cluster

XID = "<3>[ 4711.000001] NVRM: Xid (PCI:0000:9b:00): 79, pid=0, GPU has fallen off the bus.\n"

CONFIG = """
[agent]
sources = ["kmsg", "dependencies"]

[source.kmsg]
path = "{log}"

[device.0]
names = ["gpu/0000:9b:00"]

[domains]
rack = "r1"
"""


def agent_of(cluster: Cluster, node: str) -> tuple[Path, int]:
    """Starts an agent of a node; its kernel log and its pid."""
    log = cluster.folder / f"{node}.kmsg"
    log.write_text("<6>[    1.000000] Linux version 6.1\n")
    config = cluster.folder / f"{node}.toml"
    config.write_text(CONFIG.format(log=log))
    agent = cluster.spawn(
        "keepstep.cli", "agent", "--config", str(config), "--node", node, "--state-dir", str(cluster.state.path)
    )  # fmt: skip

    def heard() -> bool:
        assert agent.poll() is None, f"the agent has ended\n{cluster.said()}"
        found = cluster.query("nodes", Nodes)
        return any(
            x.node == node and x.agent == "heard" and len(x.coverage) >= 2 for x in (found.nodes if found else ())
        )

    cluster.eventually(f"the agent of {node}", heard)
    return log, agent.pid


def watched(cluster: Cluster, node: str) -> Path:
    return agent_of(cluster, node)[0]


def test_a_line_in_the_kernel_log_isolates_the_card_and_the_job_goes_on_elsewhere(cluster: Cluster) -> None:
    cluster.serve()
    logs = {node: watched(cluster, node) for node in ("one", "two")}
    script = cluster.light("--steps", "60", "--hold", "40")
    launchers = {node: cluster.launch(node, *script) for node in ("one", "two", "three")}
    used = {line.node for line in cluster.at_work(10)}
    hit = min(used & set(logs))
    (place,) = [x for x in cluster.ask("ranks", Whereabouts, job=cluster.name).ranks if x.node == hit]
    assert place.names == ("gpu/0000:9b:00",) and place.domains == {"rack": "r1"}
    assert place.pid == cluster.pids()[place.rank] and not place.faults
    with logs[hit].open("a") as log:
        log.write(XID)
    lines = cluster.reached(59, generation=2)
    assert hit not in {line.node for line in lines}
    (incident,) = cluster.closed()
    assert (incident.state, incident.cause) == ("recovered", "device")
    assert incident.resources == (f"device/{hit}/0",)
    (fault,) = cluster.ask("faults", Faults, closed=True).faults
    assert (fault.failure_class, fault.resource) == ("gpu.fallen_off_bus", f"{hit}/gpu/0000:9b:00")
    assert fault.incidents == (incident.id,) and fault.held == (f"device/{hit}/0",)
    assert cluster.incident().attempts[0].fault == fault.id
    for node, pid in launchers.items():
        if node != hit:
            assert cluster.exit_code(pid) == 0


def test_a_line_of_a_program_and_an_agent_that_stands_still_disturb_nobody(cluster: Cluster) -> None:
    """The line isolates nothing. The agent is stopped, not dead: its silence means the agent alone, and the job trains on.
    Before the job comes, its node has a forecast."""
    cluster.serve()
    log, agent = agent_of(cluster, "one")

    def told() -> Health | None:
        found = cluster.query("health", Health)
        return found if found is not None and found.nodes else None

    (node,) = cluster.eventually("a forecast", told).nodes
    assert node.node == "one" and 0.0 <= node.p_1h <= node.p_6h <= node.p_24h <= 1.0
    assert node.reason == "no job runs there"

    launchers = [
        cluster.launch(node, *cluster.light("--steps", "100000", "--step-time", "0.1")) for node in ("one", "two")
    ]
    cluster.reached(3)
    with log.open("a") as out:
        out.write(XID.replace("79, pid=0, GPU has fallen off the bus.", "13, pid=42, name=python, Graphics Exception"))
    cluster.reached(8)

    def means(word: str) -> bool:
        found = cluster.query("nodes", Nodes)
        return any(x.node == "one" and x.means == word for x in (found.nodes if found else ()))

    os.kill(agent, signal.SIGSTOP)
    cluster.eventually("the silence of the agent", lambda: means("only_agent_gone"))
    os.kill(agent, signal.SIGCONT)
    cluster.eventually("the agent again", lambda: means("well"))
    at = max(line.step for line in cluster.trace())
    cluster.reached(at + 5, generation=1)
    assert all(cluster.process(pid).poll() is None for pid in launchers)
    assert {line.generation for line in cluster.trace()} == {1}
    assert not cluster.faults()
    assert not cluster.resource("device/one/0").holds

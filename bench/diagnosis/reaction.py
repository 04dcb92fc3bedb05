"""From a line in a node's kernel log to the card's quarantine: real server, agent and running job; one cluster a repetition."""

import statistics
import tempfile
import time
from pathlib import Path

from tests.integration.driver import Cluster
from tests.integration.test_agent import XID, watched

from keepstep.server.views import Resources

REPEATS = 10


def page() -> str:
    took = [_once() for _ in range(REPEATS)]
    took.sort()
    return "\n".join([
        f"Written by `python -m bench.diagnosis reaction`: {REPEATS} repetitions, each with a server, agents and a running job "
        "of its own.", "",
        "| from the line in the kernel log to the hold on the card | seconds |", "|---|---|",
        f"| least | {took[0]:.3f} |", f"| median | {statistics.median(took):.3f} |",
        f"| most (wanted: < 2) | {took[-1]:.3f} |", "",
    ])  # fmt: skip


def _once() -> float:
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.serve()
            logs = {node: watched(cluster, node) for node in ("one", "two")}
            script = cluster.light("--steps", "100000")
            for node in ("one", "two"):
                cluster.launch(node, *script)
            cluster.reached(5)
            started = time.monotonic()
            with logs["one"].open("a") as log:
                log.write(XID)
            cluster.eventually("a hold", lambda: _held(cluster))
            return time.monotonic() - started
        finally:
            cluster.close()


def _held(cluster: Cluster) -> bool:
    found = cluster.query("resources", Resources)
    return found is not None and any(x.id == "device/one/0" and x.holds for x in found.resources)

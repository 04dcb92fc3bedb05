"""What explains what: when two failure classes are seen together, which one is the cause and which the consequence. Data.

A row reads: a fault of the class on the left, close in time and on the same node (or in the same job), explains trouble of the
classes on the right. Prefixes count: ``gpu`` stands for every ``gpu.…``. The order of rows is the order of precedence: what
stands higher is never explained by what stands lower.
"""

from functools import cache

EXPLAINS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("leak", ("power", "thermal", "node", "gpu", "nic", "os", "nvlink", "comm", "hang", "straggler")),
    # One supply of several: what it feeds goes on. When all are gone, the node's power says so.
    ("power.psu", ("node.power", "gpu.power", "gpu.clock", "bmc", "straggler")),
    (
        "power",
        (
            "node",
            "gpu.lost",
            "gpu.fallen_off_bus",
            "gpu.power",
            "gpu.pcie",
            "gpu",
            "nic",
            "thermal.fan",
            "bmc",
            "storage",
            "os",
            "nvlink",
            "comm",
            "hang",
            "straggler",
            "agent",
        ),
    ),
    (
        "thermal",
        ("gpu.thermal", "gpu.clock", "nic.thermal", "gpu.power.brake", "node.power", "straggler", "comm", "hang"),
    ),
    ("cpu", ("os", "node", "gpu.pcie", "nic", "comm", "hang", "agent")),
    ("dram.host", ("os", "node", "comm", "hang", "agent", "software")),
    ("node.hw", ("os", "node", "gpu.pcie", "comm", "hang", "agent")),
    ("node.power", ("gpu", "nic", "os", "node", "bmc", "comm", "hang", "agent", "storage")),
    ("fabric", ("nic.link", "nic.transport", "nic", "comm", "hang", "straggler", "storage.shared", "dependency")),
    (
        "dependency",
        ("storage.shared", "os.kernel", "os.hang", "hang", "checkpoint", "software", "comm", "data", "straggler"),
    ),
    ("storage.shared", ("os.kernel", "os.hang", "hang", "checkpoint", "software", "comm", "data", "straggler")),
    (
        "gpu.fallen_off_bus",
        (
            "gpu",
            "nvlink",
            "pcie",
            "nic.pcie",
            "c2c",
            "os",
            "comm",
            "hang",
            "software",
            "straggler",
            "node.loss",
            "node.drained",
            "scheduler",
        ),
    ),
    ("gpu.lost", ("gpu", "nvlink", "pcie", "c2c", "os", "comm", "hang", "software", "straggler", "scheduler")),
    ("nvlink.switch", ("nvlink", "gpu", "comm", "hang", "software")),
    ("nvlink.fabric", ("nvlink", "gpu.init", "comm", "hang", "software")),
    (
        "gpu.memory",
        ("gpu.compute_engine", "gpu.engine", "nvlink", "comm", "hang", "software", "straggler", "derived", "scheduler"),
    ),
    (
        "gpu.firmware",
        (
            "gpu.compute_engine",
            "gpu.engine",
            "gpu.driver_hang",
            "nvlink",
            "comm",
            "hang",
            "software",
            "derived",
            "scheduler",
        ),
    ),
    ("gpu.pcie", ("os", "nvlink", "comm", "hang", "software", "straggler", "derived", "scheduler", "node.loss")),
    ("gpu", ("nvlink", "comm", "hang", "software", "straggler", "derived", "scheduler")),
    ("nvlink", ("comm", "hang", "software", "straggler", "derived", "scheduler")),
    ("nic.lost", ("nic", "comm", "hang", "software", "straggler", "scheduler")),
    ("nic", ("nic.transport", "comm", "hang", "software", "straggler", "storage.shared", "scheduler")),
    ("storage.local", ("checkpoint", "os.kernel", "software", "data", "hang", "comm", "scheduler")),
    ("node.loss", ("comm", "hang", "software", "agent", "scheduler")),
    ("os.memory", ("software", "comm", "hang", "scheduler")),
    ("os", ("comm", "hang", "software", "straggler", "node.loss", "agent", "scheduler")),
    ("security", ("software", "comm")),
    ("config", ("software", "comm", "straggler")),
    ("checkpoint", ("software", "comm", "hang")),
    ("data", ("software", "comm", "hang")),
    ("software.app", ("comm", "hang", "software.victim", "software.nccl", "scheduler", "os.memory")),
    ("software", ("comm", "hang", "software.victim", "scheduler")),
    ("hang", ("comm", "software.victim", "scheduler")),
    ("comm", ("software.victim", "scheduler")),
)


SHARED_BY: dict[str, tuple[str, ...]] = {
    "switch": ("nic", "fabric", "comm", "hang", "storage.shared", "dependency"),
    "driver": ("gpu", "nvlink", "c2c", "software", "os", "config", "nic.driver", "hang"),
    "image": ("gpu", "nvlink", "c2c", "software", "os", "config", "nic.driver", "storage.local", "hang"),
    "power": ("power", "node", "gpu.power", "gpu.lost", "gpu.fallen_off_bus", "nic.power", "thermal.fan", "bmc"),
}
"""Kind of domain -> classes of trouble that its members can have in common because of it. A rack shares everything."""


def can_share(kind: str, failure_class: str) -> bool:
    """Whether members of a domain of this kind fail in this way because of what they share."""
    prefixes = SHARED_BY.get(kind)
    return prefixes is None or any(_is(failure_class, prefix) for prefix in prefixes)


def _is(failure_class: str, prefix: str) -> bool:
    return failure_class == prefix or failure_class.startswith(prefix + ".")


@cache
def precedence(failure_class: str) -> int:
    """Place in the table: the lower, the more of a root. Classes that are not listed come last."""
    best, length = len(EXPLAINS), -1
    for place, (prefix, _) in enumerate(EXPLAINS):
        if _is(failure_class, prefix) and len(prefix) > length:
            best, length = place, len(prefix)
    return best


@cache
def explains(cause: str, consequence: str) -> bool:
    """Whether trouble of the class ``consequence`` is what a fault of the class ``cause`` looks like from elsewhere."""
    if cause == consequence:
        return False
    if precedence(cause) > precedence(consequence):
        return False
    place = precedence(cause)
    return place < len(EXPLAINS) and any(_is(consequence, prefix) for prefix in EXPLAINS[place][1])

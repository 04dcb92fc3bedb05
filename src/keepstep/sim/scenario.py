"""Scenarios: what a run consists of, as data. Owns their shape, their files, and how a seed turns ranges into options.

Swarm: every ``[low, high]`` and every fault weight is drawn from the seed, so that no two seeds stress the same things.
"""

from importlib import resources
from random import Random

import msgspec
from msgspec import Struct, field

from keepstep.core.policy import Policy

Range = tuple[float, float]


class Network(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    delay_s: Range = (0.001, 0.05)
    """Of one message."""
    slow_share: float = 0.02
    """Of messages that take up to ``slow_s`` more."""
    slow_s: float = 1.5
    repeat_share: float = 0.05
    """Of orders that arrive twice."""
    break_share: float = 0.01
    """Of messages that are lost, with the connection."""
    quantum_s: float = 0.0
    """Deliveries are rounded up to a multiple of this; makes batches in large fleets."""


class Fleet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    jobs: Range = (1, 2)
    nodes_per_job: Range = (1, 4)
    spares_per_job: Range = (0, 2)
    devices: Range = (1, 2)
    """Per node; a job uses all but ``idle_devices``."""
    idle_devices: Range = (0, 1)
    elastic_share: float = 0.4
    sharded_share: float = 0.5
    step_s: Range = (0.3, 2.0)
    snapshot_every: Range = (1, 6)
    commit_every: Range = (15, 80)
    launch_s: Range = (0.05, 3.0)
    """From the launch to a rank that is ready to step."""
    explicit_beats: bool = True
    beat_s: float = 1.0
    launch_failure_share: float = 0.01
    verify_failure_share: float = 0.02
    return_s: Range = (20.0, 240.0)
    """Until somebody brings back what broke."""
    answer_s: Range = (5.0, 120.0)
    """Until a person answers a page."""


class Rate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often something happens, and who says so."""

    per_node_year: float
    source: str


class Hardware(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What fails for real, what only looks like it, and how both are told. Names are those of sim.signals."""

    rack_nodes: int = 8
    switch_racks: int = 4
    feed_racks: int = 2
    """Racks on one power feed."""
    canary_nodes: int = 16
    """Nodes that share a driver version of their own; the rest have the fleet's."""
    canaries: int = 4
    agent_delay_s: Range = (0.1, 5.0)
    """From what happens on a node to its arrival at the server."""
    bmc_delay_s: Range = (1.0, 20.0)
    """A look at a BMC comes round in this time."""
    late_share: float = 0.01
    """Of signals that were spooled and come late, out of order."""
    late_s: Range = (30.0, 1800.0)
    dead_agents: float = 0.01
    """Share of nodes whose agent is not there."""
    repair_s: Range = (7200.0, 172_800.0)
    """Until a repair order has put another machine in place."""
    faults: dict[str, Rate] = field(default_factory=dict)
    noise: dict[str, Rate] = field(default_factory=dict)


class Drills(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Faults that the control plane itself orders. All of it is drawn apart: seeds without drills stay what they are."""

    share: float = 0.0
    """Of the seeds; the others have none."""
    every_s: Range = (60.0, 240.0)
    """Between two of the schedule."""
    asked_every_s: Range = (40.0, 200.0)
    """Between two that people ask for, of whatever kind, of jobs in whatever state."""
    refused_share: float = 0.1
    """Of orders that a launcher cannot carry out."""
    company_share: float = 0.3
    """Of drills beside which something breaks for real."""
    back_share: float = 0.5
    """Of lost nodes that come back by themselves."""


class Scenario(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of ``scenarios/``."""

    about: str
    safety_s: Range = (240.0, 700.0)
    """How long faults arrive."""
    liveness_s: float = 40_000.0
    """Within this everything must have ended after the last fault."""
    incidents_end_s: float = 1750.0
    """Within this every incident and every job must have ended."""
    faults: dict[str, float] = field(default_factory=dict)
    """Name in faults.FAULTS -> weight."""
    fault_every_s: Range = (15.0, 90.0)
    max_faults: int = 1_000_000
    swarm: bool = True
    """Leave each kind of fault out of a third of the seeds."""
    tick_cap_s: float = 1.0
    only_silence: bool = False
    """Nothing that happens is a reason to touch a job: any restart is a violation."""
    one_incident_per_fault: bool = False
    hardware: Hardware | None = None
    """Agents that watch hardware, with true faults and noise; none where it is left out."""
    drills: Drills = Drills()
    fleet: Fleet = Fleet()
    network: Network = Network()
    policy: dict[str, dict[str, float | bool]] = field(default_factory=dict)
    """Section -> field -> value, over the defaults of core.policy."""


def names() -> list[str]:
    """Every scenario that ships, in order of their names."""
    folder = resources.files("keepstep.sim") / "scenarios"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def load(name: str) -> Scenario:
    """Raises ValueError for an unknown name or a file that is not a scenario."""
    if name not in names():
        raise ValueError(f"no scenario {name!r}; there are: {', '.join(names())}")
    text = (resources.files("keepstep.sim") / "scenarios" / f"{name}.toml").read_bytes()
    try:
        return msgspec.toml.decode(text, type=Scenario)
    except msgspec.ValidationError as error:
        raise ValueError(f"scenario {name}: {error}") from error


def policy_of(scenario: Scenario) -> Policy:
    """The default policy with what the scenario changes. Raises ValueError for a section or field that does not exist."""
    policy = Policy()
    for section, changes in scenario.policy.items():
        if section not in policy.__struct_fields__:
            raise ValueError(f"policy has no section {section!r}")
        part = getattr(policy, section)
        unknown = [name for name in changes if name not in part.__struct_fields__]
        if unknown:
            raise ValueError(f"policy section {section} has no field {unknown[0]!r}")
        policy = msgspec.structs.replace(policy, **{section: msgspec.structs.replace(part, **changes)})
    return policy


def draw(rng: Random, limits: Range) -> float:
    return rng.uniform(*limits)


def draw_int(rng: Random, limits: Range) -> int:
    return rng.randint(int(limits[0]), int(limits[1]))

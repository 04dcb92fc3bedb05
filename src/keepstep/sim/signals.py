"""What faults and harmless events print in the field: several signals, on several parts and paths, at their own times. Data.

Keys are those of the catalogue, parts as the readers name them. Owns no time, no node and no chance: ``hardware`` draws those.
"""

from typing import Literal

from msgspec import Struct

Range = tuple[float, float]

Path = Literal["agent", "bmc"]
On = Literal["part", "siblings"]
Target = Literal["gpu", "nic", "disk", "node", "rack", "feed", "switch", "canary", "store"]
Kills = Literal["nothing", "rank", "hang", "node", "reboot", "storage"]


class Sign(Struct, frozen=True):
    """One signal, or several of a kind."""

    key: str
    part: str = ""
    """``gpu``, ``nic``, ``disk`` and ``pci`` stand for the part of that kind that is hit; anything else is meant literally."""
    after_s: Range = (0.0, 0.5)
    path: Path = "agent"
    on: On = "part"
    """``siblings``: the other cards of the node."""
    share: float = 1.0
    """How often it is printed at all."""
    times: tuple[int, int] = (1, 1)
    every_s: float = 1.0
    source: str = "kmsg"
    attributes: dict[str, str] = {}


class Story(Struct, frozen=True):
    target: Target
    signs: tuple[Sign, ...]
    kills: Kills = "nothing"
    kills_after_s: Range = (0.5, 8.0)
    isolates: bool = True
    """The resource must be taken out of work; otherwise it only has to be known."""
    broken: float = 0.5
    """How often the part is really broken: it fails the gate until it is replaced. Else a reset or a reboot cures it."""
    lasts_s: Range = (60.0, 600.0)
    """How long it goes on where nobody acts: what a domain shares comes back after this."""
    members: float = 1.0
    """Share of a domain's nodes that show it."""
    evident_s: float = 0.0
    """It is a fault only by what repeats or lasts, and so not before this."""
    spread_s: float = 2.0
    """Within this all members show it."""


_REMOVED = Sign("xid.45", "gpu", (0.2, 4.0), on="siblings", share=0.4)

FAULTS: dict[str, Story] = {
    "gpu_lost": Story(
        "gpu",
        (
            Sign("pcie.aer.corrected.gpu", "gpu", (-100.0, -1.0), share=0.3, times=(1, 3), every_s=20.0),
            Sign("xid.79", "gpu"),
            Sign("pcie.aer.nonfatal.gpu", "gpu", (0.0, 0.4), share=0.4),
            Sign("xid.154.reboot", "gpu", (0.1, 0.4), share=0.3),
            _REMOVED,
            Sign("gpu.lost", "gpu", (3.0, 12.0), source="nvml", share=0.8),
            Sign("gpu.count", "", (5.0, 15.0), source="nvml", share=0.5),
            Sign("bmc.gpu.lost", "gpu", (0.0, 1.0), path="bmc", source="redfish", share=0.3),
        ),
        kills="rank",
    ),
    "gpu_dbe": Story(
        "gpu",
        (
            Sign("xid.48", "gpu"),
            Sign("xid.63", "gpu", (0.1, 0.5), share=0.6),
            Sign("xid.64", "gpu", (0.1, 0.5), share=0.1),
            Sign("xid.154.reset", "gpu", (0.1, 0.5), share=0.3),
            _REMOVED,
            Sign("gpu.ecc.dbe", "gpu", (1.0, 12.0), source="nvml"),
            Sign("gpu.remap.pending", "gpu", (5.0, 15.0), source="nvml", share=0.6),
            Sign("bmc.gpu.memory.uncorrectable", "gpu", path="bmc", source="redfish", share=0.3),
        ),
        kills="rank",
        broken=0.15,
    ),
    "gpu_uncontained": Story(
        "gpu",
        (Sign("xid.95", "gpu"), Sign("xid.95", "gpu", (0.7, 3.0), on="siblings", share=0.3), _REMOVED,
         Sign("gpu.ecc.sram", "gpu", (2.0, 12.0), source="nvml", share=0.5)),
        kills="rank",
        broken=0.6,
    ),
    "gpu_gsp": Story(
        "gpu",
        (Sign("xid.119", "gpu", times=(2, 5), every_s=6.0), Sign("xid.154.reset", "gpu", (0.5, 8.0), share=0.5),
         Sign("probe.hung.nvml", "", (20.0, 40.0), source="probe", share=0.3), _REMOVED),
        kills="hang",
        broken=0.2,
    ),
    "nvlink_down": Story(
        "gpu",
        (Sign("xid.74.hardware", "gpu", times=(1, 3)), Sign("xid.45", "gpu", (0.3, 3.0), share=0.6),
         Sign("gpu.nvlink.down", "gpu", (3.0, 15.0), source="nvml")),
        kills="rank",
        broken=0.5,
    ),
    "gpu_heat": Story(
        "gpu",
        (Sign("gpu.throttle.hw_thermal", "gpu", (0.0, 10.0), source="nvml", times=(2, 4), every_s=60.0),
         Sign("gpu.throttle.hw_thermal.sustained", "gpu", (240.0, 400.0), source="nvml")),
        broken=0.8,
        evident_s=400.0,
    ),
    "nic_flap": Story(
        "nic",
        (Sign("nic.link_down", "nic", times=(3, 6), every_s=25.0), Sign("nic.link_up", "nic", (2.0, 4.0), times=(3, 6),
         every_s=25.0)),
        evident_s=50.0,
        broken=0.7,
    ),
    "nic_dead": Story(
        "nic",
        (Sign("nic.health_compromised", "nic"), Sign("nic.command_timeout", "nic", (1.0, 30.0), times=(1, 3)),
         Sign("nic.link_down", "nic", (0.1, 1.0), share=0.6)),
        kills="hang",
        broken=0.5,
    ),
    "host_memory": Story(
        "node",
        (Sign("edac.uncorrected"), Sign("host.mce.uncorrected", after_s=(0.0, 0.5), share=0.6),
         Sign("bmc.memory.uncorrectable", path="bmc", source="redfish", share=0.7)),
        kills="reboot",
        broken=0.8,
    ),
    "node_power": Story(
        "node",
        (Sign("bmc.power.off", path="bmc", source="redfish"),
         Sign("bmc.power.fault", path="bmc", source="redfish", share=0.5)),
        kills="node", broken=0.4,
        lasts_s=(600.0, 7200.0),
    ),
    "node_panic": Story(
        "node", (Sign("bmc.os.stop", path="bmc", source="redfish", share=0.4),), kills="reboot", broken=0.2,
    ),
    "node_hung": Story(
        "node",
        (Sign("host.hard_lockup", share=0.6), Sign("host.soft_lockup", after_s=(0.0, 5.0), times=(3, 5), every_s=23.0)),
        kills="hang",
        evident_s=46.0,
        broken=0.2,
    ),
    "disk_dead": Story(
        "disk",
        (Sign("disk.nvme.timeout", "disk", share=0.6), Sign("disk.io_error", "disk", (0.5, 40.0), times=(2, 5), every_s=2.0),
         Sign("bmc.drive.failed", "disk", path="bmc", source="redfish", share=0.5)),
        broken=0.9,
    ),
    "psu_dead": Story(
        "node",
        (Sign("bmc.psu.failed", "psu/1", path="bmc", source="redfish"),
         Sign("bmc.psu.redundancy", "psu/1", (0.0, 3.0), path="bmc", source="redfish")),
        isolates=False,
        lasts_s=(3600.0, 86_400.0),
    ),
    "rack_power": Story(
        "rack", (Sign("bmc.power.off", path="bmc", source="redfish"),), kills="node", broken=0.0,
        lasts_s=(900.0, 5400.0), spread_s=1.0,
    ),
    "rack_heat": Story(
        "rack",
        (Sign("bmc.temperature.inlet", "inlet", path="bmc", source="redfish", share=0.7),
         Sign("gpu.throttle.hw_thermal", "gpu", (0.0, 60.0), source="nvml", times=(2, 4), every_s=60.0),
         Sign("gpu.throttle.hw_thermal", "gpu", (0.0, 60.0), source="nvml", on="siblings", share=0.5)),
        isolates=False,
        broken=0.0,
        lasts_s=(1200.0, 5400.0),
        spread_s=90.0,
    ),
    "switch_restart": Story(
        "switch",
        (Sign("nic.link_down", "nic", (0.0, 2.0)), Sign("nic.link_up", "nic", (45.0, 100.0))),
        kills="storage",
        isolates=False,
        broken=0.0,
        lasts_s=(45.0, 120.0),
        spread_s=10.0,
    ),
    "store_outage": Story(
        "store",
        (Sign("mount.nfs.not_responding", "dependency/nfs:store", (0.0, 60.0)),
         Sign("host.hung_task", after_s=(120.0, 180.0), share=0.6, times=(1, 3), every_s=20.0),
         Sign("dependency.down", "dependency/nfs:store", (5.0, 30.0), source="dependencies", times=(3, 6), every_s=60.0)),
        isolates=False,
        broken=0.0,
        lasts_s=(300.0, 1800.0),
        spread_s=60.0,
    ),
    "driver_bug": Story(
        "canary",
        (Sign("xid.119", "gpu", times=(1, 3), every_s=6.0),),
        kills="hang",
        isolates=False,
        broken=0.0,
        members=0.75,
        spread_s=120.0,
    ),
}  # fmt: skip
"""What really breaks."""

NOISE: dict[str, Story] = {
    "app_illegal_access": Story(
        "gpu",
        (Sign("xid.31", "gpu"), Sign("xid.43", "gpu", (0.1, 1.0), share=0.5), Sign("xid.45", "gpu", (0.1, 2.0), share=0.4),
         Sign("xid.31", "gpu", (0.0, 2.0), on="siblings", share=0.3)),
        kills="rank",
    ),
    "app_engine": Story(
        "gpu",
        (Sign("xid.13", "gpu", times=(1, 4), attributes={"unit": "*"}), Sign("xid.43", "gpu", (0.1, 1.0), share=0.4)),
        kills="rank",
    ),
    "app_channel": Story("gpu", (Sign("xid.43", "gpu", times=(1, 2)),)),
    "memory_contained": Story(
        "gpu",
        (Sign("xid.94", "gpu"), Sign("xid.63", "gpu", (0.1, 1.0), share=0.7), Sign("xid.45", "gpu", (0.1, 2.0), share=0.4)),
        kills="rank",
    ),
    "row_remapped": Story("gpu", (Sign("xid.63", "gpu"),)),
    "ecc_corrected": Story("gpu", (Sign("gpu.ecc.sbe.many", "gpu", source="nvml"),)),
    "aer_corrected": Story("gpu", (Sign("pcie.aer.corrected.gpu", "gpu", times=(1, 6), every_s=30.0),)),
    "aer_port": Story("node", (Sign("pcie.aer.corrected", "pci/0000:00:01.0", times=(1, 4), every_s=30.0),)),
    "link_blip": Story("nic", (Sign("nic.link_down", "nic"), Sign("nic.link_up", "nic", (1.5, 4.0)))),
    "power_cap": Story("gpu", (Sign("gpu.throttle.sw_power", "gpu", source="nvml", times=(1, 5), every_s=60.0),)),
    "throttle_blip": Story("gpu", (Sign("gpu.throttle.hw_thermal", "gpu", source="nvml"),)),
    "bmc_boot": Story(
        "node",
        (Sign("bmc.boot", path="bmc", source="redfish"), Sign("bmc.sensor.unreadable", path="bmc", source="redfish")),
    ),
    "bmc_latched": Story("node", (Sign("bmc.rollup.critical", path="bmc", source="redfish"),)),
    "bmc_dark": Story("node", (Sign("bmc.unreachable", "bmc", path="bmc", source="redfish"),)),
    "fan_warning": Story("node", (Sign("bmc.fan.warning", "fan/3", path="bmc", source="redfish"),)),
    "dram_corrected": Story("node", (Sign("edac.corrected", times=(1, 3), every_s=20.0),)),
    "hung_task": Story("node", (Sign("host.hung_task"),)),
    "dependency_blip": Story(
        "node",
        (Sign("dependency.down", "dependency/nfs:store", source="dependencies"),
         Sign("dependency.ok", "dependency/nfs:store", (5.0, 20.0), source="dependencies")),
    ),
    "disk_corrected": Story("disk", (Sign("disk.ata_error", "disk"),)),
    "agent_restart": Story("node", ()),
    "agent_silent": Story("node", (), lasts_s=(6.0, 900.0)),
}  # fmt: skip
"""What breaks nothing, or only the program."""

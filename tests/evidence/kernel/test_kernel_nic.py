"""Adapters and links in kernel and network daemons' logs."""

import json
from pathlib import Path

import pytest

from keepstep.core.catalog import CATALOG
from keepstep.core.catalog.row import Scope, Verdict
from keepstep.core.incident import Urgency
from keepstep.evidence.document import Document
from keepstep.evidence.kernel.reader import read

DATA = Path(__file__).parents[3].parent / "shared" / "data" / "kernel_log"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the collection of real cases is not here")

FATAL = [
    ("mlx5_core 0000:03:00.0: wait_func:1195:(pid 1967079): ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource",
     "nic.command_timeout", "nic/0000:03:00"),
    ("mlx5_core 0000:03:00.0: wait_func_handle_exec_timeout:1177:(pid 77): cmd[0]: QUERY_VPORT_STATE(0x750) Async, timeout. "
     "Will cause a leak of a command resource", "nic.command_timeout", "nic/0000:03:00"),
    ("mlx5_core 0000:d2:00.0: poll_health:825: device's health compromised - reached miss count.",
     "nic.health_compromised", "nic/0000:d2:00"),
    ("mlx5_core 0000:d2:00.0: poll_health:780:(pid 0): Fatal error 1 detected", "nic.firmware_error", "nic/0000:d2:00"),
    ("mlx5_core 0000:d2:00.0: print_health_info:424:(pid 0): synd 0x8: unrecoverable hardware error",
     "nic.hardware_error", "nic/0000:d2:00"),
    ("mlx5_core: INFO: synd 0x8: unrecoverable hardware error.", "nic.hardware_error", ""),
    ("mlx5_core 0000:d2:00.0: print_health_info:424:(pid 0): synd 0x1: firmware internal error",
     "nic.firmware_error", "nic/0000:d2:00"),
    ("mlx5_core 0000:d2:00.0: print_health_info:424:(pid 0): Health issue observed, firmware internal error, "
     "severity(3) ERROR:",
     "nic.firmware_error", "nic/0000:d2:00"),
    ("mlx5_core 0000:d2:00.0: mlx5_health_try_recover:335:(pid 9): health recovery flow aborted, PCI reads still not working",
     "nic.recovery_failed", "nic/0000:d2:00"),
    ("mlx5_core 0000:5e:00.0: probe_one:1600:(pid 1): mlx5_init_one failed with error code -110",
     "nic.init_failed", "nic/0000:5e:00"),
    ("mlx5_core: probe of 0000:5e:00.0 failed with error -110", "nic.init_failed", "nic/0000:5e:00"),
    ("mlx5_core 0000:d2:00.0: mlx5_enter_error_state:139:(pid 9): start", "nic.firmware_error", "nic/0000:d2:00"),
    ("ena 0000:00:05.0: Reset attempt failed. Can not reset the device", "nic.recovery_failed", "nic/0000:00:05"),
    ("mlx4_core 0000:05:00.0: command 0x23 timed out (go bit not cleared)", "nic.command_timeout", "nic/0000:05:00"),
    ("bnxt_en 0000:65:00.0 eno1: Error (timeout: 500015) msg {0x23 0x1} len:0", "nic.command_timeout", "nic/0000:65:00"),
    ("ice 0000:31:00.0: Rebuild failed, unload and reload driver", "nic.recovery_failed", "nic/0000:31:00"),
]  # fmt: skip

WATCHED = [
    ("mlx5_core 0000:12:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).",
     "nic.low_power", "nic/0000:12:00"),
    ("mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature",
     "nic.module_hot", "nic/0000:5c:00"),
    ("mlx5_core 0000:5c:00.0: Port module event[error]: module 1, Cable error, Bus stuck(I2C or data shorted)",
     "nic.module_error", "nic/0000:5c:00"),
    ("mlx5_core 0000:5c:00.0: temp_warn:190:(pid 0): High temperature on sensors with bit set 0 1",
     "nic.hot", "nic/0000:5c:00"),
    ("mlx5_core 0000:5c:00.0: print_health_info:1:(pid 0): synd 0x10: High temperature", "nic.hot", "nic/0000:5c:00"),
    ("NETDEV WATCHDOG: enp65s0 (mlx5_core): transmit queue 3 timed out", "nic.tx_timeout", "nic/enp65s0"),
    ("mlx5_core 0000:41:00.0 enp65s0: NETDEV WATCHDOG: CPU: 12: transmit queue 3 timed out 5000 ms",
     "nic.tx_timeout", "nic/enp65s0"),
    ("mlx5_core 0000:41:00.0 enp65s0: TX timeout detected", "nic.tx_timeout", "nic/enp65s0"),
    ("ib0: transmit timeout: latency 1060 msecs", "nic.tx_timeout", "nic/ib0"),
]  # fmt: skip

LINKS = [
    ("mlx5_core 0000:41:00.0 enp65s0f0np0: Link down", "nic.link_down", "nic/enp65s0f0np0"),
    ("mlx5_core 0000:41:00.0 enp65s0f0np0: Link up", "nic.link_up", "nic/enp65s0f0np0"),
    ("igb 0000:03:00.0 eno1: igb: eno1 NIC Link is Down", "nic.link_down", "nic/eno1"),
    ("bnxt_en 0000:65:00.0 ens3f0: NIC Link is Up, 100000 Mbps full duplex, Flow control: none", "nic.link_up", "nic/ens3f0"),
    ("tg3 0000:04:00.0 eno8303: Link is down", "nic.link_down", "nic/eno8303"),
    ("e1000e: eth2 NIC Link is Down", "nic.link_down", "nic/eth2"),
    ("bonding: bond0: link status definitely down for interface ens1, disabling it", "nic.link_down", "nic/ens1"),
    ("bond0: (slave ens1): link status definitely down, disabling slave", "nic.link_down", "nic/ens1"),
    ("bond0: now running without any active interface!", "nic.bond_lost", "nic/bond0"),
    ("Aug 17 06:18:01 n1 systemd-networkd[53]: ib6: Lost carrier", "nic.link_down", "nic/ib6"),
    ("Aug 17 06:18:01 n1 systemd-networkd[53]: ib6: Gained carrier", "nic.link_up", "nic/ib6"),
    ("Aug 17 06:18:01 n1 NetworkManager[9]: <info>  [1700000000.1] device (ib0): carrier: link connected",
     "nic.link_up", "nic/ib0"),
    ("Aug 17 06:18:01 n1 dhcpcd[9]: eth7: carrier lost", "nic.link_down", "nic/eth7"),
    ("systemd-networkd[53]: ib6: Lost carrier", "nic.link_down", "nic/ib6"),
]  # fmt: skip

QUIET = [
    "IPv6: ADDRCONF(NETDEV_CHANGE): cali317e2eeb40: link becomes ready",
    "Aug 17 06:18:01 n1 systemd-networkd[53]: cali317e2eeb40: Lost carrier",
    "Aug 17 06:18:01 n1 systemd-networkd[53]: veth12ab: Lost carrier",
    "docker0: port 1(veth1) entered disabled state",
    "mlx5_cmd_out_err:838:(pid 1441871): OTHER_CMD(0x123) failed",
    "High Temperature detected but not in a port module event",
    "ata3: SATA link down (SStatus 0 SControl 300)",
]


def found(text: str) -> list[tuple[str, str]]:
    return [(seen.signal, seen.part) for seen in read(Document("log", text.encode())).observations]


@pytest.mark.parametrize(("line", "signal", "part"), [*FATAL, *WATCHED, *LINKS])
def test_a_line_about_an_adapter_is_read(line: str, signal: str, part: str) -> None:
    assert found(line) == [(signal, part)]


@pytest.mark.parametrize(("line", "signal", "part"), FATAL)
def test_a_dead_adapter_is_its_own_fault_and_urgent(line: str, signal: str, part: str) -> None:
    row = CATALOG.row(signal)
    assert (row.failure_class, row.scope, row.verdict, row.urgency) == (
        "nic.driver",
        Scope.NIC,
        Verdict.FAULTY,
        Urgency.NOW,
    )


@pytest.mark.parametrize(("line", "signal", "part"), WATCHED)
def test_heat_and_a_stalled_queue_are_watched(line: str, signal: str, part: str) -> None:
    assert CATALOG.row(signal).verdict is Verdict.WATCH


@pytest.mark.parametrize("line", QUIET)
def test_an_ordinary_line_about_the_network_says_nothing(line: str) -> None:
    assert found(line) == []


def test_a_processor_stuck_in_the_adapters_driver_is_the_adapters() -> None:
    text = (
        "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [ksoftirqd/3:29]\n"
        "  Call Trace:\n  mlx5e_napi_poll+0x12a/0x700 [mlx5_core]\n  __napi_poll+0x30/0x1f0\n"
    )
    assert ("nic.driver_lockup", "") in found(text)


EXPECTED = {
    "cmd_exec_timeout": "nic.command_timeout", "health_poll_failed": "nic.health_compromised",
    "unrecoverable_err": "nic.hardware_error", "pci_power_insufficient": "nic.low_power",
    "port_module_high_temp": "nic.module_hot", "access_reg_failed": "nic.access_register",
}  # fmt: skip


@needs_data
def test_the_adapter_makers_own_cases_are_read_as_they_say() -> None:
    cases = [json.loads(line) for line in (DATA / "nvsentinel_cases.jsonl").read_text().splitlines()]
    ours = [case for case in cases if "wantPattern" in case]
    assert len(ours) == 6
    for case in ours:
        (signal, _), = found(case["message"])  # fmt: skip
        assert signal == EXPECTED[case["wantPattern"]]
        assert (CATALOG.row(signal).verdict is Verdict.FAULTY) is (case.get("wantFatal") == "true")

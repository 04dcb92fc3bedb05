"""Ports, links and switches as tools print them: hand-written samples of each form."""

import json
from pathlib import Path

import pytest

from keepstep.core.catalog import CATALOG
from keepstep.core.catalog.row import Verdict
from keepstep.core.combine import judge
from keepstep.core.parts import joined
from keepstep.core.signal import Context, Signal
from keepstep.evidence.document import Document
from keepstep.evidence.recognise import read, recognise

DATA = Path(__file__).resolve().parents[4] / "shared" / "data" / "infiniband"


def signals(*texts: str | bytes) -> list[Signal]:
    """What documents say together, without what is benign."""
    observations, said = [], []
    for index, text in enumerate(texts):
        reading = read(Document(f"sample{index}", text if isinstance(text, bytes) else text.encode()))
        assert reading is not None, "no reader knows this form"
        observations += reading.observations
        said += reading.same
    judged = judge(observations, Context(parts=joined(said)))
    return [signal for signal in judged if signal.row.verdict is not Verdict.BENIGN]


def keys(*texts: str) -> list[tuple[str, str]]:
    return [(signal.key, signal.seen.part) for signal in signals(*texts)]


def ibstat(*ports: tuple[str, str, str, str]) -> str:
    """(device, state, physical state, rate)"""
    return "\n".join(
        f"CA '{device}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tFirmware version: 28.39.1002\n\tHardware version: 0\n"
        f"\tNode GUID: 0x9c0591030080ab0{index}\n\tPort 1:\n\t\tState: {state}\n\t\tPhysical state: {physical}\n"
        f"\t\tRate: {rate}\n\t\tBase lid: 12\n\t\tLMC: 0\n\t\tSM lid: 1\n\t\tLink layer: InfiniBand"
        for index, (device, state, physical, rate) in enumerate(ports)
    )


UP = ("Active", "LinkUp", "400")
DOWN = ("Down", "Polling", "10")


def test_a_healthy_ibstat_says_nothing_but_that_ports_are_fine() -> None:
    reading = read(Document("x", ibstat(*((f"mlx5_{i}", *UP) for i in range(8))).encode()))
    assert reading is not None
    assert reading.observations == []
    assert len(reading.fine) == 8


def test_a_port_that_is_down_while_those_of_its_role_are_up_is_faulty() -> None:
    text = ibstat(*((f"mlx5_{i}", *(DOWN if i == 3 else UP)) for i in range(8)))
    (signal,) = signals(text)
    assert (signal.key, signal.seen.part, signal.row.verdict) == ("port.down", "nic/mlx5_3/1", Verdict.FAULTY)
    assert signal.seen.line == text[: text.index("Port 1", text.index("mlx5_3"))].count("\n") + 1


def test_unused_ports_are_no_fault() -> None:
    assert keys(ibstat(*((f"mlx5_{i}", *(UP if i < 2 else DOWN)) for i in range(8)))) == []


def test_a_disabled_port_is_no_fault() -> None:
    assert keys(ibstat(("mlx5_0", *UP), ("mlx5_1", "Down", "Disabled", "10"), ("mlx5_2", *UP))) == []


def test_a_lone_port_that_is_down_is_only_suspected() -> None:
    (signal,) = signals(ibstat(("mlx5_0", *DOWN)))
    assert (signal.key, signal.row.verdict) == ("port.down.alone", Verdict.SUSPECT)


def test_ports_that_no_manager_activates_are_one_fabric_incident() -> None:
    found = keys(ibstat(*((f"mlx5_{i}", "Initializing", "LinkUp", "400") for i in range(8))))
    assert found == [("fabric.no_manager", "")]


def test_a_port_below_the_rate_of_its_peers_is_suspected() -> None:
    text = ibstat(*((f"mlx5_{i}", "Active", "LinkUp", "200" if i == 5 else "400") for i in range(8)))
    assert keys(text) == [("port.rate", "nic/mlx5_5/1")]


def test_ports_of_another_model_are_not_compared() -> None:
    storage = ibstat(("mlx5_9", "Active", "LinkUp", "100")).replace("MT4129", "MT4119")
    assert keys(ibstat(*((f"mlx5_{i}", *UP) for i in range(8))) + "\n" + storage) == []


def test_hosts_of_a_parallel_shell_are_kept_apart() -> None:
    bad = ibstat(("mlx5_0", *UP), ("mlx5_1", *DOWN), ("mlx5_2", *UP))
    good = ibstat(*((f"mlx5_{i}", *UP) for i in range(3)))
    lines = [f"{host}: {line}" for host, text in (("n1", bad), ("n2", good)) for line in text.split("\n")]
    (signal,) = signals("\n".join(lines))
    assert (signal.seen.node, signal.key) == ("n1", "port.down")


IBSTATUS = """Infiniband device '{device}' port 1 status:
\tdefault gid:\t fe80:0000:0000:0000:9c05:9103:0080:ab00
\tbase lid:\t 0x1f
\tsm lid:\t\t 0x1
\tstate:\t\t {state}
\tphys state:\t {physical}
\trate:\t\t 200 Gb/sec (4X HDR)
\tlink_layer:\t InfiniBand
"""


def test_ibstatus_is_read() -> None:
    up = [IBSTATUS.format(device=f"mlx5_{i}", state="4: ACTIVE", physical="5: LinkUp") for i in range(3)]
    down = IBSTATUS.format(device="mlx5_3", state="1: DOWN", physical="2: Polling")
    assert keys("\n".join([*up, down])) == [("port.down", "nic/mlx5_3/1")]


def test_ibv_devinfo_and_rdma_link_are_read() -> None:
    devinfo = "".join(
        f"hca_id:\tmlx5_{i}\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t20.31.2354\n\tvendor_part_id:\t\t\t4123\n"
        "\t\tport:\t1\n"
        f"\t\t\tstate:\t\t\t{'PORT_DOWN (1)' if i == 1 else 'PORT_ACTIVE (4)'}\n\t\t\tlink_layer:\t\tInfiniBand\n\n"
        for i in range(4)
    )
    assert keys(devinfo) == [("port.down", "nic/mlx5_1/1")]
    rdma = "\n".join(
        f"link mlx5_{i}/1 state {'DOWN physical_state POLLING' if i == 2 else 'ACTIVE physical_state LINK_UP'} netdev ens{i}"
        for i in range(4)
    )
    assert keys(rdma) == [("port.down", "nic/mlx5_2/1")]


def tree(changes: dict[str, str], ports: int = 8) -> dict[str, str]:
    files = {}
    for i in range(ports):
        base = f"/sys/class/infiniband/mlx5_{i}"
        files |= {
            f"{base}/fw_ver": "28.39.1002", f"{base}/hca_type": "MT4129", f"{base}/board_id": "MT_0000000838",
            f"{base}/node_desc": f"gpu-node-7 mlx5_{i}", f"{base}/ports/1/state": "4: ACTIVE",
            f"{base}/ports/1/phys_state": "5: LinkUp", f"{base}/ports/1/rate": "400 Gb/sec (4X NDR)",
            f"{base}/ports/1/link_layer": "InfiniBand", f"{base}/ports/1/counters/link_downed": "0",
            f"{base}/ports/1/counters/symbol_error": "0", f"{base}/ports/1/counters/excessive_buffer_overrun_errors": "0",
        }  # fmt: skip
    return files | {f"/sys/class/infiniband/{name}": value for name, value in changes.items()}


@pytest.mark.parametrize("form", ["json", "grep", "head"])
def test_a_flattened_tree_is_read_in_each_form(form: str) -> None:
    files = tree({"mlx5_4/ports/1/state": "1: DOWN", "mlx5_4/ports/1/phys_state": "2: Polling"})
    text = {
        "json": json.dumps(files, indent=1),
        "grep": "\n".join(f"{path}:{value}" for path, value in files.items()),
        "head": "\n\n".join(f"==> {path} <==\n{value}" for path, value in files.items()),
    }[form]
    (signal,) = signals(text)
    assert (signal.key, signal.seen.part, signal.seen.node) == ("port.down", "nic/mlx5_4/1", "gpu-node-7")


def test_trap_9_a_saturated_counter_is_blind_and_no_fault() -> None:
    reading = read(Document("x", json.dumps(tree({"mlx5_1/ports/1/counters/link_downed": "255"})).encode()))
    assert reading is not None
    assert "port.saturated" in [seen.signal for seen in reading.observations]
    assert signals(json.dumps(tree({"mlx5_1/ports/1/counters/link_downed": "255"}))) == []


def test_far_more_losses_than_the_peers_are_suspected() -> None:
    assert keys(json.dumps(tree({"mlx5_6/ports/1/counters/link_downed": "57"}))) == [("port.flaps", "nic/mlx5_6/1")]
    assert keys(json.dumps(tree({f"mlx5_{i}/ports/1/counters/link_downed": "4" for i in range(8)}))) == []


def test_down_and_often_down_before_is_faulty_beyond_doubt() -> None:
    files = tree({"mlx5_6/ports/1/counters/link_downed": "57", "mlx5_6/ports/1/state": "1: DOWN"})
    down = next(signal for signal in signals(json.dumps(files)) if signal.key == "port.down")
    assert down.row.confidence > CATALOG.row("port.down").confidence


def test_another_firmware_than_its_like_is_drift() -> None:
    assert keys(json.dumps(tree({"mlx5_2/fw_ver": "28.35.1012"}))) == [("nic.firmware.mixed", "nic/mlx5_2")]


def test_uncorrected_host_memory_errors_in_a_tree_are_told() -> None:
    mc = "/sys/devices/system/edac/mc/mc0"
    files = tree({}) | {f"{mc}/ue_count": "2", f"{mc}/ce_count": "0"}
    assert keys(json.dumps(files)) == [("edac.uncorrected", "dimm/mc0")]


PERFQUERY = """# Port extended counters: Lid 7 port 1 (CapMask: 0x5300 CapMask2: 0x0000002)
PortSelect:......................1
CounterSelect:...................0x0000
PortXmitData:....................36298026860928
PortRcvData:.....................12279028775751
PortXmitPkts:....................101733204203
PortRcvPkts:.....................32262508468
SymbolErrorCounter:..............{symbols}
LinkDownedCounter:...............{downs}
PortRcvErrors:...................{damaged}
PortXmitDiscards:................0
LocalLinkIntegrityErrors:........0
"""


def test_counters_of_unknown_age_only_count_where_they_are_absurd() -> None:
    assert keys(PERFQUERY.format(symbols=3, downs=1, damaged=14)) == []
    assert keys(PERFQUERY.format(symbols=0, downs=255, damaged=0)) == []
    assert keys(PERFQUERY.format(symbols=0, downs=0, damaged=65_000_000)) == [("port.receive_errors", "link/lid7/1")]
    assert keys(PERFQUERY.format(symbols=0, downs=80, damaged=0)) == [("port.flaps", "link/lid7/1")]


def test_old_spellings_of_counters_are_read() -> None:
    text = (
        "# Port counters: Lid 4 port 2\nPortSelect:......................2\nSymbolErrors:....................70000\n"
        "LinkRecovers:....................0\nLinkDowned:......................0\nRcvErrors:.......................0\n"
    )
    assert keys(text) == [("port.symbol_errors.level", "link/lid4/2")]


def test_a_link_below_what_both_ends_can_do_is_told_and_an_unused_port_is_not() -> None:
    text = (
        'Switch: 0xb8599f0300c2f06a leaf1:\n'
        '     41    1[  ] ==( 4X        53.125 Gbps Active/  LinkUp)==>      12    1[  ] "n1 HCA-1" ( )\n'
        '     41    2[  ] ==( 2X        53.125 Gbps Active/  LinkUp)==>      13    1[  ] "n2 HCA-1" ( Could be 4X)\n'
        '     41    3[  ] ==(                Down/ Polling)==>             [  ] "" ( )\n'
    )  # fmt: skip
    assert [key for key, _ in keys(text)] == ["link.rate"]


SWITCH = """=================================================
Quantum Mellanox Technologies
=================================================
part number        | MQM8790-HS2F
product name       | Jaguar Unmng IB 200
ports              | 40
PSID               | MT_0000000063
GUID               | 0x08c0eb0300aaaaaa
firmware version   | 27.2010.3118
-------------------------------------------------
uptime (d-h:m:s)   | 96d-01:55:47
-------------------------------------------------
PSU0 status        | OK
     DC power      | {power}
     fan status    | OK
     power (W)     | 154
PSU1 status        | OK
     DC power      | OK
     fan status    | OK
     power (W)     | 134
-------------------------------------------------
temperature (C)    | {heat}
fan status         | {fans}
fan#1 (rpm)        | 6125
"""


def test_the_parts_of_a_switch_that_failed_are_named() -> None:
    assert keys(SWITCH.format(power="OK", heat=53, fans="OK")) == []
    assert [key for key, _ in keys(SWITCH.format(power="ERROR", heat=53, fans="OK"))] == ["switch.psu"]
    assert [key for key, _ in keys(SWITCH.format(power="OK", heat=53, fans="ERROR"))] == ["switch.fan"]
    assert [key for key, _ in keys(SWITCH.format(power="OK", heat=120, fans="OK"))] == ["switch.hot"]


def test_a_broken_report_of_a_switch_is_not_a_broken_switch() -> None:
    reading = read(Document("x", SWITCH.format(power="", heat="foo", fans="OK").encode()))
    assert reading is not None
    assert reading.observations == []
    assert reading.not_understood_count == 2


IP_LINK = """1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN mode DEFAULT group default qlen 1000
    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
2: eno1: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc mq state DOWN mode DEFAULT group default qlen 1000
    link/ether aa:bb:cc:dd:ee:01 brd ff:ff:ff:ff:ff:ff
3: ens1f0: <{flags}> mtu 9000 qdisc mq master bond0 state {state} mode DEFAULT group default qlen 1000
    link/ether aa:bb:cc:dd:ee:02 brd ff:ff:ff:ff:ff:ff
4: docker0: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc noqueue state DOWN mode DEFAULT group default
    link/ether aa:bb:cc:dd:ee:03 brd ff:ff:ff:ff:ff:ff
"""


def test_only_an_interface_that_is_to_carry_traffic_can_be_down() -> None:
    assert keys(IP_LINK.format(flags="BROADCAST,MULTICAST,SLAVE,UP,LOWER_UP", state="UP")) == []
    down = IP_LINK.format(flags="NO-CARRIER,BROADCAST,MULTICAST,SLAVE,UP", state="DOWN")
    assert keys(down) == [("netdev.down", "nic/ens1f0")]


def test_ethtool_alone_blames_nobody() -> None:
    text = "Settings for ens1f1:\n\tSupported ports: [ FIBRE ]\n\tSpeed: Unknown!\n\tLink detected: no\n"
    assert keys(text) == []


def test_an_alarm_of_an_optical_module_is_told() -> None:
    text = (
        "\tIdentifier                                : 0x11 (QSFP28)\n"
        "\tModule temperature high alarm             : Off\n"
        "\tLaser rx power low alarm   (Channel 1)    : On\n"
    )  # fmt: skip
    assert [key for key, _ in keys(text)] == ["optics.alarm"]


def found(speed: int = 200_000, mtu: int = 9000, **more: object) -> str:
    entry = {
        "ifname": "ens1f0",
        "flags": ["BROADCAST", "UP", "LOWER_UP"],
        "mtu": mtu,
        "operstate": "UP",
        "master": "bond0",
    }
    return json.dumps({"intf_status": [entry], "link_speed": {"ens1f0": str(speed)}, **more})


EXPECTED = json.dumps({
    "pci": {}, "eth": {"PCIE_5": {"netdev": "ens1f0", "speed": 200_000, "mtu": 9000}},
    "ib": {"link_rate": "400 Gb/sec (4X NDR)", "firmware_version": ["28.39.1002"]},
})  # fmt: skip


def test_what_was_found_is_compared_with_what_is_expected() -> None:
    assert keys(found(), EXPECTED) == []
    assert keys(found(speed=100_000), EXPECTED) == [("port.rate", "nic/ens1f0")]
    assert keys(found(mtu=1500), EXPECTED) == [("netdev.mtu", "nic/ens1f0")]
    assert keys(json.dumps(tree({"mlx5_0/fw_ver": "28.35.1012"}, ports=1)), EXPECTED) == [
        ("nic.firmware.unexpected", "nic/mlx5_0")
    ]


def test_contradicting_expectations_are_none() -> None:
    assert keys(found(speed=100_000), EXPECTED, EXPECTED.replace("200000", "400000")) == []


def test_a_start_up_file_says_what_an_interface_should_be() -> None:
    files = {"intf_ifcfg": {"ens1f0": {"DEVICE": "ens1f0", "ONBOOT": "yes", "MTU": "9000"}}}
    assert keys(found(mtu=1500, **files)) == [("netdev.mtu", "nic/ens1f0")]
    gone = json.dumps({"intf_status": [], "link_speed": {"ens1f0": ""}})
    assert keys(gone) == [("netdev.missing", "nic/ens1f0")]


LABELS: dict[str, set[tuple[str, str]]] = {
    "gcm_eth_learn_good.json": set(),
    "gcm_eth_learn_down_intf.json": {("nic.link", "nic")},
    "gcm_eth_learn_missing_intf.json": {("nic.lost", "nic")},
    "gcm_eth_learn_mtu_bad.json": {("config.drift", "nic")},
    "gcm_learn_good.json": set(),
    "gcm_learn_ib_intf_bad_rate.json": {("nic.link", "nic")},
    "gcm_learn_ib_intf_operstate_down.json": {("nic.link", "nic")},
    "gcm_learn_ib_misbound_if.json": {("config.drift", "nic")},
    "gcm_DGX_A100.json": set(),
    "gpud_sys_class_infiniband_h100.json": set(),
    "superbench_ibstat.txt": set(),
    "superbench_ibnetdiscover.txt": set(),
    "ibexp_ibswinfo__test1.out": {("thermal.fan", "fabric")},
    "ibexp_ibswinfo__test3.out": {("power.psu", "fabric")},
    **{f"ibexp_ibswinfo__{name}.out": set() for name in ("test2", "test-err1", "test-err2", "test-err3", "test1-missing")},
    **{f"ibexp_ibnetdiscover__test{n}.out": set() for n in ("", "2", "3")},
    **{f"ibexp_perfquery__0x{guid}.out": set() for guid in ("506b4b03005c2740", "7cfe9003003b4b96", "7cfe9003009ce5b0")},
}  # fmt: skip
"""What each capture shows: (failure class, scope) of what is worse than to be watched."""


@pytest.mark.skipif(not DATA.exists(), reason="the collected captures are absent")
@pytest.mark.parametrize("name", sorted(LABELS))
def test_a_capture_is_judged_as_labelled(name: str) -> None:
    told = {
        (signal.row.failure_class, signal.row.scope.value)
        for signal in signals((DATA / name).read_bytes())
        if signal.row.verdict is not Verdict.WATCH
    }
    assert told == LABELS[name]


@pytest.mark.skipif(not DATA.exists(), reason="the collected captures are absent")
@pytest.mark.parametrize("name", ["gcm_eth_learn_degraded_intf.json", "gcm_learn_ib_intf_bad_version.json"])
def test_a_capture_that_looks_well_by_itself_is_told_beside_its_manifest(name: str) -> None:
    manifest = (DATA / "gcm_DGX_A100.json").read_bytes()
    classes = {signal.row.failure_class for signal in signals((DATA / name).read_bytes(), manifest)}
    assert {"gcm_eth_learn_degraded_intf.json": "nic.link"}.get(name, "config.drift") in classes
    good = {signal.row.verdict for signal in signals((DATA / "gcm_eth_learn_good.json").read_bytes(), manifest)}
    assert good == set()


def test_nothing_is_recognised_in_nothing() -> None:
    assert recognise(Document("x", b"")) is None

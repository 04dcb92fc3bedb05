"""Ports, PCI devices, memory and sensors of a tree of files that the test changes."""

import json
import shutil
from pathlib import Path

import pytest

from keepstep.adapters.sysfs.edac import EdacWatch
from keepstep.adapters.sysfs.pci import PciWatch
from keepstep.adapters.sysfs.ports import PortWatch
from keepstep.adapters.sysfs.thermal import ThermalWatch
from keepstep.adapters.sysfs.watching import Batch
from keepstep.core.catalog import CATALOG
from keepstep.core.catalog.row import Verdict

DATA = Path(__file__).resolve().parents[4] / "shared" / "data" / "infiniband"


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def ports(count: int = 4) -> dict[str, str]:
    files = {}
    for i in range(count):
        base = f"class/infiniband/mlx5_{i}"
        files |= {
            f"{base}/fw_ver": "28.39.1002", f"{base}/hca_type": "MT4129", f"{base}/board_id": "MT_1",
            f"{base}/ports/1/state": "4: ACTIVE", f"{base}/ports/1/phys_state": "5: LinkUp",
            f"{base}/ports/1/rate": "400 Gb/sec (4X NDR)", f"{base}/ports/1/link_layer": "InfiniBand",
            f"{base}/ports/1/counters/link_downed": "0", f"{base}/ports/1/counters/symbol_error": "0",
            f"{base}/ports/1/hw_counters/rnr_nak_retry_err": "0",
        }  # fmt: skip
    return files


def worse(batch: Batch) -> list[tuple[str, str]]:
    """What is told and is not benign."""
    return [(x.signal, x.part) for x in batch.observations if CATALOG.row(x.signal).verdict is not Verdict.BENIGN]


def test_a_port_that_goes_down_is_told_at_once_and_its_return_too(tmp_path: Path) -> None:
    put(tmp_path, ports())
    watch = PortWatch(tmp_path)
    assert worse(watch.look(0.0)) == []
    put(
        tmp_path,
        {
            "class/infiniband/mlx5_2/ports/1/state": "1: DOWN",
            "class/infiniband/mlx5_2/ports/1/phys_state": "2: Polling",
        },
    )
    batch = watch.look(1.0)
    assert worse(batch) == [("port.down", "nic/mlx5_2/1")]
    assert batch.observations[0].at_s == 1.0
    assert worse(watch.look(2.0)) == []
    put(
        tmp_path,
        {
            "class/infiniband/mlx5_2/ports/1/state": "4: ACTIVE",
            "class/infiniband/mlx5_2/ports/1/rate": "200 Gb/sec (2X NDR)",
        },
    )
    assert [x.signal for x in watch.look(3.0).observations] == ["port.up", "port.rate"]


def test_a_port_that_somebody_switches_off_is_no_fault(tmp_path: Path) -> None:
    put(tmp_path, ports())
    watch = PortWatch(tmp_path)
    watch.look(0.0)
    put(
        tmp_path,
        {
            "class/infiniband/mlx5_2/ports/1/state": "1: DOWN",
            "class/infiniband/mlx5_2/ports/1/phys_state": "3: Disabled",
        },
    )
    assert worse(watch.look(1.0)) == []


def test_at_the_first_look_a_port_is_blamed_only_with_positive_evidence(tmp_path: Path) -> None:
    down = {"class/infiniband/mlx5_3/ports/1/state": "1: DOWN"}
    put(tmp_path, ports() | down)
    assert worse(PortWatch(tmp_path).look(0.0)) == [("port.down", "nic/mlx5_3/1")]
    put(tmp_path, {f"class/infiniband/mlx5_{i}/ports/1/state": "1: DOWN" for i in (1, 2)})
    assert worse(PortWatch(tmp_path).look(0.0)) == []
    assert worse(PortWatch(tmp_path, rails=frozenset({"mlx5_3"})).look(0.0)) == [("port.down", "nic/mlx5_3/1")]


def test_counters_are_told_by_their_growth_and_the_first_look_is_the_baseline(tmp_path: Path) -> None:
    name = "class/infiniband/mlx5_1/ports/1/counters/link_downed"
    put(tmp_path, ports() | {name: "7"})
    watch = PortWatch(tmp_path)
    watch.look(0.0)
    put(tmp_path, {name: "9"})
    assert worse(watch.look(30.0)) == []
    put(tmp_path, {name: "10"})
    assert worse(watch.look(60.0)) == [("port.flaps", "nic/mlx5_1/1")]
    put(tmp_path, {name: "0"})
    assert worse(watch.look(90.0)) == [], "somebody cleared it"


def test_a_device_that_vanishes_while_it_is_watched_raises_nothing(tmp_path: Path) -> None:
    put(tmp_path, ports())
    watch = PortWatch(tmp_path)
    watch.look(0.0)
    shutil.rmtree(tmp_path / "class/infiniband/mlx5_0")
    for at_s in range(1, 200, 20):
        watch.look(float(at_s))


def test_a_node_without_ports_is_absent_and_no_fault(tmp_path: Path) -> None:
    batch = PortWatch(tmp_path).look(0.0)
    assert (batch.coverage[0], batch.observations) == ("absent", [])


@pytest.mark.skipif(not DATA.exists(), reason="the collected captures are absent")
def test_trap_9_the_tree_of_a_healthy_node_is_healthy(tmp_path: Path) -> None:
    files = json.loads((DATA / "gpud_sys_class_infiniband_h100.json").read_text())
    put(tmp_path, {"class/infiniband/" + path.partition("/")[2]: str(value).strip() for path, value in files.items()})
    watch = PortWatch(tmp_path)
    looks = [watch.look(float(at_s)) for at_s in range(0, 200, 10)]
    assert [worse(batch) for batch in looks] == [[]] * len(looks)
    assert len(looks[0].levels) > 50


def device(address: str, kind: str, width: int = 16) -> dict[str, str]:
    base = f"bus/pci/devices/{address}"
    return {
        f"{base}/class": kind, f"{base}/max_link_width": "16", f"{base}/current_link_width": str(width),
        f"{base}/aer_dev_fatal": "Undefined 0\nDLP 0\nTOTAL_ERR_FATAL 0",
    }  # fmt: skip


def test_a_card_is_missing_after_three_complete_enumerations(tmp_path: Path) -> None:
    put(
        tmp_path,
        device("0000:9b:00.0", "0x030200") | device("0000:1a:00.0", "0x020700") | device("0000:00:1f.0", "0x060100"),
    )
    watch = PciWatch(tmp_path)
    watch.look(0.0)
    shutil.rmtree(tmp_path / "bus/pci/devices/0000:9b:00.0")
    assert [worse(watch.look(at_s)) for at_s in (10.0, 20.0)] == [[], []]
    assert worse(watch.look(30.0)) == [("pci.missing.gpu", "gpu/0000:9b:00")]
    assert worse(watch.look(40.0)) == []


def test_an_enumeration_that_shows_nothing_is_none(tmp_path: Path) -> None:
    put(tmp_path, device("0000:9b:00.0", "0x030200"))
    watch = PciWatch(tmp_path)
    watch.look(0.0)
    shutil.rmtree(tmp_path / "bus/pci/devices/0000:9b:00.0")
    assert [worse(watch.look(float(at_s))) for at_s in range(10, 60, 10)] == [[]] * 5


def test_a_narrow_link_and_fatal_errors_are_told(tmp_path: Path) -> None:
    put(tmp_path, device("0000:9b:00.0", "0x030200", width=8) | device("0000:1a:00.0", "0x020700"))
    watch = PciWatch(tmp_path)
    assert [worse(watch.look(at_s)) for at_s in (0.0, 60.0, 120.0)] == [[], [], [("pci.width.gpu", "gpu/0000:9b:00")]]
    put(tmp_path, {"bus/pci/devices/0000:1a:00.0/aer_dev_fatal": "Undefined 0\nDLP 1\nTOTAL_ERR_FATAL 1"})
    assert worse(watch.look(180.0)) == [("pci.aer.fatal.nic", "nic/0000:1a:00")]


def test_uncorrected_memory_errors_are_told_by_their_growth(tmp_path: Path) -> None:
    base = "devices/system/edac/mc/mc0"
    put(tmp_path, {f"{base}/ue_count": "3", f"{base}/ce_count": "10"})
    watch = EdacWatch(tmp_path)
    assert worse(watch.look(0.0)) == []
    put(tmp_path, {f"{base}/ue_count": "4"})
    assert worse(watch.look(60.0)) == [("edac.uncorrected", "dimm/mc0")]
    put(tmp_path, {f"{base}/ce_count": "2000"})
    assert worse(watch.look(120.0)) == [("edac.corrected", "dimm/mc0")]


def test_dimms_are_named_by_their_labels(tmp_path: Path) -> None:
    base = "devices/system/edac/mc/mc0/dimm3"
    put(tmp_path, {f"{base}/dimm_label": "CPU0_DIMM_B1", f"{base}/dimm_ue_count": "0", f"{base}/dimm_ce_count": "0"})
    watch = EdacWatch(tmp_path)
    watch.look(0.0)
    put(tmp_path, {f"{base}/dimm_ue_count": "1"})
    assert worse(watch.look(60.0)) == [("edac.uncorrected", "dimm/CPU0_DIMM_B1")]


def test_heat_still_fans_and_lowered_limits_are_told(tmp_path: Path) -> None:
    base = "class/hwmon/hwmon0"
    power = "class/powercap/intel-rapl:0"
    put(tmp_path, {
        f"{base}/name": "coretemp", f"{base}/temp1_input": "45000", f"{base}/temp1_crit": "100000",
        f"{base}/temp2_input": "-128000", f"{base}/temp2_crit": "100000", f"{base}/fan1_input": "8000",
        f"{base}/fan2_input": "0",
        f"{power}/constraint_0_power_limit_uw": "350000000", f"{power}/energy_uj": "1000000",
    })  # fmt: skip
    watch = ThermalWatch(tmp_path)
    assert worse(watch.look(0.0)) == []
    put(tmp_path, {f"{base}/temp1_input": "101000", f"{base}/fan1_input": "0", f"{power}/energy_uj": "3001000000",
                   f"{power}/constraint_0_power_limit_uw": "200000000"})  # fmt: skip
    batches = [watch.look(at_s) for at_s in (30.0, 60.0, 90.0, 120.0)]
    told = sorted(x for batch in batches for x in worse(batch))
    assert told == [
        ("power.host_limit", "cpu/intel-rapl:0"),
        ("thermal.critical", "sensor/coretemp.temp1"),
        ("thermal.fan", "fan/coretemp.fan1"),
    ]  # fmt: skip
    assert ("cpu/intel-rapl:0", "power_w", 100.0) in batches[0].levels

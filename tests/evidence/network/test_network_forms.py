"""Rarer forms of the same facts."""

import json

from keepstep.core.catalog.row import Verdict
from keepstep.core.combine import judge
from keepstep.core.observation import Observation
from keepstep.core.signal import Context
from keepstep.evidence.document import Document
from keepstep.evidence.recognise import read


def seen(text: str) -> list[Observation]:
    reading = read(Document("sample", text.encode()))
    assert reading is not None, "no reader knows this form"
    return reading.observations


def keys(text: str) -> list[tuple[str, str]]:
    return [(x.signal, x.part) for x in seen(text) if not x.signal.startswith("inventory.")]


def archived(state: str) -> str:
    files = {
        f"sys/class/infiniband/mlx5_{i}/ports/1/{name}": value
        for i in range(4)
        for name, value in (
            ("state", state if i == 2 else "4: ACTIVE"),
            ("phys_state", "5: LinkUp"),
            ("counters/link_downed", "0"),
        )
    }
    body = "\n".join(f"Path: {path}\nLines: 1\n{value}\nMode: 644" for path, value in files.items())
    return f"# Archive created by ttar -c -f sys.ttar sys\nDirectory: sys\nMode: 755\n{body}\n# ttar - - - -\n"


def test_a_text_archive_of_a_tree_is_read() -> None:
    assert keys(archived("4: ACTIVE")) == []
    assert keys(archived("1: DOWN")) == [("port.down", "nic/mlx5_2/1")]


def test_a_nested_tree_is_read() -> None:
    nested = {f"mlx5_{i}": {"ports": {"1": {"state": "1: DOWN" if i == 1 else "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)"}}}
              for i in range(4)}  # fmt: skip
    assert keys(json.dumps({"infiniband": nested})) == [("port.down", "nic/mlx5_1/1")]


def mlxlink(state: str, physical: str, advice: str) -> str:
    return (
        f"\nOperational Info\n----------------\nState                              : {state}\n"
        f"Physical state                     : {physical}\nSpeed                              : IB-NDR\n"
        "Width                              : 4x\n\nSupported Info\n--------------\n"
        "Enabled Link Speed                 : 0x00000080 (NDR)\n\nTroubleshooting Info\n--------------------\n"
        f"Status Opcode                      : 0\nRecommendation                     : {advice}\n"
    )


def test_mlxlink_is_read() -> None:
    assert keys(mlxlink("Active", "LinkUp", "No issue was observed")) == []
    assert keys(mlxlink("Polling", "ETH_AN_FSM_ENABLE", "Bad signal integrity")) == [("port.down.alone", "nic/port")]
    assert keys(mlxlink("Disable", "Disabled", "The port is closed by command")) == [("port.disabled", "nic/port")]


def test_ports_of_one_adapter_are_two_parts() -> None:
    text = "CA 'mlx5_0'\n\tCA type: MT4123\n" + "".join(
        f"\tPort {n}:\n\t\tState: {state}\n\t\tPhysical state: {physical}\n\t\tRate: 200\n"
        for n, state, physical in ((1, "Active", "LinkUp"), (2, "Down", "Polling"))
    )
    reading = read(Document("x", text.encode()))
    assert reading is not None
    assert [x.signal for x in reading.observations] == ["port.unused"]
    assert not any({"nic/mlx5_0/1", "nic/mlx5_0/2"} <= set(same.parts) for same in reading.same)


def manifest() -> str:
    return json.dumps({
        "pci": {
            "0000:0c:00.0": {"type": "ib", "dev": "/sys/class/net/ib0", "link_width": "16"},
            "0000:12:00.0": {"type": "ib", "dev": "/sys/class/net/ib1", "link_width": "16"},
            "0000:1b:00.0": {"type": "gpu", "dev": "/dev/nvidia0", "link_width": "16"},
        },
        "eth": {}, "ib": {"interfaces": {"ib0": {"mlx": "mlx5_0"}, "ib1": {"mlx": "mlx5_1"}}},
    })  # fmt: skip


def node(second: str = "mlx5_1", width: str = "16", gpu: bool = True) -> str:
    files = {}
    for address, device, netdev in (("0000:0c:00.0", "mlx5_0", "ib0"), ("0000:12:00.0", second, "ib1")):
        base = f"/sys/bus/pci/devices/{address}"
        files |= {
            f"{base}/infiniband/{device}/ports/1/state": "4: ACTIVE", f"{base}/net/{netdev}/operstate": "up",
            f"/sys/class/pci_bus/x/device/{address}/current_link_width": "16",
        }  # fmt: skip
    if gpu:
        files["/sys/class/pci_bus/x/device/0000:1b:00.0/current_link_width"] = width
    return json.dumps(files)


def derived(*texts: str) -> list[tuple[str, str]]:
    observations = [x for text in texts for x in seen(text)]
    found = judge(observations, Context())
    return [(x.key, x.seen.part) for x in found if x.row.verdict is not Verdict.BENIGN]


def test_slots_lanes_and_presence_are_compared_with_the_manifest() -> None:
    assert derived(manifest(), node()) == []
    assert derived(manifest(), node(width="8")) == [("pci.width.gpu", "gpu/0000:1b:00")]
    assert derived(manifest(), node(gpu=False)) == [("pci.missing.gpu", "gpu/0000:1b:00")]
    assert derived(manifest(), node(second="mlx5_7")) == [("nic.binding", "nic/ib1")]
    assert derived(node(width="8")) == []

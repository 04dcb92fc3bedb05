"""Xid lines of every driver generation, and the labelled cases of other monitors: code, card, decode and verdict agree."""

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from keepstep.core.catalog import CATALOG
from keepstep.core.catalog.row import Remedy, Verdict
from keepstep.core.observation import Observation, Same, pci_name
from keepstep.evidence.document import Document
from keepstep.evidence.kernel import reader
from keepstep.evidence.reading import Reading

SHARED = Path(__file__).parents[3].parent / "shared"
LOGS = SHARED / "data" / "kernel_log"
REFERENCE = SHARED / "reference"


def cases(name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """(id, case) of a labelled file; nothing where the data is absent."""
    path = LOGS / name
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else (), 1):
        yield f"{name}:{number}", json.loads(line)


def read(text: str) -> Reading:
    return reader.read(Document("case", text.encode()))


def one(text: str) -> Observation:
    (seen,) = read(text).observations
    return seen


def code_of(seen: Observation) -> str:
    return seen.attributes.get("xid", "79" if seen.attributes.get("without_xid") else "")


GPUD = [
    pytest.param(case.get("input") or case["logLine"], case, id=name)
    for name, case in cases("gpud_xid_cases.jsonl")
    if "input" in case or "logLine" in case
]


@pytest.mark.parametrize(("text", "case"), GPUD)
def test_case_of_one_monitor_agrees(text: str, case: dict[str, str]) -> None:
    found = read(text).observations
    expected = case.get("expectedXid") or case.get("expected", "")
    if case.get("expectNil") == "true" or expected in ("0", ""):
        assert found == []
        return
    (seen,) = found
    if expected.isdigit():
        assert code_of(seen) == expected
    device = case.get("expectedDevice") or case.get("expectedDeviceUUID") or (expected if ":" in expected else "")
    if device:
        assert seen.part == f"gpu/{pci_name(device)}"
    if "expectedSubCode" in case:
        attributes = seen.attributes
        assert attributes["subcode"] == case["expectedSubCode"].split(",")[0]
        assert attributes["unit"] == case["expectedSubCodeName"]
        assert attributes["severity"] == case["expectedSeverity"].lower()
        assert attributes["link"] == case["expectedLink"]
        assert attributes["intrinfo"] == case["expectedIntrinfo"]
        assert attributes["error_status"] == case["expectedErrorStatus"]


VENDOR = [
    pytest.param(case["message"], case, id=name)
    for name, case in cases("nvsentinel_cases.jsonl")
    if "NVRM" in case.get("message", "") and ("expectedSuccess" in case or "expectEvent" in case)
]


@pytest.mark.parametrize(("text", "case"), VENDOR)
def test_case_of_the_vendors_monitor_agrees(text: str, case: dict[str, str]) -> None:
    found = read(text).observations
    if "expectedXIDCode" not in case:
        silent = [seen for seen in found if seen.attributes.get("without_xid")]
        expected = case.get("expectEvent") == "true"
        if "fallen off" in text:
            assert bool(silent) == expected
            assert not expected or silent[0].part == f"gpu/{pci_name(case.get('expectPCI', '0000:b3:00.0'))}"
            assert silent == [] or silent[0].attributes.get("pci_id", "") == case.get("expectPCIID", "10de:26b5")
        elif "Xid (" not in text:
            assert found == []
        return
    (seen,) = found
    assert (code_of(seen), seen.part) == (case["expectedXIDCode"], f"gpu/{pci_name(case['expectedPCIAddr'])}")
    row = CATALOG.row(seen.signal)
    action = case.get("expectedAction", "").removeprefix("pb.RecommendedAction_")
    if action == "COMPONENT_RESET":
        assert (row.verdict, row.remedy) == (Verdict.FAULTY, Remedy.RESET_DEVICE)
    elif action == "NONE":
        assert not row.isolate
    elif action:
        assert row.verdict in (Verdict.SUSPECT, Verdict.FAULTY)


LINES = {
    "NVRM: Xid (0000:03:00): 13, 0003 00000000 0000a097 00001b0c 00000000 00000000": ("xid.13", {}),
    "NVRM: Xid (PCI:0000:06:00): 31, Ch 00000003, engmask 00000101, intr 10000000": ("xid.31", {"channel": "00000003"}),
    "NVRM: Xid (PCI:0000:06:00): 31, pid=1234, name=python3.11, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS "
    "GPCCLIENT_T1_2 faulted @ 0x7f_52000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ": (
        "xid.31",
        {"pid": "1234", "process": "python3.11", "fault": "FAULT_PDE", "access": "ACCESS_TYPE_VIRT_READ"},
    ),
    "NVRM: Xid (PCI:0000:06:00 GPU-I:05): 31, pid=12, name=a b": ("xid.31", {"mig": "05", "process": "a b"}),
    "NVRM: Xid (PCI:0000:06:00): 43, pid=7, name=VLLM::Worker_TP0, Ch 00000008": (
        "xid.43", {"process": "VLLM::Worker_TP0"}
    ),
    "NVRM: Xid (PCI:0000:06:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE)": ("xid.48", {}),
    "NVRM: Xid (PCI:0000:06:00): 63, pid=12, Row Remapper: New row (0x00000000a1) marked for remapping": ("xid.63", {}),
    "NVRM: Xid (PCI:0000:06:00): 94, pid=12, name=python, Contained: CE User Channel (0x9). RST: No, D-RST: No": (
        "xid.94", {"contained": "yes"}
    ),
    "NVRM: Xid (PCI:0000:06:00): 95, pid=12, name=python, Uncontained: FBHUB. RST: Yes, D-RST: No": (
        "xid.95", {"contained": "no"}
    ),
    "NVRM: Xid (PCI:0000:06:00): 13, pid=7, Graphics SM Global Exception on (GPC 9, TPC 1, SM 1): Multiple Warp Errors": (
        "xid.13", {"gpc": "9", "tpc": "1", "sm": "1", "unit": "GPC9/TPC1"}
    ),
    "NVRM: Xid (PCI:0000:06:00): 119, pid=7, name=x, Timeout after 6s of waiting for RPC response from GPU4 GSP! "
    "Expected function 103 (GSP_RM_ALLOC) (0x2081 0x4).": (
        "xid.119", {"waited_s": "6", "index": "4", "function": "GSP_RM_ALLOC"}
    ),
    "NVRM: Xid (PCI:0000:06:00): 74, pid=7, name=x, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0)": (
        "xid.74", {"link": "14"}
    ),
    "NVRM: Xid (PCI:0000:06:00): 999, something new": ("xid.999", {}),
    "NVRM: Xid (PCI:0000:06:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)": (
        "nvlink5.149.link", {"subcode": "4", "link": "8"}
    ),
    "NVRM: Xid (PCI:0000:06:00): 149, NETIR_LINK_DOWN Fatal XC0 i0 Link 08 (0x02100011 0x00000000)": (
        "nvlink5.149.peer", {"subcode": "33"}
    ),
    "NVRM: Xid (PCI:0000:06:00): 145, RLW_REMAP Fatal XC1 i0 Link 08 (0x00000004 0x00000040)": ("nvlink5.145.fatal", {}),
    "NVRM: Xid (PCI:0000:06:00): 145, RLW_REMAP Nonfatal XC1 i0 Link 08 (0x00000004 0x00000004)": ("nvlink5.145.contained", {}),
    "NVRM: Xid (PCI:0000:06:00): 145, RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000082 0x00000040)": ("nvlink5.145.fatal", {}),
    "NVRM: Xid (PCI:0000:06:00): 146, TLW_RX/TLW_RX_PIPE0 Fatal XC0 i0 Link 00 (0x0a 0x04)": ("nvlink5.146.fatal", {}),
    "NVRM: Xid (PCI:0000:06:00): 149, NETIR/NETIR_INT Fatal XC0 i0 Link 00 (0x00000018 0x00000000)": ("nvlink5.149.fatal", {}),
    "NVRM: Xid (PCI:0000:06:00): 149, NETIR_MFDE_EVENT Nonfatal XC0 i0 Link 00 (0x14 0x3)": ("nvlink5.149.nonfatal", {}),
    "NVRM: Xid (PCI:0000:06:00): 148, NVLPW_CTRL/NVLPW Nonfatal XC0 i0 Link 00 (0xf 0x80000000)": ("nvlink5.148.nonfatal", {}),
    "NVRM: Xid (PCI:0000:06:00): 150, MSE Degraded Fatal XC0 i0 Link -1 (0x0 0x0)": ("nvlink5.150.fatal", {}),
    "NVRM: Xid (PCI:0000:06:00): 149": ("nvlink5.149", {}),
    "VRM: Xid (PCI:0000:06:00): 79, pid=1, GPU has fallen off the bus.": ("xid.79", {}),
    "kernel: NVRM: Xid (PCI:0000:06:00): 79, GPU has fallen off the bus.": ("xid.79", {}),
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_line_is_decoded(line: str) -> None:
    signal, attributes = LINES[line]
    seen = one(line)
    assert seen.signal == signal
    assert attributes.items() <= seen.attributes.items()


def test_names_of_a_card_are_joined() -> None:
    text = (
        "[ 5.1] NVRM: GPU at PCI:0000:9b:00: GPU-509665ad-b600-ac93-3616-d754b23d636d\n"
        "[ 5.1] NVRM: GPU Board Serial Number: 1650124014249\n"
    )
    assert read(text).same == [
        Same(parts=("gpu/0000:9b:00", "gpu/GPU-509665ad-b600-ac93-3616-d754b23d636d", "gpu/serial:1650124014249"))
    ]


def test_storm_is_one_observation_that_counts() -> None:
    lines = [
        f"[ 10.{n:06d}] NVRM: Xid (PCI:0000:38:00): 13, Graphics SM Warp Exception on (GPC {n % 3}, TPC 1, SM 0)"
        for n in range(50)
    ]
    seen = one("\n".join(lines))
    assert (seen.count, seen.line) == (50, 1)
    assert seen.attributes["units"] == "GPC0/TPC1,GPC1/TPC1,GPC2/TPC1"


def test_history_of_calls_is_no_event() -> None:
    path = LOGS / "gpud_dmesg-with-xid-119.log"
    if not path.exists():
        pytest.skip("no labelled data here")
    read_all = reader.read(Document("x", path.read_bytes())).observations
    found = [seen for seen in read_all if CATALOG.row(seen.signal).verdict is not Verdict.BENIGN]
    assert {seen.part for seen in found} == {"gpu/0000:9b:00"}
    assert sum(seen.count for seen in found if seen.signal == "xid.119") == 5
    assert {CATALOG.row(seen.signal).failure_class for seen in found} == {"gpu.firmware.gsp"}


def test_every_listed_code_has_a_row() -> None:
    path = REFERENCE / "xid.csv"
    if not path.exists():
        pytest.skip("no reference here")
    for listed in csv.DictReader(io.StringIO(path.read_text())):
        key = f"nvlink5.{listed['xid']}" if 144 <= int(listed["xid"]) <= 150 else f"xid.{listed['xid']}"
        assert key in CATALOG.rows, key


def test_urgency_and_class_are_those_of_the_reference() -> None:
    path = REFERENCE / "signals.csv"
    if not path.exists():
        pytest.skip("no reference here")
    urgencies = {"NOW": "now", "NONE": "none", "JOB_END": "job_end", "NEXT_CKPT": "next_checkpoint"}
    for listed in csv.DictReader(io.StringIO(path.read_text())):
        found = re.match(r"XID (\d+) ", listed["signal"])
        if found is None or 144 <= int(found[1]) <= 150 or found[1] == "154":
            continue
        row = CATALOG.rows[f"xid.{found[1]}"]
        assert row.urgency.value == urgencies[listed["job_urgency"]], found[1]
        classes = listed["failure_class"].replace("media/copy", "media|gpu.engine.copy").split("|")
        if found[1] not in ("142", "168"):
            assert row.failure_class in classes, found[1]


@pytest.mark.parametrize(
    "key", sorted(key for key in CATALOG.rows if key.startswith(("xid", "nvlink5", "sxid", "nvrm")))
)
def test_row_is_consistent(key: str) -> None:
    row = CATALOG.rows[key]
    assert row.source
    assert not row.isolate or row.verdict is Verdict.FAULTY
    assert row.verdict is not Verdict.BENIGN or row.urgency.value == "none"

"""NVSwitch errors in kernel lines and in the fabric manager's log."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from keepstep.core.catalog import CATALOG
from keepstep.core.catalog.row import Verdict
from keepstep.core.catalog.sxid import SEVERITY
from keepstep.core.observation import pci_name
from keepstep.evidence.document import Document
from keepstep.evidence.kernel import fabric_manager, notes, reader
from keepstep.evidence.reading import Reading

SHARED = Path(__file__).parents[3].parent / "shared"
LOGS = SHARED / "data" / "kernel_log"


def cases(name: str) -> Iterator[tuple[str, dict[str, str]]]:
    path = LOGS / name
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else (), 1):
        yield f"{name}:{number}", json.loads(line)


def read(text: str) -> Reading:
    return reader.read(Document("case", text.encode()))


GPUD = [pytest.param(case["input"], case, id=name) for name, case in cases("gpud_sxid_cases.jsonl") if "input" in case]


@pytest.mark.parametrize(("text", "case"), GPUD)
def test_case_of_one_monitor_agrees(text: str, case: dict[str, str]) -> None:
    found = read(text).observations
    expected = case.get("expectedSXid") or case.get("expected", "")
    if case.get("expectNil") == "true" or expected in ("0", ""):
        assert found == []
        return
    (seen,) = found
    if expected.isdigit():
        assert seen.attributes["sxid"] == expected
    if device := case.get("expectedDevice") or (expected if ":" in expected else ""):
        assert seen.part == f"nvswitch/{pci_name(device)}"


VENDOR = [
    pytest.param(case.get("line") or case["message"], name, id=name)
    for name, case in cases("nvsentinel_cases.jsonl")
    if "SXid (" in (case.get("line") or case.get("message") or "")
]
UNDERSTOOD = {"28006": ("nonfatal", "46", Verdict.WATCH), "24007": ("fatal", "28", Verdict.FAULTY)}
"""Of the vendor's cases only these two lines are whole; the others were cut or have no severity."""


@pytest.mark.parametrize(("text", "name"), VENDOR)
def test_case_of_the_vendors_monitor_agrees(text: str, name: str) -> None:
    found = read(text).observations
    code = next((code for code in UNDERSTOOD if f": {code}, " in text), None)
    if code is None:
        assert found == [], name
        return
    (seen,) = found
    severity, link, verdict = UNDERSTOOD[code]
    assert (seen.attributes["severity"], seen.attributes["link"]) == (severity, link)
    assert CATALOG.row(seen.signal).verdict is verdict


@pytest.mark.parametrize(
    ("rest", "verdict"),
    [
        ("20034, Fatal, Link 30 LTSSM Fault Up", Verdict.FAULTY),
        ("20034, Non-fatal, Link 30 LTSSM Fault Up", Verdict.WATCH),
        ("12028, Non-fatal, Link 32 egress non-posted PRIV error (First)", Verdict.SUSPECT),
        ("12028, Fatal, Link 32 egress non-posted PRIV error (First)", Verdict.FAULTY),
        ("11012, Non-fatal, Link 3 single bit", Verdict.WATCH),
        ("22013, Non-fatal, Link 3 Minion Link DLREQ interrupt", Verdict.BENIGN),
        ("23001, Fatal, Link 3 ingress SRC-VC buffer overflow", Verdict.FAULTY),
        ("10003, Fatal, Host unhandled interrupt", Verdict.FAULTY),
        ("99999, Fatal, Link 3 something new", Verdict.FAULTY),
        ("99999, Non-fatal, Link 3 something new", Verdict.WATCH),
    ],
)
def test_what_the_line_says_wins_over_the_table(rest: str, verdict: Verdict) -> None:
    (seen,) = read(f"[ 1.5] nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): {rest}").observations
    assert CATALOG.row(seen.signal).verdict is verdict


def test_registers_that_follow_an_error_are_no_errors_of_their_own() -> None:
    text = (
        "[131453.740743] nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"
        "[131453.74] nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Severity 1 Engine instance 30 Sub-engine instance 00\n"
        "[131453.740758] nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Data {0x50610002, 0x10100030}\n"
    )
    reading = read(text)
    assert [(seen.signal, seen.line) for seen in reading.observations] == [("sxid.20034", 1)]
    assert reading.not_understood_count == 0


def test_cut_line_is_counted_as_not_understood() -> None:
    reading = read("[38889.0] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20009, Non-fatal, Li")
    assert (reading.observations, reading.not_understood_count) == ([], 1)


def test_severities_are_those_of_the_reference() -> None:
    path = SHARED / "reference" / "sxid.csv"
    if not path.exists():
        pytest.skip("no reference here")
    names = {"always_fatal": "always", "potentially_fatal": "potential", "non_fatal": "nonfatal"}
    for listed in csv.DictReader(io.StringIO(path.read_text())):
        if int(listed["sxid"]) not in (10004, 10005):
            assert SEVERITY[int(listed["sxid"])] == names[listed["severity"]]


def test_log_of_the_fabric_manager_names_the_switch_and_its_port() -> None:
    path = LOGS / "gpud_fabricmanager.log"
    if not path.exists():
        pytest.skip("no labelled data here")
    document = Document("log", path.read_bytes())
    assert fabric_manager.recognise(document) >= 0.9
    (seen,) = fabric_manager.read(document).observations
    assert (seen.signal, seen.part, seen.attributes["link"]) == ("sxid.12028", "nvswitch/0000:86:00", "61")


FM = "[Feb 27 2025 15:10:02] [{}] [tid 12727] {}\n"


@pytest.mark.parametrize(
    ("level", "text", "signal"),
    [
        ("ERROR", "detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 61",
         "sxid.20034"),
        ("INFO", "Received an inband message:  Message header details: magic Id:adbc", None),
        ("ERROR", "fabric manager failed to initialise NVSwitch devices: exiting", "fabric_manager.stopped"),
        ("ERROR", "NVLink training failed for link 3 of GPU 2", "fabric_manager.link_training"),
        ("ERROR", "something else", "fabric_manager.error"),
        ("WARNING", "something else", None),
    ],
)  # fmt: skip
def test_line_of_the_fabric_manager(level: str, text: str, signal: str | None) -> None:
    document = Document("log", FM.format(level, text).encode())
    assert fabric_manager.recognise(document) >= 0.9
    assert [seen.signal for seen in fabric_manager.read(document).observations] == ([signal] if signal else [])


def test_fabric_manager_in_the_systems_log_is_read_too() -> None:
    text = "Feb 27 15:10:02 node-7 nv-fabricmanager[77]: "
    text += "detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0"
    (seen,) = read(text).observations
    assert (seen.signal, seen.part, seen.node) == ("sxid.20034", "nvswitch/0000:86:00", "node-7")


def test_notes_of_a_person_are_the_last_resort() -> None:
    document = Document(
        "note.txt", b"Xid 48 / 171: DBE, all on PCI 0000:9c:00, at 03:51 / 05:37\nno Xid 79 was seen; then Xid 94"
    )
    assert notes.recognise(document) == 0.3
    found = notes.read(document).observations
    assert [(seen.signal, seen.part) for seen in found] == [
        ("xid.48", "gpu/0000:9c:00"), ("xid.48", "gpu/0000:9c:00"), ("xid.171", "gpu/0000:9c:00"),
        ("xid.171", "gpu/0000:9c:00"),
        ("xid.94", "gpu/0000:9c:00"),
    ]  # fmt: skip
    assert notes.recognise(Document("x", b"NVRM: Xid (PCI:0000:9c:00): 48\nXid 48 on 0000:9c:00")) == 0.0
    assert notes.recognise(Document("x", b"training step 48 done on rank 0")) == 0.0

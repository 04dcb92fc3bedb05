"""The labelled cases: which evidence belongs together, and what is right. Owns reading labels; runs nothing.

Labels of whole files stand in ``labels/*.toml``, in our own words. The collections of single lines carry the expectations of
those who wrote them (``expectedXid``, ``IsFatal``, ``RecommendedAction`` …): those are the labels there, joined with the class
and scope that the reference catalogue of signals gives the code.
"""

import csv
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, field

LABELS = Path(__file__).parent / "labels"


class Want(Struct, frozen=True, kw_only=True):
    """One incident that is right. Alternatives are separated by ``|``; a leading ``!`` says "not"."""

    cause: str = ""
    class_: str = field(name="class", default="")
    scope: str = ""
    resource: str = ""
    action: str = ""
    job: str = ""
    at_most: float = 1.0
    """Confidence."""


class SignalWant(Struct, frozen=True, kw_only=True):
    """A signal that must be among those found, whether it makes an incident or not."""

    key: str = ""
    class_: str = field(name="class", default="")
    scope: str = ""
    part: str = ""
    verdict: str = ""


class Case(Struct, kw_only=True):
    id: str
    folder: str
    documents: list[tuple[str, bytes]]
    wants: list[Want] = []
    optional: list[Want] = []
    """Incidents that may be there, and no others."""
    signal: SignalWant | None = None
    unread: bool = False
    """Whether it may be that nobody knows the form."""
    any_incident: bool = False
    """Whether incidents are not judged: only the signal, and that nothing is isolated where ``no_quarantine``."""
    no_quarantine: bool = False
    why: str = ""


def all_cases(data: Path) -> Iterator[Case]:
    for path in sorted(LABELS.glob("*.toml")):
        yield from _labelled(tomllib.loads(path.read_text()), data)
    yield from _gpud_xid(data)
    yield from _gpud_sxid(data)
    yield from _gpud_lines(data)
    yield from _vendor_lines(data)


def _labelled(labels: dict[str, Any], data: Path) -> Iterator[Case]:
    folder = data / labels["folder"]
    for label in labels["case"]:
        for name, documents in _evidence(label, labels, folder):
            yield _case(f"{labels['folder']}/{name}", _folder_of(name, labels["folder"]), documents, label)


def _folder_of(name: str, folder: str) -> str:
    return name.split("/")[1] if name.startswith("../") else folder


def _evidence(
    label: dict[str, Any], labels: dict[str, Any], folder: Path
) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    if "excerpts" in labels:
        rows = (json.loads(line) for line in (folder / labels["excerpts"]).read_text().splitlines())
        text = "\n".join(next(row["lines"] for row in rows if row["id"] == label["id"]))
        yield label["id"], [(label["id"], text.encode())]
    elif "lines" in labels:
        line = (folder / labels["lines"]).read_text().splitlines()[label["line"] - 1].split("##")[0]
        yield f"{labels['lines']}:{label['line']}", [("line", line.encode())]
    else:
        for name in label.get("files") or [label["file"]]:
            path = folder / name
            files = sorted(path.iterdir()) if path.is_dir() else [path]
            yield name, [(file.name, file.read_bytes()) for file in files]


def _case(name: str, folder: str, documents: list[tuple[str, bytes]], label: dict[str, Any]) -> Case:
    return Case(
        id=name, folder=folder, documents=documents, wants=_wants(label.get("wants", [])),
        optional=_wants(label.get("optional", [])), unread=label.get("unread", False), why=label.get("why", ""),
        signal=SignalWant(**_renamed(label["signal"])) if "signal" in label else None,
    )  # fmt: skip


def _wants(rows: list[dict[str, Any]]) -> list[Want]:
    return [Want(**_renamed(row)) for row in rows]


def _renamed(row: dict[str, Any]) -> dict[str, Any]:
    return {"class_" if name == "class" else name: value for name, value in row.items()}


# ---- collections of lines


def _rows(data: Path, name: str) -> Iterator[tuple[int, dict[str, str]]]:
    path = data / "kernel_log" / name
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else (), 1):
        yield number, json.loads(line)


def reference(data: Path) -> dict[int, tuple[str, str]]:
    """Xid -> (classes, scope) of the reference's catalogue of signals."""
    found = {}
    with (data.parent / "reference" / "signals.csv").open() as file:
        for row in csv.DictReader(file):
            match = re.match(r"XID (\d+) ", row["signal"])
            if match is not None:
                # The reference parts NVLink's fifth generation from the rest; our classes are those of its list of classes.
                classes = "nvlink" if row["failure_class"].startswith("nvlink5") else row["failure_class"]
                found[int(match[1])] = (classes, row["scope"])
    return found


def _line(name: str, folder: str, text: str, **more: Any) -> Case:
    return Case(id=name, folder=folder, documents=[("line", text.encode())], unread=True, **more)


def _pci(text: str) -> str:
    return "gpu/" + text.lower().removeprefix("pci:").split(".")[0]


def _gpud_xid(data: Path) -> Iterator[Case]:
    known = reference(data)
    for number, case in _rows(data, "gpud_xid_cases.jsonl"):
        text = case.get("input") or case.get("logLine")
        if text is None:
            continue
        expected = case.get("expectedXid") or case.get("expected", "")
        name, folder = f"gpud_xid:{number}", "kernel_log lines: Xid"
        if case.get("expectNil") == "true" or expected in ("0", ""):
            yield _line(name, folder, text)
            continue
        device = case.get("expectedDevice") or case.get("expectedDeviceUUID") or (expected if ":" in expected else "")
        classes = known.get(int(expected), ("", ""))[0] if expected.isdigit() else ""
        want = SignalWant(part=_pci(device) if device else "", class_=classes)
        yield _line(name, folder, text, signal=want, any_incident=True)


def _gpud_sxid(data: Path) -> Iterator[Case]:
    for number, case in _rows(data, "gpud_sxid_cases.jsonl"):
        text = case.get("input") or case.get("logLine") or case.get("line")
        if text is None:
            continue
        expected = case.get("expectedXid") or case.get("expectedSXid") or case.get("expected", "")
        name, folder = f"gpud_sxid:{number}", "kernel_log lines: SXid"
        if case.get("expectNil") == "true" or expected in ("0", ""):
            yield _line(name, folder, text)
        elif expected.isdigit():
            yield _line(name, folder, text, signal=SignalWant(key=f"sxid.*{expected}"), any_incident=True)
        else:
            yield _line(name, folder, text, signal=SignalWant(key="sxid."), any_incident=True)


_COMPONENTS = {
    "infiniband": ("nic|noise", "nic"), "nccl": ("software", "job"), "peermem": ("software.driver", "node"),
    "cpu": ("os.kernel|storage.shared", "node|dependency"), "disk": ("storage.local", "disk|node"),
    "memory": ("os.memory", "job"), "os": ("os", "node"), "nfs": ("storage.shared", "dependency"),
}  # fmt: skip
_EXPECTED = (
    "want",
    "expectMatch",
    "expectedMatch",
    "expectedFound",
    "wantEvent",
    "wantEventName",
    "wantName",
    "expected",
)


def _gpud_lines(data: Path) -> Iterator[Case]:
    for number, case in _rows(data, "gpud_kmsg_cases.jsonl"):
        text = case.get("line", case.get("logLine"))
        wanted = next((case[name] for name in _EXPECTED if name in case), None)
        if text is None or wanted is None or "wantFound" in case or text.startswith(("CPU:", "PID:")):
            continue
        name, folder = f"gpud_kmsg:{number}", "kernel_log lines: others"
        if wanted in ("false", ""):
            yield _line(name, folder, text, any_incident=True, no_quarantine=True)
        else:
            classes, scope = _COMPONENTS[case["_src"].split("/")[-2]]
            yield _line(name, folder, text, signal=SignalWant(class_=classes, scope=scope), any_incident=True)


def _vendor_lines(data: Path) -> Iterator[Case]:
    known = reference(data)
    for number, case in _rows(data, "nvsentinel_cases.jsonl"):
        text = case.get("message") or case.get("line")
        if text is None:
            continue
        made = _vendor_case(case, text, known)
        if made is not None:
            made.id, made.folder, made.unread = f"nvsentinel:{number}", "kernel_log lines: vendor", True
            yield made


def _vendor_case(case: dict[str, str], text: str, known: dict[int, tuple[str, str]]) -> Case | None:
    document = [("line", text.encode())]
    action = case.get("expectedAction", case.get("wantAction", "")).removeprefix("pb.RecommendedAction_")
    if case.get("expectedXIDCode", "").isdigit():
        classes = known.get(int(case["expectedXIDCode"]), ("", ""))[0]
        want = SignalWant(part=_pci(case["expectedPCIAddr"]), class_=classes)
        wants = [Want(action="quarantine+reset_device")] if action == "COMPONENT_RESET" else []
        return Case(
            id="",
            folder="",
            documents=document,
            signal=want,
            wants=wants,
            any_incident=not wants,
            no_quarantine=action == "NONE",
        )
    if "fallen off" in text and case.get("expectEvent") == "true":
        return Case(
            id="", folder="", documents=document, wants=[Want(class_="gpu.fallen_off_bus|gpu.lost", scope="card")]
        )
    if "SXid (" in text and "ErrorNum" in case:
        want = SignalWant(key=f"sxid.*{case['ErrorNum']}")
        return Case(id="", folder="", documents=document, signal=want, any_incident=True)
    if action == "REPLACE_VM":
        return Case(id="", folder="", documents=document, wants=[Want(class_="nic", scope="nic", action="quarantine")])
    if case.get("wantPattern"):
        return Case(
            id="",
            folder="",
            documents=document,
            signal=SignalWant(class_="nic|noise"),
            any_incident=True,
            no_quarantine=True,
        )
    if case.get("expectedSuccess") == "false" or ("Xid (" not in text and "expectEvent" in case):
        return Case(id="", folder="", documents=document)
    return None

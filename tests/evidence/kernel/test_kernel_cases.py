"""The labelled kernel lines of the collection: found where their own tests say so, and only there; and hostile lines."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.core.catalog import CATALOG
from keepstep.core.catalog.row import Scope, Verdict
from keepstep.core.combine import judge
from keepstep.core.signal import Context
from keepstep.evidence.document import Document
from keepstep.evidence.kernel import crash, disks, machine, modules, nic, pcie, services, shared_storage
from keepstep.evidence.kernel.frames import Record
from keepstep.evidence.kernel.reader import read

DATA = Path(__file__).parents[3].parent / "shared" / "data" / "kernel_log"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the collection of real cases is not here")

OURS: dict[str, tuple[str, ...]] = {
    "infiniband": ("nic.low_power", "nic.module_hot", "nic.access_register"),
    "nccl": ("host.segfault.nccl",),
    "peermem": ("driver.peermem.context",),
    "cpu": ("host.hung_task", "host.soft_lockup"),
    "disk": ("disk.",),
    "memory": ("host.oom.cgroup", "host.oom.global", "host.oom.killed", "host.oom.note"),
    "os": ("host.limit.files",),
    "nfs": ("mount.nfs.",),
}
"""What counts as found, by the component whose test the line is from."""

CLASSES = {
    "infiniband": {("nic.power", Scope.NIC), ("nic.thermal", Scope.NIC), ("noise", Scope.NIC)},
    "nccl": {("software.nccl", Scope.JOB)},
    "peermem": {("software.driver", Scope.NODE)},
    "cpu": {("os.kernel", Scope.NODE)},
    "disk": {("storage.local", Scope.DISK), ("storage.local", Scope.NODE)},
    "memory": {("os.memory", Scope.JOB)},
    "os": {("os.resource", Scope.NODE)},
    "nfs": {("storage.shared", Scope.DEPENDENCY)},
}

WANTED = ("want", "expectMatch", "expectedMatch", "expectedFound", "wantEvent", "wantEventName", "wantName", "expected")
AUXILIARY = ("CPU:", "PID:")
"""Lines of a panic's register dump: they name its process and are no event."""


def cases() -> list[tuple[str, str, bool]]:
    """(component, line, whether it is an event)."""
    found = []
    for text in (DATA / "gpud_kmsg_cases.jsonl").read_text().splitlines():
        case: dict[str, Any] = json.loads(text)
        line = case.get("line", case.get("logLine"))
        wanted = next((case[key] for key in WANTED if key in case), None)
        if line is None or wanted is None or line.startswith(AUXILIARY) or "wantFound" in case:
            continue
        found.append((case["_src"].split("/")[-2], line, wanted not in ("false", "")))
    return found


def signals(line: str) -> list[str]:
    return [seen.signal for seen in read(Document("log", line.encode())).observations]


@needs_data
def test_labelled_lines_are_found_where_they_are_events_and_only_there() -> None:
    labelled = cases()
    assert len(labelled) >= 165
    wrong = []
    for component, line, event in labelled:
        got = [x for x in signals(line) if x.startswith(OURS[component])]
        if bool(got) is not event:
            wrong.append((component, line, event, got))
    assert not wrong


@needs_data
def test_labelled_lines_have_the_class_and_scope_of_their_component() -> None:
    for component, line, event in cases():
        for signal in signals(line) if event else ():
            row = CATALOG.row(signal)
            assert (row.failure_class, row.scope) in CLASSES[component], (line, signal)


@needs_data
def test_lines_that_are_no_events_put_nothing_out_of_service() -> None:
    for _, line, event in cases():
        if not event:
            assert not any(CATALOG.row(x).isolate for x in signals(line)), line


def excerpt(name: str) -> list[Any]:
    for text in (DATA / "github_issue_excerpts.jsonl").read_text().splitlines():
        case = json.loads(text)
        if case["id"] == name:
            return judge(read(Document(name, "\n".join(case["lines"]).encode())).observations, Context())
    raise LookupError(name)


@needs_data
def test_a_lost_card_its_other_functions_and_the_later_bus_errors_are_one_fault() -> None:
    faults = [x for x in excerpt("xid79_then_aer") if x.row.verdict in (Verdict.FAULTY, Verdict.SUSPECT)]
    assert [(x.key, x.seen.part) for x in faults] == [("xid.79", "gpu/0000:09:00")]


@needs_data
def test_a_few_corrected_bus_errors_are_watched() -> None:
    (signal,) = excerpt("aer_correctable_noise")
    assert (signal.seen.part, signal.row.verdict, signal.row.isolate) == ("pci/0000:00:03.1", Verdict.WATCH, False)


@needs_data
def test_a_failed_drive_and_its_array_are_local_storage() -> None:
    found = excerpt("meta_io_error")
    assert [x.seen.part for x in found] == ["disk/nvme2", "disk/md127"]
    assert {x.row.failure_class for x in found} == {"storage.local"}


FRAGMENTS = [
    *pcie.HINTS, *nic.HINTS, *machine.HINTS, *crash.HINTS, *disks.HINTS, *shared_storage.HINTS, *modules.HINTS, *services.HINTS,
    "0000:9b:00.0", "nvme0n1", "mlx5_core ", "[", "]", "(", ": ", "\n", "é", "\\", "{", "}", "systemd[1]: ", "ib6", "=",
    "0x", "9" * 30,
]  # fmt: skip
MATCHES = (
    pcie.match, nic.match, machine.match, crash.match, disks.match, shared_storage.match, modules.match, services.match,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=12)), max_size=12), st.booleans())
def test_no_line_breaks_a_matcher(parts: list[str], framed: bool) -> None:
    for program in ("", "kernel", "systemd", "systemd-networkd", "ras"):
        record = Record(line=1, text="".join(parts), program=program, kernel=program in ("", "kernel"), framed=framed)
        for match in MATCHES:
            for seen in match(record) or ():
                assert seen.signal in CATALOG.rows
                assert not seen.part or "/" in seen.part


@pytest.mark.parametrize("hint", FRAGMENTS)
def test_a_long_line_costs_little(hint: str) -> None:
    for filler in ("a", "0000:9b:00.0 ", "x: ", "(", "0", hint, f"{hint} 0000:9b:00.0 "):
        record = Record(line=1, text=(filler * (16_384 // len(filler)))[:16_000] + hint)
        for match in MATCHES:
            match(record)


LINES = [
    "NVRM: Xid (PCI:0000:09:00): 79, pid=0, GPU has fallen off the bus.",
    "pcieport 0000:00:01.1: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Data Link Layer, (Receiver ID)",
    "nvidia 0000:09:00.0: AER: can't recover (no error_detected callback)",
    "mlx5_core 0000:41:00.0 ens3: Link down",
    "mlx5_core 0000:41:00.0 ens3: Link up",
    "systemd-networkd[5]: ib3: Lost carrier",
    "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:77]",
    " mlx5e_napi_poll+0x12a/0x700 [mlx5_core]",
    "INFO: task python3:77 blocked for more than 120 seconds.",
    " nfs_wb_all+0x2c/0x190 [nfs]",
    "nfs: server 10.0.0.1 not responding, still trying",
    "nfs: server 10.0.0.1 OK",
    "Task in /docker/abc killed as a result of limit of /",
    "Killed process 77 (python3) total-vm:1kB",
    "Memory cgroup out of memory: Killed process 77 (python3) total-vm:1kB",
    "nvme nvme1: Disabling device after reset failure: -19",
    "nvme nvme2: Disabling device after reset failure: -19",
    "nvme nvme3: Disabling device after reset failure: -19",
    "{1}[Hardware Error]: event severity: fatal",
    "{1}[Hardware Error]:   section_type: PCIe error",
    "reboot: Restarting system",
    "{1}[Hardware Error]:   device_id: 0000:5e:00.0",
    "Linux version 5.15.0",
    "systemd[1]: kubelet.service: Failed with result 'x'.",
]
STAMPS = ["", "[{}.5] ", "Aug 17 06:00:{:02d} n1 kernel: ", "6,1,{}000000,-;"]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from(STAMPS), st.integers(0, 59)), max_size=25))
def test_no_order_of_lines_breaks_a_rule(told: list[tuple[str, str, int]]) -> None:
    text = "\n".join(stamp.format(second) + line for line, stamp, second in told)
    seen = read(Document("log", text.encode())).observations
    for signal in judge(seen, Context()):
        assert signal.key in CATALOG.rows
        assert not (signal.row.isolate and signal.row.scope in (Scope.JOB, Scope.DEPENDENCY))
        assert not (signal.row.isolate and signal.row.verdict is Verdict.BENIGN)

"""States of cards as tools read them, alone and among the outputs of other commands in one text."""

import pytest
from tests.evidence.hardware_captures import CARDS, bug_report, exporter, links, query, table, xml

from keepstep.core.root_cause import RootCause
from keepstep.evidence.diagnosis import diagnose
from keepstep.evidence.document import Document
from keepstep.evidence.recognise import read

Want = tuple[str, str, str, str]
"""Failure class (a prefix), scope, a part of the resource, what the job does."""
BRAKED = {"brake": "Active", "slow": "Active"}
HOT = {"hot": "Active", "slow": "Active", "temp": "88 C"}
NOW, SAVE, END = "restart_elsewhere", "move_at_next_checkpoint", "move_at_job_end"
XID = "[ 812.301] NVRM: Xid (PCI:0000:43:00): 79, pid=991, name=python, GPU has fallen off the bus.\n"
BOOT = "[    0.000000] Linux version 5.15.0-91-generic\n[    8.0] nvidia-nvlink: Nvlink Core is being initialized\n"
ISSUE = (
    "*** /etc/issue",
    "*** ls: -rw-r--r-- 1 root root 26 2024-01-01 00:00:00.0 +0000 /etc/issue\nUbuntu 22.04.4 LTS\n",
)
GONE = ("*** /var/log/nvidia-installer.log does not exist", "")
OFF: Want = ("gpu.fallen_off_bus", "card", "gpu/0000:43:00", NOW)
ONE_CARD = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-555555555555)\n"


def at(place: int, value: float) -> list[float]:
    return [value if number == place else 0 for number in range(8)]


DAMAGED = "WARNING: infoROM is corrupted at gpu 0000:43:00.0\n"
COUNTERS = """    Clocks Event Reasons Counters
        SW Power Capping                  : 1234567 us
        HW Thermal Slowdown               : 4411 us
        HW Power Braking                  : 90871 us
"""


def instead(words: str) -> str:
    """The query of a machine of which one card answers with nothing but these words."""
    before, _, rest = query({}).partition("GPU 00000000:43:00.0\n")
    after = rest[rest.index("GPU 00000000:52:00.0") :]
    return f"{before}GPU 00000000:43:00.0\n    Product Name : {words}\n    GPU UUID : {words}\n{after}"


STATES: list[tuple[str, str, Want | None]] = [
    ("all well", query({}), None),
    ("a remap waits", query({"43": {"uncorrected": "1", "pending": "Yes"}}), ("gpu.memory.remap", "card", "0000:43:00", SAVE)),
    ("a remap failed", query({"43": {"failed": "Yes"}}), ("gpu.memory.remap_failed", "card", "0000:43:00", NOW)),
    ("rows were replaced", query({"1B": {"uncorrected": "1", "corrected": "2"}}), None),
    ("an uncorrectable error", query({"1B": {"dram": "1"}}), ("gpu.memory.dbe", "card", "0000:1b:00", NOW)),
    ("a reset is asked for", query({"43": {"recovery": "GPU Reset"}}), ("gpu.recovery_action", "card", "0000:43:00", NOW)),
    ("a drain is asked for", query({"43": {"recovery": "Drain and Reset"}}), ("gpu.recovery_action", "card", "0000:43", SAVE)),
    ("one card is braked", query({"43": BRAKED}), ("gpu.power.brake", "node", "", SAVE)),
    ("all are braked", query(dict.fromkeys(CARDS, BRAKED)), ("gpu.power.brake", "node", "", SAVE)),
    ("one card is hot", query({"43": HOT}), ("gpu.thermal", "card", "0000:43:00", SAVE)),
    ("all are hot", query(dict.fromkeys(CARDS, HOT)), ("gpu.thermal", "node", "", SAVE)),
    ("the power limit holds", query({card: {"cap": "Active"} for card in CARDS}), None),
    ("nothing runs", query({card: {"idle": "Active"} for card in CARDS}), None),
    ("half a slot", query({"43": {"width": "8x"}}), ("gpu.pcie", "card", "0000:43:00", END)),
    ("no fabric", query({card: {"fabric": "Not Started"} for card in CARDS}), ("nvlink.fabric", "node", "", NOW)),
    ("on-chip memory", query({"1B": {"exceeded": "Yes", "sram": "9"}}), ("gpu.memory.sram", "card", "0000:1b:00", SAVE)),
    ("counters of throttling are no state", query({}).replace("    ECC Errors\n", COUNTERS + "    ECC Errors\n"), None),
    ("a card that is lost", instead("GPU is lost"), ("gpu.lost", "card", "0000:43:00", NOW)),
    ("a card that wants a reset", instead("GPU requires reset"), ("gpu", "card", "0000:43:00", NOW)),
    ("a damaged store", query({}) + DAMAGED, ("gpu.inforom", "card", "0000:43", END)),
    ("XML: all well", xml({}), None),
    ("XML: a remap waits", xml({"52": {"pending": "Yes"}}), ("gpu.memory.remap", "card", "0000:52:00", SAVE)),
    ("XML: a remap failed", xml({"52": {"failed": "Yes"}}), ("gpu.memory.remap_failed", "card", "0000:52:00", NOW)),
    ("XML: a reboot is asked for", xml({"52": {"recovery": "Node Reboot"}}), ("gpu.recovery_action", "node", "", NOW)),
    ("XML: cut off", xml({"61": {"failed": "Yes"}})[:-90], ("gpu.memory.remap_failed", "card", "0000:61:00", NOW)),
    ("table: all well", table({}, {}), None),
    ("table: errors", table({"52": "3"}, {}), ("gpu.memory.dbe", "card", "0000:52:00", NOW)),
    ("table: a card that does not answer", table({}, {"43": "ERR!"}), ("gpu", "card", "0000:43:00", "restart")),
    ("exporter: all well", exporter({"DCGM_FI_DEV_GPU_TEMP": 40, "DCGM_FI_DEV_XID_ERRORS": 0}), None),
    ("exporter: a failed remap", exporter({"DCGM_FI_DEV_ROW_REMAP_FAILURE": at(5, 1), "DCGM_FI_DEV_GPU_TEMP": 40}),
     ("gpu.memory.remap_failed", "card", "node3/gpu/0000:20:00", NOW)),
    ("exporter: a code of some time ago", exporter({"DCGM_FI_DEV_XID_ERRORS": at(2, 79), "DCGM_FI_DEV_GPU_TEMP": 40}), None),
    ("exporter: all are braked", exporter({"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 128, "DCGM_FI_DEV_GPU_TEMP": 50}),
     ("gpu.power.brake", "node", "node3", SAVE)),
    ("exporter: the power limit holds", exporter({"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 4, "DCGM_FI_DEV_GPU_TEMP": 60}), None),
    ("links: all up", links([]), None),
    ("links: two down", links([(1, 3), (1, 4)]), ("nvlink", "card", "", NOW)),
]  # fmt: skip

KERNEL = ("/usr/bin/dmesg", BOOT + XID)
JOURNAL = ("journalctl -b -0 -k --no-pager", "\nMar 01 10:00:00 node9 kernel: " + XID.partition("] ")[2])
QUERY = ("/usr/bin/nvidia-smi --query\n", query({}))
BUNDLES: list[tuple[str, str, Want | None]] = [
    ("bug report: all well", bug_report(ISSUE, GONE, ("/usr/bin/dmesg", BOOT), QUERY), None),
    ("bug report: a code", bug_report(ISSUE, GONE, KERNEL, QUERY), OFF),
    ("bug report: told twice", bug_report(ISSUE, KERNEL, JOURNAL), OFF),
    ("bug report: a state", bug_report(ISSUE, ("/usr/bin/nvidia-smi --query\n", query({"43": {"pending": "Yes"}}))),
     ("gpu.memory.remap", "card", "node9/gpu/0000:43:00", SAVE)),
    ("a terminal", f"root@node4:~# nvidia-smi\n{table({}, {})}root@node4:~# dmesg | tail -2\n{XID}root@node4:~# \n",
     ("gpu.fallen_off_bus", "card", "node4/gpu/0000:43:00", NOW)),
    ("a terminal, all well", f"[root@node4 ~]# nvidia-smi\n{table({}, {})}[root@node4 ~]# dmesg | tail\n{BOOT}", None),
    ("banners", f"===== hostname =====\nnode6\n===== dmesg =====\n{XID}===== nvidia-smi -q =====\n{query({})}", OFF),
    ("files", f"### nvidia-smi -L ###\n{ONE_CARD}### /var/log/kern.log ###\n{XID}", OFF),
    ("a page in Markdown", f"It died.\n\n```\n$ nvidia-smi -L\n{ONE_CARD}```\n\nand then\n```console\n{XID}```\n", OFF),
    ("a traced script", f"+ nvidia-smi -L\n{ONE_CARD}+ srun python train.py\n[rank3]: Traceback (most recent call last):\n"
     "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79 GiB\n",
     ("software", "job", "", "restart")),
]  # fmt: skip


def found_in(*texts: str) -> list[RootCause]:
    readings = [read(Document(f"evidence{number}", text.encode())) for number, text in enumerate(texts)]
    assert all(readings), "nobody knows the form"
    return diagnose([reading for reading in readings if reading is not None]).incidents


@pytest.mark.parametrize(("text", "want"), [pytest.param(*case[1:], id=case[0]) for case in STATES + BUNDLES])
def test_each_capture_is_one_incident_or_none(text: str, want: Want | None) -> None:
    found = found_in(text)
    told = [(one.row.failure_class, one.row.scope.value, one.resource, one.job_action) for one in found]
    if want is None:
        assert not told
        return
    assert len(told) == 1, told
    said = told[0]
    assert (said[1], said[3]) == (want[1], want[3])
    assert said[0].startswith(want[0])
    assert want[2] in said[2]


def test_lines_of_a_bundle_are_counted_from_its_beginning() -> None:
    text = bug_report(ISSUE, KERNEL)
    signal = found_in(text)[0].signals[0]
    assert text.splitlines()[signal.seen.line - 1] in XID
    assert signal.seen.node == "node9"


def test_an_error_that_the_driver_calls_contained_ends_only_the_program() -> None:
    contained = "[ 9.1] NVRM: Xid (PCI:0000:43:00): 94, pid=7, name=python, Contained: SM (0x1). RST: No, D-RST: No\n"
    (found,) = found_in(contained, query({"43": {"dram": "1"}}))
    assert (found.row.isolate, found.resource_action, found.job_action) == (False, "watch", "restart")
    (found,) = found_in(contained, query({"43": {"dram": "1", "uncorrected": "1", "pending": "Yes"}}))
    assert found.row.isolate, "a remap that waits wants a reset"


def test_the_brake_and_the_heat_of_all_cards_are_what_they_share() -> None:
    (braked,) = found_in(query(dict.fromkeys(CARDS, BRAKED)))
    assert braked.row.cause.value == "power"
    (hot,) = found_in(query(dict.fromkeys(CARDS, HOT)))
    assert hot.row.cause.value == "host_hardware"
    assert len(hot.members) == len(CARDS)


def test_a_log_is_not_split_at_lines_that_only_look_like_headings() -> None:
    text = f"[ 1.0] ------------[ cut here ]------------\n[ 1.0] WARNING: CPU: 3 PID: 77 at kernel/foo.c:11\n{XID}"
    reading = read(Document("log", text.encode()))
    assert reading is not None
    assert reading.reader == "kernel_log"


def page(reason: int) -> str:
    """Six nodes on one page of an exporter, all of them in one state."""
    values = {"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": reason, "DCGM_FI_DEV_GPU_TEMP": 60}
    return "".join(
        exporter(values).replace("node3", f"node{node}").replace("GPU-0000", f"GPU-{node}000") for node in range(3, 9)
    )


@pytest.mark.parametrize(("reason", "failure_class"), [(128, "gpu.power.brake"), (64, "gpu.thermal")])
def test_many_nodes_that_are_braked_or_hot_together_are_their_racks(reason: int, failure_class: str) -> None:
    (found,) = found_in(page(reason))
    assert (found.row.scope.value, found.row.failure_class, found.row.cause.value) == ("rack", failure_class, "power")
    assert len(found.members) == 6
    assert not found.row.isolate


@pytest.mark.parametrize("line", ["[" * 390, "=" * 390, "> " * 190, "a@" + "b " * 190, "Running dmesg " + "x " * 180])
def test_lines_that_look_like_headings_without_end_are_read(line: str) -> None:
    """If one cost as much as the cube of its length, this would take longer than a test may."""
    reading = read(Document("x", f"$ dmesg\n{f'{line}{chr(10)}{XID}' * 1000}".encode()))
    assert reading is not None and reading.observations


NODE = "[ 1.0] NVRM: Xid (PCI:0000:43:00): "
SUPPLIES = "".join(
    f"   {n} | 03/01/2025 | 10:00:00 | Power Supply #0xc{n} | Power Supply AC lost | Asserted\n" for n in (1, 2)
)


@pytest.mark.parametrize(
    ("texts", "failure_class"),
    [
        ((XID, "Unable to determine the device handle for GPU 0000:43:00.0: Unknown Error\n"), "gpu.fallen_off_bus"),
        ((XID, "43:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev ff)\n"), "gpu.fallen_off_bus"),
        (
            (XID, " 1 | 03/01/2025 | 10:00:00 | Critical Interrupt PCIe Slot 3 | Bus Fatal Error | Asserted\n"),
            "gpu.fallen_off_bus",
        ),
        ((f"{NODE}48, pid=1, DBE\n", query({"43": {"dram": "2", "pending": "Yes"}})), "gpu.memory.dbe"),
        ((f"{NODE}48, pid=1, DBE\n", query({"43": {"dram": "2", "recovery": "GPU Reset"}})), "gpu.memory.dbe"),
        ((f"{NODE}31, pid=1, name=python, MMU Fault\n", query({})), "software.app"),
        ((SUPPLIES, query(dict.fromkeys(CARDS, BRAKED))), "power.psu"),
    ],
)
def test_what_several_sources_tell_of_one_fault_is_one_incident(texts: tuple[str, ...], failure_class: str) -> None:
    assert [found.row.failure_class for found in found_in(*texts)] == [failure_class]

"""GPUs that the driver lost, could not start or has given up, where it says so in words and with no Xid number.

Since driver 570 a card may fall off the bus without Xid 79: the sentence alone, over two or three lines, is the evidence.
"""

import re

from keepstep.core.observation import Observation
from keepstep.evidence.kernel.frames import Record, seen
from keepstep.evidence.kernel.xid import part_of

HINTS = (
    "fallen off the bus", "RmInitAdapter", "rm_init_adapter", "nvidia: probe of", "NVIDIA probe routine failed",
    "marked for reset", "probe with driver nvidia", "nfoROM is corrupted", "global fatal error",
    "Rate limiting GSP", "NV_ERR_GPU_IS_LOST", "NV_ERR_RESET_REQUIRED", "rpcRecvPoll timedout", "GPU lost from the bus",
)  # fmt: skip

_BDF = r"((?:PCI:)?[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_FALLEN = re.compile(
    rf"NVRM: {{1,2}}(?:The NVIDIA )?GPU {{1,2}}(?:at )?{_BDF}(?![0-9a-fA-F]).{{0,400}}?fallen off the bus", re.S
)
_INIT = re.compile(rf"NVRM: (?:GPU {_BDF}: )?(?:RmInitAdapter|rm_init_adapter) failed")
_PROBE = re.compile(rf"nvidia: probe of {_BDF} failed with error (-?\d+)")
_INFOROM = re.compile(rf"(?:NVRM: )?(?:WARNING: )?infoROM is corrupted at (?:gpu|GPU) {_BDF}")
_PROBE_WITH = re.compile(rf"nvidia {_BDF}: probe with driver nvidia failed with error (-?\d+)")
_RATE = re.compile(rf"NVRM: Rate limiting GSP RPC error prints for GPU at {_BDF}")
_PLACED: tuple[tuple[re.Pattern[str], str], ...] = (
    (_INIT, "nvrm.init_failed"), (_PROBE, "nvrm.probe_failed"), (_PROBE_WITH, "nvrm.probe_failed"),
    (_RATE, "nvrm.gsp_timeout"), (_INFOROM, "gpu.inforom"),
)  # fmt: skip
_NO_PLACE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"NVRM: .*GSP RPC timeout detected! GPU marked for reset"), "nvrm.gsp_timeout.unplaced"),
    (re.compile(r"NVRM: .*rpcRecvPoll timedout for fn"), "nvrm.gsp_timeout.unplaced"),
    (re.compile(r"NVRM: .*NV_ERR_RESET_REQUIRED"), "nvrm.reset_required"),
    (re.compile(r"NVRM: .*uvm encountered global fatal error"), "nvrm.uvm_fatal"),
    (re.compile(r"NVRM: .*(?:NV_ERR_GPU_IS_LOST|GPU lost from the bus)"), "nvrm.gpu_lost"),
    (re.compile(r"NVRM: The NVIDIA probe routine failed for (\d+) device"), "nvrm.probe_failed.unplaced"),
)
_ID = re.compile(r"\(PCI ID: ?([0-9a-fA-F]{4}:[0-9a-fA-F]{4})\)")


def match(record: Record) -> list[Observation] | None:
    if not record.kernel:
        return None
    text = record.text
    if "fallen off the bus" in text:
        return _fallen(record)
    for form, signal in _PLACED:
        if found := form.match(text):
            part = part_of(found[1]) if found[1] else ""
            if part:
                return [seen(record, signal, part)]
            return [seen(record, f"{signal}.unplaced")]
    for form, signal in _NO_PLACE:
        if form.match(text):
            return [seen(record, signal)]
    return None


def _fallen(record: Record) -> list[Observation] | None:
    """The same fault as Xid 79; where a record has the Xid too, that is the one that counts."""
    text = record.text
    if "Xid (" in text:
        return None
    found = _FALLEN.match(text)
    part = part_of(found[1]) if found else None
    if part is None:
        return None
    device = _ID.search(text)
    return [seen(record, "xid.79", part, {"without_xid": "yes", "pci_id": device[1].lower() if device else ""})]

"""NVIDIA driver errors (Xid) in kernel records, with what each line says about place, process and recovery.

Owns the form of the line in all driver generations; what a code means stands in the catalogue.
"""

import re

from keepstep.core.observation import Observation, Same, pci_name
from keepstep.evidence.kernel import nvlink5
from keepstep.evidence.kernel.frames import Record, seen

HINTS = ("Xid", "NVRM: GPU at", "GPU Board Serial")
OURS = re.compile(r"^(?:NVRM: )?Xid \(", re.M)

_XID = re.compile(
    r"^(?:(?:N?V?R?M)?: {0,2})?Xid \((?P<pci>(?:PCI:)?[0-9a-fA-F:.]{5,20})(?:, ?(?P<uuid>GPU-[0-9a-fA-F-]{8,40}))?"
    r"(?:[ ,/]{1,3}GPU-I:? ?(?P<instance>\d+))?[^)\n]{0,40}\) ?: {0,2}(?P<code>\d{1,4})\b,? ?(?P<rest>[^\n]*)",
    re.M,
)
_PREFIXED = re.compile(
    r"""^(?![^\n]{0,60}\b(?:WARN|ERROR|INFO|DEBUG|FATAL|level)(?:ING)?\b)[^"'{}=\\`\n]{0,60}?[\]>:)] {1,2}(?=NVRM: Xid \()""",
    re.M,
)
_PROCESS = re.compile(r"^pid='?(?P<pid><unknown>|\d+)'?(?:, ?name='?(?P<name>(?:[^,\n']|,(?! ))*)'?)?(?:, ?|$)")
_SM = re.compile(r"\(GPC (\d+), TPC (\d+)(?:, SM (\d+))?")
_ESR = re.compile(r"\bESR (0x[0-9a-fA-F]+)=")
_CHANNEL = re.compile(r"\bCh(?:annel|ID|Id)?(?: ID)?[ :]+([0-9a-fA-F]{1,8})\b")
_FAULT = re.compile(r"\b(FAULT_[A-Z_]+) (ACCESS_TYPE_[A-Z_]+)?")
_NVLINK74 = re.compile(r"link (\d{1,2}) ?\(((?:0x[0-9a-fA-F]+(?:, ?)?){1,8})\)", re.I)
_RECOVERY = re.compile(
    r"recovery action changed from 0x([0-9a-fA-F]+) ?\(([^)\n]{0,40})\) to 0x([0-9a-fA-F]+) ?\(([^)\n]{0,40})\)?", re.I
)
_GSP = re.compile(
    r"Timeout after (\d+)s of waiting for RPC response from GPU(\d+) GSP! Expected function (\d+) ?\(?(\w*)"
)
_ROW = re.compile(r"\brow (?:0x)?([0-9a-fA-F]+)\b.{0,80}?\bbank (?:0x)?([0-9a-fA-F]+)", re.I)
_CAUSED = re.compile(r"\bcaused by previous Xid (\d{1,4})", re.I)
_CONTAINED = re.compile(r"\b(uncontained|contained)\b", re.I)
_UUID = re.compile(r"NVRM: GPU at (?:PCI:)?([0-9a-fA-F:.]{5,20}): {0,2}(GPU-[0-9a-fA-F]{3,8}[0-9a-fA-F-]{0,36})")
_SERIAL = re.compile(r"^NVRM: GPU Board Serial Number: {0,4}([0-9A-Za-z]{6,24})\b", re.M)
MAX_CODE = 999
MAX_REST = 2_000

RECOVERY_ACTIONS = {0: "none", 1: "reset", 2: "reboot", 3: "drain_p2p", 4: "drain_and_reset", 5: "imex"}
"""The driver's own numbering, as NVML gives it too."""
_RECOVERY_WORDS = (
    ("drain and reset", "drain_and_reset"), ("drain p2p", "drain_p2p"), ("node reboot", "reboot"), ("reboot", "reboot"),
    ("imex", "imex"), ("reset", "reset"), ("none", "none"),
)  # fmt: skip

NVLINK_BITS: dict[int, dict[str, tuple[int, ...]]] = {
    0: {
        "hardware": (4, 5),
        "mechanical": (8, 9, 12, 16, 17, 21, 22, 24, 28),
        "repeats": (27, 29),
        "sympathetic": (1, 20),
        "ignorable": (0, 23, 30),
    },
    2: {"hardware": (0, 1, 2, 6), "repeats": (13, 16, 17, 18, 19)},
    3: {"sympathetic": (16, 17, 18)},
    4: {"hardware": (18, 19, 21, 22, 24, 25, 27, 28), "threshold": (20, 23, 26, 29)},
}
"""Register of Xid 74 (from 0) -> what its set bits point to, as the vendor's workflow for NVLink errors has it."""
NVLINK_ROWS = ("hardware", "mechanical", "sympathetic", "threshold", "ignorable")
"""What has a row of its own; anything else is an NVLink error of which the place is open."""
NVLINK_ORDER = ("hardware", "mechanical", "unlisted", "repeats", "sympathetic", "threshold", "ignorable")
"""Where several bits are set, the first of these counts."""


def match(record: Record) -> list[Observation | Same] | None:
    """Every Xid of a record; the line that names a GPU's UUID gives its aliases."""
    if not record.kernel:
        return None
    text = record.text
    if not record.framed and (found := _PREFIXED.match(text)):
        text = text[found.end() :]
    matches = [found for found in _XID.finditer(text) if int(found["code"]) <= MAX_CODE]
    if matches:
        return [thing for found in matches for thing in _things(record, found)]
    if found := _UUID.match(text):
        serial = _SERIAL.search(text)
        return _aliases(record, found[1], found[2], serial[1] if serial else "")
    return None


def part_of(address: str) -> str | None:
    """``gpu/0000:9b:00``; None where the driver printed no address that can be one."""
    try:
        return f"gpu/{pci_name(address.removeprefix('PCI:'))}"
    except ValueError:
        return None


def _things(record: Record, found: re.Match[str]) -> list[Observation | Same]:
    part = part_of(found["pci"])
    if part is None:
        return []
    code, rest = int(found["code"]), found["rest"][:MAX_REST].strip()
    attributes = {"xid": str(code)}
    if process := _PROCESS.match(rest):
        _add_process(attributes, process)
        rest = rest[process.end() :]
    attributes |= _details(code, rest)
    if found["instance"]:
        attributes["mig"] = found["instance"]
    signal = f"xid.{code}"
    if code == 154:
        signal = _recovery(rest, attributes)
    elif code == 74 and attributes.get("points_to") in NVLINK_ROWS:
        signal = f"xid.74.{attributes['points_to']}"
    elif nvlink5.FIRST <= code <= nvlink5.LAST:
        signal, more = nvlink5.decode(code, rest)
        attributes |= more
    same = _aliases(record, found["pci"], found["uuid"]) if found["uuid"] else []
    return [seen(record, signal, part, attributes, detail=found[0].strip()), *same]


def _add_process(attributes: dict[str, str], process: re.Match[str]) -> None:
    pid, name = process["pid"], (process["name"] or "").strip()
    if pid and pid != "<unknown>":
        attributes["pid"] = pid
    if name and name != "<unknown>":
        attributes["process"] = name[:64]


def _details(code: int, rest: str) -> dict[str, str]:
    """What the text after the code says, as far as its form is known."""
    more: dict[str, str] = {}
    if found := _SM.search(rest):
        more |= {"gpc": found[1], "tpc": found[2], "sm": found[3] or "", "unit": f"GPC{found[1]}/TPC{found[2]}"}
    elif code == 13 and (found := _ESR.search(rest)):
        more["esr"] = found[1]
    if (found := _CHANNEL.search(rest)) and code != 154:
        more["channel"] = found[1]
    if found := _FAULT.search(rest):
        more |= {"fault": found[1], "access": found[2] or ""}
    if code == 74 and (found := _NVLINK74.search(rest)):
        more |= {"link": found[1], "registers": found[2].replace(" ", ""), "points_to": nvlink_points_to(found[2])}
    if found := _GSP.search(rest):
        more |= {"waited_s": found[1], "index": found[2], "function": found[4] or found[3]}
    if found := _ROW.search(rest):
        more |= {"row": found[1], "bank": found[2]}
    if found := _CAUSED.search(rest):
        more["caused_by"] = found[1]
    if found := _CONTAINED.search(rest):
        more["contained"] = "no" if found[1].lower() == "uncontained" else "yes"
    return more


def nvlink_points_to(registers: str) -> str:
    """What the set bits of Xid 74's registers point to; empty where none is set."""
    told = set()
    for place, value in enumerate(re.findall(r"0x([0-9a-fA-F]{1,16})", registers)):
        known = {bit: name for name, bits in NVLINK_BITS.get(place, {}).items() for bit in bits}
        told |= {known.get(bit, "unlisted") for bit in range(32) if int(value, 16) >> bit & 1}
    return next((name for name in NVLINK_ORDER if name in told), "")


def _recovery(rest: str, attributes: dict[str, str]) -> str:
    """The signal of a recovery action: by the driver's number, else by its words."""
    found = _RECOVERY.search(rest)
    if found is None:
        return "xid.154"
    before, after = int(found[1], 16), int(found[3], 16)
    attributes |= {"before": RECOVERY_ACTIONS.get(before, found[2]), "value": str(after)}
    words = found[4].lower()
    said = next((action for word, action in _RECOVERY_WORDS if word in words), "")
    action = said or RECOVERY_ACTIONS.get(after, "")
    return f"xid.154.{action}" if action else "xid.154"


def _aliases(record: Record, address: str, uuid: str, serial: str = "") -> list[Observation | Same]:
    part = part_of(address)
    if part is None or len(uuid) < 12:
        return []
    names = (part, f"gpu/{uuid}", *((f"gpu/serial:{serial}",) if serial else ()))
    return [Same(node=record.node, parts=names)]

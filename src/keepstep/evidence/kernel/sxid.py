"""NVSwitch errors (SXid) in kernel records. Owns the form of the line; what a code means stands in the catalogue.

The driver says itself whether an error was fatal: that wins over the table. The lines of registers that follow an error, and
lines that were cut, are no errors of their own.
"""

import re

from keepstep.core.catalog.sxid import SEVERITY
from keepstep.core.observation import Observation, Same, pci_name
from keepstep.evidence.kernel.frames import Record, seen

HINTS = ("SXid",)
OURS = re.compile(r"^(?:nvidia-nvswitch\d{0,2}: )?SXid \(", re.M)

_SXID = re.compile(
    r"^(?:(?:n?v?i?d?i?a?-?)?nvswitch(?P<number>\d{1,3}): {0,2})?SXid \((?P<pci>(?:PCI:)?[0-9a-fA-F:.]{5,20})\) ?: {0,2}"
    r"(?P<code>\d{3,6}), {0,2}(?P<rest>[^\n]*)",
    re.M,
)
_SEVERITY = re.compile(r"(?P<severity>Non-?fatal|Fatal),? {0,2}(?:Link (?P<link>\d{1,3})\b)? ?(?P<text>.*)", re.I)
_REGISTERS = re.compile(r"Data {0,2}\{")
_CONTINUES = re.compile(r"Severity \d+ Engine instance")
_CUT = re.compile(r"(?:L|Li|Lin|Link|Link \d{0,3})?$")


def match(record: Record) -> list[Observation | Same] | None:
    if not record.kernel:
        return None
    things: list[Observation | Same] = []
    understood = False
    for found in _SXID.finditer(record.text):
        got = _things(record, found)
        understood = understood or got is not None
        things += got or []
    return things if understood else None


def part_of(address: str) -> str | None:
    """``nvswitch/0000:86:00``; None for what cannot be an address."""
    try:
        return f"nvswitch/{pci_name(address)}"
    except ValueError:
        return None


def signal_of(code: int, severity: str) -> str:
    """The catalogue's key of a code, with what the line says about it: ``fatal``, ``nonfatal`` or nothing."""
    usual = SEVERITY.get(code)
    if usual is None:
        return f"sxid.{severity}.{code}" if severity else f"sxid.{code}"
    usually_fatal = usual != "nonfatal"
    if not severity or (severity == "fatal") == usually_fatal:
        return f"sxid.{code}"
    return f"sxid.{code}.{severity}"


def _things(record: Record, found: re.Match[str]) -> list[Observation | Same] | None:
    """None where the line was cut or says nothing that is known."""
    code, rest = int(found["code"]), found["rest"].strip()
    part = part_of(found["pci"])
    if part is None:
        return None
    attributes = {"sxid": str(code)}
    if said := _SEVERITY.match(rest):
        if not said["link"] and _CUT.match(said["text"]):
            return None
        severity = said["severity"].lower().replace("-", "")
        attributes |= {"severity": severity, "link": said["link"] or ""}
    elif _REGISTERS.match(rest) and code in SEVERITY:
        severity = ""
    else:
        return [] if _CONTINUES.match(rest) or _REGISTERS.match(rest) else None
    same = [Same(node=record.node, parts=(part, f"nvswitch/{found['number']}"))] if found["number"] else []
    return [seen(record, signal_of(code, severity), part, attributes, detail=found[0].strip()), *same]

"""NVLink 5 errors (Xid 144 to 150): the sub-code, the link and what is to be done, decoded from the line's own registers.

Owns the decoding; what each outcome means for the card stands in the catalogue (``nvlink5.<xid>.<outcome>``). The line names
its unit in words, so one table serves both register layouts (before and from driver R575).
"""

import re

FIRST, LAST = 144, 150

_LINE = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_]{2,30}(?: Degraded)?)\s+(?P<severity>(?:Link )?Fatal|Non-?fatal)\b"
    r"(?:\s+XC\s?(?P<xc>\d+))?(?:\s+i\s?(?P<instance>\d+))?(?:\s+Link\s+(?P<link>-?\d+))?",
    re.I,
)
_REGISTERS = re.compile(r"\(((?:0x[0-9a-fA-F]{1,8}[ ,]*){1,8})")
_V1_UNIT_BITS = 0x1F
_PROMOTED_V1, _PROMOTED_V2 = 1 << 10, 1 << 7

FATAL_STATUS = {
    "SAW_MVB": 0x12,
    "RLW_REMAP": 0xC0,
    "RLW_RSPCOL": 0x2,
    "RLW_SRC_TRACK": 0x31,
    "RLW_TAGSTATE": 0x120002,
    "TLW_CTRL": 0x4,
    "TLW_RX": 0x4,
    "TLW_TX": 0x4,
}
"""Unit -> bits of its error status that need a reset of the GPU."""
CONTAINED_STATUS = {"RLW_REMAP": 0x3F, "RLW_SRC_TRACK": 0xC}
"""Unit -> bits that end the process and leave the rest to the recovery action (Xid 154)."""
PROMOTABLE_STATUS = {"RLW_RXPIPE": 0x7}
"""Unit -> bits that are fatal where the driver promoted them."""
POISON_STATUS = {"SAW_MVB": 0x9, "TLW_CTRL": 0x2, "TLW_RX": 0x2, "TLW_TX": 0x2}
"""Unit -> bits of data that was lost: the memory errors that follow (Xid 48, 94, 95) tell whom it hits."""
LINK_DOWN = {
    0: "fatal", 1: "link", 2: "link", 4: "link", 10: "link", 15: "user", 16: "user", 17: "user", 18: "user",
    21: "peer", 22: "user",
    32: "peer", 33: "peer", 34: "peer", 35: "peer", 36: "peer", 37: "peer", 38: "host", 40: "host", 42: "cable", 43: "cable",
}  # fmt: skip
"""Sub-code of a link that went down -> where to look."""
LINK_UNITS = ("NETIR_LINK_EVT", "NETIR_LINK_DOWN")


def decode(code: int, text: str) -> tuple[str, dict[str, str]]:
    """(signal, attributes) of the text behind the code. Without a text that is understood the code alone is the signal."""
    found = _LINE.search(text)
    if found is None:
        return f"nvlink5.{code}", {}
    unit, severity = found["unit"].upper(), found["severity"].lower().replace("-", "")
    attributes = {"unit": unit, "severity": severity}
    if found["link"]:
        attributes["link"] = str(int(found["link"]))
    registers = _registers(text)
    if registers:
        attributes |= {"intrinfo": f"0x{registers[0]:08x}", "subcode": str(registers[0] >> 20 & 0x3F)}
    if len(registers) > 1:
        attributes["error_status"] = f"0x{registers[1]:08x}"
    return f"nvlink5.{code}.{_outcome(unit, severity, registers)}", attributes


def _registers(text: str) -> list[int]:
    found = _REGISTERS.search(text)
    return [int(value, 16) for value in re.findall(r"0x([0-9a-fA-F]{1,8})", found[1])] if found else []


def _outcome(unit: str, severity: str, registers: list[int]) -> str:
    """The table says where to look. It is fatal where the driver says so in the line, or where the registers do."""
    if unit == "NETIR_BER_EVENT":
        return "cable" if severity != "nonfatal" else "ber"
    table = _by_table(unit, registers)
    if severity == "nonfatal":
        return table if table in ("contained", "poison", "fatal") else "nonfatal"
    return table if table in ("link", "peer", "user", "host", "cable") else "fatal"


def _by_table(unit: str, registers: list[int]) -> str:
    if unit in LINK_UNITS:
        return LINK_DOWN.get(registers[0] >> 20 & 0x3F, "fatal") if registers else "fatal"
    if not registers or len(registers) < 2:
        return ""
    name, status = _family(unit), registers[1]
    if status & FATAL_STATUS.get(name, 0):
        return "fatal"
    if status & PROMOTABLE_STATUS.get(name, 0) and registers[0] & _promoted_bit(registers[0]):
        return "fatal"
    if status & CONTAINED_STATUS.get(name, 0):
        return "contained"
    return "poison" if status & POISON_STATUS.get(name, 0) else ""


def _promoted_bit(intrinfo: int) -> int:
    """The layouts differ in where the unit stands: below five bits of group before R575, in the lowest seven since."""
    return _PROMOTED_V1 if intrinfo & _V1_UNIT_BITS == 2 else _PROMOTED_V2


def _family(unit: str) -> str:
    return unit[:6] if unit.startswith(("TLW_RX", "TLW_TX")) else unit

"""Lines of a GPU's or an NVSwitch's driver that a controller has copied into its log. Owns their repair.

A controller reads these lines in pieces through a small window, so that one event comes as several records and some are
shifted by a byte or two: digits of the code are lost and letters of the buffer stick to the text.
"""

import re

from msgspec import Struct

from keepstep.evidence.bmc.times import host_time

_LINE = re.compile(
    r"\[(?P<time>[A-Z][a-z]{2} [^\]]{5,40})\]\s*\[(?P<number>\d+)\]\s*\[[0-9a-fA-F]{1,2}\]\s*"
    r"(?P<kind>S?XID)\s+(?P<code>\d{1,6})\b\s*(?P<text>.{0,300})",
    re.I | re.S,
)
_PLAIN = re.compile(r"\b(?P<kind>S?XID)[ :#]{1,3}(?P<code>\d{1,6})\b,?\s*(?P<text>.{0,300})", re.I | re.S)
_SHIFTED = re.compile(r"^[a-z0-9](?=Non-fatal|Fatal|Severity \d|Data \{|NVSWITCH)")
_LINK = re.compile(r"\bLink (\d{1,3})\b")
_INSTANCE = re.compile(r"\bEngine instance (\d{1,3})\b")
_ONLINE = re.compile(r"SMBPBI server is online", re.I)
_FATAL = re.compile(r"(?<!non-)(?<!non )\bfatal", re.I)
LINK_ERRORS = 20_000
"""Where a code is put of which nothing else is known: errors of links are by far the most frequent."""
_NONFATAL = re.compile(r"\bnon-?fatal", re.I)
_SENTINEL = re.compile(r"\bbadf[0-9a-f]{4}", re.I)
_FAMILIES = ((re.compile(r"\bLink \d{1,3}\b"), 20_000), (re.compile(r"\bPRI\b|\bPRT\b"), 10_000))
"""Where the codes of a kind of error begin: one that lost its leading digits is put back by what its text says."""


class DriverEvent(Struct, frozen=True, kw_only=True):
    signal: str
    """``xid.62``, ``sxid.20009``, ``bmc.nvswitch.online``."""
    stamp: str = ""
    """The host's time as written: records of one event share it."""
    host_s: float | None = None
    attributes: dict[str, str] = {}
    continues: bool = False
    """A further record of an event: its severity or its data."""


def driver_event(text: str) -> DriverEvent | None:
    """The driver's event in the text of a record; None where there is none."""
    found = _LINE.search(text) or _PLAIN.search(text)
    if found is None:
        return None
    said = found["text"]
    if _ONLINE.search(said):
        return DriverEvent(signal="bmc.nvswitch.online")
    stamp = found.groupdict().get("time") or ""
    shifted = _SHIFTED.match(said) is not None
    said = said[1:] if shifted else said
    code, attributes = int(found["code"]), {"code": found["code"]}
    for name, pattern in (("link", _LINK), ("link", _INSTANCE)):
        number = pattern.search(said)
        if number is not None:
            attributes.setdefault(name, number[1])
    if _SENTINEL.search(said):
        attributes["sentinel"] = "badf"  # the registers themselves could not be read
    if found["kind"].upper() == "XID":
        signal = f"xid.{code}"
    else:
        if _NONFATAL.search(said):
            attributes["severity"] = "nonfatal"
        elif _FATAL.search(said):
            attributes["severity"] = "fatal"
        begin = next((begin for pattern, begin in _FAMILIES if pattern.search(said)), 0)
        if shifted and 0 < code < 1000:
            attributes["repaired"] = "yes" if begin else "guess"
            code += begin or LINK_ERRORS
        signal = f"sxid.{code}"
    return DriverEvent(
        signal=signal, stamp=stamp, host_s=host_time(f"[{stamp}]"), attributes=attributes,
        continues=said.startswith(("Severity ", "Data {")),
    )  # fmt: skip

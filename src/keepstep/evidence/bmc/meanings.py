"""What the words of a controller mean: texts of Redfish messages and IPMI events, as keys of the catalogue.

One table for all vendors, by the words of the field: message registries of DMTF and OpenBMC (their ids are read as words),
event strings of IPMI, and the sentences of server makers. Must not look at times or at other records.
"""

import re
from functools import lru_cache

from msgspec import Struct

from keepstep.evidence.bmc.vocabulary import HARDWARE
from keepstep.evidence.bmc.vocabulary import TALK as TALK_WORDS


class Meaning(Struct, frozen=True, kw_only=True):
    key: str
    ends: bool = False
    """The text says that this condition is over."""
    lasts: bool = False
    """A condition that holds until it is said to be over, and not an event that has happened."""


def _table(*rows: tuple[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern), key) for key, pattern in rows)


_OVER = re.compile(
    r"\b(?:cleared|restored|deasserted|deassert|recovered|no longer|corrected errors of type|back to normal|returned to"
    r"|(?:back )?within (?:its |the )?(?:normal|acceptable|allowed|range)|in range|fully redundant|redundancy regained"
    r"|changed to (?:ok|normal|enabled)|(?:is|are) redundant|has been (?:repaired|resolved|corrected)|is now ok"
    r"|operating normally|reading dry|health is (?:ok|good)|transition to ok|ok to run|is operational"
    r"|operational again|successfully)\b"
)  # fmt: skip
_GOING_BACK = re.compile(r"\blower\b.{0,40}\bgoing high\b|\bupper\b.{0,40}\bgoing low\b"
                         r"|\blow going high\b|\bhigh going low\b|\bgoing back\b")  # fmt: skip
_CONDITION = re.compile(
    r"fault|error|alert|alarm|health|sensor|threshold|condition|status|failure|warning|critical|going (?:high|low)"
    r"|operating normally|is operational"
)
_NEGATED = re.compile(
    r"\bnot (?:fully )?(?:restored|recovered|cleared)|un(?:recovered|cleared)|cannot be (?:recovered|corrected)"
)

_TALK = _table(*TALK_WORDS)
_HARDWARE = _table(*HARDWARE)

_INLET = re.compile(r"\b(?:inlet|ambient|intake|front panel temp|air in|coolant (?:supply|in))")
_QUANTITY = re.compile(
    r"\b(temp\w*|thermal|voltage|\d+(?:\.\d+)?v\b|vcc\w*|vdd\w*|vbat|volt|power|current|amp\w*|watts|fan)\b|°c|deg"
)
_CRITICAL = re.compile(
    r"\b(?:upper|lower|high|low)?[ _-]{0,2}(?:critical|non-?recoverable|fatal|unrecoverable)\b|hardfatal|far (?:below|above)"
)
_MILD = re.compile(r"\bnon-?critical\b|\bcaution\b|\bwarning\b|noncritical|\bminor\b")
_LIMIT = re.compile(
    r"threshold|going (?:high|low)|out(?:side)? (?:of )?(?:range|its|the|allowed)|(?:above|below|exceed|less than|greater than)"
    r"|limit exceeded|over ?temp|too (?:hot|high|low)|crossed|overheat|(?:critical|fatal) fault|transition to (?:critical|non)"
)  # fmt: skip

TALK = frozenset(key for _, key in _TALK)
LASTING = frozenset({
    "bmc.psu.failed", "bmc.psu.input_lost", "bmc.psu.redundancy", "bmc.psu.warning", "bmc.fan.failed", "bmc.fan.warning",
    "bmc.temperature.critical", "bmc.temperature.inlet", "bmc.voltage.critical", "bmc.threshold.noncritical",
    "bmc.power.component", "bmc.gpu.power", "bmc.gpu.thermal", "bmc.gpu.throttle", "bmc.gpu.power_cap", "bmc.leak",
    "bmc.leak.cabinet", "bmc.leak.warning", "bmc.intrusion", "bmc.drive.failed", "bmc.drive.predicted", "bmc.drive.warning",
    "bmc.storage.degraded", "bmc.nic.link", "bmc.sensor.unreadable", "bmc.cpu.throttled", "bmc.battery", "bmc.log.full",
    "bmc.event.critical", "bmc.event.warning", "bmc.nic.failed", "bmc.gpu.critical", "bmc.gpu.power_brake", "bmc.gpu.lost",
})  # fmt: skip
_SERIOUS = ("bmc.cpu.ierr", "bmc.cpu.thermal_trip", "bmc.memory.uncorrectable", "bmc.pcie.fatal", "bmc.os.stop", "bmc.leak",
            "bmc.leak.cabinet", "bmc.gpu.remap_failed", "bmc.drive.failed", "bmc.psu.failed")  # fmt: skip
"""What is meant even where a controller forgot to say a severity, or says that all is well."""


def words_of(message_id: str) -> str:
    """``OpenBMC.0.1.PowerSupplyFailed`` as words: ``Power Supply Failed``."""
    name = message_id.rsplit(".", 1)[-1]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)[:120]


@lru_cache(maxsize=8192)
def meaning_of(text: str, severity: str = "") -> Meaning | None:
    """What a text means; None for talk that says nothing. ``severity`` is Redfish's, or empty where the source has none."""
    low = " ".join(text[:600].lower().replace("_", " ").split())
    for pattern, key in _TALK:
        if pattern.search(low):
            return Meaning(key=key)
    key = _hardware(low, severity)
    over = _over(low)
    if key == "":
        if over or severity not in ("Critical", "Warning"):
            return Meaning(key="bmc.cleared", ends=True) if over and _CONDITION.search(low) else None
        key = "bmc.event.critical" if severity == "Critical" else "bmc.event.warning"
    if over:
        return Meaning(key=key, ends=True, lasts=key in LASTING)
    if severity == "OK" and key not in _SERIOUS:
        return None
    return Meaning(key=key, lasts=key in LASTING)


def _over(low: str) -> bool:
    return bool((_OVER.search(low) and not _NEGATED.search(low)) or _GOING_BACK.search(low))


def _hardware(low: str, severity: str) -> str:
    limit = _LIMIT.search(low) is not None
    quantity = _QUANTITY.search(low) if limit else None
    if quantity is not None and not quantity[0].startswith("fan"):
        return _crossed(low, quantity[0], severity)
    for pattern, key in _HARDWARE:
        if pattern.search(low):
            if key == "bmc.fan.failed" and _MILD.search(low):
                return "bmc.fan.warning"
            return "bmc.sensor.unreadable" if key == "bmc.leak.sensor" else key
    if limit and _MILD.search(low):
        return "bmc.threshold.noncritical"
    if re.search(r"has changed to .?critical|transition to critical|is critical\b", low):
        return "bmc.event.critical"
    return ""


def _crossed(low: str, quantity: str, severity: str) -> str:
    """A measured quantity beyond a limit: which one, and how bad."""
    mild = _MILD.search(low) is not None or (severity == "Warning" and not _CRITICAL.search(low))
    if mild:
        return "bmc.threshold.noncritical"
    hot = quantity.startswith(("temp", "therm", "°", "deg"))
    if hot:
        if _INLET.search(low):
            return "bmc.temperature.inlet"
        return "bmc.gpu.thermal" if re.search(r"\bgpu|accel|\bsxm|hbm", low) else "bmc.temperature.critical"
    if quantity.startswith(("power", "watt", "curr", "amp")):
        if re.search(r"power supply|psu|\bps\d", low):
            return "bmc.psu.failed"
        return "bmc.gpu.power" if re.search(r"\bgpu|\bsxm", low) else "bmc.power.component"
    return "bmc.power.component" if re.search(r"\bpdb|inrush|accel|\bgpu", low) else "bmc.voltage.critical"

"""Reader of IPMI sensors and chassis state as text: ``ipmitool sensor | sdr | sdr elist``, ``ipmi-sensors``,
``chassis status``, ``dcmi power reading``. Owns these forms only."""

import re

from msgspec import Struct

from keepstep.core.observation import Observation
from keepstep.evidence.bmc.meanings import TALK, meaning_of
from keepstep.evidence.bmc.names import part_of_text
from keepstep.evidence.document import Document
from keepstep.evidence.reading import Fine, Reader, Reading

NAME = "ipmi_sensors"
SOURCE = "ipmi"
_STATUSES = re.compile("ok|ns|nc|cr|nr|lnc|lcr|lnr|unc|ucr|unr|na|us")
_CRITICAL = ("cr", "nr", "lcr", "lnr", "ucr", "unr")
_MILD = ("nc", "lnc", "unc")
_NAME = r"(?P<name>[^|]{1,60}?)\s*\|\s*"
_SENSOR = re.compile(
    "^"
    + _NAME
    + r"(?P<value>[^|]{1,40}?)\s*\|\s*(?P<unit>[^|]{1,40}?)\s*\|\s*(?P<status>[^|]{1,20}?)\s*(?:\|.{0,200})?$"
)
_SDR = re.compile("^" + _NAME + r"(?P<value>[^|]{1,60}?)\s*\|\s*(?P<status>[a-z]{2,3})\s*$")
_ELIST = re.compile(
    "^"
    + _NAME
    + r"(?P<id>[0-9A-F]{2}h)\s*\|\s*(?P<status>[a-z]{2,3})\s*\|\s*(?P<entity>[\d.]{1,8})\s*\|\s?(?P<value>.{0,200})$"
)
_FREE = re.compile(
    r"^\d{1,6}\s*\|\s*" + _NAME + r"(?P<type>[^|]{1,60}?)\s*\|\s*(?:(?P<state>Nominal|Warning|Critical|N/A)\s*\|\s*)?"
    r"(?P<value>[^|]{1,20}?)\s*\|\s*(?P<unit>[^|]{1,20}?)\s*\|\s*(?P<event>.{1,200})$"
)
_CHASSIS = re.compile(
    r"^(System Power|Power Overload|Power Interlock|Main Power Fault|Power Control Fault|Power Restore Policy|Last Power Event"
    r"|Chassis Intrusion|Front-Panel Lockout|Drive Fault|Cooling/Fan Fault|Sleep Button Disable|Chassis Power)"
    r"\s{0,12}(?::|is)\s?(.{0,60})$",
    re.I,
)
_CHASSIS_FAULTS = {"power overload": "bmc.power.fault", "main power fault": "bmc.power.fault",
                   "power control fault": "bmc.power.fault", "drive fault": "bmc.drive.failed",
                   "cooling/fan fault": "bmc.fan.failed"}  # fmt: skip
_DCMI = re.compile(
    r"^\s{0,8}(Instantaneous power reading|Power reading state is|Average power reading over sample period)"
)
_QUANTITIES = {"degrees c": "temperature", "celsius": "temperature", "c": "temperature", "volts": "voltage", "v": "voltage",
               "rpm": "fan", "watts": "power", "w": "power", "amps": "current", "a": "current"}  # fmt: skip
SAMPLE_LINES = 400


class Sensor(Struct, frozen=True, kw_only=True):
    name: str
    value: str
    status: str
    """In lower case; ``ok``, ``ns``, ``ucr`` …, or empty where the form has none."""
    quantity: str = ""
    event: str = ""


def recognise(document: Document) -> float:
    if document.is_binary or document.head.lstrip()[:1] in ("{", "[", "<"):
        return 0.0
    hits = others = 0
    for number, line in document.lines():
        if number > SAMPLE_LINES:
            break
        if not line.strip() or line.startswith(("#", "ID ")):
            continue
        if sensor_of(line) is not None or _CHASSIS.match(line) or _DCMI.match(line):
            hits += 1
        else:
            others += 1
    if hits == 0 or (hits == 1 and others > 2):
        return 0.0
    return 0.8 if hits >= 4 * others else 0.5 if hits >= others else 0.0


def read(document: Document) -> Reading:
    reading = Reading(reader=NAME, file=document.path)
    for number, line in document.lines():
        sensor = sensor_of(line)
        if sensor is not None:
            reading.records += 1
            _sensor(sensor, number, reading)
            continue
        chassis = _CHASSIS.match(line)
        if chassis is not None:
            reading.records += 1
            _chassis(chassis[1].lower(), chassis[2].strip().lower(), (number, line), reading)
        elif _DCMI.match(line):
            reading.records += 1
        elif line.count("|") >= 2 and not line.startswith(("#", "ID")):
            reading.puzzled(number, line)
    return reading


def sensor_of(line: str) -> Sensor | None:
    """One sensor of any of the forms; None for anything else."""
    bars = line.count("|")
    if not 2 <= bars <= 12 or len(line) > 600:
        return None
    found = _ELIST.match(line)
    if found is not None and _STATUSES.fullmatch(found["status"]):
        value = found["value"].strip()
        return Sensor(name=found["name"], value=value, status=found["status"], quantity=_quantity(value),
                      event="" if _quantity(value) else value)  # fmt: skip
    found = _SDR.match(line)
    if found is not None and _STATUSES.fullmatch(found["status"]):
        return Sensor(
            name=found["name"], value=found["value"], status=found["status"], quantity=_quantity(found["value"])
        )
    found = _FREE.match(line)
    if found is not None:
        state = {"Critical": "cr", "Warning": "nc", "Nominal": "ok", None: ""}.get(found["state"], "na")
        return Sensor(name=f"{found['type']} {found['name']}", value=found["value"], status=state,
                      quantity=_QUANTITIES.get(found["unit"].lower(), ""), event=found["event"].strip().strip("'"))  # fmt: skip
    found = _SENSOR.match(line)
    if found is None or bars < 3:
        return None
    status, unit = found["status"].lower(), found["unit"].lower()
    if _STATUSES.fullmatch(status) is None and not (unit == "discrete" and status.startswith("0x")):
        return None
    return Sensor(name=found["name"], value=found["value"], status=status if _STATUSES.fullmatch(status) else "",
                  quantity=_QUANTITIES.get(unit, ""))  # fmt: skip


def _quantity(value: str) -> str:
    words = value.lower().split(" ", 1)
    return (
        _QUANTITIES.get(words[1].strip(), "")
        if len(words) == 2 and words[0].replace(".", "").lstrip("-").isdecimal()
        else ""
    )


def _sensor(sensor: Sensor, line: int, reading: Reading) -> None:
    text = f"{sensor.name}: {sensor.value} {sensor.event} {sensor.status}".strip()
    if sensor.status in ("ns", "na", "us"):
        return
    if sensor.event and sensor.event.lower() not in ("ok", "n/a", "no event", "present", "presence detected"):
        meaning = meaning_of(
            f"{sensor.name} | {sensor.event}", {"cr": "Critical", "nc": "Warning"}.get(sensor.status, "")
        )
        if meaning is not None and not meaning.ends and meaning.key not in TALK:
            reading.observations.append(_made(meaning.key, _part(sensor), text, (line, reading.file)))
            return
    if sensor.status == "" or sensor.value.lower() in (
        "na",
        "no reading",
        "disabled",
        "n/a",
        "not readable",
    ):
        return
    if sensor.status in _CRITICAL:
        level = "non-recoverable" if sensor.status.endswith("nr") else "critical"
        meaning = meaning_of(
            f"{sensor.name} {sensor.quantity or 'voltage'} {_side(sensor)} {level} threshold crossed", "Critical"
        )
        key = meaning.key if meaning is not None and not meaning.ends else "bmc.voltage.critical"
        reading.observations.append(_made(key, _part(sensor), text, (line, reading.file)))
    elif sensor.status in _MILD:
        reading.observations.append(_made("bmc.threshold.noncritical", _part(sensor), text, (line, reading.file)))
    elif sensor.status == "ok":
        reading.fine.append(Fine(part=_part(sensor), text=text, file=reading.file, line=line))


def _side(sensor: Sensor) -> str:
    return "lower" if sensor.status.startswith("l") else "upper"


def _part(sensor: Sensor) -> str:
    return part_of_text(sensor.name) or f"sensor/{sensor.name.strip()}"


def _chassis(name: str, value: str, where: tuple[int, str], reading: Reading) -> None:
    line, text = where
    at = (line, reading.file)
    if name in ("system power", "chassis power") and value in ("off", "on"):
        if value == "off":
            reading.observations.append(_made("bmc.power.off", "", text, at))
        else:
            reading.fine.append(Fine(part="", text=text.strip(), file=reading.file, line=line))
    elif name in _CHASSIS_FAULTS:
        if value == "true":
            part = {"drive fault": "disk/unknown", "cooling/fan fault": "fan/unknown"}.get(name, "")
            reading.observations.append(_made(_CHASSIS_FAULTS[name], part, text, at))
        elif value == "false":
            reading.fine.append(Fine(part="", text=text.strip(), file=reading.file, line=line))
    elif name == "chassis intrusion" and value == "active":
        reading.observations.append(_made("bmc.intrusion", "", text, at))
    elif name == "last power event" and any(word in value for word in ("ac-failed", "overload", "interlock", "fault")):
        reading.observations.append(_made("bmc.power.past", "", text, at))


def _made(signal: str, part: str, text: str, where: tuple[int, str]) -> Observation:
    return Observation(signal=signal, part=part, detail=text.strip()[:500], attributes={"record": "state"}, source=SOURCE,
                       file=where[1], line=where[0])  # fmt: skip


READER = Reader(
    name=NAME,
    text="IPMI sensors, chassis status and power readings as ipmitool or FreeIPMI print them",
    recognise=recognise,
    read=read,
)

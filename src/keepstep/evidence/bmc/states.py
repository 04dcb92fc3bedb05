"""The present state of parts in Redfish resources: health, readings, counters. Must not read logs.

A controller marks parts Critical that are absent, that start, or whose sensor it cannot read; its own word that a part is
well counts for more than a limit that a reading crosses.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from keepstep.evidence.bmc.names import is_list_name, part_of_path, part_of_text

NOT_IN_USE = frozenset({"absent", "disabled", "standbyoffline", "standbyspare", "starting", "intest", "updating", "deferring",
                        "quiesced", "qualified", "notqualified"})  # fmt: skip
"""States in which health says nothing about a fault."""
OFFLINE = "unavailableoffline"
ABSURD = 1e6
MAX_PARTS = 20_000
MAX_DEPTH = 12
_HARD_LIMITS = ("UpperCritical", "UpperFatal", "LowerCritical", "LowerFatal")


class State(Struct, frozen=True, kw_only=True):
    """What one resource, or one member of it, says of itself."""

    signal: str
    """Key of the catalogue; empty where the part is well."""
    part: str
    text: str
    attributes: dict[str, str] = {}


class Seen(Struct, frozen=True, kw_only=True):
    """One thing with a ``Status`` of its own."""

    path: str
    kind: str
    """Type of the resource, or name of the list that it is a member of."""
    body: dict[str, Any]
    name: str
    health: str
    state: str
    rollup: str


def states_of(path: str, kind: str, body: dict[str, Any]) -> Iterator[State]:
    """What a resource says of its own and its members' present state."""
    for count, seen in enumerate(_walk(path, kind, body, 0)):
        if count >= MAX_PARTS:
            return
        yield from _judged(seen)


def _walk(path: str, kind: str, body: dict[str, Any], depth: int) -> Iterator[Seen]:
    status = body.get("Status")
    if isinstance(status, str):
        status = {"Health": status}
    state = body.get("DetectorState")
    if not isinstance(status, dict) and isinstance(state, str):
        status = {"Health": state, "State": "Enabled"}
    if isinstance(status, dict):
        yield Seen(
            path=path, kind=kind, body=body, name=_name(body, path), health=_word(status, "Health"),
            state=_word(status, "State").lower(), rollup=_word(status, "HealthRollup"),
        )  # fmt: skip
    if depth >= MAX_DEPTH:
        return
    for field, value in body.items():
        if field in ("Status", "Links", "Actions", "Conditions", "RedundancySet", "RelatedItem"):
            continue
        if isinstance(value, dict):
            yield from _walk(
                f"{path}/{field}", kind if field in ("Oem", "Hpe", "Nvidia", "Dell") else field, value, depth + 1
            )
        elif isinstance(value, list):
            for index, member in enumerate(value[:MAX_PARTS]):
                if isinstance(member, dict):
                    own = member.get("@odata.id")
                    at = own if isinstance(own, str) and own else f"{path}/{field}/{member.get('MemberId', index)}"
                    yield from _walk(at.replace("#", ""), field, member, depth + 1)


def _judged(seen: Seen) -> Iterator[State]:
    kind = _family(seen)
    part = _part(seen, kind)
    what = f"{seen.name or seen.path}: health {seen.health or 'not given'}, state {seen.state or 'not given'}"
    attributes = {"record": "state", "path": seen.path, "health": seen.health, "kind": kind}
    if kind == "skip":
        return
    if kind == "drive" and seen.body.get("FailurePredicted") is True and seen.health != "Critical":
        yield State(signal="bmc.drive.predicted", part=part, text=f"{what}, failure predicted", attributes=attributes)
        return
    if kind == "gpu" and seen.state == OFFLINE and seen.health != "OK":
        yield State(signal="bmc.gpu.lost", part=part, text=what, attributes=attributes)
        return
    if seen.state in NOT_IN_USE:
        return
    health = seen.health
    if kind == "rollup":
        health = (
            "Critical"
            if "Critical" in (health, seen.rollup)
            else "Warning"
            if "Warning" in (health, seen.rollup)
            else health
        )
    reading = _reading(seen.body)
    if health == "OK":
        yield State(signal="", part=part, text=what, attributes=attributes)
        return
    if health not in ("Critical", "Warning"):
        if seen.health == "" and kind in ("sensor", "temperature", "inlet") and _beyond(seen.body, reading):
            yield State(
                signal="bmc.threshold.noncritical", part=part, text=f"{what}, reading {reading}", attributes=attributes
            )
        return
    if kind in ("sensor", "temperature", "inlet", "voltage", "fan") and _insane(seen.body, reading):
        yield State(signal="bmc.sensor.unreadable", part=part, text=f"{what}, reading {reading}", attributes=attributes)
        return
    yield State(signal=_signal(kind, health, seen), part=part, text=what, attributes=attributes)


_SIGNALS: dict[str, tuple[str, str]] = {
    # family: (critical, warning)
    "gpu": ("bmc.gpu.critical", "bmc.gpu.warning"),
    "gpu_memory": ("bmc.gpu.critical", "bmc.gpu.warning"),
    "nvswitch": ("bmc.nvswitch.critical", "bmc.part.warning"),
    "cpu": ("bmc.cpu.failed", "bmc.cpu.warning"),
    "memory": ("bmc.memory.failed", "bmc.memory.corrected_limit"),
    "drive": ("bmc.drive.failed", "bmc.drive.warning"),
    "storage": ("bmc.storage.degraded", "bmc.drive.warning"),
    "psu": ("bmc.psu.failed", "bmc.psu.warning"),
    "redundancy": ("bmc.psu.redundancy", "bmc.psu.redundancy"),
    "fan_redundancy": ("bmc.fan.warning", "bmc.fan.warning"),
    "fan": ("bmc.fan.failed", "bmc.fan.warning"),
    "temperature": ("bmc.temperature.critical", "bmc.threshold.noncritical"),
    "gpu_temperature": ("bmc.gpu.thermal", "bmc.threshold.noncritical"),
    "inlet": ("bmc.temperature.inlet", "bmc.temperature.inlet"),
    "voltage": ("bmc.voltage.critical", "bmc.threshold.noncritical"),
    "sensor": ("bmc.voltage.critical", "bmc.threshold.noncritical"),
    "leak": ("bmc.leak", "bmc.leak.warning"),
    "cabinet_leak": ("bmc.leak.cabinet", "bmc.leak.cabinet"),
    "nic": ("bmc.nic.failed", "bmc.nic.link"),
    "nvlink": ("bmc.gpu.nvlink", "bmc.gpu.warning"),
    "shelf": ("bmc.power.shelf", "bmc.power.shelf.warning"),
    "cooling": ("bmc.cooling", "bmc.cooling"),
    "manager": ("bmc.controller", "bmc.controller"),
    "battery": ("bmc.battery", "bmc.battery"),
    "rollup": ("bmc.rollup.critical", "bmc.rollup.warning"),
    "other": ("bmc.part.critical", "bmc.part.warning"),
}


def _signal(kind: str, health: str, seen: Seen) -> str:
    if kind == "psu" and seen.body.get("LineInputStatus") in ("LossOfInput", "OutOfRange"):
        return "bmc.psu.input_lost"
    if kind == "psu" and seen.body.get("LineInputVoltage") == 0 and health == "Critical":
        return "bmc.psu.input_lost"
    if kind == "temperature" and part_of_text(seen.name).startswith("gpu/"):
        kind = "gpu_temperature"
    if kind == "memory" and part_of_path(seen.path).startswith("gpu/"):
        kind = "gpu_memory"
    return _SIGNALS[kind][0 if health == "Critical" else 1]


_FAMILIES: dict[str, str] = {
    "Drive": "drive", "Drives": "drive", "Storage": "storage", "StorageController": "storage", "StorageControllers": "storage",
    "Volume": "storage", "Volumes": "storage", "SimpleStorage": "storage", "Devices": "drive", "Memory": "memory",
    "PowerSupply": "psu", "PowerSupplies": "psu", "PowerSupplyRedundancy": "redundancy", "Redundancy": "redundancy",
    "FanRedundancy": "fan_redundancy", "Fan": "fan", "Fans": "fan", "Pump": "fan", "Pumps": "fan",
    "Temperatures": "temperature", "Temperature": "temperature", "Voltages": "voltage", "Voltage": "voltage",
    "NetworkAdapter": "nic", "NetworkPort": "nic", "NetworkInterface": "nic", "EthernetInterface": "nic",
    "PowerShelf": "shelf", "PowerDistribution": "shelf", "PowerEquipment": "shelf", "RackPDU": "shelf", "Outlet": "shelf",
    "CoolingUnit": "cooling", "CoolingLoop": "cooling", "ThermalEquipment": "cooling", "Manager": "manager",
    "Battery": "battery", "SmartStorageBattery": "battery", "Switch": "nvswitch", "MemorySummary": "memory",
    "ProcessorSummary": "cpu", "Processors": "cpu", "Network": "nic", "BiosOrHardwareHealth": "other",
    "LeakDetection": "leak", "LeakDetector": "leak", "LeakDetectors": "leak",
    "HostWatchdogTimer": "skip", "TrustedModules": "skip", "Boot": "skip", "Task": "skip", "Certificate": "skip",
    "ManagerNetworkProtocol": "skip", "SecureBoot": "skip", "LogService": "skip", "UpdateService": "skip",
    "SoftwareInventory": "skip", "TelemetryService": "skip", "EventService": "skip", "SessionService": "skip",
    "AccountService": "skip", "TaskService": "skip", "VirtualMedia": "skip", "EventDestination": "skip", "Conditions": "skip",
    "CertificateService": "skip", "ComponentIntegrity": "skip", "USBDevices": "skip", "Manager ": "skip", "System": "rollup",
}  # fmt: skip
_STORAGE_WORDS = ("smart array", "raid", "storage", "nvme", "sas ", "sata", "hba")


def _family(seen: Seen) -> str:
    kind, name = seen.kind, f"{seen.name} {seen.body.get('DeviceType', '')}".lower()
    if kind in ("ComputerSystem", "ServiceConditions", "ServiceRoot"):
        return "rollup"
    if kind == "Chassis":
        named = part_of_path(seen.path)
        return "gpu" if named.startswith("gpu/") else "nvswitch" if named.startswith("nvswitch/") else "rollup"
    if kind == "Processor":
        sort = str(seen.body.get("ProcessorType", ""))
        accelerator = sort in ("GPU", "Accelerator", "DSP") or part_of_path(seen.path).startswith("gpu/")
        return "gpu" if accelerator else "cpu" if sort in ("CPU", "Core", "") else "other"
    if kind == "Port":
        return "nvlink" if "nvlink" in f"{seen.path} {seen.body.get('PortProtocol', '')}".lower() else "nic"
    if kind in ("Sensor", "Sensors"):
        return _sensor_family(seen)
    if kind in ("Temperatures", "Temperature") and _is_inlet(seen):
        return "inlet"
    family = _FAMILIES.get(kind, "")
    if family == "leak":
        return "cabinet_leak" if _in_rack(seen) else "leak"
    if family == "redundancy" and "thermal" in seen.path.lower():
        return "fan_redundancy"
    if family:
        return family
    if any(word in name for word in _STORAGE_WORDS):
        return "storage"
    return "gpu" if "gpu" in name and "subsystem" not in name else "other"


def _sensor_family(seen: Seen) -> str:
    sort = str(seen.body.get("ReadingType", ""))
    if sort == "Temperature":
        return "inlet" if _is_inlet(seen) else "temperature"
    if sort in ("Rotational", "FanSpeed") or seen.body.get("ReadingUnits") == "RPM":
        return "fan"
    if "leak" in f"{seen.name} {seen.path}".lower():
        return "leak"
    return "voltage" if sort in ("Voltage", "Current", "Power") else "sensor"


def _is_inlet(seen: Seen) -> bool:
    context = str(seen.body.get("PhysicalContext", "")).lower()
    name = seen.name.lower()
    return context in ("intake", "room") or "inlet ambient" in name or name.startswith(("inlet", "ambient", "01-inlet"))


def _in_rack(seen: Seen) -> bool:
    text = f"{seen.path} {seen.name}".lower()
    return any(
        word in text for word in ("cabinet", "rack", "cdu", "manifold", "thermalequipment", "coolingunit", "enclosure")
    )


def _part(seen: Seen, kind: str) -> str:
    if kind == "rollup":
        return ""
    if is_list_name(seen.path.rsplit("/", 1)[-1]):
        return ""  # a summary of all of them
    named = part_of_path(seen.path)
    if kind in ("psu", "fan"):
        return _numbered(seen, kind, named)
    if kind in ("temperature", "voltage", "sensor", "inlet"):
        said = part_of_text(seen.name)
        return said if said.startswith(("gpu/", "nvswitch/")) else f"sensor/{seen.name or seen.path.rsplit('/', 1)[-1]}"
    if kind == "drive":
        said = part_of_text(f"{seen.body.get('Name', '')}")
        return named if named.startswith("disk/") else said
    return named


def _numbered(seen: Seen, kind: str, named: str) -> str:
    """A supply or fan by the number that its messages use: the one in its name, then its bay, then its place in the list."""
    said = part_of_text(seen.name)
    if said.startswith(kind + "/"):
        return said
    vendor = seen.body.get("Oem")
    hpe = vendor.get("Hpe") if isinstance(vendor, dict) else None
    bay = hpe.get("BayNumber") if isinstance(hpe, dict) else None
    if isinstance(bay, int):
        return f"{kind}/{bay}"
    return named if named.startswith(kind + "/") else f"{kind}/{seen.body.get('MemberId', seen.name)}"


def _name(body: dict[str, Any], path: str) -> str:
    for field in ("Name", "FanName", "Id", "MemberId"):
        value = body.get(field)
        if isinstance(value, str) and value:
            return value[:120]
    return path.rsplit("/", 1)[-1][:120]


def _word(status: dict[str, Any], name: str) -> str:
    """Health and state as their registry writes them; empty for null, NA and what nobody knows."""
    value = status.get(name)
    if not isinstance(value, str):
        return ""
    known = {
        "ok": "OK",
        "critical": "Critical",
        "warning": "Warning",
        "good": "OK",
        "normal": "OK",
        "fatal": "Critical",
    }
    return known.get(value.lower(), value if name == "State" else "")


def _reading(body: dict[str, Any]) -> float | None:
    for field in ("Reading", "ReadingCelsius", "ReadingVolts", "ReadingRPM", "LeakReading"):
        value = body.get(field)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


def _insane(body: dict[str, Any], reading: float | None) -> bool:
    """The sensor gives no reading, or none that the world could have."""
    has_reading = any(field in body for field in ("Reading", "ReadingCelsius", "ReadingVolts", "ReadingRPM"))
    if reading is None:
        return has_reading
    celsius = "ReadingCelsius" in body or body.get("ReadingType") == "Temperature" or body.get("ReadingUnits") == "Cel"
    return reading != reading or abs(reading) >= (200 if celsius else ABSURD)


def _beyond(body: dict[str, Any], reading: float | None) -> bool:
    if reading is None or _insane(body, reading):
        return False
    limits = body.get("Thresholds")
    for name in _HARD_LIMITS:
        limit = limits.get(name) if isinstance(limits, dict) else None
        value = limit.get("Reading") if isinstance(limit, dict) else body.get(
            name.replace("Upper", "UpperThreshold").replace("Lower", "LowerThreshold"))  # fmt: skip
        if not isinstance(value, int | float) or isinstance(value, bool) or value == 0:
            continue
        if reading > value if name.startswith("Upper") else reading < value:
            return True
    return False

"""Counters and flags of accelerators and memory in Redfish metrics resources. Must not judge health states."""

from collections.abc import Iterator
from typing import Any

from keepstep.evidence.bmc.names import part_of_path
from keepstep.evidence.bmc.states import State

_BENIGN_REASONS = ("na", "none", "idle", "gpuidle", "swpowercap", "clockoptimizedforpower", "applicationclocks", "syncboost",
                   "displayclocks", "")  # fmt: skip


def counters_of(path: str, kind: str, body: dict[str, Any]) -> Iterator[State]:
    """What the counters of a metrics resource, or of a memory, say. Nothing for those that are at rest."""
    part = part_of_path(path)
    said = _flat(body)
    is_gpu = part.startswith("gpu/")
    if kind in ("MemoryMetrics", "ProcessorMetrics", "Memory", "Processor"):
        yield from _memory(part, is_gpu, said, path)
    if kind == "ProcessorMetrics":
        yield from _pcie(part, is_gpu, said, path)
        yield from _throttle(part, said, path)
    if kind == "PortMetrics" and is_gpu:
        for flag in ("runtimeerror", "trainingerror"):
            if any(value is True for name, value in said if name.endswith(flag)):
                yield _state("bmc.gpu.nvlink", part, f"{path}: {flag}", path)


def _memory(part: str, is_gpu: bool, said: list[tuple[str, Any]], path: str) -> Iterator[State]:
    flags = {
        "rowremappingfailed": "bmc.gpu.remap_failed", "rowremappingpending": "bmc.gpu.remap_pending",
        "srameccerrorthresholdexceeded": "bmc.gpu.memory.sram",
    }  # fmt: skip
    for name, value in said:
        last = name.rsplit(".", 1)[-1]
        if value is True and last in flags:
            yield _state(flags[last], part, f"{path}: {last}", path)
        elif value is True and last == "uncorrectableeccerror" and "alarmtrips" in name:
            yield _state(
                "bmc.gpu.memory.uncorrectable" if is_gpu else "bmc.memory.uncorrectable", part, f"{path}: {last}", path
            )
        elif last == "uncorrectableeccerrorcount" and _count(value) and "lifetime" in name:
            yield _state("bmc.gpu.memory.lifetime" if is_gpu else "bmc.memory.corrected", part,
                         f"{path}: {value} uncorrectable errors in its life", path, value)  # fmt: skip
        elif last == "uncorrectableeccerrorcount" and _count(value) and "currentperiod" in name:
            yield _state("bmc.gpu.memory.uncorrectable" if is_gpu else "bmc.memory.uncorrectable", part,
                         f"{path}: {value} uncorrectable errors in this period", path, value)  # fmt: skip
        elif last == "correctableeccerrorcount" and _count(value) and "currentperiod" in name and not is_gpu:
            yield _state("bmc.memory.corrected", part, f"{path}: {value} corrected errors in this period", path, value)


def _pcie(part: str, is_gpu: bool, said: list[tuple[str, Any]], path: str) -> Iterator[State]:
    for name, value in said:
        if "pcieerrors." not in name or not _count(value):
            continue
        if name.endswith(".fatalerrorcount"):
            signal = "bmc.gpu.pcie" if is_gpu else "bmc.pcie.nonfatal"
        elif name.endswith(".nonfatalerrorcount"):
            signal = "bmc.gpu.pcie.nonfatal" if is_gpu else "bmc.pcie.nonfatal"
        else:
            continue
        yield _state(signal, part, f"{path}: {name.rsplit('.', 1)[-1]} {value}", path, value)


def _throttle(part: str, said: list[tuple[str, Any]], path: str) -> Iterator[State]:
    for name, value in said:
        if not name.endswith("throttlereasons"):
            continue
        for reason in value if isinstance(value, list) else [value]:
            word = str(reason).rsplit(".", 1)[-1].lower().replace("_", "")
            if word in _BENIGN_REASONS:
                continue
            hot = "thermal" in word and word.startswith(("hw", "hardware"))
            signal = "bmc.gpu.power_brake" if "brake" in word else "bmc.gpu.thermal" if hot else "bmc.gpu.throttle"
            yield _state(signal, part, f"{path}: slowed down by {reason}", path)


def _flat(value: Any, name: str = "", depth: int = 0) -> list[tuple[str, Any]]:
    """(dotted name in lower case, value) of the leaves; lists of plain values stay whole."""
    if depth > 8 or not isinstance(value, dict):
        return [(name, value)]
    found: list[tuple[str, Any]] = []
    for key, inner in list(value.items())[:500]:
        found.extend(_flat(inner, f"{name}.{key}".lower().lstrip("."), depth + 1))
    return found


def _count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**63


def _state(signal: str, part: str, text: str, path: str, value: object = "") -> State:
    return State(
        signal=signal, part=part, text=text, attributes={"record": "counter", "path": path, "value": str(value)}
    )

"""What is asked of one device, as facts in this project's words (``evidence.gpu.card``). Runs in the child; judges nothing.

A question that the driver or the card does not know is left out. One that says that the card is lost ends the asking.
"""

from collections.abc import Callable, Iterator
from ctypes import byref
from typing import Any

import pynvml as nvml

FATAL: dict[int, str] = {
    nvml.NVML_ERROR_GPU_IS_LOST: "GPU is lost",
    nvml.NVML_ERROR_RESET_REQUIRED: "GPU requires reset",
    nvml.NVML_ERROR_INSUFFICIENT_POWER: "insufficient external power",
    nvml.NVML_ERROR_CORRUPTED_INFOROM: "corrupted infoROM",
    nvml.NVML_ERROR_OPERATING_SYSTEM: "GPU access blocked by the operating system",
    nvml.NVML_ERROR_UNKNOWN: "Unknown Error",
}
"""Answers that say something of the card itself; any other refusal is of the one question."""

Facts = dict[str, str]
_UNCORRECTED, _CORRECTED, _VOLATILE, _AGGREGATE = 1, 0, 0, 1

_FIELDS: dict[int, str] = {
    230: "recovery", 144: "remap.pending", 145: "remap.failed", 142: "remap.correctable", 143: "remap.uncorrectable",
    82: "temperature.memory", 194: "temperature.margin.slowdown", 180: "pcie.fatal", 52: "nvlink.replay", 59: "nvlink.recovery",
    38: "nvlink.crc", 214: "nvlink.recovery_failed", 231: "c2c.errors",
}  # fmt: skip
"""Field numbers of the library. Its 230 is the recovery action; the monitoring daemon's 230 is another field."""

_REASONS: dict[int, str] = {
    0x1: "throttle.idle", 0x4: "throttle.sw_power", 0x8: "throttle.hw_slowdown", 0x20: "throttle.sw_thermal",
    0x40: "throttle.hw_thermal", 0x80: "throttle.power_brake",
}  # fmt: skip
_FABRIC_STATES = {1: "not started", 2: "in progress", 3: "completed"}
# (shift, width, values that are bad) within the fabric's health mask
_FABRIC_BAD = ((0, 0x3, (1,)), (4, 0x3, (1,)), (6, 0x3, (1,)), (8, 0xF, tuple(range(2, 16))))


class Fatal(Exception):
    """The card itself answers with an error."""


def facts_of(handle: Any) -> Facts:
    """Everything that can be asked. Raises Fatal."""
    facts: Facts = {}
    for ask in _QUESTIONS:
        for name, value in _answers(ask, handle):
            facts.setdefault(name, value)
    return facts


def _answers(ask: Callable[[Any], Iterator[tuple[str, str]]], handle: Any) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    try:
        for answer in ask(handle):
            found.append(answer)
    except nvml.NVMLError as error:
        refuse(error)
    return found


def refuse(error: Any) -> None:
    """Raises Fatal for an answer that is about the card; returns for one that is about the question."""
    code = getattr(error, "value", 0)
    if code in FATAL and code != nvml.NVML_ERROR_UNKNOWN:
        raise Fatal(FATAL[code])


def one(call: Callable[..., Any], *arguments: Any) -> Any:
    """An answer, or None where this question is refused."""
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        refuse(error)
        return None


def text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _counted(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if value is not None:
        yield name, text(value)


def _errors(handle: Any) -> Iterator[tuple[str, str]]:
    yield from _counted("ecc.volatile", one(nvml.nvmlDeviceGetTotalEccErrors, handle, _UNCORRECTED, _VOLATILE))
    yield from _counted("ecc.lifetime", one(nvml.nvmlDeviceGetTotalEccErrors, handle, _UNCORRECTED, _AGGREGATE))
    yield from _counted("ecc.corrected", one(nvml.nvmlDeviceGetTotalEccErrors, handle, _CORRECTED, _VOLATILE))
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    if one(nvml.nvmlDeviceGetSramEccErrorStatus, handle, byref(status)) is not None:
        yield "ecc.sram.exceeded", str(status.bThresholdExceeded)
        yield "ecc.lifetime.sram", str(status.aggregateUncParity + status.aggregateUncSecDed)


def _spares(handle: Any) -> Iterator[tuple[str, str]]:
    rows = one(nvml.nvmlDeviceGetRemappedRows, handle)
    if rows is not None:
        yield from zip(
            ("remap.correctable", "remap.uncorrectable", "remap.pending", "remap.failed"), map(str, rows), strict=True
        )
        histogram = one(nvml.nvmlDeviceGetRowRemapperHistogram, handle)
        if histogram is not None:
            yield "remap.banks.none", str(histogram.none)
            yield "remap.banks.low", str(histogram.low)
        return
    for name, cause in (("retired.sbe", 0), ("retired.dbe", 1)):
        pages = one(nvml.nvmlDeviceGetRetiredPages, handle, cause)
        if pages is not None:
            yield name, str(len(pages))
    yield from _counted("retired.pending", one(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle))


def _fields(handle: Any) -> Iterator[tuple[str, str]]:
    values = one(nvml.nvmlDeviceGetFieldValues, handle, list(_FIELDS))
    for field in values or ():
        if field.nvmlReturn == 0 and field.fieldId in _FIELDS:
            yield _FIELDS[field.fieldId], str(_number(field))


def _number(field: Any) -> Any:
    kinds = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
    return getattr(field.value, kinds.get(field.valueType, "ullVal"))


def _throttle(handle: Any) -> Iterator[tuple[str, str]]:
    mask = one(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if mask is None:
        mask = one(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    if mask is not None:
        for bit, name in _REASONS.items():
            yield name, "1" if mask & bit else "0"


def _heat(handle: Any) -> Iterator[tuple[str, str]]:
    yield from _counted("temperature", one(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU))
    yield from _counted("temperature.slowdown", one(nvml.nvmlDeviceGetTemperatureThreshold, handle, 1))
    yield from _counted("temperature.max", one(nvml.nvmlDeviceGetTemperatureThreshold, handle, 3))
    yield from _counted("temperature.memory.max", one(nvml.nvmlDeviceGetTemperatureThreshold, handle, 2))
    yield from _counted("temperature.margin", one(nvml.nvmlDeviceGetMarginTemperature, handle))


def _bus(handle: Any) -> Iterator[tuple[str, str]]:
    yield from _counted("pcie.width", one(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle))
    yield from _counted("pcie.width.max", one(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle))
    yield from _counted("pcie.gen", one(nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle))
    yield from _counted("pcie.gen.max", one(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle))
    yield from _counted("pcie.replay", one(nvml.nvmlDeviceGetPcieReplayCounter, handle))


def _work(handle: Any) -> Iterator[tuple[str, str]]:
    use = one(nvml.nvmlDeviceGetUtilizationRates, handle)
    if use is not None:
        yield "utilisation", str(use.gpu)
    yield from _counted("clock.sm", one(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM))
    yield from _counted("clock.sm.max", one(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM))
    milliwatts = one(nvml.nvmlDeviceGetPowerUsage, handle)
    if milliwatts is not None:
        yield "power", str(milliwatts / 1000)
    state = one(nvml.nvmlDeviceGetPerformanceState, handle)
    if state is not None and 0 <= state < 16:
        yield "pstate", f"P{state}"


def _links(handle: Any) -> Iterator[tuple[str, str]]:
    states = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        state = one(nvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            break
        states.append(state)
    if states:
        yield "nvlink.active", str(sum(1 for state in states if state))
        yield "nvlink.inactive", str(sum(1 for state in states if not state))


def _fabric(handle: Any) -> Iterator[tuple[str, str]]:
    for form in (nvml.c_nvmlGpuFabricInfo_v3_t, nvml.c_nvmlGpuFabricInfo_v2_t):
        info = form()
        if one(nvml.nvmlDeviceGetGpuFabricInfoV, handle, byref(info)) is None:
            continue
        state = _FABRIC_STATES.get(info.state)
        if state is None:
            return
        yield "fabric.state", state
        yield "fabric.status", "success" if info.status == 0 else text(nvml.nvmlErrorString(info.status))
        bad = any((info.healthMask >> shift) & width in values for shift, width, values in _FABRIC_BAD)
        yield "fabric.unhealthy", "1" if bad else "0"
        return


def _mode(handle: Any) -> Iterator[tuple[str, str]]:
    mode = one(nvml.nvmlDeviceGetMigMode, handle)
    if mode is not None:
        yield "mode.mig", "Enabled" if mode[0] else "Disabled"


_QUESTIONS = (_errors, _spares, _fields, _throttle, _heat, _bus, _work, _mode, _links, _fabric)

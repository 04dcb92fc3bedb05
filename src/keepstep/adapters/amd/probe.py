"""The child that asks AMD's library: ``python -m keepstep.adapters.amd.probe INTERVAL_S``. Lines as NVIDIA's child says them.

The library is not on the package registries in a form that runs everywhere: it comes with the driver, and may be absent.
Must not judge what it sees.
"""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import amdsmi

from keepstep.adapters.devices.telling import rest, say

Facts = Iterator[tuple[str, Any]]
_LOST = ("busy", "not found", "no such device", "dead", "i/o")


def _one(call: Callable[..., Any], *arguments: Any) -> Any:
    """An answer, or None where this library or card does not know the question."""
    try:
        return call(*arguments)
    except amdsmi.AmdSmiException:
        return None


def _ask(name: str, *arguments: Any) -> Any:
    call = getattr(amdsmi, name, None)
    return _one(call, *arguments) if call is not None else None


def _errors(handle: Any) -> Facts:
    count = _ask("amdsmi_get_gpu_total_ecc_count", handle)
    if isinstance(count, dict):
        yield "ecc.volatile", count.get("uncorrectable_count")
        yield "ecc.corrected", count.get("correctable_count")
    pages = _ask("amdsmi_get_gpu_bad_page_info", handle)
    if isinstance(pages, list):
        pending = [page for page in pages if "PENDING" in str(page.get("status", "")).upper()]
        yield "retired.dbe", len(pages) - len(pending)
        yield "retired.pending", int(bool(pending))


def _heat(handle: Any) -> Facts:
    kinds, metrics = amdsmi.AmdSmiTemperatureType, amdsmi.AmdSmiTemperatureMetric
    for kind, metric, name in (
        ("HOTSPOT", "CURRENT", "temperature"), ("HOTSPOT", "CRITICAL", "temperature.slowdown"),
        ("VRAM", "CURRENT", "temperature.memory"), ("VRAM", "CRITICAL", "temperature.memory.max"),
    ):  # fmt: skip
        if hasattr(kinds, kind) and hasattr(metrics, metric):
            yield name, _ask("amdsmi_get_temp_metric", handle, getattr(kinds, kind), getattr(metrics, metric))


def _work(handle: Any) -> Facts:
    use = _ask("amdsmi_get_gpu_activity", handle)
    if isinstance(use, dict):
        yield "utilisation", use.get("gfx_activity")
    power = _ask("amdsmi_get_power_info", handle)
    if isinstance(power, dict):
        yield "power", power.get("current_socket_power") or power.get("average_socket_power")
        yield "power.limit", _micro(power.get("power_limit"))


def _micro(value: Any) -> Any:
    """Some versions give this limit in millionths."""
    return value / 1e6 if isinstance(value, (int, float)) and value > 1e5 else value


def _bus(handle: Any) -> Facts:
    link = _ask("amdsmi_get_pcie_info", handle)
    if isinstance(link, dict):
        fixed, now = link.get("pcie_static") or {}, link.get("pcie_metric") or link
        yield "pcie.width.max", fixed.get("max_pcie_width")
        yield "pcie.width", now.get("pcie_width") or now.get("pcie_lanes")
        yield "pcie.replay", now.get("pcie_replay_count")


_QUESTIONS = (_errors, _heat, _work, _bus)


def _card(handle: Any, index: int) -> dict[str, Any]:
    line: dict[str, Any] = {"index": str(index)}
    try:
        line["pci"] = str(amdsmi.amdsmi_get_gpu_device_bdf(handle))
    except amdsmi.AmdSmiException as error:
        if any(word in str(error).lower() for word in _LOST):
            line["trouble"] = "GPU is lost"
    line["uuid"] = str(_ask("amdsmi_get_gpu_device_uuid", handle) or line.get("pci", index))
    asic = _ask("amdsmi_get_gpu_asic_info", handle)
    if isinstance(asic, dict):
        line["name"], line["serial"] = str(asic.get("market_name", "")), str(asic.get("asic_serial", ""))
    line["facts"] = {
        name: str(value)
        for ask in _QUESTIONS
        for name, value in ask(handle)
        if isinstance(value, (int, float)) and 0 <= value < 2**63
    }
    return line


def sweep() -> None:
    started_s = time.monotonic()
    handles = amdsmi.amdsmi_get_processor_handles()
    say(begin=len(handles))
    for index, handle in enumerate(handles):
        say(card=_card(handle, index))
    say(end=len(handles), took_s=round(time.monotonic() - started_s, 3))


def main(interval_s: float) -> int:
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        say(absent=f"AMD's library does not start: {error}")
        return 0
    while True:
        try:
            sweep()
        except amdsmi.AmdSmiException as error:
            say(failed=f"AMD's library: {error}")
            return 1
        if not rest(interval_s):
            return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0))

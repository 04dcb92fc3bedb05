"""The driver's words where it gives no answer: what each means. Owns the phrases; keeps nothing.

Tools of all generations print them: the state query, the listing, the exporter, scripts around them.
"""

import re

from msgspec import Struct

from keepstep.evidence.gpu.card import pci_or_empty

_ADDRESS = r"(?P<pci>(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-9A-Fa-f])?)"


class Trouble(Struct, frozen=True):
    signal: str
    whole_node: bool = False


_WORDS: tuple[tuple[str, Trouble], ...] = (
    ("driver/library version mismatch", Trouble("gpu.driver.mismatch", True)),
    ("couldn't communicate with the nvidia driver", Trouble("gpu.driver.down", True)),
    ("driver not loaded", Trouble("gpu.driver.down", True)),
    ("driver is not loaded", Trouble("gpu.driver.down", True)),
    ("no devices were found", Trouble("gpu.none", True)),
    ("gpu is lost", Trouble("gpu.lost")),
    ("gpu_is_lost", Trouble("gpu.lost")),
    ("fallen off the bus", Trouble("gpu.lost")),
    ("gpu requires reset", Trouble("gpu.reset_required")),
    ("requires a reset", Trouble("gpu.reset_required")),
    ("reset_required", Trouble("gpu.reset_required")),
    ("insufficient external power", Trouble("gpu.power.aux")),
    ("insufficient power", Trouble("gpu.power.aux")),
    ("power cables", Trouble("gpu.power.aux")),
    ("inforom is corrupted", Trouble("gpu.inforom")),
    ("corrupted inforom", Trouble("gpu.inforom")),
    ("failed to initialize nvml", Trouble("gpu.driver.access", True)),
    ("blocked by the operating system", Trouble("gpu.driver.access")),
    ("unable to determine the device handle", Trouble("gpu.lost")),
    ("unknown error", Trouble("gpu.unreadable")),
    ("err!", Trouble("gpu.unreadable")),
)
_DEVICE = re.compile(r"\b(?:gpu|device(?: handle for)?)\s*(?:at\s*)?" + _ADDRESS, re.IGNORECASE)
_NUMBERED = re.compile(r"\bgpu\s*\d{1,3}:\s+" + _ADDRESS, re.IGNORECASE)
_INDEX = re.compile(r"\bgpu\s+(\d{1,3})\b(?!:)", re.IGNORECASE)


def trouble(text: str) -> Trouble | None:
    """What a line of the driver's tools complains of; None for ordinary lines."""
    low = text.lower()
    return next((what for words, what in _WORDS if words in low), None)


def trouble_of(text: str) -> tuple[str, str]:
    """(signal, detail) of a device that gave this in place of an answer."""
    found = trouble(text)
    return (found.signal if found is not None else "gpu.unreadable"), text.strip()[:300]


def device_in(text: str) -> str:
    """The part that a line of complaint names; empty where it names none."""
    match = _NUMBERED.search(text) or _DEVICE.search(text)
    if match is not None:
        name = pci_or_empty(match["pci"])
        if name:
            return f"gpu/{name}"
    index = _INDEX.search(text)
    return f"gpu/{index[1]}" if index is not None else ""

"""Which part of a node a controller means, from its texts and its resource paths. Guesses no index from a slot."""

import re

_PCI = (
    # Bus fatal:B5d/D03/F02
    (re.compile(r"\bB([0-9a-f]{1,2})\s*/\s*D([0-9a-f]{1,2})\s*/\s*F0?([0-7])\b", re.I), 16),
    # 0000:5d:03.2
    (re.compile(r"\b(?:[0-9a-f]{4}:)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])\b", re.I), 16),
    # bus 0x5d, device 0x3, function 0x2; bus:0x5d dev:0x3 func:0x2
    (re.compile(r"\bbus[ :=#]{1,3}0x([0-9a-f]{1,2})\W{1,4}dev(?:ice)?[ :=#]{1,3}(?:0x)?([0-9a-f]{1,2})"
                r"\W{1,4}func(?:tion)?[ :=#]{1,3}(?:0x)?0?([0-7])\b", re.I), 16),
    # bus 93 device 3 function 2: in decimal
    (re.compile(r"\bbus[ :=#]{1,3}(\d{1,3})\W{1,4}dev(?:ice)?[ :=#]{1,3}(\d{1,2})"
                r"\W{1,4}func(?:tion)?[ :=#]{1,3}0?([0-7])\b", re.I), 10),
)  # fmt: skip


def pci_of(text: str) -> tuple[str, str] | None:
    """(``0000:5d:03``, function) that a text names; None where it names none."""
    for pattern, base in _PCI:
        found = pattern.search(text)
        if found is not None:
            bus, device, function = (int(group, base) for group in found.groups())
            if bus < 256 and device < 32:
                return f"0000:{bus:02x}:{device:02x}", str(function)
    return None


_SERVER_GPU = r"(?:^|[^a-z0-9])"
_TEXTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"nvswitch[_ ]?(\d{1,3})", re.I), "nvswitch/{}"),
    (re.compile(r"(?:gpu_)?sxm[_ ]?(\d{1,3})(?!\d)", re.I), "gpu/sxm{}"),
    (re.compile(_SERVER_GPU + r"(?:hgx_)?gpu[_ #]?(\d{1,3})(?!\d)", re.I), "gpu/bmc{}"),
    (re.compile(_SERVER_GPU + r"(?:accel|accelerator|oam)[_ #]?(\d{1,3})(?!\d)", re.I), "gpu/accel{}"),
    (re.compile(r"(?:power supply|psu|\bps)[_ #.]?(\d{1,2})(?!\d)", re.I), "psu/{}"),
    (re.compile(r"((?:cpu\d[_-]?|p\d[_-]|node\d[_-])?dimm[_ #-]?[a-z]{0,2}[_-]?\d{0,2})(?![a-z])", re.I), "dimm/{}"),
    (re.compile(r"\bdimms?\W{1,3}([a-z]\d{1,2})\b", re.I), "dimm/{}"),
    (re.compile(r"\bslot[_ ](\d{1,2}) dimm|\bdimm\W.{0,40}? in slot (\d{1,2})", re.I), "dimm/{}"),
    (re.compile(r"(?:^|[^a-z])(?:cpu|processor|proc|cpu socket)[_ #]{0,2}(\d{1,2})(?!\d)", re.I), "cpu/{}"),
    (re.compile(r"\bnvme[_ -]?(\d{1,3})(?!\d)", re.I), "disk/nvme{}"),
    (re.compile(r"\bbox:? ?(\d{1,2}),? ?bay:? ?(\d{1,2})", re.I), "disk/box{}bay{}"),
    (re.compile(r"(?:(?:drive|disk|bay|drive slot)[_ #:]{1,2}|(?:hdd|ssd)[_ #:]{0,2})(\d{1,3})(?!\d)", re.I), "disk/{}"),
    (re.compile(r"(?:^|[^a-z])(?:system )?fan(?: module)?[_ #]?(\d{1,2}[a-z]?)(?![a-z0-9])", re.I), "fan/{}"),
)  # fmt: skip
_SENSOR_NUMBER = re.compile(r"#0x[0-9a-f]{1,4}\b", re.I)
_DIMM = re.compile(r"^dimm[_ #-]{0,2}(?=[a-z0-9])", re.I)


def _bare(name: str) -> str:
    """``A1`` of ``DIMM_A1``: the kind is said already."""
    return _DIMM.sub("", name.strip(" _-#"))


def part_of_text(text: str) -> str:
    """The part that a message or the name of a sensor speaks of; empty where it names none."""
    text = _SENSOR_NUMBER.sub(" ", text[:400])
    for pattern, form in _TEXTS:
        found = pattern.search(text)
        if found is not None:
            return form.format(*(_bare(group) for group in found.groups() if group))
    pci = pci_of(text)
    return f"pci/{pci[0]}" if pci is not None else ""


_SEGMENTS: dict[str, str] = {
    "powersupplies": "psu",
    "drives": "disk",
    "fans": "fan",
    "memory": "dimm",
    "networkadapters": "nic",
    "networkinterfaces": "nic",
    "networkdevicefunctions": "nic",
    "ethernetinterfaces": "nic",
    "leakdetectors": "sensor",
    "sensors": "sensor",
    "switches": "nvswitch",
    "storage": "disk",
    "powershelves": "rack",
    "rackpdus": "rack",
    "floorpdus": "rack",
    "cdus": "rack",
}


def is_list_name(segment: str) -> bool:
    """``PowerSupplies``: the name of a list, and so not of a part in it."""
    return segment.lower() in _SEGMENTS


def part_of_path(path: str) -> str:
    """The part that a resource path stands for: the deepest segment that is one; empty for systems, chassis, managers."""
    segments = [segment for segment in re.split(r"[/#]", path) if segment]
    for at in range(len(segments) - 1, 0, -1):
        kind, name = segments[at - 1].lower(), segments[at]
        if kind in ("processors", "chassis", "pciedevices", "memory", "switches"):
            named = part_of_text(name)
            if named.startswith(("gpu/", "nvswitch/", "cpu/")):
                return named
        if kind in _SEGMENTS and name.lower() not in _SEGMENTS:
            return _named(_SEGMENTS[kind], name, segments, at)
    return ""


def _named(kind: str, name: str, segments: list[str], at: int) -> str:
    if kind in ("sensor", "dimm"):
        said = part_of_text(name)
        if said and not (kind == "dimm" and said.startswith("cpu/")):
            return said
    if kind == "nic" and at + 2 < len(segments) and segments[at + 1].lower() in ("ports", "networkports"):
        return f"nic/{name}/{segments[at + 2]}"
    if kind in ("psu", "fan"):
        said = part_of_text(name)
        return said if said.startswith(kind + "/") else f"{kind}/{name}"
    return f"{kind}/{name}"


def subject_of(text: str) -> str:
    """What two messages are about, so that the end of a condition meets its beginning: words without numbers of records."""
    return " ".join(re.sub(r"[^a-z0-9.#]+", " ", text.lower()).split())[:120]

"""The PCI bus as the kernel sees it: AER, containment, slots, lost configuration space, width and speed, IOMMU faults.

Owns which line is about which device: AER often names the port above a card, the driver's prefix says what the card is. Must
not decide whether an error is an echo of a lost card; rules do (``core/combine/host.py``).
"""

from collections.abc import Sequence

from keepstep.core.observation import Observation, pci_name
from keepstep.evidence.kernel.frames import Record
from keepstep.evidence.kernel.patterns import PCI, Named, Values, first, hints, pattern

_KINDS: dict[str, str] = {
    "nvidia": "gpu", "amdgpu": "gpu", "habanalabs": "gpu", "xe": "gpu",
    "nvidia-nvswitch": "nvswitch", "nvidia_nvswitch": "nvswitch",
    "mlx5_core": "nic", "mlx4_core": "nic", "bnxt_en": "nic", "ice": "nic", "i40e": "nic", "ixgbe": "nic", "igb": "nic",
    "igc": "nic", "e1000e": "nic", "efa": "nic", "ena": "nic", "irdma": "nic", "tg3": "nic", "qede": "nic", "qed": "nic",
    "cxgb4": "nic", "gve": "nic", "ionic": "nic", "idpf": "nic", "hfi1": "nic", "atlantic": "nic",
    "nvme": "disk", "megaraid_sas": "disk", "mpt3sas": "disk", "smartpqi": "disk", "ahci": "disk", "aacraid": "disk",
    "hpsa": "disk",
}  # fmt: skip
"""Driver → what it drives. A port (``pcieport``) and an unbound device (``pci``) are of no known kind."""

_DEVICE = r"(?P<driver>[\w.-]{1,32}) " + PCI
_SEVERITY = (
    r"(?P<severity>Corrected|Correctable|Uncorrected \(Non-Fatal\)|Uncorrected \(Fatal\)|Uncorrectable \(Non-Fatal\)"
    r"|Uncorrectable \(Fatal\)|Fatal|Non-Fatal)"
)


def _grade(severity: str) -> str:
    if severity.startswith("Correct"):
        return "corrected"
    return "nonfatal" if "Non-Fatal" in severity else "fatal"


def _kind(values: Values) -> str:
    return _KINDS.get(values.get("driver", ""), "pci")


def _device(values: Values) -> str:
    """``gpu/0000:9b:00``; of a port the function counts, for each function is a port of its own."""
    try:
        name = pci_name(values["pci"])
    except (KeyError, ValueError):
        return ""
    kind = _kind(values)
    return f"{kind}/{name}" if kind != "pci" else f"pci/{name}.{values['pci'][-1]}"


def _reporter(values: Values) -> str:
    """Whom an error is reported for: the source, where it is a device; root complexes say 00:00.0 when they do not know."""
    source = values.get("source", "")
    if source and not source.endswith("00:00.0"):
        return _device({"pci": source, "driver": ""})
    return _device(values)


def _of_kind(base: str) -> Named:
    def choose(values: Values) -> str:
        kind = _kind(values)
        return f"{base}.{kind}" if kind in ("gpu", "nic", "disk") else base

    return choose


def _aer(values: Values) -> str:
    kind = _kind(values)
    base = f"pcie.aer.{_grade(values['severity'])}"
    return f"{base}.{kind}" if kind in ("gpu", "nic", "disk") else base


def _reported(values: Values) -> str:
    return f"pcie.aer.{_grade(values['severity'])}"


def _narrowed(values: Values) -> str:
    """Whether a link is worth watching: below half of what the device can do."""
    try:
        have, could = float(values["have"]), float(values["could"])
    except (KeyError, ValueError):
        return ""
    kind = _kind(values)
    if have >= could * 0.55:
        return ""
    return f"pcie.narrow.{kind}" if kind in ("gpu", "nic") else "pcie.narrow"


PATTERNS = (
    pattern(
        _aer, "PCIe Bus Error",
        rf"(?:{_DEVICE}: )?(?:AER: )?PCIe Bus Error: severity={_SEVERITY}(?:, type=(?P<layer>[\w ]{{3,30}}))?"
        r"(?:, (?:id=[0-9a-f]+)?\((?P<agent>[A-Z][\w ]{3,30})\))?",
        _device,
    ),
    pattern(
        _reported, "AER: ",
        rf"(?:{_DEVICE}: )?AER: (?P<multiple>Multiple )?{_SEVERITY} error (?:message )?received"
        r"(?::| from):? ?(?:id=[0-9a-f]+|(?P<source>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]))?",
        _reporter,
    ),
    pattern(
        _of_kind("pcie.recovered"), "ecovery success",
        rf"{_DEVICE}: (?:AER: |DPC: )?[Dd]evice recovery success", _device,
    ),
    pattern(
        _of_kind("pcie.recovery_failed"), "ecovery failed",
        rf"{_DEVICE}: (?:AER: |DPC: )?[Dd]evice recovery failed", _device,
    ),
    pattern(
        _of_kind("pcie.recovery_failed"), "an't recover",
        rf"{_DEVICE}: (?:AER: |DPC: )?[Cc]an't recover \(no", _device,
    ),
    pattern(
        _of_kind("pcie.contained"), "DPC: ",
        rf"{_DEVICE}: DPC: (?:containment event|unmasked uncorrectable|ERR_FATAL|ERR_NONFATAL)"
        r"(?:.{0,40}?status:(?P<status>0x[0-9a-f]+))?", _device,
    ),
    pattern(
        "pcie.slot.down", "Slot",
        rf"{_DEVICE}: pciehp: Slot\((?P<slot>[\w.-]{{1,16}})\): (?:Link Down|Card not present|Surprise|Power fault)",
        _device,
    ),
    pattern(
        "pcie.slot.untrained", "train",
        rf"{_DEVICE}: (?:pciehp: )?(?:Slot\(\S+\): )?(?:Cannot train link|link not trained|Failed to check link"
        r" status)", _device,
    ),
    pattern(
        "pcie.slot.up", "Slot",
        rf"{_DEVICE}: pciehp: Slot\((?P<slot>[\w.-]{{1,16}})\): (?:Link Up|Card present)", _device,
    ),
    pattern(
        _of_kind("pcie.gone"), "power state",
        rf"{_DEVICE}: (?:(?:Refused|can't|Unable) to change power state|can't change power state"
        r"|Unable to change power state)[^\n]{0,60}(?:D3|inaccessible)", _device,
    ),
    pattern("pcie.gone", "lost from bus", rf"{_DEVICE}: [^\n]{{0,40}}device lost from bus", _device),
    pattern(
        _narrowed, "available PCIe bandwidth, limited by",
        rf"{_DEVICE}: (?P<have>[\d.]+) Gb/s available PCIe bandwidth, limited by (?P<link>[\d.]+ GT/s \S+ x\d+ link|"
        r"[^(\n]{1,60}?)"
        r"(?: at (?P<upstream>\S+))? \(capable of (?P<could>[\d.]+) Gb/s", _device,
    ),
    pattern("pcie.gone", "unknown header type 7f", rf"{_DEVICE}: unknown header type 7f", _device),
    pattern("pcie.slot.untrained", "retraining failed", rf"{_DEVICE}: retraining failed", _device),
    pattern("pcie.serr", "SERR", r"NMI: PCI system error \(SERR\) for reason (?P<reason>[0-9a-f]+)"),
    pattern("pcie.serr", "IOCK error", r"NMI: IOCK error \(debug interrupt\?\) for reason (?P<reason>[0-9a-f]+)"),
    pattern(
        "pcie.iommu", "IO_PAGE_FAULT",
        r"AMD-Vi: Event logged \[IO_PAGE_FAULT (?:device|domain)[^\n]*?(?P<pci>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\."
        r"[0-9a-f])", _device,
    ),
    pattern(
        "pcie.iommu", "[DMA ",
        r"DMAR: \[DMA (?:Read|Write)(?: NO_PASID)?\] Request device \[(?P<pci>[0-9a-f:.]{7,12})\]", _device,
    ),
    pattern("pcie.iommu", "arm-smmu", r"arm-smmu-v3 \S+:\s+event 0x(?P<event>[0-9a-f]{2}) received"),
)  # fmt: skip

HINTS = hints(PATTERNS)


def match(record: Record) -> Sequence[Observation] | None:
    return first(PATTERNS, record)

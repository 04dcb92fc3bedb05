"""The PCI bus in kernel logs: each form of each line gives its signal and names its device."""

import pytest

from keepstep.evidence.document import Document
from keepstep.evidence.kernel.reader import read

CASES = [
    ("pcieport 0000:00:01.1: AER: Corrected error received: 0000:00:00.0", "pcie.aer.corrected", "pci/0000:00:01.1"),
    ("pcieport 0000:00:01.1: AER: Correctable error message received from 0000:41:00.0",
     "pcie.aer.corrected", "pci/0000:41:00.0"),
    ("pcieport 0000:00:1c.5: AER: Multiple Corrected error received: id=00e5", "pcie.aer.corrected", "pci/0000:00:1c.5"),
    ("pcieport 0000:16:02.0: AER: Uncorrected (Fatal) error received: 0000:16:02.0", "pcie.aer.fatal", "pci/0000:16:02.0"),
    ("pcieport 0000:16:02.0: AER: Uncorrectable (Non-Fatal) error message received from 0000:17:00.0",
     "pcie.aer.nonfatal", "pci/0000:17:00.0"),
    ("pcieport 0000:00:03.1: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)",
     "pcie.aer.corrected", "pci/0000:00:03.1"),
    ("nvidia 0000:9b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
     "pcie.aer.fatal.gpu", "gpu/0000:9b:00"),
    ("nvidia 0000:9b:00.0: AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)",
     "pcie.aer.nonfatal.gpu", "gpu/0000:9b:00"),
    ("mlx5_core 0001:3b:00.1: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
     "pcie.aer.corrected.nic", "nic/0001:3b:00"),
    ("nvme 0000:01:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible, (Unregistered Agent ID)",
     "pcie.aer.fatal.disk", "disk/0000:01:00"),
    ("pcieport 0000:00:1c.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, id=00e0(Receiver ID)",
     "pcie.aer.corrected", "pci/0000:00:1c.0"),
    ("pcieport 0000:16:02.0: AER: device recovery failed", "pcie.recovery_failed", "pci/0000:16:02.0"),
    ("nvidia 0000:9b:00.0: AER: can't recover (no error_detected callback)", "pcie.recovery_failed.gpu", "gpu/0000:9b:00"),
    ("pcieport 0000:16:02.0: AER: device recovery successful", "pcie.recovered", "pci/0000:16:02.0"),
    ("pcieport 0000:80:01.1: DPC: containment event, status:0x1f01 source:0x0000", "pcie.contained", "pci/0000:80:01.1"),
    ("pcieport 0000:80:01.1: DPC: unmasked uncorrectable error detected", "pcie.contained", "pci/0000:80:01.1"),
    ("pcieport 0000:60:01.0: pciehp: Slot(12): Link Down", "pcie.slot.down", "pci/0000:60:01.0"),
    ("pcieport 0000:60:01.0: pciehp: Slot(12-1): Card not present", "pcie.slot.down", "pci/0000:60:01.0"),
    ("nvidia 0000:09:00.3: can't change power state from D3cold to D0 (config space inaccessible)",
     "pcie.gone.gpu", "gpu/0000:09:00"),
    ("xhci_hcd 0000:09:00.2: Refused to change power state, currently in D3", "pcie.gone", "pci/0000:09:00.2"),
    ("xhci_hcd 0000:09:00.2: Unable to change power state from D3cold to D0, device inaccessible",
     "pcie.gone", "pci/0000:09:00.2"),
    ("mlx5_core 0000:3b:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at 0000:3a:00.0 "
     "(capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)", "pcie.narrow.nic", "nic/0000:3b:00"),
    ("pci 0000:9b:00.0: unknown header type 7f, ignoring device", "pcie.gone", "pci/0000:9b:00.0"),
    ("pcieport 0000:97:01.0: retraining failed", "pcie.slot.untrained", "pci/0000:97:01.0"),
    ("NMI: PCI system error (SERR) for reason a1 on CPU 0.", "pcie.serr", ""),
    ("AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:41:00.0 domain=0x0013 address=0xfffffffdf8000000 flags=0x0008]",
     "pcie.iommu", "pci/0000:41:00.0"),
    ("DMAR: [DMA Write NO_PASID] Request device [9b:00.0] fault addr 0x1000 [fault reason 0x05] PTE Write access is not set",
     "pcie.iommu", "pci/0000:9b:00.0"),
]  # fmt: skip

QUIET = [
    "pcieport 0000:00:01.1: PME: Signaling with IRQ 26",
    "pcieport 0000:00:01.1: AER: enabled with IRQ 26",
    "pcieport 0000:80:01.1: DPC: error containment capabilities: Int Msg #0, RPExt+ PoisonedTLP+ SwTrigger+ RP PIO Log 4",
    "pcieport 0000:60:01.0: pciehp: Slot #12 AttnBtn- PwrCtrl- MRL- AttnInd- PwrInd- HotPlug+ Surprise+ Interlock- NoCompl+",
    "mlx5_core 0000:3b:00.0: 252.048 Gb/s available PCIe bandwidth (16.0 GT/s PCIe x16 link)",
    "pci 0000:3b:00.0: 126.024 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x8 link at 0000:3a:00.0 "
    "(capable of 126.024 Gb/s with 16.0 GT/s PCIe x8 link)",
    "pci_bus 0000:04: extended config space not accessible",
]

PREFIXES = [
    "", "[84456.074554] ", "[Sun Dec  1 14:54:40 2024] ", "kern  :err   : [84456.074554] ", "<3>[84456.074554] ",
    "3,1234,84456074554,-;", "Sep 19 16:18:02 gpu-17 kernel: [68183.615790] ",
    "2025-01-21T04:41:44.285060+00:00 gpu-17 kernel: ",
    "<3>1 2025-01-21T04:41:44.285060+00:00 gpu-17 kernel - - - ", "10.0.0.7: kern:    err: [2025-01-21T04:41:44.285060Z]: ",
]  # fmt: skip


def found(text: str) -> list[tuple[str, str]]:
    return [(seen.signal, seen.part) for seen in read(Document("log", text.encode())).observations]


@pytest.mark.parametrize(("line", "signal", "part"), CASES)
def test_a_line_about_the_bus_is_read(line: str, signal: str, part: str) -> None:
    assert found(line) == [(signal, part)]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_form_of_the_log_does_not_matter(prefix: str) -> None:
    line, signal, part = CASES[6]
    assert found(prefix + line) == [(signal, part)]


@pytest.mark.parametrize("line", QUIET)
def test_an_ordinary_line_about_the_bus_says_nothing(line: str) -> None:
    assert found(line) == []


def test_a_storm_of_corrected_errors_is_one_observation() -> None:
    line = "[{}.1] pcieport 0000:00:03.1: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID)"
    seen = read(Document("log", "\n".join(line.format(100 + x // 10) for x in range(500)).encode())).observations
    assert [(x.signal, x.count, x.line) for x in seen] == [("pcie.aer.corrected", 500, 1)]


def test_layer_and_agent_are_kept() -> None:
    seen = read(Document("log", CASES[6][0].encode())).observations[0]
    assert seen.attributes["layer"] == "Transaction Layer"
    assert seen.attributes["agent"] == "Receiver ID"

"""Driver modules that load, match and talk to each other, or do not: peer memory, driver versions, probes; AMD's driver.

Owns what is said about a driver as a whole. A card's own faults (Xid, lost from the bus) are read elsewhere.
"""

from collections.abc import Sequence

from keepstep.core.observation import Observation
from keepstep.evidence.kernel.frames import Record
from keepstep.evidence.kernel.patterns import NEAR_PCI, PCI, first, hints, pattern

_GPU = "gpu/{pci}"

_NVIDIA = (
    pattern(
        "driver.version_mismatch", "not supported by",
        r"NVRM: [^\n]{0,80}(?:\n[^\n]{0,80})?not supported by (?:the|open)",
    ),
    pattern(
        "driver.peermem.context", "detected invalid context",
        r"ERROR detected invalid context, skipping further processing",
    ),
    pattern(
        "driver.peermem.failed", "nvidia-peermem",
        r"nvidia[-_]peermem[^\n]{0,80}?(?:\bERROR\b[^\n]{0,20}(?:could not|failed to) (?:register|map|pin)|disagrees"
        r" about version)",
    ),
    pattern(
        "driver.version_mismatch", "API mismatch",
        r"NVRM: API mismatch: [^\n]{0,40}?(?:version (?P<client>[\d.]+))?",
    ),
    pattern(
        "driver.version_mismatch", "version magic",
        r"\b(?P<module>nvidia\w*|mlx5_core|amdgpu): version magic '[^']{1,80}' should be",
    ),
    pattern(
        "driver.version_mismatch", "disagrees about version of symbol",
        r"\b(?P<module>nvidia\w*|mlx5\w*|ib_\w+|rdma_\w+|gdrdrv|amdgpu): disagrees about version of symbol",
    ),
    pattern(
        "driver.version_mismatch", "nknown symbol",
        r"\b(?P<module>nvidia\w*|mlx5\w*|gdrdrv): Unknown symbol (?P<symbol>\w+)",
    ),
    pattern(
        "driver.load_failed", "None of the NVIDIA",
        r"NVRM: None of the NVIDIA (?:graphics adapters|devices) were (?:initialized|probed)",
    ),
    pattern(
        "driver.load_failed", "No NVIDIA",
        r"NVRM: No NVIDIA (?:graphics adapter|GPU|devices)[^\n]{0,20} (?:found|probed)",
    ),
    pattern(
        "driver.probe_failed", "I/O region assigned",
        r"NVRM: This PCI I/O region assigned to your NVIDIA device is invalid",
    ),
    pattern("driver.nouveau", "nouveau", r"NVRM: [^\n]{0,160}nouveau[^\n]{0,80}(?:conflict|already)"),
    pattern("", "SMBPBI server", r"SMBPBI server is online"),
    *(
        pattern("driver.stack", words, rf"\+0x[0-9a-f]+/0x[0-9a-f]+ \{words}(?:_uvm)?\]")
        for words in ("[nvidia", "[amdgpu")
    ),
)  # fmt: skip

_AMD = (
    pattern("amdgpu.lost", "lost from bus", rf"{NEAR_PCI}device lost from bus", _GPU),
    pattern(
        "amdgpu.memory.uncorrectable", "uncorrectable hardware error",
        rf"{NEAR_PCI}(?P<value>[1-9]\d*) (?:new )?(?:uncorrectable hardware errors?)[^\n]{{0,40}} in (?P<unit>\w+)"
        r" block", _GPU,
    ),
    pattern(
        "amdgpu.memory.corrected", " correctable hardware error",
        rf"{NEAR_PCI}\b(?P<value>[1-9]\d*) (?:new )?correctable hardware errors?[^\n]{{0,40}} in (?P<unit>\w+) block",
        _GPU,
    ),
    pattern("amdgpu.memory.uncorrectable", "oison", rf"{NEAR_PCI}(?:RAS )?[Pp]oison is (?:consumed|created)", _GPU),
    pattern(
        "amdgpu.fatal", "uncorrectable hardware error(",
        rf"{NEAR_PCI}uncorrectable hardware error\((?P<unit>\w{{1,60}})\) detected", _GPU,
    ),
    pattern("amdgpu.reset_done", "GPU reset", rf"{NEAR_PCI}GPU reset\(\d+\) succeeded", _GPU),
    pattern(
        "amdgpu.memory.retired", "bad page",
        rf"{NEAR_PCI}(?:RAS records:|Saved bad pages|bad page threshold|Number of bad pages)[^\n]{{0,80}}(?:exceed"
        r"|reach)", _GPU,
    ),
    pattern(
        "amdgpu.reset_failed", "GPU reset",
        rf"{NEAR_PCI}GPU reset ?(?:end with ret = -(?P<value>\d+)|\(\d+\) failed)", _GPU,
    ),
    pattern(
        "amdgpu.hang", "unrecoverable state", rf"amdgpu {PCI}[^\n]{{0,40}}?might be in (?:an )?unrecoverable state", _GPU
    ),
    pattern(
        "amdgpu.hang.unplaced", "unrecoverable state", r"amdgpu: [^\n]{0,40}?(?:MES|cp) might be in (?:an )?unrecoverable state"
    ),
    pattern("amdgpu.reset", "GPU reset", rf"{NEAR_PCI}GPU reset begin!", _GPU),
    pattern(
        "amdgpu.ring_timeout", "timeout",
        rf"{NEAR_PCI}(?:\*ERROR\* |amdgpu: |\.\d: )ring (?P<unit>\w[\w.]{{0,40}}) timeout", _GPU,
    ),
    pattern(
        "amdgpu.page_fault", "page fault",
        rf"{NEAR_PCI}\[\w*hub\w*\] (?:no-retry |retry )?page fault \((?=(?:[^\n]{{0,200}}?pid (?P<pid>\d+))?)",
        _GPU,
    ),
    pattern(
        "amdgpu.firmware", "SMU",
        rf"{NEAR_PCI}(?:SMU: I'm not done with your previous command|SMU is in hanged state|Failed to (?:send"
        r"|export) SMU|SMU: response:0xFFFFFFFF)", _GPU,
    ),
    pattern("amdgpu.init_failed", "probe of", rf"\bamdgpu: probe of {PCI} failed with error (?P<value>-\d+)", _GPU),
    pattern(
        "amdgpu.init_failed", "probe with driver",
        rf"{PCI}: probe with driver amdgpu failed with error (?P<value>-\d+)", _GPU,
    ),
    pattern("amdgpu.init_failed", "Fatal error during GPU init", rf"{NEAR_PCI}Fatal error during GPU init", _GPU),
)  # fmt: skip

PATTERNS = (*_NVIDIA, *_AMD)

HINTS = hints(PATTERNS)


def match(record: Record) -> Sequence[Observation] | None:
    return first(PATTERNS, record)

"""The machine under the kernel: machine checks, memory errors, firmware-first records, heat, clocks, limits, orderly ends.

Owns what the bits of a machine check's status say. Must not judge how many corrected errors are too many.
"""

from collections.abc import Sequence

from keepstep.core.observation import Observation, pci_name
from keepstep.evidence.kernel.frames import Record
from keepstep.evidence.kernel.patterns import PCI, Values, first, hints, pattern

_UNCORRECTED = 1 << 61
_CONTEXT_CORRUPT = 1 << 57
_IN_PROGRESS = 1 << 2

_RASDAEMON = ("rasdaemon", "mcelog", "edac-util")


def _machine_check(values: Values) -> str:
    """By the status word: an exception in progress with corrupt context is fatal, corrected is only counted."""
    status, general = int(values["status"], 16), int(values.get("general", "0"), 16)
    if status & _CONTEXT_CORRUPT and status & _UNCORRECTED:
        return "host.mce.fatal"
    if status & _UNCORRECTED:
        return "host.mce.uncorrected" if not general & _IN_PROGRESS else "host.mce.fatal"
    return "host.mce.corrected"


def _cper(values: Values) -> str:
    return {"fatal": "host.cper.fatal", "recoverable": "host.cper.recoverable", "corrected": "host.cper.corrected"}.get(
        values["severity"], ""
    )


def _dimm(values: Values) -> str:
    label = values.get("label") or values.get("mc", "")
    return f"dimm/{label}" if label else ""


def _pci(values: Values) -> str:
    try:
        return f"pci/{pci_name(values['pci'])}.{values['pci'][-1]}"
    except ValueError:
        return ""


def _edac(values: Values) -> str:
    return "host.memory.corrected" if values["sort"].upper().startswith(("CE", "COR")) else "host.memory.uncorrected"


def _amd(values: Values) -> str:
    what = values["what"]
    if what.startswith("Corrected"):
        return "host.mce.corrected"
    return "host.mce.uncorrected" if what.startswith(("Deferred", "Uncorrected")) else "host.mce.fatal"


_MACHINE_CHECKS = (
    pattern(
        _machine_check, "Machine Check",
        r"CPU (?P<cpu>\d+): Machine Check(?: Exception)?: (?P<general>[0-9a-f]{1,16}) Bank (?P<bank>\d+): "
        r"(?P<status>[0-9a-f]{16})", "cpu/{cpu}",
    ),
    pattern(
        "host.mce.fatal", "Machine Check Exception",
        r"CPU (?P<cpu>\d+): Machine Check Exception: +(?P<status>[0-9a-f]{8,16})$", "cpu/{cpu}",
    ),
    pattern(
        _amd, "[Hardware Error]",
        r"\[Hardware Error\]: (?P<what>Corrected error|Deferred error|Uncorrected, software|System Fatal error)",
    ),
    pattern(
        "host.mce.fatal", "Fatal local machine check",
        r"Fatal local machine check|Fatal machine check on current CPU",
    ),
    pattern("host.mce.corrected", "Machine check events logged", r"Machine check events logged"),
    pattern(
        "host.memory.uncorrected", "hardware memory error",
        r"Uncorrected hardware memory error in user-access at (?P<address>[0-9a-f]+)",
    ),
    pattern(
        "host.memory.uncorrected", "Memory failure: ",
        r"Memory failure: (?P<pfn>0x[0-9a-f]+): (?:recovery action for (?P<page>[^\n:]{3,60}): (?:Failed|Recovered"
        r"|Delayed|Ignored)|Killing|Sending SIGBUS|unhandlable)",
    ),
    pattern(
        "host.memory.uncorrected", "due to hardware memory corruption",
        r"Killing (?P<process>[^\n:]{1,40}):(?P<pid>\d+) due to hardware memory corruption",
    ),
    pattern(
        "host.memory.offlined", "offlin",
        r"(?:[Ss]oft.?offlin(?:e|ing)[: ](?:pfn:? ?)?(?P<pfn>0x[0-9a-f]+)|[Cc]orrected page error threshold exceeded"
        r"|[Oo]fflining page [0-9a-fx]+)", "", ("kernel", *_RASDAEMON),
    ),
    pattern(
        _machine_check, "MCGSTATUS", r"STATUS (?P<status>[0-9a-f]{16}) MCGSTATUS (?P<general>[0-9a-f]{1,16})", "",
        ("kernel", *_RASDAEMON),
    ),
)  # fmt: skip

_FIRMWARE_FIRST = (
    pattern(
        _cper, "event severity",
        r"\{\d+\}\[Hardware Error\]: ?event severity: (?P<severity>fatal|recoverable|corrected|info)",
    ),
    pattern(
        "host.cper.section", "section_type: ",
        r"\[Hardware Error\]: +section_type: (?P<section>memory error|PCIe error|general processor error|ARM"
        r" processor error)",
    ),
    pattern("host.cper.device", "device_id: ", rf"\[Hardware Error\]: +device_id: {PCI}", _pci),
    pattern("host.cper.previous", "previous boot", r"BERT: Error records from previous boot"),
    pattern(
        _cper, "event severity",
        r"\[Hardware Error\]: ?event severity: (?P<severity>fatal|recoverable|corrected|info)",
    ),
)  # fmt: skip

_DIMMS = (
    pattern(
        _edac, "EDAC",
        r'EDAC (?:\w+ )?(?P<mc>MC\d+): (?:\d+ )?(?P<sort>CE|UE)\b[^\n]*?label "(?P<label>[^"\n]{1,60})"', _dimm,
    ),
    pattern(
        _edac, "EDAC",
        r"EDAC (?:\w+ )?(?P<mc>MC\d+): (?P<value>\d+) (?P<sort>CE|UE)\b[^\n]{0,60}? on (?P<label>(?!unknown|any)"
        r"[\w#.:/-]{2,60})", _dimm,
    ),
    pattern(_edac, "EDAC", r"EDAC (?:\w+ )?(?P<mc>MC\d+): (?:\d+ )?(?P<sort>CE|UE)\b", _dimm),
    pattern(
        _edac, "rrected error",
        r"mc_event[^\n]{0,80}?\b\d+ (?P<sort>Corrected|Uncorrected) errors?(?=(?:[^\n]{0,60}? on (?P<label>[\w#.:-]{2,60}))?)",
        _dimm, _RASDAEMON,
    ),
)  # fmt: skip

_HEAT_AND_POWER = (
    pattern(
        "host.cpu.hot", "temperature above threshold",
        r"(?:CPU ?(?P<cpu>\d+): )?(?:Core|Package) temperature above threshold", "cpu/{cpu}",
    ),
    pattern(
        "host.thermal.critical", "ritical temperature reached",
        r"critical temperature reached ?\(?(?P<value>[\d.]+)? ?C?\)?[^\n]{0,20}(?:shutting|emergency)?",
    ),
    pattern(
        "host.thermal.critical", "HARDWARE PROTECTION shutdown",
        r"HARDWARE PROTECTION shutdown \((?P<reason>[^)\n]{3,60})\)",
    ),
    pattern(
        "host.nmi.unknown", "NMI received for unknown reason",
        r"NMI received for unknown reason (?P<reason>[0-9a-f]+) on CPU (?P<cpu>\d+)",
    ),
)  # fmt: skip

_LIMITS = (
    pattern(
        "host.clock_unstable", "nstable",
        r"(?:Marking clocksource '?(?P<name>[\w-]+)'? as unstable|Marking TSC unstable due to)",
    ),
    pattern("host.limit.files", "VFS: file-max limit", r"VFS: file-max limit (?P<value>\d+) reached"),
    pattern("host.limit.conntrack", "table full, dropping packet", r"nf_conntrack: table full, dropping packet"),
    pattern(
        "host.limit.neighbours", "neighbo",
        r"(?:neighbour: \w+: |[Nn]eighbour )neighbor table overflow|[Nn]eighbou?r table overflow",
    ),
    pattern(
        "host.limit.pids", "fork rejected by pids controller",
        r"fork rejected by pids controller in (?P<cgroup>\S{1,200})",
    ),
    pattern("host.limit.tcp_memory", "TCP: out of memory", r"TCP: out of memory -- consider tuning tcp_mem"),
)  # fmt: skip

_ENDS = (
    pattern("host.shutdown", "reboot: ", r"^reboot: (?:Restarting system|Power down|System halted|machine restart)"),
    pattern(
        "host.shutdown", "System is ",
        r"System is (?:rebooting|powering down|halting)", "", ("systemd-logind", "systemd", "systemd-shutdown"),
    ),
    pattern("host.shutdown", "Shutting down.", r"Shutting down\.$", "", ("systemd", "systemd-shutdown")),
    pattern(
        "host.shutdown", "Reached target ",
        r"Reached target (?:System )?(?:Reboot|Power-Off|Shutdown)\b", "", ("systemd", "kernel"),
    ),
    *(
        pattern("host.shutdown", words, rf"^{words}\b", "", ("systemd-shutdown",))
        for words in ("Rebooting", "Powering off", "Syncing filesystems and block devices")
    ),
    pattern("host.sysrq", "sysrq: ", r"sysrq: (?:SysRq : )?(?:Trigger a crash|Resetting|Emergency Remount R/O)"),
)  # fmt: skip

PATTERNS = (*_MACHINE_CHECKS, *_FIRMWARE_FIRST, *_DIMMS, *_HEAT_AND_POWER, *_LIMITS, *_ENDS)

HINTS = hints(PATTERNS)


def match(record: Record) -> Sequence[Observation] | None:
    return first(PATTERNS, record)

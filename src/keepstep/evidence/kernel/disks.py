"""Drives, their controllers, arrays and local file systems, as the kernel sees them.

Owns the name of a drive (``disk/nvme9`` for all its namespaces and partitions) and which block devices are no drives. Must not
decide whether many drives at once are one controller; a rule does (``core/combine/host.py``).
"""

import re
from collections.abc import Sequence

from keepstep.core.observation import Observation, pci_name
from keepstep.evidence.kernel.frames import Record
from keepstep.evidence.kernel.patterns import PCI, Named, Values, first, hints, pattern

_NO_DRIVE = re.compile(r"(?:loop|fd|sr|ram|zram|nbd|zd)\d+")
_NAMESPACE = re.compile(r"(nvme\d+)(?:c\d+)?n\d+(?:p\d+)?$")
_PARTITION = re.compile(r"((?:s|h|v|xv)d[a-z]{1,3})\d+$")
_DISK = r"(?P<disk>[a-zA-Z][\w!-]{1,31})"


def drive(name: str) -> str:
    """``nvme2n1p1`` → ``nvme2``, ``sda3`` → ``sda``; a mapped or a striped device keeps its name."""
    found = _NAMESPACE.match(name) or _PARTITION.match(name)
    return found[1] if found else name


def _disk(values: Values) -> str:
    name = values.get("disk", "")
    return f"disk/{drive(name)}" if name else ""


def _real(signal: str) -> Named:
    def choose(values: Values) -> str:
        return "" if _NO_DRIVE.match(values.get("disk", "")) else signal

    return choose


def _controller(values: Values) -> str:
    try:
        return f"disk/{pci_name(values['pci'])}"
    except (KeyError, ValueError):
        return f"disk/{values['name']}" if values.get("name") else ""


def _disk_or_path(values: Values) -> str:
    """The drive's name where the line has it, else the way to it."""
    return _disk(values) or _controller(values)


_NVME = (
    pattern(
        "disk.nvme.timeout", "timeout, reset controller",
        r"nvme (?P<disk>nvme\d+): I/O [^\n]{1,80}? timeout, reset controller", _disk,
    ),
    pattern(
        "disk.nvme.slow", "timeout, ",
        r"nvme (?P<disk>nvme\d+): I/O [^\n]{1,80}? timeout, (?:aborting|completion polled|disable controller)",
        _disk,
    ),
    pattern(
        "disk.nvme.gone", "Disabling device after reset failure",
        r"nvme (?P<disk>nvme\d+): Disabling device after reset failure", _disk,
    ),
    pattern(
        "disk.nvme.gone", "Removing after probe failure",
        r"nvme (?P<disk>nvme\d+): Removing after probe failure", _disk,
    ),
    pattern("disk.nvme.gone", "Device not ready", r"nvme (?P<disk>nvme\d+): Device not ready; aborting", _disk),
    pattern(
        "disk.nvme.gone", "shutdown failed, aborting",
        r"nvme (?P<disk>nvme\d+): [^\n]{0,40}shutdown failed, aborting", _disk,
    ),
    pattern(
        "disk.nvme.down", "controller is down",
        r"nvme (?P<disk>nvme\d+): controller is down; will reset: CSTS=(?P<status>0x[0-9a-f]+)", _disk,
    ),
    pattern(
        "disk.nvme.no_path", "no available path - failing I/O",
        r"(?P<disk>nvme\d+n\d+): no available path - failing I/O", _disk,
    ),
    pattern(
        "disk.media_error", "I/O Error",
        r"(?P<disk>nvme\d+n\d+): [^\n]{1,80}?I/O Error \(sct 0x2 / sc 0x(?P<status>[0-9a-f]+)\)", _disk,
    ),
    pattern(
        "disk.nvme.slow", "frozen state error detected",
        r"nvme (?P<disk>nvme\d+): frozen state error detected, reset controller", _disk,
    ),
)  # fmt: skip

_BLOCK = (
    pattern(
        _real("disk.media_error"), "critical medium error",
        rf"critical medium error, dev {_DISK}, sector (?P<sector>\d+)", _disk,
    ),
    pattern(
        _real("disk.io_error"), "error, dev ",
        rf"(?:I/O|critical (?:target|nexus|space allocation)|recoverable transport|protection) error, dev {_DISK},"
        r" sector (?P<sector>\d+)", _disk,
    ),
    pattern(
        _real("disk.buffer_io_error"), "Buffer I/O error on dev",
        rf"Buffer I/O error on dev(?:ice)? {_DISK}, (?:logical block|async page read)", _disk,
    ),
    pattern(
        "disk.beyond_end", "attempt to access beyond end of device",
        rf"attempt to access beyond end of device(?:\n{_DISK}: )?", _disk,
    ),
)  # fmt: skip

_ARRAYS = (
    pattern(
        "disk.array_failed", "Disk failure on",
        rf"md/(?P<array>raid\d*:?\w*): Disk failure on {_DISK}(?: detected)?, failing array", _disk,
    ),
    pattern(
        "disk.array_degraded", "Disk failure on",
        rf"md/(?P<array>raid\d*:?\w*): Disk failure on {_DISK}, disabling device", _disk,
    ),
    pattern(
        "disk.array_failed", "Cannot continue operation",
        r"md/(?P<array>raid\d*:?(?P<disk>md\w+)): Cannot continue operation", _disk,
    ),
    pattern("disk.io_error", "super_written gets error", r"md: super_written gets error=?", ""),
    pattern(
        "disk.pool_suspended", "uncorrectable I/O failure",
        r"Pool '(?P<disk>[\w.-]{1,60})' has encountered an uncorrectable I/O failure and has been suspended", _disk,
    ),
    pattern(
        "disk.path_failed", "Failing path",
        r"device-mapper: multipath: (?:\d+:\d+: )?Failing path (?P<disk>\d+:\d+)", "",
    ),
    pattern(
        "disk.pool_suspended", "remaining active paths: 0",
        r"(?P<disk>[\w.-]{1,60}): remaining active paths: 0\b", _disk, ("multipathd",),
    ),
)  # fmt: skip

_FILE_SYSTEMS = (
    pattern(
        "disk.read_only", "emounting filesystem read-only",
        rf"(?:(?:EXT[234]-fs|XFS|BTRFS|F2FS-fs) ?(?:error )?\((?:device )?{_DISK}\)?[^\n]{{0,60}}?: )?Remounting"
        r" filesystem read-only", _disk,
    ),
    pattern(
        "disk.read_only", "forced readonly",
        rf"BTRFS[^\n]{{0,20}}?\(device {_DISK}[^)\n]{{0,40}}\)[^\n]{{0,20}}?: forced readonly", _disk,
    ),
    pattern(
        "disk.superblock_write", "error while writing superblock",
        rf"(?:\({_DISK}\): )?I/O error while writing superblock", _disk,
    ),
    pattern(
        "disk.fs_shutdown", "XFS",
        rf"XFS \({_DISK}\): (?:[Ll]og I/O [Ee]rror|[^\n]{{0,80}}Shutting down filesystem|Filesystem has been shut down"
        r"|xfs_do_force_shutdown|User initiated shutdown received)", _disk,
    ),
    pattern(
        "disk.fs_error", "XFS",
        rf"XFS \({_DISK}\): (?:[Mm]etadata (?:corruption detected|CRC error)|metadata I/O error|Internal error"
        r"|Corruption detected|Unmount and run xfs_repair|Corruption of in-memory data)", _disk,
    ),
    pattern("disk.fs_error", "EXT", rf"EXT[234]-fs error \(device {_DISK}\): (?P<where>\w+)?", _disk),
    pattern(
        "disk.fs_error", "EXT",
        rf"EXT[234]-fs (?:warning|critical) \((?:device )?{_DISK}\): [^\n]{{0,80}}(?:I/O error|corrupt|Data will be"
        r" lost)", _disk,
    ),
    pattern("disk.fs_error", "Data will be lost", r"This should not happen!! +Data will be lost", ""),
    pattern("disk.fs_shutdown", "Aborting journal", rf"Aborting journal on device {_DISK}", _disk),
    pattern(
        "disk.superblock_write", "JBD2",
        rf"JBD2: (?:I/O error|Error -\d+) detected when updating journal superblock for {_DISK}", _disk,
    ),
    pattern(
        "disk.fs_error", "BTRFS",
        rf"BTRFS (?:error|critical) \(device {_DISK}[^)\n]{{0,40}}\)[^\n]{{0,20}}?: (?!.*\berrs: wr 0, rd 0, flush"
        r" 0, corrupt 0)(?P<what>[^\n]{3,80})", _disk,
    ),
    pattern(
        "disk.fs_error", "BTRFS",
        rf"BTRFS warning \(device {_DISK}[^)\n]{{0,40}}\)[^\n]{{0,20}}?: csum failed", _disk,
    ),
    pattern(
        "disk.fs_error", "F2FS-fs",
        rf"F2FS-fs \({_DISK}\): (?:[^\n]{{0,60}}[Cc]orrupt|I/O error|Stopped filesystem)", _disk,
    ),
)  # fmt: skip

_FILE_SYSTEMS_MORE = (
    pattern("disk.fs_error", "writeback error", rf"XFS \({_DISK}\): writeback error", _disk),
    pattern(
        "disk.fs_error", "potential data loss",
        rf"EXT4-fs \({_DISK}\): failed to convert unwritten extents[^\n]{{0,80}}potential data loss", _disk,
    ),
    pattern(
        "disk.fs_error", "Detected IO errors",
        rf"JBD2: Detected IO errors (?:\d+ )?while flushing file data on {_DISK}", _disk,
    ),
    pattern("disk.buffer_io_error", "lost page write", rf"lost page write due to I/O error on {_DISK}", _disk),
    pattern(
        "disk.fs_note", "EXT",
        rf"EXT[234]-fs \({_DISK}\): (?:warning: mounting fs with errors|error count since last fsck: [1-9])", _disk,
    ),
    pattern("disk.fs_note", "EXT", rf"EXT[234]-fs warning \(device {_DISK}\)", _disk),
    pattern("disk.array_degraded", "kicking non-fresh", rf"md: kicking non-fresh {_DISK} from array", _disk),
)  # fmt: skip

_SCSI = (
    pattern(
        "disk.media_error", "Sense Key",
        rf"\[{_DISK}\][^\n]{{0,40}}?Sense Key : (?P<what>Medium Error|Hardware Error)", _disk,
    ),
    pattern(
        "disk.media_error", "Unrecovered read error",
        rf"\[{_DISK}\][^\n]{{0,60}}?Add\. Sense: Unrecovered read error", _disk,
    ),
    pattern(
        "disk.media_error", "Unrecovered read error", r"Add\. Sense: Unrecovered read error", _disk,
    ),
    pattern("disk.media_error", "error: { UNC", r"(?P<disk>ata\d+)(?:\.\d+)?: error: \{ UNC \}", _disk),
    pattern(
        "disk.offline", "rejecting I/O to offline device",
        r"(?:sd|scsi) (?P<name>\d+:\d+:\d+:\d+): (?:\[(?P<disk>\w+)\] )?rejecting I/O to offline device",
        _disk_or_path,
    ),
    pattern(
        "disk.offline", "Device offlined",
        r"(?:sd|scsi) (?P<name>\d+:\d+:\d+:\d+): (?:\[(?P<disk>\w+)\] )?Device offlined",
        _disk_or_path,
    ),
    pattern("disk.offline", ": disable", r"(?P<disk>ata\d+)\.\d+: (?:disabled|disable device)", _disk),
    *(
        pattern("disk.ata_error", words, rf"(?P<disk>ata\d+)(?:\.\d+)?: {words}", _disk)
        for words in ("exception Emask", "failed command:", "hard resetting link", "COMRESET failed", "softreset failed")
    ),
    pattern("disk.controller_fault", "FAULT state", rf"megaraid_sas (?:{PCI})?[^\n]{{0,60}}?FAULT state", _controller),
    pattern(
        "disk.controller_fault", "Adapter RESET failed",
        r"(?P<name>megaraid_sas|megasas)[^\n]{0,60}?Adapter RESET failed", _controller,
    ),
    pattern(
        "disk.controller_fault", "fault_state",
        r"(?P<name>mpt[23]sas_cm\d+): fault_state\(0x(?P<status>[0-9a-f]{4})\)", _controller,
    ),
    pattern(
        "disk.controller_fault", "diag reset",
        r"(?P<name>mpt[23]sas_cm\d+): [^\n]{0,40}?diag reset: FAILED", _controller,
    ),
    *(
        pattern(
            "disk.controller_fault", driver,
            rf"{driver} {PCI}: [^\n]{{0,40}}?(?:controller (?:is )?offline|controller lockup detected|reset failed)",
            _controller,
        )
        for driver in ("smartpqi", "hpsa")
    ),
    pattern(
        "disk.controller_fault", "aacraid",
        r"(?P<name>aacraid): Host (?:adapter|bus) (?:dead|reset request)", _controller,
    ),
)  # fmt: skip

PATTERNS = (*_NVME, *_BLOCK, *_ARRAYS, *_FILE_SYSTEMS, *_FILE_SYSTEMS_MORE, *_SCSI)

HINTS = hints(PATTERNS)


def match(record: Record) -> Sequence[Observation] | None:
    return first(PATTERNS, record)

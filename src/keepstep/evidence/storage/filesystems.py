"""File systems and arrays: ``df`` (blocks and inodes), ``mount`` and ``/proc/mounts``, ``/proc/mdstat``. Must not open a path.

A full tmpfs, a read-only image and a snap's loop device are as they should be.
"""

import re

from keepstep.core.observation import Observation
from keepstep.evidence.document import Document
from keepstep.evidence.reading import Fine, Reader, Reading

FULL = 99
LOW_LOCAL, LOW_SHARED = 95, 90
SHARED_TYPES = (
    "nfs",
    "nfs4",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "wekafs",
    "cifs",
    "smb3",
    "fuse.s3fs",
    "panfs",
    "9p",
    "vast",
)
_READ_ONLY_TYPES = ("squashfs", "iso9660", "erofs", "cramfs", "tmpfs", "ramfs", "overlay", "sysfs", "proc", "cgroup", "cgroup2",
                    "devtmpfs", "udf", "fuse.snapfuse", "efivarfs", "autofs", "fuse.lxcfs")  # fmt: skip
_DATA_TYPES = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs")
_DF_HEAD = re.compile(r"^Filesystem\s+(?:Type\s+)?(?:\d*[KMG]?-?[Bb]locks|Size|1K-blocks|Inodes|\d+[A-Z]?-blocks)\b")
_DF = re.compile(
    r"^(\S{1,255})\s+(?:([a-z][\w.]{1,20})\s+)?([\d.]+[KMGTPE]?i?B?|-)\s+([\d.]+[KMGTPE]?i?B?|-)\s+(-?[\d.]+[KMGTPE]?i?B?|-)\s+(\d{1,3})%\s+(/.{0,500})$"
)
_LFS_HEAD = re.compile(r"^UUID\s+(?:1K-blocks|bytes|Inodes)\b")
_LFS_GONE = re.compile(r"^((\S{0,60}?)-?(?:OST|MDT)[0-9a-f]{4}(?:_UUID)?) +: +(?!\d)(.{3,80})$")
_DETAIL = re.compile(r"^/dev/(md[\w/-]{1,30}):$")
_DETAIL_STATE = re.compile(r"^\s+State : (.{1,80})$")
_DF_STALE = re.compile(
    r"^df: '?(/[^':]{0,400})'?: (Stale file handle|Transport endpoint is not connected|Input/output error|Host is down)"
)
_MOUNT = re.compile(r"^(\S{1,400}) on (/.{0,400}?) type ([\w.]{1,24}) \(([^)]{0,2000})\)$")
_PROC = re.compile(r"^(\S{1,400}) (/\S{0,400}) ([\w.]{1,24}) ([\w,=./:@%+-]{1,2000}) [01] [0-2]$")
_ARRAY = re.compile(
    r"^(md[\w-]{1,30}) : (active|inactive)(?: \(([\w-]+)\))? ?(raid\d+|linear|multipath)? ?(.{0,4000})$"
)
_MEMBERS = re.compile(r"\[(\d{1,4})/(\d{1,4})\] \[([U_]{1,512})\]")
_FAULTY = re.compile(r"([\w-]{1,32})\[\d+\]\(F\)")


def _recognise(document: Document) -> float:
    if document.is_binary:
        return 0.0
    lines = [line.rstrip("\r")[:1000] for line in document.head.split("\n")[:200] if line.strip()]
    if any(line.startswith("Personalities :") for line in lines[:3]) or any(_ARRAY.match(line) for line in lines[:40]):
        return 0.9
    if any(_DF_HEAD.match(line) or _LFS_HEAD.match(line) for line in lines[:20]):
        return 0.85
    if any(_DETAIL.match(line) for line in lines[:20]) and any(_DETAIL_STATE.match(line) for line in lines):
        return 0.85
    mounts = sum(bool(_MOUNT.match(line) or _PROC.match(line)) for line in lines)
    return 0.7 if lines and mounts * 2 > len(lines) else 0.0


def shared(source: str, kind: str) -> bool:
    """Whether a file system comes from outside the node."""
    return (
        kind in SHARED_TYPES or (":/" in source and not source.startswith("/")) or "@tcp" in source or "@o2ib" in source
    )


def dependency(source: str) -> str:
    """``filer:/export`` → ``dependency/nfs:filer``."""
    if (at := source.find("-OST")) > 0 or (at := source.find("-MDT")) > 0:
        return f"dependency/lustre:{source[:at][:120]}"
    return f"dependency/nfs:{source.partition(':/')[0][:120]}"


def judge_use(source: str, kind: str, mount: str, used: int, inodes: bool) -> tuple[str, str, str] | None:
    """(signal, part, detail) of a file system that is full, or nearly."""
    if (
        kind in _READ_ONLY_TYPES
        or source.startswith(("/dev/loop", "tmpfs", "udev", "devtmpfs", "overlay", "squashfs"))
        or source == "none"
    ):
        return None
    if mount.startswith(("/snap/", "/boot/efi", "/proc", "/sys", "/run/media", "/media/", "/cdrom")):
        return None
    outside = shared(source, kind)
    what = f"{mount} ({source}) uses {used} % of its {'inodes' if inodes else 'space'}"
    if used >= FULL:
        return (
            ("space.full.shared", dependency(source), what) if outside else ("space.full", f"mount/{mount[:120]}", what)
        )
    if used >= (LOW_SHARED if outside else LOW_LOCAL):
        return "space.low", dependency(source) if outside else f"mount/{mount[:120]}", what
    return None


def _read(document: Document) -> Reading:
    reading = Reading(reader="filesystems", file=document.path)
    inodes, array, lustre = False, "", False
    for number, line in document.lines():
        line = line[:6000]
        if _DF_HEAD.match(line) or _LFS_HEAD.match(line):
            inodes, lustre = "Inodes" in line, line.startswith("UUID")
        elif match := _DF.match(line):
            _use(reading, match, inodes, number, "lustre" if lustre else "")
        elif lustre and (match := _LFS_GONE.match(line)):
            _add(reading, "mount.stale", f"dependency/lustre:{match.group(2) or 'unnamed'}", line, number)
        elif match := _DETAIL.match(line):
            array = match.group(1)
            reading.records += 1
        elif array and (match := _DETAIL_STATE.match(line)):
            _detail(reading, array, match.group(1), number)
        elif match := _DF_STALE.match(line):
            _add(reading, "mount.stale", f"mount/{match.group(1)[:120]}", line, number)
        elif (match := _MOUNT.match(line)) or (match := _PROC.match(line)):
            _mount(reading, match.groups(), number)
        elif match := _ARRAY.match(line):
            array = match.group(1)
            reading.records += 1
            for member in _FAULTY.findall(match.group(5)):
                _add(reading, "md.degraded", f"disk/{member}", f"{array}: member {member} failed", number)
            if match.group(2) == "inactive":
                _add(reading, "md.failed", f"disk/{array}", f"{array} is inactive", number)
        elif array:
            _members(reading, array, line, number)
    return reading


def _add(reading: Reading, signal: str, part: str, detail: str, number: int) -> None:
    reading.observations.append(
        Observation(signal=signal, part=part, detail=detail[:500], source="filesystems", file=reading.file, line=number)
    )


def _detail(reading: Reading, array: str, state: str, number: int) -> None:
    if "FAILED" in state or "inactive" in state:
        _add(reading, "md.failed", f"disk/{array}", f"{array}: {state}", number)
    elif "degraded" in state:
        _add(reading, "md.degraded", f"disk/{array}", f"{array}: {state}", number)


def _use(reading: Reading, match: re.Match[str], inodes: bool, number: int, known: str) -> None:
    source, kind, _, _, _, used, mount = match.groups()
    reading.records += 1
    told = judge_use(source, kind or known, mount.strip(), int(used), inodes)
    if told:
        _add(reading, *told, number)


def _mount(reading: Reading, found: tuple[str, ...], number: int) -> None:
    source, mount, kind, options = found[:4]
    reading.records += 1
    flags = options.split(",")
    # Somebody who wants it read-only says so with noauto, an image or a loop device; errors=remount-ro tells what happened.
    if "ro" in flags and kind in _DATA_TYPES and not source.startswith("/dev/loop") and "errors=remount-ro" in flags:
        _add(
            reading,
            "mount.read_only",
            f"mount/{mount[:120]}",
            f"{source} on {mount} is read-only ({options[:200]})",
            number,
        )


def _members(reading: Reading, array: str, line: str, number: int) -> None:
    if match := _MEMBERS.search(line):
        wanted, there, pattern = int(match.group(1)), int(match.group(2)), match.group(3)
        if there < wanted or "_" in pattern:
            text = f"{array}: {there} of {wanted} members [{pattern}]"
            _add(reading, "md.degraded", f"disk/{array}", text, number)
        else:
            reading.fine.append(
                Fine(part=f"disk/{array}", text=f"{there} of {wanted} members", file=reading.file, line=number)
            )
    elif re.search(r"\b(?:recovery|resync|reshape)\s*=", line) and "check" not in line:
        _add(reading, "md.rebuilding", f"disk/{array}", line.strip(), number)


READER = Reader(name="filesystems", text="df, mount, /proc/mounts, /proc/mdstat", recognise=_recognise, read=_read)

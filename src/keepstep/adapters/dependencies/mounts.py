"""Which file system a path lies on, without touching it. Owns reading ``/proc/self/mountinfo``."""

from typing import NamedTuple

_NETWORK = (
    "nfs",
    "nfs4",
    "lustre",
    "ceph",
    "gpfs",
    "beegfs",
    "wekafs",
    "cifs",
    "smb3",
    "glusterfs",
    "9p",
    "afs",
    "pvfs2",
)


class FileSystem(NamedTuple):
    kind: str
    source: str
    """``server:/export`` or a device."""

    @property
    def is_network(self) -> bool:
        return self.kind in _NETWORK or self.kind.startswith("fuse")

    @property
    def server(self) -> str:
        """Whom the mount depends on: ``nfs:server``, ``lustre:scratch``; empty for a local one."""
        if not self.is_network:
            return ""
        kind = "nfs" if self.kind.startswith("nfs") else self.kind
        host = self.source.partition(":/")[0] if ":/" in self.source else self.source
        if kind == "lustre":
            # A client names several servers and one file system; the kernel's messages name the latter.
            host = self.source.rpartition(":/")[2].partition("/")[0]
        return f"{kind}:{host}"


UNKNOWN = FileSystem("", "")


def file_system(path: str, mountinfo: str) -> FileSystem:
    """Of the deepest mount point above ``path``."""
    best, found = "", UNKNOWN
    for line in mountinfo.splitlines():
        left, dash, right = line.partition(" - ")
        fields, more = left.split(" "), right.split(" ")
        if not dash or len(fields) < 5 or len(more) < 2:
            continue
        point = _plain(fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # A later mount on the same point hides the earlier one.
        if inside and len(point) >= len(best):
            best, found = point, FileSystem(more[0], _plain(more[1]))
    return found


def _plain(text: str) -> str:
    """Spaces and the like stand there as octal numbers."""
    for octal, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(octal, char)
    return text


def read_mountinfo() -> str:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        return file.read()

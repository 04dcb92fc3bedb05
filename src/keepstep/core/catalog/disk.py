"""Rows of what the kernel says about drives, local file systems, and file systems over a network. Data only."""

from keepstep.core.catalog.row import Remedy, Row, Scope, Verdict, row
from keepstep.core.incident import Cause, Urgency

_HW, _LOCAL, _SHARED = Cause.HOST_HARDWARE, "storage.local", "storage.shared"


def _drive(text: str, **more: object) -> Row:
    """A drive that failed: the local tier of checkpoints is lost, the job's own work is not."""
    values: dict[str, object] = {
        "urgency": Urgency.NEXT_CHECKPOINT, "confidence": 0.85, "remedy": Remedy.REPLACE,
        "source": "kernel; signals S166", **more,
    }  # fmt: skip
    return row(_HW, _LOCAL, Scope.DISK, Verdict.FAULTY, text, **values)


def _file_system(text: str, **more: object) -> Row:
    values: dict[str, object] = {
        "urgency": Urgency.NEXT_CHECKPOINT, "confidence": 0.85, "remedy": Remedy.INSPECT,
        "source": "kernel; signals S165", **more,
    }  # fmt: skip
    return row(_HW, _LOCAL, Scope.NODE, Verdict.FAULTY, text, **values)


def _server(verdict: Verdict, text: str, **more: object) -> Row:
    """A file system that all nodes share: hold restarts, blame no node."""
    values: dict[str, object] = {
        "confidence": 0.8, "remedy": Remedy.DEPENDENCY, "source": "kernel; signals S168",
        "corroborate": "one node alone that complains may be that node's network", **more,
    }  # fmt: skip
    return row(Cause.DEPENDENCY, _SHARED, Scope.DEPENDENCY, verdict, text, **values)


_DRIVES: dict[str, Row] = {
    "disk": row(_HW, _LOCAL, Scope.DISK, Verdict.WATCH, "something about a drive", confidence=0.3, source="project"),
    "disk.nvme.timeout": _drive("a command to the drive took so long that its controller was reset", remedy=Remedy.VALIDATE),
    "disk.nvme.down": _drive("the drive's controller does not answer and is reset", remedy=Remedy.POWER_CYCLE),
    "disk.nvme.gone": _drive("the drive did not come back from a reset and was taken away", confidence=0.95),
    "disk.nvme.no_path": _drive("no way to the drive is left: its input and output fail"),
    "disk.nvme.slow": row(
        _HW, _LOCAL, Scope.DISK, Verdict.WATCH, "a command to the drive took too long and was given up or polled",
        confidence=0.5, source="kernel",
    ),
    "disk.io_error": _drive("a read or a write failed"),
    "disk.media_error": _drive("the drive could not read or write its medium", confidence=0.9),
    "disk.buffer_io_error": _drive("a page could not be written back or read: data of it is lost"),
    "disk.offline": _drive("the drive was taken off line after it could not be recovered"),
    "disk.ata_error": row(
        _HW, _LOCAL, Scope.DISK, Verdict.WATCH, "a command to the drive failed or its link was reset",
        confidence=0.5, corroborate="input or output errors that follow; a link reset at boot is ordinary", source="kernel",
    ),
    "disk.beyond_end": row(
        _HW, _LOCAL, Scope.NODE, Verdict.SUSPECT,
        "something reads or writes past the end of a device: the device shrank or vanished, or a table is wrong",
        urgency=Urgency.NEXT_CHECKPOINT, confidence=0.6, remedy=Remedy.INSPECT, source="gpud",
    ),
    "disk.array_failed": _drive(
        "a member failed and the array with it", urgency=Urgency.JOB_END, remedy=Remedy.REPLACE, source="signals S167",
    ),
    "disk.array_degraded": _drive(
        "a member failed; the array goes on without it", urgency=Urgency.JOB_END, source="signals S167",
    ),
    "disk.pool_suspended": _drive("a pool or a multipath device has no working member or path left"),
    "disk.path_failed": row(
        _HW, _LOCAL, Scope.DISK, Verdict.WATCH, "one of several ways to a device failed", confidence=0.6, source="kernel",
    ),
    "disk.controller_fault": row(
        _HW, _LOCAL, Scope.NODE, Verdict.FAULTY, "the controller that drives hang on has failed or restarts",
        urgency=Urgency.NEXT_CHECKPOINT, confidence=0.8, remedy=Remedy.REBOOT, source="kernel",
    ),
}  # fmt: skip

_FILE_SYSTEMS: dict[str, Row] = {
    "disk.read_only": _file_system("a file system was made read-only after an error"),
    "disk.superblock_write": _file_system("the root of a file system could not be written"),
    "disk.fs_shutdown": _file_system("a file system stopped itself after an error"),
    "disk.fs_note": row(
        _HW,
        _LOCAL,
        Scope.NODE,
        Verdict.WATCH,
        "a file system remembers an earlier error",
        confidence=0.5,
        source="kernel",
    ),
    "disk.fs_error": _file_system("a file system found its own data wrong or unreadable", confidence=0.75),
}

_NETWORK_FILE_SYSTEMS: dict[str, Row] = {
    "mount": _server(Verdict.WATCH, "something about a shared file system", confidence=0.3, source="project"),
    "mount.nfs.not_responding": _server(Verdict.FAULTY, "a file server does not answer; clients wait"),
    "mount.nfs.ok": _server(Verdict.BENIGN, "a file server answers again"),
    "mount.nfs.state_lost": _server(Verdict.SUSPECT, "locks or leases on a file server were lost", confidence=0.6),
    "mount.nfs.server_error": _server(Verdict.WATCH, "a file server answers what it should not", confidence=0.5),
    "mount.nfs.writeback": _server(Verdict.SUSPECT, "a task waits to write pages back to a file server", confidence=0.6),
    "mount.stack": _server(Verdict.BENIGN, "a task stood in a shared file system when its stack was printed", confidence=0.3),
    "mount.lustre.lost": _server(Verdict.FAULTY, "the connection to a storage target was lost; what uses it waits"),
    "mount.lustre.ok": _server(Verdict.BENIGN, "the connection to a storage target is back"),
    "mount.lustre.evicted": _server(
        Verdict.FAULTY, "a storage target threw this client out: its open files fail", confidence=0.75,
    ),
    "mount.lustre.slow": _server(Verdict.WATCH, "requests to a storage target time out", confidence=0.6),
    "mount.lustre.error": _server(Verdict.WATCH, "an operation on a storage target failed", confidence=0.5),
    "mount.lustre.mount_failed": _server(Verdict.FAULTY, "a shared file system could not be mounted"),
    "mount.gpfs.error": _server(
        Verdict.FAULTY, "the parallel file system reports a failed disk, a lost quorum or a forced unmount",
    ),
    "mount.ceph.lost": _server(Verdict.SUSPECT, "a server of the cluster file system is down or hangs", confidence=0.6),
    "mount.ceph.ok": _server(Verdict.BENIGN, "a server of the cluster file system is back"),
    "mount.beegfs.lost": _server(Verdict.SUSPECT, "a server of the parallel file system cannot be reached", confidence=0.6),
    "mount.weka.lost": _server(Verdict.SUSPECT, "the parallel file system does not answer", confidence=0.6),
    "mount.cifs.lost": _server(Verdict.FAULTY, "a file server does not answer; clients wait"),
    "mount.iscsi.lost": _server(Verdict.SUSPECT, "the session to a block server broke", confidence=0.6),
    "mount.nvmeof.lost": _server(Verdict.SUSPECT, "the connection to a remote drive broke", confidence=0.6),
    "mount.nvmeof.ok": _server(Verdict.BENIGN, "the connection to a remote drive is back"),
}  # fmt: skip

ROWS: dict[str, Row] = {**_DRIVES, **_FILE_SYSTEMS, **_NETWORK_FILE_SYSTEMS}

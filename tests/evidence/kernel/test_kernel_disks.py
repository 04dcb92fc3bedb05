"""Drives, local file systems, and file systems over a network in kernel logs."""

import pytest

from keepstep.core.catalog import CATALOG
from keepstep.core.catalog.row import Scope
from keepstep.evidence.document import Document
from keepstep.evidence.kernel.reader import read

DRIVES = [
    ("nvme nvme4: I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0 timeout, reset controller", "disk.nvme.timeout", "disk/nvme4"),
    ("nvme nvme0: I/O 123 QID 5 timeout, reset controller", "disk.nvme.timeout", "disk/nvme0"),
    ("nvme nvme0: I/O 123 QID 5 timeout, aborting", "disk.nvme.slow", "disk/nvme0"),
    ("nvme nvme4: Disabling device after reset failure: -19", "disk.nvme.gone", "disk/nvme4"),
    ("nvme nvme4: Device not ready; aborting reset, CSTS=0x1", "disk.nvme.gone", "disk/nvme4"),
    ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff", "disk.nvme.down", "disk/nvme0"),
    ("block nvme10n1: no available path - failing I/O", "disk.nvme.no_path", "disk/nvme10"),
    ("nvme0n1: I/O Cmd(0x2) @ LBA 123, 8 blocks, I/O Error (sct 0x2 / sc 0x81) DNR", "disk.media_error", "disk/nvme0"),
    ("blk_update_request: I/O error, dev nvme2n1, sector 6442712256 op 0x1:(WRITE) flags 0x1000",
     "disk.io_error", "disk/nvme2"),
    ("I/O error, dev sda, sector 2048 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2", "disk.io_error", "disk/sda"),
    ("blk_update_request: critical medium error, dev sdb, sector 1234", "disk.media_error", "disk/sdb"),
    ("Buffer I/O error on dev dm-0, logical block 0, lost sync page write", "disk.buffer_io_error", "disk/dm-0"),
    ("Buffer I/O error on device sda1, logical block 77", "disk.buffer_io_error", "disk/sda"),
    ("kworker/u203:1: attempt to access beyond end of device", "disk.beyond_end", ""),
    ("md/raid0md0: Disk failure on nvme0n1p1 detected, failing array.", "disk.array_failed", "disk/nvme0"),
    ("md/raid1:md1: Disk failure on sda1, disabling device.", "disk.array_degraded", "disk/sda"),
    ("EXT4-fs (md0): Remounting filesystem read-only", "disk.read_only", "disk/md0"),
    ("BTRFS info (device sda1: state EA): forced readonly", "disk.read_only", "disk/sda"),
    ("EXT4-fs error (device nvme1n1p2): ext4_find_entry:1455: inode #2: comm ls: reading directory lblock 0",
     "disk.fs_error", "disk/nvme1"),
    ("EXT4-fs (sda1): I/O error while writing superblock", "disk.superblock_write", "disk/sda"),
    ("XFS (md127): log I/O error -5", "disk.fs_shutdown", "disk/md127"),
    ("XFS (dm-0): Corruption of in-memory data (0x8) detected at xfs_defer_finish_noroll. Shutting down filesystem.",
     "disk.fs_shutdown", "disk/dm-0"),
    ("XFS (nvme3n1): metadata I/O error in xfs_buf_ioend at daddr 0x20 len 8 error 5", "disk.fs_error", "disk/nvme3"),
    ("XFS (nvme3n1): Log I/O error (0x6) detected at xlog_ioend_work. Shutting down filesystem.",
     "disk.fs_shutdown", "disk/nvme3"),
    ("lost page write due to I/O error on sda1", "disk.buffer_io_error", "disk/sda"),
    ("JBD2: Detected IO errors while flushing file data on dm-0-8", "disk.fs_error", "disk/dm-0-8"),
    ("EXT4-fs (sda1): warning: mounting fs with errors, running e2fsck is recommended", "disk.fs_note", "disk/sda"),
    ("ata1.00: disabled", "disk.offline", "disk/ata1"),
    ("ata1: hard resetting link", "disk.ata_error", "disk/ata1"),
    ("smartpqi 0000:18:00.0: controller is offline: status code 0x100c", "disk.controller_fault", "disk/0000:18:00"),
    ("Aborting journal on device sda1-8.", "disk.fs_shutdown", "disk/sda1-8"),
    ("BTRFS error (device sda1): bdev /dev/sda1 errs: wr 1, rd 0, flush 0, corrupt 0, gen 0", "disk.fs_error", "disk/sda"),
    ("sd 0:0:0:0: [sda] tag#12 Sense Key : Medium Error [current]", "disk.media_error", "disk/sda"),
    ("sd 2:0:0:0: [sdc] rejecting I/O to offline device", "disk.offline", "disk/sdc"),
    ("sd 2:0:0:0: Device offlined - not ready after error recovery", "disk.offline", "disk/2:0:0:0"),
    ("ata1.00: failed command: READ FPDMA QUEUED", "disk.ata_error", "disk/ata1"),
    ("megaraid_sas 0000:18:00.0: Found FW in FAULT state, will reset adapter scsi0",
     "disk.controller_fault", "disk/0000:18:00"),
    ("mpt3sas_cm0: fault_state(0x5854)!", "disk.controller_fault", "disk/mpt3sas_cm0"),
]  # fmt: skip

SHARED = [
    ("nfs: server 7.247.192.16 not responding, timed out", "mount.nfs.not_responding", "dependency/nfs:7.247.192.16"),
    ("nfs: server nfs-1.example.com not responding, still trying",
     "mount.nfs.not_responding", "dependency/nfs:nfs-1.example.com"),
    ("nfs: server 7.247.192.16 OK", "mount.nfs.ok", "dependency/nfs:7.247.192.16"),
    ("lockd: server 10.0.0.1 not responding, still trying", "mount.nfs.not_responding", "dependency/nfs:10.0.0.1"),
    ("NFS: nfs4_reclaim_open_state: Lock reclaim failed!", "mount.nfs.state_lost", "dependency/nfs"),
    ("Aug  1 10:00:00 n1 mount[99]: mount.nfs: Connection timed out", "mount.nfs.not_responding", "dependency/nfs"),
    (" nfs_wb_all+0x2c/0x190 [nfs]", "mount.nfs.writeback", "dependency/nfs"),
    ("Lustre: scratch-OST0001-osc-ffff9c: Connection to scratch-OST0001 (at 10.0.0.1@o2ib) was lost; in progress operations "
     "using this service will wait for recovery to complete", "mount.lustre.lost", "dependency/lustre:scratch"),
    ("Lustre: scratch-OST0001-osc-ffff9c: Connection restored to 10.0.0.1@o2ib (at 10.0.0.1@o2ib)",
     "mount.lustre.ok", "dependency/lustre:scratch"),
    ("LustreError: 167-0: scratch-MDT0000-mdc-ffff9c: This client was evicted by scratch-MDT0000; in progress operations "
     "using this service will fail.", "mount.lustre.evicted", "dependency/lustre:scratch"),
    ("LNet: 2431:0:(o2iblnd_cb.c:3174:kiblnd_check_conns()) Timed out tx for 172.31.1.7@o2ib: 403055 seconds",
     "mount.lustre.slow", "dependency/lustre"),
    ("LustreError: 11-0: jm-MDT0000-mdc-ffff8820: operation obd_ping to node 172.31.1.8@o2ib failed: rc = -107",
     "mount.lustre.error", "dependency/lustre:jm"),
    ("libceph: mon0 (1)10.0.0.1:6789 session lost, hunting for new mon", "mount.ceph.lost", "dependency/ceph"),
    ("ceph: mds0 hung", "mount.ceph.lost", "dependency/ceph"),
    ("CIFS: VFS: \\\\filer has not responded in 180 seconds. Reconnecting...", "mount.cifs.lost", "dependency/cifs:filer"),
    ("nvme nvme7: Reconnecting in 10 seconds...", "mount.nvmeof.lost", "dependency/nvmeof:nvme7"),
]  # fmt: skip

QUIET = [
    "nvme nvme0: I/O timeout",
    "nvme nvme0: Disabling device",
    "nvme nvme0: pci function 0000:01:00.0",
    "EXT4-fs (sda1): re-mounted. Opts: errors=remount-ro. Quota mode: none.",
    "EXT4-fs (dm-0): I/O error while reading superblock",
    "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0",
    "Buffer I/O error on dev loop3, logical block 0, async page read",
    "General I/O error detected",
    'mtd: partition "BIOS" extends beyond the end of device "0000:00:1f.5" -- size truncated to 0x1000000',
    "ata3: SATA link down (SStatus 0 SControl 300)",
    "mpt3sas_cm0: log_info(0x31120303): originator(PL), code(0x12), sub_code(0x0303)",
    "BTRFS info (device sda1): disk space caching is enabled",
    "md: raid1 personality registered for level 1",
    "NFS: Registering the id_resolver key type",
    "nfs: server 7.247.192.16 starting",
    "systemd[1]: Mounting NFSD configuration filesystem...",
]


def found(text: str) -> list[tuple[str, str]]:
    return [(seen.signal, seen.part) for seen in read(Document("log", text.encode())).observations]


@pytest.mark.parametrize(("line", "signal", "part"), [*DRIVES, *SHARED])
def test_a_line_about_storage_is_read(line: str, signal: str, part: str) -> None:
    assert found(line) == [(signal, part)]


@pytest.mark.parametrize("line", QUIET)
def test_an_ordinary_line_about_storage_says_nothing(line: str) -> None:
    assert found(line) == []


@pytest.mark.parametrize(("line", "signal", "part"), SHARED)
def test_a_shared_file_system_is_never_the_nodes_fault(line: str, signal: str, part: str) -> None:
    row = CATALOG.row(signal)
    assert (row.failure_class, row.scope, row.isolate) == ("storage.shared", Scope.DEPENDENCY, False)

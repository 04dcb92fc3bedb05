"""File systems over a network as their clients see them: NFS, Lustre, GPFS, Ceph, BeeGFS, Weka, CIFS, iSCSI, NVMe over fabrics.

Owns who the server is (``dependency/nfs:10.0.0.1``) and which stacks wait for one. A client's complaint is evidence about the
server or the way to it, never by itself about this node.
"""

import re
from collections.abc import Sequence

from keepstep.core.observation import Observation
from keepstep.evidence.kernel.frames import Record, seen
from keepstep.evidence.kernel.patterns import MAX_SEARCHED_CHARS, Values, first, hints, pattern

_TARGET = r"(?P<target>[\w.-]{1,64}?-(?:OST|MDT)[0-9a-f]{4}|MGS)"


def _lustre(values: Values) -> str:
    """All targets of one file system are one dependency."""
    target = values.get("target", "")
    return f"dependency/lustre:{target.rsplit('-', 1)[0]}" if target else "dependency/lustre"


_NFS = (
    pattern(
        "mount.nfs.not_responding", "not responding",
        r"\bnfs: server (?P<server>\S{1,253}) not responding", "dependency/nfs:{server}",
    ),
    pattern("mount.nfs.ok", " OK", r"\bnfs: server (?P<server>\S{1,253}) OK", "dependency/nfs:{server}"),
    pattern(
        "mount.nfs.not_responding", "not responding",
        r"\b(?:lockd|NFS|rpc): server (?P<server>\S{1,253}) not responding", "dependency/nfs:{server}",
    ),
    pattern("mount.nfs.ok", " OK", r"\b(?:lockd|NFS|rpc): server (?P<server>\S{1,253}) OK", "dependency/nfs:{server}"),
    pattern(
        "mount.nfs.state_lost", "reclaim",
        r"nfs4_reclaim_open_state: (?:Lock reclaim failed|unhandled error)", "dependency/nfs",
    ),
    pattern(
        "mount.nfs.state_lost", "NFS: state manager",
        r"NFS: state manager: [^\n]{1,60} failed on NFSv4 server (?P<server>\S{1,253}) with error (?P<value>\d+)",
        "dependency/nfs:{server}",
    ),
    pattern(
        "mount.nfs.server_error", "NFS: server",
        r"NFS: server (?P<server>\S{1,253}) error: (?P<what>[^\n]{3,60})", "dependency/nfs:{server}",
    ),
)  # fmt: skip

_MOUNTING = (
    pattern(
        "mount.nfs.not_responding", "mount.nfs",
        r"mount\.nfs4?: (?:Connection timed out|No route to host|Connection refused|mount system call failed)",
        "dependency/nfs", ("mount", "mount.nfs", "mount.nfs4", "systemd", "automount"),
    ),
)  # fmt: skip

_LUSTRE = (
    pattern("mount.lustre.evicted", "was evicted by", rf"(?:This|this) client was evicted by {_TARGET}", _lustre),
    pattern(
        "mount.lustre.lost", "Connection to ",
        rf"Connection to {_TARGET} \(at (?P<server>[^)\n]{{3,80}})\) was lost", _lustre,
    ),
    pattern(
        "mount.lustre.ok", "onnection restored to",
        rf"(?:{_TARGET}-\w+-[0-9a-f]+: )?Connection restored to (?:{_TARGET.replace('target', 'name')} \(at )?"
        r"(?P<server>[^\s()]{3,80})", _lustre,
    ),
    pattern(
        "mount.lustre.slow", "Request sent has",
        r"ptlrpc_expire_one_request\(\)\) @@@ Request sent has (?P<what>timed out for (?:slow|sent delay)|failed due"
        r" to network error)", "dependency/lustre",
    ),
    pattern(
        "mount.lustre.error", "LustreError: 11-0",
        rf"LustreError: 11-0: {_TARGET}[^\n]{{0,80}}? failed: rc = (?P<value>-\d+)", _lustre,
    ),
    pattern(
        "mount.lustre.slow", "LNetError",
        r"LNetError: [^\n]{0,160}?(?:Timed out|timeout|NETWORK_TIMEOUT|failed: -1(?:10|13))", "dependency/lustre",
    ),
    pattern(
        "mount.lustre.mount_failed", "ustre mount FAILED",
        r"Lustre mount FAILED", "dependency/lustre", ("ras", "kernel"),
    ),
    pattern(
        "mount.lustre.mount_failed", "LustreError: 15",
        r"LustreError: 15[cf]-\w: [^\n]{0,160}(?:failed|not available|Is the MGS)", "dependency/lustre",
    ),
    pattern(
        "mount.lustre.slow", "Timed out tx for",
        r"LNet[^\n]{0,120}?Timed out tx for (?P<server>\S{3,80}?):", "dependency/lustre",
    ),
)  # fmt: skip

_MMFS = ("mmfs", "mmfsd", "kernel", "mmfsd64")

_PARALLEL = (
    pattern(
        "mount.gpfs.error", "MMFS_",
        r"Error=(?P<what>MMFS_(?:DISKFAIL|FSSTRUCT|SYSTEM_UNMOUNT|LONGDISKIO|GENERIC|PHOENIX))\b",
        "dependency/gpfs", _MMFS,
    ),
    pattern(
        "mount.gpfs.error", "quorum",
        r"(?:\[[EXN]\]|mmfs\w*:?) [^\n]{0,80}(?:[Ll]ost membership in cluster|contact any quorum nodes|quorum loss)",
        "dependency/gpfs", _MMFS,
    ),
    pattern("mount.gpfs.error", "embership", r"[Ll]ost membership in cluster (?P<name>\S+)", "dependency/gpfs", _MMFS),
    pattern("mount.ceph.lost", "libceph: mon", r"libceph: (?P<server>mon\d+ \S+) session lost", "dependency/ceph"),
    pattern("mount.ceph.lost", "libceph: osd", r"libceph: (?P<server>osd\d+) down\b", "dependency/ceph"),
    pattern(
        "mount.ceph.ok", "libceph: ",
        r"libceph: (?:(?P<server>osd\d+) up|(?P<monitor>mon\d+ \S+) session established)", "dependency/ceph",
    ),
    pattern(
        "mount.ceph.lost", "ceph: mds",
        r"ceph: (?:\[[^\]\n]{1,80}\]: )?(?P<server>mds\d+) (?:hung|caps (?:stale|went stale)|reconnect (?:denied"
        r"|start failed)|rejected session)", "dependency/ceph",
    ),
    pattern(
        "mount.ceph.ok", "ceph: mds",
        r"ceph: (?:\[[^\]\n]{1,80}\]: )?(?P<server>mds\d+) (?:came back|reconnect success|recovery completed|caps"
        r" renewed)", "dependency/ceph",
    ),
    pattern(
        "mount.beegfs.lost", "beegfs",
        r"beegfs: [^\n]{0,120}?(?:Communication error|Connect(?:ion)? (?:error|failed)|Retrying communication|Unable"
        r" to connect)", "dependency/beegfs",
    ),
    pattern(
        "mount.weka.lost", "weka",
        r"weka\w*[: ][^\n]{0,120}?(?:not responding|timed out|unreachable|is hung|stuck|lost connection)",
        "dependency/weka",
    ),
)  # fmt: skip

_BLOCKS = (
    pattern(
        "mount.cifs.lost", "CIFS",
        r"CIFS: (?:VFS: )?\\{0,4}(?P<server>[\w.-]{1,253})[^\n]{0,40}? has not responded in \d+ seconds",
        "dependency/cifs:{server}",
    ),
    pattern("mount.iscsi.lost", "conn error", r"connection(?P<name>\d+:\d+): detected conn error", "dependency/iscsi"),
    pattern(
        "mount.iscsi.lost", "session recovery timed out",
        r"session(?P<name>\d+): session recovery timed out", "dependency/iscsi",
    ),
    pattern(
        "mount.nvmeof.lost", "nvme",
        r"\b(?P<disk>nvme\d+): (?:Reconnecting in \d+ seconds|starting error recovery|keep-alive failed|failed"
        r" nvme_keep_alive_end_io)", "dependency/nvmeof:{disk}",
    ),
    pattern("mount.nvmeof.ok", "nvme", r"\b(?P<disk>nvme\d+): Successfully reconnected", "dependency/nvmeof:{disk}"),
)  # fmt: skip

PATTERNS = (*_NFS, *_MOUNTING, *_LUSTRE, *_PARALLEL, *_BLOCKS)

_WRITEBACK = re.compile(
    r"(?:^|\n)[ \t]*(?:\[<[0-9a-f]+>\] )?(?:\? )?(?P<symbol>nfs_(?:lock_and_join_requests|wb_all|page_async_flush))"
    r"\+0x[0-9a-f]+/0x[0-9a-f]+ \[nfs\]"
)
_STACKS = (
    (re.compile(
        r"(?:^|[\s?])(?:nfs4?|nfs3)_\w+\+0x|\brpc_(?:wait_bit_killable|run_task|execute)\+0x|\[(?:nfs|nfsv[34]|sunrpc)\]"
    ), "nfs"),
    (re.compile(
        r"(?:^|[\s?])(?:ll|osc|ptlrpc|ldlm|cl_io|cl_sync)_\w+\+0x|\[(?:lustre|ptlrpc|osc|lov|mdc|obdclass)\]"
    ), "lustre"),
    (re.compile(r"\[(?:mmfs26|mmfslinux)\]|\bkxWaitCommon\+0x"), "gpfs"),
    (re.compile(r"\[(?:ceph|libceph)\]|(?:^|[\s?])ceph_\w+\+0x"), "ceph"),
    (re.compile(r"\[wekafs\w*\]"), "weka"),
    (re.compile(r"\[beegfs\]"), "beegfs"),
    (re.compile(r"\[cifs\]|(?:^|[\s?])(?:cifs|smb2)_\w+\+0x"), "cifs"),
    (re.compile(r"\[fuse\]|\brequest_wait_answer\+0x|(?:^|[\s?])fuse_\w+\+0x"), "fuse"),
)  # fmt: skip

HINTS = (*hints(PATTERNS), "+0x")


def match(record: Record) -> Sequence[Observation] | None:
    found = first(PATTERNS, record)
    if found is None and record.kernel and "+0x" in record.text:
        return _stack(record)
    return found


def _stack(record: Record) -> Sequence[Observation] | None:
    """A line of a call trace, or a record with its whole trace, that waits in a network file system."""
    text = record.text[:MAX_SEARCHED_CHARS]
    if found := _WRITEBACK.search(text):
        return (seen(record, "mount.nfs.writeback", "dependency/nfs", {"symbol": found["symbol"], "fs": "nfs"}),)
    for regex, name in _STACKS:
        if regex.search(text):
            return (seen(record, "mount.stack", f"dependency/{name}", {"fs": name}),)
    return None

"""Reads what the communication libraries print: NCCL and its kin, Gloo, HCCL, and torch's watchdog. One line, one sighting.

Most of it comes from victims: a sighting says who reports and whom it names, and leaves open whose fault it is.
"""

import re

from keepstep.evidence.job import errors
from keepstep.evidence.job.sighting import Sighting

_WATCHDOG = re.compile(
    r"(?:\[Rank (\d+)\] )?Watchdog caught collective operation timeout:? ?(?:Work\w{0,10}\(([^)]{0,400}\)[^)]{0,120})\))?"
    r"(?: ran for (\d+) milliseconds)?"
)
_WORK = re.compile(r"SeqNum=(\d+)|OpType=(\w+)|NumelIn=(\d+)|Timeout\(ms\)=(\d+)")
_PG = re.compile(r"\[PG (?:ID )?(\S+?)(?: PG GUID (\S+?))?(?:\(([^)]{0,80})\))? Rank (\d+)\]")
_PROGRESS = re.compile(
    r"(?:at work: |Timeout at (?:NCCL|HCCL|\w+) work: )(\d+), last enqueued (?:NCCL |\w+ )?work: (-?\d+), "
    r"(?:last started (?:NCCL |\w+ )?work: (-?\d+)[^,]{0,40}, )?last completed (?:NCCL |\w+ )?work: (-?\d+)"
)
_STUCK = re.compile(
    r"watchdog (?:thread )?got stuck for \d+ (?:milli)?seconds|Heartbeat monitor timed out|watchdog hang", re.I
)
_NCCL_LINE = re.compile(
    r"(?:^|[\s\]:])([A-Za-z0-9][A-Za-z0-9_.-]{0,120}):(\d{1,8}):(\d{1,8}) \[(\d{1,3})\] .{0,160}?(?:NCCL|RCCL) WARN (.*)"
)
_WARN = re.compile(r"(?:NCCL|RCCL) WARN (.*)")
_COMPLETION = re.compile(
    r"Got completion (?:from peer (\S+?)(?:<\d+>)? )?with (?:status=|error )(\d+)[ ,].{0,120}?vendor err (\d+)"
)
_GIDS = re.compile(r"localGid (\S+)|remoteGids? ?(\S+)")
_PEER_CLOSED = re.compile(r"Connection (?:closed|reset) by (?:remote )?peer ?\[?([A-Za-z0-9_.:-]*[A-Za-z0-9])?", re.I)
_CONNECT = re.compile(
    r"(?:Connect(?:ion)? to|connect to|connectFullMesh.{0,80}?to) \[?([\w.:-]+?)\]?(?:<\d+>|:\d+)? ?(?:\([^)]{0,80}\) ?)?"
    r"(?:failed|returned|timed out)[^\n]{0,40}(?:refused|timed out|No route|unreachable|timeout)?",
    re.I,
)
_ASYNC_EVENT = re.compile(
    r"(mlx\d+_\d+|bnxt_re\d+|[a-z]\w{2,15}_\d+):(\d+).{0,40}[Aa]sync (?:fatal )?event ?: ?(.{0,60})"
)
_LOCAL_VERBS = re.compile(r"Call to (ibv_\w+|wrap_ibv_\w+)[^\n]{0,60}failed|(ibv_\w+)\(?\)? failed")
_NCCL_ERROR = re.compile(r"nccl(?:Remote|System|Internal|UnhandledCuda)Error|ncclInvalid(?:Usage|Argument)")
_NCCL_TEXT = (
    ("remote process exited or there was a network error", "job.comm.remote"),
    ("unhandled system error", "job.comm.system"),
    ("unhandled cuda error", "job.comm.cuda"),
    ("internal error", "job.comm.internal"),
    ("invalid usage", "job.error.application"),
)
_NCCL_NAMES = {
    "ncclRemoteError": "job.comm.remote", "ncclSystemError": "job.comm.system", "ncclInternalError": "job.comm.internal",
    "ncclUnhandledCudaError": "job.comm.cuda", "ncclInvalidUsage": "job.error.application",
    "ncclInvalidArgument": "job.error.application",
}  # fmt: skip
_BARRIER = re.compile(
    r"Ranks? ([\d, ]+) failed to pass monitoredBarrier|waiting for send/recv from rank (\d+)|"
    r"Timed out waiting for ranks? ([\d, ]+)|missing ranks?:? \[?([\d, ]+)", re.I
)  # fmt: skip
_MISMATCH = re.compile(r"Detected mismatch between collectives on ranks?\. Rank (\d+)[^\n]{0,400}but Rank (\d+)")
_FABRIC_REQUEST = re.compile(r"NET/OFI.{0,120}(?:completed with error|Timeout|timed out)", re.I)
_TAKEN_DOWN = re.compile(r"Some \w+ operations have failed or timed out")
_UNHEALTHY_TASK = re.compile(r"(?:unhealthy|heartbeat)[^\n]{0,300}?/job:\w{1,60}/replica:\d{1,6}/task:(\d{1,6})", re.I)
_DESYNC = re.compile(r"lagging/dead/mismatched ranks that caused the desync")
_DESYNC_ROW = re.compile(r"^[\s\-]*\[([\d, ]+)\] (.{0,120})")
_HCCL = re.compile(
    r"(?:rror|fail)[^\n]{0,60}HCCL_BLOCKING_WAIT|\bEI000[26]\b|ERR02\d{3} DIST|HCCL (?:function )?error|HcclTimeout|"
    r"Notify wait.{0,40}time ?out",
    re.I,
)
_RANK_ID = re.compile(r"RankID:(\d+)")
_GLOO = re.compile(
    r"(?:gloo/|Gloo|\[Gloo\]).{0,200}?(?:Timed out waiting (\d+) ?ms|Connection closed by peer|Connection reset)"
)
_ONECCL = re.compile(r"\|?CCL_ERROR\|?.{0,160}")
_CONFIG = re.compile(
    r"no socket interface found|Duplicate GPU detected|Mismatched (?:world|comm)|NCCL version mismatch", re.I
)
_FLUSHED = "5"
_UNREACHABLE = ("12", "13")


class Communication:
    """Goes through the lines. Its only memory is that the rows of a desync report follow."""

    def __init__(self) -> None:
        self._rows = 0

    def take(self, line: str) -> Sighting | None:
        if self._rows:
            row = _DESYNC_ROW.match(line)
            self._rows = self._rows - 1 if row is not None else 0
            if row is not None:
                return Sighting("job.desync", {"ranks": row[1].replace(" ", ""), "state": row[2]})
        if _DESYNC.search(line):
            self._rows = 16
            return None
        for reader in _READERS:
            found = reader(line)
            if found is not None:
                return found
        return None


def _watchdog(line: str) -> Sighting | None:
    match = _WATCHDOG.search(line)
    if match is None:
        return None
    attributes = {"rank": match[1] or "", "ran_ms": match[3] or ""}
    for seq, op, numel, limit in _WORK.findall(match[2] or line):
        for name, value in (("seq", seq), ("op", op), ("numel", numel), ("timeout_ms", limit)):
            if value:
                attributes[name] = value
    return Sighting("job.collective_timeout", _filled(attributes | _group(line)))


def _progress(line: str) -> Sighting | None:
    match = _PROGRESS.search(line)
    if match is None:
        return None
    attributes = {"seq": match[1], "enqueued": match[2], "completed": match[4]}
    return Sighting("job.collective_progress", _filled(attributes | _group(line)))


def _group(line: str) -> dict[str, str]:
    match = _PG.search(line)
    if match is None:
        return {}
    return {"pg": match[2] or match[1], "pg_desc": match[3] or "", "rank": match[4]}


def _stuck(line: str) -> Sighting | None:
    if not _STUCK.search(line) or "ncclHeartbeatMonitor" in line:
        return None
    return Sighting("job.watchdog_stuck", _filled(_group(line)))


def _warn(line: str) -> Sighting | None:
    full = _NCCL_LINE.search(line)
    bare = full or _WARN.search(line)
    if bare is None:
        return None
    text = full[5] if full is not None else bare[1]
    found = _of_warning(text)
    # A peer that cannot be reached is told by somebody else's host: that one only reports.
    host = "reporter" if found.key == "job.peer_unreachable" else "node"
    where = {host: full[1], "pid": full[2], "device": full[4]} if full is not None else {}
    return Sighting(found.key, found.attributes | where)


def _of_warning(text: str) -> Sighting:
    completion = _completion(text)
    if completion is not None:
        return completion
    event = _ASYNC_EVENT.search(text)
    if event is not None:
        fatal = "error" in event[3] or "fatal" in event[3] or "down" in event[3].lower()
        return Sighting(
            "job.nic_event" if fatal else "job.comm.warning", {"nic": f"{event[1]}/{event[2]}", "event": event[3]}
        )
    closed = _PEER_CLOSED.search(text)
    if closed is not None:
        return Sighting("job.peer_lost", _filled({"peer": _bare(closed[1] or "")}))
    connect = _CONNECT.search(text)
    if connect is not None:
        return Sighting("job.peer_unreachable", {"peer": _bare(connect[1])})
    verbs = _LOCAL_VERBS.search(text)
    if verbs is not None:
        return Sighting("job.comm.verbs", {"call": verbs[1] or verbs[2]})
    named = errors.anywhere(text)
    if named:
        return Sighting(named, {})
    if _CONFIG.search(text):
        return Sighting("job.comm.config", {})
    return Sighting("job.comm.warning", {})


def _completion(line: str) -> Sighting | None:
    match = _COMPLETION.search(line)
    if match is None:
        return None
    attributes = {"peer": _bare(match[1] or ""), "status": match[2], "vendor_err": match[3]}
    for local, remote in _GIDS.findall(line):
        attributes |= _filled({"local_gid": local, "remote_gid": remote})
    key = "job.peer_unreachable" if match[2] in _UNREACHABLE else "job.comm.completion"
    return Sighting("job.comm.flushed" if match[2] == _FLUSHED else key, _filled(attributes))


def _named_error(line: str) -> Sighting | None:
    match = _NCCL_ERROR.search(line)
    if match is not None:
        return Sighting(_NCCL_NAMES[match[0]], {})
    if "NCCL error" in line or "RCCL error" in line:
        lowered = line.lower()
        return next((Sighting(key, {}) for text, key in _NCCL_TEXT if text in lowered), None)
    return None


def _barrier(line: str) -> Sighting | None:
    match = _BARRIER.search(line)
    if match is None or ("arrier" not in line and "ank" not in line):
        return None
    ranks = next(word for word in match.groups() if word).replace(" ", "").strip(",")
    return Sighting("job.desync", {"ranks": ranks, "state": "did not reach the barrier"})


def _other_ends(line: str) -> Sighting | None:
    """What another fabric's plug-in and the watchdog say of an operation that failed, without saying whose fault it is."""
    if _FABRIC_REQUEST.search(line):
        return Sighting("job.comm.completion", {"library": "ofi"})
    return Sighting("job.peer_lost", {}) if _TAKEN_DOWN.search(line) else None


def _unhealthy_task(line: str) -> Sighting | None:
    match = _UNHEALTHY_TASK.search(line)
    return Sighting("job.desync", {"ranks": match[1], "state": "sends no heartbeats"}) if match is not None else None


def _mismatch(line: str) -> Sighting | None:
    match = _MISMATCH.search(line)
    return Sighting("job.collective_mismatch", {"ranks": f"{match[1]},{match[2]}"}) if match is not None else None


def _others(line: str) -> Sighting | None:
    rank = _RANK_ID.search(line)
    told = {"rank": rank[1]} if rank is not None else {}
    if _HCCL.search(line):
        return Sighting("job.collective_timeout", told | {"library": "hccl"})
    gloo = _GLOO.search(line)
    if gloo is not None:
        if gloo[1]:
            return Sighting("job.collective_timeout", {"library": "gloo", "timeout_ms": gloo[1]})
        closed = _PEER_CLOSED.search(line)
        return Sighting("job.peer_lost", _filled({"peer": _bare((closed[1] if closed is not None else "") or "")}))
    if _ONECCL.search(line):
        return Sighting("job.comm.internal", {"library": "oneccl"})
    return None


def _bare(address: str) -> str:
    """An address without its port."""
    address = address.strip("[]").split("<")[0]
    host, colon, port = address.rpartition(":")
    return host.strip("[]") if colon and port.isdecimal() and host.count(":") == 0 else address


def _filled(attributes: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in attributes.items() if value}


_READERS = (
    _watchdog,
    _progress,
    _stuck,
    _other_ends,
    _warn,
    _completion,
    _named_error,
    _mismatch,
    _barrier,
    _unhealthy_task,
    _others,
)

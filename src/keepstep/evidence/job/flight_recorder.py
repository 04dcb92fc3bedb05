"""Reads flight-recorder dumps of collectives, pickled or JSON: one document, one rank. Owns their fields in every version.

Who is late shows only when the ranks are put together (``core/hangs.py``); here nothing is compared. A dump does not name its
rank: the groups it belongs to do.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from keepstep.core.hangs import GroupState, RankState, packed
from keepstep.core.observation import Observation
from keepstep.evidence.document import Document
from keepstep.evidence.job.pickled import Refused, loads
from keepstep.evidence.reading import Fine, Reader, Reading

NAME = "flight_recorder"
MAX_DUMP_BYTES = 256 * 1024 * 1024
_KEYS = ("entries", "pg_config", "pg_status", "nccl_version", "comm_lib_version")
_P2P = re.compile(r"(?:send|recv)\s+(\d{1,6})\s*(?:->|<-)\s*(\d{1,6})")
_LAST_NUMBER = re.compile(r"(\d{1,6})\D*$")
_RANKS = re.compile(r"\d{1,7}")
_DONE = ("completed", "retired")


def recognise(document: Document) -> float:
    if document.data[:1] == b"\x80" or document.data[:2] in (b"(d", b"}q", b"(l"):
        start = document.data[:8192]
        named = sum(key.encode() in start for key in _KEYS)
        if named or b"collective_seq_id" in document.data[:65536]:
            return 0.95
        return 0.35 if document.data[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05") else 0.0
    if b'"entries"' not in document.data and b'"pg_config"' not in document.data:
        return 0.0
    return 0.95 if _is_dump(document.json) else 0.0


def _is_dump(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("pg_config"), dict) or isinstance(value.get("pg_status"), dict):
        return True
    entries = value.get("entries")
    return isinstance(entries, list) and any(isinstance(e, dict) and "profiling_name" in e for e in entries[:4])


def read(document: Document) -> Reading:
    reading = Reading(reader=NAME, file=document.path)
    value = document.json
    if value is None:
        try:
            value = loads(document.data[:MAX_DUMP_BYTES])
        except Refused as error:
            return _refused(reading, error)
    if isinstance(value, list):
        value = {"entries": value}
    if not _is_dump(value):
        reading.puzzled(0, "a dump without entries and process groups")
        return reading
    entries = [entry for entry in value.get("entries") or () if isinstance(entry, dict)]
    reading.records = len(entries) + 1
    groups = _groups(value, entries)
    rank = _rank(value, groups, document.path)
    if rank is None:
        reading.puzzled(0, "the dump does not say of which rank it is")
        return reading
    state = RankState(rank=rank, groups=tuple(groups))
    reading.observations.append(_observation(document.path, state, value))
    if groups and all(group.waits_at < 0 and group.peer < 0 for group in groups):
        reading.fine.append(Fine(part=f"rank/{rank}", text="no collective of this rank is open", file=document.path))
    return reading


def _refused(reading: Reading, error: Refused) -> Reading:
    reading.puzzled(0, f"not read: {error}")
    if error.hostile:
        reading.observations.append(
            Observation(
                signal="job.dump_refused", source=NAME, file=reading.file, part="job/dump",
                detail=f"a pickle that would run code was not opened: {error}",
            )
        )  # fmt: skip
    return reading


def _observation(path: str, state: RankState, value: Mapping[str, Any]) -> Observation:
    open_groups = [group for group in state.groups if group.waits_at >= 0]
    first = open_groups[0] if open_groups else None
    told = f"rank {state.rank}: {len(state.groups)} process groups, a collective open in {len(open_groups)}"
    if first is not None:
        told += f", for example {first.op} {first.size} as number {first.waits_at} of {first.desc or first.name}"
    return Observation(
        signal="job.collective_state", part=f"rank/{state.rank}", source=NAME, file=path, detail=told[:500],
        attributes=packed(state) | {"version": str(value.get("version", ""))[:16]},
    )  # fmt: skip


# ---- groups


def _groups(value: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> list[GroupState]:
    config = _config(value)
    by_group: dict[str, list[Mapping[str, Any]]] = {}
    ids: dict[str, str] = {}
    for entry in entries:
        name, desc = _name(entry)
        by_group.setdefault(name, []).append(entry)
        config.setdefault(name, (desc, ()))
        if "pg_id" in entry:
            ids.setdefault(name, str(entry["pg_id"]))
    status = _status(value, config, ids)
    return [_group(name, config[name], by_group.get(name, ()), status.get(name)) for name in config]


def _config(value: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    found = {}
    config = value.get("pg_config")
    for name, told in config.items() if isinstance(config, dict) else ():
        if isinstance(told, dict):
            found[str(told.get("name", name))] = (str(told.get("desc", "")), _ranks(told.get("ranks")))
    return found


def _ranks(told: Any) -> tuple[int, ...]:
    if isinstance(told, (list, tuple)):
        return tuple(int(x) for x in told if isinstance(x, int))
    return tuple(int(x) for x in _RANKS.findall(told)) if isinstance(told, str) else ()


def _name(entry: Mapping[str, Any]) -> tuple[str, str]:
    group = entry.get("process_group")
    if isinstance(group, (list, tuple)) and group:
        return str(group[0]), str(group[1]) if len(group) > 1 else ""
    return str(entry.get("pg_name", entry.get("pg_id", "0"))), ""


def _status(
    value: Mapping[str, Any], config: Mapping[str, object], ids: Mapping[str, str]
) -> dict[str, Mapping[str, Any]]:
    """Group name -> its counters. They are filed under a number of this process; names and numbers rise together."""
    told = value.get("pg_status")
    if not isinstance(told, dict):
        return {}
    status = {str(key): row for key, row in told.items() if isinstance(row, dict)}
    found: dict[str, Mapping[str, Any]] = {name: status[number] for name, number in ids.items() if number in status}
    if len(status) == len(config) and all(x.isdecimal() for x in (*status, *config)):
        pairs = dict(zip(sorted(config, key=int), sorted(status, key=int), strict=True))
        if all(pairs.get(name) == number for name, number in ids.items()):
            found |= {name: status[number] for name, number in pairs.items()}
    return found


def _group(
    name: str,
    told: tuple[str, tuple[int, ...]],
    entries: Sequence[Mapping[str, Any]],
    status: Mapping[str, Any] | None,
) -> GroupState:
    desc, ranks = told
    collectives = [(seq, e) for e in entries if not _is_p2p(e) and (seq := _seq(e)) >= 0]
    unfinished = [(seq, e) for seq, e in collectives if not _is_done(e)]
    seq, first = min(unfinished, key=lambda x: x[0]) if unfinished else (-1, None)
    finished = max((s for s, e in collectives if _is_done(e)), default=-1)
    entered = max((s for s, _ in collectives), default=-1)
    p2p = [e for e in entries if _is_p2p(e)]
    if status is not None and not p2p:
        finished = max(finished, _integer(status, "last_completed_collective"))
        entered = max(entered, _integer(status, "last_enqueued_collective"))
    return GroupState(
        name=name, desc=desc[:60], ranks=ranks, enqueued=entered, completed=finished, waits_at=seq,
        op=_op(first), size=_size(first), peer=_peer([e for e in p2p if not _is_done(e)], ranks),
    )  # fmt: skip


def _integer(row: Mapping[str, Any], key: str) -> int:
    value = row.get(key)
    return value if isinstance(value, int) else -1


def _seq(entry: Mapping[str, Any]) -> int:
    value = entry.get("collective_seq_id", entry.get("seq_id"))
    return value if isinstance(value, int) else -1


def _is_p2p(entry: Mapping[str, Any]) -> bool:
    told = entry.get("is_p2p")
    return told if isinstance(told, bool) else _P2P.search(str(entry.get("profiling_name", ""))) is not None


def _is_done(entry: Mapping[str, Any]) -> bool:
    return entry.get("state") in _DONE or entry.get("retired") is True


def _op(entry: Mapping[str, Any] | None) -> str:
    return str(entry.get("profiling_name", ""))[:60] if entry is not None else ""


def _size(entry: Mapping[str, Any] | None) -> str:
    sizes = entry.get("input_sizes") if entry is not None else None
    if not isinstance(sizes, (list, tuple)):
        return ""
    return ";".join("x".join(map(str, size)) for size in sizes[:3] if isinstance(size, (list, tuple)))[:60]


def _peer(entries: Sequence[Mapping[str, Any]], ranks: Sequence[int]) -> int:
    """The rank of the job that the oldest open send or receive is with; its name counts within the group."""
    for entry in sorted(entries, key=lambda e: _integer(e, "p2p_seq_id")):
        match = _P2P.search(str(entry.get("profiling_name", "")))
        if match is not None:
            other = int(match[2])
            return ranks[other] if other < len(ranks) else other if not ranks else -1
    return -1


def _rank(value: Mapping[str, Any], groups: Sequence[GroupState], path: str) -> int | None:
    """The only member that all its groups share; the number in the file's name where that leaves several."""
    if isinstance(value.get("rank"), int):
        return int(value["rank"])
    shared: set[int] | None = None
    for group in groups:
        if group.ranks:
            shared = set(group.ranks) if shared is None else shared & set(group.ranks)
    if shared is not None and len(shared) == 1:
        return next(iter(shared))
    named = _LAST_NUMBER.search(path.rsplit("/", 1)[-1])
    rank = int(named[1]) if named is not None else None
    return rank if rank is not None and (not shared or rank in shared) else None


READER = Reader(name=NAME, text="flight-recorder dump of collectives, one rank", recognise=recognise, read=read)

"""Which rank a hang comes from: from records of collectives and from stacks. Pure; must not decide what is done about it.

Sequence numbers count per process group, and a group is its name together with its members: two groups are never compared.
Times of two ranks are never compared either; what counts is who entered what, and what was seen to finish.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from keepstep.core.figures import whole

_GROUP = "group."
_FIELDS = 10
_DIGITS = 18
_LARGEST_JOB = 1_000_000
_NO = -1


class GroupState(Struct, frozen=True, kw_only=True):
    """What one rank knows about one process group."""

    name: str
    desc: str = ""
    ranks: tuple[int, ...] = ()
    enqueued: int = _NO
    """Newest sequence number that this rank has entered; -1 where it does not say."""
    completed: int = _NO
    """Newest that it saw finished; -1 where it does not say."""
    waits_at: int = _NO
    """Oldest collective that it entered and did not see finished."""
    op: str = ""
    size: str = ""
    peer: int = _NO
    """Rank that its oldest unfinished send or receive is with."""

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        return self.name, self.ranks


class RankState(Struct, frozen=True, kw_only=True):
    rank: int
    groups: tuple[GroupState, ...] = ()


class Suspect(Struct, frozen=True, kw_only=True):
    rank: int
    how: str
    """``not_entered``, ``not_finished``, ``no_dump``, ``differs`` or ``peer``."""
    group: GroupState
    """The group as one that waits there sees it."""


class Hang(Struct, frozen=True, kw_only=True):
    suspects: tuple[Suspect, ...]
    """One for each rank, in the order of ranks; empty where all entered and nobody finished."""
    waiting: tuple[int, ...]
    group: GroupState | None = None
    """A group where ranks wait."""


def packed(state: RankState) -> dict[str, str]:
    """A state as the attributes of an observation."""
    found = {"rank": str(state.rank)}
    for at, group in enumerate(state.groups):
        words = (
            group.name, group.desc, ranges(group.ranks), group.enqueued, group.completed, group.waits_at, group.op,
            group.size, group.peer, "",
        )  # fmt: skip
        found[f"{_GROUP}{at}"] = "|".join(str(word).replace("|", "/") for word in words)
    return found


def unpacked(attributes: Mapping[str, str]) -> RankState | None:
    rank = attributes.get("rank", "")
    number = whole(rank)
    if number is None:
        return None
    groups = []
    for key, text in attributes.items():
        words = text.split("|")
        if key.startswith(_GROUP) and len(words) == _FIELDS:
            numbers = [_number(word) for word in (words[3], words[4], words[5], words[8])]
            groups.append(
                GroupState(
                    name=words[0], desc=words[1], ranks=members(words[2]), enqueued=numbers[0], completed=numbers[1],
                    waits_at=numbers[2], op=words[6], size=words[7], peer=numbers[3],
                )
            )  # fmt: skip
    return RankState(rank=number, groups=tuple(groups))


def _number(word: str) -> int:
    number = whole(word, _DIGITS)
    return _NO if number is None else number


def ranges(ranks: Sequence[int]) -> str:
    """``0-7:2,9`` for 0 2 4 6 9: short for the groups of large jobs."""
    words, at = [], 0
    while at < len(ranks):
        step = ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 1
        end = at
        while end + 1 < len(ranks) and ranks[end + 1] - ranks[end] == step:
            end += 1
        if end - at < 2 or step <= 0:
            end = at
            words.append(str(ranks[at]))
        else:
            words.append(f"{ranks[at]}-{ranks[end]}" + (f":{step}" if step != 1 else ""))
        at = end + 1
    return ",".join(words)


def members(text: str) -> tuple[int, ...]:
    """The ranks of ``ranges``. Words that are no ranks are passed over: they come from what a program printed."""
    found: list[int] = []
    for word in filter(None, text.split(",")):
        span, _, step = word.partition(":")
        first, dash, last = span.partition("-")
        low, high = _number(first), _number(last if dash else first)
        if 0 <= low <= high < _LARGEST_JOB - len(found):
            found.extend(range(low, high + 1, max(1, _number(step))))
    return tuple(found)


# ---- collectives


class _Group(Struct, kw_only=True):
    """All that is known about one group: its members' views, and at which collective they stand."""

    ranks: tuple[int, ...]
    views: dict[int, GroupState]
    stands_at: int
    waiting: list[int]
    not_entered: list[int]
    not_finished: list[int]
    differs: list[int]

    def view(self) -> GroupState:
        return self.views[self.waiting[0]]


def localise(states: Iterable[RankState]) -> Hang | None:
    """The ranks that the others wait for. None where nobody waits."""
    by_rank = {state.rank: state for state in sorted(states, key=lambda x: x.rank)}
    groups = [group for group in map(_stuck, _joined(by_rank)) if group is not None]
    found: dict[int, Suspect] = {}
    for how, pick in (("not_entered", _entered_less), ("not_finished", _finished_less), ("differs", _differ)):
        for group in groups:
            for rank in pick(group):
                found.setdefault(rank, Suspect(rank=rank, how=how, group=group.view()))
    victims = [rank for rank in found if _is_victim(rank, groups, by_rank, found)]
    if len(victims) < len(found):
        for rank in victims:
            del found[rank]
    if not found:
        found = _without_dump(groups, by_rank) or _peers(by_rank)
    waiting = sorted({rank for group in groups for rank in group.waiting} - found.keys())
    receiving = {rank: group for rank, state in by_rank.items() for group in state.groups if group.peer >= 0}
    if not found and not groups:
        return Hang(suspects=(), waiting=tuple(receiving), group=next(iter(receiving.values()))) if receiving else None
    where = next((s.group for s in found.values()), groups[0].view() if groups else None)
    return Hang(suspects=tuple(found[r] for r in sorted(found)), waiting=tuple(waiting), group=where)


def _joined(by_rank: Mapping[int, RankState]) -> list[tuple[tuple[int, ...], dict[int, GroupState]]]:
    views: dict[tuple[str, tuple[int, ...]], dict[int, GroupState]] = {}
    for rank, state in by_rank.items():
        for group in state.groups:
            views.setdefault(group.key, {})[rank] = group
    return [(key[1], found) for key, found in views.items()]


def _stuck(group: tuple[tuple[int, ...], dict[int, GroupState]]) -> _Group | None:
    """The collective that the most advanced waiters wait in, and who is not there."""
    ranks, views = group
    waits = {rank: view.waits_at for rank, view in views.items() if view.waits_at >= 0}
    if not waits or len(ranks) == 1:
        return None
    at = max(waits.values())
    waiting = [rank for rank, seq in waits.items() if seq == at]
    absent = [rank for rank, view in views.items() if rank not in waits and view.enqueued < at and view.peer < 0]
    behind = [rank for rank, seq in waits.items() if seq < at]
    return _Group(
        ranks=ranks, views=views, stands_at=at, waiting=waiting,
        not_entered=sorted(absent + [rank for rank in behind if _NO < views[rank].enqueued < at]),
        not_finished=[rank for rank in behind if views[rank].enqueued >= at or views[rank].enqueued == _NO],
        differs=_odd_ops(views, waiting),
    )  # fmt: skip


def _odd_ops(views: Mapping[int, GroupState], waiting: Sequence[int]) -> list[int]:
    """Who called another operation than most under the same number: a fault of the program."""
    ops = Counter(views[rank].op for rank in waiting)
    if len(ops) < 2:
        return []
    usual, count = ops.most_common(1)[0]
    return [rank for rank in waiting if views[rank].op != usual] if count * 2 > len(waiting) else []


def _entered_less(group: _Group) -> list[int]:
    return group.not_entered


def _finished_less(group: _Group) -> list[int]:
    return group.not_finished


def _differ(group: _Group) -> list[int]:
    return group.differs


def _is_victim(
    rank: int, groups: Sequence[_Group], by_rank: Mapping[int, RankState], found: Mapping[int, Suspect]
) -> bool:
    """It is late because it waits for somebody else: entered where others are missing, or receives from such a rank."""
    if any(rank in group.not_finished for group in groups):
        return False
    for group in groups:
        if rank in group.waiting and (set(group.not_entered) | set(group.not_finished)) - {rank}:
            return True
    stuck = found.keys() | {other for group in groups for other in group.waiting if group.not_entered}
    return any(view.peer in stuck and view.peer != rank for view in by_rank[rank].groups)


def _without_dump(groups: Sequence[_Group], by_rank: Mapping[int, RankState]) -> dict[int, Suspect]:
    """Members of stuck groups that left no record, where these are few beside those that did."""
    found: dict[int, Suspect] = {}
    for group in groups:
        for rank in group.ranks:
            if rank not in by_rank:
                found.setdefault(rank, Suspect(rank=rank, how="no_dump", group=group.view()))
    return found if len(found) <= len(by_rank) and _most_are_here(by_rank) else {}


def _most_are_here(by_rank: Mapping[int, RankState]) -> bool:
    """Whether most ranks of the job left a record. Where a few of them were handed in, those that are missing say nothing."""
    everyone = {rank for state in by_rank.values() for group in state.groups for rank in group.ranks} | by_rank.keys()
    return 2 * len(by_rank) > len(everyone)


def _peers(by_rank: Mapping[int, RankState]) -> dict[int, Suspect]:
    """Where only sends and receives are open: the peer that has nothing open itself, or left no record."""
    found: dict[int, Suspect] = {}
    idle = {rank for rank, s in by_rank.items() if all(g.waits_at < 0 and g.peer < 0 for g in s.groups)}
    most = _most_are_here(by_rank)
    for state in by_rank.values():
        for group in state.groups:
            if group.peer >= 0 and (group.peer in idle or (most and group.peer not in by_rank)):
                how = "peer" if group.peer in idle else "no_dump"
                found.setdefault(group.peer, Suspect(rank=group.peer, how=how, group=group))
    return found if len(found) <= max(1, len(by_rank) // 2) else {}


# ---- stacks


class Stack(Struct, frozen=True, kw_only=True):
    """The main thread of one process."""

    name: str
    """What the process goes by: ``node48/688514``, ``rank/3``."""
    frames: tuple[str, ...] = ()
    """Function and file, without lines, the innermost first."""
    error: str = ""
    """Why there are no frames, where the tool said so."""


_COLLECTIVES = frozenset((
    "all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_into_tensor", "all_gather_object",
    "all_gather_base", "_all_gather_base", "allreduce", "allgather", "all_gather_coalesced", "reduce_scatter",
    "reduce_scatter_tensor", "_reduce_scatter_base", "broadcast", "broadcast_object_list", "barrier",
    "monitored_barrier", "all_to_all", "all_to_all_single", "alltoall", "reduce", "gather", "scatter",
    "gather_object", "scatter_object_list", "isend", "irecv", "send", "recv", "send_object_list", "recv_object_list",
    "batch_isend_irecv", "_coalescing_manager", "wait_for_all", "synchronize", "wait_stream", "_broadcast_coalesced",
    "_sync_params_and_buffers", "ncclGroupEnd", "ncclAllReduce", "ncclAllGather", "ncclBroadcast", "ncclSend",
    "ncclRecv", "ncclReduceScatter", "cuStreamSynchronize", "cudaStreamSynchronize", "cudaDeviceSynchronize",
    "cuCtxSynchronize", "cudaEventSynchronize", "hccl_wait",
))  # fmt: skip
_COMMUNICATION_FILES = (
    "distributed_c10d.py", "torch/distributed/nn/functional.py", "p2p_communication.py", "pipe/p2p.py", "deepspeed/comm/",
    "torch/cuda/streams.py", "torch/cuda/__init__.py", "mpi4py",
)  # fmt: skip
_TOPS = 4
_ORDINARY_MIN = 3


class Odd(Struct, frozen=True, kw_only=True):
    """The process that stands apart from its group."""

    name: str
    why: str
    frame: str
    peers: tuple[str, ...] = ()


def in_collective(stack: Stack) -> bool:
    """Its innermost frames wait for other ranks, or for a device that does."""
    for frame in stack.frames[:_TOPS]:
        function, _, file = frame.partition(" ")
        if any(name in file for name in _COMMUNICATION_FILES):
            return True
        if function in _COLLECTIVES and "multiprocessing" not in file and "queue" not in file:
            return True
    return False


def odd_one_out(stacks: Sequence[Stack]) -> list[Odd]:
    """Those that the others wait for: not in a collective, nor where many are. Empty where nobody stands out."""
    if len(stacks) < _ORDINARY_MIN:
        return []
    sizes = Counter(stack.frames for stack in stacks if stack.frames)
    many = max(_ORDINARY_MIN, len(stacks) // 4)
    waiting = [s for s in stacks if s.frames and (in_collective(s) or sizes[s.frames] >= many)]
    apart = [s for s in stacks if s.frames and not in_collective(s) and sizes[s.frames] < many]
    blind = [s for s in stacks if not s.frames and s.error]
    if not apart and not blind:
        alone = [s for s in waiting if sizes[s.frames] == 1]
        if len(alone) == 1 and all(count > 1 for frames, count in sizes.items() if frames != alone[0].frames):
            return [_odd(alone[0], "is in another collective than all others", stacks)]
    found = [_odd(s, "is in no collective while the others wait in one", waiting) for s in apart]
    found += [Odd(name=s.name, why=f"its stack could not be read: {s.error}", frame="") for s in blind]
    return found if waiting and len(found) * 3 <= len(stacks) else []


def _odd(stack: Stack, why: str, others: Sequence[Stack]) -> Odd:
    """With whoever shares most of its outer frames: the ranks of its own group."""
    depth = {other.name: _shared(stack.frames, other.frames) for other in others if other is not stack}
    best = max(depth.values(), default=0)
    peers = tuple(name for name, shared in depth.items() if shared == best > 0)
    return Odd(name=stack.name, why=why, frame=stack.frames[0], peers=peers)


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    count = 0
    for a, b in zip(reversed(one), reversed(other), strict=False):
        if a != b:
            break
        count += 1
    return count

"""Copies of this node's groups in the memory of peers. Owns who copies what where, and the threads that send.

Nothing is declared: a group that nodes of other failure domains have anyway (data parallelism) is seen in their parts, and
not sent. What only one domain has is sent to peers in others, from the node of the lowest rank that has it. What was sealed
and digested is what is sent, and the receiver digests it again: bytes that changed in between are refused there.

A copied step is of use only together with what the other ranks had at that step. So each node keeps its own slot of the
newest step of which all copies are in place, and says so to the others; see arenas.CopiedSteps.

Must not delay a snapshot: one thread per peer, at most one step waits for it (the newest), a slot is pinned only while it is
being sent, and given up when a snapshot needs it.
"""

import threading
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Struct

from keepstep.checkpoint.snapshot.arenas import At
from keepstep.checkpoint.snapshot.memory import Memory
from keepstep.checkpoint.snapshot.messages import Notice, Offer, Part, PeerHello, Safe
from keepstep.checkpoint.snapshot.peers import PeerLink
from keepstep.checkpoint.snapshot.policy import Replication

INLINE_BYTES = 256 * 1024
"""Groups up to this size are mirrored whole to every peer: what only one rank has is small."""


class Where(Struct, frozen=True, kw_only=True):
    """This node among its peers."""

    own: str
    peers: tuple[str, ...]
    replication: Replication

    def elsewhere(self) -> list[str]:
        """Peers in other failure domains, those after this node in the order of addresses first: so nodes that send at the
        same time begin with different peers."""
        ring = sorted({self.own, *self.peers})
        turn = ring.index(self.own)
        mine = self.replication.domain(self.own)
        return [peer for peer in ring[turn:] + ring[:turn] if self.replication.domain(peer) != mine]


class Plan(Struct, frozen=True, kw_only=True):
    """Peer -> digests that it shall get. ``short``: some group has fewer copies than it should, for want of domains."""

    sends: dict[str, list[str]]
    short: bool


def plan(
    where: Where, parts: Mapping[int, Part], origins: Mapping[int, str], known: Mapping[str, Sequence[str]]
) -> Plan:
    """What this node copies of a complete step.

    ``origins``: address of every rank of another node. ``known``: digest -> peers that were seen to have it.
    """
    domain = where.replication.domain
    holders: dict[str, set[str]] = {}
    first: dict[str, int] = {}
    for rank in sorted(parts):
        for digest in parts[rank].groups.values():
            holders.setdefault(digest, set()).add(domain(origins.get(rank, where.own)))
            first.setdefault(digest, rank)
    sends: dict[str, list[str]] = {}
    load = dict.fromkeys(where.elsewhere(), 0)
    short = False
    for rank in sorted(set(parts) - origins.keys()):
        for name, digest in parts[rank].groups.items():
            size = parts[rank].sizes_bytes[digest]
            lacking = where.replication.copies + 1 - len(holders[digest])
            if first[digest] != rank or lacking <= 0 or size <= INLINE_BYTES or not where.replication.covers(name):
                continue
            for _ in range(lacking):
                open_ = [peer for peer in load if domain(peer) not in holders[digest]]
                if not open_:
                    short = True
                    break
                peer = min(open_, key=lambda peer: (peer not in known.get(digest, ()), load[peer]))
                load[peer] += size
                holders[digest].add(domain(peer))
                sends.setdefault(peer, []).append(digest)
            first[digest] = -1
    return Plan(sends=sends, short=short)


class _Errand(Struct):
    """A step's copies: how many peers are still to get theirs, and what went wrong."""

    word: Safe
    left: int
    failed: bool = False


class Replicas:
    """``tell`` gives a word to every peer; ``freed`` is called when a slot that a snapshot needs was let go."""

    def __init__(
        self, memory: Memory, notice: Callable[[Notice], None], tell: Callable[[Safe], None], freed: Callable[[], None]
    ) -> None:
        self._memory, self._notice, self._tell, self._freed = memory, notice, tell, freed
        self._lock = threading.Lock()
        self._where: Where | None = None
        self._carriers: dict[str, _Carrier] = {}
        self._considered: At = (0, -1)
        self._known: dict[str, list[str]] = {}
        """Digest -> peers that said that they have it."""

    def begin(self, where: Where, hello: PeerHello) -> None:
        """Peers and policy of a new generation; what was being sent is given up."""
        with self._lock:
            for carrier in self._carriers.values():
                carrier.stop()
            self._where, self._known = where, {}
            peers = where.elsewhere() if where.replication.copies else []
            self._carriers = {peer: _Carrier(peer, hello, self) for peer in peers}
            self._memory.begin_copies(made=bool(peers))

    def wants(self, step: int, *, durable: bool) -> bool:
        """Whether a step will be copied, as far as it is not everywhere anyway."""
        where = self._where
        return bool(self._carriers) and where is not None and where.replication.wants(step, durable=durable)

    def consider(self) -> None:
        """A part has come in: copy the newest complete step that is to be copied."""
        with self._lock:
            # Looked at here: a generation that begins meanwhile has other peers, and other carriers.
            where = self._where
            if where is None or not self._carriers:
                return
            for at in self._memory.whole_steps():
                if at <= self._considered:
                    return
                parts, origins, durable = self._memory.parts_at(at)
                if where.replication.wants(at[1], durable=durable) and set(parts) - origins.keys():
                    self._considered = at
                    self._copy(where, at, parts, origins)
                    return

    def _copy(self, where: Where, at: At, parts: Mapping[int, Part], origins: Mapping[int, str]) -> None:
        named = {digest for part in parts.values() for digest in part.groups.values()}
        self._known = {digest: peers for digest, peers in self._known.items() if digest in named}
        chosen = plan(where, parts, origins, self._known)
        world_size = next(iter(parts.values())).world_size
        ranks = tuple(sorted(set(parts) - origins.keys()))
        word = Safe(generation=at[0], step=at[1], world_size=world_size, ranks=ranks, copied=bool(chosen.sends))
        if not chosen.sends:
            if not chosen.short:
                self._say(word)
            return
        self._memory.copying(at, world_size)
        errand = _Errand(word, len(chosen.sends), failed=chosen.short)
        sizes = {digest: size for part in parts.values() for digest, size in part.sizes_bytes.items()}
        for peer, digests in chosen.sends.items():
            offers = [
                Offer(generation=at[0], step=at[1], digest=digest, size_bytes=sizes[digest]) for digest in digests
            ]
            self._carriers[peer].put(errand, offers)

    def _say(self, word: Safe) -> None:
        self._memory.safe(word)
        self._tell(word)

    def finished(self, errand: _Errand, peer: str, held: Sequence[str], *, whole: bool) -> None:
        """A carrier is done with an errand."""
        with self._lock:
            for digest in held:
                self._known.setdefault(digest, []).append(peer)
            errand.left -= 1
            errand.failed |= not whole
            done = errand.left == 0 and not errand.failed
        if done:
            self._say(errand.word)
        self._freed()

    def damaged(self, offer: Offer, reason: str) -> None:
        """The receiver found other bytes than were digested: look at the own ones, and do not offer them if it was they."""
        wrong = self._memory.verify(offer.digest)
        where = "the bytes on this node are damaged" if wrong else "the bytes on this node are whole"
        notice = Notice(topic="replica", generation=offer.generation, step=offer.step, reason=f"{reason}; {where}")
        self._notice(notice)

    def stop(self) -> None:
        with self._lock:
            for carrier in self._carriers.values():
                carrier.stop()
            self._carriers = {}

    def send(self, link: PeerLink, offer: Offer, recall: Callable[[], None]) -> bool:
        """One blob to one peer; whether the peer has it now. Raises OSError."""
        with self._memory.located(offer.digest, recall) as found:
            if found is None:
                return False
            answer = link.offer(offer, found.data)
        if answer.verdict == "damaged":
            self.damaged(offer, answer.reason)
        return answer.verdict == "held"


class _Carrier:
    """Takes copies to one peer, on a thread of its own. One step waits at most: a newer one takes its place."""

    def __init__(self, peer: str, hello: PeerHello, replicas: Replicas) -> None:
        self._peer, self._hello, self._replicas = peer, hello, replicas
        self._waiting: tuple[_Errand, list[Offer]] | None = None
        self._ready = threading.Condition()
        self._stopped = False
        self._link: PeerLink | None = None
        threading.Thread(target=self._run, name=f"copies to {peer}", daemon=True).start()

    def put(self, errand: _Errand, offers: list[Offer]) -> None:
        with self._ready:
            self._waiting = (errand, offers)
            self._ready.notify()

    def stop(self) -> None:
        with self._ready:
            self._stopped = True
            self._ready.notify()
        self.recall()

    def recall(self) -> None:
        """Let go of what is being sent."""
        link = self._link
        if link is not None:
            link.cut()

    def _run(self) -> None:
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._stopped or self._waiting is not None)
                taken, self._waiting = self._waiting, None
            if self._stopped or taken is None:
                self._drop_link()
                return
            self._carry(*taken)

    def _carry(self, errand: _Errand, offers: list[Offer]) -> None:
        held = []
        try:
            if self._link is None:
                self._link = PeerLink(self._peer, self._hello)
            for offer in offers:
                if self._replicas.send(self._link, offer, self.recall):
                    held.append(offer.digest)
        except (OSError, msgspec.DecodeError):
            # Gone, slow, or cut off for a snapshot: the next step that is copied tries again.
            self._drop_link()
        self._replicas.finished(errand, self._peer, held, whole=len(held) == len(offers))

    def _drop_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

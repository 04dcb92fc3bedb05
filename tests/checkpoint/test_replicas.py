"""Copies in the memory of peers: what only a lost node had is found on another, bit for bit, or refused."""

import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from keepstep.checkpoint import flatten
from keepstep.checkpoint.snapshot.arenas import Arenas, CopiedSteps
from keepstep.checkpoint.snapshot.memory import Memory
from keepstep.checkpoint.snapshot.messages import (
    Begin,
    FrameBuffer,
    Notice,
    Offer,
    Part,
    PeerHello,
    Place,
    Safe,
    Seal,
    Taken,
    between_peers,
    frame,
    receive,
)
from keepstep.checkpoint.snapshot.peers import PeerLink, PeerServer
from keepstep.checkpoint.snapshot.policy import Replication, SnapshotPolicy
from keepstep.checkpoint.snapshot.replicas import INLINE_BYTES, Replicas, Where, plan
from keepstep.checkpoint.state.blob import digest_chunks, pack

from .states import complete

Start = Callable[..., Any]
Eventually = Callable[[Callable[[], Any], str], Any]
BIG = 2 * INLINE_BYTES


def sharded(step: int, rank: int, size: int = BIG) -> dict[str, Any]:
    """``model`` is equal on all ranks; ``shard`` is one rank's own, and too large to be mirrored."""
    shard = np.random.default_rng([step, rank]).standard_normal(size // 8)
    return {
        "model": flatten({"w": np.full(BIG // 8, float(step))}),
        "shard": flatten({"w": shard}),
        "rank": flatten({"step": step, "rank": rank}),
    }


def check(state: dict[str, Any], step: int, rank: int, size: int = BIG) -> None:
    expected = np.random.default_rng([step, rank]).standard_normal(size // 8)
    assert state["shard"]["w"].tobytes() == expected.tobytes()
    assert state["rank"] == {"step": step, "rank": rank} and set(state["model"]["w"]) == {float(step)}


def begin(nodes: list[Any], generation: int, world_size: int, **fields: Any) -> None:
    """Every node is a failure domain of its own."""
    addresses = [node.address for node in nodes]
    policy = SnapshotPolicy(
        replication=Replication(**{"domains": {a: a for a in addresses}, "every_steps": 1, **fields})
    )
    for node in nodes:
        node.ask(Begin, generation=generation, world_size=world_size, peers=tuple(addresses), policy=policy)


def held_by(nodes: list[Any], step: int) -> dict[str, int]:
    """Digest -> on how many nodes it is."""
    held = [set(offer.held) for node in nodes for offer in node.inventory().ram if offer.step == step]
    return {digest: sum(digest in one for one in held) for digest in set().union(*held)}


# ---- with servers


def test_a_lost_nodes_own_shard_is_restored_from_its_copy(start_node: Start, eventually: Eventually) -> None:
    nodes = [start_node(disk=False) for _ in range(3)]
    begin(nodes, 1, 3)
    clients = [node.client(rank, 3) for rank, node in enumerate(nodes)]
    for step in (1, 2, 3):
        for rank, client in enumerate(clients):
            assert client.snapshot(step, sharded(step, rank))
        eventually(lambda step=step: sorted(held_by(nodes, step).values())[0] > 1, "two nodes for every group")
    for client in clients:
        client.close()
    nodes[1].kill()
    left = [nodes[0], nodes[2]]
    assert complete(left[0], left[1:])[0] == 3
    for node in left:
        node.hold(3)
    begin(left, 2, 3)
    spare = start_node(disk=False)
    spare.begin(2, 3, [node.address for node in left])
    for rank, node in enumerate((left[0], spare, left[1])):
        client = node.client(rank, 3, 2)
        check(client.restore(3, "ram", "", 3, [peer.address for peer in left], 1), 3, rank)


def test_NVRx_349_bytes_that_changed_at_the_sender_are_refused_and_not_offered(
    start_node: Start, eventually: Eventually
) -> None:
    nodes = [start_node(disk=False) for _ in range(2)]
    begin(nodes, 1, 2)
    clients = [node.client(rank, 2) for rank, node in enumerate(nodes)]
    assert clients[0].snapshot(1, sharded(1, 0))
    nodes[0].inventory()
    # Rank 0's step is digested, and not copied yet: it is not whole without rank 1.
    for mapped in clients[0]._slots.values():
        view = memoryview(mapped.map)
        at = bytes(view).index(np.random.default_rng([1, 0]).standard_normal(8).tobytes())
        view[at] ^= 1
    assert clients[1].snapshot(1, sharded(1, 1))

    def notice(node: Any) -> str:
        node.inventory()
        return next((event.reason for event in node.events if isinstance(event, Notice)), "")

    assert "sent damaged bytes" in eventually(lambda: notice(nodes[1]), "the receiver's word")
    assert "the bytes on this node are damaged" in eventually(lambda: notice(nodes[0]), "the sender's word")
    assert complete(nodes[0], nodes[1:]) == []
    for rank in (0, 1):
        assert clients[rank].snapshot(2, sharded(2, rank))
    eventually(lambda: min(held_by(nodes, 2).values()) == 2, "the next step's copies")


# ---- without: two nodes in one process, mirrored by hand


HELLO = PeerHello(job="job", secret="")


class Side:
    """A node's memory, its peer server and its replicas."""

    def __init__(self, limit_bytes: int = 1 << 30) -> None:
        self.memory = Memory(limit_bytes)
        self.notices: list[Notice] = []
        self.words: list[Safe] = []
        self.freed = threading.Event()
        self.server = PeerServer("127.0.0.1", HELLO, self.memory, lambda: None, self.notices.append)
        self.replicas = Replicas(self.memory, self.notices.append, self.words.append, self.freed.set)
        self.address = self.server.address

    def begin(self, peers: list[str], **fields: Any) -> None:
        self.memory.begin(1)
        domains = {address: address for address in (self.address, *peers)}
        replication = Replication(**{"domains": domains, "every_steps": 1, **fields})
        where = Where(own=self.address, peers=tuple(peers), replication=replication)
        self.replicas.begin(where, PeerHello(job="job", secret="", address=self.address))

    def seal(self, step: int, rank: int, trees: dict[str, Any], world_size: int = 1) -> Part:
        blobs = {name: pack(flat) for name, flat in trees.items()}
        slot = self.memory.grant(rank, sum(map(len, blobs.values())) + 4096 * len(blobs))
        assert slot is not None
        places, offset = [], 0
        for name, blob in blobs.items():
            os.pwrite(slot.fd, blob, offset)
            places.append(Place(name, offset, len(blob)))
            offset += -(-len(blob) // 4096) * 4096
        seal = Seal(slot=slot.number, step=step, groups=tuple(places))
        sealed = self.memory.seal(rank, slot, seal, generation=1, world_size=world_size)
        part = self.memory.enter(sealed, {place.name: digest_chunks(slot.view(place)) for place in places})
        self.memory.release(slot)
        return part

    def copies(self) -> set[str]:
        return set(self.memory._arenas.copies)

    def close(self) -> None:
        self.replicas.stop()
        self.server.close()


@pytest.fixture
def sides() -> Any:
    made = [Side(), Side()]
    for one, other in (made, made[::-1]):
        one.begin([other.address])
    yield made
    for side in made:
        side.close()


def test_data_parallel_state_is_not_sent_and_takes_no_slot(sides: list[Side]) -> None:
    one, other = sides
    for step in range(1, 9):
        parts = [side.seal(step, rank, {"model": sharded(step, 0)["model"]}, 2) for rank, side in enumerate(sides)]
        one.memory.mirrored(parts[1], other.address)
        other.memory.mirrored(parts[0], one.address)
        for side in sides:
            side.replicas.consider()
    assert [word.copied for word in one.words] == [False] * 8
    assert not one.copies() | other.copies()
    assert len(one.memory._ranks[0].slots) == 5


def test_what_is_copied_stays_whole_until_newer_copies_are(sides: list[Side], eventually: Eventually) -> None:
    """Rank 0 goes on while its copies of later steps are not wanted: the step that is safe keeps its slot and its copy."""
    one, other = sides
    one.begin([other.address], every_steps=10)
    kept = one.seal(10, 0, sharded(10, 0))
    one.replicas.consider()
    eventually(lambda: one.words, "the copies of step 10")
    for step in range(11, 20):
        one.seal(step, 0, sharded(step, 0))
        one.replicas.consider()
    assert one.words == [Safe(generation=1, step=10, world_size=1, ranks=(0,), copied=True)]
    assert set(kept.groups.values()) <= {digest for offer in one.memory.stock() for digest in offer.held}
    assert other.copies() == {kept.groups["shard"], kept.groups["model"]}
    one.seal(20, 0, sharded(20, 0))
    one.replicas.consider()
    eventually(lambda: len(one.words) == 2, "the copies of step 20")
    for step in range(21, 27):
        one.seal(step, 0, sharded(step, 0))
    assert 10 not in {offer.step for offer in one.memory.stock()} or kept.groups["shard"] not in one.memory._digests()


def test_a_sender_that_dies_midway_leaves_nothing(sides: list[Side], eventually: Eventually) -> None:
    one, _ = sides
    blob = pack(sharded(1, 0)["shard"])
    offer = Offer(generation=1, step=1, digest=digest_chunks(blob).root, size_bytes=len(blob))
    host, _, port = one.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=120) as peer:
        peer.sendall(frame(HELLO) + frame(offer))
        assert receive(peer, FrameBuffer(between_peers)) == Taken(verdict="send")
        peer.sendall(memoryview(blob)[: len(blob) // 2])
        assert one.memory._arenas._filling
    eventually(lambda: len(one.memory._arenas._free) == 1, "the end of the transfer")
    assert not one.copies() and not one.memory._arenas._filling


def test_an_offer_is_answered_by_what_is_there(sides: list[Side]) -> None:
    one, _ = sides
    part = one.seal(1, 0, sharded(1, 0))
    blob = pack(sharded(1, 1)["shard"])
    digest = digest_chunks(blob).root
    link = PeerLink(one.address, HELLO)

    def offered(digest: str, data: Any, generation: int = 1, step: int = 1) -> Taken:
        offer = Offer(generation=generation, step=step, digest=digest, size_bytes=len(data))
        return link.offer(offer, memoryview(data))

    assert offered(part.groups["shard"], b"").verdict == "held"
    assert offered(digest, bytes(len(blob))).verdict == "damaged"
    assert offered(digest, blob, generation=0).verdict == "refused"
    assert offered(digest, blob) == Taken(verdict="held")
    assert offered(digest, b"", step=2) == Taken(verdict="held"), "not sent twice"
    one.memory._arenas.limit_bytes = 0
    assert offered("xxh3-0", bytes(4 * len(blob))).reason.startswith("no room for")
    assert one.copies() == {digest}
    fetched = link.fetch(digest, len(blob))
    assert fetched is not None and bytes(fetched.view) == bytes(blob)
    fetched.close()
    link.close()


def test_a_slot_that_a_snapshot_needs_is_given_up_by_its_copy(sides: list[Side]) -> None:
    """The peer takes nothing: the transfer would last for ever."""
    one, _ = sides
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        deaf.settimeout(120)
        name = deaf.getsockname()
        one.begin([f"{name[0]}:{name[1]}"])
        one.memory.limit(SnapshotPolicy(memory_bytes=80 << 20))
        # Made before: a peer that takes nothing is given up after ten seconds.
        later = sharded(2, 0, 32 << 20)
        one.seal(1, 0, sharded(1, 0, 32 << 20))
        one.replicas.consider()
        connection, _ = deaf.accept()
        with connection:
            connection.settimeout(120)
            buffer = FrameBuffer(between_peers)
            receive(connection, buffer)
            while receive(connection, buffer).size_bytes < 32 << 20:
                connection.sendall(frame(Taken(verdict="held")))
            connection.sendall(frame(Taken(verdict="send")))
            connection.recv(1)
            [slot] = [slot for slot in one.memory._ranks[0].slots if slot.readers]
            one.seal(2, 0, later)
            one.freed.clear()
            assert one.memory.grant(0, 32 << 20) is None
            assert one.freed.wait(120) and not slot.readers
            assert one.memory.grant(0, 32 << 20) is slot


def test_a_generation_that_begins_while_a_step_is_looked_at_has_its_own_peers(sides: list[Side]) -> None:
    one, _ = sides
    one.seal(1, 0, sharded(1, 0))
    with ThreadPoolExecutor(1) as pool:
        with one.replicas._lock:
            looks = pool.submit(one.replicas.consider)
            with pytest.raises(TimeoutError):
                looks.result(0.2)
            one.replicas._where, carriers, one.replicas._carriers = None, one.replicas._carriers, {}
        looks.result(120)
        one.replicas._carriers = carriers


def test_a_link_that_cannot_be_made_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        name = listening.getsockname()
        hello: Any = object()
        with pytest.raises(TypeError) as kept:
            PeerLink(f"{name[0]}:{name[1]}", hello)
        with listening.accept()[0] as connection:
            connection.settimeout(60)
            assert connection.recv(1) == b"" and kept.value


def test_copies_of_an_older_generation_go_once_a_newer_one_makes_none(
    sides: list[Side], eventually: Eventually
) -> None:
    one, other = sides
    one.seal(10, 0, sharded(10, 0))
    one.replicas.consider()
    eventually(lambda: one.words, "the copies of step 10")
    assert other.copies()
    other.memory.safe(one.words[0])
    other.memory.begin(2)
    other.begin([])
    for step in (11, 12):
        assert other.copies()
        other.memory.mirrored(Part(generation=2, step=step, rank=0, world_size=1, groups={}, sizes_bytes={}))
    assert not other.copies()


# ---- the rules


def parts_of(*ranks: str) -> dict[int, Part]:
    """``ranks[r]``: the digests of rank ``r``, as letters. Capital letters are large."""
    return {
        rank: Part(
            generation=1, step=1, rank=rank, world_size=len(ranks), groups={f"g{n}": d for n, d in enumerate(digests)},
            sizes_bytes={d: 1000 if d.islower() else BIG for d in digests},
        )
        for rank, digests in enumerate(ranks)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "nodes", "copies", "sends"),
    [
        (["Ax", "Bx"], "ab", 1, {"b:1": ["A"]}),
        (["Ax", "Ax"], "ab", 1, {}),
        (["Ax", "Bx", "Ax"], "aab", 1, {"b:1": ["B"]}),
        (["A", "A", "B"], "aab", 1, {"b:1": ["A"]}),
        (["A", "B", "C"], "abc", 2, {"b:1": ["A"], "c:1": ["A"]}),
        (["AD", "B", "C"], "abc", 1, {"b:1": ["A"], "c:1": ["D"]}),
        (["B", "AC"], "ba", 1, {"b:1": ["A", "C"]}),
        (["A", "A"], "ba", 2, {}),
        (["a", "b"], "ab", 1, {}),
        (["A", "B"], "ab", 0, {}),
    ],
    ids=[
        "own group", "equal groups", "one of two", "one sender", "two copies", "shared out", "rank 1 is here",
        "another sends", "small groups are mirrored", "no copies",
    ],
)  # fmt: skip
def test_what_goes_where(ranks: list[str], nodes: str, copies: int, sends: dict[str, list[str]]) -> None:
    where = Where(own="a:1", peers=tuple({f"{n}:1" for n in nodes} - {"a:1"}), replication=Replication(copies=copies))
    origins = {rank: f"{node}:1" for rank, node in enumerate(nodes) if node != "a"}
    assert plan(where, parts_of(*ranks), origins, {}).sends == sends


def test_a_peer_that_has_it_is_asked_first_and_one_domain_gets_one_copy() -> None:
    parts = parts_of("A", "B", "C")
    where = Where(own="a:1", peers=("b:1", "b:2", "c:1"), replication=Replication(copies=2))
    chosen = plan(where, parts, {1: "b:1", 2: "c:1"}, {"A": ["b:2"]})
    assert chosen.sends == {"b:2": ["A"], "c:1": ["A"]} and not chosen.short
    assert plan(
        Where(own="a:1", peers=("a:2", "a:3"), replication=Replication()), parts, {1: "a:2", 2: "a:3"}, {}
    ).short


def test_only_groups_of_the_policy_are_copied() -> None:
    where = Where(own="a:1", peers=("b:1",), replication=Replication(groups=("g1",)))
    assert plan(where, parts_of("AB", "C"), {1: "b:1"}, {}).sends == {"b:1": ["B"]}


def test_one_machine_pays_nothing() -> None:
    where = Where(own="127.0.0.1:1", peers=("127.0.0.1:2", "127.0.0.1:3"), replication=Replication())
    assert where.elsewhere() == []


def test_which_steps_are_copied() -> None:
    default = Replication()
    assert [step for step in range(25) if default.wants(step, durable=step == 7)] == [0, 7, 10, 20]
    assert not Replication(copies=0).wants(10, durable=True)
    assert [step for step in range(25) if Replication(every_steps=0).wants(step, durable=step == 7)] == [7]


def test_a_step_is_safe_once_every_rank_has_said_so() -> None:
    steps = CopiedSteps()
    steps.begin((1, 10), 2)
    assert steps.wanted() == {(1, 10)} and steps.safe() == []
    for rank in (1, 0):
        steps.done(Safe(generation=1, step=10, world_size=2, ranks=(rank,), copied=rank == 0))
    steps.begin((1, 20), 2)
    assert steps.safe() == [(1, 10)] and steps.wanted() == {(1, 10), (1, 20)}
    assert steps.must_keep((1, 10)) and steps.should_keep((1, 20)) and not steps.should_keep((1, 9))
    for step in range(30, 100, 10):
        steps.begin((1, step), 2)
    assert steps.safe() == [(1, 10)] and len(steps.known()) == 5, "what is never finished is forgotten"
    for at in ((1, 100), (2, 5)):
        steps.done(Safe(generation=at[0], step=at[1], world_size=2, ranks=(0, 1), copied=True))
    assert steps.safe() == [(2, 5), (1, 100)] and not steps.should_keep((1, 10))


def test_copies_go_when_nothing_needs_them_any_more() -> None:
    steps = CopiedSteps()
    steps.done(Safe(generation=1, step=10, world_size=1, ranks=(0,), copied=True))
    assert steps.safe() == [(1, 10)]
    steps.done(Safe(generation=1, step=20, world_size=1, ranks=(0,), copied=False))
    assert not steps.known() and not steps.should_keep((1, 10)) and steps.should_keep((1, 30))


def test_arenas_are_used_again_and_stay_within_their_limit() -> None:
    numbers = iter(range(100))
    arenas = Arenas(lambda: next(numbers), 3 * 4096)

    def fill(digest: str, step: int, keeps: Any = lambda at: False) -> bool:
        arena = arenas.take(4000, keeps, lambda size: True)
        if arena is not None:
            arenas.keep(digest, arena, 4000, (1, step))
        return arena is not None

    assert all(fill(f"d{step}", step) for step in (1, 2, 3))
    assert fill("d4", 4) and arenas.copies.keys() == {"d2", "d3", "d4"}, "the oldest step went"
    assert not fill("d5", 5, lambda at: True), "what must stay stays"
    arenas.prune(lambda at: at[1] == 4)
    assert arenas.copies.keys() == {"d4"} and arenas.used_bytes() == 3 * 4096
    used = next(numbers)
    assert fill("d6", 6) and next(numbers) == used + 1, "no new memory"
    arenas.shed(3 * 4096, None)
    assert arenas.copies.keys() == {"d4", "d6"} and arenas.used_bytes() == 2 * 4096
    arenas.shed(4096, lambda at: at == (1, 4))
    assert arenas.copies.keys() == {"d4"} and arenas.used_bytes() == 4096
    arenas.close()

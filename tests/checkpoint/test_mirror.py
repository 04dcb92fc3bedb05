"""State that outlives its node: parts mirrored to peers, bytes fetched from them and checked on arrival."""

import socket
from collections.abc import Callable
from typing import Any

import pytest

from keepstep.checkpoint import StateInvalid, flatten
from keepstep.checkpoint.snapshot.messages import Part, PeerHello, frame
from keepstep.checkpoint.state.blob import digest_chunks, pack

from .states import check, complete, groups

Start = Callable[..., Any]
Eventually = Callable[[Callable[[], Any], str], Any]


def test_D14_any_node_lost_leaves_every_rank_restorable(start_node: Start, eventually: Eventually) -> None:
    nodes = [start_node() for _ in range(3)]
    peers = [node.address for node in nodes]
    for node in nodes:
        node.begin(1, 6, peers)
    clients = [nodes[rank // 2].client(rank, 6) for rank in range(6)]
    for step in range(1, 4):
        for rank, client in enumerate(clients):
            client.snapshot(step, groups(step, rank, size=100_000))
    for node in nodes:
        eventually(lambda node=node: any(len(o.parts) == 6 for o in node.inventory().ram if o.step == 3), "the mirror")
    for client in clients:
        client.close()
    nodes[0].kill()
    assert complete(nodes[1], [nodes[2]])[0] == 3
    for node in nodes[1:]:
        node.hold(3)
        node.begin(2, 6, peers[1:])
    again = [nodes[1 + rank // 3].client(rank, 6, 2) for rank in range(6)]
    for rank, client in enumerate(again):
        check(client.restore(3, "ram", "", 6, peers[1:], 1), 3, rank, size=100_000)
        client.close()


def test_a_spare_node_fetches_everything_from_its_peers(start_node: Start) -> None:
    holder, spare = start_node(), start_node()
    holder.begin(1, 1)
    client = holder.client(0, 1)
    client.snapshot(1, groups(1, size=200_000))
    # Once it is digested: only then can a peer hear what it is made of.
    holder.inventory()
    holder.hold(1)
    for node in (holder, spare):
        node.begin(2, 2, [holder.address, spare.address])
    for rank in range(2):
        moved = spare.client(rank, 2, 2)
        check(moved.restore(1, "ram", "", 1, [holder.address], 1), 1, size=200_000)
        moved.close()
    client.close()


def test_damaged_bytes_of_a_peer_are_refused_by_the_receiver(start_node: Start) -> None:
    holder, spare = start_node(), start_node()
    holder.begin(1, 1)
    client = holder.client(0, 1)
    client.snapshot(1, groups(1, size=200_000))
    holder.inventory()
    for mapped in client._slots.values():
        mapped.map[4096] ^= 1
    spare.begin(2, 1)
    moved = spare.client(0, 1, 2)
    with pytest.raises(StateInvalid, match="sent damaged bytes"):
        moved.restore(1, "ram", "", 1, [holder.address], 1)
    moved.close()
    client.close()


def test_a_stale_or_foreign_mirror_is_refused(start_node: Start, eventually: Eventually) -> None:
    node = start_node()
    node.begin(3, 2)
    host, _, port = node.address.rpartition(":")

    def mirror(job: str, generation: int, step: int) -> None:
        blob = bytes(pack(flatten({"step": step})))
        part = Part(
            generation=generation, step=step, rank=1, world_size=2, groups={"g": digest_chunks(blob).root},
            sizes_bytes={digest_chunks(blob).root: len(blob)}, inline={digest_chunks(blob).root: blob},
        )  # fmt: skip
        with socket.create_connection((host, int(port)), timeout=120) as peer:
            peer.sendall(frame(PeerHello(job=job, secret="")) + frame(part))
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(4096):
                pass

    mirror("job", 2, 10)
    mirror("other", 3, 11)
    mirror("job", 3, 12)
    eventually(lambda: [offer.step for offer in node.inventory().ram] == [12], "the mirror of this generation only")

"""The memory tier with real server and worker processes: what was sealed is there, whatever dies."""

import os
import resource
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from keepstep.checkpoint import SaveFailed, SnapshotRefused, StateInvalid, flatten
from keepstep.checkpoint.messages import Committed, Ok, Part, PeerHello, SaveError, Wrong, frame

Start = Callable[..., Any]
Eventually = Callable[[Callable[[], Any], str], Any]


def groups(step: int, rank: int = 0, size: int = 1000) -> dict[str, Any]:
    """``model`` is equal on all ranks, ``rank`` is not."""
    generator = torch.Generator().manual_seed(step)
    model = {f"w{n}": torch.randn(size, generator=generator) for n in range(4)}
    own = {"step": step, "rank": rank, "noise": np.random.default_rng([step, rank]).standard_normal(50)}
    return {"model": flatten(model), "rank": flatten(own)}


def check(state: dict[str, Any], step: int, rank: int = 0, size: int = 1000) -> None:
    """``state`` is bit-exactly what ``groups`` made."""
    generator = torch.Generator().manual_seed(step)
    for n in range(4):
        assert torch.equal(state["model"][f"w{n}"], torch.randn(size, generator=generator))
    assert (state["rank"]["step"], state["rank"]["rank"]) == (step, rank)
    assert state["rank"]["noise"].tobytes() == np.random.default_rng([step, rank]).standard_normal(50).tobytes()


def complete(node: Any, others: list[Any] | None = None) -> list[int]:
    """Steps of which every rank's bytes are somewhere, newest first: what a server may choose from."""
    stocks = [node.inventory(), *(other.inventory() for other in others or [])]
    steps = {}
    for offer in (offer for stock in stocks for offer in stock.ram):
        entry = steps.setdefault((offer.generation, offer.step), (offer.world_size, {}, set()))
        entry[1].update(offer.parts)
        entry[2].update(offer.held)
    good = [
        step
        for (_, step), (world, parts, held) in steps.items()
        if len(parts) == world and held.issuperset(digest for part in parts.values() for digest in part)
    ]
    return sorted(good, reverse=True)


def test_what_was_sealed_comes_back(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 1)
    client = node.client(0, 1)
    for step in (1, 2, 3):
        assert client.snapshot(step, groups(step))
    for step in (3, 2):
        check(client.restore(step, "ram", "", 1), step)
    assert complete(node)[:3] == [3, 2, 1]
    client.close()


def test_D12_a_restarted_rank_reads_what_the_killed_one_sealed(start_node: Start, start_program: Start) -> None:
    """Also the crash matrix of a snapshot: a worker killed at one C call after another leaves no slot that counts."""
    node = start_node()
    node.begin(1, 1)
    program = start_program("snapshot_crash.py", node.path)
    deaths, outlived = 0, 0
    while (said := program.stdout.readline().strip()) != "done":
        before = int(said)
        newest = complete(node)[0]
        assert newest in (before, before + 1)
        client = node.client(0, 1)
        state = client.restore(newest, "ram", "", 1)
        assert state["rank"] == {"step": newest}
        assert [set(state["model"][f"w{n}"].tolist()) for n in range(8)] == [{newest + n} for n in range(8)]
        client.close()
        deaths, outlived = deaths + 1, outlived + (newest == before + 1)
        program.stdin.write("\n")
        program.stdin.flush()
    assert program.wait(30) == 0
    assert deaths > 10 and outlived < deaths


def test_D17_changing_the_state_right_after_the_call_changes_nothing(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 1)
    client = node.client(0, 1)
    tensor, array = torch.ones(100_000), np.ones(100_000)
    for step in range(1, 6):
        client.snapshot(step, {"model": flatten({"t": tensor, "a": array})}, durable=step == 5)
        tensor.add_(1)
        array += 1
    state = client.restore(5, "ram", "", 1)["model"]
    assert set(state["t"].tolist()) == {5.0} and set(state["a"].tolist()) == {5.0}
    assert client.wait_durable(5, 30)
    state = client.restore(5, "disk", node.event(Committed, 5).key, 1)["model"]
    assert set(state["t"].tolist()) == {5.0} and set(state["a"].tolist()) == {5.0}
    client.close()


def test_D13_a_step_that_one_rank_has_not_sealed_is_not_complete(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 2)
    clients = [node.client(rank, 2) for rank in range(2)]
    for step in (1, 2):
        for rank, client in enumerate(clients):
            client.snapshot(step, groups(step, rank))
    clients[0].snapshot(3, groups(3, 0))
    assert complete(node) == [2, 1]
    assert [offer.parts.keys() for offer in node.inventory().ram if offer.step == 3] == [{0}]
    for rank, client in enumerate(clients):
        check(client.restore(2, "ram", "", 2), 2, rank)
        client.close()


def test_a_rank_that_runs_ahead_keeps_the_step_that_all_have(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 2)
    ahead, behind = node.client(0, 2), node.client(1, 2)
    for step in (1, 2):
        ahead.snapshot(step, groups(step, 0))
        behind.snapshot(step, groups(step, 1))
    assert complete(node) == [2, 1]
    for step in range(3, 20):
        ahead.snapshot(step, groups(step, 0))
    assert complete(node) == [2]
    check(ahead.restore(2, "ram", "", 2), 2, 0)
    ahead.close()
    behind.close()


def test_a_held_step_outlives_the_next_generations_first_steps(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 2)
    first = [node.client(rank, 2, 1) for rank in range(2)]
    for step in (1, 2, 3):
        for rank, client in enumerate(first):
            client.snapshot(step, groups(step, rank))
    assert 2 in complete(node)
    node.hold(2)
    node.begin(2, 2)
    second = [node.client(rank, 2, 2) for rank in range(2)]
    for rank, client in enumerate(second):
        check(client.restore(2, "ram", "", 2), 2, rank)
    for step in range(3, 12):
        second[0].snapshot(step, groups(step, 0))
    assert 2 in complete(node), "rank 1 has sealed nothing yet: the held step is all there is"
    for step in range(3, 12):
        second[1].snapshot(step, groups(step, 1))
    assert 2 not in complete(node) and 11 in complete(node)
    for client in (*first, *second):
        client.close()


def test_two_generations_of_one_step_are_never_mixed(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 2)
    old = node.client(0, 2, 1)
    old.snapshot(5, groups(500, 0))
    node.begin(2, 2)
    new = node.client(1, 2, 2)
    new.snapshot(5, groups(5, 1))
    assert complete(node) == []
    new.close()
    old.close()


def test_older_generations_workers_are_refused(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 1)
    old = node.client(0, 1, 1)
    assert old.snapshot(1, groups(1))
    node.begin(2, 1)
    with pytest.raises(ConnectionError):
        for step in range(2, 100):
            old.snapshot(step, groups(step))
    assert complete(node) == [1], "something of the old generation was taken after the new one had begun"
    with pytest.raises(SnapshotRefused, match="generation 1 is over"):
        node.client(0, 1, 1)
    old.close()


def test_a_worker_of_another_job_is_refused(start_node: Start) -> None:
    node = start_node()
    node.job = "another"
    with pytest.raises(SnapshotRefused, match="belongs to job job"):
        node.client(0, 1)


def test_no_free_slot_skips_the_snapshot_and_says_so(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 1)
    client = node.client(0, 1)
    client.snapshot(1, groups(1))
    node.process.send_signal(signal.SIGSTOP)
    client._patience_s = 0.05
    taken = [client.snapshot(step, groups(step)) for step in range(2, 5)]
    node.process.send_signal(signal.SIGCONT)
    assert not taken[-1] and client.skipped == taken.count(False)
    client._patience_s = 10.0
    assert client.snapshot(9, groups(9))
    assert complete(node)[0] == 9
    client.close()


def test_the_arena_grows_with_the_state(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 1)
    client = node.client(0, 1)
    for step, size in enumerate((10, 10, 300_000, 300_000, 20, 600_000, 600_000, 600_000), start=1):
        assert client.snapshot(step, groups(step, size=size))
    check(client.restore(8, "ram", "", 1), 8, size=600_000)
    check(client.restore(7, "ram", "", 1), 7, size=600_000)
    client.close()


def test_D6_a_bit_flip_in_memory_is_found_and_never_offered_again(start_node: Start) -> None:
    node = start_node(disk=False)
    node.begin(1, 1)
    client = node.client(0, 1)
    client.snapshot(1, groups(1))
    [offer] = node.inventory().ram
    assert isinstance(node.verify_ram(1, offer.held), Ok)
    for mapped in client._slots.values():
        mapped.map[100] ^= 1
    with pytest.raises(StateInvalid, match="damaged"):
        client.restore(1, "ram", "", 1)
    answer = node.verify_ram(1, offer.held)
    assert isinstance(answer, Wrong) and "not in the memory" in answer.reason
    assert complete(node) == []
    client.close()


def test_restore_says_what_is_missing(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 1)
    client = node.client(0, 1)
    with pytest.raises(StateInvalid, match="no node knows what rank 0 consisted of at step 7"):
        client.restore(7, "ram", "", 1, ["127.0.0.1:1"])
    with pytest.raises(StateInvalid, match="20 digits"):
        client.restore(7, "disk", "../../etc/passwd", 1)
    with pytest.raises(StateInvalid, match="no commit record 3"):
        client.restore(7, "disk", f"{3:020d}", 1)
    client.close()


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
        blob = b"bytes"
        from keepstep.checkpoint.blob import digest_of

        part = Part(
            generation=generation, step=step, rank=1, world_size=2, groups={"g": digest_of(blob)},
            sizes_bytes={digest_of(blob): len(blob)}, inline={digest_of(blob): blob},
        )  # fmt: skip
        with socket.create_connection((host, int(port)), timeout=10) as peer:
            peer.sendall(frame(PeerHello(job=job, secret="")) + frame(part))
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(4096):
                pass

    mirror("job", 2, 10)
    mirror("other", 3, 11)
    mirror("job", 3, 12)
    eventually(lambda: [offer.step for offer in node.inventory().ram] == [12], "the mirror of this generation only")


def test_a_durable_snapshot_is_committed_and_restored_by_a_fresh_server(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 2)
    clients = [node.client(rank, 2) for rank in range(2)]
    for rank, client in enumerate(clients):
        client.snapshot(5, groups(5, rank), durable=True)
    assert all(client.wait_durable(5, 30) for client in clients)
    committed = node.event(Committed, 5)
    assert (committed.generation, committed.world_size) == (1, 2) and committed.size_bytes > 16_000
    node.quit()
    fresh = start_node()
    [offer] = fresh.list_disk().disk
    assert (offer.step, offer.generation, offer.world_size, offer.key) == (5, 1, 2, committed.key)
    assert isinstance(fresh.verify_disk(offer.key), Ok)
    fresh.begin(2, 3)
    for rank in range(3):
        client = fresh.client(rank, 3, 2)
        check(client.restore(5, "disk", offer.key, 2), 5, rank % 2)
        client.close()


def test_two_nodes_commit_one_record(start_node: Start, tmp_path: Path) -> None:
    nodes = [start_node(), start_node()]
    for node in nodes:
        node.begin(1, 4, [other.address for other in nodes])
    clients = [nodes[rank // 2].client(rank, 4) for rank in range(4)]
    for step in (1, 2, 3):
        for rank, client in enumerate(clients):
            client.snapshot(step, groups(step, rank), durable=True)
        assert all(client.wait_durable(step, 30) for client in clients)
    assert [offer.step for offer in nodes[0].list_disk().disk] == [3, 2, 1]
    assert {node.event(Committed, 2).key for node in nodes} == {nodes[0].event(Committed, 2).key}
    for client in clients:
        client.close()


def test_D22_memory_and_disk_are_both_offered_and_the_newest_step_is_seen(start_node: Start) -> None:
    old, new = start_node(), start_node()
    for node in (old, new):
        node.begin(1, 1)
    behind, ahead = old.client(0, 1), new.client(0, 1)
    behind.snapshot(100, groups(100))
    ahead.snapshot(200, groups(200), durable=True)
    assert ahead.wait_durable(200, 30)
    stock = old.inventory()
    newest = max([*stock.ram, *stock.disk], key=lambda offer: offer.step)
    assert (newest.step, newest in stock.disk) == (200, True)
    check(behind.restore(newest.step, "disk", newest.key, newest.world_size), 200)
    behind.close()
    ahead.close()


def test_disk_full_is_an_event_and_the_next_save_works(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 1)
    client = node.client(0, 1)
    big = 200_000
    for step in range(1, 7):
        client.snapshot(step, groups(step, size=big), durable=step == 1)
    assert client.wait_durable(1, 30)
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    client.snapshot(7, groups(7, size=big), durable=True)
    with pytest.raises(SaveFailed, match="File too large"):
        client.wait_durable(7, 30)
    assert "File too large" in node.event(SaveError, 7).reason
    assert [offer.step for offer in node.list_disk().disk] == [1]
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    client.snapshot(8, groups(8, size=big), durable=True)
    assert client.wait_durable(8, 30)
    assert [offer.step for offer in node.list_disk().disk] == [8, 1]
    client.close()


def test_a_failed_step_can_be_tried_again(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 1)
    client = node.client(0, 1)
    for step in range(1, 7):
        client.snapshot(step, groups(step, size=200_000))
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    assert client.snapshot(7, groups(7, size=200_000), durable=True)
    with pytest.raises(SaveFailed):
        client.wait_durable(7, 30)
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert client.snapshot(7, groups(7, size=200_000), durable=True)
    assert client.wait_durable(7, 30)


def test_one_ranks_failed_part_is_tried_again_beside_the_others(start_node: Start) -> None:
    nodes = [start_node(), start_node()]
    for node in nodes:
        node.begin(1, 2, [other.address for other in nodes])
    clients = [node.client(rank, 2) for rank, node in enumerate(nodes)]
    for rank, client in enumerate(clients):
        for step in range(1, 7):
            client.snapshot(step, groups(step, rank, size=200_000))
    resource.prlimit(nodes[0].process.pid, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    clients[0].snapshot(7, groups(7, 0, size=200_000), durable=True)
    with pytest.raises(SaveFailed):
        clients[0].wait_durable(7, 30)
    clients[1].snapshot(7, groups(7, 1, size=200_000), durable=True)
    resource.prlimit(nodes[0].process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    clients[0].snapshot(7, groups(7, 0, size=200_000), durable=True)
    assert clients[0].wait_durable(7, 30) and clients[1].wait_durable(7, 30)


def test_a_step_saved_twice_is_one_commit_unless_it_changed(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 1)
    client = node.client(0, 1)
    for _ in range(2):
        client.snapshot(1, groups(1), durable=True)
        assert client.wait_durable(1, 30)
    assert len(node.list_disk().disk) == 1
    client.snapshot(1, groups(2), durable=True)
    assert client.wait_durable(1, 30)
    newest = node.list_disk().disk[0]
    assert len(node.list_disk().disk) == 2
    check(client.restore(1, "disk", newest.key, 1), 2)


def test_no_memory_for_a_slot_skips_until_there_is(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 1)
    client = node.client(0, 1)
    client._patience_s = 0.2
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))
    client._reserved_bytes = 2**40
    assert not client.snapshot(1, groups(1))
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    client._patience_s = 10.0
    client.snapshot(2, groups(2))
    assert client.snapshot(3, groups(3))
    assert complete(node)[0] == 3


def test_a_save_of_a_superseded_generation_is_refused(start_node: Start) -> None:
    old, new = start_node(), start_node()
    old.begin(1, 1)
    client = old.client(0, 1)
    client.snapshot(1, groups(1), durable=True)
    assert client.wait_durable(1, 30)
    new.begin(2, 1)
    successor = new.client(0, 1, 2)
    successor.snapshot(1, groups(1), durable=True)
    assert successor.wait_durable(1, 30)
    client.snapshot(2, groups(2), durable=True)
    with pytest.raises(SaveFailed, match="generation 2 of job job"):
        client.wait_durable(2, 30)
    client.close()
    successor.close()


def test_flush_saves_what_the_dead_had_sealed(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 2)
    for rank in range(2):
        client = node.client(rank, 2)
        client.snapshot(3, groups(3, rank))
        client.close()
    assert complete(node) == [3]
    node.flush(3)
    key = node.event(Committed, 3).key
    assert isinstance(node.verify_disk(key), Ok)


def test_quit_finishes_the_writes_that_are_queued(start_node: Start, tmp_path: Path) -> None:
    node = start_node()
    node.begin(1, 1)
    client = node.client(0, 1)
    client.snapshot(4, groups(4, size=500_000), durable=True)
    node.quit()
    client.close()
    assert node.process.returncode == 0
    assert [offer.step for offer in start_node().list_disk().disk] == [4]
    assert not os.path.exists(node.path)


def test_the_server_ends_with_its_control_connection(start_node: Start) -> None:
    node = start_node()
    node.close()
    assert node.process.returncode == 0


def test_A1_the_server_ends_with_its_launcher(tmp_path: Path, start_program: Start, eventually: Eventually) -> None:
    launcher = start_program("parent.py", tmp_path / "s")
    pid = int(launcher.stdout.readline())
    launcher.kill()
    launcher.wait(30)
    eventually(lambda: not os.path.exists(f"/proc/{pid}"), f"the end of the orphaned snapshot server {pid}")


def test_the_socket_of_a_killed_server_is_taken_over(tmp_path: Path, start_node: Start) -> None:
    node = start_node()
    node.kill()
    assert os.path.exists(node.path)
    again = type(node)(Path(node.path), None)
    again.begin(1, 1)
    again.close()


def test_many_snapshots_leak_no_descriptors(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 1)
    client = node.client(0, 1)

    def descriptors() -> tuple[int, int]:
        return len(os.listdir(f"/proc/{node.process.pid}/fd")), len(os.listdir("/proc/self/fd"))

    for step in range(1, 20):
        client.snapshot(step, groups(step), durable=step % 5 == 0)
    assert client.wait_durable(15, 30)
    client.restore(19, "ram", "", 1)
    before = descriptors()
    for step in range(20, 120):
        client.snapshot(step, groups(step), durable=step % 20 == 0)
        client.restore(step, "ram", "", 1)
    assert client.wait_durable(100, 30)
    node.inventory()
    assert max(after - then for after, then in zip(descriptors(), before, strict=True)) <= 1
    client.close()

"""Durable snapshots of the snapshot server: written behind, committed once, tried again where they fail."""

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keepstep.checkpoint import SaveFailed
from keepstep.checkpoint.snapshot.messages import Committed, Ok, SaveError

from .states import check, complete, groups

Start = Callable[..., Any]
Eventually = Callable[[Callable[[], Any], str], Any]


def test_a_durable_snapshot_is_committed_and_restored_by_a_fresh_server(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 2)
    clients = [node.client(rank, 2) for rank in range(2)]
    for rank, client in enumerate(clients):
        client.snapshot(5, groups(5, rank), durable=True)
    assert all(client.wait_durable(5, 120) for client in clients)
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
        assert all(client.wait_durable(step, 120) for client in clients)
    assert [offer.step for offer in nodes[0].list_disk().disk] == [3, 2, 1]
    assert {node.event(Committed, 2).key for node in nodes} == {nodes[0].event(Committed, 2).key}
    for client in clients:
        client.close()


def test_D22_memory_and_disk_are_both_offered_and_the_newest_step_is_seen(
    start_node: Start, eventually: Eventually
) -> None:
    old, new = start_node(), start_node()
    for node in (old, new):
        node.begin(1, 1)
    behind, ahead = old.client(0, 1), new.client(0, 1)
    behind.snapshot(100, groups(100))
    ahead.snapshot(200, groups(200), durable=True)
    assert ahead.wait_durable(200, 120)
    # A look at a slow disk is not waited for: the next inventory has it.
    stock = eventually(lambda: (found := old.inventory()).disk and found, "the other one's checkpoint")
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
    assert client.wait_durable(1, 120)
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    client.snapshot(7, groups(7, size=big), durable=True)
    with pytest.raises(SaveFailed, match="File too large"):
        client.wait_durable(7, 120)
    assert "File too large" in node.event(SaveError, 7).reason
    assert [offer.step for offer in node.list_disk().disk] == [1]
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    client.snapshot(8, groups(8, size=big), durable=True)
    assert client.wait_durable(8, 120)
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
        client.wait_durable(7, 120)
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert client.snapshot(7, groups(7, size=200_000), durable=True)
    assert client.wait_durable(7, 120)


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
        clients[0].wait_durable(7, 120)
    clients[1].snapshot(7, groups(7, 1, size=200_000), durable=True)
    resource.prlimit(nodes[0].process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    clients[0].snapshot(7, groups(7, 0, size=200_000), durable=True)
    assert clients[0].wait_durable(7, 120) and clients[1].wait_durable(7, 120)


def test_a_rank_that_was_taken_for_gone_and_is_back_saves_as_before(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 2)
    gone, stays = node.client(0, 2), node.client(1, 2)
    gone.close()
    stays.snapshot(1, groups(1, 1), durable=True)
    with pytest.raises(SaveFailed, match="rank 0 ended"):
        stays.wait_durable(1, 120)
    back = node.client(0, 2)
    for rank, client in enumerate((back, stays)):
        client.snapshot(2, groups(2, rank), durable=True)
        if client is back:
            assert not client.wait_durable(2, 0.1), "it was given up before the other one had saved"
    assert stays.wait_durable(2, 120) and back.wait_durable(2, 120)


def test_a_step_saved_twice_is_one_commit_unless_it_changed(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 1)
    client = node.client(0, 1)
    for _ in range(2):
        client.snapshot(1, groups(1), durable=True)
        assert client.wait_durable(1, 120)
    assert len(node.list_disk().disk) == 1
    client.snapshot(1, groups(2), durable=True)
    assert client.wait_durable(1, 120)
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
    # What it asked for last may have been refused already: then this one is skipped too, and asks again.
    client._patience_s = 0.2
    client.snapshot(2, groups(2))
    client._patience_s = 120.0
    assert client.snapshot(3, groups(3))
    assert complete(node)[0] == 3


def test_a_save_of_a_superseded_generation_is_refused(start_node: Start) -> None:
    old, new = start_node(), start_node()
    old.begin(1, 1)
    client = old.client(0, 1)
    client.snapshot(1, groups(1), durable=True)
    assert client.wait_durable(1, 120)
    new.begin(2, 1)
    successor = new.client(0, 1, 2)
    successor.snapshot(1, groups(1), durable=True)
    assert successor.wait_durable(1, 120)
    client.snapshot(2, groups(2), durable=True)
    with pytest.raises(SaveFailed, match="generation 2 of job job"):
        client.wait_durable(2, 120)
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


def test_a_rank_hears_that_its_restore_goes_on(start_node: Start) -> None:
    node = start_node()
    node.begin(1, 1)
    client = node.client(0, 1)
    client.snapshot(1, groups(1, size=500_000), durable=True)
    key = node.event(Committed, 1).key
    client.close()
    node.close()
    other = start_node()
    other.begin(2, 1)
    heard: list[bool] = []
    reader = other.client(0, 1, generation=2)
    reader.on_reading = lambda: heard.append(True)
    check(reader.restore(1, "disk", key, 1), 1, size=500_000)
    assert heard

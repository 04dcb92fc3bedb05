"""The memory tier with real server and worker processes: what was sealed is there, whatever dies."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from keepstep.checkpoint import SnapshotRefused, StateInvalid, flatten
from keepstep.checkpoint.snapshot.control import SnapshotControl
from keepstep.checkpoint.snapshot.messages import Committed, Ok, Wrong, frame

from .states import check, complete, groups

Start = Callable[..., Any]
Eventually = Callable[[Callable[[], Any], str], Any]


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
    assert program.wait(120) == 0
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
    assert client.wait_durable(5, 120)
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
    client._patience_s = 120.0
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


def test_what_was_restored_is_never_written_again(start_node: Start) -> None:
    """Restored arrays are the snapshot's own memory, without a copy: no later snapshot may get it."""
    node = start_node()
    node.begin(1, 1)
    first = node.client(0, 1)
    for step in (1, 2):
        first.snapshot(step, groups(step))
    first.close()
    node.begin(2, 1)
    second = node.client(0, 1, generation=2)
    restored = second.restore(2, "ram", "", 1)
    for step in range(3, 12):
        assert second.snapshot(step, groups(step))
    check(restored, 2)
    restored["model"]["w0"] += 1
    check(second.restore(11, "ram", "", 1), 11)


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


def test_the_server_ends_with_its_control_connection(start_node: Start) -> None:
    node = start_node()
    node.close()
    assert node.process.returncode == 0


def test_a_control_connection_that_is_greeted_wrongly_is_closed(tmp_path: Path) -> None:
    ended: list[bytes] = []

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(Ok(request=1)))
        ended.append(await reader.read())
        writer.close()

    async def meet() -> None:
        async with asyncio.timeout(120), await asyncio.start_unix_server(greet, tmp_path / "s"):
            with pytest.raises(ConnectionError, match="greeted with Ok") as kept:
                await SnapshotControl.connect(str(tmp_path / "s"), "job", lambda event: None)
            while not ended:
                await asyncio.sleep(0.01)
            assert kept.value

    asyncio.run(meet())


def test_A1_the_server_ends_with_its_launcher(tmp_path: Path, start_program: Start, eventually: Eventually) -> None:
    launcher = start_program("parent.py", tmp_path / "s")
    pid = int(launcher.stdout.readline())
    launcher.kill()
    launcher.wait(120)
    eventually(lambda: not os.path.exists(f"/proc/{pid}"), f"the end of the orphaned snapshot server {pid}")


def test_the_socket_of_a_killed_server_is_taken_over(tmp_path: Path, start_node: Start) -> None:
    node = start_node()
    node.kill()
    assert os.path.exists(node.path)
    again = type(node)(Path(node.path), None)
    again.begin(1, 1)
    again.close()


def test_many_snapshots_leak_no_descriptors(start_node: Start, eventually: Eventually) -> None:
    node = start_node()
    node.begin(1, 1)
    client = node.client(0, 1)

    def descriptors() -> tuple[int, int]:
        return len(os.listdir(f"/proc/{node.process.pid}/fd")), len(os.listdir("/proc/self/fd"))

    for step in range(1, 20):
        client.snapshot(step, groups(step), durable=step % 5 == 0)
    assert client.wait_durable(15, 120)
    client.restore(19, "ram", "", 1)
    before = descriptors()
    for step in range(20, 120):
        client.snapshot(step, groups(step), durable=step % 20 == 0)
        client.restore(step, "ram", "", 1)
    assert client.wait_durable(100, 120)
    node.inventory()
    # What looks at the disk just then has files open.
    eventually(lambda: all(after <= then + 1 for after, then in zip(descriptors(), before, strict=True)), "no leak")
    client.close()

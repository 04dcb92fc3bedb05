"""Memory: a node's limit is kept, a refusal says what to do, and nothing grows or stays behind."""

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keepstep.checkpoint import flatten
from keepstep.checkpoint.snapshot.budget import default_limit_bytes, free_bytes
from keepstep.checkpoint.snapshot.memory import Memory
from keepstep.checkpoint.snapshot.messages import (
    Attach,
    Begin,
    Committed,
    FrameBuffer,
    Grant,
    NoRoom,
    Notice,
    Place,
    Reserve,
    Seal,
    frame,
    receive,
    to_worker,
)
from keepstep.checkpoint.snapshot.policy import Replication, SnapshotPolicy
from keepstep.checkpoint.snapshot.slots import Slot
from keepstep.checkpoint.state.blob import digest_chunks, pack

from .states import check, complete, groups

Start = Callable[..., Any]
Eventually = Callable[[Callable[[], Any], str], Any]
MB = 1 << 20


def memory_bytes(pid: int) -> int:
    """Of all anonymous memory files that a process has open."""
    files = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        # Its other files come and go meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if "memfd:keepstep" in os.readlink(path):
                files[path.stat().st_ino] = path.stat().st_blocks * 512
    return sum(files.values())


# ---- the limit


def seal(memory: Memory, rank: int, step: int, size: int, world_size: int = 1) -> Slot | None:
    slot = memory.grant(rank, size)
    if slot is None:
        return None
    blob = pack(flatten({"step": step, "rank": rank}))
    os.pwrite(slot.fd, blob, 0)
    message = Seal(slot=slot.number, step=step, groups=(Place("g", 0, len(blob)),))
    sealed = memory.seal(rank, slot, message, generation=1, world_size=world_size)
    memory.enter(sealed, {"g": digest_chunks(blob)})
    memory.release(slot)
    return slot


def steps(memory: Memory) -> list[int]:
    """Those that are whole here, newest first."""
    return [
        offer.step
        for offer in memory.stock()
        if len(offer.parts) == offer.world_size
        and set(offer.held) >= {d for part in offer.parts.values() for d in part}
    ]


@pytest.mark.parametrize("limit", [20, 30, 40, 1000])
def test_slots_are_granted_within_the_limit(limit: int) -> None:
    memory = Memory(limit * MB)
    memory.begin(1)
    for step in range(1, 20):
        assert seal(memory, 0, step, 10 * MB)
        assert memory.used_bytes() <= limit * MB
        assert steps(memory)[0] == step
    assert memory.used_bytes() == min(limit, 50) * MB
    memory.close()


def test_with_two_slots_a_rank_waits_until_the_newer_step_is_whole_everywhere() -> None:
    memory = Memory(40 * MB)
    memory.begin(1)
    for step in (1, 2):
        for rank in (0, 1):
            assert seal(memory, rank, step, 10 * MB, 2)
    assert seal(memory, 0, 3, 10 * MB, 2)
    assert steps(memory) == [2]
    assert seal(memory, 0, 4, 10 * MB, 2) is None and not memory.refusal(0), "step 2 is the newest that both have"
    assert seal(memory, 1, 3, 10 * MB, 2) and seal(memory, 0, 4, 10 * MB, 2)
    assert steps(memory) == [3]
    memory.close()


def test_a_ranks_history_goes_before_another_has_nothing() -> None:
    memory = Memory(60 * MB)
    memory.begin(1)
    for step in range(1, 8):
        seal(memory, 0, step, 10 * MB)
    assert memory.used_bytes() == 50 * MB
    assert seal(memory, 1, 8, 10 * MB) and seal(memory, 1, 9, 10 * MB)
    assert memory.used_bytes() <= 60 * MB
    memory.close()


def test_a_refusal_names_the_limit_and_what_to_do() -> None:
    memory = Memory(15 * MB)
    memory.begin(1)
    assert seal(memory, 0, 1, 10 * MB) is None, "one slot alone could not be written again"
    assert memory.used_bytes() == 0
    why = memory.refusal(0)
    assert "needs 2 slots of 10,485,760 bytes, and the snapshot server of this node may hold 15,728,640 bytes" in why
    memory.limit(SnapshotPolicy(memory_bytes=20 * MB))
    assert seal(memory, 0, 1, 10 * MB) and not memory.refusal(0) and seal(memory, 0, 2, 10 * MB)
    memory.close()


def test_a_state_without_room_goes_through_a_file_that_has_no_name(tmp_path: Path) -> None:
    memory = Memory(15 * MB)
    memory.begin(1)
    memory.limit(SnapshotPolicy(memory_bytes=15 * MB, spill_directory=str(tmp_path)))
    first = memory.grant(0, 10 * MB)
    assert first is not None and first.spilled and not memory.used_bytes() and not list(tmp_path.iterdir())
    assert memory.grant(0, 10 * MB) is None and not memory.refusal(0), "it is being written"
    memory.give_back(0, first, still_mapped=False)
    os.pwrite(first.fd, b"old", 0)
    assert memory.grant(0, 10 * MB) is first and bytes(first.map[:3]) == bytes(3), "the same file, and nothing in it"
    memory.give_back(0, first, still_mapped=False)
    memory.limit(SnapshotPolicy(memory_bytes=20 * MB, spill_directory=str(tmp_path)))
    second = memory.grant(0, 10 * MB)
    assert second is not None and not second.spilled and memory._ranks[0].slots == [second]
    memory.limit(SnapshotPolicy(memory_bytes=15 * MB, spill_directory=str(tmp_path / "absent")))
    assert memory.grant(1, 10 * MB) is None and "No such file" in memory.refusal(1)
    memory.close()


def test_a_durable_snapshot_without_room_is_saved_and_nothing_is_left(start_node: Start, tmp_path: Path) -> None:
    (tmp_path / "spill").mkdir()
    node = start_node()
    policy = SnapshotPolicy(memory_bytes=3 * MB, spill_directory=str(tmp_path / "spill"))
    node.ask(Begin, generation=1, world_size=1, policy=policy)
    client = node.client(0, 1)
    for step in (1, 2, 3):
        assert client.snapshot(step, groups(step, size=MB // 8), durable=True)
        assert client.wait_durable(step, 120)
        check(client.restore(step, "disk", node.event(Committed, step).key, 1), step, size=MB // 8)
    assert not any(offer.held for offer in node.inventory().ram), "what may be overwritten is not offered"
    assert not os.listdir(tmp_path / "spill")


def test_a_worker_without_room_is_told_so_once(start_node: Start) -> None:
    node = start_node()
    node.ask(Begin, generation=1, world_size=1, policy=SnapshotPolicy(memory_bytes=3 * MB))
    with socket.socket(socket.AF_UNIX) as worker:
        worker.settimeout(120)
        worker.connect(node.path)
        buffer: FrameBuffer = FrameBuffer(to_worker)

        def ask(message: Any) -> Any:
            worker.sendall(frame(message))
            return receive(worker, buffer)

        ask(Attach(job="job", generation=1, rank=0, world_size=1))
        for number in (1, 2):
            answer = ask(Reserve(number=number, size_bytes=2 * MB))
            assert isinstance(answer, NoRoom) and answer.reserve == number and "spill directory" in answer.reason
        assert isinstance(ask(Reserve(number=3, size_bytes=MB)), Grant)
    node.inventory()
    assert [event.reason for event in node.events if isinstance(event, Notice)] == [answer.reason]


def test_the_default_limit_is_a_share_of_what_is_free() -> None:
    assert 0 < default_limit_bytes() < free_bytes()
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert free_bytes() <= total


def test_a_server_keeps_the_limit_and_training_goes_on(start_node: Start) -> None:
    node = start_node()
    node.ask(Begin, generation=1, world_size=2, policy=SnapshotPolicy(memory_bytes=16 * MB))
    clients = [node.client(rank, 2) for rank in range(2)]
    for step in range(1, 12):
        for rank, client in enumerate(clients):
            assert client.snapshot(step, groups(step, rank, size=MB // 8), durable=step == 11)
        node.inventory()
        assert memory_bytes(node.process.pid) <= 16 * MB
    assert all(client.wait_durable(11, 120) for client in clients)
    assert complete(node)[0] == 11
    for rank, client in enumerate(clients):
        check(client.restore(11, "ram", "", 2), 11, rank, size=MB // 8)


# ---- nothing stays, nothing grows


def test_nothing_stays_when_the_launcher_has_gone(start_node: Start, eventually: Eventually) -> None:
    """Two nodes that copy for each other, in the middle of it: processes, sockets, threads and memory end."""
    before = {path for path in os.listdir("/proc/self/fd") if _is_ours(path)}
    nodes = [start_node() for _ in range(2)]
    addresses = tuple(node.address for node in nodes)
    policy = SnapshotPolicy(replication=Replication(every_steps=1, domains={a: a for a in addresses}))
    for node in nodes:
        node.ask(Begin, generation=1, world_size=2, peers=addresses, policy=policy)
    clients = [node.client(rank, 2) for rank, node in enumerate(nodes)]
    for step in range(1, 5):
        for rank, client in enumerate(clients):
            client.snapshot(step, {"shard": flatten({"w": np.random.default_rng(rank).random(MB)})}, durable=step == 2)
    for node in nodes:
        node.close()
        assert node.process.returncode == 0
        assert not os.path.exists(node.path) and not os.path.exists(f"/proc/{node.process.pid}")
    for client in clients:
        client.close()
    assert {path for path in os.listdir("/proc/self/fd") if _is_ours(path)} <= before


def _is_ours(fd: str) -> bool:
    try:
        return "memfd:keepstep" in os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return False


def test_two_hundred_saves_grow_nothing(start_node: Start, eventually: Eventually) -> None:
    nodes = [start_node() for _ in range(2)]
    addresses = tuple(node.address for node in nodes)
    policy = SnapshotPolicy(replication=Replication(every_steps=5, domains={a: a for a in addresses}))
    for node in nodes:
        node.ask(Begin, generation=1, world_size=2, peers=addresses, policy=policy)
    clients = [node.client(rank, 2) for rank, node in enumerate(nodes)]

    def save(step: int) -> None:
        for rank, client in enumerate(clients):
            shard = np.random.default_rng([step, rank]).random(MB // 16)
            assert client.snapshot(step, {"shard": flatten({"w": shard})}, durable=step % 20 == 0)
        if step % 20 == 0:
            assert all(client.wait_durable(step, 120) for client in clients)

    def used() -> list[tuple[int, int, int, int]]:
        found = []
        for node in nodes:
            node.inventory()
            proc = Path(f"/proc/{node.process.pid}")
            status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
            threads, own = int(status["Threads"]), int(status["RssAnon"].split()[0]) // 1024
            found.append((len(list((proc / "fd").iterdir())), threads, memory_bytes(node.process.pid) // MB, own))
        return found

    for step in range(1, 61):
        save(step)
    before = used()
    for step in range(61, 261):
        save(step)
    for (fds, threads, held, own), (fds_after, threads_after, held_after, own_after) in zip(
        before, used(), strict=True
    ):
        # A copy more or less may be on its way just then; a leak would show two hundred times.
        assert fds_after <= fds + 8 and threads_after <= threads + 2
        assert held_after <= held + 4 and own_after <= own + 8, "MiB"


def test_a_client_skips_at_once_what_has_no_room_and_saves_what_is_durable(start_node: Start, tmp_path: Path) -> None:
    node = start_node()
    node.ask(Begin, generation=1, world_size=1, policy=SnapshotPolicy(memory_bytes=3 * MB))
    client = node.client(0, 1)
    assert not client.snapshot(1, groups(1, size=MB // 8), durable=True) and "spill directory" in client.refused
    assert not client.snapshot(2, groups(2, size=MB // 8)) and client.skipped == 2
    policy = SnapshotPolicy(memory_bytes=3 * MB, spill_directory=str(tmp_path))
    node.ask(Begin, generation=2, world_size=1, policy=policy)
    client = node.client(0, 1, 2)
    assert not client.snapshot(3, groups(3, size=MB // 8)), "a file is too slow for every step"
    assert client.snapshot(4, groups(4, size=MB // 8), durable=True) and client.wait_durable(4, 120)
    assert not client.snapshot(5, groups(5, size=MB // 8)) and client.snapshot(6, groups(6, size=MB // 8), durable=True)
    assert client.wait_durable(6, 120) and not client.refused
    check(client.restore(6, "disk", node.event(Committed, 6).key, 1), 6, size=MB // 8)

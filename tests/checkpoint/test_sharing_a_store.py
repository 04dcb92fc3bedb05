"""The snapshot server where jobs share a store: restores keep to the pace, saves give way, and a late checkpoint is told."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keepstep.checkpoint.repository.save import job_mark
from keepstep.checkpoint.repository.traffic import PREFIX
from keepstep.checkpoint.repository.windows_in_store import Said, delay_of
from keepstep.checkpoint.snapshot.messages import Committed, Notice
from keepstep.checkpoint.stores.posix import PosixStore

from .states import check, groups


def test_a_restore_announces_itself_and_gets_its_turn(tmp_path: Path, start_node: Callable[..., Any]) -> None:
    first = start_node()
    first.begin(1, 1)
    first.client(0, 1).snapshot(1, groups(1, size=200_000), durable=True)
    key = first.event(Committed, 1).key
    first.close()
    assert not (tmp_path / "checkpoints" / PREFIX).exists(), "saving announces no restore"
    other = start_node(options=("--restore-bytes-s", "1000000000", "--priority", "urgent"))
    other.begin(2, 1)
    check(other.client(0, 1, generation=2).restore(1, "disk", key, 1), 1, size=200_000)
    assert (tmp_path / "checkpoints" / PREFIX).is_dir()
    assert not list(PosixStore(tmp_path / "checkpoints").list(PREFIX))


@pytest.mark.parametrize("why", ["somebody waits for it", "the next one comes", "its rank ends"])
def test_a_save_that_gives_way_is_made_at_once_if(why: str, tmp_path: Path, start_node: Callable[..., Any]) -> None:
    now_s = time.time()
    job, busy = (
        Said(
            mark=mark, begins_s=now_s - 600, delay_s=0.0, interval_s=600.0, write_s=write_s, load_bytes_s=10**9,
            priority=priority,
        )
        for mark, write_s, priority in ((job_mark("job"), 10.0, 1), ("0" * 8, 100.0, 9))
    )  # fmt: skip
    store = PosixStore(tmp_path / "checkpoints")
    for said in (job, busy):
        store.create(said.key(), b"")
    assert delay_of(job.mark, [job, busy], now_s) > 90, "longer than the test waits"
    node = start_node()
    node.begin(1, 1)
    client = node.client(0, 1)
    client.snapshot(1, groups(1), durable=True)
    if why == "somebody waits for it":
        assert client.wait_durable(1, 120)
    elif why == "the next one comes":
        client.snapshot(2, groups(2), durable=True)
    else:
        client.close()
    assert node.event(Committed, 1).step == 1


def test_a_checkpoint_that_becomes_old_is_told(start_node: Callable[..., Any]) -> None:
    node = start_node()
    node.begin(1, 1)
    client = node.client(0, 1)
    for step in range(1, 6):
        client.snapshot(step, groups(step), durable=True)
        node.event(Committed, step)
    client.snapshot(6, groups(6))
    notice = node.event(Notice, -1)
    assert notice.topic == "age" and "step 5 is the newest verified" in notice.reason

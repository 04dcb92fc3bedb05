"""Stacks in the forms of py-spy, faulthandler and gdb; the real hang of which the culprit is known."""

import json
from pathlib import Path

import pytest

from keepstep.core.combine import judge
from keepstep.core.observation import Observation
from keepstep.core.signal import Context
from keepstep.evidence.document import Document
from keepstep.evidence.job.stacks import READER

DATA = Path(__file__).parents[4] / "shared" / "data" / "hang_stacks"

WAITS = """    all_reduce (torch/distributed/distributed_c10d.py:1316)
    step (/a/site-packages/deepspeed/engine.py:455)
    <module> (train.py:249)
"""
LOADS = """    get (queue.py:179)
    _try_get_data (torch/utils/data/dataloader.py:1011)
    step (/b/site-packages/deepspeed/engine.py:449)
    <module> (train.py:249)
"""


def read(text: str) -> list[Observation]:
    document = Document("x", text.encode())
    assert READER.recognise(document) >= 0.5
    return READER.read(document).observations


def process(pid: int, frames: str, more: str = "") -> str:
    return (
        f"Process {pid}: python -u train.py --local_rank={pid % 8}\nPython v3.10.12 (/usr/bin/python3.10)\n\n{more}"
        f'Thread {pid} (idle): "MainThread"\n{frames}'
        f'Thread {pid + 900} (idle): "pin_memory"\n    wait (threading.py:306)\n    _run (x.py:1)\n\n'
    )


@pytest.mark.parametrize("name", ["bloom_eval_hang_2nodes.json", "bloom_eval_hang_2nodes_stacks.md"])
def test_the_process_whose_loader_was_stuck_is_named_and_no_hardware_is(name: str) -> None:
    path = DATA / name
    if not path.exists():
        pytest.skip("no shared data")
    observations = READER.read(Document("x", path.read_bytes())).observations
    assert len(observations) == 16
    hangs = [s for s in judge(observations, Context()) if s.key.startswith("job.hang")]
    assert [(s.key, s.seen.node, s.seen.part) for s in hangs] == [("job.hang.program", "node48", "process/688514")]
    assert not hangs[0].row.isolate
    assert hangs[0].seen.attributes["peers"] == "688515,688516,688517"


def test_of_each_process_the_main_thread_is_taken() -> None:
    text = "".join(process(100 + at, LOADS if at == 3 else WAITS) for at in range(8))
    found = read(text)
    assert [x.attributes["pid"] for x in found] == [str(100 + at) for at in range(8)]
    assert found[0].attributes["frames"].startswith("all_reduce ")
    assert found[3].attributes["local_rank"] == "7"
    hangs = [s.seen.part for s in judge(found, Context()) if s.key.startswith("job.hang")]
    assert hangs == ["process/103"]


def test_a_process_that_could_not_be_read_stands_out_and_says_why() -> None:
    """A rank that holds the interpreter's lock in a native call cannot be sampled."""
    text = (
        "".join(process(100 + at, WAITS) for at in range(7))
        + "Process 107: python\nError: Failed to suspend process: timed out\n"
    )
    found = judge(read(text), Context())
    assert [(s.seen.part, "timed out" in s.seen.detail) for s in found if s.key == "job.hang"] == [
        ("process/107", True)
    ]


def test_json_of_py_spy_is_read() -> None:
    threads = [
        {
            "pid": at, "thread_id": at * 7, "thread_name": name, "os_thread_id": at, "active": False,
            "frames": [{"name": "recv", "filename": "/x/site-packages/torch/distributed/distributed_c10d.py", "line": 9}],
        }
        for at in range(3)
        for name in ("worker", "MainThread")
    ]  # fmt: skip
    found = read(json.dumps(threads))
    assert [x.attributes["frames"] for x in found] == ["recv (torch/distributed/distributed_c10d.py)"] * 3


def test_faulthandler_and_gdb_are_read() -> None:
    fault = (
        "Thread 0x00007f11 (most recent call first):\n"
        '  File "/usr/lib/python3.10/threading.py", line 320 in wait\n'
        '  File "/usr/lib/python3.10/queue.py", line 171 in get\n\n'
        "Thread 0x00007f12 (most recent call first):\n"
        '  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 7 in barrier\n'
        '  File "train.py", line 3 in main\n'
    )
    assert read(fault)[0].attributes["frames"].startswith("barrier (torch/distributed/distributed_c10d.py)")
    gdb = (
        'Thread 2 (Thread 0x7f11 (LWP 5) "python"):\n#0  0x00007f in epoll_wait () from /lib64/libc.so.6\n'
        'Thread 1 (Thread 0x7f12 (LWP 4) "python"):\n#0  0x00007f in ncclGroupEnd () from /lib64/libnccl.so.2\n'
        "#1  0x00007f in main (argc=2, argv=0x7f) at main.c:33\n"
    )
    assert read(gdb)[0].attributes["frames"].startswith("ncclGroupEnd ")


def test_a_host_before_each_line_is_the_node() -> None:
    text = "".join(f"gpu-07: {line}\n" for line in process(5, WAITS).splitlines())
    assert [(x.node, x.attributes["pid"]) for x in read(text)] == [("gpu-07", "5")]

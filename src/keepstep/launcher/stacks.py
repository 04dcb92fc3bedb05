"""Looks at ranks from outside: process state, CPU use, Python stacks. Owns the looking; facts only, never a verdict."""

import asyncio
import json
import os
import re
import shutil
import sys
from typing import Any

from keepstep.adapters.local import procfs
from keepstep.core.facts import RankStack
from keepstep.launcher import pidfds
from keepstep.launcher.rank_main import STACK_SIGNAL
from keepstep.launcher.ranks import Rank

_WATCH_S = 0.15
_ANSWER_WAIT_S = 1.0
"""For a rank on a busy node to have its turn; then it is looked at from outside, within the time that the order has."""
_POLL_S = 0.01
_STEADY_POLLS = 5
"""An answer that has not grown for so many looks is whole: a rank may lose its CPU in the middle of writing it."""
_PY_SPY_WAIT_S = 3.0
_FRAMES_MAX = 40
_STOPPED = "DTt"
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_WAITING_FUNCTIONS = frozenset(
    ("all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "barrier", "broadcast", "gather", "monitored_barrier",
     "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "send", "wait", "wait_durable")
)  # fmt: skip
_INNERMOST = 4
"""A collective shows among so many innermost frames: its own, and the wrappers that torch puts around it."""
_BUSY_CPU_SHARE = 0.2


async def collect(ranks: list[Rank]) -> tuple[RankStack, ...]:
    """One record per rank, all looked at in parallel."""
    return tuple(await asyncio.gather(*(_look(rank) for rank in ranks)))


async def _look(rank: Rank) -> RankStack:
    before = procfs.stat(rank.pid)
    if before is None or not rank.alive:
        return RankStack(rank=rank.plan.rank, process_state="Z")
    # A stopped process would run its handler only once it is continued: it is read from outside at once.
    stopped = before.state in _STOPPED
    frames, _ = await asyncio.gather(
        _frames_from_outside(rank.pid) if stopped else _frames(rank), asyncio.sleep(_WATCH_S)
    )
    after = procfs.stat(rank.pid) or before
    cpu_s = max(0.0, after.cpu_s - before.cpu_s)
    return RankStack(
        rank=rank.plan.rank,
        frames=frames,
        process_state=before.state if stopped else after.state,
        waiting=_is_waiting(frames, cpu_s),
        cpu_s=cpu_s,
    )


async def _frames(rank: Rank) -> tuple[str, ...]:
    """From the rank's own signal handler; from outside where it does not answer."""
    path = rank.plan.stack_file
    offset = os.path.getsize(path) if os.path.exists(path) else 0
    if pidfds.kill(rank.pidfd, STACK_SIGNAL):
        seen, steady = b"", 0
        for _ in range(int(_ANSWER_WAIT_S / _POLL_S)):
            await asyncio.sleep(_POLL_S)
            text = _tail(path, offset)
            steady = steady + 1 if text == seen else 0
            if steady >= _STEADY_POLLS and text.endswith(b"\n"):
                return parse_faulthandler(text.decode("utf-8", "replace"))
            seen = text
    return await _frames_from_outside(rank.pid)


def _tail(path: str, offset: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(1 << 20)
    except FileNotFoundError:
        return b""


def parse_faulthandler(text: str) -> tuple[str, ...]:
    """Frames of the main thread (the one that took the signal), innermost first, as ``file:line function``."""
    at = text.find("Current thread")
    frames = []
    for line in text[at:].splitlines()[1:] if at >= 0 else []:
        match = _FRAME.match(line)
        if match is None:
            break
        frames.append(f"{match['file']}:{match['line']} {match['function']}")
    return tuple(frames[:_FRAMES_MAX])


async def _frames_from_outside(pid: int) -> tuple[str, ...]:
    """With py-spy where it is installed; empty where it is not or fails."""
    program = _py_spy()
    if program is None:
        return ()
    process = await asyncio.create_subprocess_exec(
        program, "dump", "--json", "--nonblocking", "--pid", str(pid),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_PY_SPY_WAIT_S):
            text, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return ()
    return parse_py_spy(text) if process.returncode == 0 else ()


def _py_spy() -> str | None:
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


def parse_py_spy(text: bytes) -> tuple[str, ...]:
    """Frames of the main thread out of ``py-spy dump --json``."""
    try:
        threads: list[dict[str, Any]] = json.loads(text)
    except ValueError:
        return ()
    main = next((one for one in threads if one.get("thread_name") == "MainThread"), threads[0] if threads else None)
    frames = main.get("frames", []) if main else []
    return tuple(f"{frame.get('filename')}:{frame.get('line')} {frame.get('name')}" for frame in frames[:_FRAMES_MAX])


def _is_waiting(frames: tuple[str, ...], cpu_s: float) -> bool:
    """The main thread sits in a collective, a barrier or a wait on peers.

    DDP waits for its peers inside the backward pass, which shows only as a backward that uses no CPU.
    """
    for frame in frames[:_INNERMOST]:
        path, _, function = frame.partition(" ")
        if function in _WAITING_FUNCTIONS or "/torch/distributed/" in path or "/keepstep/checkpoint/" in path:
            return True
    idle = cpu_s < _BUSY_CPU_SHARE * _WATCH_S
    return idle and any("/torch/autograd/" in frame and "backward" in frame for frame in frames[:_INNERMOST])

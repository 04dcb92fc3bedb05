"""One look at something that could hang, in a child of its own. Owns its deadline, its end, and what could not be ended.

A process in uninterruptible sleep does not die of SIGKILL: it is left behind, remembered, and reaped when it does end. As
long as it lives, no second one of the same probe is started: a node whose file server is gone must not fill with children.
No thread is used, so nothing here can hold up the end of the agent. Must not judge what a probe says.
"""

import asyncio
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

OUTPUT_LIMIT_BYTES = 256 * 1024
"""What a probe prints beyond this is read and dropped."""
_KILL_WAIT_S = 0.5
"""Time for a killed child to be gone; one that is not by then sleeps in the kernel."""
_PIECE_BYTES = 65_536


@dataclass(frozen=True, kw_only=True)
class Probe:
    """``hung``: the deadline passed, or the child of an earlier look still cannot be ended."""

    outcome: Literal["ok", "failed", "hung"]
    stdout: bytes = b""
    stderr: bytes = b""
    code: int | None = None
    duration_s: float = 0.0
    detail: str = ""
    """Why it is not ``ok``, for a person."""
    left: bool = False
    """Its child could not be ended and is still there."""


class _Child:
    """A running process and its pipes, seen through descriptors only."""

    def __init__(self, argv: Sequence[str], stdin: bytes) -> None:
        """Raises OSError where the program cannot be started."""
        self._loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()
        self.on_end: Callable[[], object] = lambda: None
        self.code: int | None = None
        self.output: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
        self._readers: dict[int, int] = {}
        self._stdin: int | None = None
        self.pid = self._spawn(argv)
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._reap)
        for number, descriptor in self._readers.items():
            os.set_blocking(descriptor, False)
            self._loop.add_reader(descriptor, self._read, number)
        self._feed(stdin)

    def _spawn(self, argv: Sequence[str]) -> int:
        program = shutil.which(argv[0])
        if program is None:
            raise FileNotFoundError(f"there is no program {argv[0]}")
        ends: list[int] = []
        actions: list[tuple[int, int, int]] = []
        try:
            for number in (0, 1, 2):
                read_end, write_end = os.pipe()
                ends += [read_end, write_end]
                theirs = read_end if number == 0 else write_end
                actions.append((os.POSIX_SPAWN_DUP2, theirs, number))
            pid = os.posix_spawn(program, list(argv), dict(os.environ), file_actions=actions, setsid=True)
        except BaseException:
            for descriptor in ends:
                os.close(descriptor)
            raise
        for descriptor in (ends[0], ends[3], ends[5]):
            os.close(descriptor)
        self._stdin, self._readers = ends[1], {1: ends[2], 2: ends[4]}
        return pid

    def _feed(self, data: bytes) -> None:
        """A pipe takes 64 KiB at once; nothing that a probe is told is longer."""
        assert self._stdin is not None
        os.set_blocking(self._stdin, False)
        try:
            if data:
                os.write(self._stdin, data[:_PIECE_BYTES])
        except (BrokenPipeError, BlockingIOError):
            # It ended, or does not read: its exit code or the deadline will say.
            self.output[2] += b"(did not read its input) "
        finally:
            os.close(self._stdin)
            self._stdin = None

    def _read(self, number: int) -> None:
        descriptor = self._readers.get(number)
        if descriptor is None:
            return
        try:
            piece = os.read(descriptor, _PIECE_BYTES)
        except BlockingIOError:
            return
        kept = self.output[number]
        kept += piece[: max(0, OUTPUT_LIMIT_BYTES - len(kept))]
        if not piece:
            self._close(number)

    def _close(self, number: int) -> None:
        descriptor = self._readers.pop(number, None)
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        # While the leader is not reaped its group's number is not given anew: nothing of a probe outlives it.
        _kill_group(self.pid)
        _, status = os.waitpid(self.pid, 0)
        self.code = os.waitstatus_to_exitcode(status)
        for number in (1, 2):
            # What it wrote before its end lies in the pipes; a grandchild may hold them open, and is not waited for.
            while number in self._readers and self._more(number):
                pass
        self.let_go()
        self.ended.set()
        self.on_end()

    def _more(self, number: int) -> bool:
        before = len(self.output[number])
        self._read(number)
        return number in self._readers and len(self.output[number]) > before

    def let_go(self) -> None:
        """Listens to it no longer; its end is still noticed."""
        for number in (1, 2):
            self._close(number)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        # It has just ended; the descriptor of the process says so next.
        return


class Probes:
    """Runs probes and remembers which children could not be ended, one for each name."""

    def __init__(self, kill: Callable[[int], None] = _kill_group) -> None:
        """``kill`` ends the process group of a child."""
        self._kill = kill
        self._left: dict[str, _Child] = {}

    @property
    def left(self) -> dict[str, int]:
        """Name of a probe -> pid of the child that it left behind."""
        return {name: child.pid for name, child in self._left.items()}

    async def run(self, argv: Sequence[str], deadline_s: float, *, stdin: bytes = b"", name: str = "") -> Probe:
        """Never raises for what the program does, and returns soon after the deadline whatever happens."""
        name = name or "\0".join(argv)
        earlier = self._left.get(name)
        if earlier is not None:
            detail = f"the child of an earlier look (pid {earlier.pid}) still cannot be ended"
            return Probe(outcome="hung", detail=detail, left=True)
        started_s = time.monotonic()
        try:
            child = _Child(argv, stdin)
        except OSError as error:
            return Probe(outcome="failed", detail=f"{argv[0]} was not started: {error.strerror or error}")
        try:
            async with asyncio.timeout(deadline_s):
                await child.ended.wait()
        except TimeoutError:
            if not child.ended.is_set():  # else it ended in the same turn of the loop
                return await self._hung(child, name, deadline_s)
        except asyncio.CancelledError:
            self._kill(child.pid)
            child.let_go()
            raise
        return _said(child, time.monotonic() - started_s)

    async def _hung(self, child: _Child, name: str, deadline_s: float) -> Probe:
        self._kill(child.pid)
        try:
            async with asyncio.timeout(_KILL_WAIT_S):
                await child.ended.wait()
        except TimeoutError:
            if not child.ended.is_set():
                self._leave(child, name)
        left = name in self._left
        said = bytes(child.output[1])
        detail = f"no end within {deadline_s:g} s" + (f"; pid {child.pid} does not even die of SIGKILL" if left else "")
        return Probe(outcome="hung", stdout=said, duration_s=deadline_s, detail=detail, left=left)

    def _leave(self, child: _Child, name: str) -> None:
        self._left[name] = child
        child.let_go()
        child.on_end = lambda: self._left.pop(name, None)


def _said(child: _Child, duration_s: float) -> Probe:
    stdout, stderr = bytes(child.output[1]), bytes(child.output[2])
    if child.code == 0:
        return Probe(outcome="ok", stdout=stdout, stderr=stderr, code=0, duration_s=duration_s)
    words = (stderr or stdout).decode("utf-8", "replace").strip()[-300:]
    ended = f"ended with {child.code}" if child.code is None or child.code >= 0 else f"ended by signal {-child.code}"
    detail = f"{ended}: {words}" if words else ended
    return Probe(outcome="failed", stdout=stdout, stderr=stderr, code=child.code, duration_s=duration_s, detail=detail)


_ALL = Probes()


async def run_probe(argv: Sequence[str], deadline_s: float, *, stdin: bytes = b"", name: str = "") -> Probe:
    """``Probes.run`` for everybody in this process: a child that is left behind counts for all of them."""
    return await _ALL.run(argv, deadline_s, stdin=stdin, name=name)


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return True
    return False


_RESOLVE = "import socket,sys;print('\\n'.join({a[4][0] for a in socket.getaddrinfo(sys.argv[1], None)}))"


async def resolve(host: str, deadline_s: float) -> list[str]:
    """Addresses of a host name, as programs of this node get them. Raises OSError where it has none in time.

    The resolver of the C library cannot be given a deadline and cannot be interrupted: it runs in a child.
    """
    if _is_address(host):
        return [host]
    argv = ["getent", "ahosts", host] if shutil.which("getent") else [sys.executable, "-I", "-S", "-c", _RESOLVE, host]
    found = await run_probe(argv, deadline_s, name=f"resolve {host}")
    addresses = list(
        dict.fromkeys(line.split()[0] for line in found.stdout.decode("ascii", "replace").split("\n") if line.strip())
    )
    if found.outcome == "hung":
        raise TimeoutError(f"the name {host} is not resolved within {deadline_s:g} s")
    if not addresses:
        raise OSError(f"the name {host} is not known here")
    return addresses

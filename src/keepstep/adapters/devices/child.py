"""A child that goes on talking, line by line, and can be killed. Owns its pipe and its end; knows nothing of what it says.

No thread, and no wait that could block: a child in uninterruptible sleep does not die of SIGKILL and is left behind.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

MAX_LINE_BYTES = 1 << 20
_PIECE_BYTES = 65_536
_KILL_WAIT_S = 1.0
_LOOK_S = 0.05
_LAST_WAIT_S = 0.2
_left_behind: "list[subprocess.Popen[bytes]]" = []
"""Killed, and not gone in time. Whoever waits for them reaps them, or the next child that is started."""


class TalkingChild:
    """Lines come out of ``line``; an empty one says that it ended. Use within a running loop."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """Raises OSError where the program cannot be started."""
        _left_behind[:] = [process for process in _left_behind if process.poll() is None]
        self._process = subprocess.Popen(
            list(argv), env=dict(environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True, close_fds=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._pipe = self._process.stdout
        os.set_blocking(self._pipe.fileno(), False)
        self._rest = b""
        self._lines: asyncio.Queue[bytes] = asyncio.Queue(maxsize=4096)
        self._loop = asyncio.get_running_loop()
        self._reading = True
        self._loop.add_reader(self._pipe.fileno(), self._read)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def line(self, deadline_s: float) -> bytes:
        """The next line without its end; empty after the last one. Raises TimeoutError."""
        async with asyncio.timeout(deadline_s):
            return await self._lines.get()

    def _read(self) -> None:
        try:
            piece = os.read(self._pipe.fileno(), _PIECE_BYTES)
        except BlockingIOError:
            return
        *whole, self._rest = (self._rest + piece).split(b"\n")
        for text in whole:
            if text:
                self._put(text)
        self._rest = self._rest[:MAX_LINE_BYTES]
        if not piece:
            self._stop_reading()
            self._put(b"")

    def _put(self, text: bytes) -> None:
        if self._lines.full():
            # Whoever reads is behind: the newest state is what counts.
            self._lines.get_nowait()
        self._lines.put_nowait(text)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._pipe.fileno())
            self._pipe.close()

    def ended(self) -> bool:
        """Reaps it where it has ended. Never blocks."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kills its whole group and listens no longer."""
        self._stop_reading()
        if self.ended():
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            # It has just ended; ``ended`` says so next.
            return

    def end_now(self) -> None:
        """At the end of the source: kill and reap, and wait no longer than a killed process takes."""
        self.kill()
        try:
            self._process.wait(_LAST_WAIT_S)
        except subprocess.TimeoutExpired:
            _left_behind.append(self._process)

    async def end(self) -> bool:
        """Kill it and give it a moment; False where it does not even die of that."""
        self.kill()
        for _ in range(int(_KILL_WAIT_S / _LOOK_S)):
            if self.ended():
                return True
            await asyncio.sleep(_LOOK_S)
        if not self.ended():
            _left_behind.append(self._process)
        return self.ended()

"""What ranks print: into one log file per rank, and with a prefix to the launcher's own output. Owns the pipes' read ends.

Runs in a thread of its own, so that neither a full disk nor a terminal that nobody reads can hold up supervision or a
rank: what cannot be written is dropped, counted, and said once.
"""

import fcntl
import os
import select
import selectors
import threading
import time

_PIPE_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16
_TERMINAL_PIECE_BYTES = 4096
"""PIPE_BUF: a pipe that polls writable takes so many bytes at once."""
_TERMINAL_WAIT_S = 0.5
_LINE_LIMIT_BYTES = 1 << 16
"""A longer line is shown in pieces."""
_COLOURS = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)


class Output:
    """``attach`` ranks; ``finish`` once they have ended."""

    def __init__(self, terminal_fd: int | None) -> None:
        """``terminal_fd`` is where prefixed lines go; None for nowhere."""
        self._terminal = _Terminal(terminal_fd)
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._new: list[_Stream] = []
        self._open = 0
        self._idle = threading.Event()
        self._idle.set()
        self._ending = False
        self._thread = threading.Thread(target=self._pump, name="output", daemon=True)
        self._thread.start()

    def attach(self, rank: int, log_path: str) -> tuple[int, int]:
        """Write ends for a rank's stdout and stderr; the caller closes them once the rank has them."""
        log = _LogFile(log_path)
        ends = []
        streams = []
        for _ in range(2):
            reader, writer = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(reader, False)
            try:
                fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            except PermissionError:
                # The user's quota of pipe memory is used up: the default size does as well.
                pass
            streams.append(_Stream(reader, rank, log))
            ends.append(writer)
        with self._lock:
            self._new.extend(streams)
            self._open += len(streams)
            self._idle.clear()
        os.write(self._wake_writer, b"n")
        return ends[0], ends[1]

    def finish(self, wait_s: float) -> None:
        """Waits until all pipes are at their end (at most ``wait_s``), then ends the thread."""
        self._idle.wait(wait_s)
        self._ending = True
        os.write(self._wake_writer, b"e")
        self._thread.join(wait_s)

    def _pump(self) -> None:
        while not self._ending:
            for key, _ in self._selector.select():
                if key.fd == self._wake_reader:
                    os.read(self._wake_reader, 4096)
                    self._take_new()
                else:
                    self._read(key.data)

    def _take_new(self) -> None:
        with self._lock:
            new, self._new = self._new, []
        for stream in new:
            self._selector.register(stream.fd, selectors.EVENT_READ, stream)

    def _read(self, stream: "_Stream") -> None:
        try:
            data = os.read(stream.fd, _CHUNK_BYTES)
        except BlockingIOError:
            return
        if data:
            stream.log.write(data)
            self._terminal.show(stream.lines(data), stream.rank)
            return
        self._terminal.show(stream.rest(), stream.rank)
        self._selector.unregister(stream.fd)
        os.close(stream.fd)
        stream.log.release()
        with self._lock:
            self._open -= 1
            if self._open == 0:
                self._idle.set()


class _Stream:
    """One pipe, and its line that is not complete yet."""

    def __init__(self, fd: int, rank: int, log: "_LogFile") -> None:
        self.fd = fd
        self.rank = rank
        self.log = log
        self._part = b""

    def lines(self, data: bytes) -> list[bytes]:
        *whole, self._part = (self._part + data).split(b"\n")
        if len(self._part) > _LINE_LIMIT_BYTES:
            whole.append(self._part)
            self._part = b""
        return whole

    def rest(self) -> list[bytes]:
        part, self._part = self._part, b""
        return [part] if part else []


class _LogFile:
    """Shared by the two streams of a rank, in the order in which they were read."""

    def __init__(self, path: str) -> None:
        self._fd: int | None = None
        self._users = 2
        self._dropped_bytes = 0
        self._path = path
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._lost(0, error)

    def write(self, data: bytes) -> None:
        if self._fd is None:
            self._dropped_bytes += len(data)
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            self._lost(len(view), error)

    def release(self) -> None:
        self._users -= 1
        if self._users:
            return
        if self._dropped_bytes:
            _complain(f"{self._dropped_bytes} bytes of output are missing in {self._path}")
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _lost(self, size_bytes: int, error: OSError) -> None:
        if self._dropped_bytes == 0:
            _complain(
                f"cannot write {self._path} ({error}); output is dropped there until it works again, the rank goes on"
            )
        self._dropped_bytes += max(1, size_bytes)


class _Terminal:
    """The launcher's own output. Gives up on a reader that does not read, and tries again at the next line."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._colour = fd is not None and os.isatty(fd)
        self._dropped_lines = 0
        self._patient = True

    def show(self, lines: list[bytes], rank: int) -> None:
        if self._fd is None or not lines:
            return
        tag = f"[r{rank}]"
        if self._colour:
            tag = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{tag}\x1b[0m"
        prefix = f"{tag} ".encode()
        for line in lines:
            if not self._write(prefix + line + b"\n"):
                self._dropped_lines += 1

    def _write(self, data: bytes) -> bool:
        assert self._fd is not None
        view = memoryview(data)
        deadline_s = time.monotonic() + (_TERMINAL_WAIT_S if self._patient else 0.0)
        while view:
            poller = select.poll()
            poller.register(self._fd, select.POLLOUT)
            ready = poller.poll(max(0.0, deadline_s - time.monotonic()) * 1000)
            if not ready:
                # Waited once in vain: the next lines are not waited for, or the ranks would feel it.
                self._patient = False
                return False
            try:
                view = view[os.write(self._fd, view[:_TERMINAL_PIECE_BYTES]) :]
            except BlockingIOError:
                continue
            except OSError:
                self._fd = None
                return False
        if not self._patient:
            self._patient = True
            _complain(
                f"{self._dropped_lines} lines were not shown here because nobody read them; the log files have them"
            )
            self._dropped_lines = 0
        return True


def _complain(text: str) -> None:
    try:
        os.write(2, f"keepstep: {text}\n".encode())
    except OSError:
        # Standard error is closed or full: there is nobody left to tell.
        return

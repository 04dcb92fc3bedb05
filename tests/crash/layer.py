"""The fault layer (shim.c, fault.c) as Python sees it: building it, arming it, and what a fault is.

Owns the build cache and the numbering of operations and faults, which fault.h repeats. Must not know any program.
"""

import ctypes
import errno
import hashlib
import os
import shutil
import subprocess
from enum import IntEnum
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [Path(__file__).with_name(name) for name in ("shim.c", "fault.c", "fault.h")]
CACHE = ROOT / ".pytest_cache" / "crash"
BUILD_DEADLINE_S = 300


class NoCompiler(Exception):
    """The fault layer is C, and there is nothing here that compiles it."""


class Op(IntEnum):
    """A call into the operating system. Those from OPEN on only look."""

    MARK = 0
    CREATE = 1
    WRITE = 2
    TRUNCATE = 3
    ALLOCATE = 4
    SYNC = 5
    DATASYNC = 6
    SYNC_ALL = 7
    CLOSE = 8
    LINK = 9
    RENAME = 10
    UNLINK = 11
    MKDIR = 12
    RMDIR = 13
    SYMLINK = 14
    OPEN = 15
    READ = 16
    LIST = 17
    STAT = 18


class Kind(IntEnum):
    """What goes wrong. ONCE: at one boundary. FROM: at that one and at every one after it, until cleared."""

    NOTHING = 0
    KILL_BEFORE = 1
    KILL_AFTER = 2
    KILL_TORN = 3
    """Half of a write, then the end."""
    ERROR_ONCE = 4
    ERROR_AFTER = 5
    """It was done, and is reported as failed: an answer that got lost on the way."""
    ERROR_FROM = 6
    """ENOSPC and EDQUOT: whatever takes space; a write is cut short first. Other numbers: whatever changes something."""
    SHORT_ONCE = 7
    SHORT_ALL = 8
    READ_ERROR = 9
    READ_ERROR_FROM = 10
    READ_SHORT = 11
    READ_SHORT_ALL = 12
    READ_END = 13
    """The file ends too soon."""
    READ_FLIP = 14
    """One bit of what was read is wrong."""
    PAUSE = 15
    """The process stands still before the call, until it is let go on."""
    READ_PAUSE = 16


HARMLESS = frozenset({Kind.NOTHING, Kind.PAUSE, Kind.READ_PAUSE})
KILLS = frozenset({Kind.KILL_BEFORE, Kind.KILL_AFTER, Kind.KILL_TORN})


class Fault(Struct, frozen=True):
    """A fault at a boundary. ``error``: the error number; for READ_FLIP, what chooses the bit."""

    kind: int = Kind.NOTHING
    at: int = 0
    error: int = 0

    def __str__(self) -> str:
        what = Kind(self.kind).name.lower()
        named = self.error if self.kind == Kind.READ_FLIP else errno.errorcode.get(self.error, "")
        return f"{what}{f' {named}' if named else ''} at {self.at}"


def build() -> Path:
    """The shared object, compiled if it is not in the cache. Raises NoCompiler."""
    text = b"".join(source.read_bytes() for source in SOURCES)
    target = CACHE / f"shim-{hashlib.blake2b(text, digest_size=8).hexdigest()}.so"
    if target.exists():
        return target
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCompiler("the fault layer is written in C and neither cc, gcc nor clang is installed")
    CACHE.mkdir(parents=True, exist_ok=True)
    made = target.with_suffix(f".{os.getpid()}")
    command = [compiler, "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-U_FORTIFY_SOURCE"]
    command += ["-o", str(made), *map(str, SOURCES[:2]), "-ldl", "-lpthread"]
    subprocess.run(command, check=True, timeout=BUILD_DEADLINE_S)
    made.rename(target)
    return target


class Layer:
    """The layer inside of this process, which must have been started with it preloaded."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.fault_arm.argtypes = [
            ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_int
        ]  # fmt: skip
        self._library.fault_mark.argtypes = [ctypes.c_char_p]

    def arm(self, root: Path, fault: Fault, *, trace: int = -1, report: int = -1) -> None:
        """Break files below ``root`` from now on. ``trace`` and ``report`` are descriptors of files outside, or -1."""
        self._library.fault_arm(os.fsencode(root.resolve()), fault.kind, fault.at, fault.error, trace, report)

    def clear(self) -> None:
        """The fault is over; numbering and recording go on."""
        self._library.fault_clear()

    def mark(self, text: str) -> None:
        """Put a line into the trace, in its place between the calls."""
        self._library.fault_mark(text.encode())

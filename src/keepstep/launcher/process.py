"""Few Linux calls that Python does not have. Owns prctl and the initial environment block of this process."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when the thread that started it ends; at once if ``parent`` is gone already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")
    if os.getppid() != parent:
        # The parent ended between fork and prctl: the signal would never come.
        os.kill(os.getpid(), signal.SIGKILL)


def write_initial_environment(name: str, value: str) -> None:
    """Overwrites a variable in the block that /proc/<pid>/environ shows, so that a sweep of *other* processes sees it.

    A fork shares its parent's block, and os.environ never reaches it. The value must have the length of the old one.
    Raises LookupError where the variable is not there, ValueError where the length differs.
    """
    with open("/proc/self/environ", "rb") as file:
        block = file.read()
    key = name.encode() + b"="
    at = 0 if block.startswith(key) else block.find(b"\0" + key) + 1
    if not block.startswith(key) and at == 0:
        raise LookupError(f"{name} is not in the initial environment of pid {os.getpid()}")
    at += len(key)
    old = block[at : block.index(b"\0", at)]
    if len(old) != len(value):
        raise ValueError(f"{name} is {len(old)} bytes long in the initial environment, {value!r} is not")
    with open("/proc/self/stat", "rb") as stat_file:
        text = stat_file.read()
    # Field 50, env_start; the fields after the command name begin with number 3.
    start = int(text[text.rindex(b")") + 2 :].split()[50 - 3])
    ctypes.memmove(start + at, value.encode(), len(value))

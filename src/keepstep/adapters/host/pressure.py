"""Pressure stall information: how much of their time processes wait for memory, storage or a processor.

Owns reading ``/proc/pressure`` and the kernel's own triggers on it; must not say what pressure means for a job.
"""

import asyncio
import os
import select
from collections.abc import Callable
from typing import NamedTuple

RESOURCES = ("memory", "io", "cpu")
_TRIGGER = b"full 500000 5000000\0"
"""All tasks together stood for half a second out of five. A window of at least two seconds in steps of two is what the kernel
gives to everybody; five it gives to root alone, so a plain user's is tried next."""
_TRIGGER_PLAIN = b"full 400000 4000000\0"


class Stall(NamedTuple):
    """Shares of time, 0 … 1, over the last 10 and 300 s."""

    some_10: float
    some_300: float
    full_10: float


def parse(text: str) -> Stall | None:
    """None where it is not the kernel's form."""
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        try:
            name, *fields = line.split()
            found[name] = {key: float(value) / 100 for key, _, value in (field.partition("=") for field in fields)}
        except ValueError:
            return None
    some = found.get("some")
    if not some or "avg10" not in some or "avg300" not in some:
        return None
    return Stall(some["avg10"], some["avg300"], found.get("full", {}).get("avg10", 0.0))


def read(root: str, resource: str) -> Stall | None:
    """None where the kernel does not say."""
    try:
        with open(f"{root}/pressure/{resource}", encoding="ascii", errors="replace") as file:
            return parse(file.read(4096))
    except OSError:
        return None


class Trigger:
    """Wakes us when memory is short, without being asked. Closed by ``close``; absent where the kernel refuses."""

    def __init__(self, path: str, wake: Callable[[], None]) -> None:
        """Raises OSError where there are no triggers, or not for us."""
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        # An event loop waits for readable and writable only; a trigger is neither. An epoll of its own is readable.
        self._poll = select.epoll()
        try:
            # Before anything is written: what cannot be waited for is no file of the kernel's.
            self._poll.register(self._file, select.EPOLLPRI)
            self._arm()
        except OSError:
            self._poll.close()
            os.close(self._file)
            raise
        self._loop.add_reader(self._poll.fileno(), self._fired)

    def _arm(self) -> None:
        try:
            os.write(self._file, _TRIGGER)
        except OSError:
            os.write(self._file, _TRIGGER_PLAIN)

    def _fired(self) -> None:
        for _, event in self._poll.poll(0):
            if event & select.EPOLLERR:
                self.close()
                return
        self._wake()

    def close(self) -> None:
        if not self._poll.closed:
            self._loop.remove_reader(self._poll.fileno())
            self._poll.close()
            os.close(self._file)

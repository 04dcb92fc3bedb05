"""The progress cell: 4 KiB of shared memory per rank, written by the rank, read by its launcher.

Reporting a step is a handful of stores into memory, so it can be done at every step of any job. There is one writer; a
reader that catches the writer in the middle sees a torn pair at worst, and every field is judged over many reads. Owns
the layout; must not judge progress.
"""

import mmap
import os
import struct
import time
from typing import NamedTuple

CELL_BYTES = 4096
_MAGIC = 0x4B535031  # "KSP1"
# magic, phase code, step, phase entered ns, last tick ns, last step time ns, loss, ticks, failed flag
_LAYOUT = struct.Struct("<IIqqqqdqI")

claimed_by_session = False
"""True once a keepstep session of this process writes the cell: the launcher's own hooks then keep silent."""

PHASES = ("start", "restore", "step", "checkpoint", "evaluate", "other", "done")


class Progress(NamedTuple):
    """One reading of a cell. Times are CLOCK_MONOTONIC of this machine."""

    phase: str
    step: int
    """Steps completed; -1 before the first report."""
    phase_since_ns: int
    ticked_ns: int
    """When anything last moved: a step, a phase change, a heartbeat inside a phase."""
    step_time_ns: int
    loss: float
    """NaN where none was reported."""
    ticks: int
    failed: bool
    """The rank has written its error file and is going down."""


class ProgressCell:
    """A mapped cell. ``create`` by the launcher, ``open`` by the rank."""

    def __init__(self, path: str, *, create: bool = False) -> None:
        flags = os.O_RDWR | (os.O_CREAT | os.O_TRUNC if create else 0)
        fd = os.open(path, flags, 0o600)
        try:
            if create:
                os.ftruncate(fd, CELL_BYTES)
            self._map = mmap.mmap(fd, CELL_BYTES)
        finally:
            os.close(fd)
        self._phase, self._step, self._since = 0, -1, time.monotonic_ns()
        self._step_time, self._loss, self._ticks, self._failed = 0, float("nan"), 0, 0
        if create:
            self._store()
        else:
            self._load()

    def step_done(self, step: int, step_time_ns: int, loss: float | None = None) -> None:
        """``step`` steps are complete."""
        self._step, self._step_time = step, step_time_ns
        if loss is not None:
            self._loss = loss
        self._store()

    def enter(self, phase: str) -> None:
        self._phase, self._since = PHASES.index(phase), time.monotonic_ns()
        self._store()

    def heartbeat(self) -> None:
        """Something inside a phase moved."""
        self._store()

    def fail(self) -> None:
        """Says that the rank goes down; keeps what another writer of this process (a session) has put here."""
        self._load()
        self._failed = 1
        self._store()

    def _load(self) -> None:
        _, self._phase, self._step, self._since, _, self._step_time, self._loss, self._ticks, self._failed = (
            _LAYOUT.unpack_from(self._map, 0)
        )

    def _store(self) -> None:
        self._ticks += 1
        _LAYOUT.pack_into(
            self._map, 0, _MAGIC, self._phase, self._step, self._since, time.monotonic_ns(),
            self._step_time, self._loss, self._ticks, self._failed,
        )  # fmt: skip

    def read(self) -> Progress:
        _, phase, step, since, ticked, step_time, loss, ticks, failed = _LAYOUT.unpack_from(self._map, 0)
        name = PHASES[phase] if phase < len(PHASES) else "other"
        return Progress(name, step, since, ticked, step_time, loss, ticks, bool(failed))

    def close(self) -> None:
        self._map.close()

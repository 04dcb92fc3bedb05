"""Reports progress to the launcher through the cell, or to nobody. Owns the claim on the cell; judges nothing."""

import keepstep.wire.progress as wire


class ProgressReporter:
    """The progress cell of this rank; without a launcher every call does nothing."""

    def __init__(self, path: str) -> None:
        self._cell = wire.ProgressCell(path) if path else None
        self.phase = "start"
        # The launcher's optimizer hook ticks the cell for scripts that have no session; here it must keep quiet, or a
        # step would count before it is complete.
        wire.claimed_by_session = True

    def enter(self, phase: str) -> None:
        self.phase = phase
        if self._cell is not None:
            self._cell.enter(phase)

    def step_done(self, step: int, step_time_ns: int, loss: float | None) -> None:
        if self._cell is not None:
            self._cell.step_done(step, step_time_ns, loss)

    def heartbeat(self) -> None:
        if self._cell is not None:
            self._cell.heartbeat()

    def close(self) -> None:
        if self._cell is not None:
            self._cell.close()
            self._cell = None

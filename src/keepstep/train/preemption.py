"""SIGTERM outside a launcher: finish the step, save, then leave. Owns the handler; must not save anything itself.

Only a flag is set in the handler. Saving there would see a half-done step, and could deadlock in the allocator or in a
collective. Children that inherit the handler (loader workers) must not believe that the signal is the trainer's.
"""

import os
import signal
import threading
from types import FrameType

EXIT_CODE = 128 + signal.SIGTERM


class Preemption:
    """Remembers a SIGTERM until the end of the step."""

    def __init__(self) -> None:
        self.requested = False
        self._owner = os.getpid()

    def install(self) -> None:
        """Only where nobody else handles SIGTERM: a handler of the script knows better."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_term)

    def remove(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._on_term:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner or self.requested:
            # A child, or somebody who does not want to wait for the end of the step.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.requested = True

"""The embedded server as its clients see it: find it, start it, start it again. Owns its process only."""

import contextlib
import os
import random
import subprocess
import sys
import time

from keepstep.adapters.server_link.credentials import Credentials
from keepstep.adapters.server_link.errors import ServerGone
from keepstep.adapters.server_link.tool import ToolClient
from keepstep.server.state_dir import StateDir
from keepstep.server.views import Leaving

START_WAIT_S = 20.0
SEE_OFF_WAIT_S = 2.0
IDLE_EXIT_S = 15.0
"""An embedded server leaves this long after its last job ended and its last client went."""


class ServerWillNotStart(RuntimeError):
    """The embedded server ended or stayed silent; the message carries the end of its log."""


def running_address(state: StateDir) -> str | None:
    """The address at which a server of this state directory answers right now; None where none does.

    Raises ServerRefused where one answers and declines (another protocol version).
    """
    address = state.address()
    if address is None or not state.token_file.exists():
        return None
    try:
        with _tool(state, address):
            return address
    except ServerGone:
        return None


def _tool(state: StateDir, address: str) -> ToolClient:
    """A server that was started by hand for this state directory may listen over TLS."""
    credentials = Credentials.of(str(state.path), {})
    return ToolClient(address, state.token(), identity_dir=credentials.identity_dir, timeout_s=2.0)


class EmbeddedServer:
    """Keeps a server running for a state directory. Several fronts may do so at once: the lock lets one server live."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._process: subprocess.Popen[bytes] | None = None
        self._answered = False
        """The present process was seen to answer; if it ends after that, another one is started."""

    def ensure(self) -> str:
        """The address of a server that answers; starts one if none does. Blocks; raises ServerWillNotStart."""
        deadline = time.monotonic() + START_WAIT_S
        while (address := running_address(self._state)) is None:
            if time.monotonic() > deadline:
                raise ServerWillNotStart(self._why(f"no server answered within {START_WAIT_S:.0f} s"))
            code = self._process.poll() if self._process is not None else 0
            if code is None:
                time.sleep(0.01)
            elif code > 0 and not self._answered:
                self._process = None
                raise ServerWillNotStart(self._why(f"the server ended with code {code}"))
            else:
                self._start()
        self._answered = True
        return address

    def _start(self) -> None:
        if self._process is not None and not self._answered:
            # The last one left in peace because another holds the lock: that one is on its way up.
            time.sleep(random.uniform(0.02, 0.1))
        argv = [sys.executable, "-m", "keepstep.server", "--state-dir", str(self._state.path)]
        with self._state.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*argv, "--exit-when-idle-s", str(IDLE_EXIT_S)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal is for the job, not for the control plane
            )
        self._answered = False

    def see_off(self) -> None:
        """Let the server end if nobody else needs it, and wait until it has. Blocks for SEE_OFF_WAIT_S at most."""
        try:
            address = running_address(self._state)
            if address is None:
                return
            with _tool(self._state, address) as server:
                leaves = server.query("leave", Leaving).leaves
        except (ServerGone, ValueError):
            return
        if leaves and self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(SEE_OFF_WAIT_S)

    def reap(self) -> None:
        """Collect a server that ended, so that none stays a zombie."""
        if self._process is not None:
            self._process.poll()

    def _why(self, what: str) -> str:
        try:
            with self._state.log.open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - 2000))
                tail = log.read().decode(errors="replace").strip()
        except FileNotFoundError:
            tail = ""
        return f"{what}; the end of {self._state.log} says:\n{tail or '(nothing)'}"

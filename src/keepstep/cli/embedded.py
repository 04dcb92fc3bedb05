"""The embedded server as its clients see it: find it, start it, start it again. Owns its process only."""

import contextlib
import os
import random
import subprocess
import sys
import time

from keepstep.adapters.server_link.credentials import Credentials
from keepstep.adapters.server_link.errors import NoLeader, ServerGone
from keepstep.adapters.server_link.tool import ToolClient
from keepstep.server.state_dir import StateDir
from keepstep.server.views import Leaving

START_WAIT_S = 60.0
"""Long: a machine that is busy, or a disk that stalls, is no reason to give a job up."""
ANSWER_WAIT_S = 2.0
"""How long a server that is there has to answer, before it is looked for anew."""
KEPT_WAIT_S = 30.0
"""How long one that somebody keeps may be away, as where it is started anew, before a run makes one of its own."""
SEE_OFF_WAIT_S = 2.0
IDLE_EXIT_S = 15.0
"""An embedded server leaves this long after its last job ended and its last client went."""


class ServerWillNotStart(RuntimeError):
    """The embedded server ended or stayed silent; the message carries the end of its log."""


def running_address(state: StateDir, wait_s: float = ANSWER_WAIT_S) -> str | None:
    """The address at which a server of this state directory answers right now; None where none does, or where it does not
    lead: it is on its way up, or on its way out.

    Raises ServerRefused where one answers and declines (another protocol version).
    """
    address = state.address()
    if address is None or not state.token_file.exists():
        return None
    try:
        with _tool(state, address, wait_s):
            return address
    except (ServerGone, NoLeader):
        return None


def _tool(state: StateDir, address: str, wait_s: float) -> ToolClient:
    """A server that was started by hand for this state directory may listen over TLS."""
    credentials = Credentials.of(str(state.path), {})
    return ToolClient(address, state.token(), identity_dir=credentials.identity_dir, timeout_s=wait_s)


class EmbeddedServer:
    """Keeps a server running for a state directory. Several fronts may do so at once: the lock lets one server live."""

    def __init__(
        self, state: StateDir, answer_wait_s: float = ANSWER_WAIT_S, kept_wait_s: float = KEPT_WAIT_S
    ) -> None:  # fmt: skip
        self._state = state
        self._answer_wait_s, self._kept_wait_s = answer_wait_s, kept_wait_s
        self._found = False
        """A server answered before."""
        self._process: subprocess.Popen[bytes] | None = None
        self._answered = False
        """The present process was seen to answer; if it ends after that, another one is started."""

    def ensure(self) -> str:
        """The address of a server that answers; starts one if none does. Blocks; raises ServerWillNotStart."""
        if self._found and self._process is None:
            self._await_kept()
        deadline = time.monotonic() + START_WAIT_S
        while (address := running_address(self._state, self._answer_wait_s)) is None:
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
        self._answered = self._found = True
        return address

    def _await_kept(self) -> None:
        """Nothing is lost meanwhile, and one that is made here has neither its dashboard nor its listeners."""
        until_s = time.monotonic() + self._kept_wait_s
        while self._state.kept_file.exists() and time.monotonic() < until_s:
            if running_address(self._state, self._answer_wait_s) is not None:
                return
            time.sleep(0.1)

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
            address = running_address(self._state, self._answer_wait_s)
            if address is None:
                return
            with _tool(self._state, address, self._answer_wait_s) as server:
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

"""The witness on this machine: its process table. Owns ports.HostWitness; must not speak for another machine."""

from typing import Literal

from keepstep.adapters.local import procfs, sweep
from keepstep.core.facts import Witnessed
from keepstep.core.ids import JobId, NodeId, Session

Verdict = Literal["alive", "process_gone", "no_answer"]
"""Of those of a witness, what a process table can say."""


class LocalHost:
    """Looks for a launcher by (pid, start time) under this boot, and ends what a dead one left."""

    def __init__(self) -> None:
        self._boot_id = procfs.boot_id()

    def look(self, job: JobId, node: NodeId, session: Session, boot_id: str, pid: int, pid_start: int) -> Witnessed:
        """``no_answer`` where the launcher lived on another machine or under another boot: nothing is known of it here."""

        def says(verdict: Verdict, detail: str) -> Witnessed:
            return Witnessed(
                job=job,
                node=node,
                session=session,
                witness="host",
                verdict=verdict,
                detail=detail,
            )

        if boot_id != self._boot_id:
            return says("no_answer", f"boot {boot_id or 'unknown'} is not this machine's boot {self._boot_id}")
        if pid <= 0 or pid_start <= 0:
            return says("no_answer", "the launcher did not say which process it is")
        found = procfs.stat(pid)
        if found is None:
            return says("process_gone", f"pid {pid} does not exist")
        if found.start_ticks != pid_start:
            return says("process_gone", f"pid {pid} is another process by now")
        if found.state in "ZX":
            return says("process_gone", f"pid {pid} has ended")
        return says("alive", f"pid {pid} is there, state {found.state}")

    def sweep(self, job: JobId, node: NodeId, session: Session) -> int:
        """Kills everything with the token of this session, its helpers included. Raises sweep.Unkillable.

        For a launcher that is known to be gone: whatever still carries its token may live only because the kernel has
        not finished with it.
        """
        return sweep.sweep(token_of(job, node, session))


def token_of(job: JobId, node: NodeId, session: Session) -> str:
    """The value of KEEPSTEP_TOKEN, see wire.environment."""
    return f"{job}/{node}/{session}"

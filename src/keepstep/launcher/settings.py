"""What the launcher is told at its start, and where its files lie. Read once, in wiring; owns no behaviour."""

import os
from dataclasses import dataclass, field

from keepstep.core.facts import Elasticity, JobSpec
from keepstep.core.ids import JobId, NodeId, Session


@dataclass(frozen=True, kw_only=True)
class Settings:
    server: str
    """Addresses with commas between them."""
    job: JobId
    node: NodeId
    session: Session
    argv: tuple[str, ...]
    """``script.py args…`` or ``-m module args…``."""
    nproc_per_node: int
    min_nodes: int
    max_nodes: int
    state_dir: str
    checkpoint_dir: str
    """Directory, or URL of an object store."""
    log_dir: str
    address: str
    """Where other nodes reach this one."""
    capacity_wait_s: float | None = None
    lease_s: float = 10.0
    """After so long without the server, and without progress, the ranks are ended (design §5)."""
    preload: tuple[str, ...] = ()
    cold_start: bool = False
    checkpoint_keys: str = ""
    """Directory with the key files that wrap the session keys of checkpoints; empty: they are in the clear."""
    checkpoint_keys_command: str = ""
    checkpoint_compress: bool = False
    """Make checkpoints smaller, for a slow link to the store."""
    labels: dict[str, str] = field(default_factory=dict)
    restore_bytes_s: int = 0
    """What all restores from the store together may take; the same for every job that shares it. 0: no limit."""
    priority: str = "normal"
    """Of its restores and saves where several jobs share a store."""
    checkpoint_copies: tuple[str, ...] = ()
    """Further tiers for checkpoints, see ``checkpoint.opening``."""
    run: str = ""
    """The call of ``keepstep run`` that this launcher belongs to."""
    spare: bool = False
    """It is meant to stand by."""
    quiet: bool = False
    """Ranks write to their log files only."""
    agent_dir: str = ""
    """Where the node's agent keeps its files, if not in the state directory."""

    @property
    def token(self) -> str:
        return f"{self.job}/{self.node}/{self.session}"

    @property
    def run_dir(self) -> str:
        """Sockets and other things of this life only; removed at its end."""
        return os.path.join(self.state_dir, "run", self.session)

    def rank_dir(self, generation: int) -> str:
        """Log, stack and error files of one generation."""
        return os.path.join(self.log_dir, self.node, f"g{generation}")

    def job_spec(self) -> JobSpec:
        """The same from every launcher of the job."""
        return JobSpec(
            argv=self.argv,
            nproc_per_node=self.nproc_per_node,
            elasticity=Elasticity(min_nodes=self.min_nodes, max_nodes=self.max_nodes),
            checkpoint_dir=self.checkpoint_dir,
            capacity_wait_s=self.capacity_wait_s,
            labels=self.labels,
        )

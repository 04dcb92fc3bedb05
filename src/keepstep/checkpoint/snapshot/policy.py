"""What a job chooses about its snapshots: gates, replicas, memory. Owns the choices and their defaults.

Travels in Begin, so that a job can change its mind with every generation. Must not do anything itself.
"""

from typing import Literal

from msgspec import Struct


class Gating(Struct, frozen=True, kw_only=True):
    """What a snapshot must satisfy to count. See gates."""

    required: tuple[str, ...] = ()
    """Groups that every snapshot must have. Beyond these, those that earlier ones of the generation had."""
    finite: bool = True
    """Whether a tensor that was finite must stay so."""
    look_every: int = 10
    """Beside durable snapshots and small ones, values are looked at in every so-manieth snapshot of a rank; 0: in none."""
    exempt: tuple[str, ...] = ()
    """Patterns (``model.*.mask``) of tensors that may become infinite or NaN."""
    changing: tuple[str, ...] = ("optim",)
    """A group whose name contains one of these must change while the step advances."""
    unchanged: int = 2
    """The so-manieth durable snapshot in a row that repeats such a group's bytes is refused. 0: none is, for an optimizer that
    is frozen on purpose."""


class Replication(Struct, frozen=True, kw_only=True):
    """Which groups get copies in the memory of peers, and when. See replicas.

    The default costs nothing on one machine, nor where every group exists on nodes of two failure domains already.
    """

    groups: Literal["all"] | tuple[str, ...] = "all"
    every_steps: int = 10
    """Steps that are multiples of it are copied, and every durable one; the number is the same on all ranks, so that they
    copy the same steps. 0: durable ones only."""
    copies: int = 1
    """In how many other failure domains a group shall be. 0: none."""
    domains: dict[str, str] = {}
    """Peer's address (host:port) -> failure domain. A peer that is not named is in the domain of its host."""

    def domain(self, address: str) -> str:
        return self.domains.get(address) or address.rpartition(":")[0]

    def wants(self, step: int, *, durable: bool) -> bool:
        """Whether a step is to be copied."""
        return self.copies > 0 and (durable or (self.every_steps > 0 and step % self.every_steps == 0))

    def covers(self, group: str) -> bool:
        return self.groups == "all" or group in self.groups


class SnapshotPolicy(Struct, frozen=True, kw_only=True):
    gating: Gating = Gating()
    replication: Replication = Replication()
    memory_bytes: int = 0
    """What the snapshot server of a node may hold at most; 0: 60 % of what was free when it started."""
    spill_directory: str = ""
    """Directory of a local disk through which a durable snapshot goes that has no room in memory: slowly, instead of not at
    all. Empty: such a state is not saved, and a notice says so."""
    replica_bytes: int = 0
    """How much of that may be copies for peers; 0: half of it."""

"""What the core's shell needs from outside, as Protocols. An adapter is complete when it passes tests/contracts/<port>."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from keepstep.core.decision import Entry, Record
from keepstep.core.facts import Witnessed
from keepstep.core.ids import JobId, NodeId, Session
from keepstep.core.intents import Order


class Journal(Protocol):
    """Append-only, hash-chained. ``append`` returns when the records are durable."""

    def append(
        self, at_s: float, records: Sequence[Record], origins: Sequence[tuple[Session, int] | None] = ()
    ) -> list[Entry]:
        """``origins``: for each record, the session and number of the report it came in; None for our own."""
        ...

    def received(self) -> dict[Session, int]:
        """Highest report number per session that is in the journal."""
        ...

    def read(self, after: int = 0) -> Iterator[Entry]: ...

    def verify(self) -> int:
        """Check the whole chain; returns the number of entries. Raises JournalCorrupt naming the first bad one."""
        ...

    def close(self) -> None: ...


class Engine(Protocol):
    """Carries orders out. Answers come back as facts, later, perhaps twice, perhaps never."""

    def submit(self, orders: Iterable[Order]) -> None: ...


class HostWitness(Protocol):
    """Says what this very machine knows of a launcher that is silent."""

    def look(self, job: JobId, node: NodeId, session: Session, boot_id: str, pid: int, pid_start: int) -> Witnessed: ...

    def sweep(self, job: JobId, node: NodeId, session: Session) -> int:
        """Kill what a dead launcher left; returns how many. Proof of fencing once it returns without error."""
        ...


class Clock(Protocol):
    def now_s(self) -> float:
        """Seconds that never run backwards and go on through a suspend."""
        ...

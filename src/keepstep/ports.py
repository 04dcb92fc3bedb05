"""What the core's shell needs from outside, as Protocols. An adapter is complete when it passes tests/contracts/<port>."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from keepstep.core.decision import Entry, Record
from keepstep.core.facts import Witnessed
from keepstep.core.ids import JobId, NodeId, Session
from keepstep.core.intents import Order
from keepstep.core.observation import Observation, Same


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


class Outlet(Protocol):
    """Where a source of signals puts what it sees. Calls return at once and never raise."""

    def observe(self, observation: Observation) -> None: ...

    def level(self, part: str, counter: str, value: float) -> None:
        """The present value of a counter or gauge, for the health score; not a signal by itself."""
        ...

    def same(self, same: Same) -> None:
        """Names of one part, for whoever joins evidence."""
        ...

    def coverage(self, state: Literal["seen", "absent", "failing"], detail: str = "") -> None:
        """What this source can see now. ``absent``: there is nothing of its kind here, which is no fault."""
        ...


class Source(Protocol):
    """One source of signals on a node. Waits for events where the kernel or the driver offers them, polls where not.

    Whatever could hang runs in a child process that can be killed; that it hung is a signal (``probe.hung``).
    """

    name: str

    async def run(self, outlet: Outlet) -> None:
        """Until cancelled. Returns early only where there is nothing to see, after saying so as coverage."""
        ...


class BmcReading(Struct, frozen=True, kw_only=True):
    """What one look at a management controller gave."""

    reachable: bool
    power: Literal["on", "off", "unknown"] = "unknown"
    health: str = ""
    """``OK``, ``Warning``, ``Critical``, or empty where nothing is said."""
    boot: str = ""
    """How far the host's start has come, as the controller says it."""
    detail: str = ""
    """Why it is not reachable, or what could not be read."""
    observations: tuple[Observation, ...] = ()
    """Present states, and records of logs that are newer than the cursor."""
    same: tuple[Same, ...] = ()
    complete: bool = True
    """Every part was looked at: a state that is not told any more is over, unless it is below what could not be read."""
    unread: tuple[str, ...] = ()
    """Paths that gave no answer: what is below them is unknown."""
    cursor: dict[str, str] = {}
    """Log -> last record that was read; to be handed in at the next look."""


class Bmc(Protocol):
    """The management controller of one node. Calls block, but never longer than their limit, and never raise on its answers."""

    def look(self, cursor: Mapping[str, str]) -> BmcReading:
        """Where the cursor does not know a log, its old records are history and are left out."""
        ...

    def power(self) -> Literal["on", "off", "unknown"]:
        """The power state alone: quick, for whoever needs a proof."""
        ...

    def switch(self, to: Literal["on", "off", "cycle"]) -> str:
        """Order a change of power, hard. Returns empty where the controller took the order, else why not."""
        ...

    def close(self) -> None: ...

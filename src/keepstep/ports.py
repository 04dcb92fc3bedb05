"""What the core's shell needs from outside, as Protocols. An adapter is complete when it passes tests/contracts/<port>."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from keepstep.core.decision import Entry, Record
from keepstep.core.facts import Witnessed
from keepstep.core.ids import JobId, NodeId, Session
from keepstep.core.intents import Order
from keepstep.core.observation import Observation, Same
from keepstep.review.records import FaultRecord, IncidentRecord, JobRecord


class Deposed(Exception):
    """Another server leads: its term is newer than the one under which was to be written. Nothing was kept."""


class JournalCorrupt(Exception):
    """The chain is broken. ``seq`` is the first bad entry."""

    def __init__(self, seq: int, what: str, where: str) -> None:
        self.seq = seq
        super().__init__(
            f"entry {seq} of {where} {what}; entries before it are sound. Put a copy of the journal back, or move "
            "this one away and start with an empty one: running jobs are found again when their launchers reconnect."
        )


class JournalUnavailable(Exception):
    """The journal's medium fails (disk full, I/O error, no connection). Nothing of the call was kept; it can be tried again."""


class JournalSchemaNewer(Exception):
    """The journal was written by a newer Keepstep."""


class StoredEntry(Struct, frozen=True, kw_only=True):
    """One entry as it is kept: what its hash covers, to the byte. An older version may have written it."""

    seq: int
    at_s: float
    body: bytes
    """msgpack of the record."""
    prev: bytes
    hash: bytes


class Journal(Protocol):
    """Append-only, hash-chained. ``append`` returns when the records are durable.

    Where several servers share it, ``append`` is fenced: it raises Deposed once another one leads (see Leadership).
    """

    def append(
        self, at_s: float, records: Sequence[Record], origins: Sequence[tuple[Session, int] | None] = ()
    ) -> list[Entry]:
        """``origins``: for each record, the session and number of the report it came in; None for our own."""
        ...

    def received(self) -> dict[Session, int]:
        """Highest report number per session that is in the journal."""
        ...

    def read(self, after: int = 0) -> Iterator[Entry]:
        """In order, each checked against the chain. Raises JournalCorrupt at the first bad one, and where ``after`` lies
        before what was compacted away."""
        ...

    def stored(self, after: int = 0) -> Iterator[StoredEntry]:
        """The same as bytes, each checked against the chain: for copies that must prove the same as the original."""
        ...

    def first(self) -> int:
        """Number of the oldest entry that is here; what lies before it was compacted away. 1 where nothing was."""
        ...

    def last(self) -> int:
        """Number of the newest entry; 0 where there is none."""
        ...

    def mentioning(self, subjects_wanted: Sequence[str], *, before: int | None = None, limit: int = 100) -> list[Entry]:
        """Entries about any of the subjects (see core.mentions), newest first; all entries where no subject is named."""
        ...

    def verify(self) -> int:
        """Check the whole chain; returns the number of entries. Raises JournalCorrupt naming the first bad one."""
        ...

    def close(self) -> None: ...


class Snapshot(Struct, frozen=True, kw_only=True):
    """The state of affairs after one entry, so that a start need not read everything before it."""

    seq: int
    hash: str
    """Hex, of entry ``seq``."""
    at_s: float
    body: bytes
    """As ``server.snapshot`` encodes it."""


class Snapshots(Protocol):
    """Beside the journal, in the same database. A snapshot is a convenience until entries were compacted, then it is needed."""

    def newest(self) -> Snapshot | None: ...

    def put(self, snapshot: Snapshot) -> None:
        """Older ones go, but for the last two."""
        ...

    def compact(self, upto: int) -> None:
        """Forget entries up to ``upto``, for which there is a snapshot, and their mentions. The chain from ``upto`` + 1 on
        stays as it is. Raises ValueError where no snapshot covers them."""
        ...


class Page(Struct, frozen=True, kw_only=True):
    """Part of a list."""

    records: tuple[IncidentRecord | JobRecord | FaultRecord, ...]
    next: str = ""
    """Cursor of the following page; empty on the last one."""
    total: int = 0
    """How many match, on all pages."""


class Archive(Protocol):
    """What is over: jobs, incidents and faults, each as a record and as the whole report. A projection of the journal, filled
    by whoever folds it; putting the same one again replaces it."""

    def put(self, seq: int, finished: Sequence[tuple[IncidentRecord | JobRecord | FaultRecord, bytes]]) -> None:
        """``seq``: the journal entry up to which the archive is now complete. The bytes are the report (msgpack of the answer
        of its question); durable when it returns."""
        ...

    def complete_to(self) -> int:
        """Number of the newest journal entry that it has taken account of."""
        ...

    def list(
        self, kind: Literal["incident", "job", "fault"], where: Mapping[str, str] = {}, *, cursor: str = "",
        limit: int = 100, since_s: float = 0.0, until_s: float | None = None,
    ) -> Page:  # fmt: skip
        """Newest first, by the time of their end. ``where``: equal values of ``id``, ``job``, ``tenant`` (several:
        comma-separated), ``state``, ``cause``, ``kind``, ``node``, ``q`` (a word of its id, job, summary or resources, case
        ignored). Raises ValueError for a filter that there is not, and for a cursor that is none."""
        ...

    def get(self, kind: Literal["incident", "job", "fault"], id: str) -> bytes | None:
        """The report."""
        ...

    def records(
        self, kind: Literal["incident", "job", "fault"], since_s: float = 0.0, until_s: float | None = None
    ) -> Iterator[IncidentRecord | JobRecord | FaultRecord]:
        """All that ended in the span, oldest first; for reviews."""
        ...


class Leader(Struct, frozen=True, kw_only=True):
    """Who leads."""

    term: int
    holder: str
    """Identity of that life of a server."""
    address: str
    """Where launchers, agents and tools reach it."""
    expires_in_s: float
    """By the database's clock; not positive: nobody leads."""


class Leadership(Protocol):
    """A lease in the shared database, counted in terms. All times are the database's: no two servers compare clocks."""

    def acquire(self, holder: str, address: str, ttl_s: float) -> int | None:
        """The new term where nobody led, else None. From now on the journal of this connection writes under that term."""
        ...

    def renew(self, ttl_s: float) -> bool:
        """False where another one leads meanwhile."""
        ...

    def release(self) -> None:
        """Let another one lead at once."""
        ...

    def leader(self) -> Leader | None: ...


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

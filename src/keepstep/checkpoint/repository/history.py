"""What the records of a job say when they are taken in order: which checkpoints exist, and in what state. Owns the states and
their moves, and when a record is void. Pure.

A record counts only if the records before it allow it. Who appends one puts the same question to the same records (it lands at
the very next number, or not at all), so no reader ever sees a void record from a sound writer. The rule is here once, for both.

    COMMITTED -> VERIFIED <-> SUSPECT -> CORRUPT;  any -> EXPIRED, which is final
"""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from keepstep.checkpoint.format.records import LogRecord, State
from keepstep.checkpoint.repository.save import Owned

MOVES: dict[str, frozenset[State]] = {
    "committed": frozenset({"verified", "suspect", "corrupt"}),
    "verified": frozenset({"verified", "suspect", "corrupt"}),
    "suspect": frozenset({"verified", "corrupt"}),
    "corrupt": frozenset({"verified"}),
}
"""State of a checkpoint -> what it may become. A corrupt one becomes VERIFIED when it was repaired and read back."""


def key_of(seq: int) -> str:
    """The name that people and other parts use for a commit."""
    return f"{seq:020d}"


class Commit(Struct, frozen=True, kw_only=True):
    """A checkpoint that exists. ``key`` names its record."""

    key: str
    job: str
    generation: int
    step: int
    world_size: int
    size_bytes: int
    at_unix_s: float = 0.0
    state: str = "committed"
    """committed, verified, suspect or corrupt."""
    reason: str = ""
    """Of its state."""
    pinned: bool = False
    fresh: bool = False
    """This very call wrote the record (so its caller verifies it)."""
    folder: str = ""
    """Prefix of its objects under ``steps/``."""
    verified_at_unix_s: float = 0.0
    """When it last became VERIFIED, by the clock of who wrote that; 0 if it is not."""
    failed_restores: tuple[str, ...] = ()
    """Restores from it that failed since one last got on: the attempt of each."""

    @property
    def seq(self) -> int:
        return int(self.key)


class Gone(Struct, frozen=True):
    """A checkpoint that has expired, or a save that was given up. Its objects may still be there."""

    folder: str
    at_unix_s: float
    commit: Commit | None = None
    """As it was; None for a save that never was one."""


class History:
    """The state of one job's checkpoints after some records. Feed it with :meth:`take`, oldest first."""

    def __init__(self) -> None:
        self.generation = -1
        """The newest that has written anything."""
        self.since_unix_s = 0.0
        """When that one's first record was written."""
        self.live: dict[int, Commit] = {}
        self.expired: dict[int, Gone] = {}
        self.given_up: dict[str, Gone] = {}
        """Folder -> the save."""
        self.void: dict[int, str] = {}
        """Records that do not count, and why."""
        self._folders: dict[str, int] = {}

    def commits(self) -> list[Commit]:
        """Newest first."""
        return [self.live[seq] for seq in sorted(self.live, reverse=True)]

    def verified(self) -> list[Commit]:
        """Newest first."""
        return [commit for commit in self.commits() if commit.state == "verified"]

    def of_folder(self, folder: str) -> int | None:
        """The commit, live or expired, of a save."""
        return self._folders.get(folder)

    def keeps(self, of: Owned) -> bool:
        """Whether retention would not think of removing a pack that belongs to this save."""
        seq = self.of_folder(of.folder)
        if seq is not None:
            return seq in self.live
        return of.folder not in self.given_up and of.generation >= self.generation

    def objection(self, record: LogRecord) -> str:
        """Why ``record`` would be void as the next one; empty if it counts."""
        if record.generation < self.generation:
            return f"generation {record.generation} was superseded by generation {self.generation}"
        if record.kind == "commit":
            return self._objection_to_commit(record)
        if record.kind in ("open", "horizon", "adopt"):
            return ""
        if record.kind == "expire" and not record.of:
            return self._objection_to_giving_up(record)
        commit = self.live.get(record.of)
        if commit is None:
            return f"there is no checkpoint {key_of(record.of)}, or it has expired"
        if record.kind == "state" and record.state not in MOVES[commit.state]:
            return f"checkpoint {commit.key} is {commit.state}: it cannot become {record.state or 'nothing'}"
        return self._objection_to_expiry(commit, record) if record.kind == "expire" else ""

    def _objection_to_commit(self, record: LogRecord) -> str:
        if record.folder in self.given_up:
            return f"the save of step {record.step} was given up for newer ones, and its files may be gone"
        if record.folder in self._folders:
            return f"the save of step {record.step} is committed already"
        return ""

    def _objection_to_giving_up(self, record: LogRecord) -> str:
        if record.folder in self._folders:
            return f"{record.folder} was committed"
        return f"{record.folder} was given up already" if record.folder in self.given_up else ""

    def _objection_to_expiry(self, commit: Commit, record: LogRecord) -> str:
        if commit.pinned:
            return f"checkpoint {commit.key} is pinned"
        others = len(self.verified()) - (commit.state == "verified")
        if others < max(record.min_valid, 1):
            return (
                f"checkpoint {commit.key} stays: beside it only {others} are VERIFIED where {record.min_valid} must be"
            )
        return ""

    def take(self, record: LogRecord) -> None:
        """Go on by one record. A void one is noted, and changes nothing but that it shuts out older generations."""
        if record.generation > self.generation:
            self.generation, self.since_unix_s = record.generation, record.at_unix_s
        why = self.objection(record)
        if why:
            self.void[record.seq] = why
            return
        match record.kind:
            case "commit":
                self.live[record.seq] = _commit(record)
                self._folders[record.folder] = record.seq
            case "expire" if not record.of:
                self.given_up[record.folder] = Gone(record.folder, record.at_unix_s)
            case "expire":
                commit = self.live.pop(record.of)
                self.expired[record.of] = Gone(commit.folder, record.at_unix_s, commit)
            case "open" | "horizon" | "adopt":
                return
            case _:
                self.live[record.of] = _changed(self.live[record.of], record)


def _commit(record: LogRecord) -> Commit:
    return Commit(
        key=key_of(record.seq), job=record.job, generation=record.generation, step=record.step,
        world_size=record.world_size, size_bytes=record.size_bytes, at_unix_s=record.at_unix_s, folder=record.folder,
    )  # fmt: skip


def _changed(commit: Commit, record: LogRecord) -> Commit:
    match record.kind:
        case "pin" | "unpin":
            return replace(commit, pinned=record.kind == "pin")
        case "failed" if record.attempt not in commit.failed_restores:
            return replace(commit, failed_restores=(*commit.failed_restores, record.attempt))
        case "progress":
            return replace(commit, failed_restores=())
        case "state" if record.state == "verified":
            return replace(
                commit, state="verified", reason=record.reason, verified_at_unix_s=record.at_unix_s, failed_restores=()
            )
        case "state":
            return replace(commit, state=record.state, reason=record.reason, verified_at_unix_s=0.0)
    return commit


def read(records: Iterable[LogRecord]) -> History:
    """The history that these records, oldest first, make."""
    history = History()
    for record in records:
        history.take(record)
    return history

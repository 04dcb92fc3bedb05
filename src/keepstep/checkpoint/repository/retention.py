"""Which checkpoints may go, and their removal in two steps. Owns deletion: nothing else deletes what was saved.

Decided from the log alone, and only by what was VERIFIED. First a record in the log says what goes, then, ``delay_s`` later,
the objects go. Both the record's writer and its readers judge it by the records before it (see history), so that however
many retentions run at once, no checkpoint goes while fewer than ``min_valid`` others are VERIFIED. Whatever a live commit, a
lease or an expired commit whose time has not come leans on stays. Objects that keepstep would not have named so are never
touched.

Saves that can never be committed go as well: those of an older generation than the log has, and, given up by a record, those
at a step that the job has left behind. A commit of a save that was given up does not count, so the worst that a slow rank
can suffer is that its save fails.
"""

import time
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from keepstep.checkpoint.errors import KeyUnusable, StateInvalid
from keepstep.checkpoint.format.records import LogRecord
from keepstep.checkpoint.repository.compaction import compact
from keepstep.checkpoint.repository.history import Commit, History
from keepstep.checkpoint.repository.leases import Clock, leased
from keepstep.checkpoint.repository.notary import read_manifest
from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.repository.save import PREFIX, Owned, job_mark, manifest_key, owned

TIDY_S = 3600.0
"""A writer that has added nothing for so long is dead."""
_DAMAGED = "a record of the commit log is damaged, and may be the only one that says what is needed: repair it first"


class Policy(Struct, frozen=True, kw_only=True):
    """What stays. ``min_valid`` is a floor under everything else; ``keep`` above it is a wish."""

    keep: int = 3
    """The newest VERIFIED commits, and all that are newer than the oldest of them."""
    min_valid: int = 2
    """Never fewer VERIFIED ones than this."""
    milestone_steps: int = 0
    """Of every so many steps, the first VERIFIED commit stays for good; 0: none."""
    grace_s: float = 0.0
    """A save that was not committed goes only when the job has left its step behind for so long."""
    delay_s: float = 0.0
    """Between the record that says what goes, and its objects."""
    log_records: int = 200
    """The log is cut when it has so many records that say nothing any more, and are older than ``log_age_s``."""
    log_age_s: float = 600.0

    def __post_init__(self) -> None:
        if self.keep < 1 or self.min_valid < 1:
            raise ValueError("keep and min_valid must be at least 1: the last valid checkpoint is never deleted")
        if min(self.milestone_steps, self.grace_s, self.delay_s) < 0:
            raise ValueError("milestone_steps, grace_s and delay_s must not be negative")


class Retained(Struct, frozen=True, kw_only=True):
    """What a retention did."""

    expired: tuple[str, ...] = ()
    """Keys of commits."""
    removed: tuple[str, ...] = ()
    """Keys of objects."""
    waiting: str = ""
    """Why nothing was removed, where that is not because all is in order."""


# ---- deciding


def plan_retention(commits: Sequence[Commit], policy: Policy, held: Iterable[int] = ()) -> list[Commit]:
    """Of commits, newest first, those that may expire now, oldest first. ``held``: numbers of those with a lease. Pure."""
    verified = [commit for commit in commits if commit.state == "verified"]
    stay = max(policy.keep, policy.min_valid)
    if len(verified) < stay:
        return []
    oldest, kept = verified[stay - 1].seq, {*held, *_milestones(verified, policy.milestone_steps)}
    return [
        commit
        for commit in reversed(commits)
        if commit.seq < oldest and commit.seq not in kept and not commit.pinned
    ]  # fmt: skip


def _milestones(verified: Sequence[Commit], every_steps: int) -> set[int]:
    if not every_steps:
        return set()
    first: dict[int, int] = {}
    for commit in verified:
        # Newest first: what stands in the end is the oldest of its stretch of steps.
        first[commit.step // every_steps] = commit.seq
    return set(first.values())


class Standing(Struct, frozen=True, kw_only=True):
    """What decides over objects, taken from the log and the leases at one time."""

    history: History
    held: frozenset[int]
    foreign: frozenset[str]
    """Folders of commits of other jobs."""
    now_unix_s: float
    policy: Policy

    def staying(self) -> list[Commit]:
        """Commits whose objects stay: live ones, and expired ones that are being read or whose time has not come."""
        waiting = [
            gone.commit
            for seq, gone in self.history.expired.items()
            if gone.commit is not None and (seq in self.held or not self._is_due(gone.at_unix_s, self.policy.delay_s))
        ]
        return [*self.history.commits(), *waiting]

    def _is_due(self, since_unix_s: float, after_s: float) -> bool:
        return self.now_unix_s >= since_unix_s + after_s

    def may_remove(self, owner: Owned) -> bool:
        """Whether the objects of a save, as far as no other commit leans on them, may go."""
        if owner.folder in self.foreign:
            return False
        seq = self.history.of_folder(owner.folder)
        if seq is not None:
            return seq in self.history.expired and all(commit.seq != seq for commit in self.staying())
        given_up = self.history.given_up.get(owner.folder)
        if given_up is not None:
            return self._is_due(given_up.at_unix_s, self.policy.delay_s)
        fenced = owner.generation < self.history.generation
        return fenced and self._is_due(self.history.since_unix_s, max(self.policy.grace_s, self.policy.delay_s))

    def is_left_behind(self, owner: Owned) -> bool:
        """Whether a save that is not committed should be given up: a later step was VERIFIED ``grace_s`` ago, and only later
        steps since. A job that was rolled back saves at earlier steps again, and those are not left behind."""
        if owner.folder in self.foreign or owner.folder in self.history.given_up:
            return False
        if self.history.of_folder(owner.folder) is not None or owner.generation < self.history.generation:
            return False
        for commit in self.history.verified():
            if commit.generation < owner.generation or commit.step <= owner.step:
                return False
            if self._is_due(commit.verified_at_unix_s, self.policy.grace_s):
                return True
        return False


# ---- doing


def retain(repository: Repository, policy: Policy, clock: Clock = time.time) -> Retained:
    """Let go of what ``policy`` makes unnecessary: expire, then remove what is due, which may be from earlier retentions.

    Raises OSError or Superseded. Interrupted at any point, the next one goes on.
    """
    expired, why = expire(repository, policy, clock)
    removed, waiting = sweep(repository, policy, clock)
    if not waiting:
        compact(repository, older_than_unix_s=clock() - policy.log_age_s, at_least=policy.log_records)
    return Retained(expired=tuple(expired), removed=tuple(removed), waiting=why or waiting)


def expire(repository: Repository, policy: Policy, clock: Clock = time.time) -> tuple[list[str], str]:
    """Write down which commits go; returns their keys, or why none may. Their objects are still there."""
    commits = repository.commits()
    if repository.log.damaged():
        return [], _DAMAGED
    held = leased(repository.store, repository.job, clock())
    if not plan_retention(commits, policy, held):
        return [], ""
    done = []
    for commit in plan_retention(_doubted(repository, commits), policy, held):
        try:
            _append(repository, of=commit.seq, min_valid=policy.min_valid)
        except StateInvalid:
            # Something happened meanwhile: it was pinned, a newer one turned out damaged, another retention was faster.
            continue
        done.append(commit.key)
    return done, ""


def _doubted(repository: Repository, commits: Sequence[Commit]) -> list[Commit]:
    """The commits, where VERIFIED ones that could not be loaded now do not count as such: one that is forged, or of which the
    key is gone, must not push out real ones."""
    found = []
    for commit in commits:
        try:
            if commit.state == "verified":
                repository.manifest(commit.key)
        except (KeyUnusable, StateInvalid):
            commit = replace(commit, state="suspect")
        found.append(commit)
    return found


def _append(repository: Repository, *, of: int = 0, folder: str = "", min_valid: int = 0) -> None:
    draft = LogRecord(
        seq=0, kind="expire", job=repository.job, generation=max(repository.history().generation, 0), previous="",
        writer="", at_unix_s=0.0, of=of, folder=folder, min_valid=min_valid,
    )  # fmt: skip
    repository.log.append(draft, lambda _: False)


def sweep(repository: Repository, policy: Policy, clock: Clock = time.time) -> tuple[list[str], str]:
    """Remove the objects of what has expired or can never be committed. Returns their keys, and why not more."""
    repository.store.tidy(TIDY_S)
    objects = _objects(repository)
    now = standing(repository, policy, clock)
    if repository.log.damaged():
        # A record that cannot be read may be the only thing that says an object is needed.
        return [], _DAMAGED
    if not now.history.verified():
        return [], ""
    behind = sorted({owner.folder for _, owner in objects if now.is_left_behind(owner)})
    if behind:
        _give_up(repository, behind)
        now = standing(repository, policy, clock)
    try:
        needed = {key for commit in now.staying() for key in _packs(repository, commit)}
    except StateInvalid as error:
        # So may a manifest.
        return [], str(error)
    removed = []
    for key, owner in objects:
        if key not in needed and now.may_remove(owner):
            repository.store.delete(key)
            removed.append(key)
    return removed, ""


def _give_up(repository: Repository, folders: Iterable[str]) -> None:
    for folder in folders:
        try:
            _append(repository, folder=folder)
        except StateInvalid:
            # It was committed, or somebody else gave it up.
            continue


def standing(repository: Repository, policy: Policy, clock: Clock) -> Standing:
    """Looks at the log first and at the leases then, see leases."""
    repository.log.refresh()
    others = (job for job in repository.log.jobs() if job != repository.job)
    return Standing(
        history=repository.history(),
        foreign=frozenset(
            record.folder for job in others for record in repository.log.records(job) if record.kind == "commit"
        ),
        held=frozenset(leased(repository.store, repository.job, clock())),
        now_unix_s=clock(),
        policy=policy,
    )


def _packs(repository: Repository, commit: Commit) -> list[str]:
    """Keys of the packs that a commit needs. Raises StateInvalid."""
    record = repository.log.record(commit.seq)
    try:
        manifest, _ = read_manifest(repository.store, record)
    except StateInvalid:
        is_live = commit.seq in repository.history().live
        if is_live or repository.store.size(manifest_key(record.folder, record.manifest)) is not None:
            raise
        # Its removal had begun.
        return []
    return [entry.key for entry in manifest.packs]


def _objects(repository: Repository) -> list[tuple[str, Owned]]:
    """Those of the job's saves."""
    mark = job_mark(repository.job)
    found = ((entry.key, owned(entry.key)) for entry in repository.store.list(PREFIX))
    return [(key, owner) for key, owner in found if owner is not None and owner.mark == mark]

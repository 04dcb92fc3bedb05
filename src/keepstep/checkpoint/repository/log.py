"""The commit log: ``commits/<20 digits>.json`` in a store, created if absent, hash-chained. Owns what exists and who may write.

A record appears whole or not at all, at the next free number, so two writers cannot both have it. A writer looks at the
log before each try: one that finds a newer generation of its job stops for good, and one whose record would not count any
more (see history) does not write it. A ``horizon`` record lets older ones go: it names those up to itself that stay, each with
its digest, so the chain stays provable from there on. Must not touch checkpoint data.
"""

import errno
import re
import secrets
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from keepstep.checkpoint.errors import SaveFailed, StateInvalid, Superseded
from keepstep.checkpoint.format.records import LogRecord, seal, unseal
from keepstep.checkpoint.repository import history
from keepstep.checkpoint.repository.history import History
from keepstep.checkpoint.repository.history import key_of as key_of
from keepstep.checkpoint.state.blob import digest_of
from keepstep.checkpoint.stores.port import Store

MAX_APPEND_TRIES = 1000
"""Each lost race means another writer got on, so this many in a row is a broken store."""
MAX_READS = 3
PREFIX = "commits/"
_NAME = re.compile(r"commits/(\d{20})\.json")


class Notary(Protocol):
    """What a writer asks of a record beyond the rules of the history, and adds to it."""

    def check(self, draft: LogRecord, log: "CommitLog") -> None:
        """Raises SaveFailed or StateInvalid if ``draft`` must not follow what the log has now."""
        ...

    def sign(self, record: LogRecord) -> LogRecord:
        """``record`` with what proves its origin. Raises a key error."""
        ...


class _Seen(msgspec.Struct):
    """A record as it was read; records never change, so it is read once."""

    digest: str
    record: LogRecord | None
    why: str = ""


class _Believed(NamedTuple):
    """What all that was read amounts to."""

    records: list[LogRecord]
    wrong: dict[int, str]
    histories: dict[str, History]


class CommitLog:
    """The records of one store. Not for use by two threads at once."""

    def __init__(self, store: Store, notary: Notary | None = None) -> None:
        self._store, self._notary = store, notary
        self._seen: dict[int, _Seen] = {}
        self._believed: _Believed | None = None
        self._horizon = 0
        self._kept: dict[int, str] = {}

    # ---- looking

    def refresh(self) -> None:
        """Read the records that are new since the last look, and forget those that a horizon let go. Raises OSError where one
        cannot be read: what it says may change everything."""
        for last in range(MAX_READS, 0, -1):
            numbers = self._numbers()
            for gone in set(self._seen) - numbers:
                del self._seen[gone]
                self._believed = None
            # A record that is listed and cannot be read may have gone since: another look tells.
            why = self._read_new(numbers)
            if not why:
                return
            if last == 1:
                raise OSError(
                    errno.EIO, f"{why}, so nothing is known for sure about what is saved in {self._store.name}"
                )

    def _numbers(self) -> set[int]:
        return {int(match[1]) for entry in self._store.list(PREFIX) if (match := _NAME.fullmatch(entry.key))}

    def _read_new(self, numbers: set[int]) -> str:
        """Why a record cannot be read; empty if all were."""
        # From the end, so that a horizon tells which of the others need not be read.
        for seq in sorted(numbers, reverse=True):
            if seq in self._seen and self._seen[seq].digest:
                continue
            if self.is_let_go(seq):
                continue
            seen = self._seen[seq] = self._read(seq)
            self._believed = None
            if not seen.digest:
                return seen.why
            if seen.record is not None and seen.record.kind == "horizon" and seen.record.of > self._horizon:
                self._look_from(seen.record)
        return ""

    def _look_from(self, record: LogRecord) -> None:
        self._horizon = record.of
        self._kept = {int(seq): digest for seq, digest in record.kept.items() if seq.isdecimal()}
        for seq in [seq for seq in self._seen if self.is_let_go(seq)]:
            del self._seen[seq]

    def reread(self, seq: int) -> LogRecord:
        """Record ``seq`` as the disk holds it now, whatever was read before. Raises StateInvalid."""
        if seq in self._seen:
            self._seen[seq] = self._read(seq)
            self._believed = None
        return self.record(seq)

    def _read(self, seq: int) -> _Seen:
        """Read a record. Bytes that look damaged are believed to be so only if two readings in a row agree."""
        seen = self._read_once(seq)
        for _ in range(MAX_READS if seen.record is None else 0):
            again = self._read_once(seq)
            if again.record is not None or (again.digest and again.digest == seen.digest):
                return again
            seen = again
        return seen

    def _read_once(self, seq: int) -> _Seen:
        name = name_of(seq)
        try:
            data = self._store.read(name)
        except OSError as error:
            return _Seen("", None, f"{name} cannot be read: {error.strerror or error}")
        try:
            record = unseal(data, LogRecord, name)
        except StateInvalid as error:
            return _Seen(digest_of(data), None, str(error))
        if record.seq != seq:
            return _Seen(digest_of(data), None, f"{name} says that it is record {record.seq}")
        return _Seen(digest_of(data), record)

    # ---- what it says

    def tail(self) -> int:
        """The highest number in use; 0 if the log is empty. Numbers are never used again."""
        return max(self._seen, default=0)

    def record(self, seq: int) -> LogRecord:
        """Record ``seq``. Raises StateInvalid if it is absent, damaged, or its successor says it was another one."""
        seen = self._seen.get(seq)
        if seen is None:
            raise StateInvalid(f"there is no commit record {seq}")
        if seen.record is None:
            raise StateInvalid(seen.why)
        successor = self._seen.get(seq + 1)
        if successor is not None and successor.record is not None and successor.record.previous != seen.digest:
            raise StateInvalid(f"commit record {seq} is not the one that record {seq + 1} follows: it was exchanged")
        if seq <= self._horizon and self._kept.get(seq) != seen.digest:
            raise StateInvalid(f"commit record {seq} is not the one that the horizon kept: it was exchanged")
        return seen.record

    def digest(self, seq: int) -> str:
        """Of the whole object of record ``seq``, which :meth:`record` must have returned."""
        return self._seen[seq].digest

    def expected_digest(self, seq: int) -> str:
        """What the chain says of record ``seq``, whether or not it is there; empty if it says nothing."""
        if seq <= self._horizon:
            return self._kept.get(seq, "")
        successor = self._seen.get(seq + 1)
        return "" if successor is None or successor.record is None else successor.record.previous

    def forget(self, seq: int) -> None:
        """Record ``seq`` was put back: read it again."""
        self._seen.pop(seq, None)
        self._believed = None

    def _belief(self) -> _Believed:
        if self._believed is None:
            records, wrong = [], {}
            for seq in sorted(self._seen):
                try:
                    records.append(self.record(seq))
                except StateInvalid as error:
                    wrong[seq] = str(error)
            expected = {*self._kept, *range(self._horizon + 1, self.tail())}
            absent = {
                seq: f"commit record {seq} is missing from {self._store.name}" for seq in expected - set(self._seen)
            }
            self._believed = _Believed(records, wrong | absent, {})
        return self._believed

    def jobs(self) -> list[str]:
        """Every job that the log has records of, in order of appearance."""
        return list(dict.fromkeys(record.job for record in self._belief().records))

    def records(self, job: str) -> list[LogRecord]:
        """The sound records of a job, oldest first."""
        return [record for record in self._belief().records if record.job == job]

    def history(self, job: str) -> History:
        """What they say. Not to be changed."""
        histories = self._belief().histories
        if job not in histories:
            histories[job] = history.read(self.records(job))
        return histories[job]

    def damaged(self) -> dict[int, str]:
        """Number -> why, of the records that cannot be believed."""
        return dict(self._belief().wrong)

    def is_let_go(self, seq: int) -> bool:
        """Whether a horizon says that record ``seq`` has nothing more to say."""
        return seq <= self._horizon and seq not in self._kept

    def beyond_horizon(self) -> list[str]:
        """Keys of records that a horizon let go and that are still there."""
        return [name_of(seq) for seq in sorted(self._numbers()) if self.is_let_go(seq)] if self._horizon else []

    def check_not_superseded(self, job: str, generation: int) -> None:
        """Raises Superseded if a newer generation of the job has opened the log."""
        newest = self.history(job).generation
        if newest > generation:
            raise Superseded(
                f"generation {newest} of job {job} writes to {self._store.name}: generation {generation} must stop."
                " If that is an older run whose state directory is gone, choose another checkpoint directory or job id"
            )

    # ---- writing

    def append(self, draft: LogRecord, same: Callable[[LogRecord], bool]) -> tuple[LogRecord, bool]:
        """Append ``draft`` (its seq, previous, writer and time are filled in here); returns it as written, and True.

        If a record for which ``same`` holds is there already, that one and False: two committers make one record.
        Raises Superseded; SaveFailed (a commit) or StateInvalid if the record would not count after those before it; or
        OSError with nothing written, as far as can be told.
        """
        writer = secrets.token_hex(8)
        for _ in range(MAX_APPEND_TRIES):
            self.refresh()
            known = self.records(draft.job)
            for record in known:
                # Whoever was superseded right after it wrote has written.
                if record.writer == writer:
                    return record, True
            self.check_not_superseded(draft.job, draft.generation)
            for record in known:
                if same(record):
                    return record, False
            self._check(draft)
            record = self._next(draft, writer)
            try:
                self._store.create(name_of(record.seq), seal(record))
            except OSError:
                # A time-out leaves it open whether the record is there: reading back tells.
                self.refresh()
                if not any(record.writer == writer for record in self.records(draft.job)):
                    raise
        raise SaveFailed(f"{self._store.name} does not accept a new record: names are taken but cannot be listed")

    def _check(self, draft: LogRecord) -> None:
        objection = self.history(draft.job).objection(draft)
        if objection:
            raise SaveFailed(objection) if draft.kind == "commit" else StateInvalid(objection)
        if draft.kind == "horizon" and not self._is_in_place(draft):
            raise StateInvalid("another process has cut the log meanwhile")
        if self._notary is not None:
            self._notary.check(draft, self)

    def _is_in_place(self, horizon: LogRecord) -> bool:
        """Whether a horizon lets something go, and keeps only what is still there."""
        there = {str(seq): seen.digest for seq, seen in self._seen.items()}
        return horizon.of > self._horizon and all(there.get(seq) == digest for seq, digest in horizon.kept.items())

    def _next(self, draft: LogRecord, writer: str) -> LogRecord:
        tail = self.tail()
        record = msgspec.structs.replace(
            draft,
            seq=tail + 1,
            previous=self._seen[tail].digest if tail else "",
            writer=writer,
            at_unix_s=time.time(),
        )
        return record if self._notary is None else self._notary.sign(record)

    def open_generation(self, job: str, generation: int, restored_from: str) -> LogRecord:
        """Shut out every older generation of the job. Idempotent; raises Superseded if a newer one was here first."""
        draft = LogRecord(
            seq=0, kind="open", job=job, generation=generation, previous="", writer="", at_unix_s=0.0,
            restored_from=restored_from,
        )  # fmt: skip
        return self.append(draft, lambda record: record.kind == "open" and record.generation == generation)[0]


def name_of(seq: int) -> str:
    """Key of the object of a record."""
    return f"{PREFIX}{key_of(seq)}.json"

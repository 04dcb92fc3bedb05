"""The commit log: ``commits/<20 digits>.json``, created if absent, hash-chained. Owns what exists and who may write.

A record appears whole or not at all, at the next free number, so two writers cannot both have it. A writer looks at the
log before each try: one that finds a newer generation of its job stops for good. Must not touch checkpoint data.
"""

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from keepstep.checkpoint.blob import digest_of
from keepstep.checkpoint.errors import SaveFailed, StateInvalid, Superseded
from keepstep.checkpoint.files import create_file, make_directory, sync_directory
from keepstep.checkpoint.records import LogRecord, seal, unseal

MAX_APPEND_TRIES = 1000
"""Each lost race means another writer got on, so this many in a row is a broken file system."""


class _Seen(msgspec.Struct):
    """A record file as it was read; files never change, so it is read once."""

    digest: str
    record: LogRecord | None
    why: str = ""


class CommitLog:
    """One directory of records. Not for use by two threads at once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: dict[int, _Seen] = {}

    def refresh(self) -> None:
        """Read the records that are new since the last look."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return
        for name in sorted(names):
            stem, dot, suffix = name.partition(".")
            if (dot, suffix) == (".", "json") and len(stem) == 20 and stem.isdecimal() and self._is_new(int(stem)):
                self._seen[int(stem)] = self._read(int(stem))

    def _is_new(self, seq: int) -> bool:
        return seq not in self._seen or not self._seen[seq].digest

    def reread(self, seq: int) -> LogRecord:
        """Record ``seq`` as the disk holds it now, whatever was read before. Raises StateInvalid."""
        if seq in self._seen:
            self._seen[seq] = self._read(seq)
        return self.record(seq)

    def _read(self, seq: int) -> _Seen:
        path = self._path(seq)
        try:
            data = path.read_bytes()
        except OSError as error:
            return _Seen("", None, f"{path.name} cannot be read: {error.strerror}")
        try:
            record = unseal(data, LogRecord, path.name)
        except StateInvalid as error:
            return _Seen(digest_of(data), None, str(error))
        if record.seq != seq:
            return _Seen(digest_of(data), None, f"{path.name} says that it is record {record.seq}")
        return _Seen(digest_of(data), record)

    def _path(self, seq: int) -> Path:
        return self._directory / f"{seq:020d}.json"

    def tail(self) -> int:
        """The highest number in use; 0 if the log is empty."""
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
        return seen.record

    def records(self, job: str) -> list[LogRecord]:
        """The sound records of a job, oldest first."""
        return [record for record, _ in self._sound() if record is not None and record.job == job]

    def damaged(self) -> dict[int, str]:
        """Number -> why, of the records that cannot be believed."""
        return {
            seq: why for seq, (record, why) in zip(sorted(self._seen), self._sound(), strict=True) if record is None
        }

    def _sound(self) -> list[tuple[LogRecord | None, str]]:
        found: list[tuple[LogRecord | None, str]] = []
        for seq in sorted(self._seen):
            try:
                found.append((self.record(seq), ""))
            except StateInvalid as error:
                found.append((None, str(error)))
        return found

    def check_not_superseded(self, job: str, generation: int) -> None:
        """Raises Superseded if a newer generation of the job has opened the log."""
        newest = max((record.generation for record in self.records(job)), default=generation)
        if newest > generation:
            raise Superseded(
                f"generation {newest} of job {job} writes to {self._directory.parent}: generation {generation} must stop."
                " If that is an older run whose state directory is gone, choose another checkpoint directory or job id"
            )

    def append(self, draft: LogRecord, same: Callable[[LogRecord], bool]) -> tuple[LogRecord, bool]:
        """Append ``draft`` (its seq, previous, writer and time are filled in here); returns it as written, and True.

        If a record for which ``same`` holds is there already, that one and False: two committers make one record.
        Raises Superseded, or OSError with nothing written.
        """
        make_directory(self._directory)
        writer = secrets.token_hex(8)
        for _ in range(MAX_APPEND_TRIES):
            self.refresh()
            self.check_not_superseded(draft.job, draft.generation)
            for record in self.records(draft.job):
                if same(record) or record.writer == writer:
                    return record, record.writer == writer
            tail = self.tail()
            record = msgspec.structs.replace(
                draft,
                seq=tail + 1,
                previous=self._seen[tail].digest if tail else "",
                writer=writer,
                at_unix_s=time.time(),
            )
            if create_file(self._path(record.seq), seal(record)):
                sync_directory(self._directory)
        raise SaveFailed(f"{self._directory} does not accept a new record: names are taken but cannot be listed")

    def open_generation(self, job: str, generation: int, restored_from: str) -> LogRecord:
        """Shut out every older generation of the job. Idempotent; raises Superseded if a newer one was here first."""
        draft = LogRecord(
            seq=0, kind="open", job=job, generation=generation, previous="", writer="", at_unix_s=0.0,
            restored_from=restored_from,
        )  # fmt: skip
        return self.append(draft, lambda record: record.kind == "open" and record.generation == generation)[0]

"""Cutting the commit log: records that say nothing any more go. Owns which those are.

A ``horizon`` record names the last record that may go, and those up to it that stay, each with its digest. What stays: all that
makes the present state of live checkpoints, a record of each job's newest generation (its fence), adopted checkpoints,
and saves that were given up while their files are there. So the same history follows from what is left, for every job. The
horizon stops before a checkpoint that has expired and still has files: its ``expire`` record counts only after records that
may have gone.
"""

import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.format.records import LogRecord
from keepstep.checkpoint.repository.history import History
from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.repository.save import PREFIX, owned


def plan_horizon(
    records: Sequence[LogRecord],
    histories: Mapping[str, History],
    folders: Iterable[str],
    older_than_unix_s: float,
) -> tuple[int, set[int]]:
    """The last number that may go, and the numbers up to it that stay. (0, …) if the log must stay as it is. Pure.

    ``records``: of all jobs, oldest first. ``folders``: those that have files.
    """
    there = set(folders)
    last = 0
    for record in records:
        if record.at_unix_s >= older_than_unix_s:
            break
        last = record.seq
    for history in histories.values():
        unfinished = [seq for seq, gone in history.expired.items() if gone.folder in there]
        last = min([last, *(seq - 1 for seq in unfinished)])
        if any(seq > last for seq in history.void):
            # Void because of records that would go, perhaps.
            return 0, set()
    stay: set[int] = set()
    for job, history in histories.items():
        stay |= _telling([record for record in records if record.job == job], history, there)
    return last, {seq for seq in stay if seq <= last}


def _telling(records: Sequence[LogRecord], history: History, there: set[str]) -> set[int]:
    """Records of one job that make its present state."""
    stay, states, pins, failures = set[int](), dict[int, int](), dict[int, int](), dict[int, list[int]]()
    for record in records:
        if record.seq in history.void:
            continue
        match record.kind:
            case "adopt":
                stay.add(record.seq)
            case "expire" if not record.of and record.folder in there:
                stay.add(record.seq)
            case "state":
                states[record.of] = record.seq
                if record.state == "verified":
                    failures.pop(record.of, None)
            case "pin" | "unpin":
                pins[record.of] = record.seq
            case "failed":
                failures.setdefault(record.of, []).append(record.seq)
            case "progress":
                failures.pop(record.of, None)
    for seq in history.live:
        stay |= {seq, *failures.get(seq, ())}
        stay |= {kind[seq] for kind in (states, pins) if seq in kind}
    if not any(record.seq in stay and record.generation == history.generation for record in records):
        stay |= set(itertools.islice((r.seq for r in records if _is_fence(r, history)), 1))
    return stay


def _is_fence(record: LogRecord, history: History) -> bool:
    """Whether a record shuts out older generations and, without those around it, says nothing else. An expired commit would
    live again."""
    inert = record.kind in ("open", "horizon", "adopt", "progress") or (record.kind == "expire" and not record.of)
    about_nothing = record.of > 0 and record.of not in history.live
    return record.generation == history.generation and (inert or about_nothing)


def compact(repository: Repository, *, older_than_unix_s: float, at_least: int) -> int:
    """Cut the log if ``at_least`` records may go, and finish a cut that was interrupted. Returns how many records went.

    Raises OSError or Superseded.
    """
    log, store = repository.log, repository.store
    log.refresh()
    if log.damaged():
        return 0
    records = [record for job in log.jobs() for record in log.records(job)]
    records.sort(key=lambda record: record.seq)
    if len(records) >= at_least:
        _cut(repository, records, older_than_unix_s, at_least)
    gone = log.beyond_horizon()
    for key in gone:
        store.delete(key)
    return len(gone)


def _cut(repository: Repository, records: Sequence[LogRecord], older_than_unix_s: float, at_least: int) -> None:
    log = repository.log
    folders = {owner.folder for entry in repository.store.list(PREFIX) if (owner := owned(entry.key)) is not None}
    last, stay = plan_horizon(records, {job: log.history(job) for job in log.jobs()}, folders, older_than_unix_s)
    if sum(record.seq <= last and record.seq not in stay for record in records) >= at_least:
        draft = LogRecord(
            seq=0, kind="horizon", job=repository.job, generation=max(repository.history().generation, 0), previous="",
            writer="", at_unix_s=0.0, of=last, kept={str(seq): log.digest(seq) for seq in sorted(stay)},
        )  # fmt: skip
        with contextlib.suppress(StateInvalid):
            log.append(draft, lambda _: False)

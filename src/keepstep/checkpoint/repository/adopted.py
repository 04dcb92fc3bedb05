"""Foreign checkpoints in the commit log: what was adopted, and when. Owns the ``adopt`` records of a job.

The files stay where they are and are never deleted by keepstep; the record says with which digests they were found. What was
not fit for use is not taken in.
"""

import msgspec
from msgspec import Struct

from keepstep.checkpoint.adopt.adopted import Adopted
from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.format.records import LogRecord
from keepstep.checkpoint.repository.log import key_of
from keepstep.checkpoint.repository.repository import Repository


class Registered(Struct, frozen=True, kw_only=True):
    """A foreign checkpoint that is in the log. ``key`` names its record."""

    key: str
    job: str
    at_unix_s: float
    reason: str
    adopted: Adopted
    fresh: bool = False
    """This very call wrote the record."""


def register(repository: Repository, adopted: Adopted, reason: str = "") -> Registered:
    """Write an adopted checkpoint into the log. Once: the same files at the same path are one record.

    Raises StateInvalid, with all reasons, for one that has problems; Superseded or OSError.
    """
    if adopted.problems:
        raise StateInvalid(f"{adopted.path} is not fit for use and was not registered: {'; '.join(adopted.problems)}")
    # As it is read back: the log is JSON.
    told = msgspec.json.decode(msgspec.json.encode(adopted))
    repository.log.refresh()
    draft = LogRecord(
        seq=0, kind="adopt", job=repository.job, previous="", writer="", at_unix_s=0.0,
        generation=max(repository.history().generation, 0),
        step=-1 if adopted.step is None else adopted.step, world_size=adopted.world_size or 0,
        size_bytes=sum(file.size_bytes for file in adopted.files), reason=reason, adopted=told,
    )  # fmt: skip
    record, fresh = repository.log.append(draft, lambda known: known.kind == "adopt" and known.adopted == told)
    return msgspec.structs.replace(_registered(record), fresh=fresh)


def registered(repository: Repository) -> list[Registered]:
    """The adopted checkpoints of the job, newest first. Raises StateInvalid for a record of a newer keepstep, or OSError."""
    repository.log.refresh()
    records = repository.log.records(repository.job)
    return [_registered(record) for record in reversed(records) if record.kind == "adopt"]


def _registered(record: LogRecord) -> Registered:
    try:
        adopted = msgspec.convert(record.adopted, type=Adopted)
    except msgspec.ValidationError as error:
        raise StateInvalid(f"record {key_of(record.seq)} adopts what this keepstep does not know: {error}") from error
    return Registered(
        key=key_of(record.seq), job=record.job, at_unix_s=record.at_unix_s, reason=record.reason, adopted=adopted
    )

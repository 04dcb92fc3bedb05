"""Readers of a job's own evidence: flight recorder, stacks, error files, logs, metrics."""

from keepstep.evidence.job import elastic, flight_recorder, log, metrics, stacks
from keepstep.evidence.reading import Reader

READERS: tuple[Reader, ...] = (
    flight_recorder.READER, stacks.READER, elastic.READER, metrics.READER, metrics.TABLE_READER, log.READER,
)  # fmt: skip

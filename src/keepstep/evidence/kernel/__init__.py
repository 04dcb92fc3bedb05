"""Readers of kernel evidence. Adds no knowledge of its own."""

from keepstep.evidence.kernel import fabric_manager, notes, reader
from keepstep.evidence.reading import Reader

READERS: tuple[Reader, ...] = (reader.READER, fabric_manager.READER, notes.READER)

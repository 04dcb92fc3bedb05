"""Which reader reads a document: by its content, never by its name."""

from keepstep.evidence import bmc, gate, gpu, job, kernel, mixed, network, scheduler, storage
from keepstep.evidence.document import Document
from keepstep.evidence.reading import Reader, Reading

READERS: tuple[Reader, ...] = (
    *kernel.READERS, *gpu.READERS, *bmc.READERS, *network.READERS, *storage.READERS,
    *scheduler.READERS, *gate.READERS, *job.READERS,
)  # fmt: skip

MIN_CONFIDENCE = 0.3


def recognise(document: Document) -> Reader | None:
    """The reader that is surest of a document; None where nobody is."""
    found = _surest(document)
    return found[0] if found is not None else None


def _surest(document: Document) -> tuple[Reader, float] | None:
    best, sure = None, MIN_CONFIDENCE
    for reader in READERS:
        confidence = reader.recognise(document)
        if confidence > sure or (best is None and confidence >= sure):
            best, sure = reader, confidence
    return (best, sure) if best is not None else None


def read(document: Document) -> Reading | None:
    """What a document says; None where no reader knows its form. Of a bundle, what its outputs say together."""
    if mixed.is_mixed(document) and (reading := mixed.read(document, _surest)) is not None:
        return reading
    reader = recognise(document)
    return reader.read(document) if reader is not None else None

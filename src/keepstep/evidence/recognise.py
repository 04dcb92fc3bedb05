"""Which reader reads a document: by its content, never by its name."""

from keepstep.evidence import bmc, gpu, job, kernel, network, storage
from keepstep.evidence.document import Document
from keepstep.evidence.reading import Reader, Reading

READERS: tuple[Reader, ...] = (
    *kernel.READERS, *gpu.READERS, *bmc.READERS, *network.READERS, *storage.READERS, *job.READERS,
)  # fmt: skip

MIN_CONFIDENCE = 0.3


def recognise(document: Document) -> Reader | None:
    """The reader that is surest of a document; None where nobody is."""
    best, sure = None, MIN_CONFIDENCE
    for reader in READERS:
        confidence = reader.recognise(document)
        if confidence > sure or (best is None and confidence >= sure):
            best, sure = reader, confidence
    return best


def read(document: Document) -> Reading | None:
    """What a document says; None where no reader knows its form."""
    reader = recognise(document)
    return reader.read(document) if reader is not None else None

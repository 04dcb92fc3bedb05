"""What stands in a checkpoint directory beside the group blobs: receipts, manifests, log records. Owns their shapes.

Each is one JSON document in an envelope that carries the digest of its body, so that a flipped bit anywhere in the file
is seen. Fields are only ever added, with a default; ``format`` grows when an old reader would misread.
"""

from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from keepstep.checkpoint.blob import digest_of
from keepstep.checkpoint.errors import StateInvalid

FORMAT = 1
MAX_RECORD_BYTES = 256 * 1024 * 1024


class Group(Struct, frozen=True, kw_only=True):
    """One group blob: content address and size."""

    digest: str
    size_bytes: int


class Receipt(Struct, frozen=True, kw_only=True):
    """One rank's part of a save is durable."""

    job: str
    generation: int
    step: int
    attempt: str
    rank: int
    world_size: int
    groups: dict[str, Group]
    format: int = FORMAT


class Manifest(Struct, frozen=True, kw_only=True):
    """A whole checkpoint. Immutable; its bytes follow from the receipts and the parent alone."""

    job: str
    generation: int
    step: int
    attempt: str
    world_size: int
    ranks: tuple[dict[str, str], ...]
    """Per rank: group name -> digest."""
    sizes_bytes: dict[str, int]
    """Digest -> size of its blob."""
    parent: int
    """Sequence number of the commit before it; 0 for the first."""
    keepstep: str
    format: int = FORMAT


class LogRecord(Struct, frozen=True, kw_only=True):
    """One entry of the commit log. Only a ``commit`` makes a checkpoint exist."""

    seq: int
    kind: Literal["open", "commit", "expire"]
    job: str
    generation: int
    previous: str
    """Digest of the whole file of record ``seq - 1``; empty for the first."""
    writer: str
    """Random per append: tells an own record from another's after an ambiguous create."""
    at_unix_s: float
    step: int = -1
    attempt: str = ""
    world_size: int = 0
    folder: str = ""
    """Name of the directory under ``steps/``."""
    manifest: str = ""
    """Digest of the manifest file, which is also its name."""
    manifest_bytes: int = 0
    size_bytes: int = 0
    """Of all group blobs."""
    restored_from: str = ""
    """Of an ``open`` record: what the generation starts from, in words."""
    expires: int = 0
    """Of an ``expire`` record: the commit whose data may go."""
    format: int = FORMAT


class _Envelope(Struct, forbid_unknown_fields=True):
    body: msgspec.Raw
    digest: str


_T = TypeVar("_T", Receipt, Manifest, LogRecord)
_encode = msgspec.json.Encoder(order="deterministic").encode


def seal(document: Receipt | Manifest | LogRecord) -> bytes:
    """The bytes of a file."""
    body = _encode(document)
    return _encode(_Envelope(msgspec.Raw(body), digest_of(body)))


def unseal(data: Any, kind: type[_T], name: str) -> _T:
    """The document in a file. Raises StateInvalid that names the file and what is wrong with it."""
    if len(data) > MAX_RECORD_BYTES:
        raise StateInvalid(f"{name} has {len(data)} bytes: no record is that large")
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if digest_of(bytes(envelope.body)) != envelope.digest:
            raise StateInvalid(f"{name} does not match its own digest: its bytes are damaged")
        document = msgspec.json.decode(envelope.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateInvalid(f"{name} is not a valid {kind.__name__.lower()}: {error}") from error
    if seal(document) != bytes(data):
        if document.format > FORMAT:
            raise StateInvalid(f"{name} has format {document.format}: upgrade keepstep to read it")
        raise StateInvalid(f"{name} is not written the way keepstep writes it: its bytes are damaged")
    return document

"""What stands in a store beside the packs: receipts, manifests, log records. Owns their shapes.

Each is one JSON document in an envelope that carries the digest of its body, so that a flipped bit anywhere in it is seen.
Fields are only ever added, with a default; ``format`` grows when an old reader would misread.
"""

from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.state.blob import digest_of
from keepstep.checkpoint.state.boxes import Extent as Extent
from keepstep.checkpoint.state.shards import Sharded as Sharded

FORMAT = 2
MAX_RECORD_BYTES = 256 * 1024 * 1024


class PackEntry(Struct, frozen=True, kw_only=True):
    """Where a pack is and what it must look like."""

    key: str
    id: str
    """32 hex digits, random."""
    size_bytes: int
    footer: str
    """BLAKE3 of the stored footer, hex. The footer holds the digests of all chunks, so this stands for every byte."""
    groups: tuple[str, ...] = ()
    """Digests of the groups that can be read from it. Empty: it is only a base of others."""
    generation: int
    step: int
    session: str = ""
    """Id of the session key that sealed it; empty for a pack in the clear."""


class Part(Struct, frozen=True, kw_only=True):
    """One rank's state: group name -> digest."""

    groups: dict[str, str]
    sharded: dict[str, tuple[Sharded, ...]] = {}
    """Group name -> the sharded tensors in it."""


class Receipt(Struct, frozen=True, kw_only=True):
    """One rank's part of a save is durable, except for groups that others have claimed."""

    job: str
    generation: int
    step: int
    attempt: str
    world_size: int
    rank: int
    part: Part
    sizes_bytes: dict[str, int]
    """Digest -> size of its blob."""
    packs: tuple[PackEntry, ...]
    """Those that the receipt's writer wrote for this save, and the bases they need."""
    sessions: dict[str, dict[str, str]] = {}
    """Session key id -> what tells the right key from another, see ``Keys.identity``."""
    session: str = ""
    tag: str = ""
    """Proof of origin, where keys are used."""
    format: int = FORMAT


class Manifest(Struct, frozen=True, kw_only=True):
    """A whole checkpoint. Immutable; its bytes follow from the receipts and the parent alone."""

    job: str
    generation: int
    step: int
    attempt: str
    world_size: int
    ranks: tuple[Part, ...]
    sizes_bytes: dict[str, int]
    packs: tuple[PackEntry, ...]
    sessions: dict[str, dict[str, str]] = {}
    parent: int
    """Sequence number of the commit before it; 0 for the first."""
    keepstep: str
    format: int = FORMAT


State = Literal["verified", "suspect", "corrupt"]


class LogRecord(Struct, frozen=True, kw_only=True):
    """One entry of the commit log. Only a ``commit`` makes a checkpoint exist."""

    seq: int
    kind: Literal["open", "commit", "state", "pin", "unpin", "failed", "progress", "expire", "horizon", "adopt"]
    job: str
    generation: int
    previous: str
    """Digest of the whole object of record ``seq - 1``; empty for the first."""
    writer: str
    """Random per append: tells an own record from another's after an ambiguous create."""
    at_unix_s: float
    step: int = -1
    attempt: str = ""
    world_size: int = 0
    folder: str = ""
    """Prefix under ``steps/`` of a commit; of an ``expire`` with no ``of``: the save that will not be committed any more."""
    manifest: str = ""
    """Digest of the manifest, which is also its name."""
    manifest_bytes: int = 0
    size_bytes: int = 0
    """Of all group blobs."""
    restored_from: str = ""
    """Of an ``open`` record: what the generation starts from, in words."""
    of: int = 0
    """The commit that a record of another kind is about; of a ``horizon``, the last record that may go."""
    state: State | Literal[""] = ""
    reason: str = ""
    """For people: why a state changed, a pin was set, a restore failed."""
    min_valid: int = 0
    """Of an ``expire`` record: it counts only if so many other VERIFIED checkpoints are there when it lands."""
    kept: dict[str, str] = {}
    """Of a ``horizon``: number -> digest of the records up to ``of`` that stay."""
    adopted: dict[str, Any] = {}
    """Of an ``adopt`` record: a foreign checkpoint, see adopt."""
    session: str = ""
    """Id of the session key that proves the record's origin; empty where no keys are used."""
    tag: str = ""
    """Hex: what only who has that key can make of everything else in the record."""
    manifest_blake3: str = ""
    """Hex, of a commit with a tag: ``manifest`` tells damage, and this tells forgery."""
    format: int = FORMAT


class _Envelope(Struct, forbid_unknown_fields=True):
    body: msgspec.Raw
    digest: str


_T = TypeVar("_T", Receipt, Manifest, LogRecord)
_encode = msgspec.json.Encoder(order="deterministic").encode


def seal(document: Receipt | Manifest | LogRecord) -> bytes:
    """The bytes of an object."""
    body = _encode(document)
    return _encode(_Envelope(msgspec.Raw(body), digest_of(body)))


def unseal(data: Any, kind: type[_T], name: str) -> _T:
    """The document in an object. Raises StateInvalid that names the object and what is wrong with it."""
    if len(data) > MAX_RECORD_BYTES:
        raise StateInvalid(f"{name} has {len(data)} bytes: no record is that large")
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if digest_of(bytes(envelope.body)) != envelope.digest:
            raise StateInvalid(f"{name} does not match its own digest: its bytes are damaged")
        _check_format(envelope.body, name)
        document = msgspec.json.decode(envelope.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateInvalid(f"{name} is not a valid {kind.__name__.lower()}: {error}") from error
    if seal(document) != bytes(data):
        raise StateInvalid(f"{name} is not written the way keepstep writes it: its bytes are damaged")
    return document


class _Format(Struct):
    format: int = 0


def _check_format(body: Any, name: str) -> None:
    found = msgspec.json.decode(body, type=_Format).format
    if found > FORMAT:
        raise StateInvalid(f"{name} has format {found}: upgrade keepstep to read it")
    if found < FORMAT:
        raise StateInvalid(
            f"{name} has format {found}, of an earlier keepstep, which this one does not read: finish that run with the old"
            " version, or choose another checkpoint directory"
        )

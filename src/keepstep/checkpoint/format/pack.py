"""The pack: chunks of group blobs in one object that can be written as a stream, checked in pieces, and read alone.

    header (4096) | chunks, each on a page boundary | footer (JSON) on a page boundary | zeros | trailer (128)

The whole is whole pages. Every chunk has two digests: XXH3-128 of its plain bytes (what a restore checks, whatever happened in
between) and BLAKE3 of its stored bytes (what a scrub checks without any key). A sealed chunk is as long as its plain bytes. The
footer has the stored digests in the clear, and the description of the groups, which is sealed as well. Owns this layout; must
not do I/O or know stores or keys.
"""

import base64
import re
import struct
from collections.abc import Mapping
from typing import Any

import msgspec
import xxhash
from blake3 import blake3
from msgspec import Struct

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.state.leaves import CHUNK_BYTES, PAGE_BYTES, round_up

FORMAT = 2
HEADER_BYTES = PAGE_BYTES
TRAILER_BYTES = 128
MAX_FOOTER_BYTES = 256 * 1024 * 1024
FOOTER_NUMBER = 2**32 - 1
"""The footer's number where chunks have theirs: nonces and tags never meet."""
SEALED = 1
_HEADER = struct.Struct("<8sII16s")  # magic, format, flags, pack id
_TRAILER = struct.Struct(
    "<8sIIQQQI16s32s4x16x"
)  # magic, format, flags, footer at, footer bytes, size, chunks, tag, BLAKE3
_HEADER_MAGIC, _TRAILER_MAGIC = b"KSPACK\r\n", b"KSPACKE\n"
_PLAIN = re.compile(r"[0-9a-f]{32}")
_STORED = re.compile(r"[0-9a-f]{64}")


class Chunk(Struct, frozen=True, array_like=True):
    """One chunk, and where it is."""

    pack: str
    """Id of the pack that holds it: this one, or an older one if it has not changed since."""
    number: int
    """Its number in that pack."""
    offset: int
    stored_bytes: int
    plain_bytes: int
    plain: str
    """XXH3-128, hex."""
    stored: str
    """BLAKE3, hex, see Stored."""
    tag: str = ""
    """AES-GCM tag, hex; empty in the clear."""
    codec: str = ""
    """How the stored bytes became plain; empty: they are the plain bytes (or their ciphertext)."""


class Stored(Struct, frozen=True, array_like=True):
    """One chunk as a scrub sees it."""

    offset: int
    stored_bytes: int
    stored: str
    """BLAKE3, hex, of the stored bytes and the zeros that fill their last page."""


class Footer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table of contents as it stands in a pack."""

    format: int = FORMAT
    pack: str
    chunks: tuple[Stored, ...]
    """Those that this pack holds itself, by number."""
    groups: msgspec.Raw
    """A JSON object, group digest -> its chunks in order; sealed: a string, base64 of the object's ciphertext. A group may lean
    on chunks of older packs."""


class Trailer(Struct, frozen=True, kw_only=True):
    sealed: bool
    footer_offset: int
    footer_bytes: int
    size_bytes: int
    chunks: int
    tag: bytes
    footer: bytes
    """BLAKE3 of the stored footer."""


Groups = dict[str, tuple[Chunk, ...]]
_encode = msgspec.json.Encoder(order="deterministic").encode
_decode_footer = msgspec.json.Decoder(Footer).decode
_decode_groups = msgspec.json.Decoder(Groups).decode
_decode_text = msgspec.json.Decoder(str).decode


def stored_digest(data: Any) -> str:
    """BLAKE3 of stored bytes, hex. The GIL is released meanwhile."""
    return blake3(data).hexdigest()


def header(pack: str, *, sealed: bool) -> bytes:
    head = _HEADER.pack(_HEADER_MAGIC, FORMAT, SEALED if sealed else 0, bytes.fromhex(pack))
    body = head.ljust(HEADER_BYTES - 16, b"\0")
    return body + xxhash.xxh3_128(body).digest()


def check_header(data: bytes, pack: str, name: str) -> None:
    """Raises StateInvalid unless these are the first bytes of that pack."""
    if data != header(pack, sealed=False) and data != header(pack, sealed=True):
        raise StateInvalid(f"{name} does not begin as pack {pack}: its bytes are damaged, or it is another pack")


def encode_groups(groups: Groups) -> bytes:
    return _encode(groups)


def encode_footer(pack: str, chunks: tuple[Stored, ...], groups: bytes, *, sealed: bool) -> bytes:
    """``groups``: what :func:`encode_groups` made, or the ciphertext of that."""
    raw = _encode(base64.b64encode(groups).decode()) if sealed else groups
    return _encode(Footer(pack=pack, chunks=chunks, groups=msgspec.Raw(raw)))


def trailer(of: Trailer) -> bytes:
    body = _TRAILER.pack(
        _TRAILER_MAGIC, FORMAT, SEALED if of.sealed else 0, of.footer_offset, of.footer_bytes, of.size_bytes, of.chunks,
        of.tag.ljust(16, b"\0"), of.footer,
    )  # fmt: skip
    return body[: TRAILER_BYTES - 16] + xxhash.xxh3_128(body[: TRAILER_BYTES - 16]).digest()


def end_bytes(footer_bytes: int) -> int:
    """Bytes from the footer's begin to the end of the pack."""
    return round_up(footer_bytes + TRAILER_BYTES, PAGE_BYTES)


def read_trailer(data: bytes, size_bytes: int, name: str) -> Trailer:
    """Parse the last TRAILER_BYTES of a pack of ``size_bytes``. Raises StateInvalid; sizes in the result are in bounds."""
    if len(data) != TRAILER_BYTES or data[-16:] != xxhash.xxh3_128(data[:-16]).digest():
        raise StateInvalid(f"{name} has no valid trailer: it is cut short, or its bytes are damaged")
    magic, found, flags, at, footer_bytes, size, chunks, tag, footer = _TRAILER.unpack_from(data)
    if magic != _TRAILER_MAGIC or found != FORMAT:
        raise StateInvalid(f"{name} is no pack of format {FORMAT}: upgrade keepstep to read it")
    in_bounds = at >= HEADER_BYTES and at % PAGE_BYTES == 0 and 0 < footer_bytes <= MAX_FOOTER_BYTES
    if size != size_bytes or not in_bounds or at + end_bytes(footer_bytes) != size:
        raise StateInvalid(f"{name} has {size_bytes} bytes where its trailer says {size}: it is cut short, or damaged")
    sealed = bool(flags & SEALED)
    return Trailer(
        sealed=sealed, footer_offset=at, footer_bytes=footer_bytes, size_bytes=size, chunks=chunks,
        tag=tag if sealed else b"", footer=footer,
    )  # fmt: skip


def decode_footer(data: bytes, pack: str, of: Trailer, name: str) -> Footer:
    """Parse a footer. Raises StateInvalid; every offset and size of a stored chunk is in bounds."""
    try:
        footer = _decode_footer(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateInvalid(f"the footer of {name} cannot be read: {error}") from error
    if footer.pack != pack or len(footer.chunks) != of.chunks:
        raise StateInvalid(f"the footer of {name} is of another pack")
    end = HEADER_BYTES
    for chunk in footer.chunks:
        if chunk.offset != end or not 0 < chunk.stored_bytes <= CHUNK_BYTES or not _STORED.fullmatch(chunk.stored):
            raise StateInvalid(f"the footer of {name} describes an impossible chunk")
        end += round_up(chunk.stored_bytes, PAGE_BYTES)
    if end != of.footer_offset:
        raise StateInvalid(f"the footer of {name} does not describe all of it")
    return footer


def sealed_groups(footer: Footer, name: str) -> bytes:
    """The ciphertext of the groups. Raises StateInvalid."""
    try:
        return base64.b64decode(_decode_text(footer.groups), validate=True)
    except (msgspec.DecodeError, ValueError) as error:
        raise StateInvalid(f"the footer of {name} is not sealed where its trailer says so") from error


def decode_groups(data: bytes | msgspec.Raw, footer: Footer, name: str) -> Groups:
    """Parse the description of the groups. Raises StateInvalid; every chunk agrees with what the footer says is stored."""
    try:
        groups = _decode_groups(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateInvalid(f"the footer of {name} cannot be read: {error}") from error
    for digest, chunks in groups.items():
        for chunk in chunks:
            if not _is_sound(chunk, footer):
                raise StateInvalid(f"the footer of {name} describes an impossible chunk of group {digest}")
    return groups


def _is_sound(chunk: Chunk, footer: Footer) -> bool:
    fits = 0 < chunk.plain_bytes <= CHUNK_BYTES and 0 < chunk.stored_bytes <= CHUNK_BYTES
    placed = chunk.offset >= HEADER_BYTES and chunk.offset % PAGE_BYTES == 0 and 0 <= chunk.number < FOOTER_NUMBER
    tagged = not chunk.tag or _PLAIN.fullmatch(chunk.tag)
    if not (fits and placed and tagged and _PLAIN.fullmatch(chunk.plain) and _STORED.fullmatch(chunk.stored)):
        return False
    if not chunk.codec and chunk.stored_bytes != chunk.plain_bytes:
        return False
    if chunk.pack != footer.pack:
        return bool(_PLAIN.fullmatch(chunk.pack))
    own = Stored(chunk.offset, chunk.stored_bytes, chunk.stored)
    return chunk.number < len(footer.chunks) and footer.chunks[chunk.number] == own


def packs_needed(groups: Mapping[str, tuple[Chunk, ...]]) -> set[str]:
    """Ids of all packs that hold chunks of these groups."""
    return {chunk.pack for chunks in groups.values() for chunk in chunks}

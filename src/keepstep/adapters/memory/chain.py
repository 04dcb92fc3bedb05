"""The hash chain of a journal. Owns what an entry's hash covers; every journal adapter uses it, none has its own.

hash = blake2b-256(previous hash, sequence number, time, msgpack of the record). Maps are written in their insertion
order and never sorted: in a placement the order of the nodes *is* the group rank, and a replay must see it again.
"""

import struct
from hashlib import blake2b

import msgspec

from keepstep.core.decision import Entry, Record

GENESIS = bytes(32)
"""What the first entry's ``prev`` is."""

_place = struct.Struct(">Qd").pack
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def body_of(record: Record) -> bytes:
    return _encoder.encode(record)


def digest(prev: bytes, seq: int, at_s: float, body: bytes) -> bytes:
    """32 bytes."""
    return blake2b(prev + _place(seq, at_s) + body, digest_size=32).digest()


def entry_of(seq: int, at_s: float, body: bytes, prev: bytes, stored: bytes) -> Entry:
    """Raises ValueError where the stored hash is not that of the content, or the content is no record."""
    if digest(prev, seq, at_s, body) != stored:
        raise ValueError("does not match its hash: it was edited or damaged")
    try:
        record = _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise ValueError(f"is no record that this version knows ({error})") from error
    return Entry(seq=seq, at_s=at_s, record=record, prev=prev.hex(), hash=stored.hex())

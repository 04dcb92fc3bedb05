"""Proof of origin: a tag over a whole document that only who has the session key can make. Owns how it is made and checked.

It is the tag of an empty chunk whose pack id is the BLAKE3 of the document, so no two documents share one.
"""

from typing import TypeVar

from blake3 import blake3
from msgspec.structs import replace

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.format.records import LogRecord, Receipt, seal
from keepstep.checkpoint.keys.port import Context, Keys

_ID_BYTES = 16
_T = TypeVar("_T", LogRecord, Receipt)


def signed(document: _T, keys: Keys, tenant: str) -> _T:
    """The document with ``session`` and ``tag``. Raises a key error."""
    document = replace(document, session=keys.session(tenant, document.job, document.generation), tag="")
    sealer = keys.sealer(document.session, _context(document, tenant))
    return replace(document, tag=sealer.seal(0, b"", memoryview(bytearray())).hex())


def is_genuine(document: LogRecord | Receipt, keys: Keys, tenant: str) -> bool:
    """Whether the tag is that of who has the key. Raises a key error."""
    if not document.tag:
        return False
    try:
        sealer = keys.sealer(document.session, _context(document, tenant))
        sealer.open(0, b"", bytes.fromhex(document.tag), memoryview(bytearray()))
    except (ValueError, StateInvalid):
        return False
    return True


def _context(document: LogRecord | Receipt, tenant: str) -> Context:
    pack = blake3(seal(replace(document, tag=""))).hexdigest(length=_ID_BYTES)
    return Context(
        tenant=tenant, job=document.job, generation=document.generation, step=max(document.step, 0), pack=pack
    )

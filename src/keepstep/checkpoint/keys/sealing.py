"""AES-256-GCM and HKDF-SHA256 as this library uses them. Owns every call of ``cryptography``; holds no policy and no file.

Tags are detached: a sealed chunk is exactly as long as its plain text, so it keeps its alignment on disk. The low-level
cipher is used for that reason: as fast as the one that appends the tag, in the caller's buffers, and other threads run.
"""

import os
import re
import threading
from typing import Any

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise ImportError("sealed checkpoints need the package cryptography: pip install cryptography") from error

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.keys.port import KEY_BYTES, TAG_BYTES, Context, Secret, canonical

MAX_CHUNK_BYTES = 1 << 30
_NONCE_BYTES = 12
_PACK_ID = re.compile("[0-9a-f]{32}")


class ChunkSealer:
    """A PackSealer: the key of one pack, derived from a session key."""

    def __init__(self, session_key: Secret, context: Context) -> None:
        if not _PACK_ID.fullmatch(context.pack):
            raise ValueError(f"pack id {context.pack!r} is not 32 lower-case hex digits")
        self._context = context
        key = Secret(_derive(session_key, canonical("pack", context.pack), KEY_BYTES))
        self._algorithm = algorithms.AES256(key.reveal())
        self.fingerprint = _derive(key, canonical("fingerprint"), 8).hex()
        self._place = canonical("chunk", context.tenant, context.job, context.generation, context.step, context.pack)
        self._sealed: set[int] = set()
        self._lock = threading.Lock()

    def seal(self, number: int, plain: Any, out: memoryview, codec: str = "") -> bytes:
        source, target = _buffers(plain, out)
        associated = self._associated(number, len(source), codec)
        with self._lock:
            if number in self._sealed:
                raise AssertionError(f"chunk {number} of pack {self._context.pack} is sealed twice")
            self._sealed.add(number)
        encryptor = Cipher(self._algorithm, modes.GCM(_nonce(number))).encryptor()
        encryptor.authenticate_additional_data(associated)
        encryptor.update_into(source, target)
        encryptor.finalize()
        return encryptor.tag

    def open(self, number: int, stored: Any, tag: bytes, out: memoryview, codec: str = "") -> None:
        source, target = _buffers(stored, out)
        associated = self._associated(number, len(source), codec)
        if len(tag) != TAG_BYTES:
            raise StateInvalid(f"the tag of chunk {number} of pack {self._context.pack} has {len(tag)} bytes, not 16")
        decryptor = Cipher(self._algorithm, modes.GCM(_nonce(number), tag)).decryptor()
        decryptor.authenticate_additional_data(associated)
        decryptor.update_into(source, target)
        try:
            decryptor.finalize()
        except InvalidTag:
            target[:] = bytes(len(target))
            raise StateInvalid(
                f"chunk {number} of pack {self._context.pack} (job {self._context.job}, generation "
                f"{self._context.generation}, step {self._context.step}) does not match its tag: it is damaged, or was moved "
                "here from elsewhere. Restore this piece from another tier, or take an older checkpoint"
            ) from None

    def __repr__(self) -> str:
        return f"ChunkSealer({self._context.pack})"

    def _associated(self, number: int, length: int, codec: str) -> bytes:
        return self._place + canonical("at", number, length, codec)


def check_of(session_key: Secret) -> str:
    """See ``Session.check``."""
    return _derive(session_key, canonical("check"), 16).hex()


def fingerprint_of(wrapping_key: Secret) -> str:
    """16 hex digits that name a provider's key without giving it away."""
    return _derive(wrapping_key, canonical("wrapping-key"), 8).hex()


def wrap(wrapping_key: Secret, key: Secret, facts: dict[str, str]) -> bytes:
    """``key`` under ``wrapping_key``, bound to ``facts``: a random nonce, then the sealed key with its tag."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(wrapping_key.reveal()).encrypt(nonce, key.reveal(), _bound_to(facts))


def unwrap(wrapping_key: Secret, data: bytes, facts: dict[str, str]) -> Secret | None:
    """None if ``data`` was not made with this key for these facts."""
    if len(data) != _NONCE_BYTES + KEY_BYTES + TAG_BYTES:
        return None
    try:
        return Secret(AESGCM(wrapping_key.reveal()).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _bound_to(facts)))
    except InvalidTag:
        return None


def _bound_to(facts: dict[str, str]) -> bytes:
    return canonical("wrap", *(text for pair in sorted(facts.items()) for text in pair))


def _derive(key: Secret, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(key.reveal())


def _nonce(number: int) -> bytes:
    return number.to_bytes(_NONCE_BYTES, "big")


def _buffers(source: Any, target: memoryview) -> tuple[memoryview, memoryview]:
    """Both as plain bytes, checked."""
    given, out = memoryview(source).cast("B"), memoryview(target).cast("B")
    if len(given) != len(out) or len(given) > MAX_CHUNK_BYTES:
        raise ValueError(f"a chunk of {len(given)} bytes does not go into a buffer of {len(out)}: equal, at most 1 GiB")
    return given, out

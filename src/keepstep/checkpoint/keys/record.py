"""What stands in a store about a session key. Owns ``keys/<session>/<serial>.json``; sees no key and no provider.

Objects of a store are never overwritten, so a change is a new serial: the highest is what counts, and lower ones are removed
after it is there. Two processes that change one session at once meet at the next serial: one of them loses, and looks again.
"""

import hashlib
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.keys.port import Session, Wrapped
from keepstep.checkpoint.stores.port import Store

FORMAT = 1
MAX_RECORD_BYTES = 64 * 1024
LOOKS = 5
"""A record may be replaced while somebody looks at it: how often to look again."""

_encode = msgspec.json.Encoder(order="deterministic").encode


class KeyRecord(Struct, frozen=True, kw_only=True):
    """One session key, wrapped; or the notice that it was forgotten."""

    session: Session
    serial: int
    at_unix_s: int
    wrapped: Wrapped | None
    """None once it was forgotten."""
    format: int = FORMAT


class _Envelope(Struct, forbid_unknown_fields=True):
    body: msgspec.Raw
    digest: str


class KeyRecords:
    """The records in ``store``. Raises OSError as the store does, StateInvalid for a damaged record."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def newest(self, session: str) -> KeyRecord | None:
        """The record that counts; None if there was never one."""
        for _ in range(LOOKS):
            serials = self._serials(session)
            if not serials:
                return None
            try:
                return self._read(session, serials[-1])
            except FileNotFoundError:
                continue
        raise StateInvalid(f"the records of session key {session} change faster than they can be read: try again")

    def append(self, record: KeyRecord) -> bool:
        """Durable when this returns True, and older serials are gone; False if another process took the serial."""
        session = record.session.id
        data = _seal(record)
        try:
            won = self._store.create(_path(session, record.serial), data)
        except OSError:
            won = self._is_ours(session, record.serial, data)
            if not won:
                raise
        if won and record.serial:
            self.drop_below(session, record.serial)
        return won

    def drop_below(self, session: str, serial: int) -> None:
        for older in self._serials(session):
            if older < serial:
                self._store.delete(_path(session, older))

    def sessions(self) -> Iterator[str]:
        """Ids of all sessions in the store, forgotten ones too."""
        last = ""
        for entry in self._store.list("keys/"):
            session = entry.key.split("/")[1]
            if session != last:
                yield session
            last = session

    def _serials(self, session: str) -> list[int]:
        names = (entry.key.rpartition("/")[2] for entry in self._store.list(f"keys/{session}/"))
        return sorted(int(name[:8]) for name in names if len(name) == 13 and name[:8].isdecimal())

    def _read(self, session: str, serial: int) -> KeyRecord:
        path = _path(session, serial)
        size = self._store.size(path)
        if size is None:
            raise FileNotFoundError(path)
        if size > MAX_RECORD_BYTES:
            raise StateInvalid(f"{path} has {size} bytes: no key record is that large")
        return _unseal(self._store.read(path), path)

    def _is_ours(self, session: str, serial: int, data: bytes) -> bool:
        """Whether a create that failed took place after all: records differ in their random wrapping, so equal is ours."""
        try:
            return self._store.read(_path(session, serial)) == data
        except OSError:
            return False


def _path(session: str, serial: int) -> str:
    return f"keys/{session}/{serial:08d}.json"


def _digest(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=16).hexdigest()


def _seal(record: KeyRecord) -> bytes:
    body = _encode(record)
    return _encode(_Envelope(msgspec.Raw(body), _digest(body)))


def _unseal(data: bytes, path: str) -> KeyRecord:
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if _digest(bytes(envelope.body)) != envelope.digest:
            raise StateInvalid(f"{path} does not match its own digest: restore this file from a copy of the store")
        record = msgspec.json.decode(envelope.body, type=KeyRecord)
        intact = _path(record.session.id, record.serial) == path
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise StateInvalid(
            f"{path} is not a key record ({error}): restore this file from a copy of the store"
        ) from None
    if record.format > FORMAT:
        raise StateInvalid(f"{path} has format {record.format}: upgrade keepstep to read it")
    if not intact:
        raise StateInvalid(f"{path} is the record of another session key: it was moved here from elsewhere")
    return record

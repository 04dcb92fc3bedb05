"""What the library needs to seal packs, as Protocols. Owns the contracts between packs, keys and those who wrap keys.

A *session key* (32 random bytes, of one job and generation) is wrapped by a provider; every pack has a key of its own, derived
from the session key and the pack's id; a chunk's nonce is its number, so there is no nonce state to lose. A *session* is
everything about a session key except the key.
"""

import hashlib
from typing import Any, ClassVar, Protocol

from msgspec import Struct

KEY_BYTES = 32
TAG_BYTES = 16


class Secret:
    """Bytes that no repr, log line, traceback, copy or pickle shows. Dropping the last reference is all that can be done to
    erase them: the interpreter gives no promise."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def reveal(self) -> bytes:
        """The bytes. Pass them straight on: a local variable may be shown by whoever prints a traceback."""
        return self._data

    def __repr__(self) -> str:
        return "<secret>"

    def __reduce__(self) -> str:
        raise TypeError("a secret is not copied or pickled")


class Context(Struct, frozen=True, kw_only=True):
    """What a pack belongs to. Bound into every tag: a chunk moved to another place does not open."""

    tenant: str
    job: str
    generation: int
    step: int
    pack: str
    """Its id: 32 lower-case hex digits, random. Never given to two packs."""


class Session(Struct, frozen=True, kw_only=True):
    """A session key's facts. Bound into its wrapping: neither its owner nor its limits can be edited."""

    tenant: str
    job: str
    generation: int
    number: int
    """Counts the session keys of a generation: the next one is made when this may no longer seal."""
    seal_until_unix_s: int
    """New packs are sealed with it before this; 0 means for ever."""
    open_until_unix_s: int
    """Packs are opened with it before this; 0 means for ever."""
    check: str
    """32 hex digits that follow from the key and do not give it away: another key is noticed."""

    @property
    def id(self) -> str:
        return session_id(self.tenant, self.job, self.generation, self.number)

    def facts(self) -> dict[str, str]:
        """Everything, as strings: what a provider binds the wrapping to."""
        return {"session": self.id} | {name: str(getattr(self, name)) for name in self.__struct_fields__}


class Wrapped(Struct, frozen=True, kw_only=True):
    """A session key that only its provider can unwrap."""

    provider: str
    """The provider's ``kind``."""
    key: str
    """Name of the key that it wrapped with, as the provider knows it."""
    data: bytes


class Provider(Protocol):
    """Wraps and unwraps session keys. Called from several threads. Answers or raises within a time limit of its own.

    Raises KeyMissing (does not have the key, or cannot answer), KeyStale (it has expired or was withdrawn), WrongKey (has a
    key of that name, and it is another one, or ``data`` was made for another session).
    """

    kind: ClassVar[str]
    """Stands in what it wrapped: ``file``, ``command``."""
    name: str
    """For people, without secrets."""

    def wrap(self, key: Secret, session: Session) -> Wrapped: ...

    def unwrap(self, wrapped: Wrapped, session: Session) -> Secret: ...


class PackSealer(Protocol):
    """Seals and opens the chunks of one pack. Thread-safe; large chunks run without the interpreter's lock."""

    fingerprint: str
    """16 hex digits that follow from the pack's key: written into a pack, they tell a wrong key from damage."""

    def seal(self, number: int, plain: Any, out: memoryview, codec: str = "") -> bytes:
        """Encrypt chunk ``number`` into ``out`` (as long as ``plain``; must not overlap it). Returns its tag.

        Each number once: AssertionError the second time, because two texts under one nonce give both away.
        """
        ...

    def open(self, number: int, stored: Any, tag: bytes, out: memoryview, codec: str = "") -> None:
        """Decrypt into ``out`` (as long as ``stored``). Raises StateInvalid; then ``out`` is zeros."""
        ...


class Keys(Protocol):
    """The keys of one process. Thread-safe. Every call ends within a time limit."""

    def session(self, tenant: str, job: str, generation: int) -> str:
        """Id of the session key to seal with now, the same in every process of the generation. Ask before every save: it
        changes when a key has served its time. Raises KeyMissing, KeyStale, WrongKey."""
        ...

    def identity(self, session: str) -> dict[str, str]:
        """What a manifest must carry for each session that sealed its packs: JSON-safe; neither the key nor its wrapping, so
        that both can change (rotation) or go (crypto-shredding) while the manifest stays as it is."""
        ...

    def learn(self, session: str, identity: dict[str, str]) -> None:
        """Take in a session from a manifest: from now on only that very key is taken for it. Raises WrongKey."""
        ...

    def sealer(self, session: str, context: Context, fingerprint: str = "") -> PackSealer:
        """Raises KeyMissing (nobody here can unwrap it), KeyStale (it or its provider's key has expired or was withdrawn),
        WrongKey (it is not the key of ``context``, of ``fingerprint`` where one is given, or of what was learnt)."""
        ...


def session_id(tenant: str, job: str, generation: int, number: int) -> str:
    """32 hex digits. Follows from its arguments, so that the processes of a generation meet without talking."""
    return hashlib.blake2b(canonical("session", tenant, job, generation, number), digest_size=16).hexdigest()


def canonical(label: str, *fields: str | int) -> bytes:
    """Unambiguous bytes of a list of fields; every use has a label of its own. Raises ValueError for what has no such form."""
    parts = [b"keepstep-keys-1"]
    for field in (label, *fields):
        if isinstance(field, str):
            text = field.encode()
            parts.append(b"s" + len(text).to_bytes(4, "big") + text)
        elif 0 <= field < 1 << 64:
            parts.append(b"i" + field.to_bytes(8, "big"))
        else:
            raise ValueError(f"{label}: {field} is not a 64-bit number")
    return b"".join(parts)

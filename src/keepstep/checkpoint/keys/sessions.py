"""The session keys of one process. Owns which key seals now, when one has served its time, and how it is rotated or forgotten.

Processes of a generation meet in the store: whoever comes first creates the record of the wrapped key, the others read it.
Keys are unwrapped once and kept in memory. Every call ends within ``Limits.deadline_s``, whatever store and provider do.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from keepstep.checkpoint.errors import KeyMissing, KeyStale, StateInvalid, WrongKey
from keepstep.checkpoint.keys.port import KEY_BYTES, Context, Provider, Secret, Session, session_id
from keepstep.checkpoint.keys.record import LOOKS, KeyRecord, KeyRecords
from keepstep.checkpoint.keys.sealing import ChunkSealer, check_of
from keepstep.checkpoint.stores.port import Store

MAX_SESSIONS = 10_000
"""Of one generation: more than any can need, so that looking for the one that seals ends."""
_Result = TypeVar("_Result")


class Limits(Struct, frozen=True, kw_only=True):
    """How long a session key serves. Recorded with it when it is made."""

    seal_for_s: int = 7 * 24 * 3600
    """Then the next one is made; 0 means that one serves the whole generation."""
    open_for_s: int = 0
    """Then checkpoints sealed with it do not open any more; 0 means that they always do."""
    deadline_s: float = 30.0
    """For each call, store and provider included."""


class _Opened(NamedTuple):
    session: Session
    key: Secret


class SessionKeys:
    """Implements ``Keys``. The first provider wraps; each unwraps what its kind has wrapped. ``store`` is where the commit log
    is: its ``keys/`` belongs to the checkpoints, and they do not open without it."""

    def __init__(
        self,
        store: Store,
        providers: Sequence[Provider],
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not providers:
            raise ValueError("name at least one provider that wraps session keys, for example FileProvider(directory)")
        self._limits = limits or Limits()
        if self._limits.open_for_s and not 0 < self._limits.seal_for_s <= self._limits.open_for_s:
            raise ValueError("a key must not seal for longer than what it seals may be opened: lower seal_for_s")
        self._records = KeyRecords(store)
        self._providers = list(providers)
        self._clock = clock
        self._lock = threading.Lock()
        self._opened: dict[str, _Opened] = {}
        self._sealing: dict[tuple[str, str, int], str] = {}
        self._learnt: dict[str, str] = {}
        self._deadline = _Deadline(self._limits.deadline_s, f"{store.name} and {self._providers[0].name}")

    def session(self, tenant: str, job: str, generation: int) -> str:
        owner = (tenant, job, generation)
        with self._lock:
            current = self._opened.get(self._sealing.get(owner, ""))
            if current is None or not self._may_seal(current.session):
                current = self._deadline.keep(lambda: self._find_sealing(*owner))
                self._opened[current.session.id] = current
                self._sealing[owner] = current.session.id
            return current.session.id

    def identity(self, session: str) -> dict[str, str]:
        facts = self._open(session).session
        return {
            "tenant": facts.tenant,
            "job": facts.job,
            "generation": str(facts.generation),
            "number": str(facts.number),
            "check": facts.check,
        }

    def learn(self, session: str, identity: dict[str, str]) -> None:
        try:
            told = msgspec.convert(identity, type=_Identity, strict=False)
            right = session_id(told.tenant, told.job, told.generation, told.number) == session
        except (msgspec.ValidationError, ValueError):
            right = False
        if not right:
            raise WrongKey(f"what is told of session key {session} does not belong to it: this manifest was altered")
        with self._lock:
            opened = self._opened.get(session)
            if opened is not None:
                _expect(session, told.check, opened.session.check)
            self._learnt[session] = told.check

    def sealer(self, session: str, context: Context, fingerprint: str = "") -> ChunkSealer:
        facts, key = self._open(session)
        if (facts.tenant, facts.job, facts.generation) != (context.tenant, context.job, context.generation):
            raise WrongKey(
                f"session key {session} belongs to job {facts.job!r} of tenant {facts.tenant!r}, generation "
                f"{facts.generation}; the pack {context.pack} is said to belong to {context.job!r} of {context.tenant!r}, "
                f"generation {context.generation}. Take the manifest of the job that you mean"
            )
        sealer = ChunkSealer(key, context)
        if fingerprint and fingerprint != sealer.fingerprint:
            raise WrongKey(
                f"pack {context.pack} was sealed with another key (fingerprint {fingerprint}) than session key {session} gives "
                f"({sealer.fingerprint}). Restore it from another tier, or take an older checkpoint"
            )
        return sealer

    def rewrap(self, session: str, open_until_unix_s: int | None = None) -> str:
        """Wrap with the first provider's present key, and remove the wrapping that was there; the checkpoints stay as they are.

        Returns the name of the wrapping key. ``open_until_unix_s`` sets the limit anew, 0 for none; only that opens a session
        key whose time has passed. Raises as :meth:`sealer`.
        """
        with self._lock:
            opened, name = self._deadline.keep(lambda: self._rewrap(session, open_until_unix_s))
            self._opened[session] = opened
            return name

    def forget(self, session: str) -> None:
        """Crypto-shred: remove the wrapped key for good. Nobody can open what it sealed, on whatever store that lies.

        Processes that have it in memory keep it until they end. A store that keeps old versions of objects, or a backup of it,
        still has the wrapped key: there the provider's key must be withdrawn and destroyed too.
        """
        with self._lock:
            self._opened.pop(session, None)
            self._deadline.keep(lambda: self._forget(session))

    def sessions(self) -> Iterator[str]:
        """Ids of all session keys in the store, forgotten ones too. As slow as the store."""
        return self._records.sessions()

    def record(self, session: str) -> KeyRecord:
        """What the store holds about a session key: what wraps it, its limits, or that it was forgotten. Raises KeyMissing."""
        with self._lock:
            return self._deadline.keep(lambda: self._record(session))

    def __repr__(self) -> str:
        return f"SessionKeys({self._providers[0].name})"

    def _open(self, session: str) -> _Opened:
        with self._lock:
            opened = self._opened.get(session)
            if opened is None or self._is_past(opened.session.open_until_unix_s):
                # The limit may have been extended meanwhile.
                opened = self._deadline.keep(lambda: self._unwrap(self._record(session)))
                self._opened[session] = opened
            _expect(session, self._learnt.get(session, opened.session.check), opened.session.check)
            self._check_open(opened.session)
            return opened

    def _find_sealing(self, tenant: str, job: str, generation: int) -> _Opened:
        """The first session of the generation that may seal: one that is there, or a new one."""
        for number in range(MAX_SESSIONS):
            opened = self._try_sealing(
                Session(
                    tenant=tenant,
                    job=job,
                    generation=generation,
                    number=number,
                    seal_until_unix_s=self._until(self._limits.seal_for_s),
                    open_until_unix_s=self._until(self._limits.open_for_s),
                    check="",
                )
            )
            if opened is not None:
                return opened
        raise KeyStale(
            f"generation {generation} of {job!r} has used up {MAX_SESSIONS} session keys. Start a new generation"
        )

    def _try_sealing(self, facts: Session) -> _Opened | None:
        """None if the session is there and may not be used for new packs: expired, forgotten, damaged, or not to be opened."""
        try:
            record = self._records.newest(facts.id)
        except StateInvalid:
            return None
        if record is None:
            made = self._make(facts)
            if made is not None:
                return made
            record = self._record(facts.id)
        if record.wrapped is None or not self._may_seal(record.session):
            return None
        try:
            return self._unwrap(record)
        except KeyStale:
            return None

    def _make(self, facts: Session) -> _Opened | None:
        """None if another process was faster."""
        key = Secret(os.urandom(KEY_BYTES))
        session = msgspec.structs.replace(facts, check=check_of(key))
        wrapped = self._providers[0].wrap(key, session)
        record = KeyRecord(session=session, serial=0, at_unix_s=int(self._clock()), wrapped=wrapped)
        return _Opened(session, key) if self._records.append(record) else None

    def _record(self, session: str) -> KeyRecord:
        record = self._records.newest(session)
        if record is None:
            raise KeyMissing(
                f"there is no record of session key {session}: keys/{session}/ is not in the store. Copy it there from the "
                "store in which the checkpoint was made"
            )
        return record

    def _unwrap(self, record: KeyRecord) -> _Opened:
        session, wrapped = record.session, record.wrapped
        if wrapped is None:
            raise KeyStale(
                f"session key {session.id} of job {session.job!r} was forgotten on {_date(record.at_unix_s)}: what it sealed "
                "cannot be opened by anyone. Take a checkpoint of another session"
            )
        provider = next((provider for provider in self._providers if provider.kind == wrapped.provider), None)
        if provider is None:
            raise KeyMissing(
                f"session key {session.id} of job {session.job!r} was wrapped by a provider of kind {wrapped.provider[:80]!r}, "
                f"which is not set up here ({', '.join(known.kind for known in self._providers)} is). Set it up"
            )
        key = provider.unwrap(wrapped, session)
        if len(key.reveal()) != KEY_BYTES or check_of(key) != session.check:
            raise WrongKey(
                f"{provider.name} gave a key for session {session.id} of job {session.job!r}, and it is another one than "
                "sealed its checkpoints. See that it holds the keys of this store"
            )
        return _Opened(session, key)

    def _rewrap(self, session: str, open_until_unix_s: int | None) -> tuple[_Opened, str]:
        for _ in range(LOOKS):
            record = self._record(session)
            facts, key = self._unwrap(record)
            if open_until_unix_s is not None:
                facts = msgspec.structs.replace(facts, open_until_unix_s=open_until_unix_s)
            wrapped = self._providers[0].wrap(key, facts)
            if self._append(KeyRecord(session=facts, serial=record.serial + 1, at_unix_s=0, wrapped=wrapped)):
                return _Opened(facts, key), wrapped.key
        raise StateInvalid(f"others rewrap session key {session} at the same time: try again")

    def _forget(self, session: str) -> None:
        for _ in range(LOOKS):
            record = self._record(session)
            if record.wrapped is None:
                self._records.drop_below(session, record.serial)
                return
            if self._append(msgspec.structs.replace(record, serial=record.serial + 1, wrapped=None)):
                return
        raise StateInvalid(f"others rewrap session key {session} at the same time: try again")

    def _append(self, record: KeyRecord) -> bool:
        return self._records.append(msgspec.structs.replace(record, at_unix_s=int(self._clock())))

    def _check_open(self, session: Session) -> None:
        if self._is_past(session.open_until_unix_s):
            raise KeyStale(
                f"session key {session.id} of job {session.job!r} expired on {_date(session.open_until_unix_s)} (the clock "
                f"here says {_date(int(self._clock()))}): its checkpoints do not open any more. Whoever may extend it calls "
                "rewrap with a later limit"
            )

    def _until(self, for_s: int) -> int:
        return int(self._clock()) + for_s if for_s else 0

    def _may_seal(self, session: Session) -> bool:
        return not self._is_past(session.seal_until_unix_s) and not self._is_past(session.open_until_unix_s)

    def _is_past(self, until_unix_s: int) -> bool:
        return bool(until_unix_s) and self._clock() >= until_unix_s


class _Identity(Struct, frozen=True, kw_only=True):
    tenant: str
    job: str
    generation: int
    number: int
    check: str


class _Deadline:
    """Runs a call that may hang on a thread of its own, and stops waiting for it in time. Not for two callers at once."""

    def __init__(self, deadline_s: float, who: str) -> None:
        self._deadline_s = deadline_s
        self._who = who
        self._hanging: threading.Thread | None = None

    def keep(self, call: Callable[[], _Result]) -> _Result:
        """Raises KeyMissing if the call, or one before it, does not end; and for any OSError of it."""
        if self._hanging is not None and self._hanging.is_alive():
            raise KeyMissing(
                f"{self._who} still do not answer an earlier request for a session key. See which of them hangs"
            )
        results: SimpleQueue[tuple[_Result | None, BaseException | None]] = SimpleQueue()

        def run() -> None:
            try:
                results.put((call(), None))
            except BaseException as error:  # noqa: BLE001 - raised again by who waits
                results.put((None, error))

        self._hanging = threading.Thread(target=run, name="keepstep-keys", daemon=True)
        self._hanging.start()
        try:
            result, error = results.get(timeout=self._deadline_s)
        except Empty:
            raise KeyMissing(
                f"no session key within {self._deadline_s:g} s: {self._who} did not answer. See which of them hangs, then try "
                "again"
            ) from None
        self._hanging = None
        if isinstance(error, OSError):
            raise KeyMissing(f"the records of session keys cannot be read or written: {error}") from error
        if error is not None:
            raise error
        return result  # type: ignore[return-value]


def _expect(session: str, check: str, found: str) -> None:
    if check != found:
        raise WrongKey(
            f"session key {session} is another one in the store than in the manifest: keys/{session}/ or the manifest was "
            "replaced. Restore both from one copy of the store"
        )


def _date(unix_s: int) -> str:
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return f"second {unix_s} of Unix time"

"""The session keys of a job: shared by its processes, and never given out for the wrong thing; nothing hangs."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keepstep.checkpoint.errors import KeyMissing, KeyUnusable, StateInvalid, WrongKey
from keepstep.checkpoint.keys.port import Keys, Secret, Session, Wrapped
from keepstep.checkpoint.keys.providers import FileProvider
from keepstep.checkpoint.keys.sessions import Limits, SessionKeys

from .keyrings import (
    OWNER,
    Place,
    TroubledStore,
    context,
    edit_record,
    everything_shown,
    forms_of,
    open_one,
    seal_one,
)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_it_is_what_the_library_asks_for(place: Place) -> None:
    keys: Keys = place.process()
    assert keys.session(*OWNER) == keys.session(*OWNER)


def test_a_later_process_opens_what_an_earlier_one_sealed(place: Place) -> None:
    writer = place.process()
    session = writer.session(*OWNER)
    sealed = seal_one(writer.sealer(session, context()))
    manifest = json.loads(json.dumps(writer.identity(session)))
    reader = place.process()
    reader.learn(session, manifest)
    fingerprint = writer.sealer(session, context()).fingerprint
    assert open_one(reader.sealer(session, context(), fingerprint), sealed) == b"weights"


def test_what_a_manifest_carries_opens_nothing(place: Place) -> None:
    keys = place.process()
    session = keys.session(*OWNER)
    [record] = place.records(session)
    wrapped = json.loads(record.read_text())["body"]["wrapped"]["data"]
    assert wrapped not in json.dumps(keys.identity(session))
    assert set(keys.identity(session)) == {"tenant", "job", "generation", "number", "check"}


def test_jobs_tenants_and_generations_have_keys_of_their_own(place: Place) -> None:
    keys = place.process()
    owners = [OWNER, ("acme", "gpt", 4), ("acme", "bert", 3), ("other", "gpt", 3)]
    sessions = [keys.session(*owner) for owner in owners]
    assert len(set(sessions)) == 4 and sorted(sessions) == list(keys.sessions())
    prints = {
        keys.sealer(session, context(tenant=tenant, job=job, generation=generation)).fingerprint
        for session, (tenant, job, generation) in zip(sessions, owners, strict=True)
    }
    assert len(prints) == 4


def test_two_processes_of_a_generation_share_one_key(
    place: Place, start_program: Callable[..., Any], tmp_path: Path
) -> None:
    programs = [start_program("key_session.py", place.store.path, place.directory) for _ in range(2)]
    for program in programs:
        assert program.stdout.readline() == "ready\n"
    for program in programs:
        program.stdin.write("go\n")
        program.stdin.flush()
    said = [program.stdout.readline().split() for program in programs]
    assert said[0] == said[1] and len(said[0]) == 4, "one session, one pack key, one ciphertext"
    [program.wait(120) for program in programs]
    session, fingerprint, ciphertext, tag = said[0]
    opener = place.process().sealer(session, context(pack="0" * 32), fingerprint)
    assert open_one(opener, (bytes.fromhex(ciphertext), bytes.fromhex(tag))) == b"weights"
    assert len(place.records(session)) == 1


def test_however_many_begin_at_once_there_is_one_key(place: Place) -> None:
    barrier = threading.Barrier(8)
    store = TroubledStore(place.store.path, before_create=lambda _: barrier.wait(120) and None)
    found: list[tuple[str, str]] = []

    def begin() -> None:
        keys = place.process(store=store)
        session = keys.session(*OWNER)
        found.append((session, keys.sealer(session, context()).fingerprint))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1


def test_a_create_whose_answer_was_lost_is_read_back(place: Place) -> None:
    def lose(_: str) -> None:
        raise TimeoutError("the answer was lost")

    keys = place.process(store=TroubledStore(place.store.path, after_create=lose))
    session = keys.session(*OWNER)
    assert place.process().sealer(session, context()).fingerprint == keys.sealer(session, context()).fingerprint
    with pytest.raises(KeyMissing, match="cannot be read or written: the answer was lost"):
        place.process(store=TroubledStore(place.store.path, before_create=lose)).session("acme", "bert", 1)


@pytest.mark.parametrize(
    "other", [{"tenant": "other"}, {"job": "other"}, {"generation": 4}], ids=lambda changes: next(iter(changes))
)
def test_a_session_is_not_used_for_a_pack_of_somebody_else(place: Place, other: dict[str, Any]) -> None:
    keys = place.process()
    with pytest.raises(WrongKey, match="belongs to job 'gpt' of tenant 'acme', generation 3"):
        keys.sealer(keys.session(*OWNER), context(**other))


def test_a_pack_that_another_key_sealed_is_told_from_damage(place: Place, tmp_path: Path) -> None:
    keys, elsewhere = place.process(), Place(tmp_path / "elsewhere")
    foreign = elsewhere.process()
    fingerprint = foreign.sealer(foreign.session(*OWNER), context()).fingerprint
    with pytest.raises(WrongKey, match="was sealed with another key"):
        keys.sealer(keys.session(*OWNER), context(), fingerprint)


def test_keys_of_two_stores_are_never_mixed(place: Place, tmp_path: Path) -> None:
    elsewhere = Place(tmp_path / "elsewhere").process()
    session = elsewhere.session(*OWNER)
    assert place.process().session(*OWNER) == session, "the same name, and another key"
    opened, fresh = place.process(), place.process()
    opened.identity(session)
    with pytest.raises(WrongKey, match="another one in the store than in the manifest"):
        opened.learn(session, elsewhere.identity(session))
    fresh.learn(session, elsewhere.identity(session))
    with pytest.raises(WrongKey, match="another one in the store than in the manifest"):
        fresh.sealer(session, context())
    fresh.learn(session, opened.identity(session))
    assert fresh.sealer(session, context()).fingerprint, "a wrong manifest does not spoil the next one"


@pytest.mark.parametrize(
    "change",
    [{"job": "bert"}, {"generation": "4"}, {"number": "1"}, {"number": "-1"}, {"number": "x"}, {"check": None}],
)
def test_an_altered_identity_is_refused(place: Place, change: dict[str, Any]) -> None:
    keys = place.process()
    session = keys.session(*OWNER)
    with pytest.raises(WrongKey, match="this manifest was altered"):
        place.process().learn(session, keys.identity(session) | change)


def test_a_session_without_a_record_is_missing(place: Place) -> None:
    for use in (lambda p: p.sealer("0" * 32, context()), lambda p: p.record("0" * 32), lambda p: p.forget("0" * 32)):
        with pytest.raises(KeyMissing, match=r"Copy it there from the store"):
            use(place.process())


def test_a_record_moved_to_another_session_is_noticed(place: Place) -> None:
    keys = place.process()
    mine, victim = keys.session(*OWNER), keys.session("acme", "bert", 3)
    place.records(victim)[0].write_bytes(place.records(mine)[0].read_bytes())
    with pytest.raises(StateInvalid, match="the record of another session key"):
        place.process().sealer(victim, context(job="bert"))
    edit_record(place, mine, lambda body: body["session"].update(job="bert"))
    place.records(victim)[0].write_bytes(place.records(mine)[0].read_bytes())
    with pytest.raises(WrongKey, match="was not wrapped for it"):
        place.process().sealer(victim, context(job="bert"))


def test_a_damaged_record_is_invalid_and_the_next_save_has_a_new_key(place: Place) -> None:
    session = place.process().session(*OWNER)
    [record] = place.records(session)
    whole = record.read_bytes()
    for bit in range(0, len(whole) * 8, 7):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        record.write_bytes(damaged)
        with pytest.raises(StateInvalid, match=r"00000000\.json"):
            place.process().sealer(session, context())
    assert place.process().session(*OWNER) != session
    record.write_bytes(whole)
    assert place.process().sealer(session, context()).fingerprint


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[" * 50_000, b'{"body":{},"digest":""}', b"\xff", b"x" * 70_000],
    ids=["empty", "object", "deep", "digest", "not text", "large"],
)
def test_a_record_from_an_attacker_is_invalid(place: Place, data: bytes) -> None:
    session = place.process().session(*OWNER)
    place.records(session)[0].write_bytes(data)
    with pytest.raises(StateInvalid, match=r"00000000\.json"):
        place.process().sealer(session, context())


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body["session"].update(generation=-1),
        lambda body: body["session"].update(number=1 << 63),
        lambda body: body.update(format=2),
        lambda body: body.update(serial=7),
    ],
    ids=["negative", "huge", "newer format", "serial"],
)
def test_a_record_with_a_right_digest_and_wrong_values_is_invalid(place: Place, change: Any) -> None:
    session = place.process().session(*OWNER)
    edit_record(place, session, change)
    with pytest.raises(StateInvalid, match=r"00000000\.json"):
        place.process().sealer(session, context())


def test_an_oversized_record_is_not_read(place: Place) -> None:
    session = place.process().session(*OWNER)
    os.truncate(place.records(session)[0], 1 << 40)
    with pytest.raises(StateInvalid, match="no key record is that large"):
        place.process().sealer(session, context())


def test_a_foreign_file_beside_the_records_does_not_disturb(place: Place) -> None:
    session = place.process().session(*OWNER)
    (place.records(session)[0].parent / "99999999.json.bak").write_text("note")
    assert place.process().sealer(session, context()).fingerprint


class Lying:
    """A provider that hands out a key of its own."""

    kind = "file"
    name = "a lying provider"

    def wrap(self, key: Secret, session: Session) -> Wrapped:
        return Wrapped(provider=self.kind, key="x", data=b"x")

    def unwrap(self, wrapped: Wrapped, session: Session) -> Secret:
        return Secret(os.urandom(32))


def test_a_provider_that_gives_another_key_is_noticed(place: Place) -> None:
    session = place.process().session(*OWNER)
    with pytest.raises(WrongKey, match="another one than sealed its checkpoints"):
        place.process(provider=Lying()).sealer(session, context())


class Elsewhere(Lying):
    kind = "vault"


def test_a_provider_that_is_not_set_up_is_named(place: Place) -> None:
    session = place.process(provider=Elsewhere()).session(*OWNER)
    with pytest.raises(KeyMissing, match=r"kind 'vault', which is not set up here \(file is"):
        place.process().sealer(session, context())


class Hanging(Lying):
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def wrap(self, key: Secret, session: Session) -> Wrapped:
        self.released.wait(120)
        return super().wrap(key, session)

    def unwrap(self, wrapped: Wrapped, session: Session) -> Secret:
        self.released.wait(120)
        raise KeyMissing("told to")


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    provider = Hanging()
    yield provider
    provider.released.set()
    for thread in threading.enumerate():
        if thread.name == "keepstep-keys":
            thread.join(120)


def test_J3_a_provider_that_hangs_holds_up_neither_a_save_nor_a_restore(place: Place, hanging: Hanging) -> None:
    session = place.process().session("acme", "bert", 1)
    limits = Limits(deadline_s=0.3)
    with pytest.raises(KeyMissing, match=r"no session key within 0.3 s: .*did not answer"):
        place.process(limits, provider=hanging).session(*OWNER)
    keys = place.process(limits, provider=hanging)
    with pytest.raises(KeyMissing, match=r"no session key within 0.3 s"):
        keys.sealer(session, context(job="bert", generation=1))
    before = threading.active_count()
    for _ in range(3):
        with pytest.raises(KeyMissing, match="still do not answer an earlier request"):
            keys.sealer(session, context(job="bert", generation=1))
    assert threading.active_count() <= before, "no thread more for each try"


def test_a_store_that_hangs_holds_up_nothing_and_recovers(place: Place) -> None:
    released = threading.Event()
    store = TroubledStore(place.store.path, before_create=lambda _: released.wait(120) and None)
    keys = place.process(Limits(deadline_s=0.3), store=store)
    with pytest.raises(KeyMissing, match=r"no session key within 0.3 s"):
        keys.session(*OWNER)
    released.set()
    deadline = time.monotonic() + 120
    while True:
        try:
            session = keys.session(*OWNER)
            break
        except KeyMissing:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert place.process().session(*OWNER) == session, "what the late answer made is used"


def test_no_error_shows_a_session_key(place: Place) -> None:
    given: list[bytes] = []

    class Watching(FileProvider):
        def wrap(self, key: Secret, session: Session) -> Wrapped:
            given.append(key.reveal())
            return super().wrap(key, session)

    keys = place.process(provider=Watching(place.directory))
    session = keys.session(*OWNER)
    keys.rewrap(session)
    errors: list[BaseException] = []
    for use in (
        lambda: keys.sealer(session, context(job="other")),
        lambda: keys.sealer(session, context(), "0" * 16),
        lambda: open_one(keys.sealer(session, context()), (b"x", bytes(16))),
        lambda: keys.learn(session, keys.identity(session) | {"check": "0" * 32}),
        lambda: place.process(provider=Lying()).sealer(session, context()),
    ):
        with pytest.raises((KeyUnusable, StateInvalid)) as raised:
            use()
        errors.append(raised.value)
    shown = "".join(map(everything_shown, errors)) + repr(keys) + repr(vars(keys)) + repr(keys.record(session))
    assert len(given) == 2 and given[0] == given[1]
    assert not any(form in shown for form in forms_of(given[0]))


def test_a_provider_is_needed(place: Place) -> None:
    with pytest.raises(ValueError, match="at least one provider"):
        SessionKeys(place.store, [])

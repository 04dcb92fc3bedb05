"""How long a session key serves: renewed, expired, rotated, withdrawn, forgotten for good."""

import json
from pathlib import Path

import pytest

from keepstep.checkpoint.errors import KeyStale, WrongKey
from keepstep.checkpoint.keys.sessions import Limits

from .keyrings import (
    OWNER,
    Place,
    TroubledStore,
    context,
    edit_record,
    open_one,
    put_key,
    seal_one,
)

DAY_S = 24 * 3600


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_key_that_has_served_its_time_is_followed_by_the_next(place: Place) -> None:
    limits = Limits(seal_for_s=DAY_S)
    keys, other = place.process(limits), place.process(limits)
    first = keys.session(*OWNER)
    sealed = seal_one(keys.sealer(first, context()))
    place.clock.now_s += DAY_S - 1
    assert keys.session(*OWNER) == first
    place.clock.now_s += 1
    second = keys.session(*OWNER)
    assert second != first == other_first(place)
    assert other.session(*OWNER) == second
    assert keys.identity(second)["number"] == "1"
    assert open_one(other.sealer(first, context()), sealed) == b"weights", "it opens for ever"


def other_first(place: Place) -> str:
    """What the first session of the generation is called."""
    return next(
        session for session in place.process().sessions() if place.process().record(session).session.number == 0
    )


def test_a_key_that_may_not_open_any_more_is_stale_until_its_limit_is_set_anew(place: Place) -> None:
    keys = place.process(Limits(seal_for_s=DAY_S, open_for_s=2 * DAY_S))
    session = keys.session(*OWNER)
    sealed = seal_one(keys.sealer(session, context()))
    place.clock.now_s += 2 * DAY_S
    for process in (keys, place.process()):
        with pytest.raises(KeyStale, match=r"expired on 2027-01-17 .*rewrap with a later limit"):
            process.sealer(session, context())
    place.process().rewrap(session, open_until_unix_s=0)
    for process in (keys, place.process()):
        assert open_one(process.sealer(session, context()), sealed) == b"weights"


def test_limits_cannot_be_edited(place: Place) -> None:
    keys = place.process(Limits(seal_for_s=DAY_S, open_for_s=2 * DAY_S))
    session = keys.session(*OWNER)
    edit_record(place, session, lambda body: body["session"].update(open_until_unix_s=0))
    with pytest.raises(WrongKey, match="was not wrapped for it, or was altered"):
        place.process().sealer(session, context())


def test_limits_that_contradict_each_other_are_refused(place: Place) -> None:
    for seal_for_s in (0, 11):
        with pytest.raises(ValueError, match="lower seal_for_s"):
            place.process(Limits(seal_for_s=seal_for_s, open_for_s=10))


def test_rotation_lets_the_old_key_be_withdrawn(place: Place) -> None:
    keys = place.process()
    session = keys.session(*OWNER)
    sealed = seal_one(keys.sealer(session, context()))
    put_key(place.directory, "2.key")
    assert keys.rewrap(session).startswith("2#")
    assert [path.name for path in place.records(session)] == ["00000001.json"], "the old wrapping is gone"
    (place.directory / "1.key").rename(place.directory / "1.withdrawn")
    assert open_one(place.process().sealer(session, context()), sealed) == b"weights"
    assert place.process().session(*OWNER) == session


def test_a_withdrawn_key_stops_opening_and_not_saving(place: Place) -> None:
    session = place.process().session(*OWNER)
    (place.directory / "1.key").rename(place.directory / "1.withdrawn")
    put_key(place.directory, "2.key")
    with pytest.raises(KeyStale, match="was withdrawn"):
        place.process().sealer(session, context())
    renewed = place.process().session(*OWNER)
    assert renewed != session
    assert place.process().sealer(renewed, context()).fingerprint


def test_with_every_key_withdrawn_a_save_is_refused_at_once(place: Place) -> None:
    (place.directory / "1.key").rename(place.directory / "1.withdrawn")
    with pytest.raises(KeyStale, match="nothing to wrap a session key with"):
        place.process().session(*OWNER)


def test_a_forgotten_key_is_gone_for_good(place: Place) -> None:
    keys = place.process()
    session = keys.session(*OWNER)
    wrapped = place.records(session)[0].read_bytes()
    place.process().forget(session)
    place.process().forget(session)
    assert [path.name for path in place.records(session)] == ["00000001.json"]
    assert json.loads(wrapped)["body"]["wrapped"]["data"] not in place.records(session)[0].read_text()
    keys.forget(session)
    for process in (keys, place.process()):
        for use in (lambda p: p.sealer(session, context()), lambda p: p.rewrap(session), lambda p: p.identity(session)):
            with pytest.raises(KeyStale, match=r"was forgotten on .* cannot be opened by anyone"):
                use(process)
    assert keys.session(*OWNER) == place.process().session(*OWNER) != session


def test_a_process_that_died_while_forgetting_has_forgotten(place: Place) -> None:
    session = place.process().session(*OWNER)
    [old] = place.records(session)
    kept = old.read_bytes()
    place.process().forget(session)
    old.write_bytes(kept)
    with pytest.raises(KeyStale, match="was forgotten"):
        place.process().sealer(session, context())
    place.process().forget(session)
    assert not old.exists()


def test_forgetting_wins_over_a_rewrap_at_the_same_time(place: Place) -> None:
    session = place.process().session(*OWNER)
    once = iter([place.process()])

    def forget_first(_: str) -> None:
        for other in once:
            other.forget(session)

    with pytest.raises(KeyStale, match="was forgotten"):
        place.process(store=TroubledStore(place.store.path, before_create=forget_first)).rewrap(session)
    with pytest.raises(KeyStale, match="was forgotten"):
        place.process().sealer(session, context())


def test_a_rewrap_meets_another_and_both_end_well(place: Place) -> None:
    session = place.process().session(*OWNER)
    once = iter([place.process()])

    def rewrap_first(_: str) -> None:
        for other in once:
            other.rewrap(session)

    place.process(store=TroubledStore(place.store.path, before_create=rewrap_first)).rewrap(session)
    assert [path.name for path in place.records(session)] == ["00000002.json"]
    assert place.process().sealer(session, context()).fingerprint


def test_a_record_replaced_while_it_is_read_is_read_again(place: Place) -> None:
    session = place.process().session(*OWNER)
    once = iter([place.process()])

    def rewrap_first(_: str) -> None:
        for other in once:
            other.rewrap(session)

    reader = place.process(store=TroubledStore(place.store.path, before_size=rewrap_first))
    assert reader.record(session).serial == 1


def test_a_limit_that_is_brought_forward_holds_at_once(place: Place) -> None:
    keys = place.process()
    session = keys.session(*OWNER)
    keys.rewrap(session, open_until_unix_s=int(place.clock.now_s))
    for process in (keys, place.process()):
        with pytest.raises(KeyStale, match="expired on"):
            process.sealer(session, context())
    assert keys.session(*OWNER) == place.process().session(*OWNER) != session, "nothing new is sealed with it either"

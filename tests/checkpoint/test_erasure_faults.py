"""Locations that hang, fail and come back: nobody waits for one of them, and nothing is half written or lost by a repair.

Where a test shows that a call does not wait, the deadline is so long that waiting would end the test instead.
"""

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.checkpoint.erasure.locations import ABANDONED_MAX, Location, Locations
from keepstep.checkpoint.erasure.replicas import REPLICATED_MAX_BYTES
from keepstep.checkpoint.erasure.scrub import Condition
from keepstep.checkpoint.erasure.tier import ErasureTier
from keepstep.checkpoint.errors import SaveFailed, StateInvalid

from .erasure_stores import BLOCK, DEADLINE_S, Hang, MemoryStore, Site, failing, fetch, flipped, no_trouble

SIZE = 21 * 4 * BLOCK + 1000
DATA = random.Random(21).randbytes(SIZE)
FOREVER_S = 3600.0

Hanging = Callable[..., Hang]


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    """Makes troubles that hang until the test is over, and then ends their threads."""
    made: list[Hang] = []

    def make(*calls: str) -> Hang:
        made.append(Hang(*calls))
        return made[-1]

    yield make
    for hang in made:
        hang.release()
    lanes_end()


def lanes_end() -> None:
    """Wait for all calls that were left behind."""
    for thread in threading.enumerate():
        if thread.name.startswith("lane-"):
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


def in_time(shows: Callable[[float], bool]) -> None:
    """``shows`` is given how long to be patient, and tells whether it could show it. Where threads stand still for longer than
    that, others are late as well, and it is tried again with more patience."""
    assert any(shows(patience_s) for patience_s in (0.05, 1.0, 20.0))


def filled(domains: str = "abcdef", hedge_s: float = 0.05, **policy: float) -> Site:
    site = Site(domains, hedge_s=hedge_s, **policy)
    site.tier.put("packs/a", DATA, SIZE)
    return site


def holders(site: Site, *shards: int) -> list[MemoryStore]:
    return [site.shards("packs/a")[shard][0] for shard in shards]


@pytest.mark.parametrize("call", ["list", "read_into"])
@pytest.mark.parametrize("shards", [(0,), (1, 3), (2, 4)])
def test_a_location_that_hangs_does_not_stall_a_read(hanging: Hanging, call: str, shards: tuple[int, ...]) -> None:
    site = filled(deadline_s=FOREVER_S)
    for store in holders(site, *shards):
        store.trouble = hanging(call)
    assert fetch(site.open(), "packs/a", 0, SIZE) == DATA


def test_a_location_that_falls_silent_half_way_does_not_stall_a_read(hanging: Hanging) -> None:

    def shows(hedge_s: float) -> bool:
        site = filled(hedge_s=hedge_s, deadline_s=FOREVER_S)
        tier, hang, reads = site.open(), hanging("read_into"), itertools.count(1)
        tier.size("packs/a")

        def third(call: str, key: str) -> None:
            if call == "read_into" and next(reads) == 3:
                hang(call, key)

        holders(site, 1)[0].trouble = third
        assert fetch(tier, "packs/a", 0, SIZE) == DATA
        return hang.reached.is_set()

    in_time(shows)


def test_a_read_that_comes_back_late_changes_nothing(hanging: Hanging) -> None:
    site = filled(deadline_s=FOREVER_S)
    tier, hang = site.open(), hanging("read_into")
    tier.size("packs/a")
    store = holders(site, 0)[0]
    store.trouble = hang
    buffer = bytearray(SIZE)
    tier.get_into("packs/a", 0, memoryview(buffer))
    store.objects = {name: b"\xff" * len(data) for name, data in store.objects.items()}
    hang.release()
    lanes_end()
    assert bytes(buffer) == DATA


def test_a_slow_location_is_asked_last_for_a_while(hanging: Hanging) -> None:

    def shows(hedge_s: float) -> bool:
        site = filled(hedge_s=hedge_s, deadline_s=FOREVER_S)
        tier, hang = site.open(), hanging("read_into")
        tier.size("packs/a")
        store = holders(site, 0)[0]
        store.trouble = hang
        assert fetch(tier, "packs/a", 0, 100) == DATA[:100]
        store.calls.clear()
        assert fetch(tier, "packs/a", 0, 100) == DATA[:100]
        asked = list(store.calls)
        for other in holders(site, 1, 2):
            other.objects.clear()
        hang.release()
        assert fetch(site.open(), "packs/a", 0, SIZE) == DATA, "it is asked where the others are not enough"
        return asked == []

    in_time(shows)


def test_calls_that_hang_do_not_pile_up(hanging: Hanging, eventually: Callable[..., object]) -> None:
    site = filled(deadline_s=FOREVER_S)
    hang, store = hanging("list"), holders(site, 0)[0]
    store.trouble = hang
    store.calls.clear()
    for _ in range(100):
        # A call whose thread has not begun when nobody waits for it any more is not made.
        assert fetch(site.open(), "packs/a", 0, SIZE) == DATA
        if len(store.calls) == ABANDONED_MAX:
            break
    for _ in range(3):
        assert fetch(site.open(), "packs/a", 0, SIZE) == DATA
    eventually(lambda: len(store.calls) == ABANDONED_MAX, "the last of them to be made")
    report = site.tier.verify("packs/a")
    assert report.having(Condition.UNREACHABLE) == (0,)
    assert "does not answer: 4 calls" in report.shards[0].reason
    hang.release()
    lanes_end()
    assert site.tier.verify("packs/a").sound


def test_all_locations_hanging_ends_at_the_deadline(hanging: Hanging) -> None:
    site = filled()
    # Not before: what is put has to be in time.
    site.policy = msgspec.structs.replace(site.policy, deadline_s=0.2)
    for store in site.stores[:3]:
        store.trouble = hanging("read_into", "list")
    with pytest.raises(StateInvalid, match="no answer in time"):
        fetch(site.open(), "packs/a", 0, SIZE)


def test_a_late_answer_counts_where_it_is_needed(hanging: Hanging) -> None:
    """Two shards are lost and one location is slow: it is waited for."""
    site = filled(deadline_s=FOREVER_S)
    for shard in (1, 2):
        site.lose("packs/a", shard)
    hang = hanging("read_into")
    holders(site, 0)[0].trouble = hang
    tier = site.open()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(fetch, tier, "packs/a", 0, SIZE)
        assert hang.reached.wait(DEADLINE_S)
        hang.release()
        assert reading.result(DEADLINE_S) == DATA


@pytest.mark.parametrize("call", ["writer", "write", "finish"])
def test_a_put_with_a_failed_location_leaves_nothing_behind(call: str) -> None:
    site = Site()
    site.stores[3].trouble = failing(call)
    with pytest.raises(SaveFailed, match=r"1 of 6 locations failed where 0 may: place-3.*fails"):
        site.tier.put("packs/a", DATA, SIZE)
    assert site.contents("packs/a") == {}
    site.stores[3].trouble = no_trouble
    site.tier.put("packs/a", DATA, SIZE)
    assert fetch(site.tier, "packs/a", 0, SIZE) == DATA


@pytest.mark.parametrize("call", ["writer", "write", "finish"])
def test_a_put_with_a_location_that_hangs_leaves_nothing_behind(hanging: Hanging, call: str) -> None:

    def shows(deadline_s: float) -> bool:
        site, hang = Site(deadline_s=deadline_s), hanging(call)
        site.stores[3].trouble = hang
        with pytest.raises(SaveFailed, match="no answer within the deadline") as failed:
            site.tier.put("packs/a", DATA, SIZE)
        hang.release()
        lanes_end()
        assert site.contents("packs/a") == {}, "not even what was finished late"
        return "place-3" in str(failed.value)

    in_time(shows)


@pytest.mark.parametrize("call", ["writer", "write", "finish"])
def test_a_degraded_put_names_what_is_to_be_repaired(call: str) -> None:
    site = Site(degraded_ok=1)
    site.stores[3].trouble = failing(call)
    stored = site.tier.put("packs/a", DATA, SIZE)
    (shard,) = stored.missing
    assert "place-3" in stored.missing[shard]
    assert sorted(site.shards("packs/a")) == [n for n in range(6) if n != shard]
    assert fetch(site.tier, "packs/a", 0, SIZE) == DATA
    site.stores[3].trouble = no_trouble
    report = site.tier.repair("packs/a", digest=stored.digest)
    assert report.sound
    assert report.shards[shard].location == "place-3"
    site.stores[1].trouble = site.stores[2].trouble = failing("writer")
    with pytest.raises(SaveFailed, match="2 of 6 locations failed where 1 may"):
        site.tier.put("packs/b", DATA, SIZE)


def test_of_puts_at_the_same_time_one_exists_or_none() -> None:
    for attempt in range(10):
        site = Site()
        contents = [random.Random(n).randbytes(SIZE) for n in range(3)]

        def put(content: bytes, tier: ErasureTier = site.tier) -> str:
            try:
                return tier.put("packs/a", content, SIZE).digest
            except SaveFailed:
                return ""

        with ThreadPoolExecutor(3) as pool:
            digests = list(pool.map(put, contents))
        won = [content for content, digest in zip(contents, digests, strict=True) if digest]
        assert len(won) <= 1, attempt
        if won:
            assert fetch(site.open(), "packs/a", 0, SIZE) == won[0]
        else:
            assert site.contents("packs/a") == {}


def test_what_a_dead_writer_left_is_told_from_the_object() -> None:
    """Three shards of another version stand under the key, as after a crash; the digest says which one is meant."""
    site, other = filled(), Site()
    other.tier.put("packs/a", bytes(SIZE), SIZE)
    meant = site.tier.verify("packs/a").digest
    for mine, theirs in list(zip(site.stores, other.stores, strict=True))[:2]:
        mine.objects = dict(theirs.objects)
    assert fetch(site.open(), "packs/a", 0, SIZE) == DATA
    report = site.open().repair("packs/a", digest=meant)
    assert report.sound
    assert len(report.extra) == 2
    assert fetch(site.open(), "packs/a", 0, SIZE, meant) == DATA


def test_a_repair_deletes_nothing_before_its_replacement_is_there() -> None:
    site = filled()
    sound = site.contents("packs/a")
    site.change("packs/a", 2, flipped(9000))
    store = holders(site, 2)[0]
    store.trouble = failing("finish")
    with pytest.raises(SaveFailed, match="1 of 1 locations failed"):
        site.tier.repair("packs/a")
    assert list(store.objects) == ["packs/a/shard-02-0"]
    store.trouble = failing("delete")
    assert site.tier.repair("packs/a").sound
    assert list(store.objects) == ["packs/a/shard-02-0", "packs/a/shard-02-1"], "as after a crash between the two"
    store.trouble = no_trouble
    assert fetch(site.open(), "packs/a", 0, SIZE) == DATA
    assert site.tier.repair("packs/a").sound
    assert list(store.objects) == ["packs/a/shard-02-1"]
    assert site.contents("packs/a") == sound


def test_a_reader_that_remembers_an_object_sees_its_repair() -> None:
    site = filled()
    reader = site.open()
    assert fetch(reader, "packs/a", 0, 10) == DATA[:10]
    for shard in range(0, 6, 2):
        site.change("packs/a", shard, flipped(4096 + 1 + shard * BLOCK))
    assert site.tier.repair("packs/a").sound
    assert fetch(reader, "packs/a", 0, SIZE) == DATA


def test_an_unreachable_shard_is_not_rebuilt_until_its_location_is_given_up() -> None:
    site = Site("abcdefg")
    site.tier.put("packs/a", DATA, SIZE)
    store, name = site.shards("packs/a")[4]
    gone = next(place for place in site.places if place.store is store)
    store.trouble = failing("list", "read_into", "writer")
    site.lose("packs/a", 1)
    report = site.tier.repair("packs/a")
    assert report.having(Condition.UNREACHABLE) == (4,)
    assert report.having(Condition.GOOD) == (0, 1, 2, 3, 5)
    assert "fails" in report.shards[4].reason
    left = ErasureTier(Locations(place for place in site.places if place is not gone), site.policy)
    report = left.repair("packs/a")
    assert report.sound
    assert report.shards[4].location not in {gone.name, *(state.location for state in report.shards[:4])}
    assert site.shards("packs/a")[4][0].objects[name] == store.objects[name]


@pytest.mark.parametrize("shard", range(6))
def test_a_repair_keeps_the_spread_over_domains(shard: int) -> None:
    """A location is replaced by two others: one where the domain is full already, and one in a domain of its own."""
    site = filled(domains="aabbcc")
    (lost,) = holders(site, shard)
    (domain,) = {place.domain for place in site.places if place.store is lost}
    kept = [place for place in site.places if place.store is not lost]
    full = [Location(f"0-{name}", name, MemoryStore(name)) for name in "abc" if name != domain]
    tier = ErasureTier(Locations([*full, *kept, Location("new", "d", MemoryStore("d"))]), site.policy)
    report = tier.repair("packs/a")
    assert report.sound
    assert report.shards[shard].location == "new"


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_damage_gives_the_bytes_or_an_error(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([0, 1, 5000, 70_000]))
    site, content = Site(), random.Random(size).randbytes(size)
    digest = site.tier.put("packs/a", content, size).digest
    lost = data.draw(st.lists(st.integers(0, 5), unique=True, min_size=1, max_size=4))
    for shard in lost:
        at, junk = data.draw(st.integers(0, 10_000)), data.draw(st.binary(max_size=40))
        keep = data.draw(st.sampled_from([0, len(junk), 100_000]))
        site.change("packs/a", shard, lambda old, at=at, junk=junk, keep=keep: old[:at] + junk + old[at + keep :])  # type: ignore[misc]
    try:
        assert fetch(site.open(), "packs/a", 0, size, digest) == content
    except StateInvalid:
        assert len(lost) > 2
    if len(lost) <= 2:
        assert site.open().repair("packs/a", digest=digest).sound


RECORD = b'{"seq": 7}'


def check(data: bytes) -> None:
    if data != RECORD:
        raise StateInvalid("it does not match its digest")


def test_a_small_object_is_at_every_location_and_may_be_written_again() -> None:
    site = Site()
    assert len(site.tier.replicate("commits/7", RECORD).stored) == 6
    assert site.tier.replicate("commits/7", RECORD).failed == {}
    assert all(store.objects == {"commits/7": RECORD} for store in site.stores)
    with pytest.raises(SaveFailed, match=r"already at place-0.*other bytes"):
        site.tier.replicate("commits/7", b"another")
    with pytest.raises(ValueError, match="use put"):
        site.tier.replicate("commits/8", bytes(REPLICATED_MAX_BYTES + 1))
    assert list(site.tier.list()) == []


def test_the_valid_copy_wins_against_any_majority_and_mends_the_others() -> None:
    site = Site()
    site.tier.replicate("commits/7", RECORD)
    for store in site.stores[:4]:
        store.objects["commits/7"] = b'{"seq": 6}'
    del site.stores[4].objects["commits/7"]
    site.stores[0].objects["commits/7"] = bytes(REPLICATED_MAX_BYTES * 10)
    assert site.tier.read_replicated("commits/7", check) == RECORD
    assert all(store.objects == {"commits/7": RECORD} for store in site.stores)


def test_without_a_valid_copy_nothing_is_changed() -> None:
    site = Site()
    site.stores[2].objects["commits/7"] = b"junk"
    site.stores[3].trouble = failing("size")
    with pytest.raises(StateInvalid, match=r"no location has a valid copy.*not match its digest.*"):
        site.tier.read_replicated("commits/7", check)
    assert site.stores[2].objects["commits/7"] == b"junk"
    assert sum(len(store.objects) for store in site.stores) == 1


def test_a_location_that_hangs_does_not_stall_a_small_read(hanging: Hanging) -> None:
    site = Site(deadline_s=FOREVER_S, hedge_s=0.05)
    site.tier.replicate("commits/7", RECORD)
    for store in site.stores[1:]:
        store.trouble = hanging("read")
    assert site.tier.read_replicated("commits/7", check) == RECORD


def test_a_small_object_may_miss_only_as_many_locations_as_allowed(hanging: Hanging) -> None:

    def shows(deadline_s: float) -> bool:
        site = Site(degraded_ok=1, deadline_s=deadline_s)
        site.stores[1].trouble = hanging("create")
        try:
            failed = site.tier.replicate("commits/7", RECORD).failed
        except SaveFailed:
            return False
        site.stores[2].trouble = failing("create")
        with pytest.raises(SaveFailed, match=r"\d of 6 locations failed where 1 may"):
            site.tier.replicate("commits/8", RECORD)
        return failed == {"place-1": "no answer in time"}

    in_time(shows)

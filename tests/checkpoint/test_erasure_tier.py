"""The erasure-coded tier: any m locations may go, damage is found block by block, repair brings back the same bytes."""

import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.checkpoint.erasure.locations import Location, Locations, check_spread
from keepstep.checkpoint.erasure.scrub import Condition
from keepstep.checkpoint.erasure.shards import header
from keepstep.checkpoint.erasure.tier import ErasureTier, Policy
from keepstep.checkpoint.errors import SaveFailed, StateInvalid, StoreUnfit
from keepstep.checkpoint.stores.posix import PosixStore

from .erasure_stores import BLOCK, MemoryStore, Site, failing, fetch, flipped

STRIPE = 4 * BLOCK
SIZE = 5 * STRIPE + 3 * BLOCK + 17
DATA = random.Random(11).randbytes(SIZE)
SIZES = [0, 1, 63, 64, 65, BLOCK - 1, BLOCK, BLOCK + 1, STRIPE - 1, STRIPE, STRIPE + 1, 9 * STRIPE, SIZE]


@pytest.fixture
def site() -> Site:
    made = Site()
    made.tier.put("packs/a", DATA, SIZE)
    return made


@pytest.mark.parametrize("size", SIZES)
def test_an_object_of_any_length_survives_the_loss_of_any_two_shards(size: int) -> None:
    site, content = Site(), random.Random(size).randbytes(size)
    stored = site.tier.put("packs/a", content, size)
    assert stored.size_bytes == site.open().size("packs/a") == size
    assert stored.missing == {}
    for lost in itertools.combinations(range(6), 2):
        whole = {store.name: dict(store.objects) for store in site.stores}
        for shard in lost:
            site.lose("packs/a", shard)
        assert fetch(site.open(), "packs/a", 0, size, stored.digest) == content
        for store in site.stores:
            store.objects = whole[store.name]


def test_any_two_of_six_directories_may_go(tmp_path: Path) -> None:
    names = "abcdef"
    locations = Locations(Location(name, name, PosixStore(tmp_path / name)) for name in names)
    tier = ErasureTier(locations, Policy(block_bytes=BLOCK))
    tier.put("packs/1/a.pk", DATA, SIZE)
    for lost in itertools.combinations(names, 2):
        for name in lost:
            (tmp_path / name).rename(tmp_path / f"{name}-gone")
        assert fetch(ErasureTier(locations), "packs/1/a.pk", 0, SIZE) == DATA
        for name in lost:
            (tmp_path / f"{name}-gone").rename(tmp_path / name)
    (tmp_path / "a").rename(tmp_path / "old")
    assert tier.repair("packs/1/a.pk").sound
    before, after = (sorted((tmp_path / name).rglob("*shard*")) for name in ("old", "a"))
    assert [path.read_bytes() for path in before] == [path.read_bytes() for path in after] != []


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 150_000), st.data())
def test_any_range_of_any_code_after_any_losses(k: int, m: int, size: int, data: st.DataObject) -> None:
    names = "".join(chr(ord("a") + n) for n in range(k + m))
    site, content = Site(names, data=k, parity=m), random.Random(size).randbytes(size)
    site.tier.put("x", content, size)
    for shard in data.draw(st.lists(st.integers(0, k + m - 1), unique=True, max_size=m), "lost"):
        site.lose("x", shard)
    begin = data.draw(st.integers(0, size), "begin")
    end = data.draw(st.integers(begin, size), "end")
    assert fetch(site.open(), "x", begin, end - begin) == content[begin:end]


def test_a_source_is_read_once_and_in_order(site: Site) -> None:
    asked: list[tuple[int, int]] = []

    def read(offset: int, view: memoryview) -> None:
        asked.append((offset, len(view)))
        view[:] = DATA[offset : offset + len(view)]

    streamed = site.tier.put("packs/b", read, SIZE)
    assert asked == [(n * STRIPE, min(STRIPE, SIZE - n * STRIPE)) for n in range(6)]
    assert streamed.digest != site.tier.put("packs/c", DATA, SIZE).digest, "the key is part of the digest"
    assert fetch(site.tier, "packs/b", 0, SIZE, streamed.digest) == DATA


def test_a_source_that_fails_leaves_nothing_behind() -> None:
    site = Site()

    def read(offset: int, view: memoryview) -> None:
        if offset:
            raise RuntimeError("the pack is gone")

    with pytest.raises(RuntimeError, match="the pack is gone"):
        site.tier.put("packs/b", read, SIZE)
    assert site.contents("packs/b") == {}
    assert all(("abort", "packs/b/shard-0") in [(c, k[:15]) for c, k in store.calls] for store in site.stores)
    with pytest.raises(ValueError, match="3 bytes were given"):
        site.tier.put("packs/b", b"abc", 4)


def test_a_healthy_read_touches_only_the_blocks_it_needs(site: Site) -> None:
    tier = site.open()
    tier.size("packs/a")
    for store in site.stores:
        store.calls.clear()
    assert fetch(tier, "packs/a", STRIPE + BLOCK + 5, BLOCK) == DATA[STRIPE + BLOCK + 5 : STRIPE + 2 * BLOCK + 5]
    read = {name for store in site.stores for call, name in store.calls if call == "read_into"}
    assert read == {"packs/a/shard-01-0", "packs/a/shard-02-0"}


def test_a_range_outside_the_object_is_refused(site: Site) -> None:
    for offset, count in ((SIZE, 1), (-1, 1), (0, SIZE + 1)):
        with pytest.raises(ValueError, match="were asked for"):
            fetch(site.tier, "packs/a", offset, count)


def test_an_absent_object_is_an_error_in_words(site: Site) -> None:
    with pytest.raises(StateInvalid, match="no usable shard of packs/none"):
        fetch(site.tier, "packs/none", 0, 1)
    with pytest.raises(StateInvalid, match="with digest ec1-00"):
        site.tier.size("packs/a", digest="ec1-00")


def test_an_object_is_written_once(site: Site) -> None:
    before = site.contents("packs/a")
    with pytest.raises(SaveFailed, match=r"already at .* use another key"):
        site.tier.put("packs/a", bytes(SIZE), SIZE)
    assert site.contents("packs/a") == before
    site.lose("packs/a", 2)
    with pytest.raises(SaveFailed, match="already at"):
        site.tier.put("packs/a", DATA, SIZE)
    assert sorted(site.shards("packs/a")) == [0, 1, 3, 4, 5], "what it could write is taken back"


DAMAGE: dict[str, Any] = {
    "a bit of the magic": flipped(0),
    "a bit of the header": flipped(17),
    "a bit of its padding": flipped(3000),
    "a bit of a block": flipped(4096 + 2 * BLOCK + 9),
    "a bit of the tail": flipped(4096 + 5 * BLOCK + 3),
    "a bit of the digest table": flipped(-100),
    "a bit of the seal": flipped(-47),
    "a bit of the root": flipped(-20),
    "a bit of its check": flipped(-1),
    "one byte cut off": lambda data: data[:-1],
    "half cut off": lambda data: data[: len(data) // 2],
    "all but the header cut off": lambda data: data[:4096],
    "a byte too many": lambda data: data + b"\0",
    "emptied": lambda data: b"",
    "zeroed": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_read_around_reported_and_repaired(site: Site, what: str) -> None:
    sound = site.contents("packs/a")
    for shard in (1, 4):
        site.change("packs/a", shard, DAMAGE[what])
    assert fetch(site.open(), "packs/a", 0, SIZE) == DATA
    report = site.open().verify("packs/a")
    assert report.having(Condition.DAMAGED) == (1, 4)
    assert report.having(Condition.GOOD) == (0, 2, 3, 5)
    assert report.readable
    assert all(state.reason for state in report.shards if state.shard in (1, 4))
    assert site.open().repair("packs/a").sound
    assert site.contents("packs/a") == sound
    assert sum(len(store.objects) for store in site.stores) == 6, "what was damaged is gone"
    assert site.open().verify("packs/a").sound


def test_a_damaged_block_costs_that_block_alone(site: Site) -> None:
    """Every shard is damaged, each stripe only twice: all of it can be read, and repaired."""
    sound = site.contents("packs/a")
    for stripe, shards in enumerate([(0, 1), (2, 3), (4, 5), (0, 5), (1, 2), (3, 4)]):
        for shard in shards:
            site.change("packs/a", shard, flipped(4096 + stripe * BLOCK + 7))
    assert fetch(site.open(), "packs/a", 0, SIZE) == DATA
    report = site.tier.verify("packs/a")
    assert [state.bad_stripes for state in report.shards] == [(0, 3), (0, 4), (1, 4), (1, 5), (2, 5), (2, 3)]
    assert report.readable
    assert site.tier.repair("packs/a").sound
    assert site.contents("packs/a") == sound


def test_too_much_damage_is_refused_not_guessed(site: Site) -> None:
    for shard in (0, 2, 5):
        site.change("packs/a", shard, flipped(4096 + BLOCK + 1))
    with pytest.raises(StateInvalid, match="3 good blocks of a stripe where 4 are needed"):
        fetch(site.tier, "packs/a", 0, SIZE)
    assert fetch(site.tier, "packs/a", 0, STRIPE) == DATA[:STRIPE], "the other stripes are there"
    report = site.tier.verify("packs/a")
    assert report.lost_stripes == (1,)
    before = site.contents("packs/a")
    with pytest.raises(StateInvalid, match="too few good blocks"):
        site.tier.repair("packs/a")
    assert site.contents("packs/a") == before


def test_a_single_sound_header_and_table_is_enough(site: Site) -> None:
    for shard in range(5):
        site.change("packs/a", shard, lambda data: flipped(20)(flipped(-1)(data)))
    assert fetch(site.open(), "packs/a", 0, SIZE) == DATA
    assert site.tier.repair("packs/a").sound


def test_shards_swapped_between_objects_are_refused(site: Site) -> None:
    other = random.Random(12).randbytes(SIZE)
    site.tier.put("packs/b", other, SIZE)
    sound = site.contents("packs/a")
    for shard in (0, 3):
        (ours, name), (theirs, their_name) = site.shards("packs/a")[shard], site.shards("packs/b")[shard]
        ours.objects[name], theirs.objects[their_name] = theirs.objects[their_name], ours.objects[name]
    for key, content in (("packs/a", DATA), ("packs/b", other)):
        assert fetch(site.open(), key, 0, SIZE) == content
    report = site.open().repair("packs/a")
    assert report.sound
    assert len(report.extra) == 2, "another object's shard is not ours to delete"
    revised = site.shards("packs/a")
    assert {shard: revised[shard][0].objects[str(revised[shard][1])] for shard in range(6)} == sound


def test_all_shards_of_another_object_under_our_name_are_refused(site: Site) -> None:
    for store in site.stores:
        store.objects = {name.replace("packs/a", "packs/z"): data for name, data in store.objects.items()}
    with pytest.raises(StateInvalid, match="of 'packs/a', put in place of"):
        fetch(site.open(), "packs/z", 0, SIZE)


def test_two_shards_with_each_others_names_are_refused(site: Site) -> None:
    (one, first), (two, second) = (site.shards("packs/a")[n] for n in (1, 2))
    one.objects[first], two.objects[second] = two.objects[second], one.objects[first]
    assert fetch(site.open(), "packs/a", 0, SIZE) == DATA
    assert set(site.open().verify("packs/a").having(Condition.MISSING)) == {1, 2}


def test_an_attackers_shard_allocates_nothing_and_breaks_nothing(site: Site) -> None:
    shape = site.tier._open("packs/a", "").geometry
    huge = header("packs/a", type(shape)(data=4, parity=2, block_bytes=BLOCK, size_bytes=1 << 32), 0)
    site.change("packs/a", 0, lambda data: huge + data[4096:])
    store = site.stores[0]
    for n in range(2000):
        store.objects[f"packs/a/shard-{n % 100:02d}-{n // 100 + 1}"] = random.Random(n).randbytes(200)
    assert fetch(site.open(), "packs/a", 0, SIZE) == DATA


def test_parity_that_never_fitted_its_data_is_refused(site: Site) -> None:
    """Shards made by a forger: every digest is right, and the parity is not. Nothing computed from it is given out."""
    honest = site.tier.coder

    class Forger:
        data, parity = 4, 2

        def encode(self, blocks: Any, parity: Any) -> None:
            honest.encode(blocks, parity)
            parity[0][0] ^= 1

    site.tier.coder = Forger()  # type: ignore[assignment]
    site.tier.put("packs/f", DATA, SIZE)
    assert fetch(site.open(), "packs/f", 0, SIZE) == DATA
    site.lose("packs/f", 0)
    site.lose("packs/f", 5)
    with pytest.raises(StateInvalid, match="do not match the digest table"):
        fetch(site.open(), "packs/f", 0, SIZE)


def test_an_object_of_another_policy_stays_readable(site: Site) -> None:
    eight = [*site.places, *(Location(f"more-{n}", f"more-{n}", MemoryStore(f"more-{n}")) for n in range(5))]
    tier = ErasureTier(Locations(eight), Policy(data=8, parity=3))
    site.lose("packs/a", 1)
    assert fetch(tier, "packs/a", 0, SIZE) == DATA


def test_delete_takes_every_shard_and_nothing_else(site: Site) -> None:
    site.tier.put("packs/a/b", DATA, SIZE)
    site.tier.put("packs/ab", DATA, SIZE)
    site.stores[0].objects["packs/a/notes.txt"] = b"mine"
    assert [(one.key, one.shards) for one in site.tier.list("packs/")] == [
        ("packs/a", 6),
        ("packs/a/b", 6),
        ("packs/ab", 6),
    ]
    site.tier.delete("packs/a")
    site.tier.delete("packs/a")
    assert [one.key for one in site.tier.list()] == ["packs/a/b", "packs/ab"]
    assert site.stores[0].objects["packs/a/notes.txt"] == b"mine"
    with pytest.raises(StateInvalid, match="no usable shard"):
        fetch(site.tier, "packs/a", 0, 1)


def test_a_deletion_that_may_have_left_something_says_so(site: Site) -> None:
    site.stores[2].trouble = failing("delete")
    with pytest.raises(OSError, match=r"packs/a is not wholly deleted: place-2"):
        site.tier.delete("packs/a")
    assert len(site.contents("packs/a")) == 1


def test_every_location_is_tidied_and_a_failure_is_told(site: Site) -> None:
    site.stores[1].trouble = failing("tidy")
    with pytest.raises(OSError, match=r"not wholly removed: place-1"):
        site.tier.tidy(3600.0)
    assert all(("tidy", "3600.0") in store.calls for store in site.stores)


def test_a_listing_that_may_miss_objects_is_refused(site: Site) -> None:
    for store in site.stores[:2]:
        store.trouble = failing("list")
    assert [one.key for one in site.tier.list()] == ["packs/a"]
    site.stores[2].trouble = failing("list")
    with pytest.raises(OSError, match="not complete"):
        site.tier.list()


@pytest.mark.parametrize(
    ("domains", "told"),
    [
        ("abcde", "add 1 locations"),
        ("aaaabb", "4 shards: add 2 locations"),
        ("aaaaaabb", r"at least 3 domains.*a: 6, b: 2"),
    ],
)
def test_locations_that_cannot_take_the_code_are_refused_at_once(domains: str, told: str) -> None:
    with pytest.raises(StoreUnfit, match=told):
        Site(domains)


@pytest.mark.parametrize("domains", ["abcdef", "aabbcc", "aaaabbbbcccc", "aabbccdddd", "aaabcdefgh"])
def test_shards_spread_over_domains_and_locations(domains: str) -> None:
    locations = Locations(Site(domains).places)
    load: Counter[str] = Counter()
    parities: Counter[str] = Counter()
    for n in range(3000):
        placed = locations.place(f"packs/{n}", 4, 2)
        assert len(set(placed)) == 6
        assert max(Counter(location.domain for location in placed).values()) <= 2
        load.update(location.name for location in placed)
        parities.update(location.name for location in placed[4:])
    fair = {one.name: 1 / Counter(domains)[one.domain] for one in locations}
    assert len(load) == len(domains)
    for domain in set(domains):
        inside = [load[one.name] for one in locations if one.domain == domain]
        assert max(inside) < 1.35 * min(inside), load
    assert all(0.2 * load[name] < parities[name] < 0.5 * load[name] for name in fair), parities


def test_a_spread_that_breaks_the_rule_is_refused() -> None:
    a, b, c = Site("aabbcc").places[:3]
    check_spread([a, b, c], 2)
    with pytest.raises(StoreUnfit, match="domain a would hold 2"):
        check_spread([a, b, c], 1)
    with pytest.raises(StoreUnfit, match="place-0 would hold 2"):
        check_spread([a, a], 2)
    with pytest.raises(ValueError, match="more than one location"):
        Locations([a, a])


def test_an_unsafe_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="degraded_ok is 2; 0 to 1"):
        Site(degraded_ok=2)
    with pytest.raises(StateInvalid, match="multiple of 4096"):
        Site(block_bytes=5000)

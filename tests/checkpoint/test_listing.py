"""The list of what a store holds: as new as the question, and no store that hangs holds up whoever asks."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from keepstep.checkpoint.snapshot.listing import AGAIN_S, Listing
from keepstep.checkpoint.snapshot.messages import DiskStock

ONE = DiskStock(step=1, generation=1, world_size=1, key="1")
TWO = DiskStock(step=2, generation=1, world_size=1, key="2")


class SlowStore:
    """Says what there was when it was asked, once it is let go on."""

    def __init__(self) -> None:
        self.held: tuple[DiskStock, ...] = (ONE,)
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.error: OSError | None = None

    def look(self) -> tuple[DiskStock, ...]:
        seen = self.held
        self.begun.set()
        assert self.go_on.wait(120)
        if self.error is not None:
            raise self.error
        return seen


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


@pytest.fixture
def listing(store: SlowStore) -> Iterator[Listing]:
    made = Listing(store.look)
    yield made
    store.go_on.set()
    made.close()


def test_a_look_that_was_under_way_is_no_answer_to_a_later_question(store: SlowStore, listing: Listing) -> None:
    early = listing.begin()
    assert store.begun.wait(120)
    store.held = (TWO, ONE)
    late = [listing.begin() for _ in range(3)]
    store.go_on.set()
    assert early.result(120) == (ONE,)
    assert {each.result(120) for each in late} == {(TWO, ONE)} and len(set(late)) == 1, "one more look for all of them"


def test_before_there_is_a_list_it_is_waited_for(store: SlowStore, listing: Listing) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(listing.soon)
        with pytest.raises(TimeoutError):
            asked.result(AGAIN_S * 1.5)
        store.go_on.set()
        assert asked.result(120) == (ONE,)


def test_afterwards_the_last_list_stands_in_for_one_that_hangs_or_fails(store: SlowStore, listing: Listing) -> None:
    store.go_on.set()
    assert listing.asked() == (ONE,)
    store.go_on.clear()
    store.held = (TWO, ONE)
    assert listing.soon() == (ONE,)
    store.error = OSError("the store fails")
    store.go_on.set()
    assert listing.asked() == (ONE,)
    store.error = None
    assert listing.soon() == (TWO, ONE)

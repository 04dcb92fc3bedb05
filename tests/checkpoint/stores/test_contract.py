"""The contract of ``stores/port.py``, kept by every kind of store; real servers, no stand-ins."""

import os
import subprocess
import threading
from collections.abc import Callable

import pytest

from keepstep.checkpoint.stores.port import BLOCK_BYTES, Store
from keepstep.checkpoint.stores.selftest import selftest

MEBIBYTE = 1024 * 1024


def keys(store: Store, prefix: str = "") -> list[str]:
    return [entry.key for entry in store.list(prefix)]


def together(count: int, act: Callable[[int], object]) -> list[object]:
    """Results of ``act`` in that many threads at once; exceptions are results."""
    start, results = threading.Barrier(count), [None] * count

    def run(number: int) -> None:
        start.wait()
        try:
            results[number] = act(number)
        except Exception as error:  # noqa: BLE001 - the caller compares it
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_passes_its_own_self_test(store: Store) -> None:
    selftest(store)
    assert keys(store) == []


def test_create_is_once_and_changes_nothing_after(store: Store) -> None:
    assert store.create("a/b/c.json", b"first") is True
    assert store.create("a/b/c.json", b"second") is False
    assert store.read("a/b/c.json") == b"first"
    assert store.create("a/b/empty", b"") is True
    assert (store.size("a/b/empty"), store.read("a/b/empty")) == (0, b"")


def test_create_takes_any_buffer_and_keeps_none(store: Store) -> None:
    buffer = bytearray(b"quiet" * 100)
    assert store.create("k", memoryview(buffer)[5:])
    buffer[:] = bytes(500)
    # Fails while anyone still holds a view of it.
    buffer.clear()
    assert store.read("k") == b"quiet" * 99


def test_of_eight_creators_one_wins(store: Store) -> None:
    won = together(8, lambda number: store.create("commits/1", b"%d" % number))
    assert sorted(won, key=str) == [False] * 7 + [True]
    assert store.read("commits/1") == b"%d" % won.index(True)


@pytest.mark.parametrize("size", [0, 100, BLOCK_BYTES, MEBIBYTE + 17, 17 * MEBIBYTE + 4096])
def test_a_streamed_object_is_what_was_written(store: Store, size: int) -> None:
    body = os.urandom(size)
    buffers = (bytearray(MEBIBYTE), bytearray(MEBIBYTE))
    with store.writer("packs/x.pk", size) as writer:
        for number, at in enumerate(range(0, size, MEBIBYTE)):
            block = body[at : at + MEBIBYTE]
            # The contract lets the caller have a buffer back after the next write.
            buffer = buffers[number % 2]
            buffer[: len(block)] = block
            writer.write(memoryview(buffer)[: len(block)])
        assert store.size("packs/x.pk") is None
        writer.finish()
        writer.abort()
    assert store.size("packs/x.pk") == size
    found = bytearray(size)
    store.read_into("packs/x.pk", 0, memoryview(found))
    assert found == body


def test_a_block_larger_than_a_part(store: Store) -> None:
    body = os.urandom(20 * MEBIBYTE)
    with store.writer("big", len(body)) as writer:
        writer.write(body)
        writer.finish()
    found = bytearray(3 * MEBIBYTE)
    store.read_into("big", 7 * MEBIBYTE + 1, memoryview(found))
    assert found == body[7 * MEBIBYTE + 1 :][: len(found)]


def test_an_aborted_or_abandoned_object_never_appears(store: Store) -> None:
    aborted = store.writer("packs/a", 12 * MEBIBYTE)
    aborted.write(bytes(12 * MEBIBYTE))
    aborted.abort()
    aborted.abort()
    with pytest.raises(OSError), store.writer("packs/b", 100) as left:
        left.write(bytes(100))
        raise OSError("the caller's own")
    with pytest.raises(OSError):
        aborted.finish()
    assert keys(store) == []


def test_finish_refuses_a_taken_key(store: Store) -> None:
    with store.writer("x", 4) as writer:
        writer.write(b"late")
        assert store.create("x", b"early")
        with pytest.raises(FileExistsError):
            writer.finish()
    assert store.read("x") == b"early"
    assert keys(store) == ["x"]


def test_a_killed_writer_leaves_nothing_under_the_key(
    store: Store, address: str, start_program: Callable[..., subprocess.Popen[str]]
) -> None:
    process = start_program("upload.py", address, "packs/killed")
    assert process.stdout is not None
    # By then whole parts are at the server.
    while process.stdout.readline() != "24\n":
        assert process.poll() is None
    process.kill()
    process.wait()
    assert store.size("packs/killed") is None
    assert keys(store) == []
    with store.writer("packs/killed", 3) as writer:
        writer.write(b"new")
        writer.finish()
    assert store.read("packs/killed") == b"new"


def test_ranges(store: Store) -> None:
    body = os.urandom(10_000)
    store.create("k", body)
    for offset, length in ((0, 1), (0, 10_000), (9_999, 1), (4096, 4096), (5, 0)):
        out = bytearray(length)
        store.read_into("k", offset, memoryview(out))
        assert out == body[offset : offset + length]


@pytest.mark.parametrize(("offset", "length"), [(9_999, 2), (10_000, 1), (20_000, 5), (0, 20 * MEBIBYTE)])
def test_a_range_beyond_the_end_is_an_error(store: Store, offset: int, length: int) -> None:
    store.create("k", bytes(10_000))
    with pytest.raises(OSError, match="ends") as caught:
        store.read_into("k", offset, memoryview(bytearray(length)))
    assert not isinstance(caught.value, FileNotFoundError)


def test_what_is_absent(store: Store) -> None:
    assert store.size("no/such") is None
    assert keys(store, "no/") == []
    store.delete("no/such")
    with pytest.raises(FileNotFoundError, match=r"no/such"):
        store.read("no/such")
    with pytest.raises(FileNotFoundError, match=r"no/such"):
        store.read_into("no/such", 0, memoryview(bytearray(3)))


def test_a_listing_is_whole_in_order_and_by_parts(store: Store) -> None:
    # Their order as strings is not the order of a walk through directories.
    names = ["steps/1/x", "steps/1-a/x", "steps/1.b", "steps/10/x", "steps/1_/x", "stepsister", "steps/2/y/z"]
    for name in names:
        assert store.create(name, name.encode())
    with store.writer("steps/half", 9 * MEBIBYTE) as half:
        half.write(bytes(9 * MEBIBYTE))
        inside = [name for name in names if name.startswith("steps/")]
        assert [tuple(entry) for entry in store.list("steps/")] == [(name, len(name)) for name in sorted(inside)]
        assert keys(store) == sorted(names)
        assert keys(store, "steps/10/") == ["steps/10/x"]


def test_a_listing_longer_than_a_page(store: Store) -> None:
    names = [f"p/{number:05d}" for number in range(1100)]
    rows = [names[at::8] for at in range(8)]
    assert together(8, lambda row: [store.create(name, b"") for name in rows[row]]) == [
        [True] * len(row) for row in rows
    ]
    assert keys(store, "p/") == names


def test_delete_makes_room(store: Store) -> None:
    for name in ("d/a", "d/b"):
        store.create(name, b"1")
    store.delete("d/a")
    store.delete("d/a")
    assert keys(store, "d/") == ["d/b"]
    assert store.create("d/a", b"2")


def test_creating_beside_deleting(store: Store) -> None:
    def churn(number: int) -> None:
        for _ in range(20):
            assert store.create(f"same/{number}", b"x")
            store.delete(f"same/{number}")

    assert together(4, churn) == [None] * 4
    assert keys(store) == []


def test_tidying_harms_nothing_that_is_whole_or_under_way(store: Store) -> None:
    store.create("a", b"1")
    with store.writer("b", 12 * MEBIBYTE) as writer:
        writer.write(bytes(12 * MEBIBYTE))
        store.tidy(3600.0)
        writer.finish()
    store.tidy(0.0)
    assert [tuple(entry) for entry in store.list("")] == [("a", 1), ("b", 12 * MEBIBYTE)]


def test_a_hint_can_be_overwritten(store: Store) -> None:
    for body in (b"first", b"2"):
        store.hint("latest", body)
        assert store.read("latest") == body


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/..", "./a", "a b", "a\nb", "ä", "a?b", "x" * 1025])
def test_bad_keys_are_refused(store: Store, key: str) -> None:
    for call in (
        lambda: store.create(key, b""),
        lambda: store.writer(key, 1),
        lambda: store.read(key),
        lambda: store.read_into(key, 0, memoryview(bytearray(1))),
        lambda: store.size(key),
        lambda: store.delete(key),
        lambda: store.hint(key, b""),
    ):
        with pytest.raises(ValueError, match="is not a key"):
            call()
    assert keys(store) == []

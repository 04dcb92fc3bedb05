"""A store that does not do what a commit depends on is found out before the first commit, and said why."""

import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keepstep.checkpoint import LocalCheckpoints, flatten
from keepstep.checkpoint.errors import StoreUnfit
from keepstep.checkpoint.stores.port import Entry, Store
from keepstep.checkpoint.stores.posix import PosixStore
from keepstep.checkpoint.stores.selftest import selftest

from .servers import Server


def test_rclone_is_refused(rclone: Server, open_on: Callable[..., Store]) -> None:
    store = open_on(rclone, f"t-{secrets.token_hex(4)}")
    with pytest.raises(StoreUnfit, match=r"If-None-Match is ignored.*Use a directory .*rclone serve s3"):
        selftest(store)
    assert list(store.list("")) == []


def test_no_checkpoint_goes_to_a_store_that_is_not_fit(
    rclone: Server, seaweedfs: Server, open_on: Callable[..., Store]
) -> None:
    state = {"g": flatten({"x": 1})}
    with pytest.raises(StoreUnfit, match="If-None-Match is ignored"):
        LocalCheckpoints(open_on(rclone, f"t-{secrets.token_hex(4)}"), job="job").save(1, state)
    good = LocalCheckpoints(open_on(seaweedfs, f"t-{secrets.token_hex(4)}"), job="job")
    done = good.save(1, state)
    assert done is not None and done.state == "verified" and good.load(done)["g"]["x"] == 1


def test_what_cannot_be_reached_is_not_called_unfit(seaweedfs: Server, open_on: Callable[..., Store]) -> None:
    environment = seaweedfs.environment | {"AWS_SECRET_ACCESS_KEY": "wrong"}
    with pytest.raises(PermissionError):
        selftest(open_on(seaweedfs._replace(environment=environment), "x"))


class Overwriting(PosixStore):
    def create(self, key: str, data: Any) -> bool:
        self.hint(key, bytes(data))
        return True


class RefusingYetWriting(PosixStore):
    def create(self, key: str, data: Any) -> bool:
        if not super().create(key, data):
            self.hint(key, bytes(data))
            return False
        return True


class LookingThenWriting(PosixStore):
    """The usual mistake: correct for one creator at a time."""

    def create(self, key: str, data: Any) -> bool:
        if self.size(key) is not None:
            return False
        if key.endswith("race"):
            # Every racer has looked before the first one writes.
            self.racers.wait()
        self.hint(key, bytes(data))
        return True


class ListingLate(PosixStore):
    def list(self, prefix: str) -> Iterator[Entry]:
        return iter(())


class ReadingWhole(PosixStore):
    def read_into(self, key: str, offset: int, view: memoryview) -> None:
        view[:] = (self.read(key) * 2)[: len(view)]


class ReadingShort(PosixStore):
    def read_into(self, key: str, offset: int, view: memoryview) -> None:
        found = self.read(key)[offset : offset + len(view)]
        view[: len(found)] = found


class ReadingStale(PosixStore):
    def read(self, key: str) -> bytes:
        raise FileNotFoundError(key)


class KeepingDeleted(PosixStore):
    def delete(self, key: str) -> None:
        pass


class MeasuringWrong(PosixStore):
    def size(self, key: str) -> int | None:
        size = super().size(key)
        return None if size is None else size + 1


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Overwriting, "must only be created if it is absent"),
        (RefusingYetWriting, "a refused create changed it"),
        (LookingThenWriting, "8 of them were told that they made it"),
        (ListingLate, "a listing does not show"),
        (ReadingWhole, "a part of an object returns other bytes"),
        (ReadingShort, "beyond the end of an object succeeds"),
        (ReadingStale, "just written cannot be read"),
        (KeepingDeleted, "still there after it was deleted"),
        (MeasuringWrong, "of 8448 bytes has 8449"),
    ],
)
def test_each_defect_has_its_sentence(kind: type[PosixStore], why: str, tmp_path: Path) -> None:
    store = kind(tmp_path)
    store.racers = threading.Barrier(8)  # type: ignore[attr-defined]
    with pytest.raises(StoreUnfit, match=why) as caught:
        selftest(store)
    assert str(tmp_path) in str(caught.value)
    assert "Use a directory on a POSIX file system, or an object store with conditional writes" in str(caught.value)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    selftest(PosixStore(tmp_path))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

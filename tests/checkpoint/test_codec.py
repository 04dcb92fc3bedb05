"""Chunks made smaller for slow links: bit-exact, or refused; and only where it pays."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.format.codec import WORTH, decode, encode
from keepstep.checkpoint.opening import open_keys
from keepstep.checkpoint.repository.pack_writer import Group
from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.repository.save import Save
from keepstep.checkpoint.state.blob import digest_chunks, pack
from keepstep.checkpoint.state.tree import flatten
from keepstep.checkpoint.stores.posix import PosixStore

from .keyrings import put_key


@given(hnp.arrays(np.uint8, st.integers(0, 4096), elements=st.integers(0, 3)), st.sampled_from([1, 2, 4, 8]))
def test_what_is_made_smaller_comes_back(data: "np.ndarray[tuple[int], np.dtype[np.uint8]]", item: int) -> None:
    coded = encode(data.data, item)
    if coded is not None:
        assert len(coded[1]) < WORTH * data.size
        out = bytearray(data.size)
        decode(*coded, memoryview(out))
        assert bytes(out) == data.tobytes()


def test_noise_is_left_alone_and_weights_lose_their_exponents() -> None:
    random = np.random.default_rng(0)
    assert encode(random.bytes(100_000), 4) is None
    weights = (random.standard_normal(100_000) * 0.02).astype(np.float32)
    coded = encode(weights.data.cast("B"), 4)
    assert coded is not None and coded[0] == "planes4-zstd" and len(coded[1]) < 0.9 * weights.nbytes


@given(st.binary(max_size=300), st.sampled_from(["zstd", "planes2-zstd", "planes4-zstd", "brotli", ""]))
def test_anything_else_is_refused(data: bytes, codec: str) -> None:
    with pytest.raises(StateInvalid):
        decode(codec, data, memoryview(bytearray(1000)))


def test_a_frame_that_unpacks_to_more_is_refused() -> None:
    coded = encode(bytes(1_000_000), 1)
    assert coded is not None and len(coded[1]) < 1000
    with pytest.raises(StateInvalid, match="another size"):
        decode(*coded, memoryview(bytearray(1000)))


@pytest.mark.parametrize("sealed", [False, True], ids=["clear", "sealed"])
def test_a_compressed_checkpoint_is_smaller_verified_and_read_by_whoever_has_no_such_setting(
    sealed: bool, tmp_path: Path
) -> None:
    store = PosixStore(tmp_path / "store")
    (tmp_path / "keys").mkdir(mode=0o700)
    put_key(tmp_path / "keys", "1.key")
    keys = open_keys(store, str(tmp_path / "keys")) if sealed else None
    random = np.random.default_rng(0)
    tree = {
        "w": (random.standard_normal(1_000_000) * 0.02).astype(np.float32),
        "half": (random.standard_normal(700_000) * 0.02).astype(np.float16),
        "noise": random.bytes(50),
    }
    blob = pack(flatten(tree))
    writer = Repository(store, "job", keys=keys, compress=True)
    save = Save(job="job", generation=0, step=1, attempt="a", world_size=1)
    receipt = writer.write_part(save, 0, {"g": Group(blob, digest_chunks(blob))})
    commit = writer.try_commit(save)
    assert commit is not None and receipt.packs[0].size_bytes < 0.9 * len(blob)
    reader = Repository(store, "job", keys=keys)
    reader.verify(commit.key)
    reader.scrub(commit.key)
    found = reader.load(commit.key, 0)["g"]
    assert found["w"].tobytes() == tree["w"].tobytes() and found["half"].tobytes() == tree["half"].tobytes()

"""Sealed chunks: the exact bytes, and that nothing opens but the chunk itself, in its place, with its key."""

import copy
import os
import pickle
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.checkpoint import StateInvalid
from keepstep.checkpoint.keys import sealing
from keepstep.checkpoint.keys.port import Secret, canonical, session_id
from keepstep.checkpoint.keys.sealing import ChunkSealer

from .keyrings import PACK, context, everything_shown, forms_of, open_one, seal_one

KEY = bytes(range(32))
PLAIN = b"sixteen bytes 16"


def sealer(key: bytes = KEY, **changes: Any) -> ChunkSealer:
    return ChunkSealer(Secret(key), context(**changes))


def test_known_answers() -> None:
    """Computed with hmac and hashlib for the derivation, and with the one-shot AES-256-GCM for the chunk."""
    ours = sealer()
    assert ours.fingerprint == "7575bbc840adb4fa"
    ciphertext, tag = seal_one(ours, PLAIN, 7)
    assert ciphertext.hex() == "4c7b2e83ad90d54b7a110a24fbafe067"
    assert tag.hex() == "c916fbc8e55d4418767eab9385596fd4"
    assert sealing.check_of(Secret(KEY)) == "e47b4d664e313924a248f629d72416c8"
    assert session_id("acme", "gpt", 3, 0) == "a07fa214a81095fe1fd6c47bad4ec493"


@pytest.mark.parametrize("size", [0, 1, 15, 16, 4095, 4096, 1_000_003])
def test_a_chunk_is_as_long_as_its_text_and_comes_back(size: int) -> None:
    plain = os.urandom(size)
    sealed = seal_one(sealer(), plain)
    assert len(sealed[0]) == size and len(sealed[1]) == 16
    assert size < 16 or sealed[0] != plain
    assert open_one(sealer(), sealed) == plain


@pytest.mark.parametrize(
    "elsewhere",
    [{"tenant": "other"}, {"job": "other"}, {"generation": 4}, {"step": 101}, {"pack": PACK[::-1]}],
    ids=lambda changes: next(iter(changes)),
)
def test_a_chunk_moved_to_another_place_does_not_open(elsewhere: dict[str, Any]) -> None:
    sealed = seal_one(sealer(), PLAIN)
    with pytest.raises(StateInvalid, match="does not match its tag"):
        open_one(sealer(**elsewhere), sealed)


def test_a_chunk_does_not_open_under_another_number_codec_or_length() -> None:
    ours = sealer()
    out = bytearray(16)
    tag = ours.seal(5, PLAIN, memoryview(out), "xor")
    for number, stored, codec in [
        (6, out, "xor"),
        (5, out, ""),
        (5, out, "xorz"),
        (5, out[:15], "xor"),
        (5, b"", "xor"),
    ]:
        with pytest.raises(StateInvalid, match="does not match its tag"):
            ours.open(number, bytes(stored), tag, memoryview(bytearray(len(stored))), codec)
    ours.open(5, bytes(out), tag, memoryview(out), "xor")
    assert bytes(out) == PLAIN


def test_fields_cannot_run_into_each_other() -> None:
    sealed = seal_one(sealer(tenant="ab", job="c"), PLAIN)
    with pytest.raises(StateInvalid):
        open_one(sealer(tenant="a", job="bc"), sealed)


def test_every_flipped_bit_is_noticed_and_leaves_zeros() -> None:
    ciphertext, tag = seal_one(sealer(), PLAIN)
    for bit in range((len(ciphertext) + len(tag)) * 8):
        damaged = bytearray(ciphertext + tag)
        damaged[bit // 8] ^= 1 << bit % 8
        out = bytearray(b"\xff" * 16)
        with pytest.raises(StateInvalid):
            sealer().open(0, bytes(damaged[:16]), bytes(damaged[16:]), memoryview(out))
        assert not any(out), f"bit {bit} left unauthenticated text behind"


@pytest.mark.parametrize("tag", [b"", b"1234", bytes(15), bytes(17)])
def test_a_short_or_long_tag_is_refused(tag: bytes) -> None:
    with pytest.raises(StateInvalid, match="not 16"):
        open_one(sealer(), (PLAIN, tag))


def test_a_number_is_sealed_once() -> None:
    ours = sealer()
    seal_one(ours, PLAIN, 3)
    with pytest.raises(AssertionError, match="sealed twice"):
        seal_one(ours, b"another text ...", 3)


def test_buffers_must_fit() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        sealer().seal(0, PLAIN, memoryview(bytearray(15)))
    with pytest.raises(ValueError, match="16 bytes"):
        sealer().open(0, PLAIN, bytes(16), memoryview(bytearray(32)))


@pytest.mark.parametrize("pack", ["", "abc", PACK.upper(), PACK + "0", PACK[:-1] + "\n"])
def test_a_pack_id_has_one_form(pack: str) -> None:
    with pytest.raises(ValueError, match="32 lower-case hex digits"):
        sealer(pack=pack)


def test_packs_and_sessions_have_keys_of_their_own() -> None:
    prints = {sealer().fingerprint, sealer(pack=PACK[::-1]).fingerprint, sealer(bytes(32)).fingerprint}
    assert len(prints) == 3
    assert sealer(step=5).fingerprint == sealer().fingerprint, "one key for one pack id"


def test_threads_share_a_sealer() -> None:
    ours, plain = sealer(), [os.urandom(100_000) for _ in range(32)]
    sealed: list[tuple[bytes, bytes]] = [(b"", b"")] * 32

    def work(first: int) -> None:
        for number in range(first, 32, 4):
            sealed[number] = seal_one(ours, plain[number], number)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [open_one(sealer(), chunk, number) for number, chunk in enumerate(sealed)] == plain


_field = st.one_of(st.text(st.characters(codec="utf-8"), max_size=8), st.integers(0, 300))


@given(st.lists(_field, max_size=4), st.lists(_field, max_size=4))
def test_canonical_bytes_are_equal_for_equal_fields_only(left: list[str | int], right: list[str | int]) -> None:
    assert (canonical("x", *left) == canonical("x", *right)) == (left == right)


@pytest.mark.parametrize("field", [-1, 1 << 64, "\ud800"])
def test_what_has_no_canonical_form_is_refused(field: str | int) -> None:
    with pytest.raises(ValueError):
        canonical("x", field)


def test_no_secret_is_shown_copied_or_pickled() -> None:
    secret, ours = Secret(KEY), sealer()
    for shown in (repr(secret), str(secret), f"{secret}", repr(ours), repr([secret, {"k": ours}])):
        assert not any(form in shown for form in forms_of(KEY))
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not copied"):
            copied(secret)
    with pytest.raises(StateInvalid) as raised:
        open_one(ours, (PLAIN, bytes(16)))
    assert not any(form in everything_shown(raised.value) for form in forms_of(KEY))


def test_a_key_is_wrapped_for_its_facts_alone() -> None:
    wrapping, key, facts = Secret(os.urandom(32)), Secret(KEY), {"job": "a", "tenant": "b"}
    data = sealing.wrap(wrapping, key, facts)
    assert KEY not in data and data != sealing.wrap(wrapping, key, facts)
    opened = sealing.unwrap(wrapping, data, dict(reversed(facts.items())))
    assert opened is not None and opened.reveal() == KEY
    assert sealing.unwrap(wrapping, data, facts | {"job": "b"}) is None
    assert sealing.unwrap(Secret(os.urandom(32)), data, facts) is None
    assert sealing.unwrap(wrapping, data[:-1], facts) is None
    assert sealing.unwrap(wrapping, b"", facts) is None

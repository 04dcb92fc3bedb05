"""The erasure code: any k of k + m blocks give the others, the same bytes from every engine."""

import hashlib
import itertools
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.checkpoint.erasure import isal
from keepstep.checkpoint.erasure.coder import Coder, Engine, fastest_engine
from keepstep.checkpoint.erasure.field import INVERSES, PRODUCTS, Bytes, NumpyEngine, generator, inverse, product

ENGINES = [NumpyEngine(), fastest_engine()]


def blocks_of(seed: int, count: int, length: int) -> list[Bytes]:
    draw = random.Random(seed)
    return [np.frombuffer(draw.randbytes(length), np.uint8) for _ in range(count)]


def coded(coder: Coder, seed: int, length: int) -> list[Bytes]:
    """Data and parity blocks."""
    data = blocks_of(seed, coder.data, length)
    parity = [np.zeros(length, np.uint8) for _ in range(coder.parity)]
    coder.encode(data, parity)
    return [*data, *parity]


def check_losses(coder: Coder, blocks: list[Bytes], missing: Sequence[int]) -> None:
    present = {n: block for n, block in enumerate(blocks) if n not in missing}
    out = [np.full(blocks[0].nbytes, 0xAA, np.uint8) for _ in missing]
    coder.reconstruct(present, missing, out)
    for number, rebuilt in zip(missing, out, strict=True):
        assert np.array_equal(rebuilt, blocks[number]), f"block {number} after the loss of {missing}"


def test_the_field_is_a_field() -> None:
    assert all(PRODUCTS[a, INVERSES[a]] == 1 for a in range(1, 256))
    a, b, c = (np.array(random.Random(n).choices(range(256), k=500), np.uint8) for n in range(3))
    assert np.array_equal(PRODUCTS[a, b ^ c], PRODUCTS[a, b] ^ PRODUCTS[a, c])
    assert np.array_equal(PRODUCTS[PRODUCTS[a, b], c], PRODUCTS[a, PRODUCTS[b, c]])


@pytest.mark.parametrize(("data", "parity"), [(4, 2), (8, 3)])
def test_every_survivor_set_can_be_inverted(data: int, parity: int) -> None:
    matrix = generator(data, parity)
    for rows in itertools.combinations(range(data + parity), data):
        chosen = matrix[list(rows)]
        assert np.array_equal(product(inverse(chosen), chosen), np.eye(data, dtype=np.uint8))


def test_a_singular_matrix_has_no_inverse() -> None:
    with pytest.raises(ValueError, match="singular"):
        inverse(np.array([[3, 5], [3, 5]], np.uint8))


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize(("data", "parity"), [(4, 2), (8, 3)])
def test_every_loss_of_up_to_m_blocks_is_made_good(data: int, parity: int, engine: Engine) -> None:
    coder = Coder(data, parity, engine)
    blocks = coded(coder, 1, 100)
    for count in range(parity + 1):
        for missing in itertools.combinations(range(data + parity), count):
            check_losses(coder, blocks, missing)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_code_and_length(data: st.DataObject) -> None:
    k = data.draw(st.integers(1, 40), "k")
    m = data.draw(st.integers(1, min(8, 64 - k)), "m")
    coder = Coder(k, m, data.draw(st.sampled_from(ENGINES)))
    length = data.draw(st.sampled_from([0, 1, 15, 31, 32, 63, 64, 65, 255, 4095, 4096, 70_000]), "length")
    blocks = coded(coder, data.draw(st.integers(0, 99)), length)
    missing = data.draw(st.lists(st.integers(0, k + m - 1), unique=True, max_size=m), "missing")
    check_losses(coder, blocks, missing)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(1, 6), st.integers(0, 5000), st.integers(0, 99))
def test_all_engines_give_the_same_bytes(data: int, parity: int, length: int, seed: int) -> None:
    slow, fast = (coded(Coder(data, parity, engine), seed, length) for engine in ENGINES)
    assert all(map(np.array_equal, slow, fast))


def test_the_code_is_for_good() -> None:
    """Shards written today must be readable in ten years: these figures never change."""
    assert generator(4, 2)[4:].tolist() == [[71, 167, 122, 186], [167, 71, 186, 122]]
    everything = b"".join(block.tobytes() for block in coded(Coder(8, 3), 7, 1000))
    assert hashlib.sha256(everything).hexdigest()[:32] == "3d2d5577fab30a99c6ab130694fe9ebc"


def test_isa_l_is_found_in_its_package() -> None:
    pytest.importorskip("pyeclib")
    assert isinstance(isal.load(), isal.IsalEngine), isal.load()
    assert Coder(4, 2).implementation == "isa-l"


def test_without_isa_l_numpy_does_it_and_says_so() -> None:
    program = (
        "import sys; sys.modules['pyeclib'] = None\n"
        "from keepstep.checkpoint.erasure import coder, isal\n"
        "print(coder.Coder(4, 2).implementation, isal.load())"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.startswith("numpy pyeclib"), ran.stdout


def test_another_library_is_not_taken_for_isa_l(tmp_path: Path) -> None:
    (tmp_path / "libisal.so").write_bytes(b"not a library")
    with pytest.raises(OSError):
        isal.IsalEngine(tmp_path / "libisal.so")


def test_an_engine_with_wrong_products_is_not_believed() -> None:
    class Wrong(NumpyEngine):
        def multiply(self, prepared: Any, sources: Sequence[Bytes], outs: Sequence[Bytes]) -> None:
            super().multiply(prepared, sources, outs)
            outs[-1][-1] ^= 1

    assert isal.is_right(NumpyEngine())
    assert not isal.is_right(Wrong())


def test_nothing_is_copied_and_views_may_begin_anywhere() -> None:
    coder, arena = Coder(4, 2), bytearray(random.Random(3).randbytes(7001))
    views = [memoryview(arena)[1 + n * 1000 : 1 + (n + 1) * 1000] for n in range(6)]
    coder.encode(views[:4], views[4:])
    lost = bytes(views[2])
    views[2][:] = bytes(1000)
    coder.reconstruct({n: views[n] for n in (0, 1, 4, 5)}, [2], [views[2]])
    assert bytes(views[2]) == lost
    assert arena[0] == random.Random(3).randbytes(7001)[0]


@pytest.mark.parametrize(("data", "parity"), [(0, 1), (1, 0), (63, 2)])
def test_an_impossible_code_is_refused(data: int, parity: int) -> None:
    with pytest.raises(ValueError, match="not possible"):
        Coder(data, parity)


def test_what_does_not_fit_is_refused() -> None:
    coder = Coder(2, 1)
    a, b, c = (np.zeros(8, np.uint8) for _ in range(3))
    with pytest.raises(ValueError, match="1 data and 1 parity"):
        coder.encode([a], [c])
    with pytest.raises(ValueError, match="different lengths"):
        coder.encode([a, b[:7]], [c])
    with pytest.raises(ValueError, match="read-only"):
        coder.encode([a, b], [bytes(8)])
    with pytest.raises(ValueError, match="1 blocks are present"):
        coder.reconstruct({0: a}, [1], [b])
    with pytest.raises(ValueError, match="has blocks 0 to 2"):
        coder.reconstruct({0: a, 1: b}, [3], [c])
    with pytest.raises(ValueError, match="0 buffers"):
        coder.reconstruct({0: a, 1: b}, [2], [])

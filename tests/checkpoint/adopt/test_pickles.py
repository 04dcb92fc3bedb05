"""Files from an attacker: nothing runs, nothing grows, and what is wrong is said in words."""

import io
import json
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepstep.checkpoint import StateInvalid
from keepstep.checkpoint.adopt.adopted import Adopted, adopt
from keepstep.checkpoint.adopt.load import load
from keepstep.checkpoint.adopt.pickles import Global, Record, read_pickle
from keepstep.checkpoint.adopt.recognise import recognise
from keepstep.checkpoint.adopt.standins import CONSTRUCTORS

Sample = Callable[[str], Path]
MOST_BYTES = 64 * 1024 * 1024


class Run:
    """What a real unpickler would do with it is to run a command."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> Any:
        return self.function, self.args


def as_torch_file(pickled: bytes, path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    return path


ATTACKS: dict[str, Callable[[str], bytes]] = {
    "a command": lambda mark: pickle.dumps(Run(os.system, f"touch {mark}")),
    "a command in a tensor's place": lambda mark: pickle.dumps({"state_dict": {"w": Run(os.system, f"touch {mark}")}}),
    "evaluated text": lambda mark: pickle.dumps(Run(eval, f"open({mark!r}, 'w').close()")),
    "a file opened": lambda mark: pickle.dumps(Run(open, mark, "w")),
    "a name with dots": lambda mark: (
        f"\x80\x04\x8c\x08builtins\x8c\x04open\x93\x8c{chr(len(mark))}{mark}\x8c\x01w\x86R.".encode("latin-1")
    ),
    "the old opcode": lambda mark: f"(S'touch {mark}'\nios\nsystem\n.".encode(),
    "the object opcode": lambda mark: f"(cos\nsystem\nS'touch {mark}'\no.".encode(),
    "state that is set": lambda mark: f"cos\nsystem\nS'touch {mark}'\nb.".encode(),
    "a call of a call": lambda mark: f"cbuiltins\ngetattr\n(cos\nsystem\nS'x'\ntR(S'touch {mark}'\ntR.".encode(),
    "inside of a constructor": lambda mark: (
        f"ctorch._tensor\n_rebuild_from_type_v2\n(cos\nsystem\nctorch\nTensor\n(S'touch {mark}'\nt}}tR.".encode()
    ),
    "inside of an array": lambda mark: (
        f"cnumpy.core.multiarray\n_reconstruct\n(cos\nsystem\n(I0\ntS'touch {mark}'\ntR.".encode()
    ),
    "as a persistent id": lambda mark: f"(S'storage'\ncos\nsystem\nS'touch {mark}'\nS'cpu'\nI1\ntQ.".encode(),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("place", ["torch", "legacy", "dcp", "optimizer.pt", "training_args.bin"])
def test_nothing_in_a_pickle_is_run(attack: str, place: str, tmp_path: Path, sample: Sample) -> None:
    mark = tmp_path / "run"
    pickled = ATTACKS[attack](str(mark))
    if place == "torch":
        path = as_torch_file(pickled, tmp_path / "checkpoint-1.pt")
    elif place == "legacy":
        path = tmp_path / "checkpoint-1.pt"
        path.write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2) + pickled * 4)
    elif place == "dcp":
        path = tmp_path / "step-1"
        path.mkdir()
        (path / ".metadata").write_bytes(pickled)
        (path / "__0_0.distcp").write_bytes(b"")
    else:
        path = sample("trainer")
        as_torch_file(pickled, path / place)
    for look in (recognise, adopt, load):
        try:
            found = look(path)
        except StateInvalid:
            continue
        if look is adopt:
            assert isinstance(found, Adopted) and found.problems
        assert look is not load, "it was imported"
    assert not mark.exists()


def test_harmless_objects_are_named_and_left_out(tmp_path: Path) -> None:
    import argparse

    torch.save({"w": torch.ones(2), "args": argparse.Namespace(lr=1)}, tmp_path / "a.pt")
    adopted = adopt(tmp_path / "a.pt")
    assert adopted.problems == ()
    assert any("argparse.Namespace" in line for line in adopted.warnings)
    found = load(tmp_path / "a.pt")
    assert found.left_out == ("a.pt.args",)
    assert list(found.groups["model"]) == ["w"]


def nested(count: int) -> bytes:
    return b"]" * count + b"a" * (count - 1) + b"."


def doubled(count: int) -> bytes:
    """Each list holds the one before it twice: 2 ** count leaves in count * 4 bytes."""
    return (
        b"]"
        + b"".join(b"q" + bytes([n]) + b"0](h" + bytes([n]) + b"h" + bytes([n]) + b"e" for n in range(count))
        + b"."
    )


BOMBS = {
    "a length that is not there": b"\x8e" + struct.pack("<Q", 1 << 50) + b"x",
    "a text that is not there": b"\x8d" + struct.pack("<Q", 1 << 50) + b"x",
    "a number that is not there": b"\x8b" + struct.pack("<I", 0x7FFFFFFF) + b"x",
    "a memo far away": b"Kar" + struct.pack("<I", 0xFFFFFFFF) + b"h\x00.",
    "a deep list": nested(50_000),
    "a list that doubles": doubled(60),
    "a list in itself": b"]q\x00h\x00a.",
    "a deep key": b"}(" + b"K\x01" + b"\x85" * 20_000 + b"K\x01u.",
    "a key that doubles": b"}K\x01" + b"2\x86" * 60 + b"K\x01s.",
    "a long number": b"I" + b"9" * 1_000_000 + b"\n.",
    "a tensor of everything": b"ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nI2\ntQI0\n"
    b"(I1000000000000\nI1000000000\nt(I0\nI0\ntI00\n}tR.",
    "a tensor beyond its storage": b"ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\n"
    b"I2\ntQI1\n(I2\nt(I1\ntI00\n}tR.",
    "nothing": b"", "only a stop": b".", "half a pickle": b"\x80\x04}", "two marks": b"((e.", "an extension": b"\x82\x01.",
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_no_pickle_grows_or_escapes(bomb: str, tmp_path: Path) -> None:
    path = as_torch_file(BOMBS[bomb], tmp_path / "checkpoint-1.pt")
    tracemalloc.start()
    try:
        with pytest.raises(StateInvalid):
            load(path)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES + 40 * len(BOMBS[bomb])
    finally:
        tracemalloc.stop()


def test_a_safetensors_header_that_promises_too_much_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model_1.safetensors"
    header = b'{"w":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 64)
    tracemalloc.start()
    try:
        with pytest.raises(StateInvalid, match="cut short"):
            load(path)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("begin", [4, 12])
def test_tensors_of_a_safetensors_file_neither_overlap_nor_leave_gaps(begin: int, tmp_path: Path) -> None:
    path = tmp_path / "model_1.safetensors"
    entries = {"a": (0, 8), "b": (begin, begin + 8)}
    header = json.dumps({name: {"dtype": "F32", "shape": [2], "data_offsets": span} for name, span in entries.items()})
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(begin + 8))
    with pytest.raises(StateInvalid, match="overlap or leave bytes between"):
        load(path)


def test_a_compressed_archive_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-1.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 100_000_000)
        archive.writestr("archive/version", "3\n")
    with pytest.raises(StateInvalid, match="compressed"):
        adopt(path)


@pytest.mark.parametrize("name", ["../evil", "/evil", "archive/../../evil"])
def test_a_record_named_outside_of_its_archive_is_refused(name: str, tmp_path: Path) -> None:
    path = as_torch_file(pickle.dumps({}), tmp_path / "checkpoint-1.pt")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, "x")
    with pytest.raises(StateInvalid, match="outside of it"):
        adopt(path)


def test_records_that_overlap_are_refused(tmp_path: Path) -> None:
    path = as_torch_file(pickle.dumps({}), tmp_path / "checkpoint-1.pt")
    data = bytearray(path.read_bytes())
    version = data.find(
        b"PK\1\2", data.find(b"PK\1\2") + 4
    )  # of two bytes, with the record of the byte order behind it
    assert data[version + 20 : version + 28] == struct.pack("<2L", 2, 2)
    data[version + 20 : version + 28] = struct.pack("<2L", 52, 52)
    path.write_bytes(data)
    with pytest.raises(StateInvalid, match="overlap"):
        adopt(path)


@pytest.mark.parametrize(
    "view", ["I1\n(I2\nt(I1\nt", "I0\n(I2\nt(I2\nt", "I0\n(I2\nI2\nt(I1\nI1\nt", "I0\n(I2\nt(I-1\nt"]
)
def test_a_tensor_may_not_reach_beyond_a_storage_that_is_there(view: str, tmp_path: Path) -> None:
    """Offset, shape and stride of a view of two numbers."""
    storage = "(S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nI2\ntQ"
    path = as_torch_file(f"ctorch._utils\n_rebuild_tensor_v2\n({storage}{view}I00\n}}tR.".encode(), tmp_path / "a.pt")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/data/0", bytes(8))
    with pytest.raises(StateInvalid, match=r"beyond its storage|no list of sizes"):
        load(path)


def test_names_are_only_text() -> None:
    found = read_pickle(b"cos\nsystem\n.", CONSTRUCTORS)
    assert type(found.value) is Global and found.value.name == "os.system" and found.names == ("os.system",)
    called = read_pickle(pickle.dumps(Run(os.system, "x")), CONSTRUCTORS).value
    assert type(called) is Record and called.args == ("x",)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
plain = st.recursive(
    scalars | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@given(plain, st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_plain_values_are_read_as_pickle_reads_them(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    found = read_pickle(data, CONSTRUCTORS)
    assert repr(found.value) == repr(pickle.loads(data))
    assert found.end == len(data)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_value_or_invalid(data: bytes) -> None:
    try:
        read_pickle(data, CONSTRUCTORS)
    except StateInvalid:
        pass


# ---- whole files with changed bytes

changes = st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4)
TARGETS = {
    "dcp_plain": (".metadata", "__0_0.distcp"), "torch_zip": ("",), "torch_legacy": ("",), "safetensors_file": ("",),
    "safetensors_sharded": ("model.safetensors.index.json", "model-00001-of-00002.safetensors"),
    "dcp_shards": ("shard-00001-model-00001-of-00001.safetensors",), "dcp_safetensors": ("__0_0.distcp",),
    "orbax_zarr": ("state/_METADATA", "state/params.w/.zarray", "state/array_metadatas/process_0"),
    "orbax_ocdbt": ("state/_METADATA", "state/manifest.ocdbt"), "trainer": ("trainer_state.json", "optimizer.pt"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in TARGETS.items() for name in names])
def test_changed_bytes_give_problems_or_invalid_and_nothing_else(kind: str, name: str, sample: Sample) -> None:
    path = sample(kind)
    file = path / name if name else path
    original = file.read_bytes()

    @given(changes, st.booleans())
    @settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def look(patches: list[tuple[int, bytes]], at_the_end: bool) -> None:
        data = bytearray(original)
        for at, patch in patches:
            # Directories and trailers stand at the end of a file, headers at its beginning.
            at = len(data) - 1 - at % min(len(data), 200) if at_the_end else at % len(data)
            data[at : at + len(patch)] = patch[: len(data) - at]
        file.write_bytes(data)
        tracemalloc.start()
        try:
            msgspec.json.encode(adopt(path))
        except StateInvalid:
            pass
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < MOST_BYTES

    look()


def test_numpy_arrays_are_read_without_numpys_own_unpickling() -> None:
    arrays = [
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.ones((2, 3))),
        np.float32(2.5),
        np.array(["a"]),
        np.zeros(0),
    ]
    for protocol in (2, 4, 5):
        found = read_pickle(pickle.dumps(arrays, protocol), CONSTRUCTORS)
        for ref, array in zip(found.value, arrays, strict=True):
            value = ref.value()
            assert value.dtype == array.dtype and value.shape == array.shape and value.tobytes() == array.tobytes()


def test_an_array_of_objects_is_not_made() -> None:
    found = read_pickle(pickle.dumps(np.array([Run(os.system, "x")], object)), CONSTRUCTORS)
    assert found.value.value() is None


def test_a_whole_file_in_memory_is_never_needed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-1.pt"
    torch.save({"w": torch.zeros(32 * 1024 * 1024)}, path)
    tracemalloc.start()
    try:
        assert adopt(path).problems == ()
        assert tracemalloc.get_traced_memory()[1] < 24 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_the_bytes_of_a_buffer_are_the_pickle(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(2)}, buffer)
    (tmp_path / "a.pt").write_bytes(buffer.getvalue())
    assert load(tmp_path / "a.pt").groups["model"]["w"].tolist() == [1.0, 1.0]

"""Orbax directories, OCDBT and zarr kinds. Owns their commit rule and what their JSON tells.

Array bytes are compressed inside, so names, shapes and marks are read here, and values only through tensorstore where it
is installed (imported when the check runs). Nothing is ever taken for garbage: a copy that lost its marker is *incomplete*.
"""

import math
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

from keepstep.checkpoint.adopt.inventory import (
    File,
    Inventory,
    Tensor,
    absent_parts,
    box_bytes,
    printable,
    step_from_name,
)
from keepstep.checkpoint.adopt.reading import inside, list_files, opened, read_json
from keepstep.checkpoint.errors import StateInvalid

CHECKPOINT = "_CHECKPOINT_METADATA"
TREE = "_METADATA"
MARKER = "commit_success.txt"
TEMPORARY = re.compile(r".*\.orbax-checkpoint-tmp(?:-\d+)?")
_MANIFEST = "manifest.ocdbt"
_MANIFEST_MAGIC = 0x0CDB3A2A
_PROCESS = re.compile(r"(?:.*/)?(?:ocdbt\.|array_metadatas/)process_(\d{1,9})(?:/.*)?")
_MAX_CHUNKS = 1_000_000
_MAX_MANIFEST_BYTES = 16 * 1024 * 1024
_ZARR_DTYPES = {
    "<f4": "float32", "<f8": "float64", "<f2": "float16", "bfloat16": "bfloat16", "|b1": "bool", "|u1": "uint8",
    "|i1": "int8", "<u2": "uint16", "<i2": "int16", "<u4": "uint32", "<i4": "int32", "<u8": "uint64", "<i8": "int64",
    "<c8": "complex64", "<c16": "complex128",
    **{name: name for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")},
}  # fmt: skip


class Leaf(NamedTuple):
    """A value of a tree: its keys, and what Orbax says that it is."""

    keys: tuple[str, ...]
    kind: str


def looks_like(path: Path) -> bool:
    return (path / CHECKPOINT).is_file() or (path / TREE).is_file() or bool(_item_folders(path))


def unfinished(path: Path) -> str:
    """Why it is not complete; empty if it is. Orbax renames when it is done; newer versions also leave a marker."""
    if TEMPORARY.fullmatch(path.name):
        return "it still has the temporary name that Orbax removes when a save is done"
    if (path / MARKER).is_file():
        return ""
    try:
        told = read_json(path / CHECKPOINT)
    except StateInvalid:
        told = None
    if type(told) is dict and told.get("commit_timestamp_nsecs"):
        return ""
    return f"it has neither {MARKER} nor a commit time: the save was not completed, or a copy lost the marker"


def _item_folders(path: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in path.iterdir() if (entry / TREE).is_file() and not entry.is_symlink())
    except OSError:
        return []


def items(path: Path) -> list[str]:
    """Folders of array trees, relative to ``path``: empty text for the checkpoint itself."""
    return [""] if (path / TREE).is_file() else _item_folders(path)


def leaves(path: Path, item: str) -> list[Leaf]:
    """The values of one tree. Raises StateInvalid."""
    tree = read_json(path / item / TREE)
    try:
        found = []
        for entry in tree["tree_metadata"].values():
            keys = tuple(key["key"] for key in entry["key_metadata"])
            kind = entry["value_metadata"]["value_type"]
            if type(kind) is not str or any(type(key) is not str for key in keys):
                raise StateInvalid(f"{item or path.name}: {TREE} has a name that is no text")
            found.append(Leaf(keys, kind))
        return found
    except (TypeError, LookupError, AttributeError) as error:
        raise StateInvalid(f"{item or path.name}: {TREE} is not what Orbax writes: {error}") from error


def inspect(path: Path) -> Inventory:
    """What an Orbax directory holds. Raises StateInvalid if its tree cannot be read."""
    files, odd = list_files(path)
    problems, warnings = list(odd), []
    if why := unfinished(path):
        problems.append(why)
    tensors: list[Tensor] = []
    values: list[str] = []
    for item in items(path):
        tree = leaves(path, item)
        shapes = _shapes(path / item, problems)
        for leaf in tree:
            name = printable(".".join(((item,) if item else ()) + leaf.keys))
            param = ".".join(leaf.keys)
            if (tensor := _zarr(path / item, param, name, problems)) is not None or (
                leaf.kind in ("jax.Array", "np.ndarray") and (tensor := _from_shape(name, shapes.get(param)))
            ):
                tensors.append(tensor)
            else:
                values.append(name)
        problems += _check_ocdbt(path, item, files)
    if not items(path):
        warnings.append("it has no tree of arrays: only its files are known")
    problems += [f"{file.path} is empty" for file in files if not file.size_bytes and not file.path.endswith(MARKER)]
    processes = {int(match[1]) for file in files if (match := _PROCESS.fullmatch(file.path))}
    return Inventory(
        format="orbax", path=str(path), step=step_from_name(path.name), world_size=max(processes) + 1 if processes else None,
        tensors=tuple(tensors), values=tuple(values), files=files, problems=tuple(problems), warnings=tuple(warnings),
        missing_parts=absent_parts([*(tensor.name for tensor in tensors), *values]),
    )  # fmt: skip


def _shapes(folder: Path, problems: list[str]) -> dict[str, tuple[int, ...]]:
    """Shapes as the processes told them. The dtype stands only in the arrays themselves."""
    shapes: dict[str, tuple[int, ...]] = {}
    where = folder / "array_metadatas"
    for file in sorted(where.iterdir()) if where.is_dir() else ():
        try:
            for entry in read_json(file)["array_metadatas"]:
                told = entry["array_metadata"]
                shapes[told["param_name"]] = tuple(told["write_shape"])
        except StateInvalid as error:
            problems.append(str(error))
        except (TypeError, LookupError) as error:
            problems.append(f"array_metadatas/{file.name} is not what Orbax writes: {error}")
    return shapes


def _from_shape(name: str, shape: tuple[int, ...] | None) -> Tensor | None:
    if shape is None:
        return None
    box_bytes("uint8", shape)
    return Tensor(name=name, dtype="", shape=shape, size_bytes=0)


def _zarr(folder: Path, param: str, name: str, problems: list[str]) -> Tensor | None:
    """An array that has a directory of its own, with the check that each of its chunks is there."""
    where = inside(folder, param) if param else folder
    if not (where / ".zarray").is_file():
        return None
    try:
        told = read_json(where / ".zarray")
        shape, chunks, separator = tuple(told["shape"]), tuple(told["chunks"]), told.get("dimension_separator", ".")
        dtype = _ZARR_DTYPES.get(told["dtype"], "")
        size = box_bytes(dtype, shape) if dtype else 0
        box_bytes("uint8", chunks)
    except (TypeError, LookupError, AttributeError) as error:
        problems.append(f"{name}: its .zarray is not what Orbax writes: {error}")
        return None
    if len(chunks) != len(shape) or 0 in chunks or separator not in (".", "/"):
        problems.append(f"{name}: its .zarray has chunks that do not fit its shape")
        return None
    for chunk in _chunk_names(shape, chunks, separator):
        file = where / chunk
        if not file.is_file() or not file.stat().st_size:
            problems.append(f"{name}: chunk {chunk} is missing or empty")
    return Tensor(name=name, dtype=dtype, shape=shape, size_bytes=size)


def _chunk_names(shape: tuple[int, ...], chunks: tuple[int, ...], separator: str) -> Iterator[str]:
    counts = [-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True)]
    if math.prod(counts) > _MAX_CHUNKS:
        raise StateInvalid(f"an array has {math.prod(counts)} chunks: more than any checkpoint")
    if not shape:
        yield "0"
        return
    for position in product(*map(range, counts)):
        yield separator.join(map(str, position))


def _check_ocdbt(path: Path, item: str, files: tuple[File, ...]) -> list[str]:
    problems = []
    prefix = f"{item}/" if item else ""
    for file in files:
        if file.path.startswith(prefix) and file.path.endswith(_MANIFEST):
            try:
                check_manifest(inside(path, file.path))
            except StateInvalid as error:
                problems.append(f"{file.path}: {error}")
    told = read_json(path / item / TREE)
    if told.get("use_ocdbt") and not any(file.path == f"{prefix}{_MANIFEST}" for file in files):
        problems.append(f"{item or 'it'} should have a {_MANIFEST} and has none: its arrays cannot be found")
    return problems


def check_manifest(path: Path) -> None:
    """Magic, length and CRC-32C of an OCDBT manifest, which is the root of everything in it. Raises StateInvalid."""
    with opened(path) as reader:
        if not 16 <= reader.size_bytes <= _MAX_MANIFEST_BYTES:
            raise StateInvalid(f"it has {reader.size_bytes} bytes")
        data = reader.read(0, reader.size_bytes)
    if int.from_bytes(data[:4], "big") != _MANIFEST_MAGIC:
        raise StateInvalid("it does not begin as a manifest does")
    if int.from_bytes(data[4:12], "little") != len(data):
        raise StateInvalid(f"it has {len(data)} bytes where {int.from_bytes(data[4:12], 'little')} were written")
    if crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise StateInvalid("it does not match its own checksum: its bytes are damaged")


def crc32c(data: bytes) -> int:
    """Castagnoli. Byte by byte: only for manifests, which are small."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _CRC_TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def _table_entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


_CRC_TABLE = tuple(map(_table_entry, range(256)))

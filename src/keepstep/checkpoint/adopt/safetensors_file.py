"""Safetensors files and directories of them. Owns their header and the index that names which file holds what.

The header is read here, with bounds, because what a damaged one holds must be told and not only refused.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from keepstep.checkpoint.adopt.inventory import File, Inventory, Piece, Tensor, absent_parts, box_bytes, printable
from keepstep.checkpoint.adopt.reading import Reader, inside, json_faults, list_files, opened, parse_json, read_json
from keepstep.checkpoint.adopt.sidecar import SIDECAR
from keepstep.checkpoint.errors import StateInvalid

MAX_HEADER_BYTES = 100_000_000
DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
INDEX_NAME = re.compile(r"(?:model|diffusion_pytorch_model|adapter_model)\.safetensors\.index\.json")
_SHARD_NAME = re.compile(r"(.*-)?\d{5}-of-(\d{5})\.safetensors")


class Header(NamedTuple):
    tensors: tuple[Tensor, ...]
    metadata: dict[str, str]


def is_safetensors_file(reader: Reader) -> bool:
    if reader.size_bytes < 10:
        return False
    head = reader.read(0, 9)
    length = int.from_bytes(head[:8], "little")
    return 2 <= length <= MAX_HEADER_BYTES and head[8:9] == b"{"


def read_header(reader: Reader, begin: int = 0, *, name: str | None = None) -> Header:
    """The tensors of the file, or of what follows ``begin``. Raises StateInvalid unless they fill it exactly."""
    name = reader.path.name if name is None else name
    size = reader.size_bytes - begin
    if size < 8:
        raise StateInvalid(f"{name} has {size} bytes: it is cut short")
    length = int.from_bytes(reader.read(begin, 8), "little")
    if length > MAX_HEADER_BYTES or length + 8 > size:
        raise StateInvalid(f"{name} is cut short, or no safetensors file: its header should have {length} bytes")
    header = parse_json(reader.read(begin + 8, length), name)
    if type(header) is not dict:
        raise StateInvalid(f"{name}: its header is no object")
    metadata = header.pop("__metadata__", {})
    if type(metadata) is not dict or any(type(value) is not str for value in metadata.values()):
        raise StateInvalid(f"{name}: its metadata is not text")
    tensors = [_tensor(key, entry, name, begin + 8 + length) for key, entry in header.items()]
    _check_fill(tensors, begin + 8 + length, reader.size_bytes, name)
    return Header(tuple(tensors), metadata)


def _tensor(key: str, entry: Any, name: str, base: int) -> Tensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, LookupError, ValueError) as error:
        raise StateInvalid(f"{name}: tensor {printable(key)} is not described as it should be") from error
    if type(dtype) is not str or type(shape) is not list or type(begin) is not int or type(end) is not int:
        raise StateInvalid(f"{name}: tensor {printable(key)} is not described as it should be")
    if dtype not in DTYPES:
        raise StateInvalid(
            f"{name}: tensor {printable(key)} has dtype {printable(dtype[:40])}, unknown to this keepstep"
        )
    size = box_bytes(DTYPES[dtype], tuple(shape))
    if begin < 0 or end - begin != size:
        raise StateInvalid(f"{name}: tensor {printable(key)} has not the bytes that its shape needs")
    piece = Piece(file=name, offset=base + begin, size_bytes=size, start=(0,) * len(shape), shape=tuple(shape))
    return Tensor(name=printable(key), dtype=DTYPES[dtype], shape=tuple(shape), size_bytes=size, pieces=(piece,))


def _check_fill(tensors: list[Tensor], begin: int, end: int, name: str) -> None:
    at = begin
    for piece in sorted((tensor.pieces[0] for tensor in tensors), key=lambda piece: (piece.offset, piece.size_bytes)):
        if piece.offset != at:
            raise StateInvalid(f"{name}: its tensors overlap or leave bytes between them")
        at += piece.size_bytes
    if at != end:
        what = "is cut short" if at > end else "has bytes after its last tensor"
        raise StateInvalid(f"{name} {what}: {end} bytes where {at} belong")


class Found(NamedTuple):
    """What the safetensors files of a directory hold, and what is wrong between them."""

    tensors: list[Tensor]
    problems: list[str]
    metadata: dict[str, dict[str, str]]
    """File -> the metadata in its header."""


def read_directory(root: Path, files: tuple[File, ...], index: str | None, *, separate: bool = False) -> Found:
    """``index``: the name of the file that says which tensor is where, if there is one.

    ``separate``: each file is a group with names of its own, and comes first in the names.
    """
    tensors: dict[str, Tensor] = {}
    found = Found([], [], {})
    where: dict[str, set[str]] = {}
    for file in files:
        try:
            with opened(inside(root, file.path)) as reader:
                header = read_header(reader, name=file.path)
        except StateInvalid as error:
            found.problems.append(str(error))
            continue
        found.metadata[file.path] = header.metadata
        where[file.path] = {tensor.name for tensor in header.tensors}
        for tensor in header.tensors:
            if separate:
                tensor = msgspec.structs.replace(tensor, name=f"{file.path.removesuffix('.safetensors')}.{tensor.name}")
            if tensor.name in tensors:
                found.problems.append(
                    f"tensor {tensor.name} is in {tensors[tensor.name].pieces[0].file} and in {file.path}"
                )
            tensors[tensor.name] = tensor
    found.tensors.extend(tensors.values())
    if index is not None:
        found.problems.extend(_against_index(root, index, where))
    else:
        found.problems.extend(_against_names(files))
    return found


def _against_index(root: Path, index: str, where: dict[str, set[str]]) -> list[str]:
    problems = []
    try:
        weight_map = read_json(inside(root, index))["weight_map"]
        named: dict[str, set[str]] = {}
        for key, file in weight_map.items():
            inside(root, file)
            named.setdefault(file, set()).add(printable(key))
    except (TypeError, LookupError, AttributeError) as error:
        return [f"{index} has no weight_map: {error}"]
    except StateInvalid as error:
        return [f"{index}: {error}"]
    for file, keys in sorted(named.items()):
        if file not in where:
            problems.append(f"{printable(file)} is named in {index} and is missing or unreadable")
        elif lost := sorted(keys - where[file]):
            problems.append(f"{file} lacks {len(lost)} of the tensors that {index} says it has, {lost[0]} first")
    for file in sorted(where):
        if extra := sorted(where[file] - named.get(file, set())):
            problems.append(f"{file} has {len(extra)} tensors that {index} does not say are there, {extra[0]} first")
    return problems


def _against_names(files: tuple[File, ...]) -> list[str]:
    """Without an index, a shard's own name says how many there should be."""
    sets: dict[tuple[str, int], int] = {}
    for file in files:
        if match := _SHARD_NAME.fullmatch(file.path):
            of = (match[1] or "", int(match[2]))
            sets[of] = sets.get(of, 0) + 1
    return [
        f"{total - count} of {total} files {top}*.safetensors are missing"
        for (top, total), count in sets.items()
        if count != total
    ]


def index_of(files: tuple[File, ...]) -> str | None:
    return next((file.path for file in files if INDEX_NAME.fullmatch(file.path)), None)


def top_files(files: tuple[File, ...]) -> tuple[File, ...]:
    """The safetensors files directly in the directory."""
    return tuple(file for file in files if file.path.endswith(".safetensors") and "/" not in file.path)


def inspect(path: Path) -> Inventory:
    """What a safetensors file, or a directory of them, holds. A single unreadable file raises StateInvalid."""
    files, odd = list_files(path)
    if not path.is_dir():
        with opened(path) as reader:
            tensors = list(read_header(reader).tensors)
        problems: list[str] = []
        separate = False
    else:
        separate = any(file.path == SIDECAR for file in files)
        tensors, problems, _ = read_directory(path, top_files(files), index_of(files), separate=separate)
        problems += json_faults(path, files)
    return Inventory(
        format="safetensors", path=str(path), tensors=tuple(tensors), values=(SIDECAR,) if separate else (), files=files,
        problems=(*odd, *problems), warnings=(NO_CHECKSUM,) if tensors else (),
        missing_parts=absent_parts([tensor.name for tensor in tensors]),
    )  # fmt: skip


NO_CHECKSUM = (
    "safetensors carry no checksums: damage before adoption shows only where it makes values that are not finite"
)

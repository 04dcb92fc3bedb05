"""Files of ``torch.save``, the zip kind and the older stream kind. Owns where their tensors are.

The pickles inside are read by our own machine; ``torch.load`` is never called. Tensors that another format wraps in such
files (DCP) are read with the same :func:`parse`.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from keepstep.checkpoint.adopt.archive import read_archive
from keepstep.checkpoint.adopt.inventory import (
    Checksum,
    Inventory,
    Piece,
    Tensor,
    absent_parts,
    box_bytes,
    dtype_bytes,
    printable,
)
from keepstep.checkpoint.adopt.pickles import MAX_PICKLE_BYTES, Record, read_pickle
from keepstep.checkpoint.adopt.reading import Reader, list_files, opened
from keepstep.checkpoint.adopt.standins import CONSTRUCTORS, ArrayRef, Storage, TensorRef, judge_names, storage_of
from keepstep.checkpoint.errors import StateInvalid

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_LEGACY_PROTOCOL = 1001
_STREAM_HEAD_BYTES = 64 * 1024 * 1024
"""Of the older kind, whose pickles come first and say nowhere how long they are."""
_MAX_NODES = 5_000_000
_FREE_NODES = 10_000
_NODES_PER_OPERATION = 8
"""Parts may be shared, and are then met more than once: but not without end."""
_MAX_DEPTH = 100


class Parsed(Struct, kw_only=True):
    """What one file (or a slice of one) holds. ``value`` has stand-ins where tensors are."""

    value: Any
    operations: int
    """Of the pickle that it was in."""
    places: dict[str, tuple[int, int]]
    """Key of a storage -> offset in the file and bytes."""
    checksums: list[Checksum]
    problems: list[str]
    warnings: list[str]


class Node(NamedTuple):
    """A leaf of a value: its dotted name, and a TensorRef, an ArrayRef, a Record or something plain."""

    name: str
    value: Any


def is_torch_file(reader: Reader) -> bool:
    """By its first bytes; :func:`parse` has the last word."""
    head = reader.read(0, min(reader.size_bytes, len(_LEGACY_START)))
    return head == _LEGACY_START or head.startswith(b"PK\3\4")


def parse(reader: Reader, begin: int = 0, size: int | None = None, *, name: str | None = None) -> Parsed:
    """Read the structure of ``size`` bytes from ``begin`` on. Raises StateInvalid.

    ``name``: what the file is called in what is reported, where its own name is not enough.
    """
    size = reader.size_bytes - begin if size is None else size
    name = reader.path.name if name is None else name
    head = reader.read(begin, min(size, len(_LEGACY_START)))
    if head == _LEGACY_START:
        return _parse_stream(reader, begin, size, name)
    return _parse_zip(reader, begin, size, name)


def _parse_zip(reader: Reader, begin: int, size: int, name: str) -> Parsed:
    entries = read_archive(reader, begin, size)
    tops = [entry.removesuffix("/data.pkl") for entry in entries if entry.endswith("/data.pkl")]
    if len(tops) != 1 or f"{tops[0]}/version" not in entries:
        raise StateInvalid(f"{name} is an archive, and not one of torch.save")
    top = tops[0]
    if (order := entries.get(f"{top}/byteorder")) is not None and reader.read(
        order.offset, min(order.size_bytes, 8)
    ) != b"little":
        raise StateInvalid(f"{name} was written on a big-endian machine: convert it there")
    index = entries[f"{top}/data.pkl"]
    if index.size_bytes > MAX_PICKLE_BYTES:
        raise StateInvalid(f"{name}: its pickle of {index.size_bytes} bytes is larger than any that is read here")
    storages: dict[str, Storage] = {}
    pickled = read_pickle(reader.read(index.offset, index.size_bytes), CONSTRUCTORS, _collect(storages))
    problems, warnings = judge_names(pickled.names, name)
    if pickled.end != index.size_bytes:
        problems.append(f"{name}: bytes follow its pickle")
    places = {}
    for key, storage in storages.items():
        entry = entries.get(f"{top}/data/{key}")
        if entry is None or entry.size_bytes != storage.size_bytes:
            found = "is missing" if entry is None else f"has {entry.size_bytes} bytes where {storage.size_bytes} belong"
            problems.append(f"{name}: storage {printable(key)} {found}")
        else:
            places[key] = (entry.offset, entry.size_bytes)
    if any(entry.crc32 for entry in entries.values()):
        sums = [
            Checksum(
                file=name, offset=entry.offset, size_bytes=entry.size_bytes, crc32=entry.crc32, what=printable(key)
            )
            for key, entry in entries.items()
        ]
    else:
        sums = []
        warnings.append(f"{name} was written without checksums: damage before it is adopted cannot be seen")
    return Parsed(
        value=pickled.value,
        operations=pickled.operations,
        places=places,
        checksums=sums,
        problems=problems,
        warnings=warnings,
    )


def _collect(storages: dict[str, Storage]) -> Callable[[Any], Storage]:
    def persistent(pid: Any) -> Storage:
        storage = storage_of(pid)
        known = storages.setdefault(storage.key, storage)
        if known.size_bytes != storage.size_bytes:
            raise StateInvalid("two tensors describe one storage with two sizes")
        return storage

    return persistent


def _parse_stream(reader: Reader, begin: int, size: int, name: str) -> Parsed:
    """Pickles one after another: magic, protocol, machine, value, keys; then the storages in the order of the keys."""
    data = reader.read(begin, min(size, _STREAM_HEAD_BYTES))
    storages: dict[str, Storage] = {}
    at = 0
    parts: list[Any] = []
    names: list[str] = []
    operations = 0
    for number in range(5):
        pickled = read_pickle(data[at:], CONSTRUCTORS, _collect(storages))
        if not number and pickled.value != _LEGACY_MAGIC:
            raise StateInvalid(f"{name} is no file of torch.save")
        at += pickled.end
        parts.append(pickled.value)
        names += pickled.names
        operations += pickled.operations
    _, protocol, machine, value, keys = parts
    if protocol != _LEGACY_PROTOCOL or type(machine) is not dict or machine.get("little_endian") is not True:
        raise StateInvalid(f"{name} was written by an unknown version of torch, or on a big-endian machine")
    if type(keys) is not list or set(map(type, keys)) - {str} or sorted(keys) != sorted(storages):
        raise StateInvalid(f"{name} lists other storages than its tensors use")
    problems, warnings = judge_names(tuple(dict.fromkeys(names)), name)
    warnings.append(f"{name} has the old format without checksums: damage before it is adopted cannot be seen")
    places = {}
    for key in keys:
        storage = storages[key]
        elements = struct.unpack("<q", reader.read(begin + at, 8))[0] if at + 8 <= size else -1
        at += 8
        if elements < 0 or at + storage.size_bytes > size:
            raise StateInvalid(f"{name} is cut short: storage {printable(key)} is not whole")
        if elements * dtype_bytes(storage.dtype) != storage.size_bytes:
            raise StateInvalid(f"{name}: storage {printable(key)} has another length than its tensors need")
        places[key] = (begin + at, storage.size_bytes)
        at += storage.size_bytes
    if at != size:
        problems.append(f"{name}: {size - at} bytes follow its last storage")
    return Parsed(value=value, operations=operations, places=places, checksums=[], problems=problems, warnings=warnings)


def walk(parsed: Parsed, prefix: str = "") -> Iterator[Node]:
    """The leaves of what was read, in order. Raises StateInvalid where it contains itself or is nested without end."""
    budget = min(_MAX_NODES, _FREE_NODES + _NODES_PER_OPERATION * parsed.operations)
    pending: list[tuple[str, Any, int]] = [(prefix, parsed.value, 0)]
    while pending:
        name, node, depth = pending.pop()
        budget -= 1
        if budget < 0 or depth > _MAX_DEPTH:
            raise StateInvalid("a pickle is nested deeper, or has more values, than any checkpoint")
        if type(node) in (dict, OrderedDict) and node:
            children = list(node.items())
        elif type(node) in (list, tuple) and any(type(item) in _INNER for item in node):
            children = list(enumerate(node))
        else:
            yield Node(printable(name), node)
            continue
        budget -= len(children)
        pending.extend((_join(name, key), child, depth + 1) for key, child in reversed(children))


_INNER = frozenset({dict, OrderedDict, list, tuple, TensorRef, ArrayRef, Record})


def _join(prefix: str, key: Any) -> str:
    if type(key) not in (str, int, bool, float):
        key = type(key).__name__
    text = str(key)[:300] if type(key) is not int or abs(key) < 1 << 64 else "int"
    return f"{prefix}.{text}" if prefix else text


def tensors_of(parsed: Parsed, file: str, prefix: str = "") -> tuple[list[Tensor], list[str]]:
    """The tensors in a parsed file, and the names of everything else in it."""
    tensors, values = [], []
    for name, value in walk(parsed, prefix):
        if type(value) is TensorRef:
            tensors.append(tensor_from(name, value, parsed, file))
        else:
            values.append(name)
    return tensors, values


def tensor_from(name: str, ref: TensorRef, parsed: Parsed, file: str) -> Tensor:
    """``ref`` as a tensor of one piece in ``file``; without a piece where its storage is not there."""
    size = box_bytes(ref.dtype, ref.shape)
    place = parsed.places.get(ref.storage.key)
    pieces: tuple[Piece, ...] = ()
    if place is not None:
        pieces = (
            Piece(
                file=file, offset=place[0] + ref.offset, size_bytes=ref.span_bytes(), start=(0,) * len(ref.shape),
                shape=ref.shape, stride=None if ref.is_dense() else ref.stride,
            ),
        )  # fmt: skip
    return Tensor(name=name, dtype=ref.dtype, shape=ref.shape, size_bytes=size, pieces=pieces)


def inspect(path: Path) -> Inventory:
    """What a ``torch.save`` file holds. Raises StateInvalid if its structure cannot be read."""
    files, _ = list_files(path)
    with opened(path) as reader:
        parsed = parse(reader)
    tensors, values = tensors_of(parsed, path.name)
    return Inventory(
        format="torch", path=str(path), tensors=tuple(tensors), values=tuple(values), files=files,
        checksums=tuple(parsed.checksums), problems=tuple(parsed.problems), warnings=tuple(parsed.warnings),
        missing_parts=absent_parts([*(tensor.name for tensor in tensors), *values]),
    )  # fmt: skip

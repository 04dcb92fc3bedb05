"""PyTorch distributed checkpoints: a directory with ``.metadata`` and ``.distcp`` files, or its safetensors flavours.

Owns how their index is read without unpickling it, and the checks that their own reader does not make: lengths, the shape
inside each slice, files that the index does not account for, files newer than the index.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from keepstep.checkpoint.adopt.inventory import (
    Checksum,
    File,
    Inventory,
    Piece,
    Tensor,
    absent_parts,
    box_bytes,
    printable,
)
from keepstep.checkpoint.adopt.pickles import MAX_PICKLE_BYTES, Record, read_pickle
from keepstep.checkpoint.adopt.reading import Reader, inside, list_files, opened, parse_json
from keepstep.checkpoint.adopt.safetensors_file import NO_CHECKSUM, read_directory, read_header, top_files
from keepstep.checkpoint.adopt.sidecar import SIDECAR
from keepstep.checkpoint.adopt.standins import CONSTRUCTORS, TensorRef, dtype_of, judge_names
from keepstep.checkpoint.adopt.torch_file import parse, tensor_from
from keepstep.checkpoint.errors import StateInvalid

METADATA = ".metadata"
SHARD_NAME = re.compile(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors")
_DATA_NAME = re.compile(r"__(\d{1,9})_\d+\.distcp")
_PACKAGE = "torch.distributed.checkpoint."
_OF_DCP = tuple(
    f"{_PACKAGE}{name}"
    for name in (
        "metadata.Metadata", "metadata.TensorStorageMetadata", "metadata.TensorProperties", "metadata.StorageMeta",
        "metadata.ChunkStorageMetadata", "metadata.BytesStorageMetadata", "metadata.MetadataIndex",
        "metadata._MEM_FORMAT_ENCODING", "filesystem._StorageInfo",
    )
)  # fmt: skip
Offsets = tuple[int, ...]


class Slice(NamedTuple):
    """Where the index says that an item's bytes are."""

    file: str
    offset: int
    size_bytes: int
    encoded: bool


class Described(NamedTuple):
    """A tensor as the index has it."""

    dtype: str
    shape: Offsets
    chunks: tuple[tuple[Offsets, Offsets], ...]


class Index(NamedTuple):
    """``.metadata``, understood."""

    tensors: dict[str, Described]
    values: tuple[str, ...]
    paths: dict[str, tuple[str | int, ...]]
    """Name -> the keys that lead to it in the tree that was saved, where the index tells."""
    slices: dict[tuple[str, Offsets | None], Slice]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def read_index(root: Path) -> Index:
    """Raises StateInvalid if it is not a DCP index from end to end."""
    with opened(root / METADATA) as reader:
        if reader.size_bytes > MAX_PICKLE_BYTES:
            raise StateInvalid(f"{METADATA} has {reader.size_bytes} bytes: it is too large to be read here")
        data = reader.read(0, reader.size_bytes)
    pickled = read_pickle(data, CONSTRUCTORS)
    if pickled.end != len(data):
        raise StateInvalid(f"{METADATA} has {len(data) - pickled.end} bytes after its end")
    problems, warnings = judge_names(tuple(name for name in pickled.names if name not in _OF_DCP), METADATA)
    fields = _fields(pickled.value, "metadata.Metadata")
    described, storage = fields.get("state_dict_metadata"), fields.get("storage_data")
    if type(described) is not dict or type(storage) is not dict:
        raise StateInvalid(f"{METADATA} does not say what is where")
    tensors, values = {}, []
    for name, entry in described.items():
        if type(name) is not str:
            raise StateInvalid(f"{METADATA} has a name that is no text")
        if type(entry) is Record and entry.name == f"{_PACKAGE}metadata.BytesStorageMetadata":
            values.append(name)
        else:
            tensors[name] = _described(entry)
    slices = {_item(key): _slice(info) for key, info in storage.items()}
    return Index(tensors, tuple(values), _paths(fields.get("planner_data")), slices, tuple(problems), tuple(warnings))


def _fields(value: Any, name: str) -> dict[Any, Any]:
    if type(value) is not Record or value.name != f"{_PACKAGE}{name}" or type(value.state) is not dict:
        raise StateInvalid(f"{METADATA} is not what DCP writes: it has no {name.rpartition('.')[2]} where one belongs")
    return value.state


def _described(entry: Any) -> Described:
    fields = _fields(entry, "metadata.TensorStorageMetadata")
    properties = fields.get("properties")
    state = properties.state if type(properties) is Record else None
    dtype = dtype_of(state[0]) if type(state) is tuple and state else None
    chunks = fields.get("chunks")
    if dtype is None or type(chunks) is not list:
        raise StateInvalid(f"{METADATA} describes a tensor of a kind that this keepstep does not know")
    boxes = []
    for chunk in chunks:
        box = _fields(chunk, "metadata.ChunkStorageMetadata")
        boxes.append((_offsets(box.get("offsets")), _offsets(box.get("sizes"))))
        box_bytes(dtype, boxes[-1][1])
    shape = _offsets(fields.get("size"))
    box_bytes(dtype, shape)
    return Described(dtype, shape, tuple(boxes))


def _offsets(value: Any) -> Offsets:
    if type(value) is not tuple or any(type(item) is not int or not 0 <= item < 1 << 62 for item in value):
        raise StateInvalid(f"{METADATA} has a size that is none")
    return value


def _item(key: Any) -> tuple[str, Offsets | None]:
    fields = _fields(key, "metadata.MetadataIndex")
    name, offset = fields.get("fqn"), fields.get("offset")
    if type(name) is not str:
        raise StateInvalid(f"{METADATA} has a name that is no text")
    return name, None if offset is None else _offsets(offset)


def _slice(info: Any) -> Slice:
    fields = _fields(info, "filesystem._StorageInfo")
    file, offset, size = fields.get("relative_path"), fields.get("offset"), fields.get("length")
    if type(file) is not str:
        raise StateInvalid(f"{METADATA} names a file by something that is no text")
    begin, length = _offsets((offset, size))
    return Slice(file, begin, length, bool(fields.get("transform_descriptors")))


def _paths(planner_data: Any) -> dict[str, tuple[str | int, ...]]:
    if type(planner_data) is not dict:
        return {}
    return {
        name: path
        for name, path in planner_data.items()
        if type(name) is str and type(path) is tuple and path and set(map(type, path)) <= {str, int}
    }


class _Reading:
    """One pass over the slices of a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.problems: list[str] = []
        self.warnings: set[str] = set()
        self.checksums: list[Checksum] = []
        self.ends: dict[str, list[tuple[int, int]]] = {}
        self.blobs: dict[tuple[str, int], dict[str, Tensor]] = {}

    def item(self, reader: Reader, key: tuple[str, Offsets | None], part: Slice) -> Tensor | None:
        self.ends.setdefault(part.file, []).append((part.offset, part.offset + part.size_bytes))
        if part.encoded:
            raise StateInvalid("it was written through an extension (compression, say) that only its own reader undoes")
        if part.offset + part.size_bytes > reader.size_bytes:
            raise StateInvalid(
                f"{part.file} has {reader.size_bytes} bytes where {part.offset + part.size_bytes} were written: it is cut short"
            )
        if key[1] is not None and reader.read(part.offset, min(4, reader.size_bytes - part.offset)) != b"PK\3\4":
            return self.from_blob(reader, key[0], part)
        parsed = parse(reader, part.offset, part.size_bytes, name=part.file)
        self.problems += parsed.problems
        self.warnings.update(parsed.warnings)
        self.checksums += parsed.checksums
        if key[1] is None:
            return None
        ref = parsed.value
        if type(ref) is not TensorRef or ref.storage.key not in parsed.places:
            raise StateInvalid("its slice holds no plain tensor")
        return tensor_from(key[0], ref, parsed, part.file)

    def from_blob(self, reader: Reader, name: str, part: Slice) -> Tensor:
        """The safetensors flavour: all tensors of a file stand in one blob, and the index does not say where."""
        blob = self.blobs.get((part.file, part.offset))
        if blob is None:
            header = read_header(reader, part.offset, name=part.file)
            blob = self.blobs[part.file, part.offset] = {tensor.name: tensor for tensor in header.tensors}
            self.warnings.add(NO_CHECKSUM)
        if (tensor := blob.get(name)) is None:
            raise StateInvalid(f"{part.file} does not have it")
        return tensor


def inspect(path: Path, *, prefix: str = "") -> Inventory:
    """What a DCP directory holds. Raises StateInvalid if its index cannot be read.

    ``prefix``: put before every file name, where the directory is a part of another format's.
    """
    files, odd = list_files(path)
    if not any(file.path == METADATA for file in files):
        return _inspect_shards(path, files, odd)
    index = read_index(path)
    reading = _Reading(path)
    tensors = _tensors(index, reading, prefix)
    _check_files(path, files, index, reading)
    ranks = [int(match[1]) for file in files if (match := _DATA_NAME.fullmatch(file.path))]
    names = [*index.tensors, *index.values]
    return Inventory(
        format="dcp", path=str(path), world_size=max(ranks) + 1 if ranks else None,
        tensors=tuple(tensors), values=(*map(printable, index.values), *(file.path for file in files if file.path == SIDECAR)),
        files=_prefixed(files, prefix),
        checksums=tuple(_with_prefix(entry, prefix) for entry in reading.checksums),
        problems=(*odd, *index.problems, *dict.fromkeys(reading.problems)),
        warnings=(*index.warnings, *sorted(reading.warnings)),
        missing_parts=absent_parts(names),
    )  # fmt: skip


def _prefixed(files: tuple[File, ...], prefix: str) -> tuple[File, ...]:
    return tuple(File(path=f"{prefix}{file.path}", size_bytes=file.size_bytes) for file in files)


def _with_prefix(entry: Checksum, prefix: str) -> Checksum:
    return Checksum(
        file=f"{prefix}{entry.file}",
        offset=entry.offset,
        size_bytes=entry.size_bytes,
        crc32=entry.crc32,
        what=entry.what,
    )


def _tensors(index: Index, reading: _Reading, prefix: str) -> list[Tensor]:
    places = _places(index, reading)
    tensors = []
    for name, described in index.tensors.items():
        pieces = []
        for start, shape in described.chunks:
            place = places.get((name, start))
            if place is None:
                continue
            if (place.dtype, place.shape) != (described.dtype, shape):
                reading.problems.append(
                    f"tensor {printable(name)}: the piece at {list(start)} holds {place.dtype}{list(place.shape)} where"
                    f" {METADATA} says {described.dtype}{list(shape)}: files of different saves are mixed"
                )
                continue
            piece = place.pieces[0]
            pieces.append(msgspec.structs.replace(piece, file=f"{prefix}{piece.file}", start=start))
        tensors.append(
            Tensor(
                name=printable(name), dtype=described.dtype, shape=described.shape,
                size_bytes=box_bytes(described.dtype, described.shape), pieces=tuple(pieces),
            )
        )  # fmt: skip
    return tensors


def _places(index: Index, reading: _Reading) -> dict[tuple[str, Offsets], Tensor]:
    """Each slice is opened once per file; whatever is wrong with one becomes a line of its own."""
    wanted: dict[str, list[tuple[str, Offsets | None]]] = {}
    for name, described in index.tensors.items():
        for start, _ in described.chunks:
            if (name, start) not in index.slices:
                reading.problems.append(
                    f"tensor {printable(name)}: {METADATA} does not say where the piece at {list(start)} is"
                )
            else:
                wanted.setdefault(index.slices[name, start].file, []).append((name, start))
    for name in index.values:
        if (name, None) not in index.slices:
            reading.problems.append(f"value {printable(name)}: {METADATA} does not say where it is")
        else:
            wanted.setdefault(index.slices[name, None].file, []).append((name, None))
    places: dict[tuple[str, Offsets], Tensor] = {}
    for file, keys in sorted(wanted.items()):
        try:
            with opened(inside(reading.root, file)) as reader:
                for key in keys:
                    _place(reader, key, index.slices[key], reading, places)
        except StateInvalid as error:
            reading.problems.append(str(error))
    return places


def _place(
    reader: Reader, key: tuple[str, Offsets | None], part: Slice, reading: _Reading, places: dict[Any, Tensor]
) -> None:
    try:
        place = reading.item(reader, key, part)
    except StateInvalid as error:
        reading.problems.append(f"{printable(key[0])}: {error}")
        return
    if place is not None:
        places[key] = place


def _check_files(path: Path, files: tuple[File, ...], index: Index, reading: _Reading) -> None:
    sizes = {file.path: file.size_bytes for file in files}
    named = {part.file for part in index.slices.values()}
    for name in sorted(sizes):
        if name.endswith(".distcp") and name not in named:
            reading.warnings.add(f"{name} is not named in {METADATA}: it is left over from another save")
    in_blobs = {file for file, _ in reading.blobs}  # their header accounts for every byte already
    for file, spans in sorted((file, spans) for file, spans in reading.ends.items() if file not in in_blobs):
        end = 0
        for begin, stop in sorted(set(spans)):
            if begin < end:
                reading.problems.append(f"{printable(file)}: what {METADATA} says is in it overlaps")
            elif begin > end:
                reading.warnings.add(f"{printable(file)} has bytes that {METADATA} does not account for")
            end = max(end, stop)
        if sizes.get(file, end) > end:
            reading.problems.append(
                f"{file} has {sizes[file]} bytes where {METADATA} accounts for {end}: it is of another save"
            )
    try:
        written = (path / METADATA).stat().st_mtime_ns
        newer = [name for name in sorted(named & set(sizes)) if (path / name).stat().st_mtime_ns > written]
    except OSError as error:
        raise StateInvalid(f"{path.name}: {error.strerror or error}") from error
    if newer:
        reading.warnings.add(
            f"{', '.join(newer[:5])} changed after {METADATA}, which is written last: a later save into the same directory"
            " may have died half way, and its tensors may be mixed with older ones. Where shapes did not change, DCP"
            " files carry nothing that could tell: compare the values with another source before they are used. (A copy that"
            " did not keep the times looks the same.)"
        )


def _inspect_shards(path: Path, files: tuple[File, ...], odd: tuple[str, ...]) -> Inventory:
    """Per-rank safetensors files of the Hugging Face writer: no index and no commit marker at all."""
    shards = tuple(file for file in top_files(files) if SHARD_NAME.fullmatch(file.path))
    if not shards:
        data = sum(file.path.endswith(".distcp") for file in files)
        raise StateInvalid(f"{path.name} has {data} data files and no {METADATA}: the save was never completed")
    problems = list(odd)
    pieces: dict[str, list[Tensor]] = {}
    starts: dict[tuple[str, str], Offsets] = {}
    for shard in shards:
        found = read_directory(path, (shard,), None)
        problems += [line for line in found.problems if not line.endswith("are missing")]
        try:
            told = _sharding(found.metadata.get(shard.path, {}), shard.path)
        except StateInvalid as error:
            problems.append(str(error))
            continue
        for tensor in found.tensors:
            pieces.setdefault(tensor.name, []).append(tensor)
            starts[tensor.name, shard.path] = told.get(tensor.name, (0,) * len(tensor.shape))
    numbers = {int(shard.path[6:11]) for shard in shards}
    if missing := sorted(set(range(1, max(numbers) + 1)) - numbers):
        problems.append(f"shards {missing[:10]} are missing")
    tensors = [_joined(name, parts, starts) for name, parts in pieces.items()]
    return Inventory(
        format="dcp", path=str(path), world_size=max(numbers), tensors=tuple(tensors), files=files,
        problems=tuple(problems),
        warnings=(NO_CHECKSUM, "this flavour of DCP has no commit marker: if its last shards are missing, nothing tells"),
        missing_parts=absent_parts(pieces),
    )  # fmt: skip


def _sharding(metadata: dict[str, str], name: str) -> dict[str, Offsets]:
    info = parse_json(metadata.get("DCP_SHARDING_INFO", "{}").encode("utf-8", "replace"), name)
    try:
        return {printable(key): _offsets(tuple(entry["saved_offsets"])) for key, entry in info.items()}
    except (TypeError, LookupError, AttributeError) as error:
        raise StateInvalid(f"{name}: its sharding is not described as it should be") from error


def _joined(name: str, parts: list[Tensor], starts: dict[tuple[str, str], Offsets]) -> Tensor:
    placed = []
    for part in parts:
        piece = part.pieces[0]
        start = starts[name, piece.file]
        if len(start) != len(part.shape) or len(part.shape) != len(parts[0].shape) or part.dtype != parts[0].dtype:
            raise StateInvalid(f"the shards describe tensor {name} in two ways")
        placed.append(
            Piece(file=piece.file, offset=piece.offset, size_bytes=piece.size_bytes, start=start, shape=piece.shape)
        )
    shape = tuple(
        map(max, zip(*[map(sum, zip(piece.start, piece.shape, strict=True)) for piece in placed], strict=True))
    )
    size = box_bytes(parts[0].dtype, shape)
    return Tensor(name=name, dtype=parts[0].dtype, shape=shape, size_bytes=size, pieces=tuple(placed))

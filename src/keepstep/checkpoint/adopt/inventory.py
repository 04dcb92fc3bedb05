"""What a foreign checkpoint holds, as plain records. Owns the words of this package; reads nothing.

A *foreign* checkpoint was written by another library. Its *inventory* says what its own index claims: tensors as boxes of
bytes in files, names of other values, checksums that its format carries. Whether the claims hold is for ``validate``.
"""

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from msgspec import Struct

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.state.leaves import item_bytes

Format = Literal["dcp", "torch", "lightning", "trainer", "safetensors", "orbax", "keepstep"]
MAX_DIMENSIONS = 64
_MAX_BYTES = 1 << 62

_NUMBER = r"(\d{1,18})"
_STEP_NAMES = tuple(
    re.compile(pattern.replace("N", _NUMBER))
    for pattern in (
        r"checkpoint-N", r"step[-_=]?N", r"global_step[-_]?N", r"iter_N", r"N", r"checkpoint_N",
        r"epoch=\d+-step=N(?:-v\d+)?\.ckpt", r"step=N(?:-v\d+)?\.ckpt",
        r"(?:checkpoint|model|step)[-_]?N\.(?:pt|pth|ckpt|safetensors)",
    )
)  # fmt: skip


class Foreign(Struct, frozen=True, kw_only=True):
    """A path that is somebody's checkpoint, by its content."""

    format: Format
    path: str
    step: int | None
    """From the content where the format tells it, else from a name that is exactly a step's; None if neither does."""
    complete: bool
    """Whether its writer finished, as far as the format can say. False: do not use it, do not delete it either."""
    why: str = ""
    """Why it is not complete."""


class Piece(Struct, frozen=True, kw_only=True):
    """A box of a tensor in a file."""

    file: str
    """Relative to the checkpoint's root."""
    offset: int
    size_bytes: int
    start: tuple[int, ...]
    """Where the box begins in the tensor."""
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None
    """In elements, where the box does not lie row by row. Then ``size_bytes`` spans first to last element."""


class Tensor(Struct, frozen=True, kw_only=True):
    name: str
    dtype: str
    """The name torch has for it (``bfloat16``, ``float8_e4m3fn``)."""
    shape: tuple[int, ...]
    size_bytes: int
    pieces: tuple[Piece, ...] = ()
    """Empty where the format keeps its bytes encoded, so that only its own library finds them."""


class File(Struct, frozen=True, kw_only=True):
    path: str
    size_bytes: int


class Checksum(Struct, frozen=True, kw_only=True):
    """A CRC-32 that the format itself keeps of a run of bytes."""

    file: str
    offset: int
    size_bytes: int
    crc32: int
    what: str


class Inventory(Struct, frozen=True, kw_only=True):
    """See the module. ``problems`` make it unfit; ``warnings`` want a look; ``missing_parts`` will not be restored."""

    format: Format
    path: str
    step: int | None = None
    world_size: int | None = None
    tensors: tuple[Tensor, ...] = ()
    values: tuple[str, ...] = ()
    """Names of values that are no tensors."""
    files: tuple[File, ...] = ()
    checksums: tuple[Checksum, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    missing_parts: tuple[str, ...] = ()


def root_of(path: str | Path) -> Path:
    """What file names are relative to: the checkpoint itself, or the directory of a single file."""
    path = Path(path)
    return path if path.is_dir() else path.parent


def step_from_name(name: str) -> int | None:
    """The step of a file or directory name that is exactly one of a step: ``step-100.backup`` has none."""
    for pattern in _STEP_NAMES:
        if match := pattern.fullmatch(name):
            return int(match[1])
    return None


_PARTS = {
    "optimizer": re.compile(r"optim|opt_state|exp_avg|(?:^|\.)opt(?:\.|$)", re.IGNORECASE),
    "scheduler": re.compile(r"sched", re.IGNORECASE),
    "random generators": re.compile(r"rng|random", re.IGNORECASE),
}


def absent_parts(names: Iterable[str]) -> tuple[str, ...]:
    """Parts of a training state that none of the names looks like: a run that resumes from it goes on without them."""
    names = list(names)
    return tuple(part for part, pattern in _PARTS.items() if not any(map(pattern.search, names)))


def printable(text: str) -> str:
    """A name from an untrusted index as text that can be shown and kept as JSON."""
    return text[:1000].encode("utf-8", "backslashreplace").decode()


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element. Raises StateInvalid for a dtype that keepstep cannot keep."""
    return item_bytes(("t", dtype, ()))


def box_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a dense box. Raises StateInvalid for a shape that no tensor has."""
    if len(shape) > MAX_DIMENSIONS or any(type(size) is not int or not 0 <= size <= _MAX_BYTES for size in shape):
        raise StateInvalid("a tensor is described with a shape that no tensor has")
    size = math.prod(shape) * dtype_bytes(dtype)
    if size > _MAX_BYTES:
        raise StateInvalid("a tensor is described as larger than any memory")
    return size

"""Makes torch tensors of bytes in foreign files. Owns the copying; decides nothing about what is fit to be read.

The caller has validated the inventory: every piece lies inside its file, and pieces cover their tensor.
"""

import contextlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from keepstep.checkpoint.adopt.inventory import Piece, Tensor, dtype_bytes, printable
from keepstep.checkpoint.adopt.pickles import Global, Record
from keepstep.checkpoint.adopt.reading import Reader, inside, opened
from keepstep.checkpoint.adopt.standins import ArrayRef, DtypeRef, Storage, TensorRef
from keepstep.checkpoint.adopt.torch_file import Parsed, walk
from keepstep.checkpoint.errors import StateInvalid

_LEFT_OUT = object()


class Files(contextlib.ExitStack):
    """The files of one checkpoint, each opened once."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root
        self.readers: dict[str, Reader] = {}

    def reader(self, name: str) -> Reader:
        if name not in self.readers:
            self.readers[name] = self.enter_context(opened(inside(self._root, name)))
        return self.readers[name]


def tensor_of(tensor: Tensor, files: Files) -> Any:
    """A tensor from its pieces, row by row in memory of its own."""
    import torch

    dtype, item = getattr(torch, tensor.dtype), dtype_bytes(tensor.dtype)
    if not tensor.size_bytes:
        return torch.empty(tensor.shape, dtype=dtype)
    data = np.empty(tensor.size_bytes, np.uint8)
    for piece in tensor.pieces:
        if piece.shape == tensor.shape and piece.stride is None:
            files.reader(piece.file).into(piece.offset, data.data)
        elif piece.size_bytes:
            block = np.empty(piece.size_bytes, np.uint8)
            files.reader(piece.file).into(piece.offset, block.data)
            where = tuple(slice(at, at + size) for at, size in zip(piece.start, piece.shape, strict=True))
            data.reshape(*tensor.shape, item)[where] = _strided(block, piece, item)
    return torch.from_numpy(data).view(dtype).reshape(tensor.shape)


def _strided(block: Any, piece: Piece, item: int) -> Any:
    if piece.stride is None:
        return block.reshape(*piece.shape, item)
    strides = (*(step * item for step in piece.stride), 1)
    return np.lib.stride_tricks.as_strided(block, (*piece.shape, item), strides, writeable=False)


def value_of(parsed: Parsed, reader: Reader, prefix: str, left_out: list[str]) -> Any:
    """The value of a ``torch.save`` file with tensors in place of stand-ins; views of one storage stay views of one.

    What only somebody's own code could make is left out: its key is dropped from dicts, None stands for it in lists, and
    its name goes into ``left_out``.
    """
    for _ in walk(parsed, prefix):
        pass  # it raises for what is nested without end, so that the recursion below ends
    value = _Rebuilding(parsed, reader, left_out).value(parsed.value, prefix)
    return None if value is _LEFT_OUT else value


class _Rebuilding:
    def __init__(self, parsed: Parsed, reader: Reader, left_out: list[str]) -> None:
        self._parsed = parsed
        self._reader = reader
        self._left_out = left_out
        self._storages: dict[str, Any] = {}

    def value(self, node: Any, name: str) -> Any:
        kind = type(node)
        if kind in (dict, OrderedDict):
            return self._mapping(node, name)
        if kind in (list, tuple):
            items = [self.value(child, f"{name}.{at}") for at, child in enumerate(node)]
            return kind(None if item is _LEFT_OUT else item for item in items)
        if kind is TensorRef:
            return self._tensor(node)
        value = node.value() if kind is ArrayRef else node
        if kind in (Record, Global, DtypeRef, Storage) or (kind is ArrayRef and value is None):
            self._left_out.append(printable(name))
            return _LEFT_OUT
        return bytes(value) if kind is bytearray else value

    def _mapping(self, node: Any, name: str) -> Any:
        out: Any = type(node)()
        for key, child in node.items():
            shown = f"{name}.{key}" if type(key) in (str, bool, float) else f"{name}.{type(key).__name__}"
            if type(key) is int and abs(key) < 1 << 63:
                shown = f"{name}.{key}"
            elif type(key) in (bytes, Global, Record):
                self._left_out.append(printable(shown))
                continue
            value = self.value(child, shown)
            if value is not _LEFT_OUT:
                out[key] = value
        metadata = getattr(node, "_metadata", None)
        if metadata is not None:
            kept = self.value(metadata, f"{name}._metadata")
            out._metadata = {} if kept is _LEFT_OUT else kept
        return out

    def _tensor(self, ref: TensorRef) -> Any:
        import torch

        dtype, item = getattr(torch, ref.dtype), dtype_bytes(ref.dtype)
        if 0 in ref.shape or not ref.storage.size_bytes:
            return torch.empty(ref.shape, dtype=dtype)
        if ref.offset % item or ref.storage.size_bytes % item:
            raise StateInvalid("a tensor does not lie on whole elements of its storage")
        storage = self._storage(ref.storage).view(dtype)
        return torch.as_strided(storage, ref.shape, ref.stride, ref.offset // item)

    def _storage(self, storage: Storage) -> Any:
        import torch

        if storage.key not in self._storages:
            offset, size = self._parsed.places[storage.key]
            data = np.empty(size, np.uint8)
            self._reader.into(offset, data.data)
            self._storages[storage.key] = torch.from_numpy(data)
        return self._storages[storage.key]

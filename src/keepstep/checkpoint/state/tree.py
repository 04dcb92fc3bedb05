"""State trees: nested containers of plain values, arrays and tensors, as an index and a list of leaves.

Owns what a tree may contain and its exact round trip. Must not copy array data, and never pickles. The index is JSON;
a mapping with string keys is a JSON object, everything else that JSON cannot say is an array whose first item is a tag:

    ["l", items]  list          ["t", items]  tuple             ["k", keys, values]  dict with other keys
    ["o", object | k] OrderedDict      ["m", object | k, metadata]  state_dict with torch's _metadata
    ["a", n]      leaf n        ["b", base64] bytes             ["s", base64]  str that is not valid Unicode
    ["f", bits]   inf or nan    ["c", bits, bits]    complex
    ["h", n, shape, offset]     leaf n, a part of a larger tensor: see shards       ["p", [h, …]]  several parts of one
"""

import base64
import operator
import struct
import sys
from collections import OrderedDict
from typing import Any

import numpy as np

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.state.index import Unrepresentable, decode_index, encode_index, refuse
from keepstep.checkpoint.state.leaves import Spec, load_leaves, numpy_dtype_name, offsets_of, torch_dtype_names
from keepstep.checkpoint.state.shards import Meshes, Shard, Sharded, Shards, dtensor_type, part_of, shards_of

_PLAIN = frozenset({int, str, bool, type(None)})


class Flat:
    """A tree taken apart. ``leaves`` are the live objects, not copies: copy them before the next step changes them."""

    __slots__ = ("_known", "index", "leaves", "payload_bytes", "specs")

    def __init__(self, index: bytes, leaves: list[Any], specs: tuple[Spec, ...], payload_bytes: int) -> None:
        self.index = index
        self.leaves = leaves
        self.specs = specs
        self.payload_bytes = payload_bytes
        self._known: dict[int, Spec] | None = None

    def known(self) -> dict[int, Spec]:
        """Specs of the tensors seen, by id(); the ids hold as long as this Flat, which keeps the tensors alive."""
        if self._known is None:
            pairs = zip(self.leaves, self.specs, strict=True)
            self._known = {id(leaf): spec for leaf, spec in pairs if spec[0] == "t"}
        return self._known

    @property
    def sharded(self) -> tuple[Sharded, ...]:
        """The sharded tensors in it, in order. Raises StateInvalid if two have the same path."""
        return shards_of(self.index) if b'["h",' in self.index else ()


def flatten(tree: Any, *, previous: Flat | None = None) -> Flat:
    """Take ``tree`` apart without copying any array.

    ``previous``: the Flat of the same tree at an earlier step. It only saves work where nothing changed; the result is
    the same without it. Raises TypeError that names the path of whatever cannot be kept exactly.
    """
    try:
        return _flatten(tree, previous)
    except Unrepresentable as error:
        path = "".join(reversed(error.path)).lstrip(".") or "the state itself"
        raise TypeError(f"{path}: {error.what} cannot be kept in a checkpoint; {error.advice}") from None
    except RecursionError:
        raise TypeError(
            "the state is nested too deeply, or contains itself; flatten it before it is registered"
        ) from None


def _flatten(tree: Any, previous: Flat | None) -> Flat:
    known = previous.known() if previous is not None else {}
    try:
        walker = _Walker(known, careful=False)
        described = walker.walk(tree)
        specs = _reuse(tuple(walker.specs), previous)
        index = encode_index(described, specs)
    except UnicodeEncodeError:
        # A str with half a surrogate pair somewhere (an undecodable file name): only then is each one looked at.
        walker = _Walker(known, careful=True)
        described = walker.walk(tree)
        specs = _reuse(tuple(walker.specs), previous)
        index = encode_index(described, specs)
    if previous is None or specs is not previous.specs:
        return Flat(index, walker.leaves, specs, offsets_of(specs)[1])
    flat = Flat(index, walker.leaves, specs, previous.payload_bytes)
    if all(map(operator.is_, flat.leaves, previous.leaves)):
        flat._known = known
    return flat


def _reuse(specs: tuple[Spec, ...], previous: Flat | None) -> tuple[Spec, ...]:
    return previous.specs if previous is not None and previous.specs == specs else specs


def unflatten(index: bytes, payload: "np.ndarray[Any, Any]") -> Any:
    """Build the tree again. Arrays and tensors are views of ``payload`` (uint8, writable, owned by the caller).

    Tensors come back on the CPU, contiguous and without grad. Raises StateInvalid for anything malformed.
    """
    try:
        parsed = decode_index(index)
        return _build(parsed.tree, load_leaves(parsed.leaves, payload))
    except (LookupError, ValueError, TypeError, struct.error) as error:
        raise StateInvalid(f"the index of a state group is malformed: {error}") from error
    except RecursionError:
        raise StateInvalid("the index of a state group is nested too deeply") from None


class _Walker:
    """One pass over a tree. Paths are built only when something fails: the pass runs at every step."""

    __slots__ = (
        "_careful",
        "_dtensor",
        "_known",
        "_meshes",
        "_names",
        "_seen",
        "_strided",
        "_tensor_types",
        "leaves",
        "specs",
    )

    def __init__(self, known: dict[int, Spec], *, careful: bool) -> None:
        self._known = known
        self.leaves: list[Any] = []
        self.specs: list[Spec] = []
        self._careful = careful
        self._seen: dict[int, list[int]] = {}
        self._names = torch_dtype_names()
        torch = sys.modules.get("torch")
        self._tensor_types = (torch.Tensor, torch.nn.Parameter) if torch is not None and self._names else ()
        self._strided = getattr(torch, "strided", None)
        self._dtensor = dtensor_type()
        self._meshes: Meshes = {}

    def walk(self, node: Any) -> Any:
        kind = type(node)
        if kind in self._tensor_types:
            return self._tensor(node)
        if kind in _PLAIN:
            return self._scalar(node) if self._careful else node
        if kind is dict:
            return self._mapping(node)
        if kind is float:
            return node if node - node == 0.0 else ["f", struct.pack(">d", node).hex()]
        if kind is list or kind is tuple:
            return ["l" if kind is list else "t", self._sequence(node)]
        return self._rare(node)

    def _mapping(self, node: Any) -> Any:
        if set(map(type, node)) - {str} or self._careful:
            return ["k", [self._key(key) for key in node], self._values(node)]
        out: dict[str, Any] = {}
        key = ""
        tensors, walk, tensor = self._tensor_types, self.walk, self._tensor
        try:
            for key, value in node.items():
                out[key] = tensor(value) if type(value) in tensors else walk(value)
        except Unrepresentable as error:
            error.path.append(f".{key}")
            raise
        return out

    def _values(self, node: Any) -> list[Any]:
        out: list[Any] = []
        try:
            for value in node.values():
                out.append(self.walk(value))
        except Unrepresentable as error:
            error.path.append(f"[{list(node)[len(out)]!r}]")
            raise
        return out

    def _key(self, key: Any) -> Any:
        if type(key) in _PLAIN or type(key) is float:
            return self.walk(key)
        if type(key) is tuple:
            return ["t", [self._key(part) for part in key]]
        refuse(f"a key of type {_name(key)}", "use str or int keys")

    def _sequence(self, node: Any) -> list[Any]:
        # A random generator's state is hundreds of ints: one look at the types instead of a visit to each.
        if not self._careful and set(map(type, node)) <= _PLAIN:
            return list(node)
        out: list[Any] = []
        try:
            for value in node:
                out.append(self.walk(value))
        except Unrepresentable as error:
            error.path.append(f"[{len(out)}]")
            raise
        return out

    def _scalar(self, node: Any) -> Any:
        if type(node) is str and not _is_unicode(node):
            return ["s", base64.b64encode(node.encode("utf-8", "surrogatepass")).decode()]
        return node

    def _rare(self, node: Any) -> Any:
        kind = type(node)
        if kind is self._dtensor:
            data, offset = part_of(node, self._meshes)
            return self._shard(data, tuple(node.shape), offset)
        if kind is Shard:
            return self._shard(node.data, node.shape, node.offset)
        if kind is Shards:
            return ["p", [self._shard(part.data, part.shape, part.offset) for part in node.parts]]
        if kind is OrderedDict:
            metadata = getattr(node, "_metadata", None)
            described = self._mapping(node)
            return ["o", described] if metadata is None else ["m", described, self.walk(metadata)]
        if kind is np.ndarray or isinstance(node, np.generic):
            return self._array(node)
        if kind is bytes:
            return ["b", base64.b64encode(node).decode()]
        if kind is complex:
            return ["c", struct.pack(">d", node.real).hex(), struct.pack(">d", node.imag).hex()]
        refuse(f"an object of type {_name(node)}", _advice(node))

    def _tensor(self, tensor: Any) -> Any:
        name, shape = self._names.get(tensor.dtype), tensor.shape
        if name is None or tensor.layout is not self._strided:
            refuse(
                f"a tensor of layout {tensor.layout} and dtype {tensor.dtype}",
                "register a dense tensor (to_dense(), or int_repr() with its scales) instead",
            )
        spec = self._known.get(id(tensor))
        if spec is None or spec[2] != shape or spec[1] != name:
            spec = ("t", name, tuple(shape))
        address = tensor.data_ptr()
        if not address and tensor.is_meta:
            refuse("a tensor on the meta device", "it has no values yet: materialise it first")
        return self._leaf(tensor, address, spec)

    def _array(self, node: Any) -> Any:
        name = numpy_dtype_name(node.dtype)
        if name is None:
            refuse(f"a numpy array of dtype {node.dtype}", "convert it to a numeric or fixed-width dtype")
        if isinstance(node, np.generic):
            return self._leaf(np.asarray(node), 0, ("s", name, ()))
        return self._leaf(node, int(node.__array_interface__["data"][0]), ("n", name, node.shape))

    def _shard(self, data: Any, shape: tuple[int, ...], offset: tuple[int, ...]) -> Any:
        if type(data) in self._tensor_types:
            leaf = self._tensor(data)
        elif type(data) is np.ndarray:
            leaf = self._array(data)
        else:
            refuse(f"a shard of {_name(data)}", "its data is a numpy array or a plain torch tensor")
        return ["h", leaf[1], shape, offset]

    def _leaf(self, leaf: Any, address: int, spec: Spec) -> Any:
        """Tied weights (the very same view under two names) stay one leaf, and are tied again after a restore."""
        number = len(self.leaves)
        twins = self._seen.setdefault(address, [number]) if address else [number]
        if twins[0] != number:
            for twin in twins:
                if self.specs[twin] == spec and _strides(self.leaves[twin]) == _strides(leaf):
                    return ["a", twin]
            twins.append(number)
        self.leaves.append(leaf)
        self.specs.append(spec)
        return ["a", number]


def _strides(leaf: Any) -> tuple[int, ...]:
    return leaf.strides if isinstance(leaf, np.ndarray) else tuple(leaf.stride())


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name(node: Any) -> str:
    return f"{type(node).__module__}.{type(node).__qualname__}"


def _advice(node: Any) -> str:
    if isinstance(node, (set, frozenset)):
        return "use a sorted list"
    if isinstance(node, (dict, list, tuple, int, float, str)):
        return f"its type would be lost: convert it to a plain {_plain_base(node)} first"
    if callable(getattr(node, "state_dict", None)):
        return "register the object itself, or put its state_dict() here"
    return "give its owner a state_dict() of dicts, lists, numbers, strings, bytes, arrays and tensors"


def _plain_base(node: Any) -> str:
    return next(base.__name__ for base in (dict, list, tuple, bool, int, float, str) if isinstance(node, base))


def _float(bits: Any) -> float:
    value: float = struct.unpack(">d", bytes.fromhex(bits))[0]
    return value


def _build(node: Any, leaves: list[Any]) -> Any:
    if type(node) is dict:
        return {key: _build(value, leaves) for key, value in node.items()}
    if type(node) is not list:
        return node
    tag, first = node[0], node[1]
    if tag == "a":
        if type(first) is not int or first < 0:
            raise StateInvalid(f"an index names leaf {first!r}")
        return leaves[first]
    if tag == "h":
        if type(first) is not int or first < 0:
            raise StateInvalid(f"an index names leaf {first!r}")
        _, _, shape, offset = node
        return Shard(leaves[first], tuple(shape), tuple(offset))
    if tag == "p":
        return Shards(_build(part, leaves) for part in first)
    if tag in ("l", "t"):
        items = [_build(value, leaves) for value in first]
        return items if tag == "l" else tuple(items)
    if tag == "k":
        keys = [_build(key, leaves) for key in first]
        return dict(zip(keys, (_build(value, leaves) for value in node[2]), strict=True))
    if tag in ("o", "m"):
        ordered: Any = OrderedDict(_build(first, leaves))
        if tag == "m":
            ordered._metadata = _build(node[2], leaves)
        return ordered
    return _build_scalar(tag, node)


def _build_scalar(tag: Any, node: list[Any]) -> Any:
    match tag:
        case "b":
            return base64.b64decode(node[1], validate=True)
        case "s":
            return base64.b64decode(node[1], validate=True).decode("utf-8", "surrogatepass")
        case "f":
            return _float(node[1])
        case "c":
            return complex(_float(node[1]), _float(node[2]))
        case _:
            raise StateInvalid(f"an index has the unknown tag {tag!r}: it was written by a newer keepstep")

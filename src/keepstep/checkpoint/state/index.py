"""The index of a group blob: the JSON that says what its tree looks like and what its leaves are. Owns that envelope, and the
error for what cannot be put into one; the meaning of the tree is tree's.
"""

from typing import Any, NoReturn

import msgspec

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.state.leaves import Spec

INDEX_FORMAT = 1


class Index(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    tree: Any
    """See tree."""
    leaves: list[Spec]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Index).decode


class Unrepresentable(Exception):
    """Something in a tree cannot be kept. ``path`` is filled on the way up, innermost first."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(what)
        self.what, self.advice = what, advice
        self.path: list[str] = []


def refuse(what: str, advice: str) -> NoReturn:
    raise Unrepresentable(what, advice)


def encode_index(tree: Any, leaves: Any) -> bytes:
    """Raises UnicodeEncodeError for a str that is not valid Unicode."""
    return _encode({"format": INDEX_FORMAT, "tree": tree, "leaves": leaves})


def decode_index(data: bytes) -> Index:
    """Raises StateInvalid."""
    try:
        index = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StateInvalid(f"the index of a state group is malformed: {error}") from error
    except RecursionError:
        raise StateInvalid("the index of a state group is nested too deeply") from None
    if index.format != INDEX_FORMAT:
        raise StateInvalid(f"index format {index.format} is not one this keepstep reads; upgrade keepstep")
    if any(size < 0 for _, _, shape in index.leaves for size in shape):
        raise StateInvalid("an index describes a leaf of negative size")
    return index

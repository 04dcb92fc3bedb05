"""Gates: whether a sealed snapshot is fit to be restored from. Owns the rules, and what they remember of earlier seals.

- A group that an earlier snapshot of the generation had, or that is required, is there.
- No tensor that was finite has a NaN or an infinity now. One that never was (an attention mask) is nobody's business.
- A group that must change (the optimizer) is not the same bytes at one durable snapshot after another. Only durable ones
  are compared: between them lie many steps, while from one step to the next gradient accumulation or a loss scaler that
  skips a step leave an optimizer as it was, and rightly so.

That all ranks are at the same step is not looked at here: parts and receipts are entered by step. Runs where bytes are
digested, never in a worker; must not do I/O. Not thread-safe.
"""

import fnmatch
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from keepstep.checkpoint.snapshot.policy import Gating
from keepstep.checkpoint.state.blob import index_of
from keepstep.checkpoint.state.index import decode_index
from keepstep.checkpoint.state.leaves import Spec, leaf_bytes, offsets_of
from keepstep.checkpoint.state.shards import walk

SMALL_BYTES = 64 * 1024 * 1024
"""A state of this size is looked at in every snapshot: it takes less than ten milliseconds."""
_PIECE_BYTES = 1024 * 1024
_BITS = {"bfloat16": 0x7F80, "float16": 0x7C00}
"""16-bit floats -> their exponent bits: all set in NaN and infinity, and in nothing else."""
_TORCH_FLOATS = {"float32": "f4", "float64": "f8", "complex64": "f4", "complex128": "f8"}


class Candidate(Struct, frozen=True, kw_only=True):
    """One rank's sealed and digested state."""

    generation: int
    step: int
    rank: int
    world_size: int
    durable: bool
    blobs: Mapping[str, Any]
    digests: Mapping[str, str]

    def size_bytes(self) -> int:
        return sum(len(blob) for blob in self.blobs.values())


class _Repeat(Struct):
    step: int
    digest: str
    times: int = 0


class _Rank(Struct):
    """What is remembered of one rank."""

    world_size: int
    generation: int = -1
    names: frozenset[str] = frozenset()
    finite: dict[str, frozenset[str]] = {}
    """Group -> tensors that were finite when they were last looked at."""
    repeats: dict[str, _Repeat] = {}
    unseen: int = 0
    """Snapshots since values were looked at."""


class Gates:
    """See the module. ``policy`` may be replaced at any time."""

    def __init__(self, policy: Gating) -> None:
        self.policy = policy
        self._ranks: dict[int, _Rank] = {}

    def judge(self, candidate: Candidate, *, look: bool = False) -> tuple[str, bool]:
        """Why the snapshot is unfit (empty: it is fit), and whether its values were looked at. ``look``: look at them."""
        seen = self._seen(candidate)
        why = self._absent(seen, candidate) or self._unchanged(seen, candidate)
        if why:
            return why, False
        looked = self.policy.finite and (look or self._is_due(seen, candidate))
        if looked:
            finite = {name: finite_leaves(blob) for name, blob in candidate.blobs.items()}
            why = self._lost(seen, finite)
            if why:
                return why, True
            seen.finite = {name: frozenset(path for path, good in found if good) for name, found in finite.items()}
        seen.unseen = 0 if looked else seen.unseen + 1
        seen.names = seen.names | candidate.blobs.keys()
        return "", looked

    def look_back(self, candidate: Candidate) -> str:
        """Why an earlier snapshot that was not looked at is unfit as well."""
        return self._lost(self._seen(candidate), {name: finite_leaves(blob) for name, blob in candidate.blobs.items()})

    def _seen(self, candidate: Candidate) -> _Rank:
        seen = self._ranks.get(candidate.rank)
        if seen is None or seen.world_size != candidate.world_size:
            seen = self._ranks[candidate.rank] = _Rank(candidate.world_size)
        if seen.generation < candidate.generation:
            seen.generation, seen.names = candidate.generation, frozenset()
        return seen

    def _is_due(self, seen: _Rank, candidate: Candidate) -> bool:
        every = self.policy.look_every
        due = every > 0 and seen.unseen + 1 >= every
        return candidate.durable or due or candidate.size_bytes() <= SMALL_BYTES

    def _absent(self, seen: _Rank, candidate: Candidate) -> str:
        absent = (seen.names | set(self.policy.required)) - candidate.blobs.keys()
        if not absent:
            return ""
        return (
            f"the snapshot lacks {_list(absent)}: it has {_list(candidate.blobs)}. Register what is missing, or take it out"
            " of the required groups"
        )

    def _unchanged(self, seen: _Rank, candidate: Candidate) -> str:
        """Counts every durable snapshot, also those that fail otherwise."""
        if not candidate.durable or not self.policy.unchanged:
            return ""
        wrong = ""
        for name, digest in candidate.digests.items():
            if not any(part in name for part in self.policy.changing):
                continue
            last = seen.repeats.get(name)
            if last is None or last.digest != digest or candidate.step < last.step:
                seen.repeats[name] = _Repeat(candidate.step, digest)
                continue
            last.times += candidate.step > last.step
            last.step = candidate.step
            if last.times >= self.policy.unchanged and decode_index(index_of(candidate.blobs[name])).leaves:
                wrong = (
                    f"group {name!r} is the same bytes in {last.times + 1} durable snapshots up to step {candidate.step}:"
                    " what is registered is not what trains. If it is frozen on purpose, set unchanged=0"
                )
        return wrong

    def _lost(self, seen: _Rank, found: Mapping[str, list[tuple[str, bool]]]) -> str:
        lost = [
            f"{name}.{path}"
            for name, leaves in found.items()
            for path, good in leaves
            if not good and path in seen.finite.get(name, frozenset())
        ]
        lost = [path for path in lost if not any(fnmatch.fnmatchcase(path, pattern) for pattern in self.policy.exempt)]
        if not lost:
            return ""
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        return (
            f"{lost[0]}{more} became NaN or infinite. Restore an earlier step; if these values are meant, name them in the"
            " gates' exempt patterns"
        )


# ---- over bytes


def finite_leaves(blob: Any) -> list[tuple[str, bool]]:
    """The float tensors of a blob by their path in its tree, and whether all their values are finite."""
    view = memoryview(blob).cast("B")
    index = decode_index(index_of(view))
    # Of a tensor with several names (tied weights) the last one.
    paths = {node[1]: path for path, node in walk(index.tree) if type(node) is list and node[0] in ("a", "h")}
    places = zip(index.leaves, offsets_of(index.leaves)[0], strict=True)
    return [
        (paths.get(number, f"leaf {number}"), is_finite(view[offset : offset + leaf_bytes(spec)], spec))
        for number, (spec, offset) in enumerate(places)
        if _is_float(spec)
    ]


def is_finite(data: Any, spec: Spec) -> bool:
    """Whether a leaf of floats holds neither NaN nor infinity."""
    kind, name, _ = spec
    if kind == "t" and name in _BITS:
        return _none_has(np.frombuffer(data, np.uint16), _BITS[name])
    dtype = np.dtype(_TORCH_FLOATS[name] if kind == "t" else name)
    if dtype.kind == "c":
        dtype = np.dtype(f"{dtype.byteorder}f{dtype.itemsize // 2}")
    values = np.frombuffer(data, dtype)
    per_piece = _PIECE_BYTES // dtype.itemsize
    with np.errstate(all="ignore"):
        for begin in range(0, values.size, per_piece):
            piece = values[begin : begin + per_piece]
            # A sum is finite only if all its terms are, and faster than looking at each; np.dot would be faster still,
            # but takes the trainer's cores for it. Large finite values may overflow: only then is each looked at.
            if not np.isfinite(np.add.reduce(piece)) and not np.isfinite(piece).all():
                return False
    return True


def _none_has(values: "np.ndarray[Any, np.dtype[np.uint16]]", bits: int) -> bool:
    per_piece = _PIECE_BYTES // 4
    buffer = np.empty(min(per_piece, values.size), np.uint16)
    for begin in range(0, values.size, per_piece):
        piece = values[begin : begin + per_piece]
        if np.bitwise_and(piece, bits, out=buffer[: piece.size]).max(initial=0) == bits:
            return False
    return True


def _is_float(spec: Spec) -> bool:
    kind, name, _ = spec
    return (name in _BITS or name in _TORCH_FLOATS) if kind == "t" else np.dtype(name).kind in "fc"


def _list(names: Any) -> str:
    return ", ".join(sorted(names)) or "nothing"

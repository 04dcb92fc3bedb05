"""How ranks come to one decision at a step boundary. Owns the few collectives of the SDK; must never run one more than
its callers declare: a collective that one rank leaves out is a hang.

All ranks run the same steps, so all come through here at the same boundaries. Without a process group there is nothing
to agree through, and callers fall back to a rule that needs no talk.
"""

import sys
from collections.abc import Sequence
from typing import Any


def can_agree(world_size: int) -> bool:
    """A default process group over all ranks is up."""
    dist = sys.modules.get("torch.distributed")
    return bool(
        world_size > 1 and dist is not None and dist.is_available() and dist.is_initialized()
        and dist.get_world_size() == world_size
    )  # fmt: skip


def largest(values: Sequence[int]) -> list[int]:
    """The largest of each value over all ranks. A collective: every rank calls it at the same boundary."""
    tensor = _tensor(values)
    sys.modules["torch.distributed"].all_reduce(tensor, op=sys.modules["torch.distributed"].ReduceOp.MAX)
    return [int(value) for value in tensor.tolist()]


def first_rank_says(values: Sequence[int]) -> list[int]:
    """The values of rank 0, on every rank. A collective."""
    tensor = _tensor(values)
    sys.modules["torch.distributed"].broadcast(tensor, src=0)
    return [int(value) for value in tensor.tolist()]


def _tensor(values: Sequence[int]) -> Any:
    torch, dist = sys.modules["torch"], sys.modules["torch.distributed"]
    backend = str(dist.get_backend())
    device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
    return torch.tensor(list(values), dtype=torch.int64, device=device)

"""States that the tests of the memory tier save, and how they know them again."""

from typing import Any

import numpy as np
import torch

from keepstep.checkpoint import flatten


def groups(step: int, rank: int = 0, size: int = 1000) -> dict[str, Any]:
    """``model`` is equal on all ranks, ``rank`` is not."""
    generator = torch.Generator().manual_seed(step)
    model = {f"w{n}": torch.randn(size, generator=generator) for n in range(4)}
    own = {"step": step, "rank": rank, "noise": np.random.default_rng([step, rank]).standard_normal(50)}
    return {"model": flatten(model), "rank": flatten(own)}


def check(state: dict[str, Any], step: int, rank: int = 0, size: int = 1000) -> None:
    """``state`` is bit-exactly what ``groups`` made."""
    generator = torch.Generator().manual_seed(step)
    for n in range(4):
        assert torch.equal(state["model"][f"w{n}"], torch.randn(size, generator=generator))
    assert (state["rank"]["step"], state["rank"]["rank"]) == (step, rank)
    assert state["rank"]["noise"].tobytes() == np.random.default_rng([step, rank]).standard_normal(50).tobytes()


def complete(node: Any, others: list[Any] | None = None) -> list[int]:
    """Steps of which every rank's bytes are somewhere, newest first: what a server may choose from."""
    stocks = [node.inventory(), *(other.inventory() for other in others or [])]
    steps = {}
    for offer in (offer for stock in stocks for offer in stock.ram):
        entry = steps.setdefault((offer.generation, offer.step), (offer.world_size, {}, set()))
        entry[1].update(offer.parts)
        entry[2].update(offer.held)
    good = [
        step
        for (_, step), (world, parts, held) in steps.items()
        if len(parts) == world and held.issuperset(digest for part in parts.values() for digest in part)
    ]
    return sorted(good, reverse=True)

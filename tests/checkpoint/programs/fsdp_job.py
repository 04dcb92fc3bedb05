"""One of three gloo processes. The first two train and save a model with FSDP2; then all three load it into three parts.

Arguments: directory, rank. Prints one JSON line at the end.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from keepstep.checkpoint import LocalCheckpoints, flatten
from keepstep.checkpoint.reshard.load import load_resharded
from keepstep.checkpoint.state.shards import fit


def build(mesh: DeviceMesh) -> tuple[Any, Any]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def step(model: Any, optimizer: Any, seed: int) -> None:
    model(torch.randn(4, 5, generator=torch.Generator().manual_seed(seed))).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def trees(model: Any, optimizer: Any) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def wholes(model: Any, optimizer: Any) -> dict[str, Any]:
    """Every tensor put together by torch."""
    found = {f"model.{name}": value for name, value in model.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        found |= {f"optimizer.state.{number}.{name}": value for name, value in state.items()}
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).numpy() for name, value in found.items()
    }


def main(directory: Path, rank: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=3)
    two, three = DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [0, 1, 2])
    if rank < 2:
        model, optimizer = build(two)
        for seed in range(2):
            step(model, optimizer, seed)
        groups = {name: flatten(tree) for name, tree in trees(model, optimizer).items()}
        LocalCheckpoints(directory / "checkpoints", job="job", run="one").save(2, groups, rank, 2)
        expected = wholes(model, optimizer)
        if rank == 0:
            np.savez(directory / "expected.npz", **expected)
    dist.barrier()
    # Another start, other weights: one step makes the optimizer's state, which then gives the parts to load.
    model, optimizer = build(three)
    step(model, optimizer, 9)
    live = trees(model, optimizer)
    repository = LocalCheckpoints(directory / "checkpoints", job="job").repository
    commit = repository.commits()[0]
    targets = {name: {each.path: each.extent for each in flatten(tree).sharded} for name, tree in live.items()}
    loaded = load_resharded(repository, commit.key, rank, 3, targets)
    model.load_state_dict(fit(loaded.groups["model"], live["model"]))
    optimizer.load_state_dict(fit(loaded.groups["optimizer"], live["optimizer"]))
    with np.load(directory / "expected.npz") as expected:
        found = wholes(model, optimizer)
        equal = sorted(found) == sorted(expected) and all(np.array_equal(found[k], expected[k]) for k in found)
    print(
        json.dumps({"equal": bool(equal), "commit": commit.key, "sharded": sum(map(len, targets.values()))}), flush=True
    )
    # A rank that leaves while another still talks aborts it, and gloo's threads may abort a process that ends in good order.
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

"""One of three gloo processes that save and load through torch's distributed checkpoint. Arguments: directory, rank.

Trains with FSDP2; saves, loads into other weights, saves behind the training. Then a save dies twice in the middle, over an
older one: in torch's own writer (rank 1 is killed), and in keepstep's (rank 2 is). Rank 0 prints one JSON line.
"""

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from keepstep.checkpoint import Repository
from keepstep.checkpoint.plugs.torch_dcp import KeepstepReader, KeepstepWriter, load, save
from keepstep.checkpoint.stores.posix import PosixStore


def build(seed: int) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
    mesh = DeviceMesh("cpu", [0, 1, 2])
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step(model, optimizer, seed)
    return model, optimizer


def step(model: Any, optimizer: Any, seed: int) -> None:
    model(torch.randn(4, 5, generator=torch.Generator().manual_seed(seed))).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def state(model: Any, optimizer: Any, number: int) -> dict[str, Any]:
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": number,
        "note": {"lr": [0.1, None]},
    }


def wholes(found: dict[str, Any]) -> dict[str, torch.Tensor]:
    tensors = {f"model.{name}": value for name, value in found["model"].items()}
    for number, of_parameter in found["optimizer"]["state"].items():
        tensors |= {f"optimizer.state.{number}.{name}": value for name, value in of_parameter.items()}
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()
        for name, value in tensors.items()
    }


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(left[name].equal(right[name]) for name in left)


def round_trip(repository: Repository, directory: Path, rank: int) -> dict[str, bool]:
    model, optimizer = build(1)
    expected = wholes(state(model, optimizer, 1))
    save(state(model, optimizer, 1), KeepstepWriter(repository), 1)
    if rank == 0:
        torch.save(expected, directory / "expected.pt")
    other = state(*build(2), 0)
    load(other, KeepstepReader(repository), 1)
    plain = (other["step"], other["note"], other["optimizer"]["param_groups"][0]["lr"])
    verdict = {"loaded": equal(wholes(other), expected) and plain == (1, {"lr": [0.1, None]}, 0.1)}
    # Behind: training goes on while it is written, twice through the same memory.
    writer, group = KeepstepWriter(repository), dist.new_group([0, 1, 2])
    for number in (2, 3):
        expected = wholes(state(model, optimizer, number))
        future = dcp.async_save(
            state(model, optimizer, number), storage_writer=writer, checkpoint_id=f"step-{number}", process_group=group
        )
        step(model, optimizer, number + 10)
        future.result()
        other = state(*build(4), 0)
        load(other, KeepstepReader(repository))
        verdict[f"behind_{number}"] = equal(wholes(other), expected) and other["step"] == number
    return verdict


class Dying(dcp.DefaultSavePlanner):
    """Kills its process when it is about to write, as the other rank does."""

    def finish_plan(self, new_plan: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def save_twice(make_writer: Any, ranks: list[int], doomed: int, rank: int) -> str:
    """Ones are saved as step 1; the save of twos over it dies on ``doomed``. Returns how that ended for this rank."""
    group, mesh = dist.new_group(ranks), DeviceMesh("cpu", ranks)
    if rank not in ranks:
        return ""
    for number in (1, 2):
        part = distribute_tensor(torch.full((8,), float(number)), mesh, [Shard(0)], src_data_rank=None)
        planner = Dying() if number == 2 and rank == doomed else dcp.DefaultSavePlanner()
        try:
            dcp.save(
                {"w": part, "step": number}, storage_writer=make_writer(), checkpoint_id=None, planner=planner,
                process_group=group,
            )  # fmt: skip
        except BaseException as error:  # noqa: BLE001
            return type(error).__name__
    return "saved"


def main(directory: Path, rank: int) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=3)
    verdict: dict[str, Any] = round_trip(Repository(PosixStore(directory / "job"), "job"), directory, rank)
    dist.barrier()
    verdict["torch"] = save_twice(lambda: dcp.FileSystemWriter(directory / "torch"), [0, 1], 1, rank)

    def writer() -> KeepstepWriter:
        made = KeepstepWriter(Repository(PosixStore(directory / "keepstep"), "job"))
        made.reset("1")
        return made

    verdict["keepstep"] = save_twice(writer, [0, 2], 2, rank)
    print(json.dumps(verdict), flush=True)
    # The dead are not waited for.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

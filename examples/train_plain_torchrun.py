"""A torchrun script as it is written without keepstep: own checkpoint, own resume. It runs under `keepstep run` unchanged.

torchrun --nproc-per-node 2 examples/train_plain_torchrun.py --steps 200
keepstep run --nproc-per-node 2 examples/train_plain_torchrun.py --steps 200
"""

import argparse
import hashlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoints/plain.pt"))
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--step-time", type=float, default=0.0, help="pad every step to this many seconds")
    parser.add_argument("--out", type=Path, default=None, help="append 'final <rank> <step> <sha256>' to this file")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    trained = DistributedDataParallel(model) if world_size > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    begin = 0
    if arguments.checkpoint.exists():
        saved = torch.load(arguments.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begin = saved["step"]

    for step in range(begin, arguments.steps):
        started = time.perf_counter()
        generator = torch.Generator().manual_seed(step * world_size + rank)
        x = torch.randn(32, 16, generator=generator)
        loss = (trained(x) - x.square().mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(max(0.0, arguments.step_time - (time.perf_counter() - started)))
        if rank == 0 and (step + 1) % arguments.every == 0:
            arguments.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            unfinished = arguments.checkpoint.with_suffix(".tmp")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, unfinished)
            unfinished.replace(arguments.checkpoint)
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)

    sha = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())).hexdigest()
    final = f"final {rank} {arguments.steps} {sha}"
    print(final, flush=True)
    if arguments.out is not None:
        with arguments.out.open("a") as out:
            out.write(final + "\n")
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

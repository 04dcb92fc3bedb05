"""An ordinary torchrun script: DDP over gloo, its own torch.save checkpoint, not a word of Keepstep. Its first start goes no
further than ``--hold``."""

import argparse
import hashlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--hold", type=int, required=True)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    stale = store.check(["left behind"])
    dist.barrier()
    store.set("left behind", "by this generation")
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    saved, begin = arguments.folder / "saved.pt", 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["step"]
    print(f"rank {rank} begins at {begin}, stale keys: {stale}", flush=True)
    for step in range(begin, arguments.steps):
        while step == arguments.hold and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            time.sleep(0.01)
        generator = torch.Generator().manual_seed(step * 100 + rank)
        x = torch.randn(8, 16, generator=generator)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.05)
        if rank == 0 and (step + 1) % 5 == 0:
            draft = saved.with_suffix(".new")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, draft)
            draft.replace(saved)
        if rank == 0:
            weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
            with (arguments.folder / "steps").open("a") as file:
                file.write(f"{step} {hashlib.sha256(weights).hexdigest()}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

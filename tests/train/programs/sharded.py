"""FSDP2 training with a session, on any number of ranks; prints the digest of the whole model.

sharded.py DIRECTORY STEPS      (under torchrun; goes on from what is in DIRECTORY)
"""

import hashlib
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import keepstep


def main(directory: str, steps: int) -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.Tanh(), torch.nn.Linear(13, 5))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    session = keepstep.session(
        model=model, optimizer=optimizer, checkpoint_dir=directory, checkpoint_every_steps=2, elastic=True
    )
    for step in session.steps(steps):
        torch.manual_seed(step)
        batch = torch.randn(6, 7)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    whole = [value.full_tensor() for value in model.state_dict().values()]
    moments = [s["exp_avg_sq"].full_tensor() for s in optimizer.state.values()]
    digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in [*whole, *moments])).hexdigest()[:16]
    if dist.get_rank() == 0:
        sys.stdout.write(f"{session.restored_step} {digest}\n")


main(sys.argv[1], int(sys.argv[2]))
# A rank that leaves while another still talks aborts it, and gloo's threads may abort a process that ends in good order.
dist.barrier()
sys.stdout.flush()
os._exit(0)

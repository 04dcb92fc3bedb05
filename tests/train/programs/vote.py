"""Two ranks that save, then restore where the model of rank 1 has another shape. Prints what became of each rank.

vote.py save|restore DIRECTORY     (under torchrun)
"""

import os
import sys

import torch
import torch.distributed as dist

import keepstep
from keepstep.train.errors import RestoreFailed


def main(what: str, directory: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    width = 3 if what == "restore" and rank == 1 else 2
    model = torch.nn.Linear(4, width)
    session = keepstep.session(model=model, checkpoint_dir=directory, checkpoint_every_steps=1)
    if what == "save":
        for _ in session.steps(2):
            with torch.no_grad():
                model.weight += 1
        return
    before = model.weight.clone()
    try:
        session.restore()
    except RestoreFailed as error:
        sys.stdout.write(f"rank {rank} untouched {torch.equal(model.weight, before)}: {error}\n")
    try:
        session.steps(9)
    except RestoreFailed:
        sys.stdout.write(f"rank {rank} does not go on\n")


main(sys.argv[1], sys.argv[2])
# A rank that leaves while another still talks aborts it, and gloo's threads may abort a process that ends in good order.
dist.barrier()
sys.stdout.flush()
os._exit(0)

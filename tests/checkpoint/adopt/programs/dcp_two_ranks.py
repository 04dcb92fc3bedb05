"""One rank of two DCP saves of a sharded tensor into one directory; in the second, rank 1 dies before it writes a byte."""

import os
import shutil
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

folder, rank = sys.argv[1], int(sys.argv[2])
target = f"{folder}/step-1"


class Dying(dcp.FileSystemWriter):
    def write_data(self, plan: Any, planner: Any) -> Any:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write_data(plan, planner)


dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2, timeout=timedelta(seconds=300))
mesh = init_device_mesh("cpu", (2,))


def save(value: float, writer: type[dcp.FileSystemWriter]) -> None:
    w = distribute_tensor(torch.full((8,), value), mesh, [Shard(0)])
    dcp.save({"w": w, "step": int(value)}, storage_writer=writer(target))


save(1.0, dcp.FileSystemWriter)
dist.barrier()
if rank == 0:
    shutil.copytree(target, f"{folder}/healthy/step-1")
dist.barrier()
# Files are dated coarsely, and who looks at them tells the two saves apart by that.
time.sleep(0.1)
save(2.0, Dying)

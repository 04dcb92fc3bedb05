"""The benchmark job for Keepstep: the loop of the peers' train.py with the session in place of its own checkpoints."""

import datetime
import os
import time

T0 = time.time_ns()
import common as C  # noqa: E402 (the harness's own module)
import torch.distributed as dist  # noqa: E402

import keepstep  # noqa: E402


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    C.event("start", rank=rank, world=world, restart=restart, t0=T0)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=C.PG_TIMEOUT))
    C.event("pg", rank=rank, world=world, restart=restart)
    try:
        train(rank, world, restart)
    except BaseException as error:
        C.event("exc", rank=rank, restart=restart, err=repr(error)[:200])
        raise
    dist.barrier()
    dist.destroy_process_group()


def train(rank: int, world: int, restart: int) -> None:
    model, optimizer = C.build()
    run = keepstep.session(model=model, optimizer=optimizer, snapshot_every_steps=1, elastic=True)
    shards = range(rank * C.SHARDS // world, (rank + 1) * C.SHARDS // world)
    C.event("loop", rank=rank, world=world, restart=restart, t0=T0)
    for step in run.steps(C.STEPS):
        began = time.perf_counter()
        C.maybe_fault(rank)
        grads, loss = C.grads_flat(model, step, shards)
        time.sleep(max(0.0, C.STEP_S - (time.perf_counter() - began) - 0.002))  # stands for device time
        dist.all_reduce(grads)
        C.put_grads(model, grads)
        optimizer.step()
        C.log_step(rank, step + 1, loss, restart, world)
        run.report(loss=loss)
    C.finish(model, rank, restart)


if __name__ == "__main__":
    main()

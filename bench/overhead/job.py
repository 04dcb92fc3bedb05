"""The job of the overhead benchmark: a small transformer, AdamW, an all-reduce, steps padded to a device-like length.

``--bare`` leaves the session out; everything else is the same. Rank 0 writes step durations, and the time spent between the
end of one body and the beginning of the next, to ``--out`` as JSON. All in seconds.
"""

import argparse
import json
import time
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn

import keepstep


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--out", required=True)
    return parser.parse_args()


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.0)
    model = nn.Sequential(nn.Embedding(128, 64), nn.TransformerEncoder(layer, 2), nn.Linear(64, 128))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, step_s: float) -> float:
    began = time.perf_counter()
    tokens = torch.randint(0, 128, (4, 33))
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    time.sleep(max(0.0, step_s - (time.perf_counter() - began) - 0.002))  # stands for device time
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
    optimizer.step()
    return float(loss)


def main() -> None:
    args = parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model, optimizer = build()
    between: list[float] = []
    began: list[float] = []
    ended = time.perf_counter()
    if args.bare:
        steps = iter(range(args.steps))
    else:
        run = keepstep.session(model=model, optimizer=optimizer, snapshot_every_steps=1)
        steps = run.steps(args.steps)
    for _ in steps:
        began.append(time.perf_counter())
        between.append(began[-1] - ended)
        loss = train_step(model, optimizer, args.step_s)
        if not args.bare:
            run.report(loss=loss)
        ended = time.perf_counter()
    if dist.get_rank() == 0:
        durations = [b - a for a, b in pairwise(began)]
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump({"step_s": durations[10:], "between_s": between[10:]}, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

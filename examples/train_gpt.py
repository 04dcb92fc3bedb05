"""A small GPT learns, character by character, the source text of Python's own standard library.

    python examples/train_gpt.py --steps 100
    torchrun --nproc-per-node 2 examples/train_gpt.py --steps 100
    keepstep run --nproc-per-node 4 examples/train_gpt.py --steps 100

Same seed and same number of ranks give the same weights to the last bit, however often and wherever it is interrupted.
"""

import argparse
import hashlib
import math
import os
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import keepstep

MODULES = ("ast", "argparse", "datetime", "decimal", "difflib", "doctest", "inspect", "logging/__init__", "optparse")
VOCABULARY = 128  # ASCII; anything else becomes a space


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps in all, over any number of restarts")
    parser.add_argument("--global-batch", type=int, default=16, help="sequences per step over all ranks")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--context", type=int, default=64, help="characters per sequence")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--workers", type=int, default=0, help="loader processes per rank")
    parser.add_argument("--step-time", type=float, default=0.0, help="pad every step to this many seconds")
    parser.add_argument("--evaluate-every", type=int, default=0, help="steps between evaluations; 0 for none")
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--checkpoint-dir", default=None, help="without a launcher; default ./checkpoints/train_gpt")
    parser.add_argument("--checkpoint-every-s", type=float, default=None)
    parser.add_argument("--checkpoint-every-steps", type=int, default=None)
    parser.add_argument("--elastic", action="store_true", help="may go on with another number of ranks")
    parser.add_argument("--out", type=Path, default=None, help="append 'final <rank> <step> <sha256>' to this file")
    return parser.parse_args()


class LibraryText(Dataset[torch.Tensor]):
    """Sequences of ``context + 1`` characters from the standard library of the Python that runs."""

    def __init__(self, context: int) -> None:
        library = Path(sysconfig.get_paths()["stdlib"])
        text = "\n".join((library / f"{name}.py").read_text(encoding="utf-8") for name in MODULES)
        data = text.encode("ascii", "replace").replace(b"?", b" ")
        self.context = context
        self.characters = torch.frombuffer(bytearray(data), dtype=torch.uint8).long().clamp_(max=VOCABULARY - 1)

    def __len__(self) -> int:
        return (len(self.characters) - 1) // self.context

    def __getitem__(self, index: int) -> torch.Tensor:
        begin = index * self.context
        return self.characters[begin : begin + self.context + 1]


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch, length, width)
        x = x + F.dropout(self.project(mixed), self.dropout, self.training)
        return x + self.mlp(self.norm_mlp(x))


class GPT(nn.Module):
    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__()
        width, context = arguments.width, arguments.context
        self.token, self.place = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        blocks = [Block(width, max(width // 16, 1), arguments.dropout) for _ in range(arguments.layers)]
        self.blocks, self.norm = nn.Sequential(*blocks), nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Mean loss over the next characters; ``text`` is (batch, context + 1)."""
        given, wanted = text[:, :-1], text[:, 1:]
        x = self.token(given) + self.place(torch.arange(given.shape[1], device=text.device))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.reshape(-1, VOCABULARY), wanted.reshape(-1))


def digest(model: nn.Module) -> str:
    sha = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        sha.update(name.encode())
        sha.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


@torch.no_grad()
def evaluate(model: nn.Module, data: LibraryText) -> float:
    model.eval()
    text = torch.stack([data[index] for index in range(16)])
    loss = float(model(text))
    model.train()
    return loss


def main() -> None:
    arguments = parse_arguments()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        dist.init_process_group("gloo")
    torch.set_num_threads(1)  # the order of additions, and with it the last bit, depends on the number of threads
    torch.manual_seed(arguments.seed)
    model = GPT(arguments)
    torch.manual_seed(arguments.seed + 1 + rank)  # from here on every rank drops other units
    # DDP rearranges its buckets after the first iteration of a process, which changes the order of additions over more
    # than two ranks; with find_unused_parameters it leaves them alone, so that a resumed process adds as before.
    trained = DistributedDataParallel(model, find_unused_parameters=True) if world_size > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * min(step / arguments.steps, 1))),
    )
    data = LibraryText(arguments.context)
    sampler = keepstep.ResumableSampler(data, seed=arguments.seed, global_batch=arguments.global_batch, drop_last=True)
    loader = keepstep.resumable(
        DataLoader(data, batch_size=sampler.batch_size, sampler=sampler, num_workers=arguments.workers)
    )

    run = keepstep.session(
        model=trained,
        optimizer=optimizer,
        scheduler=scheduler,
        data=loader,
        checkpoint_dir=arguments.checkpoint_dir,
        checkpoint_every_s=arguments.checkpoint_every_s,
        checkpoint_every_steps=arguments.checkpoint_every_steps,
        elastic=arguments.elastic,
    )
    share = sampler.batch_size * world_size / arguments.global_batch  # DDP takes the mean over ranks, not over samples
    batches = keepstep.endless(loader)
    for step in run.steps(arguments.steps):
        begin = time.perf_counter()
        loss = trained(next(batches))
        optimizer.zero_grad(set_to_none=True)
        (loss * share).backward()
        optimizer.step()
        scheduler.step()
        if arguments.evaluate_every and (step + 1) % arguments.evaluate_every == 0:
            with run.phase("evaluate"):
                print(f"step {step + 1} evaluation {evaluate(model, data):.4f}", flush=True)
        time.sleep(max(0.0, arguments.step_time - (time.perf_counter() - begin)))
        run.report(loss=loss)
        if rank == 0 and (step + 1) % arguments.log_every == 0:
            print(f"step {step + 1} loss {loss.item():.4f} generation {run.generation}", flush=True)

    final = f"final {rank} {run.step} {digest(model)}"
    print(final, flush=True)
    if arguments.out is not None:
        with arguments.out.open("a") as out:
            out.write(final + "\n")  # one write, one line: ranks may share the file
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

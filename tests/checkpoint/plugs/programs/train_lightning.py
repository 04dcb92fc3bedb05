"""Trains with the real Lightning, resumes from the last valid checkpoint, and says what came out as JSON.

train_lightning.py DIRECTORY POINT...   kinds of run: ``epochs`` saves at their ends, ``steps`` every three; see children
"""

import hashlib
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from children import DyingStore, run_each
from lightning.pytorch.callbacks import ModelCheckpoint

from keepstep.checkpoint.plugs.lightning import KeepstepIO

warnings.simplefilter("ignore")


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.losses: list[float] = []

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        loss = (self.net(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


class Loader:
    """Shuffles, and knows where it is in an epoch. Like any DataLoader it draws a number when it is iterated."""

    def __init__(self) -> None:
        self.data = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
        self.epoch, self.at = 0, 0

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[torch.Tensor]:
        torch.rand(1)
        if self.at == 4:
            self.epoch, self.at = self.epoch + 1, 0
        order = torch.randperm(16, generator=torch.Generator().manual_seed(self.epoch))
        while self.at < 4:
            self.at += 1
            yield self.data[order[4 * self.at - 4 : 4 * self.at]]

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


def main(folder: Path, point: str, kind: str) -> None:
    pl.seed_everything(7, verbose=False)
    io = KeepstepIO(DyingStore(folder / "store", point), job="run")
    if kind == "steps":
        loader: Any = Loader()
        saving = ModelCheckpoint(folder / "names", every_n_train_steps=3, save_top_k=1, save_last=True)
    else:
        # An ordinary loader draws its order from the default generator at the start of an epoch.
        loader = torch.utils.data.DataLoader(torch.randn(16, 4), 4, shuffle=True)
        saving = ModelCheckpoint(folder / "names", save_top_k=1)
    last = io.last_valid()
    module = Module()
    torch.randn(3 if last else 0)  # a resumed process has drawn other numbers
    trainer = pl.Trainer(
        max_epochs=4, accelerator="cpu", plugins=[io], callbacks=[io.callback(), saving], logger=False,
        default_root_dir=folder, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(module, loader, ckpt_path=last)
    state = [*module.state_dict().values()]
    for entry in trainer.optimizers[0].state_dict()["state"].values():
        state += entry.values()
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in state)).hexdigest()
    print(json.dumps({"run": folder.name, "last": last, "losses": module.losses, "digest": digest}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_each(main, Path(sys.argv[1]), ["epochs", "steps"], sys.argv[2:])

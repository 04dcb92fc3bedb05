"""One rank of two that train together by DDP, twice: to the end, then again from the checkpoint before the last.

two_ranks.py LIBRARY DIRECTORY   prints what the weights and this rank's random numbers were at each end
"""

import hashlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.stores.posix import PosixStore

library, folder, rank = sys.argv[1], Path(sys.argv[2]), os.environ["RANK"]
STEPS = 4


def net() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))


def lightning_once() -> tuple[str, Any]:
    import lightning.pytorch as pl

    from keepstep.checkpoint.plugs.lightning import KeepstepIO

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def on_train_start(self) -> None:
            if self.trainer.global_step == 0:
                torch.manual_seed(int(rank))

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            return self.net(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    pl.seed_everything(1, verbose=False)
    io = KeepstepIO(folder / "store", job="run")
    saving = pl.callbacks.ModelCheckpoint(folder / "names", save_top_k=-1)
    trainer = pl.Trainer(
        max_epochs=STEPS, accelerator="cpu", devices=2, strategy="ddp", plugins=[io], callbacks=[io.callback(), saving],
        logger=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    module = Module()
    loader = torch.utils.data.DataLoader(torch.ones(4, 4), 2)
    last = io.last_valid()
    trainer.fit(module, loader, ckpt_path=last)
    return str(last), module


def transformers_once() -> tuple[str, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

    from keepstep.checkpoint.plugs.transformers import KeepstepCallback, last_valid

    class Differ(TrainerCallback):
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 0:
                torch.manual_seed(int(rank))

    set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=32, bos_token_id=0, eos_token_id=1))
    data = [{"input_ids": (ids := torch.arange(4) + n), "labels": ids} for n in range(16)]
    arguments = TrainingArguments(
        str(folder / "out"), max_steps=STEPS, save_steps=1, per_device_train_batch_size=2, report_to=[], use_cpu=True,
        disable_tqdm=True, ddp_backend="gloo", dataloader_pin_memory=False,
    )  # fmt: skip
    last = last_valid(folder / "out", folder / "store", job="run")
    callbacks = [Differ(), KeepstepCallback(folder / "store", job="run")]
    Trainer(model, arguments, train_dataset=data, callbacks=callbacks).train(resume_from_checkpoint=last)
    return str(last), model


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for _ in range(2):
        last, model = lightning_once() if library == "lightning" else transformers_once()
        digest = hashlib.sha256(b"".join(each.numpy().tobytes() for each in model.state_dict().values())).hexdigest()
        print(json.dumps({"last": last, "digest": digest, "drawn": torch.rand(2).tolist()}))
        if rank == "0":
            repository = Repository(PosixStore(folder / "store"), "run")
            repository.mark(repository.commits()[0].key, "suspect", "for the test")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

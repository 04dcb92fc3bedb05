"""Trains with the real Trainer, resumes from the last valid checkpoint, and says what came out as JSON.

train_transformers.py DIRECTORY POINT...   kind ``steps`` saves every three steps, in the middle of epochs; see children
"""

import hashlib
import json
import sys
import warnings
from pathlib import Path

import torch
from children import DyingStore, run_each
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from keepstep.checkpoint.plugs.transformers import KeepstepCallback, last_valid

warnings.simplefilter("ignore")


def main(folder: Path, point: str, _: str) -> None:
    set_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=32, n_positions=8, bos_token_id=0, eos_token_id=1)
    )
    generator = torch.Generator().manual_seed(5)
    data = [{"input_ids": (ids := torch.randint(0, 32, (4,), generator=generator)), "labels": ids} for _ in range(16)]
    arguments = TrainingArguments(
        str(folder / "out"), max_steps=10, save_steps=3, save_total_limit=1, per_device_train_batch_size=4, report_to=[],
        use_cpu=True, disable_tqdm=True, logging_steps=1, seed=3,
    )  # fmt: skip
    store = DyingStore(folder / "store", point)
    last = last_valid(folder / "out", store)
    torch.randn(3 if last else 0)  # a resumed process has drawn other numbers
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[KeepstepCallback(store)])
    trainer.train(resume_from_checkpoint=last)
    state = [*model.state_dict().values()]
    for entry in trainer.optimizer.state_dict()["state"].values():
        state += entry.values()
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in state)).hexdigest()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(json.dumps({"run": folder.name, "last": last, "losses": losses, "digest": digest}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_each(main, Path(sys.argv[1]), ["steps"], sys.argv[2:])

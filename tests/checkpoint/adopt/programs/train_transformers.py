"""Ten steps of the real Trainer, with a checkpoint at 9 and at 10."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=32, n_positions=8))
data = [{"input_ids": torch.randint(0, 32, (4,)), "labels": torch.randint(0, 32, (4,))} for _ in range(20)]
arguments = TrainingArguments(
    sys.argv[1], max_steps=10, save_steps=1, save_total_limit=2, per_device_train_batch_size=2, report_to=[], use_cpu=True,
    disable_tqdm=True,
)  # fmt: skip
Trainer(model, arguments, train_dataset=data).train()

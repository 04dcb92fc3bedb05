"""Two epochs of the real Lightning, which leave one checkpoint."""

import sys

import lightning
import torch


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.layer(batch).sum()

    def configure_optimizers(self) -> tuple[list[object], list[object]]:
        optimizer = torch.optim.AdamW(self.parameters())
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


loader = torch.utils.data.DataLoader(torch.randn(8, 4), 2)
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", default_root_dir=sys.argv[1], logger=False, enable_progress_bar=False,
    enable_model_summary=False,
)  # fmt: skip
trainer.fit(Module(), loader)

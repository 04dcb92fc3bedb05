"""The smallest resumable script: run it, interrupt it, run it again."""

import torch

import keepstep

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
run = keepstep.session(model=model, optimizer=optimizer)
for _ in run.steps(200):
    x = torch.randn(32, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.report(loss=loss)
print(f"done after {run.step} steps, loss {loss:.4f}, resumed from {run.restored_step}")

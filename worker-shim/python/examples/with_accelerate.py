"""Accelerate, with all-reduces by the hub: `torchrun --nproc_per_node 2 with_accelerate.py`."""

import torch
from accelerate import Accelerator

import phub.c10d

torch.distributed.init_process_group("phub")  # Accelerate uses the process group that is there
accelerator = Accelerator(cpu=True)
torch.manual_seed(7)
inputs = torch.randn(256, 20)
rows = torch.utils.data.TensorDataset(inputs, inputs[:, :5].argmax(1))
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
batches = torch.utils.data.DataLoader(rows, batch_size=64)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
for epoch in range(15):
    for batch, targets in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch), targets)
        accelerator.backward(loss)
        optimizer.step()
    mean = accelerator.reduce(loss.detach(), "mean").item()
    if epoch in (0, 14):
        accelerator.print(f"epoch {epoch}: loss {mean:.4f}")
weights = sum(each.detach().double().sum().item() for each in model.parameters())
print(f"rank {accelerator.process_index}: weights {weights!r}, calls {phub.c10d.counts()}\n", end="", flush=True)
accelerator.end_training()

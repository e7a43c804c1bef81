"""DistributedDataParallel, with all-reduces by the hub: `torchrun --nproc_per_node 2 ddp.py`."""

import torch
import torch.distributed as dist

import phub.c10d

dist.init_process_group("phub")
torch.manual_seed(7)
inputs = torch.randn(256, 20)
targets = inputs[:, :5].argmax(1)
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
mine = slice(dist.get_rank(), None, dist.get_world_size())
for step in range(30):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs[mine]), targets[mine])
    loss.backward()
    optimizer.step()
    if step in (0, 29) and dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.4f}")
weights = sum(each.detach().double().sum().item() for each in model.parameters())
print(f"rank {dist.get_rank()}: weights {weights!r}, calls {phub.c10d.counts()}\n", end="", flush=True)
dist.destroy_process_group()

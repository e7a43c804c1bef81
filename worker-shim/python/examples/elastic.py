"""A training that survives a lost worker: `torchrun --nproc_per_node 2 --max_restarts 3 elastic.py CHECKPOINT`.

When a worker is lost, torchrun starts all workers again, and they continue from the last checkpoint.
"""

import os
import sys

import torch
import torch.distributed as dist

import phub.c10d

checkpoint = sys.argv[1]
dist.init_process_group("phub")
torch.manual_seed(7)
inputs = torch.randn(256, 20)
targets = inputs[:, :5].argmax(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
first = 0
if os.path.exists(checkpoint):
    state = torch.load(checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]
    print(f"rank {dist.get_rank()}: continues at step {first}\n", end="", flush=True)
dist.barrier()  # nobody writes a checkpoint while other ranks read it
mine = slice(dist.get_rank(), None, dist.get_world_size())
for step in range(first, 40):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs[mine]), targets[mine])
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(state, checkpoint + ".new")
        os.replace(checkpoint + ".new", checkpoint)
    print(f"rank {dist.get_rank()} step {step}: loss {loss.item():.4f} pid {os.getpid()}\n", end="", flush=True)
weights = sum(each.detach().double().sum().item() for each in model.parameters())
print(f"rank {dist.get_rank()}: weights {weights!r}, calls {phub.c10d.counts()}\n", end="", flush=True)
dist.destroy_process_group()

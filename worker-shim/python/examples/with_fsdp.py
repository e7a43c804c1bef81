"""FSDP2 within each of two replicas, with the hub's means over the replicas: `torchrun --nproc_per_node 4 with_fsdp.py`."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import phub.torch

dist.init_process_group("gloo")
rank = dist.get_rank()
hub = phub.serve() if rank == 0 else None  # in place of it, you may give Replicas the address of a separate hub
address = [hub.address if hub else None, hub.token if hub else None]
dist.broadcast_object_list(address)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
torch.manual_seed(7)
inputs = torch.randn(256, 20)
targets = inputs[:, :5].argmax(1)
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh["shard"])
fully_shard(model, mesh=mesh["shard"])
replicas = phub.torch.Replicas(model, mesh["replica"], hub=address[0], token=address[1])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
mine = slice(rank, None, dist.get_world_size())
for step in range(30):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs[mine]), targets[mine])
    loss.backward()
    optimizer.step()
    if step in (0, 29) and rank == 0:
        print(f"step {step}: loss {loss.item():.4f}")
calls = {"hub": {"allreduce": replicas.session.next_round}}
weights = sum(each.full_tensor().detach().double().sum().item() for each in model.parameters())
print(f"rank {rank}: weights {weights!r}, calls {calls}\n", end="", flush=True)
replicas.leave()
dist.barrier()
dist.destroy_process_group()

"""Ray Train, with hubs that Ray places: `python with_ray.py`, or `RAY_ADDRESS=... python with_ray.py DIRECTORY` on a cluster.

After a loss, Ray starts the workers again, and they continue from the hubs' last checkpoint in DIRECTORY. All nodes must share
DIRECTORY.
"""

import sys
import tempfile

import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import phub.ray
import phub.torch


def train():
    me = ray.train.get_context()
    torch.manual_seed(7)
    inputs = torch.randn(256, 20)
    targets = inputs[:, :5].argmax(1)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    optimizer = phub.torch.DistributedOptimizer(optimizer, model.named_parameters())
    mine = slice(me.get_world_rank(), None, me.get_world_size())
    for _ in range(optimizer.session.next_round - 1, 40):  # begins at 0, or at the step of the checkpoint
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[mine]), targets[mine]).backward()
        optimizer.step()
    optimizer.leave()
    return torch.nn.functional.cross_entropy(model(inputs), targets).item()


if __name__ == "__main__":
    directory = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    trainer = TorchTrainer(
        train,
        torch_config=phub.ray.HubConfig(checkpoints=f"{directory}/hubs", settings={"checkpoint_every": 10}),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="with_ray", storage_path=directory, failure_config=FailureConfig(max_failures=3)),
    )
    print(f"loss after 40 steps: {trainer.fit().return_value:.4f}")

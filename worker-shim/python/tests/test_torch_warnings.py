"""A training gives no warnings. In this test all warnings of torch, NumPy and other packages are errors."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

SCRIPT = """
import numpy, torch, phub, phub.torch

def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30), torch.nn.ReLU(), torch.nn.Linear(30, 4))

def train(model, optimizer):
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 20)).square().sum().backward()
        optimizer.step()
    return optimizer

hub = phub.serve(cores=1, idle="sleep", checkpoints="checkpoints")
place = dict(hub=hub, rank=0, world_size=1)
for number, more in enumerate([{}, {"weights": "shared"}, {"overlap": False}, {"compression": phub.SlimDP(0.5, 0.5, 2)}]):
    net = model().to(torch.bfloat16 if number == 2 else torch.float32)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    optimizer = phub.torch.DistributedOptimizer(optimizer, net.named_parameters(), job=f"job-{number}", **place, **more)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(5, 20).to(net[0].weight.dtype)).square().sum().backward()
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.leave()
    if number == 0:
        phub.torch.load_checkpoint("checkpoints/job-0.1.safetensors", net.named_parameters(), torch.optim.AdamW(net.parameters()))
phub.torch.broadcast_parameters(net.state_dict(), **place)
phub.torch.broadcast_parameters({"whole": torch.arange(3), "double": torch.ones(2, dtype=torch.float64)}, **place)
assert phub.torch.allreduce_metrics({"loss": 1.5}, **place) == {"loss": 1.5}

dist = torch.distributed
NEW = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 4)
for number, backend in enumerate(["gloo", "phub"] if NEW else ["gloo"]):
    if backend == "phub":
        import os
        os.environ["PHUB_HUB"] = hub.address
        import phub.c10d
    dist.init_process_group(backend, f"file://{os.getcwd()}/{backend}" if number else "file://@PLACE@", rank=0, world_size=1)
    net = torch.nn.parallel.DistributedDataParallel(model())
    if backend == "gloo":
        state = phub.torch.HubState(**place)
        net.register_comm_hook(state, phub.torch.ddp_hook)
    for _ in range(3):
        net(torch.randn(5, 20)).square().sum().backward()
    if backend == "phub":
        dist.all_reduce(torch.ones(300_000, dtype=torch.bfloat16))
    if backend == "gloo":
        state.leave()
    dist.destroy_process_group()
hub.stop()
print("done")
"""


def test_no_warnings(tmp_path):
    script = SCRIPT.replace("@PLACE@", str(tmp_path / "gloo"))
    command = [sys.executable, "-W", "error", "-c", script]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, env={**os.environ, "RUST_LOG": "off"})
    assert run.stdout == "done\n", run.stderr
    assert "Warning" not in run.stderr, run.stderr

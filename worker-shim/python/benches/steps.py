"""Samples a second with phub.torch beside DistributedDataParallel over gloo, on the same work in the same run, and what
the hooks cost a step.

    torchrun --standalone --nproc-per-node 4 worker-shim/python/benches/steps.py [--model vgg|resnet] [--legs 8]

Legs of both alternate, so that a machine whose load changes is the same to both; what counts is the median of the
ratios of neighbours. `--model resnet` is ResNet-18, `vgg` has few multiply-adds and many parameters.
"""

import argparse
import json
import os
import statistics
import time

import torch

import phub.torch


class Block(torch.nn.Module):
    """Of ResNet-18: two convolutions beside a shortcut."""

    def __init__(self, inside, outside, stride):
        super().__init__()
        self.first = torch.nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.first_norm = torch.nn.BatchNorm2d(outside)
        self.second = torch.nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.second_norm = torch.nn.BatchNorm2d(outside)
        self.shortcut = torch.nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = torch.nn.Sequential(
                torch.nn.Conv2d(inside, outside, 1, stride, bias=False), torch.nn.BatchNorm2d(outside)
            )

    def forward(self, images):
        hidden = torch.relu(self.first_norm(self.first(images)))
        return torch.relu(self.second_norm(self.second(hidden)) + self.shortcut(images))


def resnet():
    """ResNet-18 for 1000 classes: 11.7 M parameters."""
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
    widths += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    stem = [torch.nn.Conv2d(3, 64, 7, 2, 3, bias=False), torch.nn.BatchNorm2d(64), torch.nn.ReLU()]
    stem.append(torch.nn.MaxPool2d(3, 2, 1))
    end = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(512, 1000)]
    return torch.nn.Sequential(*stem, *(Block(*width) for width in widths), *end)


def vgg():
    """Some convolutions and three large layers: 13.5 M parameters."""
    layers = [torch.nn.Conv2d(3, 16, 3, 4, 1), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3, 4, 1), torch.nn.ReLU()]
    layers += [torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(2048, 4096), torch.nn.ReLU()]
    layers += [torch.nn.Linear(4096, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1000)]
    return torch.nn.Sequential(*layers)


def steps(model, optimizer, images, labels, count):
    """Seconds of so many steps."""
    begun = time.perf_counter()
    for _ in range(count):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    if hasattr(optimizer, "synchronize"):
        optimizer.synchronize()
    return time.perf_counter() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["vgg", "resnet"], default="vgg")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--legs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4, help="of a leg")
    parser.add_argument("--transport", default=None)
    parser.add_argument("--schedule", default="p3")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    me = phub.worker()
    images, labels = torch.randn(arguments.batch, 3, 224, 224), torch.randint(0, 1000, (arguments.batch,))
    make = {"vgg": vgg, "resnet": resnet}[arguments.model]

    torch.distributed.init_process_group("gloo")
    gloo = torch.nn.parallel.DistributedDataParallel(make())
    hub = make()
    systems = {
        "gloo": (gloo, torch.optim.SGD(gloo.parameters(), lr=0.01, momentum=0.9)),
        "hub": (
            hub,
            phub.torch.DistributedOptimizer(
                torch.optim.SGD(hub.parameters(), lr=0.01, momentum=0.9),
                hub.named_parameters(),
                transport=arguments.transport,
                schedule=arguments.schedule,
            ),
        ),
    }
    if me.world_size == 1:
        alone = make()
        systems["alone"] = (alone, torch.optim.SGD(alone.parameters(), lr=0.01, momentum=0.9))
    seconds = {name: [] for name in systems}
    for leg in range(arguments.legs + 1):
        for name, (model, optimizer) in systems.items():
            torch.distributed.barrier()
            took = steps(model, optimizer, images, labels, arguments.steps)
            if leg > 0:  # the first is for buckets and coverage to be learnt
                seconds[name].append(took)
    if me.rank == 0:
        ratios = {
            name: sorted(theirs / ours for theirs, ours in zip(seconds[name], seconds["hub"]))
            for name in systems
            if name != "hub"
        }
        samples = arguments.batch * arguments.steps * me.world_size
        report = {
            "model": arguments.model,
            "workers": me.world_size,
            "way": systems["hub"][1].session.ways[0].transport,
            "parameters": sum(each.numel() for each in hub.parameters()),
            "samples_per_second": {name: samples / statistics.median(took) for name, took in seconds.items()},
            "hub_is_faster_by": {
                name: {"median": statistics.median(each), "lowest": each[0], "highest": each[-1]}
                for name, each in ratios.items()
            },
        }
        print(json.dumps(report))
    os.sys.stdout.flush()
    torch.distributed.barrier()


if __name__ == "__main__":
    main()

"""Measures samples a second with phub.torch and with DistributedDataParallel over gloo, on the same work in the same run. For
both, also measures the share of communication that compute hides, and the time of the hooks in a step.

    torchrun --standalone --nproc_per_node 4 worker-shim/python/benches/steps.py [--model vgg|resnet|transformer] [--legs 8]

Legs with phub.torch and with DDP alternate, so that a change of the machine's load affects both equally. The result is the
median of the ratios of neighbouring legs. The hidden share is `1 - (step - compute) / communication`, of neighbouring legs.
Compute is the time of the same work without communication, at all workers at once: forward and backward pass, with DDP also
the step. Communication is the time of the same bytes without compute: all keys pushed and waited for, or all DDP buckets
reduced. `--model resnet` is ResNet-18, `vgg` has few multiply-adds and many parameters, `transformer` has equal
layers.
"""

import argparse
import json
import os
import statistics
import time

import torch

import phub.torch

# The learning rate: so small that no push changes the weights.
RATE = 1e-9
# Elements of one of DDP's buckets, 25 MiB.
BUCKET = 25 * 2**18


class Block(torch.nn.Module):
    """A block of ResNet-18: two convolutions and a shortcut."""

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
    """Returns two convolutions and three large linear layers: 13.6 M parameters."""
    layers = [torch.nn.Conv2d(3, 16, 3, 4, 1), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3, 4, 1), torch.nn.ReLU()]
    layers += [torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(2048, 4096), torch.nn.ReLU()]
    layers += [torch.nn.Linear(4096, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1000)]
    return torch.nn.Sequential(*layers)


class Transformer(torch.nn.Module):
    """A vision transformer of 4 layers: 49 patches, 8.7 M parameters."""

    def __init__(self, width=384):
        super().__init__()
        self.patches = torch.nn.Conv2d(3, width, 32, 32)
        layer = torch.nn.TransformerEncoderLayer(width, 6, 4 * width, dropout=0.0, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 4)
        self.head = torch.nn.Linear(width, 1000)

    def forward(self, images):
        return self.head(self.layers(self.patches(images).flatten(2).transpose(1, 2)).mean(1))


def steps(model, optimizer, images, labels, count, clip):
    """Returns the seconds of `count` steps."""
    begun = time.perf_counter()
    for _ in range(count):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    if hasattr(optimizer, "synchronize"):
        optimizer.synchronize()
    return time.perf_counter() - begun


def exchange(session, count):
    """Returns the seconds of `count` rounds without compute."""
    begun = time.perf_counter()
    for _ in range(count):
        session.push(*reversed(session.keys))
        session.wait()
    return time.perf_counter() - begun


def reduce(buckets, count):
    """Returns the seconds of `count` reductions of a model's gradients without compute."""
    begun = time.perf_counter()
    for _ in range(count):
        for work in [torch.distributed.all_reduce(bucket, async_op=True) for bucket in buckets]:
            work.wait()
    return time.perf_counter() - begun


class Backwards(torch.nn.Module):
    """The layers of a sequential model, registered from the last to the first."""

    def __init__(self, model):
        super().__init__()
        for name, layer in reversed(list(model.named_children())):
            self.add_module(name, layer)

    def forward(self, images):
        for layer in reversed(list(self.children())):
            images = layer(images)
        return images


class NoSteps(torch.optim.SGD):
    """An optimizer that makes no steps."""

    def step(self, closure=None):
        pass


MODELS = {"vgg": vgg, "resnet": resnet, "transformer": Transformer}


def spread(values):
    """Returns median, lowest and highest."""
    ordered = sorted(values)
    return {"median": statistics.median(ordered), "lowest": ordered[0], "highest": ordered[-1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), default="vgg")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--legs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4, help="of a leg")
    parser.add_argument("--transport", default=None)
    parser.add_argument("--schedule", default="p3")
    parser.add_argument("--backwards", action="store_true", help="also a model whose layers are registered backwards")
    parser.add_argument("--clip", type=float, default=None, help="the script clips by this norm before each step")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    me = phub.worker()
    images, labels = torch.randn(arguments.batch, 3, 224, 224), torch.randint(0, 1000, (arguments.batch,))
    make = MODELS[arguments.model]

    torch.distributed.init_process_group("gloo")
    gloo = torch.nn.parallel.DistributedDataParallel(make())
    systems = {"gloo": (gloo, torch.optim.SGD(gloo.parameters(), lr=RATE, momentum=0.9))}

    def at_hub(name, model):
        optimizer = phub.torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9),
            model.named_parameters(),
            job=name,
            transport=arguments.transport,
            schedule=arguments.schedule,
        )
        systems[name] = (model, optimizer)

    hub = make()
    at_hub("hub", hub)
    if arguments.backwards:
        at_hub("backwards", Backwards(make()))
    alone = make()
    systems["alone"] = (alone, torch.optim.SGD(alone.parameters(), lr=RATE, momentum=0.9))
    systems["without step"] = (alone, NoSteps(alone.parameters(), lr=RATE))
    legs = {name: lambda on=on: steps(*on, images, labels, arguments.steps, arguments.clip) for name, on in systems.items()}
    parameters = sum(each.numel() for each in hub.parameters())
    buckets = torch.zeros(parameters).split(BUCKET)
    legs["gloo's bytes"] = lambda: reduce(buckets, arguments.steps)
    legs["hub's bytes"] = lambda: exchange(systems["hub"][1].session, arguments.steps)
    seconds = {name: [] for name in legs}
    for leg in range(arguments.legs + 1):
        for name, run in legs.items():
            torch.distributed.barrier()
            took = run()
            if leg > 0:  # in the first leg, buckets and coverage are learnt
                seconds[name].append(took)
    if me.rank == 0:
        hidden = {}
        for name, compute in {"hub": "without step", "gloo": "alone"}.items():
            each = zip(seconds[name], seconds[compute], seconds[f"{name}'s bytes"])
            hidden[name] = spread(1 - (step - compute) / moved for step, compute, moved in each)
        rivals = ["gloo", *(["backwards"] if arguments.backwards else []), *(["alone"] if me.world_size == 1 else [])]
        ratios = {name: [theirs / ours for theirs, ours in zip(seconds[name], seconds["hub"])] for name in rivals}
        samples = arguments.batch * arguments.steps * me.world_size
        report = {
            "model": arguments.model,
            "workers": me.world_size,
            "way": systems["hub"][1].session.ways[0].transport,
            "parameters": parameters,
            "samples_per_second": {name: samples / statistics.median(seconds[name]) for name in systems},
            "seconds_of_a_step": {name: statistics.median(took) / arguments.steps for name, took in seconds.items()},
            "hub_is_faster_by": {name: spread(each) for name, each in ratios.items()},
            "hidden": hidden,
            "legs": {name: [took / arguments.steps for took in each] for name, each in seconds.items()},
        }
        print(json.dumps(report))
    os.sys.stdout.flush()
    torch.distributed.barrier()


if __name__ == "__main__":
    main()

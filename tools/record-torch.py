#!/usr/bin/env python3
"""Records the results of PyTorch's optimizers, for pbox-core/tests/torch.rs.

    tools/record-torch.py > pbox-core/tests/data/torch.json

The optimizers are those for a single tensor in f32 on the CPU. Numbers are written as the bits of an f32, so that nothing is
rounded. Settings are first rounded to f32, because the hub stores settings as f32.
"""

import json
import sys

import torch

ELEMENTS, STEPS, KEPT = 64, 20, (1, 2, 5, 10, 20)
SETTINGS = [
    ("sgd", dict(learning_rate=0.1)),
    ("sgd", dict(learning_rate=0.05, weight_decay=0.01)),
    ("momentum", dict(learning_rate=0.1, momentum=0.9)),
    ("momentum", dict(learning_rate=0.02, momentum=0.5, weight_decay=0.05)),
    ("dampened", dict(learning_rate=0.1, momentum=0.9, dampening=0.5)),
    ("dampened", dict(learning_rate=0.02, momentum=0.5, dampening=0.1, weight_decay=0.05)),
    ("nesterov", dict(learning_rate=0.1, momentum=0.9)),
    ("nesterov", dict(learning_rate=0.02, momentum=0.5, weight_decay=0.05)),
    ("adam", dict(learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8)),
    ("adam", dict(learning_rate=0.01, beta1=0.8, beta2=0.95, epsilon=1e-3, weight_decay=0.1)),
    ("adamw", dict(learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.01)),
    ("adamw", dict(learning_rate=0.02, beta1=0.5, beta2=0.9, epsilon=1e-5, weight_decay=0.3)),
    ("amsgrad", dict(learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8)),
    ("amsgrad", dict(learning_rate=0.01, beta1=0.8, beta2=0.5, epsilon=1e-3, weight_decay=0.1)),
    ("amsgradw", dict(learning_rate=0.02, beta1=0.5, beta2=0.5, epsilon=1e-5, weight_decay=0.3)),
    ("lion", dict(learning_rate=0.001, beta1=0.9, beta2=0.99)),
    ("lion", dict(learning_rate=0.02, beta1=0.5, beta2=0.25, weight_decay=0.3)),
]


class Lion(torch.optim.Optimizer):
    """Lion as in its paper (Chen et al. 2023, program 1), because PyTorch has no Lion."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), rate = group["betas"], group["lr"]
            for each in group["params"]:
                m = self.state[each].setdefault("exp_avg", torch.zeros_like(each))
                each.mul_(1 - rate * group["weight_decay"])
                each.add_(torch.sign(m * beta1 + each.grad * (1 - beta1)), alpha=-rate)
                m.mul_(beta2).add_(each.grad, alpha=1 - beta2)


def values(seed, scale):
    """Returns pseudo-random numbers from -scale to scale, by a linear congruence. They are the same on every machine."""
    numbers, state = [], seed
    for _ in range(ELEMENTS):
        state = (state * 1664525 + 1013904223) % 2**32
        numbers.append((state / 2**31 - 1) * scale)
    return torch.tensor(numbers, dtype=torch.float32)


def bits(tensor):
    return [number % 2**32 for number in tensor.detach().view(torch.int32).tolist()]


def optimizer(name, parameters, s):
    rate, decay = s["learning_rate"], s["weight_decay"]
    if "beta1" in s:
        betas = (s["beta1"], s["beta2"])
        if name == "lion":
            return Lion(parameters, dict(lr=rate, betas=betas, weight_decay=decay))
        kind = torch.optim.AdamW if name.endswith("w") else torch.optim.Adam
        more = dict(eps=s["epsilon"], amsgrad=name.startswith("amsgrad"), foreach=False)
        return kind(parameters, lr=rate, betas=betas, weight_decay=decay, **more)
    more = {name: s.get(name, 0.0) for name in ("momentum", "dampening")}
    return torch.optim.SGD(parameters, lr=rate, nesterov=name == "nesterov", weight_decay=decay, foreach=False, **more)


def run(name, settings, first, gradients):
    settings = {"weight_decay": 0.0, **settings}
    rounded = {key: torch.tensor(value, dtype=torch.float32).item() for key, value in settings.items()}
    weights = first.clone().requires_grad_()
    steps = optimizer(name, [weights], rounded)
    kept = []
    for number, gradient in enumerate(gradients, 1):
        weights.grad = gradient.clone()
        steps.step()
        if number in KEPT:
            kept.append({"step": number, "weights": bits(weights)})
    return {"optimizer": {"name": name, **settings}, "kept": kept}


def main():
    first = values(1, 2.0)
    gradients = [values(100 + step, 10.0 ** (step % 4 - 2)) for step in range(STEPS)]
    record = {
        "torch": torch.__version__,
        "first": bits(first),
        "gradients": [bits(gradient) for gradient in gradients],
        "runs": [run(name, settings, first, gradients) for name, settings in SETTINGS],
    }
    json.dump(record, sys.stdout, separators=(",", ":"))
    print()


main()

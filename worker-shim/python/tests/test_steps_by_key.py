"""LARS and LAMB at the hub have the weights of a small implementation in PyTorch, over 200 steps."""

import numpy as np
import pytest
from conftest import in_processes

import phub

torch = pytest.importorskip("torch")

STEPS = 200
SHAPES = {"of many blocks": (30_000,), "of one": (16, 5), "scales": (40,)}
SETTINGS = {
    "lars": phub.Lars(0.5, momentum=0.9, weight_decay=0.01, trust=0.02),
    "lamb": phub.Lamb(0.01, weight_decay=0.05),
}


def weights(name):
    generator = np.random.default_rng(len(name))
    return generator.standard_normal(SHAPES[name], dtype=np.float32)


def gradient(name, rank, step):
    generator = np.random.default_rng([len(name), rank, step])
    return generator.standard_normal(SHAPES[name], dtype=np.float32)


def quotient(weight, other):
    both = [torch.linalg.vector_norm(each.double()).item() for each in (weight, other)]
    return both[0] / both[1] if all(both) else 1.0


def lars(weight, mean, state, settings, decay, adapts, _):
    trust = 1.0
    if adapts:
        norms = [torch.linalg.vector_norm(each.double()).item() for each in (weight, mean)]
        trust = settings.trust * norms[0] / (norms[1] + decay * norms[0])
    momentum = state.setdefault("m", torch.zeros_like(weight))
    momentum.mul_(settings.momentum).add_(mean + decay * weight, alpha=settings.learning_rate * trust)
    weight.sub_(momentum)


def lamb(weight, mean, state, settings, decay, adapts, step):
    m, v = (state.setdefault(name, torch.zeros_like(weight)) for name in "mv")
    m.mul_(settings.beta1).add_(mean, alpha=1 - settings.beta1)
    v.mul_(settings.beta2).addcmul_(mean, mean, value=1 - settings.beta2)
    root = (v / (1 - settings.beta2**step)).sqrt() + settings.epsilon
    update = m / (1 - settings.beta1**step) / root + decay * weight
    weight.sub_(update, alpha=settings.learning_rate * (quotient(weight, update) if adapts else 1.0))


def by_torch(name, workers):
    """Returns the weights after all steps of the implementation in PyTorch."""
    step_of, settings = {"lars": lars, "lamb": lamb}[name], SETTINGS[name]
    model = {key: torch.from_numpy(weights(key)) for key in SHAPES}
    states = {key: {} for key in SHAPES}
    for step in range(1, STEPS + 1):
        for key, weight in model.items():
            mean = sum(torch.from_numpy(gradient(key, rank, step)) for rank in range(workers)) / workers
            adapts = key != "scales"
            decay = settings.weight_decay if adapts else 0.0
            step_of(weight, mean, states[key], settings, decay, adapts, step)
    return {key: weight.numpy() for key, weight in model.items()}


def train(rank, address, name, workers):
    keys = {key: weights(key) for key in SHAPES}
    with phub.Session(address, rank, workers, job=f"{name}-{workers}", keys=keys, optimizer=SETTINGS[name]) as session:
        session.broadcast(keys)
        session.set_optimizer(SETTINGS[name], {key: (1.0, float(key != "scales")) for key in SHAPES})
        for step in range(1, STEPS + 1):
            for key in SHAPES:
                session.gradient(key)[...] = gradient(key, rank, step)
                session.push(key)
            for key in SHAPES:
                session.wait(key)
        return {key: session.weights(key).copy() for key in SHAPES}


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_weights_are_those_of_torch(hub, name, workers):
    seen = in_processes(workers, train, hub.address, name, workers)
    expected = by_torch(name, workers)
    for of_rank in seen:
        for key in SHAPES:
            np.testing.assert_allclose(of_rank[key], expected[key], rtol=2e-4, atol=2e-5)

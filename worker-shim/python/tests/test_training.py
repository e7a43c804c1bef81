"""Training on real data with NumPy alone: any number of workers makes the same steps as one process on the whole batch. Two runs
end with equal bits."""

import numpy as np
import pytest
from conftest import in_processes

import phub

sklearn_datasets = pytest.importorskip("sklearn.datasets")

ROUNDS = 40
BATCH = 256
RATE, MOMENTUM = 0.5, 0.9


def digits():
    """Returns 1797 images of digits, 8 x 8 pixels from 0 to 1, and the digit of each image."""
    data = sklearn_datasets.load_digits()
    return (data.data / 16).astype(np.float32), data.target


def batch(images, labels, number):
    rows = np.arange(number * BATCH, (number + 1) * BATCH) % len(images)
    return images[rows], labels[rows]


def gradients(weights, bias, images, labels):
    """Returns the loss of a softmax regression, and its gradients by weights and by bias."""
    logits = images @ weights + bias
    logits -= logits.max(axis=1, keepdims=True)
    shares = np.exp(logits)
    shares /= shares.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(shares[rows, labels]).mean()
    shares[rows, labels] -= 1
    shares /= len(labels)
    return loss, images.T @ shares, shares.sum(axis=0)


def one_process():
    """Returns the losses of one process on the whole batches, by the plain formula."""
    images, labels = digits()
    weights, bias = np.zeros((64, 10), np.float32), np.zeros(10, np.float32)
    means = [np.zeros_like(weights), np.zeros_like(bias)]
    losses = []
    for number in range(ROUNDS):
        loss, *steps = gradients(weights, bias, *batch(images, labels, number))
        losses.append(loss)
        for parameter, mean, step in zip((weights, bias), means, steps):
            mean[:] = MOMENTUM * mean + step
            parameter -= RATE * mean
    return losses


def train(rank, hub, world_size, job):
    """Trains one worker, with its share of each batch. Returns the losses on its share, and the bytes of its last weights."""
    images, labels = digits()
    keys = {"weights": (64, 10), "bias": (10,)}
    optimizer = phub.Momentum(RATE, MOMENTUM)
    losses = []
    with phub.Session(hub, rank, world_size, keys=keys, optimizer=optimizer, job=job) as session:
        session.broadcast()
        weights, bias = session.weights("weights"), session.weights("bias")
        for number in range(ROUNDS):
            whole = batch(images, labels, number)
            loss, weights_step, bias_step = gradients(weights, bias, *(part[rank::world_size] for part in whole))
            losses.append(loss)
            session.gradient("weights")[:] = weights_step
            session.gradient("bias")[:] = bias_step
            session.push()
            session.wait()
        return losses, weights.tobytes() + bias.tobytes()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_workers_walk_the_way_of_one_process(hub, world_size):
    results = in_processes(world_size, train, hub.address, world_size, "digits")
    losses = np.mean([losses for losses, _ in results], axis=0)
    np.testing.assert_allclose(losses, one_process(), rtol=1e-4)
    assert losses[-1] < 0.2 * losses[0]
    assert len({ends for _, ends in results}) == 1, "all workers end with the same weights"


def test_two_runs_end_with_equal_bits(hub):
    first, second = (in_processes(3, train, hub.address, 3, job) for job in ("first", "second"))
    assert first == second

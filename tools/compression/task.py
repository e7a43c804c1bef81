"""The tasks and their network, in NumPy. Must not depend on hubs and workers."""

import sysconfig
from pathlib import Path

import numpy as np

LETTERS = 96  # the printable letters of ASCII, and one number for all other bytes
CONTEXT = 6
HIDDEN = 512


class Task:
    """The samples of a task, for training and for tests. Each row has the features of a sample."""

    def __init__(self, inputs, labels, classes, test_part, rate):
        order = np.random.default_rng(1).permutation(len(labels))
        test, train = np.split(order, [int(len(order) * test_part)])
        self.train, self.test = (inputs[train], labels[train]), (inputs[test], labels[test])
        self.widths = [inputs.shape[1], HIDDEN, HIDDEN, classes]
        self.rate = rate  # the learning rate for the mean gradient

    def shapes(self):
        """Returns the shapes of the keys by name, in the order of the forward pass."""
        layers = enumerate(zip(self.widths, self.widths[1:]))
        return {name: shape for number, (inputs, outputs) in layers
                for name, shape in ((f"weight{number}", (inputs, outputs)), (f"bias{number}", (outputs,)))}

    def first(self, seed):
        """Returns first weights by key: biases are zero, and other weights have the variance 2 / inputs (He et al. 2015)."""
        random = np.random.default_rng([2, seed])
        draw = {True: lambda shape: random.standard_normal(shape) * np.sqrt(2 / shape[0]), False: np.zeros}
        return {name: draw[len(shape) == 2](shape).astype(np.float32) for name, shape in self.shapes().items()}

    def batches(self, seed, rank, workers, size):
        """Yields, without end, a worker's `size` samples of each batch. Every worker shuffles all samples in the same way."""
        random, (inputs, labels) = np.random.default_rng([3, seed]), self.train
        while True:
            order = random.permutation(len(labels))
            for start in range(0, len(order) - size * workers + 1, size * workers):
                rows = order[start + rank : start + size * workers : workers]
                yield inputs[rows], labels[rows]


def digits():
    """Returns the task to recognise scikit-learn's 1797 images of digits, 8 x 8 pixels. One image in five is for tests."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return Task((data.data / 16).astype(np.float32), data.target, 10, 0.2, rate=0.1)


def text():
    """Returns the task to predict the letter after six letters, in the text of Python's help. It has 40,000 samples, one in ten
    for tests."""
    letters = np.frombuffer(Path(sysconfig.get_path("stdlib"), "pydoc_data", "topics.py").read_bytes(), np.uint8)
    letters = np.where((letters >= 32) & (letters < 127), letters - 31, 0)
    starts = np.random.default_rng(4).choice(len(letters) - CONTEXT, 40_000, replace=False)
    pieces = letters[starts[:, None] + np.arange(CONTEXT)]
    inputs = (pieces[:, :, None] == np.arange(LETTERS)).reshape(len(starts), -1).astype(np.float32)
    return Task(inputs, letters[starts + CONTEXT].astype(np.int64), LETTERS, 0.1, rate=0.2)


TASKS = {"digits": digits, "text": text}


def forward(weights, inputs):
    """Returns the values of each layer, beginning with the inputs. Hidden layers are rectified."""
    values, layers = [inputs], len(weights) // 2
    for layer in range(layers):
        outputs = values[-1] @ weights[f"weight{layer}"] + weights[f"bias{layer}"]
        values.append(np.maximum(outputs, 0) if layer + 1 < layers else outputs)
    return values


def backward(weights, inputs, labels):
    """Yields name and gradient of each key, for the mean cross entropy, from the last layer to the first."""
    values = forward(weights, inputs)
    error = np.exp(values[-1] - values[-1].max(axis=1, keepdims=True))
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    for layer in reversed(range(len(weights) // 2)):
        gradients = values[layer].T @ error, error.sum(axis=0)
        if layer > 0:
            error = (error @ weights[f"weight{layer}"].T) * (values[layer] > 0)
        yield f"bias{layer}", gradients[1]
        yield f"weight{layer}", gradients[0]


def accuracy(weights, inputs, labels):
    """Returns the part of the samples whose class is predicted right."""
    found = [forward(weights, part)[-1].argmax(axis=1) for part in np.array_split(inputs, 8)]
    return float((np.concatenate(found) == labels).mean())

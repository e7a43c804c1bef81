"""Models and data of the tests with PyTorch: digits by a small CNN, text by a small transformer."""

import sysconfig
from pathlib import Path

import torch

BATCH = 96
TEXT_LENGTH = 32


class Cnn(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(1, 8, 3, padding=1)
        self.second = torch.nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.out = torch.nn.Linear(16 * 4 * 4, 10)

    def forward(self, images):
        hidden = torch.relu(self.second(torch.relu(self.first(images))))
        return self.out(hidden.flatten(1))


class Transformer(torch.nn.Module):
    """A model that predicts the next of 128 letters. Its output layer shares the embedding's weights."""

    def __init__(self):
        super().__init__()
        self.letters = torch.nn.Embedding(128, 32)
        self.places = torch.nn.Parameter(torch.randn(TEXT_LENGTH, 32) * 0.1)
        block = torch.nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.blocks = torch.nn.TransformerEncoder(block, 2)
        self.out = torch.nn.Linear(32, 128, bias=False)
        self.out.weight = self.letters.weight

    def forward(self, text):
        mask = torch.full((TEXT_LENGTH, TEXT_LENGTH), float("-inf")).triu(1)
        return self.out(self.blocks(self.letters(text) + self.places, mask))


def digits():
    from sklearn.datasets import load_digits

    data = load_digits()
    return torch.tensor(data.images / 16, dtype=torch.float32)[:, None], torch.tensor(data.target)


def text():
    """Returns pieces of the text of Python's standard library, and for each letter the letter after it."""
    letters = Path(sysconfig.get_path("stdlib"), "this.py").read_bytes() * 8
    letters = torch.tensor([letter % 128 for letter in letters])
    pieces = letters[: len(letters) // TEXT_LENGTH * TEXT_LENGTH].view(-1, TEXT_LENGTH)
    return pieces[:, :], pieces.roll(-1, 1)


def loss_of(model, inputs, targets):
    outputs = model(inputs)
    return torch.nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def fresh(kind):
    """Returns a model whose initial weights are the same in every process."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    return {"cnn": Cnn, "transformer": Transformer}[kind]()


def batches(kind, rounds, rank=0, world_size=1):
    """Yields a worker's share of each batch, for this number of batches."""
    inputs, targets = digits() if kind == "cnn" else text()
    for number in range(rounds):
        rows = torch.arange(number * BATCH, (number + 1) * BATCH) % len(inputs)
        yield inputs[rows][rank::world_size], targets[rows][rank::world_size]


def optimizer_of(kind, model):
    if kind == "cnn":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    return torch.optim.Adam(model.parameters(), lr=3e-3)


def digest(model):
    return b"".join(each.detach().numpy().tobytes() for each in model.parameters())

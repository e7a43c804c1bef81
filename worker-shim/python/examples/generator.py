"""A small language model writes text with its newest weights, while a job trains them.

    phub-server serve
    PHUB_HUB=127.0.0.1:7077 torchrun --nproc_per_node 2 generator.py train
    python generator.py write 127.0.0.1:7077

The model learns the source code of Python's argparse, letter by letter. The generator does not train: it may start at any time, and
start again after it was killed. It continues to write while the next weights arrive. Both processes print the loss of the text's
end, on which no process trains. So the loss of a round is the same in both processes.
"""

import argparse
import queue
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import phub
import phub.torch

JOB, CONTEXT, LINE = "letters", 8, 60
TEXT = torch.tensor(list(Path(argparse.__file__).read_bytes())).clamp(max=127)
TRAINED = len(TEXT) - 4096
HELD_OUT = torch.arange(TRAINED, len(TEXT) - CONTEXT, 4)

torch.set_num_threads(1)  # the workers and the generator share the cores


class Letters(torch.nn.Module):
    """Guesses the letter after `CONTEXT` letters."""

    def __init__(self):
        super().__init__()
        self.letters = torch.nn.Embedding(128, 16)
        self.layers = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(CONTEXT * 16, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128)
        )

    def forward(self, contexts):
        return self.layers(self.letters(contexts))

    def loss(self, starts):
        contexts = TEXT[starts[:, None] + torch.arange(CONTEXT)]
        return torch.nn.functional.cross_entropy(self(contexts), TEXT[starts + CONTEXT])

    @torch.no_grad()
    def held_out_loss(self):
        return self.loss(HELD_OUT).item()

    @torch.no_grad()
    def write(self, text, letters):
        """Appends letters to a text of at least `CONTEXT` letters."""
        for _ in range(letters):
            guesses = self(torch.tensor([text[-CONTEXT:]])).softmax(1)
            text.append(torch.multinomial(guesses, 1).item())


def train(rounds, print_each):
    torch.manual_seed(1)
    model = Letters()
    optimizer = phub.torch.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=2e-3), model, job=JOB)
    session = optimizer.session
    torch.manual_seed(2 + session.rank)
    for step in range(1, rounds + 1):
        optimizer.zero_grad()
        model.loss(torch.randint(TRAINED - CONTEXT, (64,))).backward()
        optimizer.step()
        if session.rank == 0 and step % print_each == 0:
            loss = model.held_out_loss()  # waits for the weights before the next round
            print(f"round {session.next_round}: loss {loss!r}", flush=True)


def follow(hub, arrived):
    """Puts each version into a queue, and None at the end."""
    try:
        with phub.subscribe(hub, JOB, every=0.1) as versions:
            for version in versions:
                arrived.put(version)
    finally:
        arrived.put(None)


def write(hub):
    model, text, arrived = Letters(), TEXT[:CONTEXT].tolist(), queue.SimpleQueue()
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow, hub, arrived)
        while (version := arrived.get()) is not None:
            begun = time.perf_counter()
            version.load_into(model)
            loaded_ms = (time.perf_counter() - begun) * 1e3
            while True:
                model.write(text, LINE)
                if not arrived.empty():
                    break
            line = bytes(text[-LINE:]).decode("ascii")
            loss = model.held_out_loss()
            print(f"round {version.round}: loss {loss!r}, loaded in {loaded_ms:.1f} ms, writes {line!r}", flush=True)
            del text[:-CONTEXT]
        following.result()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="train|write")
    trainer = commands.add_parser("train", help="train as a worker of torchrun, or alone")
    trainer.add_argument("--rounds", type=int, default=5000)
    trainer.add_argument("--print-each", type=int, default=500, metavar="ROUNDS")
    trainer.set_defaults(run=train)
    generator = commands.add_parser("write", help="write text with the weights of the job at a hub")
    generator.add_argument("hub", help="the address of the hub, host:port")
    generator.set_defaults(run=write)
    given = vars(parser.parse_args())
    given.pop("run")(**given)

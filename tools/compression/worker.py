"""One worker of a run: `worker.py SETTINGS`, JSON. Rank 0 prints a line of JSON for each look at the test samples."""

import dataclasses
import json
import sys
import time

import numpy as np
import phub
from methods import METHODS
from task import TASKS, accuracy, backward


def main():
    """Trains, and says how it goes."""
    run = json.loads(sys.argv[1])
    task, method = TASKS[run["task"]](), METHODS[run["method"]]
    rank, workers, seed = run["rank"], run["workers"], run["seed"]
    rate, compression = task.rate * method.rate, method.compression
    if method.local:
        compression = dataclasses.replace(compression, q=run["rounds"] + 1 if method.once else run["q"])
    session = phub.Session(
        run["hub"], rank, workers, keys=task.shapes(), optimizer=phub.Sgd(1.0 if method.local else rate),
        job=run["job"], consistency=method.consistency, schedule=method.schedule, compression=compression,
        transport=run["transport"],
    )
    with session:
        session.broadcast(task.first(seed))
        batches = task.batches(seed, rank, workers, run["batch"])
        weights = {name: session.weights(name) for name in task.shapes()}
        step = Kept(session, weights) if method.keep else local_step if method.local else hub_step
        spent, looked = 0.0, time.perf_counter()
        for number in range(1, run["rounds"] + 1):
            step(session, weights, next(batches), task.rate)
            if rank == 0 and (number % run["every"] == 0 or number == run["rounds"]):
                spent += time.perf_counter() - looked
                line = {"round": number, "seconds": spent, "accuracy": accuracy(weights, *task.test)}
                if run["hub_too"]:
                    # With Slim-DP the hub's weights are the model, and a worker's are others between two selections.
                    line["hub"] = accuracy(session.state().tensors, *task.test) if method.local else line["accuracy"]
                print(json.dumps(line), flush=True)
                looked = time.perf_counter()


def hub_step(session, weights, batch, _rate):
    """Gradients go out as they come, from the last layer on; the hub steps."""
    for name, gradient in backward(weights, *batch):
        session.gradient(name)[:] = gradient
        session.push(name)
    session.wait()


def local_step(session, weights, batch, rate):
    """This worker steps by itself and pushes what that changed; the hub's values of what was sent come back."""
    for name, gradient in list(backward(weights, *batch)):
        change = np.float32(rate) * gradient
        weights[name] -= change
        session.gradient(name)[:] = change
        session.push(name)
    session.wait()


class Kept:
    """The same, but what was not sent of a change is kept, and goes out with the next one that is: no step is lost."""

    def __init__(self, session, weights):
        """`before` is what the weights are when they are pushed."""
        self.before = {name: value.copy() for name, value in weights.items()}
        for name in weights:
            session.gradient(name)[:] = 0

    def __call__(self, session, weights, batch, rate):
        for name, gradient in list(backward(weights, *batch)):
            gradient *= np.float32(rate)
            weights[name] -= gradient
            kept = session.gradient(name)
            kept += gradient
            self.before[name][:] = weights[name]
            session.push(name)
        session.wait()
        for name, value in weights.items():
            # What came back is the hub's. That it is the worker's own to the last bit is one chance in a million, and
            # then a change goes out twice.
            kept = session.gradient(name)
            kept *= value == self.before[name]


if __name__ == "__main__":
    main()

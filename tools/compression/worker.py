"""One worker of a run: `worker.py SETTINGS`, with the settings in JSON. Rank 0 prints a line of JSON for each evaluation."""

import dataclasses
import json
import sys
import time

import numpy as np
import phub
from methods import METHODS
from task import TASKS, accuracy, backward


def main():
    """Trains. Rank 0 evaluates and prints."""
    run = json.loads(sys.argv[1])
    task, method = TASKS[run["task"]](), METHODS[run["method"]]
    rank, workers, seed = run["rank"], run["workers"], run["seed"]
    rate, compression = task.rate * method.rate, method.compression
    if method.local:
        rate = float(workers) if method.adds_sum else 1.0  # the hub's, by which it multiplies the mean of the changes
        compression = dataclasses.replace(compression, q=run["rounds"] + 1 if method.once else run["q"])
    session = phub.Session(
        run["hub"], rank, workers, keys=task.shapes(), optimizer=phub.Sgd(rate),
        job=run["job"], consistency=method.consistency, schedule=method.schedule, compression=compression,
        transport=run["transport"],
    )
    with session:
        session.broadcast(task.first(seed))
        batches = task.batches(seed, rank, workers, run["batch"])
        weights = {name: session.weights(name) for name in task.shapes()}
        step = keeping_step if method.keep else local_step if method.local else hub_step
        spent, looked = 0.0, time.perf_counter()
        for number in range(1, run["rounds"] + 1):
            step(session, weights, next(batches), task.rate)
            if rank == 0 and (number % run["every"] == 0 or number == run["rounds"]):
                spent += time.perf_counter() - looked
                line = {"round": number, "seconds": spent, "accuracy": accuracy(weights, *task.test)}
                if run["hub_too"]:
                    # With Slim-DP the model is the hub's weights. Between two selections a worker's own weights differ.
                    line["hub"] = accuracy(session.state().tensors, *task.test) if method.local else line["accuracy"]
                print(json.dumps(line), flush=True)
                looked = time.perf_counter()


def hub_step(session, weights, batch, _rate):
    """Pushes each gradient when it is computed, beginning with the last layer. The hub makes the step."""
    for name, gradient in backward(weights, *batch):
        session.gradient(name)[:] = gradient
        session.push(name)
    session.wait()


def local_step(session, weights, batch, rate):
    """Makes a local step, pushes its change, and waits for the hub's values of the parameters that were sent (Slim-DP, algorithm
    1)."""
    for name, gradient in list(backward(weights, *batch)):
        change = np.float32(rate) * gradient
        weights[name] -= change
        session.gradient(name)[:] = change
        session.push(name)
    session.wait()


def keeping_step(session, weights, batch, rate):
    """Makes a local step as `local_step` does, but adds a change that was not sent to a later push, so that no step is lost."""
    for name, gradient in list(backward(weights, *batch)):
        change = np.float32(rate) * gradient
        weights[name] -= change
        session.gradient(name)[:] += change
        session.push(name)
    session.wait()


if __name__ == "__main__":
    main()

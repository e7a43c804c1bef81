"""One worker of a run: `worker.py SETTINGS`, JSON. Rank 0 prints a line of JSON for each look at the test samples."""

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
    rate = task.rate * method.rate
    session = phub.Session(
        run["hub"], rank, workers, keys=task.shapes(), optimizer=phub.Sgd(1.0 if method.local else rate),
        job=run["job"], consistency=method.consistency, schedule=method.schedule, compression=method.compression,
        transport="tcp",
    )
    with session:
        session.broadcast(task.first(seed))
        batches = task.batches(seed, rank, workers, run["batch"])
        weights = {name: session.weights(name) for name in task.shapes()}
        spent, looked = 0.0, time.perf_counter()
        for number in range(1, run["rounds"] + 1):
            step = local_step if method.local else hub_step
            step(session, weights, next(batches), task.rate)
            if rank == 0 and (number % run["every"] == 0 or number == run["rounds"]):
                spent += time.perf_counter() - looked
                line = {"round": number, "seconds": spent, "accuracy": accuracy(weights, *task.test)}
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


if __name__ == "__main__":
    main()

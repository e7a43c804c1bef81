#!/usr/bin/env python3
"""Trains with each method over links of a limited rate, and writes what came of it.

Four workers and a hub, each a machine: a network namespace with one link (tools/figures/machines.py). A run that is in
the table already is not made again.
"""

import argparse
import csv
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "figures"))

from machines import Machines  # noqa: E402

WORKERS = 4
SOCKET_BYTES = 256 << 10
FIELDS = ["task", "method", "seed", "round", "seconds", "accuracy", "mbit"]
METHODS = ["plump", "p3", "quant", "slim", "core", "kept", "dgc", "asgd"]
ROUNDS = {"digits": 440, "text": 800}
SELECT_EVERY = 100


def arguments():
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="target/compression", help="folder of runs.csv")
    parser.add_argument("--binaries", default="target/release", help="where phub-server is")
    parser.add_argument("--python", default=sys.executable, help="a Python that has phub, NumPy and scikit-learn")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each method, with other weights and batches")
    parser.add_argument("--tasks", default="digits,text", help="comma list of digits, text")
    parser.add_argument("--methods", default=",".join(METHODS), help="comma list of methods.py")
    parser.add_argument("--mbit", type=int, default=1000, help="rate of each link, both ways")
    parser.add_argument("--rounds", type=int, help="rounds of each run; by task where left out")
    parser.add_argument("--batch", type=int, default=16, help="samples of each worker in a round")
    parser.add_argument("--fresh", action="store_true", help="forget former runs")
    return parser.parse_args()


def main():
    """All runs, one after another."""
    args = arguments()
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, "runs.csv")
    if args.fresh or not os.path.exists(path):
        with open(path, "w", newline="") as file:
            csv.writer(file).writerow(FIELDS)
    with open(path, newline="") as file:
        done = {(row["task"], row["method"], int(row["seed"]), int(row["mbit"])) for row in csv.DictReader(file)}
    wanted = [(task, method, seed) for seed in range(args.seeds) for task in args.tasks.split(",")
              for method in args.methods.split(",")]
    left = [run for run in wanted if (*run, args.mbit) not in done]
    machines = Machines(WORKERS + 1)
    # The hub has as many links as PBox has, in one: all workers' together.
    machines.limit([args.mbit] * WORKERS + [args.mbit * WORKERS], SOCKET_BYTES)
    for number, run in enumerate(left, start=1):
        rows = one(machines, args, *run)
        with open(path, "a", newline="") as file:
            csv.writer(file).writerows(rows)
        print(f"[{number}/{len(left)}] {' '.join(map(str, run))}: {rows[-1][5]:.4f} after {rows[-1][4]:.1f} s", flush=True)


def one(machines, args, task, method, seed):
    """The rows of one run: a hub of its own, and its workers."""
    rounds = args.rounds or ROUNDS[task]
    hub_at = f"{machines.address(WORKERS)}:7077"
    serve = [os.path.join(args.binaries, "phub-server"), "serve", "--listen", hub_at, "--idle", "sleep"]
    hub = subprocess.Popen(machines.inside(WORKERS, serve), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    workers = []
    try:
        for rank in reversed(range(WORKERS)):
            settings = {"hub": hub_at, "job": "run", "rank": rank, "workers": WORKERS, "task": task, "method": method,
                        "seed": seed, "rounds": rounds, "every": max(1, rounds // 40), "batch": args.batch,
                        "q": SELECT_EVERY, "transport": "tcp", "hub_too": False}
            command = ["env", "OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", args.python,
                       os.path.join(HERE, "worker.py"), json.dumps(settings)]
            out = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            workers.append(subprocess.Popen(machines.inside(rank, command), stdout=out, text=True))
        said, _ = workers[-1].communicate(timeout=600)
        codes = [worker.wait(timeout=60) for worker in workers]
        if any(codes):
            raise RuntimeError(f"{task} {method} seed {seed}: workers ended with {codes}")
    finally:
        for process in [*workers, hub]:
            process.kill()
            process.wait()
    lines = map(json.loads, said.splitlines())
    return [(task, method, seed, line["round"], line["seconds"], line["accuracy"], args.mbit) for line in lines]


if __name__ == "__main__":
    main()

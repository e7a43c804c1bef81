#!/usr/bin/env python3
"""Trains with each method until accuracy is flat, and writes what came of it by rounds.

Four workers and a hub, each a process, over shared memory: no link has a limit, and no time is told. A run that is in
the table already is not made again. Needs no root.
"""

import argparse
import csv
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
WORKERS = 4
FIELDS = ["task", "method", "seed", "round", "worker", "hub"]
METHODS = ["plump", "quant", "slim", "core", "slim-once", "core-once", "kept", "dgc-fifth", "asgd"]
ROUNDS = {"digits": 440, "text": 6000}
# The paper selects some twenty times in a run: every 20,000 of some 400,000 mini-batches.
SELECTIONS = 20


def arguments():
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="target/compression", help="folder of length.csv")
    parser.add_argument("--binaries", default="target/release", help="where phub-server is")
    parser.add_argument("--python", default=sys.executable, help="a Python that has phub, NumPy and scikit-learn")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="comma list: other weights and batches")
    parser.add_argument("--tasks", default="text", help="comma list of digits, text")
    parser.add_argument("--methods", default=",".join(METHODS), help="comma list of methods.py")
    parser.add_argument("--rounds", type=int, help="rounds of each run; by task where left out")
    parser.add_argument("--batch", type=int, default=16, help="samples of each worker in a round")
    parser.add_argument("--fresh", action="store_true", help="forget former runs")
    return parser.parse_args()


def main():
    """All runs, one after another."""
    args = arguments()
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, "length.csv")
    if args.fresh or not os.path.exists(path):
        with open(path, "w", newline="") as file:
            csv.writer(file).writerow(FIELDS)
    with open(path, newline="") as file:
        done = {(row["task"], row["method"], int(row["seed"])) for row in csv.DictReader(file)}
    wanted = [(task, method, int(seed)) for seed in args.seeds.split(",") for task in args.tasks.split(",")
              for method in args.methods.split(",")]
    left = [run for run in wanted if run not in done]
    for number, run in enumerate(left, start=1):
        rows = one(args, *run)
        with open(path, "a", newline="") as file:
            csv.writer(file).writerows(rows)
        print(f"[{number}/{len(left)}] {' '.join(map(str, run))}: hub {rows[-1][5]:.4f}", flush=True)


def one(args, task, method, seed):
    """The rows of one run: a hub of its own, and its workers."""
    rounds = args.rounds or ROUNDS[task]
    serve = [os.path.join(args.binaries, "phub-server"), "serve", "--listen", "127.0.0.1:0", "--idle", "sleep"]
    # Whatever ends this process ends its children.
    mine = ["setpriv", "--pdeathsig", "KILL"]
    environment = dict(os.environ, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", RUST_LOG="warn")
    hub = subprocess.Popen([*mine, *serve], stdout=subprocess.PIPE, text=True, env=environment)
    workers = []
    try:
        said = hub.stdout.readline()
        if "control port http://" not in said:
            raise RuntimeError(f"{' '.join(serve)} said {said!r}: expected its control port")
        hub_at = said.split("http://")[1].split()[0]
        for rank in reversed(range(WORKERS)):
            settings = {"hub": hub_at, "job": "run", "rank": rank, "workers": WORKERS, "task": task, "method": method,
                        "seed": seed, "rounds": rounds, "every": max(1, rounds // 40), "batch": args.batch,
                        "q": max(1, rounds // SELECTIONS), "transport": "shm", "hub_too": True}
            command = [*mine, args.python, os.path.join(HERE, "worker.py"), json.dumps(settings)]
            out = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            workers.append(subprocess.Popen(command, stdout=out, text=True, env=environment))
        said, _ = workers[-1].communicate()
        codes = [worker.wait(timeout=60) for worker in workers]
        if any(codes):
            raise RuntimeError(f"{task} {method} seed {seed}: workers ended with {codes}")
    finally:
        for process in [*workers, hub]:
            process.kill()
            process.wait()
    lines = map(json.loads, said.splitlines())
    return [(task, method, seed, line["round"], line["accuracy"], line["hub"]) for line in lines]


if __name__ == "__main__":
    main()

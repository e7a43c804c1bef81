#!/usr/bin/env python3
"""Trains with each method and writes the results; `run.py length` trains until accuracy is flat.

There are four workers, by default, and a hub. Each is a machine: a network namespace with one link of a limited rate (tools/rig/machines.py).
With `length` they are processes that use shared memory: no link has a limit, no time is reported, and no root is needed. A run
that is already in the table is not made again.
"""

import argparse
import csv
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "rig"))

from machines import Machines  # noqa: E402

SOCKET_BYTES = 256 << 10


class Limited:
    """The settings of runs on links of a limited rate."""

    table, tasks = "runs.csv", "digits,text"
    fields = ["task", "method", "seed", "round", "seconds", "accuracy", "mbit"]
    methods = "plump,p3,quant,slim,core,kept,dgc,asgd"
    rounds = {"digits": 440, "text": 800}
    settings = {"transport": "tcp", "hub_too": False}

    def __init__(self, mbit, workers):
        self.machines = Machines(workers + 1)
        # The rate of the hub's link is that of all workers' links together, as with the many links of a PBox.
        self.machines.limit([mbit] * workers + [mbit * workers], SOCKET_BYTES)
        self.listen, self.inside = f"{self.machines.address(workers)}:7077", self.machines.inside

    @staticmethod
    def select_every(_rounds):
        return 100


class Long:
    """The settings of runs until accuracy is flat."""

    table, tasks, listen = "length.csv", "text", "127.0.0.1:0"
    fields = ["task", "method", "seed", "round", "worker", "hub"]
    methods = ("plump,quant,slim,core,slim-once,core-once,kept,dgc-fifth,asgd,explorer,slim-small,slim-large,slim-sum,"
               "explorer-sum,plump-fast")
    rounds = {"digits": 440, "text": 6000}
    settings = {"transport": "shm", "hub_too": True}

    @staticmethod
    def inside(_place, command):
        """Returns a command that the kernel kills when this process ends, for any reason."""
        return ["setpriv", "--pdeathsig", "KILL", *command]

    @staticmethod
    def select_every(rounds):
        """Returns the number of rounds between two selections, so that a run has twenty. The paper has 20,000 or 50,000, and does
        not give the length of its runs."""
        return max(1, rounds // 20)


def main():
    """Makes the runs that the table lacks, one after another."""
    kind = Long if sys.argv[1:2] == ["length"] else Limited
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="target/compression", help=f"folder of {kind.table}")
    parser.add_argument("--binaries", default="target/release", help="where phub-server is")
    parser.add_argument("--python", default=sys.executable, help="a Python with phub, NumPy and scikit-learn")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="seeds of first weights and batches, with commas between them")
    parser.add_argument("--tasks", default=kind.tasks, help="digits, text, or both with a comma")
    parser.add_argument("--methods", default=kind.methods, help="methods of methods.py, with commas between them")
    parser.add_argument("--rounds", type=int, help="rounds of each run; default: the task's rounds")
    parser.add_argument("--workers", type=int, default=4, help="number of workers, the same for all runs of a table")
    parser.add_argument("--batch", type=int, default=16, help="samples of each worker in a round")
    parser.add_argument("--fresh", action="store_true", help="discard earlier runs")
    parser.add_argument("--mbit", type=int, default=None if kind is Long else 1000, help="rate of each worker's link, each way")
    args = parser.parse_args(sys.argv[2:] if kind is Long else None)
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, kind.table)
    if args.fresh or not os.path.exists(path):
        with open(path, "w", newline="") as file:
            csv.writer(file).writerow(kind.fields)
    with open(path, newline="") as file:
        made = {(row["task"], row["method"], int(row["seed"])) for row in csv.DictReader(file)
                if row.get("mbit") in (None, str(args.mbit))}
    wanted = [(task, method, int(seed)) for seed in args.seeds.split(",") for task in args.tasks.split(",")
              for method in args.methods.split(",")]
    left = [run for run in wanted if run not in made]
    place = Limited(args.mbit, args.workers) if kind is Limited else Long()
    for number, run in enumerate(left, start=1):
        rows = [{**dict(zip(kind.fields, run)), **line, "worker": line["accuracy"], "mbit": args.mbit}
                for line in trained(args, place, *run)]
        with open(path, "a", newline="") as file:
            csv.DictWriter(file, kind.fields, extrasaction="ignore").writerows(rows)
        print(f"[{number}/{len(left)}] {' '.join(map(str, run))}: {rows[-1]}", flush=True)


def trained(args, place, task, method, seed):
    """Makes one run with its own hub and workers. Returns the report of rank 0, a record for each evaluation."""
    rounds = args.rounds or place.rounds[task]
    serve = [os.path.join(args.binaries, "phub-server"), "serve", "--listen", place.listen, "--idle", "sleep"]
    hub = subprocess.Popen(place.inside(args.workers, serve), stdout=subprocess.PIPE, text=True,
                           env=dict(os.environ, RUST_LOG="warn"))
    processes = [hub]
    try:
        said = hub.stdout.readline()
        if "control port http://" not in said:
            raise RuntimeError(f"{' '.join(serve)} said {said!r}: expected its control port")
        settings = {"hub": said.split("http://")[1].split()[0], "job": "run", "task": task, "method": method,
                    "seed": seed, "rounds": rounds, "workers": args.workers, "batch": args.batch,
                    "every": max(1, rounds // 40), "q": place.select_every(rounds), **place.settings}
        for rank in reversed(range(args.workers)):
            command = ["env", "OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", args.python, os.path.join(HERE, "worker.py"),
                       json.dumps({**settings, "rank": rank})]
            out = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            processes.append(subprocess.Popen(place.inside(rank, command), stdout=out, text=True))
        said, _ = processes[-1].communicate(timeout=60 + rounds)  # a round takes at most a second
        codes = [worker.wait(timeout=60) for worker in processes[1:]]
        if any(codes):
            raise RuntimeError(f"{task} {method} {seed}: workers ended with {codes}")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads(line) for line in said.splitlines()]


if __name__ == "__main__":
    main()

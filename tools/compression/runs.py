"""What all trainings share: options, a table of runs, and a hub with its workers."""

import argparse
import csv
import json
import os
import subprocess
import sys

WORKERS = 4


def options(description, table, tasks, methods):
    """A parser with the options of both tables; `tasks` and `methods` are the defaults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", default="target/compression", help=f"folder of {table}")
    parser.add_argument("--binaries", default="target/release", help="where phub-server is")
    parser.add_argument("--python", default=sys.executable, help="a Python with phub, NumPy and scikit-learn")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="comma list: other weights and batches")
    parser.add_argument("--tasks", default=tasks, help="comma list of digits, text")
    parser.add_argument("--methods", default=",".join(methods), help="comma list of methods.py")
    parser.add_argument("--rounds", type=int, help="rounds of each run; by default those of the task")
    parser.add_argument("--batch", type=int, default=16, help="samples of each worker in a round")
    parser.add_argument("--fresh", action="store_true", help="discard earlier runs")
    return parser


def all_of(args, table, fields, same, one, told):
    """Makes the runs that the table lacks, one after another.

    A run counts as made if its `same` fields are equal. `one(task, method, seed)` returns the rows of a run, and
    `told(row)` the text about its last row.
    """
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, table)
    if args.fresh or not os.path.exists(path):
        with open(path, "w", newline="") as file:
            csv.writer(file).writerow(fields)
    with open(path, newline="") as file:
        made = {(row["task"], row["method"], int(row["seed"])) for row in csv.DictReader(file)
                if all(row[name] == str(value) for name, value in same.items())}
    wanted = [(task, method, int(seed)) for seed in args.seeds.split(",") for task in args.tasks.split(",")
              for method in args.methods.split(",")]
    left = [run for run in wanted if run not in made]
    for number, run in enumerate(left, start=1):
        rows = one(*run)
        with open(path, "a", newline="") as file:
            csv.writer(file).writerows(rows)
        print(f"[{number}/{len(left)}] {' '.join(map(str, run))}: {told(rows[-1])}", flush=True)


def serving(args, listen):
    """The command of a hub."""
    return [os.path.join(args.binaries, "phub-server"), "serve", "--listen", listen, "--idle", "sleep"]


def trained(args, hub, settings, inside):
    """What rank 0 reports of a run, a record for each measurement. Ends the process `hub`.

    `settings` are worker.py's without the rank; `inside(rank, command)` is the command for the place of that worker.
    """
    workers = []
    try:
        for rank in reversed(range(WORKERS)):
            mine = {"job": "run", "rank": rank, "workers": WORKERS, "batch": args.batch,
                    "every": max(1, settings["rounds"] // 40), **settings}
            script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py")
            command = ["env", "OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", args.python, script, json.dumps(mine)]
            out = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            workers.append(subprocess.Popen(inside(rank, command), stdout=out, text=True))
        said, _ = workers[-1].communicate(timeout=60 + settings["rounds"])  # at most a second a round
        codes = [worker.wait(timeout=60) for worker in workers]
        if any(codes):
            what = " ".join(str(settings[name]) for name in ("task", "method", "seed"))
            raise RuntimeError(f"{what}: workers ended with {codes}")
    finally:
        for process in [*workers, hub]:
            process.kill()
            process.wait()
    return [json.loads(line) for line in said.splitlines()]

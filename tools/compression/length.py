#!/usr/bin/env python3
"""Trains with each method until accuracy is flat, and writes what came of it by rounds.

Four workers and a hub, each a process, over shared memory: no link has a limit, and no time is told. A run that is in
the table already is not made again. Needs no root.
"""

import os
import subprocess

import runs

TABLE = "length.csv"
FIELDS = ["task", "method", "seed", "round", "worker", "hub"]
METHODS = ["plump", "quant", "slim", "core", "slim-once", "core-once", "kept", "dgc-fifth", "asgd"]
ROUNDS = {"digits": 440, "text": 6000}
# The paper selects about twenty times in a run: every 20,000 of about 400,000 mini-batches.
SELECTIONS = 20
# However this process ends, its children end with it.
MINE = ["setpriv", "--pdeathsig", "KILL"]


def main():
    """All runs, one after another."""
    args = runs.options(__doc__, TABLE, "text", METHODS).parse_args()
    runs.all_of(args, TABLE, FIELDS, {}, lambda *run: one(args, *run), lambda row: f"hub {row[5]:.4f}")


def one(args, task, method, seed):
    """The rows of one run, with its own hub and workers."""
    rounds = args.rounds or ROUNDS[task]
    serve = [*MINE, *runs.serving(args, "127.0.0.1:0")]
    hub = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, env=dict(os.environ, RUST_LOG="warn"))
    said = hub.stdout.readline()
    if "control port http://" not in said:
        raise RuntimeError(f"{' '.join(serve)} said {said!r}: expected its control port")
    settings = {"hub": said.split("http://")[1].split()[0], "task": task, "method": method, "seed": seed,
                "rounds": rounds, "q": max(1, rounds // SELECTIONS), "transport": "shm", "hub_too": True}
    lines = runs.trained(args, hub, settings, lambda _rank, command: [*MINE, *command])
    return [(task, method, seed, line["round"], line["accuracy"], line["hub"]) for line in lines]


if __name__ == "__main__":
    main()

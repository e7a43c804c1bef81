#!/usr/bin/env python3
"""Trains with each method over links of a limited rate, and writes what came of it.

Four workers and a hub, each a machine: a network namespace with one link (tools/rig/machines.py). A run that is in
the table already is not made again.
"""

import os
import subprocess
import sys

import runs

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "rig"))

from machines import Machines  # noqa: E402

TABLE = "runs.csv"
FIELDS = ["task", "method", "seed", "round", "seconds", "accuracy", "mbit"]
METHODS = ["plump", "p3", "quant", "slim", "core", "kept", "dgc", "asgd"]
ROUNDS = {"digits": 440, "text": 800}
SELECT_EVERY = 100
SOCKET_BYTES = 256 << 10
HUB = runs.WORKERS


def main():
    """All runs, one after another."""
    parser = runs.options(__doc__, TABLE, "digits,text", METHODS)
    parser.add_argument("--mbit", type=int, default=1000, help="rate of each link, both ways")
    args = parser.parse_args()
    machines = Machines(runs.WORKERS + 1)
    # Like a PBox with many links, the hub has the rate of all workers together, in one link.
    machines.limit([args.mbit] * runs.WORKERS + [args.mbit * runs.WORKERS], SOCKET_BYTES)
    runs.all_of(args, TABLE, FIELDS, {"mbit": args.mbit}, lambda *run: one(machines, args, *run),
                lambda row: f"{row[5]:.4f} after {row[4]:.1f} s")


def one(machines, args, task, method, seed):
    """The rows of one run, with its own hub and workers."""
    hub_at = f"{machines.address(HUB)}:7077"
    serve = machines.inside(HUB, runs.serving(args, hub_at))
    hub = subprocess.Popen(serve, stdout=subprocess.DEVNULL, env=dict(os.environ, RUST_LOG="warn"))
    settings = {"hub": hub_at, "task": task, "method": method, "seed": seed, "rounds": args.rounds or ROUNDS[task],
                "q": SELECT_EVERY, "transport": "tcp", "hub_too": False}
    lines = runs.trained(args, hub, settings, machines.inside)
    return [(task, method, seed, line["round"], line["seconds"], line["accuracy"], args.mbit) for line in lines]


if __name__ == "__main__":
    main()

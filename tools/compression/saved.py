#!/usr/bin/env python3
"""Measures the time of a round without computing, on links of a limited rate, for each method. The time shows how much
communication time a method saves, with its encoding and decoding.

Four workers and a hub are machines, as in run.py. All methods are measured once, then again, so that changes of the machine's
load affect all of them.
"""

import argparse
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "rig"), os.path.join(HERE, "..", "figures")]

from machines import Machines  # noqa: E402
from run import attend, started  # noqa: E402
from table import spread  # noqa: E402

WORKERS = 4
SOCKET_BYTES = 256 << 10
METHODS = ["none", "bf16", "qsgd:8:512", "slim:0.2:0.1", "slim:0.2:0.1:20000:none:keys", "slim:0.3:0.15", "topk:0.01"]


def arguments():
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binaries", default="target/release", help="where phub-server and phub-probe are")
    parser.add_argument("--model", default="resnet50", help="a model of phub-probe")
    parser.add_argument("--mbit", type=int, default=1000, help="rate of each worker's link, each way; the hub's link has the sum")
    parser.add_argument("--rounds", type=int, default=8, help="measured rounds of each run")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each method")
    parser.add_argument("--out", default="target/compression", help="folder of saved.json")
    return parser.parse_args()


def main():
    """Measures all methods, and prints a table."""
    args = arguments()
    machines = Machines(WORKERS + 1)
    machines.limit([args.mbit] * WORKERS + [args.mbit * WORKERS], SOCKET_BYTES)
    reports = {method: [] for method in METHODS}
    for repeat in range(args.repeats):
        for method in METHODS:
            reports[method].append(one(machines, args, method))
            print(f"[{repeat + 1}/{args.repeats}] {method}: {reports[method][-1]['round_ms_p50']:.0f} ms", file=sys.stderr)
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "saved.json"), "w") as file:
        json.dump(reports, file, indent=1)
    print("| sent | ms a round | MB to the hub, back | of the time saved |\n| --- | --- | --- | --- |")
    whole = [report["round_ms_p50"] for report in reports["none"]]
    for method, of_method in reports.items():
        times = [report["round_ms_p50"] for report in of_method]
        saved = [100 * (1 - time / one) for time, one in zip(times, whole)]
        crossed = f"{of_method[0]['sent_bytes'] / 1e6:.1f}, {of_method[0]['received_bytes'] / 1e6:.1f}"
        print(f"| `{method}` | {spread(times)} | {crossed} | {spread(saved)}% |")


def one(machines, args, method):
    """Measures one method once. Returns the report of rank 0."""
    options = {"--model": args.model, "--transport": "tcp", "--rounds": args.rounds,
               "--compress": None if method == "none" else method}
    with started(machines, args.binaries, [WORKERS], WORKERS, options) as (_, workers):
        return attend(workers)[0]


if __name__ == "__main__":
    main()

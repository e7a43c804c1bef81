#!/usr/bin/env python3
"""Measures P3's figures on machines made of namespaces. run.sh starts it in its own namespaces."""

import argparse
import os
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "rig"))

from machines import Machines  # noqa: E402
from points import KINDS, chosen  # noqa: E402
from run import Failed, measure  # noqa: E402
from table import Table  # noqa: E402


def main():
    """Makes the missing runs, then prints and draws all figures."""
    args = arguments().parse_args()
    os.makedirs(args.out, exist_ok=True)
    table = Table(f"{args.out}/runs.csv", args.fresh, args.others_at_most)
    points = chosen(args.only, args.quick, args.hubs)
    if args.at_most:
        points = points[: args.at_most]
    # All points run once, then again, so that a change of the machine's speed shows in the spread of each point.
    runs = [(point, repeat) for repeat in range(args.repeats) for point in points]
    todo = [run for run in runs if not table.has(*run)]
    print(f"{len(points)} points, {args.repeats} runs each; {len(runs) - len(todo)} are in {table.path}", flush=True)
    machines = None
    for number, (point, repeat) in enumerate(todo, start=1):
        if machines is None or machines.count != len(point.links()):
            if machines is not None:
                machines.remove()
            machines = Machines(len(point.links()))
        began = time.monotonic()
        series = f"{args.out}/utilisation-{point.model}-{point.schedule}.csv" if point.series else None
        try:
            row = measure(machines, args.binaries, point, series)
        except Failed as error:
            sys.exit(f"figures: {point}: {error}")
        table.add({**row, "repeat": repeat})
        say(number, len(todo), point, row, time.monotonic() - began)


def arguments():
    """Returns the options of the command line, which `run.sh --help` lists."""
    parser = common_options("tools/figures/run.sh", __doc__)
    parser.add_argument("--only", action="append", default=[], metavar="FIGURE", choices=list(KINDS),
                        help=f"one of {', '.join(KINDS)}; may be given several times; default: all but trial")
    parser.add_argument("--quick", action="store_true", help="a few points of each figure, in some minutes")
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    parser.add_argument("--others-at-most", type=float, default=1, metavar="SHARE",
                        help="repeat each run in which other work had more than this share of the cores, e.g. 0.3")
    parser.add_argument("--hubs", choices=["beside", "apart"],
                        help="for all points: a hub on each worker's machine, or one on a separate machine; default: as in P3")
    parser.add_argument("--at-most", type=int, metavar="N", help="measure only the first N points")
    return parser


def common_options(program, description):
    """Returns the options of P3's and iBatch's experiments."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each point (3)")
    parser.add_argument("--out", default="target/figures", metavar="DIRECTORY", help="folder of CSV files and pictures")
    parser.add_argument("--no-pictures", action="store_true", help="write only CSV files")
    parser.add_argument("--binaries", default="target/release", metavar="DIRECTORY", help=argparse.SUPPRESS)
    return parser


def run_main(name, main):
    """Runs a program's `main`. If an error or a signal ends it early, prints one line and not a traceback."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(f"{name}: ended by SIGTERM"))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(f"{name}: interrupted; the results are kept")
    except (Failed, RuntimeError, ValueError) as error:
        sys.exit(f"{name}: {error}")


def say(number, of, point, row, seconds):
    """Prints a line about a run."""
    rate = f"{point.gbps:g} Gb/s"
    what = f"{point.model}, {point.machines} machines, {rate}, {point.schedule}, {point.consistency}"
    of_bound = float(row["samples_per_s"]) / float(row["bound"])
    print(f"{number}/{of}  {what}: {row['samples_per_s']} samples/s, {of_bound:.2f} of the bound; cores "
          f"{100 * float(row['cpu_share']):.0f}% busy, {100 * float(row['others_share']):.0f}% for other programs; "
          f"{seconds:.0f} s", flush=True)


if __name__ == "__main__":
    run_main("figures", main)

#!/usr/bin/env python3
"""Measures and simulates iBatch's pulls on machines made of namespaces. `tools/figures/run.sh ibatch` starts it."""

import csv
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, ".."), os.path.join(HERE, "..", "..", "rig")]

from figures import common_options, run_main  # noqa: E402
from machines import MTU, Machines  # noqa: E402
from run import Failed, attend, started  # noqa: E402

BATCHINGS = ["ibatch", "greedy", "layer", "all"]
# The measured cluster. Its computing and its pulls take about the same time, so that the choice of batches matters.
MODEL, SHRINK, TIME, MBIT, START_UP_MS = "vgg19-22k", 48, 1.6, 300, 8
# The time of an empty message and of the wake-up of its receiver. The value was fitted to pulls layer by layer on two machines.
LATENCY_MS = 2
# The paper's figure 3: GoogLeNet on six machines. The setting is model, shrink and time.
FIGURE_3 = {"machines": 6, "setting": ("googlenet", 8, 2)}
# The numbers of machines. Eight machines share the cores that four would need, so everything takes twice as long.
COUNTS = [2, 4, 8]
ITERATIONS = 5
# The share of a frame that is not headers.
GOODPUT = (MTU - 52) / (MTU + 14)
SOCKET_BYTES, CHUNK_BYTES = 8 << 10, 4096


def slower(count):
    """Returns the factor by which all times are longer with this number of machines, which share the cores."""
    return max(1, count / 4)


def simulate(binaries, **options):
    """Runs the simulator phub-cluster, and returns its report."""
    words = [word for name, value in options.items() for word in option(name, value)]
    done = subprocess.run([f"{binaries}/phub-cluster", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(done.stderr.strip())
    return json.loads(done.stdout)


def option(name, value):
    """Returns the arguments of the program for an option. A bool is a flag without a value."""
    name = "--" + name.replace("_", "-")
    return [name] * value if isinstance(value, bool) else [name, str(value)]


def measure(machines, binaries, batching, model=MODEL, shrink=SHRINK, time_scale=TIME, iterations=ITERATIONS):
    """Makes a run on the rig, and returns the report of each worker."""
    count = machines.count
    machines.limit([MBIT / slower(count)] * count, SOCKET_BYTES)
    options = {"--compute": model, "--time-scale": time_scale * slower(count), "--shrink": shrink, "--exchanges": 1,
               "--rounds": iterations, "--chunk-bytes": CHUNK_BYTES, "--pull": batching,
               "--pull-start-up-us": round(1000 * START_UP_MS * slower(count))}
    with started(machines, binaries, range(count), count, options) as (_, workers):
        return attend(workers)


def simulated(binaries, count):
    """Simulates the measured cluster. Returns the results by the choice of batches."""
    slow = slower(count)
    answer = simulate(binaries, compute=MODEL, shrink=SHRINK, time_scale=TIME * slow, nodes=count,
                      gbps=MBIT / slow / 1000 * GOODPUT, start_up_ms=START_UP_MS * slow, latency_ms=LATENCY_MS,
                      chunk_bytes=CHUNK_BYTES)
    return {batching["batching"]: batching for batching in answer["batchings"]}


def row(count, batching, repeat, reports, simulation):
    """Returns the row of a run, with means over all workers."""
    mean = lambda of: statistics.mean(of(report) for report in reports)  # noqa: E731
    profile = reports[0]["pull"]["profile"]
    values = {
        "iteration_ms": mean(lambda report: report["compute"]["iteration_ms"]),
        "to_last_layer_ms": mean(lambda report: report["pull"]["measured_ms"]),
        "predicted_ms": profile and mean(lambda report: report["pull"]["profile"]["predicted_ms"]),
        "start_up_ms": profile and mean(lambda report: report["pull"]["profile"]["start_up_ms"]),
        "simulated_iteration_ms": simulation["iteration"],
        "simulated_to_last_layer_ms": simulation["to_last_layer"],
    }
    numbers = {name: "" if value is None else f"{value:.2f}" for name, value in values.items()}
    return {"model": MODEL, "machines": count, "batching": batching, "repeat": repeat, **numbers}


def layers(reports):
    """Returns the rows of figure 3: the times to pull and to compute each part of GoogLeNet, which the paper calls layers."""
    profile = reports[0]["pull"]["profile"]
    parts = {}
    named = zip(reports[0]["compute"]["layers"], profile["transfer_ms"], strict=True)
    for layer, transfer_ms in named:
        part = parts.setdefault(layer["name"].split("/")[0], [profile["start_up_ms"], 0.0])
        part[0] += transfer_ms
        part[1] += layer["forward_ms"]
    return [{"layer": name, "pull_ms": f"{pull:.3f}", "forward_ms": f"{forward:.3f}"}
            for name, (pull, forward) in parts.items()]


def say(rows):
    """Prints a table as in docs/figures/batches.md for each number of machines: medians, and the errors of the simulation."""
    for count in dict.fromkeys(int(row["machines"]) for row in rows):
        print(f"\n| {count} machines | iteration, ms | simulated over measured | to the last layer, ms | "
              "simulated over measured |")
        print("|---|---|---|---|---|")
        for batching in BATCHINGS:
            those = [row for row in rows if int(row["machines"]) == count and row["batching"] == batching]
            print(f"| {batching} | {median(those, 'iteration_ms')} | {off(those, 'simulated_iteration_ms', 'iteration_ms')} | "
                  f"{median(those, 'to_last_layer_ms')} | {off(those, 'simulated_to_last_layer_ms', 'to_last_layer_ms')} |")


def median(rows, name):
    """Returns a column's median as text."""
    return f"{statistics.median(float(row[name]) for row in rows):.0f}"


def off(rows, promised, came):
    """Returns the lowest and the highest error of the predictions in these rows as text, empty without predictions."""
    shares = sorted(100 * (float(row[promised]) / float(row[came]) - 1) for row in rows if row[promised])
    return f"{shares[0]:+.0f} to {shares[-1]:+.0f}%" if shares else ""


def write(path, rows):
    """Writes rows to a CSV file."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main():
    """Makes all runs, and writes a row for each. Then measures and writes the profile of figure 3."""
    parser = common_options("tools/figures/run.sh ibatch", __doc__)
    parser.add_argument("--counts", default=",".join(map(str, COUNTS)), help="numbers of machines (%(default)s)")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    rows = []
    for count in map(int, args.counts.split(",")):
        machines = Machines(count)
        simulation = simulated(args.binaries, count)
        for repeat in range(args.repeats):
            for batching in BATCHINGS:
                began = time.monotonic()
                reports = measure(machines, args.binaries, batching)
                rows.append(row(count, batching, repeat, reports, simulation[batching]))
                print(f"{rows[-1]}  {time.monotonic() - began:.0f} s", flush=True)
        machines.remove()
        write(f"{args.out}/ibatch.csv", rows)
    say(rows)
    machines = Machines(FIGURE_3["machines"])
    reports = measure(machines, args.binaries, "ibatch", *FIGURE_3["setting"], iterations=2)
    write(f"{args.out}/ibatch-layers.csv", layers(reports))


if __name__ == "__main__":
    run_main("ibatch", main)

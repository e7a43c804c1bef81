#!/usr/bin/env python3
"""Draws accuracy by rounds and by time, and prints the table of docs/figures/compression.md. Needs matplotlib; must
not measure."""

import argparse
import collections
import csv
import os
import statistics
import sys

import matplotlib.pyplot as plt

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "figures"))

import style  # noqa: E402

TITLES = {
    "plump": "Plump-DP", "p3": "P3", "quant": "Quant-DP", "slim": "Slim-DP", "core": "Slim-DP, core alone",
    "kept": "Slim-DP that keeps", "dgc": "DGC", "asgd": "ASGD",
}
COLOURS = {
    "plump": "#c0392b", "p3": "#1e8449", "quant": "#2b7bba", "slim": "#e08e2b", "core": "#8d6e63", "dgc": "#7d3c98",
    "kept": "#16a085", "asgd": "#7f8c8d",
}


def main():
    """The picture and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", default="target/compression/runs.csv", help="what run.py wrote")
    parser.add_argument("--out", default="target/compression", help="folder of the picture")
    args = parser.parse_args()
    runs = collections.defaultdict(lambda: collections.defaultdict(list))
    with open(args.runs, newline="") as file:
        for row in csv.DictReader(file):
            look = int(row["round"]), float(row["seconds"]), float(row["accuracy"])
            runs[row["task"], row["method"]][int(row["seed"])].append(look)
    draw(runs, args.out)
    tell(runs)


def draw(runs, out):
    """A row for each task: by rounds, by time."""
    tasks = list(dict.fromkeys(task for task, _ in runs))
    figure, rows = plt.subplots(len(tasks), 2, figsize=(9, 3 * len(tasks)), squeeze=False)
    for task, axes in zip(tasks, rows):
        for method in (method for method in TITLES if (task, method) in runs):
            looks = list(zip(*runs[task, method].values()))
            rounds = [look[0][0] for look in looks]
            seconds = [statistics.median(run[1] for run in look) for look in looks]
            middle, low, high = ([of(100 * run[2] for run in look) for look in looks]
                                 for of in (statistics.median, min, max))
            for axis, x in zip(axes, (rounds, seconds)):
                axis.plot(x, middle, color=COLOURS[method], linewidth=1.2, label=TITLES[method])
                axis.fill_between(x, low, high, color=COLOURS[method], alpha=0.12, linewidth=0)
        for axis, label in zip(axes, ("rounds", "seconds")):
            best = max(100 * look[2] for (of, _), by_seed in runs.items() if of == task
                       for looks in by_seed.values() for look in looks)
            axis.set_ylim(best - 30 if task == "text" else best - 8, best + 0.5)
            axis.set_xlabel(label)
            axis.set_title(f"{task}, by {label}")
        axes[0].set_ylabel("test samples that are right, %")
        axes[0].legend(loc="lower right")
    style.save(figure, f"{out}/accuracy", dpi=150)


def tell(runs):
    """Markdown: accuracy at the end, seconds of a round, and seconds to where Plump-DP ends."""
    print("| | method | right at the end, % | ms a round | s to Plump-DP's end less 0.5% |\n| --- | --- | --- | --- | --- |")
    for (task, method), by_seed in runs.items():
        ends = [100 * looks[-1][2] for looks in by_seed.values()]
        paces = [1000 * looks[-1][1] / looks[-1][0] for looks in by_seed.values()]
        goal = statistics.median(looks[-1][2] for looks in runs[task, "plump"].values()) - 0.005
        times = [next((look[1] for look in looks if look[2] >= goal), None) for looks in by_seed.values()]
        reached = [time for time in times if time is not None]
        soon = spread(reached, 1) if len(reached) == len(times) else f"in {len(reached)} of {len(times)} runs"
        print(f"| {task} | {TITLES[method]} | {spread(ends, 2)} | {spread(paces, 1)} | {soon} |")


def spread(values, digits):
    """Median, lowest and highest."""
    middle, low, high = (f"{of(values):.{digits}f}" for of in (statistics.median, min, max))
    return f"{middle} ({low} to {high})"


if __name__ == "__main__":
    main()

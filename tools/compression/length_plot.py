#!/usr/bin/env python3
"""Draws accuracy by rounds of length.py's runs, and prints the table of docs/figures/compression.md. Needs matplotlib; must
not measure."""

import argparse
import collections
import csv
import statistics

import matplotlib.pyplot as plt
from plot import COLOURS, TITLES, spread

TITLES = {**TITLES, "slim-once": "Slim-DP, one core", "core-once": "Slim-DP, one core alone",
          "kept": "Slim-DP that keeps", "dgc-fifth": "DGC, a fifth of the rate"}
COLOURS = {**COLOURS, "slim-once": "#16a085", "core-once": "#34495e", "kept": "#2b7bba", "dgc-fifth": "#7d3c98"}
# Methods of each picture. P3 has Plump-DP's bits.
PICTURES = [("plump", "quant", "dgc-fifth", "asgd", "slim"),
            ("plump", "slim", "slim-once", "core", "core-once", "kept")]
# Evaluations at the end of a run that are averaged: a single one is off by half a point of chance.
LAST = 5


def main():
    """The picture and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", default="target/compression/length.csv", help="what length.py wrote")
    parser.add_argument("--out", default="target/compression", help="folder of the picture")
    parser.add_argument("--early", type=int, default=900, help="a round to show beside the end")
    args = parser.parse_args()
    runs = collections.defaultdict(lambda: collections.defaultdict(list))
    with open(args.runs, newline="") as file:
        for row in csv.DictReader(file):
            look = int(row["round"]), 100 * float(row["worker"]), 100 * float(row["hub"])
            runs[row["task"], row["method"]][int(row["seed"])].append(look)
    draw(runs, args.out)
    tell(runs, args.early)


def draw(runs, out):
    """A row for each task: the hub's weights, by rounds; methods, then kinds of Slim-DP."""
    tasks = list(dict.fromkeys(task for task, _ in runs))
    figure, rows = plt.subplots(len(tasks), len(PICTURES), figsize=(9, 3.4 * len(tasks)), squeeze=False, sharey="row")
    for task, axes in zip(tasks, rows):
        for axis, methods in zip(axes, PICTURES):
            for method in (method for method in methods if (task, method) in runs):
                looks = list(zip(*runs[task, method].values()))
                rounds = [look[0][0] for look in looks]
                middle, low, high = ([of(run[2] for run in look) for look in looks]
                                     for of in (statistics.median, min, max))
                axis.plot(rounds, middle, color=COLOURS[method], linewidth=1.2, label=TITLES[method])
                axis.fill_between(rounds, low, high, color=COLOURS[method], alpha=0.12, linewidth=0)
            best = max(look[2] for looks in runs[task, "plump"].values() for look in looks)
            axis.set_ylim(best - (30 if task == "text" else 8), best + 1)
            axis.set_xlabel("rounds")
            axis.set_title(task)
            axis.legend(loc="lower right")
        axes[0].set_ylabel("test samples that are right, %")
    figure.tight_layout()
    figure.savefig(f"{out}/length.svg", metadata={"Date": None})
    figure.savefig(f"{out}/length.png", dpi=150)


def tell(runs, early):
    """Markdown: accuracy of the hub's weights, how far from Plump-DP of the same seed, and of rank 0's."""
    print(f"| | method | runs | at {early}, % | at the end | less Plump-DP, same seed | rank 0's own, less the hub's |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (task, method), by_seed in runs.items():
        then = [look[2] for looks in by_seed.values() for look in looks if look[0] == early]
        plump = {seed: end(looks, 2) for seed, looks in runs[task, "plump"].items()}
        ends = {seed: end(looks, 2) for seed, looks in by_seed.items()}
        gaps = [ends[seed] - plump[seed] for seed in ends if seed in plump]
        own = [end(looks, 1) - ends[seed] for seed, looks in by_seed.items()]
        cells = [task, TITLES[method], str(len(ends)), spread(then, 1) if then else "", spread(ends.values(), 1),
                 signed(gaps), signed(own)]
        print(f"| {' | '.join(cells)} |")


def end(looks, which):
    """The mean of a run's last evaluations."""
    return statistics.mean(look[which] for look in looks[-LAST:])


def signed(values):
    """Median, lowest and highest, with signs."""
    middle, low, high = (f"{of(values):+.1f}" for of in (statistics.median, min, max))
    return f"{middle} ({low} to {high})"


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Draws the results of run.py, and prints the tables of docs/figures/compression.md: accuracy by rounds and by time, or with
`length` by rounds only. Needs matplotlib; must not measure."""

import argparse
import os
import statistics
import sys

import matplotlib.pyplot as plt

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "figures"))

import style  # noqa: E402
from tables import ACCURACY, HUB, ROUND, SECONDS, TITLES, read, tell, tell_long  # noqa: E402

COLOURS = {
    "plump": "#c0392b", "p3": "#1e8449", "quant": "#2b7bba", "slim": "#e08e2b", "core": "#8d6e63", "slim-once": "#f1c40f",
    "core-once": "#34495e", "explorer": "#8e44ad", "slim-small": "#85c1e9", "slim-large": "#1f618d", "slim-sum": "#1e8449",
    "explorer-sum": "#d2b4de", "plump-fast": "#f1948a", "kept": "#16a085", "dgc": "#7d3c98", "dgc-fifth": "#7d3c98", "asgd": "#7f8c8d",
}
# The methods of each picture of long runs. P3 is left out: its weights equal Plump-DP's, bit by bit.
LONG = [("plump", "quant", "dgc-fifth", "asgd", "slim"), ("plump", "slim", "slim-once", "core", "core-once", "kept"),
        ("plump", "slim", "slim-small", "slim-large", "explorer", "slim-sum", "explorer-sum", "plump-fast")]


def main():
    """Draws the picture and writes the table."""
    long = sys.argv[1:2] == ["length"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", default=f"target/compression/{'length' if long else 'runs'}.csv", help="the results of run.py")
    parser.add_argument("--out", default="target/compression", help="folder of the picture")
    args = parser.parse_args(sys.argv[2:] if long else None)
    runs = read(args.runs)
    (draw_long if long else draw)(runs, args.out)
    (tell_long if long else tell)(runs)


def curve(axis, by_seed, x, y, method):
    """Draws the medians over all seeds, with a band from the lowest to the highest value."""
    looks = list(zip(*by_seed.values()))
    at = [statistics.median(run[x] for run in look) for look in looks]
    middle, low, high = ([of(100 * run[y] for run in look) for look in looks] for of in (statistics.median, min, max))
    colour = COLOURS[method]
    axis.plot(at, middle, color=colour, linewidth=1.2, label=TITLES[method])
    axis.fill_between(at, low, high, color=colour, alpha=0.12, linewidth=0)


def panels(tasks, height, columns, **more):
    """Returns a figure, and for each task its panels."""
    figure, rows = plt.subplots(len(tasks), columns, figsize=(4.5 * columns, height * len(tasks)), squeeze=False, **more)
    for axes in rows:
        axes[0].set_ylabel("test samples that are right, %")
    return figure, zip(tasks, rows)


def draw(runs, out):
    """Draws a row of panels for each task: accuracy by rounds, and by time."""
    figure, rows = panels(list(dict.fromkeys(task for task, _ in runs)), 3, 2)
    for task, axes in rows:
        best = max(100 * look[ACCURACY] for (of, _), by_seed in runs.items() if of == task
                   for looks in by_seed.values() for look in looks)
        for axis, x, label in zip(axes, (ROUND, SECONDS), ("rounds", "seconds")):
            for method in (method for method in TITLES if (task, method) in runs):
                curve(axis, runs[task, method], x, ACCURACY, method)
            finish(axis, task, best, 0.5, label, f"{task}, by {label}")
        axes[0].legend(loc="lower right")
    style.save(figure, f"{out}/accuracy", dpi=150)


def draw_long(runs, out):
    """Draws a row of panels for each task: accuracy of the hub's weights by rounds, for methods, and for kinds of Slim-DP."""
    figure, rows = panels(list(dict.fromkeys(task for task, _ in runs)), 3.4, len(LONG), sharey="row")
    for task, axes in rows:
        best = max(100 * look[HUB] for looks in runs[task, "plump"].values() for look in looks)
        for axis, methods in zip(axes, LONG):
            for method in (method for method in methods if (task, method) in runs):
                curve(axis, runs[task, method], ROUND, HUB, method)
            finish(axis, task, best, 1, "rounds", task)
            axis.legend(loc="lower right")
    style.save(figure, f"{out}/length", dpi=150)


def finish(axis, task, best, above, label, title):
    """Sets the limits and the texts of a panel."""
    axis.set_ylim(best - (30 if task == "text" else 8), best + above)
    axis.set_xlabel(label)
    axis.set_title(title)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Draws the results of run.py, and prints the table of docs/figures/compression.md: accuracy by rounds and by time, or with
`length` by rounds only. Needs matplotlib; must not measure."""

import argparse
import collections
import csv
import os
import statistics
import sys

import matplotlib.pyplot as plt

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "figures"))

import style  # noqa: E402
from table import spread  # noqa: E402

METHODS = {
    "plump": ("Plump-DP", "#c0392b"), "p3": ("P3", "#1e8449"), "quant": ("Quant-DP", "#2b7bba"),
    "slim": ("Slim-DP", "#e08e2b"), "core": ("Slim-DP, core alone", "#8d6e63"),
    "slim-once": ("Slim-DP, one core", "#f1c40f"), "core-once": ("Slim-DP, one core alone", "#34495e"),
    "explorer": ("Slim-DP (0.3, 0), explorer alone", "#8e44ad"), "slim-small": ("Slim-DP (0.2, 0.1)", "#85c1e9"),
    "slim-large": ("Slim-DP (0.5, 0.25)", "#1f618d"), "slim-sum": ("Slim-DP, sum at the hub", "#1e8449"),
    "explorer-sum": ("explorer alone, sum at the hub", "#d2b4de"), "plump-fast": ("Plump-DP, four times the rate", "#f1948a"),
    "kept": ("Slim-DP that keeps", "#16a085"), "dgc": ("DGC", "#7d3c98"),
    "dgc-fifth": ("DGC, a fifth of the rate", "#7d3c98"), "asgd": ("ASGD", "#7f8c8d"),
}
# The methods of each picture of long runs. P3 is left out: its weights equal Plump-DP's, bit by bit.
LONG = [("plump", "quant", "dgc-fifth", "asgd", "slim"), ("plump", "slim", "slim-once", "core", "core-once", "kept"),
        ("plump", "slim", "slim-small", "slim-large", "explorer", "slim-sum", "explorer-sum", "plump-fast")]
# The number of last evaluations of a long run that are averaged, because one evaluation alone varies by half a percentage point.
LAST = 5
EARLY = 900


def main():
    """Draws the picture and writes the table."""
    long = sys.argv[1:2] == ["length"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", default=f"target/compression/{'length' if long else 'runs'}.csv", help="the results of run.py")
    parser.add_argument("--out", default="target/compression", help="folder of the picture")
    args = parser.parse_args(sys.argv[2:] if long else None)
    # The evaluations, by task, method and seed. The constants below number their values.
    runs = collections.defaultdict(lambda: collections.defaultdict(list))
    with open(args.runs, newline="") as file:
        for row in csv.DictReader(file):
            look = int(row["round"]), *(float(row.get(name, "nan")) for name in ("seconds", "accuracy", "worker", "hub"))
            runs[row["task"], row["method"]][int(row["seed"])].append(look)
    (draw_long if long else draw)(runs, args.out)
    (tell_long if long else tell)(runs)


ROUND, SECONDS, ACCURACY, WORKER, HUB = range(5)


def curve(axis, by_seed, x, y, method):
    """Draws the medians over all seeds, with a band from the lowest to the highest value."""
    looks = list(zip(*by_seed.values()))
    at = [statistics.median(run[x] for run in look) for look in looks]
    middle, low, high = ([of(100 * run[y] for run in look) for look in looks] for of in (statistics.median, min, max))
    title, colour = METHODS[method]
    axis.plot(at, middle, color=colour, linewidth=1.2, label=title)
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
            for method in (method for method in METHODS if (task, method) in runs):
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


def tell(runs):
    """Prints a table of Markdown: final accuracy, time of a round, and the time until a method has Plump-DP's
    final accuracy less 0.5%."""
    print("| | method | right at the end, % | ms a round | s to Plump-DP's end less 0.5% |\n| --- | --- | --- | --- | --- |")
    for (task, method), by_seed in runs.items():
        ends = [100 * looks[-1][ACCURACY] for looks in by_seed.values()]
        paces = [1000 * looks[-1][SECONDS] / looks[-1][ROUND] for looks in by_seed.values()]
        goal = statistics.median(looks[-1][ACCURACY] for looks in runs[task, "plump"].values()) - 0.005
        times = [next((look[SECONDS] for look in looks if look[ACCURACY] >= goal), None) for looks in by_seed.values()]
        reached = [time for time in times if time is not None]
        soon = spread(reached, ".1f") if len(reached) == len(times) else f"in {len(reached)} of {len(times)} runs"
        print(f"| {task} | {METHODS[method][0]} | {spread(ends, '.2f')} | {spread(paces, '.1f')} | {soon} |")


def tell_long(runs):
    """Prints a table of Markdown with the accuracy of the hub's weights. It also has the difference from
    Plump-DP with the same seed, and the difference of rank 0's own weights from the hub's."""
    print(f"| | method | runs | at {EARLY}, % | at the end | less Plump-DP, same seed | rank 0's own, less the hub's |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (task, method), by_seed in runs.items():
        then = [100 * look[HUB] for looks in by_seed.values() for look in looks if look[ROUND] == EARLY]
        plump = {seed: end(looks, HUB) for seed, looks in runs[task, "plump"].items()}
        ends = {seed: end(looks, HUB) for seed, looks in by_seed.items()}
        gaps = [ends[seed] - plump[seed] for seed in ends if seed in plump]
        own = [end(looks, WORKER) - ends[seed] for seed, looks in by_seed.items()]
        cells = [task, METHODS[method][0], str(len(ends)), spread(then, ".1f") if then else "", spread(ends.values(), ".1f"),
                 spread(gaps, "+.1f"), spread(own, "+.1f")]
        print(f"| {' | '.join(cells)} |")


def end(looks, which):
    """Returns the mean accuracy of a run's last evaluations, in percent."""
    return statistics.mean(100 * look[which] for look in looks[-LAST:])


if __name__ == "__main__":
    main()

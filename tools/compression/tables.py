"""The tables of docs/figures/compression.md: accuracy by rounds and by time, or by rounds only. Must not measure or draw."""

import collections
import csv
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "figures"))

from table import spread  # noqa: E402

TITLES = {
    "plump": "Plump-DP", "p3": "P3", "quant": "Quant-DP", "slim": "Slim-DP", "slim-once": "Slim-DP, one core",
    "slim-small": "Slim-DP (0.2, 0.1)", "slim-large": "Slim-DP (0.5, 0.25)", "explorer": "Slim-DP (0.3, 0), explorer alone",
    "core": "Slim-DP, core alone", "core-once": "Slim-DP, one core alone", "kept": "Slim-DP, unsent changes kept",
    "slim-sum": "Slim-DP, sum at the hub", "explorer-sum": "Slim-DP (0.3, 0), sum at the hub",
    "plump-fast": "Plump-DP, four times the rate", "dgc": "DGC", "dgc-fifth": "DGC, a fifth of the rate", "asgd": "ASGD",
}
# The values of an evaluation.
ROUND, SECONDS, ACCURACY, WORKER, HUB = range(5)
# The number of last evaluations of a long run that are averaged, because one evaluation alone varies by half a percentage point.
LAST = 5
EARLY = 900


def read(path):
    """Returns the evaluations of a file of run.py, by task and method, and then by seed."""
    runs = collections.defaultdict(lambda: collections.defaultdict(list))
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            look = int(row["round"]), *(float(row.get(name, "nan")) for name in ("seconds", "accuracy", "worker", "hub"))
            runs[row["task"], row["method"]][int(row["seed"])].append(look)
    return runs


def tasks(runs, headings):
    """Yields the rows of each task in the order of `TITLES`, with its runs of Plump-DP, and prints the head of its table."""
    for task in dict.fromkeys(task for task, _ in runs):
        print(f"\n{task}:\n\n| {' | '.join(headings)} |\n|{'---|' * len(headings)}")
        yield runs[task, "plump"], [(method, runs[task, method]) for method in TITLES if (task, method) in runs]


def tell(runs):
    """Prints final accuracy, time of a round, and the time until a method has Plump-DP's final accuracy less 0.5%."""
    headings = ("method", "accuracy at the end, %", "ms a round", "seconds until 0.5 points below Plump-DP's final accuracy")
    for plump, rows in tasks(runs, headings):
        goal = statistics.median(looks[-1][ACCURACY] for looks in plump.values()) - 0.005
        for method, by_seed in rows:
            accuracy = statistics.median(100 * looks[-1][ACCURACY] for looks in by_seed.values())
            pace = statistics.median(1000 * looks[-1][SECONDS] / looks[-1][ROUND] for looks in by_seed.values())
            times = [next((look[SECONDS] for look in looks if look[ACCURACY] >= goal), None) for looks in by_seed.values()]
            reached = [time for time in times if time is not None]
            all_reach = len(reached) == len(times)
            soon = f"{statistics.median(reached):.1f}" if all_reach else f"in {len(reached)} of {len(times)} runs"
            print(f"| {TITLES[method]} | {accuracy:.2f} | {pace:.1f} | {soon} |")


def tell_long(runs):
    """Prints the accuracy of the hub's weights, the difference from Plump-DP with the same seed, and the difference of rank 0's
    own weights from the hub's."""
    headings = (
        *("method", f"accuracy after {EARLY} rounds, %", "accuracy at the end, %", "points above Plump-DP with the same seed"),
        "accuracy of rank 0's own weights: points above the hub's",
    )
    for plump, rows in tasks(runs, headings):
        for method, by_seed in rows:
            then = [100 * look[HUB] for looks in by_seed.values() for look in looks if look[ROUND] == EARLY]
            ends = {seed: end(looks, HUB) for seed, looks in by_seed.items()}
            gaps = [ends[seed] - end(plump[seed], HUB) for seed in ends if seed in plump]
            own = [end(looks, WORKER) - ends[seed] for seed, looks in by_seed.items()]
            fewer = f" ({len(ends)} seeds)" if len(ends) < len(plump) else ""
            early = f"{statistics.median(then):.1f}" if then else ""
            cells = [TITLES[method] + fewer, early, f"{statistics.median(ends.values()):.1f}",
                     spread(gaps, "+.1f") if method != "plump" else "", spread(own, "+.1f") if any(own) else ""]
            print(" ".join(f"| {cell}" if cell else "|" for cell in cells) + " |")


def end(looks, which):
    """Returns the mean accuracy of a run's last evaluations, in percent."""
    return statistics.mean(100 * look[which] for look in looks[-LAST:])
